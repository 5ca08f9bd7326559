"""Verification and scans of records, and single records as views.

The encoder is in record.pxd, inlined into its callers. Threads: records are immutable, and any thread may use them. A
record keeps its segment mapped as long as it lives.
"""

import sys

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo
from libc.stdint cimport INT64_MIN, int32_t

from pyreplog._native.log.attributes import decode_attributes
from pyreplog._native.layout cimport FORM_VERSION_MASK, KIND_BATCH, KIND_DATA, KIND_MARKER, TAG_EVENT_TIME, TAG_PROPERTY

NO_EVENT_TIME = INT64_MIN

cdef str VALUE = sys.intern("value")

cdef extern from "Python.h":
    object PyObject_GenericGetAttr(object o, object name)


cdef inline bint parts_fit(const uint8_t *p, int64_t header) noexcept nogil:
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t parts = header + head.key_length
    cdef uint16_t attributes = 0
    if head.form & FORM_ATTRIBUTES:
        if header + 2 > head.length:
            return False
        memcpy(&attributes, p + header, 2)
        parts += 2 + attributes
    return parts <= head.length and (head.key_length == 0 or head.form & FORM_KEY)


cdef int64_t check_blank(const uint8_t *p, int64_t space, uint32_t stamp) noexcept nogil:
    cdef const RecordHead *head = <const RecordHead *>p
    if head.stamp != stamp:
        return RECORD_STAMP
    if head.length < SHORT_HEADER or head.length != space:
        return RECORD_LENGTH
    if crc32c(head.length, p + CRC_FROM, SHORT_HEADER - CRC_FROM) != head.crc:
        return RECORD_CRC
    return RECORD_BLANK


cdef bint is_counted(const uint8_t *p) noexcept nogil:
    """Whether a record with the flag of a count may have one, and its entries begin within its segment."""
    cdef const CountedHeader *header = <const CountedHeader *>p
    return (header.head.head.kind == KIND_BATCH and not header.head.head.form & FORM_LONG
            and 0 <= <int64_t>header.count - 1 <= header.head.entry_delta)


cdef int64_t check_form(const uint8_t *p, int64_t stride) noexcept nogil:
    cdef const RecordHead *head = <const RecordHead *>p
    if head.kind < KIND_DATA or head.kind > KIND_MARKER:
        return RECORD_KIND
    if head.form & FORM_VERSION_MASK != FORMAT_VERSION:
        return RECORD_FORM
    if head.form & FORM_COUNT and not is_counted(p):
        return RECORD_FORM
    if not parts_fit(p, header_of(p)):
        return RECORD_PARTS
    return stride


cdef int64_t check_record(const uint8_t *p, int64_t space, uint32_t stamp) noexcept nogil:
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t stride, header
    if space < SHORT_HEADER:
        return RECORD_LENGTH if space > 0 else RECORD_ABSENT
    if head.length == 0:
        return RECORD_ABSENT
    if head.kind == KIND_BLANK:
        return check_blank(p, space, stamp)
    header = header_of(p)
    stride = stride_of(head.length)
    if head.length < header or stride > space:
        return RECORD_LENGTH
    if head.stamp != stamp:
        return RECORD_STAMP
    if crc32c(head.length, p + CRC_FROM, stride - CRC_FROM) != head.crc:
        return RECORD_CRC
    return check_form(p, stride)


cdef inline int64_t scan_plain(const uint8_t *map, int64_t *start, int64_t until, int64_t stop, uint32_t stamp,
                               uint32_t *offsets, uint32_t *sizes, int64_t limit, int64_t *expected) noexcept nogil:
    """Scan plain records, which most are, for scan_records; stop at the first record that needs all checks."""
    cdef int64_t at = start[0], follows = expected[0], last_start = (stop & ~7) - SHORT_HEADER, count = 0, size
    cdef uint64_t plain = <uint64_t>PLAIN << 32 | stamp
    cdef const ShortHeader *p
    until = min(until, last_start + 1)
    while count < limit and at < until:
        p = <const ShortHeader *>(map + at)
        size = <int64_t>p.head.length - SHORT_HEADER
        if load_words(map + at + STAMP_AT) != plain or <uint64_t>size > <uint64_t>(last_start - at):
            break
        if follows != p.entry_delta and follows >= 0:
            break
        if crc32c(p.head.length, <const uint8_t *>p + CRC_FROM, SHORT_HEADER - CRC_FROM + stride_of(size)) != p.head.crc:
            break
        follows = <int64_t>p.entry_delta + 1
        offsets[count] = <uint32_t>at
        sizes[count] = <uint32_t>size
        count += 1
        at += SHORT_HEADER + stride_of(size)
    start[0], expected[0] = at, follows
    return count


