"""The work of a replica group's master for each report: check it, note it, and move the commit point (Kafka: the high
watermark) to what enough members have: `CommitPointBase.count`. The other rules of a master are in
`pyreplog.ha.protocol.master_machine`, those of one replica in `replica_progress`.

A report is a pair of marks, (received, synced), as in `log_position` and `reports`.

Threads: one CommitPointBase, with its Reportings, belongs to one thread at a time.
"""

from libc.stdint cimport int64_t

from pyreplog._native.log.log_position cimport entry_of, position_of
from pyreplog._native.machines.effects cimport make_committed
from pyreplog._native.machines.named cimport item

cdef enum:
    SECOND_US = 1_000_000

RATE_US = SECOND_US
"""Microseconds over which a rate is measured, at least."""


cdef bint is_behind(object mark, object other) except -1:
    """Return whether a mark is behind another one in its position or its entry."""
    return position_of(mark) < position_of(other) or entry_of(mark) < entry_of(other)


cdef bint is_before(object mark, object other) except -1:
    """Return whether a mark is of an earlier moment of the same log: behind in one of the two, and ahead in none."""
    return (is_behind(mark, other) and position_of(mark) <= position_of(other)
            and entry_of(mark) <= entry_of(other))


cdef class ProgressBase:
    """Base of the progress of one replica. The subclass knows its connections, has `rate`, and sets the attributes.

    received, synced: the marks that it reported last. proven: the highest mark that it had on disk. counted: the mark
    that counts for the commit point. reported: whether it has reported on this connection. knows_members: whether it has
    stored the members that this master told it. counts: both. observer: whether it never counts for the commit point.
    caught_up_us: when it was last level with its master. _probe, _probe_us: the master's end when it was checked last,
    and the time. _base, _base_us, _rate: its position when the rate was measured last, the time, and the rate.
    """

    cdef public object received, synced, proven, counted
    cdef public bint reported, knows_members, counts, observer
    cdef public int64_t caught_up_us, _probe, _probe_us, _base, _base_us, _rate

    def rate(self, now_us, /):
        """Return the rate in bytes per second."""
        raise NotImplementedError

    cdef str absurdity(self, object received, object synced, int64_t sent, object end):
        """Return a text that says why a report is impossible; "" if it is possible.

        sent: the position up to which the replica was sent the log. end: of the master's log. RocketMQ believes every
        report (#3015, #1155: an acknowledgement of 2^40 bytes that were never sent).
        """
        if position_of(received) > sent or entry_of(received) > entry_of(end):
            return f"it reports {received}, it was sent {sent} of {end}"
        if is_behind(received, synced):
            return f"it reports to have synced {synced} and received {received}"
        if is_behind(received, self.received) and not is_before(received, self.received):
            return f"it reports {received}, and {self.received} before"
        if is_behind(synced, self.synced) and not is_before(synced, self.synced):
            return f"it reports to have synced {synced}, and {self.synced} before"
        return ""

    cdef int take(self, object received, object synced, object mark, int64_t end, int64_t now_us) except -1:
        """Take a report. mark: the one of the two marks that counts. end: position of the master's end.

        A replica is level with its master if it has what the master had when that was checked before (Kafka's caught-up
        time: under load no replica ever has all of the master's log).
        """
        cdef int64_t reached = position_of(mark)
        self.received, self.synced = received, synced
        if synced > self.proven:
            self.proven = synced
        self.reported = True
        self.count_if_ready(mark)
        if reached >= self._probe:
            self.caught_up_us = now_us if reached >= end else self._probe_us
            self._probe, self._probe_us = end, now_us
        if now_us - self._base_us >= SECOND_US:
            self._rate = self.rate(now_us)
            self._base, self._base_us = position_of(received), now_us
        return 0

    cdef int count_if_ready(self, object mark) except -1:
        """Let a mark count, once the replica has reported and knows the members. So a node that knows of no members holds
        nothing that was committed by its report, and elections need not ask what it holds."""
        if self.reported and self.knows_members:
            self.counts = True
            if not self.observer:
                self.counted = mark
        return 0

    def stored_members(self, mark, /):
        """Note that the replica knows the members. mark: the one of its two marks that counts."""
        self.knows_members = True
        self.count_if_ready(mark)


