"""The executable specification of the UVM policy: short, slow and readable.

Rules first (prefetch, thrashing, residency, coalescing), then the process that
uses them. Everything is a Python integer used as a bit mask: of the pages of a
2 MiB frame (bit = page number & 511), or of processors (bit 0 the CPU, 1 + i
GPU i). Under a kernel with pages of 64 KiB the masks hold all sixteen bits of a
page or none; what is done page by page is done at its first, the head.
:class:`UvmReference` is the twin of the compiled ``UvmProcess``; the
two share no code. Section numbers are those of ``docs/explain/uvm.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any

from sortedcontainers import SortedDict

from .errors import Errno
from .machine import Costs, Gpu
from .policies.outcome import FATAL_REASONS, Outcome
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
#: Access level of a fault by the access of its record: read, write, atomic, prefetch, unknown;
#: and of a touch, which is never ahead of its time.
LEVELS = (READ, WRITE, ATOMIC_STRONG, PREFETCH, READ)
TOUCHES = (READ, WRITE, ATOMIC_STRONG, READ, READ)
PREFETCHED = 3
#: Fault types of the hardware that cannot be served begin here.
FATAL = 5
#: Reasons of deliveries that end without service and without an error.
DROPPED = ("duplicate", "retry_later", "invalid_prefetch", "prefetch_off")
NOWHERE = 255
#: Read duplication policies.
UNSET, ENABLED, DISABLED = range(3)
#: Lists of root chunks, in the order in which victims are taken.
UNUSED, DISCARDED, USED = range(3)
#: Extra time of the unpin timer, and deliveries of one touch without progress.
UNPIN_SLACK_NS, RETRIES = 20_000, 64


def span(first: int, outer: int) -> int:
    """Pages [first, outer)."""
    return (1 << outer) - (1 << first)


def bits(mask: int) -> Iterator[int]:
    """Set bits, ascending."""
    while mask:
        yield lowest(mask)
        mask &= mask - 1


def heads(mask: int, step: int) -> Iterator[int]:
    """First bits of the kernel's pages of *step* bits that are set, ascending."""
    return (bit for bit in bits(mask) if bit % step == 0)


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
    for low, high in pairwise(
        [start, *range(first, last + 1, BIG), outer] if aligned else [start, outer]
    ):
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
    step: int = 1,
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
    step : int
        4 KiB pages in a page of the kernel.
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
    state.faults = state.faults + faulted.bit_count() // step & 0xFFFF
    return mask, state.faults >= rules.prefetch_min_faults and mask != 0


# ---- thrashing (section 5) -------------------------------------------------------------


@dataclass
class ThrashingPage:
    """What detection knows of a page."""

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
    """What detection knows of a block; pages from the first suspicion on."""

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

    def __init__(self, topology: Topology, rules: Uvm, step: int = 1) -> None:
        self.topology, self.rules, self.step = topology, rules, step
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
    ) -> int:
        """Pages moved to a processor, or lost permissions there; those that thrash from now on."""
        rules = self.rules
        if not rules.thrashing:
            return 0
        if block.pages is None:
            if not block.stamp or block.processor == processor or now - block.stamp > self.lapse:
                block.stamp, block.processor = now, processor
                return 0
            block.pages = {}
        detected = 0
        for number in heads(region, self.step):
            page = block.pages.setdefault(number, ThrashingPage())
            page.processors |= 1 << processor
            before, page.stamp = page.stamp, now & ~63
            if not before:
                continue
            if now - before <= self.lapse:
                page.events = min(page.events + 1, 7)
                if page.events == rules.thrashing_threshold:
                    block.thrashing |= span(number, number + self.step)
                    detected |= span(number, number + self.step)
                if page.events >= rules.thrashing_threshold:
                    block.last_thrashing = now
                page.migrated |= not revocation
                page.revoked |= revocation
            elif page.events >= rules.thrashing_threshold and not page.pinned:
                self.reset(block, number)
        block.stamp, block.processor = now, processor
        return detected

    def reset(self, block: ThrashingBlock, number: int) -> None:
        """Forget a page's history; its throttles so far and the favoured one stay."""
        page = (block.pages or {})[number]
        if page.pinned:
            block.pinned &= ~span(number, number + self.step)
            self.queue = [e for e in self.queue if e[1] is not block or e[2] != number]
        page.stamp = page.events = page.processors = 0
        page.migrated = page.revoked = page.pinned = False
        page.pin_at = 0
        page.end_throttles()
        block.thrashing &= ~span(number, number + self.step)

    def reset_region(self, block: ThrashingBlock, region: int) -> None:
        """Forget the thrashing pages of a region."""
        for number in heads(block.thrashing & region, self.step):
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
                block.pinned |= span(number, number + self.step)
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
            return (
                "6 first touch",
                preferred if first and preferred is not None else requester,
                False,
            )
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
        elif last >= 0 and (faults[last][3], faults[last][0]) == key and access <= faults[last][1]:
            target = last  # perhaps filtered already: then this one is lost
        else:
            masks[i], counts[i] = 1 << access, 1
            by_tlb[tlb] = last = i
            continue
        masks[target] |= 1 << access
        counts[target] += 1
    return [(i, masks[i], counts[i]) for i in sorted(masks) if i not in filtered]


# ---- device memory (section 7) ---------------------------------------------------------


class NeedRoom(Exception):
    """A GPU has no free chunk: the operation starts again once something was evicted."""


class Memory:
    """Memory of the node's GPUs, shared by its processes."""

    def __init__(self) -> None:
        self.used: dict[int, int] = {}
        self.sequence = 0
        self.tenants: list[UvmReference] = []

    def make_room(self, asking: UvmReference, gpu: int, pages: int) -> bool:
        """Evict the oldest of all processes until the pages fit; False where nothing is left."""
        while self.used.get(gpu, 0) + pages > asking.gpus[gpu - 1].vram_pages:
            ages = [(tenant.oldest(gpu), i) for i, tenant in enumerate(self.tenants)]
            known = [(age, i) for age, i in ages if age is not None]
            if not known:
                return False
            owner = self.tenants[min(known)[1]]
            owner.now = max(owner.now, asking.now)
            before = owner.cost
            owner.evict_oldest(gpu)
            if owner is not asking:
                asking.cost += owner.cost - before
                owner.cost = before
        return True


@dataclass(eq=False)
class Root:
    """A 2 MiB chunk: one block's, or cut into chunks of 64 and 4 KiB of several."""

    gpu: int
    block: Block | None = None
    #: Of a cut one: offset -> (pages, block, first page in its frame); free 64 KiB slots; free
    #: pages of the slots that are cut further.
    chunks: dict[int, tuple[int, Block, int]] = field(default_factory=dict)
    whole: int = 0
    small: dict[int, int] = field(default_factory=dict)
    age: int = 0
    list: int | None = None

    def owners(self) -> Iterator[tuple[Block, int, int]]:
        """(block, first page, pages) of each chunk, in order."""
        if self.block is not None:
            yield self.block, 0, BLOCK
        for offset in sorted(self.chunks):
            size, block, page = self.chunks[offset]
            yield block, page, size


class Order:
    """A strategy of eviction over the used chunks of each GPU."""

    def __init__(self, word: str, seed: int) -> None:
        self.word, self.random = word, seed
        #: GPU -> [chunk, stamp, uses] in the order of the strategy's table.
        self.rows: dict[int, list[list[Any]]] = {}
        self.drawn: dict[int, Root] = {}

    def enter(self, root: Root) -> None:
        """The chunk is used from now on."""
        rows = self.rows.setdefault(root.gpu, [])
        if not any(row[0] is root for row in rows):
            rows.append([root, root.age, int(self.word == "lfu")])
            self.arrange(rows)

    def arrange(self, rows: list[list[Any]]) -> None:
        """The first goes first; under mru the last."""
        if self.word in ("lru", "mru", "lfu"):
            rows.sort(key=lambda row: (row[2], row[1]))

    def use(self, root: Root, stamp: int) -> None:
        """A touch, if the chunk is there."""
        for row in self.rows.get(root.gpu, []):
            if row[0] is root:
                if self.word in ("lru", "mru", "lfu"):
                    row[1] = stamp
                if self.word == "lfu":
                    row[2] += 1
                elif self.word == "second_chance":
                    row[2] = 1
        self.arrange(self.rows.get(root.gpu, []))

    def leave(self, root: Root) -> None:
        """The chunk is not used any more, or new again."""
        rows = self.rows.get(root.gpu, [])
        at = next((i for i, row in enumerate(rows) if row[0] is root), None)
        if at is None:
            return
        if self.word == "random":
            rows[at], rows[-1] = rows[-1], rows[at]
            at = len(rows) - 1
        del rows[at]
        if self.drawn.get(root.gpu) is root:
            del self.drawn[root.gpu]

    def victim(self, gpu: int) -> Root:
        """What goes next; the same until it is used or leaves."""
        rows = self.rows[gpu]
        if self.word == "random":
            if gpu not in self.drawn:
                self.drawn[gpu] = rows[self.draw(len(rows))][0]
            return self.drawn[gpu]
        while self.word == "second_chance" and rows[0][2]:
            rows[0][2] = 0
            rows.append(rows.pop(0))
        chosen: Root = rows[-1 if self.word == "mru" else 0][0]
        return chosen

    def draw(self, count: int) -> int:
        """A number below *count*: the upper half of splitmix64, scaled."""
        most = (1 << 64) - 1
        self.random = self.random + 0x9E3779B97F4A7C15 & most
        x = self.random
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & most
        x = (x ^ x >> 27) * 0x94D049BB133111EB & most
        return ((x ^ x >> 31) >> 32) * count >> 32

    def stamp(self, root: Root) -> int:
        """When the chunk came or was used, as the strategy counts."""
        return next(int(row[1]) for row in self.rows[root.gpu] if row[0] is root)


