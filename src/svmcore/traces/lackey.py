"""valgrind's lackey (``--trace-mem=yes``): every instruction, load, store and modify of a program.

``I  ADDR,SIZE``, `` L ADDR,SIZE``, `` S ADDR,SIZE``, `` M ADDR,SIZE``: address in hex
without ``0x``, size in decimal bytes, mixed with valgrind's own lines
(``==PID== ...``). There is no time, no thread and no processor: the CPU runs it.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import TraceError
from ..records import RECORD
from ._lackey import scan
from .base import Records, Summary, TextTrace, TraceKind, head_lines, register, share, shown
from .opening import Block

__all__ = ["LackeyTrace"]

_TOUCH = re.compile(rb" *[ILSM] +[0-9a-fA-F]{1,16},[0-9]{1,18}")
_NOTE = re.compile(rb"(==|--|\*\*)[0-9]+\1.*")
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
        out = np.empty(block.lines, RECORD)
        rows, lines, at = scan(block.data, out) if block.data else (0, block.lines, -1)
        if at >= 0:
            line = block.data[at:].partition(b"\n")[0]
            raise TraceError(
                self.path, f"line {block.first + lines}", f"{shown(line)}: expected {_EXPECTED}"
            )
        self.summary.read += rows
        self.summary.comments += lines - rows
        return out[:rows]

    def end(self) -> Records:
        """Nothing is left over."""
        return np.zeros(0, RECORD)
