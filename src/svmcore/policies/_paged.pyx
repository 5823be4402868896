# cython: language_level=3, freethreading_compatible=True
"""A process whose decisions a policy in Python makes, in units of device memory.

Owns mappings, advice, marks and the units of device memory of one process. A
touch of pages that the processor reaches is answered here, by masks; any other
page is a fault, for which the policy is asked, and whose actions are executed
in their order. One thread at a time uses a process, and the processes of one
node.
"""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from .._evict cimport (
    ORDER_FIFO,
    ORDER_RANDOM,
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
    MAX_GPUS,
    REASON_MIGRATE_FAILED,
    REASON_NEVER_RESOLVES,
    REASON_NO_ACCESS,
    REASON_NO_MAPPING,
    REASON_NO_MEMORY,
    REASON_OK,
    REASON_PERMISSION,
    REASON_RETRY_LATER,
    TRIGGER_CPU_FAULT,
    TRIGGER_EVICTION,
    TRIGGER_GPU_FAULT,
    TRIGGER_PREFETCH,
    UNMAP_FROM_CPU,
    UNMAP_NOTIFY,
    UNMAP_NOTIFY_MIGRATE,
    engine_free,
    engine_log,
    engine_map,
    engine_moved,
    engine_new,
    engine_t,
    engine_unmap,
    fault_window,
    transfer_ns,
    trigger_t,
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
    process_check,
    process_join,
    touch_t,
)
from .._ranges cimport (
    range_entry_t,
    ranges_assign,
    ranges_begin,
    ranges_commit,
    ranges_find,
    ranges_free,
    ranges_nbytes,
    ranges_new,
    ranges_next,
    ranges_rollback,
    ranges_t,
)
from .._residency cimport (
    MASK_COPY,
    MASK_MAPPED,
    MASK_READ_ONLY,
    MASK_SYSTEM,
    MASK_VRAM,
    GROUP_BLOCKS,
    NO_BLOCK,
    SLOT_CPU,
    block_t,
    ctz64,
    find_block,
    find_line,
    gather_vram,
    line_t,
    need_line,
    next_block,
    popcount64,
    res_count,
    res_drop,
    res_grow,
    res_nbytes,
    res_populate,
    res_reserve,
    res_resize,
    res_where,
    residency_t,
    span_word,
)
from .._types cimport (
    E_ACCES,
    E_EXIST,
    E_FAULT,
    E_INVAL,
    E_IO,
    E_LOOP,
    E_NOENT,
    E_NOMEM,
    E_PERM,
    KIND_PREFETCH,
    record_t,
)

from .._faults import REASONS as _REASONS
from ..errors import InvalidArgumentError, NotSupportedError, OutOfMemoryError
from ..records import processor_name
from .actions import (
    Advice,
    Drop,
    Duplicate,
    Fail,
    Fault,
    Map,
    Mark,
    Move,
    Retry,
    Unmap,
)
from .outcome import Outcome

cdef enum:
    RETRIES = 16           # deliveries of one access without progress before it is fatal
    VMA_READ_WRITE = 1 + 3
    PROT_READ = 1
    PROT_WRITE = 2
    DEVICE_KINDS = 4       # first kind of mapping that is device memory
    LINES = 6              # most mask lines that one action adds to a block
    FLAG_READ_MOSTLY = 0x20
    DEFAULT_FLAGS = 3
    # Numbers of the attributes of the ioctl.
    ATTR_PREFERRED = 0
    ATTR_PREFETCH = 1
    ATTR_ACCESS = 2
    ATTR_IN_PLACE = 3
    ATTR_NO_ACCESS = 4
    ATTR_SET_FLAGS = 5
    ATTR_CLR_FLAGS = 6
    ATTR_GRANULARITY = 7

FAIL_REASONS = {
    "EACCES": (-E_ACCES, REASON_NO_ACCESS),
    "EPERM": (-E_PERM, REASON_PERMISSION),
    "EFAULT": (-E_FAULT, REASON_NO_MAPPING),
}

# What a span of pages would take to move.
cdef struct survey_t:
    uint64_t pages         # whose home changes
    uint64_t host          # to be copied from system memory
    uint64_t mappers       # GPUs that map a page of it where it is now
    uint64_t holders       # GPUs that hold a page or a copy of it
    uint64_t peers         # GPUs that pages are to be copied from
    bint cpu_maps


# ---- masks ------------------------------------------------------------------------------

cdef inline uint32_t low_bit(uint64_t number, uint64_t first) noexcept nogil:
    return <uint32_t>(first & 511) if number == first >> 9 else 0


cdef inline uint32_t high_bit(uint64_t number, uint64_t last) noexcept nogil:
    return <uint32_t>(last & 511) if number == last >> 9 else 511


cdef void get_line(residency_t* r, uint32_t block, uint32_t tag,
                   uint64_t* out) noexcept nogil:
    """The mask, zeros where the block has none."""
    cdef uint64_t* line = find_line(r, block, tag)
    cdef uint32_t w
    for w in range(8):
        out[w] = line[w] if line != NULL else 0


cdef inline uint32_t slot_of(uint32_t processor) noexcept nogil:
    return processor - 1 if processor else SLOT_CPU


cdef void gather_copies(residency_t* r, uint32_t block, uint64_t* out) noexcept nogil:
    """Union of the block's masks of copies."""
    cdef block_t* b
    cdef uint32_t i, w
    memset(out, 0, sizeof(line_t))
    while block:
        b = r.blocks + block
        for i in range(b.n):
            if b.tags[i] >> 8 == MASK_COPY:
                for w in range(8):
                    out[w] |= r.lines[b.lines[i]].w[w]
        block = b.more


