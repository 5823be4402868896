# cython: language_level=3, freethreading_compatible=True
"""Lines of text to numbers, a block at a time, without a Python object a line.

:class:`LineForm` reads lines of one form into columns of numbers; any reader may use it.
:class:`EventScanner` and :class:`FaultScanner` read KFD events and nvidia-uvm messages into
records. All three read what is well formed and stop before the first line that is not: that
line is the reader's, whose careful Python code repairs it, refuses it by name, or reads it after
all (a number may have more leading zeros than are worth a fast path). So a fast path never
decides that a line is wrong, and no message of an error exists twice.

The GIL is released for a whole block. One thread at a time uses a scanner. A block is a
``bytes`` object, which ends with a NUL behind its last byte: no loop needs a second check for
the end of the data, as a NUL is part of no well-formed line.
"""
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from .._types cimport record_t
from ._digits cimport dec32, decimal, hex32, hexadecimal, line_end, prefixed, text_t

from ..errors import InvalidArgumentError

#: Parts of a :class:`LineForm`, see there.
DEC, HEX, PREFIXED, NUMBER, TEXT, GAP, OPTIONAL, COMMENT = range(1, 9)
#: Value of a column of a line that ends before it.
MISSING = (1 << 64) - 1

cdef enum part_code:
    P_LITERAL = 0
    P_DEC = 1
    P_HEX = 2
    P_PREFIXED = 3
    P_NUMBER = 4
    P_TEXT = 5
    P_GAP = 6
    P_OPTIONAL = 7
    P_COMMENT = 8
    P_WORD = 9

cdef enum limits:
    PARTS = 64
    WORD_BYTES = 16
    GPUS = 64
    PROCESSES = 1024   # told apart for a note
    PROCESS_SLOTS = 2048
    TRIGGERS = 256
    CPU = 0
    UNKNOWN = 255
    FATAL_TYPES = 5         # of NVIDIA's faults, first and last
    LAST_TYPE = 16
    UNDEFINED = 0xFFFFFFFF
    PAGE_SHIFT = 12
    ACCESS_UNKNOWN = 4

cdef enum kinds:
    KIND_FAULT = 1
    KIND_FAULT_END = 16
    KIND_MIGRATE = 17
    KIND_EVICT = 18
    KIND_UNMAP_GPU = 19
    KIND_QUEUE_EVICT = 20
    KIND_QUEUE_RESTORE = 21
    KIND_DROPPED = 22
    KIND_OTHER = 23
    KIND_BATCH = 24

cdef uint64_t PAGES = <uint64_t>1 << (64 - PAGE_SHIFT)


# ---- lines of one form -----------------------------------------------------------------

cdef struct part_t:
    int code
    int column       # where its number goes
    uint8_t stop     # TEXT: byte that ends it
    const uint8_t* bytes_  # LITERAL
    size_t size

cdef struct word_t:
    uint64_t low
    uint64_t high
    uint64_t code
    bint used


cdef inline size_t word_slot(uint64_t low, uint64_t high, size_t mask) noexcept nogil:
    cdef uint64_t mixed = low ^ (high * <uint64_t>0x9E3779B97F4A7C15u)
    mixed *= <uint64_t>0xFF51AFD7ED558CCDu
    return <size_t>(mixed >> 32) & mask


