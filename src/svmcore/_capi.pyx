# cython: language_level=3, freethreading_compatible=True
"""The table of C functions behind ``svmcore/svmcore.h``, in the capsule ``api``.

Owns the handles of C hosts: a handle belongs to a Python ``Space`` and holds a
reference to it while any host uses it. The functions that a host calls often
run on the compiled process alone, without the GIL; the others take it. Nothing
raises: each function ends in 0 or a negative errno and a text.

Every policy is served through its process's table of operations. KFD's process is
called directly, because a call that hits costs little more than an indirect one.

Invariant: a handle has one gate with all spaces of its node, closed while a
call runs, so that a second thread and a callback are refused and never wait.
Invariant: engines record events only inside a call, and only those of the node's
handles with a callback; these are on the gate's list, and hosts use them.
"""
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ._capi cimport (
    SVMCORE_ABI,
    SVMCORE_ATTR_PREFETCH_LOC,
    SVMCORE_CAPSULE,
    SVMCORE_EVENT_BATCH,
    SVMCORE_EVENT_EVICT_OBJECT,
    SVMCORE_EVENT_MIGRATE,
    SVMCORE_EVENT_QUEUE,
    SVMCORE_EVENT_WARN,
    SVMCORE_LOCATION_NONE,
    SVMCORE_LOCATION_SYSTEM,
    SVMCORE_LOCATION_UNDEFINED,
    SVMCORE_MAP_ANON,
    SVMCORE_MAP_PFNMAP,
    SVMCORE_NEVER,
    SVMCORE_NOW,
    SVMCORE_NOWHERE,
    SVMCORE_PROT_READ,
    SVMCORE_PROT_WRITE,
    SVMCORE_QUEUE,
    SVMCORE_REASON_NONE,
    SVMCORE_STRUCT_MAX,
    SVMCORE_WRITE,
    svmcore_access_t,
    svmcore_api_t,
    svmcore_attr_t,
    svmcore_counters_t,
    svmcore_event_fn,
    svmcore_event_t,
    svmcore_fault_t,
    svmcore_info_t,
    svmcore_options_t,
    svmcore_space,
)
from ._faults cimport REASON_OK, engine_t, event_t
from ._process cimport NOWHERE, Process, arrival_t, ops_t, process_check, touch_t
from ._residency cimport res_where
from ._types cimport (
    E_BUSY,
    E_DEADLK,
    E_INVAL,
    E_IO,
    E_NOENT,
    E_NOMEM,
    E_OPNOTSUPP,
    E_OVERFLOW,
    KIND_PREFETCH,
    record_t,
)
from .policies._kfd cimport (
    KfdProcess,
    attr_t,
    fault_t,
    kfd_access,
    kfd_deliver,
    kfd_mmap,
    kfd_mode_of,
    kfd_set_attr,
    kfd_step,
    kfd_t,
)

import os

from ._faults import REASONS
from ._version import __version__
from .engine import Space
from .errors import Errno, InvalidArgumentError, NotSupportedError, OutOfMemoryError, SvmError
from .machine import Machine

__all__ = ["api"]

# Words of svmcore_prot and svmcore_map_kind, by number.
PROTECTIONS = ("-", "r", "w", "rw")
KINDS = ("anon", "file", "heap", "stack", "io", "pfnmap")

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static __declspec(thread) char svmcore_thread;
    static __inline int svmcore_close(volatile long *gate)
    {
        return _InterlockedExchange(gate, 1) == 0;
    }
    static __inline void svmcore_open(volatile long *gate) { _InterlockedExchange(gate, 0); }
    static __inline void *svmcore_owner(void *volatile *owner)
    {
        return _InterlockedCompareExchangePointer(owner, NULL, NULL);
    }
    static __inline void svmcore_own(void *volatile *owner, void *thread)
    {
        _InterlockedExchangePointer(owner, thread);
    }
    #else
    static __thread char svmcore_thread;
    static inline int svmcore_close(volatile long *gate)
    {
        return __atomic_exchange_n(gate, 1, __ATOMIC_ACQUIRE) == 0;
    }
    static inline void svmcore_open(volatile long *gate)
    {
        __atomic_store_n(gate, 0, __ATOMIC_RELEASE);
    }
    static inline void *svmcore_owner(void *volatile *owner)
    {
        return __atomic_load_n(owner, __ATOMIC_ACQUIRE);
    }
    static inline void svmcore_own(void *volatile *owner, void *thread)
    {
        __atomic_store_n(owner, thread, __ATOMIC_RELEASE);
    }
    #endif
    /* The address of a thread's own variable names the thread without a system call. */
    static void *svmcore_this_thread(void) { return &svmcore_thread; }
    """
    bint svmcore_close(long* gate) noexcept nogil
    void svmcore_open(long* gate) noexcept nogil
    void* svmcore_owner(void** owner) noexcept nogil
    void svmcore_own(void** owner, void* thread) noexcept nogil
    void* svmcore_this_thread() noexcept nogil

cdef extern from "Python.h":
    bint Py_IsInitialized() noexcept nogil
    void PyErr_Fetch(PyObject** kind, PyObject** value, PyObject** trace) noexcept
    void PyErr_Restore(PyObject* kind, PyObject* value, PyObject* trace) noexcept

cdef enum:
    MAGIC = 0x53564d31      # a handle in use
    PAGE_SHIFT = 12
    PAGE_MASK = 4095
    TEXT = 240
    NAME = 32               # of a policy, in texts
    KNOWN_FLAGS = 3         # SVMCORE_WRITE | SVMCORE_QUEUE
    READ_WRITE = SVMCORE_PROT_READ | SVMCORE_PROT_WRITE

cdef struct handle_t

# One a node: its spaces share device memory, so one thread at a time is in any of them.
cdef struct gate_t:
    long closed             # 1 while a call runs
    void* owner             # the thread inside an event callback, else NULL
    handle_t* watchers      # handles with a callback, linked by next_watcher

# What svmcore_space points at.
cdef struct handle_t:
    uint32_t magic          # MAGIC while a host uses it
    uint32_t users          # create, load and from_object not yet given back
    gate_t* gate
    engine_t* engine        # of the process of `space`
    kfd_t* kfd              # that process when the policy is KFD's, else NULL
    const ops_t* ops        # and its operations, with their argument, whatever the policy
    void* state
    bint* failed            # set while something that a policy in Python raised waits
    uint32_t ngpus
    svmcore_event_fn callback
    void* user              # the callback's
    handle_t* next_watcher
    PyObject* space         # svmcore.Space; a reference while users > 0
    char text[TEXT]         # why the last call failed
    char policy[NAME]
    svmcore_info_t machine  # what info answers


cdef class _Gate:
    """The gate of a node, kept by its System."""

    cdef gate_t* g

    def __cinit__(self):
        self.g = <gate_t*>calloc(1, sizeof(gate_t))
        if self.g == NULL:
            raise OutOfMemoryError("no memory for a handle")

    def __dealloc__(self):
        free(self.g)


cdef class _Handle:
    """The memory of a handle, kept by its Space; it outlives the hosts' use."""

    cdef handle_t* h
    cdef _Gate gate

    def __cinit__(self, _Gate gate, Process process, str policy):
        cdef handle_t* h = <handle_t*>calloc(1, sizeof(handle_t))
        self.gate = gate
        self.h = h
        if h == NULL:
            raise OutOfMemoryError("no memory for a handle")
        h.gate = gate.g
        h.engine = process.engine
        h.ops = process.ops
        h.state = process.state
        h.failed = &process.failed
        if isinstance(process, KfdProcess):
            h.kfd = (<KfdProcess>process).p
        put_text(h.policy, NAME, policy)
        h.ngpus = h.machine.gpus = len(process.gpus)
        for i, gpu in enumerate(process.gpus):
            h.machine.gpu_id[<uint32_t>i] = gpu.id
            h.machine.device_bytes[<uint32_t>i] = <uint64_t>gpu.vram_pages << PAGE_SHIFT

    def __dealloc__(self):
        free(self.h)


