"""What a policy written in Python sees of a fault, and what it may order.

Addresses and sizes are bytes in whole 4 KiB pages, intervals half-open. A
processor is a number as the records have it: 0 the CPU, 1 + i GPU i.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "Advice",
    "Drop",
    "Duplicate",
    "Fail",
    "Fault",
    "Map",
    "Mark",
    "Move",
    "Retry",
    "Unmap",
]


class Fault(NamedTuple):
    """A processor touched a page that it cannot reach as things are."""

    addr: int
    """First byte of the page."""
    by: int
    """Processor."""
    write: bool
    """Whether it writes."""


class Advice(NamedTuple):
    """What the user advised for a page."""

    preferred: int | None
    """Processor where the page should live; ``None`` without advice."""
    accessed_by: tuple[int, ...]
    """Processors that are to keep access, wherever the page is."""
    in_place: tuple[int, ...]
    """Processors that are to access the page where it is."""
    no_access: tuple[int, ...]
    """Processors that may not access."""
    read_mostly: bool
    """Reading processors may get copies."""
    granularity: int | None
    """log2 of the 4 KiB pages that a fault serves; ``None`` without advice."""


class Move(NamedTuple):
    """Make processor *to*'s memory the home of the pages; whoever had them mapped loses them.

    Copies of the pages are dropped. Pages stay where no room can be made.
    """

    start: int
    size: int
    to: int


class Duplicate(NamedTuple):
    """Give processor *to* a copy to read; all mappings of the pages become read-only."""

    start: int
    size: int
    to: int


class Drop(NamedTuple):
    """Take processor *at*'s copies away, and its mapping of them. Nothing is copied."""

    start: int
    size: int
    at: int


class Map(NamedTuple):
    """Write the pages into the page tables of processor *by*.

    Pages that lie where *by* does not reach them are left out; pages that have
    copies, or whose mapping forbids writing, are mapped to read.
    """

    start: int
    size: int
    by: int
    write: bool = True


class Unmap(NamedTuple):
    """Take the pages out of the page tables of processor *by*."""

    start: int
    size: int
    by: int


class Mark(NamedTuple):
    """Remember a number of 0 to 2**32 - 1 for the pages (``view.mark`` reads it)."""

    start: int
    size: int
    value: int


class Retry(NamedTuple):
    """Deliver the fault again at modelled time *t_ns*."""

    t_ns: int


class Fail(NamedTuple):
    """The access is fatal: ``"EACCES"``, ``"EPERM"`` or ``"EFAULT"``."""

    code: str = "EACCES"
