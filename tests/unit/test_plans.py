"""Hint plans: reading them, giving their hints, and ranking them (case 27)."""

from __future__ import annotations

import numpy as np
import pytest

import svmcore
from svmcore import Gpu, Machine, Space
from svmcore.compare import compare
from svmcore.errors import InvalidArgumentError
from svmcore.plans import Hint, Plan, load_plan, plan_of
from svmcore.records import RECORD, Kind

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40


def written(tmp_path, text, name="plan.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def workload(tmp_path, rows, blocks=4):
    """A workload trace of two buffers, table and grad, of *blocks* blocks each."""
    buffers = {"table": BASE, "grad": BASE + blocks * BLOCK}
    lines = ["seq,t_ns,dur_ns,kind,op,addr,bytes"]
    for t, (buffer, offset, size, rw) in enumerate(rows):
        lines.append(f"{t},{t * 100_000},5000,{rw},k,{buffers[buffer] + offset:#x},{size}")
    lines += [f"{len(rows)},0,0,S,{k},{start:#x},{blocks * BLOCK}" for k, start in buffers.items()]
    return written(tmp_path, "\n".join(lines) + "\n", "trace.csv")


def sweep(times=3, blocks=4):
    """Each pass reads the table and writes the gradients, block by block."""
    return [
        (buffer, block * BLOCK, BLOCK, rw)
        for _ in range(times)
        for block in range(blocks)
        for buffer, rw in (("table", "R"), ("grad", "W"))
    ]


def hint(advice, buffer="*", **more):
    return {"name": "p", "hint": [{"buffer": buffer, "advice": advice, **more}]}


def test_every_key_of_a_plan(tmp_path):
    path = written(
        tmp_path,
        """
        name = "all of it"
        policy = "advised"
        machine = "h200-x2"
        [settings]
        granularity = 4
        [capacity]
        gpu0 = "40GiB"
        gpu1 = 1073741824
        [[hint]]
        buffer = "table"
        advice = "cudaMemAdviseSetPreferredLocation"
        location = "gpu1"
        at = "1.5ms"
        [[hint]]
        buffer = 0
        advice = "granularity"
        value = 7
        at = 12
        [[hint]]
        buffer = "0x10000000000-0x10000200000"
        advice = "unset_read_mostly"
        """,
    )
    plan = load_plan(path)
    assert plan == Plan(
        "all of it",
        "advised",
        "h200-x2",
        {"granularity": 4},
        {"gpu0": 40 << 30, "gpu1": 1 << 30},
        (
            Hint("table", "cudaMemAdviseSetPreferredLocation", "gpu1", None, 0, 1_500_000),
            Hint(0, "granularity", None, 7, 12),
            Hint("0x10000000000-0x10000200000", "unset_read_mostly"),
        ),
        str(path),
    )
    space = plan.space()
    assert [gpu.vram_pages for gpu in space.machine.gpus] == [10 << 20, 1 << 18]
    assert space.policy.settings()["granularity"] == 4
    assert plan_of({"name": "x"}).space("kfd(xnack=off)").policy.xnack is False
    assert plan_of({"name": "x", "settings": {"xnack": True}}).space("kfd(xnack=off)").policy.xnack


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'name' is missing"),
        ("name = ''", "name = ''"),
        ("name = 'x'\npolcy = 'kfd'", "'polcy', expected name, policy, machine, settings"),
        ("name = 'x'\nsettings = 3", r"\[settings\]"),
        ("name = 'x'\n[capacity]\ngpu0 = 'much'", "gpu0: .*40GiB"),
        ("name = 'x'\n[capacity]\ngpu0 = -1", "gpu0: .*0 or more"),
        ("name = 'x'\nhint = 3", r"\[\[hint\]\]"),
        ("name = 'x'\n[[hint]]\nadvice = 'prefetch'", "hint 1: key 'buffer' is missing"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'", "hint 1: key 'advice' is missing"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvise = 1", "'advise', expected buffer, advice"),
        ("name = 'x'\n[[hint]]\nbuffer = 1.5\nadvice = 'prefetch'", "buffer 1.5"),
        (
            "name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'warm'",
            "'warm', expected one of",
        ),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'prefetch'", "'location' is missing"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'granularity'", "'value' is missing"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'read_mostly'\nvalue = 1", "no value"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'granularity'\nvalue = -1", "value -1"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'prefetch'\nlocation = 3", "cpu, gpu0"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'discard'", "no attribute"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'read_mostly'\nat = 'soon'", "'soon'"),
        ("name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'read_mostly'\nat = -1", "at -1"),
        (
            "name = 'x'\n[[hint]]\nbuffer = '*'\nadvice = 'read_mostly'\nat = '9000000000s'",
            "'90000",
        ),
        ("name = 'x'\n[[hint]]\nbuffer = true\nadvice = 'read_mostly'", "buffer True"),
        ("name", "expected a TOML file"),
    ],
)
def test_what_is_wrong_with_a_plan(tmp_path, text, words):
    path = written(tmp_path, text)
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value).replace(str(caught.value.__cause__), "")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "p", "policy": "magic"}, "'magic': expected one of .*kfd"),
        ({"name": "p", "machine": "gpu-81g"}, "'gpu-81g': expected one of"),
        ({"name": "p", "settings": {"speed": 3}}, "unknown parameter 'speed', expected kernel"),
        ({"name": "p", "capacity": {"gpu7": 4096}}, "'gpu7': expected one of gpu0"),
        ({"name": "p", "capacity": {"gpu0": 5}}, "at least one page"),
    ],
)
def test_what_no_space_can_be_made_of(table, words):
    with pytest.raises(InvalidArgumentError, match=words):
        plan_of(table, "my plan").space()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (hint("read_mostly", "tab"), "'tab', expected one of table, grad, an index below 2"),
        (hint("read_mostly", 2), "buffer 2, expected"),
        (hint("read_mostly", "0x1-0x2"), "a range"),
        (hint("prefetch", location="gpu1"), "'gpu1', expected one of cpu, gpu0"),
        (hint("accessed_by", location="cpu"), "refused by kfd at 0x.* with EINVAL"),
    ],
)
def test_what_does_not_fit_the_trace(tmp_path, table, words):
    trace = workload(tmp_path, sweep(1))
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        compare(trace, [plan_of(table)])
    assert "hint 1" in str(caught.value)


