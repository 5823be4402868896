"""KFD events as the profilers tell them, one by one or by columns, as records.

The functions that take columns say the same as the methods of :class:`KfdRows`, of events that
the reader knows to be plain: what may be wrong is left to the methods, which name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..records import CPU, RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SIZE
from ._objects import ABSENT
from .base import Records, Summary
from .kfd_smi import MigrateValue

__all__ = [
    "Agents",
    "KfdRows",
    "NotARecordError",
    "Times",
    "are_spans",
    "faults",
    "migrations",
    "or_else",
    "times",
    "unmaps",
]

_GPUS = 64
_NO_AGENT = -1
#: Agents that are kept; a node has a few.
_MOST_AGENTS = 4096

_Row = tuple[int, int, int, int, int, int, int, int, int]
_Ints = npt.NDArray[np.int64]


class NotARecordError(ValueError):
    """Why an element is not a record."""


class Agents:
    """What the agents of a file are, as record codes.

    Agents that the file describes keep their order among the GPUs. Of others,
    node 0 and no agent are the CPU where pages move, as the driver's 0 is system
    memory; every other becomes the next GPU.
    """

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._gpus = 0

    def describe(self, number: int, gpu: bool) -> None:
        """Say what an agent is; the first word counts."""
        if number not in self._codes and len(self._codes) < _MOST_AGENTS:
            self._codes[number] = self._next() if gpu else CPU

    def alias(self, number: int, other: int) -> None:
        """Give an agent that is described another number."""
        if other in self._codes and number not in self._codes:
            self._codes[number] = self._codes[other]

    def place(self, number: int) -> int:
        """Where pages come from or go to."""
        if number not in self._codes and number in (0, _NO_AGENT):
            return CPU
        return self.gpu(number)

    def gpu(self, number: int) -> int:
        """The agent of a fault, a queue or an unmap."""
        if number == _NO_AGENT:
            return UNKNOWN
        code = self._codes.get(number)
        if code is None:
            code = self._codes[number] = self._next()
        return code

    def known(self, numbers: _Ints, *others: int) -> npt.NDArray[np.bool_]:
        """Which of these have a code already, are no agent, or are one of *others*."""
        kinds, inverse = np.unique(numbers, return_inverse=True)
        there = self._codes.keys() | {_NO_AGENT, *others}
        return np.array([kind in there for kind in kinds.tolist()])[inverse]

    def have_room(self, numbers: _Ints) -> bool:
        """Whether all of these can be told apart, as GPUs."""
        new = set(np.unique(numbers).tolist()) - self._codes.keys() - {_NO_AGENT}
        return self._gpus + len(new) <= _GPUS

    def _next(self) -> int:
        if self._gpus == _GPUS:
            raise NotARecordError(f"more agents: expected at most {_GPUS} GPUs")
        self._gpus += 1
        return self._gpus


class KfdRows:
    """KFD events as rows of records, for every form in which the tools write them."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.agents = Agents()
        self.rows: list[_Row] = []

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Address and size of ``[begin, end)``; an end on a page's last byte is inclusive."""
        if end & PAGE_MASK == PAGE_MASK:
            self.summary.add("inclusive_ends")
            end += 1
        if not 0 <= begin < end <= ADDRESS_LIMIT:
            raise NotARecordError(f"{begin:#x} to {end:#x}: expected an end behind the start")
        return begin, end - begin

    def times(self, begin: int, end: int) -> tuple[int, int]:
        """Time and duration; 0 where the end is missing or earlier."""
        if not 0 <= begin < ADDRESS_LIMIT or not 0 <= end < ADDRESS_LIMIT:
            raise NotARecordError(f"time {begin} to {end}: expected 0 to 2**64 - 1")
        if end and end < begin:
            self.summary.add("clock_back")
        return begin, max(end - begin, 0)

    def migrate(
        self,
        when: tuple[int, int],
        span: tuple[int, int],
        ends: tuple[int, int],
        trigger: int,
        error: int | None,
    ) -> None:
        """A migration between two agents."""
        value = MigrateValue(trigger, error).pack()
        source, target = self.agents.place(ends[0]), self.agents.place(ends[1])
        none = Access.UNKNOWN
        self.rows.append((when[0], *span, when[1], value, Kind.MIGRATE, source, none, target))

    def fault(
        self,
        when: tuple[int, int],
        address: int,
        agent: int,
        access: Access,
        migrated: bool | None,
    ) -> None:
        """A fault, and its end where it is known how it ended."""
        if not 0 <= address < ADDRESS_LIMIT:
            raise NotARecordError(f"address {address}: expected 0 to 2**64 - 1")
        page, gpu = address & ~PAGE_MASK, self.agents.gpu(agent)
        row = (page, PAGE_SIZE)
        self.rows.append((when[0], *row, when[1], 0, Kind.FAULT, gpu, access, UNKNOWN))
        if migrated is not None:
            self._plain(Kind.FAULT_END, sum(when), row, int(migrated), gpu)

    def queue(self, when: tuple[int, int], agent: int, trigger: int, put_off: bool) -> None:
        """Queues that stopped and, where there is an end, ran again."""
        gpu = self.agents.gpu(agent)
        none = Access.UNKNOWN
        self.rows.append((when[0], 0, 0, when[1], trigger, Kind.QUEUE_EVICT, gpu, none, UNKNOWN))
        if when[1]:
            self.restore(sum(when), agent, put_off)

    def restore(self, t_ns: int, agent: int, put_off: bool) -> None:
        """Queues that ran again."""
        self.summary.add("rescheduled" if put_off else "restored")
        gpu = self.agents.gpu(agent)
        self._plain(Kind.QUEUE_RESTORE, t_ns, (0, 0), int(put_off), gpu)

    def unmap(self, t_ns: int, span: tuple[int, int], agent: int, trigger: int) -> None:
        """A span that GPU page tables lost."""
        self._plain(Kind.UNMAP_GPU, t_ns, span, trigger, self.agents.gpu(agent))

    def dropped(self, t_ns: int, count: int) -> None:
        """Events that the driver lost."""
        if not 0 <= count < 1 << 32:
            raise NotARecordError(f"count {count}: expected 32 bits")
        self._plain(Kind.DROPPED, t_ns, (0, 0), count, UNKNOWN)

    def _plain(self, kind: Kind, t_ns: int, span: tuple[int, int], value: int, gpu: int) -> None:
        self.rows.append((t_ns, *span, 0, value, kind, gpu, Access.UNKNOWN, UNKNOWN))

    def take(self) -> Records:
        """The rows so far as records."""
        rows, self.rows = self.rows, []
        return np.array(rows, RECORD)


