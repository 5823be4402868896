"""Binary fault logs of the instrumented nvidia-uvm driver (uvm-eviction, "hpcs").

One byte mode, one byte length, the host's name, then little-endian records: 32 bytes
each in mode 0, words of 64 bits with the record type in the top byte in mode 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import CPU, FATAL_TYPES, RECORD, UNKNOWN, Access, Kind
from ..units import ADDRESS_LIMIT, PAGE_MASK, PAGE_SIZE
from .base import Mapping, Records, Summary, Trace, TraceKind, register, shown
from .fixed import LAST_FIELDS, Entries, decoded, last_fields
from .mappings import named_and_touched
from .opening import Source

__all__ = ["UvmBinaryTrace"]

_FAULT, _PREFETCH, _EVICT, _RANGE = range(4)
_KINDS = (Kind.FAULT, Kind.MIGRATE, Kind.EVICT, Kind.MAP)
#: Access types of the fault buffer.
_ACCESS = (Access.PREFETCH, Access.READ, Access.WRITE, Access.ATOMIC, Access.ATOMIC)
#: The fields of mode 0 that are read; engines, clients and the rest stand between them.
_ENTRY = np.dtype(
    {
        "names": ["addr", "time", "fault", "access", "type"],
        "formats": ["<u8", "<u8", "u1", "u1", "u1"],
        "offsets": [0, 8, 18, 19, 29],
        "itemsize": 32,
    }
)
_WORD = np.dtype([("word", "<u8")])
_TYPE_SHIFT = np.uint64(56)
_ADDRESS = np.uint64((1 << 56) - 1)
_TIMES = 1 << 63
#: The last fields of a record by the type and the access of its entry, 256 of each.
_LAST = np.array(
    [
        last_fields(
            kind=_KINDS[min(kind, _RANGE)],
            proc=CPU if kind == _PREFETCH else UNKNOWN,
            access=_ACCESS[code] if kind == _FAULT and code < len(_ACCESS) else Access.UNKNOWN,
            peer=UNKNOWN,
        )
        for kind in range(256)
        for code in range(256)
    ]
)
#: An access that says nothing, in words that have none.
_NO_ACCESS = np.uint16(255)

_Words = npt.NDArray[np.uint64]


@register
class UvmBinaryTrace(Trace):
    """Faults, prefetched and evicted pages, and address ranges.

    Records as of :class:`.uvm_log.UvmLogTrace`: FAULT of one page, MIGRATE from the
    CPU with trigger 0 for a prefetched page, EVICT; a range is a MAP record. Only
    faults of mode 0 have a time and an access; the others carry the time of the
    fault before them. Pages touched outside the ranges are mappings too. A type
    that is not known counts as unknown.

    Source
    ------
    Format (e) of the trace notes. In mode 0 the timestamp of a range is its length;
    in mode 1 the length is the word behind it.
    """

    format = "uvm-binary"
    description = "binary fault log of the instrumented nvidia-uvm driver, modes 0 and 1"
    beyond_records = (
        "host name",
        "client and engine of each fault, its type where it is not fatal",
    )

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Fairly sure where the name is one and the first records make sense."""
        if len(head) < 2 or head[0] > 1 or not _is_name(head[2 : 2 + head[1]], head[1]):
            return 0.0
        body = head[2 + head[1] :]
        dtype = (_ENTRY, _WORD)[head[0]]
        entries = np.frombuffer(body, dtype, len(body) // dtype.itemsize)
        if not len(entries):
            return 0.0
        if head[0]:
            types, pages = entries["word"] >> _TYPE_SHIFT, entries["word"] & _ADDRESS
        else:
            types, pages = entries["type"], entries["addr"]
        sound = (types <= _RANGE) & (pages & np.uint64(PAGE_MASK) == 0)
        return 0.9 * float(sound.mean())

    def _find_mappings(self) -> list[Mapping]:
        return named_and_touched(self.chunks(), "range")

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        head = source.read(2)
        name = source.read(head[1]) if len(head) == 2 else b""
        if len(head) < 2 or head[0] > 1 or not _is_name(name, head[1]):
            raise TraceError(
                self.path,
                "byte 0",
                f"{shown(head + name)}: expected mode 0 or 1, a length and a host's name",
            )
        if head[0]:
            yield from decoded(self.path, source, _WORD, _WordDecoder(self.path, summary), summary)
        else:
            yield from decoded(self.path, source, _ENTRY, _Decoder(self.path, summary), summary)


def _is_name(name: bytes, length: int) -> bool:
    return 0 < length == len(name) and name.isascii() and name.decode("ascii").isprintable()


class _Decoder:
    """One pass of mode 0.

    Invariant: ``t_ns`` is the time of the last fault, 0 before the first.
    """

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self.t_ns = 0

    def feed(self, entries: Entries, first: int) -> Records:
        """Records of entries."""
        types = np.ascontiguousarray(entries["type"])
        access = np.ascontiguousarray(entries["access"])
        time = np.ascontiguousarray(entries["time"])
        faults = types == _FAULT
        numbers = range(first, first + len(entries))
        self._check(faults & (access >= len(_ACCESS)), numbers, "an access of 0 to 4")
        # Negative where it is too large.
        self._check(faults & (time.view("<i8") < 0), numbers, "a time below 2**63 ns")
        times = time
        if not faults.all():
            last = np.maximum.accumulate(np.where(faults, np.arange(len(entries)), -1))
            times = np.where(last >= 0, time[last], np.uint64(self.t_ns))
        self.t_ns = int(times[-1])
        codes = types.astype("<u2") << np.uint16(8) | access
        out = self._records(codes, np.ascontiguousarray(entries["addr"]), time, times, numbers)
        cause = np.ascontiguousarray(entries["fault"])
        if int(cause.max()) >= FATAL_TYPES[0]:
            known = types <= _RANGE
            fatal = (faults & np.isin(cause, FATAL_TYPES))[known]
            out["peer"][fatal] = cause[known][fatal]
        return out

    def _records(
        self, codes: npt.NDArray[np.uint16], addr: _Words, length: _Words, times: Any, numbers: Any
    ) -> Records:
        """Records of what is known; a range has its own length, all else one page.

        *codes* are types, times 256, and accesses; *numbers* those of the entries.
        """
        out = np.empty(len(codes), RECORD)
        plain = out.view(LAST_FIELDS)
        plain["t_ns"], plain["dur_ns"], plain["size"] = times, 0, PAGE_SIZE
        plain["addr"] = addr & np.uint64(ADDRESS_LIMIT - 1 - PAGE_MASK)
        plain["last"] = _LAST[codes]
        self.summary.read += len(codes)
        types = codes >> np.uint16(8)
        if not len(types) or int(types.max()) < _RANGE:
            return out
        ranges = types == _RANGE
        start, size = addr[ranges], length[ranges]
        wrong = np.zeros(len(codes), bool)
        wrong[ranges] = (size == 0) | (start + (size - np.uint64(1)) < start)
        self._check(wrong, numbers, "a range of 1 byte or more with an end of at most 2**64")
        plain["addr"][ranges], plain["size"][ranges] = start, size
        known = types <= _RANGE
        strange = len(codes) - int(np.count_nonzero(known))
        if not strange:
            return out
        self.summary.unknown += strange
        self.summary.read -= strange
        return out[known]

    def _check(self, wrong: npt.NDArray[np.bool_], numbers: Any, expected: str) -> None:
        if wrong.any():
            raise TraceError(
                self.path,
                f"entry {numbers[int(np.argmax(wrong))]}",
                f"is none: expected {expected} (little-endian)",
            )

    def end(self) -> None:
        """Nothing is left over."""


class _WordDecoder(_Decoder):
    """One pass of mode 1.

    Invariant: ``open`` is a range whose length comes with the next word.
    """

    open: int | None = None

    def feed(self, entries: Entries, first: int) -> Records:
        """Records of words."""
        words = np.ascontiguousarray(entries["word"])
        if self.open is not None:
            words = np.concatenate([np.array([self.open], "<u8"), words])
            first -= 1
            self.open = None
        types = words >> _TYPE_SHIFT
        begins = np.flatnonzero(types == _RANGE)
        if not len(begins):
            return self._words(words, types, words, range(first, first + len(words)))
        begun = np.ones(len(words), bool)
        for at in begins.tolist():
            # A length may look like the beginning of a range.
            if begun[at] and at + 1 < len(words):
                begun[at + 1] = False
            elif begun[at]:
                begun[at] = False
                self.open = int(words[at])
        self.summary.read += int(np.count_nonzero(~begun)) - (self.open is not None)
        # The word behind each; of ranges it is the length.
        length = np.append(words[1:], np.uint64(0))
        numbers = np.flatnonzero(begun) + first
        return self._words(words[begun], types[begun], length[begun], numbers)

    def _words(self, words: _Words, types: _Words, length: _Words, numbers: Any) -> Records:
        codes = types.astype("<u2") << np.uint16(8) | _NO_ACCESS
        # Nothing else tells words of the other byte order.
        odd = (types < _RANGE) & (words & np.uint64(PAGE_MASK) != 0)
        self._check(odd, numbers, "the address of a page")
        return self._records(codes, words & _ADDRESS, length, 0, numbers)

    def end(self) -> None:
        """A range without a length was cut off."""
        if self.open is not None:
            self.summary.refused += 1
            self.summary.notes.append("the last range has no length: it was cut off and left out")
