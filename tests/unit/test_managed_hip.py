"""HIP through KFD attributes: the rows of A5, hip-tests' rules, and cases of users."""

import itertools

import pytest

from managed_kit import memory, query
from svmcore.attributes import Attribute, Flag
from svmcore.engine import Space
from svmcore.errors import InvalidArgumentError, SvmError
from svmcore.managed import (
    HipCoherencyMode,
    HipMemory,
    HipMemoryAdvise,
    HmmFlag,
    HostRegistration,
    HsaAttribute,
    KfdMemory,
    Location,
    ManagedAddressError,
    ManagedArgumentError,
    ManagedError,
)

Advise = HipMemoryAdvise
KIB4 = 4096


@pytest.fixture
def hip():
    return memory("hip")


@pytest.fixture
def page(hip):
    return hip.alloc(KIB4)


@pytest.fixture
def kfd():
    return memory("kfd")


class Recorder:
    """A space that notes which attributes it is given."""

    def __init__(self, space):
        self.space, self.given, self.real = space, [], space.set_attr
        space.set_attr = self.note

    def note(self, addr, size, attrs, *rest):
        self.given.append(list(attrs))
        return self.real(addr, size, attrs, *rest)


def given(space, *call):
    """Attributes that one call of ``mem_advise`` or ``mem_prefetch`` sets."""
    recorder = Recorder(space.space)
    ptr = space.alloc(KIB4)
    recorder.given.clear()
    getattr(space, call[0])(ptr, KIB4, *call[1:])
    ((pair,),) = recorder.given
    return pair


# ---- A5: HIP advice as KFD attributes -----------------------------

GPU1 = 101  # id of the second device


@pytest.mark.parametrize(
    ("advice", "device", "attribute", "value"),
    [
        (Advise.SET_READ_MOSTLY, 1, Attribute.SET_FLAGS, 0x20),
        (Advise.UNSET_READ_MOSTLY, 1, Attribute.CLR_FLAGS, 0x20),
        (Advise.SET_PREFERRED_LOCATION, 1, Attribute.PREFERRED_LOC, GPU1),
        (Advise.SET_PREFERRED_LOCATION, -1, Attribute.PREFERRED_LOC, 0),
        (Advise.UNSET_PREFERRED_LOCATION, 1, Attribute.PREFERRED_LOC, 0xFFFFFFFF),
        (Advise.SET_ACCESSED_BY, 1, Attribute.ACCESS_IN_PLACE, GPU1),
        (Advise.SET_ACCESSED_BY, -1, Attribute.SET_FLAGS, 0x1),
        (Advise.UNSET_ACCESSED_BY, 1, Attribute.ACCESS, GPU1),
        (Advise.UNSET_ACCESSED_BY, -1, Attribute.ACCESS, 100),  # lands on the first GPU
        (Advise.SET_COARSE_GRAIN, 0, Attribute.CLR_FLAGS, 0x2),
        (Advise.UNSET_COARSE_GRAIN, 0, Attribute.SET_FLAGS, 0x2),
    ],
)
def test_a5_advice_row(hip, advice, device, attribute, value):
    assert given(hip, "mem_advise", advice, device) == (attribute, value)


@pytest.mark.parametrize(("device", "value"), [(1, GPU1), (-1, 0)])
def test_a5_prefetch_row(hip, device, value):
    assert given(hip, "mem_prefetch", device) == (Attribute.PREFETCH_LOC, value)


def test_a5_flag_sends_every_prefetch_to_the_cpu():
    space = memory("hip", hmm_flags=HmmFlag.PREFETCH_TO_CPU)
    assert given(space, "mem_prefetch", 1) == (Attribute.PREFETCH_LOC, 0)


