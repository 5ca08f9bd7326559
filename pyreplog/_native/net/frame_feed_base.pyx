"""Sends what was just appended to a replica: from the mapped segment into the socket, without Python code in between.

Threads: any; under the GIL each call is one step.
"""

from libc.stdint cimport int64_t

from pyreplog._native.layout cimport SEGMENT_HEADER
from pyreplog._native.log.log_view_base cimport LogViewBase
from pyreplog._native.log.segment cimport Segment
from pyreplog._native.log.tail_page cimport load
from pyreplog._native.net.send_queue cimport FrameSendQueue

cdef enum:
    LITTLE = 8 << 10    # bytes that are sent with the GIL kept


cdef class FrameFeedBase:
    """Base of a FrameFeed: it sends the next frame if that completes the stream. Subclasses set `_held`, `_stop` and
    `_truncations`.

    `FrameFeedBase(log, transfer_bytes)`. position: of the next byte to be sent. turn: the lock of the thread that sends
    by the subclass. left_bytes: bytes of bodies that `leave` has sent.
    """

    cdef public int64_t position
    cdef public object _held          # (pin, segment) where `position` lies, when that is known
    cdef public int64_t _stop         # offset in it behind its last byte to be sent; 0: it is not sealed yet
    cdef public unsigned int _truncations
    cdef public object turn
    cdef readonly int64_t left_bytes
    cdef LogViewBase log
    cdef FrameSendQueue send_queue
    cdef int64_t most

    def __init__(self, LogViewBase log not None, int64_t transfer_bytes, /):
        self.log, self.most = log, min(transfer_bytes, <int64_t>LITTLE)

    def begin(self, FrameSendQueue send_queue not None, Py_ssize_t size_max, /):
        """Let frames of at most `size_max` bytes leave directly by a send queue."""
        self.send_queue, self.most = send_queue, min(self.most, <int64_t>size_max)

    def end(self):
        """Let no more frames leave directly."""
        self.send_queue = None

    def leave(self):
        """Send all that the log has behind `position` as one frame, if it is little and lies in one segment.

        Returns False if nothing was sent; then `take` tells what there is. It is one C call, which Ctrl-C does not
        interrupt.
        """
        cdef int64_t begin = self.position, end = load(&self.log.tail.page.end)
        cdef Segment segment
        if self.send_queue is None or self._held is None or self._stop or not begin < end <= begin + self.most:
            return False
        segment = self._held[1]
        if (begin - segment.base < SEGMENT_HEADER or end >= segment.base + segment.size
                or self.log.truncation_count != self._truncations or self.turn.locked()):
            return False
        self.position = end
        if not self.send_queue.leaves(begin, (segment.view(begin - segment.base, end - begin),), end - begin):
            self.position = begin
            return False
        self.left_bytes += end - begin
        return True
