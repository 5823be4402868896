"""What a managed page is, what can be done to it, and what that did.

A page of managed memory is three advised values (read mostly, preferred
location, accessed-by) and its residency. Sets of processors are bit masks: bit
0 the host, bit ``1 + i`` device *i*, as trace records count them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..machine import Machine
from .enums import Location

__all__ = [
    "HOST",
    "NOBODY",
    "Event",
    "Page",
    "ReadMostly",
    "Step",
    "Topology",
    "bit",
    "members",
    "place_of",
    "processor_of",
    "word_of",
]

#: Processor number of the host.
HOST: Final = 0
#: Owner of a page that nobody touched.
NOBODY: Final = -1


def bit(processor: int) -> int:
    """Mask of one processor."""
    return 1 << processor


def members(mask: int) -> Iterator[int]:
    """Processors of a mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def processor_of(place: Location) -> int:
    """Processor number of a host or device location."""
    return HOST if place.is_host else place.id + 1


def place_of(processor: int) -> Location:
    """Location of a processor number."""
    return Location.host() if processor == HOST else Location.device(processor - 1)


def word_of(processor: int) -> str:
    """``host`` or the device number, as the vector files have it."""
    return "host" if processor == HOST else str(processor - 1)


class ReadMostly(enum.IntEnum):
    """Read duplication as CUDA's driver keeps it; ACL uses the first two."""

    UNSET = 0
    ENABLED = 1
    DISABLED = 2
    """Taken back: pages never duplicate again."""


class Page(NamedTuple):
    """State of one page. The first three values are advice, the others residency."""

    read_mostly: int = ReadMostly.UNSET
    preferred: Location | None = None
    accessed_by: int = 0
    """Mask of the processors that were advised."""
    copies: int = 0
    """Mask of the processors whose memory has the data."""
    mapped: int = 0
    """Mask of the processors that read without a fault."""
    writable: int = 0
    """Mask of those that write without a fault; part of ``mapped``."""
    owner: int = NOBODY
    """Who has the data first: the toucher, the mover, the host under ACL's read mostly."""
    last_prefetch: Location | None = None
    node: int = 0
    """NUMA node of the host copy."""
    discarded: bool = False
    """The contents are not needed until written."""

    def advised(self, step: Step) -> Page:
        """The page with the step's advice stored and nothing else done."""
        if step.word == "read_mostly":
            return self._replace(read_mostly=ReadMostly.ENABLED if step.on else ReadMostly.DISABLED)
        if step.word == "preferred_location":
            return self._replace(preferred=step.place if step.on else None)
        if step.word == "accessed_by" and step.place is not None:
            mask = bit(processor_of(step.place))
            bits = self.accessed_by | mask if step.on else self.accessed_by & ~mask
            return self._replace(accessed_by=bits)
        return self


#: How many of a page's values are advice.
ADVICE_FIELDS: Final = 3


class Step(NamedTuple):
    """One thing done to a page."""

    word: str
    """``read_mostly``, ``preferred_location``, ``accessed_by``, ``prefetch``, ``discard``,
    ``access``, ``evict``, ``fill``."""
    on: bool = True
    """Set or unset; of an access: it writes."""
    place: Location | None = None
    """The location of advice and prefetch."""
    by: int = HOST
    """The processor of an access, an eviction or a fill."""


class Event(NamedTuple):
    """One effect on one page.

    ``populate``: memory without contents at *target* (first touch); ``alloc``: the
    same, ahead of the first touch; ``migrate``: moved by a fault; ``move``: moved by
    a prefetch; ``copy``: the host gets a copy (*source* is a device); ``take``: a copy
    is made that takes over; ``duplicate``: a read-only copy is added; ``free``: the
    copies of *mask* go; ``evict``: memory pressure moves *source* to the host;
    ``map``: *target* maps memory of another; ``warn``: a conflict, stored all the same.
    """

    kind: str
    source: int = NOBODY
    target: int = NOBODY
    mask: int = 0


#: Events that copy a page's bytes.
COPYING: Final = frozenset(("migrate", "move", "copy", "take", "duplicate", "evict"))
#: Those that leave no copy behind.
MOVING: Final = frozenset(("migrate", "move", "evict"))
#: Those that take memory at the target.
TAKING: Final = COPYING | {"populate", "alloc"}


@dataclass(frozen=True)
class Topology:
    """Which memories each processor can reach, and what each device holds.

    Parameters
    ----------
    can : tuple of int
        For each processor the mask of the memories that it can address.
    capacity : tuple of int
        4 KiB pages of each device's memory.
    """

    can: tuple[int, ...]
    capacity: tuple[int, ...]

    @classmethod
    def of(cls, machine: Machine) -> Topology:
        """The topology of a machine: hives reach each other, coherent memory the CPU."""
        gpus = machine.gpus
        host = bit(HOST)
        can = []
        for i, gpu in enumerate(gpus):
            reach = host | bit(i + 1)
            for j, other in enumerate(gpus):
                if gpu.hive and gpu.hive == other.hive:
                    reach |= bit(j + 1)
            can.append(reach)
            host |= bit(i + 1) if gpu.coherent else 0
        return cls((host, *can), tuple(gpu.vram_pages for gpu in gpus))

    def reaches(self, processor: int, memory: int) -> bool:
        """Whether *processor* can address *memory*."""
        return bool(self.can[processor] & bit(memory))

    def closest(self, copies: int, processor: int) -> int:
        """The copy that *processor* would read: its own, a peer's, the host's, the lowest."""
        if copies & bit(processor):
            return processor
        near = copies & self.can[processor] & ~bit(HOST)
        return next(members(near or copies))
