"""Kafka's record batches of version 2 (magic 2): checked, read as columns, built.

A batch is 61 bytes of header and then its records, which the header's codec may have compressed. `check_batch` looks at the
header and the checksum; `take_produced` and `read_records` walk the records, uncompressed. Nothing that a
batch says is believed before it is compared with the bytes that are there.

Threads: headers and columns do not change once they are made. Large bodies are walked, and checksums computed, without the
GIL: their bytes must not change meanwhile.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pyreplog._native.kafka.wire cimport (
    get_int16, get_int32, get_int64, get_varint, get_varlong, put_int16, put_int32, put_int64, put_uvarint, uvarint_size,
    zigzag,
)
from pyreplog._native.layout cimport crc32c, crc32c_copy
from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError, MissingExtraError

HEADER_BYTES = BATCH_HEADER
"""Of a batch, in front of its records."""

CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87

NO_TIMESTAMP = -1

cdef enum:
    LENGTH_FROM = 12            # the length counts from here on
    CRC_FROM = 21
    EPOCH_MASK = 0x7FFFFFFF     # a batch has the lowest 31 bits of the number of its leader epoch
    UNLOCKED_BYTES = 64 << 10   # shorter bodies are walked with the GIL
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    DELETE_HORIZON = 64
    KNOWN_ATTRIBUTES = 127

cdef int64_t MICROSECONDS_MAX = INT64_MAX // 1000  # ms: a later time does not fit into the microseconds of a log

cdef enum Fault:
    FAULT_NONE
    FAULT_LENGTH
    FAULT_ATTRIBUTES
    FAULT_TIMESTAMP
    FAULT_OFFSET
    FAULT_KEY
    FAULT_VALUE
    FAULT_HEADERS
    FAULT_REST
    FAULT_COUNT
    FAULT_WINDOW

cdef dict FAULTS = {
    FAULT_LENGTH: ("length", "the bytes of a record"),
    FAULT_ATTRIBUTES: ("attributes", "a byte of attributes"),
    FAULT_TIMESTAMP: ("timestamp", "a timestamp of 64 bits that is not negative, or -1"),
    FAULT_OFFSET: ("offset delta", "a number behind that of the record before, within the batch"),
    FAULT_KEY: ("key", "a length within the record, or -1"),
    FAULT_VALUE: ("value", "a length within the record, or -1"),
    FAULT_HEADERS: ("headers", "a count and pairs of lengths and bytes within the record"),
    FAULT_REST: ("length", "the end of the record behind its headers"),
    FAULT_COUNT: ("count", "the end of the batch behind its last record"),
    FAULT_WINDOW: ("timestamp", "a timestamp within the limits of the topic"),
}


cdef inline int skip_sized(const uint8_t **at, const uint8_t *stop, int64_t *size, int64_t least) noexcept nogil:
    """Read a length from `least` on, and step over as many bytes. Return -1: they are not there."""
    if get_varint(at, stop, size) < 0 or size[0] < least or size[0] > stop - at[0]:
        return -1
    if size[0] > 0:
        at[0] += size[0]
    return 0


cdef inline int skip_headers(const uint8_t **at, const uint8_t *stop, int64_t *count) noexcept nogil:
    cdef int64_t i, size
    if get_varint(at, stop, count) < 0 or count[0] < 0 or count[0] > (stop - at[0]) // 2:
        return -1
    for i in range(count[0]):
        if skip_sized(at, stop, &size, 0) < 0 or skip_sized(at, stop, &size, -1) < 0:
            return -1
    return 0


cdef Fault walk_records(const uint8_t *body, int64_t size, int64_t count, int64_t last, int64_t base_timestamp,
                        int64_t earliest, int64_t latest, int64_t *columns, Walked *walked) noexcept nogil:
    """Step over `count` records, which must fill the body. Their numbers ascend up to `last`; compaction leaves gaps.
    columns: NULL, or room for COLUMNS * count numbers."""
    cdef const uint8_t *at = body
    cdef const uint8_t *stop = body + size
    cdef const uint8_t *end
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef const uint8_t *headers
    cdef int64_t i, length, delta, number, previous = -1, key_size, value_size, header_count, timestamp
    walked.max_timestamp, walked.record, walked.keyless = -1, 0, -1
    for i in range(count):
        walked.record, walked.at = i, at - body
        if get_varint(&at, stop, &length) < 0 or length < RECORD_MIN - 1 or length > stop - at:
            return FAULT_LENGTH
        end = at + length
        at += 1     # attributes: none are defined
        if get_varlong(&at, end, &delta) < 0 or (delta > 0 and base_timestamp > INT64_MAX - delta) or (
                delta < 0 and base_timestamp < INT64_MIN - delta):
            return FAULT_TIMESTAMP
        timestamp = base_timestamp + delta
        if timestamp < -1:
            return FAULT_TIMESTAMP
        if get_varint(&at, end, &number) < 0 or not previous < number <= last:
            return FAULT_OFFSET
        previous = number
        if skip_sized(&at, end, &key_size, -1) < 0:
            return FAULT_KEY
        key = at - (key_size if key_size > 0 else 0)
        if key_size < 0 and walked.keyless < 0:
            walked.keyless = i
        if skip_sized(&at, end, &value_size, -1) < 0:
            return FAULT_VALUE
        value = at - (value_size if value_size > 0 else 0)
        headers = at
        if skip_headers(&at, end, &header_count) < 0:
            return FAULT_HEADERS
        if at != end:
            return FAULT_REST
        if timestamp != -1 and not earliest <= timestamp <= latest:
            return FAULT_WINDOW
        walked.max_timestamp = max(walked.max_timestamp, timestamp)
        if columns != NULL:
            columns[COLUMN_TIMESTAMP * count + i] = timestamp
            columns[COLUMN_KEY_START * count + i] = key - body
            columns[COLUMN_KEY_SIZE * count + i] = key_size
            columns[COLUMN_VALUE_START * count + i] = value - body
            columns[COLUMN_VALUE_SIZE * count + i] = value_size
            columns[COLUMN_HEADERS_START * count + i] = headers - body
            columns[COLUMN_HEADER_COUNT * count + i] = header_count
            columns[COLUMN_NUMBER * count + i] = number
    walked.record, walked.at = count, at - body
    return FAULT_COUNT if at != stop else FAULT_NONE


@cython.final
cdef class RecordBatchHeader:
    """The header of a batch whose checksum is right. `check_batch` makes it.

    Attributes:
        size: of the batch with its header, bytes.
        base_offset, leader_epoch: as the batch has them. They are outside of the checksum.
        attributes: codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd) and flags.
        count: records, of which the last has the offset base_offset + last_offset_delta.
        base_timestamp, max_timestamp: ms since 1970; -1: none. The greatest is what the client says.
        producer_id, producer_epoch, base_sequence: -1: none.
    """

    @property
    def codec(self):
        """The number of the codec."""
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self):
        """Whether all records have the time at which they were appended."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def transactional(self):
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self):
        """Whether the only record ends a transaction."""
        return bool(self.attributes & CONTROL)

    cdef int walk_body(self, const uint8_t *body, int64_t size, int64_t earliest, int64_t latest, int64_t *columns,
                       Walked *walked) except -1:
        cdef Fault status
        if self.count < 0 or self.count > size // RECORD_MIN:
            raise too_many(self.count, size)
        if size < UNLOCKED_BYTES:
            status = walk_records(body, size, self.count, self.last_offset_delta, self.base_timestamp, earliest, latest,
                                  columns, walked)
        else:
            with nogil:
                status = walk_records(body, size, self.count, self.last_offset_delta, self.base_timestamp, earliest, latest,
                                      columns, walked)
        if status == FAULT_NONE:
            return 0
        name, expected = FAULTS[status]
        code = INVALID_TIMESTAMP if status in (FAULT_TIMESTAMP, FAULT_WINDOW) else INVALID_RECORD
        raise InvalidRecordBatchError(code, walked.record, walked.at, f"{name}: {expected}",
                                      f"bytes {body[walked.at:min(walked.at + 16, size)].hex(' ')} from the record on")


