"""The real backend and its command line over a stand-in for the driver."""

import contextlib
import json
import os
import signal
import sys
import threading
import time

import pytest

from contract.fake_driver import FakeDriver
from svmcore import Gpu, Machine, cli
from svmcore.checkpoint import cuda
from svmcore.checkpoint.base import (
    CallTimeoutError,
    CheckpointError,
    CheckpointNotSupportedError,
    ProcessState,
    bring,
    suspended,
)
from svmcore.checkpoint.cuda import CudaCheckpoint, open_driver
from svmcore.checkpoint.libcuda import LibCuda
from svmcore.checkpoint.process import SimCheckpoint, SimDriver, SimNode
from svmcore.errors import InvalidArgumentError, NotSupportedError

MIB = 1 << 20
R, L, C = ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.CHECKPOINTED


class Bench:
    def __init__(self, version=13_000, missing=(), **driver):
        self.node = SimNode(
            Machine("cuda", (Gpu(1, 1 << 18), Gpu(2, 1 << 18))), driver=SimDriver(**driver)
        )
        self.sim = SimCheckpoint(self.node)
        self.sim.caller.cuda = False
        self.process = self.node.spawn()
        self.process.allocate(MIB, 0, "contents")
        self.pid = self.process.pid
        self.driver = FakeDriver(self.sim, version, missing)
        self.backend = CudaCheckpoint(self.driver)

    @contextlib.contextmanager
    def hanging(self, call):
        """The driver does not answer that call until *answer* or the end of the block."""
        event = self.driver.hangs[call] = threading.Event()
        backend = self.backend
        backend.call_timeout_s = backend.move_timeout_s = 0.2

        def answer():
            backend.call_timeout_s = backend.move_timeout_s = 60  # patient, on a busy machine
            event.set()

        try:
            yield answer
        finally:
            answer()

    def names(self):
        return [name for name, _ in self.driver.calls]


def test_restore_initialises_the_driver_once():
    bench = Bench()
    bring(bench.backend, bench.pid, C)
    assert "cuInit" not in bench.names()
    for _ in range(2):
        bring(bench.backend, bench.pid, R)
        bring(bench.backend, bench.pid, C)
    assert bench.names().count("cuInit") == 1


def test_no_call_runs_in_the_callers_own_thread():
    bench = Bench()
    with suspended(bench.backend, bench.pid):
        pass
    assert len(bench.driver.calls) >= 6
    assert not any(main for _, main in bench.driver.calls)


def test_pairs_are_written_as_the_driver_reads_them():
    bench = Bench()
    first, second = bench.node.uuids
    bring(bench.backend, bench.pid, C)
    bench.backend.restore(bench.pid, {first.upper().replace("GPU-", ""): second, second: first})
    assert bench.process.gpus == (second, first)


def test_bad_arguments_never_reach_the_driver():
    bench = Bench()
    bring(bench.backend, bench.pid, C)
    before = len(bench.driver.calls)
    for call in (
        lambda: bench.backend.restore(bench.pid, {"x": "y"}),
        lambda: bench.backend.get_state(1 << 31),
        lambda: bench.backend.lock("7"),
        lambda: bench.backend.lock(bench.pid, 1.5),
    ):
        with pytest.raises(InvalidArgumentError, match="expected"):
            call()
    with pytest.raises(CheckpointError, match="INVALID_VALUE: timeout -1 ms"):
        bench.backend.lock(bench.pid, -1)
    assert set(bench.names()[before:]) <= {"cuDriverGetVersion"}
    assert bench.backend.get_state(bench.pid) == C


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["call_timeout_s", "move_timeout_s"])
def test_a_limit_that_nothing_can_wait_for(name, seconds):
    """Else the call would be under way before the wait for it fails."""
    with pytest.raises(InvalidArgumentError, match=rf"^{name} .*expected above 0"):
        CudaCheckpoint(object(), **{name: seconds})


def test_a_code_that_is_not_known():
    bench = Bench()
    bench.driver.cuCheckpointProcessUnlock = lambda pid, args: (719,)
    with pytest.raises(CheckpointError) as caught:
        bench.backend.unlock(bench.pid)
    assert (caught.value.code, caught.value.result) == ("719", 719)


