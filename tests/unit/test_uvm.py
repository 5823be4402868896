"""The UVM policy through its parameters, its process and a space: the driver's numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svmcore import Gpu, Machine, Space, System
from svmcore._evict import ORDERS
from svmcore.conformance import run_file
from svmcore.errors import InvalidArgumentError, NotSupportedError, StateFileError, SvmError
from svmcore.machine import Costs
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import COLUMNS, pack, unpack
from svmcore.policies.base import make_policy
from svmcore.policies.uvm import Uvm
from svmcore.reference_uvm import PrefetchState, UvmReference, prefetch_hint
from svmcore.replay import replay
from svmcore.traces import open_trace

OWN = Path(__file__).parents[1] / "data" / "uvm_vectors.json"
BLOCK = 512
BASE = 1 << 30


def machine(*gpus: dict[str, Any], pages: int = 64 * BLOCK) -> Machine:
    made = tuple(
        Gpu(id=100 + i, **{"vram_pages": pages, **gpu}) for i, gpu in enumerate(gpus or ({},))
    )
    return Machine("test", made, Costs())


def process(*gpus: dict[str, Any], pages: int = 64 * BLOCK, **settings: Any) -> UvmProcess:
    made = UvmProcess(machine(*gpus, pages=pages).gpus, Uvm(**settings))
    made.mmap(0, 64 * BLOCK - 1)
    return made


def resident(p: UvmProcess | UvmReference, processor: int, first: int = 0) -> set[int]:
    """Pages of the block at *first* with a copy on the processor."""
    block = p.snapshot()["blocks"].get(first, {"resident": {}})
    mask = block["resident"].get(processor, 0)
    return {page for page in range(BLOCK) if mask >> page & 1}


@pytest.fixture(params=["compiled", "reference"])
def either(request: pytest.FixtureRequest) -> Any:
    """Makes a process of either kind with 64 blocks mapped at page 0."""

    def make(*gpus: dict[str, Any], pages: int = 64 * BLOCK, **settings: Any) -> Any:
        if request.param == "compiled":
            return process(*gpus, pages=pages, **settings)
        made = UvmReference(machine(*gpus, pages=pages).gpus, Uvm(**settings))
        made.mmap(0, 64 * BLOCK - 1)
        return made

    return make


# ---- vectors ---------------------------------------------------------------------------


@pytest.mark.parametrize("reference", [False, True])
def test_own_vectors(reference: bool) -> None:
    report = run_file(OWN, reference=reference)
    assert (report.mismatches, report.details) == (0, [])
    assert report.steps > 60


@pytest.mark.parametrize("reference", [False, True])
def test_driver_vectors(shared: Path, reference: bool) -> None:
    report = run_file(shared / "vectors" / "uvm_vectors.json", reference=reference)
    assert (report.mismatches, report.details) == (0, [])
    assert report.steps == 40 + 160 + 15 + sum((82, 202, 12, 12, 6, 36))


def test_vectors_that_differ_are_told(tmp_path: Path) -> None:
    vectors = json.loads(OWN.read_text("utf-8"))
    vectors["residency"][0]["destination"] = 77
    vectors["coalescing"][0]["representatives"] = []
    vectors["prefetch"][0]["mask"] = [[0, 1]]
    vectors["thrashing"][0]["steps"].pop()
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(vectors), "utf-8")
    for reference in (False, True):
        assert run_file(path, reference=reference).mismatches == 4


@pytest.mark.parametrize(
    "text", ["{}", '{"prefetch": [], "thrashing": []}', "[1, 2", '{"prefetch": [{}],']
)
def test_files_of_no_kind_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidArgumentError, match="expected a vector file"):
        run_file(path)


def test_a_case_without_a_field_is_named(tmp_path: Path) -> None:
    vectors = json.loads(OWN.read_text("utf-8"))
    del vectors["prefetch"][1]["dst"]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(vectors), "utf-8")
    with pytest.raises(InvalidArgumentError, match="case 1: expected UVM vectors: KeyError"):
        run_file(path)


# ---- prefetch --------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_a_swept_cold_block_is_six_faults(either: Any, order: str) -> None:
    p = either(outstanding=1)
    p.access(0, 0, BLOCK - 1, 1)  # in system memory
    pages = range(BLOCK) if order == "ascending" else range(BLOCK - 1, -1, -1)
    brought, at = [], []
    for page in pages:
        _, _, faults, *_ = p.access(1, page, page, 0)
        if faults:
            at.append(page)
            brought.append(p.moved)
    assert brought == [16, 16, 32, 64, 128, 256]
    faulted = [0, 16, 32, 64, 128, 256]
    assert at == (faulted if order == "ascending" else [511 - page for page in faulted])


def pages_of(text: str) -> set[int]:
    """``"0-5, 7"``: pages, outer exclusive."""
    out: set[int] = set()
    for part in filter(None, text.split(", ")):
        first, _, outer = part.partition("-")
        out |= set(range(int(first), int(outer or int(first) + 1)))
    return out


TABLE = (
    (0, 512, "", "100", {}, "96-100, 101-112"),
    (0, 512, "0-256", "256", {}, "0-256, 257-512"),
    (0, 512, "0-128", "128", {}, "0-128, 129-256"),
    (0, 512, "", "0, 40", {}, "1-16, 32-40, 41-48"),
    (0, 512, "", "0, 16, 32", {}, "1-16, 17-32, 33-64"),
    (6, 106, "", "0", {}, "6-10"),
    (6, 106, "10-74", "74", {}, "6-74, 75-106"),
    (10, 30, "", "0", {}, ""),
    (10, 12, "", "3", {}, "0-3, 4-12"),
    (0, 512, "0-256", "256, 300", {"thrashing": "256"}, "0-256, 257-300, 301-512"),
    (0, 512, "0-248", "256", {"thrashing": "257"}, ""),
    (0, 512, "0-64", "128", {"threshold": 25}, "0-128, 129-256"),
    *((0, 512, "0-64", "128", {"threshold": t}, "129-144") for t in (50, 51, 75, 99)),
    (0, 512, "0-64", "128", {"threshold": 100}, ""),
    *((0, 512, "0-64", "128", {"threshold": t}, "0-128, 129-512") for t in (0, 1)),
    (0, 512, "0-256", "256", {"target": 0, "cpu_mapped": "0-200"}, "200-256, 257-512"),
    (0, 512, "", "5", {"preferred": 1, "touched": False}, "0-5, 6-512"),
    (0, 512, "", "5", {"preferred": 1}, "0-5, 6-16"),
    (0, 512, "", "5", {"preferred": 2}, ""),
    (0, 512, "", "5", {"least": 2}, "0-5, 6-16"),
    (6, 106, "", "0", {"pad_quirk": False}, "1-10"),
)


@pytest.mark.parametrize("row", TABLE)
def test_the_drivers_prefetch_table(row: tuple[Any, ...]) -> None:
    start, pages, there, faulted, more, expected = row

    def mask(text: str) -> int:
        return sum(1 << start + page for page in pages_of(text))

    rules = Uvm(
        prefetch_threshold=more.get("threshold", 51),
        prefetch_min_faults=more.get("least", 1),
        pad_quirk=more.get("pad_quirk"),
    )
    keywords = {
        "start": start,
        "outer": start + pages,
        "target": more.get("target", 1),
        "resident": mask(there),
        "touched": more.get("touched", True),
        "faulted": mask(faulted),
        "thrashing": mask(more.get("thrashing", "")),
        "cpu_mapped": mask(more.get("cpu_mapped", "")),
    }
    preferred = more.get("preferred")
    got = prefetch_hint(PrefetchState(), rules, preferred=preferred, **keywords)
    assert got == (mask(expected), bool(expected) and "least" not in more)
    known = -1 if preferred is None else preferred
    compiled = UvmProcess(machine({}, {}).gpus, rules)
    assert compiled.rule_prefetch(preferred=known, **keywords) == got


def test_stride_then_sweep(either: Any) -> None:
    p = either()
    for page in range(0, BLOCK, 32):
        p.access(1, page, page, 0)
    assert len(resident(p, 1)) == 16 * 16
    p.access(1, 16, 16, 0)
    assert len(resident(p, 1)) == BLOCK


def test_worked_example(either: Any) -> None:
    p = either()
    p.prefetch(0, 127, 1)
    p.access(1, 128, 128, 0)
    assert resident(p, 1) == set(range(256))


def test_one_touch_of_many_pages_comes_in_batches(either: Any) -> None:
    p = either()
    _, _, faults, *_ = p.access(1, 0, 4 * BLOCK - 1, 0)
    # Half a block counts 50 %, less than the threshold: it brings no more than itself.
    assert faults == 4 * BLOCK
    assert p.snapshot()["count"]["batches"] == 8
    sweep = either(outstanding=1)
    _, _, faults, *_ = sweep.access(1, 0, 4 * BLOCK - 1, 0)
    assert faults == 4 * 6


def test_first_touch_on_the_preferred_location_takes_the_block(either: Any) -> None:
    p = either()
    p.advise("preferred_location", True, 0, BLOCK - 1, 1)
    p.access(1, 5, 5, 0)
    assert len(resident(p, 1)) == BLOCK
    count = p.snapshot()["count"]
    assert (count["migrations"], count["populated_pages"]) == (0, BLOCK)


@pytest.mark.parametrize(("driver", "pages"), [("595", 1), ("580", 16)])
def test_prefetch_away_from_home(either: Any, driver: str, pages: int) -> None:
    """The preferred location cannot be reached: pages go to the toucher, from 590 on alone."""
    p = either({}, {}, driver=driver)
    p.access(0, 0, BLOCK - 1, 1)
    p.advise("preferred_location", True, 0, BLOCK - 1, 2)
    p.access(1, 5, 5, 0)
    assert len(resident(p, 1)) == pages


# ---- thrashing -------------------------------------------------------------------------


def test_two_processors_in_turn_are_detected_then_throttled(either: Any) -> None:
    p = either(prefetch=False, driver="580")
    p.set_costs(Costs(unmap_ns=0, migrate_latency_ns=0, migrate_bytes_per_s=1e300))
    p.access(0, 7, 7, 1)
    found = None
    for turn in range(40):
        p.step(1_000_000 + turn * 100_000)
        _, _, _, dropped, *_ = p.access((turn + 1) % 2, 7, 7, 1)
        block = p.snapshot()["blocks"][0]
        if found is None and block["thrashing"][0]:
            found = turn
        if dropped:
            break
    assert found == 4  # the fifth migration
    assert dropped == 1
    assert p.now > 1_000_000 + turn * 100_000 + 20_000  # it waited for the throttle's end


def test_pages_are_pinned_and_released(either: Any) -> None:
    p = either({"hive": 1}, {"hive": 1}, prefetch=False, driver="580")
    for turn in range(8):
        p.step(1_000_000 + turn * 100_000)
        p.access(1 + turn % 2, 7, 7, 1)
    snapshot = p.snapshot()
    assert snapshot["count"]["pins"] == 1
    assert len(resident(p, 1)) + len(resident(p, 2)) == 1
    tables = snapshot["blocks"][0]["tables"]
    assert {1, 2} <= set(tables[0])  # both are mapped
    due = p.next_event_ns
    p.step(due)
    assert p.snapshot()["count"]["unpins"] == 1
    assert p.next_event_ns is None
    assert len({1, 2} & set(p.snapshot()["blocks"][0]["tables"][0])) == 1


# ---- device memory ---------------------------------------------------------------------


def order_of(p: Any) -> list[str]:
    """Blocks on each list, UNUSED, DISCARDED, USED, by letter."""
    return [
        "".join("ABCDEF"[entry[0][2] // BLOCK] for entry in entries)
        for entries in p.snapshot()["lists"][1]
    ]


def test_eviction_in_the_drivers_order(either: Any) -> None:
    p = either(pages=3 * BLOCK, pma_batch_order=0, prefetch=False)
    a, b, c, d = (n * BLOCK for n in range(4))
    for page in (a, b, c):
        p.access(1, page, page, 0)
    assert order_of(p) == ["", "", "ABC"]
    p.access(1, a + 1, a + 1, 0)
    assert order_of(p) == ["", "", "BCA"]
    p.access(1, b, b, 0)  # mapped: no change
    assert order_of(p) == ["", "", "BCA"]
    outcome = p.begin(p.now)
    p.access(1, d, d, 0)
    p.finish()
    assert outcome.migr == [(b, b, 100, 0, "eviction", 1)]
    assert order_of(p) == ["", "", "CAD"]
    p.access(0, c, c, 0)
    assert order_of(p) == ["C", "", "AD"]
    outcome = p.begin(p.now)
    p.access(1, b, b, 0)
    p.finish()
    assert outcome.migr == [(b, b, 0, 100, "gpu_fault", 1)]  # C left no page to copy
    assert order_of(p) == ["", "", "ADB"]


def test_case_23_a_block_is_a_victim_whatever_page_was_touched(either: Any) -> None:
    p = either(pages=2 * BLOCK, pma_batch_order=0, prefetch=False)
    p.access(1, 300, 300, 0)
    p.access(1, BLOCK + 5, BLOCK + 5, 0)
    outcome = p.begin(p.now)
    assert p.access(1, 2 * BLOCK, 2 * BLOCK, 0)[:3] == (0, "ok", 1)
    p.finish()
    assert outcome.migr == [(300, 300, 100, 0, "eviction", 1)]


def test_case_24_a_duplicate_is_dropped_not_copied(either: Any) -> None:
    """Eviction of a copy that the CPU has too moves nothing."""
    p = either(pages=BLOCK, pma_batch_order=0, prefetch=False)
    p.advise("read_mostly", True, 0, BLOCK - 1)
    p.access(0, 3, 3, 1)
    p.access(1, 3, 3, 0)
    assert p.copies(3) == 0b11
    p.access(1, BLOCK, BLOCK, 1)
    count = p.snapshot()["count"]
    assert (count["evictions"], count["evicted_pages"], count["duplicated_pages"]) == (1, 0, 1)
    assert p.copies(3) == 0b01
    p.access(1, 2 * BLOCK, 2 * BLOCK, 1)  # the only copy of a page goes out
    assert p.snapshot()["count"]["evicted_pages"] == 1


PATTERNS = ("sweep", "cyclic", "random", "two processors", "one touch", "prefetch")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("eviction", ["driver", *ORDERS])
def test_a_full_device_always_terminates(pattern: str, blocks: int, eviction: str) -> None:
    p = process({}, {}, pages=blocks * BLOCK + 17, eviction=eviction)
    rng = random.Random(5)
    for turn in range(60):
        page = {"sweep": turn * 97, "cyclic": turn % 5 * BLOCK}.get(pattern)
        page = rng.randrange(64 * BLOCK) if page is None else page % (64 * BLOCK)
        by = 1 + (turn % 2 if pattern == "two processors" else 0)
        last = min(page + (3000 if pattern == "one touch" else 40), 64 * BLOCK - 1)
        if pattern == "prefetch":
            assert p.prefetch(page, last, 1) == 0
        else:
            ret, *_ = p.access(by, page, last, turn % 2)
            assert ret == 0
        snapshot = p.snapshot()
        for gpu in (1, 2):
            here = sum(b["resident"].get(gpu, 0).bit_count() for b in snapshot["blocks"].values())
            assert here <= blocks * BLOCK
            assert snapshot["used"][gpu] <= blocks * BLOCK
        p.check()
    touched = {page for page in range(64 * BLOCK) if p.copies(page)}
    p.munmap(0, 64 * BLOCK - 1)
    assert touched
    assert not any(rows for lists in p.snapshot()["lists"].values() for rows in lists)


def test_memory_without_room_for_one_chunk_is_fatal_not_endless() -> None:
    p = process(pages=BLOCK - 1)
    ret, reason, *_ = p.access(1, 0, 0, 0)
    assert (ret, reason) == (-12, "out_of_memory")
    assert p.prefetch(0, 5, 1) == -12
    assert p.deliver([(1, 3, 1)]) == [(-12, "out_of_memory", 255)]
    p.check()


def test_two_processes_share_a_device() -> None:
    system = System(machine(pages=2 * BLOCK))
    one, two = (system.space(policy="uvm(pma_batch_order=0)") for _ in range(2))
    for space in (one, two):
        space.map(BASE, 8 << 20)
    one.access(BASE, 4 << 20)
    assert system.used("gpu0") == 4 << 20
    two.access(BASE, 2 << 20)
    assert one.counters()["evictions"] == 1  # the oldest chunk, whoever needs the room
    assert system.used("gpu0") == 4 << 20
    del one
    assert system.used("gpu0") == 2 << 20


def test_free_chunks_are_taken_in_batches() -> None:
    space = Space(machine(pages=200 * BLOCK), policy="uvm")
    space.map(BASE, 4 << 20)
    space.access(BASE, 1)
    assert space.system.used("gpu0") == 64 * (2 << 20)
    space.unmap(BASE, 4 << 20)
    assert space.system.used("gpu0") == 63 * (2 << 20)
    # Memory that others need is given back before any page leaves.
    assert space.system.node.take(0, 200 * BLOCK, 200 * BLOCK)
    assert space.counters()["evictions"] == 0


# ---- advice ----------------------------------------------------------------------------


def test_case_29_preferred_and_accessed_by_then_read_mostly() -> None:
    """On a coherent link, where the CPU can reach the GPU's memory."""
    space = Space(machine({"coherent": True}), policy="uvm", prefetch=False)
    space.map(BASE, 2 << 20)
    space.access(BASE, 1, by="cpu", write=True)
    space.advise(BASE, 2 << 20, "preferred_location", "gpu0")
    space.advise(BASE, 2 << 20, "accessed_by", "cpu")
    assert space.access(BASE, 1).moved_pages == 1
    read = space.access(BASE, 1, by="cpu")
    assert (read.faults, read.moved_pages, read.remote_pages) == (0, 0, 1)
    assert space.counters()["migrations"] == 1
    space.advise(BASE, 2 << 20, "read_mostly")
    space.access(BASE, 1, by="cpu")
    assert space.residency(BASE, 4096) == [(BASE, 4096, "cpu+gpu0")]
    assert space.counters()["duplicated_bytes"] == 4096
    space.access(BASE, 1, write=True)
    assert space.residency(BASE, 4096) == [(BASE, 4096, "gpu0")]
    assert space.process.work()["invalidated_pages"] == 1


