"""Traces under several vendors: comparison, study, ``inspect --advice``, vector files."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from e2e.cli_run import environment, svm
from managed_kit import PAGE, machine, memory
from svmcore.attributes import Attribute
from svmcore.conformance import main, run_file
from svmcore.errors import InvalidArgumentError
from svmcore.managed.playing import Hint, compare_dialects, machine_for, play_trace
from svmcore.managed.study import DIALECTS, EFFECTS, advice_study
from svmcore.records import RECORD, UNKNOWN, Access, Kind
from svmcore.report.advice import advice_report
from svmcore.traces import Mapping, open_trace, write_records

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "data" / "managed_cases.json"
BASE = 0x7D00_0000_0000


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Two devices, eight steps, an update of a part of a layer every four."""
    path = tmp_path_factory.mktemp("weights") / "weights.csv"
    script = str(ROOT / "bench" / "make_shared_weights.py")
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        made = runpy.run_path(script)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    arguments = ["--devices", "2", "--steps", "8", "--layers", "2", "--layer-mib", "2"]
    assert made["main"]([str(path), *arguments, "--update-every", "4"]) == 0
    return path


def trace(tmp_path, rows):
    """A trace of ``(kind, addr, size, proc, access, peer, value)`` on one mapping of 4 MiB."""
    records = np.zeros(1 + len(rows), RECORD)
    records[0] = (0, BASE, 2 * PAGE, 0, 0, Kind.MAP, UNKNOWN, 4, UNKNOWN)
    for record, (kind, addr, size, proc, access, peer, value) in zip(
        records[1:], rows, strict=True
    ):
        record["kind"], record["addr"], record["size"] = kind, BASE + addr, size
        record["proc"], record["access"], record["peer"], record["value"] = (
            proc,
            access,
            peer,
            value,
        )
    path = tmp_path / "records.npy"
    np.save(path, records)
    return path


# ---- the generator ---------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_bytes(tmp_path):
    def made(*args):
        path = tmp_path / "out.csv"
        run = [sys.executable, "bench/make_shared_weights.py", str(path), "--steps", "64", *args]
        subprocess.run(run, cwd=ROOT, check=True, env=environment())
        return path.read_bytes()

    assert made() == made()
    assert made("--seed", "2") != made()


# ---- comparison ------------------------------------------------------------------------------


def test_read_mostly_of_shared_weights(weights):
    """Four readings of 4 MiB a device and period, 256 KiB written at the end of each."""
    found = {
        (row.plan, row.semantics): (row.play.totals, row.play.buffers)
        for row in compare_dialects(
            weights,
            {"none": [], "read-mostly": [Hint("weights", "read_mostly")]},
            ("cuda", "acl", "hip"),
        ).rows
    }
    size, part = 4 << 20, 256 << 10

    def weight(plan, name):
        (row,) = (b for b in found[plan, name][1] if b["name"] == "weights")
        return row

    # Without advice each reading by the other device moves all; CUDA through the host.
    # Of what the first write fetched the next reading moves nothing.
    plain = weight("none", "acl")
    assert plain["copied_bytes"] == 0
    assert plain["moved_bytes"] == 15 * size + (2 - 1) * PAGE
    assert weight("none", "cuda")["moved_bytes"] == 2 * (15 * size + (2 - 1) * part)
    # CUDA keeps the advice: one copy a device, and the written part again.
    cuda = weight("read-mostly", "cuda")
    assert cuda["moved_bytes"] == 0
    assert cuda["copied_bytes"] == 2 * size + 2 * part
    assert cuda["advised"]
    # ACL loses it page by page: the layer that was written goes back and forth again.
    acl = weight("read-mostly", "acl")
    layers = [
        (int(line.split(",")[5], 16) - BASE) // PAGE
        for line in weights.read_text().split("\n")
        if ",update," in line
    ]
    assert not acl["advised"]
    assert acl["copied_bytes"] == 2 * size
    assert acl["moved_bytes"] == (7 + (layers[0] == layers[1])) * PAGE
    # HIP stores the flag and does as without.
    assert weight("read-mostly", "hip")["moved_bytes"] == weight("none", "hip")["moved_bytes"]
    assert weight("read-mostly", "hip")["advised"]


def test_table_and_dict(weights):
    compared = compare_dialects(weights)
    lines = compared.table().split("\n")
    assert len(lines) == 7
    assert lines[0].split()[:4] == ["plan", "semantics", "faulted", "moved"]
    rows = json.loads(json.dumps(compared.to_dict()))["rows"]
    assert [(row["plan"], row["semantics"]) for row in rows] == [
        (plan, name) for plan in ("none", "read-mostly") for name in ("cuda", "acl", "hip")
    ]


