"""System and Space: the objects that users hold.

Addresses and sizes are bytes, intervals half-open. The caller owns the clock:
every call takes ``t_ns`` (default: the space's present time, which never goes
back) and every result carries ``ready_ns``, when it is done in modelled time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy.typing as npt

from ._process import Node
from .attributes import (
    ATTRIBUTE_BY_WORD,
    LOCATION_SYSTEM,
    LOCATION_UNDEFINED,
    Attribute,
    Flag,
)
from .errors import (
    AddressError,
    Errno,
    InvalidArgumentError,
    NotSupportedError,
    OutOfMemoryError,
    OverflowAddressError,
    StateFileError,
    SvmError,
    error_from_errno,
)
from .machine import Machine
from .policies.base import SWITCHES, Policy, make_policy, policy_from_dict
from .policies.outcome import Outcome
from .units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SHIFT, PAGE_SIZE, pages_of, whole

__all__ = [
    "REPLAY_MEMBERS",
    "REPLAY_SPEC",
    "AccessResult",
    "Candidate",
    "Explanation",
    "FaultResult",
    "RangeInfo",
    "Space",
    "System",
]

#: Key of a Spec, and the beginning of the members' names, that belong to a replay on its way:
#: a space is loaded from its checkpoint too.
REPLAY_SPEC, REPLAY_MEMBERS = "replay", "replay_"


#: Rules of :meth:`Space.explain` that the best restore location ends with.
_RESTORE_RULES = ("apu", "preferred location", "access", "access in place", "no access")
#: Why the pages of a range made on a fault go to the GPU, or stay.
_NEW_RANGE = (
    "A range made on a fault has no preferred location and gives every GPU access.",
    "A range made on a fault stays in system memory on a heap, on a stack and on an APU.",
)

_make_result = tuple.__new__


class AccessResult(NamedTuple):
    """What a touch met.

    Attributes
    ----------
    code : str
        ``"OK"`` or the errno name of a fatal end, for example ``"EACCES"``.
    reason : str
        ``"ok"`` or why it was fatal, for example ``"no_access"``.
    faults, duplicates : int
        Faults served on the way, and deliveries that the driver dropped.
    remote_pages : int
        Page touches answered from another processor's memory.
    addr : int or None
        Byte address of the page of a fatal end.
    ready_ns : int
        Modelled time when the touch was done.
    moved_pages : int
        4 KiB pages that moved on the way, in either direction.
    """

    code: str
    reason: str
    faults: int
    duplicates: int
    remote_pages: int
    addr: int | None
    ready_ns: int
    moved_pages: int

    @property
    def ok(self) -> bool:
        """Whether every page was served."""
        return self.code == "OK"


class FaultResult(NamedTuple):
    """One delivery of a page fault by the driver's exact rules.

    Attributes
    ----------
    code : str
        ``"OK"`` (also when the driver drops the delivery) or an errno name.
    reason : str
        ``ok``, ``duplicate``, ``stale``, ``no_access`` ... : why it ended so.
    location : str or None
        Best restore location, once known: ``"cpu"``, ``"gpu0"`` ...
    window : (int, int) or None
        Bytes ``[start, end)`` that the fault restores.
    migrated_pages : int
    migration : bool
        A migration was done, even if no page had to move.
    effects : Outcome
        Every effect in order, in pages, as the vector files have it.
    ready_ns : int
        Modelled time when the fault was done.
    """

    code: str
    reason: str
    location: str | None
    window: tuple[int, int] | None
    migrated_pages: int
    migration: bool
    effects: Outcome
    ready_ns: int


class RangeInfo(NamedTuple):
    """One range of a space, in bytes and names."""

    start: int
    """First byte address."""
    size: int
    """Bytes."""
    preferred: str
    """Preferred location: ``cpu``, ``gpu0`` ... or ``undefined``."""
    prefetch: str
    """Last prefetch location, likewise."""
    actual: str
    """Where pages may be: ``cpu``, or the GPU that may hold some."""
    granularity: int
    """log2 of the pages that one fault restores."""
    flags: Flag
    access: tuple[str, ...]
    """GPUs that may access and migrate."""
    access_in_place: tuple[str, ...]
    """GPUs that may access in place."""
    mapped: tuple[str, ...]
    """GPUs whose page tables have it (drivers before 7.3 know only whether any has)."""
    device_pages: int
    """4 KiB pages in GPU memory."""


class Candidate(NamedTuple):
    """One rule that was asked where a page belongs, and its answer."""

    rule: str
    """Its name, for example ``"preferred location"``."""
    location: str | None
    """The place that it would choose, ``None`` where it says nothing."""
    chosen: bool
    """Whether it decided; the rules before it did not hold."""
    why: str
    """A sentence."""


class Explanation(NamedTuple):
    """Why a GPU's touch of an address would end as it would."""

    addr: int
    by: str
    rule: str
    """The rule that decides, for example ``"access"`` or ``"preferred location"``."""
    text: str
    """One sentence for people."""
    location: str | None
    """Best restore location, ``None`` where the access is fatal or nothing moves."""
    window: tuple[int, int] | None
    """Bytes ``[start, end)`` that a fault would restore."""
    candidates: tuple[Candidate, ...] = ()
    """The rules of the location in the order in which they are asked, the last one decided;
    empty where none is asked, or where a policy does not tell them."""


