"""The real CUDA driver behind the interface of :class:`svmcore.managed.unified.CudaMemory`.

Calls go one to one to ``cuda.bindings.driver`` (extra ``cuda``); the driver
judges every argument. Nothing here models anything: with the same calls on both,
what the driver answers can be held against the model. It has been run against
a module that records the calls, not against a GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from ..advice import meaning_of
from ..errors import InvalidArgumentError, NotSupportedError
from ..units import PAGE_MASK, PAGE_SHIFT, whole
from .enums import (
    CudaMemAdvise,
    CudaMemRangeAttribute,
    CudaResult,
    Location,
    meaning,
    vendors_word,
)
from .errors import FAILURES, ManagedError, failure
from .memory import PER_THREAD_STREAM, AdviseResult

__all__ = ["CudaManagedBackend"]

#: CUresult -> the kind of failure that the model answers with it.
_KINDS = {int(result): kind for kind, (result, _) in reversed(FAILURES["cuda"].items())}


class CudaManagedBackend:
    """Managed memory of the real driver, in the present CUDA context.

    Parameters
    ----------
    driver : module, optional
        ``cuda.bindings.driver`` or what has its functions.

    Raises
    ------
    NotSupportedError
        If cuda-bindings is not installed or has none of the functions.
    """

    semantics = "cuda"

    def __init__(self, driver: Any = None) -> None:
        if driver is None:
            try:
                from cuda.bindings import driver as installed
            except ImportError as error:
                raise NotSupportedError(
                    "the CUDA driver needs cuda-bindings: install svmcore[cuda]"
                ) from error
            driver = installed
        self.driver = driver
        # Before 13.0 the forms that take a location were called _v2.
        self._advise = self._function("cuMemAdvise_v2", "cuMemAdvise")
        self._prefetch = self._function("cuMemPrefetchAsync_v2", "cuMemPrefetchAsync")

    def _function(self, *names: str) -> Any:
        for name in names:
            found = getattr(self.driver, name, None)
            if found is not None:
                return found
        raise NotSupportedError(f"cuda-bindings without {names[-1]}: expected 12.8 or newer")

    def _call(self, function: Any, *args: Any) -> tuple[Any, ...]:
        """What the driver gives back behind its result; its refusals raise."""
        result, *out = function(*args)
        number = int(result)
        if number:
            name = getattr(function, "__name__", "the driver")
            raise _refused(number, f"{name}: the driver answers {number}")
        return tuple(out)

    def _location(self, place: Location | str | int | None) -> Any:
        place = Location.parse(place)
        location = self.driver.CUmemLocation()
        location.type = self.driver.CUmemLocationType(place.type)
        location.id = place.id
        return location

    def _pointer(self, ptr: int) -> Any:
        return self.driver.CUdeviceptr(whole("ptr", ptr))

    def _stream(self, stream: Any) -> Any:
        return self.driver.CUstream(stream) if isinstance(stream, int) else stream

    @staticmethod
    def _done(ptr: int, size: int) -> AdviseResult:
        pages = ((ptr + size + PAGE_MASK) >> PAGE_SHIFT) - (ptr >> PAGE_SHIFT)
        return AdviseResult(CudaResult.CUDA_SUCCESS, pages=pages)

    # ---- allocations -------------------------------------------------------------------

    def alloc(self, size: int, flags: int = 1) -> int:
        """``cuMemAllocManaged``: the address."""
        (ptr,) = self._call(self.driver.cuMemAllocManaged, whole("size", size), flags)
        return int(ptr)

    def free(self, ptr: int) -> None:
        """``cuMemFree``."""
        self._call(self.driver.cuMemFree, self._pointer(ptr))

    # ---- advice ------------------------------------------------------------------------

    def mem_advise(
        self,
        ptr: int,
        size: int,
        advice: enum.IntEnum | int | str,
        location: Location | str | int | None = None,
    ) -> AdviseResult:
        """``cuMemAdvise``; arguments as :meth:`svmcore.managed.memory.ManagedMemory.mem_advise`.

        Raises
        ------
        ManagedError
            With the driver's result.
        InvalidArgumentError
            For advice that CUDA has not.
        """
        kind = self.driver.CUmem_advise(int(_advice(advice)))
        place = self._location(location)
        self._call(self._advise, self._pointer(ptr), whole("size", size), kind, place)
        return self._done(ptr, size)

    def mem_prefetch(
        self,
        ptr: int,
        size: int,
        location: Location | str | int,
        flags: int = 0,
        stream: Any = PER_THREAD_STREAM,
    ) -> AdviseResult:
        """``cuMemPrefetchAsync``."""
        args = (self._location(location), flags, self._stream(stream))
        self._call(self._prefetch, self._pointer(ptr), whole("size", size), *args)
        return self._done(ptr, size)

    def mem_prefetch_batch(
        self,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        prefetch_locs: Sequence[Location | str | int],
        prefetch_loc_idxs: Sequence[int],
        flags: int = 0,
        stream: Any = PER_THREAD_STREAM,
    ) -> list[AdviseResult]:
        """``cuMemPrefetchBatchAsync``."""
        return self._batch(
            "cuMemPrefetchBatchAsync",
            ptrs,
            sizes,
            self._places(prefetch_locs, prefetch_loc_idxs),
            flags,
            stream,
        )

    def mem_discard_batch(
        self,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        flags: int = 0,
        stream: Any = PER_THREAD_STREAM,
    ) -> list[AdviseResult]:
        """``cuMemDiscardBatchAsync``."""
        return self._batch("cuMemDiscardBatchAsync", ptrs, sizes, (), flags, stream)

    def mem_discard_and_prefetch_batch(
        self,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        prefetch_locs: Sequence[Location | str | int],
        prefetch_loc_idxs: Sequence[int],
        flags: int = 0,
        stream: Any = PER_THREAD_STREAM,
    ) -> list[AdviseResult]:
        """``cuMemDiscardAndPrefetchBatchAsync``."""
        return self._batch(
            "cuMemDiscardAndPrefetchBatchAsync",
            ptrs,
            sizes,
            self._places(prefetch_locs, prefetch_loc_idxs),
            flags,
            stream,
        )

    def _places(self, locs: Sequence[Location | str | int], idxs: Sequence[int]) -> tuple[Any, ...]:
        _as_many("places", len(locs), "indices", len(idxs))
        return [self._location(loc) for loc in locs], list(idxs), len(locs)

    def _batch(
        self,
        name: str,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        places: tuple[Any, ...],
        flags: int,
        stream: Any,
    ) -> list[AdviseResult]:
        _as_many("addresses", len(ptrs), "sizes", len(sizes))
        pointers = [self._pointer(ptr) for ptr in ptrs]
        function = self._function(name)
        args = (pointers, list(sizes), len(pointers), *places, flags, self._stream(stream))
        self._call(function, *args)
        return [self._done(ptr, size) for ptr, size in zip(ptrs, sizes, strict=True)]

    # ---- queries -----------------------------------------------------------------------

    def mem_range_get_attribute(
        self, attribute: enum.IntEnum | int | str, ptr: int, size: int, data_size: int = 4
    ) -> int | list[int]:
        """``cuMemRangeGetAttribute``."""
        kind = self.driver.CUmem_range_attribute(int(_attribute(attribute)))
        args = (data_size, kind, self._pointer(ptr), whole("size", size))
        (data,) = self._call(self.driver.cuMemRangeGetAttribute, *args)
        return _plain(data)

    def mem_range_get_attributes(
        self,
        attributes: Sequence[enum.IntEnum | int | str],
        ptr: int,
        size: int,
        data_sizes: Sequence[int] | None = None,
    ) -> list[int | list[int]]:
        """``cuMemRangeGetAttributes``."""
        sizes = [4] * len(attributes) if data_sizes is None else list(data_sizes)
        _as_many("attributes", len(attributes), "sizes", len(sizes))
        kinds = [self.driver.CUmem_range_attribute(int(_attribute(a))) for a in attributes]
        args = (sizes, kinds, len(kinds), self._pointer(ptr), whole("size", size))
        (data,) = self._call(self.driver.cuMemRangeGetAttributes, *args)
        return [_plain(value) for value in data]

    def mem_get_location_info(
        self, ptr: int, size: int, summary_granularity: int, sampling_granularity: int = 0
    ) -> list[Location]:
        """``cuMemGetLocationInfo``, a call a window: the binding takes room for one answer."""
        function = self._function("cuMemGetLocationInfo")
        if summary_granularity <= 0:
            raise _refused(1, f"windows of {summary_granularity} bytes: expected 1 or more")
        found = []
        for low in range(ptr, ptr + size, summary_granularity):
            window = min(summary_granularity, ptr + size - low)
            every = min(sampling_granularity, window)
            out = self.driver.CUmemLocation()
            self._call(function, self._pointer(low), window, window, every, out)
            found.append(Location(int(out.type), int(out.id)))
        return found


def _as_many(one: str, first: int, other: str, second: int) -> None:
    """Lists of one length: the driver is told a single one, and reads that far in each."""
    if first != second:
        raise _refused(1, f"{first} {one} and {second} {other}: expected as many")


def _refused(number: int, what: str) -> ManagedError:
    """The model's error of that result; of a result it never gives, CUDA_ERROR_UNKNOWN."""
    known = number in CudaResult.__members__.values()
    return failure("cuda", _KINDS[number] if known else "unknown", "driver", what)


