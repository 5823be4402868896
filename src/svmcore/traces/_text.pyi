from typing import Self, final

import numpy as np
from numpy.typing import NDArray

DEC: int
HEX: int
PREFIXED: int
NUMBER: int
TEXT: int
GAP: int
OPTIONAL: int
COMMENT: int
MISSING: int

@final
class LineForm:
    columns: int
    def __new__(cls, *parts: bytes | int | dict[bytes, int], blanks: bool = False) -> Self: ...
    def scan(
        self, data: bytes, at: int, out: NDArray[np.uint64], row: int = 0
    ) -> tuple[int, int]: ...

@final
class EventScanner:
    gpu_ids: list[int]
    process_count: int
    restored: int
    rescheduled: int
    unpaired_starts: int
    unpaired_ends: int
    def __new__(cls, limit: int, numbered: bool = False) -> Self: ...
    def code_of(self, gpu: int) -> int: ...
    def scan(
        self, data: bytes, at: int, out: NDArray[np.void], profile: bool = False
    ) -> tuple[int, int, int]: ...
    def add(
        self,
        out: NDArray[np.void],
        number: int,
        t_ns: int,
        pid: int | None,
        addr: int,
        size: int,
        gpu: int | None,
        source: int,
        target: int,
        trigger: int,
        error: int | None,
        value: int,
    ) -> int: ...
    def end(self, out: NDArray[np.void]) -> int: ...

@final
class FaultScanner:
    t_ns: int
    failed: int
    def scan(self, data: bytes, at: int, out: NDArray[np.void]) -> tuple[int, int, int]: ...
