# cython: language_level=3
"""Where each page is: 512-bit masks a 2 MiB block, made when a page is first touched.

Invariant: a page is in at most one of: system memory, the memory of one GPU.
Invariant: a block with a line of GPU memory has one of system memory too, so
that moving out, thus eviction, never runs out of memory.
Invariant: a mask line belongs to exactly one (block, tag); blocks are found
through a directory of 1 GiB groups, so untouched space costs nothing.

Free functions; those that may allocate return -1 when memory runs out and have
changed nothing, the others cannot fail. Pages are inclusive.
"""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #ifndef SVMCORE_BITS
    #if defined(__GNUC__) || defined(__clang__)
    #define SVM_PREFETCH(p) __builtin_prefetch((const void*)(p))
    #else
    #define SVM_PREFETCH(p) ((void)(p))
    #endif
    #define SVMCORE_BITS
    #if defined(_MSC_VER)
    #include <intrin.h>
    static __inline unsigned svm_ctz64(unsigned long long x)
    { unsigned long i; _BitScanForward64(&i, x); return (unsigned)i; }
    #else
    static inline unsigned svm_ctz64(unsigned long long x) { return (unsigned)__builtin_ctzll(x); }
    #endif
    /* No popcnt instruction at the baseline of the wheels: count in parallel instead. */
    static inline unsigned svm_popcount64(unsigned long long x)
    {
        x = x - ((x >> 1) & 0x5555555555555555ULL);
        x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
        return (unsigned)((x * 0x0101010101010101ULL) >> 56);
    }
    /* A window moves into a GPU's memory and its page tables, word by word; the last two lines
       may be one. Returns pages moved; *absent: any was nowhere yet. */
    static unsigned svm_take_words(uint64_t *system, uint64_t *vram, uint64_t *mapped,
                                   unsigned lo, unsigned hi, uint64_t *absent)
    {
        const unsigned last = hi >> 6;
        unsigned w = lo >> 6, moved = 0;
        uint64_t gone = 0, span = ~0ULL << (lo & 63);
        for (;;) {
            uint64_t m;
            if (w == last)
                span &= ~0ULL >> (63 - (hi & 63));
            m = span & ~vram[w];
            if (m)
                moved += svm_popcount64(m);
            gone |= m & ~system[w];
            vram[w] |= span;
            mapped[w] |= span;
            system[w] &= ~m;
            if (w == last)
                break;
            w++;
            span = ~0ULL;
        }
        *absent = gone;
        return moved;
    }
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    /* On whole lines, two words at a time: the words that a window ends in differ from one
       to the next, and a branch on them would be guessed wrong. */
    typedef uint64_t svm_pair_t __attribute__((vector_size(16)));
    static inline svm_pair_t svm_get(const void *p)
    { svm_pair_t x; __builtin_memcpy(&x, p, sizeof x); return x; }
    static inline void svm_put(void *p, svm_pair_t x) { __builtin_memcpy(p, &x, sizeof x); }
    #define SVM_8(x) x, x, x, x, x, x, x, x
    #define SVM_ROW(k) { \
        SVM_8(0), SVM_8(0), SVM_8(0), SVM_8(0), SVM_8(0), SVM_8(0), SVM_8(0), SVM_8(0), \
        (0xff << k) & 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, \
        SVM_8(0xff), SVM_8(0xff), SVM_8(0xff), SVM_8(0xff), \
        SVM_8(0xff), SVM_8(0xff), SVM_8(0xff) }
    /* From byte 64 - b of row k on: a line with the bits from 8 * b + k on. */
    static const unsigned char SVM_FROM[8][128] = {
        SVM_ROW(0), SVM_ROW(1), SVM_ROW(2), SVM_ROW(3),
        SVM_ROW(4), SVM_ROW(5), SVM_ROW(6), SVM_ROW(7)
    };
    static inline const unsigned char *svm_from(size_t bit)
    { return &SVM_FROM[0][0] + ((bit & 7) << 7) + 64 - (bit >> 3); }
    /* The same where the last two lines are one. */
    static inline unsigned svm_take_joint(uint64_t *system, uint64_t *vram,
                                          unsigned lo, unsigned hi, uint64_t *absent)
    {
        const unsigned char *from, *past;
        const unsigned w = lo >> 6;
        svm_pair_t a, b, c, d, x;
        if (w == hi >> 6) {
            const uint64_t span = ~0ULL << (lo & 63) & ~0ULL >> (63 - (hi & 63));
            const uint64_t m = span & ~vram[w], was = system[w];
            *absent = m & ~was;
            vram[w] |= m;
            system[w] = was & ~m;
            return m == span ? hi - lo + 1 : svm_popcount64(m);
        }
        from = svm_from(lo);
        past = svm_from(hi + 1);
        a = svm_get(from) & ~svm_get(past);
        b = svm_get(from + 16) & ~svm_get(past + 16);
        c = svm_get(from + 32) & ~svm_get(past + 32);
        d = svm_get(from + 48) & ~svm_get(past + 48);
        /* As a rule all are in system memory, or all are there; what is rare has to be counted. */
        x = (a & (svm_get(vram) | ~svm_get(system)))
            | (b & (svm_get(vram + 2) | ~svm_get(system + 2)))
            | (c & (svm_get(vram + 4) | ~svm_get(system + 4)))
            | (d & (svm_get(vram + 6) | ~svm_get(system + 6)));
        *absent = 0;
        if (x[0] | x[1]) {
            x = (a & ~svm_get(vram)) | (b & ~svm_get(vram + 2))
                | (c & ~svm_get(vram + 4)) | (d & ~svm_get(vram + 6));
            return x[0] | x[1] ? svm_take_words(system, vram, vram, lo, hi, absent) : 0;
        }
        svm_put(vram, svm_get(vram) | a);
        svm_put(vram + 2, svm_get(vram + 2) | b);
        svm_put(vram + 4, svm_get(vram + 4) | c);
        svm_put(vram + 6, svm_get(vram + 6) | d);
        svm_put(system, svm_get(system) & ~a);
        svm_put(system + 2, svm_get(system + 2) & ~b);
        svm_put(system + 4, svm_get(system + 4) & ~c);
        svm_put(system + 6, svm_get(system + 6) & ~d);
        return hi - lo + 1;
    }
    #else
    static inline unsigned svm_take_joint(uint64_t *system, uint64_t *vram,
                                          unsigned lo, unsigned hi, uint64_t *absent)
    { return svm_take_words(system, vram, vram, lo, hi, absent); }
    #endif
    #endif
    """
    unsigned int take_pages "svm_take_words"(uint64_t* system, uint64_t* vram, uint64_t* mapped,
                                             unsigned int lo, unsigned int hi,
                                             uint64_t* absent) noexcept nogil
    unsigned int take_joint "svm_take_joint"(uint64_t* system, uint64_t* vram,
                                             unsigned int lo, unsigned int hi,
                                             uint64_t* absent) noexcept nogil
    void ask_ahead "SVM_PREFETCH"(const void* p) noexcept nogil
    unsigned int ctz64 "svm_ctz64"(uint64_t x) noexcept nogil
    unsigned int popcount64 "svm_popcount64"(uint64_t x) noexcept nogil

# What a mask line says of its pages; the tag is kind << 8 | GPU index.
cdef enum mask_kind:
    MASK_SYSTEM = 0      # populated in system memory
    MASK_PINNED = 1      # cannot move
    MASK_VRAM = 2        # in the memory of the GPU
    MASK_MAPPED = 3      # in the page tables of the GPU
    MASK_READ_ONLY = 4   # mapped there without write permission
    MASK_COPY = 5        # the GPU has a copy to read; the page itself is elsewhere

# In the place of a GPU index in a tag: the CPU, for copies in system memory and for device
# memory that it maps. Policies with copies only.
cdef enum:
    SLOT_CPU = 64

cdef struct line_t:
    uint64_t w[8]

# A mask line as it lies outside: in tables and files.
cdef struct mask_row_t:
    uint64_t number      # of the block
    uint64_t tag
    uint64_t w[8]

# One 64-byte cache line: which mask lines a 2 MiB block has.
cdef struct block_t:
    uint64_t number      # page >> 9; all ones in a further header
    uint32_t more        # next header of the same block when 8 lines are not enough; 0 = none
    uint16_t n           # lines in use here
    uint16_t joint       # line 2 is not kept up: it would equal line 1, see res_join
    uint16_t tags[8]
    uint32_t lines[8]    # line numbers

cdef struct residency_t:
    block_t* blocks      # [0] unused
    uint32_t nblocks
    uint32_t cap_blocks
    line_t* lines        # [0] unused
    uint32_t nlines
    uint32_t cap_lines
    uint32_t* tables     # 512 block numbers a group
    uint64_t* keys       # group number of each table
    uint32_t ngroups
    uint32_t cap_groups
    uint32_t* slots      # hash of group number -> table + 1
    uint32_t nslots      # power of two
    bint joins           # lines may be joint
    uint64_t last_group  # most recent look-up: group number and its table + 1
    uint32_t last_table

cdef enum:
    GROUP_BLOCKS = 512   # 2 MiB blocks of one directory table: 1 GiB
    HEADER_LINES = 8
    NO_BLOCK = 0

# Lines of one block that a GPU's fault looks at; NULL where the block has none. The last two
# are one where they are joint.
cdef struct lines_t:
    uint64_t* system
    uint64_t* vram
    uint64_t* mapped
    bint other           # the block has lines of other GPUs, pinned or read-only pages

# ---- look-ups, inline for the hot path ----

cdef inline uint32_t hash_group(uint64_t group, uint32_t mask) noexcept nogil:
    return <uint32_t>((group * 0x9E3779B97F4A7C15U) >> 32) & mask


cdef inline uint32_t find_table(residency_t* r, uint64_t group) noexcept nogil:
    """Table number + 1 of a group, 0 where nothing was ever touched."""
    cdef uint32_t slot, table
    if group == r.last_group and r.last_table:
        return r.last_table
    if r.nslots == 0:
        return 0
    slot = hash_group(group, r.nslots - 1)
    while True:
        table = r.slots[slot]
        if table == 0:
            return 0
        if r.keys[table - 1] == group:
            r.last_group = group
            r.last_table = table
            return table
        slot = (slot + 1) & (r.nslots - 1)


cdef inline uint32_t find_block(residency_t* r, uint64_t number) noexcept nogil:
    cdef uint32_t table = find_table(r, number // GROUP_BLOCKS)
    if table == 0:
        return NO_BLOCK
    return r.tables[<size_t>(table - 1) * GROUP_BLOCKS + number % GROUP_BLOCKS]


cdef inline uint64_t span_word(uint32_t w, uint32_t lo, uint32_t hi) noexcept nogil:
    """Bits of word *w* that lie in pages lo..hi of the block."""
    cdef uint64_t m = <uint64_t>0xffffffffffffffffU
    if w == lo >> 6:
        m &= m << (lo & 63)
    if w == hi >> 6:
        m &= <uint64_t>0xffffffffffffffffU >> (63 - (hi & 63))
    return m


# The header of most blocks, whose lines the first fault of a GPU made.
cdef struct usual_t:
    uint64_t counts      # more, n and joint
    uint64_t tags        # the first four


cdef inline uint64_t usual_tags(uint32_t gpu) noexcept nogil:
    # Of a little-endian machine; elsewhere no header is usual, and all is found in a loop.
    return <uint64_t>(MASK_VRAM << 8 | gpu) << 16 | <uint64_t>(MASK_MAPPED << 8 | gpu) << 32


cdef inline usual_t usual_header(uint32_t gpu) noexcept nogil:
    cdef block_t b
    cdef usual_t out
    b.more = 0
    b.n = 3
    b.joint = True
    memcpy(&out.counts, &b.more, sizeof(out.counts))
    out.tags = usual_tags(gpu)
    return out


cdef inline bint is_usual(const block_t* b, const usual_t* usual) noexcept nogil:
    cdef uint64_t counts, tags
    memcpy(&counts, &b.more, sizeof(counts))
    memcpy(&tags, b.tags, sizeof(tags))
    return counts == usual.counts and tags == usual.tags


cdef inline uint64_t* line_of(residency_t* r, const block_t* b, uint32_t i) noexcept nogil:
    """Line i of a header, to be read."""
    return r.lines[b.lines[1 if b.joint and i == 2 else i]].w


cdef inline void res_lines(residency_t* r, uint32_t block, uint32_t gpu,
                           lines_t* out) noexcept nogil:
    """The block's lines for a GPU, in one pass over its header; they are to be read."""
    cdef block_t* b = r.blocks + block
    cdef uint32_t i, tag
    cdef uint64_t tags
    memcpy(&tags, b.tags, sizeof(tags))
    if b.n == 3 and b.more == 0 and tags == usual_tags(gpu):
        out.system = r.lines[b.lines[0]].w
        out.vram = r.lines[b.lines[1]].w
        out.mapped = r.lines[b.lines[2 - b.joint]].w
        out.other = False
        return
    out.system = NULL
    out.vram = NULL
    out.mapped = NULL
    out.other = b.more != 0
    for i in range(b.n):
        tag = b.tags[i]
        if tag == (MASK_MAPPED << 8 | gpu):
            out.mapped = line_of(r, b, i)
        elif tag == (MASK_VRAM << 8 | gpu):
            out.vram = r.lines[b.lines[i]].w
        elif tag == MASK_SYSTEM << 8:
            out.system = r.lines[b.lines[i]].w
        else:
            out.other = True


