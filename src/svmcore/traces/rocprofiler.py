"""rocprofiler-sdk JSON: KFD page faults, migrations, queue and unmap events, old and new form.

Old (up to about 0.6): ``buffer_records.page_migration``. New: ``kfd_*_records``
of paired and ``kfd_*_events`` of single events. The file is one JSON text of any
size; the arrays named so are read element by element wherever they stand, the
rest is passed over, and only its brackets and strings are checked.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import TraceError
from ..records import RECORD, Access
from ._objects import ABSENT, ObjectForm
from .base import CHUNK, Records, Summary, Trace, TraceKind, check_records, register
from .kfd_rows import (
    Agents,
    KfdRows,
    NotARecordError,
    are_spans,
    faults,
    migrations,
    or_else,
    times,
    unmaps,
)
from .opening import BLOCK_BYTES, LINE_LIMIT, Source

__all__ = ["RocprofilerTrace"]

_KEY = r'"(page_migration|kfd_[a-z_]{1,40}_(?:records|events)|agents)"'
#: Arrays that are read: those of events, and that which tells what an agent is.
_ARRAY = re.compile(_KEY + r"\s*:\s*\[")
#: What the next piece may make the beginning of such an array, and the rest of a key.
_PERHAPS = re.compile(_KEY + r"[\s:]*\Z")
_LONGEST_KEY = 64
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_SPACE = re.compile(r"[\s,]*")
_OLD, _AGENTS = "page_migration", "agents"
#: Note for a number of single events.
SINGLE_NOTE = "single events, halves of the paired records, were not read: {:,}"

#: Columns of an element of the new form that is read by compiled code.
_FORM = ObjectForm(
    {
        b"start_timestamp": 0,
        b"timestamp": 0,
        b"end_timestamp": 1,
        b"operation": 2,
        b"agent_id": 3,
        b"address": 4,
        b"start_address": 5,
        b"end_address": 6,
        b"src_agent": 7,
        b"dst_agent": 8,
        b"error_code": 9,
        b"trigger": 10,
    },
    wrapped=b"handle",
)
#: Elements that are read so at a time.
_BATCH = 4096

_Ints = npt.NDArray[np.int64]


@register
class RocprofilerTrace(Trace):
    """KFD events of rocprofiler-sdk, old and new JSON.

    Records are those of :class:`.kfd_smi.KfdSmiTrace` in the order of the file,
    one array after the other; a paired fault gives FAULT with its duration and
    FAULT_END, a paired queue event QUEUE_EVICT and QUEUE_RESTORE. The paired
    ``kfd_*_records`` are read; of the ``kfd_*_events`` only unmaps and dropped
    events, which have no pairs. Single fault, migration and queue events are the
    halves of the pairs: they count as unknown, with a note.

    ``summary.counts``: ``single_events``, ``inclusive_ends`` (an end on a page's
    last byte, as older versions print for migrations), ``clock_back``,
    ``restored``, ``rescheduled``, ``dropped_events``.

    Source
    ------
    Format (d) of the trace notes: rocprofiler-sdk's ``kfd/kfd_id.h``. Agents are
    topology nodes; where the file's list ``agents`` comes before the records it
    says which of them are GPUs.
    """

    format = "rocprofiler-json"
    description = "rocprofiler-sdk JSON: KFD page faults, migrations, queue events"
    beyond_records = ("prefetch and preferred locations", "process ids")

    @property
    def kind(self) -> TraceKind:
        """Always ``"fault"``."""
        return "fault"

    @classmethod
    def sniff(cls, head: bytes) -> float:
        """Sure by the names of the arrays; less by the name of the tool."""
        text = head.removeprefix(codecs.BOM_UTF8).lstrip()
        if not text.startswith((b"{", b"[")):
            return 0.0
        if re.search(rb'"(?:page_migration|kfd_[a-z_]+_(?:records|events))"\s*:\s*\[', text):
            return 1.0
        return 0.7 if b'"rocprofiler-sdk' in text or b'"buffer_records"' in text else 0.0

    def _arrays(self, source: Source, summary: Summary) -> Iterator[Records]:
        rows = KfdRows(summary)
        places: list[tuple[str, int]] = []
        back = 0
        for element in _Elements(self.path, source):
            if isinstance(element, _Columns):
                records = _add_columns(rows, element)
                if records is not None:
                    element.taken = True
                    summary.lines += element.values.shape[1]
                    back = summary.counts.get("clock_back", 0)
                    if places:
                        yield self._checked(rows.take(), places)
                    yield records
                continue
            if element.array == _AGENTS:
                _describe(rows.agents, element.value)
                continue
            summary.lines += 1
            before = len(rows.rows)
            try:
                known = _add(rows, element)
            except NotARecordError as error:
                raise TraceError(self.path, element.place, str(error)) from None
            if not known:
                summary.unknown += 1
            elif summary.counts.get("clock_back", 0) > back:
                summary.repaired += 1
            else:
                summary.read += 1
            back = summary.counts.get("clock_back", 0)
            places += [element[:2]] * (len(rows.rows) - before)
            if len(places) >= CHUNK:
                yield self._checked(rows.take(), places)
        if places:
            yield self._checked(rows.take(), places)
        if single := summary.counts.get("single_events"):
            summary.notes.append(SINGLE_NOTE.format(single))

    def _checked(self, records: Records, places: list[tuple[str, int]]) -> Records:
        check_records(records, self.path, lambda i: "{}[{}]".format(*places[i]))
        places.clear()
        return records


class _Element(NamedTuple):
    """One element of an array that is read."""

    array: str
    number: int
    value: Any

    @property
    def place(self) -> str:
        """Where it stands, for errors."""
        return f"{self.array}[{self.number}]"


class _Columns:
    """Some elements by columns of ``_FORM``; whoever reads them so says that they are taken."""

    def __init__(self, array: str, values: _Ints) -> None:
        self.array = array
        self.values = values
        self.taken = False


class _Elements:
    """The elements of the arrays that are read, in order, in bounded memory.

    Elements that are plain come as columns first, and again one by one where nobody took them.

    Invariant: text before ``at`` is done with; ``depth`` brackets are open before
    it, outside of the array that is read at the time.
    """

    def __init__(self, path: str, source: Source) -> None:
        self.path = path
        self.source = source
        self.decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self.scan = json.JSONDecoder().raw_decode
        self.values = np.empty((_FORM.columns, _BATCH), "<i8")
        self.text = ""
        self.at = 0
        self.done = 0
        self.depth = 0
        self.ended = False

    def _more(self) -> bool:
        """Another piece of text behind that which is not done; False at the end."""
        if self.ended:
            return False
        data = self.source.read(BLOCK_BYTES)
        self.ended = len(data) < BLOCK_BYTES
        try:
            more = self.decode(data, self.ended)
        except UnicodeDecodeError as error:
            raise self._error(f"{error.reason}: expected UTF-8") from None
        self.done += self.at
        self.text = self.text[self.at :] + more
        self.at = 0
        return True

    def _error(self, reason: str) -> TraceError:
        return TraceError(self.path, f"character {self.done + self.at}", reason)

    def __iter__(self) -> Iterator[_Element | _Columns]:
        numbers: dict[str, int] = {}
        found = False
        self._more()
        if not self.text.lstrip().startswith(("{", "[")):
            raise self._error("does not begin as one does: expected JSON")
        while True:
            match = _ARRAY.search(self.text, self.at)
            if match is None:
                self._pass(len(self.text) if self.ended else self._settled())
                if not self._more():
                    break
                continue
            self._pass(match.start(), exact=True)
            self.at = match.end()
            found = found or match[1] != _AGENTS
            for value in self._array(match[1]):
                number = numbers.get(match[1], 0)
                if isinstance(value, _Columns):
                    yield value
                    numbers[match[1]] = number + value.taken * value.values.shape[1]
                else:
                    numbers[match[1]] = number + 1
                    yield _Element(match[1], number, value)
        if self.depth or self.text[self.at :].strip():
            raise self._error("the file ends: expected whole JSON")
        if not found:
            raise self._error(f"no array of KFD events: expected {_OLD} or kfd_*_records")

    def _settled(self) -> int:
        """End of the text in which no array begins whatever follows."""
        match = _PERHAPS.search(self.text, self.at)
        return match.start() if match else len(self.text) - _LONGEST_KEY

    def _pass(self, end: int, *, exact: bool = False) -> None:
        """Pass over text up to *end* or a little less, counting brackets outside of strings."""
        if end <= self.at:
            return
        piece = self.text[self.at : end]
        parts = _ESCAPE.sub("", piece).split('"')
        if len(parts) % 2 == 0:
            if exact:
                raise self._error("a string that does not end: expected JSON")
            # Up to the string that is cut off here.
            end = self.at + _last_quote(piece)
            parts.pop()
        if not exact and len(self.text) - end > LINE_LIMIT:
            raise self._error(f"more than {LINE_LIMIT} characters of one string: expected JSON")
        plain = "".join(parts[::2])
        self.depth += sum(map(plain.count, "{[")) - sum(map(plain.count, "}]"))
        self.at = end
        if self.depth < 0:
            raise self._error("a bracket closes that none opened: expected JSON")

    def _columns(self, name: str) -> tuple[int, int]:
        """Plain elements from here on into ``values``: how many, and the place behind them."""
        if name in (_OLD, _AGENTS) or "queue" in name or "drop" in name:
            return 0, self.at
        return _FORM.scan(self.text, self.at, self.values)

    def _array(self, name: str) -> Iterator[Any]:
        """Values of the array that begins here."""
        singly = 0
        while True:
            if not singly:
                count, behind = self._columns(name)
                if count:
                    columns = _Columns(name, self.values[:, :count])
                    yield columns
                    if columns.taken:
                        self.at = behind
                        continue
                    singly = count
            singly = max(0, singly - 1)
            space = _SPACE.match(self.text, self.at)
            self.at = space.end() if space else self.at
            if self.text.startswith("]", self.at):
                self.at += 1
                return
            try:
                value, end = self.scan(self.text, self.at)
                # A number may go on in the next piece.
                if end == len(self.text) and not self.ended:
                    raise json.JSONDecodeError("cut off", self.text, end)
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or len(self.text) - self.at > LINE_LIMIT:
                    raise self._error(f"{name}: expected elements of JSON") from None
                if self._more():
                    continue
                raise self._error(f"{name}: {error}: expected whole JSON") from None
            self.at = end
            yield value


def _last_quote(text: str) -> int:
    """Place of the last quote with an even number of backslashes before it."""
    at = text.rfind('"')
    while at > 0:
        escapes = at
        while escapes and text[escapes - 1] == "\\":
            escapes -= 1
        if (at - escapes) % 2 == 0:
            break
        at = text.rfind('"', 0, at)
    return at


def _describe(agents: Agents, value: Any) -> None:
    """An element of the list of agents; what is something else says nothing."""
    if not isinstance(value, dict):
        return
    node, kind = value.get("node_id"), value.get("type")
    if type(node) is not int or kind not in (1, 2, "CPU", "GPU"):
        return
    agents.describe(node, kind in (2, "GPU"))
    handle = value.get("id")
    if isinstance(handle, dict) and type(handle.get("handle")) is int:
        agents.alias(handle["handle"], node)


def _number(table: dict[str, Any], *names: str, otherwise: int | None = None) -> int:
    """The integer under the first of *names* that is there."""
    for name in names:
        value = table.get(name)
        if isinstance(value, dict):  # an agent's handle
            value = value.get("handle")
        if type(value) is int:
            return value
        if value is not None:
            raise NotARecordError(f"{name} {value!r:.60}: expected an integer")
    if otherwise is None:
        raise NotARecordError(f"no {' or '.join(names)}: expected an integer")
    return otherwise


def _trigger(value: int) -> int:
    if not 0 <= value < 256:
        raise NotARecordError(f"trigger {value}: expected 0 to 255")
    return value


def _add(rows: KfdRows, element: _Element) -> bool:
    """Rows of one element; False where it is of no kind that is read."""
    table, name = element.value, element.array
    if not isinstance(table, dict):
        raise NotARecordError(f"{table!r:.60}: expected an object")
    begin = _number(table, "start_timestamp", "timestamp")
    when = rows.times(begin, _number(table, "end_timestamp", otherwise=0))
    if name == _OLD:
        return _add_old(rows, table, when)
    if name.endswith("_events") and "unmap" not in name and "drop" not in name:
        rows.summary.add("single_events")
        return False
    if "migrate" in name:
        rows.migrate(
            when,
            rows.span(_number(table, "start_address"), _number(table, "end_address")),
            (_number(table, "src_agent"), _number(table, "dst_agent")),
            _trigger(_number(table, "operation")),
            _number(table, "error_code", otherwise=0),
        )
    elif "fault" in name:
        operation = _number(table, "operation")
        if not 0 <= operation < 4:
            raise NotARecordError(f"operation {operation}: expected 0 to 3")
        access = Access.WRITE if operation & 2 else Access.READ
        agent = _number(table, "agent_id")
        rows.fault(when, _number(table, "address"), agent, access, migrated=not operation & 1)
    elif "queue" in name:
        agent = _number(table, "agent_id")
        rows.queue(when, agent, _trigger(_number(table, "operation", otherwise=0)), put_off=False)
    elif "unmap" in name:
        span = rows.span(_number(table, "start_address"), _number(table, "end_address"))
        trigger = _trigger(_number(table, "operation", "trigger", otherwise=0))
        rows.unmap(when[0], span, _number(table, "agent_id"), trigger)
    elif "drop" in name:
        rows.dropped(when[0], _number(table, "count"))
    else:
        return False
    return True


def _add_columns(rows: KfdRows, given: _Columns) -> Records | None:
    """Records of elements as :func:`_add` makes them; None, and no change, where one is odd."""
    name, agents = given.array, rows.agents
    begin, end, operation, agent, address, start, stop, source, target, error, other = given.values
    when = times(begin, or_else(end, 0))
    if when is None:
        return None
    if name.endswith("_events") and "unmap" not in name and "drop" not in name:
        if when.back:
            return None
        rows.summary.add("single_events", len(begin))
        rows.summary.unknown += len(begin)
        return np.zeros(0, RECORD)
    if "migrate" in name:
        both = np.concatenate([source, target])
        if both.min() == ABSENT or not agents.have_room(both) or not _are_triggers(operation):
            return None
        if not are_spans(start, stop).all():
            return None
        ends = source, target
        return migrations(rows, when, (start, stop), ends, operation, or_else(error, 0))
    if agent.min() == ABSENT or not agents.have_room(agent):
        return None
    if "fault" in name:
        if int(operation.min()) < 0 or int(operation.max()) > 3 or int(address.min()) < 0:
            return None
        access = np.where(operation & 2, int(Access.WRITE), int(Access.READ)).astype("u1")
        return faults(rows, when, address, agent, access, (1 - (operation & 1)).astype("i1"))
    if "unmap" in name:
        operation = or_else(operation, 0)
        if other.max() != ABSENT or not _are_triggers(operation):
            return None
        if not are_spans(start, stop).all():
            return None
        return unmaps(rows, when, (start, stop), agent, operation)
    return None


def _are_triggers(values: _Ints) -> bool:
    return int(values.min()) >= 0 and int(values.max()) < 256


def _add_old(rows: KfdRows, table: dict[str, Any], when: tuple[int, int]) -> bool:
    """Rows of an element of ``page_migration``; by its one part that is an object."""
    if isinstance(part := table.get("page_fault"), dict):
        access = Access.READ if part.get("read_fault") else Access.WRITE
        agent, migrated = _number(part, "node_id"), bool(part.get("migrated"))
        rows.fault(when, _number(part, "address"), agent, access, migrated)
    elif isinstance(part := table.get("page_migrate"), dict):
        rows.migrate(
            when,
            rows.span(_number(part, "start_addr"), _number(part, "end_addr")),
            (_number(part, "from_node"), _number(part, "to_node")),
            _trigger(_number(part, "trigger")),
            None,
        )
    elif isinstance(part := table.get("queue_suspend"), dict):
        put_off = bool(part.get("rescheduled"))
        rows.queue(when, _number(part, "node_id"), _trigger(_number(part, "trigger")), put_off)
    elif isinstance(part := table.get("unmap_from_gpu"), dict):
        span = rows.span(_number(part, "start_addr"), _number(part, "end_addr"))
        rows.unmap(when[0], span, _number(part, "node_id"), _trigger(_number(part, "trigger")))
    else:
        return False
    return True
