# cython: language_level=3, freethreading_compatible=True
"""The hot loop: an array of records in, outcomes out, no Python object a record.

Owns nothing: the state is the process's. The GIL is released for a whole chunk.
One thread at a time replays into a process.
"""
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ._faults cimport REASON_NONE, REASON_OK, engine_t
from ._process cimport NOWHERE, Process, arrival_t, ops_t, process_check, touch_t
from ._types cimport (
    E_EXIST,
    E_INVAL,
    KIND_ACCESS,
    KIND_FAULT,
    KIND_MAP,
    KIND_PREFETCH,
    KIND_UNMAP,
    outcome_t,
    record_t,
)
from .policies._kfd cimport (
    LOOK_AHEAD,
    KfdProcess,
    ahead_t,
    kfd_access,
    kfd_deliver_touch,
    kfd_faults,
    kfd_look_ahead,
    kfd_mode,
    kfd_step,
    kfd_t,
)

import numpy as np

from .errors import InvalidArgumentError, OutOfMemoryError
from .records import processor_name

#: What one record did, 40 bytes, C layout.
OUTCOME = np.dtype(
    [
        ("t_ns", "<u8"),  # modelled time when the record was done
        ("page", "<u8"),  # page of a fatal end
        ("moved", "<u4"),  # pages moved
        ("remote", "<u4"),  # page touches answered from another memory
        ("faults", "<u4"),  # faults served
        ("duplicates", "<u4"),  # deliveries dropped as duplicates
        ("code", "<i2"),  # 0 or a negative errno
        ("reason", "u1"),  # number in svmcore._faults.REASONS; 0: not replayed
        ("best", "u1"),  # where the last fault was served from; 255 without one
        ("pad", "<u4"),
    ]
)

cdef enum:
    UNKNOWN = 255
    FATAL_TYPES = 5
    LAST_TYPE = 16

cdef struct replay_t:
    uint8_t by           # processor of records that name none
    bint raw             # recorded faults are delivered once
    bint by_arrival      # a record is not handled before its own time
    uint64_t t0          # time of the first record
    arrival_t* faults    # raw: room for one delivery, and for what it met
    touch_t* met


cdef inline uint32_t narrow(uint64_t value) noexcept nogil:
    return <uint32_t>value if value < 0xffffffffU else 0xffffffffU


cdef inline uint32_t fault_type(const record_t* record) noexcept nogil:
    """The hardware's type of a recorded fault, where it is fatal."""
    return record.peer if FATAL_TYPES <= record.peer <= LAST_TYPE else 0


cdef inline void take(outcome_t* out, const touch_t* a) noexcept nogil:
    out.page = a.page
    out.moved = narrow(a.moved)
    out.remote = narrow(a.remote)
    out.faults = a.faults
    out.duplicates = a.duplicates
    out.code = <int16_t>a.ret
    out.reason = a.reason
    out.best = a.best


cdef inline void wait_for(engine_t* e, const record_t* record, const replay_t* how) noexcept nogil:
    """With arrival times, a record is not handled before its own."""
    if how.by_arrival and record.t_ns > how.t0 and record.t_ns - how.t0 > e.now:
        e.now = record.t_ns - how.t0


cdef inline void pass_time(engine_t* e, const record_t* record, outcome_t* out) noexcept nogil:
    """What the record cost has passed, then the processor computes."""
    e.now += e.cost_ns + (record.dur_ns if record.kind == KIND_ACCESS else 0)
    e.cost_ns = 0
    out.t_ns = e.now


cdef void change(const ops_t* ops, void* state, const record_t* record,
                 outcome_t* out) noexcept nogil:
    """A record that maps, unmaps, advises or prefetches."""
    cdef uint64_t first = record.addr >> 12, last = (record.addr + record.size - 1) >> 12
    cdef int error
    ops.step(state)
    if record.size == 0:
        error = -E_INVAL
    elif record.kind == KIND_MAP:
        error = ops.map(state, first, last)
        if error == -E_EXIST:
            error = 0  # mapped before the replay began
    elif record.kind == KIND_UNMAP:
        error = ops.unmap(state, first, last)
    else:
        error = ops.advise(state, record)
    out.code = <int16_t>error
    out.reason = REASON_NONE if error else REASON_OK


