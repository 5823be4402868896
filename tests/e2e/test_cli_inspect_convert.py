"""``svmcore inspect``, ``convert`` and ``conformance``."""

import json
import os

import numpy as np
import pytest

import svmcore
from e2e.cli_run import DATA, LOG, svm
from svmcore import cli
from svmcore.cli import convert as converting
from svmcore.records import Kind


def inspected(path, *args):
    out, err = svm("inspect", path, *args, "--json")
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


def records(path):
    return np.concatenate(list(svmcore.open_trace(path).chunks()))


def test_inspect_of_an_access_trace():
    table = inspected("demo")
    assert table["format"] == "workload-csv"
    assert table["confidence"] == 1.0
    assert table["kind"] == "access"
    assert table["kinds"] == {"access": 14_163}
    assert table["reads"] + table["writes"] == 14_163
    assert table["processors"] == {"unknown": 14_163}
    assert table["mappings"]["count"] == 17
    assert table["mappings"]["top"][0]["name"] == "embedding.table"
    # Each page moves once at granularity 0 on a device with room for all.
    out, _ = svm("replay", "demo", "--set", "granularity=0", "--json")
    assert json.loads(out)["migrated_pages"] == table["touched_pages"]
    assert json.loads(out)["pages_touched"] == table["page_touches"]
    assert table["operators"] > 0


def test_inspect_of_a_fault_log():
    table = inspected(LOG)
    assert table["format"] == "uvm-log"
    assert table["kind"] == "fault"
    assert table["kinds"] == {"fault": 96, "batch": 6}
    assert (table["reads"], table["writes"], table["touched_pages"]) == (64, 32, 96)
    assert table["time_span_ns"] == [900_000_000_032, 900_000_003_072]
    assert table["mappings"]["count"] == 4


def test_inspect_of_kfd_smi():
    table = inspected(DATA / "kfd_old.txt")
    assert table["format"] == "kfd-smi"
    assert table["gpu_ids"] == [2]
    assert table["counts"] == {"restored": 1, "rescheduled": 1}
    out, _ = svm("inspect", DATA / "kfd_old.txt")
    assert "gpu0 is 0x2" in out


def test_inspect_says_what_was_repaired():
    table = inspected(DATA / "kfd_glued.txt")
    assert table["lines"]["repaired"] > 0
    out, _ = svm("inspect", DATA / "kfd_glued.txt")
    assert f"repaired {table['lines']['repaired']}" in out
    assert "lines of the trace:" in svm("replay", DATA / "kfd_glued.txt")[0]


def test_inspect_text():
    out, err = svm("inspect", LOG)
    assert err == ""
    for word in (
        "uvm-log, 95% sure; fault trace",
        "fault 96",
        "read 64, write 32",
        "96 different pages",
    ):
        assert word in out


@pytest.mark.parametrize("target", ["npy", "csv"])
def test_convert_keeps_records_and_mappings(tmp_path, target):
    path = tmp_path / f"demo.{target}"
    out, err = svm("convert", "demo", path)
    assert err == ""
    assert "14,180 records" in out
    assert "names of 17 mappings" in out
    there = records(path)
    assert (there["kind"][:17] == Kind.MAP).all()
    assert len(there) == 17 + 14_163
    one, other = (json.loads(svm("replay", p, "--json")[0]) for p in ("demo", path))
    for key in ("faults", "migrations", "migrated_bytes", "time_ns", "pages_touched"):
        assert one[key] == other[key]
    # Once more: the mappings are records already and are not written twice.
    again = tmp_path / "again.npy"
    svm("convert", path, again)
    assert np.array_equal(records(again), there)


@pytest.mark.parametrize("sample", ["accel_sim/kernelslist.g", "traces/nsys.sqlite"])
def test_convert_keeps_mappings_that_records_name_only_in_part(tmp_path, sample):
    source, path = DATA.parent / sample, tmp_path / "out.npy"
    svm("convert", source, path)
    one, other = svmcore.open_trace(source), svmcore.open_trace(path)
    spans = [sorted(m[:2] for m in trace.mappings()) for trace in (one, other)]
    assert spans[0] == spans[1]
    assert other.summary.kinds.pop("map") > one.summary.kinds.pop("map")
    assert other.summary.kinds == one.summary.kinds