def test_a_machine_file_is_looked_for_beside_the_plan(tmp_path):
    from importlib import resources

    preset = resources.files("svmcore") / "data" / "machines" / "h200.toml"
    written(tmp_path, preset.read_text().replace('"h200"', '"mine"'), "mine.toml")
    path = written(tmp_path, "name = 'x'\nmachine = 'mine.toml'")
    assert load_plan(path).space().machine.name == "mine"


def touches(n=6):
    records = np.zeros(n, RECORD)
    records["addr"] = BASE + np.arange(n) * BLOCK
    records["size"], records["proc"] = PAGE, 1
    records["t_ns"] = 7_000 + np.arange(n) * 1_000
    return records


@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
@pytest.mark.parametrize(
    ("at", "prefetched"), [(0, 6), (2, 4), (5, 1), ("0us", 6), ("2us", 4), ("2.5us", 3)]
)
def test_a_hint_comes_before_its_record(at, prefetched, chunk):
    plan = plan_of(hint("prefetch", location="gpu0", at=at))
    space = Space("gpu-80g", policy="first_touch")
    space.map(BASE, 6 * BLOCK)
    result = svmcore.replay(touches(), space, plan=plan, chunk=chunk)
    assert result.counters["faults"] == 6 - prefetched
    assert result.settings["plan"] == "p"
    assert result.trace["records"] == 6


def test_a_hint_that_comes_too_late_is_told():
    for at in (6, 1000, "1s"):
        result = svmcore.replay(
            touches(), Space("gpu-80g"), plan=plan_of(hint("prefetch", location="gpu0", at=at))
        )
        assert "plan: hint 1: never given, the trace ends before" in result.notes
        assert result.counters["faults"] == 6


def test_advice_costs_its_time_and_a_replay_can_stop():
    plan = plan_of(hint("prefetch", location="gpu0"))
    result = svmcore.replay(touches(), Space("gpu-80g"), plan=plan)
    assert result.counters["migrations"] == 6
    assert result.time_ns > 6 * 10_000
    space = Space("gpu-80g", policy="first_touch")
    result = svmcore.replay(touches(), space, stop=4, chunk=3)
    assert result.trace["records"] == result.counters["faults"] == 4
    assert svmcore.replay(touches(), Space("gpu-80g"), stop=0).trace["records"] == 0
    with pytest.raises(InvalidArgumentError, match="stop at record -1"):
        svmcore.replay(touches(), Space("gpu-80g"), stop=-1)


