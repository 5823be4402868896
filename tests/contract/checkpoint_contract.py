"""What every checkpoint backend must do: the checks, and the world of real GPUs.

A world has a backend and starts processes to work on: real ones on real GPUs here,
simulated ones in ``checkpoint_worlds.py``. The checks are plain functions, so that
they run where there is no pytest:

    python3 tests/contract/checkpoint_contract.py [--json FILE]

runs them on the GPUs of this machine. It needs Python 3.11, nvidia-smi and a driver
of CUDA 12.8 or later, and this tree as it is cloned: neither built nor with any
package. cuda-bindings is used where it is installed.
"""

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import time
import traceback
import types
from pathlib import Path

if __name__ == "__main__":
    try:
        import svmcore
    except ImportError:  # not built: the package without what is compiled
        svmcore = types.ModuleType("svmcore")
        svmcore.__path__ = [str(Path(__file__).resolve().parents[2] / "src" / "svmcore")]
        sys.modules["svmcore"] = svmcore

from svmcore.checkpoint.base import (
    CheckpointError,
    CUresult,
    ProcessState,
    bring,
    suspended,
)
from svmcore.checkpoint.cuda import CudaCheckpoint
from svmcore.checkpoint.libcuda import LibCuda
from svmcore.errors import SvmError

RUNNING, LOCKED, CHECKPOINTED = (
    ProcessState.RUNNING,
    ProcessState.LOCKED,
    ProcessState.CHECKPOINTED,
)
NEVER_A_GPU = "GPU-00000000-0000-0000-0000-00000000dead"


# ---- the world of real GPUs -------------------------------------------------------------------