def test_accessed_by_over_pcie_maps_without_moving(either: Any) -> None:
    p = either(prefetch=False)
    p.access(0, 3, 3, 1)
    p.advise("accessed_by", True, 0, BLOCK - 1, 1)
    assert p.access(1, 3, 3, 0)[2:5] == (0, 0, 1)
    assert p.copies(3) == 1
    p.access(0, 9, 9, 1)  # a later fault of another maps it too
    assert p.access(1, 9, 9, 0)[2] == 0


def test_preferred_location_moves_nothing_and_pulls_home(either: Any) -> None:
    p = either(prefetch=False)
    p.access(0, 3, 3, 1)
    p.advise("preferred_location", True, 0, BLOCK - 1, 0)
    assert p.copies(3) == 1
    p.access(1, 3, 3, 1)
    assert p.copies(3) == 1  # mapped remotely
    p.advise("preferred_location", True, 0, BLOCK - 1, 1)
    assert p.copies(3) == 1
    assert p.access(1, 3, 3, 0)[2] == 1  # its remote mapping went: it faults and pulls
    assert p.copies(3) == 2


def test_advice_cuts_ranges_only_where_it_differs(either: Any) -> None:
    p = either()
    p.advise("preferred_location", True, 100, 199, 1)
    assert [row[:2] for row in p.ranges()] == [(0, 99), (100, 199), (200, 64 * BLOCK - 1)]
    p.advise("preferred_location", True, 120, 150, 1)
    assert len(p.ranges()) == 3
    p.advise("preferred_location", False, 0, 64 * BLOCK - 1)
    assert len(p.ranges()) == 3  # nothing joins them again
    assert p.advise("read_mostly", True, 64 * BLOCK - 1, 64 * BLOCK) == -14


