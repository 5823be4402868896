"""Trace files: readers, one a format, and writers.

:func:`open_trace` recognises a file by its content and gives a :class:`Trace`;
:func:`write_records` writes one. Formats are listed by :func:`formats`.

>>> from svmcore.traces import formats
>>> formats()["kfd-smi"]
'AMD KFD SMI event text (faults, migrations, queue events)'
"""

from __future__ import annotations

# Importing a reader registers it.
from . import (
    accel_sim,
    access_list,
    akita,
    chunk_trace,
    ftrace,
    hsa_profile,
    kfd_smi,
    lackey,
    libcachesim,
    nsys,
    perf_script,
    records_arrow,
    records_csv,
    records_npy,
    rocpd,
    rocprofiler,
    uvm_binary,
    uvm_log,
    uvm_tools,
    workload_csv,
)
from .base import Mapping, Summary, Trace, TraceKind, formats, map_records
from .recognise import open_trace
from .writers import WRITERS, Written, write_records

__all__ = [
    "WRITERS",
    "Mapping",
    "Summary",
    "Trace",
    "TraceKind",
    "Written",
    "accel_sim",
    "access_list",
    "akita",
    "chunk_trace",
    "formats",
    "ftrace",
    "hsa_profile",
    "kfd_smi",
    "lackey",
    "libcachesim",
    "map_records",
    "nsys",
    "open_trace",
    "perf_script",
    "records_arrow",
    "records_csv",
    "records_npy",
    "rocpd",
    "rocprofiler",
    "uvm_binary",
    "uvm_log",
    "uvm_tools",
    "workload_csv",
    "write_records",
]
