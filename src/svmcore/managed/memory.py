"""Managed memory as the vendors' interfaces offer it: calls, checks, allocations.

:class:`ManagedMemory` takes a call apart, refuses what the vendor refuses, and
hands the rest to one of two machines: pages of its own
(:mod:`svmcore.managed.pages`: ACL, CUDA) or KFD attributes of a space
(:mod:`svmcore.managed.kfd`: HIP, KFD).
"""

from __future__ import annotations

import abc
import enum
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypedDict, Unpack

from sortedcontainers import SortedDict

from ..advice import WORDS, Meaning, meaning_of
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..units import ADDRESS_LIMIT, PAGE_SIZE, whole
from .enums import DEVICE_INVALID, CudaMemLocationType, Location, vendors_word
from .errors import ManagedError, failure
from .state import HOST, Event, processor_of

__all__ = ["SEMANTICS", "AdviseResult", "Effect", "ManagedMemory", "Options", "PageView", "Touch"]

#: The dialects.
SEMANTICS: Final = ("acl", "acl-driver", "cuda", "hip", "kfd")
#: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD; 0 is the legacy NULL stream.
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2
_ALIGN = 2 << 20
#: Members of a batch and places of it that the ACL driver takes.
_MOST_RANGES, _MOST_PLACES = 4096, 64


class Effect(NamedTuple):
    """One event on ``[start, start + size)``."""

    start: int
    size: int
    event: Event


@dataclass
class AdviseResult:
    """What advice, a prefetch or a discard did.

    Attributes
    ----------
    status : IntEnum
        The vendor's success.
    pages : int
        4 KiB pages that it covered.
    ranges_split : int
        Ranges more than before.
    bytes_allocated, bytes_freed : int
        Physical memory taken, and given back.
    bytes_copied, bytes_migrated : int
        Data that was copied and stayed at the source, and that moved.
    warnings : list of str
        What the driver would write to its log.
    effects : list of Effect
        Every event, in order.
    """

    status: enum.IntEnum
    pages: int = 0
    ranges_split: int = 0
    bytes_allocated: int = 0
    bytes_freed: int = 0
    bytes_copied: int = 0
    bytes_migrated: int = 0
    warnings: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class Touch(NamedTuple):
    """What an access met.

    Attributes
    ----------
    faults : int
        Faults, one a granule of the dialect's page management (CUDA: the CPU page; ACL:
        2 MiB; HIP and KFD: the driver's window).
    faulted_bytes : int
        Bytes that were touched without a sufficient mapping (HIP, KFD: of the windows
        served, at most the bytes touched).
    remote_bytes : int
        Bytes touched in the memory of another processor.
    effects : tuple of Effect
        Every event, in order; empty for HIP and KFD.
    moved_bytes : int
        HIP and KFD: bytes that moved on the way, in either direction.
    """

    faults: int
    faulted_bytes: int
    remote_bytes: int
    effects: tuple[Effect, ...] = ()
    moved_bytes: int = 0

    @property
    def hit(self) -> bool:
        """Whether there was no fault at all."""
        return self.faults == 0


class PageView(NamedTuple):
    """State of one page in names: processors are ``cpu``, ``gpu0`` ..."""

    copies: tuple[str, ...]
    """Where the data is."""
    mapped: tuple[str, ...]
    """Who reads without a fault."""
    writable: tuple[str, ...]
    """Who writes without a fault."""
    owner: str | None
    """Who has the data first."""
    read_mostly: bool
    preferred: Location | None
    accessed_by: tuple[str, ...]
    last_prefetch: Location | None
    node: int
    """NUMA node of the host copy."""


class Action(NamedTuple):
    """A call's advice, resolved and checked."""

    word: str
    on: bool
    place: Location | None
    value: int | None = None


class Options(TypedDict, total=False):
    """What every dialect can be told of the driver and the host."""

    supported: bool
    """Whether the driver offers managed memory at all (on)."""
    nodes: int
    """NUMA nodes of the host (1)."""
    current_node: int
    """The node of the calling thread (0)."""