cdef size_t replay(const ops_t* ops, void* state, engine_t* e, uint32_t ngpus,
                   const record_t* records, size_t n, outcome_t* out,
                   const replay_t* how) noexcept nogil:
    """Replay records in order; stops early at one whose processor the machine lacks."""
    cdef size_t i = 0, end, k
    cdef const record_t* record
    cdef uint8_t processor
    cdef uint64_t last
    cdef touch_t one
    cdef arrival_t* faults = how.faults
    cdef touch_t* met = how.met
    while i < n:
        record = records + i
        memset(out + i, 0, sizeof(outcome_t))
        out[i].best = NOWHERE
        if record.kind > KIND_PREFETCH:
            i += 1
            continue
        wait_for(e, record, how)
        processor = how.by if record.proc == UNKNOWN else record.proc
        end = i + 1
        if record.kind > KIND_FAULT:
            change(ops, state, record, out + i)
        elif processor > ngpus:
            return i
        elif how.raw and record.kind == KIND_FAULT and processor:
            # Recorded faults in a row arrive together, as many as the driver takes at once.
            while end < n and end - i < ops.batch and records[end].kind == KIND_FAULT and (
                0 < (how.by if records[end].proc == UNKNOWN else records[end].proc) <= ngpus
            ):
                end += 1
            for k in range(end - i):
                faults[k].page = records[i + k].addr >> 12
                faults[k].ts = records[i + k].t_ns
                faults[k].processor = (
                    how.by if records[i + k].proc == UNKNOWN else records[i + k].proc
                )
                faults[k].access = records[i + k].access
                faults[k].type = fault_type(records + i + k)
            memset(met, 0, (end - i) * sizeof(touch_t))
            ops.step(state)
            ops.deliver(state, faults, <uint32_t>(end - i), met)
            for k in range(end - i):
                memset(out + i + k, 0, sizeof(outcome_t))
                take(out + i + k, met + k)
        else:
            last = record.addr + (record.size - 1 if record.size else 0)
            memset(&one, 0, sizeof(touch_t))
            one.best = NOWHERE
            one.reason = REASON_OK
            ops.touch(state, processor, record.addr >> 12, last >> 12, record.access, &one)
            take(out + i, &one)
        while i < end:
            pass_time(e, records + i, out + i)
            i += 1
    return n


# ---- kfd: no call through the table, ranges looked up ahead ----

cdef inline void kfd_touch(kfd_t* p, const record_t* record, uint8_t processor, uint32_t node,
                           outcome_t* out) noexcept nogil:
    cdef touch_t a
    cdef uint64_t last = record.addr + (record.size - 1 if record.size else 0)
    kfd_access(p, processor, record.addr >> 12, last >> 12, 1 <= record.access <= 2,
               node, &a)
    take(out, &a)


cdef inline void kfd_raw(kfd_t* p, const record_t* record, uint8_t processor, uint32_t node,
                         outcome_t* out) noexcept nogil:
    """One delivery by the driver's exact rules; it may be dropped."""
    cdef touch_t a
    cdef arrival_t fault
    cdef uint64_t version = p.tree_version
    fault.page = record.addr >> 12
    fault.ts = record.t_ns
    fault.processor = processor
    fault.access = record.access
    fault.type = fault_type(record)
    kfd_step(p)
    # Pending work may have taken the range away, or this page from it.
    kfd_deliver_touch(p, &fault, node if version == p.tree_version else 0, &a)
    take(out, &a)


