"""The checkpoint functions of a simulated driver, with the vendor's names and codes.

:class:`SimCheckpoint` is the driver of a :class:`svmcore.checkpoint.node.SimNode`
as one caller sees it.

The checks of a call stand in one order: arguments, the target, what the driver
and the caller can do, the target's state, the rest. What is refused changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import InvalidArgumentError, OutOfMemoryError, SvmError
from ..units import whole
from .base import (
    CallTimeoutError,
    CheckpointBackend,
    CUresult,
    CustomStorage,
    GpuPairs,
    ProcessState,
    checkpoint_error,
    gpu_uuid,
    pairs_of,
)
from .node import Operation, SimDriver, SimNode, SimProcess, SimStream, SimWindow

__all__ = [
    "CUcheckpointCheckpointArgs",
    "CUcheckpointLockArgs",
    "CUcheckpointRestoreArgs",
    "CUcheckpointUnlockArgs",
    "CallerDiedError",
    "SimCheckpoint",
    "SimDriver",
    "SimNode",
]

_MS = 1_000_000
#: Where a caller's windows begin.
_WINDOWS = 0x3_0000_0000_0000
_UINT32 = 1 << 32
_T = TypeVar("_T")


class CallerDiedError(SvmError):
    """The caller was killed during its call: nobody is there to take the result."""

    code = "ESRCH"


@dataclass
class CUcheckpointLockArgs:
    """Arguments of a lock: ``timeoutMs``, 0 for no limit."""

    timeoutMs: int = 0
    reserved: int = 0


@dataclass
class CUcheckpointCheckpointArgs:
    """Arguments of a checkpoint: a list that gets the :class:`CustomStorage`, or None."""

    customStorageInfo_out: list[CustomStorage] | None = None
    reserved: int = 0


@dataclass
class CUcheckpointRestoreArgs:
    """Arguments of a restore: pairs (old UUID, new UUID), and as for a checkpoint."""

    gpuPairs: Sequence[tuple[str, str]] = ()
    customStorageInfo_out: list[CustomStorage] | None = None
    reserved: int = 0


@dataclass
class CUcheckpointUnlockArgs:
    """Arguments of an unlock: none but the reserved ones."""

    reserved: int = 0


class _Refused(Exception):
    """A call ends with a code; caught where the vendor's function returns."""

    def __init__(self, result: CUresult, why: str) -> None:
        self.result, self.why = result, why
        super().__init__(why)


