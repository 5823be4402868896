"""Traces: what every reader gives, and the registry that recognises formats.

A reader is one class in one file: a subclass of :class:`Trace` (mostly of
:class:`TextTrace`) with a format name, a kind, a ``sniff`` that looks at the
first bytes, and a parser. :func:`register` makes it known; nothing else changes.

Readers stream: :meth:`Trace.chunks` gives arrays of
:data:`~svmcore.records.RECORD` in bounded memory, anew at each call. What is
broken in a known way is repaired and counted, what must be refused is a
:class:`~svmcore.errors.TraceError` that names file, line and reason.
"""

from __future__ import annotations

import abc
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..attributes import Attribute
from ..errors import InvalidArgumentError, TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_SHIFT
from ._text import LineForm
from .opening import BLOCK_BYTES, Block, Source, line_blocks

__all__ = [
    "FORMATS",
    "LineParser",
    "Mapping",
    "Records",
    "Spans",
    "Summary",
    "TextTrace",
    "Trace",
    "TraceKind",
    "check_records",
    "formats",
    "map_records",
    "register",
]

#: An array of trace records, shape (n,), dtype :data:`~svmcore.records.RECORD`.
Records = npt.NDArray[np.void]
#: ``"access"``: everything that was touched; ``"fault"``: only what faulted.
TraceKind = Literal["access", "fault"]
_Words = npt.NDArray[np.uint64]

#: Records of a chunk where the caller names no number.
CHUNK = 65536
#: Lines of them that a reader's ``sniff`` looks at.
_HEAD_LINES = 200
_PROCESSORS = 64
#: Intervals that wait before they are joined, and pages for each within which they are counted.
_PENDING, _DENSE = 1 << 18, 8
#: Decimal digits of 2**64 - 1; a longer number is not converted at all.
_MOST_DIGITS = 20


class Mapping(NamedTuple):
    """One allocation or mapping of a trace, ``[start, start + size)`` in bytes."""

    start: int
    """First byte address."""
    size: int
    """Bytes, at least 1."""
    name: str
    """Name from the file, or one made of a word and the index; unique in its trace."""

    @property
    def end(self) -> int:
        """First byte address behind the mapping."""
        return self.start + self.size


@dataclass(slots=True)
class Summary:
    """What one full pass over a trace met.

    Invariant: ``read + repaired + refused + unknown + metadata + comments ==
    lines`` (a line is a record in a binary file). ``records`` counts records,
    which differ from lines where two events make one record or a glued line
    holds two.
    """

    records: int = 0
    """Records given out."""
    lines: int = 0
    """Lines of the file; records of a binary file."""
    read: int = 0
    """Lines that were read as they stand."""
    repaired: int = 0
    """Lines that were read after a repair of known damage."""
    refused: int = 0
    """Lines left out because they are cut off at the end of the file."""
    unknown: int = 0
    """Lines of an event that the reader does not know, skipped."""
    metadata: int = 0
    """Headers and lines that describe mappings."""
    comments: int = 0
    """Comments and empty lines."""
    bytes: int = 0
    """Bytes of the file as stored."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Records of each kind, by the kind's name in lower case."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counters of the format; its reader names them. ``dropped_events`` in every format:
    events that the recorder lost, by the DROPPED records."""
    notes: list[str] = field(default_factory=list)
    """What a person should know, one sentence each."""

    def add(self, name: str, number: int = 1) -> None:
        """Raise the format's counter *name* by *number*."""
        self.counts[name] = self.counts.get(name, 0) + number


