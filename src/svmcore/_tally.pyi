import numpy as np
from numpy.typing import NDArray

def tally(
    records: NDArray[np.void],
    outcomes: NDArray[np.void],
    starts: NDArray[np.uint64],
    buffers: NDArray[np.void],
) -> int: ...
def first_stranger(records: NDArray[np.void], gpus: int) -> int: ...
