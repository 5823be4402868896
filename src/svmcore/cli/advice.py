"""``svmcore inspect --advice``: its options, and what it prints behind the inspection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..traces import Trace
from .common import show
from .replay import machine_of

__all__ = ["advice_options", "show_study", "studied"]

_F = TypeVar("_F", bound=Callable[..., Any])


def advice_options(function: _F) -> _F:
    """The options ``--advice``, ``--write-share`` and ``--machine``."""
    machine = click.option(
        "--machine",
        metavar="NAME",
        help="With --advice: a preset's name or a TOML file. [default: GPUs of gpu-80g, as many as "
        "the trace names]",
    )
    share = click.option(
        "--write-share",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help="With --advice: warn of read mostly where more of the accesses are writes.",
    )
    advice = click.option(
        "--advice",
        is_flag=True,
        help="Tell what each vendor would do with each advice on each buffer.",
    )
    return advice(share(machine(function)))


def studied(source: Trace, write_share: float, machine: str | None) -> dict[str, Any]:
    """The study of the trace, as ``--json`` prints it.

    Raises
    ------
    SvmError
        As :func:`svmcore.managed.study.advice_study`.
    """
    # Loaded where it is asked for: other commands start faster without.
    from ..managed.study import advice_study

    node = None if machine is None else machine_of(machine)
    return advice_study(source, write_share=write_share, machine=node)


def show_study(study: dict[str, Any]) -> None:
    """Print the study."""
    from ..report.advice import advice_report

    show(advice_report(study))
