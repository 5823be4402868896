"""The events of a modelled run, in the form in which a driver's log is read.

A replay counts; here it also tells, event by event, what the driver would have written to
its event log: faults with their pages, migrations, unmaps, queues stopped and started. They
are records of the recorded kinds, so that a modelled run can be written as KFD SMI text or as
a timeline, and laid beside a recorded one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ._replay import OUTCOME, replay_chunk
from .engine import Space
from .errors import InvalidArgumentError
from .policies.outcome import Outcome
from .records import CPU, RECORD, UNKNOWN, Access, Kind
from .replay import _map_missing, _open, _page_spans, check_processors, processor_code_of
from .units import PAGE_SHIFT, PAGE_SIZE

if TYPE_CHECKING:
    from .traces import Trace

__all__ = ["modelled_events"]

#: Records of a chunk of events.
CHUNK = 1 << 16
#: Where in ``value`` of a MIGRATE record the result of a migration is; see kfd_smi.MigrateValue.
_SUCCESS = 1 << 29

#: The kind of record of each word of a log.
_KINDS = {
    "batch": Kind.BATCH,
    "cancel": Kind.CANCEL,
    "duplicate": Kind.DUPLICATE,
    "evict": Kind.EVICT,
    "fault": Kind.FAULT,
    "migrate": Kind.MIGRATE,
    "pin": Kind.THRASHING,
    "remote": Kind.REMOTE,
    "served": Kind.FAULT_END,
    "thrash": Kind.THRASHING,
    "throttle": Kind.THRASHING,
    "unmap": Kind.UNMAP_GPU,
    "unpin": Kind.THRASHING,
}
_THRASHING = {"thrash": 0, "throttle": 1, "pin": 2, "unpin": 3}
#: ``value`` of MIGRATE records by uvm's causes: KFD's trigger, and NVIDIA's cause above it; see
#: traces.nvidia.
_MIGRATE_VALUES = {
    "user": 0x100,
    "gpu_fault": 0x201,
    "cpu_fault": 0x202,
    "eviction": 0x403,
    "prefetcher": 0x300,
    "advice": 0x100,
    "access_counter": 0x501,
}

_Row = tuple[int, int, int, int, int, int, int, int, int]


def modelled_events(
    trace: Trace | str | PathLike[str] | npt.NDArray[np.void],
    space: Space,
    *,
    by: str = "gpu0",
) -> Iterator[npt.NDArray[np.void]]:
    """Replay a trace into a space and give what its driver's event log would say.

    As :func:`svmcore.replay`. Under kfd a touch is taken apart where it faults, so that each
    fault has its page. Faults, migrations, evictions and unmaps are the same; where pages are
    answered from another memory, the modelled time may differ by the latency of a remote
    access for each part. Events inside one fault stand in the driver's order: the fault, what
    was unmapped, what moved, the end of the fault. Queue events stand for each GPU, with
    trigger 0 (SVM). Under uvm, which serves faults in batches, the process keeps one log, and
    the events are those of the replay, times too.

    Parameters
    ----------
    trace : Trace, path, or ndarray of RECORD
    space : Space
        Its state, clock and counters move on.
    by : str
        Processor of records that name none.

    Yields
    ------
    ndarray, shape (n,), dtype RECORD
        FAULT, FAULT_END, MIGRATE, UNMAP_GPU, QUEUE_EVICT and QUEUE_RESTORE records; under uvm
        instead of queue events EVICT, BATCH, REMOTE, DUPLICATE, THRASHING and CANCEL. Times are
        the trace's own clock where it is a fault trace, else modelled times.

    Raises
    ------
    TraceError, InvalidArgumentError
        As :func:`svmcore.replay`.
    InvalidArgumentError
        Also if the policy of the space keeps no log of its effects.

    Complexity
    ----------
    O(pages of the records + events); some 10 microseconds a fault. Memory O(chunk).

    Examples
    --------
    >>> import numpy as np
    >>> from svmcore.events import modelled_events
    >>> from svmcore.records import RECORD, Kind
    >>> touches = np.zeros(1, RECORD)
    >>> touches["addr"], touches["size"], touches["proc"] = 0x200000, 4 << 20, 1
    >>> found = np.concatenate(list(modelled_events(touches, svmcore.Space("gpu-80g"))))
    >>> [(Kind(row["kind"]).name, hex(row["addr"]), int(row["size"])) for row in found[:3]]
    [('FAULT', '0x200000', 4096), ('MIGRATE', '0x200000', 2097152), ('FAULT_END', '0x200000', 4096)]
    """
    process: Any = space.process
    teller: type[_Events] = _Teller
    if hasattr(process, "words"):
        teller = _LogTeller
    elif not all(hasattr(process, name) for name in ("begin", "finish", "page_states", "gpus")):
        raise InvalidArgumentError(
            f"policy {space.policy.name}: keeps no log of its effects: expected kfd or uvm"
        )
    source = _open(trace)
    code = processor_code_of(by, space)
    for first, last in _page_spans(source.mappings()):
        _map_missing(space, first, last)
    run = teller(space, code, by_arrival=source.kind == "fault")
    done = 0
    for records in source.chunks(CHUNK):
        check_processors(records, space, source.path, done)
        done += len(records)
        for record in records[records["kind"] <= Kind.PREFETCH]:
            run.add(record)
            if len(run.rows) >= CHUNK:
                yield run.take()
    if run.rows:
        yield run.take()


class _Events(ABC):
    """One run on its way: its events since they were last taken."""

    def __init__(self, space: Space, by: int, *, by_arrival: bool) -> None:
        self.process: Any = space.process
        self.by = by
        self.by_arrival = by_arrival
        self.offset: int | None = None  # of the trace's clock to the space's
        self.rows: list[_Row] = []
        self.out = np.empty(1, OUTCOME)
        self.one = np.empty(1, RECORD)

    @abstractmethod
    def add(self, record: np.void) -> None:
        """Replay one record."""

    def take(self) -> npt.NDArray[np.void]:
        """The events since the last call."""
        found = np.array(self.rows, RECORD)
        self.rows.clear()
        return found


class _LogTeller(_Events):
    """Under a policy with a log of its own."""

    def add(self, record: np.void) -> None:
        """Replay one record and tell its events."""
        process = self.process
        if self.offset is None and record["kind"] <= Kind.FAULT:
            self.offset = int(record["t_ns"]) - int(process.now)
        self.one[0] = record
        if self.by_arrival and self.offset is not None and self.offset < 0:
            self.one["t_ns"] += np.uint64(-self.offset)
        process.begin(int(process.now))
        replay_chunk(
            process,
            self.one,
            self.out,
            by=self.by,
            by_arrival=self.by_arrival and self.offset is not None,
            t0=max(0, self.offset or 0),
        )
        for event in process.finish().events:
            self._tell(*event)

    def _tell(
        self, t_ns: int, word: str, first: int, last: int, source: int, target: int, value: int
    ) -> None:
        """The records of one event."""
        at = t_ns + (self.offset or 0)
        addr, size = first << PAGE_SHIFT, (last - first + 1) << PAGE_SHIFT
        access, dur = int(Access.UNKNOWN), 0
        kind, proc, peer = _KINDS[word], source, UNKNOWN
        if word in ("fault", "served"):
            if word == "fault":
                access, value = value, 0
            for page in range(first, last + 1):
                start = page << PAGE_SHIFT
                self.rows.append((at, start, PAGE_SIZE, 0, value, kind, proc, access, peer))
            return
        match word:
            case "migrate" | "duplicate":
                dur, peer = self.process.move_ns(source, target, last - first + 1), target
                at -= dur
                moved = word == "migrate"
                value = _MIGRATE_VALUES[self.process.causes[value]] | _SUCCESS if moved else 0
            case "unmap" if target == CPU:
                return
            case "unmap":
                proc = target
            case "batch":
                addr, size, proc, value = 0, 0, UNKNOWN, 0
            case "throttle":
                dur, value = max(0, value - t_ns), _THRASHING[word]
            case "thrash" | "unpin":
                value = _THRASHING[word]
                proc = UNKNOWN if word == "unpin" else proc
            case "pin":
                peer, value = target, _THRASHING[word]
            case "remote":
                peer = target
        self.rows.append((at, addr, size, dur, value, kind, proc, access, peer))


class _Teller(_Events):
    """Under a policy that tells the effects of one fault at a time."""

    def __init__(self, space: Space, by: int, *, by_arrival: bool) -> None:
        super().__init__(space, by, by_arrival=by_arrival)
        self.codes = {gpu.id: i + 1 for i, gpu in enumerate(self.process.gpus)} | {0: CPU}
        from ._process import TRIGGERS, UNMAPS

        self.triggers = {name: number for number, name in enumerate(TRIGGERS)}
        self.unmaps = {name: number for number, name in enumerate(UNMAPS)}

    def add(self, record: np.void) -> None:
        """Replay one record."""
        kind = int(record["kind"])
        processor = self.by if record["proc"] == UNKNOWN else int(record["proc"])
        if kind > Kind.FAULT or processor == CPU:
            self._play(record, processor if kind <= Kind.FAULT else None)
            return
        if self.offset is None:
            self.offset = int(record["t_ns"]) - int(self.process.now)
        first = int(record["addr"])
        end = first + int(record["size"])
        least = 2 if record["access"] in (Access.WRITE, Access.ATOMIC) else 1
        part = record.copy()
        while first < end:
            at = self._first_fault(processor, first, end, least)
            if at > first:  # silent up to there
                self._part(part, first, at, end, processor)
            if at < end:
                page_end = min((at | (PAGE_SIZE - 1)) + 1, end)
                self._part(part, at, page_end, end, processor)
                at = page_end
            first = at

    def _first_fault(self, processor: int, first: int, end: int, least: int) -> int:
        """Where the first page that faults begins in ``[first, end)``; *end* without one."""
        page, last = first >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        states = self.process.page_states(page, last)[processor]
        for index, state in enumerate(states):
            if state < least:
                return max(first, (page + index) << PAGE_SHIFT)
        return end

    def _part(self, part: np.void, start: int, stop: int, end: int, processor: int) -> None:
        part["addr"], part["size"] = start, stop - start
        duration = part["dur_ns"]
        if stop < end:
            part["dur_ns"] = 0  # the processor computes when all of it is there
        self._play(part, processor)
        part["dur_ns"] = duration

    def _play(self, record: np.void, processor: int | None) -> None:
        """Replay a record, or a part with one fault at most, and tell its events."""
        process = self.process
        self.one[0] = record
        offset = self.offset or 0
        began = int(process.now)
        if self.by_arrival:
            began = max(began, int(record["t_ns"]) - offset)
        process.begin(int(process.now))
        replay_chunk(
            process,
            self.one,
            self.out,
            by=self.by,
            by_arrival=self.by_arrival,
            t0=max(0, offset),
        )
        effects: Outcome = process.finish()
        ended = int(self.out["t_ns"][0])
        if record["kind"] == Kind.ACCESS:
            ended -= int(record["dur_ns"])
        self._tell(record, processor, effects, began + offset, ended + offset)

    def _tell(
        self, record: np.void, processor: int | None, effects: Outcome, began: int, ended: int
    ) -> None:
        add = self.rows.append
        unknown = int(Access.UNKNOWN)
        faulted = bool(processor) and bool(self.out["faults"][0])
        page = int(record["addr"]) >> PAGE_SHIFT << PAGE_SHIFT
        if faulted:
            assert processor is not None
            write = record["access"] in (Access.WRITE, Access.ATOMIC)
            access = int(Access.WRITE if write else Access.READ)
            add((began, page, PAGE_SIZE, 0, 0, Kind.FAULT, processor, access, UNKNOWN))
        for word in effects.queues:
            kind = Kind.QUEUE_EVICT if word == "quiesce" else Kind.QUEUE_RESTORE
            for code in sorted(self.codes.values())[1:]:
                add((began, 0, 0, 0, 0, kind, code, unknown, UNKNOWN))
        for gpu, first, last, why in effects.unmap:
            addr, size = first << PAGE_SHIFT, (last - first + 1) << PAGE_SHIFT
            value = self.unmaps[why]
            add((began, addr, size, 0, value, Kind.UNMAP_GPU, self.codes[gpu], unknown, UNKNOWN))
        for first, last, source, target, trigger, _ in effects.migr:
            addr, size = first << PAGE_SHIFT, (last - first + 1) << PAGE_SHIFT
            value = self.triggers[trigger] | _SUCCESS
            proc, peer = self.codes[source], self.codes[target]
            add(
                (began, addr, size, max(0, ended - began), value, Kind.MIGRATE, proc, unknown, peer)
            )
        if faulted:
            assert processor is not None
            moved = int(
                any(self.codes[target] == processor for _, _, _, target, _, _ in effects.migr)
            )
            add((ended, page, PAGE_SIZE, 0, moved, Kind.FAULT_END, processor, unknown, UNKNOWN))
