# cython: language_level=3, freethreading_compatible=True
"""The UVM driver's decisions, compiled; ``reference_uvm.UvmReference`` is its twin.

Owns the ranges, blocks, chunks and thrashing histories of one process. Every function
mirrors one of the reference, in the same order, so that the two can be read side by
side; section numbers are those of ``docs/explain/uvm.md``. Where the reference goes page
by page, this goes by masks. One thread at a time uses a process, and the processes of
one node.
"""
cimport cython
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy, memset

from .._evict cimport (
    evict_free,
    evict_insert,
    evict_nbytes,
    evict_new,
    evict_pack,
    evict_remove,
    evict_reserve,
    evict_touch,
    evict_victim,
    order_of,
)
from .._faults cimport (
    EVENT_BATCH,
    EVENT_CANCEL,
    EVENT_DUPLICATE,
    EVENT_EVICT,
    EVENT_EVICT_OBJECT,
    EVENT_FAULT,
    EVENT_MIGRATE,
    EVENT_PIN,
    EVENT_REMOTE,
    EVENT_SERVED,
    EVENT_THRASH,
    EVENT_THROTTLE,
    EVENT_UNMAP,
    EVENT_UNPIN,
    REASON_DUPLICATE,
    REASON_FAULT_TYPE,
    REASON_INVALID_PREFETCH,
    REASON_NEVER_RESOLVES,
    REASON_NO_MAPPING,
    REASON_NO_MEMORY,
    REASON_NO_SVM,
    REASON_OK,
    REASON_OUT_OF_MEMORY,
    REASON_PERMISSION,
    REASON_PREFETCH_OFF,
    REASON_RETRY_LATER,
    engine_free,
    engine_log,
    engine_moved,
    engine_new,
    engine_t,
    event_kind,
    move_ns,
    trigger_t,
)
from .._process cimport (
    AGE_DISCARDED,
    AGE_FREE,
    AGE_USED,
    KEEPS,
    MAX_BATCH,
    NOWHERE,
    Node,
    Process,
    age_of,
    arrival_t,
    node_make_room,
    ops_t,
    process_join,
    touch_t,
)
from .._ranges cimport (
    range_entry_t,
    ranges_assign,
    ranges_check,
    ranges_find,
    ranges_free,
    ranges_nbytes,
    ranges_new,
    ranges_next,
)
from .._residency cimport ctz64, popcount64, res_grow, res_nbytes
from .._types cimport (
    E_EXIST,
    E_FAULT,
    E_INVAL,
    E_IO,
    E_LOOP,
    E_NOENT,
    E_NOMEM,
    E_OPNOTSUPP,
    E_PERM,
    KIND_PREFETCH,
    record_t,
)

from .._faults import REASONS as _REASONS
from ..errors import InvalidArgumentError, OutOfMemoryError
from .outcome import FATAL_REASONS as _FATAL_REASONS
from .outcome import Outcome
from .topology import topology_of

cdef enum:
    BLOCK = 512
    BIG = 16
    UNPIN_SLACK_NS = 20000
    RETRIES = 64           # deliveries of one touch without progress before it is fatal
    PROTECTIONS = 3
    PREFETCHED = 3         # access of a fault by the hardware's prefetcher
    FATAL = 5              # fault types of the hardware that cannot be served begin here
    NO_ENTRY = 0xffffffffU
    # Attribute types and the flag that records of advice carry.
    ATTR_PREFERRED = 0
    ATTR_PREFETCH = 1
    ATTR_AIP = 3
    ATTR_NO_ACCESS = 4
    ATTR_SET_FLAGS = 5
    ATTR_CLR_FLAGS = 6
    FLAG_READ_MOSTLY = 0x20

cdef enum duplication_t:
    UNSET = 0
    ENABLED = 1
    DISABLED = 2

cdef enum protection_t:
    NO = 0
    RO = 1
    RW = 2
    RWA = 3

# Why a processor is mapped to pages that are elsewhere: UvmEventMapRemoteCause.
cdef enum remote_t:
    REMOTE_THRASHING = 2
    REMOTE_POLICY = 3
    REMOTE_EVICTED = 5

# Why pages move; names in CAUSES.
cdef enum cause_t:
    CAUSE_USER = 0
    CAUSE_GPU_FAULT = 1
    CAUSE_CPU_FAULT = 2
    CAUSE_EVICTION = 3
    CAUSE_PREFETCHER = 4
    CAUSE_ADVICE = 5
    CAUSE_ACCESS_COUNTER = 6

cdef enum hint_t:
    HINT_NONE = 0
    HINT_PIN = 1
    HINT_THROTTLE = 2

# What asks where a page goes. Vector files alone know foreigners.
cdef enum decision_t:
    BY_FAULT = 0
    BY_COUNTER = 1         # an access counter
    BY_FOREIGNER = 2       # a touch by another process than the owner

cdef enum list_t:
    LIST_UNUSED = AGE_FREE
    LIST_DISCARDED = AGE_DISCARDED
    LIST_USED = AGE_USED

cdef enum ended_t:
    ENDED = 0
    NO_ROOM = 1            # a GPU is full and nothing can be evicted
    NO_RECORDS = 2         # no memory of the model

CAUSES = (
    "user", "gpu_fault", "cpu_fault", "eviction", "prefetcher", "advice", "access_counter",
)
#: Words of the events of the log, by kind.
WORDS = {
    EVENT_BATCH: "batch",
    EVENT_CANCEL: "cancel",
    EVENT_DUPLICATE: "duplicate",
    EVENT_EVICT: "evict",
    EVENT_FAULT: "fault",
    EVENT_MIGRATE: "migrate",
    EVENT_PIN: "pin",
    EVENT_REMOTE: "remote",
    EVENT_SERVED: "served",
    EVENT_THRASH: "thrash",
    EVENT_THROTTLE: "throttle",
    EVENT_UNMAP: "unmap",
    EVENT_UNPIN: "unpin",
}
#: Rules of section 2.1, by number.
RULES = {
    2: "2 read duplication",
    3: "3 preferred location of the requester",
    5: "5 pinned",
    6: "6 first touch",
    7: "7 accessed by",
    8: "8 native atomics",
    9: "9 preferred location",
    10: "10 foreign process",
    11: "11 requester",
}

# Faults of one processor on one block; a page not in write or strong is read.
cdef struct request_t:
    uint64_t pages[8]
    uint64_t write[8]      # highest level: write
    uint64_t strong[8]     # highest level: a strong atomic
    uint64_t atomic[8]     # lowest level: an atomic

# Pages by the protection that they get: RO, RW, RWA.
cdef struct levels_t:
    uint64_t v[3][8]

# Ranges of a span block by block: what a walk remembers.
cdef struct walk_t:
    uint64_t page
    uint64_t last
    uint32_t number        # range, and the block in it; 0 where none was made yet
    uint32_t block
    uint64_t frame
    uint64_t pages[8]      # of the block in the span

cdef struct service_t:
    uint64_t served[8]
    uint64_t throttled[8]
    uint64_t until         # first end of a throttle; 0 without one
    uint8_t best           # where the last fault was served from


# ---- masks ------------------------------------------------------------------------------

cdef inline bint any_of(const uint64_t* m) noexcept nogil:
    return (m[0] | m[1] | m[2] | m[3] | m[4] | m[5] | m[6] | m[7]) != 0


cdef inline uint32_t count_of(const uint64_t* m) noexcept nogil:
    cdef uint32_t w, n = 0
    for w in range(8):
        if m[w]:
            n += popcount64(m[w])
    return n


cdef inline uint32_t first_of(const uint64_t* m) noexcept nogil:
    """First page of a mask that is not empty."""
    cdef uint32_t w = 0
    while not m[w]:
        w += 1
    return w * 64 + ctz64(m[w])


cdef inline uint32_t last_of(const uint64_t* m) noexcept nogil:
    cdef uint32_t w = 7, low = 0, step = 32
    while not m[w]:
        w -= 1
    while step:
        if m[w] >> (low + step):
            low += step
        step >>= 1
    return w * 64 + low


cdef inline uint64_t word_of(uint32_t w, uint32_t low, uint32_t outer) noexcept nogil:
    """Bits of word w in pages [low, outer)."""
    cdef uint64_t m = <uint64_t>0xffffffffffffffffU
    if outer <= w * 64 or low >= w * 64 + 64:
        return 0
    if low > w * 64:
        m &= m << (low - w * 64)
    if outer < w * 64 + 64:
        m &= <uint64_t>0xffffffffffffffffU >> (64 - (outer - w * 64))
    return m


cdef inline void span_of(uint64_t* m, uint32_t low, uint32_t outer) noexcept nogil:
    cdef uint32_t w
    for w in range(8):
        m[w] = word_of(w, low, outer)


cdef inline void clear(uint64_t* m) noexcept nogil:
    memset(m, 0, 64)


cdef inline void copy_to(uint64_t* m, const uint64_t* a) noexcept nogil:
    memcpy(m, a, 64)


cdef inline void add(uint64_t* m, const uint64_t* a) noexcept nogil:
    cdef uint32_t w
    for w in range(8):
        m[w] |= a[w]


cdef inline void keep(uint64_t* m, const uint64_t* a) noexcept nogil:
    cdef uint32_t w
    for w in range(8):
        m[w] &= a[w]


cdef inline void drop(uint64_t* m, const uint64_t* a) noexcept nogil:
    cdef uint32_t w
    for w in range(8):
        m[w] &= ~a[w]


cdef inline bint both(uint64_t* m, const uint64_t* a, const uint64_t* b) noexcept nogil:
    """m = a & b; any?"""
    cdef uint32_t w
    for w in range(8):
        m[w] = a[w] & b[w]
    return any_of(m)


cdef inline bint without(uint64_t* m, const uint64_t* a, const uint64_t* b) noexcept nogil:
    """m = a & ~b; any?"""
    cdef uint32_t w
    for w in range(8):
        m[w] = a[w] & ~b[w]
    return any_of(m)


cdef inline bint meets(const uint64_t* a, const uint64_t* b) noexcept nogil:
    cdef uint32_t w
    cdef uint64_t m = 0
    for w in range(8):
        m |= a[w] & b[w]
    return m != 0


cdef inline bint has(const uint64_t* m, uint32_t page) noexcept nogil:
    return m[page >> 6] >> (page & 63) & 1


cdef inline void put(uint64_t* m, uint32_t page) noexcept nogil:
    m[page >> 6] |= <uint64_t>1 << (page & 63)


cdef inline void take(uint64_t* m, uint32_t page) noexcept nogil:
    m[page >> 6] &= ~(<uint64_t>1 << (page & 63))


cdef inline uint64_t head_of(const uvm_t* p, uint64_t page) noexcept nogil:
    """First of the 4 KiB pages of the kernel's page."""
    return page & ~p.within


cdef inline void put_whole(const uvm_t* p, uint64_t* m, uint32_t head) noexcept nogil:
    """All of the kernel's page."""
    m[head >> 6] |= p.lane << (head & 63)


cdef inline void take_whole(const uvm_t* p, uint64_t* m, uint32_t head) noexcept nogil:
    m[head >> 6] &= ~(p.lane << (head & 63))


cdef inline uint32_t npages(const uvm_t* p, const uint64_t* m) noexcept nogil:
    """How many of the kernel's pages."""
    return count_of(m) >> p.unit_log


cdef inline bint next_page(const uint64_t* m, uint32_t* page) noexcept nogil:
    """The first page of the mask from *page* on."""
    cdef uint32_t w = page[0] >> 6
    cdef uint64_t m0
    if w >= 8:
        return False
    m0 = m[w] & <uint64_t>0xffffffffffffffffU << (page[0] & 63)
    while not m0:
        w += 1
        if w == 8:
            return False
        m0 = m[w]
    page[0] = w * 64 + ctz64(m0)
    return True


cdef inline uint32_t run_end(const uint64_t* m, uint32_t page) noexcept nogil:
    """First page from *page* on that is not in the mask, 512 at most."""
    cdef uint32_t w = page >> 6
    cdef uint64_t m0 = ~m[w] & <uint64_t>0xffffffffffffffffU << (page & 63)
    while not m0:
        w += 1
        if w == 8:
            return BLOCK
        m0 = ~m[w]
    return w * 64 + ctz64(m0)


# ---- records ----------------------------------------------------------------------------

cdef void* pool_at(pool_t* pool, uint32_t number) noexcept nogil:
    return pool.v + <size_t>number * pool.item


cdef inline bint room_in(pool_t* pool, uint64_t count) noexcept nogil:
    return pool.live + count < pool.cap or pool_reserve(pool, count)


cdef bint pool_reserve(pool_t* pool, uint64_t count) noexcept nogil:
    """Room for that many more records; number 0 stays unused."""
    cdef uint64_t want = pool.live + count + 1
    return want <= pool.cap or res_grow(<void**>&pool.v, &pool.cap, want, pool.item)


cdef uint32_t pool_take(pool_t* pool) noexcept nogil:
    """A cleared record; room is reserved."""
    cdef uint32_t number = pool.free
    if number:
        pool.free = (<uint32_t*>pool_at(pool, number))[0]
    else:
        number = pool.n
        pool.n += 1
    memset(pool_at(pool, number), 0, pool.item)
    pool.live += 1
    return number


cdef void pool_give(pool_t* pool, uint32_t number) noexcept nogil:
    (<uint32_t*>pool_at(pool, number))[0] = pool.free
    pool.free = number
    pool.live -= 1


cdef inline range_t* range_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <range_t*>p.ranges.v + number


cdef inline block_t* block_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <block_t*>p.blocks.v + number


cdef inline place_t* place_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <place_t*>p.places.v + number


cdef inline root_t* root_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <root_t*>p.roots.v + number


cdef inline split_t* split_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <split_t*>p.splits.v + number


cdef inline cut_t* cut_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <cut_t*>p.cuts.v + number


cdef inline arena_t* arena_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <arena_t*>p.arenas.v + number


cdef inline histories_t* histories_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <histories_t*>p.histories.v + number


cdef inline entry_t* entry_no(uvm_t* p, uint32_t number) noexcept nogil:
    return <entry_t*>p.entries.v + number


cdef inline bint is_full(const block_t* b) noexcept nogil:
    return b.outer - b.start == BLOCK


cdef place_t* uvm_place(uvm_t* p, uint32_t block, uint32_t processor) noexcept nogil:
    """What a processor has of a block; NULL when it never had anything."""
    cdef uint32_t number = block_no(p, block).place
    while number:
        if place_no(p, number).processor == processor:
            return place_no(p, number)
        number = place_no(p, number).next
    return NULL


cdef place_t* uvm_make_place(uvm_t* p, uint32_t block, uint32_t processor) noexcept nogil:
    """The same, made when missing; room is reserved."""
    cdef place_t* found = uvm_place(p, block, processor)
    cdef uint32_t number
    cdef uint32_t* link
    if found != NULL:
        return found
    number = pool_take(&p.places)
    place_no(p, number).processor = <uint8_t>processor
    link = &block_no(p, block).place
    while link[0] and place_no(p, link[0]).processor < processor:
        link = &place_no(p, link[0]).next
    place_no(p, number).next = link[0]
    link[0] = number
    return place_no(p, number)


cdef inline void forget_near(uvm_t* p) noexcept nogil:
    p.near_first = 1
    p.near_last = 0


cdef uint32_t uvm_range_at(uvm_t* p, uint64_t page) noexcept nogil:
    """Number of the range at the page, 0 without one."""
    cdef range_entry_t e
    if not p.near_first <= page <= p.near_last:
        ranges_find(p.tree, page, &e)
        p.near_first = e.first
        p.near_last = e.last
        p.near = e.value
    return p.near


cdef uint32_t uvm_block_at(uvm_t* p, uint32_t number, uint64_t frame) noexcept nogil:
    """Block of a range in a frame, 0 when there is none yet."""
    cdef arena_t* arena = arena_no(p, range_no(p, number).arena)
    cdef uint32_t block
    if arena.table == NULL:
        return 0
    block = arena.table[frame - arena.first_frame]
    while block and block_no(p, block).range != number:
        block = block_no(p, block).next
    return block


cdef bint uvm_touched(uvm_t* p, uint32_t number) noexcept nogil:
    """A block was made where the range lies, at some time."""
    return arena_no(p, range_no(p, number).arena).table != NULL


cdef bint uvm_reserve_block(uvm_t* p, uint32_t number) noexcept nogil:
    """Room for one more block of the range."""
    cdef arena_t* arena = arena_no(p, range_no(p, number).arena)
    if arena.table == NULL:
        arena.table = <uint32_t*>calloc(arena.frames, sizeof(uint32_t))
        if arena.table == NULL:
            return False
    return room_in(&p.blocks, 1) and room_in(&p.places, 1)


cdef void link_block(uvm_t* p, uint32_t block) noexcept nogil:
    """Enter a block in its frame, by address."""
    cdef block_t* b = block_no(p, block)
    cdef arena_t* arena = arena_no(p, range_no(p, b.range).arena)
    cdef uint32_t* link = arena.table + (b.frame - arena.first_frame)
    while link[0] and block_no(p, link[0]).start < b.start:
        link = &block_no(p, link[0]).next
    b.next = link[0]
    link[0] = block


cdef uint32_t uvm_make_block(uvm_t* p, uint32_t number, uint64_t frame) noexcept nogil:
    """The block of a range in a frame, made when missing; room is reserved."""
    cdef uint32_t block = uvm_block_at(p, number, frame)
    cdef uint64_t base = frame * BLOCK
    cdef range_t* r = range_no(p, number)
    cdef block_t* b
    if block:
        return block
    block = pool_take(&p.blocks)
    b = block_no(p, block)
    b.range = number
    b.frame = frame
    b.start = <uint16_t>(r.first - base) if r.first > base else 0
    b.outer = <uint16_t>(r.last + 1 - base) if r.last - base < BLOCK else BLOCK
    link_block(p, block)
    uvm_make_place(p, block, 0)
    return block


cdef inline uint64_t present(uvm_t* p) noexcept nogil:
    """What thrashing detection takes for now: when the batch began."""
    return p.engine.now


cdef inline void settle(uvm_t* p) noexcept nogil:
    p.engine.now += p.engine.cost_ns
    p.engine.cost_ns = 0


cdef void log_runs(uvm_t* p, uint32_t block, const uint64_t* pages, event_kind kind,
                   uint32_t source, uint32_t target, uint64_t value) noexcept nogil:
    cdef uint64_t base = block_no(p, block).frame * BLOCK
    cdef uint32_t page = 0, end
    while next_page(pages, &page):
        end = run_end(pages, page)
        engine_log(p.engine, kind, base + page, base + end - 1, <uint8_t>source, <uint8_t>target,
                   0, value)
        page = end


cdef inline void tell_runs(uvm_t* p, uint32_t block, const uint64_t* pages, event_kind kind,
                           uint32_t source, uint32_t target, uint64_t value) noexcept nogil:
    """One event for each run of pages of a block, where somebody watches."""
    if p.engine.recording:
        log_runs(p, block, pages, kind, source, target, value)


cdef inline void tell(uvm_t* p, event_kind kind, uint64_t first, uint64_t last, uint32_t source,
                      uint64_t value) noexcept nogil:
    """An event that has no target, where somebody watches."""
    if p.engine.recording:
        engine_log(p.engine, kind, first, last, <uint8_t>source, 0, 0, value)


cdef inline void pay_batch(uvm_t* p, uint32_t faults) noexcept nogil:
    p.engine.cost_ns += p.engine.costs.batch_ns + p.engine.costs.in_batch_ns * faults


cdef inline void count_maps(uvm_t* p, uint32_t spans) noexcept nogil:
    p.engine.counters.maps += spans
    p.engine.cost_ns += p.engine.costs.map_ns * spans


cdef uint64_t holders_of(uvm_t* p, uint32_t block, uint32_t page) noexcept nogil:
    """Processors with a copy of a page."""
    cdef uint32_t number = block_no(p, block).place
    cdef uint64_t mask = 0
    while number:
        if has(place_no(p, number).resident, page):
            mask |= <uint64_t>1 << place_no(p, number).processor
        number = place_no(p, number).next
    return mask


cdef uint64_t mapping_of(uvm_t* p, uint32_t block, uint32_t level, uint32_t page) noexcept nogil:
    """Processors that map a page with that protection or more."""
    cdef uint32_t number = block_no(p, block).place
    cdef uint64_t mask = 0
    while number:
        if has(place_no(p, number).tables[level - 1], page):
            mask |= <uint64_t>1 << place_no(p, number).processor
        number = place_no(p, number).next
    return mask


cdef void anywhere_of(uvm_t* p, uint32_t block, uint64_t* out) noexcept nogil:
    cdef uint32_t number = block_no(p, block).place
    clear(out)
    while number:
        add(out, place_no(p, number).resident)
        number = place_no(p, number).next


cdef inline uint32_t lowest(uint64_t mask) noexcept nogil:
    return ctz64(mask)


cdef uint32_t closest(uvm_t* p, uint64_t mask, uint32_t src) noexcept nogil:
    """The memory that src reads from (section 1)."""
    cdef uint64_t here
    if mask >> src & 1:
        return src
    here = mask & p.siblings[src]
    if not here:
        here = mask & p.fast[src]
    if not here:
        here = mask & p.can[src]
    if here:
        return lowest(here & ~<uint64_t>1) if here > 1 else 0
    return lowest(mask)


# ---- prefetch (section 4) ---------------------------------------------------------------

cdef inline uint64_t lanes_of(uint64_t x) noexcept nogil:
    """Every 64 KiB lane with a page becomes whole."""
    x = (x | x >> 8) & <uint64_t>0x00ff00ff00ff00ffU
    x = (x | x >> 4) & <uint64_t>0x000f000f000f000fU
    x = (x | x >> 2) & <uint64_t>0x0003000300030003U
    x = (x | x >> 1) & <uint64_t>0x0001000100010001U
    return x * 0xffff


cdef inline uint32_t count_in(const uint64_t* m, const uint32_t* sums, uint32_t low,
                              uint32_t high) noexcept nogil:
    """Pages of [low, high); sums[w] = pages before word w."""
    cdef uint32_t n = sums[high >> 6] - sums[low >> 6]
    if high & 63:
        n += popcount64(m[high >> 6] & ~(<uint64_t>0xffffffffffffffffU << (high & 63)))
    if low & 63:
        n -= popcount64(m[low >> 6] & ~(<uint64_t>0xffffffffffffffffU << (low & 63)))
    return n


