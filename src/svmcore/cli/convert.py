"""``svmcore convert``: a trace in another format."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from .. import __version__
from ..errors import InvalidArgumentError
from ..records import Kind
from ..report.perfetto import TELLS, write_perfetto
from ..report.text import counted
from ..traces import WRITERS, Trace, Written, map_records, write_records
from ..traces.base import Records
from .common import (
    DEMO,
    cache_option,
    emit_json,
    format_option,
    json_option,
    opened,
    printable,
    show,
)

__all__ = ["convert"]

#: The timeline for viewers; it is a report, nothing reads it back.
PERFETTO = "perfetto"
#: Kinds of records that each format can hold.
_HOLDS = {**WRITERS, PERFETTO: TELLS}
_BY_SUFFIX = {
    ".npy": "npy",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".smi": "kfd-smi",
    ".oraclegeneral": "oracle-general",
    ".json": PERFETTO,
}
_PACKED = (".gz", ".xz", ".zst")


@click.command(short_help="Write a trace in another format.")
@click.argument("src")
@click.argument("dst")
@click.option(
    "to",
    "--to",
    metavar="FORMAT",
    help=f"One of {', '.join(_HOLDS)}. [default: by the name of DST, {', '.join(_BY_SUFFIX)}]",
)
@format_option("--from")
@cache_option
@click.option("--force", is_flag=True, help="Replace DST where it is there.")
@json_option
def convert(
    src: str,
    dst: str,
    to: str | None,
    form: str | None,
    cache: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the trace SRC, a file or the word demo, as DST; mappings come first, as records."""
    target = _target(dst, to)
    _check_place(src, dst, force)
    with opened(src, form, doing="converting", cache=cache) as source:
        if as_json:
            source.identify()
        written = _write(source, dst, target)
    lost = _not_kept(source, target)
    notes = [*_changed(source, target), *source.summary.notes]
    if as_json:
        emit_json(
            {
                "svmcore": __version__,
                "from": {"path": src, "format": source.format, "digest": source.digest},
                "to": {"path": dst, "format": target},
                "records": written.records,
                "left_out": written.left_out,
                "not_kept": lost,
                "notes": notes,
            }
        )
        return
    lines = [
        (
            f"wrote {printable(dst)} ({target}): {counted(written.records, 'record')} of "
            f"{printable(src)} ({source.format})"
        )
    ]
    if written.left_out:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in written.left_out.items())
        lines.append(f"left out: {kinds}; {target} has no line for them")
    if lost:
        lines.append(f"not kept: {', '.join(lost)}")
    show(lines + [f"note: {printable(note)}" for note in notes])


def _check_place(src: str, dst: str, force: bool) -> None:
    """Refuse a DST that is SRC itself, or that must not be replaced.

    Raises
    ------
    InvalidArgumentError
        With what is wrong with it.
    """
    try:
        status = Path(dst).stat()
    except (OSError, ValueError):  # not there, a link to nowhere, or refused when it is written
        status = None
    if status is not None:
        if src != DEMO and Path(src).exists() and Path(src).samefile(dst):
            raise InvalidArgumentError(
                f"{dst}: is the same file as {src}: expected another name, no trace is written "
                "over itself"
            )
        if stat.S_ISDIR(status.st_mode):
            raise InvalidArgumentError(f"{dst}: is a directory: expected the name of a file")
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgumentError(f"{dst}: is not a regular file: expected the name of a file")
    if not force and os.path.lexists(dst):
        raise InvalidArgumentError(f"{dst}: is there already: expected --force or another name")
    # Root may write everything; the bits say what is meant to stay as it is.
    if status is not None and not (status.st_mode & 0o222 and os.access(dst, os.W_OK)):
        raise InvalidArgumentError(
            f"{dst}: may not be written (mode {stat.S_IMODE(status.st_mode):04o}): expected a "
            "file with write permission or another name"
        )


def _target(dst: str, to: str | None) -> str:
    if dst == "-":
        raise InvalidArgumentError(
            "-: traces are not written to standard output yet: expected the name of a file"
        )
    suffix = Path(dst).suffix.lower()
    if suffix in _PACKED:
        raise InvalidArgumentError(
            f"{dst}: expected a name without {suffix}: files are written plain"
        )
    target = to or _BY_SUFFIX.get(suffix)
    if target is None:
        raise InvalidArgumentError(
            f"{dst}: expected --to {'|'.join(_HOLDS)}, or a name that ends in "
            f"{', '.join(_BY_SUFFIX)}"
        )
    if target not in _HOLDS:
        raise InvalidArgumentError(f"--to {target}: expected one of {', '.join(_HOLDS)}")
    return target


def _write(source: Trace, dst: str, target: str) -> Written:
    if target == PERFETTO:
        chunks = _arrays(source, target)
        left_out = write_perfetto(dst, chunks, source.names)
        return Written(source.summary.records - sum(left_out.values()), left_out)
    gpu_ids = source.gpu_ids if target == "kfd-smi" else []
    return write_records(dst, _arrays(source, target), target, gpu_ids=gpu_ids)


def _arrays(source: Trace, target: str) -> Iterator[Records]:
    """The mappings as records, where the format can say them and no record does, then all."""
    chunks = source.chunks()
    if Kind.MAP in _HOLDS[target]:
        mappings = source.mappings()
        first = next(chunks, None)
        if first is not None:
            if "map" in source.summary.kinds:
                # Records name the others already.
                mappings = [mapping for mapping in mappings if mapping.name.startswith("touched")]
            if mappings:
                maps = map_records(mappings)
                # They are there when the trace begins, not at the zero of its clock.
                maps["t_ns"] = first["t_ns"][0]
                yield maps
            yield first
    yield from chunks
    _check_some(source, target)


def _check_some(source: Trace, target: str) -> None:
    """Refuse a whole trace of which the format can say nothing; the file is not there yet."""
    said = _HOLDS[target]
    kinds = source.summary.kinds
    if said == frozenset(Kind) or any(Kind[name.upper()] in said for name in kinds):
        return
    there = ", ".join(f"{number:,} {name}" for name, number in kinds.items()) or "it has none"
    holds = ", ".join(kind.name.lower() for kind in sorted(said))
    raise InvalidArgumentError(
        f"{source.path}: {target} can hold none of its records ({there}): expected records of "
        f"{holds}, or another format"
    )


def _not_kept(source: Trace, target: str) -> list[str]:
    """What the records carry or refer to that the format cannot say."""
    lost: list[str] = []
    if source.names and target != PERFETTO:
        lost.append(f"names of {counted(len(source.names), 'operator')}")
    named = sum(
        not mapping.name.startswith(("map", "touched", "range")) for mapping in source.mappings()
    )
    if Kind.MAP not in _HOLDS[target]:
        lost.append("mappings")
    elif named:
        lost.append(f"names of {counted(named, 'mapping')}")
    lost += source.beyond_records
    if source.gpu_ids and target != "kfd-smi":
        ids = ", ".join(f"gpu{i} is {gpu:#x}" for i, gpu in enumerate(source.gpu_ids))
        lost.append(f"GPU ids ({ids})")
    if target == "access-list":
        lost.append("times")
    if target == "oracle-general":
        lost += ["times below a second", "read or write", "processors", "bytes inside a window"]
    return lost


def _changed(source: Trace, target: str) -> list[str]:
    """What the trace is no more in its new format."""
    if target not in ("access-list", "oracle-general") or source.kind != "fault":
        return []
    return [
        "a fault trace became an access trace: nothing in it says that it holds only what faulted"
    ]
