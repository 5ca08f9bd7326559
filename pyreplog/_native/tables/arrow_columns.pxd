# Arrow buffers for the properties of records and messages.
from libc.stdint cimport int32_t, int64_t, uint8_t

from pyreplog._native.system.blocks cimport Block


ctypedef struct Properties:
    int32_t *lists                # for each row, the index of its first property
    int32_t *names                # for each property, the offset of its name; NULL: properties are only counted
    int32_t *values
    uint8_t *name_bytes
    uint8_t *value_bytes
    int64_t count, name_total, value_total


cdef Block zeros(Py_ssize_t length)

# Add one property, or only count it.
cdef void put_property(Properties *out, const uint8_t *name, int64_t name_length, const uint8_t *value,
                       int64_t value_length) noexcept nogil

# Add the properties of a record.
cdef void put_record_properties(const uint8_t *p, Properties *out) noexcept nogil

# Write the offsets behind the last row.
cdef void end_properties(Properties *out, Py_ssize_t rows) noexcept nogil
