"""A replay that is stopped at any record and resumed gives the result of one that is not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import svmcore
from svmcore import Gpu, Machine, Result, Space, replay
from svmcore.attributes import Attribute
from svmcore.checkpoint.run import load_run, save_run, saved_settings
from svmcore.errors import InvalidArgumentError, StateFileError
from svmcore.image import read_image, write_image
from svmcore.records import RECORD, Access, Kind

#: What is resumed: a policy joins by its name, with the parameters that make it differ.
POLICIES = [
    "kfd",
    "kfd(kernel=6.12, granularity=4, max_svm_range_pages=64)",
    "kfd(kernel=6.1, granularity=0)",
    "kfd(evict_on_full=off)",
    "kfd(xnack=off)",
    "uvm",
    "uvm(eviction=lfu, pma_batch_order=0, outstanding=7)",
    "always_migrate(eviction=random)",
]
CUTS = 200
ADDR = 0x7F00_0000_0000
PAGE = 4096
PAGES = 3000
MACHINE = Machine("two", (Gpu(id=11, vram_pages=900, hive=1), Gpu(id=12, vram_pages=300, hive=1)))
WALL = ("wall_s", "engine_s", "records_per_s")


def trace(seed: int, n: int = 300, kind: Kind = Kind.ACCESS) -> npt.NDArray[np.void]:
    """Touches of a few buffers with advice, prefetches, mappings that come and go."""
    rng = np.random.default_rng(seed)
    records = np.zeros(n, RECORD)
    page = rng.integers(0, PAGES, n)
    pages = rng.choice([1, 1, 3, 40, 300], n)
    records["addr"], records["size"] = ADDR + PAGE * page, PAGE * pages
    records["kind"] = rng.choice(
        [kind] * 12 + [Kind.ADVISE, Kind.PREFETCH, Kind.UNMAP, Kind.EVICT], n
    )
    records["proc"] = rng.choice([0, 1, 1, 2, 255], n)
    records["access"] = rng.choice([Access.READ, Access.WRITE, Access.ATOMIC], n)
    records["peer"] = rng.integers(0, 3, n)
    advice = records["kind"] == Kind.ADVISE
    records["access"][advice] = rng.choice([*Attribute, Attribute.GRANULARITY], advice.sum())
    records["value"] = rng.integers(0, 12, n)
    records["t_ns"] = 5_000 + np.cumsum(rng.choice([0, 100, 900_000], n)).astype("<u8")
    records["dur_ns"] = rng.integers(0, 5_000, n)
    buffers = np.zeros(5, RECORD)
    buffers["kind"], buffers["proc"], buffers["peer"] = Kind.MAP, 255, 255
    buffers["addr"] = ADDR + PAGE * np.array([0, 700, 1300, 2000, 2900])
    buffers["size"] = PAGE * np.array([700, 500, 700, 800, 300])
    # One mapping comes in the middle of the run.
    return np.concatenate([buffers[:4], records[: n // 2], buffers[4:], records[n // 2 :]])


def plain(result: Result) -> dict[str, Any]:
    """A result without the fields of this machine's clock."""
    table = {key: value for key, value in result.to_dict().items() if key not in WALL}
    assert result.outcomes is not None
    return table | {"outcomes": result.outcomes.tobytes()}


class Stop(BaseException):
    """As Ctrl-C or the end of the process would: nothing catches it."""


