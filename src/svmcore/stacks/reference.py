"""The model of launch stacks as it reads: an event queue and one class a policy.

This is the executable specification of ``svmcore._stacks``, and what runs a
policy of your own. A host thread is a generator. What it yields is one step: the
queue gives it back the word at the step's time, in the order (time, thread).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from ..errors import InvalidArgumentError
from .costs import LaunchCosts, size_cost
from .trace import LaunchTrace, Op

__all__ = [
    "Block",
    "Counts",
    "Device",
    "Give",
    "Idle",
    "Lock",
    "Memory",
    "Pause",
    "Request",
    "Slot",
    "StackPolicy",
    "Step",
    "Take",
    "Wait",
    "Wake",
    "run",
]


class Lock:
    """A mutex of the host, with those who wait for it and since when."""

    def __init__(self) -> None:
        self.held = False
        self.waiting: deque[tuple[int, int]] = deque()  # (thread, since)
        self.spinning: deque[tuple[int, int]] = deque()
        self.waking = 0  # waiters that wake up to try again
        self.since: dict[int, int] = {}  # theirs


class Pause(NamedTuple):
    """Go on at a time, at once when it has passed."""

    until: int


class Idle(NamedTuple):
    """Go on when the kernels submitted so far have ended."""


class Take(NamedTuple):
    """Take a lock; who spins for it has it as soon as it is free."""

    lock: Lock
    spin: bool = False


class Give(NamedTuple):
    """Release a lock."""

    lock: Lock


class Wait(NamedTuple):
    """Release the lock, sleep until a :class:`Wake` of it, take the lock again."""

    lock: Lock
    sleepers: deque[tuple[int, int]]


class Wake(NamedTuple):
    """Wake who has slept longest; the lock is held."""

    lock: Lock
    sleepers: deque[tuple[int, int]]


Step: TypeAlias = Pause | Idle | Take | Give | Wait | Wake
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, None, T]


@dataclass
class Block:
    """A stack block on the device."""

    size: int
    freed: bool = False
    fresh: bool = True  # no launch has had it yet
    busy: bool = False  # for the use of policies


class Request(NamedTuple):
    """One launch that needs a block."""

    thread: int
    stream: int
    size: int
    """Bytes needed."""


@dataclass
class Counts:
    """What a run counted; bytes and ns. Fields as in the compiled engine."""

    launches: int = 0
    hits: int = 0
    stack_allocs: int = 0
    allocs: int = 0
    frees: int = 0
    alloc_failures: int = 0
    stack_peak_bytes: int = 0
    device_peak_bytes: int = 0
    kept_bytes: int = 0
    left_bytes: int = 0
    lock_wait_ns: int = 0
    retries: int = 0
    user_failures: int = 0
    fatal: int = 0
    stuck: int = 0
    end_ns: int = 0
    makespan_ns: int = 0


class FatalError(Exception):
    """A stack block cannot be had: the thread ends."""


class Memory(Protocol):
    """Where device memory comes from."""

    def take(self, size: int, now: int) -> int | None:
        """Take bytes; when they are there, ``None`` where they cannot be had."""

    def give(self, size: int, now: int) -> None:
        """Give bytes back."""

    def touch(self, addr: int, size: int, now: int) -> int:
        """A kernel touches shared virtual memory; the time when it has it."""


class Plain:
    """Device memory of a capacity that nothing else uses."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity

    def take(self, size: int, now: int) -> int | None:
        """As in :class:`Memory`."""
        if size > self.free:
            return None
        self.free -= size
        return now

    def give(self, size: int, now: int) -> None:
        """As in :class:`Memory`."""
        self.free += size

    def touch(self, addr: int, size: int, now: int) -> int:
        """As in :class:`Memory`."""
        raise InvalidArgumentError("a touch record: expected a space, its pages live there")


