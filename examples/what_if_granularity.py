"""What if the granularity were another? One workload, every setting, one table.

The granularity is log2 of the 4 KiB pages that one fault restores. Small ones
move less that nobody needs, large ones fault less often: run this and see where
a sparse and a dense kernel part.
"""

from __future__ import annotations

import random

import svmcore

BASE = 0x7F00_0000_0000
SIZE = 64 << 20


def sparse(space: svmcore.Space) -> None:
    """4,000 touches of random 64-byte lines."""
    rng = random.Random(1)
    for _ in range(4000):
        space.access(BASE + rng.randrange(0, SIZE, 64), 64, by="gpu0")


def dense(space: svmcore.Space) -> None:
    """One pass in order, 256 KiB a touch."""
    for offset in range(0, SIZE, 256 << 10):
        space.access(BASE + offset, 256 << 10, by="gpu0")


def main() -> None:
    print("workload  granularity  faults  MiB moved  modelled ms")
    for name, kernel in (("sparse", sparse), ("dense", dense)):
        for granularity in (0, 4, 9, 12):
            space = svmcore.Space("gpu-80g", policy=f"kfd(granularity={granularity})")
            space.map(BASE, SIZE)
            kernel(space)
            counters = space.counters()
            print(
                f"{name:8}  {granularity:11}  {counters['faults']:6}  "
                f"{counters['migrated_bytes'] / (1 << 20):9.2f}  {space.now_ns / 1e6:11.2f}"
            )


if __name__ == "__main__":
    main()
