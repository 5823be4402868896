# cython: language_level=3, freethreading_compatible=True
"""The hot loop: an array of records in, outcomes out, no Python object a record.

Owns nothing: the state is the process's. The GIL is released for a whole chunk.
One thread at a time replays into a process.
"""
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from ._faults cimport REASON_DUPLICATE, REASON_NONE, REASON_OK
from ._types cimport E_EXIST, E_INVAL, outcome_t, record_t
from .policies._kfd cimport (
    ATTR_NO_ACCESS,
    ATTR_PREFETCH,
    KfdProcess,
    access_t,
    attr_t,
    fault_t,
    kfd_access,
    kfd_deliver,
    kfd_look_ahead,
    kfd_mmap,
    kfd_mode,
    kfd_munmap,
    kfd_set_attr,
    kfd_step,
    kfd_t,
)

import numpy as np

from .errors import InvalidArgumentError
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

cdef enum record_kind:
    KIND_ACCESS = 0
    KIND_FAULT = 1
    KIND_MAP = 2
    KIND_UNMAP = 3
    KIND_ADVISE = 4
    KIND_PREFETCH = 5
    UNKNOWN = 255
    AHEAD = 32             # records whose ranges are looked up together
    VMA_READ_WRITE = 1 + 3  # a code of policies._kfd: anonymous memory, read and write

cdef struct replay_t:
    uint8_t by           # processor of records that name none
    bint raw             # recorded faults are delivered once
    bint by_arrival      # a record is not handled before its own time
    uint64_t t0          # time of the first record


cdef inline uint32_t narrow(uint64_t value) noexcept nogil:
    return <uint32_t>value if value < 0xffffffffU else 0xffffffffU


cdef uint32_t location(kfd_t* p, uint8_t processor) noexcept nogil:
    if processor == 0:
        return 0
    return p.gpus[processor - 1].id if processor <= p.ngpus else 0xffffffffU


cdef int advise(kfd_t* p, const record_t* record) noexcept nogil:
    """An attribute of the record on whole pages; the driver's own result."""
    cdef attr_t attr
    cdef bint refused
    cdef uint64_t first = record.addr >> 12
    cdef uint64_t end = (record.addr + record.size + 4095) >> 12
    attr.kind = ATTR_PREFETCH if record.kind == KIND_PREFETCH else record.access
    attr.value = location(p, record.peer) if attr.kind <= ATTR_NO_ACCESS else record.value
    return kfd_set_attr(p, first << 12, (end - first) << 12, &attr, 1, 0, &refused)


cdef inline void touch(kfd_t* p, const record_t* record, uint8_t processor, uint32_t node,
                       outcome_t* out) noexcept nogil:
    cdef access_t a
    cdef uint64_t last = record.addr + (record.size - 1 if record.size else 0)
    kfd_access(p, processor, record.addr >> 12, last >> 12, 1 <= record.access <= 2,
               node, &a)
    out.page = a.page
    out.moved = narrow(a.moved)
    out.remote = narrow(a.remote)
    out.faults = a.faults
    out.duplicates = a.duplicates
    out.code = <int16_t>a.ret
    out.reason = a.reason
    out.best = a.best


cdef inline void deliver(kfd_t* p, const record_t* record, uint8_t processor, uint32_t node,
                         outcome_t* out) noexcept nogil:
    """One delivery by the driver's exact rules; it may be dropped."""
    cdef fault_t f
    cdef uint64_t before = p.engine.counters.migrated_pages
    kfd_step(p)
    kfd_deliver(p, processor - 1, record.addr >> 12, 1 <= record.access <= 2, record.t_ns, node,
                &f)
    out.page = record.addr >> 12
    out.moved = narrow(p.engine.counters.migrated_pages - before)
    out.code = <int16_t>f.ret
    out.reason = f.reason
    out.best = f.best
    out.faults = f.reason == REASON_OK
    out.duplicates = f.reason == REASON_DUPLICATE


