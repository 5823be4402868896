"""Compiled scanners: what they read is what the careful Python code reads."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading import careful, look
from svmcore.errors import InvalidArgumentError
from svmcore.records import RECORD, UNKNOWN, Access, Kind
from svmcore.traces._text import (
    COMMENT,
    DEC,
    GAP,
    HEX,
    MISSING,
    NUMBER,
    OPTIONAL,
    PREFIXED,
    TEXT,
    EventScanner,
    FaultScanner,
    LineForm,
)
from svmcore.traces._warps import WarpScanner

DATA = Path(__file__).parents[1] / "data" / "traces"
TEXTS = {
    "kfd_new.txt": "kfd-smi",
    "kfd_old.txt": "kfd-smi",
    "kfd_glued.txt": "kfd-smi",
    "kfd_nul.bin": "kfd-smi",
    "hsa_profile.txt": "hsa-svm-profile",
    "uvm.kmsg": "uvm-log",
    "uvm_bare.txt": "uvm-log",
    "workload.csv": "workload-csv",
    "workload_dev.csv": "workload-csv",
    "touches.txt": "access-list",
    "records.csv": "csv",
    "kernel.traceg": "accel-sim",
    "perf.txt": "perf-script",
    "ftrace.txt": "ftrace",
}
NUMBERS = st.sampled_from(
    [
        *("0", "1", "00", "4096", "0x1000", "0X1F", "deadbeef", "7fb144000000", "-1", "", "+1"),
        *("18446744073709551615", "18446744073709551616", "9" * 19, "9" * 20, "0" * 30 + "7"),
        *("ffffffff", "100000000", "f" * 16, "1" + "0" * 16, "4294967296", "255", "256", "x"),
        *("fffffffffffff", "10000000000000", "65535", "65536", " 1", "1 ", "\0", "gpu0", "cpu"),
    ]
)


def both(content, form):
    """What the fast and the careful code say."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(content)
        fast = look(path, form)
        with careful():
            return fast, look(path, form)


@pytest.mark.parametrize("name", TEXTS)
def test_samples_read_alike(name):
    fast, slow = both((DATA / name).read_bytes(), TEXTS[name])
    assert fast == slow
    assert isinstance(fast, tuple)


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damaged_samples_read_alike(name, data):
    content = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 8))
        text = data.draw(NUMBERS.map(str.encode) | st.binary(max_size=3))
        content[at : at + length] = text
    fast, slow = both(bytes(content), TEXTS[name])
    assert fast == slow


LINES = {
    "kfd-smi": [
        "5 {} -{} @{}({}) {}->{} {}:{} {}",
        "6 {} -{} @{}({}) {}->{} {} {}",
        "6 {} -{} @{}({}) {}->{} {}",
        "7 {} -{} @{}({}) W",
        "8 {} -{} @{}({}) U\t",
        "9 {} -{} {} {}",
        "a {} -{} {} R",
        "A {} -{} {} ",
        "b {} -{} @{}({}) {} {}\r",
        "e {} -{} {}",
        "{}",
    ],
    "hsa-svm-profile": [
        "ROCr HMM event: {} PAGE_FAULT_START Write GPU{}(0x{}) {}",
        "ROCr HMM event: {} PAGE_FAULT_END Map CPU {}",
        "ROCr HMM event: {} MIGRATE_START PREFETCH CPU->GPU0(0x{}) [0x{}, 0x{}]",
        "ROCr HMM event: {} MIGRATE_END NOTHING CPU->CPU [0x{}, 0x{}]",
        "ROCr HMM event: {} UNMAP_FROM_GPU MMU_NOTIFY_MIGRATE GPU{}(0x{}) [0x{}, {}]",
        "ROCr HMM event: {} QUEUE_EVICTION SVM GPU{}(0x1)",
        "ROCr HMM event: {} QUEUE_RESTORE GPU{}(0x{})",
    ],
    "uvm-log": [
        "4,1,2,-;f,{},{},0,{},2,1,0,0,0,127,1,0,{},63",
        "f,{},{},{},1,2,1,0,0,0,127,1,0,1,{}",
        "p,{}",
        "{};e,{}",
        "4,1,2,-;b,{},{}",
        "b,{}" + ",1" * 27,
        "s,{}",
    ],
    "access-list": ["{},{}", " {} , {} , r", "{},{},W,{} # note", "{},{},r,gpu63"],
    "csv": ["{},{},1,0,{},access,gpu0,read,unknown", "1,{},1,{},1,{},{},0,255"],
    "workload-csv": ["{},{},{},R,op,{},{}", "1,1,1,S,,0x1000,{}", "1,{},1,W,a b,0x{},1"],
    "accel-sim": [
        "{} {} 1 R1 LDG.E 1 R4 {} {} {} {}",
        "0 {} {} R1 R2 STG {} R4 4 1 0x1000 {}",
        "0 7 0 ATOMG.ADD 0 {} 2 {} {} {}",
        "0 3 0 RED 0 4 0 0x{} {} {}",
        " 0 1 0 LDS\t0 {} 9",
        "0 {} 0 MOV.{} 0 0\r",
        "0 ffffffff 0 LD 0 {} 1 {} {}",
        "0 3 0 {} 0 4 1 0 {}",
        "",
        "-shmem base addr = {}",
    ],
    "perf-script": [
        "a{} {}/{} {}.{}: page-faults: {} {}",
        "{} 1 [{}] {}.{}: exceptions:page_fault_user: address=0x{} ip=0x1 error_code=0x{}\t",
    ],
    "ftrace": [
        "a{}-{} [{}] d..1 {}.{}: page_fault_user: address=0x{} ip=0x{} error_code=0x{}",
        "{}-1 [0] {} 1.5: page_fault_kernel: address=0x10 ip= error_code=0x6",
        "a-1 [0] d.{}\t{}. 1.5: page_fault_kernel: address=0x10 ip= error_code=0x6",
    ],
}
HEADS = {
    "csv": "t_ns,addr,size,dur_ns,value,kind,proc,access,peer\n",
    "workload-csv": "seq,t_ns,dur_ns,kind,op,addr,bytes\n",
    "accel-sim": "-kernel name = k\n-local mem base addr = 0x7fb144000000\ninsts = 3\n"
    "0 1 1 R1 LDG.E 1 R4 4 1 0x1000 4\n",
}


