# Records of a synced log, until their group commit has written them.
from libc.stdint cimport int64_t, uint8_t


cdef class GroupBuffer:
    cdef uint8_t *buffers[2]      # NULL: not needed yet
    cdef int64_t sizes[2]
    cdef int filling
    cdef int64_t start            # offset in the segment of the filled buffer's first byte
    cdef int64_t taken            # bytes of the other buffer that were taken and are not known to be written
    cdef int64_t taken_start      # offset of the first of them
    cdef int64_t taken_entry      # number of the entry after them

    cdef uint8_t *begin(self, int64_t offset) except NULL
    cdef int64_t room(self) noexcept
    cdef int widen(self, int64_t size) except -1
    cdef bint take(self, int64_t end, int64_t entry) noexcept
    cdef object view(self)
    cdef int resize(self, int64_t size) except -1