cdef void clear_span(residency_t* r, uint32_t tag, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9
    cdef uint32_t block, w, lo, hi
    cdef uint64_t* line
    while True:
        block = next_block(r, &number, last >> 9)
        if block == NO_BLOCK:
            return
        line = find_line(r, block, tag)
        if line != NULL:
            lo = low_bit(number, first)
            hi = high_bit(number, last)
            for w in range(lo >> 6, (hi >> 6) + 1):
                line[w] &= ~span_word(w, lo, hi)
        if number == last >> 9:
            return
        number += 1


cdef void reached(paged_t* t, uint32_t block, uint32_t processor, bint write,
                  uint64_t* out) noexcept nogil:
    """Pages of a block that the processor touches without a fault."""
    cdef residency_t* r = t.engine.res
    cdef uint64_t vram[8]
    cdef uint64_t copies[8]
    cdef uint64_t own[8]
    cdef uint64_t fixed[8]
    cdef uint32_t slot = slot_of(processor), w
    get_line(r, block, MASK_MAPPED << 8 | slot, out)
    get_line(r, block, MASK_READ_ONLY << 8 | slot, fixed)
    if processor:
        if write:
            for w in range(8):
                out[w] &= ~fixed[w]
        return
    gather_vram(r, block, vram)
    gather_copies(r, block, copies)
    get_line(r, block, MASK_COPY << 8 | SLOT_CPU, own)
    for w in range(8):
        if write:
            out[w] = (~vram[w] | (out[w] & ~fixed[w])) & ~copies[w]
        else:
            out[w] |= ~vram[w] | own[w]


cdef uint64_t first_fault(paged_t* t, uint32_t processor, uint64_t first, uint64_t last,
                          bint write) noexcept nogil:
    """First page of the span that faults, last + 1 without one."""
    cdef uint64_t number = first >> 9, m
    cdef uint64_t out[8]
    cdef uint32_t block, w, lo, hi
    while True:
        lo = low_bit(number, first)
        hi = high_bit(number, last)
        block = find_block(t.engine.res, number)
        if block == NO_BLOCK:
            if processor:
                return (number << 9) + lo
        else:
            reached(t, block, processor, write, out)
            for w in range(lo >> 6, (hi >> 6) + 1):
                m = span_word(w, lo, hi) & ~out[w]
                if m:
                    return (number << 9) + (w << 6) + ctz64(m)
        if number == last >> 9:
            return last + 1
        number += 1


# ---- units of device memory -------------------------------------------------------------

cdef inline uint32_t hash_chunk(uint64_t index, uint32_t gpu, uint32_t mask) noexcept nogil:
    return <uint32_t>(((index << 6 | gpu) * <uint64_t>0x9E3779B97F4A7C15U) >> 32) & mask


cdef uint32_t find_chunk(paged_t* t, uint64_t index, uint32_t gpu) noexcept nogil:
    """The unit taken of the GPU's memory for these pages; 0 without one."""
    cdef uint32_t slot, number
    if t.nslots == 0:
        return 0
    slot = hash_chunk(index, gpu, t.nslots - 1)
    while True:
        number = t.slots[slot]
        if number == 0 or (t.chunks[number].index == index and t.chunks[number].gpu == gpu):
            return number
        slot = (slot + 1) & (t.nslots - 1)


cdef void enter_slot(paged_t* t, uint32_t number) noexcept nogil:
    cdef chunk_t* c = t.chunks + number
    cdef uint32_t slot = hash_chunk(c.index, c.gpu, t.nslots - 1)
    while t.slots[slot]:
        slot = (slot + 1) & (t.nslots - 1)
    t.slots[slot] = number


cdef void leave_slot(paged_t* t, uint32_t number) noexcept nogil:
    """Empty its slot and close the gap, so that no search stops short."""
    cdef uint32_t mask = t.nslots - 1, gap, slot, home
    cdef chunk_t* c = t.chunks + number
    gap = hash_chunk(c.index, c.gpu, mask)
    while t.slots[gap] != number:
        gap = (gap + 1) & mask
    slot = gap
    while True:
        slot = (slot + 1) & mask
        if t.slots[slot] == 0:
            break
        c = t.chunks + t.slots[slot]
        home = hash_chunk(c.index, c.gpu, mask)
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            t.slots[gap] = t.slots[slot]
            gap = slot
    t.slots[gap] = 0


cdef bint reserve_chunks(paged_t* t, uint64_t count) noexcept nogil:
    """Room for so many more units."""
    cdef uint64_t want = <uint64_t>t.nchunks + count
    cdef uint32_t nslots = t.nslots if t.nslots else 16, number
    cdef uint32_t* slots
    if not res_grow(<void**>&t.chunks, &t.cap_chunks, want, sizeof(chunk_t)):
        return False
    if not res_grow(<void**>&t.fresh, &t.cap_fresh, t.nfresh + count, sizeof(uint32_t)):
        return False
    if not evict_reserve(t.order, want, t.ngpus):
        return False
    while nslots < 2 * (t.live + count):
        nslots *= 2
    if nslots != t.nslots:
        slots = <uint32_t*>res_resize(NULL, <size_t>nslots * sizeof(uint32_t))
        if slots == NULL:
            return False
        memset(slots, 0, <size_t>nslots * sizeof(uint32_t))
        free(t.slots)
        t.slots = slots
        t.nslots = nslots
        for number in range(1, t.nchunks):
            if t.chunks[number].state != CHUNK_FREE:
                enter_slot(t, number)
    return True


cdef uint32_t take_chunk(paged_t* t, uint64_t index, uint32_t gpu) noexcept nogil:
    """A unit is taken; memory for it and room on the device are there."""
    cdef uint32_t number = t.free_chunk
    cdef chunk_t* c
    if number:
        t.free_chunk = t.chunks[number].next_free
    else:
        number = t.nchunks
        t.nchunks += 1
    c = t.chunks + number
    c.index = index
    c.gpu = <uint8_t>gpu
    c.state = CHUNK_NEW
    enter_slot(t, number)
    t.live += 1
    t.fresh[t.nfresh] = number
    t.nfresh += 1
    t.node.used[gpu] += <uint64_t>1 << t.unit
    t.taken[gpu] += <uint64_t>1 << t.unit
    return number


cdef void give_chunk(paged_t* t, uint32_t number) noexcept nogil:
    """An empty unit goes back."""
    cdef chunk_t* c = t.chunks + number
    leave_slot(t, number)
    evict_remove(t.order, number)
    t.node.used[c.gpu] -= <uint64_t>1 << t.unit
    t.taken[c.gpu] -= <uint64_t>1 << t.unit
    c.state = CHUNK_FREE
    c.next_free = t.free_chunk
    t.free_chunk = number
    t.live -= 1


cdef void hold_fresh(paged_t* t) noexcept nogil:
    """The operation is over: what it took can be evicted from now on."""
    cdef uint32_t i
    cdef chunk_t* c
    for i in range(t.nfresh):
        c = t.chunks + t.fresh[i]
        if c.state == CHUNK_NEW:
            c.state = CHUNK_HELD
            evict_insert(t.order, t.fresh[i], c.gpu, t.node.sequence)
            t.node.sequence += 1
    t.nfresh = 0


cdef inline bint holds_nothing(paged_t* t, uint64_t index, uint32_t gpu) noexcept nogil:
    cdef uint64_t first = index << t.unit, last = first + ((<uint64_t>1 << t.unit) - 1)
    return res_count(t.engine.res, MASK_VRAM << 8 | gpu, first, last) == 0 and (
        res_count(t.engine.res, MASK_COPY << 8 | gpu, first, last) == 0
    )


cdef void give_if_empty(paged_t* t, uint64_t index, uint64_t gpus) noexcept nogil:
    """Units of these GPUs that hold nothing any more go back."""
    cdef uint32_t gpu, number
    while gpus:
        gpu = ctz64(gpus)
        gpus &= gpus - 1
        number = find_chunk(t, index, gpu)
        if number and holds_nothing(t, index, gpu):
            give_chunk(t, number)


# ---- moves ------------------------------------------------------------------------------

cdef void survey(paged_t* t, uint32_t to, uint64_t first, uint64_t last,
                 survey_t* out, uint64_t* from_gpu) noexcept nogil:
    """What making processor *to* the home of the pages means; from_gpu counts copies by source."""
    cdef residency_t* r = t.engine.res
    cdef uint64_t number = first >> 9, m, need
    cdef uint64_t vram[8]
    cdef uint64_t own[8]
    cdef uint64_t have[8]
    cdef uint64_t copy[8]
    cdef uint64_t moving[8]
    cdef uint32_t block, w, lo, hi, gpu
    cdef uint64_t* line
    memset(out, 0, sizeof(survey_t))
    memset(from_gpu, 0, t.ngpus * sizeof(uint64_t))
    while True:
        block = find_block(r, number)
        lo = low_bit(number, first)
        hi = high_bit(number, last)
        gather_vram(r, block, vram)
        get_line(r, block, MASK_COPY << 8 | slot_of(to), have)
        if to:
            get_line(r, block, MASK_VRAM << 8 | (to - 1), own)
        memset(moving, 0, sizeof(moving))
        for w in range(lo >> 6, (hi >> 6) + 1):
            moving[w] = span_word(w, lo, hi) & (~own[w] if to else vram[w])
            out.pages += popcount64(moving[w])
            if to:
                out.host += popcount64(moving[w] & ~vram[w] & ~have[w])
        for gpu in range(t.ngpus):
            line = find_line(r, block, MASK_VRAM << 8 | gpu)
            get_line(r, block, MASK_COPY << 8 | gpu, copy)
            m = need = 0
            if line != NULL and gpu + 1 != to:
                for w in range(8):
                    m |= moving[w] & line[w]
                    need += popcount64(moving[w] & line[w] & ~have[w])
            for w in range(8):
                m |= moving[w] & copy[w]
            if m:
                out.holders |= <uint64_t>1 << gpu
            if need:
                from_gpu[gpu] += need
                out.peers |= <uint64_t>1 << gpu
            line = find_line(r, block, MASK_MAPPED << 8 | gpu)
            if line != NULL:
                m = 0
                for w in range(8):
                    m |= moving[w] & line[w]
                if m:
                    out.mappers |= <uint64_t>1 << gpu
        line = find_line(r, block, MASK_MAPPED << 8 | SLOT_CPU)
        if line != NULL:
            for w in range(8):
                if moving[w] & line[w]:
                    out.cpu_maps = True
        if number == last >> 9:
            return
        number += 1


cdef void set_home(paged_t* t, uint32_t to, uint64_t first, uint64_t last) noexcept nogil:
    """The pages' home is *to*, and nobody has a copy; lines are reserved."""
    cdef residency_t* r = t.engine.res
    cdef uint64_t number = first >> 9, m
    cdef uint64_t moving[8]
    cdef uint64_t own[8]
    cdef uint64_t vram[8]
    cdef uint32_t block, part, i, w, lo, hi, tag
    cdef block_t* b
    cdef uint64_t* system
    cdef uint64_t* line
    while True:
        block = find_block(r, number)
        lo = low_bit(number, first)
        hi = high_bit(number, last)
        gather_vram(r, block, vram)
        system = need_line(r, block, MASK_SYSTEM << 8)
        if to:
            line = need_line(r, block, MASK_VRAM << 8 | (to - 1))
            for w in range(8):
                own[w] = line[w]
        memset(moving, 0, sizeof(moving))
        for w in range(lo >> 6, (hi >> 6) + 1):
            moving[w] = span_word(w, lo, hi) & (~own[w] if to else vram[w])
        part = block
        while part:
            b = r.blocks + part
            for i in range(b.n):
                tag = b.tags[i]
                if tag >> 8 == MASK_COPY or tag >> 8 == MASK_VRAM or tag == MASK_SYSTEM << 8:
                    line = r.lines[b.lines[i]].w
                    for w in range(8):
                        m = moving[w] & line[w]
                        if tag >> 8 == MASK_COPY:
                            t.engine.counters.dropped_pages += popcount64(m)
                        line[w] &= ~m
            part = b.more
        line = need_line(r, block, MASK_VRAM << 8 | (to - 1)) if to else system
        for w in range(8):
            line[w] |= moving[w]
        if number == last >> 9:
            return
        number += 1


cdef uint64_t carry(paged_t* t, uint32_t to, uint64_t first, uint64_t last,
                    trigger_t trigger) noexcept nogil:
    """Move pages inside one unit; room and lines are there. How many found another home."""
    cdef survey_t s
    cdef uint64_t from_gpu[MAX_GPUS]
    cdef engine_t* e = t.engine
    cdef uint32_t gpu
    survey(t, to, first, last, &s, from_gpu)
    if s.pages == 0:
        return 0
    engine_unmap(e, s.mappers, first, last, UNMAP_NOTIFY_MIGRATE)
    if s.cpu_maps:
        clear_span(e.res, MASK_MAPPED << 8 | SLOT_CPU, first, last)
    set_home(t, to, first, last)
    if s.host:
        engine_moved(e, first, last, 0, <uint8_t>to, trigger, s.host)
        e.processors[to].pages_in += s.host
    while s.peers:
        gpu = ctz64(s.peers)
        s.peers &= s.peers - 1
        e.processors[1 + gpu].pages_out += from_gpu[gpu]
        if to == 0:
            engine_moved(e, first, last, <uint8_t>(1 + gpu), 0, trigger, from_gpu[gpu])
            continue
        e.processors[to].pages_in += from_gpu[gpu]
        if t.direct[to - 1] >> gpu & 1:
            engine_moved(e, first, last, <uint8_t>(1 + gpu), <uint8_t>to, trigger, from_gpu[gpu])
        else:
            engine_moved(e, first, last, <uint8_t>(1 + gpu), 0, trigger, from_gpu[gpu])
            engine_moved(e, first, last, 0, <uint8_t>to, trigger, from_gpu[gpu])
    if to:
        s.holders &= ~(<uint64_t>1 << (to - 1))
    give_if_empty(t, first >> t.unit, s.holders)
    return s.pages


cdef void drop_copies(paged_t* t, uint32_t at, uint64_t first, uint64_t last) noexcept nogil:
    """Copies of pages inside one unit go, with the holder's mapping of them."""
    cdef uint32_t slot = slot_of(at)
    cdef uint64_t n = res_count(t.engine.res, MASK_COPY << 8 | slot, first, last)
    if n == 0:
        return
    t.engine.counters.dropped_pages += n
    if at:
        engine_unmap(t.engine, <uint64_t>1 << (at - 1), first, last, UNMAP_NOTIFY)
    clear_span(t.engine.res, MASK_COPY << 8 | slot, first, last)
    if at:
        give_if_empty(t, first >> t.unit, <uint64_t>1 << (at - 1))


cdef void evict_chunk(paged_t* t, uint32_t number) noexcept nogil:
    """Its pages go to system memory, those with a copy there without a transfer; copies go."""
    cdef uint32_t gpu = t.chunks[number].gpu
    cdef uint64_t index = t.chunks[number].index
    cdef uint64_t first = index << t.unit, last = first + ((<uint64_t>1 << t.unit) - 1)
    cdef engine_t* e = t.engine
    cdef uint64_t page, stop
    cdef bint held = False
    e.counters.evictions += 1
    e.cost_ns += e.costs.evict_ns
    engine_log(e, EVENT_EVICT_OBJECT, last - first + 1, 0, <uint8_t>(1 + gpu), 0, 0, t.device[gpu])
    drop_copies(t, 1 + gpu, first, last)
    if find_chunk(t, index, gpu) != number:
        return
    # Pages of the unit that live on another GPU stay there.
    page = first
    while page <= last:
        stop = gpu_run(t, gpu, page, last, &held)
        if held:
            carry(t, 0, page, stop, TRIGGER_EVICTION)
        page = stop + 1
    if find_chunk(t, index, gpu) == number:
        give_chunk(t, number)


cdef uint64_t gpu_run(paged_t* t, uint32_t gpu, uint64_t first, uint64_t last,
                      bint* held) noexcept nogil:
    """Last page of the run from *first* that is all in, or all outside, the GPU's memory.

    Pages that are in no GPU's memory join a run of pages that are in this one's.
    """
    cdef residency_t* r = t.engine.res
    cdef uint64_t number = first >> 9, m
    cdef uint32_t block, w, lo, hi
    cdef uint64_t vram[8]
    cdef uint64_t own[8]
    cdef bint known = False
    while True:
        lo = low_bit(number, first)
        hi = high_bit(number, last)
        block = find_block(r, number)
        gather_vram(r, block, vram)
        get_line(r, block, MASK_VRAM << 8 | gpu, own)
        if not known:
            held[0] = own[lo >> 6] >> (lo & 63) & 1
            known = True
        for w in range(lo >> 6, (hi >> 6) + 1):
            m = span_word(w, lo, hi) & (vram[w] & ~own[w] if held[0] else own[w])
            if m:
                return (number << 9) + (w << 6) + ctz64(m) - 1
        if number == last >> 9:
            return last
        number += 1


cdef uint64_t oldest_age(void* state, uint32_t gpu) noexcept nogil:
    cdef paged_t* t = <paged_t*>state
    cdef uint32_t number = evict_victim(t.order, gpu)
    return age_of(AGE_USED, t.order.units[number].stamp) if number else KEEPS


cdef bint evict_oldest(void* state, uint32_t gpu) noexcept nogil:
    cdef paged_t* t = <paged_t*>state
    evict_chunk(t, evict_victim(t.order, gpu))
    return True


cdef bint room_for(paged_t* t, uint32_t gpu) noexcept nogil:
    """One more unit fits on the GPU, after evictions where it has to be."""
    cdef uint64_t size = <uint64_t>1 << t.unit
    cdef uint32_t victim
    if size > t.capacity[gpu] or size > t.quota:
        return False
    while t.taken[gpu] + size > t.quota:
        victim = evict_victim(t.order, gpu)
        if victim == 0:
            return False
        evict_chunk(t, victim)
    return node_make_room(t.node, t.engine, gpu, size, t.capacity[gpu]) == 0


cdef uint32_t need_chunk(paged_t* t, uint64_t index, uint32_t gpu) noexcept nogil:
    """The unit for these pages, taken where it is not yet; 0 without room."""
    cdef uint32_t number = find_chunk(t, index, gpu)
    if number == 0 and reserve_chunks(t, 1) and room_for(t, gpu):
        number = take_chunk(t, index, gpu)
    return number


cdef int move(paged_t* t, uint32_t to, uint64_t first, uint64_t last,
              trigger_t trigger) noexcept nogil:
    """Unit by unit, until room runs out; -ENOMEM when the model has no memory for masks."""
    cdef uint64_t page = first, stop
    if res_reserve(t.engine.res, first, last, LINES):
        return -E_NOMEM
    while True:
        stop = page | ((<uint64_t>1 << t.unit) - 1)
        if stop > last:
            stop = last
        if to and need_chunk(t, page >> t.unit, to - 1) == 0:
            engine_moved(t.engine, page, stop, 0, <uint8_t>to, trigger, 0)
            return 0
        carry(t, to, page, stop, trigger)
        if stop == last:
            return 0
        page = stop + 1


cdef int duplicate(paged_t* t, uint32_t to, uint64_t first, uint64_t last) noexcept nogil:
    """A copy of the pages for *to*, where neither page nor copy is there yet."""
    cdef residency_t* r = t.engine.res
    cdef engine_t* e = t.engine
    cdef uint64_t page = first, stop, number, need, host, other, staged
    cdef bint writers
    cdef uint64_t vram[8]
    cdef uint64_t system_copy[8]
    cdef uint64_t near[8]
    cdef uint64_t added[8]
    cdef uint32_t block, w, lo, hi, gpu, slot
    cdef uint64_t* line
    cdef uint64_t* fixed
    if res_reserve(r, first, last, LINES + 2 * (t.ngpus + 1)):
        return -E_NOMEM
    res_populate(r, first, last)
    while True:
        stop = page | ((<uint64_t>1 << t.unit) - 1)
        if stop > last:
            stop = last
        if to and need_chunk(t, page >> t.unit, to - 1) == 0:
            return 0
        host = other = staged = 0
        writers = False
        number = page >> 9
        while True:
            block = find_block(r, number)
            lo = low_bit(number, page)
            hi = high_bit(number, stop)
            gather_vram(r, block, vram)
            get_line(r, block, MASK_COPY << 8 | SLOT_CPU, system_copy)
            memset(near, 0, sizeof(near))
            if to:
                for gpu in range(t.ngpus):
                    if t.direct[to - 1] >> gpu & 1:
                        line = find_line(r, block, MASK_VRAM << 8 | gpu)
                        if line != NULL:
                            for w in range(8):
                                near[w] |= line[w]
            line = need_line(r, block, MASK_COPY << 8 | slot_of(to))
            fixed = find_line(r, block, MASK_VRAM << 8 | (to - 1)) if to else NULL
            memset(added, 0, sizeof(added))
            for w in range(lo >> 6, (hi >> 6) + 1):
                need = span_word(w, lo, hi) & ~line[w]
                if to == 0:
                    need &= vram[w]
                elif fixed != NULL:
                    need &= ~fixed[w]
                line[w] |= need
                added[w] = need
                e.counters.duplicated_pages += popcount64(need)
                if to == 0:
                    host += popcount64(need)
                else:
                    other += popcount64(need & near[w])
                    host += popcount64(need & ~near[w])
                    # By way of system memory, unless a copy is there already.
                    staged += popcount64(need & vram[w] & ~near[w] & ~system_copy[w])
            # Whoever maps the pages reads only from now on.
            for slot in range(t.ngpus + 1):
                if slot == t.ngpus:
                    slot = SLOT_CPU
                line = find_line(r, block, MASK_MAPPED << 8 | slot)
                if line == NULL:
                    continue
                fixed = need_line(r, block, MASK_READ_ONLY << 8 | slot)
                for w in range(8):
                    if added[w] & line[w] & ~fixed[w]:
                        writers = True
                        fixed[w] |= added[w] & line[w]
            if number == stop >> 9:
                break
            number += 1
        if writers:
            e.cost_ns += e.costs.unmap_ns
        if staged:
            e.cost_ns += transfer_ns(&e.costs.to_host, staged)
        if host:
            e.cost_ns += transfer_ns(&e.costs.to_device if to else &e.costs.to_host, host)
        if other:
            e.cost_ns += transfer_ns(&e.costs.peer, other)
        if stop == last:
            return 0
        page = stop + 1


# How a page can enter a processor's page tables.
cdef enum map_kind:
    MAP_NOT                # out of reach
    MAP_READ               # it has copies, or writing is not asked for
    MAP_WRITE


cdef uint64_t map_run(paged_t* t, uint32_t by, uint64_t first, uint64_t last, bint write,
                      map_kind* kind) noexcept nogil:
    """Last page of the run from *first* that *by* can map in one way."""
    cdef residency_t* r = t.engine.res
    cdef uint64_t number = first >> 9, m
    cdef uint64_t far[8]
    cdef uint64_t shared[8]
    cdef uint64_t own[8]
    cdef uint32_t block, gpu, w, lo, hi
    cdef uint64_t* line
    cdef bint known = False
    while True:
        block = find_block(r, number)
        lo = low_bit(number, first)
        hi = high_bit(number, last)
        memset(far, 0, sizeof(far))
        for gpu in range(t.ngpus):
            line = find_line(r, block, MASK_VRAM << 8 | gpu)
            if line != NULL and not t.reach[by] >> gpu & 1:
                for w in range(8):
                    far[w] |= line[w]
        get_line(r, block, MASK_COPY << 8 | slot_of(by), own)
        gather_copies(r, block, shared)
        for w in range(8):
            far[w] &= ~own[w]
        if not known:
            w = lo >> 6
            known = True
            if far[w] >> (lo & 63) & 1:
                kind[0] = MAP_NOT
            elif write and not shared[w] >> (lo & 63) & 1:
                kind[0] = MAP_WRITE
            else:
                kind[0] = MAP_READ
        for w in range(lo >> 6, (hi >> 6) + 1):
            if kind[0] == MAP_NOT:
                m = ~far[w]
            elif not write:
                m = far[w]
            elif kind[0] == MAP_WRITE:
                m = far[w] | shared[w]
            else:
                m = far[w] | ~shared[w]
            m &= span_word(w, lo, hi)
            if m:
                return (number << 9) + (w << 6) + ctz64(m) - 1
        if number == last >> 9:
            return last
        number += 1


cdef void map_on_cpu(paged_t* t, uint64_t first, uint64_t last, bint write) noexcept nogil:
    """Device memory enters the CPU's page tables, which have system memory anyway."""
    cdef residency_t* r = t.engine.res
    cdef uint64_t number = first >> 9
    cdef uint64_t vram[8]
    cdef uint32_t block, w, lo, hi
    cdef uint64_t* line
    cdef uint64_t* fixed
    t.engine.counters.maps += 1
    t.engine.cost_ns += t.engine.costs.map_ns
    while True:
        block = find_block(r, number)
        gather_vram(r, block, vram)
        lo = low_bit(number, first)
        hi = high_bit(number, last)
        line = need_line(r, block, MASK_MAPPED << 8 | SLOT_CPU)
        fixed = need_line(r, block, MASK_READ_ONLY << 8 | SLOT_CPU)
        for w in range(lo >> 6, (hi >> 6) + 1):
            line[w] |= span_word(w, lo, hi) & vram[w]
            if write:
                fixed[w] &= ~span_word(w, lo, hi)
            else:
                fixed[w] |= span_word(w, lo, hi)
        if number == last >> 9:
            return
        number += 1


cdef int map_pages(paged_t* t, uint32_t by, uint64_t first, uint64_t last,
                   bint write) noexcept nogil:
    """What *by* reaches of the pages enters its page tables, for writing where no copy is."""
    cdef uint64_t page = first, stop
    cdef map_kind kind = MAP_NOT
    if res_reserve(t.engine.res, first, last, LINES):
        return -E_NOMEM
    res_populate(t.engine.res, first, last)
    while True:
        stop = map_run(t, by, page, last, write, &kind)
        if kind != MAP_NOT:
            if by:
                engine_map(t.engine, by - 1, page, stop, kind == MAP_WRITE)
            else:
                map_on_cpu(t, page, stop, kind == MAP_WRITE)
        if stop == last:
            return 0
        page = stop + 1


# ---- touches ----------------------------------------------------------------------------

cdef inline uint32_t vma_at(paged_t* t, uint64_t page, range_entry_t* e) noexcept nogil:
    ranges_find(t.vmas, page, e)
    return e.value


cdef void use_units(paged_t* t, uint32_t processor, uint64_t first, uint64_t last) noexcept nogil:
    """Tell the order that units were used: the processor's own where it has one, else all."""
    cdef uint64_t index = first >> t.unit
    cdef uint32_t number, gpu
    while t.live:
        number = find_chunk(t, index, processor - 1) if processor else 0
        if number:
            evict_touch(t.order, number, t.node.sequence)
            t.node.sequence += 1
        else:
            for gpu in range(t.ngpus):
                number = find_chunk(t, index, gpu)
                if number:
                    evict_touch(t.order, number, t.node.sequence)
                    t.node.sequence += 1
        if index == last >> t.unit:
            return
        index += 1


cdef int hit(paged_t* t, uint32_t processor, uint64_t first, uint64_t last,
             touch_t* out) noexcept nogil:
    """Reached pages answer: count them, and those that are elsewhere."""
    cdef engine_t* e = t.engine
    cdef residency_t* r = e.res
    cdef uint64_t number = first >> 9, pages = last - first + 1, remote = 0, local
    cdef uint64_t vram[8]
    cdef uint64_t own[8]
    cdef uint32_t block, w, lo, hi
    if processor:
        local = res_count(r, MASK_VRAM << 8 | (processor - 1), first, last)
        remote = pages - local - res_count(r, MASK_COPY << 8 | (processor - 1), first, last)
    else:
        if res_reserve(r, first, last, 1):
            return -E_NOMEM
        res_populate(r, first, last)
        while True:
            block = find_block(r, number)
            gather_vram(r, block, vram)
            get_line(r, block, MASK_COPY << 8 | SLOT_CPU, own)
            lo = low_bit(number, first)
            hi = high_bit(number, last)
            for w in range(lo >> 6, (hi >> 6) + 1):
                remote += popcount64(span_word(w, lo, hi) & vram[w] & ~own[w])
            if number == last >> 9:
                break
            number += 1
    e.processors[processor].pages_touched += pages
    if remote:
        out.remote += remote
        e.processors[processor].remote_pages += remote
        e.cost_ns += <uint64_t>(e.costs.remote_ns + e.costs.remote_page_ns * <double>remote)
    if t.follows:
        use_units(t, processor, first, last)
    return 0


cdef void fatal(touch_t* out, uint64_t page, int ret, uint8_t reason) noexcept nogil:
    out.page = page
    out.ret = ret
    out.reason = reason


cdef inline void settle(paged_t* t) noexcept nogil:
    t.engine.now += t.engine.cost_ns
    t.engine.cost_ns = 0


cdef void ask(paged_t* t, uint32_t processor, uint64_t page, bint write,
              answer_t* out) noexcept nogil:
    """One fault goes to the policy, its actions are executed."""
    memset(out, 0, sizeof(answer_t))
    t.engine.cost_ns += t.engine.costs.fault_ns
    t.engine.processors[processor].driver_faults += 1
    with gil:
        (<PagedProcess>t.owner).serve(processor, page, write, out)
    hold_fresh(t)


cdef void paged_touch(void* state, uint32_t processor, uint64_t first, uint64_t last,
                      uint32_t access, touch_t* out) noexcept nogil:
    cdef paged_t* t = <paged_t*>state
    cdef uint64_t page = first, stop, moved = t.engine.counters.migrated_pages, clear
    cdef uint32_t tries = 0
    cdef bint write = 1 <= access <= 2
    cdef range_entry_t e
    cdef answer_t answer
    settle(t)
    while out.ret == 0:
        if t.failed[0]:
            fatal(out, page, -E_IO, REASON_MIGRATE_FAILED)
            break
        if vma_at(t, page, &e) == 0:
            fatal(out, page, -E_FAULT, REASON_NO_MAPPING)
            break
        if not (e.value - 1) & PROT_READ or (write and not (e.value - 1) & PROT_WRITE):
            fatal(out, page, -E_PERM, REASON_PERMISSION)
            break
        stop = e.last if e.last < last else last
        clear = first_fault(t, processor, page, stop, write)
        if clear > page:
            if hit(t, processor, page, clear - 1, out):
                fatal(out, page, -E_NOMEM, REASON_NO_MEMORY)
                break
            if clear - 1 == last:
                break
            page = clear
            tries = 0
            continue
        if processor and (e.value - 1) >> 2 >= DEVICE_KINDS:
            fatal(out, page, -E_FAULT, REASON_NO_MAPPING)
            break
        settle(t)
        ask(t, processor, page, write, &answer)
        if answer.ret:
            fatal(out, page, answer.ret, answer.reason)
        elif first_fault(t, processor, page, page, write) > page:
            out.faults += 1
            out.best = <uint8_t>res_where(t.engine.res, page)
            t.engine.processors[processor].faults += 1
        elif not t.failed[0]:
            tries += 1
            if tries == RETRIES:
                fatal(out, page, -E_LOOP, REASON_NEVER_RESOLVES)
    if out.ret and not t.failed[0]:
        t.engine.processors[processor].fatal += 1
    out.moved = t.engine.counters.migrated_pages - moved
    settle(t)


cdef void paged_deliver(void* state, const arrival_t* faults, uint32_t n,
                        touch_t* out) noexcept nogil:
    """One delivery: the policy is asked once, whatever comes of it."""
    cdef paged_t* t = <paged_t*>state
    cdef bint write = 1 <= faults.access <= 2
    cdef uint64_t moved = t.engine.counters.migrated_pages
    cdef range_entry_t e
    cdef answer_t answer
    out.best = NOWHERE
    out.page = faults.page
    if t.failed[0]:
        fatal(out, faults.page, -E_IO, REASON_MIGRATE_FAILED)
        return
    if vma_at(t, faults.page, &e) == 0 or (e.value - 1) >> 2 >= DEVICE_KINDS:
        fatal(out, faults.page, -E_FAULT, REASON_NO_MAPPING)
    elif not (e.value - 1) & PROT_READ or (write and not (e.value - 1) & PROT_WRITE):
        fatal(out, faults.page, -E_PERM, REASON_PERMISSION)
    else:
        ask(t, faults.processor, faults.page, write, &answer)
        if answer.ret:
            fatal(out, faults.page, answer.ret, answer.reason)
        elif first_fault(t, faults.processor, faults.page, faults.page, write) > faults.page:
            out.reason = REASON_OK
            out.faults = 1
            out.best = <uint8_t>res_where(t.engine.res, faults.page)
            t.engine.processors[faults.processor].faults += 1
        else:
            out.reason = REASON_RETRY_LATER
    if out.ret:
        t.engine.processors[faults.processor].fatal += 1
    out.moved = t.engine.counters.migrated_pages - moved


# ---- mappings and advice ----------------------------------------------------------------

cdef int paged_mmap(paged_t* t, uint64_t first, uint64_t last, uint32_t code) noexcept nogil:
    cdef range_entry_t e
    if ranges_next(t.vmas, first, &e) and e.first <= last:
        return -E_EXIST
    return -E_NOMEM if ranges_assign(t.vmas, first, last, code) else 0


cdef int paged_map(void* state, uint64_t first, uint64_t last) noexcept nogil:
    return paged_mmap(<paged_t*>state, first, last, VMA_READ_WRITE)


cdef uint64_t mapped_gpus(paged_t* t, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t gpus = 0
    cdef uint32_t gpu
    for gpu in range(t.ngpus):
        if res_count(t.engine.res, MASK_MAPPED << 8 | gpu, first, last):
            gpus |= <uint64_t>1 << gpu
    return gpus


cdef int forget(paged_t* t, uint64_t first, uint64_t last) noexcept nogil:
    """No mapping, advice or mark is left on the pages: all three maps change, or none."""
    cdef ranges_t* maps[3]
    cdef int i, opened = 0, error = 0
    maps[0] = t.vmas
    maps[1] = t.advice
    maps[2] = t.marks
    for i in range(3):
        if ranges_begin(maps[i]):
            error = -E_NOMEM
            break
        opened += 1
        if ranges_assign(maps[i], first, last, 0):
            error = -E_NOMEM
            break
    for i in range(opened):
        if error:
            ranges_rollback(maps[i])
        else:
            ranges_commit(maps[i])
    return error


cdef int paged_unmap(void* state, uint64_t first, uint64_t last) noexcept nogil:
    """Mappings go, and with them pages, copies, advice and marks."""
    cdef paged_t* t = <paged_t*>state
    cdef uint64_t index = first >> t.unit, end = last >> t.unit
    cdef uint64_t every = <uint64_t>-1 >> (MAX_GPUS - t.ngpus) if t.ngpus else 0
    cdef uint32_t number
    if forget(t, first, last):
        return -E_NOMEM
    engine_unmap(t.engine, mapped_gpus(t, first, last), first, last, UNMAP_FROM_CPU)
    res_drop(t.engine.res, first, last)
    if end - index < t.nchunks:
        while True:
            give_if_empty(t, index, every)
            if index == end:
                return 0
            index += 1
    for number in range(1, t.nchunks):
        if t.chunks[number].state != CHUNK_FREE and index <= t.chunks[number].index <= end:
            give_if_empty(t, t.chunks[number].index, every)
    return 0


cdef void set_access(advice_t* a, uint32_t kind, uint32_t processor) noexcept nogil:
    """One of access, in place and no access, which exclude each other."""
    cdef uint64_t bit = <uint64_t>1 << (processor - 1) if processor else 0
    a.access = a.access | bit if kind == ATTR_ACCESS else a.access & ~bit
    a.in_place = a.in_place | bit if kind == ATTR_IN_PLACE else a.in_place & ~bit
    a.no_access = a.no_access | bit if kind == ATTR_NO_ACCESS else a.no_access & ~bit
    if processor == 0:
        a.cpu = <uint8_t>kind


cdef int advise_span(paged_t* t, uint64_t first, uint64_t last, uint32_t kind,
                     uint32_t value) noexcept nogil:
    """One attribute on pages; a location is a processor code, UNDEFINED for none."""
    cdef uint64_t page = first, stop
    cdef range_entry_t e
    cdef advice_t a
    cdef uint32_t i
    while True:
        ranges_find(t.advice, page, &e)
        stop = e.last if e.last < last else last
        a = t.sets[e.value]
        if kind == ATTR_PREFERRED:
            a.preferred = <uint8_t>value
        elif kind == ATTR_PREFETCH:
            a.prefetch = <uint8_t>value
        elif kind <= ATTR_NO_ACCESS:
            set_access(&a, kind, value)
        elif kind == ATTR_SET_FLAGS:
            a.flags |= value
        elif kind == ATTR_CLR_FLAGS:
            a.flags &= ~value
        else:
            a.granularity = <uint8_t>(value if value < GRANULARITY_MAX else GRANULARITY_MAX)
        i = 0
        while i < t.nsets and not same_advice(t.sets + i, &a):
            i += 1
        if i == t.nsets:
            if not res_grow(<void**>&t.sets, &t.cap_sets, <uint64_t>i + 1, sizeof(advice_t)):
                return -E_NOMEM
            t.sets[i] = a
            t.nsets += 1
        if ranges_assign(t.advice, page, stop, i):
            return -E_NOMEM
        if stop == last:
            return 0
        page = stop + 1


cdef inline bint same_advice(const advice_t* a, const advice_t* b) noexcept nogil:
    return (
        a.access == b.access and a.in_place == b.in_place and a.no_access == b.no_access
        and a.flags == b.flags and a.preferred == b.preferred and a.cpu == b.cpu
        and a.granularity == b.granularity and a.prefetch == b.prefetch
    )


cdef int paged_advise(void* state, const record_t* record) noexcept nogil:
    cdef paged_t* t = <paged_t*>state
    cdef uint32_t kind = ATTR_PREFETCH if record.kind == KIND_PREFETCH else record.access, value
    cdef uint64_t first = record.addr >> 12, last = (record.addr + record.size - 1) >> 12
    cdef int ret
    value = record.peer if kind <= ATTR_NO_ACCESS else record.value
    with gil:
        ret = (<PagedProcess>t.owner).attribute(first, last, kind, value)
    return ret


cdef void paged_step(void* state) noexcept nogil:
    """Nothing is ever pending."""


cdef ops_t OPS
OPS.batch = 1
OPS.python = True
OPS.touch = paged_touch
OPS.deliver = paged_deliver
OPS.map = paged_map
OPS.unmap = paged_unmap
OPS.advise = paged_advise
OPS.step = paged_step


# ---- what a policy sees -----------------------------------------------------------------

@cython.final
cdef class View:
    """What a policy may look at while it decides; it changes nothing.

    Addresses and sizes are bytes, processors numbers as in records: 0 the CPU,
    1 + i GPU i. Every look-up is O(log n) or better.
    """

    cdef PagedProcess process

    def __init__(self, PagedProcess process not None):
        self.process = process

    @property
    def now_ns(self):
        """Modelled time, ns."""
        return self.process.engine.now + self.process.engine.cost_ns

    @property
    def machine(self):
        """The :class:`svmcore.Machine`."""
        return self.process.machine

    @property
    def unit(self):
        """Bytes of one unit of device memory."""
        return 4096 << self.process.t.unit

    def window(self, addr, granularity=None):
        """The aligned block around *addr*, cut to its mapping: (start, size).

        Parameters
        ----------
        addr : int
        granularity : int, optional
            log2 of 4 KiB pages; the policy's own when not given.

        Raises
        ------
        InvalidArgumentError
            If there is no mapping at *addr*.
        """
        cdef uint64_t first, last, page = addr >> 12
        cdef range_entry_t e
        if vma_at(self.process.t, page, &e) == 0:
            raise InvalidArgumentError(f"window of {addr:#x}: expected a mapping there")
        wanted = self.process.policy.granularity if granularity is None else granularity
        if not 0 <= wanted <= GRANULARITY_MAX:
            raise InvalidArgumentError(f"granularity {wanted}: expected 0 to {GRANULARITY_MAX}")
        fault_window(page, wanted, e.first, e.last, &first, &last)
        return first << 12, (last - first + 1) << 12

    def mapping(self, addr):
        """The mapping at *addr*: (start, size), ``None`` without one."""
        cdef range_entry_t e
        if vma_at(self.process.t, addr >> 12, &e) == 0:
            return None
        return e.first << 12, (e.last - e.first + 1) << 12

    def where(self, addr):
        """Home of the page: 0 system memory, 1 + i GPU i, -1 while nobody touched it."""
        return res_where(self.process.engine.res, addr >> 12)

    def copies(self, addr):
        """Processors that have a copy of the page."""
        return self.process.copy_holders(addr >> 12)

    def mapped(self, addr, by, write=False):
        """Whether processor *by* touches the page without a fault."""
        cdef uint64_t page = addr >> 12
        self.process.check_processor(by)
        return first_fault(self.process.t, by, page, page, write) > page

    def reaches(self, by, at):
        """Whether processor *by* addresses the memory of processor *at*."""
        self.process.check_processor(by)
        self.process.check_processor(at)
        if at == 0 or by == at:
            return True
        return bool(self.process.t.reach[<uint32_t>by] >> <uint32_t>(at - 1) & 1)

    def free(self, at):
        """Bytes of GPU *at*'s memory that this process can take without an eviction."""
        cdef paged_t* t = self.process.t
        cdef uint32_t gpu
        self.process.check_processor(at)
        if at == 0:
            raise InvalidArgumentError("free: expected a GPU, 1 or more")
        gpu = at - 1
        left = min(t.capacity[gpu] - min(t.node.used[gpu], t.capacity[gpu]),
                   t.quota - min(t.taken[gpu], t.quota))
        return left << 12

    def mark(self, addr):
        """What the last :class:`Mark` said of the page; 0 without one."""
        cdef range_entry_t e
        ranges_find(self.process.t.marks, addr >> 12, &e)
        return e.value

    def advice(self, addr):
        """What the user advised for the page, an :class:`Advice`."""
        cdef range_entry_t e
        cdef advice_t* a
        self.process.advice_read = True
        ranges_find(self.process.t.advice, addr >> 12, &e)
        a = self.process.t.sets + e.value
        gpus = range(1, 1 + self.process.t.ngpus)
        return Advice(
            None if a.preferred == UNDEFINED else a.preferred,
            named(gpus, a.access, a.cpu == ATTR_ACCESS),
            named(gpus, a.in_place, a.cpu == ATTR_IN_PLACE),
            named(gpus, a.no_access, a.cpu == ATTR_NO_ACCESS),
            a.flags & FLAG_READ_MOSTLY != 0,
            None if a.granularity == UNDEFINED else a.granularity,
        )


cdef tuple named(object gpus, uint64_t bits, bint cpu):
    found = [gpu for gpu in gpus if bits >> <uint32_t>(gpu - 1) & 1]
    return (0, *found) if cpu else tuple(found)


# ---- Python face ------------------------------------------------------------------------

_RULES = (
    "",
    "a page in two places",
    "a copy beside its page",
    "a copy of a page that is nowhere",
    "a GPU maps a page that is nowhere",
    "a page with a copy is mapped for writing",
    "a GPU maps a page that it does not reach",
    "a page in device memory outside every unit",
    "device memory without a line for the way back",
    "units and memory taken differ",
    "more memory taken than the device has",
    "a unit that holds nothing",
)


@cython.no_gc_clear  # __dealloc__ still needs the node when a cycle is collected
cdef class PagedProcess(Process):
    """One process whose policy is written in Python.

    Operations speak pages and errnos, as those of the other policies do.

    Parameters
    ----------
    machine : Machine
    policy : Paged
        Decides; its ``unit``, ``eviction``, ``seed`` and ``quota_pages`` rule
        the device memory.
    node : Node, optional
        Device memory to share with other processes.

    Raises
    ------
    InvalidArgumentError
        If a parameter is out of range.
    OutOfMemoryError
        If the state cannot be allocated.

    Thread safety
    -------------
    One thread at a time uses a process, and the processes of one node.
    """

    def __cinit__(self, machine, policy, node=None):
        cdef Node shared = Node() if node is None else node
        cdef paged_t* t
        cdef uint32_t i, j
        if not 0 <= policy.unit <= 18:
            raise InvalidArgumentError(
                f"policy {policy.name}: unit = {policy.unit}, expected 0 to 18"
            )
        self.machine = machine
        self.policy = policy
        self.gpus = tuple(machine.gpus)
        self.node = shared
        self.outcome = Outcome
        self.result = Outcome()
        t = self.t = <paged_t*>calloc(1, sizeof(paged_t))
        if t == NULL:
            raise OutOfMemoryError("no memory for a process")
        t.engine = engine_new()
        t.vmas = ranges_new(False, 0)
        t.advice = ranges_new(True, 0)
        t.marks = ranges_new(True, 0)
        t.order = evict_new(order_of(policy.eviction), policy.seed & 0xffffffffffffffff)
        t.nchunks = t.nsets = 1
        t.unit = policy.unit
        t.ngpus = len(self.gpus)
        if (
            t.engine == NULL or t.vmas == NULL or t.advice == NULL or t.marks == NULL
            or t.order == NULL or not reserve_chunks(t, 16)
            or not res_grow(<void**>&t.sets, &t.cap_sets, 4, sizeof(advice_t))
        ):
            raise OutOfMemoryError("no memory for a process")
        memset(t.sets, 0, sizeof(advice_t))
        t.sets[0].flags = DEFAULT_FLAGS
        t.sets[0].preferred = t.sets[0].prefetch = t.sets[0].granularity = UNDEFINED
        t.quota = <uint64_t>-1 if policy.quota_pages is None else policy.quota_pages
        t.follows = t.order.order != ORDER_FIFO and t.order.order != ORDER_RANDOM
        for i in range(t.ngpus):
            t.capacity[i] = self.gpus[i].vram_pages
            t.device[i] = i if self.gpus[i].adev < 0 else self.gpus[i].adev
            if machine.link(0, 1 + i) == "coherent":
                t.reach[0] |= <uint64_t>1 << i
            for j in range(t.ngpus):
                if machine.link(1 + i, 1 + j) != "none":
                    t.reach[1 + i] |= <uint64_t>1 << j
                    t.direct[i] |= <uint64_t>1 << j
        t.node = &shared.n
        t.failed = &self.failed
        t.owner = <void*>self
        process_join(self, t, &OPS, t.engine, oldest_age, evict_oldest)

    def __dealloc__(self):
        cdef paged_t* t = self.t
        cdef uint32_t i
        if t == NULL:
            return
        if t.node != NULL:
            for i in range(t.ngpus):
                t.node.used[i] -= t.taken[i]
            self.node.leave(t)
        engine_free(t.engine)
        ranges_free(t.vmas)
        ranges_free(t.advice)
        ranges_free(t.marks)
        evict_free(t.order)
        free(t.sets)
        free(t.chunks)
        free(t.slots)
        free(t.fresh)
        free(t)

    # ---- the policy is asked, and its actions are executed ----

    cdef int serve(self, uint32_t processor, uint64_t page, bint write,
                   answer_t* out) noexcept:
        """Ask for one fault; what the policy raises waits until somebody can be told."""
        cdef trigger_t trigger = TRIGGER_GPU_FAULT if processor else TRIGGER_CPU_FAULT
        try:
            fault = Fault(page << 12, processor, bool(write))
            # All is decided before anything is done.
            for action in self.asked("service", self.policy.service(View(self), [fault])):
                self.execute(action, trigger, out)
        except BaseException as error:
            self.failure = error
            self.failed = True
        return 0

    cdef int execute(self, object action, trigger_t trigger, answer_t* out) except -1:
        cdef uint64_t first, last, page = 0
        cdef uint32_t processor = 0
        cdef paged_t* t = self.t
        cdef range_entry_t e
        cdef int error = 0
        cdef bint write
        kind = type(action)
        if kind is Retry:
            settle(t)
            if action.t_ns > t.engine.now:
                t.engine.now = action.t_ns
            return 0
        if kind is Fail:
            if action.code not in FAIL_REASONS:
                raise self.refuse(action, f"one of {', '.join(FAIL_REASONS)}")
            out.ret, out.reason = FAIL_REASONS[action.code]
            return 0
        if kind not in (Move, Duplicate, Drop, Map, Unmap, Mark):
            raise self.refuse(action, "an action of svmcore.policies.actions")
        if (
            type(action.start) is not int or type(action.size) is not int
            or action.start < 0 or action.size <= 0 or (action.start | action.size) & 4095
            or action.start + action.size > 1 << 64
        ):
            raise self.refuse(action, "whole pages")
        first = action.start >> 12
        last = (action.start + action.size - 1) >> 12
        if vma_at(t, first, &e) == 0 or last > e.last:
            raise self.refuse(action, "pages of one mapping")
        if kind is Mark:
            if type(action.value) is not int or not 0 <= action.value < 1 << 32:
                raise self.refuse(action, "a value of 0 to 2**32 - 1")
            error = ranges_assign(t.marks, first, last, action.value)
        else:
            place = action.to if kind in (Move, Duplicate) else (
                action.at if kind is Drop else action.by
            )
            if type(place) is not int or not 0 <= place <= t.ngpus:
                raise self.refuse(action, f"a processor of 0 to {t.ngpus}")
            processor = place
        if kind is Move:
            error = move(t, processor, first, last, trigger)
        elif kind is Duplicate:
            error = duplicate(t, processor, first, last)
        elif kind is Drop:
            while True:
                page = first | ((<uint64_t>1 << t.unit) - 1)
                drop_copies(t, processor, first, page if page < last else last)
                if page >= last:
                    break
                first = page + 1
        elif kind is Map:
            write = bool(action.write) and (e.value - 1) & PROT_WRITE
            error = map_pages(t, processor, first, last, write)
        elif kind is Unmap:
            if processor:
                engine_unmap(t.engine, <uint64_t>1 << (processor - 1), first, last, UNMAP_NOTIFY)
            else:
                clear_span(t.engine.res, MASK_MAPPED << 8 | SLOT_CPU, first, last)
        if error:
            raise OutOfMemoryError("no memory for page masks")
        return 0

    cdef list asked(self, str method, object actions):
        """What a method of the policy gave, all of it."""
        try:
            each = iter(actions)
        except TypeError:
            raise InvalidArgumentError(
                f"policy {self.policy.name}: {method} gave {actions!r:.80}: expected actions, "
                "a list of them or by yield"
            ) from None
        return list(each)

    cdef object refuse(self, object action, str expected):
        return InvalidArgumentError(
            f"policy {self.policy.name}: {action!r:.120}: expected {expected}"
        )

    cdef int check_processor(self, processor) except -1:
        if not 0 <= processor <= self.t.ngpus:
            raise InvalidArgumentError(f"processor {processor}: expected 0 to {self.t.ngpus}")
        return 0

    cdef int attribute(self, uint64_t first, uint64_t last, uint32_t kind,
                       uint32_t value) noexcept:
        """One attribute by its number; a prefetch is the policy's, whose errors wait."""
        cdef answer_t answer
        cdef uint64_t page = first
        cdef range_entry_t e
        if kind > ATTR_GRANULARITY or (
            kind <= ATTR_NO_ACCESS and value > self.t.ngpus
            and (value != UNDEFINED or kind != ATTR_PREFERRED)
        ):
            return -E_INVAL
        while page <= last:
            if vma_at(self.t, page, &e) == 0:
                return -E_FAULT
            if e.last >= last:
                break
            page = e.last + 1
        if advise_span(self.t, first, last, kind, value):
            return -E_NOMEM
        if kind != ATTR_PREFETCH or self.failed:
            return 0
        memset(&answer, 0, sizeof(answer))
        try:
            page = first
            while True:
                vma_at(self.t, page, &e)
                stop = min(e.last, last)
                actions = self.policy.prefetch(
                    View(self), int(page) << 12, int(stop - page + 1) << 12, value
                )
                for action in self.asked("prefetch", actions):
                    self.execute(action, TRIGGER_PREFETCH, &answer)
                if stop == last:
                    break
                page = stop + 1
        except BaseException as error:
            self.failure = error
            self.failed = True
        hold_fresh(self.t)
        return answer.ret

    # ---- operations ----

    def mmap(self, first, last, prot="rw", kind="anon"):
        """A CPU mapping appears; -EEXIST where one is already."""
        return paged_mmap(self.t, first, last, mapping_code(prot, kind))

    def munmap(self, first, last):
        """CPU mappings go, and with them pages, copies, advice and marks."""
        return paged_unmap(self.t, first, last)

    def mprotect(self, first, last, prot):
        """Protection changes, GPUs lose their mappings; a hole stops it with -ENOMEM."""
        cdef paged_t* t = self.t
        cdef uint64_t page = first, stop, end = last
        cdef range_entry_t e
        while True:
            if vma_at(t, page, &e) == 0:
                return -E_NOMEM
            stop = e.last if e.last < end else end
            kind = (e.value - 1) >> 2 << 2
            if ranges_assign(t.vmas, page, stop, mapping_code(prot, "anon") + kind):
                return -E_NOMEM
            self.invalidate(page, stop)
            if stop == end:
                return 0
            page = stop + 1

    def invalidate(self, first, last):
        """CPU page tables change without data loss: GPUs lose their mappings."""
        engine_unmap(self.engine, mapped_gpus(self.t, first, last), first, last, UNMAP_NOTIFY)
        return 0

    def set_attr(self, addr, size, attrs, op=0):
        """Advice by attributes of the KFD ioctl, in order; a refused one ends the call."""
        cdef uint64_t first = addr >> 12, last = (addr + size - 1) >> 12
        cdef int ret
        for kind, value in attrs:
            if kind in (ATTR_PREFERRED, ATTR_PREFETCH):
                value = self.code_of(value)
            elif ATTR_ACCESS <= kind <= ATTR_NO_ACCESS:
                value = self.code_of(value)
            if value is None:
                return -E_INVAL
            ret = self.attribute(first, last, kind, value)
            process_check(self)
            if ret:
                return ret
        return 0

    cdef object code_of(self, location):
        """Processor code of a location value, ``None`` when it is none of the machine."""
        if location == 0xffffffff:
            return UNDEFINED
        if location == 0:
            return 0
        for i, gpu in enumerate(self.gpus):
            if gpu.id == location:
                return 1 + i
        return None

    cdef object id_of(self, uint8_t code):
        return 0xffffffff if code == UNDEFINED else location_id(self.gpus, code)

    def get_attr(self, addr, size, attrs):
        """Aggregated advice, as the KFD ioctl aggregates attributes; in ``result.out``."""
        cdef uint64_t page = addr >> 12, last = (addr + size - 1) >> 12
        cdef range_entry_t e
        sets = []
        while True:
            ranges_find(self.t.advice, page, &e)
            sets.append(self.advice_row(e.value))
            if e.last >= last:
                break
            page = e.last + 1

        def common(name):
            values = {row[name] for row in sets}
            return values.pop() if len(values) == 1 else 0xffffffff

        flags = [row["flags"] for row in sets]
        every, some = flags[0], 0
        for value in flags:
            every &= value
            some |= value
        simple = {
            ATTR_PREFERRED: common("preferred"), ATTR_PREFETCH: common("prefetch"),
            ATTR_SET_FLAGS: every, ATTR_CLR_FLAGS: ~some & 0xffffffff,
            ATTR_GRANULARITY: min(row["granularity"] for row in sets),
        }
        out = []
        for kind, value in attrs:
            if kind in simple:
                out.append((kind, simple[kind]))
                continue
            index = next((i for i, gpu in enumerate(self.gpus) if gpu.id == value), None)
            if index is None or not ATTR_ACCESS <= kind <= ATTR_NO_ACCESS:
                return -E_INVAL
            answer = ATTR_ACCESS
            for given in (ATTR_IN_PLACE, ATTR_NO_ACCESS):
                if all(row[given] >> index & 1 for row in sets):
                    answer = given
            out.append((answer, value))
        self.result.out = out
        return 0

    cdef dict advice_row(self, uint32_t number):
        cdef advice_t* a = self.t.sets + number
        return {
            "preferred": self.id_of(a.preferred),
            "prefetch": self.id_of(a.prefetch),
            "flags": a.flags,
            "granularity": self.policy.granularity if a.granularity == UNDEFINED else a.granularity,
            ATTR_ACCESS: a.access,
            ATTR_IN_PLACE: a.in_place,
            ATTR_NO_ACCESS: a.no_access,
        }

    def fault(self, gpu_id, page, write, ts=0):
        """One delivery of a GPU's fault: the policy is asked once."""
        cdef arrival_t arrival
        cdef touch_t out
        memset(&out, 0, sizeof(out))
        arrival.processor = 1 + next(i for i, gpu in enumerate(self.gpus) if gpu.id == gpu_id)
        arrival.page = page
        arrival.ts = ts
        arrival.access = bool(write)
        paged_deliver(self.t, &arrival, 1, &out)
        process_check(self)
        result = self.result
        result.reason = _REASONS[out.reason]
        result.migration = out.moved != 0
        if out.best != NOWHERE:
            result.best_loc = location_id(self.gpus, out.best)
            start, size = View(self).window(page << 12)
            result.window = (start >> 12, (start + size - 1) >> 12)
        return out.ret

    def evict(self, page):
        """Memory pressure takes the unit of device memory at *page*; -2 without one."""
        cdef uint32_t gpu, number
        for gpu in range(self.t.ngpus):
            number = find_chunk(self.t, <uint64_t>page >> self.t.unit, gpu)
            if number:
                evict_chunk(self.t, number)
                return 0
        return -E_NOENT

    def set_xnack(self, on):
        """Faults are always retried here."""
        if not on:
            raise NotSupportedError(
                f"policy {self.policy.name}: xnack off: expected on, its faults are retried"
            )

    # ---- views ----

    @property
    def xnack(self):
        """GPU page faults are retried."""
        return True

    @property
    def next_event_ns(self):
        """Nothing is ever pending."""
        return None

    @property
    def nbytes(self):
        """Memory held, bytes."""
        cdef paged_t* t = self.t
        return (
            sizeof(paged_t) + ranges_nbytes(t.vmas) + ranges_nbytes(t.advice)
            + ranges_nbytes(t.marks) + res_nbytes(t.engine.res) + evict_nbytes(t.order)
            + <uint64_t>t.cap_chunks * sizeof(chunk_t)
            + <uint64_t>(t.nslots + t.cap_fresh) * sizeof(uint32_t)
        )

    def __len__(self):
        return len(self.ranges())

    def ranges(self, first=0, last=0xffffffffffffffff):
        """Pieces of mappings with equal advice, in address order, rows as of the KFD process.

        (first, last, preferred, prefetch, actual, granularity, flags, access, in place,
        mapped, pages in device memory)
        """
        cdef range_entry_t v, a
        cdef uint64_t page = first, stop, top = last
        cdef uint32_t gpu
        rows = []
        while ranges_next(self.t.vmas, page, &v) and v.first <= top:
            page = max(page, v.first)
            while True:
                ranges_find(self.t.advice, page, &a)
                stop = min(a.last, v.last)
                advice = self.advice_row(a.value)
                held = [
                    res_count(self.engine.res, MASK_VRAM << 8 | gpu, page, stop)
                    for gpu in range(self.t.ngpus)
                ]
                actual = next((self.gpus[i].id for i, n in enumerate(held) if n), 0)
                rows.append((
                    page, stop, advice["preferred"], advice["prefetch"], actual,
                    advice["granularity"], advice["flags"], advice[ATTR_ACCESS],
                    advice[ATTR_IN_PLACE], mapped_gpus(self.t, page, stop), sum(held),
                ))
                if stop == v.last:
                    break
                page = stop + 1
            if v.last >= top:
                break
            page = v.last + 1
        return rows

    def find(self, page):
        """The row of :meth:`ranges` that holds *page*, ``None`` without one."""
        cdef range_entry_t v, a
        if vma_at(self.t, page, &v) == 0:
            return None
        ranges_find(self.t.advice, page, &a)
        return self.ranges(max(v.first, a.first), page)[0]

    def where(self, page):
        """Where one page is: -1 nowhere yet, 0 system memory, 1 + i GPU i."""
        return res_where(self.engine.res, page)

    def copies(self, page):
        """Where the page is: bits of processors, its home and those with a copy; 0 nowhere yet."""
        cdef int home = res_where(self.engine.res, page)
        bits = 1 << home if home >= 0 else 0
        for code in self.copy_holders(page):
            bits |= 1 << code
        return bits

    cdef tuple copy_holders(self, uint64_t page):
        cdef uint32_t block = find_block(self.engine.res, page >> 9), code, bit = page & 511
        cdef uint64_t* line
        found = []
        for code in range(1 + self.t.ngpus):
            line = find_line(self.engine.res, block, MASK_COPY << 8 | slot_of(code))
            if line != NULL and line[bit >> 6] >> (bit & 63) & 1:
                found.append(code)
        return tuple(found)

    def mapped(self, gpu, page, write=False):
        """Whether GPU *gpu* (its index) can touch the page without a fault."""
        return first_fault(self.t, 1 + <uint32_t>gpu, page, page, write) > <uint64_t>page

    def vma(self, page):
        """The CPU mapping at *page*: (first, last, protection, kind), None without one."""
        cdef range_entry_t e
        cdef uint32_t code = vma_at(self.t, page, &e)
        return mapping_row(e.first, e.last, code) if code else None

    def next_vma(self, page):
        """First page of the next CPU mapping that ends at or after *page*, None without one."""
        cdef range_entry_t e
        return e.first if ranges_next(self.t.vmas, page, &e) else None

    def explain(self, page, processor, write):
        """What a touch of *page* would do: (rule, text, processor or None, pages or None).

        The policy is asked; nothing changes.
        """
        name = f"gpu{processor - 1}" if processor else "cpu"
        vma = self.vma(page)
        if vma is None:
            return "no mapping", "No CPU mapping at this address: the access is fatal.", None, None
        if "r" not in vma[2] or (write and "w" not in vma[2]):
            return "protection", f"The mapping allows {vma[2]!r} only: fatal.", None, None
        if first_fault(self.t, processor, page, page, write) > <uint64_t>page:
            text = f"{name} reaches the page as it is: no fault."
            return "mapped", text, None, None
        fault = Fault(page << 12, processor, bool(write))
        actions = self.asked("service", self.policy.service(View(self), [fault]))
        last_home = None
        for action in actions:
            if type(action) in (Move, Duplicate):
                last_home = action
        words = "; ".join(map(action_text, actions)) or "nothing"
        text = f"{name} faults, and policy {self.policy.name} orders: {words}."
        if last_home is None:
            return self.policy.name, text, None, None
        span = last_home.start >> 12, (last_home.start + last_home.size - 1) >> 12
        return self.policy.name, text, last_home.to, span

    def check(self):
        """Every invariant.

        Raises
        ------
        AssertionError
            Naming the rule that is broken.
        """
        cdef int rule = paged_check(self.t)
        if rule:
            raise AssertionError(_RULES[rule])


cdef str place_text(object place):
    return processor_name(place) if type(place) is int else f"{place!r:.40}"


cdef str action_text(object action):
    """An action in words, as ``move 0x200000..0x400000 to gpu0``."""
    kind = type(action)
    word = kind.__name__.lower()
    if kind is Retry:
        return f"retry at {action.t_ns} ns"
    if kind is Fail:
        return f"fail with {action.code}"
    if kind not in (Move, Duplicate, Drop, Map, Unmap, Mark):
        return f"{action!r:.80}"
    span = f"{word} {action.start:#x}..{action.start + action.size:#x}"
    if kind is Mark:
        return f"{span} with {action.value}"
    if kind is Drop:
        return f"{span} at {place_text(action.at)}"
    if kind in (Move, Duplicate):
        return f"{span} to {place_text(action.to)}"
    ending = "" if kind is Unmap or action.write else ", to read"
    return f"{span} for {place_text(action.by)}{ending}"


# ---- invariants -------------------------------------------------------------------------

cdef inline uint64_t span_of(uint32_t w, uint64_t first, uint64_t last) noexcept nogil:
    """Bits of word *w* that lie in pages of one block."""
    cdef uint32_t lo = first & 511, hi = last & 511
    return span_word(w, lo, hi) if lo >> 6 <= w <= hi >> 6 else 0


cdef int check_block(paged_t* t, uint64_t number, uint32_t block) noexcept nogil:
    cdef residency_t* r = t.engine.res
    cdef uint64_t home[8]
    cdef uint64_t copies[8]
    cdef uint64_t line[8]
    cdef uint64_t copy[8]
    cdef uint64_t fixed[8]
    cdef uint64_t page, stop, index
    cdef uint32_t w, gpu
    cdef map_kind kind = MAP_NOT
    get_line(r, block, MASK_SYSTEM << 8, home)
    get_line(r, block, MASK_COPY << 8 | SLOT_CPU, copy)
    gather_copies(r, block, copies)
    for w in range(8):
        if home[w] & copy[w]:
            return 2
    for gpu in range(t.ngpus):
        get_line(r, block, MASK_VRAM << 8 | gpu, line)
        get_line(r, block, MASK_COPY << 8 | gpu, copy)
        for w in range(8):
            if home[w] & line[w]:
                return 1
            if line[w] & copy[w]:
                return 2
            if line[w] and find_line(r, block, MASK_SYSTEM << 8) == NULL:
                return 8
            home[w] |= line[w]
            line[w] |= copy[w]
        page = 0
        while page < 512:
            index = ((number << 9) + page) >> t.unit
            if line[page >> 6] >> (page & 63) & 1 and find_chunk(t, index, gpu) == 0:
                return 7
            page += 1
    for w in range(8):
        if copies[w] & ~home[w]:
            return 3
    for gpu in range(t.ngpus):
        get_line(r, block, MASK_MAPPED << 8 | gpu, line)
        get_line(r, block, MASK_READ_ONLY << 8 | gpu, fixed)
        get_line(r, block, MASK_COPY << 8 | gpu, copy)
        for w in range(8):
            if line[w] & ~home[w]:
                return 4
            if line[w] & ~fixed[w] & copies[w]:
                return 5
        page = number << 9
        while page >> 9 == number:
            stop = map_run(t, 1 + gpu, page, page | 511, False, &kind)
            for w in range(8):
                if kind == MAP_NOT and line[w] & span_of(w, page, stop):
                    return 6
            page = stop + 1
    return 0


cdef int paged_check(paged_t* t) noexcept nogil:
    """0, or the number of the broken rule in _RULES."""
    cdef residency_t* r = t.engine.res
    cdef uint64_t taken[MAX_GPUS]
    cdef uint32_t table, slot, block, number, gpu
    cdef chunk_t* c
    cdef int rule
    for table in range(r.ngroups):
        for slot in range(GROUP_BLOCKS):
            block = r.tables[<size_t>table * GROUP_BLOCKS + slot]
            if block:
                rule = check_block(t, r.keys[table] * GROUP_BLOCKS + slot, block)
                if rule:
                    return rule
    memset(taken, 0, sizeof(taken))
    for number in range(1, t.nchunks):
        c = t.chunks + number
        if c.state == CHUNK_FREE:
            continue
        taken[c.gpu] += <uint64_t>1 << t.unit
        if holds_nothing(t, c.index, c.gpu):
            return 11
    for gpu in range(t.ngpus):
        if taken[gpu] != t.taken[gpu] or t.taken[gpu] > t.node.used[gpu]:
            return 9
        if t.node.used[gpu] > t.capacity[gpu] or t.taken[gpu] > t.quota:
            return 10
    return 0
