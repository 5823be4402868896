"""The executable specification: short, slow, readable; the oracle of the compiled core.

Everything here has a compiled twin that a property test holds equal after every
step. Pages are 4 KiB page numbers, bounds inclusive, times in ns. Section
numbers in comments are those of the KFD chapter in ``docs/explain/kfd.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedDict

from .attributes import (
    DEFAULT_FLAGS,
    GRANULARITY_MAX,
    LOCATION_SYSTEM,
    LOCATION_UNDEFINED,
    Attribute,
    Flag,
)
from .errors import Errno
from .machine import Gpu
from .policies.kernels import kernel_rules
from .policies.outcome import Outcome

__all__ = ["KfdReference", "RangeMap"]

TOP_PAGE = (1 << 64) - 1
DUPLICATE_WINDOW_NS = 2_000_000
BLOCK = 512
RESTORE_DELAY_NS = 1_000_000
MIGRATION_ROUNDS = 3
#: Deliveries of one access without progress before it is fatal.
RETRIES = 16


class RangeMap:
    """Disjoint spans of pages with a value each; a hole has the value 0.

    Parameters
    ----------
    merge : bool
        Join equal neighbours (a plain map). Without it they stay apart, as
        driver ranges do.
    """

    def __init__(self, *, merge: bool = False) -> None:
        self.merge = merge
        self._spans: SortedDict[int, tuple[int, Any]] = SortedDict()

    def find(self, page: int) -> tuple[int, int, Any]:
        """First page, last page and value of the entry (or hole) that holds *page*."""
        index = self._spans.bisect_right(page)
        keys = self._spans.keys()
        low = 0
        if index:
            first = keys[index - 1]
            last, value = self._spans[first]
            if page <= last:
                return first, last, value
            low = last + 1
        return low, keys[index] - 1 if index < len(keys) else TOP_PAGE, 0

    def assign(self, first: int, last: int, value: Any) -> None:
        """Overwrite ``[first, last]``; what sticks out of it keeps its value."""
        for start, end, old in list(self.items(first, last)):
            del self._spans[start]
            if start < first:
                self._spans[start] = (first - 1, old)
            if end > last:
                self._spans[last + 1] = (end, old)
        if value == 0:
            return
        if self.merge:
            before, after = self.find(first - 1) if first else None, None
            if last < TOP_PAGE:
                after = self.find(last + 1)
            if before and before[2] == value:
                del self._spans[before[0]]
                first = before[0]
            if after and after[2] == value:
                del self._spans[after[0]]
                last = after[1]
        self._spans[first] = (last, value)

    def items(self, first: int = 0, last: int = TOP_PAGE) -> Iterator[tuple[int, int, Any]]:
        """Entries that overlap ``[first, last]``, in order, holes left out."""
        index = self._spans.bisect_right(first)
        if index and self._spans.peekitem(index - 1)[1][0] >= first:
            index -= 1
        while index < len(self._spans):
            start, (end, value) = self._spans.peekitem(index)
            if start > last:
                return
            yield start, end, value
            index += 1

    def __len__(self) -> int:
        return len(self._spans)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: an exception inside leaves the map as it was before."""
        saved = self._spans.copy()
        try:
            yield
        except BaseException:
            self._spans = saved
            raise


@dataclass(eq=False)
class Bo:
    """A VRAM object: as large as the range was when its pages first moved."""

    gpu: int
    npages: int
    pages: int = 0
    #: Ranges that hold a reference to it.
    holders: set[Range] = field(default_factory=set)
    #: Ranges that an eviction visits, in its order.
    ranges: list[Range] = field(default_factory=list)


@dataclass(eq=False)
class Range:
    """State of one driver range (section 2)."""

    start: int
    last: int
    preferred: int = LOCATION_UNDEFINED
    prefetch: int = LOCATION_UNDEFINED
    actual: int = LOCATION_SYSTEM
    granularity: int = 9
    flags: int = DEFAULT_FLAGS
    access: int = 0
    aip: int = 0
    mapped: int = 0
    needs_unmap: int = 0
    vram_pages: int = 0
    mapping_done: bool = False
    validate_ns: int = 0
    bo: Bo | None = None
    has_bo: bool = False
    invalid: int = 0
    #: Deferred operation: "", "unmap", "update_notifier", or "add" for a child.
    pending: str = ""
    children: list[Range] = field(default_factory=list)
    is_child: bool = False


@dataclass
class Vma:
    """One CPU mapping."""

    first: int
    last: int
    prot: str
    kind: str

    @property
    def device(self) -> bool:
        return self.kind in ("io", "pfnmap")


@dataclass
class Touch:
    """One access on its way."""

    ret: int = 0
    reason: str = "ok"
    faults: int = 0
    duplicates: int = 0
    remote: int = 0
    page: int = 0


def _bits(mask: int) -> Iterator[int]:
    index = 0
    while mask >> index:
        if mask >> index & 1:
            yield index
        index += 1


