# cython: language_level=3, freethreading_compatible=True
"""Entries of the UVM tools event queue to records; no Python object an entry.

Owns nothing: entries, records and counts are the caller's. The GIL is released for a whole
array. What an entry must be is decided here alone; the reader has the words for it.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from .._types cimport record_t

from ..errors import InvalidArgumentError

#: Why an entry is none, by the number that ``decode`` gives.
PROBLEMS = (
    "",
    "a known access or cause",
    "the CPU or one of 64 GPUs",
    "a size of 1 to 2**48 - 1 bytes and an end of at most 2**64",
    "a time below 2**63 ns",
    "a type of 1 to 14",
)
#: Places of the counts behind those of the 256 types.
CLOCK_BACK, UNKNOWN_ACCESS = 256, 257
COUNTS = 258

cdef enum problem:
    BAD_CODE = 1
    BAD_PLACE = 2
    BAD_SPAN = 3
    BAD_TIME = 4
    BAD_TYPE = 5

cdef enum event:
    CPU_FAULT = 1
    MIGRATION = 2
    GPU_FAULT = 3
    EVICTION = 14
    LAST = 14

cdef enum codes:
    KIND_FAULT = 1
    KIND_MIGRATE = 17
    KIND_EVICT = 18
    KIND_OTHER = 23
    ACCESS_UNKNOWN = 4
    LAST_ACCESS = 4
    LAST_CAUSE = 5
    GPUS = 64
    FATAL_TYPES = 5
    LAST_TYPE = 16
    CPU = 0
    UNKNOWN = 255
    OLD_CPU = 255   # the CPU in records of older drivers, V1
    PAGE = 4096

# Read, write, atomic and prefetch of the driver, 1 to 4; 0 is invalid.
cdef uint8_t ACCESS[5]
ACCESS[:] = [4, 0, 1, 2, 3]

# Where the fields of a layout stand.
cdef struct layout_t:
    size_t size
    size_t fault_access
    size_t fault_gpu
    size_t src
    size_t dst
    size_t moved
    bint wide       # processors of 16 bits

cdef layout_t V1 = layout_t(64, 2, 3, 2, 3, 8, False)
cdef layout_t V2 = layout_t(72, 37, 2, 4, 6, 16, True)


cdef inline uint64_t word(const uint8_t* p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, sizeof(value))
    return value


cdef inline uint32_t place(const uint8_t* p, bint wide) noexcept nogil:
    """Record code of a processor; above GPUS where it is none."""
    cdef uint16_t value
    if wide:
        memcpy(&value, p, sizeof(value))
        return value if value <= GPUS else GPUS + 1
    if p[0] == OLD_CPU:
        return CPU
    return p[0] if p[0] <= GPUS else GPUS + 1


cdef inline bint is_empty(const uint8_t* p, size_t size) noexcept nogil:
    cdef size_t i
    cdef uint64_t all_ = 0
    for i in range(0, size, 8):
        all_ |= word(p + i)
    return all_ == 0


cdef inline int span(record_t* out, uint64_t addr, uint64_t size) noexcept nogil:
    if size == 0 or size >> 48 or addr + (size - 1) < addr:
        return BAD_SPAN
    out.addr, out.size = addr, size
    return 0


cdef int one(const uint8_t* p, const layout_t* l, record_t* out, uint64_t* t_ns,
             uint64_t* counts) noexcept nogil:
    """The record of a known event, or the problem that it has."""
    cdef uint64_t begin, end
    cdef uint32_t proc = CPU, peer = UNKNOWN
    cdef uint8_t code = p[1]
    cdef int bad
    memset(out, 0, sizeof(record_t))
    out.access = ACCESS_UNKNOWN
    if p[0] == CPU_FAULT or p[0] == GPU_FAULT:
        if p[0] == GPU_FAULT:
            code = p[l.fault_access]
            proc = place(p + l.fault_gpu, l.wide)
            memcpy(&out.value, p + 32, 4)
            if FATAL_TYPES <= p[1] <= LAST_TYPE:
                peer = p[1]
        if code > LAST_ACCESS:
            return BAD_CODE
        out.kind = KIND_FAULT
        out.access = ACCESS[code]
        counts[257] += code == 0
        begin = end = word(p + 16)
        bad = span(out, word(p + 8) & ~<uint64_t>(PAGE - 1), PAGE)
    elif p[0] == MIGRATION:
        if code > LAST_CAUSE:
            return BAD_CODE
        out.kind = KIND_MIGRATE
        proc, peer = place(p + l.src, l.wide), place(p + l.dst, l.wide)
        # Triggers as nvidia.migrate_values gives them.
        out.value = (1 if code == 5 or (code == 2 and peer != CPU) else 2 if code == 2
                     else 3 if code == 4 else 0) | <uint32_t>code << 8
        begin, end = word(p + l.moved + 16), word(p + l.moved + 24)
        bad = span(out, word(p + l.moved), word(p + l.moved + 8))
    elif p[0] == EVICTION:
        out.kind = KIND_EVICT
        proc, peer = place(p + 1, False), place(p + 2, False)
        begin = end = word(p + 32)
        bad = span(out, word(p + 8), word(p + 24))
    else:
        out.kind = KIND_OTHER
        out.value = p[0]
        out.proc = out.peer = UNKNOWN
        out.t_ns = t_ns[0]
        return 0
    if proc > GPUS or (peer > GPUS and peer != UNKNOWN):
        return BAD_PLACE
    if bad:
        return bad
    if begin >> 63 or end >> 63:
        return BAD_TIME
    out.proc, out.peer = <uint8_t>proc, <uint8_t>peer
    out.t_ns = t_ns[0] = begin
    if end >= begin:
        out.dur_ns = end - begin
    else:
        counts[256] += 1
    return 0


cdef int walk(const uint8_t* raw, size_t n, const layout_t* l, record_t* out, uint64_t* t_ns,
              uint64_t* counts, size_t* done, size_t* rows) noexcept nogil:
    cdef size_t i
    cdef const uint8_t* p = raw
    cdef int bad
    for i in range(n):
        done[0] = i
        if 0 < p[0] <= LAST:
            bad = one(p, l, out + rows[0], t_ns, counts)
            if bad:
                return bad
            rows[0] += 1
        elif p[0] == 0 and not is_empty(p, l.size):
            return BAD_TYPE
        counts[p[0]] += 1
        p += l.size
    done[0] = n
    return 0


def decode(const uint8_t[::1] raw, int version, record_t[::1] out, uint64_t t_ns,
           uint64_t[::1] counts):
    """Records of whole entries, up to the first that is none.

    Parameters
    ----------
    raw : ndarray or bytes, uint8
        Entries.
    version : {1, 2}
        Layout: 64 or 72 bytes an entry.
    out : ndarray, shape (n,), dtype RECORD
        At least as long as there are entries; written from its beginning.
    t_ns : int
        Time of an event that has none of its own, up to the first that has.
    counts : ndarray, shape (COUNTS,), dtype uint64
        Raised: entries of each type, then ``CLOCK_BACK`` and ``UNKNOWN_ACCESS``.

    Returns
    -------
    done : int
        Entries read; fewer than there are where one is none.
    rows : int
        Records written: entries of an unknown type and slots that nobody wrote give none.
    t_ns : int
        Time of the last event that has one.
    problem : int
        What entry *done* should have been, see ``PROBLEMS``; 0 where all are read.

    Raises
    ------
    InvalidArgumentError
        If *out* or *counts* is too short.

    Complexity
    ----------
    O(entries), no allocation.
    """
    cdef const layout_t* layout = &V1 if version == 1 else &V2
    cdef size_t n = raw.shape[0] // layout.size, done = 0, rows = 0
    cdef int bad
    if <size_t>out.shape[0] < n or counts.shape[0] < 258:
        raise InvalidArgumentError(
            f"room for {out.shape[0]} records and {counts.shape[0]} counts: expected {n} and 258"
        )
    if n == 0:
        return 0, 0, t_ns, 0
    with nogil:
        bad = walk(&raw[0], n, layout, &out[0], &t_ns, &counts[0], &done, &rows)
    return done, rows, t_ns, bad
