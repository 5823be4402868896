"""Opening a trace: which format it has, how sure that is, and in what form it is read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..errors import InvalidArgumentError, TraceError
from ..units import ADDRESS_LIMIT
from .base import FORMATS, Mapping, Trace
from .cached import cached
from .merged import MergedTrace
from .opening import Source, file_size

__all__ = ["open_trace"]

#: Bytes of content that the recognition looks at.
_HEAD_BYTES = 1 << 16
#: Least confidence at which a format counts as recognised. Lower values let
#: text of other programs pass for a trace, which then fails at a later line.
_CONFIDENT = 0.25


def open_trace(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str | None = None,
    ranges: Iterable[tuple[int, int] | tuple[int, int, str]] = (),
    *,
    progress: Callable[[int], None] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Trace:
    """Open a trace; its format is recognised by content, never by name.

    Parameters
    ----------
    path : str, PathLike or sequence of them
        A regular file, plain or compressed with gz, xz or zst (extra ``zst``
        before Python 3.14). Several files of one run, as the AMD driver makes
        one a GPU, are merged by time.
    format : str, optional
        A name of :func:`formats`; recognised where left out.
    ranges : iterable of (start, size) or (start, size, name)
        Mappings in bytes that replace those of the file.
    progress : callable, optional
        Called with the raw bytes read so far in each pass, out of ``trace.nbytes``.
    cache : str or PathLike, optional
        A folder for copies of records, from which the trace is read the next
        time, as long as the file is unchanged: see ``svmcore.traces.cached``.

    Returns
    -------
    Trace
        ``trace.confidence`` says how sure the recognition is.

    Raises
    ------
    TraceError
        If the file is missing (``code`` ENOENT), a directory, unreadable, empty
        or of no known format.
    InvalidArgumentError
        If *format* is unknown, a range is empty, overlaps another or passes 2**64,
        or several files cannot be merged.

    Complexity
    ----------
    O(1): at most 64 KiB of content are looked at.
    """
    if not isinstance(path, str | os.PathLike):
        if len(path) > 1:
            parts = [open_trace(one, format, cache=cache) for one in path]
            return MergedTrace(parts, _checked_ranges(ranges), progress)
        if not path:
            raise InvalidArgumentError("no file: expected a trace")
        path = path[0]
    name = os.fspath(path)
    known = ", ".join(sorted(FORMATS))
    if format is not None and format not in FORMATS:
        raise InvalidArgumentError(f"format {format!r}: expected one of {known}")
    given = _checked_ranges(ranges)
    nbytes = file_size(name)
    with Source(name, nbytes) as source:
        head = source.read(_HEAD_BYTES)
    if not head:
        raise TraceError(name, "", "empty file: expected a trace")
    if format is not None:
        reader = FORMATS[format]
        sure = reader.sniff(head)
    else:
        sure, reader = max(
            ((each.sniff(head), each) for each in FORMATS.values()), key=lambda pair: pair[0]
        )
        if sure < _CONFIDENT:
            raise TraceError(name, "", f"format not recognised: expected one of {known}")
    trace = reader(name, nbytes, confidence=sure, ranges=given, progress=progress)
    if cache is None:
        return trace
    return cached(trace, Path(cache))


def _checked_ranges(
    ranges: Iterable[tuple[int, int] | tuple[int, int, str]],
) -> list[Mapping]:
    given: list[Mapping] = []
    for index, item in enumerate(ranges):
        start, size = item[0], item[1]
        if start < 0 or size < 1 or start + size > ADDRESS_LIMIT:
            raise InvalidArgumentError(
                f"range {start:#x},{size}: expected a size of at least 1 and an end of at most "
                "2**64"
            )
        given.append(Mapping(start, size, item[2] if len(item) > 2 else f"range{index}"))
    ordered = sorted(given)
    for one, other in itertools.pairwise(ordered):
        if one.end > other.start:
            raise InvalidArgumentError(
                f"ranges {one.start:#x},{one.size} and {other.start:#x},{other.size}: "
                "expected ranges that do not overlap"
            )
    return given
