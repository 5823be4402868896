"""A trace under one vendor's rules, with advice; and the same under several.

Every record is one touch, one advice or one prefetch of the dialect's interface.
There is no clock and no prefetcher here: faults, copies and moves are counted,
times are the business of :func:`svmcore.replay`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..advice import WORDS, meaning_of, words_of_attribute
from ..attributes import Attribute
from ..errors import InvalidArgumentError, SvmError
from ..machine import Machine
from ..records import CPU, UNKNOWN, Access, Kind, processor_code, processor_name
from ..traces import Mapping as Buffer
from ..traces import Trace, open_trace
from ..traces.base import Records
from ..units import format_size
from .errors import ManagedError
from .factory import managed_memory
from .memory import Effect, ManagedMemory, Touch
from .state import COPYING, MOVING

__all__ = [
    "COUNTED",
    "Comparison",
    "Hint",
    "Play",
    "Row",
    "compare_dialects",
    "machine_for",
    "opened",
    "play_trace",
    "processor_of_name",
]

#: Hits in a row after which runs are looked for, and the longest run looked for at once.
_WORTH_IT, _WIDEST = 16, 1 << 14
#: What is counted of a buffer and of a play.
COUNTED: Final = ("faults", "faulted_bytes", "moved_bytes", "copied_bytes", "remote_bytes")


class Hint(NamedTuple):
    """Advice on a buffer before the first record."""

    buffer: str
    """Name of a mapping of the trace, or ``*``."""
    advice: str
    """Neutral word, ``unset_`` before it, or a vendor's enumerator."""
    location: str | None = None
    """``cpu``, ``gpu0`` ..."""


@dataclass
class Play:
    """What a trace did under one vendor's rules.

    Attributes
    ----------
    semantics : str
    records : int
        Touches, advice and prefetches that were played.
    totals : dict
        Figures of :data:`COUNTED`; *faults* counts the dialect's granules.
    buffers : list of dict
        The same for each mapping, with ``name`` and ``advised``: whether all of it
        is read mostly at the end.
    refused : dict
        Advice that the vendor refused or lacks, and accesses that ended fatally: what
        it answered -> how often.
    """

    semantics: str
    records: int = 0
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    buffers: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)


class Row(NamedTuple):
    """One line of a comparison."""

    plan: str
    semantics: str
    play: Play


