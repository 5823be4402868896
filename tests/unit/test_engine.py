"""System and Space: arguments, clock, explanations, views, shared capacity."""

import contextlib
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svmcore import Gpu, Machine, Space, System
from svmcore.attributes import Attribute, Flag
from svmcore.errors import (
    AddressError,
    AddressInUseError,
    AgainError,
    InvalidArgumentError,
    OutOfMemoryError,
    OverflowAddressError,
)
from svmcore.machine import Costs

PAGE = 4096
BASE = 0x7F00_0000_0000
TOP = 1 << 64
MS = 1_000_000


def machine(gpus=1, vram_pages=1 << 20, **fields):
    return Machine("unit", tuple(Gpu(1 + i, vram_pages, **fields) for i in range(gpus)))


def mapped(npages=64, gpus=1, *, base=BASE, vram_pages=1 << 20, **settings):
    space = Space(machine(gpus, vram_pages), **settings)
    space.map(base, npages * PAGE)
    return space


def state(space):
    """Everything that can be seen of a space."""
    return (
        space.ranges(),
        space.counters(),
        space.counters_by_processor(),
        space.now_ns,
        space.next_event_ns(),
        space.process.pending(),
        space.process.starts(),
        space.residency(BASE, 64 * PAGE),
        [space.process.vma(BASE // PAGE + page) for page in range(80)],
    )


# ---- bad arguments: the error, and the state as before --------------------------------------

SPANS = [
    (BASE + 1, PAGE, InvalidArgumentError, "EINVAL"),
    (BASE, PAGE + 1, InvalidArgumentError, "EINVAL"),
    (BASE, 0, InvalidArgumentError, "EINVAL"),
    (BASE, -PAGE, InvalidArgumentError, "EINVAL"),
    (-PAGE, PAGE, InvalidArgumentError, "EINVAL"),
    (TOP - PAGE, 2 * PAGE, OverflowAddressError, "EOVERFLOW"),
    (TOP, PAGE, OverflowAddressError, "EOVERFLOW"),
]
CALLS = {
    "map": lambda s, a, n: s.map(a, n),
    "unmap": lambda s, a, n: s.unmap(a, n),
    "protect": lambda s, a, n: s.protect(a, n, "r"),
    "invalidate": lambda s, a, n: s.invalidate(a, n),
    "set_attr": lambda s, a, n: s.set_attr(a, n, [("GRANULARITY", 3)]),
    "get_attr": lambda s, a, n: s.get_attr(a, n),
    "prefetch": lambda s, a, n: s.prefetch(a, n, "gpu0"),
    "advise": lambda s, a, n: s.advise(a, n, "read_mostly"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("addr", "size", "error", "code"), SPANS)
def test_bad_span_is_refused(call, addr, size, error, code):
    space = mapped()
    space.access(BASE, 8 * PAGE)
    before = state(space)
    with pytest.raises(error, match=r"0x|expected") as caught:
        CALLS[call](space, addr, size)
    assert caught.value.code == code
    assert state(space) == before


@pytest.mark.parametrize(
    ("addr", "size", "error"),
    [
        (-1, 1, InvalidArgumentError),
        (BASE, 0, InvalidArgumentError),
        (BASE, -5, InvalidArgumentError),
        (TOP - 1, 2, OverflowAddressError),
    ],
)
def test_bad_span_of_an_access(addr, size, error):
    space = mapped()
    before = state(space)
    for call in (space.access, space.residency):
        with pytest.raises(error):
            call(addr, size)
    assert state(space) == before


@pytest.mark.parametrize(
    "by", ["gpu1", "gpu99", "gpu", "gpu-1", "gpuX", "GPU0", "", "cpu0", "gpu²"]
)
def test_unknown_processor(by):
    space = mapped()
    before = state(space)
    calls = [
        lambda: space.access(BASE, by=by),
        lambda: space.fault(BASE, by=by),
        lambda: space.explain(BASE, by=by),
        lambda: space.prefetch(BASE, PAGE, by),
        lambda: space.advise(BASE, PAGE, "accessed_by", by),
        lambda: space.system.used(by),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="cpu, gpu0"):
            call()
    assert state(space) == before


def test_fault_by_the_cpu():
    with pytest.raises(InvalidArgumentError, match="access"):
        mapped().fault(BASE, by="cpu")


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ([("PREFERED_LOC", "gpu0")], "PREFERRED_LOC"),
        ([("preferred", "gpu0")], "preferred_location"),
        ([("GRANULARITY", -1)], "0xffffffff"),
        ([("GRANULARITY", 1 << 32)], "0xffffffff"),
        ([(-1, 0)], "0xffffffff"),
        ([("PREFERRED_LOC", "gpu7")], "cpu, gpu0"),
    ],
)
def test_bad_attribute_in_the_call(attrs, words):
    space = mapped()
    before = state(space)
    with pytest.raises(InvalidArgumentError, match=words):
        space.set_attr(BASE, PAGE, attrs)
    assert state(space) == before


@pytest.mark.parametrize(
    "attrs",
    [
        [(8, 0)],
        [("PREFERRED_LOC", 77)],
        [("PREFETCH_LOC", "undefined")],
        [("ACCESS", "cpu")],
        [("GRANULARITY", 3), ("NO_ACCESS", 12345)],
    ],
)
def test_attribute_that_the_driver_refuses(attrs):
    space = mapped()
    space.set_attr(BASE, 8 * PAGE, [("GRANULARITY", 2)])
    before = state(space)
    with pytest.raises(InvalidArgumentError, match="EINVAL") as caught:
        space.set_attr(BASE, 16 * PAGE, attrs)
    assert caught.value.code == "EINVAL"
    assert state(space) == before


def test_numbers_words_and_names_of_attributes_are_one():
    spaces = [mapped(gpus=2) for _ in range(3)]
    spaces[0].set_attr(BASE, PAGE, {"preferred_location": "gpu1", "granularity": 4})
    spaces[1].set_attr(BASE, PAGE, [("PREFERRED_LOC", "gpu1"), ("GRANULARITY", 4)])
    spaces[2].set_attr(BASE, PAGE, [(Attribute.PREFERRED_LOC, 2), (7, 4)])
    assert spaces[0].ranges() == spaces[1].ranges() == spaces[2].ranges()


@pytest.mark.parametrize("kind", ["io", "pfnmap"])
def test_set_attr_on_device_memory(kind):
    space = Space(machine())
    space.map(BASE, PAGE, kind=kind)
    with pytest.raises(AddressError, match="EFAULT"):
        space.set_attr(BASE, PAGE, [("GRANULARITY", 1)])
    assert space.ranges() == []


def test_set_attr_over_a_hole_changes_nothing():
    space = mapped(8)
    space.map(BASE + 9 * PAGE, 8 * PAGE)
    before = state(space)
    with pytest.raises(AddressError):
        space.set_attr(BASE, 16 * PAGE, [("GRANULARITY", 1)])
    assert state(space) == before
    assert state(space)[0] == []


def test_set_attr_over_memory_of_the_other_interface():
    space = mapped()
    space.process.add_buffer(BASE // PAGE + 4, BASE // PAGE + 5)
    with pytest.raises(AddressInUseError) as caught:
        space.set_attr(BASE, 16 * PAGE, [("GRANULARITY", 1)])
    assert caught.value.code == "EADDRINUSE"
    with pytest.raises(AddressInUseError):
        space.get_attr(BASE, 16 * PAGE)


def test_overlapping_map():
    space = mapped(8)
    space.access(BASE, 8 * PAGE)
    before = state(space)
    for addr, npages in [(BASE, 8), (BASE + 7 * PAGE, 1), (BASE - PAGE, 2), (BASE - PAGE, 20)]:
        with pytest.raises(Exception, match="no mapping there yet") as caught:
            space.map(addr, npages * PAGE)
        assert caught.value.code == "EEXIST"
    assert state(space) == before


def test_overlapping_map_is_an_invalid_argument():
    # As the docstring of Space.map tells it.
    with pytest.raises(InvalidArgumentError) as caught:
        mapped(8).map(BASE, PAGE)
    assert caught.value.code == "EEXIST"


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"prot": "rwx"}, "'rw'"), ({"prot": ""}, "'rw'"), ({"kind": "x"}, "anon")],
)
def test_unknown_protection_or_kind(fields, words):
    space = Space(machine())
    with pytest.raises(InvalidArgumentError, match=words):
        space.map(BASE, PAGE, **fields)
    assert space.process.vma(BASE // PAGE) is None
    space.map(BASE, PAGE)
    if "prot" in fields:
        with pytest.raises(InvalidArgumentError, match=words):
            space.protect(BASE, PAGE, **fields)


def test_protect_over_a_hole_keeps_what_was_changed():
    space = mapped(4)
    with pytest.raises(OutOfMemoryError) as caught:
        space.protect(BASE, 8 * PAGE, "r")
    assert caught.value.code == "ENOMEM"
    assert space.process.vma(BASE // PAGE)[2] == "r"


@pytest.mark.parametrize("call", [*CALLS, "access", "fault", "step", "evict"])
def test_time_never_goes_back(call):
    space = mapped()
    space.step(5 * MS)
    before = state(space)
    calls = {
        "map": lambda t: space.map(BASE + (1 << 30), PAGE, t_ns=t),
        "unmap": lambda t: space.unmap(BASE, PAGE, t),
        "protect": lambda t: space.protect(BASE, PAGE, "r", t),
        "invalidate": lambda t: space.invalidate(BASE, PAGE, t),
        "set_attr": lambda t: space.set_attr(BASE, PAGE, [("GRANULARITY", 3)], t),
        "get_attr": lambda t: space.get_attr(BASE, PAGE, t),
        "prefetch": lambda t: space.prefetch(BASE, PAGE, "gpu0", t),
        "advise": lambda t: space.advise(BASE, PAGE, "read_mostly", t_ns=t),
        "access": lambda t: space.access(BASE, t_ns=t),
        "fault": lambda t: space.fault(BASE, t_ns=t),
        "step": space.step,
        "evict": lambda t: space.evict(BASE, t),
    }
    with pytest.raises(InvalidArgumentError, match="never goes back"):
        calls[call](5 * MS - 1)
    assert state(space) == before
    calls[call](5 * MS)
    assert space.now_ns >= 5 * MS


def test_fault_outside_every_mapping():
    space = mapped(8)
    touch = space.access(BASE + 9 * PAGE)
    assert (touch.code, touch.reason, touch.addr) == ("EFAULT", "no_range", BASE + 9 * PAGE)
    assert not touch.ok
    assert space.ranges() == []
    fault = space.fault(BASE + 9 * PAGE)
    assert (fault.code, fault.reason, fault.location, fault.window) == (
        "EFAULT",
        "no_range",
        None,
        None,
    )
    cpu = space.access(BASE + 9 * PAGE, by="cpu")
    assert (cpu.code, cpu.addr) == ("EFAULT", BASE + 9 * PAGE)


def test_access_that_leaves_its_mapping_ends_at_the_first_bad_page():
    space = mapped(8)
    touch = space.access(BASE, 10 * PAGE)
    assert (touch.code, touch.addr) == ("EFAULT", BASE + 8 * PAGE)
    assert space.counters()["pages_touched"] == 8


def test_advise_words():
    space = mapped()
    space.advise(BASE, PAGE, "preferred_location", "gpu0")
    space.advise(BASE, PAGE, "granularity", value=3)
    space.advise(BASE, PAGE, "read_mostly")
    space.advise(BASE, PAGE, "coarse_grain")
    (info,) = space.ranges()
    assert (info.preferred, info.granularity) == ("gpu0", 3)
    assert info.flags == Flag.HOST_ACCESS | Flag.GPU_READ_MOSTLY
    space.advise(BASE, PAGE, "fine_grain")
    assert Flag.COHERENT in space.ranges()[0].flags
    space.advise(BASE, PAGE, "access_in_place", "gpu0")
    assert space.ranges()[0].access_in_place == ("gpu0",)
    space.advise(BASE, PAGE, "no_access", "gpu0")
    assert space.ranges()[0].access == space.ranges()[0].access_in_place == ()
    space.advise(BASE, PAGE, "unset_preferred_location")
    space.advise(BASE, PAGE, "unset_read_mostly")
    space.advise(BASE, PAGE, "hipMemAdviseSetAccessedBy", "gpu0")
    (info,) = space.ranges()
    assert (info.preferred, info.access_in_place) == ("undefined", ("gpu0",))
    assert Flag.GPU_READ_MOSTLY not in info.flags
    for word in ("readmostly", "discard", "unset_granularity"):
        with pytest.raises(InvalidArgumentError, match=r"accessed_by.*read_mostly"):
            space.advise(BASE, PAGE, word)
    with pytest.raises(InvalidArgumentError, match="no location"):
        space.advise(BASE, PAGE, "read_mostly", "gpu0")
    with pytest.raises(InvalidArgumentError, match="location is missing"):
        space.advise(BASE, PAGE, "prefetch", value=3)
    with pytest.raises(InvalidArgumentError, match="value is missing"):
        space.advise(BASE, PAGE, "granularity", "gpu0")


# ---- clock ----------------------------------------------------------------------------------


def test_a_processor_is_any_integer_of_the_machine():
    process = mapped(gpus=2).process
    page = BASE // PAGE
    served = (0, "ok", 1, 0, 0, 0)
    for i, (gpu, write) in enumerate([(1, True), (np.int64(2), 1), (np.uint8(1), np.True_)]):
        assert process.access(gpu, page + 16 * i, page + 16 * i, write)[:2] == served[:2]
    for bad in (-1, 3, 1 << 64, -(1 << 70), np.int64(-1)):
        with pytest.raises(InvalidArgumentError, match=r"expected 0 \(CPU\) to 2"):
            process.access(bad, page, page, False)
    for bad in ("1", None, [1]):
        with pytest.raises(TypeError):
            process.access(bad, page, page, False)


def test_touches_are_told_each_for_itself():
    """Also where several in a row end alike."""
    space = mapped(npages=2048)
    process, page = space.process, BASE // PAGE
    told = [process.access(1, page, page, False) for _ in range(2)]
    told += [process.access(1, page + at, page + at, True) for at in (512, 1024, 1025)]
    told += [process.access(1, 7, 7, False), process.access(1, 8, 8, False)]
    told += [process.access(1, page, page, False), process.access(0, page, page, False)]
    assert [row[2] for row in told] == [1, 0, 1, 1, 0, 0, 0, 0, 1]
    assert [row[5] for row in told] == [0, 0, 0, 0, 0, 7, 8, 0, 0]
    assert [row[0] for row in told] == [0, 0, 0, 0, 0, -14, -14, 0, 0]
    assert {row[1] for row in told} == {"ok", "no_range"}


@pytest.mark.parametrize("gpus", [1, 2])
def test_faults_without_an_event_log_end_as_with_one(gpus):
    """Their short way against the long one, over more ranges than are kept at hand."""
    blocks = 40
    both = [mapped(blocks * 512, gpus) for _ in range(2)]
    rng = random.Random(5)
    page = BASE // PAGE
    for step in range(1500):
        at = page + rng.randrange(blocks * 512)
        gpu, wait, change = 1 + rng.randrange(gpus), 2_500_000 * (step % 40 == 0), step % 100
        granularity = rng.randrange(9)
        seen = []
        for space, record in zip(both, (False, True), strict=True):
            process = space.process
            process.step(process.now + wait)
            if change == 50:
                process.munmap(at, at + 3)
            elif change == 51:
                process.run_deferred()
            elif change == 75:
                process.set_attr(at * PAGE, 8 * PAGE, [(Attribute.GRANULARITY, granularity)])
            process.begin(process.now, record)
            done = process.finish(process.fault(gpu, at, False))
            process.settle()
            process.check()
            seen.append((done.ret, done.reason, done.window, process.now, process.ranges()))
        assert seen[0] == seen[1], step
    assert both[0].counters() == both[1].counters()
    assert both[0].counters()["duplicate_faults"] > 100


def test_results_carry_when_they_are_done():
    space = mapped(1024)
    first = space.access(BASE, PAGE, t_ns=7 * MS)
    assert first.ready_ns == space.now_ns > 7 * MS
    silent = space.access(BASE, PAGE)
    assert silent.ready_ns == first.ready_ns
    done = space.prefetch(BASE, 1024 * PAGE, "cpu")
    assert done == space.now_ns > first.ready_ns


def test_duplicates_wait_for_two_milliseconds():
    inf = float("inf")
    free = Costs(0, 0, 0, inf, 0, inf, 0, inf)
    space = Space(Machine("free", (Gpu(1, 1 << 20),), free))
    space.map(BASE, 1024 * PAGE)
    space.set_attr(BASE, 1024 * PAGE, [])
    first = space.fault(BASE, t_ns=10 * MS)
    assert (first.reason, first.window) == ("ok", (BASE, BASE + 512 * PAGE))
    assert first.ready_ns == 10 * MS
    # Another window of the same range: dropped all the same.
    assert space.fault(BASE + 600 * PAGE, t_ns=12 * MS - 1).reason == "duplicate"
    assert space.fault(BASE + 600 * PAGE, t_ns=12 * MS).reason == "ok"


def test_access_waits_where_a_fault_is_dropped():
    space = mapped(1024)
    space.set_attr(BASE, 1024 * PAGE, [])
    space.access(BASE, t_ns=10 * MS)
    touch = space.access(BASE + 600 * PAGE)
    assert (touch.code, touch.faults, touch.duplicates) == ("OK", 1, 1)
    assert touch.ready_ns > 12 * MS
    assert space.counters()["duplicate_faults"] == 1
    assert space.counters()["faults"] == 2


def test_a_delivered_fault_counts():
    space = mapped(1024)
    space.set_attr(BASE, 1024 * PAGE, [])
    done = space.fault(BASE, t_ns=10 * MS).ready_ns
    assert space.fault(BASE, t_ns=done + MS).reason == "duplicate"
    counters = space.counters()
    assert (counters["faults"], counters["duplicate_faults"]) == (1, 1)
    assert space.fault(BASE + (1 << 40)).code == "EFAULT"
    assert space.counters()["errors"] == 1


def test_deferred_unmap_is_an_event():
    space = mapped(64)
    space.access(BASE, 64 * PAGE)
    assert space.next_event_ns() is None
    space.unmap(BASE, 32 * PAGE)
    assert space.next_event_ns() is not None
    assert len(space.ranges()) == 1
    space.step(space.next_event_ns())
    assert space.next_event_ns() is None
    assert [(r.start, r.size) for r in space.ranges()] == [(BASE + 32 * PAGE, 32 * PAGE)]


# ---- views ----------------------------------------------------------------------------------


def test_residency_runs():
    space = mapped(1024, 2)
    assert space.residency(BASE, 1024 * PAGE) == [(BASE, 1024 * PAGE, "absent")]
    space.access(BASE + 10 * PAGE, 20 * PAGE, by="cpu", write=True)
    space.prefetch(BASE + 16 * PAGE, 8 * PAGE, "gpu0")
    space.prefetch(BASE + 24 * PAGE, 100 * PAGE, "gpu1")
    assert space.residency(BASE, 1024 * PAGE) == [
        (BASE, 10 * PAGE, "absent"),
        (BASE + 10 * PAGE, 6 * PAGE, "cpu"),
        (BASE + 16 * PAGE, 8 * PAGE, "gpu0"),
        (BASE + 24 * PAGE, 100 * PAGE, "gpu1"),
        (BASE + 124 * PAGE, 900 * PAGE, "absent"),
    ]
    # Any bytes: whole pages come back, clipped to what was asked.
    assert space.residency(BASE + 15 * PAGE + 7, PAGE) == [
        (BASE + 15 * PAGE, PAGE, "cpu"),
        (BASE + 16 * PAGE, PAGE, "gpu0"),
    ]


def test_get_attr_aggregates():
    space = mapped(64, 3)
    for page, attrs in {
        0: [("PREFERRED_LOC", "gpu0"), ("SET_FLAGS", 0x18), ("GRANULARITY", 5)],
        8: [("PREFERRED_LOC", "gpu0"), ("SET_FLAGS", 0x30), ("GRANULARITY", 7)],
        24: [("PREFERRED_LOC", "gpu1"), ("ACCESS_IN_PLACE", "gpu1"), ("NO_ACCESS", "gpu2")],
    }.items():
        space.set_attr(BASE + page * PAGE, 8 * PAGE, attrs)
    first = space.get_attr(BASE, 16 * PAGE)
    assert first == {
        "preferred": "gpu0",
        "prefetch": "undefined",
        "flags": Flag(0x13),
        "any_flags": Flag(0x3B),
        "granularity": 5,
        "access": {"gpu0": "access", "gpu1": "access", "gpu2": "access"},
    }
    # A hole counts for nothing; one range with access, one in place: neither.
    both = space.get_attr(BASE, 64 * PAGE)
    assert both["preferred"] == "undefined"
    assert both["flags"] == Flag(3)
    assert both["access"] == {"gpu0": "access", "gpu1": "no_access", "gpu2": "no_access"}
    last = space.get_attr(BASE + 24 * PAGE, 8 * PAGE)
    assert last["access"] == {"gpu0": "access", "gpu1": "access_in_place", "gpu2": "no_access"}
    # A hole only: the defaults of a new range.
    assert space.get_attr(BASE + 40 * PAGE, PAGE)["granularity"] == 9


def test_get_attr_outside_every_mapping():
    with pytest.raises(AddressError):
        mapped(8).get_attr(BASE, 9 * PAGE)


def test_range_info_of_drivers_with_one_mapped_bit():
    space = mapped(8, 2, kernel="6.12")
    space.access(BASE, 8 * PAGE, by="gpu1")
    assert space.ranges()[0].mapped == ("any",)


def test_counters_by_processor():
    space = mapped(64, 2)
    assert space.counters_by_processor() == {}
    space.access(BASE, 64 * PAGE, by="gpu1")
    space.access(BASE, PAGE, by="cpu")
    by = space.counters_by_processor()
    assert list(by) == ["cpu", "gpu1"]
    assert by["gpu1"]["faults"] == by["cpu"]["faults"] == 1
    assert by["gpu1"]["pages_touched"] == 64


def test_remote_pages_are_counted():
    space = mapped(64, 2, xnack=False)
    space.access(BASE, 64 * PAGE, by="cpu", write=True)
    space.set_attr(BASE, 64 * PAGE, [("ACCESS", "gpu1")])
    touch = space.access(BASE + 5, 3 * PAGE, by="gpu1")
    assert touch.remote_pages == 4
    assert space.counters()["remote_accesses"] == 4


def test_repr_and_location_names():
    space = mapped(8, 3)
    space.access(BASE)
    assert "1 ranges" in repr(space)
    assert [space.location_name(i) for i in (0, 1, 3, 4, 0xFFFFFFFF)] == [
        "cpu",
        "gpu0",
        "gpu2",
        "undefined",
        "undefined",
    ]


# ---- sizes at the edges -------------------------------------------------------------------


def test_top_of_the_address_space():
    base = TOP - 16 * PAGE
    space = mapped(16, base=base)
    touch = space.access(TOP - 1, 1)
    assert (touch.code, touch.faults) == ("OK", 1)
    assert [(r.start, r.size) for r in space.ranges()] == [(base, 16 * PAGE)]
    assert space.residency(base, 16 * PAGE) == [(base, 16 * PAGE, "gpu0")]
    with pytest.raises(OverflowAddressError, match="EOVERFLOW"):
        space.set_attr(TOP - PAGE, PAGE, [("GRANULARITY", 0)])  # its end is 0 in the driver
    space.set_attr(TOP - 2 * PAGE, PAGE, [("GRANULARITY", 0)])
    assert space.get_attr(TOP - 2 * PAGE, PAGE)["granularity"] == 0
    assert space.explain(TOP - 1).rule == "mapped"
    assert space.access(TOP - PAGE, PAGE, by="cpu").faults == 1
    fault = space.fault(TOP - 1, t_ns=space.now_ns + 3 * MS)
    assert fault.window == (TOP - PAGE, TOP)
    assert space.explain(base).window is None
    space.unmap(base, 16 * PAGE)
    space.step()
    assert space.ranges() == []
    space.process.check()


def test_page_zero():
    space = mapped(8, base=0)
    assert space.access(0).ok
    assert space.ranges()[0].start == 0
    with pytest.raises(InvalidArgumentError):
        space.set_attr(0, PAGE, [("GRANULARITY", 1)])  # the driver refuses start 0


def test_sixty_four_gpus():
    space = mapped(64 * 8, 64)
    for gpu in range(64):
        at = BASE + gpu * 8 * PAGE
        space.set_attr(at, 8 * PAGE, [("PREFERRED_LOC", f"gpu{gpu}")])
        assert space.access(at, 8 * PAGE, by=f"gpu{gpu}").faults == 1
    infos = space.ranges()
    assert [r.actual for r in infos] == [f"gpu{i}" for i in range(64)]
    assert [r.mapped for r in infos] == [(f"gpu{i}",) for i in range(64)]
    assert infos[0].access == tuple(f"gpu{i}" for i in range(64))
    assert [where for _, _, where in space.residency(BASE, 512 * PAGE)] == [
        f"gpu{i}" for i in range(64)
    ]
    space.set_attr(BASE, PAGE, [("NO_ACCESS", "gpu63"), ("ACCESS_IN_PLACE", "gpu0")])
    access = space.get_attr(BASE, PAGE)["access"]
    assert (access["gpu63"], access["gpu0"], access["gpu1"]) == (
        "no_access",
        "access_in_place",
        "access",
    )
    assert all(space.system.used(f"gpu{i}") == 8 * PAGE for i in range(64))
    space.process.check()


def test_a_terabyte_costs_nothing_until_it_is_touched():
    space = Space(machine())
    space.map(BASE, 1 << 40)
    before = space.process.nbytes
    space.access(BASE + (1 << 39))
    assert space.process.nbytes - before < 1 << 20
    assert space.ranges()[0].size == 512 * PAGE


# ---- one node, several processes -------------------------------------------------------------


def test_two_spaces_share_the_devices_memory():
    system = System(machine(2, 1024))
    a, b = system.space(), system.space()
    for space in (a, b):
        space.map(BASE, 1024 * PAGE)
    a.prefetch(BASE, 1024 * PAGE, "gpu0")
    assert system.used("gpu0") == 1024 * PAGE
    b.prefetch(BASE, 512 * PAGE, "gpu0")
    # Objects are as large as their ranges: what of a's leaves is what b needs.
    assert system.used("gpu0") <= 1024 * PAGE
    assert a.counters()["evictions"] >= 1
    assert a.counters()["bytes_to_host"] >= 512 * PAGE
    assert b.counters()["evictions"] == 0
    assert b.residency(BASE, 512 * PAGE) == [(BASE, 512 * PAGE, "gpu0")]
    assert system.used("gpu1") == 0
    b.prefetch(BASE, 512 * PAGE, "gpu1")
    assert system.used("gpu1") == 512 * PAGE


def test_spaces_have_clocks_of_their_own():
    system = System(machine())
    a, b = system.space(), system.space(xnack=False)
    a.step(9 * MS)
    assert (a.now_ns, b.now_ns) == (9 * MS, 0)
    assert (a.policy.xnack, b.policy.xnack) == (True, False)


def test_memory_of_a_space_that_is_gone_is_free():
    system = System(machine(1, 1024))
    a, b = system.space(), system.space(evict_on_full=False)
    for space in (a, b):
        space.map(BASE, 1024 * PAGE)
    a.prefetch(BASE, 1024 * PAGE, "gpu0")
    b.prefetch(BASE, 512 * PAGE, "gpu0")
    assert b.counters()["migrations"] == 0  # full, and it may not evict
    del a, space
    assert system.used("gpu0") == 0
    b.prefetch(BASE, 1024 * PAGE, "gpu0")
    assert system.used("gpu0") == 1024 * PAGE


def test_without_eviction_a_full_device_keeps_pages_on_the_host():
    space = mapped(1024, vram_pages=512, evict_on_full=False)
    touch = space.access(BASE, 1024 * PAGE, write=True)
    assert touch.ok
    assert space.counters()["evictions"] == 0
    assert space.residency(BASE, 1024 * PAGE) == [
        (BASE, 512 * PAGE, "gpu0"),
        (BASE + 512 * PAGE, 512 * PAGE, "cpu"),
    ]


_step = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["gpu0", "gpu1", "cpu", "prefetch", "unmap", "evict"]),
    st.integers(0, 15),
    st.integers(1, 6),
)


