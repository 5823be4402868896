"""``svmcore convert``: a trace in another format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from .. import __version__
from ..errors import InvalidArgumentError
from ..records import Kind
from ..traces import WRITERS, Trace, Written, map_records, write_records
from ..traces.base import Records
from ..traces.kfd_smi import KfdSmiTrace
from .common import emit_json, format_option, json_option, opened, printable, show

__all__ = ["convert"]

_BY_SUFFIX = {
    ".npy": "npy",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_PACKED = (".gz", ".xz", ".zst")


@click.command(short_help="Write a trace in another format.")
@click.argument("src")
@click.argument("dst")
@click.option(
    "to",
    "--to",
    metavar="FORMAT",
    help=f"One of {', '.join(WRITERS)}. [default: by the name of DST, {', '.join(_BY_SUFFIX)}]",
)
@format_option("--from")
@click.option("--force", is_flag=True, help="Replace DST where it is there.")
@json_option
def convert(
    src: str,
    dst: str,
    to: str | None,
    form: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the trace SRC, a file or the word demo, as DST; mappings come first, as records."""
    target = _target(dst, to)
    if not force and os.path.lexists(dst):
        raise InvalidArgumentError(f"{dst}: is there already: expected --force or another name")
    if Path(dst).is_dir():
        raise InvalidArgumentError(f"{dst}: is a directory: expected the name of a file")
    with opened(src, form, doing="converting") as source:
        written = _write(source, dst, target)
    lost = _not_kept(source, target)
    if as_json:
        emit_json(
            {
                "svmcore": __version__,
                "from": {"path": src, "format": source.format, "digest": source.digest},
                "to": {"path": dst, "format": target},
                "records": written.records,
                "left_out": written.left_out,
                "not_kept": lost,
            }
        )
        return
    lines = [
        (
            f"wrote {printable(dst)} ({target}): {written.records:,} records of {printable(src)} "
            f"({source.format})"
        )
    ]
    if written.left_out:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in written.left_out.items())
        lines.append(f"left out: {kinds}; {target} has no line for them")
    if lost:
        lines.append(f"not kept: {', '.join(lost)}")
    show(lines + [f"note: {printable(note)}" for note in source.summary.notes])


def _target(dst: str, to: str | None) -> str:
    suffix = Path(dst).suffix.lower()
    if suffix in _PACKED:
        raise InvalidArgumentError(
            f"{dst}: expected a name without {suffix}: files are written plain"
        )
    target = to or _BY_SUFFIX.get(suffix)
    if target is None:
        raise InvalidArgumentError(
            f"{dst}: expected --to {'|'.join(WRITERS)}, or a name that ends in "
            f"{', '.join(_BY_SUFFIX)}"
        )
    if target not in WRITERS:
        raise InvalidArgumentError(f"--to {target}: expected one of {', '.join(WRITERS)}")
    return target


def _write(source: Trace, dst: str, target: str) -> Written:
    gpu_ids = source.gpu_ids if isinstance(source, KfdSmiTrace) and target == "kfd-smi" else []
    return write_records(dst, _arrays(source, target), target, gpu_ids=gpu_ids)


def _arrays(source: Trace, target: str) -> Iterator[Records]:
    """The mappings as records, where the format can say them and the trace does not, then all."""
    chunks = source.chunks()
    if Kind.MAP in WRITERS[target]:
        mappings = source.mappings()
        first = next(chunks, None)
        if first is not None:
            if "map" not in source.summary.kinds:
                maps = map_records(mappings)
                # They are there when the trace begins, not at the zero of its clock.
                maps["t_ns"] = first["t_ns"][0]
                yield maps
            yield first
    yield from chunks


def _not_kept(source: Trace, target: str) -> list[str]:
    """What the records carry or refer to that the format cannot say."""
    lost: list[str] = []
    if source.names:
        lost.append(f"names of {len(source.names):,} operators")
    named = sum(
        not mapping.name.startswith(("map", "touched", "range")) for mapping in source.mappings()
    )
    if Kind.MAP not in WRITERS[target]:
        lost.append("mappings")
    elif named:
        lost.append(f"names of {named:,} mappings")
    if target == "access-list":
        lost.append("times")
    return lost
