"""Ascend managed memory: the interface document, and its driver."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Unpack

from ..advice import Meaning
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..units import PAGE_SHIFT, whole
from .enums import (
    AclMemManagedAdviseType,
    AclMemManagedRangeAttribute,
    AclResult,
    CudaMemLocationType,
    Location,
    meaning,
)
from .memory import Options, Touch
from .pages import PageMemory
from .rules import rules_of
from .state import HOST, Step

__all__ = ["AclMemory"]


class AclMemory(PageMemory):
    """Ascend managed memory: the document (``acl``) or its driver (``acl-driver``).

    Parameters
    ----------
    semantics : str
        ``"acl"`` or ``"acl-driver"``.
    machine : str, Path or Machine
    strict_alignment : bool
        Refuse spans that are no multiples of 2 MiB, as the interface document asks;
        the driver rounds them outward.
    **options
        :class:`Options`. A product or driver without managed memory refuses every call.

    Examples
    --------
    >>> from svmcore.managed import AclMemManagedAdviseType, AclMemory
    >>> memory = AclMemory("acl")
    >>> ptr = memory.alloc(2 << 20)
    >>> memory.mem_advise(ptr, 2 << 20, AclMemManagedAdviseType.SET_READ_MOSTLY).pages
    512
    >>> memory.access(ptr, by="gpu0").effects[0].event.kind
    'duplicate'
    """

    vendor = "acl"
    advice_enum = AclMemManagedAdviseType
    attribute_enum = AclMemManagedRangeAttribute
    success = AclResult.ACL_SUCCESS
    base = 0x900_0000_0000
    #: The address window and what a process may allocate.
    window = 3 << 40
    limit = base + window
    gap = 0
    ignores_place = frozenset(
        (("read_mostly", True), ("preferred_location", False), ("discard", True))
    )

    def __init__(
        self,
        semantics: str = "acl",
        machine: str | Path | Machine = "gpu-80g",
        *,
        strict_alignment: bool = False,
        **options: Unpack[Options],
    ) -> None:
        rules = rules_of(semantics)
        if rules.vendor != "acl":
            raise InvalidArgumentError(f"semantics {semantics!r}: expected acl or acl-driver")
        super().__init__(rules, machine, **options)
        self.strict_alignment = strict_alignment

    @property
    def checks_batch_first(self) -> bool:
        """False: members run in order, what came before a failure stays done."""
        return False

    def mem_set(self, ptr: int, size: int) -> Touch:
        """The host sets bytes: the document's write (A6); its driver writes every copy (D9)."""
        return self._written(ptr, size, keeps=True)

    def mem_copy(self, ptr: int, size: int) -> Touch:
        """A copy into managed memory: a write (A6); the driver's takes copies away (D10)."""
        return self._written(ptr, size, keeps=False)

    def mem_copy_from(self, ptr: int, size: int) -> Touch:
        """A copy out of managed memory: a read; the driver refuses untouched pages (D10)."""
        start, end = self._inside("copy from", whole("ptr", ptr), whole("size", size))
        if self.semantics == "acl":
            return self._touch(start, end, HOST, write=False)
        if any(not page.copies for page in self._pages_in(start, end)):
            raise self._refused(
                "never_touched", "D10", f"copy from {ptr:#x}: expected pages that were touched"
            )
        return Touch(0, 0, 0)

    def _written(self, ptr: int, size: int, *, keeps: bool) -> Touch:
        start, end = self._inside("copy to", whole("ptr", ptr), whole("size", size))
        if self.semantics == "acl":
            return self._touch(start, end, HOST, write=True)
        # The driver works on whole pages of management.
        start, end = self._outward(start, end - start)
        tally = self._run(start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT, Step("fill", keeps))
        self._count(tally)
        self._raise("copy to", tally)
        return Touch(0, 0, 0, tuple(tally.effects))

    def _inside(self, call: str, ptr: int, size: int) -> tuple[int, int]:
        # A touch maps its whole 2 MiB page.
        self._check_pointer(call, ptr, size)
        start = ptr // self.granule * self.granule
        end = -(-(ptr + size) // self.granule) * self.granule
        return self._covered(call, ptr, size, start, end)

    def _meaning(self, advice: enum.IntEnum) -> Meaning:
        return meaning(AclMemManagedAdviseType(advice))

    def _check_alloc(self, size: int, flags: int) -> None:
        if flags != 1:
            raise self._refused(
                "alloc_flags", "flag", f"alloc with flags {flags}: expected 1 (attach global)"
            )
        held = sum(self._allocations.values())
        if held + self._rounded(size) > self.window:
            raise self._refused(
                "memory", "size", f"alloc of {size} bytes: expected at most 3 TiB a process"
            )

    def _place(self, word: str, on: bool, location: Location | str | int | None) -> Location | None:
        raw = None if (word, on) in self.ignores_place else Location.parse(location)
        if (word, on) == ("read_mostly", False) and raw is not None:
            if raw.type == CudaMemLocationType.INVALID:  # A14
                return Location.host()
        if word == "accessed_by" and raw is not None and raw.is_host:
            if raw.type != CudaMemLocationType.HOST and self.semantics == "acl-driver":
                raise self._refused(
                    "accessed_by_place", "D5", f"accessed by {raw}: expected the host or a device"
                )
        return super()._place(word, on, location)

    def _outward(self, ptr: int, size: int) -> tuple[int, int]:
        # The driver rounds address and size, not the end.
        start = ptr // self.granule * self.granule
        return start, start + self._rounded(size)

    def _covered(self, call: str, ptr: int, size: int, start: int, end: int) -> tuple[int, int]:
        asked = call in ("advise", "prefetch", "query")
        if self.strict_alignment and asked and (ptr | size) % self.granule:
            raise self._refused(
                "unaligned",
                "alignment",
                f"{call} {ptr:#x} of {size:#x} bytes: expected multiples of 2 MiB",
            )
        if not self._allocations:
            raise self._refused(
                "no_heap", "window", f"{call} {ptr:#x}: expected an allocation first"
            )
        low, high = self.base, self.base + self.window
        if not self._adopted and not (low <= start and end <= high):
            raise self._refused(
                "window",
                "window",
                f"{call} {ptr:#x} of {size:#x} bytes: expected {low:#x} to {high:#x}",
            )
        if self._allocation(start) is None:
            raise self._refused(
                "not_allocated", "page", f"{call} {ptr:#x}: expected an allocated page"
            )
        # Later pages are looked at one by one: those before a hole keep the change.
        if call in ("query", "copy from") and self._hole(start, end):
            raise self._refused(
                "not_allocated",
                "page",
                f"{call} {ptr:#x} of {size:#x} bytes: expected allocated pages",
            )
        return start, end

    def _hole(self, start: int, end: int) -> bool:
        first, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        spans = self._residency_map.items(first, last)
        return sum(min(h, last) - max(lo, first) + 1 for lo, h, _ in spans) != last - first + 1

    def _device_number(self, place: Location | None) -> int:
        # The document's query tells a NUMA node by its number (D6).
        if place is not None and place.type == CudaMemLocationType.HOST_NUMA:
            return place.id
        return super()._device_number(place)
