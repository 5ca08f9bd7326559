"""`pyreplog topic consume`: print messages, and acknowledge them."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator
from typing import Any

from pyreplog._native.messages import Message
from pyreplog.cli import cat, starts, targets
from pyreplog.cli.messages import MessagePrinter
from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.config import SUBSCRIPTION_TYPES
from pyreplog.topic.consumer import QUEUE, Consumer
from pyreplog.topic.partitions.partitionedconsumer import PartitionedConsumer
from pyreplog.topic.partitions.partitionedhandle import PartitionedHandle

AnyConsumer = Consumer | PartitionedConsumer

_NO_PARTITION = -1
_AT_ONCE = 1000
_TIMEOUT_S = 1.0


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
        help=f"end when nothing came for so many seconds (default: {_TIMEOUT_S:.0f}; with --follow: never)",
    )  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="go on with messages as they are published")
    parser.add_argument("--no-ack", action="store_true", help="acknowledge nothing: all comes again")
    cat.add_printing(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.count is not None and arguments.count < 1:
        raise InvalidArgumentError(f"--count: expected 1 or more, found {arguments.count}")
    printer = MessagePrinter(as_json=arguments.json or arguments.format == "json", keys=arguments.keys)
    with targets.topic(arguments) as topic:
        ends = None if arguments.follow else _ends(topic)
        with _subscribe(topic, arguments) as consumer:
            for messages in _messages(consumer, arguments, ends):
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
    consumer: AnyConsumer, arguments: argparse.Namespace, ends: dict[int, int] | None
) -> Iterator[list[Message]]:
    """Those that come, until there were enough, none came for too long, or the last ones before all `ends` were
    there."""
    timeout = _TIMEOUT_S if arguments.timeout is None and not arguments.follow else arguments.timeout
    left = arguments.count
    while left is None or left > 0:
        messages = consumer.receive(_AT_ONCE if left is None else min(left, _AT_ONCE), timeout)
        if not messages:
            return
        yield messages
        left = None if left is None else left - len(messages)
        if ends is not None:
            _reach(ends, messages)
            if not ends:
                return


def _reach(ends: dict[int, int], messages: list[Message]) -> None:
    """Forget the ends that are reached by the last messages."""
    for partition, last in {message.partition: message.offset for message in messages}.items():
        if last >= ends.get(partition, 0) - 1:
            ends.pop(partition, None)
