"""Arrow buffers for columns of messages, as `arrowcolumns` makes them for records, without an object per message.

Each function returns one column of a MessageBatch. Any thread may call it; the GIL is released while bytes of every
message are touched.
"""

from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memcpy, memset

from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog._native.tables.arrowcolumns cimport Properties, end_properties, put_property, put_record_properties, zeros
from pyreplog._native.topic.messagecolumns cimport COLUMN_EVENT_TIME, COLUMN_SEQUENCE, COLUMN_SIZE, Place, gather, measure, pack
from pyreplog._native.topic.messageentry cimport MessageEntry, PROPERTY_HEADER, key_size, load_u32
from pyreplog._native.topic.messages cimport MessageBatch
from pyreplog.errors import OutOfRangeError


cdef object too_many(MessageBatch batch):
    return OutOfRangeError(f"a column of {batch.count} messages: more bytes than {INT32_MAX}")


# ---- bytes -----------------------------------------------------------------------------------------------------

cdef int64_t mark_keys(MessageBatch batch, uint8_t *valid) noexcept nogil:
    """Set the bits of messages with a key; return the number of messages without one."""
    cdef Py_ssize_t i
    cdef int64_t nulls = 0
    for i in range(batch.count):
        if key_size(&batch.table.entries[batch.places[i].entry], batch.places[i].number) < 0:
            nulls += 1
        else:
            valid[i >> 3] |= 1 << (i & 7)
    return nulls


cdef tuple bytes_column(MessageBatch batch, bint keys):
    """Return (nulls, validity, offsets, data); validity is None if there are no nulls."""
    cdef Block starts = make_block((batch.count + 1) * sizeof(int64_t))
    cdef Block narrow = make_block((batch.count + 1) * sizeof(int32_t))
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef Block data
    cdef const int64_t *wide = <const int64_t *>starts.data
    cdef int64_t total, nulls = 0
    cdef Py_ssize_t i
    with nogil:
        total = measure(batch.table.entries, batch.places, batch.count, keys, <int64_t *>starts.data)
        if keys:
            nulls = mark_keys(batch, valid.data)
    if total > INT32_MAX:
        raise too_many(batch)
    data = make_block(total)
    with nogil:
        pack(batch.table.entries, batch.places, batch.count, keys, wide, data.data)
        for i in range(batch.count + 1):
            (<int32_t *>narrow.data)[i] = <int32_t>wide[i]
    return nulls, valid if nulls else None, narrow, data


def value_column(MessageBatch batch not None):
    """Return the values as (nulls, validity, offsets, data). Raises OutOfRangeError for more than 2 GiB."""
    return bytes_column(batch, False)


def key_column(MessageBatch batch not None):
    """Return the keys, as value_column returns values; null where a message has none."""
    return bytes_column(batch, True)


def producer_column(MessageBatch batch not None):
    """Return the names of producers, as value_column returns values; null where an entry has no producer."""
    cdef Block starts = make_block((batch.count + 1) * sizeof(int32_t))
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef Block data
    cdef int32_t *offsets = <int32_t *>starts.data
    cdef const MessageEntry *entry
    cdef int64_t at = 0, nulls = 0
    cdef Py_ssize_t i
    for i in range(batch.count):
        entry = &batch.table.entries[batch.places[i].entry]
        offsets[i] = <int32_t>at
        at += entry.producer_length
        if at > INT32_MAX:
            raise too_many(batch)
        if entry.producer_length:
            valid.data[i >> 3] |= 1 << (i & 7)
        else:
            nulls += 1
    offsets[batch.count] = <int32_t>at
    data = make_block(at)
    for i in range(batch.count):
        entry = &batch.table.entries[batch.places[i].entry]
        if entry.producer_length:
            memcpy(data.data + offsets[i], entry.producer, entry.producer_length)
    return nulls, valid if nulls else None, starts, data


# ---- numbers ---------------------------------------------------------------------------------------------------

