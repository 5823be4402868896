"""Plays a table of transitions, state -> call -> [result, state after], on the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import InvalidArgumentError
from .base import CUresult, CustomStorage, ProcessState
from .node import SimNode
from .process import (
    CUcheckpointCheckpointArgs,
    CUcheckpointLockArgs,
    CUcheckpointRestoreArgs,
    SimCheckpoint,
)

__all__ = ["play", "recognised"]


class _Bench:
    """One process in a state, and the handle of an operation: in hand, else used up."""

    def __init__(self, state: ProcessState, *, custom: bool) -> None:
        node = SimNode("gpu-80g")
        self.process = node.spawn()
        self.process.allocate(1 << 20)
        self.driver = SimCheckpoint(node)
        pid = self.pid = self.process.pid
        self.handle = 0
        if state == ProcessState.RUNNING:
            self.driver.lock(pid)
            self._complete(self.driver.checkpoint(pid, custom_storage=True))
            self._complete(self.driver.restore(pid, custom_storage=True))
            self.driver.unlock(pid)
            return
        self.driver.lock(pid)
        if state in (ProcessState.CHECKPOINTING, ProcessState.FAILED):
            self._open(self.driver.checkpoint(pid, custom_storage=True))
        elif state != ProcessState.LOCKED:
            custom = custom or state == ProcessState.RESTORING
            self._complete(self.driver.checkpoint(pid, custom_storage=custom))
        if state == ProcessState.RESTORING:
            self._open(self.driver.restore(pid, custom_storage=True))
        if state == ProcessState.FAILED:
            node.kill(self.driver.caller.pid)
            self.driver = SimCheckpoint(node)

    def _open(self, storage: CustomStorage | None) -> None:
        self.handle = storage.handle if storage else 0

    def _complete(self, storage: CustomStorage | None) -> None:
        if storage:
            self._open(storage)
            self.driver.operation_complete(self.handle)

    def lock_late(self) -> CUresult:
        """A lock whose timeout passes while work is still running."""
        if self.process.state == ProcessState.RUNNING:
            self.process.submit(10_000_000)
        return self.driver.cuCheckpointProcessLock(self.pid, CUcheckpointLockArgs(1))[0]

    def get_state(self) -> CUresult:
        """The state, which must be the one that the process is in."""
        result, state = self.driver.cuCheckpointProcessGetState(self.pid)
        return result if state == self.process.state else CUresult.CUDA_ERROR_UNKNOWN


_CALLS: dict[str, Callable[[_Bench], CUresult]] = {
    "Lock": lambda b: b.driver.cuCheckpointProcessLock(b.pid)[0],
    "Lock(timeout reached)": _Bench.lock_late,
    "Checkpoint(host)": lambda b: b.driver.cuCheckpointProcessCheckpoint(b.pid)[0],
    "Checkpoint(custom)": lambda b: b.driver.cuCheckpointProcessCheckpoint(
        b.pid, CUcheckpointCheckpointArgs([])
    )[0],
    "Restore(host)": lambda b: b.driver.cuCheckpointProcessRestore(b.pid)[0],
    "Restore(custom)": lambda b: b.driver.cuCheckpointProcessRestore(
        b.pid, CUcheckpointRestoreArgs(customStorageInfo_out=[])
    )[0],
    "OperationComplete(its handle)": lambda b: b.driver.cuCheckpointOperationComplete(b.handle)[0],
    "Unlock": lambda b: b.driver.cuCheckpointProcessUnlock(b.pid)[0],
    "GetState": _Bench.get_state,
    "GetRestoreThreadId": lambda b: b.driver.cuCheckpointProcessGetRestoreThreadId(b.pid)[0],
}


def recognised(document: Any) -> bool:
    """Whether a JSON document is a table of transitions."""
    return (
        isinstance(document, dict)
        and bool(document)
        and all(key in ProcessState.__members__ for key in document)
    )


def play(document: dict[str, Any]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Every cell of a table: its name, what is expected, what came.

    Raises
    ------
    InvalidArgumentError
        For an unknown call, or a cell that is no pair of words.
    """
    for state, cells in document.items():
        if not isinstance(cells, dict):
            raise InvalidArgumentError(f"{state}: expected calls with [result, state after]")
        for call, expected in cells.items():
            if call not in _CALLS:
                raise InvalidArgumentError(
                    f"{state}: call {call!r}, expected one of {', '.join(_CALLS)}"
                )
            if not isinstance(expected, list) or list(map(type, expected)) != [str, str]:
                raise InvalidArgumentError(f"{state} {call}: expected [result, state after]")
            bench = _Bench(ProcessState[state], custom=call.endswith("(custom)"))
            result = _CALLS[call](bench)
            yield f"{state} {call}", expected, [result.name, bench.process.state.name]
