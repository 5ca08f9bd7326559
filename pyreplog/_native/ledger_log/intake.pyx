"""Appends encoded entries to a log of many ledgers, and copies them out of it.

The bytes of a caller may change meanwhile: they are copied once, and the copy is verified. Threads: any; large jobs
release the GIL.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pyreplog._native.layout cimport (
    CRC_FROM, FORM_ATTRIBUTES, KIND_BATCH, LONG_HEADER, LongHeader, RecordHead, SEGMENT_HEADER, SHORT_HEADER,
    crc32c_copy,
)
from pyreplog._native.ledger_log.entries cimport check_entry, check_ids, index_ledger, refuse
from pyreplog._native.ledger_log.index cimport INDEX_OK, LedgerIndex
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog._native.log.segment cimport Segment, pin
from pyreplog._native.log.sparse cimport is_plain
from pyreplog.errors import InvalidArgumentError, RecordTooLargeError

cdef int64_t RELEASE_GIL_FROM = 1 << 18
cdef int64_t NO_MEMORY = -30   # beside record.Status
cdef int64_t TOO_LARGE = -31

cdef enum:
    INDEX_BATCH = 256   # records that the index takes at a time


cdef inline uint32_t length_at(const uint8_t *p) noexcept nogil:
    return (<const RecordHead *>p).length


# ---- into a log ------------------------------------------------------------------------------------------------

cdef int64_t take_record(uint8_t *dst, const uint8_t *src, uint32_t length, uint32_t stamp) noexcept nogil:
    """Copy one record of `length` bytes and verify the copy in the same pass; return its stride, or a status."""
    cdef RecordHead *head = <RecordHead *>dst
    cdef int64_t stride = rec.stride_of(length), status
    memcpy(dst, src, CRC_FROM)
    if crc32c_copy(length, dst + CRC_FROM, src + CRC_FROM, stride - CRC_FROM, 0) != head.crc or head.length != length:
        return rec.RECORD_CRC
    status = rec.check_form(dst, stride)
    if status > 0:
        status = check_ids(dst, stride)
    head.stamp = stamp
    return status


cdef int64_t take_run(Appender log, LedgerIndex index, const uint8_t *p, int64_t length, int64_t *fault) noexcept nogil:
    """Take records that fit into the active segment; return their bytes. If `fault` is set, no record was taken, and
    the result is the offset of the bad one."""
    cdef int64_t done = 0, stride, status, pos = log.pos
    cdef uint32_t size
    fault[0] = 0
    while done < length:
        size = length_at(p + done) if length - done >= LONG_HEADER else 0
        stride = rec.stride_of(size)
        if size < LONG_HEADER or stride > length - done:
            fault[0] = rec.RECORD_LENGTH
            break
        if pos + stride > log.limit:
            break
        status = take_record(<uint8_t *>(log.dest + <uint64_t>pos), p + done, size, log.stamp)
        pos += stride
        if status < 0:
            fault[0] = status
            break
        done += stride
    if not fault[0]:
        fault[0] = note_run(log, index, log.pos, pos)
    if fault[0]:  # a recovery must not find the refused records
        memset(<uint8_t *>(log.dest + <uint64_t>log.pos), 0, pos - log.pos)
    return done


cdef int64_t note_run(Appender log, LedgerIndex index, int64_t start, int64_t stop) noexcept nogil:
    """Index the records in [start, stop) and move the log's end behind them; return 0, or a status."""
    cdef int64_t at = start, stride, event_time, status
    cdef const RecordHead *head
    with index.lock:
        status = index_run(index, <const uint8_t *>log.dest, &at, stop)
        if status < 0:
            index.cut(start)
            return status
    at = start
    while at < stop:   # last, because the sparse index cannot remove a record
        head = <const RecordHead *>(log.dest + <uint64_t>at)
        stride = rec.stride_of(head.length)
        event_time = rec.event_time_of(<const uint8_t *>head) if head.form & FORM_ATTRIBUTES else INT64_MIN
        if head.kind <= KIND_BATCH and is_plain(log.index, at + stride, stride, event_time):
            log.index.end = at + stride
            log.index.entries += 1
        else:
            log.index.note(at, stride, head.kind <= KIND_BATCH, event_time)
        log.last_time = max(log.last_time, head.time)
        at += stride
    log.pos = stop
    return 0


