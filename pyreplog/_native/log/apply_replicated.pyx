"""Writes bytes of another log's stream into a log, verifies them, and moves the commit point at which readers stop.

Threads: one thread writes at a time, inside the log's append path; large ranges release the GIL. Any thread may call
the other functions.
"""

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pyreplog._native.layout cimport (
    FORM_ATTRIBUTES, FORM_COUNT, FORM_LONG, KIND_BLANK, RecordHead, SEGMENT_HEADER, SHORT_HEADER, ShortHeader,
)
from pyreplog._native.log cimport record as rec
from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.log_position cimport entry_of, make_mark, mark_at, position_of, read_mark
from pyreplog._native.machines.named cimport item
from pyreplog._native.log.append_arguments cimport get_buffer
from pyreplog._native.log.pwrite cimport write_bytes
from pyreplog._native.log.segment cimport Segment, pin
from pyreplog._native.log.sparse cimport SparseIndex, is_plain
from pyreplog._native.log.tail_page cimport fence, load, load32, order, store, wake_sleepers
from pyreplog._native.log import pwrite
from pyreplog.errors import InvalidArgumentError, StreamError

cdef int64_t RELEASE_GIL_FROM = 1 << 17
cdef object write_natively = pwrite.write


# ---- verifying -------------------------------------------------------------------------------------------------

cdef int64_t check_received(const uint8_t *p, int64_t space, int64_t at, int64_t size, uint32_t stamp,
                            bint counted, int64_t entries) noexcept nogil:
    """Return the stride of the record at `p` if it is complete and the expected one; 0 if bytes are missing; or a status.

    space: bytes that were received from there on. at: offset of the record in its segment, which has `size` bytes. Only
    its first bytes are read before all of it was written.
    """
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t stride, status
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
    cdef int64_t at = index.end, stride
    cdef const uint8_t *p
    while True:
        p = segment.map + at
        stride = check_received(p, received - at, at, segment.size, segment.stamp, counted, index.entries)
        if stride <= 0:
            return stride
        note_record(index, p, at, stride, time)
        at += stride


cdef inline void note_record(SparseIndex index, const uint8_t *p, int64_t at, int64_t stride, int64_t *time) noexcept nogil:
    """Index a verified record, and set `time` to its time."""
    cdef const RecordHead *head = <const RecordHead *>p
    cdef int64_t event_time = rec.event_time_of(p) if head.form & FORM_ATTRIBUTES else INT64_MIN
    cdef int64_t count = rec.count_of(p)
    time[0] = head.time
    if count == 1 and is_plain(index, at + stride, stride, event_time):
        index.end = at + stride
        index.entries += 1
    else:
        index.note(at, stride, count, event_time)


cdef bint are_whole(const uint8_t *data, int64_t length, int64_t at, int64_t size, uint32_t stamp, bint counted,
                    int64_t entries) noexcept nogil:
    """Return whether `data` is nothing but intact records that continue a segment, at offset `at`, behind so many
    entries."""
    cdef int64_t passed = 0, stride
    while passed < length:
        stride = check_received(data + passed, length - passed, at + passed, size, stamp, counted, entries)
        if stride <= 0:
            return False
        entries += rec.count_of(data + passed)
        passed += stride
    return passed == length


# ---- writing ---------------------------------------------------------------------------------------------------