# ---- what a driver may lack -------------------------------------------------------------------


def test_missing_functions(monkeypatch):
    bench = Bench(missing=["cuCheckpointProcessLock"])
    with pytest.raises(CheckpointNotSupportedError, match="expected a driver that has it"):
        bench.backend.lock(bench.pid)
    assert bench.backend.get_state(bench.pid) == R
    bench.driver.version = 13_040
    monkeypatch.delattr(FakeDriver, "cuCheckpointOperationComplete")
    with pytest.raises(NotSupportedError, match="cuCheckpointOperationComplete"):
        bench.backend.operation_complete(1)


def test_bindings_older_than_the_driver(monkeypatch):
    """A package of 12.8 on a driver of 13.5: parts of structs are missing, not functions."""

    class Old:
        __slots__ = ("reserved",)

    bench = Bench(version=13_050)
    bring(bench.backend, bench.pid, C)
    same = {gpu: gpu for gpu in bench.node.uuids}
    monkeypatch.setattr(FakeDriver, "CUcheckpointRestoreArgs", Old)
    monkeypatch.setattr(FakeDriver, "CUcheckpointCheckpointArgs", Old)
    monkeypatch.delattr(FakeDriver, "CUcheckpointOperationHandle")
    before = len(bench.driver.calls)
    for call in (
        lambda: bench.backend.restore(bench.pid, same),
        lambda: bench.backend.restore(bench.pid, custom_storage=True),
        lambda: bench.backend.checkpoint(bench.pid, custom_storage=True),
        lambda: bench.backend.operation_complete(1),
    ):
        with pytest.raises(CheckpointNotSupportedError, match=r"expected .*cuda-bindings"):
            call()
    monkeypatch.delattr(FakeDriver, "CUcheckpointGpuPair")
    with pytest.raises(NotSupportedError, match="expected a newer cuda-bindings"):
        bench.backend.restore(bench.pid, same)
    assert set(bench.names()[before:]) <= {"cuDriverGetVersion"}
    bench.backend.restore(bench.pid)  # what needs none of these works


def test_versions_are_asked_before_arguments_that_an_old_driver_would_not_read():
    bench = Bench(version=12_090)
    bring(bench.backend, bench.pid, C)
    same = {gpu: gpu for gpu in bench.node.uuids}
    with pytest.raises(CheckpointNotSupportedError, match=r"GPU pairs: CUDA 12.9, expected 13.0"):
        bench.backend.restore(bench.pid, same)
    assert "cuCheckpointProcessRestore" not in bench.names()
    bench = Bench(version=13_030)
    bench.backend.lock(bench.pid)
    for call in (
        lambda: bench.backend.checkpoint(bench.pid, custom_storage=True),
        lambda: bench.backend.restore(bench.pid, custom_storage=True),
        lambda: bench.backend.operation_complete(1),
    ):
        with pytest.raises(NotSupportedError, match=r"CUDA 13.3, expected 13.4 or later"):
            call()
    assert bench.backend.get_state(bench.pid) == L


def test_no_driver_on_this_machine():
    with pytest.raises(NotSupportedError, match="expected an NVIDIA driver"):
        LibCuda("libcuda-that-is-not-there.so.1")


def test_a_library_without_the_functions():
    library = LibCuda(None)  # the interpreter itself
    backend = CudaCheckpoint(library)
    for call in (
        lambda: backend.get_state(1),
        lambda: backend.get_restore_thread_id(1),
        lambda: backend.lock(1),
        lambda: backend.checkpoint(1),
        lambda: backend.restore(1),
        lambda: backend.unlock(1),
        backend.version,
        lambda: backend.operation_complete(1),
    ):
        with pytest.raises(CheckpointNotSupportedError, match="expected a driver that has it"):
            call()


