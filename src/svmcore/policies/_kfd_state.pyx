# cython: language_level=3, freethreading_compatible=True
"""A KFD process as tables and back: what state files and clones hold.

The tables say what the process means, not how it lies in memory: ranges are
numbered by address, dead objects, free records and empty masks are left out,
what follows from the rest (hashes, best locations, list links, reference counts)
is made again. Equal states give equal tables, and both ways take one pass: what
comes in order is checked without a sort and built without a search.

:func:`unpack` trusts nothing: every number and every invariant that
``KfdProcess.check`` knows is checked in the tables, before anything is built, so
no input can break a process.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from .._evict cimport evict_pack, evict_reserve, evict_restore
from .._large cimport ask_large
from .._ranges cimport (
    range_entry_t,
    ranges_count,
    ranges_entries,
    ranges_fill,
    ranges_find,
    ranges_t,
)
from .._residency cimport (
    MASK_MAPPED,
    MASK_PINNED,
    MASK_READ_ONLY,
    MASK_SYSTEM,
    MASK_VRAM,
    ask_ahead,
    block_t,
    line_of,
    mask_row_t,
    popcount64,
    res_grant,
    res_put,
    residency_t,
    room_t,
    span_word,
)
from ._kfd cimport (
    ATTR_ACCESS,
    ATTR_AIP,
    ATTR_CLR_FLAGS,
    ATTR_GRANULARITY,
    ATTR_NO_ACCESS,
    ATTR_PREFERRED,
    ATTR_PREFETCH,
    ATTR_SET_FLAGS,
    MAX_GPUS,
    PENDING_ADD,
    PENDING_NONE,
    PENDING_NOTIFIER,
    PENDING_UNMAP,
    RANGE_DONE,
    RANGE_HAS_BO,
    RANGE_LINKED,
    RANGE_ON_BO,
    KfdProcess,
    attr_t,
    attrs_t,
    bo_t,
    kfd_grow_ranges,
    kfd_mmap,
    kfd_set_attr,
    kfd_t,
    links_t,
    range_t,
    side_t,
    span_t,
)

import numpy as np

from .._ranges import ENTRY
from ..errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["pack", "unpack"]

cdef enum:
    VERSION = 2
    GROUP_BLOCKS = 512     # blocks of a directory table
    TAGS = 5 * MAX_GPUS    # most mask lines of a block
    MASK_COLUMNS = 10      # block, tag and eight words
    VMA_CODES = 24         # 1 + (protection | kind << 2)
    VMA_FILE = 5           # a mapping of a file without any protection
    STATES = 5
    LOCATION_UNDEFINED = 0xffffffffU
    AHEAD = 16             # records asked for ahead, where they are not in order

cdef uint64_t TOP_PAGE = (<uint64_t>1 << 52) - 1
cdef uint64_t TOP_TIME = (<uint64_t>1 << 63) - 1
cdef uint64_t LAST_PAGE = 0xffffffffffffffffU

RANGES = np.dtype([
    ("start", "<u8"), ("last", "<u8"), ("notifier_first", "<u8"), ("notifier_last", "<u8"),
    ("mapped", "<u8"), ("validate_ns", "<u8"), ("vram_pages", "<u8"), ("needs_unmap", "<u8"),
    ("attributes", "<u4"), ("object", "<u4"), ("invalid", "<u4"), ("parent", "<u4"),
    ("deferred", "<u4"), ("actual", "u1"), ("bits", "u1"), ("pending", "u1"), ("side", "u1"),
])
OBJECTS = np.dtype([
    ("npages", "<u8"), ("pages", "<u8"), ("sequence", "<u8"), ("listed", "<u8"),
    ("gpu", "<u4"), ("holders", "<u4"),
])
ATTRIBUTES = np.dtype([
    ("access", "<u8"), ("aip", "<u8"), ("preferred", "<u4"), ("prefetch", "<u4"),
    ("flags", "<u4"), ("granularity", "<u4"),
])
PROCESS = np.dtype([
    ("now", "<u8"), ("cost_ns", "<f8"), ("restore_ns", "<u8"), ("evicted_ranges", "<u8"),
    ("sequence", "<u8"), ("max_pages", "<u8"), ("version", "<u4"), ("granularity", "<u4"),
    ("fail_vram", "<u4"), ("fail_limit", "<u4"), ("fail_copy", "<u4"), ("fail_hmm", "<u4"),
    ("xnack", "u1"), ("draining", "u1"), ("restore_pending", "u1"), ("state", "u1"),
    ("mapped_per_gpu", "u1"), ("pad_a", "u1"), ("pad_b", "u1"), ("pad_c", "u1"),
])
GPUS = np.dtype([("checkpoint_ts", "<u8"), ("ring_ts", "<u8"), ("ring_set", "<u8")])
NUMBER = np.dtype("<u4")
WORD = np.dtype("<u8")

#: Name of each table, its row type and its columns (0: one dimension).
#: `counters` and `processors` have the names of the counters as fields.
TABLES = {
    "process": (PROCESS, 0),
    "gpus": (GPUS, 0),
    "ranges": (RANGES, 0),
    "list_order": (NUMBER, 0),  # rows of ranges, from 1, along the process's list
    "objects": (OBJECTS, 0),
    "object_ranges": (NUMBER, 0),
    "attributes": (ATTRIBUTES, 0),
    "mappings": (WORD, 3),
    "masks": (WORD, MASK_COLUMNS),
    "buffers": (WORD, 2),
    "userptrs": (WORD, 2),
}
COUNTED = ("counters", "processors")
# With an order of eviction other than the driver's: rows (object, GPU, stamp, uses) in that
# order; the generator's state, then for each GPU the object that goes next by chance.
ORDER = {"order": (WORD, 4), "chance": (WORD, 0)}


# ---- a process to tables ------------------------------------------------------------------

cdef object new_table(str name, uint64_t n):
    dtype, columns = TABLES[name]
    return np.zeros((n, columns) if columns else n, dtype.newbyteorder("="))


cdef int broken(str what) except -1:
    raise AssertionError(f"process: {what}")


cdef uint32_t number_ranges(kfd_t* p, const range_entry_t[::1] tree, uint32_t[::1] number,
                            uint32_t[::1] order) except? 0:
    """Number every range: those of the tree, then the children; how many are in the tree."""
    cdef uint32_t linked = <uint32_t>tree.shape[0], n = linked, node, i
    if linked > p.live_ranges:
        broken("more ranges in the tree than alive")
    for i in range(linked):
        order[i] = tree[i].value
        number[tree[i].value] = i + 1
    if p.nsides > 1:  # else nobody has children
        for i in range(linked):
            node = p.sides[p.ranges[order[i]].side].first_child
            while node:
                if n == p.live_ranges:
                    broken("more pending children than alive")
                order[n] = node
                n += 1
                number[node] = n
                node = p.sides[p.ranges[node].side].next_child
    if n != p.live_ranges:
        broken("a range that is neither in the tree nor a child")
    return linked


cdef object pack_list(kfd_t* p, uint32_t linked, const uint32_t[::1] number):
    cdef uint32_t node = p.list_head, n = 0
    cdef uint32_t[::1] rows
    table = new_table("list_order", linked)
    rows = table
    while node and n < linked:
        rows[n] = number[node]
        n += 1
        node = p.links[node].next
    if node or n != linked:
        broken("process list and tree differ")
    return table


cdef object pack_objects(kfd_t* p, uint32_t[::1] number, uint32_t[::1] of_bo):
    """Objects in creation order and the ranges on their lists; numbers them."""
    cdef uint32_t i, node, n = 0
    cdef uint64_t listed = 0
    cdef object_row_t[::1] rows
    cdef uint32_t[::1] members
    i = p.first_bo
    while i:
        n += 1
        of_bo[i] = n
        node = p.bos[i].first
        while node:
            listed += 1
            if listed > p.live_ranges:
                broken("a range on two objects' lists")
            node = p.ranges[node].bo_next
        i = p.bos[i].next
    objects = new_table("objects", n)
    lists = new_table("object_ranges", listed)
    rows = objects
    members = lists
    i = p.first_bo
    n = 0
    listed = 0
    while i:
        rows[n].npages = p.bos[i].npages
        rows[n].pages = p.bos[i].pages
        rows[n].sequence = p.bos[i].sequence
        rows[n].gpu = p.bos[i].gpu
        rows[n].holders = p.bos[i].holders
        node = p.bos[i].first
        while node:
            members[listed] = number[node]
            listed += 1
            rows[n].listed += 1
            node = p.ranges[node].bo_next
        n += 1
        i = p.bos[i].next
    return objects, lists


cdef object pack_ranges(kfd_t* p, const range_entry_t[::1] tree, uint32_t[::1] number,
                        uint32_t[::1] order, uint32_t[::1] of_bo):
    """Ranges and the attribute sets they use, sets numbered by their first use."""
    cdef range_row_t[::1] rows
    cdef attributes_row_t[::1] sets
    cdef uint32_t[::1] of_set = np.zeros(p.nsets, np.uint32)
    cdef uint32_t i, nsets = 0, child, linked = <uint32_t>tree.shape[0]
    cdef range_row_t* row
    cdef range_t* r
    cdef attrs_t* a
    ranges = new_table("ranges", p.live_ranges)
    attributes = new_table("attributes", p.nsets)
    rows = ranges
    sets = attributes
    for i in range(p.live_ranges):
        if i + AHEAD < p.live_ranges:
            ask_ahead(p.ranges + order[i + AHEAD])
            ask_ahead(p.links + order[i + AHEAD])
            ask_ahead(p.bos + p.ranges[order[i + AHEAD // 2]].bo)
        r = p.ranges + order[i]
        row = &rows[i]
        if i < linked:
            row.notifier_first = tree[i].first
            row.notifier_last = tree[i].last
        row.start = r.start
        row.last = r.last
        row.mapped = r.mapped
        row.validate_ns = r.validate_ns
        row.vram_pages = r.vram_pages
        row.invalid = p.links[order[i]].invalid
        row.actual = r.actual
        row.bits = r.bits & <uint8_t>~RANGE_LINKED
        row.needs_unmap = p.sides[r.side].needs_unmap
        row.pending = p.sides[r.side].pending
        row.side = r.side != 0
        if of_set[r.attrs] == 0:
            a = p.sets + r.attrs
            sets[nsets].access = a.access
            sets[nsets].aip = a.aip
            sets[nsets].preferred = a.preferred
            sets[nsets].prefetch = a.prefetch
            sets[nsets].flags = a.flags
            sets[nsets].granularity = a.granularity
            nsets += 1
            of_set[r.attrs] = nsets
        row.attributes = of_set[r.attrs]
        if r.bo:
            row.object = of_bo[r.bo]
    if p.live_ranges > linked:
        for i in range(linked):
            child = p.sides[p.ranges[order[i]].side].first_child
            while child:
                rows[number[child] - 1].parent = i + 1
                child = p.sides[p.ranges[child].side].next_child
    for i in range(p.ndeferred):
        rows[number[p.deferred[i]] - 1].deferred = i + 1
    return ranges, attributes[:nsets]


cdef object tree_entries(ranges_t* m):
    """Entries of a map in order, as rows of ENTRY."""
    cdef range_entry_t[::1] rows
    entries = np.empty(ranges_count(m), ENTRY)
    if len(entries):
        rows = entries
        ranges_entries(m, &rows[0])
    return entries


cdef object pack_mappings(ranges_t* m):
    entries = tree_entries(m)
    mappings = new_table("mappings", len(entries))
    for column, name in enumerate(("first", "last", "value")):
        mappings[:, column] = entries[name]
    return mappings


cdef uint32_t block_lines(residency_t* r, uint32_t block, uint32_t* tags,
                          uint64_t** lines) noexcept nogil:
    """Mask lines of a block by tag."""
    cdef uint32_t n = 0, i, k, tag
    cdef block_t* b
    while block:
        b = r.blocks + block
        for i in range(b.n):
            if n == TAGS:
                return n
            tag = b.tags[i]
            k = n
            while k and tags[k - 1] > tag:
                tags[k] = tags[k - 1]
                lines[k] = lines[k - 1]
                k -= 1
            tags[k] = tag
            lines[k] = line_of(r, b, i)
            n += 1
        block = b.more
    return n


cdef uint64_t pack_block(residency_t* r, uint64_t number, uint32_t block,
                         uint64_t* out) noexcept nogil:
    """Rows of one block that hold a bit; how many."""
    cdef uint32_t tags[TAGS]
    cdef uint64_t* lines[TAGS]
    cdef uint32_t count = block_lines(r, block, tags, lines), i, k, w
    cdef uint64_t n = 0, m, any_bit
    cdef uint64_t* mapped
    for i in range(count):
        mapped = NULL
        if tags[i] >> 8 == MASK_READ_ONLY:
            # Permissions of pages that are not mapped mean nothing: nobody reads them.
            for k in range(i):
                if tags[k] == (MASK_MAPPED << 8 | (tags[i] & 0xff)):
                    mapped = lines[k]
            if mapped == NULL:
                continue
        any_bit = 0
        for w in range(8):
            m = lines[i][w]
            if mapped != NULL:
                m &= mapped[w]
            out[2 + w] = m
            any_bit |= m
        if any_bit:
            out[0] = number
            out[1] = tags[i]
            out += MASK_COLUMNS
            n += 1
    return n


cdef object pack_masks(residency_t* r):
    """Mask lines that hold a bit, by block and tag."""
    cdef uint64_t n = 0
    cdef uint32_t table, block, i
    cdef int slot
    cdef uint64_t[:, ::1] rows
    cdef uint64_t[::1] keys
    cdef uint32_t[::1] places
    groups = np.empty(r.ngroups, np.uint64)
    keys = groups
    for table in range(r.ngroups):
        keys[table] = r.keys[table]
    places = np.argsort(groups, kind="stable").astype(np.uint32)
    masks = new_table("masks", r.nlines)  # line 0 is unused: one row to spare
    rows = masks
    for i in range(r.ngroups):
        table = places[i]
        for slot in range(GROUP_BLOCKS):
            block = r.tables[<size_t>table * GROUP_BLOCKS + <uint32_t>slot]
            if block:
                n += pack_block(r, r.keys[table] * GROUP_BLOCKS + <uint32_t>slot, block,
                                &rows[n, 0])
    return masks[:n]


cdef object pack_spans(str name, const span_t* spans, uint32_t n):
    cdef uint64_t[:, ::1] rows
    cdef uint32_t i
    table = new_table(name, n)
    rows = table
    for i in range(n):
        rows[i, 0] = spans[i].first
        rows[i, 1] = spans[i].last
    return table


cdef object pack_process(kfd_t* p):
    cdef process_row_t[::1] row
    cdef gpu_row_t[::1] rows
    cdef uint32_t i
    process = new_table("process", 1)
    row = process
    row[0].now = p.engine.now
    row[0].cost_ns = <double>p.engine.cost_ns
    row[0].restore_ns = p.restore_ns
    row[0].evicted_ranges = p.evicted_ranges
    row[0].sequence = p.node.sequence
    row[0].max_pages = p.max_pages
    row[0].version = VERSION
    row[0].granularity = p.granularity
    row[0].fail_vram = p.fail_vram
    row[0].fail_limit = p.fail_limit
    row[0].fail_copy = p.fail_copy
    row[0].fail_hmm = p.fail_hmm
    row[0].xnack = p.xnack
    row[0].draining = p.draining
    row[0].restore_pending = p.restore_pending
    row[0].state = p.state
    row[0].mapped_per_gpu = p.rules.mapped_per_gpu
    gpus = new_table("gpus", p.ngpus)
    rows = gpus
    for i in range(p.ngpus):
        rows[i].checkpoint_ts = p.checkpoint_ts[i]
        rows[i].ring_ts = p.ring_ts[i]
        rows[i].ring_set = p.ring_set >> i & 1
    return process, gpus


cdef object pack_counters(list rows):
    """Counters by name, one row a dict."""
    dtype = np.dtype([(name, "<u8") for name in rows[0]])
    return np.array([tuple(row.values()) for row in rows], dtype)


def pack(KfdProcess process not None):
    """The whole state of a process as tables of plain columns.

    Parameters
    ----------
    process : KfdProcess
        Between two operations.

    Returns
    -------
    dict of str to array
        Little-endian tables; equal states give equal bytes.

    Raises
    ------
    AssertionError
        If the process breaks an invariant; nothing is packed then.

    Complexity
    ----------
    O(ranges + mappings + mask lines).
    """
    cdef kfd_t* p = process.p
    cdef uint32_t[::1] number = np.zeros(p.nranges, np.uint32)
    cdef uint32_t[::1] order = np.zeros(p.live_ranges, np.uint32)
    cdef uint32_t[::1] of_bo = np.zeros(p.nbos, np.uint32)
    cdef const range_entry_t[::1] tree = tree_entries(p.tree)
    cdef uint32_t linked, i
    linked = number_ranges(p, tree, number, order)
    row, gpus = pack_process(p)
    objects, object_ranges = pack_objects(p, number, of_bo)
    ranges, attributes = pack_ranges(p, tree, number, order, of_bo)
    tables = {
        "process": row,
        "gpus": gpus,
        "counters": pack_counters([dict(p.engine.counters)]),
        "processors": pack_counters([dict(p.engine.processors[i]) for i in range(1 + p.ngpus)]),
        "ranges": ranges,
        "list_order": pack_list(p, linked, number),
        "objects": objects,
        "object_ranges": object_ranges,
        "attributes": attributes,
        "mappings": pack_mappings(p.vmas),
        "masks": pack_masks(p.engine.res),
        "buffers": pack_spans("buffers", p.buffers, p.nbuffers),
        "userptrs": pack_spans("userptrs", p.userptrs, p.nuserptrs),
    }
    if p.order != NULL:
        tables["order"] = evict_pack(p.order)
        tables["order"][:, 0] = [of_bo[<uint32_t>unit] for unit in tables["order"][:, 0]]
        drawn = [of_bo[p.order.drawn[i]] if p.order.drawn[i] else 0 for i in range(p.ngpus)]
        tables["chance"] = np.array([p.order.random, *drawn], np.uint64)
    return {
        name: table.astype(table.dtype.newbyteorder("<"), copy=False)
        for name, table in tables.items()
    }


# ---- tables to a process --------------------------------------------------------------------

cdef int refuse(str table, object row, str expected) except -1:
    raise InvalidArgumentError(f"state: {table}[{row}]: expected {expected}")


cdef object take_table(object tables, str name):
    """A table of the form that its name asks for, in native byte order."""
    dtype, columns = (TABLES | ORDER)[name]
    table = tables.get(name)
    if not isinstance(table, np.ndarray):
        raise InvalidArgumentError(f"state: member {name}: expected an array, found {table!r:.60}")
    if (
        table.dtype != dtype
        or table.ndim != (2 if columns else 1)
        or (columns and table.shape[1] != columns)
    ):
        shape = f"(n, {columns})" if columns else "(n,)"
        raise InvalidArgumentError(
            f"state: member {name}: {table.dtype} of shape {table.shape}, "
            f"expected {dtype} of shape {shape}"
        )
    if len(table) >= 1 << 32:
        raise InvalidArgumentError(f"state: member {name}: {len(table)} rows, expected below 2**32")
    return np.require(table, dtype.newbyteorder("="), ["C", "A"])


cdef object take_counters(object tables, str name, Py_ssize_t n, dict zeros):
    """Rows of counters as dicts; counters that a newer version has added are 0."""
    table = tables.get(name)
    if not isinstance(table, np.ndarray) or table.ndim != 1 or len(table) != n:
        raise InvalidArgumentError(f"state: member {name}: expected {n} rows")
    names = table.dtype.names or ()
    for column in names:
        if column not in zeros or table.dtype[column] != WORD:
            raise InvalidArgumentError(
                f"state: member {name}: column {column!r}, expected u8 columns "
                f"out of {', '.join(zeros)}"
            )
    if not names:
        raise InvalidArgumentError(f"state: member {name}: expected named columns")
    return [zeros | dict(zip(names, (int(v) for v in row))) for row in table]


cdef int check_process(kfd_t* p, const process_row_t* row) except -1:
    if row.version != VERSION:
        raise InvalidArgumentError(
            f"state: process: version {row.version}, expected {VERSION}"
        )
    if row.max_pages != p.max_pages:
        refuse("process", "max_pages", f"{p.max_pages}, the process's own")
    if row.granularity != p.granularity:
        refuse("process", "granularity", f"{p.granularity}, the process's own")
    if row.mapped_per_gpu != p.rules.mapped_per_gpu:
        refuse("process", "mapped_per_gpu", f"{p.rules.mapped_per_gpu}, the driver's own")
    if row.now > TOP_TIME or row.restore_ns > TOP_TIME:
        refuse("process", "now, restore_ns", "a time below 2**63 ns")
    if not 0 <= row.cost_ns < 9e18:
        refuse("process", "cost_ns", "0 to 9e18")
    if row.xnack > 1 or row.draining > 1 or row.restore_pending > 1:
        refuse("process", "flags", "0 or 1")
    if row.state >= STATES:
        refuse("process", "state", f"below {STATES}")
    if row.pad_a or row.pad_b or row.pad_c:
        refuse("process", "pad", "0")
    return 0


cdef int check_range(kfd_t* p, const range_row_t* row, uint32_t i, uint64_t gpus, uint32_t nsets,
                     uint32_t nobjects) except -1:
    if not p.rules.mapped_per_gpu:
        if row.mapped > 1:
            refuse("ranges", i, "mapped of 0 or 1 in this kernel")
    elif row.mapped & ~gpus:
        refuse("ranges", i, "mapped on GPUs of the machine only")
    if row.needs_unmap & ~gpus or (row.needs_unmap and not row.side):
        refuse("ranges", i, "needs_unmap of GPUs of the machine, with rare state")
    if row.start > row.last or row.last > TOP_PAGE:
        refuse("ranges", i, "start <= last < 2**52")
    if row.validate_ns > TOP_TIME or row.vram_pages >> 32:
        refuse("ranges", i, "validate_ns below 2**63, vram_pages below 2**32")
    if not 1 <= row.attributes <= nsets:
        refuse("ranges", i, f"attributes of 1 to {nsets}")
    if row.object > nobjects:
        refuse("ranges", i, f"object of 0 to {nobjects}")
    if row.bits & ~(RANGE_HAS_BO | RANGE_DONE | RANGE_ON_BO):
        refuse("ranges", i, "known bits")
    if row.bits & (RANGE_HAS_BO | RANGE_ON_BO) and row.object == 0:
        refuse("ranges", i, "an object where bits speak of one")
    if row.actual > p.ngpus:
        refuse("ranges", i, f"actual of 0 to {p.ngpus}")
    if row.side > 1:
        refuse("ranges", i, "side of 0 or 1")
    if row.parent:
        if row.notifier_first or row.notifier_last or row.deferred or not row.side:
            refuse("ranges", i, "a child with rare state, no interval and no deferred work")
        if row.pending != PENDING_UNMAP and row.pending != PENDING_ADD:
            refuse("ranges", i, "pending unmap (1) or add (3) of a child")
        return 0
    if row.needs_unmap:
        refuse("ranges", i, "needs_unmap of a child only, between two calls")
    if not row.notifier_first <= row.start or not row.last <= row.notifier_last <= TOP_PAGE:
        refuse("ranges", i, "a notifier interval round the range")
    if row.pending == PENDING_NONE:
        if row.deferred:
            refuse("ranges", i, "pending work of a deferred range")
        if row.notifier_first != row.start or row.notifier_last != row.last:
            refuse("ranges", i, "the range's own interval where nothing is pending")
    elif row.pending > PENDING_NOTIFIER or row.deferred == 0 or not row.side:
        refuse("ranges", i, "pending unmap (1) or notifier (2) work with a deferred place")
    return 0


cdef int check_disjoint(str table, str what, object rows, object first, object last) except -1:
    """Spans of these rows of a table overlap nowhere."""
    order = np.argsort(first, kind="stable")
    begins, ends = first[order], last[order]
    bad = np.flatnonzero(begins[1:] <= ends[:max(len(order), 1) - 1])
    if len(bad):
        refuse(table, int(rows[order[int(bad[0]) + 1]]), f"no overlap with another {what}")
    return 0


cdef uint32_t check_ranges(kfd_t* p, object table, const range_row_t[::1] rows, uint32_t nsets,
                           uint32_t nobjects, uint32_t* deferred,
                           uint32_t* sides) except? 0xffffffffU:
    """Each range and the family ties; how many are in the tree."""
    cdef uint32_t n = <uint32_t>rows.shape[0], i, linked = 0, parent = 0
    cdef uint64_t gpus = p.supported  # any GPU of the process
    cdef uint8_t[::1] seen
    for i in range(p.ngpus):
        gpus |= <uint64_t>1 << i
    deferred[0] = sides[0] = 0
    for i in range(n):
        check_range(p, &rows[i], i, gpus, nsets, nobjects)
        sides[0] += rows[i].side
        if rows[i].parent == 0:
            if parent:
                refuse("ranges", i, "children behind all ranges of the tree")
            if i and rows[i].notifier_first <= rows[i - 1].notifier_last:
                refuse("ranges", i, "intervals in address order without overlap")
            linked += 1
            deferred[0] += rows[i].deferred != 0
        else:
            if not parent <= rows[i].parent <= linked or rows[rows[i].parent - 1].deferred == 0:
                refuse("ranges", i, "children in order of their parents, which are deferred")
            parent = rows[i].parent
            if (
                rows[i].start < rows[parent - 1].notifier_first
                or rows[i].last > rows[parent - 1].notifier_last
            ):
                refuse("ranges", i, "a child inside its parent's interval")
    if deferred[0]:
        seen = np.zeros(deferred[0] + 1, np.uint8)
        for i in range(linked):
            if rows[i].deferred:
                if rows[i].deferred > deferred[0] or seen[rows[i].deferred]:
                    refuse("ranges", i, f"each deferred place of 1 to {deferred[0]} once")
                seen[rows[i].deferred] = 1
    if n > linked:
        # Families lie in intervals of their own: overlap is possible inside one only.
        family = np.concatenate([np.unique(table["parent"][linked:]) - 1, np.arange(linked, n)])
        check_disjoint("ranges", "range", family, table["start"][family], table["last"][family])
    return linked


cdef int check_list(const uint32_t[::1] rows, uint32_t linked) except -1:
    cdef uint8_t[::1] seen = np.zeros(linked + 1, np.uint8)
    cdef uint32_t i
    if <uint32_t>rows.shape[0] != linked:
        refuse("list_order", rows.shape[0], f"{linked} rows, the ranges of the tree")
    for i in range(linked):
        if not 1 <= rows[i] <= linked or seen[rows[i]]:
            refuse("list_order", i, f"each range of 1 to {linked} once")
        seen[rows[i]] = 1
    return 0


cdef int check_objects(kfd_t* p, const object_row_t[::1] rows, const uint32_t[::1] members,
                       const range_row_t[::1] ranges, uint64_t sequence) except -1:
    cdef uint64_t used[MAX_GPUS]
    cdef uint64_t total = 0, k, n = members.shape[0]
    cdef uint32_t i, node, on_list = 0
    cdef uint32_t[::1] holders = np.zeros(rows.shape[0] + 1, np.uint32)
    cdef uint8_t[::1] seen = np.zeros(ranges.shape[0] + 1, np.uint8)
    memset(used, 0, sizeof(used))
    for i in range(<uint32_t>ranges.shape[0]):
        if ranges[i].bits & RANGE_HAS_BO:
            holders[ranges[i].object] += 1
        on_list += ranges[i].bits & RANGE_ON_BO != 0
    for i in range(<uint32_t>rows.shape[0]):
        if rows[i].gpu >= p.ngpus:
            refuse("objects", i, f"gpu below {p.ngpus}")
        if not 0 < rows[i].npages <= p.gpus[rows[i].gpu].vram_pages - used[rows[i].gpu]:
            refuse("objects", i, "objects that fit into the GPU's memory")
        used[rows[i].gpu] += rows[i].npages
        if rows[i].pages > rows[i].npages:
            refuse("objects", i, "no more pages than its size")
        if rows[i].sequence >= sequence or (i and rows[i].sequence <= rows[i - 1].sequence):
            refuse("objects", i, "ascending sequence below the next object's")
        if rows[i].holders != holders[i + 1]:
            refuse("objects", i, f"{holders[i + 1]} holders, the ranges that hold it")
        if rows[i].holders == 0 and rows[i].pages == 0:
            refuse("objects", i, "an object that something refers to")
        if rows[i].listed > <uint64_t>members.shape[0] - total:
            refuse("objects", i, "as many listed ranges as object_ranges holds")
        for k in range(total, total + rows[i].listed):
            node = members[k]
            if k + AHEAD < n and 1 <= members[k + AHEAD] <= <uint32_t>ranges.shape[0]:
                ask_ahead(&ranges[members[k + AHEAD] - 1].object)
            if (
                not 1 <= node <= <uint32_t>ranges.shape[0]
                or seen[node]
                or ranges[node - 1].object != i + 1
                or not ranges[node - 1].bits & RANGE_ON_BO
            ):
                refuse("object_ranges", k, "each range of the object once")
            seen[node] = 1
        total += rows[i].listed
    if total != <uint64_t>members.shape[0] or total != on_list:
        refuse("object_ranges", total, f"{on_list} rows, the ranges on an object's list")
    return 0


cdef uint64_t gather_vram(const uint64_t[:, ::1] masks, uint64_t[:, ::1] vram) noexcept nogil:
    """Pages in any GPU's memory, a row of number, words and count a block; how many blocks."""
    cdef uint64_t n = 0, k
    cdef Py_ssize_t i
    cdef uint32_t w
    for i in range(masks.shape[0]):
        if masks[i, 1] >> 8 != MASK_VRAM:
            continue
        if n == 0 or vram[n - 1, 0] != masks[i, 0]:
            vram[n, 0] = masks[i, 0]
            n += 1
        for w in range(8):
            vram[n - 1, 1 + w] |= masks[i, 2 + w]
    for k in range(n):
        for w in range(8):
            if vram[k, 1 + w]:
                vram[k, 9] += popcount64(vram[k, 1 + w])
    return n


