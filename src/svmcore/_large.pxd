# cython: language_level=3
"""Large pages for large arrays.

Filling fresh memory costs a page fault for each 4 KiB, which is half the time of
loading a state, and a look-up in a large array a TLB miss. Linux gives pages of
2 MiB to those who ask (``/sys/kernel/mm/transparent_hugepage/enabled`` is
``madvise`` on most systems), for whole pages of 2 MiB that were not touched before;
NumPy asks for its arrays in the same way. What ``realloc`` moves to another place
loses them, so an array that grows is copied instead.
"""
from libc.stddef cimport size_t

cdef extern from *:
    """
    #ifndef SVMCORE_LARGE
    #define SVMCORE_LARGE
    #include <stddef.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #if defined(__linux__)
    #include <malloc.h>
    #include <sys/mman.h>
    #endif
    #define SVM_LARGE ((size_t)2 << 20)
    /* A hint that changes no result: where the system does not know it nothing happens.
       Only whole large pages inside the array, so that no neighbour is concerned. */
    static inline void svm_ask_large(void *p, size_t size)
    {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        uintptr_t first = ((uintptr_t)p + SVM_LARGE - 1) & ~(SVM_LARGE - 1);
        uintptr_t end = ((uintptr_t)p + size) & ~(SVM_LARGE - 1);
        if (p != NULL && size >= 2 * SVM_LARGE && first < end)
            (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    #else
        (void)p;
        (void)size;
    #endif
    }
    /* realloc for arrays that only grow. */
    static inline void *svm_resize(void *p, size_t size)
    {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (size >= 2 * SVM_LARGE) {
            const size_t had = p != NULL ? malloc_usable_size(p) : 0;
            void *q = NULL;
            if (had >= size)
                return p;
            if (posix_memalign(&q, SVM_LARGE, (size + SVM_LARGE - 1) & ~(SVM_LARGE - 1)))
                return NULL;
            svm_ask_large(q, (size + SVM_LARGE - 1) & ~(SVM_LARGE - 1));
            if (p != NULL)
                memcpy(q, p, had);
            free(p);
            return q;
        }
    #endif
        return realloc(p, size);
    }
    #endif
    """
    void ask_large "svm_ask_large"(void* p, size_t size) noexcept nogil
    void* resize "svm_resize"(void* p, size_t size) noexcept nogil
