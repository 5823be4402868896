# cython: language_level=3, freethreading_compatible=True
"""The KFD SVM driver's decisions, compiled; ``reference.KfdReference`` is its twin.

Owns the ranges, VRAM objects and pending work of one process. Every function
mirrors one of the reference, in the same order, so that the two can be read
side by side; section numbers are those of ``docs/explain/kfd.md``. Errors are
negative errnos. One thread at a time uses a process, and the processes of one
node.
"""
cimport cython
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from .._evict cimport (
    evict_free,
    evict_insert,
    evict_nbytes,
    evict_new,
    evict_remove,
    evict_reserve,
    evict_touch,
    evict_victim,
    order_of,
)
from .._faults cimport (
    EVENT_EVICT_OBJECT,
    EVENT_FILTER,
    EVENT_HANG,
    EVENT_QUEUE,
    EVENT_WARN,
    MAX_GPUS,
    REASON_BUS_ERROR,
    REASON_DRAINING,
    REASON_DUPLICATE,
    REASON_MAP_FAILED,
    REASON_MIGRATE_FAILED,
    REASON_MM_GONE,
    REASON_NEVER_RESOLVES,
    REASON_NO_ACCESS,
    REASON_NO_MAPPING,
    REASON_NO_MEMORY,
    REASON_NO_NODE,
    REASON_NO_PROCESS,
    REASON_NO_RANGE,
    REASON_NO_SVM,
    REASON_OK,
    REASON_PERMISSION,
    REASON_RETRY_LATER,
    REASON_SKIP_RECOVER,
    REASON_STALE,
    REASON_VMA_GONE,
    REASON_XNACK_OFF,
    TRIGGER_CPU_FAULT,
    TRIGGER_EVICTION,
    TRIGGER_GPU_FAULT,
    TRIGGER_PREFETCH,
    UNMAP_FROM_CPU,
    UNMAP_NOTIFY,
    UNMAP_NOTIFY_MIGRATE,
    costs_t,
    counters_t,
    engine_free,
    engine_log,
    engine_map,
    engine_move_in,
    engine_move_out,
    engine_moved,
    engine_new,
    engine_unmap,
    fault_window,
    processor_t,
    transfer_ns,
    trigger_t,
    unmap_t,
)
from .._process cimport (
    AGE_USED,
    KEEPS,
    NOWHERE,
    Node,
    Process,
    age_of,
    arrival_t,
    location_id,
    mapping_code,
    mapping_row,
    node_make_room,
    ops_t,
    process_join,
    touch_t,
)
from .._ranges cimport (
    range_entry_t,
    ranges_assign,
    ranges_begin,
    ranges_check,
    ranges_commit,
    ranges_find,
    ranges_free,
    ranges_nbytes,
    ranges_new,
    ranges_next,
    ranges_rollback,
    ranges_value,
    ranges_values_many,
    ranges_work,
    ranges_work_t,
)
from .._residency cimport (
    GROUP_BLOCKS,
    MASK_MAPPED,
    MASK_SYSTEM,
    MASK_VRAM,
    NO_BLOCK,
    ask_ahead,
    block_t,
    ctz64,
    find_block,
    find_line,
    find_table,
    is_usual,
    line_t,
    lines_t,
    popcount64,
    res_any_present,
    res_ask,
    res_check,
    res_count,
    res_count_movable,
    res_count_vram,
    res_drop,
    res_first_foreign,
    res_first_unmapped,
    res_grant,
    res_grow,
    res_join,
    res_lines,
    res_nbytes,
    res_part,
    res_pin,
    res_populate,
    res_reserve,
    res_resize,
    res_unpin_all,
    res_where,
    span_word,
    take_joint,
    take_pages,
    usual_header,
    usual_t,
    residency_t,
    room_t,
)
from .._types cimport (
    E_ACCES,
    E_ADDRINUSE,
    E_AGAIN,
    E_DEADLK,
    E_EXIST,
    E_FAULT,
    E_INVAL,
    E_IO,
    E_LOOP,
    E_NOENT,
    E_NOMEM,
    E_NOSPC,
    E_OVERFLOW,
    E_PERM,
    KIND_FAULT,
    KIND_PREFETCH,
    outcome_t,
    record_t,
)

from .._faults import REASONS as _REASONS
from ..errors import InvalidArgumentError, OutOfMemoryError
from .kernels import kernel_rules
from .outcome import Outcome

cdef enum:
    DUPLICATE_WINDOW_NS = 2000000
    RESTORE_DELAY_NS = 1000000
    MIGRATION_ROUNDS = 3
    RETRIES = 16           # deliveries of one access without progress before it is fatal
    BLOCK = 512
    LINE = 64              # bytes of a cache line
    # Ranges up to which what is read stays in the cache, and asking for it ahead is lost: a
    # fault reads four times what a mapped touch does.
    CACHED_FAULTS = 1024
    CACHED_TOUCHES = 16384
    LOCATION_UNDEFINED = 0xffffffffU
    GRANULARITY_MAX = 0x3f
    VMA_READ_WRITE = 1 + 3 # code of an anonymous mapping, read and write
    DEFAULT_FLAGS = 3
    FLAG_GPU_RO = 8
    FLAG_ALWAYS_MAPPED = 0x40

# How the short way ends.
cdef enum short_end:
    SHORT_NOT              # not this way
    SHORT_SERVED
    SHORT_DUPLICATE
    SHORT_DENIED           # no access

cdef struct short_t:
    uint64_t first         # window
    uint64_t last
    uint32_t moved         # pages
    uint8_t best           # processor code

# What faults of one GPU on the short way read and add up, for the compiler to keep at hand:
# through the process it could be changed by every store.
cdef struct run_t:
    range_t* ranges
    attrs_t* sets
    residency_t* res
    block_t* blocks        # of res
    line_t* lines
    const costs_t* costs
    usual_t usual          # header of most blocks
    uint64_t vma_first     # the last mapping looked up, where it is plain; else nothing lies in it
    uint64_t vma_last
    uint64_t now           # modelled time, and the cost of the present operation so far
    uint64_t cost_ns
    uint64_t maps          # faults served
    uint64_t in_place      # of them, those whose pages stay in system memory
    uint64_t still         # and those whose pages were there already
    uint64_t pages         # moved
    uint64_t unmaps

# A mapping's code in the map of VMAs: 1 + (protection | kind << 2).
cdef enum vma_bits:
    PROT_READ = 1
    PROT_WRITE = 2
    KIND_ANON = 0
    KIND_FILE = 1
    KIND_HEAP = 2
    KIND_STACK = 3
    KIND_IO = 4
    KIND_PFNMAP = 5

STATES = ("", "no_process", "no_node", "mm_gone", "drain_pagefaults")

# A growing list of range numbers.
cdef struct list_t:
    uint32_t* v
    uint32_t n
    uint32_t cap


cdef inline bint more(void** array, uint32_t* cap, uint64_t want, size_t item) noexcept nogil:
    return want <= cap[0] or res_grow(array, cap, want, item)


cdef inline bint list_push(list_t* a, uint32_t value) noexcept nogil:
    if not more(<void**>&a.v, &a.cap, <uint64_t>a.n + 1, sizeof(uint32_t)):
        return False
    a.v[a.n] = value
    a.n += 1
    return True


# ---- records ----------------------------------------------------------------------------

cdef inline attrs_t* attrs_of(kfd_t* p, uint32_t node) noexcept nogil:
    return p.sets + p.ranges[node].attrs


cdef inline uint64_t present_ns(kfd_t* p) noexcept nogil:
    return p.engine.now + p.engine.cost_ns


cdef inline void settle(kfd_t* p) noexcept nogil:
    """What the operation cost so far has passed."""
    p.engine.now += p.engine.cost_ns
    p.engine.cost_ns = 0


cdef bint kfd_grow_ranges(kfd_t* p, uint64_t want) noexcept nogil:
    """Room for *want* range records, each on a cache line of its own."""
    cdef uint64_t cap = <uint64_t>p.cap_ranges + (p.cap_ranges >> 2) + 16
    cdef size_t shift = <char*>p.ranges - <char*>p.raw_ranges, now
    cdef void* moved
    cdef char* raw
    if cap < want:
        cap = want
    if cap > 0xfffffff0U:
        return False
    moved = res_resize(p.links, cap * sizeof(links_t))
    if moved == NULL:
        return False
    p.links = <links_t*>moved
    raw = <char*>res_resize(p.raw_ranges, cap * sizeof(range_t) + LINE)
    if raw == NULL:
        return False
    now = (LINE - (<uintptr_t>raw & (LINE - 1))) & (LINE - 1)
    if now != shift and p.nranges:
        memmove(raw + now, raw + shift, <size_t>p.nranges * sizeof(range_t))
    p.raw_ranges = raw
    p.ranges = <range_t*>(raw + now)
    p.cap_ranges = <uint32_t>cap
    return True


cdef bint reserve_ranges(kfd_t* p, uint64_t count) noexcept nogil:
    """Room for new records and their rare state, so that what follows cannot fail."""
    if p.nranges + count > p.cap_ranges and not kfd_grow_ranges(p, p.nranges + count):
        return False
    return more(<void**>&p.sides, &p.cap_sides, p.nsides + count, sizeof(side_t))


cdef uint32_t new_range(kfd_t* p, uint64_t start, uint64_t last) noexcept nogil:
    """A record with default attributes; room is reserved."""
    cdef uint32_t node = p.free_range
    cdef range_t* r
    if node:
        p.free_range = p.links[node].next
    else:
        node = p.nranges
        p.nranges += 1
    r = p.ranges + node
    memset(r, 0, sizeof(range_t))
    memset(p.links + node, 0, sizeof(links_t))
    r.start = start
    r.last = last
    r.attrs = p.default_set
    p.live_ranges += 1
    return node


cdef void free_range(kfd_t* p, uint32_t node) noexcept nogil:
    cdef uint32_t side = p.ranges[node].side
    if side:
        p.sides[side].next_child = p.free_side
        p.free_side = side
    p.ranges[node].side = 0
    p.links[node].next = p.free_range
    p.free_range = node
    p.live_ranges -= 1


cdef side_t* side_of(kfd_t* p, uint32_t node) noexcept nogil:
    """The rare state, made when missing; room is reserved."""
    cdef uint32_t side = p.ranges[node].side
    if side == 0:
        side = p.free_side
        if side:
            p.free_side = p.sides[side].next_child
        else:
            side = p.nsides
            p.nsides += 1
        memset(p.sides + side, 0, sizeof(side_t))
        p.ranges[node].side = side
    return p.sides + side


cdef inline uint8_t pending_of(kfd_t* p, uint32_t node) noexcept nogil:
    return p.sides[p.ranges[node].side].pending


cdef inline bint is_child(kfd_t* p, uint32_t node) noexcept nogil:
    return p.sides[p.ranges[node].side].is_child


cdef inline uint32_t first_child(kfd_t* p, uint32_t node) noexcept nogil:
    return p.sides[p.ranges[node].side].first_child


cdef inline uint32_t next_child(kfd_t* p, uint32_t node) noexcept nogil:
    return p.sides[p.ranges[node].side].next_child


cdef void list_append(kfd_t* p, uint32_t node) noexcept nogil:
    p.links[node].prev = p.list_tail
    p.links[node].next = 0
    if p.list_tail:
        p.links[p.list_tail].next = node
    else:
        p.list_head = node
    p.list_tail = node
    p.ranges[node].bits |= RANGE_LINKED


cdef void list_remove(kfd_t* p, uint32_t node) noexcept nogil:
    cdef links_t* l = p.links + node
    if l.prev:
        p.links[l.prev].next = l.next
    else:
        p.list_head = l.next
    if l.next:
        p.links[l.next].prev = l.prev
    else:
        p.list_tail = l.prev
    p.ranges[node].bits &= ~RANGE_LINKED


# ---- attribute sets ---------------------------------------------------------------------

cdef int gpu_index(kfd_t* p, uint32_t location) noexcept nogil:
    cdef uint32_t i
    for i in range(p.ngpus):
        if p.gpus[i].id == location:
            return <int>i
    return -1


cdef void decide(kfd_t* p, attrs_t* a) noexcept nogil:
    """Best restore location by faulting GPU (section 10.1), once a set."""
    cdef uint32_t g
    cdef int preferred = gpu_index(p, a.preferred)
    for g in range(p.ngpus):
        if p.gpus[g].prefers_system or a.preferred == 0:
            a.best[g] = 0
        elif preferred >= 0 and (p.gpus[g].reach >> preferred & 1):
            a.best[g] = <uint8_t>(1 + preferred)
        elif a.access >> g & 1:
            a.best[g] = <uint8_t>(1 + g)
        elif a.aip >> g & 1:
            a.best[g] = BEST_BY_ACTUAL
        else:
            a.best[g] = BEST_NONE
        a.plain[g] = a.best[g]
        if a.best[g] != BEST_NONE and (
            a.best[g] and a.best[g] != 1 + g or a.flags & (FLAG_ALWAYS_MAPPED | FLAG_GPU_RO)
        ):
            a.plain[g] = PLAIN_NOT


cdef inline uint32_t mix(uint32_t h, uint64_t v) noexcept nogil:
    v = (v ^ h) * <uint64_t>0x9E3779B97F4A7C15U
    return <uint32_t>(v ^ v >> 32)


cdef bint reserve_sets(kfd_t* p, uint64_t count) noexcept nogil:
    return more(<void**>&p.sets, &p.cap_sets, p.nsets + count, sizeof(attrs_t))


cdef uint32_t intern(kfd_t* p, attrs_t* a) noexcept nogil:
    """Number of the set with these attributes; room is reserved."""
    cdef uint32_t h = mix(0, a.preferred), i
    cdef attrs_t* s
    h = mix(h, a.prefetch)
    h = mix(h, a.flags)
    h = mix(h, a.granularity)
    h = mix(h, a.access)
    h = mix(h, a.aip)
    i = p.set_buckets[h & 255]
    while i:
        s = p.sets + i
        if (
            s.hash == h
            and s.preferred == a.preferred
            and s.prefetch == a.prefetch
            and s.flags == a.flags
            and s.granularity == a.granularity
            and s.access == a.access
            and s.aip == a.aip
        ):
            return i
        i = s.next
    i = p.nsets
    p.nsets += 1
    p.sets[i] = a[0]
    p.sets[i].hash = h
    p.sets[i].next = p.set_buckets[h & 255]
    p.set_buckets[h & 255] = i
    decide(p, p.sets + i)
    return i


cdef int set_defaults(kfd_t* p) noexcept nogil:
    """Attributes of a new range in the present XNACK mode."""
    cdef attrs_t a
    if not reserve_sets(p, 1):
        return -E_NOMEM
    memset(&a, 0, sizeof(a))
    a.preferred = LOCATION_UNDEFINED
    a.prefetch = LOCATION_UNDEFINED
    a.flags = DEFAULT_FLAGS
    a.granularity = p.granularity
    a.access = p.supported if p.xnack else 0
    p.default_set = intern(p, &a)
    return 0


# ---- CPU mappings -----------------------------------------------------------------------

cdef inline uint32_t vma_at(kfd_t* p, uint64_t page, uint64_t* last) noexcept nogil:
    """Code of the mapping at the page, 0 without one; *last = its last page."""
    cdef range_entry_t e
    if not p.vma_first <= page <= p.vma_last:
        ranges_find(p.vmas, page, &e)
        p.vma_first = e.first
        p.vma_last = e.last
        p.vma_code = e.value
        p.vma_plain = e.value == 1 + (PROT_READ | PROT_WRITE)
    last[0] = p.vma_last
    return p.vma_code


cdef inline void forget_vma(kfd_t* p) noexcept nogil:
    p.vma_first = 1
    p.vma_last = 0


cdef inline bint vma_readable(uint32_t code) noexcept nogil:
    return (code - 1) & PROT_READ


cdef inline bint vma_writable(uint32_t code) noexcept nogil:
    return (code - 1) & PROT_WRITE != 0


cdef inline uint32_t vma_kind(uint32_t code) noexcept nogil:
    return (code - 1) >> 2


cdef inline bint vma_device(uint32_t code) noexcept nogil:
    return vma_kind(code) >= KIND_IO


cdef int kfd_mmap(kfd_t* p, uint64_t first, uint64_t last, uint32_t code) noexcept nogil:
    cdef range_entry_t e
    if ranges_next(p.vmas, first, &e) and e.first <= last:
        return -E_EXIST
    forget_vma(p)
    return -E_NOMEM if ranges_assign(p.vmas, first, last, code) else 0


