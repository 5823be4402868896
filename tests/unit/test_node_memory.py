"""Processes of several policies on one node: quotas, and who gives up device memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from svmcore import Gpu, Machine, Space, System
from svmcore._evict import ORDERS
from svmcore.errors import InvalidArgumentError, OutOfMemoryError
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import pack, unpack
from svmcore.policies.base import make_policy
from svmcore.policies.uvm import Uvm

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40
#: A unit of memory is a block for each of these, whatever is touched of it.
KFD, UVM, PAGED = "kfd", "uvm(pma_batch_order=0, prefetch=off)", "always_migrate"


def node(blocks: int, gpus: int = 1) -> System:
    made = tuple(Gpu(id=1 + i, vram_pages=blocks * 512) for i in range(gpus))
    return System(Machine("m", made))


def join(system: System, policy: str, blocks: int = 32, **settings: Any) -> Space:
    """A process with that many mappings of a block each."""
    space = system.space(policy, **settings)
    for block in range(blocks):
        space.map(BASE + block * BLOCK, BLOCK)
    return space


def touch(space: Space, block: int, by: str = "gpu0") -> None:
    assert space.access(BASE + block * BLOCK, PAGE, by, write=True).ok


def there(space: Space, block: int) -> bool:
    ((_, _, where),) = space.residency(BASE + block * BLOCK, PAGE)
    return where == "gpu0"


# ---- one clock -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [(KFD, UVM, KFD), (UVM, KFD, UVM), (UVM, KFD, KFD), (PAGED, UVM, UVM), (UVM, PAGED, PAGED)],
)
def test_the_older_goes_whatever_the_policies(first: str, second: str, third: str) -> None:
    system = node(2)
    spaces = [join(system, policy) for policy in (first, second, third)]
    for space in spaces:
        touch(space, 0)
    assert [there(space, 0) for space in spaces] == [False, True, True]
    assert system.used("gpu0") == 2 * BLOCK


@pytest.mark.parametrize("seed", range(6))
def test_a_mixed_node_gives_up_in_the_order_of_arrival(seed: int) -> None:
    rng = random.Random(seed)
    system = node(5)
    spaces = [join(system, policy) for policy in (KFD, UVM, PAGED, UVM, KFD)]
    arrived: list[tuple[int, int]] = []
    for _ in range(120):
        which, block = rng.randrange(len(spaces)), rng.randrange(32)
        if (which, block) in arrived:
            continue
        if len(arrived) == 5:
            arrived.pop(0)
        touch(spaces[which], block)
        arrived.append((which, block))
        found = {(i, b) for i, space in enumerate(spaces) for b in range(32) if there(space, b)}
        assert found == set(arrived)
        assert system.used("gpu0") == len(arrived) * BLOCK


def test_what_is_free_goes_before_what_is_used() -> None:
    """Chunks that hold nothing go first, if they are the youngest."""
    system = node(3)
    kfd, uvm = join(system, KFD), join(system, UVM)
    touch(kfd, 0)
    touch(uvm, 0)
    touch(uvm, 1)
    touch(uvm, 1, by="cpu")  # its pages leave, the chunk stays
    touch(kfd, 1)
    assert [there(kfd, b) for b in (0, 1)] + [there(uvm, 0)] == [True] * 3
    assert uvm.counters()["evicted_bytes"] == 0
    held = join(node(64), "uvm")  # takes 64 chunks at once
    touch(held, 0)
    other = held.system.space(KFD)
    other.map(BASE, 63 * BLOCK)
    other.access(BASE, 63 * BLOCK, write=True)
    assert there(held, 0)
    assert held.counters()["evictions"] == 0


def test_a_use_moves_a_unit_back_in_the_nodes_order() -> None:
    """By the orders that know uses: the longest unused of the node goes."""
    system = node(3)
    spaces = [join(system, policy, eviction="lru") for policy in (UVM, PAGED, UVM)]
    for space in spaces:
        touch(space, 0)
    touch(spaces[0], 0)
    touch(spaces[2], 1)
    assert [there(space, 0) for space in spaces] == [True, False, True]


# ---- quotas ----------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", ["driver", *ORDERS])
def test_a_process_at_its_quota_gives_up_its_own(eviction: str) -> None:
    system = node(16)
    limited = join(system, UVM, quota_pages=2 * 512 + 5, eviction=eviction)
    others = [join(system, policy) for policy in (KFD, UVM)]
    for space in others:
        for block in range(3):
            touch(space, block)
    for block in range(9):
        touch(limited, block)
        assert system.used("gpu0") == (6 + min(block + 1, 2)) * BLOCK
    assert limited.counters()["evictions"] == 7
    assert sum(there(limited, block) for block in range(9)) == 2
    assert all(there(space, block) for space in others for block in range(3))
    assert [space.counters()["evictions"] for space in others] == [0, 0]


def test_free_chunks_count_and_are_no_more_than_the_quota() -> None:
    system = node(200)
    limited = join(system, "uvm", quota_pages=10 * 512)
    touch(limited, 0)
    assert system.used("gpu0") == 10 * BLOCK  # a batch would be 64
    for block in range(10):
        touch(limited, block)
    assert limited.counters()["evictions"] == 0
    touch(limited, 10)
    assert limited.counters()["evictions"] == 1
    limited.unmap(BASE, 32 * BLOCK)
    assert system.used("gpu0") < 10 * BLOCK


def test_a_quota_is_for_each_gpu() -> None:
    system = node(8, gpus=2)
    space = join(system, UVM, quota_pages=512)
    for block in range(4):
        touch(space, block, by=f"gpu{block % 2}")
    assert [system.used(gpu) for gpu in ("gpu0", "gpu1")] == [BLOCK, BLOCK]
    space.prefetch(BASE, 4 * BLOCK, "gpu0")
    assert [system.used(gpu) for gpu in ("gpu0", "gpu1")] == [BLOCK, BLOCK]


def test_below_its_quota_a_process_takes_the_oldest_of_the_node() -> None:
    system = node(2)
    kfd, uvm = join(system, KFD), join(system, UVM, quota_pages=2 * 512)
    touch(kfd, 0)
    touch(uvm, 0)
    touch(uvm, 1)
    assert not there(kfd, 0)
    touch(uvm, 2)  # at its quota now
    assert [there(uvm, block) for block in range(3)] == [False, True, True]


@pytest.mark.parametrize("quota", [0, -1, 511, 1 << 52])
def test_a_quota_below_a_chunk_is_refused(quota: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"quota_pages = .*expected 512 or more"):
        make_policy("uvm", quota_pages=quota)
    assert make_policy("uvm(quota_pages=512)") == Uvm(quota_pages=512)


def test_a_quota_without_a_victim_is_fatal_not_endless() -> None:
    """A block that lies in two chunks, and may have one: its own are no victims."""
    p = UvmProcess([Gpu(id=1, vram_pages=8 * 512)], Uvm(quota_pages=512, prefetch=False))
    p.mmap(0, 499)  # 31 chunks of 64 KiB and 4 of 4 KiB: 12 of these are free
    p.mmap(520, 559)  # begins with 8 of 4 KiB, then needs 64 KiB
    assert p.access(1, 0, 499, 0)[:2] == (0, "ok")
    assert p.access(1, 520, 559, 0)[:2] == (-12, "out_of_memory")
    assert p.access(1, 528, 543, 0)[:2] == (0, "ok")  # alone it fits, once all else is evicted
    assert p.snapshot()["taken"] == {1: 512}
    p.check()


@pytest.mark.parametrize("seed", range(8))
def test_mixed_processes_with_quotas_end_within_capacity(seed: int) -> None:
    rng = random.Random(seed)
    system = node(7, gpus=2)
    quotas = (2 * 512, 3 * 512, 512, 2 * 512, None)
    policies = ("kfd", "uvm", UVM, "kfd", UVM)
    spaces = [
        system.space(policy, quota_pages=quota)
        for policy, quota in zip(policies, quotas, strict=True)
    ]
    for space in spaces:
        space.map(BASE, 16 * BLOCK)
    reserved = 0
    for _ in range(150):
        space = rng.choice(spaces)
        start = rng.randrange(16 * 512)
        size = rng.choice((1, 1, 40, 512, 1500))
        span = BASE + start * PAGE, min(size, 16 * 512 - start) * PAGE
        kind = rng.randrange(8)
        if kind < 5:
            by = rng.choice(("cpu", "gpu0", "gpu0", "gpu1"))
            assert space.access(*span, by, write=bool(rng.randrange(2))).ok
        elif kind == 5:
            try:
                space.prefetch(*span, rng.choice(("cpu", "gpu0", "gpu1")))
            except OutOfMemoryError:
                assert space.policy.name == "kfd"
        elif kind == 6:
            space.step(space.now_ns + rng.choice((1000, 5_000_000)))
        elif reserved:
            system.release("gpu0", reserved)
            reserved = 0
        else:
            reserved = rng.choice((PAGE, BLOCK))
            system.reserve("gpu0", reserved)
        taken = {"gpu0": reserved, "gpu1": 0}
        for other, quota in zip(spaces, quotas, strict=True):
            other.process.check()
            if other.policy.name == "uvm":
                for i, gpu in enumerate(taken):
                    own = other.process.snapshot()["taken"][i + 1] * PAGE
                    assert own <= (7 * 512 if quota is None else quota) * PAGE
                    taken[gpu] += own
        for gpu, sum_ in taken.items():
            assert sum_ <= system.used(gpu) <= 7 * BLOCK
    assert sum(space.counters()["evictions"] for space in spaces) > 20


def test_a_saved_process_keeps_its_quota_and_another_is_refused() -> None:
    gpus = [Gpu(id=1, vram_pages=8 * 512)]
    p = UvmProcess(gpus, Uvm(quota_pages=3 * 512))
    p.mmap(0, 8 * 512 - 1)
    p.access(1, 0, 8 * 512 - 1, 1)
    tables = pack(p)
    other = UvmProcess(gpus, Uvm(quota_pages=3 * 512))
    unpack(other, tables)
    for process in (p, other):
        process.access(1, 0, 3 * 512, 1)
    assert other.snapshot() == p.snapshot()
    with pytest.raises(InvalidArgumentError, match="no more memory than the quota"):
        unpack(UvmProcess(gpus, Uvm(quota_pages=2 * 512)), tables)
