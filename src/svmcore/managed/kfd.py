"""HIP and KFD: managed memory through the KFD attributes of a space.

HIP advice becomes attributes as ROCr makes them (A5); what KFD cannot tell back
(the CPU in accessed-by, the NUMA node of a prefetch) ROCr keeps in a map of its
own, and so does this one. The dialect ``kfd`` sets the attributes themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..advice import KFD_ATTRIBUTE, WORDS, Meaning, words_of_attribute
from ..attributes import LOCATION_UNDEFINED, Attribute, Flag
from ..engine import Space
from ..errors import Errno, InvalidArgumentError, SvmError, error_from_errno
from ..machine import Machine
from ..reference import RangeMap
from ..units import PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, whole
from .enums import (
    DEVICE_CPU,
    DEVICE_INVALID,
    CudaMemLocationType,
    DriverErrno,
    HipCoherencyMode,
    HipMemoryAdvise,
    HipMemRangeAttribute,
    HipResult,
    Location,
    meaning,
)
from .memory import Action, AdviseResult, ManagedMemory, PageView, Touch, agreed
from .state import HOST

__all__ = ["HipMemory", "HmmFlag", "HostRegistration", "HsaAttribute", "KfdMemory"]

_ACCESS: Final = (Attribute.ACCESS, Attribute.ACCESS_IN_PLACE, Attribute.NO_ACCESS)


class HsaAttribute(enum.IntEnum):
    """``hsa_amd_svm_attribute_t``."""

    GLOBAL_FLAG = 0
    READ_ONLY = 1
    HIVE_LOCAL = 2
    MIGRATION_GRANULARITY = 3
    PREFERRED_LOCATION = 4
    PREFETCH_LOCATION = 5
    READ_MOSTLY = 6
    GPU_EXEC = 7
    AGENT_ACCESSIBLE = 0x200
    AGENT_ACCESSIBLE_IN_PLACE = 0x201
    AGENT_NO_ACCESS = 0x202
    ACCESS_QUERY = 0x203


class HmmFlag(enum.IntFlag):
    """Bits of the environment variable ``ROC_HMM_FLAGS``."""

    PREFETCH_TO_CPU = 1
    """Every prefetch goes to the CPU."""
    PREFETCH_AT_ALLOC = 2
    """An allocation is prefetched to the first device."""
    MANAGED_ONLY = 4
    """Pointers that are not managed are refused."""


class _Noted(NamedTuple):
    """What user mode remembers of a page."""

    cpu_accessed: bool = False
    last_prefetch: Location | None = None
    node: int = -1
    """NUMA node that a prefetch put the page on, -1 none."""


class _SpaceMemory(ManagedMemory):
    """What HIP and KFD share: a space of policy ``kfd``.

    Parameters
    ----------
    semantics : str
    machine : str, Path or Machine
    space : Space, optional
        An existing space of policy ``kfd``; one of its own when not given.
    supported, nodes, current_node
        As :class:`ManagedMemory`.
    **settings
        Parameters of the policy.
    """

    def __init__(
        self,
        semantics: str,
        machine: str | Path | Machine,
        *,
        space: Space | None,
        supported: bool,
        nodes: int,
        current_node: int,
        settings: dict[str, Any],
    ) -> None:
        if space is not None:
            if settings:
                raise InvalidArgumentError(
                    "space with settings of the policy: expected one of them"
                )
            machine = space.machine
        super().__init__(
            semantics, machine, supported=supported, nodes=nodes, current_node=current_node
        )
        self.space = Space(self.machine, policy="kfd", **settings) if space is None else space
        if self.space.policy.name != "kfd":
            raise InvalidArgumentError(
                f"space of policy {self.space.policy.name}: expected policy kfd"
            )
        self._noted = RangeMap(merge=True)
        self._faulted = 0

    @property
    def granule(self) -> int:
        """Bytes to which spans are rounded outward."""
        return PAGE_SIZE

    def _make(self, addr: int, size: int) -> None:
        self.space.map(addr, size)
        self._note(addr, addr + size, _Noted())

    def _unmake(self, addr: int, size: int) -> None:
        self.space.unmap(addr, size)
        self._noted.assign(addr >> PAGE_SHIFT, (addr + size - 1) >> PAGE_SHIFT, 0)

    # ---- what user mode remembers ------------------------------------------------------

    def _note(self, start: int, end: int, value: _Noted) -> None:
        self._noted.assign(start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT, value)

    def _notes(self, start: int, end: int) -> Iterator[tuple[int, int, _Noted]]:
        """``(start, end, value)`` in bytes of what is noted of the span."""
        first, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        for low, high, value in list(self._noted.items(first, last)):
            yield max(low, first) << PAGE_SHIFT, (min(high, last) + 1) << PAGE_SHIFT, value

    def _change_notes(self, start: int, end: int, **values: Any) -> None:
        for low, high, value in self._notes(start, end):
            self._note(low, high, value._replace(**values))

    # ---- attributes --------------------------------------------------------------------

    def _value(self, place: Location | None) -> int:
        """KFD location value of a place."""
        if place is None or place.type == CudaMemLocationType.INVALID:
            return LOCATION_UNDEFINED
        return 0 if place.is_host else self.machine.gpus[place.id].id

    def _set(self, start: int, end: int, attrs: Sequence[tuple[Attribute, int]]) -> AdviseResult:
        """Set attributes, and say what that did."""
        space = self.space
        before, ranges = space.counters(), len(space.process)
        try:
            space.set_attr(start, end - start, list(attrs))
        except SvmError as error:
            kind = "not_allocated" if error.code == "EFAULT" else "attribute"
            kind = "memory" if error.code in ("ENOMEM", "ENOSPC") else kind
            raise self._refused(kind, "KFD", str(error)) from error
        after = space.counters()
        return AdviseResult(
            self.success,
            pages=(end - start) >> PAGE_SHIFT,
            ranges_split=len(space.process) - ranges,
            bytes_migrated=after["migrated_bytes"] - before["migrated_bytes"],
        )

    # ---- touches and views ---------------------------------------------------------------

    def _touch(self, start: int, end: int, processor: int, write: bool) -> Touch:
        by = "cpu" if processor == HOST else f"gpu{processor - 1}"
        result = self.space.access(start, end - start, by, write)
        if not result.ok:
            where = result.addr or start
            raise error_from_errno(
                Errno[result.code],
                f"access {start:#x} by {by}: {result.reason} at {where:#x}: {result.code}, "
                "the driver reports a memory violation",
            )
        moved = result.moved_pages << PAGE_SHIFT
        if moved:
            self._forget_nodes(start, end)
        window = PAGE_SIZE << self.space.policy.settings()["granularity"]
        faulted = min(result.faults * window, end - start)
        self._faulted += faulted
        return Touch(result.faults, faulted, result.remote_pages << PAGE_SHIFT, (), moved)

    def _forget_nodes(self, start: int, end: int) -> None:
        """Pages that went to a device are on no NUMA node any more."""
        there = self._allocation(start)
        low, high = (there[0], sum(there)) if there else (start, end)
        for begin, stop, value in self._notes(low, high):
            if value.node < 0:
                continue
            for addr, size, where in self.space.residency(begin, stop - begin):
                if where.startswith("gpu"):
                    self._note(addr, addr + size, value._replace(node=-1))

    def page(self, addr: int) -> PageView:
        """State of the page at *addr*."""
        start, end = self._inside("page", whole("addr", addr), 1)
        space = self.space
        ((_, _, where),) = space.residency(start, PAGE_SIZE)
        attrs = space.get_attr(start, PAGE_SIZE)
        ((_, _, noted),) = self._notes(start, end)
        process, page = space.process, start >> PAGE_SHIFT
        gpus = range(self.devices)
        # The CPU reads and writes what lies in system memory.
        cpu = ("cpu",) if where == "cpu" else ()
        preferred = attrs["preferred"]
        return PageView(
            copies=() if where == "absent" else (where,),
            mapped=cpu + tuple(f"gpu{i}" for i in gpus if process.mapped(i, page, False)),
            writable=cpu + tuple(f"gpu{i}" for i in gpus if process.mapped(i, page, True)),
            owner=None if where == "absent" else where,
            read_mostly=Flag.GPU_READ_MOSTLY in attrs["flags"],
            preferred=None if preferred == "undefined" else Location.parse(preferred),
            accessed_by=("cpu",) * noted.cpu_accessed
            + tuple(name for name, kind in attrs["access"].items() if kind == "access_in_place"),
            last_prefetch=noted.last_prefetch,
            node=max(noted.node, 0),
        )

    def _where(self, addr: int) -> Location:
        start = addr // PAGE_SIZE * PAGE_SIZE
        ((_, _, where),) = self.space.residency(start, PAGE_SIZE)
        if where == "absent":
            return Location.invalid()
        if where == "cpu" and self.nodes > 1:
            ((_, _, noted),) = self._notes(start, start + PAGE_SIZE)
            return Location.host_numa(max(noted.node, 0))
        return Location.parse(where)

    def counters(self) -> dict[str, int]:
        """Totals since the beginning, by name; a KFD range has one copy, so none is made."""
        totals = self.space.counters()
        return {
            "faults": totals["faults"],
            "faulted_bytes": self._faulted,
            "remote_bytes": totals["remote_accesses"] << PAGE_SHIFT,
            "bytes_copied": 0,
            "bytes_migrated": totals["migrated_bytes"],
            "bytes_to_device": totals["bytes_to_device"],
            "bytes_to_host": totals["bytes_to_host"],
            "evicted_bytes": totals["evicted_bytes"],
        }

    def _prefetch(self, start: int, end: int, place: Location | None) -> AdviseResult:
        result = self._set(start, end, [(Attribute.PREFETCH_LOC, self._value(place))])
        node = -1
        if place is not None and place.is_host:
            node = place.id if place.type == CudaMemLocationType.HOST_NUMA else self.current_node
        self._change_notes(start, end, last_prefetch=place, node=node)
        return result


class HipMemory(_SpaceMemory):
    """HIP managed memory on AMD.

    Parameters
    ----------
    machine : str, Path or Machine
    supported : bool
        False: no HMM. Advice is then a warning and succeeds, as in HIP.
    nodes, current_node : int
        NUMA nodes of the host.
    hmm_flags : int
        :class:`HmmFlag`.
    space : Space, optional
        A space of policy ``kfd`` to live in.
    **settings
        Parameters of the policy, for example ``xnack="off"``.

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
        supported: bool = True,
        nodes: int = 1,
        current_node: int = 0,
        hmm_flags: int = 0,
        space: Space | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            "hip",
            machine,
            space=space,
            supported=supported,
            nodes=nodes,
            current_node=current_node,
            settings=settings,
        )
        self.hmm_flags = HmmFlag(hmm_flags)
        #: Memory of the system that is not managed: start -> bytes.
        self._system: dict[int, int] = {}

    def add_system_memory(self, addr: int, size: int) -> None:
        """Memory of the system (malloc) that advice may name unless MANAGED_ONLY is set.

        Raises
        ------
        SvmError
            If it is misaligned or mapped already.
        """
        self.space.map(addr, size)
        self._note(addr, addr + size, _Noted())
        self._system[addr] = size

    def host_register(self, addr: int, size: int, grant: str = "on_use") -> HostRegistration:
        """Register system memory: see :class:`HostRegistration`."""
        start, end = self._span("host register", whole("addr", addr), whole("size", size))
        return HostRegistration(self.space, start, end - start, grant)

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
        return self._set(start, end, [(attribute, self._value(place) if fixed is None else fixed)])

    def _accessed_by(self, start: int, end: int, on: bool, place: Location | None) -> AdviseResult:
        if place is not None and place.is_host:
            self._change_notes(start, end, cpu_accessed=on)
            if on:
                attrs = [(Attribute.SET_FLAGS, int(Flag.HOST_ACCESS))]
            else:  # ROCr's number of the CPU agent is taken for the first GPU's.
                attrs = [(Attribute.ACCESS, gpu.id) for gpu in self.machine.gpus[:1]]
        else:
            attribute, _ = KFD_ATTRIBUTE["access_in_place", on]
            attrs = [(attribute, self._value(place))]
        return self._set(start, end, attrs)

    def _check_discard(self) -> None:
        raise self._refused("unsupported", "C12", "discard: expected CUDA, HIP has none")

    def _check_location_info(self) -> None:
        raise self._refused("unsupported", "C14", "location info: expected CUDA, HIP has none")

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


