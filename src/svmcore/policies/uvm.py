"""NVIDIA's UVM driver as a policy; its decisions are compiled in ``_uvm``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..attributes import Attribute, Flag
from ..errors import InvalidArgumentError
from ..machine import Gpu, Machine
from ..units import BLOCK_PAGES, PAGE_SHIFT, PAGE_SIZE
from .base import Policy, register

__all__ = ["REPLAY_POLICIES", "ManagedRange", "Uvm"]

#: When the driver lets the GPU go on: numbers of ``uvm_perf_fault_replay_policy``.
REPLAY_POLICIES = ("block", "batch", "batch_flush", "once")
#: Attributes that stand for advice of CUDA, beside the flag of read mostly.
_HEEDED = (
    Attribute.PREFERRED_LOC,
    Attribute.PREFETCH_LOC,
    Attribute.ACCESS_IN_PLACE,
    Attribute.NO_ACCESS,
)
_LAPSES = ("default", "off", "shipped", "intended")
_BOUNDS = {
    "batch_size": (1, 4096),
    "outstanding": (1, 1 << 20),
    "max_batches": (1, 1 << 20),
    "max_throttled": (1, 1 << 20),
    "prefetch_threshold": (0, 100),
    "prefetch_min_faults": (1, 20),
    "thrashing_threshold": (1, 7),
    "pin_threshold": (1, 255),
    "lapse_us": (1, 1 << 32),
    "nap": (1, 100),
    "epoch": (1, 1 << 20),
    "pin": (0, 1 << 20),
    "max_resets": (0, 1 << 31),
    "lapse_votes": (1, 1 << 31),
    "access_counter_threshold": (1, 65535),
    "access_counter_batch": (1, 4096),
    "pma_batch_order": (0, 20),
    "prefetch_fault_lapse_ms": (0, 1 << 32),
    "seed": (0, (1 << 64) - 1),
}


@register("uvm")
@dataclass(frozen=True)
class Uvm(Policy):
    """NVIDIA UVM: blocks of 2 MiB, batches of faults, a prefetch tree, thrashing detection.

    Defaults are the driver's; a value outside the driver's bounds is an error here,
    where the driver would take the default.

    Parameters
    ----------
    driver : str
        Driver version, 515 or later. From 590 on the lapse adapts and nothing is
        prefetched to a place other than the preferred one.
    adaptive_lapse : str
        ``default`` for the driver's version; ``off``; ``shipped``, where short gaps
        lengthen the lapse too; ``intended``, where they shorten it.
    pad_quirk : bool or None
        Pages before the first 64 KiB border of a block are left out of larger
        prefetches; None: as the driver's version does.
    peer_access : bool
        GPUs without NVLink between them may address each other over PCIe.
    outstanding : int
        Pages for which one touch has faults pending at once; 1 is a sweep that
        stops at each fault.
    batch_size, replay_policy, coalesce, max_batches, max_throttled
        ``uvm_perf_fault_batch_count``, ``_replay_policy``: ``block``, ``batch``,
        ``batch_flush`` or ``once``, ``_coalesce``, ``_max_batches_per_service``,
        ``_max_throttle_per_service``.
    prefetch, prefetch_threshold, prefetch_min_faults
        ``uvm_perf_prefetch_enable``, ``_threshold`` (percent), ``_min_faults``.
    thrashing, thrashing_threshold, pin_threshold, lapse_us, nap, epoch, pin, max_resets
        ``uvm_perf_thrashing_enable`` and the rest; nap, epoch and pin in lapses,
        pin 0: for ever.
    lapse_votes : int
        ``uvm_perf_lapse_vote_threshold``.
    remote_atomics : bool
        ``uvm_perf_map_remote_on_native_atomics_fault``.
    access_counters : bool or None
        ``uvm_perf_access_counter_migration_enable``: pages that a GPU touches remotely
        move; None: on where a GPU of the machine is coherent. With 4 KiB pages
        notifications are dropped, and only evictions behave otherwise.
    access_counter_threshold, access_counter_batch
        ``uvm_perf_access_counter_threshold``, in touches of 4 KiB pages, and
        ``_batch_count``.
    map_remote_on_eviction : bool
        ``uvm_perf_map_remote_on_eviction``: with access counters, an evicted GPU is
        mapped to the copy in system memory.
    prefetch_fault_lapse_ms : int
        ``uvm_perf_reenable_prefetch_faults_lapse_msec``: how long a GPU reports no prefetch
        faults after a batch with too many invalid ones; 0: it always does.
    pma_batch_order : int
        ``uvm_perf_pma_batch_nonpinned_order``: 2 MiB chunks taken at once, log2.
    eviction : str
        Which used chunk goes first from a full GPU: ``driver``, its own list; ``fifo``,
        ``lru``, ``mru``, ``lfu``, ``random`` or ``second_chance``, whose uses are touches,
        those without a fault too. They go the long way and are slower to compute.
    seed : int
        Of ``random``.
    quota_pages : int or None
        Most pages of 4 KiB that the process takes of one GPU's memory, those of chunks
        that it keeps free too; at least a chunk of 512. None: no limit.

    Source
    ------
    NVIDIA open GPU kernel modules, 595.45.04; ``docs/explain/uvm.md``.
    """

    ADVICE: ClassVar[tuple[str, ...]] = (
        "preferred_location",
        "accessed_by",
        "access_in_place",
        "read_mostly",
        "prefetch",
        "discard",
    )

    PAGE_SIZES: ClassVar[tuple[int, ...]] = (PAGE_SIZE, 1 << 16)

    # A fault is always one of a batch.
    costs_used: ClassVar[tuple[str, ...]] = (
        "fault_batch_ns",
        "fault_in_batch_ns",
        "unmap_ns",
        "migrate_latency_ns",
        "migrate_bytes_per_s",
        "to_device_curve",
        "to_host_curve",
        "peer_latency_ns",
        "peer_bytes_per_s",
        "peer_curve",
        "remote_access_ns",
        "remote_bytes_per_s",
        "evict_ns",
        "map_ns",
    )

    driver: str = "595"
    adaptive_lapse: str = "default"
    pad_quirk: bool | None = None
    peer_access: bool = False
    outstanding: int = 256
    batch_size: int = 256
    replay_policy: str = "batch_flush"
    coalesce: bool = True
    max_batches: int = 20
    max_throttled: int = 5
    prefetch: bool = True
    prefetch_threshold: int = 51
    prefetch_min_faults: int = 1
    thrashing: bool = True
    thrashing_threshold: int = 3
    pin_threshold: int = 10
    lapse_us: int = 500
    nap: int = 1
    epoch: int = 2000
    pin: int = 300
    max_resets: int = 4
    lapse_votes: int = 32
    remote_atomics: bool = False
    access_counters: bool | None = None
    access_counter_threshold: int = 256
    access_counter_batch: int = 256
    map_remote_on_eviction: bool = True
    prefetch_fault_lapse_ms: int = 1000
    pma_batch_order: int = 6
    eviction: str = "driver"
    seed: int = 0
    quota_pages: int | None = None

    KEEPER: ClassVar[str] = "_uvm_state"

    def __post_init__(self) -> None:
        from .._evict import ORDERS

        version = self.driver.split(".")
        if not all(part.isdigit() for part in version) or int(version[0]) < 515:
            raise InvalidArgumentError(
                f"policy uvm: driver = {self.driver!r}, expected a version from 515 on"
            )
        for name, known in (
            ("adaptive_lapse", _LAPSES),
            ("replay_policy", REPLAY_POLICIES),
            ("eviction", ("driver", *ORDERS)),
        ):
            if getattr(self, name) not in known:
                raise InvalidArgumentError(
                    f"policy uvm: {name} = {getattr(self, name)!r}, "
                    f"expected one of {', '.join(known)}"
                )
        if self.quota_pages is not None and not BLOCK_PAGES <= self.quota_pages < 1 << 52:
            raise InvalidArgumentError(
                f"policy uvm: quota_pages = {self.quota_pages}, expected {BLOCK_PAGES} or more, "
                "the pages of a chunk"
            )
        for name, (low, high) in _BOUNDS.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidArgumentError(
                    f"policy uvm: {name} = {getattr(self, name)}, expected {low} to {high}"
                )

    @property
    def version(self) -> tuple[int, ...]:
        """The driver's version, in numbers."""
        return tuple(int(part) for part in self.driver.split("."))

    @property
    def lapse_mode(self) -> str:
        """How the lapse adapts: off, shipped or intended; never where it was set by hand."""
        if self.lapse_us != 500:
            return "off"
        if self.adaptive_lapse != "default":
            return self.adaptive_lapse
        return "shipped" if self.version >= (590,) else "off"

    @property
    def quirk(self) -> bool:
        """Whether the pad quirk is there."""
        return self.version >= (525, 53) if self.pad_quirk is None else self.pad_quirk

    @property
    def prefetch_home_only(self) -> bool:
        """Whether nothing is prefetched to a place other than the preferred location."""
        return self.version >= (590,)

    def counts_accesses(self, gpus: Sequence[Gpu]) -> bool:
        """Whether access counters are on; by default where ATS is, which coherent GPUs have.

        Parameters
        ----------
        gpus : sequence of Gpu
            Those of the machine.
        """
        if self.access_counters is None:
            return any(gpu.coherent for gpu in gpus)
        return self.access_counters

    def unheeded(self, process: Any, attribute: int, value: int) -> str:
        """Attributes that stand for no advice of this driver (section 2)."""
        flags = attribute in (Attribute.SET_FLAGS, Attribute.CLR_FLAGS)
        if attribute in _HEEDED or (flags and value & Flag.GPU_READ_MOSTLY):
            return ""
        return "uvm does not know it"

    def create(self, machine: Machine, node: Any = None) -> Any:
        """A compiled process under the driver, with the machine's costs."""
        from ._uvm import UvmProcess

        process = UvmProcess(machine.gpus, self, node, page_size=machine.page_size)
        process.set_costs(machine.costs)
        return process

    # ---- what a space tells ----

    def ranges(self, process: Any) -> list[ManagedRange]:
        """Every range of the process in address order."""
        return [
            ManagedRange(
                first << PAGE_SHIFT,
                (last - first + 1) << PAGE_SHIFT,
                ("r" if prot & 1 else "") + ("w" if prot & 2 else "") or "-",
                "undefined" if preferred < 0 else _name(preferred),
                tuple(_name(p) for p in range(accessed_by.bit_length()) if accessed_by >> p & 1),
                ("unset", "on", "off")[duplication],
            )
            for first, last, prot, preferred, accessed_by, duplication in process.ranges()
        ]

    def explain(
        self, process: Any, page: int, processor: int, access: int
    ) -> tuple[str, str, str | None, tuple[int, int] | None]:
        """Rule, sentence, location and block in bytes of a touch; nothing changes."""
        rule, place = process.explain(page, processor, access)
        by, where = _name(processor), _name(max(place, 0))
        text = _TEXTS[rule.partition(" ")[0] if rule[0].isdigit() else rule].format(
            by=by, where=where
        )
        if place < 0 or rule in ("mapped", "access counter"):
            return rule, text, None, None
        first, last = process.block(page)
        return rule, text, where, (first << PAGE_SHIFT, (last + 1) << PAGE_SHIFT)

    def candidates(
        self, process: Any, page: int, processor: int, access: int
    ) -> list[tuple[str, str | None, bool, str]]:
        """Rules of the residency decision up to the one that holds: (rule, place, holds, text)."""
        rule, text, _, _ = self.explain(process, page, processor, access)
        number = rule.partition(" ")[0]
        if number not in _PASSED:
            return []
        by, place = _name(processor), process.explain(page, processor, access)[1]
        asked: list[tuple[str, str | None, bool, str]] = []
        for passed, (name, why) in _PASSED.items():
            if passed == number:
                break
            asked.append((f"{passed} {name}", None, False, why.format(by=by)))
        return [*asked, (rule, _name(max(place, 0)), True, text)]


