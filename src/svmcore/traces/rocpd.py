"""rocpd databases (schema version 3): KFD events of rocprofv3 in SQLite.

A KFD event is a row of ``rocpd_event`` whose ``extdata`` holds a map ``kfd``,
with one row of ``rocpd_region`` for its times and process. Table names end in
the id of the process that wrote them; the views without it are not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import Access
from ._objects import ABSENT, ObjectForm
from .base import Records, Summary, TraceKind, check_records, register
from .kfd_rows import (
    KfdRows,
    NotARecordError,
    Times,
    are_spans,
    faults,
    migrations,
    times,
    unmaps,
)
from .rocprofiler import SINGLE_NOTE
from .sqlite import MAGIC, Database, SqliteTrace, quoted

__all__ = ["RocpdTrace"]

_EVENT = re.compile(r"rocpd_event((?:_[0-9a-zA-Z_-]+)?)")
#: Words in the names of an event, and what they say.
_TRIGGERS = {
    "migrate": ("PREFETCH", "PAGEFAULT_GPU", "PAGEFAULT_CPU", "TTM_EVICTION"),
    "queue": ("SVM", "USERPTR", "TTM", "SUSPEND", "CRIU_CHECKPOINT", "CRIU_RESTORE"),
    "unmap": ("MMU_NOTIFY", "MMU_NOTIFY_MIGRATE", "UNMAP_FROM_CPU"),
}
#: Halves of paired events, as a kind names them.
_SINGLE = re.compile(r"KFD_EVENT_(?:PAGE_MIGRATE|PAGE_FAULT|QUEUE)\b")
#: Names that are kept by their ids.
_NAMES = 4096
#: Between the texts of two rows: no byte of JSON that is plain.
_BETWEEN = b"\x1e"
#: The columns that compiled code makes of the map ``kfd``.
_FORM = ObjectForm(
    {
        b"start_address": 0,
        b"end_address": 1,
        b"src_agent_id": 2,
        b"dst_agent_id": 3,
        b"agent_id": 4,
        b"address": 5,
        b"error_code": 6,
    },
    inner=b"kfd",
    quoted=True,
    separator=_BETWEEN[0],
)
#: Kinds of events of which those columns tell all that counts; the others are odd.
_ODD, _FAULT, _MIGRATE, _UNMAP = range(4)

_Ints = npt.NDArray[np.int64]
#: Start, table, id, end, ids of the names of category and region, and the text of an event.
_Row = tuple[Any, int, Any, Any, Any, Any, Any]


@register
class RocpdTrace(SqliteTrace):
    """KFD events of a rocpd database, in order of their start.

    Records are those of :class:`.rocprofiler.RocprofilerTrace`. The keys of the
    map say what an event is; what they do not say - read or write, how a fault
    ended, the trigger - is looked for as a word in the event's names (of its
    category and region): READ, WRITE, MIGRATED, UPDATED, and the driver's words
    for triggers. Without one the access is UNKNOWN, a fault has no FAULT_END and
    the trigger is 0.

    ``summary.counts``: ``other_events`` (rows without the map, counted as
    unknown), ``without_region`` (no times: ``t_ns`` 0, counted as repaired), and
    those of the JSON form.

    Source
    ------
    Format (d) of the trace notes. Agent ids are topology nodes, -1 is none; the
    table ``rocpd_info_agent`` says which are GPUs where it is there.
    """

    format = "rocpd"
    description = "rocpd SQLite of rocprofv3: KFD page faults, migrations, queue events"
    beyond_records = ("prefetch and preferred locations", "process ids", "other events")

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the magic and the names of the tables."""
        return 1.0 if head.startswith(MAGIC) and b"rocpd_event" in head else 0.0

    def _records(self, database: Database, summary: Summary) -> Iterator[Records]:
        suffixes = [m[1] for table in database.tables if (m := _EVENT.fullmatch(table))]
        if not suffixes:
            raise TraceError(
                self.path,
                "tables",
                f"{', '.join(database.tables)[:200] or 'none'}: expected rocpd_event",
            )
        rows = _Rows(database, suffixes, summary)
        for batch in database.batches(_query(database, suffixes)):
            summary.lines += len(batch)
            yield rows.records(batch)
        for suffix in suffixes:
            events = quoted(f"rocpd_event{suffix}")
            others = database.count(f"SELECT count(*) FROM {events} e WHERE NOT ({_IS_KFD})")  # noqa: S608 - a quoted name
            if others:
                summary.add("other_events", others)
                summary.unknown += others
                summary.lines += others
        if single := summary.counts.get("single_events"):
            summary.notes.append(SINGLE_NOTE.format(single))


