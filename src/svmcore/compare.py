"""Several hint plans on one trace: which is best, and where two of them part."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine import Explanation, Space
from .errors import InvalidArgumentError
from .history import EVICTIONS, Change, Naming, page_changes, records_effects
from .machine import Machine
from .plans import Plan, load_plan
from .policies.base import Policy
from .records import Kind
from .replay import Watch, replay
from .result import Result
from .traces import Trace, open_trace
from .units import PAGE_SHIFT, PAGE_SIZE, format_size

__all__ = ["Comparison", "Difference", "compare"]

#: Fields of an outcome that say what was done; its time is a consequence.
_DONE = ("code", "reason", "best", "moved", "remote", "faults", "duplicates")
#: Those that say how the touch itself fared, whatever it did to other pages.
_MET = ("code", "reason", "remote", "faults")
#: Pages of a record that are asked about, one by one, until two plans disagree.
_ASKED = 1 << 14


@dataclass(frozen=True)
class Difference:
    """A record that two plans treat differently.

    Attributes
    ----------
    record : int
        Its number in the trace.
    page : int
        4 KiB page number of the first page about which the rules disagree, the
        record's first one where they do not.
    rule_a, rule_b : str
        The rule that decided under each, as :meth:`svmcore.engine.Space.explain` names it.
    text_a, text_b : str
        A sentence for each.
    evicted_a, evicted_b : str
        What had to be evicted for the record under each, a sentence; empty where nothing was.
    earlier_a, earlier_b : Change or None
        What happened to the page before under this plan and not under the other one, the last
        of it: where it was evicted, moved, copied or mapped, and by which record.
    """

    record: int
    page: int
    rule_a: str
    rule_b: str
    text_a: str
    text_b: str
    evicted_a: str = ""
    evicted_b: str = ""
    earlier_a: Change | None = None
    earlier_b: Change | None = None


@dataclass(frozen=True)
class Comparison:
    """Plans in rank order, with what each led to.

    Attributes
    ----------
    plans : list of (Plan, Result)
        Fewest fatal records first, then the least modelled time, then faults.
    first_difference : Difference or None
        For two plans, where they part; ``None`` when they never do.
    first_fault_difference : Difference or None
        The first later record that faults, is fatal or is answered from another memory under one
        plan and not under the other, as where the first difference was an eviction for another
        page. ``None`` where that is the first difference itself.
    names : tuple of str
        The plans as they were given: *a* and *b* of the differences.
    """

    plans: list[tuple[Plan, Result]]
    first_difference: Difference | None
    first_fault_difference: Difference | None = None
    names: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``svmcore compare --json`` prints."""
        from dataclasses import asdict

        parts = {
            "first_difference": self.first_difference,
            "first_fault_difference": self.first_fault_difference,
        }
        return {
            "plans": [
                {"name": plan.name, "plan": plan.where, **result.to_dict(buffers=False)}
                for plan, result in self.plans
            ],
            **{key: None if part is None else asdict(part) for key, part in parts.items()},
        }


