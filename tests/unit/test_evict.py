"""Eviction orders against a slow model of each, and what must hold of all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svmcore._evict import ORDERS, EvictionOrder
from svmcore.errors import InvalidArgumentError

UNITS, GPUS = 8, 2
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "touch", "touch", "remove", "victim"]),
        st.integers(1, UNITS),
        st.integers(0, GPUS - 1),
    ),
    max_size=60,
)


class Model:
    """Each order as a list of its units and a choice over it."""

    def __init__(self, word):
        self.word = word
        self.held = [[] for _ in range(GPUS)]  # [unit, came, last used, uses, mark]

    def find(self, unit):
        return next((row for held in self.held for row in held if row[0] == unit), None)

    def insert(self, unit, gpu, stamp):
        self.held[gpu].append([unit, stamp, stamp, 1, False])

    def touch(self, unit, stamp):
        row = self.find(unit)
        if row:
            row[2], row[3], row[4] = stamp, row[3] + 1, True

    def remove(self, unit):
        for held in self.held:
            held[:] = [row for row in held if row[0] != unit]

    def victim(self, gpu):
        held = self.held[gpu]
        if not held:
            return None
        if self.word == "second_chance":
            while held[0][4]:
                held[0][4] = False
                held.append(held.pop(0))
            return held[0][0]
        best = {
            "fifo": lambda row: row[1],
            "lru": lambda row: row[2],
            "mru": lambda row: -row[2],
            "lfu": lambda row: (row[3], row[2]),
        }[self.word]
        return min(held, key=best)[0]


@pytest.mark.parametrize("word", [word for word in ORDERS if word != "random"])
@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS)
def test_as_the_model_says(word, operations):
    order, model = EvictionOrder(word, units=UNITS), Model(word)
    for stamp, (what, unit, gpu) in enumerate(operations, 1):
        if what == "victim":
            assert order.victim(gpu) == model.victim(gpu)
        elif what == "insert":
            if model.find(unit) is None:
                order.insert(unit, gpu, stamp)
                model.insert(unit, gpu, stamp)
        elif what == "touch":
            order.touch(unit, stamp)
            model.touch(unit, stamp)
        else:
            order.remove(unit)
            model.remove(unit)
    for gpu in range(GPUS):  # drained to the last unit
        while (unit := order.victim(gpu)) is not None:
            assert unit == model.victim(gpu)
            order.remove(unit)
            model.remove(unit)
        assert model.victim(gpu) is None


@pytest.mark.parametrize("word", ORDERS)
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS, seed=st.integers(0, 2**64 - 1))
def test_a_copy_goes_on_alike(word, operations, seed):
    order = EvictionOrder(word, units=UNITS, seed=seed)
    inside = set()
    half = len(operations) // 2
    copy = None
    for stamp, (what, unit, gpu) in enumerate(operations, 1):
        if stamp == half:
            copy = order.copy()
        both = [order] if copy is None else [order, copy]
        if what == "insert" and unit not in inside:
            inside.add(unit)
            for one in both:
                one.insert(unit, gpu, stamp)
        elif what == "touch":
            for one in both:
                one.touch(unit, stamp)
        elif what == "remove":
            inside.discard(unit)
            for one in both:
                one.remove(unit)
        elif what == "victim":
            victims = [one.victim(gpu) for one in both]
            assert len(set(victims)) == 1
            assert victims[0] is None or victims[0] in inside
            assert order.victim(gpu) == victims[0], "asking changes nothing"
            if copy is not None:
                copy.victim(gpu)
    copy = copy or order.copy()
    for gpu in range(GPUS):
        while (unit := order.victim(gpu)) is not None:
            assert copy.victim(gpu) == unit
            order.remove(unit)
            copy.remove(unit)


def drained(seed):
    order = EvictionOrder("random", units=40, seed=seed)
    for unit in range(1, 41):
        order.insert(unit, 0, unit)
    out = []
    while (unit := order.victim(0)) is not None:
        out.append(unit)
        order.remove(unit)
    return out


def test_random_is_seeded_and_takes_all():
    assert drained(1) == drained(1)
    assert drained(1) != drained(2)
    assert sorted(drained(3)) == list(range(1, 41))
    first = {drained(seed)[0] for seed in range(400)}
    assert len(first) == 40, "each unit can be the first victim"


def test_what_is_wrong():
    with pytest.raises(InvalidArgumentError, match="'lifo': expected one of fifo, lru"):
        EvictionOrder("lifo")
    order = EvictionOrder("lru", units=2)
    order.insert(1, 0, 1)
    for call, words in (
        (lambda: order.insert(3, 0, 1), "expected 1 to 2"),
        (lambda: order.insert(1, 0, 1), "in no order"),
        (lambda: order.insert(2, 64, 1), "below 64"),
        (lambda: order.touch(0, 1), "expected 1 to 2"),
        (lambda: order.victim(-1), "expected 0 to 63"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            call()
    assert order.victim(0) == 1
