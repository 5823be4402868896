"""The event queue of the nvidia-uvm tools interface, saved as a bare array of entries.

Entries have 64 bytes (V1) or 72 bytes (V2), little-endian; byte 0 is the event
type. The layout follows the driver's own structures; there is no header, so the
two formats are told apart by what the entries say.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import CPU, RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SIZE
from .base import Records, Summary, TraceKind, register
from .fixed import Entries, FixedTrace
from .nvidia import ACCESS, CAUSES, migrate_values

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
_CPU_FAULT, _MIGRATION, _GPU_FAULT, _OVERFLOW, _EVICTION = 1, 2, 3, 5, 14
_PLACED = (_CPU_FAULT, _MIGRATION, _GPU_FAULT, _EVICTION)
_KNOWN = np.zeros(256, bool)
_KNOWN[list(EVENTS)] = True
#: A span or a time from here on is none: the bytes are in another order.
_SPAN_LIMIT, _TIME_LIMIT = 1 << 48, 1 << 63
_GPUS = 64
#: CPU in records of older drivers.
_OLD_CPU = 0xFF

_Words = npt.NDArray[np.uint64]


class _Layout(NamedTuple):
    """Where the fields of an entry stand."""

    size: int
    fault_access: int
    fault_gpu: int
    form: str
    src: int
    dst: int
    moved: int


_V1 = _Layout(64, 2, 3, "u1", 2, 3, 8)
_V2 = _Layout(72, 37, 2, "<u2", 4, 6, 16)


def _entry(layout: _Layout) -> np.dtype[Any]:
    """An entry with every field that is read; fields of different events overlap."""
    fields = {
        "type": ("u1", 0),
        "code": ("u1", 1),  # fault type, cause, access of a CPU fault, source of an eviction
        "evicted_to": ("u1", 2),
        "fault_access": ("u1", layout.fault_access),
        "fault_gpu": (layout.form, layout.fault_gpu),
        "src": (layout.form, layout.src),
        "dst": (layout.form, layout.dst),
        "fault_addr": ("<u8", 8),
        "fault_time": ("<u8", 16),
        "batch": ("<u4", 32),
        "moved_addr": ("<u8", layout.moved),
        "moved_size": ("<u8", layout.moved + 8),
        "moved_begin": ("<u8", layout.moved + 16),
        "moved_end": ("<u8", layout.moved + 24),
        "evicted_size": ("<u8", 24),
        "evicted_time": ("<u8", 32),
    }
    return np.dtype(
        {
            "names": list(fields),
            "formats": [form for form, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": layout.size,
        }
    )


class _ToolsTrace(FixedTrace):
    """Either layout."""

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Surer the more entries make sense; never quite sure, as nothing names the format."""
        whole, rest = divmod(len(head), cls.entry.itemsize)
        entries = np.frombuffer(head, cls.entry, whole)
        if whole:
            # Slots of the ring that were never written tell nothing.
            entries = entries[_words(entries).any(axis=1)]
        if not len(entries) or not _KNOWN[entries["type"]].all():
            return 0.0
        placed = np.isin(entries["type"], _PLACED)
        for kind in _PLACED:
            if not _Fields(entries[entries["type"] == kind], kind).sound().all():
                return 0.0
        sure = 0.5 + 0.4 * min(1.0, int(np.count_nonzero(placed)) / 4)
        # A short head is the whole file, and its last entry is cut off.
        cut = rest and len(head) < cls.entry.itemsize * 900
        return 0.0 if not placed.any() else sure / 2 if cut else sure

    def _decoder(self, summary: Summary) -> _Decoder:
        return _Decoder(self.path, summary)


