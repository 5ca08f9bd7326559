"""Periodic maintenance of a topic: rolls old ledgers, enforces quotas, expires messages and subscriptions, trims."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection
from functools import partial

from pyreplog.errors import ClosedError, ReplogError, TopicFencedError
from pyreplog.future import AppendFuture, set_exception, set_result, then
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.model.backlog import CursorBacklog, Eviction, Publishing, Quota, QuotaDecision
from pyreplog.topic.model.retention import Usage, expired, next_expiry, next_unused, unused
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.subscriptions import Subscriptions
from pyreplog.topic.owner.system_cursors import SystemCursors
from pyreplog.topic.owner.topic_context import TopicContext

logger = logging.getLogger(__name__)

_STRICTNESS: tuple[Publishing, ...] = ("open", "held", "refused")


class TopicMaintenance:
    """The maintenance of one topic. Any thread; calls block."""

    def __init__(self, context: TopicContext, subscriptions: Subscriptions, system_cursors: SystemCursors) -> None:
        self._context, self._managed, self._clock = context, context.managed, context.clock
        self._subscriptions, self._system_cursors = subscriptions, system_cursors
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()  # held while `run` runs
        self._quota = Quota()
        self._since_us = context.clock.monotonic_us()
        self._due_us: int | None = None  # on the wall clock
        self._unused_us: int | None = None  # on the monotonic clock, like `_since_us`
        self.decision = QuotaDecision()
        self._by_quotas = self.decision
        self._hold_lock = threading.Lock()  # guards the holds and the decision; never held while anything waits
        self._holds: dict[str, tuple[Publishing, str]] = {}
        self.evictions: dict[str, int] = {"bytes": 0, "age": 0}
        self.trim_guards: list[Callable[[Collection[str]], bool]] = []
        """Called before messages are trimmed, with the names of the system cursors; True: not now, because a cursor
        that keeps the messages will be created. They may block, and raise errors of the metadata store."""

    def follow(self, publisher: Publisher) -> None:
        """Hold or refuse the messages of this publisher while a quota is exceeded."""
        self._publisher = publisher

    def run(self) -> None:
        """Run all steps.

        A failure is logged, and the step repeated the next time. Raises ClosedError if the topic was closed.
        """
        with self._lock:
            self._managed.roll_if_old(self._clock.now_us())
            steps = (
                self._sample_backlogs, self._enforce_quotas, self._drop_unused, self._subscriptions.store_settings,
                self._system_cursors.store_if_due, self._trim,
            )  # fmt: skip
            for step in steps:
                try:
                    step()
                except ClosedError:
                    raise
                except ReplogError as error:
                    logger.warning("topic %s: %s", self._context.name, error)

    def is_due(self) -> bool:
        """Return whether a step is due by time alone, so that an idle topic has to be maintained, too."""
        if self._due_us is not None and self._due_us <= self._clock.now_us():
            return True
        return self._unused_us is not None and self._unused_us <= self._clock.monotonic_us()

    def _sample_backlogs(self) -> None:
        end, now_us = self._managed.end, self._clock.monotonic_us()
        for subscription in self._subscriptions.all():
            subscription.inspect(
                lambda cursor, dispatcher: cursor.sample(now_us, end, dispatcher.first_due(end.offset))
            )

    # ---- backlogs -------------------------------------------------------------------------------------------

    def _enforce_quotas(self) -> None:
        config, now_us = self._managed.config, self._clock.now_us()
        ages = config.quota_ms is not None or config.ttl_ms is not None
        cursors = [
            CursorBacklog(sub.name, sub.cursor.durable, sub.cursor.mark, _oldest_us(sub) if ages else None)
            for sub in self._subscriptions.all()
        ]
        cursors += [CursorBacklog(cursor.name, True, cursor.mark) for cursor in self._system_cursors.all()]
        durable = [cursor for cursor in cursors if cursor.durable]
        expiries = next_expiry(cursors, config.ttl_ms), next_expiry(durable, config.quota_ms)
        self._due_us = min((due_us for due_us in expiries if due_us is not None), default=None)
        for expiry in expired(cursors, config.ttl_ms, now_us):
            self._expire(self._subscription(expiry.cursor), expiry.before_us)
        self._by_quotas = decision = self._quota.decide(config, self._managed.end, cursors, now_us)
        self._set_publishing()
        if decision.publishing != "open":
            self._context.touch()  # publishers may be waiting
        self._system_cursors.catch_up(decision.catch_up)
        for eviction in decision.evictions:
            self._evict(self._subscription(eviction.cursor), eviction)

    def hold(self, name: str, publishing: Publishing, reason: str) -> None:
        """Hold or refuse publishers for another reason than the quotas of the topic.

        name: of the part of the process that does so; its next call replaces this one. publishing: "open": no longer.
        """
        with self._hold_lock:
            others = {other: held for other, held in self._holds.items() if other != name}
            self._holds = others if publishing == "open" else {**others, name: (publishing, reason)}
        self._set_publishing()

    def _set_publishing(self) -> None:
        """Tell the publisher the strictest state, and again if that has changed meanwhile: the last call counts."""
        while True:
            with self._hold_lock:
                quotas = self._by_quotas
                states = [(quotas.publishing, quotas.reason), *self._holds.values()]
                publishing, reason = max(states, key=lambda state: _STRICTNESS.index(state[0]))
                self.decision = decision = dataclasses.replace(quotas, publishing=publishing, reason=reason)
            if self._publisher is not None:
                self._publisher.set_quota(publishing, reason)
            if self.decision == decision:
                return

    def _subscription(self, name: str) -> Subscription:
        self._context.check_open()
        return self._subscriptions.get(name)

    def _expire(self, subscription: Subscription, before_us: int) -> None:
        wait = self._context.runtime.wait
        before = subscription.cursor.mark.offset
        wait(subscription.skip_to(wait(self._managed.offset_at_time(before_us)), expires=True))
        subscription.counts.expired += max(subscription.cursor.mark.offset - before, 0)
        subscription.counts.last_expired_us = self._clock.now_us()

    def _evict(self, subscription: Subscription, eviction: Eviction) -> None:
        wait, managed = self._context.runtime.wait, self._managed
        before = subscription.cursor.mark.offset
        if eviction.before_us is not None:
            self.evictions["age"] += 1
            wait(subscription.skip_to(wait(managed.offset_at_time(eviction.before_us)), expires=True))
        if eviction.to_size is not None:
            self.evictions["bytes"] += 1
            wait(subscription.skip_to(wait(managed.offset_at_size(eviction.to_size)), expires=True))
        subscription.counts.evicted += max(subscription.cursor.mark.offset - before, 0)
        logger.warning(
            "topic %s: %d messages were evicted from the backlog of %s", self._context.name,
            subscription.cursor.mark.offset - before, subscription.name,
        )  # fmt: skip

    def _drop_unused(self) -> None:
        expiry_ms, now_us = self._managed.config.subscription_expiry_ms, self._clock.monotonic_us()
        usages = [Usage(sub.name, sub.cursor.durable, sub.consumers, sub.used_us) for sub in self._unwatched()]
        self._unused_us = next_unused(usages, expiry_ms, self._since_us)
        for name in unused(usages, expiry_ms, self._since_us, now_us):
            logger.warning(
                "topic %s: subscription %s expired without consumers, and is deleted", self._context.name, name
            )
            self._context.check_open()
            self._subscriptions.delete(name, force=False)

    def _unwatched(self) -> list[Subscription]:
        """Return the subscriptions of this cluster alone: others may have consumers in another cluster."""
        return [subscription for subscription in self._subscriptions.all() if not subscription.is_watched]

    # ---- ledgers --------------------------------------------------------------------------------------------

    def trim(self) -> AppendFuture[int]:
        """Drop the ledgers that nothing keeps; the future gives their number. May block: trim guards read metadata.

        The number is 0 while a trim guard expects another cursor. The future fails with errors of the metadata store.
        """
        is_held = self._subscriptions.is_held  # before the marks: they lack the watcher's until it ends
        marks = [sub.durable_mark() for sub in self._subscriptions.all() if sub.cursor.durable]
        cursors = self._system_cursors.all()
        marks += [cursor.mark.offset for cursor in cursors]
        if is_held:  # other clusters may not have these acknowledgements yet
            marks.append(self._managed.start.offset)
        below, now_us = min(marks, default=self._managed.end.offset), self._clock.now_us()
        done: AppendFuture[int] = AppendFuture()
        try:
            trims = self._managed.trim_end(below, now_us) is not None
            expects_cursor = trims and self._expects_cursor({cursor.name for cursor in cursors})
        except ReplogError as error:
            set_exception(done, error)
            return done
        if expects_cursor:
            self._context.touch()  # so that it is asked again soon
            set_result(done, 0)
            return done
        trimmed = self._managed.trim(below, now_us)
        then(trimmed, done, partial(self._on_trimmed, done))
        return done

    def _trim(self) -> None:
        self.trim().add_done_callback(self._log_untrimmed)

    def _log_untrimmed(self, trimmed: AppendFuture[int]) -> None:
        error = trimmed.exception()
        if error is not None and not isinstance(error, ClosedError | TopicFencedError):
            logger.warning("topic %s: its ledgers are not trimmed yet: %s", self._context.name, error)

    def _expects_cursor(self, cursors: Collection[str]) -> bool:
        """Return whether another cursor will be created that holds messages back."""
        return any(guard(cursors) for guard in self.trim_guards)

    def _on_trimmed(self, done: AppendFuture[int], count: int) -> None:
        if count:
            start = self._managed.start
            for subscription in self._subscriptions.all():
                subscription.trimmed(start)
        set_result(done, count)


def _oldest_us(subscription: Subscription) -> int | None:
    """Return the append time of the oldest unacknowledged message; None: none, or it cannot be read now."""
    try:
        return subscription.oldest_us()
    except ReplogError as error:
        logger.warning(
            "topic %s: the oldest message of subscription %s cannot be read: %s",
            subscription.managed.name,
            subscription.name,
            error,
        )
        return None
