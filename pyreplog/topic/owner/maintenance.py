"""Upkeep of a topic: now and then old ledgers end and go, quotas hold, messages and subscriptions expire."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from pyreplog.clock import Clock
from pyreplog.errors import ClosedError, ReplogError
from pyreplog.future import AppendFuture
from pyreplog.topic.model.backlog import CursorBacklog, Eviction, Quota, QuotaDecision
from pyreplog.topic.model.expiry import Usage, expired, next_expiry, next_unused, unused
from pyreplog.topic.model.positions import then
from pyreplog.topic.owner.subscription import Subscription

if TYPE_CHECKING:
    from pyreplog.topic.owner.topic import Topic

logger = logging.getLogger(__name__)


class TopicMaintenance:
    """Any thread; calls wait."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._lock = threading.Lock()  # while it looks
        self._quota = Quota()
        self._since_us = topic.clock.monotonic_us()
        self._due_us: dict[str, int | None] = {}  # by the wall
        self._unused_us: int | None = None  # on the clock that nobody sets, as `_since_us`
        self.decision = QuotaDecision()
        self.evictions: dict[str, int] = {"bytes": 0, "age": 0}

    def look(self) -> None:
        """All of it. What fails is logged, and done again the next time. ClosedError: the topic was closed."""
        topic, clock = self._topic, self._topic.clock
        with self._lock:
            topic.managed.look(clock.now_us())
            for step in (self._sample, self._watch_backlogs, self._drop_unused, self._store_producers, self._trim):
                try:
                    step(clock)
                except ClosedError:
                    raise
                except ReplogError as error:
                    logger.warning("topic %s: %s", topic.name, error)

    def is_due(self) -> bool:
        """Whether time alone has brought something to do: the topic is looked at, though nobody has used it."""
        clock = self._topic.clock
        now_us = clock.now_us()
        if any(due_us is not None and due_us <= now_us for due_us in self._due_us.values()):
            return True
        return self._unused_us is not None and self._unused_us <= clock.monotonic_us()

    def _sample(self, clock: Clock) -> None:
        end, now_us = self._topic.managed.end, clock.monotonic_us()
        for there in self._topic.all_subscriptions():
            there.look(lambda cursor, dispatcher: cursor.sample(now_us, end, dispatcher.first_due(end.offset)))

    # ---- backlogs -------------------------------------------------------------------------------------------

    def _watch_backlogs(self, clock: Clock) -> None:
        topic, config, now_us = self._topic, self._topic.config, clock.now_us()
        ages = config.quota_ms is not None or config.ttl_ms is not None
        cursors = [
            CursorBacklog(there.name, there.cursor.durable, there.cursor.mark, _oldest_us(there) if ages else None)
            for there in topic.all_subscriptions()
        ]
        if topic.dedup is not None:
            cursors.append(CursorBacklog(topic.dedup.name, True, topic.dedup.mark))
        durable = [cursor for cursor in cursors if cursor.durable]
        self._due_us["message"] = next_expiry(cursors, config.ttl_ms)
        self._due_us["quota"] = next_expiry(durable, config.quota_ms)
        for expiry in expired(cursors, config.ttl_ms, now_us):
            self._expire(topic.subscription(expiry.cursor), expiry.before_us)
        self.decision = decision = self._quota.decide(config, topic.managed.end, cursors, now_us)
        topic.gate.set(decision.publishing, decision.reason)
        if decision.publishing != "open":
            topic.touch()  # somebody may be waiting
        if decision.catch_up and topic.dedup is not None:
            topic.dedup.store(topic)
        for eviction in decision.evictions:
            self._evict(topic.subscription(eviction.cursor), eviction)

    def _expire(self, there: Subscription, before_us: int) -> None:
        wait = self._topic.topics.runtime.wait
        before = there.cursor.mark.offset
        wait(there.skip_to(wait(self._topic.managed.offset_at_time(before_us))))
        there.counts.expired += max(there.cursor.mark.offset - before, 0)
        there.counts.last_expired_us = self._topic.clock.now_us()

    def _evict(self, there: Subscription, eviction: Eviction) -> None:
        wait, managed = self._topic.topics.runtime.wait, self._topic.managed
        before = there.cursor.mark.offset
        if eviction.before_us is not None:
            self.evictions["age"] += 1
            wait(there.skip_to(wait(managed.offset_at_time(eviction.before_us))))
        if eviction.to_size is not None:
            self.evictions["bytes"] += 1
            wait(there.skip_to(wait(managed.offset_at_size(eviction.to_size))))
        there.counts.evicted += max(there.cursor.mark.offset - before, 0)
        logger.warning(
            "topic %s: %d messages were evicted from the backlog of %s", self._topic.name,
            there.cursor.mark.offset - before, there.name,
        )  # fmt: skip

    def _drop_unused(self, clock: Clock) -> None:
        topic, now_us = self._topic, clock.monotonic_us()
        usages = [
            Usage(there.name, there.cursor.durable, there.consumers, there.used_us)
            for there in topic.all_subscriptions()
        ]
        self._unused_us = next_unused(usages, topic.config.subscription_expiry_ms, self._since_us)
        for name in unused(usages, topic.config.subscription_expiry_ms, self._since_us, now_us):
            logger.warning("topic %s: subscription %s was not used for too long: it is deleted", topic.name, name)
            topic.delete_subscription(name)

    def _store_producers(self, clock: Clock) -> None:
        if self._topic.dedup is not None:
            self._topic.dedup.look(self._topic, clock.monotonic_us())

    # ---- ledgers --------------------------------------------------------------------------------------------

    def _trim(self, clock: Clock) -> None:
        self.trim(clock.now_us())

    def trim(self, now_us: int) -> AppendFuture[int]:
        """Drop the ledgers that nothing keeps; gives how many."""
        topic = self._topic
        marks = [there.durable_mark() for there in topic.all_subscriptions() if there.cursor.durable]
        if topic.dedup is not None:
            marks.append(topic.dedup.mark.offset)
        done: AppendFuture[int] = AppendFuture()
        trimmed = topic.managed.trim(min(marks, default=topic.managed.end.offset), now_us)
        then(trimmed, done, partial(self._trimmed, done))
        return done

    def _trimmed(self, done: AppendFuture[int], count: int) -> None:
        if count:
            self._topic.trimmed(self._topic.managed.start)
        done.complete(count)


def _oldest_us(there: Subscription) -> int | None:
    """As far as it can be read now."""
    try:
        return there.oldest_us()
    except ReplogError as error:
        logger.warning("%s, %s: its oldest message: %s", there.managed.name, there.name, error)
        return None
