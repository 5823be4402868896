"""A quick look at this machine's speed beside the published table.

A handful of the cases of ``bench/rivals.py``, with the two rivals that svmcore's
own dependencies bring: a map on ``sortedcontainers`` and ``numpy.searchsorted``.
Answers are held equal before they are timed; cases take turns and the least of the
rounds counts.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from .._ranges import RangeMap
from .._replay import OUTCOME, replay_chunk
from ..attributes import Attribute
from ..engine import Space
from ..errors import SvmError
from ..machine import Gpu, Machine
from ..records import RECORD, Kind
from ..units import PAGE_SIZE

__all__ = ["CASES", "clock", "compared", "host", "measure", "published"]

# The thread's own time, where it is fine enough: other work on the machine does not count.
_FINE = time.get_clock_info("thread_time").resolution <= 1e-6
#: Seconds, from an arbitrary start.
clock: Callable[[], float] = time.thread_time if _FINE else time.perf_counter

#: Case -> what one operation is. A name ``a/b`` is the rival *b* on the work of *a*.
CASES = {
    "find": "one look-up from Python, uniform",
    "find/sortedcontainers": "the same in a map on a SortedDict",
    "batch": "one look-up of a batch, uniform",
    "batch/searchsorted": "the same by numpy.searchsorted and gather",
    "overwrite": "one overwrite of 1 to 7 pages",
    "overwrite/sortedcontainers": "the same in a map on a SortedDict",
    "fault": "one whole fault in a replay, its window moves",
    "fault call": "one whole fault, one Python call each",
    "hit": "one touch of a mapped page in a replay",
}
_BASE = 4096
_Floats = dict[str, float]


class _SortedMap:
    """Boundaries in a SortedDict: the page where a value begins -> the value."""

    def __init__(self, rows: Iterator[tuple[int, int, int]]) -> None:
        bounds = {0: 0}
        for first, last, value in rows:
            bounds[first] = value
            bounds[last + 1] = 0
        self.bounds = SortedDict(bounds)

    def find(self, page: int) -> int:
        bounds = self.bounds
        return int(bounds.peekitem(bounds.bisect_right(page) - 1)[1])

    def assign(self, first: int, last: int, value: int) -> None:
        bounds, end = self.bounds, last + 1
        if end not in bounds:
            bounds[end] = self.find(end)
        for start in list(bounds.irange(first, last)):
            del bounds[start]
        bounds[first] = value


def published() -> dict[str, Any]:
    """The table that ships with the package: ``machine`` and ``cases``, ns an operation."""
    text = (resources.files("svmcore") / "data" / "bench.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def host() -> dict[str, str]:
    """What this machine is, for a table of figures."""
    from .. import _version

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count() or 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "svmcore": _version.__version__,
    }


def measure(ranges: int = 10_000, rounds: int = 5, operations: int = 20_000) -> _Floats:
    """Nanoseconds an operation of each case.

    Parameters
    ----------
    ranges : int
        Ranges in the map and in the process.
    rounds : int
        How often every case has its turn; the least counts.
    operations : int
        Calls of a scalar case in one round; a batch has ten times as many.

    Returns
    -------
    dict
        The names of :data:`CASES`.

    Raises
    ------
    SvmError
        If two ways to the same answer differ.

    Complexity
    ----------
    O(rounds * operations), about two seconds with the defaults.

    Examples
    --------
    >>> sorted(measure(100, 1, 50)) == sorted(CASES)
    True
    """
    laps = {**_map_laps(ranges, rounds, operations), **_fault_laps(ranges)}
    best = dict.fromkeys(laps, float("inf"))
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for name, lap in laps.items():
                best[name] = min(best[name], lap(number))
    finally:
        if was_on:
            gc.enable()
    return {name: round(best[name] * 1e9, 2) for name in CASES}


def compared(here: _Floats, there: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of case, what it is, ns here, ns published, and how many times faster here."""
    rows = []
    for name, ns in here.items():
        other = there["cases"].get(name)
        rows.append(
            {
                "case": name,
                "what": CASES[name],
                "ns": ns,
                "published_ns": other,
                "speed": None if other is None else round(other / ns, 3),
            }
        )
    return rows


def _layout(ranges: int) -> tuple[npt.NDArray[np.int64], ...]:
    """First and last pages and values of disjoint ranges, 16 pages in the mean."""
    rng = np.random.default_rng([1, ranges])
    pages = rng.integers(1, 32, ranges)
    gap = rng.integers(1, 32, ranges) * (rng.random(ranges) < 0.25)
    first = _BASE + np.cumsum(pages + gap) - pages - gap
    return first, first + pages - 1, np.arange(ranges) % 250 + 1


