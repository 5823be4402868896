# cython: language_level=3, freethreading_compatible=True
"""Objects of JSON to columns of numbers, without a Python object a value.

:class:`ObjectForm` reads what is plain: objects whose values of interest are integers. It stops
before the first element that is not, which is left to Python's ``json`` and the reader's
careful code. So it never decides that an element is wrong; what it reads is whole and valid.

The GIL is released for a whole text. A text ends with a NUL, which is part of no value.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, strncmp

from ._digits cimport decimal, text_t

from ..errors import InvalidArgumentError

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum limits:
    KEYS = 32
    COLUMNS = 32
    DEPTH = 8          # of values that are passed over
    NUMBER_BYTES = 64  # of numbers that are passed over
    NEITHER = -1       # the column of a key that is passed over

#: Value of a column whose key an object lacks.
ABSENT = -(1 << 63)
cdef int64_t NONE = <int64_t>(<uint64_t>1 << 63)

cdef struct key_t:
    const uint8_t* text
    size_t size
    int column


cdef inline text_t space(text_t p) noexcept nogil:
    while p[0] == 32 or p[0] == 10 or p[0] == 13 or p[0] == 9:
        p += 1
    return p


cdef inline text_t string(text_t p) noexcept nogil:
    """Behind a string without escapes that begins here, NULL where there is none."""
    if p[0] != 34:
        return NULL
    p += 1
    while p[0] != 34:
        if p[0] < 32 or p[0] == 92:
            return NULL
        p += 1
    return p + 1


cdef inline text_t digits(text_t p) noexcept nogil:
    """Behind one digit or more, NULL where there is none."""
    if not 48 <= p[0] <= 57:
        return NULL
    while 48 <= p[0] <= 57:
        p += 1
    return p


cdef inline text_t any_number(text_t p) noexcept nogil:
    """Behind a number that begins here, NULL where there is none."""
    cdef text_t start = p
    if p[0] == 45:
        p += 1
    p = p + 1 if p[0] == 48 else digits(p)
    if p != NULL and p[0] == 46:
        p = digits(p + 1)
    if p != NULL and (p[0] | 32) == 101:
        p += 1
        if p[0] == 43 or p[0] == 45:
            p += 1
        p = digits(p)
    return p if p != NULL and p - start <= NUMBER_BYTES else NULL


cdef inline text_t literal(text_t p, const char* word, size_t size) noexcept nogil:
    cdef size_t i
    for i in range(size):
        if p[i] != <uint8_t>word[i]:
            return NULL
    return p + size


cdef inline text_t colon(text_t p) noexcept nogil:
    """Where the value begins behind a key that ends here; NULL for NULL."""
    if p == NULL:
        return NULL
    p = space(p)
    return space(p + 1) if p[0] == 58 else NULL


cdef inline text_t onward(text_t p, uint8_t close, bint* closed) noexcept nogil:
    """Behind the comma or the closing bracket after a value that ends here; NULL for NULL."""
    if p == NULL:
        return NULL
    p = space(p)
    closed[0] = p[0] == close
    if closed[0]:
        return p + 1
    return space(p + 1) if p[0] == 44 else NULL


cdef text_t passed(text_t p, int depth) noexcept nogil:
    """Behind any value that begins here; NULL where there is none that is plain."""
    cdef uint8_t close
    cdef bint closed = False
    if p[0] == 34:
        return string(p)
    if p[0] == 116:
        return literal(p, b"true", 4)
    if p[0] == 102:
        return literal(p, b"false", 5)
    if p[0] == 110:
        return literal(p, b"null", 4)
    if p[0] != 123 and p[0] != 91:
        return any_number(p)
    if depth == DEPTH:
        return NULL
    close = p[0] + 2
    p = space(p + 1)
    if p[0] == close:
        return p + 1
    while p != NULL and not closed:
        if close == 125:
            p = colon(string(p))
            if p == NULL:
                return NULL
        p = onward(passed(p, depth + 1), close, &closed)
    return p


@cython.final
cdef class ObjectForm:
    """JSON objects of integers, read into columns.

    Parameters
    ----------
    columns : dict of bytes to int
        Column of the value of each key, 0 to 31. Keys that share one must not stand in one
        object. Values of other keys are passed over.
    wrapped : bytes, optional
        A key of such values as ``{"handle": 5}``, which count as 5.
    inner : bytes, optional
        The objects are values of this key of the elements, whose other keys are passed over.
    quoted : bool, default False
        Integers may be strings of decimal digits, and all values must be integers.
    separator : int, default 44
        The byte between two elements; no white space, quote, bracket or digit.

    Raises
    ------
    InvalidArgumentError
        If there are too many keys, or one is empty, or a column is not 0 to 31.

    Examples
    --------
    >>> import numpy as np
    >>> form = ObjectForm({b"t": 0, b"node": 1}, wrapped=b"handle")
    >>> text = '{"t": 7, "x": [1, {}], "node": {"handle": -1}}, {"node": 3},{"t": 1.5}]'
    >>> out = np.empty((form.columns, 4), "<i8")
    >>> rows, at = form.scan(text, 0, out)
    >>> out[:, :rows].tolist() == [[7, ABSENT], [-1, 3]], text[at:]
    (True, ',{"t": 1.5}]')
    """

    cdef readonly Py_ssize_t columns
    cdef key_t keys[KEYS]
    cdef int count
    cdef const char* inner
    cdef const char* wrap
    cdef size_t inner_size
    cdef size_t wrap_size
    cdef uint8_t separator
    cdef bint quoted
    cdef tuple kept

    def __cinit__(self, dict columns not None, *, bytes wrapped=None, bytes inner=None,
                  bint quoted=False, uint8_t separator=44):
        wrapped, inner = wrapped or b"", inner or b""
        self.kept = dict(columns), wrapped, inner
        self.wrap, self.wrap_size = wrapped, len(wrapped)
        self.inner, self.inner_size = inner, len(inner)
        self.quoted, self.separator = quoted, separator
        self.columns = self.count = 0
        if len(columns) > KEYS:
            raise InvalidArgumentError(f"{len(columns)} keys: expected at most {KEYS}")
        for key, column in self.kept[0].items():
            if not isinstance(key, bytes) or not key or not 0 <= column < COLUMNS:
                raise InvalidArgumentError(
                    f"key {key!r}, column {column}: expected bytes and 0 to {COLUMNS - 1}"
                )
            self.keys[self.count].text = <text_t>(<char*>key)
            self.keys[self.count].size = len(key)
            self.keys[self.count].column = column
            self.columns = max(self.columns, column + 1)
            self.count += 1

    cdef inline int column(self, text_t p, size_t size) noexcept nogil:
        cdef int i
        for i in range(self.count):
            if self.keys[i].size == size and not memcmp(self.keys[i].text, p, size):
                return self.keys[i].column
        return NEITHER

    cdef inline text_t integer(self, text_t p, int64_t* value) noexcept nogil:
        """Behind an integer of 63 bits, NULL where there is none."""
        cdef uint64_t size = 0
        cdef bint text = self.quoted and p[0] == 34
        cdef bint negative
        p += text
        negative = p[0] == 45
        p += negative
        # JSON has no leading zeros.
        if not text and p[0] == 48 and 48 <= p[1] <= 57:
            return NULL
        p = decimal(p, &size)
        if p == NULL or size >> 63 or p[0] == 46 or (p[0] | 32) == 101:
            return NULL
        value[0] = -<int64_t>size if negative else <int64_t>size
        if text:
            return p + 1 if p[0] == 34 else NULL
        return p

    cdef inline text_t wanted(self, text_t p, int64_t* value) noexcept nogil:
        """Behind an integer, or an object that wraps one."""
        cdef const char* wrapped = self.wrap
        cdef size_t size = self.wrap_size
        if p[0] != 123 or not size:
            return self.integer(p, value)
        p = space(p + 1)
        if p[0] != 34 or strncmp(<const char*>p + 1, wrapped, size) or p[size + 1] != 34:
            return NULL
        p = colon(p + size + 2)
        if p == NULL:
            return NULL
        p = self.integer(p, value)
        if p == NULL:
            return NULL
        p = space(p)
        return p + 1 if p[0] == 125 else NULL

    cdef text_t flat(self, text_t p, int64_t* out, size_t stride) noexcept nogil:
        """Behind the object that begins here; its numbers go to *out*, *stride* apart."""
        cdef text_t start, stop
        cdef int64_t ignored = 0
        cdef int column
        cdef bint closed = False
        for column in range(<int>self.columns):
            out[column * stride] = NONE
        if p[0] != 123:
            return NULL
        p = space(p + 1)
        if p[0] == 125:
            return p + 1
        while p != NULL and not closed:
            start, stop = p, string(p)
            p = colon(stop)
            if p == NULL:
                return NULL
            column = self.column(start + 1, stop - start - 2)
            if column == NEITHER:
                p = self.integer(p, &ignored) if self.quoted else passed(p, 0)
            elif out[column * stride] != NONE:
                return NULL
            else:
                p = self.wanted(p, &out[column * stride])
            p = onward(p, 125, &closed)
        return p

    cdef text_t element(self, text_t p, int64_t* out, size_t stride) noexcept nogil:
        """As :meth:`flat`, of the object inside of the one that begins here."""
        cdef text_t start
        cdef bint found = False, closed = False
        if not self.inner_size:
            return self.flat(p, out, stride)
        if p[0] != 123:
            return NULL
        p = space(p + 1)
        while p != NULL and not closed:
            start = p
            p = colon(string(p))
            if p == NULL:
                return NULL
            # The quote behind the key is no part of it.
            if not strncmp(<const char*>start + 1, self.inner, self.inner_size) and (
                    start[1 + self.inner_size] == 34):
                if found:
                    return NULL
                found = True
                p = self.flat(p, out, stride)
            else:
                p = passed(p, 0)
            p = onward(p, 125, &closed)
        return p if found else NULL

    def scan(self, str text not None, Py_ssize_t at, int64_t[:, ::1] out not None):
        """Read elements from *at* on, up to the first that is not plain.

        Parameters
        ----------
        text : str
            Elements with one separator between two; nothing is read where it is not ASCII.
        at : int
            Where an element or the separator before it begins.
        out : ndarray, shape (columns, n), dtype int64
            Element *i* of those read goes to ``out[:, i]``, ``ABSENT`` where it lacks a key.

        Returns
        -------
        rows : int
            Elements read.
        at : int
            Behind the last element read.

        Raises
        ------
        InvalidArgumentError
            If *at* lies outside, or *out* has another number of columns.

        Complexity
        ----------
        O(characters), no allocation.
        """
        cdef Py_ssize_t size = 0, rows = 0, room = out.shape[1]
        cdef text_t begin, p, stop, behind, end
        if not 0 <= at <= len(text) or out.shape[0] != self.columns:
            raise InvalidArgumentError(
                f"character {at}, {out.shape[0]} columns: expected 0 to {len(text)}, "
                f"{self.columns} columns"
            )
        if not text.isascii() or not room or not self.columns:
            return 0, at
        begin = <text_t>PyUnicode_AsUTF8AndSize(text, &size)
        end = begin + size
        stop = p = begin + at
        with nogil:
            while rows < room:
                p = space(p)
                if p[0] == self.separator:
                    p = space(p + 1)
                elif rows:
                    break
                p = self.element(p, &out[0, rows], room)
                if p == NULL:
                    break
                behind = p
                p = space(p)
                # Anything else makes the element another one.
                if p[0] != self.separator and p[0] != 93 and p != end:
                    break
                stop = behind
                rows += 1
        return rows, stop - begin
