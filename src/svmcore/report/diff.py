"""A recorded event log beside a modelled one: where they part, and why.

Both logs are records of the recorded kinds. Their clocks differ and recorded lines are not in
the order of time, so events are paired by what they say - kind, processor, pages, direction -
and the *n*-th of a kind with the *n*-th: the order of equal events is the only order that
counts. What finds no partner is a difference; one with a near partner on the other side
(the same kind of event on pages that overlap) says in which field the two part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..records import RECORD, Access, Kind, processor_name
from ..traces.base import Spans
from ..traces.kfd_smi import MigrateValue
from ..units import PAGE_SHIFT, PAGE_SIZE, format_size
from .text import counted, format_duration

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Difference", "EventDiff", "diff_events", "diff_report"]

#: Kinds that are compared; the rest says nothing that a model says.
COMPARED = (
    Kind.FAULT,
    Kind.FAULT_END,
    Kind.MIGRATE,
    Kind.EVICT,
    Kind.UNMAP_GPU,
    Kind.QUEUE_EVICT,
    Kind.QUEUE_RESTORE,
)
#: Differences that are explained one by one; the others are counted.
EXPLAINED = 1000
#: Unpaired events of the other side that are looked at for a near partner, by kind.
_NEAR = 4096
_TRIGGERS = ("prefetch", "GPU fault", "CPU fault", "eviction")

_Events = npt.NDArray[np.void]
#: What two events must share to be the same; a fault says nothing of its value.
_KEY = np.dtype(
    [
        *(("kind", "u1"), ("proc", "u1"), ("peer", "u1"), ("access", "u1")),
        *(("value", "<u4"), ("addr", "<u8"), ("size", "<u8")),
    ]
)


@dataclass(frozen=True)
class Difference:
    """One event that has no partner, or two that nearly are."""

    cause: str
    """Word for the cause, as in :attr:`EventDiff.causes`."""
    recorded: int | None
    """Number of the event in the recorded log, None where only the model has it."""
    modelled: int | None
    """Number of the event in the modelled log, None where only the record has it."""
    text: str
    """One sentence for people."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cause": self.cause,
            "recorded": self.recorded,
            "modelled": self.modelled,
            "text": self.text,
        }