@dataclass
class Comparison:
    """Plans under several vendors' rules, row by row."""

    rows: list[Row]

    def table(self) -> str:
        """Lines for people; below them what a vendor refused, and fatal accesses."""
        heads = ("plan", "semantics", "faulted", "moved", "copied", "remote", "read mostly at end")
        lines: list[tuple[str, ...]] = [heads]
        for plan, semantics, play in self.rows:
            kept = [str(buffer["name"]) for buffer in play.buffers if buffer["advised"]]
            sizes = (format_size(play.totals[name]) for name in COUNTED[1:])
            lines.append((plan, semantics, *sizes, ", ".join(kept) or "-"))
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        rows = [
            "  ".join(
                cell.ljust(width) if i in (0, 1, 6) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        notes = [
            f"note: {plan} {semantics}: {answer}, {times} time{'s' * (times != 1)}"
            for plan, semantics, play in self.rows
            for answer, times in play.refused.items()
        ]
        return "\n".join(rows + notes)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: ``rows`` of plan, semantics, the figures and the buffers."""
        return {
            "rows": [
                {
                    "plan": row.plan,
                    "semantics": row.semantics,
                    **row.play.totals,
                    "refused": row.play.refused,
                    "buffers": row.play.buffers,
                }
                for row in self.rows
            ]
        }


def compare_dialects(
    trace: Trace | str | PathLike[str],
    plans: Mapping[str, Sequence[Hint]] | None = None,
    semantics: Sequence[str] = ("cuda", "acl", "hip"),
    *,
    machine: str | Path | Machine | None = None,
    by: str = "gpu0",
) -> Comparison:
    """Play a trace under each plan and each vendor's rules.

    Parameters
    ----------
    trace : Trace or path
    plans : mapping, optional
        Name -> hints. By default ``none``, and ``read-mostly`` on every buffer.
    semantics : sequence of str
    machine : str, Path or Machine, optional
        By default the GPUs of ``gpu-80g``, as many as the trace names.
    by : str
        Processor of records that name none.

    Returns
    -------
    Comparison

    Raises
    ------
    TraceError, InvalidArgumentError
        As :func:`play_trace`.

    Complexity
    ----------
    O(plans * semantics * pieces of equal state touched).
    """
    source = opened(trace)
    node = machine_for(source, by) if machine is None else Machine.resolve(machine)
    if plans is None:
        plans = {"none": (), "read-mostly": (Hint("*", "read_mostly"),)}
    return Comparison(
        [
            Row(name, dialect, play_trace(source, managed_memory(dialect, node), hints, by=by))
            for name, hints in plans.items()
            for dialect in semantics
        ]
    )


def play_trace(
    trace: Trace | str | PathLike[str],
    memory: ManagedMemory,
    hints: Sequence[Hint] = (),
    *,
    by: str = "gpu0",
    progress: Callable[[int], None] | None = None,
) -> Play:
    """Play a trace into managed memory.

    The trace's mappings become allocations, rounded outward to the dialect's
    granule and joined where that makes them meet. Then the hints, then the
    records: touches and recorded faults as accesses, advice and prefetches
    through the vendor's interface; recorded outcomes are skipped.

    Parameters
    ----------
    trace : Trace or path
    memory : ManagedMemory
        Without allocations at the trace's addresses.
    hints : sequence of Hint
    by : str
        Processor of records that name none.
    progress : callable, optional
        Called with the records done so far, once a chunk.

    Raises
    ------
    TraceError
        If the trace cannot be read.
    InvalidArgumentError
        For a hint on an unknown buffer or with an unknown word, a buffer at address 0,
        or a record of a processor that the machine lacks.
    """
    source = opened(trace)
    run = _Run(memory, sorted(source.mappings()), processor_of_name(by, memory.devices))
    for hint in hints:
        run.give(hint)
    done = 0
    for records in source.chunks():
        run.add(records, done)
        done += len(records)
        if progress is not None:
            progress(done)
    return run.ended()


def machine_for(source: Trace, by: str = "gpu0") -> Machine:
    """GPUs as that of ``gpu-80g``, as many as the trace and *by* name."""
    most = max(1, processor_of_name(by, 64))
    for records in source.chunks():
        for column in ("proc", "peer"):
            codes = records[column][records[column] != UNKNOWN]
            most = max(most, int(codes.max(initial=0)))
    one = Machine.preset("gpu-80g")
    gpus = tuple(replace(one.gpus[0], id=number + 1) for number in range(most))
    return replace(one, name=f"{most} x {one.name}" if most > 1 else one.name, gpus=gpus)


def opened(trace: Trace | str | PathLike[str]) -> Trace:
    """The trace, opened where it is a path."""
    return trace if isinstance(trace, Trace) else open_trace(trace)


def processor_of_name(name: str, devices: int) -> int:
    """Record code of a processor of a machine with that many devices."""
    try:
        code = processor_code(name)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
    if code > devices:
        raise InvalidArgumentError(f"processor {name}: expected cpu or gpu0 to gpu{devices - 1}")
    return code


class _Run:
    """One play on its way."""

    def __init__(self, memory: ManagedMemory, buffers: Sequence[Buffer], by: int) -> None:
        self.memory, self.buffers, self.by = memory, buffers, by
        self.starts = [buffer.start for buffer in buffers]
        if 0 in self.starts:
            raise InvalidArgumentError(
                f"buffer {buffers[0].name} at address 0: expected a higher address, "
                "every vendor refuses a null pointer"
            )
        self.result = Play(memory.semantics)
        self.result.buffers = [
            {"name": buffer.name, **dict.fromkeys(COUNTED, 0)} for buffer in buffers
        ]
        for start, end in _joined(buffers, memory.granule):
            memory.adopt(start, end - start)

    def give(self, hint: Hint) -> None:
        meant = [b for b in self.buffers if hint.buffer in ("*", b.name)]
        if not meant:
            known = ", ".join(buffer.name for buffer in self.buffers[:20])
            raise InvalidArgumentError(f"hint on buffer {hint.buffer!r}: expected * or {known}")
        if meaning_of(hint.advice) is None:
            words = ", ".join(WORDS)
            raise InvalidArgumentError(f"hint {hint.advice!r}: expected one of {words}")
        for buffer in meant:
            self._advise(buffer.start, buffer.size, hint.advice, hint.location, None)

    def _advise(
        self, addr: int, size: int, word: str, location: str | None, value: int | None
    ) -> None:
        # Whole granules: buffers begin anywhere, and ACL rounds the size, not the end.
        granule = self.memory.granule
        start = addr // granule * granule
        size = -(-(addr + size) // granule) * granule - start
        try:
            if word == "prefetch":
                result = self.memory.mem_prefetch(start, size, location or "invalid")
            else:
                result = self.memory.mem_advise(start, size, word, location, value=value)
        except ManagedError as error:
            self._refuse(f"{word}: {error.result.name}, rule {error.rule}")
            return
        moved, copied = _bytes(result.effects)
        moved = moved or result.bytes_migrated  # HIP and KFD tell no single effects
        self._count(addr, {"moved_bytes": moved, "copied_bytes": copied})

    def _refuse(self, answer: str) -> None:
        self.result.refused[answer] = self.result.refused.get(answer, 0) + 1

    def _count(self, addr: int, figures: Mapping[str, int]) -> None:
        at = bisect.bisect_right(self.starts, addr) - 1
        for name, number in figures.items():
            self.result.totals[name] += number
            if at >= 0 and addr < self.buffers[at].end:
                self.result.buffers[at][name] += number

    def add(self, records: Records, done: int) -> None:
        """Play a chunk. Hits are most of most traces: runs of them are found at once."""
        leading = getattr(self.memory, "leading_hits", None)
        rows = records.tolist()
        at = run = 0  # run: hits in a row up to here
        while at < len(rows):
            if leading is not None and run >= _WORTH_IT:
                # A run goes on for as long again, more often than not.
                window = min(4 * run, _WIDEST)
                hits = leading(records[at : at + window], self.by)
                at += hits
                self.result.records += hits
                run += hits
                if hits == window:
                    continue
                if at >= len(rows):
                    break
            run = run + 1 if self._play(rows[at], done + at) else 0
            at += 1

    def _play(self, row: tuple[int, ...], number: int) -> bool:
        """Play one record; whether it was a touch that did nothing."""
        _, addr, size, _, value, kind, proc, how, peer = row
        if kind > Kind.PREFETCH:
            return False
        self.result.records += 1
        if kind in (Kind.ADVISE, Kind.PREFETCH):
            self._recorded(kind, addr, size, value, how, peer)
        if kind > Kind.FAULT:
            return False
        code = self.by if proc == UNKNOWN else proc
        if code > self.memory.devices:
            raise InvalidArgumentError(
                f"record {number}: processor {processor_name(code)}, "
                f"expected cpu or gpu0 to gpu{self.memory.devices - 1}"
            )
        write = how in (Access.WRITE, Access.ATOMIC)
        try:
            touch = self.memory.access(addr, size or 1, -1 if code == CPU else code - 1, write)
        except SvmError as error:  # a fatal end is a result, and counted
            self._refuse(f"access: {error.code}")
            return False
        if touch.faults or touch.remote_bytes:
            self._touched(addr, touch)
            return False
        return True

    def _touched(self, addr: int, touch: Touch) -> None:
        moved, copied = _bytes(touch.effects)
        moved += touch.moved_bytes
        figures = (touch.faults, touch.faulted_bytes, moved, copied, touch.remote_bytes)
        self._count(addr, dict(zip(COUNTED, figures, strict=True)))

    def _recorded(self, kind: int, addr: int, size: int, value: int, how: int, peer: int) -> None:
        attribute = Attribute.PREFETCH_LOC if kind == Kind.PREFETCH else Attribute(how)
        location = None if peer == UNKNOWN else processor_name(peer)
        for meant in words_of_attribute(attribute, value, nowhere=peer == UNKNOWN):
            word = meant.word if meant.on else f"unset_{meant.word}"
            self._advise(addr, size, word, location, value)

    def ended(self) -> Play:
        for buffer, row in zip(self.buffers, self.result.buffers, strict=True):
            row["advised"] = self.memory.is_read_mostly(buffer.start, buffer.size)
        return self.result


def _bytes(effects: Sequence[Effect]) -> tuple[int, int]:
    """Bytes that effects moved, and that they copied."""
    moved = sum(effect.size for effect in effects if effect.event.kind in MOVING)
    both = sum(effect.size for effect in effects if effect.event.kind in COPYING)
    return moved, both - moved


def _joined(buffers: Sequence[Buffer], granule: int) -> Iterator[tuple[int, int]]:
    """Spans of *buffers*, in order, rounded outward; those that meet in a granule are one."""
    start = end = -1
    for buffer in buffers:
        low = buffer.start // granule * granule
        high = -(-buffer.end // granule) * granule
        if start < 0:
            start, end = low, high
        elif low <= end:
            # Neighbours too: one record may touch both.
            end = max(end, high)
        else:
            yield start, end
            start, end = low, high
    if start >= 0:
        yield start, end
