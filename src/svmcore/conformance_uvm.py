"""UVM vector files: prefetch hints, thrashing, residency and coalescing, rule by rule.

The outputs are those of the driver's own functions. The compiled rules are asked
through a process, the executable specification directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .machine import Gpu
from .policies.topology import Topology, topology_of
from .policies.uvm import Uvm
from .reference_uvm import (
    PrefetchState,
    Thrashing,
    ThrashingBlock,
    coalesce,
    prefetch_hint,
    select_residency,
)

__all__ = ["KEYS", "steps"]

#: What makes a JSON object a file of this kind.
KEYS = frozenset(("prefetch", "thrashing", "residency", "coalescing"))
#: Processor numbers of the files: two GPUs of two devices.
_NUMBERS = {0: 0, 1: 1, 9: 2}
_NAMES = {number: name for name, number in _NUMBERS.items()}
_HINTS = ("NONE", "PIN", "THROTTLE")
#: The topologies of the files, as GPUs; peers over PCIe are a parameter of the policy.
_MACHINES: dict[str, dict[str, Any]] = {
    "pcie": {},
    "pciepeer": {},
    "nvpeer": {"hive": 1},
    "coherent": {"hive": 1, "coherent": True},
}


class _Reference:
    """The rules of the executable specification."""

    def __init__(self, gpus: tuple[Gpu, ...], rules: Uvm) -> None:
        self.rules = rules
        self.topology: Topology = topology_of(gpus, peer_access=rules.peer_access)
        self.thrashing = Thrashing(self.topology, rules)
        self.block = ThrashingBlock()

    def prefetch(self, *, preferred: int, **keywords: Any) -> tuple[int, bool]:
        known = None if preferred < 0 else preferred
        return prefetch_hint(PrefetchState(), self.rules, preferred=known, **keywords)

    def residency(
        self, requester: int, levels: int, *, preferred: int, pin: int, **keywords: Any
    ) -> tuple[int, bool]:
        _, target, duplicate = select_residency(
            self.topology,
            requester,
            levels,
            preferred=None if preferred < 0 else preferred,
            pin=None if pin < 0 else pin,
            remote_atomics=self.rules.remote_atomics,
            **keywords,
        )
        return target, duplicate

    def coalesce(self, faults: list[list[int]]) -> list[tuple[int, int, int]]:
        return coalesce(faults)

    def unpins(self, now: int) -> Iterator[int]:
        while self.thrashing.timer and self.thrashing.timer <= now:
            at = self.thrashing.timer
            for block, page in self.thrashing.unpin():
                self.thrashing.reset(block, page)
            yield at

    def hint(self, requester: int, resident: int, preferred: int, now: int) -> tuple[str, int]:
        known = None if preferred < 0 else preferred
        return self.thrashing.hint(self.block, 0, requester, resident, known, now)

    def moved(self, processor: int, now: int) -> None:
        if not self.block.pinned & 1:
            self.thrashing.record(self.block, 1, processor, now, revocation=False)

    def users(self) -> int:
        return (self.block.pages or {})[0].processors


class _Compiled:
    """The compiled rules, asked through a process with one block."""

    def __init__(self, gpus: tuple[Gpu, ...], rules: Uvm) -> None:
        from .policies._uvm import UvmProcess

        self.process = UvmProcess(gpus, rules)
        self.process.mmap(0, 511)

    def prefetch(self, **keywords: Any) -> tuple[int, bool]:
        return self.process.rule_prefetch(**keywords)

    def residency(self, requester: int, levels: int, **keywords: Any) -> tuple[int, bool]:
        return self.process.rule_residency(requester, levels, **keywords)[1:]

    def coalesce(self, faults: list[list[int]]) -> list[tuple[int, int, int]]:
        return self.process.rule_coalesce(faults)

    def unpins(self, now: int) -> Iterator[int]:
        while (due := self.process.next_event_ns) is not None and due <= now:
            self.process.step(due)
            yield due

    def hint(self, requester: int, resident: int, preferred: int, now: int) -> tuple[str, int]:
        self.process.step(now)
        kind, value = self.process.rule_hint(0, requester, resident, preferred)
        return _HINTS[kind], value

    def moved(self, processor: int, now: int) -> None:
        self.process.step(now)
        self.process.rule_record(0, processor)

    def users(self) -> int:
        return self.process.users(0)


def steps(vectors: dict[str, Any], *, reference: bool) -> Iterator[tuple[str, Any, Any]]:
    """Every case of a file: its name, what is expected, what the rules say.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a case lacks a field or has one of another kind.
    """
    side: Callable[[tuple[Gpu, ...], Uvm], Any] = _Reference if reference else _Compiled
    for number, case in enumerate(vectors["prefetch"]):
        yield f"prefetch {number}", (case["mask"], case["hint_given"]), _prefetch(side, case)
    for number, case in enumerate(vectors["residency"]):
        wanted = (case["destination"], case["read_duplicate"])
        yield f"residency {number}", wanted, _residency(side, case)
    for number, case in enumerate(vectors["coalescing"]):
        got = [list(row) for row in _make(side, "pcie").coalesce(case["faults"])]
        yield f"coalescing {number}", case["representatives"], got
    for number, case in enumerate(vectors["thrashing"]):
        got = list(_thrashing(side, case))
        for at in range(max(len(got), len(case["steps"]))):
            expected = case["steps"][at] if at < len(case["steps"]) else None
            yield f"thrashing {number}.{at}", expected, got[at] if at < len(got) else None


def _make(side: Callable[[tuple[Gpu, ...], Uvm], Any], topology: str, **settings: Any) -> Any:
    gpus = tuple(Gpu(id=n, vram_pages=1 << 20, **_MACHINES[topology]) for n in (1, 9))
    return side(gpus, Uvm(peer_access=topology == "pciepeer", **settings))


def _place(name: int | None) -> int:
    return -1 if name is None else _NUMBERS[name]


def _set(names: list[int]) -> int:
    return sum(1 << _NUMBERS[name] for name in set(names))


def _prefetch(side: Any, case: dict[str, Any]) -> tuple[list[list[int]], bool]:
    start = case["block_start_page"]

    def pages(rows: list[Any]) -> int:
        mask = 0
        for row in rows:
            first, outer = row if isinstance(row, list) else (row, row + 1)
            mask |= (1 << start + outer) - (1 << start + first)
        return mask

    # Above 100 the driver takes the default.
    threshold = case["threshold"] if case["threshold"] <= 100 else 51
    rules = _make(
        side, "pcie", prefetch_threshold=threshold, prefetch_min_faults=case["min_faults"]
    )
    mask, given = rules.prefetch(
        start=start,
        outer=start + case["block_pages"],
        target=_NUMBERS[case["dst"]],
        resident=pages(case["resident"]),
        touched=case["block_has_residents"],
        faulted=pages(case["faulted"]),
        thrashing=pages(case["thrashing"]),
        preferred=_place(case["preferred"]),
        cpu_mapped=pages(case["cpu_mapped"]),
    )
    runs: list[list[int]] = []
    for page in range(512):
        if mask >> page & 1:
            if runs and runs[-1][1] == page - start:
                runs[-1][1] += 1
            else:
                runs.append([page - start, page - start + 1])
    return runs, given


def _residency(side: Any, case: dict[str, Any]) -> tuple[int, bool]:
    rules = _make(side, case["topology"], remote_atomics=case["map_remote_on_native_atomics"])
    target, duplicate = rules.residency(
        _NUMBERS[case["requester"]],
        sum(1 << level for level in set(case["access"])),
        preferred=_place(case["preferred"]),
        accessed_by=_set(case["accessed_by"]),
        duplication=("unset", "enabled", "disabled").index(case["read_dup_policy"]),
        duplicated=case["page_read_duplicated"],
        resident=_set(case["resident"]),
        pin=_place(case["pin"]),
        counter=case["access_counter"],
        foreign=case["remote_mm"],
    )
    return _NAMES[target], duplicate


def _thrashing(side: Any, case: dict[str, Any]) -> Iterator[list[Any]]:
    """One page that processors touch in turn; rows as the file has them."""
    # Detection as of 590 where the lapse adapts, as of 580 where it does not.
    driver = "595" if case["adaptive_lapse"] else "580"
    rules = _make(side, case["topology"], prefetch=False, driver=driver)
    gpus = tuple(Gpu(id=n, vram_pages=1 << 20, **_MACHINES[case["topology"]]) for n in (1, 9))
    topology = topology_of(gpus, peer_access=case["topology"] == "pciepeer")
    home = _NUMBERS[case["init_residency"]]
    mapped = 1 << home
    for turn in range(case["accesses"]):
        now = case["start_ns"] + turn * case["step_ns"]
        by = _NUMBERS[case["order"][turn % len(case["order"])]]
        for at in rules.unpins(now):
            mapped &= 1 << home
            yield [at, "unpin", None, None, None]
        if mapped >> by & 1:
            continue
        kind, value = rules.hint(by, 1 << home, _place(case["preferred"]), now)
        if kind == "THROTTLE":
            yield [now, "fault", _NAMES[by], f"THROTTLE until {value}", None]
            continue
        target, moved = value if kind == "PIN" else by, None
        if target != home:
            rules.moved(target, now)
            home, mapped, moved = target, 0, _NAMES[target]
        mapped |= 1 << by
        if kind == "PIN":
            mapped |= rules.users() & topology.reaching(home)
        yield [now, "fault", _NAMES[by], f"PIN@{_NAMES[value]}" if kind == "PIN" else kind, moved]
