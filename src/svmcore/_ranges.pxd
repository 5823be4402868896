# cython: language_level=3
"""The range map: disjoint spans of page numbers with a 32-bit value each.

Invariant: entries cover the whole 64-bit page space, value 0 is a hole.
Invariant: two neighbouring holes are one entry; with ``merge`` so are two
neighbours of equal value, without it they stay apart (a KFD range has an
identity, a VMA keeps its own bounds).
Invariant: a span never crosses the top of the page space; ``last`` is inclusive.

Free functions on an opaque struct, none raises: -1 means out of memory and the
map is as before the call.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# Exact counts of work done; they are asserted in tests, so a slower algorithm shows.
cdef struct ranges_work_t:
    uint64_t finds          # look-ups
    uint64_t nodes_visited  # nodes read on the way down
    uint64_t assigns        # spans overwritten
    uint64_t node_splits
    uint64_t node_merges
    uint64_t node_copies    # copy-on-write copies
    uint64_t entries_removed

cdef struct ranges_t        # opaque

# One entry as found: value and inclusive bounds.
cdef struct range_entry_t:
    uint64_t first
    uint64_t last
    uint32_t value          # 0 = hole

# merge: join equal neighbours. node_entries: 0 = the built-in size, else 4..64
# (small nodes are for fuzzing). NULL when out of memory.
cdef ranges_t* ranges_new(bint merge, uint32_t node_entries) noexcept nogil
cdef void ranges_free(ranges_t* m) noexcept nogil
cdef ranges_t* ranges_clone(const ranges_t* m) noexcept nogil

# The entry that contains the page (a hole is an entry of value 0).
cdef void ranges_find(ranges_t* m, uint64_t page, range_entry_t* out) noexcept nogil
# Its value alone: a little faster.
cdef uint32_t ranges_value(ranges_t* m, uint64_t page) noexcept nogil
# n look-ups with cache misses overlapped; out[i] belongs to pages[i].
cdef void ranges_find_many(ranges_t* m, const uint64_t* pages, size_t n,
                           range_entry_t* out) noexcept nogil
# The same, values only and pages below 2**64 - 1. A map that stays as it is for a while gets an
# index of its leaves here, which makes them cost half; so one thread at a time.
cdef void ranges_values_many(ranges_t* m, const uint64_t* pages, size_t n,
                             uint32_t* values) noexcept nogil
# First non-hole entry with last >= page; False when there is none.
cdef bint ranges_next(ranges_t* m, uint64_t page, range_entry_t* out) noexcept nogil
# Last non-hole entry with first <= page; False when there is none.
cdef bint ranges_prev(ranges_t* m, uint64_t page, range_entry_t* out) noexcept nogil
# Overwrite [first, last] with one entry of this value (0 = hole). Entries cut at
# the ends keep their value on the outer side.
cdef int ranges_assign(ranges_t* m, uint64_t first, uint64_t last, uint32_t value) noexcept nogil

# All non-hole entries in order; out has room for ranges_count of them.
cdef void ranges_entries(const ranges_t* m, range_entry_t* out) noexcept nogil
# Give an empty map outside a transaction n entries: in order, disjoint, none a hole.
# -1 also where it is not empty.
cdef int ranges_fill(ranges_t* m, const range_entry_t* entries, uint64_t n) noexcept nogil

cdef uint64_t ranges_count(const ranges_t* m) noexcept nogil    # non-hole entries
cdef uint64_t ranges_nbytes(const ranges_t* m) noexcept nogil   # memory held, bytes
cdef void ranges_work(const ranges_t* m, ranges_work_t* out) noexcept nogil

# One open transaction at a time. begin is O(1) (copy-on-write); rollback restores
# the map of begin in O(1) plus the nodes copied; commit keeps the present.
cdef int ranges_begin(ranges_t* m) noexcept nogil
cdef void ranges_rollback(ranges_t* m) noexcept nogil
cdef void ranges_commit(ranges_t* m) noexcept nogil

# Every invariant; 0 = sound, else the number of the rule that is broken (see _ranges.pyx).
cdef int ranges_check(const ranges_t* m) noexcept nogil
