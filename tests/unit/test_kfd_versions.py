"""What differs between driver versions: a test a row of the comparison, on both twins.

The name of a test is the row; 7.3 stands beside the older version for contrast.
Rows without a trace in the model's results have no test here: the event at the
end of a failed migration, the heap test whose meaning is the same everywhere,
and the driver's own page count of a partly file-backed range.
"""

from __future__ import annotations

from typing import Any

import pytest

from svmcore.machine import Gpu
from svmcore.policies._kfd import KfdProcess
from svmcore.policies.kernels import kernel_rules
from svmcore.policies.outcome import Outcome
from svmcore.reference import KfdReference

A, B, C = 0x1001, 0x1002, 0x1003
#: A and B are a hive, C stands alone.
GPUS = (Gpu(A, 8192, hive=1), Gpu(B, 8192, hive=1), Gpu(C, 8192))
PREFERRED, PREFETCH, ACCESS, IN_PLACE, NO_ACCESS, SET_FLAGS, CLR_FLAGS, GRANULARITY = range(8)
GPU_RO, ALWAYS_MAPPED, COHERENT = 0x08, 0x40, 0x02
EIO, EFAULT, EINVAL, ENOSPC, EOVERFLOW, ENOMEM = -5, -14, -22, -28, -75, -12
FIRST = 512 * 8
LATER = 3_000_000  # past the window of duplicate faults


class Driven:
    """A process of one version, a step at a time."""

    def __init__(self, make: type, kernel: str, gpus: tuple[Gpu, ...] = GPUS, **more: Any) -> None:
        options = {"xnack": True, "kernel": kernel, "max_svm_range_pages": 4096, **more}
        self.process = make(gpus, **options)
        self.now = 1_000_000
        self.process.mmap(FIRST, FIRST + 8191)

    def __call__(self, name: str, *args: Any, settle: bool = True) -> Outcome:
        """Do it 3 ms later, and what it leaves pending unless told not to *settle*."""
        self.now += LATER
        self.process.begin(self.now)
        ret = getattr(self.process, name)(*args)
        if settle:
            self.process.run_deferred()
            self.process.run_restore()
        self.process.check()
        return self.process.finish(ret if isinstance(ret, int) else 0)

    def set_attr(self, first: int, pages: int, *attrs: tuple[int, int]) -> Outcome:
        return self("set_attr", first << 12, pages << 12, list(attrs))

    def get_attr(self, first: int, pages: int, kind: int) -> int:
        return self("get_attr", first << 12, pages << 12, [(kind, 0)]).out[0][1]

    def row(self, page: int) -> tuple[int, ...]:
        return next(r for r in self.process.ranges() if r[0] <= page <= r[1])

    def actual(self, page: int) -> int:
        return self.row(page)[4]

    def mapped(self, page: int) -> int:
        return self.row(page)[9]

    def spans(self) -> list[tuple[int, ...]]:
        return [r[:2] for r in self.process.ranges()]


@pytest.fixture(params=[KfdReference, KfdProcess], ids=["reference", "compiled"])
def make(request: pytest.FixtureRequest) -> type:
    return request.param


every = pytest.mark.parametrize("kernel", ["7.3", "6.12", "6.1"])


@every
def test_gpu_fault_moves(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 2048, (GRANULARITY, 4))
    result = d("fault", A, FIRST + 20, False)
    window = (FIRST, FIRST + 2047) if kernel == "6.1" else (FIRST + 16, FIRST + 31)
    assert result.window == window
    assert [row[:2] for row in result.migr] == [window]
    # Where the range already is: 6.1 moves nothing and tries nothing.
    result = d("fault", A, FIRST + 20, False)
    assert result.reason == "ok"
    assert bool(result.migr) == (kernel != "6.1")


@every
def test_gpu_fault_maps(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 2048, (GRANULARITY, 4), (PREFERRED, 0))
    result = d("fault", A, FIRST + 20, False)
    window = (FIRST, FIRST + 2047) if kernel == "6.1" else (FIRST + 16, FIRST + 31)
    assert [row[1:3] for row in result.map] == [window]
    assert result.migr == []


