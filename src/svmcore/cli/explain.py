"""``svmcore explain``: one access of a trace, answered with the reason why."""

from __future__ import annotations

import re

import click

from .. import __version__
from ..errors import InvalidArgumentError, SvmError, TraceError
from ..explain import explain as run_explain
from ..history import touches
from ..plans import Plan, load_plan
from ..records import Kind
from ..report.explain import answer_report
from ..traces import Mapping, Trace
from .common import (
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
from .replay import (
    machine_of,
    model_options,
    plan_option,
    planned,
    policy_of,
    processor_hint,
)

__all__ = ["explain"]

_OFFSET = re.compile(r"(.*)\+(0[xX][0-9a-fA-F]+|\d+)")


@click.command(short_help="Say why one access of a trace did what it did.")
@click.argument("trace")
@click.option(
    "records",
    "--record",
    metavar="N",
    multiple=True,
    type=click.IntRange(min=0),
    help="The record of this number; may be repeated.",
)
@click.option(
    "places",
    "--at",
    metavar="ADDR",
    multiple=True,
    help="The first record that touches this address, or with --record the page of it to "
    "explain: 0x7f0000000000, or NAME+OFFSET in a buffer, or NAME for the first address of it "
    "that is touched; may be repeated.",
)
@plan_option
@model_options
@format_option()
@range_option
@cache_option
@json_option
@click.pass_context
def explain(
    context: click.Context,
    trace: str,
    records: tuple[int, ...],
    places: tuple[str, ...],
    plan_path: str | None,
    policy: str,
    machine: str,
    settings: tuple[str, ...],
    by: str,
    form: str | None,
    ranges: list[tuple[int, int, str]],
    cache: str | None,
    as_json: bool,
) -> None:
    """Replay TRACE up to a record, and tell the rule that decided it, what moved, and the cost."""
    if not records and not places:
        raise InvalidArgumentError("explain: expected --record N or --at ADDR")
    node, rules = machine_of(machine), policy_of(policy, settings)
    plan: Plan | None = None
    if plan_path is not None:
        plan = load_plan(plan_path)
        space = planned(context, plan, node, policy, settings)
        # What the command line says itself counts more than the plan.
        node, rules = space.machine, space.policy
        plan = Plan(plan.name, hints=plan.hints, where=plan.where)
    ranges, notes = rounded(ranges)
    with opened(trace, form, ranges, doing="explaining", cache=cache) as source:
        try:
            answers = run_explain(
                source,
                records=records,
                at=[_address(place, source) for place in places],
                policy=rules,
                machine=node,
                plan=plan,
                by=by,
            )
        except TraceError:
            raise
        except SvmError as error:
            message = str(error).replace(source.path, trace, 1) + processor_hint(error, node)
            raise InvalidArgumentError(message) from error
        facts = {
            "path": trace,
            "format": source.format,
            "kind": source.kind,
            "digest": source.digest,
        }
    if as_json:
        emit_json(
            {
                "svmcore": __version__,
                "trace": facts,
                "policy": rules.name,
                "machine": node.name,
                "settings": {
                    **rules.settings(),
                    "by": by,
                    **({} if plan is None else {"plan": plan.name}),
                },
                "answers": [answer.to_dict() for answer in answers],
                "notes": notes,
            }
        )
        return
    of = "" if plan is None else f", plan {printable(plan.name)}"
    show([f"{printable(trace)} under {rules.name} on {printable(node.name)}{of}"])
    for answer in answers:
        show(["", *answer_report(answer)])
    if notes:
        show(["", *(f"note: {note}" for note in notes)])


def _address(place: str, source: Trace) -> int:
    """The address that ``--at`` means; of a buffer alone, the first one that is touched."""
    try:
        return int(place, 0)
    except ValueError:
        pass
    mappings = source.mappings()
    found = _OFFSET.fullmatch(place)
    by_name = {mapping.name: mapping for mapping in reversed(mappings)}
    if place in by_name:
        return _first_touch(by_name[place], source)
    if found is not None and found[1] in by_name:
        mapping, offset = by_name[found[1]], int(found[2], 0)
        if offset >= mapping.size:
            raise InvalidArgumentError(
                f"--at {place}: expected an offset below {mapping.size}, the buffer's size"
            )
        return mapping.start + offset
    names = ", ".join(printable(m.name) for m in mappings[:8])
    more = f" and {len(mappings) - 8} more" if len(mappings) > 8 else ""
    raise InvalidArgumentError(
        f"--at {place}: expected an address, 0x7f0000000000, or a buffer, one of {names}{more}"
    )


def _first_touch(mapping: Mapping, source: Trace) -> int:
    """The first address of a buffer that a record touches; its start where none does."""
    for records in source.chunks():
        hit = touches(records, mapping.start, mapping.start + mapping.size)
        hit &= records["kind"] <= Kind.FAULT
        if hit.any():
            return max(mapping.start, int(records["addr"][hit.argmax()]))
    return mapping.start
