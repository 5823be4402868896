# cython: language_level=3, freethreading_compatible=True
"""Where each page is: lazily made 512-bit masks for each 2 MiB block.

Owns the masks and nothing else: who may move what is decided above. One thread
at a time uses a residency. Every operation costs O(blocks that exist in the
span), a look-up in the directory is one hash probe for each 1 GiB group.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from ._large cimport resize


# ---- memory -----------------------------------------------------------------------------

# Test hook: allocations left before all fail, -1 = off. The only state of the module.
cdef int64_t fail_after = -1


def _fail_allocation_after(int64_t n):
    """Let *n* more allocations of residencies and policies succeed and all later ones fail.

    For tests of the promise that a failed call changes nothing. While the hook
    is on arrays grow without room to spare.

    Parameters
    ----------
    n : int
        Allocations that still succeed; -1 turns the hook off.

    Complexity
    ----------
    O(1). The hook is one comparison an allocation, none a look-up.

    Source
    ------
    Own; as the hook of the range map.
    """
    global fail_after
    fail_after = n


cdef void* res_resize(void* p, size_t size) noexcept nogil:
    global fail_after
    if fail_after >= 0:
        if fail_after == 0:
            return NULL
        fail_after -= 1
    return resize(p, size)


cdef residency_t* res_new() noexcept nogil:
    cdef residency_t* r = <residency_t*>calloc(1, sizeof(residency_t))
    if r == NULL:
        return NULL
    r.nblocks = 1  # number 0 means "no block", "no line"
    r.nlines = 1
    return r


cdef void res_free(residency_t* r) noexcept nogil:
    if r == NULL:
        return
    free(r.blocks)
    free(r.lines)
    free(r.tables)
    free(r.keys)
    free(r.slots)
    free(r)


cdef uint64_t res_nbytes(const residency_t* r) noexcept nogil:
    return (
        sizeof(residency_t)
        + <uint64_t>r.cap_blocks * sizeof(block_t)
        + <uint64_t>r.cap_lines * sizeof(line_t)
        + <uint64_t>r.cap_groups * (GROUP_BLOCKS * sizeof(uint32_t) + sizeof(uint64_t))
        + <uint64_t>r.nslots * sizeof(uint32_t)
    )


cdef bint res_grow(void** array, uint32_t* cap, uint64_t want, size_t item) noexcept nogil:
    cdef uint64_t size = <uint64_t>cap[0] + (cap[0] >> 1) + 16
    cdef void* moved
    if want <= cap[0]:
        return True
    if size < want or fail_after >= 0:
        size = want  # under the hook too: spare room would hide allocations
    if size > 0xfffffff0U:
        return False
    moved = res_resize(array[0], size * item)
    if moved == NULL:
        return False
    array[0] = moved
    cap[0] = <uint32_t>size
    return True


# ---- directory --------------------------------------------------------------------------

cdef bint rehash(residency_t* r, uint32_t nslots) noexcept nogil:
    cdef uint32_t* slots = <uint32_t*>res_resize(NULL, nslots * sizeof(uint32_t))
    cdef uint32_t table, slot
    if slots == NULL:
        return False
    memset(slots, 0, nslots * sizeof(uint32_t))
    for table in range(r.ngroups):
        slot = hash_group(r.keys[table], nslots - 1)
        while slots[slot]:
            slot = (slot + 1) & (nslots - 1)
        slots[slot] = table + 1
    free(r.slots)
    r.slots = slots
    r.nslots = nslots
    return True


cdef uint32_t make_table(residency_t* r, uint64_t group) noexcept nogil:
    """Table number + 1 of a group, made when missing; 0 when memory runs out."""
    cdef uint32_t table = find_table(r, group)
    cdef uint32_t slot, cap = r.cap_groups
    cdef void* moved
    if table:
        return table
    if r.nslots < (r.ngroups + 1) * 2 and not rehash(r, r.nslots * 2 if r.nslots else 16):
        return 0
    if r.ngroups == r.cap_groups:
        if not res_grow(<void**>&r.keys, &cap, r.ngroups + 1, sizeof(uint64_t)):
            return 0
        moved = res_resize(r.tables, <size_t>cap * GROUP_BLOCKS * sizeof(uint32_t))
        if moved == NULL:
            return 0
        r.tables = <uint32_t*>moved
        r.cap_groups = cap
    memset(r.tables + <size_t>r.ngroups * GROUP_BLOCKS, 0, GROUP_BLOCKS * sizeof(uint32_t))
    r.keys[r.ngroups] = group
    r.ngroups += 1
    slot = hash_group(group, r.nslots - 1)
    while r.slots[slot]:
        slot = (slot + 1) & (r.nslots - 1)
    r.slots[slot] = r.ngroups
    return r.ngroups


cdef uint32_t next_block(residency_t* r, uint64_t* number, uint64_t last) noexcept nogil:
    """First existing block with *number <= its number <= last; 0 when there is none."""
    cdef uint64_t group = number[0] // GROUP_BLOCKS, last_group = last // GROUP_BLOCKS
    cdef uint64_t best, n = number[0]
    cdef uint32_t table, block, i
    while True:
        table = find_table(r, group)
        if table:
            while n <= last and n // GROUP_BLOCKS == group:
                block = r.tables[<size_t>(table - 1) * GROUP_BLOCKS + n % GROUP_BLOCKS]
                if block:
                    number[0] = n
                    return block
                n += 1
        if group >= last_group:
            return NO_BLOCK
        if last_group - group <= r.ngroups:
            group += 1
        else:
            # The span is far wider than what was touched: take the nearest group that exists.
            best = last_group + 1
            for i in range(r.ngroups):
                if group < r.keys[i] < best:
                    best = r.keys[i]
            if best > last_group:
                return NO_BLOCK
            group = best
        n = group * GROUP_BLOCKS


cdef void res_part(residency_t* r, uint32_t block) noexcept nogil:
    cdef block_t* b = r.blocks + block
    if b.joint:
        memcpy(r.lines[b.lines[2]].w, r.lines[b.lines[1]].w, sizeof(line_t))
        b.joint = False


cdef void res_join(residency_t* r, uint32_t block) noexcept nogil:
    cdef block_t* b = r.blocks + block
    cdef uint32_t gpu = b.tags[1] & 255
    if (
        r.joins and b.n > 2
        and b.tags[1] == (MASK_VRAM << 8 | gpu) and b.tags[2] == (MASK_MAPPED << 8 | gpu)
    ):
        b.joint = memcmp(
            r.lines[b.lines[1]].w, r.lines[b.lines[2]].w, sizeof(line_t)
        ) == 0


cdef uint64_t* need_line(residency_t* r, uint32_t block, uint32_t tag) noexcept nogil:
    """The line, made when missing; the caller has reserved room."""
    cdef uint64_t* w = find_line(r, block, tag)
    cdef block_t* b
    if w != NULL:
        return w
    b = r.blocks + block
    while b.n == HEADER_LINES:
        if b.more == 0:
            b.more = r.nblocks
            memset(r.blocks + r.nblocks, 0, sizeof(block_t))
            r.blocks[r.nblocks].number = <uint64_t>0xffffffffffffffffU
            r.nblocks += 1
        b = r.blocks + b.more
    b.tags[b.n] = <uint16_t>tag
    b.lines[b.n] = r.nlines
    b.n += 1
    w = r.lines[r.nlines].w
    memset(w, 0, sizeof(line_t))
    r.nlines += 1
    return w


cdef int make_blocks(residency_t* r, uint64_t number, uint64_t end) noexcept nogil:
    cdef uint32_t table, block
    cdef uint32_t* entry
    cdef uint64_t want = r.nblocks + (end - number + 1)
    if not res_grow(<void**>&r.blocks, &r.cap_blocks, want, sizeof(block_t)):
        return -1
    while True:
        table = make_table(r, number // GROUP_BLOCKS)
        if table == 0:
            return -1
        entry = r.tables + <size_t>(table - 1) * GROUP_BLOCKS + number % GROUP_BLOCKS
        if entry[0] == NO_BLOCK:
            block = r.nblocks
            memset(r.blocks + block, 0, sizeof(block_t))
            r.blocks[block].number = number
            r.nblocks += 1
            entry[0] = block
        if number == end:
            return 0
        number += 1


cdef int res_ask(residency_t* r, uint64_t first, uint64_t last, uint32_t lines,
                 room_t* room) noexcept nogil:
    cdef uint64_t count = (last >> 9) - (first >> 9) + 1
    if count > 0x7fffffff // (lines + 2):
        return -1
    if make_blocks(r, first >> 9, last >> 9):
        return -1
    room.lines += lines * count
    # The last header of a block may be full already.
    room.headers += (lines + HEADER_LINES - 1) // HEADER_LINES * count
    return 0


cdef int res_grant(residency_t* r, const room_t* room) noexcept nogil:
    if not res_grow(<void**>&r.blocks, &r.cap_blocks, r.nblocks + room.headers, sizeof(block_t)):
        return -1
    if not res_grow(<void**>&r.lines, &r.cap_lines, r.nlines + room.lines, sizeof(line_t)):
        return -1
    return 0


cdef int res_reserve(residency_t* r, uint64_t first, uint64_t last, uint32_t lines) noexcept nogil:
    cdef room_t room
    room.lines = room.headers = 0
    return -1 if res_ask(r, first, last, lines, &room) or res_grant(r, &room) else 0


# ---- masks ------------------------------------------------------------------------------

cdef inline uint32_t low_page(uint64_t number, uint64_t first) noexcept nogil:
    return <uint32_t>(first & 511) if number == first >> 9 else 0


cdef inline uint32_t high_page(uint64_t number, uint64_t last) noexcept nogil:
    return <uint32_t>(last & 511) if number == last >> 9 else 511


cdef inline bint is_vram(uint32_t tag) noexcept nogil:
    return tag >> 8 == MASK_VRAM


cdef void gather_vram(residency_t* r, uint32_t block, uint64_t* out) noexcept nogil:
    """Union of the block's VRAM masks."""
    cdef block_t* b
    cdef uint32_t i, w
    cdef uint64_t* line
    memset(out, 0, sizeof(line_t))
    while block:
        b = r.blocks + block
        for i in range(b.n):
            if is_vram(b.tags[i]):
                line = r.lines[b.lines[i]].w
                for w in range(8):
                    out[w] |= line[w]
        block = b.more


