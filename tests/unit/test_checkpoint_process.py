"""The process state machine: codes, memory, remap, custom storage, deaths, real recordings."""

import ast
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore import Gpu, Machine, Space, System
from svmcore.checkpoint.base import (
    CallTimeoutError,
    CheckpointError,
    CheckpointNotSupportedError,
    CUresult,
    ProcessState,
    bring,
    gpu_uuid,
    parse_gpu_map,
    suspended,
)
from svmcore.checkpoint.node import CheckpointCosts
from svmcore.checkpoint.process import (
    CallerDiedError,
    CUcheckpointCheckpointArgs,
    CUcheckpointLockArgs,
    CUcheckpointRestoreArgs,
    CUcheckpointUnlockArgs,
    SimCheckpoint,
    SimDriver,
    SimNode,
)
from svmcore.errors import BusyError, InvalidArgumentError, NotSupportedError, OutOfMemoryError

MIB, GIB = 1 << 20, 1 << 30
BASE = 1 << 40
R, L, C = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED
OK, INVALID = CUresult.CUDA_SUCCESS, CUresult.CUDA_ERROR_INVALID_VALUE
FULL, GONE = CUresult.CUDA_ERROR_OUT_OF_MEMORY, CUresult.CUDA_ERROR_OPERATING_SYSTEM
ILLEGAL = CUresult.CUDA_ERROR_ILLEGAL_STATE


def machine(gpus=2, vram=GIB):
    return Machine("unit", tuple(Gpu(1 + i, vram >> 12, hive=1) for i in range(gpus)))


def node_of(gpus=2, vram=GIB, *, node=None, **driver):
    return SimNode(machine(gpus, vram), driver=SimDriver(**driver), **(node or {}))


