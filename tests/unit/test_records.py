"""The trace record and the outcome: NumPy dtypes equal the C structs of the replay loop."""

import re
from pathlib import Path

import numpy as np
import pytest

import svmcore
from svmcore import Gpu, Machine, Space
from svmcore._faults import REASONS
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.records import CPU, RECORD, UNKNOWN, Access, Kind, processor_code, processor_name

PAGE = 4096
BASE = 0x7ABC_D000_0000
SOURCE = Path(svmcore.__file__).parent
WIDTHS = {"uint8_t": 1, "uint16_t": 2, "int16_t": 2, "uint32_t": 4, "uint64_t": 8}


def space(gpus=3, **settings):
    return Space(Machine("m", tuple(Gpu(11 + i, 1 << 20) for i in range(gpus))), **settings)


def play(target, *rows, by=1, raw=False, by_arrival=False, t0=0):
    trace = np.array(list(rows), RECORD)
    out = np.full(len(trace), -1, "i8").repeat(5).view(OUTCOME)  # every byte is set before
    replay_chunk(target.process, trace, out, by=by, raw=raw, by_arrival=by_arrival, t0=t0)
    return out


def c_fields(path, struct):
    """(name, bytes) of the fields of a struct in Cython text."""
    text = path.read_text()
    body = re.search(rf"cdef struct {struct}:\n((?:    .*\n)+)", text)
    return [
        (name, WIDTHS[kind])
        for kind, name in re.findall(r"^    (\w+) (\w+)", body.group(1), re.MULTILINE)
    ]


@pytest.mark.parametrize(
    ("file", "struct", "dtype"),
    [("_types.pxd", "record_t", RECORD), ("_types.pxd", "outcome_t", OUTCOME)],
)
def test_fields_in_order_without_holes(file, struct, dtype):
    fields = c_fields(SOURCE / file, struct)
    assert [name for name, _ in fields] == list(dtype.names)
    at = 0
    for name, width in fields:
        kind, offset = dtype.fields[name]
        assert (kind.itemsize, offset) == (width, at), name
        assert offset % width == 0, "C would align it elsewhere"
        at += width
    assert dtype.itemsize == at == 40


def test_every_field_of_a_record_is_read_from_its_place():
    """Values that differ in every byte: a field read elsewhere would be another one."""
    # addr, size, access, proc: a write by GPU 2 to pages of another number each.
    target = space(granularity=0)
    target.map(BASE, 64 * PAGE)
    rows = [(0x0102030405060708, BASE + 0x3123, 0x2345, 0, 0x11121314, Kind.ACCESS, 3, 1, 0x21)]
    out = play(target, *rows)
    assert out["faults"][0] == 3  # bytes 3123 to 5467
    assert out["best"][0] == 3
    assert target.residency(BASE, 8 * PAGE) == [
        (BASE, 3 * PAGE, "absent"),
        (BASE + 3 * PAGE, 3 * PAGE, "gpu2"),
        (BASE + 6 * PAGE, 2 * PAGE, "absent"),
    ]
    assert list(target.counters_by_processor()) == ["gpu2"]
    # access: a write where only reading is allowed.
    target.protect(BASE, 64 * PAGE, "r")
    out = play(target, (0, BASE, 1, 0, 0, 0, 2, 2, 0), (0, BASE, 1, 0, 0, 0, 2, 3, 0))
    assert list(out["code"]) == [-1, 0]
    # dur_ns: 40 bits of it pass in an access.
    play(target, (0, BASE, 1, 0, 0, 0, 0, 0, 0))
    before = target.now_ns
    out = play(target, (0, BASE, 1, 0x0102030405, 0, Kind.ACCESS, 0, 0, 0))
    assert target.now_ns - before == 0x0102030405
    # t_ns: a record of a fault trace arrives then.
    out = play(target, (0x0A0B0C0D0E, BASE, 1, 0, 0, 0, 0, 0, 0), by_arrival=True, t0=0x0E)
    assert out["t_ns"][0] == target.now_ns == 0x0A0B0C0D00
    # value and peer, by what advice does with them.
    advice = (0, BASE, PAGE, 0, 0xA5, Kind.ADVISE, 77, 5, 99)  # SET_FLAGS
    place = (0, BASE, PAGE, 0, 0xFFFF, Kind.ADVISE, 77, 0, 2)  # PREFERRED_LOC
    assert list(play(target, advice, place)["code"]) == [0, 0]
    first = target.ranges()[0]
    assert (first.size, int(first.flags), first.preferred) == (PAGE, 0xA7, "gpu1")
    # kind: recorded outcomes do nothing.
    out = play(target, (0, BASE, PAGE, 0, 0, Kind.EVICT, 2, 0, 1))
    assert out["reason"][0] == 0
    # proc 255: the one that the caller names.
    play(target, (0, BASE, 1, 0, 0, Kind.ACCESS, UNKNOWN, 0, 0), by=2)
    assert "gpu1" in target.counters_by_processor()