cdef bint densest(uvm_t* p, const uint64_t* counted, const uint32_t* sums, uint32_t page,
                  uint32_t origin, uint32_t start, uint32_t outer, uint32_t size,
                  uint32_t most, uint32_t* out_low, uint32_t* out_high) noexcept nogil:
    """The largest dense node above a page with *size* leaves or more, below *most*."""
    cdef uint32_t low, high
    cdef bint found = False
    while size < most:
        low = page - (page - origin) % size
        high = low + size if low + size < outer else outer
        if count_in(counted, sums, low if low > start else start, high) * 100 > (
            (high - low) * p.prefetch_threshold
        ):
            out_low[0] = low
            out_high[0] = high
            found = True
        if size >= outer - origin:
            break
        size *= 2
    return found


cdef void tree(uvm_t* p, uint32_t start, uint32_t outer, const uint64_t* resident,
               const uint64_t* faulted, const uint64_t* thrashing, uint64_t* out) noexcept nogil:
    cdef uint64_t counted[8]
    cdef uint64_t left[8]
    cdef uint32_t sums[9]
    cdef uint32_t first = (start + BIG - 1) // BIG * BIG, w, page = 0, low = 0, high = 0
    cdef uint32_t origin = start, border
    cdef bint aligned = first + BIG <= outer, same
    cdef uint64_t grown, hot
    if aligned:
        origin = start // BIG * BIG
    sums[0] = 0
    for w in range(8):
        hot = thrashing[w] if thrashing != NULL else 0
        if aligned:
            grown = lanes_of(faulted[w]) & ~lanes_of(hot) & word_of(w, start, outer)
            counted[w] = resident[w] | faulted[w] | grown
        else:
            counted[w] = resident[w] | faulted[w]
        left[w] = faulted[w] & ~hot
    if not aligned and any_of(faulted) and not (
        thrashing != NULL and meets_span(thrashing, start, outer)
    ):
        span_of(counted, start, outer)
    for w in range(8):
        sums[w + 1] = sums[w] + (popcount64(counted[w]) if counted[w] else 0)
    clear(out)
    while next_page(left, &page):
        # Pages of one 64 KiB lane have the same nodes above it.
        border = page // BIG * BIG + BIG if aligned else page + 1
        same = aligned and densest(p, counted, sums, page, origin, start, outer, BIG, 1024,
                                   &low, &high)
        if same:
            add_region(p, start, origin, low, high, out)
            page = border
            continue
        while page < border and next_page(left, &page) and page < border:
            if densest(p, counted, sums, page, origin, start, outer, 1, BIG if aligned else 1024,
                       &low, &high):
                add_region(p, start, origin, low, high, out)
            page += 1


cdef inline bint meets_span(const uint64_t* m, uint32_t low, uint32_t outer) noexcept nogil:
    cdef uint32_t w
    for w in range(8):
        if m[w] & word_of(w, low, outer):
            return True
    return False


cdef inline void add_region(uvm_t* p, uint32_t start, uint32_t origin, uint32_t low,
                            uint32_t high, uint64_t* out) noexcept nogil:
    cdef uint32_t w
    if low < start:
        low = start + (start - origin) if p.quirk else start
    if low < high:
        for w in range(low >> 6, ((high - 1) >> 6) + 1):
            out[w] |= word_of(w, low, high)


cdef bint prefetch_hint(uvm_t* p, block_t* b, uint8_t preferred, uint32_t target,
                        const uint64_t* resident, bint touched, const uint64_t* faulted,
                        const uint64_t* thrashing, const uint64_t* cpu_mapped,
                        uint64_t* out) noexcept nogil:
    """Pages to bring besides the faulted ones; whether the hint is given."""
    if b.prefetch_last != target + 1:
        b.prefetch_last = <uint8_t>(target + 1)
        b.prefetch_faults = 0
    if not touched and preferred == target + 1:
        span_of(out, b.start, b.outer)
    elif preferred and preferred != target + 1 and p.home_only:
        clear(out)
    else:
        tree(p, b.start, b.outer, resident, faulted, thrashing, out)
    drop(out, faulted)
    if thrashing != NULL:
        drop(out, thrashing)
    if target == 0 and cpu_mapped != NULL:
        drop_both(out, resident, cpu_mapped)
    b.prefetch_faults += <uint16_t>npages(p, faulted)
    return b.prefetch_faults >= p.prefetch_min_faults and any_of(out)


cdef inline void drop_both(uint64_t* m, const uint64_t* a, const uint64_t* b) noexcept nogil:
    cdef uint32_t w
    for w in range(8):
        m[w] &= ~(a[w] & b[w])


# ---- thrashing (section 5) --------------------------------------------------------------

cdef void dequeue(uvm_t* p, uint32_t number) noexcept nogil:
    """An entry leaves the queue of pinned pages."""
    cdef entry_t* entry = entry_no(p, number)
    if entry.before:
        entry_no(p, entry.before).next = entry.next
    else:
        p.queue_first = entry.next
    if entry.next:
        entry_no(p, entry.next).before = entry.before
    else:
        p.queue_last = entry.before
    pool_give(&p.entries, number)


cdef inline void end_throttles(history_t* h) noexcept nogil:
    if h.throttled:
        h.end = 0
        h.throttled = 0


cdef void reset_page(uvm_t* p, histories_t* hs, uint32_t page) noexcept nogil:
    """Forget a page's history; its throttles so far and the favoured one stay."""
    cdef history_t* h = hs.pages + page
    if h.flags & HISTORY_PINNED:
        take_whole(p, hs.pinned, page)
        if h.entry:
            dequeue(p, h.entry)
    h.stamp = 0
    h.events = 0
    h.processors = 0
    h.flags = 0
    h.pin_at = 0
    h.entry = 0
    end_throttles(h)
    take_whole(p, hs.thrashing, page)


cdef void reset_region(uvm_t* p, uint32_t block, uint32_t low, uint32_t outer) noexcept nogil:
    cdef uint32_t page = low
    cdef histories_t* hs
    if not block_no(p, block).histories:
        return
    hs = histories_no(p, block_no(p, block).histories)
    while next_page(hs.thrashing, &page) and page < outer:
        reset_page(p, hs, page)
        page += 1


cdef void forget_histories(uvm_t* p, uint32_t block) noexcept nogil:
    """The block goes, or is cut."""
    cdef block_t* b = block_no(p, block)
    cdef histories_t* hs
    cdef uint32_t page = 0
    if b.histories:
        hs = histories_no(p, b.histories)
        while next_page(hs.pinned, &page):
            if hs.pages[page].entry:
                dequeue(p, hs.pages[page].entry)
            page += 1
        pool_give(&p.histories, b.histories)
        b.histories = 0
    b.stamp = b.last_thrashing = 0
    b.processor = 0
    b.resets = b.pins = 0


cdef void record(uvm_t* p, uint32_t block, uint32_t low, uint32_t outer, uint32_t processor,
                 bint revocation) noexcept nogil:
    """Pages [low, outer) moved to a processor, or lost permissions there."""
    cdef block_t* b = block_no(p, block)
    cdef histories_t* hs
    cdef history_t* h
    cdef uint64_t now = present(p), before
    cdef uint64_t detected[8]
    cdef uint32_t page = low
    if not p.thrashing:
        return
    if not b.histories:
        if not b.stamp or b.processor == processor + 1 or now - b.stamp > p.lapse:
            b.stamp = now
            b.processor = <uint8_t>(processor + 1)
            return
        b.histories = pool_take(&p.histories)
    hs = histories_no(p, b.histories)
    if p.engine.recording:
        clear(detected)
    while page < outer:
        h = hs.pages + page
        h.processors |= <uint64_t>1 << processor
        before = h.stamp
        h.stamp = now & ~<uint64_t>63
        if before and now - before <= p.lapse:
            if h.events < 7:
                h.events += 1
            if h.events == p.thrashing_threshold:
                put_whole(p, hs.thrashing, page)
                if p.engine.recording:
                    put_whole(p, detected, page)
            if h.events >= p.thrashing_threshold:
                b.last_thrashing = now
            h.flags |= HISTORY_REVOKED if revocation else HISTORY_MIGRATED
        elif before and h.events >= p.thrashing_threshold and not h.flags & HISTORY_PINNED:
            reset_page(p, hs, page)
        page += p.unit
    b.stamp = now
    b.processor = <uint8_t>(processor + 1)
    tell_runs(p, block, detected, EVENT_THRASH, processor, 0, 0)


cdef void adapt(uvm_t* p, uint64_t gap) noexcept nogil:
    """The lapse follows the gaps between events (590 and later)."""
    cdef bint grow, shrink
    cdef uint64_t by = p.lapse // 8
    p.votes += 1 if gap >= p.lapse else -1
    if p.votes > 127:
        p.votes -= 256
    elif p.votes < -128:
        p.votes += 256
    if p.lapse_mode == 1:
        # -1 compares as a huge number.
        grow = (p.votes < 0 or p.votes >= p.lapse_votes) and p.lapse < 500000000
        shrink = p.votes >= p.lapse_votes and p.lapse > 5000
    else:
        grow = p.votes >= p.lapse_votes and p.lapse < 500000000
        shrink = p.votes <= -p.lapse_votes and p.lapse > 5000
    if grow:
        p.lapse += by if by < 50000000 else 50000000
    elif shrink:
        p.lapse -= by if by > 5000 else 5000
    if grow or shrink:
        p.votes = p.votes // 2  # C's division


cdef hint_t choose(uvm_t* p, const history_t* h, uint32_t requester, uint64_t holders,
                   uint8_t preferred, uint32_t* target) noexcept nogil:
    """Step 8 and the first of the rules a to e of step 9 that applies."""
    cdef bint pinned = h.flags & HISTORY_PINNED, favoured = h.favoured == requester + 1
    cdef uint64_t common = <uint64_t>0xffffffffffffffffU, users = h.processors
    cdef uint32_t near = closest(p, holders, requester) if holders else 0
    if pinned and h.flags & HISTORY_REVOKED and not favoured:
        return HINT_THROTTLE
    while users:
        common &= p.can[lowest(users)]
        users &= users - 1
    if preferred and common >> (preferred - 1) & 1:
        target[0] = preferred - 1
        return HINT_PIN
    if not (preferred and h.processors >> (preferred - 1) & 1) and not h.processors & ~(
        <uint64_t>1 << near | p.siblings[near] | (p.fast[near] & p.atomics[near])
    ):
        if near == 0 and common >> requester & 1:
            target[0] = requester
            return HINT_PIN if requester else HINT_NONE
        target[0] = near
        return HINT_PIN
    if pinned and preferred == requester + 1:
        target[0] = requester
        return HINT_PIN if h.pin_at == requester or favoured else HINT_THROTTLE
    if pinned:
        if favoured:
            target[0] = closest(p, common, requester) if common else requester
            return HINT_PIN
        target[0] = h.pin_at
        return HINT_PIN if p.can[requester] >> h.pin_at & 1 else HINT_THROTTLE
    target[0] = requester
    if not favoured:
        return HINT_THROTTLE
    return HINT_PIN if h.throttles >= p.pin_threshold else HINT_NONE


cdef bint epoch_over(uvm_t* p, uint32_t block) noexcept nogil:
    """A block that was quiet for long forgets its pages (step 2 of a hint)."""
    cdef block_t* b = block_no(p, block)
    if (
        b.last_thrashing == 0
        or present(p) - b.last_thrashing <= p.epoch
        or b.pins
        or b.resets >= p.max_resets
    ):
        return False
    b.resets += 1
    pool_give(&p.histories, b.histories)
    b.histories = 0
    b.stamp = b.last_thrashing = 0
    b.processor = 0
    return True


cdef hint_t hint(uvm_t* p, uint32_t block, uint32_t page, uint32_t requester, uint64_t holders,
                 uint8_t preferred, uint64_t* value) noexcept nogil:
    """What to do with a fault on a thrashing page (steps 4 to 11)."""
    cdef block_t* b = block_no(p, block)
    cdef histories_t* hs = histories_no(p, b.histories)
    cdef history_t* h = hs.pages + page
    cdef uint64_t now = present(p), gap, bit = <uint64_t>1 << requester
    cdef uint32_t target = 0, entry
    cdef hint_t kind
    if h.throttled & bit:
        if now < h.end and h.favoured != requester + 1:
            value[0] = h.end
            return HINT_THROTTLE
        h.throttled &= ~bit
        if not h.throttled:
            h.end = 0
    gap = now - h.stamp
    if p.lapse_mode:
        adapt(p, gap)
    if gap > p.lapse and not h.flags & HISTORY_PINNED:
        return HINT_NONE
    h.processors |= bit
    if now > h.end:
        h.end = (now + p.nap) & ~<uint64_t>63
        h.favoured = 0 if h.favoured == requester + 1 else <uint8_t>(requester + 1)
    elif h.favoured == 0:
        h.favoured = <uint8_t>(requester + 1)
    kind = choose(p, h, requester, holders, preferred, &target)
    if kind == HINT_PIN:
        if not p.memory >> target & 1:
            target = 0
        if not h.flags & HISTORY_PINNED or not holders >> target & 1:
            end_throttles(h)
        if not h.flags & HISTORY_PINNED:
            h.flags |= HISTORY_PINNED
            h.throttles = 0
            b.pins += 1
            put_whole(p, hs.pinned, page)
            if p.pin:
                if not p.queue_first and not p.timer:
                    p.timer = now + p.pin
                entry = pool_take(&p.entries)
                entry_no(p, entry).block = block
                entry_no(p, entry).page = page
                entry_no(p, entry).deadline = now + p.pin
                entry_no(p, entry).before = p.queue_last
                if p.queue_last:
                    entry_no(p, p.queue_last).next = entry
                else:
                    p.queue_first = entry
                p.queue_last = entry
                h.entry = entry
        h.pin_at = <uint8_t>target
        value[0] = target
    elif kind == HINT_THROTTLE:
        if not h.throttled & bit:
            h.throttled |= bit
            if not h.flags & HISTORY_PINNED and h.throttles < 255:
                h.throttles += 1
        value[0] = h.end
    return kind


cdef inline void uvm_step(uvm_t* p) noexcept nogil:
    """Pinned pages whose time is over are released."""
    if p.timer and p.timer <= p.engine.now:
        unpin(p)


cdef void unpin(uvm_t* p) noexcept nogil:
    cdef uint64_t at
    cdef uint32_t entry, first, last, block, page, number
    cdef uint64_t pages[8]
    while p.timer and p.timer <= p.engine.now:
        at = p.timer + UNPIN_SLACK_NS
        # Those that are due leave the queue first.
        first = p.queue_first
        last = 0
        entry = first
        while entry and entry_no(p, entry).deadline <= at:
            last = entry
            entry = entry_no(p, entry).next
        p.queue_first = entry
        if entry:
            entry_no(p, entry).before = 0
        else:
            p.queue_last = 0
        p.timer = entry_no(p, entry).deadline if entry else 0
        if not last:
            continue
        entry_no(p, last).next = 0
        while first:
            block = entry_no(p, first).block
            page = entry_no(p, first).page
            entry = entry_no(p, first).next
            pool_give(&p.entries, first)
            first = entry
            p.counters.unpins += 1
            clear(pages)
            put_whole(p, pages, page)
            tell_runs(p, block, pages, EVENT_UNPIN, 0, 0, 0)
            number = block_no(p, block).place
            while number:
                if not has(place_no(p, number).resident, page) and not (
                    range_no(p, block_no(p, block).range).accessed_by
                    >> place_no(p, number).processor & 1
                ):
                    unmap(p, block, pages, <uint64_t>1 << place_no(p, number).processor)
                number = place_no(p, number).next
            histories_no(p, block_no(p, block).histories).pages[page].entry = 0
            reset_page(p, histories_no(p, block_no(p, block).histories), page)


# ---- where a page goes (section 2.1) ----------------------------------------------------

cdef uint32_t select_residency(uvm_t* p, const range_t* r, uint32_t requester, bint reads,
                               bint atomics, bint duplicated, uint64_t holders, uint32_t pin,
                               uint32_t cause, uint32_t* target,
                               bint* duplicate) noexcept nogil:
    """The number of the rule that decides; pin is NOWHERE without one, cause decision_t."""
    cdef uint64_t can = p.can[requester]
    cdef uint32_t near, rule, place
    duplicate[0] = False
    if r.duplication == ENABLED or (
        r.duplication != DISABLED and duplicated and pin == NOWHERE
    ):
        rule = 2
        place = requester
        duplicate[0] = reads
    elif r.preferred == requester + 1:
        rule = 3
        place = requester
    elif pin != NOWHERE:
        rule = 5
        place = pin
    elif not holders:
        rule = 6
        place = r.preferred - 1 if r.preferred and can >> (r.preferred - 1) & 1 else requester
    else:
        near = closest(p, holders, requester)
        if r.accessed_by >> requester & 1 and can >> near & 1 and cause != BY_COUNTER:
            rule = 7
            place = near
        elif (
            p.remote_atomics and atomics and requester and near
            and p.atomics[near] >> requester & 1
        ):
            rule = 8
            place = near
        elif near != requester and r.preferred and can >> (r.preferred - 1) & 1:
            rule = 9
            place = r.preferred - 1
        elif cause == BY_FOREIGNER and requester == 0 and can >> near & 1:
            rule = 10
            place = near
        else:
            rule = 11
            place = requester
    if not p.memory >> place & 1:
        place = 0
        duplicate[0] = False
    target[0] = place
    return rule


# ---- device memory (section 7) ----------------------------------------------------------

cdef void enlist(uvm_t* p, uint32_t number, uint32_t kind) noexcept nogil:
    """Move a chunk to the tail of a list; new ones stay off the lists until they are used."""
    cdef root_t* root = root_no(p, number)
    cdef gpu_t* gpu = p.gpus + root.gpu
    if root.list != ON_NO_LIST:
        if root.before:
            root_no(p, root.before).after = root.after
        else:
            gpu.head[root.list] = root.after
        if root.after:
            root_no(p, root.after).before = root.before
        else:
            gpu.tail[root.list] = root.before
        root.list = ON_NO_LIST
    if kind == ON_NO_LIST or root.fresh:
        if p.order != NULL:
            evict_remove(p.order, number)
        return
    root.before = gpu.tail[kind]
    root.after = 0
    if root.before:
        root_no(p, root.before).after = number
    else:
        gpu.head[kind] = number
    gpu.tail[kind] = number
    root.list = <uint8_t>kind
    root.age = p.node.sequence
    p.node.sequence += 1
    if p.order == NULL:
        return
    if kind != LIST_USED:
        evict_remove(p.order, number)
    elif not p.order.units[number].gpu:
        evict_insert(p.order, number, root.gpu - 1, root.age)


cdef bint uvm_reserve_roots(uvm_t* p, uint64_t count) noexcept nogil:
    """Room for that many more root chunks."""
    return room_in(&p.roots, count) and (
        p.order == NULL or evict_reserve(p.order, p.roots.cap, p.processors - 1)
    )


cdef void make_new(uvm_t* p, uint32_t number) noexcept nogil:
    """A chunk of the present operation: no victim until it ends."""
    cdef root_t* root = root_no(p, number)
    root.fresh = True
    root.next = 0
    if p.new_last:
        root_no(p, p.new_last).next = number
    else:
        p.new_first = number
    p.new_last = number


cdef void end_new(uvm_t* p) noexcept nogil:
    cdef uint32_t number = p.new_first
    while number:
        root_no(p, number).fresh = False
        enlist(p, number, LIST_USED)
        number = root_no(p, number).next
    p.new_first = p.new_last = 0


cdef uint32_t take_root(uvm_t* p, uint32_t gpu) noexcept nogil:
    """A free chunk, or 0; room for its record is reserved."""
    cdef gpu_t* g = p.gpus + gpu
    cdef uint64_t used = p.node.used[gpu - 1], count
    cdef uint32_t number
    if g.held:
        g.held -= 1
    else:
        count = (g.vram_pages - used) // BLOCK if g.vram_pages > used else 0
        if count > (p.quota - g.taken) // BLOCK:
            count = (p.quota - g.taken) // BLOCK
        if count == 0:
            p.full = gpu
            return 0
        if g.coherent:
            count = 1
        elif count > p.pma_batch:
            count = p.pma_batch
        p.node.used[gpu - 1] += count * BLOCK
        g.taken += count * BLOCK
        g.held = count - 1
    number = pool_take(&p.roots)
    root_no(p, number).gpu = <uint8_t>gpu
    root_no(p, number).list = ON_NO_LIST
    make_new(p, number)
    return number


cdef void unstack(uvm_t* p, uint32_t number, uint32_t which) noexcept nogil:
    cdef root_t* root = root_no(p, number)
    if root.before_free[which]:
        root_no(p, root.before_free[which]).after_free[which] = root.after_free[which]
    if root.after_free[which]:
        root_no(p, root.after_free[which]).before_free[which] = root.before_free[which]
    else:
        p.gpus[root.gpu].stack[which] = root.before_free[which]
    root.stacked &= ~(1 << which)


cdef void uvm_stack(uvm_t* p, uint32_t number, uint32_t which, bint on) noexcept nogil:
    """The stack of chunks with free parts follows; newest on top."""
    cdef root_t* root = root_no(p, number)
    if on == (root.stacked >> which & 1):
        return
    if not on:
        unstack(p, number, which)
        return
    root.before_free[which] = p.gpus[root.gpu].stack[which]
    root.after_free[which] = 0
    if root.before_free[which]:
        root_no(p, root.before_free[which]).after_free[which] = number
    p.gpus[root.gpu].stack[which] = number
    root.stacked |= 1 << which


cdef uint32_t open_slot(const split_t* s) noexcept nogil:
    """Lowest slot that is cut and has a free page; 32 without one."""
    cdef uint32_t left = s.small, slot
    while left:
        slot = ctz64(left)
        if s.free[slot]:
            return slot
        left &= left - 1
    return 32


