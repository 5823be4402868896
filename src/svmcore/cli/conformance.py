"""``svmcore conformance``: the engine against vector files."""

from __future__ import annotations

import click

from ..conformance import main
from ..errors import InvalidArgumentError

__all__ = ["conformance"]


@click.command(short_help="Run vector files against the engine.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--reference", is_flag=True, help="Run the executable specification instead.")
def conformance(files: tuple[str, ...], reference: bool) -> int:
    """Run vector files; one line each, then the first mismatches.

    Exit status 0 only where there is none, 1 with mismatches, 2 for a file that
    is none of a known kind. The same as python -m svmcore.conformance.
    """
    try:
        return main([*(["--reference"] if reference else []), "--", *files])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{', '.join(files)}: {error!r}: expected vector files with a whole header"
        ) from error