def test_a5_alloc_row():
    for flags, moved in ((0, 0), (HmmFlag.PREFETCH_AT_ALLOC, KIB4)):
        # A device that another one with access cannot reach would not be prefetched to.
        space = memory("hip", hive=1, hmm_flags=flags, xnack="off")
        recorder = Recorder(space.space)
        space.alloc(KIB4)
        assert recorder.given[0] == [(Attribute.ACCESS, 100 + i) for i in range(3)]
        assert space.counters()["bytes_migrated"] == moved


def test_a5_numbers():
    assert [int(a) for a in HsaAttribute] == [*range(8), 0x200, 0x201, 0x202, 0x203]
    assert (Advise.SET_COARSE_GRAIN, Advise.UNSET_COARSE_GRAIN) == (100, 101)
    assert [int(m) for m in HipCoherencyMode] == [0, 1, 2]


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        (HsaAttribute.GLOBAL_FLAG, 1, (Attribute.CLR_FLAGS, 0x2)),
        (HsaAttribute.GLOBAL_FLAG, 0, (Attribute.SET_FLAGS, 0x2)),
        (HsaAttribute.READ_ONLY, True, (Attribute.SET_FLAGS, 0x8)),
        (HsaAttribute.HIVE_LOCAL, True, (Attribute.SET_FLAGS, 0x4)),
        (HsaAttribute.HIVE_LOCAL, False, (Attribute.CLR_FLAGS, 0x4)),
        (HsaAttribute.GPU_EXEC, True, (Attribute.SET_FLAGS, 0x10)),
        (HsaAttribute.READ_MOSTLY, True, (Attribute.SET_FLAGS, 0x20)),
        (HsaAttribute.MIGRATION_GRANULARITY, 5, (Attribute.GRANULARITY, 5)),
        (HsaAttribute.MIGRATION_GRANULARITY, 40, (Attribute.GRANULARITY, 18)),
        (HsaAttribute.PREFERRED_LOCATION, "gpu1", (Attribute.PREFERRED_LOC, GPU1)),
        (HsaAttribute.PREFERRED_LOCATION, "cpu", (Attribute.PREFERRED_LOC, 0)),
        (HsaAttribute.PREFERRED_LOCATION, None, (Attribute.PREFERRED_LOC, 0xFFFFFFFF)),
        (HsaAttribute.AGENT_ACCESSIBLE, 1, (Attribute.ACCESS, GPU1)),
        (HsaAttribute.AGENT_ACCESSIBLE_IN_PLACE, 1, (Attribute.ACCESS_IN_PLACE, GPU1)),
        (HsaAttribute.AGENT_NO_ACCESS, 1, (Attribute.NO_ACCESS, GPU1)),
        (HsaAttribute.AGENT_ACCESSIBLE, "cpu", (Attribute.SET_FLAGS, 0x1)),
        (HsaAttribute.AGENT_NO_ACCESS, "cpu", (Attribute.CLR_FLAGS, 0x1)),
    ],
)
def test_a5_hsa_row(hip, attribute, value, expected):
    assert given(hip, "svm_attributes_set", [(attribute, value)]) == expected


