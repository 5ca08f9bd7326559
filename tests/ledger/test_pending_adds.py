"""`PendingAdds.since`, which says from which entry on a bookie is replaced, compared with a table of the copies on each
bookie."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.ledger.pending_adds_base import EntryBatch
from pyreplog._native.ledger_log.entries import encode_entries
from pyreplog._native.machines.effects import Send
from pyreplog._native.quorum.quorum import write_set
from pyreplog._native.quorum.stripe import members
from pyreplog.bookie.protocol import Reply
from pyreplog.ledger.ledger_metadata import Fragment, LedgerMetadata
from pyreplog.ledger.protocol.pending_adds import PendingAdds

from .lab import KEY, LEDGER, OK, value_of


class Table:
    """A PendingAdds, the stored metadata, and the entries of each bookie. Messages to one bookie keep their order."""

    def __init__(self, size: int, write_quorum: int, ack_quorum: int) -> None:
        self.metadata = LedgerMetadata(
            ledger=LEDGER, ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, proof="",
            fragments=(Fragment(0, tuple(f"bookie{i}" for i in range(size))),),
        )  # fmt: skip
        self.push = PendingAdds(self.metadata, 0, KEY)
        self.held: dict[str, set[int]] = {}
        self._queues: dict[str, deque[Send]] = {}
        self._made = size

    def append(self, count: int) -> None:
        first = self.push.tracker.lap + 1
        values = [value_of(entry) for entry in range(first, first + count)]
        entries = encode_entries(values, ledger=LEDGER, first=first, lac=-1, time=1)
        self._send(self.push.add(EntryBatch(first, entries.last, entries.view, entries.offsets, entries.nbytes)))

    def _send(self, sends: list[Send]) -> None:
        for send in sends:
            self._queues.setdefault(send.bookie, deque()).append(send)

    def deliver(self, place: int) -> None:
        """Store the oldest message to the bookie at a place, and acknowledge it."""
        bookie = self.push.ensemble[place]
        if not self._queues.get(bookie):
            return
        send = self._queues[bookie].popleft()
        meta, request = self.metadata, send.request
        entries = members(place, request.first, request.last + 1, meta.ensemble_size, meta.write_quorum)
        self.held.setdefault(bookie, set()).update(entries.tolist())
        assert self.push.acknowledged(send, Reply(OK, LEDGER, request.first, request.last))
        self.push.tracker.confirm()
        self.push.release()

    def replace(self, places: set[int]) -> None:
        """Replace the bookies at these places. All rules are checked when the metadata are stored, before the
        PendingAdds knows."""
        change = {}
        for place in places:
            change[place] = (f"bookie{self._made}", self.push.since(place))
            self._made += 1
        self.metadata = self.metadata.replace_bookies(change)
        self.check()
        self._send(self.push.replace(change))

    def copies(self, entry: int) -> int:
        """Count the copies of an entry on bookies to which the metadata assign it."""
        meta = self.metadata
        ensemble = meta.fragment_of(entry).ensemble
        places = write_set(entry, meta.ensemble_size, meta.write_quorum)
        return sum(entry in self.held.get(ensemble[place], ()) for place in places)

    def check(self) -> None:
        confirmed = self.push.tracker.confirmed
        assert all(self.copies(entry) >= self.metadata.ack_quorum for entry in range(confirmed + 1))
        assert self.metadata.last_fragment.first <= confirmed + 1

    def finish(self) -> None:
        """Deliver all messages."""
        while any(self._queues.get(bookie) for bookie in self.push.ensemble):
            for place in range(self.metadata.ensemble_size):
                self.deliver(place)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 1), (3, 2, 2), (4, 3, 2), (5, 3, 2), (5, 4, 3), (4, 2, 1)])
@given(st.integers(0, 1 << 32))
def test_confirmed_entries_keep_their_copies_through_any_changes(quorums: tuple[int, int, int], seed: int) -> None:
    table, random = Table(*quorums), Random(seed)
    for _ in range(random.randint(1, 60)):
        step = random.random()
        if step < 0.25:
            table.append(random.randint(1, 4))
        elif step < 0.9:
            table.deliver(random.randrange(quorums[0]))
        else:
            table.replace(set(random.sample(range(quorums[0]), random.randint(1, quorums[0]))))
        table.check()
    table.finish()
    assert table.push.tracker.confirmed == table.push.tracker.lap
    assert all(table.copies(entry) == quorums[1] for entry in range(table.push.tracker.lap + 1))
    assert not table.push.batches and table.push.pending_bytes == 0
