"""The floors of the house: arrows point down only, in Python and in Cython.

Each module stands on a floor and may import what stands lower. On its own floor
it may import sideways as long as no ring forms. Readers of traces have a side
room: they see records and machine alone. A module without a floor fails, so
that nobody adds a room without saying where it stands.
"""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "svmcore"
SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE

# From the ground up. A name stands for the module and for all that lies below it.
FLOORS = [
    ["errors", "units", "_version", "_types", "_large", "buildinfo"],
    ["records", "attributes", "advice", "machine", "image"],
    ["_ranges"],
    ["_residency"],
    ["_faults"],
    ["_evict", "_process"],
    ["policies"],
    ["engine", "reference", "reference_uvm", "_replay", "_tally", "_capi"],
    [
        "replay",
        "unused",
        "result",
        "plans",
        "managed",
        "checkpoint",
        "stacks",
        "_stacks",
        "conformance",
        "conformance_uvm",
    ],
    ["report", "events", "sweep", "sweep_dask", "compare", "tune", "explain", "history"],
    [""],  # the package itself: it gathers the public names
    ["cli", "__main__"],
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
# The side room: what readers see, and the lowest floor that sees readers.
TRACES_SEE = {"errors", "units", "_version", "_types", "records", "attributes", "machine"}
TRACES_SEEN_FROM = FLOOR["replay"]
# In policies/: what every policy may use. Each other file is a policy, `_x` the compiled
# half of `x`, `_x_state` what saves it.
POLICY_ROOMS = {"policies.base", "policies.kernels", "policies.outcome", "policies.topology"}
POLICY_ROOMS |= {"policies.actions", "policies.paged", "policies._paged", "policies._paged_state"}
# The oracle shares no compiled code with what it judges.
COMPILED = (
    "_ranges",
    "_residency",
    "_faults",
    "_evict",
    "_process",
    "_replay",
    "_tally",
    "_capi",
    "_stacks",
)

Edges = dict[str, set[str]]


def room(module: str) -> str:
    """Name in FLOOR (or ``traces``) that *module* belongs to; ``KeyError`` when there is none."""
    head = module.partition(".")[0]
    if head in FLOOR or head == "traces":
        return head
    raise KeyError(module)


def module_of(path: Path, root: Path) -> str:
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def resolve(importer: str, is_package: bool, level: int, target: str) -> str | None:
    """Module below the package that an import names, ``None`` when it is somebody else's."""
    if level == 0:
        head, _, rest = target.partition(".")
        return rest if head == PACKAGE else None
    base = importer.split(".") if importer else []
    drop = level - 1 if is_package else level
    if drop > len(base):
        raise ValueError(f"{importer or PACKAGE}: the import leaves the package")
    kept = base[: len(base) - drop]
    return ".".join([*kept, target] if target else kept)


def python_imports(text: str) -> list[tuple[int, str, list[str]]]:
    """Level, module and names of every import, at any depth and in TYPE_CHECKING blocks too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", [alias.name for alias in node.names]))
    return found


# Strings first, so that a # in one is no comment and an import in a docstring is none.
CYTHON_NOISE = re.compile(
    r"(\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')|#[^\n]*|\\\n",
    re.DOTALL,
)
CYTHON_FROM = re.compile(
    r"(?:^|[;:])[ \t]*from[ \t]+(\.*)[ \t]*([\w.]*)[ \t]+c?import[ \t]*(\([^)]*\)|[^\n;]*)",
    re.MULTILINE,
)
CYTHON_IMPORT = re.compile(r"(?:^|[;:])[ \t]*c?import[ \t]+([^\n;(]+)", re.MULTILINE)


def cython_imports(text: str) -> list[tuple[int, str, list[str]]]:
    code = CYTHON_NOISE.sub(lambda match: "''" if match.group(1) else " ", text)
    found = []
    for dots, module, names in CYTHON_FROM.findall(code):
        listed = [name.split()[0] for name in names.strip("() \t").split(",") if name.split()]
        found.append((len(dots), module, listed))
    for names in CYTHON_IMPORT.findall(code):
        found += [(0, name.split()[0], []) for name in names.split(",") if name.split()]
    return found


def scan(root: Path) -> Edges:
    """What each module below *root* imports of the package."""
    files = [
        path
        for pattern in ("*.py", "*.pyi", "*.pyx", "*.pxd", "*.pxi")
        for path in sorted(root.rglob(pattern))
    ]
    known = {module_of(path, root) for path in files}
    edges: Edges = {module: set() for module in known}
    for path in files:
        importer = module_of(path, root)
        read = cython_imports if path.suffix in (".pyx", ".pxd", ".pxi") else python_imports
        for level, target, names in read(path.read_text("utf-8")):
            module = resolve(importer, path.stem == "__init__", level, target)
            if module is None:
                continue
            # `from package import name`: the name may be a module of its own.
            whole = {f"{module}.{name}".lstrip(".") for name in names}
            modules = {name for name in whole if name in known or name in FLOOR}
            if not names or whole - modules:
                modules.add(module)
            edges[importer] |= modules - {importer}
    return edges


def policy_of(module: str) -> str:
    return module.partition(".")[2].lstrip("_").removesuffix("_state")


def broken_rule(importer: str, target: str) -> str:
    """The rule that one import breaks; empty when it is sound."""
    try:
        here, there = room(importer), room(target)
    except KeyError as unknown:
        return f"{unknown.args[0]} has no floor: give it one in FLOORS"
    if here == "traces":
        if there != "traces" and there not in TRACES_SEE:
            return "readers of traces see records, attributes, machine, errors and units only"
        return ""
    if there == "traces":
        return "" if FLOOR[here] >= TRACES_SEEN_FROM else "readers are seen from replay upwards"
    if FLOOR[there] > FLOOR[here]:
        return f"upwards, from floor {FLOOR[here]} to floor {FLOOR[there]}"
    if here == "policies" and there == "policies":
        if importer != "policies" and importer in POLICY_ROOMS:
            return "" if target in POLICY_ROOMS else "shared rooms of policies see no policy"
        own_twin = policy_of(importer) == policy_of(target)
        if importer != "policies" and target not in POLICY_ROOMS and not own_twin:
            return "a policy sees policies.base and itself, never another policy"
    if here in ("reference", "reference_uvm") and (
        there in COMPILED or target.startswith("policies._") or there == "engine"
    ):
        return "the oracle shares no code with what it judges"
    return ""


def ring(edges: Edges) -> list[str]:
    """One ring of imports, empty when there is none. A package and its parts count as apart."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1][:0:-1]  # importer before imported, without the repeated end
        start = circle.index(min(circle))
        return [*circle[start:], *circle[: start + 1]]
    return []


def problems(root: Path) -> list[str]:
    edges = scan(root)
    found = [
        f"{importer or PACKAGE}: {broken_rule(importer, importer)}"
        for importer in sorted(edges)
        if "has no floor" in broken_rule(importer, importer)
    ]
    for importer, targets in sorted(edges.items()):
        for target in sorted(targets):
            rule = broken_rule(importer, target)
            if rule and f"{importer}: {rule}" not in found:
                found.append(f"{importer or PACKAGE} imports {target or PACKAGE}: {rule}")
    circle = ring(edges)
    if circle:
        found.append("ring: " + " -> ".join(name or PACKAGE for name in circle))
    return found


def test_floors_hold() -> None:
    assert (SOURCE / "units.py").is_file(), f"no source at {SOURCE}"
    assert problems(SOURCE) == []


GOOD = {
    "__init__.py": "from .engine import Space\nfrom . import units\n",
    "__init__.pxd": "from svmcore._ranges cimport ranges_t\n",
    "errors.py": "import errno\n",
    "units.py": "from .errors import SvmError\n",
    "records.py": "import numpy as np\n",
    "_types.pxd": "from libc.stdint cimport uint64_t\n",
    "_ranges.pyx": (
        '"""Text.\n\nfrom .engine import Space\n"""\n'
        "from ._types cimport record_t  # from .engine import Space\n"
        "cimport svmcore._types as t, libc.string\n"
    ),
    "policies/__init__.py": "from . import base, first\n",
    "policies/base.py": "from ..units import PAGE_SIZE\n",
    "policies/first.py": "from .base import Params\nfrom ._first import choose\n",
    "policies/_first.pyx": "from .._ranges cimport (\n    ranges_t,\n    ranges_find,\n)\n",
    "engine.py": "from .policies import base\nfrom .policies.first import First\n",
    "traces/__init__.py": "from ..records import RECORD\n",
    "traces/log.py": "from . import _text\nfrom ..errors import TraceError\n",
    "traces/_text.pyx": "from svmcore._types cimport record_t\n",
    "replay.py": "from .traces import log\n",
    "cli/__init__.py": "from .. import Space\n",
}
BAD = {
    "upward": ("units.py", "from .engine import Space", "units imports engine: upwards"),
    "absolute": ("units.py", "import svmcore.engine", "units imports engine: upwards"),
    "in a function": (
        "records.py",
        "def f():\n    from . import engine",
        "records imports engine: upwards",
    ),
    "for types only": (
        "policies/base.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..engine import Space",
        "policies.base imports engine: upwards",
    ),
    "cimport": ("_types.pxd", "from ._ranges cimport ranges_t", "_types imports _ranges: upwards"),
    "cimport absolute": ("_types.pxd", "cimport svmcore._ranges", "_types imports _ranges: upw"),
    "cimport list": (
        "_ranges.pxd",
        "from svmcore cimport (\n    _types,\n    _replay,\n)",
        "_ranges imports _replay: upwards",
    ),
    "cython import": ("_ranges.pyx", "from .engine import Space", "_ranges imports engine: upw"),
    "after a semicolon": ("_ranges.pyx", "import sys; import svmcore.engine", "imports engine"),
    "facade": ("records.py", "from . import __version__", "records imports svmcore: upwards"),
    "other policy": (
        "policies/second.py",
        "from .first import First",
        "policies.second imports policies.first: a policy sees",
    ),
    "other compiled policy": (
        "policies/_second.pyx",
        "from ._first cimport choose",
        "policies._second imports policies._first: a policy sees",
    ),
    "policies through their package": (
        "policies/second.py",
        "from . import lookup",
        "policies.second imports policies: a policy sees",
    ),
    "base knows a policy": (
        "policies/base.py",
        "from .first import First",
        "policies.base imports policies.first: shared rooms",
    ),
    "policy and engine": (
        "policies/first.py",
        "from ..engine import Space",
        "policies.first imports engine: upwards",
    ),
    "reader and engine": (
        "traces/log.py",
        "from ..engine import Space",
        "traces.log imports engine: readers of traces",
    ),
    "reader and core": (
        "traces/_text.pyx",
        "from svmcore._ranges cimport ranges_t",
        "traces._text imports _ranges: readers of traces",
    ),
    "engine and reader": ("engine.py", "from .traces import log", "engine imports traces.log: rea"),
    "oracle": ("reference.py", "from ._ranges import RangeMap", "reference imports _ranges: the"),
    "unknown room": ("attic.py", "import os", "attic has no floor"),
    "unknown target": ("cli/x.py", "import svmcore.attic", "attic has no floor"),
    "ring": ("errors.py", "from .units import PAGE_SIZE", "ring: errors -> units -> errors"),
}


def house(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_scanner_accepts_a_sound_house(tmp_path: Path) -> None:
    assert problems(house(tmp_path, GOOD)) == []


def test_scanner_reads_what_is_there(tmp_path: Path) -> None:
    edges = scan(house(tmp_path, GOOD))
    assert edges["_ranges"] == {"_types"}
    assert edges["policies._first"] == {"_ranges"}
    assert edges["policies.first"] == {"policies.base", "policies._first"}
    assert edges[""] == {"engine", "units", "_ranges"}


@pytest.mark.parametrize(("file", "text", "expected"), BAD.values(), ids=BAD.keys())
def test_scanner_catches(tmp_path: Path, file: str, text: str, expected: str) -> None:
    found = problems(house(tmp_path, {**GOOD, file: text + "\n"}))
    assert any(expected in line for line in found), found


def test_import_loads_numpy_sortedcontainers_and_own_modules_only() -> None:
    program = (
        "import json, sys, numpy, sortedcontainers\n"
        "before = set(sys.modules)\n"
        f"import {PACKAGE}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))\n"
    )
    # -I: neither the working folder nor the environment adds to the path.
    run = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", program],
        check=True,
        capture_output=True,
        text=True,
    )
    loaded = json.loads(run.stdout)
    allowed = {*sys.stdlib_module_names, PACKAGE, "numpy", "sortedcontainers", "cython_runtime"}
    foreign = [
        name
        for name in loaded
        # Cython keeps the types that its modules share under a name of its own.
        if name.partition(".")[0] not in allowed and not name.startswith("_cython_")
    ]
    assert foreign == []
    assert [name for name in loaded if name.startswith(f"{PACKAGE}.cli")] == []