@given(st.lists(_step, min_size=1, max_size=40), st.booleans())
@settings(max_examples=40)
def test_capacity_is_never_passed(steps, evict_on_full):
    capacity = 1024
    system = System(machine(2, capacity))
    spaces = [system.space(evict_on_full=evict_on_full, granularity=7) for _ in range(2)]
    for space in spaces:
        space.map(BASE, 16 * 128 * PAGE)
    before = [space.counters() for space in spaces]
    for who, what, first, count in steps:
        space, addr = spaces[who], BASE + first * 128 * PAGE
        size = min(count, 16 - first) * 128 * PAGE
        if what == "prefetch":
            space.prefetch(addr, size, f"gpu{first % 2}") if space.process.vma(
                addr // PAGE
            ) else None
        elif what == "unmap":
            space.unmap(addr, size)
            space.step()
            space.map(addr, size)
        elif what == "evict":
            space.evict(addr)
        else:
            assert space.access(addr, size, by=what, write=True).ok
        for gpu in ("gpu0", "gpu1"):
            assert system.used(gpu) <= capacity * PAGE
        for index, other in enumerate(spaces):
            other.process.check()
            after = other.counters()
            assert all(after[key] >= value for key, value in before[index].items())
            before[index] = after
        held = sum(r.device_pages for s in spaces for r in s.ranges())
        assert held * PAGE <= system.used("gpu0") + system.used("gpu1")


