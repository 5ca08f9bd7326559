"""Changes of a partitioned topic apply to all its partitions, here and through a server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pyreplog.cluster import Cluster
from pyreplog.errors import (
    ConfigError,
    InvalidArgumentError,
    NoSuchSubscriptionError,
    OutOfRangeError,
    TopicOwnedError,
    WrongTypeError,
)
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.model.positions import PartitionOffset
from pyreplog.topic.owner import topics
from pyreplog.topic.server.topic_server import TopicServer
from tests.topic.partitioning import PLAIN, key_of, other_process, until

PARTITIONS = 3
MESSAGES = 4
"""How many messages each partition has."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(topics, "MAINTENANCE_S", 3600.0)  # only the tests trim messages
    with Cluster.embedded(tmp_path / "c", bookies=1) as cluster:
        yield cluster


@pytest.fixture(params=["here", "elsewhere"])
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Any]:
    with ExitStack() as stack:
        place: Any = cluster
        if request.param == "elsewhere":
            server = stack.enter_context(TopicServer(cluster))
            place = stack.enter_context(connect(f"pyreplog://{server.address}"))
        yield place.topic("t", partitions=PARTITIONS, **PLAIN)


def fill(topic: Any) -> None:
    for partition in range(PARTITIONS):
        key = key_of(partition, PARTITIONS)
        topic.publish_batch([b"%d" % at for at in range(MESSAGES)], [key] * MESSAGES)


def backlogs(topic: Any, subscription: str = "s") -> list[int]:
    parts = topic.stats().parts
    return [
        next(sub.backlog_messages for sub in parts[at].subscriptions if sub.name == subscription)
        for at in range(PARTITIONS)
    ]


def test_clearing_and_seeking_move_all_partitions(topic: Any) -> None:
    topic.create_subscription("s", start="earliest")
    topic.create_subscription("other", start="earliest")
    fill(topic)
    topic.clear("s")
    assert (backlogs(topic), backlogs(topic, "other")) == ([0] * PARTITIONS, [MESSAGES] * PARTITIONS)
    assert topic.seek("s", "earliest") == [PartitionOffset(at, 0) for at in range(PARTITIONS)]
    assert backlogs(topic) == [MESSAGES] * PARTITIONS
    assert topic.seek("s", "latest") == [PartitionOffset(at, MESSAGES) for at in range(PARTITIONS)]
    assert topic.seek("s", PartitionOffset(1, 3)) == [PartitionOffset(1, 3)]
    assert backlogs(topic) == [0, 1, 0]


