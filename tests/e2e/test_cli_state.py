"""``svmcore inspect`` of state files; ``replay --resume`` is in tests/contract/test_resume.py."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from e2e.cli_run import svm
from svmcore import Space
from svmcore.image import read_image, read_manifest, write_image

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def path(tmp_path):
    space = Space("gpu-80g", kernel="6.12")
    space.map(0x7F00_0000_0000, 8 << 20)
    space.access(0x7F00_0000_0000, 4 << 20, by="gpu0", write=True)
    space.save(tmp_path / "a.svm")
    return tmp_path / "a.svm"


def test_a_state_is_told(path):
    table = json.loads(svm("inspect", path, "--json")[0])
    manifest = read_manifest(path)
    assert table["format"] == "svmcore state"
    assert table["format_version"] == 2
    assert table["bytes"] == path.stat().st_size
    assert table["machine"] == manifest["spec"]["machine"]
    assert table["policy"]["settings"]["kernel"] == "6.12"
    assert table["spec_digest"] == manifest["spec_digest"]
    assert table["replay"] is None
    assert table["counters"]["migrated_pages"] == 1024
    assert table["now_ns"] == Space.load(path).now_ns
    rows = {member["name"]: member["rows"] for member in table["members"]}
    assert rows == {name: len(array) for name, array in read_image(path)[1].items()}
    assert {len(member["digest"]) for member in table["members"]} == {8}
    out, err = svm("inspect", path)
    assert err == ""
    assert "machine    gpu-80g: 1 x 80.0 GiB" in out
    assert "kernel=6.12" in out
    assert "migrated pages 1,024" in out


def test_a_replay_on_its_way_is_told(tmp_path):
    svm("replay", "demo", "--checkpoint-every", 5000, "--checkpoint", "a.svm", cwd=tmp_path)
    table = json.loads(svm("inspect", tmp_path / "a.svm", "--json")[0])
    assert table["replay"]["done"] == 10_000
    assert table["replay"]["by"] == "gpu0"
    assert "10,000 records done" in svm("inspect", tmp_path / "a.svm")[0]


def test_old_formats_are_told():
    table = json.loads(svm("inspect", GOLDEN / "state_v1.svm", "--json")[0])
    assert table["format_version"] == 1
    assert {len(member["digest"]) for member in table["members"]} == {64}


def test_the_same_name_and_another_file(path):
    """Only what begins as a zip is taken for a state file."""
    path.write_text("timestamp,addr\n")
    assert "format not recognised" in svm("inspect", path, status=2)[1]


def test_damage_is_told_in_one_line(path):
    data = path.read_bytes()
    path.write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    out, err = svm("inspect", path, status=2)
    assert out == ""
    assert err.count("\n") == 1
    assert "expected" in err


@pytest.mark.parametrize(
    "spec", [{}, {"machine": 5, "policy": {}}, {"machine": {"name": "x"}, "policy": {"name": 1}}]
)
def test_files_of_something_else(path, spec):
    write_image(path, spec, {})
    assert "expected the Spec of a space" in svm("inspect", path, status=2)[1]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.txt", "hello")
    assert "expected manifest.json and" in svm("inspect", path, status=2)[1]


def test_a_table_by_another_policy_has_no_clock(path):
    spec, _ = read_image(path)
    spec["policy"] = {"name": "mine", "settings": {"x": 1}}
    write_image(path, spec, {"rows": np.zeros((3, 2), "<u8")})
    table = json.loads(svm("inspect", path, "--json")[0])
    assert (table["now_ns"], table["counters"]) == (None, {})
    assert "x=1" in svm("inspect", path)[0]