# ---- explain ---------------------------------------------------------------------------------


def explain(space, page=0, by="gpu0", write=False):
    before = state(space)
    found = space.explain(BASE + page * PAGE + 17, by, write)
    assert state(space) == before  # it changes nothing
    assert (found.addr, found.by) == (BASE + page * PAGE + 17, by)
    assert found.text.endswith(".")
    return found.rule, found.location


def test_explain_rules_of_a_gpu():
    space = mapped(64, 2)
    assert explain(space, 64) == ("no mapping", None)
    assert explain(space) == ("unregistered", "gpu0")
    space.set_attr(BASE, 8 * PAGE, [])
    assert explain(space) == ("access", "gpu0")
    space.set_attr(BASE, 8 * PAGE, [("ACCESS_IN_PLACE", "gpu0")])
    assert explain(space) == ("access in place", "cpu")
    space.set_attr(BASE, 8 * PAGE, [("NO_ACCESS", "gpu0")])
    assert explain(space) == ("no access", None)
    space.set_attr(BASE, 8 * PAGE, [("PREFERRED_LOC", "cpu")])
    assert explain(space) == ("preferred location", "cpu")
    assert space.access(BASE).ok
    assert explain(space) == ("mapped", None)
    space.protect(BASE, 8 * PAGE, "r")
    assert explain(space, write=True) == ("protection", None)
    space.set_xnack(False)
    assert explain(space, 40) == ("xnack off", None)


