"""SVM attributes: the KFD words, flags and special values, and their neutral names.

Numbers are those of the Linux user interface (``kfd_ioctl.h``). The neutral
words are what plans, advice and other vendors' dialects map onto.
Source: the AMD KFD SVM attribute document, sections 1 to 8.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = [
    "ATTRIBUTE_BY_WORD",
    "DEFAULT_FLAGS",
    "GRANULARITY_MAX",
    "LOCATION_SYSTEM",
    "LOCATION_UNDEFINED",
    "Attribute",
    "Flag",
]


class Attribute(enum.IntEnum):
    """``kfd_ioctl_svm_attr_type``: the eight attribute types."""

    PREFERRED_LOC = 0
    """Where the pages should live: a GPU, system memory or undefined."""
    PREFETCH_LOC = 1
    """Move the pages there now; the last value is remembered."""
    ACCESS = 2
    """The GPU may access; pages may migrate to it."""
    ACCESS_IN_PLACE = 3
    """The GPU may access; pages stay where they are."""
    NO_ACCESS = 4
    """The GPU may not access."""
    SET_FLAGS = 5
    """Switch flags on."""
    CLR_FLAGS = 6
    """Switch flags off."""
    GRANULARITY = 7
    """log2 of the 4 KiB pages that one fault restores."""


class Flag(enum.IntFlag):
    """``KFD_IOCTL_SVM_FLAG_*``."""

    HOST_ACCESS = 0x01
    COHERENT = 0x02
    HIVE_LOCAL = 0x04
    GPU_RO = 0x08
    """Mapped read-only on the GPU."""
    GPU_EXEC = 0x10
    GPU_READ_MOSTLY = 0x20
    GPU_ALWAYS_MAPPED = 0x40
    """Kept mapped across invalidations: queues stop and pages are mapped again."""
    EXT_COHERENT = 0x80


#: Flags of a range that nobody set flags on.
DEFAULT_FLAGS: Final = int(Flag.HOST_ACCESS | Flag.COHERENT)
#: Location value of system memory.
LOCATION_SYSTEM: Final = 0
#: Location value "no preference".
LOCATION_UNDEFINED: Final = 0xFFFFFFFF
#: Largest granularity that a range stores.
GRANULARITY_MAX: Final = 0x3F

#: Neutral word of a hint plan or trace -> KFD attribute.
ATTRIBUTE_BY_WORD: Final[dict[str, Attribute]] = {
    "preferred_location": Attribute.PREFERRED_LOC,
    "prefetch": Attribute.PREFETCH_LOC,
    "accessed_by": Attribute.ACCESS,
    "access": Attribute.ACCESS,
    "access_in_place": Attribute.ACCESS_IN_PLACE,
    "no_access": Attribute.NO_ACCESS,
    "set_flags": Attribute.SET_FLAGS,
    "clear_flags": Attribute.CLR_FLAGS,
    "granularity": Attribute.GRANULARITY,
}
