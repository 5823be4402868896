"""Random calls on a node of several processes, against the table of transitions.

The model knows each process's state and contents. After every step: what a refused
call left is what was there, memory adds up, and no device holds more than it has.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from svmcore import Gpu, Machine
from svmcore.checkpoint.base import CUresult, ProcessState
from svmcore.checkpoint.process import (
    CUcheckpointCheckpointArgs,
    CUcheckpointLockArgs,
    CUcheckpointRestoreArgs,
    SimCheckpoint,
    SimDriver,
    SimNode,
)
from svmcore.errors import OutOfMemoryError

MIB = 1 << 20
GPUS, VRAM, HOST = 3, 40 * MIB, 60 * MIB
BASE = 1 << 40
S, E = ProcessState, CUresult
NEXT = {
    ("lock", S.RUNNING): S.LOCKED,
    ("checkpoint", S.LOCKED): S.CHECKPOINTED,
    ("checkpoint custom", S.LOCKED): S.CHECKPOINTING,
    ("restore", S.CHECKPOINTED): S.LOCKED,
    ("restore custom", S.CHECKPOINTED): S.RESTORING,
    ("complete", S.CHECKPOINTING): S.CHECKPOINTED,
    ("complete", S.RESTORING): S.LOCKED,
    ("unlock", S.LOCKED): S.RUNNING,
}
#: What a legal call may be refused with besides, with the state kept.
BUT = {
    "lock": {E.CUDA_ERROR_NOT_READY},
    "checkpoint": {E.CUDA_ERROR_OUT_OF_MEMORY},
    "checkpoint custom": {E.CUDA_ERROR_OUT_OF_MEMORY},
    "restore": {E.CUDA_ERROR_OUT_OF_MEMORY, E.CUDA_ERROR_INVALID_VALUE},
    "restore custom": {E.CUDA_ERROR_OUT_OF_MEMORY, E.CUDA_ERROR_INVALID_VALUE},
    "complete": {E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
    "unlock": set(),
}
picks = st.integers(0, 7)
#: Pairs of numbers of GPUs; the last number is a GPU that nobody has.
pairings = st.one_of(
    st.just([]),
    st.permutations(range(GPUS)).map(lambda new: list(enumerate(new))),
    st.just([(0, 1), (1, 0), (2, 2)]),
    st.lists(st.tuples(st.integers(0, GPUS), st.integers(0, GPUS)), max_size=GPUS + 1),
)


class Life(RuleBasedStateMachine):
    rule_of_remap = "checkpointed"

    @initialize()
    def start(self):
        machine = Machine("model", tuple(Gpu(1 + i, VRAM >> 12, hive=1) for i in range(GPUS)))
        self.node = SimNode(
            machine,
            host_memory=HOST,
            driver=SimDriver(remap_rule=self.rule_of_remap),
            chips=["a"] * (GPUS - 1) + ["b"],
        )
        self.driver = SimCheckpoint(self.node)
        self.processes = []
        self.states = {}  # pid -> state
        self.contents = {}  # pid -> {addr: data}
        self.open = {}  # pid -> CustomStorage
        self.stored = {}  # pid -> {addr: data} in custom storage
        self.count = 0
        for number in range(2):
            self.spawn(range(GPUS), GPUS)
            self.allocate(number, 25 * MIB, 0)

    def pick(self, number):
        return self.processes[number % len(self.processes)]

    def pictures(self):
        return [
            (
                (p.pid, p.state, p.gpus, p.host_bytes, p.image),
                [(a.addr, a.size, a.device, a.data, a.on_device) for a in p.allocations()],
                [
                    [(r.start, r.size, r.preferred, r.prefetch, r.access) for r in s.ranges()]
                    for s in p.spaces
                ],
            )
            for p in self.processes
        ]

    def settle(self, process, call, before, result):
        """Check one call's result against the table, and follow it."""
        state = self.states[process.pid]
        legal = NEXT.get((call, state))
        if result == E.CUDA_SUCCESS:
            assert legal is not None, (call, state)
            self.states[process.pid] = legal
        else:
            expected = BUT[call] if legal is not None else {E.CUDA_ERROR_ILLEGAL_STATE}
            if call == "complete" and legal is None:
                expected = {E.CUDA_ERROR_INVALID_VALUE}
            assert result in expected, (call, state, self.driver.why)
            assert self.driver.why
            assert self.pictures() == before
        assert process.state == self.states[process.pid]

    # ---- what processes do ----

    @precondition(lambda self: len(self.processes) < 3)
    @rule(order=st.permutations(range(GPUS)), seen=st.integers(1, GPUS))
    def spawn(self, order, seen):
        process = self.node.spawn([self.node.uuids[i] for i in order[:seen]])
        self.processes.append(process)
        self.states[process.pid] = S.RUNNING
        self.contents[process.pid] = {}

    @precondition(lambda self: self.processes)
    @rule(number=picks, size=st.sampled_from([1, 5000, 10 * MIB, 25 * MIB, 35 * MIB]), device=picks)
    def allocate(self, number, size, device):
        process = self.pick(number)
        if process.state != S.RUNNING:
            return
        self.count += 1
        before = self.pictures()
        try:
            new = process.allocate(size, device % len(process.gpus), self.count)
        except OutOfMemoryError:
            assert self.pictures() == before
        else:
            self.contents[process.pid][new.addr] = self.count

    @precondition(lambda self: self.processes)
    @rule(number=picks, device=picks)
    def squeeze(self, number, device):
        """Take all that is free of a GPU: who is checkpointed cannot come back to it."""
        process = self.pick(number)
        gpu = self.node.gpu_name(process.gpus[device % len(process.gpus)])
        room = VRAM - self.node.system.used(gpu)
        if room:
            self.allocate(number, room, device)

    @precondition(lambda self: self.processes)
    @rule(number=picks, which=picks)
    def free(self, number, which):
        process = self.pick(number)
        held = self.contents[process.pid]
        if process.state == S.RUNNING and held:
            addr = sorted(held)[which % len(held)]
            process.free(addr)
            del held[addr]

    @precondition(lambda self: self.processes)
    @rule(number=picks, gpu=st.integers(0, GPUS - 1), at=st.integers(0, 30), pages=picks)
    def touch(self, number, gpu, at, pages):
        process = self.pick(number)
        if process.state != S.RUNNING or len(process.gpus) < GPUS:
            return
        if not process.spaces:
            process.space().map(BASE, 64 * MIB)
        (space,) = process.spaces
        if at % 3 == 0:
            where = {"preferred_location": f"gpu{gpu}", "prefetch": f"gpu{at % GPUS}"}
            space.set_attr(BASE + 2 * MIB * at, MIB, where)
        assert space.access(BASE + 2 * MIB * at, 4096 << pages, by=f"gpu{gpu}", write=True).ok

    @precondition(lambda self: self.processes)
    @rule(number=picks, milliseconds=st.integers(0, 9))
    def submit(self, number, milliseconds):
        process = self.pick(number)
        if process.state == S.RUNNING:
            process.submit(milliseconds * 1_000_000)

    # ---- what the caller does ----

    def lock(self, process, *, timeout=0, **_other):
        args = CUcheckpointLockArgs(timeout)
        return self.driver.cuCheckpointProcessLock(process.pid, args)

    def unlock(self, process, **_other):
        return self.driver.cuCheckpointProcessUnlock(process.pid)

    def checkpoint(self, process, *, custom=False, **_other):
        out = [] if custom else None
        args = CUcheckpointCheckpointArgs(out)
        answer = self.driver.cuCheckpointProcessCheckpoint(process.pid, args)
        if out:
            self.open[process.pid] = out[0]
            self.stored[process.pid] = {}
            for window in out[0].windows:
                self.stored[process.pid] |= window.read()
        return answer

    def restore(self, process, *, custom=False, pairs=(), **_other):
        names = [*self.node.uuids, "GPU-00000000-0000-0000-0000-00000000dead"]
        out = [] if custom else None
        args = CUcheckpointRestoreArgs([(names[a], names[b]) for a, b in pairs], out)
        before, devices = process.gpus, process.device_bytes
        answer = self.driver.cuCheckpointProcessRestore(process.pid, args)
        if answer == (E.CUDA_SUCCESS,):
            assert all((a == GPUS - 1) == (b == GPUS - 1) for a, b in pairs)  # the other chip
            assert len(set(process.gpus)) == len(process.gpus)
            renamed = dict(args.gpuPairs)
            for old, new in zip(before, process.gpus, strict=True):
                assert renamed.get(old, new) == new
            assert sum(devices().values()) == sum(a.held for a in process.allocations())
        if out:
            self.open[process.pid] = out[0]
            for window in out[0].windows:
                stored = self.stored[process.pid]
                window.write({addr: stored[addr] for addr in window.contents})
        return answer

    def complete(self, process, *, capturing=False, **_other):
        storage = self.open.get(process.pid)
        if storage:
            for window in storage.windows:
                window.stream.capturing = capturing
        return self.driver.cuCheckpointOperationComplete(storage.handle if storage else 0)

    def make(self, call, process, *, custom=False, **arguments):
        before = self.pictures()
        (result,) = getattr(self, call)(process, custom=custom, **arguments)
        moves = call in ("checkpoint", "restore")
        self.settle(process, f"{call} custom" if custom and moves else call, before, result)

    @precondition(lambda self: self.processes)
    @rule(
        number=picks,
        call=st.sampled_from(["lock", "unlock", "checkpoint", "restore", "complete"]),
        custom=st.booleans(),
        pairs=pairings,
        timeout=st.integers(0, 5),
        capturing=st.booleans(),
    )
    def any_call(self, number, call, **arguments):
        self.make(call, self.pick(number), **arguments)

    @precondition(lambda self: self.processes)
    @rule(number=picks, steps=st.integers(1, 6), custom=st.booleans(), pairs=pairings)
    def go_on(self, number, steps, custom, pairs):
        """Calls that the state allows, round and round: any call seldom leads far."""
        process = self.pick(number)
        for _ in range(steps):
            if process.state == S.RUNNING:
                self.make("lock", process)
            elif process.state == S.LOCKED and steps % 2:
                self.make("unlock", process)
            elif process.state == S.LOCKED:
                self.make("checkpoint", process, custom=custom)
            elif process.state == S.CHECKPOINTED:
                self.make("restore", process, custom=process.image == "custom", pairs=pairs)
            elif process.state != S.FAILED:
                self.make("complete", process)

    # ---- deaths ----

    @precondition(lambda self: len(self.processes) > 1)
    @rule(number=picks)
    def kill(self, number):
        process = self.pick(number)
        self.node.kill(process.pid)
        self.processes.remove(process)
        answers = self.driver.cuCheckpointProcessGetState(process.pid)
        assert answers == (E.CUDA_ERROR_OPERATING_SYSTEM, None)

    @rule(luck=st.integers(0, 4))
    def caller_dies(self, luck):
        if luck:
            return
        self.node.kill(self.driver.caller.pid)
        self.driver = SimCheckpoint(self.node)
        for pid, state in self.states.items():
            if state in (S.CHECKPOINTING, S.RESTORING):
                self.states[pid] = S.FAILED

    # ---- always ----

    @invariant()
    def memory_adds_up(self):
        if not hasattr(self, "node"):
            return
        node = self.node
        assert node.host_used == sum(p.host_bytes for p in node.processes())
        assert 0 <= node.host_used <= HOST
        held = dict.fromkeys(node.uuids, 0)
        objects = [0] * GPUS
        for process in self.processes:
            for gpu, nbytes in process.device_bytes().items():
                held[gpu] += nbytes
            for space in process.spaces:
                space.process.check()
                for gpu, row in enumerate(space.process.counters()):
                    objects[gpu] += row[3] << 12
        for number, gpu in enumerate(node.uuids):
            name = f"gpu{number}"
            assert node.system.reserved(name) == held[gpu]
            assert node.system.used(name) == held[gpu] + objects[number]
            assert node.system.used(name) <= VRAM

    @invariant()
    def states_and_contents_are_the_models(self):
        if not hasattr(self, "node"):
            return
        for process in self.processes:
            state = self.states[process.pid]
            answer = self.driver.cuCheckpointProcessGetState(process.pid)
            assert answer == (E.CUDA_SUCCESS, state)
            data = {a.addr: a.data for a in process.allocations()}
            assert list(data) == list(self.contents[process.pid])
            if state in (S.RUNNING, S.LOCKED):
                assert process.host_bytes == 0
                assert data == self.contents[process.pid]
            if state == S.CHECKPOINTED:
                assert process.device_bytes() == {}
                assert all(space.device_bytes() == 0 for space in process.spaces)
                if process.image == "custom":
                    assert set(data.values()) <= {None}
                    assert self.stored[process.pid] == self.contents[process.pid]


class VisibleLife(Life):
    rule_of_remap = "visible"


@pytest.mark.parametrize("kind", [Life, VisibleLife], ids=lambda kind: kind.rule_of_remap)
def test_random_lives(kind):
    test = kind.TestCase()
    test.settings = settings(settings.default, max_examples=100, stateful_step_count=50)
    test.runTest()
