"""Records as Parquet and Arrow IPC columns: types, defaults, refusals, damage, memory."""

import contextlib
import hashlib
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore import Space, replay
from svmcore.errors import NotSupportedError, TraceError
from svmcore.records import RECORD, UNKNOWN, Access, Kind
from svmcore.traces import Mapping, open_trace, write_records, writers
from svmcore.traces.base import check_records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FORMS = ["parquet", "arrow", "stream"]
DATA = Path(__file__).parents[1] / "data" / "traces"
TOP = 1 << 64


def save(path, table, form="parquet", **keys):
    if form == "parquet":
        pq.write_table(table, path, **keys)
    else:
        new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table, **keys)
    return path


def columns(n=4, **changed):
    table = {"addr": np.arange(n, dtype="u8") * 4096, "size": np.full(n, 4096, "u8"), **changed}
    return pa.table({name: values for name, values in table.items() if values is not None})


def rows(trace, n=65536):
    chunks = list(trace.chunks(n))
    return np.concatenate(chunks) if chunks else np.zeros(0, RECORD)


def random_records(n, seed=1):
    rng = np.random.default_rng(seed)
    found = np.zeros(n, RECORD)
    found["t_ns"] = np.cumsum(rng.integers(0, 5000, n))
    found["addr"] = 0x7F00_0000_0000 + rng.integers(0, 1 << 32, n)
    found["size"] = rng.integers(1, 1 << 20, n)
    found["value"] = rng.integers(0, 1 << 32, n)
    found["kind"] = rng.choice([0, 1, 5, 17, 24], n)
    found["proc"] = rng.choice([0, 1, 64, 255], n)
    found["access"] = rng.integers(0, 5, n)
    found["peer"] = rng.choice([0, 1, 64, 255], n)
    return found


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("cut", [1, 1000, 200_000, 700_000])
def test_large_files_survive_however_they_come(tmp_path, form, cut):
    array = random_records(600_000)
    path = tmp_path / "t"
    write_records(path, (array[i : i + cut] for i in range(0, len(array), max(cut, 1000))), form)
    if cut == 1:
        array = array[::1000]
    trace = open_trace(path)
    assert trace.format == form
    assert np.array_equal(rows(trace), array)
    assert np.array_equal(rows(trace, 1 << 20), array)
    assert trace.digest == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    assert trace.summary.lines == trace.summary.read == len(array)
    assert trace.summary.notes == []


def test_row_groups_do_not_depend_on_the_chunks(tmp_path):
    array = random_records(600_000)
    for number, n in enumerate((7000, 600_000)):
        path = tmp_path / f"{number}"
        write_records(path, (array[i : i + n] for i in range(0, len(array), n)), "parquet")
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    about = pq.ParquetFile(tmp_path / "0").metadata
    sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    assert sizes == [writers.GROUP, writers.GROUP, 600_000 - 2 * writers.GROUP]
    assert about.row_group(0).column(0).compression in ("ZSTD", "SNAPPY")


@pytest.mark.parametrize("form", FORMS)
def test_missing_columns_get_the_documented_values(tmp_path, form):
    trace = open_trace(save(tmp_path / "t", columns(), form))
    assert rows(trace).tolist() == [
        (0, i * 4096, 4096, 0, 0, Kind.ACCESS, UNKNOWN, Access.UNKNOWN, UNKNOWN) for i in range(4)
    ]
    assert trace.kind == "access"
    assert trace.mappings() == [Mapping(0, 4 * 4096, "touched0")]
    (note,) = trace.summary.notes
    assert note.startswith("columns that the file lacks: t_ns is 0, dur_ns is 0, value is 0, kind")


@pytest.mark.parametrize("form", FORMS)
def test_further_columns_are_left_out_and_named(tmp_path, form):
    table = columns(note=["a", None, "b", "c"], other=[[1], [], None, [2]])
    trace = open_trace(save(tmp_path / "t", table, form))
    assert len(rows(trace)) == 4
    assert trace.summary.notes[0] == "columns left out: note, other"


