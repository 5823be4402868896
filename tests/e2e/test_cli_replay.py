"""``svmcore replay``: figures of real and own traces, the contract's keys, the files of --out."""

import csv
import json
import sys

import pytest

from e2e.cli_run import LOG, environment, python, svm, three_buffers_log
from json_keys import KEYS

WALL = {"wall_s", "engine_s", "records_per_s"}
MIGRATIONS = {0: 96, 2: 24, 4: 6, 5: 3, 9: 3}


def replayed(*args):
    out, err = svm("replay", *args, "--json")
    assert err == ""
    assert out.count("\n") == 1
    return json.loads(out)


def test_sample_is_what_its_function_makes():
    assert LOG.read_text() == three_buffers_log()


@pytest.mark.parametrize(("granularity", "migrations"), MIGRATIONS.items())
def test_migrations_of_a_log_by_granularity(granularity, migrations):
    table = replayed(LOG, "--policy", "kfd", "--set", f"granularity={granularity}")
    assert table["migrations"] == table["faults"] == migrations
    assert table["settings"]["granularity"] == granularity
    assert table["errors"] == 0


@pytest.mark.parametrize(("granularity", "migrations"), MIGRATIONS.items())
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_migrations_of_the_real_logs(shared, number, granularity, migrations):
    log = shared / "data" / "uvm-eval" / f"abc_short32_{number}.kmsg"
    table = replayed(log, "--policy", "kfd", "--set", f"granularity={granularity}")
    assert table["migrations"] == migrations
    assert table["trace"]["kind"] == "fault"


def test_real_training_step_in_time_and_memory(shared):
    pytest.importorskip("resource")
    if sys.platform != "linux":
        pytest.skip("ru_maxrss is in kilobytes on Linux only")
    # A small process of its own starts the replay, so that no other child is measured.
    done = python(
        "import resource, subprocess, sys\n"
        "command = [sys.executable, '-m', 'svmcore', *sys.argv[1:]]\n"
        "out = subprocess.run(command, check=True, capture_output=True, text=True).stdout\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, out)",
        *("replay", shared / "data" / "workloads" / "gpt_train_3steps.csv.gz"),
        *("--policy", "kfd", "--json"),
    )
    assert done.returncode == 0, done.stderr
    kilobytes, _, text = done.stdout.partition(" ")
    table = json.loads(text)
    assert table["trace"]["records"] == 12_953
    assert table["pages_touched"] == 38_449_294
    assert table["errors"] == 0
    assert table["wall_s"] < 20  # not a measurement: something is broken beyond that
    assert int(kilobytes) < 300 * 1024


def test_json_has_the_keys_of_the_contract():
    table = replayed("demo")
    assert set(table) >= KEYS
    assert set(table["trace"]) >= {"path", "format", "kind", "records", "digest"}
    assert table["trace"]["path"] == "demo"
    assert table["policy"] == "kfd"
    assert table["machine"] == "gpu-80g"
    assert table["faults_by_processor"] == {"gpu0": table["faults"]}
    assert sum(row["moved_pages"] for row in table["buffers"]) == table["migrated_pages"]


def test_no_chunk_size_shows_in_a_result():
    one, other = (
        {k: v for k, v in replayed("demo", "--chunk", n).items() if k not in WALL}
        for n in (7, 100000)
    )
    assert one == other


def test_report_says_every_default():
    out, err = svm("replay", "demo")
    assert err == ""
    for word in (
        "demo (workload-csv, 100% sure; access trace), 14,163 records",
        "kfd kernel=7.3 xnack=on granularity=9 max_svm_range_pages=default evict_on_full=on",
        "evict_on_full=on eviction=driver seed=0 quota_pages=default",
        "by=gpu0 raw_faults=off",
        "gpu-80g, 1 GPU of 80.0 GiB",
        "17 mappings, 1.6 GiB (named by the trace); ranges unregistered",
        "embedding.table",
        "untouched: 1 of 17 buffers, 48.0 MiB",
        "modelled time",
        "records/s",
        "note: times are modelled",
    ):
        assert word in out


def test_a_fault_trace_is_called_a_bound():
    out, _ = svm("replay", LOG)
    assert "a bound, not the truth" in out
    assert "fault trace" in out