@every
def test_cpu_fault(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 2048, (GRANULARITY, 4), (PREFETCH, A))
    spans = d.spans()
    result = d("cpu_access", FIRST + 20, settle=False)
    piece = (FIRST + 16, FIRST + 31)
    assert [row[:2] for row in result.migr] == [piece]
    pending = d.process.pending()
    assert d.process.where(FIRST + 20) == 0
    assert d.process.where(FIRST) == d.process.where(FIRST + 32) == 1
    if kernel != "6.1":
        assert pending == []
        assert d.spans() == spans
        return
    last = spans[0][1]
    assert pending == [
        (*piece, "update_notifier", 0),
        (FIRST, FIRST + 15, "add", 1),
        (FIRST + 32, last, "add", 1),
    ]
    # While children are pending a fault comes again, in the piece; the children are skipped.
    assert d("fault", A, FIRST + 20, False, settle=False).reason == "retry_later"
    assert d("fault", A, FIRST, False, settle=False).reason == "skip_recover"
    d("run_deferred")
    assert d.spans()[:3] == [(FIRST, FIRST + 15), piece, (FIRST + 32, last)]
    # A fault in a pending child splits the child, below the same parent.
    d("cpu_access", FIRST + 100, settle=False)
    d("cpu_access", FIRST + 200, settle=False)
    assert [row[3] for row in d.process.pending()] == [0, 1, 1, 1, 1]
    d("run_deferred")
    assert d.process.where(FIRST + 200) == 0
    assert d.actual(FIRST + 200) == 0
    assert d.actual(FIRST + 130) == A


@every
def test_cpu_fault_leaves_a_whole_piece(make: type, kernel: str) -> None:
    """Borders of the granularity outside the range: nothing to split."""
    d = Driven(make, kernel)
    d.set_attr(FIRST + 3, 40, (GRANULARITY, 9), (PREFETCH, A))
    d("cpu_access", FIRST + 20, settle=False)
    assert d.process.pending() == []
    assert d.spans() == [(FIRST + 3, FIRST + 42)]
    assert d.actual(FIRST + 20) == 0


@every
def test_actual_loc(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (GRANULARITY, 4), (PREFETCH, A))
    d("cpu_access", FIRST + 20)
    # A range is whole in one place in 6.1; later a part may be elsewhere.
    assert d.actual(FIRST + 20) == (0 if kernel == "6.1" else A)
    assert d.row(FIRST + 20)[10] == (0 if kernel == "6.1" else 48)


@every
def test_prefetch_to_current_location(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFETCH, A))
    result = d.set_attr(FIRST, 64, (PREFETCH, A))
    assert result.ret == 0
    assert bool(result.migr) == (kernel != "6.1")


@every
@pytest.mark.parametrize("what", ["vram_fail", "copy_fail"])
def test_prefetch_vram_failure(make: type, kernel: str, what: str) -> None:
    d = Driven(make, kernel)
    d("inject", what, 1)
    error = ENOMEM if what == "vram_fail" else EIO
    assert d.set_attr(FIRST, 64, (PREFETCH, A)).ret == (error if kernel == "6.1" else 0)
    assert d.process.where(FIRST) <= 0


@every
def test_error_in_set_attr_mapping_loop(make: type, kernel: str) -> None:
    d = Driven(make, kernel, xnack=False, max_svm_range_pages=512)
    d("inject", "hmm_retry", 1)
    # The last of three ranges is mapped first and fails.
    result = d.set_attr(FIRST, 1536, (ACCESS, A))
    assert result.ret == -11
    done = [row[:2] for row in d.process.ranges() if row[11]]
    expected = [(FIRST, FIRST + 511), (FIRST + 512, FIRST + 1023)]
    assert done == ([] if kernel == "6.1" else expected)


@every
@pytest.mark.parametrize("given", [4, 12, 63])
def test_default_granularity(make: type, kernel: str, given: int) -> None:
    d = Driven(make, kernel, default_granularity=given)
    expected = 9 if kernel == "6.1" else min(given, 27)
    assert d.get_attr(FIRST, 1, GRANULARITY) == expected
    d.set_attr(FIRST, 1)
    assert d.row(FIRST)[5] == expected


@every
def test_unregistered_block(make: type, kernel: str) -> None:
    d = Driven(make, kernel, default_granularity=4)
    result = d("fault", A, FIRST + 20, False)
    assert result.unregistered
    block = (FIRST, FIRST + 511) if kernel == "6.1" else (FIRST + 16, FIRST + 31)
    assert d.spans() == [block]


