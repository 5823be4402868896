# cython: language_level=3
"""Large pages for large arrays.

Filling fresh memory costs a page fault for each 4 KiB, which is half the time of
loading a state, and a look-up in a large array a TLB miss. Linux gives pages of
2 MiB to those who ask (``/sys/kernel/mm/transparent_hugepage/enabled`` is
``madvise`` on most systems); NumPy asks for its arrays in the same way.
"""
from libc.stddef cimport size_t

cdef extern from *:
    """
    #ifndef SVMCORE_LARGE
    #define SVMCORE_LARGE
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__linux__)
    #include <sys/mman.h>
    #endif
    /* A hint that changes no result: where the system does not know it nothing happens.
       Only whole large pages inside the array, so that no neighbour is concerned. */
    static inline void svm_ask_large(void *p, size_t size)
    {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        const uintptr_t large = (uintptr_t)2 << 20;
        uintptr_t first = ((uintptr_t)p + large - 1) & ~(large - 1);
        uintptr_t end = ((uintptr_t)p + size) & ~(large - 1);
        if (p != NULL && size >= 2 * large && first < end)
            (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    #else
        (void)p;
        (void)size;
    #endif
    }
    #endif
    """
    void ask_large "svm_ask_large"(void* p, size_t size) noexcept nogil
