# Defers Ctrl-C until a block that must not stop half way is done.


cdef class DeferSigint:
    cdef int depth              # nesting; only the main thread uses these fields
    cdef object handler, came   # the deferred handler; the arguments of a signal that came, or None

    cdef int enter(self) except -1
    cdef int leave(self) except -1