class Times(NamedTuple):
    """Times of events in ns, those of a clock that went back repaired."""

    begin: _Ints
    duration: _Ints
    back: int
    """Events whose clock went back."""


def or_else(column: _Ints, value: int) -> _Ints:
    """A column with *value* where it is ``ABSENT``."""
    return np.where(column == ABSENT, value, column)


def times(begin: _Ints, end: _Ints) -> Times | None:
    """Times and durations as of :meth:`KfdRows.times`."""
    if int(begin.min()) < 0 or int(end.min()) < 0:
        return None
    back = int(np.count_nonzero((end != 0) & (end < begin)))
    return Times(begin, np.maximum(end - begin, 0), back)


def _codes(agents: Agents, numbers: _Ints, code: Callable[[int], int]) -> npt.NDArray[np.uint8]:
    """Record codes of agents; new ones are met in the order of the rows."""
    kinds, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    table = np.empty(len(kinds), "u1")
    for index in np.argsort(first).tolist():
        table[index] = code(int(kinds[index]))
    return table[inverse]


def _told(rows: KfdRows, when: Times) -> None:
    """Count events with their times."""
    if when.back:
        rows.summary.add("clock_back", when.back)
    rows.summary.repaired += when.back
    rows.summary.read += len(when.begin) - when.back


