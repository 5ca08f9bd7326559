"""Topic: publishes and delivers messages in the process that owns the topic."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

import numpy as np

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.topic.messages import MessageBatch
from pyreplog.arguments import as_int, check_bool, check_text
from pyreplog.clock import Clock
from pyreplog.coroutines import check_may_block, in_thread, iterating, opening
from pyreplog.cursors.cursor_log import CursorLog
from pyreplog.cursors.subscription_config import SubscriptionConfig, SubscriptionSettings
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata
from pyreplog.errors import InvalidArgumentError, NoSuchTopicError, OutOfRangeError, ReplogError, TopicFencedError
from pyreplog.future import AppendFuture, after_all, set_result, transform
from pyreplog.handles import Handle
from pyreplog.ledger.runtime import RuntimeBase
from pyreplog.metadata.store import MetadataStore
from pyreplog.net.fair_executor import wait_while_connected
from pyreplog.origins.origin import Origin
from pyreplog.topic.client.consumer import QUEUE, Consumer
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.publishing.publisher import Publisher
from pyreplog.topic.client.redrive import OnProgress, Redrive, RedriveTarget, Where
from pyreplog.topic.model.arguments import OFFSET_MAX, as_offset, check_consumer
from pyreplog.topic.model.backlog import is_system
from pyreplog.topic.model.config import TopicConfig, TopicSettings
from pyreplog.topic.model.dead_letter import RedriveReport
from pyreplog.topic.model.interfaces import DeliveryTarget
from pyreplog.topic.model.positions import Start, messages_from, position
from pyreplog.topic.model.stats import InternalStats, TopicStats
from pyreplog.topic.model.wire.protocol import Exchange, Exchanged
from pyreplog.topic.owner.dedup_cursor import dedup_cursor, obsolete_cursors
from pyreplog.topic.owner.maintenance import TopicMaintenance
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from pyreplog.topic.owner.origins import Origins
from pyreplog.topic.owner.ownership import Claim
from pyreplog.topic.owner.report import TopicReport
from pyreplog.topic.owner.subscription import Subscription, SubscriptionWatcher
from pyreplog.topic.owner.subscriptions import Subscriptions
from pyreplog.topic.owner.system_cursors import SystemCursors
from pyreplog.topic.owner.topic_context import DeadLetterTopic, TopicContext
from pyreplog.topic_names import check_name

logger = logging.getLogger(__name__)

T = TypeVar("T")

READ_BYTES = 4 << 20
"""Bytes of entries that `read_at` reads, unless the caller says another number."""

RELEASE_S = 1.0
"""Seconds between attempts to release a claim."""


class TopicHost(Protocol):
    """The topics of this process, as far as one of them uses them.

    address: where this process serves them, or "". cluster_id: 16 bytes that tell the cluster from others; read once.
    close_s: seconds that closing may take. is_closing: all topics are being closed, and logged together.
    """

    @property
    def runtime(self) -> RuntimeBase: ...
    @property
    def metadata(self) -> MetadataStore: ...
    @property
    def cursors(self) -> CursorLog: ...
    @property
    def address(self) -> str: ...
    @property
    def cluster_id(self) -> bytes: ...
    @property
    def close_s(self) -> float: ...
    @property
    def is_closing(self) -> bool: ...

    def claim(self, name: str) -> Claim:
        """Claim a topic again."""
        ...

    def forget(self, topic: Topic) -> None:
        """Forget a topic that was closed."""
        ...

    def work(self, job: Callable[[], object]) -> None:
        """Run a job that may wait for ledgers."""
        ...

    def open_any(self, name: str, settings: Mapping[str, Any]) -> DeadLetterTopic:
        """Open another topic, with or without partitions; create it with these settings if it does not exist."""
        ...

    def existing(self, name: str) -> RedriveTarget:
        """Open another topic, with or without partitions. Raises NoSuchTopicError."""
        ...


class ExchangePeer(Protocol):
    """What answers other clusters about the replicated subscriptions of a topic. Any thread; nothing waits."""

    def exchange(self, request: Exchange) -> AppendFuture[Exchanged]:
        """Take a request; the future is done when there is something to say, or with the next request."""
        ...

    def connection_lost(self, session: int) -> None:
        """Note that the connection of a session is lost."""
        ...

    def hand_over(self, subscription: str, target: str, *, order: str, timeout: float, grace: float) -> dict[str, Any]:
        """Begin to hand a subscription over to another cluster, or tell how far that is. Waits a moment."""
        ...

    def take_over(self, subscription: str, *, any_cluster: bool) -> dict[str, Any]:
        """Deliver a subscription here from now on. Waits until that is durable."""
        ...


class Topic(Handle):
    """A topic that this process owns; made by `Cluster.topic`: one object for each name.

    Closing the object closes it for all its users.

    Any thread may use it; asyncio code awaits the futures of `submit` and `submit_batch`. The methods that publish are
    those of `Publisher`. See docs/topics.md.
    """

    if not TYPE_CHECKING:  # for help(), inspect.signature and Mock(spec=Topic); `recover` binds the real ones
        publish, submit, room = Publisher.publish, Publisher.submit, Publisher.room
        publish_batch, submit_batch = Publisher.publish_batch, Publisher.submit_batch
        publish_async, publish_batch_async = Publisher.publish_async, Publisher.publish_batch_async

    def __init__(self, topics: TopicHost, managed: ManagedLedger, claim: Claim, clock: Clock) -> None:
        """Create the topic; `Topics` makes it a part of itself."""
        self.name, self.managed, self._topics = managed.name, managed, topics
        self.claim, self.clock = claim, clock
        self._claiming = threading.Lock()  # guards the replacement of `claim`; never held during calls of the store
        self._was_released = False
        self.is_used = True
        """Whether anything happened to it since the last maintenance."""
        self._runtime = topics.runtime
        self.context = context = TopicContext(
            managed, clock, topics.runtime, topics.metadata, topics.cursors, touch=self.touch,
            check_open=self._check_open, work=topics.work, open_topic=topics.open_any,
        )  # fmt: skip
        self.dedup = dedup_cursor(context)
        self.origins = Origins(context, lambda origins: self._system_cursors.begin(origins))
        """What other clusters replicate into the topic."""
        self._subscriptions = Subscriptions(context)
        self._system_cursors = SystemCursors(
            context, [] if self.dedup is None else [self.dedup], obsolete_cursors(self.dedup), [self.origins]
        )
        self.maintenance = TopicMaintenance(context, self._subscriptions, self._system_cursors)
        self.exchange_peer: ExchangePeer | None = None
        """Answers what other clusters ask of replicated subscriptions; None: they are not replicated."""
        self.on_origin_renewed: list[Callable[[], object]] = []
        """Called when the topic became another origin; the calls must not wait."""
        self.delete_guards: list[Callable[[], object]] = []
        """Called before the topic is deleted without `force`; they raise UnsentMessagesError, and may block."""
        self._renewing = threading.Lock()  # held while messages that were lost get another identity
        self._compared: set[str] = set()  # cursors that were compared with the end, under `_renewing`
        self._report = TopicReport(
            context, self._subscriptions, self._system_cursors, self.maintenance, self.dedup, address=topics.address
        )
        self._stored: list[AppendFuture[Any]] = []  # futures of what `begin_close` began
        self._ended: AppendFuture[None] | None = None
        self.unstored: ReplogError | None = None
        """Why the last acknowledgements were not stored when it was closed."""
        self._cause: ReplogError | None = None
        """Why it ended, unless `close` was called."""
        self.gone: AppendFuture[None] = AppendFuture()
        """Done when it is closed, and may be opened again."""
        super().__init__(f"topic {self.name}")

    def recover(self) -> None:
        """Open the durable subscriptions and the system cursors, and create the publisher.

        Raises:
            ReplogError: as `Cluster.topic`.
        """
        self._system_cursors.recover(self._subscriptions.recover())
        self._publisher = publisher = Publisher(
            self.name, self.managed.writer, self._runtime, self.clock, self.managed.config,
            entry_bytes_max=self._runtime.entry_bytes_max, end=self.managed.end.offset,
            producers=None if self.dedup is None else self.dedup.producers, gates=self.origins.gates,
        )  # fmt: skip
        self.origin = self.origins.set_own(self._topics.cluster_id, self.managed.chain)
        """What this topic is as an origin of messages in other clusters."""
        self._opened_end = self.origins.sent(self.managed.end.offset)
        self.maintenance.follow(publisher)
        self._system_cursors.follow(publisher)
        self.origins.follow(publisher)
        self.publish, self.submit, self.room = publisher.publish, publisher.submit, publisher.room
        self.publish_batch, self.submit_batch = publisher.publish_batch, publisher.submit_batch
        self.publish_async, self.publish_batch_async = publisher.publish_async, publisher.publish_batch_async
        self.managed.on_grow.append(self.touch)
        self.managed.on_fenced.append(self._fenced)
        self.managed.verify()  # a fencing before this line was not reported

    def renew_origin(self, offset: int) -> Origin:
        """Give the messages from an offset on another identity in other clusters. Blocks.

        Those clusters may have other messages under the former one, because the topic here was rolled back.

        Args:
            offset: first message, the first one of an entry.

        Returns:
            The topic as an origin from now on.

        Raises:
            TopicFencedError: another process owns the topic now.
            TopicFullError: it has too many identities already.
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        self._check_open()
        self._wait(self.managed.renew_identity(secrets.token_hex(8), offset))
        self.origin = self.origins.set_own(self._topics.cluster_id, self.managed.chain)
        for call in list(self.on_origin_renewed):
            call()
        return self.origin

    def renew_lost_origin(self, cursor: str, origin: Origin, known: int) -> None:
        """Give the messages after the end that the topic had when it was opened another identity, if that is needed.

        It is needed if messages of an identity were sent or acknowledged that are not here any more: copies were given
        up by force. New messages in their place must not be taken for them. Each cursor is compared once, as it was
        stored before the topic was opened: later it follows new messages. Blocks.

        Args:
            cursor: name of the cursor that says so.
            origin: the identity; if the topic has another one by now, nothing happens.
            known: offset below which another cluster, or a subscription, may have messages of that identity.

        Raises:
            ReplogError: as `renew_origin`; the cursor is compared again at the next call.
        """
        with self._renewing:
            if cursor in self._compared:
                return
            end = self._opened_end
            if known > end and origin == self.origin:
                self.renew_origin(end)
                logger.error(
                    "topic %s: it ended at offset %d when it was opened, and its messages below %d were sent or "
                    "acknowledged before: they are lost here. New messages have the new identity %s in other clusters",
                    self.name, end, known, self.origin.token,
                )  # fmt: skip
            self._compared.add(cursor)

    # ---- state ------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        """Settings of the topic."""
        return self.managed.config

    @property
    def publisher(self) -> Publisher:
        """The publisher of this process."""
        return self._publisher

    @property
    def start(self) -> int:
        """Offset of the first message that is kept; `offsets` tells it for every kind of topic."""
        return self.managed.start.offset

    @property
    def end(self) -> int:
        """Offset behind the last confirmed message; `offsets` tells it for every kind of topic."""
        return self.managed.end.offset

    def __len__(self) -> int:
        """Return the number of messages that are kept. An empty topic is true nevertheless."""
        return self.end - self.start

    def stats(self) -> TopicStats:
        """Return backlogs, rates and consumers.

        May read an entry of each subscription that lags, for its age, and a short backlog without consumers, for the
        number of delayed messages.
        """
        check_may_block("stats")
        return self.measure()

    def measure(self) -> TopicStats:
        """Return `stats` for metrics: unlike `stats` this may block an event loop."""
        self._check_open()
        return self._report.stats(self._publisher)

    def internal_stats(self) -> InternalStats:
        """Return ledgers and cursors, to find out why the topic makes no progress."""
        self._check_open()
        check_may_block("internal_stats")
        return self._report.internal_stats(self._publisher)

    @property
    def system_cursors(self) -> SystemCursors:
        """The cursors that parts of this process move, and stored ones."""
        return self._system_cursors

    # ---- publishing -----------------------------------------------------------------------------------------

    def producer(self, name: str) -> Producer:
        """Make a named producer, whose messages have sequence numbers; if the topic deduplicates, none is stored twice.

        Args:
            name: 1 to 200 bytes of UTF-8 without control characters.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        return Producer(self._publisher, name)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message that this process submitted to the topic has an outcome, as `Publisher.flush` does.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            OutcomeUnknownError: the time ran out.
            ClosedError: the topic was closed.
        """
        self._check_open()
        self._publisher.flush(timeout)

    def flush_async(self) -> AppendFuture[None]:
        """Return a future that is done when every message submitted so far has an outcome.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        return self._publisher.flush_async()

    # ---- reading --------------------------------------------------------------------------------------------

    def offsets(self) -> range:
        """Return the offsets of the messages that are kept.

        Returns:
            `start` is the offset of the first message, `stop` that behind the last confirmed one: the next offset.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        return range(self.start, self.end)

    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[MessageBatch]:
        """Iterate over messages as columns, without a subscription.

        Args:
            start: an offset, a time of publishing, "earliest" or "latest".
            end: offset behind the last message; None: the end of the topic now.

        Raises:
            TrimmedError: the messages at the start were removed.
            OutOfRangeError: the start is beyond the end.
            UnreadableError: too few bookies answer.
            ClosedError: the topic was closed.
        """
        self._check_open()
        check_may_block("read")
        stop = OFFSET_MAX if end is None else as_int("end", end)
        return self._batches(self.offset_of(start), min(stop, self.end))

    def read_at(self, offset: int, *, bytes_max: int = READ_BYTES) -> AppendFuture[MessageBatch | None]:
        """Read the messages at an offset and behind it, without waiting.

        Args:
            offset: offset of the first message.
            bytes_max: about so many bytes of entries at most, but one entry at least.

        Returns:
            A future of the messages; None: there is none at the offset yet. It fails with the errors of `read`.

        Raises:
            ClosedError: the topic was closed.
        """
        self._check_open()
        return transform(
            self.managed.read(as_offset("offset", offset), bytes_max=bytes_max), partial(messages_from, offset)
        )

    def offset_of(self, start: Start) -> int:
        """Return the offset of a start.

        Args:
            start: an offset, a time of publishing, "earliest" or "latest".

        Raises:
            TrimmedError: the message was removed.
            OutOfRangeError: the offset is beyond the end.
            UnreadableError: too few bookies answer.
        """
        check_may_block("offset_of")
        return self._wait(position(self.managed, start)).offset

    def _batches(self, at: int, end: int) -> Iterator[MessageBatch]:
        while at < end:
            self._check_open()
            batch = self._runtime.wait(self.managed.read(at, end=end))
            offsets = batch.offset
            yield batch.slice(*np.searchsorted(offsets, (at, end)).tolist())
            at = batch.end

    # ---- subscribing ----------------------------------------------------------------------------------------

    def subscribe(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        durable: bool = True,
        name: str | None = None,
        queue: int = QUEUE,
        priority: int = 0,
        **settings: Unpack[SubscriptionSettings],
    ) -> Consumer:
        """Make a consumer of a subscription; create the subscription if it does not exist.

        Args:
            subscription: name of the subscription.
            start: where a new subscription begins: an offset, a time of publishing, "earliest" or "latest".
            durable: keep the subscription, and the messages that it has not acknowledged, until it is deleted; False:
                it ends with its last consumer.
            name: name of the consumer; None: a random one.
            queue: most messages that wait in the consumer.
            priority: consumers with the lowest number are served first.
            settings: fields of SubscriptionConfig, which the subscription keeps.

        Raises:
            SubscriptionBusyError: it has consumers, and takes no more, or no other settings.
            ConfigError: a setting is unknown or invalid.
            InvalidArgumentError: an argument is invalid.
            TrimmedError: the messages at the start were removed.
            OutOfRangeError: the start is beyond the end.
            TopicFencedError: another process owns the topic now.
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        self._check_open()
        check_may_block("subscribe")
        check_consumer(name, durable, priority)
        SubscriptionConfig.of(settings)
        consumer = Consumer(self.name, subscription, name or f"consumer-{secrets.token_hex(4)}", queue=queue)
        try:
            source, number = self.attach(consumer, subscription, start, durable, settings, priority)
        except BaseException:
            consumer.close()
            raise
        consumer.attached(source, number)
        return consumer

    def attach(
        self,
        consumer: DeliveryTarget,
        subscription: str,
        start: Start,
        durable: bool,
        settings: Mapping[str, Any],
        priority: int,
        address: str = "",
    ) -> tuple[Subscription, int]:
        """Attach a consumer to a subscription, which is created if it does not exist.

        Arguments that are not listed are those of `subscribe`.

        Args:
            consumer: receives the messages.
            subscription: name of the subscription.
            address: HOST:PORT of a remote consumer, for statistics.

        Returns:
            The subscription, and the number of the consumer.

        Raises:
            ReplogError: as `subscribe`.
        """
        attached = self._subscriptions.attach(consumer, subscription, start, durable, settings, priority, address)
        self.is_used = True
        return attached

    def create_subscription(
        self,
        subscription: str,
        *,
        start: Start = "latest",
        properties: Mapping[str, str] | None = None,
        **settings: Unpack[SubscriptionSettings],
    ) -> None:
        """Create a durable subscription, which keeps messages from now on.

        If it exists, the settings that are passed change, and the others stay; its properties stay.

        Args:
            subscription: name of the subscription.
            start: where a new subscription begins, as in `subscribe`.
            properties: names and values, for statistics.
            settings: fields of SubscriptionConfig, for all consumers of the subscription.

        Raises:
            SubscriptionBusyError: a setting differs from that of a subscription with consumers.
            ReplogError: as `subscribe`.
        """
        self._check_open()
        check_may_block("create_subscription")
        self._subscriptions.open(subscription, start, True, settings, properties or {})

    def copy_subscription(self, subscription: str, metadata: SubscriptionMetadata) -> None:
        """Create a subscription with the settings, properties and home of another partition's.

        It begins with the first message. If it exists, its settings change; its properties stay.

        Args:
            subscription: name of the subscription.
            metadata: that of the other partition.

        Raises:
            ReplogError: as `create_subscription`.
        """
        self._check_open()
        check_may_block("copy_subscription")
        self._subscriptions.open(
            subscription, "earliest", True, vars(metadata.config), metadata.properties, home=metadata.home
        )

    def delete_subscription(self, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its acknowledgements; it keeps no messages any more.

        Args:
            subscription: name of the subscription, or of a stored cursor of pyreplog's own, which `internal_stats`
                lists.
            force: delete it even if it has consumers, which fail then.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            SubscriptionBusyError: it has consumers, and `force` is False; or it is a cursor that pyreplog uses now.
            TopicFencedError: it is a cursor of pyreplog's own, and another process owns the topic now.
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        self._check_open()
        check_may_block("delete_subscription")
        check_bool("force", force)
        if is_system(check_name(subscription, "subscription")):
            self._system_cursors.delete(subscription)
        else:
            self._subscriptions.delete(subscription, force=force)

    def subscriptions(self) -> list[str]:
        """Return the names of the subscriptions."""
        self._check_open()
        return self._subscriptions.names()

    def subscription(self, name: str) -> Subscription:
        """Return a subscription.

        Args:
            name: name of the subscription.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
        """
        self._check_open()
        return self._subscriptions.get(name)

    def all_subscriptions(self) -> list[Subscription]:
        """Return all subscriptions."""
        return self._subscriptions.all()

    def watch_subscriptions(
        self, watcher: SubscriptionWatcher | None, *, former: SubscriptionWatcher | None = None
    ) -> None:
        """Tell a watcher of changes of the durable subscriptions, to replicate them to other clusters.

        Args:
            watcher: see SubscriptionWatcher; None: they are not replicated (any more).
            former: the watcher that ends; if another one watches, nothing changes. None: whichever watches.
        """
        self._subscriptions.watch(watcher, former=former)

    def store_home(self, subscription: Subscription, home: str, *, if_: Callable[[], bool]) -> bool:
        """Store the home of a durable subscription with its metadata, see `SubscriptionMetadata`. Waits.

        Args:
            subscription: a durable subscription of this topic.
            home: the home; "": none.
            if_: called before the change, while no other call changes subscriptions; False: the home stays.

        Returns:
            False if the subscription is over, or `if_` returned False.

        Raises:
            ReplogError: errors of the metadata store.
        """
        return self._subscriptions.store_home(subscription, home, if_)

    @property
    def has_homes(self) -> bool:
        """Whether the metadata of a subscription have a home."""
        return any(subscription.home for subscription in self.all_subscriptions())

    def forget_homes(self) -> None:
        """Delete the stored homes of all subscriptions: they are not replicated any more. Waits.

        Raises:
            ReplogError: errors of the metadata store.
        """
        for subscription in self.all_subscriptions():
            if subscription.home:
                self.store_home(subscription, "", if_=lambda: True)

    # ---- changes --------------------------------------------------------------------------------------------

    def seek(self, subscription: str, start: Start) -> int:
        """Move a subscription: messages before the start count as acknowledged, those behind as not.

        Args:
            subscription: name of the subscription.
            start: an offset, a time of publishing, "earliest" or "latest".

        Returns:
            The offset at which it goes on.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            TrimmedError: the messages at the start were removed.
            OutOfRangeError: the start is beyond the end.
        """
        check_may_block("seek")
        return self._wait(self.subscription(subscription).seek(start))

    def skip(self, subscription: str, messages: int) -> None:
        """Acknowledge the next unacknowledged messages of a subscription.

        Args:
            subscription: name of the subscription.
            messages: number of messages, 0 or more.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            InvalidArgumentError: the number is negative.
        """
        check_may_block("skip")
        if as_int("messages", messages) < 0:
            raise InvalidArgumentError(f"messages: expected 0 or more, found {messages}")
        target = self.subscription(subscription)
        self._wait(target.skip(min(messages, self.end)))
        self._wait(target.flush_async())

    def skip_to(self, subscription: str, offset: int, *, token: str | None = None) -> None:
        """Acknowledge everything below an offset; later acknowledgements stay.

        Args:
            subscription: name of the subscription.
            offset: the offset.
            token: token of the topic's creation, if the caller means a particular one.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            OutOfRangeError: the offset is beyond the end.
            NoSuchTopicError: the topic was deleted and created again.
        """
        check_may_block("skip_to")
        target = self.subscription(subscription)
        if token is not None and check_text("token", token) != self.managed.chain.token:
            raise NoSuchTopicError(self.name, "it was deleted, and created again")
        if not 0 <= as_int("offset", offset) <= self.end:
            raise OutOfRangeError(f"topic {self.name}: expected an offset up to its end, {self.end}, found {offset}")
        self._wait(target.skip_to(int(offset)))
        self._wait(target.flush_async())

    def clear(self, subscription: str) -> None:
        """Acknowledge all present messages for a subscription.

        Args:
            subscription: name of the subscription.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
        """
        check_may_block("clear")
        target = self.subscription(subscription)
        self._wait(target.skip_to(self.end))
        self._wait(target.flush_async())

    def redrive(
        self,
        subscription: str,
        *,
        to: str | None = None,
        limit: int | None = None,
        where: Where | None = None,
        dry_run: bool = False,
        timeout: float = 30.0,
        on_progress: OnProgress | None = None,
    ) -> RedriveReport:
        """Send the dead letters of this dead-letter topic back to the topics or partitions that they come from.

        All subscriptions of these topics get them again. A dead letter is acknowledged once its copy is durable. After
        an error all that the report counts are sent, and the others are left: call it again.

        Args:
            subscription: subscription whose unacknowledged messages are sent, up to the present end.
            to: another topic, for all of them.
            limit: most messages to send; None: all.
            where: called with each message; those for which it returns False stay.
            dry_run: count, and send nothing.
            timeout: seconds to wait for dead letters that do not come although some are left.
            on_progress: called after each batch with the report so far.

        Returns:
            How many were sent, to which topics.

        Raises:
            NoSuchSubscriptionError: the topic has no such subscription.
            NoSuchTopicError: there is no topic `to`.
            SubscriptionBusyError: it is exclusive and has a consumer, a seek moved it meanwhile, or messages did not
                come in time.
            ReplogError: as `publish`.
        """
        check_may_block("redrive")
        return Redrive(
            self, subscription, self._topics.existing, to=to, limit=limit, where=where, dry_run=dry_run,
            timeout=timeout, on_progress=on_progress,
        ).run()  # fmt: skip

    def configure(self, **settings: Unpack[TopicSettings]) -> None:
        """Change settings; those of publishing apply when the topic is opened next.

        Args:
            settings: fields of TopicConfig.

        Raises:
            ConfigError: a setting is unknown or invalid.
            TopicFencedError: another process owns the topic now.
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        self._check_open()
        check_may_block("configure")
        config = self.config.changed(settings)
        if config != self.config:
            self._wait(self.managed.set_config(config))
            self.is_used = True

    def trim(self) -> int:
        """Remove the ledgers that no durable subscription and no retention keeps, now.

        Returns:
            The offset of the first message that is kept.

        Raises:
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        self._check_open()
        check_may_block("trim")
        self._wait(self.maintenance.trim())
        return self.start

    def _wait(self, future: AppendFuture[T]) -> T:
        """Return the result of a future; interrupted if the remote caller has gone, because bookies may be away for
        long.
        """
        return wait_while_connected(self._runtime.wait, future)

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or will be at once; see `gone`."""
        return self._error is not None or self.managed.fenced

    def touch(self) -> None:
        """Note that something happened to it, so that it is maintained soon."""
        self.is_used = True

    def maintain(self) -> None:
        """Run the periodic maintenance; for `Topics`."""
        was_lost = self.claim.is_lost
        if was_lost and not self.is_closing:  # checked after that: a release by `close` is no loss
            self._claim_again()
        self.is_used = was_lost or not self.claim.is_held
        if self.is_used or any(sub.is_over for sub in self.all_subscriptions()):
            self.managed.verify()  # others may have taken it without fencing it yet
        self.maintenance.run()

    def _claim_again(self) -> None:
        """Claim the topic again after the lease was lost, perhaps only because the store was unavailable.

        That no other process has the topic now does not mean that none had it, so `verify` follows.
        """
        try:
            claim = self._topics.claim(self.name)
        except ReplogError as error:
            logger.info("topic %s: not claimed again yet: %s", self.name, error)
            return
        with self._claiming:
            self.claim, former = (self.claim, claim) if self._was_released else (claim, self.claim)
        former.release()

    def check_deletion(self) -> None:
        """Raise the error with which `delete` without `force` would be refused; return if it would not.

        Raises:
            UnsentMessagesError: a cluster that the topic is replicated to lacks messages.
            ReplogError: the policy of the topic cannot be read.
        """
        self._check_open()
        check_may_block("check_deletion")
        for guard in list(self.delete_guards):
            guard()

    def delete(self, *, force: bool = False) -> None:
        """Delete the topic with its messages and subscriptions, for ever.

        Args:
            force: also if a cluster that the topic is replicated to lacks messages, which are lost then.

        Raises:
            UnsentMessagesError: a cluster that the topic is replicated to lacks messages; nothing was done.
            TopicFencedError: another process owns the topic now.
            MetadataUnavailableError: the metadata store cannot be reached; the next process that opens it completes the
                deletion.
        """
        self._check_open()
        check_may_block("delete")
        if not check_bool("force", force):
            self.check_deletion()
        try:
            self.managed.delete()
        finally:
            if self._is_over:  # if it failed, the next process that opens it completes the deletion
                self._cause = error = NoSuchTopicError(self.name, "it was deleted")
                self._publisher.stop(error)
                self._subscriptions.end(error, deleted=True)
                self.close()

    # ---- for coroutines --------------------------------------------------------------------------------------

    producer_async = opening(producer)
    subscribe_async = opening(subscribe)
    create_subscription_async = in_thread(create_subscription)
    delete_subscription_async = in_thread(delete_subscription)
    subscriptions_async = in_thread(subscriptions)
    seek_async = in_thread(seek)
    skip_async = in_thread(skip)
    skip_to_async = in_thread(skip_to)
    clear_async = in_thread(clear)
    redrive_async = in_thread(redrive)
    offsets_async = in_thread(offsets)
    read_async = iterating(read)
    stats_async = in_thread(stats)
    internal_stats_async = in_thread(internal_stats)
    configure_async = in_thread(configure)
    trim_async = in_thread(trim)
    delete_async = in_thread(delete)
    offset_of_async = in_thread(offset_of)

    # ---- events ---------------------------------------------------------------------------------------------

    def clock_was_set(self) -> None:
        """Note that the wall clock was set, by which messages are delayed."""
        for subscription in self.all_subscriptions():
            subscription.clock_was_set()

    def _fenced(self, error: TopicFencedError) -> None:
        """Stop, because another process owns the topic."""
        logger.warning("%s", error)
        self._cause = error
        self._publisher.stop(error)
        self._subscriptions.end(error)
        self._topics.work(self.close)

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Publish what was submitted, store acknowledgements, and let others own the topic.

        Closing twice has no effect.

        Raises:
            InvalidArgumentError: called in a callback.
            OutcomeUnknownError: some messages have no outcome.
        """
        if os.getpid() == self._pid:
            check_may_wait()
        super().close()

    def begin_close(self) -> AppendFuture[None]:
        """Begin what `close` waits for, so that a caller closes many topics at once; `close` has to follow.

        Returns:
            A future that is done when nothing is left to wait for, whatever the outcomes are.
        """
        with self._claiming:
            ended, self._ended = self._ended, self._ended or AppendFuture()
            if ended is not None:
                return ended
            ended = self._ended
        if self._is_over or not hasattr(self, "_publisher"):
            set_result(ended, None)
            return ended
        self._publisher.lift_quota()
        flushed = self._publisher.flush_async()
        self._stored = [flushed, *(subscription.store() for subscription in self.all_subscriptions())]
        self._stored += self._system_cursors.store_after(flushed)
        after_all(self._stored, partial(self._end_ledger, ended))
        return ended

    def _end_ledger(self, ended: AppendFuture[None]) -> None:
        """Stop publishing, and close the managed ledger."""
        self._publisher.stop(self._closed_error())
        self.managed.begin_close().add_done_callback(lambda _: set_result(ended, None))

    @property
    def _is_over(self) -> bool:
        """Whether nothing can be published any more, because another process owns it, or it was deleted."""
        return self.managed.stats().state in ("fenced", "closed")

    def _closed_error(self) -> ReplogError:
        return self._cause or super()._closed_error()

    def _do_close(self) -> None:
        error = self._closed_error()
        with ExitStack() as stack:
            stack.callback(partial(set_result, self.gone), None)
            stack.callback(self._topics.forget, self)
            stack.callback(self._release)
            stack.callback(lambda: self.managed.close(self._topics.close_s))
            stack.callback(self._subscriptions.end, error)
            stack.callback(self._system_cursors.close)
            if not hasattr(self, "_publisher"):
                return
            self._publisher.lift_quota()
            stack.callback(self._publisher.stop, error)
            self.begin_close()
            stack.callback(self._wait_stored, self._stored[1:])
            for flushed in self._stored[:1]:
                self._runtime.wait(flushed, self._topics.close_s)

    def _release(self) -> None:
        """Let others own the topic; later, if the metadata store is unavailable."""
        with self._claiming:
            self._was_released = True
        if not self._topics.close_s:  # all topics are closed and the time is over: their lease ends
            return
        try:
            self.claim.release()
        except ReplogError as error:
            logger.warning("topic %s: its claim could not be released, another attempt follows: %s", self.name, error)
            self._runtime.wake_after(RELEASE_S, lambda: self._runtime.work(self._release))

    def _wait_stored(self, stored: Sequence[AppendFuture[None]]) -> None:
        deadline = time.monotonic() + self._topics.close_s
        for future in stored:
            try:
                self._runtime.wait(future, max(deadline - time.monotonic(), 0))
            except ReplogError as error:
                if any(sub.is_unstored for sub in self.all_subscriptions()):
                    self.unstored = error
        if self.unstored is not None and not self._topics.is_closing:
            logger.warning(
                "topic %s: the last acknowledgements were not stored, their messages come again: %s",
                self.name,
                self.unstored,
            )
