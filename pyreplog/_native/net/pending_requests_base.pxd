from libc.stdint cimport int64_t

from pyreplog._native.net.send_queue cimport FrameSendQueue
from pyreplog._native.system.mutex cimport Mutex


cdef class PendingRequestsBase:
    cdef readonly dict waiting
    cdef public Mutex lock
    cdef FrameSendQueue send_queue
    cdef Py_ssize_t size_max
    cdef int64_t last_id
    cdef public int64_t check_us

    cdef int64_t leave(self, tuple body, Py_ssize_t size, object on_reply, int64_t deadline_us) except -2


# Implements `send_alone`.
cdef Py_ssize_t leave_alone(list adds, Py_ssize_t first, dict queues, dict channels, Py_ssize_t most,
                            int64_t deadline_us) except -1
