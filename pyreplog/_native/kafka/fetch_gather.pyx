"""Record batches of a log as a fetch answers them: gathered from the bytes of the log, which no client knows.

Batches of 4 KiB and more are views of the log, shorter ones are copied, next to each other. Native messages become record
batches here, of up to 1 MiB each; control records of the log itself are left out.

Threads: free of state. The GIL is released while messages are encoded; the bytes of a log do not change below its end.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t, uint8_t
from libc.string cimport memcpy, memset

from pyreplog._native.kafka.wire cimport put_int16, put_int32, put_int64, put_uvarint, uvarint_size, zigzag
from pyreplog._native.layout cimport (
    FORM_COUNT, FORM_KEY, FORM_LONG, KIND_BATCH, KIND_BLANK, KIND_DATA, RecordHead, SEGMENT_MAGIC, SHORT_HEADER, crc32c,
)
from pyreplog._native.log.record cimport (
    check_form, count_of, event_time_of, header_of, key_of, load_words, stride_of, value_length_of, value_of,
)
from pyreplog.errors import CorruptionError

cdef enum:
    VIEW_BYTES = 4096               # batches of this size and above are not copied
    BATCH_HEADER = 61
    CRC_FROM = 21
    LENGTH_FROM = 12
    NATIVE_BYTES = 1 << 20          # of a batch of native messages, roughly
    NATIVE_RECORDS = 1 << 16
    US_IN_MS = 1000


# Messages that lie next to each other.
ctypedef struct Run:
    const uint8_t *start
    int64_t size            # bytes of the log
    int64_t count
    int64_t body            # bytes of the records in the batch
    int64_t first_ms, latest_ms


cdef inline int64_t time_of(const uint8_t *p) noexcept nogil:
    """Return the event time, or the time of the append, in ms since 1970; below 1970: 0."""
    cdef int64_t time = event_time_of(p)
    if time == INT64_MIN:
        time = (<const RecordHead *>p).time
    return time // US_IN_MS if time > 0 else 0


cdef inline int64_t record_size(const uint8_t *p, int64_t first_ms, int64_t number) noexcept nogil:
    """Return the bytes of a message as a record, without its own length."""
    cdef int64_t value = value_length_of(p), key = (<const RecordHead *>p).key_length
    cdef int64_t size = 1 + uvarint_size(zigzag(time_of(p) - first_ms)) + uvarint_size(zigzag(number)) + 1
    if (<const RecordHead *>p).form & FORM_KEY:
        size += uvarint_size(zigzag(key)) + key
    else:
        size += 1
    return size + uvarint_size(zigzag(value)) + value


cdef int measure(const uint8_t *p, const uint8_t *stop, Run *run) noexcept nogil:
    """Measure the messages at p, of which there is at least one; -1: one is damaged."""
    cdef int64_t stride, size, time
    cdef const RecordHead *head
    run.start, run.size, run.count, run.body = p, 0, 0, 0
    run.first_ms = run.latest_ms = 0
    while stop - p >= SHORT_HEADER:
        head = <const RecordHead *>p
        if head.kind != KIND_DATA:
            break
        stride = stride_of(head.length)
        if head.length < header_of(p) or stride > stop - p or head.form & FORM_LONG or check_form(p, stride) < 0:
            return -1
        time = time_of(p)
        if not run.count:
            run.first_ms = run.latest_ms = time
        size = record_size(p, run.first_ms, run.count)
        size += uvarint_size(zigzag(size))
        if run.count and (run.body + size > NATIVE_BYTES or run.count >= NATIVE_RECORDS):
            break
        run.latest_ms = max(run.latest_ms, time)
        run.body += size
        run.count += 1
        run.size += stride
        p += stride
    return 0


cdef void encode(const Run *run, int64_t base_offset, uint8_t *out) noexcept nogil:
    """Write the batch of a run, BATCH_HEADER + body bytes."""
    cdef const uint8_t *p = run.start
    cdef uint8_t *at = out + BATCH_HEADER
    cdef int64_t number, key, value
    for number in range(run.count):
        key, value = (<const RecordHead *>p).key_length, value_length_of(p)
        at = put_uvarint(at, zigzag(record_size(p, run.first_ms, number)))
        at[0] = 0
        at = put_uvarint(at + 1, zigzag(time_of(p) - run.first_ms))
        at = put_uvarint(at, zigzag(number))
        if (<const RecordHead *>p).form & FORM_KEY:
            at = put_uvarint(at, zigzag(key))
            memcpy(at, key_of(p), key)
            at += key
        else:
            at = put_uvarint(at, zigzag(-1))
        at = put_uvarint(at, zigzag(value))
        memcpy(at, value_of(p), value)
        at[value] = 0  # no headers
        at += value + 1
        p += stride_of((<const RecordHead *>p).length)
    memset(out, 0, BATCH_HEADER)
    put_int64(out, base_offset)
    put_int32(out + 8, BATCH_HEADER - LENGTH_FROM + run.body)
    put_int32(out + LENGTH_FROM, -1)
    out[16] = 2  # magic
    put_int32(out + 23, run.count - 1)
    put_int64(out + 27, run.first_ms)
    put_int64(out + 35, run.latest_ms)
    put_int64(out + 43, -1)
    put_int16(out + 51, -1)
    put_int32(out + 53, -1)
    put_int32(out + 57, run.count)
    put_int32(out + 17, crc32c(0, out + CRC_FROM, BATCH_HEADER - CRC_FROM + run.body))


cdef class _Gather:
    """The pieces that were gathered so far."""

    cdef list pieces
    cdef list small         # pieces that are to be joined
    cdef int64_t offset     # of the next record

    cdef int flush(self) except -1:
        if self.small:
            self.pieces.append(self.small[0] if len(self.small) == 1 else b"".join(self.small))
            self.small = []
        return 0

    cdef int take(self, int64_t position, object frame) except -1:
        """Gather the batches of a frame of the log."""
        cdef Py_buffer view
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            self.walk(position, frame, <const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int walk(self, int64_t position, object frame, const uint8_t *start, int64_t size) except -1:
        cdef const uint8_t *p = start
        cdef const uint8_t *stop = start + size
        cdef const uint8_t *value
        cdef const RecordHead *head
        cdef int64_t stride, length
        cdef Run run
        cdef bytes batch
        cdef uint8_t *out
        if size >= 8 and load_words(start) == SEGMENT_MAGIC:
            return 0  # the header of a segment: no record is so long
        while stop - p >= SHORT_HEADER:
            head = <const RecordHead *>p
            if head.kind == KIND_BLANK:
                return 0
            if head.kind == KIND_DATA:
                if measure(p, stop, &run) < 0:
                    raise self.damaged(position + (p - start))
                batch = PyBytes_FromStringAndSize(NULL, BATCH_HEADER + run.body)
                out = <uint8_t *>PyBytes_AS_STRING(batch)
                with nogil:
                    encode(&run, self.offset, out)
                self.small.append(batch)
                self.offset += run.count
                p += run.size
                continue
            stride = stride_of(head.length)
            if head.length < header_of(p) or stride > stop - p or check_form(p, stride) < 0:
                raise self.damaged(position + (p - start))
            if head.kind == KIND_BATCH and head.form & FORM_COUNT:
                value, length = value_of(p), value_length_of(p)
                if length >= VIEW_BYTES:
                    self.flush()
                    self.pieces.append(memoryview(frame)[value - start:value - start + length])
                else:
                    self.small.append(PyBytes_FromStringAndSize(<const char *>value, length))
                self.offset += count_of(p)
            elif head.kind == KIND_BATCH:
                raise self.damaged(position + (p - start))
            p += stride
        return 0

    cdef object damaged(self, int64_t position):
        return CorruptionError("the log of a partition", position, "a message or a record batch", "another record")


def gather_batches(frames, int64_t first_offset, /):
    """Return the record batches in frames of a log, as pieces to be sent one after the other.

    Args:
        frames: pairs of a position and bytes, as `PartitionLog.read_frames` gives them.
        first_offset: offset of the first record.

    Returns:
        A list of bytes, and of views of the frames, which pin what the frames pin.

    Raises:
        CorruptionError: a record is damaged, or no record of a partition.
    """
    cdef _Gather gather = _Gather.__new__(_Gather)
    cdef int64_t position
    gather.pieces, gather.small, gather.offset = [], [], first_offset
    for position, frame in frames:
        gather.take(position, frame)
    gather.flush()
    return gather.pieces
