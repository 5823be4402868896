"""Instrumented nvidia-uvm logs: faults, prefetched and evicted pages, batches.

Kernel-log text (``PRI,SEQ,USEC,-;MESSAGE``) or the bare messages. Messages:
``s,`` a batch begins, ``f,`` a fault with 14 fields, ``p,ADDR`` a prefetched
page, ``e,ADDR`` an evicted page, ``b,`` a batch ends (``b,DURATION,STATUS`` in
newer drivers, 28 to 30 numbers in the batch log), and ``uvm range destroy``
lines, which name the allocations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import TraceError
from ..records import CPU, FATAL_TYPES, RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SIZE
from ._text import FaultScanner
from .base import (
    Mapping,
    Records,
    Spans,
    Summary,
    TextTrace,
    TraceKind,
    disjoint,
    head_lines,
    register,
    scanned,
    share,
    shown,
)
from .mappings import outside
from .opening import Block, Source, file_size, line_blocks

__all__ = ["UvmLogTrace", "batches"]

#: What stands before the first ';' of a kernel-log line.
_PREFIX = re.compile(rb"[0-9]+,[0-9]+,[0-9]+,[^;]*")
_FAULT = re.compile(
    rb"f,(?:0x)?([0-9a-fA-F]{1,16}),([0-9]{1,20}),([0-9]{1,20}),([0-9]+)(?:,(?:0x)?[0-9a-fA-F]+){10}"
)
_PAGE = re.compile(rb"[pe],(?:0x)?([0-9a-fA-F]{1,16})")
_START = re.compile(rb"s,?")
_END = re.compile(rb"b,?((?:-?[0-9]{1,20}(?:,-?[0-9]{1,20})*)?),?")
_DESTROY = re.compile(
    rb"uvm range destroy va_range->node\.start, va_range->size: "
    rb"(?:0x)?([0-9a-fA-F]{1,16}), (0x)?([0-9a-fA-F]{1,20})"
)
_BARE = rb"(?:[spe],|b,|f,[0-9a-fx]|uvm range destroy ).*|[sb]"
_MESSAGE = re.compile(rb"(?:[0-9]+,[0-9]+,[0-9]+,[^;]*;)?(?:" + _BARE + rb")")
_KERNEL = re.compile(rb"[0-9]+,[0-9]+,[0-9]+,[^;]*;.*")
_EXPECTED = "s, f,+14 fields p,ADDR e,ADDR b, or 'uvm range destroy', after an optional 'kmsg;'"
#: access_type of the fault buffer: prefetch, read, write, atomic weak, atomic strong.
_ACCESS = (Access.PREFETCH, Access.READ, Access.WRITE, Access.ATOMIC, Access.ATOMIC)
#: Numbers of a batch line: none, duration and status, or the batch log's columns
#: (the first two are start and duration; the driver's versions differ in the rest).
_BATCH_COLUMNS = (28, 29, 30)


@register
class UvmLogTrace(TextTrace):
    """A fault log of the instrumented NVIDIA driver.

    ``f`` lines become FAULT records of one page at the GPU's time. ``p`` lines
    become MIGRATE records with trigger 0 (prefetch) from the CPU, ``e`` lines
    EVICT records of one page, ``s`` and ``b`` lines BATCH records; those four
    have no GPU time and carry that of the last fault before them. The log names
    no GPU, so the processor is UNKNOWN (``--by`` decides).

    Rows of a batch are sorted by address, so times go back: replay goes in file
    order. Destroyed ranges are the mappings; a range of something else, before
    the first fault, stays among them and is harmless. Pages that fault outside
    every destroyed range (a log cut before its end) are mappings too.

    ``summary.counts``: ``failed_batches`` (a status other than 0).

    Source
    ------
    Format (e) of the trace notes; log2csv of uvm-eval, which likewise drops all
    before the first ``;``. Other kernel messages are counted as unknown. The
    size in a destroy line is printed without ``0x`` and is decimal in real
    logs; where it is no multiple of 4 KiB in decimal but is in hex, or has hex
    letters, it is taken as hex.
    """

    format = "uvm-log"
    description = "fault log of the instrumented nvidia-uvm driver, kernel-log text"
    beyond_records = (
        "client and engine of each fault, its type where it is not fatal",
        "columns of the batch log",
    )

    _destroyed: list[tuple[int, int, str]] | None = None

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Share of lines with a known message; other kernel messages count little."""
        return share(head_lines(head), (_MESSAGE, 0.95), (_KERNEL, 0.3))

    def _find_mappings(self) -> list[Mapping]:
        touched = Spans()
        for chunk in self.chunks():
            touched.add(chunk)
        found = disjoint(self._destroyed or (), "range")
        bare = outside(touched.runs(), found)
        return found + [
            Mapping(start, end - start, f"touched{index}")
            for index, (start, end) in enumerate(bare)
        ]

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary, self._keep)

    def _keep(self, destroyed: list[tuple[int, int, str]]) -> None:
        self._destroyed = destroyed


