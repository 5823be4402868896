"""The AMD KFD SVM driver as a policy; its decisions are compiled in ``_kfd``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..attributes import Attribute, Flag
from ..errors import InvalidArgumentError
from ..machine import Machine
from .base import Policy, check_memory_parameters, register
from .kernels import kernel_rules

__all__ = ["Kfd"]

#: Flags that change where pages go, or how they are mapped.
_DECIDING_FLAGS = Flag.GPU_RO | Flag.GPU_ALWAYS_MAPPED


@register("kfd")
@dataclass(frozen=True)
class Kfd(Policy):
    """AMD KFD SVM: ranges with attributes, faults by granularity window.

    Parameters
    ----------
    kernel : str
        Driver version: 7.3, 6.12, 6.1 or a point release of one.
    xnack : bool
        GPU page faults are retried (on) or fatal (off).
    granularity : int
        Process default granularity, log2 of 4 KiB pages, 0 to 27 (the module
        parameter ``svm_default_granularity``).
    max_svm_range_pages : int or None
        Largest range made at once; None: a 32nd of the smallest GPU memory.
    evict_on_full : bool
        A full GPU memory evicts the oldest objects; off, the move fails and
        pages stay in system memory.
    eviction : str
        Which VRAM object goes first: ``driver`` (the oldest), ``fifo`` (the same,
        written apart), ``lru``, ``mru``, ``lfu``, ``random`` or ``second_chance``.
        A use is a fault or a move, since the driver sees no touch of a mapped page.
        Others than ``driver`` go the long way and are slower to compute.
    seed : int
        Of the order ``random``.
    quota_pages : int or None
        Most pages of VRAM objects that the process has on one GPU; None: no limit.

    Source
    ------
    AMD KFD SVM attribute document and driver; ``docs/explain/kfd.md``.
    """

    # GPUs exchange pages by way of system memory, and faults come one by one.
    costs_used: ClassVar[tuple[str, ...]] = (
        "fault_ns",
        "unmap_ns",
        "migrate_latency_ns",
        "migrate_bytes_per_s",
        "to_device_curve",
        "to_host_curve",
        "remote_access_ns",
        "remote_bytes_per_s",
        "evict_ns",
        "map_ns",
    )

    kernel: str = "7.3"
    xnack: bool = True
    granularity: int = 9
    max_svm_range_pages: int | None = None
    evict_on_full: bool = True
    eviction: str = "driver"
    seed: int = 0
    quota_pages: int | None = None

    KEEPER: ClassVar[str] = "_kfd_state"

    def __post_init__(self) -> None:
        kernel_rules(self.kernel)
        if not 0 <= self.granularity <= 27:
            raise InvalidArgumentError(
                f"policy kfd: granularity = {self.granularity}, expected 0 to 27"
            )
        if self.max_svm_range_pages is not None and self.max_svm_range_pages < 1:
            raise InvalidArgumentError(
                f"policy kfd: max_svm_range_pages = {self.max_svm_range_pages}, expected 1 or more"
            )

        from .._evict import ORDERS

        check_memory_parameters(self, ("driver", *ORDERS))

    def unheeded(self, process: Any, attribute: int, value: int) -> str:
        """Flags that the driver keeps for others: they say nothing of faults and moves."""
        if attribute not in (Attribute.SET_FLAGS, Attribute.CLR_FLAGS) or value & _DECIDING_FLAGS:
            return ""
        return "kfd keeps the flag and decides nothing by it, though the memory becomes a range"

    def create(self, machine: Machine, node: Any = None) -> Any:
        """A compiled process under the driver, with the machine's costs."""
        from ._kfd import KfdProcess

        process = KfdProcess(
            machine.gpus,
            xnack=self.xnack,
            kernel=self.kernel,
            max_svm_range_pages=self.max_svm_range_pages,
            default_granularity=self.granularity,
            evict_on_full=self.evict_on_full,
            node=node,
            eviction=self.eviction,
            seed=self.seed,
            quota_pages=self.quota_pages,
        )
        process.set_costs(machine.costs)
        return process
