# cython: language_level=3, freethreading_compatible=True
"""A process under any policy as the engine sees it, and the node whose memory processes share.

One thread at a time uses a process, and the processes of one node.
"""
cimport cython
from cpython.exc cimport PyErr_Clear
from libc.string cimport memset

from ._faults cimport (
    EVENT_EVICT_OBJECT,
    EVENT_FILTER,
    EVENT_HANG,
    EVENT_MAP,
    EVENT_MIGRATE,
    EVENT_QUEUE,
    EVENT_UNMAP,
    EVENT_WARN,
    REASON_OK,
    engine_costs,
    event_t,
)
from ._types cimport E_NOMEM

from ._faults import REASONS as _REASONS
from .errors import InvalidArgumentError, OutOfMemoryError

cdef extern from "Python.h":
    # Declared without the exception: what is no small number is looked at by hand.
    size_t int_as_size "PyLong_AsSize_t"(object) noexcept

#: Words of the causes of events, by number.
TRIGGERS = ("prefetch", "gpu_fault", "cpu_fault", "ttm_evict")
UNMAPS = ("notify", "notify_migrate", "unmap_from_cpu")
WARNINGS = ("bo_not_last_ref",)
#: Kinds of mappings, by number.
KINDS = ("anon", "file", "heap", "stack", "io", "pfnmap")


cdef int node_make_room(node_t* n, engine_t* engine, uint32_t gpu, uint64_t size,
                        uint64_t capacity) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t age, oldest, before
    cdef tenant_t* owner
    while n.used[gpu] + size > capacity:
        owner = NULL
        oldest = KEEPS
        for i in range(n.ntenants):
            age = n.tenants[i].oldest(n.tenants[i].state, gpu)
            if age < oldest:
                oldest = age
                owner = n.tenants + i
        if owner == NULL:
            return -E_NOMEM
        if engine == NULL or owner.engine == engine:
            if not owner.evict(owner.state, gpu):
                return -E_NOMEM
            continue
        # The process that needs the room waits for it.
        if owner.engine.now < engine.now:
            owner.engine.now = engine.now
        before = owner.engine.cost_ns
        if not owner.evict(owner.state, gpu):
            return -E_NOMEM
        engine.cost_ns += owner.engine.cost_ns - before
        owner.engine.cost_ns = before
    return 0


cdef class Node:
    """Device memory of one node, shared by its processes; made by the engine."""

    cdef int join(self, const tenant_t* tenant) except -1:
        if self.n.ntenants == MAX_TENANTS:
            raise InvalidArgumentError(
                f"a node of {MAX_TENANTS} processes already: expected at most {MAX_TENANTS}"
            )
        self.n.tenants[self.n.ntenants] = tenant[0]
        self.n.ntenants += 1
        return 0

    cdef void leave(self, const void* state) noexcept:
        cdef uint32_t i
        for i in range(self.n.ntenants):
            if self.n.tenants[i].state == state:
                self.n.ntenants -= 1
                self.n.tenants[i] = self.n.tenants[self.n.ntenants]
                break

    def used(self, gpu):
        """Pages taken of the memory of the GPU of this index."""
        if not 0 <= gpu < MAX_GPUS:
            raise InvalidArgumentError(f"GPU index {gpu}: expected 0 to {MAX_GPUS - 1}")
        return self.n.used[<uint32_t>gpu]

    def take(self, gpu, pages, capacity):
        """Take *pages* of a GPU's memory of *capacity* pages; processes evict to make room.

        False, and nothing is taken, when they cannot. :meth:`give` brings the pages back.
        Memory that no process owns is taken so: launch stacks, plain allocations.
        """
        self.used(gpu)
        if pages > capacity or node_make_room(&self.n, NULL, gpu, pages, capacity):
            return False
        self.n.used[<uint32_t>gpu] += <uint64_t>pages
        return True

    def give(self, gpu, pages):
        """Give back pages that :meth:`take` took."""
        if pages > self.used(gpu):
            raise InvalidArgumentError(f"{pages} pages of GPU {gpu}: expected at most those taken")
        self.n.used[<uint32_t>gpu] -= <uint64_t>pages


cdef int process_check(Process p) except -1:
    if p.failed:
        failure = p.failure
        p.failure = None
        p.failed = False
        raise failure
    return 0


cdef uint32_t mapping_code(object prot, object kind) except 0:
    return 1 + (("r" in prot) | ("w" in prot) << 1 | KINDS.index(kind) << 2)


cdef object mapping_row(uint64_t first, uint64_t last, uint32_t code):
    bits = code - 1
    prot = ("r" if bits & 1 else "") + ("w" if bits & 2 else "")
    return first, last, prot or "-", KINDS[bits >> 2]


cdef object location_id(tuple gpus, uint8_t processor):
    return gpus[processor - 1].id if processor else 0


