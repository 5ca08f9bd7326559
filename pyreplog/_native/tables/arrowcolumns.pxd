# Properties as Arrow's buffers, of records and of messages.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyreplog._native.system.blocks cimport Block


ctypedef struct Properties:
    int32_t *lists                # of each row, where its properties begin
    int32_t *names                # of each property, where its name begins; NULL: only count
    int32_t *values
    uint8_t *name_bytes
    uint8_t *value_bytes
    int64_t count, name_total, value_total


cdef Block zeros(Py_ssize_t length)

# Add one, or count it.
cdef void put_property(Properties *out, const uint8_t *name, int64_t name_length, const uint8_t *value,
                       int64_t value_length) noexcept nogil

# Add those of a record.
cdef void put_record_properties(const uint8_t *p, Properties *out) noexcept nogil

# After the last row.
cdef void end_properties(Properties *out, Py_ssize_t rows) noexcept nogil
