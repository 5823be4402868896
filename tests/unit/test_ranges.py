"""The Python face of the range map: results, errors, counts of work."""

from __future__ import annotations

import doctest
import random
import threading

import numpy as np
import pytest

from svmcore import _ranges
from svmcore._ranges import ENTRY, RangeMap
from svmcore.errors import BusyError, InvalidArgumentError

TOP = 2**64 - 1


def filled(count: int, node_entries: int = 0, *, merge: bool = False) -> RangeMap:
    """Entries of 3 pages every 10 pages, value 1, 2, 3, 1 ..."""
    ranges = RangeMap(merge=merge, node_entries=node_entries)
    for i in range(count):
        ranges.assign(10 * i, 10 * i + 2, i % 3 + 1)
    return ranges


def test_docstring_examples() -> None:
    result = doctest.testmod(_ranges)
    assert result.attempted > 0
    assert result.failed == 0


def test_empty_map_is_one_hole() -> None:
    ranges = RangeMap()
    assert ranges.find(0) == ranges.find(TOP) == (0, TOP, 0)
    assert list(ranges) == []
    assert len(ranges) == 0
    assert ranges.next(0) is None
    assert ranges.prev(TOP) is None
    ranges.check()


def test_assign_keeps_the_outer_parts_of_what_it_cuts() -> None:
    ranges = RangeMap()
    ranges.assign(10, 19, 1)
    ranges.assign(20, 29, 2)
    ranges.assign(15, 24, 3)
    assert list(ranges) == [(10, 14, 1), (15, 24, 3), (25, 29, 2)]
    ranges.assign(17, 18, 1)
    assert list(ranges) == [(10, 14, 1), (15, 16, 3), (17, 18, 1), (19, 24, 3), (25, 29, 2)]
    ranges.erase(0, 18)
    assert list(ranges) == [(19, 24, 3), (25, 29, 2)]
    assert ranges.find(18) == (0, 18, 0)
    ranges.check()


@pytest.mark.parametrize("merge", [False, True])
def test_equal_neighbours(merge: bool) -> None:
    ranges = RangeMap(merge=merge)
    assert ranges.merge is merge
    ranges.assign(0, 9, 5)
    ranges.assign(10, 19, 5)
    ranges.assign(4, 5, 5)
    apart = [(0, 3, 5), (4, 5, 5), (6, 9, 5), (10, 19, 5)]
    assert list(ranges) == ([(0, 19, 5)] if merge else apart)
    ranges.erase(0, 9)
    ranges.erase(10, 19)
    assert ranges.find(5) == (0, TOP, 0)
    ranges.check()


def test_bounds_of_the_page_space() -> None:
    ranges = RangeMap(node_entries=4)
    ranges.assign(0, TOP, 1)
    assert list(ranges) == [(0, TOP, 1)]
    ranges.assign(TOP, TOP, 2)
    ranges.assign(0, 0, 3)
    assert list(ranges) == [(0, 0, 3), (1, TOP - 1, 1), (TOP, TOP, 2)]
    for page in range(TOP - 20, TOP + 1):
        ranges.assign(page, page, 4)
    ranges.check()
    assert ranges.find(TOP) == (TOP, TOP, 4)
    assert ranges.prev(TOP) == (TOP, TOP, 4)
    ranges.erase(0, TOP)
    assert ranges.find(77) == (0, TOP, 0)
    ranges.check()


def test_spans_wider_than_a_leaf_can_reach() -> None:
    ranges = RangeMap()
    ranges.assign(5, 5 + 2**45, 1)
    ranges.assign(2**41, 2**41, 2)
    ranges.assign(2**32 + 3, 2**32 + 4, 3)
    assert list(ranges) == [
        (5, 2**32 + 2, 1),
        (2**32 + 3, 2**32 + 4, 3),
        (2**32 + 5, 2**41 - 1, 1),
        (2**41, 2**41, 2),
        (2**41 + 1, 5 + 2**45, 1),
    ]
    assert ranges.find(2**43) == (2**41 + 1, 5 + 2**45, 1)
    ranges.check()


