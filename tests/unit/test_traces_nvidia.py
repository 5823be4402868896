"""Nsight Systems exports, the UVM tools event queue, and chunk traces."""

import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import TraceError
from svmcore.records import CPU, UNKNOWN, Access, Kind
from svmcore.traces import Mapping, open_trace
from svmcore.traces.kfd_smi import MigrateValue
from svmcore.traces.nsys import pid_of
from svmcore.traces.nvidia import cause_of, migrate_values

DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN
BASE, BLOCK = 0x7E12_0000_0000, 2 << 20
PID = (1 << 48) | (4242 << 24)


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def adds_up(trace):
    s = trace.summary
    return s.read + s.repaired + s.refused + s.unknown + s.metadata + s.comments == s.lines


def moved(trigger, cause):
    return trigger | cause << 8


# ---- Nsight Systems ------------------------------------------------------------------


def test_nsys_rows_in_order_of_time():
    trace = open_trace(DATA / "nsys.sqlite")
    page = 4096
    assert rows(trace) == [
        (10, BASE, BLOCK, 0, 0, Kind.MAP, U, NONE, U),
        (100, BASE, page, 0, 0, Kind.FAULT, CPU, NONE, U),
        (500, BASE, page, 400, 8, Kind.FAULT, 1, Access.READ, U),
        (510, BASE + BLOCK, page, 0, 2, Kind.FAULT, 2, Access.WRITE, U),
        (520, BASE + 0x3000, page, 10, 1, Kind.FAULT, 1, NONE, U),
        (600, BASE, page, 50, moved(1, 2), Kind.MIGRATE, CPU, NONE, 1),
        (610, BASE + page, 61440, 50, moved(0, 3), Kind.MIGRATE, CPU, NONE, 1),
        (700, BASE, 65536, 30, moved(2, 2), Kind.MIGRATE, 1, NONE, CPU),
        (710, 0, 0, 10, moved(3, 4), Kind.MIGRATE, 1, NONE, CPU),
        (720, BASE + BLOCK, page, 20, moved(1, 5), Kind.MIGRATE, 1, NONE, 2),
        (990, BASE, BLOCK, 0, 0, Kind.UNMAP, U, NONE, U),
    ]
    assert trace.mappings() == [
        Mapping(BASE, BLOCK, "managed0"),
        Mapping(BASE + BLOCK, 4096, "touched0"),
    ]
    assert trace.summary.counts == {
        "explicit_copies": 1,
        "other_allocations": 1,
        "clock_back": 1,
        "unknown_access": 1,
        "migrations_without_address": 1,
        "bytes_without_address": BLOCK,
    }
    assert (trace.summary.read, trace.summary.repaired, trace.summary.unknown) == (10, 1, 1)


def nsys(tmp_path, *statements):
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE StringIds(id INTEGER, value TEXT)")
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return open_trace(path, format="nsys")


GPU = (
    "CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS(start, end, globalPid, deviceId, address,"
    " numberOfPageFaults, faultAccessType)"
)
CPU_FAULTS = "CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS(start, globalPid, address)"
COPY = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start, end, deviceId, bytes, copyKind,"
    " migrationCause, virtualAddress)"
)
USAGE = (
    "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS(start, globalPid, address, bytes, memKind,"
    " memoryOperationType)"
)


def gpu_fault(*values):
    return f"INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS VALUES({', '.join(map(str, values))})"


def test_a_missing_table_means_no_such_events(tmp_path):
    trace = nsys(tmp_path)
    assert rows(trace) == []
    assert trace.mappings() == []
    assert trace.summary.lines == 0


