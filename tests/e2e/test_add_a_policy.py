"""A policy in one file outside src/: known by decorator or entry point, without a rebuild."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import svmcore
from e2e.cli_run import DATA, environment
from svmcore.policies import base

EXAMPLE = Path(__file__).parents[2] / "examples" / "add_a_policy.py"


@pytest.fixture
def example(monkeypatch):
    """The example's module; its policy is forgotten afterwards."""
    base.policy_names()  # all of them registered, before the copy
    monkeypatch.setattr(base, "_known", dict(base._known))
    spec = importlib.util.spec_from_file_location("add_a_policy", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "add_a_policy", module)
    spec.loader.exec_module(module)
    return module


def test_the_decorator_makes_it_known(example, tmp_path):
    assert "second_touch" in base.policy_names()
    space = svmcore.Space("gpu-80g", policy="second_touch(patience=2)")
    result = svmcore.replay(DATA / "workload.csv", space)
    assert result.policy == "second_touch"
    assert result.settings["patience"] == 2
    assert result.counters["errors"] == 0
    assert result.counters["remote_accesses"] > 0
    space.process.check()
    space.save(tmp_path / "state.svm")
    assert svmcore.Space.load(tmp_path / "state.svm").counters() == space.counters()


def test_the_example_says_what_it_finds(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "always_migrate",
        "second_touch(granularity=4)",
        "second_touch(patience=0)",
    ]
    assert "787 faults" in lines[0]


def test_an_entry_point_makes_it_known_to_the_command(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "my_policies.py")
    info = tmp_path / "my_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[svmcore.policies]\nsecond_touch = my_policies:SecondTouch\n"
    )
    paths = environment()
    paths["PYTHONPATH"] = os.pathsep.join([str(tmp_path), paths["PYTHONPATH"]])
    command = "replay demo --policy second_touch --set patience=0 --json"
    done = subprocess.run(
        [sys.executable, "-m", "svmcore", *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=paths,
        check=True,
    )
    table = json.loads(done.stdout)
    assert (table["policy"], table["faults"], table["errors"]) == ("second_touch", 787, 0)