def test_convert_says_what_it_leaves_out(tmp_path):
    path = tmp_path / "touches.txt"
    table = json.loads(svm("convert", LOG, path, "--to", "access-list", "--json")[0])
    assert table["records"] == 96
    assert table["left_out"] == {"batch": 6}
    assert table["not_kept"] == [
        "mappings",
        "client and engine of each fault, its type where it is not fatal",
        "columns of the batch log",
        "times",
    ]
    out, _ = svm("convert", LOG, path, "--to", "access-list", "--force")
    assert "left out: 6 batch; access-list has no line for them" in out


def test_convert_keeps_gpu_ids_of_kfd_smi(tmp_path):
    path = tmp_path / "again.txt"
    svm("convert", DATA / "kfd_old.txt", path, "--to", "kfd-smi")
    assert inspected(path)["gpu_ids"] == [2]


def test_a_fault_trace_that_becomes_an_access_trace_is_told(tmp_path):
    said = "a fault trace became an access trace"
    out, _ = svm("convert", LOG, tmp_path / "a.txt", "--to", "access-list")
    assert out.count(said) == 1
    assert inspected(tmp_path / "a.txt")["kind"] == "access"
    table = json.loads(svm("convert", LOG, tmp_path / "a.npy", "--json")[0])
    assert table["notes"] == []
    table = json.loads(
        svm("convert", DATA / "kfd_old.txt", tmp_path / "b", "--to", "access-list", "--json")[0]
    )
    assert table["notes"][0].startswith(said)


@pytest.mark.parametrize("target", ["npy", "csv", "parquet", "arrow", "access-list"])
def test_processes_and_gpu_ids_that_are_lost_are_told(tmp_path, target):
    if target in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    out, _ = svm("convert", DATA / "kfd_old.txt", tmp_path / "x", "--to", target)
    (line,) = [line for line in out.splitlines() if line.startswith("not kept: ")]
    assert "process ids, GPU ids (gpu0 is 0x2)" in line


def test_kfd_smi_keeps_gpu_ids_and_no_process(tmp_path):
    table = json.loads(
        svm("convert", DATA / "kfd_old.txt", tmp_path / "x", "--to", "kfd-smi", "--json")[0]
    )
    lost = ["mappings", "prefetch and preferred locations", "task names", "process ids"]
    assert table["not_kept"] == lost


def test_a_trace_of_which_nothing_can_be_said_is_refused(tmp_path):
    path = tmp_path / "x.txt"
    for there in (False, True):
        if there:
            path.write_text("mine")
        out, err = svm("convert", "demo", path, "--to", "kfd-smi", "--force", status=2)
        assert (out, err.count("\n")) == ("", 1)
        assert "kfd-smi can hold none of its records (14,163 access): expected records of" in err
        assert "fault, fault_end, migrate, evict" in err
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    assert path.read_text() == "mine"


@pytest.mark.parametrize("link", ["same", "./same", "symlink", "hardlink"])
@pytest.mark.parametrize("flags", [[], ["--force"]])
def test_convert_never_writes_over_its_source(tmp_path, link, flags):
    source, name = tmp_path / "t.csv", tmp_path / "link.csv"
    content = (DATA / "records.csv").read_bytes()
    source.write_bytes(content)
    other = {"same": "t.csv", "./same": "./t.csv"}.get(link, "link.csv")
    if link == "symlink":
        name.symlink_to(source)
    elif link == "hardlink":
        os.link(source, name)
    for one, two in (("t.csv", other), (other, "t.csv")):
        out, err = svm("convert", one, two, *flags, status=2, cwd=tmp_path)
        assert (out, err.count("\n")) == ("", 1)
        assert f"{two}: is the same file as {one}: expected another name" in err
    assert source.read_bytes() == content
    assert name.is_symlink() == (link == "symlink")


