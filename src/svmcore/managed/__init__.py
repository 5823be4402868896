"""Memory advice in every dialect: Ascend ACL, CUDA, HIP and KFD, on one set of words.

:func:`managed_memory` makes the managed memory of one process under one vendor's
rules; the calls are the vendors' with their own enums, results and rounding.

>>> from svmcore.managed import CudaMemAdvise, managed_memory
>>> memory = managed_memory("cuda", "gpu-80g")
>>> ptr = memory.alloc(1 << 20)
>>> memory.mem_advise(ptr, 1 << 20, CudaMemAdvise.SET_PREFERRED_LOCATION, "gpu0").pages
256
>>> memory.access(ptr, 4096, by="gpu0").hit
False
"""

from __future__ import annotations

from .acl import AclMemory
from .enums import (
    DEVICE_CPU,
    DEVICE_INVALID,
    AclMemManagedAdviseType,
    AclMemManagedLocationType,
    AclMemManagedRangeAttribute,
    AclResult,
    CudaMemAdvise,
    CudaMemLocationType,
    CudaMemRangeAttribute,
    CudaResult,
    DriverErrno,
    HipCoherencyMode,
    HipMemoryAdvise,
    HipMemRangeAttribute,
    HipResult,
    HsaResult,
    Location,
    convert,
    vendor_name,
)
from .errors import (
    ManagedAddressError,
    ManagedArgumentError,
    ManagedConflictError,
    ManagedError,
    ManagedMemoryError,
    ManagedSupportError,
)
from .factory import managed_memory
from .hip import HipMemory, HmmFlag, HostRegistration
from .hsa import HsaAttribute
from .kfd import KfdMemory
from .memory import SEMANTICS, AdviseResult, Effect, ManagedMemory, Options, PageView, Touch
from .pages import PageMemory, PolicyRange
from .playing import Comparison, Hint, Play, compare_dialects, play_trace
from .study import advice_study
from .unified import CudaMemory

__all__ = [
    "DEVICE_CPU",
    "DEVICE_INVALID",
    "SEMANTICS",
    "AclMemManagedAdviseType",
    "AclMemManagedLocationType",
    "AclMemManagedRangeAttribute",
    "AclMemory",
    "AclResult",
    "AdviseResult",
    "Comparison",
    "CudaMemAdvise",
    "CudaMemLocationType",
    "CudaMemRangeAttribute",
    "CudaMemory",
    "CudaResult",
    "DriverErrno",
    "Effect",
    "Hint",
    "HipCoherencyMode",
    "HipMemRangeAttribute",
    "HipMemory",
    "HipMemoryAdvise",
    "HipResult",
    "HmmFlag",
    "HostRegistration",
    "HsaAttribute",
    "HsaResult",
    "KfdMemory",
    "Location",
    "ManagedAddressError",
    "ManagedArgumentError",
    "ManagedConflictError",
    "ManagedError",
    "ManagedMemory",
    "ManagedMemoryError",
    "ManagedSupportError",
    "Options",
    "PageMemory",
    "PageView",
    "Play",
    "PolicyRange",
    "Touch",
    "advice_study",
    "compare_dialects",
    "convert",
    "managed_memory",
    "play_trace",
    "vendor_name",
]