def test_unset_read_mostly_forbids_copies(either: Any) -> None:
    p = either(prefetch=False)
    p.access(0, 3, 3, 1)
    p.advise("read_mostly", True, 0, BLOCK - 1)
    p.access(1, 3, 3, 0)
    assert p.copies(3) == 0b11
    p.advise("read_mostly", False, 0, BLOCK - 1)
    assert p.copies(3) == 0b01
    assert p.ranges()[0][5] == 2
    p.access(1, 3, 3, 0)
    assert p.copies(3) == 0b10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 2)), max_size=40),
    st.sampled_from([({}, {}), ({"hive": 1}, {"hive": 1}), ({"coherent": True}, {})]),
)
def test_read_duplication_keeps_one_writer_or_many_readers(
    steps: list[tuple[int, int, int]], gpus: tuple[dict[str, Any], ...]
) -> None:
    p = process(*gpus)
    p.advise("read_mostly", True, 0, 20)
    for by, page, access in steps:
        p.access(by, page, page, access)
        copies = p.copies(page)
        writers = [gpu for gpu in range(2) if p.mapped(gpu, page, True)]
        assert copies
        if access:
            assert not copies & (copies - 1)
        if copies & (copies - 1):
            assert page <= 20
            assert not writers
        p.check()


# ---- faults ----------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [{}, {"coherent": True}])
@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_faults_that_move_nothing(gpu: dict[str, Any], prefetch: bool, seed: int) -> None:
    """The compiled short way of such faults gives what the specification gives."""
    rng = random.Random(seed)
    made = machine(gpu, gpu).gpus
    both = (UvmProcess(made, Uvm(prefetch=prefetch)), UvmReference(made, Uvm(prefetch=prefetch)))
    for p in both:
        p.set_costs(Costs())
        p.mmap(0, 4 * BLOCK - 1)
        p.prefetch(0, 3 * BLOCK - 1, 0)
        p.advise("preferred_location", True, 0, 4 * BLOCK - 1, 0)
    for _ in range(60):
        page, by, access = rng.randrange(3 * BLOCK), rng.randrange(3), rng.randrange(3)
        last = page + rng.choice((0, 0, 0, 20))
        assert both[0].access(by, page, last, access) == both[1].access(by, page, last, access)
        assert both[0].snapshot() == both[1].snapshot()
    assert both[0].snapshot()["count"]["migrations"] == 0


