from typing import Final

import numpy as np
import numpy.typing as npt

from .stacks.costs import LaunchCosts

POLICIES: Final[tuple[str, ...]]

def run(
    *,
    t: npt.NDArray[np.int64],
    kernel: npt.NDArray[np.int64],
    code: npt.NDArray[np.int32],
    ident: npt.NDArray[np.int32],
    stream: npt.NDArray[np.int32],
    op: npt.NDArray[np.int8],
    starts: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    alloc_ns: npt.NDArray[np.int64],
    free_ns: npt.NDArray[np.int64],
    shared_stream: npt.NDArray[np.int8],
    nids: int,
    policy: str,
    retries: bool,
    limit: int,
    k: int,
    waits: bool,
    strict: bool,
    by_stream: bool,
    free_at_exit: bool,
    costs: LaunchCosts,
    capacity: int,
) -> dict[str, int]: ...
