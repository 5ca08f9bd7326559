"""Kafka's record batches in a log: which entries are such batches, and their records as buffers for Arrow.

A record batch is a record of kind 2 with a count whose value has magic 2 and the length that it says. Others, such as the
messages of topics, are none. `batch_heads` reads the headers of all entries of a scan; `read_rows` walks the records of as
many batches as fit into memory, and `LoggedRows` lays out their columns. Nothing that a batch says is believed before it is
compared with the bytes that are there, and with the entry numbers that the log gave it.

Threads: what is returned does not change, and any thread may use it. The GIL is released while columns are laid out.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pyreplog._native.kafka.wire cimport get_int16, get_int32, get_int64, get_varint, get_varlong
from pyreplog._native.layout cimport FORM_COUNT, KIND_BATCH, RecordHead, crc32c
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.batch cimport RecordBatch
from pyreplog._native.log.record cimport span
from pyreplog._native.system.blocks cimport Block, make_block
from pyreplog._native.tables.arrow_columns cimport zeros
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError, OutOfRangeError

cdef enum:
    BATCH_HEADER = 61
    LENGTH_FROM = 12            # the length counts from here on
    CRC_FROM = 21
    RECORD_MIN = 7
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    CORRUPT_MESSAGE = 2
    INVALID_RECORD = 87
    HEAD_COLUMNS = 8
    MILLISECOND = 1000          # in microseconds

cdef enum Number:
    NUMBER_OFFSET, NUMBER_TIMESTAMP, NUMBER_TIMESTAMP_TYPE, NUMBER_SIZE, NUMBER_POSITION, NUMBER_STORED, NUMBER_APPENDED
    NUMBER_CRC, NUMBER_EPOCH, NUMBER_PRODUCER, NUMBER_SEQUENCE, NUMBER_CREATED

NUMBERS = {
    "offset": NUMBER_OFFSET, "timestamp": NUMBER_TIMESTAMP, "timestamp_type": NUMBER_TIMESTAMP_TYPE, "size": NUMBER_SIZE,
    "position": NUMBER_POSITION, "stored_size": NUMBER_STORED, "append_time": NUMBER_APPENDED, "crc": NUMBER_CRC,
    "leader_epoch": NUMBER_EPOCH, "producer_id": NUMBER_PRODUCER, "sequence": NUMBER_SEQUENCE,
    "create_time": NUMBER_CREATED,
}
"""The columns of numbers, for `LoggedRows.number_column`."""

cdef int64_t NARROW = (1 << NUMBER_TIMESTAMP_TYPE) | (1 << NUMBER_SIZE) | (1 << NUMBER_STORED) | (1 << NUMBER_EPOCH)

cdef dict FAULTS = {
    1: "the bytes of a record",
    2: "a timestamp of 64 bits",
    3: "a number behind that of the record before, within the batch",
    4: "a key of a length within the record, or null",
    5: "a value of a length within the record, or null",
    6: "headers within the record, and nothing behind them",
    7: "no bytes behind the last record",
}


# ---- headers ---------------------------------------------------------------------------------------------------

cdef inline bint is_batch(const uint8_t *p, int64_t size) noexcept nogil:
    """Whether a record, whose value has `size` bytes, is a record batch."""
    cdef const uint8_t *value
    if (<const RecordHead *>p).kind != KIND_BATCH or not (<const RecordHead *>p).form & FORM_COUNT or size < BATCH_HEADER:
        return False
    value = p + (<const RecordHead *>p).length - size
    return value[16] == 2 and get_int32(value + 8) == size - LENGTH_FROM


def find_batch(RecordBatch batch not None, Py_ssize_t start, /):
    """Return the index of the first record batch from `start` on; `len(batch)`: there is none."""
    cdef Py_ssize_t i
    if start < 0:
        raise InvalidArgumentError(f"start: expected an index from 0 on, found {start}")
    with nogil:
        for i in range(start, batch.count):
            if is_batch(batch.map + batch.offsets[i], batch.sizes[i]):
                break
        else:
            i = batch.count
    return i


def batch_heads(RecordBatch batch not None, /):
    """Return the headers of the record batches as a numpy array of int64, one column an entry.

    Its rows: 1 if the entry is a record batch, else all are 0; attributes, producer id, producer epoch, leader epoch, base
    sequence, record count, and bytes of the batch.
    """
    import numpy
    cdef Py_ssize_t i
    cdef const uint8_t *p
    cdef int64_t[:, ::1] out
    table = numpy.zeros((HEAD_COLUMNS, max(batch.count, 1)), numpy.int64)
    out = table
    with nogil:
        for i in range(batch.count):
            p = batch.map + batch.offsets[i]
            if is_batch(p, batch.sizes[i]):
                p += (<const RecordHead *>p).length - <int64_t>batch.sizes[i]
                out[0, i], out[1, i], out[2, i], out[3, i] = 1, get_int16(p + 21), get_int64(p + 43), get_int16(p + 51)
                out[4, i], out[5, i], out[6, i] = get_int32(p + 12), get_int32(p + 53), get_int32(p + 57)
                out[7, i] = batch.sizes[i]
    return table[:, :batch.count]


# ---- records ---------------------------------------------------------------------------------------------------

ctypedef struct Row:
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers      # behind their count
    const uint8_t *end
    int64_t key_size, value_size    # -1: null
    int64_t header_count
    int64_t timestamp           # ms; -1: none
    int64_t number              # of the record in its batch; compaction leaves gaps
    bint is_first               # of the records that are left of its batch
    Py_ssize_t entry            # index of its batch in the scan


cdef inline int read_sized(const uint8_t **at, const uint8_t *stop, const uint8_t **start, int64_t *size,
                           int64_t least) noexcept nogil:
    if get_varint(at, stop, size) < 0 or size[0] < least or size[0] > stop - at[0]:
        return -1
    start[0] = at[0]
    if size[0] > 0:
        at[0] += size[0]
    return 0


cdef int walk_records(const uint8_t *head, const uint8_t *body, int64_t size, Py_ssize_t entry, Row *rows) noexcept nogil:
    """Fill the rows of a batch, which must fill the body. Return the fault, 0 for none."""
    cdef int64_t i, j, length, delta, number, previous = -1, count = get_int32(head + 57), base = get_int64(head + 27)
    cdef int64_t ignored, last = get_int32(head + 23)
    cdef const uint8_t *at = body
    cdef const uint8_t *stop = body + size
    cdef const uint8_t *start
    cdef bint appended = get_int16(head + 21) & LOG_APPEND_TIME
    cdef Row *row
    for i in range(count):
        row = rows + i
        if get_varint(&at, stop, &length) < 0 or length < RECORD_MIN - 1 or length > stop - at:
            return 1
        row.end = at + length
        at += 1
        if get_varlong(&at, row.end, &delta) < 0 or (delta > 0 and base > INT64_MAX - delta) or (
                delta < 0 and base < INT64_MIN - delta):
            return 2
        row.timestamp = get_int64(head + 35) if appended else base + delta
        if get_varint(&at, row.end, &number) < 0 or not previous < number <= last:
            return 3
        previous = number
        if read_sized(&at, row.end, &row.key, &row.key_size, -1) < 0:
            return 4
        if read_sized(&at, row.end, &row.value, &row.value_size, -1) < 0:
            return 5
        if get_varint(&at, row.end, &row.header_count) < 0 or row.header_count < 0 or (
                row.header_count > (row.end - at) // 2):
            return 6
        row.headers = at
        for j in range(row.header_count):
            if read_sized(&at, row.end, &start, &ignored, 0) < 0 or read_sized(&at, row.end, &start, &ignored, -1) < 0:
                return 6
        if at != row.end:
            return 6
        row.number, row.entry, row.is_first = number, entry, i == 0
    return 7 if at != stop else 0


@cython.final
cdef class LoggedRows:
    """The records of some record batches of a scan; made by `read_rows`. `len` gives their number.

    Attributes:
        stop: index of the entry to go on with.
        error: what is wrong with the entry `stop`, whose records are missing; None: nothing is.
    """

    cdef RecordBatch batch
    cdef list bodies              # uncompressed, to which rows point
    cdef Row *rows
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t stop
    cdef readonly object error

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    cdef const uint8_t *value_at(self, Py_ssize_t entry) noexcept nogil:
        cdef const uint8_t *p = self.batch.map + self.batch.offsets[entry]
        return p + (<const RecordHead *>p).length - self.batch.sizes[entry]

    cdef int64_t first_of(self, Py_ssize_t entry) noexcept nogil:
        """Return the offset of the first record of a batch."""
        cdef const uint8_t *p = self.batch.map + self.batch.offsets[entry]
        return self.batch.first_entry + rec.first_delta_of(p)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Row *rows
        cdef Py_ssize_t room = self.room
        if self.count + more > room:
            room = max(self.count + more, 2 * room)
            rows = <Row *>realloc(self.rows, room * sizeof(Row))
            if rows == NULL:
                raise MemoryError
            self.rows, self.room = rows, room
        return 0

    cdef int64_t add(self, Py_ssize_t entry, object decompress, bint verified, int64_t limit) except -1:
        """Add the records of a batch. Return their uncompressed bytes. Raises InvalidRecordBatchError."""
        cdef const uint8_t *head = self.value_at(entry)
        cdef const uint8_t *p = self.batch.map + self.batch.offsets[entry]
        cdef int64_t size = self.batch.sizes[entry], count = get_int32(head + 57), body_size = size - BATCH_HEADER
        cdef int attributes = get_int16(head + 21), status
        cdef const uint8_t *body = head + BATCH_HEADER
        cdef Py_buffer view
        if verified:
            with nogil:
                status = crc32c(0, head + CRC_FROM, size - CRC_FROM) == <uint32_t>get_int32(head + 17)
            if not status:
                raise fault(CORRUPT_MESSAGE, 17, "the CRC-32C of the batch", f"{<uint32_t>get_int32(head + 17):#010x}")
        if not 0 <= count <= rec.count_of(p) or get_int32(head + 23) != rec.count_of(p) - 1:
            raise fault(INVALID_RECORD, 23, f"at most {rec.count_of(p)} records, of as many entry numbers",
                        f"{count}, the last delta {get_int32(head + 23)}")
        if get_int64(head) != self.first_of(entry):
            raise fault(INVALID_RECORD, 0, f"base offset {self.first_of(entry)}", f"{get_int64(head)}")
        if attributes & CONTROL or not count:
            return 0
        if attributes & CODEC_MASK:
            data = decompress(attributes & CODEC_MASK, span(self.batch.owner, body, body_size), limit)
            data = data if isinstance(data, bytes) else bytes(data)
            self.bodies.append(data)
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            body, body_size = <const uint8_t *>view.buf, view.len
            PyBuffer_Release(&view)
        if count > body_size // RECORD_MIN:
            raise fault(INVALID_RECORD, 57, f"at most {body_size // RECORD_MIN} records in {body_size} bytes", f"{count}")
        self.reserve(count)
        with nogil:
            status = walk_records(head, body, body_size, entry, self.rows + self.count)
        if status:
            raise fault(INVALID_RECORD, BATCH_HEADER, FAULTS[status], "other bytes")
        self.count += count
        return body_size

    def range_of(self, int64_t low, int64_t high, /):
        """Return the indexes of the first row with an offset from `low` on, and of the first from `high` on."""
        cdef Py_ssize_t bounds[2]
        cdef Py_ssize_t first, last, middle, i
        cdef int64_t wanted
        for i in range(2):
            wanted = high if i else low
            first, last = 0, self.count
            while first < last:
                middle = (first + last) // 2
                if self.first_of(self.rows[middle].entry) + self.rows[middle].number < wanted:
                    first = middle + 1
                else:
                    last = middle
            bounds[i] = first
        return bounds[0], max(bounds[0], bounds[1])

    cdef int check(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        if not 0 <= start <= stop <= self.count:
            raise InvalidArgumentError(f"rows: expected 0 to {self.count}, found {start} to {stop}")
        return 0

    cdef int64_t number(self, const Row *row, int which, bint *is_null) noexcept nogil:
        cdef const uint8_t *head = self.value_at(row.entry)
        cdef const uint8_t *p = self.batch.map + self.batch.offsets[row.entry]
        cdef int64_t value = 0
        if which == NUMBER_OFFSET:
            return self.first_of(row.entry) + row.number
        if which == NUMBER_TIMESTAMP or which == NUMBER_CREATED:
            is_null[0] = not 0 <= row.timestamp <= INT64_MAX // MILLISECOND or (
                which == NUMBER_CREATED and get_int16(head + 21) & LOG_APPEND_TIME)
            return 0 if is_null[0] else row.timestamp * MILLISECOND
        if which == NUMBER_TIMESTAMP_TYPE:
            return 1 if get_int16(head + 21) & LOG_APPEND_TIME else 0
        if which == NUMBER_SIZE:
            is_null[0] = row.value_size < 0
            return max(row.value_size, 0)
        if which == NUMBER_POSITION:
            return self.batch.base + self.batch.offsets[row.entry]
        if which == NUMBER_STORED:
            return rec.stride_of((<const RecordHead *>p).length) if row.is_first else 0
        if which == NUMBER_APPENDED:
            return (<const RecordHead *>p).time
        if which == NUMBER_CRC:
            return (<const RecordHead *>p).crc
        if which == NUMBER_EPOCH:
            return get_int32(head + 12)
        if which == NUMBER_PRODUCER:
            value = get_int64(head + 43)
            is_null[0] = value < 0
            return value
        value = get_int32(head + 53)
        is_null[0] = value < 0
        return (value + row.number) & INT32_MAX  # sequence numbers wrap

    def number_column(self, int which, Py_ssize_t start, Py_ssize_t stop, /):
        """Return a column of numbers, one of NUMBERS, as (nulls, validity, data); validity is None if there are no nulls.

        The data are int64; int32 of "timestamp_type", "size", "stored_size" and "leader_epoch". Times are microseconds. A
        batch's stored size stands in the row of its first record, and the other ones have 0.
        """
        cdef Block valid = zeros((stop - start + 7) // 8 if stop > start else 0)
        cdef Block data
        cdef bint narrow = NARROW >> which & 1
        cdef bint is_null
        cdef int64_t value, nulls = 0
        cdef Py_ssize_t i
        self.check(start, stop)
        data = make_block((stop - start) * (4 if narrow else 8))
        with nogil:
            for i in range(stop - start):
                is_null = False
                value = self.number(self.rows + start + i, which, &is_null)
                if is_null:
                    nulls += 1
                else:
                    valid.data[i >> 3] |= 1 << (i & 7)
                if narrow:
                    (<int32_t *>data.data)[i] = <int32_t>value
                else:
                    (<int64_t *>data.data)[i] = value
        return nulls, valid if nulls else None, data

    def bytes_column(self, Py_ssize_t start, Py_ssize_t stop, /, *, bint keys):
        """Return values (or keys) as (nulls, validity, offsets, data), for Arrow. Raises OutOfRangeError beyond 2 GiB."""
        cdef Block valid = zeros((stop - start + 7) // 8 if stop > start else 0)
        cdef Block starts, data
        cdef int64_t total = 0, nulls = 0, size
        cdef Py_ssize_t i
        cdef const Row *row
        self.check(start, stop)
        starts = make_block((stop - start + 1) * sizeof(int32_t))
        with nogil:
            for i in range(stop - start):
                (<int32_t *>starts.data)[i] = <int32_t>total
                size = self.rows[start + i].key_size if keys else self.rows[start + i].value_size
                if size < 0:
                    nulls += 1
                    continue
                valid.data[i >> 3] |= 1 << (i & 7)
                total += size
                if total > INT32_MAX:
                    break
        if total > INT32_MAX:
            raise OutOfRangeError(f"a column of {stop - start} records: more bytes than {INT32_MAX}")
        (<int32_t *>starts.data)[stop - start] = <int32_t>total
        data = make_block(total)
        with nogil:
            for i in range(stop - start):
                row = self.rows + start + i
                size = row.key_size if keys else row.value_size
                if size > 0:
                    memcpy(data.data + (<int32_t *>starts.data)[i], row.key if keys else row.value, size)
        return nulls, valid if nulls else None, starts, data

    def header_columns(self, Py_ssize_t start, Py_ssize_t stop, /):
        """Return the headers as (count, offsets of lists, offsets and bytes of names, offsets and bytes of values, null
        values, validity of values). Raises OutOfRangeError beyond 2 GiB."""
        cdef Block lists, names, values, name_bytes, value_bytes, valid
        cdef int64_t count = 0, name_total = 0, value_total = 0, nulls = 0
        cdef Py_ssize_t i
        self.check(start, stop)
        lists = make_block((stop - start + 1) * sizeof(int32_t))
        with nogil:
            for i in range(stop - start):
                (<int32_t *>lists.data)[i] = <int32_t>count
                count += self.rows[start + i].header_count
                measure_headers(self.rows + start + i, &name_total, &value_total)
        if max(count, name_total, value_total) > INT32_MAX:
            raise OutOfRangeError(f"the headers of {stop - start} records: more bytes than {INT32_MAX}")
        (<int32_t *>lists.data)[stop - start] = <int32_t>count
        names, values = make_block((count + 1) * sizeof(int32_t)), make_block((count + 1) * sizeof(int32_t))
        name_bytes, value_bytes, valid = make_block(name_total), make_block(value_total), zeros((count + 7) // 8)
        with nogil:
            count = name_total = value_total = 0
            for i in range(stop - start):
                nulls += put_headers(self.rows + start + i, &count, &name_total, &value_total, <int32_t *>names.data,
                                     name_bytes.data, <int32_t *>values.data, value_bytes.data, valid.data)
            (<int32_t *>names.data)[count], (<int32_t *>values.data)[count] = <int32_t>name_total, <int32_t>value_total
        return count, lists, names, name_bytes, values, value_bytes, nulls, valid if nulls else None


cdef void measure_headers(const Row *row, int64_t *names, int64_t *values) noexcept nogil:
    cdef const uint8_t *at = row.headers
    cdef const uint8_t *start
    cdef int64_t i, size = 0
    for i in range(row.header_count):
        read_sized(&at, row.end, &start, &size, 0)
        names[0] += size
        read_sized(&at, row.end, &start, &size, -1)
        values[0] += max(size, 0)


cdef int64_t put_headers(const Row *row, int64_t *count, int64_t *name_total, int64_t *value_total, int32_t *names,
                         uint8_t *name_bytes, int32_t *values, uint8_t *value_bytes, uint8_t *valid) noexcept nogil:
    """Return the number of values that are null."""
    cdef const uint8_t *at = row.headers
    cdef const uint8_t *start = NULL
    cdef int64_t i, size = 0, nulls = 0
    for i in range(row.header_count):
        read_sized(&at, row.end, &start, &size, 0)
        names[count[0]] = <int32_t>name_total[0]
        memcpy(name_bytes + name_total[0], start, size)
        name_total[0] += size
        read_sized(&at, row.end, &start, &size, -1)
        values[count[0]] = <int32_t>value_total[0]
        if size < 0:
            nulls += 1
        else:
            memcpy(value_bytes + value_total[0], start, size)
            value_total[0] += size
            valid[count[0] >> 3] |= 1 << (count[0] & 7)
        count[0] += 1
    return nulls


cdef object fault(int code, int64_t at, str expected, str actual):
    return InvalidRecordBatchError(code, -1, at, expected, actual)


def read_rows(RecordBatch batch not None, Py_ssize_t start, decompress, /, *, bint verified, int64_t max_bytes,
              int64_t max_batch_bytes, skipped=None):
    """Read the records of record batches, from index `start` of a scan on, until an entry is none.

    Control batches, and batches that are skipped, give no rows. A damaged one ends the rows: `error` says why.

    Args:
        batch: of the scan. All of its entries have numbers.
        start: index of the first entry.
        decompress: (codec, bytes-like, bytes at most) -> bytes; raises InvalidRecordBatchError.
        verified: compare the checksum of each batch.
        max_bytes: uncompressed bytes after which no further batch is read.
        max_batch_bytes: uncompressed bytes of one batch, at most.
        skipped: numpy array of bool, one an entry; None: nothing is skipped.
    """
    cdef LoggedRows rows = LoggedRows.__new__(LoggedRows)
    cdef Py_ssize_t i
    cdef int64_t size = 0
    cdef const uint8_t[::1] left_out = None if skipped is None else skipped.view("u1")
    if not 0 <= start <= batch.count or (left_out is not None and left_out.shape[0] != batch.count):
        raise InvalidArgumentError(f"expected an index up to {batch.count} and as many flags, found {start}")
    rows.batch, rows.bodies, rows.stop = batch, [], start
    for i in range(start, batch.count):
        if size >= max_bytes or not is_batch(batch.map + batch.offsets[i], batch.sizes[i]):
            break
        if left_out is None or not left_out[i]:
            try:
                size += rows.add(i, decompress, verified, max_batch_bytes)
            except InvalidRecordBatchError as error:
                rows.error = error
                break
        rows.stop = i + 1
    return rows
