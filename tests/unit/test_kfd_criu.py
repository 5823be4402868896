"""The KFD driver's checkpoint records: byte for byte, and replayed by its rule."""

from __future__ import annotations

import random
import struct

import pytest

from svmcore import Gpu, Machine, Space
from svmcore.attributes import LOCATION_UNDEFINED, Attribute, Flag
from svmcore.checkpoint.kfd_criu import (
    RangeRecord,
    pack_ranges,
    record_size,
    replay_attributes,
    restore_ranges,
    unpack_ranges,
)
from svmcore.errors import InvalidArgumentError, NotSupportedError, SvmError

ADDR = 0x7F00_0000_0000
PAGE = 4096
MIB = 1 << 20


def machine(gpus: int = 2, vram_pages: int = 4000) -> Machine:
    return Machine(
        "m", tuple(Gpu(id=0x1001 + i, vram_pages=vram_pages, hive=1) for i in range(gpus))
    )


def test_the_size_of_a_record() -> None:
    assert [record_size(n) for n in (1, 2, 8)] == [64, 72, 120]


def test_a_record_byte_for_byte() -> None:
    space = Space(machine())
    space.map(ADDR, 4 * MIB)
    space.set_attr(
        ADDR,
        16 * PAGE,
        {
            "preferred_location": "gpu1",
            "granularity": 5,
            "SET_FLAGS": Flag.GPU_RO,
            "access": "gpu0",
        },
    )
    space.set_attr(ADDR, 16 * PAGE, {"access_in_place": "gpu1"})
    words = (2, 0, ADDR >> 12 & 0xFFFFFFFF, ADDR >> 44, 16, 0)
    attributes = (0, 0x1002, 1, LOCATION_UNDEFINED, 5, 0x0B, 7, 5, 2, 0x1001, 3, 0x1002)
    assert pack_ranges(space) == struct.pack("<18I", *words, *attributes)


def random_space(seed: int, gpus: int, **settings: object) -> Space:
    rnd = random.Random(seed)
    space = Space(machine(gpus), **settings)
    space.map(ADDR, 8 * MIB)
    words = ["preferred_location", "prefetch", "access", "access_in_place", "no_access"]
    for _ in range(40):
        start, pages = rnd.randrange(2000), rnd.choice((1, 7, 40, 300))
        span = ADDR + start * PAGE, min(pages, 2048 - start) * PAGE
        word = rnd.choice([*words, "granularity", "SET_FLAGS", "CLR_FLAGS"])
        places = [f"gpu{i}" for i in range(gpus)]
        if word in ("preferred_location", "prefetch"):
            places.append("cpu")
        value = rnd.choice(places) if word in words else rnd.randrange(64)
        space.set_attr(*span, {word: value})
        if rnd.random() < 0.2:
            space.access(*span, by=rnd.choice(places), write=True)
        if rnd.random() < 0.1:
            space.unmap(span[0], PAGE)
            space.map(span[0], PAGE)
    return space


def known(space: Space) -> list[tuple[object, ...]]:
    """What the records keep of each range: no actual place, no mappings."""
    space.step()
    return [
        (
            r.start,
            r.size,
            r.preferred,
            r.prefetch,
            r.granularity,
            r.flags,
            r.access,
            r.access_in_place,
        )
        for r in space.ranges()
    ]


@pytest.mark.parametrize("seed", range(20))
def test_random_spaces_come_back(seed: int) -> None:
    gpus = 1 + seed % 3
    space = random_space(seed, gpus)
    data = pack_ranges(space)
    records = unpack_ranges(data, gpus)
    assert b"".join(record.pack() for record in records) == data
    assert [record.first << 12 for record in records] == [
        start << 12 for start in space.process.starts()
    ]
    # On a node whose defaults differ: the saved ones win.
    other = Space(machine(gpus), granularity=3, xnack=seed % 2 == 0)
    other.map(ADDR, 8 * MIB)
    assert restore_ranges(other, data) == len(records)
    assert known(other) == known(space)
    # In the same order too, so that the next checkpoint has the same bytes.
    assert pack_ranges(other) == data


def test_records_say_what_the_driver_answers() -> None:
    """``get_attr`` of the range is where the driver takes them from."""
    space = random_space(5, 3)
    for record in unpack_ranges(pack_ranges(space), 3):
        wanted = [(kind, value) for kind, value in record.attributes[:4]]
        wanted += [(Attribute.ACCESS, gpu) for _, gpu in record.attributes[4:]]
        outcome = space.process.begin(space.now_ns)
        space.process.finish(
            space.process.get_attr(record.first << 12, record.npages << 12, wanted)
        )
        assert outcome.ret == 0
        assert [tuple(pair) for pair in outcome.out] == list(record.attributes)


