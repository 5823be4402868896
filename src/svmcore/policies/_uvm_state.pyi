from collections.abc import Mapping
from typing import Any, Final

import numpy.typing as npt

from ._uvm import UvmProcess

__all__ = ["pack", "unpack"]

COLUMNS: Final[dict[str, tuple[str, ...]]]
DRIVER: Final[tuple[str, ...]]
ENGINE: Final[tuple[str, ...]]

def pack(process: UvmProcess) -> dict[str, npt.NDArray[Any]]: ...
def unpack(process: UvmProcess, tables: Mapping[str, npt.NDArray[Any]]) -> None: ...