# ---- VRAM objects (sections 2, 15, 19) --------------------------------------------------

cdef void bo_unlist(kfd_t* p, uint32_t node) noexcept nogil:
    cdef range_t* r = p.ranges + node
    if not r.bits & RANGE_ON_BO:
        return
    if r.bo_prev:
        p.ranges[r.bo_prev].bo_next = r.bo_next
    else:
        p.bos[r.bo].first = r.bo_next
    if r.bo_next:
        p.ranges[r.bo_next].bo_prev = r.bo_prev
    r.bits &= ~RANGE_ON_BO


cdef void bo_enlist(kfd_t* p, uint32_t node) noexcept nogil:
    """Enter the object's list at its head."""
    cdef range_t* r = p.ranges + node
    r.bo_prev = 0
    r.bo_next = p.bos[r.bo].first
    if r.bo_next:
        p.ranges[r.bo_next].bo_prev = node
    p.bos[r.bo].first = node
    r.bits |= RANGE_ON_BO


cdef void bo_reap(kfd_t* p, uint32_t number) noexcept nogil:
    """An object that no range and no page refers to dies; pointers to it die too."""
    cdef bo_t* bo = p.bos + number
    cdef uint32_t node
    if not bo.alive or bo.holders or bo.pages:
        return
    node = bo.first
    while node:
        p.ranges[node].bits &= ~RANGE_ON_BO
        p.ranges[node].bo = 0
        node = p.ranges[node].bo_next
    if bo.stray:  # an eviction of it failed half-way, which is rare
        for node in range(1, p.nranges):
            if p.ranges[node].bo == number:
                p.ranges[node].bo = 0
    p.node.used[bo.gpu] -= bo.npages
    if p.order != NULL:
        evict_remove(p.order, number)
        p.taken[bo.gpu] -= bo.npages
    if bo.prev:
        p.bos[bo.prev].next = bo.next
    else:
        p.first_bo = bo.next
    if bo.next:
        p.bos[bo.next].prev = bo.prev
    else:
        p.last_bo = bo.prev
    bo.alive = False
    bo.next = p.free_bo
    p.free_bo = number


cdef void bo_drop(kfd_t* p, uint32_t node) noexcept nogil:
    """Give the reference back; the pointer stays until the object dies."""
    cdef range_t* r = p.ranges + node
    if r.bits & RANGE_HAS_BO:
        r.bits &= ~RANGE_HAS_BO
        p.bos[r.bo].holders -= 1
        bo_reap(p, r.bo)


cdef void bo_forget(kfd_t* p, uint32_t node) noexcept nogil:
    bo_unlist(p, node)
    p.ranges[node].bo = 0


cdef void bo_pages_left(kfd_t* p, uint32_t node, uint64_t pages) noexcept nogil:
    """Pages of the range's object are gone."""
    if pages and p.ranges[node].bo:
        p.bos[p.ranges[node].bo].pages -= pages
        bo_reap(p, p.ranges[node].bo)


cdef void release(kfd_t* p, uint32_t node) noexcept nogil:
    """A range goes away for good."""
    bo_drop(p, node)
    bo_forget(p, node)
    free_range(p, node)


cdef void bo_evict(kfd_t* p, uint32_t number) noexcept nogil:
    """Memory pressure: every range on the object's list leaves it (section 15)."""
    cdef uint32_t node, following, _round
    p.engine.counters.evictions += 1
    p.engine.cost_ns += p.engine.costs.evict_ns
    if p.rules.reports_eviction:
        engine_log(p.engine, EVENT_EVICT_OBJECT, p.bos[number].npages, 0,
                   <uint8_t>(1 + p.bos[number].gpu), 0, 0,
                   p.gpus[p.bos[number].gpu].device)
    node = p.bos[number].first
    p.bos[number].first = 0
    following = node
    while following:
        p.ranges[following].bits &= ~RANGE_ON_BO
        following = p.ranges[following].bo_next
    while node:
        following = p.ranges[node].bo_next
        for _round in range(MIGRATION_ROUNDS):
            if p.ranges[node].actual == 0:
                break
            if vram_to_ram(p, node, p.ranges[node].start, p.ranges[node].last, TRIGGER_EVICTION):
                break
        if p.ranges[node].actual == 0:
            bo_drop(p, node)
            p.ranges[node].bo = 0
        elif p.ranges[node].bo:
            p.bos[number].stray = True
        node = following
    if p.bos[number].alive:
        engine_log(p.engine, EVENT_WARN, 0, 0, 0, 0, 0, 0)


cdef uint32_t oldest_bo(kfd_t* p, uint32_t gpu) noexcept nogil:
    """The object that goes next: the oldest, or what another order of eviction says."""
    cdef uint32_t number = p.first_bo
    if p.order != NULL:
        return evict_victim(p.order, gpu)
    while number and p.bos[number].gpu != gpu:
        number = p.bos[number].next
    return number


cdef uint64_t oldest_age(void* state, uint32_t gpu) noexcept nogil:
    cdef kfd_t* p = <kfd_t*>state
    cdef uint32_t number = oldest_bo(p, gpu)
    if number == 0:
        return KEEPS
    return age_of(
        AGE_USED, p.bos[number].sequence if p.order == NULL else p.order.units[number].stamp
    )


cdef void kfd_take_bo(kfd_t* p, uint32_t number) noexcept nogil:
    if p.order != NULL:
        evict_insert(p.order, number, p.bos[number].gpu, p.bos[number].sequence)
        p.taken[p.bos[number].gpu] += p.bos[number].npages


cdef bint evict_oldest(void* state, uint32_t gpu) noexcept nogil:
    cdef kfd_t* p = <kfd_t*>state
    cdef uint32_t number = oldest_bo(p, gpu)
    bo_evict(p, number)
    return not p.bos[number].alive


cdef int make_room(kfd_t* p, uint32_t gpu, uint64_t size) noexcept nogil:
    """Evict the node's oldest objects on a GPU, one by one, until *size* pages fit."""
    if p.order != NULL:
        if size > p.quota:
            return -E_NOMEM
        while p.taken[gpu] + size > p.quota:
            if not p.evict_on_full or oldest_bo(p, gpu) == 0 or not evict_oldest(p, gpu):
                return -E_NOMEM
    if p.node.used[gpu] + size <= p.gpus[gpu].vram_pages:
        return 0
    if not p.evict_on_full:
        return -E_NOMEM
    return node_make_room(p.node, p.engine, gpu, size, p.gpus[gpu].vram_pages)


cdef inline bint reserve_bos(kfd_t* p, uint64_t count) noexcept nogil:
    return more(<void**>&p.bos, &p.cap_bos, p.nbos + count, sizeof(bo_t)) and (
        p.order == NULL or evict_reserve(p.order, p.nbos + count, p.ngpus)
    )


cdef inline bo_t* bo_make(kfd_t* p, uint32_t node, uint32_t gpu, uint64_t size) noexcept nogil:
    """A new object of the range, held by it; room for it is reserved."""
    cdef range_t* r = p.ranges + node
    cdef uint32_t number = p.free_bo
    cdef bo_t* bo
    if number:
        bo = p.bos + number
        p.free_bo = bo.next
        ask_ahead(p.bos + p.free_bo)  # the next fault takes that one
    else:
        number = p.nbos
        p.nbos += 1
        bo = p.bos + number
    bo.npages = size
    bo.pages = 0
    bo.sequence = p.node.sequence
    p.node.sequence += 1
    bo.holders = 1
    bo.first = node
    bo.gpu = <uint8_t>gpu
    bo.alive = True
    bo.stray = False
    bo.prev = p.last_bo
    bo.next = 0
    if p.last_bo:
        p.bos[p.last_bo].next = number
    else:
        p.first_bo = number
    p.last_bo = number
    p.node.used[gpu] += size
    r.bo = number
    r.bo_prev = 0
    r.bo_next = 0
    r.bits |= RANGE_HAS_BO | RANGE_ON_BO
    return bo


cdef int bo_get(kfd_t* p, uint32_t node, uint32_t gpu, uint64_t size) noexcept nogil:
    """A reference to an object on the GPU: the living one that the range knows, or a new one.

    Room for one is reserved.
    """
    cdef range_t* r = p.ranges + node
    cdef int error
    if r.bo and p.bos[r.bo].gpu == gpu:
        if p.order != NULL:
            # The driver sees faults and moves, never the touches of mapped pages.
            evict_touch(p.order, r.bo, p.node.sequence)
            p.node.sequence += 1
        if not r.bits & RANGE_HAS_BO:
            r.bits |= RANGE_HAS_BO
            p.bos[r.bo].holders += 1
        return 0
    bo_drop(p, node)
    bo_forget(p, node)
    if p.fail_vram:
        p.fail_vram -= 1
        return -E_NOMEM
    error = make_room(p, gpu, size)
    if error:
        return error
    bo_make(p, node, gpu, size)
    if p.order != NULL:
        kfd_take_bo(p, r.bo)
    return 0


cdef inline bo_t* room_for_bo(kfd_t* p, uint32_t node, uint32_t gpu) noexcept nogil:
    """The object on the GPU that the range holds now; NULL where one would not fit as it is."""
    cdef range_t* r = p.ranges + node
    cdef uint64_t size
    if r.bits & RANGE_HAS_BO:
        return p.bos + r.bo if p.bos[r.bo].gpu == gpu else NULL
    size = r.last - r.start + 1
    if p.node.used[gpu] + size > p.gpus[gpu].vram_pages:
        return NULL
    if p.free_bo and r.bo == 0 and p.fail_vram == 0:
        return bo_make(p, node, gpu, size)
    if reserve_bos(p, 1) and bo_get(p, node, gpu, size) == 0:
        return p.bos + r.bo
    return NULL


# ---- notifier (sections 11, 13) ---------------------------------------------------------

cdef inline uint64_t mapped_gpus(kfd_t* p, uint32_t node) noexcept nogil:
    if p.rules.mapped_per_gpu:
        return p.ranges[node].mapped
    return attrs_of(p, node).access | attrs_of(p, node).aip if p.ranges[node].mapped else 0


cdef void unmap_gpus(kfd_t* p, uint32_t node, uint64_t gpus, uint64_t first, uint64_t last,
                     unmap_t why) noexcept nogil:
    cdef range_t* r = p.ranges + node
    engine_unmap(p.engine, gpus, first, last, why)
    if first == r.start and last == r.last:
        if p.rules.mapped_per_gpu:
            r.mapped &= ~gpus
        else:
            r.mapped = 0
            r.bits &= ~RANGE_DONE


cdef inline void notify_piece(kfd_t* p, uint32_t node, uint64_t first, uint64_t last,
                              unmap_t why) noexcept nogil:
    cdef range_t* r = p.ranges + node
    if r.start > first:
        first = r.start
    if r.last < last:
        last = r.last
    if first <= last:
        unmap_gpus(p, node, mapped_gpus(p, node), first, last, why)


cdef void notify_node(kfd_t* p, uint32_t node, uint64_t first, uint64_t last,
                      unmap_t why) noexcept nogil:
    """An event other than unmap on a range of the tree (section 11)."""
    cdef uint32_t child
    cdef bint mapped
    if p.xnack and not attrs_of(p, node).flags & FLAG_ALWAYS_MAPPED:
        child = first_child(p, node)
        while child:
            notify_piece(p, child, first, last, why)
            child = next_child(p, child)
        notify_piece(p, node, first, last, why)
        return
    mapped = p.ranges[node].mapped != 0
    child = first_child(p, node)
    while child and not mapped:
        mapped = p.ranges[child].mapped != 0
        child = next_child(p, child)
    if mapped:
        p.links[node].invalid += 1
        p.evicted_ranges += 1
        if p.evicted_ranges == 1:
            p.engine.counters.queue_evictions += 1
            engine_log(p.engine, EVENT_QUEUE, 0, 0, 0, 0, 0, 0)
            p.restore_pending = True
            p.restore_ns = present_ns(p) + RESTORE_DELAY_NS


cdef void notify(kfd_t* p, uint64_t first, uint64_t last, unmap_t why) noexcept nogil:
    cdef range_entry_t e
    cdef uint64_t page = first
    while ranges_next(p.tree, page, &e) and e.first <= last:
        notify_node(p, e.value, first, last, why)
        if e.last >= last:
            return
        page = e.last + 1


cdef inline void notify_migration(kfd_t* p, uint32_t node, uint64_t first,
                                  uint64_t last) noexcept nogil:
    if is_child(p, node):
        notify(p, first, last, UNMAP_NOTIFY_MIGRATE)
    else:
        notify_node(p, node, first, last, UNMAP_NOTIFY_MIGRATE)


cdef void take_checkpoints(kfd_t* p) noexcept nogil:
    cdef uint64_t gpus = p.supported & p.ring_set
    cdef uint32_t gpu
    while gpus:
        gpu = ctz64(gpus)
        gpus &= gpus - 1
        p.checkpoint_ts[gpu] = p.ring_ts[gpu]
        p.plain_gpus &= ~(<uint64_t>1 << gpu)


# ---- splitting (section 6.2) ------------------------------------------------------------

cdef uint32_t clone(kfd_t* p, uint32_t node) noexcept nogil:
    """All of a range but its time stamp and its invalidations; room is reserved."""
    cdef uint32_t copy = new_range(p, p.ranges[node].start, p.ranges[node].last)
    cdef range_t* r = p.ranges + node
    cdef range_t* c = p.ranges + copy
    c.mapped = r.mapped
    c.vram_pages = r.vram_pages
    c.attrs = r.attrs
    c.actual = r.actual
    c.bits = r.bits & RANGE_DONE
    if r.bits & RANGE_HAS_BO:
        c.bo = r.bo
        c.bits |= RANGE_HAS_BO
        p.bos[c.bo].holders += 1
        bo_enlist(p, copy)
    return copy


cdef void recount(kfd_t* p, uint32_t node) noexcept nogil:
    cdef range_t* r = p.ranges + node
    # Pages in GPU memory are only where an object is held.
    r.vram_pages = 0
    if r.bits & RANGE_HAS_BO:
        r.vram_pages = <uint32_t>res_count_vram(p.engine.res, r.start, r.last)


cdef uint32_t cut_head(kfd_t* p, uint32_t node, uint64_t start) noexcept nogil:
    """Cut off what lies before *start*; the range keeps the rest."""
    cdef uint32_t piece = clone(p, node)
    p.ranges[piece].last = start - 1
    p.ranges[node].start = start
    recount(p, piece)
    recount(p, node)
    return piece


cdef uint32_t cut_tail(kfd_t* p, uint32_t node, uint64_t last) noexcept nogil:
    """Cut off what lies behind *last*; the range keeps the rest."""
    cdef uint32_t piece = clone(p, node)
    p.ranges[piece].start = last + 1
    p.ranges[node].last = last
    recount(p, piece)
    recount(p, node)
    return piece


cdef bint cuts_huge(kfd_t* p, uint32_t node, uint64_t start, bint head) noexcept nogil:
    """A cut at *start* breaks a 2 MiB mapping."""
    cdef uint64_t low = (p.ranges[node].start + BLOCK - 1) // BLOCK * BLOCK
    cdef uint64_t high = (p.ranges[node].last + (p.rules.remap_test == 2)) // BLOCK * BLOCK
    # 6.12 looks at the last page of a head, not at the first page behind it.
    cdef uint64_t border = start - 1 if head and p.rules.remap_test == 1 else start
    return p.rules.remap_test and low < start < high and border % BLOCK != 0


# ---- room -------------------------------------------------------------------------------

cdef int ask_room(kfd_t* p, uint64_t first, uint64_t last, bint moves, uint64_t gpus,
                  room_t* room) noexcept nogil:
    """Ask for what moving the pages to GPU memory and mapping them on the GPUs can need.

    Nothing below allocates page masks: an operation asks for all of its room
    before it changes anything.
    """
    cdef uint64_t page = first, end
    cdef uint32_t code, lines
    while moves or gpus:
        code = vma_at(p, page, &end)
        if code == 0:
            break
        if end > last:
            end = last
        if not vma_device(code):
            lines = 2 if moves else 0
            if gpus and vma_readable(code):
                lines += 1 + 2 * popcount64(gpus)
            if lines and res_ask(p.engine.res, page, end, lines, room):
                return -E_NOMEM
        if end == last:
            break
        page = end + 1
    return 0


