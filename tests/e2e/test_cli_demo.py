"""The shipped trace and ``svmcore demo``."""

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import svmcore
from e2e.cli_run import svm

GENERATOR = Path(__file__).parents[2] / "bench" / "make_demo.py"


def test_demo_shows_both_granularities(tmp_path):
    out, err = svm("demo", cwd=tmp_path)
    assert err == ""
    assert "granularity 9" in out
    assert "granularity 4" in out
    for word in ("faults", "migrations", "moved to devices", "modelled time", "embedding.table"):
        assert word in out
    assert "In one sentence: granularity 4 instead of 9 takes" in out
    assert list(tmp_path.iterdir()) == []


def test_demo_json():
    out, err = svm("demo", "--json")
    assert err == ""
    table = json.loads(out)
    assert table["granularities"] == [9, 4]
    one, other = table["results"]
    assert one["settings"]["granularity"] == 9
    assert other["settings"]["granularity"] == 4
    # What the demo is there to show: larger windows, fewer faults, more bytes.
    assert one["faults"] * 10 < other["faults"]
    assert one["migrated_bytes"] > 1.2 * other["migrated_bytes"]
    assert one["time_ns"] < other["time_ns"]
    assert table["meaning"].endswith(".")


def test_the_generator_makes_the_shipped_trace():
    done = subprocess.run(
        [sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_shipped_trace_is_small_and_sound():
    packed = resources.files("svmcore") / "data" / "demo.csv.gz"
    with resources.as_file(packed) as path:
        assert path.stat().st_size < 400 * 1024
        trace = svmcore.open_trace(path)
        assert trace.format == "workload-csv"
        assert trace.confidence == 1.0
        assert 10_000 <= trace.summary.records <= 20_000
        assert sum(int(chunk["dur_ns"].sum()) for chunk in trace.chunks()) > 0
        assert [m.name for m in trace.mappings()][:3] == ["batch", "embedding.table", "parameters"]


def test_a_file_of_that_name_is_reached_by_its_path(tmp_path):
    (tmp_path / "demo").write_text("0x1000,4096\n")
    assert json.loads(svm("inspect", "./demo", "--json", cwd=tmp_path)[0])["records"] == 1
    assert json.loads(svm("inspect", "demo", "--json", cwd=tmp_path)[0])["records"] == 14_163


@pytest.mark.parametrize("command", [[], ["--help"], ["replay", "--help"], ["--version"]])
def test_help_and_version(command):
    out, err = svm(*command)
    assert err == ""
    assert svmcore.__version__ in out if command == ["--version"] else "Usage: svmcore" in out
