"""What the CPU of a machine did: perf script, ftrace and valgrind's lackey."""

import lzma
import time
from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import TraceError
from svmcore.records import CPU, RECORD, UNKNOWN, Access, Kind
from svmcore.traces import open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN
PAGE = 4096


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def of_text(tmp_path, text, form):
    path = tmp_path / "t"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return open_trace(path, format=form)


def fault(t_ns, page, value=0, access=NONE):
    return (t_ns, page, PAGE, 0, value, Kind.FAULT, CPU, access, U)


# ---- perf script ---------------------------------------------------------------------


def test_perf_lines():
    trace = open_trace(DATA / "perf.txt")
    ns = 834_010_000_000
    assert rows(trace) == [
        fault(ns + 368_000, 0x55D694B35000),
        fault(ns + 417_000, 0x7F45833B0000),
        fault(ns + 431_000, 0x7FEF785D3000, 0x14, Access.READ),  # an instruction fetch
        fault(ns + 446_000, 0x7FEF785EC000, 0x6, Access.WRITE),
        (ns + 460_000, 0, 0, 0, 12, Kind.OTHER, U, NONE, U),
    ]
    # One address was printed as a symbol; one event is of another kind.
    s = trace.summary
    assert s.counts == {"symbol_addresses": 1, "pages_migrated": 12, "pages_not_migrated": 1}
    assert (s.lines, s.read, s.refused, s.unknown) == (7, 5, 1, 1)
    assert s.notes[0].startswith("1 fault with a symbol for an address left out")


PERF = "a 1/2 5.000001: page-faults: 1000 ffff\n"
TRACE = "a 1 [000] 5.000001: exceptions:page_fault_user: address=0x1fff ip=0x2 error_code=0x7\n"


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (PERF, fault(5_000_001_000, 0x1000)),
        ("a 1/2 5.000000001: page-faults: 1000 ffff main+0x5 (/bin/a)", fault(5_000_000_001, 4096)),
        ("a 1 5.1: 1 minor-faults:u: FFF0 1", fault(5_100_000_000, 0xF000)),
        ("a b c 1/2 [003] 5.000001: major-faults: 1000", fault(5_000_001_000, 0x1000)),
        (TRACE, fault(5_000_001_000, 0x1000, 7, Access.WRITE)),
        (TRACE.replace("0x7", "0x5"), fault(5_000_001_000, 0x1000, 5, Access.READ)),
        (
            TRACE.replace("user", "kernel").replace("a 1", "kworker/u8:2 1"),
            fault(5_000_001_000, 0x1000, 7, Access.WRITE),
        ),
        (
            "a 1 [000] 5.000001: PERF_RECORD_LOST lost 9",
            (5_000_001_000, 0, 0, 0, 9, Kind.DROPPED, U, NONE, U),
        ),
    ],
)
def test_perf_forms(tmp_path, line, row):
    # Alone, among its like, and among others: the fast and the careful way give the same.
    assert rows(of_text(tmp_path, line, "perf-script")) == [row]
    assert rows(of_text(tmp_path, (line.rstrip() + "\n") * 3, "perf-script")) == [row] * 3
    mixed = line.rstrip() + "\r\n# note\n\n" + line
    assert rows(of_text(tmp_path, mixed, "perf-script")) == [row] * 2


@pytest.mark.parametrize("line", [PERF, TRACE])
def test_perf_times_that_go_back_and_wrap(tmp_path, line):
    times = ("5.000002", "5.000001", "9999999999.999999", "0.000000")
    text = "".join(line.replace("5.000001", t) for t in times)
    fast, slow = (of_text(tmp_path, t, "perf-script") for t in (text, text + "# note\n"))
    assert [row[0] for row in rows(slow)] == [
        5_000_002_000,
        5_000_001_000,
        9_999_999_999_999_999_000,
        0,
    ]
    path = tmp_path / "t"
    path.write_text(text)
    fast = open_trace(path)
    assert [row[0] for row in rows(fast)][2:] == [9_999_999_999_999_999_000, 0]
    assert fast.summary.counts == slow.summary.counts == {"times_back": 2}


