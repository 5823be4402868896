"""Bad input: each vendor's own result, the rule in the error, and the state as it was."""

import pickle

import pytest

from managed_kit import PAGE, machine, memory
from svmcore.errors import InvalidArgumentError, SvmError
from svmcore.managed import (
    AclMemManagedAdviseType,
    AclMemory,
    CudaMemAdvise,
    CudaMemLocationType,
    CudaMemRangeAttribute,
    HipMemoryAdvise,
    Location,
    ManagedError,
    ManagedMemoryError,
    ManagedSupportError,
    convert,
    managed_memory,
    vendor_name,
)

VENDORS = ("acl", "acl-driver", "cuda", "hip")
VALUE = {
    "acl": "ACL_ERROR_RT_PARAM_INVALID",
    "acl-driver": "ACL_ERROR_RT_PARAM_INVALID",
    "cuda": "CUDA_ERROR_INVALID_VALUE",
    "hip": "hipErrorInvalidValue",
}
DRIVER = "ACL_ERROR_RT_DRV_INTERNAL_ERROR"
DEVICE = {**VALUE, "cuda": "CUDA_ERROR_INVALID_DEVICE", "hip": "hipErrorInvalidDevice"}
SPAN = {**VALUE, "acl": DRIVER, "acl-driver": DRIVER}


def snapshot(space):
    """Everything that a caller can see."""
    pages = [
        space.page(addr)
        for start, size in space.allocations()
        for addr in (start, start + size - 1)
    ]
    return space.allocations(), pages, space.counters()


def refused(space, name, call, *, rule=""):
    before = snapshot(space)
    with pytest.raises(ManagedError) as caught:
        call()
    error = caught.value
    assert error.result.name == name
    assert name in str(error)
    assert str(int(error.result)) in str(error)
    assert error.rule
    assert error.rule in str(error)
    assert "expected" in str(error)
    assert rule in ("", error.rule)
    assert isinstance(error, SvmError)
    assert error.code in str(error)
    assert snapshot(space) == before


@pytest.fixture(params=VENDORS)
def name(request):
    return request.param


@pytest.fixture
def space(name):
    return memory(name)


@pytest.fixture
def ptr(space):
    return space.alloc(PAGE)


def calls(space, addr, size):
    """Every call that takes a span."""
    yield lambda: space.mem_advise(addr, size, "read_mostly")
    yield lambda: space.mem_prefetch(addr, size, "gpu0")
    yield lambda: space.mem_prefetch_batch([addr], [size], ["gpu0"], [0])
    yield lambda: space.mem_range_get_attribute("READ_MOSTLY", addr, size)
    yield lambda: space.access(addr, size, by="gpu0")


def test_null(space, name, ptr):
    for call in calls(space, 0, PAGE):
        refused(space, VALUE[name], call)


@pytest.mark.parametrize("size", [0, -1])
def test_zero_size(space, name, ptr, size):
    for call in calls(space, ptr, size):
        refused(space, VALUE[name], call)


def test_foreign(space, name, ptr):
    for addr in (1 << 20, ptr + 64 * PAGE):
        for call in calls(space, addr, PAGE):
            refused(space, SPAN[name], call)


def test_beyond_the_allocation(name):
    for number in range(5):
        space = memory(name)
        ptr = space.alloc(PAGE)
        call = list(calls(space, ptr, PAGE + 1))[number]
        if name.startswith("acl") and number != 3:
            # Page by page: what comes before the end is done.
            with pytest.raises(ManagedError) as caught:
                call()
            assert caught.value.result.name == DRIVER
            if number == 0:
                assert space.is_read_mostly(ptr, PAGE)
        else:
            refused(space, SPAN[name], call)


@pytest.mark.parametrize("advice", [-1, 7, 99, 50, "SET_READ_OFTEN", "no_access", "granularity"])
def test_unknown_advice(space, name, ptr, advice):
    refused(space, VALUE[name], lambda: space.mem_advise(ptr, PAGE, advice, "gpu0"), rule="enum")


def test_unknown_advice_lists_the_words(space, ptr):
    with pytest.raises(ManagedError, match=r"\[unset_\]read_mostly, \[unset_\]acc"):
        space.mem_advise(ptr, PAGE, "SET_READ_MOSTLY")


