"""Page faults of the CPU as ``perf script`` prints them.

``perf record -e page-faults -c 1 -d`` with ``perf script -F
comm,pid,tid,time,event,addr,ip``, or the tracepoints
``exceptions:page_fault_user`` and ``exceptions:page_fault_kernel``.
"""

from __future__ import annotations

import abc
import re
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import CPU, RECORD, UNKNOWN, Access, Kind
from ..units import PAGE_MASK, PAGE_SIZE
from ._text import DEC, GAP, HEX, TEXT, LineForm
from .base import Records, Summary, TextTrace, TraceKind, head_lines, register, share, shown
from .opening import Block

__all__ = [
    "FAST_PAYLOAD",
    "LONGEST_NAME",
    "MIGRATED",
    "PAYLOAD",
    "TIME",
    "CpuFaultTrace",
    "FastForm",
    "FaultParser",
    "PerfScriptTrace",
]

# Whatever compiled code reads below, these read as well.
#: One of them is in every line that counts for recognition.
_WORDS = (b"fault", b"mm_migrate_pages")
#: Payload of the tracepoints; the address may be printed as a symbol.
PAYLOAD = (
    rb"address=(?:0x([0-9a-fA-F]{1,16})|([^ ]*)) ip=[^ ]*"
    rb" error_code=0x0{0,8}([0-9a-fA-F]{1,8})[ \t]*"
)
#: Totals of the migration tracepoint; what follows differs by kernel.
MIGRATED = rb"nr_succeeded=([0-9]{1,18}) nr_failed=([0-9]{1,18})(?: .*)?"
#: Seconds with a fraction, and the colon.
TIME = rb"0{0,9}([0-9]{1,10})\.([0-9]{1,9}):[ \t]+"
#: Characters of a task's name at most; the kernel keeps 15.
LONGEST_NAME = 32
_HEAD = (
    rb"[ \t]*(?:[^ \t].{0,31}?[ \t]+)?[0-9]{1,19}(?:/[0-9]{1,19})?[ \t]*"
    rb"(?:\[[0-9]{1,19}\][ \t]*|(?<=[ \t]))"
) + TIME
_COUNT = rb"(?:[0-9]{1,19}[ \t]+)?"
_FAULT = re.compile(
    _HEAD
    + _COUNT
    + rb"(?:page-faults|faults|minor-faults|major-faults)(?::[a-zA-Z]+)?:[ \t]*"
    + rb"([0-9a-fA-F]{1,16})(?:[ \t].*)?"
)
_TRACEPOINT = re.compile(
    _HEAD + _COUNT + rb"exceptions:page_fault_(?:user|kernel):[ \t]+" + PAYLOAD
)
_MIGRATE = re.compile(_HEAD + _COUNT + rb"migrate:mm_migrate_pages:[ \t]+" + MIGRATED)
_LOST = re.compile(_HEAD + rb"PERF_RECORD_LOST(?:_SAMPLES)? lost ([0-9]{1,9})")
#: Other events; one of the names above is a line of ours that is damaged.
_OTHER = re.compile(
    _HEAD
    + _COUNT
    + rb"(?!(?:page-|minor-|major-)?faults\b|exceptions:page_fault|migrate:mm_migrate_pages|PERF_)"
    + rb"[a-zA-Z][-a-zA-Z0-9_:]*:(?:[ \t].*)?"
)
#: What follows an address in the tracepoints, and the end of the line.
FAST_PAYLOAD = (b" ip=", TEXT, b" error_code=0x", HEX)
#: Bits of a page fault's error code.
_WRITE = 2
_NS = 1_000_000_000
#: Seconds from here on and codes from here on are not read, as by the patterns above.
_SECONDS, _CODES = 10**10, 1 << 32
_EXPECTED = "'COMM PID/TID TIME: page-faults: ADDR IP' or 'exceptions:page_fault_user: ...'"

_Words = npt.NDArray[np.uint64]
_Row = tuple[int, int, int, int, int, int, int, int, int]


class FastForm(NamedTuple):
    """A form of fault lines that compiled code reads, and the columns of its numbers.

    Column 0 is the task's name.
    """

    form: LineForm
    seconds: int
    fraction: int
    address: int
    code: int | None