def test_which_driver_is_opened(monkeypatch):
    class Bindings:
        cuCheckpointProcessGetState = None

    made = object()
    monkeypatch.setattr(cuda, "LibCuda", lambda: made)
    for module, expected in (
        (Bindings, Bindings),
        (object(), made),  # older than 12.8
    ):
        package = type(sys)("cuda.bindings")
        package.driver = module
        monkeypatch.setitem(sys.modules, "cuda", type(sys)("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", package)
        assert open_driver() is expected
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)  # not installed
    assert open_driver() is made


# ---- calls that hang --------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["GetState", "Lock", "Checkpoint", "Restore", "Unlock"])
def test_a_call_that_hangs(call):
    bench = Bench()
    before = {"Checkpoint": L, "Restore": C, "Unlock": L}.get(call, R)
    bring(bench.backend, bench.pid, before)
    verbs = {
        "GetState": bench.backend.get_state,
        "Lock": lambda pid: bench.backend.lock(pid, 1),
        "Checkpoint": bench.backend.checkpoint,
        "Restore": bench.backend.restore,
        "Unlock": bench.backend.unlock,
    }
    with bench.hanging(f"cuCheckpointProcess{call}") as answer:
        with pytest.raises(CallTimeoutError, match=r"expected an answer within 0\.2"):
            verbs[call](bench.pid)
        # It is still under way: nothing else is asked of that process until it is back.
        with pytest.raises(CallTimeoutError, match="has not returned: expected it to end first"):
            bench.backend.get_restore_thread_id(bench.pid)
        bench.backend.call_timeout_s = 60
        other = bench.node.spawn()
        assert bench.backend.get_restore_thread_id(other.pid) > 0
        answer()
        after = {"Lock": L, "Checkpoint": C, "Restore": L, "Unlock": R}.get(call, R)
        assert bench.backend.get_state(bench.pid) == after


@pytest.mark.parametrize("timeout_ms", [0, 60_000])
def test_a_lock_may_take_longer_than_other_calls(timeout_ms):
    """Its own timeout is the driver's to keep; without one it waits as long as data may move."""
    bench = Bench()
    bench.backend.call_timeout_s = 0.2
    event = bench.driver.hangs["cuCheckpointProcessLock"] = threading.Event()
    timer = threading.Timer(0.6, event.set)
    timer.start()
    bench.backend.lock(bench.pid, timeout_ms)
    timer.join()
    assert bench.process.state == L


def test_suspended_when_the_checkpoint_takes_too_long():
    """The mark comes before the action: what went through late is undone all the same."""
    bench = Bench()
    with bench.hanging("cuCheckpointProcessCheckpoint") as answer:
        bench.backend.call_timeout_s = 60
        threading.Timer(1.0, answer).start()
        with pytest.raises(CallTimeoutError), suspended(bench.backend, bench.pid):
            pytest.fail("it was suspended")
    assert bench.backend.get_state(bench.pid) == R
    assert bench.process.allocations()[0].on_device


def test_suspended_when_interrupted_on_the_way(monkeypatch):
    bench = Bench()
    joining, asked = threading.Thread.join, []

    def interrupted(self, timeout=None):
        if self.name == "cuCheckpointProcessCheckpoint" and not asked:
            asked.append(1)
            raise KeyboardInterrupt
        return joining(self, timeout)

    with bench.hanging("cuCheckpointProcessCheckpoint") as answer:
        bench.backend.call_timeout_s = bench.backend.move_timeout_s = 60
        monkeypatch.setattr(threading.Thread, "join", interrupted)
        threading.Timer(0.3, answer).start()
        with pytest.raises(KeyboardInterrupt), suspended(bench.backend, bench.pid):
            pytest.fail("it was suspended")
    assert asked == [1]
    assert bench.backend.get_state(bench.pid) == R


# ---- custom storage ---------------------------------------------------------------------------