cdef int reserve_room(kfd_t* p, uint64_t first, uint64_t last, bint moves,
                      uint64_t gpus) noexcept nogil:
    cdef room_t room
    room.lines = room.headers = 0
    if moves and not reserve_bos(p, 1):
        return -E_NOMEM
    if ask_room(p, first, last, moves, gpus, &room) or res_grant(p.engine.res, &room):
        return -E_NOMEM
    return 0


# ---- migration (section 10.4) -----------------------------------------------------------

cdef int vram_to_ram(kfd_t* p, uint32_t node, uint64_t first, uint64_t last,
                     trigger_t trigger) noexcept nogil:
    cdef range_t* r = p.ranges + node
    cdef uint64_t page = first, end, count, moved = 0
    cdef uint32_t gpu, code
    cdef int error = 0
    if r.actual == 0:
        return 0
    gpu = r.actual - 1
    while page <= last:
        code = vma_at(p, page, &end)
        if code == 0:
            error = -E_FAULT
            break
        if end > last:
            end = last
        notify_migration(p, node, page, end)
        count = 0
        if p.fail_copy:
            p.fail_copy -= 1
            error = -E_IO
            engine_moved(p.engine, page, end, <uint8_t>(1 + gpu), 0, trigger, 0)
        else:
            engine_move_out(p.engine, gpu, p.gpus[gpu].owner_peers, page, end, trigger, &count)
        moved += count
        if error or end == last:
            break
        page = end + 1
    r.vram_pages -= <uint32_t>moved
    bo_pages_left(p, node, moved)
    if r.vram_pages == 0 and r.bits & RANGE_HAS_BO:
        r.actual = 0
        bo_drop(p, node)
    return error


cdef int move_in(kfd_t* p, uint32_t node, uint32_t gpu, uint32_t code, uint64_t first,
                 uint64_t last, trigger_t trigger, uint64_t* moved) noexcept nogil:
    """One mapping's piece of a move to GPU memory; room is reserved."""
    cdef uint64_t absent
    cdef int error = 0
    moved[0] = 0
    if vma_device(code):
        error = -E_INVAL
    else:
        notify_migration(p, node, first, last)
        if p.fail_copy:
            p.fail_copy -= 1
            error = -E_IO
    if error or vma_kind(code) == KIND_FILE:
        engine_moved(p.engine, first, last, 0, <uint8_t>(1 + gpu), trigger, 0)
        return error
    if p.ranges[node].mapped or p.ranges[node].side:
        # Pages made on the way raise a second event; nobody sees it unless it is mapped.
        res_count_movable(p.engine.res, first, last, &absent)
        if absent <= last:
            notify_migration(p, node, absent, last)
    engine_move_in(p.engine, gpu, first, last, trigger, moved)
    return 0


cdef int ram_to_vram(kfd_t* p, uint32_t node, uint32_t gpu, uint64_t first, uint64_t last,
                     trigger_t trigger) noexcept nogil:
    cdef range_t* r = p.ranges + node
    cdef uint64_t size = r.last - r.start + 1, page = first, end, count, moved = 0
    cdef uint32_t code
    cdef int error
    if p.rules.reserves_vram:
        if p.fail_limit:
            p.fail_limit -= 1
            return -E_NOSPC
        if size > p.gpus[gpu].vram_pages:
            return -E_NOSPC
    error = bo_get(p, node, gpu, size)
    if error:
        return error
    while page <= last:
        code = vma_at(p, page, &end)
        if code == 0:
            break
        if end > last:
            end = last
        error = move_in(p, node, gpu, code, page, end, trigger, &count)
        moved += count
        if error or end == last:
            break
        page = end + 1
    p.bos[r.bo].pages += moved
    if moved:
        r.actual = <uint8_t>(1 + gpu)
        r.vram_pages += <uint32_t>moved
    elif r.actual == 0:
        bo_drop(p, node)
    return error


cdef int to_vram(kfd_t* p, uint32_t node, uint32_t gpu, uint64_t first, uint64_t last,
                 trigger_t trigger) noexcept nogil:
    cdef range_t* r = p.ranges + node
    cdef uint32_t _round
    cdef int error
    if r.actual != 0 and r.actual != 1 + gpu:
        for _round in range(MIGRATION_ROUNDS):
            if r.actual == 0:
                break
            error = vram_to_ram(p, node, r.start, r.last, trigger)
            if error:
                return error
        if r.actual != 0:
            return -E_DEADLK
    return ram_to_vram(p, node, gpu, first, last, trigger)


# ---- mapping (section 9) ----------------------------------------------------------------

cdef uint64_t map_set(kfd_t* p, uint32_t node) noexcept nogil:
    cdef attrs_t* a = attrs_of(p, node)
    cdef range_t* r = p.ranges + node
    cdef uint64_t targets
    if not p.xnack:
        return a.access | a.aip
    targets = a.aip
    if p.rules.mapped_per_gpu:
        targets |= r.mapped
    if r.actual and a.access >> (r.actual - 1) & 1:
        targets |= <uint64_t>1 << (r.actual - 1)
    if targets == 0 and (
        (a.flags & FLAG_ALWAYS_MAPPED and p.rules.always_mapped_maps)
        or (r.mapped and not p.rules.mapped_per_gpu)
    ):
        targets = a.access
    return targets


cdef int map_piece(kfd_t* p, uint32_t node, uint32_t code, uint64_t first, uint64_t last,
                   uint64_t targets, uint64_t owner) noexcept nogil:
    """One mapping's piece; room is reserved."""
    cdef range_t* r = p.ranges + node
    cdef uint64_t page
    cdef uint32_t gpu
    cdef bint writable, held
    if vma_device(code):
        return -E_FAULT
    held = r.bits & RANGE_HAS_BO != 0
    if (
        held
        and not owner >> p.bos[r.bo].gpu & 1
        and res_first_foreign(p.engine.res, owner, first, last, &page)
    ):
        if page > first:
            res_populate(p.engine.res, first, page - 1)
        engine_log(p.engine, EVENT_HANG, page, page, 0, 0, 0, 0)
        return -E_AGAIN
    res_populate(p.engine.res, first, last)
    if p.fail_hmm:
        p.fail_hmm -= 1
        return -E_AGAIN
    if first_child(p, node):
        return -E_AGAIN
    writable = vma_writable(code) and not attrs_of(p, node).flags & FLAG_GPU_RO
    while targets:
        gpu = ctz64(targets)
        targets &= targets - 1
        if held and not p.gpus[gpu].reach >> p.bos[r.bo].gpu & 1:
            continue
        engine_map(p.engine, gpu, first, last, writable)
        if p.rules.mapped_per_gpu:
            r.mapped |= <uint64_t>1 << gpu
    return 0


cdef int map_gpus(kfd_t* p, uint32_t node, uint64_t first, uint64_t last,
                  uint64_t targets) noexcept nogil:
    """Validate and map the pages on the GPUs; targets 0 does nothing. Room is reserved."""
    cdef range_t* r = p.ranges + node
    cdef uint64_t page = first, end, owner
    cdef uint32_t code
    cdef int error
    if targets == 0:
        return 0
    owner = p.gpus[ctz64(targets)].owner_peers
    if targets & ~owner:
        owner = 0
    while page <= last:
        code = vma_at(p, page, &end)
        if code == 0:
            return -E_FAULT
        if end > last:
            end = last
        if vma_readable(code):
            error = map_piece(p, node, code, page, end, targets, owner)
            if p.rules.mapped_per_gpu:
                if error == 0 and end == last:
                    r.bits |= RANGE_DONE
                else:
                    r.bits &= ~RANGE_DONE
            elif error == 0 and end == last:
                r.bits |= RANGE_DONE
                r.mapped = 1
            if error:
                return error
        if end == last:
            break
        page = end + 1
    r.validate_ns = present_ns(p)
    return 0


# ---- faults (section 10) ----------------------------------------------------------------

cdef uint32_t kfd_find(kfd_t* p, uint64_t page) noexcept nogil:
    """The range (or pending child) that holds the page; 0 without one."""
    cdef range_entry_t e
    cdef uint32_t child
    ranges_find(p.tree, page, &e)
    if e.value == 0 or p.ranges[e.value].start <= page <= p.ranges[e.value].last:
        return e.value
    child = first_child(p, e.value)
    while child and not p.ranges[child].start <= page <= p.ranges[child].last:
        child = next_child(p, child)
    return child


cdef bint hits_span(const span_t* spans, uint32_t n, uint64_t* first, uint64_t* last,
                    uint64_t page, bint* inside) noexcept nogil:
    """Memory of the other interface in the block: one page only, or a failure (section 12)."""
    cdef uint32_t i
    for i in range(n):
        if spans[i].first <= last[0] and first[0] <= spans[i].last:
            inside[0] = spans[i].first <= page <= spans[i].last
            first[0] = page
            last[0] = page
            return True
    return False


cdef void kfd_deliver_touch(kfd_t* p, const arrival_t* fault, uint32_t node,
                            touch_t* out) noexcept nogil:
    """One delivery, told as touches are."""
    cdef fault_t f
    cdef uint64_t before = p.engine.counters.migrated_pages
    kfd_deliver(p, fault.processor - 1, fault.page, 1 <= fault.access <= 2, fault.ts, node, &f)
    out.ret = f.ret
    out.reason = f.reason
    out.best = f.best
    out.faults = f.reason == REASON_OK
    out.duplicates = f.reason == REASON_DUPLICATE
    out.remote = 0
    out.moved = p.engine.counters.migrated_pages - before
    out.page = fault.page


cdef inline uint32_t guess_block(kfd_t* p, const range_t* r, uint64_t number) noexcept nogil:
    """Where block *number* is if the range's blocks lie in a row; 0 where that is nowhere."""
    cdef uint32_t guess = r.block + <uint32_t>(number - (r.start >> 9))
    return guess if guess < p.engine.res.nblocks else NO_BLOCK


cdef inline void keep_guess(range_t* r, uint64_t number, uint32_t block) noexcept nogil:
    """Block *number* of the range lies at *block*."""
    r.block = block - <uint32_t>(number - (r.start >> 9))


cdef inline uint32_t block_of(kfd_t* p, uint32_t node, uint64_t page) noexcept nogil:
    """The 2 MiB block of a page of the range; a good guess spares the directory."""
    cdef residency_t* res = p.engine.res
    cdef range_t* r = p.ranges + node
    cdef uint32_t block = guess_block(p, r, page >> 9)
    if block and res.blocks[block].number == page >> 9:
        return block
    block = find_block(res, page >> 9)
    keep_guess(r, page >> 9, block)
    return block


cdef inline uint32_t* ask_entry(residency_t* res, uint64_t page) noexcept nogil:
    """The directory's entry of the page's block, asked for ahead; NULL without one."""
    cdef uint32_t table = find_table(res, page >> 18)
    cdef uint32_t* entry
    if table == 0:
        return NULL
    entry = res.tables + <size_t>(table - 1) * GROUP_BLOCKS + (page >> 9) % GROUP_BLOCKS
    ask_ahead(entry)
    return entry


cdef inline void ask_lines(residency_t* res, uint32_t block) noexcept nogil:
    """The block's lines; number 0 is as good as another where there are blocks."""
    cdef block_t* b = res.blocks + block
    ask_ahead(res.lines + b.lines[0])
    ask_ahead(res.lines + b.lines[1])
    if not b.joint:
        ask_ahead(res.lines + b.lines[2])


cdef void kfd_look_ahead(kfd_t* p, const record_t* records, uint32_t n, bint faults,
                         ahead_t* a) noexcept nogil:
    cdef uint32_t i, k, wrong = 0
    cdef residency_t* res = p.engine.res
    cdef range_t* r
    cdef uint64_t pages[LOOK_AHEAD]
    cdef uint32_t* entries[LOOK_AHEAD]
    cdef uint32_t of[LOOK_AHEAD]   # records that were guessed wrong
    a.version = p.tree_version
    for i in range(n):
        pages[i] = records[i].addr >> 12
    # Each step asks for what the next one reads. One step after the other for all records is
    # faster than steps of several groups by turns.
    if not faults:
        memset(a.nodes, 0, n * sizeof(uint32_t))
        if p.live_ranges < CACHED_TOUCHES:
            return
        if res.nblocks == 1:
            return
        for i in range(n):
            entries[i] = ask_entry(res, pages[i])
        for i in range(n):
            a.blocks[i] = entries[i][0] if entries[i] != NULL else NO_BLOCK
            ask_ahead(res.blocks + a.blocks[i])
        for i in range(n):
            ask_lines(res, a.blocks[i])
        return
    ranges_values_many(p.tree, pages, n, a.nodes)
    if p.live_ranges < CACHED_FAULTS:
        for i in range(n):
            if a.nodes[i]:
                a.blocks[i] = block_of(p, a.nodes[i], pages[i])
        return
    for i in range(n):
        ask_ahead(p.ranges + a.nodes[i])
    for i in range(n):
        r = p.ranges + a.nodes[i]
        a.blocks[i] = guess_block(p, r, pages[i] >> 9)
        ask_ahead(res.blocks + a.blocks[i])
        ask_ahead(p.bos + r.bo)
    if res.nblocks == 1:
        return
    for i in range(n):
        # Where a range had no block yet, it hardly has one now: it is looked up when it is needed.
        if a.blocks[i] == NO_BLOCK or res.blocks[a.blocks[i]].number == pages[i] >> 9:
            ask_lines(res, a.blocks[i])
        elif a.nodes[i]:
            a.blocks[i] = NO_BLOCK
            entries[wrong] = ask_entry(res, pages[i])
            of[wrong] = i
            wrong += 1
    for k in range(wrong):
        if entries[k] != NULL:
            i = of[k]
            a.blocks[i] = entries[k][0]
            keep_guess(p.ranges + a.nodes[i], pages[i] >> 9, a.blocks[i])
            ask_ahead(res.blocks + a.blocks[i])


cdef inline bint fault_node(kfd_t* p, uint64_t page, uint32_t* node) noexcept nogil:
    """The tree's range at the page; False without one. Recent finds are tried first."""
    cdef uint32_t* at = p.recent + (page >> 9) % RECENT
    cdef range_t* r = p.ranges + at[0]
    if p.recent_version != p.tree_version:
        memset(p.recent, 0, sizeof(p.recent))
        p.recent_version = p.tree_version
    # One comparison for both bounds: which of them a page misses, no one can guess.
    elif at[0] and page - r.start <= r.last - r.start:
        node[0] = at[0]
        return True
    at[0] = ranges_value(p.tree, page)
    node[0] = at[0]
    return node[0] != 0


cdef uint32_t create_unregistered(kfd_t* p, uint32_t gpu, uint64_t page, bint write,
                                  int* error) noexcept nogil:
    """A fault on a page without a range (section 12)."""
    cdef range_entry_t hole
    cdef uint64_t first, last, vma_last
    cdef uint32_t code = vma_at(p, page, &vma_last), node
    cdef bint inside = False
    cdef attrs_t a
    error[0] = -E_FAULT
    if code == 0:
        return 0
    ranges_find(p.tree, page, &hole)
    if hole.value:
        return 0
    if hole.first < p.vma_first:
        hole.first = p.vma_first
    if hole.last > vma_last:
        hole.last = vma_last
    fault_window(page, p.granularity, hole.first, hole.last, &first, &last)
    if not hits_span(p.buffers, p.nbuffers, &first, &last, page, &inside):
        hits_span(p.userptrs, p.nuserptrs, &first, &last, page, &inside)
    if inside:
        return 0
    error[0] = -E_NOMEM
    if not reserve_ranges(p, 1) or not reserve_sets(p, 1):
        return 0
    # The fault goes on with the whole block where the mapping lets it: room for that too.
    if vma_readable(code) and (not write or vma_writable(code)) and (
        reserve_room(p, first, last, True, <uint64_t>1 << gpu)
    ):
        return 0
    node = new_range(p, first, last)
    p.tree_version += 1
    if ranges_assign(p.tree, first, last, node):
        free_range(p, node)
        return 0
    if vma_kind(code) == KIND_HEAP or vma_kind(code) == KIND_STACK:
        a = p.sets[p.default_set]
        a.preferred = 0
        p.ranges[node].attrs = intern(p, &a)
    list_append(p, node)
    return node