_IS_KFD = "ifnull(e.extdata, '') GLOB '*\"kfd\"*'"


def _query(database: Database, suffixes: list[str]) -> str:
    """All KFD events in order of time, table and row."""
    parts: list[str] = []
    for number, suffix in enumerate(suffixes):
        event, region = f"rocpd_event{suffix}", f"rocpd_region{suffix}"
        database.check_columns(event, ("id", "extdata"))
        start, end, join = "NULL", "NULL", ""
        if region in database.tables:
            database.check_columns(region, ("start", "end", "event_id"))
            start, end = "r.start", 'r."end"'
            join = f" LEFT JOIN {quoted(region)} r ON r.event_id = e.id"
        category = "e.category_id" if "category_id" in database.tables[event] else "NULL"
        name = "r.name_id" if join and "name_id" in database.tables[region] else "NULL"
        parts.append(
            f"SELECT {start} AS t, {number} AS s, e.id AS i, {end} AS z, {category} AS c, "  # noqa: S608 - words of our own
            f"{name} AS n, e.extdata AS x FROM {quoted(event)} e{join} WHERE {_IS_KFD}"
        )
    return " UNION ALL ".join(parts) + " ORDER BY t, s, i"


class _Said(NamedTuple):
    """What the names of an event say of it."""

    name: str
    single: bool
    access: Access
    ended: bool | None
    migrate: int
    unmap: int

    @classmethod
    def by(cls, name: str) -> _Said:
        """Look for the words in *name*."""
        return cls(
            name,
            _SINGLE.search(name) is not None,
            Access.WRITE if "WRITE" in name else Access.READ if "READ" in name else Access.UNKNOWN,
            True if "MIGRATED" in name else False if "UPDATED" in name else None,
            _trigger(name, "migrate"),
            _trigger(name, "unmap"),
        )


def _trigger(name: str, what: str) -> int:
    """The trigger whose word is in *name*, the longest one; 0 without any."""
    words = _TRIGGERS[what]
    there = [word for word in words if word in name]
    return words.index(max(there, key=len)) if there else 0


class _Names:
    """What names say, by the ids that events have of them.

    Invariant: the places in ``said`` that :meth:`index` gave stay until :meth:`trim`.
    """

    def __init__(self, database: Database, suffixes: list[str]) -> None:
        self.database = database
        self.said: list[_Said] = []
        self._places: dict[tuple[Any, ...], int] = {}
        tables = [f"rocpd_string{suffix}" for suffix in suffixes]
        #: Of each suffix, empty where there is none.
        self._tables = [
            table if {"id", "string"} <= set(database.tables.get(table, ())) else ""
            for table in tables
        ]

    def trim(self) -> None:
        """Forget names where there are too many."""
        if len(self.said) >= _NAMES:
            self.said.clear()
            self._places.clear()

    def index(self, table: int, category: Any, name: Any) -> int:
        """Place in ``said`` of what the two names say together."""
        key = table, category, name
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.said)
            texts = (self._text(self._tables[table], number) for number in (category, name))
            self.said.append(_Said.by(" ".join(texts)))
        return place

    def _text(self, table: str, number: Any) -> str:
        if not table or number is None:
            return ""
        number = number.decode("utf-8", "replace") if isinstance(number, bytes) else number
        query = f"SELECT string FROM {quoted(table)} WHERE id = ?"  # noqa: S608 - a quoted name
        row = self.database.connection.execute(query, (number,)).fetchone()
        text = b"" if row is None or row[0] is None else row[0]
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


