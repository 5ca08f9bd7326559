"""Batches of encoded entries on their way to the bookies of an ensemble, and the acknowledgements of these bookies.

The writer of a ledger uses it, and recovery, which writes back the entries that it reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyreplog._native.ledger.pending_adds_base import EntryBatch, PendingAddsBase
from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.ack_tracker import AckTracker, Part
from pyreplog._native.quorum.quorum import coverage
from pyreplog._native.quorum.stripe import gather, members
from pyreplog.bookie.protocol import ADD, Flag, Reply, Request
from pyreplog.errors import OutOfRangeError
from pyreplog.ledger.ledger_metadata import Change, LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


ENTRY_BYTES_MAX = (4 << 20) - 4096
"""Size of the largest encoded entry that fits, with the head of a request, into a frame of the default size limit."""

BATCH_BYTES = 1 << 20
"""Most bytes of entries in a request; a larger entry is a request of its own."""


def batches_of(first: int, records: ReadableBuffer, offsets: Sequence[int], about: Any = None) -> Iterable[EntryBatch]:
    """Cut encoded entries from `first` on into batches that can be sent. offsets: a buffer of ints, as of `gather`."""
    nbytes = offsets[-1] - offsets[0]
    if nbytes > BATCH_BYTES:
        return _cut(first, records, offsets, about)
    return (EntryBatch(first, first + len(offsets) - 2, records, offsets, nbytes, about),)


def _cut(first: int, records: ReadableBuffer, offsets: Sequence[int], about: Any) -> Iterator[EntryBatch]:
    count = len(offsets) - 1
    start = 0
    while start < count:
        stop = max(bisect_right(offsets, offsets[start] + BATCH_BYTES) - 1, start + 1)
        part: Any = offsets[start : stop + 1]
        yield EntryBatch(first + start, first + stop - 1, records, part, offsets[stop] - offsets[start], about)
        start = stop


class PendingAdds(PendingAddsBase):
    """Sends entries from `first` on to the ensemble of the last fragment, and keeps them until they have all copies.

    A batch is kept until all of its entries have Qw copies, so that a bookie that replaces another one can be sent what
    that one had not acknowledged. BookKeeper drops a batch at Qa, and entries may stay at Qa copies (#1390).
    """

    def __init__(self, metadata: LedgerMetadata, first: int, key: bytes, *, recovery: bool = False) -> None:
        unsynced = metadata.durability == "appended"
        flags = int((Flag.RECOVERY if recovery else 0) | (Flag.UNSYNCED if unsynced else 0))
        tracker = AckTracker(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum, first)
        ensemble = list(metadata.last_fragment.ensemble)
        super().__init__(metadata.ledger, key, flags, ensemble, tracker, Request, BATCH_BYTES)

    def _send(self, batch: EntryBatch, index: int) -> Send | None:
        tracker = self.tracker
        records = gather(batch.records, batch.offsets, batch.first, index, tracker.ensemble_size, tracker.write_quorum)
        if not len(records):
            return None
        part = Part(tracker, index, *self._stripe(batch, index))
        request = Request(ADD, self.ledger, part.first, part.last, self.key, self._flags, records=records)
        return Send(self.ensemble[index], request, part)

    def _stripe(self, batch: EntryBatch, index: int) -> tuple[int, int]:
        """Return the first and the last entry of a batch that the bookie at `index` stores."""
        size, write_quorum = self.tracker.ensemble_size, self.tracker.write_quorum
        first, last = batch.first, batch.last
        if size != write_quorum:
            while (index - first) % size >= write_quorum:
                first += 1
            while (index - last) % size >= write_quorum:
                last -= 1
        return first, last

    def is_current(self, send: Send) -> bool:
        """Return whether the bookie of a Send still has its place; otherwise its reply is ignored (BookKeeper
        #4459)."""
        part = send.about
        return isinstance(part, Part) and part.is_current and self.ensemble[part.place] == send.bookie

    def acknowledged(self, send: Send, reply: Reply) -> bool:
        """Note the OK of a bookie; return False if the reply names other entries than the request did."""
        part: Part = send.about
        if (reply.ledger, reply.first, reply.last) != (self.ledger, part.first, part.last):
            return False
        try:
            self.tracker.ack_range(part.place, part.first, part.last)
        except OutOfRangeError:  # more gaps than the tracker keeps: treated as no answer
            return False
        return True

    def keeps_quorums(self, places: Iterable[int]) -> bool:
        """Return whether every write set has an ack quorum without these places: it has at most Qw - Qa of them."""
        tracker = self.tracker
        spare = tracker.write_quorum - tracker.ack_quorum
        return coverage(tracker.ensemble_size, tracker.write_quorum, spare + 1, places)

    def lacking(self, lac: int) -> list[BadCopy]:
        """Return, for repair, the first entry up to `lac` that each bookie has not acknowledged."""
        size, write_quorum = self.tracker.ensemble_size, self.tracker.write_quorum
        copies = []
        for index, bookie in enumerate(self.ensemble):
            since = min(self.tracker.awaited(index), self.tracker.confirmed + 1)
            entries = members(index, since, max(min(since + size, lac + 1), since), size, write_quorum)
            copies += [BadCopy(bookie, int(entry)) for entry in entries[:1]]
        return copies

    def since(self, index: int) -> int:
        """Return the entry from which on another bookie has to take the place of the one at `index`.

        `since` is not above the first entry that the old bookie did not acknowledge, so that no entry stays at Qa
        copies. It is not above LAC + 1, because recovery takes all entries before the last fragment as confirmed. It is
        the smaller of these two and no lower, which makes the change safe. A copy is *counted* if the tracker says that
        its place awaits a higher entry. Then, for any number of changes of any places:

        - A counted copy is on the bookie that the metadata name for the entry at that place: a change is stored before
          it is made here, fragments below `since` keep their bookie, and no copy of the new bookie is counted from
          `since` on.
        - A confirmed entry keeps Qa counted copies. If `since` is the awaited entry, no counted copy is dropped; if it
          is LAC + 1, only copies of unconfirmed entries are. So recovery finds each confirmed entry on at least Qa of
          the bookies that it asks, although the new ones were sent nothing yet, from whatever LAC it starts.
        - Nothing is confirmed, and no batch is released, between the choice of `since` and the change here: both would
          rely on copies that are about to be dropped.

        Some of the entries that an excused bookie did not acknowledge are released already. They are confirmed without
        it and noted for repair, and its replacement begins behind them. Again no counted copy is dropped.
        """
        tracker = self.tracker
        awaited = tracker.awaited(index)
        return min(max(awaited, tracker.released) if tracker.is_excused(index) else awaited, tracker.confirmed + 1)

    def replace(self, change: Change) -> list[Send]:
        """Put other bookies in places of the ensemble, and return the Sends of the entries that they have to store.

        All acks of these places are withdrawn first: no entry may complete in between (BookKeeper #4097).
        """
        for index, (bookie, since) in change.items():
            self.tracker.withdraw((index,), since)
            self.ensemble[index] = bookie
        return [send for index, (_, since) in change.items() for send in self._resend(index, since)]

    def _resend(self, index: int, since: int) -> Iterator[Send]:
        for batch in self.batches:
            if batch.last >= since:
                send = self._send(batch, index)
                if send is not None:
                    yield send
