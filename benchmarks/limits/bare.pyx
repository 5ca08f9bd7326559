"""The bare limits of limit.h, callable from Python: one call moves many records, so that the call costs nothing."""

import errno
import mmap as _mmap
import os

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyBUF_SIMPLE, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free


cdef extern from "limit.h" nogil:
    ctypedef struct limit_values:
        const uint8_t **start
        int64_t size
        int64_t count

    ctypedef struct limit_area:
        uint8_t *map
        int64_t size
        int64_t at
        uint32_t written

    ctypedef struct limit_bell:
        uint32_t rung

    void limit_encode(limit_area *area, const limit_values *values, int64_t count, int64_t per_clock)
    void limit_copy(limit_area *area, const limit_values *values, int64_t count)
    int64_t limit_check_encoded(const limit_area *area, const limit_values *values)
    int64_t limit_check_copied(const limit_area *area, const limit_values *values)
    int64_t limit_scan(const uint8_t *map, int64_t start, int64_t stop)
    int limit_synced_writes(int fd, const uint8_t *data, int64_t size, int64_t offset, int64_t count, int64_t *ns)
    void limit_ring(limit_bell *bell)
    int64_t limit_hear(limit_bell *bell, uint32_t seen)
    int limit_set_slice(int64_t ns)

cdef extern from "layout.h" nogil:
    enum:
        REPLOG_SEGMENT_HEADER
        REPLOG_SHORT_HEADER

    ctypedef struct replog_record:
        uint32_t length


cdef class Values:
    """Values of one size, a power of two of them, as C sees them."""

    cdef list kept
    cdef limit_values c

    def __init__(self, list values not None):
        cdef Py_ssize_t i
        self.kept = values
        self.c.count = len(values)
        if self.c.count & (self.c.count - 1) or len({len(value) for value in values}) != 1:
            raise ValueError("expected a power of two of values of one size")
        self.c.size = len(values[0])
        self.c.start = <const uint8_t **>calloc(self.c.count, sizeof(uint8_t *))
        if self.c.start == NULL:
            raise MemoryError
        for i in range(self.c.count):
            self.c.start[i] = <const uint8_t *>PyBytes_AS_STRING(values[i])

    def __dealloc__(self):
        free(self.c.start)


cdef class Area:
    """A mapped file, open as `fd`: written over and over like a recycled segment, or read."""

    cdef limit_area c
    cdef object mapping

    def __init__(self, int fd, int64_t size, *, bint writable=True):
        cdef Py_buffer buffer
        access = _mmap.ACCESS_WRITE if writable else _mmap.ACCESS_READ
        self.mapping = _mmap.mmap(fd, size, access=access)
        PyObject_GetBuffer(self.mapping, &buffer, PyBUF_SIMPLE)
        self.c.map = <uint8_t *>buffer.buf
        PyBuffer_Release(&buffer)
        self.c.size = size
        self.c.at = REPLOG_SEGMENT_HEADER

    def populate(self):
        """Fault every page in for writing, in huge ones as a log's."""
        self.mapping.madvise(_mmap.MADV_HUGEPAGE)
        self.mapping.madvise(23)  # MADV_POPULATE_WRITE, which the mmap module has no name for

    def encode(self, Values values not None, int64_t count, int64_t per_clock):
        """Append `count` records, in turn over the area."""
        with nogil:
            limit_encode(&self.c, &values.c, count, per_clock)

    def copy(self, Values values not None, int64_t count):
        """memcpy `count` values, in turn over the area."""
        with nogil:
            limit_copy(&self.c, &values.c, count)

    def encode_one(self, bytes value not None):
        """Append one record, called from Python as a log is; how many have been written."""
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(value)
        cdef limit_values one = limit_values(&start, len(value), 1)
        limit_encode(&self.c, &one, 1, 1)
        return self.c.written

    def copy_one(self, bytes value not None):
        """memcpy one value, likewise."""
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(value)
        cdef limit_values one = limit_values(&start, len(value), 1)
        limit_copy(&self.c, &one, 1)
        return self.c.written

    def check_encoded(self, Values values not None):
        """How many records of the last lap were read back; ValueError when one is not what was written."""
        return checked(limit_check_encoded(&self.c, &values.c))

    def check_copied(self, Values values not None):
        """As check_encoded, after `copy`."""
        return checked(limit_check_copied(&self.c, &values.c))

    def scan(self, int64_t start, int64_t stop):
        """Verify the CRC of every record in a range of offsets; how many. ValueError when one is damaged."""
        cdef int64_t count
        with nogil:
            count = limit_scan(self.c.map, start, stop)
        return checked(count)

    def build(self, int64_t start, int64_t stop):
        """Make, and drop, a bytes object of each value in a range of offsets (records without key); how many."""
        cdef int64_t count = 0, length
        while start + REPLOG_SHORT_HEADER <= stop:
            length = (<const replog_record *>(self.c.map + start)).length
            if length < REPLOG_SHORT_HEADER or start + length > stop or self.c.map[start + 12] != 1:
                break
            value = PyBytes_FromStringAndSize(<const char *>self.c.map + start + REPLOG_SHORT_HEADER,
                                              length - REPLOG_SHORT_HEADER)
            count += 1
            start += (length + 7) & ~7
        return count

    def close(self):
        self.c.map = NULL
        self.mapping.close()


cdef int64_t checked(int64_t count) except -1:
    if count < 0:
        raise ValueError("a record of the bare limit is not what was written")
    return count


def synced_writes(int fd, bytes data not None, int64_t offset, int64_t count):
    """`count` times pwrite of `data` and fdatasync, one behind the other; nanoseconds of each."""
    cdef int64_t *ns = <int64_t *>calloc(count, sizeof(int64_t))
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t size = len(data)
    cdef int error
    if ns == NULL:
        raise MemoryError
    with nogil:
        error = limit_synced_writes(fd, start, size, offset, count, ns)
    taken = [ns[i] for i in range(count)]
    free(ns)
    if error:
        raise OSError(error, f"{os.strerror(error)} ({errno.errorcode.get(error)}) in a bare synced write")
    return taken


cdef class Bell:
    """A page shared by two processes: one rings, the other sleeps on it."""

    cdef object mapping
    cdef limit_bell *c

    def __init__(self, int fd):
        cdef Py_buffer buffer
        self.mapping = _mmap.mmap(fd, 4096)
        PyObject_GetBuffer(self.mapping, &buffer, PyBUF_SIMPLE)
        self.c = <limit_bell *>buffer.buf
        PyBuffer_Release(&buffer)

    @property
    def rung(self):
        """How often it has been rung."""
        return self.c.rung

    def ring(self):
        """Wake the other side."""
        limit_ring(self.c)

    def hear(self, uint32_t seen):
        """Sleep until it has been rung more than `seen` times; nanoseconds from the ringing to here."""
        cdef int64_t ns
        with nogil:
            ns = limit_hear(self.c, seen)
        return ns


def set_slice(int64_t ns):
    """Ask the scheduler for slices of so many nanoseconds for this thread."""
    cdef int error = limit_set_slice(ns)
    if error:
        raise OSError(error, os.strerror(error))
