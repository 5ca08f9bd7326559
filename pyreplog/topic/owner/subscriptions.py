"""The subscriptions of a topic that this process owns: found when it is opened, made, and deleted."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyreplog.arguments import check_mapping
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    KeyExistsError,
    MetadataUnavailableError,
    NoSuchSubscriptionError,
    OutcomeUnknownError,
    ReplogError,
    SubscriptionBusyError,
    TopicFencedError,
)
from pyreplog.net.fair_executor import wait_wanted
from pyreplog.topic.model.backlog import is_system
from pyreplog.topic.model.config import SubscriptionConfig
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.interfaces import DeliveryTarget
from pyreplog.topic.model.names import check_name
from pyreplog.topic.model.positions import Start, check_start, position
from pyreplog.topic.model.subscription_metadata import (
    SETTINGS_PROPERTY,
    SubscriptionMetadata,
    change_subscription,
    create_subscription,
    delete_subscription,
    list_subscriptions,
)
from pyreplog.topic.owner.dead_letters import check_dead_letters, publish_dead
from pyreplog.topic.owner.subscription import Subscription
from pyreplog.topic.owner.topic_context import TopicContext

logger = logging.getLogger(__name__)


def era_of(metadata: SubscriptionMetadata) -> int:
    """The era before the first seek. Every owner computes the same one; a subscription made anew has another."""
    return 1 + int.from_bytes(hashlib.blake2b(metadata.token.encode(), digest_size=7).digest())


class Subscriptions:
    """Any thread; making and deleting wait for the metadata store."""

    def __init__(self, context: TopicContext) -> None:
        self._context, self._topic = context, context.name
        self._cursors, self._metadata = context.cursors, context.metadata
        self._lock = threading.Lock()  # of the table; never while anything waits
        self._changing = threading.Lock()  # while one is made or deleted
        self._table: dict[str, Subscription] = {}
        self._error: ReplogError | None = None
        """Why none is made any more."""

    # ---- the table ------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._table)

    def all(self) -> list[Subscription]:
        with self._lock:
            return list(self._table.values())

    def find(self, name: str) -> Subscription | None:
        with self._lock:
            return self._table.get(name)

    def get(self, name: str) -> Subscription:
        """Errors: NoSuchSubscriptionError; as `check_name`."""
        there = self.find(check_name(name, "subscription"))
        if there is None:
            raise NoSuchSubscriptionError(self._topic, f"there is no subscription {name}")
        return there

    # ---- making ---------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take over all durable ones that there are."""
        for name in list_subscriptions(self._metadata, self._topic):
            if not is_system(name):
                self._recover(name)

    def make(
        self,
        name: str,
        start: Start,
        durable: bool,
        settings: Mapping[str, Any],
        properties: Mapping[str, str],
        *,
        later: bool = False,
    ) -> Subscription:
        """The one that is there, with these settings, or a new one. later: other settings of one that is there may be
        stored later. Errors: see `Topic.create_subscription`."""
        check_name(name, "subscription")
        check_start(start)
        check_mapping("properties", properties)
        if is_system(name):
            raise InvalidArgumentError(f"subscription {name!r}: names that begin like this are reserved for pyreplog")
        if SETTINGS_PROPERTY in properties:
            raise InvalidArgumentError(f"properties: the name {SETTINGS_PROPERTY!r} is reserved for pyreplog")
        config = SubscriptionConfig.of(dict(settings))
        with self._changing:
            subscription = self.find(name)
            if subscription is not None and not subscription.is_over:
                self._configure(subscription, settings, later=later)
                return subscription
            check_dead_letters(self._topic, name, config)
            mark = wait_wanted(self._context.runtime.wait, position(self._context.managed, start))
            if not durable:
                return self._add(self._made(Cursor(name, mark, durable=False), config))
            self._create(name, Cursor(name, mark), config, properties)
            subscription = self._recover(name)
            self._configure(subscription, settings, later=later)  # it was there, and nobody here knew
            return subscription

    def attach(
        self,
        consumer: DeliveryTarget,
        name: str,
        start: Start,
        durable: bool,
        settings: Mapping[str, Any],
        priority: int,
        address: str = "",
    ) -> tuple[Subscription, int]:
        """Make a subscription, if there is none, for a consumer; and its number there. address: as of
        `Subscription.attach`."""
        while True:
            subscription = self.make(name, start, durable, settings, {}, later=True)
            expected = subscription.settings.changed(settings) if settings else None
            try:
                return subscription, subscription.attach(consumer, expected, priority=priority, address=address)
            except ReplogError:
                is_gone = subscription.is_over and self.find(name) is not subscription
                if not is_gone and expected in (None, subscription.settings):
                    raise  # else its last consumer left in this moment, or another one changed the settings

    def _configure(self, subscription: Subscription, settings: Mapping[str, Any], *, later: bool) -> None:
        """Change these settings, and store them, while no other call changes subscriptions.

        later: while the metadata store is away the settings hold all the same, and `store_settings` stores them.
        Errors: ConfigError; SubscriptionBusyError, there are consumers; those of `change_subscription`, after which
        the settings are as before, or nobody knows.
        """
        if not settings:
            return
        former = subscription.settings
        config = former.changed(settings)
        check_dead_letters(self._topic, subscription.name, config)
        if config != former:
            subscription.configure(config)
        try:
            self._store(subscription)
        except (MetadataUnavailableError, OutcomeUnknownError) as error:
            if not later:
                self._put_back(subscription, former)
                raise
            logger.warning("topic %s: settings of %s are not stored yet: %s", self._topic, subscription.name, error)
            self._context.touch()
        except BaseException:
            self._put_back(subscription, former)
            raise

    def _put_back(self, subscription: Subscription, settings: SubscriptionConfig) -> None:
        with suppress(SubscriptionBusyError):
            subscription.configure(settings)

    def _store(self, subscription: Subscription) -> None:
        """Have the metadata store know its settings; without one that is durable, or when it knows them, do nothing."""
        config = subscription.settings
        if subscription.slot is None or subscription.stored_settings == config:
            return
        subscription.stored_settings = None
        change_subscription(
            self._metadata, self._topic, subscription.name, subscription.slot.owner,
            lambda stored: stored.with_config(config),
        )  # fmt: skip
        subscription.stored_settings = config

    def store_settings(self) -> None:
        """Store settings that could not be stored when they changed. Errors: those of the metadata store."""
        if all(there.slot is None or there.stored_settings == there.settings for there in self.all()):
            return
        self._context.touch()  # until all are
        if not self._changing.acquire(blocking=False):
            return
        try:
            for subscription in self.all():
                self._store(subscription)
        finally:
            self._changing.release()

    def _create(self, name: str, cursor: Cursor, config: SubscriptionConfig, properties: Mapping[str, str]) -> None:
        topic, managed, now_us = self._topic, self._context.managed, self._context.clock.now_us()
        made = SubscriptionMetadata(
            token=secrets.token_hex(16), created_us=now_us, properties=dict(properties),
            snapshot=cursor.snapshot_record()[1], moved_us=now_us,
        ).with_config(config)  # fmt: skip
        try:
            create_subscription(self._metadata, topic, name, made)
        except KeyExistsError:
            logger.warning("topic %s: subscription %s was there already", topic, name)
            return
        try:
            managed.verify()
        except (TopicFencedError, ClosedError):  # it is closed as soon as it knows
            with suppress(ReplogError):  # the new owner may have found it: then it is that one's
                delete_subscription(self._metadata, topic, name, made.owner)
            raise

    def _recover(self, name: str) -> Subscription:
        recovered = self._cursors.recover(self._topic, name)
        cursor = Cursor.restore(name, recovered.records)
        there = self._made(cursor, recovered.metadata.config)
        there.stored_settings = there.settings
        there.properties = recovered.metadata.properties
        there.created_us = recovered.metadata.created_us
        there.first_era = era_of(recovered.metadata)
        there.slot = self._cursors.attach(recovered, there)
        return self._add(there)

    def _made(self, cursor: Cursor, settings: SubscriptionConfig) -> Subscription:
        context = self._context
        return Subscription(
            cursor.name, context.managed, cursor, settings, context.runtime, context.clock,
            publish_dead=lambda subscription, dead: publish_dead(context, subscription, dead),
            on_change=context.touch, on_over=self._forget,
        )  # fmt: skip

    def _add(self, made: Subscription) -> Subscription:
        """From now on it hears what becomes of the topic."""
        with self._lock:
            error = self._error
            if error is None:
                self._table[made.name] = made
        if error is not None:
            made.end(error)
            raise error
        made.settle_in()
        return made

    def _forget(self, there: Subscription) -> None:
        with self._lock:
            if self._table.get(there.name) is there:
                del self._table[there.name]

    # ---- the end --------------------------------------------------------------------------------------------

    def delete(self, name: str, *, force: bool) -> None:
        """See `Topic.delete_subscription`."""
        topic = self._topic
        with self._changing:
            there = self.get(name)
            if there.consumers and not force:
                raise SubscriptionBusyError(topic, f"subscription {name} has {there.consumers} consumers")
            if there.slot is not None:
                with suppress(NoSuchSubscriptionError):  # an earlier try, of which nobody knew the outcome
                    delete_subscription(self._metadata, topic, name, there.slot.owner)
            self._forget(there)
            there.end(NoSuchSubscriptionError(topic, f"subscription {name} was deleted"), deleted=True)

    def end(self, error: ReplogError, *, deleted: bool = False) -> None:
        """None is used, or made, any more. deleted: nor do they exist."""
        with self._lock:
            self._error = error
        for there in self.all():
            there.end(error, deleted=deleted)
            if deleted:
                self._forget(there)