cdef void tidy(uvm_t* p, uint32_t number) noexcept nogil:
    cdef split_t* s = split_no(p, root_no(p, number).split)
    uvm_stack(p, number, 0, s.whole != 0)
    uvm_stack(p, number, 1, open_slot(s) < 32)


cdef void give_root(uvm_t* p, uint32_t number) noexcept nogil:
    """A chunk without owners goes back to the node."""
    cdef root_t* root = root_no(p, number)
    enlist(p, number, ON_NO_LIST)
    p.node.used[root.gpu - 1] -= BLOCK
    p.gpus[root.gpu].taken -= BLOCK
    uvm_stack(p, number, 0, False)
    uvm_stack(p, number, 1, False)
    if root.split:
        pool_give(&p.splits, root.split)
    root.block = root.split = 0  # nobody's, see uvm_check
    pool_give(&p.roots, number)


cdef uint32_t take_part(uvm_t* p, uint32_t block, uint32_t gpu, uint32_t page,
                        uint32_t size) noexcept nogil:
    """A chunk of 1 or 16 pages: root * 512 + offset, or 0."""
    cdef uint32_t number = 0, slot, offset
    cdef split_t* s
    if size == 1:
        number = p.gpus[gpu].stack[1]
    if not number:
        number = p.gpus[gpu].stack[0]
    if not number:
        number = take_root(p, gpu)
        if not number:
            return 0
        slot = pool_take(&p.splits)
        root_no(p, number).split = slot
        split_no(p, slot).whole = 0xffffffffU
    s = split_no(p, root_no(p, number).split)
    slot = open_slot(s) if size == 1 else 32
    if slot == 32:
        slot = ctz64(s.whole)
        s.whole &= s.whole - 1
        if size == 1:
            s.small |= <uint32_t>1 << slot
            s.free[slot] = 0xffff
    offset = slot * BIG
    if size == 1:
        offset += ctz64(s.free[slot])
        s.free[slot] &= s.free[slot] - 1
    s.block[offset] = block
    s.page[offset] = <uint16_t>page
    s.chunks += 1
    if not root_no(p, number).fresh:
        enlist(p, number, ON_NO_LIST)
        make_new(p, number)
    tidy(p, number)
    return number * BLOCK + offset


cdef void free_part(uvm_t* p, uint32_t chunk, uint32_t size) noexcept nogil:
    cdef uint32_t number = chunk // BLOCK, offset = chunk % BLOCK, slot = chunk % BLOCK // BIG
    cdef split_t* s = split_no(p, root_no(p, number).split)
    s.block[offset] = 0
    s.chunks -= 1
    if size == 1:
        s.free[slot] |= 1 << (offset % BIG)
    if size == BIG or s.free[slot] == 0xffff:
        s.small &= ~(<uint32_t>1 << slot)
        s.free[slot] = 0
        s.whole |= <uint32_t>1 << slot
    if s.chunks:
        enlist(p, number, LIST_USED)
        tidy(p, number)
    else:
        give_root(p, number)


# Chunks of a block that is no whole frame: single pages to the first 64 KiB border, 64 KiB
# each, single pages from the last one; single pages only where no 64 KiB fit.
cdef uint32_t uvm_piece(const block_t* b, uint32_t piece, uint32_t* size) noexcept nogil:
    """First page and pages of a piece; behind the last one the block's end, 0 pages."""
    cdef uint32_t border = (b.start + BIG - 1) // BIG * BIG, bigs
    size[0] = 1
    if border + BIG > b.outer or piece < border - b.start:
        if b.start + piece >= b.outer:
            size[0] = 0
        return b.start + piece
    piece -= border - b.start
    bigs = (b.outer - border) // BIG
    if piece < bigs:
        size[0] = BIG
        return border + piece * BIG
    piece += bigs * (BIG - 1)
    if border + piece >= b.outer:
        size[0] = 0
    return border + piece


cdef bint populate(uvm_t* p, uint32_t block, uint32_t gpu, const uint64_t* pages) noexcept nogil:
    """Chunks under all of the pages; False where there is no room, what was taken stays."""
    cdef place_t* place = uvm_make_place(p, block, gpu)
    cdef block_t* b = block_no(p, block)
    cdef uint32_t piece = 0, page, size = 0, chunk
    if is_full(b):
        if not place.chunk:
            place.chunk = take_root(p, gpu)
            if not place.chunk:
                return False
            root_no(p, place.chunk).block = block
        return True
    if not place.chunk:
        place.chunk = pool_take(&p.cuts)
    while True:
        page = uvm_piece(b, piece, &size)
        if not size:
            return True
        if not cut_no(p, place.chunk).chunks[piece] and meets_span(pages, page, page + size):
            chunk = take_part(p, block, gpu, page, size)
            if not chunk:
                if not cut_no(p, place.chunk).used:
                    pool_give(&p.cuts, place.chunk)
                    place.chunk = 0
                return False
            cut_no(p, place.chunk).chunks[piece] = chunk
            cut_no(p, place.chunk).used += 1
        piece += 1


cdef void free_chunks(uvm_t* p, uint32_t block, place_t* place) noexcept nogil:
    """All chunks of a block on a GPU."""
    cdef uint32_t piece = 0, size = 0
    cdef block_t* b = block_no(p, block)
    if not place.chunk:
        return
    if is_full(b):
        give_root(p, place.chunk)
    else:
        while True:
            uvm_piece(b, piece, &size)
            if not size:
                break
            if cut_no(p, place.chunk).chunks[piece]:
                free_part(p, cut_no(p, place.chunk).chunks[piece], size)
            piece += 1
        pool_give(&p.cuts, place.chunk)
    place.chunk = 0