@dataclass
class Device:
    """The device and its driver, as a policy sees them."""

    costs: LaunchCosts
    memory: Memory
    now: int = 0
    counts: Counts = field(default_factory=Counts)
    driver: Lock = field(default_factory=Lock)
    used: int = 0
    stack: int = 0
    busy_until: int = 0
    stream_free: dict[int, int] = field(default_factory=dict)
    stream_turn: dict[int, int] = field(default_factory=dict)
    shared_streams: frozenset[int] = frozenset()
    events: list[tuple[int, int, str, int]] | None = None

    def lock(self) -> Lock:
        """A new lock of the host."""
        return Lock()

    def reserve(self, size: int, *, stack: bool) -> Steps[bool]:
        """``cuMemAlloc``: whether the bytes could be had."""
        locked = self.costs.driver_lock
        if locked:
            yield Take(self.driver)
        yield Pause(self.now + size_cost(self.costs.alloc, size))
        ready = self.memory.take(size, self.now)
        if ready is not None:
            if ready > self.now:  # others had to give memory up first
                yield Pause(ready)
            self.used += size
            self.counts.allocs += 1
            self.counts.device_peak_bytes = max(self.counts.device_peak_bytes, self.used)
            if stack:
                self._stack(size)
                self.counts.stack_allocs += 1
        else:
            self.counts.alloc_failures += 1
        if locked:
            yield Give(self.driver)
        return ready is not None

    def unreserve(self, size: int, *, stack: bool) -> Steps[None]:
        """``cuMemFree``."""
        locked = self.costs.driver_lock
        if locked:
            yield Take(self.driver)
        cost = size_cost(self.costs.free, size)
        if self.costs.free_waits and (stack or locked):
            if self.busy_until > self.now + self.costs.spin_ns:
                cost += self.costs.drain_ns
            yield Idle()
        yield Pause(self.now + cost)
        self.memory.give(size, self.now)
        self.used -= size
        self.counts.frees += 1
        if stack:
            self._stack(-size)
        if locked:
            yield Give(self.driver)

    def _stack(self, change: int) -> None:
        self.stack += change
        self.counts.stack_peak_bytes = max(self.counts.stack_peak_bytes, self.stack)
        if self.events is not None:
            self.events.append((self.now, -1, "stack", self.stack))

    def allocate(self, size: int) -> Steps[Block]:
        """A new stack block; a failure is fatal to the thread (trunk's rule)."""
        done = yield from self.reserve(size, stack=True)
        if not done:
            raise FatalError
        return Block(size)

    def free(self, block: Block) -> Steps[None]:
        """Give a stack block back to the device.

        Raises
        ------
        InvalidArgumentError
            If it was freed before.
        """
        if block.freed:
            raise InvalidArgumentError(
                f"a stack block of {block.size} bytes is freed twice: expected once"
            )
        block.freed = True
        yield from self.unreserve(block.size, stack=True)

    def run(self, stream: int, kernel: int, thread: int) -> Steps[None]:
        """Launch a kernel and wait for it."""
        costs = self.costs
        if costs.driver_lock:
            yield Take(self.driver, spin=stream not in self.shared_streams)
        if costs.launch_ns:
            yield Pause(self.now + costs.launch_ns)
        queue = stream if costs.concurrent else 0
        start = max(self.now, self.stream_free.get(queue, 0), self.stream_turn.get(queue, 0))
        end = start + costs.kernel_ns + kernel
        self.stream_free[queue] = end
        self.stream_turn[queue] = start + costs.turn_ns
        self.busy_until = max(self.busy_until, end)
        if self.events is not None:
            self.events.append((start, thread, "kernel", end))
        if costs.driver_lock:
            yield Give(self.driver)
        yield Pause(end + costs.wait_ns)


class StackPolicy:
    """Base of the policies: who has which block when.

    The methods are generators; see the built-in ones. A policy of your own may keep
    anything in itself; one instance serves one run. ``self.device`` allocates and
    frees, ``yield Take(lock)`` and ``yield Give(lock)`` lock.
    """

    #: A user's allocation trims the cache first, and tries again after a failure.
    retries: ClassVar[bool] = True
    device: Device

    def open(self, device: Device) -> None:
        """The device is there; called once, before the first launch."""
        self.device = device

    def acquire(self, request: Request) -> Steps[Block]:
        """The block for a launch."""
        raise NotImplementedError

    def release(self, request: Request, block: Block) -> Steps[None]:
        """The launch has ended."""
        raise NotImplementedError

    def trim(self, *, force: bool) -> Steps[None]:
        """A user allocates: free what is over the limit, with *force* what can be freed."""
        yield from ()

    def thread_end(self, thread: int) -> Steps[None]:
        """A host thread has no more records."""
        yield from ()

    def close(self) -> Steps[None]:
        """The device is closed: free what is kept."""
        yield from ()