def test_a_delivery_is_served_dropped_or_fatal() -> None:
    p = process()
    assert p.deliver([(1, 5, 0), (1, 5, 1), (1, 6, 0), (1, 1 << 40, 0)]) == [
        (0, "duplicate", 255),  # the write stands for it
        (0, "ok", 1),
        (0, "ok", 1),
        (-14, "no_mapping", 255),
    ]
    assert p.deliver([(1, 5, 2)]) == [(0, "duplicate", 255)]
    assert p.deliver([]) == []
    for bad in ([(0, 5, 0)], [(2, 5, 0)], [(1, 5, 5)], [(1, 5, 0, 256)]):
        with pytest.raises(InvalidArgumentError, match="expected a GPU"):
            p.deliver(bad)


def test_a_mapped_page_that_the_prefetcher_moves_keeps_no_claim(either: Any) -> None:
    """A strong atomic on a mapped page beside a fault that takes the page along."""
    p = either({}, {})
    p.access(0, 0, 15, 1)
    p.prefetch(5, 5, 2)
    p.advise("accessed_by", True, 0, BLOCK - 1, 2)
    p.deliver([(2, 5, 2), (2, 3, 2)])
    tables = p.snapshot()["blocks"][0]["tables"]
    assert (p.copies(3), p.copies(5)) == (1, 1)  # the tree took page 5 to the CPU
    assert [[table[2] >> page & 1 for table in tables] for page in (3, 5)] == [[1, 1, 1], [1, 1, 0]]


