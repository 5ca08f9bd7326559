"""Writes bytes into a file at an offset, and to the disk.

The GIL is kept around small writes: they take a few microseconds, and among busy threads the way back to the GIL takes
longer.
"""

import os

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from libc.stdint cimport int64_t, uint8_t

cdef Py_ssize_t KEEP_GIL_BELOW = 16 << 10

cdef extern from * nogil:
    """
    #include "pwrite.h"
    #include <fcntl.h>
    /* 0, or errno. */
    static int replog_datasync(int fd) { return fdatasync(fd) == 0 ? 0 : errno; }
    static int replog_write_back(int fd, int64_t offset, int64_t length) {
        int flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
        if (sync_file_range(fd, offset, length, flags) == 0)
            return 0;
        return errno == ENOSYS ? replog_datasync(fd) : errno;
    }
    """
    int write_all "replog_pwrite"(int fd, const uint8_t *data, int64_t length, int64_t offset)
    int datasync "replog_datasync"(int fd)
    int write_range_back "replog_write_back"(int fd, int64_t offset, int64_t length)


cdef int write_bytes(int fd, const uint8_t *data, int64_t length, int64_t offset) except -1:
    cdef int code = write_all(fd, data, length, offset)
    if code:
        raise OSError(code, os.strerror(code))
    return 0


def write(int fd, data, int64_t offset, /):
    """Write all of `data` (bytes-like) at `offset`. Raises OSError."""
    cdef Py_buffer buffer
    cdef int code
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len < KEEP_GIL_BELOW:
            code = write_all(fd, <const uint8_t *>buffer.buf, buffer.len, offset)
        else:
            with nogil:
                code = write_all(fd, <const uint8_t *>buffer.buf, buffer.len, offset)
    finally:
        PyBuffer_Release(&buffer)
    if code:
        raise OSError(code, os.strerror(code))


def write_sync(int fd, data, int64_t offset, /):
    """Write all of `data` (bytes-like) at `offset`, and call fdatasync. Raises OSError.

    The GIL is released once, for both calls: among busy threads, each return to the GIL takes long.
    """
    cdef Py_buffer buffer
    cdef int code
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        with nogil:
            code = write_all(fd, <const uint8_t *>buffer.buf, buffer.len, offset)
            if not code:
                code = datasync(fd)
    finally:
        PyBuffer_Release(&buffer)
    if code:
        raise OSError(code, os.strerror(code))


def write_back(int fd, int64_t offset, int64_t length, /):
    """Write the dirty pages of a range of a file to the disk, and wait for that. Raises OSError.

    This is no sync: what the file system has to note about the pages is not durable. A sync of the file afterwards has
    that left to do, once.
    """
    cdef int code
    with nogil:
        code = write_range_back(fd, offset, length)
    if code:
        raise OSError(code, os.strerror(code))
