"""HIP: advice becomes KFD attributes as ROCr makes them (A5).

What KFD cannot tell back (the CPU in accessed-by, the NUMA node of a prefetch)
ROCr keeps in a map of its own, and so does this.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..advice import KFD_ATTRIBUTE, Meaning
from ..attributes import Attribute, Flag
from ..engine import Space
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..units import PAGE_SHIFT, whole
from .enums import (
    DEVICE_CPU,
    DEVICE_INVALID,
    HipCoherencyMode,
    HipMemoryAdvise,
    HipMemRangeAttribute,
    HipResult,
    Location,
    meaning,
)
from .hsa import kfd_attributes
from .memory import Action, AdviseResult, Touch, agreed
from .spaces import Noted, SpaceMemory
from .state import HOST

__all__ = ["HipMemory", "HmmFlag", "HostRegistration"]


class HmmFlag(enum.IntFlag):
    """Bits of the environment variable ``ROC_HMM_FLAGS``."""

    PREFETCH_TO_CPU = 1
    """Every prefetch goes to the CPU."""
    PREFETCH_AT_ALLOC = 2
    """An allocation is prefetched to the first device."""
    MANAGED_ONLY = 4
    """Pointers that are not managed are refused."""


class HipMemory(SpaceMemory):
    """HIP managed memory on AMD. Without HMM (not *supported*) advice warns and succeeds.

    Parameters
    ----------
    machine : str, Path or Machine
    hmm_flags : int
        :class:`HmmFlag`.
    read_mostly : str
        ``"stored"``: as the driver does, the flag has no effect. ``"documented"``: as its
        comment promises, GPUs map read-only and a GPU's write faults first.
    space : Space, optional
        A space of policy ``kfd`` to live in.
    **settings
        :class:`Options`, and parameters of the policy, for example ``xnack="off"``.

    Examples
    --------
    >>> from svmcore.managed import HipMemory
    >>> memory = HipMemory()
    >>> ptr = memory.alloc(4096)
    >>> memory.mem_range_get_attribute("PREFERRED_LOCATION", ptr, 4096)
    -2
    """

    vendor = "hip"
    advice_enum = HipMemoryAdvise
    attribute_enum = HipMemRangeAttribute
    success = HipResult.hipSuccess
    ignores_place = frozenset(
        (
            ("read_mostly", True),
            ("read_mostly", False),
            ("coarse_grain", True),
            ("coarse_grain", False),
        )
    )

    def __init__(
        self,
        machine: str | Path | Machine = "gpu-80g",
        *,
        hmm_flags: int = 0,
        read_mostly: str = "stored",
        space: Space | None = None,
        **settings: Any,
    ) -> None:
        super().__init__("hip", machine, space=space, settings=settings)
        if not 0 <= whole("hmm_flags", hmm_flags) <= int(~HmmFlag(0)):
            raise InvalidArgumentError(f"hmm_flags {hmm_flags}: expected the bits 1, 2 and 4")
        self.hmm_flags = HmmFlag(hmm_flags)
        if read_mostly not in ("stored", "documented"):
            raise InvalidArgumentError(
                f"read_mostly {read_mostly!r}: expected stored or documented"
            )
        self._read_only = Flag.GPU_RO if read_mostly == "documented" else Flag(0)
        #: Memory of the system that is not managed: start -> bytes.
        self._system: dict[int, int] = {}
        self._asked: dict[int, int] = {}

    def add_system_memory(self, addr: int, size: int) -> None:
        """Memory of the system (malloc) that advice may name unless MANAGED_ONLY is set.

        Raises
        ------
        SvmError
            If it is misaligned or mapped already.
        """
        self.space.map(addr, size)
        self._note(addr, addr + size, Noted())
        self._system[addr] = size

    def svm_attributes_set(
        self, addr: int, size: int, attributes: Sequence[tuple[int, Any]]
    ) -> AdviseResult:
        """``hsa_amd_svm_attributes_set``: see :func:`svmcore.managed.hsa.kfd_attributes`.

        Parameters
        ----------
        addr, size : int
            Bytes; rounded outward to 4096.
        attributes : sequence of (HsaAttribute, value)

        Raises
        ------
        ManagedError
            With a result of :class:`svmcore.managed.enums.HsaResult`, or for a wrong span;
            nothing is set then.
        """
        start, end = self._span("svm attributes", whole("addr", addr), whole("size", size))
        return self._set(start, end, kfd_attributes(attributes, self.machine.gpus))

    def host_register(self, addr: int, size: int, grant: str = "on_use") -> HostRegistration:
        """Register system memory: see :class:`HostRegistration`."""
        start, end = self._span("host register", whole("addr", addr), whole("size", size))
        return HostRegistration(self.space, start, end - start, grant)

    def alloc(self, size: int, flags: int = 1) -> int:
        """As :meth:`ManagedMemory.alloc`; later calls reach the bytes asked for, no further."""
        addr = super().alloc(size, flags)
        self._asked[addr] = size
        return addr

    def _unmake(self, addr: int, size: int) -> None:
        super()._unmake(addr, size)
        self._asked.pop(addr, None)

    def _covered(self, call: str, ptr: int, size: int, start: int, end: int) -> tuple[int, int]:
        start, end = super()._covered(call, ptr, size, start, end)
        there = self._allocation(start)
        asked = self._asked.get(there[0]) if there else None
        if there and asked is not None and ptr + size > there[0] + asked:
            raise self._refused(
                "beyond",
                "span",
                f"{call} {ptr:#x} of {size:#x} bytes: expected an end of at most "
                f"{there[0] + asked:#x}",
            )
        return start, end

    def _make(self, addr: int, size: int) -> None:
        super()._make(addr, size)
        access = [(Attribute.ACCESS, gpu.id) for gpu in self.machine.gpus if gpu.svm]
        if access:
            self.space.set_attr(addr, size, access)
        if HmmFlag.PREFETCH_AT_ALLOC in self.hmm_flags and self.devices:
            self._prefetch(addr, addr + size, self._redirected(Location.device(0)))

    def _check_support(self, call: str) -> None:
        """Nothing: without HMM the calls warn and succeed."""

    def _allocation(self, addr: int) -> tuple[int, int] | None:
        found = super()._allocation(addr)
        if found is None and HmmFlag.MANAGED_ONLY not in self.hmm_flags:
            for start, size in self._system.items():
                if start <= addr < start + size:
                    return start, size
        return found

    def _meaning(self, advice: enum.IntEnum) -> Meaning:
        return meaning(HipMemoryAdvise(advice))

    def _place(self, word: str, on: bool, location: Location | str | int | None) -> Location | None:
        place = Location.parse(location)
        if (word, on) in self.ignores_place:
            return None
        if (word, on) == ("preferred_location", False) and place == Location.invalid():
            return None
        if location is not None and place == Location.invalid():
            raise self._refused(
                "device", "device", f"{word}, device {DEVICE_INVALID}: {self._expected()}"
            )
        return super()._place(word, on, location)

    def _redirected(self, place: Location | None) -> Location | None:
        return Location.host() if HmmFlag.PREFETCH_TO_CPU in self.hmm_flags else place

    def _advise(self, start: int, end: int, action: Action) -> AdviseResult:
        if not self.supported:
            return AdviseResult(self.success, warnings=["no HMM: the advice has no effect"])
        word, on, place = action.word, action.on, action.place
        if word == "prefetch":
            return self._prefetch(start, end, self._redirected(place))
        if word == "accessed_by":
            return self._accessed_by(start, end, on, place)
        attribute, fixed = KFD_ATTRIBUTE[word, on]
        if word == "read_mostly":
            return self._set(start, end, [(attribute, int(Flag.GPU_READ_MOSTLY | self._read_only))])
        return self._set(start, end, [(attribute, self._value(place) if fixed is None else fixed)])

    def _accessed_by(self, start: int, end: int, on: bool, place: Location | None) -> AdviseResult:
        if place is None or not place.is_host:
            attribute, _ = KFD_ATTRIBUTE["access_in_place", on]
            return self._set(start, end, [(attribute, self._value(place))])
        if on:
            attrs = [(Attribute.SET_FLAGS, int(Flag.HOST_ACCESS))]
        else:  # ROCr's number of the CPU agent is taken for the first GPU's.
            attrs = [(Attribute.ACCESS, gpu.id) for gpu in self.machine.gpus[:1]]
        result = self._set(start, end, attrs)
        self._change_notes(start, end, cpu_accessed=on)
        return result

    def _touch(self, start: int, end: int, processor: int, write: bool) -> Touch:
        first = self._write_fault(start, end) if write and processor != HOST else 0
        touch = super()._touch(start, end, processor, write)
        return touch._replace(faults=touch.faults + first) if first else touch

    def _write_fault(self, start: int, end: int) -> int:
        """Make what is read-only by read mostly writable; the faults that this takes."""
        if not self._read_only:
            return 0
        both = int(Flag.GPU_READ_MOSTLY | self._read_only)
        first, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        faults = 0
        for low, high, *_, flags in (row[:7] for row in self.space.process.ranges(first, last)):
            if flags & both == both:
                span = max(low, first) << PAGE_SHIFT, (min(high, last) + 1) << PAGE_SHIFT
                self._set(*span, [(Attribute.CLR_FLAGS, int(self._read_only))])
                faults += 1
        return faults

    def _query(self, start: int, end: int, name: str) -> int:
        attrs = self.space.get_attr(start, end - start)
        if name == "READ_MOSTLY":
            return int(Flag.GPU_READ_MOSTLY in attrs["flags"])
        if name == "PREFERRED_LOCATION":
            place = attrs["preferred"]
            if place == "undefined":
                return DEVICE_INVALID
            return DEVICE_CPU if place == "cpu" else int(place[3:])
        if name == "LAST_PREFETCH_LOCATION":
            places = (value.last_prefetch for _, _, value in self._notes(start, end))
            last = agreed(places, None)
            if last is None:
                return DEVICE_INVALID
            return DEVICE_CPU if last.is_host else int(last.id)
        if Flag.COHERENT in attrs["flags"]:
            return HipCoherencyMode.FINE_GRAIN
        if Flag.COHERENT not in attrs["any_flags"]:
            return HipCoherencyMode.COARSE_GRAIN
        return HipCoherencyMode.INDETERMINATE

    def _query_list(self, start: int, end: int, name: str) -> list[int]:
        access = self.space.get_attr(start, end - start)["access"]
        devices = [i for i in range(self.devices) if access[f"gpu{i}"] == "access_in_place"]
        cpu = all(value.cpu_accessed for _, _, value in self._notes(start, end))
        return [DEVICE_CPU] * cpu + devices


class HostRegistration:
    """Registered system memory, and which GPUs were let in.

    Parameters
    ----------
    space : Space
    addr, size : int
        Bytes, page aligned.
    grant : str
        ``"on_use"``: a GPU is let in when it maps the memory; ``"all"``: every GPU at once,
        which is slow on nodes of many.

    Source
    ------
    Case 11: two GPUs of eight map, two grants and two revokes.
    """

    def __init__(self, space: Space, addr: int, size: int, grant: str = "on_use") -> None:
        if grant not in ("on_use", "all"):
            raise InvalidArgumentError(f"grant {grant!r}: expected on_use or all")
        self.space, self.addr, self.size = space, addr, size
        self.granted: list[int] = []
        self.grants = self.revokes = 0
        if grant == "all":
            for device in range(len(space.machine.gpus)):
                self.map(device)

    def map(self, device: int) -> None:
        """Let a GPU in, in place; nothing where it is in already.

        Raises
        ------
        SvmError
            For a device that there is not, or the driver's error.
        """
        if device in self.granted:
            return
        self.space.set_attr(self.addr, self.size, [("ACCESS_IN_PLACE", f"gpu{device}")])
        self.granted.append(device)
        self.grants += 1

    def release(self) -> None:
        """Deregister: those that were let in lose their access, nobody else is asked."""
        while self.granted:
            device = self.granted[0]
            self.space.set_attr(self.addr, self.size, [("NO_ACCESS", f"gpu{device}")])
            del self.granted[0]
            self.revokes += 1
