"""Reads at an offset without waiting, starts by time, and identities of topics, here and at a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pyreplog.errors import ClosedError, InvalidArgumentError, NoSuchTopicError, OutOfRangeError, TrimmedError
from pyreplog.topic.owner.ownership import owner_key
from tests.topic.remoting import PLAIN, ServedCluster, serve_cluster
from tests.waiting import PATIENCE_S


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedCluster]:
    with serve_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture(params=["here", "at a server"])
def opener(request: pytest.FixtureRequest, served: ServedCluster) -> Any:
    """Opens and looks up topics."""
    return served.cluster if request.param == "here" else served.client()


def identity_of(opener: Any, name: str) -> Any:
    return (opener.topics if hasattr(opener.topics, "identity_of") else opener).identity_of(name)


def read_at(topic: Any, offset: int, **options: Any) -> list[bytes] | None:
    batch = topic.read_at(offset, **options).result(PATIENCE_S)
    return None if batch is None else batch.values()


def test_read_at_gives_the_messages_at_an_offset_and_behind_it(opener: Any) -> None:
    topic = opener.topic("orders", **PLAIN)
    assert read_at(topic, 0) is None
    topic.publish_batch([b"0", b"1", b"2"])
    assert read_at(topic, 0) == [b"0", b"1", b"2"]
    assert read_at(topic, 2) == [b"2"]
    assert read_at(topic, 3) is None and read_at(topic, 1000) is None


def test_read_at_stops_behind_so_many_bytes(opener: Any) -> None:
    topic = opener.topic("orders", **PLAIN)
    for number in range(3):
        topic.publish(b"%d" % number * 1000)
    assert read_at(topic, 0, bytes_max=1) == [b"0" * 1000]
    assert read_at(topic, 1) == [b"1" * 1000, b"2" * 1000]


def test_read_at_is_awaited_in_a_coroutine(opener: Any) -> None:
    topic = opener.topic("orders", **PLAIN)
    topic.publish(b"x")

    async def read() -> Any:
        return await topic.read_at(0)

    assert asyncio.run(read()).values() == [b"x"]


def test_read_at_of_trimmed_messages_fails(opener: Any) -> None:
    topic = opener.topic("orders", ensemble=1, durability="appended", roll_entries=1)
    for _ in range(3):
        topic.publish(b"x")
    assert topic.trim()
    with pytest.raises(TrimmedError):
        read_at(topic, 0)


@pytest.mark.parametrize("offset", [-1, 1 << 62])
def test_read_at_refuses_what_is_no_offset(opener: Any, offset: int) -> None:
    topic = opener.topic("orders", **PLAIN)
    with pytest.raises(OutOfRangeError, match="offset"):
        topic.read_at(offset)


def test_read_at_of_a_closed_topic_is_refused(opener: Any) -> None:
    topic = opener.topic("orders", **PLAIN)
    topic.close()
    with pytest.raises(ClosedError):
        topic.read_at(0)


def test_offset_of_finds_starts(opener: Any) -> None:
    topic = opener.topic("orders", **PLAIN)
    topic.publish_batch([b"0", b"1"])
    now = datetime.now(UTC)
    assert (topic.offset_of("earliest"), topic.offset_of("latest"), topic.offset_of(1)) == (0, 2, 1)
    assert topic.offset_of(now - timedelta(hours=1)) == 0
    assert topic.offset_of(now + timedelta(hours=1)) == 2

    async def find() -> Any:
        with pytest.raises(InvalidArgumentError, match="await offset_of_async"):
            topic.offset_of("latest")
        return await topic.offset_of_async("latest")

    assert asyncio.run(find()) == 2


def test_identities_tell_creations_of_a_name_apart(opener: Any) -> None:
    assert identity_of(opener, "orders") is None
    topic = opener.topic("orders", **PLAIN)
    first = identity_of(opener, "orders")
    assert first.partitions is None and identity_of(opener, "orders") == first
    topic.delete()
    assert identity_of(opener, "orders") is None
    with pytest.raises(NoSuchTopicError):
        opener.topic("orders", create=False)
    opener.topic("orders", **PLAIN)
    assert identity_of(opener, "orders").token != first.token


def test_an_identity_has_the_number_of_partitions(opener: Any) -> None:
    opener.topic("orders", partitions=2, **PLAIN)
    first = identity_of(opener, "orders")
    opener.topic("orders", partitions=3)
    assert (first.partitions, identity_of(opener, "orders")) == (2, first._replace(partitions=3))


def test_an_identity_of_what_is_no_name_is_refused(opener: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        identity_of(opener, "\n")


def test_closed_offsets_are_those_of_topics_that_nobody_has_open(opener: Any, served: ServedCluster) -> None:
    for name in ("open", "closed", "lost"):
        opener.topic(name, **PLAIN).publish_batch([b"0", b"1"])
    topics = served.cluster.topics
    closed = topics.get("closed")
    assert closed is not None
    closed.close()
    key = owner_key("lost")  # that of an owner that died is deleted when its lease expires
    stored = topics.metadata.get(key)
    assert stored is not None
    topics.metadata.delete(key, stored.version)
    asker = opener.topics if hasattr(opener.topics, "closed_offsets") else opener
    names = ["open", "closed", "lost", *(f"none-{number}" for number in range(2000))]
    assert asker.closed_offsets(names) == {"closed": range(2), "lost": None}
    assert {topic.name for topic in topics.opened()} == {"open", "lost"}
    with pytest.raises(InvalidArgumentError, match="control characters"):
        asker.closed_offsets(["\n"])
