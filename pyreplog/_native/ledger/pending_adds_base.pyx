"""The part of PendingAdds that runs for every append: sends batches of encoded entries to the bookies of an ensemble, keeps
and releases them. `pyreplog.ledger.protocol.pending_adds` has the rest.
"""

cimport cython
from collections import deque

from libc.stdint cimport int64_t

from pyreplog._native.ledger_log.entries cimport Entries
from pyreplog._native.machines.effects cimport make_send
from pyreplog._native.machines.named cimport named
from pyreplog._native.net.request_head cimport KIND_ADD
from pyreplog._native.quorum.ack_tracker cimport AckTracker, Part

from pyreplog._native.quorum.stripe import gather


@cython.final
@cython.freelist(64)
cdef class EntryBatch:
    """Consecutive encoded entries, from `first` to `last`.

    `EntryBatch(first, last, records, offsets, nbytes, about=None)`. records: a buffer that may hold other records as well.
    offsets: of each record in it, and of the end of the last one: an array of int64 or uint32. nbytes: of these entries.
    """

    def __init__(self, int64_t first, int64_t last, records, offsets not None, int64_t nbytes, about=None):
        self.first, self.last, self.nbytes = first, last, nbytes
        self.records, self.starts, self.about = records, offsets, about

    @property
    def offsets(self):
        return self.about.offsets if self.starts is None else self.starts

    cdef bint is_alone(self) except -1:
        """Whether `records` holds only this batch."""
        return self.starts is None or memoryview(self.records).nbytes == self.nbytes


cdef EntryBatch whole(Entries entries):
    cdef EntryBatch batch = EntryBatch.__new__(EntryBatch)
    batch.first, batch.last = entries.first, entries.first + entries.count - 1
    batch.nbytes = entries.starts[entries.count]
    batch.records, batch.about = entries.view, entries
    return batch


cdef class PendingAddsBase:
    """`PendingAddsBase(ledger, key, flags, ensemble, tracker, request, batch_bytes)`: base of PendingAdds.

    The subclass makes the request for one bookie's part of a batch (`_send`). request: the type of requests, a named tuple.
    batch_bytes: greatest size of a request, unless it has one entry.

    batches: those with an entry that lacks copies, ascending. pending_bytes: their size.
    """

    def __init__(self, int64_t ledger, bytes key not None, int flags, list ensemble not None, AckTracker tracker not None,
                 type request not None, int64_t batch_bytes):
        self.ledger, self.key, self._flags, self.ensemble, self.tracker = ledger, key, flags, ensemble, tracker
        self.request, self.batches, self.batch_bytes = request, deque(), batch_bytes

    def add(self, EntryBatch batch not None, /):
        """Return the Sends of a batch, whose entries follow those of the batch before, to the bookies that store it.

        Muted bookies get nothing, because their acks would not count; a replacement is sent their part. If the writer dies
        before, recovery finds that their entries end where they failed, without a gap.
        """
        return self.push(batch)

    def release(self):
        """Release the batches that have all their copies."""
        self.let_go()

    def _send(self, EntryBatch batch, int index, /):
        """Return the Send of a batch's part to the bookie at a place; None: it stores none of the batch."""
        raise NotImplementedError

    cdef list push(self, EntryBatch batch):
        cdef AckTracker tracker = self.tracker
        cdef Py_ssize_t index, size = tracker.ensemble_size
        cdef list sends = []
        cdef tuple request
        if tracker.push(batch.last) < 0:
            tracker.pushed(batch.last)  # raises the error
        self.batches.append(batch)
        self.pending_bytes += batch.nbytes
        if size == tracker.write_quorum:  # every bookie stores the whole batch: one request for all
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
        """Make the request that adds a whole batch."""
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