def test_a5_flags_are_cleared_before_they_are_set(hip):
    recorder = Recorder(hip.space)
    ptr = hip.alloc(KIB4)
    attributes = [
        (HsaAttribute.READ_MOSTLY, True),
        (HsaAttribute.GLOBAL_FLAG, 1),
        (HsaAttribute.MIGRATION_GRANULARITY, 3),
    ]
    hip.svm_attributes_set(ptr + 5, 10, attributes)
    assert recorder.given[-1] == [
        (Attribute.GRANULARITY, 3),
        (Attribute.CLR_FLAGS, 0x2),
        (Attribute.SET_FLAGS, 0x20),
    ]
    assert hip.space.ranges()[0].flags == Flag.HOST_ACCESS | Flag.GPU_READ_MOSTLY


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ([(0, 1), (0, 1)], "INCOMPATIBLE_ARGUMENTS"),
        ([(0x200, 1), (0x202, 1)], "INCOMPATIBLE_ARGUMENTS"),
        ([(0x200, "cpu"), (0x201, -1)], "INCOMPATIBLE_ARGUMENTS"),
        ([(0x203, 1)], "INVALID_ARGUMENT"),
        ([(5, 1)], "INVALID_ARGUMENT"),
        ([(8, 1)], "INVALID_ARGUMENT"),
        ([(0, 2)], "INVALID_ARGUMENT"),
        ([(3, -1)], "INVALID_ARGUMENT"),
        ([(4, "gpu3")], "INVALID_ARGUMENT"),
        ([(0x200, None)], "INVALID_ARGUMENT"),
    ],
)
def test_a5_refused_attributes(hip, page, attributes, name):
    before = hip.space.ranges()
    with pytest.raises(ManagedError) as caught:
        hip.svm_attributes_set(page, KIB4, attributes)
    assert caught.value.result.name == f"HSA_STATUS_ERROR_{name}"
    assert hip.space.ranges() == before


def test_a5_two_agents_have_access_of_their_own(hip, page):
    hip.svm_attributes_set(page, KIB4, [(0x201, 0), (0x202, 1), (0x200, 2)])
    (info,) = hip.space.ranges()
    assert (info.access, info.access_in_place) == (("gpu2",), ("gpu0",))


def test_a5_host_access_that_is_set_wins(hip):
    nodes = [(HsaAttribute.AGENT_NO_ACCESS, "node0"), (HsaAttribute.AGENT_ACCESSIBLE, "node1")]
    for attributes in (nodes, nodes[::-1]):
        assert given(hip, "svm_attributes_set", attributes) == (Attribute.SET_FLAGS, 0x1)


def test_a5_over_length_is_of_the_bytes_asked_for(hip):
    ptr = hip.alloc(100)
    assert hip.mem_advise(ptr, 100, Advise.SET_READ_MOSTLY).pages == 1
    with pytest.raises(ManagedArgumentError):
        hip.mem_advise(ptr, 101, Advise.SET_READ_MOSTLY)
    hip.free(ptr)


def test_a5_read_mostly_is_stored_and_has_no_effect():
    counts = []
    for advised in (False, True):
        space = memory("hip")
        ptr = space.alloc(2 << 20)
        if advised:
            space.mem_advise(ptr, 2 << 20, Advise.SET_READ_MOSTLY)
            assert query(space, ptr, "READ_MOSTLY", 2 << 20) == 1
        for who in ("cpu", 0, 1, "cpu", 0):
            space.access(ptr, 2 << 20, by=who)
        counts.append(space.counters())
    assert counts[0] == counts[1]
    assert counts[0]["bytes_migrated"] > 0


def test_a5_read_mostly_as_documented_makes_writes_fault():
    space = memory("hip", read_mostly="documented")
    ptr = space.alloc(2 * KIB4)
    space.mem_advise(ptr, 2 * KIB4, Advise.SET_READ_MOSTLY)
    space.access(ptr, 2 * KIB4, by=0)
    assert space.page(ptr).mapped == ("gpu0",)
    assert space.page(ptr).writable == ()
    write = space.access(ptr, KIB4, by=0, write=True)
    assert write.faults >= 1
    assert space.access(ptr, KIB4, by=0, write=True).hit
    assert space.page(ptr).writable == ("gpu0",)
    assert space.page(ptr + KIB4).writable == ()
    assert query(space, ptr, "READ_MOSTLY", 2 * KIB4) == 1
    space.mem_advise(ptr, 2 * KIB4, Advise.UNSET_READ_MOSTLY)
    assert all(info.flags == Flag.HOST_ACCESS | Flag.COHERENT for info in space.space.ranges())


