"""KFD SMI event text: what the AMD driver tells of faults, migrations and queues.

One line an event: the event id in hex, a space, the payload. Addresses and
sizes are in 4 KiB pages, hex; GPU ids are arbitrary hex numbers, 0 is system
memory and ffffffff undefined. Known damage is repaired: NUL bytes in a line, and
lines glued together where a newline was lost.

``MIGRATE`` records pack what the two events say into ``value``, see
:class:`MigrateValue`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..errors import TraceError
from ..records import RECORD
from ..units import ADDRESS_LIMIT, PAGE_SHIFT
from ._text import EventScanner
from .base import Records, Summary, TextTrace, TraceKind, head_lines, register, scanned, shown
from .opening import Block, Source, file_size, line_blocks

__all__ = [
    "EVENTS",
    "UNDEFINED_GPU",
    "Event",
    "EventParser",
    "KfdSmiTrace",
    "MigrateValue",
    "events",
]

#: Event names by id (include/uapi/linux/kfd_ioctl.h).
EVENTS: dict[int, str] = {
    1: "VMFAULT",
    2: "THERMAL_THROTTLE",
    3: "GPU_PRE_RESET",
    4: "GPU_POST_RESET",
    5: "MIGRATE_START",
    6: "MIGRATE_END",
    7: "PAGE_FAULT_START",
    8: "PAGE_FAULT_END",
    9: "QUEUE_EVICTION",
    10: "QUEUE_RESTORE",
    11: "UNMAP_FROM_GPU",
    12: "PROCESS_START",
    13: "PROCESS_END",
    14: "DROPPED_EVENT",
}
#: GPU id that means no GPU.
UNDEFINED_GPU = 0xFFFFFFFF
#: Ids up to this may be events of a newer driver (64 asks for all processes).
_LAST_ID = 64
_GPUS = 64
#: Migrations that may be under way at once. A start beyond that is given out
#: as a record without an end; the driver runs one migration a process and CPU.
_OPEN_MIGRATIONS = 4096
#: Triggers that fit beside the error code of a MIGRATE record (the driver has 4).
_MIGRATE_TRIGGERS = 256


class MigrateValue(NamedTuple):
    """The ``value`` of a MIGRATE record, unpacked.

    Bits 0..7 trigger; 8..23 error code without its sign; 27 no start event was
    seen; 28 no end event was seen; 29 the driver gave an error code; 30 the
    code is negative.
    """

    trigger: int
    """0 prefetch, 1 GPU page fault, 2 CPU page fault, 3 TTM eviction."""
    error: int | None = None
    """Error code (0 is success); None where the driver gives none."""
    has_start: bool = True
    """False where the start event was lost."""
    has_end: bool = True
    """False where the end event was lost; ``dur_ns`` is 0 then."""

    @classmethod
    def unpack(cls, value: int) -> MigrateValue:
        """The parts of a record's ``value``."""
        error = value >> 8 & 0xFFFF
        return cls(
            trigger=value & 0xFF,
            error=(-error if value >> 30 & 1 else error) if value >> 29 & 1 else None,
            has_start=not value >> 27 & 1,
            has_end=not value >> 28 & 1,
        )

    def pack(self) -> int:
        """The record's ``value``; an error code is cut to 16 bits."""
        value = self.trigger & 0xFF
        if self.error is not None:
            value |= min(abs(self.error), 0xFFFF) << 8 | 1 << 29 | (self.error < 0) << 30
        return value | (not self.has_start) << 27 | (not self.has_end) << 28