cdef object too_many(int64_t count, int64_t size):
    return fault(INVALID_RECORD, -1, 57, f"0 to {size // RECORD_MIN} records in {size} bytes", f"{count}")


cdef object fault(int code, int64_t record, int64_t at, str expected, str actual):
    return InvalidRecordBatchError(code, record, at, expected, actual)


def check_batch(data, /, *, Py_ssize_t start=0):
    """Return the header of the batch that begins at byte `start`, after its length, magic and checksum were checked.

    What follows the batch is not looked at. Raises InvalidRecordBatchError: CORRUPT_MESSAGE, or INVALID_RECORD for a batch
    of an older version (magic 0 or 1), which no request that is served may hold.
    """
    cdef Py_buffer view
    cdef RecordBatchHeader header
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= view.len:
            raise InvalidArgumentError(f"start: expected 0 to {view.len}, found {start}")
        header = header_of(<const uint8_t *>view.buf + start, view.len - start)
    finally:
        PyBuffer_Release(&view)
    return header


cdef RecordBatchHeader fields_of(const uint8_t *p):
    """The fields of a header that is there whole. Nothing is checked."""
    cdef RecordBatchHeader header = RecordBatchHeader.__new__(RecordBatchHeader)
    header.size = LENGTH_FROM + <int64_t>get_int32(p + 8)
    header.base_offset, header.leader_epoch, header.attributes = get_int64(p), get_int32(p + 12), get_int16(p + 21)
    header.last_offset_delta, header.base_timestamp = get_int32(p + 23), get_int64(p + 27)
    header.max_timestamp, header.producer_id = get_int64(p + 35), get_int64(p + 43)
    header.producer_epoch, header.base_sequence, header.count = get_int16(p + 51), get_int32(p + 53), get_int32(p + 57)
    return header


