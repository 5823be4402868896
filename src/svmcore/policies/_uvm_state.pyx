# cython: language_level=3, freethreading_compatible=True
"""A UVM process as tables and back: what state files and clones hold.

Every table is a matrix of 64-bit words with the columns that COLUMNS names. The
tables say what the process means, not how it lies in memory: ranges and blocks are
numbered by address, chunks by age, records without meaning are left out. Equal
states give equal tables.

:func:`unpack` trusts nothing: every number is checked before it is used, and the
finished process checks its invariants, so no input can break it.
"""
from libc.stdint cimport uint32_t, uint64_t

from .._evict cimport evict_pack, evict_restore
from .._ranges cimport range_entry_t, ranges_next
from ._uvm cimport (
    HISTORY_PINNED,
    ON_NO_LIST,
    UvmProcess,
    block_t,
    cut_t,
    entry_t,
    histories_t,
    history_t,
    place_t,
    pool_at,
    pool_reserve,
    pool_take,
    range_t,
    root_t,
    split_t,
    uvm_block_at,
    uvm_make_block,
    uvm_make_place,
    uvm_map,
    uvm_piece,
    uvm_reserve_block,
    uvm_reserve_roots,
    uvm_stack,
    uvm_t,
    uvm_touched,
)

import numpy as np

from ..errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["pack", "unpack"]

cdef enum:
    VERSION = 1
    BLOCK = 512
    BIG = 16
    USED = 2               # the list of the eviction order
    BLOCK_MASKS = 12       # first column of the block's masks
    PLACE_MASKS = 2

cdef uint64_t TOP_PAGE = (<uint64_t>1 << 52) - 1
cdef uint64_t TOP_TIME = (<uint64_t>1 << 63) - 1

COLUMNS = {
    "process": ("version", "now", "cost", "sequence", "timer", "lapse", "votes"),
    "held": ("chunks",),
    "ranges": ("first", "last", "prot", "preferred", "accessed_by", "duplication"),
    "blocks": (
        "range", "frame", "start", "outer", "stamp", "last_thrashing", "resets", "pins",
        "prefetch_faults", "prefetch_last", "processor", "histories",
        *(f"duplicated{w}" for w in range(8)), *(f"discarded{w}" for w in range(8)),
    ),
    "places": (
        "block", "processor",
        *(f"{name}{w}" for name in ("resident", "read", "write", "atomic") for w in range(8)),
    ),
    "roots": ("gpu", "list", "age", "whole", "small"),
    "chunks": ("root", "offset", "pages", "block", "page"),
    "pages": (
        "block", "page", "stamp", "end", "processors", "throttled", "events", "flags", "pin_at",
        "throttles", "favoured",
    ),
    "queue": ("block", "page", "deadline"),
    "counters": ("value",),
    "processors": (
        "faults", "driver_faults", "duplicates", "pages_in", "pages_out", "remote_pages",
        "pages_touched", "fatal",
    ),
}
#: With a strategy of eviction: its order, then what it has drawn on each GPU (1 + root, 0
#: none), then its generator.
ORDER_COLUMNS = {
    "order": ("root", "stamp", "uses"),
    "drawn": ("root",),
    "random": ("state",),
}
#: Where a GPU reports no prefetch faults for a while: until when, a row a GPU.
OFF_COLUMNS = {"prefetch_off": ("until",)}
#: With access counters that move pages: those that are not empty, where the page that filled
#: it is 1 + its region of 64 KiB, 0 none.
ACCESS_COLUMNS = {"access_counters": ("block", "processor", "count", "flagged", "notified")}
#: Counters of the engine, then of the driver, in the order of the table.
ENGINE = (
    "migrations", "migration_attempts", "migrated_pages", "pages_to_device", "pages_to_host",
    "evictions", "evicted_pages", "unmaps", "maps", "queue_evictions", "queue_restores",
    "duplicated_pages", "dropped_pages",
)
DRIVER = (
    "populated_pages", "invalidated_pages", "prefetched_pages", "batches",
    "services", "replays", "throttles", "pins", "unpins", "revocations",
    "notifications", "access_counter_migrations",
    "fatal_batches", "cancels", "invalid_prefetches", "prefetch_stops",
)
#: Of those, the ones that every state has; later ones begin at 0.
FIRST_DRIVER = 10


