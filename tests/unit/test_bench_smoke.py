"""The benchmark room at a tiny size: its workloads, and that all structures agree."""

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


def room(name):
    """A module of bench/, which is no package and not installed."""
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCH))


workloads = room("workloads")
rivals = room("rivals")
goals = room("goals")


@pytest.mark.parametrize("size", ["small", "big"])
def test_layouts_are_disjoint_and_seeded(size):
    where = workloads.layout(1_000, size)
    assert np.array_equal(where.first, workloads.layout(1_000, size).first)
    assert not np.array_equal(where.first, workloads.layout(1_000, size, seed=2).first)
    assert (where.first[1:] > where.last[:-1]).all()
    pages = where.last - where.first + 1
    assert pages.min() >= 1
    assert pages.max() <= workloads.LONGEST[size]
    assert pages.mean() == pytest.approx(workloads.LONGEST[size] / 2, rel=0.1)
    gaps = np.mean(where.first[1:] > where.last[:-1] + 1)
    assert 0.2 < gaps < 0.3
    assert where.value.min() >= 1
    assert where.value.max() <= workloads.VALUES


@pytest.mark.parametrize("pattern", workloads.PATTERNS)
@pytest.mark.parametrize("ranges", [1, 20, 2_000])
def test_addresses_lie_inside(pattern, ranges):
    where = workloads.layout(ranges)
    pages = workloads.addresses(where, pattern, 3_000)
    assert pages.dtype == np.uint64
    assert len(pages) == 3_000
    assert pages.min() >= workloads.BASE
    assert pages.max() < where.end
    assert np.array_equal(pages, workloads.addresses(where, pattern, 3_000))


def test_zipf_has_common_pages():
    where = workloads.layout(2_000)
    _, counts = np.unique(workloads.addresses(where, "zipf", 50_000), return_counts=True)
    counts = np.sort(counts)[::-1]
    # 1 / k: the second page half as often as the first, the tenth a tenth.
    assert counts[1] / counts[0] == pytest.approx(0.58, abs=0.1)
    assert counts[0] > 7 * counts[9]


def test_changes_lie_inside():
    where = workloads.layout(5)
    for first, last, value in workloads.overwrites(where, 500) + workloads.holes(where, 500):
        assert workloads.BASE <= first <= last < where.end
        assert last - first < 7
        assert 1 <= value <= workloads.VALUES
    ops = workloads.mixed(where, 1_000)
    assert sum(1 for _, _, value in ops if value) == 10


@pytest.mark.parametrize("rival", rivals.RIVALS, ids=lambda rival: rival.name)
@pytest.mark.parametrize("ranges", [1, 60])
def test_structures_agree(rival, ranges):
    if rival.needs:
        pytest.importorskip(rival.needs)
    where = workloads.layout(ranges)
    state = rivals.check(rival, where, 100)
    if rival.static:
        assert state == rivals.state_hash(where.rows())
    else:
        assert state == rivals.check(rivals.Svmcore, where, 100)


def test_the_check_finds_a_wrong_structure():
    class Wrong(rivals.Lists):
        name = "wrong"

        def assign(self, first, last, value):
            super().assign(first, last if first % 5 else max(first, last - 1), value)

    with pytest.raises(rivals.Disagreement, match="wrong: ranges"):
        rivals.check(Wrong, workloads.layout(60), 100)


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("order", ["uniform", "streams", "sequential"])
def test_faults_move_what_they_must(mix, order):
    faults = goals.Faults(256, mix, order)
    for _ in range(2):
        assert faults.lap() > 0
        faults.verify(faults.outcomes)
        faults.pull_back()
    faults.process.check()


def test_verdicts():
    rows = [
        goals.row("G1", "a", 20.0, 10.0),
        goals.row("G2", "b", 8.0, 10.0),
        goals.row("G3", "c", 3.0, 2.0, most=True),
        goals.row("G4", "d", None, 2.0),
        goals.row("bar", "e", 2.0, None),
    ]
    wanted = ["met", "NOT MET", "NOT MET, below 70 %", "not measured", "told"]
    assert [goals.verdict(row) for row in rows] == wanted
    assert goals.status(rows) == 1
    assert goals.status(rows[:2]) == 0
    assert "1 of 3 met" in goals.show(rows)


def test_states_are_saved_and_loaded(tmp_path, monkeypatch):
    state = room("state")
    monkeypatch.setattr(state, "digests", lambda rounds: {"zlib.crc32": 1.0})
    found = state.run(300, 20, tmp_path, 1)
    assert [row["state"].split()[0] for row in found["states"]] == ["ranges", "ranges", "masks"]
    for row in found["states"]:
        assert row["bytes"] > 0
        assert all(row[key] > 0 for key in row if key.endswith("_s"))
    assert [row["ranges"] >= 300 for row in found["states"]] == [True, True, False]
    page = tmp_path / "page.md"
    page.write_text("Text.\n<!-- figures -->\nold\n")
    monkeypatch.setattr(state, "PAGE_DOCS", page)
    state.write_page(found, "python bench/state.py --docs")
    text = page.read_text()
    assert text.startswith("Text.\n<!-- figures -->\n")
    assert "old" not in text
    assert "| `zlib.crc32` | 1.00 |" in text
    assert list(tmp_path.iterdir()) == [page]


def test_the_digests_that_are_compared_exist():
    rates = room("state").digests(1, 4096)
    assert min(rates.values()) > 0
    assert {"zlib.crc32", "hashlib.blake2b"} <= set(rates)