class RealChild:
    """A process on real GPUs (``cuda_child.py``)."""

    def __init__(self, mib, devices):
        script = Path(__file__).with_name("cuda_child.py")
        self.child = subprocess.Popen(
            [sys.executable, str(script), str(mib), *map(str, devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.child.pid
        self.read()

    def read(self, limit_s=120):
        ready, _, _ = select.select([self.child.stdout], [], [], limit_s)
        line = self.child.stdout.readline() if ready else ""
        assert line, f"the child process gave no answer within {limit_s} s"
        return json.loads(line)

    def ask(self, word):
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()
        return self.read()

    def check(self):
        answer = self.ask("check")
        return answer["intact"], answer["gpus"]

    def busy(self):
        self.ask("busy")

    def wait_idle(self):
        self.ask("check")  # its copy waits for the work

    def kill(self):
        self.child.kill()
        self.child.wait()

    def close(self):
        self.kill()
        self.child.stdin.close()
        self.child.stdout.close()


class RealWorld:
    """The GPUs of this machine."""

    name = "real driver"
    slack_mib = 16

    def __init__(self, *, library=False):
        driver = LibCuda() if library else None
        self.backend = CudaCheckpoint(driver, call_timeout_s=60, move_timeout_s=300)
        self.gpus = [row[0] for row in self.query("uuid")]
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
            self.gpus = [self.gpus[int(number)] for number in seen]
        self.own_pid = os.getpid()

    @staticmethod
    def query(fields):
        told = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        return [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]

    def start(self, mib=16, devices=(0,)):
        return RealChild(mib, devices)

    def used_mib(self):
        return {gpu: int(used) for gpu, used in self.query("uuid,memory.used")}

    @contextlib.contextmanager
    def without_cuda(self):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            time.sleep(0.2)
            yield child.pid
            child.kill()

    def dead_pid(self):
        with subprocess.Popen([sys.executable, "-c", ""]) as child:
            child.wait()
        return child.pid

    def initialise(self):
        self.backend.invoke("cuInit", 0)


# ---- helpers ----------------------------------------------------------------------------------


def code(call, *arguments, **named):
    """Name of the result of a verb."""
    try:
        call(*arguments, **named)
    except CheckpointError as error:
        return error.code
    return CUresult.CUDA_SUCCESS.name


@contextlib.contextmanager
def child_of(world, mib=16, devices=(0,)):
    child = world.start(mib, devices)
    try:
        yield child
    finally:
        # A check may have killed it already.
        with contextlib.suppress(SvmError):
            child.close()


def calls(backend):
    return {
        "Lock": backend.lock,
        "Lock(1 ms)": lambda pid: backend.lock(pid, 1),
        "Checkpoint(host)": backend.checkpoint,
        "Restore(host)": backend.restore,
        "Unlock": backend.unlock,
        "GetState": backend.get_state,
        "GetRestoreThreadId": backend.get_restore_thread_id,
    }


def equal(what, got, expected):
    assert got == expected, f"{what}: expected {expected}, got {got}"


OK, ILLEGAL = "CUDA_SUCCESS", "CUDA_ERROR_ILLEGAL_STATE"
INVALID, GONE = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OPERATING_SYSTEM"
#: The cells that lead on; GetState and GetRestoreThreadId succeed and stay, others are illegal.
MOVES = {
    (RUNNING, "Lock"): LOCKED,
    (RUNNING, "Lock(1 ms)"): LOCKED,
    (LOCKED, "Checkpoint(host)"): CHECKPOINTED,
    (LOCKED, "Unlock"): RUNNING,
    (CHECKPOINTED, "Restore(host)"): LOCKED,
}


# ---- the checks -------------------------------------------------------------------------------


def check_every_cell(world):
    """Each call in each state that a process can be left in: result, state after, memory."""
    with child_of(world) as child:
        for state in (RUNNING, LOCKED, CHECKPOINTED):
            for name, call in calls(world.backend).items():
                bring(world.backend, child.pid, state)
                after = MOVES.get((state, name), state)
                asks = name.startswith("Get")
                result = OK if asks or (state, name) in MOVES else ILLEGAL
                cell = f"{state.name} {name}"
                equal(cell, code(call, child.pid), result)
                equal(f"{cell}, state", world.backend.get_state(child.pid), after)
                bring(world.backend, child.pid, RUNNING)
                assert child.check()[0], f"{cell}: the memory changed"


def check_restore_thread_belongs_to_the_target(world):
    with child_of(world) as child:
        thread = world.backend.get_restore_thread_id(child.pid)
        assert thread > 0
        assert thread != child.pid
        equal("state by thread id", world.backend.get_state(thread), RUNNING)


def check_targets_that_are_none(world):
    """No such process, and a process without CUDA: one code from every call."""
    for pid in (world.dead_pid(), 0, -1):
        for name, call in calls(world.backend).items():
            equal(f"{name} of {pid}", code(call, pid), GONE)
    with world.without_cuda() as pid:
        for name, call in calls(world.backend).items():
            equal(f"{name} without CUDA", code(call, pid), "CUDA_ERROR_NOT_INITIALIZED")


def check_own_process_can_be_asked(world):
    world.initialise()
    equal("own state", world.backend.get_state(world.own_pid), RUNNING)
    assert world.backend.get_restore_thread_id(world.own_pid) > 0


def check_memory_is_free_while_checkpointed(world):
    before = world.used_mib()
    with child_of(world, mib=256) as child:
        gpu = child.check()[1][0]
        with_child = world.used_mib()
        assert with_child[gpu] >= before[gpu] + 256
        with suspended(world.backend, child.pid):
            inside = world.used_mib()
        after = world.used_mib()
        for name, got, expected in (
            ("memory while checkpointed", inside, before),
            ("memory after", after, with_child),
        ):
            far = max(abs(got[gpu] - expected[gpu]) for gpu in world.gpus)
            assert far <= world.slack_mib, f"{name}: expected {expected} MiB, got {got}"
        assert child.check()[0]


def check_death_while_checkpointed(world):
    with child_of(world) as child:
        bring(world.backend, child.pid, CHECKPOINTED)
        child.kill()
        for name, call in calls(world.backend).items():
            equal(f"{name} of a dead process", code(call, child.pid), GONE)


def check_identity_pairs(world):
    with child_of(world) as child:
        bring(world.backend, child.pid, CHECKPOINTED)
        world.backend.restore(child.pid, {gpu: gpu for gpu in world.gpus})
        equal("state", world.backend.get_state(child.pid), LOCKED)
        world.backend.unlock(child.pid)
        assert child.check()[0]


def refused_pairs(world, devices, pairs):
    """Those pairs are invalid, the process stays CHECKPOINTED, and a plain restore works."""
    with child_of(world, devices=devices) as child:
        bring(world.backend, child.pid, CHECKPOINTED)
        equal(f"restore with {pairs}", code(world.backend.restore, child.pid, pairs), INVALID)
        equal("state", world.backend.get_state(child.pid), CHECKPOINTED)
        world.backend.restore(child.pid, {})
        world.backend.unlock(child.pid)
        assert child.check()[0]


def check_unknown_gpus(world):
    first, *others = world.gpus
    rest = {gpu: gpu for gpu in others}
    refused_pairs(world, (0,), {NEVER_A_GPU: first, **rest})
    refused_pairs(world, (0,), {first: NEVER_A_GPU, **rest})


def two_gpus(world):
    if len(world.gpus) < 2:
        raise NotHere(f"{len(world.gpus)} GPU: expected 2 or more")


def check_swap(world):
    """Memory moves with the process; its device numbers name the other GPU then."""
    two_gpus(world)
    first, second, *others = world.gpus
    swap = {first: second, second: first, **{gpu: gpu for gpu in others}}
    for devices in ((0,), (0, 1)):
        with child_of(world, devices=devices) as child:
            whole, before = child.check()
            assert whole
            with suspended(world.backend, child.pid, gpu_pairs=swap):
                pass
            equal("state", world.backend.get_state(child.pid), RUNNING)
            whole, after = child.check()
            assert whole
            equal("GPUs after the swap", after, [swap[gpu] for gpu in before])


def check_partial_maps(world):
    two_gpus(world)
    first, second = world.gpus[:2]
    for devices in ((0,), (0, 1)):
        refused_pairs(world, devices, {first: second})
        refused_pairs(world, devices, {second: first})
        refused_pairs(world, devices, {first: first})
    refused_pairs(world, (0, 1), {first: second, second: second})


def check_lock_timeout(world):
    """Work longer than the timeout: the process runs on and loses nothing."""
    with child_of(world) as child:
        child.busy()
        equal("lock", code(world.backend.lock, child.pid, 50), "CUDA_ERROR_NOT_READY")
        equal("state", world.backend.get_state(child.pid), RUNNING)
        child.wait_idle()
        assert child.check()[0]
        world.backend.lock(child.pid, 50)
        world.backend.unlock(child.pid)
        assert child.check()[0]


def check_suspended_leaves_as_found(world):
    for found in (RUNNING, LOCKED, CHECKPOINTED):
        with child_of(world) as child:
            bring(world.backend, child.pid, found)
            with suspended(world.backend, child.pid) as told:
                equal("found", told, found)
                equal("inside", world.backend.get_state(child.pid), CHECKPOINTED)
            equal("after", world.backend.get_state(child.pid), found)
            with contextlib.suppress(KeyError), suspended(world.backend, child.pid):
                raise KeyError
            equal("after an exception", world.backend.get_state(child.pid), found)
            bring(world.backend, child.pid, RUNNING)
            assert child.check()[0]


class NotHere(Exception):
    """A check that needs what this world does not have."""


CHECKS = {name[6:]: check for name, check in globals().items() if name.startswith("check_")}


# ---- on this machine's GPUs ---------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(description="Run the contract on the GPUs of this machine.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE")
    parser.add_argument("--only", metavar="WORD", default="", help="only checks with WORD")
    parser.add_argument(
        "--library", action="store_true", help="libcuda itself, also where cuda-bindings is"
    )
    options = parser.parse_args(argv)
    world = RealWorld(library=options.library)
    rows = world.query("name,driver_version")
    told = {
        "gpus": [name for name, _ in rows],
        "driver": rows[0][1],
        "cuda": world.backend.version(),
        "through": type(world.backend.driver).__name__,
        "checks": {},
    }
    print(json.dumps(told))
    for name, check in CHECKS.items():
        if options.only not in name:
            continue
        begin = time.monotonic()
        try:
            check(world)
            verdict = "ok"
        except NotHere as reason:
            verdict = f"not run: {reason}"
        except Exception as error:  # every check is heard
            verdict = f"FAILED: {type(error).__name__}: {error}"
            traceback.print_exc()
        told["checks"][name] = verdict
        print(f"{name}: {verdict} ({time.monotonic() - begin:.1f} s)", flush=True)
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    failed = sum(verdict.startswith("FAILED") for verdict in told["checks"].values())
    print(f"{len(told['checks'])} checks, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
