"""The adapter to the CUDA driver, against a module that records the calls; and the numbers."""

import enum
import sys
from types import SimpleNamespace

import pytest

from svmcore.errors import InvalidArgumentError, NotSupportedError
from svmcore.managed import (
    CudaMemAdvise,
    CudaMemLocationType,
    CudaMemory,
    CudaMemRangeAttribute,
    CudaResult,
    HipMemoryAdvise,
    Location,
    ManagedArgumentError,
    ManagedError,
    ManagedMemoryError,
    ManagedSupportError,
)
from svmcore.managed.cuda import CudaManagedBackend

PTR = 0x7F0000000000


class FakeDriver:
    """The functions of ``cuda.bindings.driver`` that the adapter uses; notes each call."""

    CUmem_advise = enum.IntEnum(
        "CUmem_advise", {f"CU_MEM_ADVISE_{m.name}": int(m) for m in CudaMemAdvise}
    )
    CUmem_range_attribute = enum.IntEnum(
        "CUmem_range_attribute",
        {f"CU_MEM_RANGE_ATTRIBUTE_{m.name}": int(m) for m in CudaMemRangeAttribute},
    )
    CUmemLocationType = enum.IntEnum(
        "CUmemLocationType", {f"CU_MEM_LOCATION_TYPE_{m.name}": int(m) for m in CudaMemLocationType}
    )
    CUmemLocation = SimpleNamespace

    def __init__(self, missing=()):
        self.calls, self.result, self.answer = [], 0, ()
        self.missing = missing

    class CUdeviceptr(int):
        """An address."""

    class CUstream(int):
        """A stream."""

    def __getattr__(self, name):
        if not name.startswith("cuMem") or name in self.missing:
            raise AttributeError(name)

        def function(*args):
            self.calls.append((name, *map(plain, args)))
            return (self.result, *self.answer)

        function.__name__ = name
        return function


def plain(value):
    if isinstance(value, SimpleNamespace):
        return (int(value.type), value.id) if vars(value) else "room"
    return [plain(v) for v in value] if isinstance(value, list) else int(value)


@pytest.fixture
def driver():
    return FakeDriver(missing={"cuMemAdvise_v2", "cuMemPrefetchAsync_v2"})


@pytest.fixture
def backend(driver):
    return CudaManagedBackend(driver)


def test_memory(driver, backend):
    driver.answer = (PTR,)
    assert backend.alloc(1 << 20) == PTR
    driver.answer = ()
    backend.free(PTR)
    assert driver.calls == [("cuMemAllocManaged", 1 << 20, 1), ("cuMemFree", PTR)]


@pytest.mark.parametrize("advice", [*CudaMemAdvise, 1, 6])
def test_advise(driver, backend, advice):
    done = backend.mem_advise(PTR + 1, 4096, advice, "gpu1")
    assert driver.calls == [("cuMemAdvise", PTR + 1, 4096, int(advice), (1, 1))]
    assert (done.status, done.pages) == (CudaResult.CUDA_SUCCESS, 2)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("read_mostly", 1),
        ("unset_read_mostly", 2),
        ("preferred_location", 3),
        ("accessed_by", 5),
        ("access_in_place", 5),
        ("unset_accessed_by", 6),
        ("ACL_MEM_ADVISE_SET_READ_MOSTLY", 1),
        ("cudaMemAdviseUnsetPreferredLocation", 4),
    ],
)
def test_advise_by_name(driver, backend, word, number):
    backend.mem_advise(PTR, 4096, word, "cpu")
    assert driver.calls == [("cuMemAdvise", PTR, 4096, number, (2, 0))]


def test_older_bindings_call_them_v2():
    driver = FakeDriver()
    backend = CudaManagedBackend(driver)
    backend.mem_advise(PTR, 1, 1)
    backend.mem_prefetch(PTR, 1, "cpu")
    assert [call[0] for call in driver.calls] == ["cuMemAdvise_v2", "cuMemPrefetchAsync_v2"]


def test_prefetch(driver, backend):
    backend.mem_prefetch(PTR, 4096, Location.host_numa(3))
    backend.mem_prefetch(PTR, 4096, -1, stream=0)
    assert driver.calls == [
        ("cuMemPrefetchAsync", PTR, 4096, (3, 3), 0, 2),
        ("cuMemPrefetchAsync", PTR, 4096, (2, 0), 0, 0),
    ]


def test_batches(driver, backend):
    places = ([PTR, PTR + 4096], [4096, 8192], ["gpu0", "cpu"], [0, 1])
    assert [r.pages for r in backend.mem_prefetch_batch(*places)] == [1, 2]
    backend.mem_discard_and_prefetch_batch(*places)
    backend.mem_discard_batch(*places[:2], stream=7)
    spans = ([PTR, PTR + 4096], [4096, 8192], 2)
    where = ([(1, 0), (2, 0)], [0, 1], 2)
    assert driver.calls == [
        ("cuMemPrefetchBatchAsync", *spans, *where, 0, 2),
        ("cuMemDiscardAndPrefetchBatchAsync", *spans, *where, 0, 2),
        ("cuMemDiscardBatchAsync", *spans, 0, 7),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.mem_prefetch_batch([PTR, PTR], [4096], ["cpu"], [0]),
        lambda b: b.mem_prefetch_batch([PTR], [4096], ["cpu"], [0, 1]),
        lambda b: b.mem_discard_batch([PTR], [4096, 4096]),
        lambda b: b.mem_range_get_attributes(["READ_MOSTLY"], PTR, 4096, [4, 4]),
    ],
)
def test_lists_of_different_lengths_never_reach_the_driver(driver, backend, call):
    with pytest.raises(ManagedArgumentError, match="expected as many"):
        call(backend)
    assert driver.calls == []