def random_entries(rnd: random.Random) -> list[tuple[int, int, int]]:
    """Entries with and without gaps, some wider than a leaf can reach."""
    wide = rnd.random() < 0.3
    page, rows = rnd.choice((0, 5, 1 << 40)), []
    for _ in range(rnd.choice((0, 1, 2, 60, 400))):
        page += rnd.choice((0, 0, 1, 7, 1 << 33 if wide else 3))
        last = page + rnd.choice((0, 1, 9, (1 << 32) - 1 if wide else 2, 1 << 34 if wide else 3))
        rows.append((page, last, rnd.randrange(1, 4)))
        page = last + 1
    if rows and rnd.random() < 0.2:
        rows[-1] = (rows[-1][0], TOP, 3)
    return rows


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("node_entries", [0, 4, 5, 8, 64])
def test_a_map_made_at_once_is_one_made_by_assigning(merge: bool, node_entries: int) -> None:
    rnd = random.Random(node_entries)
    for _ in range(60):
        rows = random_entries(rnd)
        slow = RangeMap(merge, node_entries)
        for row in rows:
            slow.assign(*row)
        fast = RangeMap.from_array(np.array(rows, ENTRY), merge, node_entries)
        fast.check()
        assert list(fast) == list(slow)
        assert len(fast) == len(slow)
        assert [tuple(row) for row in fast.to_array().tolist()] == list(slow)
        # It changes as any other, in a transaction too.
        fast.begin()
        for _ in range(30):
            first = rnd.randrange(rows[-1][0] + 10 if rows else 10)
            last, value = min(first + rnd.randrange(60), TOP), rnd.randrange(4)
            for ranges in (fast, slow):
                if value:
                    ranges.assign(first, last, value)
                else:
                    ranges.erase(first, last)
        fast.check()
        assert list(fast) == list(slow)
        fast.rollback()
        fast.check()
        assert [tuple(row) for row in RangeMap.from_array(fast.to_array()).to_array().tolist()] == [
            tuple(row) for row in fast.to_array().tolist()
        ]


@pytest.mark.parametrize(
    ("rows", "at"),
    [
        ([(5, 4, 1)], 0),
        ([(5, 6, 0)], 0),
        ([(5, 9, 1), (9, 12, 2)], 1),
        ([(5, 9, 1), (0, 2, 2)], 1),
        ([(5, TOP, 1), (0, 2, 2)], 1),
    ],
)
def test_entries_that_cannot_be_are_named(rows: list[tuple[int, int, int]], at: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"entries\[{at}\]: expected"):
        RangeMap.from_array(np.array(rows, ENTRY))


@pytest.mark.parametrize("entries", [None, [], np.zeros(3), np.zeros((1, 1), ENTRY)])
def test_what_is_no_array_of_entries(entries: object) -> None:
    with pytest.raises(InvalidArgumentError, match="expected an array of ENTRY"):
        RangeMap.from_array(entries)  # type: ignore[arg-type]


def test_find_many_equals_find() -> None:
    ranges = filled(3000)
    rng = np.random.default_rng(1)
    for asked in (
        rng.integers(0, 31_000, 1001, dtype=np.uint64),
        np.arange(1000, dtype=np.uint64),
        np.array([TOP, 0, 5], dtype=np.uint64),
        np.empty(0, dtype=np.uint64),
        rng.integers(0, 31_000, 50, dtype=np.int64)[::2],
    ):
        found = ranges.find_many(asked)
        assert found.dtype == ENTRY
        assert found.tolist() == [ranges.find(page) for page in asked]
        assert ranges.values_many(asked).tolist() == [ranges.find_value(page) for page in asked]


@pytest.mark.parametrize("node_entries", [0, 4])
def test_value_of_a_page_in_a_map_of_any_height(node_entries: int) -> None:
    """Up to 8 leaves, one level of more, several levels, more leaves than lie in the cache."""
    ranges = RangeMap(node_entries=node_entries)
    rng = np.random.default_rng(6)
    for count in range(3000 if node_entries else 400):
        ranges.assign(10 * count, 10 * count + 2, count + 1)
        if count < 40 or count % 97 == 0:
            asked = rng.integers(0, 10 * count + 20, 60).tolist()
            wanted = [
                page // 10 + 1 if page % 10 < 3 and page // 10 <= count else 0 for page in asked
            ]
            assert [ranges.find_value(page) for page in asked] == wanted
            assert [ranges.find(page)[2] for page in asked] == wanted
    for page in rng.integers(0, 10 * count, 500).tolist():
        ranges.assign(page, page + 4, 1 << 20)
        assert ranges.find(page)[2] == ranges.find_value(page + 4) == 1 << 20
    ranges.check()


