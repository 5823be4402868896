"""CUDA's rules C1 to C15, and the order in which its faults find a place (R2 to R11)."""

import pytest

from managed_kit import kinds, memory, query, touch
from svmcore.managed import CudaMemAdvise, Location, ManagedError
from svmcore.managed.state import ReadMostly

Advise = CudaMemAdvise
KIB4 = 4096


@pytest.fixture
def cuda():
    return memory("cuda")


@pytest.fixture
def page(cuda):
    return cuda.alloc(KIB4)


def advise(space, ptr, advice, location=None, size=KIB4):
    return space.mem_advise(ptr, size, advice, location)


@pytest.mark.parametrize("page_size", [4096, 65536])
def test_c1_rounding_to_the_cpu_page(page_size):
    space = memory("cuda", page_size=page_size)
    ptr = space.alloc(3 * page_size)
    done = advise(space, ptr + page_size - 1, Advise.SET_READ_MOSTLY, size=2)
    assert done.pages == 2 * page_size // 4096
    flags = [query(space, ptr + i * page_size, "READ_MOSTLY", 1) for i in range(3)]
    assert flags == [1, 1, 0]


@pytest.mark.parametrize("location", [None, "gpu1", Location(77, 9)])
def test_c2_a_read_makes_a_copy_at_the_reader(cuda, page, location):
    assert advise(cuda, page, Advise.SET_READ_MOSTLY, location).effects == []
    assert cuda.page(page).copies == ()
    assert touch(cuda, page, "gpu0", "cpu", "gpu0", "cpu") == [False, False, True, True]
    view = cuda.page(page)
    assert (view.copies, view.writable) == (("cpu", "gpu0"), ())


