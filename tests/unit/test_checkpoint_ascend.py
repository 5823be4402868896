"""Ascend's snapshot functions: the table, callbacks, backups, restores."""

import pytest

from svmcore import Gpu, Machine
from svmcore.checkpoint.ascend import AclError, AscendSnapshot, SnapShotStage
from svmcore.checkpoint.base import CheckpointError, ProcessState, bring, suspended
from svmcore.checkpoint.process import SimNode
from svmcore.errors import BusyError, NotSupportedError

MIB = 1 << 20
BASE = 1 << 40
R, L, B = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED
OK = AclError.ACL_SUCCESS
PARAM = AclError.ACL_ERROR_RT_PARAM_INVALID
CALLS = ("Lock", "Backup", "Restore", "Unlock")
MOVES = {
    ("Lock", R): L,
    ("Backup", L): B,
    ("Backup", B): B,
    ("Restore", B): L,
    ("Unlock", L): R,
    ("Unlock", B): R,
}


def bench(**node):
    made = SimNode(Machine("ascend", (Gpu(1, 1 << 16), Gpu(2, 1 << 16))), **node)
    process = made.spawn()
    process.allocate(MIB, 0, "contents")
    return made, process, AscendSnapshot(process)


def call(backend, name, pid=None, args=None):
    pid = backend.process.pid if pid is None else pid
    return getattr(backend, f"aclrtSnapShotProcess{name}")(pid, args)


def in_state(state, **node):
    made, process, backend = bench(**node)
    for name in ("Lock", "Backup")[: (R, L, B).index(state)]:
        assert call(backend, name) == OK
    assert process.state == state
    return made, process, backend


def held(node, process):
    return (
        process.state,
        node.host_used,
        [node.system.used(f"gpu{i}") for i in (0, 1)],
        [(a.data, a.on_device) for a in process.allocations()],
    )


@pytest.mark.parametrize("state", [R, L, B])
@pytest.mark.parametrize("name", CALLS)
def test_the_table(state, name):
    node, process, backend = in_state(state)
    before = held(node, process)
    result = call(backend, name)
    if (name, state) in MOVES:
        assert (result, process.state, backend.why) == (OK, MOVES[name, state], "")
    else:
        assert result.name == f"ACL_ERROR_SNAPSHOT_{name.upper()}_FAILED"
        assert "expected" in backend.why
        assert held(node, process) == before
    assert process.allocations()[0].data == "contents"


@pytest.mark.parametrize("name", CALLS)
def test_arguments(name):
    node, process, backend = in_state(L)
    before = held(node, process)
    for pid in (node.spawn().pid, 0, -1, 12345, process.restore_thread_id):
        assert call(backend, name, pid) == PARAM
    assert call(backend, name, args=object()) == PARAM
    assert held(node, process) == before
    node.kill(process.pid)
    assert call(backend, name) == PARAM


def test_a_backup_is_a_copy_and_the_last_one_counts():
    node, process, backend = in_state(B)
    assert (node.host_used, node.system.used("gpu0")) == (MIB, MIB)
    process.allocations()[0].data = "later"
    assert call(backend, "Backup") == OK
    assert node.host_used == MIB
    backend.detach()
    assert (node.system.used("gpu0"), process.allocations()[0].data) == (0, None)
    assert call(backend, "Unlock") == AclError.ACL_ERROR_SNAPSHOT_UNLOCK_FAILED
    assert call(backend, "Backup") == AclError.ACL_ERROR_SNAPSHOT_BACKUP_FAILED
    assert call(backend, "Restore") == OK
    assert (node.host_used, node.system.used("gpu0")) == (0, MIB)
    assert process.allocations()[0].data == "later"
    assert call(backend, "Unlock") == OK


def test_restore_without_loss_brings_the_backup():
    _, process, backend = in_state(B)
    process.allocations()[0].data = "changed by the device"
    assert call(backend, "Restore") == OK
    assert process.allocations()[0].data == "contents"


def test_restore_needs_its_devices_for_itself():
    node, process, backend = in_state(B)
    backend.detach()
    other = node.spawn()
    elsewhere = other.allocate(MIB, 1)
    mine = other.allocate(MIB, 0)
    before = held(node, process)
    assert call(backend, "Restore") == AclError.ACL_ERROR_SNAPSHOT_RESTORE_FAILED
    assert f"process {other.pid} is on a device" in backend.why
    assert held(node, process) == before
    other.free(mine.addr)
    node.system.reserve("gpu0", 256 * MIB)
    assert call(backend, "Restore") == AclError.ACL_ERROR_SNAPSHOT_RESTORE_FAILED
    assert held(node, process)[0] == B
    node.system.release("gpu0", 256 * MIB)
    assert call(backend, "Restore") == OK
    other.free(elsewhere.addr)


def test_spaces_follow_a_process_that_was_started_again():
    node, process, backend = bench()
    space = process.space()
    space.map(BASE, 4 * MIB)
    space.set_attr(BASE, 2 * MIB, {"prefetch": "gpu0"})
    space.access(BASE + 2 * MIB, MIB, by="gpu1", write=True)
    bring(backend, process.pid, B)
    backend.detach()
    assert [node.system.used(f"gpu{i}") for i in (0, 1)] == [0, 0]
    bring(backend, process.pid, R)
    assert [r.actual for r in space.ranges()] == ["gpu0", "cpu"]
    space.process.check()


