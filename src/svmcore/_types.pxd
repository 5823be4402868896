# cython: language_level=3
"""C types that every compiled module shares. Structs grow at the end only."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# Invariant: layout equal to records.RECORD (tests/unit/test_records.py).
cdef struct record_t:
    uint64_t t_ns      # time of the source's clock, ns
    uint64_t addr      # byte address
    uint64_t size      # bytes; 0 = no span
    uint64_t dur_ns    # duration, ns; 0 = unknown
    uint32_t value     # meaning by kind, see records.Kind
    uint8_t kind       # records.Kind
    uint8_t proc       # 0 CPU, 1 + i GPU i, 255 unknown
    uint8_t access     # records.Access
    uint8_t peer       # second location, coded as proc
