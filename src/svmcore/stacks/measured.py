"""Measured launches beside modelled ones: how right the costs of a machine are.

A file of measurements is CSV with the columns ``policy, own_stream, threads,
stack_mib, kernel_us, launches, us_per_launch``; each row is one run of *threads*
host threads that launch one after the other, each on the context's default stream or
on a stream of its own. ``bench/launch_stacks.cu`` makes such files.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError, TraceError
from .costs import LaunchCosts
from .model import replay
from .trace import RECORD, LaunchTrace

__all__ = [
    "FITTED",
    "Agreement",
    "Row",
    "agreement",
    "fit",
    "fit_error",
    "modelled",
    "read_measured",
]

#: The measured policies as the model's.
POLICIES = {
    "per_launch": "none",
    "single_locked": "locked_block(limit=inf)",
    "pool3": "pool(k=3, when_full=wait, limit=inf)",
    # The measuring threads free their block when they end.
    "per_thread": "per_thread(limit=inf, at_thread_end=free)",
    "exclusive_only": "exclusive_only(limit=inf)",
}
#: The constants that :func:`fit` moves; the others are measured or tell a mechanism.
FITTED = ("host_ns", "launch_ns", "kernel_ns", "wait_ns", "drain_ns", "turn_ns", "wake_ns")
#: What counts as a difference between two policies.
_APART = 1.2
#: An error counts no more than this in a fit: single rows are noisy.
_MOST_ERROR = 0.4
_CAPACITY = 1 << 40
_COLUMNS = ("policy", "own_stream", "threads", "stack_mib", "kernel_us", "launches")


@dataclass(frozen=True)
class Row:
    """One measured run."""

    policy: str
    own_stream: bool
    threads: int
    stack_mib: int
    kernel_us: int
    launches: int
    us_per_launch: float

    @property
    def group(self) -> tuple[str, bool, int]:
        """Policy, own stream, threads."""
        return self.policy, self.own_stream, self.threads

    @property
    def case(self) -> tuple[bool, int, int, int]:
        """What policies are compared in: own stream, threads, stack, kernel."""
        return self.own_stream, self.threads, self.stack_mib, self.kernel_us

    def trace(self) -> LaunchTrace:
        """The launches of this run."""
        each = self.launches // self.threads
        records = np.zeros(each * self.threads, RECORD)
        records["thread"] = np.repeat(np.arange(self.threads), each)
        if self.own_stream:
            records["stream"] = records["thread"]
        records["size"] = self.stack_mib << 20
        records["kernel_ns"] = self.kernel_us * 1000
        return LaunchTrace(records, threads=tuple(range(self.threads)))


def read_measured(path: str | Path) -> list[Row]:
    """The rows of a file of measurements.

    Raises
    ------
    TraceError
        If it cannot be read, lacks a column or has none row; file and line.
    """
    where = str(path)
    rows = []
    reader = csv.DictReader(())
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [
                name
                for name in (*_COLUMNS, "us_per_launch")
                if name not in (reader.fieldnames or ())
            ]
            if missing:
                raise ValueError(f"no column {missing[0]}, expected {', '.join(_COLUMNS)}")
            for line in reader:
                own, threads, stack, kernel, launches = (int(line[name]) for name in _COLUMNS[1:])
                us = float(line["us_per_launch"])
                row = Row(line["policy"], bool(own), threads, stack, kernel, launches, us)
                if row.policy not in POLICIES:
                    raise ValueError(
                        f"policy {row.policy!r}, expected one of {', '.join(POLICIES)}"
                    )
                least = min(row.threads, row.stack_mib, row.launches // max(row.threads, 1))
                if least < 1 or row.kernel_us < 0 or not row.us_per_launch > 0:
                    raise ValueError("expected threads, stack, launches a thread and time above 0")
                rows.append(row)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(where, "", f"expected a readable file: {error}") from error
    except (TypeError, ValueError, csv.Error) as error:
        raise TraceError(where, f"line {reader.line_num or 1}", str(error)) from None
    if not rows:
        raise TraceError(where, "", "no row, expected one or more")
    return rows


def modelled(row: Row, costs: LaunchCosts) -> float:
    """Modelled us a launch of a run: until its last thread ended, as measured."""
    result = replay(row.trace(), POLICIES[row.policy], costs=costs, capacity=_CAPACITY)
    return result.us_per_launch


@dataclass(frozen=True)
class Agreement:
    """Measured and modelled time of each row, and what they add up to.

    Attributes
    ----------
    rows : list of (Row, float)
        Each row with its modelled us a launch.
    """

    rows: list[tuple[Row, float]]

    @property
    def median_error(self) -> float:
        """Median error over all rows; 0.1 is a tenth of the measured time."""
        return statistics.median(_error(row, us) for row, us in self.rows)

    def groups(self) -> dict[tuple[str, bool, int], float]:
        """Median error of each (policy, own stream, threads)."""
        errors: dict[tuple[str, bool, int], list[float]] = {}
        for row, us in self.rows:
            errors.setdefault(row.group, []).append(_error(row, us))
        return {group: statistics.median(errors[group]) for group in sorted(errors)}

    def pairs(self) -> tuple[int, int, list[tuple[Row, Row]]]:
        """Pairs of policies of one case that differ by more than 20 %.

        Returns
        -------
        (int, int, list)
            Those in the right order, all of them, and the wrong ones.
        """
        cases: dict[Any, list[tuple[Row, float]]] = {}
        for row, us in self.rows:
            cases.setdefault(row.case, []).append((row, us))
        wrong, total = [], 0
        for entries in cases.values():
            for place, (fast, fast_us) in enumerate(entries):
                for slow, slow_us in entries[place + 1 :]:
                    low, high = sorted((fast.us_per_launch, slow.us_per_launch))
                    if high <= _APART * low:
                        continue
                    total += 1
                    if (fast.us_per_launch < slow.us_per_launch) != (fast_us < slow_us):
                        wrong.append((fast, slow))
        return total - len(wrong), total, wrong

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        right, total, wrong = self.pairs()
        return {
            "rows": [
                dataclasses.asdict(row) | {"modelled_us_per_launch": us} for row, us in self.rows
            ],
            "median_error": self.median_error,
            "groups": [
                {"policy": policy, "own_stream": own, "threads": threads, "median_error": error}
                for (policy, own, threads), error in self.groups().items()
            ],
            "pairs": total,
            "pairs_in_order": right,
            "pairs_out_of_order": [[one.policy, other.policy, *one.case] for one, other in wrong],
        }


def _error(row: Row, us: float) -> float:
    return abs(us / row.us_per_launch - 1)


def agreement(rows: Iterable[Row], costs: LaunchCosts) -> Agreement:
    """Model every row.

    Complexity
    ----------
    A replay a row, together about a microsecond a launch.
    """
    return Agreement([(row, modelled(row, costs)) for row in rows])


def fit(
    rows: list[Row],
    costs: LaunchCosts,
    *,
    progress: Callable[[LaunchCosts, float], None] | None = None,
) -> LaunchCosts:
    """Costs whose :data:`FITTED` constants lie nearest to the measurements.

    One constant after the other is moved by a fourth, then by less, while the mean
    error falls. An error is the logarithm of modelled over measured, counted up to
    0.4: a median does not feel small changes, a plain mean is led by noisy rows.

    Parameters
    ----------
    rows : list of Row
        What to fit to; keep others to judge by.
    costs : LaunchCosts
        Where to start.
    progress : callable, optional
        Called with the costs so far and their error after each round.

    Raises
    ------
    InvalidArgumentError
        If there is no row.

    Complexity
    ----------
    About 300 times :func:`agreement`.
    """
    if not rows:
        raise InvalidArgumentError("fit: no row, expected one or more")
    best = fit_error(rows, costs)
    for step in (0.25, 0.1, 0.04):
        moved = True
        while moved:
            moved = False
            for name in FITTED:
                for factor in (1 + step, 1 / (1 + step)):
                    value = round(getattr(costs, name) * factor / 100) * 100
                    tried = dataclasses.replace(costs, **{name: value})
                    loss = fit_error(rows, tried)
                    if loss < best - 1e-5:
                        costs, best, moved = tried, loss, True
            if progress is not None:
                progress(costs, best)
    return costs


def fit_error(rows: list[Row], costs: LaunchCosts) -> float:
    """What :func:`fit` makes small: the mean error of the rows."""
    return statistics.fmean(
        min(abs(math.log(modelled(row, costs) / row.us_per_launch)), _MOST_ERROR) for row in rows
    )