cdef class CommitPointBase:
    """Base of the master of a replica group. The subclass admits replicas, and has `_absurd` and `_advance`.

    `CommitPointBase(name, members, config, fallback, end, synced, committed, term_start, origin)`. fenced: the higher term
    that it met. members: a commit needs each of their `quorums`; `former` is set while they change. fallback: whether
    the master `is_alone` and waits for no replica, whether it may be later (`limit_us`), and the commits `owed` since.
    _end, _synced: of the log. _term_start: no mark at or before it is committed by counting. origin: the mark of a
    replica that has not reported. _progress_by_name, _connected: replicas by name and by connection.
    """

    cdef readonly str name
    cdef readonly object config, fallback
    cdef public object members, fenced, committed, _end, _synced
    cdef readonly object _term_start
    cdef readonly dict _progress_by_name, _connected
    cdef public int64_t _reports
    cdef object origin
    cdef bint waits_for_disks

    def __init__(self, str name not None, members, config, fallback, end, synced, committed, term_start, origin):
        self.name, self.members, self.config, self.fallback = name, members, config, fallback
        self._end, self._synced, self.committed, self._term_start = end, synced, committed, term_start
        self._progress_by_name, self._connected = {}, {}
        self.origin, self.waits_for_disks = origin, config.ack == "synced"

    @property
    def own(self):
        """The end of what the master has, or, if it waits for disks, of what it has synced."""
        return self._synced if self.waits_for_disks else self._end

    @property
    def replicated(self):
        """The highest mark that the master and enough replicas have; None: no record of this term."""
        return self.count()

    def grew(self, end, synced, /):
        """Note the end of the log, where only a report can move the commit point."""
        self._end, self._synced = end, synced

    def progress(self, connection, progress, int64_t sent, int64_t now_us, /):
        """Take a report, (received, synced), of a replica, and return the effects.

        sent: position up to which the log was sent on this connection.
        """
        cdef ProgressBase replica = self._connected.get(connection)
        cdef object received = item(progress, 0), synced = item(progress, 1), mark
        cdef str absurdity
        if replica is None or self.fenced is not None:
            return []
        absurdity = replica.absurdity(received, synced, sent, self._end)
        if absurdity:
            return self._absurd(connection, absurdity, now_us)
        self._reports += 1
        # Two threads of a replica may have sent their reports in the wrong order: the older one is ignored.
        if is_behind(received, replica.received):
            received = replica.received
        if is_behind(synced, replica.synced):
            synced = replica.synced
        mark = synced if self.waits_for_disks else received
        replica.take(received, synced, mark, position_of(self._end), now_us)
        if self.members.former is None and not self.fallback.is_alone and self.fallback.owed is None:
            if mark <= self.committed:
                return []
            if self.fallback.limit_us is None:
                return self.commit_up_to(self.count())
        return self._advance(now_us)

    def _absurd(self, connection, absurdity, now_us, /):
        """Return the effects of an impossible report."""
        raise NotImplementedError

    def _advance(self, now_us, /):
        """Move the commit point, do what else is possible now, and return the effects."""
        raise NotImplementedError

    def _commit_up_to(self, reached, /):
        """Move the commit point to `reached`, if that is higher (None: it stays), and return the effects."""
        return self.commit_up_to(reached)

    cdef list commit_up_to(self, object reached):
        if reached is None or reached <= self.committed:
            return []
        self.committed = reached
        return [make_committed(reached)]

    cdef object count(self):
        cdef object own = self._synced if self.waits_for_disks else self._end, reached = own
        cdef ProgressBase replica
        cdef list known
        for names, k in self.members.quorums:
            known = []
            for name in names:
                replica = self._progress_by_name.get(name)
                known.append(own if name == self.name else self.origin if replica is None else replica.counted)
            # What k members beside the master have; k + 1, where a change is about to bring the master in.
            known.sort(reverse=True)
            reached = min(reached, known[k])
        return reached if position_of(reached) > position_of(self._term_start) else None