class Slot:
    """One cached block with its lock, as in trunk."""

    def __init__(self, device: Device, limit: float) -> None:
        self.device = device
        self.limit = limit
        self.lock = device.lock()
        self.block: Block | None = None

    def take(self) -> Block | None:
        """What is in it; it is empty then."""
        block, self.block = self.block, None
        return block

    def empty(self) -> Steps[None]:
        """Free what is in it."""
        block = self.take()
        if block is not None:
            yield from self.device.free(block)

    def acquire(self, size: int) -> Steps[Block]:
        """The block, made larger when it is too small; the lock stays taken."""
        yield Take(self.lock)
        block = self.take()
        if block is not None and block.size >= size:
            return block
        if block is not None:
            yield from self.device.free(block)
        return (yield from self.device.allocate(size))

    def release(self, block: Block) -> Steps[None]:
        """Put the block back and give the lock."""
        self.block = block
        yield Give(self.lock)

    def trim(self, *, force: bool) -> Steps[None]:
        """Free the block if it is over the limit; the limit itself is not over it."""
        yield Take(self.lock)
        if self.block is not None and (force or self.block.size > self.limit):
            yield from self.empty()
        yield Give(self.lock)

    def close(self) -> Steps[None]:
        """Free the block."""
        yield from self.empty()


class NoCache(StackPolicy):
    """A block for each launch."""

    retries = False

    def acquire(self, request: Request) -> Steps[Block]:
        """Allocate."""
        return (yield from self.device.allocate(request.size))

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Free."""
        yield from self.device.free(block)


class LockedBlock(StackPolicy):
    """One block, its lock held while the kernel runs."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def open(self, device: Device) -> None:
        """Make the slot."""
        super().open(device)
        self.slot = Slot(device, self.limit)

    def acquire(self, request: Request) -> Steps[Block]:
        """From the slot."""
        return (yield from self.slot.acquire(request.size))

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Into the slot."""
        yield from self.slot.release(block)

    def trim(self, *, force: bool) -> Steps[None]:
        """The slot's."""
        yield from self.slot.trim(force=force)

    def close(self) -> Steps[None]:
        """The slot's."""
        yield from self.slot.close()


class Unbounded(LockedBlock):
    """A locked block without a limit that users' allocations cannot reclaim."""

    retries = False

    def __init__(self) -> None:
        super().__init__(float("inf"))


class Bounded(LockedBlock):
    """A locked block for small launches; larger ones have a block of their own."""

    def acquire(self, request: Request) -> Steps[Block]:
        """From the slot, or allocate."""
        if request.size <= self.limit:
            return (yield from super().acquire(request))
        return (yield from self.device.allocate(request.size))

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Into the slot, or free."""
        if request.size <= self.limit:
            yield from super().release(request, block)
        else:
            yield from self.device.free(block)


class TakePut(LockedBlock):
    """The lock is held for book-keeping only; a launch takes the block out of the slot."""

    def _take(self, request: Request) -> tuple[Block | None, Block | None]:
        """What the launch gets, and what is freed; the lock is held."""
        block = self.slot.block
        return (self.slot.take() if block and block.size >= request.size else None), None

    def _put(self, request: Request, block: Block) -> Block | None:
        """Put it back; what is freed. The lock is held."""
        if self.slot.block is None or block.size > self.slot.block.size:
            old, self.slot.block = self.slot.block, block
            return old
        return block

    def acquire(self, request: Request) -> Steps[Block]:
        """Take it, or allocate."""
        yield Take(self.slot.lock)
        block, spare = self._take(request)
        yield Give(self.slot.lock)
        if spare is not None:
            yield from self.device.free(spare)
        if block is None:
            block = yield from self.device.allocate(request.size)
        return block

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Put it back, or free the smaller of two."""
        yield Take(self.slot.lock)
        spare = self._put(request, block)
        yield Give(self.slot.lock)
        if spare is not None:
            yield from self.device.free(spare)

    def trim(self, *, force: bool) -> Steps[None]:
        """Free the idle block."""
        yield Take(self.slot.lock)
        block = self.slot.block
        spare = self.slot.take() if block and (force or block.size > self.limit) else None
        yield Give(self.slot.lock)
        if spare is not None:
            yield from self.device.free(spare)


