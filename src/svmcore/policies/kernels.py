"""What differs between versions of the KFD driver, as one table of switches.

Source: the version comparison of the driver (7.3, 6.12 and 6.1 columns); each
field names one row of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgumentError

__all__ = ["KERNELS", "KernelRules", "kernel_rules"]


@dataclass(frozen=True)
class KernelRules:
    """The rows in which driver versions differ."""

    name: str
    #: GPU faults move and map the granularity window; else the whole range.
    window_migration: bool = True
    #: A CPU fault splits the range at granularity borders and moves that piece.
    cpu_fault_splits: bool = False
    #: A prefetch to the place where the range already is does nothing.
    prefetch_same_is_noop: bool = False
    #: A failed prefetch to VRAM is the call's result; else it is swallowed.
    prefetch_failure_is_error: bool = False
    #: An error in set_attr's mapping loop ends the loop; else the last one is returned.
    mapping_error_stops: bool = False
    #: Default granularity and unregistered blocks follow the module parameter; else 9.
    granularity_parameter: bool = True
    #: Pieces that cut a 2 MiB mapping are mapped again: "" never; a range's last
    #: aligned border is found from its "end" (last + 1) or from "last", where a head
    #: that is cut off also counts by its last page.
    remap_test: str = "end"
    #: Equal attributes leave a range untouched: "always", or only once it is mapped.
    same_needs_mapping: bool = True
    #: ACCESS, ACCESS_IN_PLACE and NO_ACCESS map again with XNACK on too.
    access_remaps_with_xnack: bool = False
    #: NO_ACCESS takes the GPU's mapping away in the same call.
    no_access_unmaps: bool = True
    #: With XNACK on a range that no GPU would get is mapped on the GPUs with access
    #: if it is always mapped; else only if it is mapped already.
    always_mapped_maps: bool = True
    #: Mapped state is a bit a GPU; else one bit for the range.
    mapped_per_gpu: bool = True
    #: Stale faults are known by time stamp; else munmap drains all of them.
    stale_by_timestamp: bool = True
    #: A fault that ends in EAGAIN counts as a fault.
    again_counted: bool = False
    #: An APU that prefers system memory keeps pages there.
    apu_prefers_system: bool = True
    #: A migration to VRAM reserves against the GPU's limit first.
    reserves_vram: bool = True
    #: start + size past 2**64 is EOVERFLOW; else the address check says EFAULT.
    overflow_check: bool = True
    #: An eviction of a VRAM object is reported as an event (synchronous in the memory manager).
    reports_eviction: bool = True


KERNELS: dict[str, KernelRules] = {
    "7.3": KernelRules("7.3"),
    "6.12": KernelRules(
        "6.12",
        remap_test="last",
        no_access_unmaps=False,
        mapped_per_gpu=False,
        reports_eviction=False,
    ),
    "6.1": KernelRules(
        "6.1",
        window_migration=False,
        cpu_fault_splits=True,
        prefetch_same_is_noop=True,
        prefetch_failure_is_error=True,
        mapping_error_stops=True,
        granularity_parameter=False,
        remap_test="",
        same_needs_mapping=False,
        access_remaps_with_xnack=True,
        no_access_unmaps=False,
        always_mapped_maps=False,
        mapped_per_gpu=False,
        stale_by_timestamp=False,
        again_counted=True,
        apu_prefers_system=False,
        reserves_vram=False,
        overflow_check=False,
        reports_eviction=False,
    ),
}


def kernel_rules(version: str) -> KernelRules:
    """Rules of a driver version: ``"7.3"``, ``"6.12"``, ``"6.1"`` or a point release of one.

    Raises
    ------
    InvalidArgumentError
        If the version is not modelled; the message lists those that are.
    """
    for name, rules in KERNELS.items():
        if version == name or version.startswith(name + "."):
            return rules
    raise InvalidArgumentError(f"kernel {version!r}: expected one of {', '.join(KERNELS)}")
