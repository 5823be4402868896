"""State files: how fast a space is saved and loaded, and what each digest would cost.

    python bench/state.py                      # 1,000,000 ranges, 250,000 blocks of 2 MiB
    python bench/state.py --ranges 10000 --blocks 4000 --json
    python bench/state.py --docs               # docs/performance/state-files.md

Times are of the thread's own work, the best of the rounds: other work on the machine
does not count. Files lie in the page cache of ``--folder``, their sync left out; beside it
stands what a save down to the disk takes on the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import workloads

from svmcore import Gpu, Machine, Space
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.attributes import Attribute
from svmcore.policies import _kfd_state
from svmcore.records import RECORD, Kind
from svmcore.report.bench import host

PAGE = 4096
PAGE_DOCS = Path(__file__).resolve().parents[1] / "docs" / "performance" / "state-files.md"
#: The bars: bytes and ranges a second.
BYTES_BAR, RANGES_BAR = 1e9, 5e6
ROUNDS = 5
Row = dict[str, Any]


def of_ranges(ranges: int, *, shuffled: bool) -> Space:
    """Ranges of ten kinds of attributes, every one with pages in GPU memory."""
    where = workloads.layout(ranges)
    space = Space(Machine("bench", (Gpu(1, (1 << 32) - 1),)))
    space.process.mmap(workloads.BASE, where.end - 1)
    advice = np.zeros(ranges, RECORD)
    advice["kind"], advice["access"] = Kind.ADVISE, Attribute.GRANULARITY
    advice["value"] = np.arange(ranges) % 10
    advice["addr"] = where.first.astype(np.uint64) * PAGE
    advice["size"] = (where.last - where.first + 1).astype(np.uint64) * PAGE
    if shuffled:
        advice = advice[np.random.default_rng(5).permutation(ranges)]
    faults = np.zeros(ranges, RECORD)
    faults["kind"], faults["proc"] = Kind.FAULT, 1
    faults["addr"], faults["size"] = advice["addr"], PAGE
    out = np.empty(ranges, OUTCOME)
    for records in (advice, faults):
        replay_chunk(space.process, records, out, raw=True)
        assert not out["code"].any()
    return space


def of_masks(blocks: int) -> Space:
    """A large range, of whose 2 MiB blocks each has one page in GPU memory."""
    space = Space(Machine("bench", (Gpu(1, (1 << 32) - 1),)), max_svm_range_pages=1 << 31)
    addr = 1 << 40
    space.map(addr, blocks << 21)
    space.access(addr, blocks << 21, by="cpu", write=True)
    space.set_attr(addr, blocks << 21, {"granularity": 0, "preferred_location": "gpu0"})
    touches = np.zeros(blocks, RECORD)
    touches["addr"] = addr + (np.arange(blocks, dtype=np.uint64) << np.uint64(21))
    touches["size"], touches["proc"], touches["access"] = PAGE, 1, 1
    replay_chunk(space.process, touches, np.empty(blocks, OUTCOME))
    return space


def best(call: Callable[[], Any], clock: Callable[[], float], rounds: int) -> float:
    """Seconds of the fastest turn."""
    took = []
    for _ in range(rounds):
        began = clock()
        call()
        took.append(clock() - began)
    return min(took)


def measure(name: str, space: Space, folder: Path, rounds: int) -> Row:
    """Save and load of one space, to and from the page cache, and down to the disk."""
    tables = space.policy.pack(space.process)
    size = sum(table.nbytes for table in tables.values())
    ranges = len(space.process)
    row: Row = {"state": name, "ranges": ranges, "bytes": size}

    def unpack() -> None:
        _kfd_state.unpack(space.policy.create(space.machine), tables)

    cpu, wall = time.thread_time, time.perf_counter
    row["pack_s"] = best(lambda: space.policy.pack(space.process), cpu, rounds)
    row["unpack_s"] = best(unpack, cpu, rounds)
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        path = Path(inner, "a.svm")
        row["save_disk_wall_s"] = best(lambda: space.save(path), wall, rounds)
        with mock.patch("os.fsync"):
            row["save_s"] = best(lambda: space.save(path), cpu, rounds)
        row["load_s"] = best(lambda: Space.load(path), cpu, rounds)
        other = Space.load(path)
        other.process.check()
        assert other.counters() == space.counters()
    return row


def digests(rounds: int, size: int = 64 << 20) -> dict[str, float]:
    """GB/s of what the standard library and NumPy offer, over memory that no cache holds."""
    data = np.random.default_rng(1).integers(0, 1 << 63, size // 8, dtype=np.uint64)
    view = data.view(np.uint8).data
    calls: dict[str, Callable[[], Any]] = {
        "zlib.crc32": lambda: zlib.crc32(view),
        "zlib.adler32": lambda: zlib.adler32(view),
        "numpy sum of words": data.sum,
    }
    for word in ("sha1", "sha256", "blake2b", "sha512", "md5", "blake2s"):
        calls[f"hashlib.{word}"] = lambda word=word: hashlib.new(word, view).digest()
    return {
        name: round(size / best(call, time.thread_time, rounds) / 1e9, 2)
        for name, call in calls.items()
    }


def run(ranges: int, blocks: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Everything that the page shows."""
    rows = [
        measure("ranges made in address order", of_ranges(ranges, shuffled=False), folder, rounds),
        measure("ranges made in any order", of_ranges(ranges, shuffled=True), folder, rounds),
        measure("masks of one large range", of_masks(blocks), folder, rounds),
    ]
    return {"machine": host(), "rounds": rounds, "states": rows, "digests": digests(rounds)}