def peek_header(data, /):
    """Return the header of one whole batch, whose checksum was verified before; None: these bytes are none."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef RecordBatchHeader header = None
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    p = <const uint8_t *>view.buf
    if view.len >= BATCH_HEADER and p[16] == 2 and <int64_t>get_int32(p + 8) + LENGTH_FROM == view.len:
        header = fields_of(p)
    PyBuffer_Release(&view)
    return header


cdef RecordBatchHeader header_of(const uint8_t *p, Py_ssize_t space):
    cdef int64_t length, size
    cdef uint32_t crc
    if space < 17:
        raise fault(CORRUPT_MESSAGE, -1, 0, f"a batch of {BATCH_HEADER} bytes or more", f"{space}")
    if p[16] < 2:
        raise fault(INVALID_RECORD, -1, 16, "a batch of magic 2", f"magic {p[16]}")
    if p[16] > 2:
        raise fault(CORRUPT_MESSAGE, -1, 16, "a batch of magic 2", f"magic {p[16]}")
    length = get_int32(p + 8)
    if length < BATCH_HEADER - LENGTH_FROM or length > space - LENGTH_FROM:
        raise fault(CORRUPT_MESSAGE, -1, 8, f"a length of {BATCH_HEADER - LENGTH_FROM} to {space - LENGTH_FROM}",
                    f"{length}")
    size = LENGTH_FROM + length
    if size < UNLOCKED_BYTES:
        crc = crc32c(0, p + CRC_FROM, size - CRC_FROM)
    else:
        with nogil:
            crc = crc32c(0, p + CRC_FROM, size - CRC_FROM)
    if crc != <uint32_t>get_int32(p + 17):
        raise fault(CORRUPT_MESSAGE, -1, 17, f"checksum {crc:#010x}", f"{<uint32_t>get_int32(p + 17):#010x}")
    return fields_of(p)


# ---- what a log takes ------------------------------------------------------------------------------------------


@cython.final
cdef class ProducedBatch:
    """A batch that `take_produced` has copied and checked. One thread at a time.

    Attributes:
        header: its header.
    """

    @property
    def data(self):
        """The bytes, as they were sent or stamped."""
        return self.copy

    cpdef Block stamp(self, int64_t base_offset, int64_t leader_epoch, int64_t log_append_time=-1):
        """Write what a log sets, and return the bytes, which stay as they are until the next `stamp`.

        log_append_time: ms since 1970; -1: the records keep their timestamps. Otherwise the checksum is computed anew.
        """
        put_stamp(self.copy.data, self.copy.length, base_offset, leader_epoch, log_append_time)
        return self.copy


def take_produced(data, /, *, int64_t max_bytes=INT64_MAX, bint sent_by_client=True, int64_t oldest=INT64_MIN,
                  int64_t newest=INT64_MAX, bint keys_required=False, object decompress=None,
                  int64_t max_uncompressed=INT32_MAX):
    """Copy one batch and check what a log checks before it appends: the header, the checksum, and each record.

    max_bytes: size of the largest batch. sent_by_client: a log sets the rest: base offset 0, no control batch, the
    producer's timestamps. oldest, newest: ms since 1970, between which the timestamps must lie if they are the producer's;
    records without any, and control batches, pass. keys_required: each record must have a key. decompress: takes the number
    of a codec, compressed bytes and the most bytes that it may return; None, or MissingExtraError from it: the records of
    compressed batches are not looked into, which keys_required does not allow. max_uncompressed: bytes of the records.
    Returns a `ProducedBatch`, or the number of the error and what is wrong. The checksum is that of the copy, so it holds
    even if another thread writes into `data` meanwhile. A greatest timestamp that is not that of the records is corrected.
    """
    cdef Py_buffer view
    cdef object taken
    cdef ProducedBatch batch
    cdef Walked walked
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        taken = take_checked(<const uint8_t *>view.buf, view.len, max_bytes, sent_by_client, oldest, newest)
    finally:
        PyBuffer_Release(&view)
    if type(taken) is not ProducedBatch:
        return taken
    batch = <ProducedBatch>taken
    try:
        if not walk_produced(batch, oldest, newest, decompress, max_uncompressed, &walked):
            if keys_required:
                return UNSUPPORTED_COMPRESSION_TYPE, "the keys of the records cannot be looked at: pip install pyreplog[kafka]"
            return batch
    except InvalidRecordBatchError as error:
        return error.error_code, str(error)
    if keys_required and walked.keyless >= 0 and not batch.header.attributes & CONTROL:
        return INVALID_RECORD, f"record {walked.keyless} of the batch has no key, which a compacted topic needs"
    if walked.max_timestamp != batch.header.max_timestamp and not batch.header.attributes & LOG_APPEND_TIME:
        put_int64(batch.copy.data + 35, walked.max_timestamp)
        put_int32(batch.copy.data + 17, crc32c(0, batch.copy.data + CRC_FROM, batch.copy.length - CRC_FROM))
        batch.header = fields_of(batch.copy.data)
    return batch


cdef bint walk_produced(ProducedBatch batch, int64_t oldest, int64_t newest, object decompress, int64_t max_uncompressed,
                        Walked *walked) except -1:
    """Walk the records of a batch. Returns whether they could be looked at. Raises InvalidRecordBatchError."""
    cdef RecordBatchHeader header = batch.header
    cdef const uint8_t[::1] body
    cdef int64_t size = header.size - BATCH_HEADER
    if header.attributes & (LOG_APPEND_TIME | CONTROL):
        oldest, newest = INT64_MIN, INT64_MAX
    newest = min(newest, MICROSECONDS_MAX)
    if not header.attributes & CODEC_MASK:
        header.walk_body(batch.copy.data + BATCH_HEADER, size, oldest, newest, NULL, walked)
        return True
    if decompress is None:
        return False
    try:
        body = decompress(header.attributes & CODEC_MASK, memoryview(batch.copy)[BATCH_HEADER:], max_uncompressed)
    except MissingExtraError:
        return False
    size = body.shape[0]
    header.walk_body(&body[0] if size else NULL, size, oldest, newest, NULL, walked)
    return True


cdef object take_checked(const uint8_t *p, Py_ssize_t size, int64_t max_bytes, bint sent_by_client, int64_t oldest,
                         int64_t newest):
    cdef ProducedBatch batch
    cdef RecordBatchHeader header
    cdef uint8_t *copy
    cdef int64_t length
    cdef uint32_t crc, expected
    if size < BATCH_HEADER:
        return CORRUPT_MESSAGE, f"expected a record batch of {BATCH_HEADER} bytes or more, found {size}"
    length = get_int32(p + 8)
    if p[16] != 2:
        return INVALID_RECORD, f"expected magic 2, found {p[16]}"
    if not BATCH_HEADER - LENGTH_FROM <= length <= size - LENGTH_FROM:
        return CORRUPT_MESSAGE, f"length: expected at most {size - LENGTH_FROM}, found {length}"
    if length != size - LENGTH_FROM:
        return INVALID_RECORD, f"expected one batch, found {size - length - LENGTH_FROM} bytes behind it"
    if size > max_bytes:
        return MESSAGE_TOO_LARGE, f"expected at most {max_bytes} bytes, found {size}"
    batch = ProducedBatch.__new__(ProducedBatch)
    batch.copy = make_block(size)
    copy = batch.copy.data
    memcpy(copy, p, CRC_FROM)
    if size < UNLOCKED_BYTES:
        crc = crc32c_copy(0, copy + CRC_FROM, p + CRC_FROM, size - CRC_FROM, 0)
    else:
        with nogil:
            crc = crc32c_copy(0, copy + CRC_FROM, p + CRC_FROM, size - CRC_FROM, 0)
    expected = <uint32_t>get_int32(copy + 17)
    if crc != expected:
        return CORRUPT_MESSAGE, f"expected a batch of CRC {expected:#x}, found {crc:#x}"
    if copy[16] != 2 or get_int32(copy + 8) != length:  # it was changed since it was looked at
        return CORRUPT_MESSAGE, "expected bytes that stay as they are while they are appended"
    header = batch.header = fields_of(copy)
    message = misshapen(header, sent_by_client)
    if message is not None:
        return INVALID_RECORD, message
    message = None if header.attributes & LOG_APPEND_TIME else untimely(header, oldest, newest)
    if message is not None:
        return INVALID_TIMESTAMP, message
    return batch


cdef object misshapen(RecordBatchHeader header, bint sent_by_client):
    """Return what is wrong with a batch whose bytes are those that were sent; None: nothing."""
    cdef int64_t offsets = <int64_t>header.last_offset_delta + 1
    if offsets < 1 or header.count < 1:
        return f"expected 1 record or more, found {header.count}, and {offsets} offsets"
    if header.count != offsets:  # of compaction, which is no producer's business
        return f"expected as many records as offsets, found {header.count}, and {offsets} offsets"
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        return "expected a producer id in a transaction, found none"
    if not sent_by_client:
        return None
    if header.attributes & LOG_APPEND_TIME:
        return "expected a batch with the producer's time, found the log's"
    if header.base_offset:
        return f"base offset: expected 0, found {header.base_offset}"
    if header.attributes & CONTROL:
        return "expected records, found a control batch"
    if header.attributes & (DELETE_HORIZON | ~KNOWN_ATTRIBUTES):
        return f"expected the attributes of a producer, found {header.attributes:#x}"
    if header.producer_id < -1:
        return f"expected a producer id, or -1, found {header.producer_id}"
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return f"expected a sequence number and an epoch, found {header.base_sequence} and {header.producer_epoch}"
    return None


cdef object untimely(RecordBatchHeader header, int64_t oldest, int64_t newest):
    """Return what is wrong with the producer's timestamps; None: nothing."""
    cdef int64_t earliest = min(header.base_timestamp, header.max_timestamp)
    cdef int64_t latest = max(header.base_timestamp, header.max_timestamp)
    if latest > MICROSECONDS_MAX or earliest < -MICROSECONDS_MAX:
        return f"timestamp: expected one that fits into microseconds, found {latest} ms"
    if header.attributes & CONTROL or earliest == latest == -1:
        return None
    if latest > newest:
        return f"timestamp: expected at most {newest} ms, found {latest}"
    if earliest < oldest:
        return f"timestamp: expected at least {oldest} ms, found {earliest}"
    return None


