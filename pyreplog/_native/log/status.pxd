from libc.stdint cimport int64_t, uint8_t, uint32_t

# Make a CorruptionError of a record's Status. Only this function does so.
cdef object corruption(object path, int64_t position, int64_t status, const uint8_t *p, int64_t space, uint32_t stamp)

# Return the texts (expected, found) for a Status of the record at p.
cdef tuple describe(int64_t status, const uint8_t *p, int64_t space, uint32_t stamp)
