"""A simulated node: GPUs with UUIDs, host memory, processes and what they hold.

A :class:`SimNode` is a :class:`svmcore.engine.System` with host memory, GPU UUIDs and
processes. A :class:`SimProcess` owns plain allocations and spaces and submits
work. The driver that suspends it is :mod:`svmcore.checkpoint.process`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..attributes import Attribute
from ..engine import Space, System
from ..errors import BusyError, InvalidArgumentError, SvmError
from ..machine import Machine
from ..units import ADDRESS_LIMIT, PAGE_SIZE, whole
from .base import ProcessState, Window, gpu_uuid

__all__ = [
    "Allocation",
    "CheckpointCosts",
    "Operation",
    "SimDriver",
    "SimNode",
    "SimProcess",
    "SimSpace",
    "SimStream",
    "SimWindow",
]

#: Where a process's allocations begin.
_HEAP = 0x7F00_0000_0000


@dataclass(frozen=True)
class CheckpointCosts:
    """What the calls take, in ns and bytes per second of modelled time.

    The defaults are a fit of what one H200 took (driver 580.159.04, 64 MiB to
    8 GiB of plain allocations), within 15% of every measured row. Several GPUs
    are assumed to be copied one after another; ``window_bytes_per_s``, the
    caller's copies between a window and pinned host memory, is a measured copy.

    Raises
    ------
    InvalidArgumentError
        For a time below 0 or a rate that is not above 0.
    """

    lock_ns: int = 450_000
    unlock_ns: int = 1_350_000
    checkpoint_ns: int = 400_000_000
    checkpoint_bytes_per_s: float = 2**30 / 0.66
    restore_ns: int = 220_000_000
    restore_bytes_per_s: float = 2**30 / 0.19
    window_bytes_per_s: float = 55e9

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            least = 1e-9 if item.name.endswith("_per_s") else 0
            if not isinstance(value, int | float) or not least <= value < math.inf:
                raise InvalidArgumentError(
                    f"{item.name} = {value!r}: expected a number, a rate above 0"
                )


@dataclass(frozen=True)
class SimDriver:
    """What the driver of a node does where versions or texts leave a choice.

    Parameters
    ----------
    version : str
        CUDA version: before 12.8 nothing is supported, before 13.0 no GPU pairs,
        before 13.4 no custom storage.
    remap_rule : str
        ``"checkpointed"``: GPU pairs must list every checkpointed GPU, as the
        document says; ``"visible"``: they must be a permutation of every GPU that
        the process can see, as real drivers demand.
    on_failed_restore : str
        After a restore that found no device memory: ``"retryable"``, the process
        stays CHECKPOINTED; ``"stuck"``, so it does, but every later restore is
        ``CUDA_ERROR_OPERATING_SYSTEM``, as users saw; ``"failed"``: FAILED.
    svm : str
        A process with ranges in its spaces: ``"move"``, their pages move to system
        memory and come back as KFD replays attributes; ``"refuse"``,
        ``CUDA_ERROR_NOT_SUPPORTED``, as CUDA does with managed memory.

    Raises
    ------
    InvalidArgumentError
        For a word that is none of these.
    """

    version: str = "13.4"
    remap_rule: str = "checkpointed"
    on_failed_restore: str = "retryable"
    svm: str = "move"

    def __post_init__(self) -> None:
        choices = {
            "remap_rule": ("checkpointed", "visible"),
            "on_failed_restore": ("retryable", "stuck", "failed"),
            "svm": ("move", "refuse"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InvalidArgumentError(
                    f"{name} {getattr(self, name)!r}: expected one of {', '.join(known)}"
                )
        major, dot, minor = str(self.version).partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal()):
            raise InvalidArgumentError(f"version {self.version!r}: expected a form as 13.4")

    @property
    def number(self) -> tuple[int, int]:
        """The version as two numbers."""
        major, _, minor = str(self.version).partition(".")
        return int(major), int(minor)


@dataclass
class Allocation:
    """Plain device memory of a process.

    Attributes
    ----------
    addr, size : int
        Bytes; the address stays the same over checkpoint and restore.
    device : int
        The process's own number of the GPU.
    data : object
        What stands for the contents; None where they are undefined.
    on_device : bool
        Whether it takes device memory now.
    """

    addr: int
    size: int
    device: int
    data: Any = None
    on_device: bool = True

    @property
    def held(self) -> int:
        """Bytes of memory that it takes: whole pages."""
        return -(-self.size // PAGE_SIZE) * PAGE_SIZE


@dataclass
class SimStream:
    """A stream of the caller's primary context on one GPU.

    Attributes
    ----------
    gpu : str
        UUID.
    busy_until_ns : int
        When what was put on it is done, modelled time.
    capturing : bool
        Whether it is in stream capture.
    """

    gpu: str
    busy_until_ns: int = 0
    capturing: bool = False


@dataclass(frozen=True)
class SimWindow(Window):
    """A window of the simulator: the contents can be read and written.

    A copy goes onto the window's stream and takes modelled time;
    ``cuCheckpointOperationComplete`` waits for it.
    """

    node: SimNode = field(repr=False)
    #: The allocations that lie in the window, and what it holds of each by its address.
    parts: tuple[Allocation, ...] = field(repr=False)
    contents: dict[int, Any] = field(repr=False)

    def read(self) -> dict[int, Any]:
        """Copy the window out: address in the target -> data.

        Raises
        ------
        InvalidArgumentError
            If the window is no longer mapped: its operation is complete or lost.
        """
        self._copy()
        return dict(self.contents)

    def write(self, contents: Mapping[int, Any]) -> None:
        """Copy what :meth:`read` gave back into the window.

        Raises
        ------
        InvalidArgumentError
            For an address at which the window has no allocation, or as :meth:`read`.
        """
        for addr in contents:
            if addr not in self.contents:
                raise InvalidArgumentError(f"{addr:#x}: expected an address of the window")
        self._copy()
        self.contents.update(contents)

    def _copy(self) -> None:
        mapped = (operation.windows for operation in self.node.operations.values())
        if not any(window is self for windows in mapped for window in windows):
            raise InvalidArgumentError(
                f"window {self.addr:#x}: expected its operation in hand, it is unmapped"
            )
        begin = max(self.stream.busy_until_ns, self.node.now_ns)
        self.stream.busy_until_ns = begin + int(
            self.size * 1e9 / self.node.costs.window_bytes_per_s
        )


@dataclass
class Operation:
    """A custom-storage operation that awaits its completion."""

    process: SimProcess
    caller: SimProcess
    windows: tuple[SimWindow, ...]


class SimSpace(Space):
    """A space of a :class:`SimProcess`: while that is locked, GPU work in it is refused.

    Raises
    ------
    BusyError
        From ``access`` and ``fault`` by a GPU, and from ``set_attr``, ``prefetch``
        and ``advise``: the call would block until the process is unlocked. The
        CPU's touches and mappings go on, as its threads do.
    """

    owner: SimProcess | None = None

    def access(self, addr: int, size: int = 1, by: str = "gpu0", *args: Any, **named: Any) -> Any:
        """As :meth:`svmcore.engine.Space.access`."""
        if by != "cpu":
            self._may_call()
        return super().access(addr, size, by, *args, **named)

    def fault(self, *args: Any, **named: Any) -> Any:
        """As :meth:`svmcore.engine.Space.fault`."""
        self._may_call()
        return super().fault(*args, **named)

    def set_attr(self, *args: Any, **named: Any) -> int:
        """As :meth:`svmcore.engine.Space.set_attr`."""
        self._may_call()
        return super().set_attr(*args, **named)

    def _may_call(self) -> None:
        if self.owner is not None:
            self.owner.may_call("GPU work in a space")

    def device_bytes(self) -> int:
        """Bytes of its pages in GPU memory."""
        return sum(info.device_pages for info in self.ranges()) * PAGE_SIZE

    def leave_gpus(self, t_ns: int) -> bool:
        """Move every page to system memory; whether none is left on a GPU."""
        self.step(max(t_ns, self.now_ns))
        for info in self.ranges():
            if info.actual != "cpu":
                self.evict(info.start)
        # An object that once failed to leave is beyond eviction; reading its pages moves them.
        for info in self.ranges():
            if info.device_pages:
                super().access(info.start, info.size, "cpu")
        return self.device_bytes() == 0

    def come_back(self, t_ns: int, new: Sequence[int]) -> None:
        """Replay every range's attributes as KFD's resume does, GPU *i* being ``new[i]`` now.

        A defined prefetch location moves pages; other pages wait for faults. If a
        range is refused, those before it get their old attributes again.

        Raises
        ------
        SvmError
            Of the range that was refused.
        """
        self.step(max(t_ns, self.now_ns))
        done: list[tuple[int, int, list[tuple[str | int, Any]]]] = []
        try:
            for info in self.ranges():
                old = self._attributes_of(info, range(len(new)))
                # An error in moving leaves the attributes set: this range is undone too.
                done.append((info.start, info.size, old))
                super().set_attr(info.start, info.size, self._attributes_of(info, new))
        except SvmError:
            for start, size, old in done:
                with contextlib.suppress(SvmError):
                    super().set_attr(start, size, old)
            self.leave_gpus(self.now_ns)
            raise

    def _attributes_of(self, info: Any, new: Sequence[int]) -> list[tuple[str | int, Any]]:
        def renamed(place: str) -> str:
            return f"gpu{new[int(place[3:])]}" if place.startswith("gpu") else place

        pairs: list[tuple[str | int, Any]] = [
            (Attribute.PREFERRED_LOC, renamed(info.preferred)),
            (Attribute.SET_FLAGS, int(info.flags)),
            (Attribute.CLR_FLAGS, ~int(info.flags) & 0xFFFFFFFF),
            (Attribute.GRANULARITY, info.granularity),
        ]
        if info.prefetch != "undefined":
            pairs.insert(1, (Attribute.PREFETCH_LOC, renamed(info.prefetch)))
        for index in range(len(new)):
            name = f"gpu{index}"
            if self.machine.gpus[new[index]].svm:
                kind = Attribute.NO_ACCESS
                if name in info.access:
                    kind = Attribute.ACCESS
                elif name in info.access_in_place:
                    kind = Attribute.ACCESS_IN_PLACE
                pairs.append((kind, renamed(name)))
        return pairs


class SimProcess:
    """A process of a node; made by :meth:`SimNode.spawn`.

    Attributes
    ----------
    node : SimNode
    pid : int
    restore_thread_id : int
        A thread of the process: its id is accepted wherever *pid* is.
    gpus : tuple of str
        UUIDs of the GPUs that the kernel driver shows it, in its own order: its
        device 0, 1 ... A remap changes them.
    cuda : bool
        Whether it has initialised CUDA.
    state : ProcessState
    alive : bool
    contexts : set of str
        GPUs whose primary context it holds, as a caller.
    spaces : list of SimSpace
    image : str
        Where its last checkpoint went: ``"host"``, ``"custom"`` or ``""``.
    host_bytes : int
        Host memory that its checkpoint fills.
    stuck : bool
        Whether a failed restore has left it beyond help.
    """

    def __init__(self, node: SimNode, pid: int, gpus: tuple[str, ...], *, cuda: bool) -> None:
        self.node, self.pid, self.gpus, self.cuda = node, pid, gpus, cuda
        self.restore_thread_id = pid + 1
        self.state = ProcessState.RUNNING
        self.alive = True
        self.contexts: set[str] = set()
        self.spaces: list[SimSpace] = []
        self._allocations: dict[int, Allocation] = {}
        self._next = _HEAP
        self._streams: dict[int, int | None] = {}  # stream -> end of its work; None: never
        self.image = ""
        self.host_bytes = 0
        self.stuck = False

    def __repr__(self) -> str:
        state = self.state.name if self.alive else "dead"
        return f"<SimProcess {self.pid}, {state}, {len(self._allocations)} allocations>"

    def may_call(self, what: str) -> None:
        """Raise unless the process may call the driver now.

        Raises
        ------
        BusyError
            If it is locked (the call would block) or dead.
        """
        if not self.alive or self.state != ProcessState.RUNNING:
            state = self.state.name if self.alive else "dead"
            raise BusyError(f"{what}: process {self.pid} is {state}, expected RUNNING")

    def allocations(self) -> list[Allocation]:
        """Plain allocations in order of their making."""
        return list(self._allocations.values())

    def allocate(self, size: int, device: int = 0, data: Any = None) -> Allocation:
        """Allocate device memory that nothing evicts.

        Parameters
        ----------
        size : int
            Bytes; it takes whole pages of 4 KiB.
        device : int
            The process's own number of the GPU.
        data : object
            What stands for the contents.

        Raises
        ------
        OutOfMemoryError
            If the GPU has no room.
        BusyError
            If the process is locked.
        InvalidArgumentError
            For a size of 0 or less, or an unknown device.
        """
        self.may_call("allocate")
        size, device = whole("size", size), whole("device", device)
        if size <= 0:
            raise InvalidArgumentError(f"size {size}: expected more than 0 bytes")
        if not 0 <= device < len(self.gpus):
            raise InvalidArgumentError(
                f"device {device}: expected a number below {len(self.gpus)}, the process's GPUs"
            )
        new = Allocation(self._next, size, device, data)
        self.node.system.reserve(self.node.gpu_name(self.gpus[device]), new.held)
        self._next += new.held
        self._allocations[new.addr] = new
        return new

    def free(self, addr: int) -> None:
        """Give an allocation back.

        Raises
        ------
        InvalidArgumentError
            If none begins at *addr*.
        BusyError
            If the process is locked.
        """
        self.may_call("free")
        if whole("addr", addr) not in self._allocations:
            raise InvalidArgumentError(f"free {addr:#x}: expected the address of an allocation")
        self.leave_devices([self._allocations.pop(addr)])

    def space(self, policy: Any = "kfd", **settings: Any) -> SimSpace:
        """A new space of this process on the node; parameters as :class:`svmcore.engine.Space`.

        A restore replays KFD's attributes, so the policy must have them.
        """
        self.may_call("space")
        system = self.node.system
        made = SimSpace(system.machine, policy=policy, system=system, **settings)
        made.owner = self
        self.spaces.append(made)
        return made

    def submit(self, duration_ns: int | None, stream: int = 0) -> None:
        """Put work, callbacks included, on a stream; a lock waits for it.

        Parameters
        ----------
        duration_ns : int or None
            How long it takes once what is on the stream before it is done; None: it
            never ends.
        stream : int

        Raises
        ------
        BusyError
            If the process is locked.
        InvalidArgumentError
            For a negative duration.
        """
        self.may_call("submit")
        before = self._streams.get(whole("stream", stream), 0)
        if duration_ns is None:
            self._streams[stream] = None
            return
        duration_ns = whole("duration_ns", duration_ns)
        if duration_ns < 0:
            raise InvalidArgumentError(f"duration_ns {duration_ns}: expected 0 or more")
        if before is not None:
            self._streams[stream] = max(before, self.node.now_ns) + duration_ns

    def idle_ns(self) -> int | None:
        """When the submitted work is done; None: never."""
        ends = list(self._streams.values())
        if None in ends:
            return None
        return max([self.node.now_ns, *(end for end in ends if end is not None)])

    def device_bytes(self) -> dict[str, int]:
        """Bytes of plain allocations on each GPU that holds some now, by UUID."""
        held: dict[str, int] = {}
        for allocation in self._allocations.values():
            if allocation.on_device:
                gpu = self.gpus[allocation.device]
                held[gpu] = held.get(gpu, 0) + allocation.held
        return held

    # ---- what the driver does in the target -------------------------------------------

    def devices(self) -> list[int]:
        """Own numbers of the GPUs that plain allocations are on, or were checkpointed from."""
        return sorted({allocation.device for allocation in self._allocations.values()})

    def covered(self) -> set[str]:
        """GPUs that a checkpoint of this process covers: those with data, by UUID."""
        names = {place for space in self.spaces for place in places(space)}
        return {self.gpus[device] for device in self.devices()} | {
            self.node.uuids[int(name[3:])] for name in names
        }

    def leave_devices(self, leaving: Iterable[Allocation]) -> None:
        """Give the device memory of these allocations back."""
        for allocation in leaving:
            if allocation.on_device:
                gpu = self.node.gpu_name(self.gpus[allocation.device])
                self.node.system.release(gpu, allocation.held)
                allocation.on_device = False

    def come_back(self, renamed: Mapping[str, str]) -> None:
        """Take device memory again and replay the spaces' attributes; all or nothing.

        Parameters
        ----------
        renamed : mapping
            UUID of every GPU of the node -> of the one that takes its place.

        Raises
        ------
        SvmError
            If a GPU has no room, or a space refuses its attributes.
        """
        node, system = self.node, self.node.system
        gpus = tuple(renamed[gpu] for gpu in self.gpus)
        new = [node.uuids.index(renamed[gpu]) for gpu in node.uuids]
        old = [new.index(i) for i in range(len(new))]
        need: dict[str, int] = {}
        for allocation in self._allocations.values():
            name = node.gpu_name(gpus[allocation.device])
            need[name] = need.get(name, 0) + allocation.held
        taken: list[str] = []
        back: list[SimSpace] = []
        try:
            for name, nbytes in need.items():
                system.reserve(name, nbytes)
                taken.append(name)
            for space in self.spaces:
                space.come_back(node.now_ns, new)
                back.append(space)
        except SvmError:
            for name in taken:
                system.release(name, need[name])
            for space in back:
                with contextlib.suppress(SvmError):
                    space.come_back(node.now_ns, old)
                space.leave_gpus(node.now_ns)
            raise
        self.gpus = gpus
        for allocation in self._allocations.values():
            allocation.on_device = True

    def take_host(self, nbytes: int) -> None:
        """Fill host memory with a checkpoint of *nbytes*; negative: give it back."""
        self.host_bytes += nbytes
        self.node.host_used += nbytes

    def die(self) -> None:
        """Everything that it held is free."""
        self.alive = False
        self.leave_devices(self._allocations.values())
        self._allocations.clear()
        self.take_host(-self.host_bytes)
        for space in self.spaces:
            space.unmap(PAGE_SIZE, ADDRESS_LIMIT - 2 * PAGE_SIZE)
            space.step()


def places(space: Space) -> Iterator[str]:
    """GPUs that the attributes of a space's ranges, or their pages, name."""
    for info in space.ranges():
        for place in (info.preferred, info.prefetch, info.actual):
            if place.startswith("gpu"):
                yield place


