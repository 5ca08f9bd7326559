"""Cuts the stream of a Kafka connection into requests: each is its size, `i32` big endian, and as many bytes.

Requests are views of the memory that they were received into. This memory is never written again, so they stay as they are
whatever arrives later, and keep it as long as they are held. A connection between two requests holds no memory.

A size is believed as far as bytes arrive: memory for a request is at most doubled at a time.

Threads: a parser belongs to one thread or task at a time; requests may go to any.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport INT32_MAX, int64_t, uint8_t
from libc.string cimport memcpy

from pyreplog._native.kafka.wire cimport get_int32
from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog.errors import InvalidArgumentError, InvalidRequestError

cdef enum:
    SIZE_BYTES = 4
    REQUEST_MIN = 8                 # API key, version, correlation id
    BLOCK_MIN = 4 << 10
    BLOCK_MAX = 256 << 10           # of a block that is not for one large request
    BELIEVED_BYTES = 128 << 10      # of a request of which nothing has arrived

MAX_REQUEST_BYTES = 100 << 20
"""Of a request, as `socket.request.max.bytes` of Kafka, unless the parser is told another limit."""


@cython.final
cdef class _Window:
    """The writable rest of a block."""

    cdef Block block
    cdef Py_ssize_t start

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.block.data + self.start, self.block.length - self.start, 0, flags)


@cython.final
cdef class RequestParser:
    """Takes the stream of a connection, and gives its requests.

    max_request_bytes: of a request without its size. Raises InvalidArgumentError if that is not 8 to 2^31 - 1.

    Attributes:
        error: the InvalidRequestError behind the last request, or None. The connection is to be closed.
        buffered: bytes of a request that is not complete.
    """

    cdef readonly object error
    cdef Block block
    cdef Py_ssize_t parsed, filled          # of the block: where the next request begins, where the next byte goes
    cdef Py_ssize_t block_bytes             # of the next block
    cdef Py_ssize_t max_request_bytes
    cdef int64_t before                     # bytes of the stream in front of the block

    def __cinit__(self, *, Py_ssize_t max_request_bytes=MAX_REQUEST_BYTES):
        if not REQUEST_MIN <= max_request_bytes <= INT32_MAX:
            raise InvalidArgumentError(f"max_request_bytes: expected {REQUEST_MIN} to {INT32_MAX}, found {max_request_bytes}")
        self.max_request_bytes, self.block_bytes, self.error = max_request_bytes, BLOCK_MIN, None

    @property
    def buffered(self):
        return self.filled - self.parsed

    @property
    def memory(self):
        """Bytes of the block that the parser holds; 0: it holds none."""
        return 0 if self.block is None else self.block.length

    @property
    def next_memory(self):
        """Bytes of the block that it will hold after the next `get_buffer`."""
        if self.block is not None and self.filled < self.block.length:
            return self.block.length
        return self.next_block()

    def begin_small(self):
        """Have the next request begin in the smallest block, whatever the traffic was."""
        self.block_bytes = BLOCK_MIN

    def get_buffer(self, Py_ssize_t hint=-1, /):
        """Return writable memory for what arrives next. Say with `received` how much of it was filled. hint: ignored."""
        self.check()
        self.make_room()
        cdef _Window window = _Window.__new__(_Window)
        window.block, window.start = self.block, self.filled
        return PyMemoryView_FromObject(window)

    def received(self, Py_ssize_t count, /):
        """Take the first `count` bytes of the memory that `get_buffer` returned. Returns the requests that are complete.

        A size that is out of range sets `error`; the requests in front of it are returned. Raises that error when it is
        called again, and InvalidArgumentError for more bytes than there was memory for.
        """
        self.check()
        cdef Py_ssize_t room = 0 if self.block is None else self.block.length - self.filled
        if not 0 <= count <= room:
            raise InvalidArgumentError(f"count: expected 0 to {room}, found {count}")
        if count == room:
            self.block_bytes = min(2 * self.block_bytes, <Py_ssize_t>BLOCK_MAX)
        elif count < room // 4:
            self.block_bytes = max(self.block_bytes // 2, <Py_ssize_t>BLOCK_MIN)
        self.filled += count
        return self.parse()

    def feed(self, data, /):
        """Take bytes that are elsewhere. Returns the requests that are complete, as `received` does."""
        cdef Py_buffer view
        cdef Py_ssize_t at = 0, count
        cdef list requests = []
        self.check()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while at < view.len and self.error is None:
                self.make_room()
                count = min(view.len - at, self.block.length - self.filled)
                memcpy(self.block.data + self.filled, <uint8_t *>view.buf + at, count)
                at += count
                requests += self.received(count)
        finally:
            PyBuffer_Release(&view)
        return requests

    cdef int check(self) except -1:
        if self.error is not None:
            raise self.error
        return 0

    cdef Py_ssize_t next_block(self) noexcept:
        """Return the bytes of a block in which all that is believed of the next request fits."""
        cdef Py_ssize_t held = self.filled - self.parsed
        cdef Py_ssize_t wanted
        if held < SIZE_BYTES:
            return self.block_bytes
        wanted = min(SIZE_BYTES + <Py_ssize_t>get_int32(self.block.data + self.parsed), max(2 * held, <Py_ssize_t>BELIEVED_BYTES))
        return max(wanted, self.block_bytes)

    cdef int make_room(self) except -1:
        """Have a block with at least one free byte."""
        cdef Py_ssize_t held = self.filled - self.parsed
        cdef Block block
        if self.block is not None and self.filled < self.block.length:
            return 0
        block = make_block(self.next_block())
        if held:
            memcpy(block.data, self.block.data + self.parsed, held)
        self.before += self.parsed
        self.block, self.parsed, self.filled = block, 0, held
        return 0

    cdef list parse(self):
        cdef list requests = []
        cdef Py_ssize_t size
        cdef object view = None
        while self.filled - self.parsed >= SIZE_BYTES:
            size = get_int32(self.block.data + self.parsed)
            if not REQUEST_MIN <= size <= self.max_request_bytes:
                self.error = InvalidRequestError("stream of requests", "size", self.before + self.parsed,
                                                 f"{REQUEST_MIN} to {self.max_request_bytes}", f"{size}")
                break
            if self.filled - self.parsed < SIZE_BYTES + size:
                break
            if view is None:
                view = PyMemoryView_FromObject(self.block)
            requests.append(view[self.parsed + SIZE_BYTES:self.parsed + SIZE_BYTES + size])
            self.parsed += SIZE_BYTES + size
        if self.parsed == self.filled:
            self.before += self.parsed
            self.block, self.parsed, self.filled = None, 0, 0
        return requests
