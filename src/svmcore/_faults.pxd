# cython: language_level=3
"""The engine under every policy: effects on residency, counted, costed and logged.

A policy decides; these functions carry a decision out. They are the only ones
that move pages, write GPU page tables and advance modelled time.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ._residency cimport residency_t

cdef enum:
    MAX_GPUS = 64

# Why a fault ended as it did; names in _faults.REASONS, same order.
cdef enum reason_t:
    REASON_NONE
    REASON_OK
    REASON_DUPLICATE
    REASON_PERMISSION
    REASON_NO_ACCESS
    REASON_VMA_GONE
    REASON_SKIP_RECOVER
    REASON_STALE
    REASON_NO_RANGE
    REASON_XNACK_OFF
    REASON_NO_PROCESS
    REASON_NO_NODE
    REASON_MM_GONE
    REASON_DRAINING
    REASON_RETRY_LATER
    REASON_MIGRATE_FAILED
    REASON_MAP_FAILED
    REASON_NO_SVM
    REASON_NO_MAPPING
    REASON_NEVER_RESOLVES
    REASON_BUS_ERROR
    REASON_NO_MEMORY     # of the model, not of a device: nothing was changed
    REASON_OUT_OF_MEMORY # of a device, with nothing to evict
    REASON_FAULT_TYPE       # the hardware calls the fault fatal
    REASON_INVALID_PREFETCH # a fault of the hardware's prefetcher on an unknown address
    REASON_PREFETCH_OFF     # such faults are not reported at the time

cdef enum event_kind:
    EVENT_MIGRATE        # first, last, from, to, cause = trigger, value = pages moved
    EVENT_MAP            # first, last, to = GPU, cause = 1 in VRAM, value = writable
    EVENT_UNMAP          # first, last, to = GPU, cause = why
    EVENT_QUEUE          # cause 0 stopped, 1 running again
    EVENT_WARN           # cause = warning
    EVENT_EVICT_OBJECT   # value = device number, first = pages of the object
    EVENT_FILTER         # first = page taken out of the fault filter
    EVENT_HANG           # first = page where the driver would never settle
    EVENT_FAULT          # first, last, from = requester, value = access of a record
    EVENT_SERVED         # first, last, from = requester, value = 1 when pages moved
    EVENT_BATCH          # value = faults fetched
    EVENT_DUPLICATE      # first, last, from, to
    EVENT_REMOTE         # first, last, from = who is mapped, to = where they are, value = cause
    EVENT_EVICT          # first, last, from = GPU that gives them up
    EVENT_THRASH         # first, last, from = who was last: pages thrash from now on
    EVENT_THROTTLE       # first, last, from = requester, value = until, ns
    EVENT_PIN            # first, last, from = requester, to = where
    EVENT_UNPIN          # first, last
    EVENT_CANCEL         # first, last, from = requester, value = fatal reason

# Numbers of the KFD SMI interface.
cdef enum trigger_t:
    TRIGGER_PREFETCH = 0
    TRIGGER_GPU_FAULT = 1
    TRIGGER_CPU_FAULT = 2
    TRIGGER_EVICTION = 3

cdef enum unmap_t:
    UNMAP_NOTIFY = 0
    UNMAP_NOTIFY_MIGRATE = 1
    UNMAP_FROM_CPU = 2

cdef struct event_t:
    uint64_t t_ns        # modelled time
    uint64_t first       # first page
    uint64_t last        # last page, inclusive
    uint64_t value       # meaning by kind
    uint8_t kind         # event_kind
    uint8_t cause        # trigger, reason, why: by kind
    uint8_t source       # processor code: 0 CPU, 1 + i GPU i
    uint8_t target       # processor code

# Work of one processor.
cdef struct processor_t:
    uint64_t faults              # faults served
    uint64_t driver_faults       # deliveries that the driver itself counts
    uint64_t duplicates          # deliveries dropped as duplicates
    uint64_t pages_in            # pages that moved into its memory
    uint64_t pages_out           # pages that moved out of its memory
    uint64_t remote_pages        # page touches answered from another memory
    uint64_t pages_touched       # page touches by this processor
    uint64_t fatal               # accesses that could not be served

cdef struct counters_t:
    uint64_t migrations          # moves of more than 0 pages
    uint64_t migration_attempts  # moves tried, of 0 pages too
    uint64_t migrated_pages
    uint64_t pages_to_device
    uint64_t pages_to_host
    uint64_t evictions           # device memory objects evicted
    uint64_t evicted_pages
    uint64_t unmaps              # GPU page table spans taken away
    uint64_t maps                # GPU page table spans written
    uint64_t queue_evictions
    uint64_t queue_restores
    uint64_t duplicated_pages    # copies made for reading
    uint64_t dropped_pages       # copies given up; nothing is copied for them

cdef enum:
    CURVE_PIECES = 16

# Cost of a transfer by its pages: straight pieces; piece 0 begins at 0 pages.
cdef struct curve_t:
    uint32_t pieces
    double first[CURVE_PIECES]   # pages where the piece begins
    double ns[CURVE_PIECES]      # cost there
    double page_ns[CURVE_PIECES] # each page past it

# Costs of one machine, ns; a page is 4 KiB. A transfer's cost is rounded down to whole ns.
cdef struct costs_t:
    uint64_t fault_ns            # a fault served alone
    uint64_t batch_ns            # a batch of faults
    uint64_t in_batch_ns         # each fault of it
    uint64_t unmap_ns
    uint64_t map_ns              # one span of page tables
    uint64_t evict_ns            # one victim, besides its moves and unmaps
    curve_t to_device            # over the host link
    curve_t to_host
    curve_t peer                 # between GPUs
    double remote_ns             # latency of one remote access record
    double remote_page_ns
    double peer_ns               # latency of one transfer between GPUs
    double peer_page_ns

cdef struct engine_t:
    residency_t* res
    uint64_t now                 # modelled time, ns; never goes back
    uint64_t cost_ns             # cost of the present operation
    costs_t costs
    counters_t counters
    processor_t processors[MAX_GPUS + 1]   # [0] the CPU, [1 + i] GPU i
    event_t* events
    uint32_t nevents
    uint32_t cap_events
    bint recording               # log events
    bint lost_events             # no memory for one: the log is not whole

cdef inline uint64_t transfer_ns(const curve_t* c, uint64_t pages) noexcept nogil:
    """What moving the pages at once costs."""
    cdef uint32_t k = 0
    # Through signed numbers: a conversion of an unsigned one takes a branch.
    cdef double n = <double><int64_t>pages
    if c.pieces <= 1:
        return <uint64_t><int64_t>(c.ns[0] + c.page_ns[0] * n)
    while k + 1 < c.pieces and n > c.first[k + 1]:
        k += 1
    return <uint64_t><int64_t>(c.ns[k] + c.page_ns[k] * (n - c.first[k]))

cdef inline uint64_t move_ns(const costs_t* c, uint32_t source, uint32_t target,
                             uint64_t pages) noexcept nogil:
    """What moving the pages at once from one processor's memory to another's costs."""
    if source == 0:
        return transfer_ns(&c.to_device, pages)
    return transfer_ns(&c.peer if target else &c.to_host, pages)

cdef engine_t* engine_new() noexcept nogil
cdef void engine_free(engine_t* e) noexcept nogil
# Take the constants of a machine.Costs.
cdef void engine_costs(engine_t* e, object costs) except *
cdef void engine_log(engine_t* e, event_kind kind, uint64_t first, uint64_t last, uint8_t source,
                     uint8_t target, uint8_t cause, uint64_t value) noexcept nogil

# Move what can move of [first, last] to GPU memory (reserve 2 lines first).
cdef void engine_move_in(engine_t* e, uint32_t gpu, uint64_t first, uint64_t last,
                         trigger_t trigger, uint64_t* moved) noexcept nogil
# Move what is in the memory of the GPUs to system memory; 0, it cannot fail.
cdef int engine_move_out(engine_t* e, uint32_t gpu, uint64_t gpus, uint64_t first, uint64_t last,
                         trigger_t trigger, uint64_t* moved) noexcept nogil
# A move that carried nothing (an error, pages that cannot move).
cdef void engine_moved(engine_t* e, uint64_t first, uint64_t last, uint8_t source, uint8_t target,
                       trigger_t trigger, uint64_t moved) noexcept nogil
# Write the GPU's page tables; one event a run of pages of one kind.
cdef void engine_map(engine_t* e, uint32_t gpu, uint64_t first, uint64_t last,
                     bint writable) noexcept nogil
# Take [first, last] out of the page tables of the GPUs of the mask, in order.
cdef void engine_unmap(engine_t* e, uint64_t gpus, uint64_t first, uint64_t last,
                       unmap_t why) noexcept nogil

# The aligned block of 2**granularity pages around the page, cut to the range.
cdef inline void fault_window(uint64_t page, uint32_t granularity, uint64_t start, uint64_t last,
                              uint64_t* out_first, uint64_t* out_last) noexcept nogil:
    cdef uint64_t inside = (<uint64_t>1 << granularity) - 1
    cdef uint64_t low = page & ~inside, high = page | inside
    out_first[0] = low if low > start else start
    out_last[0] = high if high < last else last