cdef size_t replay(kfd_t* p, const record_t* records, size_t n, outcome_t* out,
                   const replay_t* how) noexcept nogil:
    """Replay records in order; stops early at one whose processor the machine lacks."""
    cdef size_t i
    cdef const record_t* record
    cdef uint8_t processor
    cdef int error
    cdef uint64_t pages[AHEAD]
    cdef uint32_t nodes[AHEAD]
    cdef uint64_t version = p.tree_version, before
    cdef size_t ahead = 0, j
    cdef uint32_t node, useful = AHEAD
    for i in range(n):
        record = records + i
        if i == ahead:
            ahead = i + AHEAD if n - i > AHEAD else n
            for j in range(ahead - i):
                pages[j] = records[i + j].addr >> 12
            # Looking up ranges ahead pays where faults meet ranges that stay as they are.
            kfd_look_ahead(p, pages, <uint32_t>(ahead - i), useful >= AHEAD // 4, nodes)
            version = p.tree_version
            useful = 0
        # A range made or cut since then: it is looked up when it is needed.
        node = nodes[i % AHEAD] if version == p.tree_version else 0
        memset(out + i, 0, sizeof(outcome_t))
        out[i].best = UNKNOWN
        if record.kind > KIND_PREFETCH:
            continue
        if how.by_arrival and record.t_ns > how.t0 and record.t_ns - how.t0 > p.engine.now:
            p.engine.now = record.t_ns - how.t0
        if record.kind <= KIND_FAULT:
            processor = how.by if record.proc == UNKNOWN else record.proc
            if processor > p.ngpus:
                return i
            before = p.tree_version
            if how.raw and record.kind == KIND_FAULT and processor:
                deliver(p, record, processor, node, out + i)
                useful += before == p.tree_version
            else:
                touch(p, record, processor, node, out + i)
                useful += out[i].faults != 0 and processor != 0 and before == p.tree_version
        else:
            kfd_step(p)
            error = 0
            if record.size == 0:
                error = -E_INVAL
            elif record.kind == KIND_MAP:
                error = kfd_mmap(p, record.addr >> 12, (record.addr + record.size - 1) >> 12,
                                 VMA_READ_WRITE)
                if error == -E_EXIST:
                    error = 0  # mapped before the replay began
            elif record.kind == KIND_UNMAP:
                error = kfd_munmap(p, record.addr >> 12, (record.addr + record.size - 1) >> 12)
            else:
                error = advise(p, record)
            out[i].code = <int16_t>error
            out[i].reason = REASON_NONE if error else REASON_OK
        # What it cost has passed, then the processor computes.
        p.engine.now += p.engine.cost_ns + (
            record.dur_ns if record.kind == KIND_ACCESS else 0
        )
        p.engine.cost_ns = 0
        out[i].t_ns = p.engine.now
    return n


def replay_chunk(KfdProcess process, const record_t[::1] records, outcome_t[::1] outcomes, *,
                 uint8_t by=1, bint raw=False, bint by_arrival=False, uint64_t t0=0):
    """Replay one array of records into a process.

    Parameters
    ----------
    process : KfdProcess
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

    Complexity
    ----------
    O(sum of windows served), no allocation a record, GIL released.
    """
    cdef replay_t how
    cdef size_t n = records.shape[0], done
    if <size_t>outcomes.shape[0] != n:
        raise InvalidArgumentError(
            f"outcomes of {outcomes.shape[0]} records: expected {n}, as many as records"
        )
    how.by = by
    how.raw = raw
    how.by_arrival = by_arrival
    how.t0 = t0
    if n == 0:
        return
    with nogil:
        kfd_mode(process.p)
        done = replay(process.p, &records[0], n, &outcomes[0], &how)
    if done < n:
        processor = by if records[done].proc == UNKNOWN else records[done].proc
        raise InvalidArgumentError(
            f"record {done}: processor {processor_name(processor)}, "
            f"expected one of {', '.join(processor_name(i) for i in range(1 + process.p.ngpus))}"
        )
