"""Access lists: ``address,size[,r|w[,processor]]``, one touch a line.

The format for anything that another tool can print. Addresses and sizes are
bytes, hex with ``0x`` or decimal; ``#`` begins a comment; there is no header
and no time. Mappings come from ``--range START,SIZE`` or else from the pages
touched.
"""

from __future__ import annotations

import re

import numpy as np

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind, processor_code, processor_name
from ._text import COMMENT, GAP, MISSING, NUMBER, OPTIONAL, LineForm
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
    table_columns,
    table_rows,
    words,
)
from .opening import Block

__all__ = ["AccessListTrace"]

_NUMBER = rb"(0[xX][0-9a-fA-F]+|[0-9]+)"
_GAP = rb"[ \t]*"
_ROW = re.compile(
    rb"^"
    + _GAP
    + _NUMBER
    + _GAP
    + rb","
    + _GAP
    + _NUMBER
    + _GAP
    + rb"(?:,"
    + _GAP
    + rb"([rRwW])"
    + _GAP
    + rb"(?:,"
    + _GAP
    + rb"([a-z0-9]+)"
    + _GAP
    + rb")?)?(?:#[^\n]*)?\r?$",
    re.MULTILINE,
)
_EXPECTED = "address,size[,r|w[,processor]]"
_ACCESS = {
    b"": int(Access.UNKNOWN),
    b"r": int(Access.READ),
    b"R": int(Access.READ),
    b"w": int(Access.WRITE),
    b"W": int(Access.WRITE),
}
_FORM = LineForm(
    *(GAP, NUMBER, GAP, b",", GAP, NUMBER, GAP, OPTIONAL, b",", GAP),
    *({text: code for text, code in _ACCESS.items() if text}, GAP, OPTIONAL, b",", GAP),
    *({processor_name(code).encode(): code for code in range(65)}, GAP, COMMENT),
)


@register
class AccessListTrace(TextTrace):
    """An access list.

    Records are of kind ACCESS at time 0. Without ``r`` or ``w`` the access is
    UNKNOWN, without a processor the processor is UNKNOWN (``--by`` decides).

    Source
    ------
    Format (k) of the trace notes; ours.
    """

    format = "access-list"
    description = "address,size[,r|w[,processor]], one touch a line, no header"

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Share of rows; a little less than sure, as two numbers can mean much."""
        return share(head_lines(head), (_ROW, 0.9))

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary)


class _Parser:
    """One pass."""

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self.processors = {b"": UNKNOWN}

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        table = table_columns(block, _FORM)
        if table is None:
            out = self._slow(block)
        else:
            self.summary.comments += table.comments
            addr, size, access, processor = table.columns
            out = np.empty(len(addr), RECORD)
            out["t_ns"] = out["dur_ns"] = out["value"] = 0
            out["addr"], out["size"] = addr, size
            out["access"] = np.where(access == MISSING, int(Access.UNKNOWN), access)
            out["proc"] = np.where(processor == MISSING, UNKNOWN, processor)
            check_spans(addr, size, table.numbers, self.path)
        out["kind"] = Kind.ACCESS
        out["peer"] = UNKNOWN
        self.summary.read += len(out)
        return out

    def _slow(self, block: Block) -> Records:
        """A block with a line of another form: the first that is wrong is named."""
        rows, numbers = table_rows(block, _ROW, self.path, self.summary, _EXPECTED)
        out = np.zeros(len(rows), RECORD)
        if rows:
            addr, size, access, processor = zip(*rows, strict=True)
            out["addr"] = words(addr, numbers, self.path, "address")
            out["size"] = words(size, numbers, self.path, "size")
            check_spans(out["addr"], out["size"], numbers, self.path)
            out["access"] = [_ACCESS[text] for text in access]
            for text in set(processor) - self.processors.keys():
                self.processors[text] = self._code(text, numbers[processor.index(text)])
            out["proc"] = [self.processors[text] for text in processor]
        return out

    def _code(self, text: bytes, number: int) -> int:
        try:
            return processor_code(text.decode())
        except ValueError:
            raise TraceError(
                self.path, f"line {number}", f"processor {shown(text)}: expected cpu or gpu0..gpu63"
            ) from None

    def end(self) -> Records:
        """Nothing is left over."""
        return np.zeros(0, RECORD)