cdef void put_stamp(uint8_t *p, int64_t size, int64_t base_offset, int64_t leader_epoch, int64_t log_append_time) noexcept:
    put_int64(p, base_offset)
    put_int32(p + 12, <int>(leader_epoch & EPOCH_MASK))
    if log_append_time >= 0:
        put_int16(p + 21, get_int16(p + 21) | LOG_APPEND_TIME)
        put_int64(p + 35, log_append_time)
        put_int32(p + 17, crc32c(0, p + CRC_FROM, size - CRC_FROM))


def stamp_batch(data, int64_t base_offset, int64_t leader_epoch, /, *, int64_t log_append_time=-1):
    """Write what a log sets into the batch that `data`, writable, begins with. The length was checked before.

    log_append_time: ms since 1970; -1: the records keep their timestamps. Otherwise the checksum is computed anew.
    Raises InvalidArgumentError if the memory is shorter than a header or than the batch.
    """
    cdef Py_buffer view
    cdef uint8_t *p
    cdef int64_t size
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        p = <uint8_t *>view.buf
        size = LENGTH_FROM + <int64_t>get_int32(p + 8) if view.len >= BATCH_HEADER else BATCH_HEADER
        if not BATCH_HEADER <= size <= view.len:
            raise InvalidArgumentError(f"data: expected a batch, found {view.len} bytes of {size}")
        put_stamp(p, size, base_offset, leader_epoch, log_append_time)
    finally:
        PyBuffer_Release(&view)


