"""KFD events of rocprofiler-sdk: JSON, old and new, and rocpd databases."""

import json
import sqlite3
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading import careful, look
from svmcore.errors import InvalidArgumentError, TraceError
from svmcore.records import CPU, UNKNOWN, Access, Kind
from svmcore.traces import open_trace
from svmcore.traces._objects import ABSENT, ObjectForm
from svmcore.traces.kfd_smi import MigrateValue

DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN
BASE, BLOCK = 0x7F00_0000_0000, 2 << 20
FAULT = BASE + 0x12000


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def of_json(tmp_path, table, indent=None):
    path = tmp_path / "t.json"
    path.write_text(table if isinstance(table, str) else json.dumps(table, indent=indent))
    return open_trace(path, format="rocprofiler-json")


def test_old_form():
    trace = open_trace(DATA / "rocprof_old.json")
    assert rows(trace) == [
        (1000, FAULT, 4096, 900, 0, Kind.FAULT, 1, Access.WRITE, U),
        (1900, FAULT, 4096, 0, 1, Kind.FAULT_END, 1, NONE, U),
        (1100, BASE, BLOCK, 700, 1, Kind.MIGRATE, CPU, NONE, 1),
        (2000, 0, 0, 600, 2, Kind.QUEUE_EVICT, 1, NONE, U),
        (2600, 0, 0, 0, 1, Kind.QUEUE_RESTORE, 1, NONE, U),
        (3000, BASE, BLOCK, 0, 1, Kind.UNMAP_GPU, 1, NONE, U),
    ]
    # Its migration ends on the last byte, its unmap behind it: both are 2 MiB.
    assert trace.summary.counts == {"inclusive_ends": 1, "rescheduled": 1}
    assert (trace.summary.lines, trace.summary.read, trace.summary.unknown) == (5, 4, 1)
    assert MigrateValue.unpack(rows(trace)[2][4]) == MigrateValue(1, None)


def test_new_form():
    trace = open_trace(DATA / "rocprof_new.json")
    good, bad = MigrateValue(0, 0).pack(), MigrateValue(3, -12).pack()
    assert rows(trace) == [
        (100, BASE, BLOCK, 80, good, Kind.MIGRATE, CPU, NONE, 1),
        (300, BASE, BLOCK, 0, bad, Kind.MIGRATE, 1, NONE, CPU),
        (50, FAULT, 4096, 40, 0, Kind.FAULT, 1, Access.READ, U),
        (90, FAULT, 4096, 0, 1, Kind.FAULT_END, 1, NONE, U),
        (60, FAULT + 4096, 4096, 35, 0, Kind.FAULT, 2, Access.WRITE, U),
        (95, FAULT + 4096, 4096, 0, 0, Kind.FAULT_END, 2, NONE, U),
        (500, 0, 0, 400, 0, Kind.QUEUE_EVICT, 1, NONE, U),
        (900, 0, 0, 0, 0, Kind.QUEUE_RESTORE, 1, NONE, U),
        (700, BASE, BLOCK, 0, 2, Kind.UNMAP_GPU, 1, NONE, U),
        (800, 0, 0, 0, 17, Kind.DROPPED, U, NONE, U),
    ]
    assert trace.summary.counts == {
        "clock_back": 1,
        "restored": 1,
        "single_events": 1,
        "dropped_events": 17,
    }
    assert (trace.summary.read, trace.summary.repaired, trace.summary.unknown) == (6, 1, 1)
    assert "single events" in trace.summary.notes[0]


def fault(operation=0, agent=4, **more):
    return {
        "operation": operation,
        "start_timestamp": 5,
        "end_timestamp": 9,
        "agent_id": agent,
        "address": FAULT,
    } | more


@pytest.mark.parametrize(
    ("operation", "access", "migrated"),
    [(0, Access.READ, 1), (1, Access.READ, 0), (2, Access.WRITE, 1), (3, Access.WRITE, 0)],
)
def test_operations_of_paired_faults(tmp_path, operation, access, migrated):
    found = rows(of_json(tmp_path, {"kfd_page_fault_records": [fault(operation)]}))
    assert (found[0][7], found[1][4]) == (access, migrated)


