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
from contract.checkpoint_contract import CHECKS, NotHere, RealWorld
from contract.checkpoint_worlds import FakeWorld, SimWorld

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


@pytest.mark.parametrize("tree", ["built", "as cloned"])
def test_the_documented_command_on_a_stand_in(tmp_path, tree):
    """The script for real GPUs, its child processes and ctypes, on a stand-in for libcuda."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    state, programs, contract = (
        tmp_path / "state",
        tmp_path / "bin",
        tmp_path / "tests" / "contract",
    )
    state.mkdir()
    programs.mkdir()
    shutil.copytree(HERE, contract, ignore=shutil.ignore_patterns("__pycache__"))
    source = contract / "fake_libcuda.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    smi = programs / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{contract / "fake_nvidia_smi.py"}" "$@"\n')
    smi.chmod(0o755)
    package = Path(svmcore.__file__).parent
    environment = {
        **os.environ,
        "FAKE_CUDA": str(state),
        "LD_LIBRARY_PATH": str(tmp_path),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(package.parent),
    }
    interpreter, only = [sys.executable], ""
    if tree == "as cloned":
        sources = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
        shutil.copytree(package, tmp_path / "src" / "svmcore", ignore=sources)
        interpreter, only = [sys.executable, "-I", "-S"], "swap"  # no installed package is seen
    told = tmp_path / "told.json"
    done = subprocess.run(
        [*interpreter, contract / "checkpoint_contract.py", "--json", told, "--only", only],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert found["cuda"] == 13_000
    assert found["checks"] == {name: "ok" for name in CHECKS if only in name}
