"""Workload CSV: the byte ranges that each operator of a real step reads and writes.

Header ``seq,t_ns,dur_ns,kind,op,addr,bytes`` and, where several GPUs took part,
``dev``. Rows of kind R and W are touches; rows of kind S come last and are the
allocator's segments, the mappings of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
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
        rows = _SEGMENT.findall(block.data)
        if not rows:
            return []
        # Only an error needs the lines; then they are counted.
        numbers = (
            range(block.first, block.first + block.lines)
            if len(rows) == block.lines
            else [n for n, line in block.numbered() if _SEGMENT.fullmatch(line)]
        )
        addr = words([row[5] for row in rows], numbers, self.path, "addr")
        size = words([row[6] for row in rows], numbers, self.path, "bytes")
        check_spans(addr, size, numbers, self.path)
        names = [row[4].decode("utf-8", "replace") for row in rows]
        return list(zip(addr.tolist(), size.tolist(), names, strict=True))

    def _find_mappings(self) -> list[Mapping]:
        return self.segments() or super()._find_mappings()

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary, self.segments(), self._keep)

    def _keep(self, names: dict[int, str]) -> None:
        self._names = names


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
        ordered = sorted(segments)
        self.starts = np.array([s.start for s in ordered], "<u8")
        self.lasts = np.array([s.end - 1 for s in ordered], "<u8")
        self.dev: bool | None = None
        self.last: int | None = None

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        if self.dev is None:
            block = self._header(block)
        dev = bool(self.dev)
        rows, numbers = table_rows(
            block, _ROW[dev], self.path, self.summary, _HEADER.decode() + (",dev" if dev else "")
        )
        touches = [(row, n) for row, n in zip(rows, numbers, strict=True) if row[3] != b"S"]
        out = np.zeros(len(touches), RECORD)
        if touches:
            self._fill(out, [row for row, _ in touches], [n for _, n in touches])
        self.summary.metadata += len(rows) - len(touches)
        self.summary.read += len(touches)
        return out

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

    def _fill(self, out: Records, rows: list[tuple[bytes, ...]], numbers: list[int]) -> None:
        seqs, t_ns, dur_ns, kinds, ops, addr, size, dev = zip(*rows, strict=True)
        seq = words(seqs, numbers, self.path, "seq")
        out["addr"] = words(addr, numbers, self.path, "addr")
        out["size"] = words(size, numbers, self.path, "bytes")
        check_spans(out["addr"], out["size"], numbers, self.path)
        self._check_inside(out, numbers)
        first = np.ones(len(out), bool)
        first[1:] = seq[1:] != seq[:-1]
        first[0] = self.last is None or int(seq[0]) != self.last
        out["t_ns"] = words(t_ns, numbers, self.path, "t_ns")
        out["dur_ns"] = np.where(first, words(dur_ns, numbers, self.path, "dur_ns"), 0)
        out["value"] = (seq & np.uint64(0xFFFFFFFF)).astype("<u4")
        out["kind"] = Kind.ACCESS
        out["access"] = [Access.WRITE if kind == b"W" else Access.READ for kind in kinds]
        out["proc"] = self._processors(dev, numbers)
        out["peer"] = UNKNOWN
        self._keep_names(out["value"], ops, first)
        self.last = int(seq[-1])

    def _check_inside(self, out: Records, numbers: list[int]) -> None:
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

    def _processors(self, dev: tuple[bytes, ...], numbers: list[int]) -> npt.NDArray[np.uint64]:
        if not self.dev:
            return np.full(len(dev), UNKNOWN, "<u8")
        codes = words(dev, numbers, self.path, "dev") + np.uint64(1)
        bad = (codes > _GPUS) | (codes == 0)
        if bad.any():
            row = int(np.argmax(bad))
            raise TraceError(
                self.path, f"line {numbers[row]}", f"dev {dev[row].decode()}: expected 0 to 63"
            )
        return codes

    def _keep_names(
        self, values: npt.NDArray[np.uint32], ops: tuple[bytes, ...], first: npt.NDArray[np.bool_]
    ) -> None:
        starts = np.flatnonzero(first)[: NAMES_LIMIT - len(self.names)]
        for row, value in zip(starts.tolist(), values[starts].tolist(), strict=True):
            self.names[value] = ops[row].decode("utf-8", "replace")

    def end(self) -> Records:
        """Gives the names to the trace; a header must have been there."""
        if self.dev is None:
            raise TraceError(self.path, "line 1", f"expected the header {_HEADER.decode()}[,dev]")
        self.keep(self.names)
        return np.zeros(0, RECORD)
