"""One test a row of table A6: the same advice under CUDA, HIP, ACL and as a KFD attribute."""

import pytest

from managed_kit import PAGE, kinds, memory
from svmcore.attributes import Attribute
from svmcore.managed import (
    AclMemManagedAdviseType,
    AclMemManagedRangeAttribute,
    CudaMemAdvise,
    CudaMemRangeAttribute,
    HipMemoryAdvise,
    HipMemRangeAttribute,
    Location,
    ManagedConflictError,
    ManagedError,
)

FOUR = ("cuda", "hip", "acl", "kfd")


def spaces(*names, **options):
    """A page under each dialect: name, memory and address."""
    for name in names or FOUR:
        space = memory(name, **options)
        yield name, space, space.alloc(PAGE)


def touched(space, ptr, *processors, write=False):
    for who in processors:
        space.access(ptr, PAGE, by=who, write=write)
    return space.page(ptr).copies


def attribute(space, ptr, name):
    return space.mem_range_get_attribute(name, ptr, PAGE)


def test_row_read_mostly_state():
    for name, space, ptr in spaces():
        space.mem_advise(ptr, PAGE, "read_mostly")
        assert space.is_read_mostly(ptr, PAGE)
        assert space.page(ptr).copies == (("cpu",) if name == "acl" else ())
        if name in ("hip", "kfd"):
            assert space.space.ranges()[0].flags & 0x20


def test_row_later_device_read():
    expected = {"cuda": ("cpu", "gpu0"), "acl": ("cpu", "gpu0"), "hip": ("gpu0",)}
    for name, space, ptr in spaces(*expected):
        touched(space, ptr, "cpu", write=True)
        space.mem_advise(ptr, PAGE, "read_mostly")
        assert touched(space, ptr, "gpu0") == expected[name]


def test_row_later_host_read():
    for name, space, ptr in spaces("cuda", "acl", "hip"):
        touched(space, ptr, "gpu0", write=True)
        space.mem_advise(ptr, PAGE, "read_mostly")
        read = space.access(ptr, PAGE, by="cpu")
        assert read.hit is (name == "acl")
        assert space.page(ptr).copies == (("cpu",) if name == "hip" else ("cpu", "gpu0"))
        assert read.moved_bytes == (PAGE if name == "hip" else 0)


def test_row_later_write():
    for name, space, ptr in spaces("cuda", "acl", "hip"):
        touched(space, ptr, "cpu", write=True)
        space.mem_advise(ptr, PAGE, "read_mostly")
        touched(space, ptr, "gpu0", "gpu1")
        assert touched(space, ptr, "gpu1", write=True) == ("gpu1",)
        assert space.is_read_mostly(ptr, PAGE) is (name != "acl")


@pytest.mark.parametrize("name", ["cuda", "hip", "acl"])
def test_row_location_argument_is_ignored(name):
    for advice in ("read_mostly", "unset_read_mostly")[: 1 if name == "acl" else 2]:
        pages = []
        for place in (None, "gpu2", Location(55, 5)):
            _, space, ptr = next(spaces(name))
            touched(space, ptr, "cpu", write=True)
            space.mem_advise(ptr, PAGE, "read_mostly")
            touched(space, ptr, "gpu0")
            space.mem_advise(ptr, PAGE, advice, place)
            pages.append(space.page(ptr))
        assert pages[0] == pages[1] == pages[2]


def test_row_unset_read_mostly():
    expected = {"cuda": ("gpu1",), "acl": ("gpu0",), "acl-driver": ("gpu1",), "hip": ("gpu1",)}
    for name, space, ptr in spaces(*expected):
        touched(space, ptr, "cpu", write=True)
        space.mem_advise(ptr, PAGE, "read_mostly")
        touched(space, ptr, "gpu0", "gpu1")
        space.mem_advise(ptr, PAGE, "preferred_location", "gpu1")
        space.mem_advise(ptr, PAGE, "unset_read_mostly", "gpu0")
        assert space.page(ptr).copies == expected[name]
        assert not space.is_read_mostly(ptr, PAGE)


