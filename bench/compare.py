"""Two revisions side by side: built apart, run in turns, ratios with their spread.

    python bench/compare.py main HEAD
    python bench/compare.py v0.1.0 main --rounds 9 --only fault

Each revision is taken out of git into a temporary folder and installed into an
environment of its own, without a network: the build uses the packages of the running
interpreter (NumPy, Cython, setuptools). Both run the cases of *this* checkout. A ratio
below 1 means that HEAD is faster; the spread is that of the rounds' own ratios, and a
change inside it says nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent


def cases(ranges: int) -> dict[str, Callable[[], Callable[[], float]]]:
    """Case -> a maker of a lap that gives seconds an operation."""
    import goals
    import numpy as np
    import rivals
    import workloads

    from svmcore._ranges import RangeMap
    from svmcore._replay import OUTCOME, replay_chunk
    from svmcore.records import Kind

    clock = rivals.clock
    where = workloads.layout(ranges)
    pages = workloads.addresses(where, "uniform", 200_000)
    few = pages[:20_000].tolist()
    spans = workloads.overwrites(where, 20_000)

    def made() -> Any:
        one = RangeMap()
        for row in where.rows():
            one.assign(*row)
        return one

    def find() -> Callable[[], float]:
        one = made()
        return lambda: rivals.loop_find(one.find_value, few)

    def batch(pattern: str) -> Callable[[], float]:
        one, asked = made(), workloads.addresses(where, pattern, len(pages))

        def lap() -> float:
            began = clock()
            one.values_many(asked)
            return (clock() - began) / len(asked)

        return lap

    def overwrite() -> Callable[[], float]:
        one = made()
        return lambda: rivals.loop_assign(one.clone().assign, spans)

    def erase() -> Callable[[], float]:
        one = made()

        def lap() -> float:
            call = one.clone().erase
            began = clock()
            for first, last, _ in spans:
                call(first, last)
            return (clock() - began) / len(spans)

        return lap

    def clone() -> Callable[[], float]:
        one = made()

        def lap() -> float:
            began = clock()
            one.clone()
            return clock() - began

        return lap

    def fault(mix: bool, order: str) -> Callable[[], float]:
        one = goals.Faults(ranges, mix, order)

        def lap() -> float:
            done = one.lap()
            one.pull_back()
            return done

        return lap

    def hit() -> Callable[[], float]:
        one = goals.Faults(ranges, mix=False)
        one.lap()
        touches = one.records.copy()
        touches["kind"] = Kind.ACCESS
        done = np.empty(len(touches), OUTCOME)

        def lap() -> float:
            began = clock()
            replay_chunk(one.process, touches, done, by=1)
            return (clock() - began) / len(touches)

        return lap

    def call() -> Callable[[], float]:
        one = goals.Faults(ranges, mix=False)
        asked = one.pages.tolist()

        def lap() -> float:
            access = one.process.access
            began = clock()
            for page in asked:
                access(1, page, page, False)
            done = (clock() - began) / len(asked)
            one.pull_back()
            return done

        return lap

    return {
        "find": find,
        "batch, uniform": lambda: batch("uniform"),
        "batch, sequential": lambda: batch("sequential"),
        "overwrite": overwrite,
        "erase": erase,
        "clone": clone,
        "fault, all move": lambda: fault(False, "uniform"),
        "fault, mix": lambda: fault(True, "uniform"),
        "fault, streams": lambda: fault(False, "streams"),
        "fault, one call": call,
        "access, hit": hit,
    }


def work(ranges: int) -> int:
    """The other end of a pipe: a case's name comes in, the best of a few laps goes out."""
    table = cases(ranges)
    laps: dict[str, Callable[[], float]] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in laps:
                laps = {name: table[name]()}  # one at a time: memory
                laps[name]()
            found: dict[str, Any] = {"s": min(laps[name]() for _ in range(3))}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)
    return 0


