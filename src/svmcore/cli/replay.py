"""``svmcore replay``: what the driver would have done with a trace."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from .. import __version__
from ..checkpoint.run import saved_settings
from ..engine import Space
from ..errors import InvalidArgumentError, StateFileError, SvmError, TraceError
from ..image import read_manifest
from ..machine import Machine
from ..plans import Plan, load_plan
from ..policies.base import Policy, make_policy
from ..replay import CHUNK, processor_code_of
from ..replay import replay as run_replay
from ..report.text import counted, profile_report, replay_report
from ..result import Result
from ..traces import Trace
from ..units import format_size
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
from .events import events_form, write_events
from .out import check_folder, write_folder
from .policy_file import policy_from_file

__all__ = [
    "given",
    "machine_of",
    "model_options",
    "plan_option",
    "planned",
    "policy_of",
    "processor_hint",
    "replay",
    "space_of",
]

_F = TypeVar("_F", bound=Callable[..., Any])
#: What the replay says of a fatal record where it is strict, and of a processor it does not know.
_FATAL = re.compile(r"record \d+, address 0x")
_STRANGER = re.compile(r"processor '?\w+'?[:,] expected one of cpu")


def machine_of(name: str) -> Machine:
    """A machine by its preset's name or TOML file.

    Raises
    ------
    InvalidArgumentError
        If there is no such preset, or the file is not one of a machine.
    """
    try:
        return Machine.resolve(name)
    except SvmError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        raise InvalidArgumentError(
            f"machine {name}: {error}: expected tables [[gpu]] and [costs] as in the presets"
        ) from error


def policy_of(name: str | Policy, settings: tuple[str, ...]) -> Policy:
    """A policy by its name or file, and ``key=value`` settings; the last one of a key counts.

    Raises
    ------
    InvalidArgumentError
        If the policy, a key or a value is not known; the known ones are listed.
    """
    policy = (policy_from_file(name) if isinstance(name, str) else None) or make_policy(name)
    known = policy.settings()
    values: dict[str, Any] = {}
    for setting, key, value in pairs_of(settings):
        if key not in known:
            raise InvalidArgumentError(
                f"--set {setting}: unknown key {key!r}, expected one of {', '.join(known)}"
            )
        values[key] = value
    try:
        return make_policy(policy, **values)
    except SvmError as error:
        raise InvalidArgumentError(f"--set {' '.join(settings)}: {error}") from error


def pairs_of(settings: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Each ``--set key=value`` as given, its key and its value."""
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InvalidArgumentError(f"--set {setting}: expected key=value")
        yield setting, key.strip(), value.strip()


def space_of(machine: Machine, policy: Policy) -> Space:
    """A fresh space.

    Raises
    ------
    InvalidArgumentError
        If a setting's value is out of the range of the compiled core.
    """
    try:
        return Space(machine, policy=policy)
    except OverflowError as error:
        settings = ", ".join(f"{key}={value}" for key, value in policy.settings().items())
        raise InvalidArgumentError(
            f"policy {policy.name}: {settings}: {error}: expected numbers of 64 bits"
        ) from error


def model_options(function: _F) -> _F:
    """The options that say what a trace is replayed through: policy, machine, settings, by."""
    for option in (
        click.option(
            "--by",
            metavar="PROC",
            default="gpu0",
            show_default=True,
            help="Processor of the records that name none: cpu, gpu0, ...",
        ),
        click.option(
            "settings",
            "--set",
            metavar="KEY=VALUE",
            multiple=True,
            help="A parameter of the policy, as granularity=9; may be repeated.",
        ),
        click.option(
            "--machine",
            default="gpu-80g",
            show_default=True,
            help="A preset's name or a TOML file; an unknown name lists the presets.",
        ),
        click.option(
            "--policy",
            default="kfd",
            show_default=True,
            help="A name, kfd or kfd(kernel=6.12, ...), or a policy of your own, file.py:Class; an "
            "unknown name lists them.",
        ),
    ):
        function = option(function)
    return function


plan_option = click.option(
    "plan_path", "--plan", metavar="PLAN.toml", help="A hint plan: advice, settings, capacity."
)


