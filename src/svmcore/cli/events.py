"""``svmcore replay --events``: the event log of the modelled run, as a file."""

from __future__ import annotations

from pathlib import Path

from ..engine import Space
from ..errors import InvalidArgumentError
from ..events import modelled_events
from ..report.perfetto import write_perfetto
from ..report.text import counted, printable
from ..traces import WRITERS, Trace, write_records

__all__ = ["events_form", "write_events"]

_BY_SUFFIX = {
    ".smi": "kfd-smi",
    ".txt": "kfd-smi",
    ".log": "kfd-smi",
    ".json": "perfetto",
    ".csv": "csv",
    ".npy": "npy",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}


def events_form(path: str, policy: str) -> str:
    """The format that the name of an event file asks for.

    Raises
    ------
    InvalidArgumentError
        If it is there already, its suffix is none of those known, or the form cannot say
        what the policy does.
    """
    if Path(path).exists():
        raise InvalidArgumentError(f"--events {path}: is there already: expected another name")
    form = _BY_SUFFIX.get(Path(path).suffix.lower())
    if form is None:
        raise InvalidArgumentError(
            f"--events {path}: expected a name that ends in {', '.join(_BY_SUFFIX)}"
        )
    if form == "kfd-smi" and policy != "kfd":
        known = ", ".join(suffix for suffix, name in _BY_SUFFIX.items() if name != form)
        raise InvalidArgumentError(
            f"--events {path}: KFD SMI text says nothing of policy {policy}: expected a name that "
            f"ends in {known}"
        )
    return form


def write_events(source: Trace, path: str, space: Space, by: str) -> str:
    """Replay into a fresh space, event by event, and write the events; one line that says so.

    Raises
    ------
    SvmError
        As :func:`svmcore.events.modelled_events` and the writers.
    """
    form = events_form(path, space.policy.name)
    arrays = modelled_events(source, space, by=by)
    if form not in WRITERS:
        write_perfetto(path, arrays)
        return f"wrote {printable(path)} ({form}): the events of the modelled run"
    # Recorded ids, so that the two logs can be laid side by side.
    ids = source.gpu_ids or [gpu.id for gpu in space.machine.gpus]
    written = write_records(path, arrays, form, gpu_ids=ids)
    number = counted(written.records, "event")
    return f"wrote {printable(path)} ({form}): {number} of the modelled run"