@cython.final
cdef class LineForm:
    """Lines of one form, read into columns of numbers.

    Invariant: ``columns`` parts have a column, numbered in their order.

    Parameters
    ----------
    *parts : bytes, int or dict of bytes to int
        What a line is made of, at most 64 parts:

        ``b"..."``    these bytes
        ``DEC``       a decimal number of at most 19 digits (a column)
        ``HEX``       a hex number of at most 16 digits, no ``0x`` (a column)
        ``PREFIXED``  a hex number behind ``0x`` (a column)
        ``NUMBER``    decimal, or hex behind ``0x`` (a column)
        ``TEXT``      bytes up to the first byte of the literal right behind it, else to the end
                      of the line; the column is ``offset << 32 | length`` within the block
        ``{...}``     one of these words of letters, digits and ``_``, at most 16 bytes, as
                      its number (a column)
        ``GAP``       any number of spaces and tabs, none too
        ``OPTIONAL``  the line may end here; columns behind it are ``MISSING`` then
        ``COMMENT``   anything from a ``#`` to the end of the line, or nothing

    blanks : bool, default False
        Allow any white space at the end of a line, not only the ``\\r`` of ``\\r\\n``.

    Raises
    ------
    InvalidArgumentError
        If a part is none of these, or there are too many.

    Examples
    --------
    Lines of ``valgrind --tool=lackey --trace-mem=yes``, some 3 million and more a second;
    what is no such line (``==123== ...``) is left to the caller:

    >>> import numpy as np
    >>> lackey = LineForm(GAP, {b"I": 0, b"L": 1, b"S": 2, b"M": 3}, GAP, HEX, b",", DEC)
    >>> data = b"I  0401ab70,3\\n L 1fff000768,8\\n==7== end\\n S 10,4"
    >>> out = np.empty((lackey.columns, 4), "<u8")
    >>> rows, at = lackey.scan(data, 0, out)
    >>> rows, data[at:at + 5]
    (2, b'==7==')
    >>> out[:, :rows].tolist()
    [[0, 1], [67218288, 137422178152], [3, 8]]
    >>> at = data.index(b"\\n", at) + 1           # the caller has dealt with the odd line
    >>> rows, at = lackey.scan(data, at, out, rows)
    >>> rows, at > len(data)                     # behind the end: no line is left
    (1, True)

    Lines of ``perf script`` (``comm pid/tid  seconds.micros: event: addr ip``):

    >>> perf = LineForm(GAP, TEXT, b" ", GAP, DEC, b"/", DEC, GAP, DEC, b".", DEC, b":", GAP,
    ...                 TEXT, b":", GAP, HEX, GAP, HEX)
    >>> line = b" stencil 23342/23342   834.010368: page-faults:  55d694b35020 ffffffff817554ea"
    >>> out = np.empty((perf.columns, 1), "<u8")
    >>> perf.scan(line, 0, out)[0], hex(out[6, 0])
    (1, '0x55d694b35020')
    """

    cdef readonly Py_ssize_t columns
    cdef part_t parts[PARTS]
    cdef int count
    cdef bint blanks
    cdef word_t* tables[PARTS]
    cdef size_t masks[PARTS]
    cdef tuple kept

    def __cinit__(self, *parts, bint blanks=False):
        cdef part_t* part
        self.count = 0
        self.columns = 0
        self.blanks = blanks
        self.kept = parts
        if len(parts) > PARTS:
            raise InvalidArgumentError(f"{len(parts)} parts: expected at most {PARTS}")
        for given in parts:
            part = &self.parts[self.count]
            self.tables[self.count] = NULL
            part.column = <int>self.columns
            part.stop = 10
            if isinstance(given, bytes) and given:
                part.code = P_LITERAL
                part.bytes_ = <const uint8_t*>(<char*>given)
                part.size = len(given)
                if self.count and self.parts[self.count - 1].code == P_TEXT:
                    self.parts[self.count - 1].stop = part.bytes_[0]
            elif isinstance(given, dict) and given:
                part.code = P_WORD
                self.columns += 1
                self.add_words(given)
            elif isinstance(given, int) and P_DEC <= given <= P_COMMENT:
                part.code = given
                self.columns += given <= P_TEXT
            else:
                raise InvalidArgumentError(
                    f"part {given!r}: expected bytes, a dict of words or a constant of _text"
                )
            self.count += 1

    def __dealloc__(self):
        for i in range(self.count):
            free(self.tables[i])

    cdef int add_words(self, dict words) except -1:
        cdef size_t size = 4, slot
        cdef uint64_t key[2]
        cdef word_t* table
        while size < 2 * <size_t>len(words):
            size *= 2
        table = <word_t*>calloc(size, sizeof(word_t))
        if table == NULL:
            raise MemoryError
        # From here on __dealloc__ frees it: the part counts, whatever follows.
        self.tables[self.count] = table
        self.masks[self.count] = size - 1
        for word, code in words.items():
            if (not isinstance(word, bytes) or not 0 < len(word) <= WORD_BYTES
                    or not 0 <= code <= MISSING):
                free(table)
                self.tables[self.count] = NULL
                raise InvalidArgumentError(
                    f"word {word!r}: expected 1 to {WORD_BYTES} bytes and a number of 64 bits"
                )
            key[0] = key[1] = 0
            memcpy(key, <char*>word, len(word))
            slot = word_slot(key[0], key[1], size - 1)
            while table[slot].used:
                slot = (slot + 1) & (size - 1)
            table[slot].used = True
            table[slot].low, table[slot].high, table[slot].code = key[0], key[1], code
        return 0

    cdef inline text_t word(self, int part, text_t p, uint64_t* value) noexcept nogil:
        cdef uint64_t key[2]
        cdef size_t size = 0, slot, mask = self.masks[part]
        cdef word_t* table = self.tables[part]
        cdef uint8_t c
        key[0] = key[1] = 0
        while True:
            c = p[size]
            if not (48 <= c <= 57 or 97 <= (c | 32) <= 122 or c == 95):
                break
            if size == WORD_BYTES:
                return NULL
            (<uint8_t*>key)[size] = c
            size += 1
        slot = word_slot(key[0], key[1], mask)
        while table[slot].used:
            if table[slot].low == key[0] and table[slot].high == key[1]:
                value[0] = table[slot].code
                return p + size
            slot = (slot + 1) & mask
        return NULL

    cdef inline text_t tail(self, text_t p, text_t end) noexcept nogil:
        """The end of the line where nothing that counts is left of it, else NULL."""
        if self.blanks:
            return line_end(p, end)
        if p[0] == 13:
            p += 1
        return p if p[0] == 10 or p == end else NULL

    cdef text_t line(self, text_t data, text_t p, text_t end, uint64_t* out,
                     size_t stride) noexcept nogil:
        """The end of a line that has the form; its numbers go to *out*, *stride* apart."""
        cdef int i, column
        cdef uint64_t value
        cdef part_t* part
        cdef text_t start
        for i in range(self.count):
            part = &self.parts[i]
            value = 0
            if part.code == P_LITERAL:
                if part.size == 1:
                    if p[0] != part.bytes_[0] or p == end:
                        return NULL
                elif <size_t>(end - p) < part.size or memcmp(p, part.bytes_, part.size):
                    return NULL
                p += part.size
                continue
            elif part.code == P_GAP:
                while p[0] == 32 or p[0] == 9:
                    p += 1
                continue
            elif part.code == P_OPTIONAL:
                start = p
                if p[0] == 35 and self.parts[self.count - 1].code == P_COMMENT:
                    while start[0] != 10 and start != end:
                        start += 1
                start = self.tail(start, end)
                if start != NULL:
                    for column in range(part.column, <int>self.columns):
                        out[column * stride] = <uint64_t>-1
                    return start
                continue
            elif part.code == P_COMMENT:
                if p[0] == 35:
                    while p[0] != 10 and p != end:
                        p += 1
                continue
            elif part.code == P_DEC or (part.code == P_NUMBER and not prefixed(p)):
                p = decimal(p, &value)
            elif part.code == P_HEX:
                p = hexadecimal(p, &value)
            elif part.code == P_NUMBER or part.code == P_PREFIXED:
                p = hexadecimal(p + 2, &value) if prefixed(p) else NULL
            elif part.code == P_WORD:
                p = self.word(i, p, &value)
            else:
                start = p
                while p[0] != part.stop and p[0] != 10 and p[0] != 13 and p != end:
                    p += 1
                value = <uint64_t>(start - data) << 32 | <uint64_t>(p - start)
            if p == NULL:
                return NULL
            out[part.column * stride] = value
        return self.tail(p, end)

    def scan(self, bytes data not None, Py_ssize_t at, uint64_t[:, ::1] out not None,
             Py_ssize_t row=0):
        """Read lines from byte *at* on, up to the first that has another form.

        Parameters
        ----------
        data : bytes
            Lines, joined by newlines, without the last newline; below 4 GiB.
        at : int
            Where a line begins.
        out : ndarray, shape (columns, n), dtype uint64
            Line *i* of those read goes to ``out[:, row + i]``.
        row : int, default 0
            First column of *out* to be written.

        Returns
        -------
        rows : int
            Lines read.
        at : int
            Where the first line begins that was not read: it has another form, or *out* is
            full. ``len(data) + 1`` where no line is left.

        Raises
        ------
        InvalidArgumentError
            If *at* or *row* lies outside, or *out* has another number of columns.

        Complexity
        ----------
        O(bytes), no allocation.
        """
        cdef text_t begin = <text_t>(<char*>data)
        cdef text_t end = begin + len(data)
        cdef text_t p, stop
        cdef size_t rows = 0, room, stride = out.shape[1]
        if (out.shape[0] != self.columns or not 0 <= at <= len(data) + 1
                or not 0 <= row <= out.shape[1]):
            raise InvalidArgumentError(
                f"byte {at} of {len(data)}, row {row} of {out.shape[1]}, {out.shape[0]} columns: "
                f"expected places inside and {self.columns} columns"
            )
        room = stride - row
        if not room or not self.columns:
            return 0, at
        p = begin + at
        with nogil:
            while rows < room and p <= end:
                stop = self.line(begin, p, end, &out[0, row] + rows, stride)
                if stop == NULL:
                    break
                rows += 1
                p = stop + 1
        return rows, p - begin


