# cython: language_level=3
"""Rows of the tables that hold a KFD process, versions 1 and 2.

Fields descend in size and leave no gap, so that a row is the same on every compiler.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# One range: those of the tree in address order, then pending children by parent.
# (In version 1 those of the tree are in the order of the process's list.)
cdef packed struct range_row_t:
    uint64_t start           # page
    uint64_t last            # page, inclusive
    uint64_t notifier_first  # interval in the tree; 0 of a child
    uint64_t notifier_last
    uint64_t mapped
    uint64_t validate_ns
    uint64_t vram_pages
    uint64_t needs_unmap
    uint32_t attributes      # row of `attributes`, from 1
    uint32_t object          # row of `objects`, from 1; 0 = none alive
    uint32_t invalid
    uint32_t parent          # row of `ranges`, from 1; 0 = in the tree
    uint32_t deferred        # place on the deferred list, from 1; 0 = not on it
    uint8_t actual
    uint8_t bits             # range_bits without RANGE_LINKED
    uint8_t pending          # pending_t
    uint8_t side             # has rare state

# One living VRAM object, in creation order.
cdef packed struct object_row_t:
    uint64_t npages
    uint64_t pages
    uint64_t sequence
    uint64_t listed          # ranges on its list: its share of `object_ranges`
    uint32_t gpu
    uint32_t holders

# One attribute set in use.
cdef packed struct attributes_row_t:
    uint64_t access
    uint64_t aip
    uint32_t preferred
    uint32_t prefetch
    uint32_t flags
    uint32_t granularity

# The process itself; flags are 0 or 1.
cdef packed struct process_row_t:
    uint64_t now
    double cost_ns
    uint64_t restore_ns
    uint64_t evicted_ranges
    uint64_t sequence        # of the node's next object
    uint64_t max_pages       # of the Spec, to refuse another process
    uint32_t version
    uint32_t granularity     # of the Spec
    uint32_t fail_vram
    uint32_t fail_limit
    uint32_t fail_copy
    uint32_t fail_hmm
    uint8_t xnack
    uint8_t draining
    uint8_t restore_pending
    uint8_t state
    uint8_t mapped_per_gpu   # of the Spec
    uint8_t pad_a
    uint8_t pad_b
    uint8_t pad_c

# One GPU of the process.
cdef packed struct gpu_row_t:
    uint64_t checkpoint_ts
    uint64_t ring_ts
    uint64_t ring_set        # 0 or 1
