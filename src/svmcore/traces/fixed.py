"""Traces of entries of one size, little-endian, without header: the part that all share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD
from .base import CHUNK, Records, Summary, Trace
from .opening import Source

__all__ = ["LAST_FIELDS", "Decoder", "Entries", "FixedTrace", "decoded", "last_fields"]

#: An array of entries, shape (n,), of the format's own dtype.
Entries = npt.NDArray[np.void]
#: A record whose last five fields are one number: written at once where they are constant.
LAST_FIELDS = np.dtype([*((name, "<u8") for name in (RECORD.names or ())[:4]), ("last", "<u8")])


def last_fields(*, value: int = 0, kind: int, proc: int, access: int, peer: int) -> np.uint64:
    """The last five fields of a record as the number of :data:`LAST_FIELDS`."""
    return np.uint64(value | kind << 32 | proc << 40 | access << 48 | peer << 56)


class Decoder(Protocol):
    """One pass of a format of fixed entries."""

    def feed(self, entries: Entries, first: int) -> Records:
        """Records of entries, *first* the number of the first one in the file.

        Counts each entry in the summary, except in the number of all. The
        entries are overwritten afterwards.
        """

    def end(self) -> None:
        """Adds what only the end settles to the summary."""


class FixedTrace(Trace):
    """A trace of fixed entries. A subclass gives a decoder for one pass.

    Bytes behind the last whole entry are one that was cut off: it is refused,
    counted and noted. A file that is shorter than one entry is refused.
    """

    #: One entry; its ``itemsize`` is what the file is divided by.
    entry: ClassVar[np.dtype[Any]]

    @abstractmethod
    def _decoder(self, summary: Summary) -> Decoder:
        """A decoder at the beginning of the file."""

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        yield from decoded(self.path, source, self.entry, self._decoder(summary), summary)


def decoded(
    path: str, source: Source, entry: np.dtype[Any], decoder: Decoder, summary: Summary
) -> Iterator[Records]:
    """Records of the entries that are left of *source*; see :class:`FixedTrace`."""
    size = entry.itemsize
    entries = np.empty(CHUNK, entry)
    raw = entries.view("u1")
    first, rest, filled = 0, 0, len(raw)
    while filled == len(raw):
        filled = source.readinto(raw)
        whole, rest = divmod(filled, size)
        if whole:
            summary.lines += whole
            yield decoder.feed(entries[:whole], first)
            first += whole
    if rest:
        if not first:
            raise TraceError(path, "byte 0", f"{rest} bytes: expected entries of {size} bytes")
        summary.lines += 1
        summary.refused += 1
        summary.notes.append(f"entry {first} is cut off ({rest} of {size} bytes) and was left out")
    decoder.end()
