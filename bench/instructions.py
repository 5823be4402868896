"""The instruction gate: how many instructions one operation of the core costs.

Each case runs twice under callgrind, once for ``n`` operations and once for
none; the difference divided by ``n`` is what one operation costs, without the
interpreter's start, the imports and the case's own preparation. The counts are
exact enough to gate on, where wall time on a shared machine is not.

    python bench/instructions.py              measure and print
    python bench/instructions.py --check      fail above the baseline by 2 %
    python bench/instructions.py --update     write the baseline
    python bench/instructions.py find ...     these cases only

The baseline names its environment: compiler of the measured modules, Python,
NumPy, architecture. In another environment the gate says so and allows 10 %.

A new case is one entry of CASES: the number of operations and a code string
that prepares and then defines ``run(n)``, which does ``n`` operations; ``run(0)``
must be allowed. Then ``--update``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

BASELINE = Path(__file__).resolve().parent / "baseline" / "instructions.json"
FAIL_ABOVE = 2.0  # %
TELL_BELOW = -5.0  # %
FAIL_ABOVE_ELSEWHERE = 10.0  # %, where the environment is not the baseline's


class Case(NamedTuple):
    """One case: operations to run and the code that defines ``run(n)``."""

    operations: int
    code: str
    slack: float = 0.0
    """% more than the gate allows, where the count depends on the heap's layout."""


# What the fault cases share: 10,000 ranges in address order, faults in random order.
FAULT = """
import numpy as np
from svmcore import Space
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.records import RECORD
space = Space("gpu-80g")
space.map(1 << 40, 10_000 << 16)
for i in range(10_000):
    space.process.set_attr((1 << 40) + (i << 16), 1 << 16, [(7, 9)])
faults = np.zeros(10_000, RECORD)
faults["addr"] = (1 << 40) + (np.random.default_rng(3).permutation(10_000).astype("u8") << 16)
faults["size"], faults["kind"], faults["proc"] = 4096, 1, 1
out = np.empty(10_000, OUTCOME)
"""

# The same under UVM: the pages were touched by the CPU, which is their preferred location.
UVM = """
import numpy as np
from svmcore import Space
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.records import RECORD
space = Space("gpu-80g", policy="uvm")
space.map(1 << 40, 10_000 << 16)
space.prefetch(1 << 40, 10_000 << 16, "cpu")
space.advise(1 << 40, 10_000 << 16, "preferred_location", "cpu")
faults = np.zeros(10_000, RECORD)
faults["addr"] = (1 << 40) + (np.random.default_rng(3).permutation(10_000).astype("u8") << 16)
faults["size"], faults["kind"], faults["proc"] = 4096, 1, 1
out = np.empty(10_000, OUTCOME)
"""