cdef int fault_migrate(kfd_t* p, uint32_t node, uint8_t best, uint64_t first, uint64_t last,
                       fault_t* out) noexcept nogil:
    """The fault's migration (section 10.3)."""
    cdef uint8_t actual = p.ranges[node].actual
    cdef int error
    if best == actual and (best == 0 or not p.rules.window_migration):
        return 0
    if best == 0:
        error = vram_to_ram(p, node, first, last, TRIGGER_GPU_FAULT)
    else:
        error = to_vram(p, node, best - 1, first, last, TRIGGER_GPU_FAULT)
        if error:
            out.vram_fallback = True
            error = 0
            actual = p.ranges[node].actual
            if actual != 0 and actual != best:
                error = vram_to_ram(p, node, first, last, TRIGGER_GPU_FAULT)
    out.migration = error == 0
    return error


cdef int fault_end(fault_t* out, int ret, uint8_t reason, bint counted) noexcept nogil:
    out.ret = ret
    out.reason = reason
    out.counted = counted
    return ret


cdef void kfd_mode(kfd_t* p) noexcept nogil:
    """For every GPU: a replay's records come from all."""
    cdef uint64_t gpus = 0
    cdef uint32_t gpu
    p.plain = False
    for gpu in range(p.ngpus):
        kfd_mode_of(p, 1 + gpu)
        gpus |= p.plain_gpus
    p.plain_gpus = gpus


cdef inline bint repeats(const range_t* r, uint64_t now) noexcept nogil:
    """A fault of the range is a duplicate: it was served a moment ago (section 10)."""
    return r.validate_ns and now < r.validate_ns + DUPLICATE_WINDOW_NS


cdef inline void run_mapping(kfd_t* p, run_t* run) noexcept nogil:
    run.vma_first = p.vma_first if p.vma_plain else 1
    run.vma_last = p.vma_last if p.vma_plain else 0


cdef inline void run_begin(kfd_t* p, uint32_t gpu, run_t* run) noexcept nogil:
    """Before faults of a GPU on the short way; till run_end the process knows nothing of them."""
    run.usual = usual_header(gpu)
    run_mapping(p, run)
    run.ranges = p.ranges
    run.sets = p.sets
    run.res = p.engine.res
    run.blocks = run.res.blocks
    run.lines = run.res.lines
    run.costs = &p.engine.costs
    run.now = p.engine.now
    run.cost_ns = p.engine.cost_ns
    run.maps = run.in_place = run.still = run.pages = run.unmaps = 0


cdef inline void run_end(kfd_t* p, const run_t* run, uint32_t gpu) noexcept nogil:
    """What the faults added up to goes to the process."""
    cdef counters_t* c = &p.engine.counters
    p.engine.now = run.now
    p.engine.cost_ns = run.cost_ns
    c.maps += run.maps
    c.migration_attempts += run.maps - run.in_place
    c.migrations += run.maps - run.in_place - run.still
    c.migrated_pages += run.pages
    c.pages_to_device += run.pages
    c.unmaps += run.unmaps
    p.engine.processors[1 + gpu].pages_in += run.pages


cdef void map_in_place(residency_t* res, uint32_t block, uint32_t gpu, uint32_t lo,
                       uint32_t hi) noexcept nogil:
    """Pages of the block that stay in system memory come into the GPU's page tables."""
    cdef uint64_t span
    cdef uint64_t* system = find_line(res, block, MASK_SYSTEM << 8)
    cdef uint64_t* mapped
    cdef uint32_t w
    res_part(res, block)
    mapped = find_line(res, block, MASK_MAPPED << 8 | gpu)
    for w in range(lo >> 6, (hi >> 6) + 1):
        span = span_word(w, lo, hi)
        system[w] |= span
        mapped[w] |= span


cdef inline uint32_t fault_short(kfd_t* p, run_t* run, uint32_t node, uint32_t gpu, uint64_t page,
                                 uint32_t block, short_t* out) noexcept nogil:
    """The common fault in one pass over one cache line each: same result as the long way.

    Common: a settled range, pages that belong to the faulting GPU or stay in system
    memory, a window inside one 2 MiB block (*block*, or NO_BLOCK where that is to be
    looked up) that nobody else has mapped or holds. All else is SHORT_NOT, with nothing
    changed but, at most, a reference to an object. *page* is in the tree's interval of
    *node*, and so in a settled range.
    """
    cdef range_t* r = run.ranges + node
    cdef const attrs_t* a = run.sets + r.attrs
    cdef block_t* b
    cdef bo_t* bo
    cdef uint64_t first, last, end, absent = 0
    cdef uint64_t bit = <uint64_t>1 << gpu
    cdef uint32_t moved = 0, unmaps
    cdef uint8_t best = a.plain[gpu]
    cdef bint usual
    cdef lines_t l
    if r.side or r.mapped & ~bit:
        return SHORT_NOT
    if repeats(r, run.now):
        return SHORT_DUPLICATE
    if best >= PLAIN_NOT:
        if best == BEST_NONE and run.vma_first <= page <= run.vma_last:
            return SHORT_DENIED
        return SHORT_NOT
    if r.actual and r.actual != best:
        return SHORT_NOT
    fault_window(page, a.granularity, r.start, r.last, &first, &last)
    if (first ^ last) >> 9:
        return SHORT_NOT
    if block == NO_BLOCK:
        block = block_of(p, node, page)
        if block == NO_BLOCK:
            return SHORT_NOT
    if first < run.vma_first or last > run.vma_last:
        vma_at(p, page, &end)
        run_mapping(p, run)
        if first < run.vma_first or last > run.vma_last:
            return SHORT_NOT
    b = run.blocks + block
    usual = is_usual(b, &run.usual)
    if not usual:
        res_lines(run.res, block, gpu, &l)
        # A block with a line of GPU memory has one of system memory.
        if l.other or l.mapped == NULL or l.system == NULL or best and l.vram == NULL:
            return SHORT_NOT
    if best == 0:
        if r.bits & RANGE_HAS_BO:
            return SHORT_NOT
        map_in_place(run.res, block, gpu, first & 511, last & 511)
        run.in_place += 1
    else:
        bo = room_for_bo(p, node, gpu)
        if bo == NULL:
            return SHORT_NOT
        if usual:
            moved = take_joint(run.lines[b.lines[0]].w, run.lines[b.lines[1]].w,
                               first & 511, last & 511, &absent)
        else:
            moved = take_pages(l.system, l.vram, l.mapped, first & 511, last & 511, &absent)
            res_join(run.res, block)
        # The migration's notifier event, where a GPU has the range mapped; a second one where
        # pages were made on the way. No branch: one range in two has it mapped.
        unmaps = r.mapped != 0
        if absent and not (first == r.start and last == r.last):
            unmaps += unmaps
        run.unmaps += unmaps
        run.cost_ns += unmaps * run.costs.unmap_ns
        if moved:
            run.pages += moved
            run.cost_ns += transfer_ns(&run.costs.to_device, moved)
            bo.pages += moved
            r.vram_pages += moved
            r.actual = best
        else:
            run.still += 1
    run.maps += 1
    r.mapped |= bit
    r.bits |= RANGE_DONE
    r.validate_ns = run.now + run.cost_ns
    out.first = first
    out.last = last
    out.moved = moved
    out.best = best
    return SHORT_SERVED


cdef inline void told(outcome_t* out, uint64_t t_ns, uint64_t page, uint32_t moved, bint served,
                      bint duplicate, int code, uint8_t reason, uint8_t best) noexcept nogil:
    out.t_ns = t_ns
    out.page = page
    out.moved = moved
    out.remote = 0
    out.faults = served
    out.duplicates = duplicate
    out.code = <int16_t>code
    out.reason = reason
    out.best = best
    out.pad = 0


cdef size_t kfd_faults(kfd_t* p, const record_t* records, size_t n, const ahead_t* a, size_t at,
                       uint32_t by, outcome_t* out) noexcept nogil:
    cdef processor_t* who
    cdef size_t i = 0
    cdef uint64_t fault_ns = p.engine.costs.fault_ns, duplicates, denied, page
    cdef uint32_t how, code, gpu
    cdef short_t s
    cdef run_t run
    if p.restore_pending or p.ndeferred or a.version != p.tree_version:
        return 0
    while i < n:
        # One GPU's faults after the other.
        code = records[i].proc
        gpu = (by if code == 255 else code) - 1
        if gpu >= MAX_GPUS or not p.plain_gpus >> gpu & 1:
            return i
        duplicates = denied = 0
        how = SHORT_DUPLICATE
        run_begin(p, gpu, &run)
        while i < n and records[i].proc == code:
            how = SHORT_NOT
            page = records[i].addr >> 12
            if records[i].kind == KIND_FAULT and a.nodes[at + i]:
                how = fault_short(p, &run, a.nodes[at + i], gpu, page, a.blocks[at + i], &s)
            if how == SHORT_SERVED:
                run.now += run.cost_ns + fault_ns
                run.cost_ns = 0
                told(out + i, run.now, page, s.moved, True, False, 0, REASON_OK, s.best)
            elif how == SHORT_DUPLICATE:
                duplicates += 1
                told(out + i, run.now, page, 0, False, True, 0, REASON_DUPLICATE, NOWHERE)
            elif how == SHORT_DENIED:
                denied += 1
                run.now += fault_ns
                told(out + i, run.now, page, 0, False, False, -E_ACCES, REASON_NO_ACCESS, NOWHERE)
            else:
                break
            i += 1
        run_end(p, &run, gpu)
        who = p.engine.processors + 1 + gpu
        who.faults += run.maps
        who.duplicates += duplicates
        who.fatal += denied
        who.driver_faults += run.maps + duplicates + denied
        if how == SHORT_NOT:
            return i
    return n


cdef int kfd_fault(kfd_t* p, int gpu, uint64_t page, bint write, uint64_t ts, uint32_t node,
                   fault_t* out) noexcept nogil:
    """One delivery of a GPU page fault; order of decisions as in section 10."""
    cdef range_t* r
    memset(out, 0, sizeof(fault_t))
    out.best = NOWHERE
    if gpu >= 0 and p.plain_gpus >> gpu & 1 and (node or fault_node(p, page, &node)):
        r = p.ranges + node
        # Most faults of a storm, and nothing of them is added up.
        if not r.side and repeats(r, p.engine.now):
            p.engine.processors[1 + gpu].driver_faults += 1
            return fault_end(out, 0, REASON_DUPLICATE, True)
        return fault_serve(p, gpu, page, write, ts, node, out)
    return fault_long(p, gpu, page, write, ts, out)


cdef int fault_serve(kfd_t* p, int gpu, uint64_t page, bint write, uint64_t ts, uint32_t node,
                     fault_t* out) noexcept nogil:
    """A fault that may take the short way and is no duplicate."""
    cdef uint32_t how
    cdef short_t s
    cdef run_t run
    run_begin(p, <uint32_t>gpu, &run)
    how = fault_short(p, &run, node, <uint32_t>gpu, page, NO_BLOCK, &s)
    if how == SHORT_NOT:
        return fault_long(p, gpu, page, write, ts, out)
    run_end(p, &run, <uint32_t>gpu)
    p.engine.processors[1 + gpu].driver_faults += 1
    if how == SHORT_DENIED:
        return fault_end(out, -E_ACCES, REASON_NO_ACCESS, True)
    out.best = s.best
    out.first = s.first
    out.last = s.last
    out.migration = s.best != 0
    return fault_end(out, 0, REASON_OK, True)


cdef int fault_long(kfd_t* p, int gpu, uint64_t page, bint write, uint64_t ts,
                    fault_t* out) noexcept nogil:
    cdef int ret = fault_decide(p, gpu, page, write, ts, out)
    if out.counted and gpu >= 0:
        p.engine.processors[1 + gpu].driver_faults += 1
    if (
        out.reason == REASON_STALE
        or out.reason == REASON_SKIP_RECOVER
        or out.reason == REASON_RETRY_LATER
    ):
        engine_log(p.engine, EVENT_FILTER, page, page, 0, <uint8_t>(1 + gpu), 0, 0)
    return ret


cdef int fault_decide(kfd_t* p, int gpu, uint64_t page, bint write, uint64_t ts,
                      fault_t* out) noexcept nogil:
    cdef uint32_t node, code
    cdef uint64_t age, end, checkpoint
    cdef range_t* r
    cdef uint8_t best
    cdef bint moves
    cdef int error = 0
    if gpu >= 0 and not p.gpus[gpu].svm:
        return fault_end(out, -E_FAULT, REASON_NO_SVM, False)
    if p.state == STATE_NO_PROCESS:
        return fault_end(out, 0, REASON_NO_PROCESS, False)
    if p.state == STATE_DRAINING or p.draining:
        return fault_end(out, 0, REASON_DRAINING, False)
    if gpu < 0 or p.state == STATE_NO_NODE:
        return fault_end(out, -E_FAULT, REASON_NO_NODE, False)
    if not p.xnack:
        return fault_end(out, -E_FAULT, REASON_XNACK_OFF, False)
    if p.state == STATE_MM_GONE:
        return fault_end(out, 0, REASON_MM_GONE, False)
    if p.checkpoint_ts[gpu]:
        age = (ts - p.checkpoint_ts[gpu]) & ((<uint64_t>1 << 48) - 1)
        if age == 0 or age >> 47:
            return fault_end(out, 0, REASON_STALE, False)
    checkpoint = p.checkpoint_ts[gpu]
    p.checkpoint_ts[gpu] = 0
    node = kfd_find(p, page)
    if node == 0:
        out.unregistered = True
        node = create_unregistered(p, <uint32_t>gpu, page, write, &error)
        if node == 0:
            if error == -E_NOMEM:
                p.checkpoint_ts[gpu] = checkpoint
                return fault_end(out, error, REASON_NO_MEMORY, False)
            return fault_end(out, error, REASON_NO_RANGE, True)
    r = p.ranges + node
    if r.side and (pending_of(p, node) == PENDING_UNMAP or is_child(p, node)):
        return fault_end(out, 0, REASON_SKIP_RECOVER, True)
    if repeats(r, p.engine.now):
        return fault_end(out, 0, REASON_DUPLICATE, True)
    code = vma_at(p, page, &end)
    if code == 0:
        return fault_end(out, 0, REASON_VMA_GONE, True)
    if not vma_readable(code) or (write and not vma_writable(code)):
        return fault_end(out, -E_PERM, REASON_PERMISSION, True)
    best = p.sets[r.attrs].best[gpu]
    if best == BEST_BY_ACTUAL:
        best = r.actual if r.actual and p.gpus[gpu].reach >> (r.actual - 1) & 1 else 0
    if best == BEST_NONE:
        return fault_end(out, -E_ACCES, REASON_NO_ACCESS, True)
    if p.rules.window_migration:
        fault_window(page, p.sets[r.attrs].granularity, r.start, r.last, &out.first, &out.last)
    else:
        out.first = r.start
        out.last = r.last
    # A move that the device's limit refuses needs no masks, and could ask for a great many.
    moves = best != 0 and r.last - r.start < p.gpus[best - 1].vram_pages
    if reserve_room(p, out.first, out.last, moves, <uint64_t>1 << gpu):
        p.checkpoint_ts[gpu] = checkpoint
        return fault_end(out, -E_NOMEM, REASON_NO_MEMORY, False)
    out.best = best
    error = fault_migrate(p, node, best, out.first, out.last, out)
    if error:
        return fault_end(out, error, REASON_MIGRATE_FAILED, True)
    error = map_gpus(p, node, out.first, out.last, <uint64_t>1 << gpu)
    if error == -E_AGAIN:
        return fault_end(out, 0, REASON_RETRY_LATER, p.rules.again_counted)
    return fault_end(out, error, REASON_MAP_FAILED if error else REASON_OK, True)


# ---- pending work (sections 11, 13) -----------------------------------------------------

