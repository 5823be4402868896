# cython: language_level=3, freethreading_compatible=True
"""A process under a policy in Python as tables and back: what state files and clones hold.

Equal states give equal tables: advice is numbered by address, units by their
order, empty masks are left out. :func:`unpack` trusts nothing: every number is
checked before it is used, and the finished process checks its invariants.
"""
from libc.stdint cimport uint32_t, uint64_t

from .._evict cimport evict_pack, evict_restore
from .._ranges cimport range_entry_t, ranges_assign, ranges_count, ranges_next, ranges_t
from .._residency cimport (
    GROUP_BLOCKS,
    MASK_COPY,
    MASK_MAPPED,
    MASK_READ_ONLY,
    MASK_SYSTEM,
    MASK_VRAM,
    SLOT_CPU,
    block_t,
    find_block,
    need_line,
    res_grow,
    res_reserve,
    residency_t,
)
from ._paged cimport (
    CHUNK_HELD,
    GRANULARITY_MAX,
    UNDEFINED,
    PagedProcess,
    advice_t,
    find_chunk,
    get_line,
    paged_t,
    reserve_chunks,
    take_chunk,
)

import numpy as np

from ..errors import InvalidArgumentError, OutOfMemoryError

__all__ = ["pack", "unpack"]

PROCESS = np.dtype([
    ("now", "<u8"), ("cost_ns", "<u8"), ("sequence", "<u8"), ("random", "<u8"),
])
ADVICE = np.dtype([
    ("access", "<u8"), ("in_place", "<u8"), ("no_access", "<u8"), ("flags", "<u4"),
    ("preferred", "u1"), ("granularity", "u1"), ("prefetch", "u1"), ("cpu", "u1"),
])
# Name of each table of 64-bit numbers and its columns.
TABLES = {
    "mappings": 3,     # first page, last page, code
    "advised": 3,      # first page, last page, number of the set
    "marks": 3,        # first page, last page, value
    "masks": 10,       # block, tag, eight words
    "units": 4,        # index, GPU, stamp, uses: in the order in which they are kept
    "drawn": 1,        # a GPU: row of the unit that goes next by chance, from 1; 0 none
}


cdef object pack_map(ranges_t* m):
    cdef uint64_t page = 0
    cdef range_entry_t e
    rows = []
    while ranges_next(m, page, &e):
        rows.append((e.first, e.last, e.value))
        if e.last == <uint64_t>-1:
            break
        page = e.last + 1
    return np.array(rows, np.uint64).reshape(-1, 3)


cdef object pack_masks(residency_t* r):
    """Mask lines that hold a bit, by block and tag."""
    cdef uint32_t table, slot, block, i, w
    cdef uint64_t words[8]
    cdef uint64_t mapped[8]
    cdef block_t* b
    rows = []
    for table in range(r.ngroups):
        for slot in range(GROUP_BLOCKS):
            block = r.tables[<size_t>table * GROUP_BLOCKS + slot]
            number = r.keys[table] * GROUP_BLOCKS + slot
            while block:
                b = r.blocks + block
                for i in range(b.n):
                    for w in range(8):
                        words[w] = r.lines[b.lines[i]].w[w]
                    if b.tags[i] >> 8 == MASK_READ_ONLY:
                        # Permissions of pages that are not mapped mean nothing.
                        get_line(r, find_block(r, number), MASK_MAPPED << 8 | (b.tags[i] & 255),
                                 mapped)
                        for w in range(8):
                            words[w] &= mapped[w]
                    row = [words[w] for w in range(8)]
                    if any(row):
                        rows.append((number, int(b.tags[i]), *row))
                block = b.more
    return np.array(sorted(rows), np.uint64).reshape(-1, 10)


cdef object counted(list rows):
    dtype = np.dtype([(name, "<u8") for name in rows[0]])
    return np.array([tuple(row.values()) for row in rows], dtype)


