# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True, embedsignature.format=python
# cython: binding=True, freethreading_compatible=True
"""The range map: a copy-on-write B+-tree of boundaries over 64-bit page numbers.

Owns the structure behind every question "which range holds this page?" and the
Python face of it, :class:`RangeMap`.

Structure. The page space is cut by boundaries, each with the value of the entry
that begins there; an entry runs to the next boundary, and a hole is an entry of
value 0, so no ends are stored. A leaf holds up to 64 boundaries as 32-bit
distances from its low fence. The fence is the key in the parent, so a look-up
reads the key lines of a leaf and one value line, never a header. The low fence
is always the first boundary of the leaf: no entry is cut by a fence, and a leaf
may run on without end, as only *starts* have to lie within 2**32-2 pages.
Inner nodes repeat their last key and child in the unused slots, so that the
search needs no count. Nodes live in two arenas and are named by 32-bit numbers;
entry counts and transaction marks are kept beside the arenas, off the read path.

Changes. An assign inside one leaf is a shift within that leaf. All others (a
full or nearly empty leaf, several leaves) take the seam path: the kept head of
the first leaf, the new boundaries and the kept tail of the last leaf are dealt
out to new leaves, and the same is done with their parents until one can be
edited in place. New nodes are complete before an old one is touched, so running
out of memory changes nothing. While a transaction is open, nodes older than it
are copied before the first change, and replaced ones are held until it ends.

Cost. O(log n) a look-up and an assign, plus the entries overwritten. No locks:
one thread uses a map at a time, except that look-ups may run side by side when
nothing changes the map (they then may lose counts of work).
"""
cimport cython
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove, memset

from ._large cimport resize

import operator

import numpy as np