def _message(line: bytes) -> tuple[bytes, bool]:
    """The message of a line, and whether a kernel-log prefix stood before it."""
    prefix, semicolon, message = line.rstrip().partition(b";")
    if not semicolon:
        return prefix, False
    return message, _PREFIX.fullmatch(prefix) is not None


def _batch_numbers(message: bytes) -> list[int] | None:
    """The numbers of a ``b`` message, None where it is not one."""
    match = _END.fullmatch(message)
    if match is None:
        return None
    numbers = [int(text) for text in match.group(1).split(b",")] if match.group(1) else []
    known = len(numbers) in (0, 2, *_BATCH_COLUMNS)
    return numbers if known and all(n < ADDRESS_LIMIT for n in numbers) else None


def batches(path: str | os.PathLike[str]) -> Iterator[tuple[int, ...]]:
    """The numbers of each batch-end line, as the driver wrote them.

    Parameters
    ----------
    path : str or PathLike
        The log.

    Yields
    ------
    tuple of int
        Empty, (duration ns, status), or the 28 to 30 columns of the batch log.

    Raises
    ------
    TraceError
        If the file cannot be read. Lines of other forms are passed over;
        :func:`~svmcore.traces.open_trace` checks them.

    Complexity
    ----------
    O(bytes) time, O(1) memory.
    """
    name = os.fspath(path)
    with Source(name, file_size(name)) as source:
        for block in line_blocks(source):
            for _, line in block.numbered():
                numbers = _batch_numbers(_message(line)[0])
                if numbers is not None:
                    yield tuple(numbers)


_Row = tuple[int, int, int, int, int, int, int, int, int]


