"""Save, rebuild, load, run on gives what running on gives; no file can break the process."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svmcore
from svmcore import Gpu, Machine, Space, System
from svmcore.errors import InvalidArgumentError, NotSupportedError, StateFileError, SvmError
from svmcore.image import read_image, read_manifest, write_image
from svmcore.machine import preset_names
from svmcore.policies import _kfd_state
from svmcore.policies._kfd import KfdProcess
from svmcore.policies.base import Policy, make_policy, policy_from_dict

SOURCE = Path(__file__).resolve().parents[2] / "src" / "svmcore"
GOLDEN = Path(__file__).resolve().parents[1] / "golden"

BASE, PAGES = 512 * 2048 - 400, 1300
UNDEFINED = 0xFFFFFFFF
AREA = (
    (0, 300, "rw", "anon"),
    (310, 190, "rw", "anon"),
    (500, 200, "rw", "anon"),
    (700, 50, "rw", "file"),
    (750, 130, "rw", "heap"),
    (900, 20, "r", "anon"),
    (930, 10, "rw", "io"),
    (950, 350, "rw", "anon"),
)
SHAPES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({},),
    ({}, {}),
    ({"hive": 7}, {"hive": 7}),
    ({"adev": 0}, {"adev": 0}, {}),
    ({"apu": True}, {"coherent": True}),
    ({"svm": False}, {}, {"hive": 7}),
    (
        {"hive": 7},
        {"hive": 7, "adev": 1},
        {"hive": 8, "adev": 1},
        {"svm": False},
        {"adev": 4},
        {"adev": 4, "coherent": True},
        {"apu": True},
        {"hive": 7},
    ),
)
KINDS_OF_OPERATION = (
    *("set_attr",) * 6,
    *("access",) * 5,
    *("fault",) * 4,
    *("munmap",) * 4,
    *("cpu_access",) * 2,
    *("evict", "evict", "mmap", "mmap", "mprotect", "invalidate", "invalidate", "inject"),
    *("set_xnack", "add_buffer", "add_userptr", "pin", "unpin", "set_ring", "step", "step"),
    *("run_deferred", "run_restore"),
)

Operation = tuple[Any, ...]


class Driver:
    """Makes processes of one configuration and random operations for them."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd = rnd
        vram = rnd.choice((40, 200, 700, 3000))
        self.gpus = tuple(
            Gpu(id=0x1000 + 7 * i, vram_pages=rnd.choice((vram, vram, 64)), **extra)
            for i, extra in enumerate(rnd.choice(SHAPES))
        )
        self.settings = {
            "xnack": rnd.choice((True, True, False)),
            "kernel": rnd.choice(("7.3", "6.12", "6.1")),
            "max_svm_range_pages": rnd.choice((None, 512, 64, 37)),
            "default_granularity": rnd.choice((9, 9, 0, 3, 5, 10)),
            "evict_on_full": rnd.choice((True, False)),
        }
        self.now = 1_000_000

    def fresh(self) -> KfdProcess:
        return KfdProcess(self.gpus, **self.settings)

    def started(self) -> KfdProcess:
        process = self.fresh()
        for start, pages, prot, kind in AREA:
            process.mmap(BASE + start, BASE + start + pages - 1, prot, kind)
        return process

    def span(self) -> tuple[int, int]:
        first = BASE + self.rnd.randrange(PAGES)
        return first, min(first + self.rnd.choice((0, 1, 7, 40, 300)), BASE + PAGES - 1)

    def operation(self) -> Operation:
        rnd = self.rnd
        name = rnd.choice(KINDS_OF_OPERATION)
        self.now += rnd.choice((0, 0, 1_000, 400_000, 1_000_000, 3_000_000))
        first, last = self.span()
        gpu = rnd.randrange(len(self.gpus))
        gpu_id = self.gpus[gpu].id
        arguments: tuple[Any, ...]
        if name == "set_attr":
            pairs = [self.attribute() for _ in range(rnd.choice((1, 1, 2, 3)))]
            arguments = (first << 12, (last - first + 1) << 12, pairs)
        elif name == "fault":
            arguments = (gpu_id, first, rnd.random() < 0.5, rnd.choice((0, 5, 50)))
        elif name == "access":
            arguments = (rnd.randrange(len(self.gpus) + 1), first, last, rnd.random() < 0.5)
        elif name in ("cpu_access", "evict"):
            arguments = (first,)
        elif name == "mmap":
            arguments = (first, last, rnd.choice(("rw", "rw", "r")), rnd.choice(("anon", "heap")))
        elif name == "mprotect":
            arguments = (first, last, rnd.choice(("rw", "r")))
        elif name == "inject":
            what = rnd.choice(("vram_fail", "limit_fail", "copy_fail", "hmm_retry", "mm_gone"))
            arguments = (what, rnd.choice((0, 1, 2)))
        elif name == "set_xnack":
            arguments = (rnd.random() < 0.7,)
        elif name == "set_ring":
            arguments = (gpu_id, rnd.choice((1, 9, 40)), rnd.random() < 0.5)
        elif name == "step":
            arguments = (self.now,)
        elif name in ("unpin", "run_deferred", "run_restore"):
            arguments = ()
        else:
            arguments = (first, last)
        return self.now, name, arguments

    def attribute(self) -> tuple[int, int]:
        rnd = self.rnd
        gpu_id = rnd.choice(self.gpus).id
        kind = rnd.randrange(8)
        if kind in (5, 6):
            return kind, rnd.choice((1, 2, 4, 8, 0x40, 0x48, 0xFFFFFFFF))
        if kind == 7:
            return kind, rnd.choice((0, 3, 9, 30, 63, 200))
        if kind == 0:
            return kind, rnd.choice((0, UNDEFINED, gpu_id, gpu_id))
        return kind, rnd.choice((0, gpu_id, gpu_id)) if kind == 1 else gpu_id