class Event(NamedTuple):
    """One event as the driver wrote it; what its line does not say is None."""

    id: int
    """Event id, 1..14."""
    line: int
    """Line of the file, from 1."""
    t_ns: int | None = None
    """Boot clock, ns (it stops in suspend)."""
    pid: int | None = None
    """Process."""
    addr: int | None = None
    """First byte address."""
    size: int | None = None
    """Bytes; one page for a fault."""
    gpu: int | None = None
    """GPU id as the driver prints it."""
    source: int | None = None
    """GPU id that pages leave; 0 is system memory."""
    target: int | None = None
    """GPU id that pages go to; 0 is system memory."""
    prefetch: int | None = None
    """Prefetch location of the range, None where undefined."""
    preferred: int | None = None
    """Preferred location of the range, None where undefined."""
    trigger: int | None = None
    """Why: see the trigger tables of ``kfd_ioctl.h``; its meaning depends on the event."""
    error: int | None = None
    """Result of a migration, 0 is success; None on drivers that do not say."""
    flag: str | None = None
    """``R``/``W`` of a fault, ``M``/``U`` of its end, ``R`` of a restore that was put off."""
    dropped: int | None = None
    """Events that the driver dropped."""
    text: str | None = None
    """Task name, or the payload of an event without fields of its own."""

    @property
    def name(self) -> str:
        """Name of the event."""
        return EVENTS[self.id]


class _NotAnEventError(ValueError):
    """Why a piece of text is not an event."""


_HEAD = rb"([0-9]+) -([0-9]+) "
_SPAN = rb"@([0-9a-fA-F]+)\(([0-9a-fA-F]+)\)"
_HEX = rb"([0-9a-fA-F]+)"
_FORMS: dict[int, re.Pattern[bytes]] = {
    1: re.compile(rb"([0-9a-fA-F]+):(.{0,15})"),
    5: re.compile(
        _HEAD + _SPAN + b" " + _HEX + b"->" + _HEX + b" " + _HEX + b":" + _HEX + rb" ([0-9]+)"
    ),
    6: re.compile(_HEAD + _SPAN + b" " + _HEX + b"->" + _HEX + rb" ([0-9]+)(?: (-?[0-9]+))?"),
    7: re.compile(_HEAD + _SPAN + b" ([RW])"),
    8: re.compile(_HEAD + _SPAN + b" ([MU])"),
    9: re.compile(_HEAD + _HEX + rb" ([0-9]+)"),
    10: re.compile(_HEAD + _HEX + b"(?: ([0R]))?"),
    11: re.compile(_HEAD + _SPAN + b" " + _HEX + rb" ([0-9]+)"),
    12: re.compile(rb"([0-9a-fA-F]+) (.{0,15})"),
    13: re.compile(rb"([0-9a-fA-F]+) (.{0,15})"),
    14: re.compile(_HEAD + rb"([0-9]+)"),
}
#: Event ids as printed.
_IDS: dict[bytes, int] = {b"%x" % number: number for number in range(_LAST_ID + 1)} | {
    b"%X" % number: number for number in range(_LAST_ID + 1)
}
#: Where a glued event can begin: an id and the common head, or a process event.
_HEADED = re.compile(rb"(?=[1-9a-fA-F] [0-9]+ -[0-9]+ )")
_ANY_HEAD = re.compile(rb"(?=[1-9a-fA-F] [0-9]+ -[0-9]+ |[cd] [0-9a-f]+ [^ ])")
_SURE = re.compile(
    rb"(?:5 "
    + _HEAD
    + _SPAN
    + rb" .*:.*|[678b] "
    + _HEAD
    + rb"@.*|[9ae] "
    + _HEAD
    + rb".*|1 [0-9a-f]+:.{0,15}|[cd] [0-9a-f]+ .{1,15})"
)


def _number(digits: bytes, base: int, limit: int, what: str) -> int:
    value = int(digits, base) if len(digits) <= 64 else limit
    if value >= limit:
        raise _NotAnEventError(f"{what} {shown(digits)} is out of range")
    return value


def _head(t_ns: bytes, pid: bytes) -> tuple[int, int]:
    return _number(t_ns, 10, ADDRESS_LIMIT, "time"), _number(pid, 10, 1 << 32, "process")


