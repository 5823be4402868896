"""``svmcore bench``, at sizes that take no time."""

import json

import pytest

from e2e.cli_run import svm
from svmcore.report import bench

TINY = ("--ranges", "100", "--rounds", "1", "--operations", "50")


def test_bench_tells_this_machine_beside_the_published_table(tmp_path):
    out, err = svm("bench", *TINY, cwd=tmp_path)
    assert err == ""
    for name in bench.CASES:
        assert name in out
    assert "published: svmcore" in out
    assert "million faults/s" in out
    assert "the published table has 10,000 ranges" in out
    assert list(tmp_path.iterdir()) == []


def test_bench_json():
    out, err = svm("bench", *TINY, "--json")
    assert err == ""
    table = json.loads(out)
    assert [row["case"] for row in table["cases"]] == list(bench.CASES)
    for row in table["cases"]:
        assert row["ns"] > 0
        assert row["published_ns"] > 0
        assert row["speed"] == pytest.approx(row["published_ns"] / row["ns"], abs=0.001)
    assert table["ranges"] == 100
    assert table["machine"]["numpy"]


def test_the_published_table_has_every_case():
    table = bench.published()
    assert list(table["cases"]) == list(bench.CASES)
    assert {"cpu", "cores", "system", "python", "numpy", "svmcore"} <= set(table["machine"])
    assert table["ranges"] == 10_000


def test_a_case_that_is_not_published_has_no_speed():
    (row,) = bench.compared({"find": 10.0}, {"cases": {}})
    assert row["published_ns"] is None
    assert row["speed"] is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--ranges", "1"), "--ranges"), (("--rounds", "0"), "--rounds"), (("what",), "what")],
)
def test_bench_refuses(arguments, word):
    out, err = svm("bench", *arguments, status=2)
    assert out == ""
    assert word in err
    assert err.count("\n") == 1