@every
@pytest.mark.parametrize("kind", ["heap", "stack", "anon"])
def test_heap_and_stack(make: type, kernel: str, kind: str) -> None:
    d = Driven(make, kernel)
    d.process.mmap(1 << 20, (1 << 20) + 511, "rw", kind)
    result = d("fault", A, 1 << 20, False)
    assert result.best_loc == (A if kind == "anon" else 0)


@every
def test_max_svm_range_pages(make: type, kernel: str) -> None:
    gpus = (Gpu(A, 1 << 20), Gpu(B, 1 << 16))
    d = Driven(make, kernel, gpus=gpus, max_svm_range_pages=None)
    # The smallest of the devices decides: 2**16 pages are 256 MiB, a 32nd page by page.
    d.set_attr(FIRST, 8192)
    assert d.spans() == [(FIRST + i, FIRST + i + 2047) for i in range(0, 8192, 2048)]


@every
@pytest.mark.parametrize("start", [100, 512, 513, 700, 1100])
@pytest.mark.parametrize("pages", [1536, 2048])
def test_remap_list_of_heads(make: type, kernel: str, start: int, pages: int) -> None:
    d = Driven(make, kernel, xnack=False, max_svm_range_pages=4096)
    d.set_attr(FIRST, pages, (ACCESS, A))
    result = d.set_attr(FIRST + start, pages - start, (GRANULARITY, 3))
    mapped = (A, FIRST, FIRST + start - 1, 0, 1) in result.map
    if kernel == "6.1":
        assert not mapped
    elif kernel == "6.12":  # the last aligned border from "last", alignment of the head's last
        assert mapped == (start < pages - 512 and (start - 1) % 512 != 0)
    else:
        assert mapped == (start < pages and start % 512 != 0)


@every
@pytest.mark.parametrize("start", [100, 512, 513, 700, 1100])
@pytest.mark.parametrize("pages", [1536, 2048])
def test_remap_list_of_tails(make: type, kernel: str, start: int, pages: int) -> None:
    d = Driven(make, kernel, xnack=False, max_svm_range_pages=4096)
    d.set_attr(FIRST, pages, (ACCESS, A))
    result = d.set_attr(FIRST, start, (GRANULARITY, 3))
    mapped = (A, FIRST + start, FIRST + pages - 1, 0, 1) in result.map
    if kernel == "6.1":
        assert not mapped
    elif kernel == "6.12":
        assert mapped == (start < pages - 512 and start % 512 != 0)
    else:
        assert mapped == (start < pages and start % 512 != 0)


@every
def test_same_attributes_skip(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (GRANULARITY, 4))
    # Never mapped: later versions work on it again, and so cut it.
    d.set_attr(FIRST + 8, 8, (GRANULARITY, 4))
    assert len(d.spans()) == (1 if kernel == "6.1" else 3)


@every
def test_same_attributes_skip_once_mapped(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFERRED, 0))
    d("fault", A, FIRST, False)
    d.set_attr(FIRST + 8, 8, (PREFERRED, 0))
    # 7.3 goes by mapping_done, which an unmap leaves; 6.12 by the mapped bit.
    assert len(d.spans()) == 1
    d("invalidate", FIRST, FIRST + 63)
    d.set_attr(FIRST + 8, 8, (PREFERRED, 0))
    assert len(d.spans()) == (3 if kernel == "6.12" else 1)


@every
@pytest.mark.parametrize("kind", [ACCESS, IN_PLACE, NO_ACCESS])
def test_access_with_xnack_on(make: type, kernel: str, kind: int) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (IN_PLACE, A), (PREFERRED, 0))
    d("fault", A, FIRST, False)
    result = d.set_attr(FIRST, 64, (kind, B))
    # B was in access: ACCESS is equal and skipped where that suffices.
    changed = kind != ACCESS
    mapped = {row[0] for row in result.map}
    if kernel == "6.1" and changed:
        assert mapped == ({A, B} if kind == IN_PLACE else {A})
    else:
        assert mapped == set()


@every
def test_no_access_unmaps(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFERRED, 0))
    d("fault", A, FIRST, False)
    result = d.set_attr(FIRST, 64, (NO_ACCESS, A))
    gone = [(A, FIRST, FIRST + 63, "unmap_from_cpu")]
    assert result.unmap == (gone if kernel == "7.3" else [])
    assert d.process.mapped(0, FIRST) == (kernel != "7.3")