def _map_laps(ranges: int, rounds: int, operations: int) -> dict[str, Callable[[int], float]]:
    first, last, value = _layout(ranges)
    rows = list(zip(first.tolist(), last.tolist(), value.tolist(), strict=True))
    tree = RangeMap()
    for row in rows:
        tree.assign(*row)
    rival = _SortedMap(iter(rows))
    keys = rival.bounds.keys()
    bounds = np.fromiter(keys, np.uint64, len(keys))
    values = np.fromiter(rival.bounds.values(), np.uint32, len(keys))
    rng = np.random.default_rng([2, ranges])
    batch = rng.integers(_BASE, int(last[-1]) + 1, 10 * operations).astype(np.uint64)
    found = tree.values_many(batch)
    some = batch[: min(operations, 1000)].tolist()
    if not (
        np.array_equal(found, values[np.searchsorted(bounds, batch, "right") - 1])
        and [tree.find_value(page) for page in some] == [rival.find(page) for page in some]
    ):
        raise SvmError("bench: two maps differ: expected equal answers before they are timed")
    pages = rng.integers(_BASE, int(last[-1]) + 1, operations * rounds).tolist()
    start = rng.integers(_BASE, int(last[-1]) - 6, operations * rounds)
    length = rng.integers(0, 7, operations * rounds)
    spans = list(zip(start.tolist(), (start + length).tolist(), (length + 1).tolist(), strict=True))
    # A map of the rival's own speed takes fewer calls a round.
    slow = max(1, operations // 10)

    def find(call: Callable[[int], int], count: int) -> Callable[[int], float]:
        def lap(number: int) -> float:
            part = pages[number * operations :][:count]
            began = clock()
            for page in part:
                call(page)
            return (clock() - began) / len(part)

        return lap

    def overwrite(call: Callable[[int, int, int], None], count: int) -> Callable[[int], float]:
        def lap(number: int) -> float:
            part = spans[number * operations :][:count]
            began = clock()
            for one, other, new in part:
                call(one, other, new)
            return (clock() - began) / len(part)

        return lap

    def many(call: Callable[[], Any]) -> Callable[[int], float]:
        def lap(number: int) -> float:
            began = clock()
            call()
            return (clock() - began) / len(batch)

        return lap

    # Overwrites change the maps of their own.
    changed, changed_rival = tree.clone(), _SortedMap(iter(rows))
    return {
        "find": find(tree.find_value, operations),
        "find/sortedcontainers": find(rival.find, slow),
        "batch": many(lambda: tree.values_many(batch)),
        "batch/searchsorted": many(lambda: values[np.searchsorted(bounds, batch, "right") - 1]),
        "overwrite": overwrite(changed.assign, operations),
        "overwrite/sortedcontainers": overwrite(changed_rival.assign, slow),
    }


def _fault_laps(ranges: int) -> dict[str, Callable[[int], float]]:
    first, last, _ = _layout(ranges)
    space = Space(Machine("bench", (Gpu(1, (1 << 32) - 1),)))
    process = space.process
    process.mmap(_BASE, int(last[-1]))
    advice = np.zeros(ranges, RECORD)
    advice["kind"], advice["access"], advice["value"] = Kind.ADVISE, Attribute.GRANULARITY, 9
    advice["addr"], advice["size"] = first * PAGE_SIZE, (last - first + 1) * PAGE_SIZE
    rng = np.random.default_rng([3, ranges])
    pages = rng.integers(first, last + 1)[rng.permutation(ranges)]
    faults = np.zeros(ranges, RECORD)
    faults["addr"], faults["size"] = pages * PAGE_SIZE, PAGE_SIZE
    faults["proc"], faults["kind"] = 1, Kind.FAULT
    touches, back = faults.copy(), faults.copy()
    touches["kind"] = back["kind"] = Kind.ACCESS
    back["proc"] = 0
    done = np.empty(ranges, OUTCOME)
    listed = pages.tolist()
    replay_chunk(process, advice, done)

    def timed(records: npt.NDArray[np.void]) -> float:
        began = clock()
        replay_chunk(process, records, done, raw=True)
        return (clock() - began) / ranges

    def pull_back() -> None:
        timed(back)
        process.step(process.now + 10_000_000)

    def fault(_: int) -> float:
        pull_back()
        return timed(faults)

    def call(_: int) -> float:
        pull_back()
        access = process.access
        began = clock()
        for page in listed:
            access(1, page, page, False)
        return (clock() - began) / ranges

    def hit(_: int) -> float:
        timed(touches)
        return timed(touches)

    # The first pass makes the objects; in the second every fault must move pages.
    fault(0)
    fault(0)
    if done["code"].any() or not done["moved"].all():
        raise SvmError("bench: a fault moved nothing: expected every window to move")
    return {"fault": fault, "fault call": call, "hit": hit}
