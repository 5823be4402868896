/*
 * svmcore.h: svmcore inside a C or C++ host.
 *
 * A host asks "what does the driver do with this access?" through a table of
 * functions. The table comes from the Python module in a capsule, so a host
 * links against Python alone and keeps working with a later svmcore:
 *
 *     const svmcore_api_t *api = svmcore_import();       (interpreter running, GIL held)
 *     svmcore_options_t options = {sizeof options, 0, "gpu-80g", "kfd", NULL, 0};
 *     svmcore_space *space;
 *     if (api == NULL || api->create(&options, &space))
 *         ...
 *     svmcore_access_t touch = {sizeof touch, SVMCORE_WRITE, SVMCORE_GPU(0)};
 *     touch.addr = 0x7f0000000000; touch.bytes = 64; touch.t_ns = SVMCORE_NOW;
 *     int code = api->access(space, &touch);             (no GIL, no Python object)
 *
 * Units
 *     Addresses and sizes are bytes, times nanoseconds of modelled time. The
 *     caller owns the clock: it never goes back, and each call may move it on.
 *
 * Results
 *     Every function returns 0 or a negative Linux errno number (SVMCORE_E...,
 *     the same on every platform). No exception crosses. A refused call changes
 *     nothing; last_error() tells what was wrong.
 *       -SVMCORE_EINVAL      NULL, unknown handle, size or processor, t_ns in the past
 *       -SVMCORE_EOVERFLOW   an interval passes 2**64
 *       -SVMCORE_EBUSY       another thread is inside a call on this space, or on a
 *                            space of the same node
 *       -SVMCORE_EDEADLK     called from the event callback of such a space
 *       -SVMCORE_EIO         the call was carried out, and the event callback failed
 *       -SVMCORE_ENOMEM      no memory (with a callback, the call may have been carried
 *                            out: events are missing, last_error() says so)
 *       -SVMCORE_EOPNOTSUPP  this policy, interpreter state or struct asks for more
 *                            than this svmcore knows
 *     or the driver's own result. access() and fault() tell them apart: `reason`
 *     is SVMCORE_REASON_NONE exactly when the driver was not asked.
 *
 * Growing
 *     Structs and the table grow at the end only; what is there never moves. Each
 *     struct that a host passes begins with its size as the host was compiled:
 *       smaller than in the first version   -SVMCORE_EINVAL
 *       any known size                      what lies beyond keeps its default
 *       larger than this svmcore knows      accepted when the rest is zero, else
 *                                           -SVMCORE_EOPNOTSUPP; a result leaves
 *                                           the rest untouched
 *     Sizes above SVMCORE_STRUCT_MAX are refused: the field was not set.
 *     svmcore_attr_t has no size: it is the kernel's own fixed pair.
 *
 * Threads
 *     One thread at a time uses a space, and the spaces of one node; a second one
 *     gets -SVMCORE_EBUSY and does not wait. Independent spaces run side by side.
 *     A space that Python code holds too must not be used from there meanwhile.
 *
 * Policies
 *     Every policy whose process derives from svmcore._process.Process is served; others
 *     give -SVMCORE_EOPNOTSUPP at from_object and create. What holds for "kfd" alone:
 *       set_attr, get_attr   its ioctl; -SVMCORE_EOPNOTSUPP with another policy, which takes
 *                            advise and prefetch
 *       map                  other than anonymous, read and write: other policies take the GIL
 *                            and may refuse the kind ("uvm" knows anonymous memory only)
 *       fault                vram_fallback and unregistered are 0 with another policy; the
 *                            window of "uvm" is the fault's block
 *       events               "uvm" tells moves and evictions, its page tables stay untold
 */
#ifndef SVMCORE_SVMCORE_H
#define SVMCORE_SVMCORE_H

/* Define SVMCORE_NO_PYTHON where only the types are needed. */
#ifndef SVMCORE_NO_PYTHON
#include <Python.h>
#endif
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when something that was there changes its meaning; growth does not. */
#define SVMCORE_ABI 1
#define SVMCORE_CAPSULE "svmcore._capi.api"
#define SVMCORE_STRUCT_MAX 4096

/* t_ns: the space's present time. */
#define SVMCORE_NOW UINT64_MAX
/* next_event(): nothing is pending. */
#define SVMCORE_NEVER UINT64_MAX

/* Processors, at most 64 GPUs. */
#define SVMCORE_CPU 0
#define SVMCORE_GPU(i) (1 + (i))
#define SVMCORE_NOWHERE 255
#define SVMCORE_MAX_GPUS 64

