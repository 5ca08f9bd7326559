"""The hash murmur2 of keys, by which Kafka's clients choose partitions.

Threads: free of state; the GIL is held.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyreplog.errors import InvalidArgumentError

cdef enum:
    SEED = 0x9747b28c
    MIX = 0x5bd1e995


cdef uint32_t murmur2(const uint8_t *p, int64_t size) noexcept nogil:
    """Return the hash with the seed of Kafka. The tail is read byte by byte, as by `Utils.murmur2`."""
    cdef uint32_t hashed = <uint32_t>SEED ^ <uint32_t>size, k
    cdef int64_t i, whole = size & ~3
    for i in range(0, whole, 4):
        memcpy(&k, p + i, 4)
        k *= <uint32_t>MIX
        k = (k ^ (k >> 24)) * <uint32_t>MIX
        hashed = hashed * <uint32_t>MIX ^ k
    if size - whole == 3:
        hashed ^= <uint32_t>p[whole + 2] << 16
    if size - whole >= 2:
        hashed ^= <uint32_t>p[whole + 1] << 8
    if size - whole >= 1:
        hashed = (hashed ^ p[whole]) * <uint32_t>MIX
    hashed = (hashed ^ (hashed >> 13)) * <uint32_t>MIX
    return hashed ^ (hashed >> 15)


cdef uint32_t hash_of(object key) except? 1:
    cdef Py_buffer view
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    try:
        return murmur2(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def key_hash(key, /):
    """Return the hash of a bytes-like key, a signed number of 32 bits, as Kafka's clients compute it."""
    return <int32_t>hash_of(key)


def partitions_of_keys(keys, int32_t partitions, /):
    """Return the partition of each key, by Kafka's default partitioner: a list of int; -1: of a key that is None.

    keys: bytes-like or None. partitions: their number, at least 1.
    """
    cdef list numbers = []
    if partitions < 1:
        raise InvalidArgumentError(f"partitions: expected 1 or more, found {partitions}")
    for key in keys:
        numbers.append(-1 if key is None else <int32_t>((hash_of(key) & <uint32_t>0x7fffffff) % <uint32_t>partitions))
    return numbers
