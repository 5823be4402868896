"""The goals G1 to G15 and the bars of the engine: reached, bar, met or not.

``python bench/rivals.py --goals`` runs it. Everything is a ratio within this run,
or a figure of this machine where the bar itself is one. Cases take turns (A, B, ...,
A again), the least of at least five rounds counts.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rivals
import workloads
from sortedcontainers import SortedDict

import svmcore
from svmcore import Gpu, Machine, Space
from svmcore._ranges import RangeMap
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.attributes import Attribute
from svmcore.records import RECORD, Kind

ROUNDS = rivals.ROUNDS
clock = rivals.clock
FAIL_BELOW = 0.7
PAGE = 4096
GPU_ID = 1
GRANULARITY = 9  # 2 MiB, the driver's default
TRACE = rivals.ROOT.parent / "shared" / "data" / "workloads" / "gpt_train_3steps.csv.gz"
Row = dict[str, Any]


def row(
    goal: str,
    case: str,
    reached: float | None,
    bar: float | None,
    unit: str = "x",
    *,
    most: bool = False,
    note: str = "",
) -> Row:
    """One line; ``most``: the bar is an upper one. Without a bar it only tells."""
    share = None
    if reached is not None and bar is not None:
        share = bar / max(reached, 1e-12) if most else reached / bar
    return {
        "goal": goal,
        "case": case,
        "reached": reached,
        "bar": bar,
        "unit": unit,
        "most": most,
        "share": share,
        "met": None if share is None else share >= 1.0,
        "note": note,
    }


# ---- ranges: G1 to G12, G15 -----------------------------------------------------------


def ranges_goals(ranges: int, quick: bool) -> list[Row]:
    where = workloads.layout(ranges)
    big = ranges >= 100_000
    n, budget = (2_000, 0.02) if quick else (50_000, 0.15)
    batch = 50_000 if quick else 1_000_000
    wanted = [
        rivals.Svmcore,
        rivals.SortedMap,
        rivals.Lists,
        rivals.BTree,
        rivals.DictOfPages,
        rivals.FlatPages,
        rivals.Searchsorted,
        rivals.Ncls,
        rivals.IntervalTreeMap,
    ]
    there = [rival for rival in wanted if rivals.present(rival) and ranges <= rival.limit]
    small = workloads.layout(min(ranges, 10_000))
    for rival in there:
        rivals.check(rival, small)
    maps = {rival.name: rival(where) for rival in there}
    at = f"{ranges:,} ranges"
    rows: list[Row] = []

    def ratio(goal: str, what: str, ns: dict[str, float], rival: type[rivals.Rival], bar: float):
        if rival.name in ns:
            note = f"{ns['svmcore']:.1f} ns against {ns[rival.name]:.1f}"
            reached = ns[rival.name] / ns["svmcore"]
        else:
            note, reached = f"{rival.name} is not installed", None
        rows.append(row(goal, f"{what} against {rival.name}, {at}", reached, bar, note=note))

    def these(*kinds: type[rivals.Rival]) -> dict[str, rivals.Rival]:
        return {kind.name: maps[kind.name] for kind in kinds if kind.name in maps}

    one = rivals.Svmcore
    found = rivals.time_find(
        these(one, rivals.SortedMap, rivals.Lists, rivals.BTree, rivals.DictOfPages),
        where,
        "uniform",
        n,
        budget,
    )
    if ranges >= 10_000:
        ratio("G1", "look-up", found, rivals.SortedMap, 10 if big else 15)
        ratio("G2", "look-up", found, rivals.Lists, 4 if big else 3.5)
        ratio("G2", "look-up", found, rivals.BTree, 3 if big else 4)
    if not big:
        ratio("G3", "look-up", found, rivals.DictOfPages, 1)
    if ranges < 10_000:
        return rows
    found = rivals.time_batch(these(one, rivals.Searchsorted, rivals.Ncls), where, "uniform", batch)
    ratio("G4", "batch of look-ups", found, rivals.Searchsorted, 4 if big else 3.5)
    ratio("G5", "batch of look-ups", found, rivals.Ncls, 7 if big else 4)
    found = rivals.time_batch(these(one, rivals.Searchsorted), where, "sequential", batch)
    ratio("G6", "batch, sequential,", found, rivals.Searchsorted, 1.5)
    # Look-ups first: what follows changes the maps.
    found = rivals.time_mixed(these(one, rivals.SortedMap), where, n, budget)
    ratio("G10", "mixed 99/1", found, rivals.SortedMap, 8 if big else 15)
    found = rivals.time_assign(
        these(one, rivals.SortedMap, rivals.BTree, rivals.FlatPages), where, n // 2, budget
    )
    ratio("G7", "overwrite", found, rivals.SortedMap, 20 if big else 40)
    ratio("G8", "overwrite", found, rivals.BTree, 5 if big else 8)
    ratio("G9", "overwrite", found, rivals.FlatPages, 0.9 if big else 2)
    found = rivals.time_assign(these(one, rivals.IntervalTreeMap), where, n // 2, budget)
    ratio("G8", "overwrite", found, rivals.IntervalTreeMap, 200 if big else 400)
    maps.clear()
    gc.collect()
    rows += clone_goal(where, at, big)
    rows += memory_goals(where, at, quick)
    rows += compiled_goals(where, at, big, n * 2)
    return sorted(rows, key=lambda item: int(item["goal"][1:]))


def clone_goal(where: workloads.Layout, at: str, big: bool) -> list[Row]:
    """G12: a clone against building the map anew, both at the C level where that is built."""
    core = rivals.core_loop()
    rows = rivals.columns(list(where.rows()))
    if core is None:
        items = list(where.rows())

        def build() -> Any:
            fresh = RangeMap()
            for item in items:
                fresh.assign(*item)
            return fresh
    else:

        def build() -> Any:
            fresh = core()
            fresh.assign_all(*rows)
            return fresh

    one = build()
    level = "from Python" if core is None else "in C"
    times = {"clone": [], "build": []}
    for _ in range(ROUNDS + 2):
        for name, call in (("clone", one.clone), ("build", build)):
            began = clock()
            made = call()
            times[name].append(clock() - began)
            del made
    clone, fresh = min(times["clone"]), min(times["build"])
    note = f"{clone * 1e6:.1f} us against {fresh * 1e6:.0f}, built {level}"
    case = f"clone against building, {at}"
    return [row("G12", case, fresh / clone, 30 if big else 20, note=note)]


def memory_goals(where: workloads.Layout, at: str, quick: bool) -> list[Row]:
    """G11: bytes a range after random overwrites."""

    # Every range has a value of its own, as one with an identity does.
    def apart(place: workloads.Layout, count: int) -> tuple[workloads.Layout, list[rivals.Item]]:
        n = len(place.first)
        changes = workloads.overwrites(place, count, seed=31)
        changes = [(first, last, n + 1 + i) for i, (first, last, _) in enumerate(changes)]
        return place._replace(value=np.arange(n) + 1), changes

    where, ops = apart(where, 5_000 if quick else 200_000)
    one = rivals.Svmcore(where).map
    for span in ops:
        one.assign(*span)
    each = one.nbytes / len(one)
    found = [
        row("G11", f"bytes a range after {len(ops):,} overwrites, {at}", each, 24, "B", most=True)
    ]
    few = apart(workloads.layout(min(len(where.first), 10_000)), 20_000)
    for rival, bar in ((rivals.SortedMap, 7), (rivals.IntervalTreeMap, 20)):
        if not rivals.present(rival):
            note = f"{rival.name} is not installed"
            found.append(row("G11", f"memory against {rival.name}, {at}", None, bar, note=note))
            continue
        # Memory of Python is traced, which is slow: the slow one tells a range's share of few.
        place, changes = (where, ops) if rival is rivals.SortedMap else few
        table = np.array(changes)
        tracemalloc.start()
        other = rival(place)
        # New integers, so that those which the map keeps are counted with it.
        for part in np.array_split(table, max(1, len(table) // 1000)):
            for span in part.tolist():
                other.assign(*span)
        del part, span
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        theirs = held / sum(1 for _ in other.items())
        note = f"{each:.1f} B against {theirs:.0f} B"
        if place is not where:
            note += f", its share at {len(place.first):,} ranges"
        found.append(
            row("G11", f"memory against {rival.name}, {at}", theirs / each, bar, note=note)
        )
        del other
    library = rivals.cpp_library()
    if library is not None:
        tree = rivals.Cpp(library, "std::map")
        tree.assign_all(*rivals.columns(list(where.rows())))
        tree.assign_all(*rivals.columns(ops))
        theirs = (library.rival_bytes() - tree.before) / len(tree)
        note = f"{each:.1f} B against {theirs:.0f} B"
        case = f"memory against std::map, {at}"
        found.append(row("G11", case, theirs / each, 2.5, note=note))
    return found


def compiled_goals(where: workloads.Layout, at: str, big: bool, n: int) -> list[Row]:
    makers = rivals.compiled_maps()
    small = workloads.layout(min(len(where.first), 10_000))
    for name, make in makers.items():
        rivals.check_compiled(name, make, small)
    if "svmcore" not in makers:
        return [row("G15", f"C level, {at}", None, 4, note="no compiler, or no Cython")]
    found = rivals.time_compiled(makers, where, n)
    bars = {
        ("find", "icl::interval_map"): 4 if big else 2.5,
        ("overwrite", "icl::interval_map"): 5,
        ("find", "std::map"): 5 if big else 4,
        ("overwrite", "std::map"): 5 if big else 4,
    }
    rows = []
    for (what, name), bar in bars.items():
        ns = found[what]
        reached = ns[name] / ns["svmcore"] if name in ns else None
        note = f"{ns['svmcore']:.1f} ns against {ns[name]:.1f}" if name in ns else "not built"
        word = "look-up" if what == "find" else what
        rows.append(row("G15", f"C level: {word} against {name}, {at}", reached, bar, note=note))
    return rows


# ---- faults: G13, G14 and the bars of the engine --------------------------------------


class Faults:
    """A process of registered ranges and the faults on them, one a range and pass.

    Ranges of 1 to 1023 pages ("big") are registered by set_attr in address order;
    every fault hits a random page of its range and is delivered once, by the driver's
    rules. ``mix`` false: each moves its window; between passes the CPU touches the
    pages, which pulls them back, and the clock moves on by 10 ms. ``mix`` true: 20 %
    of the ranges forbid the GPU, half keep their pages on it, 30 % move.
    """

    def __init__(self, ranges: int, mix: bool, order: str = "uniform", size: str = "big") -> None:
        where = self.where = workloads.layout(ranges, size)
        machine = Machine("bench", (Gpu(GPU_ID, (1 << 32) - 1),))
        self.space = Space(machine, granularity=GRANULARITY)
        self.process = self.space.process
        self.process.mmap(workloads.BASE, where.end - 1)
        self.ranges = ranges
        self.bare = self.process.nbytes
        advice = np.zeros(ranges, RECORD)
        advice["kind"] = Kind.ADVISE
        advice["addr"] = where.first.astype(np.uint64) * PAGE
        advice["size"] = (where.last - where.first + 1) * PAGE
        advice["access"], advice["value"] = Attribute.GRANULARITY, GRANULARITY
        rng = np.random.default_rng([5, ranges])
        lot = rng.permutation(ranges)
        self.forbidden = np.zeros(ranges, bool)
        self.stays = np.zeros(ranges, bool)
        if mix:
            self.forbidden[lot[: ranges // 5]] = True
            self.stays[lot[ranges // 5 : ranges // 5 + ranges // 2]] = True
            advice["access"][self.forbidden] = Attribute.NO_ACCESS
            advice["peer"] = 1
        self.replay(advice)
        self.registered = self.process.nbytes
        page = rng.integers(where.first, where.last + 1)
        records = np.zeros(ranges, RECORD)
        records["addr"] = page.astype(np.uint64) * PAGE
        records["size"], records["proc"], records["kind"] = PAGE, 1, Kind.FAULT
        low = page >> GRANULARITY << GRANULARITY
        window = np.minimum(low + (1 << GRANULARITY) - 1, where.last)
        moved = window - np.maximum(low, where.first) + 1
        if order == "uniform":
            turn = rng.permutation(ranges)
        elif order == "streams":
            kept = ranges // workloads.STREAMS * workloads.STREAMS
            turn = np.arange(kept).reshape(workloads.STREAMS, -1).T.ravel()
        else:
            turn = np.arange(ranges)
        self.records = np.ascontiguousarray(records[turn])
        self.pages = page[turn]
        self.ends = self.forbidden[turn]
        moves = ~self.forbidden[turn] & ~self.stays[turn]
        self.back = self.records[moves].copy()
        self.back["proc"], self.back["kind"] = 0, Kind.ACCESS
        self.outcomes = np.empty(len(self.records), OUTCOME)
        self.back_outcomes = np.empty(len(self.back), OUTCOME)
        # The first pass makes objects; from the second on every pass is the same.
        self.replay(self.records)
        self.pull_back()
        self.moved = np.where(moves, moved[turn], 0)
        self.lap()
        self.verify(self.outcomes)
        self.pull_back()

    def replay(self, records: np.ndarray) -> None:
        done = np.empty(len(records), OUTCOME)
        replay_chunk(self.process, records, done, by=1, raw=True)

    def verify(self, done: np.ndarray) -> None:
        name = "faults of svmcore"
        rivals.expect(name, "windows moved", int((done["moved"] != self.moved).sum()), 0)
        rivals.expect(name, "refused", (done["code"] != 0).tolist(), self.ends.tolist())

    def pull_back(self) -> None:
        replay_chunk(self.process, self.back, self.back_outcomes, by=1, raw=True)
        self.process.step(self.process.now + 10_000_000)

    def lap(self) -> float:
        """Seconds a fault of one pass."""
        began = clock()
        replay_chunk(self.process, self.records, self.outcomes, by=1, raw=True)
        return (clock() - began) / len(self.records)


class PythonModel:
    """The same faults in plain Python: ranges in a SortedDict, pages in integers as masks.

    One fault: the range and its bounds, access and best location, the window cut to
    the range, which pages move, both residency masks, the counters, an outcome. The
    attributes are one plain object a range; the engine does more than this.
    """

    def __init__(self, faults: Faults) -> None:
        where = faults.where
        none = faults.forbidden.tolist()
        self.ranges = SortedDict(
            (first, (last, GRANULARITY, 0, 0 if barred else 1))
            for first, last, barred in zip(
                where.first.tolist(), where.last.tolist(), none, strict=True
            )
        )
        self.on_gpu: dict[int, int] = {}
        self.on_cpu: dict[int, int] = {}
        self.counters = dict.fromkeys(("faults", "moved", "refused", "migrations"), 0)

    def fault(self, page: int, gpu: int = 0) -> tuple[int, str, int, int, int, int]:
        first, (last, granularity, preferred, access) = self.ranges.peekitem(
            self.ranges.bisect_right(page) - 1
        )
        counters = self.counters
        counters["faults"] += 1
        if page > last:
            counters["refused"] += 1
            return -14, "unregistered", 0, 0, 0, 0
        if preferred:
            best = preferred
        elif access >> gpu & 1:
            best = gpu + 1
        else:
            counters["refused"] += 1
            return -13, "no_access", 0, 0, 0, 0
        low = page >> granularity << granularity
        start, stop = max(low, first), min(low + (1 << granularity) - 1, last)
        block = page >> 9
        mask = ((1 << (stop - start + 1)) - 1) << (start & 511)
        held = self.on_gpu.get(block, 0)
        moving = mask & ~held
        if moving:
            self.on_gpu[block] = held | mask
            self.on_cpu[block] = self.on_cpu.get(block, 0) & ~mask
        moved = moving.bit_count()
        counters["moved"] += moved
        counters["migrations"] += moved > 0
        return 0, "ok", best, start, stop, moved

    def pull_back(self, page: int) -> None:
        first, (last, granularity, _, _) = self.ranges.peekitem(self.ranges.bisect_right(page) - 1)
        low = page >> granularity << granularity
        start, stop = max(low, first), min(low + (1 << granularity) - 1, last)
        mask = ((1 << (stop - start + 1)) - 1) << (start & 511)
        self.on_gpu[page >> 9] &= ~mask
        self.on_cpu[page >> 9] = self.on_cpu.get(page >> 9, 0) | mask


def fault_goals(ranges: int, quick: bool) -> list[Row]:
    at = f"{ranges:,} ranges"
    big = ranges >= 100_000
    passes = ROUNDS if big or quick else 40
    rows: list[Row] = []
    where = workloads.layout(ranges, "big")
    stab = rivals.Svmcore(where).map
    looked = workloads.addresses(where, "uniform", min(ranges, 1_000_000), seed=41)
    values = np.empty(len(looked), np.uint32)

    def look_up(_: int) -> float:
        began = clock()
        stab.values_many(looked, values)
        return (clock() - began) / len(looked)

    for mix in (True, False):
        word = "mix" if mix else "all move"
        faults = Faults(ranges, mix)
        model = PythonModel(faults)
        few = min(len(faults.pages), 2_000 if quick else 20_000)
        pages, some = faults.pages.tolist(), faults.pages[:few].tolist()
        for page in pages:
            model.fault(page)
        moving = [page for page, moved in zip(pages, faults.moved.tolist(), strict=True) if moved]
        for page in moving:
            model.pull_back(page)
        found = [model.fault(page) for page in some]
        wanted = faults.moved[:few].tolist()
        rivals.expect("the model in Python", "windows", [item[5] for item in found], wanted)
        ended = [item[0] != 0 for item in found]
        rivals.expect("the model in Python", "refused", ended, faults.ends[:few].tolist())
        back = set(moving[:few])

        def model_lap(_: int, model=model, some=some, back=back) -> float:
            for page in some:
                if page in back and model.on_gpu.get(page >> 9):
                    model.pull_back(page)
            fault = model.fault
            began = clock()
            for page in some:
                fault(page)
            return (clock() - began) / len(some)

        def fault_lap(_: int, faults=faults) -> float:
            if not big:
                # Warm: what ran in between may have taken the caches.
                faults.lap()
                faults.pull_back()
            done = faults.lap()
            faults.pull_back()
            return done

        def scalar_lap(_: int, faults=faults, some=some) -> float:
            access = faults.process.access
            began = clock()
            for page in some:
                access(1, page, page, False)
            done = (clock() - began) / len(some)
            faults.pull_back()
            return done

        laps = {"fault": fault_lap, "stab": look_up}
        ns = rivals.least(rivals.rounds(laps, passes))
        note = f"{ns['fault']:.1f} ns against {ns['stab']:.1f}"
        case = f"whole fault in a batch ({word}) to a look-up in a batch, {at}"
        rows.append(
            row("G13", case, ns["fault"] / ns["stab"], 4 if big else 3, most=True, note=note)
        )
        laps = {"fault": fault_lap, "model": model_lap, "scalar": scalar_lap}
        ns = rivals.least(rivals.rounds(laps))
        for name, bar in (("fault", 45 if big else 55), ("scalar", 10 if big else 12)):
            call = "in a batch" if name == "fault" else "one call a time"
            note = f"{ns[name]:.1f} ns against {ns['model']:.0f}"
            case = f"whole fault {call} ({word}) against a model in Python, {at}"
            rows.append(row("G14", case, ns["model"] / ns[name], bar, note=note))
    return rows


def replay_bars(quick: bool) -> list[Row]:
    few, many = (1_000, 10_000) if quick else (10_000, 1_000_000)
    plan = [
        (few, "small", "uniform", None, f"{few:,} ranges of 16 pages, warm"),
        (few, "big", "uniform", 25, f"{few:,} ranges, warm"),
        (many, "big", "uniform", 7, f"{many:,} ranges, uniform"),
        (many, "big", "streams", 20, f"{many:,} ranges, 64 streams"),
    ]
    rows = []
    for ranges, size, order, bar, words in plan:
        for mix in (False, True):
            faults = Faults(ranges, mix, order, size)

            def lap(_: int, faults=faults) -> float:
                done = faults.lap()
                faults.pull_back()
                return done

            ns = rivals.least(rivals.rounds({"fault": lap}, 40 if ranges <= 10_000 else ROUNDS))
            word = "mix" if mix else "all move"
            case = f"whole fault in replay (kfd), {words}, {word}"
            note = f"{ns['fault']:.1f} ns"
            rows.append(row("bar", case, 1e3 / ns["fault"], bar, "M/s", note=note))
    return rows


def call_bars(quick: bool) -> list[Row]:
    """One Python call at a time, on 10,000 warm ranges."""
    faults = Faults(1_000 if quick else 10_000, mix=False)
    process, space, pages = faults.process, faults.space, faults.pages.tolist()
    addrs = [page * PAGE for page in pages]

    def loop(call: Callable[[int], Any], items: list[int]) -> float:
        began = clock()
        for item in items:
            call(item)
        return (clock() - began) / len(items)

    def access(_: int) -> float:
        call = process.access
        began = clock()
        for page in pages:
            call(1, page, page, False)
        return (clock() - began) / len(pages)

    def access_fault(number: int) -> float:
        done = access(number)
        faults.pull_back()
        return done

    def raw_fault(_: int) -> float:
        call = process.fault
        process.begin(process.now, False)
        began = clock()
        for page in pages:
            call(GPU_ID, page, False)
        done = (clock() - began) / len(pages)
        process.finish(0)
        process.settle()
        faults.pull_back()
        return done

    def space_access(_: int) -> float:
        done = loop(space.access, addrs)
        faults.pull_back()
        return done

    def space_fault(_: int) -> float:
        done = loop(space.fault, addrs)
        faults.pull_back()
        return done

    def hit(number: int) -> float:
        access(number)
        done = access(number)
        faults.pull_back()
        return done

    laps = {
        "process.access, each a fault that moves its window": access_fault,
        "process.fault, delivered once, no event log": raw_fault,
        "process.access, a mapped page": hit,
        "Space.access, each a fault that moves its window": space_access,
        "Space.fault, with every effect in order": space_fault,
    }
    rows = []
    for name, ns in rivals.least(rivals.rounds(laps, ROUNDS if quick else 9)).items():
        bar = 5 if name.startswith("process") else None
        case = f"one Python call a time: {name}"
        rows.append(row("bar", case, 1e3 / ns, bar, "M/s", note=f"{ns:.0f} ns"))
    return rows


def trace_bar() -> list[Row]:
    case = "gpt_train trace, policy kfd: engine time of 38.4 million page touches"
    if not TRACE.exists():
        return [row("bar", case, None, 0.2, "s", most=True, note="the trace is not there")]
    times = []
    for _ in range(ROUNDS):
        space = Space("gpu-80g")
        result = svmcore.replay(svmcore.open_trace(TRACE), space)
        times.append(result.engine_s)
    rivals.expect("gpt_train", "page touches", result.counters["pages_touched"], 38_449_294)
    return [row("bar", case, min(times), 0.2, "s", most=True)]


def thread_bar(quick: bool) -> list[Row]:
    """Two independent spaces, each on its own thread, against one of them alone."""
    both = [Faults(2_000 if quick else 10_000, mix=False) for _ in range(2)]
    passes = 5 if quick else 40

    def run(faults: Faults) -> None:
        for _ in range(passes):
            faults.lap()
            faults.pull_back()

    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run(both[0])
        middle = time.perf_counter()
        run(both[1])
        alone = min(middle - began, time.perf_counter() - middle)
        threads = [threading.Thread(target=run, args=(faults,)) for faults in both]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, 2 * alone / (time.perf_counter() - began))
    note = "by the clock on the wall, whole faults; 1.8 on an idle machine"
    if hasattr(os, "getloadavg"):
        note += f"; load of the machine here {os.getloadavg()[0]:.1f}"
    return [row("bar", "two spaces on two threads against one, best of five", best, 1.5, note=note)]


def memory_bars(quick: bool) -> list[Row]:
    ranges = 10_000 if quick else 1_000_000
    where = workloads.layout(ranges)
    one = rivals.Svmcore(where).map
    rows = [
        row(
            "bar",
            f"RangeMap, bytes a boundary, {ranges:,} ranges in order",
            one.nbytes / (len(one) * 1.25),
            24,
            "B",
            most=True,
            note="a gap after every fourth range is a boundary of its own",
        ),
    ]
    faults = Faults(ranges, mix=False)
    each = faults.registered / ranges
    rows.append(
        row(
            "bar",
            f"bytes a KFD range in all, {ranges:,} registered ranges",
            each,
            128,
            "B",
            most=True,
            note="process.nbytes before the first touch: no residency in it",
        )
    )
    blocks = len(np.unique(faults.pages >> GRANULARITY))
    rows.append(
        row(
            "bar",
            "residency and objects, bytes a touched 2 MiB block",
            (faults.process.nbytes - faults.registered) / blocks,
            None,
            "B",
            note="process.nbytes after all windows moved, less what was there before",
        )
    )
    del faults, one, where
    gc.collect()
    most = 100_000 if quick else 10_000_000
    process = Space(Machine("bench", (Gpu(GPU_ID, (1 << 32) - 1),))).process
    first = np.arange(most, dtype=np.uint64) * np.uint64(16 * PAGE) + np.uint64(1 << 32)
    process.mmap((1 << 32) // PAGE, (1 << 32) // PAGE + 16 * most - 1)
    for part in np.array_split(first, 20):
        advice = np.zeros(len(part), RECORD)
        advice["kind"], advice["addr"], advice["size"] = Kind.ADVISE, part, 16 * PAGE
        advice["access"], advice["value"] = Attribute.GRANULARITY, GRANULARITY
        replay_chunk(process, advice, np.empty(len(advice), OUTCOME), by=1)
    rivals.expect("KFD ranges", "number", len(process), most)
    rows.append(
        row("bar", f"{most:,} KFD ranges in all", process.nbytes / 2**30, 1.5, "GiB", most=True)
    )
    return rows


def capi_bar() -> list[Row]:
    case = "C host: {} over the same call inside the loop"
    compiler = shutil.which("cc") or shutil.which("gcc")
    source = rivals.ROOT / "bench" / "capi_overhead.c"
    why = "no C compiler" if compiler is None else ""
    if not why:
        flags = [
            subprocess.run(
                [sys.executable, "-m", "svmcore", flag], capture_output=True, text=True, check=True
            ).stdout.split()
            for flag in ("--cflags", "--ldflags")
        ]
        with tempfile.TemporaryDirectory() as folder:
            program = str(Path(folder) / "capi_overhead")
            command = [compiler, "-O2", *flags[0], str(source), "-o", program, *flags[1]]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode == 0:
                # Where a build in place is measured, its folder is on the path of modules.
                env = os.environ | {"PYTHON": sys.executable}
                run = subprocess.run(
                    [program], capture_output=True, text=True, check=False, env=env
                )
                if run.returncode == 0:
                    table = json.loads(run.stdout)
                    return [
                        row(
                            "bar",
                            case.format(f"{what} that hits"),
                            max(ns["over_ns"], 0.0),
                            15,
                            "ns",
                            most=True,
                            note=f"{ns['call_ns']} ns against {ns['loop_ns']}",
                        )
                        for what, ns in table.items()
                    ]
                why = run.stderr.strip()[-200:]
            else:
                why = made.stderr.strip()[-200:]
    return [row("bar", case.format("a call"), None, 15, "ns", most=True, note=why)]


def import_bar() -> list[Row]:
    """In fresh interpreters, in turns; the interpreter's own start is not counted."""
    times: dict[str, list[float]] = {"numpy": [], "svmcore": []}
    for _ in range(10):
        for name, found in times.items():
            code = f"import time; t = time.thread_time(); import {name}; "
            code += "print(time.thread_time() - t)"
            run = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            found.append(float(run.stdout))
    ours, theirs = min(times["svmcore"]), min(times["numpy"])
    note = f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f}"
    return [row("bar", "import svmcore to import numpy", ours / theirs, 1.3, most=True, note=note)]