def pack(PagedProcess process not None):
    """The whole state of a process between two operations, as tables; equal states, equal bytes.

    Complexity
    ----------
    O(mappings + units + mask lines).
    """
    cdef paged_t* t = process.t
    cdef uint32_t i, gpu
    row = np.zeros(1, PROCESS)
    row["now"], row["cost_ns"] = t.engine.now, t.engine.cost_ns
    row["sequence"], row["random"] = t.node.sequence, t.order.random
    advised = pack_map(t.advice)
    numbers = list(dict.fromkeys(int(value) for value in advised[:, 2]))
    advised[:, 2] = [1 + numbers.index(value) for value in advised[:, 2]]
    sets = np.zeros(len(numbers), ADVICE)
    for k, number in enumerate(numbers):
        named_values = dict(t.sets[<uint32_t>number])
        sets[k] = tuple(named_values[name] for name in ADVICE.names)
    units = evict_pack(t.order)
    places = {int(unit): 1 + k for k, unit in enumerate(units[:, 0])}
    units[:, 0] = [t.chunks[<uint32_t>unit].index for unit in units[:, 0]]
    drawn = np.array(
        [places.get(t.order.drawn[gpu], 0) for gpu in range(t.ngpus)], np.uint64
    ).reshape(-1, 1)
    tables = {
        "process": row,
        "counters": counted([dict(t.engine.counters)]),
        "processors": counted([dict(t.engine.processors[i]) for i in range(1 + t.ngpus)]),
        "mappings": pack_map(t.vmas),
        "advice": sets,
        "advised": advised,
        "marks": pack_map(t.marks),
        "masks": pack_masks(t.engine.res),
        "units": units,
        "drawn": drawn,
    }
    return {
        name: table.astype(table.dtype.newbyteorder("<"), copy=False)
        for name, table in tables.items()
    }


cdef object taken_table(object tables, str name, object dtype, int columns):
    table = tables.get(name)
    wanted = f"{dtype} of {columns} columns" if columns else f"{dtype}"
    if (
        not isinstance(table, np.ndarray) or table.dtype != dtype
        or table.ndim != (2 if columns else 1) or (columns and table.shape[1] != columns)
    ):
        raise InvalidArgumentError(f"state: member {name}: expected {wanted}")
    return table


cdef object taken_counters(object tables, str name, Py_ssize_t n, dict zeros):
    """Rows of counters; those that a newer version has added are 0."""
    table = tables.get(name)
    if not isinstance(table, np.ndarray) or table.ndim != 1 or len(table) != n:
        raise InvalidArgumentError(f"state: member {name}: expected {n} rows")
    names = table.dtype.names or ()
    if not names or not set(names) <= set(zeros) or any(table.dtype[c] != "<u8" for c in names):
        raise InvalidArgumentError(f"state: member {name}: expected columns {', '.join(zeros)}")
    return [zeros | dict(zip(names, map(int, row))) for row in table]


cdef int fill_map(ranges_t* m, str name, object rows, uint64_t top) except -1:
    """Spans into an empty map: ascending, apart, values up to *top*."""
    following = 0
    for first, last, value in rows.tolist():
        if not following <= first <= last < 1 << 52 or not 1 <= value <= top:
            raise InvalidArgumentError(
                f"state: {name}: [{first}, {last}] = {value}, expected ascending spans of page "
                f"numbers, values of 1 to {top}"
            )
        if ranges_assign(m, first, last, value):
            raise OutOfMemoryError("no memory for a map of spans")
        following = last + 1
    return 0


cdef int fill_masks(paged_t* t, object rows) except -1:
    cdef residency_t* r = t.engine.res
    cdef uint64_t* line
    cdef uint32_t w
    kinds = (MASK_VRAM, MASK_MAPPED, MASK_READ_ONLY, MASK_COPY)
    known = {MASK_SYSTEM << 8} | {kind << 8 | gpu for kind in kinds for gpu in range(t.ngpus)}
    known |= {kind << 8 | SLOT_CPU for kind in kinds[1:]}
    seen = set()
    for number, tag, *words in rows.tolist():
        if number >= 1 << 43 or tag not in known or (number, tag) in seen:
            raise InvalidArgumentError(
                f"state: masks: block {number}, tag {tag:#x}: expected each once, of this machine"
            )
        seen.add((number, tag))
        if res_reserve(r, number << 9, number << 9, 2):
            raise OutOfMemoryError("no memory for page masks")
        need_line(r, find_block(r, number), MASK_SYSTEM << 8)
        line = need_line(r, find_block(r, number), tag)
        for w in range(8):
            line[w] = words[<int>w]
    return 0


