"""The checkpoint functions of the real CUDA driver, behind the simulator's verbs.

Over ``cuda.bindings.driver`` (extra ``cuda``), or over ``libcuda.so.1`` itself
where that package is not installed. Linux only.

A call can hang: the driver talks with a thread of the target, and a target that
is stopped, or a peer that is locked, does not answer. So every call runs beside
the caller with a limit. A call that passed its limit is still under way: the
next one on the same process waits for it first.
"""

from __future__ import annotations

import ctypes
import threading
import uuid
from typing import Any

from ..errors import InvalidArgumentError, NotSupportedError
from ..units import whole
from .base import (
    CallTimeoutError,
    CheckpointBackend,
    CUresult,
    CustomStorage,
    GpuPairs,
    Window,
    checkpoint_error,
    gpu_uuid,
    pairs_of,
)
from .libcuda import CUcheckpointCustomStorageInfo, LibCuda

__all__ = ["CudaCheckpoint", "open_driver"]

_INT = 1 << 31
#: The state that a call needs, and what else a code says was missing.
_STATES = {
    "cuCheckpointProcessLock": "RUNNING",
    "cuCheckpointProcessCheckpoint": "LOCKED",
    "cuCheckpointProcessRestore": "CHECKPOINTED",
    "cuCheckpointProcessUnlock": "LOCKED",
}
_HINTS: dict[int, str] = {
    CUresult.CUDA_ERROR_NOT_INITIALIZED: "a process that uses CUDA",
    CUresult.CUDA_ERROR_NO_DEVICE: "a GPU",
    CUresult.CUDA_ERROR_NOT_READY: "its work to end in time",
    CUresult.CUDA_ERROR_OPERATING_SYSTEM: "a living process that can answer",
    CUresult.CUDA_ERROR_OUT_OF_MEMORY: "room for its memory",
}
_GPU_PAIRS, _CUSTOM_STORAGE = 13_000, 13_040


