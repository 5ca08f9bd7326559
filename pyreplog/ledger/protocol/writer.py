"""The writer of a ledger: pipelined adds, an LAC that moves in order, ensemble changes, close. A state machine.

The rules and their sources (classes and numbers are BookKeeper's):

- Appends complete strictly in order (PendingAddOp).
- An ensemble change is stored in the metadata first. Then acks are withdrawn, entries are sent again, and appends are
  completed, once (LedgerHandle.ensembleChangeLoop, without the bugs #4097 and #1591).
- Failures that arrive during a change are handled by the next change.
- Late failures of replaced bookies are ignored (#4459).
- A fenced or unauthorized writer ends at once.

When no other bookie can replace one that failed, and every write set has an ack quorum without it, the writer goes on
degraded, where BookKeeper ends the ledger. It notes durably which bookie will lack copies, then releases the entries
that have all their other copies. It looks for a replacement again after a while, or when bookies register. The bookie
itself may take its place again once it answers, because its gap is noted.

A member that works, and is to leave the ledger, is replaced by the same change (`replace_members`), also while nothing
is appended. When no bookie can take its place, it keeps it.
"""

from __future__ import annotations

import random as _random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from pyreplog._native.ledger.ledger_writer_base import LedgerWriterBase
from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledger_log.entries import Entries
from pyreplog._native.machines.effects import Send, Settle
from pyreplog._native.quorum.ack_tracker import Part
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
from pyreplog.ledger.ledger_metadata import LedgerMetadata, State
from pyreplog.ledger.protocol.effects import BadCopy, Degraded, Effect, Finished, Load, QuarantineBookie, Store, Wake
from pyreplog.ledger.protocol.pending_adds import ENTRY_BYTES_MAX, PendingAdds, batches_of
from pyreplog.ledger.protocol.terminal_errors import NOT_OURS, error_text, is_foreign_key, terminal_error
from pyreplog.net.backoff import Backoff

RETRY_METADATA_S = 0.5
RETRY_CHANGE_S = 0.5
RETRY_CHANGE_MOST_S = 30.0
"""Longest interval in which a degraded writer looks for bookies again; the first one is RETRY_CHANGE_S."""
CHURN_MAX = 3
"""The writer pauses after so many replacements in a row of bookies that stored no entry at a place."""

ANOTHER_WRITER = "another client changed its ensemble"

Choose = Callable[[LedgerMetadata, Sequence[int], Set[str], bool], Mapping[int, str]]
"""(ledger, places of its last ensemble that others are to take, bookies not to choose, whether a bookie that failed
lately is better than none) -> a bookie for each place; for the first ones if bookies are too few. See `placement`."""


class _Retry(NamedTuple):
    """The subject of a Wake to look for bookies again; only the latest one counts."""

    number: int


class _Probe(NamedTuple):
    """The subject of a request that asks the failed bookie of a place whether it answers again."""

    place: int