def speed(row: Row, key: str) -> tuple[float, float]:
    """GB/s and million ranges a second."""
    return row["bytes"] / row[key] / 1e9, row["ranges"] / row[key] / 1e6


def table(found: dict[str, Any]) -> list[str]:
    """The figures in Markdown."""
    lines = [
        "| state | bytes | | GB/s | million ranges/s |",
        "| --- | --: | --- | --: | --: |",
    ]
    for row in found["states"]:
        many = row["ranges"] > 1000
        for key, what in (
            ("save_s", "save"),
            ("load_s", "load"),
            ("pack_s", "of a save: to tables"),
            ("unpack_s", "of a load: from tables"),
            ("save_disk_wall_s", "save, synced to the disk, on the clock"),
        ):
            bytes_s, ranges_s = speed(row, key)
            first = key == "save_s"
            name = f"{row['state']}, {row['ranges']:,}" if first else ""
            shown = f"{ranges_s:.2f}" if many else "-"
            size = f"{row['bytes']:,}" if first else ""
            lines.append(f"| {name} | {size} | {what} | {bytes_s:.2f} | {shown} |")
    lines += ["", "| digest | GB/s |", "| --- | --: |"]
    order = sorted(found["digests"].items(), key=lambda item: -item[1])
    return lines + [f"| `{name}` | {rate:.2f} |" for name, rate in order]


def write_page(found: dict[str, Any], command: str) -> None:
    """docs/performance/state-files.md: its text up to the marker, then these figures."""
    kept = PAGE_DOCS.read_text("utf-8").partition("<!-- figures -->")[0]
    machine = found["machine"]
    head = (
        f"{machine['cpu']}, {machine['cores']} virtual cores shared with other work, "
        f"{machine['system']}, Python {machine['python']}, NumPy {machine['numpy']}; "
        f"best of {found['rounds']} rounds. Printed by `{command}`."
    )
    PAGE_DOCS.write_text("\n".join([f"{kept}<!-- figures -->\n", head, "", *table(found), ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranges", type=int, default=1_000_000)
    parser.add_argument("--blocks", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    found = run(options.ranges, options.blocks, options.folder, options.rounds)
    if options.docs:
        write_page(found, "python bench/state.py --docs")
    print(json.dumps(found) if options.json else "\n".join(table(found)))
    short = [
        f"{row['state']}: {key[:4]} {bytes_s / 1e9:.2f} GB/s, {ranges_s / 1e6:.2f} M ranges/s"
        for row in found["states"]
        for key in ("save_s", "load_s")
        for bytes_s, ranges_s in [(row["bytes"] / row[key], row["ranges"] / row[key])]
        if bytes_s < BYTES_BAR and ranges_s < RANGES_BAR
    ]
    for line in short:
        print(f"below both bars: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
