"""Sends and receives bytes over sockets that are open.

The GIL is released around the copy of many bytes. It is kept around small sends and receives: they take a few
microseconds, and among busy threads the way back to the GIL takes longer.
"""

import os

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EBADF, EINTR, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from pyreplog._native.net.frame cimport BODY_LIMIT, FRAME_HEADER, FrameBatch, FrameParser, put_header

from pyreplog.errors import InvalidArgumentError

cdef Py_ssize_t KEEP_GIL_BELOW = 16 << 10

cdef enum:
    FEW = 4     # buffers that need no memory of their own


cdef extern from * nogil:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <unistd.h>
    #include <limits.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    static ssize_t replog_send(int fd, struct iovec *parts, size_t count) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    static ssize_t replog_receive(int fd, uint8_t *data, size_t room) { return recv(fd, data, room, MSG_DONTWAIT); }
    static int replog_ring(int fd) {
        const uint64_t one = 1;
        return write(fd, &one, sizeof(one)) == sizeof(one) ? 0 : errno;
    }
    """
    struct iovec:
        void *iov_base
        size_t iov_len
    enum:
        IOV_MAX
    Py_ssize_t send_parts "replog_send"(int fd, iovec *parts, size_t count)
    Py_ssize_t receive_some "replog_receive"(int fd, uint8_t *data, size_t room)
    int ring_once "replog_ring"(int fd)


cdef object failed(int code):
    return OSError(code, os.strerror(code))


cdef int descriptor(object stream) except -1:
    cdef int fd = stream.fileno()
    if fd < 0:
        raise failed(EBADF)
    return fd


@cython.final
cdef class _Buffers:
    """Buffers of other objects, held as long as this object lives."""

    cdef Py_buffer *views
    cdef iovec *parts
    cdef Py_ssize_t count, size
    cdef Py_buffer few_views[FEW]
    cdef iovec few_parts[FEW]
    cdef char header[FRAME_HEADER]

    def __cinit__(self, Py_ssize_t most):
        if most <= FEW:
            self.views, self.parts = self.few_views, self.few_parts
            return
        self.views = <Py_buffer *>PyMem_Malloc(most * sizeof(Py_buffer))
        self.parts = <iovec *>PyMem_Malloc(most * sizeof(iovec))
        if self.views == NULL or self.parts == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            PyBuffer_Release(&self.views[i])
        if self.views != self.few_views:
            PyMem_Free(self.views)
            PyMem_Free(self.parts)

    cdef int hold(self, object data) except -1:
        cdef Py_buffer *view = &self.views[self.count]
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
        self.parts[self.count].iov_base, self.parts[self.count].iov_len = view.buf, view.len
        self.count += 1
        self.size += view.len
        return 0

    cdef void begin_frame(self, int64_t offset, int64_t size) noexcept:
        """Put the header of a frame with a body of `size` bytes in the first part."""
        put_header(self.header, offset, size)
        memset(&self.views[0], 0, sizeof(Py_buffer))   # nobody's
        self.parts[0].iov_base, self.parts[0].iov_len = self.header, FRAME_HEADER
        self.count, self.size = 1, FRAME_HEADER

    cdef Py_ssize_t send(self, object stream) except -1:
        cdef int fd = descriptor(stream), code = EINTR
        cdef Py_ssize_t sent = -1
        while sent < 0 and code == EINTR:
            if self.size < KEEP_GIL_BELOW:
                sent = send_parts(fd, self.parts, self.count)
                code = errno
            else:
                with nogil:
                    sent = send_parts(fd, self.parts, self.count)
                    code = errno
        if sent < 0:
            raise failed(code)
        return sent


def send(stream, buffers, /):
    """Hand the first IOV_MAX of `buffers` to a socket without waiting, and return how many bytes it took.

    stream: has a `fileno`. Raises BlockingIOError if it takes none now, and OSError.
    """
    return hand_over(stream, buffers)


def send_frame(stream, int64_t offset, tuple body not None, Py_ssize_t size, /):
    """Send one frame, whose body of `size` bytes consists of a few buffers, as `send` does.

    Raises InvalidArgumentError if the body is larger than a frame may be.
    """
    return hand_over_frame(stream, offset, body, size)


def receive(stream, FrameParser parser not None, /):
    """Receive from a socket without waiting, as much as the parser's buffer takes.

    Returns (number of bytes, FrameBatch that they complete). 0 bytes: the stream has ended. stream: has a `fileno`.
    Raises BlockingIOError if nothing has arrived, OSError, and FrameError after a bad frame.
    """
    cdef Py_ssize_t count
    cdef FrameBatch batch = take_in(stream, parser, &count)
    return count, batch


cdef Py_ssize_t hand_over(object stream, object buffers) except -1:
    cdef Py_ssize_t most = min(<Py_ssize_t>len(buffers), <Py_ssize_t>IOV_MAX)
    cdef _Buffers held = _Buffers(most)
    for data in buffers:
        if held.count == most:
            break
        held.hold(data)
    return held.send(stream)


cdef Py_ssize_t hand_over_bytes(object stream, bytes data) except -1:
    cdef int fd = descriptor(stream), code = EINTR
    cdef Py_ssize_t sent = -1
    cdef iovec part
    part.iov_base, part.iov_len = PyBytes_AS_STRING(data), len(data)
    while sent < 0 and code == EINTR:
        if <Py_ssize_t>part.iov_len < KEEP_GIL_BELOW:
            sent = send_parts(fd, &part, 1)
            code = errno
        else:
            with nogil:
                sent = send_parts(fd, &part, 1)
                code = errno
    if sent < 0:
        raise failed(code)
    return sent


cdef Py_ssize_t hand_over_frame(object stream, int64_t offset, tuple body, Py_ssize_t size) except -1:
    cdef _Buffers held = _Buffers(1 + len(body))
    cdef object data
    if not 0 <= size <= BODY_LIMIT or len(body) >= IOV_MAX:
        raise InvalidArgumentError(f"a frame has at most {BODY_LIMIT} bytes, in {IOV_MAX - 1} parts here: found {size}")
    held.begin_frame(offset, size)
    for data in body:
        held.hold(data)
    return held.send(stream)


cdef FrameBatch take_in(object stream, FrameParser parser, Py_ssize_t *count):
    cdef int fd = descriptor(stream)
    cdef Py_ssize_t room = parser.make_room(-1), first = min(room, KEEP_GIL_BELOW), got, more = 0
    cdef uint8_t *data = parser.chunk.data + parser.end
    cdef object chunk = parser.chunk
    got = receive_some(fd, data, first)
    while got < 0 and errno == EINTR:
        got = receive_some(fd, data, first)
    if got < 0:
        raise failed(errno)
    if got == first and room > first:
        with nogil:
            more = receive_some(fd, data + first, room - first)
        if more > 0:  # an end, or an error, is met again
            got += more
    count[0] = got
    return parser.take(got)


def ring(int event, /):
    """Add one to an eventfd. Raises BlockingIOError if it is full, and OSError.

    The GIL is kept: otherwise the woken thread takes it, and this one, which may have more for it, has to wait.
    """
    cdef int code = ring_once(event)
    if code:
        raise failed(code)
