"""What the commands share: the console, the progress bar, opening a trace."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..errors import InvalidArgumentError
from ..report.text import printable
from ..traces import Trace, formats, open_trace
from ..units import PAGE_MASK, format_size, parse_size

__all__ = [
    "DEMO",
    "CheckFailedError",
    "cache_option",
    "emit_json",
    "format_option",
    "json_option",
    "opened",
    "printable",
    "range_option",
    "rounded",
    "show",
]

#: The word that stands for the trace that ships with the package.
DEMO = "demo"
#: Columns where the output is no terminal, and the fewest on one: figures are never cut.
_WIDTH, _LEAST_WIDTH = 120, 80
_F = TypeVar("_F", bound=Callable[..., Any])


class CheckFailedError(Exception):
    """What was asked for does not hold: exit status 1, not bad input."""


class _Console(Console):
    """A console that leaves a broken pipe to :func:`svmcore.cli.app.run`."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich would end the process with status 1."""
        raise  # noqa: PLE0704 - called while the error is handled


def show(parts: Iterable[RenderableType]) -> None:
    """Print lines and tables of a report on stdout; lines are never cut."""
    console = _Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    console.width = max(console.width, _LEAST_WIDTH) if sys.stdout.isatty() else _WIDTH
    for part in parts:
        if isinstance(part, str | Text):
            console.print(part, soft_wrap=True)
        else:
            console.print(part)


def emit_json(table: dict[str, Any]) -> None:
    """Print one JSON object, one line, in ASCII."""
    sys.stdout.write(json.dumps(table) + "\n")


def json_option(function: _F) -> _F:
    """The option ``--json``."""
    return click.option(
        "as_json", "--json", is_flag=True, help="Print one JSON object on stdout, nothing else."
    )(function)


def format_option(name: str = "--format") -> Callable[[_F], _F]:
    """The option that names the format of the trace."""
    return click.option(
        "form",
        name,
        metavar="FORMAT",
        help=f"Read the trace as this format: {', '.join(sorted(formats()))}. "
        "[default: recognised by its content]",
    )


def cache_option(function: _F) -> _F:
    """The option ``--cache``."""
    return click.option(
        "cache",
        "--cache",
        metavar="DIR",
        envvar="SVMCORE_CACHE",
        show_envvar=True,
        help="Keep the records of a trace in this folder and read them from there the next time.",
    )(function)


def range_option(function: _F) -> _F:
    """The repeatable option ``--range``."""
    return click.option(
        "ranges",
        "--range",
        metavar="START,SIZE[,NAME]",
        multiple=True,
        callback=_ranges,
        help="A mapping, in bytes (0x7f0000000000,2MiB), rounded outward to pages of 4 KiB; "
        "given ones replace those of the trace.",
    )(function)


def _ranges(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for index, value in enumerate(values):
        start, _, rest = value.partition(",")
        size, _, name = rest.partition(",")
        try:
            nbytes = int(size, 0) if size[:2] in ("0x", "0X") else parse_size(size)
            first = int(start, 0)
        except ValueError as error:
            raise InvalidArgumentError(
                f"--range {value}: expected START,SIZE[,NAME] in bytes, as 0x7f0000000000,2MiB"
            ) from error
        if first < 0:
            raise InvalidArgumentError(f"--range {value}: expected a start of at least 0")
        if nbytes < 1:
            raise InvalidArgumentError(f"--range {value}: expected a size of at least 1 byte")
        found.append((first, nbytes, name or f"range{index}"))
    return found


def rounded(
    ranges: Iterable[tuple[int, int, str]],
) -> tuple[list[tuple[int, int, str]], list[str]]:
    """Ranges rounded outward to pages, and a sentence for each that this changed."""
    whole: list[tuple[int, int, str]] = []
    notes: list[str] = []
    for start, size, name in ranges:
        first = start & ~PAGE_MASK
        nbytes = ((start + size + PAGE_MASK) & ~PAGE_MASK) - first
        whole.append((first, nbytes, name))
        if (first, nbytes) != (start, size):
            notes.append(
                f"--range {start:#x},{size}: rounded outward to pages: {first:#x},{nbytes}"
            )
    return whole, notes


@contextlib.contextmanager
def opened(
    name: str,
    form: str | None = None,
    ranges: Iterable[tuple[int, int, str]] = (),
    *,
    doing: str = "reading",
    cache: str | None = None,
) -> Iterator[Trace]:
    """A trace by its path or the word ``demo``, with a progress bar on a terminal.

    Parameters
    ----------
    name : str
        A path, or ``demo`` for the trace that ships with the package (a file of
        that name is ``./demo``), or several paths with commas between them.
    form : str, optional
        Its format.
    ranges : iterable of (start, size, name)
        Mappings that replace those of the trace.
    doing : str
        What is about to happen, for the line before the bar.
    cache : str, optional
        Folder of copies of records.

    Raises
    ------
    SvmError
        As :func:`svmcore.traces.open_trace`.
    """
    if not name:
        raise InvalidArgumentError("trace '': expected the name of a file, or demo")
    with contextlib.ExitStack() as stack:
        path: str | list[str] = name
        if name == DEMO:
            packed = resources.files("svmcore") / "data" / "demo.csv.gz"
            path = str(stack.enter_context(resources.as_file(packed)))
        elif "," in name and all(name.split(",")) and not Path(name).exists():
            path = name.split(",")
        if not sys.stderr.isatty():
            yield open_trace(path, form, ranges, cache=cache)
            return
        bar = _Bar()
        # With a cache the file is read while it is opened, before a bar can be shown.
        trace = open_trace(path, form, ranges, progress=bar.move, cache=cache)
        print(
            f"{doing} {printable(name)} ({trace.format}, {format_size(trace.nbytes)})",
            file=sys.stderr,
            flush=True,
        )
        with bar.shown(trace.nbytes):
            yield trace


class _Bar:
    """Bytes read of a trace, on stderr; a trace is read in one pass or more.

    Invariant: ``last`` is the position of the last call; a lower one is a new pass.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.number = 1
        self.last = 0

    def move(self, position: int) -> None:
        """Called by the reader with the bytes read so far in its pass."""
        if self.progress is None:
            return
        self.number += position < self.last
        self.last = position
        for task in self.progress.task_ids:
            self.progress.update(task, completed=position, description=f"pass {self.number}")

    @contextlib.contextmanager
    def shown(self, nbytes: int) -> Iterator[None]:
        """The bar, gone again at the end of the block."""
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as self.progress:
            self.progress.add_task("pass 1", total=nbytes)
            try:
                yield
            finally:
                self.progress.refresh()
        self.progress = None
