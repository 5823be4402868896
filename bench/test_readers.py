"""Readers of traces: rows a second, and how many times a plain loop and pyarrow's csv.

    pytest bench/test_readers.py -s
    SVMCORE_BENCH_ROWS=5000000 pytest bench/test_readers.py -s

Each file is made anew, read by :func:`svmcore.open_trace` with all that belongs to it (records,
checks, counts, the CRC-32 of the file), and by the loop that one would write in Python: split,
int, append.
Ratios are of CPU seconds of the same run, the best of three rounds each: a shared machine
stretches wall time at will. Figures of one machine are goals, ratios are what is checked.
The default of 300,000 rows takes half a minute.

A 60-million-row replay end to end, with its peak memory, in a process of its own:

    python bench/test_readers.py 60000000
"""

from __future__ import annotations

import csv
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import svmcore
from svmcore.records import RECORD, Kind
from svmcore.traces import write_records
from svmcore.traces._text import DEC, GAP, HEX, LineForm

#: Rows a second that each reader is meant to reach, and the least ratio to a plain loop that
#: still counts as compiled: half of what was measured.
BARS = {
    "kfd-smi": (2e6, 3),
    "uvm-log": (2e6, 4),
    "hsa-svm-profile": (2e6, 2),
    "csv": (2e6, 2),
    "workload-csv": (1e6, 1.2),
    "access-list": (2e6, 1.5),
    "lackey lines": (3e6, 5),
    "npy": (20e6, 8),
    "parquet": (5e6, 2),
}
#: Least ratio to pyarrow's csv with one thread, which gives columns and checks nothing.
BESIDE_ARROW = 0.1
ROUNDS = 3
BASE, PAGES = 0x7F0000000000, 100_000


def smi_lines(rows: int) -> Iterator[str]:
    """Faults served by migration on two GPUs, four lines each."""
    for i in range(0, rows, 4):
        page, t = (BASE >> 12) + i * 37 % PAGES, 10**12 + 1000 * i
        window, gpu = page & ~0x1FF, "1ea0" if i % 3 else "91c0"
        yield f"7 {t} -4242 @{page:x}({gpu}) W\n"
        yield f"5 {t + 100} -4242 @{window:x}(200) 0->{gpu} ffffffff:ffffffff 1\n"
        yield f"6 {t + 500} -4242 @{window:x}(200) 0->{gpu} 1 0\n"
        yield f"8 {t + 600} -4242 @{page:x}({gpu}) M\n"


def kmsg_lines(rows: int) -> Iterator[str]:
    """Batches of 38 faults."""
    for i in range(rows):
        head = f"4,{34763351535 + i},{2567418411941 + i},-;"
        if i % 40 == 0:
            yield head + "s,\n"
        elif i % 40 == 39:
            yield head + "b,41234,0\n"
        else:
            addr, t = BASE + 4096 * (i % PAGES), 1606348764141810176 + 32 * i
            yield f"{head}f,{addr:x},{t},0,1,2,1,0,0,0,127,1,0,1,63\n"


def profile_lines(rows: int) -> Iterator[str]:
    """As the runtime writes the faults of :func:`smi_lines`."""
    for i in range(0, rows, 4):
        page, t = BASE + i * 37 % PAGES * 4096, 10**12 + 1000 * i
        window, gpu = page & ~0x1FFFFF, "GPU0(0x1c2ab30)"
        span = f"PAGEFAULT_GPU CPU->{gpu} [{window:#x}, {window + 0x1FFFFF:#x}]"
        yield f"ROCr HMM event: {t} PAGE_FAULT_START Write {gpu} {page}\n"
        yield f"ROCr HMM event: {t + 100} MIGRATE_START {span}\n"
        yield f"ROCr HMM event: {t + 500} MIGRATE_END {span}\n"
        yield f"ROCr HMM event: {t + 600} PAGE_FAULT_END Migration {gpu} {page}\n"


def csv_lines(rows: int) -> Iterator[str]:
    yield "t_ns,addr,size,dur_ns,value,kind,proc,access,peer\n"
    for i in range(rows):
        addr = BASE + i % PAGES * 4096
        yield f"{i},{addr:#x},4096,0,0,access,gpu{i % 2},{'rw'[i % 2]}ead,unknown\n".replace(
            "wead", "write"
        )


