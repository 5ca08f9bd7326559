"""What a producer of several partitions needs: hashes of keys, and selected rows of columns.

Threads: any; large jobs release the GIL.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyreplog._native.log.append_arguments cimport ColumnParts, get_buffer
from pyreplog._native.log.record cimport Part
from pyreplog._native.system.blocks cimport Block, int64_array, make_block
from pyreplog._native.topic.murmur cimport murmur

from pyreplog.errors import InvalidArgumentError, WrongTypeError

cdef Py_ssize_t RELEASE_GIL_FROM = 1 << 14   # rows


def key_hash(key):
    """Return murmur3 of a key (bytes-like), 32 bits, seed 0, as an int from 0 to 2**32 - 1."""
    cdef Py_buffer buffer
    cdef uint32_t hashed
    get_buffer(key, &buffer, "key")
    hashed = murmur(<const uint8_t *>buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return hashed


def hash_keys(keys):
    """Return (uint32[n], bool[n]): murmur3 of each key, seed 0, and whether there is a key; 0 for None.

    keys: an iterable of bytes-like objects and None. Raises WrongTypeError.
    """
    if isinstance(keys, (bytes, bytearray, memoryview, str)) or not hasattr(keys, "__iter__"):
        raise WrongTypeError(f"keys: expected a sequence of items, found {type(keys).__name__}")
    cdef list items = list(keys)
    cdef Py_ssize_t i, count = len(items)
    cdef Block hashes = make_block(count * sizeof(uint32_t)), keyed = make_block(count)
    cdef uint32_t *out = <uint32_t *>hashes.data
    cdef object key
    cdef Py_buffer buffer
    for i in range(count):
        key = items[i]
        keyed.data[i] = key is not None
        if key is None:
            out[i] = 0
        elif PyBytes_CheckExact(key):
            out[i] = murmur(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        else:
            get_buffer(key, &buffer, "key")
            out[i] = murmur(<const uint8_t *>buffer.buf, buffer.len)
            PyBuffer_Release(&buffer)
    import numpy
    return numpy.frombuffer(hashes, numpy.uint32), numpy.frombuffer(keyed, numpy.bool_)


cdef void hash_parts(const Part *parts, Py_ssize_t count, uint32_t *out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        out[i] = murmur(parts[i].value, parts[i].value_length)


def hash_column(column):
    """Return uint32[n], as `hash_keys` does, for keys as a column: (offsets, data), a numpy or an Arrow array.

    Raises WrongTypeError or InvalidArgumentError.
    """
    cdef ColumnParts keys = ColumnParts(column, None, None)
    cdef Block hashes = make_block(keys.count * sizeof(uint32_t))
    if keys.count >= RELEASE_GIL_FROM:
        with nogil:
            hash_parts(keys.parts, keys.count, <uint32_t *>hashes.data)
    else:
        hash_parts(keys.parts, keys.count, <uint32_t *>hashes.data)
    import numpy
    return numpy.frombuffer(hashes, numpy.uint32)


cdef int64_t place_rows(const Part *parts, Py_ssize_t parts_count, const int64_t *rows, Py_ssize_t count,
                        int64_t *offsets, Py_ssize_t *bad) noexcept nogil:
    """Compute where each row begins behind those before it; return the bytes of all. -1: row `bad` does not exist."""
    cdef int64_t total = 0
    cdef Py_ssize_t i
    for i in range(count):
        if not 0 <= rows[i] < parts_count:
            bad[0] = i
            return -1
        offsets[i] = total
        total += parts[rows[i]].value_length
    offsets[count] = total
    return total


cdef void copy_rows(const Part *parts, const int64_t *rows, Py_ssize_t count, const int64_t *offsets,
                    uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        memcpy(out + offsets[i], parts[rows[i]].value, parts[rows[i]].value_length)


def gather(column, rows):
    """Return (int64[m + 1] offsets, uint8[] data): some rows of a column, in the given order.

    column: as in `hash_column`. rows: an int64 array. Raises WrongTypeError; InvalidArgumentError if a row does not
    exist.
    """
    cdef ColumnParts values = ColumnParts(column, None, None)
    cdef Py_buffer buffer
    cdef Block offsets, data
    cdef Py_ssize_t count, bad = 0
    cdef int64_t total
    import numpy
    PyObject_GetBuffer(int64_array(rows), &buffer, PyBUF_SIMPLE)
    try:
        count = buffer.len // <Py_ssize_t>sizeof(int64_t)
        offsets = make_block((count + 1) * sizeof(int64_t))
        with nogil:
            total = place_rows(values.parts, values.count, <const int64_t *>buffer.buf, count,
                               <int64_t *>offsets.data, &bad)
        if total < 0:
            raise InvalidArgumentError(f"rows: expected 0 to {values.count - 1}, found "
                                       f"{(<const int64_t *>buffer.buf)[bad]}")
        data = make_block(total)
        with nogil:
            copy_rows(values.parts, <const int64_t *>buffer.buf, count, <const int64_t *>offsets.data, data.data)
    finally:
        PyBuffer_Release(&buffer)
    return numpy.frombuffer(offsets, numpy.int64), numpy.frombuffer(data, numpy.uint8)