def test_agents_of_the_file_keep_their_order(tmp_path):
    agents = [
        {"id": {"handle": 100}, "type": 1, "node_id": 0},
        {"id": {"handle": 300}, "type": "GPU", "node_id": 3},
        {"id": {"handle": 200}, "type": 2, "node_id": 2},
        {"odd": 1},
        7,
    ]
    faults = [fault(agent={"handle": 200}), fault(agent=3), fault(agent={"handle": 300})]
    moves = [
        fault(src_agent=100, dst_agent=2, start_address=0x1000, end_address=0x2000),
        fault(src_agent=-1, dst_agent=3, start_address=0x1000, end_address=0x2000),
    ]
    table = {"agents": agents, "kfd_page_fault_records": faults, "kfd_page_migrate_records": moves}
    found = rows(of_json(tmp_path, table))
    assert [row[6] for row in found if row[5] == Kind.FAULT] == [2, 1, 1]
    assert [(row[6], row[8]) for row in found if row[5] == Kind.MIGRATE] == [(CPU, 2), (CPU, 1)]


def test_a_fault_of_node_0_is_a_gpu(tmp_path):
    found = rows(of_json(tmp_path, {"kfd_page_fault_records": [fault(agent=0), fault(agent=-1)]}))
    assert [row[6] for row in found[::2]] == [1, U]


@pytest.mark.parametrize(
    ("name", "element", "reason"),
    [
        ("kfd_page_fault_records", fault(4), "operation 4: expected 0 to 3"),
        ("kfd_page_fault_records", fault(address="x"), "address 'x': expected an integer"),
        ("kfd_page_fault_records", fault(address=True), "expected an integer"),
        ("kfd_page_fault_records", fault(address=-1), "expected 0 to 2"),
        ("kfd_page_fault_records", fault(address=1 << 64), "expected 0 to 2"),
        ("kfd_page_fault_records", fault(start_timestamp=-1), "time -1"),
        ("kfd_page_fault_records", {}, "no start_timestamp or timestamp"),
        ("kfd_page_fault_records", [1], "expected an object"),
        ("kfd_page_migrate_records", fault(300), "no start_address"),
        (
            "kfd_page_migrate_records",
            fault(start_address=8192, end_address=4096, src_agent=0, dst_agent=4),
            "expected an end behind the start",
        ),
        ("kfd_droped_events", {"timestamp": 1, "count": -1}, "count -1"),
        ("page_migration", {"start_timestamp": 1, "page_fault": {"node_id": 1}}, "no address"),
    ],
)
def test_bad_elements_are_named(tmp_path, name, element, reason):
    table = {name: [element]}
    with pytest.raises(TraceError, match=reason) as caught:
        rows(of_json(tmp_path, table))
    assert caught.value.where == f"{name}[0]"


def test_unknown_arrays_and_kinds_are_counted(tmp_path):
    table = {
        "kfd_new_thing_records": [{"timestamp": 1}],
        "kfd_page_fault_records": [fault()],
        "kfd_queue_events": [{"start_timestamp": 2, "end_timestamp": 1}],
        "kfd_queue_records": [{"timestamp": 2, "agent_id": 4}],
    }
    trace = of_json(tmp_path, table)
    assert len(rows(trace)) == 3
    assert (trace.summary.read, trace.summary.repaired, trace.summary.unknown) == (2, 0, 2)
    assert trace.summary.counts == {"clock_back": 1, "single_events": 1}


@pytest.mark.parametrize("piece", [7, 64, 1000])
@pytest.mark.parametrize("indent", [None, 1])
def test_elements_are_found_whatever_the_pieces(tmp_path, monkeypatch, piece, indent):
    monkeypatch.setattr("svmcore.traces.rocprofiler.BLOCK_BYTES", piece)
    strings = ['a "kfd_page_fault_records": [ {', "\\", 'ends with \\"', "{[", "\u20ac" * 200]
    table = {
        "strings": strings,
        "deep": [{"kfd_page_fault_records": [fault(operation=i % 4) for i in range(30)]}],
        "more": {"x": [[], {}, [1, 2]], "kfd_page_fault_records": [fault(agent=5)]},
    }
    path = tmp_path / "t.json"
    path.write_text(json.dumps(table, indent=indent, ensure_ascii=False), "utf-8")
    trace = open_trace(path, format="rocprofiler-json")
    found = rows(trace)
    assert len(found) == 62
    assert trace.summary.read == 31
    assert found[-1][6] == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", "does not begin"),
        ('{"a": 1}', "no array of KFD events"),
        ('{"page_migration": []', "the file ends"),
        ('{"page_migration": [{"a": 1', "page_migration: .*: expected whole JSON"),
        ('{"page_migration": []}}', "a bracket closes"),
        ('{"page_migration": [], "x', "the file ends"),
        ('{"page_migration": [nope]}', "page_migration: .*: expected whole JSON"),
        ('{"page_migration": [' + "[" * 100_000, "expected"),
    ],
)
def test_json_that_is_none_is_refused(tmp_path, text, reason):
    with pytest.raises(TraceError, match=reason):
        rows(of_json(tmp_path, text))


