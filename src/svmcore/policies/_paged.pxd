# cython: language_level=3
"""A process whose decisions a policy in Python makes, in units of device memory.

Invariant: a page is in at most one of system memory and the memory of one GPU;
copies to read lie elsewhere than the page itself.
Invariant: what lies in a GPU's memory, page or copy, lies in a unit that the
process has taken of it.
Invariant: nothing maps a page with a copy for writing.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .._evict cimport evict_t
from .._faults cimport MAX_GPUS, engine_t, trigger_t
from .._process cimport Process, node_t
from .._ranges cimport ranges_t
from .._residency cimport residency_t

cdef enum:
    UNDEFINED = 255        # no preferred location, no granularity
    GRANULARITY_MAX = 63

cdef enum chunk_state:
    CHUNK_FREE
    CHUNK_NEW              # taken by the operation that runs: nothing evicts it yet
    CHUNK_HELD             # in the order of eviction

# One unit of device memory that the process has taken.
cdef struct chunk_t:
    uint64_t index         # first page >> unit
    uint32_t next_free
    uint8_t gpu
    uint8_t state

# One interned set of advice.
cdef struct advice_t:
    uint64_t access
    uint64_t in_place
    uint64_t no_access
    uint32_t flags
    uint8_t preferred      # processor code
    uint8_t granularity
    uint8_t prefetch       # processor code of the last prefetch
    uint8_t cpu            # which access the CPU was given, a kind of attribute; 0 none

cdef struct paged_t:
    engine_t* engine
    node_t* node
    ranges_t* vmas
    ranges_t* advice       # number of the set; equal neighbours join
    ranges_t* marks
    advice_t* sets         # [0]: no advice
    uint32_t nsets
    uint32_t cap_sets
    uint32_t unit          # log2 pages
    uint32_t ngpus
    uint64_t capacity[MAX_GPUS]
    uint64_t taken[MAX_GPUS]
    uint64_t quota
    uint64_t reach[MAX_GPUS + 1]  # by processor code: GPUs whose memory it addresses
    uint64_t direct[MAX_GPUS]     # GPUs that it exchanges data with directly
    uint32_t device[MAX_GPUS]
    evict_t* order
    bint follows           # the order wants to know of uses
    chunk_t* chunks        # [0] unused
    uint32_t nchunks
    uint32_t cap_chunks
    uint32_t free_chunk
    uint32_t* slots        # hash of (index, GPU) -> chunk
    uint32_t nslots        # power of two
    uint32_t live
    uint32_t* fresh        # chunks taken by the operation that runs
    uint32_t nfresh
    uint32_t cap_fresh
    bint* failed           # the policy raised: nothing is served until that is told
    void* owner            # the PagedProcess

# What one question to the policy led to.
cdef struct answer_t:
    int ret                # of Fail
    uint8_t reason

# The block's mask, zeros where it has none.
cdef void get_line(residency_t* r, uint32_t block, uint32_t tag, uint64_t* out) noexcept nogil
# The unit taken of the GPU's memory for pages of this index; 0 without one.
cdef uint32_t find_chunk(paged_t* t, uint64_t index, uint32_t gpu) noexcept nogil
# Room for so many more units; then one is taken, its number is new.
cdef bint reserve_chunks(paged_t* t, uint64_t count) noexcept nogil
cdef uint32_t take_chunk(paged_t* t, uint64_t index, uint32_t gpu) noexcept nogil

cdef class PagedProcess(Process):
    cdef paged_t* t
    cdef object __weakref__
    cdef readonly object machine
    cdef readonly object policy
    cdef public bint advice_read   # the policy looked at advice
    cdef int serve(self, uint32_t processor, uint64_t page, bint write, answer_t* out) noexcept
    cdef int execute(self, object action, trigger_t trigger, answer_t* out) except -1
    cdef list asked(self, str method, object actions)
    cdef object refuse(self, object action, str expected)
    cdef int check_processor(self, processor) except -1
    cdef int attribute(self, uint64_t first, uint64_t last, uint32_t kind,
                       uint32_t value) noexcept
    cdef object code_of(self, location)
    cdef object id_of(self, uint8_t code)
    cdef dict advice_row(self, uint32_t number)
    cdef tuple copy_holders(self, uint64_t page)
