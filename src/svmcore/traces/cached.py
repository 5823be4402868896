"""Traces read once: records kept as a NumPy file, so that the second open is fast.

A folder that the caller names holds, for each trace, ``KEY.json`` (what the file was and
what reading it met) and a ``.npy`` file of its records. The copy is used while the source has
the size, inode and times that it had when it was read; where the source had just been changed
then, so that a later change need not show in its times, its bytes are hashed and compared. In
every other case it is read anew. The copy is checked by its CRC-32 while it is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .._version import __version__
from ..errors import InvalidArgumentError, TraceError
from ..records import RECORD
from .base import Mapping, Records, Summary, Trace, TraceKind
from .opening import Source, file_size, os_failure
from .records_npy import NpyTrace
from .writers import whole_file, write_records

__all__ = ["CachedTrace", "cached"]

#: Changes of what is kept, with the version of the readers: copies of others are made anew.
_FORM = f"2 {__version__} {RECORD.descr}"
#: A source changed within so many ns of its copy may change again without a trace in its times.
_RACY_NS = 2_000_000_000
#: Formats whose files are as fast as a copy.
_FAST = ("npy", "parquet", "arrow")
#: Formats of several files: one path tells nothing of the others.
_PARTED = ("accel-sim",)


class CachedTrace(Trace):
    """The records of a trace from their copy; everything else as it was told when it was read.

    Parameters
    ----------
    trace : Trace
        The source, for its path, size and settings.
    copy : NpyTrace
        Its records.
    told : dict
        What the file beside the copy says.
    """

    description = "a trace read before"

    def __init__(self, trace: Trace, copy: NpyTrace, told: dict[str, Any]) -> None:
        super().__init__(
            trace.path, trace.nbytes, confidence=trace.confidence, progress=trace.progress
        )
        self.format = trace.format
        self.has_clock = trace.has_clock
        self.beyond_records = trace.beyond_records
        self._copy = copy
        if trace.progress is not None:
            copy.progress = self._moved
        self._told = told
        self._kind: TraceKind = told["kind"]
        self._digest = told["digest"]
        self._summary = Summary(**told["summary"])
        given = trace._mappings  # noqa: SLF001 - what the caller of open_trace gave
        self._mappings = given or [Mapping(*item) for item in told["mappings"]]

    @classmethod
    def sniff(cls, head: bytes) -> float:  # noqa: ARG003 - no content is looked at
        """No content of its own."""
        return 0.0

    @property
    def kind(self) -> TraceKind:
        """That of the source."""
        return self._kind

    @property
    def gpu_ids(self) -> list[int]:
        """Those of the source."""
        return list(self._told["gpu_ids"])

    @property
    def names(self) -> MappingProxyType[int, str]:
        """Those of the source."""
        return MappingProxyType({int(key): name for key, name in self._told["names"].items()})

    def _moved(self, position: int) -> None:
        """Progress in bytes of the source, which is what the caller knows."""
        if self.progress is not None:
            self.progress(position * self.nbytes // self._copy.nbytes)

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        raise NotImplementedError(f"{self.path}: a pass is that of the copy, see _pass")

    def _pass(self, n: int) -> Iterator[Records]:
        yield from self._copy.chunks(n)
        if self._copy.crc32 != self._told["crc32"]:
            raise TraceError(
                self._copy.path,
                "",
                f"is not the copy that was made of {self.path}: expected its bytes as they were "
                "written (remove the file, and it is made anew)",
            )


def cached(trace: Trace, folder: Path) -> Trace:
    """A trace by its copy in *folder*, which is made where there is none that fits.

    Parameters
    ----------
    trace : Trace
        As :func:`~svmcore.traces.open_trace` gives it.
    folder : Path
        A folder; made where it is missing.

    Returns
    -------
    Trace
        Mappings, summary, names, digest and records are those of *trace*. A format that is
        read as fast as a copy, or that lies in several files, comes back as it is.

    Raises
    ------
    TraceError
        If the trace cannot be read, or the copy cannot be written.

    Complexity
    ----------
    O(1) where a copy fits, O(bytes) where the source changed just before it was made; else one
    pass more than without a copy, and 40 bytes of disk a record.
    """
    if trace.format in _FAST or trace.format in _PARTED:
        return trace
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"cache {folder}: {error.strerror or error}: expected a folder to write into"
        ) from error
    path = str(Path(trace.path).absolute())
    key = hashlib.blake2b(f"{path}\0{trace.format}".encode("utf-8", "replace"), digest_size=12)
    note = folder / f"{key.hexdigest()}.json"
    seen = _seen(trace.path)
    told = _told(note)
    if told is not None and told["source"] == seen and _trusted(trace, told):
        copy = folder / told["copy"]
        with contextlib.suppress(TraceError):
            size = file_size(str(copy))
            if size == told["size"]:
                return CachedTrace(trace, NpyTrace(str(copy), size), told)
    made = _make(trace, folder, note, seen)
    if told is not None and told["copy"] != made["copy"]:
        with contextlib.suppress(OSError):
            (folder / told["copy"]).unlink()
    return CachedTrace(trace, NpyTrace(str(folder / made["copy"]), made["size"]), made)


def _seen(path: str) -> list[int]:
    """What tells a file from a changed one without reading it."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise os_failure(path, "", error, "a readable trace file") from error
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _told(note: Path) -> dict[str, Any] | None:
    """What is known of a copy; None where there is none, or one of another version."""
    try:
        told = json.loads(note.read_text("utf-8"))
        if told["form"] != _FORM or Path(told["copy"]).name != told["copy"]:
            return None
        Summary(**told["summary"])
        needed = ("size", "digest", "crc32", "kind", "mappings", "gpu_ids", "names")
        whole = all(name in told for name in needed)
        return told if whole and max(*told["source"], told["made_ns"]) > 0 else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _trusted(trace: Trace, told: dict[str, Any]) -> bool:
    """Whether equal times say that the source is unchanged; where not, its bytes do."""
    if max(told["source"][2:]) + _RACY_NS < told["made_ns"]:
        return True
    return bool(trace.digest == told["digest"])


def _make(trace: Trace, folder: Path, note: Path, seen: list[int]) -> dict[str, Any]:
    """Read the trace and keep it; the note is written last."""
    made_ns = time.time_ns()
    trace.identify()
    # The file's own mappings, whatever the caller gave.
    mappings = type(trace)(trace.path, trace.nbytes, progress=trace.progress).mappings()
    waiting = folder / f"{note.stem}-{made_ns:x}.npy"
    try:
        write_records(waiting, trace.chunks())
        copy = NpyTrace(str(waiting), file_size(str(waiting)))
        copy._read_through(identify=False)  # noqa: SLF001 - what lies on the disk
        told = {
            "form": _FORM,
            "path": trace.path,
            "source": seen,
            "made_ns": made_ns,
            "copy": waiting.name,
            "size": copy.nbytes,
            "crc32": copy.crc32,
            "digest": trace.digest,
            "kind": trace.kind,
            "summary": dataclasses.asdict(trace.summary),
            "mappings": mappings,
            "gpu_ids": trace.gpu_ids,
            "names": dict(trace.names),
        }
        with whole_file(str(note)) as file:
            file.write(json.dumps(told).encode())
    except BaseException:
        with contextlib.suppress(OSError):
            waiting.unlink()
        raise
    return told
