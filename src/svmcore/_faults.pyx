# cython: language_level=3, freethreading_compatible=True
"""The engine under every policy: effects on residency, counted, costed and logged.

Owns the counters, the event log and the modelled clock of one space. One thread
at a time uses an engine. An effect costs what its residency operation costs.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from ._residency cimport (
    ctz64,
    res_free,
    res_map,
    res_move_in,
    res_move_out,
    res_new,
    res_unmap,
    res_vram_run,
)

from .errors import InvalidArgumentError

#: Names of the reasons, by number.
REASONS = (
    "none",
    "ok",
    "duplicate",
    "permission",
    "no_access",
    "vma_gone",
    "skip_recover",
    "stale",
    "no_range",
    "xnack_off",
    "no_process",
    "no_node",
    "mm_gone",
    "draining",
    "retry_later",
    "migrate_failed",
    "map_failed",
    "no_svm",
    "no_mapping",
    "never_resolves",
    "bus_error",
    "no_memory",
    "out_of_memory",
    "fault_type",
    "invalid_prefetch",
    "prefetch_off",
)


cdef engine_t* engine_new() noexcept nogil:
    cdef engine_t* e = <engine_t*>calloc(1, sizeof(engine_t))
    if e == NULL:
        return NULL
    e.res = res_new()
    if e.res == NULL:
        free(e)
        return NULL
    return e


cdef void engine_free(engine_t* e) noexcept nogil:
    if e != NULL:
        res_free(e.res)
        free(e.events)
        free(e)


cdef void engine_log(engine_t* e, event_kind kind, uint64_t first, uint64_t last, uint8_t source,
                     uint8_t target, uint8_t cause, uint64_t value) noexcept nogil:
    cdef event_t* event
    cdef void* moved
    cdef uint32_t cap
    if not e.recording:
        return
    if e.nevents == e.cap_events:
        cap = e.cap_events * 2 if e.cap_events else 64
        moved = realloc(e.events, <size_t>cap * sizeof(event_t))
        if moved == NULL:
            e.lost_events = True
            return
        e.events = <event_t*>moved
        e.cap_events = cap
    event = e.events + e.nevents
    e.nevents += 1
    event.t_ns = e.now + e.cost_ns
    event.first = first
    event.last = last
    event.value = value
    event.kind = kind
    event.cause = cause
    event.source = source
    event.target = target


cdef void engine_moved(engine_t* e, uint64_t first, uint64_t last, uint8_t source, uint8_t target,
                       trigger_t trigger, uint64_t moved) noexcept nogil:
    e.counters.migration_attempts += 1
    if moved:
        e.counters.migrations += 1
        e.counters.migrated_pages += moved
        if target:
            e.counters.pages_to_device += moved
        else:
            e.counters.pages_to_host += moved
        if trigger == TRIGGER_EVICTION:
            e.counters.evicted_pages += moved
        e.cost_ns += move_ns(&e.costs, source, target, moved)
    engine_log(e, EVENT_MIGRATE, first, last, source, target, <uint8_t>trigger, moved)


cdef void engine_move_in(engine_t* e, uint32_t gpu, uint64_t first, uint64_t last,
                         trigger_t trigger, uint64_t* moved) noexcept nogil:
    moved[0] = res_move_in(e.res, gpu, first, last)
    e.processors[1 + gpu].pages_in += moved[0]
    engine_moved(e, first, last, 0, <uint8_t>(1 + gpu), trigger, moved[0])


cdef int engine_move_out(engine_t* e, uint32_t gpu, uint64_t gpus, uint64_t first, uint64_t last,
                         trigger_t trigger, uint64_t* moved) noexcept nogil:
    moved[0] = <uint64_t>res_move_out(e.res, gpus, first, last)
    e.processors[1 + gpu].pages_out += moved[0]
    engine_moved(e, first, last, <uint8_t>(1 + gpu), 0, trigger, moved[0])
    return 0


cdef void engine_map(engine_t* e, uint32_t gpu, uint64_t first, uint64_t last,
                     bint writable) noexcept nogil:
    cdef uint64_t start = first, end
    cdef bint in_vram = False
    e.counters.maps += 1
    e.cost_ns += e.costs.map_ns
    if e.recording:
        while start <= last:
            end = res_vram_run(e.res, start, last, &in_vram)
            engine_log(e, EVENT_MAP, start, end, 0, <uint8_t>(1 + gpu), in_vram, writable)
            if end == last:
                break
            start = end + 1
    res_map(e.res, gpu, first, last, writable)


cdef void engine_unmap(engine_t* e, uint64_t gpus, uint64_t first, uint64_t last,
                       unmap_t why) noexcept nogil:
    cdef uint32_t gpu
    if gpus == 0:
        return
    e.cost_ns += e.costs.unmap_ns
    while gpus:
        gpu = ctz64(gpus)
        gpus &= gpus - 1
        e.counters.unmaps += 1
        engine_log(e, EVENT_UNMAP, first, last, 0, <uint8_t>(1 + gpu), <uint8_t>why, 0)
        res_unmap(e.res, gpu, first, last)


cdef void take_curve(curve_t* out, object pieces) except *:
    cdef uint32_t k
    out.pieces = len(pieces)
    for k in range(out.pieces):
        first, ns, byte_ns = pieces[k]
        out.first[k] = first / 4096
        out.ns[k] = ns
        out.page_ns[k] = byte_ns * 4096


cdef void engine_costs(engine_t* e, object costs) except *:
    e.costs.fault_ns = int(costs.fault_ns)
    e.costs.batch_ns = int(costs.fault_batch_ns)
    e.costs.in_batch_ns = int(costs.fault_in_batch_ns)
    e.costs.unmap_ns = int(costs.unmap_ns)
    e.costs.map_ns = int(costs.map_ns)
    e.costs.evict_ns = int(costs.evict_ns)
    take_curve(&e.costs.to_device, costs.pieces("to_device"))
    take_curve(&e.costs.to_host, costs.pieces("to_host"))
    take_curve(&e.costs.peer, costs.pieces("peer"))
    e.costs.remote_ns = costs.remote_access_ns
    e.costs.remote_page_ns = 4096e9 / costs.remote_bytes_per_s


def window(page, granularity, start, last):
    """Pages that one fault restores: the aligned block around it, cut to the range.

    The window is ``[ALIGN_DOWN(page, 2**granularity), ALIGN(page + 1, 2**granularity) - 1]``
    clamped to ``[start, last]``.

    Parameters
    ----------
    page : int
        Faulting 4 KiB page number, in ``[start, last]``.
    granularity : int
        log2 of pages, 0 to 63. 9 is 2 MiB.
    start, last : int
        Inclusive page numbers of the range.

    Returns
    -------
    (int, int)
        First and last page, inclusive; never empty.

    Raises
    ------
    InvalidArgumentError
        If the page is outside the range or the granularity outside 0 to 63.

    Complexity
    ----------
    O(1); ``fault_window`` in C, nogil.

    Source
    ------
    KFD fault path, section 10.2; cases ``kfd_d17``, ``kfd_d22``.

    Examples
    --------
    >>> window(1050076, 9, 1048876, 1051875)
    (1049600, 1050111)
    """
    cdef uint64_t first = 0, end = 0
    if not 0 <= start <= page <= last < 1 << 64 or not 0 <= granularity <= 63:
        raise InvalidArgumentError(
            f"window of page {page}, granularity {granularity} in [{start}, {last}]: "
            "expected a page of the range and a granularity of 0 to 63"
        )
    fault_window(page, granularity, start, last, &first, &end)
    return first, end