cdef uint32_t owner_pages(uvm_t* p, uint32_t number, uint32_t offset,
                          uint64_t* pages) noexcept nogil:
    """Add the pages of the chunk at an offset of a cut root; its block, 0 without one."""
    cdef split_t* s = split_no(p, root_no(p, number).split)
    cdef uint32_t block = s.block[offset], size = 1, w
    if block:
        if not s.small >> (offset // BIG) & 1:
            size = BIG
        for w in range(8):
            pages[w] |= word_of(w, s.page[offset], s.page[offset] + size)
    return block


cdef void evict_pages(uvm_t* p, uint32_t block, uint32_t gpu, uint64_t* pages) noexcept nogil:
    """A block's pages in a chunk that is evicted go to the CPU."""
    cdef uint64_t wanted[8]
    copy_to(wanted, uvm_place(p, block, gpu).resident)
    add(wanted, block_no(p, block).discarded)
    keep(pages, wanted)
    tell_runs(p, block, pages, EVENT_EVICT, gpu, 0, 0)
    make_resident(p, block, 0, pages, CAUSE_EVICTION, NULL, False)
    map_accessors(p, block, pages)
    if p.map_evicted:
        map_unrevoked(p, block, gpu, pages, REMOTE_EVICTED)


cdef bint evict_room(uvm_t* p, uint32_t number) noexcept nogil:
    """Room for what evicting a chunk needs: places of those that are mapped to the copies."""
    cdef root_t* root = root_no(p, number)
    cdef uint64_t count = 0
    cdef uint32_t offset, block
    if root.block:
        count = popcount64(range_no(p, block_no(p, root.block).range).accessed_by)
    else:
        for offset in range(BLOCK):
            block = split_no(p, root.split).block[offset]
            if block:
                count += popcount64(range_no(p, block_no(p, block).range).accessed_by)
    return room_in(&p.places, count)


cdef void evict_root(uvm_t* p, uint32_t number) noexcept nogil:
    """All pages of the chunk go to the CPU, whoever else has copies; the chunk is free."""
    cdef root_t* root = root_no(p, number)
    cdef uint32_t gpu = root.gpu, offset, later, block, piece, size = 0, left, chunk
    cdef uint64_t pages[8]
    cdef uint8_t seen[512]
    cdef place_t* place
    enlist(p, number, ON_NO_LIST)
    p.engine.counters.evictions += 1
    p.engine.cost_ns += p.engine.costs.evict_ns
    engine_log(p.engine, EVENT_EVICT_OBJECT, BLOCK, 0, <uint8_t>gpu, 0, 0, p.gpus[gpu].id)
    block = root.block
    if block:
        span_of(pages, 0, BLOCK)
        evict_pages(p, block, gpu, pages)
        place = uvm_place(p, block, gpu)
        place.chunk = 0
        give_root(p, number)
        return
    memset(seen, 0, sizeof(seen))
    for offset in range(BLOCK):
        if seen[offset]:
            continue
        clear(pages)
        block = owner_pages(p, number, offset, pages)
        if not block:
            continue
        for later in range(offset + 1, BLOCK):
            if split_no(p, root_no(p, number).split).block[later] == block:
                seen[later] = True
                owner_pages(p, number, later, pages)
        evict_pages(p, block, gpu, pages)
    left = split_no(p, root_no(p, number).split).chunks
    for offset in range(BLOCK):
        block = split_no(p, root_no(p, number).split).block[offset]
        if not block:
            continue
        place = uvm_place(p, block, gpu)
        chunk = number * BLOCK + offset
        piece = 0
        while cut_no(p, place.chunk).chunks[piece] != chunk:
            piece += 1
        uvm_piece(block_no(p, block), piece, &size)
        cut_no(p, place.chunk).chunks[piece] = 0
        cut_no(p, place.chunk).used -= 1
        if not cut_no(p, place.chunk).used:
            pool_give(&p.cuts, place.chunk)
            place.chunk = 0
        free_part(p, chunk, size)
        left -= 1
        if not left:
            return


cdef void use_chunks(uvm_t* p, uint32_t block, uint32_t processor,
                     const uint64_t* pages) noexcept nogil:
    """A touch of pages uses the chunks under the copies that answer it: the own ones first.

    Parts of one root in a row count once.
    """
    cdef block_t* b = block_no(p, block)
    cdef place_t* own = uvm_place(p, block, processor)
    cdef place_t* place
    cdef uint64_t mine[8]
    cdef uint32_t number = b.place, piece, page, size = 0, root, before
    while number:
        place = place_no(p, number)
        number = place.next
        if not place.chunk or not both(mine, place.resident, pages):
            continue
        if own != NULL and place != own:
            drop(mine, own.resident)
            if not any_of(mine):
                continue
        if is_full(b):
            use_root(p, place.chunk)
            continue
        piece = before = 0
        while True:
            page = uvm_piece(b, piece, &size)
            if not size:
                break
            if meets_span(mine, page, page + size):
                root = cut_no(p, place.chunk).chunks[piece] // BLOCK
                if root != before:
                    use_root(p, root)
                before = root
            piece += 1


cdef inline void use_root(uvm_t* p, uint32_t number) noexcept nogil:
    evict_touch(p.order, number, p.node.sequence)
    p.node.sequence += 1


cdef uint32_t victim_of(uvm_t* p, uint32_t gpu) noexcept nogil:
    """The head of the first list that has one; of used chunks, what the strategy says."""
    cdef const gpu_t* g = p.gpus + gpu
    cdef uint32_t kind
    for kind in range(3):
        if g.head[kind]:
            if kind == LIST_USED and p.order != NULL:
                return evict_victim(p.order, gpu - 1)
            return g.head[kind]
    return 0


cdef uint64_t oldest_age(void* state, uint32_t gpu) noexcept nogil:
    cdef uvm_t* p = <uvm_t*>state
    cdef uint32_t number
    cdef uint64_t age
    if gpu + 1 >= p.processors:
        return KEEPS
    if p.gpus[gpu + 1].held:
        return age_of(AGE_FREE, 0)
    number = victim_of(p, gpu + 1)
    if not number:
        return KEEPS
    age = root_no(p, number).age
    if p.order != NULL and root_no(p, number).list == LIST_USED:
        age = p.order.units[number].stamp
    return age_of(root_no(p, number).list, age)


cdef bint evict_oldest(void* state, uint32_t gpu) noexcept nogil:
    cdef uvm_t* p = <uvm_t*>state
    cdef uint32_t number
    if p.gpus[gpu + 1].held:
        p.gpus[gpu + 1].held -= 1
        p.gpus[gpu + 1].taken -= BLOCK
        p.node.used[gpu] -= BLOCK
        return True
    number = victim_of(p, gpu + 1)
    if not evict_room(p, number):
        return False
    evict_root(p, number)
    return True


cdef bint room_for(uvm_t* p, uint32_t block) noexcept nogil:
    """Room for the records that one operation on a block can need."""
    return (
        room_in(&p.places, p.processors)
        and uvm_reserve_roots(p, p.processors)
        and (
            is_full(block_no(p, block))
            or (room_in(&p.cuts, p.processors) and room_in(&p.splits, p.processors))
        )
        and (not p.thrashing or (room_in(&p.histories, 1) and room_in(&p.entries, BLOCK)))
    )


cdef ended_t make_room(uvm_t* p) noexcept nogil:
    """The GPU that was full evicts; the operation then starts again.

    A process at its quota gives up its own, and what it takes then is what it gave.
    """
    while p.gpus[p.full].taken + BLOCK > p.quota:
        if oldest_age(p, p.full - 1) == KEEPS or not evict_oldest(p, p.full - 1):
            return NO_ROOM
    if node_make_room(p.node, p.engine, p.full - 1, BLOCK, p.gpus[p.full].vram_pages):
        return NO_ROOM
    return ENDED


# ---- residency --------------------------------------------------------------------------

cdef void copy_leg(uvm_t* p, uint32_t block, uint32_t source, uint32_t target,
                   const uint64_t* mine, cause_t cause, const uint64_t* ahead, bint duplicate,
                   bint last) noexcept nogil:
    """Copy pages of one holder, run by run of one cause; the last leg is remembered."""
    cdef block_t* b = block_no(p, block)
    cdef histories_t* hs
    cdef uint64_t base = b.frame * BLOCK
    cdef uint64_t faulted[8]
    cdef uint64_t early[8]
    cdef uint32_t page = 0, end
    cdef cause_t why
    cdef bint known
    if ahead == NULL:
        copy_to(faulted, mine)
        clear(early)
    else:
        without(faulted, mine, ahead)
        both(early, mine, ahead)
    while next_page(mine, &page):
        if has(early, page):
            end = run_end(early, page)
            why = CAUSE_PREFETCHER
        else:
            end = run_end(faulted, page)
            why = cause
        if duplicate:
            p.engine.counters.duplicated_pages += end - page
            p.engine.cost_ns += move_ns(&p.engine.costs, source, target, end - page)
            engine_log(p.engine, EVENT_DUPLICATE, base + page, base + end - 1, <uint8_t>source,
                       <uint8_t>target, 0, 0)
        else:
            engine_moved(p.engine, base + page, base + end - 1, <uint8_t>source, <uint8_t>target,
                         <trigger_t>why, end - page)
            p.engine.processors[source].pages_out += end - page
            p.engine.processors[target].pages_in += end - page
            p.counters.access_counter_migrations += why == CAUSE_ACCESS_COUNTER
        if last and cause != CAUSE_EVICTION:
            if (
                cause not in (CAUSE_GPU_FAULT, CAUSE_CPU_FAULT, CAUSE_ACCESS_COUNTER)
                or duplicate
                or range_no(p, b.range).duplication == ENABLED
            ):
                reset_region(p, block, page, end)
            else:
                known = False
                if b.histories and why != CAUSE_PREFETCHER:
                    hs = histories_no(p, b.histories)
                    known = run_end(hs.pinned, page) >= end
                if not known:
                    record(p, block, page, end, target, False)
        page = end


cdef void copy_pages(uvm_t* p, uint32_t block, uint32_t target, uint64_t* pages, cause_t cause,
                     const uint64_t* ahead, bint duplicate) noexcept nogil:
    """Copy pages from their closest holders, over the CPU where there is no direct way."""
    cdef uint64_t mine[8]
    cdef uint64_t holders
    cdef uint32_t number, source
    cdef bint staged
    while any_of(pages):
        holders = 0
        number = block_no(p, block).place
        while number:
            if meets(place_no(p, number).resident, pages):
                holders |= <uint64_t>1 << place_no(p, number).processor
            number = place_no(p, number).next
        source = closest(p, holders, target)
        both(mine, uvm_place(p, block, source).resident, pages)
        drop(pages, mine)
        staged = target != 0 and not p.can[target] >> source & 1
        if staged:
            copy_leg(p, block, source, 0, mine, cause, ahead, duplicate, False)
            copy_leg(p, block, 0, target, mine, cause, ahead, duplicate, True)
            if duplicate:
                add(uvm_place(p, block, 0).resident, mine)
        else:
            copy_leg(p, block, source, target, mine, cause, ahead, duplicate, True)


cdef void unmap(uvm_t* p, uint32_t block, const uint64_t* pages,
                uint64_t processors) noexcept nogil:
    """Page table entries go; one shootdown for all of them."""
    cdef uint32_t number = block_no(p, block).place, level
    cdef uint64_t m[8]
    cdef place_t* place
    cdef bint paid = False
    while number:
        place = place_no(p, number)
        if processors >> place.processor & 1 and meets(place.tables[0], pages):
            p.engine.counters.unmaps += 1
            paid = True
            if p.engine.recording:
                both(m, place.tables[0], pages)
                tell_runs(p, block, m, EVENT_UNMAP, 0, place.processor, 0)
            for level in range(PROTECTIONS):
                drop(place.tables[level], pages)
        number = place.next
    if paid:
        p.engine.cost_ns += p.engine.costs.unmap_ns


cdef bint make_resident(uvm_t* p, uint32_t block, uint32_t target, const uint64_t* pages,
                        cause_t cause, const uint64_t* ahead, bint duplicate) noexcept nogil:
    """The pages have a copy on the target: the only one, or one more.

    False, with nothing changed but chunks taken, where the target has no room.
    """
    cdef block_t* b
    cdef place_t* place
    cdef place_t* to
    cdef uint64_t others[8]
    cdef uint64_t anywhere[8]
    cdef uint64_t m[8]
    cdef uint64_t held = 0
    cdef uint32_t number
    if target and not populate(p, block, target, pages):
        return False
    b = block_no(p, block)
    to = uvm_place(p, block, target)
    clear(others)
    number = b.place
    while number:
        place = place_no(p, number)
        if any_of(place.resident):
            held |= <uint64_t>1 << place.processor
            if place.processor != target:
                add(others, place.resident)
        number = place.next
    copy_to(anywhere, others)
    add(anywhere, to.resident)
    if without(m, pages, anywhere):
        p.counters.populated_pages += count_of(m)
    if duplicate:
        keep(anywhere, pages)
        number = b.place
        while number:
            place = place_no(p, number)
            if without(m, anywhere, place.resident):
                unmap(p, block, m, <uint64_t>1 << place.processor)
            drop(place.tables[1], anywhere)
            drop(place.tables[2], anywhere)
            number = place.next
        drop(anywhere, to.resident)
        copy_pages(p, block, target, anywhere, cause, ahead, True)
        add(to.resident, pages)
        if both(m, pages, others):
            add(b.duplicated, m)
    else:
        if both(m, pages, others):
            unmap(p, block, m, <uint64_t>0xffffffffffffffffU)
            copy_to(others, m)
            if both(m, others, to.resident):
                p.counters.invalidated_pages += count_of(m)
            drop(others, to.resident)
            drop(others, b.discarded)
            copy_pages(p, block, target, others, cause, ahead, False)
            number = b.place
            while number:
                place = place_no(p, number)
                if place.processor != target:
                    drop(place.resident, pages)
                number = place.next
            drop(b.duplicated, pages)
        add(to.resident, pages)
    if is_full(b):
        held &= ~(<uint64_t>1 | <uint64_t>1 << target)
        while held:
            place = uvm_place(p, block, lowest(held))
            if not any_of(place.resident):
                enlist(p, place.chunk, LIST_UNUSED)
            held &= held - 1
        if target and any_of(to.resident):
            span_of(m, 0, BLOCK)
            enlist(p, to.chunk, LIST_USED if without(m, m, b.discarded) else LIST_DISCARDED)
    return True


# ---- mappings (section 3.6) -------------------------------------------------------------

cdef inline uint32_t allowed(const range_t* r, uint32_t processor) noexcept nogil:
    """Most that the mapping's protection allows; GPUs are not checked on managed memory."""
    if processor or r.prot == 3:
        return RWA
    return RO if r.prot & 1 else NO


cdef void tell_remote(uvm_t* p, uint32_t block, const uint64_t* pins,
                      remote_t cause) noexcept nogil:
    """New mappings of pages that are elsewhere, by processor; pinned ones are so by cause."""
    cdef uint32_t i, page, first, near
    cdef uint64_t m[8]
    cdef uint64_t pages[8]
    cdef bint pinned
    cdef place_t* place
    for i in range(p.processors):
        if not any_of(p.gained[i]):
            continue
        place = uvm_place(p, block, i)
        without(pages, p.gained[i], place.resident)
        clear(p.gained[i])
        page = 0
        while next_page(pages, &page):
            first = page
            near = closest(p, holders_of(p, block, page), i)
            pinned = pins != NULL and has(pins, page)
            while page < BLOCK and has(pages, page) and (
                closest(p, holders_of(p, block, page), i) == near
                and (pins != NULL and has(pins, page)) == pinned
            ):
                page += 1
            span_of(m, first, page)
            tell_runs(p, block, m, EVENT_REMOTE, i, near, REMOTE_THRASHING if pinned else cause)


cdef bint map_pages(uvm_t* p, place_t* place, const uint64_t* pages,
                    uint32_t level) noexcept nogil:
    """Entries of at least that protection; whether any is more than there was."""
    cdef uint64_t m[8]
    cdef uint32_t i
    if place.processor == 0 and level == RW:
        level = RWA
    if not without(m, pages, place.tables[level - 1]):
        return False
    for i in range(level):
        add(place.tables[i], m)
    if p.engine.recording:
        add(p.gained[place.processor], m)
    return True


cdef void revoke(uvm_t* p, uint32_t block, uint32_t requester, uint32_t target,
                 const uint64_t* writable, const uint64_t* atomic) noexcept nogil:
    """Others lose the rights that the requester's new ones exclude."""
    cdef uint64_t native = p.atomics[target], me = <uint64_t>1 << requester
    cdef uint64_t keeps_rw = me | native, keeps_rwa = me | (native if native & me else 0)
    cdef uint32_t down = RO if requester and not native & me else RW
    cdef uint32_t number = block_no(p, block).place, w, page, end, loser
    cdef uint64_t lost[8]
    cdef uint64_t all_lost[64][8]
    cdef uint64_t who = 0
    cdef place_t* place
    cdef bint any_lost
    while number:
        place = place_no(p, number)
        any_lost = False
        for w in range(8):
            lost[w] = 0
            if not keeps_rw >> place.processor & 1:
                lost[w] = place.tables[2][w] & writable[w]
            if not keeps_rwa >> place.processor & 1:
                lost[w] |= place.tables[down][w] & atomic[w]
            any_lost |= lost[w] != 0
        if any_lost:
            for w in range(8):
                place.tables[2][w] &= ~lost[w]
                if down == RO:
                    place.tables[1][w] &= ~(lost[w] & atomic[w])
            copy_to(all_lost[place.processor], lost)
            who |= <uint64_t>1 << place.processor
        number = place.next
    while who:
        loser = lowest(who)
        who &= who - 1
        page = 0
        while next_page(all_lost[loser], &page):
            end = run_end(all_lost[loser], page)
            p.counters.revocations += 1
            record(p, block, page, end, loser, True)
            page = end


cdef void map_serviced(uvm_t* p, uint32_t block, uint32_t requester, uint32_t target,
                       const uint64_t* pages, const request_t* q,
                       const uint64_t* pins) noexcept nogil:
    """After service: the requester is mapped, others may lose rights or be mapped too."""
    cdef block_t* b = block_no(p, block)
    cdef range_t* r = range_no(p, b.range)
    cdef levels_t l
    cdef uint64_t m[8]
    cdef uint64_t native = p.atomics[target], me = <uint64_t>1 << requester
    cdef uint64_t users, mapped = 0, some
    cdef uint32_t limit = allowed(r, requester), w, number, page
    cdef place_t* place
    cdef place_t* mine
    cdef histories_t* hs
    cdef uint32_t level
    for w in range(8):
        l.v[2][w] = pages[w] & q.strong[w]
        l.v[1][w] = pages[w] & q.write[w]
        l.v[0][w] = pages[w] & ~q.strong[w] & ~q.write[w]
    if limit > RO and r.duplication != ENABLED and any_of(l.v[0]):
        copy_to(m, l.v[0])
        if r.duplication == UNSET:
            drop(m, b.duplicated)
        number = b.place
        while number:
            place = place_no(p, number)
            if not native >> place.processor & 1:
                drop(m, place.tables[2])
            number = place.next
        add(l.v[1], m)
        drop(l.v[0], m)
    if limit == RWA and native & me:
        add(l.v[2], l.v[1])
        clear(l.v[1])
    for w in range(8):
        some = (b.discarded[w] & pages[w] & ~q.strong[w] & ~q.write[w]) | (
            b.duplicated[w] & pages[w]
        )
        if some:
            l.v[0][w] |= some
            l.v[1][w] &= ~some
            l.v[2][w] &= ~some
        b.discarded[w] &= ~(l.v[1][w] | l.v[2][w])
    if block_no(p, block).place != 0 and (any_of(l.v[1]) or any_of(l.v[2])):
        revoke(p, block, requester, target, l.v[1], l.v[2])
    if not p.can[requester] >> target & 1:
        return
    mine = uvm_make_place(p, block, requester)
    for level in range(PROTECTIONS):
        for w in range(8):
            m[w] = l.v[level][w] & (~b.duplicated[w] | mine.resident[w])
        if any_of(m) and map_pages(p, mine, m, level + 1):
            mapped |= me
    users = r.accessed_by & p.reaching[target] & ~me
    if r.preferred and r.preferred != target + 1:
        users &= ~(<uint64_t>1 << (r.preferred - 1))
    for w in range(8):
        some = ~b.duplicated[w] & ~b.discarded[w]
        for level in range(PROTECTIONS):
            l.v[level][w] &= some
    while users:
        mapped |= map_user(p, block, requester, lowest(users), target, &l)
        users &= users - 1
    if any_of(pins) and b.histories:
        hs = histories_no(p, b.histories)
        page = 0
        while next_page(pins, &page):
            if has(pages, page):
                users = hs.pages[page].processors & ~r.accessed_by & p.reaching[target] & ~me
                if r.preferred and r.preferred != target + 1:
                    users &= ~(<uint64_t>1 << (r.preferred - 1))
                while users:
                    mapped |= map_user_page(p, block, requester, lowest(users), target, &l,
                                            page)
                    users &= users - 1
            page += p.unit
    count_maps(p, popcount64(mapped))
    if p.engine.recording:
        tell_remote(p, block, pins, REMOTE_POLICY)


cdef inline uint32_t user_level(uvm_t* p, const range_t* r, uint32_t level, uint32_t requester,
                                uint32_t user, uint64_t native) noexcept nogil:
    """What another processor gets where the requester got *level*."""
    cdef uint32_t limit = allowed(r, user)
    if level == RWA:
        if native >> requester & 1:
            level = RWA if native >> user & 1 else RW
        else:
            level = RO if requester else RW
    return level if level < limit else limit


cdef uint64_t map_user(uvm_t* p, uint32_t block, uint32_t requester, uint32_t user,
                       uint32_t target, const levels_t* levels) noexcept nogil:
    cdef range_t* r = range_no(p, block_no(p, block).range)
    cdef place_t* place = NULL
    cdef uint32_t level, given
    cdef bint more = False
    for level in range(PROTECTIONS):
        given = user_level(p, r, level + 1, requester, user, p.atomics[target])
        if given and any_of(levels.v[level]):
            if place == NULL:
                place = uvm_make_place(p, block, user)
            more |= map_pages(p, place, levels.v[level], given)
    return <uint64_t>more << user


cdef uint64_t map_user_page(uvm_t* p, uint32_t block, uint32_t requester, uint32_t user,
                            uint32_t target, const levels_t* levels,
                            uint32_t page) noexcept nogil:
    cdef levels_t one
    cdef uint32_t level
    memset(&one, 0, sizeof(one))
    for level in range(PROTECTIONS):
        if has(levels.v[level], page):
            put_whole(p, one.v[level], page)
    return map_user(p, block, requester, user, target, &one)


cdef uint32_t unrevoked(uvm_t* p, uint32_t block, uint32_t processor,
                        uint32_t page) noexcept nogil:
    """The most that a processor can get without taking rights from another."""
    cdef uint64_t holders = holders_of(p, block, page), me = <uint64_t>1 << processor, native
    cdef uint32_t limit = allowed(range_no(p, block_no(p, block).range), processor)
    if not holders:
        return NO
    if holders & (holders - 1):
        return (RO if limit > RO else limit) if holders & me else NO
    if not p.can[processor] & holders:
        return NO
    native = p.atomics[lowest(holders)]
    if not mapping_of(p, block, RO, page):
        return limit
    if mapping_of(p, block, RWA, page) & ~me & ~native:
        return RO if limit > RO else limit
    if native & me or not mapping_of(p, block, RW, page) & ~me:
        return limit
    return RW if limit > RW else limit


cdef void map_unrevoked(uvm_t* p, uint32_t block, uint32_t processor, const uint64_t* wanted,
                        remote_t cause) noexcept nogil:
    """Mappings that nobody faulted for: not of discarded or duplicated pages."""
    cdef block_t* b = block_no(p, block)
    cdef place_t* place = uvm_place(p, block, processor)
    cdef uint64_t pages[8]
    cdef uint64_t one[8]
    cdef uint32_t page = 0, level, w
    cdef bint more = False
    span_of(pages, b.start, b.outer)
    for w in range(8):
        pages[w] &= wanted[w] & ~b.discarded[w]
        if place == NULL:
            pages[w] &= ~b.duplicated[w]
        else:
            pages[w] &= ~b.duplicated[w] | place.resident[w]
    if range_no(p, b.range).preferred == processor + 1:
        if place == NULL:
            return
        keep(pages, place.resident)
    while next_page(pages, &page):
        level = unrevoked(p, block, processor, page)
        if level:
            place = uvm_make_place(p, block, processor)
            clear(one)
            put(one, page)
            more |= map_pages(p, place, one, level)
        page += 1
    count_maps(p, more)
    if p.engine.recording:
        tell_remote(p, block, NULL, cause)


cdef void map_accessors(uvm_t* p, uint32_t block, const uint64_t* pages) noexcept nogil:
    cdef range_t* r = range_no(p, block_no(p, block).range)
    cdef uint64_t users = r.accessed_by
    cdef uint64_t m[8]
    if r.duplication == ENABLED:
        return
    without(m, pages, block_no(p, block).duplicated)
    while users:
        map_unrevoked(p, block, lowest(users), m, REMOTE_POLICY)
        users &= users - 1


# ---- faults (sections 3.4 and 8.2) ------------------------------------------------------

cdef void add_target(uvm_t* p, uint64_t* used, uint32_t target,
                     const uint64_t* pages) noexcept nogil:
    if not used[0] >> target & 1:
        used[0] |= <uint64_t>1 << target
        copy_to(p.targets[target], pages)
    else:
        add(p.targets[target], pages)


cdef void place_class(uvm_t* p, const range_t* r, uint32_t requester, const uint64_t* pages,
                      const request_t* q, decision_t by, uint64_t holders, bint duplicated,
                      uint64_t* used, uint64_t* copies, service_t* out,
                      int32_t* latest) noexcept nogil:
    """Decide for pages with the same holders, by the levels of their faults."""
    cdef uint64_t m[3][8]
    cdef uint32_t w, kind, target = 0
    cdef bint duplicate = False
    cdef int32_t last
    for w in range(8):
        m[0][w] = pages[w] & ~q.write[w] & ~q.strong[w]
        m[1][w] = pages[w] & (q.write[w] | q.strong[w]) & ~q.atomic[w]
        m[2][w] = pages[w] & (q.write[w] | q.strong[w]) & q.atomic[w]
    for kind in range(3):
        if not any_of(m[kind]):
            continue
        select_residency(p, r, requester, kind == 0, kind == 2, duplicated, holders, NOWHERE,
                         by, &target, &duplicate)
        add_target(p, used, target, m[kind])
        if duplicate:
            add(copies, m[kind])
        last = <int32_t>last_of(m[kind])
        if last > latest[0]:
            latest[0] = last
            out.best = <uint8_t>target


cdef bint service(uvm_t* p, uint32_t block, uint32_t requester, const request_t* q,
                  decision_t by, service_t* out) noexcept nogil:
    """Serve faults of one processor on one block; False where a GPU has no room.

    An access counter asks as if its pages, which are mapped, were prefetched.
    """
    cdef block_t* b = block_no(p, block)
    cdef range_t* r = range_no(p, b.range)
    cdef histories_t* hs
    cdef place_t* place = uvm_place(p, block, requester)
    cdef uint64_t todo[8]
    cdef uint64_t copies[8]
    cdef uint64_t pins[8]
    cdef uint64_t m[8]
    cdef uint64_t early[8]
    cdef request_t asked
    cdef uint64_t used = 0, value = 0, holders, early_pages = 0
    cdef uint32_t w, page, number, target = 0, npinned = 0, nthrottled = 0
    cdef int32_t latest = -1
    cdef bint duplicate = False, reads
    cdef hint_t kind
    cdef cause_t cause = CAUSE_GPU_FAULT if requester else CAUSE_CPU_FAULT
    clear(out.served)
    clear(out.throttled)
    out.until = 0
    out.best = NOWHERE
    clear(copies)
    clear(pins)
    copy_to(todo, q.pages)
    if by == BY_COUNTER:
        cause = CAUSE_ACCESS_COUNTER
    elif place != NULL:
        for w in range(8):
            out.served[w] = q.pages[w] & (
                (place.tables[0][w] & ~q.write[w] & ~q.strong[w])
                | (place.tables[1][w] & q.write[w])
                | (place.tables[2][w] & q.strong[w])
            )
            todo[w] &= ~out.served[w]
        if any_of(out.served):
            # What is mapped already asks for nothing, even if the prefetcher moves it.
            asked = q[0]
            drop(asked.write, out.served)
            drop(asked.strong, out.served)
            q = &asked
    if p.thrashing and b.histories and any_of(todo) and not epoch_over(p, block):
        hs = histories_no(p, b.histories)
        page = 0
        while both(m, todo, hs.thrashing) and next_page(m, &page):
            take_whole(p, todo, page)
            holders = holders_of(p, block, page)
            kind = hint(p, block, page, requester, holders, r.preferred, &value)
            clear(m)
            put_whole(p, m, page)
            if kind == HINT_THROTTLE:
                nthrottled += 1
                add(out.throttled, m)
                if out.until == 0 or value < out.until:
                    out.until = value
                continue
            if kind == HINT_PIN:
                npinned += 1
                add(pins, m)
            reads = not has(q.write, page) and not has(q.strong, page)
            select_residency(p, r, requester, reads, not reads and has(q.atomic, page),
                             has(b.duplicated, page), holders,
                             <uint32_t>value if kind == HINT_PIN else NOWHERE, by, &target,
                             &duplicate)
            add_target(p, &used, target, m)
            if duplicate:
                add(copies, m)
            add(out.served, m)
            if <int32_t>page > latest:
                latest = <int32_t>page
                out.best = <uint8_t>target
    add(out.served, todo)
    if both(m, todo, b.duplicated):
        drop(todo, m)
        page = 0
        while next_page(m, &page):
            clear(early)
            put(early, page)
            place_class(p, r, requester, early, q, by, holders_of(p, block, page), True, &used,
                        copies, out, &latest)
            page += 1
    number = b.place
    while number and any_of(todo):
        place = place_no(p, number)
        if both(m, todo, place.resident):
            drop(todo, m)
            place_class(p, r, requester, m, q, by, <uint64_t>1 << place.processor, False, &used,
                        copies, out, &latest)
        number = place.next
    if any_of(todo):
        place_class(p, r, requester, todo, q, by, 0, False, &used, copies, out, &latest)
    if by == BY_COUNTER:
        clear(copies)
        used = still_to_move(p, block, used)
    clear(early)
    if p.prefetch and used and not used & (used - 1):
        early_pages = prefetch_pages(p, block, lowest(used), early)
        add(p.targets[lowest(used)], early)
        if r.duplication == ENABLED:
            add(copies, early)
    while used:
        target = lowest(used)
        used &= used - 1
        copy_to(todo, p.targets[target])
        for w in range(8):
            m[w] = todo[w] & copies[w] & ~b.discarded[w]
        if any_of(m):
            if not make_resident(p, block, target, m, cause, early, True):
                return False
            b = block_no(p, block)
            for w in range(8):
                m[w] = todo[w] & ~m[w]
        else:
            copy_to(m, todo)
        if any_of(m) and not make_resident(p, block, target, m, cause, early, False):
            return False
        map_serviced(p, block, requester, target, todo, q, pins)
        if p.engine.recording and both(m, todo, pins):
            tell_runs(p, block, m, EVENT_PIN, requester, target, 0)
    tell_runs(p, block, out.throttled, EVENT_THROTTLE, requester, 0, out.until)
    p.counters.prefetched_pages += early_pages
    p.counters.pins += npinned
    p.counters.throttles += nthrottled
    return True


cdef uint64_t still_to_move(uvm_t* p, uint32_t block, uint64_t used) noexcept nogil:
    """The targets where a page is missing; pages that are there already are left."""
    cdef uint64_t left = used
    cdef uint32_t target
    cdef place_t* place
    while left:
        target = lowest(left)
        left &= left - 1
        place = uvm_place(p, block, target)
        if place != NULL:
            drop(p.targets[target], place.resident)
        if not any_of(p.targets[target]):
            used &= ~(<uint64_t>1 << target)
    return used


cdef uint64_t prefetch_pages(uvm_t* p, uint32_t block, uint32_t target,
                             uint64_t* out) noexcept nogil:
    """Pages to bring with those that all go to one target; how many were not there."""
    cdef block_t* b = block_no(p, block)
    cdef place_t* place = uvm_place(p, block, target)
    cdef place_t* cpu = uvm_place(p, block, 0)
    cdef uint64_t none[8]
    cdef const uint64_t* resident = none
    cdef const uint64_t* thrashing = NULL
    cdef uint32_t number = b.place
    cdef bint touched = False
    clear(none)
    while number and not touched:
        touched = any_of(place_no(p, number).resident)
        number = place_no(p, number).next
    if place != NULL:
        resident = place.resident
    if b.histories:
        thrashing = histories_no(p, b.histories).thrashing
    if not prefetch_hint(p, b, range_no(p, b.range).preferred, target, resident, touched,
                         p.targets[target], thrashing, cpu.tables[0], out):
        clear(out)
        return 0
    if place != NULL:
        without(none, out, place.resident)
        return count_of(none)
    return count_of(out)


cdef ended_t serve_block(uvm_t* p, uint32_t block, uint32_t requester, const request_t* q,
                         decision_t by, service_t* out) noexcept nogil:
    """The same until there is room: a full GPU evicts, and all of it starts again."""
    cdef ended_t ended = ENDED
    cdef uint64_t before = p.engine.counters.migrated_pages
    while True:
        if not room_for(p, block):
            ended = NO_RECORDS
            break
        if service(p, block, requester, q, by, out):
            if by == BY_FAULT:
                tell_runs(p, block, q.pages, EVENT_SERVED, requester, 0,
                          p.engine.counters.migrated_pages > before)
            break
        ended = make_room(p)
        if ended != ENDED:
            break
    end_new(p)
    return ended


cdef inline void ask_level(request_t* q, uint32_t level) noexcept nogil:
    """All pages of the request at one level: 0 read, 1 write, 2 strong atomic."""
    clear(q.write)
    clear(q.strong)
    clear(q.atomic)
    if level == 1:
        copy_to(q.write, q.pages)
    elif level == 2:
        copy_to(q.strong, q.pages)
        copy_to(q.atomic, q.pages)


cdef int by_page(const void* a, const void* b) noexcept nogil:
    cdef const sorted_t* x = <const sorted_t*>a
    cdef const sorted_t* y = <const sorted_t*>b
    if x.processor != y.processor:
        return -1 if x.processor < y.processor else 1
    if x.page != y.page:
        return -1 if x.page < y.page else 1
    return -1 if x.rank < y.rank else 1


cdef void coalesce(entering_t* e, uint32_t n) noexcept nogil:
    """Which faults of a batch stand for others (section 3.2)."""
    cdef int32_t by_tlb[256]
    cdef int32_t last = -1, pending
    cdef uint32_t i, target
    memset(by_tlb, 0xff, sizeof(by_tlb))
    for i in range(n):
        e[i].levels = <uint8_t>(1 << e[i].level)
        e[i].instances = 1
        pending = by_tlb[e[i].tlb]
        if pending >= 0 and e[pending].page == e[i].page and (
            e[pending].instance == e[i].instance
        ):
            if e[i].level > e[pending].level:
                e[i].levels |= e[pending].levels
                e[i].instances += e[pending].instances
                e[pending].instances = 0
                by_tlb[e[i].tlb] = <int32_t>i
                continue
            target = <uint32_t>pending
        elif last >= 0 and e[last].page == e[i].page and (
            e[last].instance == e[i].instance and e[i].level <= e[last].level
        ):
            target = <uint32_t>last
        else:
            by_tlb[e[i].tlb] = <int32_t>i
            last = <int32_t>i
            continue
        # Another may stand for the target already: then this one is lost to it.
        e[target].levels |= e[i].levels
        if e[target].instances:
            e[target].instances += 1
        e[i].instances = 0


cdef inline uint32_t level_of(uint32_t access) noexcept nogil:
    """Access level of a record's access: prefetch 0, read or unknown 1, write 2, atomic 4."""
    if access == PREFETCHED:
        return 0
    return 2 if access == 1 else 4 if access == 2 else 1


cdef inline uint32_t touch_level(uint32_t access) noexcept nogil:
    """Level of a touch: 0 read, 1 write, 2 strong atomic; what is not known reads."""
    return access if access <= 2 else 0


cdef void end_fault(uvm_t* p, uint32_t processor, touch_t* out, int32_t ret,
                    uint8_t reason) noexcept nogil:
    out.ret = ret
    out.reason = reason
    out.faults = reason == REASON_OK
    out.duplicates = ret == 0 and reason != REASON_OK
    p.engine.processors[processor].driver_faults += reason != REASON_PREFETCH_OFF
    p.engine.processors[processor].faults += out.faults
    p.engine.processors[processor].duplicates += out.duplicates
    p.engine.processors[processor].fatal += ret != 0


cdef void fetch(uvm_t* p, uint32_t faults) noexcept nogil:
    """A batch of faults is fetched from the buffer."""
    tell(p, EVENT_BATCH, 0, 0, 0, faults)
    pay_batch(p, faults)


cdef void cancel_path(uvm_t* p, uint32_t faults) noexcept nogil:
    """A batch with fatal faults: what is left of it, so many entries, comes once more.

    The second replay follows the cancels (section 3.5).
    """
    p.counters.fatal_batches += 1
    p.counters.replays += 2
    fetch(p, faults)


cdef void cancel(uvm_t* p, uint32_t processor, uint64_t first, uint64_t last,
                 uint8_t reason) noexcept nogil:
    """Faults on pages end with the access: nothing serves them."""
    p.counters.cancels += last - first + 1
    tell(p, EVENT_CANCEL, first, last, processor, FATAL_NUMBERS[reason])


cdef void cancel_all(uvm_t* p, const sorted_t* order, uint32_t n,
                     const touch_t* out) noexcept nogil:
    """Faults of a batch that ended with an error are cancelled, each page once."""
    cdef uint32_t i, processor = 0
    cdef uint64_t page = 0
    for i in range(n):
        if out[order[i].rank % MAX_BATCH].ret and (
            order[i].page != page or order[i].processor != processor
        ):
            page = order[i].page
            processor = order[i].processor
            cancel(p, processor, page, page, out[order[i].rank % MAX_BATCH].reason)


cdef void flag_prefetches(uvm_t* p, uint32_t gpu, uint64_t instances) noexcept nogil:
    """Prefetch faults of a GPU in a batch on unknown addresses; too many stop them all."""
    p.counters.invalid_prefetches += instances
    if p.prefetch_lapse and instances * 3 > <uint64_t>p.batch_size * 2:
        p.gpus[gpu].prefetch_off = p.engine.now + p.prefetch_lapse
        p.counters.prefetch_stops += 1


cdef inline void end_with(touch_t* out, int32_t ret, uint8_t reason) noexcept nogil:
    out.ret = ret
    out.reason = reason
    out.best = NOWHERE


cdef inline uint8_t reason_of(ended_t ended) noexcept nogil:
    return REASON_OUT_OF_MEMORY if ended == NO_ROOM else REASON_NO_MEMORY


cdef ended_t serve_group(uvm_t* p, uint32_t number, uint32_t* at, uint32_t n, bint again,
                         bint* doomed, touch_t* out) noexcept nogil:
    """Serve the faults of p.sorted from *at* on that are one block's; *at* moves past them.

    *again*: only those that were throttled. Fatal ones among them are marked.
    """
    cdef sorted_t* order = p.sorted
    cdef entering_t* entering = p.entering
    cdef uint32_t processor = order[at[0]].processor, group = at[0], i = at[0], k, page, block
    cdef uint64_t frame = order[i].page // BLOCK, before = p.engine.counters.migrated_pages
    cdef uint64_t last_page = 0
    cdef request_t q
    cdef service_t met
    cdef uint64_t mapped[8]
    cdef place_t* place
    cdef ended_t ended
    memset(&q, 0, sizeof(q))
    while i < n and order[i].processor == processor and order[i].page // BLOCK == frame and (
        order[i].page <= p.near_last
    ):
        k = order[i].entry
        i += 1
        if again:
            if out[order[i - 1].rank % MAX_BATCH].reason != REASON_RETRY_LATER:
                continue
        elif k == NO_ENTRY:
            end_with(out + order[i - 1].rank % MAX_BATCH, -E_IO, REASON_FAULT_TYPE)
            doomed[0] = True
            continue
        elif not entering[k].instances:
            continue
        page = order[i - 1].page % BLOCK
        if any_of(q.pages) and order[i - 1].page == last_page:
            entering[k].instances = 0  # a duplicate of the one before it
            continue
        last_page = order[i - 1].page
        put_whole(p, q.pages, page)
        k = entering[k].levels
        if k >> 4:
            put_whole(p, q.strong, page)
        elif k >> 2:
            put_whole(p, q.write, page)
        if k & 7 == 0:
            put_whole(p, q.atomic, page)
    at[0] = i
    if not uvm_reserve_block(p, number):
        return NO_RECORDS
    block = uvm_make_block(p, number, frame)
    place = uvm_place(p, block, processor)
    clear(mapped)
    if place != NULL:
        for k in range(8):
            mapped[k] = (
                (place.tables[0][k] & ~q.write[k] & ~q.strong[k])
                | (place.tables[1][k] & q.write[k])
                | (place.tables[2][k] & q.strong[k])
            )
    ended = serve_block(p, block, processor, &q, BY_FAULT, &met)
    if ended != ENDED:
        return ended
    if p.order != NULL:
        use_chunks(p, block, processor, met.served)
    out[order[group].rank % MAX_BATCH].moved = p.engine.counters.migrated_pages - before
    for group in range(group, i):
        k = order[group].rank % MAX_BATCH
        page = order[group].page % BLOCK
        if again:
            if out[k].reason != REASON_RETRY_LATER:
                continue
        elif order[group].entry == NO_ENTRY or not entering[order[group].entry].instances:
            continue
        if has(met.throttled, page):
            out[k].reason = REASON_RETRY_LATER
        elif not has(mapped, page):
            out[k].reason = REASON_OK
            out[k].best = met.best
        else:
            out[k].reason = REASON_DUPLICATE
    return ENDED