def test_c2_a_prefetch_makes_a_copy_at_the_target(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    assert kinds(cuda.mem_prefetch(page, KIB4, "gpu2")) == ["duplicate"]
    assert cuda.page(page).copies == ("cpu", "gpu2")
    assert touch(cuda, page, "gpu2") == [True]


def test_c2_devices_without_a_link_copy_through_the_host(cuda, page):
    linked = memory("cuda", hive=1)
    other = linked.alloc(KIB4)
    for space, ptr, copies in ((cuda, page, ("cpu", "gpu0", "gpu1")), (linked, other, None)):
        advise(space, ptr, Advise.SET_READ_MOSTLY)
        touch(space, ptr, "gpu0", "gpu1")
        assert space.page(ptr).copies == (copies or ("gpu0", "gpu1"))


def test_c3_a_write_drops_the_other_copies_and_keeps_the_advice(cuda, page):
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    touch(cuda, page, "cpu", "gpu0", "gpu1")
    write = cuda.access(page, by="gpu0", write=True)
    assert kinds(write) == ["free"]
    view = cuda.page(page)
    assert (view.copies, view.writable, view.read_mostly) == (("gpu0",), ("gpu0",), True)
    assert query(cuda, page, "READ_MOSTLY") == 1
    assert kinds(cuda.access(page, by="cpu")) == ["duplicate"]


def test_c3_a_host_write_moves_to_the_preferred_node():
    space = memory("cuda", nodes=2)
    ptr = space.alloc(KIB4)
    touch(space, ptr, "cpu", write=True)
    advise(space, ptr, Advise.SET_READ_MOSTLY)
    advise(space, ptr, Advise.SET_PREFERRED_LOCATION, Location.host_numa(1))
    assert space.page(ptr).node == 0
    touch(space, ptr, "cpu", write=True)
    assert space.page(ptr).node == 1


def test_host_memory_is_on_the_node_of_the_thread():
    space = memory("cuda", nodes=2, current_node=1)
    ptr = space.alloc(KIB4)
    touch(space, ptr, "cpu", write=True)
    assert space.page(ptr).node == 1
    advise(space, ptr, Advise.SET_PREFERRED_LOCATION, Location.host_numa_current())
    assert query(space, ptr, "PREFERRED_LOCATION_TYPE") == 3
    assert query(space, ptr, "PREFERRED_LOCATION_ID") == 1


@pytest.mark.parametrize(
    ("preferred", "kept"), [(None, "cpu"), ("gpu1", "gpu1"), ("gpu2", "cpu"), ("cpu", "cpu")]
)
def test_c4_one_copy_stays_the_preferred_or_the_lowest(cuda, page, preferred, kept):
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    touch(cuda, page, "gpu1", "cpu")
    if preferred:
        advise(cuda, page, Advise.SET_PREFERRED_LOCATION, preferred)
    advise(cuda, page, Advise.UNSET_READ_MOSTLY, "gpu0")  # the location is ignored
    assert cuda.page(page).copies == (kept,)


def test_c4_pages_never_duplicate_again(cuda, page):
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    touch(cuda, page, "cpu")
    advise(cuda, page, Advise.UNSET_READ_MOSTLY)
    assert [r.read_mostly for r in cuda.ranges()] == [ReadMostly.DISABLED]
    assert query(cuda, page, "READ_MOSTLY") == 0
    assert kinds(cuda.access(page, by="gpu0")) == ["migrate"]
    assert cuda.page(page).copies == ("gpu0",)


def test_c5_preferred_location_moves_nothing(cuda, page):
    touch(cuda, page, "cpu", write=True)
    before = cuda.page(page)
    assert advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu0").effects == []
    assert cuda.page(page) == before._replace(preferred=Location.device(0))


def test_c5_data_at_the_preferred_place_is_mapped_there(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "cpu")
    fault = cuda.access(page, by="gpu0")
    assert (kinds(fault), fault.remote_bytes) == (["map"], KIB4)
    assert cuda.page(page).copies == ("cpu",)
    assert cuda.page(page).mapped == ("cpu", "gpu0")


def test_c5_else_it_migrates_to_the_toucher(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu1")  # gpu0 cannot reach gpu1
    touch(cuda, page, "gpu0")
    assert cuda.page(page).copies == ("gpu0",)


def test_c6_preferred_location_does_not_stop_a_prefetch(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "cpu")
    cuda.mem_prefetch(page, KIB4, "gpu0")
    assert cuda.page(page).copies == ("gpu0",)


def test_c6_read_mostly_overrides_it(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "cpu")
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    assert kinds(cuda.access(page, by="gpu0")) == ["duplicate"]


@pytest.mark.parametrize("order", ["advice first", "data first"])
def test_c7_accessed_by_keeps_a_mapping_and_moves_nothing(cuda, page, order):
    if order == "data first":
        touch(cuda, page, "cpu", write=True)
        assert kinds(advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")) == ["map"]
    else:
        assert advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0").effects == []
        touch(cuda, page, "cpu", write=True)
    assert touch(cuda, page, "gpu0", write=True) == [True]
    assert cuda.page(page).copies == ("cpu",)


def test_c7_mapped_again_after_a_migration(cuda, page):
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    touch(cuda, page, "cpu", "gpu1", write=True)
    assert cuda.page(page).mapped == ("gpu1",)  # no link from gpu0 to gpu1
    touch(cuda, page, "cpu", write=True)
    assert cuda.page(page).mapped == ("cpu", "gpu0")


def test_c7_read_mostly_takes_the_mappings(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    assert cuda.page(page).mapped == ("cpu",)
    assert kinds(cuda.access(page, by="gpu0")) == ["duplicate"]


@pytest.mark.parametrize("how", ["touched", "prefetched"])
def test_c7_under_read_mostly_no_mapping_is_made(cuda, page, how):
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    if how == "touched":
        touch(cuda, page, "cpu")
        assert advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0").effects == []
    else:
        advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
        cuda.mem_prefetch(page, KIB4, "cpu")
    assert cuda.page(page).mapped == ("cpu",)
    assert kinds(cuda.access(page, by="gpu0")) == ["duplicate"]


def test_c7_the_preferred_processor_faults_and_pulls(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu0")
    assert advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0").effects == []
    assert kinds(cuda.access(page, by="gpu0")) == ["migrate"]


@pytest.mark.parametrize("place", ["invalid", Location.host_numa(0), Location.host_numa_current()])
def test_c7_host_and_devices_only(cuda, page, place):
    with pytest.raises(ManagedError) as caught:
        advise(cuda, page, Advise.SET_ACCESSED_BY, place)
    assert caught.value.result.name == "CUDA_ERROR_INVALID_VALUE"


def test_c8_unset_accessed_by_leaves_the_mapping_until_something_removes_it(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    advise(cuda, page, Advise.UNSET_ACCESSED_BY, "gpu0")
    assert query(cuda, page, "ACCESSED_BY") == [-2]
    assert touch(cuda, page, "gpu0") == [True]
    touch(cuda, page, "gpu1", "cpu", write=True)
    fault = cuda.access(page, by="gpu0")
    assert kinds(fault) == ["migrate"]  # a fault, not an error


def test_c9_the_new_preferred_processor_loses_its_remote_mappings(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu0")
    assert cuda.page(page).mapped == ("cpu",)
    assert kinds(cuda.access(page, by="gpu0")) == ["migrate"]


def test_c9_the_old_one_gets_those_it_was_advised(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu0")
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    assert kinds(advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu1")) == ["map"]
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "gpu0")
    assert kinds(advise(cuda, page, Advise.UNSET_PREFERRED_LOCATION)) == ["map"]


def test_c10_prefetch_populates_and_maps(cuda, page):
    assert kinds(cuda.mem_prefetch(page, KIB4, "gpu1")) == ["populate"]
    assert touch(cuda, page, "gpu1", write=True) == [True]


def test_c10_prefetch_maps_for_accessed_by(cuda, page):
    touch(cuda, page, "gpu1", write=True)
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    cuda.mem_prefetch(page, KIB4, "cpu")
    assert cuda.page(page).mapped == ("cpu", "gpu0")


def test_c10_a_prefetch_in_place_keeps_the_mappings_of_others(cuda, page):
    advise(cuda, page, Advise.SET_PREFERRED_LOCATION, "cpu")
    touch(cuda, page, "gpu0", "gpu1")
    cuda.mem_prefetch(page, KIB4, "cpu")
    assert cuda.page(page).mapped == ("cpu", "gpu0", "gpu1")


def test_c10_other_pages_are_evicted_for_it():
    space = memory("cuda", vram_mib=4)
    first, second = space.alloc(4 << 20), space.alloc(2 << 20)
    space.mem_prefetch(first, 4 << 20, "gpu0")
    done = space.mem_prefetch(second, 2 << 20, "gpu0")
    assert kinds(done) == ["evict", "populate"]
    assert space.page(first).copies == ("cpu",)
    assert space.page(first + (2 << 20)).copies == ("gpu0",)
    assert space.used(0) == 4 << 20


def test_c10_more_than_the_device_holds_pushes_out_its_own_beginning():
    space = memory("cuda", vram_mib=4)
    ptr = space.alloc(10 << 20)
    space.mem_prefetch(ptr, 10 << 20, "gpu0")
    where = [space.page(ptr + i * (2 << 20)).copies[0] for i in range(5)]
    assert where == ["cpu", "cpu", "cpu", "gpu0", "gpu0"]


def test_c10_eviction_drops_a_copy_that_is_one_of_several():
    space = memory("cuda", vram_mib=4)
    ptr, other = space.alloc(2 << 20), space.alloc(4 << 20)
    advise(space, ptr, Advise.SET_READ_MOSTLY, size=2 << 20)
    for who in ("cpu", "gpu0"):
        space.access(ptr, 2 << 20, by=who)
    space.mem_prefetch(other, 4 << 20, "gpu0")
    assert space.page(ptr).copies == ("cpu",)
    assert space.counters()["evicted_bytes"] == 0


def test_c10_who_had_the_data_first_keeps_it_when_another_copy_is_dropped():
    space = memory("cuda", vram_mib=4)
    ptr, other = space.alloc(2 << 20), space.alloc(4 << 20)
    advise(space, ptr, Advise.SET_READ_MOSTLY, size=2 << 20)
    for who in ("gpu1", "gpu0"):
        space.access(ptr, 2 << 20, by=who)
    space.mem_prefetch(other, 4 << 20, "gpu0")
    view = space.page(ptr)
    assert (view.copies, view.owner) == (("cpu", "gpu1"), "gpu1")


def test_c10_the_only_copy_of_read_mostly_stays_read_only_when_it_is_evicted():
    space = memory("cuda", vram_mib=4)
    ptr, other = space.alloc(2 << 20), space.alloc(4 << 20)
    advise(space, ptr, Advise.SET_READ_MOSTLY, size=2 << 20)
    advise(space, ptr, Advise.SET_ACCESSED_BY, "cpu", size=2 << 20)
    space.access(ptr, 2 << 20, by="gpu0")
    space.mem_prefetch(other, 4 << 20, "gpu0")
    view = space.page(ptr)
    assert (view.copies, view.writable) == (("cpu",), ())


def test_c10_a_host_copy_moves_between_nodes():
    space = memory("cuda", nodes=2)
    ptr = space.alloc(KIB4)
    touch(space, ptr, "cpu", write=True)
    advise(space, ptr, Advise.SET_READ_MOSTLY)
    touch(space, ptr, "gpu0")
    assert kinds(space.mem_prefetch(ptr, KIB4, Location.host_numa(1))) == ["move"]
    assert space.page(ptr).node == 1
    assert space.page(ptr).copies == ("cpu", "gpu0")


def test_c11_attributes_agree_or_not():
    space = memory("cuda", nodes=2)
    ptr = space.alloc(2 * KIB4)
    both = 2 * KIB4
    names = (
        "READ_MOSTLY",
        "PREFERRED_LOCATION",
        "LAST_PREFETCH_LOCATION",
        "PREFERRED_LOCATION_TYPE",
        "LAST_PREFETCH_LOCATION_TYPE",
    )
    assert [query(space, ptr, name, both) for name in names] == [0, -2, -2, 0, 0]
    advise(space, ptr, Advise.SET_READ_MOSTLY)
    advise(space, ptr, Advise.SET_PREFERRED_LOCATION, "gpu1")
    advise(space, ptr, Advise.SET_ACCESSED_BY, "gpu2")
    space.mem_prefetch(ptr, KIB4, Location.host_numa(1))
    assert [query(space, ptr, name) for name in names] == [1, 1, -1, 1, 3]
    assert query(space, ptr, "PREFERRED_LOCATION_ID") == 1
    assert query(space, ptr, "LAST_PREFETCH_LOCATION_ID") == 1
    assert [query(space, ptr, name, both) for name in names] == [0, -2, -2, 0, 0]
    assert query(space, ptr, "ACCESSED_BY", data_size=8) == [2, -2]
    assert query(space, ptr, "ACCESSED_BY", both, 8) == [-2, -2]
    everything = space.mem_range_get_attributes([1, 2, 3, 4], ptr, KIB4, [4, 4, 12, 4])
    assert everything == [1, 1, [2, -2, -2], -1]


def test_c11_last_prefetch_is_what_was_asked(cuda, page):
    cuda.mem_prefetch(page, KIB4, "gpu1")
    touch(cuda, page, "cpu", write=True)
    assert query(cuda, page, "LAST_PREFETCH_LOCATION") == 1


def test_c12_discarded_contents_are_not_copied(cuda, page):
    touch(cuda, page, "gpu0", write=True)
    cuda.mem_discard_batch([page], [KIB4])
    moved = cuda.access(page, by="cpu")
    assert kinds(moved) == ["populate", "free"]
    assert cuda.page(page).copies == ("cpu",)
    assert cuda.raw(page).discarded
    assert cuda.counters()["bytes_migrated"] == 0


@pytest.mark.parametrize("end", ["write", "prefetch"])
def test_c12_until_written_or_prefetched(cuda, page, end):
    touch(cuda, page, "gpu0", write=True)
    cuda.mem_discard_batch([page], [KIB4])
    assert cuda.raw(page).discarded
    if end == "write":
        touch(cuda, page, "gpu0", write=True)
    else:
        assert kinds(cuda.mem_prefetch(page, KIB4, "cpu")) == ["populate", "free"]
    assert not cuda.raw(page).discarded


def test_c12_eviction_does_not_bring_the_contents_back():
    space = memory("cuda", vram_mib=4)
    ptr, other = space.alloc(2 << 20), space.alloc(4 << 20)
    space.access(ptr, 2 << 20, by="gpu0", write=True)
    space.mem_discard_batch([ptr], [2 << 20])
    space.mem_prefetch(other, 4 << 20, "gpu0")
    assert space.page(ptr).copies == ("cpu",)
    assert kinds(space.access(ptr, by="gpu1")) == ["populate", "free"]


def test_c12_discarded_pages_have_no_accessed_by_mappings(cuda, page):
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    cuda.mem_discard_batch([page], [KIB4])
    assert cuda.page(page).mapped == ("cpu",)


def test_c12_a_write_of_discarded_duplicates_copies_nothing(cuda, page):
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    touch(cuda, page, "gpu0")
    cuda.mem_discard_batch([page], [KIB4])
    assert kinds(cuda.access(page, by="cpu", write=True)) == ["populate", "free"]
    cuda.mem_discard_batch([page], [KIB4])
    assert kinds(cuda.mem_prefetch(page, KIB4, "cpu")) == []
    assert not cuda.raw(page).discarded


def test_c12_duplicates_collapse(cuda, page):
    advise(cuda, page, Advise.SET_READ_MOSTLY)
    touch(cuda, page, "cpu", "gpu0")
    cuda.mem_discard_batch([page], [KIB4])
    assert cuda.page(page).copies == ("cpu",)


@pytest.mark.parametrize("stream", [0, 1])
def test_c12_the_legacy_stream_is_refused(cuda, page, stream):
    with pytest.raises(ManagedError, match="C12"):
        cuda.mem_discard_batch([page], [KIB4], stream=stream)
    assert cuda.mem_prefetch(page, KIB4, "gpu0", stream=stream).pages == 1


def test_c12_every_device_must_have_concurrent_access():
    space = memory("cuda", not_concurrent=[2])
    ptr = space.alloc(KIB4)
    for call in (
        lambda: space.mem_discard_batch([ptr], [KIB4]),
        lambda: space.mem_prefetch_batch([ptr], [KIB4], ["gpu0"], [0]),
        lambda: space.mem_get_location_info(ptr, KIB4, KIB4),
    ):
        with pytest.raises(ManagedError) as caught:
            call()
        assert int(caught.value.result) == 801
    with pytest.raises(ManagedError) as caught:
        space.mem_prefetch(ptr, KIB4, "gpu2")
    assert int(caught.value.result) == 101


def test_c13_batches_place_members_by_index(cuda):
    ptr = cuda.alloc(10 * KIB4)
    ptrs = [ptr + i * KIB4 for i in range(10)]
    cuda.mem_prefetch_batch(ptrs, [KIB4] * 10, ["gpu0", "cpu"], [0, 4])
    where = [cuda.page(p).copies[0] for p in ptrs]
    assert where == ["gpu0"] * 4 + ["cpu"] * 6


def test_c13_discard_and_prefetch_are_the_two_in_sequence():
    pages = []
    for together in (True, False):
        space = memory("cuda")
        ptr = space.alloc(2 * KIB4)
        touch(space, ptr, "gpu0", write=True)
        if together:
            space.mem_discard_and_prefetch_batch([ptr], [2 * KIB4], ["gpu1"], [0])
        else:
            space.mem_discard_batch([ptr], [2 * KIB4])
            space.mem_prefetch_batch([ptr], [2 * KIB4], ["gpu1"], [0])
        pages.append([space.raw(ptr), space.raw(ptr + KIB4), space.counters()])
    assert pages[0] == pages[1]


def test_c13_a_refused_batch_does_nothing(cuda):
    ptr = cuda.alloc(KIB4)
    for call in (cuda.mem_prefetch_batch, cuda.mem_discard_and_prefetch_batch):
        with pytest.raises(ManagedError):
            call([ptr, ptr + KIB4], [KIB4, KIB4], ["gpu0"], [0])
    assert cuda.page(ptr).copies == ()


def test_c14_location_info(cuda):
    ptr = cuda.alloc(16 * KIB4)
    for number, who in ((0, "gpu0"), (1, "gpu0"), (2, "cpu"), (4, "cpu"), (5, "gpu1")):
        touch(cuda, ptr + number * KIB4, who, write=True)
    info = cuda.mem_get_location_info(ptr, 16 * KIB4, 4 * KIB4, KIB4)
    assert info == [Location.device(0), Location.invalid(), Location.invalid(), Location.invalid()]
    assert cuda.mem_get_location_info(ptr + 2 * KIB4, KIB4, KIB4) == [Location.host()]
    # 6 windows, the last one shorter.
    assert len(cuda.mem_get_location_info(ptr, 16 * KIB4, 3 * KIB4 + 1, KIB4)) == 6


@pytest.mark.parametrize(
    ("window", "sample"), [(0, 0), (-1, 0), (17 * KIB4, 0), (KIB4, 2 * KIB4), (KIB4, -1)]
)
def test_c14_bounds(cuda, window, sample):
    ptr = cuda.alloc(16 * KIB4)
    with pytest.raises(ManagedError, match="C14"):
        cuda.mem_get_location_info(ptr, 16 * KIB4, window, sample)


def test_c15_ranges_split_where_the_policy_differs_and_never_merge(cuda):
    ptr = cuda.alloc(8 * KIB4)
    assert advise(cuda, ptr + 2 * KIB4, Advise.SET_READ_MOSTLY, size=2 * KIB4).ranges_split == 2
    assert advise(cuda, ptr + 3 * KIB4, Advise.SET_READ_MOSTLY).ranges_split == 0  # equal
    advise(cuda, ptr + 2 * KIB4, Advise.UNSET_READ_MOSTLY, size=2 * KIB4)
    advise(cuda, ptr, Advise.UNSET_READ_MOSTLY, size=8 * KIB4)
    ranges = cuda.ranges()
    assert [(r.start - ptr) // KIB4 for r in ranges] == [0, 2, 4]
    assert len({r[2:] for r in ranges}) == 1


def test_c15_touches_and_prefetches_split_nothing(cuda):
    ptr = cuda.alloc(8 * KIB4)
    touch(cuda, ptr + KIB4, "gpu0", write=True)
    cuda.mem_prefetch(ptr + 4 * KIB4, KIB4, "gpu1")
    assert len(cuda.ranges()) == 1


# ---- the order of the fault's decision -----------------------------


def test_r6_first_touch_goes_to_the_preferred_place_if_it_is_reached(cuda):
    for preferred, who, lands in (
        ("cpu", "gpu0", "cpu"),
        ("gpu0", "cpu", "cpu"),
        ("gpu1", "gpu0", "gpu0"),
    ):
        ptr = cuda.alloc(KIB4)
        advise(cuda, ptr, Advise.SET_PREFERRED_LOCATION, preferred)
        touch(cuda, ptr, who)
        assert cuda.page(ptr).copies == (lands,)


def test_r7_a_fault_of_accessed_by_is_served_in_place(cuda, page):
    """A discard took the mapping (C12); the fault gets it back, and the page stays."""
    touch(cuda, page, "cpu", write=True)
    advise(cuda, page, Advise.SET_ACCESSED_BY, "gpu0")
    cuda.mem_discard_batch([page], [KIB4])
    assert kinds(cuda.access(page, by="gpu0")) == ["map"]
    assert cuda.page(page).copies == ("cpu",)


def test_r9_a_peer_maps_the_preferred_place():
    space = memory("cuda", hive=1)
    ptr = space.alloc(KIB4)
    touch(space, ptr, "cpu", write=True)
    advise(space, ptr, Advise.SET_PREFERRED_LOCATION, "gpu1")
    touch(space, ptr, "gpu0")
    view = space.page(ptr)
    assert (view.copies, view.mapped) == (("gpu1",), ("gpu0",))


def test_r9_data_at_the_toucher_stays():
    space = memory("cuda", coherent=True)
    ptr = space.alloc(KIB4)
    touch(space, ptr, "cpu", write=True)
    advise(space, ptr, Advise.SET_PREFERRED_LOCATION, "gpu0")
    advise(space, ptr, Advise.SET_READ_MOSTLY)
    advise(space, ptr, Advise.UNSET_READ_MOSTLY)
    touch(space, ptr, "cpu", write=True)
    assert space.page(ptr).copies == ("cpu",)


def test_moves_between_devices_without_a_link_go_through_the_host(cuda, page):
    touch(cuda, page, "gpu0", write=True)
    events = [effect.event for effect in cuda.access(page, by="gpu1").effects]
    assert [(event.source, event.target) for event in events] == [(1, 0), (0, 2)]


@pytest.mark.parametrize("coherent", [True, False])
def test_case_29_preferred_with_accessed_by(coherent):
    space = memory("cuda", coherent=coherent)
    ptr = space.alloc(KIB4)
    touch(space, ptr, "cpu", write=True)
    advise(space, ptr, Advise.SET_PREFERRED_LOCATION, "gpu0")
    advise(space, ptr, Advise.SET_ACCESSED_BY, "cpu")
    assert kinds(space.access(ptr, by="gpu0", write=True)) == ["migrate"]
    read = space.access(ptr, by="cpu")
    if not coherent:  # over PCIe the CPU reaches no device memory: the page comes back
        assert kinds(read) == ["migrate"]
        return
    assert (read.hit, read.remote_bytes, read.effects) == (True, KIB4, ())
    assert space.page(ptr).copies == ("gpu0",)
    advise(space, ptr, Advise.SET_READ_MOSTLY)
    assert kinds(space.access(ptr, by="cpu")) == ["duplicate"]
    assert space.page(ptr).copies == ("cpu", "gpu0")
    assert kinds(space.access(ptr, by="gpu0", write=True)) == ["free"]
    assert space.page(ptr).copies == ("gpu0",)