cdef int deferred_node(kfd_t* p, uint32_t node) noexcept nogil:
    """Pending work of one range; all of it, or nothing when memory runs out."""
    cdef range_t* r = p.ranges + node
    cdef range_entry_t e
    cdef uint32_t child, following
    cdef bint gone = pending_of(p, node) == PENDING_UNMAP
    p.tree_version += 1
    if ranges_begin(p.tree):
        return -E_NOMEM
    # The notifier interval is still the one before the cuts.
    ranges_find(p.tree, r.start, &e)
    if ranges_assign(p.tree, e.first, e.last, 0):
        ranges_rollback(p.tree)
        return -E_NOMEM
    child = first_child(p, node)
    while child:
        if pending_of(p, child) == PENDING_ADD and ranges_assign(
            p.tree, p.ranges[child].start, p.ranges[child].last, child
        ):
            ranges_rollback(p.tree)
            return -E_NOMEM
        child = next_child(p, child)
    if not gone and ranges_assign(p.tree, r.start, r.last, node):
        ranges_rollback(p.tree)
        return -E_NOMEM
    ranges_commit(p.tree)
    child = first_child(p, node)
    while child:
        following = next_child(p, child)
        if pending_of(p, child) == PENDING_UNMAP:
            release(p, child)
        else:
            memset(p.sides + p.ranges[child].side, 0, sizeof(side_t))
            list_append(p, child)
        child = following
    memset(p.sides + r.side, 0, sizeof(side_t))
    if gone:
        list_remove(p, node)
        release(p, node)
    return 0


cdef int kfd_run_deferred(kfd_t* p) noexcept nogil:
    """Deferred list work, in list order; -ENOMEM leaves the rest of it pending."""
    cdef uint32_t i, done = 0
    cdef int error = 0
    while done < p.ndeferred:
        error = deferred_node(p, p.deferred[done])
        if error:
            break
        done += 1
    if done:
        for i in range(done, p.ndeferred):
            p.deferred[i - done] = p.deferred[i]
        p.ndeferred -= done
    if p.ndeferred == 0:
        p.draining = False
    return error


cdef int reserve_restore(kfd_t* p) noexcept nogil:
    cdef room_t room
    cdef range_t* r
    cdef uint32_t node = p.list_head
    room.lines = room.headers = 0
    while node:
        r = p.ranges + node
        if p.links[node].invalid and ask_room(p, r.start, r.last, False, map_set(p, node), &room):
            return -E_NOMEM
        node = p.links[node].next
    return -E_NOMEM if res_grant(p.engine.res, &room) else 0


cdef int run_restore(kfd_t* p) noexcept nogil:
    """Map what was invalidated, then let the queues run; else once more in 1 ms.

    -ENOMEM when that is because memory ran out.
    """
    cdef uint32_t node = p.list_head
    cdef range_t* r
    cdef bint failed = False
    if not p.restore_pending:
        return 0
    if reserve_restore(p):
        p.restore_ns = present_ns(p) + RESTORE_DELAY_NS
        return -E_NOMEM
    while node:
        r = p.ranges + node
        if p.links[node].invalid:
            if map_gpus(p, node, r.start, r.last, map_set(p, node)):
                failed = True
            else:
                p.links[node].invalid = 0
        node = p.links[node].next
    if failed:
        p.restore_ns = present_ns(p) + RESTORE_DELAY_NS
        return 0
    p.restore_pending = False
    p.evicted_ranges = 0
    p.engine.counters.queue_restores += 1
    engine_log(p.engine, EVENT_QUEUE, 0, 0, 0, 0, 1, 0)
    return 0


cdef void kfd_step(kfd_t* p) noexcept nogil:
    """Run what is due by now."""
    if p.ndeferred:
        kfd_run_deferred(p)
    if p.restore_pending and p.engine.now >= p.restore_ns:
        run_restore(p)


# ---- munmap (section 13) ----------------------------------------------------------------

cdef void add_child(kfd_t* p, uint32_t parent, uint32_t child, uint8_t pending) noexcept nogil:
    cdef side_t* s = side_of(p, child)
    s.is_child = True
    s.pending = pending
    s = side_of(p, parent)
    if s.last_child:
        p.sides[p.ranges[s.last_child].side].next_child = child
    else:
        s.first_child = child
    s.last_child = child


cdef void unmap_piece(kfd_t* p, uint32_t parent, uint32_t piece, uint64_t first,
                      uint64_t last) noexcept nogil:
    cdef range_t* r = p.ranges + piece
    cdef uint32_t middle, tail
    if r.start > first:
        first = r.start
    if r.last < last:
        last = r.last
    if first > last:
        return
    # 7.3 asks the parent's bits even for a child (section 19.6).
    unmap_gpus(p, piece, mapped_gpus(p, parent if p.rules.mapped_per_gpu else piece),
               first, last, UNMAP_FROM_CPU)
    if pending_of(p, piece) == PENDING_UNMAP:
        return  # goes as a whole; a part of it must not come back as a range
    if first == r.start and last == r.last:
        if piece != parent:
            side_of(p, piece).pending = PENDING_UNMAP
    elif first > r.start:
        tail = cut_tail(p, piece, last) if last < r.last else 0
        middle = cut_tail(p, piece, first - 1)
        add_child(p, parent, middle, PENDING_UNMAP)
        if tail:
            add_child(p, parent, tail, PENDING_ADD)
    else:
        add_child(p, parent, cut_head(p, piece, last + 1), PENDING_UNMAP)


cdef void notify_unmap(kfd_t* p, uint32_t node, uint64_t first, uint64_t last) noexcept nogil:
    cdef bint whole = first <= p.ranges[node].start and last >= p.ranges[node].last
    cdef uint32_t child = first_child(p, node)
    cdef side_t* s
    if p.rules.stale_by_timestamp:
        take_checkpoints(p)
    else:
        p.draining = True
    while child:  # cuts append to this list
        unmap_piece(p, node, child, first, last)
        child = next_child(p, child)
    unmap_piece(p, node, node, first, last)
    s = side_of(p, node)
    if not s.deferred:
        s.deferred = True
        p.deferred[p.ndeferred] = node
        p.ndeferred += 1
    if whole or s.pending != PENDING_UNMAP:
        s.pending = PENDING_UNMAP if whole else PENDING_NOTIFIER


cdef int kfd_munmap(kfd_t* p, uint64_t first, uint64_t last) noexcept nogil:
    cdef range_entry_t e
    cdef uint64_t page = first, nodes = 0, pieces = 0, low, high
    cdef uint32_t piece
    if not ranges_next(p.vmas, first, &e) or e.first > last:
        return 0
    while ranges_next(p.tree, page, &e) and e.first <= last:
        nodes += 1
        pieces += 1
        piece = first_child(p, e.value)
        while piece:
            pieces += 1
            piece = next_child(p, piece)
        if e.last >= last:
            break
        page = e.last + 1
    # A piece is cut in three at most, and a new child may be visited once more.
    if not reserve_ranges(p, 4 * pieces) or not more(
        <void**>&p.deferred, &p.cap_deferred, p.ndeferred + nodes, sizeof(uint32_t)
    ):
        return -E_NOMEM
    if ranges_assign(p.vmas, first, last, 0):
        return -E_NOMEM
    forget_vma(p)
    page = first
    while ranges_next(p.tree, page, &e) and e.first <= last:
        notify_unmap(p, e.value, first, last)
        piece = e.value
        while piece:
            low = p.ranges[piece].start if p.ranges[piece].start > first else first
            high = p.ranges[piece].last if p.ranges[piece].last < last else last
            if low <= high:
                bo_pages_left(p, piece, res_count_vram(p.engine.res, low, high))
            piece = first_child(p, piece) if piece == e.value else next_child(p, piece)
        if e.last >= last:
            break
        page = e.last + 1
    res_drop(p.engine.res, first, last)
    return 0


# ---- the other events of the CPU side ---------------------------------------------------

cdef int protect_dry(kfd_t* p, uint64_t first, uint64_t last, uint32_t prot) noexcept nogil:
    """Change the mappings up to the first hole and back: then memory for it is there."""
    cdef range_entry_t e
    cdef int error = ranges_begin(p.vmas)
    while error == 0:
        ranges_find(p.vmas, first, &e)
        if e.value == 0:
            break
        if e.last > last:
            e.last = last
        error = ranges_assign(p.vmas, first, e.last, 1 + (prot | vma_kind(e.value) << 2))
        if e.last == last:
            break
        first = e.last + 1
    ranges_rollback(p.vmas)
    return error


cdef int kfd_mprotect(kfd_t* p, uint64_t first, uint64_t last, uint32_t prot) noexcept nogil:
    """Protection changes; a hole stops it with ENOMEM, what lies before it stays changed."""
    cdef uint64_t page = first, end
    cdef uint32_t code
    if vma_at(p, first, &end) and end < last and protect_dry(p, first, last, prot):
        return -E_NOMEM
    while page <= last:
        code = vma_at(p, page, &end)
        if code == 0:
            return -E_NOMEM
        if end > last:
            end = last
        # Cut at the ends even where the protection is equal: an entry of its own.
        if ranges_assign(p.vmas, page, end, 1 + (prot | vma_kind(code) << 2)):
            return -E_NOMEM
        forget_vma(p)
        if (code - 1) & 3 != prot and res_any_present(p.engine.res, page, end):
            notify(p, page, end, UNMAP_NOTIFY)
        if end == last:
            break
        page = end + 1
    return 0


cdef void split_for_cpu(kfd_t* p, uint32_t node, uint64_t page, uint64_t first,
                        uint64_t last) noexcept nogil:
    """6.1: a CPU fault cuts the range at granularity borders (section 17); room is reserved."""
    cdef range_entry_t e
    cdef uint32_t parent
    cdef bint cut = False
    cdef side_t* s
    ranges_find(p.tree, page, &e)
    parent = e.value
    if p.ranges[node].start < first:
        add_child(p, parent, cut_head(p, node, first), PENDING_ADD)
        cut = True
    if p.ranges[node].last > last:
        add_child(p, parent, cut_tail(p, node, last), PENDING_ADD)
        cut = True
    s = side_of(p, parent)
    if cut and not s.deferred:
        s.pending = PENDING_NOTIFIER
        s.deferred = True
        p.deferred[p.ndeferred] = parent
        p.ndeferred += 1


cdef int cpu_fault(kfd_t* p, uint64_t page) noexcept nogil:
    """A CPU touch of a page in GPU memory: 0, or an errno where the process gets SIGBUS.

    -ENOMEM only when the model's own memory ran out; then nothing was changed.
    """
    cdef uint32_t node = kfd_find(p, page)
    cdef range_t* r
    cdef uint64_t first, last
    if node == 0:
        return -E_FAULT
    if p.ranges[node].actual == 0:
        return 0
    if p.rules.cpu_fault_splits:
        if not reserve_ranges(p, 4) or not more(
            <void**>&p.deferred, &p.cap_deferred, <uint64_t>p.ndeferred + 1, sizeof(uint32_t)
        ):
            return -E_NOMEM
    r = p.ranges + node
    fault_window(page, attrs_of(p, node).granularity, r.start, r.last, &first, &last)
    if p.rules.cpu_fault_splits:
        split_for_cpu(p, node, page, first, last)
    return vram_to_ram(p, node, first, last, TRIGGER_CPU_FAULT)


cdef int kfd_cpu_access(kfd_t* p, uint64_t page) noexcept nogil:
    """A CPU touch: 0, 2 for SIGBUS, -EFAULT without a mapping (section 14)."""
    cdef uint64_t end
    cdef int where
    if vma_at(p, page, &end) == 0:
        return -E_FAULT
    where = res_where(p.engine.res, page)
    if where <= 0:
        if res_reserve(p.engine.res, page, page, 1):
            return -E_NOMEM
        res_populate(p.engine.res, page, page)
        return 0
    if p.gpus[where - 1].coherent:
        return 0
    where = cpu_fault(p, page)
    if where == -E_NOMEM:
        return where
    return 2 if where else 0


# ---- set_attr (sections 3 to 8) ---------------------------------------------------------

cdef int check_ioctl(uint64_t addr, uint64_t size, uint32_t op) noexcept nogil:
    return -E_INVAL if (addr | size) & 0xfff or addr == 0 or size == 0 or op > 1 else 0


cdef int check_attributes(kfd_t* p, const attr_t* attrs, uint32_t n) noexcept nogil:
    cdef uint32_t i, kind
    cdef int gpu
    for i in range(n):
        kind = attrs[i].kind
        if kind >= ATTR_SET_FLAGS and kind <= ATTR_GRANULARITY:
            continue
        if kind == ATTR_PREFERRED:
            if attrs[i].value == 0 or attrs[i].value == LOCATION_UNDEFINED:
                continue
        elif kind == ATTR_PREFETCH:
            if attrs[i].value == 0:
                continue
        elif kind > ATTR_GRANULARITY:
            return -E_INVAL
        gpu = gpu_index(p, attrs[i].value)
        if gpu < 0 or not p.gpus[gpu].svm:
            return -E_INVAL
    return 0


cdef int check_address(kfd_t* p, uint64_t addr, uint64_t size) noexcept nogil:
    cdef uint64_t first = addr >> 12, last, page, end
    cdef uint32_t code, i
    if addr + size <= addr:  # the end wraps to 0 or beyond
        return -E_OVERFLOW if p.rules.overflow_check else -E_FAULT
    last = (addr + size - 1) >> 12
    page = first
    while True:
        code = vma_at(p, page, &end)
        if code == 0 or vma_device(code):
            return -E_FAULT
        if end >= last:
            break
        page = end + 1
    for i in range(p.nbuffers):
        if p.buffers[i].first <= last and first <= p.buffers[i].last:
            return -E_ADDRINUSE
    return 0


cdef bint same_attributes(kfd_t* p, uint32_t node, const attr_t* attrs, uint32_t n) noexcept nogil:
    cdef attrs_t* a = attrs_of(p, node)
    cdef uint32_t i, value, kind
    cdef uint64_t bit
    cdef bint same
    for i in range(n):
        kind = attrs[i].kind
        value = attrs[i].value
        bit = 0
        if ATTR_ACCESS <= kind <= ATTR_NO_ACCESS:
            bit = <uint64_t>1 << gpu_index(p, value)
        if kind == ATTR_PREFERRED:
            same = a.preferred == value
        elif kind == ATTR_PREFETCH:
            same = False
        elif kind == ATTR_ACCESS:
            same = a.access & bit != 0
        elif kind == ATTR_AIP:
            same = a.aip & bit != 0
        elif kind == ATTR_NO_ACCESS:
            same = (a.access | a.aip) & bit == 0
        elif kind == ATTR_SET_FLAGS:
            same = a.flags & value == value
        elif kind == ATTR_CLR_FLAGS:
            same = a.flags & value == 0
        else:
            same = a.granularity == value
        if not same:
            return False
    return True


cdef bint changes_mapping(kfd_t* p, const attr_t* attrs, uint32_t n) noexcept nogil:
    """Must a range that gets these attributes be mapped again (section 5)?"""
    cdef uint32_t i
    for i in range(n):
        if attrs[i].kind == ATTR_SET_FLAGS or attrs[i].kind == ATTR_CLR_FLAGS:
            return True
        if ATTR_ACCESS <= attrs[i].kind <= ATTR_NO_ACCESS and (
            not p.xnack or p.rules.access_remaps_with_xnack
        ):
            return True
    return False


cdef uint64_t merge_attributes(kfd_t* p, attrs_t* a, const attr_t* attrs,
                               uint32_t n) noexcept nogil:
    """Store the attributes in order; the GPUs that were named by NO_ACCESS."""
    cdef uint32_t i, value, kind
    cdef uint64_t bit, refused = 0
    for i in range(n):
        kind = attrs[i].kind
        value = attrs[i].value
        if kind == ATTR_PREFERRED:
            a.preferred = value
        elif kind == ATTR_PREFETCH:
            a.prefetch = value
        elif kind == ATTR_SET_FLAGS:
            a.flags |= value
        elif kind == ATTR_CLR_FLAGS:
            a.flags &= ~value
        elif kind == ATTR_GRANULARITY:
            a.granularity = value if value < GRANULARITY_MAX else GRANULARITY_MAX
        else:
            bit = <uint64_t>1 << gpu_index(p, value)
            a.access &= ~bit
            a.aip &= ~bit
            if kind == ATTR_ACCESS:
                a.access |= bit
            elif kind == ATTR_AIP:
                a.aip |= bit
            else:
                refused |= bit
    return refused


cdef void apply_attributes(kfd_t* p, uint32_t node, const attr_t* attrs, uint32_t n) noexcept nogil:
    """Give a range the attributes; room for a set and for rare state is reserved."""
    cdef attrs_t a = attrs_of(p, node)[0]
    cdef uint64_t refused = merge_attributes(p, &a, attrs, n) & p.ranges[node].mapped
    if refused and p.rules.no_access_unmaps:
        side_of(p, node).needs_unmap |= refused
    p.ranges[node].attrs = intern(p, &a)