@pytest.mark.parametrize("form", LINES)
@given(data=st.data())
def test_numbers_at_their_limits_read_alike(form, data):
    drawn = st.sampled_from(LINES[form]).flatmap(
        lambda line: st.lists(NUMBERS, min_size=line.count("{}"), max_size=line.count("{}")).map(
            lambda values: line.format(*values)
        )
    )
    lines = data.draw(st.lists(drawn, min_size=1, max_size=3))
    fast, slow = both((HEADS.get(form, "") + "\n".join(lines) + "\n").encode(), form)
    assert fast == slow


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(["LDG.E", "STG", "ATOM", "LDS", "X"]),
            st.sampled_from([1, 4, 16, 4096, 4097]),
            st.lists(
                st.integers(0, 1 << 14) | st.integers((1 << 64) - 5000, (1 << 64) - 1),
                min_size=32,
                max_size=32,
            ),
            st.sampled_from([0xFFFFFFFF, 0x80000001, 0x10, 0]),
        ),
        max_size=4,
    )
)
def test_pages_of_lanes_in_their_order(lines):
    text = "-kernel name = k\n-shmem base addr = 0x2000000\ninsts = 9\n"
    for opcode, width, lanes, mask in lines:
        listed = " ".join(f"{address:#x}" for address in lanes)
        text += f"0 {mask:x} 0 {opcode} 0 {width} 0 {listed}\n"
        deltas = " ".join(str(b - a) for a, b in itertools.pairwise(lanes))
        text += f"0 {mask:x} 0 {opcode} 0 {width} 2 {lanes[0]:#x} {deltas}\n"
    fast, slow = both(text.encode(), "accel-sim")
    assert fast == slow


def test_a_scanner_of_warps_refuses_what_it_cannot_hold():
    out = np.zeros(70, RECORD)
    line = b"0 1 0 LDG 0 4 1 0x1000 4"
    scanner = WarpScanner(7)
    assert scanner.scan(line, 0, out, 0, 1) == (0, 0, 0)  # an opcode that it has not learnt
    scanner.learn(b"LDG", Access.READ)
    assert scanner.scan(line, 0, out, 0, 0) == (0, 0, 0)
    assert scanner.scan(line, 0, out, 7, 1) == (0, 0, 0)  # no room for all that a line can make
    assert scanner.scan(line, 0, out, 6, 1) == (1, 1, len(line) + 1)
    assert out[6].tolist() == (0, 0x1000, 4096, 0, 7, Kind.ACCESS, UNKNOWN, Access.READ, UNKNOWN)
    for at, row in ((-1, 0), (len(line) + 2, 0), (0, -1), (0, 71)):
        with pytest.raises(InvalidArgumentError, match="expected"):
            scanner.scan(line, at, out, row, 1)
    for opcode, access in ((b"", 0), (b"X", 5), (b"X", -2)):
        with pytest.raises(InvalidArgumentError, match="expected"):
            scanner.learn(opcode, access)
    for number in range(5000):
        scanner.learn(b"OP%d" % number, Access.READ)
    assert scanner.scan(b"0 1 0 OP4999 0 4 1 0x1000 4", 0, out, 0, 1)[1] == 0
    assert scanner.scan(b"0 1 0 OP4 0 4 1 0x1000 4", 0, out, 0, 1)[1] == 1
    for start in range(9):
        scanner.add_window(start)
    assert scanner.scan(line, 0, out, 0, 1) == (0, 0, 0)


