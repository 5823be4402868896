"""The executable specification of the UVM policy: short, slow and readable.

Rules first (prefetch, thrashing, residency, coalescing), then the process that
uses them. Everything is a Python integer used as a bit mask: of the pages of a
2 MiB frame (bit = page number & 511), or of processors (bit 0 the CPU, 1 + i
GPU i). :class:`UvmReference` is the twin of the compiled ``UvmProcess``; the
two share no code. Section numbers are those of ``docs/explain/uvm.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sortedcontainers import SortedDict

from .errors import Errno
from .machine import Costs, Gpu
from .policies.outcome import Outcome
from .policies.topology import Topology, lowest, topology_of
from .policies.uvm import Uvm

__all__ = [
    "Memory",
    "PrefetchState",
    "Thrashing",
    "ThrashingBlock",
    "UvmReference",
    "coalesce",
    "prefetch_hint",
    "select_residency",
]

CPU = 0
BLOCK, BIG = 512, 16
#: Access levels, and the protection that each needs.
PREFETCH, READ, WRITE, ATOMIC_WEAK, ATOMIC_STRONG = range(5)
NO, RO, RW, RWA = range(4)
NEEDED = (RO, RO, RW, RW, RWA)
#: Read duplication policies.
UNSET, ENABLED, DISABLED = range(3)
#: Lists of root chunks, in the order in which victims are taken.
UNUSED, DISCARDED, USED = range(3)
#: Extra time of the unpin timer, and deliveries of one touch without progress.
UNPIN_SLACK_NS, RETRIES = 20_000, 64


def span(first: int, outer: int) -> int:
    return (1 << outer) - (1 << first)


def bits(mask: int) -> Iterator[int]:
    while mask:
        yield lowest(mask)
        mask &= mask - 1


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """Runs [first, outer) of set bits."""
    while mask:
        first = lowest(mask)
        outer = lowest(~(mask >> first)) + first
        yield first, outer
        mask &= ~span(first, outer)


# ---- prefetch (section 4) --------------------------------------------------------------


@dataclass
class PrefetchState:
    """What a block remembers of its faults."""

    last: int = -1
    faults: int = 0


def prefetch_tree(
    start: int, outer: int, counted: int, faulted: int, thrashing: int, rules: Uvm
) -> int:
    """Pages of the densest nodes above the faulted ones, in the block's pages [start, outer)."""
    first, last = -(-start // BIG) * BIG, outer // BIG * BIG
    aligned = first < last
    pad = start % BIG if aligned else 0
    counted |= faulted
    for low, high in pairwise([start, *range(first, last + 1, BIG), outer] if aligned else [start, outer]):
        piece = span(low, high)
        if piece & faulted and not piece & thrashing:
            counted |= piece
    origin = start - pad
    mask = 0
    for page in bits(faulted & ~thrashing):
        size, region = 1, (0, 0)
        while True:
            low = page - (page - origin) % size
            high = min(low + size, outer)
            if (counted & span(max(low, start), high)).bit_count() * 100 > (
                high - low
            ) * rules.prefetch_threshold:
                region = (low, high)
            if size >= outer - origin:
                break
            size *= 2
        low, high = region
        if low < start:
            low = start + pad if rules.quirk else start
        if low < high:
            mask |= span(low, high)
    return mask


def prefetch_hint(
    state: PrefetchState,
    rules: Uvm,
    *,
    start: int,
    outer: int,
    target: int,
    resident: int,
    touched: bool,
    faulted: int,
    thrashing: int,
    preferred: int | None,
    cpu_mapped: int,
) -> tuple[int, bool]:
    """Pages to bring besides the faulted ones, and whether the hint is given.

    Parameters
    ----------
    start, outer : int
        The block's pages in its frame.
    target : int
        Where all the faulted pages go.
    resident : int
        Pages on the target.
    touched : bool
        Any page of the block is resident anywhere.
    cpu_mapped : int
        Pages that the CPU maps.
    """
    if target != state.last:
        state.last, state.faults = target, 0
    if not touched and target == preferred:
        mask = span(start, outer)
    elif preferred is not None and target != preferred and rules.prefetch_home_only:
        mask = 0
    else:
        mask = prefetch_tree(start, outer, resident, faulted, thrashing, rules)
    mask &= ~faulted & ~thrashing
    if target == CPU:
        mask &= ~(resident & cpu_mapped)
    state.faults = state.faults + faulted.bit_count() & 0xFFFF
    return mask, state.faults >= rules.prefetch_min_faults and mask != 0


# ---- thrashing (section 5) -------------------------------------------------------------


@dataclass
class ThrashingPage:
    stamp: int = 0
    events: int = 0
    migrated: bool = False
    revoked: bool = False
    pinned: bool = False
    pin_at: int = 0
    end: int = 0
    throttles: int = 0
    processors: int = 0
    throttled: int = 0
    favoured: int = -1  # the processor that is not throttled in this period

    def end_throttles(self) -> None:
        if self.throttled:
            self.end = self.throttled = 0


@dataclass(eq=False)
class ThrashingBlock:
    pages: dict[int, ThrashingPage] | None = None
    thrashing: int = 0
    pinned: int = 0
    processor: int = -1
    stamp: int = 0
    last_thrashing: int = 0
    resets: int = 0
    pins: int = 0


class Thrashing:
    """Detection of pages that travel between processors, for one process."""

    def __init__(self, topology: Topology, rules: Uvm) -> None:
        self.topology, self.rules = topology, rules
        self.lapse = rules.lapse_us * 1000
        self.nap, self.epoch, self.pin = (
            self.lapse * n for n in (rules.nap, rules.epoch, rules.pin)
        )
        self.votes = 0
        #: Pinned pages with their deadlines, and when the timer fires (0: it is not armed).
        self.queue: list[tuple[int, ThrashingBlock, int]] = []
        self.timer = 0

    def record(
        self, block: ThrashingBlock, region: int, processor: int, now: int, *, revocation: bool
    ) -> None:
        """Pages moved to a processor, or lost permissions there."""
        rules = self.rules
        if not rules.thrashing:
            return
        if block.pages is None:
            if (
                not block.stamp
                or block.processor == processor
                or now - block.stamp > self.lapse
            ):
                block.stamp, block.processor = now, processor
                return
            block.pages = {}
        for number in bits(region):
            page = block.pages.setdefault(number, ThrashingPage())
            page.processors |= 1 << processor
            before, page.stamp = page.stamp, now & ~63
            if not before:
                continue
            if now - before <= self.lapse:
                page.events = min(page.events + 1, 7)
                if page.events == rules.thrashing_threshold:
                    block.thrashing |= 1 << number
                if page.events >= rules.thrashing_threshold:
                    block.last_thrashing = now
                page.migrated |= not revocation
                page.revoked |= revocation
            elif page.events >= rules.thrashing_threshold and not page.pinned:
                self.reset(block, number)
        block.stamp, block.processor = now, processor

    def reset(self, block: ThrashingBlock, number: int) -> None:
        """Forget a page's history; its throttles so far and the favoured one stay."""
        page = (block.pages or {})[number]
        if page.pinned:
            block.pinned &= ~(1 << number)
            self.queue = [e for e in self.queue if e[1] is not block or e[2] != number]
        page.stamp = page.events = page.processors = 0
        page.migrated = page.revoked = page.pinned = False
        page.pin_at = 0
        page.end_throttles()
        block.thrashing &= ~(1 << number)

    def reset_region(self, block: ThrashingBlock, region: int) -> None:
        for number in bits(block.thrashing & region):
            self.reset(block, number)

    def forget(self, block: ThrashingBlock) -> None:
        """The block goes, or is cut."""
        self.queue = [entry for entry in self.queue if entry[1] is not block]

    def hint(
        self,
        block: ThrashingBlock,
        number: int,
        requester: int,
        resident: int,
        preferred: int | None,
        now: int,
    ) -> tuple[str, int]:
        """``("NONE", 0)``, ``("PIN", processor)`` or ``("THROTTLE", until)`` for a fault."""
        rules = self.rules
        if not rules.thrashing or block.pages is None:
            return "NONE", 0
        if (
            block.last_thrashing
            and now - block.last_thrashing > self.epoch
            and not block.pins
            and block.resets < rules.max_resets
        ):
            block.resets += 1
            block.pages = None
            block.thrashing = block.stamp = block.last_thrashing = 0
            block.processor = -1
            return "NONE", 0
        page = block.pages.get(number)
        if page is None or page.events < rules.thrashing_threshold:
            return "NONE", 0
        if page.throttled >> requester & 1:
            if now < page.end and requester != page.favoured:
                return "THROTTLE", page.end
            page.throttled &= ~(1 << requester)
            if not page.throttled:
                page.end = 0
        gap = now - page.stamp
        if rules.lapse_mode != "off":
            self.adapt(gap)
        if gap > self.lapse and not page.pinned:
            return "NONE", 0
        page.processors |= 1 << requester
        if now > page.end:
            page.end = (now + self.nap) & ~63
            page.favoured = -1 if page.favoured == requester else requester
        elif page.favoured < 0:
            page.favoured = requester
        kind, target = self.choose(page, requester, resident, preferred)
        if kind == "PIN":
            if not self.topology.memory >> target & 1:
                target = CPU
            if not page.pinned or not resident >> target & 1:
                page.end_throttles()
            if not page.pinned:
                page.pinned = True
                page.throttles = 0
                block.pins += 1
                block.pinned |= 1 << number
                if self.pin:
                    if not self.queue and not self.timer:
                        self.timer = now + self.pin
                    self.queue.append((now + self.pin, block, number))
            page.pin_at = target
        elif kind == "THROTTLE":
            if not page.throttled >> requester & 1:
                page.throttled |= 1 << requester
                if not page.pinned:
                    page.throttles = min(page.throttles + 1, 255)
            target = page.end
        return kind, target

    def choose(
        self, page: ThrashingPage, requester: int, resident: int, preferred: int | None
    ) -> tuple[str, int]:
        """Step 8 and the first of the rules a to e of step 9 that applies."""
        topology, favoured = self.topology, page.favoured == requester
        if page.pinned and page.revoked and not favoured:
            return "THROTTLE", 0
        near = topology.closest(resident, requester) if resident else CPU
        users = list(bits(page.processors))
        common = -1  # memories that all of the page's processors may address
        for user in users:
            common &= topology.can[user]
        if preferred is not None and common >> preferred & 1:
            return "PIN", preferred
        if (preferred is None or not page.processors >> preferred & 1) and all(
            user == near
            or topology.siblings[near] >> user & 1
            or (topology.fast[near] >> user & 1 and topology.atomics[near] >> user & 1)
            for user in users
        ):
            if near == CPU and common >> requester & 1:
                return ("PIN", requester) if requester != CPU else ("NONE", 0)
            return "PIN", near
        if page.pinned and requester == preferred:
            return ("PIN", requester) if page.pin_at == requester or favoured else ("THROTTLE", 0)
        if page.pinned:
            if favoured:
                return "PIN", topology.closest(common, requester) if common else requester
            if topology.can[requester] >> page.pin_at & 1:
                return "PIN", page.pin_at
            return "THROTTLE", 0
        if not favoured:
            return "THROTTLE", 0
        if page.throttles >= self.rules.pin_threshold:
            return "PIN", requester
        return "NONE", 0

    def adapt(self, gap: int) -> None:
        """The lapse follows the gaps between events (590 and later)."""
        limit, least, votes = 500_000_000, 5_000, self.rules.lapse_votes
        self.votes += 1 if gap >= self.lapse else -1
        self.votes = (self.votes + 128) % 256 - 128
        if self.rules.lapse_mode == "shipped":
            many = self.votes < 0 or self.votes >= votes  # -1 compares as a huge number
            grow, shrink = many and self.lapse < limit, self.votes >= votes and self.lapse > least
        else:
            grow = self.votes >= votes and self.lapse < limit
            shrink = self.votes <= -votes and self.lapse > least
        if grow:
            self.lapse += min(self.lapse // 8, 50_000_000)
        elif shrink:
            self.lapse -= max(self.lapse // 8, least)
        if grow or shrink:
            self.votes = int(self.votes / 2)

    def unpin(self) -> list[tuple[ThrashingBlock, int]]:
        """The timer fires: pages whose time is over, in order; the caller unmaps and resets."""
        due = [e for e in self.queue if e[0] <= self.timer + UNPIN_SLACK_NS]
        self.queue = self.queue[len(due) :]
        self.timer = self.queue[0][0] if self.queue else 0
        return [(block, number) for _, block, number in due]


# ---- where a page goes (section 2.1) ---------------------------------------------------


def select_residency(
    topology: Topology,
    requester: int,
    levels: int,
    *,
    preferred: int | None,
    accessed_by: int,
    duplication: int,
    duplicated: bool,
    resident: int,
    pin: int | None,
    counter: bool = False,
    foreign: bool = False,
    remote_atomics: bool = False,
) -> tuple[str, int, bool]:
    """The rule that decides, the destination, and whether the page is duplicated there.

    Parameters
    ----------
    levels : int
        Bit mask of the access levels on the page.
    pin : int or None
        Where the thrashing hint wants it.
    counter : bool
        The cause is an access counter.
    foreign : bool
        A touch by the CPU from another process than the owner.
    """
    can = topology.can[requester]

    def rule() -> tuple[str, int, bool]:
        if duplication == ENABLED or (duplication != DISABLED and duplicated and pin is None):
            return "2 read duplication", requester, levels.bit_length() - 1 <= READ
        if requester == preferred:
            return "3 preferred location of the requester", requester, False
        if pin is not None:
            return "5 pinned", pin, False
        if not resident:
            first = preferred is not None and can >> preferred & 1
            return "6 first touch", preferred if first and preferred is not None else requester, False
        near = topology.closest(resident, requester)
        reaches = can >> near & 1
        if accessed_by >> requester & 1 and reaches and not counter:
            return "7 accessed by", near, False
        if (
            remote_atomics
            and lowest(levels) >= ATOMIC_WEAK
            and requester != CPU
            and near != CPU
            and topology.atomics[near] >> requester & 1
        ):
            return "8 native atomics", near, False
        if near != requester and preferred is not None and can >> preferred & 1:
            return "9 preferred location", preferred, False
        if requester == CPU and reaches and foreign:
            return "10 foreign process", near, False
        return "11 requester", requester, False

    name, target, duplicate = rule()
    if not topology.memory >> target & 1:
        return name, CPU, False
    return name, target, duplicate


# ---- one batch (section 3.2) -----------------------------------------------------------


def coalesce(faults: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """Representatives (index, access mask, instances) of (page, access, uTLB, instance) entries."""
    masks: dict[int, int] = {}
    counts: dict[int, int] = {}
    filtered: set[int] = set()
    by_tlb: dict[int, int] = {}
    last = -1
    for i, (page, access, tlb, instance) in enumerate(faults):
        key = (instance, page)
        pending = by_tlb.get(tlb, -1)
        if pending >= 0 and (faults[pending][3], faults[pending][0]) == key:
            if access > faults[pending][1]:
                masks[i], counts[i] = masks[pending] | 1 << access, counts[pending] + 1
                filtered.add(pending)
                by_tlb[tlb] = i
                continue
            target = pending
        elif (
            last >= 0
            and (faults[last][3], faults[last][0]) == key
            and access <= faults[last][1]
        ):
            target = last  # perhaps filtered already: then this one is lost
        else:
            masks[i], counts[i] = 1 << access, 1
            by_tlb[tlb] = last = i
            continue
        masks[target] |= 1 << access
        counts[target] += 1
    return [(i, masks[i], counts[i]) for i in sorted(masks) if i not in filtered]