_FAST_HEAD = (GAP, TEXT, b" ", GAP, DEC)
_FAST = (
    FastForm(
        LineForm(
            *(*_FAST_HEAD, b"/", DEC, GAP, DEC, b".", TEXT, b": page-faults:"),
            *(GAP, HEX, b" ", TEXT),
            blanks=True,
        ),
        *(3, 4, 5, None),
    ),
    FastForm(
        LineForm(
            *(*_FAST_HEAD, GAP, b"[", DEC, b"]", GAP, DEC, b".", TEXT),
            *(b": exceptions:page_fault_", {b"user": 0, b"kernel": 1}, b": address=0x", HEX),
            *FAST_PAYLOAD,
            blanks=True,
        ),
        *(3, 4, 6, 8),
    ),
)


def _nanoseconds(data: bytes, texts: _Words) -> _Words | None:
    """Fractions of a second, given as ``offset << 32 | length``; None where they differ in form."""
    length = int(texts[0]) & 0xFFFFFFFF
    if not 0 < length <= 9 or ((texts & np.uint64(0xFFFFFFFF)) != length).any():
        return None
    first = (texts >> np.uint64(32)).astype(np.int64)
    total = np.zeros(len(texts), "<u8")
    content = np.frombuffer(data, "u1")
    for place in range(length):
        digit = content[first + place] - np.uint8(ord("0"))
        if (digit > 9).any():
            return None
        total = total * np.uint64(10) + digit
    return total * np.uint64(10 ** (9 - length))


