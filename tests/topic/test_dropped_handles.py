"""Producers and topics are dropped without being closed: their messages belong to the topic, which the cluster or
client keeps and closes."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.topic.partitioning import PATIENCE_S, PLAIN

KEPT = {**PLAIN, "retention_bytes": None}  # although no subscription needs the messages
VALUES = [b"%03d" % at for at in range(200)]
CLOSED_WELL = """
import sys
import pyreplog
with pyreplog.Cluster.embedded(sys.argv[1], bookies=1) as cluster:
    topic = cluster.topic("t", ensemble=1, durability="appended")
    acks = [topic.producer("p").submit(b"v") for _ in range(10)]
    consumer = topic.subscribe("s", start="earliest")
print(sum(ack.exception() is None for ack in acks))
"""


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("partitions", [None, 2])
def test_topic_close_stores_messages_submitted_by_a_dropped_producer(
    place: Any, partitions: int | None, deduplicate: bool
) -> None:
    sample = {} if partitions is None else {"partitions": partitions}
    topic = place.topic("t", **sample, deduplicate=deduplicate, linger_ms=60_000, batch_messages=1 << 16, **KEPT)
    producer = topic.producer("p")
    futures = [producer.submit(value) for value in VALUES]
    del producer
    gc.collect()
    topic.close()  # only closing sends the gathered messages
    assert all(future.result(PATIENCE_S) is not None for future in futures)
    assert stored(place.topic("t"), partitions) == VALUES


def stored(topic: Any, partitions: int | None) -> list[bytes]:
    batches = topic.read() if partitions is None else (b for at in range(partitions) for b in topic.read(at))
    return sorted(value for batch in batches for value in batch.values())


def test_a_dropped_topic_is_there_and_keeps_what_was_acknowledged(place: Any) -> None:
    """There is no warning. (Warnings are errors.)"""
    topic = place.topic("t", linger_ms=60_000, batch_messages=1 << 16, **PLAIN)
    topic.publish_batch(VALUES)
    with topic.subscribe("s", start="earliest") as consumer:
        consumer.acknowledge(range(150))
        consumer.flush()
    future, known = topic.submit(b"late"), id(topic)
    del topic, consumer
    gc.collect()
    topic = place.topic("t")
    assert id(topic) == known, "the same object"
    topic.close()
    assert future.result(PATIENCE_S) == len(VALUES)
    with place.topic("t") as topic:
        assert stored(topic, None) == [*VALUES, b"late"]
        assert topic.stats().subscriptions[0].backlog_messages == len(VALUES) + 1 - 150


def test_a_program_that_closed_ends_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "always", "-c", CLOSED_WELL, str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