def test_by_the_cpu_nothing_moves_to_a_device():
    table = replayed(LOG, "--by", "cpu")
    assert table["bytes_to_device"] == 0
    assert table["settings"]["by"] == "cpu"


def test_raw_faults_are_delivered_once():
    table = replayed(LOG, "--raw-faults", "--set", "granularity=0")
    assert table["settings"]["raw_faults"] is True
    assert table["migrations"] == 96


STAGES = ["first_pass", "mapping", "reading", "engine", "counting", "report", "other"]


def test_profile_is_an_object_of_json():
    table = replayed("demo", "--profile")
    profile = table["profile"]
    assert list(profile["stages"]) == STAGES
    assert profile["records"] == table["trace"]["records"] == 14_163
    assert sum(stage["share"] for stage in profile["stages"].values()) == pytest.approx(1, abs=0.01)
    total = sum(stage["s"] for stage in profile["stages"].values())
    assert total == pytest.approx(profile["wall_s"], abs=1e-4)
    assert profile["stages"]["engine"]["s"] == table["engine_s"] > 0
    assert "profile" not in replayed("demo")


def test_profile_is_told_on_stderr():
    out, err = svm("replay", "demo", "--profile")
    plain = svm("replay", "demo")[0]
    assert [line for line in out.splitlines() if not line.startswith("speed")] == [
        line for line in plain.splitlines() if not line.startswith("speed")
    ]
    lines = err.splitlines()
    assert lines[0].split() == ["stage", "seconds", "share", "records/s"]
    assert len(lines) == 1 + len(STAGES) + 1
    assert any(line.startswith("compiled loop ") for line in lines)
    assert lines[-1].split()[0] == "all"
    assert "100.0%" in lines[-1]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather"])
def test_columns_replay_as_their_source(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    path = tmp_path / f"demo.{suffix}"
    svm("convert", "demo", path)
    one, other = replayed("demo"), replayed(path)
    assert other["trace"]["format"] == {"feather": "arrow"}.get(suffix, suffix)
    for key in ("faults", "migrations", "migrated_bytes", "time_ns", "pages_touched"):
        assert one[key] == other[key]
    table = json.loads(svm("inspect", path, "--json")[0])
    assert table["mappings"]["count"] == 17
    assert table["lines"]["read"] == table["records"] == 17 + 14_163


def test_columns_that_do_not_fit_are_one_line(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"addr": [1.5], "size": [1]}), path)
    _, err = svm("replay", path, status=2)
    assert err == f"svmcore: {path}: columns: addr: type double: expected integers\n"


def test_given_ranges_replace_those_of_the_trace():
    whole = "0x7e3000000000,6MiB,abc"
    table = replayed(LOG, "--range", whole)
    assert [row["name"] for row in table["buffers"]] == ["abc"]
    assert "given by --range" in svm("replay", LOG, "--range", whole)[0]


@pytest.mark.parametrize(
    ("given", "is_"),
    [("0x7e3000000001,1,a", "0x7e3000000000,4096"), ("0x7e3000000fff,2,a", "0x7e3000000000,8192")],
)
def test_ranges_are_rounded_outward_to_pages(given, is_):
    table = replayed(LOG, "--range", given)
    (row,) = table["buffers"]
    assert f"{row['start']:#x},{row['size']}" == is_
    assert row["records"] == row["size"] // 4096
    (note,) = [note for note in table["notes"] if "rounded" in note]
    assert note.endswith(f"rounded outward to pages: {is_}")
    assert f"note: {note}" in svm("replay", LOG, "--range", given)[0]


def test_a_range_of_whole_pages_is_not_rounded(tmp_path):
    assert "outward to pages" in " ".join(svm("replay", "--help")[0].split())
    path = tmp_path / "t.txt"
    path.write_text("0x0,4096\n")
    table = replayed(path, "--range", "0,4096")
    assert table["errors"] == 0
    assert not any("--range" in note for note in table["notes"])


def test_ranges_without_a_record_are_told():
    missed = "no record of the trace lies inside the ranges given by --range"
    assert missed in replayed(LOG, "--range", "0x1000,4096")["notes"]
    assert f"note: {missed}\n" in svm("replay", LOG, "--range", "0x1000,4096")[0]
    assert missed not in replayed(LOG, "--range", "0x7e3000000000,4096")["notes"]


