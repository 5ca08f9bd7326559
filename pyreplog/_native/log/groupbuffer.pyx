"""Records of a synced log, until their group commit has written them: one buffer is filled while the other is written.

Threads: whoever is inside the append path; memory that was given out is left alone until it is known to be written.
"""

cimport cython
from libc.stdlib cimport free, malloc

from pyreplog._native.log.record cimport span

cdef int64_t BUFFER_BYTES = 8 << 20


@cython.final
cdef class GroupBuffer:
    """Both buffers; of records behind each other in one segment."""

    def __dealloc__(self):
        free(self.buffers[0])
        free(self.buffers[1])

    cdef uint8_t *begin(self, int64_t offset) except NULL:
        """Where the record at the segment's `offset`, and all behind it, are to be put."""
        if self.buffers[self.filling] == NULL:
            self.resize(BUFFER_BYTES)
        self.start = offset
        return self.buffers[self.filling]

    cdef int64_t room(self) noexcept:
        """Bytes there are from where it began."""
        return self.sizes[self.filling]

    cdef int widen(self, int64_t size) except -1:
        """Have room for `size` bytes in the buffer that is filled; nothing is in it."""
        if self.sizes[self.filling] < size:
            self.resize(size)
        return 0

    cdef bint take(self, int64_t end, int64_t entry) noexcept:
        """Take what lies before the segment's offset `end`, and the entry number `entry`: the other buffer is to be begun.
        False: nothing does. Not before what was taken is written."""
        self.taken = end - self.start
        if self.taken == 0:
            return False
        self.taken_start, self.taken_entry = self.start, entry
        self.filling = 1 - self.filling
        return True

    cdef object view(self):
        """Of what was taken."""
        return span(self, self.buffers[1 - self.filling], self.taken)

    cdef int resize(self, int64_t size) except -1:
        cdef uint8_t *made = <uint8_t *>malloc(size)
        if made == NULL:
            raise MemoryError
        free(self.buffers[self.filling])
        self.buffers[self.filling], self.sizes[self.filling] = made, size
        return 0