def test_a5_unset_accessed_by_makes_pages_migrate_again(hip):
    ptr = hip.alloc(2 << 20)
    hip.access(ptr, 2 << 20, by="cpu", write=True)
    hip.mem_advise(ptr, 2 << 20, Advise.SET_ACCESSED_BY, 0)
    hip.access(ptr, 2 << 20, by=0)
    assert hip.page(ptr).copies == ("cpu",)
    hip.mem_advise(ptr, 2 << 20, Advise.UNSET_ACCESSED_BY, 0)
    assert query(hip, ptr, "ACCESSED_BY") == [-2]
    hip.space.invalidate(ptr, 2 << 20)
    hip.space.step(hip.space.now_ns + 10_000_000)
    hip.access(ptr, 2 << 20, by=0)
    assert hip.page(ptr).copies == ("gpu0",)


def test_a5_rounding_to_4096(hip):
    ptr = hip.alloc(3 * KIB4)
    assert hip.mem_advise(ptr + KIB4 - 1, 2, Advise.SET_READ_MOSTLY).pages == 2
    assert [query(hip, ptr + i * KIB4, "READ_MOSTLY") for i in range(3)] == [1, 1, 0]


def test_a5_coherency_is_one_or_indeterminate(hip):
    ptr = hip.alloc(2 * KIB4)
    hip.mem_advise(ptr, KIB4, Advise.SET_COARSE_GRAIN)
    name = "COHERENCY_MODE"
    answers = [query(hip, ptr, name), query(hip, ptr + KIB4, name), query(hip, ptr, name, 2 * KIB4)]
    assert answers == [1, 0, 2]


def test_a5_thunk_refuses_the_cpu_in_access_and_misalignment(kfd):
    ptr = kfd.alloc(2 * KIB4)
    for word in ("access_in_place", "accessed_by", "no_access"):
        with pytest.raises(ManagedArgumentError, match="A5"):
            kfd.mem_advise(ptr, KIB4, word, "cpu")
    for addr, size in ((ptr + 1, KIB4), (ptr, 100)):
        with pytest.raises(ManagedArgumentError, match="multiples of 4096"):
            kfd.mem_advise(addr, size, "read_mostly")


@pytest.mark.parametrize(
    ("word", "location", "value", "query_name", "answer"),
    [
        ("preferred_location", "gpu1", None, "PREFERRED_LOC", GPU1),
        ("preferred_location", "cpu", None, "PREFERRED_LOC", 0),
        ("unset_preferred_location", None, None, "PREFERRED_LOC", 0xFFFFFFFF),
        ("granularity", None, 5, "GRANULARITY", 5),
        ("read_mostly", None, None, "SET_FLAGS", 0x23),
        ("coarse_grain", None, None, "SET_FLAGS", 0x1),
        ("set_flags", None, 0x10, "SET_FLAGS", 0x13),
        ("prefetch", "gpu0", None, "PREFETCH_LOC", 100),
        ("access_in_place", "gpu2", None, "ACCESS_IN_PLACE", [2, -2]),
        ("no_access", "gpu0", None, "NO_ACCESS", [0, -2]),
        (Attribute.ACCESS, "gpu0", None, "ACCESS", [0, 1]),
        ("KFD_IOCTL_SVM_ATTR_GRANULARITY", None, 3, "GRANULARITY", 3),
        (7, None, 4, "GRANULARITY", 4),
    ],
)
def test_kfd_words_are_attributes(kfd, word, location, value, query_name, answer):
    ptr = kfd.alloc(KIB4)
    kfd.mem_advise(ptr, KIB4, word, location, value=value)
    size = 8 if isinstance(answer, list) else 4
    assert query(kfd, ptr, query_name, data_size=size) == answer


def test_kfd_refusals(kfd):
    ptr = kfd.alloc(KIB4)
    for word in (8, "read_often", "discard"):
        with pytest.raises(ManagedArgumentError):
            kfd.mem_advise(ptr, KIB4, word)
    with pytest.raises(ManagedArgumentError, match="expected a value"):
        kfd.mem_advise(ptr, KIB4, "granularity")
    with pytest.raises(ManagedArgumentError):
        kfd.mem_advise(ptr, KIB4, "preferred_location", "gpu7")
    with pytest.raises(ManagedError):
        query(kfd, ptr, "READ_MOSTLY")


