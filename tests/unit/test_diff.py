"""A recorded log beside a modelled one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svmcore import Space
from svmcore.events import modelled_events
from svmcore.records import CPU, RECORD, UNKNOWN, Access, Kind
from svmcore.report.diff import EXPLAINED, diff_events, diff_report, gathered
from svmcore.traces.kfd_smi import MigrateValue

P = 4096
OK = MigrateValue(1, 0).pack()


def log(*rows):
    return np.array(list(rows), RECORD)


def fault(t, addr, proc=1, write=True):
    return (t, addr, P, 0, 0, Kind.FAULT, proc, Access.WRITE if write else Access.READ, UNKNOWN)


def end(t, addr, proc=1, moved=1):
    return (t, addr, P, 0, moved, Kind.FAULT_END, proc, Access.UNKNOWN, UNKNOWN)


def move(t, addr, size, proc=CPU, peer=1, value=OK, took=100):
    return (t, addr, size, took, value, Kind.MIGRATE, proc, Access.UNKNOWN, peer)


def lost(t, n):
    return (t, 0, 0, 0, n, Kind.DROPPED, UNKNOWN, Access.UNKNOWN, UNKNOWN)


BASE = log(
    fault(10, 0x10000),
    move(20, 0x10000, 4 * P),
    end(130, 0x10000),
    fault(200, 0x90000, write=False),
)


def adds_up(diff):
    assert diff.matched + diff.only_recorded + diff.parted == diff.recorded
    assert diff.matched + diff.only_modelled + diff.parted == diff.modelled
    assert sum(diff.causes.values()) == diff.only_recorded + diff.only_modelled + diff.parted
    assert len(diff.differences) == min(sum(diff.causes.values()), EXPLAINED)
    return diff


def causes(recorded, modelled):
    return adds_up(diff_events(recorded, modelled)).causes


def test_equal_logs_with_other_clocks_and_orders():
    other = BASE[[3, 0, 1, 2]].copy()
    other["t_ns"] += 10**9
    other["dur_ns"][2] = 50
    diff = adds_up(diff_events(BASE, other))
    assert diff.equal
    assert diff.matched == 4
    assert diff.durations == {"migrations": (100, 50)}
    assert "no difference in 4 events" in diff_report(diff)[-1]


@pytest.mark.parametrize(
    ("change", "cause", "text"),
    [
        ({"size": 2 * P}, "window", "4 pages against 2"),
        ({"proc": 2}, "direction", "the best location differs"),
        ({"value": MigrateValue(0, 0).pack()}, "trigger", "triggers differ"),
    ],
)
def test_a_migration_that_parts_says_in_what(change, cause, text):
    other = BASE.copy()
    for name, value in change.items():
        other[name][1] = value
    diff = adds_up(diff_events(BASE, other))
    assert diff.causes == {cause: 1}
    assert text in diff.differences[0].text
    assert (diff.differences[0].recorded, diff.differences[0].modelled) == (1, 1)


def test_a_failed_migration_is_no_done_one():
    recorded = BASE.copy()
    recorded["value"][1] = MigrateValue(1, -12).pack()
    assert causes(recorded, BASE) == {"failed": 1}


def test_faults_that_part():
    other = BASE.copy()
    other["value"][2] = 0
    other["access"][3] = Access.WRITE
    assert causes(BASE, other) == {"outcome": 1, "access": 1}


def test_old_drivers_without_error_codes_agree():
    recorded = BASE.copy()
    recorded["value"][1] = MigrateValue(1).pack()
    assert causes(recorded, BASE) == {}


def test_starts_and_ends_alone_are_compared_by_what_they_say():
    recorded = BASE.copy()
    recorded["value"][1] = MigrateValue(1, has_end=False).pack()
    recorded["dur_ns"][1] = 0
    diff = adds_up(diff_events(recorded, BASE))
    assert diff.equal
    assert diff.unpaired == {"starts_without_end": 1}
    assert diff.durations == {}
    recorded["addr"][1] = 0x500000
    diff = adds_up(diff_events(recorded, BASE))
    assert diff.causes == {"end missing": 1, "only modelled": 1}
    recorded["value"][1] = MigrateValue(1, 0, has_start=False).pack()
    assert diff_events(recorded, BASE).unpaired == {"ends_without_start": 1}


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (fault(1, 0x11000), "mapped before"),
        (fault(1, 0x700000), "not touched"),
        (move(1, 0x900000, P, value=MigrateValue(0, 0).pack()), "prefetch call"),
        (move(1, 0x900000, P, 1, CPU, MigrateValue(2, 0).pack()), "CPU touch"),
        (move(1, 0x900000, P, 1, CPU, MigrateValue(3, 0).pack()), "eviction"),
        (move(1, 0x900000, P), "only recorded"),
        ((1, 0x900000, P, 0, 0, Kind.EVICT, 1, 4, UNKNOWN), "eviction"),
        ((1, 0x900000, P, 0, 0, Kind.UNMAP_GPU, 1, 4, UNKNOWN), "CPU mapping changed"),
        ((1, 0x900000, P, 0, 1, Kind.UNMAP_GPU, 1, 4, UNKNOWN), "migration"),
        ((1, 0x900000, P, 0, 9, Kind.UNMAP_GPU, 1, 4, UNKNOWN), "only recorded"),
        ((1, 0, 0, 0, 0, Kind.QUEUE_EVICT, 1, 4, UNKNOWN), "queues"),
        ((1, 0, 0, 0, 1, Kind.QUEUE_RESTORE, 1, 4, UNKNOWN), "queues"),
    ],
)
def test_why_the_model_lacks_an_event(event, cause):
    diff = adds_up(diff_events(log(*BASE.tolist(), event), BASE))
    assert diff.causes == {cause: 1}
    assert diff.differences[0].modelled is None
    assert diff.differences[0].recorded == 4
    assert diff.differences[0].text.startswith("only the recorded log has ")


def test_events_beside_lost_ones_may_be_lost():
    recorded = log(*BASE[:1].tolist(), lost(15, 7), *BASE[3:].tolist())
    diff = adds_up(diff_events(recorded, BASE))
    assert diff.lost_events == 7
    assert diff.causes == {"perhaps lost": 2}
    after = log(*BASE[:1].tolist(), *BASE[3:].tolist(), lost(300, 7))
    assert causes(after, BASE) == {"only modelled": 2}


def test_times_that_go_back_are_told():
    assert diff_events(BASE[[2, 0, 1, 3]], BASE).backward == 1


def test_only_events_are_compared():
    extra = log((0, 0, P, 0, 0, Kind.ACCESS, 1, 0, UNKNOWN), (0, 0, 0, 0, 3, Kind.OTHER, 1, 4, 255))
    kept = gathered([extra, BASE, log(lost(1, 2))])
    assert len(kept) == 5
    assert diff_events(np.concatenate([extra, BASE]), BASE).equal
    assert len(gathered([])) == 0


def test_empty_sides():
    none = np.zeros(0, RECORD)
    assert adds_up(diff_events(none, none)).equal
    assert adds_up(diff_events(none, BASE)).only_modelled == 4
    assert adds_up(diff_events(BASE, none)).only_recorded == 4


EVENTS = st.lists(
    st.one_of(
        st.builds(fault, st.integers(0, 99), st.integers(0, 3).map(lambda n: n * P)),
        st.builds(end, st.integers(0, 99), st.integers(0, 3).map(lambda n: n * P)),
        st.builds(
            move,
            st.integers(0, 99),
            st.integers(0, 3).map(lambda n: n * P),
            st.integers(1, 3).map(lambda n: n * P),
            st.integers(0, 1),
        ),
        st.builds(lost, st.integers(0, 99), st.integers(1, 3)),
    ),
    max_size=15,
)


@given(EVENTS, EVENTS)
def test_every_event_is_accounted_for(one, other):
    left, right = log(*one), log(*other)
    diff = adds_up(diff_events(left, right))
    assert adds_up(diff_events(left, left)).equal
    back = adds_up(diff_events(right, left))
    assert back.matched == diff.matched
    used = [d.recorded for d in diff.differences if d.recorded is not None]
    assert len(set(used)) == len(used) == diff.only_recorded + diff.parted
    used = [d.modelled for d in diff.differences if d.modelled is not None]
    assert len(set(used)) == len(used) == diff.only_modelled + diff.parted
    assert diff_report(diff)
    assert diff.to_dict()["matched"] == diff.matched


def test_granularity_is_found_out():
    touches = np.zeros(1, RECORD)
    touches["addr"], touches["size"], touches["proc"] = 0x200000, 8 << 20, 1
    logs = [gathered(modelled_events(touches, Space("gpu-80g", granularity=g))) for g in (9, 8)]
    diff = adds_up(diff_events(*logs))
    assert diff.causes["window"] == 4
    assert diff.causes["only modelled"] == 12
    assert "512 pages against 256" in diff.differences[0].text
