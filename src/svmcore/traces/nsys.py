"""Nsight Systems exports (``nsys export --type sqlite``): unified-memory faults and migrations.

Tables appear only where there are such events; a table that is missing means
that there were none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import CPU, RECORD, UNKNOWN, Access, Kind
from ..units import PAGE_MASK, PAGE_SIZE
from .base import Mapping, Records, Summary, TraceKind, check_records, register
from .mappings import named_and_touched
from .nvidia import ACCESS, CAUSES, migrate_values
from .sqlite import MAGIC, Database, Places, SqliteTrace, quoted

__all__ = ["NsysTrace", "pid_of"]

_CPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
_GPU_FAULTS = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
#: Tables whose events end.
_LASTING = (_GPU_FAULTS, _COPIES)
_MEMORY_KINDS = "ENUM_CUDA_MEM_KIND"
#: Any of these says that Nsight Systems made the database.
_ANY = ("StringIds", "ENUM_", "META_DATA_", "CUDA_UM_", "CUPTI_ACTIVITY_KIND_", _USAGE)
#: copyKind of the driver's own migrations: host to device, device to host, between devices.
_TO_DEVICE, _TO_HOST, _BETWEEN = 11, 12, 13
_ALLOC, _FREE = 0, 1
_GPUS = 64
_NONE = -1
#: Processes that are told apart for the note.
_PROCESSES = 1024
_COLUMNS = ("start", "end", "addr", "device", "count", "code", "cause", "src", "dst")

_Ints = npt.NDArray[np.int64]


def pid_of(global_pid: int) -> int:
    """Process id in a ``globalPid``."""
    return global_pid // 0x1000000 % 0x1000000


class _Table(NamedTuple):
    """How a table's columns become the common ones; NULL is allowed where it says ``ifnull``."""

    name: str
    needed: tuple[str, ...]
    columns: dict[str, str]
    where: str = ""


def _maybe(column: str) -> str:
    return f"ifnull({column}, {_NONE})"


def _tables(database: Database) -> list[_Table]:
    """The tables that are there, in the order that breaks ties of time."""
    found = [
        _Table(_CPU_FAULTS, ("start", "globalPid", "address"), {"addr": "address"}),
        _Table(
            _GPU_FAULTS,
            (
                "start",
                "end",
                "globalPid",
                "deviceId",
                "address",
                "numberOfPageFaults",
                "faultAccessType",
            ),
            {
                "end": '"end"',
                "addr": "address",
                "device": "deviceId",
                "count": "numberOfPageFaults",
                "code": "faultAccessType",
            },
        ),
    ]
    if _COPIES in database.tables:
        found.append(
            _Table(
                _COPIES,
                ("start", "end", "deviceId", "bytes", "copyKind", "migrationCause"),
                {
                    "end": '"end"',
                    "addr": database.column(_COPIES, "virtualAddress"),
                    "device": "deviceId",
                    "count": "bytes",
                    "code": "copyKind",
                    "cause": _maybe("migrationCause"),
                    "src": _maybe(database.column(_COPIES, "srcDeviceId")),
                    "dst": _maybe(database.column(_COPIES, "dstDeviceId")),
                },
                f"copyKind IN ({_TO_DEVICE}, {_TO_HOST}, {_BETWEEN})",
            )
        )
    if kinds := _managed(database):
        found.append(
            _Table(
                _USAGE,
                ("start", "address", "bytes", "memKind", "memoryOperationType"),
                {"addr": "address", "count": "bytes", "code": "memoryOperationType"},
                f"memKind IN ({', '.join(map(str, kinds))})",
            )
        )
    return [table for table in found if table.name in database.tables]


def _managed(database: Database) -> list[int]:
    """Numbers of managed memory by the database's own table."""
    if _MEMORY_KINDS not in database.tables or _USAGE not in database.tables:
        return []
    database.check_columns(_MEMORY_KINDS, ("id", "name"))
    label = database.column(_MEMORY_KINDS, "label", "''")
    rows = database.connection.execute(
        f"SELECT id FROM {_MEMORY_KINDS} WHERE lower(name || ' ' || ifnull({label}, '')) "  # noqa: S608 - names of our own
        "LIKE '%managed%' ORDER BY id"
    ).fetchall()
    return [int(number) for (number,) in rows if isinstance(number, int)]


