"""Small cases from people who do this job, and the facts of the driver's own range tests.

Each test is one question with every part of its answer, asked through the
public interface. The GPUs have ids 1, 2, ... and 4 GiB each unless said otherwise.
"""

import numpy as np
import pytest

from svmcore import Gpu, Machine, Space, open_trace, replay
from svmcore.attributes import Flag
from svmcore.errors import AddressError
from svmcore.records import RECORD, Kind
from svmcore.traces.kfd_smi import MigrateValue, events

PAGE = 4096
BASE = 0x7F00_0000_0000
MS = 1_000_000
HOST = Flag.HOST_ACCESS | Flag.COHERENT


def machine(gpus=1, vram_pages=1 << 20, **fields):
    return Machine("case", tuple(Gpu(1 + i, vram_pages, **fields) for i in range(gpus)))


def buffer(npages, gpus=1, *, vram_pages=1 << 20, base=BASE, populate=False, **settings):
    space = Space(machine(gpus, vram_pages), **settings)
    space.map(base, npages * PAGE)
    if populate:
        assert space.access(base, npages * PAGE, by="cpu", write=True).ok
    return space


class Watch:
    """What an operation did: its effects in order and what the counters gained."""

    def __init__(self, space):
        self.space = space

    def __enter__(self):
        self.before = self.space.counters()
        self.outcome = self.space.process.begin(self.space.now_ns)
        return self

    def __exit__(self, *error):
        self.space.process.finish()
        after = self.space.counters()
        self.gained = {k: after[k] - n for k, n in self.before.items() if after[k] != n}

    def __getitem__(self, name):
        return self.gained.get(name, 0)

    @property
    def moves(self):
        """(pages, trigger) of each migration, those of 0 pages too."""
        return [(row[5], row[4]) for row in self.outcome.migr]


def attributes(space, npages=1, base=BASE):
    return space.get_attr(base, npages * PAGE)


