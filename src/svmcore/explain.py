"""One record of a trace, answered with the reason why: what decided, what moved, what it cost."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._faults import REASONS
from ._replay import OUTCOME
from .attributes import Attribute, Flag
from .engine import Explanation, RangeInfo, Space
from .errors import AddressError, InvalidArgumentError, NotSupportedError, error_from_errno
from .history import EVICTIONS, Change, Naming, page_changes, records_effects, touches
from .machine import Costs, Machine
from .plans import Due, Plan
from .policies.base import Policy, make_policy
from .policies.outcome import Outcome
from .records import UNKNOWN, Kind, processor_name
from .replay import Watch, processor_code_of, replay
from .traces import Trace, open_trace
from .units import PAGE_SHIFT, PAGE_SIZE

__all__ = ["Answer", "Moved", "Setting", "explain"]

#: Pages of a record that are asked about until one faults.
_ASKED = 1 << 14
#: Changes of the page, and other records that touch it, that are told.
_CHANGES, _TOUCHES = 8, 8
_ADVICE = [Kind.ADVISE, Kind.PREFETCH, Kind.UNMAP]
#: Attribute of a range -> the types of advice that set it.
_SET_BY = {
    "preferred_location": {Attribute.PREFERRED_LOC},
    "prefetch": {Attribute.PREFETCH_LOC},
    "granularity": {Attribute.GRANULARITY},
    "flags": {Attribute.SET_FLAGS, Attribute.CLR_FLAGS},
    "access": {Attribute.ACCESS, Attribute.ACCESS_IN_PLACE, Attribute.NO_ACCESS},
    "accessed_by": {Attribute.ACCESS_IN_PLACE, Attribute.NO_ACCESS},
    "read_mostly": {Attribute.SET_FLAGS, Attribute.CLR_FLAGS},
}
#: Parts of a cost that are counted, and the constant of the machine that each one multiplies.
_PARTS = {
    "faults": ("fault_ns", "fault_batch_ns", "fault_in_batch_ns"),
    "unmapping": ("unmap_ns",),
    "mapping": ("map_ns",),
    "evicting": ("evict_ns",),
    "remote": ("remote_access_ns",),
}


class Setting(NamedTuple):
    """An attribute of the range, and where it comes from."""

    name: str
    value: str
    origin: str
    """``default``, the policy's setting, a record or a hint."""


class Moved(NamedTuple):
    """Pages that moved together."""

    start: int
    """First byte of the span; not all of it need have moved."""
    size: int
    source: str
    target: str
    pages: int
    cause: str
    buffer: str | None
    """Buffer of the trace that holds the first byte."""
    last_touch: int | None
    """Of an eviction: the last record before that touched the span."""


