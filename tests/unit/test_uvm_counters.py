"""Access counters under uvm: pages that a GPU touches remotely move to it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from damaged_tables import count_refused
from svmcore import Gpu, Machine, Space
from svmcore.errors import InvalidArgumentError, SvmError
from svmcore.machine import Costs
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import ACCESS_COLUMNS, COLUMNS, pack, unpack
from svmcore.policies.base import make_policy
from svmcore.policies.uvm import Uvm
from svmcore.reference_uvm import UvmReference

BLOCK = 512
#: Nothing else moves pages.
PLAIN: dict[str, Any] = {"access_counters": True, "prefetch": False, "pma_batch_order": 0}


@pytest.fixture(params=[UvmProcess, UvmReference])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a process of either kind with 8 blocks mapped and touched by the CPU."""

    def made(
        *gpus: dict[str, Any], page_size: int = 65536, pages: int = 8 * BLOCK, **settings: Any
    ) -> Any:
        node = [
            Gpu(id=100 + i, **{"vram_pages": pages, **gpu}) for i, gpu in enumerate(gpus or ({},))
        ]
        p = request.param(node, Uvm(**PLAIN | settings), page_size=page_size)
        p.mmap(0, 8 * BLOCK - 1)
        p.access(0, 0, 8 * BLOCK - 1, 1)
        return p

    return made


def counter(p: Any, gpu: int = 1, first: int = 0) -> tuple[int, int, int] | None:
    """Touches, touched regions, page that filled it."""
    found: tuple[int, int, int] | None = p.snapshot()["blocks"][first]["counters"].get(gpu)
    return found


def count(p: Any, name: str) -> int:
    return int(p.snapshot()["count"][name])


def remote(p: Any, gpu: int = 1) -> None:
    """Pages stay in system memory and the GPU is mapped to them."""
    p.advise("accessed_by", True, 0, 8 * BLOCK - 1, gpu)


# ---- counting --------------------------------------------------------------------------


def test_the_threshold_th_remote_page_brings_the_touched_regions(make: Any) -> None:
    p = make()
    remote(p)
    for _ in range(15):
        p.access(1, 32, 47, 0)
    p.access(1, 64, 78, 0)
    assert counter(p) == (255, 0b10100, -1)
    assert count(p, "notifications") == 0
    outcome = p.begin(p.now)
    p.access(1, 100, 101, 0)
    p.finish()
    assert outcome.migr == [
        (32, 47, 0, 100, "access_counter", 16),
        (64, 79, 0, 100, "access_counter", 16),
        (96, 111, 0, 100, "access_counter", 16),
    ]
    assert counter(p) is None  # cleared
    names = ("notifications", "access_counter_migrations", "faults")
    assert [count(p, name) for name in names] == [1, 3, 8 * 32]  # the CPU's own faults alone
    assert p.access(1, 32, 47, 0)[2:5] == (0, 0, 0)  # mapped, and local now


def test_one_touch_counts_what_it_covers(make: Any) -> None:
    p = make(access_counter_threshold=300)
    remote(p)
    p.access(1, 0, 255, 0)
    assert counter(p) == (256, 0xFFFF, -1)
    p.access(1, 256, 511, 0)  # full at page 300: what lies behind it is not flagged
    assert [page for page in range(BLOCK) if p.copies(page) == 2] == list(range(304))


def test_local_touches_cpu_touches_and_faults_do_not_count(make: Any) -> None:
    p = make({}, access_counter_threshold=5)
    for _ in range(9):
        p.access(0, 0, 0, 0)
    p.access(1, 0, 0, 0)
    for _ in range(9):
        p.access(1, 0, 0, 0)
    p.deliver([(1, 64, 0)])
    assert counter(p) is None
    assert count(p, "notifications") == 0


def test_each_gpu_and_block_has_its_own(make: Any) -> None:
    p = make({}, {})
    remote(p, 1)
    remote(p, 2)
    p.access(1, 0, 9, 0)
    p.access(2, 0, 19, 0)
    p.access(2, BLOCK, BLOCK + 4, 0)
    assert (counter(p, 1), counter(p, 2), counter(p, 2, BLOCK)) == (
        (10, 1, -1),
        (20, 3, -1),
        (5, 1, -1),
    )
    p.advise("read_mostly", True, 256, 511)  # the block is cut
    assert counter(p, 1) is None