cdef class MirrorLogBase(Appender):
    """Base of MirrorLog, beside CommitLog. The subclass has `_end_segment` and `_refuse_record`.

    _received_end: position where the stream continues. _commit: mark at which readers stop. _last_synced: the synced mark
    as the log reported it last, and its canonical form.
    """

    def apply_alone(self, int64_t position, data, /):
        """Apply a frame's body if it is ordinary: whole intact records, at most 4 KiB, that continue the log.

        Returns False, and does nothing, if it is not; `append_replicated` tells why. Raises PoisonedError.
        """
        cdef Py_buffer view
        get_buffer(data, &view, "records")
        try:
            return self.apply_little(position, <const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef bint apply_little(self, int64_t position, const uint8_t *data, int64_t size) except -1:
        """As `apply_alone`. Everything is verified before the first byte is written."""
        cdef int64_t records[LITTLE_WORDS]    # of a frame that begins at any address; here they are aligned
        cdef uint8_t *p = <uint8_t *>records
        cdef Segment segment = self.active
        cdef SparseIndex index = self.index
        cdef int64_t at = self.pos, passed = 0, stride, time = self.last_time
        if self.inside or not self.open or segment is None or segment.sealed or not 0 < size <= LITTLE:
            return False
        if position != segment.base + at or position != self._received_end or index.end != at:
            return False
        if at + size > segment.size - SHORT_HEADER:
            return False
        memcpy(p, data, size)
        if not are_whole(p, size, at, segment.size, segment.stamp, segment.counted(), index.entries):
            return False
        self.enter()
        try:
            self.write_little(segment, p, size, at)
            while passed < size:
                stride = rec.stride_of((<const RecordHead *>(p + passed)).length)
                note_record(index, p + passed, at + passed, stride, &time)
                passed += stride
            self._received_end = position + size
            self.last_time = max(self.last_time, time)
            self.pos, self.next_entry = index.end, segment.first_entry + index.entries
            self.publish()
            show_before(self, item(self._commit, 0), item(self._commit, 1))
        finally:
            self.leave()
        return True

    cdef int write_little(self, Segment segment, const uint8_t *data, int64_t size, int64_t offset) except -1:
        """Write few bytes to the file: by one native call, unless the log's files are others than the system's."""
        cdef object write = self._files.write
        try:
            if write is write_natively:
                write_bytes(segment.fd, data, size, offset)
            else:
                write(segment.fd, PyBytes_FromStringAndSize(<const char *>data, size), offset)
        except OSError as error:
            raise self._poison("append", error) from error
        return 0

    cdef bint read_marks(self, Marks *marks) except -1:
        """Set the marks to be reported at this moment. Return False if `progress` has to look one up."""
        cdef Segment segment = self.active
        cdef object seen = item(self._last_synced, 0), canonical = item(self._last_synced, 1)
        read_ends(self, marks)
        if segment is None or segment.sealed or marks.received.position - segment.base <= SEGMENT_HEADER:
            return False
        if marks.synced.position != position_of(seen) or marks.synced.entry != entry_of(seen):
            return False
        read_mark(canonical, &marks.synced)
        return True

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


cdef void read_ends(Appender log, Marks *marks) noexcept:
    marks.received.position, marks.received.entry = load(&log.tail.page.end), load(&log.tail.page.end_entry)
    marks.synced.position, marks.synced.entry = load(&log.tail.page.synced_end), load(&log.tail.page.synced_entry)
    if marks.synced.position > marks.received.position:   # a blank was synced, and no record follows it
        marks.synced = marks.received


def progress_of(Appender log not None, int64_t segment_bytes):
    """Return the marks (end of complete records, end of synced bytes) at one moment.

    The first one is where a stream continues: the position of a segment's header if no record of the segment was
    written.
    """
    cdef Marks ends
    read_ends(log, &ends)
    cdef int64_t end = ends.received.position, stream_position = end
    if log.active is not None and log.active.sealed and end == log.active_base + log.pos:
        stream_position = log.active_base + log.active.size
    elif end % segment_bytes == SEGMENT_HEADER:
        stream_position = end - SEGMENT_HEADER
    return mark_at(stream_position, ends.received.entry), make_mark(&ends.synced)


def marks_of(Appender log not None):
    """Return the marks (end of the log, end of synced bytes, end that readers see) at one moment."""
    cdef Marks ends
    read_ends(log, &ends)
    return (
        make_mark(&ends.received),
        make_mark(&ends.synced),
        mark_at(load(&log.tail.page.visible), load(&log.tail.page.visible_entry)),
    )