/* Locations are KFD values, whatever the policy: a GPU's id (see info) or one of these. */
#define SVMCORE_LOCATION_SYSTEM 0u
#define SVMCORE_LOCATION_UNDEFINED 0xffffffffu
/* advise(): for a word that takes no location. */
#define SVMCORE_LOCATION_NONE 0xfffffffeu

enum svmcore_errno {
    SVMCORE_EPERM = 1,
    SVMCORE_ENOENT = 2,
    SVMCORE_EIO = 5,
    SVMCORE_EAGAIN = 11,
    SVMCORE_ENOMEM = 12,
    SVMCORE_EACCES = 13,
    SVMCORE_EFAULT = 14,
    SVMCORE_EBUSY = 16,
    SVMCORE_EEXIST = 17,
    SVMCORE_EINVAL = 22,
    SVMCORE_ENOSPC = 28,
    SVMCORE_EDEADLK = 35,
    SVMCORE_ELOOP = 40,
    SVMCORE_EOVERFLOW = 75,
    SVMCORE_EOPNOTSUPP = 95,
    SVMCORE_EADDRINUSE = 98
};

enum svmcore_flag {
    SVMCORE_WRITE = 1, /* the touch writes */
    SVMCORE_QUEUE = 2  /* a t_ns in the past means the present time: the driver serves one fault
                          of a process after another, and this one waited */
};

enum svmcore_prot { SVMCORE_PROT_NONE = 0, SVMCORE_PROT_READ = 1, SVMCORE_PROT_WRITE = 2 };

enum svmcore_map_kind {
    SVMCORE_MAP_ANON = 0,
    SVMCORE_MAP_FILE = 1,
    SVMCORE_MAP_HEAP = 2,
    SVMCORE_MAP_STACK = 3,
    SVMCORE_MAP_IO = 4,
    SVMCORE_MAP_PFNMAP = 5
};

/* KFD_IOCTL_SVM_ATTR_*: type of an attribute. */
enum svmcore_attr_type {
    SVMCORE_ATTR_PREFERRED_LOC = 0,
    SVMCORE_ATTR_PREFETCH_LOC = 1,
    SVMCORE_ATTR_ACCESS = 2,
    SVMCORE_ATTR_ACCESS_IN_PLACE = 3,
    SVMCORE_ATTR_NO_ACCESS = 4,
    SVMCORE_ATTR_SET_FLAGS = 5,
    SVMCORE_ATTR_CLR_FLAGS = 6,
    SVMCORE_ATTR_GRANULARITY = 7
};

/* Why a touch or a fault ended as it did; reason_name() has the words. */
enum svmcore_reason {
    SVMCORE_REASON_NONE = 0, /* the driver was not asked */
    SVMCORE_REASON_OK = 1,
    SVMCORE_REASON_DUPLICATE = 2,
    SVMCORE_REASON_PERMISSION = 3,
    SVMCORE_REASON_NO_ACCESS = 4,
    SVMCORE_REASON_VMA_GONE = 5,
    SVMCORE_REASON_SKIP_RECOVER = 6,
    SVMCORE_REASON_STALE = 7,
    SVMCORE_REASON_NO_RANGE = 8,
    SVMCORE_REASON_XNACK_OFF = 9
};

/* One space; what it holds is svmcore's. */
typedef struct svmcore_space svmcore_space;

/* How to create a space. */
typedef struct svmcore_options {
    uint32_t size;
    uint32_t flags;          /* 0 */
    const char *machine;     /* preset name or TOML file; NULL: gpu-80g (load: the file's) */
    const char *policy;      /* "name" or "name(key=value, ...)"; NULL: kfd (load: NULL) */
    char *error;             /* room for the text of a refusal, or NULL */
    uint64_t error_size;     /* bytes there */
    svmcore_space *neighbour; /* live on the node of this space; NULL: a node of its own */
} svmcore_options_t;

/* The kernel's struct kfd_ioctl_svm_attribute. */
typedef struct svmcore_attr {
    uint32_t type;
    uint32_t value;
} svmcore_attr_t;

