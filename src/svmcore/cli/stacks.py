"""``svmcore stacks``: which cache policy for the block that each launch needs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from .. import __version__
from ..errors import InvalidArgumentError
from ..machine import Machine
from ..report.stacks import (
    check_plot,
    measured_report,
    plot_measured,
    plot_timeline,
    report,
)
from ..stacks import (
    BuiltIn,
    Cliff,
    LaunchCosts,
    LaunchTrace,
    StackResult,
    cliff,
    launch_costs,
    open_launches,
    policy,
    policy_names,
    replay,
    space_for,
)
from ..stacks.measured import FITTED, agreement, fit, read_measured
from ..stacks.trace import STACK_BYTES, Op
from ..units import PAGE_SIZE, format_size, parse_size
from .common import CheckFailedError, emit_json, json_option, printable, show
from .replay import machine_of

__all__ = ["stacks"]

_SWITCHES = {"on": True, "true": True, "off": False, "false": False}


@click.command(short_help="Compare cache policies for the block of a launch.")
@click.argument("trace", required=False)
@click.option(
    "policies",
    "--policy",
    metavar="P",
    multiple=True,
    help="A policy, as locked_block or pool(k=2, limit=inf); may be repeated. "
    f"[default: all of {', '.join(policy_names())}]",
)
@click.option(
    "--sweep",
    "swept",
    metavar="KEY=V,V,...",
    multiple=True,
    help="Try these values of one parameter of each --policy (here locked_block by default), as "
    "limit=64MiB,128MiB,inf. Given for several parameters: each value of one with each of the "
    "others.",
)
@click.option(
    "--machine", default="h200", show_default=True, help="A preset's name or a TOML file."
)
@click.option("--capacity", metavar="SIZE", help="Device memory, in place of the machine's.")
@click.option(
    "settings",
    "--set",
    metavar="KEY=VALUE",
    multiple=True,
    help="A launch cost or switch in place of the machine's, as concurrent=off or wake_ns=0.",
)
@click.option("form", "--format", metavar="FORMAT", help="launch-csv, launch-jsonl or gomp-debug.")
@click.option(
    "--stack-bytes",
    metavar="SIZE",
    default=str(STACK_BYTES),
    help="Stack of one warp. [default: 128 KiB]",
)
@click.option(
    "--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw it: .svg, .png or .pdf."
)
@click.option(
    "--measured",
    metavar="CSV",
    help="In place of TRACE: compare the machine's costs with measured launches.",
)
@click.option(
    "--fit", "fitting", is_flag=True, help="With --measured: fit the costs to half of it first."
)
@click.option(
    "--check",
    is_flag=True,
    help="With --measured: exit status 1 when the median error passes 10 %, that of a group "
    "20 %, or fewer than 95 % of the pairs are in order.",
)
@json_option
def stacks(
    trace: str | None,
    policies: tuple[str, ...],
    swept: tuple[str, ...],
    machine: str,
    capacity: str | None,
    settings: tuple[str, ...],
    form: str | None,
    stack_bytes: str,
    plot: Path | None,
    measured: str | None,
    fitting: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Replay the launches of TRACE (CSV, JSON lines, GOMP_DEBUG text) through policies."""
    if (trace is None) == (measured is None):
        raise InvalidArgumentError("stacks: expected a TRACE, or --measured CSV in its place")
    if plot is not None:
        check_plot(plot)
    costs = _costs(machine, settings)
    if measured is not None:
        _measured(measured, costs, plot, fitting=fitting, check=check, as_json=as_json)
        return
    if fitting or check:
        raise InvalidArgumentError("--fit, --check: expected them with --measured CSV")
    node = machine_of(machine)
    size = _bytes(capacity, node)
    with _busy(f"reading {printable(str(trace))}"):
        source = open_launches(str(trace), form, stack_bytes=parse_size(stack_bytes))
    run = _Run(source, node, {"costs": costs, "capacity": size}, events=plot is not None)
    with _busy(f"replaying {source.launches:,} launches"):
        results = _results(run, policies, swept)
        cliffs = run.cliffs(results)
    if plot is not None:
        plot_timeline(results, plot)
    if as_json:
        emit_json(_table(run, results, cliffs))
        return
    assumed = " (launch costs of the preset h200)" if costs.assumed else ""
    head = f"modelled on {printable(node.name)}{assumed}, {format_size(size)}"
    show(report(source, results, cliffs, head))
    if plot is not None:
        show([f"wrote {printable(str(plot))}"])


