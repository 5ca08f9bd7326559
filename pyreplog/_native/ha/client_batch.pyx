"""Batches of a client of a replica group: the producer encodes them, the master verifies and appends them, and the
consumer parses them.

A record travels in the short form, as in a log: with stamp, time and entry delta 0, and without a claim about what is
synced. The master checks each CRC before it writes a record of the batch, and encodes the records anew with its own
numbers and time.

Threads: any; large batches release the GIL.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pyreplog._native.layout cimport (
    FORM_ATTRIBUTES, FORM_KEY, FORM_LONG, KIND_BATCH, KIND_DATA, LAG_NONE, RecordHead, SEGMENT_MAX, SHORT_HEADER,
    ShortHeader, TAG_EVENT_TIME, TAG_PROPERTY,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.append_arguments cimport (
    Parts, SequenceParts, check_time, fill_part, get_buffer, measure,
)
from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.attributes import encode_attributes
from pyreplog._native.log.batch cimport RecordBatch, make_batch
from pyreplog._native.log.record cimport Part
from pyreplog._native.log.status cimport describe
from pyreplog.errors import InvalidArgumentError, InvalidRecordsError

cdef int64_t RELEASE_GIL_FROM = 1 << 18

cdef enum:
    ATTRIBUTE_HEAD = 3   # tag and length


# ---- where they are made ---------------------------------------------------------------------------------------

cdef int64_t encode_all(uint8_t *out, const Part *parts, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t at = 0, length
    for i in range(count):
        length = rec.part_length(&parts[i], SHORT_HEADER)
        rec.encode_short(out + at, <uint32_t>length, 0, KIND_DATA, 0, 0, LAG_NONE, &parts[i])
        at += rec.stride_of(length)
    return at


cdef bytes encoded(const Part *parts, Py_ssize_t count):
    cdef int64_t total = measure(parts, count, SEGMENT_MAX)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *start = <uint8_t *>PyBytes_AS_STRING(out)
    if total >= RELEASE_GIL_FROM:
        with nogil:
            encode_all(start, parts, count)
    else:
        encode_all(start, parts, count)
    return out


def encode_records(values, keys=None, event_times=None):
    """Encode a batch, and return (its records end to end, how many). Raises as `append_batch` for wrong arguments."""
    cdef SequenceParts batch = SequenceParts(values, keys, event_times, None)
    return encoded(batch.parts, batch.count), batch.count


def encode_record(value, key=None, event_time=None, properties=None):
    """Encode one record of a batch. Raises as `append` for wrong arguments."""
    cdef Part part
    cdef Py_buffer value_buffer, key_buffer
    cdef bytes attributes = b""
    if event_time is not None or properties is not None:
        attributes = encode_attributes(check_time(event_time), properties)
    get_buffer(value, &value_buffer, "value")
    try:
        if key is not None:
            get_buffer(key, &key_buffer, "key")
        try:
            fill_part(&part, &value_buffer, &key_buffer if key is not None else NULL, attributes)
            return encoded(&part, 1)
        finally:
            if key is not None:
                PyBuffer_Release(&key_buffer)
    finally:
        PyBuffer_Release(&value_buffer)


# ---- where they are appended -----------------------------------------------------------------------------------

cdef bint attributes_fit(const uint8_t *p, int64_t length) noexcept nogil:
    """Return whether the attributes of a record are whole, ascend by tag, and are well formed (FORMAT.md)."""
    cdef int64_t at = 0, size
    cdef uint16_t value_length, name_length
    cdef uint8_t last = 0
    while at < length:
        if length - at < ATTRIBUTE_HEAD or p[at] < last or (p[at] == last and last != TAG_PROPERTY):
            return False
        last = p[at]
        memcpy(&value_length, p + at + 1, 2)
        size = ATTRIBUTE_HEAD + value_length
        if size > length - at or (last == TAG_EVENT_TIME and value_length != 8):
            return False
        if last == TAG_PROPERTY:
            if value_length < 2:
                return False
            memcpy(&name_length, p + at + ATTRIBUTE_HEAD, 2)
            if name_length > value_length - 2:
                return False
        at += size
    return True


cdef int64_t check_sent(const uint8_t *p, int64_t space) noexcept nogil:
    """Return the stride of the record at p if it may be part of a batch, else a Status."""
    cdef const RecordHead *head = <const RecordHead *>p
    cdef const uint8_t *attributes = NULL
    cdef int64_t stride, attributes_length
    if space < SHORT_HEADER:
        return rec.RECORD_LENGTH
    if head.kind != KIND_DATA:
        return rec.RECORD_KIND
    if head.form & FORM_LONG:
        return rec.RECORD_FORM
    stride = rec.check_record(p, space, 0)
    if stride < 0:
        return rec.RECORD_LENGTH if stride == rec.RECORD_ABSENT else stride
    if head.time or (<const ShortHeader *>p).entry_delta or (<const ShortHeader *>p).synced_lag != LAG_NONE:
        return rec.RECORD_IDS
    attributes_length = rec.attributes_of(p, &attributes)
    if not attributes_fit(attributes, attributes_length):
        return rec.RECORD_PARTS
    return stride


cdef class _ReceivedParts(Parts):
    """Parts of a batch that was received from a client. The first `skip` records are verified, too, and left out."""

    cdef Py_buffer buffer
    cdef bint is_held

    def __cinit__(self, data, int64_t count, int64_t skip, control):
        cdef int64_t at = 0, stride = 0, i = 0
        if not 0 <= skip < count:
            raise InvalidArgumentError(f"skip: expected 0 to {count - 1}, found {skip}")
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        self.is_held = True
        if count > self.buffer.len // SHORT_HEADER:
            raise InvalidRecordsError(0, f"{count} records", f"{self.buffer.len} bytes")
        self.make_room(count - skip, control)
        if self.buffer.len >= RELEASE_GIL_FROM:
            with nogil:
                i = self.take(count, skip, &at, &stride)
        else:
            i = self.take(count, skip, &at, &stride)
        if stride < 0:
            refuse(<const uint8_t *>self.buffer.buf, at, self.buffer.len, stride)
        if i != count or at != self.buffer.len:
            raise InvalidRecordsError(at, f"{count} records and nothing else", f"{i} records, {self.buffer.len} bytes")

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.buffer)

    cdef int64_t take(self, int64_t count, int64_t skip, int64_t *at, int64_t *stride) noexcept nogil:
        """Verify the records, point at them, and return how many they are.

        `at` is set to their end, or to the damaged record; then `stride` is a Status.
        """
        cdef int64_t i = 0, length = self.buffer.len
        cdef const uint8_t *p
        cdef const uint8_t *attributes
        cdef Part *part
        while i < count and at[0] < length:
            p = <const uint8_t *>self.buffer.buf + at[0]
            stride[0] = check_sent(p, length - at[0])
            if stride[0] < 0:
                return i
            if i >= skip:
                part = &self.parts[i - skip]
                part.kind = KIND_DATA
                part.attributes_length = rec.attributes_of(p, &attributes)
                part.attributes = attributes
                part.key = rec.key_of(p)
                part.key_length = (<const RecordHead *>p).key_length if (<const RecordHead *>p).form & FORM_KEY else -1
                part.value = rec.value_of(p)
                part.value_length = rec.value_length_of(p)
                part.event_time = INT64_MIN
                if (<const RecordHead *>p).form & FORM_ATTRIBUTES:
                    part.event_time = rec.event_time_of(p)
            at[0] += stride[0]
            i += 1
        return i


cdef int refuse(const uint8_t *p, int64_t at, int64_t length, int64_t status) except -1:
    expected, actual = describe(status, p + at, length - at, 0) if length - at >= SHORT_HEADER else (
        f"a record of at least {SHORT_HEADER} bytes", f"{length - at} bytes")
    raise InvalidRecordsError(at, expected, actual)


def append_received(Appender log not None, data, int64_t count, int64_t skip, control):
    """Append the records of a client's batch behind a control record, without waiting.

    data: the `count` records as they were received. skip: number of records at the front that the log has already. All
    are verified before one is written. Returns (number of the first entry, position behind the last). Raises
    InvalidRecordsError or RecordTooLargeError (nothing was appended), and the errors of CommitLog.append.
    """
    cdef _ReceivedParts batch = _ReceivedParts(data, count, skip, control)
    cdef int64_t entry, end = log.put_locked(batch.block, batch.count + batch.front, True, &entry)
    return entry, end


# ---- where they are read ---------------------------------------------------------------------------------------

def parse_records(data, int64_t position, int64_t first):
    """Return a RecordBatch over records that a node sent: bytes of its log, as they lie in one segment.

    position: of the first record, whose first entry has the number `first`. The batch holds `data`, which must not
    change. Raises InvalidRecordsError if a record is damaged, or does not follow the one before.
    """
    cdef Py_buffer buffer
    cdef int64_t length, count, limit, next_offset = 0, fault = 0, expected
    cdef uint32_t *offsets
    cdef const uint8_t *p
    get_buffer(data, &buffer, "records")
    p, length = <const uint8_t *>buffer.buf, buffer.len
    view = memoryview(data)  # keeps it exported
    PyBuffer_Release(&buffer)
    if not SHORT_HEADER <= length <= <int64_t>0x7fffffff:
        raise InvalidRecordsError(0, f"records of at least {SHORT_HEADER} bytes", f"{length} bytes")
    if (<const RecordHead *>p).kind > KIND_BATCH or (<const RecordHead *>p).form & FORM_LONG:
        raise InvalidRecordsError(0, "a record with an entry number", f"kind {(<const RecordHead *>p).kind}")
    expected = rec.first_delta_with(p, length, (<const ShortHeader *>p).entry_delta)
    first -= expected
    limit = length // SHORT_HEADER + 1
    offsets = <uint32_t *>malloc(2 * limit * sizeof(uint32_t))
    if offsets == NULL:
        raise MemoryError
    with nogil:
        count = rec.scan_records(p, 0, length, length, (<const RecordHead *>p).stamp, offsets, offsets + limit, limit,
                                 INT64_MAX, True, &expected, &next_offset, &fault)
    if fault or next_offset != length or first < 0:
        free(offsets)
        if fault:
            refuse(p, next_offset, length, fault)
        raise InvalidRecordsError(next_offset, f"records of {length} bytes", f"{next_offset} bytes")
    return make_batch(view, p, position, first, offsets, offsets + limit, count, True, position + length)
