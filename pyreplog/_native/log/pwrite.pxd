# Writes bytes into a file at an offset, for native code.
from libc.stdint cimport int64_t, uint8_t

# Write all of `data` at `offset`; the GIL is kept, so it is for few bytes. Raises OSError.
cdef int write_bytes(int fd, const uint8_t *data, int64_t length, int64_t offset) except -1