def run(process: KfdProcess, operation: Operation) -> Any:
    now, name, arguments = operation
    process.begin(max(now, process.now) if name == "step" else now)
    answer = getattr(process, name)(*arguments)
    return answer, dataclasses.astuple(process.finish(answer if isinstance(answer, int) else 0))


def views(process: KfdProcess) -> dict[str, Any]:
    return {
        "ranges": process.ranges(),
        "starts": process.starts(),
        "pending": process.pending(),
        "counters": process.counters(),
        "totals": process.totals(),
        "processors": process.processors(),
        "now": process.now,
        "xnack": process.xnack,
        "restore": (process.restore_pending, process.next_event_ns),
        "used": [process.node.used(i) for i in range(len(process.gpus))],
        "pages": [process.where(page) for page in range(BASE, BASE + PAGES, 3)],
        "mapped": [
            process.mapped(gpu, page, write)
            for gpu in range(len(process.gpus))
            for page in range(BASE, BASE + PAGES, 41)
            for write in (False, True)
        ],
        "mappings": [process.vma(page) for page in range(BASE, BASE + PAGES, 5)],
    }


def contents(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in tables.items()}


def restored(driver: Driver, process: KfdProcess) -> KfdProcess:
    tables = _kfd_state.pack(process)
    other = driver.fresh()
    _kfd_state.unpack(other, tables)
    assert contents(_kfd_state.pack(other)) == contents(tables)
    return other


@settings(max_examples=60)
@given(st.randoms(use_true_random=True), st.integers(0, 70), st.integers(1, 50))
def test_loaded_process_runs_on_as_the_original(
    rnd: random.Random, before: int, after: int
) -> None:
    driver = Driver(rnd)
    process = driver.started()
    for _ in range(before):
        run(process, driver.operation())
    other = restored(driver, process)
    assert views(other) == views(process)
    for _ in range(after):
        operation = driver.operation()
        assert run(other, operation) == run(process, operation), operation
    assert views(other) == views(process)
    assert contents(_kfd_state.pack(other)) == contents(_kfd_state.pack(process))
    other.check()


