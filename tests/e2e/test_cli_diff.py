"""``svmcore diff``, events of a replay, copies of records and several files on the command line."""

import json

import numpy as np
import pytest

import svmcore
from e2e.cli_run import DATA, LOG, svm
from svmcore.records import Kind

NEW, OLD = DATA / "kfd_new.txt", DATA / "kfd_old.txt"


def test_a_log_and_itself_are_equal():
    out, _ = svm("diff", NEW, NEW)
    assert "no difference in 13 events" in out
    assert "(a log)" in out


def test_a_modelled_log_is_its_own_replay(tmp_path):
    log = tmp_path / "m.smi"
    out, _ = svm("replay", LOG, "--events", log)
    assert f"wrote {log} (kfd-smi)" in out
    assert svmcore.open_trace(log).format == "kfd-smi"
    svm("diff", log, LOG, "--replay")
    svm("diff", log)
    _, err = svm("diff", log, "--set", "granularity=0", status=1)
    assert "differences, expected none" in err


def test_what_differs_is_told_as_text_and_json():
    out, err = svm("diff", NEW, "--machine", "mi300x-8", status=1)
    assert "the first: " in out
    assert "the recorder lost 6 events" in out
    assert err.startswith("svmcore: ")
    out, _ = svm("diff", NEW, "--machine", "mi300x-8", "--json", status=1)
    table = json.loads(out)
    assert out.count("\n") == 1
    assert table["equal"] is False
    assert table["recorded"] == 13
    assert table["modelled_log"]["policy"] == "kfd"
    assert table["lost_events"] == 6
    assert table["unpaired"] == {"ends_without_start": 1, "starts_without_end": 1}
    assert sum(table["causes"].values()) == len(table["differences"])
    shown = svm("diff", NEW, "--machine", "mi300x-8", "--show", "1", status=1)[0]
    assert "more" in shown.splitlines()[-2]


def test_ranges_are_mappings_of_what_is_replayed(tmp_path):
    log = tmp_path / "m.smi"
    svm("replay", LOG, "--range", "0x7e3000000000,64KiB,a", "--events", log)
    assert svm("diff", log, LOG, "--replay", "--range", "0x7e3000000000,64KiB,a")[0]
    _, err = svm("diff", log, LOG, "--replay", status=1)
    assert "expected none" in err
    _, err = svm("diff", NEW, NEW, "--range", "0x7e3000000000,64KiB", status=2)
    assert "is a log of events: expected --replay" in err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("demo",), "holds no event of a driver"),
        ((NEW, "--by", "gpu9"), "expected one of cpu"),
        ((NEW, "--policy", "none"), "none"),
        ((NEW, DATA / "missing"), "No such file"),
    ],
)
def test_bad_input_is_refused(args, text):
    _, err = svm("diff", *args, status=2)
    assert text in err


def test_events_as_a_timeline_and_columns(tmp_path):
    svm("replay", "demo", "--events", tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["displayTimeUnit"] == "ns"
    svm("replay", LOG, "--events", tmp_path / "t.npy")
    kinds = svmcore.open_trace(tmp_path / "t.npy").summary.kinds
    assert set(kinds) == {"fault", "fault_end", "migrate"}
    _, err = svm("replay", LOG, "--events", tmp_path / "t.npy", status=2)
    assert "is there already" in err


@pytest.mark.parametrize("name", ["t", "t.tsv", "t.smi.gz", "t."])
def test_events_under_a_name_that_says_no_form_are_refused(tmp_path, name):
    _, err = svm("replay", LOG, "--events", tmp_path / name, status=2)
    assert "expected a name that ends in .smi, .txt, .log, .json, .csv, .npy, .parquet" in err
    assert not (tmp_path / name).exists()


def test_convert_to_a_timeline_and_to_requests(tmp_path):
    out, _ = svm("convert", NEW, tmp_path / "t.json", "--json")
    assert json.loads(out)["to"]["format"] == "perfetto"
    assert json.loads(out)["left_out"] == {"other": 4}
    out, _ = svm("convert", "demo", tmp_path / "t.oracleGeneral", "--json")
    table = json.loads(out)
    assert table["to"]["format"] == "oracle-general"
    assert "times below a second" in table["not_kept"]
    assert (tmp_path / "t.oracleGeneral").stat().st_size % 24 == 0
    out, _ = svm("convert", LOG, tmp_path / "f.oracleGeneral")
    assert "a fault trace became an access trace" in out


def test_several_files_are_merged(tmp_path):
    pair = f"{NEW},{OLD}"
    table = json.loads(svm("inspect", pair, "--json")[0])
    assert table["gpu_ids"] == [0x6B2F, 0x91C0, 2]
    one, other = (json.loads(svm("inspect", each, "--json")[0]) for each in (NEW, OLD))
    assert table["records"] == one["records"] + other["records"]
    svm("convert", pair, tmp_path / "t.npy")
    times = np.concatenate(list(svmcore.open_trace(tmp_path / "t.npy").chunks()))
    faults = times[times["kind"] == Kind.FAULT]["t_ns"]
    assert (np.diff(faults.astype(np.int64)) >= 0).all()
    _, err = svm("inspect", f"{NEW},", status=2)
    assert f"{NEW},: No such file" in err
    _, err = svm("inspect", f"{NEW},{LOG}", status=2)
    assert "expected files of kfd-smi" in err


def test_copies_of_records_say_the_same(tmp_path):
    plain = svm("replay", LOG, "--json")[0]
    for _ in range(2):
        kept = svm("replay", LOG, "--json", "--cache", tmp_path / "c")[0]
        one, other = json.loads(plain), json.loads(kept)
        for key in ("wall_s", "engine_s", "records_per_s"):
            del one[key], other[key]
        assert one == other
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_a_processor_that_the_machine_lacks_and_a_log_without_events():
    _, err = svm("diff", NEW, status=2)
    assert "record 2: processor gpu1, expected one of cpu, gpu0" in err
    assert "--machine" in err
    _, err = svm("diff", DATA / "touches.txt", status=2)
    assert "holds no event of a driver" in err