@every
def test_mapped_state(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFERRED, 0), (NO_ACCESS, C))
    d("fault", B, FIRST, False)
    assert d.mapped(FIRST) == (0b010 if kernel == "7.3" else 1)
    result = d("invalidate", FIRST, FIRST + 63)
    # One bit for the range: an unmap goes to every GPU with access, mapped or not.
    assert [row[0] for row in result.unmap] == ([B] if kernel == "7.3" else [A, B])
    assert d.mapped(FIRST) == 0


@every
def test_xnack_on_all_mapping_set(make: type, kernel: str) -> None:
    """aip, the GPU with the pages if it is in access, and what stands in for none of them."""
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (IN_PLACE, B), (PREFETCH, A))
    assert d.mapped(FIRST) == (0b011 if kernel == "7.3" else 1)
    assert d.process.mapped(0, FIRST)
    assert d.process.mapped(1, FIRST)
    assert not d.process.mapped(2, FIRST)


@every
def test_xnack_on_all_mapping_set_if_mapped(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFERRED, 0))
    d("fault", C, FIRST, False)
    result = d.set_attr(FIRST, 64, (SET_FLAGS, GPU_RO))
    # 7.3 knows who is mapped; before, a mapped range is mapped on all GPUs with access.
    assert [row[0] for row in result.map] == ([C] if kernel == "7.3" else [A, B, C])


@every
def test_xnack_on_all_mapping_set_if_always_mapped(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    result = d.set_attr(FIRST, 64, (SET_FLAGS, ALWAYS_MAPPED))
    assert [row[0] for row in result.map] == ([] if kernel == "6.1" else [A, B, C])


@every
def test_stale_faults_after_munmap(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64)
    d("set_ring", A, 100, True)
    d("munmap", FIRST, FIRST + 7, settle=False)
    # 6.1 drops every fault of every GPU until the work is done, then none.
    for gpu, ts, reason in ((A, 100, "stale"), (A, 99, "stale"), (B, 50, "retry_later")):
        result = d("fault", gpu, FIRST + 20, False, ts, settle=False)
        assert result.reason == ("draining" if kernel == "6.1" else reason)
    d("run_deferred")
    result = d("fault", A, FIRST + 20, False, 100)
    assert result.reason == ("ok" if kernel == "6.1" else "stale")
    assert d("fault", A, FIRST + 20, False, 101).reason == "ok"
    # A newer one has cleared it.
    assert d("fault", A, FIRST + 20, False, 100).reason == "ok"


@every
def test_stale_faults_after_no_access(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFERRED, 0))
    d("fault", A, FIRST, False)
    d("set_ring", B, 100, True)
    d.set_attr(FIRST, 64, (NO_ACCESS, A))
    result = d("fault", B, FIRST, False, 100)
    assert result.reason == ("stale" if kernel == "7.3" else "ok")


@every
def test_access_is_newer_than_the_ring(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64)
    d("set_ring", A, (1 << 48) - 1, True)
    d("munmap", FIRST, FIRST + 7)
    assert d.process.access(1, FIRST + 20, FIRST + 20, False)[:3] == (0, "ok", 1)


@every
def test_eagain_fault_counted(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64)
    d("inject", "hmm_retry", 1)
    assert d("fault", A, FIRST, False).reason == "retry_later"
    assert d.process.counters()[0][0] == (1 if kernel == "6.1" else 0)


@every
def test_apu_rule(make: type, kernel: str) -> None:
    d = Driven(make, kernel, gpus=(Gpu(A, 8192, apu=True), Gpu(B, 8192)))
    d.set_attr(FIRST, 64)
    result = d("fault", A, FIRST, False)
    assert result.best_loc == (A if kernel == "6.1" else 0)
    d.set_attr(FIRST + 64, 64, (PREFETCH, A))
    assert d.actual(FIRST + 64) == (A if kernel == "6.1" else 0)


