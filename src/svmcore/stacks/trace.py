"""The launch trace: what host threads ask of one device, and the files it comes in.

A trace is CSV or JSON lines, one record each, or the text that libgomp prints
with ``GOMP_DEBUG=1``. Formats are recognised by content.
"""

from __future__ import annotations

import csv
import enum
import functools
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, TraceError
from ..traces.writers import whole_file
from ..units import format_size

__all__ = [
    "COLUMNS",
    "RECORD",
    "STACK_BYTES",
    "Alloc",
    "Free",
    "Launch",
    "LaunchTrace",
    "Op",
    "Touch",
    "open_launches",
]

#: libgomp's stack of one warp (nvptx_stacks_size), bytes.
STACK_BYTES = 128 << 10
#: Kernel time of a record that has none.
DEFAULT_KERNEL_NS = 50_000
_MOST_BYTES = 1 << 50
_MOST_NS = 1 << 60
_MOST_NUMBER = 1 << 31


class Op(enum.IntEnum):
    """What a record is."""

    LAUNCH = 0
    ALLOC = 1
    FREE = 2
    TOUCH = 3


#: One record. ``size`` is the stack block of a launch or the bytes of an allocation
#: or a touch, ``id`` the number of an allocation or the address of a touch.
RECORD = np.dtype(
    [
        ("t", "i8"),
        ("size", "i8"),
        ("kernel_ns", "i8"),
        ("id", "i8"),
        ("thread", "i4"),
        ("stream", "i4"),
        ("op", "i4"),
        ("pad", "i4"),
    ]
)


class Launch(NamedTuple):
    """A kernel launch of a host thread."""

    t: int = 0
    """Not before, ns; a thread does its records one after the other."""
    thread: int = 0
    stream: int = 0
    """libgomp launches everything into the context's default stream, here 0."""
    teams: int = 1
    threads: int = 8
    """Warps of a team."""
    kernel_ns: int = DEFAULT_KERNEL_NS


class Alloc(NamedTuple):
    """The program allocates device memory."""

    t: int = 0
    thread: int = 0
    size: int = 0
    """Bytes."""
    id: str = ""


class Free(NamedTuple):
    """The program frees what it allocated by that id."""

    t: int = 0
    thread: int = 0
    id: str = ""


class Touch(NamedTuple):
    """The device touches shared virtual memory; needs a space to run on."""

    t: int = 0
    thread: int = 0
    addr: int = 0
    size: int = 0
    """Bytes."""


_OF = {"launch": Op.LAUNCH, "alloc": Op.ALLOC, "free": Op.FREE, "touch": Op.TOUCH}
COLUMNS = (
    "op", "t", "thread", "stream", "teams", "threads", "kernel_ns", "bytes", "id", "addr"
)  # fmt: skip
_KNOWN = frozenset(COLUMNS)