def _span(page: bytes, pages: bytes) -> tuple[int, int]:
    first = _number(page, 16, ADDRESS_LIMIT >> PAGE_SHIFT, "page")
    count = _number(pages, 16, ADDRESS_LIMIT >> PAGE_SHIFT, "page count")
    if first + count > ADDRESS_LIMIT >> PAGE_SHIFT:
        raise _NotAnEventError("the pages pass 2**64 bytes")
    return first << PAGE_SHIFT, count << PAGE_SHIFT


def _gpu(digits: bytes) -> int:
    return _number(digits, 16, 1 << 32, "GPU id")


def _location(digits: bytes) -> int | None:
    gpu = _gpu(digits)
    return None if gpu == UNDEFINED_GPU else gpu


def _trigger(digits: bytes, limit: int = 1 << 32) -> int:
    return _number(digits, 10, limit, "trigger")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _decode(text: bytes, line: int) -> Event | None:
    """The event of one piece of text, None for an id that is not known.

    Raises
    ------
    _NotAnEventError
        If it is not an event line.
    """
    key, _, payload = text.partition(b" ")
    number = _IDS.get(key)
    if number is None:
        raise _NotAnEventError("expected an event id in hex, a space and a payload")
    if number not in EVENTS:
        return None
    form = _FORMS.get(number)
    if form is None:
        return Event(number, line, text=_text(payload))
    match = form.fullmatch(payload)
    if match is None:
        raise _NotAnEventError(f"not the form of {EVENTS[number]}")
    return _BUILD[number](number, line, match.groups())


_Fields = tuple[bytes, ...]