# ---- gate and texts -------------------------------------------------------------------------

cdef int refused(handle_t* h) noexcept nogil:
    """Somebody is inside: this thread from its callback, or another."""
    return -E_DEADLK if svmcore_owner(&h.gate.owner) == svmcore_this_thread() else -E_BUSY


cdef inline int enter(svmcore_space* space, handle_t** out) noexcept nogil:
    """Close the gate; events are recorded from here where somebody watches."""
    cdef handle_t* h = <handle_t*>space
    if h == NULL or h.magic != MAGIC:
        return -E_INVAL
    if not svmcore_close(&h.gate.closed):
        return refused(h)
    out[0] = h
    if h.gate.watchers != NULL:
        watch(h.gate)
    return 0


cdef inline int leave(handle_t* h, int ret) noexcept nogil:
    if h.gate.watchers != NULL:
        ret = deliver_all(h, ret)
    svmcore_open(&h.gate.closed)
    return ret


cdef void watch(gate_t* gate) noexcept nogil:
    """Record the effects on every space of the node that somebody watches."""
    cdef handle_t* w = gate.watchers
    while w != NULL:
        w.engine.nevents = 0
        w.engine.recording = True
        w = w.next_watcher


cdef void unwatch(handle_t* h) noexcept nogil:
    """Take the handle off the list, if it is there."""
    cdef handle_t** at = &h.gate.watchers
    while at[0] != NULL:
        if at[0] == h:
            at[0] = h.next_watcher
            break
        at = &at[0].next_watcher
    h.callback = NULL
    h.engine.recording = False


cdef int deliver_all(handle_t* h, int ret) noexcept nogil:
    """Effects on neighbours first: what this call pushed out of the device made its room."""
    cdef handle_t* w = h.gate.watchers
    cdef int code
    while w != NULL:
        if w != h:
            code = deliver(w, 0)
            if code:
                memcpy(h.text, w.text, TEXT)
                ret = code
        w = w.next_watcher
    return ret if h.callback == NULL else deliver(h, ret)


cdef void take_event(svmcore_event_t* out, const event_t* e) noexcept nogil:
    """An event of the engine in the host's units."""
    out.size = sizeof(svmcore_event_t)
    out.kind = e.kind
    out.cause = e.cause
    out.source = e.source
    out.target = e.target
    out.t_ns = e.t_ns
    out.value = e.value
    out.addr = e.first << PAGE_SHIFT
    out.bytes = (e.last - e.first + 1) << PAGE_SHIFT
    if e.kind == SVMCORE_EVENT_MIGRATE:
        out.value = e.value << PAGE_SHIFT
    elif e.kind == SVMCORE_EVENT_EVICT_OBJECT:
        out.addr = 0
        out.bytes = e.first << PAGE_SHIFT
    elif e.kind in (SVMCORE_EVENT_QUEUE, SVMCORE_EVENT_WARN, SVMCORE_EVENT_BATCH):
        out.addr = out.bytes = 0


cdef int deliver(handle_t* h, int ret) noexcept nogil:
    """Hand the recorded events to the callback, in order; the state has changed already."""
    cdef engine_t* e = h.engine
    cdef event_t* events = e.events
    cdef uint32_t n = e.nevents, cap = e.cap_events, i
    cdef bint lost = e.lost_events
    cdef svmcore_event_t out
    cdef int code = 0
    e.recording = e.lost_events = False
    e.nevents = 0
    if n:
        # Out of the engine's hands while foreign code runs, which may use the Python space.
        e.events = NULL
        e.cap_events = 0
        svmcore_own(&h.gate.owner, svmcore_this_thread())
        for i in range(n):
            take_event(&out, events + i)
            code = h.callback(h.user, &out)
            if code:
                snprintf(h.text, TEXT, "event callback: returned %d for event %u of %u, expected 0",
                         code, i + 1, n)
                break
        svmcore_own(&h.gate.owner, NULL)
        if e.events == NULL:
            e.events = events
            e.cap_events = cap
        else:
            free(events)
    if code:
        return -E_IO
    if lost:
        snprintf(h.text, TEXT, "events: no memory for all of them, the call was carried out")
        return -E_NOMEM
    return ret


cdef inline unsigned long long wide(uint64_t value) noexcept nogil:
    return <unsigned long long>value


