"""Numbers that the NVIDIA driver, CUPTI and Nsight share, as codes of our records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..records import CPU, Access

__all__ = ["ACCESS", "CAUSES", "cause_of", "migrate_values"]

#: Access by the driver's number: invalid, read, write, atomic, prefetch.
ACCESS: npt.NDArray[np.uint8] = np.full(256, Access.UNKNOWN, "u1")
ACCESS[1:5] = [Access.READ, Access.WRITE, Access.ATOMIC, Access.PREFETCH]
#: Causes of a migration by the driver's number.
CAUSES = ("invalid", "user", "coherence", "prefetch", "eviction", "access_counters")
_USER, _COHERENCE, _PREFETCH, _EVICTION, _COUNTERS = range(1, 6)
#: Triggers of a MIGRATE record as KFD numbers them.
_BY_PREFETCH, _BY_GPU, _BY_CPU, _BY_EVICTION = range(4)
_TRIGGER = np.full(256, _BY_PREFETCH, "<u4")
_TRIGGER[[_COHERENCE, _COUNTERS]] = _BY_GPU
_TRIGGER[_EVICTION] = _BY_EVICTION


def migrate_values(
    cause: npt.NDArray[np.integer], target: npt.NDArray[np.integer]
) -> npt.NDArray[np.uint32]:
    """The ``value`` of MIGRATE records, so that KFD's and NVIDIA's lie beside each other.

    Bits 0..7 are the trigger in KFD's numbers: user and the driver's prefetch 0;
    coherence, which is a fault, 1 towards a GPU and 2 towards the CPU; access
    counters, for which KFD has no word, 1; eviction 3. Bits 8..15 are the cause
    in NVIDIA's numbers, see :data:`CAUSES`.

    Parameters
    ----------
    cause : ndarray, shape (n,), integers
        Causes, 0 to 255.
    target : ndarray, shape (n,), integers
        Record code of where the pages go.

    Returns
    -------
    ndarray, shape (n,), dtype uint32
    """
    trigger: npt.NDArray[np.uint32] = _TRIGGER[cause]
    trigger[(np.asarray(cause) == _COHERENCE) & (np.asarray(target) == CPU)] = _BY_CPU
    trigger |= np.asarray(cause).astype("<u4") << np.uint32(8)
    return trigger


def cause_of(value: int) -> str:
    """Name of the cause in the ``value`` of a MIGRATE record of an NVIDIA trace."""
    number = value >> 8 & 0xFF
    return CAUSES[number] if number < len(CAUSES) else str(number)