def test_a_cuda_number_given_to_acl():
    space = memory("acl")
    ptr = space.alloc(PAGE)
    # 6 is UNSET_ACCESSED_BY in CUDA; 1 to 5 are other advice in ACL.
    refused(space, VALUE["acl"], lambda: space.mem_advise(ptr, PAGE, 6, "gpu0"))
    for member in CudaMemAdvise:
        refused(space, VALUE["acl"], lambda m=member: space.mem_advise(ptr, PAGE, m, "gpu0"))
    space.mem_advise(ptr, PAGE, convert(CudaMemAdvise.SET_READ_MOSTLY, "acl"))
    assert space.is_read_mostly(ptr, PAGE)


def test_an_enumerator_of_another_vendor(space, name, ptr):
    others = {"cuda": HipMemoryAdvise, "hip": CudaMemAdvise}
    other = others.get(name, CudaMemAdvise).SET_READ_MOSTLY
    with pytest.raises(ManagedError, match="convert"):
        space.mem_advise(ptr, PAGE, other)
    with pytest.raises(ManagedError):
        space.mem_range_get_attribute(CudaMemLocationType.HOST, ptr, PAGE)


@pytest.mark.parametrize("device", [3, 64, -3])
@pytest.mark.parametrize("word", ["preferred_location", "accessed_by", "unset_accessed_by"])
def test_unknown_device(space, name, ptr, device, word):
    refused(space, DEVICE[name], lambda: space.mem_advise(ptr, PAGE, word, device))


def test_unknown_device_of_a_prefetch(space, name, ptr):
    refused(space, DEVICE[name], lambda: space.mem_prefetch(ptr, PAGE, "gpu3"))
    refused(space, DEVICE[name], lambda: space.access(ptr, by="gpu3"))


def test_unknown_node_and_type(space, name, ptr):
    for place in (Location.host_numa(1), Location(5, 0), Location(-1, 0)):
        refused(
            space, VALUE[name], lambda p=place: space.mem_advise(ptr, PAGE, "preferred_location", p)
        )
        refused(space, VALUE[name], lambda p=place: space.mem_prefetch(ptr, PAGE, p))


@pytest.mark.parametrize(
    ("attribute", "size"),
    [
        ("READ_MOSTLY", 8),
        ("READ_MOSTLY", 1),
        ("PREFERRED_LOCATION", 0),
        ("LAST_PREFETCH_LOCATION", -4),
        ("ACCESSED_BY", 0),
        ("ACCESSED_BY", 6),
    ],
)
def test_data_size(space, name, ptr, attribute, size):
    refused(
        space,
        VALUE[name],
        lambda: space.mem_range_get_attribute(attribute, ptr, PAGE, size),
        rule="data size",
    )


@pytest.mark.parametrize("attribute", [0, 9, -1, "READ_OFTEN", 77])
def test_unknown_attribute(space, name, ptr, attribute):
    refused(space, VALUE[name], lambda: space.mem_range_get_attribute(attribute, ptr, PAGE))


def test_attribute_lists(space, name, ptr):
    for names, sizes in (([], []), ([1], [4, 4]), ([1, 2], [4])):
        refused(
            space,
            VALUE[name],
            lambda n=names, s=sizes: space.mem_range_get_attributes(n, ptr, PAGE, s),
        )


@pytest.mark.parametrize(
    ("places", "indices"),
    [
        (["gpu0"], [1]),
        (["gpu0", "cpu"], [0, 0]),
        (["gpu0", "cpu"], [1, 0]),
        (["gpu0", "cpu"], [0, 2]),
        (["gpu0", "cpu", "gpu1"], [0, 1, 2]),
        (["gpu0"], [0, 1]),
        ([], []),
        (["gpu0"], [-1]),
    ],
)
def test_batch_indices(space, name, ptr, places, indices):
    refused(
        space,
        VALUE[name],
        lambda: space.mem_prefetch_batch([ptr, ptr], [PAGE, PAGE], places, indices),
        rule="C13",
    )


def test_batch_lengths_and_flags(space, name, ptr):
    for ptrs, sizes in (([], []), ([ptr], []), ([ptr], [PAGE, PAGE])):
        refused(
            space,
            VALUE[name],
            lambda p=ptrs, s=sizes: space.mem_prefetch_batch(p, s, ["gpu0"], [0]),
        )
    flags = "ACL_ERROR_RT_FEATURE_NOT_SUPPORT" if name.startswith("acl") else VALUE[name]
    refused(space, flags, lambda: space.mem_prefetch_batch([ptr], [PAGE], ["gpu0"], [0], 1))
    refused(space, flags, lambda: space.mem_prefetch(ptr, PAGE, "gpu0", 1))