def rich(seed: int) -> tuple[Driver, KfdProcess]:
    """A process with children, deferred and restore work, objects and several sets."""
    while True:
        driver = Driver(random.Random(seed))
        process = driver.started()
        for _ in range(80):
            run(process, driver.operation())
            tables = _kfd_state.pack(process)
            ranges = tables["ranges"]
            if (ranges["parent"] != 0).any() and len(tables["objects"]) > 1:
                return driver, process
        seed += 1000


def test_pending_work_and_children_survive() -> None:
    seen = set()
    for seed in range(12):
        driver, process = rich(seed)
        seen.add(driver.settings["kernel"])
        other = restored(driver, process)
        assert other.pending() == process.pending() != []
        assert views(other) == views(process)
        for _ in range(20):
            operation = driver.operation()
            assert run(other, operation) == run(process, operation), operation
        assert contents(_kfd_state.pack(other)) == contents(_kfd_state.pack(process))
    assert seen == {"7.3", "6.12", "6.1"}


def test_rare_fields_survive() -> None:
    """What few sequences leave behind, set by hand."""
    driver, process = rich(3)
    tables = _kfd_state.pack(process)
    ranges, row = tables["ranges"], tables["process"]
    ranges["invalid"][0] = 3
    row["cost_ns"], row["evicted_ranges"], row["draining"] = 12.0, 3, 1
    row["restore_pending"], row["restore_ns"] = 1, row["now"] + 7
    tables["gpus"]["checkpoint_ts"], tables["gpus"]["ring_ts"] = 77, 78
    other = driver.fresh()
    _kfd_state.unpack(other, tables)
    assert contents(_kfd_state.pack(other)) == contents(tables)