def code(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except CheckpointError as error:
        return error.result
    return OK


def picture(node):
    """All that a refused call must leave alone."""
    system = node.system
    return (
        [system.used(f"gpu{i}") for i in range(len(node.uuids))],
        [system.reserved(f"gpu{i}") for i in range(len(node.uuids))],
        node.host_used,
        sorted(node.operations),
        [pictured(process) for process in node.processes()],
    )


def pictured(process):
    return (
        (process.pid, process.state, process.gpus),
        (process.host_bytes, process.image, process.stuck),
        [(a.addr, a.size, a.device, a.data, a.on_device) for a in process.allocations()],
        [space.ranges() for space in process.spaces],
    )


# ---- what real GPUs answered ------------------------------------------------------------------


def calls(driver, pid):
    return {
        "lock": lambda: driver.cuCheckpointProcessLock(pid),
        "lock_timeout_1ms": lambda: driver.cuCheckpointProcessLock(pid, CUcheckpointLockArgs(1)),
        "checkpoint": lambda: driver.cuCheckpointProcessCheckpoint(pid),
        "restore": lambda: driver.cuCheckpointProcessRestore(pid),
        "unlock": lambda: driver.cuCheckpointProcessUnlock(pid),
        "get_state": lambda: driver.cuCheckpointProcessGetState(pid),
        "get_restore_thread_id": lambda: driver.cuCheckpointProcessGetRestoreThreadId(pid),
    }


def told(answer):
    """An answer as the recordings have it."""
    result, *value = answer
    if not value:
        return result.name
    if isinstance(value[0], ProcessState):
        return [result.name, value[0].name]
    return [result.name, value[0] if value[0] is None else value[0] > 0]


def recorded(expected):
    """A recorded answer; where there is no thread id it says false."""
    return [expected[0], None] if isinstance(expected, list) and not expected[1] else expected


@pytest.fixture
def h200(shared):
    return json.loads((shared / "vectors" / "checkpoint_h200.json").read_text())


def real_driver(gpus=1):
    return SimNode(
        machine(gpus, 141 * 10**9), driver=SimDriver(version="13.0", remap_rule="visible")
    )


def test_the_recorded_matrix(h200):
    assert len(h200["matrix"]) == 18
    for cell, row in h200["matrix"].items():
        state, call = cell.split(".")
        node = real_driver()
        process, driver = node.spawn(), SimCheckpoint(node)
        process.allocate(64 * MIB, 0, "contents")
        bring(driver, process.pid, ProcessState[state])
        assert told(calls(driver, process.pid)[call]()) == row["result"], cell
        if "state_after" in row:
            assert told(calls(driver, process.pid)["get_state"]()) == row["state_after"], cell
        if row.get("memory"):
            (allocation,) = process.allocations()
            assert (row["memory"], allocation.data, allocation.on_device) == (
                "ok",
                "contents",
                True,
            )


def test_recorded_before_cuinit(h200):
    node = real_driver()
    process = node.spawn()
    driver = SimCheckpoint(node, node.spawn(cuda=False))
    row = h200["before_cuInit"]
    own = calls(driver, process.pid)
    assert told(own["get_state"]()) == row["get_state"]
    assert told(own["lock"]()) == row["lock"]
    assert told(own["get_state"]()) == row["state_after"]
    assert told(own["unlock"]()) == row["unlock"]


def test_recorded_targets(h200):
    node = real_driver()
    driver = SimCheckpoint(node)
    dead = node.spawn()
    node.kill(dead.pid)
    pids = {
        "no_such_pid": 999_999,
        "non_cuda_process": node.spawn(cuda=False).pid,
        "self": driver.caller.pid,
        "pid_0": 0,
        "pid_negative": -1,
    }
    assert set(h200["targets"]) == set(pids)
    for target, row in h200["targets"].items():
        for call, expected in row.items():
            assert told(calls(driver, pids[target])[call]()) == recorded(expected), target
    process = node.spawn()
    bring(driver, process.pid, C)
    node.kill(process.pid)
    for call, expected in h200["killed_while_checkpointed"].items():
        assert told(calls(driver, process.pid)[call]()) == recorded(expected)


def test_recorded_pairs_of_one_gpu(h200):
    unknown = "GPU-00000000-0000-0000-0000-00000000dead"
    for name in ("identity_pair", "unknown_old_uuid", "unknown_new_uuid"):
        node = real_driver()
        process, driver = node.spawn(), SimCheckpoint(node)
        process.allocate(64 * MIB)
        bring(driver, process.pid, C)
        (gpu,) = node.uuids
        pair = {"identity_pair": (gpu, gpu), "unknown_old_uuid": (unknown, gpu)}.get(
            name, (gpu, unknown)
        )
        row = h200[f"restore.{name}"]
        args = CUcheckpointRestoreArgs([pair])
        assert told(driver.cuCheckpointProcessRestore(process.pid, args)) == row["restore"]
        assert told(driver.cuCheckpointProcessGetState(process.pid)) == row["state_after"]
        if "unlock" in row:
            assert told(driver.cuCheckpointProcessUnlock(process.pid)) == row["unlock"]


def test_recorded_costs(h200):
    """The model's times are within 15% of every measured checkpoint and restore."""
    assert len(h200["cost"]) == 4
    for row in h200["cost"]:
        node = real_driver()
        process, driver = node.spawn(), SimCheckpoint(node)
        process.allocate(int(row["gib"] * GIB))
        for call in ("lock", "checkpoint", "restore", "unlock"):
            before = node.now_ns
            assert told(calls(driver, process.pid)[call]()) == row[call]
            took = (node.now_ns - before) / 1e9
            # Lock and unlock are one constant each; the first rows' floor is 0.4 to 0.8 ms.
            near = 0.15 if call in ("checkpoint", "restore") else 0.5
            assert took == pytest.approx(row[f"{call}_s"], rel=near), (row["gib"], call)


def pairs_of(scenario, first, second):
    return {
        "none": [],
        "empty": [],
        "pair_0_to_1": [(first, second)],
        "only_0_to_1": [(first, second)],
        "only_0_to_0": [(first, first)],
        "only_pair_1_to_0": [(second, first)],
        "swap": [(first, second), (second, first)],
        "identity_both": [(first, first), (second, second)],
        "both_to_1": [(first, second), (second, second)],
        "dup_old": [(first, second), (first, first)],
    }[scenario]


def test_every_recorded_remap(shared):
    """Two real GPUs: codes, states, memory in use by GPU, which GPU a device is afterwards."""
    recording = json.loads((shared / "vectors" / "checkpoint_h200x2_remap.json").read_text())
    scenarios = [name for name in recording if "." in name]
    assert len(scenarios) == 12
    uuids = [line.split(",")[0] for line in recording["mem_idle"]]
    for scenario in scenarios:
        row = recording[scenario]
        uses, _, pairs = scenario.partition(".")
        node = SimNode(
            machine(2, 141 * 10**9),
            uuids=uuids,
            driver=SimDriver(version="13.0", remap_rule="visible"),
        )

        def used(node=node):
            return [
                f"{gpu}, {node.system.used(f'gpu{i}') // MIB} MiB"
                for i, gpu in enumerate(node.uuids)
            ]

        for i in range(2):
            node.system.reserve(f"gpu{i}", 4 * MIB)  # what an idle GPU has in use
        assert used() == recording["mem_idle"]
        process, driver = node.spawn(), SimCheckpoint(node)
        pid = process.pid
        for device in (0, 1)[: 1 + (uses == "uses01")]:
            process.allocate(779 * MIB, device, f"contents {device}")
        assert used() == row["mem_before"], scenario
        assert told(driver.cuCheckpointProcessLock(pid)) == row["lock"]
        assert told(driver.cuCheckpointProcessCheckpoint(pid)) == row["checkpoint"]
        assert used() == row["mem_checkpointed"], scenario
        args = CUcheckpointRestoreArgs(pairs_of(pairs, *uuids))
        assert told(driver.cuCheckpointProcessRestore(pid, args)) == row["restore"], scenario
        assert process.state.name == row["state"], scenario
        assert used() == row["mem_restored"], scenario
        if "retry_plain_restore" in row:
            assert told(driver.cuCheckpointProcessRestore(pid)) == row["retry_plain_restore"]
            assert process.state.name == row["state_after_retry"]
            continue
        assert told(driver.cuCheckpointProcessUnlock(pid)) == row["unlock"]
        for device, _, intact, gpu, _ in ast.literal_eval(row["child"]):
            (data,) = [a.data for a in process.allocations() if a.device == device]
            assert (data == f"contents {device}") is intact
            assert process.gpus[device][4:12] == gpu, scenario


# ---- case 31 ----------------------------------------------------------------------------------


def test_case_31_a_failed_restore_can_be_tried_again():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(600 * MIB, 0, "contents")
    pid = process.pid
    driver.lock(pid)
    driver.checkpoint(pid)
    other = node.spawn()
    held = other.allocate(GIB)
    before = picture(node)
    assert code(driver.restore, pid) == FULL
    assert picture(node) == before
    assert driver.get_state(pid) == C
    other.free(held.addr)
    driver.restore(pid)
    assert driver.get_state(pid) == L
    driver.unlock(pid)
    assert driver.get_state(pid) == R
    assert process.allocations()[0].data == "contents"


def test_case_31_the_map_renames_the_device_of_every_range():
    node = node_of(2)
    process, driver = node.spawn(), SimCheckpoint(node)
    space = process.space(xnack=True)
    space.map(BASE, 16 * MIB)
    space.set_attr(BASE, 2 * MIB, {"preferred_location": "gpu0", "prefetch": "gpu0"})
    space.set_attr(BASE + 2 * MIB, 2 * MIB, {"preferred_location": "gpu1", "granularity": 3})
    space.set_attr(
        BASE + 4 * MIB, 2 * MIB, {"no_access": "gpu0", "access_in_place": "gpu1", "set_flags": 0x20}
    )
    space.access(BASE + 2 * MIB, MIB, by="gpu1", write=True)
    before = space.ranges()
    first, second = node.uuids
    bring(driver, process.pid, C)
    assert code(driver.restore, process.pid, {first: second}) == INVALID  # gpu1 is not listed
    driver.restore(process.pid, {first: second, second: first})
    driver.unlock(process.pid)
    other = {"gpu0": "gpu1", "gpu1": "gpu0", "undefined": "undefined", "cpu": "cpu"}
    after = space.ranges()
    assert [(r.start, r.size, r.granularity, r.flags) for r in after] == [
        (r.start, r.size, r.granularity, r.flags) for r in before
    ]
    for old, new in zip(before, after, strict=True):
        assert new.preferred == other[old.preferred]
        assert new.prefetch == other[old.prefetch]
        assert set(new.access) == {other[name] for name in old.access}
        assert set(new.access_in_place) == {other[name] for name in old.access_in_place}
    # A defined prefetch location brings its pages back at once; others wait for faults.
    assert [(r.actual, r.device_pages) for r in after] == [("gpu1", 512), ("cpu", 0), ("cpu", 0)]
    space.process.check()


@pytest.mark.parametrize("mode", ["retryable", "stuck", "failed"])
def test_what_a_failed_restore_leaves(mode):
    node = node_of(1, on_failed_restore=mode)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(600 * MIB)
    pid = process.pid
    bring(driver, pid, C)
    other = node.spawn()
    held = other.allocate(GIB)
    assert code(driver.restore, pid) == FULL
    other.free(held.addr)
    after = {"retryable": C, "stuck": C, "failed": ProcessState.FAILED}[mode]
    assert driver.get_state(pid) == after
    again = {"retryable": OK, "stuck": GONE, "failed": ILLEGAL}[mode]
    assert code(driver.restore, pid) == again
    if mode != "retryable":
        assert code(driver.unlock, pid) == ILLEGAL
        assert code(driver.restore, pid) == again
        node.kill(pid)  # only a kill helps
        assert (node.host_used, node.system.used("gpu0")) == (0, 0)


# ---- memory -----------------------------------------------------------------------------------


def test_a_checkpoint_frees_device_memory_for_others():
    node = node_of(1)
    one, two, driver = node.spawn(), node.spawn(), SimCheckpoint(node)
    one.allocate(700 * MIB)
    with pytest.raises(OutOfMemoryError):
        two.allocate(700 * MIB)
    with suspended(driver, one.pid):
        held = two.allocate(700 * MIB)
        assert node.host_used == 700 * MIB
        two.free(held.addr)
    assert (node.host_used, node.system.used("gpu0")) == (0, 700 * MIB)


def test_a_checkpoint_frees_the_pages_of_a_space():
    node = node_of(1, 64 * MIB)
    process, driver = node.spawn(), SimCheckpoint(node)
    mine, other = process.space(), node.system.space()
    for space in (mine, other):
        space.map(BASE, 64 * MIB)
    mine.access(BASE, 48 * MIB, by="gpu0", write=True)
    assert node.system.used("gpu0") == 48 * MIB
    before = [r[:7] for r in mine.ranges()]
    bring(driver, process.pid, C)
    assert (node.system.used("gpu0"), node.host_used) == (0, 48 * MIB)
    other.access(BASE, 60 * MIB, by="gpu0", write=True)
    assert other.counters()["evictions"] == 0
    bring(driver, process.pid, R)
    assert node.host_used == 0
    assert [(r[0], r[1], r[2], r[3], r[5], r[6]) for r in mine.ranges()] == [
        (*r[:4], r[5], r[6]) for r in before
    ]
    assert mine.now_ns >= node.costs.checkpoint_ns
    mine.process.check()
    other.process.check()


def test_plain_memory_pushes_pages_of_spaces_out():
    node = node_of(1, 64 * MIB)
    space = node.system.space()
    space.map(BASE, 64 * MIB)
    space.access(BASE, 40 * MIB, by="gpu0", write=True)
    process = node.spawn()
    process.allocate(50 * MIB)
    assert node.system.used("gpu0") <= 64 * MIB
    assert space.counters()["evictions"] > 0
    # And the space cannot push the plain memory out.
    space.access(BASE, 64 * MIB, by="gpu0", write=True)
    assert node.system.reserved("gpu0") == 50 * MIB
    assert node.system.used("gpu0") <= 64 * MIB
    space.process.check()


def test_reserving_is_all_or_nothing():
    system = System(machine(1, 64 * MIB))
    space = system.space()
    space.map(BASE, 64 * MIB)
    space.access(BASE, 32 * MIB, by="gpu0", write=True)
    with pytest.raises(OutOfMemoryError, match="expected at most"):
        system.reserve("gpu0", 64 * MIB + 1)
    assert space.counters()["evictions"] == 0
    system.reserve("gpu0", 1)
    assert space.counters()["evictions"] == 0
    assert system.used("gpu0") == 32 * MIB + 4096
    system.reserve("gpu0", 63 * MIB)
    assert space.counters()["evictions"] > 0
    assert system.used("gpu0") == 63 * MIB + 4096
    with pytest.raises(InvalidArgumentError, match="reserved"):
        system.release("gpu0", 64 * MIB)
    with pytest.raises(InvalidArgumentError, match="expected 0 or more bytes"):
        system.reserve("gpu0", -1)
    system.release("gpu0", 63 * MIB)
    system.release("gpu0", 1)
    assert (system.used("gpu0"), system.reserved("gpu0")) == (0, 0)
    alone = System(machine(1, 64 * MIB))
    alone.reserve("gpu0", 60 * MIB)
    with pytest.raises(OutOfMemoryError):
        alone.reserve("gpu0", 5 * MIB)


def test_a_full_host():
    node = node_of(1, node={"host_memory": 100 * MIB})
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(100 * MIB + 1)
    driver.lock(process.pid)
    before = picture(node)
    assert code(driver.checkpoint, process.pid) == FULL
    assert picture(node) == before
    node.host_memory += 4096
    driver.checkpoint(process.pid)
    assert node.host_used == 100 * MIB + 4096


def test_custom_storage_needs_no_host_memory():
    node = node_of(1, node={"host_memory": 0})
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(100 * MIB)
    driver.lock(process.pid)
    driver.operation_complete(driver.checkpoint(process.pid, custom_storage=True).handle)
    assert (node.system.used("gpu0"), node.host_used) == (0, 0)


def test_the_second_gpu_without_room_leaves_the_first_alone():
    node = node_of(2)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(600 * MIB, 0)
    process.allocate(600 * MIB, 1)
    bring(driver, process.pid, C)
    node.system.reserve("gpu1", 600 * MIB)
    before = picture(node)
    assert code(driver.restore, process.pid) == FULL
    assert picture(node) == before


@pytest.mark.parametrize(
    ("refusal", "result"),
    [(OutOfMemoryError, FULL), (NotSupportedError, CUresult.CUDA_ERROR_NOT_SUPPORTED)],
)
def test_a_space_that_refuses_leaves_all_as_it_was(monkeypatch, refusal, result):
    node = node_of(2, on_failed_restore="retryable")
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(100 * MIB, 0)
    spaces = [process.space(), process.space()]
    for space in spaces:
        space.map(BASE, 4 * MIB)
        space.set_attr(BASE, 2 * MIB, {"preferred_location": "gpu0", "prefetch": "gpu0"})
        space.set_attr(BASE + 2 * MIB, 2 * MIB, {"preferred_location": "gpu1"})
    bring(driver, process.pid, C)
    before = picture(node)
    setting, asked = Space.set_attr, []

    def third_fails(self, addr, *args, **named):
        asked.append(addr)
        if len(asked) == 4:
            raise refusal("not the last range")
        return setting(self, addr, *args, **named)

    monkeypatch.setattr(Space, "set_attr", third_fails)
    first, second = node.uuids
    assert code(driver.restore, process.pid, {first: second, second: first}) == result
    assert picture(node) == before
    driver.restore(process.pid)
    assert [r.actual for r in spaces[0].ranges()] == ["gpu0", "cpu"]


def test_pages_that_do_not_leave():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    space = process.space()
    space.map(BASE, 4 * MIB)
    space.access(BASE, 4 * MIB, by="gpu0", write=True)
    driver.lock(process.pid)
    space.process.inject("copy_fail", 1000)
    assert code(driver.checkpoint, process.pid) == CUresult.CUDA_ERROR_NOT_SUPPORTED
    assert (driver.get_state(process.pid), node.host_used) == (L, 0)
    space.process.inject("copy_fail", 0)
    driver.checkpoint(process.pid)
    assert node.system.used("gpu0") == 0


def test_ranges_are_refused_as_cuda_refuses_managed_memory():
    node = node_of(1, svm="refuse")
    process, driver = node.spawn(), SimCheckpoint(node)
    space = process.space()
    driver.lock(process.pid)
    driver.checkpoint(process.pid)  # a space without ranges is none
    bring(driver, process.pid, R)
    space.map(BASE, MIB)
    space.access(BASE, MIB, by="gpu0")
    driver.lock(process.pid)
    before = picture(node)
    with pytest.raises(NotSupportedError, match="ranges of shared virtual memory"):
        driver.checkpoint(process.pid)
    assert picture(node) == before


# ---- locking ----------------------------------------------------------------------------------


def test_lock_waits_for_submitted_work():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.submit(3_000_000)
    process.submit(2_000_000)
    process.submit(4_000_000, stream=1)
    driver.lock(process.pid)
    assert node.now_ns == 5_000_000 + node.costs.lock_ns


def test_lock_timeout_keeps_the_work():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.submit(5_000_000)
    assert code(driver.lock, process.pid, 4) == CUresult.CUDA_ERROR_NOT_READY
    assert (node.now_ns, driver.get_state(process.pid)) == (4_000_000, R)
    assert process.idle_ns() == 5_000_000
    process.submit(1_000_000)
    driver.lock(process.pid, 2)  # it ends just then
    assert node.now_ns == 6_000_000 + node.costs.lock_ns


def test_work_begins_when_it_is_submitted():
    node = node_of(1)
    process = node.spawn()
    node.step(10_000)
    process.submit(1000)
    process.submit(500)
    assert process.idle_ns() == 11_500


def test_work_that_never_ends():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.submit(None)
    process.submit(5)
    assert process.idle_ns() is None
    assert code(driver.lock, process.pid, 7) == CUresult.CUDA_ERROR_NOT_READY
    assert node.now_ns == 7_000_000
    with pytest.raises(CallTimeoutError, match="never ends"):
        driver.lock(process.pid)
    assert driver.get_state(process.pid) == R


def test_a_locked_process_cannot_call():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    allocation, space = process.allocate(MIB), process.space()
    space.map(BASE, MIB)
    driver.lock(process.pid)
    for call in (
        lambda: process.allocate(1),
        lambda: process.free(allocation.addr),
        lambda: process.submit(1),
        process.space,
        lambda: space.access(BASE, by="gpu0"),
        lambda: space.fault(BASE),
        lambda: space.prefetch(BASE, MIB, "gpu0"),
        lambda: space.advise(BASE, MIB, "read_mostly"),
    ):
        with pytest.raises(BusyError, match="is LOCKED, expected RUNNING"):
            call()
    space.access(BASE, by="cpu", write=True)  # CPU threads go on
    space.unmap(BASE, MIB)
    driver.unlock(process.pid)
    process.free(allocation.addr)
    assert node.system.used("gpu0") == 0


def test_a_thread_id_is_as_good_as_a_pid():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    thread = driver.get_restore_thread_id(process.pid)
    driver.lock(thread)
    assert driver.get_state(process.pid) == L
    assert driver.get_restore_thread_id(thread) == thread


# ---- arguments and capabilities ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("Lock", CUcheckpointLockArgs(reserved=1)),
        ("Lock", CUcheckpointLockArgs(timeoutMs=-1)),
        ("Lock", CUcheckpointLockArgs(timeoutMs=1 << 32)),
        ("Checkpoint", CUcheckpointCheckpointArgs(reserved=1)),
        ("Restore", CUcheckpointRestoreArgs(reserved=1)),
        ("Restore", CUcheckpointRestoreArgs(gpuPairs=[("x", "y")])),
        ("Restore", CUcheckpointRestoreArgs(gpuPairs=[3])),
        ("Unlock", CUcheckpointUnlockArgs(reserved=1)),
    ],
)
def test_arguments_are_checked_before_anything_else(call, args):
    driver = SimCheckpoint(node_of(1))
    # Not even the target is looked for.
    assert getattr(driver, f"cuCheckpointProcess{call}")(-1, args) == (INVALID,)


