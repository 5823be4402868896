"""``svmcore diff``: a recorded event log beside the model's."""

from __future__ import annotations

from typing import Any

import click
import numpy as np
import numpy.typing as npt

from .. import __version__
from ..errors import InvalidArgumentError, SvmError, TraceError
from ..events import modelled_events
from ..records import Kind
from ..replay import processor_code_of
from ..report.diff import COMPARED, diff_events, diff_report, gathered
from ..traces import Trace
from .common import (
    CheckFailedError,
    cache_option,
    emit_json,
    format_option,
    json_option,
    opened,
    printable,
    range_option,
    rounded,
    show,
)
from .replay import machine_of, model_options, policy_of, processor_hint, space_of

__all__ = ["diff"]

#: What only a log of events holds; faults are in traces too.
_OUTCOMES = [kind.name.lower() for kind in COMPARED if kind != Kind.FAULT]


@click.command(short_help="Say where a recorded event log and the model part.")
@click.argument("recorded")
@click.argument("modelled", required=False)
@model_options
@click.option(
    "--replay",
    "replayed",
    is_flag=True,
    help="Replay MODELLED even where it is a log of events itself.",
)
@format_option()
@range_option
@cache_option
@click.option(
    "--show",
    "shown",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Differences told one by one.",
)
@json_option
def diff(
    recorded: str,
    modelled: str | None,
    policy: str,
    machine: str,
    settings: tuple[str, ...],
    by: str,
    replayed: bool,
    form: str | None,
    ranges: list[tuple[int, int, str]],
    cache: str | None,
    shown: int,
    as_json: bool,
) -> None:
    """Lay the log RECORDED beside the model's events, and say where they part and why.

    MODELLED is another log of events, or a trace that is replayed; without it the touches
    and faults of RECORDED itself are replayed. Exit status 1 where the logs differ.
    """
    ranges, notes = rounded(ranges)
    # They are mappings of what is replayed.
    own, others = (ranges, []) if modelled is None else ([], ranges)
    with opened(recorded, form, own, doing="reading", cache=cache) as source:
        source.identify()
        left = gathered(source.chunks())
        if not len(left):
            raise InvalidArgumentError(
                f"{recorded}: holds no event of a driver: expected a log of faults, migrations, "
                "unmaps"
            )
        facts = _facts(recorded, source)
        notes += source.summary.notes
        # What is replayed is read once more.
        if modelled is None:
            right, told = _model(source, policy, machine, settings, by)
    if modelled is not None:
        with opened(modelled, None, others, doing="reading", cache=cache) as other:
            other.identify()
            if replayed or not any(kind in other.summary.kinds for kind in _OUTCOMES):
                right, told = _model(other, policy, machine, settings, by)
            elif ranges:
                raise InvalidArgumentError(
                    f"--range: {modelled} is a log of events: expected --replay, or a trace"
                )
            else:
                right, told = gathered(other.chunks()), {}
            told = {**_facts(modelled, other), **told}
    found = diff_events(left, right)
    if as_json:
        emit_json(
            {
                "svmcore": __version__,
                "recorded_log": facts,
                "modelled_log": told,
                **found.to_dict(),
                "notes": notes,
            }
        )
    else:
        what = f"replayed by {told['policy']}" if "policy" in told else "a log"
        name = printable(str(told.get("path", recorded)))
        show([f"recorded  {printable(recorded)}", f"modelled  {name} ({what})", ""])
        show(diff_report(found, shown))
        show([f"note: {printable(note)}" for note in notes])
    if not found.equal:
        raise CheckFailedError(
            f"{printable(recorded)}: {sum(found.causes.values()):,} differences, expected none"
        )


def _facts(name: str, source: Trace) -> dict[str, Any]:
    return {"path": name, "format": source.format, "kind": source.kind, "digest": source.digest}


def _model(
    source: Trace, policy: str, machine: str, settings: tuple[str, ...], by: str
) -> tuple[npt.NDArray[np.void], dict[str, Any]]:
    """The events of a replay, and what it was."""
    node = machine_of(machine)
    rules = policy_of(policy, settings)
    space = space_of(node, rules)
    try:
        processor_code_of(by, space)
    except SvmError as error:
        raise InvalidArgumentError(f"--by: {error}") from error
    try:
        events = gathered(modelled_events(source, space, by=by))
    except TraceError:
        raise
    except SvmError as error:
        raise InvalidArgumentError(f"{error}{processor_hint(error, node)}") from error
    return events, {"policy": rules.name, "settings": rules.settings(), "machine": node.name}
