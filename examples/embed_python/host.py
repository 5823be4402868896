"""A host loop in SimPy's manner: processes are generators that yield delays.

Nothing but svmcore is needed. Two kernels share a GPU whose memory is too small
for both; the model answers each touch with the time it is ready, and the loop
runs what the driver put off (restores, deferred unmaps) at its own time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator

import svmcore

MIB = 1 << 20
Process = Generator[int, None, None]


class Environment:
    """The clock and the queue: ``process`` starts a generator, ``run`` empties the queue."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    def at(self, t_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (t_ns, next(self._serial), action))

    def process(self, generator: Process) -> None:
        def resume() -> None:
            delay = next(generator, None)
            if delay is not None:
                self.at(self.now_ns + delay, resume)

        self.at(self.now_ns, resume)

    def run(self) -> None:
        while self._queue:
            self.now_ns, _, action = heapq.heappop(self._queue)
            action()


class Gpu:
    """What the host needs of svmcore: how long does this touch take, seen from now?"""

    def __init__(self, env: Environment, machine: svmcore.Machine) -> None:
        self.env = env
        self.space = svmcore.Space(machine, policy="kfd")

    def touch(self, addr: int, size: int, write: bool) -> int:
        # One fault after another: the driver may still be busy with the other kernel's.
        t_ns = max(self.env.now_ns, self.space.now_ns)
        result = self.space.access(addr, size, by="gpu0", write=write, t_ns=t_ns)
        if not result.ok:
            raise RuntimeError(f"{result.reason} at {result.addr:#x}")
        due = self.space.next_event_ns()
        if due is not None:
            self.env.at(max(due, self.env.now_ns), self._pending)
        return result.ready_ns - self.env.now_ns

    def _pending(self) -> None:
        due = self.space.next_event_ns()
        if due is not None and due <= self.env.now_ns:
            self.space.step(max(self.env.now_ns, self.space.now_ns))


def kernel(env: Environment, gpu: Gpu, name: str, base: int, mib: int, rounds: int) -> Process:
    """Stream over a buffer, *rounds* times, 100 us of work a MiB."""
    for number in range(rounds):
        begin = env.now_ns
        for step in range(mib):
            yield gpu.touch(base + step * MIB, MIB, write=True)
            yield 100_000
        print(f"{name} round {number}: {(env.now_ns - begin) / 1e6:.3f} ms")


def main() -> None:
    env = Environment()
    card = svmcore.Gpu(id=1001, vram_pages=24 * MIB >> 12)
    gpu = Gpu(env, svmcore.Machine("small", (card,)))
    for index in range(2):
        base = (0x7F00 + index) << 32
        gpu.space.map(base, 16 * MIB)
        env.process(kernel(env, gpu, "AB"[index], base, 16, rounds=2))
    env.run()
    counters = gpu.space.counters()
    print(
        f"{counters['faults']} faults, {counters['evictions']} evictions, "
        f"{counters['migrated_bytes'] // MIB} MiB moved"
    )


if __name__ == "__main__":
    main()