def test_version_gates():
    for version, works in (("12.6", 0), ("12.8", 1), ("13.0", 2), ("13.3", 2), ("13.4", 3)):
        node = node_of(1, version=version)
        process, driver = node.spawn(), SimCheckpoint(node)
        pid, same = process.pid, {gpu: gpu for gpu in node.uuids}
        results = [code(driver.get_state, pid) == OK]
        process.state = C
        process.image = "host"
        results.append(code(driver.restore, pid, same) == OK)
        process.state = L
        results.append(code(driver.checkpoint, pid, custom_storage=True) == OK)
        assert results == [works > 0, works > 1, works > 2], version
        if works < 3:
            with pytest.raises(CheckpointNotSupportedError, match=r"expected (12.8|13.4) or"):
                driver.operation_complete(1) if works else driver.lock(pid)


def test_restore_needs_cuda_in_the_caller_or_persistence_mode():
    node = node_of(1)
    process = node.spawn()
    driver = SimCheckpoint(node, node.spawn(cuda=False))
    bring(driver, process.pid, C)
    assert code(driver.restore, process.pid) == CUresult.CUDA_ERROR_NOT_INITIALIZED
    assert driver.get_state(process.pid) == C
    node.persistence_mode = True
    driver.restore(process.pid)


@pytest.mark.parametrize(
    "bad",
    [
        {"version": "13"},
        {"version": "x.y"},
        {"version": 13.4, "remap_rule": "all"},
        {"remap_rule": "all-visible"},
        {"on_failed_restore": "retry"},
        {"svm": ""},
    ],
)
def test_unknown_words_of_the_driver(bad):
    with pytest.raises(InvalidArgumentError, match="expected"):
        SimDriver(**bad)


