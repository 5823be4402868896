"""The group of all commands, and the only place where errors become exit statuses."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import IO

import click

from .. import __version__
from ..errors import SvmError
from .bench import bench
from .checkpoint import checkpoint
from .common import CheckFailedError, printable
from .compare import compare
from .conformance import conformance
from .convert import convert
from .demo import demo
from .diff import diff
from .explain import explain
from .inspect import inspect
from .replay import replay
from .stacks import stacks

__all__ = ["run", "svmcore"]

_INTERRUPTED = 128 + 2
_NO_READER = 128 + 13


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="For hosts in C, C++ or Cython: python -m svmcore --cflags --ldflags prints the flags "
    "to compile and link with, --include the folder of the header.",
)
@click.version_option(__version__, prog_name="svmcore", message="%(prog)s %(version)s")
def svmcore() -> None:
    """What does the driver do with this access? A model of GPU shared virtual memory."""


for _command in (
    replay,
    compare,
    explain,
    inspect,
    convert,
    diff,
    stacks,
    conformance,
    demo,
    bench,
    checkpoint,
):
    svmcore.add_command(_command)


def run(argv: list[str]) -> int:
    """Run one command; every expected error is one line on stderr.

    Returns
    -------
    int
        0 done, 1 a check failed, 2 bad input, 130 interrupted, 141 nobody reads
        the output any more.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names of files and buffers may hold what the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with svmcore.make_context("svmcore", argv or ["--help"]) as context:
            status = svmcore.invoke(context)
        sys.stdout.flush()
        return int(status or 0)
    except click.exceptions.Exit as done:
        return _flushed(done.exit_code)
    except click.UsageError as error:
        return _refused(_usage(error))
    except click.ClickException as error:
        return _refused(error.format_message())
    except CheckFailedError as error:
        return _refused(str(error), 1)
    except SvmError as error:
        return _refused(str(error))
    except (KeyboardInterrupt, click.Abort):
        print("svmcore: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        _drop(sys.stdout)
        return _NO_READER
    except OSError as error:
        _drop(sys.stdout)
        where = "output" if error.filename is None else str(error.filename)
        return _refused(f"{where}: {error.strerror or error}: expected a place to write")


def _flushed(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
        return _NO_READER
    return status


def _refused(message: str, status: int = 2) -> int:
    print(f"svmcore: {printable(' '.join(message.split()))}", file=sys.stderr)
    return status


def _usage(error: click.UsageError) -> str:
    """What click says, in one line, and how the command is called."""
    parameter = error.param if isinstance(error, click.BadParameter) else None
    if parameter is not None and isinstance(parameter.type, click.IntRange):
        low, high = parameter.type.min, parameter.type.max
        value = error.message.partition(" is not ")[0]
        wanted = f"{low} or more" if high is None else f"{low} to {high}"
        return f"{parameter.opts[-1]} {value}: expected a whole number, {wanted}"
    message = error.format_message().strip().rstrip(".")
    if error.ctx is None:
        return message
    group = error.ctx.command
    if isinstance(group, click.Group) and message.startswith(
        ("No such command", "Missing command")
    ):
        return f"{message}: expected one of {', '.join(sorted(group.commands))}"
    usage = error.ctx.get_usage().removeprefix("Usage: ")
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        name = f"{error.param.opts[0]} {error.param.metavar or 'VALUE'}"
        usage = usage.replace("[OPTIONS]", f"[OPTIONS] {name}")
    return f"{message}: expected {usage}"


def _drop(stream: IO[str]) -> None:
    """Let what waits in the stream go nowhere, so that the interpreter's end is silent."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