cdef uint32_t enter(uvm_t* p, const arrival_t* faults, uint32_t n, touch_t* out) noexcept nogil:
    """Faults of a batch into p.sorted and p.entering, coalesced and in order; how many."""
    cdef sorted_t* order = p.sorted
    cdef entering_t* entering = p.entering
    cdef uint32_t i, level, heard = 0, plain = 0
    for i in range(n):
        out[i].page = faults[i].page
        out[i].best = NOWHERE
        if faults[i].access == PREFETCHED and (
            p.engine.now < p.gpus[faults[i].processor].prefetch_off
        ):
            out[i].reason = REASON_PREFETCH_OFF
            continue
        out[i].reason = REASON_DUPLICATE
        level = level_of(faults[i].access)
        order[heard].page = head_of(p, faults[i].page)
        order[heard].processor = faults[i].processor
        order[heard].rank = (4 - level) * MAX_BATCH + i
        order[heard].entry = NO_ENTRY
        if faults[i].type < FATAL:
            # Arrivals name no uTLB: a GPU counts as one.
            order[heard].entry = plain
            entering[plain].page = order[heard].page
            entering[plain].instance = faults[i].processor
            entering[plain].tlb = <uint16_t>faults[i].processor
            entering[plain].level = <uint8_t>level
            entering[plain].levels = <uint8_t>(1 << level)
            entering[plain].instances = 1
            plain += 1
        heard += 1
        tell(p, EVENT_FAULT, faults[i].page, faults[i].page, faults[i].processor, faults[i].access)
    if p.coalesce:
        coalesce(entering, plain)
    if heard > 1:
        qsort(order, heard, sizeof(sorted_t), by_page)
    return heard


cdef void batch(uvm_t* p, const arrival_t* faults, uint32_t n, touch_t* out) noexcept nogil:
    """Faults that arrive together: sorted, coalesced, served block by block."""
    cdef sorted_t* order = p.sorted
    cdef uint32_t i = 0, k, number, flagger = 0, left = 0
    cdef uint64_t flagged = 0, failed = 0
    cdef ended_t ended
    cdef uint8_t why = REASON_OUT_OF_MEMORY
    cdef bint doomed = False, replayed = False
    n = enter(p, faults, n, out)
    if not n:
        return
    p.counters.batches += 1
    fetch(p, n)
    while i < n:
        k = order[i].rank % MAX_BATCH
        number = uvm_range_at(p, order[i].page)
        if order[i].entry == NO_ENTRY:
            end_with(out + k, -E_IO, REASON_FAULT_TYPE)
            doomed = True
        elif not number and faults[k].access == PREFETCHED:
            end_with(out + k, 0, REASON_INVALID_PREFETCH)
            if flagged and flagger != order[i].processor:
                flag_prefetches(p, flagger, flagged)
                flagged = 0
            flagger = order[i].processor
            flagged += p.entering[order[i].entry].instances
        elif not number:
            end_with(out + k, -E_FAULT, REASON_NO_MAPPING)
            doomed = True
        elif p.entering[order[i].entry].instances and not failed >> order[i].processor & 1:
            k = order[i].processor
            ended = serve_group(p, number, &i, n, False, &doomed, out)
            if ended != ENDED:
                failed |= <uint64_t>1 << k
                why = reason_of(ended)
            elif p.replay_policy == 0 and not doomed:
                p.counters.replays += 1
                replayed = True
            continue
        i += 1
    if flagged:
        flag_prefetches(p, flagger, flagged)
    for i in range(n if failed else 0):  # an error of all that the GPU faulted for
        k = order[i].rank % MAX_BATCH
        if failed >> order[i].processor & 1 and faults[k].access != PREFETCHED:
            end_with(out + k, -E_NOMEM, why)
    if not doomed:
        if failed:
            cancel_all(p, order, n, out)
            p.counters.replays += not replayed
        else:
            p.counters.replays += p.replay_policy != 0
        return
    for i in range(n):
        k = order[i].rank % MAX_BATCH
        left += out[k].ret != 0 or (
            out[k].reason == REASON_RETRY_LATER and not failed >> order[i].processor & 1
        )
    cancel_path(p, left)
    i = 0
    while i < n:
        k = order[i].rank % MAX_BATCH
        if out[k].reason != REASON_RETRY_LATER or failed >> order[i].processor & 1:
            i += 1
            continue
        left = i
        number = uvm_range_at(p, order[i].page)
        ended = serve_group(p, number, &i, n, True, &doomed, out)
        if ended != ENDED:
            for left in range(left, i):
                k = order[left].rank % MAX_BATCH
                if out[k].reason == REASON_RETRY_LATER:
                    end_with(out + k, -E_NOMEM, reason_of(ended))
    cancel_all(p, order, n, out)


cdef void uvm_deliver(void* state, const arrival_t* faults, uint32_t n,
                      touch_t* out) noexcept nogil:
    """One batch, at most as large as the table of operations says."""
    cdef uvm_t* p = <uvm_t*>state
    cdef uint32_t i
    batch(p, faults, n, out)
    for i in range(n):
        end_fault(p, faults[i].processor, out + i, out[i].ret, out[i].reason)


# ---- touches ----------------------------------------------------------------------------

cdef inline void touched(uvm_t* p, uint32_t processor, uint32_t block,
                         const uint64_t* pages, touch_t* out) noexcept nogil:
    """Mapped pages answer a touch: those that are not in the processor's memory are remote.

    Of a page of 64 KiB it is what the touch covers.
    """
    cdef place_t* place = uvm_place(p, block, processor)
    cdef uint32_t w, n = 0, here = 0
    cdef uint64_t part[8]
    if p.within:
        part_asked(p, block_no(p, block).frame * BLOCK, pages, part)
        pages = part
    for w in range(8):
        if pages[w]:
            n += popcount64(pages[w])
            if place != NULL:
                here += popcount64(pages[w] & place.resident[w])
    p.engine.processors[processor].pages_touched += n
    out.remote += n - here
    if p.counting and processor and place != NULL and n > here:
        count_touches(p, place, pages)
    if p.order != NULL:
        use_chunks(p, block, processor, pages)


