"""Workload CSV: the byte ranges that each operator of a real step reads and writes.

Header ``seq,t_ns,dur_ns,kind,op,addr,bytes`` and, where several GPUs took part,
``dev``. Rows of kind R and W are touches; rows of kind S come last and are the
allocator's segments, the mappings of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from ._text import DEC, MISSING, OPTIONAL, PREFIXED, TEXT, LineForm
from .base import (
    Mapping,
    Records,
    Summary,
    TextTrace,
    TraceKind,
    check_spans,
    disjoint,
    register,
    shown,
    table_columns,
    table_rows,
    words,
)
from .opening import Block, Source, line_blocks

__all__ = ["WorkloadCsvTrace"]

_HEADER = b"seq,t_ns,dur_ns,kind,op,addr,bytes"
_HEADERS = {_HEADER: False, _HEADER + b",dev": True}
_FIELDS = rb"^([0-9]+),([0-9]+),([0-9]+),(%s),([^,\r\n]*),(0[xX][0-9a-fA-F]+),([0-9]+)%s\r?$"
_ROW = {
    dev: re.compile(_FIELDS % (b"[RWS]", rb",([0-9]+)" if dev else b"()"), re.MULTILINE)
    for dev in (False, True)
}
_SEGMENT = re.compile(_FIELDS % (b"S", rb"(?:,[0-9]+)?"), re.MULTILINE)
_SEGMENT_KIND = 2
_KINDS = {b"R": int(Access.READ), b"W": int(Access.WRITE), b"S": _SEGMENT_KIND}
_PARTS = (
    *(DEC, b",", DEC, b",", DEC, b",", _KINDS, b",", TEXT, b",", PREFIXED, b",", DEC),
    *(OPTIONAL, b",", DEC),
)
_FORM = LineForm(*_PARTS)
_GPUS = 64
#: Operators whose names are kept. More than that cost memory for nothing: the
#: names serve labels in reports.
NAMES_LIMIT = 1 << 20


@register
class WorkloadCsvTrace(TextTrace):
    """Range accesses of recorded operators.

    Records are of kind ACCESS; ``value`` is the operator number ``seq`` modulo
    2**32, ``names`` gives the operator's name for it. ``dur_ns`` stands on the
    first row of each operator and is 0 on the others, so that the sum over the
    records is the compute time; rows of one operator stand together. The
    processor is GPU ``dev``, or UNKNOWN where the file has no such column.

    Source
    ------
    Format (j) of the trace notes; ours. Every touch lies inside one segment:
    one that does not is refused. A file without segments has the pages touched
    as its mappings.
    """

    format = "workload-csv"
    description = "ranges read and written by each operator of a recorded step"

    _names: dict[int, str] | None = None
    _segments: list[Mapping] | None = None

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the header line."""
        line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].rstrip(b"\r")
        if line in _HEADERS:
            return 1.0
        return 0.6 if line.startswith(_HEADER + b",") else 0.0

    @property
    def names(self) -> MappingProxyType[int, str]:
        """Operator name by record ``value``; runs a pass where none was made.

        The first ``NAMES_LIMIT`` operators are kept.
        """
        if self._names is None:
            for _ in self.chunks():
                pass
        return MappingProxyType(self._names or {})

    def segments(self) -> list[Mapping]:
        """The S rows, in file order, found in a pass of its own; empty where there are none.

        Raises
        ------
        TraceError
            If a segment is empty or passes 2**64.
        """
        if self._segments is None:
            found: list[tuple[int, int, str]] = []
            with Source(self.path, self.nbytes, self.progress) as source:
                for block in line_blocks(source):
                    found += self._segments_of(block)
            self._segments = disjoint(found, "segment")
        return list(self._segments)

    def _segments_of(self, block: Block) -> list[tuple[int, int, str]]:
        table = table_columns(block, _FORM)
        if table is not None:
            segments = np.flatnonzero(table.columns[3] == _SEGMENT_KIND)
            _, _, _, _, op, addr, size, _ = table.columns[:, segments]
            numbers = [table.numbers[row] for row in segments.tolist()]
            ops = _texts(block.data, op)
        else:
            rows = _SEGMENT.findall(block.data)
            # Only an error needs the lines; then they are counted.
            numbers = [n for n, line in block.numbered() if _SEGMENT.fullmatch(line)]
            addr = words([row[5] for row in rows], numbers, self.path, "addr")
            size = words([row[6] for row in rows], numbers, self.path, "bytes")
            ops = [row[4] for row in rows]
        names = [text.decode("utf-8", "replace") for text in ops]
        check_spans(addr, size, numbers, self.path)
        return list(zip(addr.tolist(), size.tolist(), names, strict=True))

    def _find_mappings(self) -> list[Mapping]:
        return self.segments() or super()._find_mappings()

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary, self.segments(), self._keep)

    def _keep(self, names: dict[int, str]) -> None:
        self._names = names