cdef inline uint64_t* find_line(residency_t* r, uint32_t block, uint32_t tag) noexcept nogil:
    """A mask line of a block, NULL where it has none; to be read, unless res_part went before."""
    cdef block_t* b
    cdef uint32_t i
    while block:
        b = r.blocks + block
        for i in range(b.n):
            if b.tags[i] == tag:
                return line_of(r, b, i)
        block = b.more
    return NULL


# Room asked for so far, see res_ask.
cdef struct room_t:
    uint64_t lines
    uint64_t headers

# Room for `want` items in an array of cap[0], a half more than now at least; False when
# memory runs out and nothing changed. Policies grow their arrays through it too.
cdef bint res_grow(void** array, uint32_t* cap, uint64_t want, size_t item) noexcept nogil

# realloc, unless a test makes allocations fail (see _fail_allocation_after).
cdef void* res_resize(void* p, size_t size) noexcept nogil

# ---- functions ----

# A block's lines 1 and 2 are one GPU's memory and its page tables as a rule, and equal as long
# as the GPU maps what it has and nothing else. Then they are joint: line 2 is not kept up, and
# a fault reads and writes a line less. Who writes one of the two parts them before, and joins
# them again after.
cdef void res_part(residency_t* r, uint32_t block) noexcept nogil
cdef void res_join(residency_t* r, uint32_t block) noexcept nogil
# The same as find_line, made when missing in room that was reserved.
cdef uint64_t* need_line(residency_t* r, uint32_t block, uint32_t tag) noexcept nogil
# The first block that exists with *number <= its number <= last; NO_BLOCK without one.
cdef uint32_t next_block(residency_t* r, uint64_t* number, uint64_t last) noexcept nogil
# Union of the block's masks of GPU memory, eight words.
cdef void gather_vram(residency_t* r, uint32_t block, uint64_t* out) noexcept nogil