def test_explain_rules_of_the_cpu():
    space = mapped(64)
    assert explain(space, 64, "cpu") == ("no mapping", None)
    assert explain(space, 0, "cpu") == ("system memory", None)
    space.prefetch(BASE, 8 * PAGE, "gpu0")
    assert explain(space, 3, "cpu") == ("cpu fault", "cpu")
    assert space.explain(BASE, "cpu").window == (BASE, BASE + 8 * PAGE)
    space.protect(BASE, 8 * PAGE, "r")
    assert explain(space, 3, "cpu", True) == ("protection", None)
    coherent = Space(machine(coherent=True))
    coherent.map(BASE, 64 * PAGE)
    coherent.prefetch(BASE, 8 * PAGE, "gpu0")
    assert explain(coherent, 3, "cpu") == ("coherent", None)


@pytest.mark.parametrize(
    ("kind", "rule", "location"),
    [
        ("heap", "unregistered", "cpu"),
        ("stack", "unregistered", "cpu"),
        ("file", "unregistered", "gpu0"),
        ("io", "device mapping", None),
    ],
)
def test_explain_kinds_of_mappings(kind, rule, location):
    space = Space(machine())
    space.map(BASE, 16 * PAGE, kind=kind)
    assert explain(space) == (rule, location)


def test_explain_hives_partitions_and_apus():
    two = Space(Machine("m", (Gpu(1, 999, hive=3), Gpu(2, 999, hive=3), Gpu(3, 999))))
    two.map(BASE, 64 * PAGE)
    two.set_attr(BASE, 64 * PAGE, [("PREFERRED_LOC", "gpu1")])
    assert explain(two, by="gpu0") == ("preferred location", "gpu1")
    assert explain(two, by="gpu2") == ("access", "gpu2")
    parts = Space(Machine("m", (Gpu(1, 999, adev=4), Gpu(2, 999, adev=4))))
    parts.map(BASE, 64 * PAGE)
    parts.prefetch(BASE, 64 * PAGE, "gpu1")
    parts.set_attr(BASE, 64 * PAGE, [("ACCESS_IN_PLACE", "gpu0")])
    assert explain(parts, by="gpu0")[0] in ("access in place", "mapped")
    apu = Space(machine(apu=True))
    apu.map(BASE, 64 * PAGE)
    assert explain(apu) == ("unregistered", "cpu")
    apu.set_attr(BASE, 64 * PAGE, [("PREFERRED_LOC", "gpu0")])
    assert explain(apu) == ("apu", "cpu")
    old = Space(machine(apu=True), kernel="6.1")
    old.map(BASE, 64 * PAGE)
    old.set_attr(BASE, 64 * PAGE, [("PREFERRED_LOC", "gpu0")])
    assert explain(old) == ("preferred location", "gpu0")