cdef uint64_t vram_pages(const uint64_t[:, ::1] vram, uint64_t n, uint64_t* at, uint64_t first,
                         uint64_t last) noexcept nogil:
    """Pages of [first, last] in GPU memory; *at* moves on to the block of *first*."""
    cdef uint64_t i, pages = 0, low, high
    cdef uint32_t w, lo, hi
    while at[0] < n and vram[at[0], 0] < first >> 9:
        at[0] += 1
    i = at[0]
    while i < n and vram[i, 0] <= last >> 9:
        low = vram[i, 0] << 9
        high = low | 511
        i += 1
        if first <= low and high <= last:
            pages += vram[i - 1, 9]
            continue
        lo = <uint32_t>((first if first > low else low) & 511)
        hi = <uint32_t>((last if last < high else high) & 511)
        for w in range(lo >> 6, (hi >> 6) + 1):
            pages += popcount64(vram[i - 1, 1 + w] & span_word(w, lo, hi))
    return pages


cdef int check_pages(const range_row_t[::1] ranges, uint32_t linked,
                     const object_row_t[::1] objects, const uint64_t[:, ::1] masks) except -1:
    """What ranges and objects say of pages in GPU memory is what the masks say."""
    cdef uint64_t at = 0, pages, inside = 0, in_objects = 0, total = 0, n
    cdef uint32_t i
    cdef const range_row_t* row
    vram = np.zeros((masks.shape[0], 10), np.uint64)
    cdef uint64_t[:, ::1] blocks = vram
    n = gather_vram(masks, blocks)
    for i in range(<uint32_t>ranges.shape[0]):
        row = &ranges[i]
        if i >= linked:
            at = np.searchsorted(vram[:n, 0], row.start >> 9)  # children are few, in any order
        if i + AHEAD < linked and ranges[i + AHEAD].object:
            ask_ahead(&objects[ranges[i + AHEAD].object - 1])
        pages = vram_pages(blocks, n, &at, row.start, row.last)
        inside += pages
        if i >= linked:
            continue
        if row.pending == PENDING_NONE:
            if row.vram_pages != pages:
                refuse("ranges", i, f"vram_pages of {pages}, those of the masks")
            if pages and not row.bits & RANGE_HAS_BO:
                refuse("ranges", i, "an object of pages in GPU memory")
        if row.actual and (
            not row.bits & RANGE_HAS_BO or objects[row.object - 1].gpu != row.actual - 1
        ):
            refuse("ranges", i, "an object on the GPU where pages are")
    for i in range(<uint32_t>objects.shape[0]):
        in_objects += objects[i].pages
    for at in range(n):
        total += blocks[at, 9]
    if inside != total or in_objects != total:
        refuse("masks", "", f"{inside} pages in GPU memory, those of the ranges, and "
               f"{in_objects}, those of the objects, not {total}")
    return 0


