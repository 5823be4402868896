"""Hint plans: advice, settings, capacity and machine for one trace, in a TOML file.

A plan says what a programmer or an administrator could have said to the driver.
:func:`svmcore.replay` takes one; :mod:`svmcore.compare` ranks several.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .advice import KFD_ATTRIBUTE, VENDOR_ADVICE, WORDS, Meaning, meaning_of
from .attributes import LOCATION_UNDEFINED, Attribute
from .engine import Space
from .errors import InvalidArgumentError, error_from_errno
from .machine import Machine
from .policies.base import Policy, make_policy
from .records import RECORD, UNKNOWN, Kind, processor_name
from .units import PAGE_MASK, parse_size

if TYPE_CHECKING:
    from .traces import Mapping as Buffer

__all__ = ["Due", "Hint", "Plan", "Schedule", "load_plan", "plan_of"]

_KEYS = ("name", "policy", "machine", "settings", "capacity", "hint")
_HINT_KEYS = ("buffer", "advice", "location", "value", "at")
_SPAN = re.compile(r"\s*(0[xX][0-9a-fA-F]+)\s*-\s*(0[xX][0-9a-fA-F]+)\s*")
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s)\s*")
_LATEST = 1 << 62
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@dataclass(frozen=True)
class Hint:
    """One ``[[hint]]`` of a plan.

    Attributes
    ----------
    buffer : str or int
        Name or index of a mapping of the trace, an address range
        ``0x7f..-0x7f..`` (half-open) or ``*`` for every mapping.
    advice : str
        A neutral word, ``unset_`` and one, or a vendor's enumerator.
    location : str or None
        ``cpu``, ``gpu0`` ... where the advice names a processor.
    value : int or None
        Where it takes a number.
    at_record : int
        Number of the record before which it is given.
    at_ns : int or None
        Time of the trace, from its first touch, at which it is given instead.
    """

    buffer: str | int
    advice: str
    location: str | None = None
    value: int | None = None
    at_record: int = 0
    at_ns: int | None = None


@dataclass(frozen=True)
class Plan:
    """A hint plan.

    Attributes
    ----------
    name : str
    policy, machine : str or None
        What it runs under where the caller does not say otherwise.
    settings : dict
        Parameters of the policy.
    capacity : dict
        GPU name -> bytes of device memory.
    hints : tuple of Hint
    where : str
        The file, for messages.
    """

    name: str
    policy: str | None = None
    machine: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    hints: tuple[Hint, ...] = ()
    where: str = "plan"

    def space(
        self,
        policy: str | Policy = "kfd",
        machine: str | Path | Machine = "gpu-80g",
        settings: Mapping[str, Any] | None = None,
    ) -> Space:
        """A fresh space as the plan wants it.

        Parameters
        ----------
        policy, machine
            What counts where the plan names none.
        settings : mapping, optional
            Parameters that the plan's own replace.

        Raises
        ------
        InvalidArgumentError
            For an unknown policy, machine, parameter or device; the message
            names the plan and lists what is known.
        """
        try:
            node = Machine.resolve(self._machine(machine)).with_capacity(self.capacity)
            rules = make_policy(self.policy or policy, **{**(settings or {}), **self.settings})
            return Space(node, policy=rules)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self.where}: {error}") from error

    def _machine(self, otherwise: str | Path | Machine) -> str | Path | Machine:
        if self.machine is None:
            return otherwise
        beside = Path(self.where).parent / self.machine
        # A file is looked for beside the plan.
        return beside if self.machine.endswith(".toml") else self.machine

    def schedule(self, buffers: Sequence[Buffer], machine: Machine) -> Schedule:
        """What is to be given when, for a trace with these mappings.

        Raises
        ------
        InvalidArgumentError
            If a hint names a buffer that the trace lacks, a processor that the
            machine lacks, or advice that no attribute stands for.
        """
        due = []
        for number, hint in enumerate(self.hints):
            place = f"{self.where}: hint {number + 1}"
            records = _records(hint, buffers, machine, place)
            due.append(Due(place, hint, records))
        return Schedule(due)

    def check_clock(self, trace: Any) -> None:
        """Refuse hints at a time for a trace whose touches carry none.

        Parameters
        ----------
        trace : Trace
            Read up to the first touch with a time; not at all where no hint names one.

        Raises
        ------
        InvalidArgumentError
            If a hint names a time after the first touch, and every touch is at 0.
        """
        timed = next((n for n, hint in enumerate(self.hints, 1) if hint.at_ns), None)
        if timed is None:
            return
        for records in trace.chunks(1 << 16):
            if ((records["kind"] <= Kind.FAULT) & (records["t_ns"] > 0)).any():
                return
        raise InvalidArgumentError(
            f"{self.where}: hint {timed}: at is a time, and the records of {trace.path} carry "
            "none: expected the number of a record"
        )


class Due(NamedTuple):
    """A hint and the records of advice that it became."""

    place: str
    """Where it stands, for messages."""
    hint: Hint
    records: npt.NDArray[np.void]
    """Of RECORD, ready to be replayed."""

    def check(self, codes: npt.NDArray[np.integer[Any]], policy: str) -> None:
        """Refuse what the driver refused.

        Raises
        ------
        InvalidArgumentError
            If a code is not 0; the message names hint, policy and errno.
        """
        for addr, code in zip(self.records["addr"].tolist(), codes.tolist(), strict=True):
            if code:
                raise InvalidArgumentError(
                    f"{self.place}: {self.hint.advice} is refused by {policy} at {addr:#x} with "
                    f"{error_from_errno(code, '').code}: expected advice that it takes"
                )


class Schedule:
    """Hints that still have to be given, in the order of the plan.

    Invariant: ``waiting`` holds those whose record or time has not come.
    """

    def __init__(self, due: Sequence[Due] = ()) -> None:
        self.waiting = list(due)
        self.t0: int | None = None

    def parts(
        self, records: npt.NDArray[np.void], done: int, until: int
    ) -> Iterator[tuple[list[Due], npt.NDArray[np.void]]]:
        """Cut a chunk where hints are due: those to be given before each part, and the part.

        Parameters
        ----------
        records : ndarray of RECORD
        done : int
            Number of its first record.
        until : int
            Records of it to give out; hints due at that one are given too.
        """
        if self.t0 is None:
            touches = records["kind"] <= Kind.FAULT
            if touches.any():
                self.t0 = int(records["t_ns"][touches.argmax()])
        at = [self._position(due.hint, records, done) for due in self.waiting]
        start = 0
        for stop in sorted({*at, until}):
            if stop > until:
                break
            if stop > start:
                yield [], records[start:stop]
            start = stop
            given = [due for due, place in zip(self.waiting, at, strict=True) if place == stop]
            # Those due at the very end are given before the next chunk, if there is one.
            if given and stop < len(records):
                yield given, records[:0]
        self.waiting = [
            due for due, place in zip(self.waiting, at, strict=True) if place >= len(records)
        ]

    def leftovers(self) -> list[str]:
        """A sentence for each hint that was never given."""
        return [f"{due.place}: never given, the trace ends before" for due in self.waiting]

    def _position(self, hint: Hint, records: npt.NDArray[np.void], done: int) -> int:
        """Index in the chunk before which the hint is due; its length or more: not yet."""
        if hint.at_ns is None:
            return max(0, hint.at_record - done)
        if self.t0 is None:
            return len(records)
        reached = (records["kind"] <= Kind.FAULT) & (
            records["t_ns"] >= np.uint64(min(self.t0 + hint.at_ns, (1 << 64) - 1))
        )
        return int(reached.argmax()) if reached.any() else len(records)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from a TOML file.

    Raises
    ------
    InvalidArgumentError
        If it cannot be read, is not TOML, or holds a key, a word or a value
        that is not known; the message names it and lists the known ones.
    """
    import tomllib

    where = f"plan {os.fspath(path)}"
    try:
        table = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"{where}: expected a TOML file: {error}") from error
    plan = plan_of(table, where)
    return dataclasses.replace(plan, where=str(path))


