"""The compiled KFD process and the executable specification, in lockstep.

Every operation runs on both; after each one everything that can be seen of
either is compared, and both check their invariants. Run as a script for the
long drive: ``PYTHONPATH=tests python tests/model/test_kfd_model.py --steps 200000 --seed 1``.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
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
from svmcore._replay import OUTCOME, replay_chunk
from svmcore.machine import Costs, Gpu
from svmcore.policies._kfd import KfdProcess
from svmcore.policies.outcome import Outcome
from svmcore.records import RECORD, Kind
from svmcore.reference import KfdReference

UNDEFINED = 0xFFFFFFFF
SMALL = 1300
#: Where the small area begins: around 512-page borders, at page 0, at the top of 64-bit bytes.
LOW, ZERO, HIGH = 512 * 2048 - 400, 0, (1 << 52) - SMALL
#: A mapping that is never populated as a whole; its spans pass 2**32 pages.
BIG_FIRST, BIG_PAGES = 1 << 40, 1 << 34
FLAGS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x48, 0xFFFFFFFF, 0)
PROTS = ("rw", "rw", "rw", "r", "w", "-")
KINDS = ("anon", "anon", "anon", "anon", "anon", "file", "heap", "stack", "io", "pfnmap")
FAILURES = ("vram_fail", "limit_fail", "copy_fail", "hmm_retry")
STATES = ("no_process", "no_node", "mm_gone", "drain_pagefaults")
TIMES = (0, 0, 1_000, 400_000, 999_999, 1_000_000, 1_999_999, 2_000_000, 3_000_000)
#: Operations after which pending work is left alone: they only set state.
STILL = frozenset(
    ("mmap", "inject", "set_xnack", "add_buffer", "add_userptr", "pin", "unpin", "set_ring")
)
#: (start in the area, pages, protection, kind) of the first mappings; holes between them.
AREA = (
    (0, 300, "rw", "anon"),
    (310, 190, "rw", "anon"),
    (500, 200, "rw", "anon"),
    (700, 50, "rw", "file"),
    (750, 130, "rw", "heap"),
    (890, 20, "-", "anon"),
    (910, 10, "rw", "io"),
    (920, 10, "rw", "pfnmap"),
    (930, 70, "r", "anon"),
    (1000, 100, "rw", "stack"),
    (1100, 200, "rw", "anon"),
)


# ---- configurations --------------------------------------------------------------------


def nodes(c: Choice) -> tuple[Gpu, ...]:
    """1 to 8 GPUs: own devices, hives, partitions, APU, without SVM, coherent."""
    shapes: Sequence[Sequence[dict[str, Any]]] = (
        ({},),
        ({}, {}),
        ({"hive": 7}, {"hive": 7}),
        ({"adev": 0}, {"adev": 0}, {}),
        ({"adev": 0, "hive": 7}, {"adev": 0}, {"hive": 7}),
        ({"apu": True}, {}),
        ({"svm": False}, {}, {"hive": 7}),
        ({"coherent": True}, {}),
        ({"hive": 7}, {"hive": 7}, {"hive": 8}, {"hive": 8}),
        ({"hive": 7}, {"hive": 7}, {}, {"coherent": True, "hive": 7}, {"apu": True}),
        (
            {"hive": 7},
            {"hive": 7, "adev": 1},
            {"hive": 8, "adev": 1},
            {"svm": False},
            {"adev": 4},
            {"adev": 4},
            {},
            {"hive": 7},
        ),
    )
    shape = c.pick(shapes)
    vram = c.pick((40, 200, 700, 700, 3000, 3000))
    return tuple(
        Gpu(id=0x1000 + 7 * i, vram_pages=c.pick((vram, vram, 64)), **extra)
        for i, extra in enumerate(shape)
    )


@dataclasses.dataclass
class Config:
    gpus: tuple[Gpu, ...]
    xnack: bool
    kernel: str
    max_pages: int | None
    granularity: int
    evict_on_full: bool
    base: int
    big: bool
    node_entries: int


def config(c: Choice) -> Config:
    place = c.pick((LOW, LOW, LOW, LOW, ZERO, HIGH, "big"))
    big = place == "big"
    return Config(
        gpus=nodes(c),
        xnack=big or bool(c.pick((True, True, True, False))),
        kernel=c.pick(("7.3", "7.3", "6.12", "6.1")),
        max_pages=BIG_PAGES if big else c.pick((None, 512, 512, 64, 37, 1024)),
        granularity=c.pick((9, 9, 0, 3, 4, 5, 8, 10, 12)),
        evict_on_full=bool(c.pick((True, False))),
        base=LOW if big else place,
        big=big,
        node_entries=c.pick((4, 0)),
    )


# ---- the pair --------------------------------------------------------------------------


class Difference(AssertionError):
    """What the two disagree in, and the way there."""


class Pair:
    """One process twice; :meth:`run` does the same to both and compares."""

    def __init__(self, made: Config) -> None:
        self.config = made
        keywords = {
            "xnack": made.xnack,
            "kernel": made.kernel,
            "max_svm_range_pages": made.max_pages,
            "default_granularity": made.granularity,
            "evict_on_full": made.evict_on_full,
        }
        self.reference = KfdReference(made.gpus, **keywords)
        self.compiled = KfdProcess(made.gpus, node_entries=made.node_entries, **keywords)
        self.both = (self.reference, self.compiled)
        self.xnack = made.xnack
        self.now = 1_000_000
        self.last_page = made.base
        self.log: list[str] = []
        for start, pages, prot, kind in AREA:
            first = made.base + start
            if first + pages <= 1 << 52:
                self.run("mmap", first, first + pages - 1, prot, kind)
        if made.big:
            self.run("mmap", BIG_FIRST, BIG_FIRST + BIG_PAGES - 1, "rw", "anon")

    def run(self, name: str, *args: Any, later: int = 0, defer: bool = True) -> Any:
        """The operation *later* ns after the last one; *defer* leaves pending work pending."""
        self.now += later
        self.log.append(f"{name}{args} later={later} defer={defer}")
        answers, outcomes = [], []
        for process in self.both:
            process.begin(self.now)
            answer = self.now if name == "settle" else getattr(process, name)(*args)
            if not defer and name not in STILL and not (name == "set_attr" and process.refused):
                process.run_deferred()
                process.run_restore()
            answers.append(answer)
            outcomes.append(process.finish(answer if isinstance(answer, int) else 0))
        self.compare(answers, outcomes, name)
        self.now = self.compiled.now
        if name == "set_xnack":
            self.xnack = args[0]
        return answers[0]

    def compare(self, answers: list[Any], outcomes: list[Outcome], name: str) -> None:
        reference, compiled = self.both
        views: list[tuple[str, Any, Any]] = [
            ("answer", *answers),
            *(
                (field.name, *(getattr(o, field.name) for o in outcomes))
                for field in dataclasses.fields(Outcome)
            ),
            ("now", reference.now, compiled.now),
            ("restore_pending", reference.restore_pending, compiled.restore_pending),
            ("ranges", reference.ranges(), compiled.ranges()),
            ("starts", reference.starts(), compiled.starts()),
            ("pending", reference.pending(), compiled.pending()),
            ("counters", reference.counters(), compiled.counters()),
        ]
        if name == "set_attr":
            views.append(("refused", reference.refused, compiled.refused))
        spans = [(self.config.base, self.config.base + SMALL - 1)]
        if self.config.big:
            spans += [(p - 2, p + 2) for p in self.big_pages()]
        for first, last in spans:
            views.append(
                (
                    f"pages {first} to {last}",
                    reference.page_states(first, last),
                    compiled.page_states(first, last),
                )
            )
            page = first + (len(self.log) * 7919) % (last - first + 1)
            views.append(("where", reference.where(page), compiled.where(page)))
            gpu = len(self.log) % len(self.config.gpus)
            views.extend(
                ("mapped", reference.mapped(gpu, page, w), compiled.mapped(gpu, page, w))
                for w in (False, True)
            )
        wrong = [(what, a, b) for what, a, b in views if a != b]
        for process in self.both:
            try:
                process.check()
            except AssertionError as error:
                wrong.append((f"check of {type(process).__name__}", str(error), ""))
        if wrong:
            raise Difference(self.story(wrong))

    def story(self, wrong: list[tuple[str, Any, Any]]) -> str:
        lines = [str(self.config), *(f"  {step}" for step in self.log[len(AREA) - 1 :])]
        for what, a, b in wrong:
            if what == "ranges":
                a, b = [r for r in a if r not in b], [r for r in b if r not in a]
            elif what.startswith("pages"):
                spots = [
                    (row, at, x[at], y[at])
                    for row, (x, y) in enumerate(zip(a, b, strict=True))
                    for at in range(len(x))
                    if x[at] != y[at]
                ]
                a, b = f"(row, at, reference, compiled) {spots[:10]}", ""
            lines.append(f"{what}: reference {a}, compiled {b}")
        return "\n".join(lines)

    def big_pages(self) -> list[int]:
        return [BIG_FIRST + i * ((BIG_PAGES - 1) // 5) for i in range(6)]

    # -- drawing arguments

    def span(self, c: Choice) -> tuple[int, int]:
        """First and last page inside the area, mostly short, at times on a mapping's ends."""
        if self.config.big and c.pick((True, False)):
            low, high = sorted((c.pick(self.big_pages()), c.pick(self.big_pages())))
            return low, high
        base = self.config.base
        shape = c.number(0, 7)
        if shape > 4:  # inside one mapping
            start, pages = c.pick(AREA)[:2]
            low = c.number(0, pages - 1)
            high = min(low + c.pick((0, 1, 7, 15, 16, 40, 90, 200)), pages - 1)
            return base + start + low, base + start + high
        if shape == 0:
            start, pages = c.pick(AREA)[:2]
            return base + start, min(base + start + pages - 1, base + SMALL - 1)
        first = c.number(0, SMALL - 1)
        if shape == 1:
            first = c.pick((0, 299, 310, 400, 499, 500, 700, 750, 912, 1000, 1100, 1290))
        last = min(first + c.pick((0, 1, 7, 15, 16, 40, 90, 130, 300, 700)), SMALL - 1)
        return base + first, base + last

    def page(self, c: Choice) -> int:
        shape = c.number(0, 3)
        if shape == 1:  # near what was touched last
            page = self.last_page + c.number(-3, 3)
            if self.config.base <= page < self.config.base + SMALL:
                return page
        if shape == 0:
            return self.config.base + c.pick((0, 1, 299, 310, 400, 499, 500, 749, 750, 1299))
        start, pages = c.pick(AREA)[:2]
        self.last_page = self.config.base + start + c.number(0, pages - 1)
        return self.last_page

    def place(self, c: Choice) -> int:
        ids = [gpu.id for gpu in self.config.gpus]
        return c.pick((*ids, *ids, *ids, 0, UNDEFINED, 5))

    def attributes(self, c: Choice) -> list[tuple[int, int]]:
        ids = [gpu.id for gpu in self.config.gpus]
        known = [gpu.id for gpu in self.config.gpus if gpu.svm] or ids
        out: list[tuple[int, int]] = []
        for _ in range(c.pick((0, 1, 1, 1, 2, 2, 3, 5))):
            kind = c.pick((0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7))
            if kind == 0:
                value = c.pick((*known, *known, 0, UNDEFINED))
            elif kind == 1:
                value = c.pick((*known, *known, 0))
            elif kind in (2, 3, 4):
                value = c.pick(known)
            elif kind in (5, 6):
                value = c.pick(FLAGS)
            else:
                value = c.pick((0, 1, 3, 4, 9, 12, 63, 64, UNDEFINED))
            out.append((kind, value))
        if c.number(0, 19) == 0:
            bad = c.pick(((8, 0), (UNDEFINED, 0), (1, UNDEFINED), (2, 0), (3, 5), (0, 5)))
            out.insert(c.number(0, len(out)), bad)
        return out

    def tame(self, attrs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Without what would populate a big span page by page."""
        tamed = []
        for kind, value in attrs:
            if kind == 1 and value not in (0, UNDEFINED):
                continue
            if kind == 3 or (kind == 5 and value & 0x40):
                continue
            tamed.append((kind, value))
        return tamed

    # -- one operation each

    def timing(self, c: Choice) -> dict[str, Any]:
        return {"later": c.pick(TIMES), "defer": c.pick((False, False, True))}

    def do_set_attr(self, c: Choice) -> None:
        first, last = self.span(c)
        attrs = self.attributes(c)
        if last >= BIG_FIRST and self.config.big:
            attrs = self.tame(attrs)
        addr, size, op = first << 12, (last - first + 1) << 12, 0
        if c.number(0, 19) == 0:
            addr, size, op = c.pick(
                (
                    (addr + 1, size, 0),
                    (addr, size + 8, 0),
                    (addr, 0, 0),
                    (0, size, 0),
                    (addr, size, 2),
                )
            )
        if c.number(0, 19) == 0 and addr & 0xFFF == 0 and addr:
            size = (1 << 64) - addr - c.pick((0, 4096))
        self.run("set_attr", addr, size, attrs, op, **self.timing(c))

    def do_prefetch(self, c: Choice) -> None:
        first, last = self.span(c)
        where = 0 if last >= BIG_FIRST and self.config.big else self.place(c)
        size = (last - first + 1) << 12
        self.run("set_attr", first << 12, size, [(1, where)], **self.timing(c))

    def do_get_attr(self, c: Choice) -> None:
        first, last = self.span(c)
        ids = [gpu.id for gpu in self.config.gpus]
        attrs = [(0, 0), (1, 0), (5, 0), (6, 0), (7, 0), *((2, gpu) for gpu in ids)]
        if c.number(0, 9) == 0:
            attrs.insert(
                c.number(0, len(attrs)), c.pick(((3, ids[0]), (4, ids[0]), (8, 0), (2, 5)))
            )
        size = (last - first + 1) << 12
        self.run("get_attr", first << 12, size, attrs, **self.timing(c))

    def do_fault(self, c: Choice) -> None:
        gpu = c.pick((*[gpu.id for gpu in self.config.gpus] * 4, 99))
        ts = c.pick((0, 0, 0, 1, 99, 100, 101, 1 << 47, (1 << 48) - 1))
        self.run("fault", gpu, self.page(c), bool(c.number(0, 1)), ts, **self.timing(c))

    def do_access(self, c: Choice) -> None:
        processor = c.number(0, len(self.config.gpus))
        first = self.page(c)
        last = min(first + c.pick((0, 0, 3, 20, 64)), self.config.base + SMALL - 1)
        self.run("access", processor, first, last, bool(c.number(0, 1)), **self.timing(c))

    def do_cpu_access(self, c: Choice) -> None:
        page = self.page(c)
        if self.config.big and c.number(0, 2) == 0:
            page = c.pick(self.big_pages())
        self.run("cpu_access", page, **self.timing(c))

    def do_munmap(self, c: Choice) -> None:
        self.run("munmap", *self.span(c), **self.timing(c))

    def do_mmap(self, c: Choice) -> None:
        """A mapping, mostly in a hole: else there is one already."""
        first, last = self.span(c)
        if c.number(0, 3):
            first, last, value = self.reference.vmas.find(self.page(c))
            first, last = max(first, self.config.base), min(last, self.config.base + SMALL - 1)
            if value or first > last:
                return
        self.run("mmap", first, last, c.pick(PROTS), c.pick(KINDS), **self.timing(c))

    def do_remap(self, c: Choice) -> None:
        """The pages go and come back before the pending work runs."""
        first, last = self.span(c)
        self.run("munmap", first, last, later=c.pick(TIMES), defer=c.pick((True, True, False)))
        kind = c.pick(KINDS) if last < BIG_FIRST or not self.config.big else "anon"
        self.run("mmap", first, last, c.pick(PROTS), kind)

    def do_mprotect(self, c: Choice) -> None:
        self.run("mprotect", *self.span(c), c.pick(PROTS), **self.timing(c))

    def do_invalidate(self, c: Choice) -> None:
        self.run("invalidate", *self.span(c), **self.timing(c))

    def do_evict(self, c: Choice) -> None:
        page = self.page(c)
        held = [row for row in self.reference.ranges() if row[14] >= 0]
        if held and c.number(0, 3):
            row = c.pick(held)
            page = c.number(row[0], row[1])
        self.run("evict", page, **self.timing(c))

    def do_inject(self, c: Choice) -> None:
        if c.number(0, 3):
            self.run("inject", c.pick(FAILURES), c.number(0, 3), **self.timing(c))
        else:
            state = c.pick(STATES)
            self.run("inject", state, c.pick((0, 1)), **self.timing(c))
            if c.number(0, 2):
                self.do_fault(c)
                self.run("inject", state, 0)

    def do_pin(self, c: Choice) -> None:
        first, last = self.span(c)
        if c.number(0, 2) == 0:
            self.run("unpin", **self.timing(c))
        else:
            self.run("pin", first, min(last, first + 40), **self.timing(c))

    def do_ring(self, c: Choice) -> None:
        gpu = c.pick(self.config.gpus).id
        self.run("set_ring", gpu, c.pick((0, 1, 100, (1 << 48) - 2)), bool(c.number(0, 1)))

    def do_buffer(self, c: Choice) -> None:
        first, last = self.span(c)
        if len(self.reference.buffers) + len(self.reference.userptrs) < 4 and c.number(0, 2) == 0:
            name = c.pick(("add_buffer", "add_userptr", "add_userptr"))
            self.run(name, first, min(last, first + 16), **self.timing(c))

    def do_xnack(self, c: Choice) -> None:
        if not self.config.big:
            self.run("set_xnack", c.pick((not self.xnack, True, False)), **self.timing(c))

    def do_deferred(self, c: Choice) -> None:
        self.run("run_deferred", **self.timing(c))

    def do_restore(self, c: Choice) -> None:
        self.run("run_restore", **self.timing(c))

    def do_step(self, c: Choice) -> None:
        self.run("step", self.now + c.pick(TIMES), **self.timing(c))


WEIGHTS = {
    "set_attr": 16,
    "prefetch": 12,
    "fault": 22,
    "access": 12,
    "cpu_access": 8,
    "munmap": 3,
    "mmap": 8,
    "remap": 6,
    "mprotect": 4,
    "invalidate": 4,
    "evict": 5,
    "inject": 4,
    "pin": 3,
    "ring": 2,
    "buffer": 1,
    "xnack": 1,
    "get_attr": 4,
    "deferred": 2,
    "restore": 2,
    "step": 2,
}


class KfdMachine(RuleBasedStateMachine):
    pair: Pair

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.pair = Pair(config(DrawnChoice(data)))


def _rule(name: str) -> Any:
    def act(self: KfdMachine, data: st.DataObject) -> None:
        getattr(self.pair, f"do_{name}")(DrawnChoice(data))

    act.__name__ = name
    return rule(data=st.data())(act)


for _name in WEIGHTS:
    setattr(KfdMachine, _name, _rule(_name))


@pytest.mark.slow
def test_kfd_stateful() -> None:
    """2,000 sequences in the default profile; "long" says its own numbers."""
    present = settings.get_profile(settings.get_current_profile_name())
    if present.max_examples < 2000:
        present = settings(present, max_examples=2000, stateful_step_count=18)
    run_state_machine_as_test(KfdMachine, settings=present)


class ShortPair(Pair):
    """A third process beside the two logs no events, so that it takes the short way of common
    faults and touches: all it shows and counts must be as the long way's."""

    def __init__(self, made: Config) -> None:
        self.quiet = KfdProcess(
            made.gpus,
            xnack=made.xnack,
            kernel=made.kernel,
            max_svm_range_pages=made.max_pages,
            default_granularity=made.granularity,
            evict_on_full=made.evict_on_full,
        )
        super().__init__(made)

    def run(self, name: str, *args: Any, later: int = 0, defer: bool = True) -> Any:
        self.quiet.begin(self.now + later, record=False)
        answer = super().run(name, *args, later=later, defer=defer)
        if name != "settle":
            same = getattr(self.quiet, name)(*args)
            if not defer and name not in STILL and not (name == "set_attr" and self.quiet.refused):
                self.quiet.run_deferred()
                self.quiet.run_restore()
            assert same == answer, self.story([("answer", answer, same)])
        self.quiet.finish()
        for view in ("totals", "processors", "ranges", "starts", "pending", "counters"):
            long, short = getattr(self.compiled, view)(), getattr(self.quiet, view)()
            assert long == short, self.story([(view, long, short)])
        pages = (self.config.base, self.config.base + SMALL - 1)
        assert self.compiled.page_states(*pages) == self.quiet.page_states(*pages), self.story([])
        assert self.compiled.now == self.quiet.now
        self.quiet.check()
        return answer


def drive(seed: int, steps: int, *, per_pair: int = 80, pair_of: type[Pair] | None = None) -> int:
    """*steps* random operations, a new process every *per_pair*; returns those run."""
    deck = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
    done = 0
    number = 0
    shown = time.monotonic()
    while done < steps:
        c = RandomChoice(seed * 1_000_003 + number)
        number += 1
        pair = (pair_of or Pair)(config(c))
        for _ in range(min(per_pair, steps - done)):
            getattr(pair, f"do_{c.pick(deck)}")(c)
            done += 1
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"seed {seed}: {done} of {steps} steps", flush=True)
    return done


