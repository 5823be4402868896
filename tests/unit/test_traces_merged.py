"""Several files of one run, merged by time."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore.errors import InvalidArgumentError
from svmcore.records import RECORD, Kind
from svmcore.traces import Summary, open_trace
from svmcore.traces.merged import _merged, _Stream

DATA = Path(__file__).parents[1] / "data" / "traces"
FIRST = """\
7 1000 -5 @10(a1) W
5 1100 -5 @10(4) 0->a1 ffffffff:ffffffff 1
6 1500 -5 @10(4) 0->a1 1 0
8 1600 -5 @10(a1) M
7 1300 -5 @20(a1) R
e 1900 -5 3
"""
SECOND = """\
7 1050 -5 @30(b2) W
8 1200 -5 @30(b2) U
7 1700 -5 @31(b2) W
8 1800 -5 @31(b2)"""


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / "gpu0.smi", tmp_path / "gpu1.smi"]
    for path, text in zip(paths, (FIRST, SECOND), strict=True):
        path.write_text(text)
    return paths


def rows(trace, n=65536):
    return [row for chunk in trace.chunks(n) for row in chunk.tolist()]


def test_records_by_time_and_gpus_by_file(files):
    trace = open_trace(files)
    found = rows(trace)
    assert [(row[0], row[6]) for row in found] == [
        (1000, 1),
        (1050, 2),
        (1100, 0),  # a migration from the CPU, where its start stands in time
        (1200, 2),
        (1600, 1),
        (1300, 1),  # its own file has it behind 1600
        (1700, 2),
        (1900, 255),
    ]
    assert found[2][8] == 1
    assert trace.gpu_ids == [0xA1, 0xB2]
    assert (trace.format, trace.kind) == ("kfd-smi", "fault")
    for n in (1, 3):
        assert rows(trace, n) == found


def test_summary_adds_up(files):
    summary = open_trace(files).summary
    assert isinstance(summary, Summary)
    assert (summary.lines, summary.read, summary.refused) == (10, 9, 1)
    assert summary.records == 8 == sum(summary.kinds.values())
    assert summary.bytes == sum(path.stat().st_size for path in files)
    assert summary.counts == {"dropped_events": 3}
    assert any(note.startswith(f"{files[1]}: line 4 is cut off") for note in summary.notes)
    assert sum("log lost 3 events" in note for note in summary.notes) == 1


def test_mappings_and_digest_are_of_all_files(files):
    trace = open_trace(files)
    assert [m[:2] for m in trace.mappings()] == [
        (0x10000, 0x4000),
        (0x20000, 4096),
        (0x30000, 8192),
    ]
    assert trace.digest == open_trace(files).digest != open_trace(files[::-1]).digest
    assert [m.name for m in open_trace(files, ranges=[(0, 4096)]).mappings()] == ["range0"]


def test_progress_covers_all_files(files):
    seen = []
    trace = open_trace(files, progress=seen.append)
    rows(trace)
    assert seen[-1] == trace.nbytes


def test_one_file_in_a_list_is_that_file(files):
    assert rows(open_trace(files[:1])) == rows(open_trace(files[0]))


def test_what_cannot_be_merged_is_refused(files):
    with pytest.raises(InvalidArgumentError, match="no file"):
        open_trace([])
    with pytest.raises(InvalidArgumentError, match="common clock"):
        open_trace([files[0], DATA / "touches.txt"])
    with pytest.raises(InvalidArgumentError, match="one format"):
        open_trace([files[0], DATA / "hsa_profile.txt"])


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=2, max_size=4),
    st.integers(1, 5),
)
def test_merge_keeps_each_order_and_sorts_by_running_time(times, length):
    streams = []
    for index, each in enumerate(times):
        records = np.zeros(len(each), RECORD)
        records["t_ns"], records["proc"], records["kind"] = each, index, Kind.FAULT
        records["value"] = np.arange(len(each))
        chunks = [records[at : at + length].copy() for at in range(0, len(each), length)]
        streams.append(_Stream(iter(chunks), np.arange(256, dtype="u1")))
    found = [row for part in _merged(streams) for row in part[["proc", "value"]].tolist()]
    for index, each in enumerate(times):
        assert [value for proc, value in found if proc == index] == list(range(len(each)))
    keys = [max(times[proc][: value + 1]) for proc, value in found]
    assert keys == sorted(keys)