@pytest.mark.parametrize(
    "bad",
    [
        "garbage",
        PERF.replace("5.000001", "5"),
        PERF.replace("5.000001", "55555555555.000001"),
        PERF.replace("5.000001", "5.0000000001"),
        PERF.replace(" 1000", " 10001000100010001000"),
        PERF.replace(" 1000", " 10\x0000"),
        TRACE.replace("error_code=0x7", "error_code="),
        TRACE.replace("0x7", "0x1ffffffff"),
        "a" * 5000 + " 1/2 5.000001: page-faults: 1000 ffff",
        "1 " * 5000,
    ],
)
def test_bad_perf_lines_are_refused_by_line(tmp_path, bad):
    with pytest.raises(TraceError, match="expected") as caught:
        rows(of_text(tmp_path, f"{PERF}{bad.rstrip()}\n{PERF}", "perf-script"))
    assert caught.value.where == "line 2"


def test_long_lines_take_no_time(tmp_path):
    started = time.perf_counter()
    for form in ("perf-script", "ftrace"):
        for text in (" " * 900_000, "1 " * 450_000, "a-1 [0] " * 100_000, "1.1: " * 150_000):
            with pytest.raises(TraceError):
                rows(of_text(tmp_path, text + "x\n", form))
    assert time.perf_counter() - started < 5


def test_real_perf_files(shared):
    folder = shared / "data/local-cpu"
    plain = open_trace(folder / "stencil.perf_page-faults.txt")
    traced = open_trace(folder / "stencil.perf_exceptions_page_fault_user.txt")
    for trace, number in ((plain, 566), (traced, 563)):
        assert (trace.format, trace.kind) == ("perf-script", "fault")
        assert trace.confidence > 0.9
        assert trace.summary.read == trace.summary.lines == number
        assert trace.summary.kinds == {"fault": number}
    # Two arrays of 1 MiB are touched page by page.
    assert sum(m.size >= 1 << 20 for m in plain.mappings()) == 2
    access = np.concatenate(list(traced.chunks()))["access"]
    assert {int(code) for code in access} == {Access.READ, Access.WRITE}


# ---- ftrace --------------------------------------------------------------------------


def test_ftrace_lines():
    trace = open_trace(DATA / "ftrace.txt")
    ns = 832_703_000_000
    assert rows(trace) == [
        fault(ns + 666_000, 0x7FEF785D3000, 0x14, Access.READ),
        fault(ns + 675_000, 0x7FEF785EC000, 0x6, Access.WRITE),
        (ns + 675_000, 0, 0, 0, 17, Kind.DROPPED, U, NONE, U),
        fault(ns + 680_000, 0x7FEF785B9000, 0x3, Access.WRITE),
        (ns + 684_000, 0, 0, 0, 4, Kind.OTHER, U, NONE, U),
    ]
    s = trace.summary
    assert (s.lines, s.read, s.refused, s.unknown, s.comments) == (11, 5, 1, 1, 4)
    assert s.counts["dropped_events"] == 17


FTRACE = "a-b-7 [000] d..1. 5.000001: page_fault_user: address=0x1fff ip=0x2 error_code=0x4\n"


@pytest.mark.parametrize(
    "line",
    [
        FTRACE,
        FTRACE.replace("a-b-7", "<...>-7"),
        FTRACE.replace("d..1. ", ""),  # trace-cmd report
        FTRACE.replace(" [000]", " (  77) [000]"),
        FTRACE.replace("user", "kernel"),
    ],
)
def test_ftrace_forms(tmp_path, line):
    row = fault(5_000_001_000, 0x1000, 4, Access.READ)
    assert rows(of_text(tmp_path, line * 3, "ftrace")) == [row] * 3
    assert rows(of_text(tmp_path, "cpus=8\n" + line, "ftrace")) == [row]


NO_NAME = FTRACE.lstrip().replace("a-b-7", "-7")
TAB = FTRACE.replace("a-b-7", "a-7").replace("d..1. ", "d.\t1. ")


