"""The work of a replica group's master for each report: check it, note it, and move the commit point (Kafka: the high
watermark) to what enough members have: `CommitPointBase.count`. The other rules of a master are in
`pyreplog.ha.protocol.master_machine`, those of one replica in `replica_progress`.

A report is a pair of marks, (received, synced), as in `log_position` and `reports`.

Threads: one CommitPointBase, with its ProgressBases, belongs to one thread at a time.
"""

from libc.stdint cimport int64_t

from pyreplog._native.log.apply_replicated cimport Marks
from pyreplog._native.log.log_position cimport Mark, is_above, make_mark, read_mark
from pyreplog._native.machines.effects cimport make_committed
from pyreplog._native.machines.named cimport item

from pyreplog.errors import InvalidArgumentError

cdef enum:
    SECOND_US = 1_000_000
    QUORUM_MOST = 256       # members of a quorum; their number is one byte in FORMAT.md

cdef enum:                  # why a report is impossible
    POSSIBLE
    BEYOND
    SYNCED_AHEAD
    RECEIVED_ELSEWHERE
    SYNCED_ELSEWHERE

RATE_US = SECOND_US
"""Microseconds over which a rate is measured, at least."""


cdef inline bint is_behind(const Mark *mark, const Mark *other) noexcept:
    """Return whether a mark is behind another one in its position or its entry."""
    return mark.position < other.position or mark.entry < other.entry


cdef inline bint is_elsewhere(const Mark *mark, const Mark *other) noexcept:
    """Return whether two marks are of no two moments of one log: behind in one of the two, and ahead in the other."""
    return is_behind(mark, other) and is_behind(other, mark)


cdef class ProgressBase:
    """Base of the progress of one replica. The subclass knows its connections, has `rate`, and sets the attributes.

    received, synced: the marks that it reported last. proven: the highest mark that it had on disk. counted: the mark
    that counts for the commit point. reported: whether it has reported on this connection. knows_members: whether it has
    stored the members that this master told it. counts: both. observer: whether it never counts for the commit point.
    caught_up_us: when it was last level with its master. _probe, _probe_us: the master's end when it was checked last,
    and the time. _base, _base_us, _rate: its position when the rate was measured last, the time, and the rate.
    """

    @property
    def received(self):
        return make_mark(&self.marks.received)

    @received.setter
    def received(self, mark):
        read_mark(mark, &self.marks.received)

    @property
    def synced(self):
        return make_mark(&self.marks.synced)

    @synced.setter
    def synced(self, mark):
        read_mark(mark, &self.marks.synced)

    @property
    def proven(self):
        return make_mark(&self.proven_mark)

    @proven.setter
    def proven(self, mark):
        read_mark(mark, &self.proven_mark)

    @property
    def counted(self):
        return make_mark(&self.counted_mark)

    @counted.setter
    def counted(self, mark):
        read_mark(mark, &self.counted_mark)

    def rate(self, now_us, /):
        """Return the rate in bytes per second."""
        raise NotImplementedError

    cdef int fault_of(self, const Marks *marks, int64_t sent, const Mark *end) noexcept:
        """Return why a report is impossible; POSSIBLE: it is not.

        sent: the position up to which the replica was sent the log. end: of the master's log. RocketMQ believes every
        report (#3015, #1155: an acknowledgement of 2^40 bytes that were never sent).
        """
        if marks.received.position > sent or marks.received.entry > end.entry:
            return BEYOND
        if is_behind(&marks.received, &marks.synced):
            return SYNCED_AHEAD
        if is_elsewhere(&marks.received, &self.marks.received):
            return RECEIVED_ELSEWHERE
        if is_elsewhere(&marks.synced, &self.marks.synced):
            return SYNCED_ELSEWHERE
        return POSSIBLE

    cdef str absurdity(self, int fault, const Marks *marks, int64_t sent, const Mark *end):
        """Return the text of a fault."""
        received, synced = make_mark(&marks.received), make_mark(&marks.synced)
        if fault == BEYOND:
            return f"it reports {received}, it was sent {sent} of {make_mark(end)}"
        if fault == SYNCED_AHEAD:
            return f"it reports to have synced {synced} and received {received}"
        if fault == RECEIVED_ELSEWHERE:
            return f"it reports {received}, and {self.received} before"
        return f"it reports to have synced {synced}, and {self.synced} before"

    cdef int take(self, const Marks *marks, bint counts_synced, int64_t end, int64_t now_us) except -1:
        """Take a report. counts_synced: which one of the two marks counts. end: position of the master's end.

        Two threads of a replica may have sent their reports in the wrong order: the older mark is ignored. A replica is
        level with its master if it has what the master had when that was checked before (Kafka's caught-up time: under
        load no replica ever has all of the master's log).
        """
        cdef int64_t reached
        if not is_behind(&marks.received, &self.marks.received):
            self.marks.received = marks.received
        if not is_behind(&marks.synced, &self.marks.synced):
            self.marks.synced = marks.synced
        if is_above(&self.marks.synced, &self.proven_mark):
            self.proven_mark = self.marks.synced
        self.reported = True
        self.count_if_ready(self.mark(counts_synced))
        reached = self.mark(counts_synced).position
        if reached >= self._probe:
            self.caught_up_us = now_us if reached >= end else self._probe_us
            self._probe, self._probe_us = end, now_us
        if now_us - self._base_us >= SECOND_US:
            self._rate = self.rate(now_us)
            self._base, self._base_us = self.marks.received.position, now_us
        return 0

    cdef const Mark *mark(self, bint counts_synced) noexcept:
        return &self.marks.synced if counts_synced else &self.marks.received

    cdef void count_if_ready(self, const Mark *mark) noexcept:
        """Let a mark count, once the replica has reported and knows the members. So a node that knows of no members holds
        nothing that was committed by its report, and elections need not ask what it holds."""
        if self.reported and self.knows_members:
            self.counts = True
            if not self.observer:
                self.counted_mark = mark[0]

    def stored_members(self, mark, /):
        """Note that the replica knows the members. mark: the one of its two marks that counts."""
        cdef Mark place
        read_mark(mark, &place)
        self.knows_members = True
        self.count_if_ready(&place)


