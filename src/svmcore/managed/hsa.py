"""ROCr: ``hsa_amd_svm_attribute_t`` as KFD attributes (A5)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

from ..attributes import LOCATION_SYSTEM, LOCATION_UNDEFINED, Attribute, Flag
from ..machine import Gpu
from ..units import whole
from .enums import Location
from .errors import failure

__all__ = ["HsaAttribute", "kfd_attributes"]

#: 1 GiB: what ROCr gives KFD at most.
GRANULARITY_MOST: Final = 18


class HsaAttribute(enum.IntEnum):
    """``hsa_amd_svm_attribute_t``."""

    GLOBAL_FLAG = 0
    """0 fine grained, 1 coarse grained."""
    READ_ONLY = 1
    HIVE_LOCAL = 2
    MIGRATION_GRANULARITY = 3
    PREFERRED_LOCATION = 4
    """An agent, or none."""
    PREFETCH_LOCATION = 5
    """Can be asked for, not set."""
    READ_MOSTLY = 6
    GPU_EXEC = 7
    AGENT_ACCESSIBLE = 0x200
    AGENT_ACCESSIBLE_IN_PLACE = 0x201
    AGENT_NO_ACCESS = 0x202
    ACCESS_QUERY = 0x203
    """Can be asked for, not set."""


_FLAGS: Final = {
    HsaAttribute.READ_ONLY: Flag.GPU_RO,
    HsaAttribute.HIVE_LOCAL: Flag.HIVE_LOCAL,
    HsaAttribute.READ_MOSTLY: Flag.GPU_READ_MOSTLY,
    HsaAttribute.GPU_EXEC: Flag.GPU_EXEC,
}
_ACCESS: Final = {
    HsaAttribute.AGENT_ACCESSIBLE: Attribute.ACCESS,
    HsaAttribute.AGENT_ACCESSIBLE_IN_PLACE: Attribute.ACCESS_IN_PLACE,
    HsaAttribute.AGENT_NO_ACCESS: Attribute.NO_ACCESS,
}


def kfd_attributes(
    attributes: Sequence[tuple[int, Any]], gpus: Sequence[Gpu]
) -> list[tuple[Attribute, int]]:
    """What ROCr hands to the driver.

    Parameters
    ----------
    attributes : sequence of (HsaAttribute, value)
        Value: a number, a switch, or an agent (``"cpu"``, ``"gpu0"``, None).
    gpus : sequence of Gpu
        Those of the machine, in the order of their numbers.

    Returns
    -------
    list of (Attribute, int)
        Locations, granularity and access in the order given, then flags to clear,
        then flags to set. Host access that is set wins over host access cleared.

    Raises
    ------
    ManagedError
        INCOMPATIBLE_ARGUMENTS for an attribute given twice, or two kinds of access for
        one agent; INVALID_ARGUMENT for an unknown attribute, value or agent.
    """
    plain: list[tuple[Attribute, int]] = []
    seen: set[object] = set()
    flags = {True: 0, False: 0}
    for number, value in attributes:
        attribute = _known(number)
        agent = _agent(value, gpus) if attribute in _ACCESS else None
        # Each NUMA node is an agent of its own.
        key = ("access", Location.parse(value)) if attribute in _ACCESS else attribute
        if key in seen:
            raise failure(
                "hsa",
                "incompatible",
                "A5",
                f"{attribute.name} {value!r}: expected each attribute once, and each agent once",
            )
        seen.add(key)
        if attribute == HsaAttribute.GLOBAL_FLAG:
            if value not in (0, 1):
                raise _invalid(attribute, value, "0 (fine grained) or 1 (coarse grained)")
            flags[value == 0] |= Flag.COHERENT
        elif attribute in _FLAGS:
            flags[bool(value)] |= _FLAGS[attribute]
        elif attribute == HsaAttribute.MIGRATION_GRANULARITY:
            log2 = whole("granularity", value)
            if log2 < 0:
                raise _invalid(attribute, value, "0 or more")
            plain.append((Attribute.GRANULARITY, min(log2, GRANULARITY_MOST)))
        elif attribute == HsaAttribute.PREFERRED_LOCATION:
            place = LOCATION_UNDEFINED if value is None else _agent(value, gpus)
            plain.append((Attribute.PREFERRED_LOC, place))
        elif agent == LOCATION_SYSTEM:
            flags[attribute != HsaAttribute.AGENT_NO_ACCESS] |= Flag.HOST_ACCESS
        else:
            assert agent is not None
            plain.append((_ACCESS[attribute], agent))
    flags[False] &= ~(flags[True] & Flag.HOST_ACCESS)
    for on, kind in ((False, Attribute.CLR_FLAGS), (True, Attribute.SET_FLAGS)):
        if flags[on]:
            plain.append((kind, int(flags[on])))
    return plain


def _known(number: int) -> HsaAttribute:
    settable = set(HsaAttribute) - {HsaAttribute.PREFETCH_LOCATION, HsaAttribute.ACCESS_QUERY}
    if number not in settable:
        names = ", ".join(f"{member.name} {int(member)}" for member in sorted(settable))
        raise failure("hsa", "", "A5", f"attribute {number!r}: expected {names}")
    return HsaAttribute(number)


def _agent(value: Any, gpus: Sequence[Gpu]) -> int:
    """KFD location value of an agent."""
    place = Location.parse(value)
    if place.is_host:
        return LOCATION_SYSTEM
    if place != Location.device(place.id) or not 0 <= place.id < len(gpus):
        raise failure(
            "hsa", "", "A5", f"agent {value!r}: expected cpu, or a GPU of 0 to {len(gpus) - 1}"
        )
    return gpus[place.id].id


def _invalid(attribute: HsaAttribute, value: object, expected: str) -> Exception:
    return failure("hsa", "", "A5", f"{attribute.name} {value!r}: expected {expected}")