def test_only_a_backed_up_process_may_lose_its_devices():
    _, process, backend = in_state(L)
    with pytest.raises(BusyError, match="expected a backed-up process"):
        backend.detach()
    assert process.allocations()[0].on_device


def test_a_full_host():
    node, process, backend = in_state(L, host_memory=MIB - 1)
    assert call(backend, "Backup") == AclError.ACL_ERROR_RT_MEMORY_ALLOCATION
    assert (process.state, node.host_used) == (L, 0)
    node.host_memory = MIB
    assert call(backend, "Backup") == call(backend, "Backup") == OK  # the second takes its place


def test_lock_waits_and_times_out():
    node, process, backend = bench()
    process.submit(5_000_000)
    backend.lock_timeout_ms = 4
    assert call(backend, "Lock") == AclError.ACL_ERROR_SNAPSHOT_LOCK_TIMEOUT
    assert (process.state, node.now_ns) == (R, 4_000_000)
    backend.lock_timeout_ms = 0
    assert call(backend, "Lock") == OK
    assert node.now_ns == 5_000_000 + node.costs.lock_ns
    assert call(backend, "Unlock") == OK
    process.submit(None)
    assert call(backend, "Lock") == AclError.ACL_ERROR_SNAPSHOT_LOCK_TIMEOUT
    with pytest.raises(CheckpointError, match="LOCK_TIMEOUT"):
        backend.lock(process.pid, 3)
    assert process.state == R


def test_a_negative_timeout_does_not_turn_the_clock_back():
    node, process, backend = bench()
    process.submit(5_000_000)
    with pytest.raises(CheckpointError, match="PARAM_INVALID: timeout -3 ms: expected 0 or more"):
        backend.lock(process.pid, -3)
    backend.lock_timeout_ms = -3
    assert call(backend, "Lock") == PARAM
    assert (process.state, node.now_ns) == (R, 0)


# ---- callbacks --------------------------------------------------------------------------------


def test_callbacks_run_in_order_once_a_device():
    _, process, backend = bench()
    heard = []
    for stage in SnapShotStage:

        def note(device, args, stage=stage):
            heard.append((stage.name[16:], device, args, process.state.name))
            return 0

        assert backend.aclrtSnapShotCallbackRegister(stage, note, "mine") == OK
    for name in ("Lock", "Backup", "Restore", "Unlock"):
        assert call(backend, name) == OK
    assert heard == [
        (stage, device, "mine", state)
        for stage, state in (
            ("LOCK_PRE", "RUNNING"),
            ("BACKUP_PRE", "LOCKED"),
            ("BACKUP_POST", "CHECKPOINTED"),
            ("RESTORE_PRE", "CHECKPOINTED"),
            ("RESTORE_POST", "LOCKED"),
            ("UNLOCK_POST", "RUNNING"),
        )
        for device in (0, 1)
    ]


@pytest.mark.parametrize("stage", SnapShotStage)
def test_a_callback_that_refuses(stage):
    name = stage.name.split("_")[3].capitalize()
    state = {"Lock": R, "Backup": L, "Restore": B, "Unlock": L}[name]
    node, process, backend = in_state(state)
    backend.aclrtSnapShotCallbackRegister(stage, lambda device, _args: device)
    before = held(node, process)
    assert call(backend, name) == AclError.ACL_ERROR_SNAPSHOT_CALLBACK_FAILED
    assert "the callback of device 1 returned 1" in backend.why
    if stage.name.endswith("PRE"):
        assert held(node, process) == before
    else:
        assert process.state == MOVES[name, state]  # it was done before the callback


def test_registering():
    _, _, backend = bench()

    def first(_device, _args):
        return 0

    stage = SnapShotStage.ACL_RT_SNAPSHOT_LOCK_PRE
    assert backend.aclrtSnapShotCallbackRegister(9, first) == PARAM
    assert backend.aclrtSnapShotCallbackRegister(stage, None) == PARAM
    assert backend.aclrtSnapShotCallbackUnregister(stage, first) == PARAM
    assert backend.aclrtSnapShotCallbackRegister(stage, first) == OK
    assert backend.aclrtSnapShotCallbackRegister(stage, first) == (
        AclError.ACL_ERROR_SNAPSHOT_REGISTER_CALLBACK_FAILED
    )
    assert backend.aclrtSnapShotCallbackUnregister(stage, print) == PARAM
    assert backend.aclrtSnapShotCallbackUnregister(stage, first) == OK
    assert backend.aclrtSnapShotCallbackRegister(stage, first) == OK


# ---- the verbs --------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [R, L, B])
def test_suspended_leaves_as_found(found):
    _, process, backend = in_state(found)
    with suspended(backend, process.pid) as told:
        assert told == found
        assert backend.get_state(process.pid) == B
    assert backend.get_state(process.pid) == found


def test_what_ascend_does_not_have():
    node, process, backend = in_state(L)
    first, second = node.uuids
    for refused in (
        lambda: backend.checkpoint(process.pid, custom_storage=True),
        lambda: backend.restore(process.pid, {first: second}),
        lambda: backend.restore(process.pid, custom_storage=True),
        lambda: backend.get_restore_thread_id(process.pid),
        lambda: backend.operation_complete(1),
    ):
        with pytest.raises(NotSupportedError, match="ACL_ERROR_RT_FEATURE_NOT_SUPPORT"):
            refused()
    assert process.state == L
    with pytest.raises(CheckpointError, match="expected the caller's own"):
        backend.get_state(node.spawn().pid)
