# The handle of something submitted; ack.py says how it works.
from libc.stdint cimport int64_t


cdef class AppendFuture:
    cdef object value             # what it completes with
    cdef object error             # what it failed with, or None
    cdef list waiters             # Waits, locks and callbacks; None before the first one
    cdef bint settled             # value and error are the outcome
    cdef int64_t position         # the end of its append, in the line of a log's PositionWaiters
    cdef bint publish(self, object value, object error) noexcept
    cdef int block(self, object timeout) except -1
    cdef object outcome(self)
    cdef int enlist(self, object waiter) except -1
    cdef int forget(self, object waiter) except -1
    cdef int tell(self, list waits) except -1


# Settle all: with the value of their creation (error None), or with an error.
cdef int settle(list acks, object error) except -1

# Settle each with its own outcome: `settle_all`.
cdef int settle_each(object outcomes) except -1
