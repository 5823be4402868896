"""Opening, recognition, the file underneath, chunks and mappings, for every format."""

import gzip
import hashlib
import io
import itertools
import lzma
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import InvalidArgumentError, TraceError
from svmcore.records import RECORD
from svmcore.traces import Mapping, formats, map_records, open_trace, opening, write_records
from svmcore.traces.base import Spans, disjoint
from svmcore.traces.opening import LINE_LIMIT

pytest.importorskip("pyarrow")
DATA = Path(__file__).parents[1] / "data" / "traces"
SAMPLES = {
    "kfd_new.txt": ("kfd-smi", "fault"),
    "kfd_old.txt": ("kfd-smi", "fault"),
    "kfd_glued.txt": ("kfd-smi", "fault"),
    "kfd_nul.bin": ("kfd-smi", "fault"),
    "hsa_profile.txt": ("hsa-svm-profile", "fault"),
    "uvm.kmsg": ("uvm-log", "fault"),
    "uvm_bare.txt": ("uvm-log", "fault"),
    "workload.csv": ("workload-csv", "access"),
    "workload_dev.csv": ("workload-csv", "access"),
    "touches.txt": ("access-list", "access"),
    "records.csv": ("csv", "fault"),
    "records.npy": ("npy", "fault"),
    "records.parquet": ("parquet", "fault"),
    "records.arrow": ("arrow", "fault"),
    "akita.sqlite": ("akita", "access"),
    "chunk_trace.csv": ("chunk-trace", "fault"),
    "chunk_trace_ns.csv": ("chunk-trace", "fault"),
    "ftrace.txt": ("ftrace", "fault"),
    "kernel.traceg": ("accel-sim", "access"),
    "lackey.txt": ("lackey", "access"),
    "libcachesim.csv": ("libcachesim-csv", "access"),
    "nsys.sqlite": ("nsys", "fault"),
    "oracle_general.dat": ("oracle-general", "access"),
    "oracle_general_opns.dat": ("oracle-general-opns", "access"),
    "perf.txt": ("perf-script", "fault"),
    "rocpd.sqlite": ("rocpd", "fault"),
    "rocprof_new.json": ("rocprofiler-json", "fault"),
    "rocprof_old.json": ("rocprofiler-json", "fault"),
    "uvm_binary_0.dat": ("uvm-binary", "fault"),
    "uvm_binary_1.dat": ("uvm-binary", "fault"),
    "uvm_tools_v1.dat": ("uvm-tools-v1", "fault"),
    "uvm_tools_v2.dat": ("uvm-tools-v2", "fault"),
}
#: Samples whose records are no lines.
NO_LINES = (".npy", ".parquet", ".arrow", ".sqlite", ".dat", ".json")
BINARY = (*NO_LINES, ".bin")


def records_of(trace, n=65536):
    chunks = list(trace.chunks(n))
    return np.concatenate(chunks) if chunks else np.zeros(0, RECORD)


def test_every_format_has_a_sample():
    assert {name for name, _ in SAMPLES.values()} == set(formats())


@pytest.mark.parametrize("name", SAMPLES)
def test_format_is_recognised_by_content(name, tmp_path):
    nameless = tmp_path / "trace"
    nameless.write_bytes((DATA / name).read_bytes())
    trace = open_trace(nameless)
    assert (trace.format, trace.kind) == SAMPLES[name]
    assert 0.8 < trace.confidence <= 1
    assert trace.path == str(nameless)


@pytest.mark.parametrize("name", SAMPLES)
def test_lines_add_up(name):
    trace = open_trace(DATA / name)
    s = trace.summary
    assert s.read + s.repaired + s.refused + s.unknown + s.metadata + s.comments == s.lines
    if not name.endswith(NO_LINES):
        assert s.lines == (DATA / name).read_bytes().count(b"\n")
    assert s.bytes == trace.nbytes == (DATA / name).stat().st_size
    assert s.records == len(records_of(trace)) == sum(s.kinds.values())


@pytest.mark.parametrize("name", SAMPLES)
def test_chunks_do_not_depend_on_their_length_and_start_anew(name):
    trace = open_trace(DATA / name)
    whole = records_of(trace)
    for n in (1, 2, 3, 7):
        chunks = list(trace.chunks(n))
        assert [len(c) for c in chunks[:-1]] == [n] * (len(chunks) - 1)
        assert 0 < len(chunks[-1]) <= n
        assert np.array_equal(np.concatenate(chunks), whole)
    assert whole.dtype == RECORD
    assert whole.flags.writeable


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("first", ["digest", "pass", "pass that makes it"])
def test_digest_is_that_of_the_stored_bytes(name, first):
    trace = open_trace(DATA / name)
    if first == "pass that makes it":
        trace.identify()
    if first != "digest":
        records_of(trace)
        assert trace.crc32 == zlib.crc32((DATA / name).read_bytes())
    stored = (DATA / name).read_bytes()
    assert trace.digest == hashlib.blake2b(stored, digest_size=16).hexdigest()


