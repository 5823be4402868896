"""Why a record did what it did, what happened to a page before, and what plans part for."""

from __future__ import annotations

import json

import numpy as np
import pytest

import svmcore
from svmcore import Gpu, Machine, Space, history
from svmcore.compare import compare
from svmcore.errors import AddressError, InvalidArgumentError
from svmcore.explain import explain
from svmcore.history import page_changes
from svmcore.machine import Costs
from svmcore.plans import plan_of
from svmcore.records import RECORD, Kind
from svmcore.traces import open_trace, write_records

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40
POLICIES = ["kfd", "kfd(kernel=6.1)", "uvm", "always_migrate", "first_touch", "advised"]
#: Two GPUs of few blocks; every constant has its own size, so that no part passes for another.
COSTS = Costs(
    fault_ns=31_000,
    unmap_ns=5_300,
    migrate_latency_ns=10_700,
    peer_latency_ns=9_100,
    remote_access_ns=1_009,
    evict_ns=2_003,
    map_ns=701,
)
TINY = Machine("tiny", (Gpu(11, 1024, hive=1), Gpu(12, 1024, hive=1)), costs=COSTS)


def touch(block=0, page=0, pages=1, write=False, by=1, t=0, **more):
    row = np.zeros(1, RECORD)
    row["addr"], row["size"] = BASE + block * BLOCK + page * PAGE, pages * PAGE
    row["access"], row["proc"], row["t_ns"], row["peer"] = int(write), by, t, 255
    for key, value in more.items():
        row[key] = value
    return row


def trace(tmp_path, *rows, blocks=8):
    mapped = touch(pages=blocks * 512, kind=Kind.MAP)
    path = tmp_path / "trace.npy"
    write_records(path, [np.concatenate([mapped, *rows])], "npy")
    return open_trace(path)


