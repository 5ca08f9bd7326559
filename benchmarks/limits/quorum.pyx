"""The bare limit of a ledger (quorum.h), callable from Python: one call moves many batches."""

import errno
import mmap as _mmap
import os

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyBUF_SIMPLE, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef extern from "quorum.h" nogil:
    enum:
        QUORUM_PEERS_MAX

    ctypedef struct quorum_values:
        const uint8_t *start
        int64_t size
        int64_t count

    ctypedef struct quorum_peer:
        int socket

    ctypedef struct quorum_client:
        quorum_values values
        quorum_peer peers[8]
        int count
        int quorum
        int in_turn
        int spin
        int64_t batch
        int64_t window
        uint8_t *ring
        int64_t ring_bytes

    ctypedef struct quorum_log:
        uint8_t *memory
        int64_t size
        int64_t at
        int64_t end
        int64_t records
        int fd
        int64_t synced

    int64_t quorum_stride(int64_t size)
    int quorum_append(quorum_client *client, int64_t batches, int64_t *ns, int64_t *elapsed)
    int quorum_serve(quorum_log *log, int socket, int spin)
    int64_t quorum_check(const quorum_log *log, const uint8_t *map, const quorum_values *values)

cdef extern from "layout.h" nogil:
    enum:
        REPLOG_SEGMENT_HEADER


cdef int raise_os(int error) except -1:
    raise OSError(error, f"{os.strerror(error)} ({errno.errorcode.get(error)}) in the bare limit of a ledger")


cdef uint8_t *address(object mapping) except NULL:
    """Of a mapping that its owner keeps open."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(mapping, &buffer, PyBUF_SIMPLE)
    cdef uint8_t *start = <uint8_t *>buffer.buf
    PyBuffer_Release(&buffer)
    return start


cdef object populated(int fd, int64_t size):
    mapping = _mmap.mmap(fd, size)
    mapping.madvise(_mmap.MADV_HUGEPAGE)  # as a log's
    mapping.madvise(23)  # MADV_POPULATE_WRITE, which the mmap module has no name for
    return mapping


cdef class Values:
    """Values of one size, a power of two of them, end to end."""

    cdef bytes packed
    cdef quorum_values c

    def __init__(self, list values not None):
        self.packed = b"".join(values)
        self.c.start = <const uint8_t *>PyBytes_AS_STRING(self.packed)
        self.c.count = len(values)
        self.c.size = len(values[0])
        if self.c.count & (self.c.count - 1) or len({len(value) for value in values}) != 1:
            raise ValueError("expected a power of two of values of one size")


cdef class Client:
    """Appends to bookies that `sockets` (file descriptors) are connected to.

    quorum: acks that commit a batch. window: bytes that some bookie has not acknowledged. in_turn: one batch at a time,
    whatever the window. spin: never sleep.
    """

    cdef quorum_client c
    cdef Values values
    cdef object ring

    def __init__(self, list sockets not None, Values values not None, *, int quorum, int64_t batch, int64_t window,
                 bint in_turn=False, bint spin=False):
        cdef int i
        cdef int64_t batch_bytes = batch * quorum_stride(values.c.size)
        if not 0 < quorum <= len(sockets) <= QUORUM_PEERS_MAX:
            raise ValueError(f"expected 1 to {QUORUM_PEERS_MAX} sockets and a quorum of them")
        if window < batch_bytes:
            raise ValueError(f"a window of {window} bytes holds no batch of {batch_bytes}")
        memset(&self.c, 0, sizeof(self.c))
        self.values = values
        self.c.values = values.c
        self.c.count, self.c.quorum, self.c.in_turn, self.c.spin = len(sockets), quorum, in_turn, spin
        for i in range(len(sockets)):
            self.c.peers[i].socket = sockets[i]
        self.c.batch, self.c.window = batch, window
        self.c.ring_bytes = (window // batch_bytes + 1) * batch_bytes
        self.ring = populated(-1, self.c.ring_bytes)
        self.c.ring = address(self.ring)

    def append(self, int64_t batches):
        """(seconds until the last batch was committed, nanoseconds from encoding to commit of each)."""
        cdef int64_t elapsed = 0
        cdef int error
        cdef int64_t *ns = <int64_t *>calloc(batches, sizeof(int64_t))
        if ns == NULL:
            raise MemoryError
        with nogil:
            error = quorum_append(&self.c, batches, ns, &elapsed)
        taken = [ns[i] for i in range(batches)]
        free(ns)
        if error:
            raise_os(error)
        return elapsed * 1e-9, taken


cdef class Log:
    """A bookie's log: a file of `size` bytes, open as `fd`, written over and over."""

    cdef quorum_log c
    cdef object file, memory

    def __init__(self, int fd, int64_t size, *, bint synced):
        memset(&self.c, 0, sizeof(self.c))
        self.file = populated(fd, size)
        self.memory = populated(-1, size) if synced else self.file
        self.c.memory, self.c.size = address(self.memory), size
        self.c.at = self.c.synced = REPLOG_SEGMENT_HEADER
        self.c.fd = fd if synced else -1

    @property
    def records(self):
        """How many it was sent."""
        return self.c.records

    def serve(self, int socket, *, bint spin=False):
        """Serve one client until it goes. OSError; EBADMSG: a record was damaged."""
        cdef int error
        with nogil:
            error = quorum_serve(&self.c, socket, spin)
        if error:
            raise_os(error)

    def check(self, Values values not None):
        """How many records of the last lap the file holds; ValueError when one is not what was written."""
        cdef int64_t count = quorum_check(&self.c, address(self.file), &values.c)
        if count < 0:
            raise ValueError("a record of the bare limit is not what was written")
        return count
