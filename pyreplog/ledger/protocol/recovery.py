"""Recovers a ledger whose writer is gone: fences it, finds its end, writes entries back, closes it. A state machine.

1. Set the state IN_RECOVERY in the metadata.
2. Fence the bookies of the last fragment.
3. Go on when the fenced bookies cover the ensemble.
4. Read entries from the highest LAC on.
5. Write these entries back, in order.
6. Close the ledger at the last one.

The numbers are those of docs/ledgers.md. Several clients may recover a ledger at once: one compare-and-set closes it,
so that all agree on its end. (BookKeeper: ReadOnlyLedgerHandle.recover, ReadLastConfirmedOp, LedgerRecoveryOp.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import write_set
from pyreplog.bookie.protocol import READ_BYTES_MAX, Flag, Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import (
    InvalidMetadataError,
    InvalidRecordsError,
    LedgerError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReplogError,
    UnauthorizedError,
    UnreadableError,
)
from pyreplog.ledger.ledger_metadata import Change, LedgerMetadata, State
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished, Load, QuarantineBookie, Store, Wake
from pyreplog.ledger.protocol.entry_range import EntryRange, totals
from pyreplog.ledger.protocol.fence_replies import FenceReplies
from pyreplog.ledger.protocol.pending_adds import PendingAdds, batches_of
from pyreplog.ledger.protocol.terminal_errors import is_foreign_key
from pyreplog.ledger.protocol.writer import RETRY_METADATA_S, Choose

BATCH_ENTRIES = 256
PATIENCE_S = 0.5
"""Seconds to wait for silent bookies before the ledger is closed without them; their copies are noted for repair."""
FOUND_BYTES_MAX = 16 << 20
"""Reading pauses while so many bytes of a range were read, or wait to be written back; replies on their way may double
it."""


class _Step(Enum):
    MARK = auto()
    FENCE = auto()
    READ = auto()
    WRITE = auto()
    CLOSE = auto()
    DONE = auto()


class _Fence(NamedTuple):
    place: int


class _StripeRead(NamedTuple):
    """A READ of the entries of [start, end) that one bookie stores. round: number of the range."""

    place: int
    start: int
    end: int
    round: int


class _LengthRead(NamedTuple):
    """A READ of an entry, from which the length of the ledger up to it is known. rank: of the replica; 0 is the
    first."""

    entry: int
    rank: int


class LedgerRecovery:
    """Recovers one ledger.

    Ends with `Finished(metadata)` of the closed ledger, or with `Finished(error=...)`: the ledger is still in recovery
    then, and another attempt may succeed.

    Args:
        metadata: metadata of the ledger.
        version: their version in the store.
        key: key of the ledger.
        choose: chooses bookies that replace failed ones.
        force: entries that bookies in limbo do not have count as never written. The bookies are fenced; entries that
            only they confirmed are lost. If the last entry of the ledger cannot be read, the length up to the last
            readable entry is used.
        batch_entries: number of entries of a range that is read at once.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        key: bytes,
        choose: Choose,
        *,
        force: bool = False,
        batch_entries: int = BATCH_ENTRIES,
    ) -> None:
        self.metadata, self._version, self._key = metadata, version, key
        self._choose, self._force, self._batch_entries = choose, force, batch_entries
        self._step = _Step.MARK
        self._storing: LedgerMetadata | None = None
        self._lacking: tuple[BadCopy, ...] = ()  # notes that are stored before the metadata in `_storing`
        self._used: set[str] = set()  # bookies that have, or had, a place in the ensemble; none gets a second one
        self._round = 0  # number of the current range

    def start(self) -> list[Effect]:
        if self.metadata.state is State.CLOSED:
            return self._done()
        if self.metadata.state is State.OPEN:
            return self._store(self.metadata.in_recovery())
        return self._fence()

    # ---- 1: metadata ----------------------------------------------------------------------------------------

    def _store(self, metadata: LedgerMetadata, lacking: Iterable[BadCopy] = ()) -> list[Effect]:
        self._storing, self._lacking = metadata, tuple(copy.within(metadata) for copy in lacking)
        return [Store(metadata, self._version, self._lacking)]

    def stored(self, version: int) -> list[Effect]:
        if self._storing is None:  # recovery failed meanwhile
            return []
        self.metadata, self._version, self._storing = self._storing, version, None
        return self._done() if self.metadata.state is State.CLOSED else self._fence()

    def conflicted(self, current: LedgerMetadata, version: int) -> list[Effect]:
        storing, self._storing = self._storing, None
        if storing is None:
            return []
        previous, self.metadata, self._version = self.metadata, current, version
        if current.state is State.CLOSED:  # its writer or another recovery has closed it, and decided its end
            return self._done()
        if storing.state is not State.CLOSED:
            return self.start()
        if current.state is not State.IN_RECOVERY or current.last_fragment != previous.last_fragment:
            return self._fail(UnreadableError(current.ledger, "its last fragment was changed during recovery"))
        return self._close()  # only older fragments were changed: keep these changes

    def store_unknown(self) -> list[Effect]:
        return [Wake(RETRY_METADATA_S, "metadata")]

    def woken(self, about: object) -> list[Effect]:
        if about == "silent":
            self._awaits_silent = False
            return self._maybe_close()
        return [Load()] if self._storing is not None and about == "metadata" else []

    def loaded(self, current: LedgerMetadata, version: int) -> list[Effect]:
        if self._storing is None:
            return []
        if current == self._storing:
            return self.stored(version)
        if version == self._version:
            return [Store(self._storing, version, self._lacking)]
        return self.conflicted(current, version)

    def deleted(self) -> list[Effect]:
        error = NoSuchLedgerError(self.metadata.ledger, "was deleted")
        return self._fail(error) if self._storing is not None else []

    def garbled(self, error: InvalidMetadataError) -> list[Effect]:
        return self._fail(error)

    # ---- 2, 3: fence ----------------------------------------------------------------------------------------

    def _fence(self) -> list[Effect]:
        self._step = _Step.FENCE
        self._fences, self._awaits_silent = FenceReplies(self.metadata), True
        request = Request(RequestKind.LAST, self.metadata.ledger, key=self._key, flags=Flag.FENCE)
        ensemble = enumerate(self.metadata.last_fragment.ensemble)
        return [*(Send(bookie, request, _Fence(place)) for place, bookie in ensemble), Wake(PATIENCE_S, "silent")]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self._step is _Step.DONE:
            return []
        if reply.status == ReplyStatus.LIMBO and self._force:
            reply = _without_limbo(send.request, reply)
        if is_foreign_key(self.metadata, self._key, reply):
            reply = reply._replace(status=ReplyStatus.UNKNOWN)
        if reply.status == ReplyStatus.UNAUTHORIZED:
            return self._fail(UnauthorizedError(self.metadata.ledger, f"bookie {send.bookie} refuses the password"))
        if isinstance(send.about, _Fence):
            return self._fenced(send.about.place, reply)
        if isinstance(send.about, _StripeRead):
            return self._stripe_read(send, send.about, reply)
        if isinstance(send.about, _LengthRead):
            return self._length_read(send, send.about, reply)
        return self._written(send, reply)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self.replied(send, Reply(ReplyStatus.UNKNOWN, self.metadata.ledger, body=str(error).encode()))

    def _fenced(self, place: int, reply: Reply) -> list[Effect]:
        fences = self._fences
        fences.note_reply(place, reply)
        if self._step is _Step.FENCE and fences.cover:
            return self._begin_reading(self._read_behind())
        if self._step is _Step.FENCE and fences.refusal_reason is not None:
            return self._fail(UnreadableError(self.metadata.ledger, fences.refusal_reason))
        if self._step in (_Step.READ, _Step.WRITE) and self._read_behind() < self._push.tracker.first - 1:
            return self._begin_reading(self._read_behind())  # a bookie that answered late lags behind the others
        return self._maybe_close()

    # ---- 4: read on -----------------------------------------------------------------------------------------

    def _read_behind(self) -> int:
        """Return the entry before the first one to be read; by force, all entries of the last fragment are read."""
        return self.metadata.last_fragment.first - 1 if self._force else self._fences.start()

    def _begin_reading(self, start: int) -> list[Effect]:
        self._step = _Step.READ
        self._ensemble = self.metadata.last_fragment.ensemble  # reads ask these bookies, also after `_replace`
        self._push = PendingAdds(self.metadata, start + 1, self._key, recovery=True)
        self._changes: list[Change] = []  # ensemble changes that are not stored yet
        self._used.update(self._ensemble)
        self._written_from = start + 1
        self._next = start + 1  # the first entry that is not decided yet
        self._length = self._messages = -1
        return self._read_range()

    def _read_range(self) -> list[Effect]:
        """Read the next range of entries from all bookies that store some of it."""
        start, end = self._next, self._next + self._batch_entries
        self._round += 1
        self._entry_range = EntryRange(self.metadata, start, end)
        places = self._entry_range.places
        return [self._read(self._ensemble[place], _StripeRead(place, start, end, self._round)) for place in places]

    def _read(self, bookie: str, read: _StripeRead) -> Send:
        """Read with a fence: "not here" counts only from a bookie that accepts no entry later (BookKeeper #2614)."""
        request = Request(
            RequestKind.READ, self.metadata.ledger, read.start, read.end - 1, self._key, Flag.FENCE, READ_BYTES_MAX
        )
        return Send(bookie, request, read)

    def _stripe_read(self, send: Send, read: _StripeRead, reply: Reply) -> list[Effect]:
        entry_range = self._entry_range
        if self._step is not _Step.READ or read.round != self._round or read.start >= entry_range.end:
            return []
        effects: list[Effect] = []
        stop = read.start  # the reply tells which entries of [read.start, stop) the bookie has
        if reply.status == ReplyStatus.OK and read.start <= reply.last + 1 and reply.first == read.start:
            stop = min(reply.last + 1, entry_range.end)
            bad = entry_range.take(read.place, read.start, stop, reply.body, read.end - 1)
            effects += [] if bad is None else [BadCopy(send.bookie, bad)]
        if read.start < stop < entry_range.end and entry_range.nbytes >= FOUND_BYTES_MAX:
            entry_range.cut(stop)
        elif read.start < stop < entry_range.end:
            effects.append(self._read(send.bookie, read._replace(start=stop)))
        elif stop < entry_range.end:
            entry_range.add_response(read.place, stop, entry_range.end, None)
        return [*effects, *self._decide()]

    def _decide(self) -> list[Effect]:
        """Decide, in ascending order, which entries the ledger has, as far as the replies suffice."""
        entry_range = self._entry_range
        entry = entry_range.start
        while entry < entry_range.end:
            if entry in entry_range.copies:
                entry += 1
            elif entry_range.absent[entry] >= self._absent_quorum(entry):
                return [*self._write_back(entry_range.start, entry), *self._end_reading()]
            elif entry_range.has_all_responses(entry):
                return self._undecided(entry)
            else:
                return []
        effects = self._write_back(entry_range.start, entry_range.end)
        self._next = entry_range.end
        self._round += 1
        return [*effects, *self._read_next_range()]

    def _read_next_range(self) -> list[Effect]:
        """Read the next range, once few enough entries wait to be written back."""
        if self._step is not _Step.READ or self._next < self._entry_range.end:
            return []
        return self._read_range() if self._push.pending_bytes < FOUND_BYTES_MAX else []

    def _absent_quorum(self, entry: int) -> int:
        """Return how many bookies must answer that they do not have an entry, so that it cannot have reached Qa.

        A confirmed entry exists, whatever they answer; by force, it exists if a silent bookie may have it.
        """
        copies = self.metadata.write_quorum
        if entry <= self._fences.lac:
            return copies if self._force else copies + 1
        return copies - self.metadata.ack_quorum + 1

    def _undecided(self, entry: int) -> list[Effect]:
        """Handle an entry that no bookie returns, and too few deny: fail, unless it is confirmed and lacks copies."""
        if entry <= self._fences.lac and not self._force:
            return self._begin_reading(self._fences.lac)
        absent, copies = self._entry_range.absent[entry], self.metadata.write_quorum
        replies = f"{absent} of {copies} bookies do not have it, the others do not know"
        return self._fail(UnreadableError(self.metadata.ledger, f"whether entry {entry} exists is unknown: {replies}"))

    # ---- 5: write back --------------------------------------------------------------------------------------

    def _write_back(self, start: int, end: int) -> list[Effect]:
        """Write entries [start, end), with the bytes that were read, to the current ensemble."""
        if start >= end:
            return []
        raws = [self._entry_range.copies[entry] for entry in range(start, end)]
        offsets = array("q", accumulate((len(raw) for raw in raws), initial=0))
        self._length, self._messages = totals(raws[-1], self.metadata.ledger, end - 1)
        batches = batches_of(start, b"".join(raws), offsets)
        return [send for batch in batches for send in self._push.add(batch)]

    def _end_reading(self) -> list[Effect]:
        self._step = _Step.WRITE
        return self._maybe_close()

    def _written(self, send: Send, reply: Reply) -> list[Effect]:
        if not self._push.is_current(send) or send.about.tracker is not self._push.tracker:
            return []
        if reply.status == ReplyStatus.OK and self._push.acknowledged(send, reply):
            return self.acked()
        return self._replace(send.about.place)

    def acked(self) -> list[Effect]:
        """Handle acknowledgements that the tracker has noted."""
        if self._step is _Step.DONE:
            return []
        self._push.tracker.confirm()
        self._push.release()
        return [*self._read_next_range(), *self._maybe_close()]

    def _replace(self, index: int) -> list[Effect]:
        """Replace a bookie that failed while entries are written back; the metadata change only when the ledger closes.

        If the metadata named the new bookie earlier, another recovery would ask it, get the answer that it has no
        entries, and truncate the ledger (BOOKKEEPER-355).
        """
        if self._push.tracker.is_excused(index):
            return []
        suspect = QuarantineBookie(self._push.ensemble[index])
        without = {index, *filter(self._push.tracker.is_excused, range(self.metadata.ensemble_size))}
        can_do_without = self._push.keeps_quorums(without)
        chosen = self._choose(self._changed_metadata(), [index], self._used, not can_do_without)
        if not chosen and not can_do_without:
            error = f"ledger {self.metadata.ledger}: no bookie can replace {suspect.bookie} in its recovery"
            return self._fail(NotEnoughBookiesError(error))
        if not chosen:  # close the ledger without the copies of this bookie, which are noted for repair
            self._push.tracker.mute(index)
            self._push.tracker.excuse(index)
            return [suspect, *self.acked()]
        self._used.update(chosen.values())
        change: Change = {place: (bookie, self._push.since(place)) for place, bookie in chosen.items()}
        self._changes.append(change)
        return [suspect, *self._push.replace(change)]

    # ---- 6: close -------------------------------------------------------------------------------------------

    def _maybe_close(self) -> list[Effect]:
        """Close once all entries have all their copies, and silent bookies have answered or timed out."""
        if self._step is not _Step.WRITE or self._push.batches:
            return []
        if self._fences.awaited(self._push.tracker.first - 1) and self._awaits_silent:
            return []
        self._step = _Step.CLOSE
        if self._length < 0 and self._last >= 0:
            return self._read_length(_LengthRead(self._last, 0))
        self._length, self._messages = max(self._length, 0), max(self._messages, 0)
        return self._close()

    @property
    def _last(self) -> int:
        return self._push.tracker.lap

    def _read_length(self, about: _LengthRead) -> list[Effect]:
        """Read the last entry to get the length of the ledger, because no entry above the LAC was written back."""
        meta, (entry, rank) = self.metadata, about
        replicas = write_set(entry, meta.ensemble_size, meta.write_quorum)
        if rank < len(replicas):
            bookie = meta.fragment_of(entry).ensemble[replicas[rank]]
            return [Send(bookie, Request(RequestKind.READ, meta.ledger, entry, entry, self._key, limit=1), about)]
        if not self._force:
            return self._fail(
                UnreadableError(
                    meta.ledger,
                    f"its last entry, {entry}, cannot be read; if no copy of it will come back, a recovery by force "
                    "closes the ledger with the length up to the last entry that can be read",
                )
            )
        if entry:
            return self._read_length(_LengthRead(entry - 1, 0))
        self._length = self._messages = 0
        return self._close()

    def _length_read(self, send: Send, about: _LengthRead, reply: Reply) -> list[Effect]:
        if self._step is not _Step.CLOSE or self._storing is not None:
            return []
        another = about._replace(rank=about.rank + 1)
        try:
            if reply.status != ReplyStatus.OK or not len(reply.body):
                return self._read_length(another)
            self._length, self._messages = totals(reply.body, self.metadata.ledger, about.entry)
        except InvalidRecordsError:
            return [BadCopy(send.bookie, about.entry), *self._read_length(another)]
        return self._close()

    def _close(self) -> list[Effect]:
        closed = self._changed_metadata().closed(self._last, self._length, self._messages)
        unsure = list(self._fences.unsure_copies(closed, self._written_from))
        unsure_bookies = {copy.bookie for copy in unsure}
        given_up = [copy for copy in self._push.lacking(self._last) if copy.bookie not in unsure_bookies]
        return self._store(closed, [*unsure, *given_up])

    def _changed_metadata(self) -> LedgerMetadata:
        """Return the metadata with the ensemble changes of this recovery, which are not stored yet."""
        metadata = self.metadata
        for change in self._changes:
            metadata = metadata.replace_bookies(change)
        return metadata

    def _done(self) -> list[Effect]:
        self._step = _Step.DONE
        return [Finished(self.metadata)]

    def _fail(self, error: ReplogError | LedgerError) -> list[Effect]:
        self._step, self._storing = _Step.DONE, None
        return [Finished(error=error)]


def _without_limbo(request: Request, reply: Reply) -> Reply:
    """Return the reply that a bookie in limbo would give if it had lost nothing."""
    if request.kind == RequestKind.READ:  # the bookie gives its entries up to the first one that it does not have
        return reply._replace(status=ReplyStatus.OK, last=request.first, body=b"")
    return reply._replace(status=ReplyStatus.OK)
