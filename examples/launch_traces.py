"""Writes the launch traces of docs/explain/launch-stacks.md into a folder.

``python examples/launch_traces.py FOLDER``; then ``svmcore stacks FOLDER/loop129.csv``.
"""

import sys
from pathlib import Path

HEAD = "op,t,thread,stream,teams,threads,kernel_ns,bytes,id,addr"
MIB = 1 << 20


def launch(teams, kernel_us=200, thread=0, stream=0, t_us=0):
    return f"launch,{t_us * 1000},{thread},{stream},{teams},8,{kernel_us * 1000},,,"


def alloc(mib, name, t_us=0):
    return f"alloc,{t_us * 1000},0,,,,,{mib * MIB},{name},"


def free(name, t_us=0):
    return f"free,{t_us * 1000},0,,,,,,{name},"


def touch(mib, addr=0x7F00_0000_0000):
    return f"touch,0,0,,,,,{mib * MIB},,{addr}"


def loop(teams):
    """Map 1 MiB, launch, unmap, 20 times: a program with one buffer."""
    return [row for turn in range(20) for row in (alloc(1, turn), launch(teams), free(turn))]


def benchmark(streams):
    """8 host threads with 32 launches each: the shape of the review's micro-benchmark."""
    return [launch(50, 1000, thread, thread * streams) for _ in range(32) for thread in range(8)]


TRACES = {
    "growth": [launch(teams) for teams in (4, 8, 16, 32, 16, 8, 4)],
    "benchmark": benchmark(streams=0),
    "benchmark-streams": benchmark(streams=1),
    "loop128": loop(128),
    "loop129": loop(129),
    # A block of 300 MiB, then the program asks for 300 MiB itself.
    "crowded": [launch(300), alloc(300, "a", 2000), launch(8, t_us=4000), free("a", 6000)],
    # A program of shared virtual memory that touches 200 MiB between its launches.
    "beside": [row for _ in range(4) for row in (touch(200), launch(100))],
}


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in TRACES.items():
        path = folder / f"{name}.csv"
        path.write_text("\n".join([HEAD, *rows]) + "\n")
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