class Spans:
    """The union of page intervals, for the pages that a trace touches.

    Invariant: after :meth:`runs`, intervals are sorted, disjoint and not adjacent.

    Complexity: amortised O(log n) an interval; memory is that of the separate
    runs, so a trace that touches whole buffers costs a few words.
    """

    def __init__(self) -> None:
        self._first: _Words = np.empty(0, "<u8")
        self._end: _Words = np.empty(0, "<u8")
        self._pending: list[tuple[_Words, _Words]] = []
        self._waiting = 0

    def add(self, records: Records) -> None:
        """Add the pages of *records*, shape (n,); those with size 0 have none."""
        addr: _Words = records["addr"]
        size: _Words = records["size"]
        if not size.all():
            some = size > 0
            addr, size = addr[some], size[some]
        if not len(addr):
            return
        first = addr >> np.uint64(PAGE_SHIFT)
        end = ((addr + (size - np.uint64(1))) >> np.uint64(PAGE_SHIFT)) + np.uint64(1)
        self._pending.append((first, end))
        self._waiting += len(first)
        if self._waiting > max(_PENDING, len(self._first)):
            self._merge()

    def _merge(self) -> None:
        if not self._pending:
            return
        self._first, self._end = _union(
            np.concatenate([self._first, *(first for first, _ in self._pending)]),
            np.concatenate([self._end, *(end for _, end in self._pending)]),
        )
        self._pending.clear()
        self._waiting = 0

    def runs(self) -> list[tuple[int, int]]:
        """Byte intervals ``(start, end)``, page aligned, ascending, adjacent ones joined."""
        self._merge()
        return [
            (first << PAGE_SHIFT, end << PAGE_SHIFT)
            for first, end in zip(self._first.tolist(), self._end.tolist(), strict=True)
        ]


def _union(first: _Words, end: _Words) -> tuple[_Words, _Words]:
    """Union of the intervals ``[first, end)``, sorted, overlapping and adjacent ones joined."""
    low = first.min()
    width = int(end.max() - low)
    if width <= _DENSE * len(first):
        # Openings minus closings, counted page by page, beat a sort.
        depth = np.bincount((first - low).astype(np.int64), minlength=width + 1)
        depth -= np.bincount((end - low).astype(np.int64), minlength=width + 1)
        inside = np.cumsum(depth, out=depth) > 0
        edges = (np.flatnonzero(inside[1:] != inside[:-1]) + 1).astype("<u8") + low
        return np.concatenate([[low], edges[1::2]]), edges[::2]
    order = np.argsort(first)
    first = first[order]
    reach = np.maximum.accumulate(end[order])
    opens = np.ones(len(first), bool)
    opens[1:] = first[1:] > reach[:-1]
    closes = np.roll(opens, -1)
    return first[opens], reach[closes]


def disjoint(spans: Iterable[tuple[int, int, str]], word: str) -> list[Mapping]:
    """Mappings of ``(start, size, name)`` in file order, overlapping ones joined.

    The same addresses can be allocated twice in one run; joined spans take the
    place and name of the first of them. A name that occurs more than once gets
    the mapping's index behind it, an empty one becomes *word* and the index.

    Complexity
    ----------
    O(n log n).
    """
    joined: list[list[Any]] = []
    for index, (start, size, name) in sorted(enumerate(spans), key=lambda item: item[1][0]):
        if joined and start < joined[-1][1]:
            last = joined[-1]
            last[1] = max(last[1], start + size)
            if index < last[2]:
                last[2:] = [index, name]
        else:
            joined.append([start, start + size, index, name])
    joined.sort(key=lambda item: item[2])
    uses = Counter(item[3] for item in joined)
    return [
        Mapping(
            start,
            end - start,
            f"{name or word}{index}" if uses[name] > 1 or not name else name,
        )
        for index, (start, end, _, name) in enumerate(joined)
    ]


def map_records(mappings: Iterable[Mapping]) -> Records:
    """MAP records of *mappings*, for a file that carries its mappings as records.

    Returns
    -------
    ndarray, shape (n,), dtype RECORD
        One record of kind MAP a mapping, time 0.
    """
    return np.array(
        [(0, m.start, m.size, 0, 0, Kind.MAP, UNKNOWN, Access.UNKNOWN, UNKNOWN) for m in mappings],
        RECORD,
    )


