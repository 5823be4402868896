"""What a reader says of some bytes, for tests and fuzzing: by its fast and by its careful code."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from svmcore.errors import TraceError
from svmcore.traces import (
    accel_sim,
    access_list,
    kfd_smi,
    open_trace,
    perf_script,
    records_csv,
    rocpd,
    rocprofiler,
    uvm_log,
    workload_csv,
)
from svmcore.traces.base import check_records

#: Readers that have two ways to read a line.
TWO_WAYS = (
    "accel-sim",
    "access-list",
    "csv",
    "ftrace",
    "hsa-svm-profile",
    "kfd-smi",
    "perf-script",
    "rocpd",
    "rocprofiler-json",
    "uvm-log",
    "workload-csv",
)
_TABLES = (access_list, records_csv, workload_csv)
_SCANNERS = (kfd_smi.EventParser, uvm_log._Parser)


@contextlib.contextmanager
def careful() -> Iterator[None]:
    """Inside, no line is read by compiled code."""
    kept = [scanner._scan for scanner in _SCANNERS], [module.table_columns for module in _TABLES]
    fast = perf_script.FaultParser._fast
    warps = accel_sim._Kernel._scan
    elements, events = rocprofiler._Elements._columns, rocpd._scanned
    try:
        rocpd._scanned = lambda texts: events([None] * len(texts))
        rocprofiler._Elements._columns = lambda self, name: (0, self.at)
        accel_sim._Kernel._scan = lambda self, data, at: (0, 0, at)
        perf_script.FaultParser._fast = lambda self, block, form: None
        for scanner in _SCANNERS:
            scanner._scan = lambda self, data, at, out: (0, 0, at)
        for module in _TABLES:
            module.table_columns = lambda block, form: None
        yield
    finally:
        perf_script.FaultParser._fast = fast
        accel_sim._Kernel._scan = warps
        rocprofiler._Elements._columns, rocpd._scanned = elements, events
        for scanner, scan in zip(_SCANNERS, kept[0], strict=True):
            scanner._scan = scan
        for module, table in zip(_TABLES, kept[1], strict=True):
            module.table_columns = table


def look(path: str | Path, form: str | None) -> Any:
    """All that a reader says of a file, or its error as text."""
    try:
        trace = open_trace(path, format=form)
        mappings = trace.mappings()
        records = []
        for chunk in trace.chunks(5):
            check_records(chunk, trace.path, str)
            records += chunk.tolist()
    except TraceError as error:
        # What is refused says where, and why.
        return str(error) if error.path == str(path) and error.reason else error
    return records, mappings, trace.summary, dict(trace.names), trace.gpu_ids, trace.kind


def check(path: str | Path, form: str | None) -> None:
    """Read a file in every way; assert that nothing is lost and the ways agree."""
    found = look(path, form)
    if form in TWO_WAYS:
        with careful():
            assert look(path, form) == found
    assert not isinstance(found, TraceError), repr(found)
    if isinstance(found, str):
        return
    records, mappings, s, _, _, kind = found
    assert s.read + s.repaired + s.refused + s.unknown + s.metadata + s.comments == s.lines
    assert s.records == len(records) == sum(s.kinds.values())
    assert all(m.size > 0 and m.start >= 0 and m.end <= 1 << 64 for m in mappings)
    assert all(a.end <= b.start for a, b in itertools.pairwise(sorted(mappings)))
    assert kind in ("access", "fault")
