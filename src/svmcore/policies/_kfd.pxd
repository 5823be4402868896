# cython: language_level=3
"""The KFD SVM driver's decisions, compiled: one process on one node.

Invariant: the tree maps each range's notifier interval to its record; a range's
own bounds lie inside it and are shorter only while unmap work is pending.
Invariant: a GPU is in at most one of a range's access and in-place sets.
Invariant: pages in GPU memory belong to the object that their range holds.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from .._evict cimport evict_t
from .._faults cimport MAX_GPUS, REASON_DUPLICATE, REASON_OK, engine_t
from .._process cimport Process, arrival_t, node_t, touch_t
from .._ranges cimport ranges_t
from .._types cimport outcome_t, record_t

# best[] of an attribute set: 0 system memory, 1 + i GPU i, or:
cdef enum:
    BEST_BY_ACTUAL = 254   # follows the pages: where they are if the GPU reaches it
    BEST_NONE = 255        # no access

# plain[] of an attribute set besides those: not for the short way.
cdef enum:
    PLAIN_NOT = 253

cdef enum process_state:
    STATE_RUNNING
    STATE_NO_PROCESS
    STATE_NO_NODE
    STATE_MM_GONE
    STATE_DRAINING

# One interned set of attributes; ranges with equal attributes share it.
cdef struct attrs_t:
    uint32_t preferred     # location: 0, 0xffffffff or a GPU id
    uint32_t prefetch
    uint32_t flags
    uint32_t granularity
    uint64_t access        # bit a GPU
    uint64_t aip
    uint32_t hash
    uint32_t next          # next set of the same hash bucket
    uint8_t best[MAX_GPUS] # best restore location by faulting GPU
    uint8_t plain[MAX_GPUS]  # the same for the short way, or PLAIN_NOT

cdef enum range_bits:
    RANGE_HAS_BO = 1       # holds a reference to its VRAM object
    RANGE_DONE = 2         # mapping_done
    RANGE_ON_BO = 4        # on its object's list
    RANGE_LINKED = 8       # on the process's list

# One driver range, what a fault reads of it: one cache line.
# Invariant: 64 bytes, on a 64-byte border.
cdef struct range_t:
    uint64_t start         # first page
    uint64_t last          # last page, inclusive
    uint64_t mapped        # GPUs with it in their page tables (6.x: 0 or 1)
    uint64_t validate_ns   # last successful mapping; 0 = never
    uint32_t vram_pages    # pages in GPU memory (a device has less than 2**32)
    uint32_t attrs         # attribute set
    uint32_t bo            # VRAM object; 0 without a pointer to a living one
    uint32_t block         # guess of the block of its first page, see block_of
    uint32_t bo_prev       # object's list, eviction order
    uint32_t bo_next
    uint32_t side          # rare state, 0 = none
    uint8_t actual         # 0 system memory, 1 + i GPU i may hold pages
    uint8_t bits           # range_bits
    uint16_t pad

# The rest of it, in an array of its own.
cdef struct links_t:
    uint32_t prev          # process list
    uint32_t next
    uint32_t invalid       # invalidations waiting for the restore work

cdef enum pending_t:
    PENDING_NONE = 0
    PENDING_UNMAP = 1
    PENDING_NOTIFIER = 2
    PENDING_ADD = 3

# Rare state of a range, in a table of its own.
cdef struct side_t:
    uint64_t needs_unmap   # GPUs that lost access in this call
    uint32_t first_child
    uint32_t last_child
    uint32_t next_child
    uint8_t pending        # pending_t
    uint8_t is_child
    uint8_t deferred       # on the deferred list

# One VRAM object.
cdef struct bo_t:
    uint64_t npages        # size: the range's at the first move
    uint64_t pages         # pages in use
    uint64_t sequence      # order of creation over the whole node
    uint32_t holders       # ranges with a reference
    uint32_t first         # list of ranges
    uint32_t prev          # objects in creation order
    uint32_t next
    uint8_t gpu
    uint8_t alive
    uint8_t stray          # ranges that are not on the list may point to it

cdef struct gpu_t:
    uint64_t vram_pages
    uint64_t owner_peers   # GPUs of the same owner (hive, else device)
    uint64_t reach         # GPUs on the same device or in the same hive
    uint32_t id
    uint32_t device
    uint8_t prefers_system
    uint8_t svm
    uint8_t coherent

cdef struct span_t:
    uint64_t first
    uint64_t last

# Switches of a driver version, see policies.kernels.KernelRules.
cdef struct rules_t:
    bint window_migration
    bint cpu_fault_splits
    bint prefetch_same_is_noop
    bint prefetch_failure_is_error
    bint mapping_error_stops
    uint8_t remap_test     # 0 never, 1 from last, 2 from last + 1
    bint same_needs_mapping
    bint access_remaps_with_xnack
    bint no_access_unmaps
    bint mapped_per_gpu
    bint stale_by_timestamp
    bint again_counted
    bint reserves_vram
    bint overflow_check
    bint reports_eviction
    bint always_mapped_maps

cdef struct fault_t:
    int32_t ret
    uint8_t reason
    uint8_t best           # processor code; 255 = not decided
    bint migration
    bint vram_fallback
    bint unregistered
    bint counted
    uint64_t first         # window
    uint64_t last

cdef enum:
    RECENT = 16            # a power of two; a line of cache

cdef struct kfd_t:
    engine_t* engine
    node_t* node
    ranges_t* tree
    ranges_t* vmas
    void* raw_ranges       # as allocated
    range_t* ranges        # raw_ranges on a cache line; [0] unused
    links_t* links         # of each range
    uint32_t nranges
    uint32_t cap_ranges
    uint32_t free_range    # list through links.next
    uint32_t live_ranges
    side_t* sides          # [0] unused
    uint32_t nsides
    uint32_t cap_sides
    uint32_t free_side     # list through next_child
    attrs_t* sets          # [0] unused
    uint32_t nsets
    uint32_t cap_sets
    uint32_t set_buckets[256]
    uint32_t default_set   # attributes of a new range in the present mode
    bo_t* bos              # [0] unused
    uint32_t nbos
    uint32_t cap_bos
    uint32_t free_bo       # list through next
    uint32_t first_bo
    uint32_t last_bo
    uint32_t list_head
    uint32_t list_tail
    uint32_t* deferred
    uint32_t ndeferred
    uint32_t cap_deferred
    gpu_t gpus[MAX_GPUS]
    uint32_t ngpus
    uint64_t supported
    rules_t rules
    bint xnack
    bint evict_on_full
    bint draining
    bint restore_pending
    uint64_t restore_ns    # when the restore work is due
    uint64_t evicted_ranges
    uint32_t granularity
    uint64_t max_pages
    uint64_t checkpoint_ts[MAX_GPUS]
    uint64_t ring_ts[MAX_GPUS]
    uint64_t ring_set      # GPUs whose ring holds an entry
    span_t* buffers
    uint32_t nbuffers
    uint32_t cap_buffers
    span_t* userptrs
    uint32_t nuserptrs
    uint32_t cap_userptrs
    uint32_t fail_vram
    uint32_t fail_limit
    uint32_t fail_copy
    uint32_t fail_hmm
    uint8_t state          # process_state
    bint plain             # faults may take the short way (see kfd_mode)
    uint64_t plain_gpus    # those whose faults may
    uint32_t vma_code      # most recent mapping looked up
    uint64_t vma_first
    uint64_t vma_last
    bint vma_plain         # it is anonymous memory, read and write
    evict_t* order         # order of eviction other than the driver's; NULL: the driver's
    uint64_t quota         # most pages of objects on one GPU; counts where order is not NULL
    uint64_t taken[MAX_GPUS]  # pages of objects, likewise
    uint64_t tree_version  # changes when the tree does: ranges looked up before may be stale
    uint64_t recent_version   # the version that this holds for:
    uint32_t recent[RECENT]   # ranges of recent look-ups, by 2 MiB block of the page; 0 = none

# Attribute types, numbers of the ioctl.
cdef enum attribute_t:
    ATTR_PREFERRED = 0
    ATTR_PREFETCH = 1
    ATTR_ACCESS = 2
    ATTR_AIP = 3
    ATTR_NO_ACCESS = 4
    ATTR_SET_FLAGS = 5
    ATTR_CLR_FLAGS = 6
    ATTR_GRANULARITY = 7

# One attribute of a set_attr call: type and value as the ioctl has them.
cdef struct attr_t:
    uint32_t kind
    uint32_t value

cdef int kfd_set_attr(kfd_t* p, uint64_t addr, uint64_t size, const attr_t* attrs, uint32_t n,
                      uint32_t op, bint* refused) noexcept nogil
cdef int kfd_mmap(kfd_t* p, uint64_t first, uint64_t last, uint32_t code) noexcept nogil
cdef int kfd_munmap(kfd_t* p, uint64_t first, uint64_t last) noexcept nogil
# node: the tree's range at the page where the caller knows it, else 0.
cdef int kfd_fault(kfd_t* p, int gpu, uint64_t page, bint write, uint64_t ts, uint32_t node,
                   fault_t* out) noexcept nogil

cdef inline void kfd_deliver(kfd_t* p, uint32_t gpu, uint64_t page, bint write, uint64_t ts,
                             uint32_t node, fault_t* out) noexcept nogil:
    """One delivery, counted and costed; a dropped one costs the driver nothing worth a number."""
    kfd_fault(p, <int>gpu, page, write, ts, node, out)
    if out.reason == REASON_DUPLICATE:
        p.engine.processors[1 + gpu].duplicates += 1
        return
    p.engine.cost_ns += p.engine.costs.fault_ns
    if out.reason == REASON_OK:
        p.engine.processors[1 + gpu].faults += 1
    if out.ret:
        p.engine.processors[1 + gpu].fatal += 1

# The same, told as touches are; nothing steps.
cdef void kfd_deliver_touch(kfd_t* p, const arrival_t* fault, uint32_t node,
                            touch_t* out) noexcept nogil
# A record of advice or prefetch, as an attribute of whole pages; the driver's own result.
cdef int kfd_advise(void* state, const record_t* record) noexcept nogil
cdef void kfd_access(kfd_t* p, uint32_t processor, uint64_t first, uint64_t last, bint write,
                     uint32_t node, touch_t* out) noexcept nogil
cdef void kfd_step(kfd_t* p) noexcept nogil
# Room for that many range records in all; False when memory runs out.
cdef bint kfd_grow_ranges(kfd_t* p, uint64_t want) noexcept nogil
cdef enum:
    LOOK_AHEAD = 32        # records at most

# What was found for records ahead of them.
cdef struct ahead_t:
    uint64_t version       # of the tree: nodes are stale when it has another
    uint32_t nodes[LOOK_AHEAD]    # the range at each record's page, 0 without one
    uint32_t blocks[LOOK_AHEAD]   # and its 2 MiB block; 0: to be looked up

# What n records will read, asked for ahead so that cache misses overlap; with faults the
# ranges are looked up too.
cdef void kfd_look_ahead(kfd_t* p, const record_t* records, uint32_t n, bint faults,
                         ahead_t* a) noexcept nogil
# Serve recorded faults from the head of the records on as long as each can go the short way;
# how many it served. Their place in what was found ahead begins at `at`.
cdef size_t kfd_faults(kfd_t* p, const record_t* records, size_t n, const ahead_t* a, size_t at,
                       uint32_t by, outcome_t* out) noexcept nogil
# Object number i has come, with its size and GPU: enter it into the order of eviction.
cdef void kfd_take_bo(kfd_t* p, uint32_t number) noexcept nogil
cdef inline void kfd_mode_of(kfd_t* p, uint32_t processor) noexcept nogil:
    """Decide, before a fault or touch of one processor, whether it may take the short way.

    Is nothing set that the short way leaves out? What may change while faults are served
    (pending work, time stamps, stopped queues) is asked for each of them.
    """
    p.plain = (
        p.xnack
        and p.state == STATE_RUNNING
        and p.rules.window_migration
        and p.rules.mapped_per_gpu
        and p.order == NULL
        and p.engine.costs.map_ns == 0
        and not p.engine.recording
        and (p.fail_vram | p.fail_limit | p.fail_copy | p.fail_hmm) == 0
    )
    p.plain_gpus = 0
    if p.plain and processor and p.checkpoint_ts[processor - 1] == 0:
        p.plain_gpus = p.supported & <uint64_t>1 << (processor - 1)

# The same for records of every GPU.
cdef void kfd_mode(kfd_t* p) noexcept nogil
cdef int kfd_run_deferred(kfd_t* p) noexcept nogil

cdef class KfdProcess(Process):
    cdef kfd_t* p
    cdef object __weakref__
    cdef readonly object rules
    cdef dict index
    cdef public bint refused
    cdef fault_t told      # of the operation's last fault
    cdef bint faulted
