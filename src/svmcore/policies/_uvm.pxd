# cython: language_level=3
"""The UVM driver's decisions, compiled: one process on one node.

Pages of a block are bits of eight words, counted from the start of its 2 MiB frame;
sets of processors are bits of one word, bit 0 the CPU, 1 + i GPU i. Records lie in
pools and are named by number, 0 is none. Where pages of the kernel have 64 KiB, all
sixteen bits of one are set or none; what goes page by page goes by its first, the head.

Invariant: a page with several copies is in its block's `duplicated`, and nobody may
write it. Invariant: every block has a place of the CPU, so that eviction finds room.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from .._evict cimport evict_t
from .._faults cimport engine_t
from .._process cimport Process, node_t, ops_t
from .._ranges cimport ranges_t

cdef enum:
    PROCESSORS = 64
    MOST_BATCH = 4096        # faults of one batch
    PIECES = 64              # most chunks of a block that is no whole frame

# Records of one kind, in one growing array; the first field of each is `next`.
cdef struct pool_t:
    char* v
    uint32_t n               # numbers given so far, 0 included
    uint32_t cap
    uint32_t free            # list through next
    uint32_t live
    uint32_t item            # bytes of a record

# What one processor has of a block.
cdef struct place_t:
    uint32_t next            # of the block, by processor
    uint32_t chunk           # whole frame: its root chunk; else its cut_t
    uint64_t resident[8]
    uint64_t tables[3][8]    # page table entries: read, write, atomic
    uint32_t flagged         # access counter: regions of 64 KiB that were touched
    uint16_t count           # its touches
    uint8_t notified         # 1 + region whose touch filled it, and NOTICE; 0 none
    uint8_t processor

cdef enum:
    NOTICE = 0x80            # of place_t.notified: to be served yet

# Chunks of a block that is no whole frame: root * 512 + offset, by piece; 0 is none.
cdef struct cut_t:
    uint32_t next
    uint32_t used
    uint32_t chunks[64]

# What thrashing detection knows of a page.
cdef struct history_t:
    uint64_t stamp           # ns, rounded down to 64
    uint64_t end             # of its throttles
    uint64_t processors
    uint64_t throttled
    uint32_t entry           # of the queue of pinned pages
    uint8_t events
    uint8_t flags            # history_flags
    uint8_t pin_at
    uint8_t throttles
    uint8_t favoured         # 1 + processor that is not throttled now; 0 none

cdef enum history_flags:
    HISTORY_MIGRATED = 1
    HISTORY_REVOKED = 2
    HISTORY_PINNED = 4

cdef struct histories_t:
    uint32_t next
    uint64_t thrashing[8]
    uint64_t pinned[8]
    history_t pages[512]

cdef struct block_t:
    uint32_t next            # of the frame, by address
    uint32_t range
    uint64_t frame
    uint64_t duplicated[8]
    uint64_t discarded[8]
    uint64_t stamp           # thrashing: last event, and last one of a thrashing page
    uint64_t last_thrashing
    uint32_t place           # list, by processor
    uint32_t histories
    uint32_t resets
    uint32_t pins
    uint16_t start           # pages [start, outer) of the frame
    uint16_t outer
    uint16_t prefetch_faults
    uint8_t prefetch_last    # 1 + processor
    uint8_t processor        # thrashing: 1 + processor of the last event

# Frames of one mapping, made when its first page is touched.
cdef struct arena_t:
    uint32_t next
    uint32_t ranges          # that lie in it
    uint64_t first_frame
    uint64_t frames
    uint32_t* table          # first block of each frame; NULL until one is made

cdef struct range_t:
    uint32_t next
    uint32_t arena
    uint64_t first
    uint64_t last
    uint64_t accessed_by
    uint8_t preferred        # 1 + processor; 0 none
    uint8_t duplication      # 0 unset, 1 enabled, 2 disabled
    uint8_t prot             # 1 readable, 2 writable

cdef enum:
    ON_NO_LIST = 3

# A 2 MiB chunk.
cdef struct root_t:
    uint32_t next            # free list, or the operation's new ones
    uint32_t block           # whose it is as a whole
    uint32_t split           # how it is cut
    uint32_t before          # lists of eviction
    uint32_t after
    uint32_t before_free[2]  # stacks of chunks with a free slot of 64 KiB, with free pages
    uint32_t after_free[2]
    uint64_t age
    uint8_t gpu              # 1 + index
    uint8_t list             # 0 unused, 1 discarded, 2 used, or none
    uint8_t fresh            # taken by the present operation
    uint8_t stacked          # bits of the two stacks

cdef struct split_t:
    uint32_t next
    uint32_t chunks          # living
    uint32_t whole           # free slots of 64 KiB
    uint32_t small           # slots that are cut in pages
    uint16_t free[32]        # free pages of those
    uint16_t page[512]       # by offset of a chunk: its first page in the frame
    uint32_t block[512]      # and its block; 0 none

# A pinned page in the queue of the unpin timer.
cdef struct entry_t:
    uint32_t next
    uint32_t before
    uint32_t block
    uint32_t page
    uint64_t deadline

cdef struct gpu_t:
    uint64_t vram_pages
    uint32_t id
    uint32_t head[3]
    uint32_t tail[3]
    uint32_t stack[2]
    uint64_t held            # free root chunks that the process holds
    uint64_t prefetch_off    # until when it reports no prefetch faults
    uint64_t taken           # pages of all its root chunks, those too
    uint8_t svm
    uint8_t coherent

cdef struct uvm_counters_t:
    uint64_t populated_pages     # made where there was no copy
    uint64_t invalidated_pages   # copies dropped by a writer
    uint64_t prefetched_pages
    uint64_t batches
    uint64_t services            # runs of the service loop
    uint64_t replays
    uint64_t throttles
    uint64_t pins
    uint64_t unpins
    uint64_t revocations
    uint64_t notifications       # of access counters
    uint64_t access_counter_migrations
    uint64_t fatal_batches       # that went the cancel path
    uint64_t cancels             # pages whose faults were cancelled
    uint64_t invalid_prefetches  # faults of the hardware's prefetcher on unknown addresses
    uint64_t prefetch_stops      # times that a GPU's were switched off

# Part of a batch: faults of one block.
cdef struct group_t:
    uint32_t block
    uint64_t pages[8]

# A fault buffer entry as far as coalescing looks at it.
cdef struct entering_t:
    uint64_t page
    uint32_t instance
    uint16_t tlb           # below 256
    uint8_t level          # access level, 0 to 4
    uint8_t levels         # out: bits of those that it stands for
    uint32_t instances     # out: entries that it stands for; 0: another stands for it

# One fault in the order in which a batch is served.
cdef struct sorted_t:
    uint64_t page
    uint32_t processor
    uint32_t rank          # most intrusive first, then as they came
    uint32_t entry         # of those that coalesce; NO_ENTRY: fatal by its type

cdef struct uvm_t:
    ops_t ops                # OPS with the batch size of the rules
    engine_t* engine
    node_t* node
    ranges_t* tree
    pool_t ranges
    pool_t arenas
    pool_t blocks
    pool_t places
    pool_t cuts
    pool_t histories
    pool_t roots
    pool_t splits
    pool_t entries
    uint64_t near_first      # most recent range looked up
    uint64_t near_last
    uint32_t near
    uint32_t processors      # the CPU and the GPUs
    uint64_t can[64]
    uint64_t fast[64]
    uint64_t atomics[64]
    uint64_t siblings[64]
    uint64_t reaching[64]
    uint64_t memory
    gpu_t gpus[64]           # by processor; [0] unused
    uint32_t unit            # 4 KiB pages in a page of the kernel: 1 or 16, and its log2
    uint32_t unit_log
    uint64_t within          # unit - 1
    uint64_t lane            # bits of the kernel's page at page 0
    uint64_t asked_first     # of the present touch, before it was widened to whole pages
    uint64_t asked_last
    uint64_t short_way       # GPUs whose common touches may go it
    evict_t* order           # of used root chunks; NULL for the driver's own
    uint32_t new_first       # root chunks of the present operation
    uint32_t new_last
    uint32_t full            # GPU that had no room; 0 none
    uvm_counters_t counters
    # thrashing
    uint64_t lapse
    uint64_t nap
    uint64_t epoch
    uint64_t pin
    uint64_t timer
    int32_t votes
    uint32_t queue_first
    uint32_t queue_last
    # rules
    uint32_t outstanding
    uint32_t batch_size
    uint32_t max_batches
    uint32_t max_throttled
    uint32_t prefetch_threshold
    uint32_t prefetch_min_faults
    uint32_t thrashing_threshold
    uint32_t pin_threshold
    uint32_t max_resets
    int64_t lapse_votes
    uint32_t pma_batch
    uint64_t prefetch_lapse  # ns
    uint64_t quota           # most pages taken on a GPU
    uint8_t lapse_mode       # 0 off, 1 shipped, 2 intended
    uint8_t replay_policy    # 0 block, 1 batch, 2 batch_flush, 3 once
    bint coalesce
    bint prefetch
    bint thrashing
    bint quirk
    bint home_only
    bint remote_atomics
    bint map_evicted         # an evicted GPU is mapped to the copy
    bint counting            # access counters are on, and notifications not dropped
    uint32_t counter_threshold
    uint32_t counter_batch
    uint64_t notices         # that the present touch raised
    # scratch of one operation
    uint64_t targets[64][8]
    group_t* chunk           # MOST_BATCH of them
    group_t* again
    entering_t* entering     # MAX_BATCH of each
    sorted_t* sorted
    uint64_t gained[64][8]   # pages that a processor was mapped to; zero between operations

cdef class UvmProcess(Process):
    cdef uvm_t* p
    cdef object __weakref__
    cdef readonly object rules
    cdef object result
    cdef uint32_t made(self, uint64_t page) except 0

# For what saves and loads a process.
cdef void* pool_at(pool_t* pool, uint32_t number) noexcept nogil
cdef bint pool_reserve(pool_t* pool, uint64_t count) noexcept nogil
cdef uint32_t pool_take(pool_t* pool) noexcept nogil
cdef uint32_t uvm_range_at(uvm_t* p, uint64_t page) noexcept nogil
cdef uint32_t uvm_block_at(uvm_t* p, uint32_t number, uint64_t frame) noexcept nogil
cdef uint32_t uvm_make_block(uvm_t* p, uint32_t number, uint64_t frame) noexcept nogil
cdef place_t* uvm_place(uvm_t* p, uint32_t block, uint32_t processor) noexcept nogil
cdef place_t* uvm_make_place(uvm_t* p, uint32_t block, uint32_t processor) noexcept nogil
cdef int uvm_map(uvm_t* p, uint64_t first, uint64_t last, uint32_t prot) noexcept nogil
cdef bint uvm_reserve_roots(uvm_t* p, uint64_t count) noexcept nogil
cdef bint uvm_touched(uvm_t* p, uint32_t number) noexcept nogil
cdef bint uvm_reserve_block(uvm_t* p, uint32_t number) noexcept nogil
cdef uint32_t uvm_piece(const block_t* b, uint32_t piece, uint32_t* size) noexcept nogil
cdef void uvm_stack(uvm_t* p, uint32_t number, uint32_t which, bint on) noexcept nogil
