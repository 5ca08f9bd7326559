from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.quorum.ack_tracker cimport Part


cdef class Answer:
    cdef readonly object driver, send
    cdef readonly Part part
    cdef readonly int64_t ledger

    cdef bint is_ok(self, object reply) except -1


cdef class AddQueue:
    cdef readonly Py_ssize_t unanswered
    cdef public bint waits

    cdef AddGroup alone(self, Py_ssize_t most, tuple request, object on_reply)


cdef class AddGroup:
    cdef readonly AddQueue queue
    cdef readonly int64_t ledger, first, last
    cdef readonly tuple adds

    cdef bint settle(self, const uint8_t *reply, int64_t size) except -1
    cdef int tell(self, list queues, list tellers) except -1
