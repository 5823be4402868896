"""Makes the package's own launch-stack cases by playing traces on the readable engine.

``python tests/conformance/make_stack_vectors.py`` writes ``stack_vectors/own_softstack.json``;
``--check`` compares with what is there and writes nothing (exit 1 where anything
differs). The cases are about what happens when threads meet: a trim while another
launch is running, growth beside smaller launches, a block that cannot be had.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from svmcore.stacks.vectors import expected_rows

PATH = Path(__file__).parent / "stack_vectors" / "own_softstack.json"
POLICIES = [
    "none",
    "unbounded_2020_10",
    "locked_block(gcc11+)",
    "locked_block(limit=4MiB)",
    "bounded(4MiB)",
    "take_put",
    "sole_user",
    "exclusive_only",
    "exclusive_only(strict=on)",
    "pool(2)",
    "pool(k=2, when_full=wait)",
    "per_thread",
    "per_thread(at_thread_end=free)",
    "per_stream",
    "gcn_list",
]

Row = dict[str, Any]


def launch(thread: int, teams: int, kernel_us: int = 200, t_us: int = 0, **fields: Any) -> Row:
    row = {"op": "launch", "thread": thread, "teams": teams, "threads": 8}
    return row | {"kernel_ns": kernel_us * 1000, "t": t_us * 1000, "stream": thread, **fields}


def alloc(thread: int, mib: int, name: str, t_us: int = 0) -> Row:
    return {"op": "alloc", "thread": thread, "bytes": mib << 20, "id": name, "t": t_us * 1000}


def free(thread: int, name: str, t_us: int = 0) -> Row:
    return {"op": "free", "thread": thread, "id": name, "t": t_us * 1000}


#: Name -> device memory in MiB, trace.
CASES: dict[str, tuple[int, list[Row]]] = {
    # Each thread's launches grow and shrink out of step with the others'.
    "growth_of_three": (
        256,
        [launch(thread, 4 << (turn + thread) % 3) for turn in range(5) for thread in range(3)],
    ),
    # The user's allocations trim what others are using or have just put back.
    "trim_between_launches": (
        64,
        [
            row
            for turn in range(4)
            for row in (
                launch(0, 8, 300),
                launch(1, 3, 100),
                alloc(2, 5, f"a{turn}", 350 * turn),
                free(2, f"a{turn}"),
            )
        ],
    ),
    # The second of two sizes does not fit beside the user's memory: fatal to its thread.
    "no_block_to_be_had": (
        16,
        [
            alloc(0, 9, "a"),
            launch(0, 4),
            launch(1, 8, t_us=500),
            launch(1, 4),
            launch(2, 4, t_us=700),
            free(0, "a", 2000),
            launch(0, 12),
        ],
    ),
    # The user's allocation fails, the cache is freed, and it fits.
    "retry_beside_a_launch": (
        24,
        [launch(0, 8, 900), launch(1, 8, 100), alloc(1, 12, "a"), launch(1, 4), free(1, "a")],
    ),
    # Two threads share a stream, two have their own; equal times everywhere.
    "equal_times": (
        64,
        [
            launch(thread, 2 + thread % 2, 100, 400 * turn, stream=thread // 2)
            for turn in range(3)
            for thread in range(4)
        ],
    ),
}


def text() -> str:
    table: dict[str, Any] = {
        "note": "made by the readable engine of svmcore",
        "stack_bytes_per_warp": 128 << 10,
        "alloc_ns": 100_000,
        "free_ns": 50_000,
        "cases": {},
    }
    for name, (mib, trace) in CASES.items():
        case = {"capacity_bytes": mib << 20, "trace": trace}
        table["cases"][name] = case | {"expect": expected_rows(table, case, POLICIES)}
    return json.dumps(table, separators=(",", ":")) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(argv)
    made = text()
    if not options.check:
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(made, "utf-8")
        return 0
    if PATH.read_text("utf-8") != made:
        print(f"{PATH.name}: differs from what the readable engine does now")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