class SimNode:
    """One node: GPUs with UUIDs and chip types, host memory, processes, a clock.

    Parameters
    ----------
    system : System, str, Path or Machine
        The devices; a machine gets a system of its own.
    host_memory : int, optional
        Bytes of host memory that checkpoints may fill; None: no limit.
    driver : SimDriver
    costs : CheckpointCosts
    uuids : sequence of str, optional
        A UUID for each GPU; made from the machine's name and the GPU's id by default.
    chips : sequence of str, optional
        A chip type for each GPU; all alike by default.
    persistence_mode : bool
        Whether the driver stays loaded: a restore needs it or a caller with CUDA.

    Attributes
    ----------
    now_ns : int
        Present modelled time; calls move it on by what they take.
    host_used : int
        Bytes of host memory that checkpoints fill.
    operations : dict
        Handle -> :class:`Operation`, of those in hand.
    at_step : callable, optional
        Called with (step, process) inside every long call, before each step in the
        target (``lock``, ``copy``, ``release``, ``acquire``, ``unlock``): a place to
        kill either side from.

    Raises
    ------
    InvalidArgumentError
        If there is not one UUID and chip a GPU, a UUID repeats or is none, or
        *host_memory* is negative.

    Examples
    --------
    >>> from svmcore.checkpoint.process import SimCheckpoint, SimNode
    >>> node = SimNode("gpu-80g")
    >>> process = node.spawn()
    >>> _ = process.allocate(1 << 30)
    >>> driver = SimCheckpoint(node)
    >>> driver.lock(process.pid)
    >>> driver.checkpoint(process.pid)
    >>> driver.get_state(process.pid).name, node.system.used("gpu0"), node.host_used
    ('CHECKPOINTED', 0, 1073741824)
    """

    def __init__(
        self,
        system: System | str | Path | Machine = "gpu-80g",
        *,
        host_memory: int | None = None,
        driver: SimDriver | None = None,
        costs: CheckpointCosts | None = None,
        uuids: Sequence[str] | None = None,
        chips: Sequence[str] | None = None,
        persistence_mode: bool = False,
    ) -> None:
        self.system = system if isinstance(system, System) else System(system)
        machine = self.system.machine
        if uuids is None:
            uuids = [
                f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{machine.name}/{gpu.id}')}"
                for gpu in machine.gpus
            ]
        self.uuids = tuple(gpu_uuid(text) for text in uuids)
        self.chips = tuple(chips) if chips is not None else ("",) * len(self.uuids)
        if not len(set(self.uuids)) == len(self.chips) == len(machine.gpus):
            raise InvalidArgumentError(
                f"{len(set(self.uuids))} different UUIDs, {len(self.chips)} chips: "
                f"expected {len(machine.gpus)} of each, one for each GPU"
            )
        if host_memory is not None and whole("host_memory", host_memory) < 0:
            raise InvalidArgumentError(f"host_memory {host_memory}: expected 0 or more bytes")
        self.host_memory = host_memory
        self.driver = driver or SimDriver()
        self.costs = costs or CheckpointCosts()
        self.persistence_mode = persistence_mode
        self.now_ns = 0
        self.host_used = 0
        self.at_step: Callable[[str, SimProcess], None] | None = None
        self._processes: dict[int, SimProcess] = {}
        self._threads: dict[int, SimProcess] = {}
        self.operations: dict[int, Operation] = {}
        self._handles = itertools.count(1)
        self._pids = itertools.count(1000, 2)

    def spawn(self, gpus: Iterable[str] | None = None, *, cuda: bool = True) -> SimProcess:
        """Start a process.

        Parameters
        ----------
        gpus : iterable of str, optional
            UUIDs of the GPUs that it sees, in its own order; all by default.
        cuda : bool
            Whether it initialises CUDA.

        Raises
        ------
        InvalidArgumentError
            For a GPU that the node does not have, or one named twice.
        """
        seen = self.uuids if gpus is None else tuple(gpu_uuid(text) for text in gpus)
        if len(set(seen)) != len(seen) or not set(seen) <= set(self.uuids):
            raise InvalidArgumentError(f"GPUs {', '.join(seen)}: expected some of the node's, once")
        process = SimProcess(self, next(self._pids), seen, cuda=cuda)
        self._processes[process.pid] = process
        self._threads[process.pid] = self._threads[process.restore_thread_id] = process
        return process

    def processes(self) -> list[SimProcess]:
        """Living processes in order of their start."""
        return list(self._processes.values())

    def process(self, pid: int) -> SimProcess | None:
        """The living process of that id, or that has a thread of that id."""
        return self._threads.get(pid)

    def kill(self, pid: int) -> None:
        """End a process at once: what it held is free, what lived in it is gone.

        A target whose custom-storage operation it was about to complete is FAILED.

        Raises
        ------
        InvalidArgumentError
            If there is no such process.
        """
        process = self._processes.pop(pid, None)
        if process is None:
            raise InvalidArgumentError(f"kill {pid}: expected the id of a living process")
        del self._threads[pid], self._threads[process.restore_thread_id]
        process.die()
        for operation in list(self.operations.values()):
            if operation.caller is process and operation.process.alive:
                operation.process.state = ProcessState.FAILED
        self.operations = {
            handle: operation
            for handle, operation in self.operations.items()
            if operation.caller is not process
        }

    def open(self, operation: Operation) -> int:
        """Note an operation that awaits its completion; its handle."""
        handle = next(self._handles)
        self.operations[handle] = operation
        return handle

    def step(self, t_ns: int) -> None:
        """Move the clock to *t_ns*.

        Raises
        ------
        InvalidArgumentError
            If that lies in the past.
        """
        t_ns = whole("t_ns", t_ns)
        if t_ns < self.now_ns:
            raise InvalidArgumentError(
                f"t_ns {t_ns}: expected {self.now_ns} or later, the clock never goes back"
            )
        self.now_ns = t_ns

    def gpu_name(self, gpu: str) -> str:
        """The machine's name, ``gpu0`` ..., of the GPU with that UUID.

        Raises
        ------
        InvalidArgumentError
            If the node has none.
        """
        if gpu not in self.uuids:
            raise InvalidArgumentError(f"GPU {gpu}: expected one of {', '.join(self.uuids)}")
        return f"gpu{self.uuids.index(gpu)}"