def _advice(advice: enum.IntEnum | int | str) -> CudaMemAdvise:
    if isinstance(advice, str):
        named = meaning_of(advice)
        for member in CudaMemAdvise:
            if named is not None and vendors_word(named) == vendors_word(meaning(member)):
                return member
    elif not isinstance(advice, enum.IntEnum) or isinstance(advice, CudaMemAdvise):
        if whole("advice", advice) in CudaMemAdvise.__members__.values():
            return CudaMemAdvise(advice)
    raise InvalidArgumentError(f"advice {advice!r}: expected CudaMemAdvise, 1 to 6, or a name")


def _attribute(attribute: enum.IntEnum | int | str) -> CudaMemRangeAttribute:
    if isinstance(attribute, str) and attribute in CudaMemRangeAttribute.__members__:
        return CudaMemRangeAttribute[attribute]
    if not isinstance(attribute, str | enum.IntEnum) or isinstance(
        attribute, CudaMemRangeAttribute
    ):
        if attribute in CudaMemRangeAttribute.__members__.values():
            return CudaMemRangeAttribute(attribute)
    known = ", ".join(CudaMemRangeAttribute.__members__)
    raise InvalidArgumentError(f"attribute {attribute!r}: expected one of {known}")


def _plain(data: Any) -> int | list[int]:
    """An answer of the driver as numbers."""
    if isinstance(data, list | tuple):
        return [int(value) for value in data]
    return int(data)
