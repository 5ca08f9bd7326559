# Sends what was just appended to a replica; see frame_feed_base.pyx.
from libc.stdint cimport int64_t

from pyreplog._native.log.log_view_base cimport LogViewBase
from pyreplog._native.net.send_queue cimport FrameSendQueue


cdef class FrameFeedBase:
    cdef public int64_t position
    cdef public object _held          # (pin, segment) where `position` lies, when that is known
    cdef public int64_t _stop         # offset in it behind its last byte to be sent; 0: it is not sealed yet
    cdef public unsigned int _truncations
    cdef public object turn
    cdef readonly int64_t left_bytes
    cdef LogViewBase log
    cdef FrameSendQueue send_queue
    cdef int64_t most

    # Bytes of the log from `position` to its end.
    cdef int64_t bytes_behind(self) noexcept
    cdef bint leaves(self) except -1      # as `leave`