class SoleUser(TakePut):
    """The block is kept only while at most one launch is in flight."""

    flying = 0

    def _take(self, request: Request) -> tuple[Block | None, Block | None]:
        self.flying += 1
        block = self.slot.take()
        if self.flying == 1 and block is not None and block.size >= request.size:
            return block, None
        return None, block

    def _put(self, request: Request, block: Block) -> Block | None:
        self.flying -= 1
        if self.flying == 0 and self.slot.block is None:
            self.slot.block = block
            return None
        return block


class ExclusiveOnly(TakePut):
    """One launch at a time has the cached block, the others allocate and free.

    *strict*: a launch has it only while no other is in flight at all.
    """

    def __init__(self, limit: float, *, strict: bool) -> None:
        super().__init__(limit)
        self.strict = strict
        self.flying = 0
        self.owner = -1

    def _take(self, request: Request) -> tuple[Block | None, Block | None]:
        self.flying += 1
        if self.flying > 1 if self.strict else self.owner >= 0:
            return None, None
        self.owner = request.thread
        block = self.slot.take()
        if block is not None and block.size >= request.size:
            return block, None
        return None, block

    def _put(self, request: Request, block: Block) -> Block | None:
        self.flying -= 1
        if self.owner != request.thread:
            return block
        self.owner = -1
        self.slot.block = block
        return None


class Pool(StackPolicy):
    """Up to *k* blocks; beyond them a launch has a transient one, or waits."""

    def __init__(self, k: int, limit: float, *, wait: bool) -> None:
        self.k = k
        self.limit = limit
        self.wait = wait
        self.idle: list[Block] = []
        self.busy = 0
        self.sleepers: deque[tuple[int, int]] = deque()

    def open(self, device: Device) -> None:
        """Make the lock."""
        super().open(device)
        self.lock = device.lock()

    def acquire(self, request: Request) -> Steps[Block]:
        """Best fit, else a new one, else in place of the smallest idle one."""
        yield Take(self.lock)
        while self.wait and not self.idle and self.busy >= self.k:
            yield Wait(self.lock, self.sleepers)
        block = min(
            (b for b in self.idle if b.size >= request.size), key=lambda b: b.size, default=None
        )
        spare = None
        pooled = True
        if block is None:
            if len(self.idle) + self.busy >= self.k:
                spare = min(self.idle, key=lambda b: b.size, default=None)
                pooled = spare is not None
        self.idle = [b for b in self.idle if b is not block and b is not spare]
        self.busy += pooled
        yield Give(self.lock)
        if spare is not None:
            yield from self.device.free(spare)
        if block is None:
            block = yield from self.device.allocate(request.size)
        block.busy = pooled
        return block

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Idle again; a transient one is freed."""
        if not block.busy:  # transient
            yield from self.device.free(block)
            return
        yield Take(self.lock)
        self.busy -= 1
        self.idle.append(block)
        if self.sleepers:
            yield Wake(self.lock, self.sleepers)
        yield Give(self.lock)

    def trim(self, *, force: bool) -> Steps[None]:
        """Free idle blocks."""
        yield Take(self.lock)
        spare = [b for b in self.idle if force or b.size > self.limit]
        self.idle = [b for b in self.idle if not (force or b.size > self.limit)]
        yield Give(self.lock)
        for block in spare:
            yield from self.device.free(block)

    def close(self) -> Steps[None]:
        """Free all."""
        for block in self.idle:
            yield from self.device.free(block)
        self.idle = []


class Keyed(StackPolicy):
    """A locked block for each host thread, or each stream."""

    def __init__(self, by: str, limit: float, *, free_at_exit: bool = False) -> None:
        self.by = by
        self.limit = limit
        self.free_at_exit = free_at_exit
        self.slots: dict[int, Slot] = {}  # in creation order

    def acquire(self, request: Request) -> Steps[Block]:
        """From the key's slot."""
        key = getattr(request, self.by)
        if key not in self.slots:
            self.slots[key] = Slot(self.device, self.limit)
        return (yield from self.slots[key].acquire(request.size))

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Into the key's slot."""
        yield from self.slots[getattr(request, self.by)].release(block)

    def trim(self, *, force: bool) -> Steps[None]:
        """Every slot's, in creation order."""
        for slot in list(self.slots.values()):
            yield from slot.trim(force=force)

    def thread_end(self, thread: int) -> Steps[None]:
        """Free the thread's block, where the policy does so."""
        if self.free_at_exit and thread in self.slots:
            yield from self.slots[thread].close()

    def close(self) -> Steps[None]:
        """Every slot's."""
        for slot in self.slots.values():
            yield from slot.close()


