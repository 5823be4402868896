"""Write the binary samples of trace formats again; the text ones are written by hand.

    python tests/data/make_traces.py tests/data/traces

The bytes depend on the version of SQLite, what is in them does not.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from pathlib import Path

BASE = 0x7E12_0000_0000
BLOCK = 2 << 20
#: globalPid of process 4242 in Nsight Systems.
GLOBAL_PID = (1 << 48) | (4242 << 24)


def database(path: Path, schema: str, rows: dict[str, list[tuple]]) -> None:
    """A database of small pages, so that it stays small."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("PRAGMA page_size = 512")
        connection.executescript(schema)
        for table, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
    connection.close()


NSYS = """
CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND(id INTEGER PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS(start INTEGER, globalPid INTEGER, address INTEGER,
 originalFaultPc INTEGER, CpuInstruction INTEGER, module INTEGER, unresolvedFaultPc INTEGER);
CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS(start INTEGER, end INTEGER, globalPid INTEGER,
 deviceId INTEGER, address INTEGER, numberOfPageFaults INTEGER, faultAccessType INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER, end INTEGER, deviceId INTEGER,
 globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcDeviceId INTEGER, dstDeviceId INTEGER,
 migrationCause INTEGER, virtualAddress INTEGER);
CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS(start INTEGER, globalPid INTEGER, deviceId INTEGER,
 address INTEGER, bytes INTEGER, memKind INTEGER, memoryOperationType INTEGER);
"""


def nsys(path: Path) -> None:
    """Nsight Systems: two allocations, faults on both sides, migrations for each cause."""
    pid = GLOBAL_PID
    database(
        path,
        NSYS,
        {
            "StringIds": [(1, "init(float*, int)")],
            "ENUM_CUDA_MEM_KIND": [
                (2, "DEVICE", "Device"),
                (3, "MANAGED", "Managed"),
                (4, "PINNED", "Pinned"),
            ],
            "CUDA_UM_CPU_PAGE_FAULT_EVENTS": [(100, pid, BASE + 0x10, 5, 1, 2, None)],
            "CUDA_UM_GPU_PAGE_FAULT_EVENTS": [
                (500, 900, pid, 0, BASE, 8, 1),
                (510, 400, pid, 1, BASE + BLOCK, 2, 2),
                (520, 530, pid, 0, BASE + 0x3000, 1, 9),
            ],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [
                (600, 650, 0, pid, 4096, 11, 0, 0, 2, BASE),
                (610, 660, 0, pid, 61440, 11, None, None, 3, BASE + 4096),
                (700, 730, 0, pid, 65536, 12, 0, 0, 2, BASE),
                (710, 720, 0, pid, BLOCK, 12, 0, 0, 4, None),
                (720, 740, 1, pid, 4096, 13, 0, 1, 5, BASE + BLOCK),
                (20, 30, 0, pid, 1 << 20, 1, None, None, None, None),
            ],
            "CUDA_GPU_MEMORY_USAGE_EVENTS": [
                (10, pid, 0, BASE, BLOCK, 3, 0),
                (11, pid, 0, 0x7000_0000_0000, BLOCK, 2, 0),
                (990, pid, 0, BASE, 0, 3, 1),
            ],
        },
    )


ROCPD = """
CREATE TABLE "rocpd_string_a1"(id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE "rocpd_info_agent_a1"(id INTEGER PRIMARY KEY, type TEXT, absolute_index INTEGER);
CREATE TABLE "rocpd_event_a1"(id INTEGER PRIMARY KEY, category_id INTEGER, extdata TEXT);
CREATE TABLE "rocpd_region_a1"(id INTEGER PRIMARY KEY, pid INTEGER, start INTEGER, end INTEGER,
 name_id INTEGER, event_id INTEGER);
CREATE VIEW rocpd_event AS SELECT * FROM "rocpd_event_a1";
"""