def _plain(count: int, kind: Kind, t_ns: _Ints | int) -> Records:
    """Records of a kind without a peer and an access."""
    out = np.zeros(count, RECORD)
    out["t_ns"], out["kind"] = t_ns, kind
    out["access"], out["peer"] = Access.UNKNOWN, UNKNOWN
    return out


def _spans(rows: KfdRows, out: Records, begin: _Ints, end: _Ints) -> None:
    """Addresses and sizes as of :meth:`KfdRows.span`, of what is known to be one."""
    inclusive = end & PAGE_MASK == PAGE_MASK
    if number := int(np.count_nonzero(inclusive)):
        rows.summary.add("inclusive_ends", number)
    out["addr"], out["size"] = begin, end + inclusive - begin


def are_spans(begin: _Ints, end: _Ints) -> npt.NDArray[np.bool_]:
    """Which are spans ``[begin, end)`` or, on the last byte of a page, inclusive ones."""
    # An inclusive end of 2**63 - 1 has no number behind it here.
    return (begin >= 0) & (end > begin) & (end < (1 << 63) - 1)


def _values(trigger: _Ints, error: _Ints) -> npt.NDArray[np.uint32]:
    """``value`` of migrations, which has few values."""
    triggers, which = np.unique(trigger, return_inverse=True)
    errors, other = np.unique(error, return_inverse=True)
    table = [
        [MigrateValue(one, None if code == ABSENT else code).pack() for code in errors.tolist()]
        for one in triggers.tolist()
    ]
    return np.array(table, "<u4")[which, other]


def faults(
    rows: KfdRows,
    when: Times,
    address: _Ints,
    agent: _Ints,
    access: npt.NDArray[np.uint8],
    ended: npt.NDArray[np.int8],
) -> Records:
    """Faults and their ends; *ended* is 1 migrated, 0 updated, -1 unknown."""
    _told(rows, when)
    gpu = _codes(rows.agents, agent, rows.agents.gpu)
    page = address & ~PAGE_MASK
    known = ended >= 0
    at = np.cumsum(1 + known) - 1 - known
    out = _plain(len(when.begin) + int(np.count_nonzero(known)), Kind.FAULT_END, 0)
    for name, values in (
        ("t_ns", when.begin),
        ("addr", page),
        ("dur_ns", when.duration),
        ("kind", Kind.FAULT),
        ("proc", gpu),
        ("access", access),
    ):
        out[name][at] = values
    end = at[known] + 1
    out["t_ns"][end] = (when.begin + when.duration)[known]
    out["addr"][end], out["proc"][end], out["value"][end] = page[known], gpu[known], ended[known]
    out["size"] = PAGE_SIZE
    return out


def migrations(
    rows: KfdRows,
    when: Times,
    span: tuple[_Ints, _Ints],
    ends: tuple[_Ints, _Ints],
    trigger: _Ints,
    error: _Ints,
) -> Records:
    """Migrations between two agents; *error* is ``ABSENT`` where there is none."""
    _told(rows, when)
    out = _plain(len(when.begin), Kind.MIGRATE, when.begin)
    _spans(rows, out, *span)
    codes = _codes(rows.agents, np.stack(ends, axis=1).ravel(), rows.agents.place)
    out["proc"], out["peer"], out["dur_ns"] = codes[::2], codes[1::2], when.duration
    out["value"] = _values(trigger, error)
    return out


def unmaps(
    rows: KfdRows, when: Times, span: tuple[_Ints, _Ints], agent: _Ints, trigger: _Ints
) -> Records:
    """Spans that GPU page tables lost."""
    _told(rows, when)
    out = _plain(len(when.begin), Kind.UNMAP_GPU, when.begin)
    _spans(rows, out, *span)
    out["proc"] = _codes(rows.agents, agent, rows.agents.gpu)
    out["value"] = trigger
    return out
