from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from ._kfd import KfdProcess

__all__ = ["pack", "unpack"]

def pack(process: KfdProcess) -> dict[str, npt.NDArray[Any]]: ...
def unpack(process: KfdProcess, tables: Mapping[str, npt.NDArray[Any]]) -> None: ...