def plan_of(table: Mapping[str, Any], where: str = "plan") -> Plan:
    """A plan from the values of a TOML file; errors as of :func:`load_plan`.

    Examples
    --------
    >>> from svmcore.plans import plan_of
    >>> table = {"name": "half", "capacity": {"gpu0": "40GiB"}, "settings": {"granularity": 6}}
    >>> plan = plan_of(table)
    >>> plan.space().policy.settings()["granularity"], plan.space().machine.gpus[0].vram_pages
    (6, 10485760)
    """
    _known(table, _KEYS, where)
    if "name" not in table:
        raise InvalidArgumentError(f"{where}: key 'name' is missing")
    for key in ("name", "policy", "machine"):
        if not isinstance(table.get(key, ""), str) or table.get(key) == "":
            raise InvalidArgumentError(f"{where}: {key} = {table[key]!r:.60}, expected a word")
    settings, capacity = table.get("settings", {}), table.get("capacity", {})
    hints = table.get("hint", [])
    if not isinstance(settings, dict) or not isinstance(capacity, dict):
        raise InvalidArgumentError(f"{where}: expected tables [settings] and [capacity]")
    if not isinstance(hints, list) or not all(isinstance(hint, dict) for hint in hints):
        raise InvalidArgumentError(f"{where}: hint: expected tables [[hint]]")
    sizes = {}
    for device, size in capacity.items():
        try:
            sizes[device] = parse_size(size)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: [capacity] {device}: {error}") from error
    return Plan(
        table["name"],
        table.get("policy"),
        table.get("machine"),
        dict(settings),
        sizes,
        tuple(_hint(hint, f"{where}: hint {n}") for n, hint in enumerate(hints, 1)),
        where,
    )


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise InvalidArgumentError(f"{where}: unknown key {key!r}, expected {', '.join(keys)}")


