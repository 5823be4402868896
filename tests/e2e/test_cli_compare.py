"""``svmcore compare`` and ``svmcore replay --plan`` as a user runs them."""

from __future__ import annotations

import json

import pytest

from e2e.cli_run import svm


@pytest.fixture
def plans(tmp_path):
    texts = {
        "plain.toml": 'name = "plain"\n',
        "ahead.toml": 'name = "ahead"\npolicy = "first_touch"\n[settings]\ngranularity = 9\n'
        '[capacity]\ngpu0 = "2GiB"\n[[hint]]\nbuffer = "embedding.table"\nadvice = "prefetch"\n'
        'location = "gpu0"\n',
        "small.toml": 'name = "small"\n[settings]\ngranularity = 4\n',
        "bad.toml": 'name = "bad"\n[[hint]]\nbuffer = "nowhere"\nadvice = "read_mostly"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name[:-5]: tmp_path / name for name in texts}


def test_a_ranked_table(plans):
    out, err = svm("compare", "demo", *(f"--plan={plans[k]}" for k in ("small", "plain", "ahead")))
    first = [line.partition(" ")[0] for line in out.splitlines()]
    rows = [word for word in first if word in ("small", "plain", "ahead")]
    assert rows == ["ahead", "plain", "small"] * 2, "ranked, then what each stands on"
    assert "modelled time" in out
    assert "They part" not in out
    assert err == ""


def test_one_json_object_with_where_two_plans_part(plans):
    out, _ = svm("compare", "demo", "--plan", plans["small"], "--plan", plans["plain"], "--json")
    table = json.loads(out)
    assert [row["name"] for row in table["plans"]] == ["plain", "small"]
    assert [row["faults"] for row in table["plans"]] == [787, 19652]
    assert {"trace", "policy", "machine", "settings", "time_ns", "evictions"} <= set(
        table["plans"][0]
    )
    part = table["first_difference"]
    assert {"record", "page", "rule_a", "rule_b"} <= set(part)
    assert part["record"] == 0


def test_replay_with_a_plan(plans, tmp_path):
    out, _ = svm("replay", "demo", "--plan", plans["ahead"], "--json", "--out", tmp_path / "o")
    table = json.loads(out)
    assert (table["policy"], table["settings"]["plan"]) == ("first_touch", "ahead")
    assert table["faults"] < 787
    config = json.loads((tmp_path / "o" / "config.json").read_text())
    assert config["plan"]["hints"][0]["buffer"] == "embedding.table"
    assert config["machine"]["gpus"][0]["vram_pages"] == 1 << 19
    out, _ = svm(
        "replay", "demo", "--plan", plans["ahead"], "--policy", "kfd", "--set", "granularity=6",
        "--json",
    )  # fmt: skip
    table = json.loads(out)
    assert table["policy"] == "kfd", "what the command line says counts more"
    assert table["settings"]["granularity"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plan", "{bad}"], "hint 1: buffer 'nowhere', expected one of"),
        (["--plan", "{plain}", "--plan", "{plain}"], "two plans named 'plain'"),
        (["--plan", "/absent.toml"], "expected a TOML file"),
        (["--plan", "{plain}", "--set", "speed=9"], "unknown parameter 'speed'"),
        (["--plan", "{plain}", "--set", "speed"], "expected key=value"),
        (["--plan", "{plain}", "--by", "gpu3"], "gpu3"),
        ([], "--plan"),
    ],
)
def test_bad_input_is_one_line(plans, arguments, words):
    filled = [word.format(**plans) for word in arguments]
    out, err = svm("compare", "demo", *filled, status=2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_plan_that_does_not_fit_stops_a_replay(plans):
    _, err = svm("replay", "demo", "--plan", plans["bad"], status=2)
    assert "buffer 'nowhere'" in err
    assert err.count("\n") == 1


def test_plans_under_the_rules_of_vendors(tmp_path):
    plain, hinted = tmp_path / "a.toml", tmp_path / "b.toml"
    plain.write_text('name = "plain"\n')
    hinted.write_text(
        'name = "hinted"\n[[hint]]\nbuffer = "*"\nadvice = "cudaMemAdviseSetReadMostly"\n'
    )
    out, _ = svm("compare", "demo", "--plan", plain, "--plan", hinted, "--dialects", "cuda,acl")
    lines = [line.split()[:2] for line in out.splitlines()[1:5]]
    assert lines == [[plan, form] for plan in ("plain", "hinted") for form in ("cuda", "acl")]
    out, _ = svm("compare", "demo", "--plan", plain, "--dialects", "cuda", "--json")
    assert [row["semantics"] for row in json.loads(out)["rows"]] == ["cuda"]
    _, err = svm("compare", "demo", "--plan", plain, "--dialects", "nobody", status=2)
    assert "expected one of acl, acl-driver, cuda, hip, kfd" in err


def test_an_eviction_before_is_named(tmp_path):
    large, small = tmp_path / "large.toml", tmp_path / "small.toml"
    large.write_text('name = "large"\n')
    small.write_text('name = "small"\n[capacity]\ngpu0 = "300MiB"\n')
    out, _ = svm("compare", "demo", "--plan", large, "--plan", small)
    assert "They part at record 741, " in out
    assert "The first touch that fares otherwise is record 1378, " in out
    before = next(line for line in out.splitlines() if "Before: " in line)
    assert "record 1373, " in before
    assert "evicted it from gpu0, which was full, to cpu" in before
    out, _ = svm("compare", "demo", "--plan", large, "--plan", small, "--json")
    later = json.loads(out)["first_fault_difference"]
    assert (later["earlier_a"], later["earlier_b"]["record"]) == (None, 1373)
    assert later["earlier_b"]["cause"] == "eviction"


def test_hints_without_an_effect_are_a_line_under_the_table(plans, tmp_path):
    hinted = tmp_path / "h.toml"
    hinted.write_text(
        'name = "h"\npolicy = "uvm"\n[[hint]]\nbuffer = "*"\nadvice = "granularity"\nvalue = 4\n'
    )
    expected = f"{hinted}: hint 1: granularity has no use: uvm does not know it"
    out, _ = svm("compare", "demo", "--plan", plans["plain"], "--plan", hinted)
    assert f"note: {expected}" in out.splitlines()
    out, _ = svm("replay", "demo", "--plan", hinted, "--json")
    assert expected in json.loads(out)["notes"]


def test_a_time_for_a_trace_without_one_is_refused(tmp_path):
    trace, plan = tmp_path / "list.txt", tmp_path / "p.toml"
    trace.write_text("0x10000,4096,w\n0x20000,4096,w\n0x10000,4096,r\n")
    for at, status in (('"1ms"', 2), ('"0us"', 0), ("2", 0)):
        hint = f'buffer = "*"\nadvice = "prefetch"\nlocation = "gpu0"\nat = {at}\n'
        plan.write_text(f'name = "p"\n[[hint]]\n{hint}')
        for command in ("replay", "compare"):
            _, err = svm(command, trace, "--plan", plan, status=status)
            wanted = f"{plan}: hint 1: at is a time, and the records of {trace} carry none: "
            assert (wanted in err) == (status == 2)
            assert err.count("\n") == (status == 2)