class ManagedMemory(abc.ABC):
    """Managed memory of one process under one vendor's rules.

    Made by :func:`svmcore.managed.factory.managed_memory`. Memory: :meth:`alloc`,
    :meth:`free`. Advice: :meth:`mem_advise`, :meth:`mem_prefetch`,
    :meth:`mem_prefetch_batch`, :meth:`mem_discard_batch`,
    :meth:`mem_discard_and_prefetch_batch`. Queries:
    :meth:`mem_range_get_attribute`, :meth:`mem_range_get_attributes`,
    :meth:`mem_get_location_info`, :meth:`page`. Touches: :meth:`access`.

    Parameters
    ----------
    semantics : str
        One of :data:`SEMANTICS`.
    machine : str, Path or Machine
        Its GPUs are the devices, in order.
    **options
        :class:`Options`.

    Raises
    ------
    InvalidArgumentError
        For an unknown machine or a node that there is not.

    Thread safety
    -------------
    One thread at a time.
    """

    vendor: ClassVar[str]
    advice_enum: ClassVar[type[enum.IntEnum]]
    attribute_enum: ClassVar[type[enum.IntEnum]]
    success: ClassVar[enum.IntEnum]
    #: Where allocations begin and end, and the bytes between two of them.
    base: ClassVar[int] = 0x7000_0000_0000
    limit: ClassVar[int] = 1 << 47
    gap: ClassVar[int] = 2 << 20
    #: (word, sense) whose location the vendor does not look at.
    ignores_place: ClassVar[frozenset[tuple[str, bool]]]

    def __init__(
        self, semantics: str, machine: str | Path | Machine, **options: Unpack[Options]
    ) -> None:
        nodes, current_node = options.get("nodes", 1), options.get("current_node", 0)
        self.semantics = semantics
        self.machine = Machine.resolve(machine)
        self.devices = len(self.machine.gpus)
        self.supported = options.get("supported", True)
        self.nodes, self.current_node = whole("nodes", nodes), whole("current_node", current_node)
        if not 0 <= self.current_node < self.nodes:
            raise InvalidArgumentError(
                f"current_node {current_node} of {nodes} nodes: expected 0 to {nodes - 1}"
            )
        self._allocations: SortedDict[int, int] = SortedDict()  # start -> bytes
        self._next = self.base
        self._adopted = False
        # What was looked up last: most touches are of the same allocation as the one before.
        self._recent = (0, 0)
        self._processors: dict[str | int, int] = {}

    def __repr__(self) -> str:
        return (
            f"<managed memory, semantics {self.semantics}, {self.devices} devices, "
            f"{len(self._allocations)} allocations>"
        )

    # ---- allocations -----------------------------------------------------------------

    def alloc(self, size: int, flags: int = 1) -> int:
        """Allocate managed memory: ``cuMemAllocManaged``, ``aclrtMemAllocManaged`` ...

        Parameters
        ----------
        size : int
            Bytes; rounded up to the granule.
        flags : int
            1 (attach global); CUDA and HIP also 2 (attach host).

        Returns
        -------
        int
            Address; a multiple of 2 MiB. Nothing is there until the first touch.

        Raises
        ------
        ManagedError
            Zero size, unknown flags, more than the vendor's limit, or no support.
        """
        size = whole("size", size)
        self._check_support("alloc")
        if size <= 0:
            raise self._refused("size", "size", f"alloc of {size} bytes: expected 1 or more")
        self._check_alloc(size, whole("flags", flags))
        size = self._rounded(size)
        addr = self._room(size)
        self._allocations[addr] = size
        self._make(addr, size)
        return addr

    def adopt(self, addr: int, size: int) -> None:
        """Make ``[addr, addr + size)``, rounded outward, an allocation: a trace says where it was.

        Raises
        ------
        InvalidArgumentError
            If it overlaps an allocation, is empty, or passes 2**64.
        """
        addr, size = whole("addr", addr), whole("size", size)
        if addr < 0 or size <= 0 or addr + size > ADDRESS_LIMIT:
            raise InvalidArgumentError(
                f"adopt {addr:#x} of {size:#x} bytes: expected a span up to 2**64"
            )
        start = addr // self.granule * self.granule
        size = self._rounded(addr + size - start)
        index = self._allocations.bisect_right(start + size - 1)
        if index:
            before, length = self._allocations.peekitem(index - 1)
            if before + length > start:
                raise InvalidArgumentError(
                    f"adopt {start:#x} of {size:#x} bytes: expected no allocation there, "
                    f"{before:#x} has {length:#x} bytes"
                )
        self._adopted = True
        self._allocations[start] = size
        self._make(start, size)

    def free(self, ptr: int) -> None:
        """Free an allocation and all that was advised of it (D12).

        Raises
        ------
        ManagedError
            If no allocation begins at *ptr*.
        """
        ptr = whole("ptr", ptr)
        if ptr not in self._allocations:
            raise self._refused("foreign", "free", f"free {ptr:#x}: expected an allocation's start")
        self._recent = (0, 0)
        self._unmake(ptr, self._allocations.pop(ptr))

    def allocations(self) -> list[tuple[int, int]]:
        """``(start, size)`` of every allocation, in bytes and address order."""
        return list(self._allocations.items())

    # ---- advice ----------------------------------------------------------------------

    def mem_advise(
        self,
        ptr: int,
        size: int,
        advice: enum.IntEnum | int | str,
        location: Location | str | int | None = None,
        *,
        value: int | None = None,
    ) -> AdviseResult:
        """Give advice on ``[ptr, ptr + size)``, rounded outward to the granule.

        Parameters
        ----------
        ptr, size : int
            Bytes.
        advice : IntEnum, int or str
            The vendor's enumerator or its number; or a name: neutral
            (``read_mostly``, ``unset_read_mostly``) or any vendor's.
        location : Location, str, int or None
            As :meth:`Location.parse` takes it.
        value : int, optional
            For words that take a number (KFD).

        Raises
        ------
        ManagedError
            The vendor's result is in ``result``, the rule in ``rule``. The state is as
            it was, except that ACL applies advice page by page: pages before
            the one that failed keep the change.
        InvalidArgumentError
            For an enumerator of another vendor's enum (convert it), or a location
            of no known form.

        Complexity
        ----------
        O(log n + pieces of equal state in the span).
        """
        ptr, size = whole("ptr", ptr), whole("size", size)
        self._check_support("advise")
        word, on = self._advice(advice)
        place = self._place(word, on, location)
        start, end = self._span("advise", ptr, size)
        return self._advise(start, end, Action(word, on, place, value))

    def mem_prefetch(
        self,
        ptr: int,
        size: int,
        location: Location | str | int,
        flags: int = 0,
        stream: int = PER_THREAD_STREAM,
    ) -> AdviseResult:
        """Prefetch ``[ptr, ptr + size)`` to a place.

        Parameters
        ----------
        ptr, size : int
            Bytes.
        location : Location, str or int
        flags : int
            0.
        stream : int
            0 and 1 are the legacy stream, 2 the thread's own.

        Raises
        ------
        ManagedError
            As :meth:`mem_advise`.
        """
        ptr, size = whole("ptr", ptr), whole("size", size)
        self._check_support("prefetch")
        self._check_flags("prefetch", whole("flags", flags))
        place = self._place("prefetch", True, location)
        start, end = self._span("prefetch", ptr, size)
        return self._advise(start, end, Action("prefetch", True, place))

    def mem_prefetch_batch(
        self,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        prefetch_locs: Sequence[Location | str | int],
        prefetch_loc_idxs: Sequence[int],
        flags: int = 0,
        stream: int = PER_THREAD_STREAM,
    ) -> list[AdviseResult]:
        """Prefetch many spans; place *k* is for the spans from index *k* on.

        Parameters
        ----------
        ptrs, sizes : sequence of int
            Bytes, of one length.
        prefetch_locs, prefetch_loc_idxs : sequence
            Of one length, at most that of *ptrs*; the indices begin with 0 and
            rise strictly.
        flags : int
            0.
        stream : int
            CUDA and HIP refuse the legacy stream.

        Raises
        ------
        ManagedError
            A broken rule of the indices refuses the whole batch. CUDA and HIP check every
            member before the first; ACL runs them in order, what came before the failure
            stays done.
        """
        self._check_batch("prefetch batch", ptrs, sizes, flags, stream)
        places = self._batch_places(len(ptrs), prefetch_locs, prefetch_loc_idxs)
        members = [
            (whole("ptr", ptr), whole("size", size), place)
            for ptr, size, place in zip(ptrs, sizes, places, strict=True)
        ]
        if self.checks_batch_first:
            for ptr, size, _ in members:
                self._span("prefetch batch", ptr, size)
        return [self.mem_prefetch(ptr, size, place) for ptr, size, place in members]

    def mem_discard_batch(
        self,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        flags: int = 0,
        stream: int = PER_THREAD_STREAM,
    ) -> list[AdviseResult]:
        """The contents of these spans are not needed until written or prefetched (C12).

        Raises
        ------
        ManagedError
            Where the vendor has no discard, or as :meth:`mem_prefetch_batch`.
        """
        self._check_cuda_only("discard", "C12")
        self._check_batch("discard batch", ptrs, sizes, flags, stream)
        spans = [
            self._span("discard batch", whole("ptr", ptr), whole("size", size))
            for ptr, size in zip(ptrs, sizes, strict=True)
        ]
        return [self._advise(start, end, Action("discard", True, None)) for start, end in spans]

    def mem_discard_and_prefetch_batch(
        self,
        ptrs: Sequence[int],
        sizes: Sequence[int],
        prefetch_locs: Sequence[Location | str | int],
        prefetch_loc_idxs: Sequence[int],
        flags: int = 0,
        stream: int = PER_THREAD_STREAM,
    ) -> list[AdviseResult]:
        """Both, one after the other (C13); a batch that one of them refuses does neither."""
        self._check_cuda_only("discard", "C12")
        self._check_batch("discard and prefetch batch", ptrs, sizes, flags, stream)
        self._batch_places(len(ptrs), prefetch_locs, prefetch_loc_idxs)
        self.mem_discard_batch(ptrs, sizes, flags, stream)
        return self.mem_prefetch_batch(ptrs, sizes, prefetch_locs, prefetch_loc_idxs, flags, stream)

    # ---- queries ---------------------------------------------------------------------

    def mem_range_get_attribute(
        self, attribute: enum.IntEnum | int | str, ptr: int, size: int, data_size: int = 4
    ) -> int | list[int]:
        """One attribute of ``[ptr, ptr + size)``: what all pages agree on.

        Parameters
        ----------
        attribute : IntEnum, int or str
            The vendor's enumerator, its number or its member's name.
        ptr, size : int
            Bytes.
        data_size : int
            Bytes of the answer: 4, for ACCESSED_BY a multiple of 4.

        Returns
        -------
        int, or list of int for ACCESSED_BY
            Devices are numbers, -1 the host, -2 nobody or mixed; unused slots are -2.

        Raises
        ------
        ManagedError
            As :meth:`mem_advise`, and for a wrong *data_size*.

        Complexity
        ----------
        O(log n + pieces of equal state in the span).
        """
        ptr, size, data_size = whole("ptr", ptr), whole("size", size), whole("data_size", data_size)
        self._check_support("query")
        name = self._attribute(attribute).name
        listed = self._listed(name)
        if (data_size % 4 or data_size <= 0) if listed else data_size != 4:
            wanted = "a multiple of 4, not 0" if listed else "4"
            raise self._refused(
                "data_size", "data size", f"query {name} into {data_size} bytes: expected {wanted}"
            )
        start, end = self._span("query", ptr, size)
        if listed:
            found = self._query_list(start, end, name)
            slots = data_size // 4
            return (found + [DEVICE_INVALID] * slots)[:slots]
        return self._query(start, end, name)

    def mem_range_get_attributes(
        self,
        attributes: Sequence[enum.IntEnum | int | str],
        ptr: int,
        size: int,
        data_sizes: Sequence[int] | None = None,
    ) -> list[int | list[int]]:
        """Several attributes at once; *data_sizes* are 4 each if not given.

        Raises
        ------
        ManagedError
            If the two lists differ in length or are empty, or as
            :meth:`mem_range_get_attribute`.
        """
        _expect_several(attributes=attributes, data_sizes=() if data_sizes is None else data_sizes)
        sizes = [4] * len(attributes) if data_sizes is None else list(data_sizes)
        if len(sizes) != len(attributes) or not sizes:
            raise self._refused(
                "count",
                "attributes",
                f"query of {len(attributes)} attributes into {len(sizes)} answers: "
                "expected as many, at least 1",
            )
        pairs = zip(attributes, sizes, strict=True)
        return [self.mem_range_get_attribute(name, ptr, size, n) for name, n in pairs]

    def mem_get_location_info(
        self, ptr: int, size: int, summary_granularity: int, sampling_granularity: int = 0
    ) -> list[Location]:
        """The most common place of each window, sampled (C14).

        Parameters
        ----------
        ptr, size : int
            Bytes.
        summary_granularity : int
            Bytes of a window; more than 0, at most *size*.
        sampling_granularity : int
            Bytes between two samples, at most a window; 0: 2 MiB, or the window.

        Returns
        -------
        list of Location
            One a window; INVALID (NONE) where nothing is resident. Of equally common
            places the first in the order none, host, devices.

        Raises
        ------
        ManagedError
            As :meth:`mem_advise`, and for a granularity out of these bounds.
        """
        ptr, size = whole("ptr", ptr), whole("size", size)
        window = whole("summary_granularity", summary_granularity)
        every = whole("sampling_granularity", sampling_granularity)
        self._check_cuda_only("location info", "C14")
        self._span("location info", ptr, size)
        if not 0 < window <= size or not 0 <= every <= window:
            raise self._refused(
                "granularity",
                "C14",
                f"location info of {size} bytes, windows of {window}, samples every {every}: "
                "expected 0 < window <= size, samples at most a window apart",
            )
        found = []
        for low in range(ptr, ptr + size, window):
            samples = range(low, min(low + window, ptr + size), every or min(window, 2 << 20))
            counts: dict[Location, int] = {}
            for addr in samples:
                place = self._where(addr)
                counts[place] = counts.get(place, 0) + 1
            found.append(max(counts, key=lambda p: (counts[p], -_rank(p))))
        return found

    # ---- touches and views -------------------------------------------------------------

    def access(self, ptr: int, size: int = 1, by: str | int = "gpu0", write: bool = False) -> Touch:
        """A touch of ``[ptr, ptr + size)`` by a processor.

        Parameters
        ----------
        ptr, size : int
            Bytes.
        by : str or int
            ``"cpu"`` or ``"host"``, ``"gpu0"`` ... or a device number.
        write : bool

        Raises
        ------
        ManagedError
            Outside every allocation, or for an unknown processor.
        """
        ptr, size = whole("ptr", ptr), whole("size", size)
        # What is no key is refused by the slow way.
        known = self._processors.get(by) if type(by) in (str, int) else None
        processor = self._processor(by) if known is None else known
        start, end = self._inside("access", ptr, size)
        return self._touch(start, end, processor, bool(write))

    def _processor(self, by: str | int) -> int:
        place = Location.parse(by)
        if not self._known(place):
            raise self._refused("device", "processor", f"access by {by!r}: {self._expected()}")
        number = self._processors[by] = processor_of(place)
        return number

    def is_read_mostly(self, ptr: int, size: int) -> bool:
        """Whether all of ``[ptr, ptr + size)`` is advised read mostly.

        Raises
        ------
        ManagedError
            As :meth:`mem_advise`.
        """
        return self.mem_range_get_attribute("READ_MOSTLY", ptr, size) == 1

    @abc.abstractmethod
    def page(self, addr: int) -> PageView:
        """State of the page at *addr*."""

    @abc.abstractmethod
    def counters(self) -> dict[str, int]:
        """Totals since the beginning: faults, bytes moved, copied, freed ..., by name."""

    # ---- what the machines do ----------------------------------------------------------

    @property
    @abc.abstractmethod
    def granule(self) -> int:
        """Bytes to which spans are rounded outward."""

    @property
    def checks_batch_first(self) -> bool:
        """Whether a batch is checked whole before its first member runs."""
        return True

    @abc.abstractmethod
    def _make(self, addr: int, size: int) -> None: ...

    @abc.abstractmethod
    def _unmake(self, addr: int, size: int) -> None: ...

    @abc.abstractmethod
    def _advise(self, start: int, end: int, action: Action) -> AdviseResult: ...

    @abc.abstractmethod
    def _touch(self, start: int, end: int, processor: int, write: bool) -> Touch: ...

    @abc.abstractmethod
    def _query(self, start: int, end: int, name: str) -> int: ...

    @abc.abstractmethod
    def _query_list(self, start: int, end: int, name: str) -> list[int]: ...

    def _listed(self, name: str) -> bool:
        """Whether the answer to a query of that name is a list of devices."""
        return name == "ACCESSED_BY"

    @abc.abstractmethod
    def _where(self, addr: int) -> Location:
        """Where the data of a page is, NONE if nowhere."""

    # ---- checks ------------------------------------------------------------------------

    def _refused(self, kind: str, rule: str, what: str) -> ManagedError:
        return failure(self.vendor, kind, rule, what)

    def _check_support(self, call: str) -> None:
        if not self.supported:
            raise self._refused(
                "unsupported", "capability", f"{call}: expected a driver with managed memory"
            )

    def _check_alloc(self, size: int, flags: int) -> None:
        if flags not in (1, 2):
            raise self._refused(
                "alloc_flags", "flag", f"alloc with flags {flags}: expected 1 (global) or 2 (host)"
            )

    def _room(self, size: int) -> int:
        """Where an allocation of *size* bytes goes: behind the last one, else in the first hole."""
        taken = (size + self.gap + _ALIGN - 1) // _ALIGN * _ALIGN
        addr = self._next
        if addr + taken > self.limit:
            addr = self.base
            for start, length in self._allocations.items():
                if addr + taken <= start:
                    break
                addr = max(addr, (start + length + self.gap + _ALIGN - 1) // _ALIGN * _ALIGN)
            if addr + taken > self.limit:
                raise self._refused(
                    "memory", "size", f"alloc of {size} bytes: expected room for it"
                )
        self._next = max(self._next, addr + taken)
        return addr

    def _check_flags(self, call: str, flags: int) -> None:
        if flags:
            raise self._refused("flags", "flags", f"{call} with flags {flags}: expected 0")

    def _check_cuda_only(self, call: str, rule: str) -> None:
        self._check_support(call)
        if self.vendor != "cuda":
            raise self._refused(
                "unsupported", rule, f"{call}: expected semantics cuda, {self.semantics} has none"
            )

    def _check_batch(
        self, call: str, ptrs: Sequence[int], sizes: Sequence[int], flags: int, stream: int
    ) -> None:
        self._check_support(call)
        self._check_flags(call, whole("flags", flags))
        _expect_several(ptrs=ptrs, sizes=sizes)
        if len(ptrs) != len(sizes) or not len(ptrs):
            raise self._refused(
                "count",
                "C13",
                f"{call} of {len(ptrs)} addresses and {len(sizes)} sizes: "
                "expected as many, at least 1",
            )
        if self.checks_batch_first and stream in (0, LEGACY_STREAM):
            raise self._refused(
                "stream", "C12", f"{call} in stream {stream}: expected not the legacy NULL stream"
            )

    def _batch_places(
        self, count: int, locs: Sequence[Location | str | int], idxs: Sequence[int]
    ) -> list[Location]:
        """The place of each member; the rules of the indices (C13)."""
        _expect_several(prefetch_locs=locs, prefetch_loc_idxs=idxs)
        starts = [whole("index", i) for i in idxs]
        rising = all(a < b for a, b in itertools.pairwise(starts))
        if (
            len(locs) != len(starts)
            or not 0 < len(starts) <= count
            or starts[0] != 0
            or not rising
            or starts[-1] >= count
        ):
            raise self._refused(
                "batch",
                "C13",
                f"batch of {count} with {len(locs)} locations from {starts}: expected indices "
                "that begin with 0, rise, end below the number of members, one a location",
            )
        if not self.checks_batch_first and (count > _MOST_RANGES or len(starts) > _MOST_PLACES):
            raise self._refused(
                "too_many",
                "batch",
                f"batch of {count} with {len(starts)} locations: "
                f"expected at most {_MOST_RANGES} and {_MOST_PLACES}",
            )
        places = [self._place("prefetch", True, loc) for loc in locs]
        ends = [*starts[1:], count]
        return [
            place
            for place, low, high in zip(places, starts, ends, strict=True)
            for _ in range(low, high)
            if place is not None
        ]

    def _advice(self, advice: enum.IntEnum | int | str) -> Meaning:
        if isinstance(advice, str):
            named = meaning_of(advice)
            if named is not None and self._takes(self._same_word(named)):
                return self._same_word(named)
        elif isinstance(advice, enum.IntEnum) and not isinstance(advice, self.advice_enum):
            raise self._refused(
                "advice",
                "enum",
                f"advice {type(advice).__name__}.{advice.name}: expected "
                f"{self.advice_enum.__name__}, see svmcore.managed.convert",
            )
        elif whole("advice", advice) in self.advice_enum.__members__.values():
            return self._same_word(self._meaning(self.advice_enum(advice)))
        numbers = ", ".join(str(int(member)) for member in self.advice_enum)
        words = ", ".join(
            f"{'[unset_]' * told.unset}{word}"
            for word, told in WORDS.items()
            if self._takes(self._same_word(Meaning(word, True)))
        )
        raise self._refused(
            "advice",
            "enum",
            f"advice {advice!r}: expected one of {numbers}, {words}, or a vendor's name of one",
        )

    @abc.abstractmethod
    def _meaning(self, advice: enum.IntEnum) -> Meaning: ...

    def _takes(self, meaning: Meaning) -> bool:
        """Whether the vendor has advice of that meaning."""
        return any(self._same_word(self._meaning(member)) == meaning for member in self.advice_enum)

    def _same_word(self, meaning: Meaning) -> Meaning:
        """The meaning in the words that the dialect uses."""
        return vendors_word(meaning)

    def _attribute(self, attribute: enum.IntEnum | int | str) -> enum.IntEnum:
        known = self.attribute_enum
        if isinstance(attribute, str):
            if attribute in known.__members__:
                return known[attribute]
        elif not isinstance(attribute, enum.IntEnum) or isinstance(attribute, known):
            if whole("attribute", attribute) in known.__members__.values():
                return known(attribute)
        names = ", ".join(f"{member.name} {int(member)}" for member in known)
        raise self._refused("attribute", "enum", f"attribute {attribute!r}: expected {names}")

    def _expected(self) -> str:
        return f"expected cpu, or a device of 0 to {self.devices - 1}"

    def _known(self, place: Location) -> bool:
        """Whether the place is one that this machine has."""
        if place.type == CudaMemLocationType.DEVICE:
            return 0 <= place.id < self.devices
        if place.type == CudaMemLocationType.HOST_NUMA:
            return 0 <= place.id < self.nodes
        return place.is_host

    def _place(self, word: str, on: bool, location: Location | str | int | None) -> Location | None:
        """The location of a call, checked; ``None`` where the vendor ignores it."""
        if (word, on) in self.ignores_place:
            return None
        place = Location.parse(location)
        if place.type == CudaMemLocationType.DEVICE:
            if not self._known(place):
                raise self._refused(
                    "device", "device", f"{word}, device {place.id}: {self._expected()}"
                )
            return place
        if place.type == CudaMemLocationType.HOST_NUMA_CURRENT:
            return Location.host_numa(self.current_node)
        if not self._known(place):
            raise self._refused(
                "location",
                "location",
                f"{word} at {place}: {self._expected()}, or a node of 0 to {self.nodes - 1}",
            )
        return place

    # ---- spans -------------------------------------------------------------------------

    def _rounded(self, size: int) -> int:
        return (size + self.granule - 1) // self.granule * self.granule

    def _span(self, call: str, ptr: int, size: int) -> tuple[int, int]:
        """``[start, end)`` of a call: checked, rounded outward, inside one allocation."""
        self._check_pointer(call, ptr, size)
        start, end = self._outward(ptr, size)
        return self._covered(call, ptr, size, start, end)

    def _outward(self, ptr: int, size: int) -> tuple[int, int]:
        start = ptr // self.granule * self.granule
        return start, start + self._rounded(ptr + size - start)

    def _inside(self, call: str, ptr: int, size: int) -> tuple[int, int]:
        """``[start, end)`` of an access, in whole 4 KiB pages inside one allocation."""
        self._check_pointer(call, ptr, size)
        start = ptr // PAGE_SIZE * PAGE_SIZE
        end = -(-(ptr + size) // PAGE_SIZE) * PAGE_SIZE
        return self._covered(call, ptr, size, start, end)

    def _check_pointer(self, call: str, ptr: int, size: int) -> None:
        if ptr <= 0:
            raise self._refused("null", "null", f"{call} {ptr:#x}: expected an address")
        if size <= 0:
            raise self._refused("size", "size", f"{call} of {size} bytes: expected 1 or more")

    def _covered(self, call: str, ptr: int, size: int, start: int, end: int) -> tuple[int, int]:
        there = self._allocation(start)
        if there is None:
            raise self._refused(
                "foreign", "span", f"{call} {ptr:#x}: expected managed memory at this address"
            )
        stop = there[0] + there[1]
        if end > stop:
            raise self._refused(
                "beyond",
                "span",
                f"{call} {ptr:#x} of {size:#x} bytes: expected an end of at most {stop:#x}",
            )
        return start, end

    def _allocation(self, addr: int) -> tuple[int, int] | None:
        """Start and size of the allocation at *addr*."""
        start, size = self._recent
        if start <= addr < start + size:
            return self._recent
        index = self._allocations.bisect_right(addr)
        if not index:
            return None
        self._recent = start, size = self._allocations.peekitem(index - 1)
        return self._recent if addr < start + size else None


def _expect_several(**arguments: Any) -> None:
    """Refuse one value where several are meant, each under its name."""
    for name, value in arguments.items():
        if not isinstance(value, Collection) or isinstance(value, str | bytes):
            raise InvalidArgumentError(f"{name} {value!r:.80}: expected a list")


def processor_names(processors: Iterable[int]) -> tuple[str, ...]:
    """Names of processor numbers."""
    return tuple("cpu" if p == HOST else f"gpu{p - 1}" for p in processors)


def _rank(place: Location) -> int:
    """Order of places that are equally common."""
    return 0 if place.type == CudaMemLocationType.INVALID else 1 + (not place.is_host) + place.id


def agreed(values: Iterable[Any], mixed: Any) -> Any:
    """The value that all have, or *mixed*."""
    found = set(values)
    return found.pop() if len(found) == 1 else mixed