@pytest.mark.parametrize("form", ["kfd-smi", "npy", "csv"])
def test_events_that_the_log_lost_are_told(tmp_path, form):
    path = tmp_path / "log.txt"
    path.write_text("7 100 -9 @10(2) W\ne 150 -9 16\n7 160 -9 @11(2) W\ne 170 -9 1\n")
    if form != "kfd-smi":
        svm("convert", path, tmp_path / "x", "--to", form)
        path = tmp_path / "x"
    said = "the log lost 17 events (in 2 places): what they touched is missing here"
    assert replayed(path)["notes"].count(said) == 1
    assert svm("replay", path)[0].count(f"note: {said}\n") == 1
    assert svm("inspect", path)[0].count(f"note: {said}\n") == 1


def test_fatal_records_are_a_warning_above_the_time():
    lines = svm("replay", LOG, "--range", "0x1000,4096")[0].splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("modelled time")]
    assert lines[at - 1] == (
        "WARNING: 96 of 102 records ended fatally: first record 1 at 0x7e3000000000, most common "
        "reason no_range (96); modelled time covers only what was served"
    )
    assert "WARNING" not in svm("replay", LOG)[0]


def test_errors_are_counted_and_the_first_is_named():
    out, _ = svm("replay", LOG, "--range", "0x7e3000000000,2MiB")
    assert "64 records (no_range 64)" in out
    assert "address 0x7e3000200000: no_range" in out


def test_the_last_setting_of_a_key_counts():
    table = replayed(LOG, "--set", "granularity=0", "--set", "granularity=4")
    assert table["migrations"] == 6


def test_more_buffers_than_the_table_names(tmp_path):
    rows = "".join(f"{0x10000000 + n * 0x400000:#x},{4096 * (n + 1)}\n" for n in range(25))
    path = tmp_path / "many.txt"
    path.write_text(rows)
    out, _ = svm("replay", path, "--set", "granularity=0")
    assert "touched24" in out
    assert "touched4 " not in out
    assert "5 more" in out


def test_names_cannot_steer_the_terminal(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "seq,t_ns,dur_ns,kind,op,addr,bytes\n0,0,1,R,x,0x200000,4096\n"
        "1,1,0,S,[red]\x1b[31mname,0x200000,2097152\n"
    )
    out, _ = svm("replay", path)
    assert "[red]\\x1b[31mname" in out
    assert "\x1b" not in out


def test_out_has_three_whole_files(tmp_path):
    folder = tmp_path / "new" / "out"
    out, _ = svm("replay", LOG, "--out", folder, "--set", "granularity=4")
    assert "result.json, buffers.csv, config.json" in out
    assert sorted(p.name for p in folder.iterdir()) == ["buffers.csv", "config.json", "result.json"]
    result = json.loads((folder / "result.json").read_text())
    assert set(result) >= KEYS
    config = json.loads((folder / "config.json").read_text())
    assert config["policy_settings"]["granularity"] == 4
    assert config["trace"]["digest"] == result["trace"]["digest"]
    assert config["machine"]["gpus"][0]["vram_pages"] == 80 << 18
    with (folder / "buffers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [row["name"] for row in result["buffers"]]
    assert sum(int(row["moved_pages"]) for row in rows) == 96
    # Once more into the folder that is there: replaced, nothing else left behind.
    svm("replay", LOG, "--out", folder)
    assert len(list(folder.iterdir())) == 3


def test_both_ways_of_calling_are_the_same():
    one, other = (svm("inspect", LOG, "--json", module=m)[0] for m in ("svmcore", "svmcore.cli"))
    assert one == other


def test_missing_extra_is_one_line():
    for name in ("click", "rich"):
        done = python(
            f"import sys; sys.modules[{name!r}] = None; from svmcore.cli import main; "
            "sys.exit(main(['demo']))"
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert f"{name!r}" in done.stderr
        assert "pip install 'svmcore[cli]'" in done.stderr


def test_environment_is_that_of_the_tested_copy():
    done = python("import svmcore; print(svmcore.__file__)")
    assert done.stdout.startswith(environment()["PYTHONPATH"].split(":")[0])
