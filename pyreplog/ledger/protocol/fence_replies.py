"""What the bookies of a ledger's last fragment said when recovery fenced them."""

from __future__ import annotations

from collections.abc import Iterator

from pyreplog._native.quorum.quorum import coverage
from pyreplog._native.quorum.stripe import member_count, members
from pyreplog.bookie.protocol import Reply, ReplyStatus
from pyreplog.ledger.ledgermetadata import LedgerMetadata
from pyreplog.ledger.protocol.effects import BadCopy


class FenceReplies:
    """lac: the highest that anybody knows. Who is in limbo is fenced, but counts as silent: it may lack entries."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self.lac = -1
        self._waiting = metadata.ensemble_size
        self._lasts: dict[int, int] = {}  # place -> highest entry, of those that are fenced
        self._silent: dict[int, Reply | None] = dict.fromkeys(range(metadata.ensemble_size))  # place -> what it said

    def hear(self, place: int, reply: Reply) -> None:
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
        """Whether no entry can be acknowledged any more: no Qa of any write set are silent."""
        meta = self._metadata
        return coverage(meta.ensemble_size, meta.write_quorum, meta.ack_quorum, self._silent)

    @property
    def why_not(self) -> str | None:
        """Why they do not cover the ensemble, once all have answered."""
        ensemble = self._metadata.last_fragment.ensemble
        said = "; ".join(f"{ensemble[place]}: {_why(reply)}" for place, reply in sorted(self._silent.items()))
        return None if self._waiting else f"too few of its bookies could be fenced ({said})"

    def start(self) -> int:
        """The entry before those that are to be read: the LAC; or the highest of a bookie that lags behind it.

        What lies between has its ack quorum, and is given the copies that its writer did not get to write (#1390).
        Never in an earlier fragment (#2615): who lags there, because its writer stored another change before all had
        reached it, is `unsure`.
        """
        meta, before, lac = self._metadata, self._metadata.last_fragment.first - 1, self.lac
        known = {place: max(last, before) for place, last in self._lasts.items() if last < lac > before}
        quorums = meta.ensemble_size, meta.write_quorum
        lag = [last for place, last in known.items() if member_count(place, last + 1, lac + 1, *quorums)]
        return max(min([lac, *lag]), before)

    def awaited(self, last: int) -> bool:
        """Whether somebody who has not answered at all would hold entries up to `last`."""
        return any(self._silent[place] is None for place, _ in self._holders(last))

    def unsure(self, closed: LedgerMetadata, written: int) -> Iterator[BadCopy]:
        """Bookies of which nobody knows whether they have their entries of the ledger, and those that lack some before
        entry `written`, from which on recovery has written all: one entry of each, for repair to look at them all."""
        for place, bookie in enumerate(self._metadata.last_fragment.ensemble):
            silent = place in self._silent
            stop = closed.last_entry + 1 if silent else min(written, closed.last_entry + 1)
            highest = max((stripe[-1] for stripe in closed.holdings(bookie, stop)), default=-1)
            if highest > (-1 if silent else self._lasts[place]):
                yield BadCopy(bookie, highest)

    def _holders(self, last: int) -> Iterator[tuple[int, int]]:
        """Places that are silent, and the highest entry up to `last` that each would hold."""
        meta = self._metadata
        first = max(meta.last_fragment.first, last + 1 - meta.ensemble_size)
        for place in self._silent if first <= last else ():
            mine = members(place, first, last + 1, meta.ensemble_size, meta.write_quorum)
            if len(mine):
                yield place, int(mine[-1])


def _why(reply: Reply | None) -> str:
    return (
        "no answer"
        if reply is None
        else f"{ReplyStatus(reply.status).name} {bytes(reply.body).decode('utf-8', 'replace')}"
    )
