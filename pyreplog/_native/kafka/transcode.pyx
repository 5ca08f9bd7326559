"""Messages of topics as Kafka's record batches: one pass measures, one writes. Nothing is made for a message.

Threads: free of state. The GIL is released for large batches; messages do not change.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MIN, int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from pyreplog._native.kafka.wire cimport put_uvarint, uvarint_size, zigzag
from pyreplog._native.layout cimport RecordHead, TAG_PROPERTY
from pyreplog._native.log.record cimport attributes_of
from pyreplog._native.topic.message_columns cimport Place
from pyreplog._native.topic.message_entry cimport (
    MessageEntry, PROPERTY_HEADER, event_time_at, key_size, key_start, load_u32, value_size, value_start,
)
from pyreplog._native.topic.messages cimport MessageBatch
from pyreplog.errors import InvalidArgumentError

cdef enum:
    UNLOCKED_MESSAGES = 64


# The properties of a message that are not read yet.
ctypedef struct Properties:
    const uint8_t *at
    const uint8_t *end
    bint attributes         # of the record of a single message


# A piece of a message.
ctypedef struct Piece:
    const uint8_t *start
    int64_t size            # -1: null


cdef inline Properties properties_at(const MessageEntry *entry, int64_t i) noexcept nogil:
    cdef Properties properties
    cdef int64_t size
    properties.attributes = entry.body == NULL
    properties.at = properties.end = NULL
    if properties.attributes:
        size = attributes_of(entry.record, &properties.at)
        properties.end = properties.at + size
    elif entry.property_ends != NULL:
        properties.at = entry.properties + (load_u32(entry.property_ends, i - 1) if i else 0)
        properties.end = entry.properties + load_u32(entry.property_ends, i)
    return properties


cdef inline bint next_property(Properties *properties, Piece *name, Piece *value) noexcept nogil:
    """Return False: there is no other one. The bytes were checked, but for lengths within attributes."""
    cdef uint16_t size, name_size
    cdef const uint8_t *p
    while properties.end - properties.at >= 3 and properties.attributes:
        p = properties.at
        memcpy(&size, p + 1, 2)
        if size > properties.end - p - 3:
            return False
        properties.at += 3 + size
        if p[0] != TAG_PROPERTY or size < 2:
            continue
        memcpy(&name_size, p + 3, 2)
        if name_size > size - 2:
            continue
        name.start, name.size = p + 5, name_size
        value.start, value.size = p + 5 + name_size, size - 2 - name_size
        return True
    if properties.attributes or properties.at >= properties.end:
        return False
    p = properties.at
    memcpy(&name_size, p, 2)
    name.start, name.size = p + PROPERTY_HEADER, name_size
    value.start, value.size = name.start + name_size, load_u32(p + 2, 0)
    properties.at = value.start + value.size
    return True


cdef inline int64_t time_of(const MessageEntry *entry, int64_t i) noexcept nogil:
    """Return the event time, or the time of publication, in ms since 1970. Times before 1970 are 0."""
    cdef int64_t time = event_time_at(entry, i)
    if time == INT64_MIN:
        time = (<const RecordHead *>entry.record).time
    return time // 1000 if time > 0 else 0


cdef inline int64_t sized(const Piece *piece) noexcept nogil:
    return uvarint_size(zigzag(piece.size)) + (piece.size if piece.size > 0 else 0)


cdef inline uint8_t *put(uint8_t *p, const Piece *piece) noexcept nogil:
    p = put_uvarint(p, zigzag(piece.size))
    if piece.size > 0:
        memcpy(p, piece.start, piece.size)
        p += piece.size
    return p


cdef int64_t write_record(const MessageEntry *entry, int64_t i, int64_t number, int64_t base, uint8_t *out) noexcept nogil:
    """Write a record, unless out is NULL; return its size with the length in front."""
    cdef Piece key, value, name, content
    cdef Properties properties = properties_at(entry, i)
    cdef int64_t delta = time_of(entry, i) - base, headers = 0, size
    cdef uint8_t *p
    key.size, value.size = key_size(entry, i), value_size(entry, i)
    key.start = entry.keys + key_start(entry, i) if key.size > 0 else NULL
    value.start = entry.values + value_start(entry, i)
    size = 1 + uvarint_size(zigzag(delta)) + uvarint_size(zigzag(number)) + sized(&key) + sized(&value)
    while next_property(&properties, &name, &content):
        headers += 1
        size += sized(&name) + sized(&content)
    size += uvarint_size(zigzag(headers))
    if out != NULL:
        p = put_uvarint(out, zigzag(size))
        p[0] = 0
        p = put_uvarint(put_uvarint(p + 1, zigzag(delta)), zigzag(number))
        p = put_uvarint(put(put(p, &key), &value), zigzag(headers))
        properties = properties_at(entry, i)
        while next_property(&properties, &name, &content):
            p = put(put(p, &name), &content)
    return uvarint_size(zigzag(size)) + size


cdef int64_t measure(const MessageEntry *entries, const Place *places, Py_ssize_t count, int64_t base,
                     int64_t *latest, int64_t *gap) noexcept nogil:
    """Return the bytes of all records. gap: number of the first message whose offset does not follow; -1: none."""
    cdef int64_t total = 0, first = entries[places[0].entry].first + places[0].number
    cdef const MessageEntry *entry
    cdef Py_ssize_t i
    latest[0], gap[0] = 0, -1
    for i in range(count):
        entry = &entries[places[i].entry]
        if entry.first + places[i].number != first + i and gap[0] < 0:
            gap[0] = i
        latest[0] = max(latest[0], time_of(entry, places[i].number))
        total += write_record(entry, places[i].number, i, base, NULL)
    return total


cdef void write_all(const MessageEntry *entries, const Place *places, Py_ssize_t count, int64_t base,
                    uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        out += write_record(&entries[places[i].entry], places[i].number, i, base, out)


def transcode_messages(MessageBatch batch not None, /):
    """Return the records of a batch for `encode_batch`, uncompressed, and its first and its greatest timestamp, ms.

    The timestamp of a record is the event time of its message, or the time at which it was published; its headers are the
    properties. Raises InvalidArgumentError if there are no messages, if their offsets do not follow each other, or if the
    records have more than 2^31 - 1 bytes.
    """
    cdef const MessageEntry *entries = batch.table.entries
    cdef int64_t base, latest, gap, total
    cdef bytes body
    cdef uint8_t *out
    if batch.count == 0:
        raise InvalidArgumentError("batch: expected messages, found none")
    base = time_of(&entries[batch.places[0].entry], batch.places[0].number)
    if batch.count < UNLOCKED_MESSAGES:
        total = measure(entries, batch.places, batch.count, base, &latest, &gap)
    else:
        with nogil:
            total = measure(entries, batch.places, batch.count, base, &latest, &gap)
    if gap >= 0:
        raise InvalidArgumentError(f"batch: expected offsets that follow each other, found a gap in front of message {gap}")
    if total > INT32_MAX:
        raise InvalidArgumentError(f"batch: expected at most {INT32_MAX} bytes of records, found {total}")
    body = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(body)
    if batch.count < UNLOCKED_MESSAGES:
        write_all(entries, batch.places, batch.count, base, out)
    else:
        with nogil:
            write_all(entries, batch.places, batch.count, base, out)
    return body, base, latest
