"""Recorded faults under uvm: arrivals, fatal faults and the cancel path, the log of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from svmcore import Gpu, Machine, Space, replay
from svmcore.cli import main
from svmcore.errors import InvalidArgumentError
from svmcore.events import modelled_events
from svmcore.machine import Costs
from svmcore.plans import Hint, Plan
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import pack, unpack
from svmcore.policies.uvm import Uvm
from svmcore.records import RECORD, UNKNOWN, Access, Kind
from svmcore.reference_uvm import UvmReference
from svmcore.report.perfetto import write_perfetto
from svmcore.traces import open_trace

PAGE, BLOCK = 4096, 512
ADDR = 1 << 40
PAGES = 6 * BLOCK
#: (page, errno, reason) of what the tests meet most.
FATAL, LOST = (-14, "no_mapping", 255), (-5, "fault_type", 255)
FLAGGED, UNHEARD = (0, "invalid_prefetch", 255), (0, "prefetch_off", 255)


def machine(gpus: int = 1, pages: int = 64 * BLOCK) -> Machine:
    return Machine("test", tuple(Gpu(id=10 + i, vram_pages=pages) for i in range(gpus)), Costs())


@pytest.fixture(params=["compiled", "reference"])
def either(request: pytest.FixtureRequest) -> Any:
    """Makes a process of either kind with 8 blocks mapped at page 0; costs are the default's."""

    def make(gpus: int = 1, pages: int = 64 * BLOCK, **settings: Any) -> Any:
        kind = UvmProcess if request.param == "compiled" else UvmReference
        node = machine(gpus, pages)
        made: Any = kind(node.gpus, Uvm(**settings))
        made.set_costs(node.costs)
        made.mmap(0, 8 * BLOCK - 1)
        made.begin(1_000_000)
        return made

    return make


def counted(process: Any, *names: str) -> list[int]:
    count = process.snapshot()["count"]
    return [count[name] for name in names]


def words(process: Any) -> list[str]:
    return [event[1] for event in process.finish().events]


# ---- arrivals --------------------------------------------------------------------------


def recorded(seed: int, n: int = 3000) -> npt.NDArray[np.void]:
    """Long rows of faults of two GPUs, a few other records between them, outcomes too."""
    rng = np.random.default_rng(seed)
    records = np.zeros(n, RECORD)
    sweep = np.arange(n) * 3 + rng.integers(0, 40, n)
    records["addr"] = ADDR + PAGE * (sweep % PAGES)
    records["size"], records["kind"] = PAGE, Kind.FAULT
    records["proc"] = rng.choice([1, 1, 1, 2, UNKNOWN], n)
    records["access"] = rng.choice([0, 0, 1, 2, 3, 4], n)
    records["peer"] = UNKNOWN
    records["t_ns"] = 1_000 + np.cumsum(rng.choice([0, 100, 3_000], n)).astype("<u8")
    at = rng.choice(n, 5, replace=False)
    records["kind"][at] = [Kind.ACCESS, Kind.BATCH, Kind.PREFETCH, Kind.FAULT, Kind.EVICT]
    records["peer"][at], records["proc"][at] = 1, 0
    records["peer"][rng.choice(n, 9, replace=False)] = 7  # fatal by its type
    return records


