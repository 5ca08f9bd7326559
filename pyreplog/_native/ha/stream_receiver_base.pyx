"""What a replica does for an append that arrives alone: from the frame to its record in the log and the report that has left,
without Python code in between. Everything else takes the way of `StreamReceiver.frames`.

Threads: everything runs under the GIL, in the thread that drives the reactor.
"""

from libc.stdint cimport int64_t

from pyreplog._native.ha.reports cimport ReplicaReportsBase, report_frame
from pyreplog._native.log.apply_replicated cimport LITTLE, Marks, MirrorLogBase
from pyreplog._native.net.frame cimport FRAME_HEADER, FrameBatch, load_i64, load_size
from pyreplog._native.net.send_queue cimport FrameSendQueue

LITTLE_BYTES = LITTLE
"""Most bytes of a frame that is applied on the fast path; after so few the writer probably waits for the report."""


cdef class ProgressReporter:
    """The reports of one replica: `ProgressReporter(machine, lock)`.

    machine: decides which report is owed. lock: guards it, and is held until a report was sent, so that reports keep their
    order. floor_due_at: position; Python code handles what ends there or later, and sets the retention floor.
    """

    cdef readonly ReplicaReportsBase machine
    cdef public int64_t floor_due_at
    cdef object acquire, release

    def __init__(self, ReplicaReportsBase machine not None, lock, /):
        self.machine, self.acquire, self.release = machine, lock.acquire, lock.release

    cdef bint begins(self) except -1:
        """Take the lock, if it is free, and a stream is received."""
        return self.machine.is_streaming and self.acquire(False)

    cdef bint report(self, MirrorLogBase log, object connection) except -1:
        """Send the report that is owed. Return False if Python code has to do it. The caller holds the lock."""
        cdef FrameSendQueue send_queue = connection.send_queue
        cdef Marks marks
        cdef bytes frame
        if not log.read_marks(&marks):
            return False
        if self.machine.is_news(&marks):
            frame = report_frame(&self.machine.reported)
            if not send_queue.whole_leaves(frame):
                connection.send(frame)
        return True


cdef class StreamReceiverBase:
    """Base of StreamReceiver, which has `report` and the callbacks of a connection.

    _reporter: of the replica; None: there is no fast path. _log: the mirror; None: frames are dropped. _syncer: syncs it, or
    None. _on_landed: called after each read, or None. received_bytes: bytes of the log that were received, on this connection
    and earlier ones. _reported_bytes: how many of them there were at the last report.
    """

    cdef public ProgressReporter _reporter
    cdef public object _log, _syncer, _on_landed
    cdef public int64_t received_bytes, _reported_bytes

    def fast_path(self, connection, FrameBatch batch not None, /):
        """Apply a small frame that arrived alone, and report it; see `FastPath`.

        A frame is ordinary if it holds whole intact records that continue the log, and no segment or retention floor is due.
        """
        cdef ProgressReporter reporter = self._reporter
        cdef MirrorLogBase log
        cdef int64_t position, size
        cdef bint is_reported
        if batch.count != 1 or reporter is None or not isinstance(self._log, MirrorLogBase):
            return None
        position, size = load_i64(batch.data), load_size(batch.data)
        if position < 0 or not 0 < size <= LITTLE or position + size >= reporter.floor_due_at or not reporter.begins():
            return None
        log = self._log
        try:
            if not log.apply_little(position, batch.data + FRAME_HEADER, size):
                return None
            self.received_bytes += size
            self._reported_bytes = self.received_bytes
            is_reported = reporter.report(log, connection)
        finally:
            reporter.release()
        if not is_reported:
            self.report()
        if self._on_landed is not None:
            self._on_landed()
        if self._syncer is not None:
            self._syncer.grew()
        return b""

    def report(self):
        raise NotImplementedError
