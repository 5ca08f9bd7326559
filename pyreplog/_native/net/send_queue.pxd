from libc.stdint cimport int64_t

from pyreplog._native.system.mutex cimport Mutex


cdef class SendQueue:
    cdef object sendmsg
    cdef object buffers             # a deque
    cdef readonly int64_t queued_bytes, sent_bytes

    cdef Py_ssize_t hand(self, object buffers) except -1
    cdef int keep(self, object buffers, int64_t size, int64_t sent) except -1
    cdef int drop(self, int64_t count) except -1


cdef class FrameSendQueue(SendQueue):
    cdef object stream, grew
    cdef readonly Mutex lock
    cdef readonly bint plain
    cdef public bint corked
    cdef public object error

    cdef Py_ssize_t hand_frame(self, int64_t offset, tuple body, Py_ssize_t size) except -1
    cdef int put_frame(self, int64_t offset, tuple body, Py_ssize_t size) except -1
    cdef int put_whole(self, bytes frames) except -1
    cdef bint begins(self) except -1
    cdef bint goes(self, bytes frames, int64_t offset, tuple body, Py_ssize_t size) except -1
    cdef bint whole_leaves(self, bytes frames) except -1
    cpdef bint leaves(self, int64_t offset, tuple body, Py_ssize_t size) except -1