cdef void count_touches(uvm_t* p, place_t* place, const uint64_t* pages) noexcept nogil:
    """Remote touches fill a GPU's counter of a block; a full one notifies, once."""
    cdef uint32_t region, touches
    for region in range(BLOCK // BIG):
        if place.notified:
            return
        touches = popcount64(
            (pages[region >> 2] & ~place.resident[region >> 2]) >> (region & 3) * BIG & 0xffff
        )
        if not touches:
            continue
        place.flagged |= <uint32_t>1 << region
        touches += place.count
        if touches < p.counter_threshold:
            place.count = <uint16_t>touches
            continue
        place.count = <uint16_t>p.counter_threshold
        place.notified = <uint8_t>(region + 1) | NOTICE
        p.notices += 1


cdef void want(uvm_t* p, uint32_t block, const place_t* place, request_t* q) noexcept nogil:
    """Pages that a full counter wants: those of the touched regions that lie together."""
    cdef uint32_t region = (place.notified & ~NOTICE) - 1, left = place.flagged
    cdef uint64_t holders = holders_of(p, block, region * BIG)
    memset(q, 0, sizeof(request_t))
    if not holders or holders >> place.processor & 1 or not any_of(place.tables[0]):
        return
    if not is_full(block_no(p, block)):
        put_whole(p, q.pages, region * BIG)
        return
    while left:
        put_whole(p, q.pages, ctz64(left) * BIG)
        left &= left - 1
    keep(q.pages, uvm_place(p, block, closest(p, holders, place.processor)).resident)


cdef void serve_notices(uvm_t* p, uint32_t gpu, uint64_t first, uint64_t last) noexcept nogil:
    """Notifications of a touch are served by address, a batch at a time (section 6)."""
    cdef walk_t at
    cdef place_t* place
    cdef request_t q
    cdef service_t met
    cdef uint64_t left = 0
    at.page = first
    at.last = last
    while p.notices and walk_made(p, &at):
        place = uvm_place(p, at.block, gpu)
        if place == NULL or not place.notified & NOTICE:
            continue
        if not left:
            left = p.notices if p.notices < p.counter_batch else p.counter_batch
            settle(p)
            uvm_step(p)
            pay_batch(p, <uint32_t>left)
        left -= 1
        p.notices -= 1
        p.counters.notifications += 1
        want(p, at.block, place, &q)
        if serve_block(p, at.block, gpu, &q, BY_COUNTER, &met) == ENDED:
            forget_count(uvm_place(p, at.block, gpu))
        else:
            uvm_place(p, at.block, gpu).notified &= ~NOTICE


cdef inline void forget_count(place_t* place) noexcept nogil:
    place.flagged = place.count = place.notified = 0


cdef void part_asked(const uvm_t* p, uint64_t base, const uint64_t* pages,
                     uint64_t* out) noexcept nogil:
    """Those pages of the frame at *base* that the present touch covers, not widened."""
    cdef uint32_t low = 0, outer = BLOCK, w
    if p.asked_first > base:
        low = <uint32_t>(p.asked_first - base)
    if p.asked_last - base < BLOCK:
        outer = <uint32_t>(p.asked_last - base) + 1
    for w in range(8):
        out[w] = pages[w] & word_of(w, low, outer)


cdef void fatal(touch_t* out, uint64_t page, int32_t ret, uint8_t reason) noexcept nogil:
    out.page = page
    out.ret = ret
    out.reason = reason


cdef uint32_t collect(uvm_t* p, uint32_t processor, uint32_t level, uint64_t* at, uint64_t last,
                      uint32_t most, bint look, uint32_t* groups, touch_t* out) noexcept nogil:
    """The next faults of a touch, at most *most*, into p.chunk; how many.

    *at* moves to where they end. Pages that are mapped are touched on the way, unless it
    only looks.
    """
    cdef uint64_t page = at[0], frame, base
    cdef uint64_t missing[8]
    cdef uint64_t have[8]
    cdef uint32_t number, block, low, outer, found = 0, w, n
    cdef place_t* place
    groups[0] = 0
    while page <= last and found < most:
        number = uvm_range_at(p, page)
        if not number:
            break
        frame = page // BLOCK
        base = frame * BLOCK
        low = page % BLOCK
        outer = BLOCK
        if p.near_last - base < outer:
            outer = <uint32_t>(p.near_last - base) + 1
        if last - base < outer:
            outer = <uint32_t>(last - base) + 1
        block = uvm_block_at(p, number, frame)
        place = uvm_place(p, block, processor) if block else NULL
        n = 0
        for w in range(8):
            missing[w] = word_of(w, low, outer)
            have[w] = 0
            if place != NULL:
                have[w] = missing[w] & place.tables[level][w]
                missing[w] &= ~have[w]
            if missing[w]:
                n += popcount64(missing[w])
        n >>= p.unit_log
        if n > most - found:
            while n > most - found:
                outer = <uint32_t>head_of(p, last_of(missing))
                take_whole(p, missing, outer)
                n -= 1
            for w in range(8):
                have[w] &= word_of(w, low, outer)
        if not look:
            if place != NULL:
                touched(p, processor, block, have, out)
            if n:
                if not uvm_reserve_block(p, number):
                    fatal(out, page, -E_NOMEM, REASON_NO_MEMORY)
                    break
                p.chunk[groups[0]].block = uvm_make_block(p, number, frame)
                copy_to(p.chunk[groups[0]].pages, missing)
                groups[0] += 1
        found += n
        page = base + outer
    at[0] = page
    return found


cdef void wait(uvm_t* p, uint64_t until) noexcept nogil:
    """A throttled fault comes again when its time is over."""
    settle(p)
    p.engine.now = until if until > p.engine.now else p.engine.now + 64
    uvm_step(p)


cdef void cancel_groups(uvm_t* p, uint32_t processor, const group_t* groups, uint32_t n,
                        uint8_t reason) noexcept nogil:
    """All faults of a touch's batch are cancelled."""
    cdef uint32_t i, page, end
    cdef uint64_t base
    for i in range(n):
        base = block_no(p, groups[i].block).frame * BLOCK
        page = 0
        while next_page(groups[i].pages, &page):
            end = run_end(groups[i].pages, page)
            cancel(p, processor, base + page, base + end - 1, reason)
            page = end


cdef void touch_nothing(uvm_t* p, uint32_t processor, uint64_t page, uint32_t level,
                        touch_t* out) noexcept nogil:
    """A fault on an unknown address, alone in its batch."""
    p.counters.batches += 1
    p.counters.services += 1
    tell(p, EVENT_FAULT, page, page, processor, level)
    fetch(p, 1)
    cancel_path(p, 1)
    cancel(p, processor, page, page, REASON_NO_MAPPING)
    fatal(out, page, -E_FAULT, REASON_NO_MAPPING)


cdef bint serve(uvm_t* p, uint32_t processor, uint32_t level, uint32_t groups,
                touch_t* out) noexcept nogil:
    """One batch of a touch, again for its throttled pages until all are served.

    Whether any was throttled. The batch is p.chunk.
    """
    cdef uint32_t _tries, i, count, left
    cdef uint64_t until
    cdef request_t q
    cdef service_t met
    cdef ended_t ended
    cdef bint held = False
    cdef group_t* waiting = p.chunk
    for _tries in range(RETRIES):
        until = 0
        left = count = 0
        for i in range(groups):
            count += npages(p, waiting[i].pages)
            tell_runs(p, waiting[i].block, waiting[i].pages, EVENT_FAULT, processor, 0, level)
        p.counters.batches += 1
        fetch(p, count)
        for i in range(groups):
            copy_to(q.pages, waiting[i].pages)
            ask_level(&q, level)
            ended = serve_block(p, waiting[i].block, processor, &q, BY_FAULT, &met)
            if ended != ENDED:
                fatal(out,
                      block_no(p, waiting[i].block).frame * BLOCK + first_of(waiting[i].pages),
                      -E_NOMEM, reason_of(ended))
                cancel_groups(p, processor, waiting, groups, out.reason)
                return held
            p.counters.replays += p.replay_policy == 0
            touched(p, processor, waiting[i].block, met.served, out)
            out.faults += npages(p, met.served)
            if met.best != NOWHERE:
                out.best = met.best
            if any_of(met.throttled):
                out.duplicates += npages(p, met.throttled)
                if until == 0 or met.until < until:
                    until = met.until
                p.again[left].block = waiting[i].block
                copy_to(p.again[left].pages, met.throttled)
                left += 1
        p.counters.replays += p.replay_policy == 1 or p.replay_policy == 2
        if not left:
            return held
        wait(p, until)
        held = True
        waiting = p.again
        groups = left
    fatal(out, block_no(p, waiting[0].block).frame * BLOCK + first_of(waiting[0].pages), -E_LOOP,
          REASON_NEVER_RESOLVES)
    return held


cdef void touch_gpu(uvm_t* p, uint32_t processor, uint64_t first, uint64_t last, uint32_t level,
                    touch_t* out) noexcept nogil:
    cdef uint64_t page = first, end
    cdef uint64_t served, total
    cdef uint32_t groups = 0, found, batches, throttled, size = p.batch_size
    cdef bint flush = p.replay_policy == 2
    if p.outstanding < size:
        size = p.outstanding
    while page <= last:
        if not uvm_range_at(p, page):
            touch_nothing(p, processor, page, level, out)
            return
        end = last
        total = 0
        if not flush:  # what is in the buffer now is served first
            end = page
            total = collect(p, processor, level, &end, last, p.outstanding, True, &groups, out)
            end -= 1
        served = batches = throttled = 0
        while batches < p.max_batches and throttled < p.max_throttled:
            found = collect(p, processor, level, &page, end, size, False, &groups, out)
            if out.ret:
                return
            if not found:
                break
            batches += 1
            served += found
            settle(p)
            uvm_step(p)
            throttled += serve(p, processor, level, groups, out)
            if out.ret:
                return
        if batches:
            p.counters.services += 1
            p.counters.replays += p.replay_policy == 3
        if total > served:
            out.duplicates += <uint32_t>(total - served)


cdef void touch_cpu(uvm_t* p, uint64_t first, uint64_t last, uint32_t level,
                    touch_t* out) noexcept nogil:
    """A CPU faults page by page (section 8.2)."""
    cdef uint64_t page = first, after, at, end
    cdef uint32_t number, groups = 0, tries = 0
    cdef request_t q
    cdef service_t met
    cdef ended_t ended
    while page <= last:
        number = uvm_range_at(p, page)
        if not number:
            fatal(out, page, -E_FAULT, REASON_NO_MAPPING)
            return
        if allowed(range_no(p, number), 0) < level + 1:
            fatal(out, page, -E_PERM, REASON_PERMISSION)
            return
        after = page
        end = p.near_last if p.near_last < last else last
        if not collect(p, 0, level, &after, end, 1, False, &groups, out):
            if out.ret:
                return
            page = after
            continue
        settle(p)
        uvm_step(p)
        at = block_no(p, p.chunk[0].block).frame * BLOCK + first_of(p.chunk[0].pages)
        tries = tries + 1 if page == at else 1
        tell(p, EVENT_FAULT, at, at, 0, level != 0)
        pay_batch(p, 1)
        copy_to(q.pages, p.chunk[0].pages)
        ask_level(&q, level)
        ended = serve_block(p, p.chunk[0].block, 0, &q, BY_FAULT, &met)
        if ended != ENDED:
            fatal(out, at, -E_NOMEM, reason_of(ended))
            return
        if any_of(met.throttled):
            if tries == RETRIES:
                fatal(out, at, -E_LOOP, REASON_NEVER_RESOLVES)
                return
            out.duplicates += 1
            wait(p, met.until)
            page = at
        else:
            out.faults += 1
            out.best = met.best
            touched(p, 0, p.chunk[0].block, met.served, out)
            page = after


cdef bint service_short(uvm_t* p, uint32_t block, uint32_t requester, uint32_t page,
                        uint32_t level, uint8_t* best) noexcept nogil:
    """A fault on one page that stays where it is, without history, copies or other users.

    Same result as the long way; False, with nothing changed, where that has to be gone.
    """
    cdef block_t* b = block_no(p, block)
    cdef range_t* r = range_no(p, b.range)
    cdef uint32_t w = page >> 6, number = b.place, prot, limit, down, target = 0, i
    cdef uint64_t bit = <uint64_t>1 << (page & 63), me = <uint64_t>1 << requester
    cdef uint64_t holders = 0, writers = 0, atomics = 0, native, keeps, whole
    cdef place_t* place
    cdef place_t* mine = NULL
    cdef place_t* home = NULL
    cdef bint duplicate = False
    if b.histories or r.duplication or r.accessed_by or not is_full(b):
        return False
    if (b.duplicated[w] | b.discarded[w]) & bit or not room_in(&p.places, 1):
        return False
    while number:
        place = place_no(p, number)
        if place.resident[w] & bit:
            holders |= <uint64_t>1 << place.processor
            home = place
        if place.tables[1][w] & bit:
            writers |= <uint64_t>1 << place.processor
        if place.tables[2][w] & bit:
            atomics |= <uint64_t>1 << place.processor
        if place.processor == requester:
            mine = place
        number = place.next
    if home == NULL:
        return False
    select_residency(p, r, requester, level == 0, level == 2, False, holders, NOWHERE, BY_FAULT,
                     &target, &duplicate)
    if target != home.processor or not p.can[requester] >> target & 1:
        return False
    if p.prefetch:
        # Nothing is brought to a CPU that has all of the block, mapped.
        if target:
            return False
        whole = <uint64_t>0xffffffffffffffffU
        for i in range(8):
            whole &= home.resident[i] & home.tables[0][i]
        if ~whole:
            return False
    native = p.atomics[target]
    limit = allowed(r, requester)
    prot = level + 1
    if prot == RO and limit > RO and not atomics & ~native:
        prot = RW
    if prot == RW and limit == RWA and native & me:
        prot = RWA
    if prot >= RW:
        keeps = me
        if prot == RW or native & me:
            keeps |= native
        down = RO if prot == RWA and requester and not native & me else RW
        if (writers if down == RO else atomics) & ~keeps:
            return False
    if p.prefetch:
        if b.prefetch_last != target + 1:
            b.prefetch_last = <uint8_t>(target + 1)
            b.prefetch_faults = 0
        b.prefetch_faults += 1
    if mine == NULL:
        mine = uvm_make_place(p, block, requester)
    if requester == 0 and prot == RW:
        prot = RWA
    if not mine.tables[prot - 1][w] & bit:
        count_maps(p, 1)
    for i in range(prot):
        mine.tables[i][w] |= bit
    if target:
        enlist(p, uvm_place(p, block, target).chunk, LIST_USED)
    best[0] = <uint8_t>target
    return True


cdef bint touch_short(uvm_t* p, uint32_t processor, uint64_t first, uint64_t last,
                      uint32_t level, touch_t* out) noexcept nogil:
    """A GPU's touch inside one block: all mapped, or of one page that a common fault serves.

    Same result as the long way; False, with nothing changed, where that has to be gone.
    """
    cdef uint32_t number = uvm_range_at(p, first), block, lo = first % BLOCK, hi, w
    cdef uint32_t pages = 0, here = 0
    cdef uint64_t m
    cdef place_t* place
    if not number or last > p.near_last or last // BLOCK != first // BLOCK:
        return False
    block = uvm_block_at(p, number, first // BLOCK)
    if not block:
        return False
    place = uvm_place(p, block, processor)
    if first == last:
        m = <uint64_t>1 << (lo & 63)
        if place == NULL or not place.tables[level][lo >> 6] & m:
            settle(p)
            if p.engine.recording or (p.timer and p.timer <= p.engine.now):
                return False
            if not service_short(p, block, processor, lo, level, &out.best):
                return False
            p.counters.batches += 1
            p.counters.services += 1
            p.counters.replays += 1
            pay_batch(p, 1)
            out.faults = 1
            here = out.best == processor
        else:
            here = (place.resident[lo >> 6] & m) != 0
        pages = 1
    elif place == NULL:
        return False
    else:
        hi = <uint32_t>(last % BLOCK) + 1
        for w in range(lo >> 6, ((hi - 1) >> 6) + 1):
            m = word_of(w, lo, hi)
            if m & ~place.tables[level][w]:
                return False
            here += popcount64(m & place.resident[w])
        pages = hi - lo
    p.engine.processors[processor].pages_touched += pages
    out.remote = pages - here
    return True


cdef void touch_long(uvm_t* p, uint32_t processor, uint64_t first, uint64_t last,
                     uint32_t access, touch_t* out) noexcept nogil:
    if processor == 0:
        touch_cpu(p, first, last, 2 if touch_level(access) else 0, out)
    elif not p.gpus[processor].svm:
        fatal(out, first, -E_PERM, REASON_NO_SVM)
    else:
        touch_gpu(p, processor, first, last, touch_level(access), out)


cdef void uvm_touch(void* state, uint32_t processor, uint64_t first, uint64_t last,
                    uint32_t access, touch_t* out) noexcept nogil:
    """A touch until it is served or fatal; the clock moves on by what it waited for and cost."""
    cdef uvm_t* p = <uvm_t*>state
    cdef uint64_t before = p.engine.counters.migrated_pages
    uvm_step(p)
    if not p.short_way >> processor & 1 or not touch_short(
        p, processor, first, last, touch_level(access), out
    ):
        p.asked_first = first
        p.asked_last = last
        touch_long(p, processor, head_of(p, first), last | p.within, access, out)
    if out.remote:
        p.engine.processors[processor].remote_pages += out.remote
        p.engine.cost_ns += <uint64_t>(
            p.engine.costs.remote_ns + p.engine.costs.remote_page_ns * <double>out.remote
        )
    if p.notices:
        serve_notices(p, processor, head_of(p, first), last | p.within)
    settle(p)
    p.engine.processors[processor].faults += out.faults
    p.engine.processors[processor].driver_faults += out.faults
    p.engine.processors[processor].duplicates += out.duplicates
    p.engine.processors[processor].fatal += out.ret != 0
    out.moved = p.engine.counters.migrated_pages - before


# ---- mappings ---------------------------------------------------------------------------

cdef int uvm_map(uvm_t* p, uint64_t first, uint64_t last, uint32_t prot) noexcept nogil:
    """Managed memory appears; -EEXIST where there is some."""
    cdef range_entry_t e
    cdef uint32_t number
    cdef range_t* r
    cdef arena_t* arena
    cdef uint64_t low = head_of(p, first), outer = (last | p.within) + 1
    # A page that two mappings share belongs to the one before.
    if low < first and uvm_range_at(p, first):
        low += p.unit
    if outer > last + 1 and uvm_range_at(p, last):
        outer -= p.unit
    if low >= outer:
        return 0
    first = low
    last = outer - 1
    if ranges_next(p.tree, first, &e) and e.first <= last:
        return -E_EXIST
    if not room_in(&p.ranges, 1) or not room_in(&p.arenas, 1):
        return -E_NOMEM
    number = pool_take(&p.ranges)
    if ranges_assign(p.tree, first, last, number):
        pool_give(&p.ranges, number)
        return -E_NOMEM
    forget_near(p)
    r = range_no(p, number)
    r.first = first
    r.last = last
    r.prot = <uint8_t>prot
    r.arena = pool_take(&p.arenas)
    arena = arena_no(p, r.arena)
    arena.ranges = 1
    arena.first_frame = first // BLOCK
    arena.frames = last // BLOCK - first // BLOCK + 1
    return 0


cdef void split_chunks(uvm_t* p, uint32_t block, uint32_t other, const block_t* before,
                       place_t* mine, place_t* theirs) noexcept nogil:
    """Chunks follow the pages of a block that fell in two; those on the cut are cut."""
    cdef cut_t old
    cdef uint32_t piece = 0, page, size = 0, chunk, number, offset, inside
    cdef uint32_t whole = 0, half
    cdef block_t* b
    cdef place_t* place
    cdef split_t* s
    if not mine.chunk:
        return
    memset(&old, 0, sizeof(old))
    if is_full(before):
        whole = mine.chunk
        root_no(p, whole).block = 0
        root_no(p, whole).split = pool_take(&p.splits)
    else:
        old = cut_no(p, mine.chunk)[0]
        pool_give(&p.cuts, mine.chunk)
    mine.chunk = pool_take(&p.cuts)
    theirs.chunk = pool_take(&p.cuts)
    while True:
        if whole:
            page = 0
            size = BLOCK
            chunk = whole * BLOCK
        else:
            page = uvm_piece(before, piece, &size)
            if not size:
                break
            chunk = old.chunks[piece]
        piece += 1
        if chunk:
            number = chunk // BLOCK
            offset = chunk % BLOCK
            s = split_no(p, root_no(p, number).split)
            if not whole:
                s.block[offset] = 0
                s.chunks -= 1
            inside = 0
            for half in range(2):
                b = block_no(p, other if half else block)
                place = theirs if half else mine
                inside += hand_out(p, s, b, other if half else block,
                                   cut_no(p, place.chunk), number, offset, page, size)
            if inside > 1:
                enlist(p, number, LIST_USED)
        if whole:
            break
    for half in range(2):
        place = theirs if half else mine
        if not cut_no(p, place.chunk).used:
            pool_give(&p.cuts, place.chunk)
            place.chunk = 0


cdef uint32_t hand_out(uvm_t* p, split_t* s, const block_t* b, uint32_t block, cut_t* cut,
                       uint32_t number, uint32_t offset, uint32_t page,
                       uint32_t size) noexcept nogil:
    """Pieces of a block inside the chunk [page, page + size) become chunks; how many."""
    cdef uint32_t piece = 0, start, pages = 0, at, n = 0
    while True:
        start = uvm_piece(b, piece, &pages)
        if not pages:
            return n
        if page <= start < page + size:
            at = offset + start - page
            s.block[at] = block
            s.page[at] = <uint16_t>start
            s.chunks += 1
            if pages == 1:
                s.small |= <uint32_t>1 << (at // BIG)
            cut.chunks[piece] = number * BLOCK + at
            cut.used += 1
            n += 1
        piece += 1


cdef void split_block(uvm_t* p, uint32_t block, uint32_t rest, uint32_t at) noexcept nogil:
    """A block falls in two before page *at* of its frame; the rest is of range *rest*."""
    cdef block_t before = block_no(p, block)[0]
    cdef uint32_t other, number, level, w
    cdef block_t* b
    cdef block_t* o
    cdef place_t* mine
    cdef place_t* theirs
    cdef uint64_t pages[8]
    forget_histories(p, block)
    other = pool_take(&p.blocks)
    b = block_no(p, block)
    o = block_no(p, other)
    o.range = rest
    o.frame = b.frame
    o.start = <uint16_t>at
    o.outer = b.outer
    b.outer = <uint16_t>at
    b.prefetch_last = 0
    b.prefetch_faults = 0
    link_block(p, other)
    span_of(pages, at, o.outer)
    for w in range(8):
        o.duplicated[w] = b.duplicated[w] & pages[w]
        o.discarded[w] = b.discarded[w] & pages[w]
    drop(b.duplicated, pages)
    drop(b.discarded, pages)
    number = b.place
    while number:
        theirs = uvm_make_place(p, other, place_no(p, number).processor)
        mine = place_no(p, number)
        forget_count(mine)
        both(theirs.resident, mine.resident, pages)
        drop(mine.resident, pages)
        for level in range(PROTECTIONS):
            both(theirs.tables[level], mine.tables[level], pages)
            drop(mine.tables[level], pages)
        split_chunks(p, block, other, &before, mine, theirs)
        number = mine.next


cdef int uvm_split(uvm_t* p, uint32_t number, uint64_t page) noexcept nogil:
    """Cut a range before *page*; a block that it cuts falls in two, chunks too."""
    cdef uint32_t rest, block
    cdef range_t* r = range_no(p, number)
    cdef range_t* new
    cdef arena_t* arena
    cdef uint64_t frame
    cdef uint64_t last = r.last
    block = uvm_block_at(p, number, page // BLOCK)
    if not room_in(&p.ranges, 1):
        return -E_NOMEM
    if block and not (
        room_in(&p.blocks, 1) and room_in(&p.places, p.processors)
        and room_in(&p.splits, p.processors) and room_in(&p.cuts, 2 * p.processors)
    ):
        return -E_NOMEM
    rest = pool_take(&p.ranges)
    if ranges_assign(p.tree, page, last, rest):
        pool_give(&p.ranges, rest)
        return -E_NOMEM
    forget_near(p)
    r = range_no(p, number)
    new = range_no(p, rest)
    new[0] = r[0]
    new.first = page
    r.last = page - 1
    arena = arena_no(p, r.arena)
    arena.ranges += 1
    if arena.table != NULL:
        for frame in range(page // BLOCK, last // BLOCK + 1):
            block = arena.table[frame - arena.first_frame]
            while block:
                if block_no(p, block).range == number:
                    if frame * BLOCK + block_no(p, block).start >= page:
                        block_no(p, block).range = rest
                    elif frame * BLOCK + block_no(p, block).outer > page:
                        split_block(p, block, rest, <uint32_t>(page - frame * BLOCK))
                        break
                block = block_no(p, block).next
    return 0


cdef void drop_block(uvm_t* p, uint32_t block) noexcept nogil:
    """A block of memory that goes: its chunks are free again."""
    cdef uint32_t number = block_no(p, block).place, following
    forget_histories(p, block)
    while number:
        free_chunks(p, block, place_no(p, number))
        following = place_no(p, number).next
        pool_give(&p.places, number)
        number = following
    pool_give(&p.blocks, block)


cdef void drop_range(uvm_t* p, uint32_t number) noexcept nogil:
    """Blocks of the range go, and with its last range the arena."""
    cdef range_t* r = range_no(p, number)
    cdef arena_t* arena = arena_no(p, r.arena)
    cdef uint64_t frame
    cdef uint32_t block
    cdef uint32_t* link
    if arena.table != NULL:
        for frame in range(r.first // BLOCK, r.last // BLOCK + 1):
            link = arena.table + (frame - arena.first_frame)
            while link[0] and block_no(p, link[0]).range != number:
                link = &block_no(p, link[0]).next
            block = link[0]
            if block:
                link[0] = block_no(p, block).next
                drop_block(p, block)
    arena.ranges -= 1
    if not arena.ranges:
        free(arena.table)
        pool_give(&p.arenas, r.arena)
    pool_give(&p.ranges, number)


cdef int uvm_unmap(uvm_t* p, uint64_t first, uint64_t last) noexcept nogil:
    """Managed memory goes, with all that lies in it."""
    cdef range_entry_t e
    cdef uint64_t page = first
    cdef uint32_t doomed = 0, number
    cdef uint32_t* tail = &doomed
    first = page = head_of(p, first)
    last |= p.within
    if cut_at(p, first, NULL) or (last + 1 and cut_at(p, last + 1, NULL)):
        return -E_NOMEM
    while ranges_next(p.tree, page, &e) and e.first <= last:
        tail[0] = e.value
        tail = &range_no(p, e.value).next
        tail[0] = 0
        if e.last >= last:
            break
        page = e.last + 1
    if not doomed:
        return 0
    if ranges_assign(p.tree, first, last, 0):
        return -E_NOMEM
    forget_near(p)
    while doomed:
        number = doomed
        doomed = range_no(p, number).next
        drop_range(p, number)
    return 0


# What a piece of advice changes: whether a range differs from it.
cdef struct advice_t:
    uint32_t kind          # advice_kind
    uint32_t value
    bint on

cdef enum advice_kind:
    ADVISE_PREFERRED       # value: 1 + processor, or 0
    ADVISE_ACCESSED_BY     # value: processor
    ADVISE_DUPLICATION     # value: duplication_t
    ADVISE_PROTECTION      # value: prot


cdef bint differs(const range_t* r, const advice_t* a) noexcept nogil:
    if a.kind == ADVISE_PREFERRED:
        return r.preferred != a.value
    if a.kind == ADVISE_ACCESSED_BY:
        return (r.accessed_by >> a.value & 1) != <uint64_t>a.on
    if a.kind == ADVISE_PROTECTION:
        return r.prot != a.value
    return r.duplication != a.value


cdef int cut_at(uvm_t* p, uint64_t page, const advice_t* a) noexcept nogil:
    """Cut the range around a page before it, where advice changes the range."""
    cdef uint32_t number = uvm_range_at(p, page)
    if not number or range_no(p, number).first == page:
        return 0
    if a != NULL and not differs(range_no(p, number), a):
        return 0
    return uvm_split(p, number, page)


cdef bint covered(uvm_t* p, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t page = first
    while uvm_range_at(p, page):
        if p.near_last >= last:
            return True
        page = p.near_last + 1
    return False


cdef void protect_range(uvm_t* p, uint32_t number, uint32_t prot) noexcept nogil:
    """The CPU loses what the new protection does not allow."""
    cdef uint64_t frame
    cdef range_t* r = range_no(p, number)
    cdef uint32_t block
    cdef uint64_t pages[8]
    cdef place_t* place
    r.prot = <uint8_t>prot
    if not uvm_touched(p, number):
        return
    span_of(pages, 0, BLOCK)
    for frame in range(r.first // BLOCK, r.last // BLOCK + 1):
        block = uvm_block_at(p, number, frame)
        if not block:
            continue
        if not prot & 1:
            unmap(p, block, pages, 1)
        elif not prot & 2:
            place = uvm_place(p, block, 0)
            clear(place.tables[1])
            clear(place.tables[2])


cdef int uvm_protect(uvm_t* p, uint64_t first, uint64_t last, uint32_t prot) noexcept nogil:
    """Protection changes; a hole stops it with -ENOMEM, what lies before it is changed."""
    cdef uint64_t page = head_of(p, first)
    cdef uint32_t number
    cdef advice_t a
    a.kind = ADVISE_PROTECTION
    a.value = prot
    last |= p.within
    while True:
        number = uvm_range_at(p, page)
        if not number:
            return -E_NOMEM
        if range_no(p, number).prot != prot:
            if cut_at(p, page, &a) or (last + 1 and cut_at(p, last + 1, &a)):
                return -E_NOMEM
            number = uvm_range_at(p, page)
            protect_range(p, number, prot)
        page = range_no(p, number).last
        if page >= last:
            return 0
        page += 1


cdef bint walk(uvm_t* p, walk_t* at) noexcept nogil:
    """The next (range, frame) of the span; pages outside ranges are passed over."""
    cdef range_entry_t e
    cdef uint64_t base, end
    if at.page > at.last:
        return False
    at.number = uvm_range_at(p, at.page)
    if not at.number:
        if not ranges_next(p.tree, at.page, &e) or e.first > at.last:
            return False
        at.page = e.first
        at.number = uvm_range_at(p, at.page)
    at.frame = at.page // BLOCK
    base = at.frame * BLOCK
    end = base + BLOCK - 1
    if p.near_last < end:
        end = p.near_last
    if at.last < end:
        end = at.last
    span_of(at.pages, <uint32_t>(at.page - base), <uint32_t>(end - base) + 1)
    at.block = uvm_block_at(p, at.number, at.frame)
    at.page = end + 1
    return True


cdef void uvm_invalidate(uvm_t* p, uint64_t first, uint64_t last) noexcept nogil:
    """CPU page table entries go."""
    cdef walk_t at
    at.page = head_of(p, first)
    at.last = last | p.within
    while walk_made(p, &at):
        unmap(p, at.block, at.pages, 1)


cdef bint walk_made(uvm_t* p, walk_t* at) noexcept nogil:
    """The next block that exists; a range without any is passed at once."""
    while walk(p, at):
        if at.block:
            return True
        if not uvm_touched(p, at.number):
            at.page = p.near_last + 1
    return False


# ---- advice and migration (sections 2 and 8.1) ------------------------------------------

cdef inline uint32_t home_of(uvm_t* p, uint32_t processor) noexcept nogil:
    """An integrated GPU's memory is the CPU's."""
    return processor if p.memory >> processor & 1 else 0


cdef void collapse(uvm_t* p, uint32_t block, const uint64_t* wanted) noexcept nogil:
    """Of several copies one stays: the preferred location's, else the lowest processor's."""
    cdef uint64_t pages[8]
    cdef uint64_t mine[8]
    cdef uint8_t preferred = range_no(p, block_no(p, block).range).preferred
    cdef place_t* place
    cdef uint32_t number
    if not both(pages, wanted, block_no(p, block).duplicated):
        return
    place = uvm_place(p, block, preferred - 1) if preferred else NULL
    if place != NULL and both(mine, pages, place.resident):
        drop(pages, mine)
        make_resident(p, block, preferred - 1, mine, CAUSE_ADVICE, NULL, False)
    number = block_no(p, block).place
    while number:
        place = place_no(p, number)
        if both(mine, pages, place.resident):
            drop(pages, mine)
            make_resident(p, block, place.processor, mine, CAUSE_ADVICE, NULL, False)
        number = place_no(p, number).next


cdef void discard_block(uvm_t* p, uint32_t block, uint64_t* pages) noexcept nogil:
    """The contents are not needed any more; with the driver's UNMAP flag."""
    cdef block_t* b = block_no(p, block)
    cdef uint64_t known[8]
    cdef uint32_t number
    cdef place_t* place
    cdef bint had
    collapse(p, block, pages)
    anywhere_of(p, block, known)
    add(known, b.discarded)
    keep(pages, known)
    add(b.discarded, pages)
    unmap(p, block, pages, <uint64_t>0xffffffffffffffffU)
    number = b.place
    while number:
        place = place_no(p, number)
        had = any_of(place.resident)
        drop(place.resident, pages)
        if is_full(b) and place.processor and had and not any_of(place.resident):
            enlist(p, place.chunk, LIST_UNUSED)
        number = place.next


cdef void advise_block(uvm_t* p, uint32_t block, const advice_t* a,
                       uint8_t before) noexcept nogil:
    """What advice does to a block at once; nothing moves but copies that collapse."""
    cdef range_t* r = range_no(p, block_no(p, block).range)
    cdef block_t* b = block_no(p, block)
    cdef uint64_t pages[8]
    cdef uint64_t m[8]
    cdef uint64_t known[8]
    cdef uint32_t number
    cdef place_t* place
    span_of(pages, b.start, b.outer)
    if a.kind == ADVISE_DUPLICATION:
        if a.value == DISABLED:
            collapse(p, block, pages)
            map_accessors(p, block, pages)
            return
        anywhere_of(p, block, known)
        number = b.place
        while number:
            place = place_no(p, number)
            drop(place.tables[1], place.resident)
            drop(place.tables[2], place.resident)
            without(m, known, place.resident)
            unmap(p, block, m, <uint64_t>1 << place.processor)
            number = place.next
        return
    if r.duplication == ENABLED:
        return
    without(m, pages, b.duplicated)
    if a.kind == ADVISE_ACCESSED_BY:
        if a.on:
            map_unrevoked(p, block, a.value, m, REMOTE_POLICY)
        return
    if before and r.accessed_by >> (before - 1) & 1:
        map_unrevoked(p, block, before - 1, m, REMOTE_POLICY)
    if a.value:
        place = uvm_place(p, block, a.value - 1)
        if place != NULL:
            without(m, pages, place.resident)
            unmap(p, block, m, <uint64_t>1 << (a.value - 1))


cdef int advise_range(uvm_t* p, uint32_t number, const advice_t* a) noexcept nogil:
    cdef range_t* r = range_no(p, number)
    cdef uint8_t before = r.preferred
    cdef walk_t at
    if a.kind == ADVISE_PREFERRED:
        r.preferred = <uint8_t>a.value
    elif a.kind == ADVISE_ACCESSED_BY:
        r.accessed_by ^= <uint64_t>1 << a.value
    else:
        r.duplication = <uint8_t>a.value
    at.page = r.first
    at.last = r.last
    while walk_made(p, &at):
        if not room_for(p, at.block):
            return -E_NOMEM
        advise_block(p, at.block, a, before)
        end_new(p)
    return 0


cdef int advise_span(uvm_t* p, uint64_t first, uint64_t last, const advice_t* a) noexcept nogil:
    """Advice on whole pages: ranges are cut at its ends where it changes them."""
    cdef uint64_t page = head_of(p, first)
    cdef uint32_t number
    cdef int error
    first = page
    last |= p.within
    if cut_at(p, first, a) or (last + 1 and cut_at(p, last + 1, a)):
        return -E_NOMEM
    while True:
        number = uvm_range_at(p, page)
        page = range_no(p, number).last
        if differs(range_no(p, number), a):
            error = advise_range(p, number, a)
            if error:
                return error
        if page >= last:
            return 0
        page += 1


cdef int uvm_discard(uvm_t* p, uint64_t first, uint64_t last) noexcept nogil:
    cdef walk_t at
    at.page = head_of(p, first)
    at.last = last | p.within
    while walk_made(p, &at):
        if not room_for(p, at.block):
            return -E_NOMEM
        discard_block(p, at.block, at.pages)
        end_new(p)
    return 0


cdef bint migrate_block(uvm_t* p, uint32_t block, const uint64_t* pages, uint32_t target,
                        bint maps) noexcept nogil:
    """Pages of a block move; False where there is no room."""
    cdef block_t* b = block_no(p, block)
    cdef range_t* r = range_no(p, b.range)
    cdef uint64_t gone[8]
    cdef uint64_t rest[8]
    cdef uint32_t to = target
    if r.duplication == ENABLED:
        if without(rest, pages, b.discarded) and (
            not make_resident(p, block, target, rest, CAUSE_USER, NULL, True)
        ):
            return False
        if both(gone, pages, b.discarded):
            if r.preferred:
                to = r.preferred - 1
            if not make_resident(p, block, to, gone, CAUSE_USER, NULL, False):
                return False
    elif not make_resident(p, block, target, pages, CAUSE_USER, NULL, False):
        return False
    drop(b.discarded, pages)
    if maps:
        map_unrevoked(p, block, target, pages, REMOTE_POLICY)
        map_accessors(p, block, pages)
    return True


cdef int uvm_migrate(uvm_t* p, uint64_t first, uint64_t last, uint32_t processor) noexcept nogil:
    """Pages move to a processor's memory now (the migrate call)."""
    cdef uint32_t target = home_of(p, processor), turn
    cdef uint64_t page = head_of(p, first), frames = 0
    cdef walk_t at
    cdef ended_t ended
    first = page
    last |= p.within
    if not covered(p, first, last):
        return -E_FAULT
    while True:
        uvm_range_at(p, page)
        frames += (p.near_last if p.near_last < last else last) // BLOCK - page // BLOCK + 1
        if p.near_last >= last:
            break
        page = p.near_last + 1
    for turn in range(0 if frames > 1 else 1, 2):
        at.page = first
        at.last = last
        while walk(p, &at):
            if not uvm_reserve_block(p, at.number):
                return -E_NOMEM
            at.block = uvm_make_block(p, at.number, at.frame)
            ended = ENDED
            while ended == ENDED:
                if not room_for(p, at.block):
                    ended = NO_RECORDS
                elif migrate_block(p, at.block, at.pages, target, turn == 1):
                    break
                else:
                    ended = make_room(p)
            end_new(p)
            if ended != ENDED:
                return -E_NOMEM
    return 0


cdef int uvm_evict(uvm_t* p, uint64_t page) noexcept nogil:
    """Memory pressure takes the chunk under a page; -ENOENT without one."""
    cdef uint32_t number = uvm_range_at(p, page), block, piece, first, size = 0
    cdef uint32_t bit = page % BLOCK, chunk
    cdef place_t* place
    block = uvm_block_at(p, number, page // BLOCK) if number else 0
    number = block_no(p, block).place if block else 0
    while number:
        place = place_no(p, number)
        chunk = 0
        if place.processor and place.chunk:
            if is_full(block_no(p, block)):
                chunk = place.chunk
            else:
                piece = 0
                while True:
                    first = uvm_piece(block_no(p, block), piece, &size)
                    if first <= bit < first + size:
                        break
                    piece += 1
                chunk = cut_no(p, place.chunk).chunks[piece] // BLOCK
        if chunk:
            if not evict_room(p, chunk):
                return -E_NOMEM
            evict_root(p, chunk)
            return 0
        number = place.next
    return -E_NOENT


# ---- invariants -------------------------------------------------------------------------

_BROKEN = (
    "",
    "pages outside of their block",
    "resident pages are populated",
    "duplicated pages have several copies",
    "more rights without less",
    "a mapped page is somewhere",
    "a duplicate is read-only",
    "a duplicate is not mapped remotely",
    "more pages than memory",
    "a block is found through its range",
    "the tree of ranges",
    "a chunk of the operation is left over",
    "a page of the kernel is whole",
    "memory taken is that of the chunks",
    "no more memory than the quota",
)


cdef bint halved(const uvm_t* p, const uint64_t* m) noexcept nogil:
    """Some page of the kernel is neither in the mask nor out of it."""
    cdef uint32_t w
    for w in range(8):
        if p.within and lanes_of(m[w]) != m[w]:
            return True
    return False


cdef int check_block(uvm_t* p, uint32_t block, uint64_t* total) noexcept nogil:
    cdef block_t* b = block_no(p, block)
    cdef uint64_t seen[8]
    cdef uint64_t several[8]
    cdef uint64_t own[8]
    cdef uint64_t m[8]
    cdef uint32_t number = b.place, w, piece, page, size = 0
    cdef place_t* place
    span_of(own, b.start, b.outer)
    if halved(p, own) or halved(p, b.duplicated) or halved(p, b.discarded):
        return 12
    clear(seen)
    clear(several)
    while number:
        place = place_no(p, number)
        if without(m, place.resident, own):
            return 1
        if both(m, seen, place.resident):
            add(several, m)
        add(seen, place.resident)
        if place.processor:
            total[place.processor] += count_of(place.resident)
            copy_to(m, place.resident)
            if place.chunk and is_full(b):
                clear(m)
            elif place.chunk:
                piece = 0
                while True:
                    page = uvm_piece(b, piece, &size)
                    if not size:
                        break
                    if cut_no(p, place.chunk).chunks[piece]:
                        for w in range(8):
                            m[w] &= ~word_of(w, page, page + size)
                    piece += 1
            if any_of(m):
                return 2
        number = place.next
    if without(m, several, b.duplicated) or without(m, b.duplicated, several):
        return 3
    number = b.place
    while number:
        place = place_no(p, number)
        if without(m, place.tables[2], place.tables[1]) or (
            without(m, place.tables[1], place.tables[0])
        ):
            return 4
        if without(m, place.tables[0], seen):
            return 5
        if meets(place.tables[1], b.duplicated):
            return 6
        if halved(p, place.resident) or halved(p, place.tables[0]) or (
            halved(p, place.tables[1]) or halved(p, place.tables[2])
        ):
            return 12
        both(m, place.tables[0], b.duplicated)
        if without(m, m, place.resident):
            return 7
        number = place.next
    return 0


cdef int uvm_check(uvm_t* p) noexcept nogil:
    cdef uint64_t total[64]
    cdef uint64_t page = 0
    cdef range_entry_t e
    cdef walk_t at
    cdef int broken
    cdef uint32_t gpu, number
    memset(total, 0, sizeof(total))
    if ranges_check(p.tree):
        return 10
    if p.new_first:
        return 11
    while ranges_next(p.tree, page, &e):
        if range_no(p, e.value).first != e.first or range_no(p, e.value).last != e.last:
            return 10
        at.page = e.first
        at.last = e.last
        while walk_made(p, &at):
            if block_no(p, at.block).range != e.value:
                return 9
            broken = check_block(p, at.block, total)
            if broken:
                return broken
        if e.last == <uint64_t>0xffffffffffffffffU:
            break
        page = e.last + 1
    for gpu in range(1, p.processors):
        if total[gpu] > p.gpus[gpu].vram_pages or p.node.used[gpu - 1] > p.gpus[gpu].vram_pages:
            return 8
        total[gpu] = p.gpus[gpu].held * BLOCK
    for number in range(1, p.roots.n):
        if root_no(p, number).block or root_no(p, number).split:
            total[root_no(p, number).gpu] += BLOCK
    for gpu in range(1, p.processors):
        if total[gpu] != p.gpus[gpu].taken or total[gpu] > p.node.used[gpu - 1]:
            return 13
        if total[gpu] > p.quota:
            return 14
    return 0


# ---- operations by the table ------------------------------------------------------------

cdef int ops_map(void* state, uint64_t first, uint64_t last) noexcept nogil:
    return uvm_map(<uvm_t*>state, first, last, 3)


cdef int ops_unmap(void* state, uint64_t first, uint64_t last) noexcept nogil:
    return uvm_unmap(<uvm_t*>state, first, last)


cdef int uvm_advise(void* state, const record_t* record) noexcept nogil:
    """Advice of a record, by its KFD attribute: preferred location, access in place (accessed
    by), the flag of read mostly; the others mean nothing here."""
    cdef uvm_t* p = <uvm_t*>state
    cdef uint64_t first = record.addr >> 12, last = (record.addr + record.size - 1) >> 12
    cdef advice_t a
    a.on = True
    a.value = record.peer
    if record.kind == KIND_PREFETCH or record.access == ATTR_PREFETCH:
        return uvm_migrate(p, first, last, record.peer) if record.peer < p.processors else -E_INVAL
    if record.access == ATTR_PREFERRED:
        a.kind = ADVISE_PREFERRED
        a.value = 0 if record.peer == NOWHERE else home_of(p, record.peer & 63) + 1
        if record.peer != NOWHERE and record.peer >= p.processors:
            return -E_INVAL
    elif record.access == ATTR_AIP or record.access == ATTR_NO_ACCESS:
        a.kind = ADVISE_ACCESSED_BY
        a.on = record.access == ATTR_AIP
        if record.peer >= p.processors:
            return -E_INVAL
    elif record.access in (ATTR_SET_FLAGS, ATTR_CLR_FLAGS) and record.value & FLAG_READ_MOSTLY:
        a.kind = ADVISE_DUPLICATION
        a.value = ENABLED if record.access == ATTR_SET_FLAGS else DISABLED
    else:
        return 0
    return advise_span(p, first, last, &a) if covered(p, first, last) else -E_FAULT


cdef void ops_step(void* state) noexcept nogil:
    uvm_step(<uvm_t*>state)


cdef uint64_t uvm_due(void* state) noexcept nogil:
    """When pinned pages are released next."""
    cdef uvm_t* p = <uvm_t*>state
    if not p.timer:
        return <uint64_t>0xffffffffffffffffU
    return p.timer if p.timer > p.engine.now else p.engine.now


cdef int uvm_where(void* state, uint64_t page) noexcept nogil:
    """Processor with a copy of a page, the lowest of several."""
    cdef uvm_t* p = <uvm_t*>state
    cdef uint32_t number = uvm_range_at(p, page), block
    cdef uint64_t holders = 0
    block = uvm_block_at(p, number, page // BLOCK) if number else 0
    if block:
        holders = holders_of(p, block, page % BLOCK)
    return <int>ctz64(holders) if holders else -1


cdef bint uvm_window(void* state, uint64_t page, uint64_t* first, uint64_t* last) noexcept nogil:
    """The block at a page."""
    cdef uvm_t* p = <uvm_t*>state
    cdef uint64_t base = page // BLOCK * BLOCK
    if not uvm_range_at(p, page):
        return False
    first[0] = base if base > p.near_first else p.near_first
    last[0] = base + BLOCK - 1 if base + BLOCK - 1 < p.near_last else p.near_last
    return True


#: Fatal reasons of the driver's interface by the number of a reason.
cdef uint8_t FATAL_NUMBERS[256]
memset(FATAL_NUMBERS, 0, sizeof(FATAL_NUMBERS))
for _word, _fatal in _FATAL_REASONS.items():
    FATAL_NUMBERS[<uint32_t>_REASONS.index(_word)] = _fatal

cdef ops_t OPS
OPS.batch = MAX_BATCH  # until the rules are known
OPS.touch = uvm_touch
OPS.deliver = uvm_deliver
OPS.map = ops_map
OPS.unmap = ops_unmap
OPS.advise = uvm_advise
OPS.step = ops_step
OPS.due = uvm_due
OPS.where = uvm_where
OPS.window = uvm_window


# ---- Python face ------------------------------------------------------------------------

cdef object number_of(const uint64_t* m):
    """A mask as one whole number."""
    cdef uint32_t w
    out = 0
    for w in range(8):
        out |= int(m[w]) << (64 * w)
    return out


cdef int take_arrival(uvm_t* p, arrival_t* a, object number, object fault) except -1:
    """A fault as Python has it."""
    processor, page, access, *types = fault
    kind = types[0] if types else 0
    if not 0 < processor < p.processors or not 0 <= access <= 4 or not 0 <= kind <= 255:
        raise InvalidArgumentError(
            f"fault {number} of processor {processor}, access {access}, type {kind}: expected a "
            f"GPU, 1 to {p.processors - 1}, an access of 0 to 4 and a type of 0 to 255"
        )
    a.processor = processor
    a.page = page
    a.access = access
    a.type = kind
    a.ts = 0
    return 0


cdef uint32_t prot_bits(str prot):
    return ("r" in prot) | ("w" in prot) << 1


@cython.no_gc_clear  # __dealloc__ still needs the node when a cycle is collected
cdef class UvmProcess(Process):
    """One process under the UVM driver, compiled.

    Operations, in page numbers and errnos; processors are 0 the CPU and 1 + i GPU i:

    * mappings: :meth:`mmap`, :meth:`munmap`, :meth:`mprotect`, :meth:`invalidate`
    * advice and moves: :meth:`advise`, :meth:`prefetch`
    * faults and touches: :meth:`deliver`, :meth:`fault`, :meth:`access`
    * memory pressure and pending work: :meth:`evict`, :meth:`step`
    * views: :meth:`ranges`, :meth:`where`, :meth:`copies`, :meth:`explain`,
      :meth:`snapshot`, :meth:`check`

    Parameters
    ----------
    gpus : sequence of Gpu
        At most 63; the position is the number.
    rules : Uvm
        Parameters of the driver.
    node : Node, optional
        Device memory to share with other processes.
    page_size : int
        Bytes of a page of the kernel: 4096 or 65536. Whatever names a part of a page
        means all of it.

    Raises
    ------
    InvalidArgumentError
        For too many GPUs or another page size.
    OutOfMemoryError
        If the state cannot be allocated.

    Thread safety
    -------------
    One thread at a time uses a process, and the processes of one node.

    Source
    ------
    NVIDIA UVM driver 595.45.04; ``docs/explain/uvm.md``.
    """

    def __cinit__(self, gpus, rules, node=None, *, page_size=4096):
        cdef Node shared = Node() if node is None else node
        cdef uvm_t* p
        cdef uint32_t i
        gpus = tuple(gpus)
        if page_size not in (4096, 65536):
            raise InvalidArgumentError(f"page_size {page_size}: expected 4096 or 65536")
        topology = topology_of(gpus, peer_access=rules.peer_access)
        self.gpus = gpus
        self.rules = rules
        self.node = shared
        self.result = Outcome()
        p = <uvm_t*>calloc(1, sizeof(uvm_t))
        if p == NULL:
            raise OutOfMemoryError("no memory for a process")
        self.p = p
        p.engine = engine_new()
        p.tree = ranges_new(False, 0)
        p.chunk = <group_t*>malloc(MOST_BATCH * sizeof(group_t))
        p.again = <group_t*>malloc(MOST_BATCH * sizeof(group_t))
        p.entering = <entering_t*>malloc(MAX_BATCH * sizeof(entering_t))
        p.sorted = <sorted_t*>malloc(MAX_BATCH * sizeof(sorted_t))
        if p.engine == NULL or p.tree == NULL or p.chunk == NULL or p.again == NULL or (
            p.entering == NULL or p.sorted == NULL
        ):
            raise OutOfMemoryError("no memory for a process")
        p.node = &shared.n
        p.ranges.item = sizeof(range_t)
        p.arenas.item = sizeof(arena_t)
        p.blocks.item = sizeof(block_t)
        p.places.item = sizeof(place_t)
        p.cuts.item = sizeof(cut_t)
        p.histories.item = sizeof(histories_t)
        p.roots.item = sizeof(root_t)
        p.splits.item = sizeof(split_t)
        p.entries.item = sizeof(entry_t)
        p.ranges.n = p.arenas.n = p.blocks.n = p.places.n = p.cuts.n = 1
        p.histories.n = p.roots.n = p.splits.n = p.entries.n = 1
        forget_near(p)
        p.unit_log = 4 if page_size == 65536 else 0
        p.unit = 1 << p.unit_log
        p.within = p.unit - 1
        p.lane = (<uint64_t>1 << p.unit) - 1
        p.processors = <uint32_t>len(gpus) + 1
        p.memory = topology.memory
        for i in range(p.processors):
            p.can[i] = topology.can[i]
            p.fast[i] = topology.fast[i]
            p.atomics[i] = topology.atomics[i]
            p.siblings[i] = topology.siblings[i]
            p.reaching[i] = topology.reaching(i)
        for i in range(1, p.processors):
            p.gpus[i].vram_pages = gpus[i - 1].vram_pages
            p.gpus[i].id = gpus[i - 1].id
            p.gpus[i].svm = gpus[i - 1].svm
            p.gpus[i].coherent = gpus[i - 1].coherent
        take_rules(p, rules)
        counts = rules.counts_accesses(gpus)
        p.counting = counts and p.within
        p.map_evicted = counts and rules.map_remote_on_eviction
        if rules.eviction != "driver":
            p.order = evict_new(order_of(rules.eviction), rules.seed)
            if p.order == NULL:
                raise OutOfMemoryError("no memory for an order of eviction")
        elif not p.within:
            for i in range(1, p.processors):
                p.short_way |= <uint64_t>p.gpus[i].svm << i
        p.engine.costs.batch_ns = 20_000  # until the machine's are set
        p.engine.costs.in_batch_ns = 500
        p.ops = OPS
        p.ops.batch = p.batch_size
        process_join(self, p, &p.ops, p.engine, oldest_age, evict_oldest)

    def __dealloc__(self):
        cdef uvm_t* p = self.p
        cdef range_entry_t e
        cdef uint64_t page = 0
        cdef uint32_t i
        if p == NULL:
            return
        if p.node != NULL and p.tree != NULL:
            # Arenas are freed with the last of their ranges; chunks go back to the node.
            while ranges_next(p.tree, page, &e):
                if arena_no(p, range_no(p, e.value).arena).ranges == 1:
                    free(arena_no(p, range_no(p, e.value).arena).table)
                arena_no(p, range_no(p, e.value).arena).ranges -= 1
                if e.last == <uint64_t>0xffffffffffffffffU:
                    break
                page = e.last + 1
            for i in range(1, p.processors):
                p.node.used[i - 1] -= p.gpus[i].taken
            self.node.leave(p)
        engine_free(p.engine)
        ranges_free(p.tree)
        free(p.ranges.v)
        free(p.arenas.v)
        free(p.blocks.v)
        free(p.places.v)
        free(p.cuts.v)
        free(p.histories.v)
        free(p.roots.v)
        free(p.splits.v)
        free(p.entries.v)
        evict_free(p.order)
        free(p.chunk)
        free(p.again)
        free(p.entering)
        free(p.sorted)
        free(p)

    # ---- operations ----

    def begin(self, t_ns, record=True):
        """Start an operation at *t_ns*; its effects are collected until :meth:`finish`."""
        self.p.engine.now = t_ns
        self.p.engine.cost_ns = 0
        self.p.engine.nevents = 0
        self.p.engine.recording = record
        self.result = Outcome()
        return self.result

    def finish(self, ret=0):
        """End the operation; its result with its moves and evictions in order."""
        cdef engine_t* e = self.p.engine
        cdef uint32_t i
        e.recording = False
        result = self.result
        result.ret = ret
        ids = (0, *(gpu.id for gpu in self.gpus))
        for i in range(e.nevents):
            if e.events[i].kind == EVENT_MIGRATE:
                result.migr.append((
                    e.events[i].first, e.events[i].last, ids[e.events[i].source],
                    ids[e.events[i].target], CAUSES[e.events[i].cause], e.events[i].value,
                ))
            elif e.events[i].kind == EVENT_EVICT_OBJECT:
                result.bo_evict.append((e.events[i].value, e.events[i].first))
                continue
            result.events.append((
                e.events[i].t_ns, WORDS[e.events[i].kind], e.events[i].first, e.events[i].last,
                e.events[i].source, e.events[i].target,
                e.events[i].cause if e.events[i].kind == EVENT_MIGRATE else e.events[i].value,
            ))
        e.nevents = 0
        if e.lost_events:
            e.lost_events = False
            raise OutOfMemoryError("no memory for the event log of an operation")
        return result

    def mmap(self, first, last, prot="rw", kind="anon"):
        """Managed memory appears; -EEXIST where some is, -EOPNOTSUPP for other memory."""
        if kind != "anon":
            return -E_OPNOTSUPP
        return uvm_map(self.p, first, last, prot_bits(prot))

    def munmap(self, first, last):
        """Managed memory goes."""
        return uvm_unmap(self.p, first, last)

    def mprotect(self, first, last, prot):
        """Protection changes for the CPU; a hole stops it with -ENOMEM."""
        return uvm_protect(self.p, first, last, prot_bits(prot))

    def invalidate(self, first, last):
        """CPU page table entries go."""
        uvm_invalidate(self.p, first, last)
        return 0

    def advise(self, word, on, first, last, processor=0):
        """Advice by its neutral word, set or unset (section 2).

        Parameters
        ----------
        word : str
            ``preferred_location``, ``accessed_by`` or ``access_in_place``,
            ``read_mostly``, ``discard``; others change nothing.
        on : bool
            Set, or unset.
        first, last : int
            Pages, inclusive.
        processor : int
            The location that the word takes.

        Returns
        -------
        int
            0; -EFAULT where not all is managed memory; -EINVAL for the processor.
        """
        cdef advice_t a
        if not covered(self.p, first, last):
            return -E_FAULT
        if not 0 <= processor < self.p.processors:
            return -E_INVAL
        a.on = on
        if word == "discard":
            return uvm_discard(self.p, first, last)
        if word == "preferred_location":
            a.kind = ADVISE_PREFERRED
            a.value = home_of(self.p, processor) + 1 if on else 0
        elif word in ("accessed_by", "access_in_place"):
            a.kind = ADVISE_ACCESSED_BY
            a.value = processor
        elif word == "read_mostly":
            a.kind = ADVISE_DUPLICATION
            a.value = ENABLED if on else DISABLED
        else:
            return 0
        return advise_span(self.p, first, last, &a)

    def prefetch(self, first, last, processor):
        """Pages move to a processor's memory now (section 8.1).

        Returns
        -------
        int
            0; -EFAULT where not all is managed memory; -EINVAL for the processor;
            -ENOMEM where device memory ran out, with earlier pages moved.
        """
        if not 0 <= processor < self.p.processors:
            return -E_INVAL
        return uvm_migrate(self.p, first, last, processor)

    def deliver(self, faults):
        """Faults that arrive together, each delivered once, in batches (section 3).

        Parameters
        ----------
        faults : sequence of (processor, page, access) or (processor, page, access, type)
            GPU faults; access as in a record: 0 read, 1 write, 2 strong atomic, 3 the
            hardware's prefetcher, 4 unknown, which reads. The hardware's fault type is fatal
            from 5 on.

        Returns
        -------
        list of (errno, reason, where it was served from)
        """
        cdef uint32_t n, i, size = self.p.batch_size
        cdef arrival_t* arrivals = <arrival_t*>malloc(size * sizeof(arrival_t))
        cdef touch_t* met = <touch_t*>malloc(size * sizeof(touch_t))
        out = []
        try:
            if arrivals == NULL or met == NULL:
                raise OutOfMemoryError("no memory for a batch of faults")
            for at in range(0, len(faults), size):
                some = faults[at:at + size]
                n = len(some)
                for i in range(n):
                    take_arrival(self.p, arrivals + i, at + i, some[i])
                memset(met, 0, n * sizeof(touch_t))
                uvm_deliver(self.p, arrivals, n, met)
                for i in range(n):
                    out.append((met[i].ret, _REASONS[met[i].reason], met[i].best))
        finally:
            free(arrivals)
            free(met)
        return out

    def fault(self, gpu_id, page, write, ts=0):
        """One delivery of one GPU fault; where it was served from is in the result."""
        cdef uint64_t before = self.p.engine.counters.migrations
        ids = [gpu.id for gpu in self.gpus]
        ((ret, reason, best),) = self.deliver([(ids.index(gpu_id) + 1, page, int(write))])
        self.result.reason = reason
        self.result.migration = self.p.engine.counters.migrations > before
        if best != NOWHERE:
            self.result.best_loc = ids[best - 1] if best else 0
            self.result.window = self.block(page)
        return ret

    def block(self, page):
        """Pages (first, last) of the block at a page, ``None`` outside managed memory."""
        cdef uint64_t first, last
        if not uvm_window(self.p, page, &first, &last):
            return None
        return first, last

    def evict(self, page):
        """Memory pressure takes the chunk under a page; -ENOENT without one."""
        return uvm_evict(self.p, page)

    # ---- views ----

    #: Words of the one log of events that :meth:`finish` gives, in the order of their kinds.
    words = tuple(WORDS.values())
    #: Words of the causes of its moves, by number.
    causes = CAUSES

    def move_ns(self, source, target, pages):
        """What moving or copying the pages at once from one processor's memory costs, ns."""
        if not (0 <= source < self.p.processors and 0 <= target < self.p.processors):
            raise InvalidArgumentError(
                f"move from {source} to {target}: expected processors 0 to {self.p.processors - 1}"
            )
        return move_ns(&self.p.engine.costs, source, target, pages)

    @property
    def next_event_ns(self):
        """When pinned pages are released next, ``None`` without any."""
        return uvm_due(self.p) if self.p.timer else None

    @property
    def nbytes(self):
        """Memory held by the state, bytes."""
        cdef uvm_t* p = self.p
        cdef uint64_t total = (
            sizeof(uvm_t) + 2 * MOST_BATCH * sizeof(group_t)
            + MAX_BATCH * (sizeof(entering_t) + sizeof(sorted_t))
        )
        cdef range_entry_t e
        cdef uint64_t page = 0
        cdef arena_t* arena
        for size in (
            p.ranges.cap * p.ranges.item, p.arenas.cap * p.arenas.item,
            p.blocks.cap * p.blocks.item, p.places.cap * p.places.item,
            p.cuts.cap * p.cuts.item, p.histories.cap * p.histories.item,
            p.roots.cap * p.roots.item, p.splits.cap * p.splits.item,
            p.entries.cap * p.entries.item,
            evict_nbytes(p.order) if p.order != NULL else 0,
        ):
            total += size
        while ranges_next(p.tree, page, &e):
            arena = arena_no(p, range_no(p, e.value).arena)
            if arena.table != NULL:
                total += arena.frames * sizeof(uint32_t) // arena.ranges
            page = e.last + 1
        return total + ranges_nbytes(p.tree) + res_nbytes(p.engine.res) + sizeof(engine_t)

    def __len__(self):
        return self.p.ranges.live

    def ranges(self):
        """(first, last, protection, preferred or -1, accessed by, read duplication) of each.

        Protection: 1 readable, 2 writable. Read duplication: 0 unset, 1 enabled, 2 disabled.
        """
        cdef range_entry_t e
        cdef uint64_t page = 0
        cdef range_t* r
        rows = []
        while ranges_next(self.p.tree, page, &e):
            r = range_no(self.p, e.value)
            rows.append((r.first, r.last, r.prot, r.preferred - 1, r.accessed_by, r.duplication))
            if e.last == <uint64_t>0xffffffffffffffffU:
                break
            page = e.last + 1
        return rows

    def copies(self, page):
        """Processors with a copy of a page, a bit each."""
        cdef uint32_t number = uvm_range_at(self.p, page), block
        block = uvm_block_at(self.p, number, page // BLOCK) if number else 0
        return holders_of(self.p, block, page % BLOCK) if block else 0

    def where(self, page):
        """Processor with a copy of a page, the lowest of several; -1 when it is nowhere."""
        return uvm_where(self.p, page)

    def mapped(self, gpu, page, write=False):
        """Whether the GPU of this index maps the page, and may write it."""
        cdef uint32_t number = uvm_range_at(self.p, page), block
        cdef place_t* place
        block = uvm_block_at(self.p, number, page // BLOCK) if number else 0
        place = uvm_place(self.p, block, gpu + 1) if block else NULL
        return place != NULL and has(place.tables[1 if write else 0], page % BLOCK)

    def explain(self, page, processor, access):
        """The rule that decides a touch now, and the place (-1: none); nothing changes.

        Rules are named by their number in section 2.1; before them come ``no mapping``,
        ``protection``, ``mapped``, ``access counter`` (mapped, and counted) and ``throttled``.
        """
        cdef uvm_t* p = self.p
        cdef uint32_t number = uvm_range_at(p, page), block, bit = page % BLOCK, target = 0, rule
        cdef uint32_t me = processor, level = access, pin = NOWHERE
        cdef uint64_t holders = 0
        cdef bint duplicated = False, duplicate = False
        cdef history_t* h
        cdef place_t* place
        if not number:
            return "no mapping", -1
        if me == 0 and level:
            level = 2
        if allowed(range_no(p, number), me) < level + 1:
            return "protection", -1
        block = uvm_block_at(p, number, page // BLOCK)
        if block:
            holders = holders_of(p, block, bit)
            duplicated = has(block_no(p, block).duplicated, bit)
            place = uvm_place(p, block, me)
            if place != NULL and has(place.tables[level], bit):
                counted = p.counting and me and not holders >> me & 1
                return "access counter" if counted else "mapped", closest(p, holders, me)
            if block_no(p, block).histories:
                h = histories_no(p, block_no(p, block).histories).pages + head_of(p, bit)
                if h.throttled >> me & 1 and p.engine.now < h.end and h.favoured != me + 1:
                    return "throttled", -1
                if h.flags & HISTORY_PINNED:
                    pin = h.pin_at
        rule = select_residency(p, range_no(p, number), me, level == 0, level == 2, duplicated,
                                holders, pin, BY_FAULT, &target, &duplicate)
        return RULES[rule], target

    # ---- the rules alone, as vector files ask them ----

    def rule_prefetch(self, start, outer, target, resident, touched, faulted, thrashing,
                      preferred, cpu_mapped):
        """Prefetch hint of an untouched block: pages besides the faulted ones, and whether given.

        Masks are whole numbers, bit = page of the frame; preferred is a processor or -1.
        """
        cdef block_t b
        cdef uint64_t m[5][8]
        cdef uint32_t w
        cdef bint given
        memset(&b, 0, sizeof(b))
        b.start = start
        b.outer = outer
        for w in range(8):
            m[0][w] = resident >> (64 * w) & 0xffffffffffffffff
            m[1][w] = faulted >> (64 * w) & 0xffffffffffffffff
            m[2][w] = thrashing >> (64 * w) & 0xffffffffffffffff
            m[3][w] = cpu_mapped >> (64 * w) & 0xffffffffffffffff
        given = prefetch_hint(self.p, &b, preferred + 1, target, m[0], touched, m[1], m[2], m[3],
                              m[4])
        return number_of(m[4]), given

    def rule_residency(self, requester, levels, *, preferred, accessed_by, duplication,
                       duplicated, resident, pin, counter=False, foreign=False):
        """Rule, destination and duplication of one decision (section 2.1).

        *levels* and the sets of processors are bit masks; preferred and pin a processor or -1.
        """
        cdef range_t r
        cdef uint32_t target = 0, rule
        cdef bint duplicate = False
        memset(&r, 0, sizeof(r))
        r.preferred = preferred + 1
        r.accessed_by = accessed_by
        r.duplication = duplication
        rule = select_residency(
            self.p, &r, requester, levels >> 2 == 0, not levels & 7, duplicated, resident,
            NOWHERE if pin < 0 else pin,
            BY_COUNTER if counter else BY_FOREIGNER if foreign else BY_FAULT, &target, &duplicate,
        )
        return RULES[rule], target, duplicate

    def rule_coalesce(self, faults):
        """Representatives (index, access mask, instances) of (page, level, uTLB, instance)."""
        cdef entering_t entering[256]
        cdef uint32_t i, n = len(faults)
        if n > 256 or any(tlb >= 256 for _, _, tlb, _ in faults):
            raise InvalidArgumentError(
                f"{n} faults: expected at most 256, of uTLBs 0 to 255"
            )
        for i in range(n):
            page, level, tlb, instance = faults[i]
            entering[i].page = page
            entering[i].level = level
            entering[i].tlb = tlb
            entering[i].instance = instance
        coalesce(entering, n)
        return [
            (i, entering[i].levels, entering[i].instances)
            for i in range(n) if entering[i].instances
        ]

    def rule_hint(self, page, requester, resident, preferred):
        """Thrashing hint for a fault now: (0 none, 1 pin, 2 throttle; where, or until when)."""
        cdef uint32_t block = self.made(page)
        cdef uint64_t value = 0
        cdef hint_t kind
        if not block_no(self.p, block).histories or epoch_over(self.p, block) or (
            not has(histories_no(self.p, block_no(self.p, block).histories).thrashing,
                    page % BLOCK)
        ):
            return 0, 0
        kind = hint(self.p, block, page % BLOCK, requester, resident, preferred + 1, &value)
        return kind, value

    def rule_record(self, page, processor):
        """Thrashing detection learns of a page that moved; the processors known for it."""
        cdef uint32_t block = self.made(page), bit = page % BLOCK
        cdef bint pinned = False
        if block_no(self.p, block).histories:
            pinned = has(histories_no(self.p, block_no(self.p, block).histories).pinned, bit)
        if not pinned:
            record(self.p, block, bit, bit + 1, processor, False)

    def users(self, page):
        """Processors that thrashing detection knows of a page, a bit each."""
        cdef uint32_t block = self.made(page)
        cdef histories_t* hs
        if not block_no(self.p, block).histories:
            return 0
        hs = histories_no(self.p, block_no(self.p, block).histories)
        return hs.pages[page % BLOCK].processors

    cdef uint32_t made(self, uint64_t page) except 0:
        """The block at a page, with room for an operation on it."""
        cdef uint32_t number = uvm_range_at(self.p, page), block
        if not number:
            raise InvalidArgumentError(f"page {page}: expected managed memory")
        if not uvm_reserve_block(self.p, number):
            raise OutOfMemoryError("no memory for a block")
        block = uvm_make_block(self.p, number, page // BLOCK)
        if not room_for(self.p, block):
            raise OutOfMemoryError("no memory for an operation on a block")
        return block

    @property
    def xnack(self):
        """GPU page faults are always retried."""
        return True

    def vma(self, page):
        """(first, last, protection, kind) of the managed memory at a page, ``None`` without."""
        cdef uint32_t number = uvm_range_at(self.p, page)
        cdef range_t* r
        if not number:
            return None
        r = range_no(self.p, number)
        prot = ("r" if r.prot & 1 else "") + ("w" if r.prot & 2 else "")
        return r.first, r.last, prot or "-", "anon"

    def next_vma(self, page):
        """First page of the next managed memory at or behind a page, ``None`` without."""
        cdef range_entry_t e
        if not ranges_next(self.p.tree, page, &e):
            return None
        return max(page, e.first)

    def work(self):
        """Counters of the driver itself, by name; pages, not bytes."""
        return dict(self.p.counters)

    def snapshot(self):
        """Everything that decides what happens next, in plain values; as the reference has it."""
        cdef uvm_t* p = self.p
        cdef uint32_t gpu, kind, entry
        cdef walk_t at
        blocks = {}
        for first, last, *_ in self.ranges():
            at.page = first
            at.last = last
            while walk_made(p, &at):
                blocks[block_no(p, at.block).frame * BLOCK + block_no(p, at.block).start] = (
                    block_state(p, at.block)
                )
        lists, stacks, queue = {}, {}, []
        for gpu in range(1, p.processors):
            lists[gpu] = []
            for kind in range(3):
                lists[gpu].append([])
                entry = p.gpus[gpu].head[kind]
                while entry:
                    lists[gpu][kind].append((*root_key(p, entry), root_no(p, entry).age))
                    entry = root_no(p, entry).after
            stacks[gpu] = []
            for kind in range(2):
                stacks[gpu].append([])
                entry = p.gpus[gpu].stack[kind]
                while entry:
                    stacks[gpu][kind].insert(0, root_key(p, entry))
                    entry = root_no(p, entry).before_free[kind]
        entry = p.queue_first
        while entry:
            queue.append((
                entry_no(p, entry).deadline,
                block_no(p, entry_no(p, entry).block).frame * BLOCK
                + block_no(p, entry_no(p, entry).block).start,
                entry_no(p, entry).page,
            ))
            entry = entry_no(p, entry).next
        count = dict(p.counters)
        totals = self.totals()
        for name in ("migrations", "pages_to_device", "pages_to_host", "migrated_pages",
                     "evictions", "evicted_pages", "unmaps", "maps", "duplicated_pages"):
            count[name] = totals[name]
        for name in ("faults", "duplicates"):
            count[name] = sum(row[name] for row in self.processors())
        return {
            "now": p.engine.now,
            "cost": p.engine.cost_ns,
            "ranges": self.ranges(),
            "blocks": blocks,
            "lists": lists,
            "stacks": stacks,
            "order": order_state(p) if p.order != NULL else (),
            "held": {gpu: p.gpus[gpu].held for gpu in range(1, p.processors)},
            "taken": {gpu: p.gpus[gpu].taken for gpu in range(1, p.processors)},
            "queue": queue,
            "lapse": (p.lapse, p.votes, p.timer),
            "prefetch_off": {gpu: p.gpus[gpu].prefetch_off for gpu in range(1, p.processors)},
            "count": count,
            "used": {gpu: p.node.used[gpu - 1] for gpu in range(1, p.processors)},
        }

    def check(self):
        """Every invariant; ``AssertionError`` names one that is broken. O(blocks)."""
        broken = uvm_check(self.p)
        if broken:
            raise AssertionError(_BROKEN[broken])


cdef void take_rules(uvm_t* p, object rules) except *:
    p.outstanding = rules.outstanding
    p.batch_size = rules.batch_size
    p.max_batches = rules.max_batches
    p.max_throttled = rules.max_throttled
    p.prefetch_threshold = rules.prefetch_threshold
    p.prefetch_min_faults = rules.prefetch_min_faults
    p.thrashing_threshold = rules.thrashing_threshold
    p.pin_threshold = rules.pin_threshold
    p.max_resets = rules.max_resets
    p.lapse_votes = rules.lapse_votes
    p.pma_batch = 1 << rules.pma_batch_order
    p.prefetch_lapse = rules.prefetch_fault_lapse_ms * 1_000_000
    p.quota = <uint64_t>-1 if rules.quota_pages is None else rules.quota_pages
    p.lapse_mode = ("off", "shipped", "intended").index(rules.lapse_mode)
    p.replay_policy = ("block", "batch", "batch_flush", "once").index(rules.replay_policy)
    p.coalesce = rules.coalesce
    p.prefetch = rules.prefetch
    p.thrashing = rules.thrashing
    p.quirk = rules.quirk
    p.home_only = rules.prefetch_home_only
    p.remote_atomics = rules.remote_atomics
    p.counter_threshold = rules.access_counter_threshold
    p.counter_batch = rules.access_counter_batch
    p.lapse = rules.lapse_us * 1000
    p.nap = p.lapse * rules.nap
    p.epoch = p.lapse * rules.epoch
    p.pin = p.lapse * rules.pin


cdef object root_key(uvm_t* p, uint32_t number):
    """What a chunk is, by what lies in it: (offset, pages, first page) of each part."""
    cdef root_t* root = root_no(p, number)
    cdef split_t* s
    cdef uint32_t offset
    if root.block:
        return ((0, BLOCK, block_no(p, root.block).frame * BLOCK),)
    s = split_no(p, root.split)
    return tuple([
        (
            offset,
            1 if s.small >> (offset // BIG) & 1 else BIG,
            block_no(p, s.block[offset]).frame * BLOCK + s.page[offset],
        )
        for offset in range(BLOCK) if s.block[offset]
    ])


cdef object order_state(uvm_t* p):
    """The strategy's order: (chunk, stamp, uses) by GPU, what is drawn, the generator."""
    cdef uint32_t gpu
    rows = {gpu: [] for gpu in range(1, p.processors)}
    for unit, on, stamp, uses in evict_pack(p.order).tolist():
        rows[on + 1].append((root_key(p, unit), stamp, uses))
    drawn = {
        gpu: root_key(p, p.order.drawn[gpu - 1])
        for gpu in range(1, p.processors) if p.order.drawn[gpu - 1]
    }
    return rows, drawn, p.order.random


cdef object block_state(uvm_t* p, uint32_t block):
    cdef block_t* b = block_no(p, block)
    cdef uint32_t number = b.place, level, piece, page, size = 0
    cdef place_t* place
    cdef histories_t* hs = histories_no(p, b.histories) if b.histories else NULL
    cdef history_t* h
    resident, tables, chunks, counters = {}, ({}, {}, {}), {}, {}
    while number:
        place = place_no(p, number)
        mask = number_of(place.resident)
        if mask:
            resident[place.processor] = mask
        for level in range(PROTECTIONS):
            mask = number_of(place.tables[level])
            if mask:
                tables[level][place.processor] = mask
        if place.flagged:
            counters[place.processor] = (
                place.count, place.flagged, ((place.notified & ~NOTICE) - 1) * BIG
                if place.notified else -1,
            )
        if place.chunk and is_full(b):
            chunks[place.processor] = [(0, 0)]
        elif place.chunk:
            rows = []
            piece = 0
            while True:
                page = uvm_piece(b, piece, &size)
                if not size:
                    break
                if cut_no(p, place.chunk).chunks[piece]:
                    rows.append((page, cut_no(p, place.chunk).chunks[piece] % BLOCK))
                piece += 1
            chunks[place.processor] = rows
        number = place.next
    pages = None
    if hs != NULL:
        pages = {}
        for page in range(BLOCK):
            h = hs.pages + page
            row = (
                h.stamp, h.events, bool(h.flags & HISTORY_MIGRATED),
                bool(h.flags & HISTORY_REVOKED), bool(h.flags & HISTORY_PINNED), h.pin_at, h.end,
                h.throttles, h.processors, h.throttled, h.favoured - 1,
            )
            if any(row[:10]) or h.favoured:
                pages[page] = row
    return {
        "outer": b.outer,
        "resident": resident,
        "tables": list(tables),
        "duplicated": number_of(b.duplicated),
        "discarded": number_of(b.discarded),
        "chunks": chunks,
        "prefetch": (b.prefetch_last - 1, b.prefetch_faults),
        "counters": counters,
        "thrashing": (
            number_of(hs.thrashing) if hs != NULL else 0,
            number_of(hs.pinned) if hs != NULL else 0,
            b.processor - 1, b.stamp, b.last_thrashing, b.resets, b.pins, pages,
        ),
    }