def test_row_preferred_location_now():
    for name, space, ptr in spaces("cuda", "hip", "acl", "acl-driver"):
        assert space.mem_advise(ptr, PAGE, "preferred_location", "gpu0").bytes_allocated == (
            PAGE if name == "acl" else 0
        )
    for name, space, ptr in spaces("cuda", "hip", "acl", "acl-driver"):
        touched(space, ptr, "cpu", write=True)
        if name == "acl":
            with pytest.raises(ManagedConflictError):
                space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")
        else:
            space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")
        assert space.page(ptr).copies == ("cpu",)
        stored = None if name == "acl" else Location.device(0)
        assert space.page(ptr).preferred == stored
    # The driver's warning comes with the allocation ahead.
    _, space, ptr = next(spaces("acl-driver"))
    touched(space, ptr, "cpu", write=True)
    space.mem_advise(ptr, PAGE, "accessed_by", "gpu0")
    assert space.mem_advise(ptr, PAGE, "preferred_location", "gpu0").warnings


def test_row_then_an_access_by_the_preferred():
    for _, space, ptr in spaces("cuda", "hip", "acl-driver"):
        touched(space, ptr, "cpu", write=True)
        space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")
        assert touched(space, ptr, "gpu0", write=True) == ("gpu0",)


def test_row_then_an_access_by_another():
    expected = {"cuda": ("gpu0",), "hip": ("gpu0",), "acl-driver": ("gpu1",)}
    for name, space, ptr in spaces(*expected, hive=1):
        touched(space, ptr, "gpu0", write=True)
        space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")
        assert touched(space, ptr, "gpu1", write=True) == expected[name]


def test_row_unset_preferred():
    for name, space, ptr in spaces():
        space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")
        touched(space, ptr, "gpu0", write=True)
        space.mem_advise(ptr, PAGE, "unset_preferred_location")
        if name == "kfd":
            assert attribute(space, ptr, "PREFERRED_LOC") == 0xFFFFFFFF
        else:
            assert attribute(space, ptr, "PREFERRED_LOCATION") == -2
        assert space.page(ptr).copies == ("gpu0",)


def test_row_accessed_by():
    expected = {"cuda": ("cpu",), "hip": ("cpu",), "acl": ("gpu1",)}
    for name, space, ptr in spaces(*expected):
        touched(space, ptr, "cpu", write=True)
        done = space.mem_advise(ptr, PAGE, "accessed_by", "gpu1")
        assert done.bytes_migrated == 0
        assert touched(space, ptr, "gpu1") == expected[name]
    _, space, ptr = next(spaces("acl-driver"))
    space.mem_advise(ptr, PAGE, "preferred_location", "gpu1")
    assert kinds(space.mem_advise(ptr, PAGE, "accessed_by", "gpu1")) == ["alloc"]
    _, space, ptr = next(spaces("kfd"))
    space.mem_advise(ptr, PAGE, "access_in_place", "gpu1")
    assert space.space.ranges()[0].access_in_place == ("gpu1",)


def test_row_unset_accessed_by():
    for name, space, ptr in spaces("cuda", "hip", "acl"):
        for word in ("accessed_by", "unset_accessed_by"):
            space.mem_advise(ptr, PAGE, word, "gpu1")
        assert attribute(space, ptr, "ACCESSED_BY") == [-2]
        if name == "hip":
            assert "gpu1" in space.space.ranges()[0].access
    _, space, ptr = next(spaces("kfd"))
    space.mem_advise(ptr, PAGE, "access_in_place", "gpu1")
    space.mem_advise(ptr, PAGE, "unset_access_in_place", "gpu1")
    assert space.space.ranges()[0].access_in_place == ()


def test_row_coarse_grain():
    for name, space, ptr in spaces():
        if name in ("cuda", "acl"):
            with pytest.raises(ManagedError):
                space.mem_advise(ptr, PAGE, "coarse_grain")
        else:
            space.mem_advise(ptr, PAGE, "coarse_grain")
            assert not space.space.ranges()[0].flags & 0x2


