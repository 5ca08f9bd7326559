# cython: auto_pickle=False, autotestdict=False
"""Frames: the codec of every TCP stream, and the parser that takes a stream cut anywhere.

A frame is `i64 offset, u32 size, body`, big-endian: the wire of RocketMQ's HA master, 12 bytes in front of the
body. Size 0 is a heartbeat. Functions and classes raise InvalidArgumentError for arguments out of range and
FrameError for bytes of the peer that are no frame.

Threads: the functions are free of state. One parser belongs to one thread or task at a time; its batches and their
views may go to any thread and outlive the parser. The GIL is kept: walking a buffer costs a few ns per frame.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_Index
from libc.string cimport memmove

from pyreplog._native.system.blocks cimport give_block, take_block
from pyreplog.errors import FrameError, InvalidArgumentError, OutOfRangeError

HEADER_SIZE = FRAME_HEADER
CONTROL_OFFSET = -1
MAX_BODY = BODY_LIMIT
DEFAULT_MAX_BODY = 4 * 1024 * 1024 - FRAME_HEADER   # the largest body that a RocketMQ slave takes

cdef int ROUNDS = 16    # relocations after which a buffer grown for a rare frame is given up
cdef dict ORDERS = {"any": ORDER_ANY, "contiguous": ORDER_CONTIGUOUS, "non-decreasing": ORDER_NON_DECREASING}


cdef int64_t int64_of(object value, str name) except? -1:
    try:
        return PyNumber_Index(value)    # Cython's own conversion would cut a float
    except OverflowError:
        raise InvalidArgumentError(f"{name}: expected a signed 64-bit integer, found {value}") from None


cdef int64_t body_size(int64_t size) except -1:
    if not 0 <= size <= BODY_LIMIT:
        raise InvalidArgumentError(f"size: expected a body of 0 to {BODY_LIMIT} bytes, found {size}")
    return size


def encode_header(offset, size, /):
    """Return the 12 bytes in front of a body of `size` bytes, for a body that is sent separately."""
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER)
    put_header(PyBytes_AS_STRING(frame), int64_of(offset, "offset"), body_size(int64_of(size, "size")))
    return frame


def heartbeat(offset, /):
    """Return a frame without a body. In log streaming, `offset` is the position of the next byte to be sent."""
    return encode_header(offset, 0)


def encode(offset, body, /):
    """Return one frame. offset: log position or correlation id; -1: a control body. body: bytes-like."""
    cdef Py_ssize_t size = size_of(body)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER + size)
    put_frame(PyBytes_AS_STRING(frame), int64_of(offset, "offset"), size, body)
    return frame


def encode_many(offsets, bodies, /):
    """Return the frames of `bodies` (bytes-like), one after the other, at as many `offsets`."""
    cdef list parts = list(bodies)
    cdef list places = [int64_of(offset, "offset") for offset in offsets]
    cdef list sizes = [size_of(part) for part in parts]
    cdef Py_ssize_t at = 0, i
    if len(places) != len(parts):
        raise InvalidArgumentError(f"expected as many offsets as bodies, found {len(places)} and {len(parts)}")
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, FRAME_HEADER * len(parts) + sum(sizes))
    for i in range(len(parts)):
        put_frame(PyBytes_AS_STRING(frames) + at, places[i], sizes[i], parts[i])
        at += FRAME_HEADER + <Py_ssize_t>sizes[i]
    return frames


cdef Py_ssize_t size_of(object body) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return body_size(view.len)


cdef int put_frame(char *p, int64_t offset, Py_ssize_t size, object body) except -1:
    """The size is checked again: getting a buffer runs the code of its owner, which may resize other bodies."""
    cdef Py_buffer view
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len != size:
            raise InvalidArgumentError(f"a body of {size} bytes had {view.len} when it was encoded")
        put_header(p, offset, size)
        memcpy(p + FRAME_HEADER, view.buf, size)
    finally:
        PyBuffer_Release(&view)
    return 0


@cython.final
cdef class _Chunk:
    """Memory that counts its readers. While it has one, parsed bytes are neither overwritten nor moved."""

    def __cinit__(self, Py_ssize_t capacity):
        self.data = take_block(capacity, &self.size)
        if self.data == NULL:
            raise MemoryError(f"no memory for a receive buffer of {capacity} bytes")
        self.capacity = capacity

    def __dealloc__(self):
        give_block(self.data, self.size)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.capacity, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


@cython.final
cdef class _Window:
    """The writable rest of a chunk. Not counted as a reader: an event loop holds it while it reports what arrived."""

    def __cinit__(self, _Chunk chunk not None, Py_ssize_t start):
        if not 0 <= start <= chunk.capacity:
            raise InvalidArgumentError(f"window: expected a start of 0 to {chunk.capacity}, found {start}")
        self.chunk, self.start = chunk, start

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.chunk.data + self.start, self.chunk.capacity - self.start, 0, flags)


@cython.final
@cython.no_gc_clear     # `__dealloc__` needs the chunk
cdef class FrameBatch:
    """The frames that one call completed, in order: `len(batch)`, columns, and (offset, body) pairs by iteration.

    Bodies are read-only views of the receive buffer. A batch and every view or array taken from it keep that buffer
    alive and unchanged, whatever the parser receives later: hold them for as long as needed, and no longer, for each
    holds a whole buffer. `error` is the FrameError that ended the stream behind the last frame, or None.
    """

    def __dealloc__(self):
        if self.chunk is not None:
            self.chunk.exports -= 1

    def __len__(self):
        return self.count

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            yield self.column(0)[i], self.body(i)

    def body(self, Py_ssize_t i, /):
        """Return a view of body number `i` (from 0); a heartbeat's is empty. Raises OutOfRangeError."""
        if not 0 <= i < self.count:
            raise OutOfRangeError(f"body: expected a number below {self.count}, found {i}")
        cdef int64_t start = self.column(2)[i]
        return self.view()[start:start + self.column(1)[i]]

    def alone(self):
        """Return (offset, view of the body) of the only frame; None if the batch has none, or several."""
        if self.count != 1:
            return None
        return load_i64(self.data), self.view()[FRAME_HEADER:self.length]

    def run(self, Py_ssize_t i, int64_t unit, /):
        """Return the frames from number `i` on whose offsets follow each other.

        A frame at a multiple of `unit` or at -1 is a run by itself, and so is a heartbeat. Returns (offset, list of
        bodies, their bytes, number of the frame behind them). Raises OutOfRangeError if there is no frame `i`, and
        InvalidArgumentError for a unit below 1.
        """
        if unit < 1:
            raise InvalidArgumentError(f"unit: expected 1 or more, found {unit}")
        cdef list bodies = [self.body(i)]
        cdef const int64_t *offsets = self.column(0)
        cdef const int64_t *sizes = self.column(1)
        cdef int64_t start = offsets[i], size = sizes[i]
        i += 1
        if start >= 0 and start % unit and size:
            while i < self.count and sizes[i] and offsets[i] >= 0 and offsets[i] - start == size and offsets[i] % unit:
                bodies.append(self.body(i))
                size += sizes[i]
                i += 1
        return start, bodies, size, i

    def note(self, dict sizes not None, Py_ssize_t extra, /):
        """Add the size of each body, plus `extra`, to `sizes`, by the offset of its frame.

        Heartbeats and control bodies are skipped. Returns (the sum, None). It stops at an offset that is negative or in
        `sizes` already, and returns that in place of None.
        """
        cdef Py_ssize_t i, total = 0
        cdef const int64_t *offsets = self.column(0)
        cdef const int64_t *lengths = self.column(1)
        for i in range(self.count):
            if not lengths[i] or offsets[i] == CONTROL_OFFSET:
                continue
            if offsets[i] < 0 or offsets[i] in sizes:
                return total, offsets[i]
            sizes[offsets[i]] = lengths[i] + extra
            total += lengths[i] + extra
        return total, None

    @property
    def buffer(self):
        """View of all frames, headers included; `start` is a place in it."""
        return self.view()[:] if self.count else memoryview(b"")

    @property
    def offset(self):
        """Offset of each frame: read-only int64 array."""
        return self.array(0)

    @property
    def size(self):
        """Bytes of each body: read-only int64 array."""
        return self.array(1)

    @property
    def start(self):
        """Where each body begins in `buffer`: read-only int64 array."""
        return self.array(2)

    cdef object view(self):
        if self.frames is None:
            self.frames = PyMemoryView_FromObject(self.chunk)[self.begin:self.begin + self.length]
        return self.frames

    cdef object array(self, int which):
        import numpy
        self.column(which)
        return numpy.frombuffer(self.columns, numpy.int64, self.count, which * self.count * sizeof(int64_t))

    cdef const int64_t *column(self, int which) except NULL:
        cdef bytes columns = self.columns
        if columns is None:
            columns = PyBytes_FromStringAndSize(NULL, 3 * self.count * sizeof(int64_t))
            if not index(self.data, self.length, self.count, <int64_t *>PyBytes_AS_STRING(columns)):
                raise InvalidArgumentError("the receive buffer was written to after its bytes were reported")
            self.columns = columns
        return <const int64_t *>PyBytes_AS_STRING(columns) + which * self.count


