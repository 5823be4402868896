"""Managed memory on pages of its own: the dialects ``acl``, ``acl-driver`` and ``cuda``.

Pages of equal state are kept as spans of two range maps: what was advised, and
where the data is. States are few, so they are interned, and what a step does to
a state is worked out once (:func:`svmcore.managed.moves.take_step`) and
remembered: a touch costs two look-ups and one of a dictionary.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from .._ranges import RangeMap
from ..machine import Machine
from ..records import UNKNOWN, Access, Kind
from ..units import BLOCK_PAGES, PAGE_SHIFT, whole
from .enums import (
    DEVICE_CPU,
    DEVICE_INVALID,
    CudaMemLocationType,
    Location,
)
from .memory import (
    Action,
    AdviseResult,
    Effect,
    ManagedMemory,
    Options,
    PageView,
    Touch,
    agreed,
    processor_names,
)
from .moves import take_step
from .rules import Rules
from .state import (
    ADVICE_FIELDS,
    COPYING,
    HOST,
    MOVING,
    NOBODY,
    TAKING,
    Event,
    Page,
    ReadMostly,
    Step,
    Topology,
    bit,
    members,
    place_of,
)

__all__ = ["PageMemory", "PolicyRange"]

_HIT: Final = Touch(0, 0, 0)


class PolicyRange(NamedTuple):
    """A range of one advice, in bytes."""

    start: int
    size: int
    read_mostly: ReadMostly
    preferred: Location | None
    accessed_by: tuple[str, ...]


class _Change(NamedTuple):
    """What a step does to a pair of interned states."""

    advice: int
    residency: int
    events: tuple[Event, ...]
    faulted: bool
    remote: bool
    refused: tuple[str, str] | None
    silent: bool
    """Nothing at all happens."""
    gains: tuple[int, ...]
    """Devices that take memory."""
    losses: tuple[int, ...]


@dataclass
class _Tally:
    """What a step did to a span."""

    faulted_pages: int = 0
    remote_pages: int = 0
    effects: list[Effect] = field(default_factory=list)
    refused: tuple[str, str, int] | None = None
    """Kind, rule and first page."""
    faults: int = 0


class _Interned:
    """Values by number, from 1; 0 is a hole of the range maps."""

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = [()]
        self.numbers: dict[tuple[object, ...], int] = {}

    def number(self, value: tuple[object, ...]) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found


def _touch_key(advice: Any, residency: Any, processor: Any, write: Any) -> Any:
    """A number for a touch of pages in a pair of states; arrays give arrays."""
    return advice << 40 | residency << 16 | processor << 1 | write


class PageMemory(ManagedMemory):
    """Managed memory whose pages follow a table of rules.

    Parameters
    ----------
    rules : Rules
    machine : str, Path or Machine
    **options
        :class:`Options`.
    """

    def __init__(
        self, rules: Rules, machine: str | Path | Machine, **options: Unpack[Options]
    ) -> None:
        super().__init__(rules.name, machine, **options)
        self.rules = rules
        self.topology = Topology.of(self.machine)
        self._advice_map = RangeMap(merge=rules.merges)
        self._residency_map = RangeMap(merge=True)
        self._advices, self._residencies = _Interned(), _Interned()
        # Step -> pair of states -> what it does.
        self._changes: dict[Step, dict[tuple[int, int], _Change]] = defaultdict(dict)
        self._used = [0] * self.devices
        # Blocks of each device in the order in which data came to them.
        self._order: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(self.devices)]
        self._fault_pages = self.granule >> PAGE_SHIFT
        # Touches met that change nothing, as numbers; see leading_hits.
        self._silent: list[int] = []
        self._counters = dict.fromkeys(
            (
                "faults",
                "faulted_bytes",
                "remote_bytes",
                "bytes_allocated",
                "bytes_freed",
                "bytes_copied",
                "bytes_migrated",
                "bytes_to_device",
                "bytes_to_host",
                "evicted_bytes",
            ),
            0,
        )

    # ---- views -------------------------------------------------------------------------

    @property
    def granule(self) -> int:
        """Bytes to which spans are rounded outward."""
        return self.rules.granule

    def ranges(self) -> list[PolicyRange]:
        """Ranges of one advice, as the dialect splits and joins them (C15)."""
        found = []
        for first, last, number in self._advice_map:
            page = Page(*self._advices.values[number])
            found.append(
                PolicyRange(
                    first << PAGE_SHIFT,
                    (last - first + 1) << PAGE_SHIFT,
                    ReadMostly(page.read_mostly),
                    page.preferred,
                    processor_names(members(page.accessed_by)),
                )
            )
        return found

    def raw(self, addr: int) -> Page:
        """State of the page at *addr*, in numbers.

        Raises
        ------
        ManagedError
            Outside every allocation.
        """
        start, _ = self._inside("page", whole("addr", addr), 1)
        return self._page_at(start >> PAGE_SHIFT)

    def page(self, addr: int) -> PageView:
        """State of the page at *addr*."""
        page = self.raw(addr)
        return PageView(
            processor_names(members(page.copies)),
            processor_names(members(page.mapped)),
            processor_names(members(page.writable)),
            None if page.owner == NOBODY else processor_names([page.owner])[0],
            page.read_mostly == ReadMostly.ENABLED,
            page.preferred,
            processor_names(members(page.accessed_by)),
            page.last_prefetch,
            page.node,
        )

    def counters(self) -> dict[str, int]:
        """Totals since the beginning, by name."""
        return dict(self._counters)

    def used(self, device: int) -> int:
        """Bytes of a device's memory that managed data takes."""
        return self._used[device] << PAGE_SHIFT

    def _page_at(self, number: int) -> Page:
        _, _, advice = self._advice_map.find(number)
        _, _, residency = self._residency_map.find(number)
        return self._page(advice, residency)

    def _page(self, advice: int, residency: int) -> Page:
        values = self._advices.values[advice] + self._residencies.values[residency]
        return Page(*values)

    # ---- allocations -------------------------------------------------------------------

    def _make(self, addr: int, size: int) -> None:
        first, last = addr >> PAGE_SHIFT, (addr + size - 1) >> PAGE_SHIFT
        self._advice_map.assign(first, last, self._advices.number(Page()[:ADVICE_FIELDS]))
        untouched = Page(node=self.current_node)[ADVICE_FIELDS:]
        self._residency_map.assign(first, last, self._residencies.number(untouched))

    def _unmake(self, addr: int, size: int) -> None:
        first, last = addr >> PAGE_SHIFT, (addr + size - 1) >> PAGE_SHIFT
        for low, high, number in list(self._residency_map.items(first, last)):
            low, high = max(low, first), min(high, last)
            copies = self._residencies.values[number][0]
            assert isinstance(copies, int)
            for processor in members(copies & ~bit(HOST)):
                self._used[processor - 1] -= high - low + 1
        self._advice_map.erase(first, last)
        self._residency_map.erase(first, last)

    # ---- steps -------------------------------------------------------------------------

    def _change(self, advice: int, residency: int, step: Step) -> _Change:
        """What the step does to the pair of states, worked out at the first time."""
        known = self._changes[step].get((advice, residency))
        if known is None:
            page = self._page(advice, residency)
            moved = take_step(self.rules, self.topology, page, step)
            new = moved.page
            devices = ~bit(HOST)
            remote = step.word == "access" and not new.copies & bit(step.by)
            known = self._changes[step][advice, residency] = _Change(
                self._advices.number(new[:ADVICE_FIELDS]),
                self._residencies.number(new[ADVICE_FIELDS:]),
                moved.events,
                moved.faulted,
                remote,
                moved.refused,
                new == page and not (moved.events or moved.faulted or remote or moved.refused),
                tuple(members(new.copies & ~page.copies & devices)),
                tuple(members(page.copies & ~new.copies & devices)),
            )
            if step.word == "access" and known.silent:
                self._silent.append(_touch_key(advice, residency, step.by, step.on))
        return known

    def _run(self, first: int, last: int, step: Step) -> _Tally:
        """One step on pages *first* to *last*; stops at the first page that refuses it."""
        tally = _Tally()
        page = first
        while page <= last:
            _, high, advice = self._advice_map.find(page)
            _, end, residency = self._residency_map.find(page)
            end = min(end, high, last)
            if not advice or not residency:
                tally.refused = ("not_allocated", "page", page)
                break
            change = self._change(advice, residency, step)
            if change.refused is not None:
                tally.refused = (*change.refused, page)
                break
            if change.gains:
                clipped = self._fit(change.gains, page, end, tally)
                if clipped < 0:
                    tally.refused = ("memory", "capacity", page)
                    break
                end = clipped  # making room may have changed neighbours, never these pages
            if change.advice != advice:
                self._advice_map.assign(page, end, change.advice)
            if change.residency != residency:
                self._residency_map.assign(page, end, change.residency)
            self._account(page, end, change, tally)
            page = end + 1
        return tally

    def _account(self, page: int, end: int, change: _Change, tally: _Tally) -> None:
        npages = end - page + 1
        for processor in change.losses:
            self._used[processor - 1] -= npages
        if change.faulted:
            tally.faulted_pages += npages
            granule = self._fault_pages
            tally.faults += end // granule - page // granule + 1
        if change.remote:
            tally.remote_pages += npages
        for event in change.events:
            tally.effects.append(Effect(page << PAGE_SHIFT, npages << PAGE_SHIFT, event))

    def _fit(self, gains: Sequence[int], page: int, end: int, tally: _Tally) -> int:
        """Take memory for the pages on the devices; the last page that has room, or -1."""
        for processor in gains:
            free = self.topology.capacity[processor - 1] - self._used[processor - 1]
            if end - page + 1 > free:
                # Under pressure block by block, so that later ones may push out earlier ones.
                end = min(end, page | (BLOCK_PAGES - 1))
        block = page // BLOCK_PAGES
        for processor in gains:
            if not self._make_room(processor, end - page + 1, block, tally):
                return -1
        for processor in gains:
            self._used[processor - 1] += end - page + 1
            order = self._order[processor - 1]
            for number in range(block, end // BLOCK_PAGES + 1):
                order[number] = None
                order.move_to_end(number)
        return end

    def _make_room(self, processor: int, npages: int, block: int, tally: _Tally) -> bool:
        """Evict the oldest blocks of a device but *block*, until *npages* fit (C10, D14)."""
        capacity = self.topology.capacity[processor - 1]
        order = self._order[processor - 1]
        while self._used[processor - 1] + npages > capacity:
            victim = next((number for number in order if number != block), None)
            if victim is None:
                return False
            del order[victim]
            first = victim * BLOCK_PAGES
            self._evict(first, first + BLOCK_PAGES - 1, processor, tally)
        return True

    def _evict(self, first: int, last: int, processor: int, tally: _Tally) -> None:
        step = Step("evict", by=processor)
        for low, high, residency in list(self._residency_map.items(first, last)):
            page, end = max(low, first), min(high, last)
            while page <= end:
                _, edge, advice = self._advice_map.find(page)
                edge = min(edge, end)
                change = self._change(advice, residency, step)
                self._residency_map.assign(page, edge, change.residency)
                self._account(page, edge, change, tally)
                page = edge + 1

    def _count(self, tally: _Tally) -> AdviseResult:
        """Add what was done to the counters; the same as a result."""
        result = AdviseResult(self.success, effects=tally.effects)
        totals = self._counters
        for _, size, event in tally.effects:
            kind = event.kind
            if kind == "warn":
                result.warnings.append(f"preferred location away from the data of {size} bytes")
            if kind in TAKING and not (event.source == event.target == HOST):
                result.bytes_allocated += size
            if kind == "free":
                result.bytes_freed += size * event.mask.bit_count()
            elif kind in MOVING:
                result.bytes_migrated += size
                result.bytes_freed += size if event.source != event.target else 0
            elif kind in COPYING:
                result.bytes_copied += size
            if kind in COPYING:
                totals["bytes_to_host" if event.target == HOST else "bytes_to_device"] += size
            if kind == "evict":
                totals["evicted_bytes"] += size
        totals["faults"] += tally.faults
        totals["faulted_bytes"] += tally.faulted_pages << PAGE_SHIFT
        totals["remote_bytes"] += tally.remote_pages << PAGE_SHIFT
        for name in ("bytes_allocated", "bytes_freed", "bytes_copied", "bytes_migrated"):
            totals[name] += getattr(result, name)
        return result

    def _advise(self, start: int, end: int, action: Action) -> AdviseResult:
        first, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        before = len(self._advice_map)
        tally = self._run(first, last, Step(action.word, action.on, action.place))
        result = self._count(tally)
        self._raise(action.word, tally)
        result.pages = last - first + 1
        result.ranges_split = len(self._advice_map) - before
        return result

    def _raise(self, word: str, tally: _Tally) -> None:
        if tally.refused is None:
            return
        kind, rule, page = tally.refused
        expected = {
            "conflict": "no data but at the location",
            "read_mostly_to_host": "no read mostly memory",
            "host_to_host": "data on a device, or a NUMA node as target",
            "not_allocated": "an allocated page",
            "memory": "room for it in the device's memory",
        }[kind]
        addr = page << PAGE_SHIFT
        raise self._refused(kind, rule, f"{word}: page {addr:#x}: expected {expected}")

    def _touch(self, start: int, end: int, processor: int, write: bool) -> Touch:
        step = Step("access", write, None, processor)
        first, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        # A hit of equal pages is the most frequent touch, and the cheapest.
        _, high, advice = self._advice_map.find(first)
        _, edge, residency = self._residency_map.find(first)
        if high >= last and edge >= last:
            known = self._changes[step].get((advice, residency))
            if known is not None and known.silent:
                return _HIT
        tally = self._run(first, last, step)
        if tally.effects or tally.faults or tally.remote_pages:
            self._count(tally)
        self._raise("access", tally)
        return Touch(
            tally.faults,
            tally.faulted_pages << PAGE_SHIFT,
            tally.remote_pages << PAGE_SHIFT,
            tuple(tally.effects),
        )

    def leading_hits(self, records: npt.NDArray[np.void], by: int) -> int:
        """How many records, from the first on, are touches that change nothing at all.

        Parameters
        ----------
        records : ndarray, shape (n,), dtype RECORD
        by : int
            Processor code of records that name none.

        Complexity
        ----------
        O(n log ranges), compiled; only touches like ones met before are recognised.
        """
        shift = np.uint64(self.granule.bit_length() - 1)
        pages = np.uint64(self._fault_pages)
        one = np.uint64(1)
        addr = records["addr"]
        first = (addr >> shift) * pages
        last = ((addr + np.maximum(records["size"], one) - one) >> shift) * pages + (pages - one)
        advice = self._advice_map.find_many(first)
        residency = self._residency_map.find_many(first)
        keys = _touch_key(
            advice["value"].astype("<u8"),
            residency["value"].astype("<u8"),
            np.where(records["proc"] == UNKNOWN, by, records["proc"]).astype("<u8"),
            np.isin(records["access"], (Access.WRITE, Access.ATOMIC)).astype("<u8"),
        )
        silent_keys = np.array(self._silent, "<u8")
        known = np.isin(keys, silent_keys) & (records["kind"] <= Kind.FAULT)
        silent = known & (advice["last"] >= last) & (residency["last"] >= last)
        return len(records) if silent.all() else int(silent.argmin())

    # ---- queries -------------------------------------------------------------------------

    def _pages_in(self, start: int, end: int) -> Iterator[Page]:
        """State of each piece of equal state in the span."""
        page, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        while page <= last:
            _, high, advice = self._advice_map.find(page)
            _, edge, residency = self._residency_map.find(page)
            yield self._page(advice, residency)
            page = min(high, edge) + 1

    def _query(self, start: int, end: int, name: str) -> int:
        pages = self._pages_in(start, end)
        if name == "READ_MOSTLY":
            return int(all(page.read_mostly == ReadMostly.ENABLED for page in pages))
        if name.startswith("PREFERRED"):
            place = agreed((self._folded(page.preferred) for page in pages), None)
        else:
            place = agreed((self._folded(page.last_prefetch) for page in pages), None)
        if name.endswith("_TYPE"):
            return CudaMemLocationType.INVALID if place is None else int(place.type)
        if name.endswith("_ID"):
            return 0 if place is None else int(place.id)
        return self._device_number(place)

    def _folded(self, place: Location | None) -> Location | None:
        """The place as queries tell it apart (D6)."""
        if place is not None and place.is_host and self.rules.one_host:
            return Location.host()
        return place

    def _device_number(self, place: Location | None) -> int:
        if place is None:
            return DEVICE_INVALID
        return DEVICE_CPU if place.is_host else place.id

    def _query_list(self, start: int, end: int, name: str) -> list[int]:
        common = ~0
        for page in self._pages_in(start, end):
            common &= page.accessed_by
        return [self._device_number(place_of(p)) for p in members(common)]

    def _where(self, addr: int) -> Location:
        page = self._page_at(addr >> PAGE_SHIFT)
        if page.owner == NOBODY:
            return Location.invalid()
        if page.owner == HOST and self.nodes > 1:
            return Location.host_numa(page.node)
        return place_of(page.owner)
