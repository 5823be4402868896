"""Work counters of fixed scenarios, exact: a slower algorithm shows here, on any machine.

The numbers are in ``work.json``. Where a change of them is meant, look at the
difference and write them anew: ``python tests/golden/test_work.py --update``.
"""

import argparse
import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from svmcore import Gpu, Machine, Space, replay
from svmcore.records import RECORD, Kind

GOLDEN = Path(__file__).with_name("work.json")
PAGE = 4096
BASE = 0x7F00_0000_0000


def space(gpus=1, vram_pages=1 << 22, **settings):
    return Space(Machine("golden", tuple(Gpu(1 + i, vram_pages) for i in range(gpus))), **settings)


def first_touch():
    """A gigabyte touched once, in order: one fault a window."""
    target = space()
    target.map(BASE, 1 << 30)
    assert target.access(BASE, 1 << 30, write=True).ok
    return target


def mapped_touches():
    """10,000 touches of mapped pages among 2,000 ranges: no fault, no change."""
    target = space(granularity=3)
    target.map(BASE, 16_000 * PAGE)
    assert target.access(BASE, 16_000 * PAGE).ok
    rng = random.Random(1)
    for _ in range(10_000):
        assert target.access(BASE + rng.randrange(16_000) * PAGE).faults == 0
    return target


def splits():
    """3,000 attribute changes of random spans of 65,536 pages."""
    target = space(2)
    target.map(BASE, 65_536 * PAGE)
    rng = random.Random(2)
    for _ in range(3_000):
        first = rng.randrange(65_000)
        count = rng.randrange(1, 500)
        attr = rng.choice(
            [
                ("PREFERRED_LOC", rng.choice(["gpu0", "gpu1", "cpu"])),
                ("GRANULARITY", rng.randrange(12)),
                ("ACCESS_IN_PLACE", "gpu1"),
            ]
        )
        target.set_attr(BASE + first * PAGE, count * PAGE, [attr])
    return target


def map_and_unmap():
    """Buffers of 64 pages that come, are touched and go."""
    target = space(granularity=4)
    rng = random.Random(3)
    alive = []
    for number in range(1_500):
        addr = BASE + number * 64 * PAGE
        target.map(addr, 64 * PAGE)
        assert target.access(addr, 64 * PAGE).ok
        alive.append(addr)
        if len(alive) > 200:
            target.unmap(alive.pop(rng.randrange(200)), 64 * PAGE)
            target.step()
    return target


def eviction():
    """Random windows of four times the device's memory: the oldest objects leave."""
    target = space(vram_pages=16_384, granularity=9)
    target.map(BASE, 65_536 * PAGE)
    rng = random.Random(4)
    for _ in range(1_000):
        assert target.access(BASE + rng.randrange(65_536) * PAGE, write=True).ok
    return target


def everything():
    """A replay of 20,000 records of every kind, two GPUs."""
    rng = np.random.default_rng(5)
    n, pages = 20_000, 32_768
    trace = np.zeros(n, RECORD)
    trace["addr"] = BASE + rng.integers(0, pages - 128, n) * PAGE
    trace["size"] = rng.integers(1, 128, n) * PAGE
    kinds = [Kind.ACCESS, Kind.FAULT, Kind.ADVISE, Kind.PREFETCH]
    trace["kind"] = rng.choice(kinds, n, p=[0.75, 0.15, 0.05, 0.05])
    trace["proc"] = rng.integers(0, 3, n)
    trace["access"] = rng.integers(0, 2, n)
    advice = trace["kind"] == Kind.ADVISE
    trace["access"][advice] = rng.choice([0, 2, 3, 7], int(advice.sum()))
    trace["peer"] = rng.integers(1, 3, n)
    trace["value"] = rng.integers(0, 10, n)
    target = space(2, vram_pages=16_384, max_svm_range_pages=2_048)
    replay(trace, target)
    return target


SCENARIOS = (first_touch, mapped_touches, splits, map_and_unmap, eviction, everything)


def figures(scenario):
    """Everything countable about a scenario, and a digest of its last state."""
    target = scenario()
    work = target.process.work()  # before the looks below, which count too
    target.process.check()
    rows = json.dumps(target.process.ranges()).encode()
    return {
        "work": work,
        "counters": target.counters(),
        "ranges": len(target.process),
        "modelled_ns": target.now_ns,
        "state": hashlib.blake2b(rows, digest_size=8).hexdigest(),
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_work(scenario):
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert figures(scenario) == golden[scenario.__name__]


def test_golden_file_has_no_other_scenario():
    golden = json.loads(GOLDEN.read_text("utf-8"))
    assert list(golden) == [scenario.__name__ for scenario in SCENARIOS]


def test_work_grows_as_it_should():
    """Bounds that hold whatever the golden numbers are: a find is a few nodes."""
    golden = json.loads(GOLDEN.read_text("utf-8"))
    for name, row in golden.items():
        work = row["work"]
        assert work["nodes_visited"] <= 6 * (work["finds"] + work["assigns"]), name
    # A window is a few look-ups and one new range.
    touch = golden["first_touch"]
    assert touch["counters"]["faults"] == 512
    assert touch["work"]["assigns"] == 512
    assert touch["work"]["finds"] <= 3 * 512
    # Mapped touches never look at the ranges.
    assert golden["mapped_touches"]["work"]["finds"] <= 3 * golden["mapped_touches"]["ranges"]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--update", action="store_true", help="write the golden file")
    options = parser.parse_args(argv)
    found = {scenario.__name__: figures(scenario) for scenario in SCENARIOS}
    if options.update:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        return 0
    golden = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else {}
    for name, row in found.items():
        for key, value in row.items():
            if (was := golden.get(name, {}).get(key)) != value:
                print(f"{name}: {key}: {was} -> {value}")
    return int(found != golden)


if __name__ == "__main__":
    sys.exit(main())
