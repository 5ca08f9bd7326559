# Headers of record batches, and the walk over their records, for the modules that read them.
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.system.blocks cimport Block

cdef enum:
    BATCH_HEADER = 61
    RECORD_MIN = 7
    # bits of the attributes
    TRANSACTIONAL = 16
    CONTROL = 32

# Columns of a walk, one behind the other in memory.
cdef enum Column:
    COLUMN_TIMESTAMP, COLUMN_KEY_START, COLUMN_KEY_SIZE, COLUMN_VALUE_START, COLUMN_VALUE_SIZE, COLUMN_HEADERS_START
    COLUMN_HEADER_COUNT, COLUMN_NUMBER

cdef enum:
    COLUMNS = 8


# What a walk over records learns.
ctypedef struct Walked:
    int64_t record              # the one with a fault
    int64_t at                  # byte of the body at which it begins
    int64_t max_timestamp       # -1: no record has one
    int64_t keyless             # number of the first record without a key; -1: all have one


cdef class RecordBatchHeader:
    cdef readonly Py_ssize_t size
    cdef readonly int64_t base_offset, base_timestamp, max_timestamp, producer_id
    cdef readonly int leader_epoch, attributes, last_offset_delta, producer_epoch, base_sequence, count
    # Walk the records, of `size` bytes. columns: room for COLUMNS * count numbers.
    cdef int walk_body(self, const uint8_t *body, int64_t size, int64_t earliest, int64_t latest, int64_t *columns,
                       Walked *walked) except -1


cdef class ProducedBatch:
    cdef readonly RecordBatchHeader header
    cdef Block copy
    cpdef Block stamp(self, int64_t base_offset, int64_t leader_epoch, int64_t log_append_time=*)

# Return the header of the batch at p, whose length, magic and checksum are checked.
cdef RecordBatchHeader header_of(const uint8_t *p, Py_ssize_t space)

# Return the pairs of name and value at `at`, which a walk over records has checked.
cdef list headers_at(const uint8_t *at, const uint8_t *stop)
