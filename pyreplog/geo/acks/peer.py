"""Peer: the items of replicated subscriptions that one neighbour lacks, and those in flight to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping
from typing import Final

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.geo.acks.digests import differences
from pyreplog.geo.acks.histories import Histories
from pyreplog.geo.acks.lifecycle import SubscriptionLifecycle
from pyreplog.geo.acks.messages import (
    AcksItem,
    Delta,
    Digest,
    DigestLine,
    Item,
    StateItem,
    Summary,
    TombstoneItem,
    split_ranges,
)
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.origins.origin import Origin

DELTAS_MAX: Final = 8
"""Most deltas in flight to one neighbour."""
DELTA_RANGES: Final = 16_384
"""About the most ranges in one delta; a header of a subscription counts as its bases and 16."""


class Peer:
    """A neighbour: a cluster that this one connects to.

    Attributes:
        cluster: id of the neighbour.
        session: session of the connection; None: the neighbour is not connected.
        proved: origins whose history was proved in this session: its acknowledgements of these are taken.
        compared: origins whose acknowledgements were compared with those of the neighbour in the last session.
        positions: the positions in origins of third clusters that it reported last in that session.
        histories: its positions in origins of third clusters.
        connected: the other clusters that it is connected to, which get its acknowledgements from itself.
        sent_connected: those that this cluster is connected to, as it told the neighbour.
        takes_starts: whether the neighbour takes start offsets: it is connected, and no older version.
        starts: for each origin, the offset below which it stores no message, and will get none, as it told in this
            session.
        starts_with: the other clusters that the topic is replicated in, as it told with them, without this one.
        sent_starts: the start offsets and the clusters that this cluster told the neighbour in this session.
    """

    def __init__(self, cluster: bytes) -> None:
        self.cluster = cluster
        self.session: int | None = None
        self.proved: set[Origin] = set()
        self.histories = Histories()
        self.connected: frozenset[bytes] = frozenset()
        self.sent_connected: frozenset[bytes] = frozenset()
        self.takes_starts = False
        self.starts: dict[Origin, int] = {}
        self.starts_with: frozenset[bytes] = frozenset()
        self.sent_starts: tuple[dict[Origin, int], frozenset[bytes]] | None = None
        self.compared: set[Origin] = set()
        self.positions: dict[Origin, int] = {}
        self._admitted: set[Origin] = set()  # origins of which the neighbour takes acknowledgements in this session
        self._is_compared = False  # whether the neighbour reported its subscriptions in this session
        self._named: set[str] = set()
        self._lines: dict[Origin, dict[str, DigestLine]] = {}
        self._headers: dict[str, None] = {}  # names whose header the neighbour lacks, in their order
        self._tombstones: dict[tuple[str, str], None] = {}
        self._unsent: dict[tuple[str, Origin], RangeSet] = {}
        self._late: dict[tuple[str, Origin], RangeSet] = {}  # the neighbour probably gets these from another one
        # flushes since the first of them, or since the neighbour sent some
        self._waited: dict[tuple[str, Origin], int] = {}
        self._in_flight: deque[tuple[int, tuple[Item, ...]]] = deque()
        self._sequence = 0
        self._received = 0
        self._settled: set[tuple[str, str]] = set()

    # ---- the connection --------------------------------------------------------------------------------------------

    def connect(self, session: int) -> None:
        """Begin a session. Until the neighbour has reported its subscriptions, only the summary is sent.

        What it reported before does not count: it may have been restored from a backup, its topic created again, or its
        journal begun anew after a change of its policy.
        """
        self.disconnect()
        self.compared.clear()
        self.positions.clear()
        self.session = session
        self._sequence = self._received = 0

    def disconnect(self) -> None:
        """End the session: items in flight count as unsent."""
        self.session = None
        self._is_compared = False
        self.proved.clear()
        self.histories.clear()
        self.connected = self.sent_connected = self.starts_with = frozenset()
        self.takes_starts, self.sent_starts = False, None
        self.starts.clear()
        self.hasten()
        self._admitted.clear()
        self._named.clear()
        self._lines.clear()
        while self._in_flight:
            _, items = self._in_flight.popleft()
            for item in items:
                match item:
                    case StateItem():
                        self._headers[item.name] = None
                    case TombstoneItem():
                        self._tombstones[item.name, item.token] = None
                    case AcksItem():
                        self.lack(item.name, item.origin, item.ranges)

    def refuse(self, origin: Origin) -> None:
        """Take no acknowledgements of an origin in this session, and send none: the histories differ."""
        self.hasten()
        self.histories.differing.add(origin)
        self.proved.discard(origin)
        self._admitted.discard(origin)
        self.compared.discard(origin)

    def is_third(self, origin: Origin, cluster: bytes) -> bool:
        """Return whether an origin belongs neither to this neighbour nor to a cluster, which is the one here."""
        return origin.cluster not in (self.cluster, cluster)

    @property
    def has_reported(self) -> bool:
        """Whether the neighbour has reported its subscriptions in this session, so that its missing items are known."""
        return self.session is not None and self._is_compared

    def is_next(self, sequence: int) -> bool:
        """Return whether a delta of the neighbour is the next one; if so, expect its successor."""
        is_next = sequence == self._received + 1
        self._received += is_next
        return is_next

    # ---- missing items ---------------------------------------------------------------------------------------------

    def lack(self, name: str, origin: Origin, ranges: RangeSet) -> None:
        """Note acknowledgements that the neighbour lacks."""
        if ranges:
            self._unsent.setdefault((name, origin), RangeSet()).add_ranges(*ranges.intersect())

    def lack_late(self, name: str, origin: Origin, ranges: RangeSet) -> None:
        """Note acknowledgements that the neighbour probably gets from another cluster.

        They are sent after some flushes, unless the neighbour has sent them by then: so each neighbour learns at last
        that the other one has them.
        """
        if origin in self._admitted:
            self._late.setdefault((name, origin), RangeSet()).add_ranges(*ranges.intersect())
        else:
            self.lack(name, origin, ranges)

    def wait(self, flushes: int) -> None:
        """Note a flush; late acknowledgements have to be sent after so many."""
        for key in list(self._late):
            self._waited[key] = self._waited.get(key, 0) + 1
            if self._waited[key] >= flushes:
                self.lack(*key, self._take_late(key))

    def hasten(self) -> None:
        """Note that late acknowledgements have to be sent now."""
        for key in list(self._late):
            self.lack(*key, self._take_late(key))

    def _take_late(self, key: tuple[str, Origin]) -> RangeSet:
        self._waited.pop(key, None)
        return self._late.pop(key, RangeSet())

    def lack_header(self, name: str) -> None:
        """Note that the neighbour lacks the present header of a subscription."""
        self._headers[name] = None

    def lack_tombstone(self, name: str, token: str) -> None:
        """Note that the neighbour lacks a tombstone, or some of the clusters that have it."""
        self._tombstones[name, token] = None
        self._settled.discard((name, token))

    def note_has(self, name: str, origin: Origin, ranges: RangeSet) -> None:
        """Note that the neighbour has acknowledgements, because it sent them."""
        key = name, origin
        if (unsent := self._unsent.get(key)) is not None:
            unsent.remove_ranges(*ranges.intersect())
            if not unsent:
                del self._unsent[key]
        if (late := self._late.get(key)) is not None:
            if late.remove_ranges(*ranges.intersect()):
                self._waited[key] = 0  # it sends what both got from another cluster, and more of that soon
            if not late:
                self._take_late(key)

    def drop(self, name: str) -> None:
        """Forget the acknowledgements of a subscription that belong to a former generation."""
        for key in [key for key in (*self._unsent, *self._late) if key[0] == name]:
            self._unsent.pop(key, None)
            self._take_late(key)
        for place, (sequence, items) in enumerate(self._in_flight):
            kept = tuple(item for item in items if not (isinstance(item, AcksItem) and item.name == name))
            self._in_flight[place] = sequence, kept

    def summary(self, message: Summary, lifecycles: Mapping[str, SubscriptionLifecycle]) -> list[str]:
        """Compare the neighbour's summary; note the items that it lacks, and return the names that are equal."""
        same = []
        for name, digest in message.digests:
            self._named.add(name)
            lifecycle = lifecycles.get(name)
            if lifecycle is None:
                continue
            if lifecycle.digest() == digest:
                same.append(name)
            else:
                self._lack_all(name, lifecycle)
        if message.is_last:
            for name, lifecycle in lifecycles.items():
                if name not in self._named:
                    self._lack_all(name, lifecycle)
            self._is_compared = True
        return same

    def _lack_all(self, name: str, lifecycle: SubscriptionLifecycle) -> None:
        if lifecycle.state is not None:
            self.lack_header(name)
        for token in lifecycle.tombstones:
            self.lack_tombstone(name, token)

    def digest(self, message: Digest, lifecycles: Mapping[str, SubscriptionLifecycle]) -> None:
        """Take the digests of an origin. The last ones show which acknowledgements the neighbour lacks, and may get."""
        origin = message.origin
        lines = self._lines.setdefault(origin, {})
        lines.update((line.name, line) for line in message.lines)
        if not message.is_last:
            return
        del self._lines[origin]
        if origin in self.histories.differing:
            return
        self._admitted.add(origin)
        self.compared.add(origin)
        for key in [key for key in (*self._unsent, *self._late) if key[1] == origin]:
            self._unsent.pop(key, None)
            self._take_late(key)
        for name, lifecycle in lifecycles.items():
            state = lifecycle.state
            if state is None or not state.acks.of(origin):
                continue
            line = lines.get(name)
            if line is not None and line.identity != state.acks_identity():
                line = None
            self.lack(name, origin, differences(state.acks.of(origin), line))

    # ---- sending ---------------------------------------------------------------------------------------------------

    def deltas(self, lifecycles: Mapping[str, SubscriptionLifecycle], held: Container[str] = ()) -> Iterator[Delta]:
        """Yield the deltas to send now: tombstones, headers, then acknowledgements of admitted origins.

        In this order a name that was created again is never joined with the dead birth.

        Args:
            lifecycles: the lifecycles of all names.
            held: names that are left out, because their headers are not durable yet.
        """
        while self.session is not None and self._is_compared and len(self._in_flight) < DELTAS_MAX:
            items = tuple(self._next_items(lifecycles, held))
            if not items:
                return
            self._sequence += 1
            self._in_flight.append((self._sequence, items))
            yield Delta(self.session, self._sequence, items)

    def _next_items(self, lifecycles: Mapping[str, SubscriptionLifecycle], held: Container[str]) -> Iterator[Item]:
        room = DELTA_RANGES
        for name, token in [key for key in self._tombstones if key[0] not in held]:
            if room <= 0:
                return
            del self._tombstones[name, token]
            lifecycle = lifecycles.get(name)
            if lifecycle is not None and token in lifecycle.tombstones:
                room -= 16
                yield TombstoneItem(name, token, frozenset(lifecycle.tombstones[token]))
        for name in [name for name in self._headers if name not in held]:
            if room <= 0:
                return
            del self._headers[name]
            lifecycle = lifecycles.get(name)
            if lifecycle is not None and lifecycle.state is not None:
                room -= 16 + lifecycle.state.bases.ranges + 16 * len(lifecycle.state.tokens)
                yield StateItem.of(name, lifecycle.state)
        for name, origin in [key for key in self._unsent if key[1] in self._admitted and key[0] not in held]:
            if room <= 0:
                return
            lifecycle = lifecycles.get(name)
            unsent = self._unsent.pop((name, origin))
            if lifecycle is None or lifecycle.state is None:
                continue
            part, *rest = split_ranges(unsent, room)
            for ranges in rest:
                self.lack(name, origin, ranges)
            room -= len(part) + 4
            yield AcksItem(name, min(lifecycle.state.tokens), lifecycle.state.generation, origin, part)

    def stored(self, sequence: int) -> list[Item]:
        """Note that deltas up to `sequence` are durable at the neighbour; return their items."""
        items: list[Item] = []
        while self._in_flight and self._in_flight[0][0] <= sequence:
            items += self._in_flight.popleft()[1]
        return items

    # ---- confirmed items -------------------------------------------------------------------------------------------

    def note_settled(self, name: str, token: str) -> None:
        """Note that the neighbour knows that all clusters have a tombstone: it sends no more items of the birth."""
        self._settled.add((name, token))

    def knows_settled(self, name: str, token: str) -> bool:
        """Return whether the neighbour knows that all clusters have a tombstone."""
        return (name, token) in self._settled

    def forget(self, name: str, token: str) -> None:
        """Forget a tombstone."""
        self._settled.discard((name, token))
        self._tombstones.pop((name, token), None)

    def unconfirmed(self, name: str) -> OriginRanges:
        """Return the acknowledgements of a subscription that the neighbour has not confirmed as durable."""
        lacking = OriginRanges()
        for pending in (self._unsent, self._late):
            for (other, origin), ranges in pending.items():
                if other == name:
                    lacking.add(origin, *ranges.intersect())
        for _, items in self._in_flight:
            for item in items:
                if isinstance(item, AcksItem) and item.name == name:
                    lacking.add(item.origin, *item.ranges.intersect())
        return lacking

    def lacks_header(self, name: str) -> bool:
        """Return whether the neighbour has not confirmed the present header of a subscription."""
        in_flight = (item for _, items in self._in_flight for item in items)
        return name in self._headers or any(isinstance(item, StateItem) and item.name == name for item in in_flight)

    @property
    def is_idle(self) -> bool:
        """Whether no item is in flight or to be sent; acknowledgements that the neighbour refuses do not count."""
        unsent = any(origin in self._admitted for _, origin in self._unsent)
        is_due = bool(self._late or self.histories.due)
        return not (self._headers or self._tombstones or self._in_flight or is_due or unsent)