@pytest.mark.parametrize("first", ["chunks", "mappings"])
@pytest.mark.parametrize("count", [1, 800_000], ids=["small", "in a thread"])
def test_digest_needs_no_second_pass_where_it_was_announced(tmp_path, first, count):
    path = tmp_path / "t"
    path.write_bytes(b"0x1000,4096\n" * count)
    trace = open_trace(path)
    trace.identify()
    list(trace.chunks()) if first == "chunks" else trace.mappings()
    stored = path.read_bytes()
    path.unlink()
    assert trace.digest == hashlib.blake2b(stored, digest_size=16).hexdigest()


def test_digest_is_made_once(tmp_path, monkeypatch):
    made = []

    class Counted(opening._Digest):
        def __init__(self, size):
            made.append(size)
            super().__init__(size)

    monkeypatch.setattr("svmcore.traces.opening._Digest", Counted)
    trace = open_trace(DATA / "kfd_new.txt")
    list(trace.chunks())
    assert not made
    digest = trace.digest
    trace.identify()
    list(trace.chunks())
    assert (trace.digest, len(made)) == (digest, 1)
    merged = open_trace([DATA / "kfd_new.txt", DATA / "kfd_old.txt"])
    merged.identify()
    list(merged.chunks())
    assert len(made) == 3
    assert len(merged.digest) == 32
    assert len(made) == 3


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("name", SAMPLES)
def test_compressed_files_read_alike(name, compress, tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(compress((DATA / name).read_bytes()))
    trace, plain = open_trace(path), open_trace(DATA / name)
    assert trace.format == plain.format
    assert np.array_equal(records_of(trace), records_of(plain))
    assert trace.mappings() == plain.mappings()
    assert trace.digest == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    assert trace.summary.bytes == path.stat().st_size


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_damaged_compression_is_refused(compress, tmp_path):
    whole = compress((DATA / "kfd_new.txt").read_bytes() * 50)
    path = tmp_path / "trace"
    for stored in (whole[:-9], whole[: len(whole) // 2], whole[:40] + b"\x55" * 40 + whole[80:]):
        path.write_bytes(stored)
        with pytest.raises(TraceError, match=r"damaged compressed data|format not recognised"):
            records_of(open_trace(path))


def test_digest_covers_bytes_behind_the_compressed_stream(tmp_path):
    path = tmp_path / "t.xz"
    path.write_bytes(lzma.compress(b"0x1000,4096\n") + b"\x55" * 900_000)
    trace = open_trace(path)
    assert len(records_of(trace)) == 1
    assert trace.digest == hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
@pytest.mark.parametrize("form", ["access-list", "arrow"])
def test_content_that_grows_beyond_any_trace_is_refused(tmp_path, monkeypatch, form, compress):
    monkeypatch.setattr("svmcore.traces.opening.BOMB_BYTES", 1 << 20)
    monkeypatch.setattr("svmcore.traces.opening.BOMB_RATIO", 100)
    text = b"0x1000,4096\n" * 200_000
    path = tmp_path / "t"
    path.write_bytes(compress(text if form == "access-list" else b"ARROW1\0\0" + bytes(3 << 20)))
    with pytest.raises(TraceError, match="bytes came out of them: expected compressed data"):
        list(open_trace(path, format=form).chunks())


def test_plain_content_of_any_size_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr("svmcore.traces.opening.BOMB_BYTES", 0)
    assert len(records_of(open_trace(DATA / "touches.txt"))) == 5


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has its own")
def test_zstandard_without_its_package_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "t.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00")
    with pytest.raises(TraceError, match="package 'zstandard'"):
        open_trace(path)


def test_zstandard_reads_alike(tmp_path):
    if sys.version_info >= (3, 14):
        from compression import zstd

        compress = zstd.compress
    else:
        compress = pytest.importorskip("zstandard").compress
    path = tmp_path / "t.zst"
    path.write_bytes(compress((DATA / "kfd_new.txt").read_bytes()) * 2)
    twice = tmp_path / "plain"
    twice.write_bytes((DATA / "kfd_new.txt").read_bytes() * 2)
    assert np.array_equal(records_of(open_trace(path)), records_of(open_trace(twice)))
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2 + 7, 9):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match=r"damaged compressed data|empty"):
            records_of(open_trace(path))
    path.write_bytes(whole + b"\x55" * 40)
    with pytest.raises(TraceError, match="damaged compressed data"):
        records_of(open_trace(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: None, "No such file"),
        (lambda p: p.mkdir(), "is a directory"),
        (lambda p: p.write_bytes(b""), "empty file"),
        (lambda p: p.write_bytes(gzip.compress(b"")), "empty file"),
        (lambda p: p.write_bytes(bytes(range(256)) * 4), "format not recognised"),
        (lambda p: p.write_bytes(b"\0" * 5000), "format not recognised"),
        (lambda p: p.write_text("int main(void) { return 0; }\n"), "format not recognised"),
        (lambda p: p.write_text("# nothing but a comment\n"), "format not recognised"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, make, reason):
    path = tmp_path / "t"
    make(path)
    with pytest.raises(TraceError, match=reason) as caught:
        open_trace(path)
    assert caught.value.path == str(path)
    assert "expected" in str(caught.value)


def test_errno_of_missing_and_directory(tmp_path):
    with pytest.raises(TraceError) as caught:
        open_trace(tmp_path / "none")
    assert caught.value.code == "ENOENT"
    with pytest.raises(TraceError) as caught:
        open_trace(tmp_path)
    assert caught.value.code == "EISDIR"
    assert TraceError("p", "", "r").code == "EINVAL"
    with pytest.raises(TraceError, match="file name"):
        open_trace("a\0b")


def test_unreadable_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t"
    path.write_text("0x1000,4096\n")

    class Denied(io.FileIO):
        def __init__(self, path):
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("svmcore.traces.opening.io.FileIO", Denied)
    with pytest.raises(TraceError, match="Permission denied") as caught:
        open_trace(path)
    assert caught.value.code == "EACCES"


def test_read_error_names_the_byte(tmp_path, monkeypatch):
    path = tmp_path / "t"
    path.write_text("0x1000,4096\n" * 10)

    class Failing(io.FileIO):
        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

    trace = open_trace(path)
    monkeypatch.setattr("svmcore.traces.opening.io.FileIO", Failing)
    with pytest.raises(TraceError, match="byte 0: Input/output error"):
        list(trace.chunks())


@pytest.mark.parametrize("name", SAMPLES)
def test_vanished_or_shrunk_file_is_refused(name, tmp_path):
    path = tmp_path / "t"
    path.write_bytes((DATA / name).read_bytes())
    trace = open_trace(path)
    with path.open("r+b") as file:
        file.truncate(trace.nbytes - 1)
    with pytest.raises(TraceError, match="shrank"):
        list(trace.chunks())
    path.unlink()
    with pytest.raises(TraceError, match="No such file"):
        list(trace.chunks())
    with pytest.raises(TraceError):
        _ = trace.digest


def test_file_that_shrinks_during_a_pass_is_refused(tmp_path):
    path = tmp_path / "t"
    path.write_text("0x1000,4096\n" * 400_000)
    chunks = open_trace(path).chunks(1000)
    next(chunks)
    path.write_text("0x1000,4096\n")
    with pytest.raises(TraceError, match="shrank"):
        list(chunks)


@pytest.mark.parametrize("again", ["pass", "digest"])
def test_file_that_changed_between_passes_is_refused(tmp_path, again):
    path = tmp_path / "t"
    path.write_text("0x1000,4096\n")
    trace = open_trace(path)
    list(trace.chunks())
    path.write_text("0x2000,4096\n")
    with pytest.raises(TraceError, match="changed"):
        _ = trace.digest if again == "digest" else list(trace.chunks())


def test_growing_file_is_read_as_it_was(tmp_path):
    path = tmp_path / "t"
    path.write_text("0x1000,4096\n")
    trace = open_trace(path)
    with path.open("a") as file:
        file.write("0x2000,4096\n")
    assert len(records_of(trace)) == 1


@pytest.mark.parametrize("form", ["access-list", "kfd-smi", "uvm-log", "workload-csv", "csv"])
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_huge_line_is_refused(tmp_path, form, newline):
    path = tmp_path / "t"
    path.write_bytes(b"9" * (LINE_LIMIT + 1) + newline)
    with pytest.raises(TraceError, match="line 1: longer than"):
        list(open_trace(path, format=form).chunks())


def test_unknown_format_name_lists_the_known_ones(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"one of .*access-list.* arrow.* csv.* kfd-smi"):
        open_trace(DATA / "touches.txt", format="excel")


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("form", sorted(formats()))
def test_wrong_format_is_refused(name, form):
    if form == SAMPLES[name][0]:
        return
    with pytest.raises(TraceError):
        list(open_trace(DATA / name, format=form).chunks())


def test_chunk_below_one_is_refused_at_once():
    with pytest.raises(InvalidArgumentError):
        open_trace(DATA / "touches.txt").chunks(0)


def test_progress_counts_raw_bytes_up_to_the_size(tmp_path):
    seen = []
    path = tmp_path / "t"
    path.write_text("0x1000,4096\n" * 300_000)
    trace = open_trace(path, progress=seen.append)
    list(trace.chunks())
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == trace.nbytes


def test_ranges_replace_the_mappings():
    trace = open_trace(DATA / "touches.txt", ranges=[(0x1000_0000, 1 << 20), (0, 4096, "zero")])
    assert trace.mappings() == [
        Mapping(0x1000_0000, 1 << 20, "range0"),
        Mapping(0, 4096, "zero"),
    ]
    assert trace.mappings()[0].end == 0x1010_0000


@pytest.mark.parametrize(
    "ranges",
    [[(0, 0)], [(-1, 5)], [((1 << 64) - 1, 2)], [(0, 4096), (4095, 1)]],
)
def test_bad_ranges_are_refused(ranges):
    with pytest.raises(InvalidArgumentError, match="expected"):
        open_trace(DATA / "touches.txt", ranges=ranges)


def test_touched_pages_join_where_adjacent():
    assert open_trace(DATA / "touches.txt").mappings() == [
        Mapping(0x1000_0000, 0x4000, "touched0"),
        Mapping(0x2000_0000, 0x2000, "touched1"),
        Mapping(0x3000_0000, 0x10000, "touched2"),
    ]


def test_spans_equal_a_set_of_pages():
    rng = np.random.default_rng(7)
    spans, pages = Spans(), set()
    for _ in range(6):
        chunk = np.zeros(40_000, RECORD)
        chunk["addr"] = rng.integers(0, 1 << 31, len(chunk))
        chunk["size"] = rng.integers(0, 20_000, len(chunk))
        spans.add(chunk)
        for addr, size in chunk[["addr", "size"]].tolist():
            if size:
                pages.update(range(addr >> 12, ((addr + size - 1) >> 12) + 1))
    runs = spans.runs()
    found = [page for start, end in runs for page in range(start >> 12, end >> 12)]
    assert found == sorted(pages)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(runs))


