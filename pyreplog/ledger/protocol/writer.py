"""The writer of a ledger, as a state machine: pipelined adds, LAC in order, ensemble changes, close.

Rules and their sources (classes are BookKeeper's): acks complete strictly in order (PendingAddOp); an ensemble change
is stored in the metadata first, then acks are withdrawn, then entries sent again, then acks completed once
(LedgerHandle.ensembleChangeLoop, with #4097 and #1591 left out); failures that arrive meanwhile are handled by another
turn; late failures of replaced bookies are ignored (#4459); a fenced or unauthorized writer ends at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set

from pyreplog._native.ledger.pushing import Batch
from pyreplog._native.ledger.writing import Writing
from pyreplog._native.ledgerlog.entries import Entries
from pyreplog._native.machines.effects import Send, Settle
from pyreplog._native.quorum.acktracker import Part
from pyreplog.ack import Outcome
from pyreplog.bookie.protocol import Kind, Reply, Request, Status
from pyreplog.errors import (
    InvalidMetadataError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReplogError,
)
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished, Load, Store, Wake
from pyreplog.ledger.protocol.push import ENTRY_BYTES_MAX, Push, batches_of
from pyreplog.ledger.protocol.refusals import NOT_OURS, complaint, refusal

RETRY_METADATA_S = 0.5
RETRY_CHANGE_S = 0.5
CHURN_MAX = 3
"""So many times in a row a place is taken at once by bookies that store nothing; then the writer waits a little."""

ANOTHER_WRITER = "somebody else changed its ensemble"

Choose = Callable[[LedgerMetadata, int, Set[str]], list[str]]
"""(ledger, how many, bookies not to take) -> as many bookies as there are, at most so many; see `placement`."""


class LedgerWriter(Writing):
    """Appends to one open ledger. Methods return effects, to be carried out in their order.

    delay_ensemble_change: keep a failed bookie's place while every entry can still reach Qa without it.
    entry_bytes_max: of one encoded entry.
    """

    error: ReplogError | None
    _storing: LedgerMetadata | None

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        key: bytes,
        choose: Choose,
        *,
        delay_ensemble_change: bool = False,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        super().__init__(Push(metadata, 0, key), entry_bytes_max)
        self.metadata, self._version = metadata, version
        self.key = key
        self._choose, self._delay = choose, delay_ensemble_change
        self._lacking: tuple[BadCopy, ...] = ()  # in what is being stored
        self._failed: dict[int, str] = {}  # ensemble index -> who failed there, and why; its place not taken yet
        self._urgent = False  # a failed bookie's place cannot wait
        self._churn: Counter[int] = Counter()  # place -> how often it was taken since anybody there stored anything
        self._resting = False

    @property
    def last_batch(self) -> Batch | None:
        return self._push.batches[-1] if self._push.batches else None

    def _cut(self, entries: Entries) -> Iterable[Batch]:
        return batches_of(entries.first, entries.view, entries.offsets, entries)

    def tell_lac(self) -> list[Effect]:
        """Nothing was appended for a while: tell the bookies what the last entries could not yet (explicit LAC)."""
        lac = self.last_add_confirmed
        if not self.has_lac_to_tell:
            return []
        self._told_lac = lac
        request = Request(Kind.SET_LAC, self.metadata.ledger, 0, lac, self._push.key)
        return [Send(bookie, request) for bookie in self._push.ensemble]

    # ---- answers of bookies ---------------------------------------------------------------------------------

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self.error is not None or not self._push.is_current(send):
            return []
        if reply.status != Status.OK and (refused := refusal(self.metadata.ledger, send.bookie, reply)) is not None:
            return self._end(refused)
        if send.about.place in self._failed:  # its acks are about to be withdrawn
            return []
        if reply.status == Status.READ_ONLY:
            self._urgent = True
        if reply.status != Status.OK or not self._push.acknowledged(send, reply):
            return self._missed(send, complaint(reply))
        return self._confirm()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        """A bookie did not answer in time, or is not there."""
        if self.error is not None or not self._push.is_current(send):
            return []  # BookKeeper began a change that changed nothing, and its writer hung (#4459)
        return self._missed(send, str(error))

    def _missed(self, send: Send, why: str) -> list[Effect]:
        part: Part = send.about
        self._failed.setdefault(part.place, f"{send.bookie}: {why}")
        self._push.tracker.mute(part.place)
        return self._change_ensemble()

    # ---- ensemble change ------------------------------------------------------------------------------------

    def hurry(self) -> list[Effect]:
        """Somebody waits for room: a change of the ensemble is not delayed any longer."""
        self._urgent = self._urgent or bool(self._failed)
        return self._change_ensemble()

    def _change_ensemble(self) -> list[Effect]:
        if self.error is not None or self._storing is not None or self._resting:
            return []
        if not self._failed or self._may_wait():
            return []
        for index in [index for index in self._churn if self._push.tracker.heard(index)]:
            del self._churn[index]
        if max(self._churn[index] for index in self._failed) >= CHURN_MAX:
            self._resting = True
            return [Wake(RETRY_CHANGE_S, "change")]
        starts = {index: self._push.since(index) for index in self._failed}
        chosen = self._choose(self.metadata, len(starts), self.metadata.bookies(min(starts.values())))
        if len(chosen) < len(starts):
            return self._end(
                NotEnoughBookiesError(
                    f"ledger {self.metadata.ledger}: {len(starts)} of its {self.metadata.ensemble_size} bookies failed "
                    f"({'; '.join(sorted(self._failed.values()))}), {len(chosen)} can take a place"
                )
            )
        self._change = {index: (bookie, since) for (index, since), bookie in zip(starts.items(), chosen, strict=True)}
        return self._store(self.metadata.replace_bookies(self._change))

    def _may_wait(self) -> bool:
        """Whether the change is delayed: every write set keeps an ack quorum without the failed bookies."""
        if not self._delay or self._urgent or self._closing:
            return False
        size, spare = self.metadata.ensemble_size, self.metadata.write_quorum - self.metadata.ack_quorum
        windows = [range(start, start + self.metadata.write_quorum) for start in range(size)]
        return max(sum(at % size in self._failed for at in window) for window in windows) <= spare

    def _changed(self) -> list[Effect]:
        """The change is in the metadata: from now on it holds."""
        sends = self._push.replace(self._change)
        for index in self._change:
            del self._failed[index]
            self._churn[index] += 1
        self._change, self._urgent = {}, False
        return [*sends, *self._confirm(), *self._change_ensemble()]

    # ---- metadata -------------------------------------------------------------------------------------------

    def _store(self, wanted: LedgerMetadata, lacking: Iterable[BadCopy] = ()) -> list[Effect]:
        self._storing, self._lacking = wanted, tuple(lacking)
        return [Store(wanted, self._version, self._lacking)]

    def stored(self, version: int) -> list[Effect]:
        if self._storing is None:  # fenced meanwhile
            return []
        self.metadata, self._version, self._storing = self._storing, version, None
        if self.metadata.state is State.CLOSED:
            return self._finish()
        if self.error is None:
            return self._changed()
        self._push.replace(self._change)  # those who took a place lack what they would be sent now
        return self._store_closed_at_lac()

    def conflicted(self, found: LedgerMetadata, version: int) -> list[Effect]:
        """Somebody else changed the metadata: give in, or do it again on top of that."""
        wanted, self._storing = self._storing, None
        if wanted is None:
            return []
        before, self.metadata, self._version = self.metadata, found, version
        if wanted.state is State.CLOSED:
            return self._close_again(wanted, found, before)
        if found.state is State.OPEN and found.last_fragment == wanted.last_fragment:  # stored, and edited since
            self._storing = found
            return self.stored(version)
        self._change = {}
        if found.state is State.CLOSED:
            return self._end(
                LedgerClosedError(found.ledger, f"was closed by somebody else at entry {found.last_entry}")
            )
        if found.state is State.IN_RECOVERY:
            return self._end(LedgerFencedError(found.ledger, "somebody else is recovering it"))
        if found.last_fragment != before.last_fragment:
            return self._end(LedgerFencedError(found.ledger, ANOTHER_WRITER))
        if self.error is not None:
            return self._store_closed_at_lac()
        return [*self._confirm(), *self._change_ensemble()]  # old fragments were edited: their edits stay

    def store_unknown(self) -> list[Effect]:
        """Whether it was stored is unknown: look, a little later."""
        return [Wake(RETRY_METADATA_S, "metadata")]

    def woken(self, about: object) -> list[Effect]:
        if about == "change":
            self._resting = False
            self._churn.clear()
            return self._change_ensemble()
        return [Load()] if self._storing is not None else []

    def loaded(self, found: LedgerMetadata, version: int) -> list[Effect]:
        """After an unknown outcome: what is there is what was wanted, or it is a conflict, or nothing was done."""
        if self._storing is None:
            return []
        if found == self._storing:
            return self.stored(version)
        if version == self._version:
            return [Store(self._storing, version, self._lacking)]
        return self.conflicted(found, version)

    def deleted(self) -> list[Effect]:
        gone = NoSuchLedgerError(self.metadata.ledger, "was deleted")
        return self._end(gone) if self._storing is not None else []

    def garbled(self, error: InvalidMetadataError) -> list[Effect]:
        """What is there is no ledger's metadata: nobody writes over that."""
        return self._end(error) if self._storing is not None else []

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> list[Effect]:
        """Close the ledger once all entries have their copies. `Finished` says that it is, or why not; of one that has
        failed when what it stores by itself is stored. `give_up` does it at once, with what is confirmed.
        """
        if self.error is not None:
            return [] if self._storing is not None else [Finished(error=self.error)]
        self._closing = True
        return self._change_ensemble() or (self._store_closed() if self.is_idle else [])

    def give_up(self, error: ReplogError) -> list[Effect]:
        """Close at the last confirmed entry; what is not confirmed fails with `error`, its outcome unknown."""
        return self._end(error) if self.error is None else []

    def abandon(self, error: ReplogError) -> list[Effect]:
        """The handle is gone: nothing more is done, and whoever still waits is told."""
        self.error = self.error or error
        pending: list[Outcome] = [(ack, self.error) for _, ack in self._acks]
        self._acks.clear()
        self._storing = None
        return [Settle(pending)] if pending else []

    def _store_closed(self) -> list[Effect]:
        closed = self.metadata.closed(self.last_add_confirmed, self._confirmed_length, self._confirmed_messages)
        return self._store(closed)

    def _close_again(self, wanted: LedgerMetadata, found: LedgerMetadata, before: LedgerMetadata) -> list[Effect]:
        """Closing met another state. A recoverer has not told anybody an end yet while it says IN_RECOVERY."""
        ends = (wanted.last_entry, wanted.length)
        if found.state is not State.CLOSED:
            if found.last_fragment != before.last_fragment:
                return self._end(LedgerFencedError(found.ledger, ANOTHER_WRITER))
            return self._store(found.closed(*ends, wanted.messages), self._lacking)
        if (found.last_entry, found.length) == ends:
            return self._finish()
        self.error = self.error or LedgerClosedError(
            found.ledger, f"was closed by somebody else at entry {found.last_entry}, not {wanted.last_entry}"
        )
        return [Finished(error=self.error)]

    def _finish(self) -> list[Effect]:
        failure = self.error
        self.error = self.error or LedgerClosedError(self.metadata.ledger, "was closed")
        return [Finished(self.metadata, failure)]

    def _end(self, error: ReplogError) -> list[Effect]:
        """Nothing is appended or confirmed any more. Unless somebody else has the ledger now, it is closed as it is."""
        self.error = self.error or error
        pending: list[Outcome] = [(ack, self.error) for _, ack in self._acks]
        self._acks.clear()
        effects: list[Effect] = [Settle(pending)] if pending else []
        if isinstance(error, NOT_OURS):
            self._storing = None
            return [*effects, Finished(error=self.error)]
        if self._storing is not None:  # first its outcome, then the close
            return effects
        return [*effects, *self._store_closed_at_lac()]

    def _store_closed_at_lac(self) -> list[Effect]:
        """Confirmed entries may end in the middle of a batch."""
        lac = self.last_add_confirmed
        length, messages = self._confirmed_length, self._confirmed_messages
        for batch in self._push.batches:
            if batch.first <= lac < batch.last:
                length, messages = batch.about.totals(lac)
        return self._store(self.metadata.closed(lac, length, messages), self._push.lacking(lac))
