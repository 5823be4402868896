"""Hosts in C, C++, Cython and Python against the installed package.

The programs are those of ``examples/`` and the two in this folder; they are
compiled with the flags that ``python -m svmcore`` prints and run with the
interpreter of the tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import svmcore
from embedding import abi
from svmcore import _capi, buildinfo
from svmcore._process import Process
from svmcore.policies.base import policy_names

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
BASE = 0x7F00_0000_0000
MIB = 1 << 20
NOW = (1 << 64) - 1
SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
EINVAL, EOPNOTSUPP = 22, 95


def compiler(name: str, default: str) -> str:
    """The command of a compiler; skips where there is none."""
    command = os.environ.get(name, default)
    if shutil.which(shlex.split(command)[0]) is None:
        pytest.skip(f"not run: no compiler {command!r} ({name})")
    return command


@pytest.fixture(scope="session")
def cc() -> str:
    return compiler("CC", "cc")


@pytest.fixture(scope="session")
def cxx() -> str:
    return compiler("CXX", "c++")


def build(command: str, source: Path, folder: Path, *flags: str) -> Path:
    built = folder / source.stem
    standard = "-std=c99" if source.suffix == ".c" else "-std=c++17"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers"]
    run = subprocess.run(
        [
            *shlex.split(command),
            *(standard, *warnings, *flags, *buildinfo.cflags()),
            *(str(source), "-o", str(built), "-pthread", *buildinfo.ldflags()),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return built


def environment(**more: str) -> dict[str, str]:
    """The tests' own, without what would lead Python elsewhere."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    return kept | {"PYTHON": sys.executable} | more


def output(command: list[str], cwd: Path, **more: str) -> str:
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment(**more)
    )
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-6000:]}"
    assert run.stderr == ""
    return run.stdout


def sanitized(command: list[str], cwd: Path) -> str:
    """Under ASan and UBSan: Python's allocator would hide blocks, and Python never frees all."""
    return output(command, cwd, PYTHONMALLOC="malloc", ASAN_OPTIONS="detect_leaks=0")


# ---- what hosts print ----------------------------------------------------------------------


def check_c(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) == 17
    assert "gpu0 touches MiB 0: ok, 1 faults, ready at 59065" in lines[1]
    assert lines[-1].endswith("8 faults, 8 migrations, 8192 KiB moved, 4 unmaps seen")


def check_cpp(text: str) -> None:
    stats = dict(re.findall(r"^([\w.]+) +(\d+) +# ", text, re.MULTILINE))
    # 4 MiB of lines twice: 8 MiB in 256 bytes, one miss a page.
    assert int(stats["system.gpu.tlb.hits"]) + int(stats["system.gpu.tlb.misses"]) == 2 * 32768
    assert int(stats["system.gpu.tlb.misses"]) == 2 * 2048
    assert int(stats["system.svm.migrated_bytes"]) == 12 * MIB
    assert int(stats["system.gpu.tlb.shootdowns"]) > 0
    assert int(stats["system.kernel1.ticks"]) < int(stats["system.kernel0.ticks"])


def check_ok(text: str) -> None:
    assert text == "ok\n"


def check_overhead(text: str) -> None:
    """The bench runs; its times are reported, never asserted."""
    rows = json.loads(text)
    assert set(rows) == {"access", "fault"}
    assert rows["access"]["call_ns"] > 0


HOSTS: dict[str, tuple[Path, Callable[[str], None]]] = {
    "c": (EXAMPLES / "embed_c" / "host.c", check_c),
    "cpp": (EXAMPLES / "embed_cpp" / "gpusim.cpp", check_cpp),
    "errors": (HERE / "errors.c", check_ok),
    "raii": (HERE / "raii.cpp", check_ok),
    "overhead": (EXAMPLES.parent / "bench" / "capi_overhead.c", check_overhead),
}
#: errors.c: policies compiled and written in Python, those that there are.
ARGUMENTS = {
    "errors": [name for name in ("kfd", "uvm", "always_migrate") if name in policy_names()],
}