cdef residency_t* res_new() noexcept nogil
cdef void res_free(residency_t* r) noexcept nogil
cdef uint64_t res_nbytes(const residency_t* r) noexcept nogil

# Make every block of [first, last] exist with room for `lines` more mask lines each.
cdef int res_reserve(residency_t* r, uint64_t first, uint64_t last, uint32_t lines) noexcept nogil
# The same for several spans at once: ask for each, then grant the sum.
cdef int res_ask(residency_t* r, uint64_t first, uint64_t last, uint32_t lines,
                 room_t* room) noexcept nogil
cdef int res_grant(residency_t* r, const room_t* room) noexcept nogil

# Pages of the mask in [first, last].
cdef uint64_t res_count(residency_t* r, uint32_t tag, uint64_t first, uint64_t last) noexcept nogil
# Pages in any GPU's memory.
cdef uint64_t res_count_vram(residency_t* r, uint64_t first, uint64_t last) noexcept nogil
# Is any page populated, wherever it is?
cdef bint res_any_present(residency_t* r, uint64_t first, uint64_t last) noexcept nogil
# Pages that could move into a GPU's memory; *absent = the first of them that is
# nowhere yet, or last + 1.
cdef uint64_t res_count_movable(residency_t* r, uint64_t first, uint64_t last,
                                uint64_t* absent) noexcept nogil