@pytest.mark.parametrize(
    "batch",
    [
        lambda m, p: m.mem_prefetch_batch(p, [4096], ["gpu0"], [0]),
        lambda m, p: m.mem_prefetch_batch([p], 4096, ["gpu0"], [0]),
        lambda m, p: m.mem_prefetch_batch([p], [4096], "gpu0", [0]),
        lambda m, p: m.mem_prefetch_batch([p], [4096], ["gpu0"], None),
        lambda m, p: m.mem_range_get_attributes("READ_MOSTLY", p, 4096),
        lambda m, p: m.mem_range_get_attributes(1, p, 4096),
    ],
)
def test_one_value_where_several_are_meant(space, ptr, batch):
    with pytest.raises(InvalidArgumentError, match=r"^[a-z_]+ .*: expected a list$"):
        batch(space, ptr)


def test_acl_batch_runs_in_order_and_keeps_what_is_done():
    space = memory("acl-driver")
    ptr = space.alloc(2 * PAGE)
    space.access(ptr, 2 * PAGE, by="cpu", write=True)
    with pytest.raises(ManagedError):
        space.mem_prefetch_batch(
            [ptr, ptr + 8 * PAGE, ptr + PAGE], [PAGE] * 3, ["gpu0", "gpu1"], [0, 2]
        )
    assert [space.page(ptr + i * PAGE).copies for i in (0, 1)] == [("gpu0",), ("cpu",)]


def test_acl_batch_caps():
    space = memory("acl")
    ptr = space.alloc(PAGE)
    with pytest.raises(ManagedError, match="4096 and 64"):
        space.mem_prefetch_batch([ptr] * 4097, [PAGE] * 4097, ["gpu0"], [0])
    with pytest.raises(ManagedError, match="4096 and 64"):
        space.mem_prefetch_batch([ptr] * 65, [PAGE] * 65, ["gpu0"] * 65, list(range(65)))
    assert len(space.mem_prefetch_batch([ptr] * 64, [PAGE] * 64, ["gpu0"] * 64, range(64))) == 64


# ---- allocations -----------------------------


@pytest.mark.parametrize("size", [0, -5])
def test_alloc_of_nothing(space, name, size):
    refused(space, VALUE[name], lambda: space.alloc(size))


@pytest.mark.parametrize("flags", [0, 2, 3, 4])
def test_alloc_flags(space, name, flags):
    if flags == 2 and name in ("cuda", "hip"):
        assert space.alloc(PAGE, flags)
        return
    result = "ACL_ERROR_INVALID_PARAM" if name.startswith("acl") else VALUE[name]
    refused(space, result, lambda: space.alloc(PAGE, flags))


def test_acl_window():
    space = AclMemory("acl", machine())
    assert space.alloc(1) == 0x90000000000
    with pytest.raises(ManagedMemoryError) as caught:
        space.alloc(3 << 40)
    assert int(caught.value.result) == 207001
    ptr = space.alloc((3 << 40) - PAGE)
    with pytest.raises(ManagedError) as caught:
        space.mem_advise(0x80000000000, PAGE, 0)
    assert caught.value.code == "EFAULT"
    with pytest.raises(ManagedError) as caught:
        space.mem_advise(ptr, 3 << 40, 0)
    assert caught.value.code == "EFAULT"
    with pytest.raises(ManagedError) as caught:
        memory("acl").mem_advise(0x90000000000, PAGE, 0)
    assert caught.value.code == "EADDRNOTAVAIL"


def test_acl_window_is_used_again():
    space = memory("acl")
    for _ in range(5):
        space.free(space.alloc(1 << 40))


def test_free(space, name, ptr):
    refused(space, VALUE[name], lambda: space.free(ptr + 1))
    space.free(ptr)
    refused(space, VALUE[name], lambda: space.free(ptr))


def test_adopt(space):
    base = 0x7000_0000_0000
    space.adopt(base + 5, 4096)
    assert space.access(base, by="gpu0").faults == 1
    for addr, size in (
        (base, 1),
        (base + 4096, 1),
        (base - 1, 10),
        (0, 0),
        (-1, 5),
        ((1 << 64) - 1, 5),
    ):
        before = snapshot(space)
        with pytest.raises(InvalidArgumentError):
            space.adopt(addr, size)
        assert snapshot(space) == before


# ---- capabilities -----------------------------