def test_protection_holds_the_cpu_and_not_the_gpu() -> None:
    space = Space(machine(), policy="uvm")
    space.map(BASE, 4096, prot="r")
    assert space.access(BASE, 1, by="cpu", write=True).reason == "permission"
    assert space.access(BASE, 1, by="cpu").ok
    assert space.access(BASE, 1, write=True).ok
    assert space.explain(BASE, by="cpu", write=True).rule == "protection"


def test_explain_names_the_rule_and_changes_nothing() -> None:
    space = Space(machine({}, {"hive": 3}, {"hive": 3}), policy="uvm")
    space.map(BASE, 2 << 20)
    assert space.explain(BASE - 4096).rule == "no mapping"
    assert space.explain(BASE).rule == "6 first touch"
    space.access(BASE, 2 << 20, by="cpu", write=True)
    before = space.process.snapshot()
    assert space.explain(BASE).rule == "11 requester"
    assert space.explain(BASE).location == "gpu0"
    assert space.process.snapshot() == before
    space.advise(BASE, 4096, "accessed_by", "gpu0")
    assert space.explain(BASE).rule == "mapped"
    space.advise(BASE, 4096, "unset_accessed_by", "gpu0")
    space.advise(BASE + 4096, 4096, "preferred_location", "gpu1")
    assert space.explain(BASE + 4096, by="gpu1").rule.startswith("3 ")
    assert space.explain(BASE + 4096, by="gpu2").rule.startswith("9 ")
    space.advise(BASE + 8192, 4096, "read_mostly")
    assert space.explain(BASE + 8192, by="gpu2").rule.startswith("2 ")