def _costs(machine: str, settings: tuple[str, ...]) -> LaunchCosts:
    kinds = {
        item.name: item.type
        for item in dataclasses.fields(LaunchCosts)
        if item.type in ("int", "bool") and item.name != "assumed"
    }
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or key not in kinds:
            raise InvalidArgumentError(
                f"--set {setting}: expected key=value, key one of {', '.join(kinds)}"
            )
        if kinds[key] == "bool" and text.lower() in _SWITCHES:
            values[key] = _SWITCHES[text.lower()]
        elif kinds[key] == "int" and text.isdecimal():
            values[key] = int(text)
        else:
            wanted = "on or off" if kinds[key] == "bool" else "ns, a whole number from 0"
            raise InvalidArgumentError(f"--set {setting}: expected {wanted}")
    return launch_costs(machine, **values)


def _bytes(capacity: str | None, node: Machine) -> int:
    if capacity is None:
        return node.gpus[0].vram_pages * PAGE_SIZE
    try:
        return parse_size(capacity)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--capacity: {error}") from error


class _Run:
    """A trace on a device: what it is replayed on, again for each policy."""

    def __init__(
        self, source: LaunchTrace, node: Machine, options: dict[str, Any], *, events: bool
    ) -> None:
        self.source = source
        self.node = node
        self.options = options
        self.events = events
        self.shared = bool((source.records["op"] == Op.TOUCH).any())

    def replay(self, by: BuiltIn) -> StackResult:
        space = None
        if self.shared:  # a fresh process of shared virtual memory for each policy
            space = space_for(self.source, self.node, capacity=self.options["capacity"])
        return replay(self.source, by, space=space, events=self.events, **self.options)

    def cliffs(self, results: dict[str, StackResult]) -> list[Cliff]:
        if self.shared:
            return []
        found = (cliff(self.source, result.policy, **self.options) for result in results.values())
        return [one for one in found if one is not None]


def _results(
    run: _Run, policies: tuple[str, ...], swept: tuple[str, ...]
) -> dict[str, StackResult]:
    if not swept:
        chosen = {name.strip(): policy(name) for name in policies or policy_names()}
    else:
        tried: dict[str, list[str]] = {}
        for one in swept:
            key, equals, values = (part.strip() for part in one.partition("="))
            if not equals or not values:
                raise InvalidArgumentError(f"--sweep {one}: expected key=value,value,...")
            if key in tried:
                raise InvalidArgumentError(
                    f"--sweep {one}: {key} is given twice, expected all its values in one"
                )
            tried[key] = values.split(",")
        chosen = {}
        for name in policies or ("locked_block",):
            for point in itertools.product(*tried.values()):
                made = policy(name)
                for key, value in zip(tried, point, strict=True):
                    made = made.with_setting(key, value)
                chosen[str(made)] = made
    return {name: run.replay(one) for name, one in chosen.items()}


def _table(run: _Run, results: dict[str, StackResult], cliffs: list[Cliff]) -> dict[str, Any]:
    source = run.source
    return {
        "svmcore": __version__,
        "trace": {
            "path": source.name,
            "format": source.form,
            "records": len(source),
            "launches": source.launches,
            "threads": len(source.threads),
            "digest": source.digest,
            "repaired": source.repaired,
        },
        "machine": run.node.name,
        "costs": dataclasses.asdict(run.options["costs"]),
        "capacity_bytes": run.options["capacity"],
        "results": {name: result.to_dict() for name, result in results.items()},
        "cliffs": [dataclasses.asdict(one) for one in cliffs],
    }


def _measured(
    path: str, costs: LaunchCosts, plot: Path | None, *, fitting: bool, check: bool, as_json: bool
) -> None:
    rows = read_measured(path)
    fitted: dict[str, int] = {}
    if fitting:
        # Every other row of several threads is kept to judge by.
        train = [row for number, row in enumerate(rows) if row.threads == 1 or number % 2]
        with _busy(f"fitting to {len(train)} of {len(rows)} rows"):
            costs = fit(train, costs)
        rows = [row for row in rows if row not in train]
        fitted = {name: getattr(costs, name) for name in FITTED}
        if not rows:
            raise InvalidArgumentError(f"{path}: --fit: expected rows of several threads too")
    found = agreement(rows, costs)
    if plot is not None:
        plot_measured(found, plot)
    if as_json:
        emit_json({"svmcore": __version__, "path": path, "fitted": fitted, **found.to_dict()})
    else:
        told = ", ".join(f"{name} = {value}" for name, value in fitted.items())
        show([f"fitted: {told}", "the rows that were kept:"] if fitted else [])
        show(measured_report(found))
    right, total, _ = found.pairs()
    if check and (
        found.median_error > 0.10 or max(found.groups().values()) > 0.20 or right < 0.95 * total
    ):
        raise CheckFailedError(f"{path}: the model is farther from the measurements than allowed")


@contextlib.contextmanager
def _busy(what: str) -> Iterator[None]:
    """A spinner on a terminal while something takes its time."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if not sys.stderr.isatty():
        yield
        return
    with console.status(what):
        yield
