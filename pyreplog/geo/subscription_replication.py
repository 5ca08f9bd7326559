"""SubscriptionReplication: replicates the durable subscriptions of one topic to and from other clusters."""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.range_set import OFFSET_END, RangeSet
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    ReplogError,
    TopicFencedError,
    TrimmedError,
)
from pyreplog.event_queue import EventQueue
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.geo.acks.digests import prefix_of
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
from pyreplog.geo.acks.exchange import HOLES_MAX, SubscriptionExchange
from pyreplog.geo.acks.handover import Handover, HandoverPhase
from pyreplog.geo.acks.journal import replay
from pyreplog.geo.acks.origin_ranges import Offsets, Ranges, copy_ranges, subtract
from pyreplog.geo.acks.readiness import readiness
from pyreplog.geo.acks.subscription_position import SubscriptionPosition, place
from pyreplog.geo.acks.subscription_state import FIRST_HOME, NO_CLUSTER, Home, SubscriptionState
from pyreplog.geo.exchange_connection import ExchangeConnection
from pyreplog.geo.origin_entries import read_entry
from pyreplog.geo.planned_handover import HandoverStatus, PlannedHandover
from pyreplog.geo.position_pages import PositionPages
from pyreplog.geo.protocol.effects import TargetPosition
from pyreplog.geo.subscription_journal import SubscriptionJournal
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.target_link import ExchangeLink
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.net.backoff import Backoff
from pyreplog.origins.origin import LastEntry, Origin
from pyreplog.topic.model.positions import TopicPosition, position
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.wire.protocol import Exchange, Exchanged
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

T = TypeVar("T")

FLUSH_S = 0.2
"""Seconds from an acknowledgement until it is passed to the exchange, with the others of that time."""
RETRY_S, RETRY_MOST_S = 0.1, 30.0
"""Seconds between attempts of a step that failed."""
HANDOVER_S = 0.05
"""Seconds between two checks of the messages that consumers hold, during a handover."""


class Neighbour(NamedTuple):
    """Another cluster that the topic is replicated to or from.

    Attributes:
        name: its name in policies.
        cluster: its id.
        link: the connection to it.
        target_position: returns the other cluster's last confirmed position in this topic, as the replicator noted it;
            None: this topic was never sent there.
        forwarded: returns the offset at another origin below which the other cluster has confirmed everything; None:
            messages of that origin are not forwarded to it, and come from elsewhere, or not at all.
        sent: returns the offset at an origin below which messages were sent that the other cluster may store.
    """

    name: str
    cluster: bytes
    link: ExchangeLink
    target_position: Callable[[], TargetPosition | None]
    forwarded: Callable[[Origin], int | None] = lambda _: None
    sent: Callable[[Origin], int] = lambda _: 0


class _EraOffset(NamedTuple):
    """An offset in one era of a cursor: a seek, which begins another era, makes it void."""

    era: int
    offset: int


class _Progress:
    """The progress of one subscription in this cluster: how far its cursor agrees with the state of all clusters."""

    def __init__(self) -> None:
        self.era: int | None = None  # of acknowledgements that belong to the state; None: the cursor is being rebuilt
        self.is_rebuilding = False  # the cursor is being rebuilt or restored: no message is delivered
        self.rebuilds = 0
        self.has_rebuild_job = False  # a job reads the entries that the rebuild needs, and may create the subscription
        self.created: Subscription | None = None  # by that job
        self.awaits_deletion = False  # of the former subscription of this name, here
        self.acked = RangeSet()  # acknowledged offsets that the exchange does not know yet
        self.expired = RangeSet()
        self.header_at: int | None = None  # record with which the present header is durable; None: it was noted
        self.home_at: int | None = None  # record with which the present home is durable; None: the metadata have it
        self.has_home_job = False  # a job stores the home in the metadata
        self.passed_below = _EraOffset(-1, 0)  # the exchange knows all acknowledgements below this offset
        self.journaled_below = _EraOffset(-1, 0)  # all below this one are durable in the journal
        self.passed_by_record: deque[tuple[int, _EraOffset]] = deque()  # `passed_below`, by the record that stores it


