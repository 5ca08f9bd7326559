# The first block of a segment file, and the stamp that is computed from it.
from libc.stdint cimport int64_t, uint8_t, uint32_t


# Return the stamp of a segment's records. Two segments of one epoch, or two epochs of one position, never share a
# stamp.
cdef uint32_t stamp_of(const uint8_t *uuid, int64_t base, int64_t size, uint32_t epoch) noexcept nogil