def test_keys_cut_in_two_and_long_strings(tmp_path, monkeypatch):
    faults = json.dumps([fault(), fault(1)])
    for gap in (0, 50, 300):
        text = '{"a\\\\": "\\"[", "kfd_page_fault_records"' + " " * gap + ":" + " " * gap + faults
        for piece in (3, 64, 200, 1 << 20):
            monkeypatch.setattr("svmcore.traces.rocprofiler.BLOCK_BYTES", piece)
            assert len(rows(of_json(tmp_path, text + "}"))) == 4
            with pytest.raises(TraceError, match="the file ends"):
                rows(of_json(tmp_path, text))


@pytest.mark.parametrize("inside", ["x", '\\"', "\\\\", '"'])
def test_strings_without_end_take_no_time(tmp_path, inside):
    started = time.perf_counter()
    for text in ('{"' + inside * 1_500_000, '{"page_migration": ["' + inside * 1_500_000):
        with pytest.raises(TraceError, match="expected"):
            rows(of_json(tmp_path, text))
    assert time.perf_counter() - started < 20


def test_json_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "t"
    for encoding in ("utf-16", "utf-16-le", "latin-1"):
        path.write_text('{"x": "\u00e9", "page_migration": []}', encoding)
        with pytest.raises(TraceError, match="expected"):
            rows(open_trace(path, format="rocprofiler-json"))


