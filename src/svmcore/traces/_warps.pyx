# cython: language_level=3, freethreading_compatible=True
"""Instructions of an Accel-Sim kernel trace to pages, without a Python object a line.

As the scanners of ``_text``: what is well formed becomes records, and the first line that is
not is left to the reader's careful Python code, which repairs it or refuses it by name.
"""
cimport cython
from libc.stdint cimport int8_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from .._types cimport KIND_ACCESS, record_t
from ._digits cimport decimal, hexadecimal, is_blank, prefixed, text_t

from ..errors import InvalidArgumentError

cdef enum limits:
    LANES = 32
    WIDEST = 4096      # bytes that a lane touches at most, so that it touches two pages at most
    PAGE = 4096
    MOST_ROWS = 64     # of an instruction: two pages for each lane
    UNKNOWN = 255
    REGISTERS = 64     # of an instruction; more are left to the careful code
    FAR_BITS = 40      # strides and deltas below 2**40 cannot pass 64 bits unseen
    OPCODE_BYTES = 32
    OPCODES = 4096     # kept; a GPU has some hundreds
    SLOTS = 8192
    WINDOWS = 8

#: Records that one instruction makes at most.
ROWS = MOST_ROWS
#: How an opcode touches memory that is not paged, beside the numbers of ``Access``.
ON_CHIP = -1

cdef uint64_t WINDOW = <uint64_t>1 << 24

cdef struct opcode_t:
    uint8_t size       # 0: no opcode
    int8_t access
    uint8_t text[OPCODE_BYTES]


cdef inline text_t gap(text_t p) noexcept nogil:
    """The next field of the line, NULL where none follows."""
    if p == NULL or not is_blank(p[0]):
        return NULL
    while is_blank(p[0]):
        p += 1
    return p if p[0] > 32 else NULL


cdef inline text_t newline(text_t p, text_t end) noexcept nogil:
    """The end of the line, whatever is left of it."""
    while p[0] != 10 and p != end:
        p += 1
    return p


cdef inline bint ends(text_t p, text_t end) noexcept nogil:
    """Whether a field ends here."""
    return is_blank(p[0]) or p[0] == 10 or p == end


cdef inline text_t any_hex(text_t p, uint64_t* value) noexcept nogil:
    if p == NULL:
        return NULL
    return hexadecimal(p + 2 if prefixed(p) else p, value)


cdef inline text_t number(text_t p, uint64_t* value) noexcept nogil:
    if p == NULL:
        return NULL
    return decimal(p, value)


cdef inline text_t near(text_t p, int64_t* value) noexcept nogil:
    """A decimal number of either sign, not too large to be added up."""
    cdef bint negative
    cdef uint64_t size = 0
    if p == NULL:
        return NULL
    negative = p[0] == 45
    p = decimal(p + negative, &size)
    if p == NULL or size >> FAR_BITS:
        return NULL
    value[0] = -<int64_t>size if negative else <int64_t>size
    return p


cdef inline text_t skip(text_t p, uint64_t fields) noexcept nogil:
    """Behind so many more fields, NULL where the line has fewer."""
    while fields and p != NULL:
        p = gap(p)
        if p == NULL:
            return NULL
        while p[0] > 32:
            p += 1
        fields -= 1
    return p


cdef inline int ones(uint32_t mask) noexcept nogil:
    cdef int count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@cython.final