cdef inline range_t* range_no(uvm_t* p, uint64_t number) noexcept nogil:
    return <range_t*>pool_at(&p.ranges, <uint32_t>number)


cdef inline block_t* block_no(uvm_t* p, uint64_t number) noexcept nogil:
    return <block_t*>pool_at(&p.blocks, <uint32_t>number)


cdef inline place_t* place_no(uvm_t* p, uint64_t number) noexcept nogil:
    return <place_t*>pool_at(&p.places, <uint32_t>number)


cdef inline root_t* root_no(uvm_t* p, uint64_t number) noexcept nogil:
    return <root_t*>pool_at(&p.roots, <uint32_t>number)


# ---- a process to tables ------------------------------------------------------------------

cdef object table(str name, list rows):
    columns = (COLUMNS | ORDER_COLUMNS | ACCESS_COLUMNS | OFF_COLUMNS)[name]
    return np.array(rows, np.uint64).reshape(len(rows), len(columns))


cdef object columns_of(const uvm_t* p):
    """The tables of a process, by its rules."""
    columns = dict(COLUMNS)
    if p.order != NULL:
        columns |= ORDER_COLUMNS
    if p.counting:
        columns |= ACCESS_COLUMNS
    return columns


cdef list words(const uint64_t* m, uint32_t n):
    return [m[i] for i in range(n)]


