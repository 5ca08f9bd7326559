"""An owner of a topic in a process of its own, which a test kills: `python -m tests.topic.living URL`.

It publishes each number once, as the topic deduplicates, and consumes them twice: subscription `all` acknowledges each,
and `odd` every second one. It prints a JSON object on each line: the first number, and the numbers up to which all are
confirmed and their acknowledgements are stored.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import deque

from pyreplog.cluster import Cluster
from pyreplog.future import AppendFuture
from pyreplog.topic.client.consumer import Consumer
from pyreplog.topic.owner.topic import Topic
from tests.topic.handling import hasten

LEASE_S = 1.0
NAME = "numbers"
AHEAD = 20
SAYING = threading.Lock()  # one line for each batch


def say(**fields: object) -> None:
    with SAYING:
        print(json.dumps(fields), flush=True)


def open_topic(cluster: Cluster) -> Topic:
    hasten(cluster)
    cluster.topics.serve_at("nowhere:1", lease_s=LEASE_S)
    settings = {"ensemble": 2, "durability": "appended", "roll_entries": 40, "retention_bytes": None}
    topic: Topic = cluster.topic(NAME, deduplicate=True, wait=60.0, **settings)
    return topic


def publish(topic: Topic, first: int) -> None:
    waiting: deque[AppendFuture[int]] = deque()
    for number in range(first, 1 << 30):
        waiting.append(topic.submit(b"%d" % number, producer="p", sequence=number))
        if len(waiting) > AHEAD:
            waiting.popleft().result()
            say(published=number - AHEAD)


def consume(consumers: list[Consumer]) -> None:
    reached = [0, 0]
    while True:
        for at, consumer in enumerate(consumers):
            messages = consumer.receive(max_messages=10)
            done = [message.offset for message in messages if at == 0 or message.offset % 2]
            if done:
                consumer.acknowledge(done)
            reached[at] = max(reached[at], messages[-1].offset + 1)
        for consumer in consumers:
            consumer.flush()
        say(acknowledged=min(reached))


def main(url: str) -> None:
    with Cluster.connect(url, request_timeout_ms=60_000) as cluster:
        topic = open_topic(cluster)
        consumers = [topic.subscribe(name, start="earliest", type="shared", queue=100) for name in ("all", "odd")]
        first = topic.producer("p").last_sequence + 1
        say(first=first)
        threading.Thread(target=publish, args=(topic, first), daemon=True).start()
        consume(consumers)


if __name__ == "__main__":
    main(sys.argv[1])
