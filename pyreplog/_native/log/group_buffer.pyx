"""Records of a synced log, until their group commit has written them: one buffer is filled while the other is written.

Threads: the thread inside the append path. Memory that was taken stays unchanged until it is known to be written.
"""

cimport cython
from libc.stdlib cimport free, malloc

from pyreplog._native.log.record cimport span

cdef int64_t BUFFER_BYTES = 8 << 20


@cython.final
cdef class GroupBuffer:
    """Two buffers for consecutive records of one segment."""

    def __dealloc__(self):
        self.release()

    cdef uint8_t *begin(self, int64_t offset) except NULL:
        """Return the address for the record at the segment's `offset`; later records follow it."""
        if self.buffers[self.filling] == NULL:
            self.resize(BUFFER_BYTES)
        self.start = offset
        return self.buffers[self.filling]

    cdef int64_t room(self) noexcept:
        """Return the size of the buffer that is filled."""
        return self.sizes[self.filling]

    cdef int widen(self, int64_t size) except -1:
        """Enlarge the empty buffer that is filled to `size` bytes."""
        if self.sizes[self.filling] < size:
            self.resize(size)
        return 0

    cdef bint take(self, int64_t end, int64_t entry) noexcept:
        """Take the records before the segment's offset `end` and entry number `entry`, and switch buffers.

        Returns False if there are none. Must not be called before the taken records are written.
        """
        self.taken = end - self.start
        if self.taken == 0:
            return False
        self.taken_start, self.taken_entry = self.start, entry
        self.filling = 1 - self.filling
        return True

    cdef object view(self):
        """Return the taken bytes."""
        return span(self, self.buffers[1 - self.filling], self.taken)

    cdef void release(self) noexcept:
        """Give the memory of both buffers back, which hold nothing; `begin` takes it again."""
        cdef int i
        for i in range(2):
            free(self.buffers[i])
            self.buffers[i], self.sizes[i] = NULL, 0

    cdef int resize(self, int64_t size) except -1:
        cdef uint8_t *memory = <uint8_t *>malloc(size)
        if memory == NULL:
            raise MemoryError
        free(self.buffers[self.filling])
        self.buffers[self.filling], self.sizes[self.filling] = memory, size
        return 0
