# cython: language_level=3
"""A process under any policy as the engine sees it, and the node whose memory processes share.

A policy's compiled half derives from :class:`Process`, fills its table of operations
and joins a node. The replay loop calls the table; nothing here knows a policy.
"""
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from ._faults cimport MAX_GPUS, engine_t
from ._types cimport record_t

cdef enum:
    MAX_TENANTS = 64
    MAX_BATCH = 4096         # faults of one delivery
    NOWHERE = 255            # processor code: not decided

# What one touch, or one delivered fault, met.
cdef struct touch_t:
    int32_t ret              # 0 or a negative errno
    uint8_t reason           # of the end: REASON_OK or why it is fatal
    uint8_t best             # where the last fault was served from, processor code
    uint32_t faults          # served
    uint32_t duplicates      # dropped deliveries
    uint64_t remote          # page touches answered from another memory
    uint64_t moved           # pages that moved
    uint64_t page            # page of a fatal end

# One GPU fault as the hardware reports it.
cdef struct arrival_t:
    uint64_t page
    uint64_t ts              # of the fault buffer entry
    uint32_t processor       # 1 + i GPU i
    uint32_t access          # as in a record: 0 read, 1 write, 2 atomic, 3 prefetch, 4 unknown
    uint32_t type            # of the hardware, fatal from 5 on; 0 where it is not known

# Operations of a policy on its process, pages inclusive. Costs add to engine.cost_ns unless
# said otherwise; whoever calls lets them pass.
cdef struct ops_t:
    uint32_t batch           # most faults of one delivery, 1 to MAX_BATCH
    bint python              # they take the GIL: an interpreter has to run
    # A touch until it is served or fatal; processor 0 is the CPU, 1 + i GPU i. Time passes.
    void (*touch)(void* state, uint32_t processor, uint64_t first, uint64_t last,
                  uint32_t access, touch_t* out) noexcept nogil
    # Faults that arrive together, each delivered once by the driver's exact rules.
    void (*deliver)(void* state, const arrival_t* faults, uint32_t n, touch_t* out) noexcept nogil
    # An anonymous mapping appears; -EEXIST where one is.
    int (*map)(void* state, uint64_t first, uint64_t last) noexcept nogil
    int (*unmap)(void* state, uint64_t first, uint64_t last) noexcept nogil
    # A record of advice or prefetch, the driver's own result.
    int (*advise)(void* state, const record_t* record) noexcept nogil
    # Run what is due at engine.now.
    void (*step)(void* state) noexcept nogil
    # Views, each NULL where what is said here in brackets holds.
    # When work is due, UINT64_MAX without any. (Never is any.)
    uint64_t (*due)(void* state) noexcept nogil
    # Processor whose memory holds the page, -1 without one. (As the engine's residency says.)
    int (*where)(void* state, uint64_t page) noexcept nogil
    # Pages among which a fault on the page is decided; False without. (There are none.)
    bint (*window)(void* state, uint64_t page, uint64_t* first, uint64_t* last) noexcept nogil

# What a process would give up, by what that costs: the cheapest goes first, whose it is.
cdef enum age_kind:
    AGE_FREE                 # nothing lies in it
    AGE_DISCARDED            # contents that nobody needs
    AGE_USED

# Ages are comparable over the processes of a node: the kind, then the node's own clock.
cdef inline uint64_t age_of(uint64_t kind, uint64_t stamp) noexcept nogil:
    return kind << 62 | stamp

# A process that holds device memory of the node.
cdef struct tenant_t:
    void* state
    engine_t* engine
    # age_of what it would give up first on a GPU, its stamp from node_t.sequence; KEEPS when
    # there is nothing.
    uint64_t (*oldest)(void* state, uint32_t gpu) noexcept nogil
    # Give that up; False when its memory is still taken.
    bint (*evict)(void* state, uint32_t gpu) noexcept nogil

cdef extern from *:
    """
    #define SVM_KEEPS UINT64_MAX
    """
    const uint64_t KEEPS "SVM_KEEPS"

# Memory of the node's devices, shared by its processes.
cdef struct node_t:
    uint64_t used[MAX_GPUS]  # pages taken
    uint64_t sequence        # stamp of the next allocation or use, below 2**62
    tenant_t tenants[MAX_TENANTS]
    uint32_t ntenants

# Evict the oldest of all tenants on a GPU, one by one, until `size` more pages fit in its
# `capacity`; the engine that asks waits for it. 0 or -ENOMEM; engine may be NULL.
cdef int node_make_room(node_t* n, engine_t* engine, uint32_t gpu, uint64_t size,
                        uint64_t capacity) noexcept nogil

cdef class Node:
    cdef node_t n
    cdef int join(self, const tenant_t* tenant) except -1
    cdef void leave(self, const void* state) noexcept

# Raise what a policy written in Python raised while nobody could be told.
cdef int process_check(Process p) except -1
# A mapping's code in a map of VMAs: 1 + (protection | kind << 2); and what it stands for, as
# (first, last, protection, kind).
cdef uint32_t mapping_code(object prot, object kind) except 0
cdef object mapping_row(uint64_t first, uint64_t last, uint32_t code)
# GPU id of a processor code, 0 for the CPU.
cdef object location_id(tuple gpus, uint8_t processor)
# The events of an operation, in order, into the lists of an Outcome.
cdef int collect_events(engine_t* e, tuple gpus, object result) except -1

cdef class Process:
    cdef void* state         # the policy's own
    cdef const ops_t* ops
    cdef engine_t* engine
    cdef readonly tuple gpus
    cdef readonly Node node
    cdef readonly uint64_t moved    # pages that the last access moved
    cdef touch_t last_touch  # the last one that was not as the one before
    cdef tuple told_touch    # what access told of it
    cdef object outcome      # makes the record of one operation
    cdef object result       # of the present or last operation
    cdef object failure      # what a policy written in Python raised
    cdef bint failed         # it did: touches are refused until somebody is told

# The last step of making a process, its node given: its state, operations and engine are known,
# and its memory can be asked for.
cdef int process_join(Process process, void* state, const ops_t* ops, engine_t* engine,
                      uint64_t (*oldest)(void* state, uint32_t gpu) noexcept nogil,
                      bint (*evict)(void* state, uint32_t gpu) noexcept nogil) except -1
