"""Killed, full or failing at any moment: a state file loads right, and the last good one stays."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import svmcore
from svmcore import Gpu, Machine, Space
from svmcore.errors import StateFileError
from svmcore.image import read_image

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="not run: forks processes")

ADDR = 0x7F00_0000_0000
PAGE = 4096
KILLS = 200

#: Forks a worker for each line with a seed. The worker goes on from the file, saves without
#: end, and tells each save that is done. A part of its saves meets a disk that is full
#: half-way, a sync or a rename that fails. What syncs does nothing: a kill of a process needs
#: none, and so there is a save every few milliseconds.
NURSERY = """
import os, random, sys
from pathlib import Path
from svmcore import Space
from svmcore.errors import StateFileError

path, ADDR, PAGE = sys.argv[1], *map(int, sys.argv[2:])
say = lambda text: os.write(1, (text + "\\n").encode())  # one write: no line is cut by a kill

class Full:
    def __init__(self, file, room):
        self.file, self.room = file, room
    def write(self, data):
        if self.room < len(data):
            self.file.write(bytes(data)[: self.room])
            self.file.flush()
            raise OSError(28, "No space left on device")
        self.room -= len(data)
        return self.file.write(data)
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()

def fails(*_):
    raise OSError(5, "Input/output error")

def work(seed):
    rnd = random.Random(seed)
    os.fsync = lambda _: None
    fdopen, fsync, replace = os.fdopen, os.fsync, Path.replace
    space = Space.load(path)
    say(f"begins {space.counters()['pages_touched']}")
    while True:
        touched = space.counters()["pages_touched"]
        space.access(ADDR + PAGE * (touched % 700), 1, by="gpu0", write=True)
        how = rnd.choice(("full", "sync", "rename", *("well",) * 12))
        if how == "full":
            room = rnd.randrange(40_000)
            os.fdopen = lambda *a: Full(fdopen(*a), room)
        elif how == "sync":
            os.fsync = fails
        elif how == "rename":
            Path.replace = fails
        try:
            space.save(path)
        except StateFileError:
            assert how != "well"
        else:
            say(f"saved {touched + 1}")
        os.fdopen, os.fsync, Path.replace = fdopen, fsync, replace

for line in sys.stdin:
    worker = os.fork()
    if worker == 0:
        work(int(line))
    say(f"worker {worker}")
    os.waitpid(worker, 0)
    say("dead")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    space = Space(Machine("one", (Gpu(id=1, vram_pages=300),)), granularity=0)
    space.map(ADDR, 700 * PAGE)
    space.save(tmp_path / "a.svm")
    return tmp_path / "a.svm"


@pytest.fixture
def nursery(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(path), str(ADDR), str(PAGE)],
        env=os.environ | {"PYTHONPATH": str(Path(svmcore.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    yield process
    process.communicate()
    assert process.returncode == 0


def life_and_death(
    nursery: subprocess.Popen[str], seed: int, wanted: int, seconds: float
) -> tuple[int, int]:
    """A worker killed that time after so many saves: the last save that it told, and how many."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{seed}\n")
    worker, last, saves = 0, -1, 0
    # The nursery and its worker speak in any order.
    while not worker or last < 0 or saves < wanted:
        word, number = nursery.stdout.readline().split()
        worker = int(number) if word == "worker" else worker
        last = int(number) if word != "worker" else last
        saves += word == "saved"
    time.sleep(seconds)
    os.kill(worker, signal.SIGKILL)
    while (line := nursery.stdout.readline()) != "dead\n":
        last = int(line.split()[1])
        saves += 1
    return last, saves


def test_two_hundred_kills(path: Path, nursery: subprocess.Popen[str]) -> None:
    rnd = random.Random(1)
    saves = cut = 0
    for seed in range(KILLS):
        last, done = life_and_death(nursery, seed, rnd.randrange(4), rnd.random() * 0.004)
        saves += done
        for item in path.parent.iterdir():
            if item != path:
                # The one file that a kill may leave; nobody takes it for the state.
                assert item.name.startswith(".a.svm.")
                assert item.suffix == ".tmp"
                item.unlink()
                cut += 1
        space = Space.load(path)
        space.process.check()
        # The last save that was told, or the one behind it: the kill came before it was told.
        # A save that failed on purpose may lie between them: then more was touched.
        touched = space.counters()["pages_touched"]
        assert last <= touched <= last + 10
        assert len(space.ranges()) <= 700
    assert saves > KILLS
    assert cut > 0


def test_every_failing_step_keeps_the_last_good_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call to the system that a save makes fails in turn."""
    before = path.read_bytes()
    space = Space.load(path)
    space.access(ADDR, 50 * PAGE, by="gpu0", write=True)

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for owner, name in ((os, "open"), (os, "fdopen"), (os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails)
            with pytest.raises(StateFileError, match=r"untouched.*No space"):
                space.save(path)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]
    space.save(path)
    assert Space.load(path).counters() == space.counters()


# ---- damage -----------------------------------------------------------------------------------


def seen(path: Path) -> tuple[object, dict[str, bytes]]:
    """Everything that a space is made of."""
    spec, arrays = read_image(path)
    return spec, {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture
def lived(path: Path) -> Path:
    space = Space.load(path)
    space.access(ADDR + 5 * PAGE, 3 * PAGE, by="gpu0", write=True)
    space.set_attr(ADDR + 6 * PAGE, PAGE, {"granularity": 3})
    space.save(path)
    return path


def flip(path: Path, places: Iterator[tuple[int, int]]) -> None:
    """A flipped bit is refused, or the state is the same: the zip says some things twice."""
    data = path.read_bytes()
    expected = seen(path)
    harmless = 0
    for place, bit in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        try:
            found = seen(path)
        except StateFileError:
            continue
        harmless += 1
        assert found == expected, (place, bit)
    # What only the local headers say: times, versions, sizes.
    assert harmless < len(data) * 8 // 10
    path.write_bytes(data)


def test_flipped_bits_of_a_state(lived: Path) -> None:
    """A sample; with ``SVMCORE_FLIPS=all`` every bit of the file, some minutes."""
    bits = range(lived.stat().st_size * 8)
    sample = bits if os.environ.get("SVMCORE_FLIPS") == "all" else bits[::37]
    flip(lived, (divmod(bit, 8) for bit in sample))


def test_truncations_of_a_state(lived: Path) -> None:
    data = lived.read_bytes()
    for size in range(0, len(data), 11):
        lived.write_bytes(data[:size])
        with pytest.raises(StateFileError):
            read_image(lived)
