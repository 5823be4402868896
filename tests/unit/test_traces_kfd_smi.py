"""KFD SMI event text: every event, every known damage."""

from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import TraceError
from svmcore.records import CPU, UNKNOWN, Access, Kind
from svmcore.traces import Summary, open_trace
from svmcore.traces.kfd_smi import Event, MigrateValue, events

DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN


def trace_of(tmp_path, text):
    path = tmp_path / "smi.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return open_trace(path, format="kfd-smi")


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def test_records_of_a_new_driver():
    trace = open_trace(DATA / "kfd_new.txt")
    a, b = 0x7A1000000000, 0x7A2000010000
    ok = MigrateValue(1, 0).pack()
    assert rows(trace) == [
        (0, 0, 0, 0, 12, Kind.OTHER, U, NONE, U),
        (5000000100, a + 0x5000, 4096, 0, 0, Kind.FAULT, 1, Access.READ, U),
        (5000000500, b, 4096, 0, 0, Kind.FAULT, 2, Access.WRITE, U),
        (5000000900, a, 0x40000, 40000, ok, Kind.MIGRATE, CPU, NONE, 1),
        (5000041000, a + 0x5000, 4096, 0, 1, Kind.FAULT_END, 1, NONE, U),
        (5000051000, b, 4096, 0, 0, Kind.FAULT_END, 2, NONE, U),
        (5000050000, b, 0x10000, 10000, MigrateValue(0, -12).pack(), Kind.MIGRATE, CPU, NONE, 2),
        (5000080000, a, 0x40000, 0, 0, Kind.UNMAP_GPU, 1, NONE, U),
        (5000090000, 0, 0, 0, 1, Kind.QUEUE_EVICT, 1, NONE, U),
        (5000095000, 0, 0, 0, 0, Kind.QUEUE_RESTORE, 1, NONE, U),
        (5000096000, 0, 0, 0, 0, Kind.QUEUE_EVICT, 2, NONE, U),
        (5000099000, 0, 0, 0, 1, Kind.QUEUE_RESTORE, 2, NONE, U),
        (
            5000110000,
            0x7A4000000000,
            0x2000,
            0,
            MigrateValue(2, 0, has_start=False).pack(),
            Kind.MIGRATE,
            2,
            NONE,
            CPU,
        ),
        (0, 0, 0, 0, 2, Kind.OTHER, U, NONE, U),
        (0, 0, 0, 0, 1, Kind.OTHER, U, NONE, U),
        (5000130000, 0, 0, 0, 6, Kind.DROPPED, U, NONE, U),
        (0, 0, 0, 0, 13, Kind.OTHER, U, NONE, U),
        (
            5000070000,
            0x7A3000000000,
            0x8000,
            0,
            MigrateValue(3, has_end=False).pack(),
            Kind.MIGRATE,
            1,
            NONE,
            CPU,
        ),
    ]
    assert trace.gpu_ids == [0x6B2F, 0x91C0]
    assert trace.summary.unknown == 1
    assert trace.summary.counts == {
        "restored": 1,
        "rescheduled": 1,
        "unpaired_starts": 1,
        "unpaired_ends": 1,
        "dropped_events": 6,
    }


def test_mappings_are_pages_touched_and_spans_moved():
    assert [m[:2] for m in open_trace(DATA / "kfd_new.txt").mappings()] == [
        (0x7A1000000000, 0x40000),
        (0x7A2000010000, 0x10000),
        (0x7A3000000000, 0x8000),
        (0x7A4000000000, 0x2000),
    ]


def test_events_keep_what_records_have_no_room_for():
    found = list(events(DATA / "kfd_new.txt"))
    assert found[0] == Event(12, 1, pid=0x7D3, text="stencil3d")
    assert found[0].name == "PROCESS_START"
    assert found[2] == Event(
        5, 3, 5000000900, 2003, 0x7A1000000000, 0x40000, None, 0, 0x6B2F, 0x6B2F, None, 1
    )
    assert found[6].prefetch is None
    assert found[6].preferred == 0
    assert [e.error for e in found if e.id == 6] == [0, -12, 0]
    assert [e.text for e in found if e.id in (1, 2)] == ["3:9", "stencil3d"]


