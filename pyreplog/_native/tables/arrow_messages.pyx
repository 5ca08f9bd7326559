"""Arrow buffers for columns of messages, as `arrow_columns` makes them for records, without an object per message.

Each function returns one column of a MessageBatch. Any thread may call it; the GIL is released while bytes of every
message are touched.
"""

from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset

from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog._native.tables.arrow_columns cimport Properties, end_properties, put_property, put_record_properties, zeros
from pyreplog._native.topic.message_columns cimport COLUMN_EVENT_TIME, COLUMN_SEQUENCE, COLUMN_SIZE, Place, gather, measure, pack
from pyreplog._native.topic.message_entry cimport MessageEntry, PROPERTY_HEADER, key_size, load_u32, origin_of
from pyreplog._native.topic.messages cimport MessageBatch
from pyreplog.errors import InvalidArgumentError, OutOfRangeError

cdef enum:
    CLUSTER = 16               # bytes of the id of a cluster
    CLUSTER_ROW = 8 + CLUSTER  # the key of an origin before it
    KEY_PREFIX = 4             # "key:"


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


# ---- origins: all messages of an entry have the same one ---------------------------------------------------------

cdef struct OriginText:
    int32_t length             # 0: published here
    uint8_t text[2 * CLUSTER]


cdef void put_hex(const uint8_t *bytes, int count, uint8_t *out) noexcept nogil:
    cdef const uint8_t *digits = <const uint8_t *>b"0123456789abcdef"
    cdef int i
    for i in range(count):
        out[2 * i], out[2 * i + 1] = digits[bytes[i] >> 4], digits[bytes[i] & 15]


cdef const uint8_t *cluster_of(uint64_t key, const uint8_t *rows, Py_ssize_t count) noexcept nogil:
    """Return the cluster of the row with a key; NULL: there is none."""
    cdef Py_ssize_t low = 0, middle
    cdef uint64_t at
    while low < count:
        middle = (low + count) // 2
        memcpy(&at, rows + CLUSTER_ROW * middle, 8)
        if at == key:
            return rows + CLUSTER_ROW * middle + 8
        if at < key:
            low = middle + 1
        else:
            count = middle
    return NULL


cdef void read_origin(const MessageEntry *entry, const uint8_t *rows, Py_ssize_t count, OriginText *out) noexcept nogil:
    cdef int64_t length
    cdef uint64_t key
    cdef uint8_t digits[8]
    cdef int i
    cdef const uint8_t *cluster
    cdef const uint8_t *origin = origin_of(entry.record, &length)
    if origin == NULL:
        out.length = 0
        return
    memcpy(&key, origin, 8)
    cluster = cluster_of(key, rows, count)
    if cluster != NULL:
        put_hex(cluster, CLUSTER, out.text)
        out.length = 2 * CLUSTER
        return
    for i in range(8):
        digits[i] = <uint8_t>(key >> (56 - 8 * i))
    memcpy(out.text, b"key:", KEY_PREFIX)
    put_hex(digits, 8, out.text + KEY_PREFIX)
    out.length = KEY_PREFIX + 16


cdef int64_t put_clusters(MessageBatch batch, const uint8_t *rows, Py_ssize_t known, int32_t *ends, uint8_t *valid,
                          int64_t *nulls, uint8_t *data) noexcept nogil:
    """Write offsets and validity, or into `data` unless it is NULL the texts; return their bytes.

    Beyond INT32_MAX it stops.
    """
    cdef OriginText origin
    cdef int64_t at = 0, entry = -1
    cdef Py_ssize_t i
    nulls[0] = origin.length = 0
    for i in range(batch.count):
        if batch.places[i].entry != entry:
            entry = batch.places[i].entry
            read_origin(&batch.table.entries[entry], rows, known, &origin)
        if data != NULL:
            memcpy(data + at, origin.text, origin.length)
        else:
            ends[i] = <int32_t>at
            if origin.length:
                valid[i >> 3] |= 1 << (i & 7)
            else:
                nulls[0] += 1
        at += origin.length
        if at > INT32_MAX:
            return at
    if data == NULL:
        ends[batch.count] = <int32_t>at
    return at


def origin_cluster_column(MessageBatch batch not None, const uint8_t[::1] clusters not None):
    """Return the clusters that messages were replicated from, as 32 hexadecimal digits, as value_column returns values.

    Null where a message was published here; "key:" and the key as 16 digits if `clusters` does not have it.

    clusters: for each origin its key, little-endian, and the 16 bytes of its cluster; ascending by key.

    Raises InvalidArgumentError for other bytes, OutOfRangeError for more than 2 GiB.
    """
    cdef Py_ssize_t known = clusters.shape[0] // CLUSTER_ROW
    cdef const uint8_t *rows = &clusters[0] if known else NULL
    cdef Block starts = make_block((batch.count + 1) * sizeof(int32_t))
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef Block data
    cdef int64_t total, nulls = 0, again = 0
    if known * CLUSTER_ROW != clusters.shape[0]:
        raise InvalidArgumentError(
            f"clusters: expected a multiple of {CLUSTER_ROW} bytes, found {clusters.shape[0]}"
        )
    with nogil:
        total = put_clusters(batch, rows, known, <int32_t *>starts.data, valid.data, &nulls, NULL)
    if total > INT32_MAX:
        raise too_many(batch)
    data = make_block(total)
    if total:
        with nogil:
            put_clusters(batch, rows, known, <int32_t *>starts.data, valid.data, &again, data.data)
    return nulls, valid if nulls else None, starts, data


cdef tuple origin_numbers(MessageBatch batch, int at, int step):
    """Return the numbers at a position of origin attributes as int64, as (nulls, validity, data); null: published here.

    Each message of an entry has a number that is `step` higher than the one before.
    """
    cdef Block data = make_block(batch.count * sizeof(int64_t))
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef int64_t *numbers = <int64_t *>data.data
    cdef const uint8_t *origin = NULL
    cdef int64_t nulls = 0, entry = -1, first = 0, length
    cdef Py_ssize_t i
    with nogil:
        for i in range(batch.count):
            if batch.places[i].entry != entry:
                entry = batch.places[i].entry
                origin = origin_of(batch.table.entries[entry].record, &length)
                if origin != NULL:
                    memcpy(&first, origin + at, 8)
            if origin == NULL:
                numbers[i] = 0
                nulls += 1
            else:
                numbers[i] = first + step * <int64_t>batch.places[i].number
                valid.data[i >> 3] |= 1 << (i & 7)
    return nulls, valid if nulls else None, data


def origin_offset_column(MessageBatch batch not None):
    """Return offsets of messages at their origins as int64, as (nulls, validity, data); null: published here."""
    return origin_numbers(batch, 8, 1)


def origin_publish_time_column(MessageBatch batch not None):
    """Return when messages were appended at their origins, microseconds since 1970, as `origin_offset_column`."""
    return origin_numbers(batch, 16, 0)


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