class System:
    """One node: its devices' memory, shared by the processes on it.

    Parameters
    ----------
    machine : str, path or Machine
        A preset's name, a TOML file, or a machine.

    Examples
    --------
    >>> system = System("gpu-80g")
    >>> first, second = system.space(), system.space()
    >>> system.used("gpu0")
    0
    """

    def __init__(self, machine: str | os.PathLike[str] | Machine = "gpu-80g") -> None:
        self.machine = Machine.resolve(machine)
        #: The device memory that the spaces share.
        self.node = Node()
        self._reserved = [0] * len(self.machine.gpus)  # pages

    def space(self, policy: str | Policy = "kfd", **settings: Any) -> Space:
        """A process on this node; parameters as :class:`Space`."""
        return Space(self.machine, policy=policy, system=self, **settings)

    def used(self, gpu: str) -> int:
        """Bytes of the GPU's memory in use: objects of all processes, and what is reserved."""
        return int(self.node.used(_gpu_index(gpu, self.machine)) * PAGE_SIZE)

    def reserved(self, gpu: str) -> int:
        """Bytes of the GPU's memory that :meth:`reserve` took."""
        return self._reserved[_gpu_index(gpu, self.machine)] * PAGE_SIZE

    def reserve(self, gpu: str, size: int) -> None:
        """Take memory of a GPU for what is no range: a plain allocation, a context.

        Nothing evicts it. Objects of the spaces make room for it, the oldest first.

        Parameters
        ----------
        gpu : str
            ``gpu0`` ...
        size : int
            Bytes, rounded up to pages of 4 KiB.

        Raises
        ------
        OutOfMemoryError
            If it does not fit; nothing is taken.
        InvalidArgumentError
            For an unknown GPU or a negative size.

        Complexity
        ----------
        O(1), plus the pages that are evicted.
        """
        index, npages = _gpu_index(gpu, self.machine), _npages(size)
        capacity = self.machine.gpus[index].vram_pages
        # More than objects could make room for: none of them leaves.
        fits = self._reserved[index] + npages <= capacity
        if not fits or not self.node.take(index, npages, capacity):
            raise OutOfMemoryError(
                f"{gpu}: {npages * PAGE_SIZE} bytes, expected at most "
                f"{capacity * PAGE_SIZE - self.used(gpu)} free"
            )
        self._reserved[index] += npages

    def release(self, gpu: str, size: int) -> None:
        """Give back what :meth:`reserve` took.

        Raises
        ------
        InvalidArgumentError
            For an unknown GPU or more than was reserved.
        """
        index, npages = _gpu_index(gpu, self.machine), _npages(size)
        if npages > self._reserved[index]:
            raise InvalidArgumentError(
                f"{gpu}: release {npages * PAGE_SIZE} bytes, expected at most "
                f"{self.reserved(gpu)} reserved"
            )
        self.node.give(index, npages)
        self._reserved[index] -= npages


