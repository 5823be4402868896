# cython: language_level=3, freethreading_compatible=True
"""What the outcomes of a chunk add up to, buffer by buffer; no Python object a record.

Owns nothing: the table is the caller's. The GIL is released for a whole chunk.
One thread at a time adds to a table.
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from ._types cimport outcome_t, record_t

from .errors import InvalidArgumentError


# Invariant: layout equal to result.BUFFER; the buffer protocol checks it at each call.
cdef struct buffer_t:
    uint64_t start
    uint64_t size
    uint64_t records
    uint64_t pages
    uint64_t faults
    uint64_t moved_pages
    uint64_t remote_pages
    uint64_t errors

cdef enum limits:
    KIND_FAULT = 1  # the last kind that touches
    UNKNOWN = 255
    TOGETHER = 32   # records whose buffers are searched for together


cdef void search(const uint64_t* starts, size_t count, const uint64_t* addr, size_t n,
                 size_t* at) noexcept nogil:
    """For each address the number of starts that are not above it; *count* is at least 1.

    All searches take the same steps, so that their cache misses overlap.
    """
    cdef size_t j, half, left = count
    for j in range(n):
        at[j] = 0
    while left > 1:
        half = left // 2
        for j in range(n):
            at[j] += half & -<size_t>(starts[at[j] + half - 1] <= addr[j])
        left -= half
    for j in range(n):
        at[j] += starts[at[j]] <= addr[j]


cdef size_t add(const record_t* records, const outcome_t* out, size_t n,
                const uint64_t* starts, buffer_t* buffers, size_t count) noexcept nogil:
    """Add a chunk; how many of its records ended fatally."""
    cdef size_t i = 0, j, m, fatal = 0, last = 0
    cdef uint64_t addr[TOGETHER]
    cdef size_t at[TOGETHER]
    cdef uint64_t low, high, bytes_
    cdef bint same
    cdef buffer_t* buffer
    while i < n:
        m = n - i if n - i < TOGETHER else TOGETHER
        for j in range(m):
            fatal += out[i + j].code != 0
            addr[j] = records[i + j].addr
        if count:
            # Most touches go where the one before went.
            same = last > 0
            if same:
                low = starts[last - 1]
                high = starts[last] if last < count else <uint64_t>-1
                for j in range(m):
                    # The last address of all is searched for, which is right too.
                    same = same & (addr[j] >= low) & (addr[j] < high)
            if same:
                for j in range(m):
                    at[j] = last
            else:
                search(starts, count, addr, m, at)
                last = at[m - 1]
            for j in range(m):
                # A touch outside every mapping counts with none: it is an error.
                if records[i + j].kind > KIND_FAULT or at[j] == 0:
                    continue
                buffer = buffers + (at[j] - 1)
                if addr[j] - buffer.start >= buffer.size:
                    continue
                bytes_ = records[i + j].size if records[i + j].size else 1
                buffer.records += 1
                buffer.pages += ((addr[j] + (bytes_ - 1)) >> 12) - (addr[j] >> 12) + 1
                buffer.faults += out[i + j].faults
                buffer.moved_pages += out[i + j].moved
                buffer.remote_pages += out[i + j].remote
                buffer.errors += out[i + j].code != 0
        i += m
    return fatal


def tally(const record_t[::1] records, const outcome_t[::1] outcomes,
          const uint64_t[::1] starts, buffer_t[::1] buffers):
    """Add one chunk to the table of buffers.

    A touch counts for the buffer that holds its first byte. Sums are exact.

    Parameters
    ----------
    records : ndarray, shape (n,), dtype RECORD
    outcomes : ndarray, shape (n,), dtype OUTCOME
        What the replay loop wrote for them.
    starts : ndarray, shape (buffers,), dtype uint64
        First byte of each buffer, ascending; of equal ones the last counts.
    buffers : ndarray, shape (buffers,), dtype BUFFER
        Written: the counters of each buffer grow.

    Returns
    -------
    int
        Records that ended fatally or were refused.

    Raises
    ------
    InvalidArgumentError
        If the arrays differ in length.

    Complexity
    ----------
    O(records * log(buffers)), O(records) where touches stay in one buffer; GIL released.
    """
    cdef size_t n = records.shape[0], count = starts.shape[0], fatal
    if <size_t>outcomes.shape[0] != n or <size_t>buffers.shape[0] != count:
        raise InvalidArgumentError(
            f"{outcomes.shape[0]} outcomes of {n} records, {buffers.shape[0]} buffers of "
            f"{count} starts: expected as many of each"
        )
    if n == 0:
        return 0
    with nogil:
        fatal = add(&records[0], &outcomes[0], n, &starts[0] if count else NULL,
                    &buffers[0] if count else NULL, count)
    return fatal


def first_stranger(const record_t[::1] records, int gpus):
    """Index of the first touch by a processor that a machine of *gpus* GPUs lacks, or -1.

    Touches that name no processor are none.

    Complexity
    ----------
    O(records), GIL released.
    """
    cdef Py_ssize_t i, n = records.shape[0], found = -1
    if n == 0:
        return -1
    cdef const record_t* record = &records[0]
    with nogil:
        for i in range(n):
            if record[i].kind <= KIND_FAULT and record[i].proc > gpus \
                    and record[i].proc != UNKNOWN:
                found = i
                break
    return found