def test_lists_may_mix_small_and_large_pages() -> None:
    ranges = RangeMap()
    ranges.assign(TOP - 1, TOP, 9)
    assert ranges.values_many([0, TOP]).tolist() == [0, 9]
    assert ranges.values_many([]).tolist() == []


def test_values_many_writes_out() -> None:
    ranges = filled(10)
    out = np.empty(2, dtype=np.uint32)
    assert ranges.values_many([0, 11], out) is out
    assert out.tolist() == [1, 2]


@pytest.mark.parametrize(
    "out",
    [
        np.empty(3, np.uint32),
        np.empty(2, np.int32),
        np.empty(4, np.uint32)[::2],
        np.frombuffer(bytes(8), np.uint32),
        [0, 0],
    ],
)
def test_values_many_refuses_a_wrong_out(out: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"out: expected .* of shape \(2,\)"):
        filled(10).values_many([0, 11], out)


@pytest.mark.parametrize(
    "pages",
    [[-1], [1.5], [2**64], ["1"], [[1]], np.array([3, -1]), np.ones(2), np.ones((2, 2), int)],
)
def test_batches_refuse_what_is_no_page(pages: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"pages.*expected"):
        filled(10).values_many(pages)
    with pytest.raises(InvalidArgumentError, match=r"pages.*expected"):
        filled(10).find_many(pages)


@pytest.mark.parametrize("page", [-1, 2**64, 1.0, "1", None])
def test_bad_page_names_itself_and_what_is_expected(page: object) -> None:
    ranges = filled(3)
    calls = (
        ranges.find,
        ranges.find_value,
        ranges.next,
        ranges.prev,
        ranges.items,
        lambda page: ranges.assign(page, 5, 1),
        lambda page: ranges.assign(5, page, 1),
        lambda page: ranges.erase(page, 5),
    )
    before = list(ranges)
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"(page|first|last) .*: expected .*0\.\."):
            call(page)
    assert list(ranges) == before


@pytest.mark.parametrize("value", [0, -1, 2**32, 1.5, None])
def test_bad_value_changes_nothing(value: object) -> None:
    ranges = filled(3)
    before = list(ranges)
    with pytest.raises(InvalidArgumentError, match=r"value .*expected"):
        ranges.assign(0, 5, value)
    assert list(ranges) == before


def test_first_after_last_is_refused() -> None:
    ranges = filled(3)
    for call in (lambda: ranges.assign(5, 4, 1), lambda: ranges.erase(5, 4)):
        with pytest.raises(InvalidArgumentError, match="first 0x5, last 0x4"):
            call()
    with pytest.raises(InvalidArgumentError, match="expected first <= last"):
        ranges.items(5, 4)


@pytest.mark.parametrize("node_entries", [1, 3, 65, -1, 2.0])
def test_bad_node_entries(node_entries: object) -> None:
    with pytest.raises(InvalidArgumentError, match="node_entries"):
        RangeMap(node_entries=node_entries)


def test_numpy_numbers_are_pages() -> None:
    ranges = RangeMap()
    ranges.assign(np.uint64(3), np.int32(4), np.uint32(7))
    assert ranges.find(np.uint64(3)) == (3, 4, 7)


def test_items_of_a_span_keep_their_own_bounds() -> None:
    ranges = filled(5)
    assert list(ranges.items(11, 30)) == [(10, 12, 2), (20, 22, 3), (30, 32, 1)]
    assert list(ranges.items(13, 19)) == []


def test_iteration_sees_changes_made_on_the_way() -> None:
    ranges = filled(100, node_entries=4)
    seen = []
    for first, last, _ in ranges:
        seen.append(first)
        ranges.erase(first, last + 10)
    assert seen == list(range(0, 1000, 20))
    assert len(ranges) == 0


def test_transaction_keeps_all_or_nothing() -> None:
    ranges = filled(500)
    before = list(ranges)

    def fail_half_way() -> None:
        with ranges.transaction():
            ranges.erase(100, 4000)
            ranges.assign(5, 6, 9)
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert list(ranges) == before
    with ranges.transaction() as inside:
        assert inside is ranges
        ranges.erase(0, TOP)
    assert list(ranges) == []
    ranges.check()