cdef int64_t first_delta_with(const uint8_t *p, int64_t space, int64_t expected) noexcept nogil:
    if space < COUNTED_HEADER or not (<const RecordHead *>p).form & FORM_COUNT or not is_counted(p):
        return expected
    if first_delta_of(p) <= expected <= (<const ShortHeader *>p).entry_delta:
        return first_delta_of(p)
    return expected


cdef int64_t scan_records(const uint8_t *map, int64_t start, int64_t until, int64_t stop, uint32_t stamp,
                          uint32_t *offsets, uint32_t *sizes, int64_t limit, int64_t below, bint numbered_only,
                          int64_t *expected, int64_t *next_offset, int64_t *fault) noexcept nogil:
    cdef int64_t at = start, stride, count = 0, left
    cdef const uint8_t *p
    cdef bint numbered
    fault[0] = 0
    while True:
        left = limit - count
        if expected[0] >= 0:
            left = min(left, below - expected[0])
        if left <= 0 or at >= until:
            break
        count += scan_plain(map, &at, until, stop, stamp, offsets + count, sizes + count, left, expected)
        if count >= limit or at >= until or below <= expected[0]:
            break
        p = map + at
        stride = check_record(p, stop - at, stamp)
        if stride < 0:
            fault[0] = stride
            break
        numbered = (<const RecordHead *>p).kind <= KIND_BATCH
        if not (<const RecordHead *>p).form & FORM_LONG:
            if expected[0] >= 0 and first_delta_of(p) != expected[0]:
                fault[0] = RECORD_ENTRY
                break
            expected[0] = <int64_t>(<const ShortHeader *>p).entry_delta + numbered
        if numbered or not numbered_only:
            offsets[count] = <uint32_t>at
            sizes[count] = <uint32_t>value_length_of(p)
            count += 1
        at += stride
    next_offset[0] = at
    return count


cdef int64_t event_time_of(const uint8_t *p) noexcept nogil:
    cdef const uint8_t *attributes
    cdef int64_t time
    if attributes_of(p, &attributes) < 11 or attributes[0] != TAG_EVENT_TIME:
        return INT64_MIN
    memcpy(&time, attributes + 3, 8)
    return time


# ---- one record ------------------------------------------------------------------------------------------------

cdef class Span:
    """A part of a mapped segment as a read-only buffer that keeps the segment alive."""

    cdef object owner
    cdef const uint8_t *p
    cdef Py_ssize_t length

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.p, self.length, True, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        """The owner is released with the last reference to this object."""


cdef object span(object owner, const uint8_t *p, Py_ssize_t length):
    cdef Span new_span = Span.__new__(Span)
    new_span.owner, new_span.p, new_span.length = owner, p, length
    return memoryview(new_span)


cdef Record make_record(object owner, const uint8_t *p, int64_t first_entry, int64_t position):
    cdef Record record = Record.__new__(Record)
    record.owner = owner
    record.p = p
    record.origin = position - <int64_t>p
    record.first_entry = first_entry
    return record