cdef size_t kfd_replay(kfd_t* p, const ops_t* ops, const record_t* records, size_t n,
                       outcome_t* out, const replay_t* how) noexcept nogil:
    """:func:`replay` for a process under kfd."""
    cdef size_t i = 0, end = 0, at, j
    cdef const record_t* record
    cdef uint8_t processor
    cdef ahead_t ahead
    cdef uint64_t before
    cdef uint32_t node, useful = LOOK_AHEAD
    while i < n:
        if i == end:
            end = i + LOOK_AHEAD if n - i > LOOK_AHEAD else n
            # Looking up ranges ahead pays where faults meet ranges that stay as they are.
            kfd_look_ahead(p, records + i, <uint32_t>(end - i), useful >= LOOK_AHEAD // 4, &ahead)
            useful = 0
        if how.raw and not how.by_arrival and records[i].kind == KIND_FAULT:
            j = kfd_faults(p, records + i, end - i, &ahead, i % LOOK_AHEAD, how.by, out + i)
            useful += <uint32_t>j
            i += j
            if i == end:
                continue
        at = i % LOOK_AHEAD
        record = records + i
        # A range made or cut since then: it is looked up when it is needed.
        node = ahead.nodes[at] if ahead.version == p.tree_version else 0
        memset(out + i, 0, sizeof(outcome_t))
        out[i].best = NOWHERE
        if record.kind > KIND_PREFETCH:
            i += 1
            continue
        wait_for(p.engine, record, how)
        if record.kind <= KIND_FAULT:
            processor = how.by if record.proc == UNKNOWN else record.proc
            if processor > p.ngpus:
                return i
            before = p.tree_version
            if how.raw and record.kind == KIND_FAULT and processor:
                kfd_raw(p, record, processor, node, out + i)
                useful += before == p.tree_version
            else:
                kfd_touch(p, record, processor, node, out + i)
                useful += out[i].faults != 0 and processor != 0 and before == p.tree_version
        else:
            change(ops, p, record, out + i)
        pass_time(p.engine, record, out + i)
        i += 1
    return n


def replay_chunk(Process process not None, const record_t[::1] records, outcome_t[::1] outcomes, *,
                 uint8_t by=1, bint raw=False, bint by_arrival=False, uint64_t t0=0):
    """Replay one array of records into a process.

    Parameters
    ----------
    process : Process
        Its state and clock move on.
    records : ndarray, shape (n,), dtype RECORD
        Read in place. Records of recorded outcomes are skipped.
    outcomes : ndarray, shape (n,), dtype OUTCOME
        Written: what each record did.
    by : int
        Processor code of records that name none.
    raw : bool
        Recorded faults are delivered once, by the driver's exact rules; else
        they are touches that are served or fatal.
    by_arrival : bool
        A record is not handled before its own time, counted from *t0*.

    Raises
    ------
    InvalidArgumentError
        If the arrays differ in length, or a record's processor is none of the
        machine; records before it have been replayed.
    OutOfMemoryError
        If there is no room for the raw faults of one delivery; nothing was replayed.

    Complexity
    ----------
    O(sum of windows served), no allocation a record, GIL released.
    """
    cdef replay_t how
    cdef KfdProcess kfd = process if isinstance(process, KfdProcess) else None
    cdef uint32_t ngpus = <uint32_t>len(process.gpus)
    cdef size_t n = records.shape[0], done
    if <size_t>outcomes.shape[0] != n:
        raise InvalidArgumentError(
            f"outcomes of {outcomes.shape[0]} records: expected {n}, as many as records"
        )
    how.by = by
    how.raw = raw
    how.by_arrival = by_arrival
    how.t0 = t0
    how.faults = NULL
    how.met = NULL
    if n == 0:
        return
    if raw and kfd is None:
        how.faults = <arrival_t*>malloc(process.ops.batch * sizeof(arrival_t))
        how.met = <touch_t*>malloc(process.ops.batch * sizeof(touch_t))
        if how.faults == NULL or how.met == NULL:
            free(how.faults)
            free(how.met)
            raise OutOfMemoryError("no memory for a delivery of faults")
    with nogil:
        if kfd is not None:
            kfd_mode(kfd.p)
            done = kfd_replay(kfd.p, process.ops, &records[0], n, &outcomes[0], &how)
        else:
            done = replay(process.ops, process.state, process.engine, ngpus, &records[0], n,
                          &outcomes[0], &how)
    free(how.faults)
    free(how.met)
    process_check(process)
    if done < n:
        processor = by if records[done].proc == UNKNOWN else records[done].proc
        raise InvalidArgumentError(
            f"record {done}: processor {processor_name(processor)}, "
            f"expected one of {', '.join(processor_name(i) for i in range(1 + ngpus))}"
        )