class ManagedRange(NamedTuple):
    """One range of managed memory with one policy, in bytes and names."""

    start: int
    """First byte address."""
    size: int
    """Bytes."""
    prot: str
    """Protection of the mapping: ``rw``, ``r``, ``w`` or ``-``."""
    preferred: str
    """Preferred location: ``cpu``, ``gpu0`` ... or ``undefined``."""
    accessed_by: tuple[str, ...]
    """Processors whose mappings are kept."""
    read_mostly: str
    """Read duplication: ``unset``, ``on`` or ``off``."""


def _name(processor: int) -> str:
    return "cpu" if processor == 0 else f"gpu{processor - 1}"


#: One sentence a rule, by its number in the residency decision or its word.
_TEXTS = {
    "no mapping": "No managed memory at this address: the access is fatal.",
    "protection": "The mapping's protection does not allow it: fatal.",
    "mapped": "{by} has the page mapped in {where}: no fault.",
    "access counter": "{by} has the page mapped in {where}: no fault, but its access counter "
    "counts the touch, and moves pages once it is full.",
    "throttled": "The page thrashes and {by} is throttled: its fault waits.",
    "2": "Read duplication: {by} reads a copy of its own, or writes the only one, in {where}.",
    "3": "{by} is the preferred location: the page comes home.",
    "5": "The page thrashes and is pinned in {where}: {by} is mapped to it.",
    "6": "Nobody touched the page yet: it is made in {where}.",
    "7": "{by} is in accessed_by and reaches {where}: the page stays, only the mapping is added.",
    "8": "{by} has native atomics on {where}: the page stays.",
    "9": "The preferred location {where} decides: {by} is mapped to it.",
    "11": "No other rule holds: the page goes to, or stays in, {where}.",
}

#: Rules in the order in which they are asked, and what is said of one that did not hold.
_PASSED = {
    "2": ("read duplication", "The range is not read mostly, and no copies of the page decide."),
    "3": ("preferred location of the requester", "{by} is not the preferred location."),
    "5": ("pinned", "The page is not pinned against thrashing."),
    "6": ("first touch", "Somebody has the page already."),
    "7": ("accessed by", "{by} is not in accessed_by, or does not reach the page where it is."),
    "8": ("native atomics", "No native atomics over NVLink, or the touch is none."),
    "9": ("preferred location", "None is set within reach, or {by} has the page itself."),
    "10": ("foreign process", "The touch is of the process's own."),
    "11": ("requester", ""),
}