def version_1(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables as the first version had them: ranges in the order of the process's list."""
    old = {name: table.copy() for name, table in tables.items() if name != "list_order"}
    listed, ranges = tables["list_order"].astype(int), tables["ranges"]
    linked = len(listed)
    number = np.zeros(len(ranges) + 1, "<u4")  # by the present row, both from 1
    number[listed] = np.arange(1, linked + 1)
    parents = number[ranges["parent"][linked:]]
    children = linked + np.argsort(parents, kind="stable")
    number[children + 1] = np.arange(linked + 1, len(ranges) + 1)
    old["ranges"] = ranges[np.concatenate([listed - 1, children])]
    old["ranges"]["parent"] = number[old["ranges"]["parent"]]
    old["object_ranges"] = number[tables["object_ranges"]]
    old["process"]["version"] = 1
    return old


@pytest.mark.parametrize("seed", range(12))
def test_tables_of_version_1_mean_the_same(seed: int) -> None:
    driver, process = rich(seed)
    tables = _kfd_state.pack(process)
    old = version_1(tables)
    assert len(set(tables["list_order"].tolist()) & {1, 2}) > 0
    other = driver.fresh()
    _kfd_state.unpack(other, old)
    other.check()
    assert views(other) == views(process)
    assert contents(_kfd_state.pack(other)) == contents(tables)


def test_a_process_that_was_emptied_takes_a_state() -> None:
    """Its maps have free nodes, and it remembers look-ups."""
    driver, process = rich(5)
    other = driver.started()
    for page in range(BASE, BASE + PAGES, 50):
        other.vma(page)
    assert other.munmap(BASE, BASE + PAGES) == 0
    tables = _kfd_state.pack(process)
    _kfd_state.unpack(other, tables | {"counters": _kfd_state.pack(other)["counters"]})
    other.check()
    assert views(other)["mappings"] == views(process)["mappings"]
    assert views(other)["ranges"] == views(process)["ranges"]


def test_counters_of_a_later_version_begin_at_0() -> None:
    driver, process = rich(4)
    tables = _kfd_state.pack(process)
    names = [name for name in tables["counters"].dtype.names if name != "maps"]
    other = driver.fresh()
    _kfd_state.unpack(other, tables | {"counters": tables["counters"][names]})
    assert other.totals() == process.totals() | {"maps": 0}


# ---- hostile tables ------------------------------------------------------------------------

VALUES = (0, 1, 2, 3, 5, 7, 63, 64, 255, 511, 1 << 20, (1 << 32) - 1, (1 << 52) - 1, 1 << 52,
          (1 << 63) - 1, (1 << 64) - 1)  # fmt: skip


def mutate(rnd: random.Random, tables: dict[str, Any]) -> None:
    """One change of one table: cells, rows, shape, type, or the table itself."""
    name = rnd.choice(sorted(tables, key=str))
    table = tables[name].copy()
    how = rnd.randrange(12)
    if how <= 6 and table.size and table.ndim <= 2:
        for _ in range(rnd.choice((1, 1, 2, 4))):
            row = rnd.randrange(len(table))
            cells = table[rnd.choice(table.dtype.names)] if table.dtype.names else table
            place = (row, rnd.randrange(table.shape[1])) if cells.ndim == 2 else row
            if cells.dtype.kind == "f":
                cells[place] = rnd.choice((0.0, -1.0, 1e300, float("nan"), float("inf")))
                continue
            top = np.iinfo(cells.dtype).max
            old = int(cells[place])
            near = ((old + rnd.choice((-1, 1))) & top, old ^ (1 << rnd.randrange(8)) & top)
            value = rnd.choice((*near, *VALUES, int(cells[rnd.randrange(len(cells))].flat[0])))
            cells[place] = value & top
    elif how == 7 and len(table):
        table = np.delete(table, rnd.randrange(len(table)), axis=0)
    elif how == 8 and len(table):
        table = np.concatenate([table, table[rnd.randrange(len(table)) :][:1]])
    elif how == 9 and len(table) > 1:
        table = table[np.array(rnd.sample(range(len(table)), len(table)))]
    elif how == 10:
        table = rnd.choice(
            (table[:0], table.view(np.uint8) if table.size else table, None, [1, 2], table[None])
        )
    elif how == 11:
        tables[rnd.choice(("odd", 7))] = table
    tables[name] = table


@settings(max_examples=300)
@given(st.integers(0, 1 << 30), st.integers(0, 7))
def test_changed_tables_are_refused_or_sound(seed: int, kind: int) -> None:
    rnd = random.Random(seed)
    driver, process = PROCESSES[kind]
    tables: dict[Any, Any] = dict(_kfd_state.pack(process))
    if seed % 4 == 0:
        tables = version_1(tables)
    for _ in range(rnd.choice((1, 1, 1, 2, 3))):
        if all(isinstance(table, np.ndarray) for table in tables.values()):
            mutate(rnd, tables)
    other = driver.fresh()
    try:
        _kfd_state.unpack(other, tables)
    except SvmError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert re.match(r"state: .*expected", refusal, re.DOTALL)
        return
    other.check()
    driver.rnd = rnd
    for _ in range(25):
        run(other, driver.operation())
    views(other)
    _kfd_state.pack(other)


PROCESSES = [rich(seed) for seed in range(8)]


def test_a_process_in_use_or_of_other_parameters_is_refused() -> None:
    driver, process = PROCESSES[0]
    tables = _kfd_state.pack(process)
    with pytest.raises(InvalidArgumentError, match="expected a new process"):
        _kfd_state.unpack(driver.started(), tables)
    gpus = (*driver.gpus, Gpu(id=5, vram_pages=64))
    with pytest.raises(InvalidArgumentError, match=r"of gpus|rows"):
        _kfd_state.unpack(KfdProcess(gpus, **driver.settings), tables)
    other = KfdProcess(driver.gpus, **(driver.settings | {"max_svm_range_pages": 99}))
    with pytest.raises(InvalidArgumentError, match="max_pages"):
        _kfd_state.unpack(other, tables)


#: Fields of the process's structs: saved, made again from what is saved, or of the Spec.
FIELDS = {
    "kfd_t": "engine node tree vmas raw_ranges ranges links nranges cap_ranges free_range "
    "live_ranges sides nsides "
    "cap_sides free_side sets nsets cap_sets set_buckets default_set bos nbos cap_bos free_bo "
    "first_bo last_bo list_head list_tail deferred ndeferred cap_deferred gpus ngpus supported "
    "rules xnack evict_on_full draining restore_pending restore_ns evicted_ranges granularity "
    "max_pages checkpoint_ts ring_ts ring_set buffers nbuffers cap_buffers userptrs nuserptrs "
    "cap_userptrs fail_vram fail_limit fail_copy fail_hmm state plain plain_gpus "
    "vma_code vma_first vma_last vma_plain order quota taken tree_version recent_version recent",
    "range_t": "start last mapped validate_ns vram_pages attrs bo block bo_prev bo_next "
    "side actual bits pad",
    "links_t": "prev next invalid",
    "side_t": "needs_unmap first_child last_child next_child pending is_child deferred",
    "bo_t": "npages pages sequence holders first prev next gpu alive stray",
    "attrs_t": "preferred prefetch flags granularity access aip hash next best plain",
    "node_t": "used sequence tenants ntenants",
    "engine_t": "res now cost_ns costs counters processors events nevents cap_events recording "
    "lost_events",
    "evict_t": "order random units cap_units count first last drawn buckets cap_buckets nbuckets "
    "free_bucket tables cap_table",
    "unit_t": "stamp prev next place gpu used",
    "paged_t": "engine node vmas advice marks sets nsets cap_sets unit ngpus capacity taken quota "
    "reach direct device order follows chunks nchunks cap_chunks free_chunk slots nslots live "
    "fresh nfresh cap_fresh failed owner",
    "chunk_t": "index next_free gpu state",
    "advice_t": "access in_place no_access flags preferred granularity prefetch cpu",
}
HOMES = {"engine_t": "_faults.pxd", "node_t": "_process.pxd"}
HOMES |= dict.fromkeys(("evict_t", "unit_t"), "_evict.pxd")
HOMES |= dict.fromkeys(("paged_t", "chunk_t", "advice_t"), "policies/_paged.pxd")


@pytest.mark.parametrize("struct", FIELDS)
def test_every_field_of_the_state_is_known_here(struct: str) -> None:
    """A field that is added must be saved, made again or known not to matter: then add it above."""
    file = SOURCE / HOMES.get(struct, "policies/_kfd.pxd")
    body = re.search(
        rf"cdef struct {struct}:\n(.*?)\n(?=\S|\Z)", file.read_text("utf-8"), re.DOTALL
    )
    assert body is not None
    lines = [line.partition("#")[0].strip() for line in body.group(1).splitlines()]
    found = {re.sub(r"\[.*?\]", "", line).split()[-1] for line in lines if line}
    assert found == set(FIELDS[struct].split())


# ---- spaces and files ------------------------------------------------------------------------

ADDR = 0x7F00_0000_0000
MIB = 1 << 20


def busy(**settings: Any) -> Space:
    """A space with ranges, objects, deferred and restore work."""
    machine = Machine(
        "two", (Gpu(id=11, vram_pages=3000, hive=1), Gpu(id=12, vram_pages=900, hive=1))
    )
    space = Space(machine, **settings)
    space.map(ADDR, 32 * MIB)
    space.map(ADDR + 64 * MIB, 4 * MIB, prot="r", kind="file")
    space.access(ADDR, 6 * MIB, by="gpu0", write=True)
    space.access(ADDR + 8 * MIB, 3 * MIB, by="gpu1")
    space.set_attr(ADDR + MIB, 16 * 4096, {"preferred_location": "cpu", "SET_FLAGS": 0x40})
    space.access(ADDR + MIB, 4096, by="gpu0")
    space.invalidate(ADDR + MIB, 8 * 4096)
    space.access(ADDR + 64 * MIB, 100, by="cpu")
    space.unmap(ADDR + 2 * MIB, 5 * 4096)
    return space


def go_on(space: Space) -> list[Any]:
    done: list[Any] = [
        space.access(ADDR + 4 * MIB, 9 * MIB, by=by) for by in ("gpu1", "cpu", "gpu0")
    ]
    done.append(space.fault(ADDR + 20 * MIB, by="gpu1", write=True))
    done.append(space.prefetch(ADDR, 2 * MIB, "gpu1"))
    done.append(space.evict(ADDR))
    done.append(space.step(space.now_ns + 5_000_000))
    return done


def seen(space: Space) -> list[Any]:
    return [
        space.ranges(),
        space.residency(ADDR, 32 * MIB),
        space.counters(),
        space.counters_by_processor(),
        space.now_ns,
        space.next_event_ns(),
        [space.system.used(f"gpu{i}") for i in range(len(space.machine.gpus))],
    ]


@pytest.mark.parametrize("kernel", ["7.3", "6.12", "6.1"])
def test_space_saved_loaded_and_cloned_runs_on(tmp_path: Path, kernel: str) -> None:
    space = busy(kernel=kernel, granularity=6)
    assert space.next_event_ns() is not None
    space.save(tmp_path / "a.svm")
    loaded, clone = Space.load(tmp_path / "a.svm"), space.clone()
    assert seen(loaded) == seen(clone) == seen(space)
    assert loaded.machine == space.machine
    assert loaded.policy == space.policy
    assert go_on(loaded) == go_on(clone) == go_on(space)
    assert seen(loaded) == seen(clone) == seen(space)


def test_equal_states_give_equal_bytes_in_any_interpreter(tmp_path: Path) -> None:
    space = busy()
    space.save(tmp_path / "a.svm")
    program = "import sys, svmcore\nsvmcore.Space.load(sys.argv[1]).save(sys.argv[2])\n"
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.svm"
        subprocess.run(
            [sys.executable, "-W", "error", "-c", program, str(tmp_path / "a.svm"), str(target)],
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(svmcore.__file__).parents[1])},
        )
        assert target.read_bytes() == (tmp_path / "a.svm").read_bytes()
    busy().save(tmp_path / "b.svm")
    assert (tmp_path / "b.svm").read_bytes() == (tmp_path / "a.svm").read_bytes()