@dataclass
class EventDiff:
    """Two logs, aligned.

    Invariant: ``matched + only_recorded + parted == recorded`` and
    ``matched + only_modelled + parted == modelled``.
    """

    recorded: int
    """Compared events of the recorded log."""
    modelled: int
    """Compared events of the modelled log."""
    matched: int = 0
    """Pairs that say the same."""
    parted: int = 0
    """Pairs of the same pages that differ in a field."""
    only_recorded: int = 0
    """Events that only the recorded log has."""
    only_modelled: int = 0
    """Events that only the modelled log has."""
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    """By kind: recorded, modelled, matched."""
    causes: dict[str, int] = field(default_factory=dict)
    """Differences by cause."""
    differences: list[Difference] = field(default_factory=list)
    """The first ``EXPLAINED``, in the order of the logs."""
    unpaired: dict[str, int] = field(default_factory=dict)
    """Recorded migrations without a start or an end event: what they say is compared."""
    lost_events: int = 0
    """Events that the recorder says it lost."""
    backward: int = 0
    """Recorded events whose time lies before that of the event before them."""
    durations: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Total time of matched migrations, recorded and modelled, ns."""

    @property
    def equal(self) -> bool:
        """Whether every event has its partner."""
        return not (self.parted or self.only_recorded or self.only_modelled)

    def to_dict(self) -> dict[str, Any]:
        """What ``svmcore diff --json`` prints of it."""
        return {
            "equal": self.equal,
            "recorded": self.recorded,
            "modelled": self.modelled,
            "matched": self.matched,
            "parted": self.parted,
            "only_recorded": self.only_recorded,
            "only_modelled": self.only_modelled,
            "kinds": self.kinds,
            "causes": self.causes,
            "unpaired": self.unpaired,
            "lost_events": self.lost_events,
            "backward": self.backward,
            "durations_ns": {name: list(pair) for name, pair in self.durations.items()},
            "differences": [difference.to_dict() for difference in self.differences],
        }


def diff_events(recorded: _Events, modelled: _Events) -> EventDiff:
    """Align two logs.

    Parameters
    ----------
    recorded, modelled : ndarray, shape (n,), dtype RECORD
        Events in the order of their logs; kinds outside ``COMPARED`` are passed over, except
        DROPPED ones of the recorded log: a difference beside one may be one of the lost events.

    Returns
    -------
    EventDiff

    Complexity
    ----------
    O(n log n) time and O(n) memory; explanations O(``EXPLAINED``) beside that.
    """
    left, right = _Log(recorded), _Log(modelled)
    diff = EventDiff(len(left.events), len(right.events))
    pair = _paired(left.keys, right.keys)
    diff.matched = int(np.count_nonzero(pair >= 0))
    _count_kinds(diff, left, right, pair)
    _look_at_record(diff, recorded, left)
    _durations(diff, left, right, pair)
    _explain(diff, left, right, pair, _lost_places(recorded))
    return diff


class _Log:
    """One log, reduced to what is compared.

    Invariant: ``events[i]`` is record ``numbers[i]`` of the log, ``keys[i]`` its key.
    """

    def __init__(self, records: _Events) -> None:
        self.numbers = np.flatnonzero(np.isin(records["kind"], [int(kind) for kind in COMPARED]))
        self.events = records[self.numbers]
        self.keys = _keys(self.events)


def _keys(events: _Events) -> npt.NDArray[np.void]:
    keys = np.zeros(len(events), _KEY)
    for name in ("kind", "proc", "peer", "access", "addr", "size"):
        keys[name] = events[name]
    kind, value = events["kind"], events["value"]
    # A trigger, whether a migration failed, or what an end says; nothing of the other flags.
    migrate = kind == Kind.MIGRATE
    failed = (value >> 29 & 1 != 0) & (value >> 8 & 0xFFFF != 0)
    keys["value"] = np.where(migrate, (value & 0xFF) | (failed << 8).astype("<u4"), value)
    keys["value"][kind == Kind.FAULT] = 0
    keys["access"][kind != Kind.FAULT] = Access.UNKNOWN
    return keys


def _paired(left: npt.NDArray[np.void], right: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """For each of *left* the place of its partner in *right*, -1 without one."""
    pair = np.full(len(left), -1, np.int64)
    if not len(left) or not len(right):
        return pair
    _, codes = np.unique(np.concatenate([left, right]), return_inverse=True)
    codes = codes.ravel()
    one, other = codes[: len(left)], codes[len(left) :]
    # The n-th of each key: a stable sort puts equal ones in the order of the log.
    ranked = [np.stack([each, _rank(each)], axis=1) for each in (one, other)]
    width = max(int(part[:, 1].max()) for part in ranked) + 1
    ids = [part[:, 0] * width + part[:, 1] for part in ranked]
    order = np.argsort(ids[1])
    at = np.minimum(np.searchsorted(ids[1][order], ids[0]), len(order) - 1)
    found = ids[1][order][at] == ids[0]
    pair[found] = order[at[found]]
    return pair


def _rank(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many equal ones stand before each."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(codes)])
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return rank


def _count_kinds(diff: EventDiff, left: _Log, right: _Log, pair: npt.NDArray[np.int64]) -> None:
    for kind in COMPARED:
        mine = left.events["kind"] == kind
        row = {
            "recorded": int(np.count_nonzero(mine)),
            "modelled": int(np.count_nonzero(right.events["kind"] == kind)),
            "matched": int(np.count_nonzero(mine & (pair >= 0))),
        }
        if row["recorded"] or row["modelled"]:
            diff.kinds[kind.name.lower()] = row


def _look_at_record(diff: EventDiff, recorded: _Events, left: _Log) -> None:
    """What the recorded log says of itself."""
    migrate = left.events[left.events["kind"] == Kind.MIGRATE]["value"]
    for name, bit in (("ends_without_start", 27), ("starts_without_end", 28)):
        if number := int(np.count_nonzero(migrate >> bit & 1)):
            diff.unpaired[name] = number
    dropped = recorded["kind"] == Kind.DROPPED
    diff.lost_events = sum(recorded["value"][dropped].tolist())
    times = left.events["t_ns"]
    diff.backward = int(np.count_nonzero(times[1:] < times[:-1]))


def _lost_places(recorded: _Events) -> npt.NDArray[np.intp]:
    return np.flatnonzero(recorded["kind"] == Kind.DROPPED)


def _durations(diff: EventDiff, left: _Log, right: _Log, pair: npt.NDArray[np.int64]) -> None:
    moved = np.flatnonzero((pair >= 0) & (left.events["kind"] == Kind.MIGRATE))
    # A start or an end that is missing has no duration to be compared.
    whole = moved[left.events["dur_ns"][moved] > 0]
    if len(whole):
        diff.durations["migrations"] = (
            sum(left.events["dur_ns"][whole].tolist()),
            sum(right.events["dur_ns"][pair[whole]].tolist()),
        )


def _explain(
    diff: EventDiff,
    left: _Log,
    right: _Log,
    pair: npt.NDArray[np.int64],
    lost: npt.NDArray[np.intp],
) -> None:
    """Near partners for what is left, and a sentence for each difference."""
    alone_left = np.flatnonzero(pair < 0)
    taken = np.zeros(len(right.events), bool)
    taken[pair[pair >= 0]] = True
    alone_right = np.flatnonzero(~taken)
    # Where in the recorded log each event of the model would stand: behind the partner before it.
    place = np.full(len(right.events), -1, np.int64)
    place[pair[pair >= 0]] = np.flatnonzero(pair >= 0)
    place = np.maximum.accumulate(place) if len(place) else place
    moved_in = _moved_in(right.events)
    near = _near(left.events, right.events, alone_left, alone_right)
    found: list[tuple[int, Difference]] = []
    causes: dict[str, int] = {}

    def add(order: int, difference: Difference) -> None:
        causes[difference.cause] = causes.get(difference.cause, 0) + 1
        found.append((order, difference))

    partners = set(near.values())
    for i in alone_left.tolist():
        number = int(left.numbers[i])
        if i in near:
            j = near[i]
            cause, text = _parting(left.events[i], right.events[j])
            diff.parted += 1
            add(i, Difference(cause, number, int(right.numbers[j]), text))
        else:
            diff.only_recorded += 1
            cause, why = _missing(left.events[i], moved_in)
            text = f"only the recorded log has {_told(left.events[i])}: {why}"
            add(i, Difference(cause, number, None, text))
    for j in alone_right.tolist():
        if j in partners:
            continue
        diff.only_modelled += 1
        before = int(place[j])
        since = int(left.numbers[before]) if before >= 0 else -1
        nxt = int(left.numbers[before + 1]) if before + 1 < len(left.numbers) else 1 << 62
        event = right.events[j]
        if ((lost > since) & (lost < nxt)).any():
            cause = "perhaps lost"
            text = (
                f"only the model has {_told(event)}; the recorder lost events just there, and this "
                "may be one of them"
            )
        else:
            cause, text = "only modelled", f"only the model has {_told(event)}"
        add(before + 1, Difference(cause, None, int(right.numbers[j]), text))
    found.sort(key=lambda item: item[0])
    diff.differences = [difference for _, difference in found[:EXPLAINED]]
    diff.causes = dict(sorted(causes.items(), key=lambda item: -item[1]))


_Runs = dict[int, tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]]


def _moved_in(events: _Events) -> _Runs:
    """For each processor starts and ends of the spans that the model moved to it."""
    runs: _Runs = {}
    moves = events[events["kind"] == Kind.MIGRATE]
    for peer in np.unique(moves["peer"]).tolist():
        spans = Spans()
        spans.add(moves[moves["peer"] == peer])
        # The last byte: the end of the address space does not fit 64 bits.
        found = np.array([(start, end - 1) for start, end in spans.runs()], "<u8").reshape(-1, 2)
        runs[peer] = found[:, 0], found[:, 1]
    return runs


def _missing(event: np.void, moved_in: _Runs) -> tuple[str, str]:
    """Why the model lacks a recorded event."""
    kind, value = int(event["kind"]), int(event["value"])
    if kind in (Kind.FAULT, Kind.FAULT_END):
        starts, lasts = moved_in.get(int(event["proc"]), (np.empty(0, "<u8"),) * 2)
        at = int(np.searchsorted(starts, event["addr"], side="right")) - 1
        if at >= 0 and event["addr"] <= lasts[at]:
            return "mapped before", (
                f"the model has it in a window that moved to {processor_name(int(event['proc']))} "
                f"({int(starts[at]):#x} to {int(lasts[at]):#x})"
            )
        return "not touched", "nothing that was replayed faults on this page"
    if kind == Kind.MIGRATE:
        if value >> 28 & 1:
            return "end missing", "its end was never recorded, it may not have been done"
        return {
            0: ("prefetch call", "a call of the program, which the replayed touches do not hold"),
            2: ("CPU touch", "the replayed touches hold none of the CPU there"),
            3: ("eviction", "device memory was short; in the model it was not"),
        }.get(value & 0xFF, ("only recorded", "no fault of the model moves these pages"))
    if kind == Kind.EVICT:
        return "eviction", "device memory was short; in the model it was not"
    if kind == Kind.UNMAP_GPU:
        return {
            0: ("CPU mapping changed", "the program changed the mapping (unmap, advice, copy)"),
            1: ("migration", "it belongs to a migration that the model does not do"),
            2: ("CPU mapping changed", "the program unmapped it"),
        }.get(value, ("only recorded", "no step of the model unmaps it"))
    return "queues", "what stopped or restored them lies outside the replayed touches"


def _near(
    left: _Events,
    right: _Events,
    alone_left: npt.NDArray[np.intp],
    alone_right: npt.NDArray[np.intp],
) -> dict[int, int]:
    """Events of a kind on overlapping pages, the same way or the same span; each used once."""
    near: dict[int, int] = {}
    for kind in COMPARED:
        mine = alone_left[left["kind"][alone_left] == kind]
        others = alone_right[right["kind"][alone_right] == kind][:_NEAR]
        if not len(mine) or not len(others):
            continue
        starts = right["addr"][others].astype(np.uint64)
        ends = starts + np.maximum(right["size"][others], np.uint64(1))
        procs, peers = right["proc"][others], right["peer"][others]
        free = np.ones(len(others), bool)
        for i in mine[:_NEAR].tolist():
            start = left["addr"][i]
            end = start + max(left["size"][i], np.uint64(1))
            hits = free & (starts < end) & (ends > start)
            same_way = (procs == left["proc"][i]) & (peers == left["peer"][i])
            same_span = (starts == start) & (ends == end)
            for better in (hits & same_way & same_span, hits & same_way, hits & same_span):
                if better.any():
                    at = int(np.argmax(better))
                    free[at] = False
                    near[i] = int(others[at])
                    break
    return near


def _parting(one: np.void, other: np.void) -> tuple[str, str]:
    """The field in which two events on the same pages part, and a sentence."""
    head = f"{_told(one)} is {_told(other)} in the model"
    kind = int(one["kind"])
    if one["addr"] != other["addr"] or one["size"] != other["size"]:
        a, b = int(one["size"]) >> PAGE_SHIFT, int(other["size"]) >> PAGE_SHIFT
        return "window", (
            f"{head}: {a:,} pages against {b:,}; granularity or the edges of the range differ"
        )
    if one["proc"] != other["proc"] or one["peer"] != other["peer"]:
        if kind == Kind.MIGRATE:
            return "direction", f"{head}: the best location differs"
        return "processor", head
    if kind == Kind.FAULT:
        return "access", f"{head}: one reads, the other writes"
    if kind == Kind.FAULT_END:
        return "outcome", (
            f"{head}: one moved pages, the other only updated the page table; the pages were "
            "elsewhere when it faulted"
        )
    error = MigrateValue.unpack(int(one["value"])).error if kind == Kind.MIGRATE else None
    if error:
        return "failed", f"{head}: the recorded one failed with error {error}"
    return "trigger", f"{head}: triggers differ"


def _told(event: np.void) -> str:
    """An event as a phrase."""
    kind, addr = int(event["kind"]), int(event["addr"])
    proc, peer = processor_name(int(event["proc"])), processor_name(int(event["peer"]))
    size = int(event["size"])
    span = f"{addr:#x}" if size <= PAGE_SIZE else f"{addr:#x} ({format_size(size)})"
    value = int(event["value"])
    match kind:
        case Kind.FAULT:
            how = "write" if event["access"] == Access.WRITE else "read"
            return f"a {how} fault of {proc} at {span}"
        case Kind.FAULT_END:
            return f"a fault of {proc} at {span} served by {'migration' if value else 'mapping'}"
        case Kind.MIGRATE:
            trigger = value & 0xFF
            why = _TRIGGERS[trigger] if trigger < len(_TRIGGERS) else f"trigger {trigger}"
            return f"a migration of {span} from {proc} to {peer} ({why})"
        case Kind.EVICT:
            return f"an eviction of {span} from {proc}"
        case Kind.UNMAP_GPU:
            return f"an unmap of {span} on {proc} (trigger {value})"
        case Kind.QUEUE_EVICT:
            return f"a stop of the queues of {proc} (trigger {value})"
    return f"a restore of the queues of {proc}{', put off' if value else ''}"


def gathered(chunks: Iterable[_Events]) -> _Events:
    """The events of a log that a diff looks at, in one array."""
    wanted = [int(kind) for kind in (*COMPARED, Kind.DROPPED)]
    kept = [chunk[np.isin(chunk["kind"], wanted)] for chunk in chunks]
    return np.concatenate(kept) if kept else np.empty(0, RECORD)


def diff_report(diff: EventDiff, shown: int = 20) -> list[str | Table]:
    """A diff as lines and a table.

    Parameters
    ----------
    diff : EventDiff
    shown : int, default 20
        Differences that are told one by one.

    Returns
    -------
    list of str or rich.table.Table
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("event")
    for name in ("recorded", "modelled", "matched"):
        table.add_column(name, justify="right", no_wrap=True)
    for kind, row in diff.kinds.items():
        table.add_row(kind.replace("_", " "), *(f"{number:,}" for number in row.values()))
    parts: list[str | Table] = [table, ""]
    for name, (recorded, modelled) in diff.durations.items():
        ratio = f"{modelled / recorded:.2f}" if recorded else "-"
        parts.append(
            f"matched {name}: {format_duration(recorded)} recorded, {format_duration(modelled)} "
            f"modelled ({ratio} times)"
        )
    for name, number in diff.unpaired.items():
        parts.append(f"migration {name.replace('_', ' ')}: {number:,}, compared by what they say")
    if diff.lost_events:
        parts.append(f"the recorder lost {counted(diff.lost_events, 'event')}")
    if diff.backward:
        parts.append(
            f"{counted(diff.backward, 'recorded event')} behind a later one: times are not compared"
        )
    if diff.equal:
        return [*parts, f"no difference in {counted(diff.recorded, 'event')}"]
    causes = ", ".join(f"{name} {number:,}" for name, number in diff.causes.items())
    parts += [
        f"differences: {sum(diff.causes.values()):,} ({causes})",
        f"the first: {diff.differences[0].text}",
    ]
    parts += [f"  {each.text}" for each in diff.differences[1:shown]]
    if len(diff.differences) > shown:
        parts.append(f"  and {sum(diff.causes.values()) - shown:,} more")
    return parts