CASES: dict[str, Case] = {
    # Uniform look-ups among 10,000 ranges, through the compiled batch.
    "find": Case(
        100_000,
        """
import numpy as np
from svmcore._ranges import RangeMap
ranges = RangeMap(merge=False, node_entries=0)
for i in range(10_000):
    ranges.assign(i * 64, i * 64 + 63, i + 1)
pages = np.random.default_rng(1).integers(0, 640_000, 100_000, dtype=np.uint64)
def run(n):
    ranges.values_many(pages[:n])
""",
    ),
    # Each overwrite falls inside one range of 64 pages and leaves a head and a tail.
    "overwrite_split": Case(
        10_000,
        """
import numpy as np
from svmcore._ranges import RangeMap
ranges = RangeMap(merge=False, node_entries=0)
for i in range(10_000):
    ranges.assign(i * 64, i * 64 + 63, i + 1)
starts = [int(i) * 64 + 16 for i in np.random.default_rng(2).permutation(10_000)]
def run(n):
    assign = ranges.assign
    for first in starts[:n]:
        assign(first, first + 31, 20_000)
""",
    ),
    # One recorded fault on each of 10,000 registered ranges of 16 pages: all of them move. They
    # have moved before and are back, so that nothing grows.
    "fault": Case(
        10_000,
        FAULT
        + """
replay_chunk(space.process, faults, out, raw=True)
back = faults.copy()
back["proc"], back["kind"] = 0, 0
replay_chunk(space.process, back, out)
space.process.step(space.process.now + 10_000_000)
def run(n):
    replay_chunk(space.process, faults[:n], out[:n], raw=True)
""",
    ),
    # A touch that finds its page mapped.
    "access_mapped": Case(
        10_000,
        FAULT
        + """
replay_chunk(space.process, faults, out, raw=True)
faults["kind"] = 0
def run(n):
    replay_chunk(space.process, faults[:n], out[:n])
""",
        slack=2.0,
    ),
    # A fault on a page without a range: one is made, an object allocated, its pages moved.
    "fault_unregistered": Case(
        10_000,
        FAULT
        + """
space = Space("gpu-80g", granularity=4)
space.map(1 << 40, 10_000 << 16)
def run(n):
    replay_chunk(space.process, faults[:n], out[:n], raw=True)
""",
        slack=4.0,
    ),
    # A launch of one of four host threads, one locked block, on the calibrated machine.
    "stack_launch": Case(
        20_000,
        """
import numpy as np
from svmcore.stacks import LaunchTrace, launch_costs, replay
from svmcore.stacks.trace import RECORD
costs = launch_costs("h200")
records = np.zeros(20_000, RECORD)
records["thread"] = np.arange(20_000) % 4
records["size"], records["kernel_ns"] = 8 << 20, 50_000
def run(n):
    trace = LaunchTrace(records[: n or 4], threads=(0, 1, 2, 3))
    replay(trace, "locked_block", costs=costs, capacity=1 << 40)
""",
    ),
    # A UVM fault that hits resident memory: it is mapped where it is.
    "uvm_fault": Case(
        10_000,
        UVM
        + """
def run(n):
    replay_chunk(space.process, faults[:n], out[:n])
""",
    ),
    # A touch under UVM that finds its page mapped.
    "uvm_touch_mapped": Case(
        10_000,
        UVM
        + """
replay_chunk(space.process, faults, out)
faults["kind"] = 0
def run(n):
    replay_chunk(space.process, faults[:n], out[:n])
""",
    ),
    # A UVM fault that brings pages from system memory, with those that the tree adds.
    "uvm_fault_move": Case(
        10_000,
        UVM
        + """
space.advise(1 << 40, 10_000 << 16, "unset_preferred_location")
def run(n):
    replay_chunk(space.process, faults[:n], out[:n])
""",
    ),
    # set_attr that cuts one range of 64 pages in three.
    "set_attr_split": Case(
        2_000,
        """
from svmcore import Space
process = Space("gpu-80g").process
process.mmap(1 << 28, (1 << 28) + 2_000 * 64 - 1)
for i in range(2_000):
    process.set_attr(((1 << 28) + i * 64) << 12, 64 << 12, [(7, 6)])
def run(n):
    for i in range(n):
        process.set_attr(((1 << 28) + i * 64 + 16) << 12, 32 << 12, [(7, 5)])
""",
        slack=2.0,
    ),
}

PROGRAM = """
import gc, sys
exec(compile(sys.argv[1], "case", "exec"))
gc.collect()
gc.disable()
run(int(sys.argv[2]))
"""


def modules() -> list[Path]:
    """The compiled modules that are measured."""
    package = importlib.import_module("svmcore")
    folder = Path(str(package.__file__)).parent
    return sorted(path for path in folder.rglob("*") if path.suffix in (".so", ".pyd"))


def compilers() -> str:
    """Compilers that the modules themselves name."""
    pattern = re.compile(rb"GCC: \([^)\0]*\) [\d.]+|clang version [\d.]+")
    found = {name.decode() for path in modules() for name in pattern.findall(path.read_bytes())}
    return ", ".join(sorted(found)) or "unknown"