def test_one_process_of_a_node_is_saved(tmp_path: Path) -> None:
    system = System(Machine("one", (Gpu(id=11, vram_pages=2000),)))
    first, second = system.space(), system.space()
    for space in (first, second):
        space.map(ADDR, 4 * MIB)
        space.access(ADDR, 2 * MIB, by="gpu0", write=True)
    first.save(tmp_path / "a.svm")
    loaded = Space.load(tmp_path / "a.svm")
    assert loaded.ranges() == first.ranges()
    assert loaded.system is not system
    assert loaded.system.used("gpu0") == 2 * MIB
    assert system.used("gpu0") == 4 * MIB


def test_given_machine_must_match(tmp_path: Path) -> None:
    space = busy()
    path = tmp_path / "a.svm"
    space.save(path)
    assert Space.load(path, machine=space.machine).machine == space.machine
    gpus = (space.machine.gpus[0], dataclasses.replace(space.machine.gpus[1], vram_pages=901))
    other = dataclasses.replace(space.machine, gpus=gpus)
    with pytest.raises(
        InvalidArgumentError, match=r"machine\.gpus\[1\]\.vram_pages: .* 900, .* 901"
    ):
        Space.load(path, machine=other)
    with pytest.raises(InvalidArgumentError, match=r"machine\.name"):
        Space.load(path, machine="gpu-80g")