class BlockList(StackPolicy):
    """A list that only grows; the first free block that is large enough is used."""

    retries = False

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def acquire(self, request: Request) -> Steps[Block]:
        """First fit, else one more."""
        for block in self.blocks:
            if not block.busy and block.size >= request.size:
                block.busy = True
                return block
        block = yield from self.device.allocate(request.size)
        block.busy = True
        self.blocks.append(block)
        return block

    def release(self, request: Request, block: Block) -> Steps[None]:
        """Free for others."""
        block.busy = False
        yield from ()

    def close(self) -> Steps[None]:
        """Free all."""
        for block in self.blocks:
            yield from self.device.free(block)


class _User:
    """The allocations of the program itself, by their number in the trace."""

    def __init__(self, device: Device, policy: StackPolicy) -> None:
        self.device = device
        self.policy = policy
        self.sizes: dict[int, int] = {}

    def alloc(self, name: int, size: int) -> Steps[None]:
        """Trim, try, and once more with everything freed where the policy retries."""
        if self.policy.retries:
            yield from _own(self.policy, "trim", self.policy.trim(force=False))
        done = yield from self.device.reserve(size, stack=False)
        if not done and self.policy.retries:
            yield from _own(self.policy, "trim", self.policy.trim(force=True))
            self.device.counts.retries += 1
            done = yield from self.device.reserve(size, stack=False)
        if done:
            self.sizes[name] = size
        else:
            self.device.counts.user_failures += 1

    def free(self, name: int) -> Steps[None]:
        """Free what lives by that number, if anything does."""
        size = self.sizes.pop(name, None)
        if size is not None:
            yield from self.device.unreserve(size, stack=False)


def _thread(device: Device, policy: StackPolicy, user: _User, records: Any) -> Steps[None]:
    """The program of one host thread."""
    for record in records:
        yield Pause(int(record["t"]))
        op = int(record["op"])
        size = int(record["size"])
        if op == Op.LAUNCH:
            request = Request(int(record["thread"]), int(record["stream"]), size)
            device.counts.launches += 1
            if device.costs.host_ns:
                yield Pause(device.now + device.costs.host_ns)
            block = yield from _own(policy, "acquire", policy.acquire(request))
            if not isinstance(block, Block):
                raise InvalidArgumentError(
                    f"policy {type(policy).__name__}: acquire gave {block!r:.60}, expected a Block"
                )
            device.counts.hits += not block.fresh
            block.fresh = False
            yield from device.run(request.stream, int(record["kernel_ns"]), request.thread)
            yield from _own(policy, "release", policy.release(request, block))
        elif op == Op.ALLOC:
            yield from user.alloc(int(record["id"]), size)
        elif op == Op.FREE:
            yield from user.free(int(record["id"]))
        else:
            yield Pause(device.memory.touch(int(record["id"]), size, device.now))
    yield from _own(policy, "thread_end", policy.thread_end(int(records[-1]["thread"])))


def _own(policy: StackPolicy, name: str, steps: Steps[T]) -> Steps[T]:
    """The steps of a method that a user may have written."""
    if not isinstance(steps, Generator):
        raise InvalidArgumentError(
            f"policy {type(policy).__name__}: {name} gave {steps!r:.60}, expected a generator: "
            "a method with yield in it"
        )
    return (yield from steps)