cdef int other_size(handle_t* h, const void* given, uint32_t known, const char* what,
                    bint is_answer) noexcept nogil:
    """The rule of the header for structs of another size; 0 or a negative errno."""
    cdef uint32_t size, i
    if given == NULL:
        snprintf(h.text, TEXT, "%s: NULL, expected a struct", what)
        return -E_INVAL
    size = (<const uint32_t*>given)[0]
    if size < known or size > SVMCORE_STRUCT_MAX:
        snprintf(h.text, TEXT, "%s: size %u, expected %u", what, size, known)
        return -E_INVAL
    for i in range(known, size if not is_answer else known):
        if (<const uint8_t*>given)[i]:
            snprintf(h.text, TEXT, "%s: byte %u is set, this svmcore knows %u bytes", what, i,
                     known)
            return -E_OPNOTSUPP
    return 0


cdef inline int check_size(handle_t* h, const void* given, uint32_t known, const char* what,
                           bint is_answer) noexcept nogil:
    """0 where a host's struct is one of this svmcore's or can be read as one."""
    if given != NULL and (<const uint32_t*>given)[0] == known:
        return 0
    return other_size(h, given, known, what, is_answer)


cdef int bad_time(handle_t* h, uint64_t t_ns) noexcept nogil:
    snprintf(h.text, TEXT, "t_ns %llu: expected %llu or later, the clock never goes back",
             wide(t_ns), wide(h.engine.now))
    return -E_INVAL


cdef inline int set_time(handle_t* h, uint64_t t_ns, uint32_t flags) noexcept nogil:
    """Move the clock on to the caller's time."""
    cdef engine_t* e = h.engine
    if t_ns == SVMCORE_NOW or t_ns == e.now:
        return 0
    if t_ns > e.now:
        e.now = t_ns
        return 0
    if flags & SVMCORE_QUEUE:
        return 0
    return bad_time(h, t_ns)


cdef inline void settle(handle_t* h) noexcept nogil:
    """What the operation cost has passed."""
    h.engine.now += h.engine.cost_ns
    h.engine.cost_ns = 0


cdef inline void run_due(handle_t* h) noexcept nogil:
    """Run what is due by now."""
    if h.kfd == NULL:
        h.ops.step(h.state)
    elif h.kfd.ndeferred or h.kfd.restore_pending:
        kfd_step(h.kfd)


cdef int check_span(handle_t* h, uint64_t addr, uint64_t size, const char* what) noexcept nogil:
    """Whole pages, inside the address space."""
    if (addr | size) & PAGE_MASK or size == 0:
        snprintf(h.text, TEXT,
                 "%s: addr 0x%llx, bytes 0x%llx: expected multiples of 4096, bytes more than 0",
                 what, wide(addr), wide(size))
        return -E_INVAL
    if addr + (size - 1) < addr:
        snprintf(h.text, TEXT, "%s: addr 0x%llx + bytes 0x%llx passes 2**64", what, wide(addr),
                 wide(size))
        return -E_OVERFLOW
    return 0


cdef int without_python(handle_t* h, int ret) noexcept nogil:
    """The same, but refused where no interpreter runs."""
    if ret == 0 and not Py_IsInitialized():
        snprintf(h.text, TEXT, "no Python interpreter runs, this call needs one")
        return -E_OPNOTSUPP
    return ret


cdef inline int runnable(handle_t* h) noexcept nogil:
    """0, or a refusal where the policy is written in Python and nothing runs it."""
    return without_python(h, 0) if h.kfd == NULL and h.ops.python else 0


cdef void gil_raised(handle_t* h) noexcept:
    cdef PyObject* pending[3]
    PyErr_Fetch(pending, pending + 1, pending + 2)
    try:
        process_check((<object>h.space).process)
    except BaseException as error:
        put_error(h.text, TEXT, error)
    PyErr_Restore(pending[0], pending[1], pending[2])


cdef inline int raised(handle_t* h, int ret) noexcept nogil:
    """The result of a call, -EIO and the text where a policy written in Python raised."""
    if h.kfd != NULL or not h.failed[0]:
        return ret
    with gil:
        gil_raised(h)
    return -E_IO


cdef int driver_result(handle_t* h, int ret, const char* what, uint64_t addr,
                       uint64_t size) noexcept nogil:
    if ret:
        snprintf(h.text, TEXT, "%s 0x%llx of 0x%llx bytes: the driver answers errno %d", what,
                 wide(addr), wide(size), -ret)
    return ret


# ---- touches ----------------------------------------------------------------------------------

cdef int bad_touch(handle_t* h, const svmcore_access_t* a) noexcept nogil:
    """Which rule a touch breaks; its text."""
    if a.flags & ~KNOWN_FLAGS:
        snprintf(h.text, TEXT, "access: flags 0x%x, expected WRITE and QUEUE", <unsigned>a.flags)
        return -E_OPNOTSUPP
    if a.by > h.ngpus:
        snprintf(h.text, TEXT, "access: by %u, expected 0 (CPU) to %u", <unsigned>a.by, h.ngpus)
        return -E_INVAL
    if a.bytes == 0:
        snprintf(h.text, TEXT, "access: bytes 0, expected 1 or more")
        return -E_INVAL
    snprintf(h.text, TEXT, "access: addr 0x%llx + bytes 0x%llx passes 2**64", wide(a.addr),
             wide(a.bytes))
    return -E_OVERFLOW


cdef inline int touch(handle_t* h, svmcore_access_t* a) noexcept nogil:
    """One touch; *a* has a known size."""
    cdef touch_t out
    cdef engine_t* e = h.engine
    cdef uint64_t last = a.addr + (a.bytes - 1), before
    cdef int ret
    a.reason = SVMCORE_REASON_NONE
    if a.flags & ~KNOWN_FLAGS or a.by > h.ngpus or a.bytes == 0 or last < a.addr:
        return bad_touch(h, a)
    ret = runnable(h)
    if ret == 0:
        ret = set_time(h, a.t_ns, a.flags)
    if ret:
        return ret
    before = e.now
    if h.kfd != NULL:
        kfd_mode_of(h.kfd, a.by)
        kfd_access(h.kfd, a.by, a.addr >> PAGE_SHIFT, last >> PAGE_SHIFT,
                   a.flags & SVMCORE_WRITE, 0, &out)
    else:
        memset(&out, 0, sizeof(touch_t))
        out.best = NOWHERE
        out.reason = REASON_OK
        h.ops.touch(h.state, a.by, a.addr >> PAGE_SHIFT, last >> PAGE_SHIFT,
                    a.flags & SVMCORE_WRITE, &out)
    a.reason = out.reason
    a.ready_ns = e.now
    a.took_ns = e.now - before
    a.fatal_addr = out.page << PAGE_SHIFT
    a.moved_bytes = out.moved << PAGE_SHIFT
    a.remote_pages = out.remote
    a.faults = out.faults
    a.duplicates = out.duplicates
    a.code = out.ret
    a.served_from = out.best
    if out.ret:
        h.text[0] = 0
    return raised(h, out.ret)


