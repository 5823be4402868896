"""The advice study for people: what each vendor does, buffer by buffer, and the lint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..managed.study import DIALECTS
from ..units import format_size
from .text import counted, printable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["advice_report"]

#: Buffers that are named, the most touched first.
TOP = 10


def advice_report(study: Mapping[str, Any]) -> list[str | Table]:
    """Lines and tables of :func:`svmcore.managed.study.advice_study`.

    Parameters
    ----------
    study : mapping
        What the study returned.

    Returns
    -------
    list of str or rich.table.Table
    """
    from rich import box
    from rich.table import Table

    parts: list[str | Table] = ["", f"advice, on {printable(study['machine'])}:"]
    meaning = Table("advice", "vendor", "what it does", box=box.SIMPLE, show_edge=False)
    for word, effects in study["effects"].items():
        for number, (dialect, text) in enumerate(effects.items()):
            meaning.add_row("" if number else word, dialect, text)
    parts += ["", meaning, "", "moved + copied, and reached in another's memory (~), a buffer:", ""]
    figures = Table("buffer", "writes", "advice", *DIALECTS, box=box.SIMPLE, show_edge=False)
    for column in (1, *range(3, 3 + len(DIALECTS))):
        figures.columns[column].justify = "right"
    order = sorted(study["buffers"], key=lambda row: -(row["reads"] + row["writes"]))
    for row in order[:TOP]:
        share = f"{row['write_share']:.1%}"
        cells = [_figure(row["without"][dialect]) for dialect in DIALECTS]
        figures.add_row(printable(row["name"]), share, "none", *cells)
        for word, told in row["advice"].items():
            place = f" {told['location']}" if told["location"] else ""
            cells = [_figure(told[dialect]) for dialect in DIALECTS]
            figures.add_row("", "", word + place, *cells)
    parts.append(figures)
    if len(order) > TOP:
        parts.append(f"and {counted(len(order) - TOP, 'buffer')} with fewer touches")
    parts += ["", *_lint(study)]
    for play, answers in study["refused"].items():
        for answer, times in answers.items():
            parts.append(f"note: {play}: {answer}, {counted(times, 'time')}")
    return parts


def _figure(row: Mapping[str, int]) -> str:
    text = format_size(row["moved_bytes"] + row["copied_bytes"])
    return f"{text} ~{format_size(row['remote_bytes'])}" if row["remote_bytes"] else text


def _lint(study: Mapping[str, Any]) -> list[str]:
    """Rule A8: read mostly is for data that is mostly read."""
    limit = f"{study['write_share']:.1%}"
    lines = []
    for row in study["lint"]:
        what = "is advised read mostly, but" if row["advised"] else "is not for read mostly:"
        lines.append(
            f"lint A8: {printable(row['buffer'])} {what} {row['write_share']:.1%} of its "
            f"accesses are writes, more than {limit}"
        )
    return lines or [f"lint A8: no buffer is written in more than {limit} of its accesses"]