class _Rows:
    """Rows of one pass."""

    def __init__(self, database: Database, suffixes: list[str], summary: Summary) -> None:
        self.database = database
        self.suffixes = suffixes
        self.summary = summary
        self.out = KfdRows(summary)
        self.names = _Names(database, suffixes)
        for suffix in suffixes:
            self._describe(f"rocpd_info_agent{suffix}")

    def _describe(self, table: str) -> None:
        """What the agents are, in the order of their nodes."""
        columns = self.database.tables.get(table, ())
        node = next((name for name in ("absolute_index", "node_id") if name in columns), None)
        if node is None or "type" not in columns:
            return
        query = f"SELECT {node}, type FROM {quoted(table)} ORDER BY {node}"  # noqa: S608 - quoted, and a word of our own
        for batch in self.database.batches(query):
            for number, kind in batch:
                if type(number) is int and kind in (b"CPU", b"GPU"):
                    self.out.agents.describe(number, kind == b"GPU")

    def records(self, batch: list[_Row]) -> Records:
        """Records of some rows: of plain ones by columns, of each odd one by itself."""
        self.names.trim()
        starts, tables, _, ends, categories, names, texts = zip(*batch, strict=True)
        said = np.array(list(map(self.names.index, tables, categories, names)))
        values = _scanned(texts)
        begin, end = _clock(starts), _clock(ends)
        bare = begin == ABSENT
        begin[bare] = end[bare] = 0
        kind = self._kinds(values)
        kind[(begin < 0) | (end < 0)] = _ODD
        kind[np.array([one.single for one in self.names.said])[said]] = _ODD
        self._bare(int(np.count_nonzero(bare & (kind != _ODD))))
        parts = [self._odd(batch, np.flatnonzero(kind == _ODD))]
        for number in (_FAULT, _MIGRATE, _UNMAP):
            rows = np.flatnonzero(kind == number)
            if len(rows):
                when = times(begin[rows], end[rows])
                assert when is not None
                parts.append(self._of(number, rows, when, values[:, rows], said[rows]))
        rows = np.concatenate([each for each, _ in parts])
        # A row's records stay together, in their order.
        order = np.argsort(rows, kind="stable")
        out, rows = np.concatenate([records for _, records in parts])[order], rows[order]
        check_records(out, self.database.path, lambda i: self._place(batch[rows[i]]))
        return out

    def _kinds(self, values: _Ints) -> npt.NDArray[np.uint8]:
        """What each event is by its columns alone."""
        start, stop, source, target, agent, address, _ = values
        known = self.out.agents.known
        moved = (source != ABSENT) | (target != ABSENT)
        spans = are_spans(start, stop)
        kind = np.full(values.shape[1], _ODD, "u1")
        kind[~moved & (start == ABSENT) & (address >= 0) & known(agent)] = _FAULT
        kind[~moved & spans & known(agent)] = _UNMAP
        # Node 0 is the system's memory where nobody says otherwise.
        kind[moved & spans & known(source, 0) & known(target, 0)] = _MIGRATE
        return kind

    def _of(
        self,
        kind: int,
        rows: npt.NDArray[np.intp],
        when: Times,
        values: _Ints,
        said: npt.NDArray[np.intp],
    ) -> tuple[npt.NDArray[np.intp], Records]:
        """Records of plain events of one kind, and the rows that they are of."""
        start, stop, source, target, agent, address, error = values
        if kind == _MIGRATE:
            trigger = np.array([one.migrate for one in self.names.said])[said]
            ends = source, target
            return rows, migrations(self.out, when, (start, stop), ends, trigger, error)
        if kind == _UNMAP:
            trigger = np.array([one.unmap for one in self.names.said])[said]
            return rows, unmaps(self.out, when, (start, stop), agent, trigger)
        access = np.array([one.access for one in self.names.said], "u1")[said]
        how = [-1 if one.ended is None else int(one.ended) for one in self.names.said]
        ended = np.array(how, "i1")[said]
        found = faults(self.out, when, address, agent, access, ended)
        return np.repeat(rows, 1 + (ended >= 0)), found

    def _odd(
        self, batch: list[_Row], rows: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.intp], Records]:
        """Records of rows one by one, and the rows that they are of."""
        counts: list[int] = []
        for row in rows.tolist():
            before = len(self.out.rows)
            self._one(batch[row])
            counts.append(len(self.out.rows) - before)
        return np.repeat(rows, np.array(counts, np.intp)), self.out.take()

    def _one(self, row: _Row) -> None:
        """Add what one row tells."""
        start, table, _, end, category, name, extdata = row
        back = self.summary.counts.get("clock_back", 0)
        try:
            when = self._when(start, end)
            said = self.names.said[self.names.index(table, category, name)]
            known = _add(self.out, _fields(extdata), said, when)
        except NotARecordError as error:
            raise TraceError(self.database.path, self._place(row), str(error)) from None
        if not known:
            self.summary.unknown += 1
        elif start is None or self.summary.counts.get("clock_back", 0) > back:
            self.summary.repaired += 1
        else:
            self.summary.read += 1

    def _bare(self, number: int) -> None:
        """Count plain events without a region, which has their times, as repaired."""
        if number:
            self.summary.add("without_region", number)
            self.summary.repaired += number
            self.summary.read -= number

    def _place(self, row: _Row) -> str:
        return f"rocpd_event{self.suffixes[row[1]]}, row {row[2]}"

    def _when(self, start: Any, end: Any) -> tuple[int, int]:
        if start is None:
            self.summary.add("without_region")
            return 0, 0
        for time in (start, end):
            if type(time) is not int:
                raise NotARecordError(f"time {time!r:.60}: expected an integer")
        return self.out.times(start, end)


