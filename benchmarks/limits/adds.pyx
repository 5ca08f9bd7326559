"""A client in C for plain ADDs, and the shortest path of a bookie with several I/O threads (adds.h)."""

import errno
import mmap as _mmap
import os

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyBUF_SIMPLE, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset


cdef extern from "adds.h" nogil:
    enum:
        ADDS_FRAME_HEADER
        ADDS_REQUEST_BYTES
        ADDS_KEY_BYTES
        ADDS_WINDOW_MAX
        ADDS_LEDGERS_MAX

    ctypedef struct adds_values:
        const uint8_t *start
        int64_t size
        int64_t count

    ctypedef struct adds_client:
        adds_values values
        int socket
        int64_t ledger
        int64_t next
        uint8_t key[16]
        uint8_t *frames

    enum adds_locked:
        ADDS_CRC
        ADDS_COPY
        ADDS_PLACE

    ctypedef struct adds_log:
        int64_t records
        int64_t held_ns
        int64_t takings

    ctypedef void (*adds_round)(void *context) noexcept nogil

    int64_t adds_stride(int64_t size)
    int adds_append(adds_client *client, int64_t count, int window)
    void adds_init(adds_log *log, uint8_t *memory, int64_t size, adds_locked locked)
    int adds_serve(adds_log *log, const int *sockets, int count, adds_round round, void *context)
    int64_t adds_check(const adds_log *log, const adds_values *values)

cdef extern from "layout.h" nogil:
    enum:
        REPLOG_SEGMENT_HEADER


cdef dict _LOCKED = {"CRC": ADDS_CRC, "copy": ADDS_COPY, "place": ADDS_PLACE}


cdef int raise_os(int error) except -1:
    raise OSError(error, f"{os.strerror(error)} ({errno.errorcode.get(error)}) in the bare path of an ADD")


cdef void call_round(void *context) noexcept with gil:
    (<object>context)()


cdef class Values:
    """Values of one size, end to end; entry n of a ledger has number n % count."""

    cdef bytes packed
    cdef adds_values c

    def __init__(self, list values not None):
        if len({len(value) for value in values}) != 1:
            raise ValueError("expected values of one size")
        self.packed = b"".join(values)
        self.c.start = <const uint8_t *>PyBytes_AS_STRING(self.packed)
        self.c.count, self.c.size = len(values), len(values[0])


cdef class Client:
    """The writer of one ledger, over a socket (file descriptor) that blocks, behind the handshake."""

    cdef adds_client c
    cdef Values values

    def __init__(self, int socket, Values values not None, *, int64_t ledger, bytes key not None):
        if len(key) != ADDS_KEY_BYTES:
            raise ValueError(f"expected a key of {ADDS_KEY_BYTES} bytes")
        memset(&self.c, 0, sizeof(self.c))
        self.values = values
        self.c.values, self.c.socket, self.c.ledger = values.c, socket, ledger
        memcpy(self.c.key, PyBytes_AS_STRING(key), ADDS_KEY_BYTES)
        self.c.frames = <uint8_t *>calloc(
            ADDS_WINDOW_MAX, ADDS_FRAME_HEADER + ADDS_REQUEST_BYTES + adds_stride(values.c.size)
        )
        if self.c.frames == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.c.frames)

    @property
    def entries(self):
        """How many it has added."""
        return self.c.next

    def append(self, int64_t count, int window):
        """Add so many entries, `window` at a time without a reply; the GIL is released. OSError; EPROTO: a reply is not
        the OK of the request whose turn it is."""
        cdef int error
        with nogil:
            error = adds_append(&self.c, count, window)
        if error:
            raise_os(error)


cdef class Log:
    """The log of a bookie for any number of threads: `size` bytes of memory, written over and over.

    locked: what is done under its lock besides the checks: "CRC": records are checked while they are copied; "copy": they
    are copied; "place": their place is reserved.
    """

    cdef adds_log c
    cdef object memory

    def __init__(self, int64_t size, *, str locked not None):
        cdef Py_buffer buffer
        if locked not in _LOCKED:
            raise ValueError(f"locked: expected one of {', '.join(_LOCKED)}, found {locked}")
        if size <= REPLOG_SEGMENT_HEADER:
            raise ValueError(f"expected more than {REPLOG_SEGMENT_HEADER} bytes")
        self.memory = _mmap.mmap(-1, size)
        self.memory.madvise(_mmap.MADV_HUGEPAGE)
        self.memory.madvise(23)  # MADV_POPULATE_WRITE, which the mmap module has no name for
        PyObject_GetBuffer(self.memory, &buffer, PyBUF_SIMPLE)
        adds_init(&self.c, <uint8_t *>buffer.buf, size, _LOCKED[locked])
        PyBuffer_Release(&buffer)

    @property
    def records(self):
        """How many it has taken."""
        return self.c.records

    @property
    def held_ns(self):
        """Nanoseconds for which its lock was held."""
        return self.c.held_ns

    @property
    def takings(self):
        """How often its lock was taken."""
        return self.c.takings

    def serve(self, list sockets not None, call=None):
        """Serve these connections in this thread until all have gone; the GIL is released.

        call: called, with the GIL, for each receive that completed requests, before their replies leave. Raises
        OSError; EBADMSG: a record was damaged; EPROTO: a request is no plain ADD that the bookie may take.
        """
        cdef int descriptors[ADDS_LEDGERS_MAX]
        cdef int error, count = len(sockets), i
        cdef adds_round round = NULL if call is None else <adds_round>call_round
        cdef void *context = <void *>call
        if not 0 < count <= ADDS_LEDGERS_MAX:
            raise ValueError(f"expected 1 to {ADDS_LEDGERS_MAX} sockets")
        for i in range(count):
            descriptors[i] = sockets[i]
        with nogil:
            error = adds_serve(&self.c, descriptors, count, round, context)
        if error:
            raise_os(error)

    def check(self, Values values not None):
        """How many records the last lap has; ValueError when one is not what was written, lacks or stands twice."""
        cdef int64_t count = adds_check(&self.c, &values.c)
        if count < 0:
            raise ValueError("a record of the bare bookie is not what was written")
        return count
