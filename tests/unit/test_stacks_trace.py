"""Readers of launch traces: CSV, JSON lines, GOMP_DEBUG text; what they repair and refuse."""

import gzip

import numpy as np
import pytest

from svmcore.errors import FileError, InvalidArgumentError, TraceError
from svmcore.stacks import Alloc, Free, Launch, LaunchTrace, Touch, open_launches
from svmcore.stacks.trace import RECORD, Op

MIB = 1 << 20
CSV = """op,t,thread,stream,teams,threads,kernel_ns,bytes,id
launch,0,7,1,8,8,200000,,
alloc,5,3,,,,,1048576,a
launch,6,3,,,,,2097152,
free,9,7,,,,,,a
"""
JSONL = """{"op": "launch", "t": 0, "thread": 7, "stream": 1, "teams": 8, "threads": 8, \
"kernel_ns": 200000}
{"op": "alloc", "t": 5, "thread": 3, "bytes": 1048576, "id": "a"}

{"op": "launch", "t": 6, "thread": 3, "bytes": 2097152}
{"op": "free", "t": 9, "thread": 7, "id": "a"}
"""
GOMP = """GOMP_OFFLOAD_load_image: something else
  GOMP_OFFLOAD_run: kernel main$_omp_fn$0: launch [(teams: 8), 1, 1] [(lanes: 32), (threads: 4), 1]
plain output of the program
  GOMP_OFFLOAD_run: kernel main$_omp_fn$1: launch [(teams: 129), (threads: 8)]
  GOMP_OFFLOAD_run: kernel odd: launch [teams: x, threads: y]
"""


def written(tmp_path, text, name="trace"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(("text", "form"), [(CSV, "launch-csv"), (JSONL, "launch-jsonl")])
@pytest.mark.parametrize("packed", [False, True])
def test_tables_are_read_alike(tmp_path, text, form, packed):
    data = gzip.compress(text.encode()) if packed else b"\xef\xbb\xbf" + text.encode()
    trace = open_launches(written(tmp_path, data))
    assert (trace.form, trace.threads, trace.launches, len(trace)) == (form, (3, 7), 2, 4)
    records = trace.records
    assert records["op"].tolist() == [Op.LAUNCH, Op.ALLOC, Op.LAUNCH, Op.FREE]
    assert records["size"].tolist() == [8 * MIB, MIB, 2 * MIB, 0]
    assert records["thread"].tolist() == [1, 0, 0, 1]
    assert records["stream"].tolist() == [1, 0, 0, 0]
    assert records["kernel_ns"].tolist() == [200_000, 0, 50_000, 0]
    assert records["id"][1] == records["id"][3]
    assert [part["t"].tolist() for part in trace.by_thread()] == [[5, 6], [0, 9]]


def test_gomp_debug_text(tmp_path):
    trace = open_launches(written(tmp_path, GOMP))
    assert (trace.form, trace.launches) == ("gomp-debug", 2)
    assert trace.records["size"].tolist() == [4 * MIB, 129 * MIB]
    assert trace.repaired == {"launch line not understood": 1}
    small = open_launches(written(tmp_path, GOMP), stack_bytes=1024)
    assert small.records["size"].tolist() == [32 * 1024, 1032 * 1024]


@pytest.mark.parametrize(
    ("text", "rows"), [(CSV + "launch,9,7", 4), (JSONL + '{"op": "laun', 4), (CSV + "fre", 4)]
)
def test_a_last_line_cut_off_is_counted(tmp_path, text, rows):
    trace = open_launches(written(tmp_path, text))
    assert (len(trace), trace.repaired) == (rows, {"last line cut off": 1})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CSV + "launch,9,7\n", "line 6: 3 fields, expected 9"),
        (CSV + "jump,,,,,,,,\n", "line 6: op 'jump', expected one of launch, alloc, free, touch"),
        (CSV + "launch,x,,,8,8,,,\n", "line 6: t = 'x', expected a whole number"),
        (CSV + "launch,-1,,,8,8,,,\n", "line 6: t = -1, expected 0 to"),
        (CSV + "launch,,,,,,,,\n", "line 6: a launch without teams and threads, or bytes"),
        (CSV + "launch,,,,99999999,99999999,,,\n", "expected at most 1024.0 TiB"),
        (CSV + "alloc,,,,,,,,a\n", "line 6: alloc without bytes"),
        (CSV + "free,,,,,,,,\n", "line 6: free without an id"),
        (CSV + 'launch,"0\n', "line 6: unexpected end of data, expected CSV"),
        ("op,when\nlaunch,1\n", "line 1: columns 'op,when', expected op and some of t, thread"),
        ("op,t,t\n", "line 1: columns"),
        ("op,t\n", "no record, expected one or more"),
        (JSONL + "[1]\n", "line 6: '[1]', expected a JSON object"),
        (JSONL + "{]\n" + JSONL, "line 6: '{]', expected a JSON object"),
        (JSONL + '{"op": "launch", "size": 3}\n', "line 6: unknown field 'size', expected op"),
        (JSONL + '{"op": "launch", "teams": true}\n', "teams = True, expected a whole number"),
        (JSONL + '{"op": "launch", "teams": 0}\n', "teams = 0, expected 1 to"),
        (JSONL + '{"op": "touch", "bytes": 1}\n', "line 6: a touch without addr"),
        (JSONL + '{"op": null}\n', "line 6: op ''"),
        ("what is this\n", "line 1: format unknown, expected one of launch-csv"),
        ("", "line 1: format unknown"),
        (b"\xff\xfe", "byte 0: expected UTF-8 text"),
        (b"\x1f\x8b\x00", "expected a readable launch trace"),
    ],
)
def test_what_is_refused(tmp_path, text, told):
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as error:
        open_launches(path)
    assert str(error.value).startswith(str(path))
    assert told in str(error.value)


