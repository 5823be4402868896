"""Errors of the package: one base class, the driver's errno name on each.

A driver answers misuse with an errno; Python callers get a subclass of
:class:`SvmError` whose ``code`` is the errno's name, so that a host can match
on the class and a script can print the name.
"""

from __future__ import annotations

import enum

__all__ = [
    "AccessDeniedError",
    "AddressError",
    "AddressInUseError",
    "AgainError",
    "BusyError",
    "Errno",
    "FileError",
    "InvalidArgumentError",
    "NotSupportedError",
    "OutOfMemoryError",
    "OutOfSpaceError",
    "OverflowAddressError",
    "PermissionDeniedError",
    "StateFileError",
    "SvmError",
    "TraceError",
    "error_from_errno",
]


class Errno(enum.IntEnum):
    """Linux errno numbers, on every platform: results are the Linux driver's."""

    EPERM = 1
    ENOENT = 2
    EIO = 5
    EAGAIN = 11
    ENOMEM = 12
    EACCES = 13
    EFAULT = 14
    EBUSY = 16
    EEXIST = 17
    EINVAL = 22
    ENOSPC = 28
    EDEADLK = 35
    ELOOP = 40
    EOVERFLOW = 75
    EOPNOTSUPP = 95
    EADDRINUSE = 98


class SvmError(Exception):
    """Base of every error that svmcore raises on purpose.

    Attributes
    ----------
    code : str
        The errno name that the driver would answer, for example ``"EINVAL"``.
    """

    code: str = "EINVAL"


class InvalidArgumentError(SvmError, ValueError):
    """An argument that the driver refuses: unknown GPU, zero or misaligned size."""

    code = "EINVAL"


class AddressError(SvmError):
    """An address outside every mapping (the driver's EFAULT)."""

    code = "EFAULT"


class AccessDeniedError(SvmError):
    """A processor without access to the range (the driver's EACCES)."""

    code = "EACCES"


class PermissionDeniedError(SvmError):
    """A mapping without the needed protection (the driver's EPERM)."""

    code = "EPERM"


class OverflowAddressError(SvmError, OverflowError):
    """An interval that passes the end of the address space."""

    code = "EOVERFLOW"


class AddressInUseError(SvmError):
    """An interval that overlaps memory registered through another interface."""

    code = "EADDRINUSE"


class OutOfMemoryError(SvmError, MemoryError):
    """No memory for the operation; the state is as before the call."""

    code = "ENOMEM"


class OutOfSpaceError(SvmError):
    """More device memory asked for than the device has."""

    code = "ENOSPC"


class NotSupportedError(SvmError):
    """An operation that this device, kernel or build does not offer."""

    code = "EOPNOTSUPP"


class BusyError(SvmError):
    """A state that does not allow the call now."""

    code = "EBUSY"


class AgainError(SvmError):
    """Not possible now; the same call may succeed later."""

    code = "EAGAIN"


class FileError(SvmError, ValueError):
    """A file that cannot be read or written: what, where and what was expected.

    Parameters
    ----------
    path : str
        The file.
    where : str
        Line, record, byte offset or member, for example ``"line 12"``; empty when
        the whole file is meant.
    reason : str
        What was found and what was expected.
    """

    code = "EINVAL"

    def __init__(self, path: str, where: str, reason: str) -> None:
        self.path = path
        self.where = where
        self.reason = reason
        place = f"{path}: {where}" if where else path
        super().__init__(f"{place}: {reason}")

    def __reduce__(self) -> tuple[type[FileError], tuple[str, str, str]]:
        return type(self), (self.path, self.where, self.reason)


class TraceError(FileError):
    """A trace that cannot be read."""


class StateFileError(FileError):
    """A state file that cannot be read or written."""


_BY_ERRNO: dict[int, type[SvmError]] = {
    Errno.EINVAL: InvalidArgumentError,
    Errno.EFAULT: AddressError,
    Errno.EACCES: AccessDeniedError,
    Errno.EPERM: PermissionDeniedError,
    Errno.EOVERFLOW: OverflowAddressError,
    Errno.EADDRINUSE: AddressInUseError,
    Errno.ENOMEM: OutOfMemoryError,
    Errno.ENOSPC: OutOfSpaceError,
    Errno.EOPNOTSUPP: NotSupportedError,
    Errno.EBUSY: BusyError,
    Errno.EAGAIN: AgainError,
}


def error_from_errno(number: int, message: str) -> SvmError:
    """The error that stands for a driver's result.

    Parameters
    ----------
    number : int
        An errno, positive or negative as the driver returns it.
    message : str
        What was asked and what was expected.

    Returns
    -------
    SvmError
        An instance of the matching subclass (``InvalidArgumentError`` for
        EINVAL and EEXIST); for an errno without a class of its own, an
        ``SvmError``. Its ``code`` is that errno's name.
    """
    number = abs(number)
    known = _BY_ERRNO.get(number)
    if known is not None:
        return known(message)
    name = Errno(number).name if number in Errno.__members__.values() else f"errno {number}"
    error = InvalidArgumentError(message) if number == Errno.EEXIST else SvmError(message)
    error.code = name
    return error
