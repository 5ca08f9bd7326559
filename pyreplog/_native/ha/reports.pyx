"""The progress reports of replicas, one for each append: their codec (FORMAT.md, "Replication": PROGRESS), and which report
a replica owes.

Threads: any; one ReplicaReportsBase belongs to one thread at a time.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.log.log_position cimport Mark, is_above, make_mark, mark_at, read_mark
from pyreplog._native.machines.named cimport named
from pyreplog._native.log.apply_replicated cimport Marks
from pyreplog._native.net.frame cimport FRAME_HEADER, FrameBatch, load_i64, load_size, put_header, store_i64

from typing import NamedTuple

from pyreplog._native.log.log_position import LogPosition
from pyreplog.errors import InvalidMessageError

cdef enum:
    CONTROL_OFFSET = -1
    KIND = 2
    REPORT_BYTES = 33       # kind, received, synced


class ProgressReport(NamedTuple):
    """Replica -> master: the ends of what it has. Sent after it has stored the promise and history of ACCEPT."""

    received: LogPosition
    synced: LogPosition


def encode_report(received, synced, /):
    """Encode the ends of what a replica has received and synced."""
    cdef bytes body = PyBytes_FromStringAndSize(NULL, REPORT_BYTES)
    cdef Marks marks
    read_mark(received, &marks.received)
    read_mark(synced, &marks.synced)
    put_report(PyBytes_AS_STRING(body), &marks)
    return body


cdef bytes report_frame(const Marks *marks):
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, FRAME_HEADER + REPORT_BYTES)
    cdef char *p = PyBytes_AS_STRING(frame)
    put_header(p, CONTROL_OFFSET, REPORT_BYTES)
    put_report(p + FRAME_HEADER, marks)
    return frame


cdef void put_report(char *p, const Marks *marks) noexcept:
    p[0] = KIND
    store_i64(p + 1, marks.received.position)
    store_i64(p + 9, marks.received.entry)
    store_i64(p + 17, marks.synced.position)
    store_i64(p + 25, marks.synced.entry)


cdef bint read_report(FrameBatch batch, Marks *marks) noexcept:
    cdef const uint8_t *p = batch.data
    if batch.count != 1 or load_size(p) != REPORT_BYTES or load_i64(p) != CONTROL_OFFSET or p[FRAME_HEADER] != KIND:
        return False
    p += FRAME_HEADER
    marks.received.position, marks.received.entry = load_i64(p + 1), load_i64(p + 9)
    marks.synced.position, marks.synced.entry = load_i64(p + 17), load_i64(p + 25)
    return is_valid(&marks.received) and is_valid(&marks.synced)


cdef inline bint is_valid(const Mark *mark) noexcept:
    return mark.position >= 0 and mark.entry >= 0


cdef object report_of(const Marks *marks):
    return named(ProgressReport, (make_mark(&marks.received), make_mark(&marks.synced)))


def decode_report(body, /):
    """Decode a ProgressReport; None: the body is another message. Raises InvalidMessageError for a mark below 0."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int64_t received, received_entry, synced, synced_entry
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t *>view.buf
        if view.len != REPORT_BYTES or p[0] != KIND:
            return None
        received, received_entry = load_i64(p + 1), load_i64(p + 9)
        synced, synced_entry = load_i64(p + 17), load_i64(p + 25)
    finally:
        PyBuffer_Release(&view)
    if received < 0 or received_entry < 0 or synced < 0 or synced_entry < 0:
        raise InvalidMessageError(f"control body: expected marks from 0 on, found {received} and {synced}")
    return named(ProgressReport, (mark_at(received, received_entry), mark_at(synced, synced_entry)))


# ---- which report a replica owes -------------------------------------------------------------------------------

cdef class ReplicaReportsBase:
    """Base of ReplicaMachine, which joins a master and sets `is_streaming`: whether the stream is received.

    _end: end of the log, as it was told last.
    """

    @property
    def _end(self):
        return make_mark(&self.end)

    @_end.setter
    def _end(self, mark):
        read_mark(mark, &self.end)

    def progressed(self, received, synced, /):
        """Report the ends of the log, after each batch that was received, and after each sync.

        Returns the message for the master; None: no news. It is no effect, because there is one for each append.
        """
        cdef Marks ends
        read_mark(received, &ends.received)
        read_mark(synced, &ends.synced)
        if not self.is_news(&ends):
            return None
        return report_of(&self.reported)

    def _forget_report(self):
        """Forget what was reported, because the connection ended."""
        self.has_reported = False

    cdef bint is_news(self, const Marks *ends) noexcept:
        """Take the ends of the log. Return whether they are to be reported: then they are `reported`."""
        cdef Marks marks = ends[0]
        if is_above(&marks.synced, &marks.received):  # a segment ended between the reads of the two ends
            marks.synced = marks.received
        self.end = marks.received
        if not self.is_streaming or (self.has_reported and is_same(&marks, &self.reported)):
            return False
        self.reported, self.has_reported = marks, True
        return True


cdef bint is_same(const Marks *marks, const Marks *other) noexcept:
    return (marks.received.position == other.received.position and marks.received.entry == other.received.entry
            and marks.synced.position == other.synced.position and marks.synced.entry == other.synced.entry)