cdef int check_mappings(const uint64_t[:, ::1] rows) except -1:
    cdef Py_ssize_t i
    for i in range(rows.shape[0]):
        if rows[i, 0] > rows[i, 1] or (i and rows[i, 0] <= rows[i - 1, 1]):
            refuse("mappings", i, "spans in address order without overlap")
        if not 1 <= rows[i, 2] <= VMA_CODES or rows[i, 1] > TOP_PAGE:
            refuse("mappings", i, f"a code of 1 to {VMA_CODES} and pages below 2**52")
    return 0


cdef int check_masks(kfd_t* p, const uint64_t[:, ::1] rows, room_t* room) except -1:
    """Each mask and what masks of one block say together; the room that they will take."""
    cdef uint64_t seen[8]
    cdef uint64_t mapped[MAX_GPUS][8]
    cdef uint64_t has_mapped = 0, kind, gpu, any_bit
    cdef Py_ssize_t i
    cdef uint32_t w
    memset(seen, 0, sizeof(seen))
    # One to spare of each, as res_put reserves them.
    room.lines = rows.shape[0] + 1
    room.headers = 2
    for i in range(rows.shape[0]):
        kind = rows[i, 1] >> 8
        gpu = rows[i, 1] & 0xff
        if i == 0 or rows[i, 0] != rows[i - 1, 0]:
            memset(seen, 0, sizeof(seen))
            has_mapped = 0
            room.headers += 1
            room.lines += kind != MASK_SYSTEM  # the line for the way back
            if rows[i, 0] > TOP_PAGE >> 9 or (i and rows[i, 0] < rows[i - 1, 0]):
                refuse("masks", i, "blocks in address order below 2**43")
        elif rows[i, 1] <= rows[i - 1, 1]:
            refuse("masks", i, "tags of a block in order, each once")
        if kind > MASK_READ_ONLY or gpu >= (
            1 if kind == MASK_SYSTEM or kind == MASK_PINNED else p.ngpus
        ):
            refuse("masks", i, "a tag of a known kind and GPU")
        any_bit = 0
        for w in range(8):
            any_bit |= rows[i, 2 + w]
            if kind == MASK_SYSTEM or kind == MASK_VRAM:
                if seen[w] & rows[i, 2 + w]:
                    refuse("masks", i, "no page in two places")
                seen[w] |= rows[i, 2 + w]
            elif kind == MASK_MAPPED:
                if rows[i, 2 + w] & ~seen[w]:
                    refuse("masks", i, "mapped pages that are somewhere")
                mapped[gpu][w] = rows[i, 2 + w]
            elif kind == MASK_READ_ONLY and (
                not has_mapped >> gpu & 1 or rows[i, 2 + w] & ~mapped[gpu][w]
            ):
                refuse("masks", i, "read-only pages that are mapped")
        if kind == MASK_MAPPED:
            has_mapped |= <uint64_t>1 << gpu
        if any_bit == 0:
            refuse("masks", i, "a mask with a bit")
    return 0