def test_words_of_all_vendors_reach_the_ranges():
    for advice, more, check in (
        ("cudaMemAdviseSetReadMostly", {}, lambda r: "GPU_READ_MOSTLY" in r.flags.name),
        ("hipMemAdviseSetCoarseGrain", {}, lambda r: "COHERENT" not in r.flags.name),
        ("ACL_MEM_ADVISE_SET_PREFERRED_LOCATION", {"location": "gpu0"}, lambda r: r.preferred),
        ("KFD_IOCTL_SVM_ATTR_GRANULARITY", {"value": 5}, lambda r: r.granularity == 5),
        ("access_in_place", {"location": "gpu0"}, lambda r: r.access_in_place == ("gpu0",)),
    ):
        for policy in ("kfd", "advised"):
            space = Space("gpu-80g", policy=policy)
            svmcore.replay(touches(), space, plan=plan_of(hint(advice, **more)))
            assert check(space.ranges()[0]), (advice, policy)


def test_case_27_one_access_list_four_plans(tmp_path):
    """Which hint removes faults? A table that is read and gradients that are written."""
    trace = workload(tmp_path, sweep(3))
    plans = [
        plan_of({"name": "nothing"}),
        plan_of(hint("prefetch", location="gpu0") | {"name": "ahead"}),
        plan_of(hint("granularity", value=4) | {"name": "small windows"}),
        plan_of(hint("preferred_location", location="cpu") | {"name": "stay at home"}),
    ]
    found = compare(trace, plans)
    by_name = {plan.name: result.counters for plan, result in found.plans}
    assert by_name["nothing"]["faults"] == 8, "one a window of 2 MiB, whatever the passes"
    assert by_name["ahead"]["faults"] == 0
    assert by_name["ahead"]["migrated_bytes"] == by_name["nothing"]["migrated_bytes"] == 8 * BLOCK
    assert by_name["small windows"]["faults"] == 8 * 32
    assert by_name["stay at home"]["migrations"] == 0
    assert by_name["stay at home"]["remote_accesses"] == 3 * 8 * 512
    assert found.plans[0][0].name == "ahead"
    times = [result.time_ns for _, result in found.plans]
    assert times == sorted(times)
    assert found.first_difference is None, "of two plans only"
    assert [row["name"] for row in found.to_dict()["plans"]] == [p.name for p, _ in found.plans]


def test_two_plans_part_where_the_first_record_differs(tmp_path):
    trace = workload(tmp_path, sweep(2))
    late = hint("preferred_location", "grad", location="cpu", at=4) | {"name": "late"}
    found = compare(trace, [plan_of({"name": "nothing"}), plan_of(late)])
    part = found.first_difference
    assert part.record == 5, "the first write of the gradients from record 4 on"
    assert part.page == (BASE + (4 + 2) * BLOCK) >> 12
    assert (part.rule_a, part.rule_b) == ("unregistered", "preferred location")
    assert "gpu0" in part.text_a
    assert "cpu" in part.text_b
    assert found.to_dict()["first_difference"]["record"] == 5
    same = compare(trace, [plan_of({"name": "a"}), plan_of({"name": "b"})])
    assert same.first_difference is None


def test_two_policies_part_at_capacity(tmp_path):
    trace = workload(tmp_path, sweep(3))
    small = {"capacity": {"gpu0": 4 * BLOCK}, "policy": "always_migrate"}
    found = compare(
        trace,
        [
            plan_of({"name": "lru", "settings": {"eviction": "lru"}, **small}),
            plan_of({"name": "mru", "settings": {"eviction": "mru"}, **small}),
        ],
    )
    counts = {plan.name: result.counters["faults"] for plan, result in found.plans}
    assert counts["mru"] < counts["lru"] == 24
    assert found.plans[0][0].name == "mru"
    assert found.first_difference.record == 8
    assert found.first_difference.rule_a != found.first_difference.rule_b


def test_names_must_differ_and_something_must_be_asked(tmp_path):
    trace = workload(tmp_path, sweep(1))
    with pytest.raises(InvalidArgumentError, match="two plans named 'x'"):
        compare(trace, [Plan("x"), Plan("x")])
    with pytest.raises(InvalidArgumentError, match="at least one plan"):
        compare(trace, [])


def test_a_plan_of_maps_in_the_trace_itself():
    """Advice in the trace and in the plan follow each other; a record of advice can differ."""
    records = touches(3)
    records[1]["kind"], records[1]["access"], records[1]["peer"] = Kind.ADVISE, 0, 0
    space = Space(Machine("m", (Gpu(1, 4096),)))
    result = svmcore.replay(records, space, plan=plan_of(hint("read_mostly", at=1)))
    assert result.counters["errors"] == 0