def test_custom_storage_through_the_drivers_structs():
    bench = Bench(version=13_040)
    bench.process.allocate(3 * MIB, 1, "more")
    bench.backend.lock(bench.pid)
    saving = bench.backend.checkpoint(bench.pid, custom_storage=True)
    windows = bench.driver.windows[saving.handle]
    assert [(w.addr, w.size) for w in saving.windows] == [(w.addr, w.size) for w in windows]
    assert [w.stream for w in saving.windows] == [0x1000, 0x1001]
    stored = [window.read() for window in windows]
    assert bench.backend.get_state(bench.pid) == ProcessState.CHECKPOINTING
    bench.backend.operation_complete(saving.handle)
    back = bench.backend.restore(
        bench.pid,
        dict(zip(bench.node.uuids, bench.node.uuids[::-1], strict=True)),
        custom_storage=True,
    )
    for window, contents in zip(bench.driver.windows[back.handle], stored, strict=True):
        window.write(contents)
    bench.backend.operation_complete(back.handle)
    assert [a.data for a in bench.process.allocations()] == ["contents", "more"]
    assert bench.process.gpus == bench.node.uuids[::-1]
    with pytest.raises(CheckpointError, match="INVALID_VALUE"):
        bench.backend.operation_complete(back.handle)


# ---- the command line -------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch):
    made = Bench()
    monkeypatch.setattr(cuda, "open_driver", lambda: made.driver)
    return made


def run(capsys, *arguments, status=0):
    assert cli.main(["checkpoint", *map(str, arguments)]) == status
    return capsys.readouterr()


def test_the_life_cycle_by_commands(bench, capsys):
    pid = bench.pid
    thread = bench.process.restore_thread_id
    out = run(capsys, "state", pid).out
    assert out == f"process {pid}: RUNNING, restore thread {thread}\n"
    for action, state in (
        ("lock", "LOCKED"),
        ("checkpoint", "CHECKPOINTED"),
        ("restore", "LOCKED"),
        ("unlock", "RUNNING"),
    ):
        out, err = run(capsys, action, pid)
        assert out.startswith(f"process {pid}: {state}, {action} took 0.0")
        assert err == ""
        assert bench.process.state.name == state


def test_json(bench, capsys):
    pid = bench.pid
    table = json.loads(run(capsys, "state", pid, "--json").out)
    assert table.pop("seconds") >= 0
    assert table == {
        "pid": pid,
        "action": "state",
        "restore_thread_id": bench.process.restore_thread_id,
        "state": "RUNNING",
    }
    out, err = run(capsys, "checkpoint", pid, "--json", status=1)
    assert json.loads(out) == {
        "pid": pid,
        "action": "checkpoint",
        "error": "CUDA_ERROR_ILLEGAL_STATE",
        "message": "cuCheckpointProcessCheckpoint: CUDA_ERROR_ILLEGAL_STATE: "
        f"process {pid}: expected it LOCKED",
    }
    assert err == ""


def test_a_refusal_is_one_line(bench, capsys):
    out, err = run(capsys, "unlock", bench.pid, status=1)
    assert out == ""
    assert err == (
        "svmcore: cuCheckpointProcessUnlock: CUDA_ERROR_ILLEGAL_STATE: "
        f"process {bench.pid}: expected it LOCKED\n"
    )
    err = run(capsys, "state", 999_999, status=1).err
    assert err.endswith(
        "OPERATING_SYSTEM: process 999999: expected a living process that can answer\n"
    )
    bench.process.submit(None)
    err = run(capsys, "lock", bench.pid, "--timeout-ms", 5, status=1).err
    assert err.endswith(f"NOT_READY: process {bench.pid}: expected its work to end in time\n")
    bench.driver.cuInit = lambda _flags: (100,)
    with pytest.raises(CheckpointError, match=r"^cuInit: CUDA_ERROR_NO_DEVICE: expected a GPU$"):
        bench.backend.restore(bench.pid)


def test_restore_onto_other_gpus(bench, capsys):
    first, second = bench.node.uuids
    run(capsys, "lock", bench.pid)
    run(capsys, "checkpoint", bench.pid)
    err = run(capsys, "restore", bench.pid, "--gpu-map", f"{second}={first}", status=1).err
    assert "INVALID_VALUE" in err
    run(capsys, "restore", bench.pid, "--gpu-map", f"{first}={second},{second}={first}")
    assert bench.process.gpus == (second, first)
    err = run(capsys, "restore", bench.pid, "--gpu-map", "a=b", status=2).err
    assert "expected a UUID" in err