@every
def test_vram_limit_reservation(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d("inject", "limit_fail", 1)
    d.set_attr(FIRST, 64, (PREFETCH, A))
    # 6.1 never asks, so the failure still waits there and the pages have moved.
    assert d.actual(FIRST) == (A if kernel == "6.1" else 0)


@every
def test_vram_limit_without_reservation(make: type, kernel: str) -> None:
    """A range larger than the memory: 6.1 finds out at the object, after evicting the others."""
    gpus = (Gpu(A, 100),)
    d = Driven(make, kernel, gpus=gpus, evict_on_full=True)
    d.set_attr(FIRST, 50, (PREFETCH, A))
    result = d.set_attr(FIRST + 512, 101, (PREFETCH, A))
    assert result.ret == (ENOMEM if kernel == "6.1" else 0)
    assert d.process.where(FIRST) == (0 if kernel == "6.1" else 1)
    assert d.process.where(FIRST + 512) <= 0


@every
def test_eviction(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFETCH, A))
    result = d("evict", FIRST)
    assert result.bo_evict == ([(0, 64)] if kernel == "7.3" else [])
    assert [row[4] for row in result.migr] == ["ttm_evict"]
    assert d.process.where(FIRST) == 0


@every
@pytest.mark.parametrize("name", ["set_attr", "get_attr"])
def test_overflow_check(make: type, kernel: str, name: str) -> None:
    d = Driven(make, kernel)
    addr = FIRST << 12
    for size in ((1 << 64) - addr, (1 << 64) - 4096):
        result = d(name, addr, size, [])
        assert result.ret == (EFAULT if kernel == "6.1" else EOVERFLOW)


def test_point_releases_and_unknown_versions() -> None:
    assert kernel_rules("6.1.176") is kernel_rules("6.1")
    assert kernel_rules("6.12.117") is kernel_rules("6.12")
    for version in ("6.13", "6.11", "7", ""):
        with pytest.raises(ValueError, match=r"expected one of 7\.3, 6\.12, 6\.1"):
            kernel_rules(version)


# ---- pending pieces --------------------------------------------------------------------


@every
def test_a_pending_unmap_does_not_come_back(make: type, kernel: str) -> None:
    """Mapped again and unmapped in part before the work ran: no piece of it lives on."""
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFETCH, A))
    d("munmap", FIRST + 8, FIRST + 31, settle=False)
    d("mmap", FIRST + 8, FIRST + 31, settle=False)
    d("munmap", FIRST + 12, FIRST + 15, settle=False)
    assert d.process.pending() == [
        (FIRST, FIRST + 7, "update_notifier", 0),
        (FIRST + 8, FIRST + 31, "unmap", 1),
        (FIRST + 32, FIRST + 63, "add", 1),
    ]
    d("run_deferred")
    assert d.spans() == [(FIRST, FIRST + 7), (FIRST + 32, FIRST + 63)]


@every
def test_a_whole_pending_unmap_is_not_cut(make: type, kernel: str) -> None:
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFETCH, A))
    d("munmap", FIRST, FIRST + 63, settle=False)
    d("mmap", FIRST, FIRST + 63, settle=False)
    d("munmap", FIRST + 8, FIRST + 15, settle=False)
    assert d.process.pending() == [(FIRST, FIRST + 63, "unmap", 0)]
    d("run_deferred")
    assert d.spans() == []
    assert d.process.counters()[0][3] == 0


@every
def test_an_access_that_never_resolves_ends(make: type, kernel: str) -> None:
    """A write to a range that GPUs may only read, kept mapped: faults and restores alternate."""
    d = Driven(make, kernel, gpus=GPUS[:1])
    d.set_attr(FIRST, 64, (SET_FLAGS, ALWAYS_MAPPED | GPU_RO))
    ret, reason, *_ = d.process.access(1, FIRST, FIRST, True)
    assert (ret, reason) == (-40, "never_resolves")


@every
def test_an_eviction_ends_the_pointer_to_a_living_object(make: type, kernel: str) -> None:
    """A pinned page keeps the object; the piece that left makes a new one of its own size."""
    d = Driven(make, kernel)
    d.set_attr(FIRST, 64, (PREFETCH, A))
    d.set_attr(FIRST, 32, (GRANULARITY, 3))
    d("pin", FIRST + 40, FIRST + 40)
    assert d("evict", FIRST).warn == ["bo_not_last_ref"]
    assert (d.actual(FIRST), d.actual(FIRST + 40)) == (0, A)
    d("fault", A, FIRST, False)
    assert d.process.counters()[0][3] == 64 + 32
