"""``svmcore checkpoint``: lock, checkpoint, restore, unlock and suspend real CUDA processes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from ..errors import InvalidArgumentError
from .common import CheckFailedError, emit_json, json_option, show

if TYPE_CHECKING:  # loaded by the commands that need it, not by every other one
    from ..checkpoint.cuda import CudaCheckpoint

__all__ = ["checkpoint"]

_F = TypeVar("_F", bound=Callable[..., Any])
_CALL_LIMIT = 30.0


@click.group(no_args_is_help=False, short_help="Checkpoint and restore real CUDA processes.")
def checkpoint() -> None:
    """Drive the checkpoint functions of the CUDA driver on the process PID.

    Needs Linux and an NVIDIA driver of CUDA 12.8 or later; over the extra 'cuda' where it is
    installed. Exit status 1 where the driver refuses: its code is in the message.
    """


def _seconds(
    _context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """A time that a clock can wait; also nan passes the bounds of :class:`click.FloatRange`."""
    if value is not None and not value <= threading.TIMEOUT_MAX:
        raise InvalidArgumentError(
            f"{parameter.opts[0]} {value}: expected at most {int(threading.TIMEOUT_MAX)} seconds"
        )
    return value


def _process(function: _F) -> _F:
    """The argument PID and the options that every command has."""
    function = json_option(function)
    function = click.option(
        "--limit",
        type=click.FloatRange(min=0, min_open=True),
        callback=_seconds,
        default=3600.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest wait for one call of the driver.",
    )(function)
    return click.argument("pid", type=int)(function)


def _timeout(function: _F) -> _F:
    return click.option(
        "--timeout-ms",
        type=click.IntRange(min=0, max=(1 << 32) - 1),
        default=10_000,
        show_default=True,
        help="Longest wait for submitted work; 0: no limit.",
    )(function)


def _gpu_map(function: _F) -> _F:
    return click.option(
        "--gpu-map",
        metavar="OLD=NEW,...",
        callback=_parsed,
        help="Restore onto other GPUs, by UUID (nvidia-smi -L). Drivers want a permutation of "
        "every GPU that the process sees.",
    )(function)


def _parsed(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> dict[str, str]:
    from ..checkpoint.base import parse_gpu_map

    return parse_gpu_map(value or "")


@checkpoint.command()
@_process
def state(pid: int, limit: float, as_json: bool) -> int:
    """Say in which state the process is."""

    def ask(backend: CudaCheckpoint) -> dict[str, Any]:
        return {"restore_thread_id": backend.get_restore_thread_id(pid)}

    return _run("state", pid, limit, as_json, ask)


@checkpoint.command()
@_process
@_timeout
def lock(pid: int, timeout_ms: int, limit: float, as_json: bool) -> int:
    """Block the process's calls and let its work drain."""
    return _run("lock", pid, limit, as_json, lambda backend: backend.lock(pid, timeout_ms))


@checkpoint.command(name="checkpoint")
@_process
def checkpoint_(pid: int, limit: float, as_json: bool) -> int:
    """Bring the memory of a locked process to the host; it holds no GPU then."""
    return _run("checkpoint", pid, limit, as_json, lambda backend: backend.checkpoint(pid))


@checkpoint.command()
@_process
@_gpu_map
def restore(pid: int, gpu_map: dict[str, str], limit: float, as_json: bool) -> int:
    """Put the memory of a checkpointed process back; it is locked then."""
    return _run("restore", pid, limit, as_json, lambda backend: backend.restore(pid, gpu_map))


@checkpoint.command()
@_process
def unlock(pid: int, limit: float, as_json: bool) -> int:
    """Let a locked process run on."""
    return _run("unlock", pid, limit, as_json, lambda backend: backend.unlock(pid))


@checkpoint.command(context_settings={"ignore_unknown_options": True})
@_process
@_timeout
@_gpu_map
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    callback=_seconds,
    help="How long. [default: until the command ends, or an interrupt]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def suspend(
    pid: int,
    timeout_ms: int,
    gpu_map: dict[str, str],
    seconds: float | None,
    command: tuple[str, ...],
    limit: float,
    as_json: bool,
) -> int:
    """Take the process off its GPUs while COMMAND runs, then put it back as it was found.

    Without COMMAND and --seconds it stays suspended until an interrupt (Ctrl-C) or SIGTERM.
    However it ends, the process is put back; only then are further signals heard.
    """
    from ..checkpoint.base import suspended

    if command and shutil.which(command[0]) is None:
        raise InvalidArgumentError(f"command {command[0]!r}: expected a program to run")
    if command and seconds is not None:
        raise InvalidArgumentError("--seconds with a command: expected one of the two")

    def hold(backend: CudaCheckpoint) -> dict[str, Any]:
        status = 0
        with (
            _one_signal(),
            suspended(backend, pid, timeout_ms=timeout_ms, gpu_pairs=gpu_map) as found,
        ):
            begin = time.monotonic()
            if command:
                status = _status_of(command)
            elif seconds is not None:
                time.sleep(seconds)
            else:
                print(f"svmcore: process {pid} is suspended until an interrupt", file=sys.stderr)
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
            held = time.monotonic() - begin
        return {"found": found.name, "held_s": round(held, 3), "status": status}

    return _run("suspend", pid, limit, as_json, hold)


def _status_of(command: tuple[str, ...]) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:  # a file that may be run, and cannot: no program
        raise InvalidArgumentError(
            f"command {command[0]!r}: {error.strerror}: expected a program to run"
        ) from error


@contextlib.contextmanager
def _one_signal() -> Iterator[None]:
    """The first signal to end interrupts; later ones wait until all is put back."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in signals}

    def stop(_number: int, _frame: object) -> None:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    action: str,
    pid: int,
    limit: float,
    as_json: bool,
    act: Callable[[CudaCheckpoint], object],
) -> int:
    """Do it, say what came of it; 1 where the driver refused. *act* may give more to say."""
    from ..checkpoint.base import (
        CallTimeoutError,
        CheckpointError,
        CheckpointNotSupportedError,
    )
    from ..checkpoint.cuda import CudaCheckpoint

    backend = CudaCheckpoint(call_timeout_s=min(limit, _CALL_LIMIT), move_timeout_s=limit)
    table: dict[str, Any] = {"pid": pid, "action": action}
    begin = time.monotonic()
    try:
        # While a command runs, the terminal is its.
        with contextlib.nullcontext() if action == "suspend" else _working(f"{action} of {pid}"):
            more = act(backend)
        table |= more if isinstance(more, dict) else {}
        table["seconds"] = round(time.monotonic() - begin, 6)
        table["state"] = backend.get_state(pid).name
    except CheckpointNotSupportedError:
        raise
    except (CheckpointError, CallTimeoutError) as error:
        if not as_json:
            raise CheckFailedError(str(error)) from error
        emit_json(table | {"error": error.code, "message": str(error)})
        return 1
    if as_json:
        emit_json(table)
    else:
        show([f"process {pid}: {table['state']}{_told(table)}"])
    return 1 if table.get("status") else 0


def _told(table: dict[str, Any]) -> str:
    if table["action"] == "state":
        return f", restore thread {table['restore_thread_id']}"
    told = f", {table['action']} took {table['seconds']:.3f} s"
    if table.get("status"):
        told += f", the command ended with {table['status']}"
    return told


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """A sign of life on a terminal while the driver works."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield
