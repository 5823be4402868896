"""Page faults of the CPU from ftrace's text (``trace``, ``trace_pipe``, ``trace-cmd report``).

``TASK-PID [CPU] FLAGS TIME: page_fault_user: address=... ip=... error_code=...``;
the flags are missing in the output of trace-cmd.
"""

from __future__ import annotations

import re

from ._text import DEC, GAP, HEX, TEXT, LineForm
from .base import Records, Summary, register
from .opening import Block
from .perf_script import FAST_PAYLOAD, MIGRATED, PAYLOAD, TIME, CpuFaultTrace, FastForm, FaultParser

__all__ = ["FtraceTrace"]

_HEAD = (
    rb"[ \t]*[^ \t].{0,31}-[0-9]{1,19}[ \t]+(?:\([ \t]*[-0-9]+\)[ \t]+)?"
    rb"\[[0-9]{1,19}\][ \t]+(?:[^ \t]+[ \t]+)?"
) + TIME
_FAULT = re.compile(_HEAD + rb"page_fault_(?:user|kernel):[ \t]+" + PAYLOAD)
_MIGRATE = re.compile(_HEAD + rb"mm_migrate_pages:[ \t]+" + MIGRATED)
#: Other events; one of the names above is a line of ours that is damaged.
_OTHER = re.compile(_HEAD + rb"(?!page_fault_|mm_migrate_pages)[^ \t].*")
_LOST = re.compile(rb"CPU:[0-9]+ \[LOST ([0-9]{1,9}) EVENTS\]")
_FAST = FastForm(
    LineForm(
        *(GAP, TEXT, b"-", DEC, b" ", GAP, b"[", DEC, b"] ", GAP, TEXT, b" ", GAP),
        *(DEC, b".", TEXT, b": page_fault_", {b"user": 0, b"kernel": 1}, b": address=0x", HEX),
        *FAST_PAYLOAD,
        blanks=True,
    ),
    *(4, 5, 7, 9),
)
_NOTE = re.compile(rb"(?:#.*|cpus=[0-9]+|CPU [0-9]+ is empty|version = [0-9]+)?")
_EXPECTED = "'TASK-PID [CPU] FLAGS TIME: page_fault_user: address=... ip=... error_code=...'"


@register
class FtraceTrace(CpuFaultTrace):
    """Page faults of the CPU, records as of the tracepoints in :mod:`.perf_script`.

    ``CPU:n [LOST n EVENTS]`` becomes a DROPPED record at the time of the event
    before it. Other events are unknown; lines that begin with ``#`` are comments.

    ``summary.counts``: as of ``perf-script``.

    Source
    ------
    Format (g) of the trace notes.
    """

    format = "ftrace"
    description = "page faults of the CPU in ftrace's text"

    weights = ((_FAULT, 0.95), (_MIGRATE, 0.9), (_LOST, 0.9), (_OTHER, 0.15))

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary)


class _Parser(FaultParser):
    """One pass."""

    forms = (_FAST,)
    expected = _EXPECTED

    def _fast(self, block: Block, kind: FastForm) -> Records | None:
        # A tab ends the flags too, which the form does not know.
        return None if b"\t" in block.data else super()._fast(block, kind)

    def line(self, text: bytes) -> bool:
        """One line."""
        if match := _FAULT.fullmatch(text):
            seconds, fraction, *rest = match.groups()
            self.tracepoint(self.time(seconds, fraction), *rest)
        elif match := _MIGRATE.fullmatch(text):
            seconds, fraction, *rest = match.groups()
            self.migrated(self.time(seconds, fraction), *rest)
        elif match := _LOST.fullmatch(text):
            self.lost(self.last, int(match[1]))
        elif _NOTE.fullmatch(text):
            self.summary.comments += 1
        elif _OTHER.fullmatch(text):
            self.summary.unknown += 1
        else:
            return False
        return True