@pytest.mark.parametrize("seed", range(1, 5))
def test_short_way_equals_long_way(seed: int) -> None:
    assert drive(seed, 500, pair_of=ShortPair) == 500


@pytest.mark.parametrize("record", [False, True])
def test_pages_mapped_in_place_beside_pages_of_the_gpu(record: bool) -> None:
    """Both in one block of 2 MiB: what the GPU maps is no longer what it has."""
    base = 0x7F0000000
    process = KfdProcess([Gpu(1, 1 << 20)], xnack=True, default_granularity=2)
    process.mmap(base, base + 511)
    assert process.set_attr(base << 12, 64 << 12, [(2, 1)]) == 0
    assert process.set_attr(base + 64 << 12, 64 << 12, [(0, 0)]) == 0
    served, stays = set(), set()
    for offset in (0, 64, 4, 100, 40, 60, 127, 8):
        process.begin(process.now + 3_000_000, record=record)
        assert process.fault(1, base + offset, False) == 0
        process.finish()
        process.settle()
        process.check()
        window = offset // 4 * 4
        (served if offset < 64 else stays).update(range(window, window + 4))
        for page in range(128):
            assert process.mapped(0, base + page) == (page in served | stays)
            assert process.where(base + page) == (
                1 if page in served else 0 if page in stays else -1
            )


