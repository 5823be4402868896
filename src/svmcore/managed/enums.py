"""The vendors' own numbers: advice, places, range attributes, results.

Members have the same name in each vendor's enum where they mean the same, so
:func:`convert` goes by name. Numbers differ: CUDA and HIP count advice from 1,
ACL from 0, and ACL orders range attributes 4 to 6 otherwise. A cast is wrong.

Source: ``cuda.h`` 13.5, ``hip_runtime_api.h``, the ACL interface document.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, Self

from ..advice import VENDOR_ADVICE, Meaning
from ..errors import InvalidArgumentError
from ..units import whole

__all__ = [
    "DEVICE_CPU",
    "DEVICE_INVALID",
    "AclMemManagedAdviseType",
    "AclMemManagedLocationType",
    "AclMemManagedRangeAttribute",
    "AclResult",
    "CudaMemAdvise",
    "CudaMemLocationType",
    "CudaMemRangeAttribute",
    "CudaResult",
    "DriverErrno",
    "HipCoherencyMode",
    "HipMemRangeAttribute",
    "HipMemoryAdvise",
    "HipResult",
    "HsaResult",
    "Location",
    "convert",
    "meaning",
    "vendor_name",
    "vendors_word",
]

#: Device number of the CPU in queries (CU_DEVICE_CPU, hipCpuDeviceId).
DEVICE_CPU: Final = -1
#: "Nobody, or mixed" in queries (CU_DEVICE_INVALID, hipInvalidDeviceId).
DEVICE_INVALID: Final = -2


class CudaMemAdvise(enum.IntEnum):
    """``CUmem_advise``, and ``cudaMemoryAdvise`` with the same numbers."""

    SET_READ_MOSTLY = 1
    UNSET_READ_MOSTLY = 2
    SET_PREFERRED_LOCATION = 3
    UNSET_PREFERRED_LOCATION = 4
    SET_ACCESSED_BY = 5
    UNSET_ACCESSED_BY = 6


class HipMemoryAdvise(enum.IntEnum):
    """``hipMemoryAdvise``."""

    SET_READ_MOSTLY = 1
    UNSET_READ_MOSTLY = 2
    SET_PREFERRED_LOCATION = 3
    UNSET_PREFERRED_LOCATION = 4
    SET_ACCESSED_BY = 5
    UNSET_ACCESSED_BY = 6
    SET_COARSE_GRAIN = 100
    UNSET_COARSE_GRAIN = 101


class AclMemManagedAdviseType(enum.IntEnum):
    """``aclrtMemManagedAdviseType``: counts from 0."""

    SET_READ_MOSTLY = 0
    UNSET_READ_MOSTLY = 1
    SET_PREFERRED_LOCATION = 2
    UNSET_PREFERRED_LOCATION = 3
    SET_ACCESSED_BY = 4
    UNSET_ACCESSED_BY = 5


class CudaMemLocationType(enum.IntEnum):
    """``CUmemLocationType``; 0 is also called NONE. HIP's ``hipMemLocation`` takes 0 to 4."""

    INVALID = 0
    DEVICE = 1
    HOST = 2
    HOST_NUMA = 3
    HOST_NUMA_CURRENT = 4
    INVISIBLE = 5
    DEVICE_LOCALITY_DOMAIN = 6


class AclMemManagedLocationType(enum.IntEnum):
    """``aclrtMemManagedLocationType``: the numbers of CUDA."""

    INVALID = 0
    DEVICE = 1
    HOST = 2
    HOST_NUMA = 3
    HOST_NUMA_CURRENT = 4


class CudaMemRangeAttribute(enum.IntEnum):
    """``CUmem_range_attribute``."""

    READ_MOSTLY = 1
    PREFERRED_LOCATION = 2
    ACCESSED_BY = 3
    LAST_PREFETCH_LOCATION = 4
    PREFERRED_LOCATION_TYPE = 5
    PREFERRED_LOCATION_ID = 6
    LAST_PREFETCH_LOCATION_TYPE = 7
    LAST_PREFETCH_LOCATION_ID = 8


class HipMemRangeAttribute(enum.IntEnum):
    """``hipMemRangeAttribute``."""

    READ_MOSTLY = 1
    PREFERRED_LOCATION = 2
    ACCESSED_BY = 3
    LAST_PREFETCH_LOCATION = 4
    COHERENCY_MODE = 100