@dataclass(frozen=True)
class LaunchTrace:
    """Records of host threads, in the order of the file.

    Attributes
    ----------
    records : structured array of RECORD
        ``thread`` counts the threads from 0 in the order of their numbers.
    name, form, digest : str
        File, format and SHA-256 of the records.
    threads : tuple of int
        The threads' numbers in the file.
    repaired : dict
        What was repaired or skipped on reading, and how often.
    stack_bytes : int
        Stack of one warp.

    Raises
    ------
    InvalidArgumentError
        If there is no record, or one is out of range.
    """

    records: npt.NDArray[Any]
    name: str = ""
    form: str = "records"
    threads: tuple[int, ...] = (0,)
    repaired: dict[str, int] = field(default_factory=dict)
    stack_bytes: int = STACK_BYTES

    def __post_init__(self) -> None:
        rows = np.asarray(self.records)
        if rows.dtype != RECORD or rows.ndim != 1:
            raise InvalidArgumentError("launch trace: expected one row of records of dtype RECORD")
        if len(rows) == 0 or len(self.threads) == 0:
            raise InvalidArgumentError("launch trace: expected a record and a thread, or more")
        limits = {"t": _MOST_NS, "kernel_ns": _MOST_NS, "size": _MOST_BYTES, "id": 1 << 62}
        limits |= {"thread": len(self.threads) - 1, "stream": _MOST_NUMBER - 1, "op": max(Op)}
        for name, most in limits.items():
            wrong = np.flatnonzero((rows[name] < 0) | (rows[name] > most))
            if len(wrong):
                raise InvalidArgumentError(
                    f"launch trace: record {wrong[0]}: {name} = {rows[name][wrong[0]]}, "
                    f"expected 0 to {most}"
                )

    @property
    def digest(self) -> str:
        """SHA-256 of the records."""
        return hashlib.sha256(self.records.tobytes()).hexdigest()

    @property
    def launches(self) -> int:
        """How many records are launches."""
        return int(np.count_nonzero(self.records["op"] == Op.LAUNCH))

    @functools.cached_property
    def shared_streams(self) -> frozenset[int]:
        """Streams that several host threads launch into."""
        launches = self.records[self.records["op"] == Op.LAUNCH]
        pairs = np.unique(launches["stream"].astype("i8") << 32 | launches["thread"])
        streams, users = np.unique(pairs >> 32, return_counts=True)
        return frozenset(streams[users > 1].tolist())

    def by_thread(self) -> list[npt.NDArray[Any]]:
        """The records of each thread, in their order."""
        order = np.argsort(self.records["thread"], kind="stable")
        ordered = self.records[order]
        bounds = np.searchsorted(ordered["thread"], np.arange(len(self.threads) + 1))
        return [ordered[bounds[i] : bounds[i + 1]] for i in range(len(self.threads))]

    def __len__(self) -> int:
        return len(self.records)

    @staticmethod
    def of(
        records: Iterable[Launch | Alloc | Free | Touch | Mapping[str, Any]],
        *,
        stack_bytes: int = STACK_BYTES,
        name: str = "",
    ) -> LaunchTrace:
        """A trace of records, or of dictionaries with their fields and ``op``.

        Parameters
        ----------
        records : iterable
        stack_bytes : int
            Stack of one warp.

        Raises
        ------
        InvalidArgumentError
            If there is none, or a field is missing, unknown or out of range.
        """
        build = _Builder(stack_bytes)
        for number, record in enumerate(records):
            if not isinstance(record, Mapping):
                if not isinstance(record, Launch | Alloc | Free | Touch):
                    raise InvalidArgumentError(
                        f"launch record {number}: {record!r:.60}, expected Launch, Alloc, Free, "
                        "Touch or a dictionary"
                    )
                fields = record._asdict()
                if "size" in fields:  # as the files call it
                    fields["bytes"] = fields.pop("size")
                record = {"op": type(record).__name__.lower(), **fields}
            try:
                build.add(record)
            except ValueError as error:
                raise InvalidArgumentError(f"launch record {number}: {error}") from None
        return build.trace(name, "records")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON lines, whole or not at all.

        Stack blocks are written as ``bytes``, ids as numbers.

        Raises
        ------
        FileError
            If it cannot be written; a file of that name is as it was.
        """
        with whole_file(str(path)) as file:
            for row in self.records:
                file.write(json.dumps(self._row(row)).encode("ascii") + b"\n")

    def _row(self, row: Any) -> dict[str, Any]:
        op = Op(int(row["op"])).name.lower()
        table: dict[str, Any] = {"op": op, "t": int(row["t"])}
        table["thread"] = self.threads[int(row["thread"])]
        if op == "launch":
            table["stream"] = int(row["stream"])
            table["kernel_ns"] = int(row["kernel_ns"])
        elif op == "touch":
            table["addr"] = int(row["id"])
        else:
            table["id"] = str(int(row["id"]))
        if op != "free":
            table["bytes"] = int(row["size"])
        return table


def _number(record: Mapping[str, Any], key: str, default: int, most: int, least: int = 0) -> int:
    value = record.get(key)
    if value is None or value == "":
        return default
    try:
        if type(value) is int:
            number = value
        elif isinstance(value, str):
            number = int(value) if value.isdecimal() else int(value, 0)
        elif isinstance(value, bool) or int(value) != value:
            raise ValueError
        else:
            number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{key} = {value!r:.40}, expected a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{key} = {number}, expected {least} to {most}")
    return number


class _Builder:
    """Rows of a trace, checked one by one."""

    def __init__(self, stack_bytes: int = STACK_BYTES) -> None:
        if not 0 < stack_bytes <= _MOST_BYTES:
            raise InvalidArgumentError(f"stack_bytes {stack_bytes}: expected 1 byte or more")
        self.stack_bytes = stack_bytes
        self.rows: list[tuple[int, ...]] = []
        self.ids: dict[str, int] = {}
        self.repaired: dict[str, int] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """One record; ``ValueError`` says what is wrong with it."""
        op = record.get("op")
        if not isinstance(op, str) or op not in _OF:
            op = str(op or "").strip().lower()
            if op not in _OF:
                raise ValueError(f"op {op!r}, expected one of {', '.join(_OF)}")
        if not record.keys() <= _KNOWN:
            strange = next(key for key in record if key not in _KNOWN)
            raise ValueError(f"unknown field {strange!r}, expected {', '.join(COLUMNS)}")
        t = _number(record, "t", 0, _MOST_NS)
        thread = _number(record, "thread", 0, _MOST_NUMBER - 1)
        stream, kernel, name = 0, 0, 0
        size = _number(record, "bytes", 0, _MOST_BYTES, 1)
        if op == "launch":
            stream = _number(record, "stream", 0, _MOST_NUMBER - 1)
            kernel = _number(record, "kernel_ns", DEFAULT_KERNEL_NS, _MOST_NS)
            if size == 0:
                if record.get("teams") in (None, "") and record.get("threads") in (None, ""):
                    raise ValueError("a launch without teams and threads, or bytes")
                teams = _number(record, "teams", 1, _MOST_NUMBER, 1)
                size = teams * _number(record, "threads", 8, _MOST_NUMBER, 1) * self.stack_bytes
                if size > _MOST_BYTES:
                    raise ValueError(
                        f"a stack block of {format_size(size)}, expected at most "
                        f"{format_size(_MOST_BYTES)}"
                    )
        elif op == "touch":
            name = _number(record, "addr", -1, (1 << 62) - 1)
            if name < 0:
                raise ValueError("a touch without addr")
        else:
            text = record.get("id")
            if text is None or text == "":
                raise ValueError(f"{op} without an id")
            name = self.ids.setdefault(str(text), len(self.ids))
        if op in ("alloc", "touch") and size == 0:
            raise ValueError(f"{op} without bytes")
        self.rows.append((t, size, kernel, name, thread, stream, _OF[op], 0))

    def repair(self, what: str) -> None:
        """Count one repaired thing."""
        self.repaired[what] = self.repaired.get(what, 0) + 1

    def trace(self, name: str, form: str) -> LaunchTrace:
        """The trace.

        Raises
        ------
        InvalidArgumentError
            If there is no record.
        """
        if not self.rows:
            raise InvalidArgumentError(f"{name or 'launch trace'}: no record, expected one or more")
        records = np.array(self.rows, RECORD)
        numbers, records["thread"] = np.unique(records["thread"], return_inverse=True)
        return LaunchTrace(
            records,
            name,
            form,
            tuple(int(number) for number in numbers),
            self.repaired,
            self.stack_bytes,
        )


# ---- files -------------------------------------------------------------------------------

#: ``GOMP_DEBUG=1``, plugin nvptx: the launch line of a kernel.
_GOMP_LAUNCH = re.compile(r"\bkernel\s+\S+:\s*launch\s*\[\(teams:\s*(\d+)\).*?\(threads:\s*(\d+)\)")
_GOMP_LOOSE = re.compile(r"\bkernel\b.*\blaunch\b.*teams:.*threads:")


class _LineError(ValueError):
    """What is wrong with a line that is no record."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


