"""SubscriptionReplication: replicates the durable subscriptions of one topic to and from other clusters."""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog._native.topic.rangeset import OFFSET_END, RangeSet
from pyreplog.errors import (
    ClosedError,
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
    Diverged,
    Drop,
    Effect,
    HomeChanged,
    Persist,
    Rebuild,
    SeekLost,
    Send,
)
from pyreplog.geo.acks.exchange import SubscriptionExchange
from pyreplog.geo.acks.journal import replay
from pyreplog.geo.acks.origin_ranges import Offsets, Ranges, copy_ranges, subtract
from pyreplog.geo.acks.readiness import readiness
from pyreplog.geo.acks.subscription_state import SubscriptionState
from pyreplog.geo.acks.where import SubscriptionPosition, place
from pyreplog.geo.exchange_connection import ExchangeConnection
from pyreplog.geo.protocol.effects import OriginNote
from pyreplog.geo.subscription_journal import SubscriptionJournal
from pyreplog.geo.target_link import ExchangeLink
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.net.backoff import Backoff
from pyreplog.origins.origin import Origin
from pyreplog.topic.model.positions import TopicPosition, position
from pyreplog.topic.model.wire.protocol import Exchange, Exchanged
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)

T = TypeVar("T")

FLUSH_S = 0.2
"""Seconds between two looks at what was acknowledged, while anything is."""
RETRY_S, RETRY_MOST_S = 0.1, 30.0
"""Seconds between attempts, of what failed."""


class Neighbour(NamedTuple):
    """Another cluster that the topic is replicated to or from.

    Attributes:
        name: its name in policies.
        cluster: its id.
        link: the way to it.
        note: returns what it said to the replicator that it has of this topic; None: nothing.
    """

    name: str
    cluster: bytes
    link: ExchangeLink
    note: Callable[[], OriginNote | None]


@dataclass(frozen=True, slots=True)
class SubscriptionReadiness:
    """What a fail-over of one subscription to one cluster would do now, as this cluster knows it.

    What is on its way counts as not there: the truth is this, or better.

    Attributes:
        topic: name of the topic.
        subscription: name of the subscription.
        target: name of the other cluster.
        is_ready: nothing would be lost or repeated, for certain.
        is_known: the target has told what it has, since this process owns the topic; if not, the rest is a guess.
        is_current: the target knows the last seek; if not, it goes on where it was before.
        lost: messages that are to be delivered, and that the target does not store.
        repeated: messages that are acknowledged, and that the target stores and would deliver.
        revived: messages that expired here without an acknowledgement, and that the target would deliver.
        error: why there is no connection to the target; "": there is one.
        alarm: what people have to decide or do; "": nothing.
    """

    topic: str
    subscription: str
    target: str
    is_ready: bool
    is_known: bool
    is_current: bool
    lost: int
    repeated: int
    revived: int
    error: str = ""
    alarm: str = ""


class _Local:
    """One subscription here, as far as its cursor is in step with the state of all clusters."""

    def __init__(self) -> None:
        self.era: int | None = None  # in which acknowledgements belong to the state; None: the cursor is being rebuilt
        self.is_placing = False  # the cursor is being rebuilt, or restored: nothing is delivered
        self.is_searching = False  # a job reads what its rebuilding needs
        self.version = -1  # of the acknowledgements that were read last
        self.reported = RangeSet()  # offsets of which the exchange was told
        self.header_at: int | None = None  # record with which the present header is durable; None: it was noted