@pytest.mark.parametrize("host", HOSTS)
def test_host(host: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source, check = HOSTS[host]
    command = request.getfixturevalue("cc" if source.suffix == ".c" else "cxx")
    built = build(command, source, tmp_path, "-O2")
    check(output([str(built), *ARGUMENTS.get(host, [])], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_host_under_sanitizers(host: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source, check = HOSTS[host]
    command = request.getfixturevalue("cc" if source.suffix == ".c" else "cxx")
    built = build(command, source, tmp_path, *SANITIZE)
    check(sanitized([str(built), *ARGUMENTS.get(host, [])], tmp_path))


@pytest.mark.parametrize("name", ["embed_c", "embed_cpp", "embed_cython", "embed_python"])
def test_makefile(name: str, cc: str, cxx: str, tmp_path: Path) -> None:
    """The command that the example's README gives, in a copy of the folder."""
    if shutil.which("make") is None:
        pytest.skip("not run: no make")
    if name == "embed_cython":
        pytest.importorskip("Cython")
        pytest.importorskip("setuptools")
    shutil.copytree(EXAMPLES / name, tmp_path / name)
    run = subprocess.run(
        ["make", "run", f"PYTHON={sys.executable}"],
        cwd=tmp_path / name,
        env=environment(CC=cc, CXX=cxx),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
    if name == "embed_cython":
        assert "32 faults, 0 fatal, 64 events" in run.stdout
        assert "64 MiB moved, 100000 pages touched" in run.stdout


def test_python_host(tmp_path: Path) -> None:
    text = output([sys.executable, str(EXAMPLES / "embed_python" / "host.py")], tmp_path)
    assert re.fullmatch(r"(?:[AB] round [01]: \d+\.\d{3} ms\n){4}.*\n", text)
    faults, evictions, moved = map(int, re.findall(r"\d+", text.splitlines()[-1]))
    assert faults == 32
    assert evictions > 0
    assert moved > 32  # it does not fit, so pages come and go


def test_what_if_granularity(tmp_path: Path) -> None:
    text = output([sys.executable, str(EXAMPLES / "what_if_granularity.py")], tmp_path)
    rows = [line.split() for line in text.splitlines()[1:]]
    assert [row[:2] for row in rows[:4]] == [["sparse", g] for g in ("0", "4", "9", "12")]
    # Larger windows fault less often and move no less.
    assert [int(row[2]) for row in rows[4:]] == [16384, 1024, 32, 4]
    assert float(rows[0][3]) < float(rows[3][3]) == float(rows[7][3]) == 64


# ---- layout and flags ----------------------------------------------------------------------


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="not run: abi.json is of 64 bits")
def test_layout_is_the_committed_one(cc: str) -> None:
    assert abi.measure(cc, svmcore.get_include(), []) == json.loads(abi.COMMITTED.read_text())


def test_layout_check_sees_what_hosts_would() -> None:
    old = {"abi": 1, "s_t": {"sizeof": 16, "size": 0, "addr": 8}}
    assert abi.broken(old, {"abi": 1, "s_t": {"sizeof": 24, "size": 0, "addr": 8, "t": 16}}) == []
    assert abi.broken(old, {"abi": 1, "s_t": {"sizeof": 16, "size": 0, "t": 8}}) != []
    assert abi.broken(old, {"abi": 1, "s_t": {"sizeof": 8, "size": 0, "addr": 8}}) != []
    assert abi.broken(old, {"abi": 1}) != []


def test_every_struct_begins_with_its_size() -> None:
    header = Path(svmcore.get_include(), "svmcore", "svmcore.h").read_text("utf-8")
    fields = abi.structs(header)
    assert fields.pop("svmcore_api_t")[:2] == ["abi", "size"]
    assert fields.pop("svmcore_attr_t") == ["type", "value"]  # the kernel's own
    assert {names[0] for names in fields.values()} == {"size"}
    assert len(fields) == 6


def test_header_without_python_and_as_cxx(cc: str, cxx: str, tmp_path: Path) -> None:
    source = tmp_path / "types.c"
    source.write_text("#include <svmcore/svmcore.h>\nint main(void) { return SVMCORE_ABI - 1; }\n")
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-DSVMCORE_NO_PYTHON", "-fsyntax-only"]
    include = f"-I{svmcore.get_include()}"
    subprocess.run([*shlex.split(cc), "-std=c99", *flags, include, str(source)], check=True)
    both = [*shlex.split(cxx), "-std=c++17", "-x", "c++", *flags, include, str(source)]
    subprocess.run(both, check=True)


def test_reasons_have_the_numbers_of_the_engine() -> None:
    from svmcore._faults import REASONS

    header = Path(svmcore.get_include(), "svmcore", "svmcore.h").read_text("utf-8")
    named = re.findall(r"SVMCORE_REASON_(\w+) = (\d+)", header)
    assert len(named) >= 10
    assert [(name.lower(), int(number)) for name, number in named] == [
        (REASONS[int(number)], int(number)) for _, number in named
    ]


def test_flags_need_no_extra(tmp_path: Path) -> None:
    program = (
        "import runpy, sys\n"
        "sys.modules['click'] = sys.modules['rich'] = None\n"
        "sys.argv = ['svmcore', '--cflags', '--ldflags']\n"
        "runpy.run_module('svmcore', run_name='__main__')\n"
    )
    text = output([sys.executable, "-c", program], tmp_path)
    flags = shlex.split(text)
    assert f"-I{svmcore.get_include()}" in flags
    assert any(flag.startswith("-lpython") for flag in flags)
    assert Path(svmcore.get_include(), "svmcore", "svmcore.hpp").is_file()
    assert buildinfo.main(["--include"]) == 0
    assert buildinfo.main(["replay", "--cflags"]) is None
    assert buildinfo.main([]) is None


# ---- one state, two interfaces ---------------------------------------------------------------


class Table:
    """The functions of the capsule by name, through the layout that abi.json commits."""

    def __init__(self) -> None:
        self.layout = json.loads(abi.COMMITTED.read_text())
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.address = get(_capi.api, b"svmcore._capi.api")

    def __call__(self, name: str, *arguments: object) -> int:
        offset = self.layout["svmcore_api_t"][name]
        function = ctypes.CFUNCTYPE(ctypes.c_int)(
            ctypes.c_void_p.from_address(self.address + offset).value
        )
        return function(*arguments)

    def struct(self, name: str, **values: int) -> ctypes.Array[ctypes.c_char]:
        fields = self.layout[name]
        raw = ctypes.create_string_buffer(fields["sizeof"])
        for field, value in {"size": fields["sizeof"], **values}.items():
            self.put(name, raw, field, value)
        return raw

    def width(self, name: str, field: str) -> int:
        offsets = sorted(self.layout[name].values())
        here = self.layout[name][field]
        return min(next(o for o in offsets if o > here) - here, 8)

    def put(self, name: str, raw: ctypes.Array[ctypes.c_char], field: str, value: int) -> None:
        at, width = self.layout[name][field], self.width(name, field)
        raw[at : at + width] = value.to_bytes(width, "little")

    def get(self, name: str, raw: ctypes.Array[ctypes.c_char], field: str) -> int:
        at, width = self.layout[name][field], self.width(name, field)
        return int.from_bytes(raw[at : at + width], "little")


u64, u32 = ctypes.c_uint64, ctypes.c_uint32


@pytest.fixture
def table() -> Table:
    return Table()


def handle_of(table: Table, space: svmcore.Space) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    assert table("from_object", ctypes.py_object(space), ctypes.byref(handle)) == 0
    return handle


@pytest.mark.parametrize("policy", ["kfd(granularity=4)", "uvm"])
def test_equal_to_the_python_space(table: Table, policy: str) -> None:
    """The same random calls through the table and through a Space: one answer each time."""
    rng = random.Random(3)
    machine = svmcore.Machine(
        "two", (svmcore.Gpu(id=11, vram_pages=1024), svmcore.Gpu(id=12, vram_pages=2048))
    )
    twin = svmcore.Space(machine, policy=policy)
    space = svmcore.Space(machine, policy=policy)
    handle = handle_of(table, space)
    own = policy.startswith("kfd")  # has the ioctl
    twin.map(BASE, 16 * MIB)
    assert table("map", handle, u64(BASE), u64(16 * MIB), u32(3), u32(0), u64(NOW)) == 0
    faults = 0
    for _ in range(600):
        addr = BASE + rng.randrange(0, 16 * MIB, 4096)
        size = min(rng.choice([4096, 65536, 3 * MIB]), BASE + 16 * MIB - addr)
        t_ns = twin.now_ns + rng.choice([0, 0, 5000, 3_000_000])
        what = rng.random()
        if what < 0.7:
            by, write = rng.randrange(3), rng.random() < 0.5
            wanted = twin.access(addr, size, ("cpu", "gpu0", "gpu1")[by], write, t_ns)
            touch = table.struct(
                "svmcore_access_t", by=by, flags=int(write), addr=addr, bytes=size, t_ns=t_ns
            )
            code = table("access", handle, touch)
            got = [
                table.get("svmcore_access_t", touch, name)
                for name in ("faults", "duplicates", "remote_pages", "ready_ns")
            ]
            assert got == [wanted.faults, wanted.duplicates, wanted.remote_pages, wanted.ready_ns]
            assert (code == 0) == wanted.ok
            faults += wanted.faults
        elif what < 0.8 and not own:
            word, to = rng.choice([("read_mostly", None), ("preferred_location", "gpu1")])
            twin.advise(addr, size, word, to, t_ns=t_ns)
            value = 12 if to else 0xFFFFFFFE
            given = (u64(addr), u64(size), word.encode(), u32(value), u64(t_ns))
            assert table("advise", handle, *given) == 0
        elif what < 0.8:
            value = rng.choice([0, 11, 12, 0xFFFFFFFF])
            twin.set_attr(addr, size, [(0, value)], t_ns)
            pair = (u32 * 2)(0, value)
            assert table("set_attr", handle, u64(addr), u64(size), pair, u32(1), u64(t_ns)) == 0
        elif what < 0.9:
            twin.prefetch(addr, size, "gpu1", t_ns)
            assert table("prefetch", handle, u64(addr), u64(size), u32(12), u64(t_ns)) == 0
        elif what < 0.95:
            assert (table("evict", handle, u64(addr), u64(t_ns)) == 0) == twin.evict(addr, t_ns)
            due, processor = u64(), u32()
            assert table("next_event", handle, ctypes.byref(due)) == 0
            wanted_due = twin.next_event_ns()
            assert due.value == (NOW if wanted_due is None else wanted_due)
            assert table("where", handle, u64(addr), ctypes.byref(processor)) == 0
            at = twin.process.where(addr >> 12)
            assert processor.value == (255 if at < 0 else at)
        else:
            twin.invalidate(addr, size, t_ns)
            assert table("invalidate", handle, u64(addr), u64(size), u64(t_ns)) == 0
    assert faults > 100
    counters = table.struct("svmcore_counters_t")
    assert table("counters", handle, counters) == 0
    names = [
        n for n in table.layout["svmcore_counters_t"] if n not in ("sizeof", "size", "reserved")
    ]
    got = {name: table.get("svmcore_counters_t", counters, name) for name in names}
    assert len(names) == 16
    assert got == {name: twin.counters()[name] for name in names}
    assert space.ranges() == twin.ranges()
    assert space.now_ns == twin.now_ns
    attrs = (u32 * 4)(0, 0, 7, 0)
    code = table("get_attr", handle, u64(BASE), u64(MIB), attrs, u32(2), u64(NOW))
    assert code == (0 if own else -EOPNOTSUPP)
    assert not own or attrs[3] == twin.get_attr(BASE, MIB)["granularity"]
    assert table("destroy", handle) == 0


@pytest.mark.parametrize("policy", ["kfd(granularity=4)", "uvm", "uvm(prefetch=no)"])
def test_raw_fault_is_the_python_one(table: Table, policy: str) -> None:
    twin, space = (svmcore.Space("gpu-80g", policy=policy) for _ in range(2))
    handle = handle_of(table, space)
    for one in (twin, space):
        one.map(BASE, MIB)
        one.access(BASE, MIB // 2, by="cpu", write=True)
    for addr in (BASE, BASE + 4096, BASE + 256 * 1024, BASE - 4096):
        wanted = twin.fault(addr, write=True)
        raw = table.struct("svmcore_fault_t", by=1, flags=1, addr=addr, t_ns=NOW)
        table("fault", handle, raw)

        def get(name: str, raw: ctypes.Array[ctypes.c_char] = raw) -> int:
            return table.get("svmcore_fault_t", raw, name)

        start, end = wanted.window or (0, 0)
        assert (get("window_addr"), get("window_bytes")) == (start, end - start)
        assert get("moved_bytes") == wanted.migrated_pages * 4096
        assert bool(get("migration")) == wanted.migration
        assert (get("code") == 0) == (wanted.code == "OK")
    assert table("destroy", handle) == 0


class Watcher:
    """Collects the events of a handle."""

    NAMES = ("kind", "cause", "source", "target", "addr", "bytes", "value")

    def __init__(self, table: Table, handle: ctypes.c_void_p, log: list[object] | None = None):
        self.seen: list[object] = [] if log is None else log

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        def watch(_user: int, event: int) -> int:
            raw = ctypes.create_string_buffer(
                ctypes.string_at(event, table.layout["svmcore_event_t"]["sizeof"])
            )
            row = tuple(table.get("svmcore_event_t", raw, name) for name in self.NAMES)
            self.seen.append((handle.value, *row) if log is not None else row)
            return 0

        self.function = watch  # svmcore keeps its address only
        assert table("set_event_callback", handle, watch, None) == 0


def test_events_of_uvm_are_its_moves_and_evictions(table: Table) -> None:
    machine = svmcore.Machine("small", (svmcore.Gpu(id=7, vram_pages=2 * 512),))
    space, twin = svmcore.Space(machine, policy="uvm"), svmcore.Space(machine, policy="uvm")
    handle = handle_of(table, space)
    for one in (twin, space):
        one.map(BASE, 8 * MIB)
        one.access(BASE, 8 * MIB, by="cpu", write=True)
        one.access(BASE, 4 * MIB, by="gpu0")
    watcher = Watcher(table, handle)
    wanted = twin.fault(BASE + 6 * MIB, write=True).effects
    raw = table.struct("svmcore_fault_t", by=1, flags=1, addr=BASE + 6 * MIB, t_ns=NOW)
    assert table("fault", handle, raw) == 0
    words = ("user", "gpu_fault", "cpu_fault", "eviction", "prefetcher", "advice")
    moves = [
        (addr >> 12, (addr + size - 1) >> 12, 7 * source, 7 * target, words[cause], value >> 12)
        for kind, cause, source, target, addr, size, value in watcher.seen
        if kind == 0
    ]
    assert moves == wanted.migr
    assert {move[4] for move in moves} >= {"eviction", "gpu_fault"}
    assert [(row[6], row[5] >> 12) for row in watcher.seen if row[0] == 5] == wanted.bo_evict
    assert len(wanted.bo_evict) == 1
    assert table("destroy", handle) == 0


def test_events_are_the_effects_in_order(table: Table) -> None:
    space, twin = svmcore.Space("gpu-80g"), svmcore.Space("gpu-80g")
    handle = handle_of(table, space)
    for one in (twin, space):
        one.map(BASE, 4 * MIB)
    watcher = Watcher(table, handle)
    outcome = twin.fault(BASE, write=True).effects
    raw = table.struct("svmcore_fault_t", by=1, flags=1, addr=BASE, t_ns=NOW)
    assert table("fault", handle, raw) == 0
    assert table("set_event_callback", handle, None, None) == 0
    (move,) = outcome.migr
    (mapped,) = outcome.map
    first, last = move[:2]
    assert watcher.seen == [
        (0, 1, 0, 1, first << 12, (last - first + 1) << 12, move[5] << 12),
        (1, 1, 0, 1, mapped[1] << 12, (mapped[2] - mapped[1] + 1) << 12, mapped[4]),
    ]
    space.access(BASE, MIB)  # Python's own calls record nothing
    assert table("now", handle, ctypes.byref(u64())) == 0
    assert len(watcher.seen) == 2
    assert table("destroy", handle) == 0


@pytest.mark.parametrize("struct", ["svmcore_access_t", "svmcore_fault_t"])
def test_no_event_is_lost_on_a_space_that_python_used(table: Table, struct: str) -> None:
    """Python's touches may take the short way, which logs nothing; a watched host's may not."""
    space = svmcore.Space("gpu-80g")
    handle = handle_of(table, space)
    space.map(BASE, 4 * MIB)
    for by in ("gpu0", "cpu", "gpu0", "cpu"):
        space.access(BASE, by=by, t_ns=space.now_ns + 10_000_000)
    watcher = Watcher(table, handle)
    span = {"bytes": 4096} if struct == "svmcore_access_t" else {}
    raw = table.struct(struct, by=1, addr=BASE, t_ns=space.now_ns + 10_000_000, **span)
    assert table("access" if span else "fault", handle, raw) == 0
    assert [row[:2] for row in watcher.seen] == [(0, 1), (1, 1)]  # moved by a fault, mapped
    assert table("destroy", handle) == 0


def crowd(
    table: Table, *policies: str
) -> tuple[list[ctypes.c_void_p], list[tuple[int, ...]], list[Watcher]]:
    """Spaces of one small node, each of which takes all of its GPU's memory in turn."""
    machine = svmcore.Machine("small", (svmcore.Gpu(id=7, vram_pages=2 * 512),))
    system = svmcore.System(machine)
    handles = [handle_of(table, system.space(policy)) for policy in policies]
    log: list[tuple[int, ...]] = []
    watchers = [Watcher(table, handle, log) for handle in handles]
    for handle in handles:
        assert table("map", handle, u64(BASE), u64(4 * MIB), u32(3), u32(0), u64(NOW)) == 0
        touch = table.struct("svmcore_access_t", by=1, addr=BASE, bytes=4 * MIB, t_ns=NOW)
        assert table("access", handle, touch) == 0
    lost = [row for row in log if row[0] == handles[0].value and row[1] == 0 and row[2] == 3]
    counters = table.struct("svmcore_counters_t")
    assert table("counters", handles[0], counters) == 0
    evicted = table.get("svmcore_counters_t", counters, "evicted_bytes")
    assert sum(row[7] for row in lost) == evicted > 0
    return handles, log, watchers


def test_events_of_a_neighbour_that_loses_memory(table: Table) -> None:
    handles, log, watchers = crowd(table, "kfd", "kfd")
    own = [row for row in log if row[0] == handles[1].value]
    lost = [row for row in log if row[0] == handles[0].value and row[1] == 0 and row[2] == 3]
    assert sum(row[7] for row in lost) == 4 * MIB  # all of it, bytes moved out
    assert log.index(lost[0]) < log.index(own[0])  # room first
    # Without a callback it hears no more.
    assert table("set_event_callback", handles[1], None, None) == 0
    count = len([row for row in log if row[0] == handles[1].value])
    touch = table.struct("svmcore_access_t", by=1, addr=BASE, bytes=4 * MIB, t_ns=NOW)
    assert table("access", handles[0], touch) == 0
    assert len([row for row in log if row[0] == handles[1].value]) == count
    for handle in handles:
        assert table("destroy", handle) == 0
    assert len(watchers) == 2


def test_python_keeps_the_space_that_a_host_holds(table: Table) -> None:
    handle = ctypes.c_void_p()
    options = table.struct("svmcore_options_t")
    assert table("create", options, ctypes.byref(handle)) == 0
    back = ctypes.c_void_p()
    assert table("to_object", handle, ctypes.byref(back)) == 0
    space = ctypes.cast(back, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(space))  # to_object gave a reference
    assert isinstance(space, svmcore.Space)
    assert space.policy.name == "kfd"
    assert table("destroy", handle) == 0
    space.map(BASE, MIB)
    assert space.access(BASE, by="gpu0").ok
    assert table("now", handle, ctypes.byref(u64())) == -EINVAL


def test_state_files(table: Table, tmp_path: Path) -> None:
    space = svmcore.Space("gpu-80g")
    space.map(BASE, 4 * MIB)
    space.access(BASE, MIB, by="gpu0")
    handle, loaded = handle_of(table, space), ctypes.c_void_p()
    path = str(tmp_path / "state.svm").encode()
    assert table("save", handle, path) == 0
    assert table("load", path, None, ctypes.byref(loaded)) == 0
    answers = []
    for one in (handle, loaded):
        touch = table.struct("svmcore_access_t", by=0, addr=BASE, bytes=4 * MIB, t_ns=NOW)
        assert table("access", one, touch) == 0
        answers.append(touch.raw)
        assert table("destroy", one) == 0
    assert answers[0] == answers[1]


@pytest.mark.parametrize("policies", [("kfd", "uvm"), ("uvm", "kfd")])
def test_neighbours_of_two_policies(table: Table, policies: tuple[str, str]) -> None:
    """A touch under one takes the memory of the other, whose callback hears of it."""
    handles, _, watchers = crowd(table, *policies)
    for handle in handles:
        assert table("destroy", handle) == 0
    assert len(watchers) == 2


class Foreign:
    """A process that does not derive from svmcore's."""

    now = 0


@pytest.mark.parametrize("process", [Foreign, Process])
def test_policy_with_a_process_of_its_own(table: Table, process: type) -> None:
    space = svmcore.Space("gpu-80g")
    space.process = process()  # a bare Process has no operations
    handle = ctypes.c_void_p()
    code = table("from_object", ctypes.py_object(space), ctypes.byref(handle))
    assert code == -EOPNOTSUPP
    assert not handle.value


def test_what_a_python_policy_raises_is_told(table: Table) -> None:
    from dataclasses import dataclass

    from svmcore.policies.paged import Paged

    @dataclass(frozen=True)
    class Stumbles(Paged):
        def service(self, view: object, batch: object) -> object:
            raise LookupError("lost the way")

    Stumbles.name = "stumbles"
    space = svmcore.Space("gpu-80g", policy=Stumbles())
    handle = handle_of(table, space)
    assert table("map", handle, u64(BASE), u64(MIB), u32(3), u32(0), u64(NOW)) == 0
    text = ctypes.create_string_buffer(200)
    for name, struct in (("access", "svmcore_access_t"), ("fault", "svmcore_fault_t")):
        span = {"bytes": 4096} if name == "access" else {}
        raw = table.struct(struct, by=1, addr=BASE, t_ns=NOW, **span)
        assert table(name, handle, raw) == -5  # EIO
        assert table("last_error", handle, text, u64(200)) == 0
        assert text.value == b"LookupError: lost the way"
    # It was told: the CPU's touch is served, and Python hears of nothing.
    raw = table.struct("svmcore_access_t", by=0, addr=BASE, bytes=4096, t_ns=NOW)
    assert table("access", handle, raw) == 0
    assert space.access(BASE, by="cpu").ok
    assert table("destroy", handle) == 0
