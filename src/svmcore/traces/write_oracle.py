"""Writing oracleGeneral, the binary request format of libCacheSim.

One request is one touch of one fault window: a trace that runs through the eviction policies of
a cache simulator. 24 bytes, little-endian: time in seconds, object, bytes, and the number of
the next request to the object, counted from 1, -1 where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError
from ..units import PAGE_SHIFT
from .base import Records

__all__ = ["REQUEST", "write_oracle"]

REQUEST = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
#: Requests that are made at a time.
_REQUESTS = 1 << 16
_NS = np.uint64(1_000_000_000)
#: Largest window whose bytes fit 32 bits.
MOST_GRANULARITY = 19


def write_oracle(file: BinaryIO, arrays: Iterator[Records], granularity: int) -> None:
    """Write touches as requests to the windows that they reach.

    Parameters
    ----------
    file : BinaryIO
        Open for reading and writing, at its beginning.
    arrays : iterator of ndarray of RECORD
        Touches only.
    granularity : int
        log2 of the pages of a window. The object is the number of its first page.

    Raises
    ------
    InvalidArgumentError
        If a window's bytes need more than 32 bits.

    Complexity
    ----------
    O(requests log chunk) time; memory O(chunk + windows). Where a later chunk comes back to a
    window, the earlier request is written again, at its place.
    """
    if not 0 <= granularity <= MOST_GRANULARITY:
        raise InvalidArgumentError(
            f"granularity {granularity}: expected 0 to {MOST_GRANULARITY}, whose bytes fit 32 bits"
        )
    writer = _Requests(file, granularity)
    for array in arrays:
        writer.add(array)


class _Requests:
    """Requests on their way to a file.

    Invariant: ``last[w]`` is the number, from 0, of the last request to window *w*, and the
    file holds ``done`` requests.
    """

    def __init__(self, file: BinaryIO, granularity: int) -> None:
        self.file = file
        self.granularity = granularity
        self.shift = np.uint64(PAGE_SHIFT + granularity)
        self.last: dict[int, int] = {}
        self.done = 0
        self.begin: np.uint64 | None = None

    def add(self, touches: Records) -> None:
        """Write the requests of touches; a long touch makes many."""
        if not len(touches):
            return
        if self.begin is None:
            self.begin = touches["t_ns"][0]
        t_ns = np.maximum(touches["t_ns"], self.begin) - self.begin
        seconds = np.minimum(t_ns // _NS, np.uint64(0xFFFFFFFF)).astype("<u4")
        first = touches["addr"] >> self.shift
        last = (touches["addr"] + (touches["size"] - np.uint64(1))) >> self.shift
        for at, windows in _pieces(first, last):
            self._write(windows, seconds[at])

    def _write(self, windows: npt.NDArray[np.uint64], seconds: npt.NDArray[np.uint32]) -> None:
        requests = np.empty(len(windows), REQUEST)
        requests["time"] = seconds
        requests["object"] = windows << np.uint64(self.granularity)
        requests["size"] = 1 << (PAGE_SHIFT + self.granularity)
        requests["next"] = -1
        # Equal windows stand together, in order: each one's next is its neighbour.
        order = np.argsort(windows, kind="stable")
        ordered = windows[order]
        again = ordered[1:] == ordered[:-1]
        requests["next"][order[:-1][again]] = self.done + order[1:][again] + 1
        opens = order[np.r_[True, ~again]]
        closes = order[np.r_[~again, True]]
        self.file.write(requests.tobytes())
        self.file.flush()
        for window, one in zip(windows[opens].tolist(), opens.tolist(), strict=True):
            before = self.last.get(window)
            if before is not None:
                number = int(self.done + one + 1).to_bytes(8, "little")
                os.pwrite(self.file.fileno(), number, before * REQUEST.itemsize + 16)
        for window, one in zip(windows[closes].tolist(), closes.tolist(), strict=True):
            self.last[window] = self.done + one
        self.done += len(requests)


def _pieces(
    first: npt.NDArray[np.uint64], last: npt.NDArray[np.uint64]
) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]]:
    """Touches spread over their windows: the touch and the window of each request."""
    counts = (last - first).astype(np.int64) + 1
    ends = np.cumsum(counts)
    done = 0
    total = int(ends[-1])
    while done < total:
        stop = min(done + _REQUESTS, total)
        numbers = np.arange(done, stop)
        at = np.searchsorted(ends, numbers, side="right")
        yield at, first[at] + (numbers - (ends[at] - counts[at])).astype(np.uint64)
        done = stop
