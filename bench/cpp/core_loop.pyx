# cython: language_level=3, boundscheck=False, wraparound=False
# distutils: language = c
"""The range map of svmcore called one operation at a time from compiled code.

Built and called by ``bench/rivals.py`` where Cython and a compiler are; it does what
a third-party extension does that cimports the package.
"""
from libc.stdint cimport uint32_t, uint64_t

from svmcore._ranges cimport (
    range_entry_t,
    ranges_assign,
    ranges_clone,
    ranges_count,
    ranges_free,
    ranges_nbytes,
    ranges_new,
    ranges_next,
    ranges_t,
    ranges_value,
)


cdef class CoreMap:
    cdef ranges_t* map

    def __cinit__(self):
        self.map = ranges_new(False, 0)
        if self.map == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.map != NULL:
            ranges_free(self.map)

    def assign_all(self, const uint64_t[::1] first, const uint64_t[::1] last,
                   const uint32_t[::1] value):
        cdef Py_ssize_t i
        for i in range(first.shape[0]):
            if ranges_assign(self.map, first[i], last[i], value[i]):
                raise MemoryError

    def find_all(self, const uint64_t[::1] page, uint32_t[::1] out):
        # The value alone, which is what the maps of C++ are asked for.
        cdef Py_ssize_t i
        for i in range(page.shape[0]):
            out[i] = ranges_value(self.map, page[i])

    def clone(self):
        cdef CoreMap other = CoreMap.__new__(CoreMap)
        ranges_free(other.map)
        other.map = ranges_clone(self.map)
        if other.map == NULL:
            raise MemoryError
        return other

    def items(self):
        cdef range_entry_t entry
        cdef uint64_t page = 0
        found = []
        while ranges_next(self.map, page, &entry):
            found.append((entry.first, entry.last, entry.value))
            page = entry.last + 1
        return found

    @property
    def nbytes(self):
        return ranges_nbytes(self.map)

    def __len__(self):
        return ranges_count(self.map)
