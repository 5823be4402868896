"""Memory traces of Akita simulators (MGPUSim ``-trace-mem``), a SQLite database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from .base import Records, Summary, TraceKind, check_records, register, shown
from .sqlite import MAGIC, Database, Places, SqliteTrace

__all__ = ["AkitaTrace"]

_TABLE = "memory_transactions"
_COLUMNS = ("Location", "What", "StartTime", "EndTime", "Address", "ByteSize")
_GPU = re.compile(rb"GPU[\[_]?([0-9]{1,6})")
_GPUS = 64
#: Components that are told apart for the note.
_LOCATIONS = 1024
_NS, _PS_PER_NS = 1e9, 1000
#: Times of a real number beyond this do not fit, in s.
_LATEST = float(1 << 63) / _NS


@register
class AkitaTrace(SqliteTrace):
    """Transactions of a simulated memory system, in order of their start.

    Records are of kind ACCESS, ``dur_ns`` 0: a transaction's time is the memory's,
    not compute time. What it is, says ``What``: READ with "read" in it, WRITE with
    "write", else UNKNOWN. The GPU is that of the component (``GPU[2].L2...``),
    numbered in ascending order of the numbers there; components of none are
    UNKNOWN. Times are seconds where SQLite holds real numbers and picoseconds
    where it holds integers, as the versions differ.

    One request can be recorded by several components on its way: the summary
    notes how many there are. ``value`` is 0.

    ``summary.counts``: ``components``, ``clock_back`` (negative times, repaired to
    0, and ends before starts, read as they are).

    Source
    ------
    Format (h) of the trace notes.
    """

    format = "akita"
    description = "Akita/MGPUSim -trace-mem SQLite: transactions of a simulated memory"
    beyond_records = ("components", "ends of transactions", "ids and tags")

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the magic and the name of the table."""
        return 1.0 if head.startswith(MAGIC) and _TABLE.encode() in head else 0.0

    def _records(self, database: Database, summary: Summary) -> Iterator[Records]:
        if _TABLE not in database.tables:
            raise TraceError(
                self.path,
                "tables",
                f"{', '.join(database.tables)[:200] or 'none'}: expected {_TABLE}",
            )
        database.check_columns(_TABLE, _COLUMNS)
        rows = _Rows(self.path, database, summary)
        query = f"SELECT rowid, {', '.join(_COLUMNS)} FROM {_TABLE} ORDER BY StartTime, rowid"  # noqa: S608
        for batch in database.batches(query):
            summary.lines += len(batch)
            yield rows.records(batch)
        rows.end()


class _Rows:
    """Rows of one pass."""

    def __init__(self, path: str, database: Database, summary: Summary) -> None:
        self.path = path
        self.database = database
        self.summary = summary
        self.processors = _processors(database)
        self.locations: dict[Any, int] = {}
        self.accesses: dict[Any, int] = {}

    def records(self, batch: list[tuple[Any, ...]]) -> Records:
        """Records of some rows."""
        rowids, where, what, start, end, addr, size = zip(*batch, strict=True)
        places = Places([_TABLE], [0] * len(batch), rowids)
        out = np.zeros(len(batch), RECORD)
        out["kind"], out["peer"] = Kind.ACCESS, UNKNOWN
        out["addr"] = self.database.integers(addr, "Address", places).view("<u8")
        sizes = self.database.integers(size, "ByteSize", places)
        if (sizes <= 0).any():
            at = int(np.argmax(sizes <= 0))
            self.database.refuse(places[at], f"ByteSize {sizes[at]}: expected at least 1")
        out["size"] = sizes
        times = [self._ns(time, "StartTime", places, i) for i, time in enumerate(start)]
        back = 0
        for index, (began, ended) in enumerate(zip(times, end, strict=True)):
            if began < 0:
                times[index] = 0
                self.summary.repaired += 1
                self.summary.read -= 1
                back += 1
            elif self._ns(ended, "EndTime", places, index) < began:
                back += 1
        if back:
            self.summary.add("clock_back", back)
        out["t_ns"] = times
        out["access"] = [self._access(text, places, i) for i, text in enumerate(what)]
        out["proc"] = [self._place(text) for text in where]
        self.summary.read += len(batch)
        check_records(out, self.path, places.__getitem__)
        return out

    def _ns(self, time: Any, what: str, places: Places, index: int) -> int:
        """Nanoseconds of seconds or picoseconds."""
        if isinstance(time, int):
            return time // _PS_PER_NS
        if not isinstance(time, float) or not abs(time) < _LATEST:
            self.database.refuse(
                places[index], f"{what} {time!r:.60}: expected seconds or picoseconds"
            )
        return round(time * _NS)

    def _access(self, what: Any, places: Places, index: int) -> int:
        code = self.accesses.get(what)
        if code is None:
            if not isinstance(what, bytes):
                self.database.refuse(places[index], f"What {what!r:.60}: expected text")
            text = what.lower()
            code = int(
                Access.READ
                if b"read" in text
                else Access.WRITE
                if b"write" in text
                else Access.UNKNOWN
            )
            if len(self.accesses) < _LOCATIONS:
                self.accesses[what] = code
        return code

    def _place(self, where: Any) -> int:
        code = self.locations.get(where)
        if code is None:
            match = _GPU.search(where) if isinstance(where, bytes) else None
            code = self.processors[int(match[1])] if match else UNKNOWN
            if len(self.locations) < _LOCATIONS:
                self.locations[where] = code
        return code

    def end(self) -> None:
        """Says how many components there are."""
        if not self.locations:
            return
        self.summary.add("components", len(self.locations))
        if len(self.locations) > 1:
            names = b", ".join(where for where in self.locations if isinstance(where, bytes))
            self.summary.notes.append(
                f"{len(self.locations)} components ({shown(names)[1:-1]}): one request may be "
                "recorded by each on its way"
            )


def _processors(database: Database) -> dict[int, int]:
    """Record code of each GPU number, in ascending order of the numbers."""
    numbers: set[int] = set()
    for batch in database.batches(f"SELECT DISTINCT Location FROM {_TABLE}"):  # noqa: S608
        for (where,) in batch:
            match = _GPU.search(where) if isinstance(where, bytes) else None
            if match:
                numbers.add(int(match[1]))
                if len(numbers) > _GPUS:
                    raise TraceError(
                        database.path, f"table {_TABLE}", f"more GPUs: expected at most {_GPUS}"
                    )
    return {number: index + 1 for index, number in enumerate(sorted(numbers))}
