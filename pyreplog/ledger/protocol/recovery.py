"""Recovery of a ledger whose writer is gone: fence, find the end, write back, close. A state machine.

(BookKeeper: ReadOnlyLedgerHandle.recover, ReadLastConfirmedOp, LedgerRecoveryOp; the numbers of the steps are those of
docs/ledgers.md. Several may recover one ledger at once: all agree on the end, by one closing compare-and-set.)

1. metadata says IN_RECOVERY           3. proceed when the ensemble is covered    5. write them back, in order
2. fence the last fragment's bookies   4. read on from the highest LAC            6. close at the last one
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
from pyreplog.ledger.ledgermetadata import Change, LedgerMetadata, State
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished, Load, Store, Suspect, Wake
from pyreplog.ledger.protocol.entry_range import EntryRange, totals
from pyreplog.ledger.protocol.fence_replies import FenceReplies
from pyreplog.ledger.protocol.pending_adds import PendingAdds, batches_of
from pyreplog.ledger.protocol.terminal_errors import is_foreign_key
from pyreplog.ledger.protocol.writer import RETRY_METADATA_S, Choose

BATCH_ENTRIES = 256
PATIENCE_S = 0.5
"""Bookies that do not answer are waited for so long before the ledger is closed; then their copies are for repair."""
FOUND_BYTES_MAX = 16 << 20
"""With so much found, or found and not written back, no more is read; what is on its way may double it."""


class _Step(Enum):
    MARK = auto()
    FENCE = auto()
    READ = auto()
    WRITE = auto()
    CLOSE = auto()
    DONE = auto()


class _Fence(NamedTuple):
    place: int


class _Look(NamedTuple):
    """A read of entries [start, end), those of one bookie, in this turn."""

    place: int
    start: int
    end: int
    turn: int


class _Total(NamedTuple):
    """A read of the last entry, for the ledger's length, from the replica of this rank."""

    rank: int


