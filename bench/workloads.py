"""Seeded workloads of range maps and of faults, the same for every structure that is timed.

Pages, not bytes. Ranges of a layout are 1 to 31 pages long ("small", mean 16) or
1 to 1023 ("big", mean 512), uniform, with a gap of such a length after every
fourth one on average. Addresses lie anywhere between the first and the last page,
so some of them meet a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

#: First page of every layout. Page numbers stay below 2**31 at 1e6 big ranges, because
#: some rivals hold 32-bit coordinates only.
BASE = 4096
LONGEST = {"small": 31, "big": 1023}
#: Values are 1 to VALUES, so that one byte a page can hold them; 0 is a hole.
VALUES = 250
PATTERNS = ("uniform", "sequential", "zipf", "strided", "streams")
STREAMS = 64


class Layout(NamedTuple):
    """Disjoint ranges in address order: inclusive page numbers and a value each."""

    first: np.ndarray
    last: np.ndarray
    value: np.ndarray

    @property
    def end(self) -> int:
        """One past the last page."""
        return int(self.last[-1]) + 1

    @property
    def span(self) -> int:
        """Pages from BASE to the end, gaps included."""
        return self.end - BASE

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """(first, last, value) as Python integers."""
        return zip(self.first.tolist(), self.last.tolist(), self.value.tolist(), strict=True)


def layout(ranges: int, size: str = "small", seed: int = 1) -> Layout:
    rng = np.random.default_rng([seed, ranges])
    pages = rng.integers(1, LONGEST[size] + 1, ranges)
    gap = rng.integers(1, LONGEST[size] + 1, ranges) * (rng.random(ranges) < 0.25)
    first = BASE + np.cumsum(pages + gap) - pages - gap
    # Neighbours differ in value, so that a map that joins equal ones keeps them all.
    value = np.arange(ranges) % VALUES + 1
    return Layout(first, first + pages - 1, value)


def addresses(where: Layout, pattern: str, n: int, seed: int = 1) -> np.ndarray:
    """*n* pages of a pattern, uint64.

    ``zipf`` has exponent 1.0 over randomly permuted pages; ``strided`` walks in steps
    of 512 pages and begins one page later each round; ``streams`` are 64 interleaved
    sequential walks from random places.
    """
    rng = np.random.default_rng([seed, 2, n])
    span = where.span
    if pattern == "uniform":
        at = rng.integers(0, span, n)
    elif pattern == "sequential":
        at = (rng.integers(0, span) + np.arange(n)) % span
    elif pattern == "zipf":
        # P(rank <= k) is near log(k + 1) / log(span + 1).
        rank = np.minimum((span + 1.0) ** rng.random(n), span).astype(np.int64) - 1
        factor = 2_654_435_761  # odd and prime: a permutation unless it divides the span
        at = (
            (rank.astype(object) * factor % span).astype(np.int64)
            if span >> 31
            else (rank * factor % span)
        )
    elif pattern == "strided":
        stride = max(1, min(512, span // 8))
        steps = -(-span // stride)
        number = np.arange(n)
        at = (number % steps * stride + number // steps) % span
    elif pattern == "streams":
        start = rng.integers(0, span, STREAMS)
        number = np.arange(n)
        at = (start[number % STREAMS] + number // STREAMS) % span
    else:
        raise ValueError(f"pattern {pattern!r}: expected one of {', '.join(PATTERNS)}")
    return (at + BASE).astype(np.uint64)


def overwrites(where: Layout, n: int, seed: int = 1) -> list[tuple[int, int, int]]:
    """*n* spans of 1 to 7 pages anywhere, each with a new value."""
    rng = np.random.default_rng([seed, 3, n])
    pages = np.minimum(rng.integers(1, 8, n), where.span)
    first = BASE + rng.integers(0, where.span - pages + 1)
    value = rng.integers(1, VALUES + 1, n)
    return list(zip(first.tolist(), (first + pages - 1).tolist(), value.tolist(), strict=True))


def holes(where: Layout, n: int, seed: int = 1) -> list[tuple[int, int, int]]:
    """Spans that are erased and then set again; two operations each."""
    return overwrites(where, n, seed + 1000)


def mixed(where: Layout, n: int, seed: int = 1) -> list[tuple[int, int, int]]:
    """99 look-ups to one overwrite: (page, 0, 0) is a look-up, (first, last, value) a change."""
    found = [(page, 0, 0) for page in addresses(where, "uniform", n, seed).tolist()]
    for number, span in enumerate(overwrites(where, n // 100, seed)):
        found[100 * number + 99] = span
    return found
