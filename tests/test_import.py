"""What ``import svmcore`` loads, and that what it loads later is there all the same."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import svmcore

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(svmcore.__file__).parents[1])}
#: Each of them takes milliseconds, and no import needs it.
HEAVY = [
    "csv",
    "gzip",
    "importlib.metadata",
    "importlib.resources",
    "json",
    "lzma",
    "pkgutil",
    "pyarrow",
    "secrets",
    "shlex",
    "svmcore.buildinfo",
    "svmcore.image",
    "svmcore.traces",
    "tempfile",
    "tomllib",
    "zipfile",
]


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout


def test_heavy_modules_are_not_loaded():
    code = (
        "import json as j, sys, numpy\n"
        "before = set(sys.modules)\n"
        "del sys.modules['json']\n"
        "import svmcore\n"
        "print(j.dumps(sorted(set(sys.modules) - (before - {'json'}))))"
    )
    loaded = set(json.loads(run(code)))
    assert loaded & set(HEAVY) == set()
    assert "svmcore.engine" in loaded


def test_names_that_come_later_are_there():
    code = (
        "import svmcore\n"
        "assert set(svmcore.__all__) <= set(dir(svmcore))\n"
        "assert callable(svmcore.replay)\n"
        "import svmcore.replay as module\n"
        "from svmcore.replay import CHUNK\n"
        "assert callable(svmcore.replay), 'the module has taken the place of the function'\n"
        "assert svmcore.open_trace is svmcore.traces.open_trace\n"
        "assert svmcore.get_include is svmcore.buildinfo.get_include\n"
        "for name in svmcore.__all__:\n"
        "    assert getattr(svmcore, name) is getattr(svmcore, name)\n"
        "from svmcore import *\n"
        "assert open_trace is svmcore.open_trace\n"
        "print('done')"
    )
    assert run(code) == "done\n"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        svmcore.nothing
    assert not hasattr(svmcore, "tracks")


def test_import_takes_not_much_longer_than_that_of_numpy():
    best = {"numpy": 60.0, "svmcore": 60.0}
    for _ in range(10):
        for name, least in best.items():
            begin = time.perf_counter()
            run(f"import {name}")
            best[name] = min(least, time.perf_counter() - begin)
    # 1.26 on an idle machine; the bound only catches a heavy import that came back.
    assert best["svmcore"] < 1.45 * best["numpy"]
