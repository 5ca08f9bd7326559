"""Reads the headers of encoded records without copying them. Checksums of entries are not checked here: that is done where
entries are stored (`intake.append_entries`) or parsed (`entries.parse_entries`).

Threads: any; nothing is shared. The GIL is kept: a few nanoseconds for each record.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.layout cimport FORM_LONG, KIND_BATCH, KIND_CONTROL, LONG_HEADER, LongHeader, RecordHead
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog.errors import InvalidRecordsError


cdef inline int64_t stride_at(const uint8_t *p, int64_t space) noexcept nogil:
    """Return the stride of a record of the long form; -1: its length does not fit."""
    cdef const RecordHead *head = <const RecordHead *>p
    if space < LONG_HEADER or head.length < LONG_HEADER or not head.form & FORM_LONG:
        return -1
    return rec.stride_of(head.length) if rec.stride_of(head.length) <= space else -1


cdef object not_wanted(const uint8_t *p, int64_t offset, int64_t space, str expected):
    cdef const LongHeader *header = <const LongHeader *>p
    if stride_at(p, space) < 0:
        return InvalidRecordsError(offset, f"{expected}, in the long form", f"{space} bytes that are no such record")
    return InvalidRecordsError(offset, expected, f"kind {header.head.kind}, ledger {header.ledger}, "
                                                 f"entry {header.entry}, LAC {header.lac}")


cdef bint inspect_headers(const uint8_t *p, int64_t length, int64_t ledger, int64_t first, int64_t last, Seen *seen) noexcept nogil:
    cdef const LongHeader *header
    cdef int64_t at = 0, stride
    seen.count, seen.highest, seen.lac = 0, -1, -1
    while at < length or seen.count == 0:
        seen.at = at
        header = <const LongHeader *>(p + at)
        stride = stride_at(p + at, length - at)
        if (stride < 0 or header.head.kind == 0 or header.head.kind > KIND_BATCH or header.ledger != ledger
                or not first <= header.entry <= last or not -1 <= header.lac < header.entry):
            return False
        seen.highest, seen.lac = max(seen.highest, header.entry), max(seen.lac, header.lac)
        seen.count += 1
        at += stride
    seen.at = at
    return True


def inspect_entries(data, *, int64_t ledger, int64_t first, int64_t last):
    """Return (count, highest entry, highest LAC) of encoded entries of a ledger from `first` to `last`, in any order.

    Raises InvalidRecordsError, which names the first other record, also if there is no record.
    """
    cdef Py_buffer buffer
    cdef Seen seen
    get_buffer(data, &buffer, "records")
    try:
        if not inspect_headers(<const uint8_t *>buffer.buf, buffer.len, ledger, first, last, &seen):
            raise not_wanted(<const uint8_t *>buffer.buf + seen.at, seen.at, buffer.len - seen.at,
                             f"entries {first} to {last} of ledger {ledger}")
    finally:
        PyBuffer_Release(&buffer)
    return seen.count, seen.highest, seen.lac


def inspect_controls(data):
    """Return [(ledger, code, LAC, value)] of encoded control records, verified. Raises InvalidRecordsError."""
    cdef Py_buffer buffer
    cdef const uint8_t *p
    cdef const LongHeader *header
    cdef int64_t at = 0, stride
    cdef list controls = []
    get_buffer(data, &buffer, "records")
    try:
        while at < buffer.len:
            p = <const uint8_t *>buffer.buf + at
            header = <const LongHeader *>p
            stride = stride_at(p, buffer.len - at)
            if stride > 0:
                stride = rec.check_record(p, buffer.len - at, header.head.stamp)
            if stride < 0 or header.head.kind != KIND_CONTROL:
                raise not_wanted(p, at, buffer.len - at, "intact control records")
            value = PyBytes_FromStringAndSize(<const char *>rec.value_of(p), rec.value_length_of(p))
            controls.append((header.ledger, header.entry, header.lac, value))
            at += stride
    finally:
        PyBuffer_Release(&buffer)
    return controls