cdef int check_place(bytes data, Py_ssize_t at) except -1:
    if not 0 <= at <= len(data) + 1:
        raise InvalidArgumentError(f"byte {at} of {len(data)}: expected a byte of the data")
    return 0


# ---- KFD events ------------------------------------------------------------------------

# A migration that started and has not ended.
cdef struct move_t:
    uint64_t t_ns
    uint64_t addr
    uint64_t size
    uint32_t pid
    uint32_t source    # GPU ids as printed
    uint32_t target
    uint32_t trigger
    int32_t older      # neighbours in the order of their starts, -1 at the ends
    int32_t newer
    int32_t chain      # next in the same bucket, or on the free list
    uint8_t proc
    uint8_t peer

# One event, as the lines tell it.
cdef struct event_t:
    int number
    uint64_t t_ns
    uint64_t addr
    uint64_t size
    uint64_t pid
    uint64_t gpu
    uint64_t source
    uint64_t target
    uint64_t trigger
    uint64_t value     # flag or count
    int32_t error
    bint has_error
    bint has_gpu       # the processor of the event; else it is unknown


# Causes as the runtime names them; each stands at its number (include/uapi/linux/kfd_ioctl.h).
cdef const char** MIGRATE_CAUSES = [
    b"PREFETCH ", b"PAGEFAULT_GPU ", b"PAGEFAULT_CPU ", b"TTM_EVICTION ",
]
cdef const char** UNMAP_CAUSES = [b"MMU_NOTIFY ", b"MMU_NOTIFY_MIGRATE ", b"UNMAP_FROM_CPU "]
cdef const char** QUEUE_CAUSES = [
    b"SVM ", b"USERPTR ", b"TTM ", b"SUSPEND ", b"CRIU_CHECKPOINT ", b"CRIU_RESTORE ",
]


