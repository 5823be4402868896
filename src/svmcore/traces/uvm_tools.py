"""The event queue of the nvidia-uvm tools interface, saved as a bare array of entries.

Entries have 64 bytes (V1) or 72 bytes (V2), little-endian; byte 0 is the event
type. The layout follows the driver's own structures; there is no header, so the
two formats are told apart by what the entries say.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..errors import TraceError
from ..records import RECORD
from ._uvm_tools import CLOCK_BACK, COUNTS, PROBLEMS, UNKNOWN_ACCESS, decode
from .base import Records, Summary, TraceKind, register
from .fixed import Entries, FixedTrace

__all__ = ["EVENTS", "UvmToolsV1Trace", "UvmToolsV2Trace"]

#: Event names by type.
EVENTS: dict[int, str] = {
    1: "cpu_fault",
    2: "migration",
    3: "gpu_fault",
    4: "fault_replay",
    5: "fault_buffer_overflow",
    6: "fatal_fault",
    7: "read_duplicate",
    8: "read_duplicate_invalidate",
    9: "page_size_change",
    10: "thrashing_detected",
    11: "throttling_start",
    12: "throttling_end",
    13: "map_remote",
    14: "eviction",
}
#: Those whose fields are known.
_PLACED = (1, 2, 3, 14)
_OVERFLOW = 5
#: Entries of a head that is not the whole file: its last one may be cut off.
_MANY = 900


class _ToolsTrace(FixedTrace):
    """Either layout."""

    beyond_records = (
        "clients and times of the GPU, fault types that are not fatal",
        "process and thread ids",
        "range groups",
    )

    version: ClassVar[int]

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Surer the more entries make sense; never quite sure, as nothing names the format."""
        whole, rest = divmod(len(head), cls.entry.itemsize)
        counts = np.zeros(COUNTS, "<u8")
        done, rows, _, _ = decode(head, cls.version, np.empty(whole, RECORD), 0, counts)
        placed = int(counts[list(_PLACED)].sum())
        # An event of a newer driver is read past, but is no sign of a queue.
        if done < whole or not placed or rows < whole - int(counts[0]):
            return 0.0
        sure = 0.1 + 0.2 * min(4, placed)
        return sure / 2 if rest and whole < _MANY else sure

    def _decoder(self, summary: Summary) -> _Decoder:
        return _Decoder(self.path, summary, self.version)


@register
class UvmToolsV1Trace(_ToolsTrace):
    """Entries of 64 bytes.

    ==================  ==============================================================
    event               record
    ==================  ==============================================================
    1 CPU fault         FAULT by the CPU, one page
    2 migration         MIGRATE from ``proc`` to ``peer``, time and duration by the CPU's
                        clock, ``value`` as :func:`.nvidia.migrate_values`
    3 GPU fault         FAULT, one page, at the CPU's time, ``value`` the batch, ``peer``
                        the fault type where it is fatal
    14 eviction         EVICT of the address that goes out
    all others          OTHER, ``value`` the event type; the notes give no place of their
                        fields, so they have no address and the time of the event before
    ==================  ==============================================================

    Processor 0 is the CPU (255 in records of older drivers), *i* is GPU *i* - 1.
    A slot of the ring that was never written, all zero, and other types count as
    unknown.

    ``summary.counts``: events of each other type by name, ``unknown_access``,
    ``clock_back`` (a migration that ends before it begins: repaired, duration 0).

    Source
    ------
    kernel-open/nvidia-uvm/uvm_types.h (driver 595.45.04) by format (f) of the
    trace notes.
    """

    format = "uvm-tools-v1"
    description = "event queue of the nvidia-uvm tools, entries of 64 bytes"
    version = 1
    entry: ClassVar[np.dtype[Any]] = np.dtype("V64")


@register
class UvmToolsV2Trace(_ToolsTrace):
    """Entries of 72 bytes; records as of :class:`UvmToolsV1Trace`."""

    format = "uvm-tools-v2"
    description = "event queue of the nvidia-uvm tools, entries of 72 bytes"
    version = 2
    entry: ClassVar[np.dtype[Any]] = np.dtype("V72")


class _Decoder:
    """One pass.

    Invariant: ``t_ns`` is the time of the last event that has one, 0 before the first.
    """

    def __init__(self, path: str, summary: Summary, version: int) -> None:
        self.path = path
        self.summary = summary
        self.version = version
        self.t_ns = 0
        self.counts = np.zeros(COUNTS, "<u8")

    def feed(self, entries: Entries, first: int) -> Records:
        """Records of entries."""
        out = np.empty(len(entries), RECORD)
        before = int(self.counts[CLOCK_BACK])
        raw = entries.view("u1")
        done, rows, self.t_ns, problem = decode(raw, self.version, out, self.t_ns, self.counts)
        if not problem and not first and raw[0] > max(EVENTS):
            # Unknown types are events of another driver, but not where the file begins.
            done, problem = 0, len(PROBLEMS) - 1
        if problem:
            at = raw[done * entries.itemsize]
            raise TraceError(
                self.path,
                f"entry {first + done}",
                f"{EVENTS.get(int(at), f'event type {at}')} that is none: expected "
                f"{PROBLEMS[problem]} in entries of {entries.itemsize} bytes, little-endian",
            )
        repaired = int(self.counts[CLOCK_BACK]) - before
        self.summary.repaired += repaired
        self.summary.read += rows - repaired
        self.summary.unknown += done - rows
        return out[:rows]

    def end(self) -> None:
        """Counts and notes; refuses a file without any event."""
        counts = self.counts.tolist()
        if not any(counts[number] for number in EVENTS):
            raise TraceError(self.path, "", "no event in it: expected an event queue")
        named = {name: counts[number] for number, name in EVENTS.items() if number not in _PLACED}
        named |= {"clock_back": counts[CLOCK_BACK], "unknown_access": counts[UNKNOWN_ACCESS]}
        for name, number in named.items():
            if number:
                self.summary.add(name, number)
        if lost := counts[_OVERFLOW]:
            self.summary.notes.append(
                f"overflows of the fault buffer: {lost:,}; faults are missing here"
            )