def test_the_replay_rule() -> None:
    access = ((2, 0x1001),)
    record = RangeRecord(5, 1, ((0, 7), (1, LOCATION_UNDEFINED), (5, 0x21), (7, 9), *access))
    assert replay_attributes(record) == [
        (0, 7),
        (5, 0),
        (5, 0x21),
        (7, 9),
        *access,
        (6, 0xFFFFFFDE),
    ]
    record = RangeRecord(5, 1, ((0, 7), (1, 0x1001), (5, 0x21), (7, 9), *access))
    assert replay_attributes(record)[1] == (1, 0x1001)


def test_a_defined_prefetch_location_moves_pages_and_others_do_not() -> None:
    space = Space(machine())
    space.map(ADDR, 4 * MIB)
    space.set_attr(ADDR, MIB, {"granularity": 4})
    space.access(ADDR, MIB, by="gpu0", write=True)
    space.prefetch(ADDR + 2 * MIB, MIB, "gpu1")
    other = Space(machine())
    other.map(ADDR, 4 * MIB)
    other.access(ADDR, 4 * MIB, by="cpu", write=True)
    restore_ranges(other, pack_ranges(space))
    assert other.residency(ADDR, 4 * MIB) == [
        (ADDR, 2 * MIB, "cpu"),
        (ADDR + 2 * MIB, MIB, "gpu1"),
        (ADDR + 3 * MIB, MIB, "cpu"),
    ]


def test_deferred_work_is_done_before_saving() -> None:
    space = Space(machine())
    space.map(ADDR, 4 * MIB)
    space.set_attr(ADDR, MIB, {"granularity": 4})
    space.unmap(ADDR + 8 * PAGE, 8 * PAGE)
    assert space.next_event_ns() is not None
    records = unpack_ranges(pack_ranges(space), 2)
    assert sorted((r.first - (ADDR >> 12), r.npages) for r in records) == [(0, 8), (16, 240)]
    assert space.next_event_ns() is None


# ---- refused ---------------------------------------------------------------------------------


@pytest.fixture
def data() -> bytes:
    return pack_ranges(random_space(1, 2))


def test_every_cut_is_refused(data: bytes) -> None:
    size = record_size(2)
    for end in range(1, 3 * size):
        if end % size:
            with pytest.raises(InvalidArgumentError, match="expected records of 72 bytes"):
                unpack_ranges(data[:end], 2)
    assert unpack_ranges(b"", 2) == []
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        unpack_ranges(data, 0)


@pytest.mark.parametrize(
    ("at", "form", "value", "expected"),
    [
        (0, "<I", 1, "object type 1"),
        (4, "<I", 7, "padding 7"),
        (8, "<Q", 1 << 52, "expected pages below"),
        (8, "<Q", (1 << 64) - 1, "expected pages below"),
        (16, "<Q", 0, "expected pages below"),
        (16, "<Q", 1 << 52, "expected pages below"),
        (24, "<I", 1, "types 1, 1"),
        (48, "<I", 6, "types"),
        (56, "<I", 7, "access .*of each GPU"),
        (60, "<I", 0x1002, "each GPU once"),
    ],
)
def test_what_the_driver_does_not_write_is_refused(
    data: bytes, at: int, form: str, value: int, expected: str
) -> None:
    bad = bytearray(data)
    struct.pack_into(form, bad, record_size(2) + at, value)
    space = Space(machine())
    space.map(ADDR, 8 * MIB)
    with pytest.raises(InvalidArgumentError, match=f"record 1: .*{expected}"):
        restore_ranges(space, bytes(bad))
    assert space.ranges() == []


def test_an_error_of_the_driver_names_the_record(data: bytes) -> None:
    space = Space(machine())
    space.map(ADDR, 8 * MIB)
    records = unpack_ranges(data, 2)
    strange = records[2]._replace(attributes=(*records[2].attributes[:5], (2, 0x9999)))
    with pytest.raises(InvalidArgumentError, match=r"record 2: .*EINVAL"):
        restore_ranges(space, [*records[:2], strange, *records[3:]])
    assert len(space.ranges()) == 2
    with pytest.raises(SvmError, match=r"record 0: .*EFAULT") as refused:
        restore_ranges(Space(machine()), records)
    assert refused.value.code == "EFAULT"
    with pytest.raises(InvalidArgumentError, match="expected records of 64 bytes"):
        restore_ranges(Space(machine(1)), data)
    with pytest.raises(InvalidArgumentError, match="range record"):
        RangeRecord(-1, 1, ()).pack()


def test_other_policies_have_no_such_records() -> None:
    space = Space(machine())
    space.policy = type("Other", (), {"name": "other"})()
    for call in (pack_ranges, lambda other: restore_ranges(other, b"")):
        with pytest.raises(NotSupportedError, match="other: expected kfd"):
            call(space)