/* A touch: asked above, answered below. */
typedef struct svmcore_access {
    uint32_t size;
    uint16_t flags;          /* svmcore_flag */
    uint8_t by;              /* processor */
    uint8_t reason;          /* out: svmcore_reason */
    uint64_t addr;
    uint64_t bytes;          /* at least 1; neither needs to be aligned */
    uint64_t t_ns;           /* when, or SVMCORE_NOW */
    /* answer */
    uint64_t ready_ns;       /* when it was done; the space's clock */
    uint64_t took_ns;        /* what it waited and cost by itself */
    uint64_t fatal_addr;     /* page of a fatal end, else 0 */
    uint64_t moved_bytes;    /* migrated for it */
    uint64_t remote_pages;   /* page touches answered from another memory */
    uint32_t faults;         /* served */
    uint32_t duplicates;     /* deliveries that the driver dropped */
    int32_t code;            /* 0 or the driver's negative errno */
    uint8_t served_from;     /* processor whose memory served the last fault, else NOWHERE */
    uint8_t reserved[3];
} svmcore_access_t;

/* One delivery of a GPU page fault by the driver's exact rules. */
typedef struct svmcore_fault {
    uint32_t size;
    uint16_t flags;          /* svmcore_flag */
    uint8_t by;              /* a GPU */
    uint8_t reason;          /* out: svmcore_reason */
    uint64_t addr;
    uint64_t t_ns;           /* when, or SVMCORE_NOW */
    uint64_t timestamp;      /* of the fault in the GPU's ring; 0 when it has none */
    /* answer */
    uint64_t ready_ns;
    uint64_t took_ns;
    uint64_t window_addr;    /* what the fault restored; 0, 0 when it was not decided, or
                                the policy has no windows */
    uint64_t window_bytes;
    uint64_t moved_bytes;
    int32_t code;            /* 0 (also when dropped) or the driver's negative errno */
    uint8_t location;        /* best restore location, a processor, else NOWHERE */
    uint8_t migration;       /* a migration was done, even if no page had to move */
    uint8_t vram_fallback;   /* the device had no room: served from system memory */
    uint8_t unregistered;    /* a range was made for it */
} svmcore_fault_t;

enum svmcore_event_kind {
    SVMCORE_EVENT_MIGRATE = 0,      /* source to target, cause a trigger, value bytes moved */
    SVMCORE_EVENT_MAP = 1,          /* target's page tables, cause 1 in device memory,
                                       value 1 writable */
    SVMCORE_EVENT_UNMAP = 2,        /* invalidated in target's page tables, cause svmcore_unmap */
    SVMCORE_EVENT_QUEUE = 3,        /* cause 0: user queues stopped, 1: running again */
    SVMCORE_EVENT_WARN = 4,         /* a warning of the driver, cause its number */
    SVMCORE_EVENT_EVICT_OBJECT = 5, /* device memory of source, bytes its size, value the device */
    SVMCORE_EVENT_FILTER = 6,       /* the page may fault again */
    SVMCORE_EVENT_HANG = 7,         /* the driver would never settle here */
    /* Of policy uvm: */
    SVMCORE_EVENT_FAULT = 8,     /* source faults, value 0 read, 1 write, 2 atomic, 3 prefetch */
    SVMCORE_EVENT_SERVED = 9,    /* such faults were served, value 1 when pages moved */
    SVMCORE_EVENT_BATCH = 10,    /* the driver fetches value faults */
    SVMCORE_EVENT_DUPLICATE = 11, /* copied for reading from source to target */
    SVMCORE_EVENT_REMOTE = 12,   /* source is mapped to pages in target's memory, value why:
                                    2 they thrash, 3 by policy, 5 they were evicted */
    SVMCORE_EVENT_EVICT = 13,    /* source's memory gives them up */
    SVMCORE_EVENT_THRASH = 14,   /* they thrash from now on, source had them last */
    SVMCORE_EVENT_THROTTLE = 15, /* source waits for them until value, ns */
    SVMCORE_EVENT_PIN = 16,      /* they thrash and are pinned in target's memory for source */
    SVMCORE_EVENT_UNPIN = 17,    /* no longer */
    SVMCORE_EVENT_CANCEL = 18    /* source's faults end with an error, value the driver's reason */
};

enum svmcore_trigger {
    SVMCORE_TRIGGER_PREFETCH = 0,
    SVMCORE_TRIGGER_GPU_FAULT = 1,
    SVMCORE_TRIGGER_CPU_FAULT = 2,
    SVMCORE_TRIGGER_EVICTION = 3,
    SVMCORE_TRIGGER_PREFETCHER = 4, /* uvm: pages that the driver adds to those that faulted */
    SVMCORE_TRIGGER_ADVICE = 5      /* uvm: advice moved them */
};

enum svmcore_unmap {
    SVMCORE_UNMAP_NOTIFY = 0,
    SVMCORE_UNMAP_NOTIFY_MIGRATE = 1,
    SVMCORE_UNMAP_FROM_CPU = 2
};