cdef object make_sets(KfdProcess process, const attributes_row_t[::1] rows, bint xnack):
    """Sets of attributes, made by the driver's own rule in a process beside this one.

    The process takes the sets over; returns the number of each row's set. What
    ``set_attr`` cannot produce on this machine is refused.
    """
    cdef kfd_t* p = process.p
    cdef kfd_t* q
    cdef KfdProcess beside
    cdef uint32_t n = <uint32_t>rows.shape[0], i, k, count
    cdef uint32_t[::1] numbers
    cdef attr_t attrs[5 + MAX_GPUS]
    cdef attrs_t* a
    cdef attrs_t* sets
    cdef range_entry_t e
    cdef bint refused = False
    cdef int error
    beside = KfdProcess(
        process.gpus,
        xnack=bool(xnack),
        kernel=process.rules.name,
        max_svm_range_pages=p.max_pages,
        default_granularity=p.granularity,
    )
    q = beside.p
    result = np.zeros(n + 1, np.uint32)
    numbers = result
    if n and kfd_mmap(q, 1, n, VMA_FILE):
        raise OutOfMemoryError("state: no memory for attribute sets")
    for i in range(n):
        attrs[0].kind = ATTR_PREFERRED
        attrs[0].value = rows[i].preferred
        attrs[1].kind = ATTR_SET_FLAGS
        attrs[1].value = rows[i].flags
        attrs[2].kind = ATTR_CLR_FLAGS
        attrs[2].value = ~rows[i].flags
        attrs[3].kind = ATTR_GRANULARITY
        attrs[3].value = rows[i].granularity
        count = 4
        for k in range(p.ngpus):
            if not p.supported >> k & 1:
                continue
            if rows[i].access >> k & 1:
                attrs[count].kind = ATTR_ACCESS
            elif rows[i].aip >> k & 1:
                attrs[count].kind = ATTR_AIP
            else:
                attrs[count].kind = ATTR_NO_ACCESS
            attrs[count].value = p.gpus[k].id
            count += 1
        if rows[i].prefetch != LOCATION_UNDEFINED:
            attrs[count].kind = ATTR_PREFETCH
            attrs[count].value = rows[i].prefetch
            count += 1
        # Its result is of no interest: an error in moving leaves the attributes set.
        error = kfd_set_attr(q, (<uint64_t>i + 1) << 12, 4096, attrs, count, 0, &refused)
        ranges_find(q.tree, i + 1, &e)
        if e.value == 0 and not refused and error:
            raise OutOfMemoryError("state: no memory for attribute sets")
        a = q.sets + q.ranges[e.value].attrs
        if (
            e.value == 0
            or a.preferred != rows[i].preferred
            or a.prefetch != rows[i].prefetch
            or a.flags != rows[i].flags
            or a.granularity != rows[i].granularity
            or a.access != rows[i].access
            or a.aip != rows[i].aip
        ):
            refuse("attributes", i, "attributes that the driver can set on this machine")
        numbers[i + 1] = q.ranges[e.value].attrs
    sets = p.sets
    p.sets = q.sets
    q.sets = sets
    p.nsets, q.nsets = q.nsets, p.nsets
    p.cap_sets, q.cap_sets = q.cap_sets, p.cap_sets
    memcpy(p.set_buckets, q.set_buckets, sizeof(p.set_buckets))
    p.default_set = q.default_set
    p.xnack = xnack
    return result


