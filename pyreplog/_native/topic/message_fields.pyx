"""The fields of messages besides keys and values, checked and copied: columns of numbers, and properties.

Raises WrongTypeError or InvalidArgumentError; RecordTooLargeError for properties. Threads: one at a time.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyreplog._native.layout cimport MESSAGES_RAW_MAX
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError, WrongTypeError


@cython.final
cdef class Int64Column:
    """A column of int64, copied; None in it is stored as `none`."""

    def __cinit__(self, column, Py_ssize_t count, str name, none):
        self.at = <int64_t *>malloc(max(count, 1) * sizeof(int64_t))
        if self.at == NULL:
            raise MemoryError
        self.count = count
        if not hasattr(column, "dtype") or not self.copy(column, name):
            self.take(column, name, none)

    def __dealloc__(self):
        free(self.at)

    cdef bint copy(self, column, str name) except -1:
        """Copy an int64 array; return False if the column is none."""
        cdef Py_buffer buffer
        if column.ndim != 1 or column.dtype.str != "<i8" or not column.flags.c_contiguous:
            return False
        PyObject_GetBuffer(column, &buffer, PyBUF_C_CONTIGUOUS)
        try:
            check_count(name, buffer.len // <Py_ssize_t>sizeof(int64_t), self.count)
            if self.count:
                memcpy(self.at, buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)
        return True

    cdef int take(self, column, str name, none) except -1:
        cdef Py_ssize_t i = 0
        if not hasattr(column, "__iter__"):
            raise WrongTypeError(f"{name}: expected integers, found {type(column).__name__}")
        cdef tuple items = tuple(column)
        check_count(name, len(items), self.count)
        for i in range(self.count):
            item = items[i] if items[i] is not None else none
            if isinstance(item, bool) or not hasattr(item, "__index__"):
                raise WrongTypeError(f"{name}: expected integers, found {type(item).__name__}")
            if not 0 <= item <= INT64_MAX:
                raise InvalidArgumentError(f"{name}: expected integers from 0 to 2**63 - 1, found {item}")
            self.at[i] = item
        return 0


cdef int check_count(str name, Py_ssize_t actual, Py_ssize_t expected) except -1:
    if actual != expected:
        raise InvalidArgumentError(f"{name}: expected {expected}, one per value, found {actual}")
    return 0


@cython.final
cdef class Properties:
    """The encoded properties of messages, end to end."""

    def __cinit__(self, column, Py_ssize_t count):
        cdef Py_ssize_t i
        cdef tuple items
        if not hasattr(column, "__iter__") or isinstance(column, (dict, str, bytes)):
            raise WrongTypeError(f"properties: expected a sequence of dicts, found {type(column).__name__}")
        items = tuple(column)
        check_count("properties", len(items), count)
        self.data = bytearray()
        self.ends = <int64_t *>malloc(max(count, 1) * sizeof(int64_t))
        if self.ends == NULL:
            raise MemoryError
        for i in range(count):
            if items[i]:
                self.put(items[i])
            elif items[i] is not None and not isinstance(items[i], dict):
                raise WrongTypeError(f"properties: expected dicts, found {type(items[i]).__name__}")
            self.ends[i] = len(self.data)
        self.start = <const uint8_t *><char *>self.data

    def __dealloc__(self):
        free(self.ends)

    cdef int put(self, properties) except -1:
        cdef bytes name_bytes, value_bytes
        cdef uint16_t name_length
        cdef uint32_t value_length
        if not isinstance(properties, dict):
            raise WrongTypeError(f"properties: expected dicts, found {type(properties).__name__}")
        for name, value in (<dict>properties).items():
            if not isinstance(name, str) or not isinstance(value, (str, bytes)):
                raise WrongTypeError(
                    f"properties: expected str to str or bytes, found {type(name).__name__} to {type(value).__name__}")
            name_bytes = utf8(name)
            value_bytes = utf8(value) if isinstance(value, str) else bytes(value)
            if len(name_bytes) > NAME_MAX:
                raise RecordTooLargeError(f"property name: at most {NAME_MAX} bytes, found {len(name_bytes)}")
            if len(self.data) + len(value_bytes) > MESSAGES_RAW_MAX:
                raise RecordTooLargeError(f"properties: at most {MESSAGES_RAW_MAX} bytes in one call")
            name_length, value_length = <uint16_t>len(name_bytes), <uint32_t>len(value_bytes)
            self.data += (<char *>&name_length)[:2]
            self.data += (<char *>&value_length)[:4]
            self.data += name_bytes
            self.data += value_bytes
        return 0


cdef bytes utf8(str text):
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"property: expected text that UTF-8 has, found {text!r}: {error.reason}") from None
