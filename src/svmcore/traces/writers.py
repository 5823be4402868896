"""Writing traces: a whole file under its name, or none.

Every writer writes to a temporary name in the same folder, flushes it to the
disk and renames it, so that a reader never meets a partial file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import InvalidArgumentError, NotSupportedError
from ..records import CPU, RECORD, UNKNOWN, Access, Kind, processor_name
from ..units import PAGE_MASK, PAGE_SHIFT
from .base import Records, check_records
from .kfd_smi import UNDEFINED_GPU, MigrateValue
from .opening import os_failure
from .records_csv import ACCESS_NAMES, FIELDS, KIND_NAMES, PROCESSOR_NAMES
from .write_oracle import write_oracle

__all__ = ["WRITERS", "Written", "whole_file", "write_records"]

#: Trigger of a migration that a TTM eviction caused, for EVICT records.
_TTM_EVICTION = 3
#: Rows of a Parquet row group and of an Arrow record batch.
GROUP = 1 << 18


class Written(NamedTuple):
    """What a writer did."""

    records: int
    """Records written."""
    left_out: dict[str, int]
    """Records that the format cannot say, by the kind's name; not written."""


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[BinaryIO]:
    """A file that takes its name only when the block ends without an error."""
    final = Path(path)
    temporary = final.parent / f".{final.name}.{secrets.token_hex(6)}.tmp"
    try:
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise os_failure(path, "", error, "a folder that can be written") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{path!r}: {error}: expected a file name") from error
    try:
        with os.fdopen(handle, "w+b", 1 << 18) as file:
            with contextlib.suppress(FileNotFoundError):
                # A replaced file leaves its permissions to the new one.
                temporary.chmod(final.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise os_failure(path, "", error, "room for the whole file") from error
        raise
    _sync_folder(final.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable where the system lets a folder be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class _Lines:
    """Lines of text of records: a header, and one function from array to lines."""

    def __init__(self, header: str, lines: Callable[[Records], Iterator[str]]) -> None:
        self.header = header
        self.lines = lines


def _write_npy(file: BinaryIO, arrays: Iterator[Records]) -> None:
    def header(count: int) -> None:
        file.seek(0)
        np.lib.format.write_array_header_1_0(
            file,
            {
                "descr": np.lib.format.dtype_to_descr(RECORD),
                "fortran_order": False,
                "shape": (count,),
            },
        )

    # The header leaves room for any count, so it is written again when that is known.
    header(0)
    begin = file.tell()
    count = 0
    for array in arrays:
        file.write(np.ascontiguousarray(array).tobytes())
        count += len(array)
    header(count)
    assert file.tell() == begin, "the header grew"
    file.seek(0, os.SEEK_END)


def _arrow() -> Any:
    """The package pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise NotSupportedError(
            "parquet and arrow files need pyarrow: install svmcore[arrow]"
        ) from error
    return pa


def _codec(pa: Any, *names: str) -> str | None:
    """The first of some compressions that pyarrow has."""
    return next((name for name in names if pa.Codec.is_available(name)), None)


def _batches(pa: Any, schema: Any, arrays: Iterator[Records]) -> Iterator[Any]:
    """Record batches of GROUP rows, the last one shorter; an array of no rows gives none."""
    held: list[Records] = []
    waiting = 0

    def batch(records: Records) -> Any:
        # One strided copy a column.
        columns = [pa.array(np.ascontiguousarray(records[name])) for name in schema.names]
        return pa.record_batch(columns, schema=schema)

    for array in arrays:
        held.append(array)
        waiting += len(array)
        if waiting >= GROUP:
            joined = np.concatenate(held)
            whole = waiting - waiting % GROUP
            for at in range(0, whole, GROUP):
                yield batch(joined[at : at + GROUP])
            held = [joined[whole:].copy()]
            waiting -= whole
    if waiting:
        yield batch(np.concatenate(held))


def _schema(pa: Any) -> Any:
    return pa.schema(
        [pa.field(name, pa.from_numpy_dtype(RECORD[name]), nullable=False) for name in FIELDS]
    )


def _write_parquet(file: BinaryIO, arrays: Iterator[Records]) -> None:
    pa = _arrow()
    schema = _schema(pa)
    writer = pa.parquet.ParquetWriter(
        file,
        schema,
        compression=_codec(pa, "zstd", "snappy") or "none",
        # Times and addresses repeat too little for a dictionary.
        use_dictionary=[name for name in FIELDS if name not in ("t_ns", "addr")],
        write_page_checksum=True,
    )
    with writer:
        for batch in _batches(pa, schema, arrays):
            writer.write_batch(batch, row_group_size=GROUP)


def _write_arrow(file: BinaryIO, arrays: Iterator[Records]) -> None:
    pa = _arrow()
    schema = _schema(pa)
    options = pa.ipc.IpcWriteOptions(compression=_codec(pa, "zstd", "lz4"))
    with pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in _batches(pa, schema, arrays):
            writer.write_batch(batch)


def _write_text(file: BinaryIO, arrays: Iterator[Records], form: _Lines) -> None:
    if form.header:
        file.write(form.header.encode() + b"\n")
    file.writelines("".join(form.lines(array)).encode() for array in arrays)


def _csv_lines(array: Records) -> Iterator[str]:
    for t_ns, addr, size, dur_ns, value, kind, proc, access, peer in array.tolist():
        yield (
            f"{t_ns},{addr:#x},{size},{dur_ns},{value},{KIND_NAMES[kind]},{PROCESSOR_NAMES[proc]},"
            f"{ACCESS_NAMES[access]},{PROCESSOR_NAMES[peer]}\n"
        )


def _access_list_lines(array: Records) -> Iterator[str]:
    for _, addr, size, _, _, _, proc, access, _ in array.tolist():
        line = f"{addr:#x},{size}"
        if proc != UNKNOWN or access != Access.UNKNOWN:
            line += ",w" if access in (Access.WRITE, Access.ATOMIC) else ",r"
        if proc != UNKNOWN:
            line += "," + processor_name(proc)
        yield line + "\n"


class _SmiForm:
    """KFD SMI lines of records.

    Parameters
    ----------
    gpu_ids : sequence of int
        GPU id of each GPU index; index + 1 beyond its end.
    pid : int
        Process of every line.
    """

    def __init__(self, gpu_ids: Sequence[int], pid: int) -> None:
        codes = {CPU: 0, UNKNOWN: UNDEFINED_GPU}
        codes |= {index + 1: index + 1 for index in range(len(gpu_ids), 64)}
        codes |= {index + 1: gpu for index, gpu in enumerate(gpu_ids)}
        self.ids = {code: f"{gpu:x}" for code, gpu in codes.items()}
        self.pid = pid

    def lines(self, array: Records) -> Iterator[str]:
        """Lines of an array, in order; a migration gives its start and its end."""
        for t_ns, addr, size, dur_ns, value, kind, proc, access, peer in array.tolist():
            first = addr >> PAGE_SHIFT
            pages = ((addr & PAGE_MASK) + size + PAGE_MASK) >> PAGE_SHIFT
            head = f"{t_ns} -{self.pid}"
            gpu = self.ids[proc]
            match kind:
                case Kind.FAULT:
                    write = access in (Access.WRITE, Access.ATOMIC)
                    yield f"7 {head} @{first:x}({gpu}) {'W' if write else 'R'}\n"
                case Kind.FAULT_END:
                    yield f"8 {head} @{first:x}({gpu}) {'M' if value else 'U'}\n"
                case Kind.MIGRATE:
                    span = f"@{first:x}({pages:x}) {gpu}->{self.ids[peer]}"
                    yield from self._migration(t_ns, dur_ns, span, MigrateValue.unpack(value))
                case Kind.EVICT:
                    span = f"@{first:x}({pages:x}) {gpu}->0"
                    yield from self._migration(t_ns, dur_ns, span, MigrateValue(_TTM_EVICTION))
                case Kind.QUEUE_EVICT:
                    yield f"9 {head} {gpu} {value}\n"
                case Kind.QUEUE_RESTORE:
                    yield f"a {head} {gpu} {'R' if value else '0'}\n"
                case Kind.UNMAP_GPU:
                    yield f"b {head} @{first:x}({pages:x}) {gpu} {value}\n"
                case Kind.DROPPED:
                    yield f"e {head} {value}\n"

    def _migration(self, t_ns: int, dur_ns: int, span: str, value: MigrateValue) -> Iterator[str]:
        undefined = f"{UNDEFINED_GPU:x}"
        if value.has_start:
            yield f"5 {t_ns} -{self.pid} {span} {undefined}:{undefined} {value.trigger}\n"
        if value.has_end:
            error = "" if value.error is None else f" {value.error}"
            yield f"6 {t_ns + dur_ns} -{self.pid} {span} {value.trigger}{error}\n"


_TOUCHES = frozenset((Kind.ACCESS, Kind.FAULT))
_SMI_KINDS = frozenset(
    (
        Kind.FAULT,
        Kind.FAULT_END,
        Kind.MIGRATE,
        Kind.EVICT,
        Kind.QUEUE_EVICT,
        Kind.QUEUE_RESTORE,
        Kind.UNMAP_GPU,
        Kind.DROPPED,
    )
)
#: Formats that can be written, and the kinds of records that each can say.
WRITERS: dict[str, frozenset[Kind]] = {
    "npy": frozenset(Kind),
    "csv": frozenset(Kind),
    "access-list": _TOUCHES,
    "kfd-smi": _SMI_KINDS,
    "parquet": frozenset(Kind),
    "arrow": frozenset(Kind),
    "oracle-general": _TOUCHES,
}


def write_records(
    path: str | os.PathLike[str],
    arrays: Iterable[Records],
    format: str = "npy",
    *,
    gpu_ids: Sequence[int] = (),
    pid: int = 1,
    granularity: int = 9,
) -> Written:
    """Write records as a trace file.

    The file appears under its name complete or not at all; an existing file is
    replaced at the end and leaves its permission bits to the new one.

    Parameters
    ----------
    path : str or PathLike
        The file.
    arrays : iterable of ndarray, shape (n,), dtype RECORD
        Chunks in order, for example ``trace.chunks()``.
    format : str, default "npy"
        One of ``WRITERS``.
        ``npy``, ``csv``, ``parquet`` and ``arrow`` keep every field of every
        record; the last two need the extra ``arrow``. ``access-list``
        keeps touches (ACCESS and FAULT) without their times; ATOMIC becomes
        ``w``. ``kfd-smi`` keeps the recorded kinds that the driver has a line
        for, in whole pages; a fault is one line of its first page, prefetch and
        preferred locations are written as undefined, EVICT as a migration to
        system memory with trigger 3. ``oracle-general`` makes a request of each
        window that a touch reaches, for cache simulators.
    gpu_ids : sequence of int, default ()
        GPU id of each GPU index for ``kfd-smi``, as ``KfdSmiTrace.gpu_ids``;
        index + 1 where it names none.
    pid : int, default 1
        Process of the ``kfd-smi`` lines.
    granularity : int, default 9
        log2 of the pages of a window of ``oracle-general``, 0 to 19.

    Returns
    -------
    Written
        Records written, and those left out by kind.

    Raises
    ------
    InvalidArgumentError
        If *format* is unknown, an array has another dtype, *pid* or a GPU id
        is not a number of 32 bits, or *granularity* is out of its range.
    TraceError
        If a record is not valid, or the file cannot be written.
    NotSupportedError
        If the format needs pyarrow and it is not installed.

    Complexity
    ----------
    O(records) time, O(chunk) memory.
    """
    if format not in WRITERS:
        raise InvalidArgumentError(f"format {format!r}: expected one of {', '.join(WRITERS)}")
    if not 0 <= pid < 1 << 32:
        raise InvalidArgumentError(f"pid {pid}: expected a number of 32 bits")
    ids = list(gpu_ids)
    if len(set(ids)) < len(ids) or not all(0 < gpu < UNDEFINED_GPU for gpu in ids):
        raise InvalidArgumentError(f"gpu_ids {ids}: expected different numbers of 32 bits, not 0")
    name = os.fspath(path)
    totals: dict[int, int] = {}
    with whole_file(name) as file:
        told = _told(arrays, name, WRITERS[format], totals)
        match format:
            case "npy":
                _write_npy(file, told)
            case "csv":
                _write_text(file, told, _Lines(",".join(FIELDS), _csv_lines))
            case "parquet":
                _write_parquet(file, told)
            case "arrow":
                _write_arrow(file, told)
            case "access-list":
                _write_text(file, told, _Lines("", _access_list_lines))
            case "oracle-general":
                write_oracle(file, told, granularity)
            case _:
                _write_text(file, told, _Lines("", _SmiForm(ids, pid).lines))
    kinds = WRITERS[format]
    return Written(
        sum(number for kind, number in totals.items() if kind in kinds),
        {KIND_NAMES[kind]: number for kind, number in totals.items() if kind not in kinds},
    )


def _told(
    arrays: Iterable[Records], path: str, kinds: frozenset[Kind], totals: dict[int, int]
) -> Iterator[Records]:
    """Checked arrays, reduced to *kinds*; counts every record into *totals*."""
    wanted = np.zeros(256, bool)
    wanted[[int(kind) for kind in kinds]] = True
    at = 0
    for array in arrays:
        if array.dtype != RECORD or array.ndim != 1:
            raise InvalidArgumentError(
                f"array of shape {array.shape}, dtype {array.dtype}: expected one dimension of "
                "RECORD"
            )
        check_records(array, path, lambda i, at=at: f"record {at + i}")  # type: ignore[misc]
        for kind, number in enumerate(np.bincount(array["kind"]).tolist()):
            if number:
                totals[kind] = totals.get(kind, 0) + number
        at += len(array)
        keep = wanted[array["kind"]]
        yield array if keep.all() else array[keep]