def test_a_hanging_driver(bench, capsys):
    with bench.hanging("cuCheckpointProcessGetState"):
        err = run(capsys, "state", bench.pid, "--limit", "0.1", status=1).err
    assert "expected an answer within 0.1 s" in err
    assert err.count("\n") == 1


def test_no_driver(monkeypatch, capsys):
    monkeypatch.setattr(cuda, "open_driver", lambda: LibCuda("libcuda-not-there.so.1"))
    err = run(capsys, "state", 1, status=2).err
    assert err.endswith("expected an NVIDIA driver\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("state",),
        ("state", "x"),
        ("lock", 1, "--timeout-ms", -1),
        ("state", 1, "--limit", 0),
        ("state", 1, "--limit", "nan"),
        ("state", 1, "--limit", "inf"),
        ("suspend", 1, "--seconds", "nan"),
        ("suspend", 1, "--seconds", "1e300"),
        ("suspend", 1, "--seconds", 1, "--", sys.executable, "-c", "pass"),
        ("suspend", 1, "--", "no-such-program"),
        ("dance", 1),
        ("state", 1, 2),
    ],
)
def test_bad_command_lines(bench, capsys, arguments):
    out, err = run(capsys, *arguments, status=2)
    assert out == ""
    assert err.count("\n") == 1
    assert "expected" in err
    assert bench.driver.calls == []


@pytest.mark.parametrize("arguments", [(), ("dance", 1)])
def test_commands_are_listed(bench, capsys, arguments):
    err = run(capsys, *arguments, status=2).err
    assert err.endswith("expected one of checkpoint, lock, restore, state, suspend, unlock\n")
    assert err.count("\n") == 1


def test_suspend_for_a_file_that_is_no_program(bench, capsys, tmp_path):
    path = tmp_path / "text"
    path.write_text("no program")
    path.chmod(0o755)
    err = run(capsys, "suspend", bench.pid, "--", path, status=2).err
    assert err.endswith("Exec format error: expected a program to run\n")
    assert bench.process.state == R


def test_suspend_while_a_command_runs(bench, capsys, tmp_path):
    mark = tmp_path / "mark"
    command = [sys.executable, "-c", f"open({str(mark)!r}, 'w').write('ran')"]
    out = run(capsys, "suspend", bench.pid, "--json", "--", *command).out
    table = json.loads(out)
    assert (table["found"], table["state"], table["status"]) == ("RUNNING", "RUNNING", 0)
    assert mark.read_text() == "ran"
    assert bench.names().count("cuCheckpointProcessCheckpoint") == 1
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    out = run(capsys, "suspend", bench.pid, "--", *failing, status=1).out
    assert "RUNNING" in out
    assert "the command ended with 3" in out


@pytest.mark.parametrize("found", [R, L, C])
def test_suspend_for_some_time_leaves_as_found(bench, capsys, found):
    bring(bench.backend, bench.pid, found)
    table = json.loads(run(capsys, "suspend", bench.pid, "--seconds", 0.01, "--json").out)
    assert table["held_s"] >= 0.01
    assert (table["found"], table["state"]) == (found.name, found.name)
    assert bench.process.state == found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_suspend_until_a_signal(bench, capsys, monkeypatch, number):
    """A signal ends the wait, and a second one does not stop the restore."""
    pausing, pause = threading.Event(), signal.pause

    def told_pause():
        pausing.set()
        pause()

    def soon():
        pausing.wait(60)
        event = bench.driver.hangs["cuCheckpointProcessRestore"] = threading.Event()
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        os.kill(os.getpid(), number)
        event.set()

    monkeypatch.setattr(signal, "pause", told_pause)
    before = signal.getsignal(number)
    helper = threading.Thread(target=soon)
    helper.start()
    out, err = run(capsys, "suspend", bench.pid)
    helper.join()
    assert f"process {bench.pid}: RUNNING" in out
    assert "is suspended until an interrupt" in err
    assert bench.process.state == R
    assert signal.getsignal(number) == before