def unpack(PagedProcess process not None, tables):
    """The state of :func:`pack` in a new process that is alone on its node.

    Raises
    ------
    InvalidArgumentError
        If the tables do not fit the process or each other; it must then be discarded.
    """
    cdef paged_t* t = process.t
    cdef uint32_t i, unit
    cdef advice_t* a
    if t.live or t.node.ntenants != 1 or t.node.sequence or ranges_count(t.vmas):
        raise InvalidArgumentError("state: expected a new process, alone on its node")
    rows = {name: taken_table(tables, name, np.dtype("<u8"), n) for name, n in TABLES.items()}
    head = taken_table(tables, "process", PROCESS, 0)
    sets = taken_table(tables, "advice", ADVICE, 0)
    totals = taken_counters(tables, "counters", 1, dict(t.engine.counters))
    each = taken_counters(tables, "processors", 1 + t.ngpus, dict(t.engine.processors[0]))
    if len(head) != 1 or max(head["now"][0], head["sequence"][0]) >= 1 << 63:
        raise InvalidArgumentError("state: process: expected one row, times below 2**63")
    if len(rows["drawn"]) != t.ngpus or len(rows["units"]) >= 1 << 31:
        raise InvalidArgumentError(f"state: drawn: expected {t.ngpus} rows")
    if not res_grow(<void**>&t.sets, &t.cap_sets, 1 + len(sets), sizeof(advice_t)):
        raise OutOfMemoryError("no memory for advice")
    for i, row in enumerate(sets, 1):
        a = t.sets + i
        a.access, a.in_place, a.no_access, a.flags = (int(row[k]) for k in range(4))
        a.preferred, a.granularity, a.prefetch, a.cpu = (int(row[k]) for k in range(4, 8))
        for code in (a.preferred, a.prefetch):
            if code > t.ngpus and code != UNDEFINED:
                raise InvalidArgumentError(f"state: advice: processor {code}, expected a known one")
        if a.granularity > GRANULARITY_MAX and a.granularity != UNDEFINED:
            raise InvalidArgumentError(
                f"state: advice: granularity {a.granularity}, expected 0 to {GRANULARITY_MAX}"
            )
    t.nsets = 1 + <uint32_t>len(sets)
    fill_map(t.vmas, "mappings", rows["mappings"], 24)
    fill_map(t.advice, "advised", rows["advised"], len(sets))
    fill_map(t.marks, "marks", rows["marks"], 0xffffffff)
    fill_masks(t, rows["masks"])
    if not reserve_chunks(t, len(rows["units"])):
        raise OutOfMemoryError("no memory for units")
    order = []
    for index, gpu, stamp, uses in rows["units"].tolist():
        if gpu >= t.ngpus or index >= 1 << 52 >> t.unit or find_chunk(t, index, gpu):
            raise InvalidArgumentError(
                f"state: units: unit {index} of GPU {gpu}, expected each once, of this machine"
            )
        unit = take_chunk(t, index, gpu)
        t.chunks[unit].state = CHUNK_HELD
        order.append((unit, gpu, stamp, uses))
    t.nfresh = 0
    evict_restore(t.order, order, [int(k) for k in rows["drawn"][:, 0]], head["random"][0])
    t.engine.now, t.engine.cost_ns = int(head["now"][0]), int(head["cost_ns"][0])
    t.node.sequence = head["sequence"][0]
    t.engine.counters = totals[0]
    for i in range(1 + t.ngpus):
        t.engine.processors[i] = each[<int>i]
    try:
        process.check()
    except AssertionError as broken:
        raise InvalidArgumentError(f"state: {broken}, expected a sound process") from broken