@register
class NsysTrace(SqliteTrace):
    """Unified-memory events of an Nsight Systems export, in order of their start.

    =================================  ===============================================
    rows of                            record
    =================================  ===============================================
    CUDA_UM_CPU_PAGE_FAULT_EVENTS      FAULT by the CPU, one page, access UNKNOWN
    CUDA_UM_GPU_PAGE_FAULT_EVENTS      FAULT, one page, ``dur_ns``, ``value`` the fault
                                       groups on the page
    CUPTI_ACTIVITY_KIND_MEMCPY,        MIGRATE from ``proc`` to ``peer``, ``value`` as
    copyKind 11, 12, 13                :func:`.nvidia.migrate_values`
    CUDA_GPU_MEMORY_USAGE_EVENTS       MAP and UNMAP of managed memory
    =================================  ===============================================

    What counts as managed is asked of the table ENUM_CUDA_MEM_KIND. Explicit
    copies are counted as unknown (``explicit_copies``), allocations of other
    memory as metadata (``other_allocations``). Pages touched outside the managed
    allocations that the file names are mappings too.

    ``summary.counts``: those, ``migrations_without_address`` with
    ``bytes_without_address`` (a row whose virtualAddress is NULL: a record
    without a span), ``unknown_access``, ``unknown_cause``, ``clock_back``
    (negative times and ends before starts: repaired to 0 and no duration).

    Source
    ------
    Format (b) of the trace notes. Not in such files: thrashing, throttling,
    remote maps, advice.
    """

    format = "nsys"
    description = "Nsight Systems SQLite export: unified-memory faults and migrations"
    beyond_records = (
        "process ids",
        "code of CPU faults",
        "streams and contexts",
        "explicit copies",
    )

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the magic and the names of the tables."""
        if not head.startswith(MAGIC):
            return 0.0
        if b"CUDA_UM_" in head or b"ENUM_CUDA_UNIF_MEM" in head:
            return 1.0
        return 0.9 if b"CUPTI_ACTIVITY_KIND_" in head or b"StringIds" in head else 0.0

    def _find_mappings(self) -> list[Mapping]:
        return named_and_touched(self.chunks(), "managed")

    def _records(self, database: Database, summary: Summary) -> Iterator[Records]:
        if not any(table.startswith(_ANY) for table in database.tables):
            raise TraceError(
                self.path,
                "tables",
                f"{', '.join(database.tables)[:200] or 'none'}: expected those of Nsight Systems",
            )
        tables = _tables(database)
        self._count_others(database, tables, summary)
        if not tables:
            return
        for table in tables:
            database.check_columns(table.name, table.needed)
        rows = _Rows(self.path, database, tables, summary)
        for batch in database.batches(_query(tables)):
            summary.lines += len(batch)
            yield rows.records(batch)
        processes = _processes(database, tables)
        if len(processes) > 1:
            summary.notes.append(
                f"{len(processes)} processes: equal addresses of different processes are "
                "taken for the same page"
            )

    def _count_others(self, database: Database, tables: list[_Table], summary: Summary) -> None:
        """Rows that are no unified-memory events."""
        for name, counter in ((_COPIES, "explicit_copies"), (_USAGE, "other_allocations")):
            if name not in database.tables:
                continue
            there = next((table for table in tables if table.name == name), None)
            rows = f"SELECT count(*) FROM {name}"  # noqa: S608 - one of our own names
            number = database.count(rows)
            if there is not None:
                database.check_columns(name, there.needed)
                number -= database.count(f"{rows} WHERE {there.where}")
            if number:
                summary.add(counter, number)
                summary.lines += number
                if name == _COPIES:
                    summary.unknown += number
                else:
                    summary.metadata += number
        if _USAGE in database.tables and _USAGE not in [table.name for table in tables]:
            summary.notes.append(
                f"no {_MEMORY_KINDS} that names managed memory: allocations were not read"
            )


def _processes(database: Database, tables: list[_Table]) -> set[int]:
    """The processes of all faults, up to some number of them."""
    found: set[int] = set()
    for table in tables:
        if "globalPid" in table.needed:
            query = f"SELECT DISTINCT globalPid FROM {table.name} LIMIT {_PROCESSES}"  # noqa: S608 - names of our own
            found.update(pid for (pid,) in database.connection.execute(query))
            number = "typeof(globalPid) <> 'integer' ORDER BY rowid LIMIT 1"
            odd = f"SELECT rowid, globalPid FROM {table.name} WHERE {number}"  # noqa: S608 - names of our own
            for row, pid in database.connection.execute(odd):
                place = Places([table.name], [0], [row])[0]
                database.refuse(place, f"pid {pid!r:.60}: expected an integer")
    return found - {0}


def _columns(table: _Table) -> dict[str, str]:
    """SQL of the common columns that a table has."""
    return {"start": "start"} | table.columns


def _used(tables: list[_Table]) -> list[str]:
    """The common columns that some table has; the others would be nothing but zeros."""
    return [name for name in _COLUMNS if any(name in _columns(table) for table in tables)]


def _query(tables: list[_Table]) -> str:
    """The columns used of all rows, in order of time, table and row."""
    parts: list[str] = []
    for number, table in enumerate(tables):
        there = _columns(table)
        listed = ", ".join(f"{there.get(name, '0')} AS {quoted(name)}" for name in _used(tables))
        where = f" WHERE {table.where}" if table.where else ""
        parts.append(f"SELECT {number} AS t, rowid AS r, {listed} FROM {table.name}{where}")  # noqa: S608 - names of our own
    return " UNION ALL ".join(parts) + " ORDER BY start, t, r"


class _Part(NamedTuple):
    """The rows of one table in a batch, and where their records go."""

    out: Records
    row: dict[str, _Ints]
    at: npt.NDArray[np.intp]
    bare: npt.NDArray[np.bool_]
    places: Places


class _Rows:
    """Rows of one pass."""

    def __init__(
        self, path: str, database: Database, tables: list[_Table], summary: Summary
    ) -> None:
        self.path = path
        self.database = database
        self.tables = [table.name for table in tables]
        self.used = _used(tables)
        self.summary = summary
        #: Sizes of managed allocations, for frees that do not say theirs.
        self.live: dict[int, int] = {}

    def records(self, batch: list[tuple[Any, ...]]) -> Records:
        """Records of some rows."""
        tables, rowids, *columns = zip(*batch, strict=True)
        places = Places(self.tables, tables, rowids)
        fields = dict(zip(self.used, columns, strict=True))
        bare = np.zeros(len(batch), bool)
        if None in fields["addr"]:
            bare = np.array([addr is None for addr in fields["addr"]])
            fields["addr"] = tuple(0 if addr is None else addr for addr in fields["addr"])
        row = {name: self.database.integers(fields[name], name, places) for name in self.used}
        of = np.array(tables)
        out = np.zeros(len(batch), RECORD)
        out["access"], out["peer"] = Access.UNKNOWN, UNKNOWN
        out["addr"] = row["addr"].view("<u8")
        self._times(out, row, of)
        for number, name in enumerate(self.tables):
            at = np.flatnonzero(of == number)
            if len(at):
                fields_at = {key: value[at] for key, value in row.items()}
                self._fill(name, _Part(out, fields_at, at, bare[at], places))
        check_records(out, self.path, places.__getitem__)
        return out

    def _times(self, out: Records, row: dict[str, _Ints], of: npt.NDArray[np.intp]) -> None:
        """Times and durations; those of a clock that went back are repaired."""
        lasts = np.isin(
            of, [i for i, name in enumerate(self.tables) if name in (_GPU_FAULTS, _COPIES)]
        )
        start = row["start"]
        end = np.where(lasts, row["end"], start) if "end" in row else start
        back = (start < 0) | (end < start)
        out["t_ns"] = np.maximum(start, 0)
        out["dur_ns"] = np.where(back, 0, end - start)
        repaired = int(np.count_nonzero(back))
        if repaired:
            self.summary.add("clock_back", repaired)
        self.summary.repaired += repaired
        self.summary.read += len(out) - repaired

    def _fill(self, name: str, part: _Part) -> None:
        out, row, at = part.out, part.row, part.at
        if name != _COPIES:
            self._refuse(part, part.bare, "address NULL: expected a number")
        if name == _USAGE:
            self._allocations(part)
        elif name == _COPIES:
            self._migrations(part)
        else:
            out["kind"][at] = Kind.FAULT
            out["addr"][at] &= np.uint64(~PAGE_MASK & (1 << 64) - 1)
            out["size"][at] = PAGE_SIZE
            out["proc"][at] = CPU
            if name == _GPU_FAULTS:
                out["proc"][at] = self._gpus(part, row["device"])
                out["value"][at] = np.clip(row["count"], 0, 0xFFFFFFFF)
                known = (row["code"] > 0) & (row["code"] < 5)
                out["access"][at] = ACCESS[np.where(known, row["code"], 0)]
                self._tell("unknown_access", ~known)

    def _migrations(self, part: _Part) -> None:
        out, row, at, bare = part.out, part.row, part.at, part.bare
        kind, device, size = row["code"], row["device"], row["count"]
        # Older exports leave the two devices NULL; the copy's own is one of them.
        source = np.where(row["src"] == _NONE, device, row["src"])
        target = np.where(row["dst"] == _NONE, device, row["dst"])
        proc = np.where(kind == _TO_DEVICE, CPU, self._gpus(part, source))
        peer = np.where(kind == _TO_HOST, CPU, self._gpus(part, target))
        self._refuse(part, size <= 0, "bytes of 0 or less: expected at least 1")
        known = (row["cause"] > 0) & (row["cause"] < len(CAUSES))
        out["kind"][at], out["proc"][at], out["peer"][at] = Kind.MIGRATE, proc, peer
        out["value"][at] = migrate_values(np.where(known, row["cause"], 0), peer)
        out["size"][at] = np.where(bare, 0, size)
        self._tell("unknown_cause", ~known)
        self._tell("migrations_without_address", bare)
        if bare.any():
            self.summary.add("bytes_without_address", int(size[bare].sum()))

    def _allocations(self, part: _Part) -> None:
        out, row, at = part.out, part.row, part.at
        code, addr, size = row["code"], row["addr"].tolist(), row["count"].tolist()
        other = (code != _ALLOC) & (code != _FREE)
        self._refuse(part, other, f"memoryOperationType: expected {_ALLOC} or {_FREE}")
        for i, allocates in enumerate((code == _ALLOC).tolist()):
            if allocates:
                self.live[addr[i]] = size[i]
            else:
                known = self.live.pop(addr[i], 0)
                size[i] = size[i] if size[i] > 0 else known
        sizes = np.array(size, np.int64)
        self._refuse(part, sizes <= 0, "bytes of 0 or less: expected at least 1")
        out["kind"][at] = np.where(code == _ALLOC, int(Kind.MAP), int(Kind.UNMAP))
        out["size"][at], out["proc"][at] = sizes, UNKNOWN

    def _refuse(self, part: _Part, bad: npt.NDArray[np.bool_], reason: str) -> None:
        """Raise the error of the first row that is *bad*."""
        if bad.any():
            self.database.refuse(part.places[int(part.at[np.argmax(bad)])], reason)

    def _gpus(self, part: _Part, device: _Ints) -> _Ints:
        """Record codes of device numbers."""
        bad = (device < 0) | (device >= _GPUS)
        if bad.any():
            first = int(device[np.argmax(bad)])
            self._refuse(part, bad, f"device {first}: expected 0 to {_GPUS - 1}")
        return device + 1

    def _tell(self, counter: str, which: npt.NDArray[np.bool_]) -> None:
        if number := int(np.count_nonzero(which)):
            self.summary.add(counter, number)
