"""Compaction of Kafka's record batches by key: the latest offset of each key, and batches without older records.

`OffsetMap` keeps 16 bytes of each key, a SipHash-2-4 under a secret of the map, as Kafka's keeps an MD5. Two keys with one
hash count as one key: the older record of the two is lost. With 2^32 keys in a map that happens once in 2^65 maps, and
nobody who does not know the secret can make such keys. `clean_batch` gives a batch without the records that a map, a
transaction or a delete horizon (KIP-534) makes superfluous; `replaced_record`, `gap_record` and `end_blank` make the records
of a cleaned segment.
Nothing that a batch says is believed before it is compared with the bytes that are there.

Threads: a map is for one thread at a time. Batches do not change.
"""

import os

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pyreplog._native.kafka.wire cimport (
    get_int16, get_int32, get_int64, get_varint, get_varlong, put_int16, put_int32, put_int64, put_uvarint, uvarint_size,
    zigzag,
)
from pyreplog._native.layout cimport (
    COUNTED_HEADER, CRC_FROM, CountedHeader, FORM_COUNT, KIND_BATCH, LAG_NONE, RecordHead, SHORT_HEADER, ShortHeader, crc32c,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.segment cimport Segment
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError

cdef enum:
    BATCH_HEADER = 61
    LENGTH_FROM = 12
    BATCH_CRC_FROM = 21
    RECORD_MIN = 7
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    CONTROL = 32
    DELETE_HORIZON = 64
    INVALID_RECORD = 87
    SLOT_BYTES = 24

cdef struct Slot:
    uint64_t low, high
    int64_t offset      # -1: the slot is free

# A record in the body of a batch.
cdef struct Walked:
    const uint8_t *start
    const uint8_t *behind_delta     # behind the timestamp's delta
    const uint8_t *end
    const uint8_t *key
    int64_t delta, number, key_size, value_size


# ---- hashes ----------------------------------------------------------------------------------------------------

cdef inline uint64_t rotate(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotate(v[1], 13) ^ v[0]
    v[0] = rotate(v[0], 32)
    v[2] += v[3]
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotate(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


cdef void sip_hash(const uint8_t *data, int64_t size, uint64_t k0, uint64_t k1, uint64_t *low, uint64_t *high) noexcept nogil:
    """SipHash-2-4 with 128 bits."""
    cdef uint64_t v[4]
    cdef uint64_t word, last = <uint64_t>size << 56
    cdef int64_t i, whole = size & ~7
    v[0] = k0 ^ <uint64_t>0x736f6d6570736575
    v[1] = k1 ^ <uint64_t>0x646f72616e646f6d ^ 0xee
    v[2] = k0 ^ <uint64_t>0x6c7967656e657261
    v[3] = k1 ^ <uint64_t>0x7465646279746573
    for i in range(0, whole, 8):
        memcpy(&word, data + i, 8)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    for i in range(whole, size):
        last |= <uint64_t>data[i] << 8 * (i - whole)
    v[3] ^= last
    sip_round(v)
    sip_round(v)
    v[0] ^= last
    v[2] ^= 0xee
    for i in range(4):
        sip_round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xdd
    for i in range(4):
        sip_round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def hash_key(key, bytes secret not None, /):
    """Return the 16 bytes that a map with this secret (16 bytes) keeps of a key."""
    cdef Py_buffer view
    cdef uint64_t words[2]
    cdef uint64_t out[2]
    if len(secret) != 16:
        raise InvalidArgumentError(f"secret: expected 16 bytes, found {len(secret)}")
    memcpy(words, PyBytes_AS_STRING(secret), 16)
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    sip_hash(<const uint8_t *>view.buf, view.len, words[0], words[1], &out[0], &out[1])
    PyBuffer_Release(&view)
    return PyBytes_FromStringAndSize(<const char *>out, 16)


# ---- records of a batch ----------------------------------------------------------------------------------------

cdef inline int skip_sized(const uint8_t **at, const uint8_t *stop, int64_t *size) noexcept nogil:
    if get_varint(at, stop, size) < 0 or size[0] < -1 or size[0] > stop - at[0]:
        return -1
    if size[0] > 0:
        at[0] += size[0]
    return 0


cdef int walk(const uint8_t **at, const uint8_t *stop, int64_t previous, int64_t last, Walked *record) noexcept nogil:
    """Read the record at `at`, and step behind it. Return -1 if it is damaged. Headers are not looked into."""
    cdef int64_t length
    record.start = at[0]
    if get_varint(at, stop, &length) < 0 or length < RECORD_MIN - 1 or length > stop - at[0]:
        return -1
    record.end = at[0] + length
    at[0] += 1
    if get_varlong(at, record.end, &record.delta) < 0:
        return -1
    record.behind_delta = at[0]
    if get_varint(at, record.end, &record.number) < 0 or not previous < record.number <= last:
        return -1
    if skip_sized(at, record.end, &record.key_size) < 0:
        return -1
    record.key = at[0] - (record.key_size if record.key_size > 0 else 0)
    if skip_sized(at, record.end, &record.value_size) < 0:
        return -1
    at[0] = record.end
    return 0


cdef object damaged(int64_t record, int64_t at):
    return InvalidRecordBatchError(INVALID_RECORD, record, at, "a record of ascending number with key and value within it",
                                   "other bytes")


cdef int check_batch_head(const uint8_t *p, int64_t size) except -1:
    if size < BATCH_HEADER or p[16] != 2 or get_int32(p + 8) != size - LENGTH_FROM:
        raise InvalidRecordBatchError(INVALID_RECORD, -1, 8, f"a record batch of {size} bytes", "other bytes")
    if get_int32(p + 23) < 0 or not 0 <= get_int32(p + 57) <= <int64_t>get_int32(p + 23) + 1:
        raise InvalidRecordBatchError(INVALID_RECORD, -1, 57, "at most as many records as offsets",
                                      f"{get_int32(p + 57)} and {<int64_t>get_int32(p + 23) + 1}")
    return 0


# ---- the map ---------------------------------------------------------------------------------------------------

@cython.final
cdef class OffsetMap:
    """The latest offset of each key of some batches, in bounded memory.

    max_bytes: memory of the map, at least 1 KiB; a key takes 24 bytes, and nine tenths of them may be taken. secret: 16
    bytes of the hash; None: random ones. Raises MemoryError.
    """

    cdef Slot *slots
    cdef int64_t size, room, taken
    cdef uint64_t k0, k1
    cdef readonly int64_t latest      # offset behind the last batch that was added; -1: none was

    def __cinit__(self, int64_t max_bytes, bytes secret=None):
        cdef int64_t i
        if not 1024 <= max_bytes <= <int64_t>1 << 36:
            raise InvalidArgumentError(f"max_bytes: expected 1024 to {1 << 36}, found {max_bytes}")
        secret = os.urandom(16) if secret is None else secret
        if len(secret) != 16:
            raise InvalidArgumentError(f"secret: expected 16 bytes, found {len(secret)}")
        memcpy(&self.k0, PyBytes_AS_STRING(secret), 8)
        memcpy(&self.k1, PyBytes_AS_STRING(secret) + 8, 8)
        self.size = max_bytes // SLOT_BYTES
        self.room, self.latest = self.size * 9 // 10, -1
        self.slots = <Slot *>malloc(self.size * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError
        for i in range(self.size):
            self.slots[i].offset = -1

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.taken

    cdef Slot *find(self, const uint8_t *key, int64_t size) noexcept nogil:
        """Return the slot of a key, or the free one where it belongs."""
        cdef uint64_t low, high
        cdef int64_t at
        cdef Slot *slot
        sip_hash(key, size, self.k0, self.k1, &low, &high)
        at = <int64_t>(low % <uint64_t>self.size)
        while True:
            slot = self.slots + at
            if slot.offset < 0 or (slot.low == low and slot.high == high):
                if slot.offset < 0:
                    slot.low, slot.high = low, high
                return slot
            at = at + 1 if at + 1 < self.size else 0

    def get(self, bytes key not None, /):
        """Return the latest offset of a key; -1: no batch that was added has it."""
        return self.find(<const uint8_t *>PyBytes_AS_STRING(key), len(key)).offset

    def add_batch(self, batch, body, /):
        """Take the keys of a batch. Return False, and take none of them, if they may be more than there is room for.

        body: its records, uncompressed. Batches are added in the order of the log. Raises InvalidRecordBatchError, when the
        map may have a part of the keys.
        """
        cdef Py_buffer head, view
        cdef Walked record
        cdef int64_t i, base, count, last, previous = -1
        cdef const uint8_t *at
        cdef Slot *slot
        PyObject_GetBuffer(batch, &head, PyBUF_SIMPLE)
        try:
            check_batch_head(<const uint8_t *>head.buf, head.len)
            base = get_int64(<const uint8_t *>head.buf)
            last, count = get_int32(<const uint8_t *>head.buf + 23), get_int32(<const uint8_t *>head.buf + 57)
        finally:
            PyBuffer_Release(&head)
        if count > self.room - self.taken:
            return False
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            at = <const uint8_t *>view.buf
            for i in range(count):
                if walk(&at, <const uint8_t *>view.buf + view.len, previous, last, &record) < 0:
                    raise damaged(i, record.start - <const uint8_t *>view.buf)
                previous = record.number
                if record.key_size < 0:
                    continue
                slot = self.find(record.key, record.key_size)
                self.taken += slot.offset < 0
                slot.offset = base + record.number
        finally:
            PyBuffer_Release(&view)
        self.latest = max(self.latest, base + last + 1)
        return True

    def note_end(self, int64_t offset, /):
        """Note that the log was looked at up to an offset, also where no batch with keys lies."""
        self.latest = max(self.latest, offset)


# ---- cleaning --------------------------------------------------------------------------------------------------

def clean_batch(batch, body, OffsetMap offsets not None, compress, /, *, int64_t now_ms, int64_t retention_ms,
                bint is_marker_of_nothing=False, bint sets_horizon=True):
    """Return what is left of a batch: None if it stays as it is, else the batch, perhaps without any record.

    Offsets, sequence numbers, producer and leader epoch stay. A record goes when the map has a later offset of its key, when
    it has no key, or when it is a tombstone and the delete horizon of its batch has passed. A batch that keeps tombstones
    gets a horizon, if it has none: `now_ms + retention_ms`.

    body: its records, uncompressed. compress: takes (codec, records). is_marker_of_nothing: it is a control batch, of a
    transaction of which no record is left; it stays, and gets a horizon. sets_horizon: False if there is no room for one.
    Raises InvalidRecordBatchError.
    """
    cdef Py_buffer head, view
    cdef Walked record
    cdef const uint8_t *p
    cdef const uint8_t *at
    cdef int64_t i, base, base_time, count, last, previous = -1, kept = 0, horizon = -1, latest_time = -1, new_base
    cdef int attributes
    cdef bint stays, has_passed, has_tombstone = False, is_control
    cdef bytes records
    cdef bytearray marks
    cdef Slot *slot
    PyObject_GetBuffer(batch, &head, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *>head.buf
        check_batch_head(p, head.len)
        attributes, base, base_time = get_int16(p + 21), get_int64(p), get_int64(p + 27)
        last, count = get_int32(p + 23), get_int32(p + 57)
        is_control = attributes & CONTROL
        if attributes & DELETE_HORIZON:
            horizon = base_time
        has_passed = attributes & DELETE_HORIZON and now_ms >= horizon
        PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
        try:
            if count > view.len // RECORD_MIN:
                raise damaged(0, 0)
            marks = bytearray(count)
            at = <const uint8_t *>view.buf
            for i in range(count):
                if walk(&at, <const uint8_t *>view.buf + view.len, previous, last, &record) < 0:
                    raise damaged(i, record.start - <const uint8_t *>view.buf)
                previous = record.number
                if is_control:
                    stays = True
                elif base + record.number >= offsets.latest:
                    stays = True    # the map does not reach so far
                elif record.key_size < 0:
                    stays = False
                else:
                    slot = offsets.find(record.key, record.key_size)
                    stays = base + record.number >= slot.offset and (record.value_size >= 0 or not has_passed)
                if not stays:
                    continue
                marks[i] = 1
                kept += 1
                has_tombstone |= not is_control and record.value_size < 0
                latest_time = max(latest_time, time_of(base_time, record.delta))
            if at != <const uint8_t *>view.buf + view.len:
                raise damaged(count, at - <const uint8_t *>view.buf)
            new_base = base_time
            if sets_horizon and kept and not attributes & DELETE_HORIZON and (has_tombstone or is_marker_of_nothing):
                new_base = now_ms + retention_ms
                attributes |= DELETE_HORIZON
            if kept == count and new_base == base_time:
                return None
            if not kept:
                return empty_batch(p)
            records = kept_records(<const uint8_t *>view.buf, view.len, last, marks, kept, base_time, new_base)
        finally:
            PyBuffer_Release(&view)
        if attributes & CODEC_MASK:
            records = bytes(compress(attributes & CODEC_MASK, records))
        return build(p, attributes, new_base, get_int64(p + 35) if attributes & LOG_APPEND_TIME else latest_time, kept, records)
    finally:
        PyBuffer_Release(&head)


cdef bytes kept_records(const uint8_t *body, int64_t body_size, int64_t last, bytearray marks, int64_t kept,
                        int64_t old_base, int64_t new_base):
    """Return the records of a body, which were walked, that are marked. old_base, new_base: their timestamps count from the
    one, and are to count from the other. kept: how many there are."""
    cdef bytes records = PyBytes_FromStringAndSize(NULL, body_size + 10 * kept)  # a delta may take 9 bytes more
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(records)
    cdef const uint8_t *at = body
    cdef int64_t i, size, shift, previous = -1
    cdef Walked record
    for i in range(len(marks)):
        walk(&at, body + body_size, previous, last, &record)
        previous = record.number
        if not marks[i]:
            continue
        if new_base == old_base:
            memcpy(to, record.start, record.end - record.start)
            to += record.end - record.start
            continue
        shift = time_of(old_base, record.delta) - new_base
        size = 1 + uvarint_size(zigzag(shift)) + (record.end - record.behind_delta)
        to = put_uvarint(to, zigzag(size))
        to[0] = 0
        to = put_uvarint(to + 1, zigzag(shift))
        memcpy(to, record.behind_delta, record.end - record.behind_delta)
        to += record.end - record.behind_delta
    return records[:to - <uint8_t *>PyBytes_AS_STRING(records)]


cdef inline int64_t time_of(int64_t base, int64_t delta) noexcept nogil:
    """Return the timestamp of a record. Sums that do not fit wrap: readers refuse such a batch, and so it stays."""
    return <int64_t>(<uint64_t>base + <uint64_t>delta)


cdef bytes build(const uint8_t *head, int attributes, int64_t base_time, int64_t max_time, int64_t count, bytes records):
    cdef int64_t size = BATCH_HEADER + len(records)
    cdef bytes batch
    cdef uint8_t *p
    if size > INT32_MAX:
        raise InvalidRecordBatchError(INVALID_RECORD, -1, 8, f"a batch of at most {INT32_MAX} bytes", f"{size}")
    batch = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(batch)
    memcpy(p, head, BATCH_HEADER)
    memcpy(p + BATCH_HEADER, PyBytes_AS_STRING(records), len(records))
    put_int32(p + 8, size - LENGTH_FROM)
    put_int16(p + 21, attributes)
    put_int64(p + 27, base_time)
    put_int64(p + 35, max_time)
    put_int32(p + 57, count)
    put_int32(p + 17, crc32c(0, p + BATCH_CRC_FROM, size - BATCH_CRC_FROM))
    return batch


cdef bytes empty_batch(const uint8_t *head):
    """Return a batch without records that has the offsets, the producer and the sequence numbers of another one."""
    return build(head, get_int16(head + 21) & ~(DELETE_HORIZON | CODEC_MASK), get_int64(head + 35), get_int64(head + 35), 0, b"")


def without_records(batch, /):
    """Return a batch with the offsets, producer and sequence numbers of a batch, and none of its records."""
    cdef Py_buffer head
    PyObject_GetBuffer(batch, &head, PyBUF_SIMPLE)
    try:
        check_batch_head(<const uint8_t *>head.buf, head.len)
        return empty_batch(<const uint8_t *>head.buf)
    finally:
        PyBuffer_Release(&head)


# ---- records of a segment --------------------------------------------------------------------------------------

def replaced_record(Segment segment not None, int64_t offset, bytes batch not None, /):
    """Return the record at an offset of a segment, which was verified, with another batch as its value."""
    cdef const uint8_t *old
    cdef uint8_t *p
    cdef int64_t front, length, stride
    cdef bytes out
    if not 0 <= offset <= segment.size - COUNTED_HEADER:
        raise InvalidArgumentError(f"offset {offset} outside of the segment's {segment.size} bytes")
    old = segment.map + offset
    front = rec.value_of(old) - old
    length = front + len(batch)
    stride = rec.stride_of(length)
    out = PyBytes_FromStringAndSize(NULL, stride)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    memcpy(p, old, front)
    memcpy(p + front, PyBytes_AS_STRING(batch), len(batch))
    memset(p + length, 0, stride - length)
    (<RecordHead *>p).length = <uint32_t>length
    (<RecordHead *>p).crc = crc32c(<uint32_t>length, p + CRC_FROM, stride - CRC_FROM)
    return out


def gap_record(Segment segment not None, int64_t offset, int64_t first, int64_t count, /):
    """Return a record with an empty batch that takes `count` entry numbers from `first` on, up to and with those of the
    record at an offset, which was verified. Times and leader epoch are those of that record."""
    cdef const uint8_t *old
    cdef const uint8_t *value
    cdef uint8_t *p
    cdef int64_t length = COUNTED_HEADER + BATCH_HEADER, stride = rec.stride_of(COUNTED_HEADER + BATCH_HEADER)
    cdef bytes out
    if not 0 <= offset <= segment.size - COUNTED_HEADER or not 1 <= count <= INT32_MAX:
        raise InvalidArgumentError(f"offset {offset}, count {count}: outside of a segment, or of 32 bits")
    old = segment.map + offset
    value = rec.value_of(old)
    out = PyBytes_FromStringAndSize(NULL, stride)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    memset(p, 0, stride)
    rec.write_head(p, <uint32_t>length, segment.stamp, KIND_BATCH, FORM_COUNT, 0, (<const RecordHead *>old).time)
    (<ShortHeader *>p).entry_delta = (<const ShortHeader *>old).entry_delta
    (<ShortHeader *>p).synced_lag = (<const ShortHeader *>old).synced_lag
    (<CountedHeader *>p).count = <uint32_t>count
    put_int64(p + COUNTED_HEADER, first)
    put_int32(p + COUNTED_HEADER + 8, BATCH_HEADER - LENGTH_FROM)
    memcpy(p + COUNTED_HEADER + 12, value + 12, 4)
    p[COUNTED_HEADER + 16] = 2
    put_int32(p + COUNTED_HEADER + 23, count - 1)
    put_int64(p + COUNTED_HEADER + 27, -1)
    put_int64(p + COUNTED_HEADER + 35, -1)
    put_int64(p + COUNTED_HEADER + 43, -1)
    put_int16(p + COUNTED_HEADER + 51, -1)
    put_int32(p + COUNTED_HEADER + 53, -1)
    put_int32(p + COUNTED_HEADER + 17, crc32c(0, p + COUNTED_HEADER + BATCH_CRC_FROM, BATCH_HEADER - BATCH_CRC_FROM))
    (<RecordHead *>p).crc = crc32c(<uint32_t>length, p + CRC_FROM, stride - CRC_FROM)
    return out


def end_blank(Segment segment not None, int64_t offset, int64_t entries, int64_t time_us, /):
    """Return the header of the blank at an offset that ends a segment with so many entry numbers."""
    cdef bytes out = PyBytes_FromStringAndSize(NULL, SHORT_HEADER)
    if not 0 <= offset <= segment.size - SHORT_HEADER or not 0 <= entries <= UINT32_MAX:
        raise InvalidArgumentError(f"offset {offset}, {entries} entries: outside of a segment, or of 32 bits")
    memset(PyBytes_AS_STRING(out), 0, SHORT_HEADER)
    rec.encode_blank(<uint8_t *>PyBytes_AS_STRING(out), <uint32_t>(segment.size - offset), segment.stamp,
                     <uint32_t>entries, LAG_NONE, time_us)
    return out