def test_bad_nodes_and_processes():
    one = ["GPU-00000000-0000-0000-0000-000000000001"]
    for bad in (
        {"uuids": one},
        {"uuids": one * 2},
        {"chips": ["a"]},
        {"uuids": ["x", "y"]},
        {"host_memory": -1},
        {"host_memory": 1.5},
    ):
        with pytest.raises(InvalidArgumentError, match="expected"):
            SimNode(machine(2), **bad)
    node = node_of(2)
    process, driver = node.spawn(), SimCheckpoint(node)
    for call in (
        lambda: node.spawn(one),
        lambda: node.spawn([node.uuids[0]] * 2),
        lambda: node.kill(1),
        lambda: node.step(-1),
        lambda: process.allocate(0),
        lambda: process.allocate(-5),
        lambda: process.allocate(1.5),
        lambda: process.allocate(1, 2),
        lambda: process.free(7),
        lambda: process.free(None),
        lambda: process.submit(1, stream=[]),
        lambda: process.submit(-1),
        lambda: driver.get_state("7"),
        lambda: driver.lock(process.pid, 1.5),
        lambda: driver.restore(process.pid, [("a", "b")]),
        lambda: driver.operation_complete([]),
        lambda: driver.cuCheckpointProcessLock(process.pid, CUcheckpointUnlockArgs()),
        lambda: bring(driver, process.pid, "RUNNING"),
        lambda: bring(driver, process.pid, ProcessState.FAILED),
    ):
        with pytest.raises(InvalidArgumentError, match="expected"):
            call()
    for name in ("node", "cuCheckpointProcessDance"):
        with pytest.raises(CheckpointNotSupportedError, match="expected a function of the driver"):
            driver.invoke(name)
    assert node.step(5) is None
    assert node.now_ns == 5


