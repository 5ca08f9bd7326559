"""Recovery of a ledger whose writer is gone: fence, find the end, write back, close. A state machine.

(BookKeeper: ReadOnlyLedgerHandle.recover, ReadLastConfirmedOp, LedgerRecoveryOp; the numbers of the steps are those of
docs/ledgers.md. Several may recover one ledger at once: all agree on the end, by one closing compare-and-set.)

1. metadata says IN_RECOVERY           3. proceed when the ensemble is covered    5. write them back, in order
2. fence the last fragment's bookies   4. read on from the highest LAC            6. close at the last one
"""

from __future__ import annotations

from array import array
from enum import Enum, auto
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pyreplog._native.entries import parse_entries
from pyreplog._native.quorum import coverage, write_set
from pyreplog._native.stripe import members
from pyreplog.bookie.protocol import READ_BYTES_MAX, Flag, Kind, Reply, Request, Status
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
from pyreplog.ledger.effects import BadCopy, Effect, Finished, Load, Send, Store, Wake
from pyreplog.ledger.ledgermetadata import Change, LedgerMetadata, State
from pyreplog.ledger.push import Push, batches_of
from pyreplog.ledger.writer import RETRY_METADATA_S, Choose

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BATCH_ENTRIES = 256


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
    """A read of entries [first, last], those of one bookie."""

    place: int
    first: int
    last: int


class _Total(NamedTuple):
    """A read of the last entry, for the ledger's length, from the replica of this rank."""

    rank: int


