"""ADDs that ask for nothing special, looked at where they were received, and their OKs: without a Python object for each
of the steps between a frame and a frame. FORMAT.md, "Bookie protocol", has the bytes.

Threads: everything runs under the GIL.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from pyreplog._native.entries cimport LEDGERS
from pyreplog._native.frame cimport FRAME_HEADER, FrameBatch, load_i64, put_header, store_i64
from pyreplog._native.parts cimport get_buffer
from pyreplog._native.peek cimport Seen, look

cdef enum:      # a request's head
    REQUEST_BYTES = 48
    AT_FLAGS = 1
    AT_RUN = 2
    AT_STEP = 3
    AT_LEDGER = 8
    AT_FIRST = 16
    AT_LAST = 24
    AT_KEY = 32
    KEY_BYTES = 16
    KIND_ADD = 1
    FLAG_UNSYNCED = 4

cdef enum:      # a reply's head
    REPLY_BYTES = 40
    REPLY_AT_LAC = 32


@cython.final
cdef class PlainAdd:
    """An ADD of entries [first, last]; of its records nothing but their heads was looked at. Made by `plain_add` and
    `plain_request`.

    number: of its frame. key, flags: as in a Request. count, highest, lac: of the records, as `peek_entries` says.
    """

    cdef object kept                # what has the bytes, if it is not `view`
    cdef Py_buffer view             # of a request's records
    cdef bint viewed
    cdef const uint8_t *start       # of the records
    cdef readonly Py_ssize_t nbytes
    cdef readonly int64_t number, ledger, first, last, count, highest, lac
    cdef readonly bytes key
    cdef readonly int flags

    def __init__(self):
        raise TypeError("plain ADDs are made by plain_add")

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.start, self.nbytes, 1, flags)

    cdef void note(self, int64_t ledger, int64_t first, int64_t last, int flags, const Seen *seen) noexcept:
        self.ledger, self.first, self.last, self.flags = ledger, first, last, flags
        self.count, self.highest, self.lac = seen.count, seen.highest, seen.lac

    @property
    def records(self):
        """View of the encoded records."""
        return PyMemoryView_FromObject(self)

    def ok(self, int64_t lac, /):
        """The frame of the reply that they are stored."""
        cdef bytes made = PyBytes_FromStringAndSize(NULL, FRAME_HEADER + REPLY_BYTES)
        cdef char *p = PyBytes_AS_STRING(made)
        put_header(p, self.number, REPLY_BYTES)
        p += FRAME_HEADER
        memset(p, 0, AT_LEDGER)  # status OK
        store_i64(p + AT_LEDGER, self.ledger)
        store_i64(p + AT_FIRST, self.first)
        store_i64(p + AT_LAST, self.last)
        store_i64(p + REPLY_AT_LAC, lac)
        return made


def plain_add(FrameBatch batch not None, /):
    """What a batch of one frame asks for, if it is an ADD that its ledger's writer may send; else None."""
    cdef PlainAdd add
    cdef Seen seen
    cdef int64_t size, ledger, first, last
    cdef const uint8_t *p
    if batch.count != 1:
        return None
    size = batch.column(1)[0] - REQUEST_BYTES
    p = batch.data + batch.column(2)[0]
    if size <= 0 or p[0] != KIND_ADD or p[AT_RUN] != 1 or p[AT_STEP] != 1:
        return None
    if p[AT_FLAGS] & ~FLAG_UNSYNCED:
        return None
    ledger, first, last = load_i64(p + AT_LEDGER), load_i64(p + AT_FIRST), load_i64(p + AT_LAST)
    if not 0 <= ledger < LEDGERS or not 0 <= first < LEDGERS or batch.column(0)[0] < 0:
        return None
    if not look(p + REQUEST_BYTES, size, ledger, first, last, &seen):
        return None
    add = PlainAdd.__new__(PlainAdd)
    add.kept, add.start, add.nbytes, add.number = batch, p + REQUEST_BYTES, size, batch.column(0)[0]
    add.key = PyBytes_FromStringAndSize(<const char *>p + AT_KEY, KEY_BYTES)
    add.note(ledger, first, last, p[AT_FLAGS], &seen)
    return add


def plain_request(request, /):
    """The same of a Request, if it is unsynced: one object for all whom it goes to. Its number is 0."""
    cdef PlainAdd add
    cdef Seen seen
    cdef int64_t ledger = request[1], first = request[2], last = request[3]
    if request[0] != KIND_ADD or request[5] != FLAG_UNSYNCED or not 0 <= ledger < LEDGERS or not 0 <= first < LEDGERS:
        return None
    add = PlainAdd.__new__(PlainAdd)
    get_buffer(request[9], &add.view, "records")
    add.viewed, add.start, add.nbytes = True, <const uint8_t *>add.view.buf, add.view.len
    if not look(add.start, add.nbytes, ledger, first, last, &seen):
        return None
    add.key = request[4]
    add.note(ledger, first, last, FLAG_UNSYNCED, &seen)
    return add
