"""Ascend's snapshot functions on simulated processes: lock, back up, restore, unlock.

A process calls them on itself alone. Unlike CUDA's checkpoint a backup is a
copy: the device keeps its memory, so that an unlock may follow at once, and a
later backup replaces an earlier one. Restore is for a process that lost its
device, because it was dumped and started again: :meth:`AscendSnapshot.detach`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from ..errors import BusyError, SvmError
from ..units import whole
from .base import (
    CheckpointBackend,
    CheckpointError,
    CheckpointNotSupportedError,
    CustomStorage,
    GpuPairs,
    ProcessState,
)
from .node import SimNode, SimProcess

__all__ = ["AclError", "AscendSnapshot", "SnapShotStage"]

_MS = 1_000_000


class AclError(enum.IntEnum):
    """Result codes of the Ascend runtime that snapshot calls answer with."""

    ACL_SUCCESS = 0
    ACL_ERROR_RT_PARAM_INVALID = 107000
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001
    ACL_ERROR_SNAPSHOT_LOCK_TIMEOUT = 507905
    ACL_ERROR_SNAPSHOT_LOCK_FAILED = 507906
    ACL_ERROR_SNAPSHOT_UNLOCK_FAILED = 507907
    ACL_ERROR_SNAPSHOT_BACKUP_FAILED = 507908
    ACL_ERROR_SNAPSHOT_RESTORE_FAILED = 507909
    ACL_ERROR_SNAPSHOT_CALLBACK_FAILED = 507912
    ACL_ERROR_SNAPSHOT_REGISTER_CALLBACK_FAILED = 507913


class SnapShotStage(enum.IntEnum):
    """When a registered callback runs (``aclrtSnapShotStage``)."""

    ACL_RT_SNAPSHOT_LOCK_PRE = 0
    ACL_RT_SNAPSHOT_BACKUP_PRE = 1
    ACL_RT_SNAPSHOT_BACKUP_POST = 2
    ACL_RT_SNAPSHOT_RESTORE_PRE = 3
    ACL_RT_SNAPSHOT_RESTORE_POST = 4
    ACL_RT_SNAPSHOT_UNLOCK_POST = 5


#: A callback: (device number, its argument) -> 0, or anything else to refuse.
CallBack = Callable[[int, Any], int]


class _Refused(Exception):
    def __init__(self, result: AclError, why: str) -> None:
        self.result, self.why = result, why
        super().__init__(why)


class AscendSnapshot(CheckpointBackend):
    """The snapshot functions, as one process makes them on itself.

    The functions have the vendor's names and return the vendor's code. The verbs of
    the base class raise instead; to them a backed-up process is CHECKPOINTED.

    Parameters
    ----------
    process : SimProcess
        The caller, and the only process whose id is accepted.
    lock_timeout_ms : int
        Longest wait of a lock for submitted work; 0: the runtime's limit is not
        modelled, only work that never ends times out.

    Attributes
    ----------
    why : str
        Why the last call was refused; empty when it was not.

    Source
    ------
    Ascend runtime, ``aclrtSnapShot*`` (experimental); ``docs/explain/checkpoint.md``.
    """

    def __init__(self, process: SimProcess, *, lock_timeout_ms: int = 0) -> None:
        self.process = process
        self.node: SimNode = process.node
        self.lock_timeout_ms = lock_timeout_ms
        self.why = ""
        self._callbacks: dict[SnapShotStage, tuple[CallBack, Any]] = {}
        self._backup: dict[int, Any] = {}

    # ---- the vendor's functions --------------------------------------------------------

    def aclrtSnapShotProcessLock(self, pid: int, reserve: None = None) -> AclError:
        """Block further calls of the RUNNING process and drain its work: LOCKED."""
        return self._answered(lambda: self._lock(pid, reserve, self.lock_timeout_ms))

    def aclrtSnapShotProcessUnlock(self, pid: int, reserve: None = None) -> AclError:
        """Let the process call again, from LOCKED or from BACKED_UP: RUNNING."""
        return self._answered(lambda: self._unlock(pid, reserve))

    def aclrtSnapShotProcessBackup(self, pid: int, args: None = None) -> AclError:
        """Copy device memory to the host: BACKED_UP. The last backup counts."""
        return self._answered(lambda: self._back_up(pid, args))

    def aclrtSnapShotProcessRestore(self, pid: int, args: None = None) -> AclError:
        """Put the last backup on the same devices: LOCKED.

        Fails where another process has memory on one of them, or it has no room.
        """
        return self._answered(lambda: self._restore(pid, args))

    def aclrtSnapShotCallbackRegister(
        self, stage: int, callback: CallBack, args: Any = None
    ) -> AclError:
        """Have *callback* run at a stage, once a device of the process; one a stage."""
        return self._answered(lambda: self._register(stage, callback, args))

    def aclrtSnapShotCallbackUnregister(self, stage: int, callback: CallBack) -> AclError:
        """Take the callback of a stage away."""
        return self._answered(lambda: self._unregister(stage, callback))

    # ---- what happens in between -------------------------------------------------------

    def detach(self) -> None:
        """The backed-up process is dumped and started again: it has lost its devices.

        Raises
        ------
        BusyError
            If it is not backed up: its data would be gone.
        """
        if self.process.state != ProcessState.CHECKPOINTED:
            raise BusyError(f"detach: process {self.process.pid}: expected a backed-up process")
        for space in self.process.spaces:
            space.leave_gpus(self.node.now_ns)
        self.process.leave_devices(self.process.allocations())
        for allocation in self.process.allocations():
            allocation.data = None

    # ---- verbs -------------------------------------------------------------------------

    def invoke(self, call: str, *arguments: Any) -> Any:
        """Call one of the functions above by its name."""
        self._no(call, "the runtime has no such function", not hasattr(self, call))
        self._raise(call, getattr(self, call)(*arguments))

    def get_state(self, pid: int) -> ProcessState:
        """State of the process; a backed-up one is CHECKPOINTED."""
        self._raise("get_state", self._answered(lambda: self._own(pid, None)))
        return self.process.state

    def lock(self, pid: int, timeout_ms: int = 0) -> None:
        """As :meth:`CheckpointBackend.lock`; the timeout is the backend's own where it is 0."""
        limit = timeout_ms or self.lock_timeout_ms
        result = self._answered(lambda: self._lock(pid, None, limit))
        self._raise("aclrtSnapShotProcessLock", result)

    def checkpoint(self, pid: int, *, custom_storage: bool = False) -> CustomStorage | None:
        """A backup; there is no custom storage."""
        self._no("aclrtSnapShotProcessBackup", "custom storage", custom_storage)
        self.invoke("aclrtSnapShotProcessBackup", pid)
        return None

    def restore(
        self, pid: int, gpu_pairs: GpuPairs = None, *, custom_storage: bool = False
    ) -> CustomStorage | None:
        """As :meth:`CheckpointBackend.restore`, onto the same devices only."""
        self._no("aclrtSnapShotProcessRestore", "other devices", gpu_pairs)
        self._no("aclrtSnapShotProcessRestore", "custom storage", custom_storage)
        self.invoke("aclrtSnapShotProcessRestore", pid)
        return None

    def unlock(self, pid: int) -> None:
        """As :meth:`CheckpointBackend.unlock`, also from a backup."""
        self.invoke("aclrtSnapShotProcessUnlock", pid)

    @staticmethod
    def _no(call: str, what: str, asked: Any) -> None:
        if asked:
            raise CheckpointNotSupportedError(AclError.ACL_ERROR_RT_FEATURE_NOT_SUPPORT, call, what)

    def _raise(self, call: str, result: AclError) -> None:
        if result != AclError.ACL_SUCCESS:
            raise CheckpointError(result, call, self.why)

    # ---- helpers -----------------------------------------------------------------------

    def _answered(self, action: Callable[[], None]) -> AclError:
        self.why = ""
        try:
            action()
        except _Refused as refusal:
            self.why = refusal.why
            return refusal.result
        return AclError.ACL_SUCCESS

    def _own(self, pid: int, args: Any) -> None:
        if args is not None:
            raise _Refused(AclError.ACL_ERROR_RT_PARAM_INVALID, f"args {args!r:.40}: expected None")
        if whole("pid", pid) != self.process.pid or not self.process.alive:
            raise _Refused(
                AclError.ACL_ERROR_RT_PARAM_INVALID,
                f"pid {pid}: expected the caller's own, {self.process.pid}",
            )

    def _expect(self, failure: AclError, *states: ProcessState) -> None:
        if self.process.state not in states:
            names = {ProcessState.CHECKPOINTED: "BACKED_UP"}
            wanted = " or ".join(names.get(state, state.name) for state in states)
            found = names.get(self.process.state, self.process.state.name)
            raise _Refused(failure, f"the process is {found}, expected {wanted}")

    def _detached(self) -> bool:
        return not all(allocation.on_device for allocation in self.process.allocations())

    def _needs_devices(self, failure: AclError) -> None:
        if self._detached():
            raise _Refused(failure, "the process has lost its devices: expected a restore first")

    def _call_back(self, stage: SnapShotStage) -> None:
        callback, args = self._callbacks.get(stage, (None, None))
        if callback is None:
            return
        for device in range(len(self.process.gpus)):
            answer = callback(device, args)
            if answer:
                raise _Refused(
                    AclError.ACL_ERROR_SNAPSHOT_CALLBACK_FAILED,
                    f"{stage.name}: the callback of device {device} returned {answer}, expected 0",
                )

    def _lock(self, pid: int, reserve: Any, timeout_ms: int) -> None:
        self._own(pid, reserve)
        if whole("timeout_ms", timeout_ms) < 0:
            raise _Refused(
                AclError.ACL_ERROR_RT_PARAM_INVALID, f"timeout {timeout_ms} ms: expected 0 or more"
            )
        self._expect(AclError.ACL_ERROR_SNAPSHOT_LOCK_FAILED, ProcessState.RUNNING)
        self._call_back(SnapShotStage.ACL_RT_SNAPSHOT_LOCK_PRE)
        limit = self.node.now_ns + timeout_ms * _MS
        idle = self.process.idle_ns()
        if idle is None or (timeout_ms and idle > limit):
            self.node.now_ns = limit
            raise _Refused(
                AclError.ACL_ERROR_SNAPSHOT_LOCK_TIMEOUT, "submitted work does not end in time"
            )
        self.node.now_ns = idle + self.node.costs.lock_ns
        self.process.state = ProcessState.LOCKED

    def _unlock(self, pid: int, reserve: Any) -> None:
        self._own(pid, reserve)
        failure = AclError.ACL_ERROR_SNAPSHOT_UNLOCK_FAILED
        self._expect(failure, ProcessState.LOCKED, ProcessState.CHECKPOINTED)
        self._needs_devices(failure)
        self._forget()
        self.node.now_ns += self.node.costs.unlock_ns
        self.process.state = ProcessState.RUNNING
        self._call_back(SnapShotStage.ACL_RT_SNAPSHOT_UNLOCK_POST)

    def _back_up(self, pid: int, args: Any) -> None:
        self._own(pid, args)
        failure, process = AclError.ACL_ERROR_SNAPSHOT_BACKUP_FAILED, self.process
        self._expect(failure, ProcessState.LOCKED, ProcessState.CHECKPOINTED)
        self._needs_devices(failure)
        self._call_back(SnapShotStage.ACL_RT_SNAPSHOT_BACKUP_PRE)
        nbytes = sum(process.device_bytes().values())
        limit, used = self.node.host_memory, self.node.host_used - process.host_bytes
        if limit is not None and used + nbytes > limit:
            raise _Refused(
                AclError.ACL_ERROR_RT_MEMORY_ALLOCATION,
                f"host: {nbytes} bytes, expected at most {limit - used} free",
            )
        process.take_host(nbytes - process.host_bytes)
        self._backup = {allocation.addr: allocation.data for allocation in process.allocations()}
        costs = self.node.costs
        self.node.now_ns += costs.checkpoint_ns + int(nbytes * 1e9 / costs.checkpoint_bytes_per_s)
        process.state = ProcessState.CHECKPOINTED
        self._call_back(SnapShotStage.ACL_RT_SNAPSHOT_BACKUP_POST)

    def _restore(self, pid: int, args: Any) -> None:
        self._own(pid, args)
        failure, process = AclError.ACL_ERROR_SNAPSHOT_RESTORE_FAILED, self.process
        self._expect(failure, ProcessState.CHECKPOINTED)
        self._call_back(SnapShotStage.ACL_RT_SNAPSHOT_RESTORE_PRE)
        own = {process.gpus[device] for device in process.devices()}
        for other in self.node.processes():
            if other is not process and own & set(other.device_bytes()):
                raise _Refused(failure, f"process {other.pid} is on a device, expected none")
        if self._detached():
            try:
                process.come_back({gpu: gpu for gpu in self.node.uuids})
            except SvmError as error:
                raise _Refused(failure, str(error)) from error
        for allocation in process.allocations():
            allocation.data = self._backup[allocation.addr]
        costs = self.node.costs
        self.node.now_ns += costs.restore_ns + int(
            process.host_bytes * 1e9 / costs.restore_bytes_per_s
        )
        self._forget()
        process.state = ProcessState.LOCKED
        self._call_back(SnapShotStage.ACL_RT_SNAPSHOT_RESTORE_POST)

    def _forget(self) -> None:
        self.process.take_host(-self.process.host_bytes)
        self._backup = {}

    def _register(self, stage: int, callback: CallBack, args: Any) -> None:
        known = self._stage(stage)
        if not callable(callback):
            raise _Refused(
                AclError.ACL_ERROR_RT_PARAM_INVALID, f"callback {callback!r:.40}: expected a call"
            )
        if known in self._callbacks:
            raise _Refused(
                AclError.ACL_ERROR_SNAPSHOT_REGISTER_CALLBACK_FAILED,
                f"{known.name} has a callback, expected none yet",
            )
        self._callbacks[known] = (callback, args)

    def _unregister(self, stage: int, callback: CallBack) -> None:
        known = self._stage(stage)
        if known not in self._callbacks or self._callbacks[known][0] is not callback:
            raise _Refused(
                AclError.ACL_ERROR_RT_PARAM_INVALID,
                f"{known.name}: expected the callback that is registered",
            )
        del self._callbacks[known]

    @staticmethod
    def _stage(stage: int) -> SnapShotStage:
        try:
            return SnapShotStage(stage)
        except ValueError as error:
            raise _Refused(
                AclError.ACL_ERROR_RT_PARAM_INVALID, f"stage {stage!r}: expected 0 to 5"
            ) from error
