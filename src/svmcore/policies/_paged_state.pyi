from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from ._paged import PagedProcess

__all__ = ["pack", "unpack"]

def pack(process: PagedProcess) -> dict[str, npt.NDArray[Any]]: ...
def unpack(process: PagedProcess, tables: Mapping[str, npt.NDArray[Any]]) -> None: ...
