"""Writers: round trips, and a whole file or none."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore.errors import InvalidArgumentError, TraceError
from svmcore.records import CPU, RECORD, UNKNOWN, Access, Kind
from svmcore.traces import WRITERS, formats, open_trace, write_records
from svmcore.traces.kfd_smi import MigrateValue

pytest.importorskip("pyarrow")
DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN
WORD = st.integers(0, (1 << 64) - 1)
PROC = st.sampled_from([*range(65), UNKNOWN])


@st.composite
def records(draw):
    addr = draw(WORD)
    t_ns = draw(WORD)
    return (
        t_ns,
        addr,
        draw(st.integers(1, (1 << 64) - addr).filter(lambda n: n < 1 << 64)),
        draw(st.integers(0, (1 << 64) - 1 - t_ns)),
        draw(st.integers(0, (1 << 32) - 1)),
        draw(st.sampled_from(list(Kind))),
        draw(PROC),
        draw(st.sampled_from(list(Access))),
        draw(PROC),
    )


def whole(trace):
    chunks = list(trace.chunks())
    return np.concatenate(chunks) if chunks else np.zeros(0, RECORD)


def test_what_is_written_can_be_read():
    assert set(WRITERS) - {"oracle-general"} <= set(formats())


@pytest.mark.parametrize("form", ["npy", "csv", "parquet", "arrow"])
@given(rows=st.lists(records(), max_size=20), cut=st.integers(0, 20))
def test_every_record_survives(tmp_path_factory, form, rows, cut):
    path = tmp_path_factory.mktemp("w") / "t"
    array = np.array(rows, RECORD)
    assert write_records(path, [array[:cut], array[cut:]], form) == (len(rows), {})
    trace = open_trace(path)
    assert trace.format == form
    assert np.array_equal(whole(trace), array)


@given(
    rows=st.lists(
        st.builds(
            lambda row, access, kind: (0, *row[1:3], 0, 0, kind, row[6], access, U),
            records(),
            st.sampled_from([Access.READ, Access.WRITE]),
            st.just(Kind.ACCESS),
        ),
        min_size=1,
    )
)
def test_touches_survive_an_access_list(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("w") / "t"
    array = np.array(rows, RECORD)
    write_records(path, [array], "access-list")
    assert np.array_equal(whole(open_trace(path)), array)


def test_access_list_says_what_it_can(tmp_path):
    path = tmp_path / "t"
    trace = open_trace(DATA / "records.csv")
    written = write_records(path, trace.chunks(2), "access-list")
    assert written.records == 2
    assert written.left_out == {"map": 1, "migrate": 1, "dropped": 1}
    assert path.read_text() == "0x10000000,4096,w,gpu0\n0x10002000,12288,w,gpu1\n"
    write_records(path, open_trace(DATA / "touches.txt").chunks(), "access-list")
    assert np.array_equal(whole(open_trace(path)), whole(open_trace(DATA / "touches.txt")))


PAGE = st.integers(0, (1 << 51) - 1).map(lambda page: page << 12)


@st.composite
def smi_records(draw):
    kind = draw(
        st.sampled_from(
            [
                Kind.FAULT,
                Kind.FAULT_END,
                Kind.QUEUE_EVICT,
                Kind.QUEUE_RESTORE,
                Kind.UNMAP_GPU,
                Kind.DROPPED,
                Kind.MIGRATE,
            ]
        )
    )
    t_ns, page = draw(st.integers(0, 1 << 62)), draw(PAGE)
    pages = draw(st.integers(1, 1 << 40)) << 12
    word = draw(st.integers(0, (1 << 32) - 1))
    match kind:
        case Kind.FAULT:
            access = draw(st.sampled_from([Access.READ, Access.WRITE]))
            return (t_ns, page, 4096, 0, 0, kind, 1, access, U)
        case Kind.FAULT_END:
            return (t_ns, page, 4096, 0, word & 1, kind, 1, NONE, U)
        case Kind.QUEUE_EVICT:
            return (t_ns, 0, 0, 0, word, kind, 1, NONE, U)
        case Kind.QUEUE_RESTORE:
            return (t_ns, 0, 0, 0, word & 1, kind, 1, NONE, U)
        case Kind.UNMAP_GPU:
            return (t_ns, page, pages, 0, word, kind, 1, NONE, U)
        case Kind.DROPPED:
            return (t_ns, 0, 0, 0, word, kind, U, NONE, U)
    error = draw(st.none() | st.integers(-0xFFFF, 0xFFFF))
    value = MigrateValue(word & 0xFF, error).pack()
    there = draw(st.booleans())
    source, target = (CPU, 1) if there else (1, CPU)
    return (t_ns, page, pages, draw(st.integers(0, 1 << 62)), value, kind, source, NONE, target)


@given(rows=st.lists(smi_records(), min_size=1))
def test_recorded_kinds_survive_kfd_smi(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("w") / "t"
    array = np.array(rows, RECORD)
    assert write_records(path, [array], "kfd-smi", gpu_ids=[0x1EA0]).left_out == {}
    trace = open_trace(path, format="kfd-smi")
    assert np.array_equal(whole(trace), array)
    assert trace.gpu_ids in ([], [0x1EA0])


def test_kfd_smi_lines(tmp_path):
    path = tmp_path / "t"
    trace = open_trace(DATA / "kfd_new.txt")
    written = write_records(path, trace.chunks(), "kfd-smi", gpu_ids=trace.gpu_ids, pid=2003)
    assert written.left_out == {"other": 4}
    lines = path.read_text().splitlines()
    original = (DATA / "kfd_new.txt").read_text().splitlines()
    assert sorted(line for line in lines if line[0] != "5") == sorted(
        line for line in original if line[0] in "6789abe" and not line.startswith("1")
    )
    again = open_trace(path)
    known = whole(trace)
    assert np.array_equal(whole(again), known[known["kind"] != Kind.OTHER])
    assert again.summary.counts["unpaired_starts"] == 1


def test_evictions_are_migrations_of_kfd_smi(tmp_path):
    path = tmp_path / "t"
    row = (5, 0x1800, 0x1000, 7, 0, Kind.EVICT, 3, NONE, U)
    write_records(path, [np.array([row], RECORD)], "kfd-smi")
    assert path.read_text() == (
        "5 5 -1 @1(2) 3->0 ffffffff:ffffffff 3\n"  # 0x1800..0x2800 is two pages
        "6 12 -1 @1(2) 3->0 3\n"
    )


def failing():
    array = np.zeros(10, RECORD)
    array["size"] = 1
    yield array
    raise RuntimeError("the source broke")


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_no_partial_file_is_left(tmp_path, form):
    path = tmp_path / "t"
    path.write_text("as before")
    with pytest.raises(RuntimeError):
        write_records(path, failing(), form)
    bad = np.zeros(3, RECORD)
    with pytest.raises(TraceError, match="record 0: size 0"):
        write_records(path, [bad], form)
    assert path.read_text() == "as before"
    assert [p.name for p in tmp_path.iterdir()] == ["t"]


def test_no_name_appears_before_the_end(tmp_path):
    path = tmp_path / "t"

    def arrays():
        array = np.zeros(10, RECORD)
        array["size"] = 1
        yield array
        assert not path.exists()

    write_records(path, arrays())
    assert len(np.load(path)) == 10


def test_full_disk_is_a_trace_error(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("svmcore.traces.writers.os.fsync", full)
    with pytest.raises(TraceError, match="No space left") as caught:
        write_records(tmp_path / "t", [])
    assert caught.value.code == "ENOSPC"
    assert list(tmp_path.iterdir()) == []


def test_unwritable_places_are_refused(tmp_path):
    with pytest.raises(TraceError) as caught:
        write_records(tmp_path / "none" / "t", [])
    assert caught.value.code == "ENOENT"
    with pytest.raises(TraceError):
        write_records(tmp_path, [])
    with pytest.raises(InvalidArgumentError):
        write_records("a\0b", [])


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"format": "excel"}, "npy, csv, access-list, kfd-smi, parquet, arrow"),
        ({"pid": -1}, "pid"),
        ({"gpu_ids": [0]}, "gpu_ids"),
        ({"gpu_ids": [7, 7]}, "gpu_ids"),
        ({"arrays": [np.arange(3)]}, "dtype int64"),
        ({"arrays": [np.zeros((2, 2), RECORD)]}, "shape"),
    ],
)
def test_misuse_is_refused(tmp_path, keys, word):
    with pytest.raises(InvalidArgumentError, match=word):
        write_records(tmp_path / "t", keys.pop("arrays", []), **keys)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_can_be_rewritten_over_itself(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes((DATA / "records.csv").read_bytes())
    before = whole(open_trace(path))
    write_records(path, open_trace(path).chunks(1), "npy")
    assert np.array_equal(whole(open_trace(path)), before)
    assert np.array_equal(np.load(path, mmap_mode="r"), before)


REQUESTS = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])


def touch(t_ns, addr, size):
    return (t_ns, addr, size, 0, 0, Kind.ACCESS, U, NONE, U)


def test_requests_of_windows(tmp_path):
    path = tmp_path / "t"
    s, m = 10**9, 1 << 20
    rows = [touch(5 * s, 3 * m, 2 * m), touch(7 * s, 4 * m, 1), touch(8 * s - 1, 2 * m - 1, 1)]
    assert write_records(path, [np.array(rows, RECORD)], "oracle-general") == (3, {})
    assert np.fromfile(path, REQUESTS).tolist() == [
        (0, 512, 2 * m, -1),
        (0, 1024, 2 * m, 3),
        (2, 1024, 2 * m, -1),
        (2, 0, 2 * m, -1),
    ]
    write_records(path, [np.array(rows, RECORD)], "oracle-general", granularity=0)
    assert np.fromfile(path, REQUESTS)["object"].tolist() == [*range(768, 1280), 1024, 511]
    for granularity in (-1, 20):
        with pytest.raises(InvalidArgumentError, match="expected 0 to 19"):
            write_records(path, [], "oracle-general", granularity=granularity)


@given(
    rows=st.lists(
        st.builds(
            touch, st.integers(0, 1 << 40), st.integers(0, 40 << 20), st.integers(1, 20 << 20)
        ),
        max_size=30,
    ),
    cut=st.integers(1, 30),
)
def test_next_request_is_that_of_the_object(tmp_path_factory, rows, cut):
    folder = tmp_path_factory.mktemp("w")
    array = np.array(rows, RECORD)
    write_records(folder / "one", [array], "oracle-general")
    parts = [array[at : at + cut] for at in range(0, len(array), cut)]
    write_records(folder / "many", parts, "oracle-general")
    assert (folder / "one").read_bytes() == (folder / "many").read_bytes()
    requests = np.fromfile(folder / "one", REQUESTS)
    expected, last = [-1] * len(requests), {}
    for number, window in enumerate(requests["object"].tolist()):
        if window in last:
            expected[last[window]] = number + 1
        last[window] = number
    assert requests["next"].tolist() == expected
    reached = [
        window << 9
        for _, addr, size, *_ in rows
        for window in range(addr >> 21, ((addr + size - 1) >> 21) + 1)
    ]
    assert requests["object"].tolist() == reached


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_same_bytes_for_any_chunk(tmp_path, form):
    trace = open_trace(DATA / "kfd_new.txt")
    written = set()
    for n in (1, 3, 65536):
        path = tmp_path / f"{n}"
        write_records(path, trace.chunks(n), form)
        written.add(path.read_bytes())
    assert len(written) == 1
