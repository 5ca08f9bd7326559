"""SubscriptionReplication: replicates the durable subscriptions of one topic to and from other clusters."""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
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
from pyreplog.geo.acks.journal import replay
from pyreplog.geo.acks.origin_ranges import Offsets, Ranges, copy_ranges, subtract
from pyreplog.geo.acks.subscription_position import SubscriptionPosition
from pyreplog.geo.acks.subscription_state import FIRST_HOME, NO_CLUSTER, Home, SubscriptionState
from pyreplog.geo.neighbours import Neighbour, Neighbours
from pyreplog.geo.origin_entries import read_entry
from pyreplog.geo.planned_handover import HandoverStatus
from pyreplog.geo.position_pages import PositionPages
from pyreplog.geo.subscription_handovers import SubscriptionHandovers
from pyreplog.geo.subscription_journal import SubscriptionJournal
from pyreplog.geo.subscription_readiness import SubscriptionReadiness
from pyreplog.geo.subscription_report import SubscriptionReport
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
    `SubscriptionWatcher`, an `ExchangePeer`, a `ConnectionOwner` and a `HandoverOwner`. Any thread may use it; only
    `hand_over`, `take_over`, `readiness` and `where` wait. The methods of a `HandoverOwner` are steps of its queue.

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
        self._neighbours = Neighbours(topic, self)
        self._unreachable: list[bytes] = []
        self._locals: dict[str, _Progress] = {}
        self._deletions: dict[str, list[Subscription]] = {}  # those that a job deletes here, or will delete
        self._new_seeks: deque[tuple[Subscription, int, int]] = deque()  # seeks that the next step takes
        self._issued_sequence = self._durable_sequence = 0  # sequences of the journal
        self._durability_waiters: deque[tuple[int, AppendFuture[None]]] = deque()  # by record
        self._handovers = SubscriptionHandovers(topic, self._events, self._neighbours, self)
        self._homes_elsewhere: dict[str, bytes] = {}  # by subscription; replaced, never changed
        self._malformed_homes: dict[str, str] = {}  # errors by subscription; replaced, never changed
        part = partition_of(topic.name)
        self._is_first_partition = part is not None and part[1] == 0
        self._is_later_partition = part is not None and part[1] > 0
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
                self.topic.origin, participants=self._participants(), neighbours=self._neighbours.clusters,
                replayed=replayed, positions=self.topic.origins.all, end=lambda: self.topic.managed.end.offset,
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
            self._neighbours.configure(neighbours.values())
            if self._exchange is not None:
                self.carry_out(self._exchange.configure(self._participants(), self._neighbours.clusters))
            if self._is_ready:
                self._neighbours.connect()
                self._handovers.advance()

        self._events.post(configure)

    def _participants(self) -> list[bytes]:
        return [self.topic.origin.cluster, *self._neighbours.clusters, *self._unreachable]

    def _durable_subscriptions(self) -> list[Subscription]:
        return [subscription for subscription in self.topic.all_subscriptions() if subscription.cursor.durable]

    def close(self) -> None:
        """End; the next owner of the topic goes on with the replication."""

        def close() -> None:
            if self._is_over:
                return
            self._is_over = True
            self.topic.exchange_peer = None
            self._neighbours.close()
            if self._exchange is not None:
                with suppress(ValueError):
                    self.topic.managed.on_grow.remove(self._on_grow)
                self._pass_all_acks()
                self.carry_out(self._exchange.flush())
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
                self.carry_out(self._exchange.arrive(origin, end), batch)
            for name in self._locals:
                self.limit(name)
            self._trim()
        self._read_next()

    def _trim(self) -> None:
        """Forget the positions of messages that were removed, once the exchange knows all their acknowledgements."""
        start = self.topic.managed.start.offset
        if not self._positions.start < start <= self._positions.end:
            return
        for name, local in self._locals.items():
            subscription = self.find(name)
            if subscription is None or local.era is None or subscription.cursor.mark.offset < start:
                return  # acknowledgements of these messages may still come: the next batch is another chance
        self._pass_all_acks()
        self._positions.trim(start)
        self._note_removed()

    def _note_removed(self) -> None:
        """Tell the exchange which messages of each origin were removed here."""
        assert self._exchange is not None
        starts = {origin: self._positions.first(origin) for origin in self._positions.ends()}
        self.carry_out(self._exchange.remove(starts | {self._positions.own: self._positions.start}))

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
        self._neighbours.connect()

    # ---- the exchange ---------------------------------------------------------------------------------------

    def carry_out(self, effects: list[Effect], batch: MessageBatch | None = None) -> None:
        """Carry effects of the exchange out; see `HandoverOwner`.

        Args:
            effects: the effects.
            batch: the entries whose arrival caused them.
        """
        for effect in effects:
            match effect:
                case Persist():
                    self._issued_sequence = effect.sequence
                    if self._journal is not None:
                        self._journal.append(effect)
                case Send(peer, session, data):
                    self._neighbours.send(peer, session, data)
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
                    publisher = self._neighbours.name_of(origin.cluster)
                    self.diverged(
                        peer, f"messages of the cluster {publisher} ({origin.token}): the entry at {first} is another "
                        "one there: one of the two clusters was rolled back, or the one that published them. Compare "
                        "the topic in all three",
                    )  # fmt: skip
        self._handovers.advance()
        self._neighbours.send_due()
        if self._neighbours.is_any_connected and self._exchange is not None and not self._exchange.is_idle:
            self._flush_later()

    def _on_persisted(self, sequence: int) -> None:
        def persisted() -> None:
            if self._exchange is None:
                return
            self._durable_sequence = sequence
            self.carry_out(self._exchange.persisted(sequence))
            self._note_durable()
            for name, local in self._locals.items():
                self._note_header(name, local)
                self._note_home(name, local)
            while self._durability_waiters and self._durability_waiters[0][0] <= sequence:
                set_result(self._durability_waiters.popleft()[1], None)

        self._events.post(persisted)

    def _note_header(self, name: str, local: _Progress) -> None:
        """Store the header's digest with the cursor, once the journal has the header."""
        state, subscription = self.state(name), self.find(name)
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

    def state(self, name: str) -> SubscriptionState | None:
        """Return the state of a subscription; see `HandoverOwner`."""
        return None if self._exchange is None else self._exchange.state(name)

    def find(self, name: str) -> Subscription | None:
        """Return a subscription of the topic; see `HandoverOwner`."""
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
            self.carry_out(self._exchange.flush())
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
        self.take_seeks()
        for name, local in self._locals.items():
            subscription = self.find(name)
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
        exchange, state = self._exchange, self.state(name)
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

    def take_seeks(self) -> None:
        """Begin another generation for each seek; the cursor was moved already."""
        while self._new_seeks:
            subscription, offset, era = self._new_seeks.popleft()
            name = subscription.name
            local = self._locals.get(name)
            state = self.state(name)
            if local is None or self._exchange is None or state is None or era != subscription.era:
                continue  # the cursor was moved again since
            base = self._positions.base_of_seek(state, offset, self.topic.managed.start.offset)
            effects = self._exchange.seek(name, base)
            local.era, local.acked, local.expired = era, RangeSet(), RangeSet()
            self.carry_out([effect for effect in effects if not isinstance(effect, Rebuild)])
            local.header_at = self._issued_sequence

    # ---- creation and deletion ------------------------------------------------------------------------------

    def created(self, subscription: Subscription) -> None:
        """Replicate a new subscription; see `SubscriptionWatcher`."""

        def created() -> None:
            if not self._is_ready or self._is_over or subscription.name in self._deletions:
                return
            if self.state(subscription.name) is None:
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
        self.carry_out(self._exchange.create(name, secrets.token_hex(16), bases, home))
        local.header_at = local.home_at = self._issued_sequence
        self._pass_acks(subscription, local)
        self.carry_out(self._exchange.flush())
        self.limit(name)
        self._flush_later()

    def deleted(self, name: str) -> None:
        """Delete the subscription in all clusters; see `SubscriptionWatcher`."""

        def deleted() -> None:
            if name in self._deletions:
                return
            local = self._locals.pop(name, None)
            if local is not None and local.has_rebuild_job:  # the job may create it again
                self._deletions[name] = []
            if self._exchange is not None and self.state(name) is not None and not self._is_over:
                effects = self._exchange.delete(name)
                self.carry_out([effect for effect in effects if not isinstance(effect, Drop)])

        self._events.post(deleted)

    def _drop(self, name: str) -> None:
        """Delete a subscription that was deleted in another cluster."""
        local, subscription = self._locals.pop(name, None), self.find(name)
        if name not in self._deletions:
            self._deletions[name] = [] if subscription is None else [subscription]
            if local is None or not local.has_rebuild_job:  # otherwise at the end of the job, which may create it
                self._delete_here(name)

    def _delete_here(self, name: str) -> None:
        """Delete a subscription in `_deletions`. If it exists elsewhere again, `_rebuild` waits for the deletion."""
        pending_deletion = self._deletions[name]

        def drop() -> None:
            try:
                if self.find(name) in pending_deletion:  # it may have been created again here
                    self.topic.delete_subscription(name, force=True)
            except NoSuchSubscriptionError:
                pass
            except ReplogError as error:
                self._retry_later(error, partial(self._retry_drop, name))
                return
            self._events.post(partial(self._dropped, name))

        self._context.work(drop)

    def _retry_drop(self, name: str) -> None:
        if self.state(name) is None:
            self._delete_here(name)
        else:  # it exists again: its cursor is set
            self._dropped(name)

    def _dropped(self, name: str) -> None:
        """Set the cursor of the next subscription of this name, or replicate it if it was created here meanwhile."""
        self._backoff.reset()
        self._deletions.pop(name, None)
        local, subscription = self._locals.get(name), self.find(name)
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
        local, subscription = self._locals.get(effect.name), self.find(effect.name)
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
        state = self.state(name)
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
            self.limit(name)

    def limit(self, name: str) -> None:
        """Let the subscription deliver the messages that were read and whose acknowledgements are applied."""
        local, subscription, state = self._locals.get(name), self.find(name), self.state(name)
        if local is None or subscription is None or state is None:
            return
        is_home = state.home.admits(self.topic.origin.cluster)
        if is_home == (name in self._homes_elsewhere):
            others = {other: home for other, home in self._homes_elsewhere.items() if other != name}
            self._homes_elsewhere = others if is_home else {**others, name: state.home.cluster}
        elif not is_home and self._homes_elsewhere[name] != state.home.cluster:
            self._homes_elsewhere = {**self._homes_elsewhere, name: state.home.cluster}
        delivers = is_home and self.is_in_step(name) and not self._handovers.holds_back(name)
        subscription.limit_to(self._positions.end if delivers else 0)

    def _home_changed(self, name: str) -> None:
        """Begin or stop to deliver, because the home has changed; the acknowledgements that arrived come first."""
        local, subscription = self._locals.get(name), self.find(name)
        if local is not None and subscription is not None and local.era is not None:
            nothing = np.zeros(0, np.int64)
            self._deliver_after(name, local, subscription.acknowledge_elsewhere(nothing, nothing))
        if local is not None:
            local.home_at = self._issued_sequence + 1  # the record of this change follows
        self._malformed_homes = {other: text for other, text in self._malformed_homes.items() if other != name}
        self.limit(name)

    def _rebuild(self, name: str) -> None:
        """Set the cursor of a subscription to its state; create the subscription if it does not exist."""
        state, subscription = self.state(name), self.find(name)
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
            if self.find(name) is None:
                self.topic.create_subscription(name, start="earliest")
                local.created = self.find(name)
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
        self.take_seeks()
        state, subscription = self.state(name), self.find(name)
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
        self.carry_out(self._exchange.inherit(subscription.name, self._home_at_birth(subscription)))
        local.home_at = self._issued_sequence
        self._note_home(subscription.name, local)

    def _note_home(self, name: str, local: _Progress) -> None:
        """Store the home in the metadata, once the journal has it: growth copies it from partition 0.

        In other partitions it is deleted: from now on the journal has it.
        """
        state, subscription = self.state(name), self.find(name)
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
                self._handovers.advance()

        self._events.post(stored)

    def is_home_noted(self, name: str) -> bool:
        """Return whether partitions that are added from now on begin with the present home."""
        local = self._locals.get(name)
        return local is None or local.home_at is None

    # ---- other clusters -------------------------------------------------------------------------------------

    def post(self, event: Callable[[], object]) -> None:
        """Run an event as a step; see `ConnectionOwner`."""
        self._events.post(event)

    def exchange(self, request: Exchange) -> AppendFuture[Exchanged]:
        """Take a request of another cluster; see `ExchangePeer`."""
        answer: AppendFuture[Exchanged] = AppendFuture()

        def asked() -> None:
            connection = self._neighbours.connections.get(request.cluster)
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
            for connection in self._neighbours.connections.values():
                connection.connection_lost(session)

        self._events.post(connection_lost)

    def connected(self, peer: bytes, session: int) -> None:
        """Begin a session; see `ConnectionOwner`."""
        assert self._exchange is not None
        self._neighbours.alarms.pop(peer, None)
        self.carry_out(self._exchange.connect(peer, session))

    def disconnected(self, peer: bytes) -> None:
        """End a session; see `ConnectionOwner`."""
        if self._exchange is not None and peer in self._neighbours.clusters:
            self.carry_out(self._exchange.disconnect(peer))

    def received(self, peer: bytes, data: bytes) -> None:
        """Take a message; see `ConnectionOwner`."""
        assert self._exchange is not None
        self.take_seeks()
        self.carry_out(self._exchange.receive(peer, data))

    def proved(self, peer: bytes, origin: Origin) -> None:
        """Take acknowledgements of an origin from now on; see `ConnectionOwner`."""
        assert self._exchange is not None
        self.carry_out(self._exchange.prove(peer, origin))

    def diverged(self, peer: bytes, text: str) -> None:
        """Raise an alarm; see `ConnectionOwner`."""
        self._neighbours.alarms[peer] = text
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
            self.carry_out(self._exchange.compared(comparison, here))

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
        if self.live_exchange is None or not self._is_ready:
            return status
        known = self._handovers.find(name, order)
        return known or self._handovers.begin(self.live_exchange, status, order, timeout=timeout, grace=grace)

    @property
    def live_exchange(self) -> SubscriptionExchange | None:
        """The exchange; see `HandoverOwner`."""
        return None if self._is_over else self._exchange

    def is_in_step(self, name: str) -> bool:
        """Return whether the cursor has the state of all clusters; see `HandoverOwner`."""
        local = self._locals.get(name)
        return local is not None and local.era is not None and not local.is_rebuilding

    def passes_all_acks(self, name: str) -> bool:
        """Pass the acknowledgements to the exchange; return whether it knows all of them now."""
        subscription, local = self.find(name), self._locals.get(name)
        if subscription is None or local is None or local.era is None:
            return False
        return self._pass_acks(subscription, local)

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
        is_noted = self._call_as_step(lambda: self.is_home_noted(subscription))
        return asdict(HandoverStatus(self.topic.name, subscription, "", "done") if is_noted else status)

    def _move_home_here(self, name: str, *, any_cluster: bool) -> AppendFuture[None] | None:
        """Return a future that is done when the home is durable; None: the kept messages are still being read."""
        if self._exchange is None or not self._is_ready or self._is_over:
            return None
        self._handovers.check_replicated(name)
        home = NO_CLUSTER if any_cluster else self.topic.origin.cluster
        self._handovers.cancel(name, "the subscription was taken over here")
        state, stored = self.state(name), AppendFuture[None]()
        if state is not None and state.home.cluster != home:
            logger.warning("topic %s: subscription %s is taken over from %s", self.topic.name, name, state.home)
            self.carry_out(self._exchange.move(name, home))
        self.limit(name)
        if self._durable_sequence >= self._issued_sequence:
            set_result(stored, None)
        else:
            self._durability_waiters.append((self._issued_sequence, stored))
        return stored

    def waiting(self) -> dict[str, str]:
        """Return alarms of homes, by subscription: consumers here wait in vain, or it is malformed. Never waits."""
        alarms = {
            name: f"subscription {name} of this partition began without a home, and consumers of all clusters get its "
            f"messages: order `geo take-over` in the home. {text}"
            for name, text in self._malformed_homes.items()
        }  # fmt: skip
        for name, home in self._homes_elsewhere.items():
            subscription = self.find(name)
            if subscription is not None and (consumers := subscription.consumers):
                alarms[name] = (
                    f"{consumers} consumers of subscription {name} wait here: its home is the cluster "
                    f"{self._neighbours.name_of(home)}. Hand it over there (`geo handover`), or, if that cluster is "
                    "lost, take it over here (`geo take-over`)"
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
            neighbours = self._neighbours.clusters.values()
            return [row for neighbour in neighbours for row in self.unknown(neighbour.name, why)]
        self._pass_all_acks()
        return self._report(self._exchange).readiness(self.alarms())

    def _report(self, exchange: SubscriptionExchange) -> SubscriptionReport:
        return SubscriptionReport(self.topic, exchange, self._positions, self._neighbours)

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
        if self._exchange is None or not self._is_ready:
            topic, token, error = self.topic.name, self.topic.origin.token, self._why_not_ready()
            return [
                SubscriptionPosition(topic, name, "", "", token, None, 0, None, is_known=False, error=error)
                for subscription in self._durable_subscriptions()
                if subscription.name == name
            ]
        self._pass_all_acks()
        return self._report(self._exchange).where(name)


def _below(ranges: RangeSet, end: int) -> RangeSet:
    below = copy_ranges(ranges)
    below.remove(end, OFFSET_END)
    return below