def test_many_events_pair_as_in_the_careful_code():
    rng = np.random.default_rng(5)
    lines = []
    for t in range(20_000):
        page, gpu = rng.integers(0, 9000) * 16, rng.integers(1, 4)
        key = f"-{rng.integers(1, 3)} @{page:x}(10) 0->{gpu:x}"
        lines.append(f"5 {t} {key} 0:0 1" if rng.random() < 0.7 else f"6 {t} {key} 1 0")
    fast, slow = both("\n".join(lines).encode() + b"\n", "kfd-smi")
    assert fast == slow
    assert fast[2].counts["unpaired_starts"] > 4096


def test_every_part_of_a_form():
    form = LineForm(
        *({b"r": 7, b"write_all": 9}, GAP, DEC, b"::", HEX, b",", PREFIXED, b",", NUMBER, b" "),
        *(TEXT, b";", OPTIONAL, GAP, NUMBER, GAP, COMMENT),
    )
    assert form.columns == 7
    good = [
        (b"r 12::ff,0x1F,0x10 some text;", [7, 12, 255, 31, 16, b"some text", MISSING]),
        (b"write_all 9::0,0x0,10 ;  0xA# c", [9, 9, 0, 0, 10, b"", 10]),
        (b"r 1::1,0x1,1 a;# c", [7, 1, 1, 1, 1, b"a", MISSING]),
        (b"r 1::1,0x1,1 a;3\r", [7, 1, 1, 1, 1, b"a", 3]),
    ]
    data = b"\n".join(line for line, _ in good)
    out = np.zeros((7, 4), "<u8")
    assert form.scan(data, 0, out) == (4, len(data) + 1)
    for row, (_, expected) in enumerate(good):
        place = int(out[5, row])
        text = data[place >> 32 : (place >> 32) + (place & 0xFFFFFFFF)]
        assert [*out[:5, row].tolist(), text, int(out[6, row])] == expected
    for line in (
        *(b"", b"q 1::1,0x1,1 a;", b"r 1:1,0x1,1 a;", b"r 1::,0x1,1 a;", b"r 1::1,1,1 a;"),
        *(b"r 1::1,0x1,1 a", b"r 1::1,0x1,1 a; x", b"rr 1::1,0x1,1 a;", b"\0", b"r 1::1,0x,1 a;"),
        *(b"r " + b"9" * 20 + b"::1,0x1,1 a;", b"r 1::" + b"1" * 17 + b",0x1,1 a;"),
        b"r 1::1,0x1,1 a;\r\r",
    ):
        assert form.scan(line, 0, out) == (0, 0), line
        assert form.scan(b"r 1::1,0x1,1 a;\n" + line, 0, out) == (1, 16), line


def test_a_full_array_and_the_end_of_the_data():
    form = LineForm(NUMBER)
    out = np.zeros((1, 3), "<u8")
    assert form.scan(b"1\n2\n3\n4", 0, out) == (3, 6)
    assert form.scan(b"1\n2\n3\n4", 6, out, 2) == (1, 8)
    assert out.tolist() == [[1, 2, 4]]
    assert form.scan(b"1", 2, out) == (0, 2)
    assert form.scan(b"1", 0, out, 3) == (0, 0)
    assert LineForm().scan(b"1", 0, np.zeros((0, 3), "<u8")) == (0, 0)
    for at, row in ((3, 0), (-1, 0), (0, 4), (0, -1)):
        with pytest.raises(InvalidArgumentError, match="expected"):
            form.scan(b"1", at, out, row)
    with pytest.raises(InvalidArgumentError, match="1 columns"):
        form.scan(b"1", 0, np.zeros((2, 3), "<u8"))
    records = np.zeros(0, RECORD)
    for scanner in (EventScanner(1), FaultScanner()):
        assert scanner.scan(b"s,", 0, records) == (0, 0, 0)
        with pytest.raises(InvalidArgumentError):
            scanner.scan(b"s,", 4, records)


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        ({},),
        (0,),
        (9,),
        ("a",),
        (None,),
        ({b"a" * 17: 1},),
        ({b"": 1},),
        ({b"a": -1},),
        (GAP,) * 65,
    ],
)
def test_bad_forms_are_refused(parts):
    with pytest.raises(InvalidArgumentError, match="expected"):
        LineForm(*parts)


def test_bad_limit_is_refused():
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        EventScanner(0)