cdef tuple numbers_column(MessageBatch batch, int column, int64_t none):
    """Return (nulls, validity, data) of int64; null where the value is `none`."""
    cdef Block data = make_block(batch.count * sizeof(int64_t))
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef const int64_t *numbers = <const int64_t *>data.data
    cdef int64_t nulls = 0
    cdef Py_ssize_t i
    gather(batch.table.entries, batch.places, batch.count, column, <int64_t *>data.data)
    for i in range(batch.count):
        if numbers[i] == none:
            nulls += 1
        else:
            valid.data[i >> 3] |= 1 << (i & 7)
    return nulls, valid if nulls else None, data


def sequence_column(MessageBatch batch not None):
    """Return the sequence numbers of producers as int64, as (nulls, validity, data)."""
    return numbers_column(batch, COLUMN_SEQUENCE, -1)


def event_time_column(MessageBatch batch not None):
    """Return event times in microseconds since 1970, as (nulls, validity, data)."""
    return numbers_column(batch, COLUMN_EVENT_TIME, INT64_MIN)


def size_column(MessageBatch batch not None):
    """Return the bytes of each value as int32."""
    cdef Block wide = make_block(batch.count * sizeof(int64_t))
    cdef Block data = make_block(batch.count * sizeof(int32_t))
    cdef Py_ssize_t i
    gather(batch.table.entries, batch.places, batch.count, COLUMN_SIZE, <int64_t *>wide.data)
    for i in range(batch.count):
        (<int32_t *>data.data)[i] = <int32_t>(<const int64_t *>wide.data)[i]
    return data


# ---- properties: a list for each message -----------------------------------------------------------------------

cdef void put_properties(const MessageEntry *entry, const Place *place, Properties *out) noexcept nogil:
    """Add the properties of one message, whose bytes were checked when the batch was made."""
    cdef int64_t at, end, value
    cdef uint16_t name = 0
    cdef const uint8_t *p
    if entry.body == NULL:
        put_record_properties(entry.record, out)
        return
    if entry.property_ends == NULL:
        return
    at = load_u32(entry.property_ends, <int64_t>place.number - 1) if place.number else 0
    end = load_u32(entry.property_ends, place.number)
    while at < end:
        p = entry.properties + at
        memcpy(&name, p, 2)
        value = load_u32(p + 2, 0)
        put_property(out, p + PROPERTY_HEADER, name, p + PROPERTY_HEADER + name, value)
        at += PROPERTY_HEADER + name + value


cdef bint put_all(MessageBatch batch, Properties *out) noexcept nogil:
    """Lay out the properties of all messages. Return False if 32-bit offsets cannot address them."""
    cdef Py_ssize_t i
    out.count = out.name_total = out.value_total = 0
    for i in range(batch.count):
        out.lists[i] = <int32_t>out.count
        put_properties(&batch.table.entries[batch.places[i].entry], &batch.places[i], out)
        if out.name_total > INT32_MAX or out.value_total > INT32_MAX:
            return False
    end_properties(out, batch.count)
    return True


def property_columns(MessageBatch batch not None):
    """Return properties as (count, offsets of lists, offsets and bytes of names, offsets and bytes of values)."""
    cdef Properties out
    cdef Block lists = make_block((batch.count + 1) * sizeof(int32_t))
    cdef Block names, values, name_bytes, value_bytes
    cdef bint fits
    memset(&out, 0, sizeof(Properties))
    out.lists = <int32_t *>lists.data
    with nogil:
        fits = put_all(batch, &out)
    if not fits:
        raise too_many(batch)
    names, values = make_block((out.count + 1) * sizeof(int32_t)), make_block((out.count + 1) * sizeof(int32_t))
    name_bytes, value_bytes = make_block(out.name_total), make_block(out.value_total)
    out.names, out.values = <int32_t *>names.data, <int32_t *>values.data
    out.name_bytes, out.value_bytes = name_bytes.data, value_bytes.data
    with nogil:
        put_all(batch, &out)
    return out.count, lists, names, name_bytes, values, value_bytes