# ---- hip-tests -----------------------------


def refused(call, name):
    with pytest.raises(ManagedError) as caught:
        call()
    assert caught.value.result.name == name


@pytest.mark.parametrize("advice", list(Advise))
def test_hip_tests_spans(hip, page, advice):
    for ptr, size in ((0, KIB4), (page, 0), (page, 2 * KIB4), (page + 8 * (2 << 20), KIB4)):
        refused(lambda p=ptr, n=size: hip.mem_advise(p, n, advice, 0), "hipErrorInvalidValue")


@pytest.mark.parametrize("advice", list(Advise))
@pytest.mark.parametrize("device", [3, 99, -2, -3])
def test_hip_tests_devices(hip, page, advice, device):
    free = ("SET_READ_MOSTLY", "UNSET_READ_MOSTLY", "SET_COARSE_GRAIN", "UNSET_COARSE_GRAIN")
    if advice.name in free or (advice == Advise.UNSET_PREFERRED_LOCATION and device == -2):
        hip.mem_advise(page, KIB4, advice, device)
    else:
        refused(lambda: hip.mem_advise(page, KIB4, advice, device), "hipErrorInvalidDevice")


def test_hip_tests_prefetch(hip, page):
    for ptr, size, name in (
        (0, KIB4, "hipErrorInvalidValue"),
        (page, 0, "hipErrorInvalidValue"),
        (page, 2 * KIB4, "hipErrorInvalidValue"),
    ):
        refused(lambda p=ptr, n=size: hip.mem_prefetch(p, n, 0), name)
    refused(lambda: hip.mem_prefetch(page, KIB4, 3), "hipErrorInvalidDevice")


@pytest.mark.parametrize(("name", "size"), [("READ_MOSTLY", 8), ("ACCESSED_BY", 10)])
def test_hip_tests_data_size(hip, page, name, size):
    for number in (size, 0, -4):
        refused(lambda n=number: query(hip, page, name, data_size=n), "hipErrorInvalidValue")


def test_hip_tests_partial_ranges(hip):
    ptr = hip.alloc(2 * KIB4)
    hip.mem_advise(ptr, KIB4, Advise.SET_READ_MOSTLY)
    hip.mem_advise(ptr, KIB4, Advise.SET_PREFERRED_LOCATION, 0)
    hip.mem_advise(ptr, KIB4, Advise.SET_ACCESSED_BY, 0)
    hip.mem_prefetch(ptr, KIB4, 0)
    both = 2 * KIB4
    answers = [
        query(hip, ptr, name, both)
        for name in ("READ_MOSTLY", "PREFERRED_LOCATION", "LAST_PREFETCH_LOCATION")
    ]
    assert answers == [0, -2, -2]
    assert query(hip, ptr, "ACCESSED_BY", both, 12) == [-2, -2, -2]


def test_hip_tests_unused_slots_at_the_end(hip, page):
    hip.mem_advise(page, KIB4, Advise.SET_ACCESSED_BY, 2)
    hip.mem_advise(page, KIB4, Advise.SET_ACCESSED_BY, 0)
    assert query(hip, page, "ACCESSED_BY", data_size=16) == [0, 2, -2, -2]


def test_hip_tests_non_managed_pointer():
    base = 0x6000_0000_0000
    space = memory("hip", hmm_flags=HmmFlag.MANAGED_ONLY)
    space.add_system_memory(base, KIB4)
    refused(lambda: space.mem_advise(base, KIB4, 1), "hipErrorInvalidValue")
    other = memory("hip")
    other.add_system_memory(base, KIB4)
    assert other.mem_advise(base, KIB4, 1).pages == 1
    refused(lambda: other.mem_advise(base + KIB4, KIB4, 1), "hipErrorInvalidValue")