# ---- the policy and its space ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("driver", "five", "expected a version from 515 on"),
        ("driver", "470.1", "expected a version from 515 on"),
        ("adaptive_lapse", "maybe", "expected one of default, off, shipped, intended"),
        ("replay_policy", "never", "expected one of block, batch, batch_flush, once"),
        ("prefetch_threshold", 101, "expected 0 to 100"),
        ("batch_size", 0, "expected 1 to 4096"),
        ("thrashing_threshold", 8, "expected 1 to 7"),
        ("nosuch", 1, "unknown parameter 'nosuch'"),
    ],
)
def test_parameters_out_of_bounds_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make_policy("uvm", **{name: value})


@pytest.mark.parametrize(
    ("settings_", "mode", "quirk", "home"),
    [
        ({}, "shipped", True, True),
        ({"driver": "580.65.06"}, "off", True, False),
        ({"driver": "515.43.04"}, "off", False, False),
        ({"driver": "580", "adaptive_lapse": "intended"}, "intended", True, False),
        ({"lapse_us": 400, "adaptive_lapse": "shipped"}, "off", True, True),
        ({"pad_quirk": False}, "shipped", False, True),
    ],
)
def test_generations(settings_: dict[str, Any], mode: str, quirk: bool, home: bool) -> None:
    rules = Uvm(**settings_)
    assert (rules.lapse_mode, rules.quirk, rules.prefetch_home_only) == (mode, quirk, home)