@pytest.mark.parametrize(
    "bad", ["garbage", FTRACE.replace("-7 ", " "), FTRACE[:40], "\0", NO_NAME, TAB]
)
def test_bad_ftrace_lines_are_refused_by_line(tmp_path, bad):
    # Alone, too: then every line is for compiled code.
    with pytest.raises(TraceError, match="line 1"):
        rows(of_text(tmp_path, f"{bad.rstrip()}\n", "ftrace"))
    with pytest.raises(TraceError, match="expected 'TASK-PID") as caught:
        rows(of_text(tmp_path, f"{FTRACE}{bad.rstrip()}\n{FTRACE}", "ftrace"))
    assert caught.value.where == "line 2"


# ---- lackey --------------------------------------------------------------------------


def test_lackey_lines():
    trace = open_trace(DATA / "lackey.txt")

    def touch(addr, size, access, value=0):
        return (0, addr, size, 0, value, Kind.ACCESS, CPU, access, U)

    assert rows(trace) == [
        touch(0x401AB70, 3, Access.READ, 1),
        touch(0x401AB73, 5, Access.READ, 1),
        touch(0x1FFF000768, 8, Access.WRITE),
        touch(0x4032E40, 4, Access.READ),
        touch(0x4033E06, 1, Access.WRITE),
        touch(0x401AB78, 4, Access.READ, 1),
        touch(0x1FFF000FFC, 16, Access.READ),
    ]
    assert (trace.kind, trace.summary.comments, trace.summary.read) == ("access", 4, 7)
    # The last touch crosses into the next page.
    assert [m.size for m in trace.mappings()] == [4096, 8192, 8192]


@pytest.mark.parametrize(
    "bad",
    [
        " L 10",
        " L 10,",
        " L 10,8 ",
        " X 10,8",
        " L 10,0",
        " L ffffffffffffffff,2",
        " L 1ffffffffffffffff,8",
        " L 10,99999999999999999999",
        " L g,8",
        "I 10,8 L 20,8",
        " L 10\x00,8",
        "== x",
        "==12= x",
        " " * 300 + "x",
    ],
)
def test_bad_lackey_lines_are_refused_by_line(tmp_path, bad):
    text = f"==1== start\n L 10,8\n\n--1-- note\n**1** note\n{bad}\n S 20,8\n"
    with pytest.raises(TraceError, match="expected") as caught:
        rows(of_text(tmp_path, text, "lackey"))
    assert caught.value.where == "line 6"


def test_a_log_of_valgrind_without_touches_is_not_recognised(tmp_path):
    path = tmp_path / "t"
    path.write_text("==12== Memcheck, a memory error detector\n" * 9)
    with pytest.raises(TraceError, match="not recognised"):
        open_trace(path)


def test_lackey_chunks_and_blocks_alike(tmp_path, monkeypatch):
    lines = [f" {'LSM'[i % 3]} {i * 4091:08x},{1 + i % 64}" for i in range(5000)]
    lines[::97] = ["==7== note"] * len(lines[::97])
    trace = of_text(tmp_path, "\n".join(lines) + "\n", "lackey")
    whole = np.concatenate(list(trace.chunks()))
    monkeypatch.setattr("svmcore.traces.opening.BLOCK_BYTES", 333)
    assert np.array_equal(np.concatenate(list(trace.chunks(10))), whole)
    assert whole.dtype == RECORD
    assert trace.summary.comments == len(lines[::97])


def test_real_lackey_file(shared):
    path = shared / "data/local-cpu/stencil.lackey_data.txt.xz"
    trace = open_trace(path)
    assert (trace.format, trace.kind) == ("lackey", "access")
    found = np.concatenate(list(trace.chunks()))
    assert trace.summary.read == trace.summary.lines == len(found) == 1_107_450
    with lzma.open(path) as file:
        number = sum(line.startswith(b" L") for line in file)
    assert int(np.count_nonzero(found["access"] == Access.READ)) == number == 41_844
