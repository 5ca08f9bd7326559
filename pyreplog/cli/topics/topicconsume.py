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
from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.client.consumer import QUEUE, Consumer
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionedConsumer
from pyreplog.topic.client.partitions.partitioned_handle import PartitionedHandle
from pyreplog.topic.model.config import SUBSCRIPTION_TYPES
from pyreplog.topic.model.stats import PartitionedStats

AnyConsumer = Consumer | PartitionedConsumer

_NO_PARTITION = -1
_AT_ONCE = 1000
_LOOK_S = 1.0
"""After so long without a message it is asked whether any is left."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets.add_topic_arguments(parser)
    parser.add_argument(
        "--subscription", metavar="NAME", help="made if there is none (default: one that ends with the command)"
    )
    parser.add_argument("--type", choices=SUBSCRIPTION_TYPES, help="of the subscription (default: as it is, exclusive)")
    parser.add_argument(
        "--from", metavar=starts.METAVAR, default="earliest", dest="start",
        help="where a subscription that is made begins (default: earliest)",
    )  # fmt: skip
    parser.add_argument("--count", metavar="N", type=int, help="end after so many messages")
    parser.add_argument(
        "--timeout", metavar="S", type=float,
        help="end when nothing came for so many seconds (default: with all that was there, however long it takes)",
    )  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="go on with messages as they are published, for ever")
    parser.add_argument("--no-ack", action="store_true", help="acknowledge nothing: all comes again")
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
    """By partition, of those that have messages: where it ends now; what has no partition is in one."""
    if not isinstance(topic, PartitionedHandle):
        return {_NO_PARTITION: topic.end} if len(topic) else {}
    parts: list[targets.OneTopic] = [topic.partition(partition) for partition in range(topic.partitions)]
    return {at: one.end for at, one in enumerate(parts) if len(one)}


def _subscribe(topic: Any, arguments: argparse.Namespace) -> AnyConsumer:
    """Without a name the subscription is one that ends with this command, beside those of others."""
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
    """Those that come, until there were enough, none came for too long, or none before `ends` is left."""
    looks = ends is not None and arguments.timeout is None
    timeout = _LOOK_S if looks else arguments.timeout
    came = 0
    while arguments.count is None or came < arguments.count:
        most = _AT_ONCE if arguments.count is None else min(arguments.count - came, _AT_ONCE)
        messages = consumer.receive(most, timeout)
        if not messages and not (looks and _is_more_to_come(topic, consumer, came)):
            return
        if messages:
            yield messages
        came += len(messages)
        if ends is not None:
            _reach(ends, messages)
            if not ends:
                return


def _is_more_to_come(topic: targets.AnyTopic, consumer: AnyConsumer, came: int) -> bool:
    """Whether the subscription has messages that it has sent to nobody, or to this consumer, where so many came."""
    stats = topic.stats()
    total = stats.total if isinstance(stats, PartitionedStats) else stats
    there = [one for one in total.subscriptions if one.name == consumer.subscription]
    sent = sum(one.delivered_messages for sub in there for one in sub.consumers if one.name == consumer.name)
    return sent > came or any(sub.backlog_messages > sub.unacked for sub in there)


def _reach(ends: dict[int, int], messages: list[Message]) -> None:
    """Forget the ends that are reached by the last messages."""
    for partition, last in {message.partition: message.offset for message in messages}.items():
        if last >= ends.get(partition, 0) - 1:
            ends.pop(partition, None)