cdef class WarpScanner:
    """Instructions of one kernel as records, one for each page that the lanes touch.

    Opcodes are learnt: the careful code tells of each new one how it touches memory, see
    :meth:`learn`. Invariant: at most half of the slots are used.

    Parameters
    ----------
    index : int
        ``value`` of the records.
    """

    #: Instructions that touched memory which is not paged.
    cdef readonly uint64_t on_chip
    cdef uint32_t index
    cdef int count
    cdef int windows
    cdef uint64_t window[WINDOWS]  # as many as there is room for
    cdef opcode_t table[SLOTS]

    def __cinit__(self, uint32_t index):
        self.index = index

    def add_window(self, uint64_t start):
        """Say where generic addresses reach memory that is not paged, 16 MiB each.

        A kernel has two; of one that has more than 8 nothing is scanned.
        """
        if self.windows < WINDOWS:
            self.window[self.windows] = start
        self.windows += 1

    cdef inline opcode_t* slot(self, text_t opcode, size_t size) noexcept nogil:
        """The slot of an opcode of 1 to 32 bytes, its own or an empty one."""
        cdef uint64_t mixed = 0xCBF29CE484222325u
        cdef size_t i
        for i in range(size):
            mixed = (mixed ^ opcode[i]) * <uint64_t>0x100000001B3u
        i = mixed & (SLOTS - 1)
        while self.table[i].size and (
            self.table[i].size != size or memcmp(self.table[i].text, opcode, size)
        ):
            i = (i + 1) & (SLOTS - 1)
        return &self.table[i]

    def learn(self, bytes opcode not None, int access):
        """Take instructions of *opcode* from now on.

        Parameters
        ----------
        opcode : bytes
            One that is longer than 32 bytes, or comes after 4,096 others, is not kept.
        access : int
            A number of ``Access``, or ``ON_CHIP``.

        Raises
        ------
        InvalidArgumentError
            If *access* is neither, or *opcode* is empty.
        """
        cdef size_t size = len(opcode)
        cdef opcode_t* there
        if not size or not ON_CHIP <= access <= 4:
            raise InvalidArgumentError(f"opcode {opcode!r}, access {access}: expected -1 to 4")
        if size > OPCODE_BYTES or self.count == OPCODES:
            return
        there = self.slot(<text_t>(<char*>opcode), size)
        self.count += not there.size
        there.size, there.access = <uint8_t>size, <int8_t>access
        memcpy(there.text, <char*>opcode, size)

    cdef inline text_t addresses(self, text_t p, uint8_t mode, int lanes,
                                 uint64_t* out) noexcept nogil:
        """Behind the addresses of the active lanes; NULL where they may pass 64 bits."""
        cdef int64_t step = 0
        cdef int i
        p = any_hex(gap(p), &out[0])
        if mode == 1:
            p = near(gap(p), &step)
        for i in range(1, lanes):
            if mode == 0:
                p = any_hex(gap(p), &out[i])
                continue
            if mode == 2:
                p = near(gap(p), &step)
            out[i] = out[i - 1] + <uint64_t>step
            if (step >= 0) != (out[i] >= out[i - 1]):
                return NULL
        return p

    cdef inline size_t touch(self, uint64_t* lane, int lanes, uint64_t width, int8_t access,
                             record_t* row) noexcept nogil:
        """Records of the pages that the lanes touch, in their order, each once."""
        cdef size_t rows = 0, j
        cdef uint64_t page, last
        cdef int i
        for i in range(lanes):
            page = lane[i] & ~<uint64_t>(PAGE - 1)
            last = (lane[i] + (width - 1)) & ~<uint64_t>(PAGE - 1)
            while True:
                # Mostly it is that of the lane before.
                j = rows
                while j and row[j - 1].addr != page:
                    j -= 1
                if not j:
                    row[rows].t_ns, row[rows].addr, row[rows].size = 0, page, PAGE
                    row[rows].dur_ns, row[rows].value = 0, self.index
                    row[rows].kind, row[rows].proc = KIND_ACCESS, UNKNOWN
                    row[rows].access, row[rows].peer = <uint8_t>access, UNKNOWN
                    rows += 1
                if page == last:
                    break
                page = last
        return rows

    cdef text_t line(self, text_t p, text_t end, record_t* row, size_t* rows) noexcept nogil:
        """The end of a line that is an instruction; its records go to *row*."""
        cdef uint64_t value = 0, mask = 0, count = 0, width = 0, low, high
        cdef uint64_t lane[LANES]
        cdef opcode_t* opcode
        cdef text_t start
        cdef uint8_t mode
        cdef int lanes, i
        rows[0] = 0
        while is_blank(p[0]):
            p += 1
        p = any_hex(gap(any_hex(p, &value)), &mask)
        p = number(gap(p), &count)
        if p == NULL or mask >> LANES or count > REGISTERS:
            return NULL
        start = gap(skip(p, count))
        if start == NULL or not 97 <= (start[0] | 32) <= 122:
            return NULL
        p = start
        while p[0] > 32:
            p += 1
        if p - start > OPCODE_BYTES:
            return NULL
        opcode = self.slot(start, p - start)
        p = number(gap(p), &count)
        if not opcode.size or p == NULL or count > REGISTERS:
            return NULL
        p = number(gap(skip(p, count)), &width)
        if p == NULL or not ends(p, end):
            return NULL
        lanes = ones(<uint32_t>mask)
        if opcode.access < 0 and width:
            self.on_chip += 1
            return newline(p, end)
        if not width or (not lanes and width <= WIDEST):
            return newline(p, end)
        p = gap(p)
        if width > WIDEST or p == NULL or not 48 <= p[0] <= 50:
            return NULL
        mode = p[0] - 48
        p = self.addresses(p + 1, mode, lanes, lane)
        if p == NULL or not ends(p, end):
            return NULL
        low = high = lane[0]
        for i in range(1, lanes):
            low = lane[i] if lane[i] < low else low
            high = lane[i] if lane[i] > high else high
        if high + (width - 1) < high:
            return NULL
        for i in range(self.windows):
            if low >= self.window[i] and low - self.window[i] < WINDOW:
                self.on_chip += 1
                return newline(p, end)
        rows[0] = self.touch(lane, lanes, width, opcode.access, row)
        return newline(p, end)

    def scan(self, bytes data not None, Py_ssize_t at, record_t[::1] out not None,
             Py_ssize_t row, uint64_t limit):
        """Read instructions from byte *at* on, up to the first line that is none.

        As :meth:`svmcore.traces._text.EventScanner.scan`, but records go to *out* from *row* on,
        at most *limit* lines are read, and none for whose ``ROWS`` records there may be no room.

        Raises
        ------
        InvalidArgumentError
            If *at* or *row* lies outside.
        """
        cdef text_t begin = <text_t>(<char*>data)
        cdef text_t end = begin + len(data)
        cdef text_t p, stop
        cdef Py_ssize_t room = out.shape[0], first = row
        cdef uint64_t lines = 0
        cdef size_t rows = 0
        if not 0 <= at <= len(data) + 1 or not 0 <= row <= room:
            raise InvalidArgumentError(
                f"byte {at}, row {row}: expected 0 to {len(data) + 1}, 0 to {room}"
            )
        if self.windows > WINDOWS:
            return 0, 0, at
        p = begin + at
        with nogil:
            while lines < limit and room - row >= MOST_ROWS and p <= end:
                stop = self.line(p, end, &out[row], &rows)
                if stop == NULL:
                    break
                row += rows
                lines += 1
                p = stop + 1
        return row - first, lines, p - begin