# ---- columns ---------------------------------------------------------------------------------------------------


@cython.final
cdef class RecordColumns:
    """The records of a batch as columns: numpy arrays of int64, one element a record.

    Attributes:
        body: the bytes that starts and sizes refer to.
        timestamp: ms since 1970; -1: none.
        key_start, key_size, value_start, value_size: places in the body; a size of -1 is null.
        header_count: headers of each record.
        number: of each record: its offset less that of the batch. Compaction leaves gaps.
    """

    cdef readonly object body, timestamp, key_start, key_size, value_start, value_size, header_count, number
    cdef object headers_start, table
    cdef Py_ssize_t count

    def __len__(self):
        return self.count

    def keys(self):
        """Return the key of each record as bytes, or None."""
        return slices(self.body, self.key_start, self.key_size)

    def values(self):
        """Return the value of each record as bytes, or None."""
        return slices(self.body, self.value_start, self.value_size)

    def headers(self, Py_ssize_t i, /):
        """Return the headers of record `i`, from 0: pairs of a name, as bytes, and a value, as bytes or None."""
        cdef Py_buffer view
        if not 0 <= i < self.count:
            raise InvalidArgumentError(f"record: expected 0 to {self.count - 1}, found {i}")
        PyObject_GetBuffer(self.body, &view, PyBUF_SIMPLE)
        try:
            return headers_at(<const uint8_t *>view.buf + <int64_t>self.headers_start[i],
                              <const uint8_t *>view.buf + view.len)
        finally:
            PyBuffer_Release(&view)


