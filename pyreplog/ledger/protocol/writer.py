"""The writer of a ledger, as a state machine: pipelined adds, LAC in order, ensemble changes, close.

Rules and their sources (classes are BookKeeper's): acks complete strictly in order (PendingAddOp); an ensemble change
is stored in the metadata first, then acks are withdrawn, then entries sent again, then acks completed once
(LedgerHandle.ensembleChangeLoop, with #4097 and #1591 left out); failures that arrive meanwhile are handled by another
turn; late failures of replaced bookies are ignored (#4459); a fenced or unauthorized writer ends at once.

When no other bookie can take the place of one that failed, and every write set has an ack quorum without it, the
writer goes on degraded (BookKeeper ends the ledger): it notes durably which bookie will lack copies, then lets go of
what has all the others, and looks for a replacement again after a while, or when bookies register. The bookie itself
may take up its place again, once it answers: its gap is noted.
"""

from __future__ import annotations

import random as _random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from pyreplog._native.ledger.ledger_writer_base import LedgerWriterBase
from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledgerlog.entries import Entries
from pyreplog._native.machines.effects import Send, Settle
from pyreplog._native.quorum.acktracker import Part
from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.errors import (
    InvalidMetadataError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReplogError,
)
from pyreplog.future import Outcome
from pyreplog.ledger.ledgermetadata import LedgerMetadata, State
from pyreplog.ledger.protocol.effects import BadCopy, Degraded, Effect, Finished, Load, Store, Suspect, Wake
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX, PendingAdds, batches_of
from pyreplog.ledger.protocol.terminal_errors import NOT_OURS, error_text, is_foreign_key, terminal_error
from pyreplog.net.backoff import Backoff

RETRY_METADATA_S = 0.5
RETRY_CHANGE_S = 0.5
RETRY_CHANGE_MOST_S = 30.0
"""A degraded writer looks for bookies again after RETRY_CHANGE_S, and after up to so long when that fails."""
CHURN_MAX = 3
"""So many times in a row a place is taken at once by bookies that store nothing; then the writer waits a little."""

ANOTHER_WRITER = "somebody else changed its ensemble"

Choose = Callable[[LedgerMetadata, Sequence[int], Set[str], bool], Mapping[int, str]]
"""(ledger, places of its last ensemble that others are to take, bookies not to choose, whether a bookie that failed
lately is better than none) -> a bookie for each place; for the first ones if bookies are too few. See `placement`."""


class _Retry(NamedTuple):
    """A Wake to look for bookies again; only the latest one counts."""

    number: int


class _Probe(NamedTuple):
    """A request to the bookie that failed at a place: whether it answers again."""

    place: int


