"""Traces of simulators: Accel-Sim, Akita, libCacheSim."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import svmcore
from svmcore.errors import TraceError
from svmcore.records import UNKNOWN, Access, Kind
from svmcore.traces import Mapping, open_trace
from svmcore.traces.libcachesim import OracleGeneralOpNsTrace, OracleGeneralTrace

TESTS = Path(__file__).parents[1]
DATA = TESTS / "data" / "traces"
LIST = TESTS / "data" / "accel_sim" / "kernelslist.g"
NONE, U = Access.UNKNOWN, UNKNOWN
PAGE = 4096


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def adds_up(trace):
    s = trace.summary
    return s.read + s.repaired + s.refused + s.unknown + s.metadata + s.comments == s.lines


# ---- Accel-Sim -----------------------------------------------------------------------

AT = 0x7F0C_B000_0000


def touch(offset, access, kernel=0):
    return (0, AT + offset, PAGE, 0, kernel, Kind.ACCESS, U, access, U)


ONE = [
    *(touch(0, Access.READ), touch(0x1000, Access.READ)),  # base and stride over two pages
    *(touch(0x200000, Access.WRITE), touch(0x400000, Access.WRITE)),  # one address a lane
    touch(0x401000, Access.WRITE),  # ... whose last 4 bytes cross into the next page
    *(touch(0x2000, Access.ATOMIC), touch(0x3000, Access.ATOMIC)),  # deltas, one backwards
    touch(0x1000, Access.ATOMIC),
]


def test_one_kernel():
    trace = open_trace(DATA / "kernel.traceg")
    assert rows(trace) == ONE
    assert dict(trace.names) == {0: "_Z6stencilPf"}
    assert trace.summary.counts == {
        "kernels": 1,
        "instructions": 6,
        "on_chip": 1,
        "thread_blocks": 1,
    }
    assert adds_up(trace)


def test_kernels_list_gives_ranges_and_accesses():
    trace = open_trace(LIST)
    assert (trace.format, trace.kind) == ("accel-sim", "access")
    mapped = [
        (0, AT, 3 * PAGE, 0, 0, Kind.MAP, U, NONE, U),  # 8192 bytes from byte 0x10 on
        (0, AT + 0x200000, 1 << 20, 0, 0, Kind.MAP, U, NONE, U),
    ]
    second = [
        touch(0x200000, Access.READ, 1),
        touch(0x201000, Access.READ, 1),
        touch(0x600000, Access.ATOMIC, 1),
    ]
    assert rows(trace) == mapped + ONE + second
    assert [m[:2] for m in trace.mappings()] == [
        (AT, 3 * PAGE),
        (AT + 0x200000, 1 << 20),
        (AT + 0x3000, PAGE),
        (AT + 0x400000, 2 * PAGE),
        (AT + 0x600000, PAGE),
    ]
    assert dict(trace.names) == {0: "_Z6stencilPf", 1: "_Z3sumPf"}
    # The generic load at the base of shared memory is left out, the MemcpyDtoH is unknown.
    assert trace.summary.counts["on_chip"] == 2
    assert trace.summary.unknown == 1
    assert trace.summary.notes == ["kernel-2.traceg has 1 of the 2 thread blocks of its grid"]
    assert adds_up(trace)


def test_a_list_is_replayed_under_any_plan():
    result = svmcore.replay(open_trace(LIST), svmcore.Space("gpu-80g", granularity=0))
    assert result.counters["faults"] == len({row[1] for row in ONE}) + 2
    assert result.counters["errors"] == 0


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(LIST.parent, tmp_path / "run"))


def test_the_digest_covers_the_kernels(folder):
    before = open_trace(folder / "kernelslist.g").digest
    assert before != open_trace(folder / "kernel-1.traceg").digest
    path = folder / "kernel-2.traceg"
    path.write_text(path.read_text().replace("0x7f0cb0600000", "0x7f0cb0700000"))
    trace = open_trace(folder / "kernelslist.g")
    assert trace.digest != before
    later = open_trace(folder / "kernelslist.g")
    rows(later)
    assert later.digest == trace.digest
    rows(later)
    assert later.digest == trace.digest
    path.write_text(path.read_text() + "\n")
    with pytest.raises(TraceError, match="a kernel trace changed"):
        rows(trace)


def test_a_list_is_never_read_from_a_copy(folder, tmp_path):
    trace = open_trace(folder / "kernelslist.g", cache=tmp_path / "cache")
    assert rows(trace)
    path = folder / "kernel-2.traceg"
    path.write_text(path.read_text().replace("0x7f0cb0600000", "0x7f0cb0700000"))
    again = open_trace(folder / "kernelslist.g", cache=tmp_path / "cache")
    assert rows(again)[-1][1] == AT + 0x700000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("kernel-9.traceg", "No such file"),
        ("../kernel-1.traceg", "beside the list"),
        ("/etc/passwd", "beside the list"),
        ("MemcpyHtoD,0x1000,0", "at least 1"),
        ("MemcpyHtoD,0xfffffffffffff000,8192", "at most 2"),
        ("MemcpyHtoD,1000,8", "expected MemcpyHtoD"),
    ],
)
def test_bad_list_lines_are_refused_by_line(folder, line, reason):
    path = folder / "kernelslist.g"
    path.write_text(f"MemcpyHtoD,0x1000,8\n{line}\nkernel-1.traceg\n")
    with pytest.raises(TraceError, match=reason) as caught:
        rows(open_trace(path, format="accel-sim"))
    assert caught.value.where == "line 2"


def test_a_list_cut_at_every_byte(folder):
    path = folder / "kernelslist.g"
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        trace = open_trace(path, format="accel-sim")
        try:
            for _ in trace.chunks():
                pass
        except TraceError:
            continue
        assert adds_up(trace)
        cut = not whole[:length].endswith(b"\n")
        assert trace.summary.refused or not cut or "no newline" in trace.summary.notes[0]


def test_a_kernel_that_ends_early_is_noted(folder):
    path = folder / "kernel-1.traceg"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b"STG" in line)
    path.write_bytes(b"".join(lines[:at]))
    trace = open_trace(path)
    assert rows(trace) == ONE[:2]
    assert "3 instructions of its last warp" in trace.summary.notes[0]
    path.write_bytes(b"".join(lines[:at]) + lines[at][:30])
    trace = open_trace(path)
    assert rows(trace) == ONE[:2]
    assert trace.summary.refused == 1


FRAME = "-kernel name = k\n#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 2\n"


def kernel(tmp_path, *lines):
    path = tmp_path / "k.traceg"
    path.write_text(FRAME + "".join(line + "\n" for line in lines))
    return open_trace(path)


@pytest.mark.parametrize(
    "bad",
    [
        "#END_TB",
        "warp = 1",
        "zz 1 0 LDG 0 4 1 0x1000 4",
        "0000 1ffffffff 0 LDG 0 4 1 0x1000 4",
        "0000 ffffffff 0 LDG 0 4 0 0x1000 0x2000",
        "0000 ffffffff 0 LDG 0 4 2 0x1000 4 4",
        "0000 ffffffff 0 LDG 0 4 3 0x1000 4",
        "0000 ffffffff 0 LDG 0 99999 1 0x1000 4",
        "0000 ffffffff -1 LDG 0 4 1 0x1000 4",
        "0000 ffffffff 9 LDG 0 4 1 0x1000 4",
        "0000 00000003 0 LDG 0 4 1 0xffffffffffffffff 4",
        "0000 00000003 0 LDG 0 4 1 0x10 -64",
        "0000 00000003 0 4 LDG 4 1 0x10 -64",
        "0000",
        "\0",
    ],
)
def test_bad_instructions_are_refused_by_line(tmp_path, bad):
    good = "0000 00000001 0 LDG 0 4 1 0x1000 4"
    with pytest.raises(TraceError, match="expected an instruction") as caught:
        rows(kernel(tmp_path, bad, good))
    assert caught.value.where == "line 6"


def test_what_no_warp_announced_is_refused(tmp_path):
    good = "0000 00000001 0 LDG 0 4 1 0x1000 4"
    with pytest.raises(TraceError, match="no instruction is due here"):
        rows(kernel(tmp_path, good, good, good))


def test_strides(tmp_path):
    trace = kernel(
        tmp_path,
        "0000 ffffffff 0 LDG 0 4 1 0x100000 8192",  # a page a lane, every second one
        "0000 f0000001 0 STG 0 8 1 0x100ff8 -4096",  # five lanes, downwards
    )
    pages = [row[1] for row in rows(trace)]
    assert pages[:32] == [0x100000 + 8192 * i for i in range(32)]
    assert pages[32:] == [0x100000 - 4096 * i for i in range(5)]


def test_kernels_across_blocks(tmp_path, monkeypatch):
    text = FRAME.replace("= 2", "= 3000") + "0000 00000001 0 LDG 0 4 1 0x1000 4\n" * 3000
    path = tmp_path / "k.traceg"
    path.write_text(text)
    (tmp_path / "list.g").write_text("k.traceg\n")
    monkeypatch.setattr("svmcore.traces.opening.BLOCK_BYTES", 1000)
    for name in ("k.traceg", "list.g"):
        trace = open_trace(tmp_path / name, format="accel-sim")
        assert len(rows(trace)) == 3000
        assert adds_up(trace)


# ---- Akita ---------------------------------------------------------------------------


def test_akita_in_order_of_time():
    trace = open_trace(DATA / "akita.sqlite")
    assert rows(trace) == [
        (1, 0x1000_0000, 64, 0, 0, Kind.ACCESS, 1, Access.READ, U),
        (2, 0x2000_0040, 64, 0, 0, Kind.ACCESS, 2, Access.WRITE, U),
        (3, 0x1000_1000, 4, 0, 0, Kind.ACCESS, U, NONE, U),
    ]
    assert trace.summary.counts == {"components": 3}
    assert "one request may be recorded by each" in trace.summary.notes[0]


def akita(tmp_path, *values):
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "CREATE TABLE memory_transactions(ID, Location, What, StartTime, EndTime, Address,"
            " ByteSize)"
        )
        connection.executemany(
            "INSERT INTO memory_transactions VALUES('x', ?, ?, ?, ?, ?, ?)", values
        )
    connection.close()
    return open_trace(path)


def test_akita_versions_count_seconds_or_picoseconds(tmp_path):
    trace = akita(
        tmp_path,
        ("GPU[7].L2", "read", 5_000, 9_000, 4096, 4),
        ("GPU_3.L2", "write", 7_999, 6_000, 8192, 4),
        ("GPU[7].L2", "read", -2e-9, 1e-9, 12288, 4),
    )
    assert [(row[0], row[6]) for row in rows(trace)] == [(0, 2), (5, 2), (7, 1)]
    assert trace.summary.counts == {"clock_back": 2, "components": 2}
    assert (trace.summary.read, trace.summary.repaired) == (2, 1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("GPU[1]", "read", "x", 1, 4096, 4), "StartTime b'x'"),
        (("GPU[1]", "read", 1, None, 4096, 4), "EndTime None"),
        (("GPU[1]", "read", 1e300, 1, 4096, 4), r"StartTime 1e\+300"),
        (("GPU[1]", None, 1, 1, 4096, 4), "What None: expected text"),
        (("GPU[1]", "read", 1, 1, None, 4), "Address None: expected an integer"),
        (("GPU[1]", "read", 1, 1, 4096, 0), "ByteSize 0"),
        (("GPU[1]", "read", 1, 1, -1, 4), "size 4"),
    ],
)
def test_bad_akita_rows_are_named(tmp_path, row, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        rows(akita(tmp_path, row))
    assert caught.value.where == "table memory_transactions, row 1"


def test_akita_of_too_many_gpus(tmp_path):
    trace = akita(tmp_path, *[(f"GPU[{i}]", "read", 1, 1, 4096, 4) for i in range(65)])
    with pytest.raises(TraceError, match="more GPUs: expected at most 64"):
        rows(trace)


# ---- libCacheSim ---------------------------------------------------------------------


def test_libcachesim_csv():
    trace = open_trace(DATA / "libcachesim.csv")
    assert rows(trace) == [
        (5633898, 42932745 * 512, 512, 0, 0x2A, Kind.ACCESS, U, Access.WRITE, U),
        (5633900, 8 * 512, 4096, 0, 0x28, Kind.ACCESS, U, Access.READ, U),
        (5633899, 16 * 512, 512, 0, 0x35, Kind.ACCESS, U, NONE, U),
    ]
    assert trace.summary.counts == {"times_back": 1}


@pytest.mark.parametrize(
    "bad",
    ["1,2,2a,512", "1,2,zz,512,7", "1,2,2a,0,7", f"1,2,2a,512,{1 << 55}", "1,2,2a,512,7,", "\0"],
)
def test_bad_csv_rows_are_refused_by_line(tmp_path, bad):
    path = tmp_path / "t"
    path.write_text(f"version,time,op,size,lbn\n1,2,28,512,8\n{bad}\n1,2,28,512,8\n")
    with pytest.raises(TraceError, match="expected") as caught:
        rows(open_trace(path))
    assert caught.value.where == "line 3"


def oracle(tmp_path, requests, dtype=OracleGeneralTrace.entry, form=None):
    entries = np.array(requests, dtype)
    path = tmp_path / "t.dat"
    path.write_bytes(entries.tobytes())
    return open_trace(path, format=form)


@pytest.mark.parametrize("form", ["oracle_general", "oracle_general_opns"])
def test_oracle_general(form):
    trace = open_trace(DATA / f"{form}.dat")
    assert trace.confidence == 0.95
    value = 1 | 3 << 8 if form.endswith("opns") else 0
    second = 1_000_000_000
    assert rows(trace) == [
        (100 * second, 7 * PAGE, 4096, 0, value, Kind.ACCESS, U, NONE, U),
        (100 * second, 9 * PAGE, 8192, 0, value, Kind.ACCESS, U, NONE, U),
        (101 * second, 7 * PAGE, 4096, 0, value, Kind.ACCESS, U, NONE, U),
        (101 * second, 0, 8192, 0, value, Kind.ACCESS, U, NONE, U),
        (102 * second, 9 * PAGE, 4096, 0, value, Kind.ACCESS, U, NONE, U),
        (102 * second, 12 * PAGE, 1, 0, value, Kind.ACCESS, U, NONE, U),
    ]
    s = trace.summary
    # As many requests without a next one as objects.
    assert s.counts == {"last_requests": 4, "folded_ids": 1, "zero_sizes": 1}
    assert (s.read, s.repaired) == (4, 2)


def reused(n, distance=False):
    """Requests in turn to 5 objects; the last field an index, or the FAQ's distance."""
    return [
        (i // 3, 100 + i % 5, 4096, -1 if i + 5 >= n else 5 if distance else i + 6)
        for i in range(n)
    ]


def test_the_next_request_is_an_index_and_a_distance_is_noted(tmp_path):
    trace = oracle(tmp_path, reused(50))
    assert trace.confidence == 0.95
    assert trace.summary.counts == {"last_requests": 5}
    trace = oracle(tmp_path, reused(50, distance=True))
    assert trace.confidence == 0.95
    assert trace.summary.counts == {"last_requests": 5, "other_next": 41}
    assert "they may be distances" in trace.summary.notes[0]


def test_requests_that_never_come_again_are_recognised_modestly(tmp_path):
    trace = oracle(tmp_path, [(i, i, 1, -1) for i in range(9)])
    assert (trace.format, trace.confidence) == ("oracle-general", 0.3)
    # The end mark of some writers.
    trace = oracle(tmp_path, [(i, i, 1, (1 << 63) - 1) for i in range(9)])
    assert trace.summary.counts == {"last_requests": 9}


@pytest.mark.parametrize("later", [0, -2, 1 << 48])
def test_what_is_no_index_is_refused(tmp_path, later):
    trace = oracle(tmp_path, [(1, 2, 3, 2), (1, 2, 3, later)], form="oracle-general")
    with pytest.raises(TraceError, match="expected -1 or the number") as caught:
        rows(trace)
    assert caught.value.where == "entry 1"


def test_the_other_byte_order_is_refused(tmp_path):
    big = OracleGeneralTrace.entry.newbyteorder(">")
    path = tmp_path / "t"
    path.write_bytes(np.array(reused(50), big).tobytes())
    with pytest.raises(TraceError, match="not recognised"):
        open_trace(path)
    with pytest.raises(TraceError, match="little-endian"):
        rows(open_trace(path, format="oracle-general"))


def test_an_object_at_the_end_of_the_address_space(tmp_path):
    last = (1 << 52) - 1
    trace = oracle(tmp_path, [(1, last, 4096, -1)], form="oracle-general")
    assert rows(trace)[0][1] == last * PAGE
    with pytest.raises(TraceError, match="expected an end of at most") as caught:
        rows(oracle(tmp_path, [(1, 1, 1, -1), (1, last, 4097, -1)], form="oracle-general"))
    assert caught.value.where == "entry 1"


@pytest.mark.parametrize("dtype", [OracleGeneralTrace.entry, OracleGeneralOpNsTrace.entry])
def test_long_traces_and_chunks_alike(tmp_path, dtype):
    n = 150_000
    entries = np.zeros(n, dtype)
    entries["time"] = np.arange(n) // 1000
    entries["id"], entries["size"] = np.arange(n) % 977, 4096
    entries["next"] = np.where(np.arange(n) + 977 < n, np.arange(n) + 978, -1)
    entries["time"][100_000] = 0
    path = tmp_path / "t"
    path.write_bytes(entries.tobytes() + b"\1" * 5)
    trace = open_trace(path)
    whole = np.concatenate(list(trace.chunks()))
    assert np.array_equal(whole["addr"], entries["id"] * PAGE)
    assert np.array_equal(np.concatenate(list(trace.chunks(12345))), whole)
    assert trace.summary.counts == {"last_requests": 977, "times_back": 1}
    assert (trace.summary.refused, trace.summary.lines) == (1, n + 1)
    assert trace.mappings() == [Mapping(0, 977 * PAGE, "touched0")]