def _clock(values: Sequence[Any]) -> _Ints:
    """A column of times: ``ABSENT`` for NULL, -1 for what is none."""
    if set(map(type, values)) == {int}:
        times = np.array(values, np.int64)
        times[times == ABSENT] = -1
        return times
    return np.array(
        [
            ABSENT if value is None else value if type(value) is int and value > ABSENT else -1
            for value in values
        ],
        np.int64,
    )


def _scanned(texts: Sequence[Any]) -> _Ints:
    """Columns of ``_FORM`` of the texts of some events, ``ABSENT`` for all that is not plain."""
    count = len(texts)
    out = np.full((_FORM.columns, count), ABSENT)
    try:
        text = _BETWEEN.join(texts).decode("ascii")
    except (TypeError, UnicodeDecodeError):
        return out
    if text.count(_BETWEEN.decode()) != count - 1:
        return out
    begins = np.cumsum([0] + [len(each) + 1 for each in texts]).tolist()
    row = 0
    while row < count:
        part = np.empty((_FORM.columns, count - row), "<i8")
        found, _ = _FORM.scan(text, begins[row], part)
        out[:, row : row + found] = part[:, :found]
        # The one behind those is odd.
        row += found + 1
    return out


def _fields(extdata: Any) -> dict[str, int]:
    """The map ``kfd`` of an event as numbers."""
    try:
        table = json.loads(extdata)
    except (ValueError, TypeError, RecursionError):
        raise NotARecordError(f"extdata {extdata!r:.60}: expected JSON") from None
    # The word may stand deeper, in an event of another kind.
    found = table.get("kfd", {}) if isinstance(table, dict) else {}
    if isinstance(found, list):
        found = _pairs(found)
    if not isinstance(found, dict):
        raise NotARecordError(f"kfd {found!r:.60}: expected an object or an array of pairs")
    fields: dict[str, int] = {}
    for key, value in found.items():
        try:
            fields[str(key)] = int(value) if isinstance(value, int) else int(str(value)[:24])
        except ValueError:
            raise NotARecordError(f"{key} {value!r:.60}: expected decimal digits") from None
    return fields


def _pairs(found: list[Any]) -> dict[str, Any] | None:
    """A map that was written as an array of ``{"key", "value"}`` or of pairs."""
    table: dict[str, Any] = {}
    for item in found:
        if isinstance(item, dict) and {"key", "value"} <= item.keys():
            table[str(item["key"])] = item["value"]
        elif isinstance(item, list) and len(item) == 2:
            table[str(item[0])] = item[1]
        else:
            return None
    return table


def _need(fields: dict[str, int], *keys: str) -> tuple[int, ...]:
    missing = [key for key in keys if key not in fields]
    if missing:
        raise NotARecordError(
            f"no {', '.join(missing)} among {', '.join(fields)[:100]}: expected {', '.join(keys)}"
        )
    return tuple(fields[key] for key in keys)


def _add(rows: KfdRows, fields: dict[str, int], said: _Said, when: tuple[int, int]) -> bool:
    """Rows of one event; False where it is of no kind that is read."""
    if said.single:
        rows.summary.add("single_events")
        return False
    if "src_agent_id" in fields or "dst_agent_id" in fields:
        begin, end, source, target = _need(
            fields, "start_address", "end_address", "src_agent_id", "dst_agent_id"
        )
        error = fields.get("error_code")
        rows.migrate(when, rows.span(begin, end), (source, target), said.migrate, error)
    elif "start_address" in fields:
        begin, end, agent = _need(fields, "start_address", "end_address", "agent_id")
        rows.unmap(when[0], rows.span(begin, end), agent, said.unmap)
    elif "address" in fields:
        address, agent = _need(fields, "address", "agent_id")
        rows.fault(when, address, agent, said.access, said.ended)
    elif "count" in fields:
        rows.dropped(when[0], fields["count"])
    elif "agent_id" in fields:
        rows.queue(when, fields["agent_id"], _trigger(said.name, "queue"), put_off=False)
    else:
        return False
    return True
