"""What happened to one page in a replay: where it was made, moved, evicted, copied, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .engine import Space
from .policies.outcome import Outcome
from .records import UNKNOWN, Access, Kind, processor_name
from .replay import Watch, replay
from .units import PAGE_SHIFT, PAGE_SIZE

if TYPE_CHECKING:
    from .plans import Due, Plan
    from .traces import Mapping, Trace

__all__ = ["EVICTIONS", "Change", "Naming", "page_changes", "records_effects", "touches"]

#: Causes of a move that mean an eviction, as the policies' logs name them.
EVICTIONS = ("ttm_evict", "eviction")
#: Records that are looked at together, and pieces of so many that are taken one by one.
_CHUNK, _MOST = 512, 64
_VERBS = {Access.READ: "read", Access.WRITE: "write", Access.ATOMIC: "atomic access"}
_State = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Change:
    """One change of where a page is, or of who has it mapped.

    Attributes
    ----------
    record : int
        Number of the record that changed it, or before which a hint did.
    cause : str
        As the policy's log names it (``gpu_fault``, ``cpu_fault``, ``prefetch`` or ``user``,
        ``prefetcher``, ``advice``), ``eviction`` for each eviction; else the kind of the record.
    before, after : str
        Where it was and is: ``cpu``, ``gpu0``, ``cpu+gpu0`` with copies, or ``absent``.
    text : str
        A sentence.
    hint : str or None
        The hint of a plan that did it.
    """

    record: int
    cause: str
    before: str
    after: str
    text: str
    hint: str | None = None

    @property
    def key(self) -> tuple[int, str | None, str, str]:
        """What tells it from a change under another plan."""
        return self.record, self.hint, self.cause, self.after


class Naming(NamedTuple):
    """Names for people: of addresses, by the trace's buffers, and of records."""

    buffers: Sequence[Mapping]
    by: str
    """Processor of records that name none."""

    def place(self, addr: int) -> str:
        """An address with the buffer that holds it."""
        name = self.buffer(addr)
        return f"{addr:#x}" if name is None else f"{addr:#x} ({name})"

    def buffer(self, addr: int) -> str | None:
        """The buffer that holds an address."""
        return next((b.name for b in self.buffers if b.start <= addr < b.start + b.size), None)

    def processor(self, record: np.void) -> str:
        """Who touches."""
        code = int(record["proc"])
        return self.by if code == UNKNOWN else processor_name(code)

    def touch(self, record: np.void) -> tuple[str, int]:
        """Who touches, and how: 0 read, 1 write, 2 atomic."""
        access = int(record["access"])
        return self.processor(record), access if access in (1, 2) else 0

    def record(self, record: np.void) -> str:
        """What a record is, in a few words."""
        kind, addr = Kind(int(record["kind"])), int(record["addr"])
        if kind <= Kind.FAULT:
            verb = _VERBS.get(Access(int(record["access"])), "read")
            return f"{self.processor(record)}'s {verb} of {self.place(addr)}"
        if kind in (Kind.ADVISE, Kind.PREFETCH):
            return f"{'advice on' if kind == Kind.ADVISE else 'a prefetch of'} {self.place(addr)}"
        return f"{kind.name.lower()} of {self.place(addr)}"


def touches(records: npt.NDArray[np.void], first: int, end: int) -> npt.NDArray[np.bool_]:
    """Which records' bytes meet ``[first, end)``; one without bytes counts as one byte."""
    addr = records["addr"]
    last = addr + (np.maximum(records["size"], np.uint64(1)) - np.uint64(1))
    met: npt.NDArray[np.bool_] = (addr <= np.uint64(end - 1)) & (last >= np.uint64(first))
    return met


def records_effects(space: Space) -> bool:
    """Whether the policy of the space keeps a log of what each operation did."""
    return all(hasattr(space.process, name) for name in ("begin", "finish", "where", "mapped"))


def page_changes(
    trace: Trace,
    fresh: Callable[[], Space],
    page: int,
    stop: int,
    *,
    by: str = "gpu0",
    plan: Plan | None = None,
) -> list[Change]:
    """The changes of one page in a replay, the last ones where they are very many.

    Parameters
    ----------
    trace : Trace
    fresh : callable
        Makes the space; it is called twice.
    page : int
        4 KiB page number.
    stop : int
        Records before this number are looked at, and hints that are due at it.
    by : str
        Processor of records that name none.
    plan : Plan, optional

    Returns
    -------
    list of Change
        In order; empty where the policy keeps no log.

    Raises
    ------
    SvmError
        As :func:`svmcore.replay`.

    Complexity
    ----------
    Two replays of the records; of the second, 32,768 records at most one by one.
    """
    space = fresh()
    if not records_effects(space):
        return []
    coarse = _Coarse(space, page)
    replay(trace, space, by=by, plan=plan, stop=stop, watch=coarse)
    space = fresh()
    fine = _Fine(space, page, coarse.found[-_MOST:], Naming(trace.mappings(), by))
    replay(trace, space, by=by, plan=plan, stop=stop, watch=fine)
    return fine.changes


