"""Cache traces of libCacheSim: the csv of block traces, oracleGeneral, oracleGeneralOpNS.

Requests to objects are touches of memory here: an object is so many bytes at an
address that its number gives. Nothing names a processor.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_SHIFT
from .base import (
    Records,
    Summary,
    TextTrace,
    TraceKind,
    check_spans,
    register,
    shown,
    table_rows,
    words,
)
from .fixed import LAST_FIELDS, Entries, FixedTrace, last_fields
from .opening import Block

__all__ = ["LibCacheSimCsvTrace", "OracleGeneralOpNsTrace", "OracleGeneralTrace"]

_HEADER = b"version,time,op,size,lbn"
_ROW = re.compile(rb"^([0-9]+),([0-9]+),([0-9a-fA-F]{1,2}),([0-9]+),([0-9]+)\r?$", re.MULTILINE)
#: Bytes of a logical block of a block trace.
_SECTOR = 512
#: SCSI operation codes that read and write, of 6, 10, 12 and 16 bytes.
_SCSI = dict.fromkeys((0x08, 0x28, 0xA8, 0x88), int(Access.READ)) | dict.fromkeys(
    (0x0A, 0x2A, 0xAA, 0x8A), int(Access.WRITE)
)
_OPERATIONS = {b"%02x" % code: access for code, access in _SCSI.items()}
_NS = 1_000_000_000
#: Object numbers from here on do not fit as page numbers.
_PAGES = ADDRESS_LIMIT >> PAGE_SHIFT
#: No trace has so many requests; a larger index means that the bytes are something else.
_REQUESTS = 1 << 48
_NEVER = (1 << 63) - 1


@register
class LibCacheSimCsvTrace(TextTrace):
    """Block requests, ``version,time,op,size,lbn``.

    Records are of kind ACCESS. The address is ``lbn`` times 512 bytes, ``value``
    the operation code: 28 and its longer forms are READ, 2a and its longer forms
    WRITE, others UNKNOWN. The file does not say the unit of its time: ``t_ns``
    is the number as it stands.

    ``summary.counts``: ``times_back``, requests earlier than the one before them.

    Source
    ------
    Format (i) of the trace notes; operation codes of SCSI block commands.
    """

    format = "libcachesim-csv"
    description = "libCacheSim block requests, version,time,op,size,lbn"
    beyond_records = ("versions",)

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the header line."""
        line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].rstrip(b"\r")
        return 1.0 if line == _HEADER else 0.0

    def _parser(self, summary: Summary) -> _CsvParser:
        return _CsvParser(self.path, summary)


class _CsvParser:
    """One pass."""

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self.headed = False
        self.clock = _Clock(summary)

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        if not self.headed:
            line, _, rest = block.data.partition(b"\n")
            if line.rstrip(b"\r") != _HEADER:
                raise TraceError(
                    self.path,
                    f"line {block.first}",
                    f"{shown(line)}: expected the header {_HEADER.decode()}",
                )
            self.headed = True
            self.summary.metadata += 1
            block = Block(block.first + 1, rest, block.lines - 1, block.cut)
        rows, numbers = table_rows(block, _ROW, self.path, self.summary, _HEADER.decode())
        out = np.zeros(len(rows), RECORD)
        if rows:
            _, time, op, size, lbn = zip(*rows, strict=True)
            out["t_ns"] = words(time, numbers, self.path, "time")
            sectors = words(lbn, numbers, self.path, "lbn")
            if int(sectors.max()) >= ADDRESS_LIMIT // _SECTOR:
                at = int(sectors.argmax())
                raise TraceError(
                    self.path,
                    f"line {numbers[at]}",
                    f"lbn {sectors[at]}: expected at most {ADDRESS_LIMIT // _SECTOR - 1}",
                )
            out["addr"] = sectors * np.uint64(_SECTOR)
            out["size"] = words(size, numbers, self.path, "size")
            check_spans(out["addr"], out["size"], numbers, self.path)
            out["value"] = [int(text, 16) for text in op]
            out["access"] = [
                _OPERATIONS.get(text.lower().zfill(2), int(Access.UNKNOWN)) for text in op
            ]
            self.clock.follow(out["t_ns"])
        out["kind"] = Kind.ACCESS
        out["proc"] = out["peer"] = UNKNOWN
        self.summary.read += len(rows)
        return out

    def end(self) -> Records:
        """A header must have been there."""
        if not self.headed:
            raise TraceError(self.path, "line 1", f"expected the header {_HEADER.decode()}")
        return np.zeros(0, RECORD)


