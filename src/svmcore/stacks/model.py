"""Launch stacks: replay a trace through a policy, compare policies, find the cliff."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import _stacks
from ..engine import Space
from ..errors import InvalidArgumentError, OutOfMemoryError
from ..machine import Machine
from ..units import PAGE_SIZE, parse_size, whole
from .costs import LaunchCosts, launch_costs, size_cost
from .policies import NO_LIMIT, BuiltIn, policy
from .reference import StackPolicy
from .reference import run as run_readable
from .trace import STACK_BYTES, LaunchTrace, Op

__all__ = [
    "Cliff",
    "Geometry",
    "StackResult",
    "cliff",
    "compare",
    "geometry",
    "replay",
    "space_for",
    "sweep",
]

_DEFAULT = "h200"
#: Limits that the search for a cliff tries at most where hits are no monotone function.
_MOST_LIMITS = 64

Event = tuple[int, int, str, int]


@dataclass(frozen=True)
class StackResult:
    """What a policy did with a trace; bytes and modelled ns.

    Attributes
    ----------
    policy : str
        With its parameters.
    launches, hits : int
        Launches, and those that needed no allocation of a block.
    stack_allocs, allocs, frees, alloc_failures : int
        Blocks allocated, then everything of the device.
    stack_peak_bytes, device_peak_bytes : int
        Most bytes of blocks, and of everything, at one time.
    kept_bytes : int
        Blocks that are still there when the last thread ends.
    left_bytes : int
        Everything that is still there when the device is closed: what the program
        did not free.
    lock_wait_ns : int
        Waits of all threads for the policy's locks, added up.
    retries, user_failures : int
        User allocations tried again after the cache was freed; those that failed.
    fatal, stuck : int
        Threads that ended because no block could be had; threads that waited for
        ever for a lock of such a one.
    end_ns, makespan_ns : int
        When the last thread ended, or began to wait for ever, and when the device
        was closed.
    evicted_bytes : int
        Shared virtual memory that blocks and allocations pushed out of the device.
    events : list
        The timeline where it was asked for: (ns, thread, what, value).
    """

    policy: str
    launches: int
    hits: int
    stack_allocs: int
    allocs: int
    frees: int
    alloc_failures: int
    stack_peak_bytes: int
    device_peak_bytes: int
    kept_bytes: int
    left_bytes: int
    lock_wait_ns: int
    retries: int
    user_failures: int
    fatal: int
    stuck: int
    end_ns: int
    makespan_ns: int
    evicted_bytes: int = 0
    events: list[Event] = field(default_factory=list, repr=False, compare=False)

    @property
    def us_per_launch(self) -> float:
        """Microseconds a launch: the end of the last thread over all launches; 0 without any."""
        return self.end_ns / 1000 / self.launches if self.launches else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The counters as JSON values."""
        table = dataclasses.asdict(self)
        del table["events"], table["policy"]
        return table | {"us_per_launch": self.us_per_launch}


@dataclass(frozen=True)
class Geometry:
    """A launch's shape and its block.

    Attributes
    ----------
    teams, threads : int
        Teams, and warps of a team.
    size : int
        Bytes of the block.
    """

    teams: int
    threads: int
    size: int

    @property
    def warps(self) -> int:
        """Warps in all."""
        return self.teams * self.threads


