"""Our own records as columns: Parquet and Arrow IPC files (extra ``arrow``).

Columns are named as the fields of :data:`~svmcore.records.RECORD`:

=========== ================================== ===========================
column      values                             where it is missing
=========== ================================== ===========================
addr        bytes                              refused
size        bytes, at least 1 where replayed   refused
t_ns        ns of the source's clock           0
dur_ns      ns                                 0
value       up to 32 bits                      0
kind        word or number of ``Kind``         access
proc        ``cpu``, ``gpu0`` ... or number    unknown: ``--by`` decides
access      word or number of ``Access``       unknown: a touch that reads
peer        as proc                            unknown
=========== ================================== ===========================

Numbers are integers of any width, signed or not, as long as their values fit;
words are strings of any kind; both may be dictionary-encoded. Other types, nulls
and values that do not fit are refused with column and row. Further columns are
left out, with a note. Rows count from 0.

A column goes into the record arrays by one strided assignment from the memory
that Arrow decoded; no Python object is made a record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from .base import CHUNK, Mapping, Records, Summary, TraceKind, check_records, register, shown
from .opening import RandomAccess, Source
from .records_csv import CODES, FIELDS
from .records_npy import RecordsTrace

__all__ = ["ArrowTrace", "ParquetTrace"]

_PARQUET = b"PAR1"
_FILE = b"ARROW1"
_STREAM = b"\xff\xff\xff\xff"
#: What ends a stream; a file that lacks it may be cut off between two batches.
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_REQUIRED = ("addr", "size")
#: Columns that tell kind and mappings.
_TELLING = ("addr", "size", "kind")
_DEFAULTS = {
    "addr": 0,
    "size": 0,
    "t_ns": 0,
    "dur_ns": 0,
    "value": 0,
    "kind": int(Kind.ACCESS),
    "proc": UNKNOWN,
    "access": int(Access.UNKNOWN),
    "peer": UNKNOWN,
}
_WORDS = {
    field: {text.decode(): code for text, code in codes.items() if not text.isdigit()}
    for field, codes in CODES.items()
}
#: Entries of a dictionary that are looked up one by one; a larger one is decoded first.
_MOST_ENTRIES = 4096
#: Bytes of a Parquet column that are read at a time.
_COLUMN_BYTES = 1 << 20


class _Batch(NamedTuple):
    """Columns of some rows, and how much of the file is done with them, 0..1."""

    columns: Any
    done: float


class _Opened(Protocol):
    """A file that one pass reads."""

    schema: Any

    def batches(self, fields: list[str]) -> Iterator[_Batch]:
        """The columns *fields* of all rows, in batches of any length, in order."""

    def ended(self) -> str:
        """What is to be said of the end of the file; refuses what must not follow it."""


class _ColumnsTrace(RecordsTrace):
    """A file of columns. A subclass opens it; the rest is the same."""

    #: What the file is, for errors.
    what: ClassVar[str]

    def __init__(self, *args: Any, wanted: Sequence[str] = FIELDS, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self._wanted = wanted
        self._kind: TraceKind | None = None

    @abstractmethod
    def _open(self, file: Any, window: RandomAccess) -> _Opened:
        """The file, opened for one pass."""

    @property
    def kind(self) -> TraceKind:
        """``"fault"`` where a recorded fault is in it, else ``"access"``; runs a pass once."""
        if self._kind is None:
            known = self if self._summary is not None else self._told()
            self._kind = "fault" if "fault" in known.summary.kinds else "access"
        return self._kind

    def _find_mappings(self) -> list[Mapping]:
        told = self._told()
        mappings = super(_ColumnsTrace, told)._find_mappings()
        self._kind = told.kind
        self._digest, self.crc32 = told._digest, told.crc32  # noqa: SLF001 - it is this file
        return mappings

    def _told(self) -> Self:
        """The same file, without the columns that tell neither kind nor mappings."""
        told = type(self)(self.path, self.nbytes, progress=self.progress, wanted=_TELLING)
        # The bytes must be the same.
        told._digest, told.crc32 = self._digest, self.crc32  # noqa: SLF001 - it is this file
        told._identify = self._identify  # noqa: SLF001 - as above
        return told

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        try:
            import pyarrow as pa
        except ImportError as error:
            raise TraceError(
                self.path,
                "",
                f"is {self.what}: expected pyarrow to be there: install svmcore[arrow]",
            ) from error
        row = 0
        with source.random() as window:
            try:
                opened = self._open(pa.PythonFile(window, mode="r"), window)
                fields = self._fields(pa, opened.schema, summary)
                for batch in opened.batches(fields):
                    columns = {
                        field: _Column(pa, batch.columns, field, self.path, row).values
                        for field in fields
                    }
                    count = batch.columns.num_rows
                    for at in range(0, count, CHUNK):
                        records = _rows(columns, at, min(at + CHUNK, count))
                        check_records(
                            records,
                            self.path,
                            lambda i, at=row + at: f"row {at + i}",  # type: ignore[misc]
                        )
                        summary.lines += len(records)
                        summary.read += len(records)
                        yield records
                    row += count
                    source.pass_to(int(self.nbytes * batch.done))
                note = opened.ended()
            except TraceError:
                raise
            except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
                # A failure of ours may come back in the words of Arrow.
                if window.failure is not None:
                    raise window.failure from error
                text = " ".join(str(error).split())[:200]
                raise TraceError(
                    self.path, f"row {row}", f"{text}: expected {self.what} that is whole"
                ) from error
        if note:
            summary.notes.append(note)
        # Whatever lies between the parts that were read belongs to the file.
        source.pass_to(self.nbytes)

    def _fields(self, pa: Any, schema: Any, summary: Summary) -> list[str]:
        """Columns to be read; the first look at the schema refuses what cannot be."""
        names: list[str] = list(schema.names)
        fields = [field for field in FIELDS if field in names]
        for field in _REQUIRED:
            if field not in fields:
                raise TraceError(
                    self.path,
                    "columns",
                    f"no column {field!r} among {_listed(names)}: expected at least "
                    f"{', '.join(_REQUIRED)} of {', '.join(FIELDS)}",
                )
        for field in fields:
            if names.count(field) > 1:
                raise TraceError(self.path, "columns", f"{field}: expected one column of this name")
            kind = schema.field(field).type
            value = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not pa.types.is_integer(value) and not (field in CODES and _is_text(pa, value)):
                raise TraceError(
                    self.path,
                    "columns",
                    f"{field}: type {str(kind)[:60]}: expected integers"
                    f"{' or words' if field in CODES else ''}",
                )
        others = [name for name in names if name not in FIELDS]
        if others:
            summary.notes.append(f"columns left out: {_listed(others)}")
        missing = [field for field in FIELDS if field not in fields]
        if missing:
            told = ", ".join(f"{field} is {_DEFAULTS[field]}" for field in missing)
            summary.notes.append(f"columns that the file lacks: {told} in every record")
        return [field for field in fields if field in self._wanted]


def _rows(columns: dict[str, npt.NDArray[Any]], at: int, end: int) -> Records:
    """Rows *at* to *end* as records: one strided assignment a column."""
    records = np.empty(end - at, RECORD)
    for field in FIELDS:
        values = columns.get(field)
        records[field] = _DEFAULTS[field] if values is None else values[at:end]
    return records


class _Column:
    """One column of a batch: checked, as an array of numbers."""

    def __init__(self, pa: Any, batch: Any, field: str, path: str, row: int) -> None:
        self.field, self.path, self.row = field, path, row
        array = batch.column(field)
        # Lengths and offsets of a damaged file must not reach beyond its memory.
        array.validate(full=pa.types.is_dictionary(array.type) or not _is_number(pa, array.type))
        if array.null_count:
            self._refuse_null(array)
        if pa.types.is_dictionary(array.type):
            array = self._decoded(pa, array)
        if not isinstance(array, np.ndarray):
            if _is_number(pa, array.type):
                array = array.to_numpy(zero_copy_only=True)
            else:
                array = self._coded(pa, array)
        self.values: npt.NDArray[Any] = array
        self._check()

    def _refuse(self, row: int, reason: str) -> NoReturn:
        raise TraceError(self.path, f"row {self.row + row}", f"{self.field}: {reason}")

    def _refuse_null(self, array: Any) -> NoReturn:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        self._refuse(row, "null: expected a value")

    def _decoded(self, pa: Any, array: Any) -> Any:
        """A dictionary column as plain values; words through the codes of its entries."""
        entries = array.dictionary
        if _is_number(pa, entries.type) or len(entries) > _MOST_ENTRIES:
            array = array.dictionary_decode()
            if array.null_count:
                self._refuse_null(array)
            return array
        return self._through(pa, entries, array.indices)

    def _coded(self, pa: Any, array: Any) -> npt.NDArray[np.int64]:
        """Codes of a column of words."""
        if not pa.types.is_string(array.type):
            array = array.cast(pa.string())
        coded = array.dictionary_encode()
        return self._through(pa, coded.dictionary, coded.indices)

    def _through(self, pa: Any, entries: Any, indices: Any) -> npt.NDArray[np.int64]:
        words = _WORDS[self.field]
        texts = entries.to_pylist()
        # The entry behind the last is for dictionaries without any.
        codes = np.array([*(words.get(text, -1) for text in texts), -1], np.int64)
        at = indices.to_numpy(zero_copy_only=True)
        values: npt.NDArray[np.int64] = codes[at]
        if len(values) and values.min() < 0:
            row = int(np.argmin(values))
            text = texts[at[row]]
            if text is None:
                self._refuse(row, "null: expected a value")
            known = ", ".join(list(words)[:12])
            self._refuse(row, f"{shown(text.encode())}: expected one of {known} ...")
        return values

    def _check(self) -> None:
        """Every value fits into the field."""
        values, wanted = self.values, RECORD[self.field]
        if not len(values) or values.dtype == wanted:
            return
        most = int(np.iinfo(wanted).max)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > most:
            bad = values < 0 if low < 0 else values > most
            if low < 0 and high > most:
                bad |= values > most
            row = int(np.argmax(bad))
            self._refuse(row, f"{int(values[row])}: expected 0 to {most}")


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_text(pa: Any, kind: Any) -> bool:
    is_view = getattr(pa.types, "is_string_view", None)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (is_view is not None and is_view(kind))
    )


def _listed(names: list[str]) -> str:
    shown_names = [shown(name.encode("utf-8", "replace"))[1:-1] for name in names[:12]]
    more = [f"{len(names) - 12} more"] if len(names) > 12 else []
    return ", ".join([*shown_names, *more]) or "none"


@register
class ParquetTrace(_ColumnsTrace):
    """A Parquet file whose columns are named as RECORD's fields.

    It is read row group by row group and in them page by page, so that memory
    does not grow with the file. Mappings and kind are found from the columns
    that tell them, without decoding the others.

    Source
    ------
    Apache Parquet; read by pyarrow.
    """

    format = "parquet"
    description = "svmcore records as Parquet columns (extra arrow)"
    what = "a Parquet file"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the magic."""
        return 1.0 if head.startswith(_PARQUET) else 0.0

    def _open(self, file: Any, window: RandomAccess) -> _Opened:
        return _Parquet(self.path, file)


