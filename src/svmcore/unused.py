"""Advice of a replay that changes nothing, so that it does not pass in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .attributes import Attribute
from .policies.base import Policy
from .records import Kind

if TYPE_CHECKING:
    from .plans import Due

__all__ = ["Unused"]

_FLAGS = (Attribute.SET_FLAGS, Attribute.CLR_FLAGS)


class Unused:
    """Advice of a replay that changes nothing: what the policy does not use, what nobody touches.

    Invariant: ``untouched`` holds the hints given whose memory no touch has met since.
    """

    def __init__(self) -> None:
        self.given: list[Due] = []
        self.untouched: list[Due] = []
        #: ``"attribute,flags"`` -> records of the trace that gave such advice.
        self.records: dict[str, int] = {}

    def hint(self, due: Due) -> None:
        """A hint was given."""
        self.given.append(due)
        self.untouched.append(due)

    def add(self, records: npt.NDArray[np.void], codes: npt.NDArray[Any]) -> None:
        """Records were replayed."""
        advice = records["kind"] == Kind.ADVISE
        if advice.any():
            for record in records[advice & (codes == 0)]:
                attribute = int(record["access"])
                flags = int(record["value"]) if attribute in _FLAGS else 0
                key = f"{attribute},{flags}"
                self.records[key] = self.records.get(key, 0) + 1
        if self.untouched:
            touches = records[records["kind"] <= Kind.FAULT]
            self.untouched = [due for due in self.untouched if not _meets(due, touches)]

    def notes(self, policy: Policy, process: Any) -> list[str]:
        """A sentence for each hint, and each kind of advice in the trace, that changes nothing."""
        found = []
        for due in self.given:
            rows = due.records[["access", "value"]].tolist()
            why = dict.fromkeys(policy.unheeded(process, *row) for row in rows)
            if any(due is other for other in self.untouched):
                why["no record after it touches its memory"] = None
            found += [f"{due.place}: {due.hint.advice} has no use: {text}" for text in why if text]
        for key, number in self.records.items():
            attribute, flags = map(int, key.split(","))
            why_not = policy.unheeded(process, attribute, flags)
            if why_not:
                # Loaded where there is something to say.
                from .advice import words_of_attribute

                words = ", ".join(w.word for w in words_of_attribute(attribute, flags))
                many = "record" if number == 1 else "records"
                found.append(f"{number:,} {many} of advice, {words}, of no use: {why_not}")
        return found


def _meets(due: Due, touches: npt.NDArray[np.void]) -> bool:
    """Whether a touch meets the memory of a hint, whose spans are disjoint and in order."""
    starts = due.records["addr"]
    ends = starts + due.records["size"]
    first = touches["addr"]
    last = first + (np.maximum(touches["size"], np.uint64(1)) - np.uint64(1))
    at = np.searchsorted(ends, first, "right")
    inside = at < len(starts)
    return bool((last[inside] >= starts[at[inside]]).any())