def test_row_overlap_of_advice():
    # CUDA: read mostly over preferred over accessed-by.
    _, space, ptr = next(spaces("cuda"))
    touched(space, ptr, "cpu", write=True)
    space.mem_advise(ptr, PAGE, "accessed_by", "gpu0")
    space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")
    assert space.page(ptr).mapped == ("cpu",)
    space.mem_advise(ptr, PAGE, "read_mostly")
    assert touched(space, ptr, "gpu0") == ("cpu", "gpu0")
    # ACL: read mostly changes how a preferred location applies.
    _, space, ptr = next(spaces("acl"))
    touched(space, ptr, "cpu", write=True)
    space.mem_advise(ptr, PAGE, "read_mostly")
    assert kinds(space.mem_advise(ptr, PAGE, "preferred_location", "gpu0")) == ["duplicate"]
    # HIP: flags do not know each other.
    _, space, ptr = next(spaces("hip"))
    touched(space, ptr, "cpu", write=True)
    space.mem_advise(ptr, PAGE, "read_mostly")
    space.mem_advise(ptr, PAGE, "preferred_location", "cpu")
    assert touched(space, ptr, "gpu0") == ("cpu",)


def test_row_granule():
    assert {name: space.granule for name, space, _ in spaces()} == {
        "cuda": 4096,
        "hip": 4096,
        "acl": 2 << 20,
        "kfd": 4096,
    }
    assert memory("cuda", page_size=65536).granule == 65536
    for name, faults in (("cuda", 512), ("acl", 1), ("hip", 2)):
        space = memory(name, **({"granularity": 8} if name == "hip" else {}))
        assert space.access(space.alloc(PAGE), PAGE, by="gpu0").faults == faults


def test_row_partial_failure():
    for name, changed in (("acl", True), ("acl-driver", True), ("cuda", False), ("hip", False)):
        space = memory(name)
        ptr = space.alloc(PAGE)
        with pytest.raises(ManagedError):
            space.mem_advise(ptr, 2 * PAGE, "read_mostly")
        assert space.is_read_mostly(ptr, PAGE) is changed


def test_row_merge_of_equal_neighbours():
    for name, count in (("cuda", 3), ("acl", 1)):
        space = memory(name)
        ptr = space.alloc(3 * PAGE)
        for word in ("accessed_by", "unset_accessed_by"):
            space.mem_advise(ptr + PAGE, PAGE, word, "gpu0")
        assert len(space.ranges()) == count
    space = memory("kfd")
    ptr = space.alloc(3 * PAGE)
    for value in (5, 9):
        space.mem_advise(ptr, 3 * PAGE, "granularity", value=9)
        space.mem_advise(ptr + PAGE, PAGE, "granularity", value=value)
    assert len(space.space.ranges()) == 3


def test_row_enum_base():
    assert [min(e) for e in (CudaMemAdvise, HipMemoryAdvise, AclMemManagedAdviseType)] == [1, 1, 0]
    assert max(HipMemoryAdvise) == 101
    assert min(Attribute) == 0


def test_row_attribute_numbers_4_to_6():
    def names(enum):
        return [member.name for member in enum if 4 <= member <= 6]

    assert names(CudaMemRangeAttribute) == [
        "LAST_PREFETCH_LOCATION",
        "PREFERRED_LOCATION_TYPE",
        "PREFERRED_LOCATION_ID",
    ]
    assert names(HipMemRangeAttribute) == ["LAST_PREFETCH_LOCATION"]
    assert names(AclMemManagedRangeAttribute) == [
        "PREFERRED_LOCATION_TYPE",
        "PREFERRED_LOCATION_ID",
        "LAST_PREFETCH_LOCATION",
    ]


def test_row_nobody_or_mixed():
    for name, space, ptr in spaces():
        word = "PREFERRED_LOC" if name == "kfd" else "PREFERRED_LOCATION"
        nobody = 0xFFFFFFFF if name == "kfd" else -2
        assert attribute(space, ptr, word) == nobody
        if name != "acl":
            if name == "kfd":  # only ranges count there, holes do not
                space.mem_advise(ptr, PAGE, "granularity", value=8)
            space.mem_advise(ptr, 4096, "preferred_location", "gpu0")
            assert attribute(space, ptr, word) == nobody