cdef int collect_events(engine_t* engine, tuple gpus, object result) except -1:
    cdef uint32_t i
    cdef event_t* e
    for i in range(engine.nevents):
        e = engine.events + i
        if e.kind == EVENT_MIGRATE:
            result.migr.append((
                e.first, e.last, location_id(gpus, e.source), location_id(gpus, e.target),
                TRIGGERS[e.cause], e.value,
            ))
        elif e.kind == EVENT_MAP:
            result.map.append(
                (location_id(gpus, e.target), e.first, e.last, int(e.cause), int(e.value))
            )
        elif e.kind == EVENT_UNMAP:
            result.unmap.append((location_id(gpus, e.target), e.first, e.last, UNMAPS[e.cause]))
        elif e.kind == EVENT_QUEUE:
            result.queues.append("resume" if e.cause else "quiesce")
        elif e.kind == EVENT_WARN:
            result.warn.append(WARNINGS[e.cause])
        elif e.kind == EVENT_EVICT_OBJECT:
            result.bo_evict.append((int(e.value), e.first))
        elif e.kind == EVENT_FILTER:
            result.filter_removed.append(e.first)
        elif e.kind == EVENT_HANG:
            result.hang.append(e.first)
    return 0


@cython.no_gc_clear  # a derived __dealloc__ still needs the node when a cycle is collected
cdef class Process:
    """One process on a node; the policies' compiled halves derive from it."""

    def begin(self, t_ns, record=True):
        """Start an operation at *t_ns*; its effects are collected until :meth:`finish`.

        With *record* off only the result and the views tell what it did, and faults may
        take the short way that replays take.
        """
        self.engine.now = t_ns
        self.engine.cost_ns = 0
        self.engine.nevents = 0
        self.engine.recording = record
        self.result = self.outcome()
        return self.result

    def finish(self, ret=0):
        """End the operation; its result with every effect in order."""
        self.engine.recording = False
        self.result.ret = ret
        collect_events(self.engine, self.gpus, self.result)
        if self.engine.lost_events:
            self.engine.lost_events = False
            raise OutOfMemoryError("no memory for the event log of an operation")
        return self.result

    @cython.binding(False)  # a plain method descriptor: a faster call
    def access(self, processor, first, last, write):
        """A touch of pages by a processor until it is served or fatal.

        Parameters
        ----------
        processor : int
            0 the CPU, 1 + i GPU i.
        first, last : int
            Pages, inclusive.
        write : bool or int
            Or the access of a record: 0 read, 1 write, 2 atomic.

        Returns
        -------
        tuple
            (ret, reason, faults, duplicates, remote page touches, page of a fatal end)
        """
        cdef touch_t out
        cdef size_t who = int_as_size(processor)
        cdef uint32_t kind
        if who > <size_t>len(self.gpus):
            PyErr_Clear()
            if not 0 <= processor <= len(self.gpus):
                raise InvalidArgumentError(
                    f"processor {processor}: expected 0 (CPU) to {len(self.gpus)}"
                )
            who = processor
        kind = <uint32_t>(write is True) if isinstance(write, bool) else int(write)
        memset(&out, 0, sizeof(touch_t))
        out.best = NOWHERE
        out.reason = REASON_OK
        self.ops.touch(self.state, <uint32_t>who, first, last, kind, &out)
        process_check(self)
        self.moved = out.moved
        # Touches that ended as the last one did, which most do, are told by the same tuple.
        if (
            self.told_touch is None
            or out.ret != self.last_touch.ret
            or out.reason != self.last_touch.reason
            or out.faults != self.last_touch.faults
            or out.duplicates != self.last_touch.duplicates
            or out.remote != self.last_touch.remote
            or out.page != self.last_touch.page
        ):
            self.told_touch = None
            self.last_touch = out
            self.told_touch = (
                out.ret, _REASONS[out.reason], out.faults, out.duplicates, out.remote, out.page
            )
        return self.told_touch

    def step(self, t_ns):
        """Move the clock to *t_ns* and run what is due by then."""
        if t_ns > self.engine.now:
            self.engine.now = t_ns
        self.ops.step(self.state)

    def set_costs(self, costs):
        """Take the cost constants of a machine (:class:`svmcore.machine.Costs`)."""
        engine_costs(self.engine, costs)

    def settle(self):
        """Let the cost of the operation pass: the clock moves on by it."""
        self.engine.now += self.engine.cost_ns
        self.engine.cost_ns = 0

    def totals(self):
        """Counters of the whole process, by name; pages, not bytes."""
        return dict(self.engine.counters)

    def processors(self):
        """Counters of each processor, by name: the CPU, then the GPUs."""
        return [dict(self.engine.processors[i]) for i in range(1 + len(self.gpus))]

    @property
    def batch(self):
        """Most recorded faults in a row that one raw delivery takes."""
        return self.ops.batch

    @property
    def now(self):
        """Modelled time, ns."""
        return self.engine.now


cdef int process_join(Process process, void* state, const ops_t* ops, engine_t* engine,
                      uint64_t (*oldest)(void* state, uint32_t gpu) noexcept nogil,
                      bint (*evict)(void* state, uint32_t gpu) noexcept nogil) except -1:
    cdef tenant_t tenant
    process.state = state
    process.ops = ops
    process.engine = engine
    tenant.state = state
    tenant.engine = engine
    tenant.oldest = oldest
    tenant.evict = evict
    return process.node.join(&tenant)
