"""Tables of a state with one thing wrong, and processes that must not break by them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from svmcore.errors import SvmError

Tables = Mapping[str, npt.NDArray[Any]]


def damaged(tables: Tables, name: str, rng: random.Random, values: Sequence[int]) -> Tables:
    """The tables with one row too few or twice, or one word of *values* or of a flipped bit."""
    rows = tables[name].copy()
    if not rng.randrange(8):
        rows = rows[:-1] if rng.randrange(2) else np.concatenate([rows, rows[-1:]])
    else:
        at = rng.randrange(rows.shape[0]), rng.randrange(rows.shape[1])
        rows[at] = rng.choice((*values, int(rows[at]) ^ 1 << rng.randrange(64)))
    return {**tables, name: rows}


def count_refused(
    tables: Tables,
    names: Sequence[str],
    load: Callable[[Tables], Any],
    go_on: Callable[[Any], object],
    *,
    seed: Any,
    rounds: int,
    values: Sequence[int] = (),
) -> int:
    """Load damaged tables; those that are not refused must hold their invariants and run on.

    Parameters
    ----------
    names : sequence of str
        Tables that are damaged, as often as they stand there; empty ones are left out.
    load : callable
        Makes a process of tables, or raises.
    go_on : callable
        Runs such a process on.

    Returns
    -------
    int
        How many were refused.
    """
    rng, refused = random.Random(seed), 0
    names = [name for name in names if len(tables[name])]
    for _ in range(rounds):
        try:
            process = load(damaged(tables, rng.choice(names), rng, values))
        except (SvmError, OverflowError):
            refused += 1
        else:
            process.check()
            go_on(process)
            process.check()
    return refused
