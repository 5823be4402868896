"""Plays the cases of an ``acl_managed_cases`` file; :mod:`svmcore.conformance` reports.

A file is one JSON object: case name -> ``steps``, and for each mode (``doc``,
``driver``) what a managed page of 2 MiB returns, its state at the end and its events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..machine import Gpu, Machine
from .acl import AclMemory
from .enums import Location
from .errors import ManagedError
from .memory import Effect
from .state import HOST, NOBODY, Event, ReadMostly, members, word_of

__all__ = ["MODES", "differences", "is_case_file", "play"]

#: Key of the file -> semantics.
MODES = {"doc": "acl", "driver": "acl-driver"}
_PAGE = 2 << 20
#: As many as a machine has.
_MOST_DEVICES = 64
_ADVICE = {
    "set_read_mostly": "read_mostly",
    "unset_read_mostly": "unset_read_mostly",
    "set_preferred": "preferred_location",
    "unset_preferred": "unset_preferred_location",
    "set_accessed_by": "accessed_by",
    "unset_accessed_by": "unset_accessed_by",
}


def is_case_file(table: Any) -> bool:
    """Whether a JSON value is a file of cases: one has steps and a mode."""
    return isinstance(table, Mapping) and any(
        isinstance(case, Mapping) and "steps" in case and not MODES.keys().isdisjoint(case)
        for case in table.values()
    )


def play(steps: list[list[Any]], semantics: str) -> dict[str, Any]:
    """Run the steps of a case on one untouched page.

    Returns
    -------
    dict
        ``returns``, ``state`` and ``events``, as the files have them.

    Raises
    ------
    KeyError, TypeError, ValueError
        For a step of another form.
    """
    devices = [arg for step in steps for arg in step[1:] if type(arg) is int]
    most = max(devices, default=0)
    if most >= _MOST_DEVICES:
        raise ValueError(f"device {most}: expected a number below {_MOST_DEVICES}")
    gpus = tuple(Gpu(id=i + 1, vram_pages=1 << 20) for i in range(most + 1))
    memory = AclMemory(semantics, Machine("cases", gpus))
    ptr = memory.alloc(_PAGE)
    returns, effects = [], []
    for step in steps:
        returned, done = _step(memory, ptr, *step)
        returns.append(returned)
        effects += done
    return {
        "returns": returns,
        "state": _state(memory, ptr),
        "events": [text for effect in effects if (text := _text(effect.event))],
    }


def differences(case: Mapping[str, Any], mode: str) -> Iterator[tuple[str, Any, Any]]:
    """``(field, expected, got)`` where a case differs in a mode."""
    got = play(case["steps"], MODES[mode])
    wanted = case[mode]
    for key, value in got.items():
        if key == "state":
            for name in sorted({*value, *wanted[key]}):
                if value.get(name) != wanted[key].get(name):
                    yield f"state {name}", wanted[key].get(name), value.get(name)
        elif value != wanted[key]:
            yield key, wanted[key], value
    for key in sorted(wanted.keys() - got.keys()):
        yield key, wanted[key], None


def _step(memory: AclMemory, ptr: int, name: str, *args: Any) -> tuple[str, list[Effect]]:
    """Result and events of one step."""
    if name == "access":
        who, write = args
        touch = memory.access(ptr, _PAGE, by=who, write=write)
        return "HIT" if touch.hit else "FAULT", list(touch.effects)
    place = args[0] if args else None
    try:
        if name == "prefetch":
            return "OK", memory.mem_prefetch(ptr, _PAGE, args[0]).effects
        return "OK", memory.mem_advise(ptr, _PAGE, _ADVICE[name], place).effects
    except ManagedError:
        return "ERROR", []


def _text(event: Event) -> str:
    if event.kind == "alloc":
        return f"alloc {word_of(event.target)}"
    if event.kind == "migrate":
        return f"migrate {word_of(event.source)}>{word_of(event.target)}"
    if event.kind == "move":
        return "move d2h" if event.target == HOST else "move h2d"
    if event.kind == "free":
        return "free " + ",".join(_words(event.mask))
    return {"copy": "copy d2h", "take": "copy h2d", "duplicate": "copy h2d ro", "warn": "warn"}.get(
        event.kind, ""
    )


def _words(mask: int) -> list[str]:
    return sorted(word_of(processor) for processor in members(mask))


def _state(memory: AclMemory, ptr: int) -> dict[str, Any]:
    page = memory.raw(ptr)

    def named(place: Location | None) -> int | str | None:
        if place is None:
            return None
        return "host" if place.is_host else place.id

    return {
        "copies": _words(page.copies),
        "owner": None if page.owner == NOBODY else "host" if page.owner == HOST else page.owner - 1,
        "read_mostly": page.read_mostly == ReadMostly.ENABLED,
        "preferred": named(page.preferred),
        "accessed_by": _words(page.accessed_by),
        "last_prefetch": named(page.last_prefetch),
        "writable": _words(page.writable),
    }