@dataclass
class Answer:
    """Why one record did what it did.

    Attributes
    ----------
    record : int
    kind : str
        ``access``, ``fault``, ``map``, ``unmap``, ``advise`` or ``prefetch``.
    by, access : str
        Who touches, and ``read``, ``write`` or ``atomic``; empty for other kinds.
    addr, size : int
        Bytes of the record.
    page : int
        First byte of the page that is explained.
    buffer : str or None
        The buffer that holds it.
    where : str
        Where it was before: ``cpu``, ``gpu0`` ..., or ``absent``.
    decision : Explanation or None
        Of a touch: the rule, its text, location, window, candidates.
    range : RangeInfo, ManagedRange or None
        The range before.
    attributes : list of Setting
    moved, evicted : list of Moved
        By the whole record; what left a full device for it stands apart.
    changes : list of Change
        What happened to the page before, the last ones.
    done : dict
        ``faults``, ``duplicates``, ``moved_pages``, ``remote_pages``, ``code``, ``reason``.
    began_ns, cost_ns : int
        Modelled time before, and what the record took.
    costs : dict
        Its parts: ``faults``, ``transfers``, ``unmapping``, ``mapping``, ``evicting``,
        ``remote``, ``computing``, and the rest: ``waiting``, or ``waiting and copies`` where
        pages were copied for reading. Those of 0 are left out. What was paid while something
        longer was waited for counts with the waiting.
    touched_by : list of int
        Where only an address was asked for: the next records that touch it.
    """

    record: int
    kind: str
    by: str
    access: str
    addr: int
    size: int
    page: int
    buffer: str | None
    where: str = "absent"
    decision: Explanation | None = None
    range: Any = None
    attributes: list[Setting] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    evicted: list[Moved] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    done: dict[str, Any] = field(default_factory=dict)
    began_ns: int = 0
    cost_ns: int = 0
    costs: dict[str, int] = field(default_factory=dict)
    touched_by: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``svmcore explain --json`` prints them."""
        table = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        decision, found = self.decision, self.range
        table["decision"] = None if decision is None else _plain(decision)
        table["range"] = None if found is None else _plain(found)
        for key in ("attributes", "moved", "evicted"):
            table[key] = [_plain(row) for row in table[key]]
        table["changes"] = [dataclasses.asdict(change) for change in self.changes]
        return table


def _plain(row: Any) -> dict[str, Any]:
    """A named tuple as JSON values, those in it too."""
    table = {}
    for key, value in row._asdict().items():
        if isinstance(value, tuple):
            value = [_plain(v) if hasattr(v, "_asdict") else v for v in value]
        table[key] = value.name or "" if isinstance(value, Flag) else value
    return table


def explain(
    trace: Trace | str | os.PathLike[str],
    *,
    records: Sequence[int] = (),
    at: Sequence[int] = (),
    policy: str | Policy = "kfd",
    machine: str | Path | Machine = "gpu-80g",
    settings: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    by: str = "gpu0",
) -> list[Answer]:
    """Replay a trace up to some records and say of each why it did what it did.

    Parameters
    ----------
    trace : Trace or path
    records : sequence of int
        Numbers of records.
    at : sequence of int
        Byte addresses. With *records*, the page of each that is explained (without: the first
        one that faults, or the first); alone, the first record that touches each address.
    policy, machine, settings
        What counts where the plan says nothing.
    plan : Plan, optional
    by : str
        Processor of records that name none.

    Returns
    -------
    list of Answer
        In the order of the records.

    Raises
    ------
    InvalidArgumentError
        If nothing is asked for, a record is not there or a recorded outcome, or it does not
        touch an address of *at*.
    AddressError
        If no record touches an address.
    SvmError
        As :func:`svmcore.replay`.

    Complexity
    ----------
    Three replays of the records before, two of them with every effect told; a few clones of the
    space for each record.

    Examples
    --------
    >>> from importlib import resources
    >>> from svmcore.explain import explain
    >>> with resources.as_file(resources.files("svmcore") / "data" / "demo.csv.gz") as demo:
    ...     answer = explain(demo, records=[0])[0]
    >>> answer.decision.rule, answer.decision.location, answer.done["faults"]
    ('unregistered', 'gpu0', 1)
    """
    source = trace if isinstance(trace, Trace) else open_trace(trace)
    for number in records:
        if number < 0:
            raise InvalidArgumentError(f"record {number}: expected 0 or more")
    for addr in at:
        if not 0 <= addr < 1 << 64:
            raise InvalidArgumentError(f"address {addr:#x}: expected 0 to 2**64 - 1")
    if not records and not at:
        raise InvalidArgumentError("explain: expected a record or an address")

    def fresh() -> Space:
        if plan is not None:
            return plan.space(policy, machine, settings)
        return Space(machine, policy=make_policy(policy, **(settings or {})))

    naming = Naming(source.mappings(), by)
    asked, later = _asked(source, records, at)
    space = fresh()
    processor_code_of(by, space)
    if not records_effects(space):
        raise NotSupportedError(
            f"policy {space.policy.name}: keeps no log of its effects: expected one that does"
        )
    seen = _Witness(space, naming, asked)
    replay(source, space, by=by, plan=plan, stop=max(asked) + 1, watch=seen)
    for answer in seen.answers:
        page = answer.page >> PAGE_SHIFT
        changes = page_changes(source, fresh, page, answer.record, by=by, plan=plan)
        answer.changes = changes[-_CHANGES:]
        answer.touched_by = later.get((answer.record, answer.page), [])
    _last_touches(source, seen.answers)
    return seen.answers


def _asked(
    source: Trace, records: Sequence[int], at: Sequence[int]
) -> tuple[dict[int, list[int]], dict[tuple[int, int], list[int]]]:
    """Record -> addresses asked about in it, and the next records of an address alone."""
    asked: dict[int, list[int]] = {number: [] for number in records}
    wanted = {number: list(at) for number in records}
    met: dict[int, list[int]] = {addr: [] for addr in at}
    begin = 0
    for chunk in source.chunks():
        for number in [n for n in wanted if begin <= n < begin + len(chunk)]:
            record = chunk[number - begin : number - begin + 1]
            if int(record["kind"][0]) > Kind.PREFETCH:
                raise InvalidArgumentError(
                    f"{source.path}: record {number} is a recorded {_kind(record[0])}: expected a "
                    f"record that is replayed{_next_replayed(source, number)}"
                )
            asked[number] = [a for a in at if touches(record, a, a + 1)[0]]
            del wanted[number]
        if not records:
            for addr, numbers in met.items():
                if len(numbers) <= _TOUCHES:
                    hit = touches(chunk, addr, addr + 1) & (chunk["kind"] <= Kind.FAULT)
                    numbers += (np.flatnonzero(hit)[: _TOUCHES + 1] + begin).tolist()
        begin += len(chunk)
    for number in wanted:
        last = f"0 to {begin - 1}" if begin else "a trace with records"
        raise InvalidArgumentError(f"{source.path}: record {number}: expected {last}")
    later: dict[tuple[int, int], list[int]] = {}
    for addr in at:
        if records and not any(addr in found for found in asked.values()):
            raise InvalidArgumentError(
                f"{source.path}: address {addr:#x}: expected one that the record touches"
            )
        if not records:
            if not met[addr]:
                raise AddressError(
                    f"{source.path}: no record touches {addr:#x}: expected an address that one does"
                )
            first, *more = met[addr]
            asked.setdefault(first, []).append(addr)
            later[first, addr >> PAGE_SHIFT << PAGE_SHIFT] = more[:_TOUCHES]
    return asked, later


def _next_replayed(source: Trace, number: int) -> str:
    """Which record after one is replayed, for a message."""
    begin = 0
    for chunk in source.chunks():
        after = np.flatnonzero(chunk["kind"] <= Kind.PREFETCH)
        after = after[after + begin > number]
        if len(after):
            return f", the next is {begin + int(after[0])}"
        begin += len(chunk)
    return ""


def _kind(record: np.void) -> str:
    return Kind(int(record["kind"])).name.lower()


class _Witness(Watch):
    """Looks at the asked records before and after."""

    def __init__(self, space: Space, naming: Naming, asked: dict[int, list[int]]) -> None:
        self.space, self.naming, self.asked = space, naming, asked
        self.targets = sorted(asked)
        self.answers: list[Answer] = []
        self.present: list[Answer] = []
        self.advice = _Given(naming)
        self.counted: dict[str, int] = {}
        self.copies = 0

    def cut(self, number: int) -> int | None:
        bounds = (n + past for n in self.targets for past in (0, 1))
        return next((bound for bound in bounds if bound > number), None)

    def before(self, number: int, records: npt.NDArray[np.void]) -> None:
        if number not in self.asked:
            return
        record = records[0]
        pages = self.asked[number] or [self._page(record)]
        self.present = [self._answer(number, record, addr) for addr in dict.fromkeys(pages)]
        self.counted = self._probe(records)
        self.copies = self.space.process.totals()["duplicated_pages"]
        self.space.process.begin(self.space.process.now)

    def after(
        self, number: int, records: npt.NDArray[np.void], outcomes: npt.NDArray[np.void]
    ) -> None:
        self.advice.records(number, records, outcomes["code"])
        if number not in self.asked:
            return
        effects: Outcome = self.space.process.finish()
        moved, evicted = _moves(self.space, self.naming, effects)
        done = _done(outcomes[0])
        for answer in self.present:
            answer.moved, answer.evicted, answer.done = moved, evicted, done
            answer.cost_ns = int(outcomes["t_ns"][0]) - answer.began_ns
            answer.costs = self._costs(records[0], answer, int(outcomes["t_ns"][0]))
        self.answers += self.present

    def hinted(self, number: int, hint: Due, outcomes: npt.NDArray[np.void]) -> None:
        self.advice.hint(hint, outcomes["code"])

    def _page(self, record: np.void) -> int:
        """The first page that faults; the first one of all where none does."""
        first, size = int(record["addr"]), max(1, int(record["size"]))
        if record["kind"] > Kind.FAULT:
            return first
        by, access = self.naming.touch(record)
        last = (first + size - 1) >> PAGE_SHIFT
        for page in range(first >> PAGE_SHIFT, min(last, (first >> PAGE_SHIFT) + _ASKED) + 1):
            addr = max(first, page << PAGE_SHIFT)
            if self.space.explain(addr, by, access).rule not in _SILENT:
                return addr
        return first

    def _answer(self, number: int, record: np.void, addr: int) -> Answer:
        """What is known before the record is replayed."""
        touch = record["kind"] <= Kind.FAULT
        by, access = self.naming.touch(record) if touch else ("", 0)
        start = addr >> PAGE_SHIFT << PAGE_SHIFT
        found = self.space.range_at(addr)
        return Answer(
            number,
            _kind(record),
            by,
            ("read", "write", "atomic")[access] if touch else "",
            int(record["addr"]),
            int(record["size"]),
            start,
            self.naming.buffer(addr),
            where=self.space.residency(start, PAGE_SIZE)[0][2],
            decision=self.space.explain(addr, by, access) if touch else None,
            range=found,
            attributes=self.advice.settings(self.space, found, addr, by),
            began_ns=self.begins(record),
        )

    def _probe(self, records: npt.NDArray[np.void]) -> dict[str, int]:
        """Constant -> the modelled time after the record, were the constant 1 ns more.

        What it is more than the true time is how often the constant is paid: no policy has to
        tell what it charges for.
        """
        costs, ends = self.space.machine.costs, {}
        out = np.empty(len(records), OUTCOME)
        used = self.space.policy.costs_used
        for name in (name for names in _PARTS.values() for name in names):
            if used and name not in used:
                continue
            try:
                clone = self.space.clone()
            except NotSupportedError:
                return {}
            more: dict[str, Any] = {name: getattr(costs, name) + 1}
            clone.process.set_costs(dataclasses.replace(costs, **more))
            self.play(clone.process, records, out)
            ends[name] = int(out["t_ns"][0])
        return ends

    def _costs(self, record: np.void, answer: Answer, ended: int) -> dict[str, int]:
        costs = self.space.machine.costs
        times = {name: max(0, end - ended) for name, end in self.counted.items()}
        parts = {
            part: int(sum(times.get(name, 0) * getattr(costs, name) for name in names))
            for part, names in _PARTS.items()
        }
        if not self.counted:
            return {}
        parts["remote"] += int(
            answer.done["remote_pages"] * PAGE_SIZE * 1e9 // costs.remote_bytes_per_s
        )
        parts["transfers"] = sum(_transfer(costs, row) for row in (*answer.moved, *answer.evicted))
        parts["computing"] = int(record["dur_ns"]) if record["kind"] == Kind.ACCESS else 0
        rest = answer.cost_ns - sum(parts.values())
        # The engine rounds down for each answer from another memory, here once.
        if abs(rest) <= times.get("remote_access_ns", 0):
            parts["remote"] += rest
            rest = 0
        copied = self.space.process.totals()["duplicated_pages"] > self.copies
        parts["waiting and copies" if copied else "waiting"] = rest
        return {part: ns for part, ns in parts.items() if ns}


#: Rules that say that a touch finds the page as it is.
_SILENT = ("mapped", "system memory", "coherent")


def _transfer(costs: Costs, row: Moved) -> int:
    ends = row.source == "cpu", row.target == "cpu"
    curve = "to_host" if ends[1] else "to_device" if ends[0] else "peer"
    return costs.transfer_ns(row.pages * PAGE_SIZE, curve)


def _moves(space: Space, naming: Naming, effects: Outcome) -> tuple[list[Moved], list[Moved]]:
    """What moved, and what was evicted."""
    moved: list[Moved] = []
    evicted: list[Moved] = []
    for first, last, source, target, cause, pages in effects.migr:
        if not pages:
            continue
        out = cause in EVICTIONS
        row = Moved(
            first << PAGE_SHIFT,
            (last - first + 1) << PAGE_SHIFT,
            space.location_name(source),
            space.location_name(target),
            int(pages),
            "eviction" if out else cause,
            naming.buffer(first << PAGE_SHIFT),
            None,
        )
        (evicted if out else moved).append(row)
    return moved, evicted


def _done(row: np.void) -> dict[str, Any]:
    code = int(row["code"])
    return {
        "faults": int(row["faults"]),
        "duplicates": int(row["duplicates"]),
        "moved_pages": int(row["moved"]),
        "remote_pages": int(row["remote"]),
        "code": error_from_errno(code, "").code if code else "OK",
        "reason": REASONS[row["reason"]],
    }


def _last_touches(source: Trace, answers: list[Answer]) -> None:
    """Tell of each evicted span the last record that touched it before."""
    wanted = {
        (answer.record, row.start, row.size): -1 for answer in answers for row in answer.evicted
    }
    stop = max((record for record, _, _ in wanted), default=0)
    begin = 0
    for chunk in source.chunks():
        if begin >= stop:
            break
        is_touch = chunk["kind"] <= Kind.FAULT
        for record, start, size in wanted:
            part = max(0, min(len(chunk), record - begin))
            hit = np.flatnonzero((touches(chunk, start, start + size) & is_touch)[:part])
            if len(hit):
                wanted[record, start, size] = begin + int(hit[-1])
        begin += len(chunk)
    for answer in answers:
        answer.evicted = [
            row._replace(last_touch=None if last < 0 else last)
            for row in answer.evicted
            for last in (wanted[answer.record, row.start, row.size],)
        ]


class _Advice(NamedTuple):
    """Advice, a prefetch or an unmapping that took effect."""

    name: str
    addr: int
    size: int
    kind: int
    attribute: int
    peer: int
    value: int


class _Given:
    """The advice that a run was given so far."""

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        self.rows: list[_Advice] = []

    def records(self, number: int, records: npt.NDArray[np.void], codes: npt.NDArray[Any]) -> None:
        """Those of a piece of the trace."""
        for index in np.flatnonzero(np.isin(records["kind"], _ADVICE) & (codes == 0)).tolist():
            self._add(f"record {number + index}", records[index])

    def hint(self, hint: Due, codes: npt.NDArray[Any]) -> None:
        """Those of a hint."""
        for index in np.flatnonzero(codes == 0).tolist():
            self._add(hint.place, hint.records[index])

    def _add(self, name: str, record: np.void) -> None:
        kind = int(record["kind"])
        attribute = Attribute.PREFETCH_LOC if kind == Kind.PREFETCH else int(record["access"])
        fields = (int(record[key]) for key in ("peer", "value"))
        self.rows.append(
            _Advice(name, int(record["addr"]), int(record["size"]), kind, attribute, *fields)
        )

    def settings(self, space: Space, found: Any, addr: int, by: str) -> list[Setting]:
        """The attributes of a range, and where each comes from."""
        if found is None:
            return []
        if isinstance(found, RangeInfo):
            named = [
                ("preferred_location", found.preferred),
                ("prefetch", found.prefetch),
                ("granularity", str(found.granularity)),
                ("flags", found.flags.name or "none"),
            ]
            if by.startswith("gpu"):
                named.append(("access", _access(space, found, by)))
        else:
            named = [
                ("preferred_location", found.preferred),
                ("accessed_by", ", ".join(found.accessed_by) or "nobody"),
                ("read_mostly", found.read_mostly),
            ]
        of = by if "access" in (name for name, _ in named) else None
        return [Setting(n, v, self._origin(space, n, addr, of)) for n, v in named]

    def _origin(self, space: Space, name: str, addr: int, of: str | None) -> str:
        for row in reversed(self.rows):
            if not row.addr >> PAGE_SHIFT << PAGE_SHIFT <= addr < row.addr + row.size:
                continue
            if row.kind == Kind.UNMAP:
                break
            other = name == "access" and row.peer != UNKNOWN and processor_name(row.peer) != of
            flags = name == "read_mostly" and not row.value & Flag.GPU_READ_MOSTLY
            if row.attribute in _SET_BY[name] and not other and not flags:
                return row.name
        own = name == "granularity" and name in space.policy.settings()
        return "the policy's setting" if own else "default"


def _access(space: Space, found: RangeInfo, by: str) -> str:
    if by in found.access:
        return "access"
    if by in found.access_in_place:
        return "access_in_place"
    # Under a policy in Python the words are advice, and the policy says what none means.
    return "not advised" if hasattr(space.policy, "service") else "no_access"
