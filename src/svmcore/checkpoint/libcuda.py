"""The driver library through ctypes, in the shape of ``cuda.bindings.driver``.

Only what checkpoint calls need of it, for machines without that package. The
structs are those of the driver's header, CUDA 12.8 to 13.5; every argument
struct has 64 bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

from ..errors import NotSupportedError

__all__ = ["LibCuda"]


class _Struct(ctypes.Structure):
    def getPtr(self) -> int:
        """Address of the struct."""
        return ctypes.addressof(self)


class CUcheckpointGpuPair(_Struct):
    """16 bytes of the old GPU's UUID, then 16 of the new one's."""

    _fields_: ClassVar = [("oldUuid", ctypes.c_char * 16), ("newUuid", ctypes.c_char * 16)]


class CUcheckpointLockArgs(_Struct):
    """Arguments of a lock."""

    _fields_: ClassVar = [("timeoutMs", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 15)]


class CUcheckpointCheckpointArgs(_Struct):
    """Arguments of a checkpoint."""

    _fields_: ClassVar = [
        ("customStorageInfo_out", ctypes.c_void_p),
        ("reserved", ctypes.c_uint64 * 7),
    ]


class CUcheckpointRestoreArgs(_Struct):
    """Arguments of a restore."""

    _fields_: ClassVar = [
        ("pairs", ctypes.POINTER(CUcheckpointGpuPair)),
        ("gpuPairsCount", ctypes.c_uint32),
        ("padding0", ctypes.c_uint32),
        ("customStorageInfo_out", ctypes.c_void_p),
        ("reserved", ctypes.c_uint64 * 5),
    ]

    def _set_pairs(self, pairs: Sequence[CUcheckpointGpuPair]) -> None:
        self.pairs = (CUcheckpointGpuPair * len(pairs))(*pairs)

    #: Copies the pairs; their number is a field of its own.
    gpuPairs = property(None, _set_pairs)


class CUcheckpointCustomStoragePerDeviceData(_Struct):
    """One window of custom storage."""

    _fields_: ClassVar = [
        ("devPtr", ctypes.c_uint64),
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
    ]


class CUcheckpointCustomStorageInfo(_Struct):
    """What a custom-storage operation hands out."""

    _fields_: ClassVar = [
        ("handle", ctypes.c_void_p),
        ("perDeviceData", ctypes.POINTER(CUcheckpointCustomStoragePerDeviceData)),
        ("deviceCount", ctypes.c_uint),
    ]


class LibCuda:
    """``libcuda.so.1``: each function returns a tuple of its result and its value.

    Parameters
    ----------
    path : str
        The library.

    Raises
    ------
    NotSupportedError
        If the library cannot be loaded; from a call, if it lacks the function.
    """

    CUcheckpointGpuPair = CUcheckpointGpuPair
    CUcheckpointLockArgs = CUcheckpointLockArgs
    CUcheckpointCheckpointArgs = CUcheckpointCheckpointArgs
    CUcheckpointRestoreArgs = CUcheckpointRestoreArgs
    CUcheckpointOperationHandle = ctypes.c_void_p

    def __init__(self, path: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NotSupportedError(f"{error}: expected an NVIDIA driver") from error

    def cuInit(self, flags: int) -> tuple[int]:
        """Load the driver in this process."""
        return (self._call("cuInit", ctypes.c_uint(flags)),)

    def cuDriverGetVersion(self) -> tuple[int, int]:
        """CUDA version of the driver, 1000 * major + 10 * minor."""
        return self._valued("cuDriverGetVersion")

    def cuCheckpointProcessGetState(self, pid: int) -> tuple[int, int]:
        """State of a process."""
        return self._valued("cuCheckpointProcessGetState", ctypes.c_int(pid))

    def cuCheckpointProcessGetRestoreThreadId(self, pid: int) -> tuple[int, int]:
        """Its restore thread."""
        return self._valued("cuCheckpointProcessGetRestoreThreadId", ctypes.c_int(pid))

    def cuCheckpointProcessLock(self, pid: int, args: _Struct | None) -> tuple[int]:
        """Lock."""
        return self._with_args("cuCheckpointProcessLock", pid, args)

    def cuCheckpointProcessCheckpoint(self, pid: int, args: _Struct | None) -> tuple[int]:
        """Checkpoint."""
        return self._with_args("cuCheckpointProcessCheckpoint", pid, args)

    def cuCheckpointProcessRestore(self, pid: int, args: _Struct | None) -> tuple[int]:
        """Restore."""
        return self._with_args("cuCheckpointProcessRestore", pid, args)

    def cuCheckpointProcessUnlock(self, pid: int, args: _Struct | None) -> tuple[int]:
        """Unlock."""
        return self._with_args("cuCheckpointProcessUnlock", pid, args)

    def cuCheckpointOperationComplete(self, handle: ctypes.c_void_p) -> tuple[int]:
        """Complete a custom-storage operation."""
        return (self._call("cuCheckpointOperationComplete", handle),)

    def _call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name, None)
        if function is None:
            raise NotSupportedError(f"no function {name}")
        return int(function(*arguments))

    def _valued(self, name: str, *arguments: Any) -> tuple[int, int]:
        value = ctypes.c_int()
        return self._call(name, *arguments, ctypes.byref(value)), value.value

    def _with_args(self, name: str, pid: int, args: _Struct | None) -> tuple[int]:
        pointer = None if args is None else ctypes.byref(args)
        return (self._call(name, ctypes.c_int(pid), pointer),)