cdef void* table_of(uint64_t n, size_t item) except NULL:
    cdef void* made = calloc(n + 1, item)
    if made == NULL:
        raise OutOfMemoryError("state: no memory for its tables")
    ask_large(made, (n + 1) * item)
    return made


cdef int fill_map(ranges_t* m, const range_entry_t[::1] entries) except -1:
    if entries.shape[0] and ranges_fill(m, &entries[0], entries.shape[0]):
        raise OutOfMemoryError("state: no memory for the ranges")
    return 0


cdef int build_ranges(kfd_t* p, const range_row_t[::1] rows, const uint32_t[::1] listed,
                      uint32_t ndeferred, uint32_t nsides, const uint32_t[::1] sets) except -1:
    """1 where a range points to an object and is not on its list."""
    cdef int stray = 0
    cdef uint32_t n = <uint32_t>rows.shape[0], linked = <uint32_t>listed.shape[0], i
    cdef uint32_t side, parent, before = 0
    cdef range_entry_t[::1] tree = np.empty(linked, ENTRY)
    cdef range_t* r
    cdef side_t* s
    if not kfd_grow_ranges(p, n + 1):
        raise OutOfMemoryError("state: no memory for its tables")
    memset(p.ranges, 0, <size_t>(n + 1) * sizeof(range_t))
    memset(p.links, 0, <size_t>(n + 1) * sizeof(links_t))
    p.nranges = n + 1
    free(p.sides)
    p.sides = NULL
    p.cap_sides = 0
    p.sides = <side_t*>table_of(nsides + 1, sizeof(side_t))
    p.cap_sides = nsides + 1
    p.nsides = nsides + 1
    if ndeferred:
        p.deferred = <uint32_t*>table_of(ndeferred, sizeof(uint32_t))
        p.cap_deferred = ndeferred + 1
        p.ndeferred = ndeferred
    side = 0
    for i in range(n):
        r = p.ranges + i + 1
        r.start = rows[i].start
        r.last = rows[i].last
        r.mapped = rows[i].mapped
        r.validate_ns = rows[i].validate_ns
        r.vram_pages = <uint32_t>rows[i].vram_pages
        r.attrs = sets[rows[i].attributes]
        r.bo = rows[i].object
        p.links[i + 1].invalid = <uint32_t>rows[i].invalid
        r.actual = rows[i].actual
        r.bits = rows[i].bits
        if r.bo and not r.bits & RANGE_ON_BO:
            stray = 1
        if i < linked:
            r.bits |= RANGE_LINKED
            tree[i].first = rows[i].notifier_first
            tree[i].last = rows[i].notifier_last
            tree[i].value = i + 1
        if rows[i].deferred:
            p.deferred[rows[i].deferred - 1] = i + 1
        if not rows[i].side:
            continue
        side += 1
        r.side = side
        s = p.sides + side
        s.needs_unmap = rows[i].needs_unmap
        s.pending = rows[i].pending
        s.is_child = rows[i].parent != 0
        s.deferred = rows[i].deferred != 0
        parent = rows[i].parent
        if parent:
            s = p.sides + p.ranges[parent].side
            if s.last_child:
                p.sides[p.ranges[s.last_child].side].next_child = i + 1
            else:
                s.first_child = i + 1
            s.last_child = i + 1
    for i in range(linked):
        p.links[listed[i]].prev = before
        p.links[before].next = listed[i]  # record 0 is nobody's: it takes the head
        before = listed[i]
    p.list_head = p.links[0].next
    p.list_tail = before
    p.links[0].next = 0
    p.live_ranges = n
    fill_map(p.tree, tree)
    return stray