class KfdReference:
    """One process under the KFD SVM driver.

    Parameters
    ----------
    gpus : sequence of Gpu
        GPUs of the process; the position is the bit number in the bitmaps.
    xnack : bool
        GPU page faults are retried (on) or fatal (off).
    kernel : str
        Driver version, see :func:`svmcore.policies.kernels.kernel_rules`.
    max_svm_range_pages : int, optional
        Largest range made at once; from the GPUs' memory when not given.
    default_granularity : int
        Module parameter, log2 pages, capped at 27.
    evict_on_full : bool
        A full VRAM evicts the oldest objects; else the allocation fails.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        xnack: bool,
        kernel: str = "7.3",
        max_svm_range_pages: int | None = None,
        default_granularity: int = 9,
        evict_on_full: bool = False,
    ) -> None:
        self.gpus = list(gpus)
        self.rules = kernel_rules(kernel)
        self.xnack = bool(xnack)
        self.evict_on_full = evict_on_full
        self.granularity = min(default_granularity, 27) if self.rules.granularity_parameter else 9
        self.max_pages = max_svm_range_pages or min(
            (_largest_range(gpu.vram_pages) for gpu in gpus), default=1 << 18
        )
        self.supported = sum(1 << i for i, gpu in enumerate(gpus) if gpu.svm)
        self._index = {gpu.id: i for i, gpu in enumerate(gpus)}
        self.now = 0
        self.tree = RangeMap()  # notifier interval -> Range
        self.order: list[Range] = []  # the process's list
        self.deferred: list[Range] = []
        self.vmas = RangeMap()
        self.system: set[int] = set()
        self.vram: dict[int, Bo] = {}
        self.pinned: set[int] = set()
        self.ptes: list[dict[int, bool]] = [{} for _ in gpus]  # page -> writable
        self.bos: list[Bo] = []
        self.buffers: list[tuple[int, int]] = []  # of the ordinary memory API
        self.userptrs: list[tuple[int, int]] = []
        self.checkpoint_ts = [0] * len(gpus)
        self.ring_ts: list[int | None] = [None] * len(gpus)
        self.draining = False  # 6.1: munmap drains all faults
        self.fail = dict.fromkeys(("vram_fail", "limit_fail", "copy_fail", "hmm_retry"), 0)
        self.process_state = ""
        self.restore_pending = False
        self.restore_ns = 0  # when it is due
        self.evicted_ranges = 0
        self.touch = Touch()
        self.refused = False  # the last set_attr ended before it waited for pending work
        self.faults = [0] * len(gpus)
        self.page_in = [0] * len(gpus)
        self.page_out = [0] * len(gpus)
        self.result = Outcome()

    # ---- operations ------------------------------------------------------------------

    def begin(self, t_ns: int) -> Outcome:
        """Start an operation at *t_ns*; its effects are collected in the result."""
        self.now = t_ns
        self.result = Outcome()
        return self.result

    def finish(self, ret: int = 0) -> Outcome:
        """End the operation; its result with every effect in order."""
        self.result.ret = ret
        return self.result

    def mmap(self, first: int, last: int, prot: str = "rw", kind: str = "anon") -> int:
        """A CPU mapping appears; EEXIST where one is already."""
        if any(True for _ in self.vmas.items(first, last)):
            return -Errno.EEXIST
        self.vmas.assign(first, last, Vma(first, last, prot, kind))
        return 0

    def munmap(self, first: int, last: int) -> int:
        """CPU mappings go; ranges follow by deferred work (section 13)."""
        if not any(True for _ in self.vmas.items(first, last)):
            return 0
        for _, _, node in list(self.tree.items(first, last)):
            self._notify_unmap(node, first, last)
        for page in self._present(first, last):
            self._drop_page(page)
            self.system.discard(page)
        self.pinned = {p for p in self.pinned if not first <= p <= last}
        for table in self.ptes:  # no GPU keeps a way to memory that is gone
            for page in [p for p in table if first <= p <= last]:
                del table[page]
        self._cut_vmas(first, last)
        for start, end, _ in list(self.vmas.items(first, last)):
            self.vmas.assign(start, end, 0)
        return 0

    def mprotect(self, first: int, last: int, prot: str) -> int:
        """Protection changes; a hole stops it with ENOMEM (section 19.4)."""
        page = first
        while page <= last:
            vma = self._vma(page)
            if vma is None:
                return -Errno.ENOMEM
            end = min(vma.last, last)
            self._cut_vmas(page, end)
            vma = self._vma(page)
            assert vma is not None
            if vma.prot != prot:
                vma.prot = prot
                if next(iter(self._present(page, end)), None) is not None:
                    self._notify(page, end, "notify")
            page = end + 1
        return 0

    def invalidate(self, first: int, last: int) -> int:
        """CPU page tables change without data loss."""
        self._notify(first, last, "notify")
        return 0

    def set_attr(self, addr: int, size: int, attrs: Sequence[tuple[int, int]], op: int = 0) -> int:
        """``KFD_IOCTL_SVM_OP_SET_ATTR`` on bytes ``[addr, addr + size)`` (sections 3 to 8)."""
        error = self._check_ioctl(addr, size, op) or self._check_attributes(attrs)
        self.refused = bool(error)
        if error:
            return error
        self.run_deferred()
        error = self._check_address(addr, size)
        if error:
            return error
        first, last = addr >> 12, (addr + size - 1) >> 12
        update, insert, remove, remap = self._add(first, last, attrs)
        remap_all = False
        for node in update:
            remap_all |= self._apply(node, attrs)
        for node in remove:
            self._unlink(node)
        for node in insert:
            self._link(node)
        remap_all |= not self.xnack and bool(remap)
        error = 0
        for node in update:
            node_error = self._update(node, remap_all)
            error = node_error or error
            if node_error and self.rules.mapping_error_stops:
                return error
        for node in remap:
            error = self._map(node, node.start, node.last, None) or error
        return error

    def get_attr(self, addr: int, size: int, attrs: Sequence[tuple[int, int]]) -> int:
        """``KFD_IOCTL_SVM_OP_GET_ATTR`` (section 15b); the values are in ``result.out``."""
        error = self._check_ioctl(addr, size, 1)
        if error:
            return error
        self.run_deferred()
        error = self._check_address(addr, size)
        if error:
            return error
        allowed = (0, 1, 2, 5, 6, 7)
        if any(kind not in allowed for kind, _ in attrs):
            return -Errno.EINVAL
        nodes = [n for _, _, n in self.tree.items(addr >> 12, (addr + size - 1) >> 12)]
        everyone = self.supported if self.xnack else 0
        access = self.supported if nodes else everyone
        aip = self.supported if nodes else 0
        set_flags = 0xFFFFFFFF if nodes else DEFAULT_FLAGS
        any_flags = 0 if nodes else DEFAULT_FLAGS
        for node in nodes:
            access &= node.access
            aip &= node.aip
            set_flags &= node.flags
            any_flags |= node.flags
        out: list[tuple[int, int]] = []
        for kind, value in attrs:
            if kind == Attribute.PREFERRED_LOC:
                out.append((kind, _common([n.preferred for n in nodes])))
            elif kind == Attribute.PREFETCH_LOC:
                out.append((kind, _common([n.prefetch for n in nodes])))
            elif kind == Attribute.SET_FLAGS:
                out.append((kind, set_flags))
            elif kind == Attribute.CLR_FLAGS:
                out.append((kind, ~any_flags & 0xFFFFFFFF))
            elif kind == Attribute.GRANULARITY:
                out.append((kind, min((n.granularity for n in nodes), default=self.granularity)))
            elif value not in self._index:
                return -Errno.EINVAL
            else:
                bit = 1 << self._index[value]
                answer = Attribute.NO_ACCESS
                if self.supported & bit:
                    if access & bit:
                        answer = Attribute.ACCESS
                    elif aip & bit:
                        answer = Attribute.ACCESS_IN_PLACE
                out.append((answer, value))
        self.result.out = out
        return 0

    def fault(self, gpu_id: int, page: int, write: bool, ts: int = 0) -> int:
        """One delivery of a GPU page fault (section 10)."""
        ret, self.result.reason = self._deliver(self._index.get(gpu_id), page, write, ts)
        return ret

    def cpu_access(self, page: int) -> int:
        """A CPU touch: 0, 2 for SIGBUS, EFAULT without a mapping (section 14)."""
        if self._vma(page) is None:
            return -Errno.EFAULT
        bo = self.vram.get(page)
        if bo is None:
            self.system.add(page)
            return 0
        if self.gpus[bo.gpu].coherent:
            return 0
        found = self._find(page)
        if found is None:
            return 2
        if found.actual == LOCATION_SYSTEM:
            return 0
        if self.rules.cpu_fault_splits:
            self._split_for_cpu(found, page)
            first, last = found.start, found.last
        else:
            first, last = self._window(found, page)
        return 2 if self._vram_to_ram(found, first, last, "cpu_fault") else 0

    def evict(self, page: int) -> int:
        """Memory pressure evicts the VRAM object of the range at *page*; -2 without one."""
        node = self._find(page)
        if node is None or not node.has_bo:
            return -Errno.ENOENT
        assert node.bo is not None
        self._evict(node.bo)
        return 0

    def inject(self, what: str, n: int) -> int:
        """The next *n* steps of a kind fail, or the process is in a state until reset."""
        if what in self.fail:
            self.fail[what] = n
        else:
            self.process_state = what if n else ""
        return 0

    def set_xnack(self, on: bool) -> None:
        """Switch the mode: ranges keep their bits, future defaults and rules change."""
        self.xnack = on

    def add_buffer(self, first: int, last: int) -> None:
        """Memory of the ordinary memory API lies at these pages."""
        self.buffers.append((first, last))

    def add_userptr(self, first: int, last: int) -> None:
        """These pages are registered through the other API."""
        self.userptrs.append((first, last))

    def pin(self, first: int, last: int) -> None:
        """These pages cannot move."""
        self.pinned.update(range(first, last + 1))

    def unpin(self) -> None:
        """Every page can move again."""
        self.pinned.clear()

    def set_ring(self, gpu_id: int, ts: int, pending: bool) -> None:
        """State of a GPU's retry-fault ring: its newest entry, or empty."""
        self.ring_ts[self._index[gpu_id]] = ts if pending else None

    def run_deferred(self) -> int:
        """Deferred list work, in list order (section 13)."""
        work, self.deferred = self.deferred, []
        for node in work:
            for child in node.children:
                child.is_child = False
                if child.pending == "unmap":
                    self._release(child)
                else:
                    self.tree.assign(child.start, child.last, child)
                    self.order.append(child)
                child.pending = ""
            gone, node.children = node.pending == "unmap", []
            node.pending = ""
            bounds = [(a, b) for a, b, n in self.tree.items() if n is node]
            for first, last in bounds:
                self.tree.assign(first, last, 0)
            if gone:
                self.order.remove(node)
                self._release(node)
            else:
                self.tree.assign(node.start, node.last, node)
        self.draining = False
        return 0

    def run_restore(self) -> int:
        """Restore work: map what was invalidated, then let the queues run (section 11)."""
        if not self.restore_pending:
            return 0
        failed = False
        for node in self.order:
            if node.invalid:
                if self._map(node, node.start, node.last, None):
                    failed = True
                else:
                    node.invalid = 0
        if failed:
            self.restore_ns = self.now + RESTORE_DELAY_NS
        else:
            self.restore_pending = False
            self.evicted_ranges = 0
            self.result.queues.append("resume")
        return 0

    def access(
        self, processor: int, first: int, last: int, write: bool
    ) -> tuple[int, str, int, int, int, int]:
        """A touch of pages by a processor until it is served or fatal.

        Parameters
        ----------
        processor : int
            0 the CPU, 1 + i GPU i.

        Returns
        -------
        tuple
            (ret, reason, faults, duplicates, remote page touches, page of a fatal
            end). The clock moves to the time of the last delivery.
        """
        self.step(self.now)
        self.touch = Touch()
        for page in range(first, last + 1):
            error = self._cpu_page(page, write) if processor == 0 else 0
            if processor:
                error = self._gpu_page(processor - 1, page, write)
            if error:
                self.touch.page = page
                break
        touch = self.touch
        return touch.ret, touch.reason, touch.faults, touch.duplicates, touch.remote, touch.page

    def step(self, t_ns: int) -> None:
        """Move the clock to *t_ns* and run what is due by then."""
        self.now = max(self.now, t_ns)
        if self.deferred:
            self.run_deferred()
        if self.restore_pending and self.now >= self.restore_ns:
            self.run_restore()

    # ---- views -----------------------------------------------------------------------

    def ranges(self) -> list[tuple[int, ...]]:
        """Every range in address order, in the field order of the vector files."""
        nodes = sorted((n for _, _, n in self.tree.items()), key=lambda n: n.start)
        lowest: dict[int, int] = {}
        for node in nodes:
            if node.has_bo:
                lowest.setdefault(id(node.bo), node.start)
        return [
            (
                n.start,
                n.last,
                n.preferred,
                n.prefetch,
                n.actual,
                n.granularity,
                n.flags,
                n.access,
                n.aip,
                n.mapped,
                n.vram_pages,
                int(n.mapping_done),
                n.validate_ns // 1000,
                self._count_vram(n),
                lowest[id(n.bo)] if n.has_bo else -1,
            )
            for n in nodes
        ]

    def starts(self) -> list[int]:
        """Range starts in the order of the process's list."""
        return [n.start for n in self.order]

    def pending(self) -> list[tuple[int, int, str, int]]:
        """Deferred work not yet run: each entry, then its children."""
        rows = []
        for node in self.deferred:
            rows.append((node.start, node.last, node.pending, 0))
            rows.extend((c.start, c.last, c.pending, 1) for c in node.children)
        return rows

    def counters(self) -> list[tuple[int, int, int, int, int]]:
        """A GPU: faults, pages in, pages out, pages of living objects (twice, as the driver)."""
        rows = []
        for i in range(len(self.gpus)):
            used = self._used(i)
            rows.append((self.faults[i], self.page_in[i], self.page_out[i], used, used))
        return rows

    def where(self, page: int) -> int:
        """Where one page is: -1 nowhere yet, 0 system memory, 1 + i GPU i."""
        bo = self.vram.get(page)
        return 1 + bo.gpu if bo is not None else 0 if page in self.system else -1

    def mapped(self, gpu: int, page: int, write: bool = False) -> bool:
        """Whether GPU *gpu* (its index) can touch the page without a fault."""
        return self._mapped_for(gpu, page, write)

    def page_states(self, first: int, last: int) -> list[bytes]:
        """Each page of a span at once, a byte a page.

        Where it is (255 nowhere yet, 0 system memory, 1 + i GPU i), then for
        each GPU what it may do without a fault (0 nothing, 1 read, 2 write).
        """
        rows = [bytearray(b"\xff") * (last - first + 1)]
        for page in self.system:
            if first <= page <= last:
                rows[0][page - first] = 0
        for page, bo in self.vram.items():
            if first <= page <= last:
                rows[0][page - first] = 1 + bo.gpu
        for table in self.ptes:
            row = bytearray(last - first + 1)
            for page, writable in table.items():
                if first <= page <= last:
                    row[page - first] = 1 + writable
            rows.append(row)
        return [bytes(row) for row in rows]

    def check(self) -> None:
        """Every invariant; AssertionError names the broken one."""
        previous = -1
        for first, last, node in self.tree.items():
            assert previous < first <= last, "ranges overlap"
            assert first <= node.start <= node.last <= last, "range outside its notifier"
            assert not node.access & node.aip, "a GPU in access and in place"
            assert node.vram_pages == self._count_vram(node) or node.pending, "vram_pages"
            assert (node.vram_pages > 0) <= node.has_bo, "VRAM pages without an object"
            if node.actual != LOCATION_SYSTEM:
                assert node.has_bo, "away from system memory without an object"
                assert node.bo is not None, "away from system memory without an object"
                assert self.gpus[node.bo.gpu].id == node.actual, "an object elsewhere"
            assert bool(node.pending) == (self.deferred.count(node) == 1), "pending work"
            assert bool(node.pending) >= bool(node.children), "children without pending work"
            assert not node.is_child, "a child in the tree"
            assert not node.needs_unmap, "an unmap left over"
            previous = last
        assert {id(n) for _, _, n in self.tree.items()} == {id(n) for n in self.order}, "list"
        assert not self.system & self.vram.keys(), "a page in two places"
        for bo in self.bos:
            assert bo.pages == sum(b is bo for b in self.vram.values()), "object page count"
            assert bo.pages or bo.holders, "an object that nothing refers to"
        for page, bo in self.vram.items():
            found = self._find(page)
            assert found is not None, "a page in GPU memory outside any range"
            assert found.bo is bo, "a page in another object than its range's"
        assert all(bo in self.bos for bo in self.vram.values()), "a page in a dead object"
        everywhere = self.system | self.vram.keys()
        assert all(page in everywhere for t in self.ptes for page in t), "a GPU maps no page"
        for i, gpu in enumerate(self.gpus):
            assert self._used(i) <= gpu.vram_pages, "VRAM over capacity"

    # ---- checks (sections 3 to 5) ----------------------------------------------------

    def _check_ioctl(self, addr: int, size: int, op: int) -> int:
        if (addr | size) & 0xFFF or addr == 0 or size == 0 or op not in (0, 1):
            return -Errno.EINVAL
        return 0

    def _check_attributes(self, attrs: Sequence[tuple[int, int]]) -> int:
        for kind, value in attrs:
            if kind == Attribute.PREFERRED_LOC:
                if value in (LOCATION_SYSTEM, LOCATION_UNDEFINED):
                    continue
            elif kind == Attribute.PREFETCH_LOC:
                if value == LOCATION_SYSTEM:
                    continue
            elif kind in (Attribute.SET_FLAGS, Attribute.CLR_FLAGS, Attribute.GRANULARITY):
                continue
            elif kind not in (Attribute.ACCESS, Attribute.ACCESS_IN_PLACE, Attribute.NO_ACCESS):
                return -Errno.EINVAL
            index = self._index.get(value)
            if index is None or not self.gpus[index].svm:
                return -Errno.EINVAL
        return 0

    def _check_address(self, addr: int, size: int) -> int:
        if addr + size >= 1 << 64:  # the end wraps to 0 or beyond
            return -(Errno.EOVERFLOW if self.rules.overflow_check else Errno.EFAULT)
        first, last = addr >> 12, (addr + size - 1) >> 12
        page = first
        while page <= last:
            vma = self._vma(page)
            if vma is None or vma.device:
                return -Errno.EFAULT
            page = vma.last + 1
        if any(a <= last and first <= b for a, b in self.buffers):
            return -Errno.EADDRINUSE
        return 0

    # ---- ranges (sections 6, 7) ------------------------------------------------------

    def _add(
        self, first: int, last: int, attrs: Sequence[tuple[int, int]]
    ) -> tuple[list[Range], list[Range], list[Range], list[Range]]:
        """Split and fill: lists update, insert, remove, remap, each filled at the head."""
        update: list[Range] = []
        insert: list[Range] = []
        remove: list[Range] = []
        remap: list[Range] = []
        new: list[Range] = []

        def fill(start: int, end: int) -> None:
            for piece in self._pieces(start, end):
                new.insert(0, piece)
                update.insert(0, piece)

        low = first
        for _, _, node in list(self.tree.items(first, last)):
            settled = node.mapping_done or not self.rules.same_needs_mapping
            if not (settled and self._same(node, attrs)):
                if node.start < low or node.last > last:
                    clone = self._clone(node)
                    remove.insert(0, node)
                    insert.insert(0, clone)
                    update.insert(0, clone)
                    if node.start < low:
                        again = self._cuts_huge(clone, low, head=True)
                        head = self._cut_head(clone, low)
                        insert.insert(0, head)
                        if again:
                            remap.insert(0, head)
                    if node.last > last:
                        again = self._cuts_huge(clone, last + 1, head=False)
                        tail = self._cut_tail(clone, last)
                        insert.insert(0, tail)
                        if again:
                            remap.insert(0, tail)
                else:
                    update.insert(0, node)
            if node.start > low:
                fill(low, node.start - 1)
            low = min(node.last, last) + 1
        if low <= last:
            fill(low, last)
        return update, new + insert, remove, remap

    def _pieces(self, first: int, last: int) -> Iterator[Range]:
        while first <= last:
            end = min(last, (first // self.max_pages + 1) * self.max_pages - 1)
            yield self._new_range(first, end)
            first = end + 1

    def _new_range(self, first: int, last: int) -> Range:
        access = self.supported if self.xnack else 0
        return Range(first, last, granularity=self.granularity, access=access)

    def _same(self, node: Range, attrs: Sequence[tuple[int, int]]) -> bool:
        for kind, value in attrs:
            bit = 1 << self._index.get(value, 64)
            same = {
                Attribute.PREFERRED_LOC: node.preferred == value,
                Attribute.PREFETCH_LOC: False,
                Attribute.ACCESS: bool(node.access & bit),
                Attribute.ACCESS_IN_PLACE: bool(node.aip & bit),
                Attribute.NO_ACCESS: not (node.access | node.aip) & bit,
                Attribute.SET_FLAGS: node.flags & value == value,
                Attribute.CLR_FLAGS: node.flags & value == 0,
                Attribute.GRANULARITY: node.granularity == value,
            }[Attribute(kind)]
            if not same:
                return False
        return True

    def _apply(self, node: Range, attrs: Sequence[tuple[int, int]]) -> bool:
        """Store the attributes in order; true when the range must be mapped again."""
        remap = False
        for kind, value in attrs:
            bit = 1 << self._index.get(value, 64)
            if kind == Attribute.PREFERRED_LOC:
                node.preferred = value
            elif kind == Attribute.PREFETCH_LOC:
                node.prefetch = value
            elif kind == Attribute.SET_FLAGS:
                node.flags |= value
                remap = True
            elif kind == Attribute.CLR_FLAGS:
                node.flags &= ~value
                remap = True
            elif kind == Attribute.GRANULARITY:
                node.granularity = min(value, GRANULARITY_MAX)
            else:
                remap |= not self.xnack or self.rules.access_remaps_with_xnack
                node.access &= ~bit
                node.aip &= ~bit
                if kind == Attribute.ACCESS:
                    node.access |= bit
                elif kind == Attribute.ACCESS_IN_PLACE:
                    node.aip |= bit
                elif node.mapped & bit and self.rules.no_access_unmaps:
                    node.needs_unmap |= bit
        return remap

    def _clone(self, node: Range) -> Range:
        clone = Range(
            node.start,
            node.last,
            preferred=node.preferred,
            prefetch=node.prefetch,
            actual=node.actual,
            granularity=node.granularity,
            flags=node.flags,
            access=node.access,
            aip=node.aip,
            mapped=node.mapped,
            vram_pages=node.vram_pages,
            mapping_done=node.mapping_done,
        )
        self._share_bo(node, clone)
        return clone

    def _share_bo(self, node: Range, other: Range) -> None:
        if node.has_bo:
            assert node.bo is not None
            other.bo, other.has_bo = node.bo, True
            node.bo.holders.add(other)
            node.bo.ranges.insert(0, other)

    def _cut(self, node: Range, first: int, last: int) -> Range:
        """A new piece ``[first, last]`` with *node*'s attributes (section 6.2)."""
        piece = self._clone(node)
        piece.start, piece.last = first, last
        piece.vram_pages = self._count_vram(piece)
        return piece

    def _cut_head(self, node: Range, start: int) -> Range:
        piece = self._cut(node, node.start, start - 1)
        node.start = start
        node.vram_pages = self._count_vram(node)
        return piece

    def _cut_tail(self, node: Range, last: int) -> Range:
        piece = self._cut(node, last + 1, node.last)
        node.last = last
        node.vram_pages = self._count_vram(node)
        return piece

    def _cuts_huge(self, node: Range, start: int, *, head: bool) -> bool:
        """A cut at *start* breaks a 2 MiB mapping: the piece cut off is mapped again (6.2)."""
        low = -(-node.start // BLOCK) * BLOCK
        end = node.last + 1 if self.rules.remap_test == "end" else node.last
        high = end // BLOCK * BLOCK
        # 6.12 looks at the last page of a head, not at the first page behind it.
        border = start - 1 if head and self.rules.remap_test == "last" else start
        return bool(self.rules.remap_test) and low < start < high and border % BLOCK != 0

    def _link(self, node: Range) -> None:
        self.tree.assign(node.start, node.last, node)
        self.order.append(node)

    def _unlink(self, node: Range) -> None:
        self.tree.assign(node.start, node.last, 0)
        self.order.remove(node)
        self._release(node)

    # ---- updates (sections 5, 8) -----------------------------------------------------

    def _update(self, node: Range, remap_all: bool) -> int:
        if node.needs_unmap:
            self._take_checkpoints()
            self._unmap(node, node, node.start, node.last, "unmap_from_cpu", node.needs_unmap)
            node.needs_unmap = 0
            if not node.mapped:
                return 0
        migrated, error = self._prefetch(node)
        if error:
            return error
        kept = not self.xnack or node.flags & Flag.GPU_ALWAYS_MAPPED
        if migrated and kept and node.mapped:
            return 0  # the restore work maps it
        if not migrated and not remap_all:
            return 0
        return self._map(node, node.start, node.last, None)

    def _prefetch(self, node: Range) -> tuple[bool, int]:
        best = node.prefetch
        if best not in (LOCATION_SYSTEM, LOCATION_UNDEFINED):
            target = self._index[best]
            sharers = node.aip if self.xnack else node.access | node.aip
            if self._prefers_system(target) or not all(
                self._reaches(gpu, target) for gpu in _bits(sharers)
            ):
                best = LOCATION_SYSTEM
        if best == LOCATION_UNDEFINED or best == node.actual == LOCATION_SYSTEM:
            return False, 0
        if self.rules.prefetch_same_is_noop and best == node.actual:
            return False, 0
        if best == LOCATION_SYSTEM:
            error = self._vram_to_ram(node, node.start, node.last, "prefetch")
            return not error, error
        error = self._to_vram(node, self._index[best], node.start, node.last, "prefetch")
        return not error, error if self.rules.prefetch_failure_is_error else 0

    # ---- mapping (section 9) ---------------------------------------------------------

    def _map(self, node: Range, first: int, last: int, gpu: int | None) -> int:
        targets = list(_bits(self._map_set(node) if gpu is None else 1 << gpu))
        if not targets:
            return 0
        owners = {self._owner(i) for i in targets}
        owner = owners.pop() if len(owners) == 1 else None
        page = first
        while page <= last:
            vma = self._vma(page)
            if vma is None:
                return -Errno.EFAULT
            end = min(vma.last, last)
            if "r" in vma.prot:
                error = self._map_piece(node, vma, page, end, targets, owner)
                if self.rules.mapped_per_gpu:
                    node.mapping_done = not error and end == last
                elif not error and end == last:
                    node.mapping_done, node.mapped = True, 1
                if error:
                    return error
            page = end + 1
        node.validate_ns = self.now
        return 0

    def _map_set(self, node: Range) -> int:
        if not self.xnack:
            return node.access | node.aip
        targets = node.aip | (node.mapped if self.rules.mapped_per_gpu else 0)
        actual = self._index.get(node.actual)
        if actual is not None and node.access >> actual & 1:
            targets |= 1 << actual
        kept = node.flags & Flag.GPU_ALWAYS_MAPPED and self.rules.always_mapped_maps
        was_mapped = node.mapped and not self.rules.mapped_per_gpu
        if not targets and (was_mapped or kept):
            targets = node.access
        return targets

    def _map_piece(
        self, node: Range, vma: Vma, first: int, last: int, targets: list[int], owner: object
    ) -> int:
        if vma.device:
            return -Errno.EFAULT
        for page in range(first, last + 1):
            bo = self.vram.get(page)
            if bo is None:
                self.system.add(page)
            elif self._owner(bo.gpu) != owner:
                self.result.hang.append(page)
                return -Errno.EAGAIN
        if self._injected("hmm_retry") or node.children:
            return -Errno.EAGAIN
        writable = "w" in vma.prot and not node.flags & Flag.GPU_RO
        for gpu in targets:
            if node.has_bo and node.bo is not None and not self._reaches(gpu, node.bo.gpu):
                continue
            start = first
            while start <= last:
                in_vram = start in self.vram
                end = start
                while end < last and (end + 1 in self.vram) == in_vram:
                    end += 1
                self.result.map.append((self.gpus[gpu].id, start, end, int(in_vram), int(writable)))
                start = end + 1
            for page in range(first, last + 1):
                self.ptes[gpu][page] = writable
            if self.rules.mapped_per_gpu:
                node.mapped |= 1 << gpu
        return 0

    # ---- faults (section 10) ---------------------------------------------------------

    def _deliver(self, gpu: int | None, page: int, write: bool, ts: int) -> tuple[int, str]:
        ret, reason, counted = self._fault(gpu, page, write, ts)
        if counted and gpu is not None:
            self.faults[gpu] += 1
        if reason in ("stale", "skip_recover", "retry_later"):
            self.result.filter_removed.append(page)
        return ret, reason

    def _fault(self, gpu: int | None, page: int, write: bool, ts: int) -> tuple[int, str, bool]:
        result = self.result
        if gpu is not None and not self.gpus[gpu].svm:
            return -Errno.EFAULT, "no_svm", False
        if self.process_state == "no_process":
            return 0, "no_process", False
        if self.process_state == "drain_pagefaults" or self.draining:
            return 0, "draining", False
        if gpu is None or self.process_state == "no_node":
            return -Errno.EFAULT, "no_node", False
        if not self.xnack:
            return -Errno.EFAULT, "xnack_off", False
        if self.process_state == "mm_gone":
            return 0, "mm_gone", False
        if self.checkpoint_ts[gpu]:
            age = (ts - self.checkpoint_ts[gpu]) & ((1 << 48) - 1)
            if age == 0 or age >> 47:
                return 0, "stale", False
            self.checkpoint_ts[gpu] = 0
        node = self._find(page)
        if node is None:
            result.unregistered = True
            node = self._create_unregistered(page)
            if node is None:
                return -Errno.EFAULT, "no_range", True
        if node.pending == "unmap" or node.is_child:
            return 0, "skip_recover", True
        if node.validate_ns and self.now < node.validate_ns + DUPLICATE_WINDOW_NS:
            return 0, "duplicate", True
        vma = self._vma(page)
        if vma is None:
            return 0, "vma_gone", True
        if "r" not in vma.prot or (write and "w" not in vma.prot):
            return -Errno.EPERM, "permission", True
        best = self._best_restore_location(node, gpu)
        if best is None:
            return -Errno.EACCES, "no_access", True
        result.best_loc = best
        if self.rules.window_migration:
            first, last = self._window(node, page)
        else:
            first, last = node.start, node.last
        result.window = (first, last)
        error = self._migrate(node, best, first, last)
        if error:
            return error, "migrate_failed", True
        error = self._map(node, first, last, gpu)
        if error == -Errno.EAGAIN:
            return 0, "retry_later", self.rules.again_counted
        return error, "map_failed" if error else "ok", True

    def _migrate(self, node: Range, best: int, first: int, last: int) -> int:
        """The fault's migration (section 10.3)."""
        if best == node.actual and (best == LOCATION_SYSTEM or not self.rules.window_migration):
            return 0
        if best == LOCATION_SYSTEM:
            error = self._vram_to_ram(node, first, last, "gpu_fault")
        else:
            error = self._to_vram(node, self._index[best], first, last, "gpu_fault")
            if error:
                self.result.vram_fallback = True
                error = 0
                if node.actual not in (LOCATION_SYSTEM, best):
                    error = self._vram_to_ram(node, first, last, "gpu_fault")
        self.result.migration = not error
        return error

    def _best_restore_location(self, node: Range, gpu: int) -> int | None:
        gpu_id = self.gpus[gpu].id
        if self._prefers_system(gpu):
            return LOCATION_SYSTEM
        if node.preferred in (gpu_id, LOCATION_SYSTEM):
            return node.preferred
        peer = self._index.get(node.preferred)
        if peer is not None and self._reaches(gpu, peer):
            return node.preferred
        if node.access >> gpu & 1:
            return gpu_id
        if node.aip >> gpu & 1:
            actual = self._index.get(node.actual)
            reachable = actual is not None and self._reaches(gpu, actual)
            return node.actual if reachable else LOCATION_SYSTEM
        return None

    def _window(self, node: Range, page: int) -> tuple[int, int]:
        size = 1 << node.granularity
        low = page // size * size
        return max(low, node.start), min(low + size - 1, node.last)

    def _create_unregistered(self, page: int) -> Range | None:
        """A fault on a page without a range (section 12)."""
        vma = self._vma(page)
        if vma is None:
            return None
        size = 1 << self.granularity
        low = page // size * size
        hole_first, hole_last, inside = self.tree.find(page)
        if inside:
            return None
        first, last = max(low, vma.first, hole_first), min(low + size - 1, vma.last, hole_last)
        for spans in (self.buffers, self.userptrs):
            hit = next(((a, b) for a, b in spans if a <= last and first <= b), None)
            if hit:
                if hit[0] <= page <= hit[1]:
                    return None
                first = last = page
                break
        node = self._new_range(first, last)
        if vma.kind in ("heap", "stack"):
            node.preferred = LOCATION_SYSTEM
        self._link(node)
        return node

    # ---- accesses --------------------------------------------------------------------

    def _fatal(self, ret: int, reason: str) -> int:
        self.touch.ret, self.touch.reason = -ret, reason
        return -ret

    def _cpu_page(self, page: int, write: bool) -> int:
        vma = self._vma(page)
        if vma is None:
            return self._fatal(Errno.EFAULT, "no_mapping")
        if "r" not in vma.prot or (write and "w" not in vma.prot):
            return self._fatal(Errno.EPERM, "permission")
        bo = self.vram.get(page)
        if bo is not None and not self.gpus[bo.gpu].coherent:
            if self.cpu_access(page) or page in self.vram:
                return self._fatal(Errno.EFAULT, "bus_error")
            self.touch.faults += 1
            self.run_deferred()
        if page in self.vram:
            self.touch.remote += 1
        else:
            self.system.add(page)
        return 0

    def _gpu_page(self, gpu: int, page: int, write: bool) -> int:
        tries = 0
        while True:
            if not self._wait_for_queues():
                return self._fatal(Errno.EAGAIN, "retry_later")
            if self._mapped_for(gpu, page, write):
                bo = self.vram.get(page)
                self.touch.remote += bo is None or bo.gpu != gpu
                return 0
            if not self.xnack:
                return self._fatal(Errno.EACCES, "xnack_off")
            result = self.result
            # A touch of now is newer than anything in the ring when it was looked at.
            ret, reason = self._deliver(gpu, page, write, self.checkpoint_ts[gpu] + 1)
            # An access may be delivered often: what one fault decided is not its result.
            result.best_loc = result.window = None
            result.migration = result.vram_fallback = result.unregistered = False
            if ret:
                return self._fatal(-ret, reason)
            if reason == "duplicate":
                self.touch.duplicates += 1
                node = self._find(page)
                assert node is not None
                self.now = node.validate_ns + DUPLICATE_WINDOW_NS
            elif reason == "ok" and self._mapped_for(gpu, page, write):
                self.touch.faults += 1
            elif self.deferred:
                self.run_deferred()
            elif tries < RETRIES and (reason == "retry_later" or self.restore_pending):
                tries += 1
            else:
                return self._fatal(Errno.ELOOP, "never_resolves")

    def _wait_for_queues(self) -> bool:
        """Stopped queues run again once the restore work succeeds; false when it never does."""
        for _ in range(RETRIES):
            if not self.restore_pending:
                return True
            self.now = max(self.now, self.restore_ns)
            self.run_restore()
        return not self.restore_pending

    # ---- migration (section 10.4) ----------------------------------------------------

    def _to_vram(self, node: Range, best: int, first: int, last: int, trigger: str) -> int:
        if node.actual in (LOCATION_SYSTEM, self.gpus[best].id):
            return self._ram_to_vram(node, best, first, last, trigger)
        for _ in range(MIGRATION_ROUNDS):
            if node.actual == LOCATION_SYSTEM:
                break
            error = self._vram_to_ram(node, node.start, node.last, trigger)
            if error:
                return error
        if node.actual != LOCATION_SYSTEM:
            return -Errno.EDEADLK
        return self._ram_to_vram(node, best, first, last, trigger)

    def _ram_to_vram(self, node: Range, best: int, first: int, last: int, trigger: str) -> int:
        size = node.last - node.start + 1
        if self.rules.reserves_vram and (
            self._injected("limit_fail") or size > self.gpus[best].vram_pages
        ):
            return -Errno.ENOSPC
        error = self._get_bo(node, best, size)
        if error:
            return error
        assert node.bo is not None
        gpu_id = self.gpus[best].id
        moved, page = 0, first
        while page <= last:
            vma = self._vma(page)
            if vma is None:
                break
            end = min(vma.last, last)
            error, count = self._move_in(node, node.bo, vma, page, end)
            self.result.migr.append((page, end, 0, gpu_id, trigger, count))
            moved += count
            if error:
                break
            page = end + 1
        self.page_in[best] += moved
        if moved:
            node.actual = gpu_id
            node.vram_pages += moved
        elif node.actual == LOCATION_SYSTEM:
            self._drop_bo(node)
        return error

    def _move_in(self, node: Range, bo: Bo, vma: Vma, first: int, last: int) -> tuple[int, int]:
        if vma.device:
            return -Errno.EINVAL, 0
        self._notify(first, last, "notify_migrate")
        if self._injected("copy_fail"):
            return -Errno.EIO, 0
        if vma.kind == "file":
            return 0, 0
        pages = [p for p in range(first, last + 1) if p not in self.vram and p not in self.pinned]
        absent = next((p for p in pages if p not in self.system), None)
        if absent is not None:
            self._notify(absent, last, "notify_migrate")
        for page in pages:
            self.system.discard(page)
            self.vram[page] = bo
        bo.pages += len(pages)
        return 0, len(pages)

    def _vram_to_ram(self, node: Range, first: int, last: int, trigger: str) -> int:
        if node.actual == LOCATION_SYSTEM:
            return 0
        gpu = self._index[node.actual]
        error, moved, page = 0, 0, first
        while page <= last:
            vma = self._vma(page)
            if vma is None:
                error = -Errno.EFAULT
                break
            end = min(vma.last, last)
            self._notify(page, end, "notify_migrate")
            if self._injected("copy_fail"):
                error, count = -Errno.EIO, 0
            else:
                count = self._move_out(gpu, page, end)
            self.result.migr.append((page, end, node.actual, 0, trigger, count))
            moved += count
            if error:
                break
            page = end + 1
        self.page_out[gpu] += moved
        node.vram_pages -= moved
        if node.vram_pages == 0 and node.has_bo:
            node.actual = LOCATION_SYSTEM
            self._drop_bo(node)
        return error

    def _move_out(self, gpu: int, first: int, last: int) -> int:
        owner = self._owner(gpu)
        pages = [
            p
            for p in range(first, last + 1)
            if p in self.vram and p not in self.pinned and self._owner(self.vram[p].gpu) == owner
        ]
        for page in pages:
            self._drop_page(page)
            self.system.add(page)
        return len(pages)

    # ---- VRAM objects (sections 2, 15, 19) -------------------------------------------

    def _get_bo(self, node: Range, gpu: int, size: int) -> int:
        if node.bo is not None and node.bo.gpu == gpu:
            node.has_bo = True
            node.bo.holders.add(node)
            return 0
        self._drop_bo(node)
        self._forget_bo(node)
        if self._injected("vram_fail"):
            return -Errno.ENOMEM
        while self._used(gpu) + size > self.gpus[gpu].vram_pages:
            victim = next((b for b in self.bos if b.gpu == gpu), None)
            if not self.evict_on_full or victim is None:
                return -Errno.ENOMEM
            self._evict(victim)
            if victim in self.bos:
                return -Errno.ENOMEM
        bo = Bo(gpu, size, holders={node}, ranges=[node])
        self.bos.append(bo)
        node.bo, node.has_bo = bo, True
        return 0

    def _evict(self, bo: Bo) -> None:
        if self.rules.reports_eviction:
            self.result.bo_evict.append((self._device(bo.gpu), bo.npages))
        ranges, bo.ranges = bo.ranges, []
        for node in ranges:
            for _ in range(MIGRATION_ROUNDS):
                if node.actual == LOCATION_SYSTEM:
                    break
                if self._vram_to_ram(node, node.start, node.last, "ttm_evict"):
                    break
            if node.actual == LOCATION_SYSTEM:
                self._drop_bo(node)
                node.bo = None
        if bo in self.bos:
            self.result.warn.append("bo_not_last_ref")

    def _drop_bo(self, node: Range) -> None:
        """Give the reference back; the pointer stays until the object dies."""
        if node.has_bo:
            assert node.bo is not None
            node.has_bo = False
            node.bo.holders.discard(node)
            self._reap(node.bo)

    def _forget_bo(self, node: Range) -> None:
        if node.bo is not None:
            if node in node.bo.ranges:
                node.bo.ranges.remove(node)
            node.bo = None

    def _reap(self, bo: Bo) -> None:
        if not bo.holders and not bo.pages and bo in self.bos:
            self.bos.remove(bo)
            for node in bo.ranges:
                node.bo = None
            for node in (*self.order, *(c for n in self.deferred for c in n.children)):
                if node.bo is bo:
                    node.bo = None

    def _release(self, node: Range) -> None:
        """A range goes away for good."""
        bo = node.bo
        self._drop_bo(node)
        if bo is not None:
            self._forget_bo(node)

    def _drop_page(self, page: int) -> None:
        bo = self.vram.pop(page, None)
        if bo is not None:
            bo.pages -= 1
            self._reap(bo)

    def _used(self, gpu: int) -> int:
        return sum(bo.npages for bo in self.bos if bo.gpu == gpu)

    # ---- notifier (sections 11, 13) --------------------------------------------------

    def _notify(self, first: int, last: int, why: str) -> None:
        for _, _, node in list(self.tree.items(first, last)):
            if self.xnack and not node.flags & Flag.GPU_ALWAYS_MAPPED:
                for piece in (*node.children, node):
                    start, end = max(first, piece.start), min(last, piece.last)
                    if start <= end:
                        self._unmap(piece, piece, start, end, why, self._mapped_gpus(piece))
            elif node.mapped or any(child.mapped for child in node.children):
                node.invalid += 1
                self.evicted_ranges += 1
                if self.evicted_ranges == 1:
                    self.result.queues.append("quiesce")
                    self.restore_pending = True
                    self.restore_ns = self.now + RESTORE_DELAY_NS

    def _notify_unmap(self, node: Range, first: int, last: int) -> None:
        if self.rules.stale_by_timestamp:
            self._take_checkpoints()
        else:
            self.draining = True
        whole = first <= node.start and last >= node.last
        index = 0
        while index < len(node.children):  # cuts append to this list
            child = node.children[index]
            self._unmap_piece(node, child, first, last)
            index += 1
        self._unmap_piece(node, node, first, last)
        if node not in self.deferred:
            self.deferred.append(node)
        if whole or node.pending != "unmap":
            node.pending = "unmap" if whole else "update_notifier"

    def _unmap_piece(self, parent: Range, piece: Range, first: int, last: int) -> None:
        start, end = max(first, piece.start), min(last, piece.last)
        if start > end:
            return
        # 7.3 asks the parent's bits even for a child (section 19.6).
        source = parent if self.rules.mapped_per_gpu else piece
        self._unmap(piece, source, start, end, "unmap_from_cpu", self._mapped_gpus(source))
        if piece.pending == "unmap":
            return  # goes as a whole; a part of it must not come back as a range
        if (start, end) == (piece.start, piece.last):
            if piece.is_child:
                piece.pending = "unmap"
        elif start > piece.start:
            if end < piece.last:
                tail = self._cut_tail(piece, end)
                middle = self._cut_tail(piece, start - 1)
                self._add_child(parent, middle, "unmap")
                self._add_child(parent, tail, "add")
            else:
                self._add_child(parent, self._cut_tail(piece, start - 1), "unmap")
        else:
            self._add_child(parent, self._cut_head(piece, end + 1), "unmap")

    def _add_child(self, parent: Range, child: Range, pending: str) -> None:
        child.is_child, child.pending = True, pending
        parent.children.append(child)

    def _split_for_cpu(self, node: Range, page: int) -> None:
        """6.1: a CPU fault cuts the range at granularity borders (section 17)."""
        first, last = self._window(node, page)
        parent = next((n for _, _, n in self.tree.items(page, page)), node)
        pieces = []
        if node.start < first:
            pieces.append(self._cut_head(node, first))
        if node.last > last:
            pieces.append(self._cut_tail(node, last))
        for piece in pieces:
            self._add_child(parent, piece, "add")
        if pieces and parent.pending == "":
            parent.pending = "update_notifier"
            self.deferred.append(parent)

    def _mapped_gpus(self, node: Range) -> int:
        if self.rules.mapped_per_gpu:
            return node.mapped
        return node.access | node.aip if node.mapped else 0

    def _unmap(
        self, node: Range, source: Range, first: int, last: int, why: str, gpus: int
    ) -> None:
        for gpu in _bits(gpus):
            self.result.unmap.append((self.gpus[gpu].id, first, last, why))
            table = self.ptes[gpu]
            for page in [p for p in table if first <= p <= last]:
                del table[page]
        if (first, last) == (node.start, node.last):
            if self.rules.mapped_per_gpu:
                node.mapped &= ~gpus
            else:
                node.mapped = 0
                node.mapping_done = False

    def _take_checkpoints(self) -> None:
        for gpu in _bits(self.supported):
            ts = self.ring_ts[gpu]
            if ts is not None:
                self.checkpoint_ts[gpu] = ts

    # ---- small helpers ---------------------------------------------------------------

    def _vma(self, page: int) -> Vma | None:
        return self.vmas.find(page)[2] or None

    def _cut_vmas(self, first: int, last: int) -> None:
        """Cut mappings at both ends of the interval; each piece is a mapping of its own."""
        for edge in (first, last + 1):
            vma = self._vma(edge)
            if vma is not None and vma.first < edge:
                head = Vma(vma.first, edge - 1, vma.prot, vma.kind)
                tail = Vma(edge, vma.last, vma.prot, vma.kind)
                self.vmas.assign(head.first, head.last, head)
                self.vmas.assign(tail.first, tail.last, tail)

    def _find(self, page: int) -> Range | None:
        node = self.tree.find(page)[2] or None
        if node is None or node.start <= page <= node.last:
            return node
        return next((c for c in node.children if c.start <= page <= c.last), None)

    def _present(self, first: int, last: int) -> Iterator[int]:
        if last - first < len(self.system) + len(self.vram):
            return iter([p for p in range(first, last + 1) if p in self.system or p in self.vram])
        return iter(sorted(p for p in self.system | self.vram.keys() if first <= p <= last))

    def _count_vram(self, node: Range) -> int:
        if node.last - node.start < len(self.vram):
            return sum(p in self.vram for p in range(node.start, node.last + 1))
        return sum(node.start <= p <= node.last for p in self.vram)

    def _mapped_for(self, gpu: int, page: int, write: bool) -> bool:
        writable = self.ptes[gpu].get(page)
        return writable is not None and (writable or not write)

    def _injected(self, what: str) -> bool:
        if self.fail[what] > 0:
            self.fail[what] -= 1
            return True
        return False

    def _prefers_system(self, gpu: int) -> bool:
        return self.gpus[gpu].apu and self.rules.apu_prefers_system

    def _device(self, gpu: int) -> int:
        adev = self.gpus[gpu].adev
        return gpu if adev < 0 else adev

    def _owner(self, gpu: int) -> tuple[str, int]:
        hive = self.gpus[gpu].hive
        return ("hive", hive) if hive else ("device", self._device(gpu))

    def _reaches(self, a: int, b: int) -> bool:
        """On the same device or in the same hive."""
        if self._device(a) == self._device(b):
            return True
        return self.gpus[a].hive != 0 and self.gpus[a].hive == self.gpus[b].hive


def _largest_range(vram_pages: int) -> int:
    pages = min(max(vram_pages * 4096 >> 17, 512), 262144)
    return 1 << (pages.bit_length() - 1)


def _common(values: list[int]) -> int:
    if not values or any(v != values[0] for v in values):
        return LOCATION_UNDEFINED
    return values[0]
