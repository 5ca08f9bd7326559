"""`pyreplog topic consume`: print messages, and acknowledge them."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator
from typing import Any

from pyreplog._native.topic.messages import Message
from pyreplog.cli import cat
from pyreplog.cli.shared import starts, targets
from pyreplog.cli.topics.messages import MessagePrinter
from pyreplog.cursors.subscription_config import SUBSCRIPTION_TYPES
from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.client.consumer import QUEUE, Consumer
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionedConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle
from pyreplog.topic.model.stats import PartitionedStats

AnyConsumer = Consumer | PartitionedConsumer

_NO_PARTITION = -1
_AT_ONCE = 1000
_CHECK_S = 1.0
"""Seconds without a message after which the backlog is checked."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    parser.add_argument(
        "--subscription", metavar="NAME", help="created if needed (default: one that ends with the command)"
    )
    parser.add_argument(
        "--type",
        choices=SUBSCRIPTION_TYPES,
        help="type of the subscription (default: that of an existing one; exclusive)",
    )
    parser.add_argument(
        "--from", metavar=starts.METAVAR, default="earliest", dest="start",
        help="where a new subscription begins (default: earliest)",
    )  # fmt: skip
    parser.add_argument("--count", metavar="N", type=int, help="end after so many messages")
    parser.add_argument(
        "--timeout", metavar="S", type=float,
        help="end after so many seconds without messages (default: end when all present messages were printed)",
    )  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="continue with messages as they are published")
    parser.add_argument("--no-ack", action="store_true", help="acknowledge nothing, so that all messages come again")
    cat.add_printing(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.count is not None and arguments.count < 1:
        raise InvalidArgumentError(f"--count: expected 1 or more, found {arguments.count}")
    printer = MessagePrinter(as_json=arguments.json or arguments.format == "json", keys=arguments.keys)
    with targets.topic(arguments) as topic:
        ends = None if arguments.follow else _ends(topic)
        with _subscribe(topic, arguments) as consumer:
            for messages in _messages(topic, consumer, arguments, ends):
                printer.print(messages)
                if not arguments.no_ack:
                    consumer.acknowledge(messages)
            consumer.flush()
    return 0


def _ends(topic: targets.AnyTopic) -> dict[int, int]:
    """Return the current end of each partition that has messages; -1 is a topic without partitions."""
    if not isinstance(topic, PartitionedHandle):
        ranges = [(_NO_PARTITION, topic.offsets())]
    else:
        ranges = [(partition, topic.partition(partition).offsets()) for partition in range(topic.partitions)]
    return {partition: offsets.stop for partition, offsets in ranges if offsets}


def _subscribe(topic: Any, arguments: argparse.Namespace) -> AnyConsumer:
    """Subscribe. Without a name the subscription ends with this command."""
    consumer: AnyConsumer = topic.subscribe(
        arguments.subscription or f"consume-{secrets.token_hex(4)}",
        start=starts.parse(arguments.start),
        durable=arguments.subscription is not None,
        queue=min(arguments.count or QUEUE, QUEUE),
        **({} if arguments.type is None else {"type": arguments.type}),
    )
    return consumer


def _messages(
    topic: targets.AnyTopic, consumer: AnyConsumer, arguments: argparse.Namespace, ends: dict[int, int] | None
) -> Iterator[list[Message]]:
    """Yield messages until there are enough, none came in time, or none before `ends` is left."""
    checks = ends is not None and arguments.timeout is None
    timeout = _CHECK_S if checks else arguments.timeout
    received = 0
    while arguments.count is None or received < arguments.count:
        most = _AT_ONCE if arguments.count is None else min(arguments.count - received, _AT_ONCE)
        messages = consumer.receive(timeout, max_messages=most)
        if not messages and not (checks and _is_more_to_come(topic, consumer, received)):
            return
        if messages:
            yield messages
        received += len(messages)
        if ends is not None:
            _reach(ends, messages)
            if not ends:
                return


def _is_more_to_come(topic: targets.AnyTopic, consumer: AnyConsumer, received: int) -> bool:
    """Whether the subscription has messages that were not sent, or were sent to this consumer and have not arrived."""
    stats = topic.stats()
    total = stats.total if isinstance(stats, PartitionedStats) else stats
    matching = [each for each in total.subscriptions if each.name == consumer.subscription]
    sent = sum(each.delivered_messages for sub in matching for each in sub.consumers if each.name == consumer.name)
    return sent > received or any(sub.backlog_messages > sub.unacked for sub in matching)


def _reach(ends: dict[int, int], messages: list[Message]) -> None:
    """Remove the ends that messages have reached."""
    for partition, last in {message.partition: message.offset for message in messages}.items():
        if last >= ends.get(partition, 0) - 1:
            ends.pop(partition, None)