@pytest.mark.parametrize(
    ("name", "number"), [("acl", 207000), ("acl-driver", 207000), ("cuda", 801), ("kfd", 95)]
)
def test_without_support_every_call_is_refused(name, number):
    space = memory(name, supported=False)
    word = "PREFERRED_LOC" if name == "kfd" else "READ_MOSTLY"
    for call in (
        lambda: space.alloc(PAGE),
        lambda: space.mem_advise(PAGE, PAGE, "read_mostly"),
        lambda: space.mem_prefetch(PAGE, PAGE, "gpu0"),
        lambda: space.mem_prefetch_batch([PAGE], [PAGE], ["gpu0"], [0]),
        lambda: space.mem_discard_batch([PAGE], [PAGE]),
        lambda: space.mem_range_get_attribute(word, PAGE, PAGE),
        lambda: space.mem_get_location_info(PAGE, PAGE, PAGE),
    ):
        with pytest.raises(ManagedSupportError) as caught:
            call()
        assert int(caught.value.result) == number


def test_a_device_too_small_for_a_page():
    space = memory("acl", vram_mib=1)
    ptr = space.alloc(PAGE)
    refused(
        space, "ACL_ERROR_RT_MEMORY_ALLOCATION", lambda: space.access(ptr, by="gpu0", write=True)
    )


@pytest.mark.parametrize(
    ("semantics", "options"),
    [
        ("metal", {}),
        ("cuda", {"nodes": 0}),
        ("cuda", {"nodes": 2, "current_node": 2}),
        ("cuda", {"page_size": 8192}),
        ("acl", {"page_size": 4096}),
        ("hip", {"kernel": "1.0"}),
        ("acl", {"strict": True}),
        ("cuda", {"not_concurrent": 5}),
        ("cuda", {"not_concurrent": [3]}),
        ("hip", {"hmm_flags": 8}),
        ("hip", {"hmm_flags": "all"}),
        ("hip", {"read_mostly": "maybe"}),
        (["acl"], {}),
    ],
)
def test_options(semantics, options):
    with pytest.raises(InvalidArgumentError):
        managed_memory(semantics, machine(), **options)


@pytest.mark.parametrize("value", [1.5, "4096", None])
def test_addresses_are_whole_numbers(space, ptr, value):
    with pytest.raises(InvalidArgumentError, match="whole number"):
        space.mem_advise(value, PAGE, "read_mostly")
    with pytest.raises(InvalidArgumentError, match="whole number"):
        space.access(ptr, value)


# ---- names -----------------------------


def test_conversion_goes_by_name():
    for member in AclMemManagedAdviseType:
        for vendor in ("cuda", "hip"):
            other = convert(member, vendor)
            assert (other.name, int(other)) == (member.name, int(member) + 1)
            assert convert(other, "acl") is member
    assert int(convert(CudaMemRangeAttribute.LAST_PREFETCH_LOCATION, "acl")) == 6
    assert convert(CudaMemLocationType.HOST, "acl").name == "HOST"


@pytest.mark.parametrize(
    ("member", "vendor"),
    [
        (HipMemoryAdvise.SET_COARSE_GRAIN, "cuda"),
        (CudaMemRangeAttribute.PREFERRED_LOCATION_ID, "hip"),
        (CudaMemLocationType.INVISIBLE, "acl"),
        (CudaMemAdvise.SET_READ_MOSTLY, "sycl"),
        (3, "cuda"),
    ],
)
def test_conversion_refuses(member, vendor):
    with pytest.raises(InvalidArgumentError):
        convert(member, vendor)


def test_vendor_names():
    assert [
        vendor_name(m)
        for m in (
            CudaMemAdvise.SET_ACCESSED_BY,
            HipMemoryAdvise.UNSET_COARSE_GRAIN,
            AclMemManagedAdviseType.UNSET_READ_MOSTLY,
        )
    ] == [
        "CU_MEM_ADVISE_SET_ACCESSED_BY",
        "hipMemAdviseUnsetCoarseGrain",
        "ACL_MEM_ADVISE_UNSET_READ_MOSTLY",
    ]


@pytest.mark.parametrize(
    "word", ["gpu", "gpu-1", "tpu0", "1", "nodeX", 1.5, "gpu²", (1, None), ("a", 0), (1, 2, 3), []]
)
def test_locations_of_no_form(space, ptr, word):
    with pytest.raises(InvalidArgumentError, match="location"):
        space.mem_prefetch(ptr, PAGE, word)


def test_results_survive_pickling(space, ptr):
    view = space.page(ptr)
    assert pickle.loads(pickle.dumps(view)) == view
