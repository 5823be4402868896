"""Mappings of traces whose allocations may be incomplete: the named ones and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records import Kind
from .base import Mapping, Records, Spans, disjoint, map_records

__all__ = ["named_and_touched", "outside", "with_touched"]


def outside(runs: Iterable[tuple[int, int]], mappings: Sequence[Mapping]) -> list[tuple[int, int]]:
    """The parts of ascending, disjoint *runs* outside the *mappings*, both in bytes.

    Complexity
    ----------
    O(runs + mappings log mappings).
    """
    rest: list[tuple[int, int]] = []
    ordered = sorted(mappings)
    at = 0
    for start, end in runs:
        while at < len(ordered) and ordered[at].end <= start:
            at += 1
        inside = at
        while start < end and inside < len(ordered) and ordered[inside].start < end:
            if start < ordered[inside].start:
                rest.append((start, ordered[inside].start))
            start = ordered[inside].end
            inside += 1
        if start < end:
            rest.append((start, end))
    return rest


def named_and_touched(chunks: Iterable[Records], word: str) -> list[Mapping]:
    """Mappings of the MAP records, then the pages touched outside them.

    Parameters
    ----------
    chunks : iterable of ndarray, dtype RECORD
        The records of one pass.
    word : str
        What the mappings of MAP records are called; the others are ``touched``.

    Returns
    -------
    list of Mapping
        Disjoint. A page that a mapping begins or ends in counts as inside it.
    """
    named: list[tuple[int, int, str]] = []
    touched = Spans()
    for chunk in chunks:
        maps = chunk[chunk["kind"] == Kind.MAP]
        named += [(addr, size, "") for addr, size in maps[["addr", "size"]].tolist()]
        touched.add(chunk)
    return with_touched(disjoint(named, word), touched)


def with_touched(found: list[Mapping], touched: Spans) -> list[Mapping]:
    """The mappings *found*, and the runs *touched* outside their pages."""
    pages = Spans()
    pages.add(map_records(found))
    whole = [Mapping(start, end - start, "") for start, end in pages.runs()]
    return found + [
        Mapping(start, end - start, f"touched{index}")
        for index, (start, end) in enumerate(outside(touched.runs(), whole))
    ]