def workload_lines(rows: int) -> Iterator[str]:
    yield "seq,t_ns,dur_ns,kind,op,addr,bytes\n"
    for i in range(rows):
        addr = BASE + i % 5000 * 65536
        yield f"{i // 3},{i // 3 * 1000},1000,{'RW'[i % 2]},aten::matmul,{addr:#x},65536\n"


def touch_lines(rows: int) -> Iterator[str]:
    for i in range(rows):
        yield f"{BASE + i % PAGES * 4096:#x},4096,{'rw'[i % 2]},gpu0\n"


def lackey_lines(rows: int) -> Iterator[str]:
    for i in range(rows):
        yield (f"I  {0x4000000 + i % 9999 * 4:08x},3\n", f" S {BASE + i % PAGES:x},8\n")[i % 2]


def text(path: Path) -> Iterator[str]:
    with path.open() as file:
        yield from file


def loop_smi(path: Path) -> int:
    """Faults and their ends, and migrations as pairs of start and end."""
    found, codes, under_way = [], {"0": 0, "1ea0": 1, "91c0": 2}, {}
    for line in text(path):
        parts = line.split()
        event, t = int(parts[0], 16), int(parts[1])
        page, _, rest = parts[3][1:-1].partition("(")
        if event in (7, 8):
            write = parts[4] == "W"
            found.append((t, int(page, 16) << 12, 4096, 0, 0, event, codes[rest], write, 255))
        elif event == 5:
            under_way[parts[2], parts[3], parts[4]] = t
        else:
            start = under_way.pop((parts[2], parts[3], parts[4]))
            source, _, target = parts[4].partition("->")
            size = int(rest, 16) << 12
            row = (start, int(page, 16) << 12, size, t - start, int(parts[5]), event)
            found.append((*row, codes[source], 4, codes[target]))
    return len(found)


def loop_kmsg(path: Path) -> int:
    found, last = [], 0
    for line in text(path):
        fields = line.partition(";")[2].rstrip().split(",")
        if fields[0] == "f":
            numbers = [int(field) for field in fields[2:]]
            last = numbers[0]
            found.append((last, int(fields[1], 16), 4096, 0, 0, 1, 255, numbers[2], 255))
        else:
            took = int(fields[1]) if fields[0] == "b" else 0
            found.append((last, 0, 0, took, fields[0] == "b", 24, 255, 4, 255))
    return len(found)


def loop_profile(path: Path) -> int:
    found, under_way = [], {}
    for line in text(path):
        parts = line.split()
        t, name = int(parts[3]), parts[4]
        if name.startswith("PAGE_FAULT"):
            gpu = int(parts[6][3 : parts[6].index("(")]) + 1
            found.append((t, int(parts[7]), 4096, 0, 0, name, gpu, parts[5] == "Write", 255))
        elif name == "MIGRATE_START":
            under_way[parts[6], parts[7]] = t
        else:
            start = under_way.pop((parts[6], parts[7]))
            first, last = int(parts[7][1:-1], 16), int(parts[8][:-1], 16)
            found.append((start, first, last + 1 - first, t - start, 1, name, 0, 4, 1))
    return len(found)


def loop_csv(path: Path) -> int:
    """By the module csv."""
    found = []
    with path.open(newline="") as file:
        for row in csv.reader(file):
            if row[0].isdigit():
                found.append((*(int(field, 0) for field in row[:5]), *row[5:]))
    return len(found)


def loop_workload(path: Path) -> int:
    found = []
    with path.open(newline="") as file:
        for row in csv.reader(file):
            if row[0].isdigit():
                found.append((int(row[0]), int(row[1]), row[4], int(row[5], 16), int(row[6])))
    return len(found)


def loop_touches(path: Path) -> int:
    found = []
    with path.open(newline="") as file:
        for row in csv.reader(file):
            found.append((int(row[0], 16), int(row[1]), row[2]))
    return len(found)


def loop_lackey(path: Path) -> int:
    found = []
    for line in text(path):
        addr, _, size = line[3:].partition(",")
        found.append((line[1], int(addr, 16), int(size)))
    return len(found)


def loop_records(path: Path) -> int:
    """One record after the other of a NumPy file."""
    found = []
    for record in np.load(path):
        found.append((int(record["addr"]), int(record["size"])))
    return len(found)


def loop_parquet(path: Path) -> int:
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(path, use_threads=False)
    return len(list(zip(table["addr"].to_pylist(), table["size"].to_pylist(), strict=True)))


