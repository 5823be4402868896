"""KFD: the attributes themselves, by the words and numbers of the ioctl."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final

from ..advice import KFD_ATTRIBUTE, WORDS, Meaning, words_of_attribute
from ..attributes import Attribute, Flag
from ..engine import Space
from ..errors import error_from_errno
from ..machine import Machine
from ..units import PAGE_MASK, PAGE_SIZE, whole
from .enums import (
    DriverErrno,
    Location,
)
from .memory import Action, AdviseResult
from .spaces import SpaceMemory

__all__ = ["KfdMemory"]

_ACCESS: Final = (Attribute.ACCESS, Attribute.ACCESS_IN_PLACE, Attribute.NO_ACCESS)


class KfdMemory(SpaceMemory):
    """KFD attributes as they are: words and numbers of the ioctl, results its errno.

    Parameters
    ----------
    machine : str, Path or Machine
    space : Space, optional
        A space of policy ``kfd`` to live in.
    **settings
        :class:`Options`, and parameters of the policy.
    """

    vendor = "kfd"
    advice_enum = Attribute
    attribute_enum = Attribute
    success = DriverErrno.OK
    ignores_place = frozenset()
    _LISTED = frozenset(attribute.name for attribute in _ACCESS)

    def __init__(
        self,
        machine: str | Path | Machine = "gpu-80g",
        *,
        space: Space | None = None,
        **settings: Any,
    ) -> None:
        super().__init__("kfd", machine, space=space, settings=settings)

    def _meaning(self, advice: enum.IntEnum) -> Meaning:
        return words_of_attribute(advice, 0)[0]

    def _takes(self, meaning: Meaning) -> bool:
        return tuple(meaning) in KFD_ATTRIBUTE

    def _same_word(self, meaning: Meaning) -> Meaning:
        return meaning  # access and access in place are two things here

    def _place(self, word: str, on: bool, location: Location | str | int | None) -> Location | None:
        if not WORDS[word].location or KFD_ATTRIBUTE[word, on][1] is not None:
            return None
        place = Location.parse(location)
        if KFD_ATTRIBUTE[word, on][0] in _ACCESS and place.is_host:
            raise self._refused(
                "location", "A5", f"{word} of the CPU: expected a device of 0 to {self.devices - 1}"
            )
        if KFD_ATTRIBUTE[word, on][0] == Attribute.PREFERRED_LOC and not any(place):
            return place
        return super()._place(word, on, location)

    def _span(self, call: str, ptr: int, size: int) -> tuple[int, int]:
        if (ptr | size) & PAGE_MASK:
            raise self._refused(
                "unaligned",
                "A5",
                f"{call} {ptr:#x} of {size:#x} bytes: expected multiples of {PAGE_SIZE}",
            )
        return super()._span(call, ptr, size)

    def _advise(self, start: int, end: int, action: Action) -> AdviseResult:
        word = action.word
        if word == "prefetch":
            return self._prefetch(start, end, action.place)
        attribute, value = KFD_ATTRIBUTE[word, action.on]
        if value is None and WORDS[word].location:
            value = self._value(action.place)
        elif value is None:
            value = action.value
        if value is None:
            raise self._refused("value", "KFD", f"{word}: expected a value")
        return self._set(start, end, [(attribute, whole("value", value))])

    def is_read_mostly(self, ptr: int, size: int) -> bool:
        """Whether the flag GPU_READ_MOSTLY is set on all ranges of the span."""
        start, end = self._outward(ptr, size)
        return bool(self._query(start, end, "SET_FLAGS") & Flag.GPU_READ_MOSTLY)

    def _listed(self, name: str) -> bool:
        return name in self._LISTED

    def _query(self, start: int, end: int, name: str) -> int:
        process = self.space.process
        outcome = process.begin(self.space.now_ns)
        ret = process.get_attr(start, end - start, [(Attribute[name], 0)])
        process.finish(ret)
        if ret:
            error = error_from_errno(ret, "")
            kind = "not_allocated" if error.code == "EFAULT" else "attribute"
            raise self._refused(kind, "KFD", f"get_attr {name} of {start:#x}: {error.code}")
        ((_, value),) = outcome.out or []
        return int(value)

    def _query_list(self, start: int, end: int, name: str) -> list[int]:
        access = self.space.get_attr(start, end - start)["access"]
        return [i for i in range(self.devices) if access[f"gpu{i}"] == name.lower()]
