"""Every checkpoint backend does the same: the simulator, the real one over a fake driver.

With SVMCORE_TEST_CUDA=1 in the environment the real driver too, on real GPUs and
child processes with plain allocations (see docs/how-to/checkpoint-a-process.md).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import svmcore
from contract.checkpoint_contract import CHECKS, FakeWorld, NotHere, RealWorld, SimWorld

HERE = Path(__file__).parent
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


def test_the_documented_command_on_a_stand_in(tmp_path):
    """The script for real GPUs, its child processes and ctypes, on a stand-in for libcuda."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    state, programs = tmp_path / "state", tmp_path / "bin"
    state.mkdir()
    programs.mkdir()
    library = tmp_path / "libcuda.so.1"
    source = HERE / "fake_libcuda.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    smi = programs / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_nvidia_smi.py"}" "$@"\n')
    smi.chmod(0o755)
    environment = {
        **os.environ,
        "FAKE_CUDA": str(state),
        "LD_LIBRARY_PATH": str(tmp_path),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(svmcore.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, HERE / "checkpoint_contract.py", "--json", tmp_path / "told.json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["cuda"] == 13_000
    assert told["checks"] == dict.fromkeys(CHECKS, "ok")
