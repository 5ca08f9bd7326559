"""Lends encoded entries of a log: not verified, and not copied where they lie end to end.

The receiver verifies them, so that their bytes are read once. Threads: any.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport FORM_LONG, LONG_HEADER, LongHeader, RecordHead, SEGMENT_HEADER
from pyreplog._native.ledger_log.entries cimport index_ledger
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.segment cimport Segment, pin
from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog.errors import InvalidArgumentError


cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *p) noexcept nogil

cdef enum:
    PREFETCHED = 16     # records: each header is in a cache line of its own, and in no pattern a processor sees


ctypedef struct Walk:
    int64_t count, bytes, fault
    bint adjacent       # the records lie end to end


cdef inline int64_t stride_of(Segment segment, int64_t ledger, int64_t entry, int64_t at) noexcept nogil:
    """Return the stride of the record at an offset by its header, or a status if it is not the expected one."""
    cdef const LongHeader *header = <const LongHeader *>(segment.map + at)
    cdef int64_t stride
    if not SEGMENT_HEADER <= at <= segment.size - LONG_HEADER or at % 8:
        return rec.RECORD_LENGTH
    stride = rec.stride_of(header.head.length)
    if header.head.length < LONG_HEADER or stride > segment.size - at:
        return rec.RECORD_LENGTH
    if header.head.stamp != segment.stamp:
        return rec.RECORD_STAMP
    if not header.head.form & FORM_LONG or index_ledger(<const uint8_t *>header) != ledger or header.entry != entry:
        return rec.RECORD_IDS
    return stride


cdef Walk walk(Segment segment, int64_t ledger, const int64_t *entry, const int64_t *at, Py_ssize_t most,
               int64_t bytes_max, bint at_least_one) noexcept nogil:
    """Find how many of the records fit into `bytes_max` bytes, up to the first that is not the expected one."""
    cdef Walk reach
    cdef int64_t stride
    cdef Py_ssize_t i
    reach.count, reach.bytes, reach.fault, reach.adjacent = 0, 0, 0, True
    for i in range(most):
        if i + PREFETCHED < most:
            prefetch(segment.map + at[i + PREFETCHED])
        stride = stride_of(segment, ledger, entry[i], at[i])
        if stride < 0:
            reach.fault = stride
            break
        if reach.bytes + stride > bytes_max and (i or not at_least_one):
            break
        reach.adjacent &= at[i] == at[0] + reach.bytes
        reach.bytes += stride
        reach.count += 1
    return reach


cdef void gather(Segment segment, const int64_t *at, int64_t count, uint8_t *out, int64_t size) noexcept nogil:
    """Copy records, `size` bytes as counted before, even if their headers have changed since."""
    cdef int64_t i, stride, done = 0
    for i in range(count):
        stride = min(rec.stride_of((<const RecordHead *>(segment.map + at[i])).length), size - done)
        memcpy(out + done, segment.map + at[i], stride)
        done += stride


def lend_entries(Segment segment not None, int64_t ledger, entries, offsets, int64_t bytes_max, *, bint at_least_one):
    """Lend the records of a ledger's entries at known offsets of a segment, end to end. The GIL is released.

    Returns (view, count): as many as fit into `bytes_max` bytes, and with `at_least_one` at least the first. The view is
    of the segment, which it pins, if the records lie end to end there, else of a copy. Only headers are checked: the
    view ends before a record of another entry. Raises CorruptionError if that is the first one.

    ledger: as in an index, with CONTROL. entries, offsets: int64 arrays of one length.
    """
    cdef Py_buffer ids, places
    cdef const int64_t *at
    cdef Walk reach
    cdef Block copy
    cdef object held = pin(segment)
    PyObject_GetBuffer(entries, &ids, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &places, PyBUF_SIMPLE)
        try:
            if ids.len != places.len:
                raise InvalidArgumentError(f"offsets: expected {ids.len // 8}, one per entry, found {places.len // 8}")
            at = <const int64_t *>places.buf
            with nogil:
                reach = walk(segment, ledger, <const int64_t *>ids.buf, at, places.len // 8, bytes_max, at_least_one)
            if reach.fault < 0 and not reach.count:
                raise segment.fault(at[0], reach.fault)
            if not reach.count:
                return memoryview(b""), 0
            if reach.adjacent:
                return rec.span(held, segment.map + at[0], reach.bytes), reach.count
            copy = make_block(reach.bytes)
            with nogil:
                gather(segment, at, reach.count, copy.data, reach.bytes)
            return memoryview(copy), reach.count
        finally:
            PyBuffer_Release(&places)
    finally:
        PyBuffer_Release(&ids)
