"""``svmcore stacks`` as a user runs it."""

import json
import runpy
from pathlib import Path

import pytest

from e2e.cli_run import svm

MIB = 1 << 20
OWN = Path(__file__).parents[1] / "data" / "stacks" / "launches_h200.csv"


@pytest.fixture
def loop(tmp_path):
    """Map, launch with 129 x 8 warps, unmap, twenty times."""
    path = tmp_path / "loop.csv"
    rows = ["op,t,teams,threads,kernel_ns,bytes,id"]
    for turn in range(20):
        t = turn * 1_000_000
        rows += [f"alloc,{t},,,,{MIB},{turn}", f"launch,{t},129,8,200000,,", f"free,{t},,,,,{turn}"]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_all_policies_and_the_cliff(loop):
    out, err = svm("stacks", loop)
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"{loop} (launch-csv): 20 launches, 40 other records, 1 host thread"
    assert lines[1] == "modelled on h200, 131.3 GiB"
    table = {line.split()[0]: line.split()[1] for line in lines[5:16]}
    assert table["list"] == table["unbounded"] == "19"
    assert table["locked_block"] == table["none"] == "0"
    cliff = next(line for line in lines if line.startswith("cliff: locked_block, take_put"))
    assert "the limit of 128.0 MiB keeps blocks of up to 1,024 warps" in cliff
    assert "launches here have 1,032 warps (129.0 MiB): 0 of 20 hit" in cliff
    assert cliff.endswith("a limit of 129.0 MiB brings 19.")


def test_json(loop):
    out, _ = svm("stacks", loop, "--policy", "none", "--policy", "pool(k=2)", "--json")
    table = json.loads(out)
    assert list(table["results"]) == ["none", "pool(k=2)"]
    assert {
        "launches",
        "hits",
        "stack_allocs",
        "stack_peak_bytes",
        "kept_bytes",
        "lock_wait_ns",
        "retries",
        "user_failures",
        "fatal",
        "makespan_ns",
        "us_per_launch",
    } <= table["results"]["none"].keys()
    assert table["trace"]["launches"] == 20
    assert table["machine"] == "h200"
    assert table["costs"]["driver_lock"] is True
    assert [cliff["policy"] for cliff in table["cliffs"]] == [
        "pool(k=2, when_full=transient, limit=128MiB)"
    ]
    assert out == svm("stacks", loop, "--policy", "none", "--policy", "pool(k=2)", "--json")[0]


def test_two_sweeps_are_tried_together(loop):
    args = ("--policy", "pool", "--sweep", "k=1,2", "--sweep", "limit=64MiB,inf", "--json")
    results = json.loads(svm("stacks", loop, *args)[0])["results"]
    assert len(results) == 4
    assert all(any(f"k={k}" in name for name in results) for k in (1, 2))
    _, err = svm("stacks", loop, "--policy", "pool", "--sweep", "k=1", "--sweep", "k=2", status=2)
    assert "--sweep k=2: k is given twice" in err


def test_sweep_names_the_cliff(loop):
    out, _ = svm("stacks", loop, "--sweep", "limit=64MiB,128MiB,129MiB,inf", "--json")
    table = json.loads(out)
    assert [result["hits"] for result in table["results"].values()] == [0, 0, 19, 19]
    assert list(table["results"])[-1] == "locked_block(limit=inf)"
    assert {cliff["enough"] for cliff in table["cliffs"]} == {129 * MIB}


def test_the_machine_can_be_changed(loop):
    args = ("stacks", loop, "--policy", "list", "--json")
    default = json.loads(svm(*args)[0])["results"]["list"]
    slow = json.loads(svm(*args, "--set", "wait_ns=1000000")[0])["results"]["list"]
    assert slow["makespan_ns"] > default["makespan_ns"]
    assert json.loads(svm(*args, "--set", "concurrent=off")[0])["costs"]["concurrent"] is False
    tight = json.loads(svm(*args, "--capacity", "64MiB")[0])["results"]["list"]
    assert tight["fatal"] == 1
    out, _ = svm("stacks", loop, "--policy", "list", "--machine", "gpu-80g")
    assert "modelled on gpu-80g (launch costs of the preset h200), 80.0 GiB" in out


def test_touches_show_what_a_block_pushes_out(tmp_path):
    path = tmp_path / "touch.jsonl"
    touch = {"op": "touch", "addr": 1 << 32, "bytes": 48 * MIB}
    launch = {"op": "launch", "teams": 32, "threads": 8}
    path.write_text("\n".join(map(json.dumps, [touch, launch])) + "\n")
    out, _ = svm("stacks", path, "--policy", "none", "--capacity", "64MiB", "--json")
    assert json.loads(out)["results"]["none"]["evicted_bytes"] == 16 * MIB
    out, _ = svm("stacks", path, "--policy", "none", "--capacity", "64MiB")
    assert "pushed out" in out
    assert "16.0 MiB" in out