class _Queue:
    """The events: which thread goes on when, in the order (time, thread)."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.heap: list[tuple[int, int]] = []
        # A thread is in the heap once at most; what it tries again when it wakes up.
        self.again: dict[int, Step] = {}

    def put(self, time: int, thread: int) -> None:
        heapq.heappush(self.heap, (time, thread))

    def take(self, lock: Lock, thread: int, *, spin: bool) -> None:
        """Take a lock now, or wait for it."""
        now = self.device.now
        woken = thread in lock.since
        since = lock.since.pop(thread, now)
        lock.waking -= woken
        if not lock.held:
            lock.held = True
            self._go_on(lock, thread, since)
        elif woken:  # in vain: it keeps its place
            lock.waiting.appendleft((thread, since))
        elif spin and not self.device.costs.fair:
            lock.spinning.append((thread, since))
        else:
            lock.waiting.append((thread, since))

    def _go_on(self, lock: Lock, thread: int, since: int) -> None:
        """The thread has the lock."""
        if lock is not self.device.driver:
            self.device.counts.lock_wait_ns += self.device.now - since
        self.put(self.device.now, thread)

    def give(self, lock: Lock) -> None:
        """Release a lock: to who spins, to the first waiter, or to who asks before it wakes."""
        if not lock.held:
            raise InvalidArgumentError(
                "a policy gives a lock that is not held: expected Take first"
            )
        if lock.spinning:
            self._go_on(lock, *lock.spinning.popleft())
        elif lock.waiting and self.device.costs.fair:
            self._go_on(lock, *lock.waiting.popleft())
        else:
            lock.held = False
            if lock.waiting and not lock.waking:
                self._wake(lock, *lock.waiting.popleft())

    def _wake(self, lock: Lock, thread: int, since: int) -> None:
        """A sleeping thread wakes up, to try to take the lock."""
        lock.waking += 1
        lock.since[thread] = since
        self.again[thread] = Take(lock)
        self.put(self.device.now + self.device.costs.wake_ns, thread)

    def step(self, thread: int, step: Step) -> None:
        """Do what a thread asked for and put it back at its new time."""
        now = self.device.now
        if isinstance(step, Pause):
            self.put(max(now, step.until), thread)
        elif isinstance(step, Idle):
            self.put(max(now, self.device.busy_until), thread)
        elif isinstance(step, Take):
            self.take(step.lock, thread, spin=step.spin)
        elif isinstance(step, Give):
            self.give(step.lock)
            self.put(now, thread)
        elif isinstance(step, Wait):
            step.sleepers.append((thread, now))
            self.give(step.lock)
        elif isinstance(step, Wake):
            if step.sleepers:
                sleeper = step.sleepers.popleft()
                if self.device.costs.fair:
                    step.lock.waiting.append(sleeper)
                else:
                    self._wake(step.lock, *sleeper)
            self.put(now, thread)
        else:
            raise InvalidArgumentError(
                f"a policy yields {step!r:.60}: expected a step, as Take(lock)"
            )


def run(
    trace: LaunchTrace,
    policy: StackPolicy,
    costs: LaunchCosts,
    memory: Memory | int,
    *,
    events: list[tuple[int, int, str, int]] | None = None,
) -> Counts:
    """Run a trace through a policy, one step after the other.

    Parameters
    ----------
    trace : LaunchTrace
    policy : StackPolicy
        A fresh one.
    costs : LaunchCosts
    memory : Memory or int
        Where device memory comes from, or the bytes of a device of its own.
    events : list, optional
        Receives (ns, thread, what, value): ``kernel`` with its end, ``stack`` with
        the bytes of all stack blocks from then on.

    Complexity
    ----------
    O(n log threads), 20 to 40 us a launch.
    """
    device = Device(
        costs,
        Plain(memory) if isinstance(memory, int) else memory,
        shared_streams=trace.shared_streams,
        events=events,
    )
    counts = device.counts
    policy.open(device)
    user = _User(device, policy)
    queue = _Queue(device)
    threads = [_thread(device, policy, user, records) for records in trace.by_thread()]
    for thread in range(len(threads)):
        queue.put(0, thread)
    running = len(threads)
    while queue.heap:
        device.now, thread = heapq.heappop(queue.heap)
        step = queue.again.pop(thread, None)
        if step is None:
            try:
                step = next(threads[thread])
            except (StopIteration, FatalError) as end:
                counts.fatal += isinstance(end, FatalError)
                running -= 1
                continue
        queue.step(thread, step)
    counts.stuck = running
    counts.kept_bytes = device.stack
    counts.end_ns = device.now
    for step in _own(policy, "close", policy.close()):
        _alone(device, step)
    counts.left_bytes = device.used
    counts.makespan_ns = device.now
    return counts


def _alone(device: Device, step: Step) -> None:
    """A step of the thread that closes the device: nobody else is there."""
    if isinstance(step, Pause):
        device.now = max(device.now, step.until)
    elif isinstance(step, Idle):
        device.now = max(device.now, device.busy_until)