def test_explain_apu_of_a_driver_without_the_rule():
    space = Space(machine(apu=True), kernel="6.1")
    space.map(BASE, 64 * PAGE)
    assert explain(space) == ("unregistered", "gpu0")
    assert space.fault(BASE).location == "gpu0"


def test_explain_a_gpu_without_svm():
    space = Space(Machine("m", (Gpu(1, 999), Gpu(2, 999, svm=False))))
    space.map(BASE, 64 * PAGE)
    rule, location = explain(space, by="gpu1")
    assert location is None
    assert rule == "no svm"
    assert space.fault(BASE, "gpu1").code == "EFAULT"


def test_explain_window_of_an_unregistered_page_stops_at_its_neighbours():
    space = mapped(64)
    space.set_attr(BASE + 8 * PAGE, 4 * PAGE, [])
    space.set_attr(BASE + 40 * PAGE, 4 * PAGE, [])
    found = space.explain(BASE + 20 * PAGE)
    fault = space.fault(BASE + 20 * PAGE)
    assert fault.window == (BASE + 12 * PAGE, BASE + 40 * PAGE)
    assert found.window == fault.window


def test_explain_window_before_6_12_is_the_whole_range():
    space = mapped(64, kernel="6.1")
    space.set_attr(BASE, 64 * PAGE, [("GRANULARITY", 3)])
    found = space.explain(BASE + 20 * PAGE)
    fault = space.fault(BASE + 20 * PAGE, t_ns=3 * MS)
    assert space.residency(BASE, 64 * PAGE) == [(BASE, 64 * PAGE, "gpu0")]
    assert found.window == fault.window