def test_newer_and_older_columns(tmp_path):
    trace = nsys(
        tmp_path,
        CPU_FAULTS,
        "ALTER TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS ADD COLUMN sourceFile",
        "INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES(7, 1, 8193, NULL)",
        COPY,
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(8, 9, 2, 64, 12, NULL, 8192)",
    )
    assert rows(trace) == [
        (7, 8192, 4096, 0, 0, Kind.FAULT, CPU, NONE, U),
        (8, 8192, 64, 1, 0, Kind.MIGRATE, 3, NONE, CPU),
    ]
    assert trace.summary.counts == {"unknown_cause": 1}


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        # The schema of the notes that nobody should trust.
        (
            ["CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS(start, pc, accessCount, accessKind)"],
            "no column end, globalPid, deviceId, address",
        ),
        ([GPU, gpu_fault(1, 2, PID, 0, "'x'", 1, 1)], r"row 1: addr b'x': expected an integer"),
        ([GPU, gpu_fault(1, 2, PID, 0, "NULL", 1, 1)], "address NULL"),
        ([GPU, gpu_fault(1.5, 2, PID, 0, 0, 1, 1)], r"start 1.5: expected an integer"),
        ([GPU, gpu_fault(1, 2, PID, 64, 0, 1, 1)], "device 64: expected 0 to 63"),
        ([GPU, gpu_fault(1, 2, PID, -1, 0, 1, 1)], "device -1"),
        (
            [COPY, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(8, 9, 2, 0, 12, 2, 8192)"],
            "bytes of 0 or less: expected at least 1",
        ),
        (
            [COPY, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(8, 9, 2, 8192, 12, 2, -4096)"],
            "row 1: size",
        ),
        (
            [
                USAGE,
                "CREATE TABLE ENUM_CUDA_MEM_KIND(id, name)",
                "INSERT INTO ENUM_CUDA_MEM_KIND VALUES(4, 'CUDA_MEM_KIND_MANAGED')",
                "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES(1, 1, 4096, 64, 4, 7)",
            ],
            "memoryOperationType: expected 0 or 1",
        ),
    ],
)
def test_bad_rows_name_table_and_row(tmp_path, statements, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        rows(nsys(tmp_path, *statements))
    assert caught.value.where.startswith("table CU")


def test_managed_memory_is_asked_of_the_enum_table(tmp_path):
    enum = "CREATE TABLE ENUM_CUDA_MEM_KIND(id, name, label)"
    rows_of = [
        f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES({t}, {PID}, {4096 * t}, 4096, {k}, 0)"
        for t, k in ((1, 4), (2, 9), (3, 11))
    ]
    kinds = "INSERT INTO ENUM_CUDA_MEM_KIND VALUES(4, 'X', 'Array'), (9, 'Y', 'Managed'),"
    kinds += " (11, 'MANAGED_STATIC', NULL)"
    trace = nsys(tmp_path, USAGE, enum, kinds, *rows_of)
    assert [row[1] for row in rows(trace)] == [8192, 12288]
    assert trace.summary.counts == {"other_allocations": 1}
    assert trace.summary.metadata == 1


def test_allocations_without_the_enum_table_are_noted(tmp_path):
    insert = f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES(1, {PID}, 4096, 4096, 4, 0)"
    trace = nsys(tmp_path, USAGE, insert)
    assert rows(trace) == []
    assert adds_up(trace)
    assert "no ENUM_CUDA_MEM_KIND" in trace.summary.notes[0]


def test_negative_times_and_several_processes(tmp_path):
    other = (1 << 48) | (77 << 24)
    trace = nsys(
        tmp_path,
        GPU,
        gpu_fault(-5, 3, PID, 0, 4096, 1, 3),
        gpu_fault(4, 9, other, 0, -(1 << 47), 1, 4),
    )
    top = (1 << 64) - (1 << 47)
    assert rows(trace) == [
        (0, 4096, 4096, 0, 1, Kind.FAULT, 1, Access.ATOMIC, U),
        (4, top, 4096, 5, 1, Kind.FAULT, 1, Access.PREFETCH, U),
    ]
    assert trace.summary.counts == {"clock_back": 1}
    assert trace.summary.notes[0].startswith("2 processes")
    assert pid_of(PID) == 4242


def test_many_rows_do_not_depend_on_the_chunk(tmp_path):
    insert = (
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
        "INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS SELECT (i * 7919) % 20001, 30000, 1, 0, "
        "i * 4096, 1, 1 FROM n"
    )
    trace = nsys(tmp_path, GPU, insert)
    whole = np.concatenate(list(trace.chunks()))
    assert len(whole) == 20001
    assert (np.diff(whole["t_ns"].astype(np.int64)) == 1).all()
    assert np.array_equal(np.concatenate(list(trace.chunks(777))), whole)


def test_made_up_export(shared):
    trace = open_trace(shared / "data/made-up/nsys_um.sqlite")
    assert (trace.format, trace.kind, trace.confidence) == ("nsys", "fault", 1.0)
    assert rows(trace)[2] == (500000, 140399326789632, 4096, 58656, 8, Kind.FAULT, 1, 0, U)
    assert trace.summary.kinds == {"fault": 4, "migrate": 4}
    assert trace.summary.read == trace.summary.lines == 8


def test_causes_in_both_vocabularies():
    cause = np.array([0, 1, 2, 2, 3, 4, 5])
    values = migrate_values(cause, np.array([1, 1, 1, CPU, 1, CPU, 1])).tolist()
    assert [MigrateValue.unpack(v).trigger for v in values] == [0, 0, 1, 2, 0, 3, 1]
    assert all(MigrateValue.unpack(v).error is None for v in values)
    assert [cause_of(v) for v in values[2:]] == [
        *("coherence", "coherence", "prefetch", "eviction", "access_counters"),
    ]
    assert cause_of(200 << 8) == "200"


# ---- SQLite in general ---------------------------------------------------------------


def test_a_database_of_something_else_is_refused(tmp_path):
    path = tmp_path / "t"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE music(song)")
    connection.close()
    with pytest.raises(TraceError, match="not recognised"):
        open_trace(path)
    for form, expected in (
        ("nsys", "Nsight Systems"),
        ("rocpd", "rocpd_event"),
        ("akita", "memory_transactions"),
    ):
        with pytest.raises(TraceError, match=f"music: expected .*{expected}"):
            rows(open_trace(path, format=form))


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_database_with_newer_rows_beside_it_is_refused(tmp_path, suffix):
    path = tmp_path / "t?#%.sqlite"
    path.write_bytes((DATA / "nsys.sqlite").read_bytes())
    assert len(rows(open_trace(path))) == 11  # a name that a URI must quote
    path.with_name(path.name + suffix).write_bytes(b"x")
    with pytest.raises(TraceError, match="expected one that its writer has closed"):
        rows(open_trace(path))


def test_damage_in_the_middle_of_a_database_is_refused(tmp_path):
    whole = (DATA / "nsys.sqlite").read_bytes()
    path = tmp_path / "t"
    refused = 0
    for page in range(1, len(whole) // 512):
        path.write_bytes(whole[: page * 512] + b"\0" * 512 + whole[(page + 1) * 512 :])
        try:
            rows(open_trace(path, format="nsys"))
        except TraceError:
            refused += 1
    assert refused >= 5  # the others hold what is not read


def test_a_huge_text_in_a_row_is_refused(tmp_path):
    trace = nsys(tmp_path, GPU, gpu_fault("zeroblob(20000000)", 2, PID, 0, 1, 1, 1))
    with pytest.raises(TraceError, match="too big"):
        rows(trace)


# ---- UVM tools -----------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_tools_events(version):
    trace = open_trace(DATA / f"uvm_tools_v{version}.dat")
    assert trace.format == f"uvm-tools-v{version}"
    assert rows(trace) == [
        (1000, BASE, 4096, 0, 0, Kind.FAULT, CPU, Access.WRITE, U),
        (2000, BASE, 4096, 0, 5, Kind.FAULT, 1, Access.WRITE, U),
        (2000, 0, 0, 0, 4, Kind.OTHER, U, NONE, U),
        (2100, BASE, 65536, 400, moved(1, 2), Kind.MIGRATE, CPU, NONE, 2),
        (3000, BASE + BLOCK, BLOCK, 0, 0, Kind.EVICT, 1, NONE, CPU),
        (3000, 0, 0, 0, 5, Kind.OTHER, U, NONE, U),
    ]
    assert trace.summary.counts == {"fault_replay": 1, "fault_buffer_overflow": 1}
    assert (trace.summary.read, trace.summary.unknown) == (6, 1)
    assert trace.summary.notes == ["overflows of the fault buffer: 1; faults are missing here"]


def entry(kind, *fields, size=64):
    raw = bytearray(size)
    raw[0] = kind
    for offset, form, value in fields:
        struct.pack_into("<" + form, raw, offset, value)
    return bytes(raw)


def gpu(addr=BASE, time=5, access=1, index=1, size=64):
    return entry(3, (2, "B", access), (3, "B", index), (8, "Q", addr), (16, "Q", time), size=size)


def migration(size=4096, begin=5, end=9, cause=2, src=0, dst=1):
    return entry(
        2,
        *((1, "B", cause), (2, "B", src), (3, "B", dst), (8, "Q", BASE)),
        *((16, "Q", size), (24, "Q", begin), (32, "Q", end)),
    )


def tools(tmp_path, *entries, form="uvm-tools-v1"):
    path = tmp_path / "t"
    path.write_bytes(b"".join(entries))
    return open_trace(path, format=form)


def test_unknown_types_are_counted(tmp_path):
    trace = tools(tmp_path, gpu(), entry(63), entry(15, (8, "Q", 1)), bytes(64), gpu())
    assert len(rows(trace)) == 2
    assert (trace.summary.read, trace.summary.unknown) == (2, 3)


def test_a_clock_that_goes_back_is_repaired(tmp_path):
    trace = tools(tmp_path, migration(begin=50, end=10), gpu(time=7), migration())
    assert [(row[0], row[3]) for row in rows(trace)] == [(50, 0), (7, 0), (5, 4)]
    assert trace.summary.counts == {"clock_back": 1}
    assert (trace.summary.read, trace.summary.repaired) == (2, 1)


def test_the_cpu_of_older_drivers(tmp_path):
    trace = tools(tmp_path, migration(src=0xFF), migration(src=1, dst=0xFF, cause=4))
    assert [(row[6], row[8]) for row in rows(trace)] == [(CPU, 1), (1, CPU)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (gpu(access=5), "known access or cause"),
        (gpu(index=65), "one of 64 GPUs"),
        (migration(cause=6), "known access or cause"),
        (migration(size=0), "a size of 1 to"),
        (migration(size=1 << 50), "a size of 1 to"),
        (gpu(time=1 << 63), "a time below"),
        (migration(end=1 << 63), "a time below"),
        (entry(0, (8, "Q", BASE)), "event type 0 .* a type of 1 to 14 in entries of 64"),
    ],
)
def test_entries_that_are_none_are_refused_by_number(tmp_path, bad, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        rows(tools(tmp_path, gpu(), bad))
    assert caught.value.where == "entry 1"


def test_the_other_byte_order_is_refused(tmp_path):
    # Its times are so large that one in two is no time; a queue of a few events has one.
    swapped = [
        raw[:8] + b"".join(raw[i : i + 8][::-1] for i in range(8, 64, 8))
        for raw in (migration(begin=1000 + i, end=1255 + i) for i in range(9))
    ]
    path = tmp_path / "t"
    path.write_bytes(b"".join(swapped))
    with pytest.raises(TraceError, match="not recognised"):
        open_trace(path)
    with pytest.raises(TraceError, match="little-endian"):
        rows(open_trace(path, format="uvm-tools-v1"))


def test_an_entry_that_is_cut_off(tmp_path):
    trace = tools(tmp_path, gpu(), gpu()[:40])
    assert len(rows(trace)) == 1
    assert (trace.summary.read, trace.summary.refused, trace.summary.lines) == (1, 1, 2)
    assert trace.summary.notes[0].startswith("entry 1 is cut off (40 of 64 bytes)")
    with pytest.raises(TraceError, match="10 bytes: expected entries of 64"):
        rows(tools(tmp_path, gpu()[:10]))


def test_a_ring_that_nobody_wrote_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no event in it"):
        rows(tools(tmp_path, bytes(640)))


def test_long_queues_keep_the_time_across_blocks(tmp_path):
    trace = tools(tmp_path, gpu(time=9) * 65536, entry(4) * 2)
    assert [row[0] for row in rows(trace)[-2:]] == [9, 9]


# ---- chunk traces --------------------------------------------------------------------

HEADER = (
    "time_ms,hook_type,pid,owner_pid,va_space,cpu,chunk_addr,list_addr,va_block,va_start,"
    "va_end,va_page_index\n"
)


def chunk_trace(tmp_path, text, header=HEADER):
    path = tmp_path / "t.csv"
    path.write_text(header + text)
    return open_trace(path, format="chunk-trace")


def line(time="5", hook="POPULATE", owner="42", start="0x200000", end="0x3fffff", index="3"):
    return f"{time},{hook},9,{owner},0x1,3,0x2,0x3,0x4,{start},{end},{index}\n"


def test_chunk_trace():
    trace = open_trace(DATA / "chunk_trace.csv")
    assert rows(trace) == [
        (0, BASE, 4096, 0, 1, Kind.OTHER, U, NONE, U),
        (1_000_000, BASE + 16 * 4096, 4096, 0, 0, Kind.FAULT, U, NONE, U),
        (2_000_000, BASE + BLOCK + 511 * 4096, 4096, 0, 0, Kind.FAULT, U, NONE, U),
        (7_000_000, 0, 0, 0, 0, Kind.EVICT, U, NONE, U),
    ]
    # The end is inclusive: two blocks side by side are one mapping.
    assert trace.mappings() == [Mapping(BASE, 2 * BLOCK, "block0")]
    assert trace.summary.counts == {"evictions_without_address": 1}


def test_the_later_variant_has_nanoseconds_and_another_hook():
    trace = open_trace(DATA / "chunk_trace_ns.csv")
    assert rows(trace) == [
        (1000, BASE + 4096, 4096, 0, 0, Kind.FAULT, U, NONE, U),
        (900, 0, 0, 0, 0, Kind.EVICT, U, NONE, U),
    ]
    assert trace.summary.counts == {"evictions_without_address": 1, "times_back": 1}
    assert trace.summary.unknown == 1


def test_times_with_a_fraction_and_two_processes(tmp_path):
    trace = chunk_trace(tmp_path, line(time="1.25") + line(time="2.000001", owner="43"))
    assert [row[0] for row in rows(trace)] == [1_250_000, 2_000_001]
    assert trace.summary.notes[0].startswith("2 processes")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line(index="512"), "page 512 of 0x200000 to 0x3fffff"),
        (line(end="0x1fffff"), "expected one inside"),
        (line(start=""), "expected two 0x addresses"),
        (line(start="0x" + "f" * 17), "expected two 0x addresses"),
        (line(time="-1"), "expected a decimal number"),
        (line(time="99999999999999999999"), "at most 64 bits"),
        (line().replace(",3,", ","), "11 fields: expected 12"),
        ("\0\n", "1 fields: expected 12"),
    ],
)
def test_bad_chunk_lines_are_refused_by_line(tmp_path, bad, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        rows(chunk_trace(tmp_path, line() + bad + line()))
    assert caught.value.where == "line 3"


def test_a_chunk_trace_needs_its_header(tmp_path):
    with pytest.raises(TraceError, match="expected a header with time_ms") as caught:
        rows(chunk_trace(tmp_path, line(), header=""))
    assert caught.value.where == "line 1"


def test_made_up_chunk_trace(shared):
    trace = open_trace(shared / "data/made-up/chunk_trace.csv")
    assert trace.mappings() == [Mapping(0x7FB144000000, BLOCK, "block0")]
    assert trace.summary.kinds == {"fault": 1, "evict": 1, "other": 1}


# ---- binary fault logs ---------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, 1])
def test_binary_log(mode):
    trace = open_trace(DATA / f"uvm_binary_{mode}.dat")
    times = (0, 1000, 1001, 1001, 1003, 1003) if mode == 0 else (0,) * 6
    access = (NONE, Access.READ, Access.WRITE, NONE, Access.ATOMIC, NONE)
    access = access if mode == 0 else (NONE,) * 6
    expected = [
        (BASE, 0x4000, Kind.MAP, U),
        (BASE, 4096, Kind.FAULT, U),
        (BASE + 4096, 4096, Kind.FAULT, U),
        (BASE + 8192, 4096, Kind.MIGRATE, CPU),
        (BASE + BLOCK, 4096, Kind.FAULT, U),
        (BASE, 4096, Kind.EVICT, U),
    ]
    assert rows(trace) == [
        (t, addr, size, 0, 0, kind, proc, how, U)
        for t, how, (addr, size, kind, proc) in zip(times, access, expected, strict=True)
    ]
    assert trace.mappings() == [
        Mapping(BASE, 0x4000, "range0"),
        Mapping(BASE + BLOCK, 4096, "touched0"),
    ]
    assert adds_up(trace)


def binary(tmp_path, mode, body, name=b"node7"):
    path = tmp_path / "t"
    path.write_bytes(bytes([mode, len(name)]) + name + body)
    return open_trace(path, format="uvm-binary")


def raw(kind=0, addr=BASE, time=5, access=1):
    return struct.pack("<QQH12B2x", addr, time, 1, 1, access, *[0] * 9, kind)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (raw(access=5), "access of 0 to 4"),
        (raw(time=1 << 63), "time below"),
        (raw(3, time=0), "range of 1 byte"),
        (raw(3, addr=(1 << 64) - 1, time=2), "range of 1 byte"),
    ],
)
def test_bad_binary_entries_are_refused_by_number(tmp_path, bad, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        rows(binary(tmp_path, 0, raw() + bad))
    assert caught.value.where == "entry 1"


def test_unknown_and_cut_binary_entries(tmp_path):
    trace = binary(tmp_path, 0, raw() + raw(9) + raw()[:31])
    assert len(rows(trace)) == 1
    s = trace.summary
    assert (s.lines, s.read, s.unknown, s.refused) == (3, 1, 1, 1)
    trace = binary(tmp_path, 1, struct.pack("<3Q", BASE, 7 << 56, 3 << 56 | BASE))
    assert len(rows(trace)) == 1
    s = trace.summary
    assert (s.lines, s.read, s.unknown, s.refused) == (3, 1, 1, 1)


@pytest.mark.parametrize("name", [b"", b"\xff\xfe", b"a\nb"])
def test_a_host_without_a_name_is_refused(tmp_path, name):
    with pytest.raises(TraceError, match="expected mode 0 or 1, a length and a host's name"):
        rows(binary(tmp_path, 0, raw(), name))


def test_ranges_across_blocks_of_words(tmp_path):
    # A length that looks like a range is none.
    pair = [3 << 56 | BASE, 3 << 56]
    words = [BASE] * 65535 + pair + [BASE + 4096] + pair
    trace = binary(tmp_path, 1, struct.pack(f"<{len(words)}Q", *words))
    found = rows(trace)
    assert [row[5] for row in found[-3:]] == [Kind.MAP, Kind.FAULT, Kind.MAP]
    assert len(found) == 65538
    assert trace.summary.read == trace.summary.lines == len(words)


@pytest.mark.parametrize("mode", [0, 1])
def test_made_up_binary_logs(shared, mode):
    trace = open_trace(shared / f"data/made-up/hpcs_mode{mode}.bin")
    assert (trace.format, trace.confidence) == ("uvm-binary", 0.9)
    assert trace.summary.kinds == {"map": 1, "fault": 4, "migrate": 12, "evict": 1}
    assert trace.mappings() == [Mapping(0x7FB144000000, 4 << 20, "range0")]
