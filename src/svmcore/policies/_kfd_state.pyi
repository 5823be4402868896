from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from ._kfd import KfdProcess

def pack(process: KfdProcess) -> dict[str, npt.NDArray[Any]]: ...
def unpack(process: KfdProcess, tables: Mapping[str, npt.NDArray[Any]]) -> None: ...