def test_files_and_formats_that_are_not_there(tmp_path):
    with pytest.raises(TraceError, match="expected a readable launch trace"):
        open_launches(tmp_path / "nothing")
    with pytest.raises(TraceError, match="format xml, expected one of"):
        open_launches(written(tmp_path, CSV), "xml")
    with pytest.raises(TraceError, match="line 1: 'op,t,thread"):
        open_launches(written(tmp_path, CSV), "launch-jsonl")


def test_records_of_a_program():
    trace = LaunchTrace.of(
        [Launch(teams=2), Alloc(size=5, id="x"), Touch(addr=4096, size=9), Free(id="x")]
    )
    assert trace.records["op"].tolist() == [Op.LAUNCH, Op.ALLOC, Op.TOUCH, Op.FREE]
    assert trace.records["size"].tolist() == [2 * MIB, 5, 9, 0]
    for records, told in [
        ([], "launch trace: no record"),
        ([Launch(), Launch(thread=-1)], "launch record 1: thread = -1, expected 0 to"),
        ([Launch(), 5], "launch record 1: 5, expected Launch, Alloc, Free, Touch or a dictionary"),
        ([Alloc(size=1)], "launch record 0: alloc without an id"),
        ([{"op": "launch", "teams": 1.5}], "teams = 1.5, expected a whole number"),
    ]:
        with pytest.raises(InvalidArgumentError) as error:
            LaunchTrace.of(records)
        assert told in str(error.value)
    with pytest.raises(InvalidArgumentError, match="stack_bytes 0"):
        LaunchTrace.of([Launch()], stack_bytes=0)


def test_arrays_are_checked():
    rows = np.zeros(2, RECORD)
    rows["size"] = 1
    assert len(LaunchTrace(rows)) == 2
    for name, value in [("t", -1), ("op", 4), ("thread", 1), ("size", -1), ("stream", -1)]:
        wrong = rows.copy()
        wrong[name][1] = value
        with pytest.raises(InvalidArgumentError, match=f"record 1: {name} = {value}, expected 0"):
            LaunchTrace(wrong)
    for wrong, threads in [(rows[:0], (0,)), (rows, ()), (rows["t"], (0,)), ([1], (0,))]:
        with pytest.raises(InvalidArgumentError, match="launch trace: expected"):
            LaunchTrace(wrong, threads=threads)


def test_what_is_saved_is_read_again(tmp_path):
    trace = open_launches(written(tmp_path, CSV))
    path = tmp_path / "saved.jsonl"
    trace.save(path)
    again = open_launches(path)
    assert np.array_equal(again.records, trace.records)
    assert (again.threads, again.digest) == (trace.threads, trace.digest)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    with pytest.raises(FileError):
        trace.save(tmp_path / "no folder" / "x")