cdef inline text_t after(text_t p, const char* word) noexcept nogil:
    """The byte behind *word*, NULL where it does not stand here; NULL for NULL."""
    if p == NULL:
        return NULL
    while word[0]:
        if p[0] != <uint8_t>word[0]:
            return NULL
        p += 1
        word += 1
    return p


cdef inline text_t one_of(text_t p, int count, const char** known, uint64_t* value) noexcept nogil:
    """The byte behind one of some words, whose place among them is *value*."""
    cdef int i
    cdef text_t stop
    for i in range(count):
        stop = after(p, known[i])
        if stop != NULL:
            value[0] = i
            return stop
    return NULL


cdef inline text_t choice(text_t p, const char* no, const char* yes,
                          uint64_t* value) noexcept nogil:
    """The byte behind one of two words; *value* is 1 for *yes*."""
    cdef text_t stop = after(p, no)
    value[0] = stop == NULL
    return after(p, yes) if stop == NULL else stop


cdef inline text_t agent(text_t p, uint64_t* gpu) noexcept nogil:
    """The byte behind ``CPU`` (0) or ``GPUn(0xHANDLE)`` (n + 1)."""
    cdef uint64_t handle
    cdef text_t digits, stop = after(p, b"CPU")
    gpu[0] = 0
    if stop != NULL:
        return stop
    p = after(p, b"GPU")
    if p == NULL:
        return NULL
    # Three digits are more than any machine has, and never the number of none.
    digits = p
    p = decimal(p, gpu)
    if p == NULL or p - digits > 3:
        return NULL
    gpu[0] += 1
    p = after(p, b"(0x")
    if p == NULL:
        return NULL
    return after(hexadecimal(p, &handle), b")")