def spans(space, base=BASE):
    """Ranges as (first page, pages), from the page of *base*."""
    return [((r.start - base) // PAGE, r.size // PAGE) for r in space.ranges()]


# ---- case 1: memory that stays in VRAM is faulted back by CPU threads -----------------------


@pytest.mark.parametrize(("granularity", "moves"), [(9, 2), (0, 1024)])
def test_case_01_cpu_faults_bring_recycled_memory_back(granularity, moves):
    space = buffer(1024, granularity=granularity)
    space.prefetch(BASE, 1024 * PAGE, "gpu0")
    assert space.residency(BASE, 1024 * PAGE) == [(BASE, 1024 * PAGE, "gpu0")]
    with Watch(space) as seen:
        # Eight threads in turn, each on its own pages of both windows.
        results = [
            space.access(BASE + (8 * i + thread) * PAGE, by="cpu", write=True)
            for i in range(128)
            for thread in range(8)
        ]
    assert seen.moves == [(1024 // moves, "cpu_fault")] * moves
    assert seen["migrations"] == moves
    assert seen["faults"] == moves
    assert sum(r.faults for r in results) == moves
    assert all(r.ok and r.faults <= 1 for r in results)
    assert seen["bytes_to_host"] == 1024 * PAGE
    assert space.residency(BASE, 1024 * PAGE) == [(BASE, 1024 * PAGE, "cpu")]


def test_case_01_prefetch_to_the_host_first():
    space = buffer(1024)
    space.prefetch(BASE, 1024 * PAGE, "gpu0")
    with Watch(space) as seen:
        space.prefetch(BASE, 1024 * PAGE, "cpu")
        touch = space.access(BASE, 1024 * PAGE, by="cpu", write=True)
    assert seen.moves == [(1024, "prefetch")]
    assert seen["migrations"] == 1
    assert touch.faults == 0
    assert seen["faults"] == 0


@pytest.mark.parametrize(("granularity", "moves"), [(9, 2), (0, 1024)])
def test_case_01_as_a_trace(granularity, moves):
    touches = np.zeros(1025, RECORD)
    touches["size"] = PAGE
    touches["addr"] = BASE + np.arange(-1, 1024) * PAGE
    touches["access"] = 1
    touches[0] = (0, BASE, 1024 * PAGE, 0, 0, Kind.PREFETCH, 0, 0, 1)
    result = replay(touches, Space(machine(), granularity=granularity))
    assert result.counters["bytes_to_device"] == 1024 * PAGE
    assert result.counters["migrations"] == 1 + moves
    assert result.processors["cpu"]["faults"] == moves
    assert result.counters["errors"] == 0


# ---- case 2: a notification under a running copy ------------------------------------------


def test_case_02_notified_range_is_unmapped_with_xnack_on():
    space = buffer(512, 2)
    assert space.access(BASE, 512 * PAGE, by="gpu1").faults == 1
    with Watch(space) as seen:
        space.invalidate(BASE, 512 * PAGE)
    first = BASE // PAGE
    assert seen.outcome.unmap == [(2, first, first + 511, "notify")]
    assert seen.outcome.queues == []
    assert seen["queue_evictions"] == 0
    assert space.ranges()[0].mapped == ()
    assert space.next_event_ns() is None
    again = space.access(BASE, 512 * PAGE, by="gpu1", t_ns=space.now_ns + 3 * MS)
    assert (again.code, again.faults) == ("OK", 1)


@pytest.mark.parametrize(("xnack", "flags"), [(True, Flag.GPU_ALWAYS_MAPPED), (False, 0)])
def test_case_02_always_mapped_or_xnack_off_stops_the_queues(xnack, flags):
    space = buffer(512, 2, xnack=xnack)
    space.set_attr(BASE, 512 * PAGE, [("ACCESS", "gpu1"), ("SET_FLAGS", flags)])
    assert space.access(BASE, 512 * PAGE, by="gpu1").faults == 0
    mapped = space.ranges()[0].mapped
    assert "gpu1" in mapped
    with Watch(space) as seen:
        space.invalidate(BASE, 512 * PAGE)
    assert seen.outcome.queues == ["quiesce"]
    assert seen.outcome.unmap == []
    assert (seen["queue_evictions"], seen["queue_restores"]) == (1, 0)
    assert space.ranges()[0].mapped == mapped
    due = space.next_event_ns()
    assert MS <= due <= space.now_ns + MS
    with Watch(space) as seen:
        space.step(due)
    assert seen.outcome.queues == ["resume"]
    assert (seen["queue_evictions"], seen["queue_restores"]) == (0, 1)
    assert space.next_event_ns() is None
    touch = space.access(BASE, 512 * PAGE, by="gpu1")
    assert (touch.code, touch.faults) == ("OK", 0)
    assert space.counters()["faults"] == 0


def test_case_02_a_touch_waits_for_the_restore_work():
    space = buffer(512, 2, xnack=False)
    space.set_attr(BASE, 512 * PAGE, [("ACCESS", "gpu1")])
    space.invalidate(BASE, 512 * PAGE)
    due = space.next_event_ns()
    touch = space.access(BASE, by="gpu1")
    assert (touch.code, touch.faults) == ("OK", 0)
    assert touch.ready_ns >= due
    assert space.counters()["queue_restores"] == 1


# ---- case 3: NO_ACCESS must unmap quietly -------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "unmaps_at_once", "evictions"), [("7.3", 1, 0), ("6.12", 0, 1), ("6.1", 0, 1)]
)
def test_case_03_no_access_on_a_mapped_range(kernel, unmaps_at_once, evictions):
    space = buffer(512, 2, xnack=False, kernel=kernel)
    space.set_attr(BASE, 512 * PAGE, [("ACCESS", "gpu1")])
    with Watch(space) as set_attr:
        space.set_attr(BASE, 512 * PAGE, [("NO_ACCESS", "gpu1")])
    with Watch(space) as notified:
        space.invalidate(BASE, 512 * PAGE)
    assert len(set_attr.outcome.unmap) == unmaps_at_once
    assert set_attr["unmaps"] == unmaps_at_once
    assert set_attr["queue_evictions"] == 0
    assert notified["queue_evictions"] == evictions
    assert notified["unmaps"] == 0
    assert notified.outcome.queues == ["quiesce"] * evictions
    assert space.get_attr(BASE, PAGE)["access"]["gpu1"] == "no_access"


# ---- case 4: which state produces which event ---------------------------------------------


def test_case_04_dropped_pages_unmap():
    space = buffer(16)
    space.access(BASE, 16 * PAGE)
    with Watch(space) as seen:
        space.invalidate(BASE, 16 * PAGE)
    assert [row[3] for row in seen.outcome.unmap] == ["notify"]
    assert seen.outcome.queues == []


def test_case_04_reading_kernel_on_pages_of_the_host_migrates():
    space = buffer(512, populate=True)
    fault = space.fault(BASE, "gpu0", write=False)
    assert (fault.code, fault.reason, fault.location) == ("OK", "ok", "gpu0")
    assert fault.migration
    assert fault.migrated_pages == 512
    assert [row[4] for row in fault.effects.migr] == ["gpu_fault"]


def test_case_04_full_vram_with_an_active_queue_stops_it():
    space = buffer(2048, vram_pages=1024, xnack=False, max_svm_range_pages=512)
    half = 1024 * PAGE
    space.set_attr(BASE, half, [("ACCESS", "gpu0"), ("PREFETCH_LOC", "gpu0")])
    assert space.counters()["evictions"] == 0
    with Watch(space) as seen:
        space.set_attr(BASE + half, half, [("ACCESS", "gpu0"), ("PREFETCH_LOC", "gpu0")])
    assert seen.outcome.queues[0] == "quiesce"
    assert seen["queue_evictions"] == 1
    assert seen["evictions"] == 2
    assert seen["evicted_bytes"] == half
    assert [m for m in seen.moves if m[1] == "ttm_evict"] == [(512, "ttm_evict")] * 2
    space.step(space.now_ns + 2 * MS)
    assert space.counters()["queue_restores"] == 1
    assert space.access(BASE, 2 * half).ok


# ---- cases 5 to 7: event text of the driver ------------------------------------------------

LINES = [
    "c 77 worker",
    "7 1000 -77 @7f0000105(2b) W",
    "5 1100 -77 @7f0000000(200) 0->2b ffffffff:ffffffff 1",
    "6 2100 -77 @7f0000000(200) 0->2b 1 0",
    "8 2200 -77 @7f0000105(2b) M",
    "7 3000 -77 @7f0000106(2b) R",
    "8 3100 -77 @7f0000106(2b) U",
    "5 4000 -77 @7f0000200(200) 0->2b 2b:ffffffff 0",
    "6 5000 -77 @7f0000200(200) 0->2b 0 0",
    "b 6000 -77 @7f0000000(200) 2b 1",
    "5 6100 -77 @7f0000000(200) 2b->0 ffffffff:ffffffff 2",
    "6 6200 -77 @7f0000000(200) 2b->0 2 0",
    "9 7000 -77 2b 0",
    "a 8000 -77 2b R",
    "a 9000 -77 2b {}",
    "b 9500 -77 @7f0000200(200) 2b 2",
    "e 9600 -77 17",
    "d 77 worker",
]


def smi(tmp_path, text):
    path = tmp_path / "smi.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("damage", ["\0\n", ""], ids=["nul", "glued"])
def test_case_05_nul_and_glued_lines_lose_no_event(tmp_path, damage):
    text = "\n".join(LINES) + "\n"
    # A NUL stands where the flag of a restore should; or the newline is gone with it.
    path = smi(tmp_path, text.replace("{}\n", damage))
    found = list(events(path))
    assert len(found) == len(LINES)
    assert [event.id for event in found] == [int(line.split()[0], 16) for line in LINES]
    assert found[14].flag is None
    assert (found[15].addr, found[15].trigger) == (0x7F0000200000, 2)
    summary = open_trace(path, format="kfd-smi").summary
    assert summary.repaired == 1
    assert (summary.refused, summary.unknown) == (0, 0)


@pytest.mark.parametrize("name", ["kfd_smi_nul_before_newline.bin", "kfd_smi_glued_lines.txt"])
def test_case_05_on_the_shared_files(shared, name):
    path = shared / "data" / "made-up" / name
    assert len(list(events(path))) == 18
    assert open_trace(path).summary.repaired == 1


def test_case_06_absent_and_unknown_fields(tmp_path):
    old = (
        "7 1000 -77 @7f0000105(2b) W\n"
        "5 1100 -77 @7f0000000(200) 0->2b ffffffff:ffffffff 1\n"
        "6 2100 -77 @7f0000000(200) 0->2b 1\n"
        "2f 2150 -77 something new\n"
        "8 2200 -77 @7f0000105(2b) M\n"
        "5 2300 -77 @7f0000000(200) 0->2b ffffffff:ffffffff 1\n"
        "6 2400 -77 @7f0000000(200) 0->2b 1 0\n"
    )
    path = smi(tmp_path, old)
    found = list(events(path))
    assert [event.error for event in found if event.id == 6] == [None, 0]
    trace = open_trace(path, format="kfd-smi")
    summary = trace.summary
    assert summary.unknown == 1
    assert summary.refused == 0
    moves = [r for r in np.concatenate(list(trace.chunks())) if r["kind"] == Kind.MIGRATE]
    assert [MigrateValue.unpack(int(r["value"])).error for r in moves] == [None, 0]


def test_case_06_on_the_shared_file(shared):
    path = shared / "data" / "made-up" / "kfd_smi_old_kernel.txt"
    ends = [event for event in events(path) if event.id == 6]
    assert len(ends) == 3
    assert {event.error for event in ends} == {None}


def test_case_07_restore_and_reschedule_are_told_apart(tmp_path):
    path = smi(tmp_path, "9 900 -77 2b 0\na 1000 -77 2b 0\na 1100 -77 2b R\na 1200 -77 2b\n")
    records = np.concatenate(list(open_trace(path, format="kfd-smi").chunks()))
    restores = records[records["kind"] == Kind.QUEUE_RESTORE]
    assert int((restores["value"] == 0).sum()) == 2
    assert int((restores["value"] == 1).sum()) == 1


# ---- case 9: an APU keeps pages in system memory -------------------------------------------


@pytest.mark.parametrize(
    "node", ["mi300a", Machine("apu", (Gpu(1, 1 << 20, apu=True),))], ids=["preset", "own"]
)
def test_case_09_apu_faults_without_migration(node):
    space = Space(node)
    space.map(BASE, 1024 * PAGE)
    space.set_attr(BASE, 1024 * PAGE, [("PREFERRED_LOC", "gpu0")])
    faults = [space.fault(BASE + page * PAGE, t_ns=(3 + page) * MS) for page in (0, 512)]
    for fault in faults:
        assert (fault.code, fault.location) == ("OK", "cpu")
        assert not fault.migration  # the end of the fault says U
        assert fault.effects.migr == []
    touch = space.access(BASE, 1024 * PAGE, write=True)
    assert (touch.code, touch.faults) == ("OK", 0)
    counters = space.counters()
    assert counters["migrations"] == counters["migration_attempts"] == 0
    assert counters["migrated_bytes"] == 0
    assert space.residency(BASE, 1024 * PAGE) == [(BASE, 1024 * PAGE, "cpu")]


def test_case_09_apu_prefetch_moves_nothing():
    space = Space("mi300a")
    space.map(BASE, 1024 * PAGE)
    space.prefetch(BASE, 1024 * PAGE, "gpu0")
    assert space.counters()["migrated_bytes"] == 0
    assert attributes(space)["prefetch"] == "gpu0"


# ---- case 19: what a prefetch is worth ----------------------------------------------------


def test_case_19_sequential_read_without_prefetch():
    space = buffer(1024, populate=True)
    with Watch(space) as seen:
        touches = [space.access(BASE + page * PAGE) for page in range(1024)]
    assert seen.moves == [(512, "gpu_fault")] * 2
    assert seen["faults"] == sum(t.faults for t in touches) == 2
    assert seen["migrations"] == 2


def test_case_19_sequential_read_after_prefetch():
    space = buffer(1024, populate=True)
    with Watch(space) as seen:
        space.prefetch(BASE, 1024 * PAGE, "gpu0")
        touches = [space.access(BASE + page * PAGE) for page in range(1024)]
    assert seen.moves == [(1024, "prefetch")]
    assert seen["faults"] == sum(t.faults for t in touches) == 0
    assert seen["migrations"] == 1
    assert seen["remote_accesses"] == 0


# ---- case 20: without XNACK nothing migrates on touch --------------------------------------


def test_case_20_xnack_off_reads_remotely():
    space = buffer(512, 2, populate=True, xnack=False)
    space.set_attr(BASE, 512 * PAGE, [("ACCESS", "gpu1")])
    with Watch(space) as seen:
        touches = [space.access(BASE + page * PAGE, by="gpu1") for page in range(100)]
    assert all(t.ok and t.remote_pages == 1 for t in touches)
    assert seen.gained == {"remote_accesses": 100, "pages_touched": 100}


def test_case_20_xnack_on_faults_once_a_window():
    space = buffer(1024, 2, populate=True)
    space.set_attr(BASE, 1024 * PAGE, [("ACCESS", "gpu1")])
    with Watch(space) as seen:
        for page in range(100):
            space.access(BASE + page * PAGE, by="gpu1")
        for page in range(512, 612):
            space.access(BASE + page * PAGE, by="gpu1")
    assert seen["faults"] == 2
    assert seen["migrated_pages"] == 1024
    assert seen["remote_accesses"] == 0


# ---- case 21: page not present ---------------------------------------------------------------


@pytest.mark.parametrize("registered", [False, True], ids=["unregistered", "no_access"])
def test_case_21_xnack_off_touch_is_fatal(registered):
    space = buffer(512, 2, xnack=False)
    if registered:
        space.set_attr(BASE, 512 * PAGE, [("ACCESS", "gpu1")])
        space.set_attr(BASE, 512 * PAGE, [("NO_ACCESS", "gpu1")])
    touch = space.access(BASE + 7 * PAGE + 5, by="gpu1")
    assert not touch.ok
    assert touch.code == "EACCES"
    assert touch.addr == BASE + 7 * PAGE
    assert touch.faults == 0
    counters = space.counters()
    assert (counters["migrations"], counters["errors"], counters["faults"]) == (0, 1, 0)


def test_case_21_xnack_on_makes_the_range_and_restores_it():
    space = buffer(512, 2)
    touch = space.access(BASE + 7 * PAGE, by="gpu1")
    assert (touch.code, touch.faults) == ("OK", 1)
    (info,) = space.ranges()
    assert (info.start, info.size) == (BASE, 512 * PAGE)
    assert (info.preferred, info.prefetch, info.granularity) == ("undefined", "undefined", 9)
    assert info.flags == HOST
    assert info.access == ("gpu0", "gpu1")
    assert info.mapped == ("gpu1",)
    assert info.device_pages == 512


# ---- granularity, as the driver's tests have it ----------------------------------------------

#: First page ends in 7ee: not aligned to any window of more than 2 pages.
ODD = (0x7F0000000 + 0x7EE) * PAGE


@pytest.mark.parametrize(
    ("granularity", "faulting"),
    [(2, [0x7EE, 0x7F0]), (1, [0x7EE, 0x7F0, 0x7F2]), (0, [0x7EE, 0x7EF, 0x7F0, 0x7F1, 0x7F2])],
)
def test_kfdtest_granularity_of_five_pages(granularity, faulting):
    space = buffer(5, base=ODD)
    space.set_attr(ODD, 5 * PAGE, [("GRANULARITY", granularity), ("PREFETCH_LOC", "gpu0")])
    assert space.ranges()[0].device_pages == 5
    met = [
        0x7EE + page
        for page in range(5)
        if space.access(ODD + page * PAGE, by="cpu", write=True).faults
    ]
    assert met == faulting


@pytest.mark.parametrize("granularity", range(14, -1, -1))
def test_kfdtest_granularity_over_16384_pages(granularity):
    npages = 16384
    space = buffer(npages, base=ODD, max_svm_range_pages=npages)
    space.set_attr(ODD, npages * PAGE, [("GRANULARITY", granularity), ("PREFETCH_LOC", "gpu0")])
    first, last = ODD // PAGE, ODD // PAGE + npages - 1
    windows = (last >> granularity) - (first >> granularity) + 1
    touch = space.access(ODD, npages * PAGE, by="cpu", write=True)
    assert touch.faults == windows
    assert space.counters()["bytes_to_host"] == npages * PAGE
    # And the way in again, by GPU faults over the same windows.
    touch = space.access(ODD, npages * PAGE, by="gpu0", write=True, t_ns=space.now_ns + 3 * MS)
    assert touch.faults == windows


# ---- attributes and splits, as the driver's tests have them ----------------------------------


@pytest.mark.parametrize(("xnack", "access"), [(True, "access"), (False, "no_access")])
@pytest.mark.parametrize("granularity", [9, 4])
def test_kfdtest_defaults(xnack, access, granularity):
    space = buffer(16, 2, xnack=xnack, granularity=granularity)
    expected = {
        "preferred": "undefined",
        "prefetch": "undefined",
        "flags": HOST,
        "any_flags": HOST,
        "granularity": granularity,
        "access": {"gpu0": access, "gpu1": access},
    }
    assert attributes(space, 16) == expected  # nothing registered
    space.set_attr(BASE, 16 * PAGE, [])
    assert spans(space) == [(0, 16)]
    assert attributes(space, 16) == expected


@pytest.mark.parametrize("xnack", [True, False])
def test_kfdtest_set_then_get(xnack):
    space = buffer(16, xnack=xnack)
    space.set_attr(
        BASE,
        16 * PAGE,
        [
            ("PREFETCH_LOC", "gpu0"),
            ("PREFERRED_LOC", "gpu0"),
            ("SET_FLAGS", Flag.HOST_ACCESS | Flag.GPU_EXEC | Flag.COHERENT),
            ("GRANULARITY", 0xFF),
            ("ACCESS", "gpu0"),
        ],
    )
    flags = Flag.HOST_ACCESS | Flag.GPU_EXEC | Flag.COHERENT
    assert attributes(space, 16) == {
        "preferred": "gpu0",
        "prefetch": "gpu0",
        "flags": flags,
        "any_flags": flags,
        "granularity": 0x3F,
        "access": {"gpu0": "access"},
    }


def test_kfdtest_registering_an_unmapped_address_fails():
    space = buffer(16)
    with pytest.raises(AddressError, match="0x10000") as caught:
        space.set_attr(0x10000, PAGE, [("ACCESS", "gpu0")])
    assert caught.value.code == "EFAULT"
    assert space.ranges() == []


@pytest.mark.parametrize("xnack", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((0, 16), (4, 8), [(0, 4), (4, 8), (12, 4)]),
        ((0, 16), (1, 15), [(0, 1), (1, 15)]),
        ((0, 16), (2, 16), [(0, 2), (2, 14), (16, 2)]),
        ((0, 16), (0, 8), [(0, 8), (8, 8)]),
        ((0, 16), (0, 16), [(0, 16)]),
        ((0, 16), (0, 24), [(0, 16), (16, 8)]),
        ((4, 16), (0, 24), [(0, 4), (4, 16), (20, 4)]),
    ],
    ids=["inside", "from 1 to the end", "shifted", "prefix", "same", "longer", "around"],
)
def test_kfdtest_split(xnack, old, new, expected):
    space = buffer(32, xnack=xnack)
    space.set_attr(BASE + old[0] * PAGE, old[1] * PAGE, [("GRANULARITY", 3)])
    space.set_attr(BASE + new[0] * PAGE, new[1] * PAGE, [("GRANULARITY", 5)])
    assert spans(space) == expected
    changed = [new[0] <= first < new[0] + new[1] for first, _ in expected]
    assert [r.granularity for r in space.ranges()] == [5 if c else 3 for c in changed]


def test_kfdtest_two_islands_then_one_covering_range():
    space = buffer(16)
    for first in (2, 10):
        space.set_attr(BASE + first * PAGE, 2 * PAGE, [("GRANULARITY", 1)])
    assert spans(space) == [(2, 2), (10, 2)]
    space.set_attr(BASE, 16 * PAGE, [("GRANULARITY", 4)])
    assert spans(space) == [(0, 2), (2, 2), (4, 6), (10, 2), (12, 4)]
    assert {r.granularity for r in space.ranges()} == {4}


def test_kfdtest_split_of_a_range_in_vram_keeps_its_pages():
    space = buffer(16)
    space.prefetch(BASE, 16 * PAGE, "gpu0")
    space.set_attr(BASE + 4 * PAGE, 8 * PAGE, [("GRANULARITY", 1)])
    assert [r.device_pages for r in space.ranges()] == [4, 8, 4]
    assert space.system.used("gpu0") == 16 * PAGE
    assert space.residency(BASE, 16 * PAGE) == [(BASE, 16 * PAGE, "gpu0")]


def test_kfdtest_unregister_after_munmap_is_harmless():
    space = buffer(16)
    space.access(BASE, 16 * PAGE)
    space.unmap(BASE, 16 * PAGE)
    space.unmap(BASE, 16 * PAGE)
    space.step()
    assert space.ranges() == []
    assert space.system.used("gpu0") == 0
    space.map(BASE, 16 * PAGE)
    assert space.access(BASE, 16 * PAGE, t_ns=space.now_ns + 3 * MS).ok


@pytest.mark.parametrize("xnack", [True, False])
def test_kfdtest_partial_unmap_leaves_both_sides_usable(xnack):
    space = buffer(16, xnack=xnack)
    space.set_attr(BASE, 16 * PAGE, [("ACCESS", "gpu0")])
    space.access(BASE, 16 * PAGE, write=True)
    space.unmap(BASE + 2 * PAGE, 4 * PAGE)
    space.step()
    assert spans(space) == [(0, 2), (6, 10)]
    later = space.now_ns + 3 * MS
    assert space.access(BASE, 2 * PAGE, write=True, t_ns=later).ok
    assert space.access(BASE + 6 * PAGE, 10 * PAGE, write=True).ok
    middle = space.access(BASE + 3 * PAGE)
    assert not middle.ok
    assert middle.addr == BASE + 3 * PAGE


def test_kfdtest_changed_pages_are_seen_again_by_the_gpu():
    space = buffer(16, populate=True)
    space.set_attr(BASE, 16 * PAGE, [("PREFERRED_LOC", "cpu")])
    assert space.access(BASE, 16 * PAGE).faults == 1
    space.invalidate(BASE + 3 * PAGE, PAGE)  # a copy-on-write gave the page another frame
    touch = space.access(BASE, 16 * PAGE, t_ns=space.now_ns + 3 * MS)
    assert (touch.code, touch.faults) == ("OK", 1)


def test_kfdtest_prefetch_location_is_remembered():
    space = buffer(16)
    space.prefetch(BASE, 16 * PAGE, "cpu")
    assert attributes(space, 16)["prefetch"] == "cpu"
    space.prefetch(BASE, 8 * PAGE, "gpu0")
    assert attributes(space, 8)["prefetch"] == "gpu0"
    assert attributes(space, 8, BASE + 8 * PAGE)["prefetch"] == "cpu"
    assert attributes(space, 16)["prefetch"] == "undefined"


def test_kfdtest_prefetch_of_four_pages_is_one_event():
    space = buffer(16, populate=True)
    with Watch(space) as seen:
        space.prefetch(BASE + 4 * PAGE, 4 * PAGE, "gpu0")
    first = BASE // PAGE + 4
    assert seen.outcome.migr == [(first, first + 3, 0, 1, "prefetch", 4)]


def test_kfdtest_half_populated_range_prefetches_whole():
    space = buffer(4)
    space.access(BASE, 2 * PAGE, by="cpu", write=True)
    space.prefetch(BASE, 4 * PAGE, "gpu0")
    assert space.ranges()[0].device_pages == 4
    assert space.access(BASE, 4 * PAGE).faults == 0


def test_kfdtest_read_only_mapping():
    space = Space(machine())
    space.map(BASE, 4 * PAGE, prot="r")
    assert space.access(BASE, 4 * PAGE, write=False).ok
    write = space.access(BASE + 2 * PAGE, write=True, t_ns=space.now_ns + 3 * MS)
    assert (write.code, write.reason) == ("EPERM", "permission")
    assert write.addr == BASE + 2 * PAGE
    assert space.access(BASE + 2 * PAGE).ok


def test_kfdtest_overcommit_in_many_ranges():
    # 16 MiB of VRAM and 4 MiB more in ranges of 1 MiB.
    npages, piece = 5120, 256
    space = buffer(npages, vram_pages=4096, max_svm_range_pages=piece)
    for first in range(0, npages, piece):
        space.prefetch(BASE + first * PAGE, piece * PAGE, "gpu0")
    counters = space.counters()
    assert counters["bytes_to_device"] == npages * PAGE
    assert counters["evictions"] == (npages - 4096) // piece
    assert counters["evicted_bytes"] == (npages - 4096) * PAGE
    assert space.system.used("gpu0") == 4096 * PAGE
    # The oldest objects left.
    assert space.residency(BASE, npages * PAGE) == [
        (BASE, 1024 * PAGE, "cpu"),
        (BASE + 1024 * PAGE, 4096 * PAGE, "gpu0"),
    ]
    assert space.access(BASE, npages * PAGE, write=True).ok
    assert space.system.used("gpu0") <= 4096 * PAGE


def test_kfdtest_overcommit_in_one_giant_range():
    # The range is cut as it is made, so that pieces of it can leave. A 32nd of
    # VRAM would be 128 pages; the least that the driver takes is 512.
    npages = 6144
    space = buffer(npages, vram_pages=4096)
    space.set_attr(BASE, npages * PAGE, [("PREFETCH_LOC", "gpu0")])
    assert {r.size for r in space.ranges()} == {512 * PAGE}
    assert space.counters()["evictions"] == 4
    assert space.system.used("gpu0") == 4096 * PAGE
    touch = space.access(BASE, npages * PAGE, write=True, t_ns=space.now_ns + 3 * MS)
    assert touch.ok
    assert space.system.used("gpu0") <= 4096 * PAGE


def test_kfdtest_no_common_hive_prefetch_goes_to_the_host_with_xnack_off():
    both = [("ACCESS", "gpu0"), ("ACCESS", "gpu1"), ("PREFETCH_LOC", "gpu0")]
    apart = buffer(16, 2, xnack=False)
    apart.set_attr(BASE, 16 * PAGE, both)
    assert apart.counters()["migrations"] == 0
    assert apart.ranges()[0].mapped == ("gpu0", "gpu1")
    assert attributes(apart, 16)["prefetch"] == "gpu0"
    hive = Space(machine(2, hive=7), xnack=False)
    hive.map(BASE, 16 * PAGE)
    hive.set_attr(BASE, 16 * PAGE, both)
    assert hive.counters()["migrated_pages"] == 16
    assert hive.ranges()[0].actual == "gpu0"
