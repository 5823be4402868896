"""HSA_SVM_PROFILE text: the KFD events as the ROCm runtime writes them."""

from pathlib import Path

import pytest

from svmcore.errors import TraceError
from svmcore.records import CPU, UNKNOWN, Access, Kind
from svmcore.traces import open_trace
from svmcore.traces.kfd_smi import MigrateValue

DATA = Path(__file__).parents[1] / "data" / "traces"
NONE, U = Access.UNKNOWN, UNKNOWN
HEAD = "ROCr HMM event: "


def trace_of(tmp_path, *lines):
    path = tmp_path / "profile.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return open_trace(path, format="hsa-svm-profile")


def rows(trace):
    return [row for chunk in trace.chunks() for row in chunk.tolist()]


def test_every_event():
    trace = open_trace(DATA / "hsa_profile.txt")
    a, b, t = 0x79C4DE800000, 0x79C4EE801000, 7000000000
    assert rows(trace) == [
        (t + 100, a + 0x5000, 4096, 0, 0, Kind.FAULT, 1, Access.READ, U),
        (t + 500, b, 4096, 0, 0, Kind.FAULT, 2, Access.WRITE, U),
        (t + 900, a, 0x40000, 40000, 1, Kind.MIGRATE, CPU, NONE, 1),
        (t + 41000, a + 0x5000, 4096, 0, 1, Kind.FAULT_END, 1, NONE, U),
        (t + 51000, b, 4096, 0, 0, Kind.FAULT_END, 2, NONE, U),
        (t + 80000, a, 0x40000, 0, 0, Kind.UNMAP_GPU, 1, NONE, U),
        (t + 85000, 0x79C600000000, 1 << 32, 0, 2, Kind.UNMAP_GPU, 2, NONE, U),
        (t + 90000, 0, 0, 0, 1, Kind.QUEUE_EVICT, 1, NONE, U),
        (t + 95000, 0, 0, 0, 0, Kind.QUEUE_RESTORE, 1, NONE, U),
        (
            t + 99000,
            0x79C700000000,
            0x2000,
            0,
            MigrateValue(2, has_start=False).pack(),
            Kind.MIGRATE,
            2,
            NONE,
            CPU,
        ),
        (
            t + 60000,
            0x79C500000000,
            0x8000,
            0,
            MigrateValue(3, has_end=False).pack(),
            Kind.MIGRATE,
            1,
            NONE,
            CPU,
        ),
    ]
    summary = trace.summary
    assert (summary.read, summary.repaired, summary.unknown) == (11, 1, 2)
    assert summary.counts == {
        "read_errors": 1,
        "repaired_sizes": 1,
        "restored": 1,
        "unpaired_starts": 1,
        "unpaired_ends": 1,
    }


@pytest.mark.parametrize(
    ("last", "size"),
    [("0x7effffffffff", 1 << 32), ("0x7effc0000fff", 0xC0001000)],
)
def test_size_that_passed_32_bits_is_the_least_that_gives_it(tmp_path, last, size):
    line = f"{HEAD}5 UNMAP_FROM_GPU MMU_NOTIFY CPU [0x7f0000000000, {last}]"
    trace = trace_of(tmp_path, line)
    assert rows(trace)[0][1:3] == (0x7F0000000000, size)
    assert (trace.summary.read, trace.summary.repaired) == (0, 1)


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        HEAD,
        HEAD + "x QUEUE_RESTORE CPU",
        HEAD + "18446744073709551616 QUEUE_RESTORE CPU",
        HEAD + "1 QUEUE_RESTORE",
        HEAD + "1 QUEUE_RESTORE GPU64(0x1)",
        HEAD + "1 QUEUE_RESTORE GPU0000(0x1)",
        HEAD + "1 QUEUE_RESTORE GPU1",
        HEAD + "1 QUEUE_EVICTION BOREDOM CPU",
        HEAD + "1 PAGE_FAULT_START Think CPU 4096",
        HEAD + "1 PAGE_FAULT_START Read CPU 18446744073709551616",
        HEAD + "1 PAGE_FAULT_START Read CPU 0x1000",
        HEAD + "1 MIGRATE_START PREFETCH CPU-GPU0(0x1) [0x1000, 0x1fff]",
        HEAD + "1 MIGRATE_START PREFETCH CPU->GPU0(0x1) [1000, 1fff]",
        HEAD + "1 UNMAP_FROM_GPU MMU_NOTIFY CPU [0xfffffffffffff000, 0x0]",
        HEAD + "1 UNMAP_FROM_GPU MMU_NOTIFY CPU [0x0, 0xffffffffffffffff]",
    ],
)
def test_garbage_in_the_middle_names_the_line(tmp_path, line):
    trace = trace_of(tmp_path, HEAD + "1 QUEUE_RESTORE CPU", line, HEAD + "2 QUEUE_RESTORE CPU")
    with pytest.raises(TraceError, match="expected") as caught:
        rows(trace)
    assert caught.value.where == "line 2"


def test_same_events_as_the_driver_wrote(shared):
    """What the runtime keeps of each event equals what the SMI text says of it."""
    profile = rows(open_trace(shared / "data/made-up/hsa_svm_profile.txt"))
    driver = rows(open_trace(shared / "data/made-up/kfd_smi_new_kernel.txt"))
    assert open_trace(shared / "data/made-up/hsa_svm_profile.txt").format == "hsa-svm-profile"
    times = {row[0]: row for row in driver}
    for row in profile:
        if row[5] in (Kind.FAULT, Kind.FAULT_END, Kind.UNMAP_GPU, Kind.QUEUE_EVICT):
            assert row == times[row[0]]
        elif row[5] == Kind.MIGRATE:
            assert row[:4] == times[row[0]][:4]
    assert len(profile) == 7
