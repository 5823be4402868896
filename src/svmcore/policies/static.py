"""Baselines: simple rules to measure a driver against, each a few lines of Python.

Copy one to begin a policy of your own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .actions import Drop, Duplicate, Fail, Fault, Map, Mark, Move
from .base import register
from .paged import Action, Paged

if TYPE_CHECKING:
    from ._paged import View

__all__ = ["Advised", "AlwaysMigrate", "FirstTouch", "MigrateOnceThenPin", "NeverMigrate"]


def _served(start: int, size: int, by: int, home: int) -> Iterable[Action]:
    """Map the window, whose page will lie at *home*; the CPU has system memory mapped anyway."""
    if by or home > 0:
        yield Map(start, size, by)


@register("always_migrate")
@dataclass(frozen=True)
class AlwaysMigrate(Paged):
    """Each fault moves its window to the processor that touched.

    Source
    ------
    Own baseline; case 28.
    """

    def service(self, view: View, batch: Sequence[Fault]) -> Iterable[Action]:
        """Move, then map."""
        for fault in batch:
            start, size = view.window(fault.addr)
            yield Move(start, size, fault.by)
            yield from _served(start, size, fault.by, fault.by)


@register("first_touch")
@dataclass(frozen=True)
class FirstTouch(Paged):
    """Pages go to the memory of the GPU that touches them first, and stay.

    Others map them where they are if they reach them there; if not, the pages
    come to system memory, which every processor reaches.
    """

    def service(self, view: View, batch: Sequence[Fault]) -> Iterable[Action]:
        """Move what is in system memory, map what is not."""
        for fault in batch:
            start, size = view.window(fault.addr)
            home = view.where(fault.addr)
            to = fault.by if home <= 0 else _in_reach(view, fault, home)
            if to != home:
                yield Move(start, size, to)
            yield from _served(start, size, fault.by, to)


@register("migrate_once_then_pin")
@dataclass(frozen=True)
class MigrateOnceThenPin(Paged):
    """Pages move to the second processor that touches them, and stay there for good.

    The first touch places them. A fault of another processor moves them once;
    from then on everybody maps them where they are. For a processor that does not
    reach them there they come to system memory, and an eviction brings them there
    too: both for good.

    Source
    ------
    Own baseline; case 28.
    """

    def service(self, view: View, batch: Sequence[Fault]) -> Iterable[Action]:
        """The mark of a page says whether it was moved."""
        for fault in batch:
            start, size = view.window(fault.addr)
            home = view.where(fault.addr)
            pinned = view.mark(fault.addr) != 0
            to = _in_reach(view, fault, home) if pinned else fault.by
            if to != home:
                yield Move(start, size, to)
            if home > 0 and not pinned:
                yield Mark(start, size, 1)
            yield from _served(start, size, fault.by, to)


@register("never_migrate")
@dataclass(frozen=True)
class NeverMigrate(Paged):
    """Pages stay in system memory; GPUs read and write them over the link."""

    def service(self, view: View, batch: Sequence[Fault]) -> Iterable[Action]:
        """Map; what a prefetch brought to a GPU comes back for whoever does not reach it."""
        for fault in batch:
            start, size = view.window(fault.addr)
            home = view.where(fault.addr)
            to = _in_reach(view, fault, home)
            if to != max(home, 0):
                yield Move(start, size, to)
            yield from _served(start, size, fault.by, to)


@register("advised")
@dataclass(frozen=True)
class Advised(Paged):
    """Does what the user advised, no more; without advice, as ``always_migrate``.

    Read-mostly pages are copied for whoever reads them, and a write takes the
    copies away. Pages with a preferred location go there and are mapped from
    there where that is in reach. Accessed-by and in-place processors map pages
    where they are.

    Source
    ------
    Own baseline; case 29.
    """

    def service(self, view: View, batch: Sequence[Fault]) -> Iterable[Action]:
        """The window is the advised granularity."""
        for fault in batch:
            advice = view.advice(fault.addr)
            if fault.by in advice.no_access:
                yield Fail("EACCES")
                continue
            start, size = view.window(fault.addr, advice.granularity)
            home = view.where(fault.addr)
            if advice.read_mostly and not fault.write and home >= 0:
                yield Duplicate(start, size, fault.by)
                if fault.by:
                    yield Map(start, size, fault.by, write=False)
                continue
            if fault.write:
                for holder in view.copies(fault.addr):
                    yield Drop(start, size, holder)
            stays = fault.by in (*advice.accessed_by, *advice.in_place) and home >= 0
            to = fault.by if advice.preferred is None else advice.preferred
            if stays and view.reaches(fault.by, home):
                to = home
            elif not view.reaches(fault.by, to):
                to = fault.by
            if to != home:
                yield Move(start, size, to)
            yield from _served(start, size, fault.by, to)


def _in_reach(view: View, fault: Fault, home: int) -> int:
    """Where pages that stay are mapped: their home, or system memory where that is out of reach."""
    return home if home > 0 and view.reaches(fault.by, home) else 0
