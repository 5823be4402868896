"""The range map against the executable specification, after every step.

Run as a script for the long fuzz: ``python tests/model/test_ranges_model.py --seeds 1500``.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from svmcore import _ranges
from svmcore._ranges import ENTRY, RangeMap
from svmcore.errors import OutOfMemoryError
from svmcore.reference import RangeMap as Specification

TOP = 2**64 - 1
SIZES = (4, 5, 8, 64)


class ModelMap(Specification):
    """The executable specification, with the copies that transactions and clones need."""

    def __init__(self, merge: bool = False) -> None:
        super().__init__(merge=merge)

    def copy(self) -> ModelMap:
        other = ModelMap(self.merge)
        for first, last, value in self.items():
            other.assign(first, last, value)
        return other


def agree(ranges: RangeMap, model: ModelMap) -> None:
    ranges.check()
    expected = list(model.items())
    assert list(ranges) == expected
    assert len(ranges) == len(expected)


def change(ranges: RangeMap, first: int, last: int, value: int) -> None:
    if value:
        ranges.assign(first, last, value)
    else:
        ranges.erase(first, last)


# Page numbers where something is special: both ends, the reach of a leaf, 2**40
# and more apart, and a crowded middle.
BASES = (0, 0x1000, 2**32 - 2, 2**32 - 1, 2**32, 2**33, 2**40, 2**63, TOP - 2**32, TOP - 40)
pages = st.builds(
    lambda base, near: min(base + near, TOP), st.sampled_from(BASES), st.integers(0, 40)
)
spans = st.one_of(
    st.builds(lambda a, n: (a, min(a + n, TOP)), pages, st.integers(0, 12)),
    st.builds(lambda a, b: (min(a, b), max(a, b)), pages, pages),
)
values = st.integers(0, 3)


class RangesMachine(RuleBasedStateMachine):
    @initialize(merge=st.booleans(), node_entries=st.sampled_from(SIZES))
    def start(self, merge: bool, node_entries: int) -> None:
        self.ranges = RangeMap(merge=merge, node_entries=node_entries)
        self.model = ModelMap(merge)
        self.base: ModelMap | None = None
        self.kept: list[tuple[RangeMap, ModelMap]] = []

    @rule(span=spans, value=values)
    def assign(self, span: tuple[int, int], value: int) -> None:
        change(self.ranges, *span, value)
        self.model.assign(*span, value)

    @rule(start=pages, length=st.integers(1, 4), count=st.integers(1, 40), value=st.integers(1, 3))
    def assign_in_order(self, start: int, length: int, count: int, value: int) -> None:
        for i in range(count):
            first = start + 2 * i * length
            if first + length - 1 > TOP:
                return
            self.ranges.assign(first, first + length - 1, value)
            self.model.assign(first, first + length - 1, value)

    @rule(span=spans, value=values, successes=st.integers(0, 12))
    def assign_without_memory(self, span: tuple[int, int], value: int, successes: int) -> None:
        _ranges._fail_allocation_after(successes)
        try:
            change(self.ranges, *span, value)
        except OutOfMemoryError:
            return
        finally:
            _ranges._fail_allocation_after(-1)
        self.model.assign(*span, value)

    @rule(asked=st.lists(pages, max_size=40))
    def find(self, asked: list[int]) -> None:
        expected = [self.model.find(page) for page in asked]
        assert [self.ranges.find(page) for page in asked] == expected
        assert self.ranges.find_many(asked).tolist() == expected
        assert self.ranges.values_many(asked).tolist() == [value for _, _, value in expected]

    @rule(page=pages)
    def neighbours(self, page: int) -> None:
        entries = list(self.model.items())
        assert self.ranges.next(page) == next((e for e in entries if e[1] >= page), None)
        assert self.ranges.prev(page) == next((e for e in entries[::-1] if e[0] <= page), None)

    @rule(span=spans)
    def items_of_a_span(self, span: tuple[int, int]) -> None:
        first, last = span
        expected = [e for e in self.model.items() if e[1] >= first and e[0] <= last]
        assert list(self.ranges.items(first, last)) == expected

    @precondition(lambda self: self.base is None)
    @rule()
    def begin(self) -> None:
        self.ranges.begin()
        self.base = self.model.copy()

    @precondition(lambda self: self.base is not None)
    @rule(keep=st.booleans())
    def end(self, keep: bool) -> None:
        if keep:
            self.ranges.commit()
        else:
            self.ranges.rollback()
            self.model = self.base
        self.base = None

    @precondition(lambda self: len(self.kept) < 3)
    @rule()
    def clone(self) -> None:
        self.kept.append((self.ranges.clone(), self.model.copy()))

    @precondition(lambda self: self.kept and self.base is None)
    @rule()
    def swap_with_clone(self) -> None:
        self.kept.append((self.ranges, self.model))
        self.ranges, self.model = self.kept.pop(0)

    @invariant()
    def equal(self) -> None:
        agree(self.ranges, self.model)

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            for ranges, model in self.kept:
                agree(ranges, model)


def test_ranges_stateful() -> None:
    run_state_machine_as_test(
        RangesMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def random_span(rng: random.Random, space: int, shape: str) -> tuple[int, int]:
    """A span of one of the shapes that the fuzz mixes."""
    if shape == "sparse":
        first = rng.choice(BASES) + rng.randrange(40)
        last = first + rng.choice((0, 1, 5, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**41))
        return min(first, TOP), min(last, TOP)
    first = rng.randrange(space)
    if shape == "top":
        first += TOP - space
    reach = space if rng.random() < 0.03 else rng.choice((1, 3, 12, 60))
    return first, min(first + rng.randrange(reach), TOP)


def fuzz(seed: int, steps: int = 150) -> None:
    rng = random.Random(seed)
    node_entries = SIZES[seed % len(SIZES)]
    merge = bool(seed // len(SIZES) % 2)
    shape = rng.choice(("dense", "dense", "top", "sparse"))
    space = rng.choice((60, 400, 3000))
    holes = rng.choice((0.1, 0.3, 0.6))
    ranges, model, base = RangeMap(merge, node_entries), ModelMap(merge), None
    for _ in range(steps):
        deed = rng.random()
        first, last = random_span(rng, space, shape)
        value = 0 if rng.random() < holes else rng.randrange(1, 4)
        if deed < 0.04:
            if base is None:
                ranges.begin()
                base = model.copy()
            elif rng.random() < 0.5:
                ranges.rollback()
                model, base = base, None
            else:
                ranges.commit()
                base = None
        elif deed < 0.06 and base is None:
            ranges = ranges.clone()
        elif deed < 0.10:
            _ranges._fail_allocation_after(rng.randrange(6))
            try:
                change(ranges, first, last, value)
                model.assign(first, last, value)
            except OutOfMemoryError:
                pass
            finally:
                _ranges._fail_allocation_after(-1)
        else:
            for _ in range(rng.choice((1, 1, 1, 8))):
                change(ranges, first, last, value)
                model.assign(first, last, value)
                first, last = random_span(rng, space, shape)
        agree(ranges, model)
    if base is not None:
        ranges.rollback()
        agree(ranges, base)


@pytest.mark.parametrize("seed", range(48))
def test_ranges_fuzz(seed: int) -> None:
    fuzz(seed)


def fill(ranges: RangeMap, model: ModelMap, count: int) -> None:
    for i in range(count):
        ranges.assign(10 * i, 10 * i + 6, i % 3 + 1)
        model.assign(10 * i, 10 * i + 6, i % 3 + 1)


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("node_entries", SIZES)
@pytest.mark.parametrize(
    ("first", "last", "value"),
    [(1003, 1004, 9), (1003, 1004, 0), (5, 1500, 9), (5, 1500, 0), (0, TOP, 9), (0, TOP, 0)],
)
def test_every_allocation_fails_in_turn(
    transaction: bool, merge: bool, node_entries: int, first: int, last: int, value: int
) -> None:
    """The n-th allocation fails, for each n until there are fewer: nothing changes."""
    ranges, model = RangeMap(merge, node_entries), ModelMap(merge)
    fill(ranges, model, 200)
    ranges = ranges.clone()  # its arenas have no room to spare
    if transaction:
        ranges.begin()
    for successes in range(100):
        _ranges._fail_allocation_after(successes)
        try:
            change(ranges, first, last, value)
        except OutOfMemoryError:
            agree(ranges, model)
        else:
            break
        finally:
            _ranges._fail_allocation_after(-1)
    else:
        pytest.fail("the assign never had enough memory")
    before = model.copy()
    model.assign(first, last, value)
    agree(ranges, model)
    if transaction:
        _ranges._fail_allocation_after(0)
        try:
            ranges.rollback()
        finally:
            _ranges._fail_allocation_after(-1)
        agree(ranges, before)


def test_transaction_runs_out_of_memory_half_way() -> None:
    """Free nodes run out while leaves are copied: what was done stays, the rest is refused."""
    ranges, model = RangeMap(), ModelMap()
    fill(ranges, model, 2000)
    ranges = ranges.clone()
    before = model.copy()
    ranges.begin()
    ranges.assign(0, 6, 9)
    model.assign(0, 6, 9)
    refused = 0
    _ranges._fail_allocation_after(0)
    try:
        for first in range(10, 20_000, 10):
            try:
                ranges.assign(first, first + 6, 9)
            except OutOfMemoryError:
                refused += 1
            else:
                model.assign(first, first + 6, 9)
        agree(ranges, model)
        ranges.rollback()
    finally:
        _ranges._fail_allocation_after(-1)
    agree(ranges, before)
    assert refused > 0


ROWS = np.array([(10 * i, 10 * i + 6, 1 + i) for i in range(300)], ENTRY)


@pytest.mark.parametrize(
    "make",
    [
        RangeMap,
        lambda: RangeMap(node_entries=4).clone(),
        lambda: RangeMap.from_array(ROWS),
        lambda: RangeMap.from_array(ROWS, node_entries=4),
    ],
)
def test_making_a_map_without_memory(make: Callable[[], RangeMap]) -> None:
    failed = 0
    for successes in range(200):
        _ranges._fail_allocation_after(successes)
        try:
            make().check()
        except OutOfMemoryError:
            failed += 1
        else:
            break
        finally:
            _ranges._fail_allocation_after(-1)
    assert failed > 0


@pytest.mark.parametrize("merge", [False, True])
def test_state_after_many_overwrites(merge: bool) -> None:
    """1e4 entries, 2e5 overwrites: the size at which small tests miss faults of joins."""
    rng = np.random.default_rng(7)
    ranges, model = RangeMap(merge), ModelMap(merge)
    first = 0
    for length, gap in zip(rng.integers(1, 32, 10_000), rng.random(10_000), strict=True):
        value = int(rng.integers(1, 4))
        ranges.assign(first, first + int(length) - 1, value)
        model.assign(first, first + int(length) - 1, value)
        first += int(length) + (int(length) if gap < 0.25 else 0)
    firsts = rng.integers(0, first, 200_000).tolist()
    lengths = rng.integers(1, 8, 200_000).tolist()
    drawn = rng.integers(0, 4, 200_000).tolist()
    for start, length, value in zip(firsts, lengths, drawn, strict=True):
        change(ranges, start, start + length - 1, value)
        model.assign(start, start + length - 1, value)
    agree(ranges, model)
    boundaries = {0} | {edge for a, b, _ in model.items() for edge in (a, b + 1)}
    assert ranges.nbytes <= 24 * len(boundaries)
    asked = rng.integers(0, first, 5_000, dtype=np.uint64)
    expected = [model.find(page) for page in asked.tolist()]
    assert ranges.find_many(asked).tolist() == expected


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fuzz the range map against the model.")
    parser.add_argument("--seeds", type=int, default=1500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    for number in range(options.first, options.first + options.seeds):
        try:
            fuzz(number, options.steps)
        except BaseException:
            print(f"seed {number} fails")
            raise
    print(f"{options.seeds} seeds agree")
