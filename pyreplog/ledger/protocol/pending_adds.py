"""Batches of encoded entries on their way to the bookies of an ensemble, and who has acknowledged what of them.

Shared by the ledger's writer and by recovery, which writes back what it finds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyreplog._native.ledger.pending_adds_base import EntryBatch, PendingAddsBase
from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.acktracker import AckTracker, Part
from pyreplog._native.quorum.quorum import coverage
from pyreplog._native.quorum.stripe import gather, members
from pyreplog.bookie.protocol import ADD, Flag, Reply, Request
from pyreplog.errors import OutOfRangeError
from pyreplog.ledger.ledgermetadata import Change, LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


ENTRY_BYTES_MAX = (4 << 20) - 4096
"""An encoded entry, with the head of a request, fits into the frames that bookies and clients take by default."""

BATCH_BYTES = 1 << 20
"""Entries are sent in requests of at most so many bytes, or of one entry."""


def batches_of(first: int, records: ReadableBuffer, offsets: Sequence[int], about: Any = None) -> Iterable[EntryBatch]:
    """Encoded entries from `first` on, as they are sent. offsets: a buffer of ints, as of `gather`."""
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
    """Entries from `first` on, sent to the ensemble of the metadata's last fragment.

    A batch is kept until all of its entries have all their copies (Qw), so that whoever takes a bookie's place can be
    sent what that one had not acknowledged. BookKeeper drops it at Qa, and entries stay there (#1390).
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
        """First and last entry of a batch that the bookie at `index` stores."""
        size, write_quorum = self.tracker.ensemble_size, self.tracker.write_quorum
        first, last = batch.first, batch.last
        if size != write_quorum:
            while (index - first) % size >= write_quorum:
                first += 1
            while (index - last) % size >= write_quorum:
                last -= 1
        return first, last

    def is_current(self, send: Send) -> bool:
        """Whether the bookie that a Send went to is still where it was; if not, nothing it says counts (#4459)."""
        part = send.about
        return isinstance(part, Part) and part.is_current and self.ensemble[part.place] == send.bookie

    def acknowledged(self, send: Send, reply: Reply) -> bool:
        """Note a bookie's OK. False: it speaks of entries that it was not asked to store."""
        part: Part = send.about
        if (reply.ledger, reply.first, reply.last) != (self.ledger, part.first, part.last):
            return False
        try:
            self.tracker.ack_range(part.place, part.first, part.last)
        except OutOfRangeError:  # more gaps than are kept track of: as good as no answer
            return False
        return True

    def keeps_quorums(self, places: Iterable[int]) -> bool:
        """Whether every write set has an ack quorum without these places: at most Qw - Qa of each are among them."""
        tracker = self.tracker
        spare = tracker.write_quorum - tracker.ack_quorum
        return coverage(tracker.ensemble_size, tracker.write_quorum, spare + 1, places)

    def lacking(self, lac: int) -> list[BadCopy]:
        """Of each bookie that has not acknowledged all of its entries up to `lac`, the first of those, for repair."""
        size, write_quorum = self.tracker.ensemble_size, self.tracker.write_quorum
        found = []
        for index, bookie in enumerate(self.ensemble):
            since = min(self.tracker.awaited(index), self.tracker.confirmed + 1)
            mine = members(index, since, max(min(since + size, lac + 1), since), size, write_quorum)
            found += [BadCopy(bookie, int(entry)) for entry in mine[:1]]
        return found

    def since(self, index: int) -> int:
        """From which entry on another bookie has to take the place of the one at `index`.

        Not above the first entry that it did not acknowledge: none stays at Qa copies. Not above LAC + 1: recovery
        takes all before the last fragment as confirmed. And no lower than that, which makes it safe. Let a copy count
        when the tracker says that its place awaits a higher entry. Then, for any number of changes of any places:

        - A counted copy is on the bookie that the metadata name for the entry at that place: a change is stored before
          it is made here, fragments below `since` keep their bookie, and the new one counts for nothing from there on.
        - A confirmed entry keeps Qa counted copies. If since = awaited, no counted copy is dropped at all; if it is
          LAC + 1, only copies of entries that are not confirmed are. So recovery finds each confirmed entry on at least
          Qa of the bookies it asks, though the new ones were sent nothing yet, and whatever LAC it starts from.
        - Nothing is confirmed, and no batch let go of, between the choice of `since` and the change here: both would
          rest on copies that are about to be dropped.

        Of a bookie that was excused some of what it did not acknowledge is not here any more: all of that is confirmed
        without it, and noted for repair, and the next one begins behind it. Again no counted copy is dropped.
        """
        tracker = self.tracker
        awaited = tracker.awaited(index)
        return min(max(awaited, tracker.released) if tracker.is_excused(index) else awaited, tracker.confirmed + 1)

    def replace(self, change: Change) -> list[Send]:
        """Others have taken places in the ensemble: first every ack of theirs is withdrawn, then they are sent what
        they are to hold (#4097: no entry may complete in between)."""
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
