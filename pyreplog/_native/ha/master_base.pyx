"""MasterBase and ReplicaStreamBase: the native path of an append at the master of a replica group.

It leads from the caller's value to the frame that is sent, and from the frame of a replica's report to the caller that
wakes up. `Master` handles all other cases.

Threads: everything runs under the GIL. Reports come in the thread that drives the reactor, appends from any.
"""

from libc.stdint cimport int64_t

from pyreplog._native.layout cimport SEGMENT_HEADER
from pyreplog._native.ha.commit_point cimport REPORT_COMMITTED, REPORT_LEFT, CommitPointBase
from pyreplog._native.ha.parking cimport ParkingLot
from pyreplog._native.ha.reports cimport read_report
from pyreplog._native.log.appender cimport Appender
from pyreplog._native.log.apply_replicated cimport Marks, read_ends, show_before
from pyreplog._native.log.log_position cimport Mark, read_mark
from pyreplog._native.net.frame cimport FrameBatch
from pyreplog._native.net.frame_feed_base cimport FrameFeedBase

from asyncio import _get_running_loop

from pyreplog.errors import ClosedError

cdef object running_loop = _get_running_loop


cdef class MasterBase


cdef class ReplicaStreamBase:
    """Base of ReplicaStream: `ReplicaStreamBase(feed, ahead_bytes, segment_bytes)`.

    A replica that has reported all it was sent gets more at once. Otherwise it gets more with its next report, or once
    `ahead_bytes` have been gathered: the appends of a round trip are sent in one piece.

    reported: position up to which the replica has reported the log as received. synced: the same of what it has synced, kept
    by `Cascade` only. master: takes its reports on the fast path; None: nothing takes it. feed: the frames that are sent next.
    """

    cdef public int64_t reported, synced
    cdef public MasterBase master
    cdef readonly FrameFeedBase feed
    cdef int64_t ahead_bytes, segment_bytes

    def __init__(self, FrameFeedBase feed not None, int64_t ahead_bytes, int64_t segment_bytes, /):
        self.feed, self.ahead_bytes, self.segment_bytes = feed, ahead_bytes, segment_bytes
        self.reported = feed.position

    @property
    def is_due(self):
        """Whether the replica gets more of the log now."""
        return self.due()

    cdef bint due(self) noexcept:
        cdef int64_t position = self.feed.position
        if position % self.segment_bytes == SEGMENT_HEADER:     # in front of the first record: as of the segment's start
            position -= SEGMENT_HEADER
        return position <= self.reported or self.feed.bytes_behind() >= self.ahead_bytes

    def fast_path(self, connection, FrameBatch batch not None, /):
        """Take a progress report that arrived alone, the message of each append; see `FastPath`. It has no reply."""
        cdef Marks marks
        if self.master is None or not read_report(batch, &marks) or not self.master.take_report(connection, self, &marks):
            return None
        return b""


cdef class PendingCommitsBase:
    """Base of PendingCommits, which has `_advance_futures` and `drain`.

    lot: the sleeping threads. While they are woken one by one (`is_waking`), the last one offers their appends. watches: the
    futures that wait, in a deque.
    """

    cdef readonly ParkingLot lot
    cdef public object watches

    def __init__(self, int64_t reached, /):
        self.lot = ParkingLot(reached)

    def advance(self, position, /):
        """Report the new commit point. Completes no futures: call `drain` afterwards, without locks."""
        self.reach(position)

    cdef int reach(self, int64_t position) except -1:
        self.lot.reach(position)
        if self.watches:
            self._advance_futures(position)
        return 0

    def _advance_futures(self, position, /):
        raise NotImplementedError


