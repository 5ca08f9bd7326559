"""Writes bytes into a file at an offset, and syncs them.

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
    /* 0, or errno. */
    static int replog_datasync(int fd) { return fdatasync(fd) == 0 ? 0 : errno; }
    """
    int write_all "replog_pwrite"(int fd, const uint8_t *data, int64_t length, int64_t offset)
    int datasync "replog_datasync"(int fd)


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