def test_a_peers_memory_counts_too(make: Any) -> None:
    p = make({"hive": 1}, {"hive": 1}, access_counter_threshold=3)
    p.prefetch(0, 63, 2)
    p.advise("accessed_by", True, 0, BLOCK - 1, 1)
    for _ in range(3):
        assert p.copies(0) == 0b100
        p.access(1, 0, 0, 0)
    assert [p.copies(page) for page in (0, 16)] == [0b010, 0b100]


# ---- who counts ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switch", "coherent", "page_size", "on"),
    [
        (True, False, 65536, True),
        (False, True, 65536, False),
        (None, False, 65536, False),
        (None, True, 65536, True),
        (True, True, 4096, False),
        (None, True, 4096, False),
    ],
)
def test_the_switch(
    make: Any, switch: bool | None, coherent: bool, page_size: int, on: bool
) -> None:
    p = make({"coherent": coherent}, page_size=page_size, access_counters=switch)
    remote(p)
    for _ in range(20):
        p.access(1, 0, 15, 0)
    assert (p.copies(0) == 2) is on
    assert (count(p, "notifications") > 0) is on


@pytest.mark.parametrize("page_size", [4096, 65536])
@pytest.mark.parametrize(
    ("settings", "mapped"),
    [
        ({"access_counters": True}, True),
        ({"access_counters": True, "map_remote_on_eviction": False}, False),
        ({"access_counters": False}, False),
        ({"access_counters": None}, False),
    ],
)
def test_an_evicted_gpu_is_mapped_to_the_copy(
    make: Any, page_size: int, settings: dict[str, Any], mapped: bool
) -> None:
    p = make(page_size=page_size, pages=BLOCK, **settings)
    p.access(1, 5, 5, 1)
    p.access(1, BLOCK, BLOCK, 1)  # evicts block 0
    assert p.copies(5) == 1
    assert (p.access(1, 5, 5, 0)[2] == 0) is mapped


def test_small_pages_keep_no_state() -> None:
    """Notifications are dropped by the driver: nothing is counted for them."""
    p = UvmProcess([Gpu(id=1, vram_pages=BLOCK)], Uvm(**PLAIN))
    assert not ACCESS_COLUMNS.keys() & pack(p).keys()


# ---- what moves ------------------------------------------------------------------------


def test_a_small_block_gives_the_notified_page_alone(make: Any) -> None:
    p = make(access_counter_threshold=40)
    p.munmap(256, 511)
    p.advise("accessed_by", True, 0, 255, 1)
    p.access(1, 0, 100, 0)
    assert [page for page in range(256) if p.copies(page) == 2] == list(range(32, 48))


def test_only_pages_that_lie_with_the_notified_one(make: Any) -> None:
    p = make({"hive": 1}, {"hive": 1}, access_counter_threshold=33)
    p.prefetch(16, 31, 2)
    p.advise("accessed_by", True, 0, BLOCK - 1, 1)
    p.access(1, 0, 47, 0)
    # Page 32 filled it and lies in system memory, as page 0 does.
    assert [p.copies(page) for page in (0, 16, 32)] == [0b010, 0b100, 0b010]


def test_the_preferred_location_decides_before_the_requester(make: Any) -> None:
    p = make(access_counter_threshold=10)
    p.advise("preferred_location", True, 0, BLOCK - 1, 0)
    p.access(1, 0, 15, 0)
    for _ in range(5):
        p.access(1, 0, 15, 0)
    assert p.copies(0) == 1  # rule 9: it is there already
    assert count(p, "notifications") == 6
    assert count(p, "access_counter_migrations") == 0
    assert counter(p) is None


def test_a_page_that_came_in_between_is_skipped(make: Any) -> None:
    """The touch that fills the counter is followed, in the same touch, by a fault that moves."""
    p = make(access_counter_threshold=1, prefetch=True, prefetch_threshold=1)
    p.advise("accessed_by", True, 0, 15, 1)
    assert p.access(1, 0, 31, 0)[2] == 1
    assert p.copies(0) == 2


