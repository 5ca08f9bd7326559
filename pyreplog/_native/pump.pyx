"""Bytes into descriptors it is handed, the GIL released once per call. Opens, names and locks nothing."""

import os

from cpython.buffer cimport Py_buffer, PyBuffer_Release, PyObject_GetBuffer, PyBUF_SIMPLE
from libc.stdint cimport int64_t, uint8_t


cdef extern from * nogil:
    """
    #include "pwrite.h"
    /* 0, or errno. */
    static int replog_datasync(int fd) { return fdatasync(fd) == 0 ? 0 : errno; }
    """
    int write_all "replog_pwrite"(int fd, const uint8_t *data, int64_t length, int64_t offset)
    int datasync "replog_datasync"(int fd)


def write_sync(int fd, data, int64_t offset, /):
    """pwrite all of `data` at `offset` and fdatasync, with one release of the GIL: among many waiting threads each
    way back to the GIL is a long queue. Errors: OSError."""
    cdef Py_buffer buffer
    cdef int failed
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        with nogil:
            failed = write_all(fd, <const uint8_t *>buffer.buf, buffer.len, offset)
            if not failed:
                failed = datasync(fd)
    finally:
        PyBuffer_Release(&buffer)
    if failed:
        raise OSError(failed, os.strerror(failed))