class _Coarse(Watch):
    """Finds the pieces of the trace in which something happens to a page."""

    def __init__(self, space: Space, page: int) -> None:
        self.space, self.page = space, page
        self.found: list[int] = []
        self.state: _State = ("", ())
        # Copies come and go without a move: any touch near the page may have changed them.
        low = page >> 9 << 9
        copied = hasattr(space.process, "copies")
        self.near = (low << PAGE_SHIFT, (low + 512) << PAGE_SHIFT) if copied else None

    def cut(self, number: int) -> int:
        return (number // _CHUNK + 1) * _CHUNK

    def before(self, number: int, records: npt.NDArray[np.void]) -> None:
        self.state = _state(self.space, self.page)
        self.space.process.begin(self.space.process.now)

    def after(
        self, number: int, records: npt.NDArray[np.void], outcomes: npt.NDArray[np.void]
    ) -> None:
        effects = self.space.process.finish()
        start = number // _CHUNK * _CHUNK
        if self.found[-1:] != [start] and (
            _met(effects, self.page)
            or _state(self.space, self.page) != self.state
            or (self.near is not None and touches(records, *self.near).any())
        ):
            self.found.append(start)


class _Fine(Watch):
    """Takes the records of these pieces one by one, and tells what changed."""

    def __init__(self, space: Space, page: int, pieces: list[int], naming: Naming) -> None:
        self.space, self.page, self.naming = space, page, naming
        self.pieces = pieces
        self.changes: list[Change] = []
        self.state: _State = ("", ())
        self.recording = self.touched = False

    def cut(self, number: int) -> int | None:
        start = number // _CHUNK * _CHUNK
        if start in self.pieces:
            return number + 1
        return min((piece for piece in self.pieces if piece > number), default=None)

    def before(self, number: int, records: npt.NDArray[np.void]) -> None:
        self.recording = number // _CHUNK * _CHUNK in self.pieces
        if self.recording:
            self._begin()

    def _begin(self) -> None:
        self.state = _state(self.space, self.page)
        self.space.process.begin(self.space.process.now)

    def after(
        self, number: int, records: npt.NDArray[np.void], outcomes: npt.NDArray[np.void]
    ) -> None:
        if self.recording:
            start = self.page << PAGE_SHIFT
            self.touched = bool(touches(records, start, start + PAGE_SIZE).any())
            kind = Kind(int(records["kind"][0])).name.lower()
            self._tell(number, kind, f"record {number}, {self.naming.record(records[0])},", None)

    def hinting(self, number: int, hint: Due) -> None:
        self._begin()

    def hinted(self, number: int, hint: Due, outcomes: npt.NDArray[np.void]) -> None:
        self.touched = False
        self._tell(
            number, "hint", f"{hint.place}, {hint.hint.advice} before record {number},", hint.place
        )

    def _tell(self, number: int, kind: str, what: str, hint: str | None) -> None:
        effects = self.space.process.finish()
        (before, maps), (after, mapped) = self.state, _state(self.space, self.page)
        moves = _met(effects, self.page)
        if (before, maps) == (after, mapped) and not moves:
            return
        # A copy that an eviction takes is moved nowhere.
        full = bool(effects.bo_evict) and not self.touched
        old, new = (before, maps), (after, mapped)
        cause, text = _sentence(self.space, moves, kind, what, old, new, full=full)
        self.changes.append(Change(number, cause, before, after, text, hint))


def _state(space: Space, page: int) -> _State:
    """Where the page is, and for each GPU whether it may read and write it."""
    process: Any = space.process
    place = space.residency(page << PAGE_SHIFT, PAGE_SIZE)[0][2]
    gpus = range(len(space.machine.gpus))
    return place, tuple(process.mapped(i, page) + process.mapped(i, page, True) for i in gpus)


def _met(effects: Outcome, page: int) -> list[tuple[int, int, int, int, str, int]]:
    """The moves of pages that hold this one."""
    return [row for row in effects.migr if row[0] <= page <= row[1] and row[5]]


def _sentence(
    space: Space,
    moves: list[tuple[int, int, int, int, str, int]],
    kind: str,
    what: str,
    old: _State,
    new: _State,
    *,
    full: bool,
) -> tuple[str, str]:
    """Cause of a change, and a sentence."""
    (before, maps), (after, mapped) = old, new
    evicted = next((row for row in moves if row[4] in EVICTIONS), None)
    if evicted is not None and before != after:
        gpu, place = (space.location_name(row) for row in evicted[2:4])
        return "eviction", f"{what} evicted it from {gpu}, which was full, to {place}."
    cause = moves[-1][4] if moves else kind
    if before == "absent" or after == "absent":
        made = f"made it in {after}" if before == "absent" else f"took it away from {before}"
        return cause, f"{what} {made}."
    was, now = set(before.split("+")), set(after.split("+"))
    if was < now:
        return "copy", f"{what} made a copy in {_listed(now - was)}."
    if now < was and len(was) > 1 and not moves:
        if full:
            return "eviction", f"{what} evicted the copy in {_listed(was - now)}, which was full."
        return "copy dropped", f"{what} dropped the copy in {_listed(was - now)}."
    if before != after:
        return cause, f"{what} moved it from {before} to {after}."
    gained = [i for i, (a, b) in enumerate(zip(maps, mapped, strict=True)) if b > a]
    lost = [i for i, (a, b) in enumerate(zip(maps, mapped, strict=True)) if b < a]
    if moves:
        return cause, f"{what} moved it away and back to {after}."
    if gained:
        return "map", f"{what} mapped it for {_listed(f'gpu{i}' for i in gained)} in {after}."
    return "unmap", f"{what} took it out of the page tables of {_listed(f'gpu{i}' for i in lost)}."


def _listed(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
