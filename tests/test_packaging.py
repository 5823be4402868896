"""What is shipped: the sdist, the wheel made from it, and the metadata of both.

The wheel is built from the sdist in an empty folder, so a file that the sdist
lacks shows here and not at a user.
"""

from __future__ import annotations

import email
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import svmcore

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "svmcore"
SOURCES = (".py", ".pyx", ".pxd", ".pyi", ".h", ".hpp")
GENERATED = ("*.so", "*.pyd", "*.egg-info", "__pycache__", ".*_cache")


def version_in_source() -> str:
    text = (SOURCE / "_version.py").read_text("utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert match, text
    return match.group(1)


def can_build_here() -> bool:
    """Whether this environment has what pyproject.toml asks of a build."""
    try:
        setuptools = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return False
    return int(setuptools.partition(".")[0]) >= 77 and bool(importlib.util.find_spec("Cython"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel, built from a copy without anything generated."""
    pytest.importorskip("build")
    place = tmp_path_factory.mktemp("packaging")
    tree = place / "tree"
    tree.mkdir()
    for name in ("src", "tests", "bench", "docs", "examples", ".ci"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tree / name, ignore=shutil.ignore_patterns(*GENERATED, "_build")
            )
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    command = [sys.executable, "-m", "build", "--outdir", str(place / "dist")]
    if can_build_here():
        command.append("--no-isolation")
    run = subprocess.run(
        [*command, str(tree)], cwd=place, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
    (sdist,) = (place / "dist").glob("*.tar.gz")
    (wheel,) = (place / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def sdist_names(built: tuple[Path, Path]) -> set[str]:
    with tarfile.open(built[0]) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.fixture(scope="module")
def wheel_names(built: tuple[Path, Path]) -> set[str]:
    with zipfile.ZipFile(built[1]) as archive:
        return set(archive.namelist())


def source_files(*suffixes: str) -> set[str]:
    """Hand-written files of the package, as they are named in a wheel."""
    return {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


def test_version_is_one() -> None:
    assert svmcore.__version__ == version_in_source()
    assert importlib.metadata.version("svmcore") == version_in_source()


def test_installed_metadata() -> None:
    metadata = importlib.metadata.metadata("svmcore")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    needed = {
        re.split(r"[^\w-]", line, maxsplit=1)[0]
        for line in importlib.metadata.requires("svmcore") or ()
        if "extra ==" not in line
    }
    assert needed == {"numpy", "sortedcontainers"}
    assert {"cli", "arrow", "plot", "sweep", "cuda", "dev"} <= set(
        metadata.get_all("Provides-Extra")
    )
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="svmcore")
    assert script.value == "svmcore.cli:main"


def test_installed_copy_is_tested_not_the_source() -> None:
    assert SOURCE not in Path(svmcore.__file__).resolve().parents


@pytest.mark.slow
def test_sdist_holds_sources_and_no_generated_c(sdist_names: set[str]) -> None:
    wanted = {f"src/{name}" for name in source_files(*SOURCES, ".toml")}
    wanted |= {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml"}
    wanted |= {"setup.py", ".ci/run", "tests/test_packaging.py", "tests/conftest.py"}
    wanted |= {"bench/instructions.py", "docs/conf.py", "docs/index.md"}
    assert wanted - sdist_names == set()
    unwanted = re.compile(r"^src/.*\.(c|cpp|so|pyd|html)$|^build/|\.pyc$|^docs/_build/")
    assert [name for name in sorted(sdist_names) if unwanted.search(name)] == []


@pytest.mark.slow
def test_wheel_holds_what_embedders_need_and_no_c(wheel_names: set[str]) -> None:
    wanted = source_files(*SOURCES) | {"svmcore/py.typed"}
    data = (SOURCE / "data").rglob("*")
    wanted |= {
        path.relative_to(SOURCE.parent).as_posix()
        for path in data
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - wheel_names == set()
    modules = {name.partition(".")[0] for name in wheel_names if name.endswith((".so", ".pyd"))}
    assert modules == {name.removesuffix(".pyx") for name in source_files(".pyx")}
    outside = [name for name in wheel_names if not name.startswith(("svmcore/", "svmcore-"))]
    assert outside == []
    assert [name for name in wheel_names if name.endswith((".c", ".cpp", ".html", ".pyc"))] == []


@pytest.mark.slow
def test_wheel_metadata(built: tuple[Path, Path], wheel_names: set[str]) -> None:
    version = version_in_source()
    assert built[0].name == f"svmcore-{version}.tar.gz"
    assert built[1].name.startswith(f"svmcore-{version}-")
    (name,) = [name for name in wheel_names if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(built[1]) as archive:
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Version"] == version
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"svmcore-{version}.dist-info/licenses/LICENSE" in wheel_names


@pytest.mark.slow
def test_wheel_from_sdist_imports(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path)
    program = (
        "import importlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import svmcore\n"
        "assert svmcore.__file__.startswith(sys.argv[1]), svmcore.__file__\n"
        "for name in sys.argv[2:]:\n"
        "    importlib.import_module(name)\n"
    )
    compiled = [
        name.removesuffix(".pyx").replace("/", ".") for name in sorted(source_files(".pyx"))
    ]
    subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", program, str(tmp_path), *compiled],
        check=True,
        cwd=tmp_path,
    )
