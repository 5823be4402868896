"""Replay and its result: record kinds, chunks, clocks, tables."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from json_keys import KEYS
from svmcore import Gpu, Machine, Space, open_trace, replay
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.attributes import Attribute, Flag
from svmcore.errors import (
    AddressError,
    InvalidArgumentError,
    NotSupportedError,
    PermissionDeniedError,
)
from svmcore.records import CPU, RECORD, UNKNOWN, Access, Kind
from svmcore.result import BOUND_NOTE, BUFFER
from svmcore.traces import write_records

PAGE = 4096
BASE = 0x7F00_0000_0000
MS = 1_000_000
TOP = 1 << 64


def machine(gpus=1, vram_pages=1 << 20):
    return Machine("unit", tuple(Gpu(1 + i, vram_pages) for i in range(gpus)))


def fresh(gpus=2, vram_pages=1 << 20, **settings):
    return Space(machine(gpus, vram_pages), **settings)


def record(addr, size=PAGE, *, t=0, dur=0, value=0, kind=Kind.ACCESS, proc=1, access=0, peer=0):
    return (t, addr, size, dur, value, kind, proc, access, peer)


def records(*rows):
    return np.array(list(rows), RECORD)


def random_records(n=4000, seed=3, *, gpus=2, pages=4096, kinds=True):
    rng = np.random.default_rng(seed)
    found = np.zeros(n, RECORD)
    found["addr"] = BASE + rng.integers(0, pages - 64, n) * PAGE + rng.integers(0, PAGE, n)
    found["size"] = rng.integers(1, 64 * PAGE - PAGE, n)
    found["t_ns"] = np.cumsum(rng.integers(0, 5000, n))
    found["dur_ns"] = rng.integers(0, 3000, n)
    found["proc"] = rng.integers(0, gpus + 1, n)
    found["access"] = rng.integers(0, 5, n)
    if kinds:
        found["kind"] = rng.choice(
            [Kind.ACCESS, Kind.FAULT, Kind.ADVISE, Kind.PREFETCH, Kind.MIGRATE, Kind.EVICT],
            n,
            p=[0.6, 0.2, 0.05, 0.05, 0.05, 0.05],
        )
        advice = found["kind"] == Kind.ADVISE
        found["access"][advice] = rng.choice([0, 2, 3, 4, 5, 7], int(advice.sum()))
        found["peer"] = rng.integers(0, gpus + 1, n)
        found["value"] = rng.integers(0, 11, n)
    return found


def same(a, b):
    """Two results are equal but for real time."""
    left, right = a.to_dict(), b.to_dict()
    for key in ("wall_s", "engine_s", "records_per_s"):
        left.pop(key), right.pop(key)
    return left == right


# ---- what does not matter ---------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["7.3", "6.1"])
@pytest.mark.parametrize("raw", [False, True])
def test_chunk_size_does_not_matter(kernel, raw):
    trace = random_records()
    results = [
        replay(
            trace,
            fresh(vram_pages=2048, kernel=kernel, max_svm_range_pages=512),
            chunk=chunk,
            outcomes=True,
            raw_faults=raw,
        )
        for chunk in (1, 7, 65536)
    ]
    assert (results[0].outcomes == results[2].outcomes).all()
    assert (results[1].outcomes == results[2].outcomes).all()
    assert same(results[0], results[2])
    assert same(results[1], results[2])
    assert results[0].counters["migrations"] > 0
    assert results[0].counters["evictions"] > 0


def test_same_trace_same_result():
    trace = random_records()
    assert same(replay(trace, fresh()), replay(trace, fresh()))
    assert not same(replay(trace, fresh()), replay(random_records(seed=4), fresh()))


PROGRAM = """
import sys
sys.path[:0] = [{tests!r}]
from test_replay import *
result = replay(random_records(1500), fresh(vram_pages=2048), outcomes=True)
table = result.to_dict()
for key in ("wall_s", "engine_s", "records_per_s"):
    table.pop(key)
