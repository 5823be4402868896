"""The folder of ``svmcore replay --out``: its files whole, or none of them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import secrets
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError
from ..result import BUFFER, Result

__all__ = ["check_folder", "write_folder"]


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done.

    Raises
    ------
    InvalidArgumentError
        If *folder* or the nearest folder above it is none, or may not be written.
    """
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise InvalidArgumentError(f"--out {folder}: {place} is not a folder: expected a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InvalidArgumentError(
            f"--out {folder}: {place} may not be written: expected a folder to write into"
        )


def write_folder(
    folder: Path, table: dict[str, Any], config: dict[str, Any], result: Result
) -> None:
    """Write config.json, buffers.csv and result.json.

    Every file is on the disk under another name before the first one takes its
    own; ``result.json`` comes last, so that where it is, all of them are.

    Raises
    ------
    InvalidArgumentError
        If they cannot be written; none is there then that was not before.
    """
    files = {
        "config.json": json.dumps(config, indent=1) + "\n",
        "buffers.csv": _buffers(result),
        "result.json": json.dumps(table, indent=1) + "\n",
    }
    tag = secrets.token_hex(6)
    waiting: dict[str, Path] = {}
    made: list[Path] = []
    try:
        made = _make(folder)
        for name, text in files.items():
            waiting[name] = folder / f".{name}.{tag}.tmp"
            with waiting[name].open("x", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for name in files:
            waiting[name].replace(folder / name)
        _sync(folder)
    except BaseException as error:
        for path in waiting.values():
            with contextlib.suppress(OSError):
                path.unlink()
        for path in reversed(made):
            with contextlib.suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise InvalidArgumentError(
                f"--out {folder}: {error.strerror or error}: expected a folder to write into"
            ) from error
        raise


def _make(folder: Path) -> list[Path]:
    """Make the folder and those above it; the ones made, from the top."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made: list[Path] = []
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        made.append(path)
    return made


def _sync(folder: Path) -> None:
    """Make the new names durable where the system lets a folder be flushed."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _buffers(result: Result) -> str:
    names = list(BUFFER.names or ())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", *names])
    writer.writerows(
        [name.encode("utf-8", "backslashreplace").decode(), *row.tolist()]
        for name, row in zip(result.names, result.buffers, strict=True)
    )
    return text.getvalue()
