"""The compiled UVM process and the executable specification, in lockstep.

Every operation runs on both; after each one the whole state of either is
compared, and both check their invariants. Run as a script for the long drive:
``PYTHONPATH=tests python tests/model/test_uvm_model.py --steps 200000 --seed 1``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from choices import Choice, DrawnChoice, RandomChoice
from svmcore._evict import ORDERS
from svmcore._process import Node
from svmcore.machine import Costs, Gpu
from svmcore.policies._uvm import UvmProcess
from svmcore.policies._uvm_state import pack, unpack
from svmcore.policies.uvm import Uvm
from svmcore.reference_uvm import Memory, UvmReference

#: Pages of the area, which lies across 2 MiB borders.
AREA = 2500
BASES = (512 * 4096 - 300, 0, (1 << 52) - AREA)
#: (start in the area, pages, protection) of the first mappings; holes between them.
MAPPINGS = (
    (0, 300, "rw"),
    (300, 1024, "rw"),
    (1330, 40, "rw"),
    (1371, 9, "rw"),
    (1380, 300, "r"),
    (1700, 800, "rw"),
)
WORDS = ("preferred_location", "preferred_location", "accessed_by", "access_in_place")
TIMES = (0, 0, 0, 1_000, 20_000, 100_000, 400_000, 600_000, 150_000_000, 1_100_000_000)


# ---- configurations --------------------------------------------------------------------


def gpus_of(c: Choice) -> tuple[Gpu, ...]:
    """1 to 4 GPUs: PCIe, NVLink, coherent, partitions, integrated; little memory each."""
    shapes: Sequence[Sequence[dict[str, Any]]] = (
        ({},),
        ({}, {}),
        ({"hive": 7}, {"hive": 7}),
        ({"coherent": True}, {}),
        ({"coherent": True, "hive": 7}, {"coherent": True, "hive": 7}),
        ({"adev": 0}, {"adev": 0}, {}),
        ({"apu": True}, {}),
        ({"svm": False}, {}),
        ({"hive": 7}, {"hive": 7}, {}, {}),
    )
    vram = c.pick((512, 1024, 1024, 1536, 2100, 100_000))
    return tuple(
        Gpu(id=0x1000 + 7 * i, vram_pages=c.pick((vram, vram, 600)), **extra)
        for i, extra in enumerate(c.pick(shapes))
    )


def rules_of(c: Choice) -> Uvm:
    return Uvm(
        driver=c.pick(("595", "595", "580.65.06", "515.43.04")),
        adaptive_lapse=c.pick(("default", "default", "off", "shipped", "intended")),
        peer_access=c.pick((False, True)),
        outstanding=c.pick((256, 256, 1, 7, 600)),
        batch_size=c.pick((256, 256, 256, 1, 13, 400)),
        replay_policy=c.pick(("batch_flush", "batch_flush", "block", "batch", "once")),
        coalesce=c.pick((True, True, False)),
        max_batches=c.pick((20, 1, 3)),
        max_throttled=c.pick((5, 1)),
        prefetch=c.pick((True, True, True, False)),
        prefetch_threshold=c.pick((51, 51, 51, 0, 1, 25, 75, 99, 100)),
        prefetch_min_faults=c.pick((1, 1, 1, 2, 20)),
        thrashing=c.pick((True, True, True, False)),
        thrashing_threshold=c.pick((3, 1, 1, 7)),
        pin_threshold=c.pick((10, 1, 2)),
        lapse_us=c.pick((500, 500, 100_000, 20)),
        nap=c.pick((1, 1, 3)),
        epoch=c.pick((2000, 2000, 1)),
        pin=c.pick((300, 2, 0)),
        max_resets=c.pick((4, 0, 1)),
        lapse_votes=c.pick((32, 2, 500)),
        remote_atomics=c.pick((False, True)),
        access_counters=c.pick((None, False, True, True, True)),
        access_counter_threshold=c.pick((256, 1, 1, 20)),
        access_counter_batch=c.pick((256, 1, 2)),
        map_remote_on_eviction=c.pick((True, True, False)),
        prefetch_fault_lapse_ms=c.pick((1000, 1, 0)),
        pma_batch_order=c.pick((6, 0, 1)),
        eviction=c.pick(("driver", "driver", *ORDERS)),
        seed=c.number(0, 3),
        quota_pages=c.pick((None, None, 512, 1100)),
    )


# ---- the pair --------------------------------------------------------------------------


class Difference(AssertionError):
    """What the two disagree in, and the way there."""


class Pair:
    """Two processes of one node, twice; :meth:`run` does the same to both and compares."""

    def __init__(self, c: Choice) -> None:
        self.gpus, self.rules = gpus_of(c), rules_of(c)
        self.base = c.pick(BASES)
        self.page_size = c.pick((4096, 65536))
        self.costs = c.pick(
            (
                Costs(),
                Costs(),
                Costs(unmap_ns=0, migrate_latency_ns=0),
                Costs(fault_batch_ns=3_000, fault_in_batch_ns=70, evict_ns=900, map_ns=11),
                Costs(
                    to_device_curve=((4096, 11_700.0), (65536, 12_600.5), (1 << 20, 30_600.0)),
                    to_host_curve=((5000, 10_000.25), (1 << 21, 48_000.0)),
                    peer_curve=((1, 10_000.0), (100_000, 10_000.0), (200_001, 77_777.7)),
                    peer_bytes_per_s=3.7e11,
                ),
            )
        )
        memory, node = Memory(), Node()
        processes = c.pick((1, 1, 2))
        self.references = [
            UvmReference(self.gpus, self.rules, memory, page_size=self.page_size)
            for _ in range(processes)
        ]
        self.compiled = [self.process(node) for _ in range(processes)]
        for process in (*self.references, *self.compiled):
            process.set_costs(self.costs)
        self.last = self.base
        self.log: list[str] = [
            f"{self.gpus} {self.rules} base {self.base} pages of {self.page_size}"
        ]
        for which in range(processes):
            self.run(which, "step", 1_000_000)
            for start, pages, prot in MAPPINGS:
                first = self.base + start
                self.run(which, "mmap", first, first + pages - 1, prot)
            if c.number(0, 2) == 0:  # remote touches, which access counters see
                self.remote(which, c.number(1, len(self.gpus)))

    def process(self, node: Node | None = None) -> UvmProcess:
        return UvmProcess(self.gpus, self.rules, node, page_size=self.page_size)

    def run(self, which: int, name: str, *args: Any) -> Any:
        self.log.append(f"{which}.{name}{args}")
        reference, compiled = self.references[which], self.compiled[which]
        answers, outcomes = [], []
        for process in (reference, compiled):
            process.begin(process.now)
            answers.append(getattr(process, name)(*args))
            process.settle()
            outcomes.append(process.finish())
        wrong = []
        if answers[0] != answers[1]:
            wrong.append(("answer", *answers))
        if outcomes[0] != outcomes[1]:
            wrong.append(("outcome", *outcomes))
        for one, other in zip(self.references, self.compiled, strict=True):
            a, b = one.snapshot(), other.snapshot()
            wrong += [(f"state {key}", a[key], b[key]) for key in a if a[key] != b[key]]
            for process in (one, other):
                try:
                    process.check()
                except AssertionError as error:
                    wrong.append((f"check of {type(process).__name__}", str(error), ""))
        if wrong:
            raise Difference(self.story(wrong))
        return answers[0]

    def story(self, wrong: list[tuple[str, Any, Any]]) -> str:
        lines = list(self.log)
        for what, a, b in wrong:
            if isinstance(a, dict) and isinstance(b, dict):
                keys = [k for k in {**a, **b} if a.get(k) != b.get(k)]
                a, b = {k: a.get(k) for k in keys}, {k: b.get(k) for k in keys}
                for key in keys:
                    if isinstance(a[key], dict) and isinstance(b[key], dict):
                        inner = [k for k in {**a[key], **b[key]} if a[key].get(k) != b[key].get(k)]
                        a[key] = {k: a[key].get(k) for k in inner}
                        b[key] = {k: b[key].get(k) for k in inner}
            lines.append(f"{what}:\n   reference {a}\n   compiled  {b}")
        return "\n".join(lines)

    def remote(self, which: int, gpu: int) -> None:
        """A GPU is mapped to all pages wherever they lie, from the CPU's touch on."""
        for start, pages, _ in MAPPINGS:
            span = self.base + start, self.base + start + pages - 1
            self.run(which, "access", 0, *span, 0)
            self.run(which, "advise", "accessed_by", True, *span, gpu)

    # -- random operations

    def span(self, c: Choice) -> tuple[int, int]:
        shape = c.number(0, 4)
        start, pages, _ = c.pick(MAPPINGS)
        if shape == 0:
            return self.base + start, self.base + start + pages - 1
        first = c.number(0, AREA - 1) if shape == 1 else start + c.number(0, pages - 1)
        length = c.pick((1, 1, 4, 15, 16, 17, 64, 100, 300, 512, 1000))
        if c.number(0, 2) == 0:
            first = max(((self.base + first) & ~c.pick((15, 63, 511))) - self.base, 0)
        last = min(first + length, AREA) - 1
        if shape > 1:
            last = min(last, max(start + pages - 1, first))
        return self.base + first, self.base + last

    def page(self, c: Choice) -> int:
        if c.number(0, 1):  # near what was touched last
            page = self.last + c.number(-2, 2)
            if self.base <= page < self.base + AREA:
                return page
        start, pages, _ = c.pick(MAPPINGS)
        self.last = self.base + start + c.number(0, pages - 1)
        return self.last

    def faults(self, c: Choice, n: int) -> list[tuple[int, ...]]:
        """Recorded faults: some by the prefetcher, some fatal by their type or their address."""
        odd = c.number(0, 3) == 0
        found: list[tuple[int, ...]] = []
        for _ in range(n):
            page, access = self.page(c), c.pick((0, 0, 1, 2, 3, 4))
            fault = c.number(1, len(self.gpus)), page, access
            if odd and c.number(0, 3) == 0:
                fault = fault[0], self.base + c.pick((1324, 1325, 1370, 1690)), c.pick((0, 1, 3, 3))
            if odd and c.number(0, 5) == 0:
                found.append((*fault, c.pick((4, 5, 15))))
            else:
                found.append(fault)
        return found

    def operate(self, c: Choice) -> None:
        which = c.number(0, len(self.compiled) - 1)
        ngpus = len(self.gpus)
        shape = c.number(0, 19)
        now = self.compiled[which].now
        if shape < 6:  # one page, perhaps the one of before by another processor
            page = self.last if c.number(0, 2) else self.page(c)
            access = c.pick((0, 0, 1, 2, 3, 4))
            self.run(which, "access", c.number(0, ngpus), page, page, access)
        elif shape < 9:
            self.run(which, "access", c.number(0, ngpus), *self.span(c), c.pick((0, 0, 1, 2)))
        elif shape < 11:
            self.run(which, "deliver", self.faults(c, c.pick((1, 1, 2, 5, 12, 40))))
        elif shape < 13:
            self.run(which, "step", now + c.pick(TIMES))
        elif shape == 13:
            on = bool(c.number(0, 2))
            self.run(which, "advise", c.pick(WORDS), on, *self.span(c), c.number(0, ngpus))
        elif shape == 14:
            word = c.pick(("read_mostly", "read_mostly", "discard", "granularity"))
            self.run(which, "advise", word, bool(c.number(0, 2)), *self.span(c), 0)
        elif shape < 17:
            self.run(which, "prefetch", *self.span(c), c.number(0, ngpus))
        elif shape == 17:
            self.run(which, "evict", self.page(c))
            page = self.page(c)
            self.run(which, "explain", page, c.number(0, ngpus), c.pick((0, 1, 2)))
            self.run(which, "copies", page)
        elif shape == 18:
            name = c.pick(("munmap", "mmap", "invalidate", "mprotect"))
            first, last = self.span(c)
            prot = (c.pick(("rw", "rw", "r", "-")),) if name in ("mmap", "mprotect") else ()
            self.run(which, name, first, last, *prot)
        elif len(self.compiled) == 1:  # the state goes through its tables
            process = self.process()
            process.set_costs(self.costs)
            unpack(process, pack(self.compiled[0]))
            assert process.snapshot() == self.compiled[0].snapshot()
            self.compiled[0] = process


def drive(seed: int, steps: int) -> int:
    """One random history; the number of steps run."""
    c = RandomChoice(seed)
    pair = Pair(c)
    for _ in range(steps):
        pair.operate(c)
    return len(pair.log)


class Machine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.pair = Pair(DrawnChoice(data))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.pair.operate(DrawnChoice(data))


def test_compiled_is_reference() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_histories(seed: int) -> None:
    drive(seed, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    done, seed = 0, options.seed
    while done < options.steps:
        try:
            done += drive(seed, 150)
        except Difference as error:
            print(f"seed {seed}:\n{error}")
            sys.exit(1)
        seed += 1
        if sys.stderr.isatty():
            print(f"\r{done} steps, seed {seed}", end="", file=sys.stderr)
    print(f"{done} steps, 0 differences")


if __name__ == "__main__":
    main()