def test_the_prefetcher_adds_pages(make: Any) -> None:
    p = make(access_counter_threshold=9 * 16, prefetch=True)
    remote(p)
    outcome = p.begin(p.now)
    p.access(1, 0, 9 * 16 - 1, 0)
    p.finish()
    assert outcome.migr == [
        (0, 143, 0, 100, "access_counter", 144),
        (144, 255, 0, 100, "prefetcher", 112),
    ]


def test_a_copy_moves_under_read_duplication(make: Any) -> None:
    """The driver does not act on the decision to duplicate."""
    p = make(access_counter_threshold=1)
    p.access(1, 0, 0, 0)
    p.prefetch(0, 15, 0)
    remote(p)
    p.advise("read_mostly", True, 0, 15)
    if p.access(1, 0, 0, 0)[2]:  # advice took the remote mapping: a read makes a copy
        assert p.copies(0) == 0b11
    assert count(p, "notifications") == 0


def test_pinned_pages_stay_and_throttled_ones_are_left(make: Any) -> None:
    p = make({"hive": 1}, {"hive": 1}, driver="580", access_counter_threshold=1, pin_threshold=1)
    p.set_costs(Costs(unmap_ns=0, migrate_latency_ns=0, peer_latency_ns=0, fault_batch_ns=0))
    for turn in range(8):
        p.step(10_000_000 + turn * 100_000)
        p.access(1 + turn % 2, 7, 7, 1)
    assert count(p, "pins") > 0
    place = p.copies(7)
    other = 1 if place == 0b100 else 2
    before = count(p, "access_counter_migrations")
    p.access(other, 7, 7, 0)  # mapped remotely: it is counted, and the pin holds
    assert p.copies(7) == place
    assert count(p, "access_counter_migrations") == before


def test_notifications_are_served_in_batches_by_address(make: Any) -> None:
    for batch, batches in ((256, 1), (2, 4)):
        p = make(access_counter_threshold=1, access_counter_batch=batch)
        p.set_costs(
            Costs(
                fault_batch_ns=7_000,
                fault_in_batch_ns=1,
                unmap_ns=0,
                migrate_latency_ns=0,
                migrate_bytes_per_s=1e300,
                remote_access_ns=0,
                remote_bytes_per_s=1e300,
            )
        )
        remote(p)
        before = p.now
        p.access(1, 0, 8 * BLOCK - 1, 0)
        assert p.now - before == batches * 7_000 + 8
        assert count(p, "notifications") == 8
        # A region of each block: the counter is full at its first page.
        assert [p.copies(b * BLOCK) for b in range(8)] == [2] * 8
        assert p.copies(16) == 1


def test_without_room_it_is_not_cleared_and_says_so_once(make: Any) -> None:
    p = make(pages=BLOCK - 1, access_counter_threshold=1)
    remote(p)
    for _ in range(3):
        assert p.access(1, 0, 0, 0)[:2] == (0, "ok")
    assert count(p, "notifications") == 1
    assert counter(p) == (1, 1, 0)
    p.check()


def test_a_full_gpu_evicts_for_it(make: Any) -> None:
    p = make(pages=BLOCK, access_counter_threshold=4)
    p.access(1, 0, 0, 0)
    p.advise("accessed_by", True, BLOCK, 2 * BLOCK - 1, 1)
    p.access(1, BLOCK, BLOCK + 3, 0)
    assert (p.copies(0), p.copies(BLOCK)) == (1, 2)
    assert count(p, "evictions") == 1


@pytest.mark.parametrize("seed", range(4))
def test_it_always_ends(seed: int) -> None:
    """Two GPUs without room for what they touch, and counters that are full at once."""
    rng = random.Random(seed)
    node = [Gpu(id=1 + i, vram_pages=BLOCK, hive=1) for i in range(2)]
    p = UvmProcess(node, Uvm(access_counters=True, access_counter_threshold=1), page_size=65536)
    p.mmap(0, 8 * BLOCK - 1)
    p.advise("accessed_by", True, 0, 8 * BLOCK - 1, 1)
    for _ in range(150):
        first = rng.randrange(7 * BLOCK)
        ret, *_ = p.access(rng.randrange(3), first, first + rng.choice((0, 40, 511)), 0)
        assert ret == 0
        p.check()
        assert max(p.snapshot()["used"].values()) <= BLOCK