class LedgerRecovery:
    """Recover one ledger; ends with `Finished(metadata)`, the closed ledger's, or with `Finished(error=...)`: it is
    still in recovery then, and whoever tries again may succeed."""

    def __init__(
        self, metadata: LedgerMetadata, version: int, key: bytes, choose: Choose, *, batch_entries: int = BATCH_ENTRIES
    ) -> None:
        self.metadata, self._version, self._key = metadata, version, key
        self._choose, self._batch_entries = choose, batch_entries
        self._step = _Step.MARK
        self._storing: LedgerMetadata | None = None
        self._unknown: dict[int, Exception | None] = {}
        self._lac = -1

    def start(self) -> list[Effect]:
        if self.metadata.state is State.CLOSED:
            return self._done()
        if self.metadata.state is State.OPEN:
            return self._store(self.metadata.in_recovery())
        return self._fence()

    # ---- 1: metadata ----------------------------------------------------------------------------------------

    def _store(self, wanted: LedgerMetadata) -> list[Effect]:
        self._storing = wanted
        return [Store(wanted, self._version)]

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
        return [Load()] if self._storing is not None and about == "metadata" else []

    def loaded(self, found: LedgerMetadata, version: int) -> list[Effect]:
        if self._storing is None:
            return []
        if found == self._storing:
            return self.stored(version)
        if version == self._version:
            return [Store(self._storing, version)]
        return self.conflicted(found, version)

    def deleted(self) -> list[Effect]:
        gone = NoSuchLedgerError(self.metadata.ledger, "was deleted")
        return self._fail(gone) if self._storing is not None else []

    def garbled(self, error: InvalidMetadataError) -> list[Effect]:
        return self._fail(error)

    # ---- 2, 3: fence ----------------------------------------------------------------------------------------

    def _fence(self) -> list[Effect]:
        self._step = _Step.FENCE
        ensemble = self.metadata.last_fragment.ensemble
        self._unknown = dict.fromkeys(range(len(ensemble)))
        self._answers = 0
        request = Request(Kind.LAST, self.metadata.ledger, key=self._key, flags=Flag.FENCE)
        return [Send(bookie, request, _Fence(index)) for index, bookie in enumerate(ensemble)]

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        if self._step is _Step.DONE:
            return []
        if reply.status == Status.UNAUTHORIZED:
            return self._fail(UnauthorizedError(self.metadata.ledger, f"{send.bookie} refuses its password"))
        if isinstance(send.about, _Fence):
            return self._fenced(send.about.place, reply)
        if isinstance(send.about, _Look):
            return self._looked(send, send.about, reply)
        if isinstance(send.about, _Total):
            return self._totalled(send, send.about, reply)
        return self._written(send, reply)

    def failed(self, send: Send, error: Exception | None) -> list[Effect]:
        return self.replied(send, Reply(Status.UNKNOWN, self.metadata.ledger, body=str(error).encode()))

    def _fenced(self, index: int, reply: Reply) -> list[Effect]:
        self._answers += 1
        if self._step is not _Step.FENCE:
            return []
        if reply.status == Status.OK:
            self._unknown.pop(index, None)
            self._lac = max(self._lac, reply.lac)
        meta = self.metadata
        if coverage(meta.ensemble_size, meta.write_quorum, meta.ack_quorum, self._unknown):
            return self._begin_reading()
        if self._answers == meta.ensemble_size:
            silent = ", ".join(meta.last_fragment.ensemble[i] for i in sorted(self._unknown))
            return self._fail(UnreadableError(meta.ledger, f"too few of its bookies could be fenced: not {silent}"))
        return []

    # ---- 4: read on -----------------------------------------------------------------------------------------

    def _begin_reading(self) -> list[Effect]:
        """From the LAC on; never in an earlier fragment, all of whose entries are confirmed (#2615)."""
        self._step = _Step.READ
        self._ensemble = self.metadata.last_fragment.ensemble  # of the snapshot: reads never follow our own changes
        start = max(self._lac, self.metadata.last_fragment.first - 1)
        self._push = Push(self.metadata, start + 1, self._key, recovery=True)
        self._changes: list[Change] = []  # of the ensemble, so far known here alone
        self._used = set(self._ensemble)  # who has, or had, a place in it: nobody gets a second one
        self._next = start + 1  # the first entry whose fate is not decided
        self._end = False  # a missing entry was met
        self._length = self._messages = -1
        return self._look()

    def _look(self) -> list[Effect]:
        """Ask for the next stretch of entries everybody who would hold some of it."""
        meta = self.metadata
        first, last = self._next, self._next + self._batch_entries - 1
        self._found: dict[int, bytes] = {}
        self._absent: dict[int, int] = {}  # entry -> how many of its bookies say so
        self._unheard: dict[int, int] = {}  # entry -> how many of its bookies have not said anything yet
        sends: list[Effect] = []
        for index, bookie in enumerate(self._ensemble):
            mine = members(index, first, last + 1, meta.ensemble_size, meta.write_quorum)
            for entry in mine.tolist():
                self._unheard[entry] = self._unheard.get(entry, 0) + 1
            if len(mine):
                sends.append(self._read(bookie, _Look(index, first, last)))
        return sends

    def _read(self, bookie: str, look: _Look) -> Send:
        """Every read fences, too: an answer "not here" counts only from who will not take it later (#2614)."""
        request = Request(Kind.READ, self.metadata.ledger, look.first, look.last, self._key, Flag.FENCE, READ_BYTES_MAX)
        return Send(bookie, request, look)

    def _looked(self, send: Send, look: _Look, reply: Reply) -> list[Effect]:
        if self._step is not _Step.READ or look.last < self._next or look.last >= self._next + self._batch_entries:
            return []
        effects: list[Effect] = []
        known = look.first  # all of [look.first, known) is decided by this answer
        if reply.status == Status.OK and look.first <= reply.last + 1 and reply.first == look.first:
            known = min(reply.last, look.last) + 1
            effects += self._take(send, look, reply, known)
        if look.first < known <= look.last:
            effects.append(self._read(send.bookie, look._replace(first=known)))
        elif known <= look.last:
            self._hear(look.place, known, look.last, None)
        return [*effects, *self._decide()]

    def _take(self, send: Send, look: _Look, reply: Reply, known: int) -> list[Effect]:
        """What a bookie holds of a stretch; what it does not."""
        meta = self.metadata
        bad: list[Effect] = []
        held: dict[int, bytes] = {}
        try:
            batch = parse_entries(reply.body, ledger=meta.ledger, first=look.first, last=look.last)
            held = {record.entry: bytes(record.raw) for record in batch}
            whole = batch.next_position == len(reply.body)
        except InvalidRecordsError:
            whole = False
        self._found.update({entry: raw for entry, raw in held.items() if entry not in self._found})
        if not whole:  # damaged on its way or on disk: no answer at all for what lies behind the last good one
            bad.append(BadCopy(send.bookie, max(held, default=look.first - 1) + 1))
        self._hear(look.place, look.first, known - 1, held if whole else None)
        return bad

    def _hear(self, index: int, first: int, last: int, held: dict[int, bytes] | None) -> None:
        """A bookie has answered for entries [first, last]; held: what it has, None: it cannot tell."""
        meta = self.metadata
        for entry in members(index, first, last + 1, meta.ensemble_size, meta.write_quorum).tolist():
            self._unheard[entry] -= 1
            if held is not None and entry not in held:
                self._absent[entry] = self._absent.get(entry, 0) + 1

    def _decide(self) -> list[Effect]:
        """Go as far as the fate of entries is known, in order."""
        meta = self.metadata
        first = self._next
        last = first + self._batch_entries - 1
        at = first
        while at <= last:
            if at in self._found:
                at += 1
            elif self._absent.get(at, 0) > meta.write_quorum - meta.ack_quorum:  # it cannot have reached Qa
                return [*self._write_back(first, at - 1), *self._end_reading()]
            elif self._unheard[at] == 0:
                said = f"{self._absent.get(at, 0)} of {meta.write_quorum} bookies say no, the others do not tell"
                return self._fail(UnreadableError(meta.ledger, f"whether entry {at} exists is unknown: {said}"))
            else:
                return []
        effects = self._write_back(first, last)
        self._next = last + 1
        return [*effects, *self._look()]

    # ---- 5: write back --------------------------------------------------------------------------------------

    def _write_back(self, first: int, last: int) -> list[Effect]:
        """Entries [first, last] as they were found, to the ensemble of now."""
        if first > last:
            return []
        raws = [self._found[entry] for entry in range(first, last + 1)]
        offsets = array("q", accumulate((len(raw) for raw in raws), initial=0))
        self._length, self._messages = _totals(raws[-1], self.metadata.ledger, last)
        batches = batches_of(first, b"".join(raws), offsets)
        return [send for batch in batches for send in self._push.add(batch)]

    def _end_reading(self) -> list[Effect]:
        self._step = _Step.WRITE
        return self._maybe_close()

    def _written(self, send: Send, reply: Reply) -> list[Effect]:
        if not self._push.is_current(send):
            return []
        if reply.status == Status.OK and self._push.acknowledged(send, reply):
            self._push.tracker.confirm()
            self._push.release()
            return self._maybe_close()
        return self._replace(send.about.place)

    def _replace(self, index: int) -> list[Effect]:
        """A bookie fails while entries are written back: another takes its place, here and nowhere else.

        Were it in the metadata already, another recoverer would ask it, hear that it has nothing, and cut the ledger
        (BOOKKEEPER-355).
        """
        chosen = self._choose(self.metadata, 1, self._used)
        if not chosen:
            lost = self._push.ensemble[index]
            error = f"ledger {self.metadata.ledger}: nobody can take the place of {lost} in its recovery"
            return self._fail(NotEnoughBookiesError(error))
        self._used.update(chosen)
        change: Change = {index: (chosen[0], self._push.since(index))}
        self._changes.append(change)
        return list(self._push.replace(change))

    # ---- 6: close -------------------------------------------------------------------------------------------

    def _maybe_close(self) -> list[Effect]:
        """When everything found has all its copies."""
        if self._step is not _Step.WRITE or self._push.batches:
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
        return [Send(bookie, Request(Kind.READ, meta.ledger, self._last, self._last, self._key, limit=1), _Total(rank))]

    def _totalled(self, send: Send, about: _Total, reply: Reply) -> list[Effect]:
        if self._step is not _Step.CLOSE or self._storing is not None:
            return []
        try:
            if reply.status != Status.OK or not len(reply.body):
                return self._ask_total(about.rank + 1)
            self._length, self._messages = _totals(reply.body, self.metadata.ledger, self._last)
        except InvalidRecordsError:
            return [BadCopy(send.bookie, self._last), *self._ask_total(about.rank + 1)]
        return self._close()

    def _close(self) -> list[Effect]:
        meta = self.metadata
        for change in self._changes:
            meta = meta.replace_bookies(change)
        return self._store(meta.closed(self._last, self._length, self._messages))

    def _done(self) -> list[Effect]:
        self._step = _Step.DONE
        return [Finished(self.metadata)]

    def _fail(self, error: ReplogError | LedgerError) -> list[Effect]:
        self._step, self._storing = _Step.DONE, None
        return [Finished(error=error)]


def _totals(raw: ReadableBuffer, ledger: int, entry: int) -> tuple[int, int]:
    """(bytes, messages) of a ledger up to an encoded entry."""
    record = parse_entries(raw, ledger=ledger, first=entry, last=entry)[0]
    return record.ledger_bytes, record.ledger_messages
