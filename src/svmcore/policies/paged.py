"""Base of the policies that are written in Python: units of device memory, faults one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..attributes import Attribute
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..records import processor_name
from ..units import bytes_of
from .actions import Drop, Duplicate, Fail, Fault, Map, Mark, Move, Retry, Unmap
from .base import Policy, check_memory_parameters

if TYPE_CHECKING:
    from ._paged import View

__all__ = ["Action", "Paged"]

Action = Move | Duplicate | Drop | Map | Unmap | Mark | Retry | Fail

_UNITS = 18


@dataclass(frozen=True)
class Paged(Policy):
    """A policy of which :meth:`service` is written in Python; the rest is compiled.

    Touches of pages that a processor reaches never come here. Device memory is
    taken and given up in units; a full device evicts by one of the orders.

    Parameters
    ----------
    unit : int
        log2 of the 4 KiB pages of a unit of device memory, 0 to 18; 9 is 2 MiB.
    granularity : int
        log2 of the pages of :meth:`View.window`, 0 to 63.
    eviction : str
        ``fifo``, ``lru``, ``mru``, ``lfu``, ``random`` or ``second_chance``. Uses are
        accesses, those without a fault too.
    seed : int
        Of ``random``.
    quota_pages : int or None
        Most pages of one GPU's memory that the process takes; None: no limit.

    Raises
    ------
    InvalidArgumentError
        If a parameter is out of range.
    """

    # Faults are served one by one.
    costs_used: ClassVar[tuple[str, ...]] = (
        "fault_ns",
        "unmap_ns",
        "migrate_latency_ns",
        "migrate_bytes_per_s",
        "to_device_curve",
        "to_host_curve",
        "peer_latency_ns",
        "peer_bytes_per_s",
        "peer_curve",
        "remote_access_ns",
        "remote_bytes_per_s",
        "evict_ns",
        "map_ns",
    )

    unit: int = 9
    granularity: int = 9
    eviction: str = "lru"
    seed: int = 0
    quota_pages: int | None = None

    KEEPER: ClassVar[str] = "_paged_state"

    def __post_init__(self) -> None:
        from .._evict import ORDERS

        for key, most in (("unit", _UNITS), ("granularity", 63)):
            value = getattr(self, key)
            if not 0 <= value <= most:
                raise InvalidArgumentError(
                    f"policy {self.name}: {key} = {value!r}, expected 0 to {most}"
                )
        check_memory_parameters(self, ORDERS)

    def service(self, view: View, batch: Sequence[Fault]) -> Iterable[Action]:
        """What to do about the faults, in order; it must not change anything itself.

        Parameters
        ----------
        view : View
            Mappings, homes, copies, advice, marks, links, time.
        batch : sequence of Fault
            One, as this driver takes them one by one.

        Returns
        -------
        iterable of Action
            Of :mod:`svmcore.policies.actions`. A fault that they leave is
            delivered again, 16 times at most, then it is fatal.
        """
        raise NotImplementedError  # the one method that every policy of this kind gives

    def prefetch(self, view: View, start: int, size: int, to: int) -> Iterable[Action]:
        """What a prefetch of pages of one mapping does; by default they move and are mapped."""
        return [Move(start, size, to), Map(start, size, to)] if to else [Move(start, size, to)]

    def explain(
        self, process: Any, page: int, processor: int, write: int
    ) -> tuple[str, str, str | None, tuple[int, int] | None]:
        """What a touch would do, for :meth:`svmcore.engine.Space.explain`; nothing changes."""
        rule, text, to, pages = process.explain(page, processor, bool(write))
        location = None if to is None else processor_name(to)
        return rule, text, location, None if pages is None else bytes_of(*pages)

    def unheeded(self, process: Any, attribute: int, value: int) -> str:
        """All advice but prefetches, where :meth:`service` never looked at any."""
        if process.advice_read or attribute == Attribute.PREFETCH_LOC:
            return ""
        return f"{self.name} never looked at advice"

    def create(self, machine: Machine, node: Any = None) -> Any:
        """A process that asks this policy, with the machine's costs."""
        from ._paged import PagedProcess

        process = PagedProcess(machine, self, node)
        process.set_costs(machine.costs)
        return process