cdef int build_objects(kfd_t* p, const object_row_t[::1] rows, const uint32_t[::1] members,
                       bint stray) except -1:
    cdef uint32_t n = <uint32_t>rows.shape[0], i, node, before
    cdef uint64_t at = 0, k
    cdef bo_t* bo
    if n == 0:
        return 0
    p.bos = <bo_t*>table_of(n, sizeof(bo_t))
    p.cap_bos = n + 1
    p.nbos = n + 1
    for i in range(n):
        bo = p.bos + i + 1
        bo.npages = rows[i].npages
        bo.pages = rows[i].pages
        bo.sequence = rows[i].sequence
        bo.holders = rows[i].holders
        bo.gpu = <uint8_t>rows[i].gpu
        bo.alive = True
        bo.prev = i
        bo.next = i + 2 if i + 1 < n else 0
        p.node.used[bo.gpu] += bo.npages
        before = 0
        for k in range(at, at + rows[i].listed):
            node = members[k]
            if k + AHEAD < <uint64_t>members.shape[0]:
                ask_ahead(p.ranges + members[k + AHEAD])
            p.ranges[node].bo_prev = before
            if before:
                p.ranges[before].bo_next = node
            else:
                bo.first = node
            before = node
        at += rows[i].listed
    p.first_bo = 1
    p.last_bo = n
    if stray:
        for node in range(1, p.nranges):
            if p.ranges[node].bo and not p.ranges[node].bits & RANGE_ON_BO:
                p.bos[p.ranges[node].bo].stray = True
    return 0