@dataclass
class AccessCounter:
    """Remote touches of a block by one GPU (section 6)."""

    count: int = 0
    flagged: int = 0  # regions of 64 KiB that were touched
    notified: int = -1  # the page whose touch filled it


@dataclass(eq=False)
class Range:
    """Managed memory with one policy."""

    first: int
    last: int
    prot: int  # 1 readable, 2 writable
    preferred: int | None = None
    accessed_by: int = 0
    duplication: int = UNSET
    blocks: dict[int, Block] = field(default_factory=dict)


@dataclass(eq=False)
class Block:
    """What lies in one 2 MiB frame of a range: pages [start, outer) of the frame."""

    frame: int
    start: int
    outer: int
    range: Range
    resident: dict[int, int] = field(default_factory=dict)
    #: Page table entries by processor; writing implies reading, atomics imply writing.
    read: dict[int, int] = field(default_factory=dict)
    write: dict[int, int] = field(default_factory=dict)
    atomic: dict[int, int] = field(default_factory=dict)
    duplicated: int = 0
    discarded: int = 0
    chunks: dict[int, dict[int, tuple[Root, int]]] = field(default_factory=dict)
    prefetch: PrefetchState = field(default_factory=PrefetchState)
    thrashing: ThrashingBlock = field(default_factory=ThrashingBlock)
    counters: dict[int, AccessCounter] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """All of its pages."""
        return span(self.start, self.outer)

    @property
    def full(self) -> bool:
        """Is it a whole frame?"""
        return self.outer - self.start == BLOCK

    def cut(self) -> list[tuple[int, int]]:
        """(first page, pages) of its chunks: at each page the largest that is aligned and fits."""
        out, page = [], self.start
        while page < self.outer:
            size = next(n for n in (BLOCK, BIG, 1) if page % n == 0 and page + n <= self.outer)
            out.append((page, size))
            page += size
        return out

    def anywhere(self) -> int:
        """Pages with a copy."""
        mask = 0
        for pages in self.resident.values():
            mask |= pages
        return mask

    def holders(self, page: int) -> int:
        """Processors with a copy of a page."""
        return sum(1 << p for p, mask in self.resident.items() if mask >> page & 1)

    def tables(self) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Page table entries that read, write, do atomics."""
        return self.read, self.write, self.atomic

    def protection(self, processor: int, page: int) -> int:
        """What a processor may do with a page."""
        return sum(table.get(processor, 0) >> page & 1 for table in self.tables())

    def mapping(self, level: int, page: int) -> int:
        """Processors that map a page with that protection or more."""
        table = self.tables()[level - 1]
        return sum(1 << p for p, mask in table.items() if mask >> page & 1)


#: Why a processor is mapped to pages that are elsewhere: UvmEventMapRemoteCause.
THRASHING, POLICY, EVICTED = 2, 3, 5
#: Why pages move, by number.
_CAUSES = (
    "user",
    "gpu_fault",
    "cpu_fault",
    "eviction",
    "prefetcher",
    "advice",
    "access_counter",
)
USER, GPU_FAULT, CPU_FAULT, EVICTION, PREFETCHER, ADVICE, ACCESS_COUNTER = range(7)


_COUNTERS = (
    "faults",
    "duplicates",
    "migrations",
    "pages_to_device",
    "pages_to_host",
    "migrated_pages",
    "evictions",
    "evicted_pages",
    "populated_pages",
    "duplicated_pages",
    "invalidated_pages",
    "prefetched_pages",
    "unmaps",
    "maps",
    "batches",
    "services",
    "replays",
    "throttles",
    "pins",
    "unpins",
    "revocations",
    "notifications",
    "access_counter_migrations",
    "fatal_batches",
    "cancels",
    "invalid_prefetches",
    "prefetch_stops",
)


@dataclass
class FaultGroup:
    """Faults of one processor on one block of a range, in one batch."""

    processor: int
    range: Range
    frame: int
    pages: dict[int, int] = field(default_factory=dict)  # page of the frame -> access levels
    who: dict[int, int] = field(default_factory=dict)  # -> number of its representative
    fatal: bool = False  # a fatal fault was seen by the end of it


class UvmReference:
    """One process under the UVM policy.

    Parameters
    ----------
    gpus : sequence of Gpu
    rules : Uvm
    memory : Memory, optional
        Device memory to share with other processes.
    page_size : int
        Bytes of a page of the kernel: 4096 or 65536. Whatever names a part of a page
        means all of it.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        rules: Uvm | None = None,
        memory: Memory | None = None,
        *,
        page_size: int = 4096,
    ) -> None:
        self.gpus, self.rules = tuple(gpus), rules or Uvm()
        self.unit = page_size // 4096  # pages of 4 KiB in one of the kernel
        self.topology = topology_of(self.gpus, peer_access=self.rules.peer_access)
        self.thrash = Thrashing(self.topology, self.rules, self.unit)
        #: Until when a GPU reports no prefetch faults.
        self.prefetch_off = dict.fromkeys(range(1, 1 + len(self.gpus)), 0)
        self.ranges_by_start: SortedDict[int, Range] = SortedDict()
        self.memory = memory or Memory()
        self.memory.tenants.append(self)
        #: Free root chunks that are kept, and pages of all that were taken, by GPU.
        self.held = dict.fromkeys(range(1, 1 + len(self.gpus)), 0)
        self.taken = dict(self.held)
        self.quota = self.rules.quota_pages or 1 << 64
        self.lists: dict[int, tuple[list[Root], ...]] = {g: ([], [], []) for g in self.held}
        driver = self.rules.eviction == "driver"
        self.order = None if driver else Order(self.rules.eviction, self.rules.seed)
        #: Cut chunks with a free slot of 64 KiB, and with free pages in a cut slot; newest last.
        self.with_whole: dict[int, list[Root]] = {g: [] for g in self.held}
        self.with_small: dict[int, list[Root]] = {g: [] for g in self.held}
        self.new: list[Root] = []  # taken by the present operation: no victims
        #: Access counters are on; and their notifications are not dropped.
        self.counters = self.rules.counts_accesses(self.gpus)
        self.counting = self.counters and page_size != 4096
        self.notices: list[tuple[Block, int]] = []
        self.now = self.cost = self.moved = 0
        self.set_costs(Costs())
        self.count = dict.fromkeys(_COUNTERS, 0)
        self.outcome = Outcome()

    # -- clock and costs

    def set_costs(self, costs: Costs) -> None:
        """Take the cost constants of a machine."""
        self.costs = costs
        self.batch_ns, self.fault_ns = int(costs.fault_batch_ns), int(costs.fault_in_batch_ns)
        self.unmap_ns = int(costs.unmap_ns)
        self.evict_ns, self.map_ns = int(costs.evict_ns), int(costs.map_ns)

    def begin(self, t_ns: int) -> Outcome:
        """Start an operation at a time; its effects are collected."""
        self.now, self.cost, self.outcome = t_ns, 0, Outcome()
        return self.outcome

    def finish(self, ret: int = 0) -> Outcome:
        """End the operation."""
        self.outcome.ret = ret
        return self.outcome

    def settle(self) -> None:
        """Let the cost of the operation pass."""
        self.now, self.cost = self.now + self.cost, 0

    # -- events

    def tell(
        self, word: str, first: int, last: int, source: int = CPU, target: int = CPU, value: int = 0
    ) -> None:
        """An event happens now."""
        self.outcome.events.append((self.now + self.cost, word, first, last, source, target, value))

    def tell_runs(
        self,
        word: str,
        block: Block,
        pages: int,
        source: int = CPU,
        target: int = CPU,
        value: int = 0,
    ) -> None:
        """One event for each run of pages of a block."""
        base = block.frame * BLOCK
        for first, outer in runs(pages):
            self.tell(word, base + first, base + outer - 1, source, target, value)

    def tell_remote(
        self, block: Block, gained: dict[int, int], pins: int = 0, cause: int = POLICY
    ) -> None:
        """New mappings of pages that are elsewhere, by processor; pinned ones are so by cause."""
        for p in sorted(gained):
            pages = gained[p] & ~block.resident.get(p, 0)
            while pages:
                first = outer = lowest(pages)
                near = self.topology.closest(block.holders(first), p)
                pinned = pins >> first & 1
                while (
                    pages >> outer & 1
                    and self.topology.closest(block.holders(outer), p) == near
                    and pins >> outer & 1 == pinned
                ):
                    outer += 1
                run = span(first, outer)
                self.tell_runs("remote", block, run, p, near, THRASHING if pinned else cause)
                pages &= ~run

    @property
    def next_event_ns(self) -> int | None:
        """When pinned pages are released next."""
        return max(self.thrash.timer, self.now) if self.thrash.timer else None

    def head(self, page: int) -> int:
        """First of the 4 KiB pages of the kernel's page."""
        return page - page % self.unit

    def whole(self, first: int, last: int) -> tuple[int, int]:
        """Pages [first, last], widened to pages of the kernel."""
        return self.head(first), self.head(last) + self.unit - 1

    def in_page(self, page: int) -> int:
        """Bits of the kernel's page that begins there."""
        return span(page, page + self.unit)

    def npages(self, mask: int) -> int:
        """How many of the kernel's pages."""
        return mask.bit_count() // self.unit

    def step(self, t_ns: int) -> None:
        """The clock moves on; pinned pages whose time is over are released (section 5)."""
        self.now = max(self.now, t_ns)
        while self.thrash.timer and self.thrash.timer <= self.now:
            for thrashing, page in self.thrash.unpin():
                block = next(b for b in self.all_blocks() if b.thrashing is thrashing)
                self.count["unpins"] += 1
                self.tell_runs("unpin", block, self.in_page(page))
                for p in range(1 + len(self.gpus)):
                    here = block.resident.get(p, 0) >> page & 1
                    if not here and not block.range.accessed_by >> p & 1:
                        self.unmap(block, self.in_page(page), 1 << p)
                self.thrash.reset(thrashing, page)

    # -- ranges and blocks

    def all_blocks(self) -> Iterator[Block]:
        """Every block, in address order."""
        for r in self.ranges_by_start.values():
            yield from (r.blocks[frame] for frame in sorted(r.blocks))

    def range_at(self, page: int) -> Range | None:
        """The range at a page."""
        at = self.ranges_by_start.bisect_right(page) - 1
        if at < 0:
            return None
        found = self.ranges_by_start.peekitem(at)[1]
        return found if page <= found.last else None

    def span_of(self, first: int, last: int) -> list[Range]:
        """Ranges that touch [first, last], in order."""
        at = max(self.ranges_by_start.bisect_right(first) - 1, 0)
        rows = []
        for start in self.ranges_by_start.islice(at):
            r = self.ranges_by_start[start]
            if r.first > last:
                break
            if r.last >= first:
                rows.append(r)
        return rows

    def covered(self, first: int, last: int) -> bool:
        """Is all of it managed memory?"""
        page = first
        for r in self.span_of(first, last):
            if r.first > page:
                return False
            page = r.last + 1
        return page > last

    def block_of(self, r: Range, frame: int) -> Block:
        """The block of a range in a frame, made when missing."""
        if frame not in r.blocks:
            start, outer = max(r.first - frame * BLOCK, 0), min(r.last + 1 - frame * BLOCK, BLOCK)
            r.blocks[frame] = Block(frame, start, outer, r)
        return r.blocks[frame]

    def blocks_in(self, r: Range, first: int, last: int, make: bool) -> Iterator[tuple[Block, int]]:
        """(block, its pages in [first, last]) of a range."""
        first, last = max(first, r.first), min(last, r.last)
        for frame in range(first // BLOCK, last // BLOCK + 1):
            if make or frame in r.blocks:
                block = self.block_of(r, frame)
                low, high = max(first - frame * BLOCK, 0), min(last + 1 - frame * BLOCK, BLOCK)
                yield block, span(low, high)

    def split(self, r: Range, page: int) -> None:
        """Cut a range before *page*; a block that it cuts falls in two, chunks too."""
        rest = Range(page, r.last, r.prot, r.preferred, r.accessed_by, r.duplication)
        r.last = page - 1
        self.ranges_by_start[page] = rest
        for frame in [f for f in r.blocks if f * BLOCK + BLOCK > page]:
            block = r.blocks[frame]
            at = page - frame * BLOCK
            if at <= 0:
                rest.blocks[frame] = r.blocks.pop(frame)
                block.range = rest
                continue
            self.thrash.forget(block.thrashing)
            block.thrashing, block.prefetch = ThrashingBlock(), PrefetchState()
            block.counters = {}
            other = Block(frame, at, block.outer, rest)
            before = block.cut()
            block.outer = at
            rest.blocks[frame] = other
            for mine, others in zip(
                (block.resident, *block.tables()), (other.resident, *other.tables()), strict=True
            ):
                for p in list(mine):
                    others[p], mine[p] = mine[p] & other.pages, mine[p] & block.pages
            other.duplicated, other.discarded = (
                block.duplicated & other.pages,
                block.discarded & other.pages,
            )
            block.duplicated &= block.pages
            block.discarded &= block.pages
            for gpu in sorted(block.chunks):
                self.split_chunks(block, other, gpu, before)

    def split_chunks(
        self, block: Block, other: Block, gpu: int, before: list[tuple[int, int]]
    ) -> None:
        """Chunks follow the pages of a block that fell in two; those on the cut are cut."""
        old, block.chunks[gpu], other.chunks[gpu] = block.chunks[gpu], {}, {}
        pieces = [(block, *piece) for piece in block.cut()] + [(other, *p) for p in other.cut()]
        for page, size in before:
            if page not in old:
                continue
            root, offset = old[page]
            if size == BLOCK:
                root.block = None
            else:
                del root.chunks[offset]
            inside = [p for p in pieces if page <= p[1] < page + size]
            for owner, start, pages in inside:
                at = offset + start - page
                owner.chunks[gpu][start] = (root, at)
                root.chunks[at] = (pages, owner, start)
                if pages == 1:
                    root.small.setdefault(at // BIG, 0)
            if len(inside) > 1:
                self.enlist(root, USED)

    # -- device memory of this process

    def oldest(self, gpu: int) -> int | None:
        """Age of what is given up first: a free chunk, then by list."""
        if self.held[gpu]:
            return 0
        victim = self.victim(gpu)
        if victim is None:
            return None
        kind, root = victim
        order = self.order if kind == USED else None
        return kind << 62 | (order.stamp(root) if order else root.age)

    def victim(self, gpu: int) -> tuple[int, Root] | None:
        """The list that is not empty, and its chunk that goes first."""
        for kind, entries in enumerate(self.lists[gpu]):
            if entries:
                order = self.order if kind == USED else None
                return kind, order.victim(gpu) if order else entries[0]
        return None

    def use(self, block: Block, processor: int, pages: int) -> None:
        """A touch uses the chunks under the copies that answer it: the own ones first."""
        if self.order is None:
            return
        own = block.resident.get(processor, 0)
        for gpu in sorted(block.chunks):
            mine = block.resident.get(gpu, 0) & pages
            if gpu != processor:
                mine &= ~own
            before = None
            for page, size in block.cut():
                if span(page, page + size) & mine:
                    root = block.chunks[gpu][page][0]
                    if root is not before:
                        self.order.use(root, self.memory.sequence)
                        self.memory.sequence += 1
                    before = root

    def enlist(self, root: Root, kind: int | None) -> None:
        """Move a chunk to the tail of a list; new ones stay off the lists until they are used."""
        if root.list is not None:
            self.lists[root.gpu][root.list].remove(root)
        root.list = None
        if kind is not None and root not in self.new:
            self.lists[root.gpu][kind].append(root)
            root.list, root.age = kind, self.memory.sequence
            self.memory.sequence += 1
        if self.order and root.list == USED:
            self.order.enter(root)
        elif self.order:
            self.order.leave(root)

    def take_root(self, gpu: int) -> Root:
        """A free root chunk, or NeedRoom."""
        memory, limit = self.memory, self.gpus[gpu - 1].vram_pages
        if self.held[gpu]:
            self.held[gpu] -= 1
        else:
            free = max(limit - memory.used.get(gpu, 0), 0) // BLOCK
            free = min(free, (self.quota - self.taken[gpu]) // BLOCK)
            if not free:
                raise NeedRoom(gpu)
            batch = 1 if self.gpus[gpu - 1].coherent else 1 << self.rules.pma_batch_order
            count = min(free, batch)
            memory.used[gpu] = memory.used.get(gpu, 0) + count * BLOCK
            self.taken[gpu] += count * BLOCK
            self.held[gpu] = count - 1
        root = Root(gpu)
        self.new.append(root)
        return root

    def give_root(self, root: Root) -> None:
        """A chunk without owners: one goes back to the node."""
        self.enlist(root, None)
        if root in self.new:
            self.new.remove(root)
        self.memory.used[root.gpu] -= BLOCK
        self.taken[root.gpu] -= BLOCK
        for stack in (self.with_whole[root.gpu], self.with_small[root.gpu]):
            if root in stack:
                stack.remove(root)

    def tidy(self, root: Root) -> None:
        """The stacks of chunks with free parts follow."""
        for stack, free in (
            (self.with_whole[root.gpu], root.whole != 0),
            (self.with_small[root.gpu], any(root.small.values())),
        ):
            if free and root not in stack:
                stack.append(root)
            elif not free and root in stack:
                stack.remove(root)

    def take_chunk(self, block: Block, gpu: int, page: int, size: int) -> None:
        """A chunk for pages of a block, or NeedRoom."""
        if size == BLOCK:
            root, offset = self.take_root(gpu), 0
            root.block = block
        else:
            small, whole = self.with_small[gpu], self.with_whole[gpu]
            if size == 1 and small:
                root = small[-1]
            elif whole:
                root = whole[-1]
            else:
                root = self.take_root(gpu)
                root.whole = (1 << BLOCK // BIG) - 1
            if size == 1 and any(root.small.values()):
                slot = min(s for s, free in root.small.items() if free)
            else:
                slot = lowest(root.whole)
                root.whole &= ~(1 << slot)
                if size == 1:
                    root.small[slot] = (1 << BIG) - 1
            offset = slot * BIG
            if size == 1:
                offset += lowest(root.small[slot])
                root.small[slot] &= root.small[slot] - 1
            root.chunks[offset] = (size, block, page)
            if root not in self.new:
                self.new.append(root)
                self.enlist(root, None)
            self.tidy(root)
        block.chunks.setdefault(gpu, {})[page] = (root, offset)

    def free_chunk(self, block: Block, gpu: int, page: int) -> None:
        """A chunk is free again; what is free beside it joins."""
        root, offset = block.chunks[gpu].pop(page)
        if root.block is block:
            root.block = None
            self.give_root(root)
            return
        size = root.chunks.pop(offset)[0]
        slot = offset // BIG
        if size == 1:
            root.small[slot] |= 1 << offset % BIG
        if size == BIG or root.small[slot] == (1 << BIG) - 1:
            root.small.pop(slot, None)
            root.whole |= 1 << slot
        if root.chunks:
            self.enlist(root, USED)
            self.tidy(root)
        else:
            self.give_root(root)

    def populate(self, block: Block, gpu: int, pages: int) -> None:
        """Chunks under all of the pages, or NeedRoom; what was taken so far stays."""
        for page, size in block.cut():
            if span(page, page + size) & pages and page not in block.chunks.get(gpu, {}):
                self.take_chunk(block, gpu, page, size)

    def evict_oldest(self, gpu: int) -> None:
        """Give up what :meth:`oldest` told."""
        if self.held[gpu]:
            self.held[gpu] -= 1
            self.memory.used[gpu] -= BLOCK
            self.taken[gpu] -= BLOCK
        else:
            victim = self.victim(gpu)
            assert victim is not None, "the node asks for what is there"
            self.evict_root(victim[1])

    def evict_root(self, root: Root) -> None:
        """All pages of the chunk go to the CPU, whoever else has copies; the chunk is free."""
        self.enlist(root, None)
        self.count["evictions"] += 1
        self.cost += self.evict_ns
        self.outcome.bo_evict.append((self.gpus[root.gpu - 1].id, BLOCK))
        owners = list(root.owners())
        by_block: dict[int, tuple[Block, int]] = {}
        for block, page, size in owners:
            pages = by_block.get(id(block), (block, 0))[1] | span(page, page + size)
            by_block[id(block)] = (block, pages)
        for block, pages in by_block.values():
            pages &= block.resident.get(root.gpu, 0) | block.discarded
            self.tell_runs("evict", block, pages, root.gpu)
            self.make_resident(block, CPU, pages, EVICTION)
            self.map_accessors(block, pages)
            if self.counters and self.rules.map_remote_on_eviction:
                self.map_unrevoked(block, root.gpu, pages, EVICTED)
        for block, page, _ in owners:
            self.free_chunk(block, root.gpu, page)

    def make_room(self, gpu: int) -> bool:
        """Room for a chunk; a process at its quota gives up its own first."""
        while self.taken[gpu] + BLOCK > self.quota:
            if self.oldest(gpu) is None:
                return False
            self.evict_oldest(gpu)
        return self.memory.make_room(self, gpu, BLOCK)

    def operation(self, action: Callable[[], Any]) -> Any:
        """Run the action on a block; a full GPU evicts and it starts again. None: out of memory."""
        try:
            while True:
                try:
                    return action()
                except NeedRoom as full:
                    if not self.make_room(full.args[0]):
                        return None
        finally:
            taken, self.new = self.new, []
            for root in taken:
                self.enlist(root, USED)

    # -- residency

    def regions(self, pages: int, prefetched: int) -> Iterator[tuple[int, int, bool]]:
        """Runs of pages with one cause, in order."""
        rows = [(*run, False) for run in runs(pages & ~prefetched)]
        yield from sorted(rows + [(*run, True) for run in runs(pages & prefetched)])

    def transfer(
        self, block: Block, source: int, target: int, first: int, outer: int, cause: int
    ) -> None:
        """A run of pages is copied for a move."""
        n = outer - first
        count = self.count
        count["migrations"] += 1
        count["migrated_pages"] += n
        count["pages_to_device" if target else "pages_to_host"] += n
        if cause == EVICTION:
            count["evicted_pages"] += n
        count["access_counter_migrations"] += cause == ACCESS_COUNTER
        self.pay_copy(source, target, n)
        base = block.frame * BLOCK
        ids = [0, *(gpu.id for gpu in self.gpus)]
        row = (base + first, base + outer - 1, ids[source], ids[target], _CAUSES[cause], n)
        self.outcome.migr.append(row)
        self.tell("migrate", base + first, base + outer - 1, source, target, cause)

    def pay_copy(self, source: int, target: int, pages: int) -> None:
        """What a transfer costs."""
        curve = "to_device" if not source else "peer" if target else "to_host"
        self.cost += self.costs.transfer_ns(pages * 4096, curve)

    def copy(
        self, block: Block, target: int, pages: int, cause: int, prefetched: int, duplicate: bool
    ) -> None:
        """Copy pages from their closest holders, over the CPU where there is no direct way."""
        topology, policy = self.topology, block.range
        while pages:
            holders = sum(1 << p for p, mask in block.resident.items() if mask & pages)
            source = topology.closest(holders, target)
            mine = pages & block.resident[source]
            pages &= ~mine
            staged = target != CPU and not topology.can[target] >> source & 1
            legs = [(source, CPU), (CPU, target)] if staged else [(source, target)]
            for a, b in legs:
                for first, outer, ahead in self.regions(mine, prefetched):
                    region = span(first, outer)
                    why = PREFETCHER if ahead else cause
                    if duplicate:
                        self.count["duplicated_pages"] += outer - first
                        self.pay_copy(a, b, outer - first)
                        self.tell_runs("duplicate", block, region, a, b)
                    else:
                        self.transfer(block, a, b, first, outer, why)
                    if b != target or cause == EVICTION:
                        continue
                    thrashing = block.thrashing
                    if (
                        cause not in (GPU_FAULT, CPU_FAULT, ACCESS_COUNTER)
                        or duplicate
                        or policy.duplication == ENABLED
                    ):
                        self.thrash.reset_region(thrashing, region)
                    elif ahead or region & ~thrashing.pinned:
                        found = self.thrash.record(
                            thrashing, region, target, self.now, revocation=False
                        )
                        self.tell_runs("thrash", block, found, target)
            if staged and duplicate:
                block.resident[CPU] = block.resident.get(CPU, 0) | mine

    def make_resident(
        self,
        block: Block,
        target: int,
        pages: int,
        cause: int,
        prefetched: int = 0,
        *,
        duplicate: bool = False,
    ) -> None:
        """The pages have a copy on the target: the only one, or one more."""
        if target != CPU:
            self.populate(block, target, pages)
        resident = block.resident
        here, anywhere = resident.get(target, 0), block.anywhere()
        others = 0
        for p, mask in resident.items():
            if p != target:
                others |= mask
        held = {p for p, mask in resident.items() if mask}
        self.count["populated_pages"] += (pages & ~anywhere).bit_count()
        if duplicate:
            for p in range(1 + len(self.gpus)):
                self.unmap(block, pages & anywhere & ~resident.get(p, 0), 1 << p)
                for table in (block.write, block.atomic):
                    table[p] = table.get(p, 0) & ~(pages & anywhere)
            self.copy(block, target, pages & anywhere & ~here, cause, prefetched, True)
            resident[target] = resident.get(target, 0) | pages
            block.duplicated |= pages & others
        else:
            self.unmap(block, pages & others, -1)
            self.copy(
                block, target, pages & others & ~here & ~block.discarded, cause, prefetched, False
            )
            self.count["invalidated_pages"] += (pages & others & here).bit_count()
            for p in resident:
                if p != target:
                    resident[p] &= ~pages
            resident[target] = here | pages
            block.duplicated &= ~pages
        if block.full:
            for p in sorted(held - {CPU, target}):
                if not resident[p]:
                    self.enlist(block.chunks[p][0][0], UNUSED)
            if target != CPU and resident[target]:
                whole = block.discarded == block.pages
                self.enlist(block.chunks[target][0][0], DISCARDED if whole else USED)

    def unmap(self, block: Block, pages: int, processors: int) -> None:
        """Page table entries go; one shootdown for all of them."""
        paid = False
        for p in range(1 + len(self.gpus)):
            if processors >> p & 1 and block.read.get(p, 0) & pages:
                self.count["unmaps"] += 1
                paid = True
                self.tell_runs("unmap", block, block.read[p] & pages, target=p)
                for table in block.tables():
                    table[p] = table.get(p, 0) & ~pages
        if paid:
            self.cost += self.unmap_ns

    # -- mappings (section 3.6)

    def allowed(self, r: Range, processor: int) -> int:
        """Most that the mapping's protection allows; GPUs are not checked on managed memory."""
        if processor != CPU or r.prot == 3:
            return RWA
        return RO if r.prot & 1 else NO

    def map(self, block: Block, processor: int, page: int, level: int) -> bool:
        """An entry of at least that protection; whether it is more than there was."""
        if processor == CPU and level == RW:
            level = RWA
        more = block.protection(processor, page) < level
        for table in block.tables()[:level]:
            table[processor] = table.get(processor, 0) | 1 << page
        return more

    def map_serviced(
        self, block: Block, requester: int, target: int, levels: dict[int, int], pins: int
    ) -> None:
        """After service: the requester is mapped, others may lose rights or be mapped too."""
        topology, policy = self.topology, block.range
        native = topology.atomics[target]
        gained: dict[int, int] = {}
        lost: dict[int, int] = {}
        wanted: dict[int, int] = {}
        for page in sorted(levels):
            level = NEEDED[levels[page]]
            limit = self.allowed(policy, requester)
            duplicated = block.duplicated >> page & 1
            if (
                level == RO
                and limit > RO
                and (
                    policy.duplication == DISABLED
                    or (policy.duplication == UNSET and not duplicated)
                )
                and not block.mapping(RWA, page) & ~native
            ):
                level = RW
            if level == RW and limit == RWA and native >> requester & 1:
                level = RWA
            if block.discarded >> page & 1 and levels[page] <= READ:
                level = RO
            if duplicated:
                level = RO
            wanted[page] = level
            if level >= RW:
                block.discarded &= ~(1 << page)
                keep = 1 << requester
                if level == RW or native >> requester & 1:
                    keep |= native
                down = (
                    RO if level == RWA and requester != CPU and not native >> requester & 1 else RW
                )
                for p in bits(block.mapping(down + 1, page) & ~keep):
                    lost[p] = lost.get(p, 0) | 1 << page
                    for table in block.tables()[down:]:
                        table[p] = table.get(p, 0) & ~(1 << page)
        for p in sorted(lost):
            for first, outer in runs(lost[p]):
                self.count["revocations"] += 1
                region = span(first, outer)
                found = self.thrash.record(block.thrashing, region, p, self.now, revocation=True)
                self.tell_runs("thrash", block, found, p)
        for page, level in wanted.items():
            here = block.resident.get(requester, 0) >> page & 1
            if not topology.can[requester] >> target & 1 or (
                block.duplicated >> page & 1 and not here
            ):
                continue
            if self.map(block, requester, page, level):
                gained[requester] = gained.get(requester, 0) | 1 << page
            if block.duplicated >> page & 1 or block.discarded >> page & 1:
                continue
            users = policy.accessed_by
            if pins >> page & 1 and block.thrashing.pages:
                users |= block.thrashing.pages[self.head(page)].processors
            users &= topology.reaching(target) & ~(1 << requester)
            if policy.preferred is not None and policy.preferred != target:
                users &= ~(1 << policy.preferred)
            for p in bits(users):
                other = level
                if level == RWA:
                    if native >> requester & 1:
                        other = RWA if native >> p & 1 else RW
                    else:
                        other = RW if requester == CPU else RO
                other = min(other, self.allowed(policy, p))
                if other and self.map(block, p, page, other):
                    gained[p] = gained.get(p, 0) | 1 << page
        self.count["maps"] += len(gained)
        self.cost += self.map_ns * len(gained)
        self.tell_remote(block, gained, pins)

    def unrevoked(self, block: Block, processor: int, page: int) -> int:
        """The most that a processor can get without taking rights from another."""
        holders = block.holders(page)
        if not holders:
            return NO
        limit = self.allowed(block.range, processor)
        if holders & holders - 1:
            return min(RO if holders >> processor & 1 else NO, limit)
        if not self.topology.can[processor] & holders:
            return NO
        others = ~(1 << processor)
        native = self.topology.atomics[lowest(holders)]
        if not block.mapping(RO, page):
            return limit
        if block.mapping(RWA, page) & others & ~native:
            return min(RO, limit)
        if native >> processor & 1 or not block.mapping(RW, page) & others:
            return limit
        return min(RW, limit)

    def map_unrevoked(self, block: Block, processor: int, pages: int, cause: int = POLICY) -> None:
        """Mappings that nobody faulted for: not of discarded or duplicated pages."""
        pages &= ~block.discarded & ~(block.duplicated & ~block.resident.get(processor, 0))
        if block.range.preferred == processor:
            pages &= block.resident.get(processor, 0)
        gained = 0
        for page in bits(pages & block.pages):
            level = self.unrevoked(block, processor, page)
            if level > block.protection(processor, page):
                self.map(block, processor, page, level)
                gained |= 1 << page
        self.count["maps"] += gained != 0
        self.cost += self.map_ns * (gained != 0)
        self.tell_remote(block, {processor: gained}, cause=cause)

    def map_accessors(self, block: Block, pages: int) -> None:
        """Processors of accessed_by are mapped again."""
        if block.range.duplication != ENABLED:
            for p in bits(block.range.accessed_by):
                self.map_unrevoked(block, p, pages & ~block.duplicated)

    # -- faults (sections 3.4 and 8.2)

    def service_block(
        self, block: Block, requester: int, faults: dict[int, int], *, counter: bool = False
    ) -> tuple[int, int, int, int]:
        """Serve faults of one processor on one block, by the heads of their pages.

        An access counter asks as if its pages, which are mapped, were prefetched.

        Returns
        -------
        (pages served, pages throttled, until, where)
        """
        topology, rules, policy = self.topology, self.rules, block.range
        served = throttled = pins = 0
        until, best = 0, 255
        targets: dict[int, int] = {}
        copies = 0
        levels: dict[int, int] = {}
        for page in sorted(faults):
            access = faults[page].bit_length() - 1
            whole = self.in_page(page)
            if not counter and block.protection(requester, page) >= NEEDED[access]:
                served |= whole
                continue
            holders = block.holders(page)
            kind, pin = self.thrash.hint(
                block.thrashing, page, requester, holders, policy.preferred, self.now
            )
            if kind == "THROTTLE":
                throttled |= whole
                until = min(until, pin) if until else pin
                continue
            if kind == "PIN":
                pins |= whole
            _, target, duplicate = select_residency(
                topology,
                requester,
                faults[page],
                preferred=policy.preferred,
                accessed_by=policy.accessed_by,
                duplication=policy.duplication,
                duplicated=bool(block.duplicated >> page & 1),
                resident=holders,
                pin=pin if kind == "PIN" else None,
                counter=counter,
                remote_atomics=rules.remote_atomics,
            )
            targets[target] = targets.get(target, 0) | whole
            copies |= whole * duplicate
            levels[page] = access
            served |= whole
            best = target
        cause = GPU_FAULT if requester else CPU_FAULT
        if counter:  # pages that are there already are left, and none is duplicated
            cause, copies = ACCESS_COUNTER, 0
            targets = {t: pages & ~block.resident.get(t, 0) for t, pages in targets.items()}
            targets = {t: pages for t, pages in targets.items() if pages}
        prefetched = ahead = 0
        if len(targets) == 1 and rules.prefetch:
            ((target, pages),) = targets.items()
            prefetched = self.prefetch_pages(block, target, pages)
            targets[target] |= prefetched
            if policy.duplication == ENABLED:
                copies |= prefetched
            ahead = prefetched & ~block.resident.get(target, 0)
        for target in sorted(targets):
            pages = targets[target]
            both = pages & copies & ~block.discarded
            if both:
                self.make_resident(block, target, both, cause, prefetched, duplicate=True)
            if pages & ~both:
                self.make_resident(block, target, pages & ~both, cause, prefetched)
            wanted = {page: levels.get(self.head(page), PREFETCH) for page in bits(pages)}
            self.map_serviced(block, requester, target, wanted, pins)
            self.tell_runs("pin", block, pages & pins, requester, target)
        self.tell_runs("throttle", block, throttled, requester, value=until)
        self.count["prefetched_pages"] += ahead.bit_count()
        self.count["pins"] += self.npages(pins)
        self.count["throttles"] += self.npages(throttled)
        return served, throttled, until, best

    def prefetch_pages(self, block: Block, target: int, faulted: int) -> int:
        """Pages that the prefetcher adds to those that all go to one target."""
        mask, given = prefetch_hint(
            block.prefetch,
            self.rules,
            start=block.start,
            outer=block.outer,
            target=target,
            resident=block.resident.get(target, 0),
            touched=block.anywhere() != 0,
            faulted=faulted,
            thrashing=block.thrashing.thrashing,
            preferred=block.range.preferred,
            cpu_mapped=block.read.get(CPU, 0),
            step=self.unit,
        )
        return mask if given else 0

    def serve_faults(
        self, block: Block, processor: int, faults: dict[int, int]
    ) -> tuple[int, int, int, int] | None:
        """:meth:`service_block` until there is room, with its uses and events; None: no memory."""
        before = self.count["migrated_pages"]
        done: tuple[int, int, int, int] | None = self.operation(
            partial(self.service_block, block, processor, faults)
        )
        if done is not None:
            moved = self.count["migrated_pages"] > before
            pages = sum(self.in_page(page) for page in faults)
            self.tell_runs("served", block, pages, processor, value=moved)
        return done

    def deliver(self, faults: Sequence[tuple[int, ...]]) -> list[tuple[int, str, int]]:
        """Faults that arrive together, delivered once, in batches.

        Parameters
        ----------
        faults : sequence of (processor, page, access) or (processor, page, access, type)
            Access as in a record, 0 to 4; the hardware's fault type, fatal from 5 on.

        Returns
        -------
        list of (errno, reason, where it was served from)
        """
        results: list[tuple[int, str, int]] = []
        rows = [(*fault, 0)[:4] for fault in faults]
        for at in range(0, len(rows), self.rules.batch_size):
            results += self.batch(rows[at : at + self.rules.batch_size])
        for _, reason, _ in results:
            self.count["faults"] += reason == "ok"
            self.count["duplicates"] += reason in DROPPED
        return results

    def fetch(self, faults: int) -> None:
        """A batch of faults is fetched from the buffer."""
        self.tell("batch", 0, 0, value=faults)
        self.cost += self.batch_ns + self.fault_ns * faults

    def batch(self, faults: Sequence[tuple[int, ...]]) -> list[tuple[int, str, int]]:
        """One batch: coalesced, sorted, served block by block."""
        rules, count = self.rules, self.count
        results = [(0, "prefetch_off", NOWHERE)] * len(faults)
        heard = [
            i
            for i, (p, _, access, _) in enumerate(faults)
            if access != PREFETCHED or self.now >= self.prefetch_off[p]
        ]
        if not heard:
            return results
        count["batches"] += 1
        for i in heard:
            results[i] = (0, "duplicate", NOWHERE)
            p, page, access, _ = faults[i]
            self.tell("fault", page, page, p, value=access)
        self.fetch(len(heard))
        faults = [(p, self.head(page), access, kind) for p, page, access, kind in faults]
        levels = {i: LEVELS[faults[i][2]] for i in heard}
        order = sorted(heard, key=lambda i: (faults[i][0], faults[i][1], -levels[i], i))
        plain = [i for i in heard if faults[i][3] < FATAL]
        #: Representatives: the levels that each stands for, and its instances.
        leaders = {i: (1 << levels[i], 1) for i in plain}
        if rules.coalesce:
            entries = [(faults[i][1], levels[i], faults[i][0], faults[i][0]) for i in plain]
            leaders = {plain[i]: (mask, instances) for i, mask, instances in coalesce(entries)}
        groups: dict[tuple[int, int, int], FaultGroup] = {}
        doomed, last = False, (-1, -1)
        for i in order:
            processor, page, access, kind = faults[i]
            r = self.range_at(page)
            key = (processor, -1 if r is None else r.first, page // BLOCK)
            if kind >= FATAL or (r is None and access != PREFETCHED):
                reason = "fault_type" if kind >= FATAL else "no_mapping"
                results[i] = (-(Errno.EIO if kind >= FATAL else Errno.EFAULT), reason, NOWHERE)
                doomed = True
                if key in groups:
                    groups[key].fatal = True
            elif r is None:
                results[i] = (0, "invalid_prefetch", NOWHERE)
            elif i in leaders and (processor, page) != last:  # else a duplicate of that one
                last = (processor, page)
                group = groups.setdefault(key, FaultGroup(processor, r, page // BLOCK))
                group.pages[page % BLOCK], group.who[page % BLOCK] = leaders[i][0], i
                group.fatal = doomed
        self.flag_prefetches(
            [
                (faults[i][0], n)
                for i, (_, n) in leaders.items()
                if results[i][1] == "invalid_prefetch"
            ]
        )
        again: list[tuple[FaultGroup, int]] = []
        failed: set[int] = set()
        replayed = False
        for group in groups.values():
            if group.processor in failed:
                continue
            waiting = self.serve_group(group, results)
            if waiting is None:
                failed.add(group.processor)
                continue
            if waiting:
                again.append((group, waiting))
            if rules.replay_policy == "block" and not group.fatal:
                count["replays"] += 1
                replayed = True
        again = [(group, waiting) for group, waiting in again if group.processor not in failed]
        for i in order:  # an error of all that the GPU faulted for
            if faults[i][0] in failed and faults[i][2] != PREFETCHED:
                results[i] = (-Errno.ENOMEM, "out_of_memory", NOWHERE)
        if doomed:
            self.cancel_path(
                sum(results[i][0] != 0 for i in heard) + sum(self.npages(n) for _, n in again)
            )
            for group, waiting in again:
                some = FaultGroup(
                    group.processor,
                    group.range,
                    group.frame,
                    {page: group.pages[page] for page in heads(waiting, self.unit)},
                    {page: group.who[page] for page in heads(waiting, self.unit)},
                )
                if self.serve_group(some, results) is None:
                    for i in some.who.values():
                        results[i] = (-Errno.ENOMEM, "out_of_memory", NOWHERE)
            self.cancel_all(faults, results, order)
        elif failed:
            self.cancel_all(faults, results, order)
            count["replays"] += not replayed
        else:
            count["replays"] += rules.replay_policy != "block"
        return results

    def serve_group(self, group: FaultGroup, results: list[tuple[int, str, int]]) -> int | None:
        """Serve one group of a batch; its throttled pages, None without memory."""
        block = self.block_of(group.range, group.frame)
        mapped = {
            page
            for page, mask in group.pages.items()
            if block.protection(group.processor, page) >= NEEDED[mask.bit_length() - 1]
        }
        done = self.serve_faults(block, group.processor, group.pages)
        if done is None:
            return None
        self.use(block, group.processor, done[0])
        for page, i in group.who.items():
            if done[1] >> page & 1:
                results[i] = (0, "retry_later", NOWHERE)
            elif page not in mapped:
                results[i] = (0, "ok", done[3])
            else:
                results[i] = (0, "duplicate", NOWHERE)
        return done[1]

    def flag_prefetches(self, flagged: list[tuple[int, int]]) -> None:
        """Prefetch faults (processor, instances) on unknown addresses; too many stop them all."""
        self.count["invalid_prefetches"] += sum(n for _, n in flagged)
        for gpu in self.prefetch_off:
            instances = sum(n for p, n in flagged if p == gpu)
            if self.rules.prefetch_fault_lapse_ms and instances * 3 > self.rules.batch_size * 2:
                self.prefetch_off[gpu] = self.now + self.rules.prefetch_fault_lapse_ms * 1_000_000
                self.count["prefetch_stops"] += 1

    def cancel_path(self, faults: int) -> None:
        """A batch with fatal faults: what is left of it comes once more (section 3.5).

        Parameters
        ----------
        faults : int
            Entries that come again after the first replay. The second follows the cancels.
        """
        self.count["fatal_batches"] += 1
        self.count["replays"] += 2
        self.fetch(faults)

    def cancel_all(
        self,
        faults: Sequence[tuple[int, ...]],
        results: list[tuple[int, str, int]],
        order: list[int],
    ) -> None:
        """Faults of a batch that ended with an error are cancelled, each page once."""
        last = (-1, -1)
        for i in order:
            processor, page = faults[i][:2]
            if results[i][0] and (processor, page) != last:
                last = (processor, page)
                self.cancel(processor, page, page, results[i][1])

    def cancel(self, processor: int, first: int, last: int, reason: str) -> None:
        """Faults on pages end with the access: nothing serves them."""
        self.count["cancels"] += last - first + 1
        self.tell("cancel", first, last, processor, value=FATAL_REASONS[reason])

    # -- touches

    def touched(self, block: Block, processor: int, pages: int) -> None:
        """Mapped pages answer a touch: of a page of 64 KiB, what the touch covers."""
        first, last = self.asked
        base = block.frame * BLOCK
        pages &= span(max(first - base, 0), max(min(last + 1 - base, BLOCK), 0))
        away = pages & ~block.resident.get(processor, 0)
        self.remote += away.bit_count()
        if processor != CPU and self.counting:
            self.count_touches(block, processor, away)
        if pages:
            self.use(block, processor, pages)

    def count_touches(self, block: Block, gpu: int, pages: int) -> None:
        """Remote touches fill the GPU's counter of a block; a full one notifies, once."""
        counter = block.counters.setdefault(gpu, AccessCounter())
        for page in range(0, BLOCK, BIG):
            touches = (pages & span(page, page + BIG)).bit_count()
            if touches and counter.notified < 0:
                counter.flagged |= 1 << page // BIG
                counter.count = min(counter.count + touches, self.rules.access_counter_threshold)
                if counter.count == self.rules.access_counter_threshold:
                    counter.notified = page
                    self.notices.append((block, gpu))

    def serve_notices(self) -> None:
        """Notifications of a touch are served by address, a batch at a time (section 6)."""
        most = self.rules.access_counter_batch
        notices, self.notices = self.notices, []
        notices.sort(key=lambda notice: notice[0].frame * BLOCK + notice[0].start)
        for at in range(0, len(notices), most):
            batch = notices[at : at + most]
            self.settle()
            self.step(self.now)
            self.cost += self.batch_ns + self.fault_ns * len(batch)
            self.count["notifications"] += len(batch)
            for block, gpu in batch:
                asked = dict.fromkeys(heads(self.candidates(block, gpu), self.unit), 1 << PREFETCH)
                served = self.operation(
                    partial(self.service_block, block, gpu, asked, counter=True)
                )
                if served is not None:
                    block.counters[gpu] = AccessCounter()

    def candidates(self, block: Block, gpu: int) -> int:
        """Pages that a full counter wants: those of the touched regions that lie together."""
        counter = block.counters[gpu]
        holders = block.holders(counter.notified)
        if not holders or holders >> gpu & 1 or not block.read.get(gpu):
            return 0
        if not block.full:
            return span(counter.notified, counter.notified + BIG)
        pages = sum(span(slot * BIG, slot * BIG + BIG) for slot in bits(counter.flagged))
        return pages & block.resident[self.topology.closest(holders, gpu)]

    def access(
        self, processor: int, first: int, last: int, access: int
    ) -> tuple[int, str, int, int, int, int]:
        """A touch until it is served or fatal; results as of the compiled process."""
        self.remote = self.served = self.dropped = self.page = 0
        before = self.count["migrated_pages"]
        self.asked = first, last
        first, last = self.whole(first, last)
        self.step(self.now)
        if processor == CPU:
            ret, reason = self.touch_cpu(first, last, ATOMIC_STRONG if access in (1, 2) else READ)
        elif not self.gpus[processor - 1].svm:
            ret, reason, self.page = -Errno.EPERM, "no_svm", first
        else:
            ret, reason = self.touch_gpu(processor, first, last, TOUCHES[access])
        if self.remote:
            rate = self.costs.remote_bytes_per_s
            self.cost += int(self.costs.remote_access_ns + 4096e9 / rate * self.remote)
        self.serve_notices()
        self.settle()
        self.moved = self.count["migrated_pages"] - before
        self.count["faults"] += self.served
        self.count["duplicates"] += self.dropped
        return ret, reason, self.served, self.dropped, self.remote, self.page if ret else 0

    def collect(
        self, processor: int, level: int, page: int, last: int, most: int, *, look: bool = False
    ) -> tuple[list[tuple[Block, int]], int, int]:
        """The next faults of a touch: (block, pages) in order, where they end, how many.

        They are as many as pages of the kernel. Pages that are mapped are touched on the
        way, unless it only looks.
        """
        chunk: list[tuple[Block, int]] = []
        found = 0
        while page <= last and found < most:
            r = self.range_at(page)
            if r is None:
                break
            frame, low = divmod(page, BLOCK)
            outer = min(r.last + 1 - frame * BLOCK, last + 1 - frame * BLOCK, BLOCK)
            block = r.blocks.get(frame)
            have = block.tables()[NEEDED[level] - 1].get(processor, 0) if block else 0
            missing = span(low, outer) & ~have
            if self.npages(missing) > most - found:
                outer = next(islice(heads(missing, self.unit), most - found, None))
                missing &= span(low, outer)
            if block and not look:
                self.touched(block, processor, have & span(low, outer))
            if missing:
                found += self.npages(missing)
                if not look:
                    chunk.append((self.block_of(r, frame), missing))
            page = frame * BLOCK + outer
        return chunk, page, found

    def touch_gpu(self, processor: int, first: int, last: int, level: int) -> tuple[int, str]:
        """A GPU's touch: batches of the pages that it cannot reach."""
        rules, page = self.rules, first
        flush = rules.replay_policy == "batch_flush"
        while page <= last:
            if self.range_at(page) is None:
                self.page = page
                self.touch_nothing(processor, page, level)
                return -Errno.EFAULT, "no_mapping"
            end, total, size = last, 0, min(rules.batch_size, rules.outstanding)
            if not flush:  # what is in the buffer now is served first
                _, end, total = self.collect(
                    processor, level, page, last, rules.outstanding, look=True
                )
                end -= 1
            served = batches = throttled = 0
            while batches < rules.max_batches and throttled < rules.max_throttled:
                chunk, page, found = self.collect(processor, level, page, end, size)
                if not chunk:
                    break
                batches += 1
                served += found
                self.settle()
                self.step(self.now)
                ret, reason, held = self.serve(processor, level, chunk)
                if ret:
                    return ret, reason
                throttled += held
            if batches:
                self.count["services"] += 1
                self.count["replays"] += rules.replay_policy == "once"
            if not flush:
                self.dropped += max(total - served, 0)
        return 0, "ok"

    def touch_nothing(self, processor: int, page: int, level: int) -> None:
        """A fault on an unknown address, alone in its batch."""
        self.count["batches"] += 1
        self.count["services"] += 1
        self.tell("fault", page, page, processor, value=LEVELS.index(level))
        self.fetch(1)
        self.cancel_path(1)
        self.cancel(processor, page, page, "no_mapping")

    def serve(
        self, processor: int, level: int, chunk: list[tuple[Block, int]]
    ) -> tuple[int, str, bool]:
        """One batch of a touch, again for its throttled pages until all are served."""
        waiting, held = chunk, False
        for _ in range(RETRIES):
            until, again = 0, []
            count = sum(self.npages(pages) for _, pages in waiting)
            self.count["batches"] += 1
            for block, pages in waiting:
                self.tell_runs("fault", block, pages, processor, value=LEVELS.index(level))
            self.fetch(count)
            for block, pages in waiting:
                asked = dict.fromkeys(heads(pages, self.unit), 1 << level)
                done = self.serve_faults(block, processor, asked)
                if done is None:
                    for failed, lost in waiting:
                        for first, outer in runs(lost):
                            base = failed.frame * BLOCK
                            self.cancel(processor, base + first, base + outer - 1, "out_of_memory")
                    self.page = block.frame * BLOCK + lowest(pages)
                    return -Errno.ENOMEM, "out_of_memory", held
                self.count["replays"] += self.rules.replay_policy == "block"
                served, throttled, end, _ = done
                self.touched(block, processor, served)
                self.served += self.npages(served)
                if throttled:
                    self.dropped += self.npages(throttled)
                    until = min(until, end) if until else end
                    again.append((block, throttled))
            self.count["replays"] += self.rules.replay_policy in ("batch", "batch_flush")
            if not again:
                return 0, "ok", held
            self.wait(until)
            waiting, held = again, True
        self.page = waiting[0][0].frame * BLOCK + lowest(waiting[0][1])
        return -Errno.ELOOP, "never_resolves", held

    def wait(self, until: int) -> None:
        """A throttled fault comes again when its time is over."""
        self.settle()
        self.step(until if until > self.now else self.now + 64)

    def touch_cpu(self, first: int, last: int, level: int) -> tuple[int, str]:
        """A CPU faults page by page (section 8.2)."""
        page, tries = first, 0
        while page <= last:
            r = self.range_at(page)
            self.page = page
            if r is None:
                return -Errno.EFAULT, "no_mapping"
            if self.allowed(r, CPU) < NEEDED[level]:
                return -Errno.EPERM, "permission"
            before = page
            chunk, after, _ = self.collect(CPU, level, page, min(last, r.last), 1)
            if not chunk:
                page = after
                continue
            self.settle()
            self.step(self.now)
            ((block, pages),) = chunk
            self.page = block.frame * BLOCK + lowest(pages)
            tries = tries + 1 if before == self.page else 1
            self.tell("fault", self.page, self.page, CPU, value=int(level > READ))
            self.cost += self.batch_ns + self.fault_ns
            done = self.serve_faults(block, CPU, {lowest(pages): 1 << level})
            if done is None:
                return -Errno.ENOMEM, "out_of_memory"
            served, throttled, until, _ = done
            if throttled:
                if tries == RETRIES:
                    return -Errno.ELOOP, "never_resolves"
                self.dropped += 1
                self.wait(until)
                page = self.page
            else:
                self.served += 1
                self.touched(block, CPU, served)
                page = after
        return 0, "ok"

    # -- mappings

    def mmap(self, first: int, last: int, prot: str = "rw", kind: str = "anon") -> int:
        """Managed memory appears."""
        if kind != "anon":
            return -Errno.EOPNOTSUPP
        asked, (first, last) = (first, last), self.whole(first, last)
        # A page that two mappings share belongs to the one before.
        if first < asked[0] and self.range_at(first):
            first += self.unit
        if last > asked[1] and self.range_at(last):
            last -= self.unit
        if first > last:
            return 0
        if self.span_of(first, last):
            return -Errno.EEXIST
        self.ranges_by_start[first] = Range(first, last, ("r" in prot) | ("w" in prot) << 1)
        return 0

    def cut_at(self, page: int, differs: Callable[[Range], bool] = lambda r: True) -> None:
        """Cut the range around a page before it, where it differs."""
        r = self.range_at(page)
        if r is not None and r.first < page and differs(r):
            self.split(r, page)

    def munmap(self, first: int, last: int) -> int:
        """Managed memory goes, with all that lies in it."""
        first, last = self.whole(first, last)
        self.cut_at(first)
        self.cut_at(last + 1)
        for r in self.span_of(first, last):
            for frame in sorted(r.blocks):
                block = r.blocks[frame]
                self.thrash.forget(block.thrashing)
                for gpu in sorted(block.chunks):
                    for page in sorted(block.chunks[gpu]):
                        self.free_chunk(block, gpu, page)
            del self.ranges_by_start[r.first]
        return 0

    def mprotect(self, first: int, last: int, prot: str) -> int:
        """Protection changes for the CPU; a hole stops it."""
        first, last = self.whole(first, last)
        code, page = ("r" in prot) | ("w" in prot) << 1, first
        while page <= last:
            r = self.range_at(page)
            if r is None:
                return -Errno.ENOMEM
            if r.prot != code:
                for at in (page, last + 1):
                    self.cut_at(at, lambda r: r.prot != code)
                r = self.range_at(page)
                assert r is not None
                r.prot = code
                for block, pages in self.blocks_in(r, page, last, make=False):
                    if not code & 1:
                        self.unmap(block, pages, 1 << CPU)
                    elif not code & 2:
                        for table in (block.write, block.atomic):
                            table[CPU] = table.get(CPU, 0) & ~pages
            page = r.last + 1
        return 0

    def invalidate(self, first: int, last: int) -> int:
        """CPU page table entries go."""
        first, last = self.whole(first, last)
        for r in self.span_of(first, last):
            for block, pages in self.blocks_in(r, first, last, make=False):
                self.unmap(block, pages, 1 << CPU)
        return 0

    # -- advice and migration (sections 2 and 8.1)

    def home(self, processor: int) -> int:
        """An integrated GPU's memory is the CPU's."""
        return processor if self.topology.memory >> processor & 1 else CPU

    def advise(self, word: str, on: bool, first: int, last: int, processor: int = 0) -> int:
        """Advice by its neutral word; words that mean nothing here change nothing."""
        first, last = self.whole(first, last)
        if not self.covered(first, last):
            return -Errno.EFAULT
        if word == "discard":
            for r in self.span_of(first, last):
                for block, pages in self.blocks_in(r, first, last, make=False):
                    self.discard_block(block, pages)
        elif word == "preferred_location":
            self.set_preferred(first, last, self.home(processor) if on else None)
        elif word in ("accessed_by", "access_in_place"):
            self.set_accessed_by(first, last, processor, on)
        elif word == "read_mostly":
            self.set_duplication(first, last, ENABLED if on else DISABLED)
        return 0

    def change(
        self, first: int, last: int, differs: Callable[[Range], bool]
    ) -> Iterator[tuple[Range, list[Block]]]:
        """Ranges that advice changes, cut at its ends, with their blocks."""
        self.cut_at(first, differs)
        self.cut_at(last + 1, differs)
        for r in self.span_of(first, last):
            if differs(r):
                yield r, [r.blocks[frame] for frame in sorted(r.blocks)]

    def set_preferred(self, first: int, last: int, place: int | None) -> None:
        """Nothing moves; the old place may be mapped, the new one loses remote mappings."""
        for r, blocks in self.change(first, last, lambda r: r.preferred != place):
            before, r.preferred = r.preferred, place
            if r.duplication == ENABLED:
                continue
            for block in blocks:
                if before is not None and r.accessed_by >> before & 1:
                    self.map_unrevoked(block, before, block.pages & ~block.duplicated)
                if place is not None:
                    self.unmap(block, block.pages & ~block.resident.get(place, 0), 1 << place)

    def set_accessed_by(self, first: int, last: int, processor: int, on: bool) -> None:
        """Nothing moves; the processor is mapped to what it can reach."""
        for r, blocks in self.change(first, last, lambda r: r.accessed_by >> processor & 1 != on):
            r.accessed_by ^= 1 << processor
            if on and r.duplication != ENABLED:
                for block in blocks:
                    self.map_unrevoked(block, processor, block.pages & ~block.duplicated)

    def set_duplication(self, first: int, last: int, value: int) -> None:
        """Enabled: copies become read-only; disabled: they collapse."""
        for r, blocks in self.change(first, last, lambda r: r.duplication != value):
            r.duplication = value
            for block in blocks:
                if value == DISABLED:
                    self.collapse(block, block.pages)
                    self.map_accessors(block, block.pages)
                    continue
                for p in range(1 + len(self.gpus)):
                    own = block.resident.get(p, 0)
                    for table in (block.write, block.atomic):
                        table[p] = table.get(p, 0) & ~own
                    self.unmap(block, block.anywhere() & ~own, 1 << p)

    def collapse(self, block: Block, pages: int) -> None:
        """Of several copies one stays: the preferred location's, else the lowest processor's."""
        pages &= block.duplicated
        preferred = block.range.preferred
        order = [*([] if preferred is None else [preferred]), *sorted(block.resident)]
        for p in order:
            mine = pages & block.resident.get(p, 0)
            pages &= ~mine
            if mine:
                self.make_resident(block, p, mine, ADVICE)

    def discard_block(self, block: Block, pages: int) -> None:
        """The contents are not needed any more; with the driver's UNMAP flag."""
        self.collapse(block, pages)
        pages &= block.anywhere() | block.discarded
        block.discarded |= pages
        self.unmap(block, pages, -1)
        for gpu in sorted(block.resident):
            had = block.resident[gpu]
            block.resident[gpu] &= ~pages
            if block.full and gpu != CPU and had and not block.resident[gpu]:
                self.enlist(block.chunks[gpu][0][0], UNUSED)

    def prefetch(self, first: int, last: int, processor: int) -> int:
        """Pages move to a processor's memory now (the migrate call)."""
        first, last = self.whole(first, last)
        if not self.covered(first, last):
            return -Errno.EFAULT
        target = self.home(processor)
        frames = sum(
            min(last, r.last) // BLOCK - max(first, r.first) // BLOCK + 1
            for r in self.span_of(first, last)
        )
        several = frames > 1
        for maps in (False, True) if several else (True,):
            for r in self.span_of(first, last):
                for block, pages in self.blocks_in(r, first, last, make=True):
                    done = self.operation(partial(self.migrate_block, block, pages, target, maps))
                    if done is None:
                        return -Errno.ENOMEM
        return 0

    def migrate_block(self, block: Block, pages: int, target: int, maps: bool) -> bool:
        """Pages of a block move, and are mapped where they are."""
        policy = block.range
        gone = block.discarded & pages
        if policy.duplication == ENABLED:
            if pages & ~gone:
                self.make_resident(block, target, pages & ~gone, USER, duplicate=True)
            if gone:
                home = target if policy.preferred is None else policy.preferred
                self.make_resident(block, home, gone, USER)
        else:
            self.make_resident(block, target, pages, USER)
        block.discarded &= ~pages
        if maps:
            self.map_unrevoked(block, target, pages)
            self.map_accessors(block, pages)
        return True

    def evict(self, page: int) -> int:
        """Memory pressure takes the chunk under a page; -ENOENT without one."""
        r = self.range_at(page)
        block = r.blocks.get(page // BLOCK) if r else None
        if block:
            for gpu in sorted(block.chunks):
                for first, size in block.cut():
                    if first <= page % BLOCK < first + size and first in block.chunks[gpu]:
                        self.evict_root(block.chunks[gpu][first][0])
                        return 0
        return -Errno.ENOENT

    # -- views

    def explain(self, page: int, processor: int, access: int) -> tuple[str, int]:
        """The rule that decides a touch now, and the place (-1: none); nothing changes."""
        level = (READ, WRITE, ATOMIC_STRONG)[access]
        if processor == CPU and access:
            level = ATOMIC_STRONG
        r = self.range_at(page)
        if r is None:
            return "no mapping", -1
        if self.allowed(r, processor) < NEEDED[level]:
            return "protection", -1
        block = (
            self.block_of(r, page // BLOCK) if page // BLOCK in r.blocks else Block(0, 0, BLOCK, r)
        )
        bit = page % BLOCK
        holders = block.holders(bit)
        if block.protection(processor, bit) >= NEEDED[level]:
            counted = self.counting and processor != CPU and not holders >> processor & 1
            rule = "access counter" if counted else "mapped"
            return rule, self.topology.closest(holders, processor)
        known = (block.thrashing.pages or {}).get(self.head(bit), ThrashingPage())
        if (
            known.throttled >> processor & 1
            and self.now < known.end
            and processor != known.favoured
        ):
            return "throttled", -1
        rule, place, _ = select_residency(
            self.topology,
            processor,
            1 << level,
            preferred=r.preferred,
            accessed_by=r.accessed_by,
            duplication=r.duplication,
            duplicated=bool(block.duplicated >> bit & 1),
            resident=holders,
            pin=known.pin_at if known.pinned else None,
            remote_atomics=self.rules.remote_atomics,
        )
        return rule, place

    def copies(self, page: int) -> int:
        """Processors with a copy of a page."""
        r = self.range_at(page)
        block = r.blocks.get(page // BLOCK) if r else None
        return block.holders(page % BLOCK) if block else 0

    def ranges(self) -> list[tuple[int, int, int, int, int, int]]:
        """(first, last, protection, preferred or -1, accessed by, read duplication) of each."""
        return [
            (
                r.first,
                r.last,
                r.prot,
                -1 if r.preferred is None else r.preferred,
                r.accessed_by,
                r.duplication,
            )
            for r in self.ranges_by_start.values()
        ]

    def snapshot(self) -> dict[str, Any]:
        """Everything that decides what happens next, in plain values."""
        blocks = {}
        for block in self.all_blocks():
            thrashing = block.thrashing
            pages = None
            if thrashing.pages is not None:
                pages = {
                    n: tuple(vars(p).values())
                    for n, p in sorted(thrashing.pages.items())
                    if p != ThrashingPage()
                }
            blocks[block.frame * BLOCK + block.start] = {
                "outer": block.outer,
                "resident": _nonzero(block.resident),
                "tables": [_nonzero(table) for table in block.tables()],
                "duplicated": block.duplicated,
                "discarded": block.discarded,
                "chunks": {
                    gpu: sorted((page, offset) for page, (_, offset) in chunks.items())
                    for gpu, chunks in sorted(block.chunks.items())
                    if chunks
                },
                "prefetch": (block.prefetch.last, block.prefetch.faults),
                "counters": {
                    gpu: (c.count, c.flagged, c.notified)
                    for gpu, c in sorted(block.counters.items())
                    if c != AccessCounter()
                },
                "thrashing": (
                    thrashing.thrashing,
                    thrashing.pinned,
                    thrashing.processor,
                    thrashing.stamp,
                    thrashing.last_thrashing,
                    thrashing.resets,
                    thrashing.pins,
                    pages,
                ),
            }
        where = {b.thrashing: b.frame * BLOCK + b.start for b in self.all_blocks()}
        return {
            "now": self.now,
            "cost": self.cost,
            "ranges": self.ranges(),
            "blocks": blocks,
            "lists": {
                gpu: [[(*self.root_key(root), root.age) for root in entries] for entries in lists]
                for gpu, lists in self.lists.items()
            },
            "stacks": {
                gpu: [
                    [self.root_key(root) for root in stack]
                    for stack in (self.with_whole[gpu], self.with_small[gpu])
                ]
                for gpu in self.held
            },
            "order": self.order_state() if self.order else (),
            "held": dict(self.held),
            "taken": dict(self.taken),
            "queue": [
                (deadline, where[block], page) for deadline, block, page in self.thrash.queue
            ],
            "lapse": (self.thrash.lapse, self.thrash.votes, self.thrash.timer),
            "prefetch_off": dict(self.prefetch_off),
            "count": dict(self.count),
            "used": {gpu: self.memory.used.get(gpu, 0) for gpu in self.held},
        }

    def order_state(self) -> tuple[Any, ...]:
        """The strategy's order, what it has drawn, its generator."""
        assert self.order is not None
        rows = {
            gpu: [
                (self.root_key(root), stamp, uses)
                for root, stamp, uses in self.order.rows.get(gpu, [])
            ]
            for gpu in self.held
        }
        drawn = {gpu: self.root_key(root) for gpu, root in self.order.drawn.items()}
        return rows, drawn, self.order.random

    @staticmethod
    def root_key(root: Root) -> tuple[Any, ...]:
        """What a chunk is, by what lies in it."""
        return tuple(
            (offset, size, block.frame * BLOCK + page)
            for offset, size, block, page in (
                [(0, BLOCK, root.block, 0)]
                if root.block is not None
                else [(o, *root.chunks[o]) for o in sorted(root.chunks)]
            )
        )

    def check(self) -> None:
        """Invariants of section 1 and of device memory."""
        total = dict.fromkeys(self.held, 0)
        for block in self.all_blocks():
            anywhere, several = block.anywhere(), 0
            seen = 0
            masks = [block.duplicated, block.discarded, *block.resident.values()]
            masks += [mask for table in block.tables() for mask in table.values()]
            firsts, full = sum(1 << page for page in range(0, BLOCK, self.unit)), self.in_page(0)
            for mask in (block.pages, *masks):
                assert mask == (mask & firsts) * full, "pages are whole"
            for p, mask in block.resident.items():
                assert not mask & ~block.pages
                several |= seen & mask
                seen |= mask
                if p:
                    total[p] += mask.bit_count()
                    under = sum(
                        span(page, page + size)
                        for page, size in block.cut()
                        if page in block.chunks.get(p, {})
                    )
                    assert not mask & ~under, "resident pages are populated"
            assert several == block.duplicated, "duplicated pages have several copies"
            for p in range(1 + len(self.gpus)):
                read, write, atomic = (table.get(p, 0) for table in block.tables())
                assert not (atomic & ~write | write & ~read), "more rights without less"
                assert not read & ~anywhere, "a mapped page is somewhere"
                assert not write & block.duplicated, "a duplicate is read-only"
                assert not read & block.duplicated & ~block.resident.get(p, 0)
        for gpu, pages in total.items():
            assert pages <= self.gpus[gpu - 1].vram_pages, "more pages than memory"
            assert self.taken[gpu] <= self.memory.used.get(gpu, 0) <= self.gpus[gpu - 1].vram_pages
            assert self.taken[gpu] <= self.quota, "no more memory than the quota"


def _nonzero(masks: dict[int, int]) -> dict[int, int]:
    return {p: mask for p, mask in sorted(masks.items()) if mask}
