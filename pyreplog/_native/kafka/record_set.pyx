"""Records of consecutive record batches as columns, for consumers; and the record batches in the frames of a log.

Nothing is made for a record before it is asked for. Batches of transactions that were aborted, control batches, and
records before the offset that was asked for are left out.

Threads: a ConsumerBatch does not change once it is made. Checksums and walks of large batches run without the GIL.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyreplog._native.kafka.record_batch cimport (
    BATCH_HEADER, COLUMN_HEADER_COUNT, COLUMN_HEADERS_START, COLUMN_KEY_SIZE, COLUMN_KEY_START, COLUMN_NUMBER,
    COLUMN_TIMESTAMP, COLUMN_VALUE_SIZE, COLUMN_VALUE_START, COLUMNS, RECORD_MIN, RecordBatchHeader, Walked, header_of, headers_at,
)
from pyreplog._native.kafka.wire cimport get_int16
from pyreplog._native.layout cimport (
    KIND_BATCH, KIND_BLANK, KIND_DATA, RecordHead, SEGMENT_MAGIC, SHORT_HEADER,
)
from pyreplog._native.log.record cimport (
    check_form, count_of, header_of as record_header, key_of, load_words, stride_of, value_of,
)
from pyreplog.errors import InvalidArgumentError, InvalidMessageError, InvalidRecordBatchError

cdef int CORRUPT_MESSAGE = 2
cdef int MESSAGE_TOO_LARGE = 10

cdef enum:
    ABORT = 0                   # type of the marker in the key of a control record
    STREAM_HEADER = 64          # of a segment, in a stream
    UNCOMPRESSED_MAX = 1 << 30


# One record. The pointers are into bodies that the batch holds.
ctypedef struct Row:
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    const uint8_t *stop         # of the body
    int64_t offset
    int64_t timestamp           # ms; -1: none
    int64_t key_size            # -1: null
    int64_t value_size


@cython.final
cdef class ConsumerRecord:
    """A record as a consumer gets it.

    Attributes:
        offset: its number in the partition.
        timestamp_ms: ms since 1970; -1: none.
        key, value: bytes, or None.
        headers: pairs of a name, as bytes, and a value, as bytes or None.
    """

    cdef readonly int64_t offset, timestamp_ms
    cdef readonly object key, value
    cdef readonly list headers

    def __repr__(self):
        return f"<ConsumerRecord {self.offset}, {len(self.value or b'')} bytes>"


@cython.final
cdef class ConsumerBatch:
    """Records of a partition as columns, in the order of their offsets, some of which may be missing.

    `batch[i]`, iteration and slices make records; columns make none. `read_record_set` makes it.

    Attributes:
        start: offset of the first record that was asked for.
        end: offset behind all that was read, records that are left out included: the next read begins there.
        size: bytes of keys and values.
    """

    cdef Row *rows
    cdef Py_ssize_t count, room
    cdef list bodies            # owners of the bytes
    cdef readonly int64_t start, end, size

    def __cinit__(self):
        self.bodies = []

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    def __getitem__(self, item, /):
        cdef Py_ssize_t i
        if isinstance(item, slice):
            return [self.record(i) for i in range(*item.indices(self.count))]
        i = item
        if i < 0:
            i += self.count
        if not 0 <= i < self.count:
            raise IndexError(f"record {item} of a batch of {self.count}")
        return self.record(i)

    def __iter__(self):
        return map(self.__getitem__, range(self.count))

    def __repr__(self):
        return f"<ConsumerBatch of {self.count}, offsets {self.start} to {self.end}>"

    cdef ConsumerRecord record(self, Py_ssize_t i):
        cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
        cdef Row *row = &self.rows[i]
        record.offset, record.timestamp_ms = row.offset, row.timestamp
        record.key, record.value = piece(row.key, row.key_size), piece(row.value, row.value_size)
        record.headers = headers_at(row.headers, row.stop)
        return record

    def keys(self):
        """Return the key of each record as bytes, or None."""
        cdef Py_ssize_t i
        return [piece(self.rows[i].key, self.rows[i].key_size) for i in range(self.count)]

    def values(self):
        """Return the value of each record as bytes, or None."""
        cdef Py_ssize_t i
        return [piece(self.rows[i].value, self.rows[i].value_size) for i in range(self.count)]

    def headers(self, Py_ssize_t i, /):
        """Return the headers of record `i`: pairs of a name, as bytes, and a value, as bytes or None."""
        if not 0 <= i < self.count:
            raise InvalidArgumentError(f"record: expected 0 to {self.count - 1}, found {i}")
        return headers_at(self.rows[i].headers, self.rows[i].stop)

    @property
    def offsets(self):
        """Offsets, an array of int64."""
        import numpy
        cdef Py_ssize_t i
        array = numpy.empty(self.count, numpy.int64)
        cdef int64_t[::1] view = array
        for i in range(self.count):
            view[i] = self.rows[i].offset
        return array

    @property
    def timestamps_ms(self):
        """Timestamps, ms since 1970, an array of int64; -1: none."""
        import numpy
        cdef Py_ssize_t i
        array = numpy.empty(self.count, numpy.int64)
        cdef int64_t[::1] view = array
        for i in range(self.count):
            view[i] = self.rows[i].timestamp
        return array

    def value_column(self):
        """Return the values as columns: bounds, an array of count + 1 numbers, and all bytes, an array of uint8.

        Value `i` is bytes[bounds[i]:bounds[i + 1]]; null is empty.
        """
        import numpy
        cdef int64_t total = 0
        cdef Py_ssize_t i
        bounds = numpy.empty(self.count + 1, numpy.int64)
        cdef int64_t[::1] ends = bounds
        ends[0] = 0
        for i in range(self.count):
            total += max(self.rows[i].value_size, 0)
            ends[i + 1] = total
        data = numpy.empty(total, numpy.uint8)
        cdef uint8_t[::1] out = data
        for i in range(self.count):
            if self.rows[i].value_size > 0:
                memcpy(&out[ends[i]], self.rows[i].value, self.rows[i].value_size)
        return bounds, data

    cdef int add(self, RecordBatchHeader header, object owner, const uint8_t *body, int64_t size,
                 int64_t first) except -1:
        """Add the records of a batch from offset `first` on. owner: keeps the body alive."""
        cdef Walked walked
        cdef int64_t *columns
        cdef int64_t count = header.count, offset
        cdef Py_ssize_t i
        cdef Row *row
        cdef void *grown
        if count < 0 or count > size // RECORD_MIN:
            header.walk_body(body, size, INT64_MIN, INT64_MAX, NULL, &walked)  # raises
        grown = realloc(self.rows, (self.count + count + 1) * sizeof(Row)) if self.count + count > self.room else self.rows
        if grown == NULL and count:
            raise MemoryError
        self.rows, self.room = <Row *>grown, max(self.room, self.count + count)
        columns = <int64_t *>realloc(NULL, (COLUMNS * count + 1) * sizeof(int64_t))
        if columns == NULL:
            raise MemoryError
        try:
            header.walk_body(body, size, INT64_MIN, INT64_MAX, columns, &walked)
            for i in range(count):
                offset = header.base_offset + columns[COLUMN_NUMBER * count + i]
                if offset < first:
                    continue
                row = &self.rows[self.count]
                row.offset, row.timestamp = offset, columns[COLUMN_TIMESTAMP * count + i]
                if header.attributes & 8:  # LogAppendTime
                    row.timestamp = header.max_timestamp
                row.key, row.key_size = body + columns[COLUMN_KEY_START * count + i], columns[COLUMN_KEY_SIZE * count + i]
                row.value = body + columns[COLUMN_VALUE_START * count + i]
                row.value_size = columns[COLUMN_VALUE_SIZE * count + i]
                row.headers, row.stop = body + columns[COLUMN_HEADERS_START * count + i], body + size
                self.size += max(row.key_size, 0) + max(row.value_size, 0)
                self.count += 1
        finally:
            free(columns)
        self.bodies.append(owner)
        return 0


cdef object piece(const uint8_t *p, int64_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>p, size)


def read_record_set(pieces, decompress, /, *, int64_t start=0, aborted=(), bint committed_only=False,
                    int64_t max_uncompressed=UNCOMPRESSED_MAX):
    """Return the records of consecutive record batches as a `ConsumerBatch`.

    The batch keeps the bytes of `pieces`, which must not change.

    Args:
        pieces: bytes-like, each with whole batches, one behind the other.
        decompress: takes the number of a codec, compressed bytes and the most bytes that it may return.
        start: offset from which on records are wanted; batches that end before it are left out.
        aborted: pairs of a producer id and the first offset of an aborted transaction, in any order.
        committed_only: leave the records of these transactions out, until their markers.
        max_uncompressed: bytes of all compressed batches together after decompression. What is returned ends before the
            batch that would be too much, unless that is the first one.

    Raises:
        InvalidRecordBatchError: a batch is damaged, or not behind the one before it; nothing is returned.
    """
    cdef ConsumerBatch batch = ConsumerBatch.__new__(ConsumerBatch)
    cdef list waiting = sorted([(first, producer) for producer, first in aborted], reverse=True)
    cdef set active = set()
    cdef int64_t left = max_uncompressed, at, last, expected = INT64_MIN
    cdef RecordBatchHeader header
    cdef const uint8_t[::1] view
    cdef const uint8_t[::1] body
    batch.start = batch.end = start
    for source in pieces:
        view = part = memoryview(source)  # of its own: neither `release` nor a change of size takes the bytes away
        at = 0
        while at < view.shape[0]:
            header = header_of(&view[at], view.shape[0] - at)
            if header.base_offset < expected or header.last_offset_delta < 0 or (
                    header.base_offset >= INT64_MAX - header.last_offset_delta):
                raise InvalidRecordBatchError(CORRUPT_MESSAGE, -1, at, f"offsets from {expected} on, below {INT64_MAX}",
                                              f"{header.base_offset}, and {header.last_offset_delta} behind it")
            last = header.base_offset + header.last_offset_delta
            expected = last + 1
            if committed_only and header.attributes & 16:
                while waiting and waiting[len(waiting) - 1][0] <= last:
                    active.add(waiting.pop()[1])
            if last >= start:
                if header.attributes & 32:
                    if committed_only and header.producer_id in active and is_abort(header, &view[at]):
                        active.discard(header.producer_id)
                elif not (committed_only and header.attributes & 16 and header.producer_id in active):
                    if header.size == BATCH_HEADER:
                        batch.add(header, part, &view[at], 0, start)
                    elif header.attributes & 7:
                        compressed = part[at + BATCH_HEADER:at + header.size]
                        try:
                            plain = bytes(decompress(header.attributes & 7, compressed, left))
                        except InvalidRecordBatchError as error:
                            if error.error_code != MESSAGE_TOO_LARGE or left == max_uncompressed:
                                raise
                            return batch  # the next read begins with this batch, and has room for it
                        left -= len(plain)
                        body = plain
                        batch.add(header, plain, &body[0] if plain else NULL, body.shape[0], start)
                    else:
                        batch.add(header, part, &view[at + BATCH_HEADER], header.size - BATCH_HEADER, start)
                batch.end = last + 1
            at += header.size
    return batch


cdef bint is_abort(RecordBatchHeader header, const uint8_t *p) except -1:
    """Whether a control batch, uncompressed, ends its transaction by an abort."""
    cdef Walked walked
    cdef int64_t columns[COLUMNS]
    if header.count != 1:
        return False
    header.walk_body(p + BATCH_HEADER, header.size - BATCH_HEADER, INT64_MIN, INT64_MAX, columns, &walked)
    if columns[<int>COLUMN_KEY_SIZE] < 4:
        return False
    return get_int16(p + BATCH_HEADER + columns[<int>COLUMN_KEY_START] + 2) == ABORT


# ---- frames of a log -------------------------------------------------------------------------------------------


def batches_of_frames(frames, int64_t offset, encode, /):
    """Return the record batches in the frames of a log, bytes-like, in their order. Batches are views, not copies.

    Native messages, which the log holds as they are, become batches by `encode`.

    Args:
        frames: pairs of a position and bytes, as `PartitionLog.read_frames` gives them. They were verified when they were
            written, and readers of batches check their checksums.
        offset: of the first record.
        encode: takes the first offset of a run of native messages, and lists of values, keys and append times (us);
            returns a batch.

    Raises:
        InvalidMessageError: the bytes are no records of a log.
    """
    cdef list out = []
    cdef list values = [], keys = [], times = []
    cdef const uint8_t[::1] view
    cdef const uint8_t *p
    cdef const RecordHead *head
    cdef int64_t at, size, stride, first = offset, begin, length
    for _, part in frames:
        view = part
        size, at = view.shape[0], 0
        if size == STREAM_HEADER and load_words(&view[0]) == SEGMENT_MAGIC:
            continue
        whole = memoryview(part).cast("B")
        while at < size:
            p = &view[at]
            head = <const RecordHead *>p
            if size - at < SHORT_HEADER or head.length < SHORT_HEADER:
                raise InvalidMessageError(f"a frame of a log, byte {at}: expected a record, found {size - at} bytes")
            if head.kind == KIND_BLANK:
                break
            stride = stride_of(head.length)
            if head.length < record_header(p) or stride > size - at or check_form(p, stride) < 0:
                raise InvalidMessageError(f"a frame of a log, byte {at}: expected a whole record, found {head.length} bytes")
            if head.kind == KIND_BATCH and record_header(p) != SHORT_HEADER:
                if values:
                    out.append(encode(first, values, keys, times))
                    values, keys, times = [], [], []
                begin, length = value_of(p) - &view[0], head.length - (value_of(p) - p)
                out.append(whole[begin:begin + length])
            elif head.kind == KIND_DATA:
                if not values:
                    first = offset
                begin = value_of(p) - p
                values.append(PyBytes_FromStringAndSize(<const char *>p + begin, head.length - begin))
                keys.append(piece(key_of(p), head.key_length) if head.form & 0x40 else None)
                times.append(head.time)
            offset += count_of(p)
            at += stride
    if values:
        out.append(encode(first, values, keys, times))
    return out
