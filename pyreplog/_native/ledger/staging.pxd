# Single entries that wait while a batch is on its way.
from libc.stdint cimport int64_t


cdef class Staging:
    cdef object proceed
    cdef list entries
    cdef int64_t nbytes
    cdef Py_ssize_t flying      # batches on their way: taken, neither confirmed nor failed

    cpdef bint leave(self) noexcept
    cpdef bint landed(self) noexcept