def test_spans_reach_the_end_of_the_address_space():
    spans = Spans()
    last = np.zeros(1, RECORD)
    last["addr"], last["size"] = (1 << 64) - 1, 1
    spans.add(last)
    assert spans.runs() == [((1 << 64) - 4096, 1 << 64)]
    assert Spans().runs() == []


def test_overlapping_mappings_join_and_repeated_names_get_an_index():
    spans = [(0x5000, 0x1000, "b"), (0x1000, 0x2000, "a"), (0x2000, 0x2000, "c"), (0, 1, "b")]
    assert disjoint([*spans, (0x9000, 16, "")], "word") == [
        Mapping(0x5000, 0x1000, "b0"),
        Mapping(0x1000, 0x3000, "a"),
        Mapping(0, 1, "b2"),
        Mapping(0x9000, 16, "word3"),
    ]


def test_mappings_survive_in_a_file_of_records(tmp_path):
    source = open_trace(DATA / "workload.csv")
    path = tmp_path / "t.npy"
    write_records(path, [map_records(source.mappings()), *source.chunks()])
    again = open_trace(path)
    assert [m[:2] for m in again.mappings()] == [m[:2] for m in source.mappings()]
    assert again.kind == "access"


def test_last_line_without_newline(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"0x1000,4096,r\n0x2000,40")
    trace = open_trace(path)
    assert records_of(trace)["size"].tolist() == [4096, 40]
    assert "no newline" in trace.summary.notes[0]
    assert (trace.summary.read, trace.summary.repaired) == (1, 1)
    path.write_bytes(b"0x1000,4096,r\n0x2000,")
    trace = open_trace(path)
    assert len(records_of(trace)) == 1
    assert trace.summary.refused == 1
    assert trace.summary.notes[0].startswith("line 2 is cut off")
    path.write_bytes(b"0x1000,")
    with pytest.raises(TraceError, match="line 1"):
        list(open_trace(path, format="access-list").chunks())


def test_windows_newlines_and_byte_order_mark(tmp_path):
    path = tmp_path / "t"
    for name in SAMPLES:
        if name.endswith(BINARY):
            continue
        text = (DATA / name).read_bytes()
        path.write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
        trace = open_trace(path)
        assert trace.format == SAMPLES[name][0]
        assert np.array_equal(records_of(trace), records_of(open_trace(DATA / name)))


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("svmcore.traces.opening.BLOCK_BYTES", 1 << 15)
    path = tmp_path / "t"
    peaks = []
    for lines in (15_000, 60_000):
        path.write_text("0x7f0000001000,4096,r,gpu0\n" * lines)
        tracemalloc.start()
        for _ in open_trace(path).chunks(1000):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2


def test_repr_names_format_and_path():
    assert repr(open_trace(DATA / "touches.txt")).startswith("<access-list trace '")
