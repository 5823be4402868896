"""Vector files on both implementations, and the runner that compares them."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import pytest

from svmcore.conformance import main, run_file
from svmcore.errors import InvalidArgumentError

HERE = Path(__file__).parent
OWN = sorted((HERE / "vectors").iterdir())
SHARED = sorted((HERE.parents[2] / "shared" / "vectors" / "kfd").glob("kfd_*"))
DIRECTED = [path for path in SHARED if path.suffix == ".jsonl"]


def text_of(path):
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def own(name):
    return HERE / "vectors" / f"own_{name}.jsonl"


def edited(tmp_path, name, line, change):
    """A copy of an own file in which *change* was applied to one line (0: the header)."""
    lines = own(name).read_text().splitlines()
    value = json.loads(lines[line])
    change(value)
    lines[line] = json.dumps(value)
    path = tmp_path / "edited.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


# ---- files ----------------------------------------------------------------------------------


def test_own_files_are_there():
    assert len(OWN) >= 12
    assert sum(path.stat().st_size for path in OWN) < 150_000
    kernels = {json.loads(text_of(path).split("\n", 1)[0])["kernel"] for path in OWN}
    assert kernels == {"7.3", "6.12", "6.1"}


def test_own_files_are_what_the_script_makes(capsys):
    script = runpy.run_path(str(HERE / "make_vectors.py"))
    assert script["main"](["--check"]) == 0, capsys.readouterr().out


def test_script_tells_what_differs(tmp_path, capsys):
    script = runpy.run_path(str(HERE / "make_vectors.py"))
    assert script["main"](["--out", str(tmp_path)]) == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.suffix != ".gz"} == {
        p.name: p.read_bytes() for p in OWN if p.suffix != ".gz"
    }
    (tmp_path / "own_windows.jsonl").write_text("{}\n")
    (tmp_path / "own_stranger.jsonl").write_text("{}\n")
    capsys.readouterr()
    script = runpy.run_path(str(HERE / "make_vectors.py"))
    assert script["main"](["--check", "--out", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["own_windows.jsonl", "own_stranger.jsonl"]


@pytest.mark.parametrize("reference", [False, True], ids=["compiled", "reference"])
@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_own_vectors(path, reference):
    report = run_file(path, reference=reference)
    assert report.details == []
    assert report.mismatches == 0
    assert report.note == ""
    assert report.steps == text_of(path).count("\n") - 1


def steps_to_run(path):
    """Steps up to the first one whose own count is not the truth, in files of that kind."""
    header, *lines = text_of(path).rstrip("\n").split("\n")
    if json.loads(header)["accounting"] == "driver":
        for number, line in enumerate(lines):
            if '"accounting_off"' in line:
                return number, f"stopped at step {number}: driver accounting"
    return len(lines), ""


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.name)
def test_shared_vectors_compiled(shared, path):
    report = run_file(path)
    assert report.details == []
    assert report.mismatches == 0
    assert (report.steps, report.note) == steps_to_run(path)


@pytest.mark.parametrize("path", DIRECTED, ids=lambda path: path.name)
def test_shared_vectors_reference(shared, path):
    report = run_file(path, reference=True)
    assert report.details == []
    assert report.mismatches == 0
    assert (report.steps, report.note) == steps_to_run(path)


# ---- the runner -------------------------------------------------------------------------------

#: (file, line, key, change of the value): each must be one mismatch that names the key.
CHANGES = [
    ("windows", 1, "ret", lambda v: v - 1),
    ("windows", 1, "window", lambda v: [v[0], v[1] + 1]),
    ("windows", 1, "best_loc", lambda v: 0),
    ("windows", 2, "reason", lambda v: "stale"),
    ("windows", 1, "migration", lambda v: not v),
    ("windows", 1, "migr", lambda v: [[*v[0][:5], v[0][5] - 1]]),
    ("windows", 1, "map", lambda v: []),
    ("windows", 3, "unmap", lambda v: [[*v[0][:3], "notify"]]),
    ("windows", 1, "unregistered", lambda v: False),
    ("windows", 1, "nranges", lambda v: v + 1),
    ("windows", 5, "list", lambda v: v[::-1] + v[:1]),
    ("windows", 5, "counters", lambda v: [[v[0][0] + 1, *v[0][1:]]]),
    ("xnack_off", 28, "ranges", lambda v: [[*v[0][:9], v[0][9] ^ 1, *v[0][10:]], *v[1:]]),
    ("best_location", 22, "vram_fallback", lambda v: False),
    ("deferred_munmap", 4, "pending", lambda v: v[::-1]),
    ("deferred_munmap", 6, "filter_removed", lambda v: []),
    ("xnack_off", 5, "queues", lambda v: ["resume"]),
    ("xnack_off", 5, "restore_pending", lambda v: False),
    ("eviction", 3, "bo_evict", lambda v: v * 2),
    ("attribute_checks", 14, "out", lambda v: v[::-1]),
]


@pytest.mark.parametrize("reference", [False, True], ids=["compiled", "reference"])
@pytest.mark.parametrize(("name", "line", "key", "change"), CHANGES, ids=[c[2] for c in CHANGES])
def test_one_changed_value_is_one_mismatch(tmp_path, capsys, name, line, key, change, reference):
    seen = {}

    def apply(step):
        seen["before"] = step[key]
        step[key] = seen["after"] = change(step[key])
        seen["op"] = step["op"]

    path = edited(tmp_path, name, line, apply)
    assert main([str(path), *(["--reference"] if reference else [])]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}: {own(name).read_text().count(chr(10)) - 1} steps, 1 mismatches"
    (detail,) = out[1:]
    assert detail.startswith(f"  step {line - 1} {seen['op']}: {key}: expected ")
    if not isinstance(seen["before"], list):
        assert f"expected {seen['after']}, got {seen['before']}" in detail


def test_one_changed_number_of_a_change_list(tmp_path):
    def apply(step):
        step["set"][0][5] += 1

    report = run_file(edited(tmp_path, "windows", 1, apply))
    # Later lists of changes do not name the range, so it stays wrong until the full list.
    assert report.mismatches >= 1
    assert "set: expected [[" in report.details[0]
    assert report.details[0].startswith("  step 0 fault: ")


def test_only_the_first_mismatches_are_shown(tmp_path, capsys):
    lines = own("windows").read_text().splitlines()
    steps = [json.loads(line) for line in lines[1:]]
    for step in steps:
        step["ret"] -= 100
    path = tmp_path / "wrong.jsonl"
    path.write_text("\n".join([lines[0], *map(json.dumps, steps)]))
    report = run_file(path)
    assert report.steps == report.mismatches == len(steps)
    assert 1 <= len(report.details) < len(steps)


def test_gz_is_the_same_as_plain(tmp_path):
    path = tmp_path / "packed.jsonl.gz"
    path.write_bytes(gzip.compress(own("splits").read_bytes()))
    plain = run_file(own("splits"))
    packed = run_file(path)
    assert (packed.steps, packed.mismatches) == (plain.steps, 0)
    renamed = tmp_path / "packed_without_its_suffix"
    path.rename(renamed)
    assert run_file(renamed).steps == plain.steps


def test_driver_accounting_stops_with_a_note(tmp_path, capsys):
    def apply(step):
        step["accounting_off"] = [123]
        step["ret"] = -99  # would not match, and is not compared

    path = edited(tmp_path, "windows", 8, apply)
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    header["accounting"] = "driver"
    path.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert out == f"{path}: 7 steps, 0 mismatches [stopped at step 7: driver accounting]\n"
    # An exact file runs to its end whatever the step carries.
    header["accounting"] = "exact"
    path.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    assert main([str(path)]) == 1


def test_several_files_one_line_each(capsys):
    paths = [str(own("windows")), str(own("splits"))]
    assert main(paths) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in out] == paths
    assert all(line.endswith(" steps, 0 mismatches") for line in out)


def test_a_mismatch_in_one_file_does_not_stop_the_others(tmp_path, capsys):
    wrong = edited(tmp_path, "windows", 1, lambda step: step.update(nranges=7))
    assert main([str(wrong), str(own("splits"))]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith(f"{own('splits')}: ")


def bad_files(tmp_path):
    text = own("windows").read_bytes()
    lines = text.splitlines(keepends=True)
    packed = gzip.compress(text)
    return {
        "garbage": bytes(range(128, 256)) * 40,
        "empty": b"",
        "text": b"hello\nworld\n",
        "other json": b'{"format": "something/1"}\n',
        "json array": b"[1, 2, 3]\n",
        "json number": b"17\n",
        "truncated gz": packed[: len(packed) // 2],
        "gz of garbage": gzip.compress(bytes(range(256))),
        "gz with a broken body": packed[:40] + b"\xff" * 20 + packed[60:],
        "broken line": b"".join([*lines[:4], lines[4][:37], b"\n", *lines[5:]]),
        "a line of another kind": b"".join([*lines[:4], b"[]\n", *lines[5:]]),
        "unknown operation": b"".join([*lines[:2], lines[2].replace(b'"fault"', b'"dance"')]),
        "unknown attribute": text.replace(b'"GRANULARITY"', b'"GRANULARITIES"', 1),
        "no gpus": lines[0].replace(b'"gpus"', b'"cards"') + b"".join(lines[1:]),
        "gpus of another kind": lines[0].replace(b'"gpus":[', b'"gpus":7,"x":['),
        "unknown kernel": lines[0].replace(b'"7.3"', b'"9.9"') + b"".join(lines[1:]),
        "no accounting": lines[0].replace(b'"accounting"', b'"account"') + b"".join(lines[1:]),
        "a step without a result": b"".join([lines[0], lines[1].replace(b'"ret"', b'"rat"')]),
    }


@pytest.mark.parametrize("kind", sorted(bad_files(None)))
def test_bad_file_is_one_line_and_exit_2(tmp_path, capsys, kind):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(bad_files(tmp_path)[kind])
    assert main([str(path)]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert str(path) in err
    assert "expected" in err
    assert "mismatches" not in out


def test_broken_line_is_named(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(bad_files(tmp_path)["broken line"])
    with pytest.raises(InvalidArgumentError, match="line 5"):
        run_file(path)


@pytest.mark.parametrize("make", [lambda p: p / "absent.jsonl", lambda p: p], ids=["absent", "dir"])
def test_unreadable_path(tmp_path, capsys, make):
    assert main([str(make(tmp_path))]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(make(tmp_path)) in err


def test_module_runs_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["conformance", str(own("windows"))])
    monkeypatch.delitem(sys.modules, "svmcore.conformance")
    with pytest.raises(SystemExit) as done:
        runpy.run_module("svmcore.conformance", run_name="__main__")
    assert done.value.code == 0
    assert "steps, 0 mismatches" in capsys.readouterr().out
