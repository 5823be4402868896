import numpy as np
from numpy.typing import NDArray

def scan(data: bytes, out: NDArray[np.void]) -> tuple[int, int, int]: ...
