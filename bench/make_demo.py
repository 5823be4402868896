"""Make the demo trace: three training steps of a small transformer, from a seed.

A made-up model in the shape of a real one: dense weights, gradients and Adam
moments that each step reads and writes whole, activations that are written
forwards and read backwards, and a large embedding table of which each step
touches scattered rows. Names are generic, no recording went into it.

``python bench/make_demo.py`` writes ``src/svmcore/data/demo.csv.gz``;
``--check`` makes it anew and compares the content, not the compressed bytes,
which differ between versions of zlib. Whole numbers only, so that every host
makes the same file.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "svmcore" / "data" / "demo.csv.gz"
SEED = 20_240_731
STEPS = 3
LAYERS = 8
WIDTH = 512
HIDDEN = 4 * WIDTH
TOKENS = 2048  # a step
CLASSES = 8192
ROWS_LOG2 = 18  # rows of the embedding table
F32 = 4
ROW_BYTES = WIDTH * F32
BLOCK = 2 << 20
BYTES_PER_NS = 2000  # device memory
FLOPS_PER_NS = 60_000
LAUNCH_NS = 4_000


class Random:
    """splitmix64: the same numbers everywhere."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def bits(self, count: int) -> int:
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return (z ^ z >> 31) >> (64 - count) if count else 0

    def below(self, limit: int) -> int:
        return self.bits(32) * limit >> 32


class Segment:
    """A piece of device memory from which tensors are cut, 512 bytes aligned."""

    def __init__(self, name: str, start: int, size: int) -> None:
        self.name, self.start, self.size = name, start, size
        self.used = 0

    def cut(self, size: int) -> tuple[int, int]:
        at = self.start + self.used
        self.used += (size + 511) // 512 * 512
        assert self.used <= self.size, f"{self.name}: {self.used} of {self.size} bytes"
        return at, size