def _migrate_start(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    addr, size = _span(fields[2], fields[3])
    return Event(
        number,
        line,
        t_ns,
        pid,
        addr,
        size,
        None,
        _gpu(fields[4]),
        _gpu(fields[5]),
        _location(fields[6]),
        _location(fields[7]),
        _trigger(fields[8], _MIGRATE_TRIGGERS),
    )


def _migrate_end(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    addr, size = _span(fields[2], fields[3])
    error: int | None = None
    if fields[7] is not None:
        error = _number(fields[7].lstrip(b"-"), 10, 1 << 16, "error code")
        error = -error if fields[7].startswith(b"-") else error
    return Event(
        number,
        line,
        t_ns,
        pid,
        addr,
        size,
        None,
        _gpu(fields[4]),
        _gpu(fields[5]),
        trigger=_trigger(fields[6], _MIGRATE_TRIGGERS),
        error=error,
    )


def _fault(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    addr, size = _span(fields[2], b"1")
    return Event(number, line, t_ns, pid, addr, size, _gpu(fields[3]), flag=fields[4].decode())


def _queue_evict(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    return Event(number, line, t_ns, pid, gpu=_gpu(fields[2]), trigger=_trigger(fields[3]))


def _queue_restore(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    return Event(
        number, line, t_ns, pid, gpu=_gpu(fields[2]), flag="R" if fields[3] == b"R" else None
    )


def _unmap(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    addr, size = _span(fields[2], fields[3])
    return Event(number, line, t_ns, pid, addr, size, _gpu(fields[4]), trigger=_trigger(fields[5]))


def _dropped(number: int, line: int, fields: _Fields) -> Event:
    t_ns, pid = _head(fields[0], fields[1])
    return Event(number, line, t_ns, pid, dropped=_number(fields[2], 10, 1 << 32, "count"))


def _process(number: int, line: int, fields: _Fields) -> Event:
    pid = _number(fields[0], 16, 1 << 32, "process")
    return Event(number, line, pid=pid, text=_text(fields[1]))


_BUILD: dict[int, Callable[[int, int, _Fields], Event]] = {
    1: _process,
    5: _migrate_start,
    6: _migrate_end,
    7: _fault,
    8: _fault,
    9: _queue_evict,
    10: _queue_restore,
    11: _unmap,
    12: _process,
    13: _process,
    14: _dropped,
}


def _decode_glued(text: bytes, line: int) -> list[Event] | None:
    """The events of a line that lost newlines, None where it is something else."""
    for heads in (_HEADED, _ANY_HEAD):
        cuts = [match.start() for match in heads.finditer(text) if match.start()]
        if not cuts:
            continue
        pieces = [text[i:j].rstrip() for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        try:
            found = [_decode(piece, line) for piece in pieces]
        except _NotAnEventError:
            continue
        return [event for event in found if event is not None]
    return None


def _line_events(line: bytes, number: int, path: str, summary: Summary) -> list[Event]:
    """The events of a line; counts it."""
    text = line.rstrip()
    nul = b"\0" in text
    if nul:
        text = text.replace(b"\0", b"").rstrip()
    elif not text:
        summary.comments += 1
        return []
    try:
        event = _decode(text, number)
    except _NotAnEventError as error:
        glued = _decode_glued(text, number)
        if glued is None:
            raise TraceError(
                path, f"line {number}", f"{shown(line)}: {error}: expected a KFD SMI event line"
            ) from None
        summary.repaired += 1
        summary.add("repaired_glued")
        return glued
    if event is None:
        summary.unknown += 1
        return []
    if nul:
        summary.repaired += 1
        summary.add("repaired_nul")
    else:
        summary.read += 1
    return [event]


def events(path: str | os.PathLike[str], summary: Summary | None = None) -> Iterator[Event]:
    """The events of a KFD SMI file, undigested, in file order.

    Parameters
    ----------
    path : str or PathLike
        The file; compressed ones as for :func:`~svmcore.traces.open_trace`.
    summary : Summary, optional
        Gets the line counts as they come; ``records`` is not used.

    Yields
    ------
    Event
        Unknown ids are counted and left out.

    Raises
    ------
    TraceError
        As :meth:`~svmcore.traces.Trace.chunks`.

    Complexity
    ----------
    O(bytes) time, O(1) memory.
    """
    name = os.fspath(path)
    tally = Summary() if summary is None else summary
    with Source(name, file_size(name)) as source:
        for block in line_blocks(source):
            tally.lines += block.lines
            for number, line in block.numbered():
                try:
                    found = _line_events(line, number, name, tally)
                except TraceError:
                    if not block.cut or not tally.read + tally.repaired:
                        raise
                    tally.refused += 1
                    continue
                yield from found
        tally.bytes = source.position


@register
class KfdSmiTrace(TextTrace):
    """Events of the AMD driver as records.

    ==================  ==============================================================
    event               record
    ==================  ==============================================================
    PAGE_FAULT_START    FAULT, ``proc`` the GPU, 4096 bytes, READ or WRITE
    PAGE_FAULT_END      FAULT_END, ``value`` 1 migrated, 0 page table updated only
    MIGRATE_START, END  one MIGRATE from ``proc`` to ``peer`` where the end comes,
                        time of the start, ``value`` as :class:`MigrateValue`;
                        a start or an end alone makes a record too
    QUEUE_EVICTION      QUEUE_EVICT, ``value`` the trigger
    QUEUE_RESTORE       QUEUE_RESTORE, ``value`` 1 where it was put off
    UNMAP_FROM_GPU      UNMAP_GPU, ``value`` the trigger
    DROPPED_EVENT       DROPPED, ``value`` the count
    all others          OTHER, ``value`` the event id
    ==================  ==============================================================

    GPU ids become indices in the order in which they first appear as processor
    of an event. Starts without an end by the end of the file come last. Lines
    are not sorted by time (a fault carries its interrupt's time): replay goes
    in file order. One file descriptor belongs to one GPU, so several GPUs make
    several files.

    ``summary.counts``: ``restored``, ``rescheduled``, ``dropped_events``,
    ``unpaired_starts``, ``unpaired_ends``, ``repaired_nul``, ``repaired_glued``.

    Source
    ------
    drivers/gpu/drm/amd/amdkfd/kfd_smi_events.c; cases 5, 6 and 7 of the case
    list. A migration's end page is exclusive, as the driver prints a count.
    Differs: prefetch and preferred locations, process and task name are in
    :func:`events` only.
    """

    format = "kfd-smi"
    description = "AMD KFD SMI event text (faults, migrations, queue events)"
    has_clock = True
    beyond_records = ("prefetch and preferred locations", "task names", "process ids")

    _gpu_ids: list[int] | None = None

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @property
    def gpu_ids(self) -> list[int]:
        """GPU id of each GPU index; runs a pass where none was made."""
        if self._gpu_ids is None:
            for _ in self.chunks():
                pass
        return list(self._gpu_ids or ())

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Share of lines that begin as an event does; unknown ids count little."""
        lines = head_lines(head.replace(b"\0", b""))
        if not lines:
            return 0.0
        sure = sum(1 for line in lines if _SURE.match(line))
        known = sum(1 for line in lines if line.partition(b" ")[0] in _IDS and b" " in line)
        return (0.8 * sure + 0.15 * known) / len(lines)

    def _parser(self, summary: Summary) -> EventParser:
        return EventParser(self.path, summary, self._keep)

    def _keep(self, gpu_ids: list[int]) -> None:
        self._gpu_ids = gpu_ids


class EventParser:
    """One pass over lines of events: plain ones by the compiled scanner, others by *events*.

    Parameters
    ----------
    path : str
        The file, for errors.
    summary : Summary
        Gets the counts.
    keep : callable
        Takes the GPU ids at the end.
    events : callable, optional
        ``events(line, number, path, summary)``: the events of a line that the scanner left; it
        counts the line. Those of the SMI text where left out.
    profile : bool, default False
        The lines are those of the ROCm runtime, whose GPUs are numbered.
    """

    def __init__(
        self,
        path: str,
        summary: Summary,
        keep: Callable[[list[int]], None],
        events: Callable[[bytes, int, str, Summary], list[Event]] = _line_events,
        *,
        profile: bool = False,
    ) -> None:
        self.path = path
        self.summary = summary
        self.keep = keep
        self.events = events
        self.profile = profile
        self.scanner = EventScanner(_OPEN_MIGRATIONS, profile)

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        return scanned(block, self._scan, self._odd)

    def end(self) -> Records:
        """The starts whose end never came; gives the GPU ids to the trace."""
        scanner = self.scanner
        self.keep(scanner.gpu_ids)
        out = np.empty(_OPEN_MIGRATIONS, RECORD)
        left = out[: scanner.end(out)]
        for name in ("restored", "rescheduled", "unpaired_starts", "unpaired_ends"):
            if number := getattr(scanner, name):
                self.summary.add(name, number)
        if scanner.process_count > 1:
            self.summary.notes.append(
                f"{scanner.process_count} processes: equal addresses of different processes are "
                "taken for the same page"
            )
        return left

    def _scan(self, data: bytes, at: int, out: Records) -> tuple[int, int, int]:
        rows, lines, at = self.scanner.scan(data, at, out, self.profile)
        self.summary.read += lines
        return rows, lines, at

    def _odd(self, line: bytes, number: int) -> Records:
        found = self.events(line, number, self.path, self.summary)
        out = np.empty(len(found), RECORD)
        rows = 0
        for event in found:
            for gpu in (event.gpu, event.source, event.target):
                if gpu is not None and self.scanner.code_of(gpu) < 0:
                    raise TraceError(
                        self.path,
                        f"line {number}",
                        f"GPU id {gpu:x}: expected at most {_GPUS} GPUs",
                    )
            rows += self.scanner.add(
                out[rows:],
                event.id,
                event.t_ns or 0,
                event.pid,
                event.addr or 0,
                event.size or 0,
                event.gpu,
                event.source or 0,
                event.target or 0,
                event.trigger or 0,
                event.error,
                _carried(event),
            )
        return out[:rows]


def _carried(event: Event) -> int:
    """What the record of an event carries beside its span."""
    match event.id:
        case 7:
            return int(event.flag == "W")
        case 8:
            return int(event.flag == "M")
        case 10:
            return int(event.flag == "R")
        case 14:
            return event.dropped or 0
    return event.trigger or 0