@given(
    setup=st.lists(
        st.tuples(
            st.sampled_from(
                ["preferred", "access", "aip", "none", "prefetch", "gpu", "cpu", "protect", "g"]
            ),
            st.integers(0, 3),
            st.integers(0, 60),
            st.integers(1, 40),
        ),
        max_size=12,
    ),
    page=st.integers(0, 70),
    by=st.sampled_from(["cpu", "gpu0", "gpu1", "gpu2", "gpu3"]),
    write=st.booleans(),
    xnack=st.booleans(),
    kernel=st.sampled_from(["7.3", "6.12", "6.1"]),
)
@settings(max_examples=300)
def test_explain_tells_what_access_then_does(setup, page, by, write, xnack, kernel):
    gpus = [Gpu(1, 4096, hive=1), Gpu(2, 4096, hive=1), Gpu(3, 4096), Gpu(4, 4096, apu=True)]
    space = Space(Machine("m", tuple(gpus)), granularity=4, kernel=kernel)
    space.map(BASE, 64 * PAGE)
    for what, gpu, first, count in setup:
        addr, size = BASE + first * PAGE, min(count, 64 - first) * PAGE
        word = {
            "preferred": ("PREFERRED_LOC", f"gpu{gpu}"),
            "access": ("ACCESS", f"gpu{gpu}"),
            "aip": ("ACCESS_IN_PLACE", f"gpu{gpu}"),
            "none": ("NO_ACCESS", f"gpu{gpu}"),
            "prefetch": ("PREFETCH_LOC", "cpu" if gpu == 2 else f"gpu{gpu}"),
            "g": ("GRANULARITY", gpu),
        }.get(what)
        if word:
            with contextlib.suppress(AgainError):  # owners that the driver never reconciles
                space.set_attr(addr, size, [word])
        elif what == "protect":
            space.protect(addr, size, ("rw", "r", "w", "-")[gpu])
        else:
            space.access(addr, size, by="cpu" if what == "cpu" else f"gpu{gpu}", write=gpu > 1)
        space.step(space.now_ns + 3 * MS)
    space.set_xnack(xnack)
    addr = BASE + page * PAGE
    found = space.explain(addr, by, write)
    if by != "cpu" and found.rule not in ("mapped", "xnack off", "no mapping"):
        twin = space.fault(addr, by, write)
        assert twin.location == found.location, found
        if found.location is not None:
            assert twin.window == found.window, found
        else:
            assert twin.code != "OK", found
        return
    touch = space.access(addr, 1, by, write)
    fatal = {"no mapping", "xnack off", "protection"}
    assert touch.ok == (found.rule not in fatal), (found, touch)
    assert bool(touch.faults) == (found.rule == "cpu fault"), (found, touch)


