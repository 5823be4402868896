"""The chunk trace of gpu_ext: what the nvidia-uvm driver does with chunks of GPU memory, as CSV.

Header ``time_ms,hook_type,pid,owner_pid,va_space,cpu,chunk_addr,list_addr,va_block,
va_start,va_end,va_page_index``; a later variant has ``timestamp_ns`` for the time and
EVICTION_SELECTED among the hooks.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE
from .base import Mapping, Records, Spans, Summary, TextTrace, TraceKind, register, shown
from .mappings import with_touched
from .opening import Block

__all__ = ["ACTIVATE", "ChunkTrace"]

#: ``value`` of the OTHER record of a chunk that becomes active.
ACTIVATE = 1
_TIMES = {b"time_ms": 1_000_000, b"timestamp_ns": 1}
_COLUMNS = (b"hook_type", b"owner_pid", b"va_start", b"va_end", b"va_page_index")
_EVICTIONS = (b"EVICTION_PREPARE", b"EVICTION_SELECTED")
_TIME = re.compile(rb"([0-9]{1,20})(?:\.([0-9]{1,9}))?")
_ADDRESS = re.compile(rb"0[xX]([0-9a-fA-F]{1,16})")
_NUMBER = re.compile(rb"[0-9]{1,9}")
#: Processes that are told apart for the note.
_PROCESSES = 1024

_Row = tuple[int, int, int, int, int, int, int, int, int]


@register
class ChunkTrace(TextTrace):
    """Chunks that become active, are populated and are evicted.

    POPULATE becomes FAULT: the page ``va_start`` + 4096 times ``va_page_index``
    was needed on the GPU. ACTIVATE becomes OTHER of that page, ``value``
    :data:`ACTIVATE`. EVICTION_PREPARE and EVICTION_SELECTED become EVICT without a
    span: the driver's hook knows no owner and no virtual address there, and the
    columns ``chunk_addr`` and ``list_addr`` hold its two lists. The file names no
    GPU: the processor is UNKNOWN (``--by`` decides). Other hooks are unknown.

    ``va_end`` is the last byte. Blocks that lie side by side make one mapping.

    ``summary.counts``: ``evictions_without_address``, ``times_back``.

    Source
    ------
    Format (e) of the trace notes. ``pid`` is the kernel's worker, ``owner_pid``
    the process.
    """

    format = "chunk-trace"
    description = "gpu_ext chunk trace of the nvidia-uvm driver, CSV"
    beyond_records = ("process ids", "addresses of chunks, blocks and spaces", "CPU cores")

    _blocks: Spans | None = None

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the header line."""
        names = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].rstrip(b"\r").split(b",")
        return 1.0 if _header(names) is not None and b"chunk_addr" in names else 0.0

    def _find_mappings(self) -> list[Mapping]:
        touched = Spans()
        for chunk in self.chunks():
            touched.add(chunk)
        runs = self._blocks.runs() if self._blocks is not None else []
        found = [Mapping(start, end - start, f"block{i}") for i, (start, end) in enumerate(runs)]
        return with_touched(found, touched)

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary, self._keep)

    def _keep(self, blocks: Spans) -> None:
        self._blocks = blocks


def _header(names: list[bytes]) -> tuple[int, int, list[int]] | None:
    """Column of the time, ns of its unit, the other columns; None where one is missing."""
    time = next((name for name in _TIMES if name in names), None)
    if time is None or any(names.count(name) != 1 for name in (*_COLUMNS, time)):
        return None
    return names.index(time), _TIMES[time], [names.index(name) for name in _COLUMNS]