class LedgerWriter(LedgerWriterBase):
    """Appends to one open ledger. Methods return effects, to be carried out in their order.

    delay_ensemble_change: keep a failed bookie's place while every entry can still reach Qa without it.
    entry_bytes_max: of one encoded entry. random: a number from 0 to 1, for the delays between attempts.
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
        random: Callable[[], float] = _random.random,
    ) -> None:
        super().__init__(PendingAdds(metadata, 0, key), entry_bytes_max)
        self.metadata, self._version = metadata, version
        self.key = key
        self._choose, self._delay = choose, delay_ensemble_change
        self._lacking: tuple[BadCopy, ...] = ()  # in what is being stored
        self._failed: dict[int, str] = {}  # ensemble index -> who failed there, and why; its place not taken yet
        self._urgent = False  # a failed bookie's place cannot wait
        self._churn: Counter[int] = Counter()  # place -> how often it was taken since anybody there stored anything
        self._resting = False
        self._backoff = Backoff(RETRY_CHANGE_S, RETRY_CHANGE_MOST_S, random)
        self._retries = 0  # Wakes for a retry so far
        self._retry: _Retry | None = None  # the one that is awaited
        self._noted: set[str] = set()  # bookies of which the metadata store knows that they lack copies
        self._told = Degraded()

    @property
    def degraded(self) -> tuple[str, ...]:
        """Bookies that failed, that no other replaces, and that nobody waits for."""
        tracker = self._push.tracker
        return tuple(self._push.ensemble[index] for index in sorted(self._failed) if tracker.is_excused(index))

    @property
    def last_batch(self) -> EntryBatch | None:
        return self._push.batches[-1] if self._push.batches else None

    def _cut(self, entries: Entries) -> Iterable[EntryBatch]:
        return batches_of(entries.first, entries.view, entries.offsets, entries)

    def tell_lac(self) -> list[Effect]:
        """Nothing was appended for a while: tell the bookies what the last entries could not yet (explicit LAC)."""
        lac = self.last_add_confirmed
        if not self.has_lac_to_tell:
            return []
        self._told_lac = lac
        request = Request(RequestKind.SET_LAC, self.metadata.ledger, 0, lac, self._push.key)
        return [Send(bookie, request) for bookie in self._push.ensemble]

    # ---- answers of bookies ---------------------------------------------------------------------------------

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self.error is None and isinstance(send.about, _Probe):
            return self._probed(send.bookie, send.about.place, reply)
        if self.error is not None or not self._push.is_current(send):
            return []
        if reply.status != ReplyStatus.OK and not is_foreign_key(self.metadata, self.key, reply):
            refused = terminal_error(self.metadata.ledger, send.bookie, reply)
            if refused is not None:
                return self._end(refused)
        if send.about.place in self._failed:  # its acks are about to be withdrawn
            return []
        if reply.status == ReplyStatus.READ_ONLY:
            self._urgent = True
        if reply.status != ReplyStatus.OK or not self._push.acknowledged(send, reply):
            return self._missed(send, error_text(reply))
        return self._confirm()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        """A bookie did not answer in time, or is not there."""
        if self.error is None and isinstance(send.about, _Probe):
            return [Suspect(send.bookie)]
        if self.error is not None or not self._push.is_current(send):
            return []  # BookKeeper began a change that changed nothing, and its writer hung (#4459)
        return self._missed(send, str(error))

    def _missed(self, send: Send, why: str) -> list[Effect]:
        part: Part = send.about
        if part.place in self._failed:
            return self._change_ensemble()
        if self._push.tracker.heard(part.place):
            self._backoff.reset()
        self._failed[part.place] = f"{send.bookie}: {why}"
        self._push.tracker.mute(part.place)
        return [Suspect(send.bookie), *self._change_ensemble()]

    # ---- ensemble change ------------------------------------------------------------------------------------

    def hurry(self) -> list[Effect]:
        """Somebody waits for room: a change of the ensemble is not delayed any longer."""
        self._urgent = self._urgent or bool(self._failed)
        return self._change_ensemble()

    def reconsider(self) -> list[Effect]:
        """Bookies came, went, or say something else of themselves: look at once for some that failed."""
        return self._look_again() if self._retry is not None else []

    def _change_ensemble(self) -> list[Effect]:
        if self.error is not None or self._storing is not None or self._resting:
            return []
        if not self._failed or self._may_wait():
            return []
        tracker = self._push.tracker
        if self._retry is not None and all(tracker.is_excused(index) for index in self._failed):
            return []
        for index in [index for index in self._churn if tracker.heard(index)]:
            del self._churn[index]
        starts = {i: self._push.since(i) for i in sorted(self._failed) if self._churn[i] < CHURN_MAX}
        chosen = self._choose_for(starts)
        if not self._push.keeps_quorums(self._failed.keys() - chosen.keys()):
            chosen = self._choose_for(starts, last_resort=True)
        if not self._push.keeps_quorums(self._failed.keys() - chosen.keys()):
            return self._cannot_go_on(len(chosen), may_churn=len(starts) < len(self._failed))
        if not chosen:
            return self._go_without()
        self._change = {index: (bookie, self._push.since(index)) for index, bookie in chosen.items()}
        return self._store(self.metadata.replace_bookies(self._change))

    def _choose_for(
        self, starts: Mapping[int, int], *, but: Set[str] = frozenset(), last_resort: bool = False
    ) -> Mapping[int, str]:
        """Bookies to take places from these entries on; those of `but` may take the places that they have."""
        if not starts:
            return {}
        taken = self.metadata.bookies(min(starts.values())) - but
        return self._choose(self.metadata, self._by_need(starts), taken, last_resort)

    def _by_need(self, places: Iterable[int]) -> list[int]:
        """Sort places that failed: those first without which write sets lack most."""
        failed, left = set(self._failed), sorted(places)
        ordered: list[int] = []
        while left:
            ordered.append(min(left, key=lambda index: self._missing(failed - {index})))
            left.remove(ordered[-1])
            failed.remove(ordered[-1])
        return ordered

    def _missing(self, places: Set[int]) -> int:
        """How many of these places are in the write set that has most of them."""
        size = self.metadata.ensemble_size
        windows = [range(start, start + self.metadata.write_quorum) for start in range(size)]
        return max(len([at for at in window if at % size in places]) for window in windows)

    def _may_wait(self) -> bool:
        """Whether the change is delayed: every write set keeps an ack quorum without the failed bookies."""
        if not self._delay or self._urgent or self._closing or self._told.bookies:
            return False
        keeps: bool = self._push.keeps_quorums(self._failed.keys())
        return keeps

    def _cannot_go_on(self, chosen: int, *, may_churn: bool) -> list[Effect]:
        """Too few bookies are left for entries to be confirmed. may_churn: places were taken too often in a row."""
        if may_churn:
            self._resting = True
            return [Wake(RETRY_CHANGE_S, "change")]
        ledger, size = self.metadata.ledger, self.metadata.ensemble_size
        why = "; ".join(sorted(self._failed.values()))
        return self._end(
            NotEnoughBookiesError(
                f"ledger {ledger}: {len(self._failed)} of its {size} bookies failed ({why}), {chosen} can take a place"
            )
        )

    def _changed(self) -> list[Effect]:
        """The change is in the metadata: from now on it holds; or the note of who will lack copies is."""
        self._noted.difference_update(self._push.ensemble[index] for index in self._change)  # of the places they had
        sends = self._push.replace(self._change)
        for index in self._change:
            del self._failed[index]
            self._churn[index] += 1
        self._urgent = self._urgent and not self._change
        self._change = {}
        return [*sends, *self._tell_degraded(), *self._confirm(), *self._change_ensemble()]

    # ---- degraded -------------------------------------------------------------------------------------------

    def _go_without(self) -> list[Effect]:
        """No bookie can take a place, and entries are confirmed all the same. Nobody waits for the copies of those who
        failed once it is noted that they lack them."""
        tracker, ensemble = self._push.tracker, self._push.ensemble
        news = [index for index in sorted(self._failed) if ensemble[index] not in self._noted]
        if news:
            return self._store(self.metadata, [BadCopy(ensemble[index], tracker.awaited(index)) for index in news])
        for index in self._failed:
            tracker.excuse(index)
        self._urgent = False
        self._retries += 1
        self._retry = _Retry(self._retries)
        return [*self._tell_degraded(), *self._confirm(), Wake(self._backoff.next_s(), self._retry)]

    def _tell_degraded(self) -> list[Effect]:
        """Who is missing, if that is news."""
        self._retry = self._retry if self._failed else None
        bookies = self.degraded
        if bookies == self._told.bookies:
            return []
        self._told = Degraded(bookies, "; ".join(sorted(self._failed.values())) if bookies else "")
        return [self._told]

    def _look_again(self) -> list[Effect]:
        """Look for bookies to take the places of those that failed, and whether those themselves answer again."""
        self._retry = None
        self._churn.clear()
        effects = self._change_ensemble()
        if self.error is not None or self._storing is not None:
            return effects
        tracker, ensemble = self._push.tracker, self._push.ensemble
        away = {ensemble[index]: index for index in self._failed if tracker.is_excused(index)}
        own = self._choose_for({index: self._push.since(index) for index in away.values()}, but=away.keys())
        request = Request(RequestKind.LAST, self.metadata.ledger, key=self._push.key)
        return [*effects, *(Send(bookie, request, _Probe(away[bookie])) for bookie in own.values() if bookie in away)]

    def _probed(self, bookie: str, place: int, reply: Reply) -> list[Effect]:
        """The bookie that failed at a place answers: it takes it up again, from the first entry that is still here."""
        tracker = self._push.tracker
        if reply.status != ReplyStatus.OK or self._storing is not None or self._push.ensemble[place] != bookie:
            return []
        if place not in self._failed or not tracker.is_excused(place):
            return []
        since = self._push.since(place)
        del self._failed[place]
        return [*self._push.replace({place: (bookie, since)}), *self._tell_degraded()]

    # ---- metadata -------------------------------------------------------------------------------------------

    def _store(self, wanted: LedgerMetadata, lacking: Iterable[BadCopy] = ()) -> list[Effect]:
        self._storing, self._lacking = wanted, tuple(copy.within(wanted) for copy in lacking)
        return [Store(wanted, self._version, self._lacking)]

    def stored(self, version: int) -> list[Effect]:
        if self._storing is None:  # fenced meanwhile
            return []
        self.metadata, self._version, self._storing = self._storing, version, None
        self._noted.update(copy.bookie for copy in self._lacking)
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
        if found.state is State.OPEN and found.last_fragment == wanted.last_fragment:
            if self._lacking:  # old fragments were edited; whether anything was noted is unknown
                return self._store(found, self._lacking)
            self._storing = found  # stored, and edited since
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
        if isinstance(about, _Retry):
            return self._look_again() if about == self._retry else []
        return [Load()] if self._storing is not None else []

    def loaded(self, found: LedgerMetadata, version: int) -> list[Effect]:
        """After an unknown outcome: what is there is what was wanted, or it is a conflict, or nothing was done."""
        if self._storing is None:
            return []
        if version == self._version:
            return [Store(self._storing, version, self._lacking)]
        if found == self._storing:
            return self.stored(version)
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
        effects = self._change_ensemble()
        return [*effects, *self._store_closed()] if self.error is None and self.is_idle else effects

    def give_up(self, error: ReplogError) -> list[Effect]:
        """Close at the last confirmed entry; what is not confirmed fails with `error`, its outcome unknown."""
        return self._end(error) if self.error is None else []

    def abandon(self, error: ReplogError) -> list[Effect]:
        """The handle is gone: nothing more is done, and whoever still waits is told."""
        self.error = self.error or error
        pending: list[Outcome] = [(future, self.error) for _, future in self._futures]
        self._futures.clear()
        self._storing = None
        return [Settle(pending)] if pending else []

    def _store_closed(self) -> list[Effect]:
        lac = self.last_add_confirmed
        closed = self.metadata.closed(lac, self._confirmed_length, self._confirmed_messages)
        return self._store(closed, self._push.lacking(lac))

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
        pending: list[Outcome] = [(future, self.error) for _, future in self._futures]
        self._futures.clear()
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