def test_without_hmm_advice_warns_and_succeeds():
    space = memory("hip", supported=False)
    ptr = space.alloc(KIB4)
    done = space.mem_advise(ptr, KIB4, Advise.SET_READ_MOSTLY)
    assert done.status == 0
    assert done.warnings
    assert query(space, ptr, "READ_MOSTLY") == 0


def test_newer_hip_takes_locations(hip, page):
    hip.mem_advise(page, KIB4, Advise.SET_PREFERRED_LOCATION, Location.host_numa(0))
    assert query(hip, page, "PREFERRED_LOCATION") == -1
    bad = Location(9, 0)
    refused(
        lambda: hip.mem_advise(page, KIB4, Advise.SET_PREFERRED_LOCATION, bad),
        "hipErrorInvalidValue",
    )
    refused(
        lambda: hip.mem_prefetch_batch([page], [KIB4], [0], [0], stream=0), "hipErrorInvalidValue"
    )
    hip.mem_prefetch_batch([page], [KIB4], [0], [0])
    assert query(hip, page, "LAST_PREFETCH_LOCATION") == 0


def test_what_hip_has_not(hip, page):
    refused(lambda: hip.mem_discard_batch([page], [KIB4]), "hipErrorNotSupported")
    refused(lambda: hip.mem_get_location_info(page, KIB4, KIB4), "hipErrorNotSupported")


# ---- cases of users -----------------------------


@pytest.mark.parametrize(("grant", "grants"), [("on_use", 2), ("all", 8)])
def test_case_11_host_registration(grant, grants):
    space = memory("hip", devices=8, xnack="off")
    base, size = 0x6000_0000_0000, 16 * KIB4
    space.add_system_memory(base, size)
    registration = space.host_register(base, size, grant)
    registration.map(3)
    registration.map(5)
    registration.map(5)
    (info,) = space.space.ranges()
    allowed = {f"gpu{i}" for i in (3, 5)} if grant == "on_use" else {f"gpu{i}" for i in range(8)}
    assert set(info.mapped) == set(info.access_in_place) == allowed
    registration.release()
    registration.release()
    assert (registration.grants, registration.revokes) == (grants, grants)
    assert space.space.ranges()[0].mapped == ()


def test_case_11_bad_arguments(hip, page):
    with pytest.raises(InvalidArgumentError, match="on_use or all"):
        hip.host_register(page, KIB4, "some")
    registration = HostRegistration(hip.space, page, KIB4)
    with pytest.raises(SvmError):
        registration.map(17)
    assert registration.grants == 0


@pytest.mark.parametrize("semantics", ["hip", "cuda"])
def test_case_12_prefetch_to_the_second_node(semantics):
    space = memory(semantics, nodes=2)
    ptr = space.alloc(4 * KIB4)
    space.access(ptr, 4 * KIB4, by="gpu0", write=True)
    space.mem_prefetch(ptr, 4 * KIB4, Location.host_numa(1))
    view = space.page(ptr)
    assert view.last_prefetch == Location.host_numa(1)
    assert (view.copies, view.node) == (("cpu",), 1)
    assert space._where(ptr) == Location.host_numa(1)
    assert query(space, ptr, "LAST_PREFETCH_LOCATION", 4 * KIB4) == -1


def test_case_12_a_page_that_left_is_on_no_node():
    space = memory("hip", nodes=2)
    ptr = space.alloc(2 << 20)
    space.access(ptr, 2 << 20, by="cpu", write=True)
    space.mem_prefetch(ptr, 2 << 20, Location.host_numa(1))
    space.access(ptr, KIB4, by="gpu0")
    space.access(ptr, KIB4, by="cpu")
    assert space.page(ptr).node == 0
    assert space.page(ptr).last_prefetch == Location.host_numa(1)


