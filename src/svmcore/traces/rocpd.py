"""rocpd databases (schema version 3): KFD events of rocprofv3 in SQLite.

A KFD event is a row of ``rocpd_event`` whose ``extdata`` holds a map ``kfd``,
with one row of ``rocpd_region`` for its times and process. Table names end in
the id of the process that wrote them; the views without it are not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..errors import TraceError
from ..records import Access
from .base import Records, Summary, TraceKind, check_records, register
from .kfd_rows import KfdRows, NotARecordError
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
            others = database.count(f"SELECT count(*) FROM {events} e WHERE NOT ({_IS_KFD})")  # noqa: S608
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
        start, end, name, join = "NULL", "NULL", "''", ""
        if region in database.tables:
            database.check_columns(region, ("start", "end", "event_id"))
            start, end = "r.start", 'r."end"'
            join = f" LEFT JOIN {quoted(region)} r ON r.event_id = e.id"
        texts = _strings(database, suffix)
        names = [
            f"ifnull((SELECT string FROM {quoted(texts)} WHERE id = {column}), '')"  # noqa: S608
            for table, column, there in (
                (event, "e.category_id", True),
                (region, "r.name_id", bool(join)),
            )
            if texts and there and column[2:] in database.tables[table]
        ]
        name = " || ' ' || ".join(names) or name
        parts.append(
            f"SELECT {start} AS t, {number} AS s, e.id AS i, {end} AS z, {name} AS n, "  # noqa: S608
            f"e.extdata AS x FROM {quoted(event)} e{join} WHERE {_IS_KFD}"
        )
    return " UNION ALL ".join(parts) + " ORDER BY t, s, i"


def _strings(database: Database, suffix: str) -> str:
    """Name of the table of strings, empty where there is none."""
    table = f"rocpd_string{suffix}"
    return table if {"id", "string"} <= set(database.tables.get(table, ())) else ""


class _Rows:
    """Rows of one pass."""

    def __init__(self, database: Database, suffixes: list[str], summary: Summary) -> None:
        self.database = database
        self.suffixes = suffixes
        self.summary = summary
        self.out = KfdRows(summary)
        for suffix in suffixes:
            self._describe(f"rocpd_info_agent{suffix}")

    def _describe(self, table: str) -> None:
        """What the agents are, in the order of their nodes."""
        columns = self.database.tables.get(table, ())
        node = next((name for name in ("absolute_index", "node_id") if name in columns), None)
        if node is None or "type" not in columns:
            return
        query = f"SELECT {node}, type FROM {quoted(table)} ORDER BY {node}"  # noqa: S608
        for batch in self.database.batches(query):
            for number, kind in batch:
                if type(number) is int and kind in (b"CPU", b"GPU"):
                    self.out.agents.describe(number, kind == b"GPU")

    def records(self, batch: list[tuple[Any, ...]]) -> Records:
        """Records of some rows."""
        places: list[str] = []
        for start, table, number, end, name, extdata in batch:
            place = f"rocpd_event{self.suffixes[table]}, row {number}"
            before, back = len(self.out.rows), self.summary.counts.get("clock_back", 0)
            try:
                when = self._when(start, end)
                known = _add(self.out, _fields(extdata), name.decode("utf-8", "replace"), when)
            except NotARecordError as error:
                raise TraceError(self.database.path, place, str(error)) from None
            if not known:
                self.summary.unknown += 1
            elif start is None or self.summary.counts.get("clock_back", 0) > back:
                self.summary.repaired += 1
            else:
                self.summary.read += 1
            places += [place] * (len(self.out.rows) - before)
        records = self.out.take()
        check_records(records, self.database.path, places.__getitem__)
        return records

    def _when(self, start: Any, end: Any) -> tuple[int, int]:
        if start is None:
            self.summary.add("without_region")
            return 0, 0
        for time in (start, end):
            if type(time) is not int:
                raise NotARecordError(f"time {time!r:.60}: expected an integer")
        return self.out.times(start, end)


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


def _said(name: str, what: str) -> int:
    """The trigger whose word is in *name*, the longest one; 0 without any."""
    words = _TRIGGERS[what]
    there = [word for word in words if word in name]
    return words.index(max(there, key=len)) if there else 0


def _add(rows: KfdRows, fields: dict[str, int], name: str, when: tuple[int, int]) -> bool:
    """Rows of one event; False where it is of no kind that is read."""
    if _SINGLE.search(name):
        rows.summary.add("single_events")
        return False
    if "src_agent_id" in fields or "dst_agent_id" in fields:
        begin, end, source, target = _need(
            fields, "start_address", "end_address", "src_agent_id", "dst_agent_id"
        )
        error = fields.get("error_code")
        rows.migrate(when, rows.span(begin, end), (source, target), _said(name, "migrate"), error)
    elif "start_address" in fields:
        begin, end, agent = _need(fields, "start_address", "end_address", "agent_id")
        rows.unmap(when[0], rows.span(begin, end), agent, _said(name, "unmap"))
    elif "address" in fields:
        address, agent = _need(fields, "address", "agent_id")
        access = (
            Access.WRITE if "WRITE" in name else Access.READ if "READ" in name else Access.UNKNOWN
        )
        ended = True if "MIGRATED" in name else False if "UPDATED" in name else None
        rows.fault(when, address, agent, access, ended)
    elif "count" in fields:
        rows.dropped(when[0], fields["count"])
    elif "agent_id" in fields:
        rows.queue(when, fields["agent_id"], _said(name, "queue"), put_off=False)
    else:
        return False
    return True