def test_an_error_says_what_and_where_and_survives_pickling():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    with pytest.raises(CheckpointError) as caught:
        driver.unlock(process.pid)
    error = pickle.loads(pickle.dumps(caught.value))
    for one in (caught.value, error):
        assert (one.code, one.call, one.result) == (
            "CUDA_ERROR_ILLEGAL_STATE",
            "cuCheckpointProcessUnlock",
            ILLEGAL,
        )
        assert str(one) == (
            "cuCheckpointProcessUnlock: CUDA_ERROR_ILLEGAL_STATE: "
            f"process {process.pid} is RUNNING, expected LOCKED"
        )
    assert CheckpointError(77, "f").code == "77"


def test_uuids_and_maps():
    plain = "12345678-1234-abcd-1234-123456789abc"
    other = "GPU-00000000-0000-0000-0000-000000000001"
    assert gpu_uuid(plain.upper()) == f"GPU-{plain}"
    assert gpu_uuid(bytes(15) + b"\1") == other
    assert parse_gpu_map(f" {plain}={other}, GPU-{plain[:-1]}d={plain}") == {
        f"GPU-{plain}": other,
        f"GPU-{plain[:-1]}d": f"GPU-{plain}",
    }
    assert parse_gpu_map("") == {}
    for bad in ("x", "x=y", f"{plain}", f"{plain}={other},{plain}={other}", f"{plain}={other}="):
        with pytest.raises(InvalidArgumentError, match="expected"):
            parse_gpu_map(bad)
    for bad in (b"short", 7, None, plain + "0"):
        with pytest.raises(InvalidArgumentError, match="expected a UUID"):
            gpu_uuid(bad)


# ---- remap ------------------------------------------------------------------------------------