# ---- the whole ------------------------------------------------------------------------


def measure(
    sizes: list[int], *, quick: bool, only: str | None, say: Callable[[str], None]
) -> list[Row]:
    """Every goal at the sizes that have one (100: G3 alone), then the bars of the engine."""
    parts: list[tuple[str, Callable[[], list[Row]]]] = []
    for size in sizes:
        parts.append((f"ranges {size:,}", lambda size=size: ranges_goals(size, quick)))
    for size in sizes:
        if size >= 10_000:
            parts.append((f"faults {size:,}", lambda size=size: fault_goals(size, quick)))
    parts += [
        ("replay", lambda: replay_bars(quick)),
        ("calls", lambda: call_bars(quick)),
        ("trace", trace_bar),
        ("threads", lambda: thread_bar(quick)),
        ("memory", lambda: memory_bars(quick)),
        ("host", capi_bar),
        ("import", import_bar),
    ]
    rows: list[Row] = []
    for name, part in parts:
        if only is None or only in name:
            began = time.perf_counter()
            rows += part()
            gc.collect()
            say(f"{name}: {time.perf_counter() - began:.0f} s")
    return sorted(rows, key=lambda item: int(item["goal"][1:]) if item["goal"] != "bar" else 99)


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def verdict(item: Row) -> str:
    if item["met"] is None:
        return "told" if item["reached"] is not None else "not measured"
    if item["met"]:
        return "met"
    return "NOT MET" if item["share"] >= FAIL_BELOW else "NOT MET, below 70 %"


def show(rows: list[Row]) -> str:
    lines = []
    for item in rows:
        sign = "<=" if item["most"] else ">="
        bar = "" if item["bar"] is None else f"{sign} {figure(item['bar'])} {item['unit']}"
        reached = f"{figure(item['reached'])} {item['unit']}"
        text = f"{item['goal']:4}{verdict(item):20}{reached:>12}  {bar:12} {item['case']}"
        lines.append(text + (f" ({item['note']})" if item["note"] else ""))
    met = sum(1 for item in rows if item["met"])
    lines.append(f"{met} of {sum(1 for item in rows if item['met'] is not None)} met")
    return "\n".join(lines)


def status(rows: list[Row]) -> int:
    return int(any(item["share"] is not None and item["share"] < FAIL_BELOW for item in rows))
