"""The ACL dialects against a second telling of their rules, which shares no code with them.

The model is one page of 2 MiB, told from the description of the case files (A1 to A30 of the
document, D1 to D13 of its driver). Random steps are played on both as a case file's are.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svmcore.managed.vectors import MODES, play

PLACES = ("host", 0, 1, 2, 10)


class Page:
    """One page; each method is a step and returns what the call returns."""

    def __init__(self, *, driver: bool) -> None:
        self.driver = driver
        self.copies: set[Any] = set()
        self.accessed_by: set[Any] = set()
        self.owner = self.preferred = self.last_prefetch = None
        self.read_mostly = False
        self.events: list[str] = []

    def run(self, steps: list[list[Any]]) -> dict[str, Any]:
        returns = [getattr(self, name)(*args) for name, *args in steps]
        writable = set() if self.read_mostly else self.copies
        state = {
            "copies": sorted(map(str, self.copies)),
            "owner": self.owner,
            "read_mostly": self.read_mostly,
            "preferred": self.preferred,
            "accessed_by": sorted(map(str, self.accessed_by)),
            "last_prefetch": self.last_prefetch,
            "writable": sorted(map(str, writable)),
        }
        return {"returns": returns, "state": state, "events": self.events}

    def only(self, place: Any) -> None:
        self.copies, self.owner = {place}, place

    def keep(self, place: Any) -> None:
        """One copy stays, made if there is none; the others are freed."""
        if place not in self.copies:
            self.events.append("copy h2d")
        if others := sorted(map(str, self.copies - {place})):
            self.events.append(f"free {','.join(others)}")
        self.only(place)
        self.read_mostly = False

    def add(self, place: Any) -> None:
        if place not in self.copies:
            self.copies.add(place)
            self.events.append("copy h2d ro")

    def ahead(self, place: Any) -> bool:
        """Memory before the first access; False where the data is elsewhere."""
        if self.read_mostly:
            self.add(place)
        elif not self.copies:
            self.only(place)
            self.events.append(f"alloc {place}")
        return self.read_mostly or self.copies == {place}

    def warned(self, place: Any) -> str:
        if not self.ahead(place):
            self.events.append("warn")
        return "OK"

    def set_read_mostly(self) -> str:
        if not self.read_mostly:
            if self.copies and "host" not in self.copies:
                self.events.append("copy d2h")
            self.copies.add("host")
            self.owner, self.read_mostly = "host", True
        return "OK"

    def unset_read_mostly(self, place: Any) -> str:
        if self.driver and self.preferred is not None:
            place = self.preferred
        if self.read_mostly:
            self.keep("host" if place == "invalid" else place)
        return "OK"

    def set_preferred(self, place: Any) -> str:
        if self.driver:
            again, self.preferred = self.preferred == place, place
            return "OK" if again or place not in self.accessed_by else self.warned(place)
        if not self.ahead(place):
            return "ERROR"
        self.preferred = place
        return "OK"

    def unset_preferred(self) -> str:
        self.preferred = None
        return "OK"

    def set_accessed_by(self, place: Any) -> str:
        again = place in self.accessed_by
        self.accessed_by.add(place)
        return "OK" if again or place != self.preferred else self.warned(place)

    def unset_accessed_by(self, place: Any) -> str:
        self.accessed_by.discard(place)
        return "OK"

    def access(self, who: Any, write: bool) -> str:
        if self.read_mostly and write:
            self.keep(who)
            return "FAULT"
        if who in self.copies:
            return "HIT"
        if self.read_mostly:
            self.add(who)
            return "FAULT"
        if self.copies:
            self.events.append(f"migrate {self.owner}>{who}")
        self.only(who)
        return "FAULT"

    def prefetch(self, place: Any) -> str:
        if self.copies and place == "host" and (self.read_mostly or self.owner == "host"):
            return "ERROR"
        self.last_prefetch = place
        if self.copies and self.read_mostly:
            self.add(place)
        elif self.copies and place != self.owner and "host" in (place, self.owner):
            self.events.append("move d2h" if place == "host" else "move h2d")
            self.only(place)
        return "OK"


places = st.sampled_from(PLACES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("set_read_mostly", "unset_preferred"))),
        st.tuples(st.just("unset_read_mostly"), st.sampled_from((*PLACES, "invalid"))),
        st.tuples(
            st.sampled_from(("set_preferred", "set_accessed_by", "unset_accessed_by", "prefetch")),
            places,
        ),
        st.tuples(st.just("access"), places, st.booleans()),
    ).map(list),
    max_size=12,
)


@pytest.mark.parametrize("mode", MODES)
@given(steps=STEPS)
@settings(max_examples=400)
def test_a_page_does_what_the_case_files_describe(mode: str, steps: list[list[Any]]) -> None:
    assert play(steps, MODES[mode]) == Page(driver=mode == "driver").run(steps)
