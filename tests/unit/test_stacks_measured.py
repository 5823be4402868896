"""Modelled launches beside measured ones, and the plots."""

import dataclasses
from pathlib import Path

import pytest

from svmcore import stacks
from svmcore.errors import InvalidArgumentError, NotSupportedError, TraceError
from svmcore.report import stacks as report
from svmcore.stacks import measured

#: One H200, driver 580.159.04, by bench/launch_stacks.cu: 1, 2, 4, 8 and 16 threads.
OWN = Path(__file__).parents[1] / "data" / "stacks" / "launches_h200.csv"
HEAD = "policy,own_stream,threads,stack_mib,kernel_us,launches,us_per_launch\n"


def held(rows):
    """The bars: 10 % over all, 20 % within a group, 95 % of the pairs in order."""
    found = measured.agreement(rows, stacks.launch_costs("h200"))
    right, total, _ = found.pairs()
    assert found.median_error <= 0.10
    assert {group: error for group, error in found.groups().items() if error > 0.20} == {}
    assert right >= 0.95 * total
    return found


def test_the_rows_that_the_costs_were_fitted_to(shared):
    rows = measured.read_measured(shared / "vectors" / "launch_stacks_h200.csv")
    assert len(rows) == 180
    found = held(rows)
    assert len(found.groups()) == 20
    assert found.pairs()[1] == 218


def test_rows_of_another_day_and_of_other_thread_counts():
    rows = measured.read_measured(OWN)
    assert sorted({row.threads for row in rows}) == [1, 2, 4, 8, 16]
    assert len(held(rows).groups()) == 50
    # None of these was there when the costs were fitted.
    others = [row for row in rows if row.threads in (2, 8, 16)]
    assert len(others) == 270
    held(others)


def test_a_wrong_machine_is_told_apart():
    """The review's machine, one kernel at a time and no lock in the driver, is far off."""
    rows = measured.read_measured(OWN)
    found = measured.agreement(rows, stacks.LaunchCosts())
    assert found.median_error > 0.25


def test_every_mechanism_counts():
    """Without one of the mechanisms the model is farther from the measurements."""
    rows = [row for row in measured.read_measured(OWN) if row.threads == 4]
    costs = stacks.launch_costs("h200")
    best = measured.fit_error(rows, costs)
    without = {
        "driver_lock": {"driver_lock": False},
        "free_waits": {"free_waits": False},
        "fair": {"fair": True},
        "concurrent": {"concurrent": False},
        "turn_ns": {"turn_ns": 0},
        "drain_ns": {"drain_ns": 0},
    }
    for name, change in without.items():
        worse = measured.fit_error(rows, dataclasses.replace(costs, **change))
        assert worse > best, name


def test_fit_comes_back_from_wrong_constants():
    rows = [row for row in measured.read_measured(OWN) if row.threads == 1][:15]
    start = dataclasses.replace(stacks.launch_costs("h200"), wait_ns=9000, kernel_ns=900)
    told = []
    fitted = measured.fit(rows, start, progress=lambda costs, error: told.append(error))
    assert told == sorted(told, reverse=True)
    assert measured.fit_error(rows, fitted) < 0.6 * measured.fit_error(rows, start)
    assert fitted.alloc == start.alloc
    with pytest.raises(InvalidArgumentError, match="fit: no row"):
        measured.fit([], start)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policy,threads\n", "line 1: no column own_stream, expected policy, own_stream"),
        (HEAD, "no row, expected one or more"),
        (HEAD + "heap,0,1,1,0,1,1\n", "line 2: policy 'heap', expected one of per_launch"),
        (HEAD + "pool3,0,1,1,0,1,1\npool3,0,2,1,0,1,1\n", "line 3: expected threads, stack"),
        (HEAD + "pool3,0,1,1,x,1,1\n", "line 2: invalid literal"),
        (HEAD + "pool3,0,1\n", "line 2: "),
        (HEAD + "pool3,0,1,1,0,1,nan\n", "line 2: expected threads, stack"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, told):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        measured.read_measured(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match="expected a readable file"):
        measured.read_measured(tmp_path / "none.csv")


# ---- plots -------------------------------------------------------------------------------


def test_plots_are_made_whole_and_alike(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    trace = stacks.LaunchTrace.of(
        [stacks.Launch(thread=i, stream=i, teams=4) for _ in range(3) for i in range(2)]
    )
    results = {
        name: stacks.replay(trace, name, events=True) for name in ("locked_block", "per_thread")
    }
    found = measured.agreement(measured.read_measured(OWN)[:10], stacks.launch_costs())
    for kind, start, draw, what in (
        (".svg", b"<?xml", report.plot_timeline, results),
        (".png", b"\x89PNG", report.plot_measured, found),
        (".pdf", b"%PDF", report.plot_measured, found),
    ):
        path = tmp_path / f"plot{kind}"
        draw(what, path)
        first = path.read_bytes()
        assert first.startswith(start)
        draw(what, path)
        assert path.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.pdf", "plot.png", "plot.svg"]


def test_plots_that_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"plot x.gif: expected a file of type .svg"):
        report.check_plot("x.gif")
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    with pytest.raises(InvalidArgumentError, match="timeline of 0 policies"):
        report.plot_timeline({}, tmp_path / "x.svg")


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(NotSupportedError, match=r"pip install 'svmcore\[plot\]'"):
        report.check_plot("x.svg")
