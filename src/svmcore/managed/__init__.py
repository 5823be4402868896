"""Memory advice in every dialect: Ascend ACL, CUDA, HIP and KFD, on one set of words.

:func:`managed_memory` makes the managed memory of one process under one vendor's
rules; the calls are the vendors' with their own enums, results and rounding.

>>> memory = managed_memory("cuda", "gpu-80g")
>>> ptr = memory.alloc(1 << 20)
>>> memory.mem_advise(ptr, 1 << 20, CudaMemAdvise.SET_PREFERRED_LOCATION, "gpu0").pages
256
>>> memory.access(ptr, 4096, by="gpu0").hit
False
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..machine import Machine
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
from .kfd import HipMemory, HmmFlag, HostRegistration, HsaAttribute, KfdMemory
from .memory import SEMANTICS, AdviseResult, Effect, ManagedMemory, PageView, Touch
from .pages import AclMemory, CudaMemory, PageMemory, PolicyRange

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
    "CudaMemAdvise",
    "CudaMemLocationType",
    "CudaMemRangeAttribute",
    "CudaMemory",
    "CudaResult",
    "DriverErrno",
    "Effect",
    "HipCoherencyMode",
    "HipMemRangeAttribute",
    "HipMemory",
    "HipMemoryAdvise",
    "HipResult",
    "HmmFlag",
    "HostRegistration",
    "HsaAttribute",
    "KfdMemory",
    "Location",
    "ManagedAddressError",
    "ManagedArgumentError",
    "ManagedConflictError",
    "ManagedError",
    "ManagedMemory",
    "ManagedMemoryError",
    "ManagedSupportError",
    "PageMemory",
    "PageView",
    "PolicyRange",
    "Touch",
    "convert",
    "managed_memory",
    "vendor_name",
]


def managed_memory(
    semantics: str = "acl", machine: str | Path | Machine = "gpu-80g", **options: Any
) -> ManagedMemory:
    """Managed memory of one process.

    Parameters
    ----------
    semantics : str
        ``acl`` (the document), ``acl-driver``, ``cuda``, ``hip`` or ``kfd``.
    machine : str, Path or Machine
        Its GPUs are the devices.
    **options
        As the class of the dialect takes them: :class:`AclMemory`,
        :class:`CudaMemory`, :class:`HipMemory`, :class:`KfdMemory`.

    Raises
    ------
    InvalidArgumentError
        For unknown semantics, an unknown machine or option.
    """
    classes: dict[str, Callable[..., ManagedMemory]] = {
        "acl": partial(AclMemory, "acl"),
        "acl-driver": partial(AclMemory, "acl-driver"),
        "cuda": CudaMemory,
        "hip": HipMemory,
        "kfd": KfdMemory,
    }
    if semantics not in classes:
        raise InvalidArgumentError(
            f"semantics {semantics!r}: expected one of {', '.join(SEMANTICS)}"
        )
    make = classes[semantics]
    try:
        inspect.signature(make).bind(machine, **options)
    except TypeError as error:
        raise InvalidArgumentError(f"semantics {semantics}: {error}") from error
    return make(machine, **options)
