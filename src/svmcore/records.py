"""The trace record: one NumPy structured dtype, one C struct of the same layout.

A record is one event of a trace: a touch, a recorded fault, a mapping, advice,
or a recorded outcome. Readers in :mod:`svmcore.traces` make arrays of it, the
replay loop reads them in place. The C twin is ``record_t`` in ``_types.pxd``;
``tests/unit/test_records.py`` holds size and offsets equal.
"""

from __future__ import annotations

import enum

import numpy as np

__all__ = [
    "CPU",
    "FATAL_TYPES",
    "RECORD",
    "UNKNOWN",
    "Access",
    "Kind",
    "processor_code",
    "processor_name",
]


class Kind(enum.IntEnum):
    """What a record tells. Values below 16 are replayed, the others are compared with."""

    ACCESS = 0
    """A processor touches ``[addr, addr + size)``; ``dur_ns`` is its compute time."""
    FAULT = 1
    """A recorded page fault (one page unless the source says more); ``peer`` is the hardware's
    type where that is fatal (:data:`FATAL_TYPES`), else 255."""
    MAP = 2
    """``[addr, addr + size)`` becomes a mapping (an allocation)."""
    UNMAP = 3
    """The mapping goes."""
    ADVISE = 4
    """An attribute: ``access`` is its type (attributes.Attribute), ``peer`` the location
    it names, ``value`` its value where it takes a number (flags, granularity)."""
    PREFETCH = 5
    """Prefetch to ``peer``."""
    FAULT_END = 16
    """Recorded: a fault was served; ``value`` 1 when pages migrated."""
    MIGRATE = 17
    """Recorded: pages moved from ``proc`` to ``peer``; ``value`` is the trigger, ``dur_ns``
    the time."""
    EVICT = 18
    """Recorded: pages left the device ``proc``."""
    UNMAP_GPU = 19
    """Recorded: GPU page tables lost the span; ``value`` is the trigger."""
    QUEUE_EVICT = 20
    """Recorded: user queues stopped; ``value`` is the trigger."""
    QUEUE_RESTORE = 21
    """Recorded: queues ran again; ``value`` 1 when the restore was put off instead."""
    DROPPED = 22
    """Recorded: the source lost ``value`` events here."""
    OTHER = 23
    """Recorded: an event without an address (process start, reset); ``value`` is its id."""
    BATCH = 24
    """Recorded: a fault batch starts (``value`` 0) or ends (``value`` 1, with ``dur_ns``)."""
    REMOTE = 25
    """Recorded: ``proc`` was mapped to pages that stay in the memory of ``peer``; ``value``
    is why: 2 they thrash, 3 by policy, 5 they were evicted."""
    DUPLICATE = 26
    """Recorded: pages of ``proc`` were copied to ``peer`` for reading."""
    THRASHING = 27
    """Recorded: pages travel back and forth. ``value`` 0: found out; 1: ``proc`` waits for
    ``dur_ns``; 2: they are pinned in the memory of ``peer`` for ``proc``; 3: no longer."""
    CANCEL = 28
    """Recorded: faults of ``proc`` ended with an error; ``value`` is NVIDIA's reason: 1 address,
    2 permissions, 3 fault type, 4 out of memory, 5 internal."""


class Access(enum.IntEnum):
    """How a touch uses the page."""

    READ = 0
    WRITE = 1
    ATOMIC = 2
    PREFETCH = 3
    UNKNOWN = 4


#: ``proc`` code of the CPU. GPU *i* is ``i + 1``.
CPU = 0
#: ``proc`` code where the file names no processor (``--by`` decides).
UNKNOWN = 255
#: Fault types of NVIDIA's hardware that cannot be served: 5 PDE size to 16 CC violation.
FATAL_TYPES = range(5, 17)

#: One trace record, 40 bytes, C layout.
RECORD = np.dtype(
    [
        ("t_ns", "<u8"),  # time, ns, of the source's clock
        ("addr", "<u8"),  # byte address
        ("size", "<u8"),  # bytes; 0 where the event has no span
        ("dur_ns", "<u8"),  # duration of the event, ns; 0 where unknown
        ("value", "<u4"),  # see Kind
        ("kind", "u1"),  # Kind
        ("proc", "u1"),  # processor: 0 CPU, 1 + i GPU i, 255 unknown
        ("access", "u1"),  # Access
        ("peer", "u1"),  # second location, coded as proc
    ]
)


def processor_code(name: str) -> int:
    """Code of ``"cpu"``, ``"gpu0"``, ``"gpu1"`` ... as the records carry it.

    Raises
    ------
    ValueError
        If *name* is not a processor.
    """
    if name == "cpu":
        return CPU
    if name.startswith("gpu") and name[3:].isascii() and name[3:].isdigit() and int(name[3:]) < 64:
        return int(name[3:]) + 1
    raise ValueError(f"processor {name!r}: expected cpu or gpu0 to gpu63")


def processor_name(code: int) -> str:
    """Name of a processor code: ``0`` is ``"cpu"``, ``1`` is ``"gpu0"``, 255 ``"unknown"``."""
    if code == UNKNOWN:
        return "unknown"
    return "cpu" if code == CPU else f"gpu{code - 1}"