# Move them (reserve 2 lines first); returns how many moved.
cdef uint64_t res_move_in(residency_t* r, uint32_t gpu, uint64_t first,
                          uint64_t last) noexcept nogil
# Move pages that are in the memory of the GPUs of the mask and not pinned to system memory;
# returns how many moved. It needs no memory: a block of GPU memory has a line for the way back.
cdef int64_t res_move_out(residency_t* r, uint64_t gpus, uint64_t first,
                          uint64_t last) noexcept nogil
# Populate in system memory what is in no GPU's memory (reserve 1 line first).
cdef void res_populate(residency_t* r, uint64_t first, uint64_t last) noexcept nogil
# First page in the memory of a GPU outside the mask; False when there is none.
cdef bint res_first_foreign(residency_t* r, uint64_t gpus, uint64_t first, uint64_t last,
                            uint64_t* page) noexcept nogil
# Page table entries of a GPU (reserve 2 lines before res_map).
cdef void res_map(residency_t* r, uint32_t gpu, uint64_t first, uint64_t last,
                  bint writable) noexcept nogil
cdef void res_unmap(residency_t* r, uint32_t gpu, uint64_t first, uint64_t last) noexcept nogil
# First page that the GPU cannot access that way; False when all are mapped.
cdef bint res_first_unmapped(residency_t* r, uint32_t gpu, uint64_t first, uint64_t last,
                             bint write, uint64_t* page) noexcept nogil
# Last page of the run that starts at first and is all in, or all outside, GPU memory.
cdef uint64_t res_vram_run(residency_t* r, uint64_t first, uint64_t last,
                           bint* in_vram) noexcept nogil
cdef int res_pin(residency_t* r, uint64_t first, uint64_t last) noexcept nogil
cdef void res_unpin_all(residency_t* r) noexcept nogil
# The memory goes: every mask of the pages is cleared.
cdef void res_drop(residency_t* r, uint64_t first, uint64_t last) noexcept nogil
# Where one page is: -1 absent, 0 system, 1 + i GPU i.
cdef int res_where(residency_t* r, uint64_t page) noexcept nogil
# All mask lines of a block that has none yet, for who builds masks anew.
cdef int res_put(residency_t* r, const mask_row_t* rows, uint32_t n) noexcept nogil
# Invariants: 0 = sound, else the number of the broken rule.
cdef int res_check(residency_t* r) noexcept nogil
