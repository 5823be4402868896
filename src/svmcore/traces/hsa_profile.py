"""HSA_SVM_PROFILE text: the KFD events as the ROCm runtime writes them.

Set in the environment of a program, ``HSA_SVM_PROFILE=FILE`` makes the runtime append a
line for each event: ``ROCr HMM event: NS NAME DETAIL``. Names stand for numbers, GPUs are
``GPUn(0xHANDLE)``, fault addresses are decimal bytes, spans ``[0xFIRST, 0xLAST]``.
"""

from __future__ import annotations

import re

from ..errors import TraceError
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SIZE
from .base import Summary, TextTrace, TraceKind, head_lines, register, share, shown
from .kfd_smi import Event, EventParser

__all__ = ["HsaProfileTrace"]

_CAUSES: dict[bytes, tuple[bytes, ...]] = {
    b"MIGRATE": (b"PREFETCH", b"PAGEFAULT_GPU", b"PAGEFAULT_CPU", b"TTM_EVICTION"),
    b"UNMAP": (b"MMU_NOTIFY", b"MMU_NOTIFY_MIGRATE", b"UNMAP_FROM_CPU"),
    b"QUEUE": (b"SVM", b"USERPTR", b"TTM", b"SUSPEND", b"CRIU_CHECKPOINT", b"CRIU_RESTORE"),
}
#: Event ids by the names of the runtime.
_NAMES = {
    b"MIGRATE_START": 5,
    b"MIGRATE_END": 6,
    b"PAGE_FAULT_START": 7,
    b"PAGE_FAULT_END": 8,
    b"QUEUE_EVICTION": 9,
    b"QUEUE_RESTORE": 10,
    b"UNMAP_FROM_GPU": 11,
}
_AGENT = rb"(CPU|GPU[0-9]{1,3}\(0x[0-9a-fA-F]+\))"
_SPAN = rb"\[0x([0-9a-fA-F]{1,16}), 0x([0-9a-fA-F]{1,16})\]"
_CAUSE = rb"([A-Z_]+) "
_FORMS = {
    5: re.compile(_CAUSE + _AGENT + b"->" + _AGENT + b" " + _SPAN),
    6: re.compile(_CAUSE + _AGENT + b"->" + _AGENT + b" " + _SPAN),
    7: re.compile(b"(Read|Write) " + _AGENT + b" ([0-9]{1,20})"),
    8: re.compile(b"(Map|Migration) " + _AGENT + b" ([0-9]{1,20})"),
    9: re.compile(_CAUSE + _AGENT),
    10: re.compile(_AGENT),
    11: re.compile(_CAUSE + _AGENT + b" " + _SPAN),
}
_EVENT = re.compile(rb"ROCr HMM event: ([0-9]{1,20}) ([A-Z_]+)(?: (.*))?")
_ERROR = re.compile(rb"ROCr HMM event error: .*")
_EXPECTED = "expected a line 'ROCr HMM event: NS NAME DETAIL'"
#: Bytes behind which the runtime's sizes begin again at 0.
_SIZES = 1 << 32


@register
class HsaProfileTrace(TextTrace):
    """KFD events as the ROCm runtime tells them, as records like those of ``kfd-smi``.

    What the runtime does not write is not there: processes, prefetch and preferred locations,
    the result of a migration. A restore of queues that was put off reads as one that was done.
    GPU *n* of the runtime is ``gpu<n>``.

    The runtime multiplies sizes in 32 bits, so that a span of 4 GiB or more has a wrong last
    byte. Where that lies before the first one, the span is repaired to the smallest size that
    gives it, and counted; where it does not, nothing shows that it is wrong.

    ``summary.counts``: ``restored``, ``unpaired_starts``, ``unpaired_ends``,
    ``repaired_sizes``, ``read_errors`` (lines in which the runtime says that it could not read
    events; they count as unknown).

    Source
    ------
    rocr-runtime, core/runtime/svm_profiler.cpp; format (a2) of the trace notes.
    """

    format = "hsa-svm-profile"
    description = "KFD events as the ROCm runtime writes them (HSA_SVM_PROFILE)"
    has_clock = True
    beyond_records = ("handles of GPUs",)

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Share of lines of the runtime."""
        return share(head_lines(head), (_EVENT, 1.0), (_ERROR, 0.8))

    def _parser(self, summary: Summary) -> EventParser:
        return EventParser(self.path, summary, lambda _: None, _line_events, profile=True)


def _line_events(line: bytes, number: int, path: str, summary: Summary) -> list[Event]:
    """The event of a line that the scanner left; counts it."""
    text = line.rstrip()
    if not text or text.startswith(b"#"):
        summary.comments += 1
        return []
    if _ERROR.fullmatch(text):
        summary.unknown += 1
        summary.add("read_errors")
        return []
    match = _EVENT.fullmatch(text)
    found = None if match is None else _NAMES.get(match[2])
    if match is not None and found is None:
        summary.unknown += 1
        return []
    detail = None if match is None or found is None else _FORMS[found].fullmatch(match[3] or b"")
    if match is None or found is None or detail is None:
        raise TraceError(path, f"line {number}", f"{shown(line)}: {_EXPECTED}")
    try:
        event, sound = _event(found, number, int(match[1]), detail.groups())
    except ValueError as error:
        raise TraceError(path, f"line {number}", f"{shown(line)}: {error}") from None
    if sound:
        summary.read += 1
    else:
        summary.repaired += 1
        summary.add("repaired_sizes")
    return [event]


def _event(found: int, line: int, t_ns: int, fields: tuple[bytes, ...]) -> tuple[Event, bool]:
    """The event, and whether its span stands as the runtime wrote it.

    Raises
    ------
    ValueError
        With what is wrong with a field.
    """
    if t_ns >= ADDRESS_LIMIT:
        raise ValueError("expected a time of 64 bits")
    event = Event(found, line, t_ns)
    if found == 10:
        return event._replace(gpu=_agent(fields[0])), True
    if found in (7, 8):
        addr = int(fields[2])
        if addr >= ADDRESS_LIMIT:
            raise ValueError("expected an address of 64 bits")
        flag = {b"Read": "R", b"Write": "W", b"Map": "U", b"Migration": "M"}[fields[0]]
        page = addr & ~PAGE_MASK
        return event._replace(addr=page, size=PAGE_SIZE, gpu=_agent(fields[1]), flag=flag), True
    causes = _CAUSES[b"MIGRATE" if found < 7 else b"QUEUE" if found == 9 else b"UNMAP"]
    if fields[0] not in causes:
        known = ", ".join(cause.decode() for cause in causes)
        raise ValueError(f"cause {shown(fields[0])}: expected one of {known}")
    event = event._replace(trigger=causes.index(fields[0]))
    if found == 9:
        return event._replace(gpu=_agent(fields[1])), True
    first, last = int(fields[-2], 16), int(fields[-1], 16)
    size = last + 1 - first
    sound = size > 0
    if not sound:
        size = size % _SIZES or _SIZES
    if first + size > ADDRESS_LIMIT or size == ADDRESS_LIMIT:
        raise ValueError("expected a span below 2**64 bytes that ends at 2**64 at most")
    event = event._replace(addr=first, size=size)
    if found == 11:
        return event._replace(gpu=_agent(fields[1])), sound
    return event._replace(source=_agent(fields[1]), target=_agent(fields[2])), sound


def _agent(text: bytes) -> int:
    """0 for the CPU, i + 1 for GPU i."""
    return 0 if text == b"CPU" else int(text[3 : text.index(b"(")]) + 1