def geometry(
    *,
    regs_per_thread: int,
    regs_per_sm: int = 65536,
    num_sms: int,
    max_threads_per_block: int = 1024,
    teams: int = 0,
    threads: int = 0,
    stack_bytes: int = STACK_BYTES,
) -> Geometry:
    """Teams, warps and block bytes of a kernel from the device's limits.

    Parameters
    ----------
    regs_per_thread, regs_per_sm : int
        Registers of a thread, and of a multiprocessor.
    num_sms : int
        Multiprocessors.
    max_threads_per_block : int
        Of the kernel.
    teams, threads : int
        What the program asks for, 0 for the defaults; ``threads`` counts warps.
    stack_bytes : int
        Stack of one warp.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, or not one block of the kernel fits.

    Source
    ------
    libgomp's nvptx plugin as told in the review (GCC 11 and later).

    Examples
    --------
    >>> svmcore.stacks.geometry(regs_per_thread=32, num_sms=132)
    Geometry(teams=1056, threads=8, size=1107296256)
    """
    for name, value, least in (
        ("regs_per_thread", regs_per_thread, 1),
        ("regs_per_sm", regs_per_sm, 1),
        ("num_sms", num_sms, 1),
        ("max_threads_per_block", max_threads_per_block, 32),
        ("teams", teams, 0),
        ("threads", threads, 0),
        ("stack_bytes", stack_bytes, 1),
    ):
        if not least <= whole(name, value) < 1 << 31:
            raise InvalidArgumentError(f"geometry: {name} = {value}, expected {least} or more")
    threads = min(threads or 8, max_threads_per_block // 32, 32)
    most = regs_per_sm // (regs_per_thread * 32 * threads) * num_sms
    if most == 0:
        raise InvalidArgumentError(
            f"geometry: {regs_per_thread} registers x 32 x {threads} warps, expected at most "
            f"the {regs_per_sm} of a multiprocessor"
        )
    teams = min(teams or most, most)
    return Geometry(teams, threads, teams * threads * stack_bytes)


# ---- replay ------------------------------------------------------------------------------


class _Shared:
    """Device memory of a space's node: blocks push the pages of its processes out."""

    def __init__(self, space: Space, gpu: str) -> None:
        self.space = space
        self.gpu = gpu
        self.node = space.system
        self.node.used(gpu)  # refuses an unknown one
        self.start = space.now_ns
        self.taken = 0

    @property
    def capacity(self) -> int:
        """Bytes of the device."""
        return self.space.machine.gpus[int(self.gpu[3:])].vram_pages * PAGE_SIZE

    def _at(self, now: int) -> int:
        """Bring the space's clock to the model's time, which starts where the space stands."""
        time = max(self.start + now, self.space.now_ns)
        self.space.step(time)
        return time

    def take(self, size: int, now: int) -> int | None:
        """As in :class:`Memory`; what must be pushed out first takes its time."""
        time = self._at(now)
        try:
            self.node.reserve(self.gpu, size)
        except OutOfMemoryError:
            return None
        self.taken += _paged(size)
        self.space.process.settle()
        return now + self.space.now_ns - time

    def give(self, size: int, now: int) -> None:
        """As in :class:`Memory`."""
        self._at(now)
        self.node.release(self.gpu, size)
        self.taken -= _paged(size)

    def touch(self, addr: int, size: int, now: int) -> int:
        """As in :class:`Memory`."""
        time = self._at(now)
        result = self.space.access(addr, size, by=self.gpu, write=True, t_ns=time)
        if not result.ok:
            raise InvalidArgumentError(
                f"touch {addr:#x} of {size} bytes: {result.code} ({result.reason}), expected "
                f"memory of the space that {self.gpu} may write"
            )
        return now + result.ready_ns - time

    def close(self) -> None:
        """The program has ended: what it did not free is free."""
        self.node.release(self.gpu, self.taken)
        self.taken = 0


def _paged(size: int) -> int:
    return -(-size // PAGE_SIZE) * PAGE_SIZE


def replay(
    trace: LaunchTrace,
    by: str | BuiltIn | StackPolicy | Callable[[], StackPolicy],
    *,
    machine: str | Path | Machine = _DEFAULT,
    costs: LaunchCosts | None = None,
    capacity: int | str | None = None,
    space: Space | None = None,
    gpu: str = "gpu0",
    readable: bool = False,
    events: bool = False,
) -> StackResult:
    """Run a launch trace through a policy.

    Parameters
    ----------
    trace : LaunchTrace
    by : str, BuiltIn, StackPolicy or callable
        A built-in policy; or one of your own, fresh, or what makes one (its class).
    machine : str, Path or Machine
        Costs and device memory; costs of an object are those of its name's preset.
    costs : LaunchCosts, optional
        In place of the machine's.
    capacity : int or str, optional
        Bytes of the device, in place of the machine's.
    space : Space, optional
        A process of shared virtual memory on the same device: blocks take the
        memory of its node, pages are pushed out, ``touch`` records bring them in.
        Its clock moves on; the memory of blocks and allocations is free again at
        the end.
    gpu : str
        The space's device.
    readable : bool
        Run the readable engine; one of your own policies, a space and a timeline
        always do.
    events : bool
        Keep the timeline.

    Raises
    ------
    InvalidArgumentError
        For an unknown policy, machine or device, ``touch`` records without a space
        or outside its mappings, or times beyond 64 bits.

    Complexity
    ----------
    O(n log threads); about 0.3 us a launch in the compiled engine, 20 to 40 us in the
    readable one.

    Source
    ------
    The rules of each policy: docs/reference/stacks.md; conformance cases of the
    softstack kind.
    """
    if costs is None:
        costs = _costs_of(machine)
    _check_times(trace, costs)
    memory = _capacity(machine, capacity) if space is None else _Shared(space, gpu)
    total = memory if isinstance(memory, int) else memory.capacity
    timeline: list[Event] | None = [] if events else None
    if isinstance(by, str | BuiltIn):
        chosen = policy(by)
        name = str(chosen)
        if space is None and not readable and not events:
            return StackResult(policy=name, **_run_compiled(trace, chosen, costs, total))  # type: ignore[arg-type]
        own = chosen.readable(total)
    else:
        own = by() if callable(by) else by
        if not isinstance(own, StackPolicy):
            raise InvalidArgumentError(
                f"policy {by!r:.60}: expected a name or a class derived from StackPolicy"
            )
        name = type(own).__name__
    evicted = 0
    if isinstance(memory, int):
        counts = run_readable(trace, own, costs, memory, events=timeline)
    else:
        before = memory.space.counters()["evicted_bytes"]
        try:
            counts = run_readable(trace, own, costs, memory, events=timeline)
        finally:
            memory.close()
        evicted = memory.space.counters()["evicted_bytes"] - before
    return StackResult(
        name, **dataclasses.asdict(counts), evicted_bytes=evicted, events=timeline or []
    )


def _check_times(trace: LaunchTrace, costs: LaunchCosts) -> None:
    """Refuse a trace whose end, or whose waits added up, could pass 64 bits."""
    records = trace.records
    numbers = (getattr(costs, item.name) for item in dataclasses.fields(costs))
    fixed = sum(number for number in numbers if type(number) is int)
    fixed += sum(max(cost for _, cost in curve) for curve in (costs.alloc, costs.free))
    # At worst everything one after the other, each record with some allocations and frees.
    end = records["t"].max(initial=0) + records["kernel_ns"].sum(dtype=float)
    end += 8.0 * fixed * len(records)
    if end * (len(trace.threads) + 1) >= 2.0**62:
        raise InvalidArgumentError(
            f"launch trace: times of up to {end:.2e} ns, expected the waits of "
            f"{len(trace.threads)} host threads to fit into 64 bits"
        )


def _costs_of(machine: str | Path | Machine) -> LaunchCosts:
    if isinstance(machine, Machine):
        from ..machine import preset_names

        known = machine.name in preset_names()
        return launch_costs(machine.name) if known else launch_costs(_DEFAULT, assumed=True)
    return launch_costs(machine)


def _capacity(machine: str | Path | Machine, capacity: int | str | None) -> int:
    if capacity is None:
        return Machine.resolve(machine).gpus[0].vram_pages * PAGE_SIZE
    size = parse_size(capacity)
    if not 0 < size < 1 << 60:
        raise InvalidArgumentError(f"capacity {capacity!r}: expected 1 byte or more")
    return size


def _run_compiled(
    trace: LaunchTrace, chosen: BuiltIn, costs: LaunchCosts, capacity: int
) -> dict[str, int]:
    records = trace.records
    if np.any(records["op"] == Op.TOUCH):
        raise InvalidArgumentError("a touch record: expected a space, its pages live there")
    order = np.argsort(records["thread"], kind="stable")
    records = records[order]
    sizes, code = np.unique(records["size"], return_inverse=True)
    named = records["op"] != Op.LAUNCH
    ident = np.zeros(len(records), np.int32)
    ids, ident[named] = np.unique(records["id"][named], return_inverse=True)
    streams, stream = np.unique(records["stream"], return_inverse=True)
    # Code 0 is no block.
    table = [int(size) for size in sizes]
    return _stacks.run(
        t=np.ascontiguousarray(records["t"]),
        kernel=np.ascontiguousarray(records["kernel_ns"]),
        code=(code + 1).astype(np.int32),
        ident=ident,
        stream=stream.astype(np.int32),
        op=records["op"].astype(np.int8),
        starts=np.searchsorted(records["thread"], np.arange(len(trace.threads) + 1)).astype(
            np.int64
        ),
        size=np.array([0, *table], np.int64),
        alloc_ns=np.array([0, *(size_cost(costs.alloc, size) for size in table)], np.int64),
        free_ns=np.array([0, *(size_cost(costs.free, size) for size in table)], np.int64),
        shared_stream=np.isin(streams, list(trace.shared_streams)).astype(np.int8),
        nids=len(ids),
        costs=costs,
        capacity=capacity,
        **chosen.compiled(capacity),
    )


def space_for(
    trace: LaunchTrace,
    machine: str | Path | Machine = _DEFAULT,
    *,
    capacity: int | str | None = None,
    policy: str = "kfd",
) -> Space:
    """A space in which the pages that the trace touches are mapped; nothing is resident yet.

    Parameters
    ----------
    trace : LaunchTrace
    machine : str, Path or Machine
    capacity : int or str, optional
        Bytes of its first GPU, in place of the machine's; rounded down to pages.
    policy : str
        Of shared virtual memory.

    Raises
    ------
    InvalidArgumentError
        For an unknown machine or policy, or a capacity below one page.
    """
    node = Machine.resolve(machine)
    pages = _capacity(node, capacity) // PAGE_SIZE
    first = dataclasses.replace(node.gpus[0], vram_pages=pages)
    node = dataclasses.replace(node, gpus=(first, *node.gpus[1:]))
    space = Space(node, policy=policy)
    end = 0
    touches = trace.records[trace.records["op"] == Op.TOUCH]
    for touch in np.sort(touches, order=["id", "size"]):
        start = max(int(touch["id"]) // PAGE_SIZE * PAGE_SIZE, end)
        stop = -(-(int(touch["id"]) + int(touch["size"])) // PAGE_SIZE) * PAGE_SIZE
        if start < stop:
            space.map(start, stop - start)
            end = stop
    return space


def compare(
    trace: LaunchTrace, policies: Iterable[str | BuiltIn], **options: Any
) -> dict[str, StackResult]:
    """The result of each policy, under the name it was given; options of :func:`replay`."""
    return {str(by): replay(trace, by, **options) for by in policies}


def sweep(
    trace: LaunchTrace,
    by: str | BuiltIn,
    *,
    progress: Callable[[int], None] | None = None,
    options: dict[str, Any] | None = None,
    **values: Sequence[Any],
) -> dict[str, StackResult]:
    """One result for each value of one parameter, under the policy's name.

    Parameters
    ----------
    trace : LaunchTrace
    by : str or BuiltIn
    progress : callable, optional
        Called with the number of results so far.
    options : dict, optional
        Options of :func:`replay`.
    **values
        One parameter and its values: ``limit=["64MiB", "128MiB", "inf"]``.

    Raises
    ------
    InvalidArgumentError
        If no or more than one parameter is given, it is none of the policy's, or
        it has no value.
    """
    if len(values) != 1:
        raise InvalidArgumentError(f"sweep: {len(values)} parameters, expected one, as limit=[...]")
    ((key, list_of),) = values.items()
    if not list_of:
        raise InvalidArgumentError(f"sweep: {key}: expected one value or more")
    chosen = policy(by)
    results = {}
    for value in list_of:
        this = chosen.with_setting(key, value)
        results[str(this)] = replay(trace, this, **(options or {}))
        if progress is not None:
            progress(len(results))
    return results


@dataclass(frozen=True)
class Cliff:
    """Where a limit stops paying.

    Attributes
    ----------
    policy : str
    limit : int
        The limit, bytes; ``warps_kept`` warps fit under it.
    warps_kept : int
        Most warps whose block is kept.
    smallest_over : int
        Smallest block of the trace over the limit, bytes.
    hits, best_hits, launches : int
        Hits now, and with the least limit that gives the most.
    enough : int
        That limit, bytes.
    """

    policy: str
    limit: int
    warps_kept: int
    smallest_over: int
    hits: int
    best_hits: int
    launches: int
    enough: int


def cliff(trace: LaunchTrace, by: str | BuiltIn = "locked_block", **options: Any) -> Cliff | None:
    """The cliff of a policy's limit on a trace; ``None`` when a larger limit gains no hit.

    Parameters
    ----------
    trace : LaunchTrace
    by : str or BuiltIn
        A policy with the parameter ``limit`` or ``bound``.
    **options
        Of :func:`replay`; no space.

    Complexity
    ----------
    A replay for each of some sizes of blocks in the trace: log2 of their number for
    one thread, at most 64 for several.
    """
    chosen = policy(by)
    key = next((key for key in ("limit", "bound") if key in chosen.settings), None)
    if key is None:
        return None
    if chosen.settings.get("fraction") is not None:
        capacity = options.get("capacity")
        total = _capacity(options.get("machine", _DEFAULT), capacity)
        chosen = policy("bounded", bound=chosen.limit(total))
    limit = int(chosen.settings[key])
    launches = trace.records["op"] == Op.LAUNCH
    over = [int(size) for size in np.unique(trace.records["size"][launches]) if size > limit]
    if not over:
        return None

    def hits(size: int) -> int:
        return replay(trace, chosen.with_setting(key, size), **options).hits

    now = hits(limit)
    best = hits(NO_LIMIT)
    if best <= now:
        return None
    if len(trace.threads) == 1:  # more limit never means fewer hits
        low, high = 0, len(over) - 1
        while low < high:
            middle = (low + high) // 2
            if hits(over[middle]) >= best:
                high = middle
            else:
                low = middle + 1
        enough = over[low]
    else:
        tried = over[:: -(-len(over) // _MOST_LIMITS)]
        enough = next((size for size in tried if hits(size) >= best), over[-1])
    return Cliff(
        str(chosen),
        limit,
        limit // trace.stack_bytes,
        over[0],
        now,
        best,
        int(launches.sum()),
        enough,
    )