@cython.final
@cython.freelist(64)
@cython.no_gc  # its owner never leads back to it
cdef class Record:
    """One verified record of a log; made by reads and scans.

    Its bytes stay in the mapped segment until an attribute is read. Any thread may use it. It is immutable, and keeps
    its segment mapped as long as it lives. `len(record)` is the size of the value in bytes.
    """

    def __init__(self):
        raise TypeError("records are made by a log's reads and scans")

    def __getattribute__(self, name):
        """Return `value` without the search in the type, which takes as long again; most loops read only the value."""
        if name is VALUE:
            return self.copied_value()
        return PyObject_GenericGetAttr(self, name)

    @property
    def entry(self):
        """Entry number, that of the last entry if the record takes several; in a ledger, entry id."""
        return self.number()

    @property
    def entry_count(self):
        """How many entry numbers the record takes: 1 unless it is a record batch; 0 if it has no number."""
        return count_of(self.p)

    @property
    def position(self):
        """Byte offset in the log."""
        return self.origin + <int64_t>self.p

    cdef int64_t number(self) noexcept:
        if (<const RecordHead *>self.p).form & FORM_LONG:
            return (<const LongHeader *>self.p).entry
        return self.first_entry + (<const ShortHeader *>self.p).entry_delta

    @property
    def value(self):
        """The value, copied."""
        return self.copied_value()

    cdef bytes copied_value(self):
        return PyBytes_FromStringAndSize(<const char *>value_of(self.p), value_length_of(self.p))

    @property
    def value_view(self):
        """The value, not copied; the view keeps the segment mapped."""
        return span(self.owner, value_of(self.p), value_length_of(self.p))

    @property
    def key(self):
        """The key, copied; None: the record has no key."""
        if not (<const RecordHead *>self.p).form & FORM_KEY:
            return None
        return PyBytes_FromStringAndSize(<const char *>key_of(self.p), (<const RecordHead *>self.p).key_length)

    @property
    def key_view(self):
        """The key, not copied; None: the record has no key."""
        if not (<const RecordHead *>self.p).form & FORM_KEY:
            return None
        return span(self.owner, key_of(self.p), (<const RecordHead *>self.p).key_length)

    @property
    def timestamp(self):
        """Append time in microseconds since the epoch; never less than that of the record before."""
        return (<const RecordHead *>self.p).time

    @property
    def event_time(self):
        """The producer's time in microseconds since the epoch, or None."""
        cdef int64_t time = event_time_of(self.p)
        return None if time == INT64_MIN else time

    @property
    def kind(self):
        """1 data, 2 batch, 3 control, 4 marker."""
        return (<const RecordHead *>self.p).kind

    @property
    def ledger(self):
        """Ledger id; 0 for the records of a bare log."""
        return (<const LongHeader *>self.p).ledger if (<const RecordHead *>self.p).form & FORM_LONG else 0

    @property
    def lac(self):
        """The last entry that the writer knew to be confirmed, or, in a bare log, synced; -1: none."""
        cdef uint32_t lag
        if (<const RecordHead *>self.p).form & FORM_LONG:
            return (<const LongHeader *>self.p).lac
        lag = (<const ShortHeader *>self.p).synced_lag
        return -1 if lag == LAG_NONE else self.number() - <int64_t>lag

    @property
    def ledger_bytes(self):
        """Bytes of the values of the ledger up to this entry, included; 0 in a bare log."""
        return (<const LongHeader *>self.p).ledger_bytes if (<const RecordHead *>self.p).form & FORM_LONG else 0

    @property
    def ledger_messages(self):
        """Messages of the ledger up to this entry, included; 0 in a bare log."""
        return (<const LongHeader *>self.p).ledger_messages if (<const RecordHead *>self.p).form & FORM_LONG else 0

    @property
    def size(self):
        """Bytes of the value."""
        return value_length_of(self.p)

    @property
    def attributes(self):
        """All attributes as (tag, bytes), in the order in which they are stored."""
        cdef const uint8_t *start
        cdef int64_t length = attributes_of(self.p, &start)
        return decode_attributes(PyBytes_FromStringAndSize(<const char *>start, length))

    @property
    def properties(self):
        """The properties of the record: bytes by name."""
        out = {}
        for tag, data in self.attributes:
            if tag == TAG_PROPERTY:
                split = 2 + int.from_bytes(data[:2], "little")
                out[data[2:split].decode("utf-8", "replace")] = data[split:]
        return out

    @property
    def raw(self):
        """The stored bytes, header to padding, not copied."""
        return span(self.owner, self.p, stride_of((<const RecordHead *>self.p).length))

    def __len__(self):
        return value_length_of(self.p)

    def __reduce__(self):
        raise TypeError("a Record views a mapped segment and cannot be pickled; take its value")

    def __repr__(self):
        return f"Record(entry={self.entry}, position={self.position}, key={self.key!r}, size={self.size})"
