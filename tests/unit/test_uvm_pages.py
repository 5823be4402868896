"""The UVM policy under kernels with pages of 64 KiB, and who refuses such machines."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from damaged_tables import count_refused
from svmcore import Gpu, Machine, Space
from svmcore.errors import InvalidArgumentError, SvmError
from svmcore.machine import Costs
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import pack, unpack
from svmcore.policies.base import policy_names
from svmcore.policies.uvm import Uvm
from svmcore.reference_uvm import UvmReference

BLOCK, UNIT = 512, 16
BASE = 1 << 30
GPUS = (Gpu(id=1, vram_pages=8 * BLOCK), Gpu(id=2, vram_pages=8 * BLOCK))


def machine(**more: Any) -> Machine:
    return Machine("arm", GPUS, Costs(), **{"page_size": 65536, **more})


@pytest.fixture(params=[UvmProcess, UvmReference])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a process of either kind with 16 blocks mapped at page 0."""

    def made(page_size: int = 65536, **settings: Any) -> Any:
        p = request.param(GPUS, Uvm(**settings), page_size=page_size)
        p.mmap(0, 16 * BLOCK - 1)
        return p

    return made


def resident(p: Any, processor: int, first: int = 0) -> set[int]:
    mask = p.snapshot()["blocks"][first]["resident"].get(processor, 0)
    return {page for page in range(BLOCK) if mask >> page & 1}


# ---- whole pages -----------------------------------------------------------------------


def test_a_touch_of_a_byte_takes_the_page(make: Any) -> None:
    p = make(prefetch=False)
    assert p.access(1, 37, 37, 0)[:3] == (0, "ok", 1)
    assert resident(p, 1) == set(range(32, 48))
    count = p.snapshot()["count"]
    assert (count["faults"], count["populated_pages"]) == (1, UNIT)


def test_faults_are_pages_of_the_kernel(make: Any) -> None:
    for page_size, faults, batches in ((65536, 4 * 32, 1), (4096, 4 * 512, 8)):
        p = make(page_size)
        assert p.access(1, 0, 4 * BLOCK - 1, 0)[2] == faults
        assert p.snapshot()["count"]["batches"] == batches


def test_the_tree_is_that_of_small_pages_over_64_kib(make: Any) -> None:
    swept = {}
    for page_size in (65536, 4096):
        p = make(page_size, outstanding=1)
        p.access(0, 0, BLOCK - 1, 1)
        swept[page_size] = [
            (page, p.moved) for page in range(BLOCK) if p.access(1, page, page, 0)[2]
        ]
    assert swept[65536] == swept[4096]
    assert [moved for _, moved in swept[65536]] == [16, 16, 32, 64, 128, 256]


def test_min_faults_counts_pages_of_the_kernel(make: Any) -> None:
    p = make(prefetch_min_faults=2, outstanding=1)
    p.access(0, 0, BLOCK - 1, 1)
    for page in (0, 16):
        p.access(1, page, page, 0)
    assert p.snapshot()["blocks"][0]["prefetch"] == (1, 2)


def test_deliveries_for_parts_of_one_page_coalesce(make: Any) -> None:
    p = make()
    assert p.deliver([(1, 33, 0), (1, 40, 0), (1, 47, 1)]) == [
        (0, "duplicate", 255),  # the write stands for them
        (0, "duplicate", 255),
        (0, "ok", 1),
    ]


def test_remote_touches_are_what_the_record_covers(make: Any) -> None:
    p = make(prefetch=False)
    p.access(0, 0, BLOCK - 1, 1)
    p.advise("preferred_location", True, 0, BLOCK - 1, 0)
    assert p.access(1, 30, 33, 0)[2:5] == (2, 0, 4)
    assert p.access(1, 30, 33, 0)[2:5] == (0, 0, 4)
    assert p.access(1, 0, 63, 0)[2:5] == (2, 0, 64)


