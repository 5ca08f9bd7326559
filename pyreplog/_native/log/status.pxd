from libc.stdint cimport int64_t, uint8_t, uint32_t

# The one door by which a Status of a record becomes an exception.
cdef object corruption(object path, int64_t position, int64_t status, const uint8_t *p, int64_t space, uint32_t stamp)

# (expected, found) for a status of the record at p.
cdef tuple describe(int64_t status, const uint8_t *p, int64_t space, uint32_t stamp)
