# cython: language_level=3
"""Random touches of a svmcore space in a loop without the GIL.

An extension of somebody else's: it knows svmcore by ``cimport`` alone.
"""
from libc.stdint cimport uint64_t
from libc.string cimport memset

from svmcore cimport (
    SVMCORE_GPU,
    SVMCORE_NOW,
    SVMCORE_REASON_NONE,
    SVMCORE_WRITE,
    svmcore_access_t,
    svmcore_api_t,
    svmcore_event_t,
    svmcore_import,
    svmcore_space,
)

from svmcore import SvmError

cdef const svmcore_api_t* api = svmcore_import()


cdef struct tally_t:
    uint64_t faults
    uint64_t fatal
    uint64_t events


cdef int count(void* user, const svmcore_event_t* event) noexcept nogil:
    (<tally_t*>user).events += 1
    return 0


cdef int walk(svmcore_space* space, uint64_t addr, uint64_t pages, uint64_t touches,
              tally_t* tally) noexcept nogil:
    """Touch pages in the order of a small random generator; a refusal ends it."""
    cdef svmcore_access_t touch
    cdef uint64_t state = 1, _i
    cdef int code
    memset(&touch, 0, sizeof(touch))
    touch.size = sizeof(touch)
    touch.by = SVMCORE_GPU(0)
    touch.flags = SVMCORE_WRITE
    touch.bytes = 4
    touch.t_ns = SVMCORE_NOW
    for _i in range(touches):
        state = state * 6364136223846793005ULL + 1442695040888963407ULL
        touch.addr = addr + ((state >> 33) % pages << 12)
        code = api.access(space, &touch)
        if code and touch.reason == SVMCORE_REASON_NONE:
            return code
        tally.faults += touch.faults
        tally.fatal += code != 0
    return 0


def random_walk(space, uint64_t addr, uint64_t size, uint64_t touches):
    """Touch random pages of ``[addr, addr + size)`` by gpu0.

    Parameters
    ----------
    space : svmcore.Space
        Its state and clock move on.
    addr, size : int
        Bytes, at least one page.
    touches : int

    Returns
    -------
    (int, int, int)
        Faults served, fatal touches, effects seen.
    """
    cdef svmcore_space* handle
    cdef tally_t tally
    cdef char text[256]
    cdef int code = api.from_object(<void*>space, &handle)
    if code:
        raise SvmError(f"errno {-code}: expected a svmcore.Space under a compiled policy")
    if size < 4096:
        api.destroy(handle)
        raise ValueError(f"size {size}: expected 4096 or more")
    memset(&tally, 0, sizeof(tally))
    with nogil:
        api.set_event_callback(handle, count, &tally)
        code = walk(handle, addr, size >> 12, touches, &tally)
        api.set_event_callback(handle, NULL, NULL)
    text[0] = 0
    api.last_error(handle, text, sizeof(text))
    api.destroy(handle)
    if code:
        raise SvmError((<bytes>text).decode())
    return tally.faults, tally.fatal, tally.events
