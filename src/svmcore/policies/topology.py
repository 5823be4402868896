"""Which processor reaches which memory, and how: what UVM decides residency by.

Processors are numbers, 0 the CPU and 1 + i GPU i; sets of them are bit masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidArgumentError
from ..machine import Gpu

__all__ = ["MOST_GPUS", "Topology", "topology_of"]

#: A set of processors is one 64-bit word, the CPU included.
MOST_GPUS = 63


@dataclass(frozen=True)
class Topology:
    """Relations between processors, a bit mask for each.

    Parameters
    ----------
    can : tuple of int
        ``can[a]``: memories that processor *a* may address, its own included.
    fast : tuple of int
        ``fast[a]``: processors at the other end of a fast link (NVLink, C2C).
    atomics : tuple of int
        ``atomics[m]``: processors with native atomics on memory *m*.
    siblings : tuple of int
        ``siblings[a]``: other partitions of the same device (SMC peers).
    memory : int
        Processors with memory of their own.
    """

    can: tuple[int, ...]
    fast: tuple[int, ...]
    atomics: tuple[int, ...]
    siblings: tuple[int, ...]
    memory: int

    def reaching(self, memory: int) -> int:
        """Processors that may address a memory."""
        return sum(1 << a for a, mask in enumerate(self.can) if mask >> memory & 1)

    def closest(self, mask: int, src: int) -> int:
        """The memory of *mask* that *src* reads from: itself, a sibling, over a fast link,
        addressable at all, else the lowest; GPUs before the CPU within each.

        Source: ``uvm_processor_mask_find_closest_id``.
        """
        if mask >> src & 1:
            return src
        for near in (self.siblings[src], self.fast[src], self.can[src]):
            here = mask & near
            if here:
                gpus = here & ~1
                return lowest(gpus) if gpus else 0
        return lowest(mask)


def lowest(mask: int) -> int:
    """The lowest processor of a set that is not empty."""
    return (mask & -mask).bit_length() - 1


def topology_of(gpus: Sequence[Gpu], *, peer_access: bool = False) -> Topology:
    """The relations between the processors of a machine.

    GPUs of one hive have NVLink between them, a ``coherent`` GPU has a coherent
    link to the CPU, an ``apu`` has no memory of its own.

    Parameters
    ----------
    gpus : sequence of Gpu
    peer_access : bool
        GPUs without a link may address each other over PCIe.

    Raises
    ------
    InvalidArgumentError
        For more than 63 GPUs.
    """
    if len(gpus) > MOST_GPUS:
        raise InvalidArgumentError(
            f"policy uvm: {len(gpus)} GPUs, expected at most {MOST_GPUS} of one process"
        )
    count = 1 + len(gpus)
    can = [1] + [1 | 1 << p for p in range(1, count)]
    fast = [0] * count
    atomics = [1 << p for p in range(count)]
    siblings = [0] * count
    for i, gpu in enumerate(gpus, 1):
        if gpu.coherent:
            can[0] |= 1 << i
            fast[0] |= 1 << i
            fast[i] |= 1
            atomics[0] |= 1 << i
            atomics[i] |= 1
        for j, other in enumerate(gpus, 1):
            if i == j:
                continue
            linked = gpu.hive != 0 and gpu.hive == other.hive
            sibling = gpu.adev >= 0 and gpu.adev == other.adev
            if linked or sibling or peer_access:
                can[i] |= 1 << j
            if linked:
                fast[i] |= 1 << j
            if sibling:
                siblings[i] |= 1 << j
            if linked or sibling:
                atomics[i] |= 1 << j
    memory = 1 | sum(1 << i for i, gpu in enumerate(gpus, 1) if not gpu.apu)
    return Topology(tuple(can), tuple(fast), tuple(atomics), tuple(siblings), memory)
