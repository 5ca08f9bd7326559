"""One group commit, by a thread that waits for it or is inside the append path. `pyreplog.log.commit` starts them.

Ctrl-C comes while a thread sleeps, and where the disk or a callback is Python code. After an interruption the next
leader takes again what was taken: all steps of a commit may be repeated without effect. The last step marks it as done.
"""

cimport cython
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

    def __init__(self, Appender log not None, submitted, int64_t synced, write_sync, poison, /):
        self._log, self._gate, self._submitted = log, CommitGate(synced), submitted
        self.write_sync, self.poison = write_sync, poison

    def wait(self, int64_t position, /):
        """Return when all before `position` is synced. Raises PoisonedError if a sync failed."""
        self.wait_for(position)

    cdef bint wait_staged(self) except -1:
        """Wait for all that was appended; return False if the log is closed, poisoned, or of the parent process."""
        if not self._log.open:
            return False
        self.wait_for(self._log.active_base + self._log.pos)
        return True

    cdef int wait_for(self, int64_t position) except -1:
        cdef CommitGate gate = self._gate
        try:
            while gate.synced < position:
                if self.error is not None:
                    raise self.error
                if position > self._log.active_base + self._log.pos:
                    return 0  # synced, and then cut by a truncation
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
        return 0

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
                elif self.error is None:  # a segment was begun, and nothing appended to it: all before it is on disk
                    gate.synced = max(gate.synced, self._log.active_base + self._log.pos)
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


@cython.final
cdef class StagedSync:
    """`StagedSync(commits, sync)()`: wait until all that was appended before the call is synced.

    For callers that may block, and know it: without the steps that find out. sync: that of the log, which is called,
    and raises, if the log is not open.
    """

    def __init__(self, GroupCommitBase commits not None, sync, /):
        self.commits, self.general = commits, sync

    def __call__(self):
        self.run()

    cdef int run(self) except -1:
        if not self.commits.wait_staged():
            self.general()
        return 0
