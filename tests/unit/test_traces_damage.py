"""Damage that every reader of its sort must see: NUL bytes, the other byte order, bombs.

Truncation at every byte of every sample and bytes at random are in ``test_traces_fuzz``, sizes of
4 GiB and more that a 32-bit product lost in ``test_traces_hsa``.
"""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import TraceError
from svmcore.records import RECORD
from svmcore.traces import formats, open_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
#: A line of each text format with a ``~`` between two digits of a number, and one without.
LINES = {
    "access-list": ("0x10~00,4096", "0x1000,4096"),
    "accel-sim": ("0000 1 0 LDG 0 4 1 0x10~00 4", "0000 1 0 LDG 0 4 1 0x1000 4"),
    "chunk-trace": (
        "10.5,POPULATE,1,42,0x1,0,0x1000,0x2,0x3,0x7f0000~000000,0x7f00001fffff,0",
        "10.5,POPULATE,1,42,0x1,0,0x1000,0x2,0x3,0x7f0000000000,0x7f00001fffff,0",
    ),
    "csv": (
        "0,40~96,4096,0,0,access,gpu0,read,unknown",
        "0,4096,4096,0,0,access,gpu0,read,unknown",
    ),
    "ftrace": (
        "a-7 [000] d..1. 5.000001: page_fault_user: address=0x1~fff ip=0x2 error_code=0x4",
        "a-7 [000] d..1. 5.000001: page_fault_user: address=0x1fff ip=0x2 error_code=0x4",
    ),
    "hsa-svm-profile": (
        "ROCr HMM event: 5 PAGE_FAULT_START Write GPU0(0x1) 40~96",
        "ROCr HMM event: 5 PAGE_FAULT_START Write GPU0(0x1) 4096",
    ),
    "kfd-smi": ("7 1000 -42 @7f00~00123(1ea0) W", "7 1000 -42 @7f0000123(1ea0) W"),
    "lackey": (" L 1f~ff000768,8", " L 1fff000768,8"),
    "libcachesim-csv": ("1,5633898,2a,512,429~32745", "1,5633898,2a,512,42932745"),
    "perf-script": (
        "a 7/7 5.000001: page-faults: 55d6~94b35020 ffff",
        "a 7/7 5.000001: page-faults: 55d694b35020 ffff",
    ),
    "uvm-log": (
        "f,7fb1~44000000,160,1,1,2,1,0,0,0,127,1,0,1,63",
        "f,7fb144000000,160,1,1,2,1,0,0,0,127,1,0,1,63",
    ),
    "workload-csv": ("1,0,5,R,op,0x10~00,4096", "1,0,5,R,op,0x1000,4096"),
}
#: Where such a line is counted: known damage of one driver, and an address that is no number.
COUNTED = {"kfd-smi": "repaired", "ftrace": "refused"}
HEADS = {
    "accel-sim": "-kernel name = k\ninsts = 3\n",
    "chunk-trace": "time_ms,hook_type,pid,owner_pid,va_space,cpu,chunk_addr,list_addr,va_block,"
    "va_start,va_end,va_page_index\n",
    "csv": ",".join(RECORD.names) + "\n",
    "libcachesim-csv": "version,time,op,size,lbn\n",
    "workload-csv": "seq,t_ns,dur_ns,kind,op,addr,bytes\n",
}


def read(path, form, content):
    path.write_bytes(content)
    trace = open_trace(path, format=form)
    return [row for chunk in trace.chunks() for row in chunk.tolist()], trace.summary


def test_each_format_has_a_sample():
    pytest.importorskip("pyarrow")
    found = {open_trace(path).format for path in DATA.iterdir()}
    assert found == set(formats())
    text = found - {path for path in found if path in SWAPPED or path in LIBRARIES}
    assert text == set(LINES)


@pytest.mark.parametrize("form", LINES)
def test_a_nul_byte_in_a_number_is_never_read_as_it_stands(tmp_path, form):
    damaged, whole = (f"{line}\n".encode() for line in LINES[form])
    head = HEADS.get(form, "").encode()
    plain, _ = read(tmp_path / "t", form, head + whole * 3)
    assert len(plain) == 3
    content = head + whole + damaged.replace(b"~", b"\0") + whole
    if form not in COUNTED:
        with pytest.raises(TraceError) as caught:
            read(tmp_path / "t", form, content)
        assert caught.value.where == f"line {head.count(10) + 2}"
        return
    rows, summary = read(tmp_path / "t", form, content)
    assert getattr(summary, COUNTED[form]) == 1
    assert rows == (plain if COUNTED[form] == "repaired" else plain[:2])


#: Sizes of the numbers of an entry, and the bytes of a head.
SWAPPED = {
    "uvm-tools-v1": ("uvm_tools_v1.dat", [1] * 8 + [8] * 7, 0),
    "uvm-tools-v2": ("uvm_tools_v2.dat", [1, 1, 2, 2, 2] + [8] * 8, 0),
    "uvm-binary": ("uvm_binary_0.dat", [8, 8, 2] + [1] * 14, None),
    "uvm-binary 1": ("uvm_binary_1.dat", [8], None),
    "oracle-general": ("oracle_general.dat", [4, 8, 4, 8], 0),
    "oracle-general-opns": ("oracle_general_opns.dat", [4, 8, 4, 1, 2, 8], 0),
}
#: Formats whose library or text knows its byte order.
LIBRARIES = ("akita", "arrow", "npy", "nsys", "parquet", "rocpd", "rocprofiler-json")


@pytest.mark.parametrize("form", SWAPPED)
def test_entries_of_the_other_byte_order_are_refused(tmp_path, form):
    name, sizes, at = SWAPPED[form]
    raw = (DATA / name).read_bytes()
    at = 2 + raw[1] if at is None else at
    swapped = raw[:at]
    for size in sizes * ((len(raw) - at) // sum(sizes)):
        swapped += raw[at : at + size][::-1]
        at += size
    with pytest.raises(TraceError, match="little-endian"):
        read(tmp_path / "t", form.partition(" ")[0], swapped)


def test_records_of_the_other_byte_order_are_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, RECORD.newbyteorder(">")))
    with pytest.raises(TraceError, match="expected one dimension of"):
        read(tmp_path / "t", "npy", (tmp_path / "t.npy").read_bytes())


#: The beginning of a file of each way to read one, and what may follow without an end.
ENDLESS = {
    "kfd-smi": (b"7 1000 -42 @7f0000123(1ea0) W\n", b"7 1000 -42 @7f0000123(1ea0) W\n"),
    "accel-sim": (b"-kernel name = k\n", b"#" * 4095 + b"\n"),
    "uvm-tools-v1": ((DATA / "uvm_tools_v1.dat").read_bytes(), bytes(64)),
    "uvm-binary": (b"\1\1a" + bytes(8), bytes(8)),
    "rocprofiler-json": (b'{"kfd_page_fault_records": [', b" " * 64),
    "nsys": (b"SQLite format 3\0", bytes(64)),
    "parquet": (b"PAR1", bytes(64)),
}


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("form", ENDLESS)
def test_content_without_an_end_is_refused_by_every_way_to_read(
    tmp_path, monkeypatch, form, compress
):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr("svmcore.traces.opening.BOMB_BYTES", 1 << 20)
    monkeypatch.setattr("svmcore.traces.opening.BOMB_RATIO", 50)
    head, more = ENDLESS[form]
    packed = compress(head + more * ((8 << 20) // len(more)))
    with pytest.raises(TraceError, match="came out of them"):
        read(tmp_path / "t", form, packed)