class SimCheckpoint(CheckpointBackend):
    """The checkpoint functions of a simulated driver, as one caller makes them.

    The functions have the vendor's names and return what ``cuda.bindings.driver``
    returns: a tuple of the result and, where there is one, a value (None unless
    it succeeded). The verbs of the base class raise instead.

    Parameters
    ----------
    node : SimNode
    caller : SimProcess, optional
        The process that calls; a new one by default, with CUDA initialised and
        every primary context held, as custom storage needs it.

    Attributes
    ----------
    node, caller
        As given.
    why : str
        Why the last call was refused; empty when it was not.

    Source
    ------
    CUDA driver API, section 6.1; ``docs/explain/checkpoint.md``;
    ``checkpoint_transitions.json``.
    """

    def __init__(self, node: SimNode, caller: SimProcess | None = None) -> None:
        self.node = node
        self.why = ""
        if caller is None:
            caller = node.spawn()
            caller.contexts |= set(node.uuids)
        self.caller = caller

    # ---- verbs -------------------------------------------------------------------------

    def invoke(self, call: str, *arguments: Any) -> Any:
        """Call one of the functions below by its name."""
        if not call.startswith("cu") or not hasattr(self, call):
            raise checkpoint_error(
                CUresult.CUDA_ERROR_NOT_SUPPORTED, call, "expected a function of the driver"
            )
        result, *value = getattr(self, call)(*arguments)
        if result != CUresult.CUDA_SUCCESS:
            raise checkpoint_error(result, call, self.why)
        return value[0] if value else None

    def lock(self, pid: int, timeout_ms: int = 0) -> None:
        """As :meth:`CheckpointBackend.lock`."""
        self.invoke("cuCheckpointProcessLock", pid, CUcheckpointLockArgs(timeout_ms))

    def checkpoint(self, pid: int, *, custom_storage: bool = False) -> CustomStorage | None:
        """As :meth:`CheckpointBackend.checkpoint`."""
        out: list[CustomStorage] | None = [] if custom_storage else None
        self.invoke("cuCheckpointProcessCheckpoint", pid, CUcheckpointCheckpointArgs(out))
        return out[0] if out else None

    def restore(
        self, pid: int, gpu_pairs: GpuPairs = None, *, custom_storage: bool = False
    ) -> CustomStorage | None:
        """As :meth:`CheckpointBackend.restore`."""
        out: list[CustomStorage] | None = [] if custom_storage else None
        args = CUcheckpointRestoreArgs(pairs_of(gpu_pairs), out)
        self.invoke("cuCheckpointProcessRestore", pid, args)
        return out[0] if out else None

    # ---- the vendor's functions --------------------------------------------------------

    def cuCheckpointProcessGetState(self, pid: int) -> tuple[CUresult, ProcessState | None]:
        """State of a process."""
        return self._valued(lambda: self._target(pid).state)

    def cuCheckpointProcessGetRestoreThreadId(self, pid: int) -> tuple[CUresult, int | None]:
        """Id of the thread that does the target's part of checkpoint and restore."""
        return self._valued(lambda: self._target(pid).restore_thread_id)

    def cuCheckpointProcessLock(
        self, pid: int, args: CUcheckpointLockArgs | None = None
    ) -> tuple[CUresult]:
        """Block further calls of a RUNNING process and drain its work.

        ``CUDA_ERROR_NOT_READY`` when the timeout passes first; modelled time has then
        moved on by it and the process runs on.

        Raises
        ------
        CallTimeoutError
            If the call would never return: work that never ends, and no timeout.
        """
        return self._plain(lambda: self._lock(pid, args))

    def cuCheckpointProcessCheckpoint(
        self, pid: int, args: CUcheckpointCheckpointArgs | None = None
    ) -> tuple[CUresult]:
        """Bring the device memory of a LOCKED process to the host, or map it for the caller.

        ``CUDA_ERROR_OUT_OF_MEMORY`` when the host has no room; the process stays LOCKED.
        """
        return self._plain(lambda: self._checkpoint(pid, args))

    def cuCheckpointProcessRestore(
        self, pid: int, args: CUcheckpointRestoreArgs | None = None
    ) -> tuple[CUresult]:
        """Put the device memory of a CHECKPOINTED process back, on other GPUs if asked.

        ``CUDA_ERROR_OUT_OF_MEMORY`` when a GPU has no room; what follows is
        ``on_failed_restore`` of :class:`SimDriver`.
        """
        return self._plain(lambda: self._restore(pid, args))

    def cuCheckpointProcessUnlock(
        self, pid: int, args: CUcheckpointUnlockArgs | None = None
    ) -> tuple[CUresult]:
        """Let a LOCKED process call again."""
        return self._plain(lambda: self._unlock(pid, args))

    def cuCheckpointOperationComplete(self, handle: int) -> tuple[CUresult]:
        """Wait for the windows' streams, unmap the windows and finish the operation.

        A handle serves once, and only the caller that got it.
        """
        return self._plain(lambda: self._complete(handle))

    # ---- from codes to values ----------------------------------------------------------

    def _plain(self, action: Callable[[], None]) -> tuple[CUresult]:
        return (self._valued(action)[0],)

    def _valued(self, action: Callable[[], _T]) -> tuple[CUresult, _T | None]:
        if not self.caller.alive:
            raise CallerDiedError(f"caller {self.caller.pid} is dead: expected a living caller")
        self.why = ""
        try:
            value = action()
        except _Refused as refusal:
            self.why = refusal.why
            return refusal.result, None
        if not self.caller.alive:
            raise CallerDiedError(f"caller {self.caller.pid} was killed during its call")
        return CUresult.CUDA_SUCCESS, value

    # ---- checks, in their order --------------------------------------------------------

    def _target(self, pid: int) -> SimProcess:
        process = self.node.process(whole("pid", pid))
        if process is None:
            raise _Refused(CUresult.CUDA_ERROR_OPERATING_SYSTEM, f"no process {pid}")
        if not process.cuda:
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_INITIALIZED, f"process {pid} has not initialised CUDA"
            )
        self._capable((12, 8), "checkpoint functions")
        return process

    def _capable(self, least: tuple[int, int], what: str) -> None:
        if self.node.driver.number < least:
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_SUPPORTED,
                f"{what}: CUDA {self.node.driver.version}, expected {least[0]}.{least[1]} or later",
            )

    def _capable_of_custom(self, process: SimProcess) -> None:
        self._capable((13, 4), "custom storage")
        if process is self.caller:
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_SUPPORTED, "custom storage: expected another process"
            )
        if not self.caller.cuda:
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_INITIALIZED, "custom storage: the caller has no cuInit"
            )

    def _holds_contexts(self, gpus: Iterable[str]) -> None:
        missing = sorted(set(gpus) - self.caller.contexts)
        if missing:
            raise _Refused(
                CUresult.CUDA_ERROR_INVALID_CONTEXT,
                f"custom storage: the caller holds no primary context of {', '.join(missing)}",
            )

    @staticmethod
    def _checked(args: Any, kind: type[_T]) -> _T:
        """The arguments; those of a new struct where there are none."""
        if args is None:
            return kind()
        if not isinstance(args, kind):
            raise InvalidArgumentError(f"args {args!r:.80}: expected {kind.__name__}")
        if getattr(args, "reserved", 0):
            raise _Refused(CUresult.CUDA_ERROR_INVALID_VALUE, "reserved arguments: expected zeros")
        return args

    @staticmethod
    def _expect(process: SimProcess, state: ProcessState) -> None:
        if process.state != state:
            raise _Refused(
                CUresult.CUDA_ERROR_ILLEGAL_STATE,
                f"process {process.pid} is {process.state.name}, expected {state.name}",
            )

    def _at(self, step: str, process: SimProcess) -> None:
        """A moment at which either side may die."""
        if self.node.at_step is not None:
            self.node.at_step(step, process)
        if not process.alive:
            raise _Refused(
                CUresult.CUDA_ERROR_OPERATING_SYSTEM, f"process {process.pid} died during the call"
            )

    # ---- lock and unlock ---------------------------------------------------------------

    def _lock(self, pid: int, args: CUcheckpointLockArgs | None) -> None:
        timeout_ms = whole("timeout_ms", self._checked(args, CUcheckpointLockArgs).timeoutMs)
        if not 0 <= timeout_ms < _UINT32:
            raise _Refused(
                CUresult.CUDA_ERROR_INVALID_VALUE, f"timeout {timeout_ms} ms: expected 32 bits"
            )
        process = self._target(pid)
        self._expect(process, ProcessState.RUNNING)
        idle, limit = process.idle_ns(), self.node.now_ns + timeout_ms * _MS
        if timeout_ms and (idle is None or idle > limit):
            self.node.now_ns = limit
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_READY,
                f"process {pid} has work after {timeout_ms} ms, expected none",
            )
        if idle is None:
            raise CallTimeoutError(
                f"cuCheckpointProcessLock: process {pid} has work that never ends: "
                "expected a timeout"
            )
        self._at("lock", process)
        self.node.now_ns = idle + self.node.costs.lock_ns
        process.state = ProcessState.LOCKED

    def _unlock(self, pid: int, args: CUcheckpointUnlockArgs | None) -> None:
        self._checked(args, CUcheckpointUnlockArgs)
        process = self._target(pid)
        self._expect(process, ProcessState.LOCKED)
        self._at("unlock", process)
        self.node.now_ns += self.node.costs.unlock_ns
        process.state = ProcessState.RUNNING

    # ---- checkpoint --------------------------------------------------------------------

    def _checkpoint(self, pid: int, args: CUcheckpointCheckpointArgs | None) -> None:
        out = self._checked(args, CUcheckpointCheckpointArgs).customStorageInfo_out
        custom = out is not None
        process = self._target(pid)
        if custom:
            self._capable_of_custom(process)
        self._expect(process, ProcessState.LOCKED)
        if custom:
            self._holds_contexts(process.device_bytes())
        if self.node.driver.svm == "refuse" and any(space.ranges() for space in process.spaces):
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_SUPPORTED,
                f"process {pid} has ranges of shared virtual memory, expected none",
            )
        in_spaces = sum(space.device_bytes() for space in process.spaces)
        plain = sum(process.device_bytes().values())
        self._take_host(process, in_spaces + (0 if custom else plain))
        self._at("copy", process)
        if not all(space.leave_gpus(self.node.now_ns) for space in process.spaces):
            process.take_host(-process.host_bytes)
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_SUPPORTED,
                f"process {pid}: pages of a space do not leave their GPU",
            )
        self.node.now_ns += self.node.costs.checkpoint_ns
        if custom:
            self._open(process, out, ProcessState.CHECKPOINTING)
            return
        self.node.now_ns += int((in_spaces + plain) * 1e9 / self.node.costs.checkpoint_bytes_per_s)
        self._at("release", process)
        process.leave_devices(process.allocations())
        process.image = "host"
        process.state = ProcessState.CHECKPOINTED

    def _take_host(self, process: SimProcess, nbytes: int) -> None:
        limit = self.node.host_memory
        if limit is not None and self.node.host_used + nbytes > limit:
            raise _Refused(
                CUresult.CUDA_ERROR_OUT_OF_MEMORY,
                f"host: {nbytes} bytes, expected at most {limit - self.node.host_used} free",
            )
        process.take_host(nbytes)

    # ---- restore -----------------------------------------------------------------------

    def _restore(self, pid: int, args: CUcheckpointRestoreArgs | None) -> None:
        args = self._checked(args, CUcheckpointRestoreArgs)
        pairs, out = _uuid_pairs(args.gpuPairs), args.customStorageInfo_out
        custom = out is not None
        process = self._target(pid)
        if pairs:
            self._capable((13, 0), "GPU pairs")
        if custom:
            self._capable_of_custom(process)
        elif not (self.caller.cuda or self.node.persistence_mode):
            raise _Refused(
                CUresult.CUDA_ERROR_NOT_INITIALIZED,
                "restore: expected persistence mode or a caller with cuInit",
            )
        self._expect(process, ProcessState.CHECKPOINTED)
        if process.stuck:
            raise _Refused(
                CUresult.CUDA_ERROR_OPERATING_SYSTEM,
                f"process {pid}: an earlier restore failed, expected none",
            )
        image = "custom" if custom else "host"
        if process.image != image:
            raise _Refused(
                CUresult.CUDA_ERROR_INVALID_VALUE,
                f"restore from {image}: process {pid} was checkpointed to {process.image}",
            )
        renamed = self._renamed(process, pairs)
        if custom:
            self._holds_contexts(renamed[process.gpus[device]] for device in process.devices())
        self._at("acquire", process)
        self._acquire(process, renamed)
        self.node.now_ns += self.node.costs.restore_ns
        if custom:
            self._open(process, out, ProcessState.RESTORING)
            return
        self._at("copy", process)
        self.node.now_ns += int(process.host_bytes * 1e9 / self.node.costs.restore_bytes_per_s)
        process.take_host(-process.host_bytes)
        process.state = ProcessState.LOCKED

    def _renamed(self, process: SimProcess, pairs: list[tuple[str, str]]) -> dict[str, str]:
        """Every GPU of the node -> the one that takes its place; a permutation."""

        def refuse(why: str) -> None:
            raise _Refused(CUresult.CUDA_ERROR_INVALID_VALUE, f"GPU pairs: {why}")

        node, old, new = self.node, [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if not pairs:
            return {gpu: gpu for gpu in node.uuids}
        used = process.covered()
        visible = set(process.gpus)
        for side, side_known in ((old, visible | used), (new, set(node.uuids))):
            if len(set(side)) != len(side):
                refuse("a GPU stands twice on one side, expected once")
            if not set(side) <= side_known:
                refuse(f"unknown GPU, expected some of {', '.join(sorted(side_known))}")
        if node.driver.remap_rule == "visible" and not set(old) == set(new) == visible:
            refuse(f"expected a permutation of every visible GPU, {', '.join(process.gpus)}")
        if not used <= set(old):
            refuse(f"expected every checkpointed GPU, {', '.join(sorted(used))}")
        chip = dict(zip(node.uuids, node.chips, strict=True))
        if any(chip[before] != chip[after] for before, after in pairs):
            refuse("expected GPUs of the same chip type")
        # A GPU that no pair names, whose place is taken, gets the place that this left free.
        renamed, taken_by = dict(pairs), dict(zip(new, old, strict=True))
        for gpu in node.uuids:
            if gpu not in renamed:
                place = gpu
                while place in taken_by:
                    place = taken_by[place]
                renamed[gpu] = place
        return renamed

    def _acquire(self, process: SimProcess, renamed: Mapping[str, str]) -> None:
        try:
            process.come_back(renamed)
        except OutOfMemoryError as error:
            mode = self.node.driver.on_failed_restore
            process.stuck = mode == "stuck"
            if mode == "failed":
                process.state = ProcessState.FAILED
            raise _Refused(CUresult.CUDA_ERROR_OUT_OF_MEMORY, str(error)) from error
        except SvmError as error:  # a space's policy refuses the attributes
            raise _Refused(CUresult.CUDA_ERROR_NOT_SUPPORTED, str(error)) from error

    # ---- custom storage ----------------------------------------------------------------

    def _open(
        self, process: SimProcess, out: list[CustomStorage] | None, state: ProcessState
    ) -> None:
        """Map the target's allocations for the caller: a window a GPU."""
        if not self.caller.alive:
            process.state = ProcessState.FAILED
            return
        process.state = state
        addr, windows = _WINDOWS, []
        for device in process.devices():
            parts = tuple(a for a in process.allocations() if a.device == device)
            size = sum(part.held for part in parts)
            contents = {part.addr: part.data for part in parts}
            stream = SimStream(process.gpus[device])
            windows.append(SimWindow(addr, size, stream, self.node, parts, contents))
            addr += size
        operation = Operation(process, self.caller, tuple(windows))
        handle = self.node.open(operation)
        if out is not None:
            out.append(CustomStorage(handle, operation.windows))

    def _complete(self, handle: int) -> None:
        self._capable((13, 4), "custom storage")
        operations = self.node.operations
        operation = operations.get(whole("handle", handle))
        if operation is None or operation.caller is not self.caller:
            raise _Refused(
                CUresult.CUDA_ERROR_INVALID_VALUE,
                f"handle {handle}: expected one of an operation in hand",
            )
        process = operation.process
        if not process.alive:
            raise _Refused(CUresult.CUDA_ERROR_OPERATING_SYSTEM, f"no process {process.pid}")
        if any(window.stream.capturing for window in operation.windows):
            raise _Refused(
                CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "a stream of a window is capturing, expected none",
            )
        self._at("release", process)
        if not self.caller.alive:
            return  # the windows went with it, and the target has failed
        del operations[handle]
        self.node.now_ns = max(
            [self.node.now_ns, *(window.stream.busy_until_ns for window in operation.windows)]
        )
        saving = process.state == ProcessState.CHECKPOINTING
        for window in operation.windows:
            for part in window.parts:
                # The contents leave with the window, or come with it.
                part.data = None if saving else window.contents[part.addr]
        if saving:
            process.leave_devices(process.allocations())
            process.image = "custom"
            process.state = ProcessState.CHECKPOINTED
        else:
            process.take_host(-process.host_bytes)
            process.state = ProcessState.LOCKED


def _uuid_pairs(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    try:
        return [(gpu_uuid(old), gpu_uuid(new)) for old, new in pairs]
    except (InvalidArgumentError, TypeError, ValueError) as error:
        raise _Refused(CUresult.CUDA_ERROR_INVALID_VALUE, f"GPU pairs: {error}") from error