@cython.final
cdef class EventScanner:
    """KFD events as records: lines to events, GPU ids to indices, starts to their ends.

    Invariant: the starts under way are at most *limit*, in a list from the oldest to the
    newest and, by what a start and its end have in common, in a hash table.

    Parameters
    ----------
    limit : int
        Starts that may be under way at once, at least 1; the oldest is given out without an
        end where one more comes.
    numbered : bool, default False
        GPU ids are numbers of processors (GPU *i* is ``i + 1``), not the driver's own.
    """

    cdef move_t* moves
    cdef int32_t* buckets
    cdef size_t mask
    cdef int32_t free_, oldest, newest
    cdef uint32_t ids[GPUS]
    cdef size_t gpus, processes
    cdef uint64_t slots[PROCESS_SLOTS]  # pid + 1; 0 is empty
    cdef uint64_t last_pid              # pid + 1 of the last event
    cdef bint numbered
    #: Events met: restored, rescheduled, unpaired_starts, unpaired_ends.
    cdef readonly uint64_t restored
    cdef readonly uint64_t rescheduled
    cdef readonly uint64_t unpaired_starts
    cdef readonly uint64_t unpaired_ends

    def __cinit__(self, int limit, bint numbered=False):
        cdef size_t size = 4
        self.numbered = numbered
        if limit < 1:
            raise InvalidArgumentError(f"limit {limit}: expected at least 1")
        while size < 2 * <size_t>limit:
            size *= 2
        self.moves = <move_t*>malloc(limit * sizeof(move_t))
        self.buckets = <int32_t*>malloc(size * sizeof(int32_t))
        if self.moves == NULL or self.buckets == NULL:
            raise MemoryError
        self.mask = size - 1
        for i in range(size):
            self.buckets[i] = -1
        for i in range(limit):
            self.moves[i].chain = i + 1 if i + 1 < limit else -1
        self.free_ = 0
        self.oldest = self.newest = -1

    def __dealloc__(self):
        free(self.moves)
        free(self.buckets)

    @property
    def gpu_ids(self):
        """GPU id of each index, in the order in which they appeared."""
        return [self.ids[i] for i in range(self.gpus)]

    @property
    def process_count(self):
        """Different processes seen, at most 1024."""
        return self.processes

    cdef inline int code(self, uint64_t gpu) noexcept nogil:
        """Processor of a GPU id; a new one where there is room, else -1."""
        cdef size_t i
        if gpu == 0:
            return CPU
        if gpu == UNDEFINED:
            return UNKNOWN
        if self.numbered:
            return <int>gpu if gpu <= GPUS else -1
        for i in range(self.gpus):
            if self.ids[i] == gpu:
                return <int>i + 1
        if self.gpus == GPUS:
            return -1
        self.ids[self.gpus] = <uint32_t>gpu
        self.gpus += 1
        return <int>self.gpus

    cdef inline bint has_room(self, uint64_t gpu) noexcept nogil:
        """Whether :meth:`code` would find or make a processor."""
        cdef size_t i
        if self.numbered:
            return gpu <= GPUS
        if self.gpus < GPUS - 1 or gpu == 0 or gpu == UNDEFINED:
            return True
        for i in range(self.gpus):
            if self.ids[i] == gpu:
                return True
        return False

    def code_of(self, uint64_t gpu):
        """Processor of a GPU id, -1 where there are too many."""
        return self.code(gpu)

    cdef inline void saw(self, uint64_t pid) noexcept nogil:
        cdef size_t slot
        if self.last_pid == pid + 1:
            return
        self.last_pid = pid + 1
        if self.processes == PROCESSES:
            return
        slot = <size_t>((pid * <uint64_t>0x9E3779B97F4A7C15u) >> 40) & (PROCESS_SLOTS - 1)
        while self.slots[slot]:
            if self.slots[slot] == pid + 1:
                return
            slot = (slot + 1) & (PROCESS_SLOTS - 1)
        self.slots[slot] = pid + 1
        self.processes += 1

    cdef inline size_t bucket(self, const event_t* event) noexcept nogil:
        cdef uint64_t mixed = (event.addr >> PAGE_SHIFT) * <uint64_t>0x9E3779B97F4A7C15u
        mixed = (mixed ^ event.size ^ event.pid << 20 ^ event.source << 32 ^ event.target)
        mixed *= <uint64_t>0xFF51AFD7ED558CCDu
        return <size_t>(mixed >> 32) & self.mask

    cdef int32_t take(self, const event_t* event) noexcept nogil:
        """Take the start of the same migration from those under way; -1 where there is none."""
        cdef int32_t* link = &self.buckets[self.bucket(event)]
        cdef int32_t at
        cdef move_t* move
        while link[0] >= 0:
            at = link[0]
            move = &self.moves[at]
            if (move.addr == event.addr and move.size == event.size
                    and move.source == event.source and move.target == event.target
                    and move.pid == event.pid):
                link[0] = move.chain
                if move.older >= 0:
                    self.moves[move.older].newer = move.newer
                else:
                    self.oldest = move.newer
                if move.newer >= 0:
                    self.moves[move.newer].older = move.older
                else:
                    self.newest = move.older
                move.chain = self.free_
                self.free_ = at
                return at
            link = &move.chain
        return -1

    cdef inline void give_up(self, const move_t* move, record_t* row) noexcept nogil:
        """The record of a start without an end."""
        row.t_ns, row.addr, row.size, row.dur_ns = move.t_ns, move.addr, move.size, 0
        row.value = move.trigger | <uint32_t>1 << 28
        row.kind, row.proc, row.peer = KIND_MIGRATE, move.proc, move.peer
        row.access = ACCESS_UNKNOWN
        self.unpaired_starts += 1

    cdef size_t give_up_oldest(self, record_t* row) noexcept nogil:
        """Take the oldest start and give its record."""
        cdef event_t event
        cdef move_t* move = &self.moves[self.oldest]
        event.addr, event.size, event.pid = move.addr, move.size, move.pid
        event.source, event.target = move.source, move.target
        self.take(&event)
        self.give_up(move, row)
        return 1

    cdef size_t start(self, const event_t* event, record_t* row) noexcept nogil:
        cdef size_t rows = 0
        cdef int32_t at = self.take(event)
        cdef move_t* move
        cdef size_t bucket
        if at >= 0:
            self.give_up(&self.moves[at], row)
            rows = 1
        elif self.free_ < 0:
            rows = self.give_up_oldest(row)
        at = self.free_
        move = &self.moves[at]
        self.free_ = move.chain
        move.t_ns, move.addr, move.size = event.t_ns, event.addr, event.size
        move.pid, move.trigger = <uint32_t>event.pid, <uint32_t>event.trigger
        move.source, move.target = <uint32_t>event.source, <uint32_t>event.target
        move.proc, move.peer = <uint8_t>self.code(event.source), <uint8_t>self.code(event.target)
        bucket = self.bucket(event)
        move.chain = self.buckets[bucket]
        self.buckets[bucket] = at
        move.older, move.newer = self.newest, -1
        if self.newest >= 0:
            self.moves[self.newest].newer = at
        else:
            self.oldest = at
        self.newest = at
        return rows

    cdef size_t finish(self, const event_t* event, record_t* row) noexcept nogil:
        cdef int32_t at = self.take(event)
        cdef uint32_t value = <uint32_t>event.trigger, error
        cdef const move_t* move
        if event.has_error:
            error = <uint32_t>(-event.error if event.error < 0 else event.error)
            value |= error << 8 | <uint32_t>1 << 29
            if event.error < 0:
                value |= <uint32_t>1 << 30
        row.addr, row.size, row.kind = event.addr, event.size, KIND_MIGRATE
        row.access = ACCESS_UNKNOWN
        if at < 0:
            self.unpaired_ends += 1
            row.t_ns, row.dur_ns, row.value = event.t_ns, 0, value | <uint32_t>1 << 27
            row.proc = <uint8_t>self.code(event.source)
            row.peer = <uint8_t>self.code(event.target)
            return 1
        move = &self.moves[at]
        row.t_ns, row.value, row.proc, row.peer = move.t_ns, value, move.proc, move.peer
        row.dur_ns = event.t_ns - move.t_ns if event.t_ns > move.t_ns else 0
        return 1

    cdef size_t take_event(self, const event_t* event, record_t* row) noexcept nogil:
        """Rows that an event makes, 0 or 1. Every GPU of it has room."""
        if event.number == 5:
            return self.start(event, row)
        if event.number == 6:
            return self.finish(event, row)
        row.t_ns, row.addr, row.size, row.dur_ns = event.t_ns, event.addr, event.size, 0
        row.proc = <uint8_t>self.code(event.gpu) if event.has_gpu else UNKNOWN
        row.access, row.peer = ACCESS_UNKNOWN, UNKNOWN
        row.value = <uint32_t>event.value
        if event.number == 7:
            row.kind, row.access, row.value = KIND_FAULT, <uint8_t>event.value, 0
        elif event.number == 8:
            row.kind = KIND_FAULT_END
        elif event.number == 9:
            row.kind = KIND_QUEUE_EVICT
        elif event.number == 10:
            row.kind = KIND_QUEUE_RESTORE
            if event.value:
                self.rescheduled += 1
            else:
                self.restored += 1
        elif event.number == 11:
            row.kind = KIND_UNMAP_GPU
        elif event.number == 14:
            row.kind = KIND_DROPPED
        else:
            row.kind, row.value = KIND_OTHER, <uint32_t>event.number
        return 1

    cdef text_t line(self, text_t p, text_t end, event_t* event) noexcept nogil:
        """The end of a well-formed line of an event with fields, which goes to *event*."""
        cdef uint64_t number, pages
        cdef uint8_t key = p[0] | 32
        if 53 <= p[0] <= 57:
            event.number = p[0] - 48
        elif key == 97 or key == 98 or key == 101:
            event.number = key - 87
        else:
            return NULL
        if p[1] != 32:
            return NULL
        p = decimal(p + 2, &event.t_ns)
        if p == NULL or p[0] != 32 or p[1] != 45:
            return NULL
        p = dec32(p + 2, &event.pid)
        if p == NULL or p[0] != 32:
            return NULL
        p += 1
        event.addr = event.size = event.value = 0
        event.has_gpu = event.number != 14
        if event.number == 14:
            p = dec32(p, &event.value)
            return line_end(p, end)
        if event.number == 9 or event.number == 10:
            p = hex32(p, &event.gpu)
            if p == NULL:
                return NULL
            if event.number == 9:
                if p[0] != 32:
                    return NULL
                p = dec32(p + 1, &event.value)
                if p == NULL:
                    return NULL
            elif p[0] == 32 and (p[1] == 48 or p[1] == 82):
                event.value = p[1] == 82
                p += 2
            return line_end(p, end)
        # 5, 6, 7, 8 and b: @PAGE(PAGES or GPU)
        if p[0] != 64:
            return NULL
        p = hexadecimal(p + 1, &number)
        if p == NULL or p[0] != 40 or number >= PAGES:
            return NULL
        p = hexadecimal(p + 1, &pages)
        if p == NULL or p[0] != 41 or p[1] != 32:
            return NULL
        p += 2
        event.addr = number << PAGE_SHIFT
        if event.number == 7 or event.number == 8:
            if pages >> 32:
                return NULL
            event.gpu, event.size = pages, 1 << PAGE_SHIFT
            if event.number == 7 and (p[0] == 82 or p[0] == 87):
                event.value = p[0] == 87
            elif event.number == 8 and (p[0] == 77 or p[0] == 85):
                event.value = p[0] == 77
            else:
                return NULL
            return line_end(p + 1, end)
        if pages >= PAGES or number + pages > PAGES:
            return NULL
        event.size = pages << PAGE_SHIFT
        if event.number == 11:
            p = hex32(p, &event.gpu)
            if p == NULL or p[0] != 32:
                return NULL
            p = dec32(p + 1, &event.value)
            return line_end(p, end)
        p = hex32(p, &event.source)
        if p == NULL or p[0] != 45 or p[1] != 62:
            return NULL
        p = hex32(p + 2, &event.target)
        if p == NULL or p[0] != 32:
            return NULL
        p += 1
        if event.number == 5:
            # Prefetch and preferred location: the records have no room for them.
            p = hex32(p, &number)
            if p == NULL or p[0] != 58:
                return NULL
            p = hex32(p + 1, &number)
            if p == NULL or p[0] != 32:
                return NULL
            p += 1
        p = decimal(p, &event.trigger)
        if p == NULL or event.trigger >= TRIGGERS:
            return NULL
        event.has_error = False
        if event.number == 6 and p[0] == 32 and (p[1] == 45 or 48 <= p[1] <= 57):
            pages = p[1] == 45
            p = decimal(p + 1 + pages, &number)
            if p == NULL or number >= 1 << 16:
                return NULL
            event.has_error = True
            event.error = -<int32_t>number if pages else <int32_t>number
        return line_end(p, end)

    cdef text_t profile_line(self, text_t p, text_t end, event_t* event) noexcept nogil:
        """As :meth:`line`, of the text that the ROCm runtime makes of the same events."""
        cdef uint64_t last
        p = after(p, b"ROCr HMM event: ")
        if p == NULL:
            return NULL
        p = decimal(p, &event.t_ns)
        if p == NULL or p[0] != 32:
            return NULL
        p += 1
        event.addr = event.size = event.value = event.pid = 0
        event.has_gpu, event.has_error = True, False
        if p[0] == 80:  # PAGE_FAULT_START, PAGE_FAULT_END
            p = after(p, b"PAGE_FAULT_")
            if p == NULL:
                return NULL
            if p[0] == 83:
                event.number = 7
                p = choice(after(p, b"START "), b"Read ", b"Write ", &event.value)
            else:
                event.number = 8
                p = choice(after(p, b"END "), b"Map ", b"Migration ", &event.value)
            p = agent(p, &event.gpu)
            if p == NULL or p[0] != 32:
                return NULL
            p = decimal(p + 1, &event.addr)
            event.addr &= ~<uint64_t>0xFFF
            event.size = 1 << PAGE_SHIFT
            return line_end(p, end)
        if p[0] == 77:  # MIGRATE_START, MIGRATE_END
            p = choice(after(p, b"MIGRATE_"), b"START ", b"END ", &last)
            event.number = 5 + <int>last
            p = one_of(p, 4, MIGRATE_CAUSES, &event.trigger)
            p = agent(p, &event.source)
            if p == NULL or p[0] != 45 or p[1] != 62:
                return NULL
            p = agent(p + 2, &event.target)
        elif p[0] == 85:  # UNMAP_FROM_GPU
            event.number = 11
            p = one_of(after(p, b"UNMAP_FROM_GPU "), 3, UNMAP_CAUSES, &event.value)
            p = agent(p, &event.gpu)
        else:
            p = choice(after(p, b"QUEUE_"), b"RESTORE ", b"EVICTION ", &last)
            event.number = 10 - <int>last
            if last:
                p = one_of(p, 6, QUEUE_CAUSES, &event.value)
            return line_end(agent(p, &event.gpu), end)
        p = after(p, b" [0x")
        if p == NULL:
            return NULL
        p = after(hexadecimal(p, &event.addr), b", 0x")
        if p == NULL:
            return NULL
        p = hexadecimal(p, &last)
        # A last byte before the first is a size of 4 GiB or more: known damage, not plain.
        if p == NULL or p[0] != 93 or last < event.addr or last == <uint64_t>-1:
            return NULL
        event.size = last + 1 - event.addr
        return line_end(p + 1, end)

    cdef inline bint fits(self, const event_t* event) noexcept nogil:
        if event.number <= 6:
            return self.has_room(event.source) and self.has_room(event.target)
        return not event.has_gpu or self.has_room(event.gpu)

    def scan(self, bytes data not None, Py_ssize_t at, record_t[::1] out not None,
             bint profile=False):
        """Read lines from byte *at* on, up to the first that is no plain event line.

        Parameters
        ----------
        data : bytes
            Lines, joined by newlines, without the last newline.
        at : int
            Where a line begins.
        out : ndarray, shape (n,), dtype RECORD
            Takes the records; a line makes one at most.
        profile : bool, default False
            The lines are those of the ROCm runtime (``HSA_SVM_PROFILE``).

        Returns
        -------
        rows, lines : int
            Records made and lines read.
        at : int
            Where the first line begins that was not read; ``len(data) + 1`` after the last.

        Raises
        ------
        InvalidArgumentError
            If *at* lies outside the data.

        Complexity
        ----------
        O(bytes), no allocation.
        """
        cdef text_t begin = <text_t>(<char*>data)
        cdef text_t end = begin + len(data)
        cdef text_t p, stop
        cdef size_t rows = 0, lines = 0, room = out.shape[0]
        cdef event_t event
        cdef record_t* row
        check_place(data, at)
        if not room:
            return 0, 0, at
        p = begin + at
        row = &out[0]
        with nogil:
            while rows < room and p <= end:
                stop = self.profile_line(p, end, &event) if profile else self.line(p, end, &event)
                if stop == NULL or not self.fits(&event):
                    break
                self.saw(event.pid)
                rows += self.take_event(&event, row + rows)
                lines += 1
                p = stop + 1
        return rows, lines, p - begin

    def add(self, record_t[::1] out not None, int number, uint64_t t_ns, pid, uint64_t addr,
            uint64_t size, gpu, uint64_t source, uint64_t target, uint64_t trigger, error,
            uint64_t value):
        """Take one event that the careful path read.

        Parameters
        ----------
        out : ndarray, shape (n,), dtype RECORD, n at least 1
            Takes the record.
        number : int
            Event id.
        t_ns, addr, size, source, target, trigger, value : int
            As :class:`~svmcore.traces.kfd_smi.Event` has them, 0 where it has none; *value*
            is what the record carries (for a fault 1 where it writes). :meth:`code_of` has
            found a processor for each GPU.
        pid, gpu, error : int or None

        Returns
        -------
        int
            Records made, 0 or 1.
        """
        cdef event_t event
        event.number, event.t_ns, event.addr, event.size = number, t_ns, addr, size
        event.source, event.target, event.trigger, event.value = source, target, trigger, value
        event.has_gpu, event.gpu = gpu is not None, 0 if gpu is None else gpu
        event.has_error, event.error = error is not None, 0 if error is None else error
        event.pid = 0 if pid is None else pid
        if pid is not None:
            self.saw(event.pid)
        return self.take_event(&event, &out[0])

    def end(self, record_t[::1] out not None):
        """Give out starts that never ended, oldest first, as many as *out* takes; how many."""
        cdef size_t rows = 0, room = out.shape[0]
        while self.oldest >= 0 and rows < room:
            rows += self.give_up_oldest(&out[rows])
        return rows


