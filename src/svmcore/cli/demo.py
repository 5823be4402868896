"""``svmcore demo``: what one setting changes, on a trace that ships with the package."""

from __future__ import annotations

import click

from .. import __version__
from ..engine import Space
from ..replay import replay
from ..report.text import comparison, meaning, settings_text
from ..result import Result
from ..units import PAGE_SIZE, format_size
from .common import DEMO, emit_json, json_option, opened, show

__all__ = ["GRANULARITIES", "demo"]

#: The driver's default, 2 MiB, and one of 64 KiB.
GRANULARITIES = (9, 4)
_MACHINE = "gpu-80g"


@click.command(short_help="See on a shipped trace what a setting changes.")
@json_option
def demo(as_json: bool) -> None:
    """Replay the shipped trace at two granularities and show what changes.

    The trace has the shape of three training steps of a small transformer:
    dense weights, gradients and activations, and an embedding table that is read
    in scattered rows. It is made up, from a seed. No GPU, no driver, no file.
    """
    results = [_run(granularity) for granularity in GRANULARITIES]
    one, other = results
    if as_json:
        emit_json(
            {
                "svmcore": __version__,
                "trace": one.trace,
                "granularities": list(GRANULARITIES),
                "results": [result.to_dict() for result in results],
                "meaning": meaning(one, other),
            }
        )
        return
    windows = " against ".join(
        f"granularity {g} (a fault restores up to {format_size(PAGE_SIZE << g)})"
        for g in GRANULARITIES
    )
    settings = {key: value for key, value in one.settings.items() if key != "granularity"}
    show(
        [
            (
                f"svmcore {__version__}: three training steps of a small made-up transformer, "
                f"{one.trace['records']:,} range accesses,"
            ),
            (
                f"{one.counters['pages_touched']:,} page touches, by one GPU whose pages are all "
                "in system memory at first."
            ),
            f"Policy {one.policy}, {windows}.",
            (
                f"Machine {one.machine}; other settings: {settings_text(settings)}; "
                f"trace digest {one.trace['digest']}."
            ),
            "",
            *comparison(one, other),
            "",
            *(f"note: {note}" for note in one.notes),
            "next: svmcore inspect demo; svmcore replay demo --set granularity=6",
        ]
    )


def _run(granularity: int) -> Result:
    space = Space(_MACHINE, policy="kfd", granularity=granularity)
    with opened(DEMO, doing=f"replaying at granularity {granularity}:") as source:
        result = replay(source, space)
    result.trace["path"] = DEMO
    return result
