"""Every checkpoint backend does the same: the simulator, the real one over a fake driver.

With SVMCORE_TEST_CUDA=1 in the environment the real driver too, on real GPUs and
child processes with plain allocations (see docs/how-to/checkpoint-a-process.md).
"""

import os

import pytest

from contract.checkpoint_contract import CHECKS, FakeWorld, NotHere, RealWorld, SimWorld

WORLDS = {"simulator": SimWorld, "fake": FakeWorld}
REAL = pytest.mark.skipif(
    os.environ.get("SVMCORE_TEST_CUDA", "") in ("", "0"), reason="SVMCORE_TEST_CUDA is not set"
)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_simulated(world, check):
    check(world())


@pytest.mark.parametrize("name", ["identity_pairs", "unknown_gpus", "every_cell"])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_simulated_on_one_gpu(world, name):
    CHECKS[name](world(gpus=1))


@REAL
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_real(check):
    try:
        check(RealWorld())
    except NotHere as reason:
        pytest.skip(str(reason))


def test_there_are_checks():
    assert len(CHECKS) == 12
