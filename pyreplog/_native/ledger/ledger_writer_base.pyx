"""The part of a ledger's writer that runs for every append: numbers, encodes and sends entries, and confirms them in
order. `pyreplog.ledger.protocol.writer` has the rest, and the rules.

Threads: one LedgerWriterBase belongs to one thread at a time.
"""

from collections import deque

from libc.stdint cimport int64_t

from pyreplog._native.ledger.pending_adds_base cimport EntryBatch, PendingAddsBase, whole
from pyreplog._native.ledger_log.entries cimport Entries, encode
from pyreplog._native.log.future cimport AppendFuture
from pyreplog._native.machines.effects cimport Settle

from pyreplog.errors import LedgerClosedError


cdef class LedgerWriterBase:
    """`LedgerWriterBase(push, entry_bytes_max)`: base of LedgerWriter, which has `_cut` and `_store_closed`.

    error: the error that ended the writer. _storing: metadata on their way to the store. _change: the current ensemble
    change, or an empty dict. _closing: whether the ledger is closed once all entries are stored. _futures: (last entry,
    future), ascending. last_append: the future of the last append, or None. _confirmed_length, _confirmed_messages: bytes and messages of the confirmed entries. _sent_lac: the
    highest LAC that bookies were told. time_us: the highest append time so far; 0: no entry was pushed.
    """

    def __init__(self, PendingAddsBase push not None, int64_t entry_bytes_max):
        self._push, self.entry_bytes_max = push, entry_bytes_max
        self._futures, self.totals, self._change = deque(), deque(), {}
        self._sent_lac = -1

    # ---- where it stands

    @property
    def last_add_pushed(self):
        return self._push.tracker.lap

    @property
    def last_add_confirmed(self):
        return self._push.tracker.confirmed

    @property
    def pending_bytes(self):
        """Encoded bytes of the entries that lack copies."""
        return self._push.pending_bytes

    @property
    def pending_entries(self):
        return self.outstanding()

    def has_room(self, double nbytes, double entries, /):
        """Whether fewer bytes and entries than these lack copies, or the writer has ended."""
        return self.room(nbytes, entries)

    @property
    def has_lac_to_tell(self):
        """Whether the LAC is above the one that bookies were told."""
        return self.lags()

    @property
    def is_idle(self):
        """Whether all entries have all their copies, and no metadata are being stored."""
        return not self._push.batches and self._storing is None

    cdef bint room(self, double nbytes, double entries) noexcept:
        return self.error is not None or (self._push.pending_bytes < nbytes and self.outstanding() < entries)

    cdef bint lags(self) noexcept:
        return self._push.tracker.confirmed > self._sent_lac and self.error is None

    cdef int64_t outstanding(self) noexcept:
        return self._push.tracker.lap + 1 - self._push.tracker.settled()

    # ---- appending

    def append(self, values, keys, event_times, *, int64_t time_us, messages=None, attributes=None):
        """Number, encode and send entries; return (future, effects).

        The future gives the numbers of the entries, a range, once they are confirmed. messages, attributes: as `encode_entries`.
        time_us: the current time, microseconds since 1970. Raises as `encode_entries` (nothing was appended), and the error
        that ended the writer.
        """
        return self.begin(values, keys, event_times, time_us, messages, attributes)

    cdef tuple begin(self, values, keys, event_times, int64_t time_us, messages, attributes):
        cdef Entries entries
        cdef int64_t first = self._push.tracker.lap + 1, lac = self._push.tracker.confirmed
        if self.error is not None:
            raise self.error
        if self._closing:
            raise LedgerClosedError(self._push.ledger, "is being closed")
        self.time_us = max(self.time_us, time_us)  # append times never go back, even if the clock does
        entries = encode(values, keys, event_times, self._push.ledger, first, lac, self.time_us, self.length,
                         self.messages, self.entry_bytes_max, messages, attributes)
        cdef AppendFuture future = AppendFuture(range(first, first + entries.count))
        if not entries.count:
            future.publish(future.value, None)
            return future, []
        self.length, self.messages = entries.ledger_bytes, entries.ledger_messages
        self._sent_lac = max(self._sent_lac, lac)
        self._futures.append((first + entries.count - 1, future))
        self.last_append = future
        if <int64_t>entries.starts[entries.count] <= self._push.batch_bytes:
            return future, self.send(whole(entries), entries)
        sends = []
        for batch in self._cut(entries):
            sends += self.send(batch, entries)
        return future, sends

    def _cut(self, entries, /):
        """Cut entries into EntryBatches that can be sent."""
        raise NotImplementedError

    cdef list send(self, EntryBatch batch, Entries entries):
        self.totals.append((batch.last, *entries.totals(batch.last)))
        return self._push.push(batch)

    # ---- confirming

    def acked(self):
        """Handle OKs of bookies that the tracker has noted."""
        return self._confirm() if self.error is None else []

    def _confirm(self):
        """Complete, in order, the appends that have their ack quorum; release batches that have all copies.

        Does neither during an ensemble change, which will withdraw acks. Returns effects.
        """
        cdef int64_t lac
        cdef list effects = [], done = []
        if self._storing is not None and self._change:
            return []
        self._push.let_go()
        lac = self._push.tracker.confirm_complete()
        while self._futures and <int64_t>self._futures[0][0] <= lac:
            done.append((self._futures.popleft()[1], None))
        while self.totals and <int64_t>self.totals[0][0] <= lac:
            _, self._confirmed_length, self._confirmed_messages = self.totals.popleft()
        if done:
            effects.append(Settle(done))
        if self._closing and self.is_idle:
            effects += self._store_closed()
        return effects

    def _store_closed(self):
        raise NotImplementedError