def pack(UvmProcess process not None):
    """The whole state of a process as named arrays.

    Returns
    -------
    dict of str to ndarray
        Matrices of 64-bit words.

    Complexity
    ----------
    O(ranges + blocks touched + chunks).
    """
    cdef uvm_t* p = process.p
    cdef range_entry_t e
    cdef uint64_t page = 0, frame
    cdef uint32_t block, place, gpu, kind, at, n
    cdef block_t* b
    cdef place_t* l
    cdef histories_t* hs
    cdef history_t* h
    cdef root_t* root
    cdef split_t* s
    ranges, blocks, places, pages, queue, roots, chunks = [], [], [], [], [], [], []
    counts = []
    number = {}  # of a block, by its record
    while ranges_next(p.tree, page, &e):
        ranges.append([
            e.first, e.last, range_no(p, e.value).prot, range_no(p, e.value).preferred,
            range_no(p, e.value).accessed_by, range_no(p, e.value).duplication,
        ])
        for frame in range(e.first // BLOCK, e.last // BLOCK + 1):
            block = uvm_block_at(p, e.value, frame)
            if not block:
                if not uvm_touched(p, e.value):
                    break
                continue
            b = block_no(p, block)
            number[block] = len(blocks)
            blocks.append([
                len(ranges) - 1, b.frame, b.start, b.outer, b.stamp, b.last_thrashing, b.resets,
                b.pins, b.prefetch_faults, b.prefetch_last, b.processor, b.histories != 0,
                *words(b.duplicated, 8), *words(b.discarded, 8),
            ])
            place = b.place
            while place:
                l = place_no(p, place)
                row = [*words(l.resident, 8), *words(&l.tables[0][0], 24)]
                if any(row):
                    places.append([number[block], l.processor, *row])
                if l.flagged:
                    counts.append(
                        [number[block], l.processor, l.count, l.flagged, l.notified]
                    )
                place = l.next
            if b.histories:
                hs = <histories_t*>pool_at(&p.histories, b.histories)
                for at in range(BLOCK):
                    h = hs.pages + at
                    row = [h.stamp, h.end, h.processors, h.throttled, h.events, h.flags, h.pin_at,
                           h.throttles, h.favoured]
                    if any(row):
                        pages.append([number[block], at, *row])
        page = e.last + 1
    order = []
    for gpu in range(1, p.processors):
        for kind in range(3):
            at = p.gpus[gpu].head[kind]
            while at:
                order.append((root_no(p, at).age, at))
                at = root_no(p, at).after
    order.sort()
    place_in = [{}, {}]  # height in the two stacks, from 1
    for gpu in range(1, p.processors):
        for kind in range(2):
            heap = []
            at = p.gpus[gpu].stack[kind]
            while at:
                heap.append(at)
                at = root_no(p, at).before_free[kind]
            for n, at in enumerate(reversed(heap)):
                place_in[kind][at] = n + 1
    for _, at in order:
        root = root_no(p, at)
        roots.append([root.gpu, root.list, root.age, place_in[0].get(at, 0),
                      place_in[1].get(at, 0)])
        if root.block:
            chunks.append([len(roots) - 1, 0, BLOCK, number[root.block], 0])
            continue
        s = <split_t*>pool_at(&p.splits, root.split)
        for n in range(BLOCK):
            if s.block[n]:
                chunks.append([
                    len(roots) - 1, n, 1 if s.small >> (n // BIG) & 1 else BIG,
                    number[s.block[n]], s.page[n],
                ])
    at = p.queue_first
    while at:
        queue.append([
            number[(<entry_t*>pool_at(&p.entries, at)).block],
            (<entry_t*>pool_at(&p.entries, at)).page,
            (<entry_t*>pool_at(&p.entries, at)).deadline,
        ])
        at = (<entry_t*>pool_at(&p.entries, at)).next
    totals, driver = process.totals(), process.work()
    rows = {
        "process": [[VERSION, p.engine.now, p.engine.cost_ns, p.node.sequence, p.timer, p.lapse,
                     p.votes + 128]],
        "held": [[p.gpus[gpu].held] for gpu in range(1, p.processors)],
        "ranges": ranges,
        "blocks": blocks,
        "places": places,
        "roots": roots,
        "chunks": chunks,
        "pages": pages,
        "queue": queue,
        "counters": [[totals[name]] for name in ENGINE] + [[driver[name]] for name in DRIVER],
        "processors": [
            [row[name] for name in COLUMNS["processors"]] for row in process.processors()
        ],
    }
    off = [[p.gpus[gpu].prefetch_off] for gpu in range(1, p.processors)]
    if any(until for until, in off):
        rows["prefetch_off"] = off
    if p.counting:
        rows["access_counters"] = counts
    if p.order != NULL:
        index = {at: n for n, (_, at) in enumerate(order)}
        rows["order"] = [
            [index[unit], stamp, uses] for unit, _, stamp, uses in evict_pack(p.order).tolist()
        ]
        rows["drawn"] = [
            [index[p.order.drawn[gpu]] + 1 if p.order.drawn[gpu] else 0]
            for gpu in range(p.processors - 1)
        ]
        rows["random"] = [[p.order.random]]
    return {name: table(name, rows[name]) for name in rows}


# ---- tables to a process ------------------------------------------------------------------

cdef object checked(object tables, object expected):
    """The tables as lists of whole numbers, their shapes checked."""
    if set(tables) != set(expected):
        raise InvalidArgumentError(
            f"tables {', '.join(sorted(map(str, tables)))}: expected {', '.join(sorted(expected))}"
        )
    out = {}
    for name, columns in expected.items():
        rows = np.asarray(tables[name])
        if rows.dtype.kind != "u" or rows.dtype.itemsize != 8 or rows.ndim != 2 or (
            rows.shape[1] != len(columns)
        ):
            raise InvalidArgumentError(
                f"table {name}: {rows.dtype} of shape {rows.shape}, expected rows of "
                f"{len(columns)} 64-bit words"
            )
        out[name] = rows.tolist()
    return out


cdef int need(bint right, str what) except -1:
    if not right:
        raise InvalidArgumentError(f"state of policy uvm: {what}")
    return 0


cdef inline uint64_t word_of(uint32_t w, uint32_t low, uint32_t outer) noexcept nogil:
    """Bits of word w in pages [low, outer)."""
    cdef uint64_t m = 0
    cdef uint32_t bit
    for bit in range(64):
        if low <= w * 64 + bit < outer:
            m |= <uint64_t>1 << bit
    return m


cdef int take_words(uint64_t* m, object row, uint32_t start, uint32_t outer,
                    str what) except -1:
    """A mask of pages [start, outer)."""
    cdef uint32_t w
    cdef bint outside = False
    for w in range(8):
        m[w] = row[w]
        outside |= m[w] & ~word_of(w, start, outer) != 0
    return need(not outside, f"{what} outside of its block")


def unpack(UvmProcess process not None, tables):
    """Give a new process, alone on its node, the state that :func:`pack` took.

    Raises
    ------
    InvalidArgumentError
        If the tables do not fit the process or each other; it must be discarded then.
    OutOfMemoryError
        If the state cannot be allocated.
    """
    cdef uvm_t* p = process.p
    cdef uint32_t i, gpu
    expected = columns_of(p)
    rows = checked(tables, expected | OFF_COLUMNS if "prefetch_off" in tables else expected)
    need(len(process) == 0 and p.node.ntenants == 1 and p.node.sequence == 0,
         "expected a new process on a node of its own")
    need(len(rows["process"]) == 1 and rows["process"][0][0] == VERSION,
         f"process, expected one row of version {VERSION}")
    _, now, cost, sequence, timer, lapse, votes = rows["process"][0]
    need(max(now, cost, timer, lapse) <= TOP_TIME and not sequence >> 62 and votes < 256
         and lapse > 0, "process, expected times below 2**63")
    need(len(rows["held"]) == p.processors - 1, "held, expected a row a GPU")
    need(len(rows["processors"]) == p.processors, "processors, expected a row each")
    later = len(ENGINE) + len(DRIVER) - len(rows["counters"])
    need(0 <= later <= len(DRIVER) - FIRST_DRIVER, "counters, expected a row each")
    p.engine.now = now
    p.engine.cost_ns = cost
    p.timer = timer
    p.lapse = lapse
    p.votes = votes - 128
    load_ranges(p, rows["ranges"])
    numbered = load_blocks(p, rows["ranges"], rows["blocks"])
    load_places(p, rows["blocks"], rows["places"], numbered)
    if p.counting:
        load_counts(p, rows["access_counters"], numbered)
    load_roots(p, rows["roots"], rows["chunks"], rows["blocks"], numbered, sequence)
    if p.order != NULL:
        load_order(p, rows, sequence)
    load_pages(p, rows["blocks"], rows["pages"], rows["queue"], numbered)
    for gpu in range(1, p.processors):
        held = rows["held"][gpu - 1][0]
        need(held * BLOCK + p.node.used[gpu - 1] <= p.gpus[gpu].vram_pages,
             f"gpu{gpu - 1} holds more memory than it has")
        p.gpus[gpu].held = held
        p.gpus[gpu].taken += held * BLOCK
        p.node.used[gpu - 1] += held * BLOCK
    if "prefetch_off" in rows:
        off = [until for until, in rows["prefetch_off"]]
        need(len(off) == p.processors - 1 and max(off) <= TOP_TIME,
             "prefetch_off, expected a time below 2**63 a GPU")
        for gpu in range(1, p.processors):
            p.gpus[gpu].prefetch_off = off[gpu - 1]
    p.node.sequence = sequence
    values = [row[0] for row in rows["counters"]] + [0] * later
    p.engine.counters = dict(zip(ENGINE, values[:len(ENGINE)], strict=True))
    p.counters = dict(zip(DRIVER, values[len(ENGINE):], strict=True))
    for i in range(p.processors):
        p.engine.processors[i] = dict(zip(COLUMNS["processors"], rows["processors"][i],
                                          strict=True))
    need(not p.queue_first or timer > 0, "pinned pages without a timer")
    try:
        process.check()
    except AssertionError as error:
        raise InvalidArgumentError(f"state of policy uvm: {error}") from error


cdef int load_ranges(uvm_t* p, list rows) except -1:
    cdef int error
    cdef range_t* r
    cdef uint32_t number
    before = -1
    for first, last, prot, preferred, accessed_by, duplication in rows:
        need(before < first <= last <= TOP_PAGE, "ranges, expected in order and apart")
        need(prot <= 3 and duplication <= 2 and not accessed_by >> p.processors
             and preferred <= p.processors, f"policy of the range at page {first}")
        need(not preferred or p.memory >> (preferred - 1) & 1,
             f"preferred location of the range at page {first}, expected memory there")
        error = uvm_map(p, first, last, prot)
        if error:
            raise OutOfMemoryError("no memory for the ranges of a state")
        number = p.ranges.n - 1
        r = range_no(p, number)
        r.preferred = preferred
        r.accessed_by = accessed_by
        r.duplication = duplication
        before = last
    return 0


cdef list load_blocks(uvm_t* p, list ranges, list rows):
    """Blocks, by their records' numbers."""
    cdef uint32_t block, number
    cdef block_t* b
    numbered = []
    before = (-1, -1)
    for row in rows:
        need(row[0] < len(ranges) and before < (row[0], row[1]), "blocks, expected in order")
        before = (row[0], row[1])
        number = row[0] + 1
        need(range_no(p, number).first // BLOCK <= row[1] <= range_no(p, number).last // BLOCK,
             f"frame {row[1]} of a block, expected one of its range")
        if not uvm_reserve_block(p, number):
            raise OutOfMemoryError("no memory for the blocks of a state")
        block = uvm_make_block(p, number, row[1])
        b = block_no(p, block)
        need(b.start == row[2] and b.outer == row[3], f"pages of the block in frame {row[1]}")
        need(row[4] <= TOP_TIME and row[5] <= TOP_TIME and not (row[6] | row[7]) >> 32
             and not row[8] >> 16 and row[9] <= p.processors and row[10] <= p.processors
             and row[11] <= 1, f"block in frame {row[1]}")
        b.stamp = row[4]
        b.last_thrashing = row[5]
        b.resets = row[6]
        b.pins = row[7]
        b.prefetch_faults = row[8]
        b.prefetch_last = row[9]
        b.processor = row[10]
        take_words(b.duplicated, row[BLOCK_MASKS:], b.start, b.outer, "duplicated pages")
        take_words(b.discarded, row[BLOCK_MASKS + 8:], b.start, b.outer, "discarded pages")
        need(row[11] or (row[5] == 0 and row[7] == 0), "thrashing pages without their histories")
        if row[11]:
            if not pool_reserve(&p.histories, 1):
                raise OutOfMemoryError("no memory for the histories of a state")
            b.histories = pool_take(&p.histories)
        numbered.append(block)
    return numbered


cdef int load_places(uvm_t* p, list blocks, list rows, list numbered) except -1:
    cdef place_t* place
    cdef block_t* b
    cdef uint32_t i
    before = (-1, -1)
    for row in rows:
        need(row[0] < len(numbered) and row[1] < p.processors and before < (row[0], row[1]),
             "places, expected in order, of known blocks and processors")
        before = (row[0], row[1])
        if not pool_reserve(&p.places, 1):
            raise OutOfMemoryError("no memory for the places of a state")
        b = block_no(p, numbered[row[0]])
        place = uvm_make_place(p, numbered[row[0]], row[1])
        take_words(place.resident, row[PLACE_MASKS:], b.start, b.outer, "resident pages")
        for i in range(3):
            take_words(place.tables[i], row[PLACE_MASKS + 8 + 8 * i:], b.start, b.outer,
                       "mapped pages")
    return 0


cdef int load_counts(uvm_t* p, list rows, list numbered) except -1:
    cdef place_t* place
    before = (-1, -1)
    for block, processor, count, flagged, notified in rows:
        need(block < len(numbered) and 0 < processor < p.processors
             and before < (block, processor), "access counters, expected in order, of known blocks")
        before = (block, processor)
        if not pool_reserve(&p.places, 1):
            raise OutOfMemoryError("no memory for the places of a state")
        place = uvm_make_place(p, numbered[block], processor)
        need(0 < count <= p.counter_threshold and 0 < flagged < 1 << 32
             and notified <= 32 and (count == p.counter_threshold) == (notified > 0)
             and (notified == 0 or flagged >> (notified - 1) & 1),
             "access counters, expected below the threshold, or with the region that filled it")
        place.count = count
        place.flagged = flagged
        place.notified = notified
    return 0


cdef int load_roots(uvm_t* p, list rows, list chunks, list blocks, list numbered,
                    object sequence) except -1:
    cdef uint32_t number, piece, size, at, offset, pages, block, page, gpu, kind
    cdef root_t* root
    cdef split_t* s
    cdef place_t* place
    cdef block_t* b
    before = -1
    heaps = {}
    whole = {row[0] for row in chunks if row[2] == BLOCK}
    for index, (on, kind, age, tall, small) in enumerate(rows):
        need(0 < on < p.processors and kind < ON_NO_LIST and before < age < sequence,
             "roots, expected by age, on a list of a GPU")
        before = age
        gpu = on
        if not (uvm_reserve_roots(p, 1) and pool_reserve(&p.splits, 1)):
            raise OutOfMemoryError("no memory for the chunks of a state")
        need(p.node.used[gpu - 1] + BLOCK <= p.gpus[gpu].vram_pages,
             f"gpu{gpu - 1} holds more memory than it has")
        p.node.used[gpu - 1] += BLOCK
        p.gpus[gpu].taken += BLOCK
        number = pool_take(&p.roots)
        root = root_no(p, number)
        root.gpu = gpu
        root.list = kind
        root.age = age
        root.before = p.gpus[gpu].tail[kind]
        if root.before:
            root_no(p, root.before).after = number
        else:
            p.gpus[gpu].head[kind] = number
        p.gpus[gpu].tail[kind] = number
        if index not in whole:
            root.split = pool_take(&p.splits)
            (<split_t*>pool_at(&p.splits, root.split)).whole = 0xffffffff
        for kind, height in ((0, tall), (1, small)):
            if height:
                heaps.setdefault((gpu, kind), []).append((height, number))
    for index, offset_, pages_, block_, page_ in chunks:
        need(index < len(rows) and block_ < len(numbered), "chunks, expected of known roots")
        number = index + 1
        root = root_no(p, number)
        block = numbered[block_]
        b = block_no(p, block)
        if not (pool_reserve(&p.places, 1) and pool_reserve(&p.cuts, 1)):
            raise OutOfMemoryError("no memory for the chunks of a state")
        place = uvm_make_place(p, block, root.gpu)
        if pages_ == BLOCK:
            need(root.block == 0 and offset_ == 0 and page_ == 0 and b.outer - b.start == BLOCK
                 and place.chunk == 0, "a chunk of 2 MiB, expected of a whole frame")
            root.block = block
            place.chunk = number
            continue
        need(root.split != 0 and pages_ in (1, BIG) and offset_ < BLOCK
             and offset_ % pages_ == 0 and page_ < BLOCK and b.outer - b.start < BLOCK,
             "a chunk, expected of 1 or 16 pages of a block that is no whole frame")
        offset, pages, page = offset_, pages_, page_
        s = <split_t*>pool_at(&p.splits, root.split)
        at = offset // BIG
        if pages == BIG or not s.small >> at & 1:
            need(s.whole >> at & 1, "chunks that overlap")
            s.whole &= ~(<uint32_t>1 << at)
            if pages == 1:
                s.small |= <uint32_t>1 << at
                s.free[at] = 0xffff
        if pages == 1:
            need(s.free[at] >> (offset % BIG) & 1, "chunks that overlap")
            s.free[at] &= ~(1 << (offset % BIG))
        s.block[offset] = block
        s.page[offset] = page
        s.chunks += 1
        if not place.chunk:
            place.chunk = pool_take(&p.cuts)
        piece = 0
        size = 1
        while size and uvm_piece(b, piece, &size) != page and size:
            piece += 1
        uvm_piece(b, piece, &size)
        need(size == pages and (<cut_t*>pool_at(&p.cuts, place.chunk)).chunks[piece] == 0,
             "a chunk, expected as the block is cut")
        (<cut_t*>pool_at(&p.cuts, place.chunk)).chunks[piece] = number * BLOCK + offset
        (<cut_t*>pool_at(&p.cuts, place.chunk)).used += 1
    for number in range(1, p.roots.n):
        root = root_no(p, number)
        if root.split:
            need((<split_t*>pool_at(&p.splits, root.split)).chunks != 0, "a chunk of nobody")
        else:
            need(root.block != 0, "a chunk of nobody")
    for (gpu, kind), heap in sorted(heaps.items()):
        for _, number in sorted(heap):
            root = root_no(p, number)
            need(root.split != 0, "stacks, expected of chunks that are cut")
            uvm_stack(p, number, kind, True)
    for number in range(1, p.roots.n):
        root = root_no(p, number)
        if root.split:
            s = <split_t*>pool_at(&p.splits, root.split)
            open_ = any(s.small >> at & 1 and s.free[at] for at in range(32))
            need((root.stacked & 1) == (s.whole != 0) and (root.stacked >> 1 & 1) == open_,
                 "stacks, expected of the chunks with free parts")
    return 0


cdef int load_order(uvm_t* p, object rows, object sequence) except -1:
    """The strategy's order of the used chunks; roots are there already."""
    units = []
    need(len(rows["random"]) == 1 and len(rows["drawn"]) == p.processors - 1,
         "order of eviction, expected one generator and a drawn chunk a GPU")
    for root, stamp, uses in rows["order"]:
        need(root < len(rows["roots"]) and rows["roots"][root][1] == USED and stamp < sequence,
             "order of eviction, expected used chunks")
        units.append((root + 1, rows["roots"][root][0] - 1, stamp, uses))
    need(len(units) == sum(row[1] == USED for row in rows["roots"]),
         "order of eviction, expected every used chunk")
    need(all(row[0] <= len(rows["roots"]) for row in rows["drawn"]),
         "order of eviction, expected drawn chunks that there are")
    evict_restore(p.order, units, [row[0] for row in rows["drawn"]], rows["random"][0][0])
    return 0


cdef int load_pages(uvm_t* p, list blocks, list rows, list queue, list numbered) except -1:
    cdef histories_t* hs
    cdef history_t* h
    cdef block_t* b
    cdef uint32_t at, entry
    before = (-1, -1)
    for row in rows:
        need(row[0] < len(numbered) and row[1] < BLOCK and before < (row[0], row[1]),
             "pages, expected in order, of known blocks")
        before = (row[0], row[1])
        b = block_no(p, numbered[row[0]])
        need(b.histories != 0 and b.start <= row[1] < b.outer and row[1] % p.unit == 0,
             "pages, expected of their blocks")
        need(max(row[2], row[3]) <= TOP_TIME and (row[2] | row[3]) % 64 == 0
             and not (row[4] | row[5]) >> p.processors and row[6] <= 7 and row[7] <= 7
             and row[8] < p.processors and row[9] <= 255 and row[10] <= p.processors,
             f"history of page {row[1]}")
        hs = <histories_t*>pool_at(&p.histories, b.histories)
        at = row[1]
        h = hs.pages + at
        h.stamp, h.end, h.processors, h.throttled = row[2:6]
        h.events, h.flags, h.pin_at, h.throttles, h.favoured = row[6:11]
        if h.events >= p.thrashing_threshold:
            hs.thrashing[at >> 6] |= p.lane << (at & 63)
        if h.flags & HISTORY_PINNED:
            need(b.pins > 0, "pinned pages of a block without any")
            hs.pinned[at >> 6] |= p.lane << (at & 63)
    last = 0
    for block, page, deadline in queue:
        need(block < len(numbered) and page < BLOCK and last <= deadline <= TOP_TIME,
             "queue, expected by deadline, of known blocks")
        last = deadline
        b = block_no(p, numbered[block])
        need(b.histories != 0, "queue, expected of blocks with histories")
        at = page
        h = (<histories_t*>pool_at(&p.histories, b.histories)).pages + at
        need(h.flags & HISTORY_PINNED and h.entry == 0, "queue, expected pinned pages, each once")
        if not pool_reserve(&p.entries, 1):
            raise OutOfMemoryError("no memory for the queue of a state")
        entry = pool_take(&p.entries)
        (<entry_t*>pool_at(&p.entries, entry)).block = numbered[block]
        (<entry_t*>pool_at(&p.entries, entry)).page = at
        (<entry_t*>pool_at(&p.entries, entry)).deadline = deadline
        (<entry_t*>pool_at(&p.entries, entry)).before = p.queue_last
        if p.queue_last:
            (<entry_t*>pool_at(&p.entries, p.queue_last)).next = entry
        else:
            p.queue_first = entry
        p.queue_last = entry
        h.entry = entry
    return 0
