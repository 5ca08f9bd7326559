"""Arrow buffers for columns of records, and a walk over records that does not touch their values.

Buffers are null bits, 32-bit offsets, and bytes end to end. Each function returns the buffers of one column of a
RecordBatch, without an object per record. Any thread may call it; the GIL is released for large jobs.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport (
    FORM_KEY, FORM_LONG, KIND_BATCH, KIND_BLANK, RecordHead, SEGMENT_HEADER, SHORT_HEADER, ShortHeader,
    TAG_EVENT_TIME as LAYOUT_EVENT_TIME, TAG_PRODUCER as LAYOUT_PRODUCER, TAG_PROPERTY, TAG_SEQUENCE as LAYOUT_SEQUENCE,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.batch cimport RecordBatch, make_batch
from pyreplog._native.log.segment cimport Pin, Segment, pin
from pyreplog._native.system.blocks cimport Block, give_block, make_block, take_block
from pyreplog.errors import InvalidArgumentError, OutOfRangeError


cdef extern from *:
    void prefetch "__builtin_prefetch"(const void *p) noexcept nogil


TAG_EVENT_TIME = LAYOUT_EVENT_TIME
TAG_PRODUCER = LAYOUT_PRODUCER
TAG_SEQUENCE = LAYOUT_SEQUENCE


# ---- the walk --------------------------------------------------------------------------------------------------

cdef int64_t check_head(const uint8_t *p, int64_t space, uint32_t stamp) noexcept nogil:
    """Check a record like check_record, but not its CRC: a record that passes can be read safely."""
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t stride
    if space < SHORT_HEADER or head.length == 0 or head.kind == KIND_BLANK:
        return rec.check_record(p, space, stamp)
    stride = rec.stride_of(head.length)
    if head.length < rec.header_of(p) or stride > space:
        return rec.RECORD_LENGTH
    if head.stamp != stamp:
        return rec.RECORD_STAMP
    return rec.check_form(p, stride)


cdef enum:
    AHEAD = 16  # records ahead, if all have the stride of this one, whose header is prefetched


ctypedef struct Heads:
    uint32_t *offsets
    uint32_t *sizes               # bytes of values
    int64_t *times                # append times
    int64_t count, limit
    int64_t at                    # offset after the last record
    int64_t follows               # entry delta of the next record, -1: any
    bint plain                    # no record has a key or attributes


cdef inline void put_head(Heads *out, int64_t at, int64_t size, int64_t time) noexcept nogil:
    out.offsets[out.count], out.sizes[out.count], out.times[out.count] = <uint32_t>at, <uint32_t>size, time
    out.count += 1


cdef inline void walk_plain(const uint8_t *map, int64_t until, int64_t stop, uint32_t stamp, Heads *out) noexcept nogil:
    """Walk over plain records, like scan_plain; end at the first record that needs a closer look."""
    cdef Heads heads = out[0]
    cdef int64_t last_start = (stop & ~7) - SHORT_HEADER, size, stride
    cdef uint64_t plain = <uint64_t>rec.PLAIN << 32 | stamp
    cdef const ShortHeader *p
    until = min(until, last_start + 1)
    while heads.count < heads.limit and heads.at < until:
        p = <const ShortHeader *>(map + heads.at)
        size = <int64_t>p.head.length - SHORT_HEADER
        if rec.load_words(map + heads.at + rec.STAMP_AT) != plain or <uint64_t>size > <uint64_t>(last_start - heads.at):
            break
        if heads.follows != p.entry_delta and heads.follows >= 0:
            break
        stride = SHORT_HEADER + rec.stride_of(size)
        prefetch(<const uint8_t *>p + AHEAD * stride)
        heads.follows = <int64_t>p.entry_delta + 1
        put_head(&heads, heads.at, size, p.head.time)
        heads.at += stride
    out[0] = heads


cdef int64_t walk_heads(const uint8_t *map, int64_t until, int64_t stop, uint32_t stamp, Heads *out) noexcept nogil:
    """Walk over numbered records, like scan_records, but by headers alone.

    Return why it ended; 0: `limit` or `until`.
    """
    cdef int64_t stride, fault = 0
    cdef const uint8_t *p
    out.plain = True
    while True:
        walk_plain(map, until, stop, stamp, out)
        if out.count >= out.limit or out.at >= until:
            return 0
        p = map + out.at
        stride = check_head(p, stop - out.at, stamp)
        if stride < 0:
            fault = stride
            break
        if not (<const RecordHead *>p).form & FORM_LONG:
            if out.follows >= 0 and out.follows != rec.first_delta_of(p):
                fault = rec.RECORD_ENTRY
                break
            out.follows = <int64_t>(<const ShortHeader *>p).entry_delta + ((<const RecordHead *>p).kind <= KIND_BATCH)
        if (<const RecordHead *>p).kind <= KIND_BATCH:
            out.plain = False
            put_head(out, out.at, rec.value_length_of(p), (<const RecordHead *>p).time)
        out.at += stride
    if fault != rec.RECORD_BLANK and out.count and rec.check_record(
            map + out.offsets[out.count - 1], stop - out.offsets[out.count - 1], stamp) < 0:
        out.count -= 1  # the last record is damaged: its length led to this fault
        out.at = out.offsets[out.count]
    return fault


def walk(Segment segment not None, int64_t offset, int64_t stop, *, int64_t until, int64_t limit):
    """Read records by their headers into a RecordBatch, without computing CRCs or touching values.

    The batch ends before an invalid header. When that happens, the CRC of the record before it is checked, because a
    wrong length would have led there; if the check fails, the batch ends before that record.

    Args:
        segment: segment to read.
        offset: offset in the segment at which a record begins.
        stop: offset that no record exceeds.
        until: stop before the first record that begins here or later.
        limit: most records to read.

    Returns:
        The batch, as `Segment.scan`.

    Raises:
        CorruptionError: the first record is damaged.
        InvalidArgumentError: the offsets are not in the segment, or `limit` is less than 1.
    """
    cdef int64_t fault, status
    cdef Py_ssize_t size
    cdef Heads heads
    cdef Block times
    cdef RecordBatch batch
    cdef Pin held = pin(segment)
    if not SEGMENT_HEADER <= offset <= until <= stop <= segment.size or limit < 1:
        raise InvalidArgumentError(f"range {offset}..{stop} outside of the segment's {segment.size} bytes")
    heads.limit = min(limit, (until - offset) // SHORT_HEADER + 1)
    heads.count, heads.at, heads.follows = 0, offset, -1
    times = make_block(heads.limit * sizeof(int64_t))
    heads.offsets = <uint32_t *>take_block(2 * (heads.limit + 1) * <Py_ssize_t>sizeof(uint32_t), &size)
    if heads.offsets == NULL:
        raise MemoryError
    heads.sizes, heads.times = heads.offsets + heads.limit, <int64_t *>times.data
    with nogil:
        fault = walk_heads(segment.map, until, stop, segment.stamp, &heads)
    if fault and fault != rec.RECORD_BLANK and heads.at == offset:
        give_block(<uint8_t *>heads.offsets, size)
        status = rec.check_record(segment.map + offset, stop - offset, segment.stamp)
        raise segment.fault(offset, status if status < 0 else fault)
    if fault == rec.RECORD_BLANK:
        heads.at = segment.size
    batch = make_batch(held, segment.map, segment.base, segment.first_entry, heads.offsets, heads.sizes, heads.count,
                      segment.first_entry >= 0, segment.base + heads.at)
    batch.block_bytes, batch.times, batch.plain = size, times, heads.plain
    return batch


# ---- one column ------------------------------------------------------------------------------------------------

ctypedef struct Field:
    const uint8_t *p              # NULL: the record has no such field
    int64_t length


cdef inline Field value_field(const uint8_t *p, int64_t size) noexcept nogil:
    cdef Field field
    field.p, field.length = p + (<const RecordHead *>p).length - size, size
    return field


cdef inline Field key_field(const uint8_t *p) noexcept nogil:
    cdef Field field
    field.p = rec.key_of(p) if (<const RecordHead *>p).form & FORM_KEY else NULL
    field.length = (<const RecordHead *>p).key_length
    return field


cdef Field next_attribute(const uint8_t **at, const uint8_t *end, int tag) noexcept nogil:
    """Return the next attribute with a tag, and move `at` behind it; p is NULL if none follows."""
    cdef Field field
    cdef uint16_t length
    field.p, field.length = NULL, 0
    while at[0] + 3 <= end:
        memcpy(&length, at[0] + 1, 2)
        if at[0] + 3 + length > end:
            break
        if at[0][0] == tag:
            field.p, field.length = at[0] + 3, length
            at[0] += 3 + length
            break
        at[0] += 3 + length
    return field


cdef inline Field attribute_field(const uint8_t *p, int tag) noexcept nogil:
    cdef const uint8_t *at
    cdef int64_t length = rec.attributes_of(p, &at)
    return next_attribute(&at, at + length, tag)


cdef enum Source:
    SOURCE_VALUE = 0, SOURCE_KEY = -1  # above 0: tag of an attribute


cdef inline Field field_of(const uint8_t *p, int64_t size, int source) noexcept nogil:
    if source == SOURCE_VALUE:
        return value_field(p, size)
    return key_field(p) if source == SOURCE_KEY else attribute_field(p, source)


cdef int64_t lay_offsets(RecordBatch batch, int source, int32_t *starts, uint8_t *valid, int64_t *nulls) noexcept nogil:
    """Fill offsets and null bits. Return the total number of bytes; -1: more than 32-bit offsets can address."""
    cdef Py_ssize_t i
    cdef int64_t at = 0
    cdef Field field
    for i in range(batch.count):
        starts[i] = <int32_t>at
        field = field_of(batch.map + batch.offsets[i], batch.sizes[i], source)
        if field.p != NULL:
            valid[i >> 3] |= 1 << (i & 7)
            at += field.length
            if at > INT32_MAX:
                return -1
        else:
            nulls[0] += 1
    starts[batch.count] = <int32_t>at
    return at


cdef void lay_bytes(RecordBatch batch, int source, const int32_t *starts, uint8_t *out) noexcept nogil:
    cdef Py_ssize_t i
    cdef Field field
    for i in range(batch.count):
        field = field_of(batch.map + batch.offsets[i], batch.sizes[i], source)
        if field.p != NULL:
            memcpy(out + starts[i], field.p, field.length)


cdef Block zeros(Py_ssize_t length):
    cdef Block block = make_block(length)
    memset(block.data, 0, length)
    return block


cdef tuple bytes_column(RecordBatch batch, int source):
    """Return (nulls, validity, offsets, data); validity is None if there are no nulls."""
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef Block starts = make_block((batch.count + 1) * sizeof(int32_t))
    cdef Block data
    cdef int64_t nulls = 0, total
    with nogil:
        total = lay_offsets(batch, source, <int32_t *>starts.data, valid.data, &nulls)
    if total < 0:
        raise OutOfRangeError(f"a column of {batch.count} records: more bytes than {INT32_MAX}")
    data = make_block(total)
    with nogil:
        lay_bytes(batch, source, <const int32_t *>starts.data, data.data)
    return nulls, valid if nulls else None, starts, data


def value_column(RecordBatch batch not None):
    """Return the values as (nulls, validity, offsets, data). Raises OutOfRangeError for more than 2 GiB."""
    return bytes_column(batch, SOURCE_VALUE)


def key_column(RecordBatch batch not None):
    """Return the keys, as value_column returns values; null where a record has none."""
    return bytes_column(batch, SOURCE_KEY)


def attribute_column(RecordBatch batch not None, int tag):
    """Return the values of an attribute, as value_column does; null where a record has none."""
    if not 0 < tag < 256:
        raise InvalidArgumentError(f"tag: expected 1 to 255, found {tag}")
    return bytes_column(batch, tag)


def number_column(RecordBatch batch not None, int tag):
    """Return an attribute of 8 bytes as int64, as (nulls, validity, data); null where a record has none."""
    cdef Block valid = zeros((batch.count + 7) // 8)
    cdef Block data = zeros(batch.count * sizeof(int64_t))
    cdef Py_ssize_t i
    cdef int64_t nulls = 0
    cdef Field field
    if not 0 < tag < 256:
        raise InvalidArgumentError(f"tag: expected 1 to 255, found {tag}")
    with nogil:
        for i in range(batch.count):
            field = attribute_field(batch.map + batch.offsets[i], tag)
            if field.p != NULL and field.length == 8:
                valid.data[i >> 3] |= 1 << (i & 7)
                memcpy(data.data + 8 * i, field.p, 8)
            else:
                nulls += 1
    return nulls, valid if nulls else None, data


def size_column(RecordBatch batch not None):
    """Return the bytes of each value as int32."""
    cdef Block data = make_block(batch.count * sizeof(uint32_t))
    memcpy(data.data, batch.sizes, batch.count * sizeof(uint32_t))
    return data


def crc_column(RecordBatch batch not None):
    """Return the CRC-32C that each record carries, as int64."""
    cdef Block data = make_block(batch.count * sizeof(int64_t))
    cdef Py_ssize_t i
    for i in range(batch.count):
        (<int64_t *>data.data)[i] = (<const RecordHead *>(batch.map + batch.offsets[i])).crc
    return data


# ---- properties: a list for each record ------------------------------------------------------------------------

cdef void put_property(Properties *out, const uint8_t *name, int64_t name_length, const uint8_t *value,
                       int64_t value_length) noexcept nogil:
    if out.names != NULL:
        out.names[out.count], out.values[out.count] = <int32_t>out.name_total, <int32_t>out.value_total
        memcpy(out.name_bytes + out.name_total, name, name_length)
        memcpy(out.value_bytes + out.value_total, value, value_length)
    out.count += 1
    out.name_total += name_length
    out.value_total += value_length


cdef void put_record_properties(const uint8_t *p, Properties *out) noexcept nogil:
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t size = rec.attributes_of(p, &at)
    cdef uint16_t length = 0
    cdef Field field
    end = at + size
    while True:
        field = next_attribute(&at, end, TAG_PROPERTY)
        if field.p == NULL:
            return
        if field.length < 2:
            continue
        memcpy(&length, field.p, 2)
        if length <= field.length - 2:
            put_property(out, field.p + 2, length, field.p + 2 + length, field.length - 2 - length)


cdef void end_properties(Properties *out, Py_ssize_t rows) noexcept nogil:
    out.lists[rows] = <int32_t>out.count
    if out.names != NULL:
        out.names[out.count], out.values[out.count] = <int32_t>out.name_total, <int32_t>out.value_total


cdef bint put_properties(RecordBatch batch, Properties *out) noexcept nogil:
    """Lay out the properties of all records. Return False if 32-bit offsets cannot address them."""
    cdef Py_ssize_t i
    out.count = out.name_total = out.value_total = 0
    for i in range(batch.count):
        out.lists[i] = <int32_t>out.count
        put_record_properties(batch.map + batch.offsets[i], out)
        if out.name_total > INT32_MAX or out.value_total > INT32_MAX:
            return False
    end_properties(out, batch.count)
    return True


def property_columns(RecordBatch batch not None):
    """Return properties as (count, offsets of lists, offsets and bytes of names, offsets and bytes of values)."""
    cdef Properties out
    cdef Block lists = make_block((batch.count + 1) * sizeof(int32_t))
    cdef Block names, values, name_bytes, value_bytes
    cdef bint fits
    memset(&out, 0, sizeof(Properties))
    out.lists = <int32_t *>lists.data
    with nogil:
        fits = put_properties(batch, &out)
    if not fits:
        raise OutOfRangeError(f"the properties of {batch.count} records: more bytes than {INT32_MAX}")
    names, values = make_block((out.count + 1) * sizeof(int32_t)), make_block((out.count + 1) * sizeof(int32_t))
    name_bytes, value_bytes = make_block(out.name_total), make_block(out.value_total)
    out.names, out.values = <int32_t *>names.data, <int32_t *>values.data
    out.name_bytes, out.value_bytes = name_bytes.data, value_bytes.data
    with nogil:
        put_properties(batch, &out)
    return out.count, lists, names, name_bytes, values, value_bytes