def test_what_uvm_does_not_know_is_refused_and_changes_nothing() -> None:
    space = Space(machine(), policy="uvm")
    space.map(BASE, 2 << 20)
    before = space.process.snapshot()
    for call, kind, message in (
        (lambda: space.map(BASE << 1, 4096, kind="heap"), NotSupportedError, "EOPNOTSUPP"),
        (lambda: space.map(BASE, 4096), InvalidArgumentError, "expected no mapping there yet"),
        (lambda: space.set_attr(BASE, 4096, {}), NotSupportedError, "advise"),
        (lambda: space.get_attr(BASE, 4096), NotSupportedError, "ranges"),
        (lambda: space.set_xnack("off"), NotSupportedError, "retried faults"),
        (lambda: space.advise(BASE, 4096, "granularity"), InvalidArgumentError, "one of pref"),
        (lambda: space.advise(BASE, 4096, "unset_prefetch"), InvalidArgumentError, "one of pref"),
        (lambda: space.advise(BASE, 4096, "accessed_by"), InvalidArgumentError, "missing"),
        (lambda: space.advise(BASE, 4096, "read_mostly", "cpu"), InvalidArgumentError, "no loc"),
        (lambda: space.advise(0, 4096, "read_mostly"), SvmError, "EFAULT"),
        (lambda: space.prefetch(0, 4096, "cpu"), SvmError, "EFAULT"),
        (lambda: space.access(BASE, 1, by="gpu7"), InvalidArgumentError, "gpu7"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert space.process.snapshot() == before
    with pytest.raises(InvalidArgumentError, match="at most 63"):
        UvmProcess([Gpu(id=1 + i, vram_pages=BLOCK) for i in range(64)], Uvm())


def test_replay_of_records_with_advice(tmp_path: Path) -> None:
    from svmcore.attributes import Attribute, Flag
    from svmcore.records import RECORD, Kind

    records = np.zeros(7, RECORD)
    records["addr"], records["size"], records["proc"], records["peer"] = BASE, 2 << 20, 1, 255
    records["kind"] = [
        Kind.MAP,
        Kind.ACCESS,
        Kind.ADVISE,
        Kind.ADVISE,
        Kind.ACCESS,
        Kind.PREFETCH,
        Kind.ACCESS,
    ]
    records["proc"][1] = 0
    records["access"] = [0, 1, Attribute.SET_FLAGS, Attribute.ACCESS, 0, 0, 1]
    records["value"][2] = Flag.GPU_READ_MOSTLY
    records["peer"][5] = 0
    np.save(tmp_path / "trace.npy", records)
    space = Space(machine(), policy="uvm")
    result = replay(open_trace(tmp_path / "trace.npy"), space)
    table = result.to_dict()
    assert table["policy"] == "uvm"
    assert table["duplicated_bytes"] == 2 << 20
    assert table["errors"] == 0
    assert space.process.work()["invalidated_pages"] == BLOCK


@pytest.mark.parametrize("raw", [False, True])
def test_recorded_driver_logs_replay(shared: Path, raw: bool) -> None:
    for path in sorted((shared / "data" / "uvm-eval").glob("*.kmsg")):
        space = Space("gpu-80g", policy="uvm")
        trace = open_trace(path)
        result = replay(trace, space, raw_faults=raw)
        assert result.to_dict()["errors"] == 0
        assert result.to_dict()["faults"] > 0
        space.process.check()


# ---- state -----------------------------------------------------------------------------


def history(p: UvmProcess, rng: random.Random, steps: int) -> Iterator[None]:
    for _ in range(steps):
        first = rng.randrange(6 * BLOCK)
        last = first + rng.choice((0, 0, 3, 40, 700))
        kind = rng.randrange(8)
        if kind < 4:
            p.access(rng.randrange(3), first, last, rng.randrange(3))
        elif kind == 4:
            word = rng.choice(("preferred_location", "accessed_by", "read_mostly", "discard"))
            p.advise(word, bool(rng.randrange(3)), first, last, rng.randrange(3))
        elif kind == 5:
            p.prefetch(first, last, rng.randrange(3))
        elif kind == 6:
            p.step(p.now + rng.choice((1000, 300_000, 200_000_000)))
        else:
            p.deliver([(1 + rng.randrange(2), first + i, rng.randrange(3)) for i in range(9)])
        yield


@pytest.mark.parametrize("seed", range(8))
def test_saved_at_a_cut_point_it_runs_on_alike(tmp_path: Path, seed: int) -> None:
    made = machine({"hive": 1}, {"hive": 1}, pages=3 * BLOCK + 100)
    rng = random.Random(seed)
    space = Space(made, policy="uvm", thrashing_threshold=1, pin_threshold=1)
    space.map(0, 64 * BLOCK << 12)
    for _ in history(space.process, rng, rng.randrange(10, 60)):
        pass
    space.save(tmp_path / "state.svm")
    other = Space.load(tmp_path / "state.svm", machine=made)
    again = rng.random()
    for p in (space.process, other.process):
        for _ in history(p, random.Random(again), 30):
            pass
    assert space.process.snapshot() == other.process.snapshot()
    space.save(tmp_path / "a.svm")
    other.save(tmp_path / "b.svm")
    assert (tmp_path / "a.svm").read_bytes() == (tmp_path / "b.svm").read_bytes()


def test_no_table_breaks_a_process() -> None:
    rules = Uvm(thrashing_threshold=1, pin_threshold=1)
    made = machine({"hive": 1}, {"hive": 1}, pages=3 * BLOCK + 100)
    p = UvmProcess(made.gpus, rules)
    p.mmap(0, 64 * BLOCK - 1)
    for _ in history(p, random.Random(3), 120):
        pass
    tables = pack(p)
    assert all(len(tables[name]) for name in COLUMNS if name != "queue")
    rng = random.Random(1)
    refused = 0
    for _ in range(500):
        name = rng.choice([name for name in COLUMNS if len(tables[name])])
        changed = {key: rows.copy() for key, rows in tables.items()}
        rows = changed[name]
        at = rng.randrange(rows.shape[0]), rng.randrange(rows.shape[1])
        rows[at] = rng.choice(
            (
                0,
                1,
                2,
                5,
                16,
                511,
                512,
                1 << 32,
                (1 << 64) - 1,
                int(rows[at]) ^ 1 << rng.randrange(64),
            )
        )
        other = UvmProcess(made.gpus, rules)
        try:
            unpack(other, changed)
        except (SvmError, OverflowError):
            refused += 1
            continue
        other.check()
        for _ in history(other, random.Random(2), 3):
            pass
        other.check()
    assert refused > 150


def test_a_state_of_other_tables_is_refused(tmp_path: Path) -> None:
    p = process()
    tables = pack(p)
    for broken in (
        {**tables, "more": tables["held"]},
        {key: rows for key, rows in tables.items() if key != "held"},
        {**tables, "held": tables["held"].astype(np.uint32)},
        {**tables, "blocks": tables["held"]},
    ):
        with pytest.raises(InvalidArgumentError, match="expected"):
            unpack(UvmProcess(p.gpus, p.rules), broken)
    with pytest.raises(InvalidArgumentError, match="new process"):
        unpack(p, tables)
    (tmp_path / "cut.svm").write_bytes(b"svm")
    with pytest.raises(StateFileError):
        Space.load(tmp_path / "cut.svm")


def test_untouched_memory_costs_nothing() -> None:
    space = Space(machine(), policy="uvm")
    before = space.process.nbytes
    space.map(1 << 40, 1 << 40)
    space.advise(1 << 40, 1 << 40, "preferred_location", "gpu0")
    assert space.process.nbytes - before < 4096


# ---- modelled time ---------------------------------------------------------------------


def test_transfers_cost_what_the_curves_say(either: Any) -> None:
    costs = Costs(
        to_device_curve=((4096, 1_000.0), (1 << 20, 9_000.0)),
        to_host_curve=((1 << 20, 50_000.0),),
        peer_curve=((8192, 33_000.0), (1 << 20, 70_000.5)),
    )
    for pages in (1, 2, 3, 255, 256, 257, 512):
        p = either({"hive": 1}, {"hive": 1}, prefetch=False)
        p.set_costs(costs)
        p.access(0, 0, BLOCK - 1, 1)
        for target, curve in ((1, "to_device"), (2, "peer"), (0, "to_host")):
            before = p.now
            p.prefetch(0, pages - 1, target)
            p.settle()
            assert p.now - before == costs.unmap_ns + costs.transfer_ns(pages * 4096, curve)
