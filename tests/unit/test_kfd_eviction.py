"""KFD with other orders of eviction than the driver's, and with a quota."""

from __future__ import annotations

import numpy as np
import pytest

import svmcore
from svmcore import Gpu, Machine, Space, System
from svmcore._evict import ORDERS
from svmcore.errors import InvalidArgumentError
from svmcore.policies.base import make_policy
from svmcore.records import RECORD

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40
MACHINE = Machine("m", (Gpu(1, 3 * 512, hive=1), Gpu(2, 3 * 512, hive=1)))


def touches(seed, n=300):
    draw = np.random.default_rng(seed)
    records = np.zeros(n, RECORD)
    records["addr"] = BASE + draw.integers(0, 12, n) * BLOCK
    records["size"] = draw.choice([PAGE, BLOCK], n)
    records["proc"] = draw.choice([0, 1, 1, 1, 2], n)
    records["access"] = draw.integers(0, 2, n)
    return records


def run(records, **settings):
    space = Space(MACHINE, policy="kfd", **settings)
    space.map(BASE, 13 * BLOCK)
    return space, svmcore.replay(records, space, outcomes=True)


@pytest.mark.parametrize("eviction", ORDERS)
def test_every_order_ends_within_capacity_and_survives_a_checkpoint(eviction):
    records = touches(1)
    whole, result = run(records, eviction=eviction, seed=9)
    assert result.counters["errors"] == 0
    assert result.counters["evictions"] > 20
    half, _ = run(records[:150], eviction=eviction, seed=9)
    copy = half.clone()
    for space in (half, copy):
        svmcore.replay(records[150:], space)
        space.process.check()
        assert space.counters() == whole.counters()
        assert space.now_ns == whole.now_ns
        for gpu in ("gpu0", "gpu1"):
            assert space.system.used(gpu) <= 3 * BLOCK


def test_fifo_is_the_drivers_own_order():
    one, result = run(touches(2))
    other, same = run(touches(2), eviction="fifo")
    assert np.array_equal(result.outcomes, same.outcomes)
    assert one.counters() == other.counters()


def test_orders_choose_different_victims():
    """Blocks 0, 1, 2 fill the device; block 0 faults again; block 3 needs room."""
    gone = {}
    for eviction in ("driver", "lru", "mru"):
        space = Space(MACHINE, policy="kfd", eviction=eviction)
        space.map(BASE, 5 * BLOCK)
        for block in range(3):
            space.access(BASE + block * BLOCK, BLOCK, by="gpu0")
        space.process.invalidate(BASE >> 12, (BASE >> 12) + 511)
        space.step(space.now_ns + 3_000_000)
        assert space.access(BASE, by="gpu0").faults == 1
        space.access(BASE + 3 * BLOCK, by="gpu0")
        gone[eviction] = [b for b in range(3) if space.process.where((BASE + b * BLOCK) >> 12) == 0]
    assert gone == {"driver": [0], "lru": [1], "mru": [0]}


def test_a_quota_keeps_room_for_others():
    system = System(MACHINE)
    limited, free = system.space("kfd", quota_pages=512), system.space("kfd")
    for space in (limited, free):
        space.map(BASE, 8 * BLOCK)
    free.access(BASE, 2 * BLOCK, by="gpu0")
    limited.access(BASE, 3 * BLOCK, by="gpu0")
    assert (limited.counters()["evictions"], free.counters()["evictions"]) == (2, 0)
    assert system.used("gpu0") == 3 * BLOCK
    tiny = system.space("kfd", quota_pages=1)
    tiny.map(BASE, BLOCK)
    assert tiny.access(BASE, BLOCK, by="gpu0").ok, "in system memory"
    assert tiny.residency(BASE, BLOCK) == [(BASE, BLOCK, "cpu")]


def test_parameters_and_states_are_checked():
    for key, value in (("eviction", "lifo"), ("seed", -1), ("quota_pages", 0)):
        with pytest.raises(InvalidArgumentError, match=f"kfd: {key} = "):
            make_policy("kfd", **{key: value})
    space, _ = run(touches(3, 60), eviction="lru")
    for name, change, words in (
        ("order", lambda t: t[:-1], "each of"),
        ("order", lambda t: t[[0, *range(len(t) - 1)]], "each of"),
        ("chance", lambda t: t[:-1], "each of"),
        ("chance", lambda t: t + np.uint64(1), "drawn"),
    ):
        tables = space.policy.pack(space.process)
        tables[name] = change(tables[name])
        with pytest.raises(InvalidArgumentError, match=words):
            space.policy.unpack(space.policy.create(MACHINE), tables)