cdef int api_access(svmcore_space* space, svmcore_access_t* a) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = check_size(h, a, sizeof(svmcore_access_t), "access", False)
    if ret == 0:
        ret = touch(h, a)
    return leave(h, ret)


cdef int many(handle_t* h, svmcore_access_t* touches, uint64_t count,
              uint64_t* done) noexcept nogil:
    """Touches in order; with a callback, the events of one before the next begins."""
    cdef svmcore_access_t* a = touches
    cdef uint32_t stride
    cdef uint64_t i
    cdef int ret
    if count == 0:
        return 0
    ret = check_size(h, a, sizeof(svmcore_access_t), "access_many", False)
    if ret:
        return ret
    stride = a.size
    for i in range(count):
        a = <svmcore_access_t*>(<char*>touches + i * stride)
        if a.size != stride:
            snprintf(h.text, TEXT, "access_many: touch %llu: size %u, expected %u as the first",
                     wide(i), a.size, stride)
            return -E_INVAL
        ret = 0
        if stride != sizeof(svmcore_access_t):
            ret = check_size(h, a, sizeof(svmcore_access_t), "access_many", False)
        if ret == 0:
            ret = touch(h, a)
            if ret and a.reason == SVMCORE_REASON_NONE:
                return ret
        else:
            return ret
        done[0] = i + 1
        if h.gate.watchers != NULL:
            ret = deliver_all(h, 0)
            if ret:
                return ret
            watch(h.gate)
    return 0


cdef int api_access_many(svmcore_space* space, svmcore_access_t* touches, uint64_t count,
                         uint64_t* done) noexcept nogil:
    cdef handle_t* h
    cdef uint64_t n = 0
    cdef int ret = enter(space, &h)
    if ret == 0:
        ret = leave(h, many(h, touches, count, &n))
    if done != NULL:
        done[0] = n
    return ret


cdef int bad_fault(handle_t* h, const svmcore_fault_t* a) noexcept nogil:
    """Which rule a fault breaks; its text."""
    if a.flags & ~KNOWN_FLAGS:
        snprintf(h.text, TEXT, "fault: flags 0x%x, expected WRITE and QUEUE", <unsigned>a.flags)
        return -E_OPNOTSUPP
    snprintf(h.text, TEXT, "fault: by %u, expected a GPU, 1 to %u (access is for the CPU)",
             <unsigned>a.by, h.ngpus)
    return -E_INVAL


cdef inline void deliver_kfd(handle_t* h, svmcore_fault_t* a) noexcept nogil:
    """One delivery of KFD, as a replay of raw faults makes it."""
    cdef fault_t f
    kfd_mode_of(h.kfd, a.by)
    run_due(h)
    kfd_deliver(h.kfd, a.by - 1, a.addr >> PAGE_SHIFT, a.flags & SVMCORE_WRITE, a.timestamp, 0,
                &f)
    a.reason = f.reason
    if f.best != SVMCORE_NOWHERE:
        a.window_addr = f.first << PAGE_SHIFT
        a.window_bytes = (f.last - f.first + 1) << PAGE_SHIFT
    a.code = f.ret
    a.location = f.best
    a.migration = f.migration
    a.vram_fallback = f.vram_fallback
    a.unregistered = f.unregistered


cdef void deliver_any(handle_t* h, svmcore_fault_t* a) noexcept nogil:
    """One delivery by a policy's table, which knows nothing of fallbacks and new ranges."""
    cdef arrival_t fault
    cdef touch_t out
    cdef uint64_t migrations = h.engine.counters.migrations, first, last
    memset(&out, 0, sizeof(touch_t))
    fault.page = a.addr >> PAGE_SHIFT
    fault.ts = a.timestamp
    fault.processor = a.by
    fault.access = a.flags & SVMCORE_WRITE
    fault.type = 0
    h.ops.step(h.state)
    h.ops.deliver(h.state, &fault, 1, &out)
    a.reason = out.reason
    if out.best != NOWHERE and h.ops.window != NULL and (
        h.ops.window(h.state, fault.page, &first, &last)
    ):
        a.window_addr = first << PAGE_SHIFT
        a.window_bytes = (last - first + 1) << PAGE_SHIFT
    a.code = out.ret
    a.location = out.best
    a.migration = h.engine.counters.migrations != migrations
    a.vram_fallback = a.unregistered = 0


cdef int deliver_fault(handle_t* h, svmcore_fault_t* a) noexcept nogil:
    cdef engine_t* e = h.engine
    cdef uint64_t moved = e.counters.migrated_pages, before
    cdef int ret
    a.reason = SVMCORE_REASON_NONE
    if a.flags & ~KNOWN_FLAGS or a.by == 0 or a.by > h.ngpus:
        return bad_fault(h, a)
    ret = runnable(h)
    if ret == 0:
        ret = set_time(h, a.t_ns, a.flags)
    if ret:
        return ret
    before = e.now
    a.window_addr = a.window_bytes = 0
    if h.kfd != NULL:
        deliver_kfd(h, a)
    else:
        deliver_any(h, a)
    settle(h)
    a.ready_ns = e.now
    a.took_ns = e.now - before
    a.moved_bytes = (e.counters.migrated_pages - moved) << PAGE_SHIFT
    if a.code:
        h.text[0] = 0
    return raised(h, a.code)


cdef int api_fault(svmcore_space* space, svmcore_fault_t* a) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = check_size(h, a, sizeof(svmcore_fault_t), "fault", False)
    if ret == 0:
        ret = deliver_fault(h, a)
    return leave(h, ret)