print(json.dumps(table))
print(result.outcomes.tobytes().hex())
"""


def test_hash_seed_does_not_matter():
    program = PROGRAM.format(tests=os.path.dirname(__file__))  # noqa: PTH120 - plain text
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_from_a_file_as_from_memory(tmp_path):
    trace = random_records(500, kinds=False)
    path = tmp_path / "trace.npy"
    np.save(path, trace)
    memory = replay(trace, fresh(), outcomes=True)
    for source in (path, str(path), open_trace(path)):
        stored = replay(source, fresh(), outcomes=True)
        assert (stored.outcomes == memory.outcomes).all()
        assert stored.counters == memory.counters
    assert stored.trace["format"] == "npy"
    assert stored.trace["path"] == str(path)
    assert stored.trace["digest"] != ""


def test_as_the_same_calls_on_a_space():
    trace = random_records(800, kinds=False)
    trace["dur_ns"] = 0
    replayed, called = fresh(), fresh()
    for space in (replayed, called):
        space.map(BASE, 4096 * PAGE)
    result = replay(trace, replayed, outcomes=True)
    for row, out in zip(trace.tolist(), result.outcomes, strict=True):
        _, addr, size, _, _, _, proc, access, _ = row
        by = "cpu" if proc == 0 else f"gpu{proc - 1}"
        touch = called.access(addr, size, by, access in (1, 2))
        assert (out["faults"], out["duplicates"]) == (touch.faults, touch.duplicates)
        assert (out["remote"], out["t_ns"]) == (touch.remote_pages, touch.ready_ns)
    assert replayed.ranges() == called.ranges()
    assert replayed.counters() == called.counters()
    replayed.process.check()


# ---- record kinds ---------------------------------------------------------------------------


def test_map_and_unmap_records():
    space = fresh()
    trace = records(
        record(BASE, 64 * PAGE, kind=Kind.MAP),
        record(BASE, 8 * PAGE),
        record(BASE, 32 * PAGE, kind=Kind.UNMAP),
        record(BASE),
        record(BASE + 32 * PAGE, t=9 * MS),
        record(BASE, 32 * PAGE, kind=Kind.MAP),
        record(BASE),
    )
    result = replay(trace, space, outcomes=True)
    assert list(result.outcomes["code"]) == [0, 0, 0, -14, 0, 0, 0]
    assert result.outcomes["page"][3] == BASE >> 12
    assert result.counters["errors"] == 1
    assert result.reasons == {"no_range": 1}
    assert result.first_error == {
        "record": 3,
        "addr": BASE,
        "reason": "no_range",
        "code": "EFAULT",
    }
    assert result.names == ["map0", "map1"]


def test_advise_and_prefetch_records():
    space = fresh()
    trace = records(
        record(BASE, 64 * PAGE, kind=Kind.MAP),
        record(BASE, 8 * PAGE, kind=Kind.ADVISE, access=Attribute.PREFERRED_LOC, peer=2),
        record(BASE + 8 * PAGE, 8 * PAGE, kind=Kind.ADVISE, access=Attribute.GRANULARITY, value=3),
        record(BASE + 16 * PAGE, 8 * PAGE, kind=Kind.ADVISE, access=Attribute.NO_ACCESS, peer=1),
        record(
            BASE + 24 * PAGE,
            8 * PAGE,
            kind=Kind.ADVISE,
            access=Attribute.SET_FLAGS,
            value=Flag.GPU_READ_MOSTLY,
        ),
        record(BASE + 32 * PAGE, 8 * PAGE, kind=Kind.PREFETCH, peer=2),
        record(BASE + 40 * PAGE, 8 * PAGE, kind=Kind.PREFETCH, peer=UNKNOWN),
        record(BASE + 1024 * PAGE, 8 * PAGE, kind=Kind.PREFETCH, peer=2),
    )
    result = replay(trace, space, outcomes=True)
    assert list(result.outcomes["code"]) == [0, 0, 0, 0, 0, 0, -22, -14]
    infos = space.ranges()
    assert [(r.start - BASE) // PAGE for r in infos] == [0, 8, 16, 24, 32]
    assert infos[0].preferred == "gpu1"
    assert infos[1].granularity == 3
    assert infos[2].access == ("gpu1",)
    assert Flag.GPU_READ_MOSTLY in infos[3].flags
    assert (infos[4].prefetch, infos[4].actual, infos[4].device_pages) == ("gpu1", "gpu1", 8)
    assert result.counters["bytes_to_device"] == 8 * PAGE
    # Refused advice is told, not only left out.
    assert result.reasons == {"EINVAL": 1, "EFAULT": 1}
    assert result.explain(6) == "record 6 was refused by the driver: EINVAL"
    assert result.first_error["record"] == 6
    assert result.first_error["code"] == "EINVAL"


def test_advice_covers_whole_pages():
    space = fresh()
    trace = records(
        record(BASE, 64 * PAGE, kind=Kind.MAP),
        record(BASE + 100, PAGE, kind=Kind.ADVISE, access=Attribute.GRANULARITY, value=3),
    )
    replay(trace, space)
    assert [(r.start, r.size) for r in space.ranges()] == [(BASE, 2 * PAGE)]


def test_recorded_outcomes_are_not_replayed():
    space = fresh()
    trace = records(
        *(record(BASE, 64 * PAGE, kind=kind, t=5 * MS, proc=60) for kind in range(16, 25)),
        record(BASE),
    )
    result = replay(trace, space, outcomes=True)
    assert not result.outcomes["reason"][:9].any()
    assert not result.outcomes["t_ns"][:9].any()
    assert result.counters["faults"] == 1
    assert result.trace["records"] == 10
    assert result.explain(0) == "record 0 is a recorded outcome: not replayed"


def test_records_without_a_processor():
    trace = records(record(BASE, proc=UNKNOWN))
    by = [
        replay(trace, fresh(), by=name).to_dict()["faults_by_processor"]
        for name in ("gpu0", "gpu1", "cpu")
    ]
    assert by == [{"gpu0": 1}, {"gpu1": 1}, {"cpu": 0}]


def test_touches_of_a_loaded_space_that_has_many_ranges_and_no_page_yet(tmp_path):
    ranges, touches = 17_000, 64
    space = Space(Machine("many", (Gpu(1, 1 << 20),)))
    base = 1 << 32
    space.map(base, ranges * 4096)
    for i in range(ranges):
        assert space.process.set_attr(base + i * 4096, 4096, [(7, i % 2)]) == 0
    space.save(tmp_path / "many.svm")
    records = np.zeros(32 + touches, RECORD)
    records["kind"], records["size"], records["proc"] = Kind.ACCESS, 4096, 1
    # Behind records that are no faults, ranges are not looked up ahead.
    records["kind"][:32], records["addr"][:32] = Kind.UNMAP, 1 << 44
    records["addr"][32:] = base + np.arange(touches) * 4096
    out = np.empty(len(records), OUTCOME)
    replay_chunk(Space.load(tmp_path / "many.svm").process, records, out)
    assert out["faults"][32:].tolist() == [1] * touches


@pytest.mark.parametrize("chunk", [1, 7, 65536])
@pytest.mark.parametrize("number", [0, 5, 12])
def test_processor_that_the_machine_lacks(number, chunk):
    trace = records(*(record(BASE + i * PAGE) for i in range(20)))
    trace["proc"][number] = 9
    with pytest.raises(InvalidArgumentError) as caught:
        replay(trace, fresh(), chunk=chunk)
    text = str(caught.value)
    assert f"record {number}:" in text
    assert "gpu8" in text
    assert "cpu, gpu0, gpu1" in text


@pytest.mark.parametrize("by", ["gpu2", "gpu64", "gpux", "", "tpu0"])
def test_by_that_the_machine_lacks(by):
    space = fresh()
    with pytest.raises(InvalidArgumentError, match="gpu0"):
        replay(records(record(BASE)), space, by=by)
    assert space.process.vma(BASE >> 12) is None


@pytest.mark.parametrize("chunk", [0, -1])
def test_chunk_below_one(chunk):
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        replay(records(record(BASE)), fresh(), chunk=chunk)


@pytest.mark.parametrize(
    "trace",
    [np.zeros(3, "u8"), np.zeros((2, 2), RECORD), np.zeros((), RECORD)],
    ids=["dtype", "two dimensions", "no dimension"],
)
def test_arrays_of_another_form(trace):
    with pytest.raises(InvalidArgumentError, match="RECORD"):
        replay(trace, fresh())


def test_no_records():
    result = replay(np.zeros(0, RECORD), fresh(), outcomes=True)
    assert result.trace["records"] == 0
    assert len(result.outcomes) == len(result.buffers) == 0
    assert result.time_ns == 0
    assert json.loads(result.to_json())["buffers"] == []


def test_a_view_with_strides():
    trace = random_records(600, kinds=False)
    assert same(replay(trace[::3], fresh()), replay(trace[::3].copy(), fresh()))


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize(("addr", "size"), [(BASE, 0), (0, 0), (TOP - PAGE, PAGE + 1)])
def test_records_without_bytes_or_past_the_top(kind, addr, size):
    space = fresh(1)
    trace = records(record(BASE, kind=Kind.MAP), record(addr, size, kind=kind))
    with pytest.raises(InvalidArgumentError, match=r"record 1: .*2\*\*64"):
        replay(trace, space)
    assert space.process.vma(BASE >> 12) is None
    space.process.check()


def test_page_numbers_near_the_top():
    first = TOP - 16 * PAGE
    trace = records(
        record(first, 16 * PAGE, access=1), record(TOP - 1, 1, proc=0), record(TOP - PAGE, PAGE)
    )
    space = fresh(1)
    result = replay(trace, space, outcomes=True)
    assert list(result.outcomes["code"]) == [0, 0, 0]
    assert list(result.outcomes["faults"]) == [1, 1, 1]
    assert int(result.buffers["start"][0]) == first
    assert int(result.buffers["size"][0]) == 16 * PAGE
    assert int(result.buffers["records"][0]) == 3


def test_sixty_four_gpus():
    trace = records(*(record(BASE + i * 512 * PAGE, proc=i + 1) for i in range(64)))
    result = replay(trace, fresh(64))
    assert result.to_dict()["faults_by_processor"] == {f"gpu{i}": 1 for i in range(64)}


# ---- touches, faults, times -----------------------------------------------------------------


def test_writes_are_told_from_reads():
    space = fresh(1)
    space.map(BASE, PAGE, prot="r")
    rows = [record(BASE, access=access) for access in Access]
    result = replay(records(*rows), space, outcomes=True)
    fatal = [Access.WRITE, Access.ATOMIC]
    assert [i for i, code in enumerate(result.outcomes["code"]) if code] == fatal
    assert result.reasons == {"permission": 2}


def test_access_traces_add_their_compute_time():
    trace = records(record(BASE, dur=700, t=10 * MS), record(BASE, dur=300, t=90 * MS))
    result = replay(trace, fresh(1), outcomes=True)
    done = result.outcomes["t_ns"]
    assert done[1] - done[0] == 300
    assert result.time_ns == done[1] < MS  # their own times are no arrivals


def test_fault_traces_wait_for_their_own_times():
    kinds = {"kind": Kind.FAULT}
    trace = records(
        record(BASE, t=70 * MS, **kinds),
        record(BASE + 600 * PAGE, t=79 * MS, dur=5 * MS, **kinds),
        record(BASE + 601 * PAGE, t=80 * MS, **kinds),
    )
    result = replay(trace, fresh(1), outcomes=True)
    done = result.outcomes["t_ns"]
    assert done[0] < MS  # times count from the first record
    assert 9 * MS <= done[1] < 10 * MS
    assert done[2] == 10 * MS
    assert BOUND_NOTE in result.notes
    assert result.trace["kind"] == "fault"


def test_fault_trace_into_a_space_with_a_past():
    trace = records(
        record(BASE, t=2 * MS, kind=Kind.FAULT), record(BASE + PAGE, t=7 * MS, kind=Kind.FAULT)
    )
    space = fresh(1)
    space.step(100 * MS)
    result = replay(trace, space, outcomes=True)
    assert result.outcomes["t_ns"][0] - 100 * MS < MS
    assert result.time_ns == space.now_ns - 100 * MS
    # 5 ms lie between the two records, whatever the space's clock says.
    assert result.time_ns == 5 * MS


def test_recorded_faults_are_touches():
    trace = records(*(record(BASE + i * PAGE, t=i * 100, kind=Kind.FAULT) for i in range(40)))
    result = replay(trace, fresh(1), outcomes=True)
    assert result.counters["faults"] == 1
    assert result.counters["duplicate_faults"] == 0
    assert set(result.outcomes["reason"]) == {1}


def test_raw_faults_are_delivered_once():
    space = fresh(1)
    space.map(BASE, 1024 * PAGE)
    space.set_attr(BASE, 1024 * PAGE, [])
    rows = [record(BASE + i * 512 * PAGE, t=i * 1000, kind=Kind.FAULT) for i in range(2)]
    rows += [record(BASE + PAGE, t=9 * MS, kind=Kind.FAULT)]
    result = replay(records(*rows), space, raw_faults=True, outcomes=True)
    assert [int(f) for f in result.outcomes["faults"]] == [1, 0, 1]
    assert [int(d) for d in result.outcomes["duplicates"]] == [0, 1, 0]
    assert result.counters["faults"] == 2
    assert result.counters["duplicate_faults"] == 1
    assert result.settings["raw_faults"] is True


def test_a_raw_fault_after_its_range_went():
    """The range that was looked up ahead goes before the fault is delivered."""
    space = fresh(1)
    space.map(BASE, 16 * PAGE)
    space.set_attr(BASE, 16 * PAGE, [])
    rows = [record(BASE, kind=Kind.FAULT), record(BASE, 16 * PAGE, kind=Kind.UNMAP)]
    rows += [record(BASE + PAGE, kind=Kind.FAULT)]
    space.process.step(MS)
    result = replay(records(*rows), space, raw_faults=True, outcomes=True)
    assert result.outcomes["code"].tolist() == [0, 0, -14]
    assert result.reasons == {"no_range": 1}
    assert result.counters["duplicate_faults"] == 0


def test_raw_faults_by_the_cpu_are_touches():
    trace = records(record(BASE, proc=CPU, kind=Kind.FAULT))
    result = replay(trace, fresh(1), raw_faults=True)
    assert result.counters["pages_touched"] == 1


def test_strict_raises_at_the_first():
    trace = records(
        record(BASE, 4 * PAGE, kind=Kind.MAP), record(BASE), record(BASE + 7 * PAGE), record(BASE)
    )
    with pytest.raises(AddressError, match=r"record 2, address 0x7f0000007000: no_range"):
        replay(trace, fresh(1), strict=True)
    space = fresh(1)
    space.map(BASE, PAGE, prot="r")
    with pytest.raises(PermissionDeniedError, match="record 0"):
        replay(records(record(BASE, access=1)), space, strict=True)
    assert replay(trace[:2], fresh(1), strict=True).counters["errors"] == 0


def test_progress_is_called_once_a_chunk():
    seen = []
    replay(random_records(50), fresh(), chunk=20, progress=seen.append)
    assert seen == [20, 40, 50]


def test_counters_are_what_this_replay_added():
    space = fresh(1)
    trace = records(record(BASE))
    first = replay(trace, space)
    again = replay(trace, space)
    assert (first.counters["faults"], again.counters["faults"]) == (1, 0)
    assert again.counters["pages_touched"] == 1
    assert again.to_dict()["faults_by_processor"].get("gpu0", 0) == 0


def test_mappings_that_are_there_stay():
    space = fresh(1)
    space.map(BASE + 4 * PAGE, 2 * PAGE, prot="r")
    space.map(BASE + 10 * PAGE, 2 * PAGE)
    result = replay(records(record(BASE, 16 * PAGE)), space)
    assert result.counters["errors"] == 0
    assert space.process.vma((BASE >> 12) + 4)[2] == "r"
    assert space.process.vma((BASE >> 12) + 15) is not None
    assert space.process.vma((BASE >> 12) + 16) is None


# ---- the result -------------------------------------------------------------------------------


def test_keys_of_the_result():
    result = replay(random_records(100), fresh())
    table = result.to_dict()
    assert set(table) >= KEYS
    assert set(table["trace"]) >= {"path", "format", "kind", "records", "digest"}
    expected = {"kernel": "7.3", "xnack": True, "granularity": 9, "by": "gpu0"}
    assert table["settings"].items() >= expected.items()
    assert "buffers" not in result.to_dict(buffers=False)
    assert json.loads(result.to_json()) == json.loads(json.dumps(table))
    assert any("modelled" in note for note in result.notes)
    assert any("assumed" in note for note in result.notes)
    assert result.wall_s >= result.engine_s > 0
    assert table["migrated_bytes"] == table["migrated_pages"] * PAGE
    assert table["faults"] == sum(table["faults_by_processor"].values())


def test_buffers_sum_to_the_totals():
    rng = np.random.default_rng(8)
    trace = random_records(3000, kinds=False)
    maps = records(*(record(BASE + i * 256 * PAGE, 256 * PAGE, kind=Kind.MAP) for i in range(16)))
    trace["addr"] = (
        BASE + rng.integers(0, 16, 3000) * 256 * PAGE + rng.integers(0, 190, 3000) * PAGE
    )
    result = replay(np.concatenate([maps, trace]), fresh(vram_pages=2048), chunk=500)
    table, counters = result.buffers, result.counters
    assert result.names == [f"map{i}" for i in range(16)]
    assert table["records"].sum() == 3000
    assert table["pages"].sum() == counters["pages_touched"]
    assert table["faults"].sum() == counters["faults"]
    assert table["moved_pages"].sum() == counters["migrated_pages"]
    assert table["remote_pages"].sum() == counters["remote_accesses"]
    assert table["errors"].sum() == counters["errors"] == 0
    assert (table["records"] > 0).all()
    rows = result.to_dict()["buffers"]
    assert rows[3]["name"] == "map3"
    assert set(rows[0]) == {"name", *BUFFER.names}


def test_arrow_export():
    pa = pytest.importorskip("pyarrow")
    result = replay(random_records(300), fresh())
    table = pa.table(result)
    assert table.column_names == ["name", *BUFFER.names]
    assert table.num_rows == len(result.names)
    assert table["faults"].to_pylist() == [int(v) for v in result.buffers["faults"]]
    assert table["start"].type == pa.uint64()
    assert pa.RecordBatchReader.from_stream(result).read_all() == table


def test_explain_a_record():
    trace = records(record(BASE), record(BASE), record(BASE + PAGE, proc=2, t=9 * MS))
    result = replay(trace, fresh(xnack=True), outcomes=True)
    assert "1 fault(s), the last restored in gpu0" in result.explain(0)
    assert "no fault" in result.explain(1)
    assert "restored in gpu1" in result.explain(2)
    with pytest.raises(InvalidArgumentError, match="expected 0 to"):
        result.explain(3)
    with pytest.raises(NotSupportedError, match="outcomes=True"):
        replay(trace, fresh()).explain(0)
    fatal = replay(trace, fresh(xnack=False), outcomes=True)
    assert "xnack_off" in fatal.explain(0)


def test_digest_depends_on_the_records():
    a, b = (replay(random_records(10, seed), fresh()).trace["digest"] for seed in (1, 2))
    assert a != b
    assert a == replay(random_records(10, 1), fresh()).trace["digest"]


def test_a_written_trace_replays_alike(tmp_path):
    trace = random_records(200, kinds=False)
    path = tmp_path / "trace.csv"
    write_records(path, [trace])
    assert replay(path, fresh()).counters == replay(trace, fresh()).counters


# ---- the compiled loop ------------------------------------------------------------------------


def test_outcomes_of_another_length():
    with pytest.raises(InvalidArgumentError, match="as many as records"):
        replay_chunk(fresh().process, records(record(BASE)), np.empty(2, OUTCOME))


def test_read_only_records_are_enough():
    trace = records(record(BASE))
    trace.flags.writeable = False
    assert replay(trace, fresh()).counters["faults"] == 1


def test_the_fault_logs_of_the_shared_folder(shared):
    logs = sorted((shared / "data" / "uvm-eval").glob("*.kmsg"))
    assert len(logs) == 4
    for log in logs:
        moves = {
            g: replay(log, Space("gpu-80g", granularity=g)).counters["migrations"]
            for g in (0, 2, 4, 5, 9)
        }
        assert moves == {0: 96, 2: 24, 4: 6, 5: 3, 9: 3}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [("kind", 77, "kind 77"), ("access", 9, "access 9"), ("proc", 99, "99")],
)
def test_records_that_no_reader_makes_are_refused(field, value, told):
    trace = records(record(BASE), record(BASE))
    trace[field][1] = value
    space = fresh()
    with pytest.raises(InvalidArgumentError, match=f"record 1: .*{told}"):
        replay(trace, space)
    assert space.counters()["pages_touched"] == 0


def test_repr_is_one_short_line():
    text = repr(replay(records(record(BASE)), fresh()))
    assert len(text) < 200
    assert "1 faults" in text