class SubscriptionReplication:
    """The durable subscriptions of one topic: consumed in one cluster, each goes on in another one where it was.

    It drives a `SubscriptionExchange`: tells it what is acknowledged here, keeps its journal, carries messages to the
    other clusters, and applies their acknowledgements to the cursors here. It is a `SubscriptionWatcher`, an
    `ExchangePeer` and a `ConnectionOwner`. Any thread may use it; no method waits, except `readiness`.

    Args:
        topic: the topic, which this process owns; close this object before it.
    """

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._context = topic.context
        self._events = EventQueue()
        self._backoff = Backoff(RETRY_S, RETRY_MOST_S, random.random)
        self._journal: SubscriptionJournal | None = None
        self._exchange: SubscriptionExchange | None = None
        self._positions = TopicPositions(topic.origin, 0, topic.origins.names)
        self._neighbours: dict[bytes, Neighbour] = {}
        self._unreachable: list[bytes] = []
        self._connections: dict[bytes, ExchangeConnection] = {}
        self._alarms: dict[bytes, str] = {}
        self._locals: dict[str, _Local] = {}
        self._sought: deque[tuple[Subscription, int, int]] = deque()  # of steps, in which nothing else can be done
        self._issued = self._durable = 0  # sequences of the journal
        self._ready_at = 0
        self._is_ready = self._is_reading = self._is_told = self._is_timed = self._is_over = self._is_removed = False
        self.error: ReplogError | None = None
        """Why it could not begin yet."""

    # ---- beginning and ending -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: read the journal, and the entries that are kept; then deliver, and connect."""
        self._context.work(self._begin)

    def _begin(self) -> None:
        """Read the journal; in a thread that may wait."""
        if self._is_over:
            return
        journal = SubscriptionJournal(self._context, self._was_persisted, self._was_lost)
        try:
            self.topic.system_cursors.adopt(journal)
            replayed = replay(journal.records)
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
            self._issued = self._durable = replayed.sequence
            self._exchange = SubscriptionExchange(
                self.topic.origin, participants=self._participants(), neighbours=self._neighbours, replayed=replayed
            )
            self._take_over(was_replicated=replayed.sequence > 0)

        self._events.post(begun)

    def _take_over(self, *, was_replicated: bool) -> None:
        """Watch the subscriptions, and read the entries that are kept."""
        managed = self.topic.managed
        self._ready_at = managed.end.offset
        self._positions = TopicPositions(self.topic.origin, managed.start.offset, self.topic.origins.names)
        self.topic.watch_subscriptions(self)
        if not was_replicated:  # no other cluster has acknowledged anything of what may be on its way to consumers
            for subscription in self._durable_ones():
                subscription.limit_to(self._ready_at)
        managed.on_grow.append(self._grew)
        self._read_on()

    def configure(self, neighbours: Mapping[str, Neighbour], unreachable: Collection[bytes] = ()) -> None:
        """Go on with these other clusters.

        Args:
            neighbours: the other clusters, by name.
            unreachable: ids of those that there is no way to now; deletions are remembered for them.
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
                self._do(self._exchange.configure(self._participants(), self._neighbours))
            if self._is_ready:
                self._connect()

        self._events.post(configure)

    def _participants(self) -> list[bytes]:
        return [self.topic.origin.cluster, *self._neighbours, *self._unreachable]

    def _durable_ones(self) -> list[Subscription]:
        return [subscription for subscription in self.topic.all_subscriptions() if subscription.cursor.durable]

    def close(self) -> None:
        """End; what is replicated goes on with the next owner of the topic."""

        def close() -> None:
            if self._is_over:
                return
            self._is_over = True
            self.topic.exchange_peer = None
            for connection in self._connections.values():
                connection.close()
            if self._exchange is not None:
                with suppress(ValueError):
                    self.topic.managed.on_grow.remove(self._grew)
                self._tap_all()
                self._do(self._exchange.flush())

        self._events.post(close)

    def remove(self) -> None:
        """End for good: subscriptions are those of this cluster alone from now on."""
        self.close()
        self._context.work(self._remove)

    def _remove(self) -> None:
        self.topic.watch_subscriptions(None)
        try:
            self.topic.system_cursors.remove(SubscriptionJournal.name)
        except ReplogError as error:
            logger.warning("topic %s: the journal of its subscriptions was not deleted: %s", self.topic.name, error)

    def _was_lost(self, error: ReplogError) -> None:
        logger.warning("topic %s: its subscriptions are not replicated any more: %s", self.topic.name, error)
        self.close()

    # ---- messages of the topic ------------------------------------------------------------------------------

    def _grew(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._events.post(self._read_on)

    def _read_on(self) -> None:
        self._is_told = False
        if self._is_over or self._is_reading:
            return
        if self._positions.end >= self._ready_at and not self._is_ready:
            self._begin_to_deliver()
        if self._positions.end >= self.topic.managed.end.offset:
            return
        self._is_reading = True
        try:
            read = self.topic.managed.read(self._positions.end)
        except ReplogError as error:
            self._not_read(error)
        else:
            read.add_done_callback(lambda _: self._events.post(partial(self._came, read)))

    def _came(self, read: AppendFuture[MessageBatch]) -> None:
        error = read.exception()
        if error is not None:
            self._not_read(error)
            return
        self._is_reading = False
        batch = read.result()
        ends = self._positions.add(batch)
        if self._is_ready and not self._is_over:
            assert self._exchange is not None
            for origin, end in ends.items():
                self._do(self._exchange.arrive(origin, end), batch)
            for name in self._locals:
                self._limit(name)
        self._read_on()

    def _not_read(self, error: BaseException) -> None:
        self._is_reading = False
        if isinstance(error, TrimmedError):
            self._positions.end = max(self._positions.end, self.topic.managed.start.offset)
        elif isinstance(error, ClosedError | TopicFencedError):
            return
        logger.info("topic %s: entries from %d on are read again: %s", self.topic.name, self._positions.end, error)
        self._context.runtime.wake_after(self._backoff.next_s(), self._grew)

    def _begin_to_deliver(self) -> None:
        """All that is kept was read: bring the cursors in step, and connect."""
        assert self._exchange is not None
        self._is_ready = True
        for origin, end in self._positions.ends().items():
            self._exchange.arrive(origin, end)  # cursors are set as a whole
        existing = {subscription.name: subscription for subscription in self._durable_ones()}
        for name in self._exchange.names():
            self._locals[name] = _Local()
            if name in existing:
                self._restore(existing[name])
            else:
                self._place(name)
        for name in existing.keys() - {*self._exchange.names()}:
            if self._exchange.tombstones(name) and existing[name].acked_ranges().header:
                self._drop(name)
            else:
                self._create(existing[name])
        self.topic.exchange_peer = self
        self._connect()

    # ---- the exchange ---------------------------------------------------------------------------------------

    def _do(self, effects: list[Effect], batch: MessageBatch | None = None) -> None:
        """Carry effects out; batch: entries that arrived just now."""
        for effect in effects:
            match effect:
                case Persist():
                    self._issued = effect.sequence
                    if self._journal is not None:
                        self._journal.append(effect)
                case Send(peer, session, data):
                    if (connection := self._connections.get(peer)) is not None:
                        connection.send(session, data)
                case Acknowledge():
                    self._acknowledge(effect, batch)
                case Rebuild(name):
                    self._place(name)
                case Drop(name):
                    self._drop(name)
                case SeekLost(name, generation, by):
                    logger.warning(
                        "topic %s: the seek %d of subscription %s here was replaced by a seek in cluster %s",
                        self.topic.name, generation.counter, name, by.cluster.hex(),
                    )  # fmt: skip
                case HomeChanged(name, _):
                    self._limit(name)
                case Diverged(peer, origin, end):
                    self.diverged(peer, f"it has acknowledgements of {origin.token} up to {end}, beyond what is here")
        for connection in list(self._connections.values()):
            connection.go_on()
        is_connected = any(connection.is_connected for connection in self._connections.values())
        if is_connected and self._exchange is not None and not self._exchange.is_idle:
            self._flush_later()

    def _was_persisted(self, sequence: int) -> None:
        def persisted() -> None:
            if self._exchange is None:
                return
            self._durable = sequence
            self._do(self._exchange.persisted(sequence))
            for name, local in self._locals.items():
                self._note_header(name, local)

        self._events.post(persisted)

    def _note_header(self, name: str, local: _Local) -> None:
        """Store the header's digest with the cursor, once the journal has the header."""
        state, subscription = self._state(name), self._find(name)
        if local.header_at is None or local.header_at > self._durable or local.era is None:
            return
        local.header_at = None
        if state is not None and subscription is not None:
            subscription.note_header(_header(state), local.era)

    def _state(self, name: str) -> SubscriptionState | None:
        return None if self._exchange is None else self._exchange.state(name)

    def _find(self, name: str) -> Subscription | None:
        with suppress(ReplogError):
            return self.topic.subscription(name)
        return None

    # ---- acknowledgements here ------------------------------------------------------------------------------

    def changed(self, subscription: Subscription) -> None:
        """Look at the acknowledgements soon; see `SubscriptionWatcher`."""
        self._flush_later()

    def _flush_later(self) -> None:
        if not self._is_timed and not self._is_over:
            self._is_timed = True
            self._context.runtime.wake_after(FLUSH_S, lambda: self._events.post(self._flush))

    def _flush(self) -> None:
        self._is_timed = False
        if self._is_ready and not self._is_over and self._exchange is not None:
            self._tap_all()
            self._do(self._exchange.flush())

    def _tap_all(self) -> None:
        """Tell the exchange what was acknowledged here since the last time."""
        self._take_seeks()
        for name, local in self._locals.items():
            subscription = self._find(name)
            if subscription is not None and local.era is not None:
                self._tap(subscription, local)

    def _tap(self, subscription: Subscription, local: _Local) -> None:
        ranges = subscription.acked_ranges()
        if ranges.version == local.version or ranges.era != local.era:
            return
        end = self._positions.end
        self._tell(subscription.name, subtract(ranges.acked, local.reported).intersect(0, end))
        self._tell(subscription.name, ranges.expired.intersect(0, end), expires=True)
        local.reported = ranges.acked
        last = ranges.acked.last
        if last is None or last < end:
            local.version = ranges.version
        else:
            local.reported.remove(end, OFFSET_END)

    def _tell(self, name: str, ranges: Ranges, *, expires: bool = False) -> None:
        """Tell the exchange of offsets here that were acknowledged, or expired."""
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
            self._sought.append((subscription, offset, era))
            self._flush_later()

    def _take_seeks(self) -> None:
        """Begin another generation for each seek; the cursor is there already."""
        while self._sought:
            subscription, offset, era = self._sought.popleft()
            name = subscription.name
            local = self._locals.get(name)
            if local is None or self._exchange is None or self._state(name) is None or era != subscription.era:
                continue  # it was moved again since
            effects = self._exchange.seek(name, self._positions.translation.held_below(offset))
            local.era, local.version, local.reported = era, -1, RangeSet()
            self._do([effect for effect in effects if not isinstance(effect, Rebuild)])
            local.header_at = self._issued

    # ---- creation and deletion ------------------------------------------------------------------------------

    def created(self, subscription: Subscription) -> None:
        """Replicate a new subscription; see `SubscriptionWatcher`."""

        def created() -> None:
            if self._is_ready and not self._is_over and self._state(subscription.name) is None:
                self._create(subscription)

        self._events.post(created)

    def _create(self, subscription: Subscription) -> None:
        """Replicate a subscription of this cluster; it goes on where it is."""
        assert self._exchange is not None
        name, ranges = subscription.name, subscription.acked_ranges()
        local = self._locals[name] = _Local()
        local.era = ranges.era
        bases = self._positions.translation.held_below(min(prefix_of(ranges.acked), self._positions.end))
        self._do(self._exchange.create(name, secrets.token_hex(16), bases))
        local.header_at = self._issued
        self._tap(subscription, local)
        self._do(self._exchange.flush())
        self._limit(name)

    def deleted(self, name: str) -> None:
        """Delete the subscription in all clusters; see `SubscriptionWatcher`."""

        def deleted() -> None:
            self._locals.pop(name, None)
            if self._exchange is not None and self._state(name) is not None and not self._is_over:
                effects = self._exchange.delete(name)
                self._do([effect for effect in effects if not isinstance(effect, Drop)])

        self._events.post(deleted)

    def _drop(self, name: str) -> None:
        """Delete a subscription that was deleted in another cluster."""
        self._locals.pop(name, None)

        def drop() -> None:
            try:
                self.topic.delete_subscription(name, force=True)
            except NoSuchSubscriptionError:
                return
            except ReplogError as error:
                self._again(error, partial(self._drop_again, name))

        self._context.work(drop)

    def _drop_again(self, name: str) -> None:
        if self._state(name) is None:
            self._drop(name)

    def _again(self, error: ReplogError, step: Callable[[], object]) -> None:
        """Repeat a step that failed in a thread, later."""
        if isinstance(error, ClosedError | TopicFencedError) or self._is_over:
            return
        logger.info("topic %s: another attempt follows: %s", self.topic.name, error)
        self._context.runtime.wake_after(self._backoff.next_s(), lambda: self._events.post(step))

    # ---- acknowledgements of other clusters -----------------------------------------------------------------

    def _acknowledge(self, effect: Acknowledge, batch: MessageBatch | None) -> None:
        local, subscription = self._locals.get(effect.name), self._find(effect.name)
        if local is None or local.era is None or subscription is None:
            return  # all is applied once its cursor was rebuilt
        starts, ends = self._positions.translation.to_local(effect.origin, effect.ranges)
        if not len(starts):
            return
        era = local.era
        subscription.acknowledge_elsewhere(starts, ends, batch=batch, if_=lambda: subscription.era == era)

    def _passed(self, state: SubscriptionState) -> RangeSet:
        """Return the offsets here that the state passes over, those below the start included."""
        passed, translation = RangeSet(), self._positions.translation
        for origin in state.origins():
            passed.add_ranges(*translation.to_local(origin, state.passed(origin)))
        if start := self.topic.managed.start.offset:
            passed.add(0, start)
        return passed

    def _restore(self, subscription: Subscription) -> None:
        """Bring a stored cursor in step with the journal; what it has beyond that counts if it is of the same state."""
        assert self._exchange is not None
        name, ranges, local = subscription.name, subscription.acked_ranges(), self._locals[subscription.name]
        state = self._state(name)
        assert state is not None
        if ranges.header != _header(state):
            self._place(name)
            return
        expired = subtract(_below(ranges.acked, ranges.expired_below), self._passed(state))
        self._tell(name, expired.intersect(0, self._positions.end), expires=True)
        self._tell(name, subtract(ranges.acked, expired).intersect(0, self._positions.end))
        local.reported = ranges.acked
        local.era, local.is_placing = ranges.era, True
        era = ranges.era
        placed = subscription.acknowledge_elsewhere(
            *self._passed(state).intersect(subscription.cursor.mark.offset, self._positions.end),
            if_=lambda: subscription.era == era,
        )
        placed.add_done_callback(lambda _: self._events.post(partial(self._placed, name, local)))
        self._flush_later()

    def _placed(self, name: str, local: _Local) -> None:
        """The cursor is in step: deliver."""
        if self._locals.get(name) is local:
            local.is_placing = False
            self._limit(name)

    def _limit(self, name: str) -> None:
        """Deliver what was read here, of which all acknowledgements are applied."""
        local, subscription, state = self._locals.get(name), self._find(name), self._state(name)
        if local is None or subscription is None or state is None:
            return
        delivers = local.era is not None and not local.is_placing and state.home.admits(self.topic.origin.cluster)
        subscription.limit_to(self._positions.end if delivers else 0)

    def _place(self, name: str) -> None:
        """Set the cursor of a subscription to its state; create it if there is none."""
        state, subscription = self._state(name), self._find(name)
        if state is None or self._is_over:
            return
        local = self._locals.setdefault(name, _Local())
        local.era = None
        local.is_placing = True
        if local.is_searching:  # what it finds is of another state: it begins again
            return
        local.is_searching = True
        passed = self._passed(state)
        if subscription is not None:
            subscription.limit_to(0)
        mark, end = min(prefix_of(passed), self._positions.end), self._positions.end
        ranges, header = passed.intersect(mark, end), _header(state)
        self._context.work(lambda: self._find_place(name, local, header, mark, ranges))

    def _find_place(self, name: str, local: _Local, header: int, mark: int, ranges: Ranges) -> None:
        """Read what the cursor needs of the topic; in a thread that may wait."""
        try:
            if self._find(name) is None:
                self.topic.create_subscription(name, start="earliest")
            wait = self._context.runtime.wait
            total = wait(position(self.topic.managed, mark))
            columns = self._entries(ranges)
        except ReplogError as error:
            self._again(error, partial(self._place_again, name, local))
            return
        self._events.post(lambda: self._put(name, local, header, total, columns, ranges))

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

    def _place_again(self, name: str, local: _Local) -> None:
        local.is_searching = False
        if self._locals.get(name) is local:
            self._place(name)

    def _put(
        self, name: str, local: _Local, header: int, total: TopicPosition, columns: tuple[Offsets, ...], ranges: Ranges
    ) -> None:
        """Set the cursor, unless the state has changed meanwhile."""
        local.is_searching = False
        self._take_seeks()
        state, subscription = self._state(name), self._find(name)
        if self._locals.get(name) is not local or self._is_over or state is None:
            return
        if subscription is None or _header(state) != header:
            self._place_again(name, local)
            return
        try:
            local.era = subscription.rebuild(total, columns, ranges)
        except ReplogError as error:
            self._again(error, partial(self._place_again, name, local))
            return
        local.version, local.reported, local.header_at = -1, RangeSet(), self._issued
        era = local.era
        passed = self._passed(state).intersect(total.offset, self._positions.end)  # more may have come meanwhile
        placed = subscription.acknowledge_elsewhere(*passed, if_=lambda: subscription.era == era)
        placed.add_done_callback(lambda _: self._events.post(partial(self._placed, name, local)))
        self._note_header(name, local)

    # ---- other clusters -------------------------------------------------------------------------------------

    def post(self, event: Callable[[], object]) -> None:
        """Run an event as a step; see `ConnectionOwner`."""
        self._events.post(event)

    def _connect(self) -> None:
        for peer, neighbour in self._neighbours.items():
            if peer not in self._connections:
                self._connections[peer] = ExchangeConnection(self.topic, self, peer, neighbour.link, neighbour.note)
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
                connection.asked(request, answer)
            except Exception as error:
                set_exception(answer, error)
                raise

        self._events.post(asked)
        return answer

    def hung_up(self, session: int) -> None:
        """Note that a connection is lost; see `ExchangePeer`."""

        def hung_up() -> None:
            for connection in self._connections.values():
                connection.hung_up(session)

        self._events.post(hung_up)

    def connected(self, peer: bytes, session: int, origin: Origin) -> None:
        """Begin a session; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._alarms.pop(peer, None)
        self._do(self._exchange.connect(peer, session, origin))

    def disconnected(self, peer: bytes) -> None:
        """End a session; see `ConnectionOwner`."""
        if self._exchange is not None and peer in self._neighbours:
            self._do(self._exchange.disconnect(peer))

    def received(self, peer: bytes, data: bytes) -> None:
        """Take a message; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._take_seeks()
        self._do(self._exchange.receive(peer, data))

    def proved(self, peer: bytes, origin: Origin) -> None:
        """Take acknowledgements of an origin from now on; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._do(self._exchange.prove(peer, origin))

    def diverged(self, peer: bytes, text: str) -> None:
        """Raise an alarm; see `ConnectionOwner`."""
        self._alarms[peer] = text
        logger.error("topic %s: acknowledgements are not exchanged with %s: %s", self.topic.name, peer.hex(), text)

    # ---- readiness ------------------------------------------------------------------------------------------

    def readiness(self) -> list[SubscriptionReadiness]:
        """Return what a fail-over of each subscription to each other cluster would do now."""
        return self._asked(self._readiness)

    def _asked(self, question: Callable[[], T]) -> T:
        """Return what a function of a step returns. Waits."""
        done: AppendFuture[T] = AppendFuture()

        def look() -> None:
            try:
                set_result(done, question())
            except Exception as error:
                set_exception(done, error)

        self._events.post(look)
        return self._context.runtime.wait(done)

    def _readiness(self) -> list[SubscriptionReadiness]:
        if self._exchange is None or not self._is_ready:
            return [
                SubscriptionReadiness(
                    self.topic.name, subscription.name, neighbour.name, False, False, False, 0, 0, 0,
                    error=self._why_not_ready(),
                )
                for subscription in self._durable_ones()
                for neighbour in self._neighbours.values()
            ]  # fmt: skip
        self._tap_all()
        held, foreign, rows = self._positions.held(), self._positions.foreign(), []
        for peer, neighbour in self._neighbours.items():
            connection, note = self._connections[peer], neighbour.note()
            stored = {self.topic.origin: 0 if note is None else note.stored}
            if connection.origin is not None:
                stored[connection.origin] = OFFSET_END
            error = _why_not_connected(connection)
            for name in self._exchange.names():
                found = readiness(self._exchange, name, peer, held, stored, foreign)
                rows.append(
                    SubscriptionReadiness(
                        self.topic.name, name, neighbour.name, found.is_ready, found.is_known, found.is_current,
                        found.lost.total, found.repeated.total, found.revived.total, error, self._alarms.get(peer, ""),
                    )
                )  # fmt: skip
        return sorted(rows, key=lambda row: (row.subscription, row.target))

    def _why_not_ready(self) -> str:
        return "the messages that are kept are still being read" if self.error is None else str(self.error)

    # ---- positions ------------------------------------------------------------------------------------------

    def where(self, name: str) -> list[SubscriptionPosition]:
        """Return where a subscription is, here and in the other clusters, by origin; none if it is not replicated.

        Args:
            name: of the subscription.
        """
        return self._asked(lambda: self._where(name))

    def _where(self, name: str) -> list[SubscriptionPosition]:
        exchange, topic, own = self._exchange, self.topic.name, self.topic.origin
        if exchange is None or not self._is_ready:
            error = self._why_not_ready()
            return [
                SubscriptionPosition(topic, name, "", "", own.token, None, 0, None, is_known=False, error=error)
                for subscription in self._durable_ones()
                if subscription.name == name
            ]
        self._tap_all()
        state = exchange.state(name)
        if state is None:
            return []
        ends, held, rows = self._ends(), self._positions.held(), []
        expired = exchange.expired_here(name)
        origins = sorted({*ends, *state.origins()}, key=lambda origin: (origin != own, origin))

        def add(at: str, origin: Origin, passed: RangeSet, end: int | None, is_known: bool, error: str) -> None:
            below, beyond = place(passed, held.of(origin), ends.get(origin, 0))
            rows.append(
                SubscriptionPosition(
                    topic, name, at, self._name_of(origin), origin.token, below, beyond, end, is_known, error
                )
            )

        for origin in origins:
            passed = state.passed_set(origin)
            passed.add_ranges(*expired.between(origin))
            add("", origin, passed, ends.get(origin, 0), is_known=True, error="")
        for peer, neighbour in sorted(self._neighbours.items(), key=lambda item: item[1].name):
            connection, note, unconfirmed = self._connections[peer], neighbour.note(), exchange.unconfirmed(peer, name)
            is_current = not exchange.lacks_header(peer, name)
            for origin in origins:
                end = note.stored if note is not None and origin == own else None
                is_known = is_current and origin in exchange.peer(peer).compared
                passed = subtract(state.passed_set(origin), unconfirmed.of(origin))
                add(neighbour.name, origin, passed, end, is_known, _why_not_connected(connection))
        return rows

    def _ends(self) -> dict[Origin, int]:
        """Return the end of each origin here; of one whose messages were all trimmed, too."""
        states, ends = self.topic.origins.all(), self._positions.ends()
        if self._positions.end >= self.topic.managed.end.offset:  # nothing of the states is missing in the positions
            for origin, known in states.items():
                if known.stored:
                    ends[origin] = max(ends.get(origin, 0), known.stored)
        return ends

    def _name_of(self, origin: Origin) -> str:
        if origin.cluster == self.topic.origin.cluster:
            return ""
        neighbour = self._neighbours.get(origin.cluster)
        return origin.cluster.hex() if neighbour is None else neighbour.name


def _why_not_connected(connection: ExchangeConnection) -> str:
    if connection.is_connected:
        return ""
    return str(connection.error or "the other cluster did not connect yet: it needs such a policy, too")


def _header(state: SubscriptionState) -> int:
    """Return the digest of a header as a property of a cursor; never 0."""
    return int.from_bytes(state.header_digest(), "little", signed=True) or 1


def _below(ranges: RangeSet, end: int) -> RangeSet:
    below = copy_ranges(ranges)
    below.remove(end, OFFSET_END)
    return below