cdef uint32_t prefetch_target(kfd_t* p, const attrs_t* a) noexcept nogil:
    """Where the prefetch step moves the range: 0, a GPU's code 1 + i, or NOWHERE (section 8)."""
    cdef uint32_t gpu
    cdef uint64_t sharers
    if a.prefetch == LOCATION_UNDEFINED:
        return NOWHERE
    if a.prefetch == 0:
        return 0
    gpu = <uint32_t>gpu_index(p, a.prefetch)
    sharers = a.aip if p.xnack else a.access | a.aip
    if p.gpus[gpu].prefers_system or sharers & ~p.gpus[gpu].reach:
        return 0
    return 1 + gpu


cdef int prefetch_range(kfd_t* p, uint32_t node, bint* migrated) noexcept nogil:
    """The prefetch step (section 8)."""
    cdef range_t* r = p.ranges + node
    cdef uint32_t target = prefetch_target(p, attrs_of(p, node))
    cdef int error
    migrated[0] = False
    if target == NOWHERE or (target == 0 and r.actual == 0):
        return 0
    if target == 0:
        error = vram_to_ram(p, node, r.start, r.last, TRIGGER_PREFETCH)
        migrated[0] = error == 0
        return error
    if p.rules.prefetch_same_is_noop and r.actual == target:
        return 0
    error = to_vram(p, node, target - 1, r.start, r.last, TRIGGER_PREFETCH)
    migrated[0] = error == 0
    return error if p.rules.prefetch_failure_is_error else 0


cdef int update_range(kfd_t* p, uint32_t node, bint remap_all) noexcept nogil:
    cdef range_t* r = p.ranges + node
    cdef uint64_t gpus = p.sides[r.side].needs_unmap
    cdef bint migrated
    cdef int error
    if gpus:
        take_checkpoints(p)
        unmap_gpus(p, node, gpus, r.start, r.last, UNMAP_FROM_CPU)
        p.sides[r.side].needs_unmap = 0
        if r.mapped == 0:
            return 0
    error = prefetch_range(p, node, &migrated)
    if error:
        return error
    if migrated and r.mapped and (not p.xnack or attrs_of(p, node).flags & FLAG_ALWAYS_MAPPED):
        return 0  # the restore work maps it
    if not migrated and not remap_all:
        return 0
    return map_gpus(p, node, r.start, r.last, map_set(p, node))


# Lists of one set_attr call (section 6); all are read from the end, where the driver has the head.
cdef struct lists_t:
    list_t update
    list_t insert
    list_t remove
    list_t remap
    list_t fresh


cdef void lists_free(lists_t* l) noexcept nogil:
    free(l.update.v)
    free(l.insert.v)
    free(l.remove.v)
    free(l.remap.v)
    free(l.fresh.v)


