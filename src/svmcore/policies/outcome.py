"""What one driver operation did: its result and every effect, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FATAL_REASONS", "Outcome"]

#: Numbers of ``UvmEventFatalReason`` by why a fault ends: InvalidAddress, InvalidPermissions,
#: InvalidFaultType, OutOfMemory, InternalError (no memory of the model).
FATAL_REASONS = {
    "no_mapping": 1,
    "permission": 2,
    "fault_type": 3,
    "out_of_memory": 4,
    "no_memory": 5,
}


@dataclass
class Outcome:
    """Result of one operation of a KFD process, compiled or reference.

    Pages are 4 KiB page numbers, ``last`` inclusive; locations are GPU ids, 0
    for system memory.

    Attributes
    ----------
    ret : int
        0 or the negative errno that the driver returns (2: the CPU gets SIGBUS).
    reason : str
        Of a fault: why it ended as it did.
    best_loc : int or None
        Of a fault: best restore location, once it is known.
    window : (int, int) or None
        Of a fault: the pages that it restores.
    migration, vram_fallback, unregistered : bool
        Of a fault: a migration was done; it fell back to system memory; the
        page had no range before.
    out : list of (attribute, value) or None
        Of get_attr: the answers.
    migr : list of (first, last, from, to, trigger, pages moved)
    map : list of (gpu, first, last, in VRAM, writable)
    unmap : list of (gpu, first, last, why)
    queues : list of "quiesce" or "resume"
    warn, hang, filter_removed : list
        Driver warnings; pages where the driver would never settle; pages taken
        out of the hardware's fault filter.
    bo_evict : list of (device number, pages)
        VRAM objects evicted.
    events : list of (t_ns, word, first, last, source, target, value)
        All effects in order, where the policy keeps one log of them (uvm; the words are those
        of ``docs/explain/uvm.md``); source and target are processors, 0 the CPU.
    """

    ret: int = 0
    reason: str = ""
    best_loc: int | None = None
    window: tuple[int, int] | None = None
    migration: bool = False
    vram_fallback: bool = False
    unregistered: bool = False
    out: list[tuple[int, int]] | None = None
    migr: list[tuple[int, int, int, int, str, int]] = field(default_factory=list)
    map: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    unmap: list[tuple[int, int, int, str]] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    warn: list[str] = field(default_factory=list)
    bo_evict: list[tuple[int, int]] = field(default_factory=list)
    filter_removed: list[int] = field(default_factory=list)
    hang: list[int] = field(default_factory=list)
    events: list[tuple[int, str, int, int, int, int, int]] = field(default_factory=list)
