"""Several files of one run as one trace, merged by time.

The AMD driver gives one stream of events a GPU; a recorder writes one file each. All carry
the same boot clock. Lines of a file are not sorted by time (a fault has the time of its
interrupt), and a file's order is the order of a replay: so records of one file stay in their
order, and a record counts for the merge as no earlier than those before it in its file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, TraceError
from ..records import CPU, RECORD, UNKNOWN
from .base import Mapping, Records, Summary, Trace, TraceKind, cut
from .opening import Source

__all__ = ["MergedTrace"]

_GPUS = 64


class MergedTrace(Trace):
    """Traces of one format whose files share a clock, as one.

    GPU ids become indices in the order of the files, in each by first appearance. The digest is
    that of the files' digests. Summaries add up; places in messages name their file.

    Invariant: ``parts`` are at least two, of one class with ``has_clock``.

    Parameters
    ----------
    parts : sequence of Trace
    ranges : sequence of Mapping, default ()
        Mappings that replace those of the files.
    progress : callable, optional
        Called with the raw bytes read so far in a pass, of all files together.

    Raises
    ------
    InvalidArgumentError
        If the parts are not of one format, or it has no common clock.
    """

    description = "several files of one run, merged by time"

    def __init__(
        self,
        parts: Sequence[Trace],
        ranges: Sequence[Mapping] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        first = parts[0]
        for part in parts:
            if not part.has_clock:
                raise InvalidArgumentError(
                    f"{part.path} ({part.format}): several files are merged by their common clock: "
                    "expected files of kfd-smi or hsa-svm-profile"
                )
            if part.format != first.format:
                raise InvalidArgumentError(
                    f"{part.path} ({part.format}), {first.path} ({first.format}): expected files "
                    "of one format"
                )
        super().__init__(
            ", ".join(part.path for part in parts),
            sum(part.nbytes for part in parts),
            confidence=min(part.confidence for part in parts),
            ranges=ranges,
            progress=progress,
        )
        self.parts = tuple(parts)
        self.format = first.format
        self.beyond_records = first.beyond_records
        self._read = [0] * len(parts)
        if progress is not None:
            for index, part in enumerate(parts):
                part.progress = self._progress_of(index)

    @classmethod
    def sniff(cls, head: bytes) -> float:  # noqa: ARG003 - no content is looked at
        """No content: it is made of files."""
        return 0.0

    @property
    def kind(self) -> TraceKind:
        """That of the files."""
        return self.parts[0].kind

    @property
    def gpu_ids(self) -> list[int]:
        """GPU ids of all files; runs a pass where none was made."""
        found: dict[int, None] = {}
        for part in self.parts:
            found |= dict.fromkeys(part.gpu_ids)
        return list(found)

    def _progress_of(self, index: int) -> Callable[[int], None]:
        def moved(position: int) -> None:
            self._read[index] = position
            if self.progress is not None:
                self.progress(sum(self._read))

        return moved

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        raise NotImplementedError(f"{self.path}: no single source, see _pass")

    def _pass(self, n: int) -> Iterator[Records]:
        summary = Summary()
        codes = self._codes()
        self._read = [0] * len(self.parts)
        streams = [
            _Stream(part.chunks(), table) for part, table in zip(self.parts, codes, strict=True)
        ]
        yield from cut(_merged(streams), n, summary)
        _add_up(summary, self.parts)
        self._summary = summary

    def identify(self) -> None:
        """Have the digest of each file made beside the next full pass."""
        for part in self.parts:
            part.identify()

    def _codes(self) -> list[npt.NDArray[np.uint8]]:
        """For each file a table from its processors to those of all."""
        ids = self.gpu_ids
        if len(ids) > _GPUS:
            raise TraceError(self.path, "", f"{len(ids)} GPU ids: expected at most {_GPUS} GPUs")
        place = {gpu: index + 1 for index, gpu in enumerate(ids)}
        tables = []
        for part in self.parts:
            table = np.arange(256, dtype="u1")
            for index, gpu in enumerate(part.gpu_ids):
                table[index + 1] = place[gpu]
            assert table[CPU] == CPU
            assert table[UNKNOWN] == UNKNOWN
            tables.append(table)
        return tables

    @property
    def digest(self) -> str:
        """blake2b-128 over the hex digests of the files, in order."""
        if self._digest is None:
            self._digest = _digest(self.parts)
        return self._digest


def _digest(parts: Sequence[Trace]) -> str:
    texts = "".join(part.digest for part in parts)
    return hashlib.blake2b(texts.encode(), digest_size=16).hexdigest()


def _add_up(summary: Summary, parts: Sequence[Trace]) -> None:
    """What the files' passes met, in one summary; records and kinds are there already."""
    for part in parts:
        one = part.summary
        for name in (
            *("lines", "read", "repaired", "refused"),
            *("unknown", "metadata", "comments", "bytes"),
        ):
            setattr(summary, name, getattr(summary, name) + getattr(one, name))
        for name, number in one.counts.items():
            if name != "dropped_events":  # counted with the records
                summary.add(name, number)
        summary.notes += [f"{part.path}: {note}" for note in one.notes if "log lost" not in note]


class _Stream:
    """Records of one file that wait for the merge.

    Invariant: ``keys`` are the running maxima of the times of ``waiting``, shape (n,).
    """

    def __init__(self, chunks: Iterator[Records], codes: npt.NDArray[np.uint8]) -> None:
        self.chunks = chunks
        self.codes = codes
        self.waiting: Records = np.empty(0, RECORD)
        self.keys: npt.NDArray[np.uint64] = np.empty(0, "<u8")
        self.last = np.uint64(0)
        self.ended = False

    def fill(self) -> None:
        """Read where nothing waits."""
        while not len(self.waiting) and not self.ended:
            chunk = next(self.chunks, None)
            if chunk is None:
                self.ended = True
                return
            chunk["proc"] = self.codes[chunk["proc"]]
            chunk["peer"] = self.codes[chunk["peer"]]
            self.waiting = chunk
            self.keys = np.maximum.accumulate(np.maximum(chunk["t_ns"], self.last))
            self.last = self.keys[-1]

    def take(self, key: np.uint64) -> tuple[Records, npt.NDArray[np.uint64]]:
        """What waits up to and with a time."""
        count = int(np.searchsorted(self.keys, key, side="right"))
        found = self.waiting[:count], self.keys[:count]
        self.waiting, self.keys = self.waiting[count:], self.keys[count:]
        return found


def _merged(streams: list[_Stream]) -> Iterator[Records]:
    """Records of all streams by their keys; equal ones in the order of the streams."""
    while True:
        for stream in streams:
            stream.fill()
        busy = [stream for stream in streams if len(stream.waiting)]
        if not busy:
            return
        # Before the least of the last keys no stream has more to say. One whose next chunk
        # begins with that same key says it after the others; its own order stays.
        key = min(stream.keys[-1] for stream in busy)
        taken = [stream.take(key) for stream in busy]
        records = np.concatenate([part for part, _ in taken])
        keys = np.concatenate([part for _, part in taken])
        yield records[np.argsort(keys, kind="stable")]