def test_old_driver_has_no_error_and_nothing_after_a_restore():
    tally = Summary()
    found = list(events(DATA / "kfd_old.txt", tally))
    assert [e.error for e in found if e.id == 6] == [None]
    assert [e.flag for e in found if e.id == 10] == [None, "R"]
    assert (tally.lines, tally.read, tally.bytes) == (7, 7, 140)
    trace = open_trace(DATA / "kfd_old.txt")
    migrated = [row for row in rows(trace) if row[5] == Kind.MIGRATE]
    assert migrated == [(200, 0x10000, 0x4000, 500, 1, Kind.MIGRATE, CPU, NONE, 1)]
    assert trace.gpu_ids == [2]


def test_glued_lines_come_apart():
    tally = Summary()
    found = list(events(DATA / "kfd_glued.txt", tally))
    assert [e.id for e in found] == [9, 10, 9, 10, 11, 8, 13, 12, 7]
    assert [e.line for e in found] == [1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [e.text for e in found if e.text] == ["demo", "next_task"]
    assert (tally.read, tally.repaired) == (1, 4)


def test_glue_is_not_sought_inside_a_gpu_id(tmp_path):
    trace = trace_of(tmp_path, "6 1 -1 @10(2) 0->1eac 1 08 5 -1 @10(1eac) U\n9 7 -1 1eac 0\n")
    assert [row[5] for row in rows(trace)] == [Kind.MIGRATE, Kind.FAULT_END, Kind.QUEUE_EVICT]
    assert trace.gpu_ids == [0x1EAC]


def test_nul_bytes_are_taken_out():
    tally = Summary()
    found = list(events(DATA / "kfd_nul.bin", tally))
    assert [e.id for e in found] == [10, 9, 10, 11]
    assert [e.flag for e in found] == [None] * 4
    assert (tally.read, tally.repaired) == (1, 2)


@pytest.mark.parametrize("name", ["kfd_smi_glued_lines.txt", "kfd_smi_nul_before_newline.bin"])
def test_case_5_no_event_lost(shared, name):
    path = shared / "data/made-up" / name
    tally = Summary()
    damaged = list(events(path, tally))
    whole = list(events(shared / "data/made-up/kfd_smi_new_kernel.txt"))
    assert len(damaged) == 18
    assert tally.repaired == 1
    assert [e._replace(line=0) for e in damaged] == [e._replace(line=0) for e in whole]
    trace = open_trace(path)
    assert rows(trace) == rows(open_trace(shared / "data/made-up/kfd_smi_new_kernel.txt"))
    assert trace.summary.repaired == 1


def test_case_6_old_kernel(shared):
    found = list(events(shared / "data/made-up/kfd_smi_old_kernel.txt"))
    assert len(found) == 15
    assert [e.error for e in found if e.id == 6] == [None] * 3
    new = list(events(shared / "data/made-up/kfd_smi_new_kernel.txt"))
    assert [e.error for e in new if e.id == 6] == [0] * 3


def test_case_6_unknown_id_is_counted_and_skipped(tmp_path):
    trace = trace_of(tmp_path, "9 1 -2 3 0\nf 5 -4242 whatever\n40 x\n2a 1\n9 2 -2 3 0\n")
    assert len(rows(trace)) == 2
    assert trace.summary.unknown == 3


def test_case_7_restored_and_rescheduled(tmp_path):
    trace = trace_of(tmp_path, "a 1 -2 3 0\na 2 -2 3 R\na 3 -2 3\n")
    assert [row[4] for row in rows(trace)] == [0, 1, 0]
    assert trace.summary.counts == {"restored": 2, "rescheduled": 1}


def test_starts_of_the_same_span_do_not_pair_twice(tmp_path):
    start, end = "5 {} -1 @10(2) 0->7 0:0 1\n", "6 {} -1 @10(2) 0->7 1 0\n"
    text = start.format(10) + start.format(20) + end.format(25) + end.format(30)
    trace = trace_of(tmp_path, text)
    parts = [(row[0], row[3], MigrateValue.unpack(row[4])) for row in rows(trace)]
    assert parts == [
        (10, 0, MigrateValue(1, None, True, False)),
        (20, 5, MigrateValue(1, 0)),
        (30, 0, MigrateValue(1, 0, False, True)),
    ]


def test_migrations_under_way_are_bounded(tmp_path):
    trace = trace_of(tmp_path, "".join(f"5 {i} -1 @{i:x}(1) 0->7 0:0 1\n" for i in range(5000)))
    found = rows(trace)
    assert [row[0] for row in found] == list(range(5000))
    assert trace.summary.counts == {"unpaired_starts": 5000}


def test_oldest_migration_is_given_up_first(tmp_path, monkeypatch):
    monkeypatch.setattr("svmcore.traces.kfd_smi._OPEN_MIGRATIONS", 2)
    starts = "".join(f"5 {i} -1 @{i:x}(1) 0->7 0:0 1\n" for i in range(3))
    trace = trace_of(tmp_path, starts + "6 9 -1 @0(1) 0->7 1\n6 9 -1 @2(1) 0->7 1\n")
    assert [(row[0], row[3]) for row in rows(trace)] == [(0, 0), (9, 0), (2, 7), (1, 0)]
    assert trace.summary.counts == {"unpaired_starts": 2, "unpaired_ends": 1}


def test_end_before_its_start_has_no_negative_duration(tmp_path):
    trace = trace_of(tmp_path, "5 20 -1 @10(2) 0->7 0:0 1\n6 10 -1 @10(2) 0->7 1 0\n")
    assert [(row[0], row[3]) for row in rows(trace)] == [(20, 0)]


def test_undefined_and_system_locations(tmp_path):
    trace = trace_of(tmp_path, "6 10 -1 @10(2) ffffffff->0 1 0\n9 1 -1 FFFFFFFF 0\n")
    assert [(row[6], row[8]) for row in rows(trace)] == [(UNKNOWN, CPU), (UNKNOWN, UNKNOWN)]
    assert trace.gpu_ids == []


def test_several_processes_are_noted(tmp_path):
    trace = trace_of(tmp_path, "9 1 -1 3 0\n9 1 -2 3 0\n")
    assert "2 processes" in trace.summary.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "7 10 -1 @10(2)",
        "7 10 -1 @10(2) X",
        "7 10 1 @10(2) R",
        "7 -1 @10(2) R",
        "6 1 -1 @10(2) 0->7 1 0 0",
        "5 1 -1 @10(2) 0->7 0 1",
        "9 18446744073709551616 -1 3 0",
        "9 1 -4294967296 3 0",
        "9 1 -1 100000000 0",
        "9 1 -1 3 4294967296",
        "5 1 -1 @10(1) 0->7 0:0 256",
        "6 1 -1 @10(1) 0->7 1 65536",
        "7 1 -1 @10000000000000(3) R",
        "b 1 -1 @fffffffffffff(2) 3 0",
        "b 1 -1 @0(10000000000000) 3 0",
        "b 1 -1 @0(10000000000001) 3 0",
        "e 1 -1 4294967296",
        "7 " + "9" * 5000 + " -1 @10(2) R",
        "41 unknown but out of the mask",
        "c 1092 a_name_of_sixteen",
    ],
)
def test_garbage_in_the_middle_names_the_line(tmp_path, line):
    trace = trace_of(tmp_path, f"9 1 -1 3 0\n{line}\n9 2 -1 3 0\n")
    with pytest.raises(TraceError, match="expected a KFD SMI event line") as caught:
        rows(trace)
    assert caught.value.where == "line 2"
    with pytest.raises(TraceError):
        list(events(trace.path))