_Numbered = Iterator[tuple[int, Mapping[str, Any]]]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(io.StringIO(text), 1):
        if line.strip():
            yield number, line.rstrip("\r\n")


def _cut_off(build: _Builder, number: int, text: str) -> bool:
    """Whether a damaged line is the last one, cut off as a killed program leaves it."""
    if text.endswith("\n") or number <= text.count("\n"):
        return False
    build.repair("last line cut off")
    return True


def _read_jsonl(build: _Builder, text: str) -> _Numbered:
    for number, line in _lines(text):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            if _cut_off(build, number, text):
                return
            raise _LineError(number, f"{line!r:.60}, expected a JSON object")
        yield number, record


def _read_csv(build: _Builder, text: str) -> _Numbered:
    reader = csv.reader(io.StringIO(text), strict=True)
    header: list[str] = []
    try:
        for row in reader:
            number = reader.line_num
            if not any(map(str.strip, row)):
                continue
            if not header:
                header = [cell.strip().lower() for cell in row]
                if not set(header) <= set(COLUMNS) or len(set(header)) != len(header):
                    raise _LineError(
                        number,
                        f"columns {','.join(header)!r:.80}, expected op and some of "
                        f"{', '.join(COLUMNS[1:])}",
                    )
            elif len(row) == len(header):
                yield number, dict(zip(header, map(str.strip, row), strict=True))
            elif _cut_off(build, number, text):
                return
            else:
                raise _LineError(number, f"{len(row)} fields, expected {len(header)}")
    except csv.Error as error:
        raise _LineError(reader.line_num, f"{error}, expected CSV") from None


