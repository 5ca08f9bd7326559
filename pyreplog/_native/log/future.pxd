# The outcome of an append; future.pyx explains how it works.
from libc.stdint cimport int64_t


cdef class AppendFuture:
    cdef object value             # the result
    cdef object error             # the exception, or None
    cdef list waiters             # FutureWaiters, locks and callbacks; None before the first one
    cdef bint settled             # value and error are the outcome
    cdef int64_t position         # log position behind its append, for PositionWaiters
    cdef bint publish(self, object value, object error) noexcept
    cdef int block(self, object timeout) except -1
    cdef object outcome(self)
    cdef int enlist(self, object waiter) except -1
    cdef int forget(self, object waiter) except -1
    cdef int tell(self, list waits) except -1


# Settle all futures with an error; if it is None, with the value that each was created with.
cdef int settle(list futures, object error) except -1

# Settle each future with its own outcome, as `settle_all` does.
cdef int settle_each(object outcomes) except -1
