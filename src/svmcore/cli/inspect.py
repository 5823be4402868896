"""``svmcore inspect``: what a trace or a state file holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from .. import __version__
from ..errors import InvalidArgumentError
from ..records import Access, Kind, processor_name
from ..report.text import inspection, state_inspection
from ..traces import Mapping, Trace
from ..traces.base import Records, Spans
from ..units import PAGE_SHIFT
from .advice import advice_options, show_study, studied
from .common import (
    cache_option,
    emit_json,
    format_option,
    json_option,
    opened,
    range_option,
    rounded,
    show,
)
from .state import is_image, look_at_state

__all__ = ["inspect"]

#: Mappings that are named, the largest first.
_TOP = 10
_PAGE = np.uint64(PAGE_SHIFT)
_ONE = np.uint64(1)


@click.command(short_help="Tell what is in a trace or a state file.")
@click.argument("trace")
@format_option()
@range_option
@cache_option
@advice_options
@json_option
def inspect(
    trace: str,
    form: str | None,
    ranges: list[tuple[int, int, str]],
    cache: str | None,
    advice: bool,
    write_share: float,
    machine: str | None,
    as_json: bool,
) -> None:
    """Tell what TRACE holds: records, processors, mappings, pages, and what was repaired.

    TRACE may be a state file: then its Spec, tables, sizes and counts, every digest checked.
    """
    if machine is not None and not advice:
        raise InvalidArgumentError(f"--machine {machine}: expected --advice too")
    if form is None and is_image(trace):
        state = look_at_state(trace)
        if as_json:
            emit_json(state)
        else:
            show(state_inspection(state))
        return
    ranges, changed = rounded(ranges)
    with opened(trace, form, ranges, doing="inspecting", cache=cache) as source:
        table = _look(source)
        study = studied(source, write_share, machine) if advice else None
    table["path"] = trace
    table["notes"] = [*changed, *table["notes"]]
    if study is not None:
        table["advice"] = study
    if as_json:
        emit_json(table)
    else:
        show(inspection(table))
        if study is not None:
            show_study(study)


class _Seen:
    """What the records of a trace add up to.

    Parameters
    ----------
    mappings : list of Mapping
        Disjoint.
    """

    def __init__(self, mappings: list[Mapping]) -> None:
        self.mappings = sorted(mappings)
        self.starts = np.array([m.start for m in self.mappings], "<u8")
        self.lasts = np.array([m.end - 1 for m in self.mappings], "<u8")
        self.records_in = np.zeros(len(self.mappings), np.int64)
        self.pages_in = np.zeros(len(self.mappings), np.int64)
        self.processors = np.zeros(256, np.int64)
        self.accesses = np.zeros(256, np.int64)
        self.spans = Spans()
        self.page_touches = self.compute_ns = 0
        self.first_ns: int | None = None
        self.last_ns = 0

    def add(self, records: Records) -> None:
        """Count a chunk."""
        self.processors += np.bincount(records["proc"], minlength=256)
        # Mappings and batches carry no time of their own.
        timed = (records["kind"] != Kind.MAP) & (records["kind"] != Kind.BATCH)
        if timed.any():
            times = records["t_ns"][timed]
            low = int(times.min())
            self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
            self.last_ns = max(self.last_ns, int(times.max()))
        touches = records[records["kind"] <= Kind.FAULT]
        if len(touches):
            self._touch(touches)

    def _touch(self, touches: Records) -> None:
        self.spans.add(touches)
        self.accesses += np.bincount(touches["access"], minlength=256)
        # Sums of 64-bit numbers need more than 64 bits: whole Python numbers.
        self.compute_ns += sum(touches["dur_ns"][touches["kind"] == Kind.ACCESS].tolist())
        addr, size = touches["addr"], np.maximum(touches["size"], _ONE)
        pages = ((addr + (size - _ONE)) >> _PAGE) - (addr >> _PAGE) + _ONE
        self.page_touches += sum(pages.tolist())
        if len(self.starts):
            index = np.searchsorted(self.starts, addr, "right").astype(np.int64) - 1
            inside = (index >= 0) & (addr <= self.lasts[index])
            count = len(self.mappings)
            self.records_in += np.bincount(index[inside], minlength=count)
            # Float sums are exact below 2**53 pages.
            self.pages_in += np.bincount(index[inside], pages[inside], count).astype(np.int64)

    def largest(self) -> list[dict[str, Any]]:
        """The largest mappings, with what touches them."""
        order = sorted(range(len(self.mappings)), key=lambda i: -self.mappings[i].size)[:_TOP]
        return [
            {
                "name": self.mappings[i].name,
                "start": self.mappings[i].start,
                "size": self.mappings[i].size,
                "records": int(self.records_in[i]),
                "pages": int(self.pages_in[i]),
            }
            for i in order
        ]


def _look(source: Trace) -> dict[str, Any]:
    """Everything that a trace says of itself, in two passes or three."""
    source.identify()
    mappings = source.mappings()
    seen = _Seen(mappings)
    for records in source.chunks():
        seen.add(records)
    summary = source.summary
    span = None if seen.first_ns is None else [seen.first_ns, seen.last_ns]
    return {
        "svmcore": __version__,
        "path": source.path,
        "format": source.format,
        "confidence": round(source.confidence, 4),
        "kind": source.kind,
        "digest": source.digest,
        "bytes": source.nbytes,
        "records": summary.records,
        "kinds": summary.kinds,
        "processors": _named(seen.processors, processor_name),
        "time_span_ns": span,
        "compute_ns": seen.compute_ns,
        "accesses": _named(seen.accesses, lambda code: Access(code).name.lower()),
        "reads": int(seen.accesses[Access.READ]),
        "writes": int(seen.accesses[Access.WRITE] + seen.accesses[Access.ATOMIC]),
        "touched_pages": sum(end - start for start, end in seen.spans.runs()) >> PAGE_SHIFT,
        "page_touches": seen.page_touches,
        "mappings": {
            "count": len(mappings),
            "bytes": sum(mapping.size for mapping in mappings),
            "top": seen.largest(),
        },
        "operators": len(source.names),
        "gpu_ids": source.gpu_ids,
        "lines": {
            "lines": summary.lines,
            "read": summary.read,
            "repaired": summary.repaired,
            "refused": summary.refused,
            "unknown": summary.unknown,
            "metadata": summary.metadata,
            "comments": summary.comments,
        },
        "counts": summary.counts,
        "notes": summary.notes,
    }


def _named(counts: npt.NDArray[np.int64], name: Callable[[int], str]) -> dict[str, int]:
    return {name(code): int(counts[code]) for code in np.flatnonzero(counts).tolist()}
