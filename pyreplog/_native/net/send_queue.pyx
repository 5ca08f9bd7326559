"""Queues of buffers that are sent over a socket. Buffers are kept, not copied.

Threads: one at a time; a FrameSendQueue has a lock for that.
"""

import socket
from collections import deque
from itertools import islice

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

from pyreplog._native.net.frame import encode_header

from pyreplog._native.layout cimport FRAME_HEADER
from pyreplog._native.net.socket_io cimport hand_over, hand_over_bytes, hand_over_frame
from pyreplog._native.system.mutex cimport Mutex

cdef Py_ssize_t VECTOR_MAX = 1024       # buffers in one sendmsg: the kernel takes no more (IOV_MAX)
cdef int64_t JOIN_MAX = 64 << 10        # up to here, copying many small buffers into one is cheaper than each by itself


cdef class SendQueue:
    """Buffers that the kernel has not taken yet.

    `SendQueue(sendmsg)`. sendmsg: hands buffers to the kernel, and returns how many bytes it took, or raises
    BlockingIOError. queued_bytes: bytes that wait. sent_bytes: bytes that have left.
    """

    def __init__(self, sendmsg, /):
        self.sendmsg = sendmsg
        self.buffers = deque()

    def send(self, buffers, int64_t size, /):
        """Hand `buffers` (`size` bytes) to the kernel, as far as it takes them, and keep the rest. Raises OSError."""
        if self.queued_bytes:
            self.put(buffers, size)
        else:
            self.keep(buffers, size, self.hand(buffers))

    def put(self, buffers, int64_t size, /):
        """Keep `buffers` for the next flush."""
        self.buffers.extend(buffers)
        self.queued_bytes += size

    def flush(self):
        """Hand queued buffers to the kernel once, as far as it takes them. Raises OSError."""
        cdef Py_ssize_t sent
        if not self.queued_bytes:
            return
        if self.queued_bytes <= JOIN_MAX and len(self.buffers) > 2:
            joined = b"".join(self.buffers)
            self.buffers.clear()
            self.buffers.append(joined)
        sent = self.hand(list(islice(self.buffers, VECTOR_MAX)))
        self.queued_bytes -= sent
        self.drop(sent)

    def clear(self):
        self.buffers.clear()
        self.queued_bytes = 0

    cdef Py_ssize_t hand(self, object buffers) except -1:
        cdef Py_ssize_t sent
        try:
            sent = self.sendmsg(buffers)
        except BlockingIOError:
            return 0
        self.sent_bytes += sent
        return sent

    cdef int keep(self, object buffers, int64_t size, int64_t sent) except -1:
        """Queue the rest of `buffers`, of which `sent` bytes have left; the queue was empty."""
        if sent < size:
            self.buffers.extend(buffers)
            self.queued_bytes = size - sent
            self.drop(sent)
        return 0

    cdef int drop(self, int64_t count) except -1:
        """Forget the first `count` bytes."""
        cdef Py_buffer view
        cdef int64_t nbytes
        while self.buffers:
            PyObject_GetBuffer(self.buffers[0], &view, PyBUF_SIMPLE)
            nbytes = view.len
            PyBuffer_Release(&view)
            if nbytes > count:
                if count:
                    self.buffers[0] = memoryview(self.buffers[0]).cast("B")[count:]
                return 0
            count -= nbytes
            self.buffers.popleft()
        return 0


@cython.final
cdef class FrameSendQueue(SendQueue):
    """The send queue of a connection, with its lock.

    `FrameSendQueue(stream, grew)`. A plain socket gets buffers and frame headers natively; of another stream `sendmsg`
    is called. grew: called under the lock when a frame of `leaves` has to wait.

    lock: guards the queue. corked: whether buffers wait for the next flush. error: why nothing may be sent any more.
    """

    def __init__(self, stream, grew, /):
        super().__init__(stream.sendmsg)
        self.stream, self.grew = stream, grew
        self.plain = isinstance(stream, socket.socket)
        self.lock = Mutex()

    def send_frame(self, int64_t offset, tuple body not None, Py_ssize_t size, /):
        """Send one frame with a body of `size` bytes. Called under the lock, when nothing is queued."""
        self.put_frame(offset, body, size)

    cdef Py_ssize_t hand(self, object buffers) except -1:
        cdef Py_ssize_t sent
        if not self.plain:
            return SendQueue.hand(self, buffers)
        try:
            sent = hand_over(self.stream, buffers)
        except BlockingIOError:
            return 0
        self.sent_bytes += sent
        return sent

    cdef Py_ssize_t hand_frame(self, int64_t offset, tuple body, Py_ssize_t size) except -1:
        cdef Py_ssize_t sent
        if not self.plain or len(body) >= VECTOR_MAX:   # the rest is kept
            return self.hand((encode_header(offset, size), *body))
        try:
            sent = hand_over_frame(self.stream, offset, body, size)
        except BlockingIOError:
            return 0
        self.sent_bytes += sent
        return sent

    cdef int put_frame(self, int64_t offset, tuple body, Py_ssize_t size) except -1:
        cdef Py_ssize_t sent = self.hand_frame(offset, body, size)
        if sent < size + FRAME_HEADER:
            self.keep((encode_header(offset, size), *body), size + FRAME_HEADER, sent)
        return 0

    cdef int put_whole(self, bytes frames) except -1:
        """Send encoded frames over a plain socket."""
        cdef Py_ssize_t sent
        try:
            sent = hand_over_bytes(self.stream, frames)
        except BlockingIOError:
            sent = 0
        self.sent_bytes += sent
        if sent < len(frames):
            self.keep((frames,), len(frames), sent)
        return 0

    cdef bint begins(self) except -1:
        """Take the lock, if a frame may leave now. Called without the lock."""
        if not self.plain or not self.lock.try_take():
            return False
        if self.corked or self.error is not None or self.queued_bytes:
            self.lock.give()
            return False
        return True

    cpdef bint leaves(self, int64_t offset, tuple body, Py_ssize_t size) except -1:
        """Send one frame, called without the lock. Return False if it cannot leave now; then nothing was done."""
        return self.begins() and self.goes(None, offset, body, size)

    cdef bint whole_leaves(self, bytes frames) except -1:
        """Send encoded frames, as `leaves` does."""
        return self.begins() and self.goes(frames, 0, (), 0)

    cdef bint goes(self, bytes frames, int64_t offset, tuple body, Py_ssize_t size) except -1:
        """Send `frames`, or, if that is None, one frame of the other arguments; called after `begins`."""
        try:
            try:
                if frames is None:
                    self.put_frame(offset, body, size)
                else:
                    self.put_whole(frames)
            except OSError:     # nothing was sent; the next attempt gets the error, too
                return False
            if self.queued_bytes:
                self.grew()
            return True
        finally:
            self.lock.give()
