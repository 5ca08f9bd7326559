"""The replies of the bookies of a ledger's last fragment to the fence requests of recovery."""

from __future__ import annotations

from collections.abc import Iterator

from pyreplog._native.quorum.quorum import coverage
from pyreplog._native.quorum.stripe import member_count, members
from pyreplog.bookie.protocol import Reply, ReplyStatus
from pyreplog.ledger.ledger_metadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy


class FenceReplies:
    """Collects the replies. A bookie in limbo is fenced, but counts as silent, because it may lack entries.

    lac: the highest LAC of all replies.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self.lac = -1
        self._waiting = metadata.ensemble_size
        self._lasts: dict[int, int] = {}  # place -> highest entry, of those that are fenced
        self._silent: dict[int, Reply | None] = dict.fromkeys(range(metadata.ensemble_size))  # place -> its reply

    def note_reply(self, place: int, reply: Reply) -> None:
        """Note the reply of the bookie at a place of the ensemble."""
        self._waiting -= 1
        if reply.status == ReplyStatus.OK:
            self._lasts[place] = reply.last
            self._silent.pop(place, None)
        else:
            self._silent[place] = reply
        if reply.status in (ReplyStatus.OK, ReplyStatus.LIMBO):
            self.lac = max(self.lac, reply.lac)

    @property
    def cover(self) -> bool:
        """Whether the writer cannot confirm any entry any more: of each write set, fewer than Qa bookies are silent."""
        meta = self._metadata
        return coverage(meta.ensemble_size, meta.write_quorum, meta.ack_quorum, self._silent)

    @property
    def refusal_reason(self) -> str | None:
        """The reason why the fenced bookies do not cover the ensemble, once all have answered; None before."""
        ensemble = self._metadata.last_fragment.ensemble
        replies = "; ".join(f"{ensemble[place]}: {_reason(reply)}" for place, reply in sorted(self._silent.items()))
        return None if self._waiting else f"too few of its bookies could be fenced ({replies})"

    def start(self) -> int:
        """Return the entry before the first one to be read: the LAC, or the last entry of a bookie that lags behind it.

        The entries in between have their ack quorum, and get the copies that the writer did not write any more
        (BookKeeper #1390). Reads never begin in an earlier fragment (#2615): a bookie that lags there, because the
        writer stored a change before the bookie had all entries, is given by `unsure_copies`.
        """
        meta, floor, lac = self._metadata, self._metadata.last_fragment.first - 1, self.lac
        lasts = {place: max(last, floor) for place, last in self._lasts.items() if last < lac > floor}
        quorums = meta.ensemble_size, meta.write_quorum
        lagging = [last for place, last in lasts.items() if member_count(place, last + 1, lac + 1, *quorums)]
        return max(min([lac, *lagging]), floor)

    def awaited(self, last: int) -> bool:
        """Return whether a bookie that stores some of the entries up to `last` has not answered at all."""
        return any(self._silent[place] is None for place, _ in self._holders(last))

    def unsure_copies(self, closed: LedgerMetadata, written: int) -> Iterator[BadCopy]:
        """Yield one entry of each bookie that may lack entries, so that repair checks all of its entries.

        These are the silent bookies, and those that lack entries before `written`, from which on recovery has written
        every entry.
        """
        for place, bookie in enumerate(self._metadata.last_fragment.ensemble):
            silent = place in self._silent
            stop = closed.last_entry + 1 if silent else min(written, closed.last_entry + 1)
            highest = max((stripe[-1] for stripe in closed.holdings(bookie, stop)), default=-1)
            if highest > (-1 if silent else self._lasts[place]):
                yield BadCopy(bookie, highest)

    def _holders(self, last: int) -> Iterator[tuple[int, int]]:
        """Yield the silent places that store entries up to `last`, each with the highest of these entries."""
        meta = self._metadata
        first = max(meta.last_fragment.first, last + 1 - meta.ensemble_size)
        for place in self._silent if first <= last else ():
            entries = members(place, first, last + 1, meta.ensemble_size, meta.write_quorum)
            if len(entries):
                yield place, int(entries[-1])


def _reason(reply: Reply | None) -> str:
    return (
        "no answer"
        if reply is None
        else f"{ReplyStatus(reply.status).name} {bytes(reply.body).decode('utf-8', 'replace')}"
    )