cdef list headers_at(const uint8_t *at, const uint8_t *stop):
    cdef int64_t count = 0, name_size = 0, value_size = 0
    cdef list pairs = []
    if get_varint(&at, stop, &count) < 0:
        raise changed_headers()
    for _ in range(count):
        if skip_sized(&at, stop, &name_size, 0) < 0:
            raise changed_headers()
        name = PyBytes_FromStringAndSize(<const char *>at - name_size, name_size)
        if skip_sized(&at, stop, &value_size, -1) < 0:
            raise changed_headers()
        pairs.append((name, None if value_size < 0 else PyBytes_FromStringAndSize(<const char *>at - value_size, value_size)))
    return pairs


cdef object changed_headers():
    return fault(INVALID_RECORD, -1, -1, "headers as they were when the batch was checked", "bytes that have changed since")


cdef list slices(object body, object start_column, object size_column):
    """The numbers were made by `walk_records`, over this body."""
    cdef Py_buffer view
    cdef const int64_t[::1] starts = start_column
    cdef const int64_t[::1] sizes = size_column
    cdef Py_ssize_t i
    cdef list items = []
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        for i in range(starts.shape[0]):
            items.append(None if sizes[i] < 0 else PyBytes_FromStringAndSize(<const char *>view.buf + starts[i], sizes[i]))
    finally:
        PyBuffer_Release(&view)
    return items