def _hint(table: Mapping[str, Any], where: str) -> Hint:
    _known(table, _HINT_KEYS, where)
    for key in ("buffer", "advice"):
        if key not in table:
            raise InvalidArgumentError(f"{where}: key {key!r} is missing")
    buffer, advice = table["buffer"], table["advice"]
    if type(buffer) not in (str, int):
        raise InvalidArgumentError(
            f"{where}: buffer {buffer!r:.60}, expected a name, an index, 0x..-0x.. or *"
        )
    meaning = meaning_of(advice) if isinstance(advice, str) else None
    if meaning is None:
        raise InvalidArgumentError(
            f"{where}: advice {advice!r:.60}, expected one of {', '.join(WORDS)}, unset_ before "
            f"one that can be taken back, or one of {len(VENDOR_ADVICE)} names of vendors, as "
            "cudaMemAdviseSetReadMostly"
        )
    location, value = table.get("location"), table.get("value")
    _arguments(meaning, location, value, f"{where}: advice {advice}")
    at_record, at_ns = _moment(table.get("at", 0), where)
    return Hint(buffer, advice, location, value, at_record, at_ns)


def _attribute(meaning: Meaning, where: str) -> tuple[Attribute, int | None]:
    known = KFD_ATTRIBUTE.get((meaning.word, meaning.on))
    if known is None:
        words = sorted({word for word, _ in KFD_ATTRIBUTE})
        raise InvalidArgumentError(
            f"{where}: no attribute of a range stands for it, expected one of {', '.join(words)}"
        )
    return known