class Recorder:
    """Rows of the trace: operators in order, each with the ranges it reads and writes."""

    def __init__(self) -> None:
        self.rows: list[str] = ["seq,t_ns,dur_ns,kind,op,addr,bytes"]
        self.segments: list[Segment] = []
        self.seq = self.now = 0
        self.next = 0x7E40_0000_0000

    def segment(self, name: str, size: int) -> Segment:
        found = Segment(name, self.next, size)
        self.next += (size + BLOCK - 1) // BLOCK * BLOCK + 3 * BLOCK
        self.segments.append(found)
        return found

    def op(
        self,
        name: str,
        reads: list[tuple[int, int]],
        writes: list[tuple[int, int]],
        flops: int = 0,
    ) -> None:
        moved = sum(size for _, size in (*reads, *writes))
        dur = LAUNCH_NS + max(moved // BYTES_PER_NS, flops // FLOPS_PER_NS)
        for kind, ranges in (("R", reads), ("W", writes)):
            self.rows += [
                f"{self.seq},{self.now},{dur},{kind},{name},{addr:#x},{size}"
                for addr, size in ranges
            ]
        self.seq += 1
        self.now += dur

    def text(self) -> str:
        last = [f"{self.seq},{self.now},0,S,{s.name},{s.start:#x},{s.size}" for s in self.segments]
        return "\n".join([*self.rows, *last]) + "\n"


SHAPES = {  # weights of one layer, in numbers
    "norm1": 2 * WIDTH,
    "qkv": 3 * WIDTH * WIDTH + 3 * WIDTH,
    "out": WIDTH * WIDTH + WIDTH,
    "norm2": 2 * WIDTH,
    "up": WIDTH * HIDDEN + HIDDEN,
    "down": HIDDEN * WIDTH + WIDTH,
}
ACTIVATIONS = {"x": 1, "n1": 1, "qkv": 3, "att": 1, "y": 1, "n2": 1, "up": 4, "act": 4}
MATMUL = {"qkv": 3 * WIDTH, "out": WIDTH, "up": HIDDEN, "down": HIDDEN}

Tensors = dict[str, tuple[int, int]]


class Model:
    """Tensors of the model and the operators of a step on them."""

    def __init__(self) -> None:
        self.log = Recorder()
        self.random = Random(SEED)
        state = LAYERS * sum(SHAPES.values()) * F32 + LAYERS * len(SHAPES) * 512
        wide = CLASSES * WIDTH * F32
        self.batch = self.log.segment("batch", BLOCK)
        self.table = self.log.segment("embedding.table", ROW_BYTES << ROWS_LOG2)
        kinds = {
            name: self.log.segment(name, state + wide + 12 * 4096)
            for name in ("parameters", "gradients", "adam.m", "adam.v")
        }
        self.layers: list[dict[str, Tensors]] = [
            {
                kind: {name: place.cut(count * F32) for name, count in SHAPES.items()}
                for kind, place in kinds.items()
            }
            for _ in range(LAYERS)
        ]
        self.head = {kind: place.cut(wide) for kind, place in kinds.items()}
        width = TOKENS * WIDTH * F32
        self.acts: list[Tensors] = []
        for number in range(LAYERS):
            place = self.log.segment(
                f"activations.{number}", sum(ACTIVATIONS.values()) * width + 5 * 4096
            )
            self.acts.append({name: place.cut(n * width) for name, n in ACTIVATIONS.items()})
        work = self.log.segment("workspace", 9 * width)
        self.grad, self.other, self.wide = work.cut(width), work.cut(width), work.cut(4 * width)
        self.final = work.cut(width)
        self.logits = self.log.segment("logits", TOKENS * CLASSES * F32).cut(TOKENS * CLASSES * F32)
        self.tokens, self.targets = self.batch.cut(TOKENS * 8), self.batch.cut(TOKENS * 8)
        self.log.segment("staging", 24 * BLOCK)  # reserved by the allocator, never used

    def rows(self) -> list[tuple[int, int]]:
        """Rows of the table that a step needs: few are common, many are rare."""
        found = set()
        for _ in range(TOKENS):
            level = self.random.below(ROWS_LOG2)
            word = (1 << level) + self.random.bits(level)
            # An odd factor scatters the common words over the whole table.
            found.add(word * 0x2545F491 % (1 << ROWS_LOG2))
        return [(self.table.start + row * ROW_BYTES, ROW_BYTES) for row in sorted(found)]

    def step(self) -> None:
        log, rows = self.log, self.rows()
        log.op("embedding", [self.tokens, *rows], [self.acts[0]["x"]])
        for number in range(LAYERS):
            self.forward(number)
        last = 2 * TOKENS * WIDTH * CLASSES
        log.op("matmul", [self.final, self.head["parameters"]], [self.logits], last)
        log.op("cross_entropy", [self.logits, self.targets], [self.logits])
        log.op("matmul_backward", [self.logits, self.head["parameters"]], [self.grad], last)
        log.op("matmul_backward", [self.logits, self.final], [self.head["gradients"]], last)
        for number in reversed(range(LAYERS)):
            self.backward(number)
        log.op("embedding_update", [self.tokens, self.grad, *rows], rows)
        for layer in self.layers:
            for name in SHAPES:
                self.adam({kind: tensors[name] for kind, tensors in layer.items()})
        self.adam(self.head)

    def forward(self, number: int) -> None:
        log, act, w = self.log, self.acts[number], self.layers[number]["parameters"]
        after = self.acts[number + 1]["x"] if number + 1 < LAYERS else self.final
        log.op("layer_norm", [act["x"], w["norm1"]], [act["n1"]])
        self.matmul("matmul", "qkv", [act["n1"], w["qkv"]], [act["qkv"]])
        log.op("attention", [act["qkv"]], [act["att"]], 4 * TOKENS * TOKENS * WIDTH)
        self.matmul("matmul", "out", [act["att"], w["out"]], [self.other])
        log.op("add", [self.other, act["x"]], [act["y"]])
        log.op("layer_norm", [act["y"], w["norm2"]], [act["n2"]])
        self.matmul("matmul", "up", [act["n2"], w["up"]], [act["up"]])
        log.op("gelu", [act["up"]], [act["act"]])
        self.matmul("matmul", "down", [act["act"], w["down"]], [self.other])
        log.op("add", [self.other, act["y"]], [after])

    def backward(self, number: int) -> None:
        log, act, layer = self.log, self.acts[number], self.layers[number]
        w, g = layer["parameters"], layer["gradients"]
        three = (self.wide[0], act["qkv"][1])
        for name, source, grad, result in (
            ("down", "act", self.grad, self.wide),
            ("up", "n2", self.wide, self.other),
        ):
            self.matmul("matmul_backward", name, [grad, w[name]], [result])
            self.matmul("matmul_backward", name, [grad, act[source]], [g[name]])
            if name == "down":
                log.op("gelu_backward", [self.wide, act["up"]], [self.wide])
        log.op("layer_norm_backward", [self.other, act["y"], w["norm2"]], [self.grad, g["norm2"]])
        self.matmul("matmul_backward", "out", [self.grad, w["out"]], [self.other])
        self.matmul("matmul_backward", "out", [self.grad, act["att"]], [g["out"]])
        log.op(
            "attention_backward",
            [self.other, act["qkv"], act["att"]],
            [three],
            8 * TOKENS * TOKENS * WIDTH,
        )
        self.matmul("matmul_backward", "qkv", [three, w["qkv"]], [self.other])
        self.matmul("matmul_backward", "qkv", [three, act["n1"]], [g["qkv"]])
        log.op("layer_norm_backward", [self.other, act["x"], w["norm1"]], [self.grad, g["norm1"]])

    def matmul(
        self, op: str, name: str, reads: list[tuple[int, int]], writes: list[tuple[int, int]]
    ) -> None:
        self.log.op(op, reads, writes, 2 * TOKENS * WIDTH * MATMUL[name])

    def adam(self, tensor: Tensors) -> None:
        order = ("parameters", "gradients", "adam.m", "adam.v")
        self.log.op(
            "adam", [tensor[k] for k in order], [tensor[k] for k in order if k != "gradients"]
        )


def demo_text() -> str:
    model = Model()
    for _ in range(STEPS):
        model.step()
    return model.log.text()


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the demo trace of the package.")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    options = parser.parse_args()
    content = demo_text().encode()
    if options.check:
        there = gzip.decompress(TARGET.read_bytes()) if TARGET.is_file() else b""
        if there != content:
            print(f"{TARGET.name}: differs from what the generator makes", file=sys.stderr)
            return 1
        print(f"{TARGET.name}: as the generator makes it, {len(content)} bytes of content")
        return 0
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as file:
        file.write(content)
    TARGET.write_bytes(packed.getvalue())
    rows = content.count(b"\n") - 1
    print(f"{TARGET.name}: {rows} rows, {len(packed.getvalue())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
