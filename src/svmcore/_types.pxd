# cython: language_level=3
"""C types that every compiled module shares. Structs grow at the end only."""
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t

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

# Numbers of records.Kind that are replayed.
cdef enum record_kind:
    KIND_ACCESS = 0
    KIND_FAULT = 1
    KIND_MAP = 2
    KIND_UNMAP = 3
    KIND_ADVISE = 4
    KIND_PREFETCH = 5

# What one record did. Invariant: layout equal to _replay.OUTCOME; the buffer protocol checks
# it at each call.
cdef struct outcome_t:
    uint64_t t_ns        # modelled time when the record was done
    uint64_t page        # page of a fatal end
    uint32_t moved       # pages moved
    uint32_t remote      # page touches answered from another memory
    uint32_t faults      # faults served
    uint32_t duplicates  # deliveries dropped as duplicates
    int16_t code         # 0 or a negative errno
    uint8_t reason       # number in _faults.REASONS; 0: not replayed
    uint8_t best         # where the last fault was served from; 255 without one
    uint32_t pad

# Linux errno numbers, on every platform: results are the Linux driver's.
cdef enum linux_errno:
    E_PERM = 1
    E_NOENT = 2
    E_IO = 5
    E_AGAIN = 11
    E_NOMEM = 12
    E_ACCES = 13
    E_FAULT = 14
    E_BUSY = 16
    E_EXIST = 17
    E_INVAL = 22
    E_NOSPC = 28
    E_DEADLK = 35
    E_LOOP = 40
    E_OVERFLOW = 75
    E_OPNOTSUPP = 95
    E_ADDRINUSE = 98
