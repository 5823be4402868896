# cython: language_level=3
"""In which order device memory is given up: strategies over numbered units of it.

A unit is what a policy takes and gives up at once: a chunk of device memory, a VRAM
object. The policy numbers its units from 1; all state of a strategy lies in arrays
beside those numbers, so that every operation costs O(1) and none allocates but
``evict_reserve``.

Invariant: a unit is in the order of at most one GPU.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from ._faults cimport MAX_GPUS

# Numbers of the words in _evict.ORDERS.
cdef enum order_t:
    ORDER_FIFO               # longest in memory
    ORDER_LRU                # longest unused
    ORDER_MRU                # most recently used
    ORDER_LFU                # least often used since it came, then the longest unused
    ORDER_RANDOM             # any, by a seeded generator
    ORDER_SECOND_CHANCE      # as fifo, but one that was used since goes round once more

cdef struct unit_t:
    uint64_t stamp           # when it came or was last used, as the caller counts
    uint32_t prev
    uint32_t next
    uint32_t place           # lfu: its bucket; random: its index in the GPU's table
    uint8_t gpu              # GPU + 1; 0 = in no order
    uint8_t used             # second chance: used since the hand passed

# Units used equally often, the longest unused first.
cdef struct bucket_t:
    uint64_t uses
    uint32_t first
    uint32_t last
    uint32_t prev
    uint32_t next

cdef struct evict_t:
    order_t order
    uint64_t random          # state of the generator
    unit_t* units            # [0] unused
    uint32_t cap_units
    uint32_t count[MAX_GPUS]
    uint32_t first[MAX_GPUS] # units, or buckets for lfu
    uint32_t last[MAX_GPUS]
    uint32_t drawn[MAX_GPUS] # random: the next victim, 0 before it is drawn
    bucket_t* buckets        # [0] unused
    uint32_t cap_buckets
    uint32_t nbuckets
    uint32_t free_bucket     # list through next
    uint32_t* tables[MAX_GPUS]
    uint32_t cap_table[MAX_GPUS]

cdef evict_t* evict_new(order_t order, uint64_t seed) noexcept nogil
cdef void evict_free(evict_t* e) noexcept nogil
cdef uint64_t evict_nbytes(const evict_t* e) noexcept nogil
# Room for the units below `want` on the GPUs below `ngpus`; False when memory runs out.
cdef bint evict_reserve(evict_t* e, uint64_t want, uint32_t ngpus) noexcept nogil
# The unit takes memory of the GPU; room is reserved.
cdef void evict_insert(evict_t* e, uint32_t unit, uint32_t gpu, uint64_t stamp) noexcept nogil
# It is used.
cdef void evict_touch(evict_t* e, uint32_t unit, uint64_t stamp) noexcept nogil
# It gives its memory back.
cdef void evict_remove(evict_t* e, uint32_t unit) noexcept nogil
# What goes next, 0 when the GPU holds none; the same until that unit is used or leaves.
cdef uint32_t evict_victim(evict_t* e, uint32_t gpu) noexcept nogil
# Number of a strategy by its word.
cdef order_t order_of(object word) except *
# The order as rows (unit, gpu, stamp, uses or used) from which evict_restore makes it again.
cdef object evict_pack(evict_t* e)
cdef int evict_restore(evict_t* e, object rows, object drawn, uint64_t random) except -1