class LedgerWriter(LedgerWriterBase):
    """Appends to one open ledger. Methods return effects, which are carried out in their order.

    Args:
        metadata: metadata of the ledger.
        version: their version in the store.
        key: key of the ledger.
        choose: chooses bookies that replace others.
        delay_ensemble_change: keep the place of a failed bookie while every entry can reach Qa without it.
        entry_bytes_max: size of the largest encoded entry.
        random: returns a number from 0 to 1, which spreads the retries.
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
        self._lacking: tuple[BadCopy, ...] = ()  # notes that are stored before the metadata in `_storing`
        self._leaving: Sequence[str] = ()  # bookies to be replaced once no other change is under way
        self._failed: dict[int, str] = {}  # place -> its bookie that failed and was not replaced, and the reason
        self._urgent = False  # the ensemble change must not be delayed
        self._churn: Counter[int] = Counter()  # place -> replacements since a bookie there stored anything
        self._is_paused = False  # pauses after CHURN_MAX replacements, until a Wake
        self._backoff = Backoff(RETRY_CHANGE_S, RETRY_CHANGE_MOST_S, random)
        self._retries = 0  # number of Wakes for a retry
        self._retry: _Retry | None = None  # the latest Wake, while it is pending
        self._noted: set[str] = set()  # bookies whose missing copies are noted in the metadata store
        self._last_degraded = Degraded()  # the last one that was returned

    @property
    def degraded(self) -> tuple[str, ...]:
        """Bookies that failed, that no other bookie replaces, and without whose copies entries are released."""
        tracker = self._push.tracker
        return tuple(self._push.ensemble[index] for index in sorted(self._failed) if tracker.is_excused(index))

    @property
    def is_storing(self) -> bool:
        """Whether metadata are being stored. No entry is confirmed while they change the ensemble."""
        return self._storing is not None

    @property
    def last_batch(self) -> EntryBatch | None:
        return self._push.batches[-1] if self._push.batches else None

    def _cut(self, entries: Entries) -> Iterable[EntryBatch]:
        return batches_of(entries.first, entries.view, entries.offsets, entries)

    def send_lac(self) -> list[Effect]:
        """Send the bookies an LAC that no entry carried, because nothing was appended for a while (explicit LAC)."""
        lac = self.last_add_confirmed
        if not self.has_lac_to_tell:
            return []
        self._sent_lac = lac
        request = Request(RequestKind.SET_LAC, self.metadata.ledger, 0, lac, self._push.key)
        return [Send(bookie, request) for bookie in self._push.ensemble]

    # ---- replies of bookies ---------------------------------------------------------------------------------

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self.error is None and isinstance(send.about, _Probe):
            return self._probed(send.bookie, send.about.place, reply)
        if self.error is not None or not self._push.is_current(send):
            return []
        if reply.status != ReplyStatus.OK and not is_foreign_key(self.metadata, self.key, reply):
            error = terminal_error(self.metadata.ledger, send.bookie, reply)
            if error is not None:
                return self._end(error)
        if send.about.place in self._failed:  # its acks are about to be withdrawn
            return []
        if reply.status == ReplyStatus.READ_ONLY:
            self._urgent = True
        if reply.status != ReplyStatus.OK or not self._push.acknowledged(send, reply):
            return self._bookie_failed(send, error_text(reply))
        return self._confirm()

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        """Handle a request without a reply: the bookie did not answer in time, or cannot be reached."""
        if self.error is None and isinstance(send.about, _Probe):
            return [QuarantineBookie(send.bookie)]
        if self.error is not None or not self._push.is_current(send):
            return []  # BookKeeper began an empty change in this case, and its writer hung (#4459)
        return self._bookie_failed(send, str(error))

    def _bookie_failed(self, send: Send, reason: str) -> list[Effect]:
        part: Part = send.about
        if part.place in self._failed:
            return self._change_ensemble()
        if self._push.tracker.has_answered(part.place):
            self._backoff.reset()
        self._failed[part.place] = f"{send.bookie}: {reason}"
        self._push.tracker.mute(part.place)
        return [QuarantineBookie(send.bookie), *self._change_ensemble()]

    # ---- ensemble change ------------------------------------------------------------------------------------

    def change_ensemble_now(self) -> list[Effect]:
        """End the delay of an ensemble change, because an append waits for room."""
        self._urgent = self._urgent or bool(self._failed)
        return self._change_ensemble()

    def reconsider(self) -> list[Effect]:
        """Look for replacements at once, because registrations of bookies changed."""
        return self._retry_replacement() if self._retry is not None else []

    def replace_members(self, bookies: Sequence[str]) -> list[Effect]:
        """Have other bookies take the places of members that are to leave; the first ones come first.

        A member keeps its place if no bookie can take it. Call this again when bookies register, or when other members
        are to leave.
        """
        self._leaving = bookies
        return self._change_ensemble()

    def _change_ensemble(self) -> list[Effect]:
        if self.error is not None or self._storing is not None or self._is_paused:
            return []
        if self._failed and not self._may_delay_change() and not self._awaits_retry():
            return self._replace_failed()
        return self._replace_leaving()

    def _awaits_retry(self) -> bool:
        """Return whether the writer goes on without all the bookies that failed, and a retry is scheduled."""
        return self._retry is not None and all(self._push.tracker.is_excused(index) for index in self._failed)

    def _replace_failed(self) -> list[Effect]:
        tracker = self._push.tracker
        for index in [index for index in self._churn if tracker.has_answered(index)]:
            del self._churn[index]
        starts = {i: self._push.since(i) for i in sorted(self._failed) if self._churn[i] < CHURN_MAX}
        chosen = self._choose_for(starts)
        if not self._push.keeps_quorums(self._failed.keys() - chosen.keys()):
            chosen = self._choose_for(starts, last_resort=True)
        if not self._push.keeps_quorums(self._failed.keys() - chosen.keys()):
            return self._pause_or_end(len(chosen), may_churn=len(starts) < len(self._failed))
        return self._begin_change(chosen) if chosen else self._go_degraded()

    def _replace_leaving(self) -> list[Effect]:
        """Replace members that are to leave; unlike failed members, they may stay if no bookie takes their place."""
        ensemble = self._push.ensemble
        places = [ensemble.index(bookie) for bookie in self._leaving if bookie in ensemble]
        places = [index for index in places if index not in self._failed]
        chosen: Mapping[int, str] = {}
        if places and not self._closing:
            members = self.metadata.bookies(min(self._push.since(index) for index in places))
            chosen = self._choose(self.metadata, places, members.union(self._leaving), False)
        if not chosen:
            self._leaving = ()
            return []
        return self._begin_change(chosen)

    def _begin_change(self, chosen: Mapping[int, str]) -> list[Effect]:
        self._change = {index: (bookie, self._push.since(index)) for index, bookie in chosen.items()}
        return self._store(self.metadata.replace_bookies(self._change))

    def _choose_for(
        self, starts: Mapping[int, int], *, but: Set[str] = frozenset(), last_resort: bool = False
    ) -> Mapping[int, str]:
        """Choose bookies for places, each from an entry on; bookies in `but` may get the places that they have."""
        if not starts:
            return {}
        excluded = self.metadata.bookies(min(starts.values())) - but
        return self._choose(self.metadata, self._by_need(starts), excluded, last_resort)

    def _by_need(self, places: Iterable[int]) -> list[int]:
        """Sort the places of failed bookies: first those whose replacement restores most copies to the write set that
        lacks most."""
        failed, left = set(self._failed), sorted(places)
        ordered: list[int] = []
        while left:
            ordered.append(min(left, key=lambda index: self._missing(failed - {index})))
            left.remove(ordered[-1])
            failed.remove(ordered[-1])
        return ordered

    def _missing(self, places: Set[int]) -> int:
        """Return the largest number of these places in one write set."""
        size = self.metadata.ensemble_size
        windows = [range(start, start + self.metadata.write_quorum) for start in range(size)]
        return max(len([index for index in window if index % size in places]) for window in windows)

    def _may_delay_change(self) -> bool:
        """Return whether the change may be delayed: every write set keeps an ack quorum without the failed bookies."""
        if not self._delay or self._urgent or self._closing or self._last_degraded.bookies:
            return False
        keeps: bool = self._push.keeps_quorums(self._failed.keys())
        return keeps

    def _pause_or_end(self, chosen: int, *, may_churn: bool) -> list[Effect]:
        """End the writer, or pause it, because too few bookies are left for entries to be confirmed.

        may_churn: some places may change again after a pause, because they only changed too often in a row.
        """
        if may_churn:
            self._is_paused = True
            return [Wake(RETRY_CHANGE_S, "change")]
        ledger, size = self.metadata.ledger, self.metadata.ensemble_size
        reasons = "; ".join(sorted(self._failed.values()))
        return self._end(
            NotEnoughBookiesError(
                f"ledger {ledger}: {len(self._failed)} of its {size} bookies failed ({reasons}), {chosen} replacements"
                " were found"
            )
        )

    def _changed(self) -> list[Effect]:
        """Apply the change that was stored in the metadata; without a change, notes of missing copies were stored."""
        self._noted.difference_update(self._push.ensemble[index] for index in self._change)  # the replaced bookies
        sends = self._push.replace(self._change)
        for index in self._change:
            if self._failed.pop(index, None) is not None:
                self._churn[index] += 1
        self._urgent = self._urgent and not self._change
        self._change = {}
        return [*sends, *self._report_degraded(), *self._confirm(), *self._change_ensemble()]

    # ---- degraded -------------------------------------------------------------------------------------------

    def _go_degraded(self) -> list[Effect]:
        """Go on without the failed bookies, which no other bookie can replace; entries reach their ack quorum without
        them.

        Entries are released without their copies once the missing copies are noted.
        """
        tracker, ensemble = self._push.tracker, self._push.ensemble
        unnoted = [index for index in sorted(self._failed) if ensemble[index] not in self._noted]
        if unnoted:
            return self._store(self.metadata, [BadCopy(ensemble[index], tracker.awaited(index)) for index in unnoted])
        for index in self._failed:
            tracker.excuse(index)
        self._urgent = False
        self._retries += 1
        self._retry = _Retry(self._retries)
        return [*self._report_degraded(), *self._confirm(), Wake(self._backoff.next_s(), self._retry)]

    def _report_degraded(self) -> list[Effect]:
        """Return a Degraded if the bookies that the writer goes on without have changed."""
        self._retry = self._retry if self._failed else None
        bookies = self.degraded
        if bookies == self._last_degraded.bookies:
            return []
        self._last_degraded = Degraded(bookies, "; ".join(sorted(self._failed.values())) if bookies else "")
        return [self._last_degraded]

    def _retry_replacement(self) -> list[Effect]:
        """Look for bookies that replace the failed ones, and probe whether the failed ones answer again."""
        self._retry = None
        self._churn.clear()
        effects = self._change_ensemble()
        if self.error is not None or self._storing is not None:
            return effects
        tracker, ensemble = self._push.tracker, self._push.ensemble
        excused = {ensemble[index]: index for index in self._failed if tracker.is_excused(index)}
        chosen = self._choose_for({index: self._push.since(index) for index in excused.values()}, but=excused.keys())
        request = Request(RequestKind.LAST, self.metadata.ledger, key=self._push.key)
        return [
            *effects,
            *(Send(bookie, request, _Probe(excused[bookie])) for bookie in chosen.values() if bookie in excused),
        ]

    def _probed(self, bookie: str, place: int, reply: Reply) -> list[Effect]:
        """Give a bookie that answers again its place back, from the first entry on that was not released."""
        tracker = self._push.tracker
        if reply.status != ReplyStatus.OK or self._storing is not None or self._push.ensemble[place] != bookie:
            return []
        if place not in self._failed or not tracker.is_excused(place):
            return []
        since = self._push.since(place)
        del self._failed[place]
        return [*self._push.replace({place: (bookie, since)}), *self._report_degraded()]

    # ---- metadata -------------------------------------------------------------------------------------------

    def _store(self, metadata: LedgerMetadata, lacking: Iterable[BadCopy] = ()) -> list[Effect]:
        self._storing, self._lacking = metadata, tuple(copy.within(metadata) for copy in lacking)
        return [Store(metadata, self._version, self._lacking)]

    def stored(self, version: int) -> list[Effect]:
        if self._storing is None:  # the writer was fenced meanwhile
            return []
        self.metadata, self._version, self._storing = self._storing, version, None
        self._noted.update(copy.bookie for copy in self._lacking)
        if self.metadata.state is State.CLOSED:
            return self._finish()
        if self.error is None:
            return self._changed()
        self._push.replace(self._change)  # its Sends are dropped: the new bookies will lack these entries
        return self._store_closed_at_lac()

    def conflicted(self, current: LedgerMetadata, version: int) -> list[Effect]:
        """Handle metadata that another client changed: end the writer, or apply its own change on top."""
        storing, self._storing = self._storing, None
        if storing is None:
            return []
        previous, self.metadata, self._version = self.metadata, current, version
        if storing.state is State.CLOSED:
            return self._retry_close(storing, current, previous)
        if current.state is State.OPEN and current.last_fragment == storing.last_fragment:
            if self._lacking:  # older fragments were changed; whether the copies were noted is unknown
                return self._store(current, self._lacking)
            self._storing = current  # the change was stored, and older fragments were changed since
            return self.stored(version)
        self._change = {}
        if current.state is State.CLOSED:
            return self._end(
                LedgerClosedError(current.ledger, f"was closed by another client at entry {current.last_entry}")
            )
        if current.state is State.IN_RECOVERY:
            return self._end(LedgerFencedError(current.ledger, "another client is recovering it"))
        if current.last_fragment != previous.last_fragment:
            return self._end(LedgerFencedError(current.ledger, ANOTHER_WRITER))
        if self.error is not None:
            return self._store_closed_at_lac()
        return [*self._confirm(), *self._change_ensemble()]  # older fragments were changed: keep these changes

    def store_unknown(self) -> list[Effect]:
        """Load the metadata after a delay, because it is unknown whether they were stored."""
        return [Wake(RETRY_METADATA_S, "metadata")]

    def woken(self, about: object) -> list[Effect]:
        if about == "change":
            self._is_paused = False
            self._churn.clear()
            return self._change_ensemble()
        if isinstance(about, _Retry):
            return self._retry_replacement() if about == self._retry else []
        return [Load()] if self._storing is not None else []

    def loaded(self, current: LedgerMetadata, version: int) -> list[Effect]:
        """Resolve an unknown outcome: the metadata were not stored, were stored, or another client changed them."""
        if self._storing is None:
            return []
        if version == self._version:
            return [Store(self._storing, version, self._lacking)]
        if current == self._storing != self.metadata:
            return self.stored(version)
        return self.conflicted(current, version)  # other clients may write the same metadata again

    def deleted(self) -> list[Effect]:
        error = NoSuchLedgerError(self.metadata.ledger, "was deleted")
        return self._end(error) if self._storing is not None else []

    def garbled(self, error: InvalidMetadataError) -> list[Effect]:
        """End the writer; metadata that cannot be read are not overwritten."""
        return self._end(error) if self._storing is not None else []

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> list[Effect]:
        """Close the ledger once all entries have all their copies; `Finished` tells the outcome.

        A writer that has failed finishes when the metadata that it is storing are stored. `give_up` closes the ledger
        at once, at the last confirmed entry.
        """
        if self.error is not None:
            return [] if self._storing is not None else [Finished(error=self.error)]
        self._closing = True
        effects = self._change_ensemble()
        return [*effects, *self._store_closed()] if self.error is None and self.is_idle else effects

    def give_up(self, error: ReplogError) -> list[Effect]:
        """Close the ledger at the last confirmed entry; later entries fail with `error`, their outcome is unknown."""
        return self._end(error) if self.error is None else []

    def abandon(self, error: ReplogError) -> list[Effect]:
        """End the writer without closing the ledger, because its handle is gone; pending futures fail."""
        self.error = self.error or error
        pending: list[Outcome] = [(future, self.error) for _, future in self._futures]
        self._futures.clear()
        self._storing = None
        return [Settle(pending)] if pending else []

    def _store_closed(self) -> list[Effect]:
        lac = self.last_add_confirmed
        closed = self.metadata.closed(lac, self._confirmed_length, self._confirmed_messages)
        return self._store(closed, self._push.lacking(lac))

    def _retry_close(self, storing: LedgerMetadata, current: LedgerMetadata, previous: LedgerMetadata) -> list[Effect]:
        """Handle a conflict while closing the ledger.

        In the state IN_RECOVERY no end of the ledger was decided yet, so the writer may still close it.
        """
        ends = (storing.last_entry, storing.length)
        if current.state is not State.CLOSED:
            if current.last_fragment != previous.last_fragment:
                return self._end(LedgerFencedError(current.ledger, ANOTHER_WRITER))
            return self._store(current.closed(*ends, storing.messages), self._lacking)
        if (current.last_entry, current.length) == ends:
            return self._finish()
        self.error = self.error or LedgerClosedError(
            current.ledger, f"was closed by another client at entry {current.last_entry}, not {storing.last_entry}"
        )
        return [Finished(error=self.error)]

    def _finish(self) -> list[Effect]:
        failure = self.error
        self.error = self.error or LedgerClosedError(self.metadata.ledger, "was closed")
        return [Finished(self.metadata, failure)]

    def _end(self, error: ReplogError) -> list[Effect]:
        """End the writer: fail pending futures, and close the ledger, unless another client owns it after this error
        (NOT_OURS)."""
        self.error = self.error or error
        pending: list[Outcome] = [(future, self.error) for _, future in self._futures]
        self._futures.clear()
        effects: list[Effect] = [Settle(pending)] if pending else []
        if isinstance(error, NOT_OURS):
            self._storing = None
            return [*effects, Finished(error=self.error)]
        if self._storing is not None:  # `stored` closes the ledger once the outcome is known
            return effects
        return [*effects, *self._store_closed_at_lac()]

    def _store_closed_at_lac(self) -> list[Effect]:
        """Close the ledger at the LAC, which may lie in the middle of a batch."""
        lac = self.last_add_confirmed
        length, messages = self._confirmed_length, self._confirmed_messages
        for batch in self._push.batches:
            if batch.first <= lac < batch.last:
                length, messages = batch.about.totals(lac)
        return self._store(self.metadata.closed(lac, length, messages), self._push.lacking(lac))
