"""A client of the server of its own version: `python client.py ADDRESS publish FIRST END`, and the like.

It prints JSON. Either version runs it, so it imports nothing but pyreplog's public names.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyreplog

TOPIC, SUBSCRIPTION = "t", "s"
PATIENCE_S = 60.0
QUIET_S = 1.0


def publish(topic: Any, first: int, end: int) -> None:
    topic.publish_batch([b"%d" % number for number in range(first, end)])


def subscribe(topic: Any) -> None:
    with topic.subscribe(SUBSCRIPTION, start="earliest", type="shared"):
        pass


def acknowledge(topic: Any, count: int, stride: int) -> list[int]:
    """Receive some messages and acknowledge each whose number is divisible; return the numbers that were acknowledged."""
    acknowledged = []
    with topic.subscribe(SUBSCRIPTION, start="earliest", type="shared") as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=PATIENCE_S)
            if int(message.value) % stride == 0:
                consumer.acknowledge(message)
                acknowledged.append(int(message.value))
        consumer.flush()
    return acknowledged


def drain(topic: Any, count: int) -> list[int]:
    """Receive and acknowledge some messages, and any that come after them; return the numbers of all."""
    numbers: list[int] = []
    with topic.subscribe(SUBSCRIPTION, start="earliest", type="shared") as consumer:
        while (message := consumer.receive(timeout=PATIENCE_S if len(numbers) < count else QUIET_S)) is not None:
            consumer.acknowledge(message)
            numbers.append(int(message.value))
        consumer.flush()
    return numbers


def wait(topic: Any, end: int, backlog: int) -> None:
    """Wait until the topic has an end, and its subscription a backlog, in messages."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        stats = topic.stats().to_dict()
        found = stats["end"]["offset"], stats["subscriptions"].get(SUBSCRIPTION, {}).get("backlog_messages")
        if found == (end, backlog):
            return
        if time.monotonic() > deadline:
            sys.exit(f"expected the end {end} and a backlog of {backlog} messages, found {found}")
        time.sleep(0.02)


def main() -> None:
    address, verb, *numbers = sys.argv[1:]
    verbs = {call.__name__: call for call in (publish, subscribe, acknowledge, drain, wait)}
    with pyreplog.connect(address, timeout=PATIENCE_S) as client:
        print(json.dumps(verbs[verb](client.topic(TOPIC), *map(int, numbers))))


if __name__ == "__main__":
    main()