def test_seeking_a_moment_moves_each_partition_to_its_own_place(topic: Any) -> None:
    topic.create_subscription("s", start="latest")
    fill(topic)
    between_us = max(batch.publish_time.max() for at in range(PARTITIONS) for batch in topic.read(at)) + 1
    until(lambda: time.time_ns() // 1000 > between_us + 10_000)  # append times have the resolution of the kernel's tick
    topic.publish(b"late", key_of(2, PARTITIONS))
    moment = datetime.fromtimestamp(int(between_us) / 1e6, UTC)
    assert topic.seek("s", moment) == [PartitionOffset(at, MESSAGES) for at in range(PARTITIONS)]
    assert backlogs(topic) == [0, 0, 1]


@pytest.mark.parametrize("start", [5, True, "middle", None])
def test_seek_to_an_invalid_position_moves_no_partition(topic: Any, start: Any) -> None:
    topic.create_subscription("s", start="earliest")
    fill(topic)
    with pytest.raises((WrongTypeError, InvalidArgumentError)) as raised:
        topic.seek("s", start)
    assert type(start) is not int or "expected a PartitionOffset" in str(raised.value)
    with pytest.raises(OutOfRangeError):
        topic.seek("s", PartitionOffset(1, MESSAGES + 1))
    with pytest.raises(InvalidArgumentError, match="partition"):
        topic.seek("s", PartitionOffset(PARTITIONS, 0))
    assert backlogs(topic) == [MESSAGES] * PARTITIONS


def test_a_subscription_that_is_not_there(topic: Any) -> None:
    for call in (lambda: topic.clear("s"), lambda: topic.seek("s", "earliest")):
        with pytest.raises(NoSuchSubscriptionError, match="subscription s"):
            call()


def test_settings_are_of_all_partitions_or_of_none(topic: Any) -> None:
    topic.configure(ttl_ms=1000, retention_bytes=None)
    configs = [topic.partition(at).config for at in range(PARTITIONS)]
    assert {(config.ttl_ms, config.retention_bytes, config.ensemble) for config in configs} == {(1000, None, 1)}
    topic.partition(2).configure(roll_entries=5)
    with pytest.raises(ConfigError):
        topic.configure(ttl_ms=-1)
    assert [topic.partition(at).config.ttl_ms for at in range(PARTITIONS)] == [1000] * PARTITIONS
    topic.configure(ttl_ms=None)
    assert [topic.partition(at).config.roll_entries == 5 for at in range(PARTITIONS)] == [False, False, True]
    topic.partition(2).configure(ensemble=2, write_quorum=2)
    with pytest.raises(ConfigError, match="write_quorum"):
        topic.configure(ttl_ms=2000, ensemble=1)
    assert [topic.partition(at).config.ttl_ms for at in range(PARTITIONS)] == [None] * PARTITIONS, "one refuses it"


def test_trimming_drops_the_ledgers_of_all_partitions(topic: Any) -> None:
    """Each partition has three full ledgers, at least two of which are not needed."""
    topic.configure(roll_entries=1, retention_ms=None)
    for _ in range(MESSAGES):
        for partition in range(PARTITIONS):
            topic.publish(b"v", key_of(partition, PARTITIONS))
    until(lambda: all(len(part.ledgers) >= MESSAGES for part in topic.internal_stats().parts.values()))
    topic.create_subscription("s", start="earliest")
    topic.configure(retention_ms=0)
    assert topic.trim() == [PartitionOffset(at, 0) for at in range(PARTITIONS)], "it has not acknowledged any"
    topic.delete_subscription("s")
    left = topic.trim()
    assert [place.partition for place in left] == [*range(PARTITIONS)]
    assert [place.offset for place in left] == [topic.partition(at).offsets().start for at in range(PARTITIONS)]
    assert topic.stats().total.start.offset == sum(place.offset for place in left) > PARTITIONS, "one message each"


def test_internal_statistics_are_of_each_partition(topic: Any) -> None:
    topic.create_subscription("s", start="earliest")
    fill(topic)
    internal_stats = topic.internal_stats()
    assert (internal_stats.name, internal_stats.partitions, sorted(internal_stats.parts)) == (
        "t",
        PARTITIONS,
        [*range(PARTITIONS)],
    )
    assert {part.end.offset for part in internal_stats.parts.values()} == {MESSAGES}
    plain = internal_stats.to_dict()
    assert plain["parts"]["2"]["name"] == "t-partition-2"
    assert list(plain["parts"]["2"]["cursors"]) == ["s"]


def test_partitions_of_others_are_left_and_so_are_the_rest(cluster: Cluster) -> None:
    topic = cluster.topic("t", partitions=PARTITIONS, **PLAIN)
    topic.create_subscription("s", start="earliest")
    fill(topic)
    topic.close()
    with other_process(cluster) as other:
        other.topic("t-partition-2")
        topic = cluster.topic("t")
        calls = (
            lambda: topic.clear("s"), lambda: topic.seek("s", "latest"), lambda: topic.configure(ttl_ms=1), topic.trim,
        )  # fmt: skip
        for call in calls:
            with pytest.raises(TopicOwnedError, match="t-partition-2"):
                call()
        assert sorted(topic.internal_stats().parts) == [0, 1]
        assert [part.subscriptions[0].backlog_messages for part in topic.stats().parts.values()] == [MESSAGES] * 2
        assert topic.partition(0).config.ttl_ms is None