def stopped(records: Any, space: Space, path: Path, cut: int, **options: Any) -> None:
    """Replay until *cut* records are in the file."""

    def at(done: int) -> None:
        if done == cut:
            raise Stop

    with pytest.raises(Stop):
        replay(
            records,
            space,
            checkpoint=path,
            checkpoint_every=cut,
            progress=at,
            outcomes=True,
            **options,
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_cut_anywhere_and_resumed(tmp_path: Path, policy: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 200 files in a second, not in a minute
    rnd = random.Random(policy)
    path = tmp_path / "run.svm"
    for number in range(CUTS):
        if number % 20 == 0:
            options = {
                "by": rnd.choice(("gpu0", "gpu1", "cpu")),
                "raw_faults": rnd.random() < 0.3,
                "chunk": rnd.choice((7, 100, 1 << 16)),
            }
            kind = rnd.choice((Kind.ACCESS, Kind.ACCESS, Kind.FAULT))
            records = trace(rnd.randrange(1 << 30), kind=kind)
            whole = Space(MACHINE, policy=policy)
            expected = plain(replay(records, whole, outcomes=True, **options))
        stopped(
            records, Space(MACHINE, policy=policy), path, rnd.randint(1, len(records)), **options
        )
        rest = Space(MACHINE, policy=policy)
        other = options | {"chunk": rnd.choice((1, 50, 1 << 16))}
        assert plain(replay(records, rest, resume=path, outcomes=True, **other)) == expected
        assert rest.ranges() == whole.ranges()
        assert rest.counters() == whole.counters()
        assert rest.residency(ADDR, PAGES * PAGE) == whole.residency(ADDR, PAGES * PAGE)
        assert (rest.now_ns, rest.next_event_ns()) == (whole.now_ns, whole.next_event_ns())
    assert expected["faults"] or "xnack=off" in policy
    assert expected["migrations"] or "xnack=off" in policy


FRESH = """
import sys, json, numpy as np
from svmcore import Machine, Space, replay
from svmcore.checkpoint.run import saved_settings
records = np.load(sys.argv[1])
machine, policy, settings = saved_settings(sys.argv[2])
result = replay(records, Space(machine, policy=policy), resume=sys.argv[2], **{
    key: settings[key] for key in ("by", "raw_faults", "outcomes")})
print(json.dumps([result.to_dict(), result.outcomes.tobytes().hex()]))
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_resumed_in_a_fresh_interpreter(tmp_path: Path, policy: str) -> None:
    records = trace(7)
    np.save(tmp_path / "trace.npy", records)
    expected = plain(replay(records, Space(MACHINE, policy=policy), outcomes=True))
    path = tmp_path / "run.svm"
    stopped(records, Space(MACHINE, policy=policy), path, 137)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH, str(tmp_path / "trace.npy"), str(path)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(svmcore.__file__).parents[1])},
    )
    table, outcomes = json.loads(done.stdout)
    table = {key: value for key, value in table.items() if key not in WALL}
    expected["outcomes"] = expected["outcomes"].hex()
    assert table | {"outcomes": outcomes} == json.loads(json.dumps(expected))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_what_comes_before_the_first_touch_waits_for_no_time(chunk: int) -> None:
    """The first touch sets the clock of a fault trace, wherever the chunks are cut."""
    records = trace(5, 12, Kind.FAULT)[4:]
    records["kind"][:3] = Kind.UNMAP, Kind.ADVISE, Kind.FAULT
    records["access"][1], records["t_ns"][:3] = Attribute.GRANULARITY, [700, 10**6, 5 * 10**6]
    one, other = (
        replay(records, Space(MACHINE), chunk=size, outcomes=True) for size in (chunk, 1 << 16)
    )
    assert plain(one) == plain(other)
    assert other.outcomes is not None
    assert other.outcomes["t_ns"][:2].tolist() == [0, 0]


def test_checkpoints_come_every_so_many_records(tmp_path: Path) -> None:
    records = trace(3)
    path = tmp_path / "run.svm"
    seen = []

    def look(done: int) -> None:
        if path.exists():
            seen.append((done, load_run(path)[1].state["done"]))

    replay(records, Space(MACHINE), checkpoint=path, checkpoint_every=40, chunk=64, progress=look)
    assert [saved for _, saved in seen] == [done // 40 * 40 for done, _ in seen]
    assert {saved for _, saved in seen} == set(range(40, len(records) + 1, 40))
    assert {64, 128, 305} <= {done for done, _ in seen}
    # The same file, on and on, and what is done stays done.
    replay(records, Space(MACHINE), resume=path, checkpoint_every=1)
    assert load_run(path)[1].state["done"] == len(records)
    again = replay(records, Space(MACHINE), resume=path)
    whole = replay(records, Space(MACHINE))
    assert again.counters == whole.counters
    assert again.reasons == whole.reasons


def test_a_checkpoint_is_a_state_of_the_space_too(tmp_path: Path) -> None:
    records = trace(3)
    stopped(records, Space(MACHINE), tmp_path / "run.svm", 100)
    half = Space(MACHINE)
    replay(records[:100], half)
    assert Space.load(tmp_path / "run.svm", machine=MACHINE).ranges() == half.ranges()


def test_a_failed_write_stops_the_run_and_keeps_the_last(tmp_path: Path, monkeypatch: Any) -> None:
    from svmcore.checkpoint import run

    path = tmp_path / "run.svm"
    count = 0

    def write(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count > 2:
            monkeypatch.setattr(os, "fsync", failing)
        write_image(*arguments)

    def failing(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run, "write_image", write)
    with pytest.raises(StateFileError, match=r"untouched.*No space"):
        replay(trace(3), Space(MACHINE), checkpoint=path, checkpoint_every=50)
    assert load_run(path)[1].state["done"] == 100
    assert list(tmp_path.iterdir()) == [path]


# ---- refused ---------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stopped(trace(3), Space(MACHINE), tmp_path / "run.svm", 100)
    return tmp_path / "run.svm"


def test_what_does_not_fit_the_checkpoint_is_refused(path: Path) -> None:
    records = trace(3)
    before = path.read_bytes()
    with pytest.raises(InvalidArgumentError, match="another trace"):
        replay(records[:-1], Space(MACHINE), resume=path, outcomes=True)
    with pytest.raises(
        InvalidArgumentError, match=r"replay\.by: the file has 'gpu0'.*'gpu1' given"
    ):
        replay(records, Space(MACHINE), resume=path, outcomes=True, by="gpu1")
    with pytest.raises(InvalidArgumentError, match=r"replay\.outcomes"):
        replay(records, Space(MACHINE), resume=path)
    with pytest.raises(InvalidArgumentError, match=r"policy\.settings\.granularity"):
        replay(records, Space(MACHINE, granularity=3), resume=path, outcomes=True)
    other = Space("gpu-80g")
    with pytest.raises(InvalidArgumentError, match=r"machine\.name"):
        replay(records, other, resume=path, outcomes=True)
    assert other.ranges() == []
    assert path.read_bytes() == before


def test_other_ranges_are_refused(tmp_path: Path) -> None:
    from svmcore.traces import open_trace

    demo = Path(svmcore.__file__).parent / "data" / "demo.csv.gz"
    path = tmp_path / "run.svm"
    replay(open_trace(demo), Space(), checkpoint=path, checkpoint_every=5000)
    ranged = open_trace(demo, ranges=[(0x7F0000000000, 1 << 21)])
    with pytest.raises(InvalidArgumentError, match="mappings"):
        replay(ranged, Space(), resume=path)


def test_arguments_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    for options, expected in (
        ({"checkpoint": tmp_path / "a"}, "checkpoint_every"),
        ({"checkpoint_every": 5}, "checkpoint or resume"),
        ({"checkpoint": tmp_path / "a", "checkpoint_every": 0}, "at least 1"),
        ({"checkpoint": tmp_path / "a", "checkpoint_every": 1.5}, "whole"),
        ({"resume": tmp_path / "none"}, "cannot be read"),
    ):
        with pytest.raises((InvalidArgumentError, StateFileError), match=expected):
            replay(trace(3), Space(MACHINE), **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_plain_space_is_no_replay(tmp_path: Path) -> None:
    Space(MACHINE).save(tmp_path / "a.svm")
    for read in (load_run, saved_settings):
        with pytest.raises(StateFileError, match="without a replay"):
            read(tmp_path / "a.svm")


STATES: dict[str, Any] = {
    "done": -1,
    "timed": 1,
    "t0": 1 << 64,
    "start_ns": "0",
    "before": {"faults": "many"},
    "before_by": {"cpu": 3},
    "reasons": [1],
    "first_error": {"record": 1},
}


@pytest.mark.parametrize("key", STATES)
def test_a_state_that_cannot_be_is_refused(path: Path, key: str) -> None:
    space, run = load_run(path)
    save_run(path, space, run._replace(state=run.state | {key: STATES[key]}))
    with pytest.raises(StateFileError, match="expected"):
        load_run(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replay_state", None),
        ("replay_state", np.frombuffer(b"{", "u1")),
        ("replay_state", np.frombuffer(b"[]", "u1")),
        ("replay_state", np.zeros(3, "<u4")),
        ("replay_buffers", None),
        ("replay_buffers", np.zeros(3, "<u8")),
        ("replay_outcomes", None),
        ("replay_outcomes", np.zeros(3, "<u8")),
        ("replay_other", np.zeros(3, "<u8")),
        ("other", np.zeros(3, "<u8")),
    ],
)
def test_members_that_cannot_be_are_refused(path: Path, name: str, value: Any) -> None:
    spec, arrays = read_image(path)
    arrays = (
        arrays | {name: value} if value is not None else {k: arrays[k] for k in arrays if k != name}
    )
    write_image(path, spec, arrays)
    with pytest.raises(StateFileError, match="expected"):
        load_run(path)


# ---- the command line --------------------------------------------------------------------------


def svm(*arguments: object, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "svmcore", "replay", *map(str, arguments)],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(svmcore.__file__).parents[1])},
        **options,
    )


def finished(*arguments: object, cwd: Path, status: int = 0) -> tuple[str, str]:
    process = svm(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    return out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_command_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    settings = ("--machine", "gpu-80g", "--set", "granularity=2", "--by", "gpu0")
    expected = json.loads(finished("demo", *settings, "--json", cwd=tmp_path)[0])
    file = tmp_path / "run.svm"
    again = ("demo", *settings, "--json", "--checkpoint-every", 3, "--resume", "run.svm")
    # Whoever runs the tests may ignore Ctrl-C, and children inherit that.
    process = svm(
        *again, cwd=tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    while not file.exists():
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "svmcore: stopped: --resume run.svm goes on" in err
        assert list(tmp_path.iterdir()) == [file]
    done = load_run(file)[1].state["done"]
    assert 0 < done < expected["trace"]["records"]
    # Machine, policy and settings are the file's.
    table = json.loads(finished("demo", "--json", "--resume", "run.svm", cwd=tmp_path)[0])
    for key in WALL:
        del table[key], expected[key]
    assert table == expected


def test_the_command_tells_what_it_refuses(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    _, err = finished("demo", "--checkpoint", "a.svm", cwd=tmp_path, status=2)
    assert "--checkpoint-every" in err
    arguments = ("demo", "--checkpoint-every", 100, "--checkpoint")
    _, err = finished(*arguments, "notes.txt", cwd=tmp_path, status=2)
    assert "expected a new file or a state file" in err
    assert (tmp_path / "notes.txt").read_text() == "mine"
    _, err = finished(*arguments, "no/a.svm", cwd=tmp_path, status=2)
    assert "folder" in err
    _, err = finished("demo", "--resume", "none.svm", cwd=tmp_path, status=2)
    assert err.startswith("svmcore: none.svm: cannot be read")
    finished(*arguments, "a.svm", cwd=tmp_path)
    for option in (("--policy", "kfd(kernel=6.1)"), ("--by", "cpu"), ("--set", "granularity=1")):
        _, err = finished("demo", "--resume", "a.svm", *option, cwd=tmp_path, status=2)
        assert err.startswith("svmcore: a.svm: resume: ")
        assert "the file has" in err
    _, err = finished("demo", "--resume", "b.svm", "--checkpoint-every", 9000, cwd=tmp_path)
    assert "b.svm is not there yet" in err
    assert load_run(tmp_path / "b.svm")[1].state["done"] == 9000
    finished("demo", "--checkpoint-every", 9000, cwd=tmp_path)
    assert (tmp_path / "demo.svm").is_file()


def test_other_names_of_mappings_are_refused(tmp_path: Path) -> None:
    path, saved = tmp_path / "list.txt", tmp_path / "run.svm"
    path.write_text("".join(f"{ADDR + page * PAGE:#x},4096,w\n" for page in range(20)))
    names = [[(ADDR, 20 * PAGE, name)] for name in ("first", "other")]
    one, other = (svmcore.open_trace(path, None, ranges) for ranges in names)
    space = Space(MACHINE)
    svmcore.replay(one, space, checkpoint=saved, checkpoint_every=8)
    with pytest.raises(InvalidArgumentError, match="mappings of other names or places"):
        svmcore.replay(other, Space(MACHINE), resume=saved)
    assert svmcore.replay(one, Space(MACHINE), resume=saved).names == ["first"]


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    saved = tmp_path / "run.svm"
    records = trace(3)
    svmcore.replay(records, Space(MACHINE), checkpoint=saved, checkpoint_every=100, stop=150)
    space, run = load_run(saved)
    earlier = {key: value for key, value in run.settings.items() if key != "names"}
    state = {key: v for key, v in run.state.items() if not key.startswith("advice")}
    save_run(saved, space, run._replace(settings=earlier, state=state))
    assert load_run(saved)[1].settings["names"] == ""
    whole = svmcore.replay(records, Space(MACHINE))
    resumed = svmcore.replay(records, Space(MACHINE), resume=saved)
    assert resumed.counters == whole.counters