cdef enum slow_t:
    SLOW_SAVE
    SLOW_MAP
    SLOW_PROTECT
    SLOW_INVALIDATE
    SLOW_EVICT
    SLOW_GET_ATTR
    SLOW_ADVISE

# Arguments of a call that goes through the Python object.
cdef struct slow_args_t:
    slow_t what
    uint32_t count
    uint64_t addr
    uint64_t size
    uint32_t prot
    uint32_t kind
    uint32_t location
    const char* text         # a path, or a word of advice
    svmcore_attr_t* attrs

# ---- mappings, attributes, clock ----------------------------------------------------------------

cdef int api_map(svmcore_space* space, uint64_t addr, uint64_t size, uint32_t prot, uint32_t kind,
                 uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef uint64_t first = addr >> PAGE_SHIFT, last = (addr + (size - 1)) >> PAGE_SHIFT
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = check_span(h, addr, size, "map")
    if ret == 0 and (prot > 3 or kind > <uint32_t>SVMCORE_MAP_PFNMAP):
        snprintf(h.text, TEXT, "map: prot %u, kind %u: expected up to 3 and 5", prot, kind)
        ret = -E_INVAL
    if ret == 0 and h.kfd == NULL and (prot != READ_WRITE or kind != SVMCORE_MAP_ANON):
        # The tables of operations know anonymous memory, read and write.
        a.what = SLOW_MAP
        a.addr = addr
        a.size = size
        a.prot = prot
        a.kind = kind
        return slow(h, &a, t_ns, 0)
    if ret == 0:
        ret = set_time(h, t_ns, 0)
    if ret == 0:
        run_due(h)
        if h.kfd != NULL:
            ret = kfd_mmap(h.kfd, first, last, 1 + (prot | kind << 2))
        else:
            ret = h.ops.map(h.state, first, last)
        ret = driver_result(h, ret, "map", addr, size)
        settle(h)
    return leave(h, ret)


cdef int api_unmap(svmcore_space* space, uint64_t addr, uint64_t size,
                   uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = check_span(h, addr, size, "unmap")
    if ret == 0:
        ret = set_time(h, t_ns, 0)
    if ret == 0:
        run_due(h)
        ret = driver_result(h, h.ops.unmap(h.state, addr >> PAGE_SHIFT,
                                           (addr + (size - 1)) >> PAGE_SHIFT), "unmap", addr, size)
        settle(h)
    return leave(h, ret)


cdef int kfd_only(handle_t* h, const char* what) noexcept nogil:
    """Attributes are KFD's own; the answer to a call with another policy."""
    if h.kfd != NULL:
        return 0
    snprintf(h.text, TEXT, "%s: policy %s has no KFD attributes; advise and prefetch are for "
             "every policy", what, h.policy)
    return -E_OPNOTSUPP


cdef int set_attributes(handle_t* h, uint64_t addr, uint64_t size, const svmcore_attr_t* attrs,
                        uint32_t count, uint64_t t_ns, const char* what) noexcept nogil:
    cdef bint never = False
    cdef int ret = kfd_only(h, what)
    if ret:
        return ret
    if attrs == NULL and count:
        snprintf(h.text, TEXT, "%s: attrs NULL, expected %u attributes", what, count)
        return -E_INVAL
    ret = check_span(h, addr, size, what)
    if ret == 0:
        ret = set_time(h, t_ns, 0)
    if ret:
        return ret
    kfd_step(h.kfd)
    # attr_t is the same pair of 32-bit numbers.
    ret = kfd_set_attr(h.kfd, addr, size, <const attr_t*>attrs, count, 0, &never)
    settle(h)
    return driver_result(h, ret, what, addr, size)


cdef int api_set_attr(svmcore_space* space, uint64_t addr, uint64_t size,
                      const svmcore_attr_t* attrs, uint32_t count, uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    return leave(h, set_attributes(h, addr, size, attrs, count, t_ns, "set_attr"))


cdef int prefetch_any(handle_t* h, uint64_t addr, uint64_t size, uint32_t location,
                      uint64_t t_ns) noexcept nogil:
    """A prefetch as a replay makes it of a record."""
    cdef record_t record
    cdef uint32_t to = 0
    cdef int ret = check_span(h, addr, size, "prefetch")
    if location != SVMCORE_LOCATION_SYSTEM:
        while to < h.ngpus and h.machine.gpu_id[to] != location:
            to += 1
        to += 1
    if ret == 0 and to > h.ngpus:
        snprintf(h.text, TEXT, "prefetch: location %u, expected 0 or the id of a GPU", location)
        ret = -E_INVAL
    if ret == 0:
        ret = runnable(h)
    if ret == 0:
        ret = set_time(h, t_ns, 0)
    if ret:
        return ret
    memset(&record, 0, sizeof(record_t))
    record.kind = KIND_PREFETCH
    record.addr = addr
    record.size = size
    record.peer = <uint8_t>to
    h.ops.step(h.state)
    ret = h.ops.advise(h.state, &record)
    settle(h)
    return raised(h, driver_result(h, ret, "prefetch", addr, size))


cdef int api_prefetch(svmcore_space* space, uint64_t addr, uint64_t size, uint32_t location,
                      uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef svmcore_attr_t attr
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    if h.kfd == NULL:
        return leave(h, prefetch_any(h, addr, size, location, t_ns))
    attr.type = SVMCORE_ATTR_PREFETCH_LOC
    attr.value = location
    return leave(h, set_attributes(h, addr, size, &attr, 1, t_ns, "prefetch"))


cdef int api_step(svmcore_space* space, uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = set_time(h, t_ns, 0)
    if ret == 0:
        run_due(h)
    return leave(h, ret)


cdef int null_answer(handle_t* h, const char* what) noexcept nogil:
    snprintf(h.text, TEXT, "%s: NULL, expected room for the answer", what)
    return leave(h, -E_INVAL)


cdef int api_next_event(svmcore_space* space, uint64_t* t_ns) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    if t_ns == NULL:
        return null_answer(h, "next_event")
    t_ns[0] = SVMCORE_NEVER
    if h.ops.due != NULL:
        t_ns[0] = h.ops.due(h.state)
    return leave(h, 0)


cdef int api_now(svmcore_space* space, uint64_t* t_ns) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    if t_ns == NULL:
        return null_answer(h, "now")
    t_ns[0] = h.engine.now
    return leave(h, 0)


cdef int api_where(svmcore_space* space, uint64_t addr, uint32_t* processor) noexcept nogil:
    cdef handle_t* h
    cdef int where, ret = enter(space, &h)
    if ret:
        return ret
    if processor == NULL:
        return null_answer(h, "where")
    if h.ops.where != NULL:
        where = h.ops.where(h.state, addr >> PAGE_SHIFT)
    else:
        where = res_where(h.engine.res, addr >> PAGE_SHIFT)
    processor[0] = SVMCORE_NOWHERE if where < 0 else <uint32_t>where
    return leave(h, 0)


cdef int api_counters(svmcore_space* space, svmcore_counters_t* out) noexcept nogil:
    """As ``Space.counters`` names and sums them."""
    cdef handle_t* h
    cdef engine_t* e
    cdef uint32_t i, size
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = check_size(h, out, sizeof(svmcore_counters_t), "counters", True)
    if ret:
        return leave(h, ret)
    e = h.engine
    size = out.size
    memset(out, 0, sizeof(svmcore_counters_t))
    out.size = size
    for i in range(1 + h.ngpus):
        out.faults += e.processors[i].faults
        out.duplicate_faults += e.processors[i].duplicates
        out.remote_accesses += e.processors[i].remote_pages
        out.pages_touched += e.processors[i].pages_touched
        out.errors += e.processors[i].fatal
    out.migrations = e.counters.migrations
    out.migration_attempts = e.counters.migration_attempts
    out.migrated_bytes = e.counters.migrated_pages << PAGE_SHIFT
    out.bytes_to_device = e.counters.pages_to_device << PAGE_SHIFT
    out.bytes_to_host = e.counters.pages_to_host << PAGE_SHIFT
    out.evictions = e.counters.evictions
    out.evicted_bytes = e.counters.evicted_pages << PAGE_SHIFT
    out.unmaps = e.counters.unmaps
    out.maps = e.counters.maps
    out.queue_evictions = e.counters.queue_evictions
    out.queue_restores = e.counters.queue_restores
    return leave(h, 0)


cdef int api_info(svmcore_space* space, svmcore_info_t* out) noexcept nogil:
    cdef handle_t* h
    cdef uint32_t size
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = check_size(h, out, sizeof(svmcore_info_t), "info", True)
    if ret:
        return leave(h, ret)
    size = out.size
    out[0] = h.machine
    out.size = size
    return leave(h, 0)


cdef int api_set_event_callback(svmcore_space* space, svmcore_event_fn callback,
                                void* user) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    unwatch(h)
    if callback != NULL:
        h.callback = callback
        h.user = user
        h.next_watcher = h.gate.watchers
        h.gate.watchers = h
        h.engine.nevents = 0
    return leave(h, 0)


cdef int api_last_error(svmcore_space* space, char* text, uint64_t size) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    if text == NULL or size == 0:
        return null_answer(h, "last_error")
    snprintf(text, size, "%s", h.text)
    return leave(h, 0)


cdef const char* api_reason_name(uint32_t reason) noexcept nogil:
    return reasons[reason] if reason < nreasons else NULL


# ---- with Python ------------------------------------------------------------------------------

cdef void put_text(char* text, uint64_t size, str message) noexcept:
    """A message, cut to the room; never fails."""
    cdef bytes raw = message.encode("utf-8", "replace")
    cdef uint64_t n = len(raw)
    if text == NULL or size == 0:
        return
    if n >= size:
        n = size - 1
    memcpy(text, <char*>raw, n)
    text[n] = 0


cdef int code_of(object error) noexcept:
    """The negative errno that an exception stands for."""
    if isinstance(error, SvmError) and error.code in Errno.__members__:
        return -<int>Errno[error.code]
    if isinstance(error, MemoryError):
        return -E_NOMEM
    if isinstance(error, FileNotFoundError):
        return -E_NOENT
    if isinstance(error, (TypeError, ValueError)):
        return -E_INVAL
    return -E_IO


cdef int put_error(char* text, uint64_t size, object error) noexcept:
    message = str(error)
    if not isinstance(error, SvmError):
        message = f"{type(error).__name__}: {message}"
    put_text(text, size, message)
    return code_of(error)


cdef handle_t* attach(object space) except NULL:
    """The handle of a space, made when missing; one more user of it."""
    cdef _Handle kept
    cdef handle_t* h
    if not isinstance(space, Space):
        raise InvalidArgumentError(f"{type(space).__name__}: expected a svmcore.Space")
    if not isinstance(space.process, Process) or (<Process>space.process).ops == NULL:
        raise NotSupportedError(
            f"policy {space.policy.name}: expected one whose process derives from "
            "svmcore's Process, as kfd's"
        )
    kept = vars(space).get("_capi_handle")
    if kept is None or kept.h.state != (<Process>space.process).state:
        gate = vars(space.system).get("_capi_gate")
        if gate is None:
            gate = space.system._capi_gate = _Gate()
        kept = space._capi_handle = _Handle(gate, space.process, space.policy.name)
    h = kept.h
    if h.users == 0:
        Py_INCREF(space)
        h.space = <PyObject*>space
        h.text[0] = 0
        h.magic = MAGIC
    h.users += 1
    return h


cdef str text_of(const char* text):
    return os.fsdecode(<bytes>text)


cdef object options_machine(const svmcore_options_t* o):
    return None if o == NULL or o.machine == NULL else Machine.resolve(text_of(o.machine))


cdef handle_t* make(const svmcore_options_t* o, handle_t* neighbour) except NULL:
    machine = options_machine(o)
    policy = "kfd" if o.policy == NULL else text_of(o.policy)
    if neighbour == NULL:
        return attach(Space("gpu-80g" if machine is None else machine, policy=policy))
    system = (<object>neighbour.space).system
    if machine is not None and machine != system.machine:
        raise InvalidArgumentError(
            f"machine {machine.name}: expected {system.machine.name}, the neighbour's"
        )
    return attach(system.space(policy))


cdef int gil_create(const svmcore_options_t* o, handle_t* neighbour, handle_t** out) noexcept:
    cdef PyObject* pending[3]
    cdef int ret = 0
    PyErr_Fetch(pending, pending + 1, pending + 2)
    try:
        out[0] = make(o, neighbour)
    except BaseException as error:
        ret = put_error(o.error, o.error_size, error)
    PyErr_Restore(pending[0], pending[1], pending[2])
    return ret


cdef int check_options(const svmcore_options_t* o, handle_t* scratch) noexcept nogil:
    """Size and flags of options; *scratch* takes the text."""
    cdef int ret = check_size(scratch, o, sizeof(svmcore_options_t), "options", False)
    if ret == 0 and o.flags:
        snprintf(scratch.text, TEXT, "options: flags 0x%x, expected 0", o.flags)
        ret = -E_OPNOTSUPP
    if ret and o != NULL and o.size >= sizeof(svmcore_options_t) and o.size <= SVMCORE_STRUCT_MAX:
        if o.error != NULL and o.error_size:
            snprintf(o.error, o.error_size, "%s", scratch.text)
    return ret


cdef int api_create(const svmcore_options_t* o, svmcore_space** space) noexcept nogil:
    cdef handle_t scratch
    cdef handle_t* neighbour = NULL
    cdef handle_t* made = NULL
    cdef int ret
    if space == NULL:
        return -E_INVAL
    space[0] = NULL
    ret = check_options(o, &scratch)
    if ret == 0 and not Py_IsInitialized():
        ret = -E_OPNOTSUPP
    if ret == 0 and o.neighbour != NULL:
        ret = enter(o.neighbour, &neighbour)
    if ret:
        return ret
    with gil:
        ret = gil_create(o, neighbour, &made)
    if neighbour != NULL:
        ret = leave(neighbour, ret)
    space[0] = <svmcore_space*>made
    return ret


cdef int gil_load(const char* path, const svmcore_options_t* o, handle_t** out) noexcept:
    cdef PyObject* pending[3]
    cdef int ret = 0
    PyErr_Fetch(pending, pending + 1, pending + 2)
    try:
        if o != NULL and (o.policy != NULL or o.neighbour != NULL):
            raise InvalidArgumentError("load: expected no policy and no neighbour")
        out[0] = attach(Space.load(text_of(path), machine=options_machine(o)))
    except BaseException as error:
        ret = code_of(error) if o == NULL else put_error(o.error, o.error_size, error)
    PyErr_Restore(pending[0], pending[1], pending[2])
    return ret


cdef int api_load(const char* path, const svmcore_options_t* o,
                  svmcore_space** space) noexcept nogil:
    cdef handle_t scratch
    cdef handle_t* made = NULL
    cdef int ret = 0
    if space == NULL:
        return -E_INVAL
    space[0] = NULL
    if path == NULL:
        return -E_INVAL
    if o != NULL:
        ret = check_options(o, &scratch)
    if ret == 0 and not Py_IsInitialized():
        ret = -E_OPNOTSUPP
    if ret:
        return ret
    with gil:
        ret = gil_load(path, o, &made)
    space[0] = <svmcore_space*>made
    return ret


cdef int gil_from_object(void* python, handle_t** out) noexcept:
    cdef PyObject* pending[3]
    cdef int ret = 0
    PyErr_Fetch(pending, pending + 1, pending + 2)
    try:
        out[0] = attach(<object>python)
    except BaseException as error:
        ret = code_of(error)
    PyErr_Restore(pending[0], pending[1], pending[2])
    return ret


cdef int api_from_object(void* python, svmcore_space** space) noexcept nogil:
    cdef handle_t* made = NULL
    cdef int ret
    if space == NULL:
        return -E_INVAL
    space[0] = NULL
    if python == NULL:
        return -E_INVAL
    if not Py_IsInitialized():
        return -E_OPNOTSUPP
    with gil:
        ret = gil_from_object(python, &made)
    space[0] = <svmcore_space*>made
    return ret


cdef int api_to_object(svmcore_space* space, void** python) noexcept nogil:
    cdef handle_t* h
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    if python == NULL:
        return null_answer(h, "to_object")
    python[0] = NULL
    ret = without_python(h, 0)
    if ret == 0:
        with gil:
            Py_INCREF(<object>h.space)
        python[0] = h.space
    return leave(h, ret)


cdef void gil_release(PyObject* space) noexcept:
    """Drop the handle's reference; the handle's memory may go with it."""
    cdef PyObject* pending[3]
    PyErr_Fetch(pending, pending + 1, pending + 2)
    Py_DECREF(<object>space)
    PyErr_Restore(pending[0], pending[1], pending[2])


cdef int api_destroy(svmcore_space* space) noexcept nogil:
    cdef handle_t* h
    cdef PyObject* kept = NULL
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    ret = without_python(h, 0)
    if ret == 0:
        h.users -= 1
        if h.users == 0:
            unwatch(h)
            h.magic = 0
            kept = h.space
            h.space = NULL
    ret = leave(h, ret)
    if kept != NULL:
        with gil:
            gil_release(kept)
    return ret


cdef int get_attributes(handle_t* h, object process, slow_args_t* a) except? -1:
    """The driver's answer into the host's array; events so far stay recorded."""
    cdef bint recording = h.engine.recording
    cdef uint32_t i
    wanted = [(a.attrs[i].type, a.attrs[i].value) for i in range(a.count)]
    outcome = process.begin(h.engine.now)
    kfd_step(h.kfd)
    ret = process.get_attr(a.addr, a.size, wanted)
    process.finish(ret)
    h.engine.recording = recording
    if ret == 0:
        for i, (kind, value) in enumerate(outcome.out or ()):
            a.attrs[i].type = kind
            a.attrs[i].value = value
    return ret


cdef object operation(object space, str name):
    """A method of the space's process; not every policy's has each."""
    if not hasattr(space.process, name):
        raise NotSupportedError(f"policy {space.policy.name}: its processes have no {name}")
    return getattr(space.process, name)


cdef object advice_location(object space, uint32_t value):
    """What ``Space.advise`` takes for a location of the header."""
    if value == SVMCORE_LOCATION_NONE:
        return None
    name = space.location_name(value)
    if name == "undefined" and value != SVMCORE_LOCATION_UNDEFINED:
        raise InvalidArgumentError(f"advise: location {value}, expected 0 or the id of a GPU")
    return name


cdef int run_slow(handle_t* h, slow_args_t* a) except? -1:
    cdef int ret
    space = <object>h.space
    if a.what == SLOW_SAVE:
        space.save(text_of(a.text))
        return 0
    if a.what == SLOW_ADVISE:
        space.advise(a.addr, a.size, text_of(a.text), advice_location(space, a.location))
        return 0
    if a.what == SLOW_GET_ATTR:
        ret = get_attributes(h, space.process, a)
        return driver_result(h, ret, "get_attr", a.addr, a.size)
    first, last = a.addr >> PAGE_SHIFT, (a.addr + (a.size - 1)) >> PAGE_SHIFT
    if a.what == SLOW_MAP:
        call, what, given = operation(space, "mmap"), "map", (
            first, last, PROTECTIONS[a.prot], KINDS[a.kind]
        )
    elif a.what == SLOW_PROTECT:
        call, what, given = operation(space, "mprotect"), "protect", (
            first, last, PROTECTIONS[a.prot]
        )
    elif a.what == SLOW_INVALIDATE:
        call, what, given = operation(space, "invalidate"), "invalidate", (first, last)
    else:
        call, what, given = operation(space, "evict"), "evict", (first,)
    run_due(h)
    ret = driver_result(h, call(*given), what.encode(), a.addr, a.size)
    settle(h)
    return ret


cdef int gil_slow(handle_t* h, slow_args_t* a) noexcept:
    cdef PyObject* pending[3]
    cdef int ret = 0
    PyErr_Fetch(pending, pending + 1, pending + 2)
    try:
        ret = run_slow(h, a)
    except BaseException as error:
        ret = put_error(h.text, TEXT, error)
    PyErr_Restore(pending[0], pending[1], pending[2])
    return ret


cdef int slow(handle_t* h, slow_args_t* a, uint64_t t_ns, int ret) noexcept nogil:
    """The rest of a call whose arguments were checked with result *ret*."""
    ret = without_python(h, ret)
    if ret == 0:
        ret = set_time(h, t_ns, 0)
    if ret == 0:
        with gil:
            ret = gil_slow(h, a)
    return leave(h, ret)


cdef int api_save(svmcore_space* space, const char* path) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    a.what = SLOW_SAVE
    a.text = path
    if path == NULL:
        snprintf(h.text, TEXT, "save: path NULL")
        ret = -E_INVAL
    return slow(h, &a, SVMCORE_NOW, ret)


cdef int api_protect(svmcore_space* space, uint64_t addr, uint64_t size, uint32_t prot,
                     uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    a.what = SLOW_PROTECT
    a.addr = addr
    a.size = size
    a.prot = prot
    ret = check_span(h, addr, size, "protect")
    if ret == 0 and prot > 3:
        snprintf(h.text, TEXT, "protect: prot %u, expected up to 3", prot)
        ret = -E_INVAL
    return slow(h, &a, t_ns, ret)


cdef int api_invalidate(svmcore_space* space, uint64_t addr, uint64_t size,
                        uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    a.what = SLOW_INVALIDATE
    a.addr = addr
    a.size = size
    return slow(h, &a, t_ns, check_span(h, addr, size, "invalidate"))


cdef int api_evict(svmcore_space* space, uint64_t addr, uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    a.what = SLOW_EVICT
    a.addr = addr
    a.size = 1
    return slow(h, &a, t_ns, 0)


cdef int api_get_attr(svmcore_space* space, uint64_t addr, uint64_t size, svmcore_attr_t* attrs,
                      uint32_t count, uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    a.what = SLOW_GET_ATTR
    a.addr = addr
    a.size = size
    a.attrs = attrs
    a.count = count
    ret = kfd_only(h, "get_attr")
    if ret == 0:
        ret = check_span(h, addr, size, "get_attr")
    if ret == 0 and attrs == NULL and count:
        snprintf(h.text, TEXT, "get_attr: attrs NULL, expected %u attributes", count)
        ret = -E_INVAL
    return slow(h, &a, t_ns, ret)


cdef int api_advise(svmcore_space* space, uint64_t addr, uint64_t size, const char* advice,
                    uint32_t location, uint64_t t_ns) noexcept nogil:
    cdef handle_t* h
    cdef slow_args_t a
    cdef int ret = enter(space, &h)
    if ret:
        return ret
    a.what = SLOW_ADVISE
    a.addr = addr
    a.size = size
    a.text = advice
    a.location = location
    ret = check_span(h, addr, size, "advise")
    if ret == 0 and advice == NULL:
        snprintf(h.text, TEXT, "advise: advice NULL, expected a word")
        ret = -E_INVAL
    return slow(h, &a, t_ns, ret)


# ---- the table --------------------------------------------------------------------------------

# Filled once, below; hosts only read it.
cdef svmcore_api_t table
cdef const char* reasons[64]
cdef uint32_t nreasons = 0
# They hold the characters that the table points at, for a host that outlives the interpreter too.
_VERSION = __version__.encode()
_REASONS = tuple(name.encode() for name in REASONS)
Py_INCREF(_VERSION)
Py_INCREF(_REASONS)

for _name in _REASONS:
    reasons[nreasons] = <const char*><bytes>_name
    nreasons += 1

table.abi = SVMCORE_ABI
table.size = sizeof(svmcore_api_t)
table.version = <const char*><bytes>_VERSION
table.create = api_create
table.load = api_load
table.from_object = api_from_object
table.to_object = api_to_object
table.destroy = api_destroy
table.save = api_save
table.map = api_map
table.unmap = api_unmap
table.protect = api_protect
table.invalidate = api_invalidate
table.set_attr = api_set_attr
table.get_attr = api_get_attr
table.prefetch = api_prefetch
table.access = api_access
table.access_many = api_access_many
table.fault = api_fault
table.evict = api_evict
table.step = api_step
table.next_event = api_next_event
table.now = api_now
table.where = api_where
table.counters = api_counters
table.info = api_info
table.set_event_callback = api_set_event_callback
table.last_error = api_last_error
table.reason_name = api_reason_name
table.advise = api_advise

#: ``svmcore_api_t``, for ``svmcore_import()`` of the header.
api = PyCapsule_New(&table, SVMCORE_CAPSULE, NULL)
