"""Several hint plans on one trace: which is best, and where two of them part."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine import Space
from .errors import InvalidArgumentError
from .machine import Machine
from .plans import Plan, load_plan
from .policies.base import Policy
from .records import Access, Kind, processor_name
from .replay import replay
from .result import Result
from .traces import Trace, open_trace
from .units import PAGE_SHIFT, PAGE_SIZE

__all__ = ["Comparison", "Difference", "compare"]

#: Fields of an outcome that say what was done; its time is a consequence.
_DONE = ("code", "reason", "best", "moved", "remote", "faults", "duplicates")
#: Pages of a record that are asked about, one by one, until two plans disagree.
_ASKED = 1 << 14


@dataclass(frozen=True)
class Difference:
    """The first record that two plans treat differently.

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
    """

    record: int
    page: int
    rule_a: str
    rule_b: str
    text_a: str
    text_b: str


@dataclass(frozen=True)
class Comparison:
    """Plans in rank order, with what each led to.

    Attributes
    ----------
    plans : list of (Plan, Result)
        Fewest fatal records first, then the least modelled time, then faults.
    first_difference : Difference or None
        For two plans, where they part; ``None`` when they never do.
    """

    plans: list[tuple[Plan, Result]]
    first_difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``svmcore compare --json`` prints."""
        from dataclasses import asdict

        part = self.first_difference
        return {
            "plans": [
                {"name": plan.name, "plan": plan.where, **result.to_dict(buffers=False)}
                for plan, result in self.plans
            ],
            "first_difference": None if part is None else asdict(part),
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
    A replay a plan; for two plans two more, up to the first difference.
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
    two = len(wanted) == 2
    results = []
    for plan in wanted:
        if progress is not None:
            progress(plan.name)
        results.append(replay(source, fresh(plan), by=by, plan=plan, outcomes=two))
    part = None
    if two:
        number = _first_unlike(results[0].outcomes, results[1].outcomes)
        if number is not None:
            part = _explained(source, wanted, [fresh(plan) for plan in wanted], number, by)
    for result in results:
        result.outcomes = None
    ranked = sorted(zip(wanted, results, strict=True), key=lambda pair: _rank(pair[1]))
    return Comparison(ranked, part)


def _rank(result: Result) -> tuple[int, int, int]:
    return result.counters["errors"], result.time_ns, result.counters["faults"]


def _first_unlike(
    one: npt.NDArray[np.void] | None, other: npt.NDArray[np.void] | None
) -> int | None:
    """Number of the first record with another outcome."""
    if one is None or other is None:
        return None
    unlike = np.zeros(len(one), bool)
    for name in _DONE:
        unlike |= one[name] != other[name]
    return int(unlike.argmax()) if unlike.any() else None


def _explained(
    source: Trace, plans: Sequence[Plan], spaces: Sequence[Space], number: int, by: str
) -> Difference:
    """Both spaces before the record say which rule decides it."""
    for plan, space in zip(plans, spaces, strict=True):
        replay(source, space, by=by, plan=plan, stop=number)
    record = _record(source, number)
    first = int(record["addr"]) >> PAGE_SHIFT
    last = (int(record["addr"]) + max(1, int(record["size"])) - 1) >> PAGE_SHIFT
    if record["kind"] > Kind.FAULT:
        word = Kind(int(record["kind"])).name.lower()
        text = f"the driver's answer to this {word}"
        return Difference(number, first, word, word, text, text)
    who = processor_name(int(record["proc"]))
    who = by if who == "unknown" else who
    write = int(record["access"]) in (Access.WRITE, Access.ATOMIC)
    for page in range(first, min(last, first + _ASKED) + 1):
        one, other = (space.explain(page * PAGE_SIZE, who, write) for space in spaces)
        if (one.rule, one.location, one.window) != (other.rule, other.location, other.window):
            return Difference(number, page, one.rule, other.rule, one.text, other.text)
    # Equal rules with another end, as where memory runs out on the way.
    one, other = (space.explain(first * PAGE_SIZE, who, write) for space in spaces)
    return Difference(number, first, one.rule, other.rule, one.text, other.text)


def _record(source: Trace, number: int) -> np.void:
    for records in source.chunks():
        if number < len(records):
            record: np.void = records[number]
            return record
        number -= len(records)
    raise InvalidArgumentError(f"{source.path}: record {number} past its end")
