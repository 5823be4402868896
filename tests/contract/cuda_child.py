"""A process that holds plain device memory, for checkpoints of real processes.

Needs nothing but Python and libcuda.so.1. ``cuda_child.py MIB DEVICE...`` fills
MIB on each device and answers one line of JSON for each line it reads: ``check``
(is every byte as it was, on which GPU is each device now), ``busy`` (submit work
of some seconds and return at once), ``end``.
"""

import ctypes
import json
import random
import sys
import uuid

_NAMES = {1: "INVALID_VALUE", 2: "OUT_OF_MEMORY", 100: "NO_DEVICE", 999: "UNKNOWN"}


def call(name, *arguments):
    result = getattr(CUDA, name)(*arguments)
    if result:
        raise SystemExit(f"{name}: {_NAMES.get(result, result)}")


class Device:
    """One GPU, with memory that holds a known pattern."""

    def __init__(self, number, mib):
        self.device = ctypes.c_int()
        call("cuDeviceGet", ctypes.byref(self.device), number)
        context = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.context = context
        self.use()
        self.size = mib << 20
        block = random.Random(number).randbytes(1 << 20)
        self.pattern = block * mib
        self.pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.pointer), ctypes.c_size_t(self.size))
        call("cuMemcpyHtoD_v2", self.pointer, self.pattern, ctypes.c_size_t(self.size))
        call("cuCtxSynchronize")

    def use(self):
        call("cuCtxSetCurrent", self.context)

    def uuid(self):
        raw = (ctypes.c_ubyte * 16)()
        call("cuDeviceGetUuid", raw, self.device)
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def intact(self):
        self.use()
        back = ctypes.create_string_buffer(self.size)
        call("cuMemcpyDtoH_v2", back, self.pointer, ctypes.c_size_t(self.size))
        return back.raw == self.pattern

    def busy(self):
        """Seconds of work: writes over memory of its own, one after another."""
        self.use()
        size = 8 << 30
        scratch = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(scratch), ctypes.c_size_t(size))
        for value in range(500):
            count = ctypes.c_size_t(size // 4)
            call("cuMemsetD32Async", scratch, ctypes.c_uint(value), count, None)


def main(mib, *numbers):
    call("cuInit", 0)
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    devices = [Device(int(number), int(mib)) for number in numbers]
    print(json.dumps({"ready": [device.uuid() for device in devices]}), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "check":
            answer = {
                "intact": all(device.intact() for device in devices),
                "gpus": [device.uuid() for device in devices],
            }
        elif word == "busy":
            devices[0].busy()
            answer = {"busy": True}
        else:
            return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    CUDA = ctypes.CDLL("libcuda.so.1")
    main(*sys.argv[1:])