class _Parser:
    """One pass."""

    def __init__(self, path: str, summary: Summary, keep: Callable[[Spans], None]) -> None:
        self.path = path
        self.summary = summary
        self.keep = keep
        self.fields = 0
        self.time = 0
        self.unit = 1
        self.columns: list[int] = []
        self.last = 0
        self.blocks = Spans()
        self.processes: set[bytes] = set()

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        rows: list[_Row] = []
        spans: set[tuple[int, int]] = set()
        for number, line in block.numbered():
            text = line.rstrip(b"\r")
            if not self.fields:
                self._read_header(text, number)
            elif not text or text.startswith(b"#"):
                self.summary.comments += 1
            else:
                self._row(text, number, rows, spans)
        if spans:
            held = np.zeros(len(spans), RECORD)
            held["addr"], held["size"] = zip(*spans, strict=True)
            self.blocks.add(held)
        return np.array(rows, RECORD)

    def _refuse(self, number: int, reason: str) -> TraceError:
        return TraceError(self.path, f"line {number}", reason)

    def _read_header(self, text: bytes, number: int) -> None:
        names = text.split(b",")
        found = _header(names)
        if found is None:
            raise self._refuse(
                number,
                f"{shown(text)}: expected a header with time_ms or timestamp_ns, "
                f"{b', '.join(_COLUMNS).decode()}",
            )
        self.time, self.unit, self.columns = found
        self.fields = len(names)
        self.summary.metadata += 1

    def _row(self, text: bytes, number: int, rows: list[_Row], spans: set[tuple[int, int]]) -> None:
        fields = text.split(b",")
        if len(fields) != self.fields:
            raise self._refuse(
                number, f"{shown(text)}: {len(fields)} fields: expected {self.fields}"
            )
        hook, owner, start, end, index = (fields[column] for column in self.columns)
        t_ns = self._time(fields[self.time], number)
        if hook in _EVICTIONS:
            self.summary.add("evictions_without_address")
            row = (t_ns, 0, 0, 0, 0, Kind.EVICT, UNKNOWN, Access.UNKNOWN, UNKNOWN)
        elif hook in (b"POPULATE", b"ACTIVATE"):
            page = self._page(start, end, index, number, spans)
            kind, value = (Kind.FAULT, 0) if hook == b"POPULATE" else (Kind.OTHER, ACTIVATE)
            row = (t_ns, page, PAGE_SIZE, 0, value, kind, UNKNOWN, Access.UNKNOWN, UNKNOWN)
        else:
            self.summary.unknown += 1
            return
        if owner and len(self.processes) < _PROCESSES:
            self.processes.add(owner)
        self.summary.read += 1
        rows.append(row)

    def _time(self, text: bytes, number: int) -> int:
        match = _TIME.fullmatch(text)
        if match is None:
            raise self._refuse(number, f"time {shown(text)}: expected a decimal number")
        # Digits below one ns are cut.
        parts = int((match[2] or b"0").ljust(9, b"0")) * self.unit // 1_000_000_000
        t_ns = int(match[1]) * self.unit + parts
        if t_ns >= ADDRESS_LIMIT:
            raise self._refuse(number, f"time {shown(text)}: expected at most 64 bits of ns")
        if t_ns < self.last:
            self.summary.add("times_back")
        self.last = t_ns
        return t_ns

    def _page(
        self, start: bytes, end: bytes, index: bytes, number: int, spans: set[tuple[int, int]]
    ) -> int:
        first, last = _ADDRESS.fullmatch(start), _ADDRESS.fullmatch(end)
        if first is None or last is None or not _NUMBER.fullmatch(index):
            raise self._refuse(
                number,
                f"va_start {shown(start)}, va_end {shown(end)}, va_page_index {shown(index)}: "
                "expected two 0x addresses and a number",
            )
        begin, stop = int(first[1], 16), int(last[1], 16)
        page = (begin & ~PAGE_MASK) + (int(index) << PAGE_SHIFT)
        if not begin <= stop or page > stop:
            raise self._refuse(
                number,
                f"page {int(index)} of {begin:#x} to {stop:#x}: expected one inside (va_end is "
                "the last byte)",
            )
        spans.add((begin, stop - begin + 1))
        return page

    def end(self) -> Records:
        """Gives the blocks to the trace; a header must have been there."""
        if not self.fields:
            raise self._refuse(1, "expected the header of a chunk trace")
        self.keep(self.blocks)
        if len(self.processes) > 1:
            self.summary.notes.append(
                f"{len(self.processes)} processes: equal addresses of different processes are "
                "taken for the same page"
            )
        return np.zeros(0, RECORD)
