"""Digest of encoded entries, with which bookies compare what they hold (FORMAT.md, "Bookie protocol").

Threads: any; large jobs release the GIL.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pyreplog._native.layout cimport LONG_HEADER, LongHeader
from pyreplog._native.ledger_log.entries cimport refuse
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.append_arguments cimport get_buffer

cdef int64_t RELEASE_GIL_FROM = 1 << 18


cdef inline uint64_t mix(uint64_t z) noexcept nogil:
    """One step of SplitMix64."""
    z += <uint64_t>0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef int64_t add_up(const uint8_t *p, int64_t length, uint64_t *digest) noexcept nogil:
    """Add the records that lie end to end to a digest; return `length`, or the offset of one that does not fit."""
    cdef const LongHeader *header
    cdef int64_t at = 0, stride
    while at < length:
        if length - at < LONG_HEADER:
            break
        header = <const LongHeader *>(p + at)
        stride = rec.stride_of(header.head.length)
        if header.head.length < LONG_HEADER or stride > length - at:
            break
        digest[0] += mix(mix(<uint64_t>header.entry) + header.head.crc)
        at += stride
    return at


def holdings_digest(records, /):
    """Compute the digest of encoded entries, which lie end to end in any order. Digests add up, modulo 2**64.

    Only lengths are checked: verify the records before, with `parse_entries`.

    Args:
        records: the encoded entries.

    Returns:
        The digest, from 0 to 2**64 - 1; 0 if there is no record.

    Raises:
        InvalidRecordsError: the length of a record does not fit.
    """
    cdef Py_buffer buffer
    cdef const uint8_t *p
    cdef uint64_t digest = 0
    cdef int64_t at
    get_buffer(records, &buffer, "records")
    try:
        p = <const uint8_t *>buffer.buf
        if buffer.len >= RELEASE_GIL_FROM:
            with nogil:
                at = add_up(p, buffer.len, &digest)
        else:
            at = add_up(p, buffer.len, &digest)
        if at < buffer.len:
            refuse(p, at, buffer.len, rec.RECORD_LENGTH)
        return digest
    finally:
        PyBuffer_Release(&buffer)