class KfdMemory(_SpaceMemory):
    """KFD attributes as they are: words and numbers of the ioctl, results its errno.

    Parameters
    ----------
    machine : str, Path or Machine
    supported : bool
        False: the ioctl is older than 1.5.
    nodes, current_node : int
        NUMA nodes of the host.
    space : Space, optional
        A space of policy ``kfd`` to live in.
    **settings
        Parameters of the policy.
    """

    vendor = "kfd"
    advice_enum = Attribute
    attribute_enum = Attribute
    success = DriverErrno.OK
    ignores_place = frozenset()
    _LISTED = frozenset(attribute.name for attribute in _ACCESS)

    def __init__(
        self,
        machine: str | Path | Machine = "gpu-80g",
        *,
        supported: bool = True,
        nodes: int = 1,
        current_node: int = 0,
        space: Space | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            "kfd",
            machine,
            space=space,
            supported=supported,
            nodes=nodes,
            current_node=current_node,
            settings=settings,
        )

    def _meaning(self, advice: enum.IntEnum) -> Meaning:
        return words_of_attribute(advice, 0)[0]

    def _takes(self, meaning: Meaning) -> bool:
        return tuple(meaning) in KFD_ATTRIBUTE

    def _same_word(self, meaning: Meaning) -> Meaning:
        return meaning  # access and access in place are two things here

    def _place(self, word: str, on: bool, location: Location | str | int | None) -> Location | None:
        if not WORDS[word].location or KFD_ATTRIBUTE[word, on][1] is not None:
            return None
        place = Location.parse(location)
        if KFD_ATTRIBUTE[word, on][0] in _ACCESS and place.is_host:
            raise self._refused(
                "location", "A5", f"{word} of the CPU: {self._expected()[9:]}, not the CPU"
            )
        if KFD_ATTRIBUTE[word, on][0] == Attribute.PREFERRED_LOC and not any(place):
            return place
        return super()._place(word, on, location)

    def _span(self, call: str, ptr: int, size: int) -> tuple[int, int]:
        if (ptr | size) & PAGE_MASK:
            raise self._refused(
                "unaligned",
                "A5",
                f"{call} {ptr:#x} of {size:#x} bytes: expected multiples of {PAGE_SIZE}",
            )
        return super()._span(call, ptr, size)

    def _advise(self, start: int, end: int, action: Action) -> AdviseResult:
        word = action.word
        if word == "prefetch":
            return self._prefetch(start, end, action.place)
        attribute, value = KFD_ATTRIBUTE[word, action.on]
        if value is None and WORDS[word].location:
            value = self._value(action.place)
        elif value is None:
            value = action.value
        if value is None:
            raise self._refused("value", "KFD", f"{word}: expected a value")
        return self._set(start, end, [(attribute, whole("value", value))])

    def _check_discard(self) -> None:
        raise self._refused("unsupported", "C12", "discard: expected CUDA, KFD has none")

    def _check_location_info(self) -> None:
        raise self._refused("unsupported", "C14", "location info: expected CUDA, KFD has none")

    def is_read_mostly(self, ptr: int, size: int) -> bool:
        """Whether the flag GPU_READ_MOSTLY is set on all ranges of the span."""
        start, end = self._outward(ptr, size)
        return bool(self._query(start, end, "SET_FLAGS") & Flag.GPU_READ_MOSTLY)

    def _listed(self, name: str) -> bool:
        return name in self._LISTED

    def _query(self, start: int, end: int, name: str) -> int:
        process = self.space.process
        outcome = process.begin(self.space.now_ns)
        ret = process.get_attr(start, end - start, [(Attribute[name], 0)])
        process.finish(ret)
        if ret:
            error = error_from_errno(ret, "")
            kind = "not_allocated" if error.code == "EFAULT" else "attribute"
            raise self._refused(kind, "KFD", f"get_attr {name} of {start:#x}: {error.code}")
        ((_, value),) = outcome.out or []
        return int(value)

    def _query_list(self, start: int, end: int, name: str) -> list[int]:
        access = self.space.get_attr(start, end - start)["access"]
        return [i for i in range(self.devices) if access[f"gpu{i}"] == name.lower()]
