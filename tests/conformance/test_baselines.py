"""Cases 23, 24, 28 and 29, the golden window counts, and the general statements behind them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svmcore
from svmcore import Gpu, Machine, Space
from svmcore._evict import ORDERS
from svmcore.records import RECORD

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40
BASELINES = ("always_migrate", "first_touch", "migrate_once_then_pin", "advised")


def space_of(policy, blocks, gpus=1, **settings):
    cards = tuple(Gpu(i + 1, blocks * 512, hive=1) for i in range(gpus))
    space = Space(Machine("m", cards, hive_link="nvlink"), policy=policy, **settings)
    space.map(BASE, 64 * BLOCK)
    return space


def gained(space, before):
    return {key: value - before[key] for key, value in space.counters().items()}


@pytest.mark.parametrize("policy", BASELINES)
def test_case_23_the_oldest_block_goes_though_its_first_page_was_never_touched(policy):
    space = space_of(policy, 2, granularity=0)
    for block, page in ((0, 300), (1, 5)):
        space.access(BASE + block * BLOCK + page * PAGE, by="gpu0")
    before = space.counters()
    space.access(BASE + 2 * BLOCK, by="gpu0")
    after = gained(space, before)
    assert (after["evictions"], after["evicted_bytes"], after["bytes_to_host"]) == (1, PAGE, PAGE)
    held = [place for place in space.residency(BASE, 3 * BLOCK) if place[2] == "gpu0"]
    assert [(start - BASE) // BLOCK for start, _, _ in held] == [1, 2]
    assert space.residency(BASE + 300 * PAGE, PAGE) == [(BASE + 300 * PAGE, PAGE, "cpu")]


def test_case_24_an_exclusive_block_is_copied_out_and_a_clean_duplicate_is_dropped():
    space = space_of("advised", 1)
    space.access(BASE, 100 * PAGE, by="gpu0", write=True)
    before = space.counters()
    space.access(BASE + BLOCK, by="gpu0")
    after = gained(space, before)
    assert (after["evictions"], after["bytes_to_host"]) == (1, BLOCK), "its 512 pages"

    space = space_of("advised", 1)
    space.advise(BASE, BLOCK, "read_mostly")
    space.access(BASE, BLOCK, by="cpu", write=True)
    space.access(BASE, BLOCK, by="gpu0")
    assert space.process.copies(BASE >> 12) == 0b11
    assert space.counters()["duplicated_bytes"] == BLOCK
    assert space.process.mapped(0, BASE >> 12)
    before = space.counters()
    space.access(BASE + BLOCK, by="gpu0")
    after = gained(space, before)
    assert (after["evictions"], after["bytes_to_host"], after["evicted_bytes"]) == (1, 0, 0)
    assert space.process.copies(BASE >> 12) == 0b01
    assert not space.process.mapped(0, BASE >> 12), "the mapping is dropped"
    assert space.access(BASE, by="gpu0").faults == 1
    space.process.check()


@pytest.mark.parametrize(
    ("policy", "migrations", "remote"), [("migrate_once_then_pin", 1, 2), ("always_migrate", 3, 0)]
)
def test_case_28_a_page_that_three_gpus_touch(policy, migrations, remote):
    space = space_of(policy, 4, gpus=4, granularity=0)
    space.access(BASE, by="gpu1")
    before = space.counters()
    for gpu in (2, 3, 1):
        assert space.access(BASE, by=f"gpu{gpu}").ok
    after = gained(space, before)
    assert (after["migrations"], after["remote_accesses"]) == (migrations, remote)


def test_case_29_preferred_and_accessed_by_then_read_mostly():
    machine = Machine("coherent", (Gpu(1, 4096, coherent=True),))
    space = Space(machine, policy="advised")
    space.map(BASE, BLOCK)
    space.access(BASE, BLOCK, by="cpu", write=True)
    space.advise(BASE, BLOCK, "preferred_location", "gpu0")
    space.advise(BASE, BLOCK, "accessed_by", "cpu")
    assert space.access(BASE, by="gpu0", write=True).faults == 1
    assert space.counters()["migrations"] == 1
    before = space.counters()
    read = space.access(BASE, by="cpu")
    assert (read.faults, read.remote_pages) == (1, 1), "mapped remotely"
    assert gained(space, before)["bytes_to_host"] == 0

    space = Space(machine, policy="advised")
    space.map(BASE, BLOCK)
    space.access(BASE, BLOCK, by="gpu0", write=True)
    space.advise(BASE, BLOCK, "read_mostly")
    before = space.counters()
    assert space.access(BASE, by="cpu").faults == 1
    after = gained(space, before)
    assert (after["duplicated_bytes"], after["migrations"]) == (BLOCK, 0), "one copy"
    assert space.residency(BASE, BLOCK) == [(BASE, BLOCK, "cpu+gpu0")]
    assert space.access(BASE, by="gpu0", write=True).faults == 1
    assert space.process.copies(BASE >> 12) == 0b10, "the write takes the CPU's copy away"
    assert space.process.where(BASE >> 12) == 1
    space.process.check()


@pytest.mark.parametrize("policy", ["kfd", *BASELINES])
@pytest.mark.parametrize("granularity", [0, 2, 4, 6, 9])
def test_golden_table_each_window_is_one_fault(policy, granularity):
    """A known number of distinct windows: strides of 3 pages over 20 blocks, in any order."""
    pages = np.arange(0, 20 * 512, 3)
    windows = len(np.unique(pages >> granularity))
    assert windows == {0: 3414, 2: 2560, 4: 640, 6: 160, 9: 20}[granularity]
    records = np.zeros(len(pages), RECORD)
    records["addr"] = BASE + np.random.default_rng(7).permutation(pages) * PAGE
    records["size"], records["proc"] = PAGE, 1
    space = space_of(policy, 64, granularity=granularity)
    result = svmcore.replay(records, space)
    assert result.counters["faults"] == windows
    assert result.counters["migrations"] == windows
    assert result.counters["migrated_pages"] == windows << granularity


def misses(blocks, capacity, eviction, **settings):
    space = space_of("always_migrate", capacity, eviction=eviction, **settings)
    return sum(space.access(BASE + block * BLOCK, by="gpu0").faults for block in blocks)


def lru_misses(blocks, capacity):
    """An LRU cache in six lines."""
    held = OrderedDict()
    count = 0
    for block in blocks:
        count += block not in held
        held[block] = held.pop(block, None)
        if len(held) > capacity:
            held.popitem(last=False)
    return count


BLOCK_LISTS = st.lists(st.integers(0, 9), max_size=60)


@settings(max_examples=60, deadline=None)
@given(blocks=BLOCK_LISTS)
def test_lru_has_the_inclusion_property(blocks):
    counts = [misses(blocks, capacity, "lru") for capacity in range(1, 8)]
    assert counts == sorted(counts, reverse=True)
    assert counts == [lru_misses(blocks, capacity) for capacity in range(1, 8)]


@pytest.mark.parametrize("capacity", [2, 5, 9])
def test_mru_beats_lru_on_a_cyclic_sweep_larger_than_memory(capacity):
    sweep = list(range(10)) * 6
    assert misses(sweep, capacity, "lru") == 60, "each one"
    assert misses(sweep, capacity, "mru") < 60
    assert misses(sweep, 10, "lru") == misses(sweep, 10, "mru") == 10


@pytest.mark.parametrize("eviction", ORDERS)
@pytest.mark.parametrize("policy", [*BASELINES, "never_migrate"])
@pytest.mark.parametrize("unit", [0, 4, 9])
def test_one_block_of_capacity_ends(policy, eviction, unit):
    space = space_of(policy, 1, gpus=2, eviction=eviction, unit=unit)
    draw = np.random.default_rng(3)
    for start, by in zip(draw.integers(0, 4 * 512, 60), draw.integers(0, 3, 60), strict=True):
        name = "cpu" if by == 0 else f"gpu{by - 1}"
        assert space.access(BASE + int(start) * PAGE, 700 * PAGE, name, bool(start & 1)).ok
    space.process.check()
    assert all(space.system.used(f"gpu{i}") <= BLOCK for i in range(2))
