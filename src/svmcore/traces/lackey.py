"""valgrind's lackey (``--trace-mem=yes``): every instruction, load, store and modify of a program.

``I  ADDR,SIZE``, `` L ADDR,SIZE``, `` S ADDR,SIZE``, `` M ADDR,SIZE``: address in hex
without ``0x``, size in decimal bytes, mixed with valgrind's own lines
(``==PID== ...``). There is no time, no thread and no processor: the CPU runs it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import CPU, RECORD, UNKNOWN, Kind
from ..units import ADDRESS_LIMIT
from ._text import DEC, GAP, HEX, LineForm
from .base import (
    Records,
    Summary,
    TextTrace,
    TraceKind,
    check_spans,
    head_lines,
    register,
    share,
    shown,
)
from .opening import Block

__all__ = ["LackeyTrace"]

#: Letters as numbers: a store and what is behind it write.
_INSTRUCTION, _LOAD, _STORE, _MODIFY = 0, 1, 2, 3
_FORM = LineForm(
    GAP, {b"I": _INSTRUCTION, b"L": _LOAD, b"S": _STORE, b"M": _MODIFY}, GAP, HEX, b",", DEC
)
_TOUCH = re.compile(rb"[ \t]*[ILSM][ \t]+[0-9a-fA-F]{1,16},[0-9]{1,19}")
_NOTE = re.compile(rb"(==|--|\*\*)[0-9]+\1.*")
_Words = npt.NDArray[np.uint64]
_EXPECTED = "' L|S|M ADDR,SIZE', 'I  ADDR,SIZE' or '==PID== text'"


@register
class LackeyTrace(TextTrace):
    """What a program touched under valgrind's lackey.

    Records are of kind ACCESS by the CPU at time 0: an instruction (``I``) and a
    load are READ, a store and a modify, which reads and writes, are WRITE.
    ``value`` is 1 for an instruction, else 0. Lines of valgrind itself count as
    comments.

    Source
    ------
    Format (h) of the trace notes.
    """

    format = "lackey"
    description = "valgrind --tool=lackey --trace-mem=yes: touches of a program on the CPU"
    beyond_records = ("whether a write reads first",)

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Share of touches and of valgrind's own lines, which count little without touches."""
        lines = head_lines(head)
        touched = share(lines, (_TOUCH, 0.95))
        return touched + share(lines, (_NOTE, 0.95 if touched else 0.2))

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary)


class _Parser:
    """One pass."""

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        data = block.data
        columns = np.empty((_FORM.columns, block.lines), "<u8")
        rows = notes = at = 0
        while rows + notes < block.lines:
            more, at = _FORM.scan(data, at, columns, rows)
            rows += more
            if rows + notes < block.lines:
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                line = data[at:end]
                if line.strip() and not _NOTE.match(line):
                    raise TraceError(
                        self.path,
                        f"line {block.first + rows + notes}",
                        f"{shown(line)}: expected {_EXPECTED}",
                    )
                notes += 1
                at = end + 1
        letter, addr, size = columns[:, :rows]
        self._check(addr, size, block, notes)
        out = np.empty(rows, RECORD)
        out["t_ns"] = out["dur_ns"] = 0
        out["addr"], out["size"] = addr, size
        out["value"] = letter == _INSTRUCTION
        out["access"] = letter >= _STORE
        out["kind"], out["proc"], out["peer"] = Kind.ACCESS, CPU, UNKNOWN
        self.summary.read += rows
        self.summary.comments += notes
        return out

    def _check(self, addr: _Words, size: _Words, block: Block, notes: int) -> None:
        """Refuse touches of no byte and spans that pass 2**64."""
        if not len(addr) or (
            int(size.min()) and int(addr.max()) + int(size.max()) <= ADDRESS_LIMIT
        ):
            return
        numbers: Sequence[int] = range(block.first, block.first + block.lines)
        if notes:
            numbers = [n for n, line in block.numbered() if _TOUCH.match(line)]
        check_spans(addr, size, numbers, self.path)

    def end(self) -> Records:
        """Nothing is left over."""
        return np.zeros(0, RECORD)