def test_thrashing_is_known_by_page(make: Any) -> None:
    """What two processors do to one page is the same whatever its size."""
    seen = {}
    for page_size in (65536, 4096):
        p = make(page_size, prefetch=False, pin_threshold=1)
        p.set_costs(Costs(unmap_ns=0, migrate_latency_ns=0, migrate_bytes_per_s=1e300))
        p.access(0, 16, 16, 1)
        for turn in range(24):
            p.step(1_000_000 + turn * 100_000)
            p.access((turn + 1) % 2, 16, 16, 1)
        snapshot = p.snapshot()
        count = {name: snapshot["count"][name] for name in ("faults", "pins", "throttles")}
        *masks, pages = snapshot["blocks"][0]["thrashing"]
        seen[page_size] = (count, masks[2:], pages, snapshot["lapse"], p.now)
        lane = (1 << page_size // 4096) - 1 << 16
        assert masks[:2] == [lane, lane]
    assert seen[65536] == seen[4096]
    assert seen[65536][0]["pins"] > 0


def test_chunks_have_64_kib_or_2_mib(make: Any) -> None:
    p = make()
    p.munmap(0, BLOCK - 1)
    p.mmap(20, 99)  # of 4 KiB pages: the kernel's pages 16 to 111
    assert p.ranges()[0][:2] == (16, 111)
    p.access(1, 16, 111, 0)
    p.access(1, BLOCK, BLOCK, 0)
    blocks = p.snapshot()["blocks"]
    assert blocks[16]["chunks"][1] == [(16 * n, 16 * (n - 1)) for n in range(1, 7)]
    assert blocks[BLOCK]["chunks"][1] == [(0, 0)]


def test_advice_and_mappings_are_widened(make: Any) -> None:
    p = make()
    p.advise("preferred_location", True, 100, 101, 1)
    assert [row[:2] for row in p.ranges()] == [(0, 95), (96, 111), (112, 16 * BLOCK - 1)]
    p.munmap(200, 200)
    assert p.vma(191) if isinstance(p, UvmProcess) else p.range_at(191)
    assert p.access(1, 192, 192, 0)[1] == "no_mapping"
    assert p.access(1, 207, 207, 0)[1] == "no_mapping"
    assert p.access(1, 208, 208, 0)[1] == "ok"


def test_a_page_that_mappings_share_belongs_to_the_first(make: Any) -> None:
    p = make()
    p.munmap(0, BLOCK - 1)
    assert p.mmap(0, 20) == 0
    assert p.mmap(21, 40) == 0
    assert [p.mmap(*inside) for inside in ((25, 26), (3, 5), (30, 40))] == [0, 0, 0]
    assert [row[:2] for row in p.ranges()] == [(0, 31), (32, 47), (BLOCK, 16 * BLOCK - 1)]
    assert p.mmap(0, 15) == -17
    assert p.mmap(16, 63) == -17


# ---- machines --------------------------------------------------------------------------


def test_policies_that_do_not_know_large_pages_refuse_them() -> None:
    for name in policy_names():
        if name == "uvm":
            Space(machine(), policy=name)
            continue
        with pytest.raises(InvalidArgumentError, match=rf"{name}: .*65536 bytes, expected 4096"):
            Space(machine(), policy=name)


@pytest.mark.parametrize("size", [0, 8192, -4096, 65536.0, "64K", True])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected one of 4096, 65536"):
        machine(page_size=size)


def test_a_machine_says_its_page_size(tmp_path: Path) -> None:
    from importlib import resources

    text = (resources.files("svmcore") / "data" / "machines" / "gpu-80g.toml").read_text("utf-8")
    path = tmp_path / "large.toml"
    path.write_text("page_size = 65536\n" + text, "utf-8")
    large = Machine.from_toml(path)
    assert large == dataclasses.replace(Machine.preset("gpu-80g"), page_size=65536)
    assert Machine.from_dict(large.to_dict()) == large
    table = large.to_dict()
    del table["page_size"]
    assert Machine.from_dict(table).page_size == 4096  # a file from before it was known
    for wrong in ("64", None, 4096.5, True):
        with pytest.raises(InvalidArgumentError, match="page_size, expected a whole number"):
            Machine.from_dict({**table, "page_size": wrong})
    for wrong in ("8192", '"64KiB"', "true"):
        path.write_text(f"page_size = {wrong}\n" + text, "utf-8")
        with pytest.raises(InvalidArgumentError, match="page_size"):
            Machine.from_toml(path)


# ---- state -----------------------------------------------------------------------------


def busy(p: UvmProcess, seed: int, turns: int) -> None:
    rng = random.Random(seed)
    for _ in range(turns):
        first = rng.randrange(15 * BLOCK)
        p.access(rng.randrange(3), first, first + rng.choice((0, 0, 30, 300)), rng.randrange(3))
        if not rng.randrange(8):
            word = rng.choice(("preferred_location", "accessed_by", "read_mostly", "discard"))
            p.advise(word, True, first, first + 200, rng.randrange(3))


def test_a_saved_space_runs_on_alike(tmp_path: Path) -> None:
    space = Space(machine(), policy="uvm", thrashing_threshold=1, pin_threshold=1)
    space.map(0, 16 << 21)
    busy(space.process, 1, 150)
    space.save(tmp_path / "state.svm")
    loaded = Space.load(tmp_path / "state.svm", machine=machine())
    for other in (space, loaded):
        busy(other.process, 2, 60)
    assert loaded.process.snapshot() == space.process.snapshot()
    with pytest.raises(InvalidArgumentError, match=r"machine\.page_size.*65536"):
        Space.load(tmp_path / "state.svm", machine=machine(page_size=4096))


def test_a_state_with_half_a_page_is_refused() -> None:
    small = UvmProcess(GPUS, Uvm(prefetch=False))
    small.mmap(0, BLOCK - 1)
    small.access(1, 5, 5, 0)
    with pytest.raises(SvmError, match="a page of the kernel is whole"):
        unpack(UvmProcess(GPUS, Uvm(prefetch=False), page_size=65536), pack(small))


def test_no_table_breaks_a_process_with_large_pages() -> None:
    rules = Uvm(thrashing_threshold=1, pin_threshold=1)
    p = UvmProcess(GPUS, rules, page_size=65536)
    p.mmap(0, 16 * BLOCK - 1)
    busy(p, 3, 200)
    tables = pack(p)
    assert len(tables["pages"])

    def load(rows: Any) -> UvmProcess:
        other = UvmProcess(GPUS, rules, page_size=65536)
        unpack(other, rows)
        return other

    found = count_refused(
        tables, list(tables), load, lambda other: busy(other, 5, 4), seed=4, rounds=200
    )
    assert found > 100