def mixed(seed, n=120):
    """Touches of two GPUs and the CPU, advice and prefetches, more than the GPUs hold."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, RECORD)
    rows["addr"] = BASE + PAGE * rng.integers(0, 7 * 512, n)
    rows["size"] = PAGE * rng.choice([1, 1, 17, 300], n)
    rows["kind"] = rng.choice([Kind.ACCESS] * 9 + [Kind.ADVISE, Kind.PREFETCH], n)
    rows["proc"], rows["access"] = rng.choice([0, 1, 1, 2], n), rng.choice([0, 0, 1], n)
    rows["peer"] = rng.integers(0, 3, n)
    advice = rows["kind"] == Kind.ADVISE
    rows["access"][advice] = rng.choice([0, 3, 5], advice.sum())
    rows["value"], rows["dur_ns"] = 0x20, rng.integers(0, 900, n)
    return rows


# ---- explain -----------------------------------------------------------------------------------


def test_a_fault_told_from_range_to_cost(tmp_path):
    source = trace(
        tmp_path,
        touch(pages=1536, kind=Kind.ADVISE, access=7, value=8),
        touch(0, write=True),
        touch(1, by=2),
        touch(2, 5, pages=200, write=True),
        touch(2, 5, pages=507, write=True),
    )
    answer, late = explain(source, records=[4, 5], machine=TINY)
    assert (answer.record, answer.by, answer.access) == (4, "gpu0", "write")
    assert answer.page == BASE + 2 * BLOCK + 5 * PAGE
    assert answer.where == "absent"
    assert answer.decision.rule == "access"
    assert [c.rule for c in answer.decision.candidates] == ["apu", "preferred location", "access"]
    assert [c.chosen for c in answer.decision.candidates] == [False, False, True]
    start, end = answer.decision.window
    assert (start, end - start) == (BASE + 2 * BLOCK, 256 * PAGE)
    origins = {name: (value, origin) for name, value, origin in answer.attributes}
    assert origins["granularity"] == ("8", "record 1")
    assert origins["preferred_location"] == ("undefined", "default")
    assert {(row.source, row.target) for row in answer.moved} == {("cpu", "gpu0")}
    assert sum(r.pages for r in (*answer.moved, *answer.evicted)) == answer.done["moved_pages"]
    assert answer.costs["faults"] == answer.done["faults"] * COSTS.fault_ns
    assert sum(answer.costs.values()) == answer.cost_ns
    assert "waiting" not in answer.costs
    # The second window of a range waits 2 ms for the first.
    assert (late.page, late.done["duplicates"]) == (BASE + 2 * BLOCK + 256 * PAGE, 1)
    assert late.costs["waiting"] > 1_900_000
    json.dumps([answer.to_dict(), late.to_dict()])


@pytest.mark.parametrize("policy", POLICIES)
def test_it_says_what_a_plain_replay_does(tmp_path, policy):
    rows = mixed(5)
    source = trace(tmp_path, rows, blocks=8)
    plain = svmcore.replay(source, Space(TINY, policy=policy), outcomes=True)
    asked = [*range(1, 121, 9), 120]
    waited = 0
    for answer in explain(source, records=asked, policy=policy, machine=TINY):
        row = plain.outcomes[answer.record]
        done = answer.done
        assert (done["faults"], done["moved_pages"]) == (row["faults"], row["moved"])
        assert (done["duplicates"], done["remote_pages"]) == (row["duplicates"], row["remote"])
        before = int(plain.outcomes[answer.record - 1]["t_ns"])
        assert (answer.began_ns, answer.cost_ns) == (before, int(row["t_ns"]) - before)
        assert sum(answer.costs.values()) == answer.cost_ns
        rest = sum(ns for part, ns in answer.costs.items() if part.startswith("waiting"))
        assert rest >= 0
        if answer.kind == "access":
            assert answer.done["moved_pages"] == sum(
                r.pages for r in (*answer.moved, *answer.evicted)
            )
        waited += rest > 0 and not done["duplicates"]
    if policy in ("kfd", "always_migrate", "first_touch"):
        assert waited == 0, "all is paid for by name"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_changes_of_a_page_are_those_that_polling_sees(tmp_path, policy, monkeypatch):
    rows = mixed(11)
    source = trace(tmp_path, rows, blocks=8)
    for page in (3, 700, 2100):
        number = (BASE >> 12) + page
        seen, polled = "absent", []
        for stop in range(1, 122):
            space = Space(TINY, policy=policy)
            svmcore.replay(source, space, stop=stop)
            now = space.residency(number << 12, PAGE)[0][2]
            if now != seen:
                polled.append((stop - 1, seen, now))
                seen = now
        for chunk in (7, 512):
            monkeypatch.setattr(history, "_CHUNK", chunk)
            found = page_changes(source, lambda: Space(TINY, policy=policy), number, 121)
            moved = [(c.record, c.before, c.after) for c in found if c.before != c.after]
            assert moved == polled
            for change in found:
                assert change.text.startswith(f"record {change.record}, ")


def test_an_eviction_names_the_victim_and_who_used_it_last(tmp_path):
    source = trace(tmp_path, *(touch(b, write=True) for b in (0, 1)), touch(0, 9), touch(2))
    (answer,) = explain(source, records=[4], machine=TINY)
    (gone,) = answer.evicted
    assert (gone.start, gone.source, gone.target) == (BASE, "gpu0", "cpu")
    assert gone.last_touch == 3
    assert answer.costs["evicting"] == COSTS.evict_ns
    (back,) = explain(trace(tmp_path, *(touch(b) for b in (0, 1, 2, 0))), records=[4], machine=TINY)
    assert back.where == "cpu"
    assert back.changes[-1].cause == "eviction"
    assert back.changes[-1].record == 3
    assert "evicted it from gpu0, which was full, to cpu" in back.changes[-1].text


def test_hints_are_the_origin_of_attributes(tmp_path):
    source = trace(tmp_path, touch(0), touch(0))
    plan = plan_of(
        {
            "name": "p",
            "hint": [
                {"buffer": "*", "advice": "preferred_location", "location": "cpu"},
                {"buffer": "*", "advice": "preferred_location", "location": "gpu1", "at": 2},
            ],
        }
    )
    for policy, rule in (("kfd", "preferred location"), ("uvm", "9 preferred location")):
        first, second = explain(source, records=[1, 2], plan=plan, policy=policy, machine=TINY)
        assert first.attributes[0] == ("preferred_location", "cpu", "plan: hint 1")
        assert second.attributes[0] == ("preferred_location", "gpu1", "plan: hint 2")
        assert rule in {answer.decision.rule for answer in (first, second)} or policy == "uvm"


def test_an_unmapping_ends_what_was_advised(tmp_path):
    advice = touch(pages=512, kind=Kind.ADVISE, access=0, peer=0)
    gone, back = (touch(pages=512, kind=kind) for kind in (Kind.UNMAP, Kind.MAP))
    again = touch(pages=512, kind=Kind.ADVISE, access=7, value=3)
    source = trace(tmp_path, advice, gone, back, again, touch(0), blocks=1)
    (answer,) = explain(source, records=[5], machine=TINY)
    assert ("preferred_location", "undefined", "default") in answer.attributes
    assert ("granularity", "3", "record 4") in answer.attributes


def test_an_address_is_answered_by_its_first_touch(tmp_path):
    source = trace(tmp_path, *(touch(b) for b in (0, 1, 0, 0)))
    (answer,) = explain(source, at=[BASE + 5], machine=TINY)
    assert (answer.record, answer.page, answer.touched_by) == (1, BASE, [3, 4])
    (answer,) = explain(source, at=[BASE + BLOCK + 7], records=[2], machine=TINY)
    assert (answer.record, answer.touched_by) == (2, [])


@pytest.mark.parametrize("policy", ["uvm", "first_touch", "advised"])
def test_the_range_is_all_of_it(tmp_path, policy):
    half = touch(4, pages=4 * 512, kind=Kind.ADVISE, access=0, peer=0)
    source = trace(tmp_path, half, touch(6), touch(1))
    advised, other = explain(source, records=[2, 3], policy=policy, machine=TINY)
    assert (advised.range.start, advised.range.size) == (BASE + 4 * BLOCK, 4 * BLOCK)
    assert (other.range.start, other.range.size) == (BASE, 4 * BLOCK)


def test_fault_traces_keep_their_own_time(tmp_path):
    rows = [touch(b, t=b * 10_000_000, kind=Kind.FAULT) for b in range(3)]
    source = trace(tmp_path, *rows)
    (answer,) = explain(source, records=[3], machine=TINY)
    assert answer.began_ns == 20_000_000
    assert sum(answer.costs.values()) == answer.cost_ns
    assert "waiting" not in answer.costs


def test_questions_that_have_no_answer(tmp_path):
    source = trace(tmp_path, touch(0), touch(1, kind=Kind.EVICT), touch(2))
    for error, match, asked in (
        (InvalidArgumentError, "expected a record or an address", {}),
        (InvalidArgumentError, "record 9: expected 0 to 3", {"records": [9]}),
        (InvalidArgumentError, "record -1", {"records": [-1]}),
        (InvalidArgumentError, "recorded evict: .* the next is 3", {"records": [2]}),
        (AddressError, "no record touches 0x10", {"at": [16]}),
        (InvalidArgumentError, "expected one that the record", {"at": [16], "records": [1]}),
        (InvalidArgumentError, "expected 0 to 2", {"at": [1 << 64]}),
        (InvalidArgumentError, "gpu7", {"records": [1], "by": "gpu7"}),
    ):
        with pytest.raises(error, match=match):
            explain(source, **asked)


# ---- where plans part --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["kfd", "uvm", "always_migrate"])
def test_two_capacities_part_by_an_earlier_eviction(tmp_path, policy):
    blocks = (0, 1, 2, 3, 0)
    source = trace(tmp_path, *(touch(b, pages=512, write=True) for b in blocks))
    small = {"name": "small", "capacity": {"gpu0": 3 * BLOCK}, "policy": policy}
    large = {"name": "large", "policy": policy}
    found = compare(source, [plan_of(large), plan_of(small)])
    first = found.first_difference
    assert (first.record, first.evicted_a) == (4, "")
    assert "left gpu0, which was full, for cpu" in first.evicted_b
    later = found.first_fault_difference
    assert later.record == 5
    assert later.rule_a == "mapped"
    assert later.rule_b != "mapped"
    assert later.earlier_a is None
    assert (later.earlier_b.record, later.earlier_b.cause) == (4, "eviction")
    assert "record 4" in later.earlier_b.text
    table = found.to_dict()
    assert table["first_fault_difference"]["earlier_b"]["record"] == 4
    json.dumps(table)


def test_a_migration_and_a_copy_are_named_too(tmp_path):
    rows = [touch(0, by=0, write=True), touch(0, by=1), touch(0, by=2), touch(0, by=1)]
    source = trace(tmp_path, *rows)
    base = {"policy": "advised", "machine": "h200-x2"}
    copies = plan_of({"name": "copies", "hint": [{"buffer": "*", "advice": "read_mostly"}], **base})
    found = compare(source, [plan_of({"name": "moving", **base}), copies])
    later = found.first_fault_difference
    assert later.record == 4
    assert (later.earlier_a.record, later.earlier_a.after) == (3, "gpu1")
    assert (later.earlier_b.record, later.earlier_b.cause) == (3, "copy")


def test_a_hint_can_be_what_came_before(tmp_path):
    source = trace(tmp_path, touch(0), touch(1))
    ahead = {"buffer": "*", "advice": "prefetch", "location": "gpu0", "at": 2}
    found = compare(source, [plan_of({"name": "a"}), plan_of({"name": "b", "hint": [ahead]})])
    earlier = found.first_difference.earlier_b
    assert (earlier.hint, earlier.cause, earlier.after) == ("plan: hint 1", "prefetch", "gpu0")
    assert found.first_fault_difference is None


# ---- advice that changes nothing ---------------------------------------------------------------


def of_no_use(result):
    return [note for note in result.notes if "no use" in note]


@pytest.mark.parametrize(
    ("policy", "advice", "noted"),
    [
        ("kfd", {"advice": "granularity", "value": 4}, ""),
        ("kfd", {"advice": "read_mostly"}, "decides nothing by it"),
        ("kfd", {"advice": "set_flags", "value": 0x40}, ""),
        ("uvm", {"advice": "granularity", "value": 4}, "uvm does not know it"),
        ("uvm", {"advice": "accessed_by", "location": "gpu0"}, "uvm does not know it"),
        ("uvm", {"advice": "access_in_place", "location": "gpu0"}, ""),
        ("uvm", {"advice": "read_mostly"}, ""),
        ("first_touch", {"advice": "read_mostly"}, "never looked at advice"),
        ("first_touch", {"advice": "prefetch", "location": "gpu0"}, ""),
        ("advised", {"advice": "read_mostly"}, ""),
    ],
)
def test_advice_that_a_policy_does_not_use_is_noted(tmp_path, policy, advice, noted):
    source = trace(tmp_path, touch(0), touch(1))
    plan = plan_of({"name": "p", "hint": [{"buffer": "*", **advice}]})
    notes = of_no_use(svmcore.replay(source, Space(TINY, policy=policy), plan=plan))
    assert len(notes) == bool(noted)
    assert all(
        note.startswith(f"plan: hint 1: {advice['advice']} has no use: ") and noted in note
        for note in notes
    )


def test_advice_on_memory_that_nobody_touches_is_noted(tmp_path):
    source = trace(tmp_path, touch(0), touch(3, pages=2))
    spans = [(0, 1), (1, 3), (1, 4), (3, 4), (4, 8)]
    names = [f"{BASE + a * BLOCK:#x}-{BASE + b * BLOCK:#x}" for a, b in spans]
    hints = [{"buffer": name, "advice": "granularity", "value": 3} for name in names]
    hints.append({"buffer": "*", "advice": "granularity", "value": 3, "at": 3})
    result = svmcore.replay(source, Space(TINY), plan=plan_of({"name": "p", "hint": hints[:5]}))
    assert [note[:14] for note in of_no_use(result)] == ["plan: hint 2: ", "plan: hint 5: "]
    late = {"buffer": "*", "advice": "granularity", "value": 3, "at": 2}
    late |= {"buffer": names[0]}
    result = svmcore.replay(source, Space(TINY), plan=plan_of({"name": "p", "hint": [late]}))
    assert len(of_no_use(result)) == 1, "touched before it only"


def test_advice_of_the_trace_that_is_not_used_is_counted(tmp_path):
    rows = [touch(b, pages=9, kind=Kind.ADVISE, access=7, value=b) for b in range(3)]
    source = trace(tmp_path, *rows, touch(0, kind=Kind.ADVISE, access=0, peer=1), touch(0))
    notes = of_no_use(svmcore.replay(source, Space(TINY, policy="uvm")))
    assert notes == ["3 records of advice, granularity, of no use: uvm does not know it"]
    assert of_no_use(svmcore.replay(source, Space(TINY))) == []


def test_a_resumed_replay_notes_the_same(tmp_path):
    rows = [touch(b, pages=9, kind=Kind.ADVISE, access=7, value=b) for b in range(3)]
    for policy in ("uvm", "first_touch", "advised"):
        source = trace(tmp_path, touch(0), *rows, touch(1), *rows)
        whole = svmcore.replay(source, Space(TINY, policy=policy))
        saved = tmp_path / f"{policy}.svm"
        svmcore.replay(
            source, Space(TINY, policy=policy), checkpoint=saved, checkpoint_every=6, stop=7
        )
        resumed = svmcore.replay(source, Space(TINY, policy=policy), resume=saved)
        assert resumed.notes == whole.notes
        assert bool(of_no_use(whole)) == (policy != "advised")