def compare(
    trace: Trace | str | os.PathLike[str],
    plans: Sequence[Plan | str | os.PathLike[str]],
    *,
    policy: str | Policy = "kfd",
    machine: str | Path | Machine = "gpu-80g",
    settings: Mapping[str, Any] | None = None,
    by: str = "gpu0",
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Replay a trace under each plan and rank them.

    Parameters
    ----------
    trace : Trace or path
    plans : sequence of Plan or path
        At least one; their names differ.
    policy, machine, settings
        What counts where a plan says nothing.
    by : str
        Processor of records that name none.
    progress : callable, optional
        Called with the name of each plan before its replay.

    Returns
    -------
    Comparison

    Raises
    ------
    InvalidArgumentError
        For a plan that cannot be read or does not fit trace, policy or machine;
        all plans are checked before the first replay.
    TraceError
        If the trace cannot be read.

    Complexity
    ----------
    A replay a plan; for two plans six more, up to the first difference, and as many where pages
    begin to fault otherwise later. Four of the six tell every effect, which is slower.
    """
    source = trace if isinstance(trace, Trace) else open_trace(trace)
    wanted = [plan if isinstance(plan, Plan) else load_plan(plan) for plan in plans]
    if not wanted:
        raise InvalidArgumentError("compare: expected at least one plan")
    names = [plan.name for plan in wanted]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(
                f"compare: two plans named {name!r}, expected names to differ"
            )

    def fresh(plan: Plan) -> Space:
        return plan.space(policy, machine, settings)

    mappings = source.mappings()
    for plan in wanted:
        plan.schedule(mappings, fresh(plan).machine)
        plan.check_clock(source)
    two = len(wanted) == 2
    results = []
    for plan in wanted:
        if progress is not None:
            progress(plan.name)
        results.append(replay(source, fresh(plan), by=by, plan=plan, outcomes=two))
    first = later = None
    if two:
        outcomes = [result.outcomes for result in results]
        done, met = (_first_unlike(outcomes[0], outcomes[1], names) for names in (_DONE, _MET))
        if done is not None:
            first = _explained(source, wanted, fresh, done, by)
        if met is not None and met != done:
            later = _explained(source, wanted, fresh, met, by)
    for result in results:
        result.outcomes = None
    ranked = sorted(zip(wanted, results, strict=True), key=lambda pair: _rank(pair[1]))
    return Comparison(ranked, first, later, tuple(names))


def _rank(result: Result) -> tuple[int, int, int]:
    return result.counters["errors"], result.time_ns, result.counters["faults"]


def _first_unlike(
    one: npt.NDArray[np.void] | None, other: npt.NDArray[np.void] | None, names: Sequence[str]
) -> int | None:
    """Number of the first record with another outcome in one of these fields."""
    if one is None or other is None:
        return None
    unlike = np.zeros(len(one), bool)
    for name in names:
        unlike |= one[name] != other[name]
    return int(unlike.argmax()) if unlike.any() else None


def _explained(
    source: Trace,
    plans: Sequence[Plan],
    fresh: Callable[[Plan], Space],
    number: int,
    by: str,
) -> Difference:
    """Both spaces before the record say which rule decides it, and what it evicts."""
    naming = Naming(source.mappings(), by)
    seen = [_Before(fresh(plan), naming, number) for plan in plans]
    for plan, one in zip(plans, seen, strict=True):
        replay(source, one.space, by=by, plan=plan, stop=number + 1, watch=one)
    record = _record(source, number)
    first = int(record["addr"]) >> PAGE_SHIFT
    if record["kind"] > Kind.FAULT:
        word = Kind(int(record["kind"])).name.lower()
        text = f"The driver's answer to this {word}."
        return Difference(number, first, word, word, text, text, seen[0].evicted, seen[1].evicted)
    a, b = (dict(before.asked) for before in seen)
    unlike = (page for page in a if page in b and _rules(a[page]) != _rules(b[page]))
    # Equal rules with another end, as where memory runs out on the way.
    page = next(unlike, first)
    changes = [
        page_changes(source, partial(fresh, plan), page, number, by=by, plan=plan) for plan in plans
    ]
    return Difference(
        number,
        page,
        a[page].rule,
        b[page].rule,
        a[page].text,
        b[page].text,
        seen[0].evicted,
        seen[1].evicted,
        _own(changes[0], changes[1]),
        _own(changes[1], changes[0]),
    )


def _own(changes: list[Change], others: list[Change]) -> Change | None:
    """The last change of a page that the other plan does not make."""
    shared = {change.key for change in others}
    return next((change for change in reversed(changes) if change.key not in shared), None)


def _rules(why: Explanation) -> tuple[Any, ...]:
    return why.rule, why.location, why.window


class _Before(Watch):
    """Asks a space about one record before it is replayed, and notes what is evicted for it."""

    def __init__(self, space: Space, naming: Naming, number: int) -> None:
        self.space, self.naming, self.number = space, naming, number
        self.asked: list[tuple[int, Explanation]] = []
        self.evicted = ""

    def cut(self, number: int) -> int | None:
        return self.number if number < self.number else None

    def before(self, number: int, records: npt.NDArray[np.void]) -> None:
        if number != self.number:
            return
        record = records[0]
        if record["kind"] <= Kind.FAULT:
            first = int(record["addr"]) >> PAGE_SHIFT
            last = (int(record["addr"]) + max(1, int(record["size"])) - 1) >> PAGE_SHIFT
            who, access = self.naming.touch(record)
            for page in range(first, min(last, first + _ASKED) + 1):
                self.asked.append((page, self.space.explain(page * PAGE_SIZE, who, access)))
        if records_effects(self.space):
            self.space.process.begin(self.space.process.now)

    def after(
        self, number: int, records: npt.NDArray[np.void], outcomes: npt.NDArray[np.void]
    ) -> None:
        if number != self.number or not records_effects(self.space):
            return
        gone = [row for row in self.space.process.finish().migr if row[4] in EVICTIONS and row[5]]
        if gone:
            gpu, place = (self.space.location_name(at) for at in gone[0][2:4])
            size = format_size(sum(int(row[5]) for row in gone) * PAGE_SIZE)
            self.evicted = (
                f"For it {size} left {gpu}, which was full, for {place}, the first at "
                f"{self.naming.place(gone[0][0] << PAGE_SHIFT)}."
            )


def _record(source: Trace, number: int) -> np.void:
    for records in source.chunks():
        if number < len(records):
            record: np.void = records[number]
            return record
        number -= len(records)
    raise InvalidArgumentError(f"{source.path}: record {number} past its end")