class _Parser:
    """One pass: plain messages by the compiled scanner, all others by the methods below.

    Invariant: ``scanner.t_ns`` is the GPU time of the last fault read by either.
    """

    def __init__(
        self,
        path: str,
        summary: Summary,
        keep: Callable[[list[tuple[int, int, str]]], None],
    ) -> None:
        self.path = path
        self.summary = summary
        self.keep = keep
        self.destroyed: list[tuple[int, int, str]] = []
        self.failed = 0
        self.scanner = FaultScanner()

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        return scanned(block, self._scan, self._odd)

    def _scan(self, data: bytes, at: int, out: Records) -> tuple[int, int, int]:
        found = self.scanner.scan(data, at, out)
        self.summary.read += found[1]
        return found

    def _odd(self, line: bytes, number: int) -> Records:
        message, prefixed = _message(line)
        match message[:1]:
            case b"f":
                row = self._fault(message, number)
            case b"p" | b"e":
                row = self._page(message)
            case b"s" if _START.fullmatch(message):
                row = self._batch(0, self.scanner.t_ns, 0)
            case b"b":
                row = self._batch_end(message)
            case _:
                row = None
        if row is None:
            self._other(message, line, number, prefixed)
            return np.empty(0, RECORD)
        self.summary.read += 1
        return np.array([row], RECORD)

    def end(self) -> Records:
        """Gives the destroyed ranges to the trace."""
        self.keep(self.destroyed)
        if self.failed + self.scanner.failed:
            self.summary.add("failed_batches", self.failed + self.scanner.failed)
        return np.zeros(0, RECORD)

    def _fault(self, message: bytes, number: int) -> _Row | None:
        match = _FAULT.fullmatch(message)
        if match is None:
            return None
        addr, t_ns, fault_type, access_type = match.groups()
        time = int(t_ns)
        access = int(access_type) if len(access_type) == 1 else len(_ACCESS)
        if time >= ADDRESS_LIMIT or access >= len(_ACCESS):
            raise TraceError(
                self.path,
                f"line {number}",
                f"{shown(message)}: expected a time of 64 bits and an access type of 0 to 4",
            )
        self.scanner.t_ns = time
        page = int(addr, 16) & ~PAGE_MASK
        kind = int(fault_type) if int(fault_type) in FATAL_TYPES else UNKNOWN
        return (time, page, PAGE_SIZE, 0, 0, Kind.FAULT, UNKNOWN, _ACCESS[access], kind)

    def _page(self, message: bytes) -> _Row | None:
        match = _PAGE.fullmatch(message)
        if match is None:
            return None
        page = int(match.group(1), 16) & ~PAGE_MASK
        unknown = Access.UNKNOWN
        if message.startswith(b"p"):
            return (self.scanner.t_ns, page, PAGE_SIZE, 0, 0, Kind.MIGRATE, CPU, unknown, UNKNOWN)
        return (self.scanner.t_ns, page, PAGE_SIZE, 0, 0, Kind.EVICT, UNKNOWN, unknown, UNKNOWN)

    def _batch(self, value: int, t_ns: int, dur_ns: int) -> _Row:
        return (t_ns, 0, 0, dur_ns, value, Kind.BATCH, UNKNOWN, Access.UNKNOWN, UNKNOWN)

    def _batch_end(self, message: bytes) -> _Row | None:
        numbers = _batch_numbers(message)
        if numbers is None:
            return None
        if not numbers:
            return self._batch(1, self.scanner.t_ns, 0)
        if len(numbers) == 2:
            if numbers[1]:
                self.failed += 1
            return self._batch(1, self.scanner.t_ns, max(numbers[0], 0))
        return self._batch(1, max(numbers[0], 0), max(numbers[1], 0))

    def _other(self, message: bytes, line: bytes, number: int, prefixed: bool) -> None:
        """A destroyed range, an empty line, another kernel message, or an error."""
        match = _DESTROY.fullmatch(message)
        if match is not None:
            start, size = int(match.group(1), 16), _destroyed_size(match.group(2), match.group(3))
            if not 0 < size <= ADDRESS_LIMIT - start:
                raise TraceError(
                    self.path,
                    f"line {number}",
                    f"range {start:#x}, {size} bytes: expected a size of at least 1 and an end of "
                    "at most 2**64",
                )
            self.destroyed.append((start, size, ""))
            self.summary.metadata += 1
        elif not line.strip() or line.startswith((b"#", b" ")):
            self.summary.comments += 1
        elif prefixed and not _MESSAGE.fullmatch(message):
            self.summary.unknown += 1
        else:
            raise TraceError(self.path, f"line {number}", f"{shown(line)}: expected {_EXPECTED}")


def _destroyed_size(mark: bytes | None, digits: bytes) -> int:
    """Bytes of a destroyed range, see the class for the base."""
    if mark or not digits.isdigit():
        return int(digits, 16)
    size = int(digits)
    return int(digits, 16) if size & PAGE_MASK and not int(digits, 16) & PAGE_MASK else size