def test_the_machine_has_the_devices_of_the_trace(weights):
    assert len(machine_for(open_trace(weights)).gpus) == 2
    assert len(machine_for(open_trace(weights), "gpu4").gpus) == 5


def test_records_of_advice_speak_the_vendors_words(tmp_path):
    flags = 0x20
    path = trace(
        tmp_path,
        [
            (Kind.ADVISE, 0, PAGE, 0, Attribute.SET_FLAGS, UNKNOWN, flags),
            (Kind.ACCESS, 0, PAGE, 1, 0, UNKNOWN, 0),
            (Kind.ACCESS, 0, PAGE, 2, 0, UNKNOWN, 0),
            (Kind.ADVISE, PAGE, PAGE, 0, Attribute.PREFERRED_LOC, 2, 0),
            (Kind.ADVISE, PAGE, PAGE, 0, Attribute.ACCESS_IN_PLACE, 1, 0),
            (Kind.ADVISE, PAGE, PAGE, 0, Attribute.PREFERRED_LOC, UNKNOWN, 0),
            (Kind.ADVISE, PAGE, PAGE, 0, Attribute.GRANULARITY, UNKNOWN, 5),
            (Kind.PREFETCH, PAGE, PAGE, 0, 0, 2, 0),
            (Kind.MIGRATE, 0, PAGE, 0, 0, 1, 0),
        ],
    )
    for name in ("acl", "cuda", "hip", "kfd"):
        space = memory(name)
        play = play_trace(path, space)
        page, other = space.page(BASE), space.page(BASE + PAGE)
        assert page.read_mostly
        assert (len(page.copies) > 1) is (name in ("acl", "cuda"))
        assert "gpu0" in other.accessed_by
        assert other.preferred is None
        assert str(other.last_prefetch) == "gpu1"
        refusals = {} if name == "kfd" else {"granularity": 1}
        assert {key.split(":")[0]: n for key, n in play.refused.items()} == refusals
        assert play.records == 9


def test_fatal_accesses_are_counted(tmp_path):
    path = trace(tmp_path, [(Kind.ACCESS, 0, 4096, 1, 0, UNKNOWN, 0)] * 2)
    play = play_trace(path, memory("kfd", xnack="off"))
    assert play.refused == {"access: EACCES": 2}


def test_misuse(tmp_path):
    path = trace(tmp_path, [(Kind.ACCESS, 0, 4096, 3, 0, UNKNOWN, 0)])
    with pytest.raises(InvalidArgumentError, match="record 1: processor gpu2"):
        play_trace(path, memory("cuda", devices=2))
    for hint, match in ((Hint("nothing", "read_mostly"), "map0"), (Hint("*", "often"), "often")):
        with pytest.raises(InvalidArgumentError, match=match):
            play_trace(path, memory("cuda"), [hint])
    with pytest.raises(InvalidArgumentError, match="semantics"):
        compare_dialects(path, semantics=["metal"])
    with pytest.raises(InvalidArgumentError, match="gpu9"):
        compare_dialects(path, machine=machine(), by="gpu9")


def test_buffers_that_share_a_granule(tmp_path):
    """Two buffers in one page of 2 MiB: one allocation, each with its own figures."""
    records = np.zeros(2, RECORD)
    records["addr"], records["size"], records["proc"] = [BASE + 100, BASE + 9000], 50, 1
    records["peer"] = UNKNOWN
    path = tmp_path / "two.npy"
    mappings = [Mapping(BASE + 100, 200, "a"), Mapping(BASE + 9000, 300, "b")]
    np.save(path, records)
    source = open_trace(path, ranges=mappings)
    space = memory("acl")
    play = play_trace(source, space)
    assert space.allocations() == [(BASE, PAGE)]
    assert [row["faults"] for row in play.buffers] == [1, 0]


# ---- the study -------------------------------------------------------------------------------


def test_study(weights):
    study = advice_study(weights)
    assert set(study["effects"]) == set(EFFECTS)
    by_name = {row["name"]: row for row in study["buffers"]}
    row = by_name["weights"]
    assert (row["reads"], row["writes"]) == (2 * 8 * 2, 2)
    assert row["write_share"] == pytest.approx(2 / 34, abs=1e-6)
    for word in EFFECTS:
        assert set(row["advice"][word]) == {"location", *DIALECTS}
    # gpu0 reads as often and writes: it is the preferred one, gpu1 the other.
    assert row["advice"]["preferred_location"]["location"] == "gpu0"
    assert row["advice"]["accessed_by"]["location"] == "gpu1"
    told = row["advice"]["read_mostly"]
    assert told["cuda"]["copied_bytes"] < row["without"]["cuda"]["moved_bytes"]
    assert told["hip"] == row["without"]["hip"]


