"""Makes the package's own vector files by playing scenarios on the executable specification.

``python tests/conformance/make_vectors.py`` writes ``vectors/own_*``;
``--check`` compares with what is there and writes nothing (exit 1 where
anything differs). The files have the form ``kfd-svm-vectors/1``: a header, then
one operation a line with every result, so that another implementation of the
same rules can be held against them. A scenario is a list of operations; the
comments say which rule it is about.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from svmcore.attributes import Attribute
from svmcore.conformance import _EFFECTS, _play, _process

FOLDER = Path(__file__).parent / "vectors"
A = 0x40000  # first page of most mappings
GPU = 0x2001  # id of the first GPU, the others follow
UNDEFINED = 0xFFFFFFFF
RANGE_FIELDS = [
    "start",
    "last",
    "preferred_loc",
    "prefetch_loc",
    "actual_loc",
    "granularity",
    "flags",
    "access",
    "aip",
    "mapped",
    "vram_pages",
    "mapping_done",
    "validate_us",
    "vram_true",
    "bo",
]
COUNTER_FIELDS = ["faults", "page_in", "page_out", "bo_pages_in_use", "vram_usage_pages"]

Op = dict[str, Any]


# ---- operations ----------------------------------------------------------------------------


def gpus(n: int, vram_pages: int = 1 << 18, **fields: Any) -> list[Op]:
    return [{"id": GPU + i, "hive": 0, "vram_pages": vram_pages, **fields} for i in range(n)]


def attr(start: int, npages: int, *attrs: tuple[str | int, int], **more: Any) -> Op:
    pairs = [list(pair) for pair in attrs]
    return {"op": "set_attr", "start_page": start, "npages": npages, "attrs": pairs, **more}


def query(start: int, npages: int, *attrs: tuple[str | int, int], **more: Any) -> Op:
    wanted = attrs or (
        ("PREFERRED_LOC", 0),
        ("PREFETCH_LOC", 0),
        ("SET_FLAGS", 0),
        ("CLR_FLAGS", 0),
        ("GRANULARITY", 0),
        ("ACCESS", GPU),
    )
    return {**attr(start, npages, *wanted, **more), "op": "get_attr"}


def raw(op: str, start_addr: int, size: int, *attrs: tuple[str, int], **more: Any) -> Op:
    pairs = [list(pair) for pair in attrs]
    return {"op": op, "start_addr": start_addr, "size": size, "attrs": pairs, **more}


def prefetch(start: int, npages: int, loc: int, **more: Any) -> Op:
    return {"op": "prefetch", "start_page": start, "npages": npages, "loc": loc, **more}


def fault(page: int, gpu: int = GPU, write: int = 1, **more: Any) -> Op:
    return {"op": "fault", "gpu": gpu, "page": page, "write": write, **more}


def span(op: str, start: int, npages: int, **more: Any) -> Op:
    return {"op": op, "start_page": start, "npages": npages, **more}


def on_page(op: str, page: int, **more: Any) -> Op:
    return {"op": op, "page": page, **more}


def inject(what: str, n: int = 1) -> Op:
    return {"op": "inject", "what": what, "n": n}


# ---- scenarios -----------------------------------------------------------------------------


def attribute_checks() -> tuple[Op, list[Op]]:
    """Sections 3 to 5 and 15b: argument errors, all-or-nothing checks, aggregation."""
    other = GPU + 1
    header = {"gpus": [*gpus(1), {"id": other, "hive": 0, "vram_pages": 1 << 18, "svm": False}]}
    header["vmas"] = [[A, A + 1023, "rw", "anon"], [A + 1024, A + 1087, "rw", "io"]]
    header["vmas"].append([A + 1088, A + 1151, "-", "anon"])
    return header, [
        raw("set_attr", (A << 12) + 8, 4096, ("GRANULARITY", 3)),
        raw("set_attr", A << 12, 0, ("GRANULARITY", 3)),
        raw("set_attr", 0, 4096, ("GRANULARITY", 3)),
        raw("set_attr", A << 12, 4096, ("GRANULARITY", 3), ioctl_op=7),
        raw("set_attr", (1 << 64) - 4096, 8192, ("GRANULARITY", 3)),
        raw("get_attr", A << 12, 2048, ("GRANULARITY", 0)),
        attr(A, 8, ("PREFERRED_LOC", GPU), ("ACCESS", 0)),  # the second fails: nothing is set
        attr(A, 8, ("PREFERRED_LOC", 77)),
        attr(A, 8, ("PREFETCH_LOC", UNDEFINED)),
        attr(A, 8, (19, 1)),
        attr(A, 8, ("ACCESS", other)),  # a GPU without SVM
        attr(A + 1020, 8, ("GRANULARITY", 2)),  # reaches into device memory
        attr(A + 1148, 8, ("GRANULARITY", 2)),  # and past the last mapping
        query(A, 64),  # nothing registered: defaults
        attr(A, 8),
        attr(A + 8, 8, ("SET_FLAGS", 0x19C), ("GRANULARITY", 0x44)),
        attr(A + 16, 8, ("ACCESS_IN_PLACE", GPU), ("PREFERRED_LOC", GPU)),
        query(A, 16),
        query(A, 24),
        query(A + 16, 8),
        query(A + 24, 8),  # a hole only
        query(A, 24, ("ACCESS", other), ("ACCESS", GPU)),
        query(A, 24, ("ACCESS", 99)),
        query(A, 24, ("NO_ACCESS", GPU)),
        attr(A + 1088, 4, ("GRANULARITY", 1)),  # no protection at all is fine
        span("bo_map", A + 512, 16, gpu=GPU),
        attr(A + 500, 16, ("GRANULARITY", 1)),
        query(A + 527, 4),
        attr(A + 528, 4, ("GRANULARITY", 1)),
        attr(A + 528, 4, ("GRANULARITY", 1)),  # equal, not yet mapped
        attr(A + 528, 4, ("CLR_FLAGS", 3), ("SET_FLAGS", 2)),
    ]


def splits() -> tuple[Op, list[Op]]:
    """Section 6: heads, tails, gaps, list order, pieces cut by the largest range size."""
    header = {"gpus": gpus(2), "max_svm_range_pages": 512}
    header["vmas"] = [[A, A + 4095, "rw", "anon"]]
    return header, [
        attr(A + 100, 1000, ("GRANULARITY", 4)),  # cut at multiples of 512
        attr(A + 300, 50, ("GRANULARITY", 5)),
        attr(A + 320, 10, ("GRANULARITY", 6)),
        attr(A, 2048, ("GRANULARITY", 5)),  # gaps on both sides; one piece equal, not mapped
        fault(A + 30),
        fault(A + 512),
        attr(A + 16, 600, ("PREFERRED_LOC", GPU)),  # splits pieces that are in VRAM
        query(A, 1024),
        prefetch(A + 2048, 1024, GPU),
        attr(A + 2300, 30, ("ACCESS_IN_PLACE", GPU + 1)),
        attr(A + 2300, 30, ("ACCESS_IN_PLACE", GPU + 1)),
        attr(A + 2100, 700, ("SET_FLAGS", 8)),
        attr(A + 3600, 4, ("GRANULARITY", 2)),
        attr(A + 3500, 200, ("GRANULARITY", 3)),  # an island in the middle
        prefetch(A + 2048, 1024, 0),
    ]


def huge_pages() -> tuple[Op, list[Op]]:
    """Section 6.2: pieces that cut a 2 MiB mapping are mapped again."""
    header = {"gpus": gpus(2), "xnack": 0, "max_svm_range_pages": 4096}
    header["vmas"] = [[A, A + 4095, "rw", "anon"]]
    return header, [
        attr(A, 2048, ("ACCESS", GPU)),
        attr(A + 700, 100, ("ACCESS", GPU + 1)),
        attr(A + 1536, 16, ("GRANULARITY", 4)),  # on a border: not cut
        attr(A + 2048, 300, ("ACCESS", GPU)),
        attr(A + 2100, 20, ("ACCESS_IN_PLACE", GPU + 1)),  # no whole block inside
        {"op": "set_xnack", "on": 1},
        attr(A + 100, 30, ("GRANULARITY", 2)),
        attr(A + 2500, 30, ("GRANULARITY", 2)),
    ]


def windows() -> tuple[Op, list[Op]]:
    """Sections 10.2 and 10: windows clamped to the range, the 2 ms duplicate window."""
    header = {"gpus": gpus(1), "default_granularity": 5}
    header["vmas"] = [[A, A + 1023, "rw", "anon"], [A + 1024, A + 1031, "r", "anon"]]
    return header, [
        fault(A + 40),  # an unregistered block of 32 pages
        fault(A + 41, dt=1999),
        fault(A + 41, dt=1),
        on_page("cpu_access", A + 33),
        attr(A + 102, 99, ("GRANULARITY", 3)),
        fault(A + 103),  # clamped at the start
        fault(A + 200),  # and at the end
        fault(A + 150, write=0),
        attr(A + 300, 64, ("GRANULARITY", 63)),
        fault(A + 330),  # the whole range
        attr(A + 400, 8, ("GRANULARITY", 0)),
        fault(A + 402),
        fault(A + 404),
        on_page("cpu_access", A + 404),
        on_page("cpu_access", A + 402),  # the last page: the object goes
        fault(A + 1025),  # permission
        fault(A + 1025, write=0),
        fault(A + 4000),  # no mapping
        on_page("cpu_access", A + 4000),
    ]


def best_location() -> tuple[Op, list[Op]]:
    """Sections 10.1 and 10.3: every rule of the best restore location, moves between GPUs."""
    b, c, d = GPU + 1, GPU + 2, GPU + 3
    header = {"gpus": gpus(4)}
    for gpu, hive in zip(header["gpus"], (1, 1, 2, 2), strict=True):
        gpu["hive"] = hive
    header["vmas"] = [[A, A + 2047, "rw", "anon"]]
    return header, [
        attr(A, 64, ("PREFERRED_LOC", GPU)),
        fault(A, GPU),
        fault(A, b),  # a hive peer: stays with the preferred one
        fault(A, c),  # another hive: c has access
        attr(A + 64, 64, ("PREFERRED_LOC", 0), ("NO_ACCESS", GPU)),
        fault(A + 64, GPU),  # the preferred location comes before access
        attr(A + 128, 64, ("ACCESS_IN_PLACE", GPU), ("ACCESS_IN_PLACE", c), ("NO_ACCESS", d)),
        fault(A + 128, b),
        fault(A + 129, GPU, dt=3000),  # in place in the peer's memory
        fault(A + 130, c),  # unreachable: in system memory
        fault(A + 131, d),  # none
        attr(A + 192, 64, ("PREFERRED_LOC", d), ("NO_ACCESS", b), ("ACCESS_IN_PLACE", GPU)),
        fault(A + 192, b),
        fault(A + 193, GPU),
        fault(A + 194, c),
        attr(A + 256, 512, ("GRANULARITY", 4)),
        fault(A + 256, GPU),
        fault(A + 300, GPU),
        fault(A + 260, c),  # all leaves GPU a, one window enters GPU c
        fault(A + 300, b),
        inject("vram_fail"),
        fault(A + 400, d),  # falls back to system memory
        inject("limit_fail"),
        fault(A + 420, d),
        inject("copy_fail"),
        fault(A + 440, b),
        inject("hmm_retry"),
        fault(A + 460, b),
        inject("no_node"),
        fault(A + 461, b),
        inject("no_node", 0),
        fault(A + 1000, 4242),
    ]


def deferred_munmap() -> tuple[Op, list[Op]]:
    """Section 13: pieces, children, pending work, stale faults."""
    header = {"gpus": gpus(2)}
    header["vmas"] = [[A, A + 2047, "rw", "anon"]]
    return header, [
        attr(A, 256, ("PREFERRED_LOC", GPU)),
        fault(A + 10),
        {"op": "ih", "gpu": GPU, "ts": 900, "pending": 1},
        span("munmap", A + 64, 64, defer=True),  # the middle: two children
        fault(A + 200, ts=800, defer=True),  # stale
        fault(A + 200, ts=901, defer=True, dt=5000),  # in a child that waits to be added
        fault(A + 70, ts=902, defer=True),  # in a child that waits to go
        fault(A + 10, ts=903, defer=True),  # mapping ends in EAGAIN
        span("munmap", A + 192, 64, defer=True),  # the end of a child
        {"op": "run_deferred"},
        fault(A + 130, ts=904),
        {"op": "ih", "gpu": GPU, "ts": 950, "pending": 0},
        span("munmap", A + 128, 8),  # the head of a range; an empty ring
        fault(A + 140, GPU + 1),
        span("munmap", A + 150, 100, defer=True),
        query(A, 150),  # waits for pending work
        attr(A + 1000, 100, ("GRANULARITY", 4)),
        attr(A + 1100, 100, ("GRANULARITY", 5)),
        fault(A + 1050),
        fault(A + 1150),
        span("munmap", A + 1040, 100, defer=True),  # the tail of one, the head of the next
        span("munmap", A + 1000, 200, defer=True),  # then both whole
        span("mmap", A + 1000, 200, prot="rw", kind="anon"),
        {"op": "run_deferred"},
        fault(A + 1010, ts=2000),
        span("munmap", A + 1500, 100),  # nothing registered there
        inject("mm_gone"),
        fault(A + 1010),
    ]


def xnack_off() -> tuple[Op, list[Op]]:
    """Sections 9 and 11 without retried faults: mapping, queues, restore work."""
    header = {"gpus": gpus(2), "xnack": 0}
    header["vmas"] = [[A, A + 511, "rw", "anon"], [A + 512, A + 527, "r", "anon"]]
    header["vmas"].append([A + 544, A + 575, "-", "anon"])
    return header, [
        fault(A),  # fatal
        attr(A, 64),  # no access: nothing to map
        attr(A, 64, ("ACCESS", GPU)),
        attr(A + 500, 28, ("ACCESS", GPU), ("ACCESS_IN_PLACE", GPU + 1)),  # two mappings
        span("invalidate", A + 8, 4, defer=True),
        span("invalidate", A + 500, 2, defer=True),
        {"op": "run_deferred"},
        prefetch(A, 64, GPU),
        attr(A, 64, ("GRANULARITY", 3)),  # the prefetch location sticks
        on_page("cpu_access", A + 20),
        attr(A + 8, 16, ("NO_ACCESS", GPU)),
        span("invalidate", A, 64),
        on_page("evict", A),
        attr(A + 544, 32, ("ACCESS", GPU)),  # no protection: skipped
        span("mprotect", A + 544, 32, prot="rw"),
        attr(A + 544, 32, ("SET_FLAGS", 8)),  # mapped read-only
        span("mprotect", A + 550, 4, prot="r"),
        span("munmap", A + 506, 12, defer=True),
        {"op": "run_deferred"},
        span("invalidate", A + 500, 40),  # maps what is left
        inject("hmm_retry"),
        span("invalidate", A, 8),  # the restore work fails once
        {"op": "run_deferred"},
        {"op": "set_xnack", "on": 1},
        fault(A + 300),
        attr(A + 300, 8, ("SET_FLAGS", 0x40)),  # always mapped
        span("invalidate", A + 300, 8),
        attr(A + 300, 8, ("NO_ACCESS", GPU)),
    ]


def prefetches() -> tuple[Op, list[Op]]:
    """Sections 8 and 10.4: where a prefetch goes, failures that are no errors, file pages."""
    b, c = GPU + 1, GPU + 2
    header = {"gpus": gpus(3, 1024)}
    header["gpus"][0]["hive"] = header["gpus"][1]["hive"] = 5
    header["vmas"] = [[A, A + 1535, "rw", "anon"], [A + 1536, A + 1599, "rw", "file"]]
    return header, [
        prefetch(A, 512, GPU),
        prefetch(A, 256, b),  # between peers, and the range is split
        prefetch(A, 512, 0),
        prefetch(A, 512, 0),
        attr(A, 512, ("ACCESS_IN_PLACE", c)),
        prefetch(A, 256, GPU),  # c cannot reach it: system memory
        attr(A, 512, ("NO_ACCESS", c)),
        inject("vram_fail"),
        prefetch(A, 256, GPU),
        prefetch(A, 256, GPU),
        inject("copy_fail"),
        prefetch(A, 256, 0),
        inject("limit_fail"),
        prefetch(A + 256, 256, b),
        prefetch(A + 1530, 40, GPU),  # absent file pages do not move in
        on_page("cpu_access", A + 1540),
        prefetch(A + 1530, 40, GPU),
        prefetch(A + 600, 900, c),
        prefetch(A + 512, 16, c),
        prefetch(A, 512, c),  # full: nothing moves, no error
        span("pin", A + 600, 4),
        prefetch(A + 600, 900, 0),  # pinned pages stay
        {"op": "unpin"},
        prefetch(A + 600, 900, 0),
        query(A, 512),
    ]


def eviction() -> tuple[Op, list[Op]]:
    """Section 15: victims by age, objects shared by pieces, pages that cannot leave."""
    header = {"gpus": gpus(2, 1024), "evict_on_full": True}
    header["vmas"] = [[A, A + 8191, "rw", "anon"]]
    return header, [
        prefetch(A, 400, GPU),
        prefetch(A + 400, 400, GPU),
        prefetch(A + 800, 400, GPU),  # evicts the first
        fault(A + 10),  # evicts the second
        prefetch(A + 2000, 1000, GPU + 1),
        attr(A + 900, 64, ("GRANULARITY", 3)),  # a split: one object, three ranges
        prefetch(A + 1200, 300, GPU),
        fault(A + 910, GPU + 1),  # evicts on the other GPU only
        prefetch(A + 3000, 1025, GPU),  # larger than the memory
        on_page("evict", A + 10),
        on_page("evict", A + 5000),
        attr(A + 4096, 64, ("PREFERRED_LOC", GPU)),
        fault(A + 4096),
        span("pin", A + 4100, 2),
        on_page("evict", A + 4096),  # incomplete
        on_page("evict", A + 4096),
        {"op": "unpin"},
        on_page("cpu_access", A + 4100),
        fault(A + 4097),
        span("munmap", A + 4096, 64),
    ]


def special_gpus() -> tuple[Op, list[Op]]:
    """An APU, partitions of one device, coherent links, a GPU without SVM."""
    header = {
        "gpus": [
            {"id": GPU, "hive": 0, "vram_pages": 4096, "apu": True},
            {"id": GPU + 1, "hive": 0, "vram_pages": 4096, "adev": 9},
            {"id": GPU + 2, "hive": 0, "vram_pages": 8192, "adev": 9},
            {"id": GPU + 3, "hive": 3, "vram_pages": 4096, "coherent": True},
            {"id": GPU + 4, "hive": 3, "vram_pages": 4096, "svm": False},
        ]
    }
    header["vmas"] = [[A, A + 1023, "rw", "anon"]]
    return header, [
        attr(A, 64, ("PREFERRED_LOC", GPU)),
        fault(A, GPU),  # the APU: system memory
        prefetch(A, 64, GPU),
        fault(A + 70, GPU + 1),
        fault(A + 71, GPU + 2, dt=3000),  # a partition of the same device
        attr(A + 200, 64, ("PREFERRED_LOC", GPU + 1)),
        fault(A + 200, GPU + 2),
        attr(A + 300, 64, ("ACCESS_IN_PLACE", GPU + 2)),
        prefetch(A + 300, 64, GPU + 1),
        fault(A + 400, GPU + 3),
        on_page("cpu_access", A + 400),  # read in place
        fault(A + 400, GPU + 4),
        query(A, 64, ("ACCESS", GPU), ("ACCESS", GPU + 4)),
    ]


def mapping_kinds() -> tuple[Op, list[Op]]:
    """Section 12: unregistered ranges in heap, stack, device memory, between neighbours."""
    header = {"gpus": gpus(1)}
    header["vmas"] = [
        [A, A + 255, "rw", "heap"],
        [A + 256, A + 511, "rw", "stack"],
        [A + 512, A + 767, "rw", "file"],
        [A + 768, A + 799, "rw", "io"],
        [A + 800, A + 831, "rw", "pfnmap"],
        [A + 832, A + 1500, "rw", "anon"],
    ]
    return header, [
        fault(A + 3),
        fault(A + 300),
        fault(A + 600),
        fault(A + 770),
        fault(A + 800),
        attr(A + 900, 10, ("GRANULARITY", 2)),
        attr(A + 950, 10, ("GRANULARITY", 2)),
        fault(A + 930),  # between two ranges
        fault(A + 840),
        span("bo_map", A + 1100, 8, gpu=GPU),
        fault(A + 1104),  # inside an object of the other interface
        fault(A + 1090),  # beside it: one page
        span("userptr", A + 1300, 8, gpu=GPU, gpu_page=A + 7000),
        fault(A + 1290),
        span("mprotect", A + 1495, 20, prot="r"),  # a hole behind: the part before changes
        fault(A + 1496),
        fault(A + 1497, write=0),
        span("mprotect", A + 3, 4, prot="-"),
        fault(A + 4, write=0),
        span("mmap", A + 2000, 4, prot="rw", kind="anon"),
        span("mmap", A + 1400, 4, prot="rw", kind="anon"),
        fault(A + 2001),
    ]


def kernel_612() -> tuple[Op, list[Op]]:
    """Section 17, column 6.12: NO_ACCESS keeps the mapping, one mapped bit, the remap test."""
    header, ops = huge_pages()
    header = {**header, "kernel": "6.12"}
    return header, [
        *ops,
        attr(A + 2500, 30, ("NO_ACCESS", GPU)),
        fault(A + 2510, GPU + 1),
        attr(A + 2500, 30, ("NO_ACCESS", GPU + 1)),
        span("invalidate", A + 2500, 30),
        attr(A + 2500, 30, ("GRANULARITY", 2)),
        fault(A + 3000),
        span("munmap", A + 3010, 8, defer=True),
        fault(A + 3000, defer=True, dt=4000),
        {"op": "run_deferred"},
        prefetch(A + 3100, 64, GPU),
        prefetch(A + 3100, 64, GPU),
    ]


def kernel_61() -> tuple[Op, list[Op]]:
    """Section 17, column 6.1: whole ranges move, CPU faults split, munmap drains."""
    header = {"gpus": gpus(2, 4096), "kernel": "6.1", "default_granularity": 4}
    header["vmas"] = [[A, A + 4095, "rw", "anon"]]
    return header, [
        attr(A + 5, 1000, ("GRANULARITY", 6)),
        fault(A + 500),  # all of it moves
        on_page("cpu_access", A + 500),  # a piece of 64 pages is cut out
        on_page("cpu_access", A + 5),  # clamped at the start
        fault(A + 501),
        attr(A + 5, 1000, ("ACCESS", GPU + 1)),  # maps again
        attr(A + 5, 1000, ("NO_ACCESS", GPU)),
        query(A, 1024),
        fault(A + 2000),  # unregistered blocks have 512 pages
        prefetch(A + 2048, 64, GPU),
        prefetch(A + 2048, 64, GPU),  # there already
        inject("vram_fail"),
        prefetch(A + 2048, 64, GPU + 1),  # the failure is the result
        span("munmap", A + 2100, 4, defer=True),
        fault(A + 2000, defer=True),  # drained
        {"op": "run_deferred"},
        fault(A + 2000),
        raw("set_attr", (1 << 64) - 4096, 8192, ("GRANULARITY", 3)),
        {"op": "set_xnack", "on": 0},
        attr(A + 3000, 64, ("ACCESS", GPU)),
        span("invalidate", A + 3000, 8),
    ]


def random_two_gpus() -> tuple[Op, list[Op]]:
    """A seeded sequence of everything in a small area, changes only."""
    rng = random.Random(20260704)
    npages = 1536
    header: Op = {"gpus": gpus(2, 1200, hive=1), "full_dump_every": 50, "seed": 20260704}
    header |= {"evict_on_full": True, "max_svm_range_pages": 512}
    header["vmas"] = [[A, A + npages - 1, "rw", "anon"]]

    def area() -> tuple[int, int]:
        first = rng.randrange(npages)
        return A + first, min(rng.choice((1, 7, 64, 200, 512)), npages - first)

    def one() -> Op:
        kind = rng.choices(
            ("fault", "cpu", "attr", "prefetch", "munmap", "evict", "invalidate", "get"),
            (40, 14, 20, 8, 4, 3, 5, 6),
        )[0]
        first, count = area()
        gpu = GPU + rng.randrange(2)
        if kind == "fault":
            return fault(first, gpu, rng.randrange(2))
        if kind == "cpu":
            return on_page("cpu_access", first)
        if kind == "prefetch":
            return prefetch(first, count, rng.choice((0, GPU, GPU + 1)))
        if kind == "evict":
            return on_page("evict", first)
        if kind == "get":
            return query(first, count)
        if kind == "attr":
            choices = [
                ("PREFERRED_LOC", rng.choice((0, UNDEFINED, GPU, GPU + 1))),
                ("ACCESS", gpu),
                ("ACCESS_IN_PLACE", gpu),
                ("NO_ACCESS", gpu),
                ("GRANULARITY", rng.randrange(11)),
                ("SET_FLAGS", 1 << rng.randrange(8)),
                ("CLR_FLAGS", 1 << rng.randrange(8)),
            ]
            return attr(first, count, *rng.sample(choices, rng.randrange(1, 4)))
        return span(kind, first, count)

    ops: list[Op] = []
    for _ in range(240):
        op = {**one(), "dt": rng.choice((0, 500, 2000, 4000))}
        ops.append(op)
        if op["op"] == "munmap":
            where = {key: op[key] for key in ("start_page", "npages")}
            ops.append({"op": "mmap", **where, "prot": "rw", "kind": "anon", "dt": 10})
    return header, ops


SCENARIOS = (
    attribute_checks,
    splits,
    huge_pages,
    windows,
    best_location,
    deferred_munmap,
    xnack_off,
    prefetches,
    eviction,
    special_gpus,
    mapping_kinds,
    kernel_612,
    kernel_61,
    random_two_gpus,
)


# ---- recording -----------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Tuples as lists, enumerations as numbers."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def recorded(process: Any, step: Op) -> Op:
    """Plays one step and adds every result to it."""
    got = _play(process, step)
    out: Op = {"ret": got.ret}
    if step["op"] == "fault":
        out["reason"] = got.reason
        if got.best_loc is not None:
            out |= {"best_loc": got.best_loc, "window": got.window, "migration": got.migration}
        out |= {k: True for k in ("vram_fallback", "unregistered") if getattr(got, k)}
    if step["op"] == "get_attr" and got.out is not None:
        out["out"] = [
            [Attribute(kind).name if kind in Attribute else kind, value] for kind, value in got.out
        ]
    out |= {name: getattr(got, name) for name in _EFFECTS if getattr(got, name)}
    if step["op"] != "ih" and process.pending():
        out["pending"] = process.pending()
    if process.restore_pending:
        out["restore_pending"] = True
    return {key: plain(value) for key, value in out.items()}


def lines(make: Any) -> Iterator[str]:
    """The lines of one vector file."""
    header, ops = make()
    header = {
        "format": "kfd-svm-vectors/1",
        "name": f"own_{make.__name__}",
        "kernel": "7.3",
        "accounting": "exact",
        "xnack": 1,
        "max_svm_range_pages": 1 << 18,
        "default_granularity": 9,
        "t0_us": 1_000_000,
        **header,
        "range_fields": RANGE_FIELDS,
        "counter_fields": COUNTER_FIELDS,
        "ops": len(ops),
    }
    header.setdefault("full_dump_every", 4)
    yield json.dumps(header, separators=(",", ":"))
    process = _process(header, reference=True)
    every = header["full_dump_every"]
    before: dict[int, list[int]] = {}
    t_us = header["t0_us"]
    for number, op in enumerate(ops):
        t_us += op.pop("dt", 10_000)
        step = {"i": number, "t_us": t_us, **op}
        step |= recorded(process, step)
        now = {row[0]: plain(row) for row in process.ranges()}
        if (number + 1) % every == 0:
            step["ranges"] = list(now.values())
        else:
            step["set"] = [row for start, row in now.items() if before.get(start) != row]
            step["del"] = [start for start in before if start not in now]
        step["nranges"] = len(now)
        if every <= 4 or (number + 1) % every == 0:
            step |= {"list": process.starts(), "counters": plain(process.counters())}
        before = now
        yield json.dumps(step, separators=(",", ":"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    wrong = 0
    wanted = set()
    for make in SCENARIOS:
        text = "\n".join(lines(make)) + "\n"
        packed = make is random_two_gpus
        path = options.out / f"own_{make.__name__}.jsonl{'.gz' if packed else ''}"
        wanted.add(path.name)
        if options.check:
            there = path.read_bytes() if path.exists() else b""
            there = gzip.decompress(there) if packed and there else there
            if there != text.encode():
                print(f"{path.name}: differs from what the specification does now")
                wrong += 1
        else:
            data = text.encode()
            path.write_bytes(gzip.compress(data, 9, mtime=0) if packed else data)
            print(f"{path.name}: {text.count(chr(10)) - 1} steps")
    for path in sorted(options.out.iterdir()):
        if path.name not in wanted:
            print(f"{path.name}: no scenario makes it")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