def remapped(pairs, *, uses=(0,), gpus=3, rule="checkpointed", visible=None, chips=None):
    """Result, and the GPUs of the process by the node's number."""
    node = node_of(gpus, remap_rule=rule, node={"chips": chips})
    names = node.uuids
    seen = None if visible is None else [names[i] for i in visible]
    process, driver = node.spawn(seen), SimCheckpoint(node)
    for device in uses:
        process.allocate(MIB * (1 + device), device)
    bring(driver, process.pid, C)
    before = picture(node)
    args = CUcheckpointRestoreArgs([(names[a], names[b]) for a, b in pairs])
    (result,) = driver.cuCheckpointProcessRestore(process.pid, args)
    if result:
        assert picture(node) == before
        driver.restore(process.pid)
    used = [node.system.used(f"gpu{i}") // MIB for i in range(gpus)]
    return result, [names.index(gpu) for gpu in process.gpus], used


def test_documented_rule_wants_every_checkpointed_gpu():
    assert remapped([(0, 1)]) == (OK, [1, 0, 2], [0, 1, 0])
    assert remapped([(0, 1), (1, 2)]) == (OK, [1, 2, 0], [0, 1, 0])
    assert remapped([(0, 2), (2, 1)], uses=(0, 2)) == (OK, [2, 0, 1], [0, 3, 1])
    assert remapped([(1, 0)])[0] == INVALID
    assert remapped([(0, 1)], uses=(0, 1))[0] == INVALID
    assert remapped([(0, 1), (1, 1)], uses=(0, 1))[0] == INVALID
    assert remapped([(0, 1), (0, 2)])[0] == INVALID
    # A GPU that the process does not see may be the new one, but not the old one.
    assert remapped([(0, 2)], visible=(0, 1)) == (OK, [2, 1], [0, 0, 1])
    assert remapped([(0, 0), (2, 1)], visible=(0, 1))[0] == INVALID


def test_real_rule_wants_a_permutation_of_every_visible_gpu():
    rotation = [(0, 1), (1, 2), (2, 0)]
    assert remapped(rotation, rule="visible") == (OK, [1, 2, 0], [0, 1, 0])
    assert remapped([(0, 1), (1, 0)], rule="visible")[0] == INVALID
    assert remapped([(0, 1), (1, 0)], rule="visible", visible=(0, 1))[0] == OK
    assert remapped([(0, 2), (1, 0)], rule="visible", visible=(0, 1))[0] == INVALID


def test_own_order_of_gpus():
    assert remapped([(2, 0)], visible=(2, 1)) == (OK, [0, 1], [1, 0, 0])


def test_another_chip_is_refused():
    chips = ["a", "a", "b"]
    assert remapped([(0, 1)], chips=chips)[0] == OK
    assert remapped([(0, 2)], chips=chips)[0] == INVALID


def test_the_new_gpu_needs_room():
    node = node_of(2)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(600 * MIB, 0)
    bring(driver, process.pid, C)
    node.system.reserve("gpu1", 600 * MIB)
    first, second = node.uuids
    assert code(driver.restore, process.pid, {first: second}) == FULL
    assert process.gpus == node.uuids
    driver.restore(process.pid)


# ---- custom storage ---------------------------------------------------------------------------


def custom(gpus=1):
    node = node_of(gpus)
    process, driver = node.spawn(), SimCheckpoint(node)
    for device in range(gpus):
        process.allocate(3 * MIB, device, f"a{device}")
        process.allocate(5000, device, f"b{device}")
    driver.lock(process.pid)
    return node, process, driver


def test_contents_go_out_and_come_back_through_windows():
    node, process, driver = custom(2)
    addresses = [a.addr for a in process.allocations()]
    saving = driver.checkpoint(process.pid, custom_storage=True)
    assert process.state == ProcessState.CHECKPOINTING
    assert node.system.used("gpu1") == 3 * MIB + 8192  # still there, mapped for the caller
    assert [w.size for w in saving.windows] == [3 * MIB + 8192] * 2
    assert [w.stream.gpu for w in saving.windows] == list(node.uuids)
    one, two = saving.windows
    assert one.addr + one.size <= two.addr
    stored = [window.read() for window in saving.windows]
    before = node.now_ns
    driver.operation_complete(saving.handle)
    assert node.now_ns - before == math.floor(one.size * 1e9 / 55e9)  # both copies run at once
    assert node.system.used("gpu0") == node.system.used("gpu1") == node.host_used == 0
    assert all(a.data is None for a in process.allocations())
    back = driver.restore(process.pid, custom_storage=True)
    assert process.state == ProcessState.RESTORING
    for window, contents in zip(back.windows, stored, strict=True):
        window.write(contents)
    driver.operation_complete(back.handle)
    driver.unlock(process.pid)
    assert [a.data for a in process.allocations()] == ["a0", "b0", "a1", "b1"]
    assert [a.addr for a in process.allocations()] == addresses
    assert node.operations == {}


def test_custom_storage_gives_the_host_memory_of_spaces_back():
    node, process, driver = custom()
    driver.unlock(process.pid)
    space = process.space()
    space.map(BASE, 8 * MIB)
    space.access(BASE, 8 * MIB, by="gpu0", write=True)
    driver.lock(process.pid)
    driver.operation_complete(driver.checkpoint(process.pid, custom_storage=True).handle)
    assert node.host_used == 8 * MIB
    driver.operation_complete(driver.restore(process.pid, custom_storage=True).handle)
    assert (node.host_used, process.host_bytes) == (0, 0)


def test_what_the_caller_does_not_bring_back_is_undefined():
    _, process, driver = custom()
    driver.operation_complete(driver.checkpoint(process.pid, custom_storage=True).handle)
    back = driver.restore(process.pid, custom_storage=True)
    with pytest.raises(InvalidArgumentError, match="expected an address of the window"):
        back.windows[0].write({12: "x"})
    driver.operation_complete(back.handle)
    for copy in (back.windows[0].read, lambda: back.windows[0].write({})):
        with pytest.raises(InvalidArgumentError, match="it is unmapped"):
            copy()
    assert [a.data for a in process.allocations()] == [None, None]


def test_a_capturing_stream():
    node, process, driver = custom()
    saving = driver.checkpoint(process.pid, custom_storage=True)
    saving.windows[0].stream.capturing = True
    before = picture(node)
    assert code(driver.operation_complete, saving.handle) == (
        CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    )
    assert picture(node) == before
    saving.windows[0].stream.capturing = False
    driver.operation_complete(saving.handle)
    assert code(driver.operation_complete, saving.handle) == INVALID


def test_contexts_of_every_device_are_needed():
    node, process, driver = custom(2)
    driver.caller.contexts = {node.uuids[1]}
    before = picture(node)
    assert code(driver.checkpoint, process.pid, custom_storage=True) == (
        CUresult.CUDA_ERROR_INVALID_CONTEXT
    )
    assert picture(node) == before
    driver.caller.contexts.add(node.uuids[0])
    driver.operation_complete(driver.checkpoint(process.pid, custom_storage=True).handle)
    driver.caller.contexts.clear()
    before = picture(node)
    assert code(driver.restore, process.pid, custom_storage=True) == (
        CUresult.CUDA_ERROR_INVALID_CONTEXT
    )
    assert picture(node) == before


def test_host_and_custom_do_not_mix():
    node, process, driver = custom()
    driver.checkpoint(process.pid)
    assert code(driver.restore, process.pid, custom_storage=True) == INVALID
    driver.restore(process.pid)
    driver.operation_complete(driver.checkpoint(process.pid, custom_storage=True).handle)
    before = picture(node)
    assert code(driver.restore, process.pid) == INVALID
    assert picture(node) == before


def test_not_on_oneself_and_not_without_cuda():
    node = node_of(1)
    driver = SimCheckpoint(node)
    own = driver.caller.pid
    bring(driver, own, L)
    with pytest.raises(CheckpointNotSupportedError, match="expected another process"):
        driver.checkpoint(own, custom_storage=True)
    bring(driver, own, C)
    bring(driver, own, R)  # to the host it works
    other = SimCheckpoint(node, node.spawn(cuda=False))
    bring(other, own, L)
    assert code(other.checkpoint, own, custom_storage=True) == CUresult.CUDA_ERROR_NOT_INITIALIZED


def test_a_handle_is_its_callers_own():
    node, process, driver = custom()
    saving = driver.checkpoint(process.pid, custom_storage=True)
    assert code(SimCheckpoint(node).operation_complete, saving.handle) == INVALID
    assert code(driver.operation_complete, saving.handle + 1) == INVALID
    driver.operation_complete(saving.handle)


# ---- deaths -----------------------------------------------------------------------------------


def test_the_caller_dies_with_an_operation_in_hand():
    for restoring in (False, True):
        node, process, driver = custom()
        saving = driver.checkpoint(process.pid, custom_storage=True)
        if restoring:
            driver.operation_complete(saving.handle)
            driver.restore(process.pid, custom_storage=True)
        node.kill(driver.caller.pid)
        with pytest.raises(CallerDiedError, match="expected a living caller"):
            driver.get_state(process.pid)
        other = SimCheckpoint(node)
        assert other.get_state(process.pid) == ProcessState.FAILED
        for call in (other.lock, other.checkpoint, other.restore, other.unlock):
            assert code(call, process.pid) == ILLEGAL
        assert node.operations == {}
        node.kill(process.pid)
        assert (node.system.used("gpu0"), node.host_used) == (0, 0)


def test_the_target_dies_with_an_operation_in_hand():
    node, process, driver = custom()
    saving = driver.checkpoint(process.pid, custom_storage=True)
    node.kill(process.pid)
    assert (node.system.used("gpu0"), node.host_used) == (0, 0)
    assert code(driver.operation_complete, saving.handle) == GONE


STEPS = {
    "lock": ("lock", R),
    "checkpoint": ("copy", L),
    "checkpoint, late": ("release", L),
    "restore": ("acquire", C),
    "restore, late": ("copy", C),
    "unlock": ("unlock", L),
}


def at_step(name):
    """A node with a process on two GPUs, about to make that call, and the call."""
    step, state = STEPS[name]
    node = node_of(2)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(100 * MIB, 0, "contents")
    process.allocate(100 * MIB, 1)
    space = process.space()
    space.map(BASE, 4 * MIB)
    space.access(BASE, 4 * MIB, by="gpu1", write=True)
    bring(driver, process.pid, state)
    return node, process, driver, step, getattr(driver, name.partition(",")[0])


@pytest.mark.parametrize("name", STEPS)
def test_the_target_dies_inside_a_call(name):
    node, process, driver, step, call = at_step(name)
    seen = []

    def kill(at, target):
        seen.append(at)
        if at == step:
            node.kill(target.pid)

    node.at_step = kill
    assert code(call, process.pid) == GONE
    assert step in seen
    assert code(driver.get_state, process.pid) == GONE
    assert [node.system.used(f"gpu{i}") for i in (0, 1)] == [0, 0]
    assert node.host_used == 0
    assert not process.alive


@pytest.mark.parametrize("name", STEPS)
def test_the_caller_dies_inside_a_call(name):
    """The target's own thread ends what it has begun; nobody hears the result."""
    node, process, driver, step, call = at_step(name)

    def kill(at, _target):
        if at == step and driver.caller.alive:
            node.kill(driver.caller.pid)

    node.at_step = kill
    with pytest.raises(CallerDiedError, match="during its call"):
        call(process.pid)
    node.at_step = None
    other = SimCheckpoint(node)
    after = {"lock": L, "checkpoint": C, "restore": L, "unlock": R}[name.partition(",")[0]]
    assert other.get_state(process.pid) == after
    bring(other, process.pid, R)
    assert process.allocations()[0].data == "contents"
    assert node.host_used == 0


@pytest.mark.parametrize("restoring", [False, True])
def test_the_caller_dies_while_memory_is_mapped_for_it(restoring):
    node, process, driver = custom()
    if restoring:
        driver.operation_complete(driver.checkpoint(process.pid, custom_storage=True).handle)
    node.at_step = lambda _step, _target: node.kill(driver.caller.pid)
    with pytest.raises(CallerDiedError, match="during its call"):
        (driver.restore if restoring else driver.checkpoint)(process.pid, custom_storage=True)
    node.at_step = None
    assert process.state == ProcessState.FAILED
    assert node.operations == {}
    node.kill(process.pid)
    assert (node.system.used("gpu0"), node.host_used) == (0, 0)


@pytest.mark.parametrize("who", ["caller", "target"])
def test_deaths_inside_a_completion(who):
    node, process, driver = custom()
    saving = driver.checkpoint(process.pid, custom_storage=True)
    node.at_step = lambda _step, target: node.kill(
        (driver.caller if who == "caller" else target).pid
    )
    if who == "target":
        assert code(driver.operation_complete, saving.handle) == GONE
        assert node.system.used("gpu0") == 0
    else:
        with pytest.raises(CallerDiedError):
            driver.operation_complete(saving.handle)
        node.at_step = None
        assert SimCheckpoint(node).get_state(process.pid) == ProcessState.FAILED
        node.kill(process.pid)
    assert (node.system.used("gpu0"), node.host_used) == (0, 0)


def test_a_dead_process_gives_back_the_pages_of_its_spaces():
    node = node_of(1)
    process = node.spawn()
    space = process.space()
    space.map(BASE, 8 * MIB)
    space.access(BASE, 8 * MIB, by="gpu0", write=True)
    assert node.system.used("gpu0") == 8 * MIB
    node.kill(process.pid)
    assert node.system.used("gpu0") == 0
    assert space.ranges() == []
    with pytest.raises(BusyError, match="is dead"):
        process.submit(1)
    space.map(BASE, 8 * MIB)
    with pytest.raises(BusyError, match="is dead"):
        space.access(BASE, 8 * MIB, by="gpu0", write=True)
    assert node.system.used("gpu0") == 0
    assert "dead" in repr(process)
    assert node.processes() == []


# ---- suspended --------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [R, L, C])
@pytest.mark.parametrize("inside", ["nothing", "restored", "running", "error"])
def test_suspended_puts_back_what_it_found(found, inside):
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(MIB, 0, "contents")
    bring(driver, process.pid, found)

    def body():
        with suspended(driver, process.pid) as was:
            assert was == found
            assert driver.get_state(process.pid) == C
            if inside == "restored":
                driver.restore(process.pid)
            elif inside == "running":
                bring(driver, process.pid, R)
            elif inside == "error":
                raise KeyError("body")

    if inside == "error":
        with pytest.raises(KeyError, match="body"):
            body()
    else:
        body()
    assert driver.get_state(process.pid) == found
    assert process.allocations()[0].data == "contents"


@pytest.mark.parametrize("what", ["lock", "checkpoint"])
def test_suspended_runs_on_where_the_way_in_fails(what):
    node = node_of(1, node={"host_memory": 0})
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(MIB)
    if what == "lock":
        process.submit(None)
    word = {"lock": "NOT_READY", "checkpoint": "OUT_OF_MEMORY"}[what]
    with pytest.raises(CheckpointError, match=word), suspended(driver, process.pid):
        pytest.fail("it was suspended")
    assert driver.get_state(process.pid) == R


@pytest.mark.parametrize(
    "bad", [{"lock_ns": -1}, {"restore_bytes_per_s": 0}, {"unlock_ns": math.nan}, {"lock_ns": "1"}]
)
def test_bad_costs(bad):
    with pytest.raises(InvalidArgumentError, match="expected a number"):
        CheckpointCosts(**bad)


def test_suspended_with_pairs_that_are_refused():
    node = node_of(2, remap_rule="visible")
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(MIB)
    first, second = node.uuids
    with (
        pytest.raises(CheckpointError, match="INVALID_VALUE"),
        suspended(driver, process.pid, gpu_pairs={first: second}),
    ):
        pass
    assert driver.get_state(process.pid) == R
    assert process.gpus == node.uuids


def test_suspended_without_room_to_come_back():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(600 * MIB)
    with pytest.raises(CheckpointError, match="OUT_OF_MEMORY"), suspended(driver, process.pid):
        node.system.reserve("gpu0", 600 * MIB)
    assert driver.get_state(process.pid) == C


def test_suspended_when_the_target_dies():
    node = node_of(1)
    process, driver = node.spawn(), SimCheckpoint(node)
    with pytest.raises(CheckpointError, match="OPERATING_SYSTEM"), suspended(driver, process.pid):
        node.kill(process.pid)


def test_suspended_refuses_a_state_off_the_line():
    _node, process, driver = custom()
    driver.checkpoint(process.pid, custom_storage=True)
    with (
        pytest.raises(CheckpointError, match="is CHECKPOINTING, expected RUNNING, LOCKED or"),
        suspended(driver, process.pid),
    ):
        pytest.fail("it was suspended")
    assert driver.get_state(process.pid) == ProcessState.CHECKPOINTING


# ---- costs ------------------------------------------------------------------------------------


def test_other_costs():
    costs = CheckpointCosts(1, 2, 10, 1e9, 20, 2e9)
    node = SimNode(machine(1), costs=costs)
    process, driver = node.spawn(), SimCheckpoint(node)
    process.allocate(MIB)
    driver.lock(process.pid)
    assert node.now_ns == 1
    driver.checkpoint(process.pid)
    assert node.now_ns == 11 + MIB
    driver.restore(process.pid)
    assert node.now_ns == 31 + MIB + MIB // 2
    driver.unlock(process.pid)
    assert node.now_ns == 33 + MIB + MIB // 2


@given(st.lists(st.integers(1, 40 * MIB), max_size=8), st.permutations(range(3)))
def test_a_round_trip_gives_everything_back(sizes, order):
    node = node_of(3)
    process, driver = node.spawn(), SimCheckpoint(node)
    for number, size in enumerate(sizes):
        process.allocate(size, number % 3, number)
    before = [(a.addr, a.size, a.device, a.data) for a in process.allocations()]
    used = [node.system.used(f"gpu{i}") for i in range(3)]
    pairs = {node.uuids[i]: node.uuids[order[i]] for i in range(3)}
    with suspended(driver, process.pid, gpu_pairs=pairs):
        assert [node.system.used(f"gpu{i}") for i in range(3)] == [0, 0, 0]
    assert [(a.addr, a.size, a.device, a.data) for a in process.allocations()] == before
    assert [node.system.used(f"gpu{order[i]}") for i in range(3)] == used
    assert process.gpus == tuple(node.uuids[i] for i in order)