@pytest.mark.parametrize(
    ("share", "buffers"), [(0.1, 2), (0.05, 3), (2 / 34, 2), (0.0, 3), (1.0, 0)]
)
def test_a8_lint_of_writes(weights, share, buffers):
    study = advice_study(weights, write_share=share)
    assert len(study["lint"]) == buffers
    assert not any(row["advised"] for row in study["lint"])
    lines = [line for line in advice_report(study) if isinstance(line, str)]
    found = [line for line in lines if line.startswith("lint A8")]
    assert len(found) == max(buffers, 1)


def test_a8_lint_of_what_the_trace_advises(tmp_path):
    rows = [(Kind.ADVISE, 0, PAGE, 0, Attribute.SET_FLAGS, UNKNOWN, 0x20)]
    rows += [(Kind.ACCESS, 0, 4096, 1, i == 0, UNKNOWN, 0) for i in range(5)]
    study = advice_study(trace(tmp_path, rows))
    assert study["lint"] == [{"buffer": "map0", "write_share": 0.2, "advised": True}]
    assert study["buffers"][0]["advised"] == ["read_mostly"]


def test_an_atomic_is_a_write(tmp_path):
    rows = [(Kind.ACCESS, 0, 4096, 1, how, UNKNOWN, 0) for how in (Access.READ, Access.ATOMIC)]
    path = trace(tmp_path, rows)
    (row,) = advice_study(path)["buffers"]
    assert (row["reads"], row["writes"]) == (1, 1)
    play = play_trace(path, memory("acl"), [Hint("*", "read_mostly")])
    assert play.totals["faults"] == 2  # the write under read mostly too
    assert not play.buffers[0]["advised"]


def test_study_of_nothing(tmp_path):
    path = tmp_path / "none.csv"
    write_records(path, np.zeros(0, RECORD))
    study = advice_study(path)
    assert (study["buffers"], study["lint"]) == ([], [])
    assert advice_report(study)


def test_a_buffer_at_address_zero(tmp_path):
    """Traces with relative addresses begin there; a null pointer is nobody's memory."""
    path = tmp_path / "zero.txt"
    path.write_text("0x0,4096\n0x1000,4096\n")
    with pytest.raises(InvalidArgumentError, match=r"^buffer touched0 at address 0: expected"):
        advice_study(path)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_share_out_of_bounds(weights, share):
    with pytest.raises(InvalidArgumentError, match="write_share"):
        advice_study(weights, write_share=share)


def test_inspect_advice(weights):
    out, err = svm("inspect", weights, "--advice", "--write-share", "0.05")
    assert err == ""
    assert "weights" in out
    assert "lint A8: weights is not for read mostly" in out
    table = json.loads(svm("inspect", weights, "--advice", "--json")[0])
    assert table["advice"] == json.loads(json.dumps(advice_study(weights)))
    assert "advice" not in json.loads(svm("inspect", weights, "--json")[0])
    _, err = svm("inspect", weights, "--advice", "--write-share", "2", status=2)
    assert "--write-share" in err


def test_a_table_tells_what_was_refused(weights):
    """A hint that did nothing is not to look like one that was followed."""
    plans = {"typo": [Hint("weights", "preferred_location", "gpu7")], "none": []}
    lines = compare_dialects(weights, plans, ("cuda", "acl")).table().split("\n")
    assert [line for line in lines if line.startswith("note")] == [
        "note: typo cuda: preferred_location: CUDA_ERROR_INVALID_DEVICE, rule device, 1 time",
        "note: typo acl: preferred_location: ACL_ERROR_RT_PARAM_INVALID, rule device, 1 time",
    ]


# ---- vector files ----------------------------------------------------------------------------


def test_own_cases():
    report = run_file(OWN)
    assert (report.steps, report.mismatches, report.details) == (4, 0, [])