@pytest.mark.parametrize("semantics", ["hip", "cuda", "acl"])
def test_case_13_accessed_by_reports_the_cpu(semantics):
    space = memory(semantics)
    granule = space.granule
    ptr = space.alloc(2 * granule)
    for who in ("cpu", "gpu0"):
        space.mem_advise(ptr, granule, "accessed_by", who)
    answer = query(space, ptr, "ACCESSED_BY", granule, 16)
    assert sorted(answer[:2]) == [-1, 0]
    assert answer[2:] == [-2, -2]
    assert query(space, ptr, "ACCESSED_BY", 2 * granule, 16) == [-2] * 4


@pytest.mark.parametrize("semantics", ["hip", "cuda", "acl", "acl-driver"])
def test_case_14_default_preferred_location(semantics):
    space = memory(semantics)
    ptr = space.alloc(KIB4)
    answers = [query(space, ptr, "PREFERRED_LOCATION")]
    space.mem_advise(ptr, KIB4, "preferred_location", "cpu")
    answers.append(query(space, ptr, "PREFERRED_LOCATION"))
    space.mem_advise(ptr, KIB4, "unset_preferred_location")
    answers.append(query(space, ptr, "PREFERRED_LOCATION"))
    assert answers == [-2, -1, -2]


@pytest.mark.parametrize("semantics", ["hip", "cuda"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_case_16_advice_does_not_prefetch_and_flags_do_not_disturb(semantics, order):
    space = memory(semantics)
    ptr = space.alloc(KIB4)
    calls = [("preferred_location", "gpu0"), ("read_mostly", None), ("accessed_by", "gpu0")]
    for number in order:
        word, where = calls[number]
        space.mem_advise(ptr, KIB4, word, where)

    def answers():
        return [
            query(space, ptr, "PREFERRED_LOCATION"),
            query(space, ptr, "READ_MOSTLY"),
            query(space, ptr, "ACCESSED_BY"),
        ]

    assert answers() == [0, 1, [0]]
    assert query(space, ptr, "LAST_PREFETCH_LOCATION") == -2
    assert space.counters()["bytes_migrated"] == 0
    for device in (0, 1, 2, -1):
        space.mem_prefetch(ptr, KIB4, device)
        assert query(space, ptr, "LAST_PREFETCH_LOCATION") == device
        assert answers() == [0, 1, [0]]


def test_case_17_coarse_grain(hip):
    size = 64 * KIB4
    ptr = hip.alloc(size)
    hip.access(ptr, size, by="cpu", write=True)
    assert query(hip, ptr, "COHERENCY_MODE", size) == HipCoherencyMode.FINE_GRAIN
    done = hip.mem_advise(ptr, size, Advise.SET_COARSE_GRAIN)
    assert query(hip, ptr, "COHERENCY_MODE", size) == HipCoherencyMode.COARSE_GRAIN
    assert all(Flag.COHERENT not in info.flags for info in hip.space.ranges())
    assert (done.bytes_migrated, hip.counters()["bytes_migrated"]) == (0, 0)


# ---- spaces -----------------------------


def test_a_space_of_ones_own():
    space = Space("gpu-80g", granularity=4)
    hip = HipMemory(space=space)
    ptr = hip.alloc(1 << 20)
    hip.access(ptr, 1 << 20, by=0)
    assert space.counters()["faults"] == 16
    with pytest.raises(InvalidArgumentError, match="one of them"):
        HipMemory(space=space, xnack="off")


def test_fatal_access_is_the_drivers_error():
    space = KfdMemory("gpu-80g", xnack="off")
    ptr = space.alloc(KIB4)
    with pytest.raises(SvmError, match="memory violation"):
        space.access(ptr, by=0)
    space.space.unmap(ptr, KIB4)
    with pytest.raises(ManagedAddressError):
        space.mem_advise(ptr, KIB4, "granularity", value=2)
