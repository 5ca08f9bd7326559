"""The codec of the progress reports of replicas: one for each append (FORMAT.md, "Replication": PROGRESS).

Threads: any.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

from pyreplog._native.log.log_position cimport entry_of, mark_at, position_of
from pyreplog._native.machines.named cimport named
from pyreplog._native.net.frame cimport FrameBatch, load_i64, store_i64

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


def progress_from(received, synced, /):
    """Return a ProgressReport, made without a call of Python, for there is one for each append."""
    return named(ProgressReport, (received, synced))


def encode_report(received, synced, /):
    """Encode the ends of what a replica has received and synced."""
    cdef bytes body = PyBytes_FromStringAndSize(NULL, REPORT_BYTES)
    cdef char *p = PyBytes_AS_STRING(body)
    p[0] = KIND
    store_i64(p + 1, position_of(received))
    store_i64(p + 9, entry_of(received))
    store_i64(p + 17, position_of(synced))
    store_i64(p + 25, entry_of(synced))
    return body


def report_alone(FrameBatch batch not None, /):
    """Decode a report that is the only frame of a batch; None: it is not."""
    cdef tuple frame = batch.alone()
    return decode_report(frame[1]) if frame is not None and frame[0] == CONTROL_OFFSET else None


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
