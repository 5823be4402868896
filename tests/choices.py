"""Where the decisions of a random history come from: hypothesis or a seeded generator."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from hypothesis import strategies as st


class Choice(Protocol):
    """What a history asks for its decisions."""

    def pick(self, values: Sequence[Any]) -> Any: ...

    def number(self, low: int, high: int) -> int: ...


class RandomChoice:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.random() * len(values))]

    def number(self, low: int, high: int) -> int:
        return low + int(self.rng.random() * (high - low + 1))


class DrawnChoice:
    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.number(0, len(values) - 1)]

    def number(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))
