"""Sends dead letters back to the topics that they come from, and acknowledges them once their copies are durable.

No message is lost: a dead letter is acknowledged after its copy is stored. A run that ends between the two leaves dead
letters whose copies are stored. The next run does not store these again if the topic deduplicates: a copy is numbered
with the offset of its dead letter, by a producer for this dead-letter topic, this subscription and its era. The numbers
of a producer must ascend, so no dead letter may be passed over that may be sent later. Therefore copies are numbered
only if dead letters come in order to one consumer, and all are sent: from an exclusive subscription, without `where`,
to a topic without partitions. A seek changes the era, and with it the producer: the dead letters behind the new
position are sent again, as requested.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Protocol

from pyreplog._native.machines.serial_executor import check_may_wait
from pyreplog._native.topic.messages import Message
from pyreplog.arguments import as_int, check_bool, check_seconds
from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    RecordTooLargeError,
    SubscriptionBusyError,
    WrongTypeError,
)
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.client.partitions.partition_topic import PartitionTopic
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle
from pyreplog.topic.model.dead_letter import Properties, RedriveReport, origin, own_properties, redriven_properties
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.model.stats import SubscriptionStats, TopicStats
from pyreplog.topic.model.times import known_time
from pyreplog.topic_names import check_name

QUEUE = 1000
POLL_S = 0.5
"""Seconds without a dead letter after which the statistics tell whether any is left."""

Where = Callable[[Message], bool]
OnProgress = Callable[[RedriveReport], object]


class DeadLetters(Protocol):
    """A dead-letter topic without partitions, or one partition of it."""

    @property
    def name(self) -> str: ...

    def offsets(self) -> range: ...
    def subscriptions(self) -> list[str]: ...
    def stats(self) -> TopicStats: ...
    def subscribe(self, subscription: str, *, name: str | None = None, queue: int = QUEUE) -> Consumer: ...


class Publication(Protocol):
    """Publishes to a topic, with or without a producer."""

    def publish(
        self,
        value: bytes,
        key: bytes | None = None,
        *,
        properties: Mapping[str, str | bytes] | None = None,
        event_time: int | None = None,
        sequence: int | None = None,
    ) -> Any: ...

    def publish_batch(
        self,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None = None,
        *,
        properties: Any = None,
        event_times: Any = None,
        sequences: Any = None,
    ) -> Any: ...


class UnpartitionedTopic(PartitionTopic, Publication, Protocol):
    """A topic without partitions, or one partition."""


RedriveTarget = UnpartitionedTopic | PartitionedHandle[Any]
"""A topic to which dead letters are sent."""


class Redrive:
    """One run of `Topic.redrive`, with its arguments."""

    def __init__(
        self,
        dead: DeadLetters,
        subscription: str,
        open_topic: Callable[[str], RedriveTarget],
        *,
        to: str | None = None,
        limit: int | None = None,
        where: Where | None = None,
        dry_run: bool = False,
        timeout: float = 30.0,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Create a run. open_topic: opens a topic that exists, by name."""
        self._dead, self._subscription, self._open_topic = dead, check_name(subscription, "subscription"), open_topic
        self._limit = None if limit is None else as_int("limit", limit)
        if self._limit is not None and self._limit < 1:
            raise InvalidArgumentError(f"limit: expected 1 or more, found {limit}")
        if where is not None and not callable(where):
            raise WrongTypeError(f"where: expected a function, found {type(where).__name__}")
        part = partition_of(dead.name)
        if to is not None and check_name(to, "to") in (dead.name, None if part is None else part[0]):
            raise InvalidArgumentError(f"to: expected another topic than the dead-letter topic {to}")
        self._to, self._where, self._dry_run = to, where, check_bool("dry_run", dry_run)
        self._timeout_s = check_seconds("timeout", timeout)
        self._on_progress = on_progress
        self._targets: dict[str, RedriveTarget | None] = {}
        self._publications: dict[str, Publication] = {}
        self._numbered: set[str] = set()  # topics whose copies are numbered
        self._era = 0  # 0: copies are not numbered
        self._undo = ExitStack()
        self.report = RedriveReport()

    def run(self) -> RedriveReport:
        """Send the dead letters that are present now, up to the limit."""
        check_may_wait()
        if self._subscription not in self._dead.subscriptions():
            raise NoSuchSubscriptionError(self._dead.name, f"there is no subscription {self._subscription}")
        if self._to is not None:
            self._targets[self._to] = self._open_topic(self._to)
        end = self._dead.offsets().stop
        queue = QUEUE if self._limit is None or self._where is not None else min(self._limit, QUEUE)
        name = f"redrive-{secrets.token_hex(4)}"
        with self._undo, self._dead.subscribe(self._subscription, name=name, queue=queue) as consumer:
            if self._where is None and not self._dry_run and self._stats().type == "exclusive":
                self._era = consumer.era
            self._send_all(consumer, end)
        return self.report

    # ---- receiving ------------------------------------------------------------------------------------------

    def _send_all(self, consumer: Consumer, end: int) -> None:
        received, last_s = 0, time.monotonic()
        while self._limit is None or self.report.sent < self._limit:
            batch = consumer.receive_batch(POLL_S)
            if batch is None:
                if not self._is_more_to_come(consumer, received, time.monotonic() - last_s):
                    return
                continue
            received, last_s = received + len(batch), time.monotonic()
            self._send([message for message in batch if message.offset < end], consumer)
            if batch.last >= end - 1:
                return

    def _is_more_to_come(self, consumer: Consumer, received: int, waited_s: float) -> bool:
        """Return whether the subscription has messages that no consumer has, or that are in flight to this one."""
        stats = self._stats()
        sent = sum(other.delivered_messages for other in stats.consumers if other.name == consumer.name)
        remaining = stats.backlog_messages - stats.unacked - stats.replay - (stats.delayed or 0)
        if sent <= received and remaining <= 0:
            return False
        if waited_s > self._timeout_s:
            raise SubscriptionBusyError(
                self._dead.name,
                f"subscription {self._subscription}: {max(remaining, 0)} dead letters were not delivered for "
                f"{self._timeout_s} s: another consumer is active, or max_unacked messages are not acknowledged",
            )
        return True

    def _stats(self) -> SubscriptionStats:
        matching = [stats for stats in self._dead.stats().subscriptions if stats.name == self._subscription]
        if not matching:
            raise NoSuchSubscriptionError(self._dead.name, f"subscription {self._subscription} was deleted")
        return matching[0]

    # ---- sending --------------------------------------------------------------------------------------------

    def _send(self, messages: list[Message], consumer: Consumer) -> None:
        """Send the selected messages, each group to its topic. The others return when the consumer is closed."""
        selected = messages if self._where is None else [message for message in messages if self._where(message)]
        self.report += RedriveReport(skipped=len(messages) - len(selected))
        groups: dict[str, list[Message]] = {}
        stranded, room = 0, None if self._limit is None else self._limit - self.report.sent
        for message in selected:
            if room == 0:
                break
            name = self._to or origin(message.properties)
            if name is None or self._target(name) is None:
                stranded += 1
            else:
                groups.setdefault(name, []).append(message)
                room = None if room is None else room - 1
        self.report += RedriveReport(stranded=stranded)
        if self._era and consumer.era != self._era:
            raise SubscriptionBusyError(
                self._dead.name, f"subscription {self._subscription}: a seek moved it meanwhile, so redrive it again"
            )
        for name, group in groups.items():
            if self._dry_run:
                self.report += RedriveReport(sent=len(group), topics={name: len(group)})
            else:
                self._send_group(name, group, consumer)
        if groups and not self._dry_run:
            consumer.flush()
        if self._on_progress is not None:
            self._on_progress(self.report)

    def _send_group(self, name: str, group: list[Message], consumer: Consumer) -> None:
        publication = self._publication(name)
        numbers = [message.offset for message in group] if name in self._numbered else None
        try:
            stored = publication.publish_batch(
                [message.value for message in group], [message.key for message in group],
                properties=[redriven_properties(message.properties) for message in group],
                event_times=[known_time(message.event_time) for message in group], sequences=numbers,
            )  # fmt: skip
        except RecordTooLargeError:
            for message in group:
                self._note_sent(name, [message], self._send_one(publication, name, message), consumer)
        else:
            self._note_sent(name, group, 0 if numbers is None else len(group) - len(stored), consumer)

    def _send_one(self, publication: Publication, name: str, message: Message) -> int:
        """Send one message, without the number of its redrives if that makes it too large; return 1 if its copy was
        stored before.
        """
        number = message.offset if name in self._numbered else None

        def publish(properties: Properties) -> int:
            offset = publication.publish(
                message.value,
                message.key,
                properties=properties,
                event_time=known_time(message.event_time),
                sequence=number,
            )
            return int(number is not None and offset < 0)

        with suppress(RecordTooLargeError):
            return publish(redriven_properties(message.properties))
        return publish(own_properties(message.properties))

    def _note_sent(self, name: str, messages: list[Message], repeated: int, consumer: Consumer) -> None:
        """Acknowledge dead letters whose copies are durable."""
        consumer.acknowledge(messages)
        self.report += RedriveReport(len(messages), repeated, topics={name: len(messages)})

    # ---- topics ---------------------------------------------------------------------------------------------

    def _target(self, name: str) -> RedriveTarget | None:
        """Return a topic; None: it does not exist."""
        if name not in self._targets:
            try:
                self._targets[name] = self._open_topic(name)
            except (NoSuchTopicError, InvalidArgumentError):  # no topic can have such a name
                self._targets[name] = None
        return self._targets[name]

    def _publication(self, name: str) -> Publication:
        if name not in self._publications:
            target = self._targets[name]
            assert target is not None
            publication: Publication = target
            if self._era and not isinstance(target, PartitionedHandle) and target.config.deduplicate:
                producer = target.producer(self._producer_name())
                self._undo.callback(producer.close)
                self._numbered.add(name)
                publication = producer
            self._publications[name] = publication
        return self._publications[name]

    def _producer_name(self) -> str:
        """Return the same producer name for all runs that send the same dead letters to the same topics."""
        identity = [self._dead.name, self._subscription, self._era, self._to is not None]
        return f"redrive-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]}"