@click.command(short_help="Replay a trace through a policy on a machine.")
@click.argument("trace")
@model_options
@click.option(
    "--raw-faults", is_flag=True, help="Deliver recorded faults once, by the driver's exact rules."
)
@plan_option
@click.option("--strict", is_flag=True, help="Stop at the first fatal record: exit status 1.")
@format_option()
@range_option
@cache_option
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    default=CHUNK,
    show_default=True,
    help="Records handed to the engine at once; no result depends on it.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write result.json, buffers.csv and config.json into this folder.",
)
@click.option(
    "--events",
    metavar="FILE",
    help="Write the modelled events (policies kfd and uvm) in the form of its suffix: .json "
    "(Perfetto), .csv, .npy, .parquet, .arrow, .feather; under kfd also .smi, .txt, .log (KFD SMI "
    "text).",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Tell the real time of each stage: on stderr, or as the object profile of --json.",
)
@click.option(
    "--checkpoint-every",
    metavar="N",
    type=click.IntRange(min=1),
    help="Write the whole state of the run to a file every N records.",
)
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="That file. [default: the file of --resume, else the trace's name and .svm, here]",
)
@click.option(
    "--resume",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Go on from a checkpoint; machine, policy and the like are the file's where not given. "
    "With --checkpoint-every the file may be missing yet.",
)
@json_option
@click.pass_context
def replay(
    context: click.Context,
    trace: str,
    policy: str,
    machine: str,
    settings: tuple[str, ...],
    by: str,
    raw_faults: bool,
    plan_path: str | None,
    strict: bool,
    form: str | None,
    ranges: list[tuple[int, int, str]],
    cache: str | None,
    chunk: int,
    out: Path | None,
    events: str | None,
    profile: bool,
    checkpoint_every: int | None,
    checkpoint: Path | None,
    resume: Path | None,
    as_json: bool,
) -> None:
    """Replay TRACE, a file or the word demo, and tell faults, migrations and bytes."""
    place = _checkpoint_place(trace, checkpoint_every, checkpoint, resume)
    if resume is not None and checkpoint_every is not None and not resume.exists():
        note = f"{printable(str(resume))} is not there yet: the replay begins at the first record"
        print(f"svmcore: {note}", file=sys.stderr)
        resume = None
    plan = None if plan_path is None else load_plan(plan_path)
    if resume is None:
        node, rules = machine_of(machine), policy_of(policy, settings)
    else:
        if given(context, "policy"):
            policy_of(policy, ())  # one in a file is known by its name from then on
        node, rules, saved = saved_settings(resume)
        # What the command line says must be what the file says: the replay compares them.
        if given(context, "machine"):
            node = machine_of(machine)
        if given(context, "policy", "settings"):
            base = policy if given(context, "policy") else rules
            rules = policy_of(base, settings)
        by = by if given(context, "by") else saved["by"]
        raw_faults = raw_faults or saved["raw_faults"]
    if plan is None:
        space = space_of(node, rules)
    else:
        space = planned(context, plan, node, policy, settings)
        node, rules = space.machine, space.policy
    try:
        processor_code_of(by, space)
    except SvmError as error:
        raise InvalidArgumentError(f"--by: {error}{processor_hint(error, node)}") from error
    if out is not None:
        check_folder(out)
    if events is not None:
        events_form(events, rules.name)
    ranges, changed = rounded(ranges)
    doing = f"replaying by {rules.name} on {printable(node.name)}:"
    with opened(trace, form, ranges, doing=doing, cache=cache) as source:
        try:
            with _stopped_in_order(place):
                result = run_replay(
                    source,
                    space,
                    by=by,
                    raw_faults=raw_faults,
                    strict=strict,
                    chunk=chunk,
                    profile=profile,
                    checkpoint=place,
                    checkpoint_every=checkpoint_every,
                    resume=resume,
                    plan=plan,
                )
        except (TraceError, StateFileError):
            raise
        except SvmError as error:
            named = (source.path, *([] if resume is None else [str(resume)]))
            where = "" if str(error).startswith(named) else f"{trace}: "
            wanted = "" if "expected" in str(error) else ": expected every record to be served"
            message = f"{where}{error}{wanted}{processor_hint(error, node)}"
            if strict and _FATAL.match(str(error)):
                raise CheckFailedError(message) from error
            raise InvalidArgumentError(message) from error
        told: list[str] = []
        if events is not None:
            told.append(write_events(source, events, space_of(node, rules), by))
    began = time.perf_counter()
    result.trace["path"] = trace
    result.notes += changed
    reached = (result.buffers[key].any() for key in ("records", "faults", "moved_pages"))
    if ranges and not any(reached):
        result.notes.append("no record of the trace lies inside the ranges given by --range")
    result.notes += _told(source)
    table = _full(result, source)
    if out is not None:
        config = {
            "svmcore": __version__,
            "trace": result.trace,
            "policy": rules.name,
            "policy_settings": rules.settings(),
            "machine": _plain(node),
            "by": by,
            "raw_faults": raw_faults,
            "plan": None if plan is None else dataclasses.asdict(plan),
            "strict": strict,
            "format": source.format,
            "ranges": [list(item) for item in ranges],
        }
        write_folder(out, table, config, result)
    if not as_json:
        mapped = _mapped(source, bool(ranges))
        show(replay_report(result, node, sure=source.confidence, mapped=mapped))
        show(told)
        if out is not None:
            show([f"wrote {printable(str(out))}: result.json, buffers.csv, config.json"])
    if result.profile is not None:
        spent = time.perf_counter() - began
        result.profile.report_s += spent
        result.profile.wall_s += spent
        if as_json:
            table["profile"] = result.profile.to_dict()
        else:
            print("\n".join(profile_report(result.profile)), file=sys.stderr)
    if as_json:
        emit_json(table)