def test_shared_cases(shared):
    path = shared / "vectors" / "acl_managed_cases.json"
    report = run_file(path)
    assert report.details == []
    assert (report.steps, report.mismatches) == (2 * len(json.loads(path.read_text())), 0)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("returns", ["FAULT", "OK", "FAULT", "HIT", "ERROR"], "returns"),
        ("events", [], "events"),
        (("state", "copies"), ["0"], "state copies"),
        (("state", "owner"), 1, "state owner"),
        (("state", "read_mostly"), True, "state read_mostly"),
        (("state", "preferred"), 1, "state preferred"),
        (("state", "accessed_by"), ["2"], "state accessed_by"),
        (("state", "last_prefetch"), 0, "state last_prefetch"),
        (("state", "writable"), [], "state writable"),
        (("state", "colour"), "red", "state colour"),
        ("rounds", 1, "rounds"),
    ],
)
@pytest.mark.parametrize("mode", ["doc", "driver"])
def test_any_difference_is_one_mismatch(tmp_path, key, value, named, mode, capsys):
    table = json.loads(OWN.read_text())
    outputs = table["own_two_readers_then_the_host_keeps"][mode]
    if isinstance(key, tuple):
        outputs = outputs[key[0]]
        key = key[1]
    outputs[key] = value
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(table, indent=1))
    assert main([str(path)]) == 1
    first, detail = capsys.readouterr().out.strip().split("\n")
    assert first == f"{path}: 4 steps, 1 mismatches"
    assert f"{mode}: {named}: expected" in detail


@pytest.mark.parametrize("mode", ["doc", "driver"])
def test_a_case_for_one_mode(tmp_path, mode):
    table = json.loads(OWN.read_text())
    del table["own_conflict"][mode]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(table))
    report = run_file(path)
    assert (report.steps, report.mismatches) == (3, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update(more={"steps": []}),
        lambda t: t.update(more=3),
        lambda t: t["own_conflict"].update(steps=[["jump"]]),
        lambda t: t["own_conflict"].update(steps=[["access", 0]]),
        lambda t: t["own_conflict"].update(steps=[["prefetch", "moon"]]),
        lambda t: t["own_conflict"].update(steps=7),
        lambda t: t["own_conflict"].update(doc={}),
        lambda t: t["own_conflict"].update(steps=[["access", 10**9, True]]),
    ],
)
def test_broken_case_files(tmp_path, change):
    table = json.loads(OWN.read_text())
    change(table)
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(table))
    with pytest.raises(InvalidArgumentError, match="expected"):
        run_file(path)


def test_cut_off_case_file(tmp_path):
    path = tmp_path / "cases.json"
    path.write_text(OWN.read_text()[:-30])
    with pytest.raises(InvalidArgumentError, match="JSON"):
        run_file(path)


# ---- runs of hits ----------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", ["acl", "acl-driver", "cuda"])
@pytest.mark.parametrize("seed", range(4))
def test_runs_of_hits_are_what_one_by_one_gives(tmp_path, monkeypatch, semantics, seed):
    """Random touches, mostly of the same pages, with advice and outcomes in between."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(3000):
        kind = rng.choice([Kind.ACCESS] * 200 + [Kind.ADVISE, Kind.PREFETCH, Kind.MIGRATE])
        addr = int(rng.choice([0, 100, 4096, PAGE - 1, PAGE, 2 * PAGE - 9000]))
        size = int(rng.choice([1, 4096, 9000]))
        proc = int(rng.choice([1] * 60 + [0, 2, UNKNOWN]))
        access = Attribute.SET_FLAGS if kind == Kind.ADVISE else int(rng.random() < 0.02)
        rows.append((kind, addr, size, proc, access, 1, 0x20))
    path = trace(tmp_path, rows)
    plays = []
    for found_at_once in (True, False):
        space = memory(semantics)
        if not found_at_once:
            monkeypatch.setattr(type(space), "leading_hits", lambda *_: 0)
        play = play_trace(path, space, by="gpu1")
        plays.append((play, space.counters(), space.page(BASE), space.page(BASE + PAGE)))
    assert plays[0] == plays[1]


def test_runs_of_hits_end_where_something_happens():
    space = memory("cuda")
    ptr = space.alloc(4 * 4096)
    records = np.zeros(6, RECORD)
    records["addr"] = [ptr, ptr + 1, ptr + 4096, ptr, ptr, ptr]
    records["size"] = [4096, 5, 4096, 4096, 4097, 8 * 4096]
    records["proc"] = [1, 1, UNKNOWN, 2, 1, 1]
    space.access(ptr, 2 * 4096, by="gpu0", write=True)
    assert space.leading_hits(records, 1) == 0  # met no touch like these yet
    for who, write in (("gpu0", False), ("gpu0", True)):
        assert space.access(ptr, by=who, write=write).hit
    assert space.leading_hits(records, 1) == 3
    assert space.leading_hits(records[4:5], 1) == 1
    assert space.leading_hits(records[5:], 1) == 0  # beyond the pages touched
    records["kind"][1] = Kind.PREFETCH
    assert space.leading_hits(records, 1) == 1
    assert space.leading_hits(records[:0], 1) == 0