class FaultParser(abc.ABC):
    """One pass over text with page faults of the CPU, in any of its forms.

    Parameters
    ----------
    path : str
        The file, for errors.
    summary : Summary
        Counts of the pass.

    Attributes
    ----------
    last : int
        Time of the last event, ns; 0 before the first.
    """

    #: Forms of blocks that compiled code reads.
    forms: ClassVar[tuple[FastForm, ...]]
    #: What a line should be, for errors.
    expected: ClassVar[str]

    def __init__(self, path: str, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self.rows: list[_Row] = []
        self.last = 0

    @abc.abstractmethod
    def line(self, text: bytes) -> bool:
        """Add what a line tells and count it; False where it is none of this format."""

    def feed(self, block: Block) -> Records:
        """Records of a block."""
        for form in self.forms:
            records = self._fast(block, form)
            if records is not None:
                return records
        for number, line in block.numbered():
            if not self.line(line.rstrip()):
                raise TraceError(
                    self.path, f"line {number}", f"{shown(line)}: expected {self.expected}"
                )
        rows, self.rows = self.rows, []
        return np.array(rows, RECORD)

    def _fast(self, block: Block, kind: FastForm) -> Records | None:
        """Records of a block in which every line has one form; None where one has not."""
        columns = np.empty((kind.form.columns, block.lines), "<u8")
        rows, _ = kind.form.scan(block.data, 0, columns)
        if rows < block.lines:
            return None
        names = columns[0] & np.uint64(0xFFFFFFFF)
        if not 0 < int(names.min()) <= int(names.max()) <= LONGEST_NAME:
            return None
        seconds = columns[kind.seconds]
        times = _nanoseconds(block.data, columns[kind.fraction])
        if times is None or int(seconds.max()) >= _SECONDS:
            return None
        out = np.zeros(rows, RECORD)
        out["access"] = Access.UNKNOWN
        if kind.code is not None:
            code = columns[kind.code]
            if int(code.max()) >= _CODES:
                return None
            out["value"] = code
            out["access"] = np.where(code & np.uint64(_WRITE), int(Access.WRITE), int(Access.READ))
        times += seconds * np.uint64(_NS)
        back = int(np.count_nonzero(times[1:] < times[:-1])) + (int(times[0]) < self.last)
        if back:
            self.summary.add("times_back", back)
        self.last = int(times[-1])
        out["t_ns"], out["size"] = times, PAGE_SIZE
        out["addr"] = columns[kind.address] & np.uint64(~PAGE_MASK & (1 << 64) - 1)
        out["kind"], out["proc"], out["peer"] = Kind.FAULT, CPU, UNKNOWN
        self.summary.read += rows
        return out

    def time(self, seconds: bytes, fraction: bytes) -> int:
        """Time in ns of ``seconds.fraction``; counts times that go back."""
        t_ns = int(seconds) * _NS + int(fraction.ljust(9, b"0"))
        if t_ns < self.last:
            self.summary.add("times_back")
        self.last = t_ns
        return t_ns

    def fault(self, t_ns: int, addr: int, value: int, access: Access) -> None:
        """One fault of the page that holds *addr*."""
        self.summary.read += 1
        page = addr & ~PAGE_MASK
        self.rows.append((t_ns, page, PAGE_SIZE, 0, value, Kind.FAULT, CPU, access, UNKNOWN))

    def tracepoint(
        self, t_ns: int, address: bytes | None, symbol: bytes | None, code: bytes
    ) -> None:
        """One event of the exceptions tracepoints; without a number it has no address."""
        if address is None:
            self.summary.refused += 1
            self.summary.add("symbol_addresses")
            return
        error = int(code, 16)
        access = Access.WRITE if error & _WRITE else Access.READ
        self.fault(t_ns, int(address, 16), error, access)

    def migrated(self, t_ns: int, succeeded: bytes, failed: bytes) -> None:
        """Totals of one migration call: a record without an address."""
        self.summary.read += 1
        self.summary.add("pages_migrated", int(succeeded))
        self.summary.add("pages_not_migrated", int(failed))
        self.plain(t_ns, Kind.OTHER, min(int(succeeded), 0xFFFFFFFF))

    def lost(self, t_ns: int, count: int) -> None:
        """Events that the recorder dropped."""
        self.summary.read += 1
        self.plain(t_ns, Kind.DROPPED, min(count, 0xFFFFFFFF))

    def plain(self, t_ns: int, kind: Kind, value: int) -> None:
        """A record without a span."""
        self.rows.append((t_ns, 0, 0, 0, value, kind, UNKNOWN, Access.UNKNOWN, UNKNOWN))

    def end(self) -> Records:
        """Notes faults that could not be placed; no record is left over."""
        if lost := self.summary.counts.get("symbol_addresses"):
            self.summary.notes.append(
                f"{lost:,} fault{'s' * (lost != 1)} with a symbol for an address left out: "
                "record with the raw address (perf script -F -sym, or ftrace option nosym-addr)"
            )
        return np.zeros(0, RECORD)


class CpuFaultTrace(TextTrace):
    """Text with page faults of the CPU, in any of its forms."""

    beyond_records = (
        "task names",
        "process and thread ids",
        "instruction addresses",
        "bytes inside a page",
    )

    #: Patterns of lines and what each tells for recognition.
    weights: ClassVar[tuple[tuple[re.Pattern[bytes], float], ...]]

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Share of page faults; other events count little."""
        if not any(word in head for word in _WORDS):
            return 0.0  # the patterns cost time
        return share(head_lines(head), *cls.weights)


@register
class PerfScriptTrace(CpuFaultTrace):
    """Page faults of the CPU.

    Records are of kind FAULT by the CPU, one page, the page of the byte address.
    ``page-faults`` and its relatives do not say read or write: UNKNOWN. The
    tracepoints do: WRITE by bit 1 of the error code, else READ, an instruction
    fetch too; ``value`` is the error code. ``migrate:mm_migrate_pages`` gives
    totals without an address: OTHER, ``value`` the pages migrated. Lost events
    are DROPPED. Other events are unknown.

    A fault whose address is printed as a symbol cannot be placed: it is refused,
    counted and noted.

    ``summary.counts``: ``symbol_addresses``, ``pages_migrated``,
    ``pages_not_migrated``, ``times_back``, ``dropped_events``.

    Source
    ------
    Format (g) of the trace notes (kernel 6.1).
    """

    format = "perf-script"
    description = "page faults of the CPU as perf script prints them"

    weights = (
        (_FAULT, 0.95),
        (_TRACEPOINT, 0.95),
        (_MIGRATE, 0.9),
        (_LOST, 0.3),
        (_OTHER, 0.1),
    )

    def _parser(self, summary: Summary) -> _Parser:
        return _Parser(self.path, summary)


class _Parser(FaultParser):
    """One pass."""

    forms = _FAST
    expected = _EXPECTED

    def line(self, text: bytes) -> bool:
        """One line."""
        if match := _FAULT.fullmatch(text):
            seconds, fraction, address = match.groups()
            self.fault(self.time(seconds, fraction), int(address, 16), 0, Access.UNKNOWN)
        elif match := _TRACEPOINT.fullmatch(text):
            seconds, fraction, *rest = match.groups()
            self.tracepoint(self.time(seconds, fraction), *rest)
        elif match := _MIGRATE.fullmatch(text):
            seconds, fraction, *rest = match.groups()
            self.migrated(self.time(seconds, fraction), *rest)
        elif match := _LOST.fullmatch(text):
            self.lost(self.time(match[1], match[2]), int(match[3]))
        elif not text or text.startswith(b"#"):
            self.summary.comments += 1
        elif _OTHER.fullmatch(text):
            self.summary.unknown += 1
        else:
            return False
        return True