cdef bint fill(kfd_t* p, lists_t* l, uint64_t first, uint64_t last) noexcept nogil:
    """New ranges for a gap, cut at multiples of the largest size (section 6.1)."""
    cdef uint64_t end
    cdef uint32_t node
    while True:
        end = (first // p.max_pages + 1) * p.max_pages - 1
        if end > last:
            end = last
        if not reserve_ranges(p, 1):
            return False
        node = new_range(p, first, end)
        if not list_push(&l.fresh, node):
            free_range(p, node)
            return False
        if not list_push(&l.update, node):
            return False
        if end == last:
            return True
        first = end + 1


cdef bint split_node(kfd_t* p, lists_t* l, uint32_t node, uint64_t low,
                     uint64_t last) noexcept nogil:
    """A range that sticks out of the call's interval: work on a clone, cut at the ends."""
    cdef uint32_t copy, head, tail
    cdef bint again
    # Everything that may fail comes before the first new record.
    if (
        not reserve_ranges(p, 3)
        or not more(<void**>&l.insert.v, &l.insert.cap, <uint64_t>l.insert.n + 3, sizeof(uint32_t))
        or not more(<void**>&l.remap.v, &l.remap.cap, <uint64_t>l.remap.n + 2, sizeof(uint32_t))
        or not list_push(&l.remove, node)
    ):
        return False
    copy = clone(p, node)
    list_push(&l.insert, copy)
    if p.ranges[copy].start < low:
        again = cuts_huge(p, copy, low, True)
        head = cut_head(p, copy, low)
        list_push(&l.insert, head)
        if again:
            list_push(&l.remap, head)
    if p.ranges[copy].last > last:
        again = cuts_huge(p, copy, last + 1, False)
        tail = cut_tail(p, copy, last)
        list_push(&l.insert, tail)
        if again:
            list_push(&l.remap, tail)
    return list_push(&l.update, copy)


cdef bint collect(kfd_t* p, lists_t* l, uint64_t first, uint64_t last, const attr_t* attrs,
                  uint32_t n) noexcept nogil:
    """Split and fill: which ranges change, appear and go; False when memory runs out."""
    cdef range_entry_t e
    cdef uint64_t low = first, node_start, node_last
    cdef uint32_t node
    cdef bint settled
    while ranges_next(p.tree, low, &e) and e.first <= last:
        node = e.value
        node_start = p.ranges[node].start
        node_last = p.ranges[node].last
        settled = p.ranges[node].bits & RANGE_DONE or not p.rules.same_needs_mapping
        if not (settled and same_attributes(p, node, attrs, n)):
            if node_start < low or node_last > last:
                if not split_node(p, l, node, low, last):
                    return False
            elif not list_push(&l.update, node):
                return False
        if node_start > low and not fill(p, l, low, node_start - 1):
            return False
        if node_last >= last:
            return True
        low = node_last + 1
    return fill(p, l, low, last)


cdef bint swap_in(kfd_t* p, lists_t* l) noexcept nogil:
    """The tree gets the new ranges for the old ones, all or nothing."""
    cdef uint32_t i
    cdef range_t* r
    p.tree_version += 1
    if ranges_begin(p.tree):
        return False
    for i in range(l.remove.n):
        r = p.ranges + l.remove.v[i]
        if ranges_assign(p.tree, r.start, r.last, 0):
            ranges_rollback(p.tree)
            return False
    for i in range(l.insert.n):
        r = p.ranges + l.insert.v[i]
        if ranges_assign(p.tree, r.start, r.last, l.insert.v[i]):
            ranges_rollback(p.tree)
            return False
    for i in range(l.fresh.n):
        r = p.ranges + l.fresh.v[i]
        if ranges_assign(p.tree, r.start, r.last, l.fresh.v[i]):
            ranges_rollback(p.tree)
            return False
    ranges_commit(p.tree)
    return True


cdef int ask_update(kfd_t* p, uint32_t node, const attr_t* attrs, uint32_t n, bint remap_all,
                    room_t* room) noexcept nogil:
    """Ask for the most that the update of a range can need, before it has the attributes."""
    cdef range_t* r = p.ranges + node
    cdef attrs_t a = attrs_of(p, node)[0]
    cdef uint64_t gpus = 0
    cdef uint32_t target
    cdef bint moves
    merge_attributes(p, &a, attrs, n)
    target = prefetch_target(p, &a)
    # More than the device has is refused before a page moves.
    moves = target != NOWHERE and target > 0 and (
        r.last - r.start < p.gpus[target - 1].vram_pages
    )
    if moves or remap_all or (target == 0 and r.actual):
        gpus = a.aip
        if p.rules.mapped_per_gpu:
            gpus |= r.mapped
        if not p.xnack or a.flags & FLAG_ALWAYS_MAPPED or (
            r.mapped and not p.rules.mapped_per_gpu
        ):
            gpus |= a.access
        if moves:
            gpus |= a.access & <uint64_t>1 << (target - 1)
        if r.actual:
            gpus |= a.access & <uint64_t>1 << (r.actual - 1)
    return ask_room(p, r.start, r.last, moves, gpus, room)


cdef bint reserve_updates(kfd_t* p, const lists_t* l, const attr_t* attrs, uint32_t n,
                          bint remap_all) noexcept nogil:
    """Room for all that follows the split, so that the call cannot fail half-way for memory."""
    cdef room_t room
    cdef uint32_t i, node
    room.lines = room.headers = 0
    for i in range(l.update.n):
        if ask_update(p, l.update.v[i], attrs, n, remap_all, &room):
            return False
    for i in range(l.remap.n):
        node = l.remap.v[i]
        if ask_room(p, p.ranges[node].start, p.ranges[node].last, False, map_set(p, node), &room):
            return False
    return (
        res_grant(p.engine.res, &room) == 0
        and reserve_bos(p, l.update.n)
        # A range gets one new set at most, and equal ranges get the same one.
        and reserve_sets(p, l.update.n if l.update.n < p.nsets else p.nsets)
        and more(<void**>&p.sides, &p.cap_sides, <uint64_t>p.nsides + l.update.n, sizeof(side_t))
    )


cdef int kfd_set_attr(kfd_t* p, uint64_t addr, uint64_t size, const attr_t* attrs, uint32_t n,
                      uint32_t op, bint* refused) noexcept nogil:
    cdef lists_t l
    cdef uint32_t i
    cdef int error, node_error
    cdef bint changes, remap_all
    error = check_ioctl(addr, size, op)
    if error == 0:
        error = check_attributes(p, attrs, n)
    refused[0] = error != 0
    if error:
        return error
    error = kfd_run_deferred(p)
    if error == 0:
        error = check_address(p, addr, size)
    if error:
        return error
    memset(&l, 0, sizeof(l))
    changes = changes_mapping(p, attrs, n)
    if (
        not collect(p, &l, addr >> 12, (addr + size - 1) >> 12, attrs, n)
        or not reserve_updates(p, &l, attrs, n,
                               changes or (not p.xnack and l.remap.n > 0))
        or not swap_in(p, &l)
    ):
        for i in range(l.insert.n):
            release(p, l.insert.v[i])
        for i in range(l.fresh.n):
            release(p, l.fresh.v[i])
        lists_free(&l)
        return -E_NOMEM
    for i in range(l.update.n, 0, -1):
        apply_attributes(p, l.update.v[i - 1], attrs, n)
    for i in range(l.remove.n):
        list_remove(p, l.remove.v[i])
        release(p, l.remove.v[i])
    for i in range(l.fresh.n, 0, -1):
        list_append(p, l.fresh.v[i - 1])
    for i in range(l.insert.n, 0, -1):
        list_append(p, l.insert.v[i - 1])
    remap_all = changes or (not p.xnack and l.remap.n > 0)
    error = 0
    for i in range(l.update.n, 0, -1):
        node_error = update_range(p, l.update.v[i - 1], remap_all)
        if node_error:
            error = node_error
            if p.rules.mapping_error_stops:
                lists_free(&l)
                return error
    for i in range(l.remap.n, 0, -1):
        node_error = map_gpus(p, l.remap.v[i - 1], p.ranges[l.remap.v[i - 1]].start,
                              p.ranges[l.remap.v[i - 1]].last, map_set(p, l.remap.v[i - 1]))
        if node_error:
            error = node_error
    lists_free(&l)
    return error


# ---- accesses ---------------------------------------------------------------------------

cdef inline void touched(kfd_t* p, uint32_t gpu, uint64_t first, uint64_t last,
                         touch_t* out) noexcept nogil:
    """Mapped pages answer a GPU's touch."""
    touched_pages(p, gpu, last - first + 1,
                  res_count(p.engine.res, MASK_VRAM << 8 | gpu, first, last), out)


cdef inline void touched_pages(kfd_t* p, uint32_t gpu, uint64_t pages, uint64_t local,
                               touch_t* out) noexcept nogil:
    """Count a touch: pages that are not in the GPU's own memory are remote."""
    p.engine.processors[1 + gpu].pages_touched += pages
    if local < pages:
        out.remote += pages - local
        p.engine.processors[1 + gpu].remote_pages += pages - local
        p.engine.cost_ns += <uint64_t>(
            p.engine.costs.remote_ns + p.engine.costs.remote_page_ns * <double>(pages - local)
        )


cdef int wait_for_queues(kfd_t* p) noexcept nogil:
    """Stopped queues run again once the restore work succeeds; -EAGAIN when it never does."""
    cdef uint32_t tries = 0
    while p.restore_pending:
        if tries == RETRIES:
            return -E_AGAIN
        tries += 1
        settle(p)
        if p.engine.now < p.restore_ns:
            p.engine.now = p.restore_ns
        if run_restore(p):
            return -E_NOMEM
    return 0


cdef void fatal(touch_t* out, uint64_t page, int ret, uint8_t reason) noexcept nogil:
    out.page = page
    out.ret = ret
    out.reason = reason


cdef bint touch_faults(kfd_t* p, uint32_t gpu, uint64_t first, uint64_t last, uint32_t node,
                       uint32_t block, touch_t* out) noexcept nogil:
    """The fault of a touch that goes the short way; False where it does not serve all of it."""
    cdef engine_t* e = p.engine
    cdef short_t f
    cdef run_t run
    settle(p)
    if not node and not fault_node(p, first, &node):
        return False
    run_begin(p, gpu, &run)
    if fault_short(p, &run, node, gpu, first, block, &f) != SHORT_SERVED:
        return False
    run_end(p, &run, gpu)
    e.processors[1 + gpu].driver_faults += 1
    e.processors[1 + gpu].faults += 1
    e.cost_ns += e.costs.fault_ns
    out.faults = 1
    out.best = f.best
    return f.last >= last


cdef bint touch_short(kfd_t* p, uint32_t gpu, uint64_t first, uint64_t last, bint write,
                      uint32_t node, touch_t* out) noexcept nogil:
    """A GPU's touch inside one 2 MiB block that is mapped, or that one common fault serves.

    Same result as the long way; False where that has to be gone, with nothing changed
    but what a served fault of it has.
    """
    cdef engine_t* e = p.engine
    cdef uint32_t lo = first & 511, hi = last & 511, w, block
    cdef uint64_t span, missing = 0, local = 0
    cdef lines_t l
    if first >> 9 != last >> 9 or p.restore_pending or p.ndeferred:
        return False
    block = find_block(e.res, first >> 9)
    if block == NO_BLOCK:
        return False
    res_lines(e.res, block, gpu, &l)
    if l.other or l.mapped == NULL:
        return False
    w = lo >> 6
    missing = span_word(w, lo, hi) & ~l.mapped[w]
    if missing:
        # The long way serves page by page; here the first page must be the one that faults.
        if not missing >> (lo & 63) & 1 or not p.plain_gpus >> gpu & 1:
            return False
        if not touch_faults(p, gpu, first, last, node, block, out):
            return False
        res_lines(e.res, block, gpu, &l)
    while True:
        span = span_word(w, lo, hi)
        if span & ~l.mapped[w]:
            return False
        if l.vram != NULL:
            local += popcount64(span & l.vram[w])
        if w == hi >> 6:
            break
        w += 1
    touched_pages(p, gpu, last - first + 1, local, out)
    return True


cdef void gpu_access(kfd_t* p, uint32_t gpu, uint64_t first, uint64_t last, bint write,
                     touch_t* out) noexcept nogil:
    cdef uint64_t page = first, stop
    cdef uint32_t tries = 0
    cdef int error
    cdef fault_t f
    while True:
        error = wait_for_queues(p)
        if error:
            fatal(out, page, error,
                  REASON_NO_MEMORY if error == -E_NOMEM else REASON_RETRY_LATER)
            return
        if not res_first_unmapped(p.engine.res, gpu, page, last, write, &stop):
            touched(p, gpu, page, last, out)
            return
        if stop > page:
            touched(p, gpu, page, stop - 1, out)
            page = stop
            tries = 0
        if not p.xnack:
            fatal(out, page, -E_ACCES, REASON_XNACK_OFF)
            return
        settle(p)
        # A touch of now is newer than anything in the ring when it was looked at.
        if kfd_fault(p, <int>gpu, page, write, p.checkpoint_ts[gpu] + 1, 0, &f):
            p.engine.cost_ns += p.engine.costs.fault_ns
            fatal(out, page, f.ret, f.reason)
            return
        if f.reason == REASON_DUPLICATE:
            out.duplicates += 1
            p.engine.processors[1 + gpu].duplicates += 1
            p.engine.now = p.ranges[kfd_find(p, page)].validate_ns + DUPLICATE_WINDOW_NS
            continue
        p.engine.cost_ns += p.engine.costs.fault_ns
        if f.reason == REASON_OK and (
            not res_first_unmapped(p.engine.res, gpu, page, page, write, &stop)
        ):
            out.faults += 1
            out.best = f.best
            p.engine.processors[1 + gpu].faults += 1
        elif p.ndeferred:
            if kfd_run_deferred(p):
                fatal(out, page, -E_NOMEM, REASON_NO_MEMORY)
                return
        elif tries < RETRIES and (f.reason == REASON_RETRY_LATER or p.restore_pending):
            tries += 1
        else:
            fatal(out, page, -E_LOOP, REASON_NEVER_RESOLVES)
            return


cdef void cpu_touch(kfd_t* p, uint64_t first, uint64_t last, touch_t* out) noexcept nogil:
    """Pages of one mapping that need no fault: populate, count what is read in place."""
    cdef uint64_t remote
    res_populate(p.engine.res, first, last)
    p.engine.processors[0].pages_touched += last - first + 1
    remote = res_count_vram(p.engine.res, first, last)
    if remote:
        out.remote += remote
        p.engine.processors[0].remote_pages += remote
        p.engine.cost_ns += <uint64_t>(
            p.engine.costs.remote_ns + p.engine.costs.remote_page_ns * <double>remote
        )


cdef void cpu_span(kfd_t* p, uint64_t first, uint64_t last, bint write,
                   touch_t* out) noexcept nogil:
    cdef uint64_t page = first, end, stop, coherent = 0
    cdef uint32_t code, i
    cdef int error
    for i in range(p.ngpus):
        if p.gpus[i].coherent:
            coherent |= <uint64_t>1 << i
    while True:
        code = vma_at(p, page, &end)
        if code == 0:
            fatal(out, page, -E_FAULT, REASON_NO_MAPPING)
            return
        if not vma_readable(code) or (write and not vma_writable(code)):
            fatal(out, page, -E_PERM, REASON_PERMISSION)
            return
        if end > last:
            end = last
        if res_reserve(p.engine.res, page, end, 1):
            fatal(out, page, -E_NOMEM, REASON_NO_MEMORY)
            return
        if res_first_foreign(p.engine.res, coherent, page, end, &stop):
            if stop > page:
                cpu_touch(p, page, stop - 1, out)
                page = stop
            settle(p)
            p.engine.cost_ns += p.engine.costs.fault_ns
            error = cpu_fault(p, page)
            if error == -E_NOMEM:
                fatal(out, page, error, REASON_NO_MEMORY)
                return
            if error or res_where(p.engine.res, page) > 0:
                fatal(out, page, -E_FAULT, REASON_BUS_ERROR)
                return
            out.faults += 1
            out.best = 0
            p.engine.processors[0].faults += 1
            # 6.1 cuts ranges here; the pieces join the tree before the next fault. Without
            # memory for that they stay pending, which no CPU fault minds.
            if p.ndeferred:
                kfd_run_deferred(p)
            continue
        cpu_touch(p, page, end, out)
        if end == last:
            return
        page = end + 1


cdef void kfd_access(kfd_t* p, uint32_t processor, uint64_t first, uint64_t last, bint write,
                     uint32_t node, touch_t* out) noexcept nogil:
    """A touch of [first, last] until it is served or fatal; processor 0 is the CPU, 1 + i GPU i.

    The clock moves on by what the access waited for and cost.
    """
    cdef uint64_t moved = p.engine.counters.migrated_pages, version = p.tree_version
    memset(out, 0, sizeof(touch_t))
    out.best = NOWHERE
    out.reason = REASON_OK
    kfd_step(p)
    if version != p.tree_version:
        node = 0  # pending work may have taken the range away, or these pages from it
    if p.ndeferred:
        fatal(out, first, -E_NOMEM, REASON_NO_MEMORY)
    elif processor:
        if not (p.plain and touch_short(p, processor - 1, first, last, write, node, out)):
            gpu_access(p, processor - 1, first, last, write, out)
    else:
        cpu_span(p, first, last, write, out)
    settle(p)
    if out.ret:
        p.engine.processors[processor].fatal += 1
    out.moved = p.engine.counters.migrated_pages - moved


# ---- invariants -------------------------------------------------------------------------

cdef int check_side(kfd_t* p, uint32_t node, uint64_t* held, uint64_t* inside) noexcept nogil:
    """A range of the tree with its children: references, pages of these, pending work."""
    cdef uint32_t child = first_child(p, node), i, listed = 0
    cdef range_t* r = p.ranges + node
    if r.bits & RANGE_HAS_BO:
        held[0] += 1
        if r.bo == 0:
            return 11
    if r.bo and not (p.bos[r.bo].alive and (r.bits & RANGE_ON_BO or p.bos[r.bo].stray)):
        return 11
    if r.actual and not (r.bits & RANGE_HAS_BO and p.bos[r.bo].gpu == r.actual - 1):
        return 12
    if is_child(p, node) or (child and pending_of(p, node) == PENDING_NONE):
        return 13
    for i in range(p.ndeferred):
        listed += p.deferred[i] == node
    if listed != (pending_of(p, node) != PENDING_NONE):
        return 13
    if p.sides[r.side].deferred != listed or p.sides[r.side].needs_unmap:
        return 13
    while child:
        inside[0] += res_count_vram(p.engine.res, p.ranges[child].start, p.ranges[child].last)
        if p.ranges[child].bits & RANGE_HAS_BO:
            held[0] += 1
            if p.ranges[child].bo == 0:
                return 11
        if not is_child(p, child) or pending_of(p, child) == PENDING_NONE:
            return 13
        child = next_child(p, child)
    return 0


cdef int kfd_check(kfd_t* p) noexcept nogil:
    """0 = sound, else the number of the broken rule (see KfdProcess.check)."""
    cdef range_entry_t e
    cdef range_t* r
    cdef uint64_t page = 0, linked = 0, in_tree = 0, pages, held = 0, inside = 0
    cdef uint64_t used[MAX_GPUS]
    cdef uint32_t node, number, i
    cdef int error
    if ranges_check(p.tree) or ranges_check(p.vmas):
        return 1
    if res_check(p.engine.res):
        return 2
    while ranges_next(p.tree, page, &e):
        r = p.ranges + e.value
        in_tree += 1
        if not e.first <= r.start <= r.last <= e.last:
            return 3
        if attrs_of(p, e.value).access & attrs_of(p, e.value).aip:
            return 4
        pages = res_count_vram(p.engine.res, r.start, r.last)
        inside += pages
        if pending_of(p, e.value) == PENDING_NONE:
            if r.vram_pages != pages:
                return 5
            if pages and not r.bits & RANGE_HAS_BO:
                return 6
        error = check_side(p, e.value, &held, &inside)
        if error:
            return error
        if e.last == <uint64_t>0xffffffffffffffffU:
            break
        page = e.last + 1
    node = p.list_head
    while node:
        linked += 1
        if not p.ranges[node].bits & RANGE_LINKED:
            return 7
        node = p.links[node].next
    if linked != in_tree:
        return 7
    memset(used, 0, sizeof(used))
    pages = 0
    number = p.first_bo
    while number:
        used[p.bos[number].gpu] += p.bos[number].npages
        pages += p.bos[number].pages
        held -= p.bos[number].holders
        if p.bos[number].pages > p.bos[number].npages or not p.bos[number].alive:
            return 8
        number = p.bos[number].next
    if held:
        return 11
    if pages != res_count_vram(p.engine.res, 0, <uint64_t>0xffffffffffffffffU):
        return 9
    if pages != inside:
        return 14
    for i in range(p.ngpus):
        if used[i] > p.node.used[i] or p.node.used[i] > p.gpus[i].vram_pages:
            return 10
    return 0


_RULES = (
    "",
    "range or mapping tree",
    "page masks",
    "range outside its notifier interval",
    "a GPU both in access and in place",
    "vram_pages differs from the pages in GPU memory",
    "pages in GPU memory without an object",
    "process list and tree differ",
    "an object with more pages than its size",
    "objects and page masks differ",
    "GPU memory over capacity",
    "an object's references differ from the ranges that hold it",
    "a range away from system memory without an object there",
    "pending work of a range",
    "pages in GPU memory outside any range",
)


# ---- Python face ------------------------------------------------------------------------

cdef uint32_t location(kfd_t* p, uint8_t processor) noexcept nogil:
    if processor == 0:
        return 0
    return p.gpus[processor - 1].id if processor <= p.ngpus else LOCATION_UNDEFINED


cdef int kfd_advise(void* state, const record_t* record) noexcept nogil:
    cdef kfd_t* p = <kfd_t*>state
    cdef attr_t attr
    cdef bint refused
    cdef uint64_t first = record.addr >> 12
    cdef uint64_t end = (record.addr + record.size + 4095) >> 12
    attr.kind = ATTR_PREFETCH if record.kind == KIND_PREFETCH else record.access
    attr.value = location(p, record.peer) if attr.kind <= ATTR_NO_ACCESS else record.value
    return kfd_set_attr(p, first << 12, (end - first) << 12, &attr, 1, 0, &refused)


cdef void ops_touch(void* state, uint32_t processor, uint64_t first, uint64_t last,
                    uint32_t access, touch_t* out) noexcept nogil:
    cdef kfd_t* p = <kfd_t*>state
    kfd_mode_of(p, processor)
    kfd_access(p, processor, first, last, 1 <= access <= 2, 0, out)


cdef void ops_deliver(void* state, const arrival_t* faults, uint32_t n,
                      touch_t* out) noexcept nogil:
    cdef kfd_t* p = <kfd_t*>state
    kfd_mode_of(p, faults.processor)
    kfd_deliver_touch(p, faults, 0, out)


cdef int ops_map(void* state, uint64_t first, uint64_t last) noexcept nogil:
    return kfd_mmap(<kfd_t*>state, first, last, VMA_READ_WRITE)


cdef int ops_unmap(void* state, uint64_t first, uint64_t last) noexcept nogil:
    return kfd_munmap(<kfd_t*>state, first, last)


cdef void ops_step(void* state) noexcept nogil:
    kfd_step(<kfd_t*>state)


cdef uint64_t ops_due(void* state) noexcept nogil:
    """Deferred work at once, the restore work at its time."""
    cdef kfd_t* p = <kfd_t*>state
    if p.ndeferred:
        return p.engine.now
    return p.restore_ns if p.restore_pending else <uint64_t>0xffffffffffffffffU


cdef ops_t OPS
OPS.batch = 1
OPS.touch = ops_touch
OPS.deliver = ops_deliver
OPS.map = ops_map
OPS.unmap = ops_unmap
OPS.advise = kfd_advise
OPS.step = ops_step
OPS.due = ops_due


@cython.no_gc_clear  # __dealloc__ still needs the node when a cycle is collected
cdef class KfdProcess(Process):
    """One process under the KFD SVM driver, compiled.

    Operations, in page numbers and errnos as the driver speaks them:

    * mappings: :meth:`mmap`, :meth:`munmap`, :meth:`mprotect`, :meth:`invalidate`
    * attributes: :meth:`set_attr`, :meth:`get_attr`
    * faults and touches: :meth:`fault`, :meth:`access`, :meth:`cpu_access`
    * memory pressure and pending work: :meth:`evict`, :meth:`run_deferred`,
      :meth:`run_restore`, :meth:`step`
    * views: :meth:`ranges`, :meth:`starts`, :meth:`pending`, :meth:`counters`,
      :meth:`where`, :meth:`check`

    An operation on vectors is bracketed by :meth:`begin` and :meth:`finish`.

    Parameters
    ----------
    gpus : sequence of Gpu
        GPUs of the process, at most 64; the position is the bit number.
    xnack : bool
        GPU page faults are retried (on) or fatal (off).
    kernel : str
        ``"7.3"``, ``"6.12"``, ``"6.1"`` or a point release of one.
    max_svm_range_pages : int, optional
        Largest range made at once; from the GPUs' memory when not given.
    default_granularity : int
        log2 pages, capped at 27.
    evict_on_full : bool
        A full VRAM evicts the oldest objects; else the allocation fails.
    eviction : str
        Which object goes: ``driver`` (the oldest), or an order of ``_evict.ORDERS``.
    seed : int
        Of the order ``random``.
    quota_pages : int, optional
        Most pages of objects on one GPU.
    node : Node, optional
        Device memory to share with other processes.

    Raises
    ------
    InvalidArgumentError
        If a parameter is out of range or the kernel is not modelled.
    OutOfMemoryError
        If the state cannot be allocated.

    Thread safety
    -------------
    One thread at a time uses a process, and the processes of one node.

    Source
    ------
    AMD KFD SVM driver; conformance cases ``kfd_*``.
    """

    def __cinit__(self, gpus, *, xnack, kernel="7.3", max_svm_range_pages=None,
                  default_granularity=9, evict_on_full=False, node=None, node_entries=0,
                  eviction="driver", seed=0, quota_pages=None):
        cdef Node shared = Node() if node is None else node
        cdef kfd_t* p
        gpus = tuple(gpus)
        if len(gpus) > MAX_GPUS:
            raise InvalidArgumentError(f"{len(gpus)} GPUs: expected at most {MAX_GPUS}")
        if not 0 <= default_granularity <= 63:
            raise InvalidArgumentError(
                f"default granularity {default_granularity}: expected 0 to 63"
            )
        self.rules = kernel_rules(kernel)
        self.gpus = gpus
        self.node = shared
        self.index = {gpu.id: i for i, gpu in enumerate(gpus)}
        self.outcome = Outcome
        self.result = Outcome()
        p = <kfd_t*>calloc(1, sizeof(kfd_t))
        if p == NULL:
            raise OutOfMemoryError("no memory for a process")
        self.p = p
        p.engine = engine_new()
        p.tree = ranges_new(False, node_entries)
        p.vmas = ranges_new(False, node_entries)
        if p.engine == NULL or p.tree == NULL or p.vmas == NULL or not reserve_ranges(p, 16):
            raise OutOfMemoryError("no memory for a process")
        p.engine.res.joins = True
        memset(p.sides, 0, sizeof(side_t))  # number 0: a range without rare state
        p.nranges = p.nsides = p.nsets = p.nbos = 1
        p.node = &shared.n
        forget_vma(p)
        take_rules(&p.rules, self.rules)
        take_gpus(p, gpus, self.rules.apu_prefers_system)
        p.xnack = xnack
        p.evict_on_full = evict_on_full
        if eviction != "driver" or quota_pages is not None:
            # The driver's own order is that of creation.
            p.order = evict_new(order_of("fifo" if eviction == "driver" else eviction), seed)
            if p.order == NULL:
                raise OutOfMemoryError("no memory for a process")
        p.quota = <uint64_t>-1 if quota_pages is None else quota_pages
        p.granularity = min(default_granularity, 27) if self.rules.granularity_parameter else 9
        p.max_pages = max_svm_range_pages or largest_range(gpus)
        if set_defaults(p):
            raise OutOfMemoryError("no memory for a process")
        process_join(self, p, &OPS, p.engine, oldest_age, evict_oldest)

    def __dealloc__(self):
        cdef kfd_t* p = self.p
        cdef uint32_t number
        if p == NULL:
            return
        if p.node != NULL:
            number = p.first_bo
            while number:
                p.node.used[p.bos[number].gpu] -= p.bos[number].npages
                number = p.bos[number].next
            self.node.leave(p)
        engine_free(p.engine)
        ranges_free(p.tree)
        ranges_free(p.vmas)
        free(p.raw_ranges)
        free(p.links)
        free(p.sides)
        free(p.sets)
        free(p.bos)
        evict_free(p.order)
        free(p.deferred)
        free(p.buffers)
        free(p.userptrs)
        free(p)

    # ---- operations ----

    def mmap(self, first, last, prot="rw", kind="anon"):
        """A CPU mapping appears; -EEXIST where one is already."""
        return kfd_mmap(self.p, first, last, mapping_code(prot, kind))

    def munmap(self, first, last):
        """CPU mappings go; ranges follow by deferred work (section 13)."""
        return kfd_munmap(self.p, first, last)

    def mprotect(self, first, last, prot):
        """Protection changes; a hole stops it with -ENOMEM (section 19.4)."""
        return kfd_mprotect(self.p, first, last, mapping_code(prot, "anon") - 1)

    def invalidate(self, first, last):
        """CPU page tables change without data loss."""
        notify(self.p, first, last, UNMAP_NOTIFY)
        return 0

    def set_attr(self, addr, size, attrs, op=0):
        """``KFD_IOCTL_SVM_OP_SET_ATTR`` on bytes ``[addr, addr + size)`` (sections 3 to 8).

        Parameters
        ----------
        addr, size : int
            Bytes, page aligned.
        attrs : sequence of (type, value)
            In the order given; the last one wins.
        op : int
            Operation number as the ioctl has it.

        Returns
        -------
        int
            0 or a negative errno. ``refused`` tells whether it ended before it
            waited for pending work.
        """
        cdef uint32_t n = len(attrs), i
        cdef attr_t* items = <attr_t*>calloc(n + 1, sizeof(attr_t))
        cdef bint refused = False
        cdef int ret
        if items == NULL:
            return -E_NOMEM
        try:
            for i in range(n):
                items[i].kind = attrs[i][0]
                items[i].value = attrs[i][1]
            ret = kfd_set_attr(self.p, addr, size, items, n, op, &refused)
        finally:
            free(items)
        self.refused = refused
        return ret

    def get_attr(self, addr, size, attrs):
        """``KFD_IOCTL_SVM_OP_GET_ATTR`` (section 15b); the answers are in ``result.out``."""
        cdef kfd_t* p = self.p
        cdef range_entry_t e
        cdef attrs_t* a
        cdef uint64_t page, last, access, aip
        cdef uint32_t set_flags, any_flags, preferred = 0, prefetch = 0, granularity, n = 0
        cdef int error = check_ioctl(addr, size, 1)
        if error == 0:
            error = kfd_run_deferred(p)
        if error == 0:
            error = check_address(p, addr, size)
        if error:
            return error
        for kind, _ in attrs:
            if kind not in (0, 1, 2, 5, 6, 7):
                return -E_INVAL
        page = <uint64_t>addr >> 12
        last = (<uint64_t>addr + <uint64_t>size - 1) >> 12
        a = p.sets + p.default_set
        access = p.supported if p.xnack else 0
        aip = 0
        set_flags = any_flags = DEFAULT_FLAGS
        preferred = prefetch = LOCATION_UNDEFINED
        granularity = p.granularity
        while ranges_next(p.tree, page, &e) and e.first <= last:
            a = attrs_of(p, e.value)
            if n == 0:
                access = aip = p.supported
                set_flags = 0xffffffffU
                any_flags = 0
                preferred = a.preferred
                prefetch = a.prefetch
                granularity = a.granularity
            n += 1
            access &= a.access
            aip &= a.aip
            set_flags &= a.flags
            any_flags |= a.flags
            if a.preferred != preferred:
                preferred = LOCATION_UNDEFINED
            if a.prefetch != prefetch:
                prefetch = LOCATION_UNDEFINED
            if a.granularity < granularity:
                granularity = a.granularity
            if e.last >= last:
                break
            page = e.last + 1
        simple = {
            ATTR_PREFERRED: preferred,
            ATTR_PREFETCH: prefetch,
            ATTR_SET_FLAGS: set_flags,
            ATTR_CLR_FLAGS: ~any_flags & 0xffffffffU,
            ATTR_GRANULARITY: granularity,
        }
        out = []
        for kind, value in attrs:
            if kind in simple:
                out.append((kind, simple[kind]))
                continue
            gpu = self.index.get(value)
            if gpu is None:
                return -E_INVAL
            answer = ATTR_NO_ACCESS
            if p.supported >> <uint32_t>gpu & 1:
                if access >> <uint32_t>gpu & 1:
                    answer = ATTR_ACCESS
                elif aip >> <uint32_t>gpu & 1:
                    answer = ATTR_AIP
            out.append((answer, value))
        self.result.out = out
        return 0

    def begin(self, t_ns, record=True):
        self.faulted = False
        return Process.begin(self, t_ns, record)

    def finish(self, ret=0):
        result = self.result
        if self.faulted:
            self.faulted = False
            result.reason = _REASONS[self.told.reason]
            result.unregistered = self.told.unregistered
            result.vram_fallback = self.told.vram_fallback
            result.migration = self.told.migration
            if self.told.best != NOWHERE:
                result.best_loc = location_id(self.gpus, self.told.best)
                result.window = (self.told.first, self.told.last)
        return Process.finish(self, ret)

    @cython.binding(False)  # a plain method descriptor: a faster call
    def fault(self, gpu_id, page, write, ts=0):
        """One delivery of a GPU page fault (section 10); :meth:`finish` tells how it ended."""
        cdef int gpu = self.index.get(gpu_id, -1)
        if gpu < 0:
            kfd_fault(self.p, gpu, page, write, ts, 0, &self.told)
        else:
            kfd_mode_of(self.p, 1 + gpu)
            kfd_deliver(self.p, <uint32_t>gpu, page, write, ts, 0, &self.told)
        self.faulted = True
        return self.told.ret

    def cpu_access(self, page):
        """A CPU touch: 0, 2 for SIGBUS, -EFAULT without a mapping (section 14)."""
        return kfd_cpu_access(self.p, page)

    def evict(self, page):
        """Memory pressure evicts the VRAM object of the range at *page*; -2 without one."""
        cdef uint32_t node = kfd_find(self.p, page)
        if node == 0 or not self.p.ranges[node].bits & RANGE_HAS_BO:
            return -E_NOENT
        bo_evict(self.p, self.p.ranges[node].bo)
        return 0

    def inject(self, what, n):
        """The next *n* steps of a kind fail, or the process is in a state until reset."""
        if what == "vram_fail":
            self.p.fail_vram = n
        elif what == "limit_fail":
            self.p.fail_limit = n
        elif what == "copy_fail":
            self.p.fail_copy = n
        elif what == "hmm_retry":
            self.p.fail_hmm = n
        else:
            self.p.state = STATES.index(what) if n else STATE_RUNNING
        return 0

    def set_xnack(self, on):
        """Switch the mode: ranges keep their bits, future defaults and rules change."""
        cdef bint before = self.p.xnack
        self.p.xnack = on
        if set_defaults(self.p):
            self.p.xnack = before
            raise OutOfMemoryError("no memory for an attribute set")

    def add_buffer(self, first, last):
        """Memory of the ordinary memory API lies at these pages."""
        add_span(&self.p.buffers, &self.p.nbuffers, &self.p.cap_buffers, first, last)

    def add_userptr(self, first, last):
        """These pages are registered through the other API."""
        add_span(&self.p.userptrs, &self.p.nuserptrs, &self.p.cap_userptrs, first, last)

    def pin(self, first, last):
        """These pages cannot move."""
        if res_pin(self.p.engine.res, first, last):
            raise OutOfMemoryError("no memory for the mask of pinned pages")

    def unpin(self):
        """Every page can move again."""
        res_unpin_all(self.p.engine.res)

    def set_ring(self, gpu_id, ts, pending):
        """State of a GPU's retry-fault ring: its newest entry, or empty."""
        cdef uint32_t gpu = self.index[gpu_id]
        self.p.ring_ts[gpu] = ts
        if pending:
            self.p.ring_set |= <uint64_t>1 << gpu
        else:
            self.p.ring_set &= ~(<uint64_t>1 << gpu)

    def run_deferred(self):
        """Deferred list work, in list order (section 13)."""
        return kfd_run_deferred(self.p)

    def run_restore(self):
        """Restore work: map what was invalidated, then let the queues run (section 11)."""
        return run_restore(self.p)

    # ---- views ----

    @property
    def xnack(self):
        """Whether GPU page faults are retried."""
        return bool(self.p.xnack)

    @property
    def restore_pending(self):
        """Whether the restore work is waiting."""
        return bool(self.p.restore_pending)

    @property
    def next_event_ns(self):
        """Time of the next pending work, None without any."""
        return ops_due(self.p) if self.p.ndeferred or self.p.restore_pending else None

    @property
    def nbytes(self):
        """Memory held, bytes."""
        cdef kfd_t* p = self.p
        return (
            sizeof(kfd_t)
            + ranges_nbytes(p.tree)
            + ranges_nbytes(p.vmas)
            + res_nbytes(p.engine.res)
            + <uint64_t>p.cap_ranges * (sizeof(range_t) + sizeof(links_t))
            + <uint64_t>p.cap_sides * sizeof(side_t)
            + <uint64_t>p.cap_sets * sizeof(attrs_t)
            + <uint64_t>p.cap_bos * sizeof(bo_t)
            + (evict_nbytes(p.order) if p.order != NULL else 0)
        )

    def __len__(self):
        """Number of ranges."""
        return self.p.live_ranges

    def ranges(self, first=0, last=0xffffffffffffffff):
        """Ranges that overlap ``[first, last]`` in address order, vector field order."""
        cdef kfd_t* p = self.p
        cdef range_entry_t e
        cdef range_t* r
        cdef attrs_t* a
        cdef uint64_t page = first, stop = last
        nodes = []
        lowest = {}
        while ranges_next(p.tree, page, &e) and e.first <= stop:
            r = p.ranges + e.value
            nodes.append((r.start, e.value))
            if e.last >= stop:
                break
            page = e.last + 1
        nodes.sort()
        rows = []
        for _, node in nodes:
            r = p.ranges + <uint32_t>node
            a = p.sets + r.attrs
            held = -1
            if r.bits & RANGE_HAS_BO:
                held = lowest.setdefault(r.bo, r.start)
            rows.append((
                r.start, r.last, a.preferred, a.prefetch, location_id(self.gpus, r.actual),
                a.granularity, a.flags, a.access, a.aip, r.mapped, r.vram_pages,
                int(r.bits & RANGE_DONE != 0), r.validate_ns // 1000,
                res_count_vram(p.engine.res, r.start, r.last), held,
            ))
        return rows

    def find(self, page):
        """Row of the range at *page* (see :meth:`ranges`), None without one."""
        cdef uint32_t node = kfd_find(self.p, page)
        if node == 0:
            return None
        start = self.p.ranges[node].start
        rows = self.ranges(page, page)
        return rows[0] if rows and rows[0][0] == start else None

    def starts(self):
        """Range starts in the order of the process's list."""
        cdef uint32_t node = self.p.list_head
        out = []
        while node:
            out.append(self.p.ranges[node].start)
            node = self.p.links[node].next
        return out

    def pending(self):
        """Deferred work not yet run: each entry, then its children."""
        cdef kfd_t* p = self.p
        cdef uint32_t i, child
        names = ("", "unmap", "update_notifier", "add")
        rows = []
        for i in range(p.ndeferred):
            rows.append(piece_row(p, p.deferred[i], names, 0))
            child = first_child(p, p.deferred[i])
            while child:
                rows.append(piece_row(p, child, names, 1))
                child = next_child(p, child)
        return rows

    def counters(self):
        """A GPU: faults, pages in, pages out, pages of living objects (twice, as the driver)."""
        cdef kfd_t* p = self.p
        cdef uint32_t i, number
        used = [0] * p.ngpus
        number = p.first_bo
        while number:
            used[p.bos[number].gpu] += p.bos[number].npages
            number = p.bos[number].next
        return [
            (
                p.engine.processors[1 + i].driver_faults,
                p.engine.processors[1 + i].pages_in,
                p.engine.processors[1 + i].pages_out,
                used[i],
                used[i],
            )
            for i in range(p.ngpus)
        ]

    def where(self, page):
        """Where one page is: -1 nowhere yet, 0 system memory, 1 + i GPU i."""
        return res_where(self.p.engine.res, page)

    def mapped(self, gpu, page, write=False):
        """Whether GPU *gpu* (its index) can touch the page without a fault."""
        cdef uint64_t stop
        return not res_first_unmapped(self.p.engine.res, gpu, page, page, write, &stop)

    def page_states(self, first, last):
        """Each page of a span at once, a byte a page.

        Where it is (255 nowhere yet, 0 system memory, 1 + i GPU i), then for
        each GPU what it may do without a fault (0 nothing, 1 read, 2 write).
        """
        cdef residency_t* res = self.p.engine.res
        cdef uint64_t low = first, count = last - first + 1, i, stop
        cdef uint32_t gpu
        cdef unsigned char[::1] view
        rows = [bytearray(count) for _ in range(1 + self.p.ngpus)]
        view = rows[0]
        for i in range(count):
            view[i] = <uint8_t>(res_where(res, low + i) & 0xff)
        for gpu in range(self.p.ngpus):
            view = rows[1 + gpu]
            for i in range(count):
                if not res_first_unmapped(res, gpu, low + i, low + i, False, &stop):
                    view[i] = 1 + (
                        not res_first_unmapped(res, gpu, low + i, low + i, True, &stop)
                    )
        return [bytes(row) for row in rows]

    def vma(self, page):
        """The CPU mapping at *page*: (first, last, protection, kind), None without one."""
        cdef uint64_t end
        cdef uint32_t code = vma_at(self.p, page, &end)
        if code == 0:
            return None
        return mapping_row(self.p.vma_first, end, code)

    def next_vma(self, page):
        """First page of the next CPU mapping that ends at or after *page*, None without one."""
        cdef range_entry_t e
        return e.first if ranges_next(self.p.vmas, page, &e) else None

    def work(self):
        """Work counters of the range tree, by name; exact for a given sequence."""
        cdef ranges_work_t w
        ranges_work(self.p.tree, &w)
        return dict(w)

    def check(self):
        """Every invariant.

        Raises
        ------
        AssertionError
            Naming the rule that is broken.
        """
        cdef int rule = kfd_check(self.p)
        if rule:
            raise AssertionError(_RULES[rule])


# ---- helpers of the Python face ---------------------------------------------------------

cdef void take_rules(rules_t* r, object rules) except *:
    r.window_migration = rules.window_migration
    r.cpu_fault_splits = rules.cpu_fault_splits
    r.prefetch_same_is_noop = rules.prefetch_same_is_noop
    r.prefetch_failure_is_error = rules.prefetch_failure_is_error
    r.mapping_error_stops = rules.mapping_error_stops
    r.remap_test = ("", "last", "end").index(rules.remap_test)
    r.same_needs_mapping = rules.same_needs_mapping
    r.access_remaps_with_xnack = rules.access_remaps_with_xnack
    r.no_access_unmaps = rules.no_access_unmaps
    r.mapped_per_gpu = rules.mapped_per_gpu
    r.stale_by_timestamp = rules.stale_by_timestamp
    r.again_counted = rules.again_counted
    r.reserves_vram = rules.reserves_vram
    r.overflow_check = rules.overflow_check
    r.reports_eviction = rules.reports_eviction
    r.always_mapped_maps = rules.always_mapped_maps


cdef void take_gpus(kfd_t* p, tuple gpus, bint apu_prefers_system) except *:
    cdef uint32_t i, j
    p.ngpus = len(gpus)
    for i, gpu in enumerate(gpus):
        p.gpus[i].id = gpu.id
        if gpu.vram_pages >> 32:
            raise InvalidArgumentError(
                f"gpu {gpu.id}: {gpu.vram_pages} pages of memory, expected less than 2**32"
            )
        p.gpus[i].vram_pages = gpu.vram_pages
        p.gpus[i].device = i if gpu.adev < 0 else gpu.adev
        p.gpus[i].prefers_system = gpu.apu and apu_prefers_system
        p.gpus[i].svm = gpu.svm
        p.gpus[i].coherent = gpu.coherent
        if gpu.svm:
            p.supported |= <uint64_t>1 << i
    for i in range(p.ngpus):
        for j in range(p.ngpus):
            same_device = p.gpus[i].device == p.gpus[j].device
            same_hive = gpus[i].hive != 0 and gpus[i].hive == gpus[j].hive
            if same_device or same_hive:
                p.gpus[i].reach |= <uint64_t>1 << j
            # Pages belong to the hive where there is one, else to the device.
            if same_hive or (same_device and gpus[i].hive == 0 and gpus[j].hive == 0):
                p.gpus[i].owner_peers |= <uint64_t>1 << j


cdef object largest_range(tuple gpus):
    """Module limit: a 32nd of the smallest VRAM, a power of two of 512 to 262144 pages."""
    smallest = min((gpu.vram_pages for gpu in gpus), default=1 << 23)
    pages = min(max(smallest * 4096 >> 17, 512), 262144)
    return 1 << (pages.bit_length() - 1)


cdef object piece_row(kfd_t* p, uint32_t node, tuple names, int child):
    return p.ranges[node].start, p.ranges[node].last, names[pending_of(p, node)], child


cdef void add_span(span_t** spans, uint32_t* n, uint32_t* cap, uint64_t first,
                   uint64_t last) except *:
    if not more(<void**>spans, cap, <uint64_t>n[0] + 1, sizeof(span_t)):
        raise OutOfMemoryError("no memory for a registered span")
    spans[0][n[0]].first = first
    spans[0][n[0]].last = last
    n[0] += 1
