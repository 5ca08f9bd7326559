# Something with steps that one thread at a time takes.


cdef class SerialExecutor:
    cdef int run(self) except -1
    cdef int go_on(self) except -1


cpdef int check_may_wait() except -1