def read_records(RecordBatchHeader header not None, body, /):
    """Return the records of a batch as columns. body: its records, uncompressed, as bytes.

    Where a log set the time of all records, that is the timestamp of each. Raises InvalidRecordBatchError.
    """
    import numpy
    cdef RecordColumns columns = RecordColumns.__new__(RecordColumns)
    cdef Walked walked
    cdef Py_buffer view
    cdef bytes owned = bytes(body)
    cdef int64_t[:, ::1] table
    PyObject_GetBuffer(owned, &view, PyBUF_SIMPLE)
    try:
        if header.count < 0 or header.count > view.len // RECORD_MIN:
            raise too_many(header.count, view.len)
        array = numpy.empty((COLUMNS, max(header.count, 1)), numpy.int64)
        table = array
        header.walk_body(<const uint8_t *>view.buf, view.len, INT64_MIN, INT64_MAX, &table[0, 0], &walked)
    finally:
        PyBuffer_Release(&view)
    array = array[:, :header.count]
    if header.log_append_time:
        array[COLUMN_TIMESTAMP] = header.max_timestamp
    array.flags.writeable = False
    columns.body, columns.count, columns.table = owned, header.count, array
    columns.timestamp, columns.key_start, columns.key_size = array[0], array[1], array[2]
    columns.value_start, columns.value_size = array[3], array[4]
    columns.headers_start, columns.header_count, columns.number = array[5], array[6], array[7]
    return columns


# ---- building --------------------------------------------------------------------------------------------------


def encode_records(values, keys, timestamps, headers, /):
    """Return the records of a batch, uncompressed, for `encode_batch`.

    values, keys: bytes or None, one a record; keys may be None: there are none. timestamps: ms, in a sequence of int.
    headers: one list of (name, value) pairs a record, bytes or None; None: there are none.
    """
    cdef list parts = list(values)
    cdef list key_parts = [None] * len(parts) if keys is None else list(keys)
    cdef list header_parts = [()] * len(parts) if headers is None else list(headers)
    cdef list times = [int(time) for time in timestamps]
    cdef list out = []
    cdef Py_ssize_t i
    cdef int64_t base, time
    if not len(parts) == len(key_parts) == len(header_parts) == len(times):
        counts = f"{len(key_parts)}, {len(header_parts)}, {len(times)} and {len(parts)}"
        raise InvalidArgumentError(f"expected as many keys, headers and timestamps as values, found {counts}")
    base = times[0] if times else 0
    for i in range(len(parts)):
        time = times[i]
        if time > INT64_MAX + base if base < 0 else time < INT64_MIN + base:
            raise InvalidArgumentError(f"timestamps: expected less than 2**63 ms between two of a batch, found {base} and {time}")
        out.append(record_bytes(i, time - base, key_parts[i], parts[i], header_parts[i]))
    return b"".join(out)


