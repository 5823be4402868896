"""Vector files of the softstack kind: launch traces with what each policy does with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import InvalidArgumentError
from .costs import LaunchCosts
from .model import StackResult, replay
from .policies import BuiltIn, policy
from .trace import COLUMNS, LaunchTrace

__all__ = ["expected_rows", "recognised", "run_cases"]

_NAMES = {
    "unbounded_2020_10": "unbounded",
    "gcn_list": "list",
    "locked_block(gcc11+)": "locked_block",
}
#: A parameter that these files write without its name.
_POSITIONAL = {"bounded": "bound", "pool": "k"}
_FREE_WAITS = {"free_async": False, "free_syncs": True}
_MIB = 1 << 20


def recognised(table: Any) -> bool:
    """Whether a JSON value is a vector file of this kind."""
    return isinstance(table, Mapping) and {"stack_bytes_per_warp", "cases"} <= table.keys()


def run_cases(
    table: Mapping[str, Any], *, reference: bool
) -> Iterator[tuple[str, list[tuple[str, Any, Any]]]]:
    """Each row of a file: its label, and the fields that differ with expected and got.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        If the file is not of the form; an :class:`InvalidArgumentError` names the case.
    """
    for name, case in table["cases"].items():
        try:
            yield from _case(table, name, case, reference=reference)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"case {name}: {error}") from error


def expected_rows(
    table: Mapping[str, Any], case: Mapping[str, Any], policies: Iterable[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What the readable engine says of a case: the value of its key ``expect``."""
    return {
        mode: {key: _row(_result(table, case, mode, key, reference=True)) for key in policies}
        for mode in _FREE_WAITS
    }


def _case(
    table: Mapping[str, Any], name: str, case: Mapping[str, Any], *, reference: bool
) -> Iterator[tuple[str, list[tuple[str, Any, Any]]]]:
    for mode, rows in case["expect"].items():
        for key, expected in rows.items():
            got = _row(_result(table, case, mode, key, reference=reference))
            yield (
                f"{name} {mode} {key}",
                [
                    (field, value, got.get(field))
                    for field, value in expected.items()
                    if not _same(value, got.get(field))
                ],
            )


def _result(
    table: Mapping[str, Any], case: Mapping[str, Any], mode: str, key: str, *, reference: bool
) -> StackResult:
    trace = LaunchTrace.of(
        ({key: value for key, value in row.items() if key in COLUMNS} for row in case["trace"]),
        stack_bytes=table["stack_bytes_per_warp"],
    )
    costs = LaunchCosts(
        alloc=((0, table["alloc_ns"]),),
        free=((0, table["free_ns"]),),
        free_waits=_FREE_WAITS[mode],
    )
    capacity = case["capacity_bytes"]
    return replay(trace, _policy(key), costs=costs, capacity=capacity, readable=reference)


def _policy(key: str) -> BuiltIn:
    key = _NAMES.get(key, key)
    match = re.fullmatch(r"(\w+)\(([^=()]+)\)", key)
    if match is not None and match.group(1) in _POSITIONAL:
        return policy(match.group(1), **{_POSITIONAL[match.group(1)]: match.group(2)})
    return policy(key)


def _same(expected: Any, got: Any) -> bool:
    """Equal; a file may have rounded to three places."""
    return bool(expected == got or (isinstance(got, float) and expected == round(got, 3)))


def _row(result: StackResult) -> dict[str, Any]:
    return {
        "launches": result.launches,
        "hits": result.hits,
        "stack_allocs": result.stack_allocs,
        "allocs": result.allocs,
        "frees": result.frees,
        "alloc_failures": result.alloc_failures,
        "stack_peak_MiB": result.stack_peak_bytes / _MIB,
        "device_peak_MiB": result.device_peak_bytes / _MIB,
        "cached_at_end_MiB": result.kept_bytes / _MIB,
        "lock_wait_us": result.lock_wait_ns / 1000,
        "user_retries": result.retries,
        "user_failures": result.user_failures,
        "fatal": result.fatal,
        "end_us": result.makespan_ns / 1000,
        "left_MiB": result.left_bytes / _MIB,
    }
