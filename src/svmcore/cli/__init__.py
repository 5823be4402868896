"""The command line ``svmcore``; it needs the extra ``cli`` (click and rich).

Exit status: 0 done, 1 a check failed, 2 bad input (one line on stderr that says
what, where and what was expected), 130 interrupted, 141 the reader of the
output went away.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; those of the process by default.

    Returns
    -------
    int
        The exit status.
    """
    try:
        import click as _click
        import rich as _rich
    except ImportError as error:
        print(
            f"svmcore: the package {(error.name or 'click').partition('.')[0]!r} is missing: "
            "expected the extra of the command line, pip install 'svmcore[cli]'",
            file=sys.stderr,
        )
        return 2
    del _click, _rich
    from .app import run

    return run(sys.argv[1:] if argv is None else list(argv))
