"""Every operation of svmcore under pytest-benchmark; not part of the default test run.

    pytest bench/test_operations.py --benchmark-only
    pytest bench/test_operations.py --benchmark-only -k "fault and 10000" --benchmark-autosave

Times are for people and for one machine: compare two runs with
``pytest-benchmark compare``, or two revisions with ``bench/compare.py``, which takes
turns. A batch's time is that of the whole batch; ``extra_info`` has its operations.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytest_benchmark")
sys.path.insert(0, str(Path(__file__).parent))

import goals
import workloads

from svmcore import Space
from svmcore._ranges import RangeMap
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.records import Kind

SIZES = [100, 10_000, 1_000_000]
PATTERNS = ["uniform", "zipf", "sequential", "strided"]
PAGE = 4096
N = 1_000  # operations of one scalar round
BATCH = 100_000

sizes = pytest.mark.parametrize("ranges", SIZES)
patterns = pytest.mark.parametrize("pattern", PATTERNS)


@pytest.fixture(scope="module")
def maps():
    """Maps by size and merging, made once."""
    made = {}

    def of(ranges, *, merge=False):
        if (ranges, merge) not in made:
            where = workloads.layout(ranges)
            one = RangeMap(merge=merge)
            for row in where.rows():
                one.assign(*row)
            made[ranges, merge] = where, one
        return made[ranges, merge]

    return of


@pytest.fixture(scope="module")
def faults():
    """Processes of registered ranges by size, order and mixture, the last one kept."""
    made = {}

    def of(ranges, order="uniform", *, mix=False):
        key = ranges, order, mix
        if key not in made:
            made.clear()
            made[key] = goals.Faults(ranges, mix, order)
        return made[key]

    return of


def spans(where, pattern, n):
    """Overwrites of 1 to 7 pages whose places follow a pattern."""
    first = workloads.addresses(where, pattern, n, seed=51).astype(np.int64)
    last = np.minimum(first + np.arange(n) % 7, where.end)
    return list(zip(first.tolist(), last.tolist(), (1 + np.arange(n) % 250).tolist(), strict=True))


def timed(benchmark, call, operations, rounds=5, setup=None):
    benchmark.extra_info["operations"] = operations
    benchmark.pedantic(call, setup=setup, rounds=rounds, warmup_rounds=0 if setup else 1)


@sizes
@patterns
def test_find(benchmark, maps, ranges, pattern):
    where, one = maps(ranges)
    pages = workloads.addresses(where, pattern, N).tolist()

    def run(find=one.find):
        for page in pages:
            find(page)

    timed(benchmark, run, N)


@sizes
@patterns
def test_find_batch(benchmark, maps, ranges, pattern):
    where, one = maps(ranges)
    pages = workloads.addresses(where, pattern, BATCH)
    out = np.empty(BATCH, np.uint32)
    timed(benchmark, lambda: one.values_many(pages, out), BATCH)


@sizes
@patterns
@pytest.mark.parametrize("merge", [False, True], ids=["split", "merge"])
def test_overwrite(benchmark, maps, ranges, pattern, merge):
    where, one = maps(ranges, merge=merge)
    changes = spans(where, pattern, N)

    def run(assign):
        for first, last, value in changes:
            assign(first, last, value)

    timed(benchmark, run, N, setup=lambda: ((one.clone().assign,), {}))


@sizes
@patterns
def test_erase(benchmark, maps, ranges, pattern):
    where, one = maps(ranges)
    changes = spans(where, pattern, N)

    def run(erase):
        for first, last, _ in changes:
            erase(first, last)

    timed(benchmark, run, N, setup=lambda: ((one.clone().erase,), {}))


@sizes
def test_clone(benchmark, maps, ranges):
    _, one = maps(ranges)
    timed(benchmark, one.clone, 1)


@sizes
def test_transaction_rolled_back(benchmark, maps, ranges):
    where, one = maps(ranges)
    changes = spans(where, "uniform", 100)

    def run():
        one.begin()
        for first, last, value in changes:
            one.assign(first, last, value)
        one.rollback()

    timed(benchmark, run, 100)


@pytest.mark.parametrize("ranges", SIZES[:2])
@patterns
def test_set_attr(benchmark, ranges, pattern):
    """An attribute of 8 pages in the middle of somewhere, 100 of them."""
    space = Space("gpu-80g")
    where = workloads.layout(ranges)
    space.map(where.first[0] * PAGE, where.span * PAGE)
    for first, last, value in where.rows():
        space.set_attr(first * PAGE, (last - first + 1) * PAGE, {"granularity": value % 10})
    first = workloads.addresses(where, pattern, 100, seed=52).astype(np.int64)
    addrs = (np.minimum(first, where.end - 8) * PAGE).tolist()
    turn = iter(range(1_000_000))

    def run():
        granularity = next(turn) % 12
        for addr in addrs:
            space.set_attr(addr, 8 * PAGE, {"granularity": granularity})

    timed(benchmark, run, 100)


@sizes
@pytest.mark.parametrize("order", ["uniform", "sequential", "streams"])
@pytest.mark.parametrize("mix", [False, True], ids=["all", "mix"])
def test_fault(benchmark, faults, ranges, order, mix):
    case = faults(ranges, order, mix=mix)
    timed(benchmark, case.lap, len(case.records), setup=case.pull_back)


@sizes
@pytest.mark.parametrize("order", ["uniform", "sequential"])
def test_access_hit(benchmark, faults, ranges, order):
    case = faults(ranges, order)
    case.lap()
    touches = case.records.copy()
    touches["kind"] = Kind.ACCESS
    done = np.empty(len(touches), OUTCOME)
    timed(benchmark, lambda: replay_chunk(case.process, touches, done, by=1), len(touches))
    assert not done["faults"].any()


@sizes
def test_access_span(benchmark, faults, ranges):
    """One touch of everything: up to 4096 ranges, by masks of whole blocks."""
    case = faults(ranges, "sequential")
    first, last = int(case.where.first[0]), int(case.where.last[min(ranges, 4096) - 1])
    case.process.access(1, first, last, True)
    timed(benchmark, lambda: case.process.access(1, first, last, True), last - first + 1)


@pytest.mark.parametrize("ranges", SIZES[:2])
def test_munmap(benchmark, ranges):
    """A buffer of 64 pages is mapped, touched and unmapped among others."""
    space = Space("gpu-80g", granularity=4)
    addr = 0x7F00_0000_0000
    for number in range(ranges):
        space.map(addr + number * 64 * PAGE, 64 * PAGE)
    space.access(addr, 16 * PAGE)
    place = addr + ranges * 64 * PAGE

    def run():
        space.map(place, 64 * PAGE)
        space.access(place, 64 * PAGE)
        space.unmap(place, 64 * PAGE)
        space.step()

    timed(benchmark, run, 1, rounds=50)


@pytest.mark.parametrize("ranges", SIZES)
@pytest.mark.parametrize("what", ["save", "load", "clone"])
def test_state(benchmark, faults, tmp_path, ranges, what):
    case = faults(ranges)
    path = tmp_path / "state.svm"
    case.space.save(path)
    calls = {
        "save": lambda: case.space.save(path),
        "load": lambda: Space.load(path),
        "clone": case.space.clone,
    }
    timed(benchmark, calls[what], 1, rounds=5 if ranges < 1_000_000 else 2)
