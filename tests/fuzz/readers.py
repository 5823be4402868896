"""Fuzzing one reader: whatever the bytes, records or a TraceError, and no line lost.

    pip install atheris
    PYTHONPATH=tests python tests/fuzz/readers.py kfd-smi -max_total_time=180
    PYTHONPATH=tests python tests/fuzz/readers.py kfd-smi -max_total_time=1800

The first command is the 3-minute run of a change, the second the 30-minute run of a release.
Arguments behind the format are libFuzzer's. Seeds are the samples below ``tests/data/traces``
of that format; ``any`` lets the reader be recognised. Readers with a compiled fast path are
checked against their careful Python code as well (``tests/reading.py``).

Where atheris is not installed, or with ``--random``, bytes are changed without a look at
coverage: the arguments ``-max_total_time``, ``-runs`` and ``-seed`` mean the same, and what
fails is written to ``crash-DIGEST`` as libFuzzer does it.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None and "--random" not in sys.argv:
    with atheris.instrument_imports(include=["svmcore.traces"]):
        import svmcore.traces
else:
    import svmcore.traces

from reading import check

DATA = Path(__file__).parents[1] / "data" / "traces"
#: Bytes that are interesting somewhere in some format.
WORDS = (
    *(b"\0", b"\n", b"\r\n", b",", b" ", b"-", b"->", b"0x", b";", b"#", b"@", b"(", b")", b":"),
    *(b"9" * 19, b"9" * 20, b"f" * 16, b"f" * 17, b"18446744073709551615", b"4294967296"),
    *(b"\xff\xfe", b"\xef\xbb\xbf", b"ffffffff", b"10000000000000", b"\x1f\x8b", b"\xfd7zXZ\0"),
)


def samples(form: str | None) -> list[bytes]:
    """Contents of the samples of a format, all for None."""
    found = []
    for path in sorted(DATA.iterdir()):
        try:
            if form is None or svmcore.traces.open_trace(path).format == form:
                found.append(path.read_bytes())
        except svmcore.traces.base.TraceError:
            continue
    return found or [b"\n"]


def target(form: str | None) -> Callable[[bytes], None]:
    """What is called with each input; the file lies in memory where the system has such a place."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    path = Path(tempfile.mkdtemp(dir=place)) / "t"

    def one(data: bytes) -> None:
        path.write_bytes(data)
        check(path, form)

    return one


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A sample with one to eight changes."""
    content = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at = rng.randrange(len(content) + 1)
        match rng.randrange(5):
            case 0:
                content[at : at + rng.randrange(12)] = b""
            case 1:
                content[at:at] = rng.choice(WORDS)
            case 2:
                content[at : at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
            case 3:
                start = rng.randrange(len(content) + 1)
                content[at:at] = content[start : start + rng.randrange(200)]
            case _:
                content = content[: max(1, at)]
    return bytes(content)


def run_random(form: str | None, settings: dict[str, int]) -> int:
    """Without coverage: changed samples until the time or the runs are over."""
    rng = random.Random(settings.get("seed", 1))
    one, seeds = target(form), samples(form)
    ends = time.monotonic() + settings.get("max_total_time", 1 << 40)
    number = 0
    while number < settings.get("runs", 1 << 60) and time.monotonic() < ends:
        data = mutated(rng.choice(seeds), rng)
        number += 1
        try:
            one(data)
        except BaseException:
            crash = Path(f"crash-{hashlib.sha1(data).hexdigest()}")
            crash.write_bytes(data)
            print(f"run {number}: {crash}", file=sys.stderr)
            raise
    print(f"{form or 'any'}: {number} runs, no failure")
    return 0


def main(argv: list[str]) -> int:
    """Command line."""
    names = [*svmcore.traces.formats(), "any"]
    if not argv or argv[0] not in names:
        print(f"usage: readers.py {'|'.join(names)} [-max_total_time=SECONDS]", file=sys.stderr)
        return 2
    form = None if argv[0] == "any" else argv[0]
    rest = [item for item in argv[1:] if item != "--random"]
    if atheris is None or len(rest) < len(argv) - 1:
        pairs = (item.lstrip("-").partition("=") for item in rest if item.startswith("-"))
        return run_random(form, {name: int(value) for name, _, value in pairs})
    seeds = Path(tempfile.mkdtemp())
    for number, content in enumerate(samples(form)):
        (seeds / f"seed{number}").write_bytes(content)
    atheris.Setup([sys.argv[0], *rest, str(seeds)], target(form))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