WORDS = ["access", "fault", "map", "access"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.array(WORDS),
        lambda: pa.array(WORDS, pa.large_string()),
        lambda: pa.array(WORDS).dictionary_encode(),
        lambda: pa.array(WORDS, pa.large_string()).dictionary_encode(),
        lambda: pa.array([0, 1, 2, 0], pa.int64()),
        lambda: pa.array([0, 1, 2, 0], pa.uint16()),
        lambda: pa.array([0, 1, 2, 0], pa.int8()).dictionary_encode(),
    ],
    ids=["string", "large_string", "dictionary", "large dictionary", "int64", "uint16", "numbers"],
)
def test_kinds_as_words_and_numbers_of_any_type(tmp_path, form, make):
    trace = open_trace(save(tmp_path / "t", columns(kind=make()), form))
    assert rows(trace)["kind"].tolist() == [0, 1, 2, 0]
    assert trace.kind == "fault"
    assert trace.mappings() == [Mapping(2 * 4096, 4096, "map0")]


def test_processors_and_accesses_as_words(tmp_path):
    table = columns(
        proc=["cpu", "gpu0", "gpu63", "unknown"],
        access=["read", "write", "atomic", "unknown"],
        peer=pa.array(["gpu1"] * 4).dictionary_encode(),
    )
    found = rows(open_trace(save(tmp_path / "t", table)))
    assert found["proc"].tolist() == [0, 1, 64, 255]
    assert found["access"].tolist() == [0, 1, 2, 4]
    assert found["peer"].tolist() == [2] * 4


@pytest.mark.parametrize("form", FORMS)
def test_numbers_above_2_to_the_63(tmp_path, form):
    addr = np.array([0, (1 << 63) + 4096, TOP - 4096, 1], "u8")
    table = columns(addr=addr, t_ns=np.array([TOP - 1, 0, 1 << 63, 7], "u8"))
    found = rows(open_trace(save(tmp_path / "t", table, form)))
    assert found["addr"].tolist() == addr.tolist()
    assert found["t_ns"].tolist() == [TOP - 1, 0, 1 << 63, 7]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("field", RECORD.names)
def test_nulls_are_refused_with_column_and_row(tmp_path, form, field):
    values = [0, 0, None, 0] if field != "size" else [1, 1, None, 1]
    table = columns(**{field: pa.array(values, pa.uint64())})
    with pytest.raises(TraceError, match=f"row 2: {field}: null") as caught:
        rows(open_trace(save(tmp_path / "t", table, form)))
    assert caught.value.where == "row 2"


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["access", "fault", None, "map"]),
        pa.array(["access", "fault", None, "map"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0]), pa.array(["map", None])),
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0]), pa.array([2, None])),
    ],
    ids=["words", "dictionary", "null in the dictionary", "null among numbers"],
)
def test_nulls_among_words(tmp_path, values):
    with pytest.raises(TraceError, match="row 2: kind: null: expected a value"):
        rows(open_trace(save(tmp_path / "t", columns(kind=values), "arrow")))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"t_ns": np.array([1, 2, 3, -4])}, "row 3: t_ns: -4: expected 0 to"),
        ({"addr": np.array([1, -1, 3, -4])}, "row 1: addr: -1: expected 0 to"),
        ({"value": np.array([0, 1 << 32, 0, 0])}, "row 1: value: 4294967296: expected 0 to 429"),
        ({"kind": np.array([0, 0, 256, 0])}, "row 2: kind: 256: expected 0 to 255"),
        ({"kind": np.array([0, 0, 9, 0])}, "row 2: kind 9: expected a value of Kind"),
        ({"kind": ["access", "touch", "x", "y"]}, "row 1: kind: 'touch': expected one of access"),
        ({"proc": np.array([0, 0, 0, 65])}, "row 3: proc 65"),
        ({"proc": ["cpu", "cpu", "gpu64", "cpu"]}, "row 2: proc: 'gpu64'"),
        ({"size": np.array([1, 0, 1, 1])}, "row 1: size 0: expected at least 1 byte"),
        ({"size": np.full(4, TOP - 4096, "u8")}, "row 2: size .*2\\*\\*64"),
        ({"addr": None}, "columns: no column 'addr' among size: expected at least addr, size"),
        ({"size": None}, "columns: no column 'size'"),
        ({"addr": np.zeros(4)}, "columns: addr: type double: expected integers"),
        ({"addr": ["0x10"] * 4}, "columns: addr: type string: expected integers"),
        ({"t_ns": pa.array([0] * 4, pa.timestamp("ns"))}, "columns: t_ns: type timestamp"),
        ({"kind": [True] * 4}, "columns: kind: type bool: expected integers or words"),
        ({"kind": pa.nulls(4)}, "columns: kind: type null: expected integers or words"),
        ({"addr": [[1]] * 4}, "columns: addr: type list"),
        ({"addr": [{"x": 1}] * 4}, "columns: addr: type struct"),
        ({"value": pa.array([1.5] * 4).dictionary_encode()}, "columns: value: type dictionary"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, form, changed, reason):
    if form == "parquet" and "dictionary" in reason:
        reason = "columns: value: type d"
    path = save(tmp_path / "t", columns(**changed), form)
    # A stream without our columns is not recognised as one.
    known = "arrow" if form == "stream" else None
    with pytest.raises(TraceError, match=reason):
        rows(open_trace(path, format=known))


