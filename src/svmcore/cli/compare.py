"""``svmcore compare``: hint plans on one trace, ranked."""

from __future__ import annotations

import sys
from typing import Any

import click

from .. import __version__
from ..compare import compare as run_compare
from ..errors import InvalidArgumentError, SvmError, TraceError
from ..plans import load_plan
from ..report.text import ranking
from .common import (
    emit_json,
    format_option,
    json_option,
    opened,
    printable,
    range_option,
    show,
)
from .replay import machine_of, model_options, pairs_of, policy_of

__all__ = ["compare"]


@click.command(short_help="Rank hint plans on one trace.")
@click.argument("trace")
@click.option(
    "plans",
    "--plan",
    metavar="PLAN.toml",
    multiple=True,
    required=True,
    help="A hint plan; give one or more.",
)
@click.option(
    "--dialects",
    metavar="D,D,...",
    help="Play the hints as advice under these vendors' rules instead of a policy: cuda, acl, "
    "acl-driver, hip or kfd.",
)
@model_options
@format_option()
@range_option
@json_option
def compare(
    trace: str,
    plans: tuple[str, ...],
    dialects: str | None,
    policy: str,
    machine: str,
    settings: tuple[str, ...],
    by: str,
    form: str | None,
    ranges: list[tuple[int, int, str]],
    as_json: bool,
) -> None:
    """Replay TRACE, a file or the word demo, under each plan and rank them by modelled time."""
    loaded = [load_plan(path) for path in plans]
    if dialects is not None:
        from ..managed import Hint, compare_dialects

        with opened(trace, form, ranges, doing="playing advice on") as source:
            hints = {
                plan.name: [Hint(str(h.buffer), h.advice, h.location) for h in plan.hints]
                for plan in loaded
            }
            told = compare_dialects(source, hints, [d.strip() for d in dialects.split(",")], by=by)
        if as_json:
            emit_json({"svmcore": __version__, **told.to_dict()})
        else:
            show([told.table()])
        return
    node, rules = machine_of(machine), policy_of(policy, ())
    values: dict[str, Any] = {key: value for _, key, value in pairs_of(settings)}

    def tell(name: str) -> None:
        if sys.stderr.isatty():
            print(f"plan {printable(name)}", file=sys.stderr, flush=True)

    with opened(trace, form, ranges, doing="comparing plans on") as source:
        try:
            found = run_compare(
                source,
                loaded,
                policy=rules,
                machine=node,
                settings=values,
                by=by,
                progress=tell,
            )
        except (TraceError, InvalidArgumentError):
            raise
        except SvmError as error:
            raise InvalidArgumentError(f"{trace}: {error}") from error
    for _, result in found.plans:
        result.trace["path"] = trace
    if as_json:
        emit_json({"svmcore": __version__, **found.to_dict()})
    else:
        show(ranking(found))
