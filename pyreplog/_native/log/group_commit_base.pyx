"""One group commit, by a thread that waits for it or is inside the append path. `pyreplog.log.commit` starts them.

Ctrl-C comes while a thread sleeps, and where the disk or a callback is Python code. After an interruption the next
leader takes again what was taken: all steps of a commit may be repeated without effect. The last step marks it as done.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t

from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.gate cimport CommitGate
from pyreplog._native.log.segment cimport Segment

from pyreplog.errors import ClosedError


cdef class GroupCommitBase:
    """`GroupCommitBase(log, submitted, synced, write_sync, poison)`: all before position `synced` is on disk.

    To be subclassed with an implementation of `request`. submitted: the log's PositionWaiters. write_sync: writes bytes at
    an offset of a file and syncs it. poison: takes a stage and an OSError, ends the log for writing, and returns the
    PoisonedError. error: why nothing is committed any more.

    Lock order: leading, the log's append path, io; a holder of io never waits for another lock.
    """

    cdef readonly Appender _log
    cdef readonly CommitGate _gate
    cdef public object _submitted, error
    cdef object write_sync, poison

    def __init__(self, Appender log not None, submitted, int64_t synced, write_sync, poison, /):
        self._log, self._gate, self._submitted = log, CommitGate(synced), submitted
        self.write_sync, self.poison = write_sync, poison

    def wait(self, int64_t position, /):
        """Return when all before `position` is synced. Raises PoisonedError if a sync failed."""
        cdef CommitGate gate = self._gate
        try:
            while gate.synced < position:
                if self.error is not None:
                    raise self.error
                if position > self._log.active_base + self._log.pos:
                    return  # synced, and then cut by a truncation
                if gate.lead():
                    self.lead()
                else:
                    PyErr_CheckSignals()
                    gate.park(position)
        except ClosedError:
            if gate.synced < position:
                raise
        except BaseException:  # Ctrl-C; or this thread was woken to lead
            self._log.leave_if_inside()
            gate.abandon()
            self._submitted.drain()
            raise

    def flush(self):
        """Commit all that is staged, for a thread that is inside the append path."""
        cdef CommitGate gate = self._gate
        cdef tuple taken
        try:
            gate.begin_io()
            while (taken := self._log.take_stage()) is not None:  # first the group that an interrupted leader took
                gate.note_taken(taken[3])
                self.write(taken)
        finally:
            gate.abandon()
        if self._submitted.asleep and self._submitted.is_due:  # no callbacks inside the append path
            self.request()

    def write_blank(self, Segment segment not None, bytes blank not None, /):
        """End a segment durably: records of the next one must not reach the disk without it."""
        try:
            self._gate.begin_io()
            if self.error is not None:
                raise self.error
            self.sync(segment, blank, segment.end)
        finally:
            self._gate.abandon()

    def request(self):
        """Have the futures of synced positions settled."""
        raise NotImplementedError

    cdef int lead(self) except -1:
        cdef CommitGate gate = self._gate
        cdef uint32_t group = 0
        cdef tuple taken
        try:
            gate.gather()
            self._log.enter()
            try:
                gate.begin_io()  # free, or about to be: its holder is past the append path
                taken = self._log.take_stage()
                if taken is not None:
                    group = gate.note_taken(taken[3])
            finally:
                self._log.leave()
            try:
                if taken is not None:
                    self.write(taken)
            finally:
                gate.end_io()
        finally:
            gate.resign(group)
        self._submitted.drain()
        return 0

    cdef int write(self, tuple taken) except -1:
        cdef int64_t position = taken[3]
        if self.error is not None:  # an earlier group failed while this one waited for io: it would leave a hole
            raise self.error
        self.sync(taken[0], taken[2], taken[1])
        self._log.set_synced(position, taken[4])
        self._submitted.advance(position)
        self._gate.synced, self._log.stage.taken = position, 0
        return 0

    cdef int sync(self, Segment segment, object data, int64_t offset) except -1:
        try:
            self.write_sync(segment.fileno(), data, offset)
        except OSError as error:
            self.error = self.poison("group commit", error)
            self._gate.wake_all()
            raise self.error from error
        return 0
