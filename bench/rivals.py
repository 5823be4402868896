"""svmcore beside everything else that can hold ranges, on the same inputs.

    python bench/rivals.py                         tables, ns an operation and ratios
    python bench/rivals.py --sizes 1e2,1e4 --quick --json
    python bench/rivals.py --goals                 every goal: reached, bar, met or not
    python bench/rivals.py --save                  both, into bench/baseline/rivals.json
    python bench/rivals.py --save --goals          the goals anew, the tables as they are
    python bench/rivals.py --docs                  docs/performance from that file
    python bench/rivals.py --publish               the table of ``svmcore bench``

Every structure is held equal to the others before it is timed: look-ups, and the
state after overwrites and holes, by its hash. The cases of a table take turns and
the least of at least five rounds counts, in the thread's own processor time, so that
other work on the machine counts little; only ratios within one run mean something.
The rivals come with ``pip install svmcore[bench]``; those of C++ are compiled where a
compiler is (and boost::icl where libboost-dev is). What is not there is left out and
named.

Exit status of ``--goals``: 1 when something measured is below 70 % of its goal, or
two structures disagree.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import gc
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import workloads
from sortedcontainers import SortedDict

from svmcore._ranges import RangeMap

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "baseline" / "rivals.json"
BUILD = ROOT / "build" / "bench"
ROUNDS = 5
# The thread's own time, where it is fine enough: other work on the machine does not count.
_FINE = time.get_clock_info("thread_time").resolution <= 1e-6
clock = time.thread_time if _FINE else time.perf_counter
Item = tuple[int, int, int]

# ---- the face -------------------------------------------------------------------------


class Rival:
    """One way to hold ranges: pages inclusive, value 0 is a hole.

    ``keeps_bounds``: equal neighbours stay apart, as ranges with an identity must.
    ``static``: it cannot change without being built anew. ``limit``: the most ranges
    that it is asked to hold, where more would take minutes or gigabytes.
    """

    name = ""
    needs = ""
    keeps_bounds = False
    static = False
    scalar = True
    limit = 10_000_000

    def __init__(self, where: workloads.Layout) -> None:
        for first, last, value in where.rows():
            self.assign(first, last, value)

    def find(self, page: int) -> int:
        raise NotImplementedError

    def find_many(self, pages: np.ndarray) -> np.ndarray | None:
        """Values at many pages at once, None where the structure has no such call."""
        return None

    def assign(self, first: int, last: int, value: int) -> None:
        raise NotImplementedError

    def erase(self, first: int, last: int) -> None:
        raise NotImplementedError

    def items(self) -> Iterable[Item]:
        raise NotImplementedError


class Svmcore(Rival):
    name = "svmcore"
    keeps_bounds = True

    def __init__(self, where, merge=False):
        self.map = RangeMap(merge=merge)
        self.find, self.assign, self.erase = self.map.find_value, self.map.assign, self.map.erase
        super().__init__(where)

    def find_many(self, pages):
        return self.map.values_many(pages)

    def items(self):
        return self.map


class SvmcoreBounds(Svmcore):
    """The look-up that also tells the bounds."""

    name = "svmcore, value and bounds"

    def __init__(self, where):
        super().__init__(where)
        self.find = self.map.find

    def find_many(self, pages):
        return self.map.find_many(pages)["value"]


class SortedMap(Rival):
    """Boundaries in a SortedDict: the page where a value begins -> the value."""

    name = "sortedcontainers"
    keeps_bounds = True
    merge = False

    def __init__(self, where):
        bounds = {0: 0}
        for first, last, value in where.rows():
            bounds[first] = value
            bounds[last + 1] = 0
        self.bounds = SortedDict(bounds)
        self.right, self.at = self.bounds.bisect_right, self.bounds.peekitem

    def find(self, page):
        return self.at(self.right(page) - 1)[1]

    def assign(self, first, last, value):
        bounds, end = self.bounds, last + 1
        if end not in bounds:
            bounds[end] = self.at(self.right(end) - 1)[1]
        for start in list(bounds.irange(first, last)):
            del bounds[start]
        bounds[first] = value
        if self.merge or value == 0:
            if bounds[end] == value:
                del bounds[end]
            at = bounds.index(first)
            if at and self.at(at - 1)[1] == value:
                del bounds[first]

    def erase(self, first, last):
        self.assign(first, last, 0)

    def items(self):
        return of_bounds(self.bounds.items())


class SortedMapMerging(SortedMap):
    name = "sortedcontainers, merging"
    keeps_bounds = False
    merge = True


class Lists(Rival):
    """Starts, ends and values in three lists, found by bisect."""

    name = "three lists and bisect"
    keeps_bounds = True
    limit = 1_000_000

    def __init__(self, where):
        self.starts, self.lasts = where.first.tolist(), where.last.tolist()
        self.values = where.value.tolist()

    def find(self, page, right=bisect.bisect_right):
        at = right(self.starts, page) - 1
        return self.values[at] if at >= 0 and page <= self.lasts[at] else 0

    def assign(self, first, last, value):
        starts, lasts, values = self.starts, self.lasts, self.values
        low = bisect.bisect_left(starts, first)
        if low and lasts[low - 1] >= first:
            low -= 1
        high = bisect.bisect_right(starts, last, low)
        new = [(first, last, value)] if value else []
        if low < high:
            if starts[low] < first:
                new.insert(0, (starts[low], first - 1, values[low]))
            if lasts[high - 1] > last:
                new.append((last + 1, lasts[high - 1], values[high - 1]))
        starts[low:high] = [item[0] for item in new]
        lasts[low:high] = [item[1] for item in new]
        values[low:high] = [item[2] for item in new]

    def erase(self, first, last):
        self.assign(first, last, 0)

    def items(self):
        return zip(self.starts, self.lasts, self.values, strict=True)


class BTree(Rival):
    """Boundaries in a B-tree of 64-bit integers, in C."""

    name = "BTrees"
    needs = "BTrees"
    keeps_bounds = True

    def __init__(self, where):
        from BTrees.LLBTree import LLBTree

        self.bounds = LLBTree()
        bounds = {0: 0}
        for first, last, value in where.rows():
            bounds[first] = value
            bounds[last + 1] = 0
        self.bounds.update(bounds)
        self.below = self.bounds.maxKey

    def find(self, page):
        return self.bounds[self.below(page)]

    def assign(self, first, last, value):
        bounds, end = self.bounds, last + 1
        if end not in bounds:
            bounds[end] = bounds[self.below(end)]
        for start in list(bounds.keys(first, last)):
            del bounds[start]
        bounds[first] = value
        if value == 0:
            if bounds[end] == 0:
                del bounds[end]
            if bounds[self.below(first - 1)] == 0:
                del bounds[first]

    def erase(self, first, last):
        self.assign(first, last, 0)

    def items(self):
        return of_bounds(self.bounds.items())


class IntervalTreeMap(Rival):
    name = "intervaltree"
    needs = "intervaltree"
    keeps_bounds = True
    limit = 1_000_000

    def __init__(self, where):
        import intervaltree

        self.tree = intervaltree.IntervalTree.from_tuples(
            (first, last + 1, value) for first, last, value in where.rows()
        )

    def find(self, page):
        for item in self.tree.at(page):
            return item.data
        return 0

    def assign(self, first, last, value):
        self.tree.chop(first, last + 1)
        self.tree.addi(first, last + 1, value)

    def erase(self, first, last):
        self.tree.chop(first, last + 1)

    def items(self):
        return sorted((item.begin, item.end - 1, item.data) for item in self.tree)


class Portion(Rival):
    name = "portion"
    needs = "portion"
    limit = 100

    def __init__(self, where):
        import portion

        self.span = portion.closedopen
        self.map = portion.IntervalDict()
        super().__init__(where)

    def find(self, page):
        return self.map.get(page, 0)

    def assign(self, first, last, value):
        self.map[self.span(first, last + 1)] = value

    def erase(self, first, last):
        del self.map[self.span(first, last + 1)]

    def items(self):
        return sorted(
            (part.lower, part.upper - 1, value)
            for spans, value in self.map.items()
            for part in spans
        )


class DictOfPages(Rival):
    name = "dict of pages"
    limit = 10_000

    def __init__(self, where):
        self.pages: dict[int, int] = {}
        self.get = self.pages.get
        super().__init__(where)
        self.find = self.pages.get  # None is a hole: nothing is cheaper

    def assign(self, first, last, value):
        pages = self.pages
        for page in range(first, last + 1):
            pages[page] = value

    def erase(self, first, last):
        for page in range(first, last + 1):
            self.pages.pop(page, None)

    def items(self):
        return ((page, page, value) for page, value in sorted(self.pages.items()))


class FlatPages(Rival):
    """One byte a page in NumPy: values to 255, no identity of ranges."""

    name = "numpy, flat pages"
    limit = 1_000_000

    def __init__(self, where):
        self.pages = np.zeros(where.end + 8, np.uint8)
        super().__init__(where)

    def find(self, page):
        return self.pages[page]

    def find_many(self, pages):
        return self.pages[pages]

    def assign(self, first, last, value):
        self.pages[first : last + 1] = value

    def erase(self, first, last):
        self.pages[first : last + 1] = 0

    def items(self):
        edge = np.flatnonzero(np.diff(self.pages)) + 1
        first = np.concatenate(([0], edge))
        last = np.concatenate((edge, [len(self.pages)])) - 1
        value = self.pages[first]
        held = value > 0
        columns = (first[held].tolist(), last[held].tolist(), value[held].tolist())
        return zip(*columns, strict=True)


class BytesOfPages(FlatPages):
    """The same table as a bytearray: the cheapest look-up that Python has."""

    name = "bytearray, flat pages"

    def __init__(self, where):
        self.table = bytearray(where.end + 8)
        self.find = self.table.__getitem__
        self.one = [bytes([value]) for value in range(256)]
        Rival.__init__(self, where)
        self.pages = np.frombuffer(self.table, np.uint8)

    def find_many(self, pages):
        return None

    def assign(self, first, last, value):
        self.table[first : last + 1] = self.one[value] * (last + 1 - first)

    def erase(self, first, last):
        self.assign(first, last, 0)


class Searchsorted(Rival):
    """Boundaries in one sorted array, values in another."""

    name = "numpy.searchsorted and gather"
    static = True

    def __init__(self, where):
        bounds = np.concatenate(([0], where.first, where.last + 1))
        values = np.concatenate(([0], where.value, np.zeros_like(where.value)))
        order = np.argsort(bounds, kind="stable")
        bounds, values = bounds[order], values[order]
        # Where a range begins at the end of another, the range's own value holds.
        keep = np.append(bounds[1:] != bounds[:-1], True)
        both = ~keep
        values[1:][both[:-1]] = np.maximum(values[1:][both[:-1]], values[:-1][both[:-1]])
        self.bounds, self.values = bounds[keep].astype(np.uint64), values[keep].astype(np.uint32)

    def find(self, page):
        return self.values[self.bounds.searchsorted(np.uint64(page), "right") - 1]

    def find_many(self, pages):
        return self.values[np.searchsorted(self.bounds, pages, "right") - 1]


class Ncls(Rival):
    name = "ncls"
    needs = "ncls"
    static = True
    scalar = False

    def __init__(self, where):
        import ncls

        self.values = where.value.astype(np.uint32)
        self.map = ncls.NCLS(
            where.first.astype(np.int64),
            where.last.astype(np.int64) + 1,
            np.arange(len(where.first), dtype=np.int64),
        )

    def find_many(self, pages):
        start = pages.astype(np.int64)
        index = np.arange(len(start), dtype=np.int64)
        asked, found = self.map.all_overlaps_both(start, start + 1, index)
        out = np.zeros(len(start), np.uint32)
        out[asked] = self.values[found]
        return out


class SuperIntervals(Rival):
    """Coordinates of 32 bits: page numbers from zero, never addresses."""

    name = "superintervals"
    needs = "superintervals"
    static = True

    def __init__(self, where):
        import superintervals

        self.map = superintervals.IntervalMap.from_arrays(
            where.first.astype(np.int32), where.last.astype(np.int32), where.value.tolist()
        )
        self.search = self.map.search_values

    def find(self, page):
        found = self.search(page, page)
        return found[0] if found else 0

    def find_many(self, pages):
        at = pages.astype(np.int32)
        found = self.map.search_values_batch(at, at)
        return np.array([item[0] if item else 0 for item in found], np.uint32)


class Pandas(Rival):
    name = "pandas.IntervalIndex"
    needs = "pandas"
    static = True
    limit = 10_000  # one look-up takes a millisecond at 1e6

    def __init__(self, where):
        import pandas as pd

        self.index = pd.IntervalIndex.from_arrays(where.first, where.last, closed="both")
        self.values = np.append(where.value, 0).astype(np.uint32)

    def find(self, page):
        try:
            return self.values[self.index.get_loc(page)]
        except KeyError:
            return 0

    def find_many(self, pages):
        return self.values[self.index.get_indexer(pages)]


RIVALS: list[type[Rival]] = [
    Svmcore,
    SvmcoreBounds,
    SortedMap,
    SortedMapMerging,
    Lists,
    BTree,
    IntervalTreeMap,
    Portion,
    DictOfPages,
    FlatPages,
    BytesOfPages,
    Searchsorted,
    Ncls,
    SuperIntervals,
    Pandas,
]


def of_bounds(bounds: Iterable[tuple[int, int]]) -> Iterable[Item]:
    """Ranges of a list of (page where a value begins, value)."""
    before, held = 0, 0
    for start, value in bounds:
        if held:
            yield before, start - 1, held
        before, held = start, value


def present(rival: type[Rival]) -> bool:
    return not rival.needs or importlib.util.find_spec(rival.needs) is not None


# ---- compiled rivals ------------------------------------------------------------------


class Compiled:
    """A map called in a loop of compiled code, from arrays; the face of the C level."""

    name = ""
    keeps_bounds = True

    def assign_all(self, first: np.ndarray, last: np.ndarray, value: np.ndarray) -> None:
        raise NotImplementedError

    def find_all(self, pages: np.ndarray, out: np.ndarray) -> None:
        raise NotImplementedError

    def items(self) -> Iterable[Item]:
        raise NotImplementedError


def columns(ops: list[Item]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(ops, np.uint64).reshape(-1, 3)
    first, last, value = (np.ascontiguousarray(table[:, i]) for i in range(3))
    return first, last, value.astype(np.uint32)


def built(name: str, source: Path, make: Callable[[Path], list[str]]) -> Path | None:
    """A compiled file of *source*, made anew when the source or the core changed."""
    core = Path(sys.modules["svmcore._ranges"].__file__ or "")
    key = hashlib.blake2b(source.read_bytes() + core.read_bytes(), digest_size=8).hexdigest()
    target = BUILD / f"{key}-{sys.implementation.cache_tag}" / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        run = subprocess.run(make(target), capture_output=True, text=True, check=False)
        if run.returncode != 0:
            print(f"{source.name}: not built: {run.stderr.strip()[-500:]}", file=sys.stderr)
            return None
    return target


def cpp_library() -> ctypes.CDLL | None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    source = ROOT / "bench" / "cpp" / "rivals.cpp"
    flags = ["-O3", "-std=c++17", "-shared", "-fPIC", str(source), "-o"]
    path = built("rivals.so", source, lambda target: [*compiler.split(), *flags, str(target)])
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    array = [np.ctypeslib.ndpointer(kind, flags="C") for kind in (np.uint64, np.uint32)]
    pages, values = array
    library.rival_new.restype = ctypes.c_void_p
    library.rival_new.argtypes = [ctypes.c_int]
    library.rival_free.argtypes = [ctypes.c_void_p]
    library.rival_assign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, pages, pages, values]
    library.rival_find.argtypes = [ctypes.c_void_p, ctypes.c_size_t, pages, values]
    library.rival_items.argtypes = [ctypes.c_void_p, pages, pages, values, ctypes.c_size_t]
    library.rival_items.restype = library.rival_bytes.restype = ctypes.c_size_t
    return library


class Cpp(Compiled):
    """A map of the C++ program, by its number there."""

    KINDS = {"std::map": 0, "icl::interval_map": 1, "icl::split_interval_map": 2}

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.library, self.name = library, name
        self.keeps_bounds = name == "std::map"
        before = library.rival_bytes()
        self.handle = library.rival_new(self.KINDS[name])
        self.before = before
        if not self.handle:
            raise LookupError(name)

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.rival_free(self.handle)

    def assign_all(self, first, last, value):
        self.library.rival_assign(self.handle, len(first), first, last, value)

    def find_all(self, pages, out):
        self.library.rival_find(self.handle, len(pages), pages, out)

    def items(self):
        none = np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32)
        n = self.library.rival_items(self.handle, *none, 0)
        table = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.uint32)
        self.library.rival_items(self.handle, *table, n)
        return zip(*(column.tolist() for column in table), strict=True)

    def __len__(self) -> int:
        none = np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32)
        return self.library.rival_items(self.handle, *none, 0)


CORE_SETUP = """
import sys
from pathlib import Path
from Cython.Build import cythonize
from setuptools import Extension, setup
source, target, package = sys.argv[1:4]
folder = Path(target).parent
copy = folder / "core_loop.pyx"
copy.write_bytes(Path(source).read_bytes())
setup(
    name="core_loop",
    ext_modules=cythonize(
        [Extension("core_loop", [str(copy)], extra_compile_args=["-O3"])],
        include_path=[package],
        quiet=True,
    ),
    script_args=["-q", "build_ext", "-b", str(folder), "-t", str(folder / "objects")],
)
Path(target).touch()
"""


def core_loop() -> Any | None:
    """The class CoreMap of cpp/core_loop.pyx, None without Cython or a compiler."""
    needed = importlib.util.find_spec("Cython"), importlib.util.find_spec("setuptools")
    if not all(needed) or not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
        return None
    source = ROOT / "bench" / "cpp" / "core_loop.pyx"
    package = Path(sys.modules["svmcore"].__file__ or "").parents[1]
    path = built(
        "core_loop.done",
        source,
        lambda target: [
            *(sys.executable, "-c", CORE_SETUP, str(source), str(target), str(package)),
        ],
    )
    if path is None:
        return None
    sys.path.insert(0, str(path.parent))
    try:
        return importlib.import_module("core_loop").CoreMap
    finally:
        sys.path.remove(str(path.parent))


def compiled_maps() -> dict[str, Callable[[], Any]]:
    """Makers of empty maps at the C level, by name; svmcore's own first."""
    found: dict[str, Callable[[], Any]] = {}
    core = core_loop()
    if core is not None:
        found["svmcore"] = core
    library = cpp_library()
    if library is not None:
        for name in Cpp.KINDS:
            try:
                Cpp(library, name)
            except LookupError:
                continue
            found[name] = lambda name=name: Cpp(library, name)
    return found


