"""Counts what the bookies of one ensemble have acked. Numbers only: no policy, no clock, no I/O.

Wrong arguments raise InvalidArgumentError. An ack of entries that the bookie was not sent raises OutOfRangeError, and
changes nothing.

Threads: one AckTracker belongs to one thread or task at a time.
"""

cimport cython
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from pyreplog._native.quorum.quorum cimport (
    ENTRY_LIMIT, Quorums, distance, entry_of, indexes_of, int64_of, is_member, members_below, next_member,
    previous_member, quorums_of, within,
)
from pyreplog.errors import InvalidArgumentError, OutOfRangeError

MAX_WAITING = RUN_LIMIT


@cython.final
cdef class AckTracker:
    """Counts which entries of a ledger each bookie of an ensemble holds, and up to which entry the ledger is complete.

    `AckTracker(ensemble_size, write_quorum, ack_quorum, first=0)`: `first` is the lowest entry it counts (recovery
    begins behind a LAC); all below are complete.

    The progress of a bookie is one number, `awaited(index)`: the bookie holds all entries below that it was sent. Acks
    come in any order and any number of times. Those ahead of this prefix wait, as runs, and count when the prefix
    reaches them. An entry has n copies if it lies in the prefixes of n bookies of its write set. A query costs
    O(E * Qw), whatever the number of entries.
    """

    def __cinit__(self, ensemble_size, write_quorum, ack_quorum, first=0, /):
        cdef Quorums q = quorums_of(ensemble_size, write_quorum, ack_quorum)
        self.ensemble_size, self.write_quorum, self.ack_quorum = q.ensemble, q.write, q.ack
        self.first = entry_of(first, "first")
        self.lap = self.confirmed = self.first - 1
        self.released = self.first
        cdef int i
        for i in range(self.ensemble_size):
            self.next_of[i] = next_member(self.first, i, self.ensemble_size, self.write_quorum)
            self.order[i] = i

    def __dealloc__(self):
        cdef int i
        for i in range(ENSEMBLE_LIMIT):
            free(self.waiting[i].runs)

    def pushed(self, entry, /):
        """Note that all entries up to `entry` were handed out to be sent: the new `lap`, which never goes back."""
        if self.push(entry_of(entry, "entry")) < 0:
            raise InvalidArgumentError(f"pushed: expected an entry from LAP {self.lap} on, found {entry}")

    def ack(self, index, entry, /):
        """Note that bookie `index` holds `entry`. Return whether its progress moved; otherwise nothing else did.

        Raises OutOfRangeError, here and below, for an entry that was not pushed or is not striped to the bookie, and
        for an ack that leaves more than MAX_WAITING gaps before it.
        """
        cdef int bookie = self.index_of(index)
        cdef int64_t number = int64_of(entry, "entry")
        return self.moved(self.take(bookie, number, number), bookie, entry)

    def ack_range(self, index, first, last, /):
        """Note that bookie `index` holds all it was sent from `first` to `last`, both included; otherwise as `ack`."""
        cdef int bookie = self.index_of(index)
        cdef int64_t start = int64_of(first, "first"), end = int64_of(last, "last")
        return self.moved(self.take(bookie, start, end), bookie, (first, last))

    def ack_up_to(self, index, entry, /):
        """Note that bookie `index` holds all it was sent up to `entry`, included; otherwise as `ack`."""
        cdef int bookie = self.index_of(index)
        return self.moved(self.take_up_to(bookie, int64_of(entry, "entry")), bookie, entry)

    def withdraw(self, indexes, from_entry, /):
        """Note that other bookies take the places of `indexes`, and are to be sent the entries from `from_entry` on.

        This takes back their acks from there on, so that entries may be incomplete again. The caller drops acks of the
        replaced bookies that arrive later.

        from_entry: at most the entry that each of them awaits; the entries between would never get all their copies
        (as in BookKeeper, whose entries may stay at Qa copies). For an excused bookie it is at most `released`: entries
        below are confirmed, and count as complete. If it is lower, confirmed entries may lack an ack quorum until they
        are sent again, and a recovery in between may not find them.

        Raises InvalidArgumentError, and changes nothing, if from_entry is too high.
        """
        cdef uint64_t replaced = indexes_of(indexes, self.ensemble_size, "indexes")
        cdef int64_t start = entry_of(from_entry, "from_entry")
        if self.drop(replaced, start) < 0:
            awaited = {i: self.next_of[i] for i in range(self.ensemble_size) if replaced >> i & 1}
            raise InvalidArgumentError(
                f"withdraw: expected an entry from {self.first} on, and not above those awaited {awaited}, found {start}"
            )

    def excuse(self, index, /):
        """Wait no more for bookie `index`, which is muted: entries that it lacks do not hold up `released`.

        It holds until `withdraw` gives its place away. At least ack_quorum bookies of each write set have to be left.
        Raises InvalidArgumentError if the bookie is not muted.
        """
        cdef uint64_t bit = <uint64_t>1 << self.index_of(index)
        if not self.muted & bit:
            raise InvalidArgumentError(f"excuse: expected the index of a bookie that is muted, found {index}")
        self.excused |= bit

    def is_excused(self, index, /):
        """Return whether bookie `index` is not waited for."""
        return bool(self.excused >> self.index_of(index) & 1)

    def mute(self, index, /):
        """Count no more acks of Parts by bookie `index`, of entries on their way or later ones, until `withdraw` gives
        its place away."""
        self.muted |= <uint64_t>1 << self.index_of(index)

    def has_answered(self, index, /):
        """Return whether bookie `index` has acked any entry since it took its place."""
        return bool(self.heard_of >> self.index_of(index) & 1)

    @property
    def has_news(self):
        """Whether `confirm` would move, or an entry above `released` has got all copies that are waited for."""
        return self.news()

    def confirm(self):
        """Move `confirmed` up to `lac`, if that is higher, and return it: the entry up to which callers may be told.

        Do not call it while an ensemble change is under way: its LAC could rest on acks that are about to be withdrawn
        (BookKeeper #4097).
        """
        return self.confirm_complete()

    @property
    def lac(self):
        """Last add confirmed: the highest entry that, with all below, has ack_quorum copies; `first` - 1 if none.

        As of now: `withdraw` may take it back.
        """
        return self.complete(self.ack_quorum) - 1

    def complete_up_to(self, copies, /):
        """Return the highest entry that, with all below, has `copies` copies (1 to write_quorum); none: `first` - 1."""
        return self.complete(within(copies, 1, self.write_quorum, "copies")) - 1

    def below_write_quorum(self):
        """Return the lowest entry with a copy outstanding; none: `lap` + 1."""
        return self.complete(self.write_quorum)

    @property
    def outstanding(self):
        """Number of entries pushed, from the lowest one with an outstanding copy that is waited for."""
        return self.lap + 1 - self.settled()

    def awaited(self, index, /):
        """Return the lowest entry that bookie `index` was sent, or will be sent next, and does not hold.

        A fragment that begins there replaces the bookie and takes back no ack that counted.
        """
        return self.next_of[self.index_of(index)]

    def held(self, index, /):
        """Return the highest entry that bookie `index` holds with all it was sent before; none: `first` - 1."""
        cdef int bookie = self.index_of(index)
        cdef int64_t last = self.next_of[bookie] - 1
        return max(previous_member(last, bookie, self.ensemble_size, self.write_quorum), self.first - 1)

    def lag(self, index, /):
        """Return how many entries bookie `index` was sent, from the one that it awaits on."""
        cdef int bookie = self.index_of(index)
        cdef int64_t sent = members_below(self.lap + 1, bookie, self.ensemble_size, self.write_quorum)
        return sent - members_below(self.next_of[bookie], bookie, self.ensemble_size, self.write_quorum)

    cdef int index_of(self, object index) except -1:
        return within(index, 0, self.ensemble_size - 1, "index")

    cdef bint moved(self, int status, int index, object acked) except -1:
        """Return whether an ack moved the progress, or raise the error of its status."""
        if status >= 0:
            return status == ACK_MOVED
        if status == ACK_NO_MEMORY:
            raise MemoryError("no memory for an ack out of order")
        if status == ACK_NOT_PUSHED:
            expected = f"entries from {self.first} to {self.lap}, the LAP"
        elif status == ACK_NOT_MEMBER:
            expected = f"entries striped to it, {self.write_quorum} of {self.ensemble_size}"
        elif status == ACK_ORDER:
            expected = "a range that does not end before it begins"
        else:
            expected = f"at most {RUN_LIMIT} runs out of order, and that many wait"
        raise OutOfRangeError(f"ack by index {index} of the ensemble: expected {expected}; found {acked}")

    # ---- kernels

    cdef int push(self, int64_t entry) noexcept nogil:
        if not self.lap <= entry <= ENTRY_LIMIT:
            return ACK_ORDER
        self.lap = entry
        return ACK_KEPT

    cdef int check_member(self, int index, int64_t entry) noexcept nogil:
        if not self.first <= entry <= self.lap:
            return ACK_NOT_PUSHED
        return ACK_KEPT if is_member(entry, index, self.ensemble_size, self.write_quorum) else ACK_NOT_MEMBER

    cdef int take(self, int index, int64_t first, int64_t last) noexcept nogil:
        """Note an ack of [first, last]; an AckStatus."""
        cdef int status
        cdef int64_t stop
        if <unsigned int>index >= <unsigned int>self.ensemble_size:
            return ACK_INDEX
        status = self.check_member(index, first) or self.check_member(index, last)
        if status < 0:
            return status
        if first > last:
            return ACK_ORDER
        self.heard_of |= <uint64_t>1 << index
        stop = next_member(last + 1, index, self.ensemble_size, self.write_quorum)
        if stop <= self.next_of[index]:
            return ACK_KEPT
        if first > self.next_of[index]:
            return self.set_aside(&self.waiting[index], first, stop)
        self.next_of[index] = stop
        self.join(index)
        return ACK_MOVED

    cdef int take_up_to(self, int index, int64_t entry) noexcept nogil:
        if <unsigned int>index >= <unsigned int>self.ensemble_size:
            return ACK_INDEX
        return self.take(index, min(self.next_of[index], entry), entry)

    cdef int set_aside(self, Waiting *waiting, int64_t start, int64_t stop) noexcept nogil:
        """Add a run behind the prefix, joined with the runs that it meets."""
        cdef Run *runs = waiting.runs
        cdef int low = waiting.count, high = low
        while low > 0 and runs[low - 1].stop >= start:
            low -= 1
            if runs[low].start > stop:
                high = low
        if low == high and waiting.count == waiting.capacity:
            if waiting.count == RUN_LIMIT:
                return ACK_RUNS
            runs = <Run *>realloc(runs, (2 * waiting.count or 8) * sizeof(Run))
            if runs == NULL:
                return ACK_NO_MEMORY
            waiting.runs, waiting.capacity = runs, 2 * waiting.count or 8
        if low < high:
            start, stop = min(start, runs[low].start), max(stop, runs[high - 1].stop)
        memmove(runs + low + 1, runs + high, (waiting.count - high) * sizeof(Run))
        waiting.count -= high - low - 1
        runs[low].start, runs[low].stop = start, stop
        return ACK_KEPT

    cdef void join(self, int index) noexcept nogil:
        """Join the waiting runs that the prefix has reached."""
        cdef Waiting *waiting = &self.waiting[index]
        cdef int joined = 0
        while joined < waiting.count and waiting.runs[joined].start <= self.next_of[index]:
            self.next_of[index] = max(self.next_of[index], waiting.runs[joined].stop)
            joined += 1
        if joined:
            waiting.count -= joined
            memmove(waiting.runs, waiting.runs + joined, waiting.count * sizeof(Run))

    cdef int64_t complete(self, int copies) noexcept nogil:
        """The lowest entry with fewer than `copies` copies (1 to Qw); LAP + 1 if there is none.

        For stripe s, let c be the copies-th largest entry that bookies of its write set await. Its entries below c have
        enough copies, so the first incomplete one is the first e = s (mod E) from c on. The loop visits the bookies in
        the order of the entries that they await, and finds c when it has visited enough bookies of the write set. It
        ends where no result can be below the lowest one so far.
        """
        cdef int counts[ENSEMBLE_LIMIT]
        cdef int rank, k, index, stripe, enough = self.write_quorum - copies + 1
        cdef int64_t awaited, lowest = INT64_MAX
        for stripe in range(self.ensemble_size):
            counts[stripe] = 0
        self.sort()
        for rank in range(self.ensemble_size):
            index = self.order[rank]
            awaited = self.next_of[index]
            if awaited >= lowest:
                break
            stripe = index
            for k in range(self.write_quorum):
                counts[stripe] += 1
                if counts[stripe] == enough:
                    lowest = min(lowest, awaited + distance(awaited, stripe, self.ensemble_size))
                stripe = stripe - 1 if stripe > 0 else self.ensemble_size - 1
        return lowest

    cdef int64_t settled(self) noexcept nogil:
        """The lowest entry that a bookie which is not excused is to hold and does not; LAP + 1 if there is none.

        All below have all their copies, but for those on bookies that are excused.
        """
        cdef int i
        cdef int64_t lowest = self.lap + 1
        for i in range(self.ensemble_size):
            if self.next_of[i] < lowest and not self.excused >> i & 1:
                lowest = self.next_of[i]
        return min(lowest, self.complete(self.ack_quorum)) if self.excused else lowest

    cdef void sort(self) noexcept nogil:
        """Sort `order`; few bookies have moved since the last time."""
        cdef int i, at
        cdef uint8_t index
        for i in range(1, self.ensemble_size):
            index, at = self.order[i], i
            while at > 0 and self.next_of[self.order[at - 1]] > self.next_of[index]:
                self.order[at] = self.order[at - 1]
                at -= 1
            self.order[at] = index

    cdef bint news(self) noexcept nogil:
        return self.complete(self.ack_quorum) - 1 > self.confirmed or self.settled() > self.released

    cdef int64_t confirm_complete(self) noexcept nogil:
        self.confirmed = max(self.confirmed, self.complete(self.ack_quorum) - 1)
        return self.confirmed

    cdef int drop(self, uint64_t indexes, int64_t start) noexcept nogil:
        """Withdraw the acks of a set of indexes from entry `start` on; ACK_ORDER if one awaits a lower entry."""
        cdef int i
        for i in range(self.ensemble_size):
            if not indexes >> i & 1 or self.excused >> i & 1 and start <= self.released:
                continue
            if next_member(start, i, self.ensemble_size, self.write_quorum) > self.next_of[i]:
                return ACK_ORDER
        if start < self.first:
            return ACK_ORDER
        for i in range(self.ensemble_size):
            if indexes >> i & 1:
                self.next_of[i] = next_member(start, i, self.ensemble_size, self.write_quorum)
                self.waiting[i].count = 0
                self.lives[i] += 1
        self.muted &= ~indexes
        self.excused &= ~indexes
        self.heard_of &= ~indexes
        return ACK_KEPT


@cython.final
cdef class Part:
    """Entries of [first, last] on their way to the bookie that has a place in the ensemble now.

    `Part(tracker, place, first, last)`. Its acknowledgement counts while the place is that bookie's, and not muted.
    """

    def __cinit__(self, AckTracker tracker not None, place, int64_t first, int64_t last, /):
        self.tracker, self.place, self.first, self.last = tracker, tracker.index_of(place), first, last
        self.life = tracker.lives[self.place]

    @property
    def is_current(self):
        """Whether its place was not given away since, be it to the same bookie."""
        return self.tracker.lives[self.place] == self.life

    cdef bint counts(self) noexcept:
        return self.tracker.lives[self.place] == self.life and not self.tracker.muted >> self.place & 1

    cdef bint acknowledge(self) noexcept:
        """Note it, as `AckTracker.ack_range` does; False: it does not count."""
        return self.counts() and self.tracker.take(self.place, self.first, self.last) >= 0