def resaved(path: Path, spec: dict[str, Any] | None = None, **tables: Any) -> Path:
    """The file with a changed Spec or tables and right digests."""
    old_spec, arrays = read_image(path)
    write_image(path, spec or old_spec, arrays | tables)
    return path


@pytest.mark.parametrize(
    ("keys", "value", "expected"),
    [
        (("policy", "name"), "nonesuch", "nonesuch"),
        (("policy", "settings", "kernel"), "1.0", "kernel"),
        (("policy", "settings", "granularity"), 10, "granularity"),
        (("policy", "settings", "odd"), 1, "odd"),
        (("policy", "settings", "max_svm_range_pages"), 1 << 70, "."),
        (("machine", "name"), 5, "name"),
        (("machine", "gpus"), [], "gpus|rows|expected"),
        (("machine", "gpus", 0, "vram_pages"), 1 << 70, "vram_pages"),
        (("machine", "gpus", 0, "vram_pages"), 5, "memory"),
        (("machine", "gpus", 0, "hive"), "x", "hive"),
        (("machine", "gpus", 0, "id"), 12, "id"),
        (("machine", "costs", "fault_ns"), -1, "fault_ns"),
        (("machine", "costs", "peer_bytes_per_s"), 0, "peer_bytes_per_s"),
        (("machine", "costs", "sources"), {"fault_ns": 5}, "sources"),
        (("other",), {}, "Spec"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(
    tmp_path: Path, keys: tuple[Any, ...], value: Any, expected: str
) -> None:
    busy().save(tmp_path / "a.svm")
    spec, _ = read_image(tmp_path / "a.svm")
    place: Any = spec
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path = resaved(tmp_path / "a.svm", spec)
    with pytest.raises(StateFileError, match=expected) as refused:
        Space.load(path)
    assert str(path) in str(refused.value)


def test_a_hostile_table_is_named(tmp_path: Path) -> None:
    busy().save(tmp_path / "a.svm")
    _, arrays = read_image(tmp_path / "a.svm")
    ranges = arrays["ranges"].copy()
    ranges["attributes"][2] = 99
    with pytest.raises(StateFileError, match=r"a\.svm: state: ranges\[2\]: expected attributes of"):
        Space.load(resaved(tmp_path / "a.svm", ranges=ranges))


def test_policies_without_packing_say_so(tmp_path: Path) -> None:
    class Bare(Policy):
        name = "bare"

    with pytest.raises(NotSupportedError, match="bare"):
        Bare().pack(None)
    with pytest.raises(NotSupportedError, match="bare"):
        Bare().unpack(None, {})


def test_specs_survive_as_dicts() -> None:
    by_hand = Machine("odd", (Gpu(id=5, vram_pages=1, hive=(1 << 64) - 1, adev=-7, svm=False),))
    for machine in (*map(Machine.preset, preset_names()), by_hand):
        assert Machine.from_dict(machine.to_dict()) == machine
    policy = make_policy("kfd(kernel=6.12, xnack=off, max_svm_range_pages=64)")
    assert policy_from_dict(policy.to_dict()) == policy
    for wrong in (None, {}, {"name": 1, "settings": {}}, {"name": "kfd", "settings": []}):
        with pytest.raises(InvalidArgumentError, match="policy"):
            policy_from_dict(wrong)
    for bad in (None, {}, {"name": "x", "gpus": [3], "costs": {}}):
        with pytest.raises(InvalidArgumentError, match="machine"):
            Machine.from_dict(bad)  # type: ignore[arg-type]


# ---- the golden files ---------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_old_versions_keep_loading(tmp_path: Path, version: int) -> None:
    """Written by the releases that had them; their bytes never change."""
    shutil.copy(GOLDEN / f"state_v{version}.svm", tmp_path / "golden.svm")
    assert read_manifest(tmp_path / "golden.svm")["format_version"] == version
    space = Space.load(tmp_path / "golden.svm")
    assert len(space.ranges()) == len(space.process.starts()) > 4
    assert space.process.pending() != []
    assert space.counters()["migrations"] > 0
    assert {info.actual for info in space.ranges()} == {"cpu", "gpu0", "gpu1"}
    assert space.next_event_ns() == space.now_ns
    space.process.check()
    space.step(space.now_ns + 10_000_000)
    assert space.next_event_ns() is None
    assert space.access(ADDR + 4 * MIB, 9 * MIB, by="gpu1").ok
    space.process.check()


def test_versions_of_one_state_are_equal(tmp_path: Path) -> None:
    """What an older file does not say, constants and counters, has its default."""
    saved = []
    for version in ("v1", "v2"):
        Space.load(GOLDEN / f"state_{version}.svm").save(tmp_path / version)
        spec, arrays = read_image(tmp_path / version)
        saved.append((spec, contents(arrays)))
    assert saved[0] == saved[1]
