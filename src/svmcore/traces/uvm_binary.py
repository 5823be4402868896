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
from .fixed import Entries, decoded
from .mappings import named_and_touched
from .opening import Source

__all__ = ["UvmBinaryTrace"]

_FAULT, _PREFETCH, _EVICT, _RANGE = range(4)
_KINDS = np.array([Kind.FAULT, Kind.MIGRATE, Kind.EVICT, Kind.MAP], "u1")
#: Access types of the fault buffer.
_ACCESS = np.array([Access.PREFETCH, Access.READ, Access.WRITE, Access.ATOMIC, Access.ATOMIC], "u1")
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
        types = entries["type"]
        faults = types == _FAULT
        self._check(faults & (entries["access"] >= len(_ACCESS)), first, "access of 0 to 4")
        self._check(faults & (entries["time"] >= _TIMES), first, "time below 2**63 ns")
        last = np.maximum.accumulate(np.where(faults, np.arange(len(entries)), -1))
        times = np.where(last >= 0, entries["time"][np.maximum(last, 0)], np.uint64(self.t_ns))
        self.t_ns = int(times[-1])
        access = np.where(faults, _ACCESS[entries["access"] % len(_ACCESS)], Access.UNKNOWN)
        out = self._records(types, entries["addr"], entries["time"], times, access, first)
        fatal = faults & np.isin(entries["fault"], FATAL_TYPES)
        if fatal.any():
            known = types <= _RANGE
            out["peer"] = np.where(fatal, entries["fault"], UNKNOWN)[known]
        return out

    def _records(
        self,
        types: npt.NDArray[Any],
        addr: _Words,
        length: _Words,
        times: npt.NDArray[Any],
        access: npt.NDArray[Any],
        first: int,
    ) -> Records:
        """Records of what is known; a range has its own length, all else one page."""
        ranges = types == _RANGE
        page = addr & np.uint64(ADDRESS_LIMIT - 1 - PAGE_MASK)
        out = np.zeros(len(types), RECORD)
        out["t_ns"], out["access"] = times, access
        out["addr"] = np.where(ranges, addr, page)
        out["size"] = np.where(ranges, length, PAGE_SIZE)
        wrong = (out["size"] == 0) | (out["addr"] + (out["size"] - np.uint64(1)) < out["addr"])
        self._check(wrong, first, "range of 1 byte or more with an end of at most 2**64")
        out["kind"] = _KINDS[np.minimum(types, _RANGE)]
        out["proc"] = np.where(types == _PREFETCH, CPU, UNKNOWN)
        out["peer"] = UNKNOWN
        known = types <= _RANGE
        strange = len(types) - int(np.count_nonzero(known))
        self.summary.unknown += strange
        self.summary.read += len(types) - strange
        return out[known]

    def _check(self, wrong: npt.NDArray[np.bool_], first: int, expected: str) -> None:
        if wrong.any():
            raise TraceError(
                self.path,
                f"entry {first + int(np.argmax(wrong))}",
                f"is none: expected a {expected} (little-endian)",
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
        begins = np.ones(len(words), bool)
        length = np.zeros(len(words), "<u8")
        found: list[Records] = []
        if self.open is not None:
            begins[0] = False
            one = np.array([self.open], "<u8"), words[:1]
            found.append(self._of(*one, first - 1))
            self.summary.read += 1  # the word of the length
            self.open = None
        for at in np.flatnonzero(words >> _TYPE_SHIFT == _RANGE).tolist():
            if not begins[at]:
                continue
            if at + 1 == len(words):
                begins[at] = False
                self.open = int(words[at])
            else:
                begins[at + 1] = False
                length[at] = words[at + 1]
                self.summary.read += 1
        found.append(self._of(words[begins], length[begins], first))
        return np.concatenate(found)

    def _of(self, words: _Words, length: _Words, first: int) -> Records:
        count = len(words)
        access = np.full(count, Access.UNKNOWN)
        times = np.zeros(count, "<u8")
        types = words >> _TYPE_SHIFT
        return self._records(types, words & _ADDRESS, length, times, access, first)

    def end(self) -> None:
        """A range without a length was cut off."""
        if self.open is not None:
            self.summary.refused += 1
            self.summary.notes.append("the last range has no length: it was cut off and left out")