@pytest.mark.parametrize("form", FORMS)
def test_the_row_is_that_of_the_file(tmp_path, form):
    kind = np.zeros(200_000, "u1")
    kind[150_001] = 77
    table = columns(200_000, kind=kind)
    keys = {"row_group_size": 70_000} if form == "parquet" else {"max_chunksize": 70_000}
    with pytest.raises(TraceError, match="row 150001: kind 77"):
        rows(open_trace(save(tmp_path / "t", table, form, **keys)))


def test_a_column_that_is_there_twice(tmp_path):
    one = pa.array([1, 2])
    table = pa.Table.from_arrays([one, one, one], ["addr", "size", "addr"])
    with pytest.raises(TraceError, match="addr: expected one column"):
        rows(open_trace(save(tmp_path / "t", table, "arrow")))


@pytest.mark.parametrize("form", FORMS)
def test_no_rows(tmp_path, form):
    trace = open_trace(save(tmp_path / "t", columns(0), form))
    assert len(rows(trace)) == 0
    assert (trace.kind, trace.mappings()) == ("access", [])


@pytest.mark.parametrize("form", FORMS)
def test_cut_anywhere_it_is_refused_or_noted(tmp_path, form):
    path = save(tmp_path / "t", columns(3000, t_ns=np.arange(3000)), form)
    whole = path.read_bytes()
    for length in [*range(8, len(whole), 211), len(whole) - 1]:
        path.write_bytes(whole[:length])
        reason = ""
        try:
            trace = open_trace(path, format="parquet" if form == "parquet" else "arrow")
            found = rows(trace)
        except TraceError as error:
            reason = str(error)
        if reason:
            assert "expected" in reason
            continue
        assert form == "stream"
        assert len(found) in (0, 3000)
        assert trace.summary.notes[-1] == "the stream has no end mark: it may be cut off"


@pytest.mark.parametrize("form", FORMS)
def test_garbage_in_the_middle_never_ends_the_process(tmp_path, form):
    path = save(tmp_path / "t", columns(500, kind=["access", "map"] * 250), form)
    whole = path.read_bytes()
    rng = np.random.default_rng(2)
    for at in range(0, len(whole) - 8, 37):
        damaged = bytearray(whole)
        damaged[at : at + 8] = rng.bytes(8)
        path.write_bytes(damaged)
        with contextlib.suppress(TraceError):
            trace = open_trace(path, format="parquet" if form == "parquet" else "arrow")
            trace.mappings()
            check_records(rows(trace), "", str)


