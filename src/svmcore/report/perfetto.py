"""A timeline of records for the Chrome and Perfetto trace viewers.

The JSON form of trace events, which both read: a track for each processor with its touches,
faults from start to end, migrations by direction, queues that stand still, and counters of
the bytes moved. It is written line by line, in memory that does not grow with the trace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError
from ..records import CPU, RECORD, UNKNOWN, Access, Kind, processor_name
from ..traces.kfd_smi import MigrateValue
from ..traces.writers import whole_file
from ..units import PAGE_SIZE

__all__ = ["TELLS", "write_perfetto"]

#: Kinds that have a place on a timeline; the others are left out and counted.
TELLS = frozenset(Kind) - {Kind.MAP, Kind.UNMAP, Kind.ADVISE, Kind.PREFETCH, Kind.OTHER}
_TRIGGERS = ("prefetch", "GPU fault", "CPU fault", "eviction")
_REMOTE = {2: "thrashing", 3: "policy", 5: "eviction"}
_FATAL = {1: "address", 2: "permission", 3: "fault type", 4: "out of memory", 5: "internal error"}
#: Tracks: one process of the viewer, a thread a processor.
_PROCESS = 1
_Records = npt.NDArray[np.void]


def write_perfetto(
    path: str | os.PathLike[str],
    arrays: Iterable[_Records],
    names: Mapping[int, str] | None = None,
) -> dict[str, int]:
    """Write records as a timeline.

    Parameters
    ----------
    path : str or PathLike
        The file; complete under its name or not there.
    arrays : iterable of ndarray of RECORD
        In order. Times are those of the records; the viewer shows them from the first on.
    names : mapping of int to str, optional
        Names of ACCESS records by their ``value``.

    Returns
    -------
    dict of str to int
        Records by kind that have no place on a timeline.

    Raises
    ------
    TraceError
        If the file cannot be written.
    InvalidArgumentError
        If an array has another dtype.

    Complexity
    ----------
    O(records) time, O(chunk) memory.
    """
    line = _Line(names or {})
    left_out: dict[str, int] = {}
    with whole_file(os.fspath(path)) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        for text in _tracks():
            file.write(text.encode() + b",\n")
        for array in arrays:
            if array.dtype != RECORD:
                raise InvalidArgumentError(f"dtype {array.dtype}: expected RECORD")
            for row in array.tolist():
                if row[5] not in TELLS:
                    kind = Kind(row[5]).name.lower()
                    left_out[kind] = left_out.get(kind, 0) + 1
                    continue
                file.writelines(text.encode() + b",\n" for text in line.of(row))
        # The list ends with an element, as JSON has no comma before a bracket.
        file.write(
            _text({"ph": "M", "pid": _PROCESS, "name": "process_labels", "args": {}}).encode()
        )
        file.write(b"\n]}\n")
    return left_out


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _tracks() -> Iterator[str]:
    yield _text(
        {
            "ph": "M",
            "pid": _PROCESS,
            "name": "process_name",
            "args": {"name": "shared virtual memory"},
        }
    )
    for code in (*range(65), UNKNOWN):
        yield _text(
            {
                "ph": "M",
                "pid": _PROCESS,
                "tid": code,
                "name": "thread_name",
                "args": {"name": processor_name(code)},
            }
        )


class _Line:
    """Events of the viewer for one record after the other.

    Invariant: ``moved`` are the bytes moved so far, to devices and to the host.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self.moved = {"to devices": 0, "to the host": 0}

    def of(self, row: tuple[int, ...]) -> Iterator[str]:
        """Events of a record, its fields in order."""
        t_ns, addr, size, dur_ns, value, kind, proc, access, _ = row
        place = {"addr": f"{addr:#x}", "bytes": size}
        match kind:
            case Kind.ACCESS:
                name = self.names.get(value, Access(access).name.lower())
                yield _event("X", t_ns, proc, name, dur_ns, place)
            case Kind.FAULT:
                how = "write" if access in (Access.WRITE, Access.ATOMIC) else "read"
                told = {**place, "access": how}
                yield _async("b", t_ns, proc, "fault", f"{proc}:{addr:#x}", told)
            case Kind.FAULT_END:
                told = {"served by": "migration" if value else "mapping"}
                yield _async("e", t_ns, proc, "fault", f"{proc}:{addr:#x}", told)
            case Kind.MIGRATE:
                yield from self._migration(row)
            case Kind.EVICT:
                yield _event("X", t_ns, proc, "evicted", dur_ns, place)
            case Kind.UNMAP_GPU:
                yield _event("i", t_ns, proc, f"unmapped, trigger {value}", 0, place)
            case Kind.QUEUE_EVICT:
                told = {"trigger": value}
                yield _async("b", t_ns, proc, "queues stopped", f"queues {proc}", told)
            case Kind.QUEUE_RESTORE:
                if value:
                    yield _event("i", t_ns, proc, "restore put off", 0, {})
                else:
                    yield _async("e", t_ns, proc, "queues stopped", f"queues {proc}", {})
            case Kind.BATCH:
                yield _event("X", t_ns, proc, "batch ends" if value else "batch", dur_ns, {})
            case Kind.REMOTE:
                why = _REMOTE.get(value, f"cause {value}")
                told = {**place, "where": processor_name(row[8]), "why": why}
                yield _event("i", t_ns, proc, "mapped remotely", 0, told)
            case Kind.DUPLICATE:
                told = {**place, "from": processor_name(proc), "to": processor_name(row[8])}
                yield _event("X", t_ns, row[8], "copy for reading", dur_ns, told)
            case Kind.THRASHING if value == 1:
                yield _event("X", t_ns, proc, "throttled", dur_ns, place)
            case Kind.THRASHING:
                told = {**place} if value != 2 else {**place, "where": processor_name(row[8])}
                name = {0: "thrashing", 2: "pinned", 3: "released"}.get(value, f"state {value}")
                yield _event("i", t_ns, proc, name, 0, told)
            case Kind.CANCEL:
                why = _FATAL.get(value, f"reason {value}")
                yield _event("i", t_ns, proc, f"fault cancelled, {why}", 0, place)
                for page in range(addr, addr + size, PAGE_SIZE):
                    told = {"cancelled": why}
                    yield _async("e", t_ns, proc, "fault", f"{proc}:{page:#x}", told)
            case Kind.DROPPED:
                yield _event("i", t_ns, proc, f"{value} events lost", 0, {})

    def _migration(self, row: tuple[int, ...]) -> Iterator[str]:
        t_ns, addr, size, dur_ns, packed, _, proc, _, peer = row
        value = MigrateValue.unpack(packed)
        known = value.trigger < len(_TRIGGERS)
        why = _TRIGGERS[value.trigger] if known else f"trigger {value.trigger}"
        told: dict[str, Any] = {"addr": f"{addr:#x}", "bytes": size, "trigger": why}
        told |= {"from": processor_name(proc), "to": processor_name(peer)}
        if value.error:
            told["error"] = value.error
        if not value.has_start or not value.has_end:
            told["not recorded"] = "end" if value.has_start else "start"
        track = peer if peer not in (CPU, UNKNOWN) else proc
        yield _event("X", t_ns, track, f"migrate, {why}", dur_ns, told)
        if not value.error and value.has_end:
            self.moved["to the host" if peer == CPU else "to devices"] += size
            yield (
                f'{{"ph":"C","ts":{_us(t_ns + dur_ns)},"pid":{_PROCESS},"name":"bytes moved",'
                f'"args":{_text(self.moved)}}}'
            )


def _us(ns: int) -> str:
    """Microseconds with all their nanoseconds; a float has too few digits for some."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _event(phase: str, t_ns: int, track: int, name: str, dur_ns: int, told: dict[str, Any]) -> str:
    more = {"X": f'"dur":{_us(dur_ns)},', "i": '"s":"t",'}[phase]
    return (
        f'{{"ph":"{phase}","ts":{_us(t_ns)},{more}"pid":{_PROCESS},"tid":{track},'
        f'"name":{_text(name)},"args":{_text(told)}}}'
    )


def _async(phase: str, t_ns: int, track: int, name: str, number: str, told: dict[str, Any]) -> str:
    return (
        f'{{"ph":"{phase}","cat":"svm","id":"{number}","ts":{_us(t_ns)},"pid":{_PROCESS},'
        f'"tid":{track},"name":"{name}","args":{_text(told)}}}'
    )
