# cython: language_level=3
"""Numbers in text and the ends of lines, inline for each compiled reader.

Each function gives the byte behind what it read, NULL where there is none or it may not fit.
Data end with a NUL behind their last byte, which is part of no number.
"""
from libc.stdint cimport uint8_t, uint64_t

ctypedef const uint8_t* text_t

cdef enum digits:
    DIGITS = 19        # decimal digits that always fit 64 bits
    NIBBLES = 16


cdef inline text_t decimal(text_t p, uint64_t* value) noexcept nogil:
    cdef text_t start = p
    cdef uint64_t n = 0
    while 48 <= p[0] <= 57:
        n = n * 10 + (p[0] - 48)
        p += 1
    if p == start or p - start > DIGITS:
        return NULL
    value[0] = n
    return p


cdef inline text_t hexadecimal(text_t p, uint64_t* value) noexcept nogil:
    cdef text_t start = p
    cdef uint64_t n = 0
    cdef uint8_t c
    while True:
        c = p[0]
        if 48 <= c <= 57:
            n = n << 4 | (c - 48)
        elif 97 <= (c | 32) <= 102:
            n = n << 4 | ((c | 32) - 87)
        else:
            break
        p += 1
    if p == start or p - start > NIBBLES:
        return NULL
    value[0] = n
    return p


cdef inline bint prefixed(text_t p) noexcept nogil:
    return p[0] == 48 and (p[1] | 32) == 120


cdef inline text_t hex32(text_t p, uint64_t* value) noexcept nogil:
    p = hexadecimal(p, value)
    if p != NULL and value[0] >> 32:
        return NULL
    return p


cdef inline text_t dec32(text_t p, uint64_t* value) noexcept nogil:
    p = decimal(p, value)
    if p != NULL and value[0] >> 32:
        return NULL
    return p


cdef inline bint is_blank(uint8_t c) noexcept nogil:
    """What ``bytes.rstrip`` takes away, but for the newline."""
    return c == 32 or c == 9 or c == 13 or c == 11 or c == 12


cdef inline text_t line_end(text_t p, text_t end) noexcept nogil:
    """The end of a line in which only blanks may follow, NULL where something else does.

    NULL for NULL, so that what failed before fails here.
    """
    if p == NULL:
        return NULL
    while is_blank(p[0]):
        p += 1
    return p if p[0] == 10 or p == end else NULL
