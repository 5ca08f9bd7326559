# Entries that wait to be sent.
from libc.stdint cimport int64_t


cdef class Staging:
    cdef object proceed
    cdef list entries
    cdef int64_t nbytes
    cdef Py_ssize_t flying      # batches taken and not landed

    cpdef bint leave(self) noexcept
    cpdef bint landed(self) noexcept