def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("mine")
    path.chmod(0o444)
    out, err = svm("convert", LOG, path, "--force", status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert "may not be written (mode 0444): expected a file with write permission" in err
    assert path.read_text() == "mine"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_replaced_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "t.csv"
    path.write_text("mine")
    path.chmod(mode)
    svm("convert", LOG, path, "--force")
    assert path.stat().st_mode & 0o777 == mode
    assert len(records(path)) == 4 + 102


def test_a_device_is_not_replaced():
    _, err = svm("convert", LOG, os.devnull, "--to", "csv", "--force", status=2)
    assert f"{os.devnull}: is not a regular file" in err


def test_one_is_no_plural(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("0x1000,4096\n")
    out, _ = svm("inspect", path)
    assert "1 different page, 4.0 KiB; 1 page touch\n" in out
    assert "1 line or row\n" in out
    out, _ = svm("replay", path)
    assert "access trace), 1 record\n" in out
    assert "1 mapping, 4.0 KiB (" in out
    out, _ = svm("convert", path, tmp_path / "t", "--to", "access-list")
    assert ": 1 record of " in out


def test_convert_replaces_nothing_unasked(tmp_path):
    path = tmp_path / "there.csv"
    path.write_text("mine")
    _, err = svm("convert", LOG, path, status=2)
    assert "expected --force" in err
    assert path.read_text() == "mine"
    svm("convert", LOG, path, "--force")
    assert len(records(path)) == 4 + 102


def test_interrupted_convert_leaves_nothing(tmp_path, monkeypatch, capsys):
    whole = converting._arrays

    def stopped(source, target):
        yield next(whole(source, target))
        raise KeyboardInterrupt

    monkeypatch.setattr(converting, "_arrays", stopped)
    assert cli.main(["convert", "demo", str(tmp_path / "x.csv")]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "svmcore: interrupted\n")


# ---- conformance -------------------------------------------------------------------------

HEADER = {
    "format": "kfd-svm-vectors/1",
    "kernel": "7.3.4",
    "xnack": 1,
    "max_svm_range_pages": 262144,
    "default_granularity": 9,
    "accounting": "exact",
    "gpus": [{"id": 4097, "vram_pages": 262144}],
    "vmas": [[4096, 8191, "rw", "anon"]],
}
STEP = {"i": 0, "t_us": 10, "op": "set_attr", "start_page": 4096, "npages": 16, "nranges": 0}
STEP |= {"attrs": [[8, 0]], "ret": -22, "list": [], "ranges": []}


def vectors(path, **changed):
    path.write_text(json.dumps(HEADER) + "\n" + json.dumps(STEP | changed) + "\n")
    return path


@pytest.mark.parametrize("flag", [[], ["--reference"]])
def test_conformance_that_holds(tmp_path, flag):
    path = vectors(tmp_path / "good.jsonl")
    out, err = svm("conformance", path, *flag)
    assert (out, err) == (f"{path}: 1 steps, 0 mismatches\n", "")


@pytest.mark.parametrize("flag", [[], ["--reference"]])
def test_conformance_that_does_not_hold(tmp_path, flag):
    path = vectors(tmp_path / "bad.jsonl", ret=0)
    out, _ = svm("conformance", path, *flag, status=1)
    assert out.startswith(f"{path}: 1 steps, 1 mismatches\n")
    assert "ret: expected 0, got -22" in out


def test_conformance_of_something_else(tmp_path):
    good = vectors(tmp_path / "good.jsonl")
    out, err = svm("conformance", good, LOG, status=2)
    assert out.startswith(f"{good}: 1 steps")
    assert err.count("\n") == 1
    assert "expected a vector file" in err
    cut = tmp_path / "cut.jsonl"
    cut.write_text('{"format": "kfd-svm-vectors/1"}\n')
    assert svm("conformance", cut, status=2)[1].count("\n") == 1


def test_inspect_takes_ranges_and_a_machine():
    table = inspected("demo", "--range", "0x7e4000000000,1GiB,all", "--range", "0x10001,4096,odd")
    assert [row["name"] for row in table["mappings"]["top"]] == ["all", "odd"]
    assert table["mappings"]["top"][0]["records"] > 12_000
    assert any("rounded outward to pages" in note for note in table["notes"])
    small = inspected(LOG, "--advice", "--machine", "mi300a")
    assert small["advice"]["machine"] == "mi300a"
    _, err = svm("inspect", "demo", "--machine", "h200", status=2)
    assert "--machine h200: expected --advice too" in err