cdef int64_t index_run(LedgerIndex index, const uint8_t *base, int64_t *at, int64_t stop) noexcept nogil:
    """Index the intact records that lie end to end in [at, stop); return 0, or a status. `at` moves behind them, or to
    the bad one. Holds the index's lock, and adds consecutive entries of a ledger together."""
    cdef uint32_t strides[INDEX_BATCH]
    cdef uint32_t count
    cdef int64_t start, ledger, entry, stride = 0
    cdef const uint8_t *p
    while at[0] < stop and stride >= 0:
        p, start, count = base + at[0], at[0], 0
        ledger, entry = index_ledger(p), (<const LongHeader *>p).entry
        while (count < INDEX_BATCH and at[0] < stop
               and (<const LongHeader *>p).entry == entry + count and index_ledger(p) == ledger):
            stride = check_ids(p, rec.stride_of(length_at(p)))
            if stride < 0:
                break
            strides[count] = <uint32_t>stride
            count += 1
            at[0] += stride
            p = base + at[0]
        if count and index.append(ledger, entry, start, strides, count) != INDEX_OK:
            return NO_MEMORY
    return min(stride, <int64_t>0)


def append_entries(Appender log not None, data):
    """Append encoded records of any ledgers, which lie end to end, to a log of many ledgers.

    Every record is verified before any of them counts. Returns the position after the last one. The records have the
    durability "appended", whatever the log's; see `CommitLog.wait_synced`. Raises InvalidRecordsError (nothing was
    appended), RecordTooLargeError, and errors of CommitLog.append.
    """
    cdef Py_buffer buffer
    get_buffer(data, &buffer, "records")
    try:
        return put_entries(log, <const uint8_t *>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)


cdef int64_t put_entries(Appender log, const uint8_t *p, int64_t length) except -1:
    """Append records as `append_entries` does."""
    cdef int64_t end
    log.enter()
    try:
        if log.first_entry >= 0:
            raise InvalidArgumentError(f"{log.active.path}: expected a log of many ledgers, found numbered entries")
        if log.pos + length > log.limit:
            log.reserve(check_all(log, p, length))
        take_all(log, p, length)
        end = log.active_base + log.pos
        if not log.staged:
            log.publish()
    finally:
        log.leave()
    return end


@cython.final
cdef class EntryIntake:
    """Appends to one log of many ledgers: `EntryIntake(log)(data)` is `append_entries(log, data)`."""

    def __init__(self, Appender log not None, /):
        self.log = log

    def __call__(self, data, /):
        return append_entries(self.log, data)

    cdef int64_t put(self, const uint8_t *p, int64_t length) except -1:
        """Append records at `p`, which do not move meanwhile."""
        return put_entries(self.log, p, length)


cdef int take_all(Appender log, const uint8_t *p, int64_t length) except -1:
    cdef int64_t done = 0, taken, stride, fault = 0
    cdef LedgerIndex index
    while True:
        index = log.active.ledgers
        if index is None:
            raise InvalidArgumentError(f"{log.active.path}: expected a log opened for many ledgers, found no ledger index")
        if length - done >= RELEASE_GIL_FROM:
            with nogil:
                taken = take_run(log, index, p + done, length - done, &fault)
        else:
            taken = take_run(log, index, p + done, length - done, &fault)
        if fault == NO_MEMORY:
            raise MemoryError
        if fault:
            refuse(p, done + taken, length, fault)
        done += taken
        if done == length:
            return 0
        if not log.staged:
            log.publish()
        stride = rec.stride_of(length_at(p + done))
        if stride > room_of(log):  # not when it was checked
            refuse(p, done, length, rec.RECORD_LENGTH)
        log.make_room(stride)


cdef inline int64_t room_of(Appender log) noexcept:
    """Return the size of the largest record that a segment takes."""
    return log.active.size - SEGMENT_HEADER - SHORT_HEADER


cdef int64_t check_all(Appender log, const uint8_t *p, int64_t length) except -1:
    """Verify records that may need another segment before any is taken; return the number of further segments."""
    cdef int64_t at, more, fault = 0, pos = log.pos, room = room_of(log)
    if length >= RELEASE_GIL_FROM:
        with nogil:
            at = measure_run(p, length, pos, room, &more, &fault)
    else:
        at = measure_run(p, length, pos, room, &more, &fault)
    if fault == TOO_LARGE:
        raise RecordTooLargeError(f"record: at most {room} bytes fit into a segment, found {length_at(p + at)}")
    if fault:
        refuse(p, at, length, fault)
    return more


