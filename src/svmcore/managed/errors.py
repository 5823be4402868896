"""Refusals: the vendor's own result, the errno behind it, and the rule.

One table says what each vendor answers to each kind of wrong call.
"""

from __future__ import annotations

import enum
from typing import Final

from ..errors import (
    AddressError,
    BusyError,
    InvalidArgumentError,
    NotSupportedError,
    OutOfMemoryError,
    SvmError,
)
from .enums import AclResult, CudaResult, DriverErrno, HipResult, HsaResult

__all__ = [
    "FAILURES",
    "ManagedAddressError",
    "ManagedArgumentError",
    "ManagedConflictError",
    "ManagedError",
    "ManagedMemoryError",
    "ManagedSupportError",
    "failure",
]


class ManagedError(SvmError):
    """A call that the vendor refuses.

    Attributes
    ----------
    result : IntEnum
        The vendor's result, for example ``CudaResult.CUDA_ERROR_INVALID_VALUE``.
    rule : str
        The rule that refuses, as ``docs/explain/managed.md`` names it.
    """

    result: enum.IntEnum
    rule: str


class ManagedArgumentError(ManagedError, InvalidArgumentError):
    """A wrong argument."""


class ManagedAddressError(ManagedError, AddressError):
    """An address outside what the call may touch."""


class ManagedConflictError(ManagedError, BusyError):
    """The memory is mapped where the advice cannot have it (A19, A22)."""


class ManagedSupportError(ManagedError, NotSupportedError):
    """A device, or a direction of a move, that the vendor does not offer."""


class ManagedMemoryError(ManagedError, OutOfMemoryError):
    """No memory."""


_BY_ERRNO: Final[dict[str, type[ManagedError]]] = {
    "EINVAL": ManagedArgumentError,
    "EFAULT": ManagedAddressError,
    "EBUSY": ManagedConflictError,
    "EOPNOTSUPP": ManagedSupportError,
    "ENOMEM": ManagedMemoryError,
}

_Row = tuple[enum.IntEnum, str]
_CUDA, _HIP, _ACL = CudaResult, HipResult, AclResult
_CUDA_VALUE: Final[_Row] = (_CUDA.CUDA_ERROR_INVALID_VALUE, "EINVAL")
_HIP_VALUE: Final[_Row] = (_HIP.hipErrorInvalidValue, "EINVAL")
_ACL_PARAM: Final[_Row] = (_ACL.ACL_ERROR_RT_PARAM_INVALID, "EINVAL")
_ACL_DRIVER = _ACL.ACL_ERROR_RT_DRV_INTERNAL_ERROR
_KFD_VALUE: Final[_Row] = (DriverErrno.EINVAL, "EINVAL")

#: Vendor -> kind of wrong call -> result and errno. A kind that is missing has the
#: vendor's "wrong argument", the entry ``""``.
FAILURES: Final[dict[str, dict[str, _Row]]] = {
    "cuda": {
        "": _CUDA_VALUE,
        "device": (_CUDA.CUDA_ERROR_INVALID_DEVICE, "EINVAL"),
        "concurrent": (_CUDA.CUDA_ERROR_INVALID_DEVICE, "EOPNOTSUPP"),
        "unsupported": (_CUDA.CUDA_ERROR_NOT_SUPPORTED, "EOPNOTSUPP"),
        "memory": (_CUDA.CUDA_ERROR_OUT_OF_MEMORY, "ENOMEM"),
        # A result of the real driver that these calls are not documented to give.
        "unknown": (_CUDA.CUDA_ERROR_UNKNOWN, "EINVAL"),
    },
    "hip": {
        "": _HIP_VALUE,
        "device": (_HIP.hipErrorInvalidDevice, "EINVAL"),
        "unsupported": (_HIP.hipErrorNotSupported, "EOPNOTSUPP"),
        "memory": (_HIP.hipErrorOutOfMemory, "ENOMEM"),
    },
    "acl": {
        "": _ACL_PARAM,
        "alloc_flags": (_ACL.ACL_ERROR_INVALID_PARAM, "EINVAL"),
        "unaligned": (_ACL.ACL_ERROR_RT_MEMORY_ADDRESS_UNALIGNED, "EINVAL"),
        "unsupported": (_ACL.ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "EOPNOTSUPP"),
        "flags": (_ACL.ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "EOPNOTSUPP"),
        "memory": (_ACL.ACL_ERROR_RT_MEMORY_ALLOCATION, "ENOMEM"),
        # Refused by the driver, below the runtime.
        "window": (_ACL_DRIVER, "EFAULT"),
        "no_heap": (_ACL_DRIVER, "EADDRNOTAVAIL"),
        "not_allocated": (_ACL_DRIVER, "EINVAL"),
        "too_many": (_ACL_DRIVER, "EINVAL"),
        "conflict": (_ACL_DRIVER, "EBUSY"),
        "read_mostly_to_host": (_ACL_DRIVER, "EFAULT"),
        "host_to_host": (_ACL_DRIVER, "EOPNOTSUPP"),
        "never_touched": (_ACL_DRIVER, "EFAULT"),
        "accessed_by_place": (_ACL_DRIVER, "EINVAL"),
    },
    "hsa": {
        "": (HsaResult.HSA_STATUS_ERROR_INVALID_ARGUMENT, "EINVAL"),
        "incompatible": (HsaResult.HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS, "EINVAL"),
    },
    "kfd": {
        "": _KFD_VALUE,
        "not_allocated": (DriverErrno.EFAULT, "EFAULT"),
        "memory": (DriverErrno.ENOMEM, "ENOMEM"),
        "unsupported": (DriverErrno.EOPNOTSUPP, "EOPNOTSUPP"),
    },
}


def failure(vendor: str, kind: str, rule: str, what: str) -> ManagedError:
    """The error for a wrong call.

    Parameters
    ----------
    vendor : str
        A key of :data:`FAILURES`.
    kind : str
        What is wrong.
    rule : str
        The rule that refuses.
    what : str
        What was given and what was expected.
    """
    table = FAILURES[vendor]
    result, code = table.get(kind, table[""])
    error = _BY_ERRNO.get(code, ManagedArgumentError)(
        f"{what}: {result.name} ({int(result)}), {code}, rule {rule}"
    )
    error.result, error.rule = result, rule
    if code not in _BY_ERRNO:
        error.code = code
    return error