def test_bytes_behind_a_stream_are_refused(tmp_path):
    path = save(tmp_path / "t", columns(), "stream")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(TraceError, match="more bytes follow"):
        rows(open_trace(path))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, form):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    trace = open_trace(DATA / f"records.{form}")
    assert trace.format == form
    with pytest.raises(TraceError, match=r"install svmcore\[arrow\]"):
        rows(trace)
    with pytest.raises(NotSupportedError, match=r"install svmcore\[arrow\]"):
        write_records(tmp_path / "t", [], form)
    assert list(tmp_path.iterdir()) == []


def test_the_first_pass_reads_three_columns(tmp_path, monkeypatch):
    path = tmp_path / "t"
    write_records(path, [random_records(1000)], "parquet")
    asked = []
    whole = pq.ParquetFile.iter_batches

    def watched(self, *args, columns, **keys):
        asked.append(columns)
        return whole(self, *args, columns=columns, **keys)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    trace = open_trace(path)
    trace.mappings()
    assert trace.kind == "fault"
    assert asked == [["addr", "size", "kind"]]
    rows(trace)
    assert asked[1:] == [list(RECORD.names)]


def test_mappings_of_a_file_that_changed_are_refused(tmp_path):
    path = tmp_path / "t"
    array = random_records(1000)
    write_records(path, [array], "parquet")
    trace = open_trace(path)
    trace.mappings()
    content = bytearray(path.read_bytes())
    content[-30] ^= 1  # in the words of who made it
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"changed|whole"):
        rows(trace)


def test_progress_reaches_the_size(tmp_path):
    seen = []
    path = tmp_path / "t"
    write_records(path, [random_records(600_000)], "parquet")
    trace = open_trace(path, progress=seen.append)
    rows(trace)
    assert seen[-1] == trace.nbytes
    assert len(set(seen)) > 3


def test_memory_does_not_grow_with_the_file(tmp_path):
    peaks = []
    for n in (300_000, 1_500_000):
        path = tmp_path / f"{n}"
        write_records(path, [random_records(n)], "parquet")
        pool = pa.default_memory_pool()
        before = pool.bytes_allocated()
        tracemalloc.start()
        most = 0
        for _ in open_trace(path).chunks():
            most = max(most, pool.bytes_allocated() - before)
        peaks.append(tracemalloc.get_traced_memory()[1] + most)
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 64 << 20


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_replays_as_the_same_records_in_npy(tmp_path, form):
    array = random_records(5000)
    array["proc"] = array["peer"] = 1
    tables = []
    for name in ("npy", form):
        write_records(tmp_path / name, [array], name)
        table = replay(tmp_path / name, Space("gpu-80g")).to_dict()
        for key in ("trace", "wall_s", "engine_s", "records_per_s"):
            table.pop(key)
        tables.append(table)
    assert tables[0] == tables[1]


@given(data=st.data(), n=st.integers(1, 12), form=st.sampled_from(FORMS))
def test_any_integers_are_kept_or_refused(tmp_path_factory, data, n, form):
    path = tmp_path_factory.mktemp("a") / "t"
    table, good = {}, True
    for field in RECORD.names:
        width = data.draw(st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"]))
        info = np.iinfo(width)
        values = data.draw(
            st.lists(st.integers(int(info.min), int(info.max)), min_size=n, max_size=n)
            | st.lists(st.sampled_from([0, 1]), min_size=n, max_size=n)
        )
        table[field] = pa.array(values, getattr(pa, width)())
        good = good and min(values) >= 0 and max(values) <= int(np.iinfo(RECORD[field]).max)
    save(path, pa.table(table), form)
    if not good:
        with pytest.raises(TraceError, match=r": row [0-9]+: "):
            rows(open_trace(path))
        return
    try:
        found = rows(open_trace(path))
    except TraceError as error:
        # Numbers that fit, but make no record.
        refused = error.where
        found = None
    if found is None:
        assert refused.startswith("row ")
        return
    for field in RECORD.names:
        assert found[field].tolist() == table[field].to_pylist()