cdef int build_eviction(kfd_t* p, object rows, object chance) except -1:
    """Each object once, on its GPU."""
    cdef uint32_t i
    if len(chance) != 1 + p.ngpus or sorted(rows[:, 0].tolist()) != list(range(1, p.nbos)):
        refuse("order", 0, f"each of {p.nbos - 1} objects once, {1 + p.ngpus} numbers of chance")
    for number, gpu, stamp, _ in rows.tolist():
        if p.bos[<uint32_t>number].gpu != gpu or stamp >= 1 << 63:
            refuse("order", number, "the object's own GPU, a stamp below 2**63")
    if not evict_reserve(p.order, p.nbos, p.ngpus):
        raise OutOfMemoryError("state: no memory for the order of eviction")
    evict_restore(p.order, rows, chance[1:].tolist(), chance[0])
    for i in range(1, p.nbos):
        p.taken[p.bos[i].gpu] += p.bos[i].npages
    for i in range(p.ngpus):
        if p.taken[i] > p.quota:
            refuse("objects", i, f"at most {p.quota} pages on a GPU")
    return 0


cdef int build_masks(residency_t* r, const uint64_t[:, ::1] rows, const room_t* room) except -1:
    cdef Py_ssize_t i = 0, end
    # All room at once: arrays that grow are copied out of their large pages.
    if rows.shape[0] and res_grant(r, room):
        raise OutOfMemoryError("state: no memory for the masks")
    while i < rows.shape[0]:
        end = i + 1
        while end < rows.shape[0] and rows[end, 0] == rows[i, 0]:
            end += 1
        if res_put(r, <const mask_row_t*>&rows[i, 0], <uint32_t>(end - i)):
            raise OutOfMemoryError("state: no memory for the masks")
        i = end
    return 0


cdef object mapping_entries(object mappings):
    entries = np.empty(len(mappings), ENTRY)
    for column, name in enumerate(("first", "last", "value")):
        entries[name] = mappings[:, column]
    return entries


cdef span_t* build_spans(const uint64_t[:, ::1] rows) except? NULL:
    cdef span_t* spans
    cdef Py_ssize_t i
    if rows.shape[0] == 0:
        return NULL
    spans = <span_t*>table_of(rows.shape[0], sizeof(span_t))
    for i in range(rows.shape[0]):
        spans[i].first = rows[i, 0]
        spans[i].last = rows[i, 1]
    return spans


