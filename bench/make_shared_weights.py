"""Makes a trace of shared weights: devices read one buffer in turn, one writes it now and then.

``python bench/make_shared_weights.py weights.csv`` writes a workload CSV of
model serving: in each step every device reads all layers of the weights and
writes its own activations; each *--update-every* steps device 0 writes a part of
one layer. Whole numbers only: the same arguments make the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from make_demo import Random

BASE = 0x7D00_0000_0000
BLOCK = 2 << 20
BYTES_PER_NS = 2000
LAUNCH_NS = 4_000


def rows(
    devices: int, steps: int, layers: int, layer_bytes: int, update_every: int, seed: int
) -> list[str]:
    """Lines of the file, the header first."""
    random = Random(seed)
    weights = BASE
    own = weights + layers * layer_bytes + BLOCK
    lines = ["seq,t_ns,dur_ns,kind,op,addr,bytes,dev"]
    seq = now = 0

    def op(kind: str, name: str, addr: int, size: int, dev: int) -> None:
        nonlocal seq, now
        dur = LAUNCH_NS + size // BYTES_PER_NS
        lines.append(f"{seq},{now},{dur},{kind},{name},{addr:#x},{size},{dev}")
        seq += 1
        now += dur

    for step in range(steps):
        for dev in range(devices):
            for layer in range(layers):
                op("R", "matmul", weights + layer * layer_bytes, layer_bytes, dev)
            op("W", "activations", own + dev * 2 * BLOCK, BLOCK, dev)
        if update_every and (step + 1) % update_every == 0:
            layer = random.below(layers)
            part = layer_bytes // 8
            op("W", "update", weights + layer * layer_bytes + random.below(8) * part, part, 0)
    lines.append(f"{seq},{now},0,S,weights,{weights:#x},{layers * layer_bytes},0")
    lines += [
        f"{seq},{now},0,S,activations.{dev},{own + dev * 2 * BLOCK:#x},{BLOCK},{dev}"
        for dev in range(devices)
    ]
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--layer-mib", type=int, default=4)
    parser.add_argument("--update-every", type=int, default=8, help="steps; 0: never")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    counts = (options.devices, options.steps, options.layers, options.layer_mib)
    if min(counts) < 1 or options.devices > 64 or options.update_every < 0:
        parser.error("expected 1 to 64 devices, at least one step, layer and MiB")
    text = rows(
        options.devices,
        options.steps,
        options.layers,
        options.layer_mib << 20,
        options.update_every,
        options.seed,
    )
    options.path.write_text("\n".join(text) + "\n", "ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