def _read_gomp(build: _Builder, text: str) -> _Numbered:
    for number, line in _lines(text):
        match = _GOMP_LAUNCH.search(line)
        if match is not None:
            yield number, {"op": "launch", "teams": match.group(1), "threads": match.group(2)}
        elif _GOMP_LOOSE.search(line):
            build.repair("launch line not understood")


_READERS: dict[str, Callable[[_Builder, str], _Numbered]] = {
    "launch-csv": _read_csv,
    "launch-jsonl": _read_jsonl,
    "gomp-debug": _read_gomp,
}


def _recognise(text: str) -> str | None:
    first = next((line for _, line in _lines(text)), "")
    if first.lstrip().startswith("{"):
        return "launch-jsonl"
    if "op" in [cell.strip().lower() for cell in first.split(",")]:
        return "launch-csv"
    return "gomp-debug" if _GOMP_LAUNCH.search(text) else None


def open_launches(
    path: str | os.PathLike[str], form: str | None = None, *, stack_bytes: int = STACK_BYTES
) -> LaunchTrace:
    """Read a launch trace.

    Parameters
    ----------
    path : path-like
        CSV with a column ``op``, JSON lines, or libgomp's ``GOMP_DEBUG=1`` text;
        ``.gz`` is opened.
    form : str, optional
        ``launch-csv``, ``launch-jsonl`` or ``gomp-debug``; recognised by default.
    stack_bytes : int
        Stack of one warp.

    Raises
    ------
    TraceError
        If it cannot be read; file, line, what was found and what was expected.

    Notes
    -----
    ``GOMP_DEBUG`` text has no times and no threads: its launches are those of one
    thread, back to back, of 50 us each. The line's teams and threads are the
    block's.
    """
    where = str(path)
    try:
        data = Path(path).read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(where, f"byte {error.start}", "expected UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(where, "", f"expected a readable launch trace: {error}") from error
    form = form or _recognise(text)
    if form not in _READERS:
        raise TraceError(
            where,
            "" if form else "line 1",
            f"format {form or 'unknown'}, expected one of {', '.join(_READERS)}",
        )
    build = _Builder(stack_bytes)
    number = 0
    try:
        for line, record in _READERS[form](build, text):
            number = line
            build.add(record)
    except _LineError as error:
        raise TraceError(where, f"line {error.number}", str(error)) from None
    except ValueError as error:
        raise TraceError(where, f"line {number}", str(error)) from None
    if not build.rows:
        raise TraceError(where, "", "no record, expected one or more")
    return build.trace(where, form)
