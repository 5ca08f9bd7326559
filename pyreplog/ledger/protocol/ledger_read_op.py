"""Reads a range of entries of a ledger from its bookies, replica after replica. A state machine.

Entries are requested in runs. Of every E entries a bookie has Qw adjacent ones, so that as few bookies as possible give
the whole range, and each reads entries that are adjacent in its log. (BookKeeper requests single entries, or since
BP-62 batches if E = Qw.)

If a bookie fails, does not know, or has a damaged copy, the next one of the write set is asked. If a bookie is slow,
the next one is asked as well, and both may answer (BookKeeper: ReadOpBase, speculative reads). A reply has three
values: the entry, "not in the ledger", and "unknown". An entry is not in the ledger if so many replicas say so that it
cannot have reached its ack quorum; with fewer replies the read ends with `UnreadableError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from pyreplog._native.ledger_log.entries import merge_entries, parse_entries
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import write_set
from pyreplog.bookie.protocol import READ_BYTES_MAX, Reply, ReplyStatus, Request, RequestKind
from pyreplog.bookie.reading import consecutive
from pyreplog.errors import InvalidRecordsError, NoSuchEntryError, UnauthorizedError, UnreadableError
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy, Effect, Finished, Wake

SPECULATE_S = 0.5


@dataclass(eq=False)
class _Stripe:
    """`run` entries from each of first, first + step, ..., below `end`. replicas: bookies that store all of them."""

    first: int
    end: int
    step: int
    run: int
    replicas: list[str]
    rank: int = -1  # of the replica asked last
    tried: dict[str, str] = field(default_factory=dict)  # bookie -> the reason why it did not return `first`
    absent: set[str] = field(default_factory=set)  # bookies that answered that they do not have `first`
    waiting: set[Send] = field(default_factory=set)
    batch: RecordBatch | None = None  # the entries before `first`, once a bookie has returned them


class LedgerReadOp:
    """Reads entries [start, end) of a ledger, at least one.

    Ends with `Finished(RecordBatch)`. The batch ascends from `start`, and may end before `end` if the replies have more
    than `bytes_max` bytes, or the fragment ends. Ends with `Finished(error=...)` otherwise: NoSuchEntryError,
    UnreadableError, UnauthorizedError.

    Args:
        rank: rank of each bookie; those with a lower one (0: the default) are asked first.
        speculate_s: seconds after which the next replica is asked as well.
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
        self._fragment = metadata.fragment_of(start)  # a read does not go beyond its fragment
        fragment_end = metadata.fragment_end(self._fragment)
        if fragment_end is not None:
            self._end = min(end, fragment_end)
        self._stripes = list(self._split())
        self._finished = False

    def _split(self) -> Iterator[_Stripe]:
        """Yield one stripe of all entries if E = Qw; else stripes of runs of Qw entries, the last one shorter."""
        meta = self.metadata
        step = 1 if meta.ensemble_size == meta.write_quorum else meta.ensemble_size
        for low in range(0, min(step, self._end - self._first), meta.write_quorum):
            first = self._first + low
            yield self._stripe(first, step, min(meta.write_quorum, step - low, self._end - first))

    def _stripe(self, first: int, step: int, run: int, slow: Collection[str] = ()) -> _Stripe:
        """Make a stripe. slow: bookies that are asked last."""
        meta = self.metadata
        common = write_set(first + run - 1, meta.ensemble_size, meta.write_quorum)[: meta.write_quorum - run + 1]
        replicas = [self._fragment.ensemble[i] for i in common]
        replicas.sort(key=lambda bookie: (bookie in slow, self._rank.get(bookie, 0)))
        return _Stripe(first, self._end, step, run, replicas)

    def start(self) -> list[Effect]:
        return [effect for stripe in self._stripes for effect in self._ask_next(stripe)]

    def _ask_next(self, stripe: _Stripe) -> list[Effect]:
        """Ask the next replica; end the read if no replica is left and all replicas of the stripe have answered."""
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
        reasons = "; ".join(f"{bookie}: {reason}" for bookie, reason in stripe.tried.items())
        return [Finished(error=UnreadableError(meta.ledger, f"entry {stripe.first} cannot be read ({reasons})"))]

    def _ask_each(self, stripe: _Stripe) -> list[Effect]:
        """Replace a stripe of runs, which no bookie can give as a whole, by one stripe for each entry of a run.

        Each entry has replicas of its own. Late replies about the run are ignored; the bookies that were asked for it
        are asked again, after the others.
        """
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
        """Ask the next replica as well, because one is slow (speculative read)."""
        if self._finished or not isinstance(about, Send) or about not in about.about.waiting:
            return []
        stripe: _Stripe = about.about
        if about.bookie != stripe.replicas[min(stripe.rank, len(stripe.replicas) - 1)]:
            return []  # a later replica was asked already
        return self._ask_next(stripe)

    def failed(self, send: Send, error: Exception) -> list[Effect]:
        return self._give_up(send, str(error)) if not self._finished else []

    def replied(self, send: Send, reply: Reply) -> list[Effect]:
        stripe: _Stripe = send.about
        if self._finished or send not in stripe.waiting:
            return []
        if reply.status == ReplyStatus.UNAUTHORIZED:
            self._finished = True
            return [
                Finished(error=UnauthorizedError(self.metadata.ledger, f"bookie {send.bookie} refuses the password"))
            ]
        if reply.status != ReplyStatus.OK:
            return self._give_up(
                send, f"{ReplyStatus(reply.status).name} {bytes(reply.body).decode('utf-8', 'replace')}"
            )
        return self._take(send, stripe, reply)

    def _take(self, send: Send, stripe: _Stripe, reply: Reply) -> list[Effect]:
        """Take the intact records of a reply that continue the stripe without a gap."""
        ledger = self.metadata.ledger
        try:
            batch = parse_entries(reply.body, ledger=ledger, first=stripe.first, last=stripe.end - 1)
        except InvalidRecordsError as error:
            return [BadCopy(send.bookie, stripe.first), *self._give_up(send, str(error))]
        count = consecutive(batch.entry, send.request.asked(len(batch)))
        if not count:
            if reply.first <= stripe.first <= reply.last:
                stripe.absent.add(send.bookie)
                bad_copies = [BadCopy(send.bookie, stripe.first)] if self.metadata.has_for_certain(stripe.first) else []
                return [*bad_copies, *self._give_up(send, "does not have the entry")]
            return self._give_up(send, "its reply does not cover the entry")
        bad: list[Effect] = []
        if batch.next_position < len(reply.body):  # the next record is damaged; its next read asks another replica
            bad.append(BadCopy(send.bookie, _next_asked(send.request, batch[len(batch) - 1].entry)))
        stripe.batch = batch
        stripe.first = _next_asked(send.request, batch[count - 1].entry)
        stripe.waiting.clear()
        stripe.absent.clear()
        return [*bad, *self._finish_if_whole()]

    def _give_up(self, send: Send, reason: str) -> list[Effect]:
        stripe: _Stripe = send.about
        if send not in stripe.waiting:
            return []
        stripe.waiting.discard(send)
        stripe.tried[send.bookie] = reason
        return self._ask_next(stripe)

    def _finish_if_whole(self) -> list[Effect]:
        """End the read once every stripe has a batch: return the entries without a gap before them."""
        batches = [stripe.batch for stripe in self._stripes if stripe.batch is not None]
        if len(batches) < len(self._stripes):
            return []
        self._finished = True
        first_missing = min(stripe.first for stripe in self._stripes)
        return [Finished(_joined(batches, min(first_missing, self._end)))]


def _joined(batches: list[RecordBatch], end: int) -> RecordBatch:
    """Merge batches into one of the entries below `end`; later entries would have gaps between them."""
    if len(batches) > 1:
        return merge_entries([batch.buffer for batch in batches], last=end - 1)
    (batch,) = batches
    count = int(batch.entry.searchsorted(end))
    return batch if count == len(batch) else batch.select(np.arange(count))


def _next_asked(request: Request, entry: int) -> int:
    """Return the first entry behind `entry` that a request asks for."""
    index = entry + 1 - request.first
    return entry + 1 if index % request.step < request.run else request.first + -(-index // request.step) * request.step
