"""Memory of the model runs out at every allocation in turn: the state stays, the result is -12."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from svmcore import _ranges, _residency
from svmcore._process import Node
from svmcore.errors import OutOfMemoryError
from svmcore.machine import Gpu
from svmcore.policies._kfd import KfdProcess

A, B = 0x1001, 0x1002
GPUS = (Gpu(A, 4096, hive=1), Gpu(B, 4096, hive=1), Gpu(0x1003, 64))
FIRST, LAST = 512, 512 + 2047
ENOMEM = -12
PREFETCH, ACCESS, NO_ACCESS, SET_FLAGS, GRANULARITY = 1, 2, 4, 5, 7
ALWAYS_MAPPED = 0x40
PLENTY = 1 << 40
HOOKS = {
    "ranges": _ranges._fail_allocation_after,
    "others": _residency._fail_allocation_after,
}


@pytest.fixture(autouse=True)
def hooks_off() -> Iterator[None]:
    yield
    for hook in HOOKS.values():
        hook(-1)


def make(kernel: str = "7.3", *, xnack: bool = True, fill: int = 0, **more: Any) -> KfdProcess:
    """A process with 2,048 pages in 9 mappings; *fill* more mappings and ranges elsewhere."""
    process = KfdProcess(GPUS, xnack=xnack, kernel=kernel, node_entries=4, **more)
    for page in range(FIRST, LAST, 256):
        process.mmap(page, page + 255, "rw")
    for i in range(fill):
        page = 1 << 20 | i << 4
        process.mmap(page, page + 7, "rw")
        process.set_attr(page << 12, 8 << 12, [(GRANULARITY, i)])
    return process


def set_attr(p: KfdProcess, first: int, pages: int, *attrs: tuple[int, int]) -> int:
    return p.set_attr(first << 12, pages << 12, list(attrs))


def state(p: KfdProcess) -> tuple[Any, ...]:
    return (
        p.now,
        p.xnack,
        p.restore_pending,
        p.ranges(),
        p.starts(),
        p.pending(),
        p.counters(),
        p.page_states(FIRST - 8, LAST + 8),
        [p.vma(page) for page in range(FIRST - 1, LAST + 2)],
        p.node.used(0),
        len(p),
    )


Scenario = tuple[Callable[[KfdProcess], Any], Callable[[KfdProcess], Any], dict[str, Any]]


def nothing(p: KfdProcess) -> None:
    pass


def registered(p: KfdProcess) -> None:
    assert set_attr(p, FIRST, 2048, (GRANULARITY, 9)) == 0


def in_vram(p: KfdProcess) -> None:
    assert set_attr(p, FIRST, 2048, (PREFETCH, A)) == 0


def cut_later(p: KfdProcess) -> None:
    in_vram(p)
    assert p.munmap(FIRST + 100, FIRST + 200) == 0


def invalidated(p: KfdProcess) -> None:
    for first in (FIRST, FIRST + 600):
        assert set_attr(p, first, 200, (ACCESS, A), (ACCESS, B), (SET_FLAGS, ALWAYS_MAPPED)) == 0
    # The masks of one GPU fill up before the restore work needs more.
    assert p.invalidate(FIRST, LAST) == 0
    assert p.munmap(1, 2) == 0
    assert p.restore_pending


def full(p: KfdProcess) -> None:
    for i in range(4):
        assert set_attr(p, FIRST + 300 * i, 40, (PREFETCH, 0x1003)) == 0


SCENARIOS: dict[str, Scenario] = {
    "mmap": (nothing, lambda p: p.mmap(LAST + 1, LAST + 4), {}),
    "munmap": (in_vram, lambda p: p.munmap(FIRST + 100, FIRST + 1500), {}),
    "munmap_children": (cut_later, lambda p: p.munmap(FIRST + 20, FIRST + 1500), {}),
    "munmap_6.1": (in_vram, lambda p: p.munmap(FIRST + 1, FIRST + 1500), {"kernel": "6.1"}),
    "mprotect": (in_vram, lambda p: p.mprotect(FIRST + 10, LAST - 10, "r"), {}),
    "invalidate": (in_vram, lambda p: p.invalidate(FIRST, LAST), {}),
    "set_attr_new": (nothing, registered, {}),
    "set_attr_pieces": (nothing, registered, {"max_svm_range_pages": 64}),
    "set_attr_split": (in_vram, lambda p: set_attr(p, FIRST + 9, 1500, (GRANULARITY, 4)), {}),
    "set_attr_refuse": (in_vram, lambda p: set_attr(p, FIRST + 9, 1500, (NO_ACCESS, A)), {}),
    "set_attr_prefetch": (nothing, lambda p: set_attr(p, FIRST, 2048, (PREFETCH, A)), {}),
    "set_attr_peer": (in_vram, lambda p: set_attr(p, FIRST, 2048, (PREFETCH, B)), {}),
    "set_attr_back": (in_vram, lambda p: set_attr(p, FIRST, 2048, (PREFETCH, 0)), {}),
    "set_attr_evicts": (
        full,
        lambda p: set_attr(p, FIRST + 1400, 60, (PREFETCH, 0x1003)),
        {"evict_on_full": True},
    ),
    "set_attr_maps": (
        nothing,
        lambda p: set_attr(p, FIRST, 2048, (ACCESS, A), (ACCESS, B), (ACCESS, 0x1003)),
        {"xnack": False},
    ),
    "set_attr_6.1": (
        in_vram,
        lambda p: set_attr(p, FIRST + 9, 1500, (NO_ACCESS, B)),
        {"kernel": "6.1"},
    ),
    "fault_unregistered": (nothing, lambda p: p.fault(A, FIRST + 5, True), {}),
    "fault": (registered, lambda p: p.fault(A, FIRST + 5, True), {}),
    "fault_6.1": (registered, lambda p: p.fault(A, FIRST + 5, True), {"kernel": "6.1"}),
    "fault_6.12": (registered, lambda p: p.fault(A, FIRST + 5, True), {"kernel": "6.12"}),
    "fault_evicts": (full, lambda p: p.fault(0x1003, FIRST + 1400, True), {"evict_on_full": True}),
    "access": (registered, lambda p: p.access(1, FIRST + 5, FIRST + 5, True)[0], {}),
    "access_cpu": (registered, lambda p: p.access(0, FIRST + 5, FIRST + 5, True)[0], {}),
    "access_cpu_6.1": (
        in_vram,
        lambda p: p.access(0, FIRST + 700, FIRST + 700, True)[0],
        {"kernel": "6.1", "max_svm_range_pages": 4096},
    ),
    "cpu_access": (nothing, lambda p: p.cpu_access(FIRST + 5), {}),
    "cpu_access_vram": (in_vram, lambda p: p.cpu_access(FIRST + 5), {}),
    "cpu_access_6.1": (
        in_vram,
        lambda p: p.cpu_access(FIRST + 700),
        {"kernel": "6.1", "max_svm_range_pages": 4096},
    ),
    "evict": (in_vram, lambda p: p.evict(FIRST), {}),
    "run_deferred": (cut_later, lambda p: p.run_deferred(), {}),
    "run_restore": (invalidated, lambda p: p.run_restore(), {}),
    "set_xnack": (nothing, lambda p: p.set_xnack(False), {}),
    "pin": (nothing, lambda p: p.pin(FIRST, LAST), {}),
    "add_buffer": (nothing, lambda p: p.add_buffer(FIRST, LAST), {}),
    "add_userptr": (nothing, lambda p: p.add_userptr(FIRST, LAST), {}),
}
#: Which need memory for the range map, and which for masks and arrays. Moving out, evicting
#: and invalidating need none: they cannot fail.
NEEDS = {
    "ranges": {
        *("mmap", "munmap", "munmap_children", "munmap_6.1", "mprotect", "run_deferred"),
        *("set_attr_new", "set_attr_pieces", "set_attr_split", "set_attr_refuse"),
        *("set_attr_prefetch", "set_attr_maps", "set_attr_6.1", "fault_unregistered"),
    },
    "others": SCENARIOS.keys()
    - {"mmap", "mprotect", "run_deferred", "invalidate", "evict", "cpu_access_vram"},
}


def attempt(process: KfdProcess, act: Callable[[KfdProcess], Any]) -> bool:
    """Whether the operation had enough memory."""
    try:
        return act(process) != ENOMEM
    except (OutOfMemoryError, AssertionError):
        return False


def prepared(name: str, fill: int) -> KfdProcess:
    prepare, _, options = SCENARIOS[name]
    HOOKS["others"](PLENTY)  # arrays without spare room
    process = make(fill=fill, **options)
    prepare(process)
    HOOKS["others"](-1)
    return process


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_out_of_memory_at_every_allocation(name: str, hook: str) -> None:
    act = SCENARIOS[name][1]
    failed = 0
    # The range map has room to spare; some of these sizes are just before it grows.
    for fill in (0,) if hook == "others" else range(26):
        clean = prepared(name, fill)
        before = state(clean)
        assert attempt(clean, act)
        after = state(clean)
        for count in range(200):
            process = prepared(name, fill)
            HOOKS[hook](count)
            served = attempt(process, act)
            HOOKS[hook](-1)
            process.check()
            if served:
                break
            failed += 1
            assert state(process) == before
            # With memory the same call does what it does when nothing failed.
            assert attempt(process, act)
            assert state(process) == after
            process.check()
        else:
            pytest.fail("never enough memory")
    assert (failed > 0) == (name in NEEDS[hook])


@pytest.mark.parametrize("hook", HOOKS)
def test_out_of_memory_while_a_process_is_made(hook: str) -> None:
    node = Node()
    failed = 0
    for count in range(200):
        HOOKS[hook](count)
        try:
            KfdProcess(GPUS, xnack=True, node=node).check()
        except OutOfMemoryError:
            failed += 1
        else:
            break
        finally:
            HOOKS[hook](-1)
    assert failed > 0
    process = KfdProcess(GPUS, xnack=True, node=node)
    assert process.mmap(FIRST, LAST) == 0
    process.check()


@pytest.mark.parametrize("gpus", [8, 16, 40, 64])
@pytest.mark.parametrize("pages", [1, 600, 512 * 40])
def test_read_only_on_many_gpus(gpus: int, pages: int) -> None:
    """Two mask lines a GPU need several headers a block; there was room for two."""
    node = [Gpu(100 + i, 1 << 20, hive=1) for i in range(gpus)]
    HOOKS["others"](PLENTY)
    process = KfdProcess(node, xnack=False, max_svm_range_pages=1 << 18)
    process.mmap(512, 511 + pages, "r")
    attrs = [(ACCESS, gpu.id) for gpu in node]
    assert process.set_attr(512 << 12, pages << 12, attrs) == 0
    process.check()
    assert all(process.mapped(i, 511 + pages) for i in range(gpus))
    assert not process.mapped(gpus - 1, 511 + pages, write=True)


def test_an_untouched_terabyte_costs_nothing() -> None:
    """Attributes, protection and removal of 2**34 pages: nothing is populated, nothing is made."""
    process = KfdProcess(GPUS, xnack=True, max_svm_range_pages=1 << 34)
    assert process.mmap(1 << 34, (1 << 35) - 1) == 0
    before = process.nbytes
    assert set_attr(process, 1 << 34, 1 << 34, (SET_FLAGS, 0x80), (ACCESS, A), (0, A)) == 0
    # More than the device has: refused before room for the masks is asked for.
    assert set_attr(process, 1 << 34, 1 << 34, (PREFETCH, A)) == 0
    assert process.mprotect(1 << 34, (1 << 35) - 1, "r") == 0
    assert process.nbytes - before < 1 << 16
    assert process.munmap(1 << 34, (1 << 35) - 1) == 0
    assert process.run_deferred() == 0
    process.check()
    assert len(process) == 0


# ---- a node's memory shared by processes -----------------------------------------------


def test_two_processes_never_pass_the_capacity() -> None:
    node = Node()
    gpus = (Gpu(A, 600), Gpu(B, 600))
    pair = [KfdProcess(gpus, xnack=True, evict_on_full=True, node=node) for _ in range(2)]
    for process in pair:
        process.mmap(512, 4607)
    for i in range(60):
        process = pair[i % 2]
        first, gpu = 512 + 256 * (i % 16), (A, B)[i // 3 % 2]
        assert set_attr(process, first, 200 + i, (PREFETCH, gpu)) == 0
        process.fault(gpu, first + 7, i % 2 == 0)
        held = [sum(p.counters()[at][3] for p in pair) for at in (0, 1)]
        assert held == [node.used(0), node.used(1)]
        assert max(held) <= 600
        for p in pair:
            p.check()
    assert sum(p.totals()["evictions"] for p in pair) > 10


def test_the_oldest_object_of_the_node_goes_first() -> None:
    node = Node()
    gpus = (Gpu(A, 300),)
    old, new = (KfdProcess(gpus, xnack=True, evict_on_full=True, node=node) for _ in range(2))
    for process in (old, new):
        process.mmap(512, 1535)
    assert set_attr(old, 512, 100, (PREFETCH, A)) == 0
    assert set_attr(new, 512, 100, (PREFETCH, A)) == 0
    assert set_attr(old, 1024, 100, (PREFETCH, A)) == 0
    new.begin(5_000_000)
    assert set_attr(new, 1024, 150, (PREFETCH, A)) == 0
    # Two went, each of another process, in the order in which they were made.
    assert new.finish().bo_evict == [(0, 100)]
    assert (old.where(512), new.where(512), old.where(1024)) == (0, 0, 1)
    assert node.used(0) == 250
    assert old.now == 5_000_000
    old.check()
    new.check()


def test_without_eviction_a_full_node_refuses() -> None:
    node = Node()
    gpus = (Gpu(A, 300),)
    one, two = (KfdProcess(gpus, xnack=True, node=node) for _ in range(2))
    for process in (one, two):
        process.mmap(512, 1535)
    assert set_attr(one, 512, 200, (PREFETCH, A)) == 0
    assert two.fault(A, 512, write=True) == 0
    assert two.where(512) == 0
    assert node.used(0) == 200
    del one
    gc.collect()
    assert node.used(0) == 0
    two.check()


def test_a_node_outlives_a_process_in_a_cycle() -> None:
    class Held(KfdProcess):
        pass

    node = Node()
    for _ in range(3):
        process = Held(GPUS, xnack=True, node=node)
        process.me = process
        process.mmap(FIRST, LAST)
        in_vram(process)
        assert node.used(0) == 2048
        del process
        gc.collect()
        assert node.used(0) == 0
    alone = Held(GPUS, xnack=True)
    alone.me = alone
    del alone, node
    gc.collect()


def test_node_has_64_gpus() -> None:
    with pytest.raises(ValueError, match="expected 0 to 63"):
        Node().used(64)
