"""Strategies of eviction under the UVM policy, against the textbook's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from damaged_tables import count_refused
from svmcore import Gpu, Machine, Space, System
from svmcore._evict import ORDERS
from svmcore.errors import InvalidArgumentError
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import COLUMNS, ORDER_COLUMNS, pack, unpack
from svmcore.policies.base import make_policy
from svmcore.policies.uvm import Uvm
from svmcore.reference_uvm import UvmReference

BLOCK = 512
BLOCKS = 16
TWO = (Gpu(id=1, vram_pages=3 * BLOCK, hive=1), Gpu(id=2, vram_pages=3 * BLOCK, hive=1))
#: A chunk for each touched block, and no other page than the touched ones.
PLAIN: dict[str, Any] = {"pma_batch_order": 0, "prefetch": False, "thrashing": False}


def process(capacity: int, word: str, kind: Any = UvmProcess, **more: Any) -> Any:
    """One GPU of *capacity* blocks, and 16 blocks mapped at page 0."""
    made = kind((Gpu(id=1, vram_pages=capacity * BLOCK),), Uvm(eviction=word, **PLAIN | more))
    made.mmap(0, BLOCKS * BLOCK - 1)
    return made


def misses(p: Any, blocks: list[int], pages: int = 1) -> int:
    """Touches of blocks that were not all there."""
    return sum(p.access(1, block * BLOCK, block * BLOCK + pages - 1, 0)[2] > 0 for block in blocks)


def textbook(word: str, capacity: int, blocks: list[int]) -> int:
    """Misses of a cache of so many blocks."""
    came: list[int] = []  # in order of arrival; second chance: the queue
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    missed = 0
    for now, block in enumerate(blocks):
        if block not in came:
            missed += 1
            if len(came) == capacity:
                while word == "second_chance" and count[came[0]]:
                    count[came[0]] = 0
                    came.append(came.pop(0))
                victim = {
                    "fifo": lambda: came[0],
                    "second_chance": lambda: came[0],
                    "lru": lambda: min(came, key=last.__getitem__),
                    "mru": lambda: max(came, key=last.__getitem__),
                    "lfu": lambda: min(came, key=lambda b: (count[b], last[b])),
                }[word]()
                came.remove(victim)
            came.append(block)
            count[block] = 0
        last[block] = now
        count[block] += 1
    return missed


sequences = st.lists(st.integers(0, BLOCKS - 1), max_size=80)


@pytest.mark.parametrize("pages", [1, BLOCK])
@pytest.mark.parametrize("word", ["fifo", "lru", "mru", "lfu", "second_chance"])
@given(blocks=sequences, capacity=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_the_textbook_has_the_same_misses(
    word: str, pages: int, blocks: list[int], capacity: int
) -> None:
    p = process(capacity, word, batch_size=BLOCK, outstanding=BLOCK)
    assert misses(p, blocks, pages) == textbook(word, capacity, blocks)


@given(blocks=sequences)
@settings(max_examples=100, deadline=None)
def test_fewer_blocks_never_give_fewer_misses_under_lru(blocks: list[int]) -> None:
    found = [misses(process(capacity, "lru"), blocks, BLOCK) for capacity in range(1, 9)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("capacity", [1, 4, 7])
def test_mru_beats_lru_on_a_sweep_larger_than_memory(capacity: int) -> None:
    sweep = list(range(8)) * 10
    lru, mru = (misses(process(capacity, word), sweep, BLOCK) for word in ("lru", "mru"))
    assert lru == len(sweep)
    assert mru == lru if capacity == 1 else mru < lru


def test_random_depends_on_its_seed_alone() -> None:
    blocks = random.Random(1).choices(range(BLOCKS), k=200)
    runs = []
    for seed in (1, 1, 2):
        p = process(4, "random", seed=seed)
        runs.append([misses(p, [block]) for block in blocks])
    assert runs[0] == runs[1] != runs[2]


# ---- what counts as a use ---------------------------------------------------------------


@pytest.mark.parametrize("kind", [UvmProcess, UvmReference])
class TestUses:
    def test_a_hit_counts_and_the_driver_does_not_see_it(self, kind: Any) -> None:
        for word, gone in (("lru", 1), ("driver", 0)):
            p = process(2, word, kind)
            misses(p, [0, 1, 0, 2])
            assert [n for n in (0, 1) if not p.copies(n * BLOCK) >> 1 & 1] == [gone]

    def test_a_delivered_fault_counts(self, kind: Any) -> None:
        p = process(2, "lru", kind)
        misses(p, [0, 1])
        p.deliver([(1, 5, 0)])
        misses(p, [2])
        assert p.copies(0) >> 1 & 1

    def test_a_touch_from_another_gpu_uses_the_chunk_that_answers(self, kind: Any) -> None:
        p = kind(tuple(TWO), Uvm(eviction="lru", **PLAIN))
        p.mmap(0, BLOCKS * BLOCK - 1)
        p.advise("accessed_by", True, 0, BLOCKS * BLOCK - 1, 2)
        misses(p, [0, 1, 2])
        assert p.access(2, 0, 0, 0)[2:5] == (0, 0, 1)  # mapped, remote
        misses(p, [3])
        assert [n for n in range(4) if not p.copies(n * BLOCK) >> 1 & 1] == [1]

    def test_parts_of_a_cut_chunk_count(self, kind: Any) -> None:
        p = kind((Gpu(id=1, vram_pages=2 * BLOCK),), Uvm(eviction="lru", **PLAIN))
        p.mmap(20, 99)  # no whole frame: chunks of 64 and 4 KiB
        p.mmap(BLOCK, 4 * BLOCK - 1)
        p.access(1, 20, 99, 0)
        p.access(1, BLOCK, BLOCK, 0)
        p.access(1, 50, 50, 0)
        p.access(1, 2 * BLOCK, 2 * BLOCK, 0)
        assert p.copies(50) >> 1 & 1
        assert not p.copies(BLOCK) >> 1 & 1

    def test_chunks_without_pages_go_first(self, kind: Any) -> None:
        p = process(3, "mru", kind)
        misses(p, [0, 1, 2])
        p.access(0, 0, 0, 1)  # the CPU takes all of the oldest
        p.begin(p.now)
        misses(p, [3])
        assert p.finish().migr == []
        assert p.copies(2 * BLOCK) >> 1 & 1


def test_processes_share_a_device_by_use() -> None:
    system = System(Machine("one", (Gpu(id=1, vram_pages=2 * BLOCK),)))
    one, two = (system.space(policy="uvm(pma_batch_order=0, eviction=lru)") for _ in range(2))
    for space in (one, two):
        space.map(1 << 30, 8 << 20)
        space.access(1 << 30, 2 << 20)
    one.access(1 << 30, 4096)  # a hit: the other's chunk is the longest unused now
    one.access((1 << 30) + (2 << 20), 4096)
    assert (one.counters()["evictions"], two.counters()["evictions"]) == (0, 1)


# ---- parameters and state ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eviction", "belady", "expected one of driver, fifo, lru, mru, lfu, random, second_"),
        ("seed", -1, "expected 0 to 18446744073709551615"),
        ("seed", 1 << 64, "expected 0 to 18446744073709551615"),
    ],
)
def test_parameters_out_of_bounds_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make_policy("uvm", **{name: value})


def busy(p: Any, seed: int, turns: int) -> None:
    """Touches by all processors, whole and cut blocks."""
    rng = random.Random(seed)
    for _ in range(turns):
        first = rng.randrange(BLOCKS * BLOCK - 300)
        p.access(rng.randrange(3), first, first + rng.choice((0, 30, 300)), rng.randrange(3))
        if not rng.randrange(20):
            first = rng.randrange(BLOCKS * BLOCK - 300)
            p.advise("discard", True, first, first + 299)


@pytest.mark.parametrize("word", ORDERS)
def test_a_saved_order_goes_on_alike(tmp_path: Path, word: str) -> None:
    space = Space(Machine("two", TWO), policy=f"uvm(pma_batch_order=0, eviction={word}, seed=7)")
    space.map(0, (BLOCKS * BLOCK - 100) << 12)
    busy(space.process, 1, 60)
    space.save(tmp_path / "state.svm")
    loaded = Space.load(tmp_path / "state.svm", machine=Machine("two", TWO))
    for other in (space, loaded):
        busy(other.process, 2, 40)
    assert loaded.process.snapshot() == space.process.snapshot()
    assert space.counters()["evictions"] > 10


@pytest.mark.parametrize("word", ORDERS)
def test_no_table_breaks_an_order(word: str) -> None:
    rules = Uvm(eviction=word, pma_batch_order=0)
    p = UvmProcess(TWO, rules)
    p.mmap(0, BLOCKS * BLOCK - 101)
    busy(p, 3, 40)
    tables = pack(p)
    assert tables.keys() == (COLUMNS | ORDER_COLUMNS).keys()

    def load(rows: Any) -> UvmProcess:
        other = UvmProcess(TWO, rules)
        unpack(other, rows)
        return other

    found = count_refused(
        tables,
        ["order", "order", "drawn", "random", "roots"],
        load,
        lambda other: busy(other, 5, 5),
        seed=word,
        rounds=150,
        values=(0, 1, 2, 3, 1 << 32, (1 << 64) - 1),
    )
    assert found > 50


def test_a_state_of_another_strategy_is_refused() -> None:
    tables = {word: pack(process(2, word)) for word in ("driver", "lru")}
    with pytest.raises(InvalidArgumentError, match="expected"):
        unpack(UvmProcess((Gpu(id=1, vram_pages=2 * BLOCK),), Uvm()), tables["lru"])
    with pytest.raises(InvalidArgumentError, match="expected"):
        unpack(
            UvmProcess((Gpu(id=1, vram_pages=2 * BLOCK),), Uvm(eviction="lru")), tables["driver"]
        )