def test_memory_of_json_is_bounded(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr("svmcore.traces.rocprofiler.BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr("svmcore.traces.rocprofiler.CHUNK", 1000)
    peaks = []
    for number in (3_000, 12_000):
        trace = of_json(
            tmp_path, {"x": list(range(number)), "kfd_page_fault_records": [fault()] * number}
        )
        tracemalloc.start()
        for _ in trace.chunks(1000):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2


ODD = st.sampled_from(
    [
        *(0, 1, -1, 3, 4, 255, 256, 4095, 4096, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
        *(1.5, "1", True, None, {"handle": 7}, {"handle": -1}, {"handle": 7, "x": 1}, {}, [1]),
    ]
)
KEYS = (
    *("operation", "start_timestamp", "timestamp", "end_timestamp", "agent_id", "address"),
    *("start_address", "end_address", "src_agent", "dst_agent", "error_code", "trigger", "pid"),
)
GOOD = {
    "kfd_page_fault_records": {"address": FAULT},
    "kfd_page_migrate_records": {"start_address": BASE, "end_address": FAULT, "error_code": 0}
    | {"src_agent": {"handle": 0}, "dst_agent": 9},
    "kfd_unmap_from_gpu_events": {"start_address": BASE, "end_address": BASE + 4095},
    "kfd_queue_records": {},
    "kfd_page_fault_events": {"pid": [{"a": "b"}, -1.5e3, None, [], {}]},
    "kfd_dropped_events": {"count": 3},
}


@given(
    arrays=st.lists(
        st.tuples(
            st.sampled_from(sorted(GOOD)),
            st.lists(st.dictionaries(st.sampled_from(KEYS), ODD, max_size=1), max_size=5),
        ),
        min_size=1,
        max_size=3,
    ),
    form=st.sampled_from([(None, (",", ":")), (1, None), (None, None)]),
)
def test_plain_elements_read_as_each_for_itself(arrays, form):
    times = {"start_timestamp": 5, "end_timestamp": 9, "operation": 1, "agent_id": {"handle": 4}}
    text = json.dumps(
        [{name: [times | GOOD[name] | odd for odd in each]} for name, each in arrays],
        indent=form[0],
        separators=form[1],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_text(text)
        fast = look(path, "rocprofiler-json")
        with careful():
            assert look(path, "rocprofiler-json") == fast


@pytest.mark.parametrize("change", ["", "\u00e4", '\\"', "x" * 300])
def test_plain_and_odd_elements_take_turns(tmp_path, monkeypatch, change):
    faults = [fault(i % 4, i % 5, extra=change if i % 700 == 3 else "") for i in range(9000)]
    monkeypatch.setattr("svmcore.traces.rocprofiler.BLOCK_BYTES", 1 << 16)
    table = {"kfd_page_fault_records": faults, "kfd_page_fault_events": faults}
    trace = of_json(tmp_path, table)
    found = np.concatenate(list(trace.chunks()))
    assert len(found) == 18000
    assert (trace.summary.read, trace.summary.unknown) == (9000, 9000)
    with careful():
        assert np.array_equal(np.concatenate(list(trace.chunks(77))), found)
    faults[8000]["operation"] = 9
    (tmp_path / "t.json").write_text(json.dumps(table))
    with pytest.raises(TraceError, match="operation 9") as caught:
        rows(open_trace(tmp_path / "t.json"))
    assert caught.value.where == "kfd_page_fault_records[8000]"


def scanned(text, at=0, **form):
    objects = ObjectForm({b"a": 0, b"b": 1}, wrapped=b"handle", **form)
    out = np.empty((2, 4), "<i8")
    count, behind = objects.scan(text, at, out)
    return out[:, :count].tolist(), behind


@pytest.mark.parametrize(
    "odd",
    [
        *('{"a": 01}', '{"a": 1.0}', '{"a": 1e3}', '{"a": 9223372036854775808}', '{"a": -}'),
        *('{"a": "1"}', '{"a": true}', '{"a": 1 "b": 2}', '{"a": 1,}', '{"a" 1}', '{"a": 1'),
        *('{"a": 1, "a": 1}', '{"\\u0061": 1}', '{"c": .5}', '{"c": 1.}', '{"c": 1e}', "[1]"),
        *('{"c": nul}', '{"c": "\t"}', '{"c": {1: 2}}', '{"c": [1,]}', '{"c": [1}}', '{"c": }'),
        *('{"a": {"handle": 1, "x": 2}}', '{"a": {"handl": 1}}', '{"a": {"handle" 1}}', "", "{"),
        *('{"c": ' + "[" * 9 + "]" * 9 + "}", '{"c": NaN}', '{"c": ' + "1" * 65 + "}", "5", '"a"'),
    ],
)
def test_what_is_not_plain_is_left(odd):
    good = '{"a": -1, "c": [{}, [], "x", -0.5E+3, true, false, null], "b": {"handle": 2}}'
    assert scanned(odd) == ([[], []], 0)
    assert scanned(f"{good} , {odd}") == ([[-1], [2]], len(good))


def test_objects_and_what_stands_around_them():
    assert scanned('{"a":1},{}\n,{"b":0} ]') == ([[1, ABSENT, ABSENT], [ABSENT, ABSENT, 0]], 19)
    assert scanned(', {"a":1}', 0) == ([[1], [ABSENT]], 9)
    # What follows an element without a separator makes it another one.
    assert scanned('{"a":1} {"a":2}') == scanned('{"a":1}x') == ([[], []], 0)
    assert scanned('{"a":1},' * 9)[1] == 4 * 8 - 1
    assert scanned('{"a":1, "c": "\u00e4"}') == ([[], []], 0)
    inner = {"inner": b"in", "quoted": True, "separator": 30}
    assert scanned('{"x": 1, "in": {"a": "07"}}\x1e{"in":{"b":-5,"c":"1"}}', **inner)[0] == [
        [7, ABSENT],
        [ABSENT, -5],
    ]
    for odd in ("{}", '{"in": 1}', '{"in": {"c": "x"}}', '{"inn": {}}', '{"in": {}, "in": {}}'):
        assert scanned(odd, **inner) == ([[], []], 0)
    with pytest.raises(InvalidArgumentError, match="expected 0 to 2"):
        scanned("{}", 3)
    with pytest.raises(InvalidArgumentError, match="3 columns"):
        ObjectForm({b"a": 2}).scan("{}", 0, np.empty((1, 4), "<i8"))
    for keys in ({b"": 0}, {b"a": 32}, {b"a": -1}, {"a": 0}, {b"%d" % i: 0 for i in range(33)}):
        with pytest.raises(InvalidArgumentError, match="expected"):
            ObjectForm(keys)


# ---- rocpd ---------------------------------------------------------------------------

AT = 0x7E12_0000_0000


def test_rocpd_events():
    trace = open_trace(DATA / "rocpd.sqlite")
    assert rows(trace) == [
        (0, AT, 4096, 0, 0, Kind.FAULT, 1, NONE, U),
        (1000, AT, 4096, 900, 0, Kind.FAULT, 1, Access.WRITE, U),
        (1900, AT, 4096, 0, 1, Kind.FAULT_END, 1, NONE, U),
        (1100, AT, BLOCK, 700, MigrateValue(1, 0).pack(), Kind.MIGRATE, CPU, NONE, 1),
        (2000, 0, 0, 600, 2, Kind.QUEUE_EVICT, 1, NONE, U),
        (2600, 0, 0, 0, 0, Kind.QUEUE_RESTORE, 1, NONE, U),
        (3000, AT, BLOCK, 0, 1, Kind.UNMAP_GPU, 1, NONE, U),
        (3100, 0, 0, 0, 17, Kind.DROPPED, U, NONE, U),
    ]
    s = trace.summary
    assert s.counts == {
        "without_region": 1,
        "single_events": 1,
        "restored": 1,
        "other_events": 1,
        "dropped_events": 17,
    }
    assert (s.read, s.repaired, s.unknown, s.lines) == (5, 1, 2, 8)


def rocpd(tmp_path, *extdata, suffixes=("",)):
    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        for suffix in suffixes:
            connection.execute(f'CREATE TABLE "rocpd_event{suffix}"(id INTEGER, extdata TEXT)')
            connection.executemany(
                f'INSERT INTO "rocpd_event{suffix}" VALUES(?, ?)', enumerate(extdata, 1)
            )
    connection.close()
    return open_trace(path)


EXAMPLE = (
    '{"kfd":{"start_address":"139637976727552","end_address":"139637978824704",'
    '"src_agent_id":"-1","dst_agent_id":"4","prefetch_agent_id":"-1","preferred_agent_id":"-1",'
    '"error_code":"0"}}'
)


def test_tables_of_several_processes_and_none_of_the_others(tmp_path):
    trace = rocpd(tmp_path, EXAMPLE, "{}", suffixes=("_b2", "_a1-c_9"))
    value = MigrateValue(0, 0).pack()
    assert rows(trace) == [(0, BASE, BLOCK, 0, value, Kind.MIGRATE, CPU, NONE, 1)] * 2
    assert trace.summary.counts == {"without_region": 2, "other_events": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"agent_id": "4", "address": "4096"},
        {"agent_id": 4, "address": 4096},
        [["agent_id", "4"], ["address", "4096"]],
        [{"key": "agent_id", "value": "4"}, {"key": "address", "value": "4096"}],
    ],
)
def test_maps_are_objects_or_arrays(tmp_path, fields):
    found = rows(rocpd(tmp_path, json.dumps({"kfd": fields})))
    assert found == [(0, 4096, 4096, 0, 0, Kind.FAULT, 1, NONE, U)]


@pytest.mark.parametrize(
    ("extdata", "reason"),
    [
        ('{"kfd": 5}', "expected an object or an array of pairs"),
        ('{"kfd": [5]}', "expected an object or an array of pairs"),
        ('{"kfd"', "expected JSON"),
        ('{"kfd": {"address": "0x10", "agent_id": "1"}}', "expected decimal digits"),
        ('{"kfd": {"address": "10"}}', "no agent_id among address"),
        ('{"kfd": {"start_address": "10", "agent_id": "1"}}', "no end_address"),
    ],
)
def test_bad_events_name_the_row(tmp_path, extdata, reason):
    with pytest.raises(TraceError, match=reason) as caught:
        rows(rocpd(tmp_path, EXAMPLE, extdata))
    assert caught.value.where == "rocpd_event, row 2"


def test_the_word_kfd_deeper_is_another_event(tmp_path):
    trace = rocpd(tmp_path, '{"a": {"kfd": 1}}', '{"kfd": {}}')
    assert rows(trace) == []
    assert trace.summary.unknown == trace.summary.lines == 2


def test_rocpd_chunks_alike(tmp_path):
    trace = rocpd(tmp_path, *[EXAMPLE] * 9000)
    whole = np.concatenate(list(trace.chunks()))
    assert len(whole) == 9000
    assert np.array_equal(np.concatenate(list(trace.chunks(1234))), whole)


FIELDS = {
    "start_address": ["4096", "0", "-1", 8191, "x"],
    "end_address": ["8192", "12287", "0", "9223372036854775807", "18446744073709551616"],
    "src_agent_id": ["-1", "0", "4"],
    "dst_agent_id": ["5", 0, None],
    "agent_id": ["4", "5", "-1", 7, "04", " 4"],
    "address": ["4097", "-1", "9223372036854775808"],
    "error_code": ["0", "-12", 7],
    "count": ["3"],
    "prefetch_agent_id": ["-1", "none"],
}
PLAIN = [
    {"agent_id": "4", "address": "4097"},
    {"start_address": "4096", "end_address": "8191", "src_agent_id": "-1", "dst_agent_id": "5"},
    {"start_address": "4096", "end_address": "8192", "agent_id": "4"},
]
NAMES = ["KFD READ MIGRATED", "WRITE UPDATED", "PAGEFAULT_GPU", "KFD_EVENT_QUEUE", "\u00e4", None]


@settings(max_examples=50)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(PLAIN),
            st.dictionaries(st.sampled_from(sorted(FIELDS)), st.integers(0, 5), max_size=1),
            st.sampled_from(["", "array", "x", "\u00e4", "\x1e", "twice"]),
            st.sampled_from([(5, 9), (5, 3), (0, 0), (None, 1), ("5", 9), (5, None), (-1, 5)]),
            st.integers(1, 7),
        ),
        min_size=1,
        max_size=9,
    ),
    plain=st.booleans(),
)
def test_plain_events_read_as_each_for_itself(events, plain):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE rocpd_event(id INTEGER, category_id, extdata)")
        connection.execute('CREATE TABLE rocpd_region(start, "end", name_id, event_id)')
        connection.execute("CREATE TABLE rocpd_string(id, string)")
        connection.executemany("INSERT INTO rocpd_string VALUES(?, ?)", enumerate(NAMES, 1))
        for number, (fields, odd, form, when, name) in enumerate(events):
            changed = {key: FIELDS[key][at % len(FIELDS[key])] for key, at in odd.items()}
            table = fields if plain else fields | changed
            text = json.dumps({"kfd": [*table.items()] if form == "array" else table})
            extra = {"array": "", "twice": text}.get(form, form)
            text = f'{{"a": "{form}", {text[1:]}' if extra == "\u00e4" else text + extra
            text = text.removesuffix(extra) if plain else text
            row = (number, name, text)
            connection.execute("INSERT INTO rocpd_event VALUES(?, ?, ?)", row)
            if when[0] is not None:
                begin, end = (5, 9) if plain else when
                row = (begin, end, name % 3, number)
                connection.execute("INSERT INTO rocpd_region VALUES(?, ?, ?, ?)", row)
        connection.commit()
        connection.close()
        with mock.patch("svmcore.traces.sqlite._ROWS", 3):
            fast = look(path, "rocpd")
            with careful():
                assert look(path, "rocpd") == fast


def test_many_events_of_all_kinds_by_columns(tmp_path):
    mixed = [json.dumps({"kfd": PLAIN[i % 3] | {"agent_id": str(4 + i % 2)}}) for i in range(20000)]
    mixed[9001] = '{"kfd": {"count": "3"}}'
    mixed[15000] = '{"kfd": {"agent_id": "5"}}'
    trace = rocpd(tmp_path, *mixed)
    fast = np.concatenate(list(trace.chunks(999)))
    assert trace.summary.counts["without_region"] == trace.summary.repaired == 20000
    assert [int(fast[i]["kind"]) for i in (9001, 15000)] == [Kind.DROPPED, Kind.QUEUE_EVICT]
    with careful():
        assert np.array_equal(np.concatenate(list(trace.chunks())), fast)