@register
class UvmToolsV1Trace(_ToolsTrace):
    """Entries of 64 bytes.

    ==================  ==============================================================
    event               record
    ==================  ==============================================================
    1 CPU fault         FAULT by the CPU, one page
    2 migration         MIGRATE from ``proc`` to ``peer``, time and duration by the CPU's
                        clock, ``value`` as :func:`.nvidia.migrate_values`
    3 GPU fault         FAULT, one page, at the CPU's time, ``value`` the batch
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
    entry: ClassVar[np.dtype[Any]] = _entry(_V1)


@register
class UvmToolsV2Trace(_ToolsTrace):
    """Entries of 72 bytes; records as of :class:`UvmToolsV1Trace`."""

    format = "uvm-tools-v2"
    description = "event queue of the nvidia-uvm tools, entries of 72 bytes"
    entry: ClassVar[np.dtype[Any]] = _entry(_V2)


class _Fields:
    """Fields of entries of one type, as arrays."""

    def __init__(self, entries: Entries, kind: int) -> None:
        n = len(entries)
        self.value = np.zeros(n, "<u4")
        self.end: _Words | None = None
        self.access = np.full(n, Access.UNKNOWN, "u1")
        self.peer: npt.NDArray[Any] = np.full(n, UNKNOWN, "<u2")
        self.proc: npt.NDArray[Any] = np.zeros(n, "<u2")
        self.code_ok = np.ones(n, bool)
        if kind == _MIGRATION:
            self.proc, self.peer = _place(entries["src"]), _place(entries["dst"])
            self.addr, self.size = entries["moved_addr"], entries["moved_size"]
            self.time, self.end = entries["moved_begin"], entries["moved_end"]
            self.code_ok = entries["code"] < len(CAUSES)
            self.value = migrate_values(entries["code"], self.peer)
        elif kind == _EVICTION:
            self.proc, self.peer = _place(entries["code"]), _place(entries["evicted_to"])
            self.addr, self.size = entries["fault_addr"], entries["evicted_size"]
            self.time = entries["evicted_time"]
        else:
            self.addr, self.size = entries["fault_addr"], np.full(n, PAGE_SIZE, "<u8")
            self.addr = self.addr & np.uint64(ADDRESS_LIMIT - 1 - PAGE_MASK)
            self.time = entries["fault_time"]
            if kind == _GPU_FAULT:
                self.proc = _place(entries["fault_gpu"])
                self.access = ACCESS[entries["fault_access"]]
                self.code_ok = entries["fault_access"] < 5
                self.value = entries["batch"]
            else:
                self.access = ACCESS[entries["code"]]
                self.code_ok = entries["code"] < 5

    def checks(self) -> list[tuple[npt.NDArray[np.bool_], str]]:
        """Tests of the entries, each with what it expects."""
        found = [
            (self.code_ok, "a known access or cause"),
            ((self.proc <= _GPUS), f"the CPU or one of {_GPUS} GPUs"),
            ((self.peer <= _GPUS) | (self.peer == UNKNOWN), f"the CPU or one of {_GPUS} GPUs"),
            ((self.size > 0) & (self.size < _SPAN_LIMIT), "a size of 1 to 2**48 bytes"),
            (self.addr + (self.size - np.uint64(1)) >= self.addr, "an end of at most 2**64"),
            (self.time < _TIME_LIMIT, "a time below 2**63 ns"),
        ]
        if self.end is not None:
            found.append((self.end < _TIME_LIMIT, "a time below 2**63 ns"))
        return found

    def sound(self) -> npt.NDArray[np.bool_]:
        """Which entries make sense."""
        every: npt.NDArray[np.bool_] = np.logical_and.reduce([good for good, _ in self.checks()])
        return every


def _words(entries: Entries) -> _Words:
    """Entries as words, one row each."""
    return entries.view("<u8").reshape(len(entries), -1)


def _taken(entries: Entries, at: npt.NDArray[np.intp]) -> Entries:
    """Entries *at* some places, copied as words: a structured copy goes field by field."""
    taken: Entries = np.take(_words(entries), at, axis=0).view(entries.dtype)[:, 0]
    return taken


def _place(index: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Record codes of processor numbers: the same, but for the CPU of older drivers."""
    if index.dtype == np.uint8 and (index == _OLD_CPU).any():
        return np.where(index == _OLD_CPU, CPU, index)
    return index


_KINDS = {
    _CPU_FAULT: Kind.FAULT,
    _MIGRATION: Kind.MIGRATE,
    _GPU_FAULT: Kind.FAULT,
    _EVICTION: Kind.EVICT,
}


