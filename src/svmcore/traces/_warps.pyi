from typing import Self, final

import numpy as np
from numpy.typing import NDArray

ROWS: int
ON_CHIP: int

@final
class WarpScanner:
    on_chip: int
    def __new__(cls, index: int) -> Self: ...
    def add_window(self, start: int) -> None: ...
    def learn(self, opcode: bytes, access: int) -> None: ...
    def scan(
        self, data: bytes, at: int, out: NDArray[np.void], row: int, limit: int
    ) -> tuple[int, int, int]: ...