cdef uint64_t res_count(residency_t* r, uint32_t tag, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, total = 0
    cdef uint32_t block, w, lo, hi
    cdef uint64_t* line
    while True:
        block = next_block(r, &number, end)
        if block == NO_BLOCK:
            return total
        line = find_line(r, block, tag)
        if line != NULL:
            lo = low_page(number, first)
            hi = high_page(number, last)
            for w in range(lo >> 6, (hi >> 6) + 1):
                total += popcount64(line[w] & span_word(w, lo, hi))
        if number == end:
            return total
        number += 1


cdef uint64_t res_count_vram(residency_t* r, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, total = 0
    cdef uint32_t block, w, lo, hi
    cdef uint64_t vram[8]
    while True:
        block = next_block(r, &number, end)
        if block == NO_BLOCK:
            return total
        gather_vram(r, block, vram)
        lo = low_page(number, first)
        hi = high_page(number, last)
        for w in range(lo >> 6, (hi >> 6) + 1):
            total += popcount64(vram[w] & span_word(w, lo, hi))
        if number == end:
            return total
        number += 1


cdef bint res_any_present(residency_t* r, uint64_t first, uint64_t last) noexcept nogil:
    return (
        res_count(r, MASK_SYSTEM << 8, first, last) != 0 or res_count_vram(r, first, last) != 0
    )


cdef uint64_t res_count_movable(residency_t* r, uint64_t first, uint64_t last,
                                uint64_t* absent) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, total = 0, m
    cdef uint32_t block, w, lo, hi
    cdef uint64_t vram[8]
    cdef uint64_t* pinned
    cdef uint64_t* system
    absent[0] = last + 1
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        block = find_block(r, number)
        if block == NO_BLOCK:
            total += hi - lo + 1
            if absent[0] > last:
                absent[0] = (number << 9) + lo
        else:
            gather_vram(r, block, vram)
            pinned = find_line(r, block, MASK_PINNED << 8)
            system = find_line(r, block, MASK_SYSTEM << 8)
            for w in range(lo >> 6, (hi >> 6) + 1):
                m = span_word(w, lo, hi) & ~vram[w]
                if pinned != NULL:
                    m &= ~pinned[w]
                total += popcount64(m)
                if absent[0] > last:
                    if system != NULL:
                        m &= ~system[w]
                    if m:
                        absent[0] = (number << 9) + (w << 6) + ctz64(m)
        if number == end:
            return total
        number += 1


cdef uint64_t res_move_in(residency_t* r, uint32_t gpu, uint64_t first,
                          uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, total = 0, m
    cdef uint32_t block, w, lo, hi
    cdef uint64_t vram[8]
    cdef uint64_t* pinned
    cdef uint64_t* system
    cdef uint64_t* line
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        block = find_block(r, number)
        res_part(r, block)  # joined again when they are mapped, which comes next
        gather_vram(r, block, vram)
        pinned = find_line(r, block, MASK_PINNED << 8)
        system = need_line(r, block, MASK_SYSTEM << 8)
        line = need_line(r, block, MASK_VRAM << 8 | gpu)
        for w in range(lo >> 6, (hi >> 6) + 1):
            m = span_word(w, lo, hi) & ~vram[w]
            if pinned != NULL:
                m &= ~pinned[w]
            line[w] |= m
            system[w] &= ~m
            total += popcount64(m)
        if number == end:
            return total
        number += 1


cdef int64_t res_move_out(residency_t* r, uint64_t gpus, uint64_t first,
                          uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, m
    cdef int64_t total = 0
    cdef uint32_t block, part, i, w, lo, hi
    cdef uint64_t out[8]
    cdef uint64_t* pinned
    cdef uint64_t* line
    cdef block_t* b
    cdef bint any_out
    while True:
        block = next_block(r, &number, end)
        if block == NO_BLOCK:
            return total
        lo = low_page(number, first)
        hi = high_page(number, last)
        pinned = find_line(r, block, MASK_PINNED << 8)
        memset(out, 0, sizeof(out))
        any_out = False
        res_part(r, block)
        part = block
        while part:
            b = r.blocks + part
            for i in range(b.n):
                if not is_vram(b.tags[i]) or not gpus >> (b.tags[i] & 63) & 1:
                    continue
                line = r.lines[b.lines[i]].w
                for w in range(lo >> 6, (hi >> 6) + 1):
                    m = line[w] & span_word(w, lo, hi)
                    if pinned != NULL:
                        m &= ~pinned[w]
                    if m:
                        any_out = True
                        line[w] &= ~m
                        out[w] |= m
                        total += popcount64(m)
            part = b.more
        if any_out:
            line = find_line(r, block, MASK_SYSTEM << 8)
            for w in range(8):
                line[w] |= out[w]
        res_join(r, block)
        if number == end:
            return total
        number += 1


cdef void res_populate(residency_t* r, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9
    cdef uint32_t block, w, lo, hi
    cdef uint64_t vram[8]
    cdef uint64_t rest
    cdef uint64_t* system
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        block = find_block(r, number)
        gather_vram(r, block, vram)
        rest = 0
        for w in range(lo >> 6, (hi >> 6) + 1):
            rest |= span_word(w, lo, hi) & ~vram[w]
        if rest:
            system = need_line(r, block, MASK_SYSTEM << 8)
            for w in range(lo >> 6, (hi >> 6) + 1):
                system[w] |= span_word(w, lo, hi) & ~vram[w]
        if number == end:
            return
        number += 1


cdef bint res_first_foreign(residency_t* r, uint64_t gpus, uint64_t first, uint64_t last,
                            uint64_t* page) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, m
    cdef uint32_t block, i, w, lo, hi
    cdef uint64_t foreign[8]
    cdef uint64_t* line
    cdef block_t* b
    cdef bint found
    while True:
        block = next_block(r, &number, end)
        if block == NO_BLOCK:
            return False
        found = False
        while block:
            b = r.blocks + block
            for i in range(b.n):
                if is_vram(b.tags[i]) and not gpus >> (b.tags[i] & 63) & 1:
                    if not found:
                        memset(foreign, 0, sizeof(foreign))
                        found = True
                    line = r.lines[b.lines[i]].w
                    for w in range(8):
                        foreign[w] |= line[w]
            block = b.more
        if found:
            lo = low_page(number, first)
            hi = high_page(number, last)
            for w in range(lo >> 6, (hi >> 6) + 1):
                m = foreign[w] & span_word(w, lo, hi)
                if m:
                    page[0] = (number << 9) + (w << 6) + ctz64(m)
                    return True
        if number == end:
            return False
        number += 1


cdef void res_map(residency_t* r, uint32_t gpu, uint64_t first, uint64_t last,
                  bint writable) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9
    cdef uint32_t block, w, lo, hi
    cdef uint64_t* line
    cdef uint64_t* fixed
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        block = find_block(r, number)
        res_part(r, block)
        line = need_line(r, block, MASK_MAPPED << 8 | gpu)
        for w in range(lo >> 6, (hi >> 6) + 1):
            line[w] |= span_word(w, lo, hi)
        if writable:
            fixed = find_line(r, block, MASK_READ_ONLY << 8 | gpu)
            if fixed != NULL:
                for w in range(lo >> 6, (hi >> 6) + 1):
                    fixed[w] &= ~span_word(w, lo, hi)
        else:
            fixed = need_line(r, block, MASK_READ_ONLY << 8 | gpu)
            for w in range(lo >> 6, (hi >> 6) + 1):
                fixed[w] |= span_word(w, lo, hi)
        res_join(r, block)
        if number == end:
            return
        number += 1


cdef void res_unmap(residency_t* r, uint32_t gpu, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9
    cdef uint32_t block, w, lo, hi
    cdef uint64_t* line
    while True:
        block = next_block(r, &number, end)
        if block == NO_BLOCK:
            return
        res_part(r, block)
        line = find_line(r, block, MASK_MAPPED << 8 | gpu)
        if line != NULL:
            lo = low_page(number, first)
            hi = high_page(number, last)
            for w in range(lo >> 6, (hi >> 6) + 1):
                line[w] &= ~span_word(w, lo, hi)
        res_join(r, block)
        if number == end:
            return
        number += 1


cdef bint res_first_unmapped(residency_t* r, uint32_t gpu, uint64_t first, uint64_t last,
                             bint write, uint64_t* page) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, m
    cdef uint32_t block, w, lo, hi
    cdef uint64_t* line
    cdef uint64_t* fixed
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        block = find_block(r, number)
        line = find_line(r, block, MASK_MAPPED << 8 | gpu) if block else NULL
        if line == NULL:
            page[0] = (number << 9) + lo
            return True
        fixed = find_line(r, block, MASK_READ_ONLY << 8 | gpu) if write else NULL
        for w in range(lo >> 6, (hi >> 6) + 1):
            m = span_word(w, lo, hi)
            m &= ~line[w] if fixed == NULL else ~line[w] | fixed[w]
            if m:
                page[0] = (number << 9) + (w << 6) + ctz64(m)
                return True
        if number == end:
            return False
        number += 1


cdef uint64_t res_vram_run(residency_t* r, uint64_t first, uint64_t last,
                           bint* in_vram) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9, m
    cdef uint32_t block, w, lo, hi
    cdef uint64_t vram[8]
    cdef bint known = False
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        block = find_block(r, number)
        gather_vram(r, block, vram)
        if not known:
            in_vram[0] = vram[lo >> 6] >> (lo & 63) & 1
            known = True
        for w in range(lo >> 6, (hi >> 6) + 1):
            m = span_word(w, lo, hi) & (~vram[w] if in_vram[0] else vram[w])
            if m:
                return (number << 9) + (w << 6) + ctz64(m) - 1
        if number == end:
            return last
        number += 1


cdef int res_pin(residency_t* r, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9
    cdef uint32_t w, lo, hi
    cdef uint64_t* line
    if res_reserve(r, first, last, 1):
        return -1
    while True:
        lo = low_page(number, first)
        hi = high_page(number, last)
        line = need_line(r, find_block(r, number), MASK_PINNED << 8)
        for w in range(lo >> 6, (hi >> 6) + 1):
            line[w] |= span_word(w, lo, hi)
        if number == end:
            return 0
        number += 1


cdef void res_unpin_all(residency_t* r) noexcept nogil:
    cdef uint32_t block, i
    for block in range(1, r.nblocks):
        for i in range(r.blocks[block].n):
            if r.blocks[block].tags[i] == MASK_PINNED << 8:
                memset(&r.lines[r.blocks[block].lines[i]], 0, sizeof(line_t))


cdef void res_drop(residency_t* r, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint64_t number = first >> 9, end = last >> 9
    cdef uint32_t block, i, w, lo, hi
    cdef uint64_t* line
    cdef block_t* b
    while True:
        block = next_block(r, &number, end)
        if block == NO_BLOCK:
            return
        lo = low_page(number, first)
        hi = high_page(number, last)
        while block:
            b = r.blocks + block
            for i in range(b.n):
                line = r.lines[b.lines[i]].w
                for w in range(lo >> 6, (hi >> 6) + 1):
                    line[w] &= ~span_word(w, lo, hi)
            block = b.more
        if number == end:
            return
        number += 1


cdef int res_where(residency_t* r, uint64_t page) noexcept nogil:
    cdef uint32_t block = find_block(r, page >> 9), i, bit = page & 511
    cdef block_t* b
    cdef int where = -1
    while block:
        b = r.blocks + block
        for i in range(b.n):
            if r.lines[b.lines[i]].w[bit >> 6] >> (bit & 63) & 1:
                if is_vram(b.tags[i]):
                    return 1 + (b.tags[i] & 63)
                if b.tags[i] == MASK_SYSTEM << 8:
                    where = 0
        block = b.more
    return where


cdef int res_put(residency_t* r, const mask_row_t* rows, uint32_t n) noexcept nogil:
    cdef uint64_t number = rows[0].number
    cdef uint32_t block, i
    # One more: the line for the way back, where a GPU has pages.
    if res_reserve(r, number << 9, number << 9 | 511, n + 1):
        return -1
    block = find_block(r, number)
    for i in range(n):
        if is_vram(<uint32_t>rows[i].tag):
            need_line(r, block, MASK_SYSTEM << 8)
        memcpy(need_line(r, block, <uint32_t>rows[i].tag), rows[i].w, sizeof(line_t))
    res_join(r, block)
    return 0


cdef int res_check(residency_t* r) noexcept nogil:
    """0, or what is broken.

    1: a page in two places, 2: a tag twice in a block, 3: directory and block
    disagree, 4: GPU memory without a line for the way back, 5: a GPU maps a
    page that is nowhere, 6: more in use than there is room.
    """
    cdef uint32_t table, slot, block, part, i, w
    cdef uint64_t seen[8]
    cdef uint64_t mapped[8]
    cdef uint64_t kinds[6]
    cdef uint64_t* line
    cdef block_t* b
    if r.nblocks > r.cap_blocks > 0 or r.nlines > r.cap_lines > 0:
        return 6
    for table in range(r.ngroups):
        for slot in range(GROUP_BLOCKS):
            block = r.tables[<size_t>table * GROUP_BLOCKS + slot]
            if block == NO_BLOCK:
                continue
            if r.blocks[block].number != r.keys[table] * GROUP_BLOCKS + slot:
                return 3
            memset(seen, 0, sizeof(seen))
            memset(mapped, 0, sizeof(mapped))
            memset(kinds, 0, sizeof(kinds))
            part = block
            while part:
                b = r.blocks + part
                for i in range(b.n):
                    if kinds[b.tags[i] >> 8] >> (b.tags[i] & 63) & 1:
                        return 2
                    kinds[b.tags[i] >> 8] |= <uint64_t>1 << (b.tags[i] & 63)
                    if b.tags[i] == MASK_SYSTEM << 8 or is_vram(b.tags[i]):
                        line = r.lines[b.lines[i]].w
                        for w in range(8):
                            if seen[w] & line[w]:
                                return 1
                            seen[w] |= line[w]
                    elif b.tags[i] >> 8 == MASK_MAPPED:
                        line = line_of(r, b, i)
                        for w in range(8):
                            mapped[w] |= line[w]
                part = b.more
            if kinds[<int>MASK_VRAM] and not kinds[<int>MASK_SYSTEM]:
                return 4
            for w in range(8):
                if mapped[w] & ~seen[w]:
                    return 5
    return 0
