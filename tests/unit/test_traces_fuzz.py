"""Whatever the bytes, a reader gives records or a TraceError, and loses no line silently."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svmcore.errors import TraceError
from svmcore.traces import formats, open_trace
from svmcore.traces.base import check_records
from svmcore.traces.kfd_smi import events
from svmcore.traces.uvm_log import batches

pytest.importorskip("pyarrow")
DATA = Path(__file__).parents[1] / "data" / "traces"
SAMPLES = {path.name: path.read_bytes() for path in sorted(DATA.iterdir())}
FORMATS = sorted(formats())


def attempt(path, form):
    """Everything that a reader offers; True where it reads or refuses as it should."""
    try:
        trace = open_trace(path, format=form)
        mappings = trace.mappings()
        for chunk in trace.chunks(5):
            check_records(chunk, trace.path, str)
        s = trace.summary
    except TraceError as error:
        return error.path == str(path) and bool(error.reason)
    assert s.read + s.repaired + s.refused + s.unknown + s.metadata + s.comments == s.lines
    assert all(m.size > 0 and m.start >= 0 and m.end <= 1 << 64 for m in mappings)
    ordered = sorted(mappings)
    assert all(a.end <= b.start for a, b in itertools.pairwise(ordered))
    return trace.kind in ("access", "fault")


def attempt_recognised(path, form):
    """As :func:`attempt` with the format that is recognised; *form* itself was tried already."""
    try:
        found = open_trace(path).format
    except TraceError as error:
        return error.path == str(path) and bool(error.reason)
    return found == form or attempt(path, found)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "t"


@pytest.mark.parametrize("name", SAMPLES)
def test_truncation_at_every_byte(path, name):
    whole = SAMPLES[name]
    form = open_trace(DATA / name).format
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert attempt(path, form)
        assert attempt_recognised(path, form)


@pytest.mark.parametrize("form", FORMATS)
@given(content=st.binary(max_size=300))
def test_any_bytes(path, form, content):
    path.write_bytes(content)
    assert attempt(path, form)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=150)
@given(data=st.data())
def test_damaged_samples(path, name, data):
    content = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 12))
        content[at : at + length] = data.draw(
            st.binary(max_size=6)
            | st.sampled_from([b"\0", b"\n", b",", b" ", b"-", b"0x", b"9" * 25, b"\xff\xfe", b";"])
        )
    path.write_bytes(content)
    form = open_trace(DATA / name).format
    assert attempt(path, form)
    assert attempt_recognised(path, form)


@given(
    lines=st.lists(
        st.sampled_from(
            [
                line
                for name, text in SAMPLES.items()
                if not name.endswith((".npy", ".parquet", ".arrow", ".sqlite", ".dat"))
                for line in text.split(b"\n")
            ]
        )
    ),
    glue=st.sampled_from([b"\n", b"", b" ", b"\0\n", b"\r\n"]),
)
@pytest.mark.parametrize("form", FORMATS)
def test_shuffled_lines(path, form, lines, glue):
    path.write_bytes(glue.join(lines))
    assert attempt(path, form)


@given(content=st.binary(max_size=200) | st.sampled_from(list(SAMPLES.values())))
def test_raw_iterators(path, content):
    path.write_bytes(content)
    for iterate in (events, batches):
        try:
            for _ in iterate(path):
                pass
        except TraceError:
            pass