from .errors import BusyError, InvalidArgumentError, OutOfMemoryError

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define RANGES_PREFETCH(p) __builtin_prefetch((const void*)(p))
    #else
    #define RANGES_PREFETCH(p) ((void)(p))
    #endif
    #define RANGES_NONE 0xffffffffu
    #define RANGES_REACH 0xfffffffeu
    #define RANGES_TOP 0xffffffffffffffffu
    """
    void prefetch "RANGES_PREFETCH"(const void* p) noexcept nogil
    # Unused leaf key, end of a list of nodes, no node.
    const uint32_t NONE "RANGES_NONE"
    # Largest distance of a start from its leaf's low fence; below NONE.
    const uint32_t REACH "RANGES_REACH"
    # Last page number.
    const uint64_t TOP "RANGES_TOP"

cdef enum:
    # Entries of a leaf: four lines of keys, four of values. 32 is slower to change and
    # takes 15 % more memory at 1e6 entries.
    LEAF = 64
    # Children of an inner node: four lines of 64-bit keys.
    INNER = 32
    # Most levels above the leaves. An assign that would need one more is refused as
    # out of memory; only node_entries below 8 could come near it.
    DEPTH = 40
    # Look-ups in flight: a miss takes about 15 times its share of bandwidth.
    LANES = 16
    # Bytes of a cache line; nodes start on one, else a key search reads a fifth line.
    LINE = 64
    # Leaves (512 KiB) up to which prefetching costs more than it brings; at 1e6
    # entries it halves the time of a look-up.
    CACHED_LEAVES = 1024
    # Look-ups of values for each leaf, without a new leaf between them, until an index of
    # the leaves is made: it costs about as much as one look-up for each leaf.
    INDEX_AFTER = 8
    # Leaves that may begin within one of its buckets; more, and the tree is faster.
    INDEX_DEPTH = 8
    # Room for the new nodes of one level of the seam path. At most 9 come: what two
    # nodes, a neighbour and two boundaries held fills 4, and reach may cut 5 times.
    SEAM_NODES = 16

# Invariant: start[0] is 0, starts ascend, unused ones are NONE.
cdef struct leaf_t:
    uint32_t start[LEAF]    # pages from the low fence
    uint32_t value[LEAF]    # 0 = hole; undefined where unused

# Invariant: keys ascend; unused slots repeat the last key and child.
cdef struct inner_t:
    uint64_t key[INNER]     # low fence of the child, page number
    uint32_t child[INNER]   # number of an inner node or, on the lowest level, a leaf

# Nodes of one size, named by number.
# Invariant: a node is in the tree, on the free list (count 0) or replaced in the
# open transaction.
# Invariant: marks are 0 unless a transaction is open.
cdef struct arena_t:
    char* raw               # as allocated
    char* nodes             # raw, moved up to a cache line
    uint8_t* count          # entries or children of each node, 0 = free
    uint32_t* mark          # link of own_head or gone_head, 0 = in neither list
    uint32_t size           # bytes of a node
    uint32_t cap            # nodes that fit
    uint32_t used           # nodes ever handed out
    uint32_t free_head      # first free node, linked through its first word
    uint32_t free_count
    uint32_t own_head       # nodes made in the open transaction: number + 1, NONE ends
    uint32_t gone_head      # nodes replaced in it, kept for rollback
    uint32_t gone_count

# A leaf.
cdef struct place_t:
    uint32_t leaf
    uint32_t line[3]        # first key of its second, third and fourth line of keys

# All leaves of a map that is looked up far more than it changes, in order, and the page space
# in buckets of equal size: in place of the way down the tree, one step and two comparisons.
# A look-up reads one line of keys and one of values of the leaf.
# Invariant: where it is valid, no leaf has come or gone since it was made.
cdef struct index_t:
    bint valid
    uint32_t shift          # pages of a bucket are 2**shift
    uint32_t nbuckets
    uint32_t nplaces
    uint32_t cap            # leaves that there is room for
    uint64_t base           # first page of the first bucket, and low fence of the second leaf
    uint64_t due            # look-ups to go until it is made
    uint64_t* fences        # low fences of the leaves, and TOP twice
    place_t* places
    uint32_t* buckets       # the last leaf that begins at the first page of each or before

cdef struct ranges_t:
    arena_t leaf
    arena_t inner
    uint32_t root           # an inner node, or a leaf if height is 0
    uint32_t height         # levels above the leaves
    uint32_t leaf_max       # entries of a leaf, 4..64
    uint32_t inner_max      # children of an inner node, 4..32
    uint32_t leaf_min       # a leaf that shrinks below seeks a neighbour
    uint32_t inner_min
    bint merge              # join equal neighbours, not only holes
    bint open               # a transaction is open
    uint64_t count          # non-hole entries
    uint32_t base_root      # the map of begin
    uint32_t base_height
    uint64_t base_count
    ranges_work_t work
    index_t index

# The way from the root to the leaf of a page.
cdef struct path_t:
    uint32_t node[DEPTH]    # inner node at each depth, root first
    uint32_t slot[DEPTH]    # child taken there
    uint32_t leaf
    uint64_t low            # fences of the leaf, page numbers, inclusive
    uint64_t last

# Children of a node that an assign takes out, with everything below.
cdef struct cut_t:
    uint32_t node
    uint32_t begin          # slots begin..end-1
    uint32_t end
    uint32_t height         # levels of inner nodes below the children, 0 = leaves

# An assign on the seam path: what it replaces and what it has built so far, so that
# it can be undone or completed.
cdef struct seam_t:
    path_t pa                       # to the first leaf touched
    path_t pc                       # to the last leaf touched, often the same
    uint32_t left                   # entries kept at the head of the first leaf
    uint32_t right                  # first entry kept in the last leaf
    uint32_t added                  # non-hole entries that come
    bint tail                       # the entry before right was cut, a tail of it comes
    bint append                     # nothing follows what comes, on the levels so far
    uint32_t depth                  # of the nodes just made, the root is 0
    uint32_t lo                     # slots of their parents that they replace: from lo in
    uint32_t hi                     # the node of pa to hi in the node of pc, inclusive
    bint in_place                   # the climb ended in a parent that is edited
    uint32_t height                 # of the tree when done
    uint64_t up_key[SEAM_NODES]     # new nodes of the level in hand, in order
    uint32_t up_node[SEAM_NODES]
    uint32_t up_count
    uint32_t made_leaf[SEAM_NODES]  # new nodes of all levels
    uint32_t made_leaf_count
    uint32_t made_inner[8 * DEPTH]
    uint32_t made_inner_count
    uint32_t old_leaf[3]            # replaced nodes
    uint32_t old_leaf_count
    uint32_t old_inner[3 * DEPTH]
    uint32_t old_inner_count
    cut_t cut[2 * DEPTH]            # subtrees between the two paths
    uint32_t cut_count


# --- memory -------------------------------------------------------------------

# Test hook: allocations left before all fail, -1 = off. The only state of the module.
cdef int64_t fail_after = -1


def _fail_allocation_after(int64_t n):
    """Let *n* more allocations of range maps succeed and all later ones fail.

    For tests of the promise that a failed call changes nothing.

    Parameters
    ----------
    n : int
        Allocations that still succeed; -1 turns the hook off.

    Complexity
    ----------
    O(1). The hook is one comparison an allocation, none a look-up.

    Source
    ------
    Own; after the failing allocator in SQLite's tests.
    """
    global fail_after
    fail_after = n


cdef void* mem_resize(void* p, size_t size) noexcept nogil:
    global fail_after
    if fail_after >= 0:
        if fail_after == 0:
            return NULL
        fail_after -= 1
    return resize(p, size)


cdef void arena_init(arena_t* a, uint32_t size) noexcept nogil:
    memset(a, 0, sizeof(arena_t))
    a.size = size
    a.free_head = a.own_head = a.gone_head = NONE


cdef void arena_free(arena_t* a) noexcept nogil:
    free(a.raw)
    free(a.count)
    free(a.mark)


# Room for cap nodes. A failure half-way leaves longer arrays with the old cap.
cdef int arena_resize(arena_t* a, uint32_t cap) noexcept nogil:
    cdef size_t shift = a.nodes - a.raw
    cdef size_t now
    cdef char* raw = <char*>mem_resize(a.raw, <size_t>cap * a.size + LINE)
    cdef void* p
    if raw == NULL:
        return -1
    now = (LINE - (<uintptr_t>raw & (LINE - 1))) & (LINE - 1)
    if now != shift and a.used > 0:
        memmove(raw + now, raw + shift, <size_t>a.used * a.size)
    a.raw = raw
    a.nodes = raw + now
    p = mem_resize(a.count, cap)
    if p == NULL:
        return -1
    a.count = <uint8_t*>p
    p = mem_resize(a.mark, <size_t>cap * sizeof(uint32_t))
    if p == NULL:
        return -1
    a.mark = <uint32_t*>p
    a.cap = cap
    return 0


# Leaves change: the index, if there is one, is of the past.
cdef inline void index_drop(ranges_t* m) noexcept nogil:
    m.index.valid = False
    m.index.due = <uint64_t>m.leaf.used * INDEX_AFTER


# A node, or NONE when out of memory. May move the arena: pointers into it are stale.
cdef uint32_t arena_take(ranges_t* m, arena_t* a) noexcept nogil:
    cdef uint32_t node
    if a.free_head != NONE:
        node = a.free_head
        a.free_head = (<uint32_t*>(a.nodes + <size_t>node * a.size))[0]
        a.free_count -= 1
    else:
        if a.used == a.cap:
            # A quarter more keeps nbytes near what is used; large blocks are moved
            # by the page tables on the systems that matter.
            if a.cap > 0xc0000000u or arena_resize(a, a.cap + a.cap // 4 + 2) < 0:
                return NONE
        node = a.used
        a.used += 1
        a.mark[node] = 0
    a.count[node] = 1
    if a == &m.leaf:
        index_drop(m)
    if m.open and a.mark[node] == 0:
        a.mark[node] = a.own_head
        a.own_head = node + 1
    return node


cdef void arena_release(arena_t* a, uint32_t node) noexcept nogil:
    a.count[node] = 0
    (<uint32_t*>(a.nodes + <size_t>node * a.size))[0] = a.free_head
    a.free_head = node
    a.free_count += 1


# Take a node out of the tree. The map of begin still needs those it knew.
cdef void arena_drop(ranges_t* m, arena_t* a, uint32_t node) noexcept nogil:
    if m.open and a.mark[node] == 0:
        a.mark[node] = a.gone_head
        a.gone_head = node + 1
        a.gone_count += 1
    else:
        arena_release(a, node)


# End of a transaction: undo forgets the nodes made in it, else those replaced go.
cdef void arena_settle(arena_t* a, bint undo) noexcept nogil:
    cdef uint32_t link = a.own_head
    cdef uint32_t node
    while link != NONE:
        node = link - 1
        link = a.mark[node]
        a.mark[node] = 0
        if undo and a.count[node] != 0:
            arena_release(a, node)
    link = a.gone_head
    while link != NONE:
        node = link - 1
        link = a.mark[node]
        a.mark[node] = 0
        if not undo:
            arena_release(a, node)
    a.own_head = a.gone_head = NONE
    a.gone_count = 0


cdef inline leaf_t* leaf_at(const ranges_t* m, uint32_t node) noexcept nogil:
    return <leaf_t*>m.leaf.nodes + node


# Ask for all key lines of a leaf at once: the halving would wait for two or three
# of them in turn. Not worth the instructions while all leaves lie in the cache.
cdef inline void leaf_prefetch(const leaf_t* leaf) noexcept nogil:
    prefetch(&leaf.start[0])
    prefetch(&leaf.start[16])
    prefetch(&leaf.start[32])
    prefetch(&leaf.start[48])


cdef inline void value_prefetch(const leaf_t* leaf) noexcept nogil:
    prefetch(&leaf.value[0])
    prefetch(&leaf.value[16])
    prefetch(&leaf.value[32])
    prefetch(&leaf.value[48])


cdef inline inner_t* inner_at(const ranges_t* m, uint32_t node) noexcept nogil:
    return <inner_t*>m.inner.nodes + node


# --- look-up ------------------------------------------------------------------

# Last slot with key <= x. Branch-free: a wrong guess costs as much as the whole search.
# Three keys a step, whose loads do not wait for one another as those of a halving do.
cdef inline size_t inner_search(const uint64_t* key, uint64_t x) noexcept nogil:
    return inner_search_from(
        key, x, <size_t>(key[8] <= x) + (key[16] <= x) + (key[24] <= x) << 3
    )


# The same among the eight keys from base on.
cdef inline size_t inner_search_from(const uint64_t* key, uint64_t x, size_t base) noexcept nogil:
    base += <size_t>(key[base + 2] <= x) + (key[base + 4] <= x) + (key[base + 6] <= x) << 1
    return base + (key[base + 1] <= x)


cdef inline size_t leaf_search(const uint32_t* start, uint64_t distance) noexcept nogil:
    # Beyond the reach only unused keys follow, so the clamp changes no answer.
    cdef uint32_t x = <uint32_t>(distance if distance < REACH else REACH)
    return line_search(
        start, x, <size_t>(start[16] <= x) + (start[32] <= x) + (start[48] <= x) << 4
    )


# The same in the line of 16 keys from base on.
cdef inline size_t line_search(const uint32_t* start, uint32_t x, size_t base) noexcept nogil:
    base += <size_t>(start[base + 4] <= x) + (start[base + 8] <= x) + (start[base + 12] <= x) << 2
    return base + (start[base + 1] <= x) + (start[base + 2] <= x) + (start[base + 3] <= x)


cdef inline void entry_of(const leaf_t* leaf, size_t slot, uint64_t low, uint64_t last,
                          range_entry_t* out) noexcept nogil:
    # The slot after the last wraps to start[0], which is 0: minus one it is above
    # the reach like an unused key, and both mean "up to the fence".
    cdef uint32_t end = leaf.start[(slot + 1) & (LEAF - 1)] - 1
    out.first = low + leaf.start[slot]
    out.last = low + end if end < REACH else last
    out.value = leaf.value[slot]


# The same way down where nodes are not in the cache: all lines of a node are asked for as soon
# as it is known, as one look-up alone has nothing else to do while it waits for them in turn.
cdef uint32_t descend_far(const ranges_t* m, uint64_t page, uint64_t* low,
                          uint64_t* last) noexcept nogil:
    cdef const inner_t* at
    cdef uint32_t node = m.root
    cdef uint64_t above
    cdef uint32_t _level
    cdef size_t slot
    low[0] = 0
    last[0] = TOP
    for _level in range(m.height):
        at = inner_at(m, node)
        prefetch(&at.key[0])
        prefetch(&at.child[0])
        prefetch(&at.child[16])
        slot = inner_search(at.key, page)
        low[0] = at.key[slot]
        above = at.key[(slot + 1) & (INNER - 1)]
        last[0] = above - 1 if above > page else last[0]
        node = at.child[slot]
    leaf_prefetch(leaf_at(m, node))
    value_prefetch(leaf_at(m, node))
    return node


cdef inline uint32_t descend(const ranges_t* m, uint64_t page, uint64_t* low,
                             uint64_t* last) noexcept nogil:
    cdef const inner_t* inner = <const inner_t*>m.inner.nodes
    cdef const inner_t* at
    cdef uint32_t node = m.root
    cdef uint64_t lo = 0, hi = TOP, above
    cdef uint32_t _level
    cdef size_t slot
    if m.leaf.used > CACHED_LEAVES:
        return descend_far(m, page, low, last)
    for _level in range(m.height):
        at = inner + node
        slot = inner_search(at.key, page)
        lo = at.key[slot]
        # After the last slot this is the first key, which is not above the page:
        # then the fence is that of the parent. A comparison compiles to no branch.
        above = at.key[(slot + 1) & (INNER - 1)]
        hi = above - 1 if above > page else hi
        node = at.child[slot]
    low[0] = lo
    last[0] = hi
    return node


cdef void path_to(ranges_t* m, uint64_t page, path_t* path) noexcept nogil:
    cdef const inner_t* at
    cdef uint32_t node = m.root
    cdef uint32_t depth, top
    cdef size_t slot
    path.low = 0
    path.last = TOP
    for depth in range(m.height):
        at = inner_at(m, node)
        slot = inner_search(at.key, page)
        path.low = at.key[slot]
        if slot < INNER - 1:
            path.last = at.key[slot + 1] - 1
        top = m.inner.count[node] - 1
        path.node[depth] = node
        path.slot[depth] = <uint32_t>slot if slot < top else top
        node = at.child[slot]
    path.leaf = node
    if m.leaf.used > CACHED_LEAVES:
        leaf_prefetch(leaf_at(m, node))


cdef inline uint32_t value_at(ranges_t* m, uint64_t page) noexcept nogil:
    cdef uint64_t low, last
    cdef const leaf_t* leaf
    cdef const inner_t* at
    cdef size_t slot
    # Up to 8 leaves: the first step of the search is known, and there is no level to loop over.
    if m.height == 1 and m.inner.count[m.root] <= 8:
        at = inner_at(m, m.root)
        slot = inner_search_from(at.key, page, 0)
        low = at.key[slot]
        leaf = leaf_at(m, at.child[slot])
    else:
        leaf = leaf_at(m, descend(m, page, &low, &last))
    m.work.nodes_visited += m.height + 1
    return leaf.value[leaf_search(leaf.start, page - low)]


cdef uint32_t ranges_value(ranges_t* m, uint64_t page) noexcept nogil:
    m.work.finds += 1
    return value_at(m, page)


cdef void ranges_find(ranges_t* m, uint64_t page, range_entry_t* out) noexcept nogil:
    cdef uint64_t low, last
    cdef const leaf_t* leaf = leaf_at(m, descend(m, page, &low, &last))
    m.work.finds += 1
    m.work.nodes_visited += m.height + 1
    entry_of(leaf, leaf_search(leaf.start, page - low), low, last, out)


# Look-ups in groups that go down level by level, so that their cache misses
# overlap. A group that stays in the leaf of the last page skips the way down:
# sequential pages mostly do. Writes entries or, if out is NULL, values; returns
# the nodes read. Counts nothing itself, as threads may share the map for reading.
cdef inline uint64_t lookup_many(const ranges_t* m, const uint64_t* pages, size_t n,
                                 range_entry_t* out, uint32_t* values) noexcept nogil:
    cdef uint32_t node[LANES]
    cdef uint32_t slot[LANES]
    cdef uint64_t low[LANES]
    cdef uint64_t last[LANES]
    cdef const inner_t* inner = <const inner_t*>m.inner.nodes
    cdef const leaf_t* leaves = <const leaf_t*>m.leaf.nodes
    cdef const inner_t* at
    cdef const leaf_t* leaf = NULL
    cdef range_entry_t entry
    cdef uint64_t visited = 0, leaf_low = 0, leaf_last = 0, above, page = 0, end
    cdef uint32_t depth, j, width
    cdef size_t done = 0, s
    cdef bint cached = m.leaf.used <= CACHED_LEAVES
    while done < n:
        width = LANES if n - done >= LANES else <uint32_t>(n - done)
        j = 0
        if leaf != NULL:
            while j < width and pages[done + j] - leaf_low <= leaf_last - leaf_low:
                j += 1
        if j == width:
            entry.first = 1
            entry.last = 0
            for j in range(width):
                page = pages[done + j]
                if page < entry.first or page > entry.last:
                    entry_of(leaf, leaf_search(leaf.start, page - leaf_low), leaf_low,
                             leaf_last, &entry)
                if out != NULL:
                    out[done + j] = entry
                else:
                    values[done + j] = entry.value
            done += width
            continue
        for j in range(width):
            node[j] = m.root
            low[j] = 0
            last[j] = TOP
        end = TOP
        for depth in range(m.height):
            at = inner
            s = 0
            for j in range(width):
                at = inner + node[j]
                page = pages[done + j]
                s = inner_search(at.key, page)
                low[j] = at.key[s]
                if out != NULL:
                    above = at.key[(s + 1) & (INNER - 1)]
                    last[j] = above - 1 if above > page else last[j]
                node[j] = at.child[s]
            above = at.key[(s + 1) & (INNER - 1)]
            end = above - 1 if above > page else end  # of the last one's leaf
            if cached:
                continue
            for j in range(width):
                if depth + 1 < m.height:
                    at = inner + node[j]
                    prefetch(&at.key[0])
                    prefetch(&at.key[8])
                    prefetch(&at.key[16])
                    prefetch(&at.key[24])
                    prefetch(&at.child[0])
                    prefetch(&at.child[16])
                else:
                    leaf_prefetch(leaves + node[j])
        for j in range(width):
            leaf = leaves + node[j]
            slot[j] = <uint32_t>leaf_search(leaf.start, pages[done + j] - low[j])
            prefetch(&leaf.value[slot[j]])
        for j in range(width):
            leaf = leaves + node[j]
            if out != NULL:
                entry_of(leaf, slot[j], low[j], last[j], &out[done + j])
            else:
                values[done + j] = leaf.value[slot[j]]
        leaf_low = low[width - 1]
        leaf_last = end
        visited += <uint64_t>width * (m.height + 1)
        done += width
    return visited


cdef void ranges_find_many(ranges_t* m, const uint64_t* pages, size_t n,
                           range_entry_t* out) noexcept nogil:
    m.work.nodes_visited += lookup_many(m, pages, n, out, NULL)
    m.work.finds += n


# --- the index of leaves ------------------------------------------------------

cdef inline void place_set(const ranges_t* m, size_t i, uint32_t node) noexcept nogil:
    cdef const leaf_t* leaf = leaf_at(m, node)
    cdef place_t* at = m.index.places + i
    at.leaf = node
    at.line[0] = leaf.start[16]
    at.line[1] = leaf.start[32]
    at.line[2] = leaf.start[48]


cdef inline size_t index_place(const index_t* index, uint64_t page) noexcept nogil:
    """Number of the leaf of a page below TOP; without a branch that is hard to guess."""
    cdef const uint64_t* fences = index.fences
    cdef uint64_t bucket = (page - index.base if page > index.base else 0) >> index.shift
    cdef size_t i = index.buckets[bucket if bucket < index.nbuckets else index.nbuckets - 1]
    i += fences[i + 1] <= page
    i += fences[i + 1] <= page
    while fences[i + 1] <= page:
        i += 1
    return i - (page < fences[i])  # below the second leaf


cdef void index_collect(ranges_t* m, uint32_t node, uint32_t height, uint64_t low) noexcept nogil:
    """The leaves below a node, in order."""
    cdef const inner_t* inner
    cdef uint32_t i
    if height == 0:
        place_set(m, m.index.nplaces, node)
        m.index.fences[m.index.nplaces] = low
        m.index.nplaces += 1
        return
    inner = inner_at(m, node)
    for i in range(m.inner.count[node]):
        index_collect(m, inner.child[i], height - 1, inner.key[i])


cdef bint index_room(index_t* index, uint32_t leaves) noexcept nogil:
    cdef void* fences
    cdef void* places
    cdef void* buckets
    if leaves <= index.cap:
        return True
    fences = mem_resize(index.fences, (<size_t>leaves + 2) * sizeof(uint64_t))
    if fences != NULL:
        index.fences = <uint64_t*>fences
    places = mem_resize(index.places, leaves * sizeof(place_t))
    if places != NULL:
        index.places = <place_t*>places
    buckets = mem_resize(index.buckets, 2 * <size_t>leaves * sizeof(uint32_t))
    if buckets != NULL:
        index.buckets = <uint32_t*>buckets
    if fences == NULL or places == NULL or buckets == NULL:
        return False
    index.cap = leaves
    return True


cdef void index_make(ranges_t* m) noexcept nogil:
    """Make the index where the tree has a level to spare, leaves lie evenly and memory lasts."""
    cdef index_t* index = &m.index
    cdef uint32_t leaves = m.leaf.used - m.leaf.free_count - m.leaf.gone_count, i, k, before
    cdef uint64_t span
    index.due = TOP  # not again until leaves change
    if m.height == 0 or m.open or not index_room(index, leaves):
        return
    index.nplaces = 0
    index_collect(m, m.root, m.height, 0)
    index.fences[leaves] = index.fences[leaves + 1] = TOP
    index.base = index.fences[1]
    span = index.fences[leaves - 1] - index.base
    index.shift = 0
    while span >> index.shift >= 2 * <uint64_t>leaves:
        index.shift += 1
    index.nbuckets = <uint32_t>(span >> index.shift) + 1
    i = 1
    for k in range(index.nbuckets):
        before = i
        while index.fences[i + 1] <= index.base + (<uint64_t>k << index.shift):
            i += 1
        if i - before > INDEX_DEPTH:
            return
        index.buckets[k] = i
    index.valid = True


cdef void index_values(const ranges_t* m, const uint64_t* pages, size_t n,
                       uint32_t* values) noexcept nogil:
    cdef const leaf_t* leaf
    cdef const leaf_t* leaves = <const leaf_t*>m.leaf.nodes
    cdef const place_t* at
    cdef index_t index = m.index
    cdef const leaf_t* found[LANES]
    cdef uint32_t distance[LANES]
    cdef size_t line[LANES]
    cdef uint64_t page
    cdef uint32_t j, width, x
    cdef size_t done = 0, i
    cdef bint cached = m.leaf.used <= CACHED_LEAVES
    while done < n:
        width = LANES if n - done >= LANES else <uint32_t>(n - done)
        for j in range(width):
            page = pages[done + j]
            i = index_place(&index, page)
            page -= index.fences[i]
            at = index.places + i
            leaf = leaves + at.leaf
            # As in leaf_search.
            x = <uint32_t>(page if page < REACH else REACH)
            found[j] = leaf
            distance[j] = x
            line[j] = <size_t>(at.line[0] <= x) + (at.line[1] <= x) + (at.line[2] <= x) << 4
            if not cached:
                prefetch(&leaf.start[line[j]])
                prefetch(&leaf.value[line[j]])
        for j in range(width):
            leaf = found[j]
            values[done + j] = leaf.value[line_search(leaf.start, distance[j], line[j])]
        done += width


cdef void ranges_values_many(ranges_t* m, const uint64_t* pages, size_t n,
                             uint32_t* values) noexcept nogil:
    m.work.finds += n
    if m.index.valid:
        index_values(m, pages, n, values)
        m.work.nodes_visited += n
        return
    m.work.nodes_visited += lookup_many(m, pages, n, NULL, values)
    if m.index.due > n:
        m.index.due -= n
    else:
        index_make(m)


# Neighbouring holes are one entry, so next and prev look at two entries at most.
cdef bint ranges_next(ranges_t* m, uint64_t page, range_entry_t* out) noexcept nogil:
    ranges_find(m, page, out)
    if out.value == 0:
        if out.last == TOP:
            return False
        ranges_find(m, out.last + 1, out)
    return True


cdef bint ranges_prev(ranges_t* m, uint64_t page, range_entry_t* out) noexcept nogil:
    ranges_find(m, page, out)
    if out.value == 0:
        if out.first == 0:
            return False
        ranges_find(m, out.first - 1, out)
    return True


# --- change -------------------------------------------------------------------

# Unused slots repeat the last child, so that a search that ends there is right.
cdef void inner_pad(ranges_t* m, uint32_t node, uint32_t count) noexcept nogil:
    cdef inner_t* at = inner_at(m, node)
    cdef uint32_t i
    m.inner.count[node] = <uint8_t>count
    for i in range(count, <uint32_t>INNER):
        at.key[i] = at.key[count - 1]
        at.child[i] = at.child[count - 1]


# A copy of a node that the map of begin needs, hung into its (own) parent.
cdef uint32_t node_copy(ranges_t* m, arena_t* a, uint32_t node, path_t* path,
                        uint32_t depth) noexcept nogil:
    cdef uint32_t copy = arena_take(m, a)
    cdef inner_t* parent
    if copy == NONE:
        return NONE
    memcpy(a.nodes + <size_t>copy * a.size, a.nodes + <size_t>node * a.size, a.size)
    a.count[copy] = a.count[node]
    if depth == 0:
        m.root = copy
    else:
        parent = inner_at(m, path.node[depth - 1])
        parent.child[path.slot[depth - 1]] = copy
        inner_pad(m, path.node[depth - 1], m.inner.count[path.node[depth - 1]])
    arena_drop(m, a, node)
    m.work.node_copies += 1
    return copy


# Make the inner nodes of a path changeable in the open transaction. Copies say the same
# as their originals, so stopping half-way for lack of memory leaves the map as it was.
cdef int path_own(ranges_t* m, path_t* path) noexcept nogil:
    cdef uint32_t depth, copy
    for depth in range(m.height):
        if m.inner.mark[path.node[depth]] == 0:
            copy = node_copy(m, &m.inner, path.node[depth], path, depth)
            if copy == NONE:
                return -1
            path.node[depth] = copy
    return 0


# The same for the way to a page, and for its leaf, which the map of begin knows: the copy
# of the leaf, or NONE when out of memory.
cdef uint32_t leaf_own(ranges_t* m, uint64_t page) noexcept nogil:
    cdef path_t path
    path_to(m, page, &path)
    if path_own(m, &path) < 0:
        return NONE
    return node_copy(m, &m.leaf, path.leaf, &path, m.height)


# Assign inside one leaf. 1 = done, 0 = needs the seam path, -1 = no memory.
cdef inline int leaf_assign(ranges_t* m, uint64_t first, uint64_t last,
                            uint32_t value) noexcept nogil:
    cdef uint64_t low, fence
    cdef uint32_t node = descend(m, first, &low, &fence)
    cdef leaf_t* leaf = leaf_at(m, node)
    cdef uint32_t n = m.leaf.count[node]
    cdef uint64_t from_low = first - low
    cdef uint64_t next_low = last - low
    cdef uint32_t left, right, after, i
    cdef uint32_t tail_value
    cdef size_t size
    cdef bint joins = m.merge or value == 0
    cdef bint head = True
    cdef bint tail = last != fence
    m.work.nodes_visited += m.height + 1
    if last > fence:
        return 0
    # left entries stay in front, those from right on stay behind. A boundary at the page
    # behind last is not kept but made anew: then it need not be asked whether there is one.
    next_low += tail
    left = <uint32_t>leaf_search(leaf.start, from_low)
    left += leaf.start[left] < from_low
    right = <uint32_t>leaf_search(leaf.start, next_low) + 1
    tail_value = leaf.value[right - 1]
    if joins:
        if tail:
            tail = tail_value != value
        elif last != TOP and value_at(m, last + 1) == value:
            return 0
        if left > 0:
            head = leaf.value[left - 1] != value
        elif first != 0 and value_at(m, first - 1) == value:
            return 0
    if (head and from_low > REACH) or (tail and next_low > REACH):
        return 0
    after = n - (right - left) + head + tail
    if after > m.leaf_max or (after < n and after < m.leaf_min and m.height > 0):
        return 0
    # The way to a leaf that was made in the transaction was made in it too.
    if m.open and m.leaf.mark[node] == 0:
        node = leaf_own(m, first)
        if node == NONE:
            return -1
        leaf = leaf_at(m, node)
    # An entry of which a tail is left was cut, not removed.
    m.work.entries_removed += right - left - (tail and right > left)
    for i in range(left, right):
        m.count -= leaf.value[i] != 0
    if after != n:
        i = left + head + tail
        # Unused entries move with them: sizes that vary less are guessed better.
        size = (LEAF - max(i, right)) * sizeof(uint32_t)
        memmove(&leaf.start[i], &leaf.start[right], size)
        memmove(&leaf.value[i], &leaf.value[right], size)
        for i in range(after, n):
            leaf.start[i] = NONE
        m.leaf.count[node] = <uint8_t>after
    if head:
        leaf.start[left] = <uint32_t>from_low
        leaf.value[left] = value
        m.count += value != 0
    if tail:
        leaf.start[left + head] = <uint32_t>next_low
        leaf.value[left + head] = tail_value
        m.count += tail_value != 0
    if m.index.valid:
        place_set(m, index_place(&m.index, low), node)
    return 1


# Deal out n boundaries to new leaves. Runs within reach are cut in equal parts; an
# append fills the first part to 7/8, as pages mostly come in order.
cdef int seam_leaves(ranges_t* m, seam_t* seam, const uint64_t* start, const uint32_t* value,
                     uint32_t n) noexcept nogil:
    cdef leaf_t* leaf
    cdef uint32_t at = 0, end, parts, size, node, i
    seam.up_count = 0
    while at < n:
        end = at
        while end < n and start[end] - start[at] <= REACH:
            end += 1
        parts = (end - at + m.leaf_max - 1) // m.leaf_max
        while parts > 0:
            size = (end - at + parts - 1) // parts
            if seam.append and parts == 2 and end == n:
                size = m.leaf_max - m.leaf_max // 8
            node = arena_take(m, &m.leaf)
            if node == NONE:
                return -1
            seam.made_leaf[seam.made_leaf_count] = node
            seam.made_leaf_count += 1
            leaf = leaf_at(m, node)
            for i in range(size):
                leaf.start[i] = <uint32_t>(start[at + i] - start[at])
                leaf.value[i] = value[at + i]
            for i in range(size, <uint32_t>LEAF):
                leaf.start[i] = NONE
            m.leaf.count[node] = <uint8_t>size
            seam.up_key[seam.up_count] = start[at]
            seam.up_node[seam.up_count] = node
            seam.up_count += 1
            at += size
            parts -= 1
    return 0


# The same for n children and new inner nodes.
cdef int seam_inners(ranges_t* m, seam_t* seam, const uint64_t* key, const uint32_t* child,
                     uint32_t n) noexcept nogil:
    cdef inner_t* inner
    cdef uint32_t at = 0, parts = (n + m.inner_max - 1) // m.inner_max, size, node
    seam.up_count = 0
    while parts > 0:
        size = (n - at + parts - 1) // parts
        if seam.append and parts == 2:
            size = min(m.inner_max - m.inner_max // 8, n - at - 2)
        node = arena_take(m, &m.inner)
        if node == NONE:
            return -1
        seam.made_inner[seam.made_inner_count] = node
        seam.made_inner_count += 1
        inner = inner_at(m, node)
        memcpy(inner.key, key + at, size * sizeof(uint64_t))
        memcpy(inner.child, child + at, size * sizeof(uint32_t))
        inner_pad(m, node, size)
        seam.up_key[seam.up_count] = key[at]
        seam.up_node[seam.up_count] = node
        seam.up_count += 1
        at += size
        parts -= 1
    return 0


cdef void seam_undo(ranges_t* m, seam_t* seam) noexcept nogil:
    cdef uint32_t i
    for i in range(seam.made_leaf_count):
        arena_drop(m, &m.leaf, seam.made_leaf[i])
    for i in range(seam.made_inner_count):
        arena_drop(m, &m.inner, seam.made_inner[i])


cdef inline void seam_replace(seam_t* seam, uint32_t node) noexcept nogil:
    seam.old_inner[seam.old_inner_count] = node
    seam.old_inner_count += 1


cdef inline void seam_cut(seam_t* seam, uint32_t node, uint32_t begin, uint32_t end,
                          uint32_t height) noexcept nogil:
    cdef cut_t* cut = &seam.cut[seam.cut_count]
    if begin < end:
        cut.node = node
        cut.begin = begin
        cut.end = end
        cut.height = height
        seam.cut_count += 1


cdef void entries_forget(ranges_t* m, const leaf_t* leaf, uint32_t begin,
                         uint32_t end) noexcept nogil:
    cdef uint32_t i
    for i in range(begin, end):
        m.count -= leaf.value[i] != 0
    m.work.entries_removed += end - begin


cdef void subtree_drop(ranges_t* m, uint32_t node, uint32_t height) noexcept nogil:
    cdef uint32_t i
    if height == 0:
        entries_forget(m, leaf_at(m, node), 0, m.leaf.count[node])
        arena_drop(m, &m.leaf, node)
        return
    for i in range(m.inner.count[node]):
        subtree_drop(m, inner_at(m, node).child[i], height - 1)
    arena_drop(m, &m.inner, node)


cdef inline void work_balance(ranges_t* m, uint32_t old, uint32_t new) noexcept nogil:
    if new > old:
        m.work.node_splits += new - old
    else:
        m.work.node_merges += old - new


# Put children [begin, end) of src behind the n collected; the new n.
cdef inline uint32_t inner_collect(const inner_t* src, uint32_t begin, uint32_t end,
                                   uint64_t* key, uint32_t* child, uint32_t n) noexcept nogil:
    memcpy(key + n, &src.key[begin], (end - begin) * sizeof(uint64_t))
    memcpy(child + n, &src.child[begin], (end - begin) * sizeof(uint32_t))
    return n + end - begin


# Put entries [begin, end) of a leaf behind the n collected; the new n.
cdef inline uint32_t leaf_collect(const leaf_t* leaf, uint64_t low, uint32_t begin, uint32_t end,
                                  uint64_t* start, uint32_t* value, uint32_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(begin, end):
        start[n] = low + leaf.start[i]
        value[n] = leaf.value[i]
        n += 1
    return n


# First step of the seam path: the entries that remain of the leaves touched and the
# new ones, in new leaves. Too few for a leaf take in a neighbour of the same parent.
cdef int seam_begin(ranges_t* m, seam_t* seam, uint64_t first, uint64_t last,
                    uint32_t value) noexcept nogil:
    cdef uint64_t start[3 * LEAF + 2]
    cdef uint32_t values[3 * LEAF + 2]
    cdef const leaf_t* leaf
    cdef const inner_t* inner
    cdef path_t* pa = &seam.pa
    cdef path_t* pc = &seam.pc
    cdef uint32_t n, left = 0, right = 0, count, sibling = NONE
    cdef bint joins = m.merge or value == 0
    cdef bint left_joins = joins and first != 0 and value_at(m, first - 1) == value
    cdef bint right_joins = joins and last != TOP and value_at(m, last + 1) == value
    cdef bint bounded

    seam.made_leaf_count = seam.made_inner_count = seam.cut_count = 0
    seam.old_leaf_count = seam.old_inner_count = 0
    path_to(m, first - left_joins, pa)
    if m.open and path_own(m, pa) < 0:
        return -1
    path_to(m, last + right_joins, pc)
    m.work.nodes_visited += 2 * (m.height + 1)

    leaf = leaf_at(m, pa.leaf)
    count = m.leaf.count[pa.leaf]
    while left < count and pa.low + leaf.start[left] < first:
        left += 1
    n = leaf_collect(leaf, pa.low, 0, left, start, values, 0)
    seam.added = 0
    if not left_joins:
        start[n] = first
        values[n] = value
        n += 1
        seam.added += value != 0
    leaf = leaf_at(m, pc.leaf)
    count = m.leaf.count[pc.leaf]
    while right < count and pc.low + leaf.start[right] <= last:
        right += 1
    bounded = right < count and pc.low + leaf.start[right] == last + 1
    seam.tail = last != pc.last and not right_joins and not bounded
    if seam.tail:
        start[n] = last + 1
        values[n] = leaf.value[right - 1]
        seam.added += values[n] != 0
        n += 1
    elif right_joins:
        right += bounded
    n = leaf_collect(leaf, pc.low, right, count, start, values, n)
    seam.left = left
    seam.right = right
    seam.append = pa.leaf == pc.leaf and right == count
    seam.old_leaf[0] = pa.leaf
    seam.old_leaf[1] = pc.leaf
    seam.old_leaf_count = 1 if pa.leaf == pc.leaf else 2

    if m.height > 0:
        seam.lo = pa.slot[m.height - 1]
        seam.hi = pc.slot[m.height - 1]
        if n < m.leaf_min and (n < count or seam.old_leaf_count == 2):
            inner = inner_at(m, pc.node[m.height - 1])
            if (seam.hi + 1 < m.inner.count[pc.node[m.height - 1]]
                    and inner.key[seam.hi + 1] - start[0] <= REACH):
                seam.hi += 1
                sibling = inner.child[seam.hi]
                n = leaf_collect(leaf_at(m, sibling), inner.key[seam.hi], 0,
                                 m.leaf.count[sibling], start, values, n)
            elif seam.lo > 0:
                inner = inner_at(m, pa.node[m.height - 1])
                if start[0] - inner.key[seam.lo - 1] <= REACH:
                    seam.lo -= 1
                    sibling = inner.child[seam.lo]
                    count = m.leaf.count[sibling]
                    memmove(start + count, start, n * sizeof(uint64_t))
                    memmove(values + count, values, n * sizeof(uint32_t))
                    leaf_collect(leaf_at(m, sibling), inner.key[seam.lo], 0, count, start,
                                 values, 0)
                    n += count
    if sibling != NONE:
        seam.old_leaf[seam.old_leaf_count] = sibling
        seam.old_leaf_count += 1
        seam.append = False
    return seam_leaves(m, seam, start, values, n)


# Second step: on each level the children that remain and the nodes just made, in new
# nodes, until a parent has room for the change or the root is reached.
cdef int seam_climb(ranges_t* m, seam_t* seam) noexcept nogil:
    cdef uint64_t key[3 * INNER + SEAM_NODES]
    cdef uint32_t child[3 * INNER + SEAM_NODES]
    cdef path_t* pa = &seam.pa
    cdef path_t* pc = &seam.pc
    cdef uint32_t a, c, n, count, below, up, lo, hi, sibling
    seam.height = m.height
    seam.depth = m.height
    seam.in_place = False
    while seam.depth > 0:
        up = seam.depth - 1
        a = pa.node[up]
        c = pc.node[up]
        count = m.inner.count[c]
        below = m.height - seam.depth
        if a == c:
            seam_cut(seam, a, pa.slot[up] + 1, pc.slot[up], below)
        else:
            seam_cut(seam, a, pa.slot[up] + 1, m.inner.count[a], below)
            seam_cut(seam, c, 0, pc.slot[up], below)
        n = seam.lo + seam.up_count + count - seam.hi - 1
        if a == c and n <= m.inner_max and (up == 0 or n >= m.inner_min or n >= count):
            seam.in_place = True
            return 0
        inner_collect(inner_at(m, a), 0, seam.lo, key, child, 0)
        memcpy(key + seam.lo, seam.up_key, seam.up_count * sizeof(uint64_t))
        memcpy(child + seam.lo, seam.up_node, seam.up_count * sizeof(uint32_t))
        inner_collect(inner_at(m, c), seam.hi + 1, count, key, child, seam.lo + seam.up_count)
        seam.append = seam.append and seam.hi + 1 == count
        seam_replace(seam, a)
        if a != c:
            seam_replace(seam, c)
        if up > 0:
            lo = pa.slot[up - 1]
            hi = pc.slot[up - 1]
            if n < m.inner_min:
                if hi + 1 < m.inner.count[pc.node[up - 1]]:
                    hi += 1
                    sibling = inner_at(m, pc.node[up - 1]).child[hi]
                    n = inner_collect(inner_at(m, sibling), 0, m.inner.count[sibling], key,
                                      child, n)
                    seam_replace(seam, sibling)
                elif lo > 0:
                    lo -= 1
                    sibling = inner_at(m, pa.node[up - 1]).child[lo]
                    count = m.inner.count[sibling]
                    memmove(key + count, key, n * sizeof(uint64_t))
                    memmove(child + count, child, n * sizeof(uint32_t))
                    inner_collect(inner_at(m, sibling), 0, count, key, child, 0)
                    n += count
                    seam_replace(seam, sibling)
            seam.lo = lo
            seam.hi = hi
        if seam_inners(m, seam, key, child, n) < 0:
            return -1
        seam.depth -= 1
    while seam.up_count > 1:
        if seam.height == DEPTH:
            return -1
        n = seam.up_count
        memcpy(key, seam.up_key, n * sizeof(uint64_t))
        memcpy(child, seam.up_node, n * sizeof(uint32_t))
        if seam_inners(m, seam, key, child, n) < 0:
            return -1
        seam.height += 1
    return 0


# Last step: hang in what was made and drop what it replaces. Cannot fail.
cdef void seam_finish(ranges_t* m, seam_t* seam) noexcept nogil:
    cdef uint64_t key[INNER]
    cdef uint32_t child[INNER]
    cdef uint32_t node, n, i, slot
    cdef inner_t* inner
    if seam.pa.leaf == seam.pc.leaf:
        entries_forget(m, leaf_at(m, seam.pa.leaf), seam.left, seam.right)
        # An entry of which a tail is left was cut, not removed.
        m.work.entries_removed -= seam.tail and seam.right > seam.left
    else:
        entries_forget(m, leaf_at(m, seam.pa.leaf), seam.left, m.leaf.count[seam.pa.leaf])
        entries_forget(m, leaf_at(m, seam.pc.leaf), 0, seam.right)
        m.work.entries_removed -= seam.tail
    m.count += seam.added
    work_balance(m, seam.old_leaf_count, seam.made_leaf_count)
    # A new root is no split.
    work_balance(m, seam.old_inner_count, seam.made_inner_count - (seam.height - m.height))
    for i in range(seam.cut_count):
        for slot in range(seam.cut[i].begin, seam.cut[i].end):
            subtree_drop(m, inner_at(m, seam.cut[i].node).child[slot], seam.cut[i].height)
    if seam.in_place:
        node = seam.pa.node[seam.depth - 1]
        inner = inner_at(m, node)
        n = inner_collect(inner, seam.hi + 1, m.inner.count[node], key, child, 0)
        slot = seam.lo + seam.up_count
        memcpy(&inner.key[seam.lo], seam.up_key, seam.up_count * sizeof(uint64_t))
        memcpy(&inner.child[seam.lo], seam.up_node, seam.up_count * sizeof(uint32_t))
        memcpy(&inner.key[slot], key, n * sizeof(uint64_t))
        memcpy(&inner.child[slot], child, n * sizeof(uint32_t))
        inner_pad(m, node, slot + n)
    else:
        m.root = seam.up_node[0]
        m.height = seam.height
    for i in range(seam.old_leaf_count):
        arena_drop(m, &m.leaf, seam.old_leaf[i])
    for i in range(seam.old_inner_count):
        arena_drop(m, &m.inner, seam.old_inner[i])
    while m.height > 0 and m.inner.count[m.root] == 1:
        node = m.root
        m.root = inner_at(m, node).child[0]
        m.height -= 1
        arena_drop(m, &m.inner, node)


# Assign across leaves, or where a leaf splits, empties or joins a neighbour.
# The leftmost node replaced keeps its low fence on every level, so no key above
# the node that is edited in place ever changes.
cdef int seam_assign(ranges_t* m, uint64_t first, uint64_t last, uint32_t value) noexcept nogil:
    cdef seam_t seam
    if seam_begin(m, &seam, first, last, value) < 0 or seam_climb(m, &seam) < 0:
        seam_undo(m, &seam)
        return -1
    seam_finish(m, &seam)
    return 0


cdef int ranges_assign(ranges_t* m, uint64_t first, uint64_t last, uint32_t value) noexcept nogil:
    cdef int done = leaf_assign(m, first, last, value)
    if done == 0:
        done = seam_assign(m, first, last, value)
    if done < 0:
        return -1
    m.work.assigns += 1
    return 0


# --- all entries at once --------------------------------------------------------

cdef uint64_t collect(const ranges_t* m, uint32_t node, uint32_t height, uint64_t low,
                      uint64_t last, range_entry_t* out) noexcept nogil:
    """Non-hole entries below a node, in order; how many."""
    cdef const inner_t* inner
    cdef const leaf_t* leaf
    cdef uint32_t count, i
    cdef uint64_t n = 0
    if height > 0:
        inner = inner_at(m, node)
        count = m.inner.count[node]
        for i in range(count):
            n += collect(m, inner.child[i], height - 1, inner.key[i],
                         inner.key[i + 1] - 1 if i + 1 < count else last, out + n)
        return n
    leaf = leaf_at(m, node)
    count = m.leaf.count[node]
    for i in range(count):
        if leaf.value[i]:
            entry_of(leaf, i, low, last, out + n)
            n += 1
    return n


cdef void ranges_entries(const ranges_t* m, range_entry_t* out) noexcept nogil:
    collect(m, m.root, m.height, 0, TOP, out)


# Leaves in the making, numbered from 0 on.
cdef struct fill_t:
    uint64_t* low           # fence of each
    uint32_t cap            # fences that fit
    uint32_t leaves
    uint32_t n              # entries of the last leaf
    uint32_t value          # of the last entry


cdef int fill_leaf(ranges_t* m, fill_t* fill, uint64_t start) noexcept nogil:
    cdef uint32_t node, cap = fill.cap + (fill.cap >> 1) + 16
    cdef void* moved
    if fill.leaves == fill.cap:
        moved = mem_resize(fill.low, <size_t>cap * sizeof(uint64_t))
        if moved == NULL:
            return -1
        fill.low = <uint64_t*>moved
        fill.cap = cap
    node = arena_take(m, &m.leaf)
    if node == NONE:
        return -1
    memset(leaf_at(m, node), 0xff, sizeof(leaf_t))
    fill.low[fill.leaves] = start
    fill.leaves += 1
    fill.n = 0
    return 0


cdef inline int fill_add(ranges_t* m, fill_t* fill, uint64_t start, uint32_t value) noexcept nogil:
    """The next boundary. Leaves are filled as an append fills them, to 7/8."""
    cdef leaf_t* leaf
    if (
        fill.leaves == 0
        or fill.n == m.leaf_max - m.leaf_max // 8
        or start - fill.low[fill.leaves - 1] > REACH
    ) and fill_leaf(m, fill, start):
        return -1
    leaf = leaf_at(m, fill.leaves - 1)
    leaf.start[fill.n] = <uint32_t>(start - fill.low[fill.leaves - 1])
    leaf.value[fill.n] = value
    fill.n += 1
    fill.value = value
    m.leaf.count[fill.leaves - 1] = <uint8_t>fill.n
    m.count += value != 0
    return 0


cdef int fill_level(ranges_t* m, fill_t* fill, uint32_t* base, uint32_t* n,
                    uint32_t height) noexcept nogil:
    """Parents of the n nodes from base on, which become those."""
    cdef uint32_t most = m.inner_max - m.inner_max // 8
    cdef uint32_t parts = (n[0] + most - 1) // most, first = m.inner.used, at = 0, size, i, part
    cdef uint32_t node
    cdef inner_t* inner
    for part in range(parts):
        node = arena_take(m, &m.inner)
        if node == NONE:
            return -1
        size = (n[0] - at + parts - part - 1) // (parts - part)
        inner = inner_at(m, node)
        for i in range(size):
            inner.key[i] = inner_at(m, base[0] + at + i).key[0] if height else fill.low[at + i]
            inner.child[i] = base[0] + at + i
        inner_pad(m, node, size)
        at += size
    base[0] = first
    n[0] = parts
    return 0


cdef int fill_tree(ranges_t* m, fill_t* fill, const range_entry_t* entries,
                   uint64_t n, uint32_t* root, uint32_t* height) noexcept nogil:
    cdef uint64_t i, next_page = 0
    cdef uint32_t nodes
    # A map begins with the boundary of page 0, be it of a hole.
    for i in range(n):
        if entries[i].first != next_page and fill_add(m, fill, next_page, 0):
            return -1
        # What joins its neighbour brings no boundary.
        if not (
            m.merge and i and entries[i].first == next_page and entries[i].value == fill.value
        ) and fill_add(m, fill, entries[i].first, entries[i].value):
            return -1
        next_page = entries[i].last + 1
    if (n == 0 or next_page != 0) and fill_add(m, fill, next_page, 0):
        return -1
    nodes = fill.leaves
    root[0] = height[0] = 0
    while nodes > 1:
        if height[0] == DEPTH or fill_level(m, fill, root, &nodes, height[0]):
            return -1
        height[0] += 1
    return 0


cdef void arena_forget(arena_t* a) noexcept nogil:
    a.used = a.free_count = 0
    a.free_head = NONE


cdef void make_empty(ranges_t* m) noexcept nogil:
    """One hole in one leaf; there is room for a leaf always."""
    cdef leaf_t* leaf
    arena_forget(&m.leaf)
    arena_forget(&m.inner)
    m.root = arena_take(m, &m.leaf)
    m.height = 0
    m.count = 0
    leaf = leaf_at(m, m.root)
    memset(leaf, 0xff, sizeof(leaf_t))
    leaf.start[0] = leaf.value[0] = 0


cdef int ranges_fill(ranges_t* m, const range_entry_t* entries, uint64_t n) noexcept nogil:
    cdef fill_t fill
    cdef uint32_t root, height
    cdef int failed
    if m.count or m.open:
        return -1
    # Nodes that are new have numbers in a row.
    arena_forget(&m.leaf)
    arena_forget(&m.inner)
    memset(&fill, 0, sizeof(fill_t))
    failed = fill_tree(m, &fill, entries, n, &root, &height)
    free(fill.low)
    if failed:
        make_empty(m)
        return -1
    m.root = root
    m.height = height
    return 0


# --- life, transactions, figures ----------------------------------------------

cdef ranges_t* ranges_new(bint merge, uint32_t node_entries) noexcept nogil:
    cdef ranges_t* m = <ranges_t*>mem_resize(NULL, sizeof(ranges_t))
    if m == NULL:
        return NULL
    memset(m, 0, sizeof(ranges_t))
    arena_init(&m.leaf, sizeof(leaf_t))
    arena_init(&m.inner, sizeof(inner_t))
    m.merge = merge
    m.leaf_max = LEAF if node_entries == 0 else node_entries
    m.inner_max = min(m.leaf_max, <uint32_t>INNER)
    # A quarter: far enough from the half that a split leaves, so that no sequence
    # of calls splits and joins the same node each time.
    m.leaf_min = m.leaf_max // 4
    m.inner_min = max(m.inner_max // 4, 2)
    if arena_resize(&m.leaf, 1) < 0:
        ranges_free(m)
        return NULL
    make_empty(m)
    return m


cdef void ranges_free(ranges_t* m) noexcept nogil:
    if m != NULL:
        arena_free(&m.leaf)
        arena_free(&m.inner)
        free(m.index.fences)
        free(m.index.places)
        free(m.index.buckets)
        free(m)


cdef int arena_clone(arena_t* to, const arena_t* a) noexcept nogil:
    to[0] = a[0]
    to.raw = to.nodes = NULL
    to.count = NULL
    to.mark = NULL
    to.cap = to.used = 0
    if a.used == 0:
        return 0
    if arena_resize(to, a.used) < 0:
        return -1
    to.used = a.used
    memcpy(to.nodes, a.nodes, <size_t>a.used * a.size)
    memcpy(to.count, a.count, a.used)
    memcpy(to.mark, a.mark, a.used * sizeof(uint32_t))
    return 0


# The clone is of the present map; a transaction that is open here is not open there.
cdef ranges_t* ranges_clone(const ranges_t* m) noexcept nogil:
    cdef ranges_t* clone = <ranges_t*>mem_resize(NULL, sizeof(ranges_t))
    cdef int failed
    if clone == NULL:
        return NULL
    clone[0] = m[0]
    memset(&clone.index, 0, sizeof(index_t))
    clone.index.due = m.index.due
    failed = arena_clone(&clone.leaf, &m.leaf)
    failed |= arena_clone(&clone.inner, &m.inner)
    if failed != 0:
        ranges_free(clone)
        return NULL
    ranges_commit(clone)
    return clone


cdef uint64_t ranges_count(const ranges_t* m) noexcept nogil:
    return m.count


cdef inline uint64_t arena_nbytes(const arena_t* a) noexcept nogil:
    return 0 if a.cap == 0 else <uint64_t>a.cap * (a.size + 1 + sizeof(uint32_t)) + LINE


cdef uint64_t ranges_nbytes(const ranges_t* m) noexcept nogil:
    return (
        sizeof(ranges_t) + arena_nbytes(&m.leaf) + arena_nbytes(&m.inner)
        + <uint64_t>m.index.cap * (sizeof(place_t) + sizeof(uint64_t) + 2 * sizeof(uint32_t))
    )


cdef void ranges_work(const ranges_t* m, ranges_work_t* out) noexcept nogil:
    out[0] = m.work


# -1 also when a transaction is open already; it never allocates.
cdef int ranges_begin(ranges_t* m) noexcept nogil:
    if m.open:
        return -1
    m.open = True
    m.base_root = m.root
    m.base_height = m.height
    m.base_count = m.count
    return 0


cdef void ranges_rollback(ranges_t* m) noexcept nogil:
    if m.open:
        m.root = m.base_root
        m.height = m.base_height
        m.count = m.base_count
        m.open = False
        index_drop(m)
        arena_settle(&m.leaf, True)
        arena_settle(&m.inner, True)


cdef void ranges_commit(ranges_t* m) noexcept nogil:
    if m.open:
        m.open = False
        arena_settle(&m.leaf, False)
        arena_settle(&m.inner, False)


# --- check --------------------------------------------------------------------

# Numbers that ranges_check answers.
cdef enum:
    RULE_SHAPE = 1      # heights and counts of children and entries are in their limits
    RULE_KEYS = 2       # inner keys ascend, the first is the low fence
    RULE_REPEAT = 3     # unused inner slots repeat the last
    RULE_FENCE = 4      # the first entry of a leaf begins at its low fence
    RULE_STARTS = 5     # starts ascend and lie inside the fences
    RULE_UNUSED = 6     # unused leaf keys are NONE
    RULE_JOINED = 7     # neighbours that must join are one entry
    RULE_COUNT = 8      # the number of entries is right
    RULE_NODES = 9      # each node is used, free or held, and no number is lost
    RULE_MARKS = 10     # marks are 0 outside a transaction
    RULE_INDEX = 11     # a valid index has the leaves of the tree

RULES = {
    RULE_SHAPE: "heights and node counts are within their limits",
    RULE_KEYS: "keys of an inner node ascend and begin at its low fence",
    RULE_REPEAT: "unused slots of an inner node repeat its last child",
    RULE_FENCE: "the first entry of a leaf begins at its low fence",
    RULE_STARTS: "entries of a leaf ascend and lie inside its fences",
    RULE_UNUSED: "unused keys of a leaf are marked",
    RULE_JOINED: "neighbours that must join are one entry",
    RULE_COUNT: "the count of entries is right",
    RULE_NODES: "every node is in the tree, free, or held for rollback",
    RULE_MARKS: "no node is marked while no transaction is open",
    RULE_INDEX: "the index has the leaves of the tree, in order",
}

# What a walk over the tree has seen.
cdef struct audit_t:
    uint64_t entries        # non-hole
    uint32_t leaves
    uint32_t inners
    uint32_t value          # of the last entry seen
    bint begun


cdef int audit_leaf(const ranges_t* m, uint32_t node, uint64_t low, uint64_t last,
                    audit_t* seen) noexcept nogil:
    cdef const leaf_t* leaf
    cdef uint32_t n, i, value
    if node >= m.leaf.used:
        return RULE_SHAPE
    n = m.leaf.count[node]
    if n < 1 or n > m.leaf_max:
        return RULE_SHAPE
    leaf = leaf_at(m, node)
    if leaf.start[0] != 0:
        return RULE_FENCE
    for i in range(n):
        if i > 0 and leaf.start[i] <= leaf.start[i - 1]:
            return RULE_STARTS
        if leaf.start[i] > REACH or leaf.start[i] > last - low:
            return RULE_STARTS
        value = leaf.value[i]
        if seen.begun and value == seen.value and (m.merge or value == 0):
            return RULE_JOINED
        seen.begun = True
        seen.value = value
        seen.entries += value != 0
    for i in range(n, <uint32_t>LEAF):
        if leaf.start[i] != NONE:
            return RULE_UNUSED
    seen.leaves += 1
    return 0


cdef int audit_node(const ranges_t* m, uint32_t node, uint32_t height, uint64_t low,
                    uint64_t last, audit_t* seen) noexcept nogil:
    cdef const inner_t* inner
    cdef uint32_t n, i
    cdef uint64_t end
    cdef int rule
    if height == 0:
        return audit_leaf(m, node, low, last, seen)
    if node >= m.inner.used:
        return RULE_SHAPE
    n = m.inner.count[node]
    if n < 1 or n > m.inner_max:
        return RULE_SHAPE
    inner = inner_at(m, node)
    if inner.key[0] != low:
        return RULE_KEYS
    for i in range(n):
        if inner.key[i] > last or (i + 1 < n and inner.key[i + 1] <= inner.key[i]):
            return RULE_KEYS
        end = inner.key[i + 1] - 1 if i + 1 < n else last
        rule = audit_node(m, inner.child[i], height - 1, inner.key[i], end, seen)
        if rule != 0:
            return rule
    for i in range(n, <uint32_t>INNER):
        if inner.key[i] != inner.key[n - 1] or inner.child[i] != inner.child[n - 1]:
            return RULE_REPEAT
    seen.inners += 1
    return 0


cdef int audit_arena(const arena_t* a, uint32_t in_tree, bint open) noexcept nogil:
    cdef uint32_t node = a.free_head, n = 0, i, marked = 0, held = 0
    while node != NONE:
        if node >= a.used or a.count[node] != 0 or n > a.used:
            return RULE_NODES
        n += 1
        node = (<const uint32_t*>(a.nodes + <size_t>node * a.size))[0]
    if n != a.free_count or n + in_tree + a.gone_count != a.used or a.used > a.cap:
        return RULE_NODES
    for i in range(a.used):
        marked += a.mark[i] != 0
    node = a.gone_head
    while node != NONE and held <= a.used:
        held += 1
        node = a.mark[node - 1]
    if held != a.gone_count:
        return RULE_NODES
    return RULE_MARKS if marked != 0 and not open else 0


cdef bint audit_index(const ranges_t* m, uint32_t leaves) noexcept nogil:
    cdef const index_t* index = &m.index
    cdef const leaf_t* leaf
    cdef uint64_t low, last, page
    cdef uint32_t i, k
    if index.nplaces != leaves or index.fences[0] != 0:
        return False
    for i in range(leaves):
        if descend(m, index.fences[i], &low, &last) != index.places[i].leaf:
            return False
        leaf = leaf_at(m, index.places[i].leaf)
        for k in range(3):
            if index.places[i].line[k] != leaf.start[16 + 16 * k]:
                return False
        if low != index.fences[i] or last + 1 != index.fences[i + 1] + (i + 1 == leaves):
            return False
    for i in range(index.nbuckets):
        page = index.base + (<uint64_t>i << index.shift)
        if not index.fences[index.buckets[i]] <= page < index.fences[index.buckets[i] + 1]:
            return False
    return True


# Every invariant of this file, in the order of the RULE numbers. O(n).
cdef int ranges_check(const ranges_t* m) noexcept nogil:
    cdef audit_t seen
    cdef int rule
    memset(&seen, 0, sizeof(audit_t))
    if m.height > DEPTH or (m.height > 0 and m.inner.count[m.root] < 2):
        return RULE_SHAPE
    rule = audit_node(m, m.root, m.height, 0, TOP, &seen)
    if rule != 0:
        return rule
    if seen.entries != m.count:
        return RULE_COUNT
    rule = audit_arena(&m.leaf, seen.leaves, m.open)
    if rule == 0:
        rule = audit_arena(&m.inner, seen.inners, m.open)
    if rule == 0 and m.index.valid and not audit_index(m, seen.leaves):
        rule = RULE_INDEX
    return rule


# --- the Python face ----------------------------------------------------------

#: dtype of :meth:`RangeMap.find_many`: the C struct ``range_entry_t``.
ENTRY = np.dtype([("first", np.uint64), ("last", np.uint64), ("value", np.uint32)], align=True)

cdef extern from "Python.h":
    # Declared without the exception: the test for it is made by hand below, which
    # keeps a try block out of the scalar calls. The conversion to unsigned long long
    # is slow above 30 bits, where the page numbers of real addresses lie.
    size_t int_as_size "PyLong_AsSize_t"(object) noexcept


cdef uint64_t number_or_raise(object number, str name, uint64_t limit) except? 0xFFFFFFFFFFFFFFFF:
    cdef object index
    try:
        index = operator.index(number)
    except TypeError:
        raise InvalidArgumentError(
            f"{name} {number!r}: expected an integer in 0..{limit:#x}"
        ) from None
    if not 0 <= index <= limit:
        raise InvalidArgumentError(f"{name} {index}: expected 0..{limit:#x}")
    return index


cdef inline uint64_t page_of(object number, str name) except? 0xFFFFFFFFFFFFFFFF:
    cdef size_t page = int_as_size(number)
    if page == <size_t>-1 and PyErr_Occurred() != NULL:
        PyErr_Clear()
        return number_or_raise(number, name, TOP)
    return page


cdef object new_entries(uint64_t n):
    return np.zeros(n, ENTRY)


# A contiguous uint64 array of the pages; a copy only if it is not one already.
cdef object pages_array(object pages):
    if not hasattr(pages, "__array__"):
        # NumPy would make floats of a list that mixes small and very large numbers.
        return np.fromiter(
            (page_of(page, f"pages[{i}]") for i, page in enumerate(pages)), dtype=np.uint64
        )
    array = np.asarray(pages)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise InvalidArgumentError(
            f"pages of dtype {array.dtype} and {array.ndim} dimensions:"
            " expected a one-dimensional array of integers"
        )
    if array.dtype.kind == "i" and array.size > 0 and array.min() < 0:
        where = int((array < 0).argmax())
        raise InvalidArgumentError(f"pages[{where}] {array[where]}: expected 0..{TOP:#x}")
    return np.ascontiguousarray(array, dtype=np.uint64)


@cython.final
cdef class RangeMap:
    """Disjoint spans of page numbers with a 32-bit value each.

    The map covers all page numbers 0..2**64-1; where nothing is assigned there is
    a hole, an entry of value 0. Bounds are page numbers, ``first..last`` inclusive.

    Looking up: :meth:`find`, :meth:`find_value`, :meth:`find_many`,
    :meth:`values_many`, :meth:`next`, :meth:`prev`.

    Changing: :meth:`assign`, :meth:`erase`.

    Iterating: ``for first, last, value in ranges``, :meth:`items`, ``len(ranges)``.

    All or nothing: :meth:`transaction`, or :meth:`begin`, :meth:`commit` and
    :meth:`rollback` by hand.

    Copying: :meth:`clone`, :meth:`snapshot`, :meth:`to_array`, :meth:`from_array`.

    Figures: :attr:`nbytes`, :attr:`merge`, :meth:`work`, :meth:`check`.

    Parameters
    ----------
    merge : bool
        Join neighbours of equal value. Without it they stay apart, as ranges
        that have an identity must; neighbouring holes are one hole either way.
    node_entries : int
        Entries of a tree node, 4..64; 0 is the built-in size. Small nodes make
        small tests reach every split and join.

    Raises
    ------
    InvalidArgumentError
        If *node_entries* is neither 0 nor in 4..64.
    OutOfMemoryError
        If there is no memory for the first node.

    Notes
    -----
    Thread safety: each method takes the map's lock in free-threaded builds and
    runs under the interpreter lock in others. :meth:`find_many` and
    :meth:`values_many` release it; a change attempted meanwhile by another thread
    raises ``BusyError`` and changes nothing. Iterators hold a page number, not a
    place in the tree: they may be mixed with changes and see the map as it is
    when they move on.

    Complexity
    ----------
    O(log n) a look-up and a change, plus the entries that a change overwrites.
    13 to 20 bytes an entry.

    Source
    ------
    Own. Inclusive page bounds as in the kernel's ``struct svm_range``.

    Examples
    --------
    >>> ranges = RangeMap()
    >>> ranges.assign(0x100, 0x1ff, 7)
    >>> ranges.assign(0x180, 0x18f, 8)
    >>> list(ranges)
    [(256, 383, 7), (384, 399, 8), (400, 511, 7)]
    >>> ranges.find(0x185)
    (384, 399, 8)
    """

    cdef ranges_t* m
    cdef int readers        # batches running without the lock

    def __cinit__(self, merge=False, node_entries=0):
        cdef uint64_t entries = number_or_raise(node_entries, "node_entries", LEAF)
        if 0 < entries < 4:
            raise InvalidArgumentError(f"node_entries {entries}: expected 0 or 4..{LEAF}")
        self.m = ranges_new(bool(merge), <uint32_t>entries)
        if self.m == NULL:
            raise OutOfMemoryError("no memory for a range map")

    def __dealloc__(self):
        ranges_free(self.m)

    # --- looking up

    @cython.binding(False)
    def find(self, page):
        """The entry that holds *page*.

        Parameters
        ----------
        page : int
            Page number, 0..2**64-1.

        Returns
        -------
        (int, int, int)
            First and last page, inclusive, and the value; 0 is a hole.

        Raises
        ------
        InvalidArgumentError
            If *page* is no page number.

        Complexity
        ----------
        O(log n), one tuple; nogil in the C API (``ranges_find``).

        Source
        ------
        Own.
        """
        cdef range_entry_t entry
        cdef uint64_t wanted = page_of(page, "page")
        with cython.critical_section(self):
            ranges_find(self.m, wanted, &entry)
        return (entry.first, entry.last, entry.value)

    @cython.binding(False)  # a plain method descriptor: 8 ns less a call
    def find_value(self, page):
        """The value at *page*; 0 is a hole.

        Parameters
        ----------
        page : int
            Page number, 0..2**64-1.

        Returns
        -------
        int
            0..2**32-1.

        Raises
        ------
        InvalidArgumentError
            If *page* is no page number.

        Complexity
        ----------
        O(log n); the fastest scalar call.

        Source
        ------
        Own.
        """
        cdef uint64_t wanted = page_of(page, "page")
        cdef uint32_t value
        with cython.critical_section(self):
            self.m.work.finds += 1
            value = value_at(self.m, wanted)
        return value

    def find_many(self, pages):
        """The entries that hold *pages*.

        Parameters
        ----------
        pages : array_like of int, shape (n,)
            Page numbers. A contiguous ``uint64`` array is not copied.

        Returns
        -------
        numpy.ndarray
            shape (n,), dtype ``ENTRY``: fields ``first``, ``last``, ``value``.

        Raises
        ------
        InvalidArgumentError
            If *pages* is not a one-dimensional array of page numbers.

        Complexity
        ----------
        O(n log m) with 16 look-ups in flight; releases the interpreter lock.

        Source
        ------
        Own.
        """
        cdef const uint64_t[::1] wanted = pages_array(pages)
        cdef size_t n = wanted.shape[0]
        cdef uint8_t[::1] raw
        found = np.zeros(n, dtype=ENTRY)
        if n > 0:
            raw = found.view(np.uint8)
            self._lookup(&wanted[0], n, <range_entry_t*>&raw[0], NULL)
        return found

    def values_many(self, pages, out=None):
        """The values at *pages*; 0 is a hole.

        Parameters
        ----------
        pages : array_like of int, shape (n,)
            Page numbers. A contiguous ``uint64`` array is not copied.
        out : numpy.ndarray, shape (n,), dtype uint32, optional
            Written and returned instead of a new array.

        Returns
        -------
        numpy.ndarray
            shape (n,), dtype uint32.

        Raises
        ------
        InvalidArgumentError
            If *pages* is not a one-dimensional array of page numbers, or *out*
            is not a contiguous, writable uint32 array of its length.

        Complexity
        ----------
        O(n log m) with 16 look-ups in flight; releases the interpreter lock.

        Source
        ------
        Own.
        """
        cdef const uint64_t[::1] wanted = pages_array(pages)
        cdef size_t n = wanted.shape[0]
        cdef uint32_t[::1] values
        if out is None:
            out = np.empty(n, dtype=np.uint32)
        elif (not isinstance(out, np.ndarray) or out.dtype != np.uint32 or out.shape != (n,)
                or not out.flags.c_contiguous or not out.flags.writeable):
            raise InvalidArgumentError(
                f"out: expected a contiguous, writable uint32 array of shape ({n},)"
            )
        if n > 0:
            values = out
            self._lookup(&wanted[0], n, NULL, &values[0])
        return out

    cdef _lookup(self, const uint64_t* pages, size_t n, range_entry_t* out, uint32_t* values):
        cdef uint64_t visited
        with cython.critical_section(self):
            self.readers += 1
        with nogil:
            visited = lookup_many(self.m, pages, n, out, values)
        with cython.critical_section(self):
            self.readers -= 1
            self.m.work.finds += n
            self.m.work.nodes_visited += visited

    def next(self, page):
        """First entry that is no hole and ends at or after *page*.

        Parameters
        ----------
        page : int
            Page number, 0..2**64-1.

        Returns
        -------
        (int, int, int) or None
            First and last page, inclusive, and the value; None if there is none.

        Raises
        ------
        InvalidArgumentError
            If *page* is no page number.

        Complexity
        ----------
        O(log n).

        Source
        ------
        Own; plays the part of the kernel's ``interval_tree_iter_first``.
        """
        cdef range_entry_t entry
        cdef uint64_t wanted = page_of(page, "page")
        cdef bint found
        with cython.critical_section(self):
            found = ranges_next(self.m, wanted, &entry)
        return (entry.first, entry.last, entry.value) if found else None

    def prev(self, page):
        """Last entry that is no hole and begins at or before *page*.

        Parameters
        ----------
        page : int
            Page number, 0..2**64-1.

        Returns
        -------
        (int, int, int) or None
            First and last page, inclusive, and the value; None if there is none.

        Raises
        ------
        InvalidArgumentError
            If *page* is no page number.

        Complexity
        ----------
        O(log n).

        Source
        ------
        Own.
        """
        cdef range_entry_t entry
        cdef uint64_t wanted = page_of(page, "page")
        cdef bint found
        with cython.critical_section(self):
            found = ranges_prev(self.m, wanted, &entry)
        return (entry.first, entry.last, entry.value) if found else None

    # --- changing

    # Raise if the map must not change now: a batch is reading it in another thread.
    cdef inline int _changeable(self) except -1:
        if self.readers != 0:
            raise BusyError("a batch look-up in another thread reads this map: wait for it")
        return 0

    cdef int _assign(self, object first, object last, uint32_t value) except -1:
        cdef uint64_t lo = page_of(first, "first")
        cdef uint64_t hi = page_of(last, "last")
        cdef int failed
        if lo > hi:
            raise InvalidArgumentError(f"first {lo:#x}, last {hi:#x}: expected first <= last")
        with cython.critical_section(self):
            self._changeable()
            failed = ranges_assign(self.m, lo, hi, value)
        if failed:
            raise OutOfMemoryError("no memory to assign a range; the map is unchanged")
        return 0

    @cython.binding(False)
    def assign(self, first, last, value):
        """Overwrite the pages *first* to *last* with one entry.

        Entries cut at the ends keep their value on the outer side.

        Parameters
        ----------
        first, last : int
            Page numbers, inclusive; ``first <= last``.
        value : int
            1..2**32-1. To make a hole use :meth:`erase`.

        Raises
        ------
        InvalidArgumentError
            If an argument is out of bounds.
        OutOfMemoryError
            If there is no memory.
        BusyError
            If another thread runs a batch look-up on this map. After each of
            these the map is as before.

        Complexity
        ----------
        O(log n + k), k entries overwritten.

        Source
        ------
        Own; head and tail are split as in the kernel's ``svm_range_add``.
        """
        cdef uint64_t number = int_as_size(value)
        if number - 1 >= 0xFFFFFFFE:  # 0, an error or, where it may be one, the largest value
            PyErr_Clear()
            number = number_or_raise(value, "value", 0xFFFFFFFF)
            if number == 0:
                raise InvalidArgumentError("value 0: expected 1..0xffffffff, erase() makes a hole")
        self._assign(first, last, <uint32_t>number)

    @cython.binding(False)
    def erase(self, first, last):
        """Make the pages *first* to *last* a hole.

        Parameters
        ----------
        first, last : int
            Page numbers, inclusive; ``first <= last``.

        Raises
        ------
        InvalidArgumentError
            If an argument is out of bounds.
        OutOfMemoryError
            If there is no memory: cutting one entry in two needs some.
        BusyError
            If another thread runs a batch look-up on this map. After each of
            these the map is as before.

        Complexity
        ----------
        O(log n + k), k entries overwritten.

        Source
        ------
        Own.
        """
        self._assign(first, last, 0)

    # --- iterating

    def __iter__(self):
        return self.items()

    def items(self, first=0, last=0xFFFFFFFFFFFFFFFF):
        """Entries that have a page in *first* to *last*, in order, without holes.

        Parameters
        ----------
        first, last : int
            Page numbers, inclusive.

        Yields
        ------
        (int, int, int)
            First and last page, inclusive, and the value, with the entry's own
            bounds even where they pass *first* or *last*.

        Raises
        ------
        InvalidArgumentError
            If an argument is out of bounds; at once, not at the first step.

        Complexity
        ----------
        O(log n) a step.

        Source
        ------
        Own.
        """
        cdef uint64_t lo = page_of(first, "first")
        cdef uint64_t hi = page_of(last, "last")
        if lo > hi:
            raise InvalidArgumentError(f"first {lo:#x}, last {hi:#x}: expected first <= last")
        return self._walk(lo, hi)

    def _walk(self, uint64_t page, uint64_t last):
        cdef range_entry_t entry
        cdef bint found
        while True:
            with cython.critical_section(self):
                found = ranges_next(self.m, page, &entry)
            if not found or entry.first > last:
                return
            page = entry.last
            yield (entry.first, entry.last, entry.value)
            if page >= last:
                return
            page += 1

    def __len__(self):
        return ranges_count(self.m)

    def __repr__(self):
        return f"<RangeMap of {len(self)} entries, {self.nbytes} bytes>"

    # --- all or nothing

    def begin(self):
        """Open a transaction.

        Raises
        ------
        BusyError
            If one is open, or another thread runs a batch look-up on this map.

        Complexity
        ----------
        O(1). Until it ends, the first change of each node copies that node.

        Source
        ------
        Own; a change that fails leaves the old map, as in ``svm_range_set_attr``.
        """
        cdef int failed
        with cython.critical_section(self):
            self._changeable()
            failed = ranges_begin(self.m)
        if failed:
            raise BusyError("a transaction is open: expected commit() or rollback() first")

    def commit(self):
        """End the transaction and keep the map as it is.

        Raises
        ------
        BusyError
            If none is open, or another thread runs a batch look-up on this map.

        Complexity
        ----------
        O(nodes touched since :meth:`begin`).

        Source
        ------
        Own.
        """
        with cython.critical_section(self):
            self._changeable()
            if not self.m.open:
                raise BusyError("no transaction is open: expected begin() first")
            ranges_commit(self.m)

    def rollback(self):
        """End the transaction and restore the map of :meth:`begin`.

        Counts of work stay: they tell what was done.

        Raises
        ------
        BusyError
            If none is open, or another thread runs a batch look-up on this map.

        Complexity
        ----------
        O(nodes touched since :meth:`begin`), no allocation.

        Source
        ------
        Own.
        """
        with cython.critical_section(self):
            self._changeable()
            if not self.m.open:
                raise BusyError("no transaction is open: expected begin() first")
            ranges_rollback(self.m)

    def transaction(self):
        """A context in which changes are kept all or, on an exception, not at all.

        Returns
        -------
        context manager
            Enters with the map; commits at the end, rolls back on an exception,
            which passes on.

        Raises
        ------
        BusyError
            On entry, if a transaction is open.

        Complexity
        ----------
        That of :meth:`begin`, :meth:`commit` and :meth:`rollback`.

        Source
        ------
        Own.

        Examples
        --------
        >>> ranges = RangeMap()
        >>> with ranges.transaction():
        ...     ranges.assign(0, 9, 1)
        ...     ranges.assign(9, 0, 1)
        Traceback (most recent call last):
        ...
        svmcore.errors.InvalidArgumentError: first 0x9, last 0x0: expected first <= last
        >>> len(ranges)
        0
        """
        return _Transaction(self)

    # --- copying

    def clone(self):
        """A map of its own with the same entries and counts of work.

        A transaction that is open here is not open in the clone.

        Returns
        -------
        RangeMap

        Raises
        ------
        OutOfMemoryError
            If there is no memory.

        Complexity
        ----------
        O(n), a copy of the nodes' memory.

        Source
        ------
        Own.
        """
        cdef RangeMap other = RangeMap.__new__(RangeMap)
        cdef ranges_t* m
        with cython.critical_section(self):
            m = ranges_clone(self.m)
        if m == NULL:
            raise OutOfMemoryError("no memory to clone a range map")
        ranges_free(other.m)
        other.m = m
        return other

    def to_array(self):
        """Every entry in order, holes left out.

        Returns
        -------
        ndarray, shape (n,), dtype ENTRY

        Complexity
        ----------
        O(n), each node once.

        Source
        ------
        Own.
        """
        cdef uint64_t n
        cdef object entries
        cdef range_entry_t[::1] rows
        with cython.critical_section(self):
            n = ranges_count(self.m)
            entries = new_entries(n)
            rows = entries
            if n:
                ranges_entries(self.m, &rows[0])
        return entries

    @staticmethod
    def from_array(entries, merge=False, node_entries=0):
        """A map of these entries, many times faster than assigning each.

        Parameters
        ----------
        entries : ndarray, shape (n,), dtype ENTRY
            Ascending, disjoint, no holes.
        merge, node_entries
            As of the class.

        Returns
        -------
        RangeMap

        Raises
        ------
        InvalidArgumentError
            If *entries* is no such array; the row is named.
        OutOfMemoryError
            If there is no memory.

        Complexity
        ----------
        O(n).

        Source
        ------
        Own.
        """
        cdef RangeMap made = RangeMap(merge, node_entries)
        cdef const range_entry_t[::1] rows
        cdef uint64_t i, n
        if not isinstance(entries, np.ndarray) or entries.dtype != ENTRY or entries.ndim != 1:
            raise InvalidArgumentError(f"entries {entries!r:.60}: expected an array of ENTRY")
        entries = np.require(entries, requirements=["C", "A"])
        rows = entries
        n = rows.shape[0]
        for i in range(n):
            if rows[i].first > rows[i].last or rows[i].value == 0 or (
                i and rows[i].first <= rows[i - 1].last
            ):
                raise InvalidArgumentError(
                    f"entries[{i}]: expected first <= last, behind the entry before, no value 0"
                )
        if n and ranges_fill(made.m, &rows[0], n):
            raise OutOfMemoryError("no memory for a range map")
        return made

    def snapshot(self):
        """The map as it is now, unaffected by later changes.

        Returns
        -------
        RangeMap
            A :meth:`clone`. To go back cheaply use :meth:`transaction`.

        Raises
        ------
        OutOfMemoryError
            If there is no memory.

        Complexity
        ----------
        O(n), a copy of the nodes' memory.

        Source
        ------
        Own.
        """
        return self.clone()

    # --- figures

    @property
    def nbytes(self):
        """Memory held, bytes: nodes in use, free and reserved."""
        return ranges_nbytes(self.m)

    @property
    def merge(self):
        """Whether neighbours of equal value are joined."""
        return self.m.merge

    def work(self):
        """Exact counts of the work done so far.

        Returns
        -------
        dict
            ``finds`` look-ups; ``nodes_visited`` nodes read on the way down (the
            look-ups of a batch that stay in the leaf of the last one add none);
            ``assigns`` spans overwritten; ``node_splits`` and ``node_merges``
            nodes more and less after re-dealing; ``node_copies`` copies for a
            transaction; ``entries_removed`` entries, holes too, overwritten whole
            or joined to a neighbour.

        Complexity
        ----------
        O(1).

        Source
        ------
        Own. The same sequence of calls gives the same counts on every machine.
        """
        cdef ranges_work_t work
        ranges_work(self.m, &work)
        return work

    def check(self):
        """Verify every invariant of the tree.

        Raises
        ------
        AssertionError
            Naming the rule that is broken.

        Complexity
        ----------
        O(n).

        Source
        ------
        Own. The rules are the ``Invariant:`` lines of ``_ranges.pxd`` and ``_ranges.pyx``.
        """
        cdef int rule
        with cython.critical_section(self):
            rule = ranges_check(self.m)
        if rule != 0:
            raise AssertionError(f"rule {rule} of the range map is broken: {RULES[rule]}; {self!r}")


class _Transaction:
    """Context of :meth:`RangeMap.transaction`."""

    def __init__(self, ranges):
        self._ranges = ranges

    def __enter__(self):
        self._ranges.begin()
        return self._ranges

    def __exit__(self, kind, error, trace):
        if kind is None:
            self._ranges.commit()
        else:
            self._ranges.rollback()


def _break_rule(RangeMap ranges, int rule):
    """Break one rule of a map, for the test that :meth:`RangeMap.check` sees it.

    The map must have several leaves and may only be checked and dropped afterwards.

    Parameters
    ----------
    ranges : RangeMap
        More than one leaf, entries at its front.
    rule : int
        A key of ``RULES``.

    Complexity
    ----------
    O(log n).

    Source
    ------
    Own.
    """
    cdef ranges_t* m = ranges.m
    cdef path_t path
    cdef leaf_t* leaf
    path_to(m, 0, &path)
    leaf = leaf_at(m, path.leaf)
    if rule == RULE_SHAPE:
        m.leaf.count[path.leaf] = 0
    elif rule == RULE_KEYS:
        inner_at(m, m.root).key[1] = 0
    elif rule == RULE_REPEAT:
        inner_at(m, m.root).child[INNER - 1] = path.leaf
    elif rule == RULE_FENCE:
        leaf.start[0] = 1
    elif rule == RULE_STARTS:
        leaf.start[1] = 0
    elif rule == RULE_UNUSED:
        leaf.start[LEAF - 1] = REACH
    elif rule == RULE_JOINED:
        leaf.value[0] = leaf.value[1] = 0
    elif rule == RULE_COUNT:
        m.count += 1
    elif rule == RULE_NODES:
        m.leaf.free_count += 1
    elif rule == RULE_MARKS:
        m.leaf.mark[path.leaf] = NONE
    elif rule == RULE_INDEX:
        index_make(m)
        m.index.places[0].line[0] = 0
