"""The events of a modelled run: those of the replay, each with its page."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import svmcore
from svmcore import Space
from svmcore.errors import InvalidArgumentError
from svmcore.events import modelled_events
from svmcore.records import CPU, RECORD, UNKNOWN, Access, Kind
from svmcore.traces import map_records, open_trace, write_records
from svmcore.traces.base import Mapping
from svmcore.traces.kfd_smi import MigrateValue

DATA = Path(__file__).parents[1] / "data" / "traces"
BASE, WINDOW = 0x7F0000000000, 2 << 20


def touches(*rows):
    """Records (addr, size, processor, write)."""
    out = np.zeros(len(rows), RECORD)
    for record, (addr, size, proc, write) in zip(out, rows, strict=True):
        record["addr"], record["size"], record["proc"] = addr, size, proc
        record["access"], record["peer"] = write, UNKNOWN
    return np.concatenate([map_records([Mapping(BASE, 16 * WINDOW, "a")]), out])


def told(records, space=None, **how):
    found = list(modelled_events(records, space or Space("gpu-80g"), **how))
    return np.concatenate(found) if found else np.zeros(0, RECORD)


def test_a_fault_in_the_order_of_the_driver():
    found = told(touches((BASE + 0x3000, 4096, 1, 1), (BASE + 0x5000, 8, 1, 0))).tolist()
    migrated = found[1]
    assert found == [
        (0, BASE + 0x3000, 4096, 0, 0, Kind.FAULT, 1, Access.WRITE, UNKNOWN),
        (
            0,
            BASE,
            WINDOW,
            migrated[3],
            MigrateValue(1, 0).pack(),
            Kind.MIGRATE,
            CPU,
            Access.UNKNOWN,
            1,
        ),
        (migrated[3], BASE + 0x3000, 4096, 0, 1, Kind.FAULT_END, 1, Access.UNKNOWN, UNKNOWN),
    ]
    assert migrated[3] > 0


def test_a_long_touch_faults_once_a_window_at_its_first_page():
    found = told(touches((BASE + 0x5000, 3 * WINDOW, 1, 0)))
    faults = found[found["kind"] == Kind.FAULT]["addr"].tolist()
    assert faults == [BASE + 0x5000, BASE + WINDOW, BASE + 2 * WINDOW, BASE + 3 * WINDOW]


def test_a_cpu_touch_brings_pages_back_without_a_fault_event():
    found = told(touches((BASE, 4096, 1, 1), (BASE, 4096, 0, 0)))
    last = found[-1]
    assert [Kind(kind).name for kind in found["kind"]].count("FAULT") == 1
    assert (last["kind"], last["proc"], last["peer"]) == (Kind.MIGRATE, 1, CPU)
    assert MigrateValue.unpack(int(last["value"])).trigger == 2
    unmaps = found[found["kind"] == Kind.UNMAP_GPU]
    assert unmaps["value"].tolist() == [1]


def test_nothing_is_told_of_silent_touches():
    assert len(told(touches((BASE, 4096, 1, 1), (BASE + 64, 64, 1, 1)))) == 3
    assert len(told(np.zeros(0, RECORD))) == 0


spans = st.lists(
    st.tuples(
        st.integers(0, 15 * 512),
        st.integers(1, 1500),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(spans, st.integers(0, 9))
@settings(max_examples=25)
def test_events_add_up_to_the_counters_of_the_replay(rows, granularity):
    records = touches(
        *(
            (BASE + page * 4096, min(pages, 16 * 512 - page) * 4096, proc, write)
            for page, pages, proc, write in rows
        )
    )
    told_by, counted_by = (Space("mi300x-8", granularity=granularity) for _ in range(2))
    found = told(records, told_by)
    result = svmcore.replay(records, counted_by)
    kinds = np.bincount(found["kind"], minlength=32)
    # A CPU fault is no event of the driver's log.
    by_gpus = sum(row["faults"] for name, row in result.processors.items() if name != "cpu")
    assert kinds[Kind.FAULT] == kinds[Kind.FAULT_END] == by_gpus
    assert kinds[Kind.MIGRATE] == result.counters["migration_attempts"]
    assert told_by.residency(BASE, 16 * WINDOW) == counted_by.residency(BASE, 16 * WINDOW)
    names = ("faults", "migrations", "migrated_bytes", "unmaps", "evictions")
    for name in names:
        if name in result.counters:
            assert told_by.counters()[name] == result.counters[name]


def test_times_of_a_fault_log_are_its_own():
    trace = open_trace(DATA / "kfd_new.txt")
    found = told(trace, Space("mi300x-8"))
    assert found["t_ns"][0] == 5000000100
    assert found["t_ns"].min() >= 5000000100


def test_a_modelled_log_survives_as_smi_text(tmp_path):
    found = told(touches((BASE, 3 * WINDOW, 1, 1), (BASE, 4096, 0, 0)))
    path = tmp_path / "t.smi"
    write_records(path, [found], "kfd-smi", gpu_ids=[0x1EA0])
    again = np.concatenate(list(open_trace(path).chunks()))
    assert again.tolist() == found.tolist()


def test_unknown_processors_and_silent_policies_are_refused(monkeypatch):
    with pytest.raises(InvalidArgumentError, match="expected one of cpu, gpu0"):
        told(touches((BASE, 1, 255, 0)), by="gpu7")
    space = Space("gpu-80g")
    space.process = object()
    with pytest.raises(InvalidArgumentError, match="keeps no log"):
        told(touches((BASE, 1, 1, 0)), space)
