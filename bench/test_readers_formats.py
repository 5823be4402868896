"""Readers of foreign trace formats against a plain Python loop, in the same run.

    python bench/test_readers_formats.py [ROWS]
    pytest bench/test_readers_formats.py --benchmark-only

A plain loop is what one writes in an afternoon: it turns each row into a tuple of numbers
and checks nothing. The reader checks, repairs and counts every row, makes records of it and
checks that the file stays the same; ``digest`` is the same with the file's digest made beside it.
Rates are rows a second of processor time, all threads, on one machine; the ratio of the two is
what to compare.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from svmcore.traces import open_trace
from svmcore.traces.libcachesim import OracleGeneralTrace

BASE = 0x7E12_0000_0000
TRIES = 3
#: Entries of a UVM tools queue, with the places of their fields, in both layouts.
ENTRY, ENTRY_V2 = struct.Struct("<BBBB4xQQQII"), struct.Struct("<B1xH4xQQQIBB")
#: Faults of a binary fault log.
LOGGED = struct.Struct("<QQH12B2x")


def addresses(rows: int) -> list[int]:
    """Pages at random, the same each time."""
    return (BASE + 4096 * np.random.default_rng(5).integers(0, 1 << 20, rows)).tolist()


def make_lackey(path: Path, rows: int) -> None:
    letters = ("I  ", " L ", " S ", " M ")
    path.write_text(
        "==1== Lackey\n"
        + "".join(f"{letters[i % 4]}{a:08x},{4 + i % 5}\n" for i, a in enumerate(addresses(rows)))
    )


def plain_lackey(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open() as file:
        for line in file:
            if line.startswith("=="):
                continue
            letter, rest = line.split()
            addr, _, size = rest.partition(",")
            yield ord(letter), int(addr, 16), int(size)


def make_perf(path: Path, rows: int) -> None:
    path.write_text(
        "".join(
            f" stencil 42 [000] {i // 1000}.{i % 1000:06d}: exceptions:page_fault_user: "
            f"address={a:#x} ip=0x7fef785d47ad error_code=0x{4 + 2 * (i % 2):x}\n"
            for i, a in enumerate(addresses(rows))
        )
    )


def make_ftrace(path: Path, rows: int) -> None:
    path.write_text(
        "# tracer: nop\n"
        + "".join(
            f" stencil-42 [000] d..1. {i // 1000}.{i % 1000:06d}: page_fault_user: "
            f"address={a:#x} ip=0x7fef785d47ad error_code=0x{4 + 2 * (i % 2):x}\n"
            for i, a in enumerate(addresses(rows))
        )
    )


def plain_faults(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open() as file:
        for line in file:
            if line.startswith("#"):
                continue
            head, _, payload = line.partition("address=")
            addr, _, code = payload.split()
            seconds = next(word for word in head.split() if word.endswith(":") and "." in word)
            yield (
                round(float(seconds[:-1]) * 1e9),
                int(addr, 16),
                int(code.removeprefix("error_code="), 16),
            )


def make_tools(path: Path, rows: int) -> None:
    path.write_bytes(
        b"".join(
            ENTRY.pack(3, 2, 1 + i % 2, 1, a, i * 100, i * 100 + 7, i // 256, 1).ljust(64, b"\0")
            for i, a in enumerate(addresses(rows))
        )
    )


def plain_tools(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open("rb") as file:
        while entry := file.read(64):
            kind, _, access, gpu, addr, time_ns, _, batch, _ = ENTRY.unpack_from(entry)
            yield kind, access, gpu, addr, time_ns, batch


def make_tools_v2(path: Path, rows: int) -> None:
    path.write_bytes(
        b"".join(
            ENTRY_V2.pack(3, 1, a, i * 100, i * 100 + 7, i // 256, 1, 1 + i % 2).ljust(72, b"\0")
            for i, a in enumerate(addresses(rows))
        )
    )


def plain_tools_v2(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open("rb") as file:
        while entry := file.read(72):
            yield ENTRY_V2.unpack_from(entry)


def make_logged(path: Path, rows: int) -> None:
    path.write_bytes(
        b"\0\5bench"
        + b"".join(
            LOGGED.pack(a, i * 100, 1, 1, 1 + i % 2, *[0] * 9, i % 16 == 0)
            for i, a in enumerate(addresses(rows))
        )
    )


def plain_logged(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open("rb") as file:
        file.read(7)
        while entry := file.read(32):
            addr, time_ns, _, _, access, *_, kind = LOGGED.unpack(entry)
            yield addr, time_ns, access, kind


def make_oracle(path: Path, rows: int) -> None:
    entries = np.zeros(rows, OracleGeneralTrace.entry)
    number = np.arange(rows)
    entries["time"], entries["id"], entries["size"] = number // 1000, number % 977, 4096
    entries["next"] = np.where(number + 977 < rows, number + 978, -1)
    path.write_bytes(entries.tobytes())


def plain_oracle(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open("rb") as file:
        while entry := file.read(24):
            yield struct.unpack("<IQIq", entry)


def make_nsys(path: Path, rows: int) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE StringIds(id, value)")
        connection.execute(
            "CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS(start INTEGER, end INTEGER, globalPid "
            "INTEGER, deviceId INTEGER, address INTEGER, numberOfPageFaults INTEGER, "
            "faultAccessType INTEGER)"
        )
        connection.executemany(
            "INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS VALUES(?, ?, ?, ?, ?, ?, ?)",
            (
                (i * 9, i * 9 + 5, 1 << 48, 0, a, 3, 1 + i % 2)
                for i, a in enumerate(addresses(rows))
            ),
        )
    connection.close()


def plain_nsys(path: Path) -> Iterator[tuple[int, ...]]:
    connection = sqlite3.connect(path)
    yield from connection.execute(
        "SELECT start, end, deviceId, address, numberOfPageFaults, faultAccessType "
        "FROM CUDA_UM_GPU_PAGE_FAULT_EVENTS ORDER BY start"
    )
    connection.close()


def make_json(path: Path, rows: int) -> None:
    faults = [
        {
            "kind": 31,
            "operation": i % 4,
            "start_timestamp": i * 9,
            "end_timestamp": i * 9 + 5,
            "pid": 42,
            "agent_id": 4,
            "address": a,
        }
        for i, a in enumerate(addresses(rows))
    ]
    path.write_text(json.dumps({"buffer_records": {"kfd_page_fault_records": faults}}))


def plain_json(path: Path) -> Iterator[tuple[int, ...]]:
    for row in json.loads(path.read_text())["buffer_records"]["kfd_page_fault_records"]:
        yield row["start_timestamp"], row["end_timestamp"], row["address"], row["operation"]


def make_rocpd(path: Path, rows: int) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE rocpd_string(id INTEGER PRIMARY KEY, string TEXT)")
        connection.execute(
            "CREATE TABLE rocpd_event(id INTEGER PRIMARY KEY, category_id INTEGER, extdata JSON)"
        )
        connection.execute(
            'CREATE TABLE rocpd_region(id INTEGER PRIMARY KEY, start BIGINT, "end" BIGINT, '
            "name_id INTEGER, event_id INTEGER)"
        )
        connection.executemany(
            "INSERT INTO rocpd_string VALUES(?, ?)",
            [(1, "KFD_PAGE_FAULT"), (2, "READ_FAULT_MIGRATED"), (3, "WRITE_FAULT_UPDATED")],
        )
        connection.executemany(
            "INSERT INTO rocpd_event VALUES(?, 1, ?)",
            (
                (i, f'{{"kfd":{{"agent_id":"4","address":"{a}"}}}}')
                for i, a in enumerate(addresses(rows), 1)
            ),
        )
        connection.executemany(
            "INSERT INTO rocpd_region VALUES(?, ?, ?, ?, ?)",
            ((i, i * 9, i * 9 + 5, 2 + i % 2, i) for i in range(1, rows + 1)),
        )
    connection.close()


def plain_rocpd(path: Path) -> Iterator[tuple[int, ...]]:
    connection = sqlite3.connect(path)
    for start, end, name, extdata in connection.execute(
        "SELECT r.start, r.end, s.string, e.extdata FROM rocpd_event e JOIN rocpd_region r ON "
        "r.event_id = e.id JOIN rocpd_string s ON s.id = r.name_id ORDER BY r.start"
    ):
        fault = json.loads(extdata)["kfd"]
        yield start, end, int("WRITE" in name), int(fault["address"]), int(fault["agent_id"])
    connection.close()


def make_accel_sim(path: Path, rows: int) -> None:
    path.write_text(
        f"-kernel name = k\n#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = {rows}\n"
        + "".join(
            f"{i % 4096:04x} ffffffff 1 R2 LDG.E 1 R4 4 1 {a:#x} 4\n"
            for i, a in enumerate(addresses(rows))
        )
    )


def plain_accel_sim(path: Path) -> Iterator[tuple[int, ...]]:
    with path.open() as file:
        for line in file:
            parts = line.split()
            if len(parts) == 11:
                base, stride = int(parts[9], 16), int(parts[10])
                yield from (
                    (page << 12, 4096)
                    for page in dict.fromkeys((base + stride * i) >> 12 for i in range(32))
                )


class Case(NamedTuple):
    """One format."""

    make: Callable[[Path, int], None]
    plain: Callable[[Path], Iterator[tuple[int, ...]]]


CASES = {
    "lackey": Case(make_lackey, plain_lackey),
    "perf-script": Case(make_perf, plain_faults),
    "ftrace": Case(make_ftrace, plain_faults),
    "uvm-tools-v1": Case(make_tools, plain_tools),
    "uvm-tools-v2": Case(make_tools_v2, plain_tools_v2),
    "uvm-binary": Case(make_logged, plain_logged),
    "oracle-general": Case(make_oracle, plain_oracle),
    "nsys": Case(make_nsys, plain_nsys),
    "rocprofiler-json": Case(make_json, plain_json),
    "rocpd": Case(make_rocpd, plain_rocpd),
    "accel-sim": Case(make_accel_sim, plain_accel_sim),
}


def read(path: Path, form: str, *, identify: bool = False) -> int:
    """Records of one pass of the reader."""
    trace = open_trace(path, format=form)
    if identify:
        trace.identify()
    return sum(len(chunk) for chunk in trace.chunks())


def count(rows: Iterator[tuple[int, ...]]) -> int:
    """Rows of the plain loop."""
    return sum(1 for _ in rows)


def timed(call: Callable[[], int]) -> tuple[float, int]:
    """Seconds of processor time of a call, and what it gave."""
    start = time.process_time()
    number = call()
    return time.process_time() - start, number


class Rates(NamedTuple):
    """Rows a second."""

    reader: float
    digest: float
    plain: float


def compare(form: str, rows: int, folder: Path) -> Rates:
    """Rates of the reader, without and with a digest, and of the plain loop; the best of turns."""
    case = CASES[form]
    path = folder / form
    if not path.exists():
        case.make(path, rows)
    turns = [
        (
            timed(lambda: read(path, form))[0],
            timed(lambda: read(path, form, identify=True))[0],
            timed(lambda: count(case.plain(path)))[0],
        )
        for _ in range(TRIES)
    ]
    return Rates(*(rows / min(times) for times in zip(*turns, strict=True)))


def main(rows: int) -> None:
    """The table of all formats."""
    print(f"{'format':18} {'M rows/s':>9} {'digest':>9} {'loop':>9} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for form in CASES:
            rates = compare(form, rows, Path(folder))
            told = " ".join(f"{rate / 1e6:9.2f}" for rate in rates)
            print(f"{form:18} {told} {rates.reader / rates.plain:7.1f}")


def pytest_generate_tests(metafunc):
    """One test a format."""
    if "form" in metafunc.fixturenames:
        metafunc.parametrize("form", CASES)


def test_reader(benchmark, form, tmp_path):
    rows = 100_000
    rates = compare(form, rows, tmp_path)
    benchmark.extra_info["rows"] = rows
    benchmark.extra_info["ratio to a plain loop"] = round(rates.reader / rates.plain, 2)
    benchmark.pedantic(read, args=(tmp_path / form, form), rounds=3)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000)
