"""Ctrl-C put off until what must not stop half way is done."""


cdef class DeferSigint:
    cdef int depth          # all of this is the main thread's
    cdef object handler, came

    cdef int enter(self) except -1
    cdef int leave(self) except -1
