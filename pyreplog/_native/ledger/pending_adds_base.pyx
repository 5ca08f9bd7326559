"""Batches of encoded entries on their way to the bookies of an ensemble: noted, sent to all who are to store them, and let
go of. `pyreplog.ledger.protocol.pending_adds` has what else is done with them.
"""

cimport cython
from collections import deque

from libc.stdint cimport int64_t

from pyreplog._native.ledgerlog.entries cimport Entries
from pyreplog._native.machines.effects cimport make_send
from pyreplog._native.machines.named cimport named
from pyreplog._native.net.requesthead cimport KIND_ADD
from pyreplog._native.quorum.acktracker cimport AckTracker, Part

from pyreplog._native.quorum.stripe import gather


@cython.final
@cython.freelist(64)
cdef class EntryBatch:
    """Consecutive encoded entries, from `first` to `last`.

    `EntryBatch(first, last, records, offsets, nbytes, about=None)`. offsets: of each record in `records`, which may
    hold more, and where the last one ends: an array of int64 or uint32. nbytes: of these entries.
    """

    def __init__(self, int64_t first, int64_t last, records, offsets not None, int64_t nbytes, about=None):
        self.first, self.last, self.nbytes = first, last, nbytes
        self.records, self.starts, self.about = records, offsets, about

    @property
    def offsets(self):
        return self.about.offsets if self.starts is None else self.starts

    cdef bint is_alone(self) except -1:
        """Whether `records` holds nothing else."""
        return self.starts is None or memoryview(self.records).nbytes == self.nbytes


cdef EntryBatch whole(Entries entries):
    cdef EntryBatch batch = EntryBatch.__new__(EntryBatch)
    batch.first, batch.last = entries.first, entries.first + entries.count - 1
    batch.nbytes = entries.starts[entries.count]
    batch.records, batch.about = entries.view, entries
    return batch


cdef class PendingAddsBase:
    """`PendingAddsBase(ledger, key, flags, ensemble, tracker, request, batch_bytes)`. To be subclassed, by what sends a
    bookie its part of a batch (`_send`). request: the type of requests, a named tuple. batch_bytes: entries are sent in
    requests of at most so many bytes, or of one entry.

    batches: those with an entry that lacks copies, ascending. pending_bytes: of them.
    """

    def __init__(self, int64_t ledger, bytes key not None, int flags, list ensemble not None, AckTracker tracker not None,
                 type request not None, int64_t batch_bytes):
        self.ledger, self.key, self._flags, self.ensemble, self.tracker = ledger, key, flags, ensemble, tracker
        self.request, self.batches, self.batch_bytes = request, deque(), batch_bytes

    def add(self, EntryBatch batch not None, /):
        """Send a batch to all who are to store some of it: a list of Sends. Its entries follow those of the one before.

        Those who are muted get nothing: it would not count, and whoever takes their place is sent it. If nobody lives to see
        that, recovery finds that they end where they failed, and not a gap behind which they go on.
        """
        return self.push(batch)

    def release(self):
        """Let go of the batches that have all their copies."""
        self.let_go()

    def _send(self, EntryBatch batch, int index, /):
        """To the bookie at a place in the ensemble, what it is to store: a Send; None: nothing."""
        raise NotImplementedError

    cdef list push(self, EntryBatch batch):
        cdef AckTracker tracker = self.tracker
        cdef Py_ssize_t index, size = tracker.ensemble_size
        cdef list sends = []
        cdef tuple request
        if tracker.push(batch.last) < 0:
            tracker.pushed(batch.last)  # says why not
        self.batches.append(batch)
        self.pending_bytes += batch.nbytes
        if size == tracker.write_quorum:  # every bookie stores all of it: they are asked the same
            request = self.asked(batch)
            for index in range(size):
                if tracker.muted >> index & 1:
                    continue
                part = Part.__new__(Part, tracker, index, batch.first, batch.last)
                sends.append(make_send(self.ensemble[index], request, part))
            return sends
        for index in range(size):
            send = None if tracker.muted >> index & 1 else self._send(batch, index)
            if send is not None:
                sends.append(send)
        return sends

    cdef tuple asked(self, EntryBatch batch):
        """A request for all of it."""
        cdef int size = self.tracker.ensemble_size
        cdef object records = batch.records
        if not batch.is_alone():
            records = gather(records, batch.offsets, batch.first, 0, size, size)
        return named(self.request, (
            KIND_ADD, self.ledger, batch.first, batch.last, self.key, self._flags, 0, 1, 1, records
        ))

    cdef int let_go(self) except -1:
        cdef int64_t settled = self.tracker.settled()
        while self.batches and (<EntryBatch?>self.batches[0]).last < settled:
            self.pending_bytes -= (<EntryBatch>self.batches.popleft()).nbytes
        self.tracker.released = settled
        return 0
