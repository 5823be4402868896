"""A stand-in for ``cuda.bindings.driver`` that answers from a simulated node.

Its argument structs are memory, as the driver's are, and are read as memory: so
what the backend writes into them is tested too.
"""

import ctypes
import itertools
import threading

from svmcore.checkpoint import libcuda
from svmcore.checkpoint.process import (
    CUcheckpointCheckpointArgs,
    CUcheckpointLockArgs,
    CUcheckpointRestoreArgs,
)


def uuid_at(address):
    import uuid

    return f"GPU-{uuid.UUID(bytes=ctypes.string_at(address, 16))}"


class FakeDriver:
    """Parameters: the simulated driver, its version, functions that are missing."""

    CUcheckpointGpuPair = libcuda.CUcheckpointGpuPair
    CUcheckpointLockArgs = libcuda.CUcheckpointLockArgs
    CUcheckpointCheckpointArgs = libcuda.CUcheckpointCheckpointArgs
    CUcheckpointRestoreArgs = libcuda.CUcheckpointRestoreArgs
    CUcheckpointOperationHandle = ctypes.c_void_p

    def __init__(self, sim, version=13_000, missing=()):
        self.sim, self.version, self.missing = sim, version, missing
        self.windows = {}
        self.kept = []
        #: Function name -> an event that it waits for before it answers.
        self.hangs = {}
        self.calls = []
        self.threads = itertools.count()

    def _enter(self, name):
        self.calls.append((name, threading.current_thread() is threading.main_thread()))
        if name in self.missing:
            raise RuntimeError(f'Function "{name}" not found')
        if name in self.hangs:
            self.hangs[name].wait(60)

    def cuInit(self, flags):
        self._enter("cuInit")
        self.sim.caller.cuda = True
        return (0,)

    def cuDriverGetVersion(self):
        self._enter("cuDriverGetVersion")
        return 0, self.version

    def cuCheckpointProcessGetState(self, pid):
        self._enter("cuCheckpointProcessGetState")
        result, value = self.sim.cuCheckpointProcessGetState(pid)
        return int(result), -1 if value is None else int(value)

    def cuCheckpointProcessGetRestoreThreadId(self, pid):
        self._enter("cuCheckpointProcessGetRestoreThreadId")
        return self.sim.cuCheckpointProcessGetRestoreThreadId(pid)

    def cuCheckpointProcessLock(self, pid, args):
        self._enter("cuCheckpointProcessLock")
        own = args and CUcheckpointLockArgs(args.timeoutMs, sum(args.reserved))
        return self.sim.cuCheckpointProcessLock(pid, own)

    def cuCheckpointProcessUnlock(self, pid, args):
        self._enter("cuCheckpointProcessUnlock")
        assert args is None
        return self.sim.cuCheckpointProcessUnlock(pid)

    def cuCheckpointProcessCheckpoint(self, pid, args):
        self._enter("cuCheckpointProcessCheckpoint")
        out = [] if args and args.customStorageInfo_out else None
        own = args and CUcheckpointCheckpointArgs(out, sum(args.reserved))
        result = self.sim.cuCheckpointProcessCheckpoint(pid, own)
        self._hand_out(args, out)
        return result

    def cuCheckpointProcessRestore(self, pid, args):
        self._enter("cuCheckpointProcessRestore")
        own, out = None, None
        if args:
            out = [] if args.customStorageInfo_out else None
            first = ctypes.cast(args.pairs, ctypes.c_void_p).value
            pairs = [
                (uuid_at(first + 32 * i), uuid_at(first + 32 * i + 16))
                for i in range(args.gpuPairsCount)
            ]
            own = CUcheckpointRestoreArgs(pairs, out, sum(args.reserved) + args.padding0)
        result = self.sim.cuCheckpointProcessRestore(pid, own)
        self._hand_out(args, out)
        return result

    def cuCheckpointOperationComplete(self, handle):
        self._enter("cuCheckpointOperationComplete")
        return self.sim.cuCheckpointOperationComplete(handle.value or 0)

    def _hand_out(self, args, out):
        if not out:
            return
        (storage,) = out
        rows = libcuda.CUcheckpointCustomStoragePerDeviceData * len(storage.windows)
        table = rows(*((w.addr, w.size, 0x1000 + i) for i, w in enumerate(storage.windows)))
        info = libcuda.CUcheckpointCustomStorageInfo(storage.handle, table, len(table))
        self.kept += [table, info]
        self.windows[storage.handle] = storage.windows
        address = ctypes.c_void_p.from_address(args.customStorageInfo_out)
        address.value = ctypes.addressof(info)
