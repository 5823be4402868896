"""``svmcore inspect --advice``: its options, and what it prints behind the inspection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..traces import Trace
from .common import show

__all__ = ["advice_options", "show_study", "studied"]

_F = TypeVar("_F", bound=Callable[..., Any])


def advice_options(function: _F) -> _F:
    """The options ``--advice`` and ``--write-share``."""
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
    return advice(share(function))


def studied(source: Trace, write_share: float) -> dict[str, Any]:
    """The study of the trace, as ``--json`` prints it."""
    # Loaded where it is asked for: other commands start faster without.
    from ..managed.study import advice_study

    return advice_study(source, write_share=write_share)


def show_study(study: dict[str, Any]) -> None:
    """Print the study."""
    from ..report.advice import advice_report

    show(advice_report(study))
