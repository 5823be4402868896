"""Our own records as CSV: a header line that names RECORD's fields, one record a line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind, processor_name
from ._text import NUMBER, LineForm
from .base import (
    Records,
    Summary,
    TextTrace,
    check_records,
    register,
    shown,
    table_columns,
    table_rows,
    words,
)
from .opening import Block
from .records_npy import RecordsTrace

__all__ = ["ACCESS_NAMES", "CODES", "FIELDS", "KIND_NAMES", "PROCESSOR_NAMES", "CsvTrace"]

#: RECORD's fields in order, the columns as we write them.
FIELDS: tuple[str, ...] = RECORD.names or ()
#: Words of the coded columns.
KIND_NAMES: dict[int, str] = {int(kind): kind.name.lower() for kind in Kind}
ACCESS_NAMES: dict[int, str] = {int(access): access.name.lower() for access in Access}
PROCESSOR_NAMES: dict[int, str] = {code: processor_name(code) for code in (*range(65), UNKNOWN)}

_CODED = {"kind": KIND_NAMES, "proc": PROCESSOR_NAMES, "access": ACCESS_NAMES}
_CODED["peer"] = _CODED["proc"]
#: Bytes of a coded field to its code: the word, or the number.
CODES: dict[str, dict[bytes, int]] = {
    field: {text.encode(): code for code, word in names.items() for text in (word, str(code))}
    for field, names in _CODED.items()
}
_PATTERN = {
    field: b"([a-z0-9_]+)" if field in _CODED else b"(0[xX][0-9a-fA-F]+|[0-9]+)" for field in FIELDS
}
_VALUE_LIMIT = 1 << 32


@register
class CsvTrace(TextTrace, RecordsTrace):
    """A ``.csv`` file whose header names RECORD's fields, in any order, all of them.

    ``kind``, ``proc``, ``access`` and ``peer`` are words (``fault``, ``gpu0``,
    ``write``, ``unknown``) or their numbers; the other columns are decimal or
    ``0x`` hex. Empty lines and lines that begin with ``#`` are comments.

    Source
    ------
    Ours; the fields and their units are those of :mod:`svmcore.records`.
    """

    format = "csv"
    description = "svmcore records as CSV, columns " + ",".join(FIELDS)

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the header line."""
        line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
        return 1.0 if _columns(line) is not None else 0.0

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary)


def _columns(line: bytes) -> list[str] | None:
    """Columns that a header names, or None where it is not a header of ours."""
    columns = line.rstrip(b"\r").decode("latin-1").split(",")
    return columns if sorted(columns) == sorted(FIELDS) else None


class _Parser:
    """One pass."""

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self.columns: list[str] | None = None
        self.pattern = re.compile(b"")
        self.form = LineForm()

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        if self.columns is None:
            block = self._header(block)
        table = table_columns(block, self.form)
        if table is None or not self._small(table.columns):
            out, numbers = self._slow(block)
        else:
            numbers = table.numbers
            self.summary.comments += table.comments
            out = np.empty(table.columns.shape[1], RECORD)
            for field, values in zip(self.columns or (), table.columns, strict=True):
                out[field] = values
        check_records(out, self.path, lambda i: f"line {numbers[i]}")
        self.summary.read += len(out)
        return out

    def _small(self, columns: npt.NDArray[np.uint64]) -> bool:
        """Whether no value needs more than 32 bits; the slow path names the one that does."""
        values = columns[(self.columns or []).index("value")]
        return not len(values) or int(values.max()) < _VALUE_LIMIT

    def _slow(self, block: Block) -> tuple[Records, Sequence[int]]:
        """A block with a line of another form: the first that is wrong is named."""
        columns = self.columns or []
        rows, numbers = table_rows(block, self.pattern, self.path, self.summary, ",".join(columns))
        out = np.zeros(len(rows), RECORD)
        for field, texts in zip(columns, zip(*rows, strict=True), strict=False):
            if field in CODES:
                codes = CODES[field]
                try:
                    out[field] = [codes[text] for text in texts]
                except KeyError as error:
                    word = error.args[0]
                    raise TraceError(
                        self.path,
                        f"line {numbers[texts.index(word)]}",
                        f"{field} {shown(word)}: expected one of "
                        f"{', '.join(list(_CODED[field].values())[:12])} ...",
                    ) from None
                continue
            values = words(texts, numbers, self.path, field)
            if field == "value" and (values >= _VALUE_LIMIT).any():
                at = int(np.argmax(values >= _VALUE_LIMIT))
                reason = f"value {values[at]}: expected at most 32 bits"
                raise TraceError(self.path, f"line {numbers[at]}", reason)
            out[field] = values
        return out, numbers

    def _header(self, block: Block) -> Block:
        line, _, rest = block.data.partition(b"\n")
        self.columns = _columns(line)
        if self.columns is None:
            raise TraceError(
                self.path,
                f"line {block.first}",
                f"{shown(line)}: expected a header of {','.join(FIELDS)}",
            )
        self.pattern = re.compile(
            b"^" + b",".join(_PATTERN[field] for field in self.columns) + b"\r?$", re.MULTILINE
        )
        parts: list[bytes | int | dict[bytes, int]] = []
        for field in self.columns:
            parts += [b",", CODES.get(field, NUMBER)]
        self.form = LineForm(*parts[1:])
        self.summary.metadata += 1
        return Block(block.first + 1, rest, block.lines - 1, block.cut)

    def end(self) -> Records:
        """Nothing is left over, but a header must have been there."""
        if self.columns is None:
            raise TraceError(self.path, "line 1", f"expected a header of {','.join(FIELDS)}")
        return np.zeros(0, RECORD)