def test_queries(driver, backend):
    driver.answer = (1,)
    assert backend.mem_range_get_attribute("READ_MOSTLY", PTR, 4096) == 1
    driver.answer = ([0, -2],)
    assert backend.mem_range_get_attribute(CudaMemRangeAttribute.ACCESSED_BY, PTR, 4096, 8) == [
        0,
        -2,
    ]
    driver.answer = ([1, [0, -2]],)
    assert backend.mem_range_get_attributes([1, 3], PTR, 4096, [4, 8]) == [1, [0, -2]]
    assert driver.calls == [
        ("cuMemRangeGetAttribute", 4, 1, PTR, 4096),
        ("cuMemRangeGetAttribute", 8, 3, PTR, 4096),
        ("cuMemRangeGetAttributes", [4, 8], [1, 3], 2, PTR, 4096),
    ]


def test_location_info_is_a_call_a_window(driver, backend):
    driver.CUmemLocation = lambda: SimpleNamespace(type=1, id=2)
    found = backend.mem_get_location_info(PTR, 10 << 20, 4 << 20, 4 << 20)
    assert found == [Location.device(2)] * 3
    spans = [call[1:5] for call in driver.calls]
    mib = 1 << 20
    assert spans == [
        (PTR, 4 * mib, 4 * mib, 4 * mib),
        (PTR + 4 * mib, 4 * mib, 4 * mib, 4 * mib),
        (PTR + 8 * mib, 2 * mib, 2 * mib, 2 * mib),
    ]
    with pytest.raises(ManagedArgumentError):
        backend.mem_get_location_info(PTR, 4096, 0)


@pytest.mark.parametrize(
    ("number", "error", "name"),
    [
        (1, ManagedArgumentError, "CUDA_ERROR_INVALID_VALUE"),
        (2, ManagedMemoryError, "CUDA_ERROR_OUT_OF_MEMORY"),
        (101, ManagedArgumentError, "CUDA_ERROR_INVALID_DEVICE"),
        (801, ManagedSupportError, "CUDA_ERROR_NOT_SUPPORTED"),
        (700, ManagedArgumentError, "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_refusals_carry_the_drivers_result(driver, backend, number, error, name):
    driver.result = number
    with pytest.raises(error, match=f"cuMemAdvise: the driver answers {number}") as caught:
        backend.mem_advise(PTR, 4096, 1)
    assert isinstance(caught.value, ManagedError)
    assert caught.value.result.name == name


@pytest.mark.parametrize("advice", [0, 7, "coarse_grain", HipMemoryAdvise.SET_READ_MOSTLY, "x"])
def test_advice_that_cuda_has_not(driver, backend, advice):
    with pytest.raises(InvalidArgumentError, match="1 to 6"):
        backend.mem_advise(PTR, 4096, advice)
    with pytest.raises(InvalidArgumentError, match="READ_MOSTLY"):
        backend.mem_range_get_attribute("READ_OFTEN", PTR, 4096)
    assert driver.calls == []


def test_functions_that_are_missing():
    driver = FakeDriver(missing={"cuMemDiscardBatchAsync"})
    with pytest.raises(NotSupportedError, match="cuMemDiscardBatchAsync"):
        CudaManagedBackend(driver).mem_discard_batch([PTR], [4096])
    with pytest.raises(NotSupportedError, match="cuMemAdvise"):
        CudaManagedBackend(SimpleNamespace())


def test_without_cuda_bindings(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(NotSupportedError, match=r"svmcore\[cuda\]"):
        CudaManagedBackend()


def test_same_interface_as_the_model():
    names = {name for name in dir(CudaManagedBackend) if not name.startswith("_")}
    assert names <= {*dir(CudaMemory), "semantics"}


def test_numbers_are_those_of_cuda_bindings():
    real = pytest.importorskip("cuda.bindings.driver")
    for ours, theirs, prefix in (
        (CudaMemAdvise, real.CUmem_advise, "CU_MEM_ADVISE_"),
        (CudaMemRangeAttribute, real.CUmem_range_attribute, "CU_MEM_RANGE_ATTRIBUTE_"),
        (CudaMemLocationType, real.CUmemLocationType, "CU_MEM_LOCATION_TYPE_"),
        (CudaResult, real.CUresult, ""),
    ):
        numbers = {member.name: int(member) for member in theirs}
        for member in ours:
            known = numbers.get(prefix + member.name)
            # Releases before 13 lack the last location types.
            assert known in (int(member), None)
            assert known is not None or member.name in ("INVISIBLE", "DEVICE_LOCALITY_DOMAIN")
    assert (int(real.CU_DEVICE_CPU), int(real.CU_DEVICE_INVALID)) == (-1, -2)
