# cython: language_level=3
"""What ``svmcore/svmcore.h`` declares, for Cython; the header says what each name means.

Nothing here binds to a layout of the compiled modules: a host sees the table of
functions, opaque spaces and structs that begin with their size.
"""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "svmcore/svmcore.h" nogil:
    const uint32_t SVMCORE_ABI
    const char* SVMCORE_CAPSULE
    const uint32_t SVMCORE_STRUCT_MAX
    const uint64_t SVMCORE_NOW
    const uint64_t SVMCORE_NEVER
    const uint8_t SVMCORE_CPU
    const uint8_t SVMCORE_NOWHERE
    const uint32_t SVMCORE_MAX_GPUS
    const uint32_t SVMCORE_LOCATION_SYSTEM
    const uint32_t SVMCORE_LOCATION_UNDEFINED
    const uint32_t SVMCORE_LOCATION_NONE
    uint8_t SVMCORE_GPU(int index)

    cdef enum svmcore_errno:
        SVMCORE_EPERM
        SVMCORE_ENOENT
        SVMCORE_EIO
        SVMCORE_EAGAIN
        SVMCORE_ENOMEM
        SVMCORE_EACCES
        SVMCORE_EFAULT
        SVMCORE_EBUSY
        SVMCORE_EEXIST
        SVMCORE_EINVAL
        SVMCORE_ENOSPC
        SVMCORE_EDEADLK
        SVMCORE_ELOOP
        SVMCORE_EOVERFLOW
        SVMCORE_EOPNOTSUPP
        SVMCORE_EADDRINUSE

    cdef enum svmcore_flag:
        SVMCORE_WRITE
        SVMCORE_QUEUE

    cdef enum svmcore_prot:
        SVMCORE_PROT_NONE
        SVMCORE_PROT_READ
        SVMCORE_PROT_WRITE

    cdef enum svmcore_map_kind:
        SVMCORE_MAP_ANON
        SVMCORE_MAP_FILE
        SVMCORE_MAP_HEAP
        SVMCORE_MAP_STACK
        SVMCORE_MAP_IO
        SVMCORE_MAP_PFNMAP

    cdef enum svmcore_attr_type:
        SVMCORE_ATTR_PREFERRED_LOC
        SVMCORE_ATTR_PREFETCH_LOC
        SVMCORE_ATTR_ACCESS
        SVMCORE_ATTR_ACCESS_IN_PLACE
        SVMCORE_ATTR_NO_ACCESS
        SVMCORE_ATTR_SET_FLAGS
        SVMCORE_ATTR_CLR_FLAGS
        SVMCORE_ATTR_GRANULARITY

    cdef enum svmcore_reason:
        SVMCORE_REASON_NONE
        SVMCORE_REASON_OK
        SVMCORE_REASON_DUPLICATE
        SVMCORE_REASON_PERMISSION
        SVMCORE_REASON_NO_ACCESS
        SVMCORE_REASON_VMA_GONE
        SVMCORE_REASON_SKIP_RECOVER
        SVMCORE_REASON_STALE
        SVMCORE_REASON_NO_RANGE
        SVMCORE_REASON_XNACK_OFF

    cdef enum svmcore_event_kind:
        SVMCORE_EVENT_MIGRATE
        SVMCORE_EVENT_MAP
        SVMCORE_EVENT_UNMAP
        SVMCORE_EVENT_QUEUE
        SVMCORE_EVENT_WARN
        SVMCORE_EVENT_EVICT_OBJECT
        SVMCORE_EVENT_FILTER
        SVMCORE_EVENT_HANG
        SVMCORE_EVENT_BATCH

    cdef enum svmcore_trigger:
        SVMCORE_TRIGGER_PREFETCH
        SVMCORE_TRIGGER_GPU_FAULT
        SVMCORE_TRIGGER_CPU_FAULT
        SVMCORE_TRIGGER_EVICTION
        SVMCORE_TRIGGER_PREFETCHER
        SVMCORE_TRIGGER_ADVICE

    cdef enum svmcore_unmap:
        SVMCORE_UNMAP_NOTIFY
        SVMCORE_UNMAP_NOTIFY_MIGRATE
        SVMCORE_UNMAP_FROM_CPU

    cdef struct svmcore_space:
        pass

    ctypedef struct svmcore_options_t:
        uint32_t size
        uint32_t flags
        const char* machine
        const char* policy
        char* error
        uint64_t error_size
        svmcore_space* neighbour

    ctypedef struct svmcore_attr_t:
        uint32_t type
        uint32_t value

    ctypedef struct svmcore_access_t:
        uint32_t size
        uint16_t flags
        uint8_t by
        uint8_t reason
        uint64_t addr
        uint64_t bytes
        uint64_t t_ns
        uint64_t ready_ns
        uint64_t took_ns
        uint64_t fatal_addr
        uint64_t moved_bytes
        uint64_t remote_pages
        uint32_t faults
        uint32_t duplicates
        int32_t code
        uint8_t served_from
        uint8_t reserved[3]

    ctypedef struct svmcore_fault_t:
        uint32_t size
        uint16_t flags
        uint8_t by
        uint8_t reason
        uint64_t addr
        uint64_t t_ns
        uint64_t timestamp
        uint64_t ready_ns
        uint64_t took_ns
        uint64_t window_addr
        uint64_t window_bytes
        uint64_t moved_bytes
        int32_t code
        uint8_t location
        uint8_t migration
        uint8_t vram_fallback
        uint8_t unregistered

    ctypedef struct svmcore_event_t:
        uint32_t size
        uint8_t kind
        uint8_t cause
        uint8_t source
        uint8_t target
        uint64_t t_ns
        uint64_t addr
        uint64_t bytes
        uint64_t value

    ctypedef int (*svmcore_event_fn)(void* user, const svmcore_event_t* event) noexcept nogil

    ctypedef struct svmcore_counters_t:
        uint32_t size
        uint32_t reserved
        uint64_t faults
        uint64_t duplicate_faults
        uint64_t migrations
        uint64_t migration_attempts
        uint64_t migrated_bytes
        uint64_t bytes_to_device
        uint64_t bytes_to_host
        uint64_t evictions
        uint64_t evicted_bytes
        uint64_t remote_accesses
        uint64_t pages_touched
        uint64_t unmaps
        uint64_t maps
        uint64_t queue_evictions
        uint64_t queue_restores
        uint64_t errors

    ctypedef struct svmcore_info_t:
        uint32_t size
        uint32_t gpus
        uint32_t gpu_id[64]
        uint64_t device_bytes[64]

    ctypedef struct svmcore_api_t:
        uint32_t abi
        uint32_t size
        const char* version
        int (*create)(const svmcore_options_t* options, svmcore_space** space) noexcept nogil
        int (*load)(const char* path, const svmcore_options_t* options,
                    svmcore_space** space) noexcept nogil
        int (*from_object)(void* python, svmcore_space** space) noexcept nogil
        int (*to_object)(svmcore_space* space, void** python) noexcept nogil
        int (*destroy)(svmcore_space* space) noexcept nogil
        int (*save)(svmcore_space* space, const char* path) noexcept nogil
        int (*map)(svmcore_space* space, uint64_t addr, uint64_t bytes, uint32_t prot,
                   uint32_t kind, uint64_t t_ns) noexcept nogil
        int (*unmap)(svmcore_space* space, uint64_t addr, uint64_t bytes,
                     uint64_t t_ns) noexcept nogil
        int (*protect)(svmcore_space* space, uint64_t addr, uint64_t bytes, uint32_t prot,
                       uint64_t t_ns) noexcept nogil
        int (*invalidate)(svmcore_space* space, uint64_t addr, uint64_t bytes,
                          uint64_t t_ns) noexcept nogil
        int (*set_attr)(svmcore_space* space, uint64_t addr, uint64_t bytes,
                        const svmcore_attr_t* attrs, uint32_t count, uint64_t t_ns) noexcept nogil
        int (*get_attr)(svmcore_space* space, uint64_t addr, uint64_t bytes,
                        svmcore_attr_t* attrs, uint32_t count, uint64_t t_ns) noexcept nogil
        int (*prefetch)(svmcore_space* space, uint64_t addr, uint64_t bytes, uint32_t location,
                        uint64_t t_ns) noexcept nogil
        int (*access)(svmcore_space* space, svmcore_access_t* touch) noexcept nogil
        int (*access_many)(svmcore_space* space, svmcore_access_t* touches, uint64_t count,
                           uint64_t* done) noexcept nogil
        int (*fault)(svmcore_space* space, svmcore_fault_t* fault) noexcept nogil
        int (*evict)(svmcore_space* space, uint64_t addr, uint64_t t_ns) noexcept nogil
        int (*step)(svmcore_space* space, uint64_t t_ns) noexcept nogil
        int (*next_event)(svmcore_space* space, uint64_t* t_ns) noexcept nogil
        int (*now)(svmcore_space* space, uint64_t* t_ns) noexcept nogil
        int (*where)(svmcore_space* space, uint64_t addr, uint32_t* processor) noexcept nogil
        int (*counters)(svmcore_space* space, svmcore_counters_t* counters) noexcept nogil
        int (*info)(svmcore_space* space, svmcore_info_t* info) noexcept nogil
        int (*set_event_callback)(svmcore_space* space, svmcore_event_fn callback,
                                  void* user) noexcept nogil
        int (*last_error)(svmcore_space* space, char* text, uint64_t bytes) noexcept nogil
        const char* (*reason_name)(uint32_t reason) noexcept nogil
        int (*advise)(svmcore_space* space, uint64_t addr, uint64_t bytes, const char* advice,
                      uint32_t location, uint64_t t_ns) noexcept nogil


cdef extern from "svmcore/svmcore.h":
    # NULL with an ImportError set where the installed svmcore does not fit.
    const svmcore_api_t* svmcore_import() except NULL
