"""Writes bytes of another log's stream into a log, verifies them, and moves the commit point at which readers stop.

Threads: one thread writes at a time, inside the log's append path; large ranges release the GIL. Any thread may call
the other functions.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t

from pyreplog._native.layout cimport (
    FORM_ATTRIBUTES, FORM_COUNT, FORM_LONG, KIND_BLANK, RecordHead, SEGMENT_HEADER, SHORT_HEADER, ShortHeader,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.log_position cimport mark_at
from pyreplog._native.machines.named cimport item
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog._native.log.segment cimport Segment, pin
from pyreplog._native.log.sparse cimport SparseIndex, is_plain
from pyreplog._native.log.tail_page cimport fence, load, load32, order, store, wake_sleepers
from pyreplog.errors import InvalidArgumentError, StreamError

cdef int64_t RELEASE_GIL_FROM = 1 << 17


# ---- verifying -------------------------------------------------------------------------------------------------

cdef int64_t check_received(const uint8_t *map, int64_t at, int64_t received, int64_t size, uint32_t stamp,
                            bint counted, int64_t entries) noexcept nogil:
    """Return the stride of the record at `at` if it is complete and the expected one; 0 if bytes are missing; or a
    status.

    Only its first bytes are read before all of it was written.
    """
    cdef const uint8_t *p = map + at
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t space = received - at, stride, status
    if space < SHORT_HEADER:
        return 0
    if head.kind == KIND_BLANK:
        status = rec.check_record(p, size - at, stamp)
        if status == rec.RECORD_BLANK and space > SHORT_HEADER:
            return rec.RECORD_LENGTH
        if status == rec.RECORD_BLANK and (<const ShortHeader *>p).entry_delta != entries:
            return rec.RECORD_ENTRY
        return status
    stride = rec.stride_of(head.length)
    if head.stamp != stamp and head.length:
        return rec.RECORD_STAMP
    if head.form & FORM_LONG:
        return rec.RECORD_FORM
    if head.length < SHORT_HEADER or at + stride > size - SHORT_HEADER:
        return rec.RECORD_LENGTH if head.length else rec.RECORD_ABSENT
    if stride > space:
        return 0
    status = rec.check_record(p, stride, stamp)
    if status > 0 and head.form & FORM_COUNT and not counted:
        return rec.RECORD_FORM
    if status > 0 and not rec.continues(p, entries):
        return rec.RECORD_ENTRY
    return status


cdef int64_t walk(Segment segment, SparseIndex index, int64_t received, bint counted, int64_t *time) noexcept nogil:
    """Check and index the records that were written after `index.end`. Return 0, or the reason why the walk ended."""
    cdef int64_t at = index.end, stride, event_time, count
    cdef const RecordHead *head
    while True:
        stride = check_received(segment.map, at, received, segment.size, segment.stamp, counted, index.entries)
        if stride <= 0:
            return stride
        head = <const RecordHead *>(segment.map + at)
        time[0] = head.time
        event_time = rec.event_time_of(<const uint8_t *>head) if head.form & FORM_ATTRIBUTES else INT64_MIN
        count = rec.count_of(<const uint8_t *>head)
        if count == 1 and is_plain(index, at + stride, stride, event_time):
            index.end = at + stride
            index.entries += 1
        else:
            index.note(at, stride, count, event_time)
        at += stride


# ---- writing ---------------------------------------------------------------------------------------------------

cdef class MirrorLogBase(Appender):
    """Base of MirrorLog, beside CommitLog. The subclass has `_end_segment` and `_refuse_record`.

    _received_end: position where the stream continues. _commit: mark at which readers stop.
    """

    cpdef bint show_reached(self, int64_t position, int64_t entry) except -1:
        """Let readers see all before a place where a record ends. It never goes back. Any thread.

        Return False, and do nothing, if the log does not reach so far.
        """
        if position > load(&self.tail.page.end):
            return False
        if position > <int64_t>item(self._commit, 0):
            self._commit = mark_at(position, entry)
        show_before(self, item(self._commit, 0), item(self._commit, 1))
        return True

    def _apply_replicated(self, int64_t position, buffers, /):
        """Write records of a stream: `append_replicated` for records."""
        cdef Segment segment
        cdef int64_t received, status
        self.enter()
        try:
            segment, received = self.active, self._received_end
            if position != received:
                raise StreamError(position, f"bytes of position {received}", f"those of {position}")
            if segment is None or segment.sealed:
                raise StreamError(position, "the header of a segment", "records")
            for buffer in buffers:
                received += self.write(segment, buffer, received)
                self._received_end = received
            status = take_received(self, received - segment.base)
            if status == rec.RECORD_BLANK:
                self._end_segment(segment)
            elif status:
                self._refuse_record(segment, status)
            show_up_to(self, *self._commit)
        finally:
            self.leave()

    cdef int64_t write(self, Segment segment, object buffer, int64_t position) except -1:
        """Write a buffer to the file. Return its size in bytes."""
        cdef Py_buffer view
        cdef int64_t size
        get_buffer(buffer, &view, "records")
        size = view.len
        PyBuffer_Release(&view)
        if position - segment.base + size > segment.size:
            raise StreamError(position, f"bytes before {segment.base + segment.size}", f"{size} bytes")
        try:
            self._files.write(segment.fd, buffer, position - segment.base)
        except OSError as error:
            raise self._poison("append", error) from error
        return size

    def _end_segment(self, segment):
        raise NotImplementedError

    def _refuse_record(self, segment, status):
        raise NotImplementedError


cdef int64_t take_received(Appender log, int64_t received) except? -1:
    """Count the complete records before offset `received` of the active segment, and publish them. The caller is inside.

    Returns 0, or a status (see record.pxd): the next record is a blank, with which the caller seals the segment, or a
    bad one.
    """
    cdef Segment segment = log.active
    cdef SparseIndex index = log.index
    cdef int64_t status, time = log.last_time
    cdef bint counted
    cdef object held
    if segment is None or not log.pos <= received <= segment.size or index.end != log.pos:
        raise InvalidArgumentError(f"offset {received}: expected an offset after the log's end in its active segment")
    held, counted = pin(segment), segment.counted()
    if received - log.pos >= RELEASE_GIL_FROM:
        with nogil:
            status = walk(segment, index, received, counted, &time)
    else:
        status = walk(segment, index, received, counted, &time)
    log.last_time = max(log.last_time, time)
    if index.end > log.pos:
        log.pos, log.next_entry = index.end, segment.first_entry + index.entries
        log.publish()
    return status


def stand_at(Appender log not None, int64_t position, int64_t entry):
    """Set position and entry number at which a log without segments continues."""
    log.active = log.index = None
    log.active_base, log.pos, log.next_entry = position, 0, entry


# ---- commit point ----------------------------------------------------------------------------------------------

def show_up_to(Appender log not None, int64_t position, int64_t entry):
    """Let readers of a gated log see all before `position`, where entry number `entry` begins. Any thread may call it.

    Readers never see more than the log has, and never less than before.
    """
    show_before(log, position, entry)


cdef int show_before(Appender log, int64_t position, int64_t entry) except -1:
    cdef int64_t end = load(&log.tail.page.end)
    if position >= end:
        position, entry = end, load(&log.tail.page.end_entry)
    if position <= load(&log.tail.page.visible):
        return 0
    store(&log.tail.page.visible_entry, entry)
    store(&log.tail.page.visible, position)
    if log.tail.fenced:
        fence()
    order()
    if load32(&log.tail.page.sleepers):  # as an append does: mostly no reader sleeps here
        wake_sleepers(log.tail)
    log.tell_readers()
    return 0


cdef object synced_of(Appender log, int64_t end, int64_t end_entry):
    cdef int64_t synced = load(&log.tail.page.synced_end), entry = load(&log.tail.page.synced_entry)
    if synced > end:  # a blank was synced, and no record follows it
        synced, entry = end, end_entry
    return mark_at(synced, entry)


def progress_of(Appender log not None, int64_t segment_bytes):
    """Return the marks (end of complete records, end of synced bytes) at one moment.

    The first one is where a stream continues: the position of a segment's header if no record of the segment was
    written.
    """
    cdef int64_t end = load(&log.tail.page.end), entry = load(&log.tail.page.end_entry), stream_position = end
    if log.active is not None and log.active.sealed and end == log.active_base + log.pos:
        stream_position = log.active_base + log.active.size
    elif end % segment_bytes == SEGMENT_HEADER:
        stream_position = end - SEGMENT_HEADER
    return mark_at(stream_position, entry), synced_of(log, end, entry)


def marks_of(Appender log not None):
    """Return the marks (end of the log, end of synced bytes, end that readers see) at one moment."""
    cdef int64_t end = load(&log.tail.page.end), end_entry = load(&log.tail.page.end_entry)
    return (
        mark_at(end, end_entry),
        synced_of(log, end, end_entry),
        mark_at(load(&log.tail.page.visible), load(&log.tail.page.visible_entry)),
    )