cdef int64_t measure_run(const uint8_t *p, int64_t length, int64_t pos, int64_t room, int64_t *more,
                         int64_t *fault) noexcept nogil:
    """Return the offset where intact records that fit into segments end; set the number of `more` segments that they
    need beside the active one, which is filled up to `pos`."""
    cdef int64_t at = 0, stride
    more[0] = 0
    while at < length:
        stride = check_entry(p + at, length - at)
        if stride < 0 or stride > room:
            fault[0] = stride if stride < 0 else TOO_LARGE
            break
        if pos + stride > SEGMENT_HEADER + room:
            more[0] += 1
            pos = SEGMENT_HEADER
        pos += stride
        at += stride
    return at


def index_entries(Segment segment not None, LedgerIndex index not None, int64_t start, int64_t stop):
    """Index the intact records at offsets [start, stop) of a segment. The GIL is released."""
    cdef int64_t at = start, status
    cdef object held = pin(segment)
    if not SEGMENT_HEADER <= start <= stop <= segment.size:
        raise InvalidArgumentError(f"range {start}..{stop} outside of the segment's {segment.size} bytes")
    with nogil, index.lock:
        status = index_run(index, segment.map, &at, stop)
    if status == NO_MEMORY:
        raise MemoryError
    if status < 0:
        raise segment.fault(at, status)


# ---- out of a log ----------------------------------------------------------------------------------------------

cdef int64_t fit(Segment segment, const int64_t *at, Py_ssize_t most, int64_t bytes_max, int64_t *total) noexcept nogil:
    """Return how many of the records at these offsets fit into `bytes_max` bytes; set their total size."""
    cdef Py_ssize_t count
    cdef int64_t stride
    total[0] = 0
    for count in range(most):
        stride = rec.stride_of(length_at(segment.map + at[count]))
        if total[0] + stride > bytes_max:
            return count
        total[0] += stride
    return most


cdef int64_t copy_run(uint8_t *dst, Segment segment, int64_t ledger, const int64_t *entry, const int64_t *at,
                      Py_ssize_t count, int64_t *fault) noexcept nogil:
    """Copy and verify records; return how many were intact and the expected ones."""
    cdef Py_ssize_t i
    cdef int64_t stride
    cdef const uint8_t *p
    for i in range(count):
        p = segment.map + at[i]
        stride = rec.RECORD_LENGTH
        if LONG_HEADER <= length_at(p) <= segment.size - at[i]:
            stride = take_record(dst, p, length_at(p), segment.stamp)
        if stride > 0 and (<const RecordHead *>p).stamp != segment.stamp:
            stride = rec.RECORD_STAMP
        if stride > 0 and (index_ledger(p) != ledger or (<const LongHeader *>p).entry != entry[i]):
            stride = rec.RECORD_IDS
        if stride < 0:
            fault[0] = stride
            return i
        dst += stride
    return count


def copy_entries(Segment segment not None, int64_t ledger, entries, offsets, int64_t bytes_max, *, bint at_least_one):
    """Copy and verify the records of a ledger's entries at known offsets of a segment. The GIL is released.

    Returns (records, count): as many as fit into `bytes_max` bytes, and with `at_least_one` at least the first. ledger:
    as in an index, with CONTROL. entries, offsets: int64 arrays of one length. Raises CorruptionError, which names a
    record that is damaged, or of another entry.
    """
    cdef Py_buffer ids, places
    cdef const int64_t *at
    cdef int64_t total = 0, count = 0, copied, fault = 0
    cdef Py_ssize_t i
    cdef bytes out
    cdef uint8_t *dst
    cdef object held = pin(segment)
    PyObject_GetBuffer(entries, &ids, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(offsets, &places, PyBUF_SIMPLE)
        try:
            at = <const int64_t *>places.buf
            for i in range(places.len // 8):
                if not SEGMENT_HEADER <= at[i] <= segment.size - LONG_HEADER or at[i] % 8 or ids.len != places.len:
                    raise InvalidArgumentError(f"offset {at[i]} outside of the segment's {segment.size} bytes")
            with nogil:
                count = fit(segment, at, places.len // 8, bytes_max, &total)
            if not count and places.len and at_least_one:
                count, total = 1, min(rec.stride_of(length_at(segment.map + at[0])), segment.size - at[0])
            out = PyBytes_FromStringAndSize(NULL, total)
            dst = <uint8_t *>PyBytes_AS_STRING(out)
            with nogil:
                copied = copy_run(dst, segment, ledger, <const int64_t *>ids.buf, at, count, &fault)
            if copied < count:
                raise segment.fault(at[copied], fault)
        finally:
            PyBuffer_Release(&places)
    finally:
        PyBuffer_Release(&ids)
    return out, count