class _Clock:
    """Counts times that go back."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.last = 0

    def follow(self, times: npt.NDArray[Any]) -> None:
        """Times in file order, at least one."""
        back = int(np.count_nonzero(times[1:] < times[:-1])) + (int(times[0]) < self.last)
        if back:
            self.summary.add("times_back", back)
        self.last = int(times[-1])


class _OracleTrace(FixedTrace):
    """The packed formats: the same but for what stands before the last field."""

    beyond_records = ("next requests",)

    @property
    def kind(self) -> TraceKind:
        """Always ``"access"``."""
        return "access"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure where indices of next requests lead to the same object within the first bytes."""
        entries = np.frombuffer(head, cls.entry, len(head) // cls.entry.itemsize)
        if not len(entries):
            return 0.0
        obj, later = entries["id"], entries["next"]
        here = np.arange(1, len(entries) + 1)
        ends = (later == -1) | (later == _NEVER)
        if not ((later > 0) & (later < _REQUESTS) | ends).all():
            return 0.0
        for target in (later, later + here):  # an index, or a distance
            inside = np.flatnonzero(~ends & (later < len(entries)) & (target <= len(entries)))
            if len(inside) and np.array_equal(obj[target[inside] - 1], obj[inside]):
                return 0.95
        time = entries["time"]
        weak = bool((ends | (later > here)).all() and (time[1:] >= time[:-1]).all())
        return 0.3 if weak and len(np.unique(obj)) > 1 else 0.0

    def _decoder(self, summary: Summary) -> _OracleDecoder:
        return _OracleDecoder(self.path, summary, "op" in (self.entry.names or ()))


@register
class OracleGeneralTrace(_OracleTrace):
    """Requests to objects, 24 bytes each: time in s, object, size, next request.

    Records are of kind ACCESS, ``access`` UNKNOWN. An object is bytes from the
    4 KiB page of its number: 4096 times the object number is the address. A
    number of 52 bits or more, a hash mostly, is cut to its low 52 bits
    (``folded_ids``); a size of 0 becomes 1 (``zero_sizes``); both count as
    repaired.

    ``summary.counts``: ``last_requests`` (no next request: as many as there are
    objects), ``folded_ids``, ``zero_sizes``, ``times_back``, ``other_next``.

    Source
    ------
    Format (i) of the trace notes: the last field is the index, counted from 1,
    of the next request to the object, -1 where there is none. The FAQ of
    libCacheSim calls it a distance; indices that are not of a later request are
    counted (``other_next``) and noted. Replay does not use the field.
    """

    format = "oracle-general"
    description = "libCacheSim oracleGeneral, 24 bytes a request"
    entry: ClassVar[np.dtype[Any]] = np.dtype(
        [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")]
    )


@register
class OracleGeneralOpNsTrace(_OracleTrace):
    """As :class:`OracleGeneralTrace` with operation and namespace, 27 bytes each.

    ``value`` is the operation in bits 0..7 and the namespace in bits 8..23; the
    access stays UNKNOWN, as the notes do not give the operations' numbers.

    Source
    ------
    Format (i) of the trace notes, which give the fields and the size; that the
    two stand before the last field shows where the indices of next requests
    lead to the same object, which recognition checks.
    """

    format = "oracle-general-opns"
    description = "libCacheSim oracleGeneralOpNS, 27 bytes a request"
    entry: ClassVar[np.dtype[Any]] = np.dtype(
        [
            ("time", "<u4"),
            ("id", "<u8"),
            ("size", "<u4"),
            ("op", "u1"),
            ("ns", "<u2"),
            ("next", "<i8"),
        ]
    )


class _OracleDecoder:
    """One pass."""

    def __init__(self, path: str, summary: Summary, has_op: bool) -> None:
        self.path = path
        self.summary = summary
        self.has_op = has_op
        self.clock = _Clock(summary)
        self.last = last_fields(kind=Kind.ACCESS, proc=UNKNOWN, access=Access.UNKNOWN, peer=UNKNOWN)

    def feed(self, entries: Entries, first: int) -> Records:
        """Records of entries."""
        later = np.ascontiguousarray(entries["next"])
        self._check_next(later, first)
        obj = np.ascontiguousarray(entries["id"])
        size = entries["size"].astype("<u8")
        broken = np.zeros(0, bool)
        if int(obj.max()) >= _PAGES:
            broken = obj >= _PAGES
            self.summary.add("folded_ids", int(np.count_nonzero(broken)))
            obj &= np.uint64(_PAGES - 1)
        if not int(size.min()):
            zero = size == 0
            self.summary.add("zero_sizes", int(np.count_nonzero(zero)))
            size[zero] = 1
            broken = broken | zero if len(broken) else zero
        repaired = int(np.count_nonzero(broken))
        self.summary.repaired += repaired
        self.summary.read += len(entries) - repaired
        obj <<= np.uint64(PAGE_SHIFT)
        if int(obj.max()) + int(size.max()) > ADDRESS_LIMIT:
            self._check_spans(obj, size, first)
        time = entries["time"].astype("<u8")
        self.clock.follow(time)
        time *= np.uint64(_NS)
        out = np.empty(len(entries), RECORD)
        plain = out.view(LAST_FIELDS)
        plain["t_ns"], plain["addr"], plain["size"], plain["dur_ns"] = time, obj, size, 0
        plain["last"] = self.last
        if self.has_op:
            out["value"] = entries["op"] | entries["ns"].astype("<u4") << np.uint32(8)
        return out

    def _check_spans(
        self, addr: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64], first: int
    ) -> None:
        bad = addr + (size - np.uint64(1)) < addr
        if bad.any():
            at = int(np.argmax(bad))
            raise TraceError(
                self.path,
                f"entry {first + at}",
                f"object {int(addr[at]) >> PAGE_SHIFT}, size {size[at]}: expected an end of at "
                "most 2**64",
            )

    def _check_next(self, later: npt.NDArray[np.int64], first: int) -> None:
        """What next requests say; refuses what is no index at all."""
        ends = (later == -1) | (later == _NEVER)
        ended = int(np.count_nonzero(ends))
        if ended:
            self.summary.add("last_requests", ended)
        wrong = (later < 1) | (later >= _REQUESTS)
        if int(np.count_nonzero(wrong)) != ended:
            at = int(np.argmax(wrong & ~ends))
            raise TraceError(
                self.path,
                f"entry {first + at}",
                f"next request {later[at]}: expected -1 or the number of a request (little-endian)",
            )
        # Entry i is request i + 1.
        earlier = int(np.count_nonzero(later <= np.arange(first + 1, first + len(later) + 1)))
        earlier -= int(np.count_nonzero(later == -1))
        if earlier:
            self.summary.add("other_next", earlier)

    def end(self) -> None:
        """Notes what the next requests are not."""
        if other := self.summary.counts.get("other_next"):
            self.summary.notes.append(
                f"{other:,} indices of next requests are not of a later one: they may be distances"
            )