class _Parquet:
    """A Parquet file that one pass reads."""

    def __init__(self, path: str, file: Any) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.file = pq.ParquetFile(file, buffer_size=_COLUMN_BYTES, pre_buffer=False)
        self.schema = self.file.schema_arrow

    def batches(self, fields: list[str]) -> Iterator[_Batch]:
        """Pages of each row group."""
        total, done = self.file.metadata.num_rows, 0
        for batch in self.file.iter_batches(CHUNK, columns=fields, use_threads=False):
            done += batch.num_rows
            yield _Batch(batch, done / total if total else 1.0)
        if done != total:
            raise TraceError(self.path, f"row {done}", f"the rows end: expected {total}")

    def ended(self) -> str:
        """Nothing can follow: the file is read from its end."""
        return ""


@register
class ArrowTrace(_ColumnsTrace):
    """Arrow IPC, as a file (Feather V2 is one) or as a stream, with RECORD's fields as columns.

    It is read batch by batch; memory is that of its largest record batch.

    Source
    ------
    Apache Arrow columnar format, IPC; read by pyarrow.
    """

    format = "arrow"
    description = "svmcore records as Arrow IPC columns, file or stream (extra arrow)"
    what = "an Arrow IPC file or stream"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the magic; a stream has none and is known by its names of columns."""
        if head.startswith(_FILE):
            return 1.0
        if head.startswith(_STREAM) and all(name.encode() in head for name in _REQUIRED):
            return 0.9
        return 0.0

    def _open(self, file: Any, window: RandomAccess) -> _Opened:
        return _Ipc(self.path, file, window)


class _Ipc:
    """An Arrow IPC file or stream that one pass reads."""

    def __init__(self, path: str, file: Any, window: RandomAccess) -> None:
        import pyarrow as pa

        self.path, self.file, self.window = path, file, window
        self.is_stream = file.read(len(_FILE)) != _FILE
        self.opener = pa.ipc.open_stream if self.is_stream else pa.ipc.open_file
        file.seek(0)
        self.schema = self.opener(file).schema

    def batches(self, fields: list[str]) -> Iterator[_Batch]:
        """Record batches as the file has them."""
        import pyarrow as pa

        names = self.schema.names
        options = pa.ipc.IpcReadOptions(
            use_threads=False, included_fields=[names.index(field) for field in fields]
        )
        self.file.seek(0)
        opened = self.opener(self.file, options=options)
        if self.is_stream:
            for batch in opened:
                yield _Batch(batch, self.window.tell() / max(1, self.window.size))
            return
        total = opened.num_record_batches
        for number in range(total):
            yield _Batch(opened.get_batch(number), (number + 1) / total)

    def ended(self) -> str:
        """A stream ends with its mark, and nothing follows."""
        if not self.is_stream:
            return ""
        end = self.window.tell()
        self.window.seek(max(0, end - len(_STREAM_END)))
        last = self.window.read(len(_STREAM_END))
        if self.window.read(1):
            raise TraceError(self.path, f"byte {end}", "more bytes follow: expected the end")
        return "" if last == _STREAM_END else "the stream has no end mark: it may be cut off"
