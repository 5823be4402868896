"""``svmcore bench``: this machine beside the published table."""

from __future__ import annotations

import click
from rich import box
from rich.table import Table

from .. import __version__
from ..report.bench import compared, host, measure, published
from .common import emit_json, json_option, show

__all__ = ["bench"]


@click.command(short_help="Measure this machine beside the published table.")
@click.option(
    "--ranges",
    type=click.IntRange(min=10, max=10_000_000),
    default=10_000,
    show_default=True,
    help="Ranges in the map; the published table has the default.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1, max=1000),
    default=5,
    show_default=True,
    help="Turns of every case; the least counts.",
)
@click.option(
    "--operations",
    type=click.IntRange(min=10, max=10_000_000),
    default=20_000,
    show_default=True,
    help="Calls of a case in one turn.",
)
@json_option
def bench(ranges: int, rounds: int, operations: int, as_json: bool) -> None:
    """Time look-ups, overwrites and faults here, beside the published figures.

    Figures of two machines differ; the ratios to the rivals in the same run should not
    by much. All cases and all rivals are in bench/ of the source.
    """
    here = host()
    there = published()
    rows = compared(measure(ranges, rounds, operations), there)
    if as_json:
        emit_json(
            {
                "svmcore": __version__,
                "machine": here,
                "ranges": ranges,
                "rounds": rounds,
                "operations": operations,
                "cases": rows,
                "published": there["machine"],
            }
        )
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("case")
    for name in ("ns here", "ns published", "speed here"):
        table.add_column(name, justify="right")
    table.add_column("one operation")
    for row in rows:
        other, speed = row["published_ns"], row["speed"]
        table.add_row(
            row["case"],
            f"{row['ns']:,.1f}",
            "-" if other is None else f"{other:,.1f}",
            "-" if speed is None else f"{speed:.2f}x",
            row["what"],
        )
    ns = {row["case"]: row["ns"] for row in rows}
    ratios = ", ".join(
        f"{name.replace('/', ' against ')} {ns[name] / ns[name.partition('/')[0]]:.1f}x"
        for name in ns
        if "/" in name
    )
    show(
        [
            f"svmcore {__version__} on {_named(here)}",
            f"published: svmcore {there['machine']['svmcore']} on {_named(there['machine'])}",
            "",
            table,
            f"{ranges:,} ranges, {rounds} rounds; ratios in this run: {ratios}.",
            (
                f"{1e3 / ns['fault']:.1f} million faults/s in a replay, "
                f"{1e3 / ns['fault call']:.1f} million/s one Python call at a time."
            ),
            *(
                []
                if ranges == there["ranges"]
                else [f"note: the published table has {there['ranges']:,} ranges"]
            ),
        ]
    )


def _named(machine: dict[str, str]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, NumPy {machine['numpy']}"
    )
