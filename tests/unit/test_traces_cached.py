"""Copies of records: the second open is fast, and never of another file."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from svmcore.errors import InvalidArgumentError, TraceError
from svmcore.traces import Trace, open_trace
from svmcore.traces import cached as room
from svmcore.traces.base import FORMATS
from svmcore.traces.cached import CachedTrace

DATA = Path(__file__).parents[1] / "data" / "traces"
NAMES = ["kfd_new.txt", "kfd_glued.txt", "hsa_profile.txt", "uvm.kmsg", "workload_dev.csv"]


@pytest.fixture
def settled(monkeypatch):
    """Files count as settled at once, so that their times are trusted."""
    monkeypatch.setattr(room, "_RACY_NS", -(1 << 62))


@pytest.fixture
def unread(monkeypatch):
    """From the call on no source is read any more."""

    def switch():
        def fail(*_):
            raise AssertionError("the source was read")

        for form in ("kfd-smi", "hsa-svm-profile", "uvm-log", "workload-csv", "access-list"):
            monkeypatch.setattr(FORMATS[form], "_arrays", fail)

    return switch


def told(trace):
    records = np.concatenate(list(trace.chunks(3)))
    kept = trace.format, trace.kind, trace.digest, trace.names, trace.gpu_ids, trace.confidence
    return records.tolist(), trace.mappings(), trace.summary, kept


@pytest.mark.parametrize("name", NAMES)
def test_second_open_says_the_same_without_the_source(name, tmp_path, settled, unread):
    first = told(open_trace(DATA / name, cache=tmp_path / "c"))
    assert first == told(open_trace(DATA / name))
    unread()
    again = open_trace(DATA / name, cache=tmp_path / "c")
    assert isinstance(again, CachedTrace)
    assert told(again) == first
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_progress_is_in_bytes_of_the_source(tmp_path, settled):
    path, seen = DATA / "uvm.kmsg", []
    open_trace(path, cache=tmp_path)
    trace = open_trace(path, cache=tmp_path, progress=seen.append)
    list(trace.chunks())
    assert trace.nbytes == path.stat().st_size == seen[-1]


def test_given_ranges_are_those_of_this_open(tmp_path, settled):
    path, cache = DATA / "uvm.kmsg", tmp_path / "c"
    one = open_trace(path, ranges=[(0, 4096, "mine")], cache=cache)
    assert [m.name for m in one.mappings()] == ["mine"]
    assert open_trace(path, cache=cache).mappings() == open_trace(path).mappings()


@pytest.mark.parametrize("change", ["append", "same size", "another file", "touched back"])
def test_changed_source_is_read_anew(tmp_path, change, settled):
    path, cache = tmp_path / "t", tmp_path / "c"
    path.write_text("0x1000,4096\n")
    assert told(open_trace(path, cache=cache))[0][0][1] == 0x1000
    before = path.stat()
    if change == "append":
        with path.open("a") as file:
            file.write("0x2000,4096\n")
    elif change == "another file":
        (tmp_path / "n").write_text("0x9000,4096\n")
        (tmp_path / "n").replace(path)
    else:
        path.write_text("0x9000,4096\n")
    if change == "touched back":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert told(open_trace(path, cache=cache))[0] == told(open_trace(path))[0]
    assert len(list(cache.iterdir())) == 2


def test_source_just_changed_is_compared_by_its_bytes(tmp_path, monkeypatch):
    path, cache = tmp_path / "t", tmp_path / "c"
    path.write_text("0x1000,4096\n")
    told(open_trace(path, cache=cache))
    monkeypatch.setattr(
        room, "_seen", lambda _: json.loads(next(cache.glob("*.json")).read_text())["source"]
    )
    assert isinstance(open_trace(path, cache=cache), CachedTrace)
    path.write_text("0x9000,4096\n")  # as if nothing in the times told it
    assert told(open_trace(path, cache=cache))[0][0][1] == 0x9000


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "no json", "older", "elsewhere"])
def test_damaged_copy_is_never_believed(tmp_path, damage, settled):
    path, cache = tmp_path / "t", tmp_path / "c"
    path.write_text("0x1000,4096\n" * 50)
    told(open_trace(path, cache=cache))
    copy, note = next(cache.glob("*.npy")), next(cache.glob("*.json"))
    content = bytearray(copy.read_bytes())
    if damage == "flipped":
        content[-20] ^= 1  # in the size of a record
        copy.write_bytes(content)
        with pytest.raises(TraceError, match="is not the copy"):
            list(open_trace(path, cache=cache).chunks())
        return
    if damage == "cut":
        copy.write_bytes(content[:-40])
    elif damage == "gone":
        copy.unlink()
    elif damage == "no json":
        note.write_text("{")
    else:
        facts = json.loads(note.read_text())
        facts["form" if damage == "older" else "copy"] = "../x"
        note.write_text(json.dumps(facts))
    assert told(open_trace(path, cache=cache))[0] == told(open_trace(path))[0]


def test_interrupt_leaves_no_copy(tmp_path, monkeypatch):
    path, cache = tmp_path / "t", tmp_path / "c"
    path.write_text("0x1000,4096\n")

    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trace, "summary", property(stop))
    with pytest.raises(KeyboardInterrupt):
        open_trace(path, cache=cache)
    assert list(cache.iterdir()) == []


def test_fast_formats_and_bad_folders(tmp_path):
    trace = open_trace(DATA / "records.npy", cache=tmp_path)
    assert not isinstance(trace, CachedTrace)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="expected a folder"):
        open_trace(DATA / "uvm.kmsg", cache=tmp_path / "file")


def test_several_files_have_a_copy_each(tmp_path, settled, unread):
    paths = [DATA / "kfd_new.txt", DATA / "kfd_old.txt"]
    first = told(open_trace(paths, cache=tmp_path))
    assert first == told(open_trace(paths))
    unread()
    assert told(open_trace(paths, cache=tmp_path)) == first