class AclMemManagedRangeAttribute(enum.IntEnum):
    """``aclrtMemManagedRangeAttribute``: 4 to 6 are not those of CUDA."""

    READ_MOSTLY = 1
    PREFERRED_LOCATION = 2
    ACCESSED_BY = 3
    PREFERRED_LOCATION_TYPE = 4
    PREFERRED_LOCATION_ID = 5
    LAST_PREFETCH_LOCATION = 6
    LAST_PREFETCH_LOCATION_TYPE = 7
    LAST_PREFETCH_LOCATION_ID = 8


class HipCoherencyMode(enum.IntEnum):
    """``hipMemRangeCoherencyMode``."""

    FINE_GRAIN = 0
    COARSE_GRAIN = 1
    INDETERMINATE = 2


class CudaResult(enum.IntEnum):
    """``CUresult``, those that these calls return."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_UNKNOWN = 999


class HipResult(enum.IntEnum):
    """``hipError_t``, those that these calls return."""

    hipSuccess = 0
    hipErrorInvalidValue = 1
    hipErrorOutOfMemory = 2
    hipErrorInvalidDevice = 101
    hipErrorNotSupported = 801


class AclResult(enum.IntEnum):
    """ACL results of these calls.

    The numbers of ``ACL_ERROR_INVALID_PARAM``, ``ACL_ERROR_RT_MEMORY_ALLOCATION``
    and ``ACL_ERROR_RT_DRV_INTERNAL_ERROR`` are not verified against a header.
    """

    ACL_SUCCESS = 0
    ACL_ERROR_INVALID_PARAM = 100000
    ACL_ERROR_RT_PARAM_INVALID = 107000
    ACL_ERROR_RT_MEMORY_ADDRESS_UNALIGNED = 107008
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001
    ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899


class HsaResult(enum.IntEnum):
    """``hsa_status_t``, those of attribute calls; the numbers are not verified."""

    HSA_STATUS_SUCCESS = 0
    HSA_STATUS_ERROR_INVALID_ARGUMENT = 0x1001
    HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS = 0x100D


class DriverErrno(enum.IntEnum):
    """Results of the dialect ``kfd``: the errno of the ioctl."""

    OK = 0
    EPERM = 1
    ENOMEM = 12
    EFAULT = 14
    EINVAL = 22
    EOPNOTSUPP = 95


_ADVICE = {"cuda": CudaMemAdvise, "hip": HipMemoryAdvise, "acl": AclMemManagedAdviseType}
_ATTRIBUTES = {
    "cuda": CudaMemRangeAttribute,
    "hip": HipMemRangeAttribute,
    "acl": AclMemManagedRangeAttribute,
}
_LOCATIONS = {
    "cuda": CudaMemLocationType,
    "hip": CudaMemLocationType,
    "acl": AclMemManagedLocationType,
}
_PREFIXES = {
    CudaMemAdvise: "CU_MEM_ADVISE_",
    AclMemManagedAdviseType: "ACL_MEM_ADVISE_",
    CudaMemRangeAttribute: "CU_MEM_RANGE_ATTRIBUTE_",
    CudaMemLocationType: "CU_MEM_LOCATION_TYPE_",
    AclMemManagedLocationType: "ACL_MEM_LOCATIONTYPE_",
}


def vendor_name(member: enum.IntEnum) -> str:
    """The vendor's own spelling of an enumerator: ``CU_MEM_ADVISE_SET_READ_MOSTLY``."""
    if isinstance(member, HipMemoryAdvise):
        return "hipMemAdvise" + member.name.title().replace("_", "")
    if isinstance(member, HipMemRangeAttribute):
        return "hipMemRangeAttribute" + member.name.title().replace("_", "")
    return _PREFIXES.get(type(member), "") + member.name


def meaning(advice: CudaMemAdvise | HipMemoryAdvise | AclMemManagedAdviseType) -> Meaning:
    """Neutral word and sense of a vendor's advice."""
    return Meaning(*VENDOR_ADVICE[vendor_name(advice)][1:])


def vendors_word(meaning: Meaning) -> Meaning:
    """The meaning in the words of CUDA, HIP and ACL: access in place is their accessed-by."""
    if meaning.word == "access_in_place":
        return Meaning("accessed_by", meaning.on)
    return meaning