class LedgerRecovery:
    """Recover one ledger; ends with `Finished(metadata)`, the closed ledger's, or with `Finished(error=...)`: it is
    still in recovery then, and whoever tries again may succeed.

    force: what bookies in limbo do not have counts as never written. Their fences hold; entries that were confirmed by
    them alone are lost.
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
        self._lacking: tuple[BadCopy, ...] = ()  # in what is being stored
        self._used: set[str] = set()  # who has, or had, a place in the ensemble: nobody gets a second one
        self._turn = 0  # of the ranges

    def start(self) -> list[Effect]:
        if self.metadata.state is State.CLOSED:
            return self._done()
        if self.metadata.state is State.OPEN:
            return self._store(self.metadata.in_recovery())
        return self._fence()

    # ---- 1: metadata ----------------------------------------------------------------------------------------

    def _store(self, wanted: LedgerMetadata, lacking: Iterable[BadCopy] = ()) -> list[Effect]:
        self._storing, self._lacking = wanted, tuple(copy.within(wanted) for copy in lacking)
        return [Store(wanted, self._version, self._lacking)]

    def stored(self, version: int) -> list[Effect]:
        if self._storing is None:  # it failed meanwhile
            return []
        self.metadata, self._version, self._storing = self._storing, version, None
        return self._done() if self.metadata.state is State.CLOSED else self._fence()

    def conflicted(self, found: LedgerMetadata, version: int) -> list[Effect]:
        wanted, self._storing = self._storing, None
        if wanted is None:
            return []
        before, self.metadata, self._version = self.metadata, found, version
        if found.state is State.CLOSED:  # by its writer, or by another recoverer: that is the end then
            return self._done()
        if wanted.state is not State.CLOSED:
            return self.start()
        if found.state is not State.IN_RECOVERY or found.last_fragment != before.last_fragment:
            return self._fail(UnreadableError(found.ledger, "its last fragment was changed while it was recovered"))
        return self._close()  # older fragments were edited: their edits stay

    def store_unknown(self) -> list[Effect]:
        return [Wake(RETRY_METADATA_S, "metadata")]

    def woken(self, about: object) -> list[Effect]:
        if about == "silent":
            self._is_patient = False
            return self._maybe_close()
        return [Load()] if self._storing is not None and about == "metadata" else []

    def loaded(self, found: LedgerMetadata, version: int) -> list[Effect]:
        if self._storing is None:
            return []
        if found == self._storing:
            return self.stored(version)
        if version == self._version:
            return [Store(self._storing, version, self._lacking)]
        return self.conflicted(found, version)

    def deleted(self) -> list[Effect]:
        gone = NoSuchLedgerError(self.metadata.ledger, "was deleted")
        return self._fail(gone) if self._storing is not None else []

    def garbled(self, error: InvalidMetadataError) -> list[Effect]:
        return self._fail(error)

    # ---- 2, 3: fence ----------------------------------------------------------------------------------------

    def _fence(self) -> list[Effect]:
        self._step = _Step.FENCE
        self._fences, self._is_patient = FenceReplies(self.metadata), True
        request = Request(RequestKind.LAST, self.metadata.ledger, key=self._key, flags=Flag.FENCE)
        ensemble = enumerate(self.metadata.last_fragment.ensemble)
        return [*(Send(bookie, request, _Fence(at)) for at, bookie in ensemble), Wake(PATIENCE_S, "silent")]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self._step is _Step.DONE:
            return []
        if reply.status == ReplyStatus.LIMBO and self._force:
            reply = _despite_limbo(send.request, reply)
        if is_foreign_key(self.metadata, self._key, reply):
            reply = reply._replace(status=ReplyStatus.UNKNOWN)
        if reply.status == ReplyStatus.UNAUTHORIZED:
            return self._fail(UnauthorizedError(self.metadata.ledger, f"{send.bookie} refuses its password"))
        if isinstance(send.about, _Fence):
            return self._fenced(send.about.place, reply)
        if isinstance(send.about, _Look):
            return self._looked(send, send.about, reply)
        if isinstance(send.about, _Total):
            return self._totalled(send, send.about, reply)
        return self._written(send, reply)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self.replied(send, Reply(ReplyStatus.UNKNOWN, self.metadata.ledger, body=str(error).encode()))

    def _fenced(self, place: int, reply: Reply) -> list[Effect]:
        fences = self._fences
        fences.hear(place, reply)
        if self._step is _Step.FENCE and fences.cover:
            return self._begin_reading(self._start())
        if self._step is _Step.FENCE and fences.why_not is not None:
            return self._fail(UnreadableError(self.metadata.ledger, fences.why_not))
        if self._step in (_Step.READ, _Step.WRITE) and self._start() < self._push.tracker.first - 1:
            return self._begin_reading(self._start())  # it answers late, and lags
        return self._maybe_close()

    # ---- 4: read on -----------------------------------------------------------------------------------------

    def _start(self) -> int:
        """The entry before those that are read. By force all are that may be lost."""
        return self.metadata.last_fragment.first - 1 if self._force else self._fences.start()

    def _begin_reading(self, start: int) -> list[Effect]:
        self._step = _Step.READ
        self._ensemble = self.metadata.last_fragment.ensemble  # of the snapshot: reads never follow our own changes
        self._push = PendingAdds(self.metadata, start + 1, self._key, recovery=True)
        self._changes: list[Change] = []  # of the ensemble, so far known here alone
        self._used.update(self._ensemble)
        self._written_from = start + 1
        self._next = start + 1  # the first entry whose fate is not decided
        self._length = self._messages = -1
        return self._look()

    def _look(self) -> list[Effect]:
        """Ask for the next range of entries everybody who would hold some of it."""
        start, end = self._next, self._next + self._batch_entries
        self._turn += 1
        self._entry_range = EntryRange(self.metadata, start, end)
        return [self._read(self._ensemble[at], _Look(at, start, end, self._turn)) for at in self._entry_range.places]

    def _read(self, bookie: str, look: _Look) -> Send:
        """Every read fences, too: an answer "not here" counts only from who will not take it later (#2614)."""
        request = Request(
            RequestKind.READ, self.metadata.ledger, look.start, look.end - 1, self._key, Flag.FENCE, READ_BYTES_MAX
        )
        return Send(bookie, request, look)

    def _looked(self, send: Send, look: _Look, reply: Reply) -> list[Effect]:
        entry_range = self._entry_range
        if self._step is not _Step.READ or look.turn != self._turn or look.start >= entry_range.end:
            return []
        effects: list[Effect] = []
        known = look.start  # all of [look.start, known) is decided by this answer
        if reply.status == ReplyStatus.OK and look.start <= reply.last + 1 and reply.first == look.start:
            known = min(reply.last + 1, entry_range.end)
            bad = entry_range.take(look.place, look.start, known, reply.body, look.end - 1)
            effects += [] if bad is None else [BadCopy(send.bookie, bad)]
        if look.start < known < entry_range.end and entry_range.nbytes >= FOUND_BYTES_MAX:
            entry_range.cut(known)
        elif look.start < known < entry_range.end:
            effects.append(self._read(send.bookie, look._replace(start=known)))
        elif known < entry_range.end:
            entry_range.hear(look.place, known, entry_range.end, None)
        return [*effects, *self._decide()]

    def _decide(self) -> list[Effect]:
        """Go as far as the fate of entries is known, in order."""
        entry_range = self._entry_range
        at = entry_range.start
        while at < entry_range.end:
            if at in entry_range.found:
                at += 1
            elif entry_range.absent[at] >= self._absent_enough(at):
                return [*self._write_back(entry_range.start, at), *self._end_reading()]
            elif entry_range.is_heard(at):
                return self._undecided(at)
            else:
                return []
        effects = self._write_back(entry_range.start, entry_range.end)
        self._next = entry_range.end
        self._turn += 1
        return [*effects, *self._read_on()]

    def _read_on(self) -> list[Effect]:
        """The next range, once enough of what was found is written back."""
        if self._step is not _Step.READ or self._next < self._entry_range.end:
            return []
        return self._look() if self._push.pending_bytes < FOUND_BYTES_MAX else []

    def _absent_enough(self, entry: int) -> int:
        """So many bookies have to say that they do not have an entry: then it cannot have reached Qa. One that was
        confirmed is there, whatever they say; by force, if one that is silent may have kept it."""
        copies = self.metadata.write_quorum
        if entry <= self._fences.lac:
            return copies if self._force else copies + 1
        return copies - self.metadata.ack_quorum + 1

    def _undecided(self, entry: int) -> list[Effect]:
        """Nobody has it, and too few are sure. A confirmed one is in the ledger all the same: it lacks copies."""
        if entry <= self._fences.lac and not self._force:
            return self._begin_reading(self._fences.lac)
        said = (
            f"{self._entry_range.absent[entry]} of {self.metadata.write_quorum} bookies say no, the others do not tell"
        )
        return self._fail(UnreadableError(self.metadata.ledger, f"whether entry {entry} exists is unknown: {said}"))

    # ---- 5: write back --------------------------------------------------------------------------------------

    def _write_back(self, start: int, end: int) -> list[Effect]:
        """Entries [start, end) as they were found, to the ensemble of now."""
        if start >= end:
            return []
        raws = [self._entry_range.found[entry] for entry in range(start, end)]
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
        """Bookies have acknowledged Parts, as the tracker knows."""
        if self._step is _Step.DONE:
            return []
        self._push.tracker.confirm()
        self._push.release()
        return [*self._read_on(), *self._maybe_close()]

    def _replace(self, index: int) -> list[Effect]:
        """A bookie fails while entries are written back: another takes its place, here and nowhere else.

        Were it in the metadata already, another recoverer would ask it, hear that it has nothing, and cut the ledger
        (BOOKKEEPER-355).
        """
        if self._push.tracker.is_excused(index):
            return []
        suspect = Suspect(self._push.ensemble[index])
        without = {index, *filter(self._push.tracker.is_excused, range(self.metadata.ensemble_size))}
        can_do_without = self._push.keeps_quorums(without)
        chosen = self._choose(self._changed(), [index], self._used, not can_do_without)
        if not chosen and not can_do_without:
            error = f"ledger {self.metadata.ledger}: nobody can take the place of {suspect.bookie} in its recovery"
            return self._fail(NotEnoughBookiesError(error))
        if not chosen:  # what is found is closed without the copies there, which are noted for repair
            self._push.tracker.mute(index)
            self._push.tracker.excuse(index)
            return [suspect, *self.acked()]
        self._used.update(chosen.values())
        change: Change = {place: (bookie, self._push.since(place)) for place, bookie in chosen.items()}
        self._changes.append(change)
        return [suspect, *self._push.replace(change)]

    # ---- 6: close -------------------------------------------------------------------------------------------

    def _maybe_close(self) -> list[Effect]:
        """When everything found has all its copies, and those who would hold some of the rest have said what they have,
        or had their time."""
        if self._step is not _Step.WRITE or self._push.batches:
            return []
        if self._fences.awaited(self._push.tracker.first - 1) and self._is_patient:
            return []
        self._step = _Step.CLOSE
        if self._length < 0 and self._last >= 0:
            return self._ask_total(0)
        self._length, self._messages = max(self._length, 0), max(self._messages, 0)
        return self._close()

    @property
    def _last(self) -> int:
        return self._push.tracker.lap

    def _ask_total(self, rank: int) -> list[Effect]:
        """Nothing lay behind the LAC: the length of the ledger is in the entry at it."""
        meta = self.metadata
        replicas = write_set(self._last, meta.ensemble_size, meta.write_quorum)
        if rank == len(replicas):
            return self._fail(UnreadableError(meta.ledger, f"its last entry, {self._last}, cannot be read"))
        bookie = meta.fragment_of(self._last).ensemble[replicas[rank]]
        return [
            Send(
                bookie, Request(RequestKind.READ, meta.ledger, self._last, self._last, self._key, limit=1), _Total(rank)
            )
        ]

    def _totalled(self, send: Send, about: _Total, reply: Reply) -> list[Effect]:
        if self._step is not _Step.CLOSE or self._storing is not None:
            return []
        try:
            if reply.status != ReplyStatus.OK or not len(reply.body):
                return self._ask_total(about.rank + 1)
            self._length, self._messages = totals(reply.body, self.metadata.ledger, self._last)
        except InvalidRecordsError:
            return [BadCopy(send.bookie, self._last), *self._ask_total(about.rank + 1)]
        return self._close()

    def _close(self) -> list[Effect]:
        closed = self._changed().closed(self._last, self._length, self._messages)
        unsure = list(self._fences.unsure(closed, self._written_from))
        known = {copy.bookie for copy in unsure}
        given_up = [copy for copy in self._push.lacking(self._last) if copy.bookie not in known]
        return self._store(closed, [*unsure, *given_up])

    def _changed(self) -> LedgerMetadata:
        """The metadata with the changes of the ensemble that are known here alone."""
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


def _despite_limbo(request: Request, reply: Reply) -> Reply:
    """What a bookie in limbo would say if it had lost nothing."""
    if request.kind == RequestKind.READ:  # it gives what it has, up to the first that it has not
        return reply._replace(status=ReplyStatus.OK, last=request.first, body=b"")
    return reply._replace(status=ReplyStatus.OK)