def rocpd(path: Path) -> None:
    """Rocpd: each event of the map, as an object and as arrays; one other event."""
    span = {"start_address": str(BASE), "end_address": str(BASE + BLOCK)}
    names = [
        "KFD_PAGE_FAULT",
        "KFD_PAGE_FAULT_WRITE_MIGRATED",
        "KFD_PAGE_MIGRATE",
        "KFD_PAGE_MIGRATE_PAGEFAULT_GPU",
        "KFD_QUEUE",
        "KFD_QUEUE_TTM",
        "KFD_EVENT_UNMAP_FROM_GPU",
        "KFD_EVENT_UNMAP_FROM_GPU_MMU_NOTIFY_MIGRATE",
        "KFD_EVENT_DROPPED_EVENTS",
        "KFD_EVENT_PAGE_FAULT",
        "HIP_API",
    ]
    ids = {name: number + 1 for number, name in enumerate(names)}
    fault = {"agent_id": "4", "address": str(BASE + 0x123)}
    moved = span | {
        "src_agent_id": "-1",
        "dst_agent_id": "4",
        "prefetch_agent_id": "-1",
        "preferred_agent_id": "-1",
        "error_code": "0",
    }
    events = [  # category, name, start, end, map
        ("KFD_PAGE_MIGRATE", "KFD_PAGE_MIGRATE_PAGEFAULT_GPU", 1100, 1800, moved),
        ("KFD_PAGE_FAULT", "KFD_PAGE_FAULT_WRITE_MIGRATED", 1000, 1900, list(fault.items())),
        ("KFD_QUEUE", "KFD_QUEUE_TTM", 2000, 2600, {"agent_id": "4"}),
        (
            "KFD_EVENT_UNMAP_FROM_GPU",
            "KFD_EVENT_UNMAP_FROM_GPU_MMU_NOTIFY_MIGRATE",
            3000,
            3000,
            [{"key": key, "value": value} for key, value in ({"agent_id": "4"} | span).items()],
        ),
        ("KFD_EVENT_DROPPED_EVENTS", "KFD_EVENT_DROPPED_EVENTS", 3100, 3100, {"count": "17"}),
        ("KFD_EVENT_PAGE_FAULT", "KFD_EVENT_PAGE_FAULT", 1000, 1000, fault),
    ]
    rows = [
        (i + 1, ids[category], json.dumps({"kfd": fields}))
        for i, (category, _, _, _, fields) in enumerate(events)
    ]
    database(
        path,
        ROCPD,
        {
            "rocpd_string_a1": [(number, name) for name, number in ids.items()],
            "rocpd_info_agent_a1": [(1, "CPU", 0), (2, "CPU", 1), (3, "GPU", 4)],
            "rocpd_event_a1": [
                *rows,
                (len(rows) + 1, ids["HIP_API"], "{}"),
                (len(rows) + 2, ids["KFD_PAGE_FAULT"], json.dumps({"kfd": fault})),
            ],
            "rocpd_region_a1": [
                (i + 1, 42, start, end, ids[name], i + 1)
                for i, (_, name, start, end, _) in enumerate(events)
            ],
        },
    )


def akita(path: Path) -> None:
    """Akita: two GPUs, two components, times in seconds."""
    schema = """
    CREATE TABLE memory_transactions(ID TEXT, Location TEXT, What TEXT, StartTime REAL,
     EndTime REAL, Address INTEGER, ByteSize INTEGER);
    CREATE TABLE memory_tags(ID TEXT, TaskID TEXT, Time REAL, What TEXT);
    """
    database(
        path,
        schema,
        {
            "memory_transactions": [
                ("b", "GPU[2].DRAM[0]", "WriteReq", 2e-9, 9e-9, 0x2000_0040, 64),
                ("a", "GPU[1].DRAM[3]", "ReadReq", 1e-9, 5e-9, 0x1000_0000, 64),
                ("c", "MMU", "flush", 3e-9, 4e-9, 0x1000_1000, 4),
            ],
            "memory_tags": [("t", "a", 1e-9, "hit")],
        },
    )