# ---- equal before timed ---------------------------------------------------------------


def joined(items: Iterable[Item]) -> list[Item]:
    """Items with equal neighbours joined: what every structure can be held to."""
    out: list[Item] = []
    for first, last, value in items:
        if out and out[-1][1] + 1 == first and out[-1][2] == value:
            out[-1] = (out[-1][0], last, value)
        else:
            out.append((int(first), int(last), int(value)))
    return out


def state_hash(items: Iterable[Item]) -> str:
    table = np.array(list(items), np.int64).reshape(-1, 3)
    return hashlib.blake2b(table.tobytes(), digest_size=8).hexdigest()


class Disagreement(Exception):
    """Two structures gave different answers."""


def expect(name: str, what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise Disagreement(f"{name}: {what}: {found}, expected {wanted}")


def plain(found: Any) -> int:
    """The value of what a look-up gives: itself, nothing, or the last of a tuple."""
    return int((found[-1] if isinstance(found, tuple) else found) or 0)


def check(rival: type[Rival], where: workloads.Layout, changes: int = 300) -> str:
    """Hold one structure equal to a table of pages; the hash of its last state."""
    one, table = rival(where), FlatPages(where)
    for pattern in workloads.PATTERNS:
        pages = workloads.addresses(where, pattern, 500, seed=7)
        wanted = table.find_many(pages).tolist()
        if rival.scalar:
            found = [plain(one.find(page)) for page in pages.tolist()]
            expect(rival.name, f"look-ups, {pattern}", found, wanted)
        many = one.find_many(pages)
        if many is not None:
            expect(rival.name, f"batch of look-ups, {pattern}", many.tolist(), wanted)
    if not rival.static:
        kept = Svmcore(where)
        for span in workloads.overwrites(where, changes, seed=7):
            for each in (one, table, kept):
                each.assign(*span)
        for first, last, value in workloads.holes(where, changes // 3, seed=7):
            for each in (one, table, kept):
                each.erase(first, last)
                if first % 2:
                    each.assign(first, last, value)
        if rival.keeps_bounds:
            expect(rival.name, "ranges", state_hash(one.items()), state_hash(kept.items()))
        expect(
            rival.name, "final state", state_hash(joined(one.items())), state_hash(table.items())
        )
    return state_hash(table.items())


def check_compiled(name: str, make: Callable[[], Any], where: workloads.Layout) -> None:
    """The same for a map at the C level."""
    one, table, kept = make(), FlatPages(where), Svmcore(where)
    one.assign_all(*columns(list(where.rows())))
    ops = workloads.overwrites(where, 3000, seed=7)
    for first, last, value in workloads.holes(where, 1000, seed=7):
        ops += [(first, last, 0), (first, last, value)] if first % 2 else [(first, last, 0)]
    for first, last, value in ops:
        table.assign(first, last, value)
        if value:
            kept.assign(first, last, value)
        else:
            kept.erase(first, last)
    one.assign_all(*columns(ops))
    pages = workloads.addresses(where, "uniform", 2000, seed=7)
    out = np.empty(len(pages), np.uint32)
    one.find_all(pages, out)
    expect(name, "look-ups", out.tolist(), table.find_many(pages).tolist())
    if getattr(one, "keeps_bounds", True):
        expect(name, "ranges", state_hash(one.items()), state_hash(kept.items()))
    expect(name, "final state", state_hash(joined(one.items())), state_hash(table.items()))


# ---- timing ---------------------------------------------------------------------------

Lap = Callable[[int], float]


def loop_find(find: Callable[[int], Any], pages: list[int]) -> float:
    began = clock()
    for page in pages:
        find(page)
    return (clock() - began) / len(pages)


def loop_assign(assign: Callable[[int, int, int], None], ops: list[Item]) -> float:
    began = clock()
    for first, last, value in ops:
        assign(first, last, value)
    return (clock() - began) / len(ops)


def loop_mixed(one: Rival, ops: list[Item]) -> float:
    find, assign = one.find, one.assign
    began = clock()
    for first, last, value in ops:
        if value:
            assign(first, last, value)
        else:
            find(first)
    return (clock() - began) / len(ops)


def rounds(laps: dict[str, Lap], count: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds an operation of each case, in turns A B C A B C ... A; collector off."""
    found: dict[str, list[float]] = {name: [] for name in laps}
    gc.collect()
    gc.disable()
    try:
        for number in range(count):
            for name, lap in laps.items():
                found[name].append(lap(number))
        first = next(iter(laps))
        found[first].append(laps[first](count))
    finally:
        gc.enable()
    return found


def least(found: dict[str, list[float]]) -> dict[str, float]:
    """ns of the best round of each case."""
    return {name: min(values) * 1e9 for name, values in found.items()}


class Pieces:
    """Fresh pieces of one long input, a round each; slow structures take shorter ones.

    Fresh, so that nothing is found warm that a user would find cold.
    """

    def __init__(self, whole: list[Any], count: int, share: float = 1.0) -> None:
        self.size = max(1, int(len(whole) * min(1.0, share)) // (count + 1))
        self.step = len(whole) // (count + 1)
        self.whole = whole

    def __getitem__(self, number: int) -> list[Any]:
        at = number * self.step
        return self.whole[at : at + self.size]


def share_of(lap: Callable[[list[Any]], float], sample: list[Any], wanted: int, budget_s: float):
    """The share of *wanted* operations that fits the budget, by a short trial."""
    each = lap(sample)
    return min(1.0, budget_s / max(each * wanted, 1e-9))


def time_find(
    maps: dict[str, Rival],
    where: workloads.Layout,
    pattern: str,
    n: int,
    budget_s: float,
    count=ROUNDS,
) -> dict[str, float]:
    pages = workloads.addresses(where, pattern, n * (count + 1), seed=11).tolist()
    trial = workloads.addresses(where, pattern, 50, seed=12).tolist()
    laps: dict[str, Lap] = {}
    for name, one in maps.items():
        share = share_of(lambda part, one=one: loop_find(one.find, part), trial, n, budget_s)
        piece = Pieces(pages, count, share)
        laps[name] = lambda number, one=one, piece=piece: loop_find(one.find, piece[number])
    return least(rounds(laps, count))


def time_batch(
    maps: dict[str, Rival], where: workloads.Layout, pattern: str, n: int, count=ROUNDS
) -> dict[str, float]:
    batches = [workloads.addresses(where, pattern, n, seed=20 + i) for i in range(count + 1)]

    def lap(one: Rival, number: int) -> float:
        began = clock()
        one.find_many(batches[number])
        return (clock() - began) / n

    laps = {
        name: lambda number, one=one: lap(one, number)
        for name, one in maps.items()
        if one.find_many(batches[0][:2]) is not None
    }
    return least(rounds(laps, count))


def time_assign(
    maps: dict[str, Rival], where: workloads.Layout, n: int, budget_s: float, count=ROUNDS
) -> dict[str, float]:
    ops = workloads.overwrites(where, n * (count + 1), seed=11)
    trial = workloads.overwrites(where, 20, seed=12)
    laps: dict[str, Lap] = {}
    for name, one in maps.items():
        if one.static:
            continue
        share = share_of(lambda part, one=one: loop_assign(one.assign, part), trial, n, budget_s)
        piece = Pieces(ops, count, share)
        laps[name] = lambda number, one=one, piece=piece: loop_assign(one.assign, piece[number])
    return least(rounds(laps, count))


def time_holes(
    maps: dict[str, Rival], where: workloads.Layout, n: int, budget_s: float, count=ROUNDS
) -> dict[str, float]:
    """Erase and set again, ns of one of the two."""
    spans = workloads.holes(where, n * (count + 1), seed=11)
    trial = workloads.holes(where, 20, seed=12)

    def loop(one: Rival, part: list[Item]) -> float:
        erase, assign = one.erase, one.assign
        began = clock()
        for first, last, value in part:
            erase(first, last)
            assign(first, last, value)
        return (clock() - began) / (2 * len(part))

    laps: dict[str, Lap] = {}
    for name, one in maps.items():
        if one.static:
            continue
        share = share_of(lambda part, one=one: loop(one, part), trial, 2 * n, budget_s)
        piece = Pieces(spans, count, share)
        laps[name] = lambda number, one=one, piece=piece: loop(one, piece[number])
    return least(rounds(laps, count))


def time_mixed(
    maps: dict[str, Rival], where: workloads.Layout, n: int, budget_s: float, count=ROUNDS
) -> dict[str, float]:
    ops = workloads.mixed(where, n * (count + 1), seed=11)
    trial = workloads.mixed(where, 100, seed=12)
    laps: dict[str, Lap] = {}
    for name, one in maps.items():
        if one.static:
            continue
        share = share_of(lambda part, one=one: loop_mixed(one, part), trial, n, budget_s)
        piece = Pieces(ops, count, share)
        laps[name] = lambda number, one=one, piece=piece: loop_mixed(one, piece[number])
    return least(rounds(laps, count))


def time_compiled(
    makers: dict[str, Callable[[], Any]], where: workloads.Layout, n: int, count=ROUNDS
) -> dict[str, dict[str, float]]:
    """ns at the C level: look-ups one by one, uniform; overwrites; bytes a range after them."""
    rows = columns(list(where.rows()))
    pages = [workloads.addresses(where, "uniform", n, seed=20 + i) for i in range(count + 1)]
    ops = [columns(workloads.overwrites(where, n, seed=20 + i)) for i in range(count + 1)]
    out = np.empty(n, np.uint32)
    maps = {}
    for name, make in makers.items():
        maps[name] = make()
        maps[name].assign_all(*rows)

    def find(one: Any, number: int) -> float:
        began = clock()
        one.find_all(pages[number], out)
        return (clock() - began) / n

    def assign(one: Any, number: int) -> float:
        began = clock()
        one.assign_all(*ops[number])
        return (clock() - began) / n

    result: dict[str, dict[str, float]] = {}
    for what, lap in (("find", find), ("overwrite", assign)):
        laps = {name: lambda i, one=one, lap=lap: lap(one, i) for name, one in maps.items()}
        result[what] = least(rounds(laps, count))
    return result


# ---- tables ---------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    from svmcore.report.bench import host

    return host() | {
        "date": time.strftime("%Y-%m"),
        "load": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown",
    }


def tables(sizes: list[int], quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Every case at every size; structures that differ are an error."""
    n, budget = (2_000, 0.01) if quick else (20_000, 0.1)
    batch = 20_000 if quick else 1_000_000
    missing = [rival.name for rival in RIVALS if not present(rival)]
    result: dict[str, Any] = {"machine": machine(), "sizes": {}, "missing": missing}
    makers = compiled_maps()
    for ranges in sizes:
        where = workloads.layout(ranges)
        rivals = [rival for rival in RIVALS if present(rival) and ranges <= rival.limit]
        small = workloads.layout(min(ranges, 10_000))
        for rival in rivals:
            check(rival, small if rival.limit >= len(small.first) else where)
        for name, make in makers.items():
            check_compiled(name, make, small)
        at = len(small.first)
        say(f"{ranges:,} ranges: {len(rivals) + len(makers)} structures agree at {at:,}")
        maps = {rival.name: rival(where) for rival in rivals}
        scalar = {name: one for name, one in maps.items() if one.scalar}
        cases = {}
        for pattern in ("uniform", "sequential", "zipf", "streams"):
            cases[f"find, {pattern}"] = time_find(scalar, where, pattern, n, budget)
        for pattern in workloads.PATTERNS:
            cases[f"batch, {pattern}"] = time_batch(maps, where, pattern, batch)
        cases["mixed 99/1"] = time_mixed(maps, where, n, budget)
        cases["overwrite"] = time_assign(maps, where, n, budget)
        cases["hole"] = time_holes(maps, where, n // 2, budget)
        if makers:
            for what, row in time_compiled(makers, where, n * 5).items():
                cases[f"C level: {what}"] = row
        result["sizes"][str(ranges)] = cases
        del maps, scalar
    return result


def show_tables(result: dict[str, Any]) -> str:
    lines = []
    for ranges, cases in result["sizes"].items():
        lines += ["", f"{int(ranges):,} ranges: ns an operation (how many times svmcore's)"]
        for case, row in cases.items():
            own = row.get("svmcore")
            lines.append(f"  {case}")
            for name, ns in sorted(row.items(), key=lambda item: item[1]):
                ratio = f"{ns / own:9.2f}x" if own else ""
                lines.append(f"    {name:32}{ns:14.1f}{ratio}")
    if result["missing"]:
        lines += ["", f"not installed: {', '.join(result['missing'])}"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sizes", default="1e2,1e4,1e6", help="numbers of ranges")
    parser.add_argument("--quick", action="store_true", help="short loops: look, do not quote")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--goals", action="store_true", help="reached / goal of each goal")
    parser.add_argument("--only", help="goals whose name holds this, with --goals")
    parser.add_argument("--save", action="store_true", help="measure all, write the baseline")
    parser.add_argument("--docs", action="store_true", help="write docs/performance")
    parser.add_argument("--publish", action="store_true", help="write svmcore/data/bench.json")
    options = parser.parse_args(argv)
    sizes = [int(float(text)) for text in options.sizes.split(",")]

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        if options.docs:
            import pages

            return pages.write(json.loads(RESULT.read_text("utf-8")))
        if options.publish:
            import pages

            return pages.publish(machine())
        result: dict[str, Any] = {"machine": machine()}
        if options.goals or options.save:
            import goals

            result["goals"] = goals.measure(sizes, quick=options.quick, only=options.only, say=say)
        if not options.goals:
            result["tables"] = tables(sizes, options.quick, say)
    except Disagreement as error:
        print(f"DIFFERENT  {error}", file=sys.stderr)
        return 1
    if options.save and options.goals and RESULT.exists():
        result = json.loads(RESULT.read_text("utf-8")) | result
    if options.save:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if options.json:
        print(json.dumps(result))
    else:
        if "tables" in result:
            print(show_tables(result["tables"]))
        if "goals" in result:
            print(goals.show(result["goals"]))
    return goals.status(result["goals"]) if "goals" in result else 0


if __name__ == "__main__":
    sys.exit(main())
