"""The Ascend document, sentence by sentence (A1 to A30), and its driver (D1 to D14)."""

import pytest

from managed_kit import MIB, PAGE, kinds, memory, query, touch
from svmcore.managed import (
    AclMemManagedAdviseType,
    Location,
    ManagedConflictError,
    ManagedError,
    ManagedSupportError,
)

Advise = AclMemManagedAdviseType
BOTH = pytest.mark.parametrize("semantics", ["acl", "acl-driver"])


@pytest.fixture
def acl():
    return memory("acl")


@pytest.fixture
def page(acl):
    return acl.alloc(PAGE)


@pytest.fixture
def driver():
    return memory("acl-driver")


@pytest.fixture
def driver_page(driver):
    return driver.alloc(PAGE)


# ---- read mostly -----------------------------


def test_a1_six_values_from_0():
    assert [(m.name, int(m)) for m in Advise] == [
        ("SET_READ_MOSTLY", 0),
        ("UNSET_READ_MOSTLY", 1),
        ("SET_PREFERRED_LOCATION", 2),
        ("UNSET_PREFERRED_LOCATION", 3),
        ("SET_ACCESSED_BY", 4),
        ("UNSET_ACCESSED_BY", 5),
    ]


def test_a2_read_mostly_is_queried(acl, page):
    assert query(acl, page, "READ_MOSTLY") == 0
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    assert query(acl, page, "READ_MOSTLY") == 1


def test_a3_every_other_object_gets_a_read_only_copy(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "cpu", "gpu0", "gpu1", "gpu2")
    view = acl.page(page)
    assert view.copies == ("cpu", "gpu0", "gpu1", "gpu2")
    assert view.writable == ()


def test_a4_the_first_access_of_a_copy_faults(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    first = acl.access(page, by="gpu0")
    assert first.faults == 1
    assert kinds(first) == ["duplicate"]


def test_a5_later_accesses_do_not_fault(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    assert touch(acl, page, "gpu0", "gpu0", "gpu1", "gpu0", "gpu1") == [
        False,
        True,
        False,
        True,
        True,
    ]


def test_a6_a_write_frees_the_other_copies_and_cancels(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0", "gpu1", "gpu2")
    write = acl.access(page, by="gpu1", write=True)
    assert write.faults == 1
    assert kinds(write) == ["free"]
    view = acl.page(page)
    assert (view.copies, view.writable) == (("gpu1",), ("gpu1",))
    assert query(acl, page, "READ_MOSTLY") == 0


def test_a6_also_by_one_without_a_copy(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0")
    assert kinds(acl.access(page, by="gpu2", write=True)) == ["take", "free"]
    assert acl.page(page).copies == ("gpu2",)


def test_a7_then_the_next_access_migrates(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0", "gpu1")
    touch(acl, page, "gpu1", write=True)
    again = acl.access(page, by="gpu0")
    assert again.faults == 1
    assert kinds(again) == ["migrate"]
    assert acl.page(page).copies == ("gpu0",)


@pytest.mark.parametrize(
    "location", [None, "cpu", "gpu1", "invalid", Location(1, 99), Location(77, 3)]
)
def test_a9_set_read_mostly_ignores_the_location(location):
    with_it, without = memory("acl"), memory("acl")
    views = []
    for space, where in ((with_it, location), (without, None)):
        ptr = space.alloc(PAGE)
        touch(space, ptr, "gpu0", write=True)
        space.mem_advise(ptr, PAGE, Advise.SET_READ_MOSTLY, where)
        views.append(space.page(ptr))
    assert views[0] == views[1]


def test_a10_a_host_copy_is_made_of_untouched_memory(acl, page):
    done = acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    assert done.bytes_allocated == PAGE
    view = acl.page(page)
    assert (view.copies, view.writable, view.owner) == (("cpu",), (), "cpu")


def test_a10_a_host_copy_is_made_of_device_memory(acl, page):
    touch(acl, page, "gpu1", write=True)
    done = acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    assert kinds(done) == ["copy"]
    assert done.bytes_copied == PAGE
    view = acl.page(page)
    assert (view.copies, view.writable) == (("cpu", "gpu1"), ())


def test_a11_unset_read_mostly(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY)
    assert query(acl, page, "READ_MOSTLY") == 0


def test_a12_one_writable_copy_remains(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0", "gpu1")
    acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY, "gpu0")
    view = acl.page(page)
    assert len(view.copies) == 1
    assert view.writable == view.copies


@pytest.mark.parametrize("where", ["cpu", "gpu0", "gpu1"])
def test_a13_the_one_at_location(acl, page, where):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0", "gpu1")
    acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY, where)
    assert acl.page(page).copies == (where,)


@pytest.mark.parametrize("nowhere", [None, "invalid", Location.invalid(), -2])
def test_a14_invalid_keeps_the_host_copy(acl, page, nowhere):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0", "gpu1")
    acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY, nowhere)
    assert acl.page(page).copies == ("cpu",)


def test_a15_a_missing_copy_is_made(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0")
    done = acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY, "gpu2")
    assert kinds(done) == ["take", "free"]
    assert acl.page(page).copies == ("gpu2",)


def test_a16_the_others_are_freed(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0", "gpu1")
    assert acl.used(0) == acl.used(1) == PAGE
    kept = acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY, "gpu0")
    assert (kept.bytes_freed, kept.bytes_allocated) == (2 * PAGE, 0)
    assert (acl.used(0), acl.used(1)) == (PAGE, 0)
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    made = acl.mem_advise(page, PAGE, Advise.UNSET_READ_MOSTLY, "gpu2")
    assert (made.bytes_freed, made.bytes_allocated) == (2 * PAGE, PAGE)


# ---- preferred location -----------------------------


@pytest.mark.parametrize(("where", "device", "kind"), [("cpu", -1, 2), ("gpu1", 1, 1)])
def test_a17_preferred_location_is_queried(acl, page, where, device, kind):
    acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, where)
    assert query(acl, page, "PREFERRED_LOCATION") == device
    assert query(acl, page, "PREFERRED_LOCATION_TYPE") == kind
    assert query(acl, page, "PREFERRED_LOCATION_ID") == max(device, 0)


@BOTH
@pytest.mark.parametrize("order", [(2, 4), (4, 2)])
def test_a18_with_accessed_by_the_first_access_does_not_fault(semantics, order):
    space = memory(semantics)
    ptr = space.alloc(PAGE)
    for advice in order:
        space.mem_advise(ptr, PAGE, advice, "gpu1")
    assert space.page(ptr).writable == ("gpu1",)
    assert touch(space, ptr, "gpu1", write=True) == [True]


def test_a19_preferred_host_of_device_memory_is_an_error(acl, page):
    touch(acl, page, "gpu0", write=True)
    before = acl.page(page)
    with pytest.raises(ManagedConflictError, match="A19") as caught:
        acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "cpu")
    assert caught.value.rule == "A19"
    assert acl.page(page) == before


def test_a20_preferred_host_of_host_memory_returns(acl, page):
    touch(acl, page, "cpu", write=True)
    done = acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "cpu")
    assert (done.effects, done.bytes_allocated) == ([], 0)