cdef Py_ssize_t sized_bytes(object value) except -1:
    """Return the bytes of a value with its length."""
    if value is None:
        return 1
    if not isinstance(value, bytes):
        raise InvalidArgumentError(f"expected bytes or None in a record, found {type(value).__name__}")
    return uvarint_size(zigzag(len(<bytes>value))) + len(<bytes>value)


cdef uint8_t *put_sized(uint8_t *p, object value) noexcept:
    cdef Py_ssize_t size
    if value is None:
        return put_uvarint(p, zigzag(-1))
    size = len(<bytes>value)
    p = put_uvarint(p, zigzag(size))
    memcpy(p, PyBytes_AS_STRING(<bytes>value), size)
    return p + size


cdef bytes record_bytes(int64_t number, int64_t delta, object key, object value, object headers):
    cdef list pairs = [(name, content) for name, content in headers]  # once: a pair may be any iterable
    cdef Py_ssize_t size = 1 + uvarint_size(zigzag(delta)) + uvarint_size(zigzag(number))
    cdef bytes record
    cdef uint8_t *p
    size += sized_bytes(key) + sized_bytes(value) + uvarint_size(zigzag(len(pairs)))
    for name, content in pairs:
        if name is None:
            raise InvalidArgumentError("expected a header to have a name, found None")
        size += sized_bytes(name) + sized_bytes(content)
    if size > INT32_MAX:
        raise InvalidArgumentError(f"expected a record of at most {INT32_MAX} bytes, found {size}")
    record = PyBytes_FromStringAndSize(NULL, uvarint_size(zigzag(size)) + size)
    p = put_uvarint(<uint8_t *>PyBytes_AS_STRING(record), zigzag(size))
    p[0] = 0
    p = put_uvarint(put_uvarint(p + 1, zigzag(delta)), zigzag(number))
    p = put_uvarint(put_sized(put_sized(p, key), value), zigzag(len(pairs)))
    for name, content in pairs:
        p = put_sized(put_sized(p, name), content)
    return record


def encode_batch(body, int count, /, *, int64_t base_timestamp, int64_t max_timestamp, int codec=0, int64_t base_offset=0,
                 int leader_epoch=-1, int64_t producer_id=-1, int producer_epoch=-1, int base_sequence=-1,
                 bint transactional=False, bint control=False):
    """Return a batch. body: what `encode_records` made, compressed by the codec of this number. Timestamps in ms.

    Raises InvalidArgumentError if the batch would be larger than 2^31 - 1 bytes, or has no records.
    """
    cdef Py_buffer view
    cdef bytes batch
    cdef uint8_t *p
    if not 1 <= count or not 0 <= codec <= CODEC_MASK:
        raise InvalidArgumentError(f"expected records and a codec of 0 to {CODEC_MASK}, found {count} and {codec}")
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len > INT32_MAX - BATCH_HEADER:
            raise InvalidArgumentError(f"body: expected at most {INT32_MAX - BATCH_HEADER} bytes, found {view.len}")
        batch = PyBytes_FromStringAndSize(NULL, BATCH_HEADER + view.len)
        p = <uint8_t *>PyBytes_AS_STRING(batch)
        put_int64(p, base_offset)
        put_int32(p + 8, BATCH_HEADER - LENGTH_FROM + view.len)
        put_int32(p + 12, leader_epoch)
        p[16] = 2
        put_int16(p + 21, codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0))
        put_int32(p + 23, count - 1)
        put_int64(p + 27, base_timestamp)
        put_int64(p + 35, max_timestamp)
        put_int64(p + 43, producer_id)
        put_int16(p + 51, producer_epoch)
        put_int32(p + 53, base_sequence)
        put_int32(p + 57, count)
        memcpy(p + BATCH_HEADER, view.buf, view.len)
        put_int32(p + 17, crc32c(0, p + CRC_FROM, BATCH_HEADER + view.len - CRC_FROM))
    finally:
        PyBuffer_Release(&view)
    return batch
