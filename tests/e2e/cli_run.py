"""Runs the command line as a user does: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import svmcore

DATA = Path(__file__).parents[1] / "data" / "traces"
LOG = DATA / "uvm_three_buffers.kmsg"


def environment() -> dict[str, str]:
    """The tested copy of the package first, no colours, no settings of the host."""
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    paths = [str(Path(svmcore.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "NO_COLOR": "1"}


def svm(*args, status=0, cwd=None, module="svmcore"):
    """Run ``svmcore ARGS``, check its exit status, give ``(stdout, stderr)``."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, args)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment() | {"PYTHONIOENCODING": "utf-8"},
        timeout=300,
        check=False,
    )
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.stderr


def python(code, *args):
    """Run Python code against the tested copy; the finished process."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
    )


def three_buffers_log() -> str:
    """A log of the instrumented NVIDIA driver: c[i] = a[i] + b[i] on the first 32 pages.

    Three allocations of 2 MiB, 96 faults in three batches. As in a real log, each batch
    is sorted by address, reads come before the writes, and all ranges are destroyed at
    the end, one of another process before the first fault.
    """
    lines: list[str] = []
    clock, ticks = 5_000_000, 900_000_000_000

    def say(message):
        nonlocal clock
        clock += 5 + len(lines) % 3
        lines.append(f"4,{70_000 + len(lines)},{clock},-;{message}")

    destroy = "uvm range destroy va_range->node.start, va_range->size: 0x{:x}, {}"
    a, b, c = (0x7E30_0000_0000 + number * (2 << 20) for number in range(3))
    say(destroy.format(0x2_0880_0000, 2 << 20))
    reads = [(base + page * 4096, 1) for base in (a, b) for page in range(32)]
    writes = [(c + page * 4096, 2) for page in range(32)]
    for batch in (reads[:28] + reads[32:60], reads[28:32] + reads[60:], writes):
        say("s,")
        for addr, access in sorted(batch):
            ticks += 32
            say(f"f,{addr:x},{ticks},0,{access},2,1,0,0,0,127,1,0,1,63")
        say("b,")
    for base in (a, b, c):
        say(destroy.format(base, 2 << 20))
    return "\n".join(lines) + "\n"
