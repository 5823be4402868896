"""Policies written in Python: what each action does, and what is told when one is wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svmcore
from svmcore import Gpu, Machine, Space, System
from svmcore._evict import ORDERS
from svmcore.errors import AddressError, InvalidArgumentError, NotSupportedError
from svmcore.machine import Costs
from svmcore.policies._paged_state import unpack
from svmcore.policies.actions import (
    Advice,
    Drop,
    Duplicate,
    Fail,
    Map,
    Mark,
    Move,
    Retry,
    Unmap,
)
from svmcore.policies.base import make_policy
from svmcore.policies.paged import Paged
from svmcore.records import RECORD

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40
NAMES = ("always_migrate", "first_touch", "migrate_once_then_pin", "never_migrate", "advised")


@dataclass(frozen=True)
class Scripted(Paged):
    """Answers each fault with the next list of actions; looks at the view on the way."""

    name: ClassVar[str] = "scripted"
    script: ClassVar[list[Any]] = []
    seen: ClassVar[list[Any]] = []

    def service(self, view, batch):
        self.seen.append(batch[0])
        step = self.script.pop(0) if self.script else []
        return step(view) if callable(step) else step


def machine(blocks=8, gpus=2, **kwargs):
    cards = tuple(Gpu(i + 1, blocks * 512, **kwargs) for i in range(gpus))
    return Machine("m", cards)


def scripted(*script, on=None, **kwargs):
    Scripted.script[:], Scripted.seen[:] = script, []
    space = Space(on or machine(), policy=Scripted(**kwargs))
    space.map(BASE, 16 * BLOCK)
    return space


def test_a_fault_says_who_touched_what():
    space = scripted([Map(BASE, BLOCK, 2)])
    assert space.access(BASE + 5 * PAGE + 7, by="gpu1", write=True).ok
    assert space.policy.seen == [(BASE + 5 * PAGE, 2, True)]
    assert space.access(BASE, BLOCK, by="gpu1").faults == 0, "a hit asks nobody"
    assert len(space.policy.seen) == 1


def test_an_answer_that_is_no_list_names_policy_and_method(monkeypatch):
    for answer in (None, 7):
        expected = f"policy scripted: service gave {answer}: expected actions, a list of them"
        for ask in ("access", "explain", "fault"):
            space = scripted(lambda view, answer=answer: answer)
            with pytest.raises(InvalidArgumentError, match=expected):
                getattr(space, ask)(BASE, by="gpu0")
    monkeypatch.setattr(Scripted, "prefetch", lambda *_: None)
    with pytest.raises(InvalidArgumentError, match="policy scripted: prefetch gave None"):
        scripted().prefetch(BASE, BLOCK, to="gpu0")


def test_explain_shows_the_actions_in_words():
    said = scripted(
        [
            Unmap(BASE, PAGE, 2),
            Move(BASE, PAGE, 1),
            Duplicate(BASE, PAGE, 0),
            Drop(BASE, PAGE, 2),
            Mark(BASE, PAGE, 5),
            Map(BASE, PAGE, 1, write=False),
            Retry(9),
            Fail("EPERM"),
        ]
    ).explain(BASE)
    assert said.text == (
        "gpu0 faults, and policy scripted orders: unmap 0x{0:x}..0x{1:x} for gpu1; "
        "move 0x{0:x}..0x{1:x} to gpu0; duplicate 0x{0:x}..0x{1:x} to cpu; "
        "drop 0x{0:x}..0x{1:x} at gpu1; mark 0x{0:x}..0x{1:x} with 5; "
        "map 0x{0:x}..0x{1:x} for gpu0, to read; retry at 9 ns; fail with EPERM."
    ).format(BASE, BASE + PAGE)


def test_moves_between_gpus_cost_their_link():
    costs = Costs(0, 0, 1000, 4.096e9, 50, 4.096e12, 0, 1e18)
    for hive, expected in ((1, 50 + 512), (0, 2 * (1000 + 512_000))):
        on = Machine("m", tuple(Gpu(i + 1, 4096, hive=hive) for i in range(2)), costs)
        space = scripted([Move(BASE, BLOCK, 1), Map(BASE, BLOCK, 1)], [Move(BASE, BLOCK, 2)], on=on)
        space.access(BASE, by="gpu0")
        before, then = space.counters(), space.now_ns
        assert not space.access(BASE, by="gpu1").ok, "moved, never mapped"
        after = space.counters()
        assert after["migrated_bytes"] - before["migrated_bytes"] == (1 + (hive == 0)) * BLOCK
        assert space.now_ns - then == expected
        assert after["errors"] == 1
        assert space.residency(BASE, BLOCK) == [(BASE, BLOCK, "gpu1")]
        assert space.explain(BASE, "gpu0").rule == "scripted"


def test_duplicates_share_and_are_given_up():
    space = scripted(
        [Move(BASE, BLOCK, 1), Map(BASE, BLOCK, 1)],
        [Duplicate(BASE, BLOCK, 2), Map(BASE, BLOCK, 2)],
        [Drop(BASE, BLOCK, 2), Map(BASE, BLOCK, 1)],
        on=machine(hive=1),
    )
    assert space.access(BASE, BLOCK, by="gpu0", write=True).ok
    assert space.access(BASE, BLOCK, by="gpu1").remote_pages == 0
    assert space.counters()["duplicated_bytes"] == BLOCK
    assert space.process.mapped(1, BASE >> 12)
    assert not space.process.mapped(1, BASE >> 12, True), "to read, though asked to write"
    assert not space.process.mapped(0, BASE >> 12, True), "the owner reads only as well"
    assert space.system.used("gpu1") == BLOCK
    assert space.access(BASE, by="gpu0", write=True).faults == 1
    assert space.process.copies(BASE >> 12) == 0b10
    assert space.system.used("gpu1") == 0, "its unit held nothing else"
    assert space.counters()["migrations"] == 1
    space.process.check()


@pytest.mark.parametrize(("hive", "expected"), [(1, 50 + 512), (0, 2 * (1000 + 512_000))])
def test_a_copy_takes_the_link_that_there_is(hive, expected):
    costs = Costs(0, 0, 1000, 4.096e9, 50, 4.096e12, 0, 1e18)
    on = Machine("m", tuple(Gpu(i + 1, 4096, hive=hive) for i in range(2)), costs)
    space = scripted(
        [Move(BASE, BLOCK, 1)], [Duplicate(BASE, BLOCK, 2), Map(BASE, BLOCK, 2)], on=on
    )
    space.fault(BASE, by="gpu0")
    then = space.now_ns
    assert space.access(BASE, by="gpu1").ok
    assert space.now_ns - then == expected
    assert space.counters()["migrations"] == 1


def test_a_map_leaves_out_what_is_out_of_reach():
    space = scripted(
        [Move(BASE + PAGE, PAGE, 1), Map(BASE, BLOCK, 1)],
        [Map(BASE, BLOCK, 2)],
    )
    assert space.access(BASE, by="gpu0").ok
    assert space.access(BASE, by="gpu1").ok
    assert space.process.mapped(1, BASE >> 12)
    assert not space.process.mapped(1, (BASE >> 12) + 1)
    space.process.check()


def test_protection_limits_a_map():
    space = Space(machine(), policy="always_migrate")
    space.map(BASE, BLOCK, prot="r")
    assert space.access(BASE, by="gpu0").ok
    assert not space.process.mapped(0, BASE >> 12, True)
    assert space.access(BASE, by="gpu0", write=True).reason == "permission"
    assert space.access(BASE + BLOCK, by="gpu0").reason == "no_mapping"
    assert "allows 'r'" in space.explain(BASE, write=True).text
    space.protect(BASE, BLOCK, "rw")
    assert space.access(BASE, by="gpu0", write=True).faults == 1
    space.map(BASE + BLOCK, BLOCK, kind="io")
    assert space.access(BASE + BLOCK, by="gpu0").code == "EFAULT"


def test_retry_waits_and_fail_ends():
    space = scripted([Retry(5_000_000)], [Map(BASE, PAGE, 1)], [Fail("EACCES")], [Fail()])
    result = space.access(BASE, by="gpu0")
    assert (result.ok, result.faults) == (True, 1)
    assert result.ready_ns >= 5_000_000
    assert space.access(BASE + BLOCK, by="gpu0").reason == "no_access"
    assert space.fault(BASE + BLOCK, by="gpu0").code == "EACCES"
    assert space.fault(BASE + BLOCK, by="gpu0").reason == "retry_later", "asked once only"
    before = len(space.policy.seen)
    assert space.access(BASE + BLOCK, by="gpu0").code == "ELOOP"
    assert len(space.policy.seen) - before == 16


def test_marks_unmap_and_the_view():
    looks = []

    def look(view):
        looks.append(
            {
                "mark": view.mark(BASE),
                "where": view.where(BASE),
                "window": view.window(BASE + 3 * BLOCK + PAGE),
                "small": view.window(BASE + PAGE, 0),
                "mapping": (view.mapping(BASE), view.mapping(0)),
                "mapped": view.mapped(BASE, 1, True),
                "reach": [view.reaches(*pair) for pair in ((1, 0), (1, 2), (0, 1), (2, 2))],
                "free": view.free(1),
                "unit": view.unit,
                "machine": view.machine.name,
                "advice": view.advice(BASE),
                "now": view.now_ns,
            }
        )
        return [Map(BASE, PAGE, 1)]

    space = scripted(
        [Move(BASE, PAGE, 1), Map(BASE, PAGE, 1), Mark(BASE, BLOCK, 7), Unmap(BASE, PAGE, 1)]
    )
    space.policy.script.append(look)
    space.advise(BASE, BLOCK, "preferred_location", "gpu1")
    space.advise(BASE, BLOCK, "accessed_by", "gpu0")
    space.advise(BASE, BLOCK, "granularity", value=4)
    assert space.access(BASE, by="gpu0").ok
    assert looks == [
        {
            "mark": 7,
            "where": 1,
            "window": (BASE + 3 * BLOCK, BLOCK),
            "small": (BASE + PAGE, PAGE),
            "mapping": ((BASE, 16 * BLOCK), None),
            "mapped": False,
            "reach": [True, False, False, True],
            "free": 7 * BLOCK,
            "unit": BLOCK,
            "machine": "m",
            "advice": Advice(2, (1,), (), (), False, 4),
            "now": looks[0]["now"],
        }
    ]
    info = space.ranges()[0]
    assert (info.preferred, info.granularity, info.access) == ("gpu1", 4, ("gpu0",))
    assert space.get_attr(BASE, PAGE)["access"] == {"gpu0": "access", "gpu1": "access"}
    space.unmap(BASE, 16 * BLOCK)
    assert space.system.used("gpu0") == 0
    assert space.ranges() == []
    space.process.check()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Move(BASE + 1, PAGE, 1), "whole pages"),
        (Move(BASE, 0, 1), "whole pages"),
        (Move(float(BASE), PAGE, 1), "whole pages"),
        (Move(BASE - PAGE, 2 * PAGE, 1), "pages of one mapping"),
        (Map(BASE, 17 * BLOCK, 1), "pages of one mapping"),
        (Move(BASE, PAGE, 3), "a processor of 0 to 2"),
        (Map(BASE, PAGE, "gpu0"), "a processor of 0 to 2"),
        (Mark(BASE, PAGE, 1 << 32), "a value of 0"),
        (Fail("EGAD"), "EACCES, EPERM, EFAULT"),
        ("move it", "an action of svmcore.policies.actions"),
    ],
)
def test_wrong_actions_are_told_and_named(action, words):
    space = scripted([action], [Map(BASE, PAGE, 1)])
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        space.access(BASE, by="gpu0")
    assert "scripted" in str(caught.value)
    space.process.check()
    assert space.access(BASE, by="gpu0").ok, "the space stays usable"


def test_what_a_policy_raises_reaches_the_caller():
    space = scripted(lambda view: 1 // 0, lambda view: view.window(0))
    with pytest.raises(ZeroDivisionError):
        space.access(BASE, by="gpu0")
    with pytest.raises(InvalidArgumentError, match="expected a mapping there"):
        space.access(BASE, by="gpu0")
    records = np.zeros(3, RECORD)
    records["addr"], records["size"], records["proc"] = BASE, PAGE, 1
    space.policy.script.append(lambda view: {}["absent"])
    with pytest.raises(KeyError, match="absent"):
        svmcore.replay(records, space)
    assert space.counters()["errors"] == 0


def test_a_prefetch_is_the_policys():
    space = Space(machine(), policy="first_touch")
    space.map(BASE, 4 * BLOCK)
    space.prefetch(BASE, 4 * BLOCK, "gpu1")
    assert space.residency(BASE, 4 * BLOCK) == [(BASE, 4 * BLOCK, "gpu1")]
    assert space.access(BASE, 4 * BLOCK, by="gpu1").faults == 0
    space.prefetch(BASE, 4 * BLOCK, "cpu")
    assert space.residency(BASE, 4 * BLOCK) == [(BASE, 4 * BLOCK, "cpu")]
    assert space.system.used("gpu1") == 0
    with pytest.raises(svmcore.SvmError, match="EFAULT"):
        space.prefetch(BASE + 4 * BLOCK, BLOCK, "gpu0")


def test_a_quota_limits_one_process_and_devices_are_shared():
    system = System(machine(blocks=4, gpus=1))
    one = system.space("always_migrate", quota_pages=1024)
    other = system.space("always_migrate")
    for space in (one, other):
        space.map(BASE, 16 * BLOCK)
    one.access(BASE, 3 * BLOCK, by="gpu0")
    assert (system.used("gpu0"), one.counters()["evictions"]) == (2 * BLOCK, 1)
    other.access(BASE, 4 * BLOCK, by="gpu0")
    assert system.used("gpu0") == 4 * BLOCK
    assert one.counters()["evictions"] == 3, "the oldest of the node go, whose they are"
    del other, space
    assert system.used("gpu0") == 0
    kfd = system.space("kfd")
    kfd.map(BASE, 16 * BLOCK)
    one.access(BASE, 2 * BLOCK, by="gpu0")
    kfd.access(BASE, 4 * BLOCK, by="gpu0")
    assert one.counters()["evictions"] == 5, "policies share a device too"
    one.process.check()


def test_memory_pressure_takes_a_unit():
    space = Space(machine(), policy="always_migrate")
    space.map(BASE, BLOCK)
    assert not space.evict(BASE)
    space.access(BASE, by="gpu0")
    assert space.evict(BASE)
    assert space.residency(BASE, BLOCK) == [(BASE, BLOCK, "cpu")]
    with pytest.raises(NotSupportedError, match="always_migrate"):
        space.set_xnack("off")


@pytest.mark.parametrize(
    ("key", "value"),
    [("unit", 19), ("granularity", -1), ("eviction", "lifo"), ("seed", -1), ("quota_pages", 0)],
)
def test_parameters_are_checked(key, value):
    with pytest.raises(InvalidArgumentError, match=rf"always_migrate: {key} = "):
        make_policy("always_migrate", **{key: value})


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["touch"] * 6 + ["unmap", "prefetch", "advise", "evict", "clone"]),
        st.integers(0, 5 * 512 - 1),
        st.sampled_from([1, 3, 64, 512, 900]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(
    operations=OPERATIONS,
    eviction=st.sampled_from(ORDERS),
    unit=st.sampled_from([0, 3, 9, 10]),
    blocks=st.integers(1, 3),
    coherent=st.booleans(),
    hive=st.integers(0, 1),
)
def test_whatever_happens_the_state_is_sound(
    name, operations, eviction, unit, blocks, coherent, hive
):
    on = machine(blocks, hive=hive, coherent=coherent)
    space = Space(on, policy=name, eviction=eviction, unit=unit, seed=5)
    space.map(BASE, 6 * BLOCK)
    for what, page, size, by, write in operations:
        addr, where = BASE + page * PAGE, "cpu" if by == 0 else f"gpu{by - 1}"
        size = min(size, 6 * 512 - page) * PAGE
        if what == "touch":
            result = space.access(addr, size, where, write)
            assert result.ok or result.reason == "no_mapping"
        elif what == "unmap":
            space.unmap(addr, size)
        elif what == "evict":
            space.evict(addr)
        elif what == "clone":
            before = space.policy.pack(space.process)
            space = space.clone()
            after = space.policy.pack(space.process)
            assert all(np.array_equal(before[key], after[key]) for key in before)
        else:
            with suppress(AddressError):  # a hole: EFAULT
                if what == "prefetch":
                    space.prefetch(addr, size, where)
                elif write:
                    space.advise(addr, size, "read_mostly")
                else:
                    space.advise(addr, size, "preferred_location", where)
        space.process.check()
        for gpu in range(2):
            assert space.system.used(f"gpu{gpu}") <= blocks * BLOCK
    counters = space.counters()
    assert counters["migrated_bytes"] >= counters["evicted_bytes"]


def damaged(key, change):
    space = Space(machine(2), policy="advised", eviction="lfu")
    space.map(BASE, 4 * BLOCK)
    space.advise(BASE, BLOCK, "read_mostly")
    space.access(BASE, 4 * BLOCK, by="gpu0", write=True)
    tables = {name: table.copy() for name, table in space.policy.pack(space.process).items()}
    tables[key] = change(tables[key])
    fresh = space.policy.create(space.machine)
    unpack(fresh, tables)


def with_cell(row, column, value):
    def change(table):
        table[row, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("mappings", lambda table: table[::-1, :2], "mappings: expected <?u|uint64"),
        ("mappings", with_cell(0, 2, 99), "mappings: .* = 99"),
        ("mappings", lambda table: np.concatenate([table, table]), "ascending"),
        ("advised", with_cell(0, 2, 2), "values of 1 to 1"),
        ("masks", with_cell(0, 1, 0x777), "tag 0x777"),
        ("masks", lambda table: np.concatenate([table, table]), "each once"),
        (
            "masks",
            lambda table: table[table[:, 1] >> 8 != 2],
            "maps a page that is nowhere.*sound process",
        ),
        ("units", with_cell(0, 1, 9), "GPU 9"),
        ("units", lambda table: table[:1], "sound process"),
        ("units", lambda table: table[[0, 0]], "each once"),
        ("units", with_cell(0, 3, 0), "0 uses"),
        ("drawn", with_cell(0, 0, 1), "drawn"),
        ("drawn", lambda table: table[:1], "drawn: expected 2 rows"),
        ("process", lambda table: table[:0], "one row"),
        ("counters", lambda table: table[:0], "counters: expected 1 rows"),
        ("advice", lambda table: None, "member advice"),
    ],
)
def test_a_damaged_state_is_refused(key, change, words):
    with pytest.raises(InvalidArgumentError, match=words):
        damaged(key, change)
