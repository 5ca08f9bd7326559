"""The state machine of all replicated subscriptions of one topic in one cluster."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from pyreplog._native.topic.range_set import RangeSet
from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks.digests import digest_line
from pyreplog.geo.acks.early_acks import EarlyAcks
from pyreplog.geo.acks.effects import (
    Acknowledge,
    CompareEntry,
    Diverged,
    Drop,
    Effect,
    HistoryDiffers,
    HomeChanged,
    Persist,
    Rebuild,
    SeekLost,
    Send,
)
from pyreplog.geo.acks.histories import NOTHING_STORED
from pyreplog.geo.acks.journal import ITEM_RANGES, JournalState, encode_record, snapshot_items
from pyreplog.geo.acks.lifecycle import Change, SubscriptionLifecycle
from pyreplog.geo.acks.messages import (
    AcksItem,
    Connected,
    Delta,
    Digest,
    DigestLine,
    ForgottenItem,
    History,
    Item,
    Message,
    StartOffsets,
    StateItem,
    Stored,
    Summary,
    TombstoneItem,
    decode,
    encode,
    split_ranges,
)
from pyreplog.geo.acks.origin_ranges import Offsets, OriginRanges, Ranges, copy_ranges, ranges_of, subtract
from pyreplog.geo.acks.peer import Peer
from pyreplog.geo.acks.removed_messages import RemovedMessages
from pyreplog.geo.acks.subscription_state import FIRST_HOME, Generation, Home, SubscriptionState
from pyreplog.origins.origin import LastEntry, Origin, OriginState

SNAPSHOT_BYTES: Final = 1 << 16
"""A snapshot is stored when records behind the last one have more bytes than this, and twice those of the snapshot."""
LATE_FLUSHES: Final = 10
"""Flushes until acknowledgements of a neighbour are passed on to another one that it is connected to itself."""
LATER_FLUSHES: Final = 13
"""Flushes until the one with the higher id of two neighbours does so: in most cases the other one was first."""
REPORT_FLUSHES: Final = 5
"""Flushes between two reports of the position in an origin of a third cluster, while messages arrive."""
HOLES_MAX: Final = 65_536
"""Most holes of one subscription, between acknowledged messages that were removed here, unless another cluster may
store messages in them."""
SUMMARY_NAMES: Final = 4096
DIGEST_BLOCKS: Final = 65_536


@dataclass(frozen=True, slots=True)
class _AcksRelease:
    """Acknowledgements that may be sent to neighbours once they are durable here."""

    name: str
    token: str
    generation: Generation
    origin: Origin
    ranges: RangeSet
    source: bytes | None  # the neighbour that sent them; None: they are of this cluster


@dataclass(frozen=True, slots=True)
class _HeaderRelease:
    """A header that may be sent to neighbours once it is durable here. source: the neighbour it came from."""

    name: str
    source: bytes | None


@dataclass(frozen=True, slots=True)
class _TombstoneRelease:
    """A tombstone that may be sent to neighbours once it is durable here."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class _Reply:
    """A message for a neighbour that reports durable items here."""

    peer: bytes
    message: Stored | Digest


_Release = _AcksRelease | _HeaderRelease | _TombstoneRelease | _Reply


