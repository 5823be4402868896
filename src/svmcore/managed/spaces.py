"""What HIP and KFD share: managed memory in a space of policy ``kfd``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..attributes import LOCATION_UNDEFINED, Attribute, Flag
from ..engine import Space
from ..errors import Errno, InvalidArgumentError, SvmError, error_from_errno
from ..machine import Machine
from ..reference import RangeMap
from ..units import PAGE_SHIFT, PAGE_SIZE, whole
from .enums import (
    CudaMemLocationType,
    Location,
)
from .memory import AdviseResult, ManagedMemory, Options, PageView, Touch
from .state import HOST

__all__ = ["Noted", "SpaceMemory"]


class Noted(NamedTuple):
    """What user mode remembers of a page."""

    cpu_accessed: bool = False
    last_prefetch: Location | None = None
    node: int = -1
    """NUMA node that a prefetch put the page on, -1 none."""


class SpaceMemory(ManagedMemory):
    """What HIP and KFD share: a space of policy ``kfd``.

    Parameters
    ----------
    semantics : str
    machine : str, Path or Machine
    space : Space, optional
        An existing space of policy ``kfd``; one of its own when not given.
    **settings
        :class:`Options`, and parameters of the policy.
    """

    def __init__(
        self,
        semantics: str,
        machine: str | Path | Machine,
        *,
        space: Space | None,
        settings: dict[str, Any],
    ) -> None:
        options = {key: settings[key] for key in Options.__annotations__ if key in settings}
        settings = {key: value for key, value in settings.items() if key not in options}
        if space is not None:
            if settings:
                raise InvalidArgumentError(
                    "a space and settings of its policy: expected one of them"
                )
            machine = space.machine
        super().__init__(semantics, machine, **options)
        self.space = Space(self.machine, policy="kfd", **settings) if space is None else space
        if self.space.policy.name != "kfd":
            raise InvalidArgumentError(
                f"space of policy {self.space.policy.name}: expected policy kfd"
            )
        self._noted = RangeMap(merge=True)
        self._faulted = 0

    @property
    def granule(self) -> int:
        """Bytes to which spans are rounded outward."""
        return PAGE_SIZE

    def _make(self, addr: int, size: int) -> None:
        self.space.map(addr, size)
        self._note(addr, addr + size, Noted())

    def _unmake(self, addr: int, size: int) -> None:
        self.space.unmap(addr, size)
        self._noted.assign(addr >> PAGE_SHIFT, (addr + size - 1) >> PAGE_SHIFT, 0)

    # ---- what user mode remembers ------------------------------------------------------

    def _note(self, start: int, end: int, value: Noted) -> None:
        self._noted.assign(start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT, value)

    def _notes(self, start: int, end: int) -> Iterator[tuple[int, int, Noted]]:
        """``(start, end, value)`` in bytes of what is noted of the span."""
        first, last = start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT
        for low, high, value in list(self._noted.items(first, last)):
            yield max(low, first) << PAGE_SHIFT, (min(high, last) + 1) << PAGE_SHIFT, value

    def _change_notes(self, start: int, end: int, **values: Any) -> None:
        for low, high, value in self._notes(start, end):
            self._note(low, high, value._replace(**values))

    # ---- attributes --------------------------------------------------------------------

    def _value(self, place: Location | None) -> int:
        """KFD location value of a place."""
        if place is None or place.type == CudaMemLocationType.INVALID:
            return LOCATION_UNDEFINED
        return 0 if place.is_host else self.machine.gpus[place.id].id

    def _set(self, start: int, end: int, attrs: Sequence[tuple[Attribute, int]]) -> AdviseResult:
        """Set attributes, and say what that did."""
        space = self.space
        before, ranges = space.counters(), len(space.process)
        try:
            space.set_attr(start, end - start, list(attrs))
        except SvmError as error:
            kind = "not_allocated" if error.code == "EFAULT" else "attribute"
            kind = "memory" if error.code in ("ENOMEM", "ENOSPC") else kind
            raise self._refused(kind, "KFD", str(error)) from error
        after = space.counters()
        return AdviseResult(
            self.success,
            pages=(end - start) >> PAGE_SHIFT,
            ranges_split=len(space.process) - ranges,
            bytes_migrated=after["migrated_bytes"] - before["migrated_bytes"],
        )

    # ---- touches and views ---------------------------------------------------------------

    def _touch(self, start: int, end: int, processor: int, write: bool) -> Touch:
        by = "cpu" if processor == HOST else f"gpu{processor - 1}"
        result = self.space.access(start, end - start, by, write)
        if not result.ok:
            where = result.addr or start
            raise error_from_errno(
                Errno[result.code],
                f"access {start:#x} by {by}: {result.reason} at {where:#x}: {result.code}, "
                "the driver reports a memory violation",
            )
        moved = result.moved_pages << PAGE_SHIFT
        if moved:
            self._forget_nodes(start, end)
        window = PAGE_SIZE << self.space.policy.settings()["granularity"]
        faulted = min(result.faults * window, end - start)
        self._faulted += faulted
        return Touch(result.faults, faulted, result.remote_pages << PAGE_SHIFT, (), moved)

    def _forget_nodes(self, start: int, end: int) -> None:
        """Pages that went to a device are on no NUMA node any more."""
        there = self._allocation(start)
        low, high = (there[0], sum(there)) if there else (start, end)
        for begin, stop, value in self._notes(low, high):
            if value.node < 0:
                continue
            for addr, size, where in self.space.residency(begin, stop - begin):
                if where.startswith("gpu"):
                    self._note(addr, addr + size, value._replace(node=-1))

    def page(self, addr: int) -> PageView:
        """State of the page at *addr*."""
        start, end = self._inside("page", whole("addr", addr), 1)
        space = self.space
        ((_, _, where),) = space.residency(start, PAGE_SIZE)
        attrs = space.get_attr(start, PAGE_SIZE)
        ((_, _, noted),) = self._notes(start, end)
        process, page = space.process, start >> PAGE_SHIFT
        gpus = range(self.devices)
        # The CPU reads and writes what lies in system memory.
        cpu = ("cpu",) if where == "cpu" else ()
        preferred = attrs["preferred"]
        return PageView(
            copies=() if where == "absent" else (where,),
            mapped=cpu + tuple(f"gpu{i}" for i in gpus if process.mapped(i, page, False)),
            writable=cpu + tuple(f"gpu{i}" for i in gpus if process.mapped(i, page, True)),
            owner=None if where == "absent" else where,
            read_mostly=Flag.GPU_READ_MOSTLY in attrs["flags"],
            preferred=None if preferred == "undefined" else Location.parse(preferred),
            accessed_by=("cpu",) * noted.cpu_accessed
            + tuple(name for name, kind in attrs["access"].items() if kind == "access_in_place"),
            last_prefetch=noted.last_prefetch,
            node=max(noted.node, 0),
        )

    def _where(self, addr: int) -> Location:
        start = addr // PAGE_SIZE * PAGE_SIZE
        ((_, _, where),) = self.space.residency(start, PAGE_SIZE)
        if where == "absent":
            return Location.invalid()
        if where == "cpu" and self.nodes > 1:
            ((_, _, noted),) = self._notes(start, start + PAGE_SIZE)
            return Location.host_numa(max(noted.node, 0))
        return Location.parse(where)

    def counters(self) -> dict[str, int]:
        """Totals since the beginning, by name; a KFD range has one copy, so none is made."""
        totals = self.space.counters()
        return {
            "faults": totals["faults"],
            "faulted_bytes": self._faulted,
            "remote_bytes": totals["remote_accesses"] << PAGE_SHIFT,
            "bytes_copied": 0,
            "bytes_migrated": totals["migrated_bytes"],
            "bytes_to_device": totals["bytes_to_device"],
            "bytes_to_host": totals["bytes_to_host"],
            "evicted_bytes": totals["evicted_bytes"],
        }

    def _prefetch(self, start: int, end: int, place: Location | None) -> AdviseResult:
        result = self._set(start, end, [(Attribute.PREFETCH_LOC, self._value(place))])
        node = -1
        if place is not None and place.is_host:
            node = place.id if place.type == CudaMemLocationType.HOST_NUMA else self.current_node
        self._change_notes(start, end, last_prefetch=place, node=node)
        return result