def test_every_field_of_an_outcome_is_written_to_its_place():
    target = space(xnack=True)
    target.map(BASE, 2048 * PAGE)
    target.set_attr(BASE, 1024 * PAGE, [])
    fatal = BASE + 5000 * PAGE
    out = play(
        target,
        (0, BASE, PAGE, 5, 0, Kind.ACCESS, 2, 1, 0),
        (0, BASE + 513 * PAGE, PAGE, 0, 0, Kind.ACCESS, 2, 1, 0),
        (0, fatal, PAGE, 0, 0, Kind.ACCESS, 1, 0, 0),
        (0, BASE, PAGE, 0, 0, Kind.MIGRATE, 1, 0, 0),
    )
    assert [int(v) for v in out["faults"]] == [1, 1, 0, 0]
    assert [int(v) for v in out["duplicates"]] == [0, 1, 0, 0]
    assert [int(v) for v in out["moved"]] == [512, 512, 0, 0]
    assert [int(v) for v in out["remote"]] == [0, 0, 0, 0]
    assert [int(v) for v in out["code"]] == [0, 0, -14, 0]
    assert [REASONS[v] for v in out["reason"]] == ["ok", "ok", "no_range", "none"]
    assert [int(v) for v in out["best"]] == [2, 2, 255, 255]
    assert int(out["page"][2]) == fatal // PAGE
    assert not out["pad"].any()
    assert 0 < out["t_ns"][0] < out["t_ns"][1] < out["t_ns"][2] == target.now_ns
    remote = space(xnack=False)
    remote.map(BASE, 16 * PAGE)
    remote.access(BASE, 16 * PAGE, by="cpu", write=True)
    remote.set_attr(BASE, 16 * PAGE, [("ACCESS", "gpu0")])
    assert int(play(remote, (0, BASE, 7 * PAGE, 0, 0, 0, 1, 0, 0))["remote"][0]) == 7


def test_the_loop_stops_at_a_processor_that_is_not_there():
    target = space()
    target.map(BASE, 16 * PAGE)
    rows = [(0, BASE, PAGE, 0, 0, Kind.ACCESS, proc, 0, 0) for proc in (1, 9, 1)]
    with pytest.raises(Exception, match=r"record 1: processor gpu8, expected one of cpu, gpu0"):
        play(target, *rows)
    assert target.counters()["pages_touched"] == 1


def test_other_dtypes_are_refused():
    target, out = space(), np.empty(1, OUTCOME)
    other = np.dtype([(name, "<u8") for name in RECORD.names])
    with pytest.raises(ValueError, match=r"(?i)buffer|dtype"):
        replay_chunk(target.process, np.zeros(1, other), out)
    with pytest.raises(ValueError, match=r"(?i)buffer|dtype"):
        replay_chunk(target.process, np.zeros(1, RECORD), np.empty(1, RECORD))


# ---- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("cpu", CPU), ("gpu0", 1), ("gpu63", 64)])
def test_processor_codes(name, code):
    assert processor_code(name) == code
    assert processor_name(code) == name


def test_unknown_processor_name():
    assert processor_name(UNKNOWN) == "unknown"


@pytest.mark.parametrize("name", ["gpu64", "gpu", "gpu-1", "GPU0", "", "unknown", "gpu1 ", "gpu²"])
def test_no_processors(name):
    with pytest.raises(ValueError, match="expected cpu or gpu0 to gpu63"):
        processor_code(name)


def test_kinds_and_accesses_are_fixed_numbers():
    assert [int(kind) for kind in Kind] == [0, 1, 2, 3, 4, 5, *range(16, 29)]
    assert [int(access) for access in Access] == [0, 1, 2, 3, 4]