class Revision:
    """A revision, built and waiting at a pipe."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        tree, home = folder / "tree", folder / "venv"
        command = ["git", "-C", str(ROOT), "archive", "--format=tar", name]
        packed = subprocess.run(command, capture_output=True, check=False)
        if packed.returncode != 0:
            raise SystemExit(f"{name}: {packed.stderr.decode(errors='replace').strip()}")
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(tree, filter="data")
        venv.create(home)  # without pip, whose old setuptools would come first
        scripts = "Scripts" if os.name == "nt" else "bin"
        self.python = home / scripts / "python"
        where = subprocess.run(
            [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        # Packages of the running interpreter, after the environment's own.
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        paths |= {path for path in sys.path if path.endswith("site-packages")}
        Path(where, "zz_host.pth").write_text("\n".join(sorted(paths)) + "\n", "utf-8")
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        command += ["--no-build-isolation", "--no-deps", "--no-index"]
        command += ["--disable-pip-version-check", str(tree)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean())
        if done.returncode != 0:
            raise SystemExit(f"{name}: does not build\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def start(self, ranges: int) -> None:
        self.worker = subprocess.Popen(
            [self.python, str(Path(__file__).resolve()), "--worker", str(ranges)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean(),
        )

    def ask(self, case: str) -> dict[str, Any]:
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(case + "\n")
        self.worker.stdin.flush()
        line = self.worker.stdout.readline()
        return json.loads(line) if line else {"error": "the worker ended"}

    def stop(self) -> None:
        if hasattr(self, "worker"):
            assert self.worker.stdin is not None
            self.worker.stdin.close()
            self.worker.wait(30)


def clean() -> dict[str, str]:
    """The environment without a path that would bring another svmcore."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def compared(base: Revision, head: Revision, names: list[str], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        times: dict[str, list[float]] = {"base": [], "head": []}
        error = None
        for number in range(rounds):
            # A B, B A, ...: what drifts hits both.
            pair = [("base", base), ("head", head)]
            for key, revision in pair if number % 2 == 0 else reversed(pair):
                found = revision.ask(name)
                error = error or (
                    f"{revision.name}: {found['error']}" if "error" in found else None
                )
                times[key].append(found.get("s", float("nan")))
            if error:
                break
        row: dict[str, Any] = {"case": name, "error": error}
        if not error:
            own = [h / b for b, h in zip(times["base"], times["head"], strict=True)]
            row |= {
                "base_ns": min(times["base"]) * 1e9,
                "head_ns": min(times["head"]) * 1e9,
                "ratio": min(times["head"]) / min(times["base"]),
                "lowest": min(own),
                "highest": max(own),
            }
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("base", nargs="?", metavar="BASE")
    parser.add_argument("head", nargs="?", metavar="HEAD", default="HEAD")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranges", type=lambda text: int(float(text)), default=10_000)
    parser.add_argument("--only", help="cases whose name holds this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options.worker)
    if options.base is None:
        parser.error("BASE is missing: expected a revision, as main")
    names = [
        "find",
        "batch, uniform",
        "batch, sequential",
        "overwrite",
        "erase",
        "clone",
        "fault, all move",
        "fault, mix",
        "fault, streams",
        "fault, one call",
        "access, hit",
    ]
    names = [name for name in names if options.only is None or options.only in name]
    if not names or options.rounds < 1:
        parser.error("nothing to do: expected at least one case and one round")
    with tempfile.TemporaryDirectory() as place:
        both = []
        for key in ("base", "head"):
            name = getattr(options, key)
            print(f"building {name}", file=sys.stderr, flush=True)
            folder = Path(place) / key
            folder.mkdir()
            both.append(Revision(name, folder))
        try:
            for revision in both:
                revision.start(options.ranges)
            rows = compared(both[0], both[1], names, options.rounds)
        finally:
            for revision in both:
                revision.stop()
    if options.json:
        print(json.dumps({"base": options.base, "head": options.head, "cases": rows}))
        return 0
    print(f"{options.ranges:,} ranges, {options.rounds} rounds; head / base, below 1 is faster")
    print(f"{'case':20}{'base ns':>14}{'head ns':>14}{'ratio':>8}   spread of the rounds")
    for row in rows:
        if row["error"]:
            print(f"{row['case']:20}{row['error']}")
            continue
        spread = f"{row['lowest']:.2f} .. {row['highest']:.2f}"
        figures = f"{row['base_ns']:14.1f}{row['head_ns']:14.1f}{row['ratio']:8.3f}"
        print(f"{row['case']:20}{figures}   {spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