/* One effect of a call. A host may see kinds that it does not know: ignore them. */
typedef struct svmcore_event {
    uint32_t size;
    uint8_t kind;            /* svmcore_event_kind */
    uint8_t cause;           /* by kind */
    uint8_t source;          /* processor */
    uint8_t target;          /* processor */
    uint64_t t_ns;
    uint64_t addr;
    uint64_t bytes;          /* 0: no interval */
    uint64_t value;          /* by kind */
} svmcore_event_t;

/*
 * Called for each effect on the space, in the driver's order, after the call changed
 * the state and before it returns. A call on a neighbour that takes this space's
 * device memory calls it too, before the neighbour's own callback; the times of the
 * events are this space's. The event lives as long as the callback. Return 0 to go
 * on; another value ends the delivery, and the call returns -SVMCORE_EIO although
 * it was carried out. Calls on the space (or its node's) from here return
 * -SVMCORE_EDEADLK and change nothing. It must return: a C++ exception or a longjmp
 * through svmcore leaves the space busy for good. The GIL is held or not as it was
 * at the call; a callback that needs it takes it and clears its own Python errors.
 */
typedef int (*svmcore_event_fn)(void *user, const svmcore_event_t *event);

/* Counters of a space; bytes and numbers since it was created. */
typedef struct svmcore_counters {
    uint32_t size;
    uint32_t reserved;
    uint64_t faults;
    uint64_t duplicate_faults;
    uint64_t migrations;         /* moves of more than 0 pages */
    uint64_t migration_attempts;
    uint64_t migrated_bytes;
    uint64_t bytes_to_device;
    uint64_t bytes_to_host;
    uint64_t evictions;
    uint64_t evicted_bytes;
    uint64_t remote_accesses;    /* page touches answered from another memory */
    uint64_t pages_touched;
    uint64_t unmaps;
    uint64_t maps;
    uint64_t queue_evictions;
    uint64_t queue_restores;
    uint64_t errors;             /* fatal touches */
} svmcore_counters_t;

/* The machine of a space. */
typedef struct svmcore_info {
    uint32_t size;
    uint32_t gpus;
    uint32_t gpu_id[SVMCORE_MAX_GPUS];       /* KFD location value of GPU i */
    uint64_t device_bytes[SVMCORE_MAX_GPUS];
} svmcore_info_t;

/*
 * The functions. "GIL": takes it for the call (a thread may hold it already, or
 * be unknown to Python); the others touch no Python object and need none.
 * t_ns: SVMCORE_NOW or a time not in the past.
 */