class _Decoder:
    """One pass.

    Invariant: ``t_ns`` is the time of the last event that has one, 0 before the first.
    """

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self.t_ns = 0

    def feed(self, entries: Entries, first: int) -> Records:
        """Records of entries."""
        types = np.ascontiguousarray(entries["type"])
        self._check_empty(entries, types, first)
        counts = np.bincount(types, minlength=256)
        out = np.zeros(len(entries), RECORD)
        timed = np.zeros(len(entries), bool)
        for kind in _PLACED:
            if counts[kind]:
                at = np.flatnonzero(types == kind)
                self._fill(out, _taken(entries, at), at, kind, first)
                timed[at] = True
        known = _KNOWN[types]
        if not timed.all():
            self._others(out, types, timed, known)
        self._count(counts)
        if len(out):
            self.t_ns = int(out["t_ns"][-1])
        return out if known.all() else out[known]

    def _check_empty(self, entries: Entries, types: npt.NDArray[np.uint8], first: int) -> None:
        """Type 0 is a slot that was never written; with content it is no entry at all.

        Other numbers that are not known are events of another driver, but not where
        the file begins.
        """
        bad = np.flatnonzero(types == 0)
        if len(bad):
            # Words, as the bytes between the fields count too.
            bad = bad[_words(entries)[bad].any(axis=1)]
        if not len(bad) and not first and not _KNOWN[types[0]] and types[0]:
            bad = np.zeros(1, np.intp)
        if len(bad):
            at = int(bad[0])
            raise TraceError(
                self.path,
                f"entry {first + at}",
                f"event type {types[at]}: expected one of {min(EVENTS)} to {max(EVENTS)} in "
                f"entries of {entries.itemsize} bytes",
            )

    def _fill(
        self, out: Records, entries: Entries, at: npt.NDArray[np.intp], kind: int, first: int
    ) -> None:
        fields = _Fields(entries, kind)
        for good, expected in fields.checks():
            if not good.all():
                raise TraceError(
                    self.path,
                    f"entry {first + int(at[np.argmin(good)])}",
                    f"{EVENTS[kind]} that is none: expected {expected} (little-endian)",
                )
        out["t_ns"][at], out["addr"][at], out["size"][at] = fields.time, fields.addr, fields.size
        out["value"][at], out["kind"][at] = fields.value, _KINDS[kind]
        out["proc"][at], out["access"][at], out["peer"][at] = (
            fields.proc,
            fields.access,
            fields.peer,
        )
        back = 0
        if fields.end is not None:
            late = fields.end >= fields.time
            out["dur_ns"][at] = np.where(late, fields.end - fields.time, 0)
            back = len(at) - int(np.count_nonzero(late))
            if back:
                self.summary.add("clock_back", back)
        elif kind != _EVICTION:
            unknown = int(np.count_nonzero(fields.access == Access.UNKNOWN))
            if unknown:
                self.summary.add("unknown_access", unknown)
        self.summary.repaired += back
        self.summary.read += len(at) - back

    def _others(
        self,
        out: Records,
        types: npt.NDArray[np.uint8],
        timed: npt.NDArray[np.bool_],
        known: npt.NDArray[np.bool_],
    ) -> None:
        """Events without a place: the time of the last one that has it."""
        last = np.maximum.accumulate(np.where(timed, np.arange(len(out)), -1))
        times = np.where(last >= 0, out["t_ns"][np.maximum(last, 0)], np.uint64(self.t_ns))
        at = np.flatnonzero(~timed)
        out["t_ns"][at] = times[at]
        out["value"][at] = types[at]
        out["kind"][at] = Kind.OTHER
        out["proc"][at] = out["peer"][at] = UNKNOWN
        out["access"][at] = Access.UNKNOWN
        self.summary.read += int(np.count_nonzero(known & ~timed))
        self.summary.unknown += int(np.count_nonzero(~known))

    def _count(self, counts: npt.NDArray[np.intp]) -> None:
        for number, name in EVENTS.items():
            if number not in _PLACED and counts[number]:
                self.summary.add(name, int(counts[number]))

    def end(self) -> None:
        """Notes where the driver lost faults; refuses a file without any event."""
        if not self.summary.read + self.summary.repaired:
            raise TraceError(self.path, "", "no event in it: expected an event queue")
        if lost := self.summary.counts.get(EVENTS[_OVERFLOW]):
            self.summary.notes.append(
                f"overflows of the fault buffer: {lost:,}; faults are missing here"
            )
