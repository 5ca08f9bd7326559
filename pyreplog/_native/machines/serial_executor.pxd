# Base of objects whose queued steps run on one thread at a time.


cdef class SerialExecutor:
    cdef int run(self) except -1
    cdef int go_on(self) except -1


cpdef int check_may_wait() except -1
