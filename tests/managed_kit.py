"""What the tests of managed memory share: machines, and pages in few words."""

from __future__ import annotations

from svmcore.machine import Gpu, Machine
from svmcore.managed import managed_memory

MIB = 1 << 20
PAGE = 2 * MIB


def machine(devices=3, *, hive=0, coherent=False, vram_mib=1024):
    """A node of equal GPUs."""
    gpus = tuple(
        Gpu(id=100 + i, vram_pages=vram_mib << 8, hive=hive, coherent=coherent)
        for i in range(devices)
    )
    return Machine("test", gpus)


def memory(semantics, *, devices=3, hive=0, coherent=False, vram_mib=1024, **options):
    """Managed memory on such a node."""
    node = machine(devices, hive=hive, coherent=coherent, vram_mib=vram_mib)
    return managed_memory(semantics, node, **options)


def kinds(result):
    """Kinds of the events of a result or touch, in order."""
    return [effect.event.kind for effect in result.effects]


def touch(space, ptr, *processors, write=False):
    """Whether each processor's access of one page is a hit."""
    return [space.access(ptr, by=who, write=write).hit for who in processors]


def query(space, ptr, name, size=None, data_size=4):
    """An attribute of one granule, or of *size* bytes."""
    return space.mem_range_get_attribute(name, ptr, size or space.granule, data_size)