@cython.final
cdef class FrameParser:
    """Takes a byte stream cut anywhere and gives back its frames, without copying a body it can view.

    Receive straight into its memory, then say how much came (asyncio.BufferedProtocol calls the two so as well):

        n = sock.recv_into(parser.get_buffer())
        batch = parser.received(n)

    max_body: bytes; a larger size is refused as soon as its header is there. offsets: "any" (correlation ids),
    "contiguous" (log positions: each frame begins where the last one ended) or "non-decreasing"; frames at offset -1
    are control bodies and stand outside the order. start: the offset that the first frame must have (contiguous) or
    reach (non-decreasing); None: any from 0. buffer_size: bytes of a receive buffer, at least 64.

    A bad frame ends the stream: the call that meets it returns the good frames before it, with the FrameError as
    `batch.error`; every later call raises that error. End of stream is the caller's to see: `buffered` tells whether
    it cut a frame.

    Memory: at most two buffers of max(buffer_size, one frame of max_body) bytes, besides those that batches and views
    still hold. They grow to the largest frame seen and shrink when such frames stop coming. Only the beginning of an
    incomplete frame is ever moved, when the buffer has no room for the rest.
    """

    def __cinit__(self, *, max_body=DEFAULT_MAX_BODY, offsets="any", start=None, buffer_size=65536):
        self.rules.max_body = int64_of(max_body, "max_body")
        if not 0 <= self.rules.max_body <= BODY_LIMIT:
            raise InvalidArgumentError(f"max_body: expected 0 to {BODY_LIMIT} bytes, found {max_body}")
        if offsets not in ORDERS:
            raise InvalidArgumentError(f"offsets: expected one of {', '.join(ORDERS)}, found {offsets}")
        self.rules.order, self.rules.next = ORDERS[offsets], -1
        if start is not None:
            self.rules.next = int64_of(start, "start")
            if self.rules.next < 0 or self.rules.order == ORDER_ANY:
                raise InvalidArgumentError(f"start: expected an offset from 0 and an order to check, found {start}")
        self.buffer_size = self.target = int64_of(buffer_size, "buffer_size")
        if not 64 <= self.buffer_size <= BODY_LIMIT:
            raise InvalidArgumentError(f"buffer_size: expected 64 to {BODY_LIMIT} bytes, found {buffer_size}")
        self.chunk = _Chunk(buffer_size)
        self.size = -1

    def get_buffer(self, Py_ssize_t hint=-1, /):
        """Writable view to receive into, never empty, valid until the next call. Raises FrameError after a bad frame.

        hint: bytes the caller would like room for; the view may be smaller or larger.
        """
        self.window = self.make_room(hint)
        return PyMemoryView_FromObject(_Window(self.chunk, self.end))

    def received(self, Py_ssize_t count, /):
        """FrameBatch of the frames that `count` more bytes, put at the start of the last get_buffer(), complete.

        Raises FrameError after a bad frame, InvalidArgumentError for more bytes than the view could take.
        """
        self.refuse_after_failure()
        if not 0 <= count <= self.window:
            raise InvalidArgumentError(f"received: expected 0 to {self.window} bytes, found {count}")
        return self.take(count)

    def feed(self, data, /):
        """FrameBatch of the frames completed by `data` (bytes-like, copied). Raises FrameError after a bad frame."""
        self.refuse_after_failure()
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len > self.chunk.capacity - self.end:
                self.relocate(max(self.fit(), self.end - self.start + view.len))
            memmove(self.chunk.data + self.end, view.buf, view.len)
            self.end += view.len
        finally:
            PyBuffer_Release(&view)
        self.window = 0
        batch = self.advance()
        if self.chunk.capacity > self.target:                # made for this call: leave it to the batch
            self.relocate(self.fit())
        return batch

    @property
    def buffered(self):
        """Bytes of the incomplete frame, header included; at the end of a stream, more than 0 means a cut frame."""
        return self.end - self.start

    @property
    def received_bytes(self):
        """All that came so far, but for what stands behind a bad frame."""
        return self.position + self.end - self.start

    @property
    def pending(self):
        """(offset, size, bytes of the body received) of the incomplete frame; None before its header is complete."""
        if self.size < 0:
            return None
        return self.offset, self.size, self.end - self.start - FRAME_HEADER

    @property
    def capacity(self):
        """Bytes of memory the parser holds, without buffers that only batches and views still hold."""
        return self.chunk.capacity + (self.spare.capacity if self.spare is not None else 0)

    def take_partial(self, /):
        """Hand over the incomplete frame: (offset, size, view of the part received); None as for `pending`.

        For the parser that frame is then done: the caller takes the other `size - len(view)` bytes from the stream
        itself (recv_into a mapped log) and then goes on with get_buffer(). Raises FrameError after a bad frame.
        """
        self.refuse_after_failure()
        if self.size < 0:
            return None
        part = PyMemoryView_FromObject(self.chunk)[self.start + FRAME_HEADER:self.end]
        taken = self.offset, self.size, part
        pass_over(&self.rules, self.offset, self.size)
        self.position += FRAME_HEADER + self.size
        self.start, self.size, self.window = self.end, -1, 0
        return taken

    cdef Py_ssize_t make_room(self, Py_ssize_t hint) except -1:
        """Bytes that may be put behind `end` in the chunk; at least one."""
        self.refuse_after_failure()
        cdef Py_ssize_t tail = self.end - self.start
        cdef Py_ssize_t room = self.chunk.capacity - self.end
        cdef Py_ssize_t want = min(max(hint, self.buffer_size // 4), self.buffer_size // 2)
        if (tail == 0 and self.chunk.exports == 0            # a fresh start costs nothing
                or self.start + self.needed() > self.chunk.capacity
                or room < want and tail < want):             # a short copy is cheaper than a short read
            self.relocate(self.fit())
        return self.chunk.capacity - self.end

    cdef FrameBatch take(self, Py_ssize_t count):
        """The frames that `count` more bytes complete; they lie behind `end`."""
        self.window = 0
        self.end += count
        return self.advance()

    cdef FrameBatch advance(self):
        cdef FrameBatch batch = FrameBatch.__new__(FrameBatch)
        cdef Walk walk
        cdef const uint8_t *data = self.chunk.data + self.start
        cdef int status = parse(data, self.end - self.start, &self.rules, &walk)
        if walk.count:
            batch.data, batch.length, batch.count = data, walk.length, walk.count
            batch.chunk, batch.begin = self.chunk, self.start
            self.chunk.exports += 1
            self.start += walk.length
            self.position += walk.length
            self.largest = max(self.largest, FRAME_HEADER + walk.largest)
        self.offset, self.size = walk.offset, walk.size
        if status != FRAME_MORE:
            self.failure = refusal(status, &self.rules, &walk, self.position)
            batch.error = FrameError(*self.failure)
            self.start, self.size = self.end, -1             # bytes behind a bad header are dropped
        return batch

    cdef Py_ssize_t needed(self) noexcept:
        """Bytes of the frame to come, as far as known: its header, and its body once the header is there."""
        return FRAME_HEADER + max(self.size, 0)

    cdef Py_ssize_t fit(self):
        """Return the next capacity, for the largest recent frame. Grow at once, shrink after ROUNDS relocations."""
        self.largest = max(self.largest, self.needed())
        self.target = max(self.target, self.largest)
        self.rounds += 1
        if self.rounds == ROUNDS:
            self.target = max(self.buffer_size, self.largest)
            self.largest = self.rounds = 0
        return self.target

    cdef int relocate(self, Py_ssize_t capacity) except -1:
        """Move the incomplete frame to the start of a chunk that nobody reads: this, the spare, or a new one.

        It fits: parsing leaves less than `needed()` bytes, and `fit()` is not below that.
        """
        cdef _Chunk old = self.chunk, new = old
        if old.exports or old.capacity != capacity:
            new = self.spare
            if new is None or new.exports or new.capacity != capacity:
                new = _Chunk(capacity)
            self.spare = old if old.capacity == self.target else None
        memmove(new.data, old.data + self.start, self.end - self.start)
        self.chunk = new
        self.start, self.end = 0, self.end - self.start
        return 0

    cdef int refuse_after_failure(self) except -1:
        if self.failure is not None:
            raise FrameError(*self.failure)
        return 0


cdef tuple refusal(int status, const Rules *rules, const Walk *walk, int64_t position):
    """What FrameError is made of: where in the stream, expected, found."""
    if status == FRAME_SIZE:
        negative = f" (as i32: {walk.size - (1 << 32)})" if walk.size > BODY_LIMIT else ""
        return position, f"a body of at most {rules.max_body} bytes", f"size {walk.size}{negative}"
    if walk.offset < 0:
        return position, "an offset from 0, or -1 for a control body", f"offset {walk.offset}"
    if walk.offset > INT64_MAX - walk.size:
        return position, "a body that ends below 2**63", f"{walk.size} bytes at offset {walk.offset}"
    order = "offset" if rules.order == ORDER_CONTIGUOUS else "an offset of at least"
    return position, f"{order} {rules.next}", f"offset {walk.offset}"
