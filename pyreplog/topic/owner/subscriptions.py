"""The subscriptions of a topic that this process owns: recovered when it is opened, created, and deleted."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyreplog._native.topic.range_set import OFFSET_END
from pyreplog.arguments import check_mapping
from pyreplog.cursors.cursor_log import RecoveredSubscription
from pyreplog.cursors.subscription_config import SubscriptionConfig
from pyreplog.cursors.subscription_metadata import (
    HOME_PROPERTY,
    SETTINGS_PROPERTY,
    SubscriptionMetadata,
    change_subscription,
    create_subscription,
    delete_subscription,
    list_subscriptions,
)
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
from pyreplog.net.fair_executor import wait_while_connected
from pyreplog.topic.model.backlog import SYSTEM_PREFIX, is_system
from pyreplog.topic.model.cursor import Cursor
from pyreplog.topic.model.interfaces import DeliveryTarget
from pyreplog.topic.model.positions import Start, check_start, position
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.owner.dead_letters import check_dead_letters, publish_dead
from pyreplog.topic.owner.subscription import Subscription, SubscriptionWatcher
from pyreplog.topic.owner.topic_context import TopicContext
from pyreplog.topic_names import check_name

logger = logging.getLogger(__name__)

JOURNAL = f"{SYSTEM_PREFIX}subscriptions"
"""Name of the system cursor that a topic has while its subscriptions are replicated to other clusters."""


def era_of(metadata: SubscriptionMetadata) -> int:
    """Return the era of a subscription before its first seek.

    Every owner computes the same one; a subscription that is created again has another one.
    """
    return 1 + int.from_bytes(hashlib.blake2b(metadata.token.encode(), digest_size=7).digest())


class Subscriptions:
    """The subscriptions of one topic. Any thread; creating and deleting wait for the metadata store."""

    def __init__(self, context: TopicContext) -> None:
        self._context, self._topic = context, context.name
        self._cursors, self._metadata = context.cursors, context.metadata
        self._lock = threading.Lock()  # guards the table; never held while anything waits
        self._changing = threading.Lock()  # held while a subscription is created or deleted
        self._table: dict[str, Subscription] = {}
        self._error: ReplogError | None = None
        """Why no more subscriptions are created."""
        self._watcher: SubscriptionWatcher | None = None
        self._is_held = False  # all wait for a watcher
        self._is_changing = False  # some do not have the present watcher yet
        part = partition_of(context.name)
        self._is_later_partition = part is not None and part[1] > 0  # its subscriptions begin with copied homes

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
        """Return a subscription. Raises NoSuchSubscriptionError, and the errors of `check_name`."""
        subscription = self.find(check_name(name, "subscription"))
        if subscription is None:
            raise NoSuchSubscriptionError(self._topic, f"there is no subscription {name}")
        return subscription

    # ---- creating ---------------------------------------------------------------------------------------------

    def recover(self) -> list[str]:
        """Take over all durable subscriptions of the topic; return the names of its stored system cursors."""
        names = list_subscriptions(self._metadata, self._topic)
        self._is_held = JOURNAL in names
        for name in names:
            if not is_system(name):
                self._recover(name)
        return [name for name in names if is_system(name)]

    def open(
        self,
        name: str,
        start: Start,
        durable: bool,
        settings: Mapping[str, Any],
        properties: Mapping[str, str],
        *,
        later: bool = False,
        home: str = "",
    ) -> Subscription:
        """Return an existing subscription, with these settings, or a new one.

        later: changed settings of an existing subscription may be stored later. home: its home at birth, see
        `SubscriptionMetadata`. Raises the errors of `Topic.create_subscription`.
        """
        check_name(name, "subscription")
        check_start(start)
        check_mapping("properties", properties)
        if is_system(name):
            raise InvalidArgumentError(f"subscription {name!r}: names that begin like this are reserved for pyreplog")
        for reserved in (SETTINGS_PROPERTY, HOME_PROPERTY):
            if reserved in properties:
                raise InvalidArgumentError(f"properties: the name {reserved!r} is reserved for pyreplog")
        config = SubscriptionConfig.of(dict(settings))
        with self._changing:
            subscription = self.find(name)
            if subscription is not None and not subscription.is_over:
                self._configure(subscription, settings, later=later)
                self._pass_home(subscription, home)
                return subscription
            check_dead_letters(self._topic, name, config)
            mark = wait_while_connected(self._context.runtime.wait, position(self._context.managed, start))
            if not durable:
                return self._add(self._new(Cursor(name, mark, durable=False), config))
            self._create(name, Cursor(name, mark), config, properties, home)
            subscription = self._recover(name)
            self._configure(subscription, settings, later=later)  # it existed, unknown to this owner
            self._pass_home(subscription, home)
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
        """Open a subscription for a consumer; return it, and the consumer's number.

        address: as for `Subscription.attach`.
        """
        while True:
            subscription = self.open(name, start, durable, settings, {}, later=True)
            expected = subscription.settings.changed(settings) if settings else None
            try:
                return subscription, subscription.attach(consumer, expected, priority=priority, address=address)
            except ReplogError:
                is_gone = subscription.is_over and self.find(name) is not subscription
                if not is_gone and expected in (None, subscription.settings):
                    raise  # otherwise its last consumer has just left, or another one changed the settings

    def _configure(self, subscription: Subscription, settings: Mapping[str, Any], *, later: bool) -> None:
        """Change settings, and store them, while no other call changes subscriptions.

        later: while the metadata store is unavailable the settings apply nevertheless, and `store_settings` stores
        them. Raises ConfigError; SubscriptionBusyError if there are consumers; the errors of `change_subscription`,
        after which the settings are as before, or unknown.
        """
        if not settings:
            return
        former = subscription.settings
        config = former.changed(settings)
        check_dead_letters(self._topic, subscription.name, config)
        if config != former:
            subscription.configure(config)
        try:
            self._store_settings_of(subscription)
        except (MetadataUnavailableError, OutcomeUnknownError) as error:
            if not later:
                self._restore_settings(subscription, former)
                raise
            logger.warning("topic %s: settings of %s are not stored yet: %s", self._topic, subscription.name, error)
            self._context.touch()
        except BaseException:
            self._restore_settings(subscription, former)
            raise

    def _restore_settings(self, subscription: Subscription, settings: SubscriptionConfig) -> None:
        with suppress(SubscriptionBusyError):
            subscription.configure(settings)

    def _store_settings_of(self, subscription: Subscription) -> None:
        """Store the settings of a durable subscription, unless the metadata store has them."""
        config = subscription.settings
        if subscription.persister is None or subscription.stored_settings == config:
            return
        subscription.stored_settings = None
        change_subscription(
            self._metadata, self._topic, subscription.name, subscription.persister.owner,
            lambda stored: stored.with_config(config),
        )  # fmt: skip
        subscription.stored_settings = config

    def store_settings(self) -> None:
        """Store settings that could not be stored when they changed. Raises errors of the metadata store."""
        if all(sub.persister is None or sub.stored_settings == sub.settings for sub in self.all()):
            return
        self._context.touch()  # until all are stored
        if not self._changing.acquire(blocking=False):
            return
        try:
            for subscription in self.all():
                self._store_settings_of(subscription)
        finally:
            self._changing.release()

    def _create(
        self, name: str, cursor: Cursor, config: SubscriptionConfig, properties: Mapping[str, str], home: str
    ) -> None:
        topic, managed, now_us = self._topic, self._context.managed, self._context.clock.now_us()
        metadata = SubscriptionMetadata(
            token=secrets.token_hex(16), created_us=now_us, properties=dict(properties), home=home,
            snapshot=cursor.snapshot_record()[1], moved_us=now_us,
        ).with_config(config)  # fmt: skip
        try:
            create_subscription(self._metadata, topic, name, metadata)
        except KeyExistsError:
            logger.warning("topic %s: subscription %s existed already", topic, name)
            return
        try:
            managed.verify()
        except (TopicFencedError, ClosedError):  # the topic will be closed
            with suppress(ReplogError):  # the new owner may have taken it over
                delete_subscription(self._metadata, topic, name, metadata.owner)
            raise

    def _recover(self, name: str) -> Subscription:
        recovered = self._take_over(name)
        cursor = Cursor.restore(name, recovered.records)
        home = recovered.metadata.home
        subscription = self._new(cursor, recovered.metadata.config, waits=bool(home) and self._is_later_partition)
        subscription.home = home
        subscription.stored_settings = subscription.settings
        subscription.properties = recovered.metadata.properties
        subscription.created_us = recovered.metadata.created_us
        subscription.first_era = era_of(recovered.metadata)
        subscription.persister = self._cursors.attach(recovered, subscription)
        return self._add(subscription)

    def _take_over(self, name: str) -> RecoveredSubscription:
        managed = self._context.managed
        try:
            return self._cursors.recover(self._topic, name, epoch=managed.topic_epoch)
        except TopicFencedError:
            with suppress(MetadataUnavailableError):
                managed.verify()  # this process did not know, and closes the topic
            raise

    # ---- replication to other clusters ------------------------------------------------------------------------

    def watch(self, watcher: SubscriptionWatcher | None, *, former: SubscriptionWatcher | None = None) -> None:
        """Tell a watcher of changes of durable subscriptions from now on; None: nobody, and all are delivered freely.

        New ones, and all of a topic whose subscriptions were replicated when it was opened, deliver nothing until the
        watcher limits them.

        former: the watcher that ends; if another one watches, nothing changes.
        """
        with self._lock:
            if former is not None and self._watcher not in (None, former):
                return
            self._watcher, self._is_held = watcher, False
            self._is_changing = True
            durable = [subscription for subscription in self._table.values() if subscription.cursor.durable]
        try:
            for subscription in durable:
                subscription.watch(watcher)
                if watcher is None:
                    subscription.limit_to(OFFSET_END)
        finally:
            with self._lock:
                self._is_changing = False

    @property
    def is_held(self) -> bool:
        """Whether some subscriptions wait for a watcher, which alone knows the acknowledgements in other clusters."""
        with self._lock:
            return self._is_held or self._is_changing

    def _new(self, cursor: Cursor, settings: SubscriptionConfig, *, waits: bool = False) -> Subscription:
        """Return a new object. waits: it delivers nothing until a watcher, or the end of the replication, says so."""
        subscription = self._make_subscription(cursor, settings)
        with self._lock:
            watcher, is_held = self._watcher, self._is_held
        if cursor.durable and (waits or is_held or watcher is not None):
            subscription.watch(watcher)
            subscription.limit_to(0)
        return subscription

    def _pass_home(self, subscription: Subscription, home: str) -> None:
        """Store the home at birth of an existing subscription, and tell the watcher."""
        if not home or not subscription.cursor.durable or subscription.home == home:
            return
        self._store_home(subscription, home)
        if self._watcher is not None:
            self._watcher.created(subscription)

    def store_home(self, subscription: Subscription, home: str, if_: Callable[[], bool]) -> bool:
        """Store the home of a durable subscription; return False if it is over, or `if_` is false.

        Raises the errors of `change_subscription`.
        """
        with self._changing:
            if subscription.is_over or not if_():
                return False
            self._store_home(subscription, home)
            return True

    def _store_home(self, subscription: Subscription, home: str) -> None:
        assert subscription.persister is not None
        change_subscription(
            self._metadata, self._topic, subscription.name, subscription.persister.owner,
            lambda stored: dataclasses.replace(stored, home=home),
        )  # fmt: skip
        subscription.home = home

    def _make_subscription(self, cursor: Cursor, settings: SubscriptionConfig) -> Subscription:
        context = self._context
        return Subscription(
            cursor.name, context.managed, cursor, settings, context.runtime, context.clock,
            publish_dead=lambda subscription, dead: publish_dead(context, subscription, dead),
            on_change=context.touch, on_over=self._forget,
        )  # fmt: skip

    def _add(self, subscription: Subscription) -> Subscription:
        """Add a subscription to the table, and have it follow the topic."""
        with self._lock:
            error = self._error
            if error is None:
                self._table[subscription.name] = subscription
        if error is not None:
            subscription.end(error)
            raise error
        subscription.follow_topic()
        watcher = self._watcher
        if watcher is not None and subscription.cursor.durable:
            subscription.watch(watcher)
            watcher.created(subscription)
        return subscription

    def _forget(self, subscription: Subscription) -> None:
        with self._lock:
            if self._table.get(subscription.name) is subscription:
                del self._table[subscription.name]

    # ---- the end --------------------------------------------------------------------------------------------

    def delete(self, name: str, *, force: bool) -> None:
        """Delete a subscription, see `Topic.delete_subscription`."""
        topic = self._topic
        with self._changing:
            subscription = self.get(name)
            if subscription.consumers and not force:
                raise SubscriptionBusyError(topic, f"subscription {name} has {subscription.consumers} consumers")
            if subscription.persister is not None:
                with suppress(NoSuchSubscriptionError):  # an earlier attempt with an unknown outcome deleted it
                    delete_subscription(self._metadata, topic, name, subscription.persister.owner)
            self._forget(subscription)
            subscription.end(NoSuchSubscriptionError(topic, f"subscription {name} was deleted"), deleted=True)
            if self._watcher is not None and subscription.cursor.durable:
                self._watcher.deleted(name)

    def end(self, error: ReplogError, *, deleted: bool = False) -> None:
        """End all subscriptions, and create no more. deleted: they do not exist any more."""
        with self._lock:
            self._error = error
        for subscription in self.all():
            subscription.end(error, deleted=deleted)
            if deleted:
                self._forget(subscription)
