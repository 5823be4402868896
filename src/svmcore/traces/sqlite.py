"""Traces in SQLite databases: opening one without trusting it, and rows in bounded memory."""

from __future__ import annotations

import contextlib
import tempfile
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from .base import Records, Summary, Trace
from .opening import BLOCK_BYTES, Source, file_size, os_failure

if TYPE_CHECKING:
    import sqlite3

__all__ = ["MAGIC", "Database", "Places", "SqliteTrace", "quoted"]

MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
#: Rows that are held at a time.
_ROWS = 8192
#: Longest text of a row, bytes: a damaged length must not take all memory.
_LONGEST = 1 << 24


class Places:
    """Table and row of each of some rows, made when an error asks for them.

    Parameters
    ----------
    names : sequence of str
        Tables.
    tables : sequence of int
        Number of each row's table among them.
    rows : sequence of int
        The rowids.
    """

    def __init__(self, names: Sequence[str], tables: Sequence[int], rows: Sequence[int]) -> None:
        self.names, self.tables, self.rows = names, tables, rows

    def __getitem__(self, index: int) -> str:
        return f"table {self.names[self.tables[index]]}, row {self.rows[index]}"


class Database:
    """One database, open for one pass, read only.

    Parameters
    ----------
    path : str
        The trace, for errors.
    connection : sqlite3.Connection
        Text comes as bytes.
    """

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        #: Columns of each table, in order; views are left out.
        self.tables: dict[str, list[str]] = {}
        named = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND typeof(name) = 'text' "
            "ORDER BY name"
        )
        for (name,) in connection.execute(named).fetchall():
            table = name.decode("utf-8", "replace")
            columns = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
            self.tables[table] = [row[1].decode("utf-8", "replace") for row in columns]

    def check_columns(self, table: str, columns: Sequence[str]) -> None:
        """Refuse a table that lacks one of *columns*."""
        missing = [name for name in columns if name not in self.tables[table]]
        if missing:
            raise TraceError(
                self.path,
                f"table {table}",
                f"no column {', '.join(missing)} among {', '.join(self.tables[table])[:200]}: "
                f"expected {', '.join(columns)}",
            )

    def column(self, table: str, name: str, otherwise: str = "NULL") -> str:
        """SQL of a column, or of *otherwise* where the table lacks it."""
        return quoted(name) if name in self.tables[table] else otherwise

    def count(self, query: str) -> int:
        """The one number that *query* gives."""
        return int(self.connection.execute(query).fetchone()[0])

    def batches(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of *query*, some thousand at a time, none empty."""
        cursor = self.connection.execute(query)
        while rows := cursor.fetchmany(_ROWS):
            yield rows

    def integers(self, values: Sequence[Any], what: str, places: Places) -> npt.NDArray[np.int64]:
        """A column of integers.

        Parameters
        ----------
        values : sequence
            As SQLite gave them; its integers have 64 bits, signed.
        what : str
            Name of the column.
        places : Places
            Where each stands.

        Raises
        ------
        TraceError
            At the first that is none.
        """
        try:
            # It takes integers alone, and looks at each once.
            return np.frombuffer(array("q", values), np.int64)
        except TypeError:
            at = next(i for i, value in enumerate(values) if type(value) is not int)
            self.refuse(places[at], f"{what} {values[at]!r:.60}: expected an integer")

    def refuse(self, place: str, reason: str) -> NoReturn:
        """Raise the error of one row."""
        raise TraceError(self.path, place, reason)


def quoted(name: str) -> str:
    """A name as SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


class SqliteTrace(Trace):
    """A trace in a database. A subclass names its tables and makes records of their rows.

    The file is opened read only and as it lies: a database with a log or journal
    beside it, which may hold newer rows, is refused. A compressed one is laid
    into a temporary file. Sorting spills to temporary files.
    """

    @abstractmethod
    def _records(self, database: Database, summary: Summary) -> Iterator[Records]:
        """Records of one pass; counts rows into *summary*."""

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        try:
            import sqlite3
        except ImportError as error:  # a Python that was built without it
            raise TraceError(
                self.path, "", "is a SQLite database: expected a Python with sqlite3"
            ) from error
        with self._file(source) as file:
            try:
                connection = sqlite3.connect(
                    f"{Path(file).absolute().as_uri()}?mode=ro&immutable=1",
                    uri=True,
                    check_same_thread=False,
                    isolation_level=None,
                )
                with contextlib.closing(connection):
                    connection.text_factory = bytes
                    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
                    # What a stranger's schema calls must have no effect.
                    connection.execute("PRAGMA trusted_schema = OFF")
                    connection.execute("PRAGMA cell_size_check = ON")
                    connection.execute("PRAGMA temp_store = FILE")
                    yield from self._records(Database(self.path, connection), summary)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                # Names that are damaged are no text; a file that shrank is said to be so.
                source.pass_to(self.nbytes)
                raise TraceError(
                    self.path, "", f"{error}: expected a whole SQLite database"
                ) from error
        source.pass_to(self.nbytes)

    @contextlib.contextmanager
    def _file(self, source: Source) -> Iterator[str]:
        """Name of a plain file with the content, whose header fits its size."""
        with source.random() as window:
            self._check_header(window.read(_HEADER_BYTES), window.size)
            with contextlib.closing(open(self.path, "rb")) as raw:  # noqa: PTH123
                plain = raw.read(len(MAGIC)) == MAGIC
            if plain:
                self._check_beside()
                if file_size(self.path) < self.nbytes:
                    source.pass_to(self.nbytes)  # says that it shrank, and where
                yield self.path
                return
            try:
                with tempfile.NamedTemporaryFile(suffix=".sqlite") as spool:
                    window.seek(0)
                    while data := window.read(BLOCK_BYTES):
                        spool.write(data)
                    spool.flush()
                    yield spool.name
            except OSError as error:
                raise os_failure(
                    self.path, "", error, "room for the decompressed content"
                ) from error

    def _check_header(self, header: bytes, size: int) -> None:
        if not header.startswith(MAGIC):
            raise TraceError(
                self.path, "byte 0", "does not begin as one does: expected a SQLite database"
            )
        page = int.from_bytes(header[16:18], "big")
        page = 1 << 16 if page == 1 else page
        pages = int.from_bytes(header[28:32], "big")
        # The count is that of the last writer that kept it, as SQLite decides. What is missing
        # of the last page SQLite would take for zeros.
        kept = header[24:28] == header[92:96]
        if len(header) < _HEADER_BYTES or not page or size % page or (kept and size < page * pages):
            raise TraceError(
                self.path,
                f"byte {size}",
                f"the file ends: expected {pages} pages of {page} bytes of a SQLite database",
            )

    def _check_beside(self) -> None:
        for suffix in ("-wal", "-journal"):
            beside = Path(self.path + suffix)
            with contextlib.suppress(OSError):
                if beside.stat().st_size:
                    raise TraceError(
                        self.path,
                        "",
                        f"has {beside.name} beside it, with rows that are not in the database "
                        "yet: expected one that its writer has closed",
                    )
