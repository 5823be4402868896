from typing import Final

import numpy as np
from numpy.typing import NDArray

from ._process import Process

OUTCOME: Final[np.dtype[np.void]]

def replay_chunk(
    process: Process,
    records: NDArray[np.void],
    outcomes: NDArray[np.void],
    *,
    by: int = 1,
    raw: bool = False,
    by_arrival: bool = False,
    t0: int = 0,
) -> None: ...