cdef int build_process(kfd_t* p, const process_row_t* row, const gpu_row_t[::1] gpus) except -1:
    cdef uint32_t i
    p.engine.now = row.now
    p.engine.cost_ns = <uint64_t>row.cost_ns
    p.restore_ns = row.restore_ns
    p.evicted_ranges = row.evicted_ranges
    p.node.sequence = row.sequence
    p.fail_vram = row.fail_vram
    p.fail_limit = row.fail_limit
    p.fail_copy = row.fail_copy
    p.fail_hmm = row.fail_hmm
    p.draining = row.draining
    p.restore_pending = row.restore_pending
    p.state = row.state
    for i in range(p.ngpus):
        p.checkpoint_ts[i] = gpus[i].checkpoint_ts
        p.ring_ts[i] = gpus[i].ring_ts
        if gpus[i].ring_set:
            p.ring_set |= <uint64_t>1 << i
    return 0


cdef object upgraded(object tables):
    """Tables of version 1 as those of version 2; others as they are, to be checked."""
    if "list_order" in tables:
        return tables
    row, old, members = (take_table(tables, name) for name in
                         ("process", "ranges", "object_ranges"))
    if len(row) != 1 or row["version"][0] != 1:
        return tables
    n, linked = len(old), int(np.count_nonzero(old["parent"] == 0))
    if old["parent"][:linked].any():
        refuse("ranges", linked, "children behind all ranges of the list")
    for name, numbers, most in (("ranges", old["parent"], linked), ("object_ranges", members, n)):
        wrong = np.flatnonzero(numbers > most)
        if len(wrong):
            refuse(name, int(wrong[0]), f"a range of 1 to {most}")
    order = np.argsort(old["notifier_first"][:linked], kind="stable")
    number = np.arange(n + 1, dtype=np.uint32)  # by the old row, both from 1
    number[order + 1] = np.arange(1, linked + 1, dtype=np.uint32)
    parents = number[old["parent"][linked:]]
    children = linked + np.argsort(parents, kind="stable")
    number[children + 1] = np.arange(linked + 1, n + 1, dtype=np.uint32)
    ranges = old[np.concatenate([order, children])]
    ranges["parent"] = number[ranges["parent"]]
    row = row.copy()
    row["version"] = VERSION
    return {
        **tables,
        "process": row,
        "ranges": ranges,
        "list_order": number[1:linked + 1],
        "object_ranges": number[members],
    }


def unpack(KfdProcess process not None, tables):
    """Give a new process the state that :func:`pack` took from another.

    Parameters
    ----------
    process : KfdProcess
        Made with the parameters of the packed one, on a node of its own, and
        not used yet. The memory in use on that node becomes its objects'.
    tables : mapping of str to array
        As :func:`pack` gave them; they are read and not kept.

    Raises
    ------
    InvalidArgumentError
        If anything in the tables does not fit the process or itself; the
        message names the table, the row and what was expected.
    OutOfMemoryError
        If memory runs out. After either error the process must be discarded.

    Complexity
    ----------
    O(ranges + mappings + mask lines); of version 1 O(n log n) in ranges.
    """
    cdef kfd_t* p = process.p
    cdef process_row_t[::1] row
    cdef gpu_row_t[::1] gpus
    cdef range_row_t[::1] ranges
    cdef object_row_t[::1] objects
    cdef uint32_t[::1] members, sets
    cdef attributes_row_t[::1] attributes
    cdef uint64_t[:, ::1] mappings, masks, buffers, userptrs
    cdef uint32_t[::1] listed
    cdef uint32_t linked, ndeferred = 0, nsides = 0, i
    cdef room_t room
    if (
        p.live_ranges or p.nbos > 1 or p.node.ntenants != 1 or ranges_count(p.vmas)
        or p.engine.res.nblocks > 1 or p.nbuffers or p.nuserptrs
    ):
        raise InvalidArgumentError("state: expected a new process, alone on its node")
    known = TABLES | ORDER if p.order != NULL else TABLES
    unknown = sorted(str(name) for name in tables if name not in known and name not in COUNTED)
    if unknown:
        raise InvalidArgumentError(
            f"state: unknown member {unknown[0]}, expected {', '.join([*known, *COUNTED])}"
        )
    tables = upgraded(tables)
    # Cython takes no read-only view of a struct in a mutable variable: copy what is read-only.
    taken = {name: writable(take_table(tables, name)) for name in known}
    totals = take_counters(tables, "counters", 1, dict(p.engine.counters))
    each = take_counters(tables, "processors", 1 + p.ngpus, dict(p.engine.processors[0]))
    if len(taken["process"]) != 1 or len(taken["gpus"]) != p.ngpus:
        raise InvalidArgumentError(
            f"state: expected one row of process and {p.ngpus} of gpus, found "
            f"{len(taken['process'])} and {len(taken['gpus'])}"
        )
    row = taken["process"]
    gpus = taken["gpus"]
    ranges = taken["ranges"]
    listed = taken["list_order"]
    objects = taken["objects"]
    members = taken["object_ranges"]
    attributes = taken["attributes"]
    mappings = taken["mappings"]
    masks = taken["masks"]
    buffers = taken["buffers"]
    userptrs = taken["userptrs"]
    check_process(p, &row[0])
    for i in range(p.ngpus):
        if gpus[i].ring_set > 1:
            refuse("gpus", i, "ring_set of 0 or 1")
    linked = check_ranges(p, taken["ranges"], ranges, <uint32_t>attributes.shape[0],
                          <uint32_t>objects.shape[0], &ndeferred, &nsides)
    check_list(listed, linked)
    check_objects(p, objects, members, ranges, row[0].sequence)
    check_mappings(mappings)
    check_masks(p, masks, &room)
    check_pages(ranges, linked, objects, masks)
    sets = make_sets(process, attributes, row[0].xnack)
    stray = build_ranges(p, ranges, listed, ndeferred, nsides, sets)
    build_objects(p, objects, members, stray)
    if p.order != NULL:
        build_eviction(p, taken["order"], taken["chance"])
    fill_map(p.vmas, mapping_entries(taken["mappings"]))
    # What was looked up before is of the empty process.
    p.vma_first = 1
    p.vma_last = 0
    p.tree_version += 1
    build_masks(p.engine.res, masks, &room)
    p.buffers = build_spans(buffers)
    p.nbuffers = <uint32_t>buffers.shape[0]
    p.cap_buffers = p.nbuffers
    p.userptrs = build_spans(userptrs)
    p.nuserptrs = <uint32_t>userptrs.shape[0]
    p.cap_userptrs = p.nuserptrs
    build_process(p, &row[0], gpus)
    p.engine.counters = totals[0]
    for i in range(1 + p.ngpus):
        p.engine.processors[i] = each[i]


cdef object writable(object table):
    return table if table.flags.writeable else table.copy()