typedef struct svmcore_api {
    uint32_t abi;
    uint32_t size;
    const char *version;     /* of svmcore, as "0.1.0" */

    /* GIL. A new space; *space is NULL when refused. */
    int (*create)(const svmcore_options_t *options, svmcore_space **space);
    /* GIL. A space as save() wrote it; a machine given in the options must match. */
    int (*load)(const char *path, const svmcore_options_t *options, svmcore_space **space);
    /* GIL. The space behind a Python object svmcore.Space, which it keeps alive. */
    int (*from_object)(void *object, svmcore_space **space);
    /* GIL. A new reference to the Python object svmcore.Space of a space. */
    int (*to_object)(svmcore_space *space, void **object);
    /* GIL. Gives one create, load or from_object back; the last one frees the space. */
    int (*destroy)(svmcore_space *space);
    /* GIL. The whole state to a file. */
    int (*save)(svmcore_space *space, const char *path);

    /* A CPU mapping appears; -SVMCORE_EEXIST where one is. Page aligned. */
    int (*map)(svmcore_space *space, uint64_t addr, uint64_t bytes, uint32_t prot, uint32_t kind,
               uint64_t t_ns);
    /* CPU mappings go. */
    int (*unmap)(svmcore_space *space, uint64_t addr, uint64_t bytes, uint64_t t_ns);
    /* GIL. The protection of mapped pages changes. */
    int (*protect)(svmcore_space *space, uint64_t addr, uint64_t bytes, uint32_t prot,
                   uint64_t t_ns);
    /* GIL. CPU page tables change without loss of data (an MMU notification). */
    int (*invalidate)(svmcore_space *space, uint64_t addr, uint64_t bytes, uint64_t t_ns);

    /* The driver's ioctl: attributes in order, the last one of a type wins. */
    int (*set_attr)(svmcore_space *space, uint64_t addr, uint64_t bytes,
                    const svmcore_attr_t *attrs, uint32_t count, uint64_t t_ns);
    /* GIL. The driver's ioctl: types in, values out; ACCESS with a GPU id in `value` gets its
       type replaced by what that GPU has. */
    int (*get_attr)(svmcore_space *space, uint64_t addr, uint64_t bytes, svmcore_attr_t *attrs,
                    uint32_t count, uint64_t t_ns);
    /* Move pages to a location (KFD value) now. */
    int (*prefetch)(svmcore_space *space, uint64_t addr, uint64_t bytes, uint32_t location,
                    uint64_t t_ns);

    /* A touch of a span until it is served or fatal: silent where mapped, else faults. */
    int (*access)(svmcore_space *space, svmcore_access_t *touch);
    /* Touches in order, elements apart by the first one's size; stops at the first that is
       refused or whose events fail. Fatal touches do not stop it: see `code` of each.
       *done (NULL allowed): how many were carried out. */
    int (*access_many)(svmcore_space *space, svmcore_access_t *touches, uint64_t count,
                       uint64_t *done);
    /* One delivery; it can be dropped as a duplicate, stale or retried. */
    int (*fault)(svmcore_space *space, svmcore_fault_t *fault);
    /* GIL. Memory pressure takes the device memory object at addr; -SVMCORE_ENOENT without. */
    int (*evict)(svmcore_space *space, uint64_t addr, uint64_t t_ns);

    /* Move the clock on and run what is due by then. */
    int (*step)(svmcore_space *space, uint64_t t_ns);
    /* When pending work is due, SVMCORE_NEVER without any. */
    int (*next_event)(svmcore_space *space, uint64_t *t_ns);
    /* The present time. */
    int (*now)(svmcore_space *space, uint64_t *t_ns);
    /* Whose memory holds the page: a processor, SVMCORE_NOWHERE when nobody touched it yet. */
    int (*where)(svmcore_space *space, uint64_t addr, uint32_t *processor);
    int (*counters)(svmcore_space *space, svmcore_counters_t *counters);
    int (*info)(svmcore_space *space, svmcore_info_t *info);

    /* Watch the effects on this space; NULL ends it. */
    int (*set_event_callback)(svmcore_space *space, svmcore_event_fn callback, void *user);
    /* Why the last call on this space that failed did, cut to `bytes` with the closing 0. Empty
       after a fatal touch or fault, whose `reason` tells; NULL, -SVMCORE_EBUSY and
       -SVMCORE_EDEADLK leave it as it was. */
    int (*last_error)(svmcore_space *space, char *text, uint64_t bytes);
    /* Word of a svmcore_reason; NULL for an unknown number. */
    const char *(*reason_name)(uint32_t reason);

    /* GIL. Advice by a neutral word of Space.advise ("preferred_location", "read_mostly", ...),
       for every policy. `location` for the words that take one, else SVMCORE_LOCATION_NONE; the
       words with a number are KFD's and go through set_attr. */
    int (*advise)(svmcore_space *space, uint64_t addr, uint64_t bytes, const char *advice,
                  uint32_t location, uint64_t t_ns);
} svmcore_api_t;

#ifndef SVMCORE_NO_PYTHON
/*
 * The table, if it is at least what the caller was compiled against; else NULL with
 * a Python ImportError set (none where no interpreter runs). Needs the GIL.
 */
static inline const svmcore_api_t *svmcore_import_abi(uint32_t abi, uint32_t size)
{
    PyObject *module, *capsule;
    const svmcore_api_t *api;
    if (!Py_IsInitialized())
        return NULL;
    module = PyImport_ImportModule("svmcore._capi");
    if (module == NULL)
        return NULL;
    capsule = PyObject_GetAttrString(module, "api");
    Py_DECREF(module);
    if (capsule == NULL)
        return NULL;
    /* The module lives as long as the interpreter, and the table in it. */
    api = (const svmcore_api_t *)PyCapsule_GetPointer(capsule, SVMCORE_CAPSULE);
    Py_DECREF(capsule);
    if (api == NULL)
        return NULL;
    if (api->abi != abi) {
        PyErr_Format(PyExc_ImportError, "svmcore has ABI %u, expected %u: rebuild the host",
                     (unsigned)api->abi, (unsigned)abi);
        return NULL;
    }
    if (api->size < size) {
        PyErr_Format(PyExc_ImportError,
                     "svmcore's table has %u bytes, expected %u or more: install a newer svmcore",
                     (unsigned)api->size, (unsigned)size);
        return NULL;
    }
    return api;
}

static inline const svmcore_api_t *svmcore_import(void)
{
    return svmcore_import_abi(SVMCORE_ABI, (uint32_t)sizeof(svmcore_api_t));
}
#endif

#ifdef __cplusplus
}
#endif

#endif
