"""Bad input is one line and exit status 2; streams, terminals and signals."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from e2e.cli_run import DATA, LOG, environment, python, svm
from svmcore import cli
from svmcore.cli import common

FULL = Path("/dev/full")
LISTED = (
    "accel-sim, access-list, akita, arrow, chunk-trace, csv, ftrace, hsa-svm-profile, kfd-smi, "
    "lackey, libcachesim-csv, npy, nsys, oracle-general, oracle-general-opns, parquet, "
    "perf-script, rocpd, rocprofiler-json, uvm-binary, uvm-log, uvm-tools-v1, uvm-tools-v2, "
    "workload-csv"
)


def refused(*args, cwd=None, status=2):
    out, err = svm(*args, status=status, cwd=cwd)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("svmcore: ")
    assert "expected" in err
    return err


@pytest.mark.parametrize("command", ["replay", "inspect"])
@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("missing", None, "No such file"),
        ("empty", b"", "empty file"),
        ("garbage", bytes(range(256)) * 20, "format not recognised"),
        ("text", b"Dear diary,\ntoday nothing faulted.\n", "format not recognised"),
    ],
)
def test_no_trace(tmp_path, command, name, content, what):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    err = refused(command, tmp_path / name)
    assert what in err
    assert str(tmp_path / name) in err


@pytest.mark.parametrize("args", [["replay"], ["inspect"], ["convert"]])
def test_a_directory(tmp_path, args):
    more = [tmp_path / "x.csv"] if args == ["convert"] else []
    err = refused(*args, tmp_path, *more)
    assert "is a directory" in err


def test_truncated_archive(tmp_path):
    whole = (DATA / "records.npy").read_bytes()
    path = tmp_path / "cut.npy"
    path.write_bytes(whole[:-7])
    assert str(path) in refused("replay", path)


def test_wrong_format_and_unknown_format():
    assert "line 1" in refused("replay", LOG, "--format", "workload-csv")
    assert LISTED in refused("replay", LOG, "--format", "vcd")
    assert LISTED in refused("inspect", LOG, "--format", "vcd")


def test_what_is_no_npy_file_is_told_in_our_words(tmp_path):
    err = refused("replay", "demo", "--format", "npy")
    assert err.endswith("header: does not begin as one does: expected a NumPy file\n")
    path = tmp_path / "t.npy"
    path.write_bytes(
        (DATA / "records.npy").read_bytes().replace(b"\x93NUMPY\x01", b"\x93NUMPY\x09")
    )
    assert "header: version 9.0: expected a NumPy file" in refused("inspect", path)
    path.write_bytes((DATA / "records.npy").read_bytes()[:40])
    err = refused("inspect", path, "--format", "npy")
    assert "header: is damaged: expected the whole header" in err


def test_a_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("0x1000,4096\n" * 50 + "oops\n" + "0x1000,4096\n" * 50)
    assert f"{path}: line 51: 'oops'" in refused("replay", path)


@pytest.mark.parametrize("command", ["replay", "inspect"])
def test_a_file_that_vanishes(tmp_path, monkeypatch, capsys, command):
    path = tmp_path / "t.txt"
    path.write_text("0x1000,4096\n")
    opening = common.open_trace

    def gone(*args, **kwargs):
        trace = opening(*args, **kwargs)
        path.unlink()
        return trace

    monkeypatch.setattr(common, "open_trace", gone)
    assert cli.main([command, str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{path}: No such file" in err


@pytest.mark.parametrize("command", ["replay", "inspect"])
def test_a_file_that_shrinks(tmp_path, monkeypatch, capsys, command):
    path = tmp_path / "t.txt"
    path.write_text("0x7f0000000000,4096\n" * 200_000)
    opening = common.open_trace

    def shrinking(*args, **kwargs):
        kwargs["progress"] = lambda done: os.truncate(path, 1000)
        return opening(*args, **kwargs)

    monkeypatch.setattr(common, "open_trace", shrinking)
    assert cli.main([command, str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the file shrank while it was read: expected 4000000 bytes" in err


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--policy", "nobody"], "policy 'nobody': expected one of "),
        (["--policy", "kfd("], "expected name or name(key=value, ...)"),
        (["--policy", "kfd(kernel=2.6)"], "expected one of 7.3"),
        (["--policy", "kfd(speed=1)"], "unknown parameter 'speed'"),
        (["--machine", "toaster"], "machine 'toaster': expected one of gpu-80g"),
        (["--machine", "none.toml"], "machine none.toml: expected a TOML file"),
        (["--by", "gpu3"], "--by: processor 'gpu3': expected one of cpu, gpu0"),
        (["--by", "tpu"], "--by: processor 'tpu': expected cpu or gpu0"),
        (["--set", "speed=1"], "--set speed=1: unknown key 'speed', expected one of kernel"),
        (["--set", "spec=1"], "unknown key 'spec'"),
        (["--set", "granularity"], "expected key=value"),
        (["--set", "granularity=28"], "expected 0 to 27"),
        (["--set", "granularity=big"], "expected a whole number"),
        (["--set", "xnack=perhaps"], "expected on or off"),
        (["--set", "max_svm_range_pages=" + "9" * 30], "expected numbers of 64 bits"),
        (["--range", "12"], "expected START,SIZE"),
        (["--range", "0x1000,0"], "expected a size of at least 1"),
        (["--range", "0,1MiB", "--range", "4096,1"], "expected ranges that do not overlap"),
        (["--range", "0,1", "--range", "1,1"], "ranges 0x0,4096 and 0x0,4096: expected ranges"),
        (["--range", "0x1001,0"], "expected a size of at least 1"),
        (["--range", "0x1000,-0x1000"], "expected START,SIZE"),
        (["--range", "-4096,4096"], "expected a start of at least 0"),
        (["--chunk", "0"], "svmcore: --chunk 0: expected a whole number, 1 or more\n"),
        (["--chunk", "few"], "svmcore: --chunk 'few': expected a whole number, 1 or more\n"),
        (["--by", "gpu1"], "expected one of cpu, gpu0; the machine has 1 GPU, see --machine"),
        (["--polcy", "kfd"], "No such option"),
        (["more"], "unexpected extra argument"),
    ],
)
def test_arguments(tmp_path, args, what):
    assert what in refused("replay", LOG, *args, cwd=tmp_path)


def test_a_processor_that_the_machine_lacks(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("0x1000,4096,r,gpu0\n0x1000,4096,r,gpu5\n")
    err = refused("replay", path)
    assert f"{path}: record 1: processor gpu5, expected one of cpu, gpu0; " in err
    assert err.endswith("; the machine has 1 GPU, see --machine\n")
    assert err.count("expected") == 1
    # Not served is one thing, no such processor another: still bad input where it is strict.
    refused("replay", path, "--strict")
    assert err.count(str(path)) == 1


def test_commands():
    known = "bench, checkpoint, compare, conformance, convert, demo, diff, explain, inspect, replay"
    assert f"expected one of {known}" in refused("replya")
    assert "Missing argument 'TRACE': expected svmcore replay" in refused("replay")
    assert "trace ''" in refused("replay", "")


@pytest.mark.parametrize("text", ["gpu = 3", "name = 1\n[[gpu]]\nid = 'x'\nvram = '1GiB'", "="])
def test_machine_files(tmp_path, text):
    path = tmp_path / "m.toml"
    path.write_text(text)
    assert str(path) in refused("replay", LOG, "--machine", path)


def test_out_that_is_no_folder(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    for name in (path, path / "below"):
        assert f"{path} is not a folder" in refused("replay", LOG, "--out", name)
    assert path.read_text() == "mine"


def test_a_fatal_record_of_a_strict_replay_is_a_failed_check(tmp_path):
    out = ["--out", tmp_path / "a" / "b"]
    err = refused("replay", LOG, *out, "--strict", "--range", "0x1000,4096", status=1)
    assert "record 1, address 0x7e3000000000: no_range" in err
    assert list(tmp_path.iterdir()) == []


def test_out_is_written_whole_or_not(tmp_path, monkeypatch, capsys):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["replay", str(LOG), "--out", str(tmp_path / "a" / "b")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["x"], "expected --to npy|csv|access-list|kfd-smi"),
        (["x.csv.gz"], "expected a name without .gz"),
        (["x", "--to", "vcd"], "--to vcd: expected one of"),
        (["none/x.csv"], "No such file or directory"),
        (["-"], "-: traces are not written to standard output yet"),
        (["-", "--to", "csv", "--force"], "-: traces are not written to standard output yet"),
    ],
)
def test_convert_arguments(tmp_path, args, what):
    assert what in refused("convert", LOG, *args, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_a_newline_is_still_one_line(tmp_path):
    refused("replay", tmp_path / "a\nb\x1b[31m")


# ---- streams and signals -----------------------------------------------------------------


def test_help_tells_hosts_where_their_flags_are():
    out, _ = svm("--help")
    assert "--cflags" in out
    assert "--ldflags" in out
    assert svm("--cflags")[0].startswith("-I")


@pytest.mark.parametrize("args", [["demo"], ["replay", "demo", "--json"], ["--help"]])
def test_nobody_reads_the_output(args):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "svmcore", *args],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("args", [["demo"], ["replay", "demo", "--json"]])
def test_a_full_disk_behind_stdout(args):
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "svmcore", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "svmcore: output: No space left on device: expected a place to write\n"


def test_interrupt_is_a_clean_line():
    done = python(
        "import os, signal, sys\n"
        "from svmcore import cli\n"
        "from svmcore.cli import replay\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def stopped(*args, **kwargs):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
        "sys.modules['svmcore.cli.replay'].run_replay = stopped\n"
        "sys.exit(cli.main(['replay', 'demo']))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "svmcore: interrupted\n")
    assert signal.SIGINT == 130 - 128


def on_terminal(*args, stream):
    """Run ``svmcore ARGS`` with a terminal of 80 columns as one stream; what it shows, the rest."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read():
        try:
            while data := os.read(ours, 4096):
                shown.extend(data)
        except OSError:  # the other end is closed: that is how a terminal ends
            pass

    reader = threading.Thread(target=read)
    reader.start()
    other = "stdout" if stream == "stderr" else "stderr"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "svmcore", *args],
            **{stream: theirs, other: subprocess.PIPE},
            text=True,
            env=environment() | {"TERM": "xterm", "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
            check=False,
        )
    finally:
        os.close(theirs)
        reader.join(30)
        os.close(ours)
    assert done.returncode == 0
    return shown.decode(), getattr(done, other)


def test_progress_on_a_terminal_only():
    shown, out = on_terminal("replay", "demo", "--json", stream="stderr")
    assert json.loads(out)["trace"]["records"] == 14_163
    assert "replaying by kfd on gpu-80g: demo (workload-csv, 59.2 KiB)" in shown
    assert "pass" in shown


def test_no_figure_is_cut_on_a_narrow_terminal():
    shown, err = on_terminal("replay", "demo", stream="stdout")
    assert err == ""
    assert "1,121,280" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
