"""Verifies bytes of a sealed segment and of its ledger index, as they were read from the disk. Threads: any."""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyreplog._native.layout cimport KIND_BLANK, LONG_HEADER, RecordHead, SHORT_HEADER, crc32c
from pyreplog._native.ledger_log.entries cimport check_ids
from pyreplog._native.ledger_log.index_file cimport (
    BLOCK, DATA_MAX, HEADER_CRC_FROM, IndexFileHeader, LEDGER_MAGIC, image_size, rounded,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog.errors import InvalidArgumentError

cdef enum:
    STATUS_CUT = 1

INTACT, CUT, BLANK = 0, STATUS_CUT, rec.RECORD_BLANK
"""Statuses of `verify_records`; another one is the fault of the record, as in `Segment.verify`."""

cdef int64_t RELEASE_GIL_FROM = 1 << 14


cdef int64_t check_one(const uint8_t *p, int64_t length, int64_t space, uint32_t stamp) noexcept nogil:
    """Return the stride of the record at p, STATUS_CUT if more than its `length` bytes are needed, or a status."""
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t stride
    if length < min(space, <int64_t>LONG_HEADER):
        return STATUS_CUT
    if space >= SHORT_HEADER and head.length >= SHORT_HEADER and head.kind != KIND_BLANK and head.stamp == stamp:
        stride = rec.stride_of(head.length)
        if length < stride <= space:
            return STATUS_CUT
    stride = rec.check_record(p, space, stamp)
    return stride if stride < 0 else check_ids(p, stride)


def verify_records(data, *, uint32_t stamp, int64_t space):
    """Verify the records of a segment of many ledgers that lie end to end from the beginning of `data`.

    Returns (bytes, status): so many bytes hold intact records. INTACT: all do. CUT: `data` ends within the next record.
    BLANK: the segment's blank follows. Else the next record is not intact.

    data: a copy of bytes of the segment, 8-byte aligned. stamp: of the segment. space: bytes from the first of them to
    the end of the segment.
    """
    cdef Py_buffer buffer
    cdef const uint8_t *p
    cdef int64_t at = 0, length, status = 0
    get_buffer(data, &buffer, "data")
    try:
        p, length = <const uint8_t *>buffer.buf, buffer.len
        if length > space:
            raise InvalidArgumentError(f"space: expected at least {length}, found {space}")
        if length >= RELEASE_GIL_FROM:
            with nogil:
                at = verify_run(p, length, space, stamp, &status)
        else:
            at = verify_run(p, length, space, stamp, &status)
    finally:
        PyBuffer_Release(&buffer)
    return at, status


cdef int64_t verify_run(const uint8_t *p, int64_t length, int64_t space, uint32_t stamp, int64_t *status) noexcept nogil:
    cdef int64_t at = 0, stride
    status[0] = 0
    while at < length:
        stride = check_one(p + at, length - at, space - at, stamp)
        if stride <= STATUS_CUT:
            status[0] = stride
            break
        at += stride
    return at


def ledger_index_fault(data):
    """Check all bytes of a ledger index file, and return the first fault; None if the file is intact.

    A fault is (position in the file, expected, found). Identity and version are not checked.
    """
    cdef Py_buffer buffer
    cdef uint64_t position = 0, expected = 0, actual = 0
    cdef bint intact
    get_buffer(data, &buffer, "data")
    try:
        with nogil:
            intact = check_index(<const uint8_t *>buffer.buf, buffer.len, &position, &expected, &actual)
    finally:
        PyBuffer_Release(&buffer)
    return None if intact else (position, expected, actual)


cdef bint check_index(const uint8_t *image, uint64_t size, uint64_t *position, uint64_t *expected,
                      uint64_t *actual) noexcept nogil:
    cdef const IndexFileHeader *header = <const IndexFileHeader *>image
    cdef uint64_t table, block
    position[0], expected[0], actual[0] = 64, BLOCK, size
    if size < BLOCK:
        return False
    position[0], expected[0], actual[0] = 0, LEDGER_MAGIC, header.magic
    if header.magic != LEDGER_MAGIC:
        return False
    position[0], expected[0], actual[0] = 8, header.crc, crc32c(0, image + HEADER_CRC_FROM, BLOCK - HEADER_CRC_FROM)
    if expected[0] != actual[0]:
        return False
    position[0], expected[0], actual[0] = 64, size, 0
    if not BLOCK <= header.data_end <= min(size, DATA_MAX) or image_size(header.data_end) != size:
        return False
    table = rounded(header.data_end)
    for block in range(1, size // BLOCK):
        position[0], actual[0] = block * BLOCK, crc32c(0, image + block * BLOCK, BLOCK)
        if position[0] < table:
            expected[0] = (<const uint32_t *>(image + table))[block - 1]
        else:
            expected[0] = header.roots[block - table // BLOCK]
        if expected[0] != actual[0]:
            return False
    return True