def open_driver() -> Any:
    """``cuda.bindings.driver``, or the driver library itself where that is missing or too old.

    Raises
    ------
    NotSupportedError
        If neither is there.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return LibCuda()
    return driver if hasattr(driver, "cuCheckpointProcessGetState") else LibCuda()


def _why(call: str, target: int, code: int) -> str:
    """Whom a call was about, and what its code says was missing."""
    parts = [f"process {target}"] if call.startswith("cuCheckpointProcess") else []
    if code == CUresult.CUDA_ERROR_ILLEGAL_STATE and call in _STATES:
        parts.append(f"expected it {_STATES[call]}")
    elif code in _HINTS:
        parts.append(f"expected {_HINTS[code]}")
    return ": ".join(parts)


class CudaCheckpoint(CheckpointBackend):
    """Checkpoint and restore of real processes that use CUDA.

    Parameters
    ----------
    driver : object, optional
        What has the functions of ``cuda.bindings.driver``; by default
        :func:`open_driver` finds it.
    call_timeout_s : float
        Longest wait for a call that moves no data.
    move_timeout_s : float
        Longest wait for a checkpoint, a restore, a completion, and for a lock
        without a timeout of its own.

    Raises
    ------
    InvalidArgumentError
        For a time that is not above 0, or longer than threads can wait.
    NotSupportedError
        If there is no driver; from a verb, if the driver lacks its function or the
        feature (GPU pairs before CUDA 13.0, custom storage before 13.4).
    CallTimeoutError
        From a verb, if the driver does not return in time.

    Thread safety
    -------------
    One thread at a time uses a backend.
    """

    def __init__(
        self, driver: Any = None, *, call_timeout_s: float = 30.0, move_timeout_s: float = 3600.0
    ) -> None:
        for name, value in (("call", call_timeout_s), ("move", move_timeout_s)):
            if not 0 < value <= threading.TIMEOUT_MAX:  # nan too
                raise InvalidArgumentError(
                    f"{name}_timeout_s {value}: expected above 0, "
                    f"at most {int(threading.TIMEOUT_MAX)} seconds"
                )
        self.driver = open_driver() if driver is None else driver
        self.call_timeout_s = call_timeout_s
        self.move_timeout_s = move_timeout_s
        self._initialised = False
        self._version = 0
        self._in_flight: dict[int, threading.Thread] = {}
        # Where the driver writes: a call that passed its limit may still do so.
        self._written: list[ctypes.c_void_p] = []

    def invoke(self, call: str, *arguments: Any, limit_s: float | None = None) -> Any:
        """Call a driver function by its name within a limit, and return its value."""
        function = getattr(self.driver, call, None)
        if function is None:
            raise self._missing(call, "expected a driver that has it")
        target = 0
        if call.startswith("cuCheckpointProcess"):
            target = whole("pid", arguments[0])
            if not -_INT <= target < _INT:
                raise InvalidArgumentError(f"pid {target}: expected a number of 32 bits")
            arguments = (target, *arguments[1:])
        limit_s = self.call_timeout_s if limit_s is None else limit_s
        try:
            result, *value = self._within(limit_s, call, target, lambda: function(*arguments))
        except (RuntimeError, NotSupportedError) as error:  # how the two say that it is missing
            raise self._missing(call, f"{error}: expected a driver that has it") from error
        if int(result) != CUresult.CUDA_SUCCESS:
            known = int(result) in CUresult.__members__.values()
            code = CUresult(int(result)) if known else int(result)
            raise checkpoint_error(code, call, _why(call, target, code))
        return value[0] if value else None

    def version(self) -> int:
        """CUDA version of the driver, 1000 * major + 10 * minor."""
        if not self._version:
            self._version = int(self.invoke("cuDriverGetVersion"))
        return self._version

    def lock(self, pid: int, timeout_ms: int = 0) -> None:
        """As :meth:`CheckpointBackend.lock`."""
        timeout_ms = whole("timeout_ms", timeout_ms)
        if not 0 <= timeout_ms < 1 << 32:
            raise checkpoint_error(
                CUresult.CUDA_ERROR_INVALID_VALUE,
                "cuCheckpointProcessLock",
                f"timeout {timeout_ms} ms: expected 32 bits",
            )
        call = "cuCheckpointProcessLock"
        args = self._struct(call, "CUcheckpointLockArgs", timeoutMs=timeout_ms)
        own = timeout_ms / 1000 + self.call_timeout_s if timeout_ms else self.move_timeout_s
        self.invoke(call, pid, args, limit_s=own)

    def checkpoint(self, pid: int, *, custom_storage: bool = False) -> CustomStorage | None:
        """As :meth:`CheckpointBackend.checkpoint`."""
        call = "cuCheckpointProcessCheckpoint"
        if custom_storage:
            return self._mapped(call, pid, "CUcheckpointCheckpointArgs")
        self.invoke(call, pid, None, limit_s=self.move_timeout_s)
        return None

    def restore(
        self, pid: int, gpu_pairs: GpuPairs = None, *, custom_storage: bool = False
    ) -> CustomStorage | None:
        """As :meth:`CheckpointBackend.restore`."""
        call = "cuCheckpointProcessRestore"
        fields: dict[str, Any] = {}
        if pairs := pairs_of(gpu_pairs):
            self._since(_GPU_PAIRS, call, "GPU pairs")
            fields["gpuPairs"] = [self._pair(call, old, new) for old, new in pairs]
            fields["gpuPairsCount"] = len(pairs)
        if custom_storage:
            return self._mapped(call, pid, "CUcheckpointRestoreArgs", **fields)
        args = self._struct(call, "CUcheckpointRestoreArgs", **fields) if fields else None
        self._initialise()
        self.invoke(call, pid, args, limit_s=self.move_timeout_s)
        return None

    def operation_complete(self, handle: int) -> None:
        """As :meth:`CheckpointBackend.operation_complete`."""
        call = "cuCheckpointOperationComplete"
        self._since(_CUSTOM_STORAGE, call, "custom storage")
        if not hasattr(self.driver, "CUcheckpointOperationHandle"):
            raise self._missing(call, "expected cuda-bindings 13.4 or later")
        own = self.driver.CUcheckpointOperationHandle(whole("handle", handle))
        self.invoke(call, own, limit_s=self.move_timeout_s)

    # ---- helpers -----------------------------------------------------------------------

    def _mapped(self, call: str, pid: int, kind: str, **fields: Any) -> CustomStorage:
        """A checkpoint or restore with custom storage: what the driver hands out."""
        self._since(_CUSTOM_STORAGE, call, "custom storage")
        out = ctypes.c_void_p()
        fields["customStorageInfo_out"] = ctypes.addressof(out)
        args = self._struct(call, kind, **fields)
        self._initialise()
        self._written.append(out)
        self.invoke(call, pid, args, limit_s=self.move_timeout_s)
        self._written.remove(out)
        info = CUcheckpointCustomStorageInfo.from_address(out.value or 0)
        rows = [info.perDeviceData[i] for i in range(info.deviceCount)]
        windows = tuple(Window(row.devPtr, row.size, row.stream) for row in rows)
        return CustomStorage(info.handle or 0, windows)

    def _struct(self, call: str, kind: str, **fields: Any) -> Any:
        """An argument struct; the package may be older than the driver and lack a part."""
        try:
            args = getattr(self.driver, kind)()
            for name, value in fields.items():
                setattr(args, name, value)
        except AttributeError as error:
            raise self._missing(call, f"{error}: expected a newer cuda-bindings") from error
        return args

    def _pair(self, call: str, old: str, new: str) -> Any:
        pair = self._struct(call, "CUcheckpointGpuPair")
        # The bytes of a UUID cannot be set through cuda.bindings.
        both = b"".join(uuid.UUID(gpu_uuid(gpu)[4:]).bytes for gpu in (old, new))
        ctypes.memmove(int(pair.getPtr()), both, 32)
        return pair

    def _initialise(self) -> None:
        if not self._initialised:
            self.invoke("cuInit", 0)
            self._initialised = True

    def _since(self, version: int, call: str, what: str) -> None:
        if self.version() < version:
            have, need = (f"{n // 1000}.{n % 1000 // 10}" for n in (self.version(), version))
            raise self._missing(call, f"{what}: CUDA {have}, expected {need} or later")

    @staticmethod
    def _missing(call: str, why: str) -> Exception:
        return checkpoint_error(CUresult.CUDA_ERROR_NOT_SUPPORTED, call, why)

    def _within(self, limit_s: float, call: str, target: int, run: Any) -> Any:
        """What *run* gives; it goes on beside us when it passes the limit."""
        before = self._in_flight.get(target)
        if before is not None:
            before.join(limit_s)
            if before.is_alive():
                raise CallTimeoutError(
                    f"{call}: {before.name} on process {target} has not returned: "
                    "expected it to end first"
                )
        done: list[Any] = []
        failed: list[BaseException] = []

        def beside() -> None:
            try:
                done.append(run())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=beside, name=call, daemon=True)
        self._in_flight[target] = thread
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            raise CallTimeoutError(
                f"{call} on process {target}: expected an answer within {limit_s:g} s; "
                "the call is still under way"
            )
        del self._in_flight[target]
        if failed:
            raise failed[0]
        return done[0]
