"""Reading a range of entries of a ledger from its bookies, as a state machine: replica after replica, three-valued.

Entries are asked for in runs: of every E entries a bookie has Qw adjacent ones, so that as few bookies as can be have
the whole range between them, and each gives what lies side by side in its log. (BookKeeper asks for every entry by
itself, or since BP-62 for batches, where E = Qw.)

A bookie that fails, does not know, or has a damaged copy is followed by the next of the write set; one that is slow,
too, while it may still answer (BookKeeper: ReadOpBase, speculative reads). "Not in the ledger" needs the word of enough
replicas that the entry cannot have reached its ack quorum; anything less is `UnreadableError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from pyreplog._native.ledgerlog.entries import merge_entries, parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import write_set
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.bookie.reading import consecutive
from pyreplog.errors import InvalidRecordsError, NoSuchEntryError, UnauthorizedError, UnreadableError
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished, Wake

SPECULATE_S = 0.5


@dataclass(eq=False)
class _Stripe:
    """`run` entries from each of first, first + step, ... < end. replicas: bookies that have all of them."""

    first: int
    end: int
    step: int
    run: int
    replicas: list[str]
    rank: int = -1  # of the replica asked last
    tried: dict[str, str] = field(default_factory=dict)  # bookie -> why it could not give an entry
    absent: set[str] = field(default_factory=set)  # bookies that definitely do not have `first`
    waiting: set[Send] = field(default_factory=set)
    batch: RecordBatch | None = None  # what was given of it, up to before `first`


class LedgerReadOp:
    """Read entries [start, end) of a ledger, at least one; ends with `Finished(RecordBatch)` or `Finished(error=...)`.

    The batch ascends from `start`; it may end before `end` when the replies' size is over `bytes_max`.
    prefer: bookies to ask first (alive, near), the best first. Errors: NoSuchEntryError, UnreadableError,
    UnauthorizedError.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        key: bytes,
        start: int,
        end: int,
        *,
        bytes_max: int = READ_BYTES_MAX,
        rank: dict[str, int] | None = None,
        speculate_s: float = SPECULATE_S,
    ) -> None:
        self.metadata, self._key = metadata, key
        self._first, self._end = start, end
        self._bytes_max, self._rank, self._speculate_s = bytes_max, rank or {}, speculate_s
        self._fragment = metadata.fragment_of(start)  # a read ends with it
        fragment_end = metadata.fragment_end(self._fragment)
        if fragment_end is not None:
            self._end = min(end, fragment_end)
        self._stripes = list(self._split())
        self._finished = False

    def _split(self) -> Iterator[_Stripe]:
        """With E = Qw everybody has everything; else runs as long as one bookie has, and a shorter one at the end."""
        meta = self.metadata
        step = 1 if meta.ensemble_size == meta.write_quorum else meta.ensemble_size
        for low in range(0, min(step, self._end - self._first), meta.write_quorum):
            first = self._first + low
            yield self._stripe(first, step, min(meta.write_quorum, step - low, self._end - first))

    def _stripe(self, first: int, step: int, run: int, late: Collection[str] = ()) -> _Stripe:
        """late: bookies to be asked last."""
        meta = self.metadata
        common = write_set(first + run - 1, meta.ensemble_size, meta.write_quorum)[: meta.write_quorum - run + 1]
        replicas = [self._fragment.ensemble[i] for i in common]
        replicas.sort(key=lambda bookie: (bookie in late, self._rank.get(bookie, 0)))
        return _Stripe(first, self._end, step, run, replicas)

    def start(self) -> list[Effect]:
        return [effect for stripe in self._stripes for effect in self._ask_next(stripe)]

    def _ask_next(self, stripe: _Stripe) -> list[Effect]:
        """Ask the next replica; when there is none left and nobody is to answer any more, that is the end."""
        meta = self.metadata
        stripe.rank += 1
        if stripe.rank < len(stripe.replicas):
            send = self._send(stripe, stripe.replicas[stripe.rank])
            return [send, Wake(self._speculate_s, send)]
        if stripe.run > 1:
            return self._ask_each(stripe)
        if stripe.waiting:
            return []
        self._finished = True
        enough = len(stripe.absent) > meta.write_quorum - meta.ack_quorum
        if enough and not meta.has_for_certain(stripe.first):
            return [Finished(error=NoSuchEntryError(f"ledger {meta.ledger} has no entry {stripe.first}"))]
        reasons = "; ".join(f"{bookie}: {why}" for bookie, why in stripe.tried.items())
        return [Finished(error=UnreadableError(meta.ledger, f"entry {stripe.first} cannot be read ({reasons})"))]

    def _ask_each(self, stripe: _Stripe) -> list[Effect]:
        """Nobody gives the whole run: its entries have other replicas, too, each of them its own. What those who are
        slow say of the run does not count any more; they are asked again, behind the others."""
        stripe.waiting.clear()
        self._stripes.remove(stripe)
        entries = range(stripe.first, stripe.first + stripe.run)
        parts = [self._stripe(entry, stripe.step, 1, stripe.replicas) for entry in entries]
        self._stripes += parts
        return [effect for part in parts for effect in self._ask_next(part)]

    def _send(self, stripe: _Stripe, bookie: str) -> Send:
        limit = max(self._bytes_max * stripe.run // stripe.step, 1)
        request = Request(
            RequestKind.READ, self.metadata.ledger, stripe.first, stripe.end - 1, self._key,
            limit=limit, step=stripe.step, run=stripe.run,
        )  # fmt: skip
        send = Send(bookie, request, stripe)
        stripe.waiting.add(send)
        return send

    def woken(self, about: object) -> list[Effect]:
        """A replica takes long: the next one is asked as well."""
        if self._finished or not isinstance(about, Send) or about not in about.about.waiting:
            return []
        stripe: _Stripe = about.about
        if about.bookie != stripe.replicas[min(stripe.rank, len(stripe.replicas) - 1)]:
            return []  # it was followed already
        return self._ask_next(stripe)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._give_up(send, str(error)) if not self._finished else []

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        stripe: _Stripe = send.about
        if self._finished or send not in stripe.waiting:
            return []
        if reply.status == ReplyStatus.UNAUTHORIZED:
            self._finished = True
            return [Finished(error=UnauthorizedError(self.metadata.ledger, f"{send.bookie} refuses its password"))]
        if reply.status != ReplyStatus.OK:
            return self._give_up(
                send, f"{ReplyStatus(reply.status).name} {bytes(reply.body).decode('utf-8', 'replace')}"
            )
        return self._take(send, stripe, reply)

    def _take(self, send: Send, stripe: _Stripe, reply: Reply) -> list[Effect]:
        """The good part of an answer: its records must be the next ones, without a gap."""
        ledger = self.metadata.ledger
        try:
            batch = parse_entries(reply.body, ledger=ledger, first=stripe.first, last=stripe.end - 1)
        except InvalidRecordsError as error:
            return [BadCopy(send.bookie, stripe.first), *self._give_up(send, str(error))]
        count = consecutive(batch.entry, send.request.asked(len(batch)))
        if not count:
            if reply.first <= stripe.first <= reply.last:
                stripe.absent.add(send.bookie)
                lost = [BadCopy(send.bookie, stripe.first)] if self.metadata.has_for_certain(stripe.first) else []
                return [*lost, *self._give_up(send, "does not have it")]
            return self._give_up(send, "did not say")
        bad: list[Effect] = []
        if batch.next_position < len(reply.body):  # damaged behind those; the next read of it asks somebody else
            bad.append(BadCopy(send.bookie, _next_asked(send.request, batch[len(batch) - 1].entry)))
        stripe.batch = batch
        stripe.first = _next_asked(send.request, batch[count - 1].entry)
        stripe.waiting.clear()
        stripe.absent.clear()
        return [*bad, *self._finish_if_whole()]

    def _give_up(self, send: Send, why: str) -> list[Effect]:
        stripe: _Stripe = send.about
        if send not in stripe.waiting:
            return []
        stripe.waiting.discard(send)
        stripe.tried[send.bookie] = why
        return self._ask_next(stripe)

    def _finish_if_whole(self) -> list[Effect]:
        """Enough is here once every stripe has answered: what has no gap before it is given out."""
        batches = [stripe.batch for stripe in self._stripes if stripe.batch is not None]
        if len(batches) < len(self._stripes):
            return []
        self._finished = True
        whole = min(stripe.first for stripe in self._stripes)  # the first entry that is not here
        return [Finished(_joined(batches, min(whole, self._end)))]


def _joined(batches: list[RecordBatch], end: int) -> RecordBatch:
    """Entries below `end`; those from it on wait for their neighbours."""
    if len(batches) > 1:
        return merge_entries([batch.buffer for batch in batches], last=end - 1)
    (batch,) = batches
    count = int(batch.entry.searchsorted(end))
    return batch if count == len(batch) else batch.select(np.arange(count))


def _next_asked(request: Request, entry: int) -> int:
    """The entry that is asked for behind this one."""
    past = entry + 1 - request.first
    return entry + 1 if past % request.step < request.run else request.first + -(-past // request.step) * request.step