def convert(member: enum.IntEnum, vendor: str) -> enum.IntEnum:
    """The enumerator of another vendor with the same name.

    Parameters
    ----------
    member : IntEnum
        Advice, range attribute or location type of any vendor.
    vendor : str
        ``"cuda"``, ``"hip"`` or ``"acl"``.

    Raises
    ------
    InvalidArgumentError
        If *member* is none of these, or the vendor has nothing of that name.

    Examples
    --------
    >>> from svmcore.managed import CudaMemAdvise, convert
    >>> int(convert(CudaMemAdvise.SET_ACCESSED_BY, "acl"))
    4
    """
    for family in (_ADVICE, _ATTRIBUTES, _LOCATIONS):
        if type(member) not in family.values():
            continue
        if vendor not in family:
            raise InvalidArgumentError(f"vendor {vendor!r}: expected {', '.join(family)}")
        names = family[vendor].__members__
        if member.name not in names:
            raise InvalidArgumentError(
                f"{vendor_name(member)}: {vendor} has no such thing, expected {', '.join(names)}"
            )
        return names[member.name]
    raise InvalidArgumentError(
        f"convert {member!r}: expected advice, a range attribute or a location type of a vendor"
    )


class Location(NamedTuple):
    """A place, as ``CUmemLocation``, ``hipMemLocation`` and ``aclrtMemManagedLocation`` say it.

    The numbers are kept as given, also such as no vendor knows: some calls ignore
    the location altogether.

    Examples
    --------
    >>> from svmcore.managed import Location
    >>> Location.parse("gpu1") == Location.device(1) == Location(1, 1)
    True
    """

    type: int
    """:class:`CudaMemLocationType`."""
    id: int = 0
    """Device or NUMA node number; unused for the others."""

    @classmethod
    def invalid(cls) -> Self:
        """No place."""
        return cls(CudaMemLocationType.INVALID)

    @classmethod
    def device(cls, number: int) -> Self:
        """Device *number*."""
        return cls(CudaMemLocationType.DEVICE, number)

    @classmethod
    def host(cls) -> Self:
        """The host, any NUMA node."""
        return cls(CudaMemLocationType.HOST)

    @classmethod
    def host_numa(cls, node: int) -> Self:
        """NUMA node *node* of the host."""
        return cls(CudaMemLocationType.HOST_NUMA, node)

    @classmethod
    def host_numa_current(cls) -> Self:
        """The host NUMA node of the calling thread."""
        return cls(CudaMemLocationType.HOST_NUMA_CURRENT)

    @classmethod
    def parse(cls, place: Location | str | int | None) -> Self:
        """A location from what callers write.

        Parameters
        ----------
        place : Location, str, int or None
            ``"cpu"``, ``"host"``, ``"node1"``, ``"gpu0"``, ``"invalid"``; a device
            number, -1 for the host, -2 for none; None: none.

        Raises
        ------
        InvalidArgumentError
            For another word or type.
        """
        if place is None or place == "invalid":
            return cls.invalid()
        if isinstance(place, tuple) and len(place) == 2:
            return cls(whole("location type", place[0]), whole("location id", place[1]))
        if isinstance(place, str):
            if place in ("cpu", "host"):
                return cls.host()
            for prefix, make in (("gpu", cls.device), ("node", cls.host_numa)):
                digits = place.removeprefix(prefix)
                if digits != place and digits.isascii() and digits.isdigit():
                    return make(int(digits))
        elif hasattr(place, "__index__"):
            number = whole("location", place)
            if number == DEVICE_CPU:
                return cls.host()
            return cls.invalid() if number == DEVICE_INVALID else cls.device(number)
        raise InvalidArgumentError(
            f"location {place!r}: expected cpu, node0, gpu0 ..., invalid, a device number, "
            "-1 for the host, or a Location"
        )

    @property
    def is_host(self) -> bool:
        """Whether it is host memory of any kind."""
        return self.type in (
            CudaMemLocationType.HOST,
            CudaMemLocationType.HOST_NUMA,
            CudaMemLocationType.HOST_NUMA_CURRENT,
        )

    def __str__(self) -> str:
        if self.type == CudaMemLocationType.DEVICE:
            return f"gpu{self.id}"
        if self.type == CudaMemLocationType.HOST_NUMA:
            return f"node{self.id}"
        if self.type in CudaMemLocationType.__members__.values():
            return CudaMemLocationType(self.type).name.lower()
        return f"type {self.type}"