class Space:
    """One process's shared virtual memory on a machine.

    By task: mappings :meth:`map`, :meth:`unmap`, :meth:`protect`,
    :meth:`invalidate`; attributes :meth:`set_attr`, :meth:`get_attr`,
    :meth:`prefetch`, :meth:`advise`, :meth:`set_xnack`; touches :meth:`access`,
    :meth:`fault`; views :meth:`ranges`, :meth:`residency`, :meth:`explain`,
    :meth:`counters`; clock :attr:`now_ns`, :meth:`step`, :meth:`next_event_ns`;
    memory pressure :meth:`evict`; state :meth:`save`, :meth:`load`, :meth:`clone`.

    Parameters
    ----------
    machine : str, path or Machine
        A preset's name (``gpu-80g``), a TOML file, or a machine.
    policy : str or Policy
        ``"kfd"`` or ``"kfd(kernel=6.12, xnack=off)"``.
    system : System, optional
        The node to live on; a node of its own when not given.
    **settings
        Parameters of the policy that replace those in *policy*.

    Raises
    ------
    InvalidArgumentError
        For an unknown machine, policy or parameter, or a machine with pages of 64 KiB
        under a policy that does not know them.

    Thread safety
    -------------
    One thread at a time uses a space, and the spaces of one system. Independent
    spaces run side by side.

    Examples
    --------
    >>> space = Space("gpu-80g")
    >>> space.map(0x7F00_0000_0000, 64 << 20)
    >>> space.access(0x7F00_0000_0000, 8 << 20, by="gpu0", write=True).faults
    4
    >>> space.residency(0x7F00_0000_0000, 8 << 20)
    [(139637976727552, 8388608, 'gpu0')]
    """

    def __init__(
        self,
        machine: str | os.PathLike[str] | Machine = "gpu-80g",
        *,
        policy: str | Policy = "kfd",
        system: System | None = None,
        **settings: Any,
    ) -> None:
        self.machine = Machine.resolve(machine)
        self.policy = make_policy(policy, **settings)
        self.policy.check_machine(self.machine)
        self.system = system or System(self.machine)
        #: The process that decides; its own interface speaks pages and errnos.
        self.process = self.policy.create(self.machine, self.system.node)
        self._processors = {"cpu": 0} | {f"gpu{i}": i + 1 for i in range(len(self.machine.gpus))}

    def __repr__(self) -> str:
        now = "" if self.xnack == getattr(self.policy, "xnack", self.xnack) else ", switched"
        return (
            f"<Space of {len(self.process)} ranges, {self.policy}, "
            f"xnack {'on' if self.xnack else 'off'}{now}, on {self.machine.name}>"
        )

    # ---- clock -----------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """Present modelled time, ns."""
        return int(self.process.now)

    def next_event_ns(self) -> int | None:
        """When the next pending work is due, ``None`` without any."""
        due = self.process.next_event_ns
        return None if due is None else int(due)

    def step(self, t_ns: int | None = None) -> int:
        """Move the clock to *t_ns* and run what is due by then; the present time.

        Raises
        ------
        InvalidArgumentError
            If *t_ns* lies in the past.
        """
        self.process.step(self._time(t_ns))
        return self.now_ns

    # ---- mappings --------------------------------------------------------------------

    def map(
        self,
        addr: int,
        size: int,
        *,
        prot: str = "rw",
        kind: str = "anon",
        t_ns: int | None = None,
    ) -> None:
        """A CPU mapping appears.

        Parameters
        ----------
        addr, size : int
            Bytes, page aligned.
        prot : str
            ``"rw"``, ``"r"``, ``"w"`` or ``"-"``.
        kind : str
            ``anon``, ``file``, ``heap``, ``stack``, ``io`` or ``pfnmap``.

        Raises
        ------
        InvalidArgumentError
            Misaligned, empty, an unknown protection or kind, or overlapping a
            mapping (code EEXIST).
        OverflowAddressError
            If it passes 2**64.
        """
        first, last = self._pages(addr, size)
        _check_prot(prot)
        if kind not in ("anon", "file", "heap", "stack", "io", "pfnmap"):
            raise InvalidArgumentError(
                f"map {addr:#x}: kind {kind!r}, expected anon, file, heap, stack, io or pfnmap"
            )
        self.process.step(self._time(t_ns))
        ret = self.process.mmap(first, last, prot, kind)
        if ret == -Errno.EEXIST:
            raise error_from_errno(
                ret, f"map {addr:#x} of {size:#x} bytes: expected no mapping there yet"
            )
        self._raise(ret, f"map {addr:#x} of {size:#x} bytes")

    def unmap(self, addr: int, size: int, t_ns: int | None = None) -> None:
        """CPU mappings go; the ranges on them follow at the next step (section 13).

        Raises
        ------
        InvalidArgumentError
            Misaligned or empty.
        """
        first, last = self._pages(addr, size)
        self.process.step(self._time(t_ns))
        self._raise(self.process.munmap(first, last), f"unmap {addr:#x} of {size:#x} bytes")
        self.process.settle()

    def protect(self, addr: int, size: int, prot: str, t_ns: int | None = None) -> None:
        """The protection of mapped pages changes (mprotect).

        Raises
        ------
        OutOfMemoryError
            If there is a hole; what lies before it stays changed, as in Linux.
        """
        first, last = self._pages(addr, size)
        _check_prot(prot)
        self.process.step(self._time(t_ns))
        ret = self.process.mprotect(first, last, prot)
        self._raise(ret, f"protect {addr:#x} of {size:#x} bytes: expected all of it mapped")
        self.process.settle()

    def invalidate(self, addr: int, size: int, t_ns: int | None = None) -> None:
        """The CPU page tables change without loss of data (an MMU notification)."""
        first, last = self._pages(addr, size)
        self.process.step(self._time(t_ns))
        self.process.invalidate(first, last)
        self.process.settle()

    # ---- attributes ------------------------------------------------------------------

    def set_attr(
        self,
        addr: int,
        size: int,
        attrs: Mapping[str, Any] | Iterable[tuple[str | int, Any]],
        t_ns: int | None = None,
    ) -> int:
        """Set attributes of ``[addr, addr + size)``, as the driver's ioctl does.

        Parameters
        ----------
        addr, size : int
            Bytes, page aligned.
        attrs : mapping or sequence of (attribute, value)
            Attribute: a KFD name (``PREFERRED_LOC``), its number or a neutral
            word (``preferred_location``). Value: a location (``"cpu"``,
            ``"gpu0"``, ``"undefined"``), a flag or a number.

        Returns
        -------
        int
            Modelled time when it was done, ns.

        Raises
        ------
        SvmError
            The subclass of the driver's errno. A refused call leaves the state
            as it was; an error in moving or mapping leaves the attributes set,
            as in the driver.

        Complexity
        ----------
        O(log n + ranges in the interval), plus the pages that move.

        Source
        ------
        KFD ``svm_range_set_attr``; cases ``kfd_d01`` to ``kfd_d19``.
        """
        self._needs("set_attr", "set KFD attributes; advise() gives advice to any policy")
        pairs = self._attributes(attrs)
        self._check_span(addr, size)
        self.process.step(self._time(t_ns))
        ret = self.process.set_attr(addr, size, pairs)
        self.process.settle()
        if ret == -Errno.EINVAL:
            raise InvalidArgumentError(
                f"set_attr {addr:#x} of {size:#x} bytes: EINVAL, expected attribute types 0 to 7 "
                "and GPUs that support SVM; preferred location also cpu or undefined, prefetch "
                "also cpu"
            )
        self._raise(ret, f"set_attr {addr:#x} of {size:#x} bytes")
        return self.now_ns

    def get_attr(self, addr: int, size: int, t_ns: int | None = None) -> dict[str, Any]:
        """Attributes of ``[addr, addr + size)``, aggregated as the driver's ioctl does.

        Returns
        -------
        dict
            ``preferred``, ``prefetch`` (locations), ``flags`` set on all ranges,
            ``any_flags`` set on any, ``granularity`` (the least), and ``access``:
            GPU name -> ``access``, ``access_in_place`` or ``no_access``.
        """
        self._needs("get_attr", "get KFD attributes; ranges() tells what it knows")
        self._check_span(addr, size)
        gpus = self.machine.gpus
        wanted = [
            (Attribute.PREFERRED_LOC, 0),
            (Attribute.PREFETCH_LOC, 0),
            (Attribute.SET_FLAGS, 0),
            (Attribute.CLR_FLAGS, 0),
            (Attribute.GRANULARITY, 0),
            *((Attribute.ACCESS, gpu.id) for gpu in gpus),
        ]
        now = self._time(t_ns)
        self.process.step(now)
        outcome = self.process.begin(now)
        ret = self.process.get_attr(addr, size, wanted)
        self.process.finish(ret)
        self._raise(ret, f"get_attr {addr:#x} of {size:#x} bytes")
        out = outcome.out or []
        values = [value for _, value in out[:5]]
        return {
            "preferred": self.location_name(values[0]),
            "prefetch": self.location_name(values[1]),
            "flags": Flag(values[2]),
            "any_flags": Flag(~values[3] & 0xFF),
            "granularity": values[4],
            "access": {
                self.location_name(gpu_id): Attribute(kind).name.lower() for kind, gpu_id in out[5:]
            },
        }

    def prefetch(self, addr: int, size: int, to: str, t_ns: int | None = None) -> int:
        """Move the pages to a location now; modelled time when it was done, ns.

        A prefetch to a full device is no error: nothing moves (section 5).
        """
        if not hasattr(self.process, "prefetch"):
            return self.set_attr(addr, size, [(Attribute.PREFETCH_LOC, to)], t_ns)
        first, last = self._pages(addr, size)
        processor = self._processor(to)
        self.process.step(self._time(t_ns))
        ret = self.process.prefetch(first, last, processor)
        self.process.settle()
        self._raise(ret, f"prefetch {addr:#x} of {size:#x} bytes")
        return self.now_ns

    def advise(
        self,
        addr: int,
        size: int,
        advice: str,
        location: str | None = None,
        value: int | None = None,
        t_ns: int | None = None,
    ) -> int:
        """Give advice by a neutral word or a vendor's name; modelled time when it was done, ns.

        Parameters
        ----------
        advice : str
            A word of :data:`svmcore.advice.WORDS` that has an attribute:
            ``preferred_location``, ``accessed_by``, ``access_in_place``,
            ``no_access``, ``prefetch`` (with *location*); ``granularity``,
            ``set_flags``, ``clear_flags`` (with *value*); ``read_mostly``,
            ``coarse_grain``, ``fine_grain`` (neither); ``unset_`` before a word
            takes it back. Or an enumerator, as ``hipMemAdviseSetCoarseGrain``.

        Raises
        ------
        InvalidArgumentError
            For another name, or an argument missing or too many.
        SvmError
            As :meth:`set_attr`.
        """
        from .advice import ALIASES, KFD_ATTRIBUTE, WORDS, meaning_of

        meaning = meaning_of(advice)
        if self.policy.ADVICE:
            return self._advise(addr, size, advice, location, value, t_ns)
        if meaning is None or meaning not in KFD_ATTRIBUTE:
            known = ", ".join(
                sorted([*WORDS.keys() & {word for word, _ in KFD_ATTRIBUTE}, *ALIASES])
            )
            raise InvalidArgumentError(f"advice {advice!r}: expected one of {known}")
        attribute, fixed = KFD_ATTRIBUTE[meaning]
        if fixed is not None:
            if location is not None or value is not None:
                raise InvalidArgumentError(f"advice {advice}: expected no location and no value")
            return self.set_attr(addr, size, [(attribute, fixed)], t_ns)
        located = WORDS[meaning.word].location
        argument = location if located else value
        if argument is None:
            needed = "location" if located else "value"
            raise InvalidArgumentError(f"advice {advice}: {needed} is missing")
        return self.set_attr(addr, size, [(attribute, argument)], t_ns)

    def _advise(
        self,
        addr: int,
        size: int,
        advice: str,
        location: str | None,
        value: int | None,
        t_ns: int | None,
    ) -> int:
        """Advice to a policy that takes it by its neutral word."""
        from .advice import WORDS, meaning_of

        meaning = meaning_of(advice)
        if meaning is None or meaning.word not in self.policy.ADVICE:
            known = [
                *self.policy.ADVICE,
                *(f"unset_{word}" for word in self.policy.ADVICE if WORDS[word].unset),
            ]
            raise InvalidArgumentError(f"advice {advice!r}: expected one of {', '.join(known)}")
        word, on = meaning
        # A preferred location is taken back whatever it is.
        located = WORDS[word].location and (on or word != "preferred_location")
        if located and location is None:
            raise InvalidArgumentError(f"advice {advice}: location is missing")
        if value is not None or (location is not None and not WORDS[word].location):
            raise InvalidArgumentError(
                f"advice {advice}: expected {'no value' if located else 'no location and no value'}"
            )
        first, last = self._pages(addr, size)
        processor = 0 if location is None else self._processor(location)
        if word == "prefetch":
            return self.prefetch(addr, size, str(location), t_ns)
        self.process.step(self._time(t_ns))
        ret = self.process.advise(word, on, first, last, processor)
        self.process.settle()
        self._raise(ret, f"advice {advice} at {addr:#x} of {size:#x} bytes")
        return self.now_ns

    def _needs(self, name: str, what: str) -> None:
        if not hasattr(self.process, name):
            raise NotSupportedError(f"policy {self.policy.name}: cannot {what}")

    @property
    def xnack(self) -> bool:
        """Whether GPU page faults are retried now (the policy says how the space began)."""
        return bool(self.process.xnack)

    def set_xnack(self, on: bool | str) -> None:
        """Switch retried faults on or off: ranges keep their bits (section 15c).

        Parameters
        ----------
        on : bool or str
            True, False, ``"on"`` or ``"off"``.

        Raises
        ------
        InvalidArgumentError
            If it is none of these.
        """
        self._needs("set_xnack", "switch retried faults off")
        switch = SWITCHES.get(str(on).lower())
        if switch is None:
            raise InvalidArgumentError(f"xnack {on!r}: expected on or off")
        self.process.set_xnack(switch)

    # ---- touches ---------------------------------------------------------------------

    def access(
        self,
        addr: int,
        size: int = 1,
        by: str = "gpu0",
        write: bool = False,
        t_ns: int | None = None,
    ) -> AccessResult:
        """A touch of ``[addr, addr + size)``: silent where mapped, else a fault.

        A fault is delivered again at the earliest time it can succeed, until it
        is served or fatal; the wait enters the modelled time.

        Parameters
        ----------
        addr, size : int
            Bytes; need not be aligned.
        by : str
            ``"cpu"``, ``"gpu0"`` ...
        write : bool
        t_ns : int, optional
            When; the present time by default.

        Raises
        ------
        InvalidArgumentError
            For an unknown processor, an empty span or a time in the past. A
            fatal access is a result, not an exception.

        Complexity
        ----------
        O(2 MiB blocks touched + windows served).
        """
        first, last = pages_of(addr, size)
        processor = self._processors.get(by)
        if processor is None:
            processor = self._processor(by)
        process = self.process
        if t_ns is not None:
            process.step(self._time(t_ns))
        # The process runs what is due by its own clock first.
        ret, reason, faults, duplicates, remote, page = process.access(
            processor, first, last, write
        )
        # Not the class's own constructor: it would take a quarter of this call.
        return _make_result(
            AccessResult,
            (
                _code(ret) if ret else "OK",
                reason,
                faults,
                duplicates,
                remote,
                page << PAGE_SHIFT if ret else None,
                process.now,
                process.moved,
            ),
        )

    def fault(
        self,
        addr: int,
        by: str = "gpu0",
        write: bool = False,
        t_ns: int | None = None,
        *,
        timestamp: int = 0,
    ) -> FaultResult:
        """One delivery of a GPU page fault by the driver's exact rules.

        Parameters
        ----------
        addr : int
            Any byte of the page.
        timestamp : int
            Time stamp of the fault in the GPU's ring, for stale faults.

        Raises
        ------
        InvalidArgumentError
            For an unknown processor, the CPU, or a time in the past.

        Source
        ------
        KFD ``svm_range_restore_pages``; cases ``kfd_d20`` to ``kfd_d33``.
        """
        first, _ = pages_of(addr, 1)
        index = self._processor(by) - 1
        if index < 0:
            raise InvalidArgumentError("fault by 'cpu': expected a GPU; use access() for the CPU")
        now = self._time(t_ns)
        self.process.step(now)
        outcome = self.process.begin(now)
        ret = self.process.fault(self.machine.gpus[index].id, first, write, timestamp)
        self.process.finish(ret)
        self.process.settle()
        window = outcome.window
        return FaultResult(
            _code(ret),
            outcome.reason,
            None if outcome.best_loc is None else self.location_name(outcome.best_loc),
            None if window is None else (window[0] << PAGE_SHIFT, (window[1] + 1) << PAGE_SHIFT),
            sum(row[5] for row in outcome.migr),
            outcome.migration,
            outcome,
            self.now_ns,
        )

    def evict(self, addr: int, t_ns: int | None = None) -> bool:
        """Memory pressure takes the VRAM object of the range at *addr*; whether there was one."""
        first, _ = pages_of(addr, 1)
        self.process.step(self._time(t_ns))
        evicted = bool(self.process.evict(first) == 0)
        self.process.settle()
        return evicted

    # ---- state -----------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that changes in a run, with the whole Spec, to one state file.

        Running on after :meth:`load` gives what running on here gives. Equal
        states give equal bytes. The file at *path* is replaced at once or not
        at all: a kill or a full disk leaves the old one whole.

        Of a system with several spaces this saves the one process: what other
        processes hold of a GPU's memory is theirs.

        Raises
        ------
        StateFileError
            If it cannot be written; what was there is untouched.
        NotSupportedError
            If the policy's processes cannot be saved.

        Complexity
        ----------
        O(ranges + mappings + 2 MiB blocks touched).
        """
        from .image import write_image

        write_image(path, *self.to_image())

    def to_image(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Spec and arrays of :meth:`save`, for those who keep them elsewhere than in a file.

        Returns
        -------
        spec : dict
            ``machine`` and ``policy`` as JSON values.
        arrays : dict of str to array
            Everything that changes in a run; nothing in them is shared with the space.

        Raises
        ------
        NotSupportedError
            If the policy's processes cannot be saved.

        Complexity
        ----------
        O(ranges + mappings + 2 MiB blocks touched).
        """
        spec = {"machine": self.machine.to_dict(), "policy": self.policy.to_dict()}
        return spec, self.policy.pack(self.process)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], machine: str | os.PathLike[str] | Machine | None = None
    ) -> Self:
        """A space as :meth:`save` left it, on a node of its own.

        Memory in use on that node is what the space's own objects take.

        Parameters
        ----------
        path : path
        machine : str, path or Machine, optional
            What the file must have been saved on.

        Raises
        ------
        StateFileError
            If the file cannot be read, is foreign, of a newer version, truncated
            or changed, or holds a state that cannot be.
        InvalidArgumentError
            If *machine* differs from the file's; the message names where.

        Complexity
        ----------
        O(ranges + mappings + 2 MiB blocks touched).
        """
        from .image import read_image

        wanted = None if machine is None else Machine.resolve(machine)
        spec, arrays = read_image(path)
        try:
            space = cls.from_image(spec, arrays)
        except (SvmError, ValueError, OverflowError, TypeError) as error:
            raise StateFileError(str(path), "", str(error)) from error
        if wanted is not None and wanted != space.machine:
            raise InvalidArgumentError(
                f"{path}: {difference('machine', space.machine.to_dict(), wanted.to_dict())} given"
            )
        return space

    @classmethod
    def from_image(cls, spec: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """A space from what :meth:`to_image` gave, on a node of its own.

        Parameters
        ----------
        spec : mapping
        arrays : mapping of str to array
            Read and not kept.

        Raises
        ------
        SvmError
            If they do not fit each other; the message names the table, the row
            and what was expected.

        Complexity
        ----------
        As :meth:`load`.
        """
        if not {"machine", "policy"} <= set(spec) <= {"machine", "policy", REPLAY_SPEC}:
            raise InvalidArgumentError("Spec: expected the keys machine, policy")
        if REPLAY_SPEC in spec:
            arrays = {n: a for n, a in arrays.items() if not n.startswith(REPLAY_MEMBERS)}
        machine = Machine.from_dict(spec["machine"])
        return cls._restored(machine, policy_from_dict(spec["policy"]), arrays)

    def take(self, other: Space) -> None:
        """Become *other*, in its state and on its node; *other* is not to be used any more.

        Raises
        ------
        InvalidArgumentError
            If machine or policy differ; the message names where.
        """
        for name, mine, its in (
            ("machine", self.machine, other.machine),
            ("policy", self.policy, other.policy),
        ):
            if mine != its:
                raise InvalidArgumentError(
                    f"{difference(name, its.to_dict(), mine.to_dict())} given"
                )
        self.system, self.process = other.system, other.process

    def clone(self) -> Self:
        """A space in the same state, on a node of its own; both run on independently.

        Complexity
        ----------
        As :meth:`save` and :meth:`load`, in memory.
        """
        return self._restored(self.machine, self.policy, self.policy.pack(self.process))

    @classmethod
    def _restored(
        cls, machine: Machine, policy: Policy, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Self:
        space = cls(machine, policy=policy)
        policy.unpack(space.process, arrays)
        return space

    # ---- views -----------------------------------------------------------------------

    def ranges(self) -> list[RangeInfo]:
        """Every range in address order.

        A policy with ranges of another kind tells its own: ``ManagedRange`` under uvm.
        """
        if hasattr(self.policy, "ranges"):
            own: list[RangeInfo] = self.policy.ranges(self.process)
            return own
        return [self._range_info(row) for row in self.process.ranges()]

    def residency(self, addr: int, size: int) -> list[tuple[int, int, str]]:
        """Where the pages of ``[addr, addr + size)`` are.

        Returns
        -------
        list of (start, size, where)
            Bytes, whole pages, in order; *where* is ``"cpu"``, ``"gpu0"`` ... or
            ``"absent"`` for pages that nobody touched yet, and ``"cpu+gpu0"`` where there
            are copies. Neighbours differ.

        Complexity
        ----------
        O(pages asked for).
        """
        first, last = pages_of(addr, size)
        runs: list[tuple[int, int, str]] = []
        start, where = first, self._place(first)
        for page in range(first + 1, last + 2):
            here = self._place(page) if page <= last else ""
            if here != where:
                runs.append((start << PAGE_SHIFT, (page - start) << PAGE_SHIFT, where))
                start, where = page, here
        return runs

    def _place(self, page: int) -> str:
        copies = getattr(self.process, "copies", None)
        if copies is not None:
            mask = copies(page)
            names = [_processor_name(p) for p in range(mask.bit_length()) if mask >> p & 1]
            return "+".join(names) or "absent"
        where = self.process.where(page)
        return "absent" if where < 0 else _processor_name(where)

    def range_at(self, addr: int) -> Any:
        """The range at an address as :meth:`ranges` has it, ``None`` without one.

        Complexity
        ----------
        O(log n) under ``kfd``, else O(n) ranges.
        """
        page, _ = pages_of(addr, 1)
        if not hasattr(self.policy, "ranges"):
            row = self.process.find(page)
            return None if row is None else self._range_info(row)
        found = (r for r in self.ranges() if r.start <= addr < r.start + r.size)
        return next(found, None)

    def explain(self, addr: int, by: str = "gpu0", write: bool | int = False) -> Explanation:
        """Which rule decides a touch of *addr*, and what it would do; changes nothing.

        Parameters
        ----------
        addr : int
            Any byte of the page.
        by : str
            The GPU, or ``"cpu"``.
        write : bool or int
            Or the access of a record: 0 read, 1 write, 2 atomic.

        Source
        ------
        KFD order of decisions and best restore location (sections 10 and 10.1).
        """
        page, _ = pages_of(addr, 1)
        processor = self._processor(by)
        places: tuple[Candidate, ...] = ()
        if hasattr(self.policy, "explain"):
            rule, text, location, window = self.policy.explain(
                self.process, page, processor, int(write)
            )
            if hasattr(self.policy, "candidates"):
                rows = self.policy.candidates(self.process, page, processor, int(write))
                places = tuple(Candidate(*row) for row in rows)
        else:
            rule, text, location, window = self._decide(page, processor, bool(write))
            info = self.range_at(addr)
            if info is not None and rule in _RESTORE_RULES:
                places = self._candidates(info, processor - 1)
            elif rule == "unregistered":
                places = (Candidate(rule, location, True, _NEW_RANGE[location == "cpu"]),)
        return Explanation(addr, by, rule, text, location, window, places)

    def counters(self) -> dict[str, int]:
        """Counters of the whole space, by name; sizes in bytes.

        ``migrations`` counts moves of more than 0 pages, ``migration_attempts``
        all moves tried.
        """
        totals = self.process.totals()
        processors = self.process.processors()
        return {
            "faults": sum(p["faults"] for p in processors),
            "duplicate_faults": sum(p["duplicates"] for p in processors),
            "migrations": totals["migrations"],
            "migration_attempts": totals["migration_attempts"],
            "migrated_pages": totals["migrated_pages"],
            "migrated_bytes": totals["migrated_pages"] * PAGE_SIZE,
            "bytes_to_device": totals["pages_to_device"] * PAGE_SIZE,
            "bytes_to_host": totals["pages_to_host"] * PAGE_SIZE,
            "evictions": totals["evictions"],
            "evicted_bytes": totals["evicted_pages"] * PAGE_SIZE,
            "duplicated_bytes": totals["duplicated_pages"] * PAGE_SIZE,
            "remote_accesses": sum(p["remote_pages"] for p in processors),
            "pages_touched": sum(p["pages_touched"] for p in processors),
            "unmaps": totals["unmaps"],
            "maps": totals["maps"],
            "queue_evictions": totals["queue_evictions"],
            "queue_restores": totals["queue_restores"],
            "errors": sum(p["fatal"] for p in processors),
        }

    def counters_by_processor(self) -> dict[str, dict[str, int]]:
        """Counters of each processor that did anything, by its name."""
        return {
            _processor_name(number): counters
            for number, counters in enumerate(self.process.processors())
            if any(counters.values())
        }

    def location_name(self, location: int) -> str:
        """Name of a KFD location value: ``cpu``, ``gpu0`` ... or ``undefined``."""
        if location == LOCATION_SYSTEM:
            return "cpu"
        for index, gpu in enumerate(self.machine.gpus):
            if gpu.id == location:
                return f"gpu{index}"
        return "undefined"

    # ---- helpers ---------------------------------------------------------------------

    def _time(self, t_ns: int | None) -> int:
        now = self.now_ns
        if t_ns is None:
            return now
        t_ns = whole("t_ns", t_ns)
        if t_ns < now:
            raise InvalidArgumentError(
                f"t_ns {t_ns}: expected {now} or later, the clock never goes back"
            )
        return t_ns

    def _check_span(self, addr: int, size: int) -> None:
        addr, size = whole("addr", addr), whole("size", size)
        if addr < 0 or size <= 0 or (addr | size) & PAGE_MASK:
            raise InvalidArgumentError(
                f"addr {addr:#x}, size {size:#x}: expected multiples of {PAGE_SIZE} bytes, "
                "size more than 0"
            )
        if addr + size > ADDRESS_LIMIT:
            raise OverflowAddressError(f"addr {addr:#x} + size {size:#x} passes 2**64")

    def _pages(self, addr: int, size: int) -> tuple[int, int]:
        self._check_span(addr, size)
        return pages_of(addr, size)

    def _processor(self, name: str) -> int:
        number = self._processors.get(name)
        return _gpu_index(name, self.machine) + 1 if number is None else number

    def _attributes(
        self, attrs: Mapping[str, Any] | Iterable[tuple[str | int, Any]]
    ) -> list[tuple[int, int]]:
        items = attrs.items() if isinstance(attrs, Mapping) else attrs
        try:
            return [self._attribute(name, value) for name, value in items]
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(
                f"attributes {attrs!r:.80}: expected {{name: value}} or pairs (name, value)"
            ) from error

    def _attribute(self, name: str | int, value: Any) -> tuple[int, int]:
        if isinstance(name, str):
            known = ATTRIBUTE_BY_WORD.get(name)
            if known is None and name in Attribute.__members__:
                known = Attribute[name]
            if known is None:
                words = ", ".join([*Attribute.__members__, *ATTRIBUTE_BY_WORD])
                raise InvalidArgumentError(f"attribute {name!r}: expected one of {words}")
            name = known
        if isinstance(value, str) and name in (Attribute.SET_FLAGS, Attribute.CLR_FLAGS):
            flags = [word.strip() for word in value.split("|")]
            if not all(word in Flag.__members__ for word in flags):
                raise InvalidArgumentError(
                    f"flags {value!r}: expected {', '.join(Flag.__members__)}, joined by |"
                )
            value = sum({Flag[word] for word in flags})
        elif isinstance(value, str) and name != Attribute.GRANULARITY:
            if value == "undefined":
                value = LOCATION_UNDEFINED
            elif value == "cpu":
                value = LOCATION_SYSTEM
            else:
                value = self.machine.gpus[_gpu_index(value, self.machine)].id
        value = whole(f"attribute {name}:", value)
        if not 0 <= name < 1 << 32 or not 0 <= value < 1 << 32:
            raise InvalidArgumentError(
                f"attribute {name} = {value}: expected numbers of 0 to 0xffffffff"
            )
        return int(name), value

    def _raise(self, ret: int, what: str) -> None:
        if ret == -Errno.EFAULT:
            raise AddressError(f"{what}: EFAULT, expected all of it mapped, no device memory")
        if ret:
            error = error_from_errno(ret, what)
            raise type(error)(f"{what}: {error.code}")

    @property
    def _mapped_per_gpu(self) -> bool:
        rules = getattr(self.process, "rules", None)
        return rules is None or bool(rules.mapped_per_gpu)

    def _range_info(self, row: tuple[int, ...]) -> RangeInfo:
        def names(bits: int) -> tuple[str, ...]:
            return tuple(f"gpu{i}" for i in range(len(self.machine.gpus)) if bits >> i & 1)

        start, last, preferred, prefetch, actual, granularity, flags, access, aip, mapped = row[:10]
        return RangeInfo(
            start << PAGE_SHIFT,
            (last - start + 1) << PAGE_SHIFT,
            self.location_name(preferred),
            self.location_name(prefetch),
            self.location_name(actual),
            granularity,
            Flag(flags & 0xFF),
            names(access),
            names(aip),
            names(mapped) if self._mapped_per_gpu else ("any",) * mapped,
            row[10],
        )

    def _decide(
        self, page: int, processor: int, write: bool
    ) -> tuple[str, str, str | None, tuple[int, int] | None]:
        process = self.process
        vma = process.vma(page)
        if vma is None:
            return "no mapping", "No CPU mapping at this address: the access is fatal.", None, None
        allowed = "r" in vma[2] and (not write or "w" in vma[2])
        if processor == 0:
            return self._decide_cpu(page, allowed)
        gpu = processor - 1
        name = f"gpu{gpu}"
        if process.mapped(gpu, page, write):
            here = process.where(page)
            place = _processor_name(max(here, 0))
            return "mapped", f"{name} has the page mapped in {place}: no fault.", None, None
        if not self.machine.gpus[gpu].svm:
            return "no svm", f"{name} does not support shared memory: fatal.", None, None
        if not process.xnack:
            text = f"XNACK is off and {name} has no mapping: the access is fatal."
            return "xnack off", text, None, None
        if not allowed:
            return "protection", f"The mapping allows {vma[2]!r} only: fatal.", None, None
        if vma[3] in ("io", "pfnmap"):
            return "device mapping", "Device memory cannot be mapped: fatal.", None, None
        row = process.find(page)
        if row is None:
            return self._decide_unregistered(page, vma, gpu)
        info = self._range_info(row)
        # Drivers without windows restore the whole range.
        granularity = row[5] if process.rules.window_migration else 63
        window = self._window(page, granularity, row[0], row[1])
        rule, text, location = self._best(info, gpu)
        return rule, text, location, window if location else None

    def _decide_cpu(
        self, page: int, allowed: bool
    ) -> tuple[str, str, str | None, tuple[int, int] | None]:
        if not allowed:
            return "protection", "The mapping does not allow it: fatal.", None, None
        where = self.process.where(page)
        if where <= 0:
            place = "is in" if where == 0 else "is made in"
            return "system memory", f"The page {place} system memory: no driver fault.", None, None
        if self.machine.gpus[where - 1].coherent:
            return "coherent", "The CPU reads this GPU's memory in place.", None, None
        row = self.process.find(page)
        window = self._window(page, row[5], row[0], row[1]) if row else None
        text = f"The page is in gpu{where - 1}'s memory: its window moves to system memory."
        return "cpu fault", text, "cpu", window

    def _decide_unregistered(
        self, page: int, vma: tuple[int, int, str, str], gpu: int
    ) -> tuple[str, str, str | None, tuple[int, int] | None]:
        rules = self.process.rules
        granularity = self.policy.settings()["granularity"] if rules.granularity_parameter else 9
        low = page >> granularity << granularity
        first, last = max(low, vma[0]), min(low + (1 << granularity) - 1, vma[1])
        # The block ends at its neighbours.
        for row in self.process.ranges(first, last):
            if row[1] < page:
                first = row[1] + 1
            else:
                last = min(last, row[0] - 1)
        apu = self.machine.gpus[gpu].apu and rules.apu_prefers_system
        location = "cpu" if apu or vma[3] in ("heap", "stack") else f"gpu{gpu}"
        text = (
            f"No range here: one of {last - first + 1} pages is made with defaults, "
            f"then its pages are restored to {location}."
        )
        return "unregistered", text, location, (first << PAGE_SHIFT, (last + 1) << PAGE_SHIFT)

    def _best(self, info: RangeInfo, gpu: int) -> tuple[str, str, str | None]:
        decided = self._candidates(info, gpu)[-1]
        return decided.rule, decided.why, decided.location

    def _candidates(self, info: RangeInfo, gpu: int) -> tuple[Candidate, ...]:
        """The rules of the best restore location in order, up to the one that holds."""
        name, preferred, actual = f"gpu{gpu}", info.preferred, info.actual
        apu = self.machine.gpus[gpu].apu and self.process.rules.apu_prefers_system
        prefers = preferred in (name, "cpu") or (
            preferred != "undefined" and self._reaches(gpu, int(preferred[3:]))
        )
        out_of_reach = f"{name} does not reach the preferred location {preferred}."
        unset = "No preferred location is set."
        near = actual != "cpu" and self._reaches(gpu, int(actual[3:]))
        place = actual if near else "cpu"
        asked: list[Candidate] = []
        for rule, location, holds, yes, no in (
            (
                "apu",
                "cpu",
                apu,
                f"{name} shares memory with the CPU: pages stay there.",
                f"{name} has memory of its own.",
            ),
            (
                "preferred location",
                preferred,
                prefers,
                f"The preferred location {preferred} decides.",
                unset if preferred == "undefined" else out_of_reach,
            ),
            (
                "access",
                name,
                name in info.access,
                f"{name} has access: pages migrate to it.",
                f"{name} has no plain access.",
            ),
            (
                "access in place",
                place,
                name in info.access_in_place,
                f"{name} accesses in place: restored in {place}.",
                f"{name} has no access in place.",
            ),
        ):
            asked.append(Candidate(rule, location if holds else None, holds, yes if holds else no))
            if holds:
                return tuple(asked)
        text = f"{name} has no access to this range: the access is fatal."
        return (*asked, Candidate("no access", None, True, text))

    def _reaches(self, a: int, b: int) -> bool:
        one, other = self.machine.gpus[a], self.machine.gpus[b]
        same_device = a == b or (one.adev >= 0 and one.adev == other.adev)
        return bool(same_device or (one.hive != 0 and one.hive == other.hive))

    @staticmethod
    def _window(page: int, granularity: int, start: int, last: int) -> tuple[int, int]:
        low = page >> granularity << granularity
        high = low + (1 << granularity)
        return max(low, start) << PAGE_SHIFT, min(high, last + 1) << PAGE_SHIFT


def difference(name: str, saved: Any, given: Any) -> str:
    """Where two Specs differ first, and how."""
    if isinstance(saved, dict) and isinstance(given, dict):
        # In the order of the Spec: a machine's name before its constants.
        for key in (*saved, *sorted(given.keys() - saved.keys())):
            if saved.get(key) != given.get(key):
                return difference(f"{name}.{key}", saved.get(key), given.get(key))
    if isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        for number, (one, other) in enumerate(zip(saved, given, strict=True)):
            if one != other:
                return difference(f"{name}[{number}]", one, other)
    if isinstance(saved, list) and isinstance(given, list):
        return f"{name}: the file has {len(saved)}, expected equal, {len(given)}"
    return f"{name}: the file has {saved!r:.80}, expected equal, {given!r:.80}"


def _check_prot(prot: str) -> None:
    if prot not in ("rw", "r", "w", "-"):
        raise InvalidArgumentError(f"protection {prot!r}: expected 'rw', 'r', 'w' or '-'")


def _npages(size: int) -> int:
    size = whole("size", size)
    if size < 0:
        raise InvalidArgumentError(f"size {size}: expected 0 or more bytes")
    return -(-size >> PAGE_SHIFT)


def _code(ret: int) -> str:
    if ret == 0:
        return "OK"
    return Errno(-ret).name


def _processor_name(number: int) -> str:
    return "cpu" if number == 0 else f"gpu{number - 1}"


def _gpu_index(name: object, machine: Machine) -> int:
    word = name if isinstance(name, str) and name.isascii() else ""
    digits = word[3:] if word.startswith("gpu") else ""
    if not digits.isdigit() or int(digits) >= len(machine.gpus):
        known = ", ".join(["cpu", *(f"gpu{i}" for i in range(len(machine.gpus)))])
        raise InvalidArgumentError(f"processor {name!r}: expected one of {known}")
    return int(digits)
