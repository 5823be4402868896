"""``svmcore explain``, and a policy of the user's own from a file."""

import json

import pytest

from e2e.cli_run import DATA, svm

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from svmcore.policies.actions import Map, Move
from svmcore.policies.base import register
from svmcore.policies.paged import Paged

@dataclass(frozen=True)
class Mine(Paged):
    patience: int = 0
    def service(self, view, batch):
        for fault in batch:
            start, size = view.window(fault.addr)
            yield Move(start, size, fault.by)
            yield Map(start, size, fault.by)

@dataclass(frozen=True)
class Silent(Paged):
    def service(self, view, batch):
        pass

NUMBER = 3
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text('name = "small"\n[capacity]\ngpu0 = "300MiB"\n')
    return path


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_one_access_in_words(small):
    out, err = svm("explain", "demo", "--plan", small, "--record", "9000")
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "demo under kfd on gpu-80g, plan small"
    told = {line[:13].strip(): line[13:] for line in lines[4:]}
    assert told["page"].endswith("(embedding.table), in cpu since record 8448")
    assert told["decided by"] == "access: gpu0 has access: pages migrate to it."
    assert told["place"] == "gpu0"
    assert told["window"].endswith(", 2.0 MiB")
    assert told["moved"].endswith("from cpu to gpu0, for the GPU's fault")
    assert told["evicted"].endswith("from gpu0 to cpu, touched last by record 8241")
    assert "faults 30.000 us, unmapping 5.000 us, transfers " in told["modelled"]
    assert "evicted it from gpu0, which was full, to cpu." in out
    assert any(line.split() == ["granularity", "9", "the", "policy's", "setting"] for line in lines)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [("kfd", "access"), ("uvm", "11 requester"), ("always_migrate", "always_migrate")],
)
def test_one_json_object(small, policy, rule):
    args = ("--plan", small, "--policy", policy, "--record", "9000", "--record", "9001", "--json")
    out, _ = svm("explain", "demo", *args)
    assert out.count("\n") == 1
    table = json.loads(out)
    assert (table["policy"], table["settings"]["plan"]) == (policy, "small")
    first, second = table["answers"]
    assert (first["record"], second["record"]) == (9000, 9001)
    assert first["decision"]["rule"] == rule
    assert first["evicted"]
    assert sum(first["costs"].values()) == first["cost_ns"]


def test_an_address_or_a_buffer(small):
    by_name, _ = svm("explain", "demo", "--at", "embedding.table+0x43000")
    by_address, _ = svm("explain", "demo", "--at", "0x7e4000843000")
    assert by_name == by_address
    assert "record 1: gpu0 reads 0x7e4000843000" in by_name
    assert "again by records 1822, 3076, 9501, " in by_name
    first, _ = svm("explain", "demo", "--at", "embedding.table")
    assert first.splitlines()[2:5] == by_name.splitlines()[2:5]


def test_advice_and_recorded_faults():
    out, _ = svm("explain", DATA / "uvm_three_buffers.kmsg", "--record", "40", "--set", "xnack=off")
    assert "a recorded fault" in out
    assert "fatal, xnack_off (EACCES)" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "expected --record N or --at ADDR"),
        (("--record", "99999"), "record 99999: expected 0 to 14162"),
        (("--record", "-1"), "--record -1: expected a whole number, 0 or more"),
        (("--at", "0x10"), "no record touches 0x10"),
        (("--at", "nowhere"), "an address, 0x7f0000000000, or a buffer, one of batch"),
        (("--at", "batch+0x9999999"), "expected an offset below"),
        (("--record", "5", "--at", "batch"), "expected one that the record touches"),
        (("--record", "5", "--by", "gpu4"), "gpu4"),
        (("--record", "5", "--plan", "absent.toml"), "expected a TOML file"),
    ],
)
def test_bad_questions_are_one_line(args, words):
    out, err = svm("explain", "demo", *args, status=2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


# ---- a policy in a file ------------------------------------------------------------------------


def test_a_policy_in_a_file_runs_everywhere(own, small, tmp_path):
    spec = f"{own}:Mine(patience=2)"
    table = json.loads(svm("replay", "demo", "--policy", spec, "--json")[0])
    plain = json.loads(svm("replay", "demo", "--policy", "always_migrate", "--json")[0])
    assert (table["policy"], table["settings"]["patience"]) == ("Mine", 2)
    assert (table["faults"], table["time_ns"]) == (plain["faults"], plain["time_ns"])
    out, _ = svm("compare", "demo", "--plan", small, "--policy", f"{own}:Mine")
    assert "small  Mine on gpu-80g" in out
    out, _ = svm("explain", "demo", "--record", "0", "--policy", f"{own}:Mine")
    assert "policy Mine orders: move " in out
    saved = tmp_path / "run.svm"
    every = ("--checkpoint-every", "5000", "--checkpoint", saved)
    svm("replay", "demo", "--policy", spec, *every)
    resumed = svm("replay", "demo", "--policy", spec, "--resume", saved, "--json")[0]
    assert json.loads(resumed)["time_ns"] == table["time_ns"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("absent.py:Mine", "absent.py: No such file or directory: expected a Python file"),
        ("{own}:Absent", "has no 'Absent', expected Mine, Silent"),
        ("{own}:NUMBER", "NUMBER is not a policy, expected Mine, Silent"),
        ("{own}:Paged", "Paged is not a policy, expected a method service"),
        ("{own}", "expected {own}:CLASS, one of Mine, Silent"),
        ("{own}:Mine(speed=1)", "unknown parameter 'speed', expected unit"),
        ("{own}:Silent", "policy Silent: service gave None: expected actions"),
        ("{broken}:Mine", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_file_that_is_no_policy_is_one_line(own, tmp_path, spec, words):
    broken = tmp_path / "broken.py"
    broken.write_text("def (\n")
    out, err = svm("replay", "demo", "--policy", spec.format(own=own, broken=broken), status=2)
    assert out == ""
    assert words.format(own=own) in err
    assert err.count("\n") == 1
