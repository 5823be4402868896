from typing import Self, final

import numpy as np
from numpy.typing import NDArray

ABSENT: int

@final
class ObjectForm:
    columns: int
    def __new__(
        cls,
        columns: dict[bytes, int],
        *,
        wrapped: bytes | None = None,
        inner: bytes | None = None,
        quoted: bool = False,
        separator: int = 44,
    ) -> Self: ...
    def scan(self, text: str, at: int, out: NDArray[np.int64]) -> tuple[int, int]: ...