def told(records: npt.NDArray[np.void], policy: str, **options: Any) -> tuple[Any, ...]:
    space = Space(machine(2, 4 * BLOCK), policy=policy)
    space.map(ADDR, PAGES * PAGE // 2)  # what lies behind has no mapping of its own
    space.map(ADDR + PAGES * PAGE // 2 + 64 * PAGE, PAGES * PAGE // 2 - 64 * PAGE)
    result = replay(records, space, raw_faults=True, outcomes=True, **options)
    table = {k: v for k, v in result.to_dict().items() if not k.endswith("_s")}
    assert result.outcomes is not None
    return table, result.outcomes.tobytes(), space.process.snapshot()


@pytest.mark.parametrize(
    "policy",
    [
        "uvm",
        "uvm(batch_size=400)",
        "uvm(batch_size=13, replay_policy=block)",
        "uvm(batch_size=1, eviction=lru)",
        "uvm(coalesce=off)",
    ],
)
def test_no_chunk_ends_an_arrival(policy: str) -> None:
    records = recorded(len(policy))
    expected = told(records, policy)
    for chunk in (1, 7, 256, 257, 4096):
        assert told(records, policy, chunk=chunk) == expected


def test_a_row_is_one_arrival_in_whole_batches() -> None:
    records = recorded(1, 1000)
    records["kind"], records["peer"], records["proc"] = Kind.FAULT, UNKNOWN, 1
    for size, batches in ((256, 4), (400, 3), (1000, 1), (13, 77)):
        _, _, state = told(records, f"uvm(batch_size={size})", chunk=100)
        assert state["count"]["batches"] == batches


def test_the_rows_are_the_references_deliveries() -> None:
    records = recorded(5, 1500)
    records["t_ns"], records["addr"] = 7, ADDR + records["addr"] % (1 << 21)
    records["kind"], records["proc"] = Kind.FAULT, 1
    space = Space(machine(), policy="uvm(batch_size=100)")
    space.map(ADDR, 2 << 20)
    out = replay(records, space, raw_faults=True, outcomes=True, chunk=37).outcomes
    assert out is not None
    twin = UvmReference(machine().gpus, Uvm(batch_size=100))
    twin.set_costs(machine().costs)
    twin.mmap(ADDR // PAGE, ADDR // PAGE + BLOCK - 1)
    answers = []
    for at in range(0, len(records), 100):
        rows = records[at : at + 100]
        answers += twin.deliver(
            [(1, int(r["addr"]) // PAGE, int(r["access"]), int(r["peer"]) % 255) for r in rows]
        )
        twin.settle()
    assert [int(code) for code in out["code"]] == [answer[0] for answer in answers]
    assert [int(best) for best in out["best"]] == [answer[2] for answer in answers]
    assert space.process.snapshot() == twin.snapshot()
    assert len({reason for _, reason, _ in answers}) > 2


def test_a_hint_and_a_stop_end_an_arrival() -> None:
    records = recorded(3, 700)
    records["kind"], records["peer"], records["proc"] = Kind.FAULT, UNKNOWN, 1
    plan = Plan(
        "p", hints=(Hint(buffer="*", advice="preferred_location", location="cpu", at_record=300),)
    )
    found = []
    for chunk in (1, 11, 1 << 16):
        space = Space(machine(2, 4 * BLOCK), policy="uvm")
        result = replay(
            records, space, raw_faults=True, outcomes=True, plan=plan, stop=600, chunk=chunk
        )
        assert result.outcomes is not None
        assert len(result.outcomes) == 600
        found.append((result.outcomes.tobytes(), space.process.snapshot()))
    assert found[0] == found[1] == found[2]
    assert found[0][1]["count"]["batches"] == 2 + 2  # 256 + 44 before the hint, 256 + 44 after


# ---- fatal faults ----------------------------------------------------------------------


def test_a_batch_with_a_fatal_fault_takes_the_cancel_path(either: Any) -> None:
    p = either()
    nowhere = 100 * BLOCK
    faults = [(1, 5, 0), (1, nowhere, 0), (1, nowhere, 1), (1, 600, 1), (1, nowhere + 1, 2)]
    assert p.deliver(faults) == [(0, "ok", 1), FATAL, FATAL, (0, "ok", 1), FATAL]
    # Flush with replay, then cancel and replay; two pages are cancelled, not three faults.
    names = ("batches", "fatal_batches", "replays", "cancels", "faults")
    assert counted(p, *names) == [1, 1, 2, 2, 2]
    found = words(p)
    assert found.count("cancel") == 2
    assert found.count("batch") == 2
    assert found.index("cancel") > max(i for i, word in enumerate(found) if word == "served")


def test_the_cancel_path_costs_one_more_fetch(either: Any) -> None:
    costs = []
    for page in (6, 100 * BLOCK):
        p = either(prefetch=False)
        p.deliver([(1, 5, 0), (1, page, 0)])
        costs.append(p.snapshot()["cost"])
    # Both pages of the first are served at no more than their place in the batch.
    batch, fault = int(Costs().fault_batch_ns), int(Costs().fault_in_batch_ns)
    assert costs[1] - costs[0] == batch + fault


def test_types_that_the_hardware_calls_fatal_are_cancelled(either: Any) -> None:
    p = either()
    faults = [(1, 5, 0, 2), (1, 6, 0, 5), (1, 6, 0), (1, 7, 3, 16), (1, 8, 0, 4)]
    # A fault of another type on the same page is served; the least fatal type is 5.
    assert p.deliver(faults) == [(0, "ok", 1), LOST, (0, "ok", 1), LOST, (0, "ok", 1)]
    assert counted(p, "cancels", "fatal_batches", "replays") == [2, 1, 2]
    cancelled = [event[2:] for event in p.finish().events if event[1] == "cancel"]
    assert cancelled == [(6, 6, 1, 0, 3), (7, 7, 1, 0, 3)]
    # They are never merged with others, nor others with them.
    p.begin(2_000_000)
    assert p.deliver([(1, 40, 0), (1, 40, 0, 9), (1, 40, 0)]) == [
        (0, "ok", 1),
        LOST,
        (0, "duplicate", 255),
    ]


def test_block_replays_end_at_the_first_fatal_fault(either: Any) -> None:
    p = either(replay_policy="block")
    p.deliver([(1, 5, 0), (1, 600, 0), (1, 1100, 0, 9), (1, 1101, 0), (1, 1600, 0)])
    # Two blocks before it, then flush and cancel.
    assert counted(p, "replays") == [4]


def test_a_throttled_fault_comes_again_in_the_cancel_path(either: Any) -> None:
    p = either(gpus=2, thrashing_threshold=1, prefetch=False)
    turn, answer = 0, (0, "ok", 1)
    while answer[1] != "retry_later":
        turn += 1
        (answer,) = p.deliver([(1 + turn % 2, 5, 1)])
        p.settle()
    gpu, (before,) = 1 + turn % 2, counted(p, "throttles")
    assert p.deliver([(gpu, 5, 1), (gpu, 99 * BLOCK, 0)]) == [answer, FATAL]
    assert counted(p, "throttles") == [before + 2]  # in the batch, and when it came again
    assert words(p).count("throttle") == before + 2


def test_out_of_memory_cancels_the_batch(either: Any) -> None:
    p = either(pages=100)
    lost = (-12, "out_of_memory", 255)
    assert p.deliver([(1, 5, 0), (1, 600, 1), (1, 600, 0), (1, 5, 3)]) == [
        lost,
        lost,
        lost,
        (0, "duplicate", 255),  # the prefetcher's are never cancelled
    ]
    assert counted(p, "cancels", "replays", "fatal_batches") == [2, 1, 0]
    assert p.deliver([(1, 5, 3), (1, 6, 3)])[0] == (0, "duplicate", 255)
    assert p.access(1, 0, 9, 0)[:2] == (-12, "out_of_memory")
    assert counted(p, "cancels") == [12]


def test_the_memory_of_one_gpu_is_not_the_others() -> None:
    gpus = Gpu(id=1, vram_pages=100), Gpu(id=2, vram_pages=BLOCK), Gpu(id=3, vram_pages=99)
    for kind in (UvmProcess, UvmReference):
        p: Any = kind(gpus, Uvm())
        p.mmap(0, 8 * BLOCK - 1)
        answers = p.deliver([(3, 1500, 0), (2, 700, 0), (1, 5, 1), (2, 9000, 0)])
        assert [error for error, _, _ in answers] == [-12, 0, -12, -14]
        assert counted(p, "cancels", "fatal_batches") == [3, 1]


def test_a_touch_of_nothing_is_cancelled(either: Any) -> None:
    p = either(outstanding=1)
    last = 8 * BLOCK
    ret, reason, faults, _, _, page = p.access(1, last - 1, last + 5, 0)
    assert (ret, reason, faults, page) == (-14, "no_mapping", 1, last)
    assert counted(p, "batches", "fatal_batches", "cancels", "replays") == [2, 1, 1, 3]


def test_a_record_that_knows_no_access_reads(either: Any) -> None:
    p = either(gpus=2)
    p.advise("read_mostly", True, 0, 8 * BLOCK - 1)
    for access in (3, 4):
        p.access(1, 0, 15, access)
        p.access(2, 0, 15, access)
        assert p.copies(3) == 0b111  # by way of the CPU; a write would leave one
        assert p.access(0, 3, 3, access)[0] == 0
        p.access(1, 0, 15, 1)
        assert p.copies(3) == 0b10


# ---- faults of the hardware's prefetcher ------------------------------------------------


def test_invalid_prefetches_are_flagged_and_stop_for_a_second(either: Any) -> None:
    p = either(batch_size=6)
    nowhere = 100 * BLOCK
    # 4 of 6 are not more than two thirds, 5 are.
    mixed = [(1, nowhere + i, 3) for i in range(4)] + [(1, 5, 0), (1, 6, 3)]
    assert p.deliver(mixed) == [FLAGGED] * 4 + [(0, "ok", 1)] * 2
    assert counted(p, "prefetch_stops", "cancels", "replays") == [0, 0, 1]
    mixed = [(1, nowhere + i, 3) for i in range(5)] + [(1, 7, 0)]
    assert p.deliver(mixed)[:5] == [FLAGGED] * 5
    assert counted(p, "invalid_prefetches", "prefetch_stops") == [9, 1]
    assert p.snapshot()["prefetch_off"] == {1: p.now + 1_000_000_000}
    batches = counted(p, "batches")
    assert p.deliver([(1, 1000, 3)]) == [UNHEARD]
    assert counted(p, "batches") == batches  # nothing reached the driver
    p.settle()
    p.step(p.snapshot()["prefetch_off"][1])
    assert p.deliver([(1, 1000, 3)]) == [(0, "ok", 1)]


def test_instances_of_a_prefetch_count_and_each_gpu_for_itself(either: Any) -> None:
    p = either(gpus=2, batch_size=6)
    p.deliver([(2, 100 * BLOCK, 3)] * 5 + [(1, 100 * BLOCK, 3)])
    assert list(p.snapshot()["prefetch_off"].values()) == [0, p.now + 1_000_000_000]
    never = either(batch_size=1, prefetch_fault_lapse_ms=0)
    never.deliver([(1, 100 * BLOCK, 3)] * 9)
    assert counted(never, "invalid_prefetches", "prefetch_stops") == [9, 0]


def test_a_stop_is_saved(tmp_path: Path) -> None:
    space = Space(machine(), policy="uvm(batch_size=1)")
    space.process.deliver([(1, 100 * BLOCK, 3)])
    space.save(tmp_path / "a.svm")
    again = Space.load(tmp_path / "a.svm")
    assert again.process.snapshot() == space.process.snapshot()
    assert again.process.deliver([(1, 100 * BLOCK, 3)]) == [UNHEARD]


def test_a_stop_of_other_shape_is_refused_and_older_states_have_none() -> None:
    p = UvmProcess(machine(2).gpus, Uvm(batch_size=1))
    plain = pack(p)
    assert "prefetch_off" not in plain
    p.deliver([(2, 100 * BLOCK, 3)])
    tables = pack(p)
    assert tables["prefetch_off"].tolist() == [[0], [1_000_000_000]]
    for bad in ([[1]], [[1], [1 << 63]], [[1, 2], [3, 4]]):
        with pytest.raises(InvalidArgumentError, match="prefetch_off"):
            unpack(
                UvmProcess(machine(2).gpus, p.rules),
                tables | {"prefetch_off": np.array(bad, "<u8")},
            )
    # A state from before the cancel path counts from 0.
    older = UvmProcess(machine(2).gpus, Uvm(batch_size=1))
    unpack(older, plain | {"counters": plain["counters"][:-4]})
    assert older.work()["cancels"] == 0
    few = plain | {"counters": plain["counters"][:5]}
    with pytest.raises(InvalidArgumentError, match="counters, expected a row each"):
        unpack(UvmProcess(machine(2).gpus, Uvm(batch_size=1)), few)


# ---- what logs carry -------------------------------------------------------------------


def test_logs_carry_fatal_types(tmp_path: Path) -> None:
    line = "f,7fb144000000,{},{},1,2,1,0,0,0,127,1,0,1,63\n"
    text = "s,\n" + "".join(line.format(100 + i, kind) for i, kind in enumerate((1, 4, 5, 16, 17)))
    # One that the compiled scanner leaves to the other: 0x before the address.
    text += "f,0x7fb144001000,200,7,0,1,1,0,0,0,127,1,0,1,3f\n"
    path = tmp_path / "a.kmsg"
    path.write_text(text)
    source = open_trace(path, format="uvm-log")
    found = np.concatenate(list(source.chunks()))
    faults = found[found["kind"] == Kind.FAULT]
    assert faults["peer"].tolist() == [UNKNOWN, UNKNOWN, 5, 16, UNKNOWN, 7]
    result = replay(source, Space("gpu-80g", policy="uvm"), raw_faults=True)
    assert result.reasons == {"fault_type": 3}
    # As touches they are needed pages like the others, and kfd knows no such types.
    assert replay(source, Space("gpu-80g", policy="uvm")).counters["errors"] == 0
    kfd = Space("gpu-80g", policy="kfd")
    assert "fault_type" not in replay(source, kfd, raw_faults=True).reasons


def test_binary_logs_carry_fatal_types(tmp_path: Path) -> None:
    entry = np.zeros(3, np.dtype([("a", "<u8"), ("t", "<u8"), ("n", "<u2"), ("rest", "u1", 14)]))
    entry["a"] = [0x7F0000000000, 0x7F0000001000, 0x7F0000002000]
    entry["t"] = [5, 6, 7]
    entry["rest"][:, 0] = [1, 9, 9]  # the fault type
    entry["rest"][:, 1] = 1  # a read
    entry["rest"][2, 11] = 2  # an eviction
    path = tmp_path / "a.bin"
    path.write_bytes(bytes([0, 4]) + b"host" + entry.tobytes())
    found = np.concatenate(list(open_trace(path, format="uvm-binary").chunks()))
    assert found["peer"].tolist() == [UNKNOWN, 9, UNKNOWN]


@pytest.mark.parametrize(("version", "size"), [(1, 64), (2, 72)])
def test_queues_of_the_tools_carry_fatal_types(tmp_path: Path, version: int, size: int) -> None:
    entries = np.zeros((3, size), "u1")
    for entry, kind in zip(entries, (2, 5, 17), strict=True):
        entry[0], entry[1] = 3, kind
        entry[2 if version == 1 else 37] = 1  # a read
        entry[3 if version == 1 else 2] = 1
        entry[8:16] = np.array([0x7F0000000000], "<u8").view("u1")
        entry[16:24] = np.array([9], "<u8").view("u1")
    path = tmp_path / "a.queue"
    path.write_bytes(entries.tobytes())
    found = np.concatenate(list(open_trace(path, format=f"uvm-tools-v{version}").chunks()))
    assert found["peer"].tolist() == [UNKNOWN, 5, UNKNOWN]


def test_a_bad_fault_is_named() -> None:
    p = UvmProcess(machine().gpus, Uvm())
    with pytest.raises(InvalidArgumentError, match="type 300: expected a GPU, 1 to 1"):
        p.deliver([(1, 0, int(Access.READ), 300)])
    assert p.work()["batches"] == 0


# ---- the log of events -----------------------------------------------------------------


def touches(seed: int, n: int = 150) -> npt.NDArray[np.void]:
    """Touches of three processors back and forth, with advice, prefetches and a hole."""
    rng = np.random.default_rng(seed)
    records = np.zeros(n, RECORD)
    records["addr"] = ADDR + PAGE * rng.choice([3, 5, 40, 900, 1500, 2000], n)
    records["size"] = PAGE * rng.choice([1, 1, 1, 16, 400], n)
    records["proc"] = rng.choice([0, 1, 1, 2], n)
    records["access"] = rng.choice([0, 0, 1, 2], n)
    records["peer"] = rng.integers(0, 3, n)
    records["kind"] = rng.choice([Kind.ACCESS] * 9 + [Kind.PREFETCH], n)
    records["t_ns"] = np.arange(n) * 10 + 77
    records["addr"][n // 2] = ADDR + PAGES * PAGE * 2  # nothing is there
    records["kind"][n // 2], records["proc"][n // 2] = Kind.ACCESS, 1
    # The mapping; read mostly from page 30 on; accessed by gpu1 from page 1400 on.
    before = np.zeros(3, RECORD)
    before["kind"], before["peer"], before["value"] = [Kind.MAP, Kind.ADVISE, Kind.ADVISE], 2, 0x20
    before["addr"] = ADDR + PAGE * np.array([0, 30, 1400])
    before["size"], before["access"] = PAGE * np.array([PAGES, 600, 600]), [0, 5, 3]
    return np.concatenate([before, records])


def watched(seed: int, policy: str) -> tuple[npt.NDArray[np.void], Space, Space]:
    """The events of a run, its space, and that of the replay alone."""
    records, spaces = touches(seed), []
    for _ in range(2):
        space = Space(machine(2, 3 * BLOCK), policy=policy)
        space.map(ADDR, PAGES * PAGE)
        spaces.append(space)
    found = np.concatenate(list(modelled_events(records, spaces[0])))
    replay(records, spaces[1])
    return found, spaces[0], spaces[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["uvm", "uvm(thrashing_threshold=1, pin=2, prefetch=off)"])
def test_events_are_those_of_the_replay(seed: int, policy: str) -> None:
    found, watching, alone = watched(seed, policy)
    assert watching.process.snapshot() == alone.process.snapshot()
    count = alone.process.snapshot()["count"]
    rows = {kind: found[found["kind"] == kind] for kind in Kind}

    def pages(kind: Kind) -> int:
        return int(rows[kind]["size"].sum()) // PAGE

    assert pages(Kind.MIGRATE) == count["migrated_pages"]
    assert len(rows[Kind.MIGRATE]) == count["migrations"]
    assert pages(Kind.DUPLICATE) == count["duplicated_pages"]
    assert len(rows[Kind.BATCH]) == count["batches"] + count["fatal_batches"]
    assert pages(Kind.CANCEL) == count["cancels"] >= 1
    assert set(rows[Kind.CANCEL]["value"]) == {1}
    # Every fault comes to its end: served, throttled and delivered again, or cancelled.
    faults = count["faults"] + count["duplicates"] + count["cancels"]
    assert len(rows[Kind.FAULT]) == faults == len(rows[Kind.FAULT_END]) + count["cancels"]
    state = rows[Kind.THRASHING]
    for value, name in ((1, "throttles"), (2, "pins"), (3, "unpins")):
        assert int(state["size"][state["value"] == value].sum()) // PAGE == count[name]
    left = [int(row["size"]) for row in rows[Kind.EVICT]]
    assert bool(left) == bool(count["evictions"])
    remote = rows[Kind.REMOTE]
    assert (remote["proc"] != remote["peer"]).all()
    assert len(remote) or "pin" in policy
    assert not (rows[Kind.UNMAP_GPU]["proc"] == 0).any()
    # A transfer ends before the next event of its time.
    assert (rows[Kind.MIGRATE]["dur_ns"] > 0).all()


def test_events_together_have_every_word() -> None:
    kinds: set[int] = set()
    for seed in range(6):
        for policy in ("uvm(thrashing_threshold=1, pin=2)", "uvm"):
            found, _, _ = watched(seed, policy)
            kinds |= set(found["kind"].tolist())
            kinds |= {100 + int(v) for v in found["value"][found["kind"] == Kind.THRASHING]}
    expected = {"FAULT", "FAULT_END", "MIGRATE", "EVICT", "UNMAP_GPU", "BATCH", "REMOTE"}
    expected |= {"DUPLICATE", "THRASHING", "CANCEL"}
    assert {Kind(k).name for k in kinds if k < 100} == expected
    assert {k - 100 for k in kinds if k >= 100} == {0, 1, 2, 3}


def test_times_are_the_clock_of_a_fault_trace() -> None:
    records = np.zeros(2, RECORD)
    records["addr"], records["size"] = [ADDR, ADDR + (1 << 21)], PAGE
    records["kind"], records["proc"], records["peer"] = Kind.FAULT, 1, UNKNOWN
    records["t_ns"] = [5_000_000_000, 9_000_000_000]
    found = np.concatenate(list(modelled_events(records, Space("gpu-80g", policy="uvm"))))
    faults = found[found["kind"] == Kind.FAULT]
    assert faults["t_ns"].tolist() == [5_000_000_000, 9_000_000_000]
    late = Space("gpu-80g", policy="uvm")
    late.step(7_000_000_000)  # its clock is ahead of the trace's
    found = np.concatenate(list(modelled_events(records, late)))
    assert found[found["kind"] == Kind.FAULT]["t_ns"].tolist() == faults["t_ns"].tolist()


def test_a_timeline_of_uvm(tmp_path: Path) -> None:
    found = [watched(seed, "uvm(thrashing_threshold=1, pin=2)")[0] for seed in range(6)]
    write_perfetto(tmp_path / "a.json", found)
    told = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    names = {event["name"] for event in told}
    assert {"mapped remotely", "throttled", "pinned", "thrashing", "evicted"} <= names
    assert "fault cancelled, address" in names
    opened = [event["id"] for event in told if event["ph"] == "b"]
    closed = [event["id"] for event in told if event["ph"] == "e"]
    assert sorted(opened) == sorted(closed)


def test_the_command_writes_what_the_form_can_say(tmp_path: Path, capsys: Any) -> None:
    trace = tmp_path / "t.npy"
    records = touches(2)
    records["proc"] %= 2  # the default machine has one GPU
    records["peer"] %= 2
    np.save(trace, records)
    for name in ("a.json", "a.npy", "a.csv"):
        path = tmp_path / name
        assert main(["replay", str(trace), "--policy", "uvm", "--events", str(path)]) == 0
        assert path.stat().st_size > 1000
    bad = tmp_path / "a.log"
    assert main(["replay", str(trace), "--policy", "uvm", "--events", str(bad)]) == 2
    error = capsys.readouterr().err
    assert "KFD SMI text says nothing of policy uvm: expected a name that ends in .json" in error
    assert not bad.exists()
