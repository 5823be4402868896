"""Our own records as a NumPy file: an array of :data:`~svmcore.records.RECORD`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import TraceError
from ..records import RECORD
from .base import CHUNK, Records, Summary, Trace, TraceKind, check_records, register
from .opening import Source

__all__ = ["NpyTrace", "RecordsTrace"]

_MAGIC = b"\x93NUMPY"


class RecordsTrace(Trace):
    """A file of our own records, of any kind."""

    @property
    def kind(self) -> TraceKind:
        """``"fault"`` where a recorded fault is in it, else ``"access"``; runs a pass once."""
        return "fault" if "fault" in self.summary.kinds else "access"


@register
class NpyTrace(RecordsTrace):
    """A ``.npy`` file of one-dimensional shape and dtype RECORD.

    It is read in blocks, not mapped: see :mod:`svmcore.traces.opening`. The
    NumPy equivalent for a file of your own is ``numpy.load(path, mmap_mode="r")``.

    Source
    ------
    ``numpy.lib.format``, versions 1.0 and 2.0.
    """

    format = "npy"
    description = "svmcore records as a NumPy array file"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the magic; less where the header does not name RECORD's fields."""
        if not head.startswith(_MAGIC):
            return 0.0
        return 1.0 if all(f"'{name}'".encode() in head for name in RECORD.fields or ()) else 0.5

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        total = self._header(source)
        at = 0
        while at < total:
            want = min(CHUNK, total - at)
            # The system writes into the array that the caller gets: no copy after that.
            records = np.empty(want, RECORD)
            got = source.readinto(records.view("u1"))
            if got < want * RECORD.itemsize:
                raise TraceError(
                    self.path,
                    f"record {at + got // RECORD.itemsize}",
                    f"the file ends: expected {total} records",
                )
            check_records(records, self.path, lambda i, at=at: f"record {at + i}")  # type: ignore[misc]
            summary.lines += want
            summary.read += want
            at += want
            yield records
        if source.read(1):
            raise TraceError(
                self.path, f"record {total}", f"more bytes follow: expected {total} records"
            )

    def _header(self, source: Source) -> int:
        """Number of records that the header promises."""
        try:
            version = np.lib.format.read_magic(source)  # type: ignore[arg-type]
        except ValueError as error:
            raise TraceError(
                self.path, "header", "does not begin as one does: expected a NumPy file"
            ) from error
        try:
            if version == (1, 0):
                shape, _, dtype = np.lib.format.read_array_header_1_0(source)  # type: ignore[arg-type]
            elif version == (2, 0):
                shape, _, dtype = np.lib.format.read_array_header_2_0(source)  # type: ignore[arg-type]
            else:
                raise TraceError(
                    self.path,
                    "header",
                    f"version {version[0]}.{version[1]}: expected a NumPy file, version 1.0 or 2.0",
                )
        except TraceError:
            raise
        except Exception as error:  # the header is evaluated: damage raises almost anything
            raise TraceError(
                self.path, "header", "is damaged: expected the whole header of a NumPy file"
            ) from error
        if dtype != RECORD or len(shape) != 1 or shape[0] < 0:
            raise TraceError(
                self.path,
                "header",
                f"shape {shape}, dtype {dtype}: expected one dimension of {RECORD}",
            )
        return int(shape[0])
