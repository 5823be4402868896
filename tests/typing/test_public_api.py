"""The public interface as a typed program uses it; checked by ``mypy --strict``, and run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt
import pytest

import svmcore
from svmcore import (
    AccessResult,
    Explanation,
    FaultResult,
    Gpu,
    Machine,
    RangeInfo,
    Result,
    Space,
    SvmError,
    System,
    open_trace,
    replay,
)
from svmcore.attributes import Attribute, Flag
from svmcore.machine import Costs
from svmcore.policies.base import Policy, make_policy
from svmcore.policies.outcome import Outcome
from svmcore.records import RECORD
from svmcore.traces import Mapping, Summary, Trace

PAGE = 4096
BASE = 1 << 40
ROOT = Path(__file__).resolve().parents[2]


def space_of_a_machine() -> Space:
    machine = Machine("typed", (Gpu(1, 1 << 20), Gpu(id=2, vram_pages=1 << 20, hive=0)))
    assert_type(machine.gpus, tuple[Gpu, ...])
    assert_type(machine.costs, Costs)
    assert_type(machine.costs.assumed, list[str])
    assert_type(Machine.preset("gpu-80g"), Machine)
    system = System(machine)
    assert_type(system.used("gpu0"), int)
    assert_type(system.space(policy="kfd(granularity=9)", xnack=True), Space)
    policy = make_policy("kfd", granularity=9)
    assert_type(policy, Policy)
    return Space(machine, policy=policy, system=system)


def test_space() -> None:
    space = space_of_a_machine()
    assert_type(space.machine, Machine)
    assert_type(space.policy, Policy)
    assert_type(space.system, System)
    space.map(BASE, 64 * PAGE, prot="rw", kind="anon", t_ns=0)
    assert_type(space.set_attr(BASE, PAGE, {"granularity": 4}), int)
    assert_type(space.set_attr(BASE, PAGE, [(Attribute.ACCESS, "gpu1"), (7, 3)]), int)
    assert_type(space.advise(BASE, PAGE, "preferred_location", "gpu0", t_ns=None), int)
    assert_type(space.prefetch(BASE, PAGE, "gpu0"), int)
    assert isinstance(space.get_attr(BASE, PAGE)["flags"], Flag)

    touch = space.access(BASE, 8 * PAGE, by="gpu0", write=True)
    assert_type(touch, AccessResult)
    assert_type(touch.code, str)
    assert_type(touch.addr, int | None)
    assert_type(touch.ok, bool)
    fault = space.fault(BASE, by="gpu0", write=False, t_ns=space.now_ns + 1, timestamp=3)
    assert_type(fault, FaultResult)
    assert_type(fault.window, tuple[int, int] | None)
    assert_type(fault.effects, Outcome)
    assert_type(fault.effects.migr, list[tuple[int, int, int, int, str, int]])

    assert_type(space.ranges(), list[RangeInfo])
    assert_type(space.ranges()[0].flags, Flag)
    assert_type(space.ranges()[0].access, tuple[str, ...])
    assert_type(space.residency(BASE, PAGE), list[tuple[int, int, str]])
    assert_type(space.explain(BASE), Explanation)
    assert_type(space.explain(BASE).location, str | None)
    assert_type(space.counters(), dict[str, int])
    assert_type(space.counters_by_processor(), dict[str, dict[str, int]])
    assert_type(space.evict(BASE), bool)
    assert_type(space.now_ns, int)
    assert_type(space.next_event_ns(), int | None)
    assert_type(space.step(), int)
    try:
        space.access(BASE, 0)
    except SvmError as error:
        assert_type(error.code, str)


def test_replay(tmp_path: Path) -> None:
    touches: npt.NDArray[np.void] = np.zeros(3, RECORD)
    touches["addr"], touches["size"] = BASE, PAGE
    np.save(tmp_path / "trace.npy", touches)
    trace = open_trace(tmp_path / "trace.npy")
    assert_type(trace, Trace)
    assert_type(trace.mappings(), list[Mapping])
    assert_type(trace.chunks(), Iterator[npt.NDArray[np.void]])
    assert_type(trace.summary, Summary)
    for source in (trace, tmp_path / "trace.npy", str(tmp_path / "trace.npy"), touches):
        result = replay(source, space_of_a_machine(), by="gpu0", outcomes=True, progress=print)
        assert_type(result, Result)
        assert_type(result.counters, dict[str, int])
        assert_type(result.buffers, npt.NDArray[np.void])
        assert_type(result.outcomes, npt.NDArray[np.void] | None)
        assert_type(result.records_per_s, float)
        assert_type(result.to_json(), str)
        assert_type(result.explain(0), str)
    assert_type(svmcore.__version__, str)


@pytest.mark.slow
def test_mypy_agrees() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(Path(__file__).relative_to(ROOT))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
