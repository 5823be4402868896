"""The timeline for the Chrome and Perfetto viewers."""

import json
from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import InvalidArgumentError, TraceError
from svmcore.records import RECORD
from svmcore.report.perfetto import write_perfetto
from svmcore.traces import open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"


def timeline(path):
    table = json.loads(path.read_text())
    assert table["displayTimeUnit"] == "ns"
    return [event for event in table["traceEvents"] if event["ph"] != "M"]


def test_every_event_of_a_log(tmp_path):
    path = tmp_path / "t.json"
    left_out = write_perfetto(path, open_trace(DATA / "kfd_new.txt").chunks(3))
    assert left_out == {"other": 4}
    events = timeline(path)
    begun = [event["id"] for event in events if event["ph"] == "b"]
    ended = [event["id"] for event in events if event["ph"] == "e"]
    assert begun[:2] == ["1:0x7a1000005000", "2:0x7a2000010000"] == ended[:2]
    assert begun[2:] == ["queues 1", "queues 2"]
    assert ended[2:] == ["queues 1"]
    moves = [event for event in events if event["ph"] == "X"]
    assert [(event["ts"], event["dur"], event["tid"]) for event in moves[:2]] == [
        (5000000.9, 40.0, 1),
        (5000050.0, 10.0, 2),
    ]
    assert moves[1]["args"]["error"] == -12
    assert moves[2]["args"]["not recorded"] == "start"
    assert moves[3]["args"]["not recorded"] == "end"
    moved = [event["args"] for event in events if event["ph"] == "C"]
    assert moved == [
        {"to devices": 0x40000, "to the host": 0},
        {"to devices": 0x40000, "to the host": 0x2000},
    ]
    assert any(event["name"] == "6 events lost" for event in events)


def test_touches_carry_their_operators(tmp_path):
    path = tmp_path / "t.json"
    trace = open_trace(DATA / "workload.csv")
    chunks = list(trace.chunks())
    assert write_perfetto(path, chunks, trace.names) == {}
    events = timeline(path)
    assert len(events) == sum(map(len, chunks))
    assert {event["name"] for event in events} == set(trace.names.values())
    exact = [event["dur"] for event in events]
    assert sum(exact) == pytest.approx(int(chunks[0]["dur_ns"].sum()) / 1000)


def test_nanoseconds_survive_late_times(tmp_path):
    path = tmp_path / "t.json"
    late = np.zeros(1, RECORD)
    late["t_ns"], late["size"] = (1 << 64) - 2, 1
    write_perfetto(path, [late])
    assert '"ts":18446744073709551.614' in path.read_text()


def test_same_bytes_for_any_chunk(tmp_path):
    texts = set()
    for n in (1, 2, 65536):
        write_perfetto(tmp_path / f"{n}", open_trace(DATA / "kfd_new.txt").chunks(n))
        texts.add((tmp_path / f"{n}").read_bytes())
    assert len(texts) == 1


def test_no_file_where_it_fails(tmp_path):
    with pytest.raises(InvalidArgumentError):
        write_perfetto(tmp_path / "t", [np.zeros(1, "<u8")])
    with pytest.raises(TraceError):
        write_perfetto(tmp_path / "none" / "t", [])
    assert list(tmp_path.iterdir()) == []
