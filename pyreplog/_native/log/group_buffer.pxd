# Records of a synced log that wait until a group commit writes them.
from libc.stdint cimport int64_t, uint8_t


cdef class GroupBuffer:
    cdef uint8_t *buffers[2]      # NULL: not allocated yet
    cdef int64_t sizes[2]
    cdef int filling              # index of the buffer that appends fill; the other one is written
    cdef int64_t start            # offset in the segment of the first byte of the buffer that is filled
    cdef int64_t taken            # bytes that were taken from the other buffer last; 0 once they are written
    cdef int64_t taken_start      # offset in the segment of the first of these bytes
    cdef int64_t taken_entry      # number of the first entry behind these bytes

    cdef uint8_t *begin(self, int64_t offset) except NULL
    cdef int64_t room(self) noexcept
    cdef int widen(self, int64_t size) except -1
    cdef bint take(self, int64_t end, int64_t entry) noexcept
    cdef object view(self)
    cdef void release(self) noexcept
    cdef int resize(self, int64_t size) except -1
