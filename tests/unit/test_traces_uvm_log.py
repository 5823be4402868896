"""Fault logs of the instrumented NVIDIA driver."""

from pathlib import Path

import pytest

from svmcore.errors import TraceError
from svmcore.records import CPU, UNKNOWN, Access, Kind
from svmcore.traces import Mapping, open_trace
from svmcore.traces.uvm_log import batches

DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN
FAULT = "f,7e1200003000,64,0,1,2,1,0,0,0,127,1,0,1,63"


def trace_of(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    return open_trace(path, format="uvm-log")


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def test_kernel_log_in_file_order():
    trace = open_trace(DATA / "uvm.kmsg")
    t = 900000000000
    assert rows(trace) == [
        (0, 0, 0, 0, 0, Kind.BATCH, U, NONE, U),
        (t + 64, 0x7E1200003000, 4096, 0, 0, Kind.FAULT, U, Access.READ, U),
        (t + 32, 0x7E1200004000, 4096, 0, 0, Kind.FAULT, U, Access.WRITE, U),
        (t + 96, 0x7E1200400000, 4096, 0, 0, Kind.FAULT, U, Access.ATOMIC, U),
        (t + 96, 0x7E1200005000, 4096, 0, 0, Kind.MIGRATE, CPU, NONE, U),
        (t + 96, 0x7E1200200000, 4096, 0, 0, Kind.EVICT, U, NONE, U),
        (t + 96, 0, 0, 23456, 1, Kind.BATCH, U, NONE, U),
        (t + 96, 0, 0, 0, 0, Kind.BATCH, U, NONE, U),
        (t + 4096, 0x7E1200006000, 4096, 0, 0, Kind.FAULT, U, Access.PREFETCH, U),
        (t + 4096, 0, 0, 0, 1, Kind.BATCH, U, NONE, U),
    ]
    summary = trace.summary
    assert (summary.unknown, summary.comments, summary.metadata) == (1, 1, 3)


def test_destroyed_ranges_are_mappings_and_stray_faults_too():
    assert open_trace(DATA / "uvm.kmsg").mappings() == [
        Mapping(0x208200000, 2 << 20, "range0"),
        Mapping(0x7E1200000000, 2 << 20, "range1"),
        Mapping(0x7E1200200000, 2 << 20, "range2"),
        Mapping(0x7E1200400000, 4096, "touched0"),
    ]


def test_bare_messages_and_batch_log():
    trace = open_trace(DATA / "uvm_bare.txt")
    assert rows(trace) == [
        (0, 0, 0, 0, 0, Kind.BATCH, U, NONE, U),
        (77, 0x10003000, 4096, 0, 0, Kind.FAULT, U, Access.ATOMIC, U),
        (100, 0, 0, 250, 1, Kind.BATCH, U, NONE, U),
        (77, 0, 0, 0, 0, Kind.BATCH, U, NONE, U),
        (77, 0, 0, 80, 1, Kind.BATCH, U, NONE, U),
    ]
    assert trace.summary.counts == {"failed_batches": 1}
    assert trace.mappings() == [Mapping(0x10003000, 4096, "touched0")]


def test_batches_give_the_columns():
    found = list(batches(DATA / "uvm_bare.txt"))
    assert found[0][:4] == (100, 250, 3, 1)
    assert [len(row) for row in found] == [28, 2]
    assert list(batches(DATA / "uvm.kmsg")) == [(23456, 0), ()]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("2097152", 2 << 20),
        ("0x200000", 2 << 20),
        ("200000", 2 << 20),
        ("1f000", 0x1F000),
        ("4096", 4096),
        ("100", 100),
    ],
)
def test_size_of_a_destroyed_range(tmp_path, size, expected):
    line = f"uvm range destroy va_range->node.start, va_range->size: 7e1200000000, {size}\n"
    assert trace_of(tmp_path, line).mappings() == [Mapping(0x7E1200000000, expected, "range0")]


def test_range_destroyed_twice_is_one_mapping(tmp_path):
    line = "uvm range destroy va_range->node.start, va_range->size: 0x7e1200000000, 2097152\n"
    assert len(trace_of(tmp_path, line * 2).mappings()) == 1


def test_touched_pages_around_destroyed_ranges(tmp_path):
    text = "".join(f"p,{0x100000 + 4096 * i:x}\n" for i in range(8))
    for start in (0x101000, 0x104000, 0x105000):
        text += f"uvm range destroy va_range->node.start, va_range->size: {start:#x}, 4096\n"
    assert [(m.start, m.size) for m in trace_of(tmp_path, text).mappings()] == [
        (0x101000, 4096),
        (0x104000, 4096),
        (0x105000, 4096),
        (0x100000, 4096),
        (0x102000, 8192),
        (0x106000, 8192),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "4,1,2,-;f,7e1200003000,64,0,1",
        "4,1,2,-;" + FAULT + ",1",
        FAULT.replace(",64,", ",18446744073709551616,"),
        FAULT.replace(",0,1,2,", ",0,5,2,"),
        FAULT.replace(",0,1,2,", ",0,99999999999999999999999,2,"),
        FAULT.replace("7e1200003000", "17e12000030000000"),
        "p,xyz",
        "e,",
        "s,1",
        "b,1",
        "b,18446744073709551616,0",
        "b," + ",".join(["1"] * 31),
        "uvm range destroy va_range->node.start, va_range->size: 0x1000, 0",
        "uvm range destroy va_range->node.start, va_range->size: 0xfffffffffffff000, 0x2000",
        "uvm range destroy va_range->node.start, va_range->size: 0x1000",
        "text;more",
    ],
)
def test_garbage_in_the_middle_names_the_line(tmp_path, line):
    with pytest.raises(TraceError, match="expected") as caught:
        rows(trace_of(tmp_path, f"s,\n{line}\n{FAULT}\n"))
    assert caught.value.where == "line 2"


def test_any_prefix_before_the_semicolon_goes(tmp_path):
    assert len(rows(trace_of(tmp_path, f"host kernel;{FAULT}\n# note\n\n"))) == 1


def test_real_logs(shared):
    logs = sorted((shared / "data/uvm-eval").glob("*.kmsg"))
    assert len(logs) == 4
    for path in logs:
        trace = open_trace(path)
        assert (trace.format, trace.kind) == ("uvm-log", "fault")
        assert trace.confidence > 0.9
        assert trace.summary.kinds == {"fault": 96, "batch": 6}
        assert trace.summary.lines == 106
        mappings = trace.mappings()
        assert [m.size for m in mappings] == [2 << 20] * 4
        faults = [row for row in rows(trace) if row[5] == Kind.FAULT]
        assert len({row[1] for row in faults}) == 96
        inside = [sum(m.start <= row[1] < m.end for row in faults) for m in mappings]
        assert inside == [0, 32, 32, 32]


def test_made_up_driver_log(shared):
    trace = open_trace(shared / "data/made-up/faults_driver.kmsg")
    assert trace.mappings() == [Mapping(0x7FB144000000, 4 << 20, "range0")]
    assert [row[5] for row in rows(trace)] == [
        Kind.BATCH,
        Kind.FAULT,
        Kind.FAULT,
        Kind.MIGRATE,
        Kind.EVICT,
        Kind.BATCH,
    ]
    assert rows(trace)[-1][3] == 41234
