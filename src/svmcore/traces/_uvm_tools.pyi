import numpy as np
from numpy.typing import NDArray

PROBLEMS: tuple[str, ...]
CLOCK_BACK: int
UNKNOWN_ACCESS: int
COUNTS: int

def decode(
    raw: bytes | NDArray[np.uint8],
    version: int,
    out: NDArray[np.void],
    t_ns: int,
    counts: NDArray[np.uint64],
) -> tuple[int, int, int, int]: ...