def _arguments(meaning: Meaning, location: object, value: object, where: str) -> None:
    """The advice has the location and the number that it needs, and no other."""
    word = WORDS[meaning.word]
    _, fixed = _attribute(meaning, where)
    for key, given, wanted, kind in (
        ("location", location, word.location and fixed is None, str),
        ("value", value, word.value and fixed is None, int),
    ):
        if wanted and given is None:
            raise InvalidArgumentError(f"{where}: key {key!r} is missing")
        if not wanted and given is not None:
            raise InvalidArgumentError(f"{where}: expected no {key}, found {given!r:.40}")
        if wanted and type(given) is not kind:
            raise InvalidArgumentError(
                f"{where}: {key} {given!r:.40}, expected "
                + ("cpu, gpu0 ..." if kind is str else "a number")
            )
    if type(value) is int and not 0 <= value < 1 << 32:
        raise InvalidArgumentError(f"{where}: value {value}, expected 0 to 2**32 - 1")


def _moment(at: object, where: str) -> tuple[int, int | None]:
    """Record number, or time in ns."""
    if type(at) is int and at >= 0:
        return at, None
    found = _TIME.fullmatch(at) if isinstance(at, str) else None
    ns = int(float(found[1]) * _NS[found[2]]) if found is not None else _LATEST
    if ns >= _LATEST:
        raise InvalidArgumentError(
            f"{where}: at {at!r:.40}, expected the number of a record, or a time as '1.5ms'"
        )
    return 0, ns


def _records(
    hint: Hint, buffers: Sequence[Buffer], machine: Machine, where: str
) -> npt.NDArray[np.void]:
    """The records of advice that a hint means."""
    meaning = meaning_of(hint.advice)
    if meaning is None:
        raise InvalidArgumentError(f"{where}: advice {hint.advice!r}: expected a known name")
    attribute, fixed = _attribute(meaning, where)
    spans = _spans(hint.buffer, buffers, where)
    records = np.zeros(len(spans), RECORD)
    records["kind"] = Kind.PREFETCH if attribute == Attribute.PREFETCH_LOC else Kind.ADVISE
    records["access"], records["peer"] = int(attribute), UNKNOWN
    records["proc"] = UNKNOWN
    if hint.location is not None:
        names = [processor_name(code) for code in range(1 + len(machine.gpus))]
        if hint.location not in names:
            raise InvalidArgumentError(
                f"{where}: location {hint.location!r}, expected one of {', '.join(names)}"
            )
        records["peer"] = names.index(hint.location)
    elif fixed is not None and fixed != LOCATION_UNDEFINED:
        records["value"] = fixed
    elif hint.value is not None:
        records["value"] = hint.value
    records["addr"] = [start for start, _ in spans]
    records["size"] = [end - start for start, end in spans]
    return records


def _spans(name: str | int, buffers: Sequence[Buffer], where: str) -> list[tuple[int, int]]:
    """Whole pages ``[start, end)`` that a buffer's name means."""
    span = _SPAN.fullmatch(name) if isinstance(name, str) else None
    if name == "*":
        found = [(b.start, b.end) for b in buffers]
    elif span is not None:
        low, high = int(span[1], 16), int(span[2], 16)
        found = [
            (max(low, b.start & ~PAGE_MASK), min(high, (b.end + PAGE_MASK) & ~PAGE_MASK))
            for b in buffers
        ]
        found = [(start, end) for start, end in found if start < end]
    else:
        found = [(b.start, b.end) for b in buffers if b.name == name]
        if not found and str(name).isdecimal() and int(name) < len(buffers):
            found = [(buffers[int(name)].start, buffers[int(name)].end)]
    if not found:
        listed = ", ".join(b.name for b in buffers[:8])
        more = f" and {len(buffers) - 8} more" if len(buffers) > 8 else ""
        raise InvalidArgumentError(
            f"{where}: buffer {name!r}, expected one of {listed}{more}, an index below "
            f"{len(buffers)}, a range 0x..-0x.. that meets one, or *"
        )
    return _joined((start & ~PAGE_MASK, (end + PAGE_MASK) & ~PAGE_MASK) for start, end in found)


def _joined(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """In address order; those that share a page are one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