cdef class MasterBase:
    """Base of Master, which sets the attributes and has `_admit`, `_await_admission`, `_refuse_to_wait`, `_pump`,
    `_send_commit_soon`.

    log: the open log. group: the state machine; _lock guards it. _followers: ReplicaStreamBases by connection. _drive: as
    `Reactor.drive`. _polls: reads that wait for the commit point, or None. _offered: end of the log that the state machine
    knows. is_guarded: whether appends must be admitted first. _is_synced: whether entries are synced before they are sent.
    _is_received_enough: whether a commit waits for no disk. _closed_error: the error of appends after `close`.
    """

    cdef public Appender log
    cdef public CommitPointBase group
    cdef public PendingCommitsBase _pending_commits
    cdef public dict _followers
    cdef public object _lock, _now_us, _polls, _drive, _in_driver, _closed_error
    cdef public int64_t _offered
    cdef public bint is_guarded, _is_synced, _is_received_enough, _is_commit_due, _closed

    # ---- appending ----

    def append(self, value, key, event_time, properties, /):
        """Append one entry, and return its number when enough replicas have it; see `Node.append`.

        Meanwhile this thread sends entries, and receives reports.
        """
        cdef int64_t entry, position
        if running_loop() is not None or self._in_driver():
            self._refuse_to_wait()
        if self.is_guarded:
            self._await_admission()
        if self.is_guarded:
            self._admit()
        try:
            position = self.log.put_one(value, key, event_time, properties, None, False, &entry)
        except ClosedError as closed:  # after a change of role, the error for that
            self._admit()
            raise self._closed_error or closed from None
        if self._is_synced:
            self.log.wait_synced(position)
        self.offer_now()
        self._pending_commits.wait(position, self._drive)
        return entry

    def offer(self):
        """Send new entries to replicas that are due. Called after the log has grown.

        A replica that is about to report gets them after its report. While threads are being woken whose appends
        follow, the last of these appends offers for all.
        """
        self.offer_now()

    cdef int offer_now(self) except -1:
        # Whether the commit point moves only with a replica's report, not with the master's own end.
        cdef bint waits = self._is_received_enough and self.group.waits_for_replicas()
        cdef list others = None
        cdef ReplicaStreamBase follower
        if waits and self._pending_commits.lot.waking:
            return 0
        for follower in list(self._followers.values()):
            if follower.due() and not follower.feed.leaves():
                if others is None:
                    others = []
                others.append(follower)
        if others is not None or not waits:
            self._pump(others or (), waits)
        return 0

    # ---- reports ----

    cdef bint take_report(self, object connection, ReplicaStreamBase follower, const Marks *marks) except -1:
        """Take an ordinary report. Return False if it is not, or the lock is not free: nothing was done."""
        cdef Marks ends
        cdef int outcome
        if self._closed or self._followers.get(connection) is not follower or not self._lock.acquire(False):
            return False
        try:
            if marks.received.position > self._offered:     # the state machine does not know these entries yet
                read_ends(self.log, &ends)
                self.group.ends, self._offered = ends, ends.received.position
            outcome = self.group.take_report(connection, marks, follower.feed.position, self._now_us())
            if outcome == REPORT_LEFT:
                return False
            if marks.received.position > follower.reported:
                follower.reported = marks.received.position
            if outcome == REPORT_COMMITTED:
                self.committed(&self.group.committed_mark)
        finally:
            self._lock.release()
        self.reported(follower)
        return True

    cdef int reported(self, ReplicaStreamBase follower) except -1:
        """Complete futures, and send what has gathered meanwhile; called after a report, without the lock."""
        if self._pending_commits.watches:
            self._pending_commits.drain()
        if follower.feed.bytes_behind() and not self._pending_commits.lot.waking and follower.due():
            if not follower.feed.leaves():
                follower.sender.pump()
        return 0

    def _reported(self, ReplicaStreamBase follower not None, /):
        """Do what follows after a report that was not ordinary."""
        self.reported(follower)

    def _committed(self, mark, /):
        """Show readers the commit point, and wake those who wait for it. Called under the lock."""
        cdef Mark place
        read_mark(mark, &place)
        self.committed(&place)

    cdef int committed(self, const Mark *mark) except -1:
        show_before(self.log, mark.position, mark.entry)
        self._pending_commits.reach(mark.position)
        if self._polls is not None and self._polls.waiting:
            self._polls.wake()
        if not self._is_commit_due:
            self._send_commit_soon()
        return 0

    def _send_commit_soon(self):
        raise NotImplementedError

    def _pump(self, followers, waits, /):
        """Send what did not leave at once; waits: whether only a report moves the commit point."""
        raise NotImplementedError

    def _admit(self):
        """Raise the reason why appends are not admitted, if they are not."""
        raise NotImplementedError

    def _await_admission(self):
        raise NotImplementedError

    def _refuse_to_wait(self):
        raise NotImplementedError