class Trace(abc.ABC):
    """A trace file: its mappings, its records in chunks, and what reading it met.

    Made by :func:`~svmcore.traces.open_trace`. Holds no open file between passes. One pass is
    used by one thread at a time; several passes may run side by side.

    Records: :meth:`chunks`. Where they lie: :meth:`mappings`. What it is:
    ``path``, ``format``, ``confidence``, ``kind``, ``nbytes``, ``digest``,
    ``names``. What was met: ``summary``. ``crc32`` is that of the file's bytes as
    stored, known after a full pass over the file itself; every later one must meet
    the same bytes.

    Parameters
    ----------
    path : str
        A regular file.
    nbytes : int
        Its size in bytes.
    confidence : float, default 1.0
        How sure the recognition is, 0..1.
    ranges : sequence of Mapping, default ()
        Mappings that replace those of the file.
    progress : callable, optional
        Called with the raw bytes read so far in a pass.
    """

    #: Name of the format, as ``--format`` takes it.
    format: str
    #: One line for people.
    description: ClassVar[str]
    #: Whether files of one machine share a clock, so that several are merged by time.
    has_clock: bool = False
    #: What the file says that records have no room for, for the report of a conversion.
    beyond_records: tuple[str, ...] = ()

    def __init__(
        self,
        path: str,
        nbytes: int,
        *,
        confidence: float = 1.0,
        ranges: Sequence[Mapping] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.nbytes = nbytes
        self.confidence = confidence
        self.progress = progress
        self._mappings: list[Mapping] | None = list(ranges) or None
        self.crc32: int | None = None
        self._summary: Summary | None = None
        self._digest: str | None = None
        self._identify = False

    def __repr__(self) -> str:
        return f"<{self.format} trace {self.path!r}, {self.nbytes} bytes>"

    @classmethod
    @abc.abstractmethod
    def sniff(cls, head: bytes) -> float:
        """How sure it is, 0..1, that content beginning with *head* has this format."""

    @property
    @abc.abstractmethod
    def kind(self) -> TraceKind:
        """Whether the trace says everything touched or only what faulted."""

    @abc.abstractmethod
    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        """Records of one pass in arrays of any length; counts lines into *summary*."""

    def chunks(self, n: int = CHUNK) -> Iterator[Records]:
        """The records in file order.

        Each call starts anew. After the last chunk ``summary`` and ``crc32``
        are those of this pass. Results do not depend on *n*.

        Parameters
        ----------
        n : int, default 65536
            Records a chunk, at least 1.

        Yields
        ------
        ndarray, shape (n,), dtype RECORD
            The last one may be shorter; none is empty. The caller owns them.

        Raises
        ------
        TraceError
            If a line or record must be refused, or the file changed under the reader.
        InvalidArgumentError
            If *n* is below 1.

        Complexity
        ----------
        O(bytes) time, O(n) memory.
        """
        if n < 1:
            raise InvalidArgumentError(f"chunk of {n} records: expected at least 1")
        return self._pass(n)

    def _pass(self, n: int) -> Iterator[Records]:
        summary = Summary()
        identify = self._identify and self._digest is None
        with Source(self.path, self.nbytes, self.progress, identify=identify) as source:
            yield from cut(self._arrays(source, summary), n, summary)
            summary.bytes = source.position
            self._passed(source)
        self._summary = summary

    def _passed(self, source: Source) -> None:
        """Keep what a whole pass says of the file's bytes; refuse others than before."""
        if self.crc32 not in (None, source.crc32):
            raise TraceError(self.path, "", "the file changed: expected the bytes of the last pass")
        self._digest = source.hexdigest() or self._digest
        self.crc32 = source.crc32

    def identify(self) -> None:
        """Have ``digest`` made beside the next full pass.

        For those who will ask for it: the file need not be read for it alone.
        """
        self._identify = True

    def mappings(self) -> list[Mapping]:
        """What is mapped: allocations that the file names, else the pages touched.

        Found in a pass of its own at the first call. MAP records are mappings
        in every format.

        Returns
        -------
        list of Mapping
            Disjoint; in file order where the file names them, else ascending
            and page aligned with adjacent pages joined.

        Raises
        ------
        TraceError
            As :meth:`chunks`.
        """
        if self._mappings is None:
            self._mappings = self._find_mappings()
        return list(self._mappings)

    def _find_mappings(self) -> list[Mapping]:
        touched = Spans()
        named: list[tuple[int, int, str]] = []
        for chunk in self.chunks():
            maps = chunk[chunk["kind"] == Kind.MAP]
            named += [(addr, size, "") for addr, size in maps[["addr", "size"]].tolist()]
            if not named:
                touched.add(chunk)
        if named:
            return disjoint(named, "map")
        return [
            Mapping(start, end - start, f"touched{index}")
            for index, (start, end) in enumerate(touched.runs())
        ]

    @property
    def summary(self) -> Summary:
        """What the last full pass met; runs a pass where none was made."""
        if self._summary is None:
            for _ in self.chunks():
                pass
        assert self._summary is not None
        return self._summary

    @property
    def digest(self) -> str:
        """blake2b-128 over the file's bytes as stored, 32 hex digits.

        Known after a full pass where :meth:`identify` announced that it is wanted;
        else the bytes are read for it. A compressed copy of a trace has another.

        Raises
        ------
        TraceError
            If the file cannot be read, or changed since the last pass.
        """
        if self._digest is None:
            self._read_through(identify=True)
        assert self._digest is not None
        return self._digest

    def _read_through(self, *, identify: bool) -> None:
        """Read the bytes as stored for nothing but what they are."""
        raw = {"raw": True, "identify": identify}
        with Source(self.path, self.nbytes, self.progress, **raw) as source:
            while source.read(BLOCK_BYTES):
                pass
            self._passed(source)

    @property
    def gpu_ids(self) -> list[int]:
        """Id of each GPU index where the file names its GPUs by ids of its own, else empty."""
        return []

    @property
    def names(self) -> MappingProxyType[int, str]:
        """Operator names by the records' ``value``; empty where the format has none."""
        return MappingProxyType({})


def cut(arrays: Iterable[Records], n: int, summary: Summary) -> Iterator[Records]:
    """Arrays of any length as chunks of *n* records, the last one shorter.

    Counts the records into *summary*, and notes after the last what the source lost.
    """
    held: list[Records] = []
    waiting = 0
    for array in arrays:
        held.append(array)
        waiting += len(array)
        if waiting >= n:
            # One array alone is cut where it lies: no copy.
            joined = np.concatenate(held) if len(held) > 1 else array
            whole = waiting - waiting % n
            for at in range(0, whole, n):
                yield _counted(joined[at : at + n], summary)
            waiting -= whole
            held = [joined[whole:].copy()] if waiting else []
    if waiting:
        yield _counted(np.concatenate(held) if len(held) > 1 else held[0], summary)
    if lost := summary.counts.get("dropped_events", 0):
        places = summary.kinds["dropped"]
        summary.notes.append(
            f"the log lost {lost:,} event{'s' * (lost != 1)} "
            f"(in {places:,} place{'s' * (places != 1)}): what they touched is missing here"
        )


def _counted(chunk: Records, summary: Summary) -> Records:
    summary.records += len(chunk)
    for value, number in enumerate(np.bincount(chunk["kind"]).tolist()):
        if number:
            name = Kind(value).name.lower()
            summary.kinds[name] = summary.kinds.get(name, 0) + number
            if value == Kind.DROPPED:
                lost = chunk["value"][chunk["kind"] == value]
                summary.add("dropped_events", sum(lost.tolist()))
    return chunk


class LineParser(Protocol):
    """One pass of a text format."""

    def feed(self, block: Block) -> Records:
        """Records of a block; counts its lines, except the number of all lines."""

    def end(self) -> Records:
        """Records that only the end of the file settles."""


class TextTrace(Trace):
    """A trace of lines. A subclass gives a parser for one pass.

    A last line without a newline that cannot be read was cut off when the
    recording ended: it is refused, counted and noted. One that can be read is
    taken as it stands, but a number at its end may be cut: it counts as
    repaired, with a note.
    """

    @abc.abstractmethod
    def _parser(self, summary: Summary) -> LineParser:
        """A parser at the beginning of the file."""

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        parser = self._parser(summary)
        for block in line_blocks(source):
            summary.lines += block.lines
            if not block.cut:
                yield parser.feed(block)
                continue
            whole = summary.read
            try:
                last = parser.feed(block)
            except TraceError as error:
                if not (summary.read or summary.repaired or summary.metadata):
                    raise
                summary.refused += 1
                summary.notes.append(
                    f"{error.where} is cut off (no newline) and was left out: {error.reason}"
                )
                continue
            summary.repaired += summary.read - whole
            summary.read = whole
            summary.notes.append(f"line {block.first}, the last, has no newline: it may be cut off")
            yield last
        yield parser.end()


def head_lines(head: bytes) -> list[bytes]:
    """Lines of the first bytes of a file for recognition, empty and comment lines left out.

    A last line without a newline counts only where it is the only one.
    """
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    last = lines.pop()
    lines = [line.rstrip(b"\r \t") for line in lines[:_HEAD_LINES]] or [last]
    return [line for line in lines if line and not line.startswith(b"#")]


def share(lines: Sequence[bytes], *weights: tuple[re.Pattern[bytes], float]) -> float:
    """Mean weight of *lines*, each by the first pattern that matches it whole; 0 for none."""
    total = 0.0
    for line in lines:
        total += next((weight for pattern, weight in weights if pattern.fullmatch(line)), 0.0)
    return total / len(lines) if lines else 0.0


def shown(line: bytes) -> str:
    """A line for an error message: printable, at most 60 characters of it."""
    text = line[:61].decode("utf-8", "replace")
    return repr(text if len(line) <= 60 else text[:60] + "...")


def scanned(
    block: Block,
    scan: Callable[[bytes, int, Records], tuple[int, int, int]],
    odd: Callable[[bytes, int], Records],
) -> Records:
    """Records of a block: well-formed lines by compiled code, each other one by *odd*.

    Parameters
    ----------
    block : Block
        Lines.
    scan : callable
        ``scan(data, at, out)`` as :meth:`svmcore.traces._text.EventScanner.scan`.
    odd : callable
        ``odd(line, number)`` gives the records of a line that *scan* left.

    Returns
    -------
    ndarray, shape (n,), dtype RECORD

    Complexity
    ----------
    O(bytes); a call of *odd* for each odd line.
    """
    data = block.data
    out = np.empty(block.lines, RECORD)
    rows = lines = at = 0
    while lines < block.lines:
        more, read, at = scan(data, at, out[rows:])
        rows += more
        lines += read
        if lines == block.lines:
            break
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        found = odd(data[at:end], block.first + lines)
        at = end + 1
        lines += 1
        # A scanned line gives one record at most; an odd one may give more.
        missing = rows + len(found) + block.lines - lines - len(out)
        if missing > 0:
            out = np.concatenate([out, np.empty(missing, RECORD)])
        out[rows : rows + len(found)] = found
        rows += len(found)
    return out[:rows]


class Table(NamedTuple):
    """Rows of a block in which each line is a row, a comment or empty."""

    columns: npt.NDArray[np.uint64]
    """Numbers, shape (columns of the form, rows)."""
    numbers: Sequence[int]
    """Line number of each row."""
    comments: int
    """Lines that are no rows."""


def table_columns(block: Block, form: LineForm) -> Table | None:
    """Columns of a block by compiled code.

    Parameters
    ----------
    block : Block
        Lines.
    form : LineForm
        One row.

    Returns
    -------
    Table or None
        None where some line is neither a row of this form nor a comment nor empty: the
        whole block is for :func:`table_rows` then, which finds the first that is wrong.

    Complexity
    ----------
    O(bytes), and a step in Python for each comment.
    """
    data = block.data
    columns = np.empty((form.columns, block.lines), "<u8")
    comments: list[int] = []
    rows = at = 0
    while rows + len(comments) < block.lines:
        more, at = form.scan(data, at, columns, rows)
        rows += more
        if rows + len(comments) == block.lines:
            break
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        text = data[at:end].strip()
        if text and not text.startswith(b"#"):
            return None
        comments.append(rows + len(comments))
        at = end + 1
    numbers: Sequence[int] = range(block.first, block.first + block.lines)
    if comments:
        numbers = np.delete(np.arange(block.first, block.first + block.lines), comments).tolist()
    return Table(columns[:, :rows], numbers, len(comments))


def table_rows(
    block: Block,
    pattern: re.Pattern[bytes],
    path: str,
    summary: Summary,
    expected: str,
) -> tuple[list[tuple[bytes, ...]], Sequence[int]]:
    """Fields of the rows of a block in which each line is a row, a comment or empty.

    Parameters
    ----------
    block : Block
        Lines.
    pattern : re.Pattern
        One row, with at least two groups, compiled with ``re.MULTILINE``,
        anchored by ``^`` and ``$``, unable to match a newline.
    path : str
        The file, for errors.
    summary : Summary
        Gets the comments; the caller counts the rows.
    expected : str
        The form of a row, for errors.

    Returns
    -------
    rows : list of tuple of bytes
        Groups of each row.
    numbers : sequence of int
        Line number of each row.

    Raises
    ------
    TraceError
        At the first line that is neither.

    Complexity
    ----------
    One scan in C where every line is a row, else a match a line.
    """
    rows = pattern.findall(block.data)
    if len(rows) == block.lines:
        return rows, range(block.first, block.first + block.lines)
    rows = []
    numbers: list[int] = []
    for number, line in block.numbered():
        match = pattern.fullmatch(line)
        if match is not None:
            rows.append(match.groups(b""))
            numbers.append(number)
            continue
        text = line.strip()
        if text and not text.startswith(b"#"):
            raise TraceError(path, f"line {number}", f"{shown(line)}: expected {expected}")
    summary.comments += block.lines - len(rows)
    return rows, numbers


def words(
    texts: Sequence[bytes], numbers: Sequence[int], path: str, what: str
) -> npt.NDArray[np.uint64]:
    """A column of decimal or 0x-hex numbers.

    Parameters
    ----------
    texts : sequence of bytes
        Digits, or ``0x`` and hex digits.
    numbers : sequence of int
        Line number of each.
    path, what : str
        File and column, for errors.

    Returns
    -------
    ndarray, shape (n,), dtype uint64

    Raises
    ------
    TraceError
        If a number needs more than 64 bits.
    """
    try:
        return np.array([int(text, 0) for text in texts], "<u8")
    except (ValueError, OverflowError):  # leading zeros, or the error that is named below
        pass
    values: list[int] = []
    for text, number in zip(texts, numbers, strict=True):
        base = 16 if text[:2] in (b"0x", b"0X") else 10
        digits = (text[2:] if base == 16 else text).lstrip(b"0")
        value = int(digits or b"0", base) if len(digits) <= _MOST_DIGITS else ADDRESS_LIMIT
        if value >= ADDRESS_LIMIT:
            raise TraceError(
                path, f"line {number}", f"{what} {shown(text)}: expected at most 64 bits"
            )
        values.append(value)
    return np.array(values, "<u8")


def check_spans(
    addr: npt.NDArray[np.uint64],
    size: npt.NDArray[np.uint64],
    numbers: Sequence[int],
    path: str,
) -> None:
    """Refuse touches of no byte and spans that pass 2**64.

    Parameters
    ----------
    addr, size : ndarray, shape (n,), dtype uint64
        Bytes.
    numbers : sequence of int
        Line number of each.
    path : str
        The file.

    Raises
    ------
    TraceError
        At the first such line.
    """
    one = np.uint64(1)
    bad = (size == 0) | (addr + (size - one) < addr)
    if bad.any():
        at = int(np.argmax(bad))
        raise TraceError(
            path,
            f"line {numbers[at]}",
            f"addr {int(addr[at]):#x}, size {int(size[at])}: expected a size of at least 1 and "
            "an end of at most 2**64",
        )


_KIND_OK = np.zeros(256, bool)
_KIND_OK[[int(kind) for kind in Kind]] = True
_ACCESS_OK = np.zeros(256, bool)
_ACCESS_OK[[int(access) for access in Access]] = True
_PROC_OK = np.zeros(256, bool)
_PROC_OK[: _PROCESSORS + 1] = True
_PROC_OK[UNKNOWN] = True
#: Replayed kinds from here on have no meaning without bytes.
_LAST_REPLAYED = 15


def check_records(records: Records, path: str, place: Callable[[int], str]) -> None:
    """Refuse records that no reader would make.

    Parameters
    ----------
    records : ndarray, shape (n,), dtype RECORD
    path : str
        The file they come from or go to.
    place : callable
        Name of the place of record *i* of the array, for the error.

    Raises
    ------
    TraceError
        At the first record with an unknown kind, access or processor, a span
        or an end time that passes 2**64, or a replayed kind without bytes.

    Complexity
    ----------
    O(n), no allocation a record.
    """
    if not len(records) or _plain(records):
        return
    addr, size, kind = records["addr"], records["size"], records["kind"]
    checks = (
        (_KIND_OK[kind], "kind", "a value of Kind"),
        (
            # In advice it is the type of the attribute.
            np.where(
                records["kind"] == Kind.ADVISE,
                records["access"] <= max(Attribute),
                _ACCESS_OK[records["access"]],
            ),
            "access",
            "0 to 4, in advice 0 to 7",
        ),
        (_PROC_OK[records["proc"]], "proc", "0 to 64 or 255"),
        (_PROC_OK[records["peer"]], "peer", "0 to 64 or 255"),
        (
            (size == 0) | (addr + (size - np.uint64(1)) >= addr),
            "size",
            "addr + size of at most 2**64",
        ),
        ((size > 0) | (kind > _LAST_REPLAYED), "size", "at least 1 byte"),
        (
            records["t_ns"] + records["dur_ns"] >= records["t_ns"],
            "dur_ns",
            "t_ns + dur_ns below 2**64",
        ),
    )
    for good, name, expected in checks:
        if not good.all():
            at = int(np.argmin(good))
            raise TraceError(path, place(at), f"{name} {records[name][at]}: expected {expected}")


def _pairs(low: npt.NDArray[np.bool_], high: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """What two bytes may be, by the little-endian number that they make."""
    return (high[:, None] & low[None, :]).ravel()


_KIND_PROC_OK = _pairs(_KIND_OK, _PROC_OK)
_ACCESS_PEER_OK = _pairs(_ACCESS_OK, _PROC_OK)
#: The last four fields of a record, kind, proc, access and peer, as two numbers.
_PAIRED = np.dtype([("before", "V36"), ("kind_proc", "<u2"), ("access_peer", "<u2")])


def _plain(records: Records) -> bool:
    """True where no record can be wrong; some that are right need the look at each field."""
    pairs = records.view(_PAIRED)
    size, t_ns = records["size"], records["t_ns"]
    return bool(
        size.min() > 0
        and int(records["addr"].max()) + int(size.max()) <= ADDRESS_LIMIT
        and int(t_ns.max()) + int(records["dur_ns"].max()) < ADDRESS_LIMIT
        and _KIND_PROC_OK[pairs["kind_proc"]].all()
        and _ACCESS_PEER_OK[pairs["access_peer"]].all()
    )


#: Known formats by name.
FORMATS: dict[str, type[Trace]] = {}


def register(reader: type[Trace]) -> type[Trace]:
    """Class decorator: make a reader known under its ``format``."""
    FORMATS[reader.format] = reader
    return reader


def formats() -> dict[str, str]:
    """Names of the known formats and what each is, in one line."""
    return {name: FORMATS[name].description for name in sorted(FORMATS)}