class _Rows(NamedTuple):
    """Rows of a block as columns, shape (rows,)."""

    seq: npt.NDArray[np.uint64]
    t_ns: npt.NDArray[np.uint64]
    dur_ns: npt.NDArray[np.uint64]
    kind: npt.NDArray[np.uint64]
    """As ``_KINDS``."""
    addr: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint64]
    dev: npt.NDArray[np.uint64]
    """Anything where the file has no such column."""
    ops: Callable[[npt.NDArray[np.intp]], list[bytes]]
    """Operators of some rows."""
    numbers: Sequence[int]
    """Line number of each row."""


def _texts(data: bytes, places: npt.NDArray[np.uint64]) -> list[bytes]:
    """The texts of a TEXT column."""
    return [data[p >> 32 : (p >> 32) + (p & 0xFFFFFFFF)] for p in places.tolist()]


class _Parser:
    """One pass.

    Invariant: ``last`` is the operator number of the last touch read.
    """

    def __init__(
        self,
        path: str,
        summary: Summary,
        segments: list[Mapping],
        keep: Callable[[dict[int, str]], None],
    ) -> None:
        self.path = path
        self.summary = summary
        self.keep = keep
        self.names: dict[int, str] = {}
        self.known: dict[bytes, str] = {}  # one string for all operators of a name
        ordered = sorted(segments)
        self.starts = np.array([s.start for s in ordered], "<u8")
        self.lasts = np.array([s.end - 1 for s in ordered], "<u8")
        self.dev: bool | None = None
        self.last: int | None = None

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        if self.dev is None:
            block = self._header(block)
        rows = self._fast(block)
        if rows is None:
            rows = self._slow(block)
        touches = np.flatnonzero(rows.kind != _SEGMENT_KIND)
        out = np.zeros(len(touches), RECORD)
        if len(touches):
            self._fill(out, rows, touches)
        self.summary.metadata += len(rows.kind) - len(touches)
        self.summary.read += len(touches)
        return out

    def _fast(self, block: Block) -> _Rows | None:
        """Rows by compiled code; None where a line has another form."""
        table = table_columns(block, _FORM)
        if table is None:
            return None
        seq, t_ns, dur_ns, kind, op, addr, size, dev = table.columns
        if ((dev == MISSING) == bool(self.dev)).any():
            return None
        self.summary.comments += table.comments

        def ops(chosen: npt.NDArray[np.intp]) -> list[bytes]:
            return _texts(block.data, op[chosen])

        return _Rows(seq, t_ns, dur_ns, kind, addr, size, dev, ops, table.numbers)

    def _slow(self, block: Block) -> _Rows:
        """A block with a line of another form: the first that is wrong is named."""
        dev = bool(self.dev)
        expected = _HEADER.decode() + (",dev" if dev else "")
        rows, numbers = table_rows(block, _ROW[dev], self.path, self.summary, expected)
        seqs, t_ns, dur_ns, kinds, ops, addr, size, devs = (
            zip(*rows, strict=True) if rows else ((),) * 8
        )

        def column(texts: tuple[bytes, ...], what: str) -> npt.NDArray[np.uint64]:
            return words(texts, numbers, self.path, what)

        kind = np.array([_KINDS[text] for text in kinds], "<u8")
        return _Rows(
            column(seqs, "seq"),
            column(t_ns, "t_ns"),
            column(dur_ns, "dur_ns"),
            kind,
            column(addr, "addr"),
            column(size, "bytes"),
            column(devs, "dev") if dev else kind,
            lambda chosen: [ops[row] for row in chosen.tolist()],
            numbers,
        )

    def _header(self, block: Block) -> Block:
        line, _, rest = block.data.partition(b"\n")
        found = _HEADERS.get(line.rstrip(b"\r"))
        if found is None:
            raise TraceError(
                self.path,
                f"line {block.first}",
                f"{shown(line)}: expected the header {_HEADER.decode()}[,dev]",
            )
        self.dev = found
        self.summary.metadata += 1
        return Block(block.first + 1, rest, block.lines - 1, block.cut)

    def _fill(self, out: Records, rows: _Rows, touches: npt.NDArray[np.intp]) -> None:
        seq = rows.seq[touches]
        numbers = rows.numbers
        if len(touches) < len(numbers):
            numbers = [numbers[row] for row in touches.tolist()]
        out["addr"] = rows.addr[touches]
        out["size"] = rows.size[touches]
        check_spans(out["addr"], out["size"], numbers, self.path)
        self._check_inside(out, numbers)
        first = np.ones(len(out), bool)
        first[1:] = seq[1:] != seq[:-1]
        first[0] = self.last is None or int(seq[0]) != self.last
        out["t_ns"] = rows.t_ns[touches]
        out["dur_ns"] = np.where(first, rows.dur_ns[touches], 0)
        out["value"] = (seq & np.uint64(0xFFFFFFFF)).astype("<u4")
        out["kind"] = Kind.ACCESS
        out["access"] = rows.kind[touches]
        out["proc"] = self._processors(rows.dev[touches], numbers) if self.dev else UNKNOWN
        out["peer"] = UNKNOWN
        starts = np.flatnonzero(first)[: NAMES_LIMIT - len(self.names)]
        texts = rows.ops(touches[starts])
        for text in set(texts) - self.known.keys():
            self.known[text] = text.decode("utf-8", "replace")
        values = out["value"][starts].tolist()
        self.names.update(zip(values, map(self.known.__getitem__, texts), strict=True))
        self.last = int(seq[-1])

    def _check_inside(self, out: Records, numbers: Sequence[int]) -> None:
        if not len(self.starts):
            return
        at = np.searchsorted(self.starts, out["addr"], side="right") - 1
        last = out["addr"] + (out["size"] - np.uint64(1))
        outside = (at < 0) | (last > self.lasts[at])
        if outside.any():
            row = int(np.argmax(outside))
            raise TraceError(
                self.path,
                f"line {numbers[row]}",
                f"addr {int(out['addr'][row]):#x}, {int(out['size'][row])} bytes: expected a range "
                "inside one segment (S row)",
            )

    def _processors(
        self, dev: npt.NDArray[np.uint64], numbers: Sequence[int]
    ) -> npt.NDArray[np.uint64]:
        codes = dev + np.uint64(1)
        bad = (codes > _GPUS) | (codes == 0)
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(
                self.path, f"line {numbers[row]}", f"dev {int(dev[row])}: expected 0 to 63"
            )
        return codes

    def end(self) -> Records:
        """Gives the names to the trace; a header must have been there."""
        if self.dev is None:
            raise TraceError(self.path, "line 1", f"expected the header {_HEADER.decode()}[,dev]")
        self.keep(self.names)
        return np.zeros(0, RECORD)