def test_gomp_debug_text(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "  GOMP_OFFLOAD_run: kernel f$_omp_fn$0: launch [(teams: 9), 1, 1] "
        "[(lanes: 32), (threads: 8), 1]\n" * 3
    )
    table = json.loads(svm("stacks", path, "--policy", "locked_block", "--json")[0])
    assert table["trace"]["format"] == "gomp-debug"
    assert table["results"]["locked_block"]["stack_peak_bytes"] == 9 * MIB
    assert table["results"]["locked_block"]["hits"] == 2


def test_measured_and_its_check():
    out, _ = svm("stacks", "--measured", OWN, "--check")
    assert "over 450 rows" in out
    assert "pairs of policies that differ by more than 20 % are in the right order" in out
    _, err = svm("stacks", "--measured", OWN, "--check", "--set", "concurrent=off", status=1)
    assert err.count("\n") == 1
    assert "farther from the measurements than allowed" in err
    table = json.loads(svm("stacks", "--measured", OWN, "--json")[0])
    assert len(table["rows"]) == 450
    assert table["pairs_in_order"] <= table["pairs"]


def test_the_example_traces_say_what_the_docs_say(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "launch_traces.py"
    runpy.run_path(str(example))["main"](tmp_path)
    names = {"growth", "benchmark", "benchmark-streams", "loop128", "loop129", "crowded", "beside"}
    assert {path.stem for path in tmp_path.iterdir()} == names

    def us(name, policy, *args):
        out, _ = svm("stacks", f"{name}.csv", "--policy", policy, *args, "--json", cwd=tmp_path)
        result = json.loads(out)["results"][policy]
        return round(result["us_per_launch"], 1), result["hits"], result["evicted_bytes"] // MIB

    assert us("loop128", "locked_block") == (300.8, 19, 0)
    assert us("loop129", "locked_block") == (514.3, 0, 0)
    assert us("benchmark", "pool") == (1113.2, 98, 0)
    assert us("benchmark-streams", "take_put") == (131.0, 248, 0)
    assert us("beside", "locked_block", "--capacity", "256MiB") == (12398.0, 3, 644)


def test_plots(loop, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    out, _ = svm("stacks", loop, "--policy", "list", "--plot", tmp_path / "a.svg")
    assert out.endswith(f"wrote {tmp_path / 'a.svg'}\n")
    svm("stacks", "--measured", OWN, "--plot", tmp_path / "b.png", "--json")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".png", ".svg"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "stacks: expected a TRACE, or --measured CSV in its place"),
        (("x.csv", "--measured", "y.csv"), "expected a TRACE, or --measured"),
        (("x.csv",), "x.csv: expected a readable launch trace"),
        (("LOOP", "--fit"), "expected them with --measured CSV"),
        (("LOOP", "--policy", "heap"), "stack policy 'heap': expected one of none"),
        (("LOOP", "--sweep", "limit"), "--sweep limit: expected key=value,value"),
        (("LOOP", "--sweep", "k=1"), "stack policy locked_block: unknown parameter 'k'"),
        (("LOOP", "--set", "speed=9"), "--set speed=9: expected key=value, key one of host_ns"),
        (("LOOP", "--set", "wake_ns=soon"), "expected ns, a whole number from 0"),
        (("LOOP", "--set", "fair=maybe"), "expected on or off"),
        (("LOOP", "--capacity", "big"), "--capacity: size 'big': expected a number and a unit"),
        (("LOOP", "--capacity", "0"), "capacity 0: expected 1 byte or more"),
        (("LOOP", "--stack-bytes", "0"), "stack_bytes 0: expected 1 byte or more"),
        (("LOOP", "--machine", "h1"), "machine 'h1': expected one of"),
        (("LOOP", "--format", "xml"), "format xml, expected one of launch-csv"),
        (("LOOP", "--plot", "x.gif"), "plot x.gif: expected a file of type"),
        (("--measured", "LOOP"), "line 1: no column policy"),
    ],
)
def test_bad_input_is_one_line(loop, args, told):
    out, err = svm("stacks", *(loop if arg == "LOOP" else arg for arg in args), status=2)
    assert out == ""
    assert err.startswith("svmcore: ")
    assert err.count("\n") == 1
    assert told in err
