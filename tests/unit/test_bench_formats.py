"""The benchmark of foreign formats at a tiny size: readers and plain loops see the same rows."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
formats = importlib.import_module("test_readers_formats")
sys.path.remove(str(BENCH))


@pytest.mark.parametrize("form", formats.CASES)
def test_reader_and_loop_agree(form, tmp_path):
    case, path = formats.CASES[form], tmp_path / "t"
    case.make(path, 500)
    # A paired fault of rocprofiler-sdk is two records.
    each = 2 if form in ("rocprofiler-json", "rocpd") else 1
    assert formats.read(path, form) == each * formats.count(case.plain(path)) >= 500
    assert min(formats.compare(form, 500, tmp_path)) > 0
