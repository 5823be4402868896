# cython: language_level=3, freethreading_compatible=True
"""In which order device memory is given up: strategies over numbered units of it.

Owns the orders and nothing else: what a unit is and how it is evicted is the
policy's. One thread at a time uses an order.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ._residency cimport res_grow

import numpy as np

from .errors import InvalidArgumentError, OutOfMemoryError

#: Words of the strategies, in the order of their numbers.
ORDERS = ("fifo", "lru", "mru", "lfu", "random", "second_chance")


cdef order_t order_of(object word) except *:
    if word not in ORDERS:
        raise InvalidArgumentError(f"eviction {word!r}: expected one of {', '.join(ORDERS)}")
    return <order_t><int>ORDERS.index(word)


cdef evict_t* evict_new(order_t order, uint64_t seed) noexcept nogil:
    cdef evict_t* e = <evict_t*>calloc(1, sizeof(evict_t))
    if e != NULL:
        e.order = order
        e.random = seed
        e.nbuckets = 1
    return e


cdef void evict_free(evict_t* e) noexcept nogil:
    cdef uint32_t gpu
    if e == NULL:
        return
    for gpu in range(MAX_GPUS):
        free(e.tables[gpu])
    free(e.units)
    free(e.buckets)
    free(e)


cdef uint64_t evict_nbytes(const evict_t* e) noexcept nogil:
    cdef uint64_t total = sizeof(evict_t)
    cdef uint32_t gpu
    total += <uint64_t>e.cap_units * sizeof(unit_t) + <uint64_t>e.cap_buckets * sizeof(bucket_t)
    for gpu in range(MAX_GPUS):
        total += <uint64_t>e.cap_table[gpu] * sizeof(uint32_t)
    return total


cdef bint evict_reserve(evict_t* e, uint64_t want, uint32_t ngpus) noexcept nogil:
    cdef uint32_t before = e.cap_units, gpu
    if e.order == ORDER_LFU and not res_grow(
        <void**>&e.buckets, &e.cap_buckets, want + 1, sizeof(bucket_t)
    ):
        return False
    if e.order == ORDER_RANDOM:
        for gpu in range(ngpus):
            if not res_grow(<void**>&e.tables[gpu], &e.cap_table[gpu], want, sizeof(uint32_t)):
                return False
    if not res_grow(<void**>&e.units, &e.cap_units, want, sizeof(unit_t)):
        return False
    if e.cap_units > before:
        memset(e.units + before, 0, <size_t>(e.cap_units - before) * sizeof(unit_t))
    return True


# ---- lists ------------------------------------------------------------------------------

cdef inline void append(evict_t* e, uint32_t unit, uint32_t* first, uint32_t* last) noexcept nogil:
    cdef unit_t* u = e.units + unit
    u.prev = last[0]
    u.next = 0
    if last[0]:
        e.units[last[0]].next = unit
    else:
        first[0] = unit
    last[0] = unit


cdef inline void unlink(evict_t* e, uint32_t unit, uint32_t* first, uint32_t* last) noexcept nogil:
    cdef unit_t* u = e.units + unit
    if u.prev:
        e.units[u.prev].next = u.next
    else:
        first[0] = u.next
    if u.next:
        e.units[u.next].prev = u.prev
    else:
        last[0] = u.prev


# ---- buckets of lfu, in ascending order of uses -------------------------------------------

cdef uint32_t bucket_behind(evict_t* e, uint32_t gpu, uint32_t prev, uint64_t uses) noexcept nogil:
    """The bucket of *uses*, made behind *prev* (0: at the front) when it is missing."""
    cdef uint32_t next = e.buckets[prev].next if prev else e.first[gpu], number
    cdef bucket_t* b
    if next and e.buckets[next].uses == uses:
        return next
    number = e.free_bucket
    if number:
        e.free_bucket = e.buckets[number].next
    else:
        number = e.nbuckets
        e.nbuckets += 1
    b = e.buckets + number
    b.uses = uses
    b.first = b.last = 0
    b.prev = prev
    b.next = next
    if prev:
        e.buckets[prev].next = number
    else:
        e.first[gpu] = number
    if next:
        e.buckets[next].prev = number
    else:
        e.last[gpu] = number
    return number


cdef void drop_bucket(evict_t* e, uint32_t gpu, uint32_t number) noexcept nogil:
    """An empty bucket goes."""
    cdef bucket_t* b = e.buckets + number
    if b.first:
        return
    if b.prev:
        e.buckets[b.prev].next = b.next
    else:
        e.first[gpu] = b.next
    if b.next:
        e.buckets[b.next].prev = b.prev
    else:
        e.last[gpu] = b.prev
    b.next = e.free_bucket
    e.free_bucket = number


cdef void enter_bucket(evict_t* e, uint32_t unit, uint32_t gpu, uint32_t prev,
                       uint64_t uses) noexcept nogil:
    cdef uint32_t number = bucket_behind(e, gpu, prev, uses)
    e.units[unit].place = number
    append(e, unit, &e.buckets[number].first, &e.buckets[number].last)


# ---- operations -------------------------------------------------------------------------

cdef void evict_insert(evict_t* e, uint32_t unit, uint32_t gpu, uint64_t stamp) noexcept nogil:
    cdef unit_t* u = e.units + unit
    u.stamp = stamp
    u.gpu = <uint8_t>(gpu + 1)
    u.used = False
    if e.order == ORDER_RANDOM:
        u.place = e.count[gpu]
        e.tables[gpu][u.place] = unit
    elif e.order == ORDER_LFU:
        enter_bucket(e, unit, gpu, 0, 1)
    else:
        append(e, unit, &e.first[gpu], &e.last[gpu])
    e.count[gpu] += 1


cdef void evict_touch(evict_t* e, uint32_t unit, uint64_t stamp) noexcept nogil:
    cdef unit_t* u = e.units + unit
    cdef uint32_t gpu = u.gpu - 1, old
    if u.gpu == 0:
        return
    if e.order == ORDER_LRU or e.order == ORDER_MRU:
        u.stamp = stamp
        if e.last[gpu] != unit:
            unlink(e, unit, &e.first[gpu], &e.last[gpu])
            append(e, unit, &e.first[gpu], &e.last[gpu])
    elif e.order == ORDER_LFU:
        u.stamp = stamp
        old = u.place
        unlink(e, unit, &e.buckets[old].first, &e.buckets[old].last)
        enter_bucket(e, unit, gpu, old, e.buckets[old].uses + 1)
        drop_bucket(e, gpu, old)
    elif e.order == ORDER_SECOND_CHANCE:
        u.used = True


cdef void evict_remove(evict_t* e, uint32_t unit) noexcept nogil:
    cdef unit_t* u = e.units + unit
    cdef uint32_t gpu = u.gpu - 1, other
    if u.gpu == 0:
        return
    e.count[gpu] -= 1
    if e.order == ORDER_RANDOM:
        other = e.tables[gpu][e.count[gpu]]
        e.tables[gpu][u.place] = other
        e.units[other].place = u.place
    elif e.order == ORDER_LFU:
        unlink(e, unit, &e.buckets[u.place].first, &e.buckets[u.place].last)
        drop_bucket(e, gpu, u.place)
    else:
        unlink(e, unit, &e.first[gpu], &e.last[gpu])
    if e.drawn[gpu] == unit:
        e.drawn[gpu] = 0
    u.gpu = 0


cdef inline uint64_t draw(evict_t* e) noexcept nogil:
    """Next number of the generator (splitmix64)."""
    cdef uint64_t x
    e.random += <uint64_t>0x9E3779B97F4A7C15U
    x = e.random
    x = (x ^ x >> 30) * <uint64_t>0xBF58476D1CE4E5B9U
    x = (x ^ x >> 27) * <uint64_t>0x94D049BB133111EBU
    return x ^ x >> 31


cdef uint32_t evict_victim(evict_t* e, uint32_t gpu) noexcept nogil:
    cdef uint32_t unit
    if e.count[gpu] == 0:
        return 0
    if e.order == ORDER_RANDOM:
        if e.drawn[gpu] == 0:
            e.drawn[gpu] = e.tables[gpu][(draw(e) >> 32) * e.count[gpu] >> 32]
        return e.drawn[gpu]
    if e.order == ORDER_LFU:
        return e.buckets[e.first[gpu]].first
    if e.order == ORDER_MRU:
        return e.last[gpu]
    unit = e.first[gpu]
    if e.order == ORDER_SECOND_CHANCE:
        # Each turn clears a mark, so it ends.
        while e.units[unit].used:
            e.units[unit].used = False
            unlink(e, unit, &e.first[gpu], &e.last[gpu])
            append(e, unit, &e.first[gpu], &e.last[gpu])
            unit = e.first[gpu]
    return unit


# ---- state ------------------------------------------------------------------------------

cdef object evict_pack(evict_t* e):
    """Rows (unit, gpu, stamp, uses), GPU by GPU, each in the order in which it is kept."""
    cdef uint32_t gpu, unit, bucket, i
    rows = []
    for gpu in range(MAX_GPUS):
        if e.order == ORDER_RANDOM:
            for i in range(e.count[gpu]):
                unit = e.tables[gpu][i]
                rows.append((unit, gpu, e.units[unit].stamp, 0))
            continue
        bucket = e.first[gpu] if e.order == ORDER_LFU else 0
        unit = e.buckets[bucket].first if bucket else e.first[gpu]
        while unit:
            rows.append((
                unit, gpu, e.units[unit].stamp,
                e.buckets[bucket].uses if bucket else e.units[unit].used,
            ))
            unit = e.units[unit].next
            if unit == 0 and bucket:
                bucket = e.buckets[bucket].next
                unit = e.buckets[bucket].first if bucket else 0
    return np.array(rows, np.uint64).reshape(-1, 4)


cdef int evict_restore(evict_t* e, object rows, object drawn, uint64_t random) except -1:
    """Fill a new order; the caller has checked that units and GPUs exist and room is reserved."""
    cdef uint32_t unit, gpu
    cdef uint64_t stamp, uses
    for row in rows:
        unit, gpu, stamp, uses = row
        if e.units[unit].gpu:
            raise InvalidArgumentError(f"state: unit {unit} is in two orders, expected one")
        if e.order != ORDER_LFU:
            if uses > 1:
                raise InvalidArgumentError(f"state: unit {unit}: mark {uses}, expected 0 or 1")
            evict_insert(e, unit, gpu, stamp)
            e.units[unit].used = uses != 0
            continue
        if uses < 1 or (e.last[gpu] and e.buckets[e.last[gpu]].uses > uses):
            raise InvalidArgumentError(f"state: unit {unit}: {uses} uses, expected ascending ones")
        e.units[unit].stamp = stamp
        e.units[unit].gpu = <uint8_t>(gpu + 1)
        if e.last[gpu] and e.buckets[e.last[gpu]].uses == uses:
            e.units[unit].place = e.last[gpu]
            append(e, unit, &e.buckets[e.last[gpu]].first, &e.buckets[e.last[gpu]].last)
        else:
            enter_bucket(e, unit, gpu, e.last[gpu], uses)
        e.count[gpu] += 1
    for gpu, unit in enumerate(drawn):
        if unit and (
            gpu >= MAX_GPUS or unit >= e.cap_units or e.units[unit].gpu != gpu + 1
            or e.order != ORDER_RANDOM
        ):
            raise InvalidArgumentError(f"state: unit {unit} drawn for GPU {gpu}, expected its own")
        if gpu < MAX_GPUS:
            e.drawn[gpu] = unit
    e.random = random
    return 0


cdef class EvictionOrder:
    """One order of eviction by itself, as policies use it; for tests and for the curious.

    Parameters
    ----------
    word : str
        ``fifo``, ``lru``, ``mru``, ``lfu``, ``random`` or ``second_chance``.
    seed : int
        Of the generator of ``random``.
    units : int
        Units are numbered 1 to *units*.

    Raises
    ------
    InvalidArgumentError
        For an unknown word.
    OutOfMemoryError
        If the state cannot be allocated.

    Complexity
    ----------
    O(1) an operation; ``second_chance`` amortised.

    Examples
    --------
    >>> order = EvictionOrder("lru", units=3)
    >>> for unit in (1, 2, 3):
    ...     order.insert(unit, gpu=0, stamp=unit)
    >>> order.touch(1, stamp=4)
    >>> order.victim(0)
    2
    """

    cdef evict_t* e
    cdef readonly uint32_t units

    def __cinit__(self, word, *, uint64_t seed=0, uint32_t units=64):
        self.e = evict_new(order_of(word), seed)
        self.units = units
        if self.e == NULL or not evict_reserve(self.e, <uint64_t>units + 1, MAX_GPUS):
            raise OutOfMemoryError("no memory for an eviction order")

    def __dealloc__(self):
        evict_free(self.e)

    cdef uint32_t known(self, unit) except 0:
        if not 1 <= unit <= self.units:
            raise InvalidArgumentError(f"unit {unit}: expected 1 to {self.units}")
        return unit

    def insert(self, unit, gpu, stamp):
        """The unit takes memory of the GPU; it must be in no order."""
        cdef uint32_t number = self.known(unit)
        if not 0 <= gpu < MAX_GPUS or self.e.units[number].gpu:
            raise InvalidArgumentError(
                f"unit {unit}, GPU {gpu}: expected a unit in no order, a GPU below {MAX_GPUS}"
            )
        evict_insert(self.e, number, gpu, stamp)

    def touch(self, unit, stamp):
        """It is used; nothing happens to one in no order."""
        evict_touch(self.e, self.known(unit), stamp)

    def remove(self, unit):
        """It gives its memory back; nothing happens to one in no order."""
        evict_remove(self.e, self.known(unit))

    def victim(self, gpu):
        """What goes next on the GPU, None when it holds nothing."""
        if not 0 <= gpu < MAX_GPUS:
            raise InvalidArgumentError(f"GPU {gpu}: expected 0 to {MAX_GPUS - 1}")
        return evict_victim(self.e, gpu) or None

    def copy(self):
        """An order in the same state."""
        cdef EvictionOrder other = EvictionOrder(
            ORDERS[<int>self.e.order], units=self.units
        )
        evict_restore(other.e, evict_pack(self.e), [self.e.drawn[i] for i in range(MAX_GPUS)],
                      self.e.random)
        return other