class SubscriptionReplication:
    """Replicates the durable subscriptions of one topic, so that each can go on in another cluster at its position.

    It drives a `SubscriptionExchange`: passes acknowledgements of this cluster to it, keeps its journal, carries
    messages to the other clusters, and applies their acknowledgements to the cursors here. It is a
    `SubscriptionWatcher`, an `ExchangePeer` and a `ConnectionOwner`. Any thread may use it; only `hand_over`,
    `take_over`, `readiness` and `where` wait.

    Args:
        topic: the topic, which this process owns; close this object before it.
    """

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._context = topic.context
        self._events = EventQueue()
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._read_backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._journal: SubscriptionJournal | None = None
        self._adopted: list[SubscriptionJournal] = []  # those that attempts to begin passed to `adopt`: one may be live
        self._exchange: SubscriptionExchange | None = None
        self._positions = TopicPositions(topic.origin, 0, topic.origins.names)
        self._pages = PositionPages(topic.context)
        self._neighbours: dict[bytes, Neighbour] = {}
        self._unreachable: list[bytes] = []
        self._connections: dict[bytes, ExchangeConnection] = {}
        self._alarms: dict[bytes, str] = {}
        self._locals: dict[str, _Progress] = {}
        self._deletions: dict[str, list[Subscription]] = {}  # those that a job deletes here, or will delete
        self._new_seeks: deque[tuple[Subscription, int, int]] = deque()  # seeks that the next step takes
        self._issued_sequence = self._durable_sequence = 0  # sequences of the journal
        self._durability_waiters: deque[tuple[int, AppendFuture[None]]] = deque()  # by record
        self._handovers: dict[str, PlannedHandover] = {}  # the last one of each subscription
        self._homes_elsewhere: dict[str, bytes] = {}  # by subscription; replaced, never changed
        self._malformed_homes: dict[str, str] = {}  # errors by subscription; replaced, never changed
        part = partition_of(topic.name)
        self._is_first_partition = part is not None and part[1] == 0
        self._is_later_partition = part is not None and part[1] > 0
        self._is_check_scheduled = False
        self._first_end = 0
        self._is_ready = self._is_reading = self._is_growth_posted = self._is_flush_scheduled = self._is_over = False
        self._is_ending = False  # set before `_is_over`, by any thread: no journal is adopted any more
        self.error: ReplogError | None = None
        """Error of the last attempt to begin; None: it has begun, or did not fail."""

    # ---- beginning and ending -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: read the journal, the pages of positions, and the kept entries of ledgers without a page.

        Then deliver, and connect.
        """
        self._context.work(self._begin)

    def _begin(self) -> None:
        """Read the journal and the pages; in a thread that may wait."""
        if self._is_over:
            return
        journal = SubscriptionJournal(self._context, self._on_persisted, self._on_lost)
        self._adopted.append(journal)
        try:
            self._pages.load()
            if not self.topic.system_cursors.adopt(journal, if_=lambda: not self._is_ending):
                return
            replayed = replay(journal.records)
            own = self.topic.origin
            self.topic.renew_lost_origin(journal.name, own, replayed.end_of(own))
        except ReplogError as error:
            self.error = error
            if isinstance(error, ClosedError | TopicFencedError):
                return
            logger.warning("topic %s: subscriptions cannot be replicated yet: %s", self.topic.name, error)
            self._context.runtime.wake_after(self._backoff.next_s(), self.start)
            return
        self.error = None

        def begun() -> None:
            if self._is_over:
                return
            self._journal = journal
            self._issued_sequence = self._durable_sequence = replayed.sequence
            self._exchange = SubscriptionExchange(
                self.topic.origin, participants=self._participants(), neighbours=self._neighbours, replayed=replayed,
                positions=self.topic.origins.all, end=lambda: self.topic.managed.end.offset,
            )  # fmt: skip
            self._take_over(was_replicated=replayed.sequence > 0)

        self._events.post(begun)

    def _take_over(self, *, was_replicated: bool) -> None:
        """Watch the subscriptions, and read the kept entries."""
        managed = self.topic.managed
        self._first_end = managed.end.offset
        self._positions = TopicPositions(
            self.topic.origin, managed.start.offset, self.topic.origins.names, self.topic.origins.former
        )
        self.topic.watch_subscriptions(self)
        if not was_replicated:  # no other cluster has acknowledged messages that may be in flight to consumers
            for subscription in self._durable_subscriptions():
                if self._home_at_birth(subscription).admits(self.topic.origin.cluster):
                    subscription.limit_to(self._first_end)
        managed.on_grow.append(self._on_grow)
        self._read_next()

    def configure(self, neighbours: Mapping[str, Neighbour], unreachable: Collection[bytes] = ()) -> None:
        """Use these other clusters.

        Args:
            neighbours: the other clusters, by name.
            unreachable: ids of other clusters that have no link now; deletions are remembered for them.
        """

        def configure() -> None:
            self._unreachable = list(unreachable)
            self._neighbours = {neighbour.cluster: neighbour for neighbour in neighbours.values()}
            for peer, connection in list(self._connections.items()):
                neighbour = self._neighbours.get(peer)
                if neighbour is None or neighbour.link is not connection.link:
                    connection.close()
                    del self._connections[peer]
            if self._exchange is not None:
                self._carry_out(self._exchange.configure(self._participants(), self._neighbours))
            if self._is_ready:
                self._connect()
                self._advance_handovers()

        self._events.post(configure)

    def _participants(self) -> list[bytes]:
        return [self.topic.origin.cluster, *self._neighbours, *self._unreachable]

    def _durable_subscriptions(self) -> list[Subscription]:
        return [subscription for subscription in self.topic.all_subscriptions() if subscription.cursor.durable]

    def close(self) -> None:
        """End; the next owner of the topic goes on with the replication."""

        def close() -> None:
            if self._is_over:
                return
            self._is_over = True
            self.topic.exchange_peer = None
            for connection in self._connections.values():
                connection.close()
            if self._exchange is not None:
                with suppress(ValueError):
                    self.topic.managed.on_grow.remove(self._on_grow)
                self._pass_all_acks()
                self._carry_out(self._exchange.flush())
            awaited, self._durability_waiters = self._durability_waiters, deque()
            for _, stored in awaited:
                set_exception(stored, ClosedError(f"topic {self.topic.name}: it was closed: try again"))

        self._is_ending = True
        self._events.post(close)

    def remove(self) -> None:
        """End for good: from now on the subscriptions belong to this cluster alone."""
        self.close()
        self._events.post(lambda: self._context.work(self._remove))  # after it has ended: it may be about to watch

    def _remove(self) -> None:
        self.topic.watch_subscriptions(None, former=self)
        try:
            if not self.topic.system_cursors.remove(SubscriptionJournal.name, self._adopted):
                return  # they are replicated again: another object has the journal and the pages
        except ReplogError as error:
            logger.warning("topic %s: the journal of its subscriptions was not deleted: %s", self.topic.name, error)
        try:
            self._pages.remove()
        except ReplogError as error:
            logger.warning("topic %s: its pages of positions were not deleted: %s", self.topic.name, error)
        try:
            self.topic.forget_homes()
        except ReplogError as error:
            logger.warning("topic %s: the homes of its subscriptions were not deleted: %s", self.topic.name, error)

    def _on_lost(self, error: ReplogError) -> None:
        logger.warning("topic %s: replication of its subscriptions has ended: %s", self.topic.name, error)
        self.close()

    # ---- messages of the topic ------------------------------------------------------------------------------

    def _on_grow(self) -> None:
        if not self._is_growth_posted:
            self._is_growth_posted = True
            self._events.post(self._read_next)

    def _read_next(self) -> None:
        self._is_growth_posted = False
        if self._is_over or self._is_reading:
            return
        if not self._is_ready:
            self._pages.add_to(self._positions)
            if self._positions.end >= self._first_end:
                self._begin_to_deliver()
        if self._positions.end >= self.topic.managed.end.offset:
            return
        self._is_reading = True
        try:
            read = self.topic.managed.read(self._positions.end)
        except ReplogError as error:
            self._read_failed(error)
        else:
            read.add_done_callback(lambda _: self._events.post(partial(self._entries_read, read)))

    def _entries_read(self, read: AppendFuture[MessageBatch]) -> None:
        error = read.exception()
        if error is not None:
            self._read_failed(error)
            return
        self._is_reading = False
        self._read_backoff.reset()
        batch = read.result()
        ends = self._positions.add(batch)
        if not self._is_over:
            self._pages.seal(self._positions)
        if self._is_ready and not self._is_over:
            assert self._exchange is not None
            for origin, end in ends.items():
                self._carry_out(self._exchange.arrive(origin, end), batch)
            for name in self._locals:
                self._limit(name)
            self._trim()
        self._read_next()

    def _trim(self) -> None:
        """Forget the positions of messages that were removed, once the exchange knows all their acknowledgements."""
        start = self.topic.managed.start.offset
        if not self._positions.start < start <= self._positions.end:
            return
        for name, local in self._locals.items():
            subscription = self._find(name)
            if subscription is None or local.era is None or subscription.cursor.mark.offset < start:
                return  # acknowledgements of these messages may still come: the next batch is another chance
        self._pass_all_acks()
        self._positions.trim(start)
        self._note_removed()

    def _note_removed(self) -> None:
        """Tell the exchange which messages of each origin were removed here."""
        assert self._exchange is not None
        starts = {origin: self._positions.first(origin) for origin in self._positions.ends()}
        self._carry_out(self._exchange.remove(starts | {self._positions.own: self._positions.start}))

    @property
    def position_runs(self) -> int:
        """Number of runs of neighbouring messages in the position maps of all other origins. Any thread."""
        return self._positions.translation.runs

    @property
    def ack_ranges(self) -> int:
        """Number of ranges of acknowledged messages that are kept and exchanged, of all subscriptions. Waits."""
        return self._call_as_step(self._count_ack_ranges)

    def _count_ack_ranges(self) -> int:
        states = [] if self._exchange is None else [self._exchange.state(name) for name in self._exchange.names()]
        return sum(state.acks.ranges + state.bases.ranges for state in states if state is not None)

    def _read_failed(self, error: BaseException) -> None:
        self._is_reading = False
        if isinstance(error, TrimmedError):
            self._positions.skip_to(self.topic.managed.start.offset)
        elif isinstance(error, ClosedError | TopicFencedError):
            return
        logger.info("topic %s: entries from %d on are read again: %s", self.topic.name, self._positions.end, error)
        self._context.runtime.wake_after(self._read_backoff.next_s(), self._on_grow)

    def _begin_to_deliver(self) -> None:
        """Bring the cursors in step with the journal, and connect: the positions of all kept messages are known."""
        assert self._exchange is not None
        self._is_ready = True
        for origin, end in self._positions.ends().items():
            self._exchange.arrive(origin, end)  # cursors are set as a whole
        self._note_removed()
        existing = {subscription.name: subscription for subscription in self._durable_subscriptions()}
        for name in self._exchange.names():
            self._locals[name] = _Progress()
            self._locals[name].home_at = self._issued_sequence
            if name in existing:
                self._restore(existing[name])
                self._inherit_home(existing[name])
            else:
                self._rebuild(name)
        for name in existing.keys() - {*self._exchange.names()}:
            if self._exchange.tombstones(name) and existing[name].acked_ranges().header:
                self._drop(name)
            else:
                self._create(existing[name])
        self.topic.exchange_peer = self
        self._connect()

    # ---- the exchange ---------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect], batch: MessageBatch | None = None) -> None:
        """Carry effects out. batch: the entries whose arrival caused them."""
        for effect in effects:
            match effect:
                case Persist():
                    self._issued_sequence = effect.sequence
                    if self._journal is not None:
                        self._journal.append(effect)
                case Send(peer, session, data):
                    if (connection := self._connections.get(peer)) is not None:
                        connection.send(session, data)
                case Acknowledge():
                    self._acknowledge(effect, batch)
                case Rebuild(name):
                    self._rebuild(name)
                case Drop(name):
                    self._drop(name)
                case SeekLost(name, generation, by):
                    logger.warning(
                        "topic %s: the seek %d of subscription %s here was replaced by a seek in cluster %s",
                        self.topic.name, generation.counter, name, by.cluster.hex(),
                    )  # fmt: skip
                case HomeChanged(name, _):
                    self._home_changed(name)
                case Diverged(peer, origin, end):
                    self.diverged(peer, f"it has acknowledgements of {origin.token} up to {end}, beyond its end here")
                case CompareEntry():
                    self._read_to_compare(effect)
                case HistoryDiffers(peer, origin, first) if origin.cluster == peer:
                    self.diverged(
                        peer, f"its topic {origin.token} ends at {first}, and a later message is acknowledged here: it "
                        "was rolled back",
                    )  # fmt: skip
                case HistoryDiffers(peer, origin, first):
                    self.diverged(
                        peer, f"messages of the cluster {self._name_of(origin)} ({origin.token}): the entry at {first} "
                        "is another one there: one of the two clusters was rolled back, or the one that published "
                        "them. Compare the topic in all three",
                    )  # fmt: skip
        self._advance_handovers()
        for connection in list(self._connections.values()):
            connection.send_due()
        is_connected = any(connection.is_connected for connection in self._connections.values())
        if is_connected and self._exchange is not None and not self._exchange.is_idle:
            self._flush_later()

    def _on_persisted(self, sequence: int) -> None:
        def persisted() -> None:
            if self._exchange is None:
                return
            self._durable_sequence = sequence
            self._carry_out(self._exchange.persisted(sequence))
            self._note_durable()
            for name, local in self._locals.items():
                self._note_header(name, local)
                self._note_home(name, local)
            while self._durability_waiters and self._durability_waiters[0][0] <= sequence:
                set_result(self._durability_waiters.popleft()[1], None)

        self._events.post(persisted)

    def _note_header(self, name: str, local: _Progress) -> None:
        """Store the header's digest with the cursor, once the journal has the header."""
        state, subscription = self._state(name), self._find(name)
        if local.header_at is None or local.header_at > self._durable_sequence or local.era is None:
            return
        local.header_at = None
        if state is not None and subscription is not None:
            subscription.note_header(self._header(state), local.era)

    def _header(self, state: SubscriptionState) -> int:
        """Return the digest of a header as a property of a cursor; never 0.

        The topic's identity is part of it, once it has another one than at first: what a cursor has acknowledged under
        the former identity may have been other messages, which only another cluster has.
        """
        digest = state.header_digest()
        if self.topic.origins.former:
            digest = blake2b(digest + self._positions.own.token.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True) or 1

    def _state(self, name: str) -> SubscriptionState | None:
        return None if self._exchange is None else self._exchange.state(name)

    def _find(self, name: str) -> Subscription | None:
        with suppress(ReplogError):
            return self.topic.subscription(name)
        return None

    # ---- acknowledgements here ------------------------------------------------------------------------------

    def changed(self, subscription: Subscription) -> None:
        """Take the acknowledgements soon; see `SubscriptionWatcher`."""
        self._flush_later()

    def _flush_later(self) -> None:
        if not self._is_flush_scheduled and not self._is_over:
            self._is_flush_scheduled = True
            self._context.runtime.wake_after(FLUSH_S, lambda: self._events.post(self._flush))

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._is_ready and not self._is_over and self._exchange is not None:
            self._pass_all_acks()
            self._carry_out(self._exchange.flush())
            for local in self._locals.values():
                if local.passed_by_record and local.passed_by_record[-1][0] == self._issued_sequence:
                    local.passed_by_record.pop()
                local.passed_by_record.append((self._issued_sequence, local.passed_below))
            self._note_durable()

    def _note_durable(self) -> None:
        """Let the messages be trimmed whose acknowledgements are durable in the journal."""
        for local in self._locals.values():
            before = local.journaled_below
            while local.passed_by_record and local.passed_by_record[0][0] <= self._durable_sequence:
                local.journaled_below = local.passed_by_record.popleft()[1]
            if local.journaled_below != before:
                self._context.touch()

    def journaled_mark(self, subscription: Subscription) -> int:
        """Return the offset from which on messages are not trimmed; see `SubscriptionWatcher`.

        Acknowledgements that the journal lacks after a crash are read from the cursor, and named by the positions of
        their messages: a message that was trimmed has none.

        Args:
            subscription: the subscription.
        """
        local = self._locals.get(subscription.name)
        era, offset = _EraOffset(-1, 0) if local is None else local.journaled_below
        if era != subscription.era:
            offset = 0
        if offset < subscription.cursor.mark.offset:
            self._flush_later()
        return offset

    def _pass_all_acks(self) -> None:
        """Pass the acknowledgements since the last call to the exchange."""
        self._take_seeks()
        for name, local in self._locals.items():
            subscription = self._find(name)
            if subscription is not None and local.era is not None:
                self._pass_acks(subscription, local)

    def _pass_acks(self, subscription: Subscription, local: _Progress) -> bool:
        """Pass the new acknowledgements of a subscription to the exchange; return whether it knows all of them now."""
        mark, era = subscription.cursor.mark.offset, local.era
        taken = None if era is None else subscription.take_acked(era)
        if era is None or taken is None:
            return False
        for offsets, more in zip((local.acked, local.expired), taken, strict=True):
            offsets.add_ranges(*more.intersect())
        end = self._positions.end  # offsets beyond it cannot be translated yet
        start = min(self.topic.managed.start.offset, end)
        self._pass_ranges(subscription.name, local.acked.intersect(start, end))
        # The cursor has all removed messages as acknowledged, and the exchange knows which of them were: the others
        # were passed over in this cluster alone.
        self._pass_ranges(subscription.name, local.acked.intersect(0, start), expires=True)
        self._pass_ranges(subscription.name, local.expired.intersect(0, end), expires=True)
        local.acked.remove(0, end)
        local.expired.remove(0, end)
        firsts = [first for first in (local.acked.first, local.expired.first) if first is not None]
        local.passed_below = _EraOffset(era, min([mark, *firsts]))
        return not local.acked

    def _pass_ranges(self, name: str, ranges: Ranges, *, expires: bool = False) -> None:
        """Pass offsets that were acknowledged or expired here to the exchange."""
        exchange, state = self._exchange, self._state(name)
        if exchange is None or state is None or not len(ranges[0]):
            return
        token, generation = min(state.tokens), state.generation
        for origin, (starts, ends) in self._positions.translation.to_origins(ranges).items():
            if expires:
                exchange.expire(name, origin, starts, ends)
            else:
                exchange.acknowledge(name, token, generation, origin, starts, ends)

    def sought(self, subscription: Subscription, offset: int, era: int) -> None:
        """Note a seek; see `SubscriptionWatcher`."""
        if self._locals.get(subscription.name) is not None:
            self._new_seeks.append((subscription, offset, era))
            self._flush_later()

    def _take_seeks(self) -> None:
        """Begin another generation for each seek; the cursor was moved already."""
        while self._new_seeks:
            subscription, offset, era = self._new_seeks.popleft()
            name = subscription.name
            local = self._locals.get(name)
            state = self._state(name)
            if local is None or self._exchange is None or state is None or era != subscription.era:
                continue  # the cursor was moved again since
            base = self._positions.base_of_seek(state, offset, self.topic.managed.start.offset)
            effects = self._exchange.seek(name, base)
            local.era, local.acked, local.expired = era, RangeSet(), RangeSet()
            self._carry_out([effect for effect in effects if not isinstance(effect, Rebuild)])
            local.header_at = self._issued_sequence

    # ---- creation and deletion ------------------------------------------------------------------------------

    def created(self, subscription: Subscription) -> None:
        """Replicate a new subscription; see `SubscriptionWatcher`."""

        def created() -> None:
            if not self._is_ready or self._is_over or subscription.name in self._deletions:
                return
            if self._state(subscription.name) is None:
                self._create(subscription)
            else:
                self._inherit_home(subscription)

        self._events.post(created)

    def _create(self, subscription: Subscription) -> None:
        """Replicate a subscription of this cluster from its present position on."""
        assert self._exchange is not None
        name, ranges = subscription.name, subscription.acked_ranges()
        local = self._locals[name] = _Progress()
        local.era = ranges.era
        bases = self._positions.translation.held_below(min(prefix_of(ranges.acked), self._positions.end))
        removed = ranges.acked.intersect(0, min(self.topic.managed.start.offset, self._positions.end))
        for origin, passed in self._positions.translation.to_origins(removed).items():
            bases.add(origin, *passed)  # removed messages are no acknowledgements later
        home = self._home_at_birth(subscription)
        self._carry_out(self._exchange.create(name, secrets.token_hex(16), bases, home))
        local.header_at = local.home_at = self._issued_sequence
        self._pass_acks(subscription, local)
        self._carry_out(self._exchange.flush())
        self._limit(name)
        self._flush_later()

    def deleted(self, name: str) -> None:
        """Delete the subscription in all clusters; see `SubscriptionWatcher`."""

        def deleted() -> None:
            if name in self._deletions:
                return
            local = self._locals.pop(name, None)
            if local is not None and local.has_rebuild_job:  # the job may create it again
                self._deletions[name] = []
            if self._exchange is not None and self._state(name) is not None and not self._is_over:
                effects = self._exchange.delete(name)
                self._carry_out([effect for effect in effects if not isinstance(effect, Drop)])

        self._events.post(deleted)

    def _drop(self, name: str) -> None:
        """Delete a subscription that was deleted in another cluster."""
        local, subscription = self._locals.pop(name, None), self._find(name)
        if name not in self._deletions:
            self._deletions[name] = [] if subscription is None else [subscription]
            if local is None or not local.has_rebuild_job:  # otherwise at the end of the job, which may create it
                self._delete_here(name)

    def _delete_here(self, name: str) -> None:
        """Delete a subscription in `_deletions`. If it exists elsewhere again, `_rebuild` waits for the deletion."""
        pending_deletion = self._deletions[name]

        def drop() -> None:
            try:
                if self._find(name) in pending_deletion:  # it may have been created again here
                    self.topic.delete_subscription(name, force=True)
            except NoSuchSubscriptionError:
                pass
            except ReplogError as error:
                self._retry_later(error, partial(self._retry_drop, name))
                return
            self._events.post(partial(self._dropped, name))

        self._context.work(drop)

    def _retry_drop(self, name: str) -> None:
        if self._state(name) is None:
            self._delete_here(name)
        else:  # it exists again: its cursor is set
            self._dropped(name)

    def _dropped(self, name: str) -> None:
        """Set the cursor of the next subscription of this name, or replicate it if it was created here meanwhile."""
        self._backoff.reset()
        self._deletions.pop(name, None)
        local, subscription = self._locals.get(name), self._find(name)
        if local is not None and local.awaits_deletion:
            local.awaits_deletion = False
            self._rebuild(name)
        elif subscription is not None and subscription.cursor.durable:
            self.created(subscription)

    def _retry_later(self, error: ReplogError, step: Callable[[], object]) -> None:
        """Repeat a step that failed in a thread, later."""
        if isinstance(error, ClosedError | TopicFencedError) or self._is_over:
            return
        logger.info("topic %s: another attempt follows: %s", self.topic.name, error)
        self._context.runtime.wake_after(self._backoff.next_s(), lambda: self._events.post(step))

    # ---- acknowledgements of other clusters -----------------------------------------------------------------

    def _acknowledge(self, effect: Acknowledge, batch: MessageBatch | None) -> None:
        local, subscription = self._locals.get(effect.name), self._find(effect.name)
        if local is None or local.era is None or subscription is None:
            return  # the acknowledgements are applied once the cursor was rebuilt
        starts, ends = self._positions.translation.to_local(effect.origin, effect.ranges)
        if not len(starts):
            return
        era = local.era
        subscription.acknowledge_elsewhere(starts, ends, batch=batch, if_=lambda: subscription.era == era)

    def _passed(self, state: SubscriptionState) -> RangeSet:
        """Return the offsets here that the state passes over, and those below the start of the topic."""
        passed, translation = RangeSet(), self._positions.translation
        for origin in state.origins():
            passed.add_ranges(*translation.to_local(origin, state.passed(origin)))
        if start := self.topic.managed.start.offset:
            passed.add(0, start)
        return passed

    def _restore(self, subscription: Subscription) -> None:
        """Bring a stored cursor in step with the journal. If both are of the same state, the acknowledgements that only
        the cursor has are kept.
        """
        assert self._exchange is not None
        name, ranges, local = subscription.name, subscription.acked_ranges(), self._locals[subscription.name]
        state = self._state(name)
        assert state is not None
        if ranges.header != self._header(state):
            self._rebuild(name)
            return
        local.era = era = ranges.era
        if (taken := subscription.take_acked(era)) is not None:
            acked, _ = taken
            local.expired = subtract(_below(acked, ranges.expired_below), self._passed(state))
            local.acked = subtract(acked, local.expired)
            self._pass_acks(subscription, local)
        applied = subscription.acknowledge_elsewhere(
            *self._passed(state).intersect(subscription.cursor.mark.offset, self._positions.end),
            if_=lambda: subscription.era == era,
        )
        self._deliver_after(name, local, applied)
        self._flush_later()

    def _deliver_after(self, name: str, local: _Progress, applied: AppendFuture[None]) -> None:
        """Hold deliveries back until the cursor is in step, or a later placing is done."""
        local.is_rebuilding = True
        local.rebuilds += 1
        number = local.rebuilds
        applied.add_done_callback(lambda _: self._events.post(lambda: self._cursor_applied(name, local, number)))

    def _cursor_applied(self, name: str, local: _Progress, number: int) -> None:
        """Deliver, because the cursor is in step."""
        if self._locals.get(name) is local and local.rebuilds == number and local.era is not None:
            local.is_rebuilding = False
            self._limit(name)

    def _limit(self, name: str) -> None:
        """Let the subscription deliver the messages that were read and whose acknowledgements are applied."""
        local, subscription, state = self._locals.get(name), self._find(name), self._state(name)
        if local is None or subscription is None or state is None:
            return
        is_home = state.home.admits(self.topic.origin.cluster)
        if is_home == (name in self._homes_elsewhere):
            others = {other: home for other, home in self._homes_elsewhere.items() if other != name}
            self._homes_elsewhere = others if is_home else {**others, name: state.home.cluster}
        elif not is_home and self._homes_elsewhere[name] != state.home.cluster:
            self._homes_elsewhere = {**self._homes_elsewhere, name: state.home.cluster}
        handover = self._handovers.get(name)
        delivers = is_home and local.era is not None and not local.is_rebuilding
        if handover is not None and handover.holds_back:
            delivers = False
        subscription.limit_to(self._positions.end if delivers else 0)

    def _home_changed(self, name: str) -> None:
        """Begin or stop to deliver, because the home has changed; the acknowledgements that arrived come first."""
        local, subscription = self._locals.get(name), self._find(name)
        if local is not None and subscription is not None and local.era is not None:
            nothing = np.zeros(0, np.int64)
            self._deliver_after(name, local, subscription.acknowledge_elsewhere(nothing, nothing))
        if local is not None:
            local.home_at = self._issued_sequence + 1  # the record of this change follows
        self._malformed_homes = {other: text for other, text in self._malformed_homes.items() if other != name}
        self._limit(name)

    def _rebuild(self, name: str) -> None:
        """Set the cursor of a subscription to its state; create the subscription if it does not exist."""
        state, subscription = self._state(name), self._find(name)
        if state is None or self._is_over:
            return
        local = self._locals.setdefault(name, _Progress())
        local.era = None
        local.is_rebuilding = True
        local.awaits_deletion = name in self._deletions
        if local.awaits_deletion or local.has_rebuild_job:  # the job reads entries for an older state, and begins again
            return
        local.has_rebuild_job = True
        passed = self._passed(state)
        if subscription is not None:
            subscription.limit_to(0)
        mark, end = min(prefix_of(passed), self._positions.end), self._positions.end
        ranges, header = passed.intersect(mark, end), self._header(state)
        self._context.work(lambda: self._read_for_rebuild(name, local, header, mark, ranges))

    def _read_for_rebuild(self, name: str, local: _Progress, header: int, mark: int, ranges: Ranges) -> None:
        """Read the entries and positions that the cursor needs; in a thread that may wait."""
        try:
            if self._find(name) is None:
                self.topic.create_subscription(name, start="earliest")
                local.created = self._find(name)
            wait = self._context.runtime.wait
            total = wait(position(self.topic.managed, mark))
            columns = self._entries(ranges)
        except ReplogError as error:
            self._retry_later(error, partial(self._rebuild_again, name, local))
            return
        self._events.post(lambda: self._set_cursor(name, local, header, total, columns, ranges))

    def _entries(self, ranges: Ranges) -> tuple[Offsets, ...]:
        """Return the columns of the entries that hold messages of the ranges. Blocks."""
        rows: list[tuple[Offsets, ...]] = []
        at = 0
        for start, end in zip(*(edge.tolist() for edge in ranges), strict=True):
            at = max(at, start)
            while at < end:
                batch = self._context.runtime.wait(self.topic.managed.read(at, end=end))
                rows.append((
                    batch.entry_first.copy(), batch.entry_count.astype(np.int64), batch.entry_size.astype(np.int64),
                    batch.entries_before.copy(), batch.bytes_before.copy(),
                ))  # fmt: skip
                at = batch.end
        return tuple(np.concatenate(column) for column in zip(*rows, strict=True))

    def _rebuild_again(self, name: str, local: _Progress) -> None:
        if self._end_rebuild_job(name, local):
            self._rebuild(name)

    def _end_rebuild_job(self, name: str, local: _Progress) -> bool:
        """Note the end of the job of `_rebuild`; return whether the subscription was not deleted meanwhile."""
        local.has_rebuild_job = False
        if self._locals.get(name) is local:
            return True
        if name in self._deletions:
            if local.created is not None:
                self._deletions[name].append(local.created)
            self._delete_here(name)
        return False

    def _set_cursor(
        self,
        name: str,
        local: _Progress,
        header: int,
        total: TopicPosition,
        columns: tuple[Offsets, ...],
        ranges: Ranges,
    ) -> None:
        """Set the cursor, unless the state changed meanwhile."""
        if not self._end_rebuild_job(name, local):
            return
        self._take_seeks()
        state, subscription = self._state(name), self._find(name)
        if self._locals.get(name) is not local or self._is_over or state is None:
            return
        if subscription is None or self._header(state) != header:
            self._rebuild_again(name, local)
            return
        try:
            local.era = subscription.rebuild(total, columns, ranges)
        except ReplogError as error:
            self._retry_later(error, partial(self._rebuild_again, name, local))
            return
        self._backoff.reset()
        local.acked, local.expired, local.header_at = RangeSet(), RangeSet(), self._issued_sequence
        era = local.era
        passed = self._passed(state).intersect(total.offset, self._positions.end)  # more messages may have arrived
        applied = subscription.acknowledge_elsewhere(*passed, if_=lambda: subscription.era == era)
        self._deliver_after(name, local, applied)
        self._note_header(name, local)
        self._note_home(name, local)
        self._flush_later()

    # ---- the home of partitions that are added later ----------------------------------------------------------

    def _home_at_birth(self, subscription: Subscription) -> Home:
        """Return the home that a subscription of a partition that was added later begins with."""
        if not self._is_later_partition:
            return FIRST_HOME
        try:
            return Home.of_text(subscription.home)
        except InvalidArgumentError as error:
            name, topic = subscription.name, self.topic.name
            if name not in self._malformed_homes:
                logger.error("topic %s: subscription %s begins without a home: %s", topic, name, error)
            self._malformed_homes = {**self._malformed_homes, name: str(error)}
            return FIRST_HOME

    def _inherit_home(self, subscription: Subscription) -> None:
        """Merge the home at birth into a state that came from another cluster first, or from an earlier owner."""
        local = self._locals.get(subscription.name)
        if local is None or self._exchange is None or not subscription.home:
            return
        self._carry_out(self._exchange.inherit(subscription.name, self._home_at_birth(subscription)))
        local.home_at = self._issued_sequence
        self._note_home(subscription.name, local)

    def _note_home(self, name: str, local: _Progress) -> None:
        """Store the home in the metadata, once the journal has it: growth copies it from partition 0.

        In other partitions it is deleted: from now on the journal has it.
        """
        state, subscription = self._state(name), self._find(name)
        if local.home_at is None or local.home_at > self._durable_sequence or local.has_home_job or self._is_over:
            return
        if state is None or subscription is None or self._locals.get(name) is not local:
            return
        home = state.home.text() if self._is_first_partition else ""
        if subscription.home == home:
            local.home_at = None
            return
        local.has_home_job = True
        self._context.work(partial(self._store_home, subscription, home, local))

    def _store_home(self, subscription: Subscription, home: str, local: _Progress) -> None:
        """Store a home; in a thread that may wait."""
        failure: ReplogError | None = None
        is_stored = True
        try:
            is_stored = self.topic.store_home(subscription, home, if_=lambda: not self._is_over)
        except NoSuchSubscriptionError:
            is_stored = False
        except ReplogError as error:
            failure = error

        def stored() -> None:
            local.has_home_job = False
            if failure is not None:
                self._retry_later(failure, partial(self._note_home, subscription.name, local))
            elif is_stored and self._locals.get(subscription.name) is local:
                self._note_home(subscription.name, local)  # it may have changed meanwhile
                self._advance_handovers()

        self._events.post(stored)

    def _is_home_noted(self, name: str) -> bool:
        """Return whether partitions that are added from now on begin with the present home."""
        local = self._locals.get(name)
        return local is None or local.home_at is None

    # ---- other clusters -------------------------------------------------------------------------------------

    def post(self, event: Callable[[], object]) -> None:
        """Run an event as a step; see `ConnectionOwner`."""
        self._events.post(event)

    def _connect(self) -> None:
        for peer, neighbour in self._neighbours.items():
            if peer not in self._connections:
                self._connections[peer] = ExchangeConnection(
                    self.topic, self, peer, neighbour.link, neighbour.target_position
                )
                self._connections[peer].start()

    def exchange(self, request: Exchange) -> AppendFuture[Exchanged]:
        """Take a request of another cluster; see `ExchangePeer`."""
        answer: AppendFuture[Exchanged] = AppendFuture()

        def asked() -> None:
            connection = self._connections.get(request.cluster)
            if connection is None or self._is_over:
                set_exception(
                    answer,
                    ClosedError(
                        f"topic {self.topic.name}: its subscriptions are not replicated with cluster "
                        f"{request.cluster.hex()}: name it as a target of the policy (`geo set`)"
                    ),
                )
                return
            try:
                connection.take_request(request, answer)
            except Exception as error:
                set_exception(answer, error)
                raise

        self._events.post(asked)
        return answer

    def connection_lost(self, session: int) -> None:
        """Note that a connection was lost; see `ExchangePeer`."""

        def connection_lost() -> None:
            for connection in self._connections.values():
                connection.connection_lost(session)

        self._events.post(connection_lost)

    def connected(self, peer: bytes, session: int) -> None:
        """Begin a session; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._alarms.pop(peer, None)
        self._carry_out(self._exchange.connect(peer, session))

    def disconnected(self, peer: bytes) -> None:
        """End a session; see `ConnectionOwner`."""
        if self._exchange is not None and peer in self._neighbours:
            self._carry_out(self._exchange.disconnect(peer))

    def received(self, peer: bytes, data: bytes) -> None:
        """Take a message; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._take_seeks()
        self._carry_out(self._exchange.receive(peer, data))

    def proved(self, peer: bytes, origin: Origin) -> None:
        """Take acknowledgements of an origin from now on; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._carry_out(self._exchange.prove(peer, origin))

    def diverged(self, peer: bytes, text: str) -> None:
        """Raise an alarm; see `ConnectionOwner`."""
        self._alarms[peer] = text
        logger.error("topic %s: acknowledgements are not exchanged with %s: %s", self.topic.name, peer.hex(), text)

    # ---- histories of third clusters ------------------------------------------------------------------------

    def _read_to_compare(self, comparison: CompareEntry) -> None:
        """Read the entry here that is compared with a neighbour's last one."""

        def entry_read(here: LastEntry | None, error: ReplogError | None) -> None:
            self._events.post(partial(self._compared, comparison, here, error))

        read_entry(self.topic, self._positions, comparison.origin, comparison.last.first, entry_read)

    def _compared(self, comparison: CompareEntry, here: LastEntry | None, error: ReplogError | None) -> None:
        if error is not None:
            self._retry_later(error, partial(self._read_to_compare, comparison))
        elif self._exchange is not None and not self._is_over:
            self._carry_out(self._exchange.compared(comparison, here))

    # ---- handovers ------------------------------------------------------------------------------------------

    def hand_over(self, subscription: str, target: str, *, order: str, timeout: float, grace: float) -> dict[str, Any]:
        """Begin a planned handover, or return the status of one that has begun; see `GeoReplication.handover`. Waits.

        Args:
            subscription: name of the subscription.
            target: name of the cluster that is to deliver the subscription.
            order: id of the order; a call with the id of a known order only returns its status.
            timeout: seconds after which the handover is cancelled, if the home has not moved.
            grace: seconds after which messages that consumers hold are taken from them.

        Returns:
            The fields of `HandoverStatus`.

        Raises:
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
        """
        return asdict(self._call_as_step(lambda: self._hand_over(subscription, target, order, timeout, grace)))

    def _hand_over(self, name: str, target: str, order: str, timeout: float, grace: float) -> HandoverStatus:
        status = HandoverStatus(self.topic.name, name, target, "opening", error=self._why_not_ready())
        if self._exchange is None or not self._is_ready or self._is_over:
            return status
        former = self._handovers.get(name)
        if former is not None and former.order == order:
            return former.status
        self._check_replicated(name)
        if former is not None and not former.is_over:
            return _refused(status, f"a handover to {former.status.target} is under way: wait until it has ended")
        neighbour = next((known for known in self._neighbours.values() if known.name == target), None)
        if neighbour is None:
            names = ", ".join(sorted(known.name for known in self._neighbours.values())) or "none"
            return _refused(status, f"target: expected a cluster that the topic is replicated with ({names})")
        try:
            handover = Handover(self._exchange, name, neighbour.cluster)
        except InvalidArgumentError:
            state = self._state(name)
            home = None if state is None else self._home_of(state)
            return _refused(
                status, f"its home is the cluster {home}: order it there, or, if that cluster is lost, take it over "
                "here first (`geo take-over`)",
            )  # fmt: skip
        now_us = self._context.clock.monotonic_us()
        ordered = PlannedHandover(order, handover, status, now_us, timeout=timeout, grace=grace)
        self._handovers[name] = ordered
        ordered.note()
        logger.info("topic %s: subscription %s is handed over to %s", self.topic.name, name, target)
        self._limit(name)
        self._check_handovers()
        return ordered.status

    def _check_replicated(self, name: str) -> None:
        if self._state(name) is None:
            raise NoSuchSubscriptionError(
                self.topic.name, f"it has no replicated subscription {name}: `geo readiness` lists all"
            )

    def _check_handovers_later(self) -> None:
        if not self._is_check_scheduled and any(not ordered.is_over for ordered in self._handovers.values()):
            self._is_check_scheduled = True
            self._context.runtime.wake_after(HANDOVER_S, lambda: self._events.post(self._check_handovers))

    def _check_handovers(self) -> None:
        """Check the messages that consumers hold, and the timeouts of handovers."""
        self._is_check_scheduled = False
        if self._is_over or self._exchange is None:
            return
        now_us = self._context.clock.monotonic_us()
        for name, ordered in self._handovers.items():
            if not ordered.is_over and ordered.handover.phase is HandoverPhase.STOPPING:
                subscription, local = self._find(name), self._locals.get(name)
                is_in_step = local is not None and local.era is not None and not local.is_rebuilding
                if subscription is None or (is_in_step and ordered.is_stopped(subscription, now_us)):
                    self._take_seeks()
                    if subscription is None or self._passes_all_acks(name):
                        self._carry_out(ordered.handover.stopped())
        self._advance_handovers()
        for name, ordered in self._handovers.items():
            if not ordered.is_over and now_us >= ordered.ends_us:
                held = (
                    f"consumers hold {ordered.status.held} messages"
                    if ordered.status.held
                    else "acknowledgements are not stored"
                )
                ordered.give_up(ordered.status.error or held)
                logger.warning(
                    "topic %s: subscription %s was not handed over: %s", self.topic.name, name, ordered.status
                )
                self._limit(name)
        self._check_handovers_later()

    def _passes_all_acks(self, name: str) -> bool:
        """Pass the acknowledgements to the exchange; return whether it knows all of them now."""
        subscription, local = self._find(name), self._locals.get(name)
        if subscription is None or local is None or local.era is None:
            return False
        return self._pass_acks(subscription, local)

    def _advance_handovers(self) -> None:
        """Go on with handovers that wait for the other cluster."""
        exchange = self._exchange
        if exchange is None or self._is_over:
            return
        for name, ordered in list(self._handovers.items()):
            handover = ordered.handover
            if ordered.is_over:
                continue
            peer = next((known for known, near in self._neighbours.items() if near.name == ordered.status.target), None)
            if peer is None:
                ordered.give_up(f"the policy no longer names the cluster {ordered.status.target}")
                self._limit(name)
                continue
            if handover.phase is HandoverPhase.DRAINING:
                self._take_seeks()
                if self._state(name) is not None and not self._passes_all_acks(name):
                    continue
            effects = handover.advance()
            if effects:
                self._carry_out(effects)
            if handover.phase is not HandoverPhase.STOPPING:
                self._note_handover(name, ordered, peer)

    def _note_handover(self, name: str, ordered: PlannedHandover, peer: bytes) -> None:
        handover, state = ordered.handover, self._state(name)
        if ordered.is_over:
            return
        if state is None:
            ordered.end("cancelled", "the subscription was deleted")
        elif handover.phase is HandoverPhase.CANCELLED or (
            handover.phase is HandoverPhase.DONE and state.home.cluster != peer
        ):
            ordered.end("cancelled", f"the subscription was taken over: its home is the cluster {self._home_of(state)}")
        elif handover.phase is HandoverPhase.DONE and not self._is_home_noted(name):
            ordered.wait_for_metadata("its home is not stored in the metadata store yet")
        elif handover.phase is HandoverPhase.DONE:
            ordered.end("done", "")
            logger.info("topic %s: subscription %s was handed over to %s", self.topic.name, name, ordered.status.target)
        else:
            assert self._exchange is not None
            connection, lacking = self._connections.get(peer), self._exchange.unconfirmed(peer, name).total
            error = ("" if connection is None else _why_not_connected(connection)) or self._alarms.get(peer, "")
            missing = f"{lacking} acknowledgements" if lacking else "its state of the subscription"
            ordered.note(error=error or f"the cluster has not confirmed {missing} yet")
            return
        self._limit(name)

    def take_over(self, subscription: str, *, any_cluster: bool) -> dict[str, Any]:
        """Make this cluster the home of a subscription; see `GeoReplication.take_over`. Waits until that is durable.

        Args:
            subscription: name of the subscription.
            any_cluster: let all clusters deliver the subscription.

        Returns:
            The fields of `HandoverStatus`, in the phase `done` or `opening`.

        Raises:
            NoSuchSubscriptionError: the topic has no replicated subscription of this name.
        """
        status = HandoverStatus(self.topic.name, subscription, "", "opening")
        stored = self._call_as_step(lambda: self._move_home_here(subscription, any_cluster=any_cluster))
        if stored is None:
            return asdict(status)
        self._context.runtime.wait(stored)
        is_noted = self._call_as_step(lambda: self._is_home_noted(subscription))
        return asdict(HandoverStatus(self.topic.name, subscription, "", "done") if is_noted else status)

    def _move_home_here(self, name: str, *, any_cluster: bool) -> AppendFuture[None] | None:
        """Return a future that is done when the home is durable; None: the kept messages are still being read."""
        if self._exchange is None or not self._is_ready or self._is_over:
            return None
        self._check_replicated(name)
        ordered, home = self._handovers.get(name), NO_CLUSTER if any_cluster else self.topic.origin.cluster
        if ordered is not None and not ordered.is_over:
            ordered.handover.cancel()
            ordered.end("cancelled", "the subscription was taken over here")
        state, stored = self._state(name), AppendFuture[None]()
        if state is not None and state.home.cluster != home:
            logger.warning("topic %s: subscription %s is taken over from %s", self.topic.name, name, state.home)
            self._carry_out(self._exchange.move(name, home))
        self._limit(name)
        if self._durable_sequence >= self._issued_sequence:
            set_result(stored, None)
        else:
            self._durability_waiters.append((self._issued_sequence, stored))
        return stored

    def _home_of(self, state: SubscriptionState) -> str | None:
        """Return the name of the only cluster whose consumers get messages; "": this one; None: all deliver."""
        return self._cluster_name(state.home.cluster)

    def _cluster_name(self, cluster: bytes) -> str | None:
        if cluster == NO_CLUSTER:
            return None
        if cluster == self.topic.origin.cluster:
            return ""
        neighbour = self._neighbours.get(cluster)
        return cluster.hex() if neighbour is None else neighbour.name

    def waiting(self) -> dict[str, str]:
        """Return alarms of homes, by subscription: consumers here wait in vain, or it is malformed. Never waits."""
        alarms = {
            name: f"subscription {name} of this partition began without a home, and consumers of all clusters get its "
            f"messages: order `geo take-over` in the home. {text}"
            for name, text in self._malformed_homes.items()
        }  # fmt: skip
        for name, home in self._homes_elsewhere.items():
            subscription = self._find(name)
            if subscription is not None and (consumers := subscription.consumers):
                alarms[name] = (
                    f"{consumers} consumers of subscription {name} wait here: its home is the cluster "
                    f"{self._cluster_name(home)}. Hand it over there (`geo handover`), or, if that cluster is lost, "
                    "take it over here (`geo take-over`)"
                )
        return alarms

    def alarms(self) -> dict[str, str]:
        """Return an alarm for each subscription that needs a person, by subscription. Never waits."""
        alarms, exchange = self.waiting(), self._exchange
        for name, holes in ({} if exchange is None else exchange.excess_holes).items():
            alarms.setdefault(
                name,
                f"subscription {name} has acknowledgements in {holes} ranges, more than {HOLES_MAX}: the messages "
                "between them were removed here, and another cluster may still deliver them. They are joined once "
                "each cluster is connected, has this version, and has removed these messages, too: consume them there, "
                "or let them expire; if a cluster is gone for good, take it off the policy (`geo set`)",
            )
        return alarms

    # ---- readiness ------------------------------------------------------------------------------------------

    def readiness(self) -> list[SubscriptionReadiness]:
        """Return the effect of a fail-over of each subscription to each other cluster now. Waits."""
        return self._call_as_step(self._readiness)

    def _call_as_step(self, function: Callable[[], T]) -> T:
        """Call a function as a step, and return its result. Waits."""
        done: AppendFuture[T] = AppendFuture()

        def call() -> None:
            try:
                set_result(done, function())
            except Exception as error:
                set_exception(done, error)

        self._events.post(call)
        return self._context.runtime.wait(done)

    def _readiness(self) -> list[SubscriptionReadiness]:
        if self._exchange is None or not self._is_ready:
            why = self._why_not_ready()
            return [row for neighbour in self._neighbours.values() for row in self.unknown(neighbour.name, why)]
        self._pass_all_acks()
        alarms = self.alarms()
        rows = []
        for peer, neighbour in self._neighbours.items():
            connection = self._connections[peer]
            stored = {self.topic.origin: connection.stored or 0}
            if connection.origin is not None:
                stored[connection.origin] = OFFSET_END
            third: set[Origin] = set()
            for origin in self._positions.ends().keys() - stored.keys():
                forwarded = neighbour.forwarded(origin)
                if forwarded is None:  # its messages come from elsewhere, or not at all
                    third.add(origin)
                    forwarded = self._exchange.peer(peer).positions.get(origin, 0)
                stored[origin] = forwarded
            may_have = partial(_may_have, third, neighbour)
            held = self._positions.held_from(stored)
            error = _why_not_connected(connection)
            for name in self._exchange.names():
                effect = readiness(self._exchange, name, peer, held, stored, self._positions.foreign, may_have)
                state = self._exchange.state(name)
                assert state is not None
                alarm = self._alarms.get(peer, "") or alarms.get(name, "")
                rows.append(
                    SubscriptionReadiness(
                        self.topic.name, name, neighbour.name, effect.is_ready, effect.is_known, effect.is_current,
                        effect.lost.total, effect.repeated.total, effect.revived.total, error, alarm,
                        self._home_of(state), sum(effect.lost.of(origin).total for origin in third),
                    )
                )  # fmt: skip
        return sorted(rows, key=lambda row: (row.subscription, row.target))

    def unknown(self, target: str, error: str) -> list[SubscriptionReadiness]:
        """Return rows which say that nothing is known of a fail-over to a cluster.

        Args:
            target: name of the cluster.
            error: the reason.
        """
        return [
            SubscriptionReadiness.unknown(self.topic.name, subscription.name, target, error)
            for subscription in self._durable_subscriptions()
        ]

    def _why_not_ready(self) -> str:
        return "the kept messages are still being read" if self.error is None else str(self.error)

    # ---- positions ------------------------------------------------------------------------------------------

    def where(self, name: str) -> list[SubscriptionPosition]:
        """Return the positions of a subscription in this and the other clusters, by origin. Waits.

        The list is empty if the subscription is not replicated.

        Args:
            name: name of the subscription.
        """
        return self._call_as_step(lambda: self._where(name))

    def _where(self, name: str) -> list[SubscriptionPosition]:
        exchange, topic, own = self._exchange, self.topic.name, self.topic.origin
        if exchange is None or not self._is_ready:
            error = self._why_not_ready()
            return [
                SubscriptionPosition(topic, name, "", "", own.token, None, 0, None, is_known=False, error=error)
                for subscription in self._durable_subscriptions()
                if subscription.name == name
            ]
        self._pass_all_acks()
        state = exchange.state(name)
        if state is None:
            return []
        ends, held, rows = self._ends(), self._positions.held(), []
        expired, home = exchange.expired_here(name), self._home_of(state)
        origins = sorted({*ends, *state.origins()}, key=lambda origin: (origin != own, origin))

        def add(at: str, origin: Origin, passed: RangeSet, end: int | None, is_known: bool, error: str) -> None:
            below, beyond = place(passed, held.of(origin), ends.get(origin, 0))
            rows.append(
                SubscriptionPosition(
                    topic, name, at, self._name_of(origin), origin.token, below, beyond, end, is_known, error, home
                )
            )

        for origin in origins:
            passed = state.passed_set(origin)
            passed.add_ranges(*expired.between(origin))
            add("", origin, passed, ends.get(origin, 0), is_known=True, error="")
        for peer, neighbour in sorted(self._neighbours.items(), key=lambda item: item[1].name):
            connection = self._connections[peer]
            unconfirmed = exchange.unconfirmed(peer, name)
            is_current = not exchange.lacks_header(peer, name)
            for origin in origins:
                if origin == own:
                    end = connection.stored
                elif (end := neighbour.forwarded(origin)) is None:
                    end = exchange.peer(peer).positions.get(origin)
                is_known = is_current and origin in exchange.peer(peer).compared
                passed = subtract(state.passed_set(origin), unconfirmed.of(origin))
                add(neighbour.name, origin, passed, end, is_known, _why_not_connected(connection))
        return rows

    def _ends(self) -> dict[Origin, int]:
        """Return the end of each origin here, also of an origin whose messages were all trimmed."""
        states, ends = self.topic.origins.all(), self._positions.ends()
        if self._positions.end >= self.topic.managed.end.offset:  # the positions include all entries of the states
            for origin, known in states.items():
                if known.last is not None:  # otherwise it forwarded nothing but gaps
                    ends[origin] = max(ends.get(origin, 0), known.stored)
        return ends

    def _name_of(self, origin: Origin) -> str:
        if origin.cluster == self.topic.origin.cluster:
            return ""
        neighbour = self._neighbours.get(origin.cluster)
        return origin.cluster.hex() if neighbour is None else neighbour.name


def _may_have(third: Set[Origin], neighbour: Neighbour, origin: Origin) -> int:
    """Return the offset at an origin below which another cluster may store messages; of those in `third`: any."""
    return OFFSET_END if origin in third else neighbour.sent(origin)


def _refused(status: HandoverStatus, error: str) -> HandoverStatus:
    return HandoverStatus(status.topic, status.subscription, status.target, "refused", error=error)


def _why_not_connected(connection: ExchangeConnection) -> str:
    if connection.is_connected:
        return ""
    return str(connection.error or "the other cluster has not connected yet: it needs such a policy, too")


def _below(ranges: RangeSet, end: int) -> RangeSet:
    below = copy_ranges(ranges)
    below.remove(end, OFFSET_END)
    return below
