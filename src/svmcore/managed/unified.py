"""CUDA unified memory. The real driver behind the same calls is in ``cuda``."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ..advice import Meaning
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..units import PAGE_SIZE
from .enums import (
    CudaMemAdvise,
    CudaMemLocationType,
    CudaMemRangeAttribute,
    CudaResult,
    Location,
    meaning,
)
from .memory import Options
from .pages import PageMemory
from .rules import rules_of

__all__ = ["CudaMemory"]


class CudaMemory(PageMemory):
    """CUDA unified memory: ``cuMemAdvise`` and its relatives.

    Parameters
    ----------
    machine : str, Path or Machine
    not_concurrent : collection of int
        Devices without CONCURRENT_MANAGED_ACCESS: advice and prefetch that name one are
        refused, batches altogether.
    page_size : int
        Bytes of a CPU page: 4096 or 65536.
    **options
        :class:`Options`.

    Examples
    --------
    >>> from svmcore.managed import CudaMemAdvise, CudaMemory
    >>> memory = CudaMemory()
    >>> ptr = memory.alloc(8192)
    >>> memory.mem_advise(ptr, 1, CudaMemAdvise.SET_READ_MOSTLY).ranges_split
    1
    >>> memory.mem_range_get_attribute("READ_MOSTLY", ptr, 8192)
    0
    """

    vendor = "cuda"
    advice_enum = CudaMemAdvise
    attribute_enum = CudaMemRangeAttribute
    success = CudaResult.CUDA_SUCCESS
    ignores_place = frozenset(
        (
            ("read_mostly", True),
            ("read_mostly", False),
            ("preferred_location", False),
            ("discard", True),
        )
    )

    def __init__(
        self,
        machine: str | Path | Machine = "gpu-80g",
        *,
        not_concurrent: Collection[int] = (),
        page_size: int = PAGE_SIZE,
        **options: Unpack[Options],
    ) -> None:
        if page_size not in (PAGE_SIZE, 1 << 16):
            raise InvalidArgumentError(f"page_size {page_size}: expected 4096 or 65536")
        rules = replace(rules_of("cuda"), granule=page_size)
        super().__init__(rules, machine, **options)
        try:
            known = all(device in range(self.devices) for device in not_concurrent)
        except TypeError:
            known = False
        if not known:
            raise InvalidArgumentError(
                f"not_concurrent {not_concurrent!r}: expected devices of 0 to {self.devices - 1}"
            )
        self.not_concurrent = frozenset(not_concurrent)

    def _meaning(self, advice: enum.IntEnum) -> Meaning:
        return meaning(CudaMemAdvise(advice))

    def _place(self, word: str, on: bool, location: Location | str | int | None) -> Location | None:
        place = super()._place(word, on, location)
        if place is not None and place.type == CudaMemLocationType.DEVICE:
            if place.id in self.not_concurrent:
                raise self._refused(
                    "concurrent",
                    "capability",
                    f"{word}, device {place.id}: expected a device with concurrent managed access",
                )
        numa = (CudaMemLocationType.HOST_NUMA, CudaMemLocationType.HOST_NUMA_CURRENT)
        if word == "accessed_by" and Location.parse(location).type in numa:
            raise self._refused(
                "location", "C7", f"accessed by {location}: expected the host or a device"
            )
        return place

    def _check_concurrent(self, call: str) -> None:
        if self.not_concurrent:
            raise self._refused(
                "unsupported",
                "capability",
                f"{call}: expected concurrent managed access on every device",
            )

    def _check_batch(
        self, call: str, ptrs: Sequence[int], sizes: Sequence[int], flags: int, stream: int
    ) -> None:
        self._check_concurrent(call)
        super()._check_batch(call, ptrs, sizes, flags, stream)

    def _check_cuda_only(self, call: str, rule: str) -> None:
        super()._check_cuda_only(call, rule)
        self._check_concurrent(call)
