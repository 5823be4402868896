# cython: language_level=3, freethreading_compatible=True
"""Lines of valgrind's lackey, scanned in place; no Python object a line.

Owns nothing: text and records are the caller's. The GIL is released for a whole scan.
"""
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memset

from svmcore._types cimport record_t

cdef enum codes:
    KIND_ACCESS = 0
    CPU = 0
    READ = 0
    WRITE = 1
    UNKNOWN = 255
    HEX_DIGITS = 16      # of 64 bits
    DECIMAL_DIGITS = 18  # more pass no span that an instruction touches

cdef struct scan_t:
    Py_ssize_t at        # where the next line begins; that of the bad line after a failure
    Py_ssize_t lines     # lines done
    Py_ssize_t rows      # records written
    bint bad             # the line at `at` is neither a touch nor valgrind's own


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c >= 48 and c <= 57:
        return c - 48
    c |= 32
    return c - 87 if c >= 97 and c <= 102 else -1


cdef bint is_note(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """An empty line, or one of valgrind's: ``==PID== text``, ``--PID-- text``, ``**PID** text``."""
    while p < end and (p[0] == 32 or p[0] == 9):
        p += 1
    if p == end:
        return True
    if end - p < 5 or (p[0] != 61 and p[0] != 45 and p[0] != 42) or p[1] != p[0]:
        return False
    cdef uint8_t mark = p[0]
    p += 2
    cdef const uint8_t* digits = p
    while p < end and p[0] >= 48 and p[0] <= 57:
        p += 1
    return p > digits and end - p >= 2 and p[0] == mark and p[1] == mark


cdef bint parse(const uint8_t* p, const uint8_t* end, record_t* out) noexcept nogil:
    """One touch: ``I  ADDR,SIZE``, `` L ADDR,SIZE``, `` S ...``, `` M ...``."""
    cdef uint64_t addr = 0, size = 0
    cdef int digit
    cdef const uint8_t* begin
    cdef uint8_t letter
    while p < end and p[0] == 32:
        p += 1
    if end - p < 5:
        return False
    letter = p[0]
    if (letter != 73 and letter != 76 and letter != 83 and letter != 77) or p[1] != 32:
        return False
    p += 2
    while p < end and p[0] == 32:
        p += 1
    begin = p
    while p < end:
        digit = hex_digit(p[0])
        if digit < 0:
            break
        addr = addr << 4 | <uint64_t>digit
        p += 1
    if p == begin or p - begin > HEX_DIGITS or p == end or p[0] != 44:
        return False
    p += 1
    begin = p
    while p < end and p[0] >= 48 and p[0] <= 57:
        size = size * 10 + (p[0] - 48)
        p += 1
    if p != end or p == begin or p - begin > DECIMAL_DIGITS:
        return False
    if size == 0 or addr + (size - 1) < addr:
        return False
    memset(out, 0, sizeof(record_t))
    out.addr = addr
    out.size = size
    out.value = letter == 73
    out.kind = KIND_ACCESS
    out.proc = CPU
    out.access = READ if letter == 73 or letter == 76 else WRITE
    out.peer = UNKNOWN
    return True


cdef void walk(const uint8_t* data, Py_ssize_t n, record_t* out, scan_t* s) noexcept nogil:
    cdef const uint8_t* p = data
    cdef const uint8_t* limit = data + n
    cdef const uint8_t* newline
    cdef const uint8_t* end
    while p <= limit:
        newline = <const uint8_t*>memchr(p, 10, limit - p) if p < limit else NULL
        end = newline if newline != NULL else limit
        if end > p and end[-1] == 13:
            end -= 1
        if parse(p, end, out + s.rows):
            s.rows += 1
        elif not is_note(p, end):
            s.bad = True
            break
        s.lines += 1
        if newline == NULL:
            break
        p = newline + 1
    s.at = p - data


def scan(const uint8_t[::1] data, record_t[::1] out):
    """Touches of whole lines.

    Parameters
    ----------
    data : bytes-like
        Lines joined by newlines, without the last newline; at least one byte.
    out : ndarray, shape (lines,), dtype RECORD
        Written from its beginning.

    Returns
    -------
    rows : int
        Records written.
    lines : int
        Lines that are a touch, empty, or valgrind's own (``==PID== ...``).
    at : int
        Byte of the first other line; -1 where there is none.

    Raises
    ------
    ValueError
        If *out* has fewer records than *data* has lines.

    Complexity
    ----------
    O(bytes), no allocation.
    """
    cdef scan_t s
    cdef Py_ssize_t i, most = 1, n = data.shape[0]
    if n == 0:
        return 0, 0, -1
    memset(&s, 0, sizeof(s))
    with nogil:
        for i in range(n):
            most += data[i] == 10
    if out.shape[0] < most:
        raise ValueError(f"{out.shape[0]} records: expected room for {most} lines")
    with nogil:
        walk(&data[0], n, &out[0], &s)
    return s.rows, s.lines, s.at if s.bad else -1
