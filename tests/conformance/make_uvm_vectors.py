"""Makes the package's own UVM vector file by asking the executable specification.

``python tests/conformance/make_uvm_vectors.py`` writes ``tests/data/uvm_vectors.json``,
``--check`` compares with what is there (exit 1 where it differs). The file has the form
of the driver's vectors: keys prefetch, thrashing, residency, coalescing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from svmcore import conformance_uvm

PATH = Path(__file__).parents[1] / "data" / "uvm_vectors.json"
TOPOLOGIES = ("pcie", "pciepeer", "nvpeer", "coherent")


def cases() -> dict[str, list[dict[str, Any]]]:
    """Inputs, with empty outputs."""
    rng = random.Random(7)
    some = rng.sample
    prefetch = []
    for _ in range(24):
        start = rng.choice((0, 0, 6, 10, 160))
        pages = rng.choice((512 - start, 106, 30, 12))
        free = list(range(pages))
        first = rng.randrange(pages)
        resident = [[first, min(first + rng.choice((1, 16, 100, 256)), pages)]]
        prefetch.append(
            {
                "block_start_page": start,
                "block_pages": pages,
                "resident": rng.choice(([], resident, resident)),
                "faulted": sorted(some(free, min(rng.choice((1, 2, 5, 12)), pages))),
                "thrashing": rng.choice(([], [], sorted(some(free, min(3, pages))))),
                "threshold": rng.choice((51, 51, 51, 0, 1, 25, 75, 100)),
                "min_faults": rng.choice((1, 1, 2)),
                "dst": rng.choice((0, 1, 9)),
                "preferred": rng.choice((None, None, 0, 1)),
                "block_has_residents": rng.choice((True, False)),
                "cpu_mapped": rng.choice(([], resident)),
                "mask": [],
                "hint_given": False,
            }
        )
    residency = [
        {
            "topology": rng.choice(TOPOLOGIES),
            "requester": rng.choice((0, 1, 9)),
            "access": sorted(some(range(5), rng.choice((1, 1, 2)))),
            "preferred": rng.choice((None, 0, 1, 9)),
            "accessed_by": sorted(some((0, 1, 9), rng.choice((0, 0, 1, 2)))),
            "read_dup_policy": rng.choice(("unset", "unset", "enabled", "disabled")),
            "page_read_duplicated": rng.random() < 0.3,
            "resident": sorted(some((0, 1, 9), rng.choice((0, 1, 1, 2)))),
            "pin": rng.choice((None, None, 0, 1)),
            "access_counter": rng.random() < 0.2,
            "remote_mm": rng.random() < 0.2,
            "map_remote_on_native_atomics": rng.random() < 0.5,
            "destination": 0,
            "read_duplicate": False,
        }
        for _ in range(60)
    ]
    coalescing = [
        {
            "faults": [
                [rng.choice((5, 5, 6)), rng.randrange(5), rng.randrange(3), rng.randrange(2)]
                for _ in range(rng.randrange(1, 12))
            ],
            "representatives": [],
        }
        for _ in range(12)
    ]
    thrashing = [
        {
            "topology": topology,
            "processors": [0, 1, 9],
            "preferred": rng.choice((None, None, 0, 1)),
            "adaptive_lapse": adaptive,
            "step_ns": rng.choice((20_000, 100_000, 600_000)),
            "order": rng.choice(([1, 0], [1, 9], [1, 9, 0])),
            "accesses": 120,
            "start_ns": 1_000_000,
            "init_residency": 0,
            "steps": [],
        }
        for topology in TOPOLOGIES
        for adaptive in (False, True)
    ]
    return {
        "prefetch": prefetch,
        "residency": residency,
        "coalescing": coalescing,
        "thrashing": thrashing,
    }


def vectors() -> dict[str, list[dict[str, Any]]]:
    """The inputs with what the executable specification says."""
    made = cases()
    rows: dict[str, list[Any]] = {}
    for name, _, got in conformance_uvm.steps(made, reference=True):
        kind, number = name.split(" ")
        rows.setdefault(f"{kind} {number.partition('.')[0]}", []).append(got)
    for name, got in rows.items():
        kind, number = name.split(" ")
        case = made[kind][int(number)]
        if kind == "prefetch":
            case["mask"], case["hint_given"] = got[0]
        elif kind == "residency":
            case["destination"], case["read_duplicate"] = got[0]
        elif kind == "coalescing":
            case["representatives"] = got[0]
        else:
            case["steps"] = got
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    text = json.dumps(vectors(), separators=(",", ":")).replace("},{", "},\n{") + "\n"
    if parser.parse_args().check:
        same = PATH.is_file() and PATH.read_text("utf-8") == text
        print(f"{PATH.name}: {'as it is made' if same else 'differs'}")
        return int(not same)
    PATH.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
