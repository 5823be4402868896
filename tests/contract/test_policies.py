"""What every registered policy promises, by whatever rules it decides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import svmcore
from svmcore import Gpu, Machine, Space
from svmcore.policies.base import make_policy, policy_names
from svmcore.records import RECORD

PAGE, BLOCK, BASE = 4096, 2 << 20, 1 << 40
BLOCKS = 12
PLACES = {"absent", "cpu", "gpu0", "gpu1"}


def machine(blocks):
    gpus = (Gpu(1, blocks * 512, hive=1), Gpu(2, blocks * 512, hive=1))
    return Machine("two", gpus, hive_link="nvlink")


def touches(seed, n=300):
    """Touches of a few pages to two blocks, by all processors, over twelve blocks."""
    draw = np.random.default_rng(seed)
    records = np.zeros(n, RECORD)
    records["addr"] = BASE + draw.integers(0, BLOCKS * 512 - 1024, n) * PAGE
    records["size"] = draw.choice([PAGE, 16 * PAGE, BLOCK, 2 * BLOCK], n)
    records["proc"] = draw.choice([0, 1, 1, 1, 2], n)
    records["access"] = draw.integers(0, 2, n)
    return records


def run(name, blocks, records, **settings):
    space = Space(machine(blocks), policy=make_policy(name, **settings))
    space.map(BASE, BLOCKS * BLOCK)
    result = svmcore.replay(records, space, outcomes=True)
    return space, result


def everything(space):
    return {name: table.tobytes() for name, table in space.policy.pack(space.process).items()}


@pytest.mark.parametrize("name", policy_names())
class TestEveryPolicy:
    def test_parameters_are_told(self, name):
        policy = make_policy(name)
        assert policy.name == name
        assert make_policy(f"{name}()") == policy
        assert make_policy(name, **policy.settings()) == policy
        hash(policy)

    def test_pages_lie_in_legal_places(self, name):
        space, result = run(name, 3, touches(1))
        for start, size, where in space.residency(BASE, BLOCKS * BLOCK):
            assert set(where.split("+")) <= PLACES
            assert BASE <= start < start + size <= BASE + BLOCKS * BLOCK
        assert result.counters["errors"] == 0
        space.process.check()

    def test_only_touched_windows_move(self, name):
        space = Space(machine(8), policy=name)
        space.map(BASE, BLOCKS * BLOCK)
        space.map(BASE + BLOCKS * BLOCK, 4 * BLOCK)
        space.access(BASE + 5 * BLOCK, PAGE, by="gpu0", write=True)
        runs = space.residency(BASE, (BLOCKS + 4) * BLOCK)
        moved = [(start, size) for start, size, where in runs if where.startswith("gpu")]
        for start, size in moved:
            assert start >= BASE + 5 * BLOCK
            assert start + size <= BASE + 6 * BLOCK
        explained = space.explain(BASE + 7 * BLOCK, "gpu0")
        assert explained.rule
        assert explained.text
        if explained.window is not None:
            assert explained.window[0] <= BASE + 7 * BLOCK < explained.window[1]
            assert explained.window[1] <= BASE + BLOCKS * BLOCK

    def test_same_input_same_output(self, name):
        first, one = run(name, 3, touches(2))
        second, other = run(name, 3, touches(2))
        assert np.array_equal(one.outcomes, other.outcomes)
        assert everything(first) == everything(second)
        third, chunked = Space(machine(3), policy=name), []
        third.map(BASE, BLOCKS * BLOCK)
        for part in np.array_split(touches(2), 7):
            chunked.append(svmcore.replay(part, third, outcomes=True).outcomes)
        assert np.array_equal(np.concatenate(chunked), one.outcomes)

    def test_a_checkpoint_changes_nothing(self, name, tmp_path):
        records = touches(3)
        whole, _ = run(name, 3, records)
        half, _ = run(name, 3, records[:150])
        half.save(tmp_path / "half.svm")
        assert everything(half) == everything(half.clone())
        loaded = Space.load(tmp_path / "half.svm")
        for space in (half, loaded):
            svmcore.replay(records[150:], space)
            space.process.check()
            assert everything(space) == everything(whole)
            assert space.now_ns == whole.now_ns

    def test_counters_and_clock_never_go_back(self, name):
        space = Space(machine(3), policy=name)
        space.map(BASE, BLOCKS * BLOCK)
        before, then = space.counters(), 0
        for part in np.array_split(touches(4, 120), 40):
            svmcore.replay(part, space)
            now = space.counters()
            assert all(now[key] >= before[key] for key in now)
            assert space.now_ns >= then
            before, then = now, space.now_ns

    @pytest.mark.parametrize("blocks", [1, 2, 5])
    def test_capacity_is_respected(self, name, blocks):
        space = Space(machine(blocks), policy=name)
        space.map(BASE, BLOCKS * BLOCK)
        for part in np.array_split(touches(5 + blocks, 160), 20):
            svmcore.replay(part, space)
            held = dict.fromkeys(PLACES, 0)
            for _, size, where in space.residency(BASE, BLOCKS * BLOCK):
                for place in where.split("+"):
                    held[place] += size
            for gpu in ("gpu0", "gpu1"):
                assert held[gpu] <= blocks * BLOCK
                assert space.system.used(gpu) <= blocks * BLOCK
        space.process.check()

    @pytest.mark.parametrize("pages", [1, 511, 512])
    def test_a_tiny_device_ends(self, name, pages):
        space = Space(Machine("tiny", (Gpu(1, pages),)), policy=name)
        space.map(BASE, 4 * BLOCK)
        for start, write in itertools.product(range(0, 4 * 512, 100), (False, True)):
            touch = space.access(BASE + start * PAGE, 3 * PAGE, "gpu0", write)
            # The UVM driver takes memory by 2 MiB and has no way round a device without it.
            assert touch.reason == ("out_of_memory" if name == "uvm" and pages < 512 else "ok")
        space.process.check()