def environment() -> dict[str, str]:
    return {
        "compiler": compilers(),
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "arch": platform.machine(),
    }


def count(code: str, operations: int) -> int:
    """Instructions of one whole run."""
    # A fixed environment: its size, the hash seed and threads would move the count.
    env = {
        "PATH": os.defpath,
        "LC_ALL": "C.UTF-8",
        "LD_BIND_NOW": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={folder}/out",
            f"--log-file={folder}/log",
            sys.executable,
            "-c",
            PROGRAM,
            code,
            f"{operations:08d}",
        ]
        run = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            log = Path(folder, "log")
            raise SystemExit(
                f"callgrind: exit {run.returncode}\n{run.stderr[-2000:]}"
                f"{log.read_text('utf-8')[-2000:] if log.exists() else ''}"
            )
        match = re.search(
            r"(?m)^(?:totals|summary):\s*(\d+)", Path(folder, "out").read_text("utf-8")
        )
        if match is None:
            raise SystemExit("callgrind: no totals in its output")
        return int(match.group(1))


def measure(names: list[str]) -> dict[str, float]:
    """Instructions per operation of each case."""
    jobs = [(CASES[name].code, n) for name in names for n in (0, CASES[name].operations)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        counts = list(pool.map(lambda job: count(*job), jobs))
    return {
        name: round((counts[2 * i + 1] - counts[2 * i]) / CASES[name].operations, 2)
        for i, name in enumerate(names)
    }


def check(now: dict[str, float], here: dict[str, str], baseline: dict[str, Any]) -> int:
    """Compare with the baseline; 0 when every case is within its bound."""
    bound = FAIL_ABOVE
    there = baseline["environment"]
    if there != here:
        bound = FAIL_ABOVE_ELSEWHERE
        print(f"NOTE: this is not the environment of the baseline; the bound is {bound:.0f} %")
        for key in sorted({*here, *there}):
            if here.get(key) != there.get(key):
                print(f"NOTE: {key}: {here.get(key)}, the baseline has {there.get(key)}")
    failed = 0
    for name, value in now.items():
        before = baseline["cases"].get(name)
        if before is None:
            print(f"FAIL  {name}: {value:.2f}, no baseline: run with --update")
            failed += 1
            continue
        change = 100 * (value - before) / before
        allowed = bound + CASES[name].slack
        if change > allowed:
            verdict = f"FAIL  (more than {allowed:.0f} %)"
            failed += 1
        elif change < TELL_BELOW:
            verdict = "ok    (cheaper: move the baseline with --update)"
        else:
            verdict = "ok"
        print(f"{name:24} {before:12.2f} {value:12.2f} {change:+7.2f} %  {verdict}")
    for name in sorted(baseline["cases"].keys() - CASES.keys()):
        print(f"FAIL  {name}: in the baseline, but no case: run with --update")
        failed += 1
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Instructions per operation of the core.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="compare with the baseline")
    group.add_argument("--update", action="store_true", help="write the baseline")
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"case {unknown[0]!r}: expected one of {', '.join(CASES)}")
    if options.update and options.cases:
        parser.error("--update measures every case: name none")
    if shutil.which("valgrind") is None:
        parser.error("valgrind: not found, expected on PATH")
    names = options.cases or list(CASES)
    here = environment()
    now = measure(names)
    if options.check:
        if not BASELINE.exists():
            print(f"FAIL  {BASELINE}: no baseline: run with --update")
            return 1
        return check(now, here, json.loads(BASELINE.read_text("utf-8")))
    for name, value in now.items():
        print(f"{name:24} {value:12.2f} instructions per operation")
    if options.update:
        BASELINE.parent.mkdir(exist_ok=True)
        text = json.dumps({"environment": here, "cases": now}, indent=2)
        BASELINE.write_text(text + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