# ---- messages of the instrumented nvidia-uvm ---------------------------------------------

@cython.final
cdef class FaultScanner:
    """Messages of the instrumented nvidia-uvm driver as records, one a line.

    Invariant: ``t_ns`` is the GPU time of the last fault read, 0 before the first.
    """

    cdef public uint64_t t_ns
    #: Batches that ended with a status other than 0.
    cdef readonly uint64_t failed

    cdef inline text_t page(self, text_t p, uint64_t* value) noexcept nogil:
        return hexadecimal(p + 2 if p[0] == 48 and p[1] == 120 else p, value)

    cdef text_t line(self, text_t p, text_t end, record_t* row) noexcept nogil:
        cdef uint64_t addr = 0, number = 0, first = 0, second = 0
        cdef int i, _
        cdef bint negative
        if 48 <= p[0] <= 57:  # a kernel-log prefix
            while p[0] != 59:
                if p[0] == 10 or p == end:
                    return NULL
                p += 1
            p += 1
        row.t_ns, row.addr, row.size, row.dur_ns, row.value = self.t_ns, 0, 0, 0, 0
        row.kind, row.proc, row.access, row.peer = KIND_BATCH, UNKNOWN, ACCESS_UNKNOWN, UNKNOWN
        if p[0] == 102 and p[1] == 44:  # f,
            p = self.page(p + 2, &addr)
            if p == NULL or p[0] != 44:
                return NULL
            p = decimal(p + 1, &first)
            if p == NULL or p[0] != 44:
                return NULL
            p = decimal(p + 1, &number)
            if p == NULL or p[0] != 44 or not 48 <= p[1] <= 52 or p[2] != 44:
                return NULL
            # prefetch, read, write, atomic weak, atomic strong
            row.access = 3 if p[1] == 48 else (p[1] - 49 if p[1] < 52 else 2)
            if FATAL_TYPES <= number <= LAST_TYPE:
                row.peer = <uint8_t>number
            p += 2
            for _ in range(10):
                if p[0] != 44:
                    return NULL
                p = self.page(p + 1, &number)
                if p == NULL:
                    return NULL
            p = line_end(p, end)
            if p == NULL:
                return NULL
            self.t_ns = first
            row.t_ns, row.addr, row.size = first, addr & ~<uint64_t>0xFFF, 0x1000
            row.kind = KIND_FAULT
            return p
        if (p[0] == 112 or p[0] == 101) and p[1] == 44:  # p, and e,
            row.kind = KIND_MIGRATE if p[0] == 112 else KIND_EVICT
            row.proc = CPU if p[0] == 112 else UNKNOWN
            p = self.page(p + 2, &addr)
            row.addr, row.size = addr & ~<uint64_t>0xFFF, 0x1000
            return line_end(p, end)
        if p[0] == 115:  # s
            return line_end(p + 1 + (p[1] == 44), end)
        if p[0] != 98:  # b
            return NULL
        p += 1
        i = 0
        if p[0] == 44:
            p += 1
        row.value = 1
        while p[0] == 45 or 48 <= p[0] <= 57:
            negative = p[0] == 45
            p = decimal(p + negative, &number)
            if p == NULL:
                return NULL
            if i == 0:
                first = 0 if negative else number
            elif i == 1:
                second = 0 if negative else number
                addr = number  # a status other than 0, of either sign
            i += 1
            if p[0] != 44:
                break
            p += 1
        p = line_end(p, end)
        if p == NULL:
            return NULL
        if i == 2:
            row.dur_ns = first
            self.failed += addr != 0
        elif 28 <= i <= 30:
            row.t_ns, row.dur_ns = first, second
        elif i:
            return NULL
        return p

    def scan(self, bytes data not None, Py_ssize_t at, record_t[::1] out not None):
        """Read lines from byte *at* on, up to the first that is no plain message.

        As :meth:`EventScanner.scan`; each line makes one record.
        """
        cdef text_t begin = <text_t>(<char*>data)
        cdef text_t end = begin + len(data)
        cdef text_t p, stop
        cdef size_t rows = 0, room = out.shape[0]
        cdef record_t* row
        check_place(data, at)
        if not room:
            return 0, 0, at
        p = begin + at
        row = &out[0]
        with nogil:
            while rows < room and p <= end:
                stop = self.line(p, end, row + rows)
                if stop == NULL:
                    break
                rows += 1
                p = stop + 1
        return rows, rows, p - begin