def read(path: Path) -> int:
    """All records of a trace by its reader."""
    return sum(len(chunk) for chunk in svmcore.open_trace(path).chunks())


def scan_lackey(path: Path) -> int:
    """The lines through the form that a reader of them would use."""
    form = LineForm(GAP, {b"I": 0, b"L": 1, b"S": 2, b"M": 3}, GAP, HEX, b",", DEC)
    data = path.read_bytes()
    out = np.empty((form.columns, 1 << 16), "<u8")
    rows = at = 0
    while at < len(data):
        more, at = form.scan(data, at, out)
        if not more:
            break
        rows += more
    return rows


CASES: dict[str, tuple[Callable[[int], Iterator[str]] | None, Callable[[Path], int]]] = {
    "kfd-smi": (smi_lines, loop_smi),
    "uvm-log": (kmsg_lines, loop_kmsg),
    "hsa-svm-profile": (profile_lines, loop_profile),
    "csv": (csv_lines, loop_csv),
    "workload-csv": (workload_lines, loop_workload),
    "access-list": (touch_lines, loop_touches),
    "lackey lines": (lackey_lines, loop_lackey),
    "npy": (None, loop_records),
    "parquet": (None, loop_parquet),
}
#: Cases whose text pyarrow's csv can take apart.
ARROW = ("csv", "workload-csv", "access-list", "uvm-log")


class Spent(NamedTuple):
    cpu: float
    wall: float


def best(call: Callable[[Path], int], path: Path) -> Spent:
    """Least seconds of some rounds."""
    times = []
    for _ in range(ROUNDS):
        cpu, wall = time.process_time(), time.perf_counter()
        assert call(path)
        times.append(Spent(time.process_time() - cpu, time.perf_counter() - wall))
    return Spent(*(min(each) for each in zip(*times, strict=True)))


def arrow_csv(path: Path) -> int:
    """The same text by pyarrow's csv, one thread."""
    pacsv = pytest.importorskip("pyarrow.csv")
    return pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(use_threads=False, autogenerate_column_names=True),
        parse_options=pacsv.ParseOptions(invalid_row_handler=lambda row: "skip"),
    ).num_rows


def make(path: Path, name: str, rows: int) -> None:
    """The file of a case."""
    lines = CASES[name][0]
    if lines is not None:
        with path.open("w") as file:
            file.writelines(lines(rows))
        return
    records = np.zeros(rows, RECORD)
    records["addr"] = BASE + np.arange(rows) % PAGES * 4096
    records["size"], records["t_ns"], records["kind"] = 4096, np.arange(rows), Kind.ACCESS
    write_records(path, [records], name)


ROWS = int(os.environ.get("SVMCORE_BENCH_ROWS", "300000"))


@pytest.mark.parametrize("name", CASES)
def test_reader_beside_a_plain_loop(tmp_path, name):
    if name == "parquet":
        pytest.importorskip("pyarrow")
    rows = ROWS * (10 if name == "npy" else 1)
    path = tmp_path / "t"
    make(path, name, rows)
    goal, least = BARS[name]
    ours = best(scan_lackey if name == "lackey lines" else read, path)
    small = tmp_path / "small"
    make(small, name, rows // 10)
    plain = best(CASES[name][1], small).cpu * 10
    wall, cpu = rows / ours.wall / 1e6, rows / ours.cpu / 1e6
    told = [f"{name}: {wall:.2f} million rows/s, {cpu:.2f} a CPU second (goal {goal / 1e6:g})"]
    told.append(f"{plain / ours.cpu:.1f} times a plain loop")
    if name in ARROW:
        beside = best(arrow_csv, path)
        told.append(f"{beside.cpu / ours.cpu:.2f} times pyarrow's csv")
        assert beside.cpu / ours.cpu > BESIDE_ARROW
    print("\n" + ", ".join(told))
    assert plain / ours.cpu > least


def replay_end_to_end(rows: int) -> None:
    """Make a KFD log of so many lines, replay it, and tell time and peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.smi"
        make(path, "kfd-smi", rows)
        begun = time.perf_counter()
        result = svmcore.replay(str(path), svmcore.Space("mi300x-8"))
        took = time.perf_counter() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{rows:,} lines, {path.stat().st_size / 1e9:.2f} GB, {result.trace['records']:,} "
            f"records, {result.counters['faults']:,} faults: {took:.1f} s, peak {peak:.0f} MiB"
        )


if __name__ == "__main__":
    replay_end_to_end(int(sys.argv[1]))