def test_the_index_of_leaves_follows_what_comes_in_place() -> None:
    """A range that a fault makes moves the keys of a leaf, which keeps its place in the index.

    Only leaves of more than 16 entries have keys there.
    """
    base, count = 0x7F0000000, 300
    process = KfdProcess([Gpu(1, 1 << 20)], xnack=True, default_granularity=0)
    process.mmap(base, base + 10 * count)
    for i in range(count):
        assert process.set_attr(base + 10 * i << 12, 4 << 12, [(2, 1)]) == 0
    records = np.zeros(3 * count, RECORD)
    records["addr"] = np.tile(base + 10 * np.arange(count, dtype="u8"), 3) << np.uint64(12)
    records["kind"], records["proc"], records["size"] = Kind.FAULT, 1, 4096

    def by_index() -> bool:
        outcomes = np.zeros(len(records), OUTCOME)
        before = process.work()
        process.begin(process.now, record=False)
        process.finish()
        replay_chunk(process, records, outcomes, raw=True)
        after = process.work()
        process.step(process.now + 3_000_000)
        assert not outcomes["code"].any()
        return after["nodes_visited"] - before["nodes_visited"] == after["finds"] - before["finds"]

    assert [by_index(), by_index()] == [False, True]
    for made, i in enumerate((3, 40, 41, 90, 150, 151, 200, 299)):
        process.begin(process.now, record=False)
        assert process.fault(1, base + 10 * i + 6, False) == 0
        process.finish()
        process.settle()
        process.check()
        assert len(process) == count + made + 1
        assert by_index()


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_faults_of_ranges_found_by_the_index_of_leaves(seed: int, crowded: bool) -> None:
    """Recorded faults that are looked up ahead, against one call each; ranges change midway.

    Crowded, nearly all ranges lie in one bucket of an index, and the tree stays in use.
    """
    choice = random.Random(seed)
    base = 0x7F0000000
    spans, page = [], base
    for _ in range(400):
        page += choice.choice((0, 0, 1, 30))
        spans.append((page, page + choice.randrange(40)))
        page = spans[-1][1] + 1
    if crowded:
        spans += [(page + (1 << 24) + 10 * i, page + (1 << 24) + 10 * i + 4) for i in range(9)]
    pair = [KfdProcess([Gpu(1, 1 << 20)], xnack=True, node_entries=4) for _ in range(2)]
    for process in pair:
        process.mmap(base, spans[-1][1])
        for first, last in spans:
            assert process.set_attr(first << 12, last - first + 1 << 12, [(7, 3)]) == 0
    by_index = []
    for number in range(16):
        if number == 8:
            for first, last in choice.sample(spans, 5):
                span = (first + last) // 2 << 12, 1 << 12
                for process in pair:
                    assert process.set_attr(*span, [(7, 1)]) == 0
        pages = [choice.randint(*choice.choice(spans)) for _ in range(498)]
        pages += [spans[0][0], spans[-1][1]]
        records = np.zeros(len(pages), RECORD)
        records["addr"] = np.array(pages, "u8") << 12
        records["kind"], records["proc"], records["size"] = Kind.FAULT, 1, 4096
        outcomes = np.zeros(len(pages), OUTCOME)
        before = pair[0].work()
        replay_chunk(pair[0], records, outcomes, raw=True)
        after = pair[0].work()
        visited = after["nodes_visited"] - before["nodes_visited"]
        by_index.append(visited == after["finds"] - before["finds"])
        for page in pages:
            pair[1].begin(pair[1].now, record=False)
            pair[1].fault(1, page, False)
            pair[1].finish()
            pair[1].settle()
        for process in pair:
            process.check()
            process.step(process.now + 3_000_000)
        assert pair[0].totals() == pair[1].totals()
        assert pair[0].ranges() == pair[1].ranges()
        assert pair[0].now == pair[1].now
        assert not outcomes["code"].any()
    # In use once the ranges have stayed for a while, and again some time after they changed.
    assert [by_index[i] for i in (0, 7, 8, 15)] == [False, not crowded, False, not crowded]