def test_transactions_do_not_nest() -> None:
    ranges = filled(3)
    for call in (ranges.commit, ranges.rollback):
        with pytest.raises(BusyError, match="no transaction is open"):
            call()
    ranges.begin()
    with pytest.raises(BusyError, match="a transaction is open"):
        ranges.begin()
    ranges.rollback()


def test_memory_of_transactions_is_used_again() -> None:
    ranges = filled(2000)
    sizes = set()
    for _ in range(50):
        ranges.begin()
        for i in range(0, 20_000, 37):
            ranges.assign(i, i, 9)
        ranges.rollback()
        sizes.add(ranges.nbytes)
    assert len(sizes) == 1


def test_clone_of_an_open_transaction_is_the_present_map() -> None:
    ranges = filled(300, node_entries=8)
    ranges.begin()
    ranges.erase(500, 1500)
    other = ranges.clone()
    present = list(ranges)
    ranges.rollback()
    assert list(other) == present != list(ranges)
    other.check()
    other.begin()
    other.commit()


def test_snapshot_does_not_follow() -> None:
    ranges = filled(10)
    then = ranges.snapshot()
    before = list(ranges)
    ranges.erase(0, TOP)
    assert list(then) == before


def test_memory_of_a_map_built_in_order() -> None:
    ranges = filled(50_000)
    assert ranges.nbytes / len(ranges) < 2 * 15
    assert ranges.clone().nbytes / len(ranges) < 2 * 10.5


def test_work_of_a_fixed_sequence() -> None:
    ranges = filled(40, node_entries=4)  # four levels
    counts = ranges.work()

    def work() -> dict[str, int]:
        nonlocal counts
        before, counts = counts, ranges.work()
        return {name: n - before[name] for name, n in counts.items() if n != before[name]}

    assert counts == {
        "finds": 0,
        "nodes_visited": 237,
        "assigns": 40,
        "node_splits": 26,
        "node_merges": 0,
        "node_copies": 0,
        "entries_removed": 0,
    }
    ranges.find(55)
    assert work() == {"finds": 1, "nodes_visited": 4}
    ranges.find_many(range(50, 70))  # the second group stays in the leaf of the first
    assert work() == {"finds": 20, "nodes_visited": 64}
    ranges.begin()
    ranges.assign(101, 101, 9)
    assert work() == {"nodes_visited": 12, "assigns": 1, "node_splits": 1, "node_copies": 3}
    ranges.assign(100, 102, 9)
    assert work() == {"nodes_visited": 4, "assigns": 1, "entries_removed": 3}
    ranges.rollback()
    assert work() == {}
    ranges.erase(10, 300)  # 29 entries and the holes behind them; the entry at 300 is cut
    assert work() == {
        "nodes_visited": 20,
        "assigns": 1,
        "node_merges": 2,
        "entries_removed": 58,
    }


def test_work_of_an_exact_overwrite_is_one_descent() -> None:
    ranges = filled(10_000)
    before = ranges.work()
    ranges.assign(50_000, 50_002, 9)
    after = ranges.work()
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changed == {"nodes_visited": 3, "assigns": 1, "entries_removed": 1}


def test_sequential_batch_reads_few_nodes() -> None:
    ranges = filled(10_000)
    before = ranges.work()["nodes_visited"]
    ranges.values_many(np.arange(100_000, dtype=np.uint64))
    assert ranges.work()["nodes_visited"] - before < 100_000 // 4


def test_change_during_a_batch_of_another_thread_is_refused() -> None:
    ranges = filled(20_000)
    asked = np.random.default_rng(3).integers(0, 200_000, 4_000_000, dtype=np.uint64)
    refused = 0
    thread = threading.Thread(target=ranges.values_many, args=(asked,))
    thread.start()
    while thread.is_alive():
        try:
            ranges.assign(0, 2, 1)
        except BusyError:
            refused += 1
    thread.join()
    assert refused > 0
    ranges.assign(0, 2, 2)
    assert ranges.work()["finds"] == len(asked)


@pytest.mark.parametrize(("rule", "text"), _ranges.RULES.items())
def test_check_names_the_broken_rule(rule: int, text: str) -> None:
    ranges = filled(20, node_entries=8)
    ranges.check()
    _ranges._break_rule(ranges, rule)
    with pytest.raises(AssertionError, match=f"rule {rule} .* is broken: {text}"):
        ranges.check()


def test_repr_tells_size() -> None:
    assert repr(RangeMap()).startswith("<RangeMap of 0 entries, ")