class SubscriptionExchange:
    """Merges the subscriptions of one topic with those of the clusters that it is replicated to and from.

    Events are methods that return effects, which the caller carries out in their order. Items are sent, and confirmed
    to neighbours, only once they are durable here. A neighbour's acknowledgements of an origin are taken once it is
    proved, in this session, that both have the same history of it: `prove` reports that of the two topics themselves;
    histories of the topics of third clusters are compared here. So acknowledgements travel from neighbour to neighbour.
    Without changes no message is sent and no record stored. One thread at a time.

    Args:
        origin: the topic in this cluster, as an origin.
        participants: ids of all clusters that the topic is replicated in, with this one.
        neighbours: ids of the clusters that this one connects to.
        replayed: from `journal.replay`; None: there is no journal. The caller sets local cursors as for `Rebuild`. If a
            durable cursor was stored with the same `SubscriptionState.header_digest` and origin, the caller may pass
            its further acknowledgements to `acknowledge`; otherwise they may stem from another base, or other messages.
        positions: returns the positions of this cluster in all other origins.
        end: returns the end of the topic here, of which `arrive` may not have told yet; None: it has.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        participants: Collection[bytes],
        neighbours: Collection[bytes],
        replayed: JournalState | None = None,
        positions: Callable[[], Mapping[Origin, OriginState]] = dict,
        end: Callable[[], int] | None = None,
    ) -> None:
        replayed = replayed or JournalState()
        self.origin = origin
        self.cluster = origin.cluster
        self.early_acks = EarlyAcks()
        self._positions = positions
        self._end = partial(self.early_acks.stored, origin) if end is None else end
        self._participants = frozenset(participants)
        self._peers = {peer: Peer(peer) for peer in sorted(neighbours)}
        self._lifecycles = replayed.lifecycles
        self._unknown = replayed.unknown
        self._sequence = replayed.sequence
        self._dirty: dict[tuple[str, Origin], RangeSet] = {}  # acknowledged here, and not in the journal yet
        self._records: list[Item] = []
        self._releases: list[_Release] = []
        self._persisting: deque[tuple[int, tuple[Item, ...], list[_Release]]] = deque()
        self._undurable_headers: Counter[str] = Counter()  # names whose header is not durable yet
        self._expired: dict[str, OriginRanges] = {}
        self._removed = RemovedMessages()
        self._counted_ranges: dict[str, int] = {}  # ranges of a subscription when its holes were counted
        self.excess_holes: Mapping[str, int] = {}
        """Subscriptions with more than `HOLES_MAX` holes that cannot be closed, and their number. Replaced, never
        changed: any thread may read it."""
        self._flushes = 0
        self._journal_bytes = self._snapshot_bytes = 0
        self._effects: list[Effect] = []
        for lifecycle in self._lifecycles.values():
            if lifecycle.state is not None:
                self.early_acks.expect(lifecycle.state)
            for token in lifecycle.tombstones:
                lifecycle.confirm(token, self.cluster)

    # ---- state -----------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the existing subscriptions."""
        return [name for name, lifecycle in self._lifecycles.items() if lifecycle.state is not None]

    def state(self, name: str) -> SubscriptionState | None:
        """Return the state of a subscription, which must not be changed; None: it does not exist."""
        lifecycle = self._lifecycles.get(name)
        return lifecycle.state if lifecycle is not None else None

    def tombstones(self, name: str) -> frozenset[str]:
        """Return the tokens of the remembered dead births."""
        lifecycle = self._lifecycles.get(name)
        return frozenset(lifecycle.tombstones) if lifecycle is not None else frozenset()

    def peer(self, cluster: bytes) -> Peer:
        """Return the neighbour with an id. Raises InvalidArgumentError if the cluster is no neighbour."""
        peer = self._peers.get(cluster)
        if peer is None:
            raise InvalidArgumentError(
                f"cluster {cluster.hex()}: expected a cluster with which subscriptions are exchanged"
            )
        return peer

    def unconfirmed(self, peer: bytes, name: str) -> OriginRanges:
        """Return acknowledgements that a neighbour has not confirmed as durable there."""
        lacking = self.peer(peer).unconfirmed(name)
        for (other, origin), ranges in self._dirty.items():
            if other == name:
                lacking.add(origin, *ranges.intersect())
        for releases in (self._releases, *(waiting for _, _, waiting in self._persisting)):
            for release in releases:
                if isinstance(release, _AcksRelease) and release.name == name and release.source != peer:
                    lacking.add(release.origin, *release.ranges.intersect())
        return lacking

    def lacks_header(self, peer: bytes, name: str) -> bool:
        """Return whether a neighbour has not confirmed the present generation, home and births of a subscription."""
        if self._undurable_headers[name] or self.peer(peer).lacks_header(name):
            return True
        return any(isinstance(release, _HeaderRelease) and release.name == name for release in self._releases)

    def expired_here(self, name: str) -> OriginRanges:
        """Return the messages that expired or were evicted here without an acknowledgement.

        Of messages that were removed, those between them are included.
        """
        expired = self._expired.get(name)
        return expired.copy() if expired is not None else OriginRanges()

    @property
    def is_idle(self) -> bool:
        """Whether no items are to be stored, sent or confirmed."""
        return not (self._dirty or self._records or self._releases or self._persisting) and all(
            peer.is_idle for peer in self._peers.values()
        )

    # ---- consumers and operators here ------------------------------------------------------------------------------

    def create(self, name: str, token: str, bases: OriginRanges, home: Home = FIRST_HOME) -> list[Effect]:
        """Create a subscription.

        Args:
            name: name of the subscription.
            token: a random token, never used before.
            bases: the messages before its start, of those that this cluster holds.
            home: its home at birth: for a partition that is added later, that of partition 0.

        Raises:
            InvalidArgumentError: the subscription exists.
        """
        lifecycle = self._lifecycles.setdefault(name, SubscriptionLifecycle())
        if not lifecycle.create(token, bases, home):
            raise InvalidArgumentError(f"subscription {name!r}: expected a new name, found a subscription")
        self._header_changed(name, None)
        return self._store_changes()

    def inherit(self, name: str, home: Home) -> list[Effect]:
        """Merge a home at birth into a subscription whose state came from another cluster first; the higher one wins.

        Args:
            name: name of the subscription; one that does not exist is left alone.
            home: its home at birth here.
        """
        state = self.state(name)
        if state is not None and home > state.home:
            state.home = home
            self._effects.append(HomeChanged(name, home))
            self._header_changed(name, None)
        return self._store_changes()

    def acknowledge(
        self, name: str, token: str, generation: Generation, origin: Origin, starts: Offsets, ends: Offsets
    ) -> list[Effect]:
        """Take acknowledgements of consumers or operators here; those of another generation or birth change nothing.

        Messages in the base are left out: no consumer here got them, and a birth that is still unknown here may deliver
        them.

        Args:
            name: name of the subscription.
            token: token of one of its births when the messages were delivered.
            generation: generation in which they were delivered.
            origin: origin of the messages.
            starts: starts of ranges of offsets at the origin, int64.
            ends: exclusive ends of the ranges, int64.
        """
        lifecycle = self._lifecycles.get(name)
        if lifecycle is None or lifecycle.state is None or not lifecycle.counts(token, generation):
            return []
        acknowledged = subtract(ranges_of(starts, ends), lifecycle.state.bases.of(origin))
        new = lifecycle.state.acks.add(origin, *acknowledged.intersect())
        if new:
            self._dirty.setdefault((name, origin), RangeSet()).add_ranges(*new.intersect())
        return []

    def expire(self, name: str, origin: Origin, starts: Offsets, ends: Offsets) -> list[Effect]:
        """Note messages that expired or were evicted here. Other clusters do not learn of it, and may deliver them."""
        if self.state(name) is not None:
            self._expired.setdefault(name, OriginRanges()).add(origin, starts, ends)
        return []

    def seek(self, name: str, bases: OriginRanges) -> list[Effect]:
        """Begin another generation: of the messages that are held here, only `bases` count as acknowledged."""
        lifecycle, bases = self._existing(name), bases.copy()
        for origin in [*bases]:
            if end := self._removed_everywhere(origin):
                bases.add(origin, *_below(end))
        lifecycle.seek(self.cluster, bases)
        self._generation_changed(name)
        self._effects.append(Rebuild(name))
        self._header_changed(name, None)
        return self._store_changes()

    def delete(self, name: str) -> list[Effect]:
        """Delete a subscription, in all clusters."""
        self._note_tombstones(name, self._existing(name).delete())
        return self._store_changes()

    def move(self, name: str, home: bytes) -> list[Effect]:
        """Let only the consumers of one cluster get messages of a subscription; `NO_CLUSTER`: those of all clusters."""
        moved = self._existing(name).move(home)
        assert moved is not None
        self._effects.append(HomeChanged(name, moved))
        self._header_changed(name, None)
        return self._store_changes()

    def _existing(self, name: str) -> SubscriptionLifecycle:
        lifecycle = self._lifecycles.get(name)
        if lifecycle is None or lifecycle.state is None:
            raise InvalidArgumentError(f"subscription {name!r}: expected one that exists, found none")
        return lifecycle

    # ---- messages of the topic -------------------------------------------------------------------------------------

    def arrive(self, origin: Origin, end: int) -> list[Effect]:
        """Note that an origin is stored up to `end` here, before its new messages are delivered to consumers.

        The effects are the early acknowledgements of these messages, which the caller applies before the delivery. For
        the topic's own origin, `end` is the end of the topic.
        """
        for name, ranges in self.early_acks.arrive(origin, end, self._lifecycles):
            state = self.state(name)
            if state is not None:
                self._effects.append(Acknowledge(name, min(state.tokens), state.generation, origin, ranges))
        for peer in self._peers.values():
            if peer.histories.takes_reports and peer.is_third(origin, self.cluster):
                peer.histories.due[origin] = end
                if not peer.histories.is_reported(origin):
                    self._report_due(peer, origin)
                self._compare_history(peer, origin)
        return self._take_effects()

    def remove(self, starts: Mapping[Origin, int]) -> list[Effect]:
        """Note that messages were removed here.

        Args:
            starts: for each origin, the offset below which no message is stored here, or will be.
        """
        if not self._removed.note(starts):
            return []
        for expired in self._expired.values():
            for origin in [*expired]:
                first, start = expired.of(origin).first, self._removed.starts.get(origin, 0)
                if first is not None and first < start:  # one range, so that the memory stays bounded
                    expired.add(origin, np.array([first], np.int64), np.array([start], np.int64))
        self._send_starts()
        self._bound_holes()
        return self._store_changes()

    def _send_starts(self) -> None:
        """Tell each neighbour which messages were removed here, if that has changed."""
        for peer in self._peers.values():
            others = self._participants - {self.cluster, peer.cluster}
            told = self._removed.starts, others
            if self._removed.starts and peer.takes_starts and peer.session is not None and peer.sent_starts != told:
                peer.sent_starts = dict(self._removed.starts), others
                self._send(peer.cluster, StartOffsets(peer.session, others, tuple(self._removed.starts.items())))

    def _removed_everywhere(self, origin: Origin) -> int:
        return self._removed.everywhere(origin, self._participants - {self.cluster}, self._peers.values())

    def _bound_holes(self, *, only_grown: bool = False) -> None:
        """Close holes between acknowledged messages, if a subscription has too many.

        A hole is a message that expired, or that no cluster got from another one. It is closed only if no cluster can
        deliver it any more: as an acknowledgement it then changes no delivery, in any cluster.

        Args:
            only_grown: only in subscriptions whose ranges are more by an eighth than when they were counted.
        """
        excess, counted = dict[str, int](), dict[str, int]()
        for name in self.names():
            state = self.state(name)
            if state is None or (ranges := state.acks.ranges + state.bases.ranges) <= HOLES_MAX:
                continue
            counted[name] = self._counted_ranges.get(name, 0)
            holes = self.excess_holes.get(name, 0)
            if not only_grown or ranges > counted[name] + counted[name] // 8:  # counting takes time: rarely enough
                if (holes := self._holes(state)) > HOLES_MAX:
                    self._close_holes(name, state)
                    holes = self._holes(state)
                counted[name] = state.acks.ranges + state.bases.ranges
            if holes > HOLES_MAX:
                excess[name] = holes
        self._counted_ranges = counted
        if excess != self.excess_holes:
            self.excess_holes = excess

    def _holes(self, state: SubscriptionState) -> int:
        """Return the number of holes in the acknowledgements of messages that were removed here."""
        starts = self._removed.starts
        return sum(len(state.passed(origin, 0, starts.get(origin, 0))[0]) for origin in state.origins())

    def _close_holes(self, name: str, state: SubscriptionState) -> None:
        for origin in state.origins():
            if (end := self._removed_everywhere(origin)) and state.acks.add(origin, *_below(end)):
                self._dirty.setdefault((name, origin), RangeSet()).add(0, end)

    # ---- connections -----------------------------------------------------------------------------------------------

    def configure(self, participants: Collection[bytes], neighbours: Collection[bytes]) -> list[Effect]:
        """Use other clusters; removed clusters count as having confirmed every tombstone."""
        self._participants = frozenset(participants)
        for cluster in self._peers.keys() - {*neighbours}:
            del self._peers[cluster]
        for cluster in sorted({*neighbours} - self._peers.keys()):
            self._peers[cluster] = Peer(cluster)
        self._send_connected()
        self._send_starts()
        for name, lifecycle in self._lifecycles.items():
            for token in lifecycle.tombstones:
                if lifecycle.is_settled(token, self._participants):  # neighbours learn that it is
                    for peer in self._peers.values():
                        peer.lack_tombstone(name, token)
        self._settle_tombstones()
        return self._store_changes()

    def connect(self, peer: bytes, session: int) -> list[Effect]:
        """Begin a session with a neighbour, over an ordered connection of its own.

        Args:
            peer: id of the neighbour.
            session: number that both know, never used before between them.
        """
        self.peer(peer).connect(session)
        self._forget_source(peer)
        digests = [(name, lifecycle.digest()) for name, lifecycle in self._lifecycles.items()]
        chunks = [digests[at : at + SUMMARY_NAMES] for at in range(0, len(digests), SUMMARY_NAMES)] or [[]]
        for number, chunk in enumerate(chunks):
            self._send(peer, Summary(session, tuple(chunk), number == len(chunks) - 1))
        return self._take_effects()

    def _forget_source(self, peer: bytes) -> None:
        """Send a neighbour also the acknowledgements that it sent before, once they are durable here: it may have been
        restored from a backup, or its topic created again.
        """
        for releases in (self._releases, *(waiting for _, _, waiting in self._persisting)):
            for place, release in enumerate(releases):
                if isinstance(release, _AcksRelease) and release.source == peer:
                    releases[place] = replace(release, source=None)

    def disconnect(self, peer: bytes) -> list[Effect]:
        """End the session with a neighbour, because the connection was lost."""
        self.peer(peer).disconnect()
        for other in self._peers.values():
            other.hasten()  # the neighbour may have sent its last acknowledgements to this cluster alone
        self._send_connected()
        return self._take_effects()

    def _send_connected(self) -> None:
        """Tell each neighbour to which other clusters this one is connected, if that has changed."""
        connected = frozenset(peer.cluster for peer in self._peers.values() if peer.has_reported)
        for peer in self._peers.values():
            others = connected - {peer.cluster}
            if peer.session is not None and peer.histories.takes_reports and peer.sent_connected != others:
                peer.sent_connected = others
                self._send(peer.cluster, Connected(peer.session, others))

    def _take_connected(self, peer: Peer, message: Connected) -> None:
        for cluster in peer.connected - message.clusters:
            if (other := self._peers.get(cluster)) is not None:
                other.hasten()
        peer.connected = message.clusters

    def prove(self, peer: bytes, origin: Origin) -> list[Effect]:
        """Note that a neighbour and this cluster have the same history of an origin; its acknowledgements count now.

        Digests of the acknowledgements here tell it, once these are durable.
        """
        self._prove(self.peer(peer), origin)
        return self._store_changes()

    def _prove(self, neighbour: Peer, origin: Origin) -> None:
        session = neighbour.session
        if session is None or origin in neighbour.proved or origin in neighbour.histories.differing:
            return
        neighbour.proved.add(origin)
        lines = self._digest_lines(origin)
        chunks: list[list[DigestLine]] = [[]]
        room = DIGEST_BLOCKS
        for line in lines:
            if room < 0:
                chunks.append([])
                room = DIGEST_BLOCKS
            chunks[-1].append(line)
            room -= len(line.blocks) + 16
        for number, chunk in enumerate(chunks):
            message = Digest(session, origin, tuple(chunk), number == len(chunks) - 1)
            self._releases.append(_Reply(neighbour.cluster, message))

    def _digest_lines(self, origin: Origin) -> Iterator[DigestLine]:
        for name, lifecycle in self._lifecycles.items():
            state = lifecycle.state
            if state is not None and state.acks.of(origin):
                yield digest_line(name, state.acks_identity(), state.acks.of(origin))

    # ---- histories of third clusters ---------------------------------------------------------------------------------

    def _report_history(self, peer: Peer, origin: Origin, is_same: bool | None = None) -> None:
        if peer.session is not None and peer.histories.takes_reports:
            if origin == self.origin:
                state = OriginState(self._end(), None)
            else:
                state = self._positions().get(origin, NOTHING_STORED)
            self._send(peer.cluster, History(peer.session, origin, state, is_same))

    def _report_histories(self, peer: Peer) -> None:
        for origin, state in self._positions().items():
            is_stored = state.last is not None  # otherwise it is reported once there are messages
            if is_stored and peer.is_third(origin, self.cluster) and peer.histories.begin_report(origin):
                self._report_history(peer, origin)

    def _report_due(self, peer: Peer, origin: Origin) -> None:
        """Report the position in an origin of which new messages are stored here; it may be known a moment later."""
        state = self._positions().get(origin, NOTHING_STORED)
        if state.stored >= peer.histories.due[origin]:
            del peer.histories.due[origin]
            if state.last is not None:
                peer.histories.begin_report(origin)
            self._report_history(peer, origin)

    def _take_history(self, peer: Peer, message: History) -> None:
        origin, here = message.origin, self._positions().get(message.origin, NOTHING_STORED)
        if message.is_same is False and origin.cluster == peer.cluster:
            self._history_differs(peer, origin, message.state.stored)
        if not peer.is_third(origin, self.cluster):
            return
        if message.is_same is False:
            self._history_differs(peer, origin, 0 if here.last is None else here.last.first)
        if origin in peer.histories.differing:
            return
        peer.positions[origin] = message.state.stored
        if origin in peer.proved and peer.histories.is_reported(origin):
            return
        if message.is_same:
            self._prove(peer, origin)
        is_same = peer.histories.note(origin, message.state, here)
        if here.last is None:
            return  # its messages may never come here; once some did, this cluster reports its position
        is_due = peer.histories.begin_report(origin)
        if is_same and origin not in peer.proved:
            self._prove(peer, origin)
            self._report_history(peer, origin, is_same=True)
        elif is_due:
            self._report_history(peer, origin)
        self._compare_history(peer, origin)

    def _compare_history(self, peer: Peer, origin: Origin) -> None:
        """Compare the neighbour's last entry with the entry here, once that is stored here."""
        if peer.session is not None:
            for last in peer.histories.take_comparable(origin, self.early_acks.stored(origin)):
                self._effects.append(CompareEntry(peer.cluster, peer.session, origin, last))

    def compared(self, comparison: CompareEntry, here: LastEntry | None) -> list[Effect]:
        """Note the entry here that a neighbour's last entry is compared with.

        Args:
            comparison: the effect that demanded it.
            here: the entry; None: it was trimmed here, or never sent here: nothing is proved.
        """
        peer, origin = self._peers.get(comparison.peer), comparison.origin
        if peer is None or peer.session != comparison.session or here is None or origin in peer.histories.differing:
            return []
        if here != comparison.last:
            self._report_history(peer, origin, is_same=False)
            self._history_differs(peer, origin, here.first)
        elif origin not in peer.proved:
            self._prove(peer, origin)
            self._report_history(peer, origin, is_same=True)
        return self._store_changes()

    def _history_differs(self, peer: Peer, origin: Origin, first: int) -> None:
        if origin not in peer.histories.differing:
            peer.refuse(origin)
            self._effects.append(HistoryDiffers(peer.cluster, origin, first))

    # ---- messages of neighbours ------------------------------------------------------------------------------------

    def receive(self, peer: bytes, data: bytes) -> list[Effect]:
        """Take a message of a neighbour; one of another session changes nothing.

        Raises:
            InvalidRecordsError: the message is malformed; end the connection.
            MetadataVersionError: the message has another version.
        """
        message = decode(data)
        neighbour = self.peer(peer)
        if message.session != neighbour.session:
            return []
        match message:
            case Summary():
                for name in neighbour.summary(message, self._lifecycles):
                    self._note_same_tombstones(neighbour, name)
                self._settle_tombstones()
                if message.is_last and message.knows_histories:
                    neighbour.histories.takes_reports = True
                    self._report_histories(neighbour)
                if message.is_last:
                    self._send_connected()
                    neighbour.takes_starts = message.knows_starts
                    self._send_starts()
            case Digest():
                neighbour.digest(message, self._lifecycles)
                if message.is_last:
                    for name in self.names():
                        neighbour.note_has(name, message.origin, self._undurable(name, message.origin))
            case History():
                self._take_history(neighbour, message)
                return self._store_changes()
            case Connected():
                self._take_connected(neighbour, message)
            case StartOffsets():
                neighbour.starts.update(message.starts)
                neighbour.starts_with = message.clusters
                self._bound_holes()
                return self._store_changes()
            case Stored():
                self._confirmed(neighbour, neighbour.stored(message.sequence))
            case Delta():
                if not neighbour.is_next(message.sequence):
                    return []
                for item in message.items:
                    self._take_item(neighbour, item)
                self._releases.append(_Reply(peer, Stored(message.session, message.sequence)))
                return self._store_changes()
        self._send_deltas()
        return self._take_effects()

    def _take_item(self, peer: Peer, item: Item) -> None:
        match item:
            case StateItem():
                self._take_state(peer, item)
            case AcksItem():
                self._take_acks(peer, item)
            case TombstoneItem():
                self._take_tombstone(peer, item)

    def _take_state(self, peer: Peer, item: StateItem) -> None:
        name = item.name
        lifecycle = self._lifecycles.setdefault(name, SubscriptionLifecycle())
        former = lifecycle.state
        generation = former.generation if former is not None else None
        home = former.home if former is not None else FIRST_HOME
        change = lifecycle.merge(item.state())
        if change.is_deleted or change.changed_tombstones:
            self._note_tombstones(name, change)
            return
        state = lifecycle.state
        if state is None:  # the neighbour does not know that the birth is dead
            for token in sorted(lifecycle.tombstones.keys() & {*item.tokens}):
                self._releases.append(_TombstoneRelease(name, token))
            return
        self.early_acks.expect(state)
        merge = change.merge
        if merge.is_replaced and generation is not None:
            self._generation_changed(name)
            if generation.cluster == self.cluster:
                self._effects.append(SeekLost(name, generation, state.generation))
        if merge.is_replaced or merge.is_widened:
            self._effects.append(Rebuild(name))
        if state.home != home:
            self._effects.append(HomeChanged(name, state.home))
        if merge.is_changed:
            self._header_changed(name, peer.cluster)
        if StateItem.of(name, state) != item:
            peer.lack_header(name)

    def _take_acks(self, peer: Peer, item: AcksItem) -> None:
        lifecycle = self._lifecycles.get(item.name)
        if lifecycle is None or lifecycle.state is None or not lifecycle.counts(item.token, item.generation):
            return
        if item.origin not in peer.proved:
            return
        last = item.ranges.last
        if item.origin == self.origin and last is not None and last >= self._end():
            peer.proved.discard(item.origin)
            self._effects.append(Diverged(peer.cluster, item.origin, last + 1))
            self._report_history(peer, item.origin, is_same=False)  # otherwise it takes them for stored here
            return
        state = lifecycle.state
        new = state.acks.add(item.origin, *item.ranges.intersect())
        peer.note_has(item.name, item.origin, item.ranges)
        if last is not None:
            self.early_acks.expect_up_to(item.origin, last)
        if not new:
            return
        self._records += self._acks_items(item.name, state, item.origin, new)
        self._releases.append(
            _AcksRelease(item.name, min(state.tokens), state.generation, item.origin, new, peer.cluster)
        )
        present = subtract(self.early_acks.present(item.origin, new), state.bases.of(item.origin))
        if present:
            self._effects.append(
                Acknowledge(item.name, min(state.tokens), state.generation, item.origin, present.intersect())
            )

    def _take_tombstone(self, peer: Peer, item: TombstoneItem) -> None:
        lifecycle = self._lifecycles.setdefault(item.name, SubscriptionLifecycle())
        lives = lifecycle.state is not None and item.token in lifecycle.state.tokens
        if not lives and item.token not in lifecycle.tombstones and item.confirmed >= self._participants:
            if lifecycle.is_empty:
                del self._lifecycles[item.name]
            return  # all clusters had the tombstone, and this one has forgotten it
        if not item.confirmed.issuperset(lifecycle.tombstones.get(item.token, ())):
            peer.lack_tombstone(item.name, item.token)  # its topic was created again, and got it from another neighbour
        self._note_tombstones(item.name, lifecycle.add_tombstone(item.token, item.confirmed))

    def _confirmed(self, peer: Peer, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, TombstoneItem) and item.confirmed >= self._participants:
                peer.note_settled(item.name, item.token)
        self._settle_tombstones()

    def _undurable(self, name: str, origin: Origin) -> RangeSet:
        """Return the acknowledgements that are not durable here yet; they are sent later."""
        ranges = copy_ranges(self._dirty.get((name, origin), RangeSet()))
        for releases in (self._releases, *(waiting for _, _, waiting in self._persisting)):
            for release in releases:
                if isinstance(release, _AcksRelease) and (release.name, release.origin) == (name, origin):
                    ranges.add_ranges(*release.ranges.intersect())
        return ranges

    def _note_same_tombstones(self, peer: Peer, name: str) -> None:
        """Note that the neighbour has the same tombstones: those that all clusters have are settled there, too."""
        lifecycle = self._lifecycles[name]
        for token in lifecycle.tombstones:
            if lifecycle.is_settled(token, self._participants):
                peer.note_settled(name, token)

    # ---- changes here ----------------------------------------------------------------------------------------------

    def _header_changed(self, name: str, source: bytes | None) -> None:
        state = self.state(name)
        assert state is not None
        self._records.append(StateItem.of(name, state))
        self._undurable_headers[name] += 1
        self._releases.append(_HeaderRelease(name, source))

    def _generation_changed(self, name: str) -> None:
        """Drop unsent acknowledgements of the former generation."""
        for key in [key for key in self._dirty if key[0] == name]:
            del self._dirty[key]
        for peer in self._peers.values():
            peer.drop(name)

    def _note_tombstones(self, name: str, change: Change) -> None:
        lifecycle = self._lifecycles[name]
        if change.is_deleted:
            self._generation_changed(name)
            self._expired.pop(name, None)
            self._effects.append(Drop(name))
        for token in sorted(change.changed_tombstones):
            self._records.append(TombstoneItem(name, token, frozenset(lifecycle.tombstones[token])))
            self._releases.append(_TombstoneRelease(name, token))

    def _settle_tombstones(self) -> None:
        """Forget tombstones that every cluster has, once every neighbour knows that and sends no older items."""
        for name, lifecycle in [*self._lifecycles.items()]:
            for token in [*lifecycle.tombstones]:
                if not lifecycle.is_settled(token, self._participants):
                    continue
                if all(peer.knows_settled(name, token) for peer in self._peers.values()):
                    lifecycle.forget(token)
                    self._records.append(ForgottenItem(name, token))
                    for peer in self._peers.values():
                        peer.forget(name, token)
            if lifecycle.is_empty:
                del self._lifecycles[name]

    # ---- durability ------------------------------------------------------------------------------------------------

    def flush(self) -> list[Effect]:
        """Store the acknowledgements since the last flush, and send the durable ones; call it every 0.2 s."""
        self._flushes += 1
        for peer in self._peers.values():
            for origin in list(peer.histories.due):
                if self._flushes % REPORT_FLUSHES == 0 or not peer.histories.is_reported(origin):
                    self._report_due(peer, origin)
            peer.wait(LATE_FLUSHES if self.cluster < peer.cluster else LATER_FLUSHES)
        self._bound_holes(only_grown=True)
        self._send_deltas()
        return self._store_changes()

    def persisted(self, sequence: int) -> list[Effect]:
        """Note that all records up to `sequence` are durable."""
        is_urgent = False
        while self._persisting and self._persisting[0][0] <= sequence:
            _, items, releases = self._persisting.popleft()
            for item in items:
                if isinstance(item, StateItem):
                    self._undurable_headers.subtract([item.name])
                    self._undurable_headers += Counter()  # without zeros
                elif isinstance(item, TombstoneItem):
                    self._tombstone_stored(item)
            is_urgent |= self._release(releases)
        self._settle_tombstones()
        if is_urgent:
            self._send_deltas()
        return self._store_changes() if self._records else self._take_effects()

    def _tombstone_stored(self, item: TombstoneItem) -> None:
        lifecycle = self._lifecycles.get(item.name)
        if lifecycle is not None and lifecycle.confirm(item.token, self.cluster):
            for peer in self._peers.values():
                peer.lack_tombstone(item.name, item.token)

    def _release(self, releases: Sequence[_Release]) -> bool:
        """Queue durable items for neighbours; return whether some are urgent, because they are of this cluster."""
        is_urgent = False
        for release in releases:
            if isinstance(release, _Reply):
                self._send(release.peer, release.message)
                continue
            for peer in self._peers.values():
                match release:
                    case _AcksRelease(name, token, generation, origin, ranges, source):
                        lifecycle = self._lifecycles.get(name)
                        if peer.cluster == source or lifecycle is None or not lifecycle.counts(token, generation):
                            continue
                        sender = None if source is None else self._peers.get(source)
                        is_late = sender is not None and peer.cluster in sender.connected
                        (peer.lack_late if is_late else peer.lack)(name, origin, ranges)
                    case _HeaderRelease(name, source):
                        if peer.cluster != source:
                            peer.lack_header(name)
                    case _TombstoneRelease(name, token):
                        peer.lack_tombstone(name, token)
            is_urgent |= isinstance(release, _TombstoneRelease) or release.source is None
        return is_urgent

    def _store_changes(self) -> list[Effect]:
        """Store the changes. Replies wait for the last record; if no record is being stored, they leave at once."""
        for (name, origin), ranges in self._dirty.items():
            state = self.state(name)
            if state is not None:
                self._records += self._acks_items(name, state, origin, ranges)
                self._releases.append(_AcksRelease(name, min(state.tokens), state.generation, origin, ranges, None))
        self._dirty.clear()
        if self._records:
            self._persist()
        elif self._releases and self._persisting:
            self._persisting[-1][2].extend(self._releases)
            self._releases.clear()
        elif self._releases:
            releases, self._releases = self._releases, []
            if self._release(releases):
                self._send_deltas()
        return self._take_effects()

    def _persist(self) -> None:
        """Store the records. If they are too large they are lost, and the journal has no gap: others go on."""
        items, self._records = tuple(self._records), []
        releases, self._releases = self._releases, []
        data, is_snapshot = None, self._journal_bytes > max(SNAPSHOT_BYTES, 2 * self._snapshot_bytes)
        if is_snapshot:
            with suppress(InvalidArgumentError):  # too large: the former records are kept
                contents = [*snapshot_items(self._lifecycles, self._unknown)]
                data = encode_record(self._sequence + 1, contents, is_snapshot=True)
        is_snapshot = data is not None
        if data is None:
            data = encode_record(self._sequence + 1, items)
        self._sequence += 1
        if is_snapshot:
            self._snapshot_bytes, self._journal_bytes = len(data), 0
        self._journal_bytes += len(data)
        self._persisting.append((self._sequence, items, releases))
        self._effects.append(Persist(self._sequence, data, is_snapshot))

    @staticmethod
    def _acks_items(name: str, state: SubscriptionState, origin: Origin, ranges: RangeSet) -> Iterator[Item]:
        for part in split_ranges(ranges, ITEM_RANGES):
            yield AcksItem(name, min(state.tokens), state.generation, origin, part)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _send(self, peer: bytes, message: Message) -> None:
        neighbour = self._peers.get(peer)
        if neighbour is not None and neighbour.session == message.session:
            self._effects.append(Send(peer, message.session, encode(message)))

    def _send_deltas(self) -> None:
        for peer in self._peers.values():
            for delta in peer.deltas(self._lifecycles, self._undurable_headers.keys()):
                self._send(peer.cluster, delta)

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _below(end: int) -> Ranges:
    return np.zeros(1, np.int64), np.array([end], np.int64)