@pytest.mark.parametrize("seed", range(8))
def test_short_way_costs_what_the_long_way_costs(seed: int) -> None:
    choice = random.Random(seed)
    granularity = choice.choice((0, 2, 4, 9))
    pair = [
        KfdProcess(
            [Gpu(1, 2048), Gpu(2, 2048, hive=seed % 2)],
            xnack=True,
            default_granularity=granularity,
            evict_on_full=True,
        )
        for _ in range(2)
    ]
    state = choice.getstate()
    for process in pair:
        choice.setstate(state)
        process.set_costs(Costs())
        process.mmap(4096, 4096 + 8191)
        process.set_attr(4096 << 12, 700 << 12, [(7, 3)])
        for _ in range(600):
            first = 4096 + choice.randrange(3000)
            process.begin(process.now, record=process is pair[0])
            process.access(
                choice.choice((0, 1, 1, 1, 2)), first, first + choice.randrange(40), True
            )
            process.finish()
            process.settle()
    assert pair[0].now == pair[1].now
    assert pair[0].totals() == pair[1].totals()
    assert pair[0].processors() == pair[1].processors()
    assert pair[0].ranges() == pair[1].ranges()


@pytest.mark.parametrize("seed", range(6))
def test_short_way_with_windows_that_are_partly_there(seed: int) -> None:
    """Windows of 1 to 512 pages, of which some are on the GPU, in system memory and nowhere."""
    choice = random.Random(seed)
    pair = [KfdProcess([Gpu(1, 1 << 20)], xnack=True) for _ in range(2)]
    first = 0x100000 + choice.randrange(300)
    last = first + choice.randrange(200, 1000)
    for process in pair:
        process.set_costs(Costs())
        process.mmap(first, last)
        process.set_attr(first << 12, last - first + 1 << 12, [(7, 9)])
    for _ in range(300):
        page, size = choice.randrange(first, last + 1), choice.choice((1, 3, 40, 70, 200))
        granularity = choice.choice((0, 3, 5, 6, 7, 8, 9, 9, 9))
        what = choice.choice(("touch", "fault", "fault", "fault"))
        for process in pair:
            process.set_attr(first << 12, last - first + 1 << 12, [(7, granularity)])
            process.begin(process.now + 3_000_000, record=process is pair[0])
            if what == "touch":
                process.access(0, page, min(page + size, last), True)
            else:
                assert process.fault(1, page, True) == 0
            process.finish()
            process.settle()
        assert pair[0].page_states(first, last) == pair[1].page_states(first, last)
        assert pair[0].totals() == pair[1].totals()
        assert pair[0].ranges() == pair[1].ranges()
        assert pair[0].now == pair[1].now
    pair[1].check()