def tools(path: Path, version: int) -> None:
    """UVM tools queue: each event with a place, others, an unwritten slot."""
    size = 64 if version == 1 else 72
    entries = []

    def entry(kind: int, *fields: tuple[int, str, int]) -> None:
        raw = bytearray(size)
        raw[0] = kind
        for offset, form, value in fields:
            struct.pack_into("<" + form, raw, offset, value)
        entries.append(bytes(raw))

    if version == 1:
        fault = [(2, "B", 2), (3, "B", 1)]
        ends, moved = [(2, "B", 0), (3, "B", 2)], 8
    else:
        fault = [(37, "B", 2), (2, "H", 1)]
        ends, moved = [(4, "H", 0), (6, "H", 2)], 16
    entry(1, (1, "B", 2), (8, "Q", BASE + 0x10), (16, "Q", 1000), (24, "I", 4242))
    entry(3, (1, "B", 2), *fault, (8, "Q", BASE), (16, "Q", 2000), (24, "Q", 77), (32, "I", 5))
    entry(4)
    entry(
        2,
        (1, "B", 2),
        *ends,
        (moved, "Q", BASE),
        (moved + 8, "Q", 65536),
        (moved + 16, "Q", 2100),
        (moved + 24, "Q", 2500),
    )
    entry(
        14,
        (1, "B", 1),
        (2, "B", 0),
        (8, "Q", BASE + BLOCK),
        (16, "Q", BASE),
        (24, "Q", BLOCK),
        (32, "Q", 3000),
    )
    entry(0)
    entry(5)
    path.write_bytes(b"".join(entries))


def oracle(path: Path, form: str) -> None:
    """OracleGeneral: four objects, the last field the number of the next request."""
    objects = [7, 9, 7, 1 << 60, 9, 12]
    rows = []
    for index, number in enumerate(objects):
        later = [i + 1 for i in range(index + 1, len(objects)) if objects[i] == number]
        head = (100 + index // 2, number, 0 if number == 12 else 4096 * (1 + index % 2))
        rows.append(struct.pack("<" + form, *head, *((1, 3) if "B" in form else ()),
                                later[0] if later else -1))  # fmt: skip
    path.write_bytes(b"".join(rows))


def binary(path: Path, mode: int) -> None:
    """Binary fault log: a range, three faults, a prefetched and an evicted page."""
    rows = [  # type, page, access
        (0, BASE, 1),
        (0, BASE + 0x1000, 2),
        (1, BASE + 0x2000, 0),
        (0, BASE + BLOCK, 3),
        (2, BASE, 0),
    ]
    if mode:
        words = [3 << 56 | BASE, 0x4000, *(kind << 56 | page for kind, page, _ in rows)]
        body = struct.pack(f"<{len(words)}Q", *words)
    else:
        entry = struct.Struct("<QQH12B2x")
        body = entry.pack(BASE, 0x4000, 0, *[0] * 11, 3)
        for number, (kind, page, access) in enumerate(rows):
            time = 1000 + number if kind == 0 else 0
            fields = [1, access, 2, 1, 0, 0, 127, 1, 0, 1, 63]
            body += entry.pack(page, time, 1, *fields, kind)
    path.write_bytes(bytes([mode, 5]) + b"node7" + body)


def main(folder: str) -> None:
    """Write all of them."""
    out = Path(folder)
    nsys(out / "nsys.sqlite")
    rocpd(out / "rocpd.sqlite")
    akita(out / "akita.sqlite")
    tools(out / "uvm_tools_v1.dat", 1)
    tools(out / "uvm_tools_v2.dat", 2)
    binary(out / "uvm_binary_0.dat", 0)
    binary(out / "uvm_binary_1.dat", 1)
    oracle(out / "oracle_general.dat", "IQIq")
    oracle(out / "oracle_general_opns.dat", "IQIBHq")


if __name__ == "__main__":
    main(sys.argv[1])