cdef class CommitPointBase:
    """Base of the master of a replica group. The subclass admits replicas, and has `_absurd` and `_advance`.

    `CommitPointBase(name, members, config, fallback, end, synced, committed, term_start, origin)`. fenced: the higher term
    that it met. members: a commit needs each of their `quorums`; `former` is set while they change. fallback: whether
    the master `is_alone` and waits for no replica, whether it may be later (`limit_us`), and the commits `owed` since.
    _end, _synced: of the log. _term_start: no mark at or before it is committed by counting. origin: the mark of a
    replica that has not reported. _progress_by_name, _connected: replicas by name and by connection.
    """

    def __init__(self, str name not None, members, config, fallback, end, synced, committed, term_start, origin):
        self.name, self.members, self.config, self.fallback = name, members, config, fallback
        self._end, self._synced, self.committed = end, synced, committed
        read_mark(term_start, &self.term_start)
        read_mark(origin, &self.origin)
        self._progress_by_name, self._connected = {}, {}
        self.waits_for_disks = config.ack == "synced"

    @property
    def members(self):
        return self.present_members

    @members.setter
    def members(self, members):
        for names, _ in members.quorums:
            if len(names) > QUORUM_MOST:
                raise InvalidArgumentError(f"members: expected at most {QUORUM_MOST}, found {len(names)}")
        self.present_members, self.quorums, self.is_changing = members, members.quorums, members.former is not None
        self.sync_replicas = members.quorum.k

    @property
    def committed(self):
        return make_mark(&self.committed_mark)

    @committed.setter
    def committed(self, mark):
        read_mark(mark, &self.committed_mark)

    @property
    def _end(self):
        return make_mark(&self.ends.received)

    @_end.setter
    def _end(self, mark):
        read_mark(mark, &self.ends.received)

    @property
    def _synced(self):
        return make_mark(&self.ends.synced)

    @_synced.setter
    def _synced(self, mark):
        read_mark(mark, &self.ends.synced)

    @property
    def _term_start(self):
        return make_mark(&self.term_start)

    @property
    def own(self):
        """The end of what the master has, or, if it waits for disks, of what it has synced."""
        return make_mark(self.own_mark())

    @property
    def replicated(self):
        """The highest mark that the master and enough replicas have; None: no record of this term."""
        cdef Mark reached
        return make_mark(&reached) if self.count(&reached) else None

    def grew(self, end, synced, /):
        """Note the end of the log, where only a report can move the commit point."""
        self._end, self._synced = end, synced

    def progress(self, connection, progress, int64_t sent, int64_t now_us, /):
        """Take a report, (received, synced), of a replica, and return the effects.

        sent: position up to which the log was sent on this connection.
        """
        cdef Marks marks
        cdef ProgressBase replica
        cdef int outcome, fault
        read_mark(item(progress, 0), &marks.received)
        read_mark(item(progress, 1), &marks.synced)
        outcome = self.take_report(connection, &marks, sent, now_us)
        if outcome != REPORT_LEFT:
            return [make_committed(self.committed)] if outcome == REPORT_COMMITTED else []
        replica = self._connected.get(connection)
        if replica is None or self.fenced is not None:
            return []
        fault = replica.fault_of(&marks, sent, &self.ends.received)
        if fault != POSSIBLE:
            return self._absurd(connection, replica.absurdity(fault, &marks, sent, &self.ends.received), now_us)
        self.note(replica, &marks, now_us)
        if not self.is_changing and not self.fallback.is_alone and self.fallback.owed is None:
            if not is_above(replica.mark(self.waits_for_disks), &self.committed_mark):
                return []
        return self._advance(now_us)

    cdef int take_report(self, object connection, const Marks *marks, int64_t sent, int64_t now_us) except -1:
        cdef ProgressBase replica = self._connected.get(connection)
        cdef object fallback = self.fallback
        cdef Mark reached
        if replica is None or self.fenced is not None or self.is_changing:
            return REPORT_LEFT
        if fallback.is_alone or fallback.owed is not None or fallback.limit_us is not None:
            return REPORT_LEFT
        if replica.fault_of(marks, sent, &self.ends.received) != POSSIBLE:
            return REPORT_LEFT
        self.note(replica, marks, now_us)
        if (is_above(replica.mark(self.waits_for_disks), &self.committed_mark) and self.count(&reached)
                and is_above(&reached, &self.committed_mark)):
            self.committed_mark = reached
            return REPORT_COMMITTED
        return REPORT_COUNTED

    cdef bint waits_for_replicas(self) except -1:
        return self.sync_replicas > 0 and not self.fallback.is_alone

    cdef int note(self, ProgressBase replica, const Marks *marks, int64_t now_us) except -1:
        self._reports += 1
        return replica.take(marks, self.waits_for_disks, self.ends.received.position, now_us)

    def _absurd(self, connection, absurdity, now_us, /):
        """Return the effects of an impossible report."""
        raise NotImplementedError

    def _advance(self, now_us, /):
        """Move the commit point, do what else is possible now, and return the effects."""
        raise NotImplementedError

    def _commit_up_to(self, reached, /):
        """Move the commit point to `reached`, if that is higher (None: it stays), and return the effects."""
        if reached is None or reached <= self.committed:
            return []
        self.committed = reached
        return [make_committed(reached)]

    cdef const Mark *own_mark(self) noexcept:
        return &self.ends.synced if self.waits_for_disks else &self.ends.received

    cdef bint count(self, Mark *reached) except -1:
        """Set the highest mark that the master and enough replicas have. Return False if it is no record of this term."""
        cdef const Mark *own = self.own_mark()
        cdef const Mark *mark
        cdef const Mark *known[QUORUM_MOST]
        cdef ProgressBase replica
        cdef Py_ssize_t count, place, k
        cdef str name
        reached[0] = own[0]
        for quorum in self.quorums:
            count, k = 0, item(quorum, 1)
            for name in <tuple>item(quorum, 0):
                if name == self.name:
                    mark = own
                else:
                    replica = self._progress_by_name.get(name)
                    mark = &self.origin if replica is None else &replica.counted_mark
                place = count
                while place and is_above(mark, known[place - 1]):
                    known[place] = known[place - 1]
                    place -= 1
                known[place] = mark
                count += 1
            # What k members beside the master have; k + 1, where a change is about to bring the master in.
            if is_above(reached, known[k]):
                reached[0] = known[k][0]
        return reached.position > self.term_start.position