def test_limits_of_numbers_are_accepted(tmp_path):
    trace = trace_of(
        tmp_path,
        "7 18446744073709551615 -4294967295 @fffffffffffff(fffffffe) W\n"
        "b 1 -1 @0(fffffffffffff) fffffffe 4294967295\n",
    )
    found = rows(trace)
    assert found[0][:3] == ((1 << 64) - 1, (1 << 64) - 4096, 4096)
    assert found[1][4] == 0xFFFFFFFF
    assert trace.mappings()[0][:2] == (0, 1 << 64)


def test_too_many_gpus_are_refused(tmp_path):
    trace = trace_of(tmp_path, "".join(f"9 1 -1 {i:x} 0\n" for i in range(1, 66)))
    with pytest.raises(TraceError, match="line 65: GPU id 41"):
        rows(trace)


def test_cut_last_line_is_refused_with_a_note(tmp_path):
    trace = trace_of(tmp_path, "9 1 -1 3 0\n7 10 -1 @10(")
    assert len(rows(trace)) == 1
    assert trace.summary.refused == 1
    tally = Summary()
    assert len(list(events(trace.path, tally))) == 1
    assert tally.refused == 1


def test_migrate_value_packs_and_unpacks():
    for value in (
        MigrateValue(0),
        MigrateValue(3, 0),
        MigrateValue(255, -65535, has_start=False),
        MigrateValue(1, 5, has_end=False),
    ):
        assert MigrateValue.unpack(value.pack()) == value
        assert 0 <= value.pack() < 1 << 32
    assert np.uint32(MigrateValue(255, -65535, False, False).pack()) == 0x78FFFFFF