# ---- the same again -------------------------------------------------------------------------

PROGRAM = """
import random
from svmcore import Gpu, Machine, Space
space = Space(Machine("m", (Gpu(1, 2048), Gpu(2, 2048))), max_svm_range_pages=512)
space.map(1 << 30, 4096 * 4096)
rng = random.Random(5)
for _ in range(300):
    page, count = rng.randrange(4000), rng.randrange(1, 96)
    by = rng.choice(["cpu", "gpu0", "gpu1"])
    if rng.random() < 0.2:
        names = rng.sample(["ACCESS", "NO_ACCESS", "PREFERRED_LOC"], 2)
        space.set_attr((1 << 30) + page * 4096, count * 4096, {n: "gpu1" for n in names})
    print(space.access((1 << 30) + page * 4096, count * 4096, by, rng.random() < 0.5))
print(space.ranges(), space.counters(), space.counters_by_processor(), space.process.work())
"""


def test_same_result_whatever_the_hash_seed():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 10_000


# ---- what a newcomer may type ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "on"), [("off", False), ("on", True), (False, False), (True, True)]
)
def test_xnack_switch_takes_words(word, on):
    space = Space("gpu-80g")
    space.map(BASE, 64 * PAGE)
    space.set_xnack(word)
    assert space.xnack is on
    assert f"xnack {'on' if on else 'off'}" in repr(space)
    assert space.access(BASE).ok is on
    with pytest.raises(InvalidArgumentError, match="xnack 'maybe': expected on or off"):
        space.set_xnack("maybe")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s: s.access(BASE, by=0), "processor 0: expected one of cpu, gpu0"),
        (lambda s: s.access(BASE, by=None), "processor None"),
        (lambda s: s.access(BASE + 0.5), "addr .*: expected a whole number"),
        (lambda s: s.access(BASE, t_ns=1e18), "t_ns .*: expected a whole number"),
        (lambda s: s.map(BASE + 64 * PAGE, 4096.0), "size 4096.0: expected a whole number"),
        (lambda s: s.set_attr(BASE, PAGE, "granularity"), "expected {name: value} or pairs"),
        (lambda s: s.set_attr(BASE, PAGE, {"ACCESS": None}), "None: expected a whole number"),
        (
            lambda s: s.set_attr(BASE, PAGE, {"SET_FLAGS": "GPU_R0"}),
            "flags 'GPU_R0': expected HOST",
        ),
        (lambda s: s.set_attr(BASE, PAGE, {"PREFETCH_LOC": "undefined"}), "prefetch also cpu"),
        (lambda s: s.advise(BASE, PAGE, "read_mostly", "gpu0"), "expected no location"),
        (lambda s: Space("gpu-80g", policy="kfd(granularity=4, granularity=5)"), "given twice"),
    ],
)
def test_slips_are_told_in_one_line(call, told):
    space = Space("gpu-80g")
    space.map(BASE, 64 * PAGE)
    with pytest.raises(InvalidArgumentError, match=told) as caught:
        call(space)
    assert "\n" not in str(caught.value)
    assert space.ranges() == []


def test_flags_have_names():
    space = Space("gpu-80g")
    space.map(BASE, 64 * PAGE)
    space.set_attr(BASE, PAGE, {"SET_FLAGS": "GPU_RO | GPU_EXEC"})
    assert space.get_attr(BASE, PAGE)["flags"] == Flag.HOST_ACCESS | Flag.COHERENT | Flag.GPU_RO | (
        Flag.GPU_EXEC
    )


def test_an_access_says_what_moved():
    space = Space("gpu-80g")
    space.map(BASE, 1024 * PAGE)
    assert space.access(BASE, 1024 * PAGE).moved_pages == 1024
    assert space.access(BASE, 1024 * PAGE).moved_pages == 0
    assert space.access(BASE, by="cpu").moved_pages == 512