def test_short_way_with_many_ranges() -> None:
    """Arrays of every kind grow on the way: 3,000 ranges and objects."""
    pair = [KfdProcess([Gpu(1, 1 << 20)], xnack=True) for _ in range(2)]
    for process in pair:
        order = list(range(3000))
        process.mmap(0x100000, 0x100000 + 3000 * 16 - 1)
        for i in order:
            process.set_attr((0x100000 + i * 16) << 12, 16 << 12, [(7, 9)])
        random.Random(5).shuffle(order)
        for by in (1, 0, 1):
            for i in order:
                process.begin(process.now + 3_000_000, record=process is pair[0])
                assert process.access(by, 0x100000 + i * 16, 0x100000 + i * 16 + 2, True)[0] == 0
                process.finish()
        process.check()
    assert pair[0].totals() == pair[1].totals()
    assert pair[0].ranges() == pair[1].ranges()


@pytest.mark.parametrize("seed", range(4))
def test_kfd_random(seed: int) -> None:
    assert drive(seed, 400) == 400


def main() -> int:
    parser = argparse.ArgumentParser(description="Drive the two in lockstep.")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--short", action="store_true", help="short way against long way")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        pair_of = ShortPair if options.short else Pair
        done = drive(options.seed, options.steps, pair_of=pair_of)
    except AssertionError as error:
        print(error)
        print("1 difference")
        return 1
    print(f"{done} steps, 0 differences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