def given(context: click.Context, *names: str) -> bool:
    """Whether the command line names one of these parameters."""
    default = click.core.ParameterSource.DEFAULT
    return any(context.get_parameter_source(name) != default for name in names)


def _checkpoint_place(
    trace: str, every: int | None, given: Path | None, resume: Path | None
) -> Path | None:
    """The file that checkpoints go to, ``None`` without any; what is no state file stays.

    Raises
    ------
    InvalidArgumentError
        If it cannot be one, or is something else.
    """
    if every is None:
        if given is not None:
            raise InvalidArgumentError(f"--checkpoint {given}: expected --checkpoint-every N too")
        return None
    place = given or resume or Path(Path(trace).name + ".svm")
    option = "--checkpoint" if given or not resume else "--resume"
    if not place.parent.is_dir():
        raise InvalidArgumentError(f"{option} {place}: expected a file in a folder that is there")
    if place.exists():
        try:
            read_manifest(place)
        except StateFileError as error:
            raise InvalidArgumentError(
                f"{option} {place}: expected a new file or a state file to replace: {error}"
            ) from error
    return place


@contextlib.contextmanager
def _stopped_in_order(place: Path | None) -> Iterator[None]:
    """With checkpoints, Ctrl-C and SIGTERM leave the last one and no part of a next one."""
    if place is None:
        yield
        return

    def terminate(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if main else None
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        name = printable(str(place))
        told = f"--resume {name} goes on" if place.exists() else "no checkpoint was written yet"
        print(f"svmcore: stopped: {told}", file=sys.stderr)
        raise
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def planned(
    context: click.Context, plan: Plan, machine: Machine, policy: str, settings: tuple[str, ...]
) -> Space:
    """The space of a plan; what the command line says itself counts more."""
    own = dataclasses.replace(
        plan,
        policy=None if given(context, "policy") else plan.policy,
        machine=None if given(context, "machine") else plan.machine,
    )
    rules = policy_of(own.policy or policy, settings)
    own_keys = {setting.partition("=")[0].strip() for setting in settings}
    kept = {key: value for key, value in plan.settings.items() if key not in own_keys}
    return dataclasses.replace(own, policy=None, settings=kept).space(rules, machine)


def processor_hint(error: SvmError, machine: Machine) -> str:
    """Where more GPUs come from, for a processor that the machine lacks."""
    if not _STRANGER.search(str(error)):
        return ""
    return f"; the machine has {counted(len(machine.gpus), 'GPU')}, see --machine"


def _told(source: Trace) -> list[str]:
    """What reading the trace met, for the notes of a result."""
    summary = source.summary
    met = ", ".join(
        f"{number:,} {word}"
        for word, number in (
            ("repaired", summary.repaired),
            ("refused", summary.refused),
            ("of an unknown event", summary.unknown),
        )
        if number
    )
    return [*([f"lines of the trace: {met}"] if met else []), *summary.notes]


def _full(result: Result, source: Trace) -> dict[str, Any]:
    """What ``--json`` prints: the result, the version, and how the trace was read."""
    summary = source.summary
    table = {"svmcore": __version__, **result.to_dict()}
    table["trace"] = {
        **result.trace,
        "confidence": round(source.confidence, 4),
        "bytes": source.nbytes,
        "repaired": summary.repaired,
        "refused": summary.refused,
        "unknown": summary.unknown,
    }
    return table


def _mapped(source: Trace, given: bool) -> str:
    mappings = source.mappings()
    size = format_size(sum(mapping.size for mapping in mappings))
    if given:
        origin = "given by --range"
    elif mappings and all(mapping.name.startswith("touched") for mapping in mappings):
        origin = "the pages touched, the trace names no allocation"
    else:
        origin = "named by the trace"
    return f"{counted(len(mappings), 'mapping')}, {size} ({origin}); ranges unregistered"


def _plain(machine: Machine) -> dict[str, Any]:
    return dataclasses.asdict(machine)