# ---- the policy and its state ----------------------------------------------------------


def test_explain_tells_what_is_counted_and_counts_nothing() -> None:
    machine = Machine("arm", (Gpu(id=1, vram_pages=8 * BLOCK),), page_size=65536)
    space = Space(machine, policy="uvm(access_counters=on)")
    space.map(1 << 30, 2 << 20)
    space.access(1 << 30, 2 << 20, by="cpu", write=True)
    space.advise(1 << 30, 2 << 20, "accessed_by", "gpu0")
    before = space.process.snapshot()
    told = space.explain(1 << 30)
    assert (told.rule, told.location) == ("access counter", None)
    assert "counts the touch" in told.text
    assert space.explain(1 << 30, by="cpu").rule == "mapped"
    assert space.process.snapshot() == before
    space.access(1 << 30, 2 << 20)
    assert space.explain(1 << 30).rule == "mapped"
    assert space.process.work()["access_counter_migrations"] > 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("access_counter_threshold", 0, "expected 1 to 65535"),
        ("access_counter_threshold", 65536, "expected 1 to 65535"),
        ("access_counter_batch", 0, "expected 1 to 4096"),
        ("access_counters", "perhaps", "expected on or off"),
    ],
)
def test_parameters_out_of_bounds_are_named(name: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        make_policy("uvm", **{name: value})


def busy(p: UvmProcess, seed: int, turns: int) -> None:
    rng = random.Random(seed)
    p.advise("accessed_by", True, 0, 8 * BLOCK - 1, 1 + seed % 2)
    for _ in range(turns):
        first = rng.randrange(7 * BLOCK)
        p.access(rng.randrange(3), first, first + rng.choice((0, 0, 30, 300)), rng.randrange(3))
        if not rng.randrange(10):
            word = rng.choice(("preferred_location", "accessed_by"))
            p.advise(word, True, first, first + 200, rng.randrange(3))


def counting() -> UvmProcess:
    node = [Gpu(id=1 + i, vram_pages=3 * BLOCK) for i in range(2)]
    return UvmProcess(node, Uvm(access_counters=True), page_size=65536)


def test_a_saved_space_counts_on(tmp_path: Path) -> None:
    node = tuple(Gpu(id=1 + i, vram_pages=3 * BLOCK) for i in range(2))
    machine = Machine("arm", node, page_size=65536)
    space = Space(machine, policy="uvm(access_counters=on)")
    space.map(0, 8 << 21)
    busy(space.process, 1, 80)
    assert any(b["counters"] for b in space.process.snapshot()["blocks"].values())
    space.save(tmp_path / "state.svm")
    loaded = Space.load(tmp_path / "state.svm", machine=machine)
    for other in (space, loaded):
        busy(other.process, 2, 60)
    assert loaded.process.snapshot() == space.process.snapshot()
    assert space.process.work()["notifications"] > 3


def test_a_state_from_before_counters_is_read() -> None:
    """It has fewer rows of counters; those that came later begin at 0."""
    node = [Gpu(id=1, vram_pages=BLOCK)]
    p = UvmProcess(node, Uvm())
    p.mmap(0, BLOCK - 1)
    p.access(1, 0, 20, 0)
    tables = pack(p)
    tables["counters"] = tables["counters"][:-6]
    other = UvmProcess(node, Uvm())
    unpack(other, tables)
    assert other.snapshot() == p.snapshot()
    tables["counters"] = tables["counters"][:-1]
    with pytest.raises(SvmError, match="counters, expected a row each"):
        unpack(UvmProcess(node, Uvm()), tables)


def test_no_table_breaks_the_counters() -> None:
    p = counting()
    p.mmap(0, 8 * BLOCK - 1)
    busy(p, 3, 80)
    tables = pack(p)
    assert tables.keys() == (COLUMNS | ACCESS_COLUMNS).keys()
    assert len(tables["access_counters"])

    def load(rows: Any) -> UvmProcess:
        other = counting()
        unpack(other, rows)
        return other

    found = count_refused(
        tables,
        ["access_counters"],
        load,
        lambda other: busy(other, 5, 6),
        seed=4,
        rounds=120,
        values=(0, 1, 33, 256, 1 << 32, (1 << 64) - 1),
    )
    assert found > 40