def test_a21_preferred_host_of_untouched_memory_allocates(acl, page):
    done = acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "cpu")
    assert done.bytes_allocated == PAGE
    view = acl.page(page)
    assert (view.copies, view.writable) == (("cpu",), ("cpu",))
    assert touch(acl, page, "cpu", write=True) == [True]


@pytest.mark.parametrize("holder", ["cpu", "gpu1"])
def test_a22_preferred_device_of_memory_elsewhere_is_an_error(acl, page, holder):
    touch(acl, page, holder, write=True)
    before = acl.page(page)
    with pytest.raises(ManagedConflictError) as caught:
        acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu0")
    assert caught.value.rule == "A22"
    assert acl.page(page) == before


def test_a23_preferred_device_allocates_there(acl, page):
    done = acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu2")
    assert kinds(done) == ["alloc"]
    assert acl.page(page).writable == ("gpu2",)
    assert kinds(acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu2")) == []


def test_a24_read_mostly_preferred_host_does_nothing(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0")
    before = acl.page(page)
    assert acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "cpu").effects == []
    assert acl.page(page) == before._replace(preferred=Location.host())


def test_a25_read_mostly_preferred_device_with_a_copy_returns(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    touch(acl, page, "gpu0")
    assert acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu0").effects == []


def test_a26_read_mostly_preferred_device_without_gets_one(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_READ_MOSTLY)
    assert kinds(acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu0")) == ["duplicate"]
    assert acl.page(page).copies == ("cpu", "gpu0")
    assert query(acl, page, "READ_MOSTLY") == 1
    assert touch(acl, page, "gpu0") == [True]


def test_a27_unset_preferred_keeps_the_mappings(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu0")
    before = acl.page(page)
    acl.mem_advise(page, PAGE, Advise.UNSET_PREFERRED_LOCATION)
    assert query(acl, page, "PREFERRED_LOCATION") == -2
    assert query(acl, page, "PREFERRED_LOCATION_TYPE") == 0
    assert acl.page(page) == before._replace(preferred=None)


# ---- accessed by -----------------------------


def test_a28_accessed_by_is_queried(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_ACCESSED_BY, "gpu2")
    acl.mem_advise(page, PAGE, Advise.SET_ACCESSED_BY, "cpu")
    assert query(acl, page, "ACCESSED_BY", data_size=16) == [-1, 2, -2, -2]
    assert query(acl, page, "ACCESSED_BY", data_size=4) == [-1]


@BOTH
def test_a29_alone_it_moves_and_maps_nothing(semantics):
    space = memory(semantics)
    ptr = space.alloc(PAGE)
    assert space.mem_advise(ptr, PAGE, Advise.SET_ACCESSED_BY, "gpu0").effects == []
    assert space.page(ptr).copies == ()
    touch(space, ptr, "gpu1", write=True)
    assert space.mem_advise(ptr, PAGE, Advise.SET_ACCESSED_BY, "gpu2").effects == []
    assert space.page(ptr).mapped == ("gpu1",)


def test_a30_unset_accessed_by_keeps_the_mappings(acl, page):
    acl.mem_advise(page, PAGE, Advise.SET_ACCESSED_BY, "gpu0")
    acl.mem_advise(page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu0")
    before = acl.page(page)
    acl.mem_advise(page, PAGE, Advise.UNSET_ACCESSED_BY, "gpu0")
    assert query(acl, page, "ACCESSED_BY", data_size=8) == [-2, -2]
    assert acl.page(page) == before._replace(accessed_by=())


# ---- the driver -----------------------------


def test_d1_allocates_only_with_accessed_by_at_the_same_place(driver, driver_page):
    assert driver.mem_advise(driver_page, PAGE, 2, "gpu0").effects == []
    assert driver.page(driver_page).copies == ()
    assert kinds(driver.mem_advise(driver_page, PAGE, 4, "gpu0")) == ["alloc"]


@pytest.mark.parametrize("order", [(4, 2), (2, 4)])
def test_d2_a_conflict_warns_and_is_stored(driver, driver_page, order):
    touch(driver, driver_page, "gpu1", write=True)
    done = [driver.mem_advise(driver_page, PAGE, advice, "gpu0") for advice in order]
    assert done[1].warnings
    view = driver.page(driver_page)
    assert (view.copies, view.preferred) == (("gpu1",), Location.device(0))


def test_d3_the_preferred_location_overrides(driver, driver_page):
    driver.mem_advise(driver_page, PAGE, Advise.SET_READ_MOSTLY)
    driver.mem_advise(driver_page, PAGE, Advise.SET_PREFERRED_LOCATION, "gpu1")
    touch(driver, driver_page, "gpu0")
    driver.mem_advise(driver_page, PAGE, Advise.UNSET_READ_MOSTLY, "gpu0")
    assert driver.page(driver_page).copies == ("gpu1",)


def test_d3_a_numa_node_is_the_host(driver, driver_page):
    driver.mem_advise(driver_page, PAGE, Advise.SET_READ_MOSTLY)
    touch(driver, driver_page, "gpu0")
    driver.mem_advise(driver_page, PAGE, Advise.UNSET_READ_MOSTLY, Location.host_numa(0))
    assert driver.page(driver_page).copies == ("cpu",)


def test_d4_the_same_again_does_nothing(driver, driver_page):
    touch(driver, driver_page, "gpu1", write=True)
    for advice in (4, 2):
        driver.mem_advise(driver_page, PAGE, advice, "gpu0")
    for advice in (4, 2):
        assert driver.mem_advise(driver_page, PAGE, advice, "gpu0").effects == []


def test_d5_accessed_by_takes_host_and_devices_only(acl, page, driver, driver_page):
    node = Location.host_numa(0)
    acl.mem_advise(page, PAGE, Advise.SET_ACCESSED_BY, node)
    assert query(acl, page, "ACCESSED_BY") == [-1]
    for place in (node, Location.host_numa_current(), "invalid"):
        with pytest.raises(ManagedError):
            driver.mem_advise(driver_page, PAGE, Advise.SET_ACCESSED_BY, place)


def test_d6_a_numa_node_is_told_by_the_document_only():
    for semantics, expected, mixed in (("acl", 1, -2), ("acl-driver", -1, -1)):
        space = memory(semantics, nodes=2)
        ptr = space.alloc(2 * PAGE)
        space.mem_advise(ptr, PAGE, 2, Location.host_numa(1))
        space.mem_advise(ptr + PAGE, PAGE, 2, "cpu")
        assert query(space, ptr, "PREFERRED_LOCATION") == expected
        assert query(space, ptr, "PREFERRED_LOCATION", 2 * PAGE) == mixed


@BOTH
def test_d7_set_read_mostly_again_does_nothing(semantics):
    space = memory(semantics)
    ptr = space.alloc(PAGE)
    space.mem_advise(ptr, PAGE, 0)
    touch(space, ptr, "gpu0")
    before = space.page(ptr)
    assert space.mem_advise(ptr, PAGE, 0).effects == []
    assert space.page(ptr) == before


def test_d9_memset_writes_every_copy(acl, page, driver, driver_page):
    for space, ptr, kept in ((acl, page, False), (driver, driver_page, True)):
        space.mem_advise(ptr, PAGE, 0)
        touch(space, ptr, "gpu0")
        space.mem_set(ptr, PAGE)
        assert space.page(ptr).read_mostly is kept
        assert space.page(ptr).copies == (("cpu", "gpu0") if kept else ("cpu",))


def test_d10_memcpy_takes_the_copies_away(driver, driver_page):
    with pytest.raises(ManagedError) as caught:
        driver.mem_copy_from(driver_page, PAGE)
    assert caught.value.code == "EFAULT"
    driver.mem_advise(driver_page, PAGE, 0)
    touch(driver, driver_page, "gpu0")
    driver.mem_copy(driver_page, PAGE)
    view = driver.page(driver_page)
    assert (view.copies, view.writable, view.read_mostly) == (("cpu",), ("cpu",), False)
    assert driver.mem_copy_from(driver_page, PAGE).hit
    other = driver.alloc(PAGE)
    driver.mem_copy(other, PAGE)
    assert driver.page(other).copies == ("cpu",)


def test_d11_no_remote_mapping(driver, driver_page):
    driver.mem_advise(driver_page, PAGE, Advise.SET_ACCESSED_BY, "gpu0")
    touch(driver, driver_page, "cpu", write=True)
    assert kinds(driver.access(driver_page, by="gpu0")) == ["migrate"]


@BOTH
def test_d12_free_forgets_the_advice(semantics):
    space = memory(semantics)
    ptr = space.alloc(PAGE)
    space.mem_advise(ptr, PAGE, 0)
    touch(space, ptr, "gpu0")
    assert space.used(0) == PAGE
    space.free(ptr)
    assert space.used(0) == 0
    with pytest.raises(ManagedError):
        query(space, ptr, "READ_MOSTLY")


@BOTH
class TestPrefetch:
    """D13, in both modes."""

    def test_untouched_pages_are_skipped_and_recorded(self, semantics):
        space = memory(semantics)
        ptr = space.alloc(PAGE)
        assert space.mem_prefetch(ptr, PAGE, "gpu0").effects == []
        assert space.page(ptr).copies == ()
        assert query(space, ptr, "LAST_PREFETCH_LOCATION") == 0

    def test_moves(self, semantics):
        space = memory(semantics)
        ptr = space.alloc(PAGE)
        touch(space, ptr, "cpu", write=True)
        assert space.mem_prefetch(ptr, PAGE, "gpu1").bytes_migrated == PAGE
        assert space.page(ptr).copies == ("gpu1",)
        assert space.mem_prefetch(ptr, PAGE, "gpu2").effects == []
        assert space.page(ptr).copies == ("gpu1",)
        space.mem_prefetch(ptr, PAGE, "cpu")
        assert space.page(ptr).copies == ("cpu",)

    def test_read_mostly(self, semantics):
        space = memory(semantics)
        ptr = space.alloc(PAGE)
        space.mem_advise(ptr, PAGE, 0)
        assert kinds(space.mem_prefetch(ptr, PAGE, "gpu0")) == ["duplicate"]
        assert touch(space, ptr, "gpu0") == [True]
        before = space.page(ptr)
        with pytest.raises(ManagedError) as caught:
            space.mem_prefetch(ptr, PAGE, "cpu")
        assert (caught.value.code, caught.value.rule) == ("EFAULT", "D13")
        assert space.page(ptr) == before

    def test_host_to_host(self, semantics):
        space = memory(semantics, nodes=2)
        ptr = space.alloc(PAGE)
        touch(space, ptr, "cpu", write=True)
        with pytest.raises(ManagedSupportError) as caught:
            space.mem_prefetch(ptr, PAGE, "cpu")
        assert caught.value.code == "EOPNOTSUPP"
        space.mem_prefetch(ptr, PAGE, Location.host_numa(1))
        assert space.page(ptr).node == 1

    def test_flags(self, semantics):
        space = memory(semantics)
        ptr = space.alloc(PAGE)
        with pytest.raises(ManagedSupportError) as caught:
            space.mem_prefetch(ptr, PAGE, "gpu0", flags=1)
        assert int(caught.value.result) == 207000


@BOTH
def test_d14_a_full_device_swaps_to_the_host(semantics):
    space = memory(semantics, vram_mib=4)
    ptr = space.alloc(6 * MIB)
    for number in range(3):
        touch(space, ptr + number * PAGE, "gpu0", write=True)
    assert space.page(ptr).copies == ("cpu",)
    assert space.page(ptr + 2 * PAGE).copies == ("gpu0",)
    assert space.used(0) == 4 * MIB
    assert space.counters()["evicted_bytes"] == PAGE


@BOTH
def test_partial_effect_earlier_pages_keep_the_change(semantics):
    space = memory(semantics)
    ptr = space.alloc(4 * PAGE)
    space.mem_advise(ptr + 2 * PAGE, PAGE, 0)
    touch(space, ptr, "gpu0")
    touch(space, ptr + PAGE, "gpu0")
    touch(space, ptr + 3 * PAGE, "gpu0")
    with pytest.raises(ManagedError):
        space.mem_prefetch(ptr, 4 * PAGE, "cpu")
    where = [space.page(ptr + i * PAGE).copies for i in range(4)]
    assert where == [("cpu",), ("cpu",), ("cpu",), ("gpu0",)]
    asked = [query(space, ptr + i * PAGE, "LAST_PREFETCH_LOCATION") for i in range(4)]
    assert asked == [-1, -1, -2, -2]


def test_partial_effect_of_a_conflict(acl):
    ptr = acl.alloc(3 * PAGE)
    touch(acl, ptr + PAGE, "gpu1", write=True)
    with pytest.raises(ManagedConflictError, match=f"{ptr + PAGE:#x}"):
        acl.mem_advise(ptr, 3 * PAGE, Advise.SET_PREFERRED_LOCATION, "gpu0")
    assert [acl.page(ptr + i * PAGE).preferred for i in range(3)] == [
        Location.device(0),
        None,
        None,
    ]


@BOTH
def test_partial_effect_beyond_the_allocation(semantics):
    space = memory(semantics)
    ptr = space.alloc(PAGE)
    with pytest.raises(ManagedError) as caught:
        space.mem_advise(ptr, 3 * PAGE, Advise.SET_READ_MOSTLY)
    assert caught.value.code == "EINVAL"
    assert query(space, ptr, "READ_MOSTLY") == 1


@BOTH
def test_rounding_to_2_mib(semantics):
    space = memory(semantics)
    ptr = space.alloc(3 * MIB)
    assert space.allocations() == [(ptr, 4 * MIB)]
    assert space.mem_advise(ptr + 4096, 1, Advise.SET_ACCESSED_BY, "gpu0").pages == 512
    assert query(space, ptr, "ACCESSED_BY", 1) == [0]
    assert query(space, ptr + PAGE, "ACCESSED_BY", 1) == [-2]
    # Address and size are rounded, the end is not.
    assert space.mem_advise(ptr + MIB, PAGE, Advise.SET_ACCESSED_BY, "gpu1").pages == 512


def test_strict_alignment():
    space = memory("acl", strict_alignment=True)
    ptr = space.alloc(2 * PAGE)
    for addr, size in ((ptr + 4096, PAGE), (ptr, MIB)):
        with pytest.raises(ManagedError) as caught:
            space.mem_advise(addr, size, 0)
        assert int(caught.value.result) == 107008
    space.mem_advise(ptr, PAGE, 0)
    assert space.access(ptr + 5, 7).faults == 1
    assert space.page(ptr + 5).copies == ("cpu", "gpu0")


def test_copies_beyond_the_allocation(driver, driver_page):
    touch(driver, driver_page, "cpu", write=True)
    for call in (driver.mem_copy, driver.mem_set, driver.mem_copy_from):
        with pytest.raises(ManagedError, match="allocated"):
            call(driver_page, PAGE + 1)


@BOTH
def test_plain_faults(semantics):
    space = memory(semantics)
    ptr = space.alloc(PAGE)
    events = [space.access(ptr, by=who).effects[0].event for who in ("cpu", 0, 1, "cpu")]
    assert [(event.kind, event.source, event.target) for event in events] == [
        ("populate", -1, 0),
        ("migrate", 0, 1),
        ("migrate", 1, 2),
        ("migrate", 2, 0),
    ]
