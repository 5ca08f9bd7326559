"""Partitioned topics: routing, creation, growth and deletion, and the owners of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pyarrow
import pytest

from pyreplog.bookie.protocol import RequestKind
from pyreplog.cluster import Cluster
from pyreplog.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidMetadataError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    OutcomeUnknownError,
    SequenceError,
    SubscriptionBusyError,
    TopicExistsError,
    TopicOwnedError,
    WrongTypeError,
)
from pyreplog.topic.model.partitioned_metadata import PartitionedMetadata, create_partitioned, partitioned_key
from pyreplog.topic.model.positions import PartitionOffset, PartitionRange
from pyreplog.topic.owner import partitioned_topic
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from tests.ledger.fault_injection import RequestInterceptor
from tests.topic.partitioning import PLAIN, key_of, other_process, receive, stored, until
from tests.topic.test_routing import PULSAR


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    with Cluster.embedded(tmp_path / "c", bookies=1) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> PartitionedTopic:
    return cluster.topic("t", partitions=3, retention_bytes=None, **PLAIN)


# ---- where messages go -----------------------------------------------------------------------------------------


def test_keys_go_where_pulsars_go(topic: PartitionedTopic) -> None:
    for key, hashed in PULSAR.items():
        assert topic.publish(b"v", key).partition == hashed % 3
    outcomes = topic.publish_batch([b"v"] * len(PULSAR), list(PULSAR))
    wanted = [hashed % 3 for hashed in PULSAR.values()]
    assert {part.partition: len(part.offsets) for part in outcomes} == {
        at: wanted.count(at) for at in sorted(set(wanted))
    }


def test_messages_without_keys_take_turns_and_batches_stay_together(topic: PartitionedTopic) -> None:
    assert [topic.publish(b"v") for _ in range(4)] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert topic.publish_batch([b"a", b"b", b"c"]) == [PartitionRange(1, range(1, 4))]
    assert topic.publish_batch([b"d", b"e"], [None, None]) == [PartitionRange(2, range(1, 3))]
    assert topic.publish_batch([]) == []
    assert topic.submit(b"v").result() == PartitionOffset(0, 2)


KEYS = [b"%02d" % (at * 7 % 20) for at in range(60)]
DUE = 2_000_000_000_000_000
VALUES = [b"%03d" % at for at in range(60)]


def _packed(items: list[bytes]) -> tuple[Any, bytes]:
    return np.cumsum([0, *map(len, items)]), b"".join(items)


@pytest.mark.parametrize(
    "form", [list, iter, _packed, np.array, lambda items: pyarrow.array(items, pyarrow.binary())],
    ids=["list", "iterator", "packed", "numpy", "arrow"],
)  # fmt: skip
def test_batches_are_split_with_all_that_they_have(topic: PartitionedTopic, form: Any) -> None:
    moments = list(range(1, 61))
    outcomes = topic.publish_batch(
        form(VALUES), form(KEYS), event_times=moments, deliver_at=DUE + np.arange(60),
        properties=[{"at": str(at)} for at in range(60)], sequences=np.arange(0, 600, 10), producer="p",
    )  # fmt: skip
    seen: list[int] = []
    for partition in range(3):
        for batch in topic.read(partition):
            for at, message in enumerate(batch):
                row = int(message.value)
                seen.append(row)
                assert (message.key, message.partition, batch.partition) == (KEYS[row], partition, partition)
                assert (message.event_time, message.deliver_at, message.sequence) == (row + 1, DUE + row, row * 10)
                assert (message.producer, batch.properties(at)) == (b"p", {"at": b"%d" % row})
    assert sorted(seen) == list(range(60))
    assert all(values == sorted(values) for values in stored(topic)), "what is behind another stays behind it"
    assert [len(part.offsets) for part in outcomes] == [len(values) for values in stored(topic)]


@pytest.mark.parametrize("column", ["keys", "properties", "event_times", "deliver_at", "sequences"])
def test_a_column_of_another_length_is_refused(topic: PartitionedTopic, column: str) -> None:
    columns: dict[str, Any] = {"keys": [b"a", b"b", b"c"], column: [None] * 2 if column != "sequences" else [1, 2]}
    with pytest.raises(InvalidArgumentError, match=f"{column}: expected 3, one per value, found 2"):
        topic.publish_batch([b"x", b"y", b"z"], **columns)
    assert stored(topic) == [[], [], []]


def test_publish_with_an_invalid_key_raises_wrong_type_error(topic: PartitionedTopic) -> None:
    with pytest.raises(WrongTypeError, match="key"):
        topic.publish(b"v", "key")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="key"):
        topic.publish_batch([b"v", b"w"], [b"key", "key"])  # type: ignore[list-item]
    assert stored(topic) == [[], [], []]


def test_a_failure_of_one_part_is_the_acks_when_another_is_on_its_way(topic: PartitionedTopic) -> None:
    values: list[Any] = [b"first", "no bytes"]
    coming = topic.submit_batch(values, [key_of(0, 3), key_of(1, 3)])
    with pytest.raises(WrongTypeError):
        coming.result()
    assert stored(topic)[1:] == [[], []]
    with pytest.raises(WrongTypeError):
        topic.submit_batch(["no bytes", b"second"], [key_of(0, 3), key_of(1, 3)])  # type: ignore[list-item]
    assert stored(topic)[1:] == [[], []]


def test_producers_numbers_go_on_in_each_partition(cluster: Cluster) -> None:
    topic = cluster.topic("d", partitions=2, deduplicate=True, **PLAIN)
    keys = [key_of(at % 2, 2) for at in range(6)]
    producer = topic.producer("p")
    assert producer.publish_batch(VALUES[:4], keys[:4], sequences=range(4)) == [(0, range(2)), (1, range(2))]
    topic.close()
    producer = cluster.topic("d", partitions=2).producer("p")
    assert producer.last_sequences() == [2, 3]
    assert producer.publish(b"again", keys[1], sequence=3) == PartitionOffset(1, -1)
    assert producer.submit_batch(VALUES[:6], keys, sequences=range(6)).result() == [(0, range(2, 3)), (1, range(2, 3))]
    assert producer.submit(b"next", keys[0]).result() == PartitionOffset(0, 3)
    assert producer.last_sequences() == [5, 5]
    with pytest.raises(SequenceError):
        producer.publish_batch([b"x", b"y"], keys[:2], sequences=[9, 8])


# ---- coming, growing, going ------------------------------------------------------------------------------------


def test_a_partitioned_topic_is_made_once_and_opened_by_its_name(cluster: Cluster, topic: PartitionedTopic) -> None:
    assert cluster.topic("t") is topic is cluster.topic("t", partitions=3)
    topic.publish_batch(VALUES, KEYS)
    before = stored(topic)
    topic.close()
    again = cluster.topic("t", create=False)
    assert isinstance(again, PartitionedTopic) and again is not topic
    assert stored(again) == before
    assert cluster.topic("t-partition-1") is again.partition(1)
    assert cluster.topics.names() == [f"t-partition-{at}" for at in range(3)]
    assert cluster.topics.partitioned.names() == ["t"]


def test_a_plain_topic_never_gets_partitions(cluster: Cluster, topic: PartitionedTopic) -> None:
    plain = cluster.topic("plain", **PLAIN)
    with pytest.raises(TopicExistsError, match="plain"):
        cluster.topic("plain", partitions=1)
    plain.close()
    with pytest.raises(TopicExistsError, match="plain"):
        cluster.topic("plain", partitions=1)
    with pytest.raises(TopicExistsError, match="3 partitions"):
        cluster.topics.open("t")
    assert cluster.topics.owner("t") is None
    with cluster.topic("x-partition-1", **PLAIN), pytest.raises(TopicExistsError, match="x-partition-1"):
        cluster.topic("x", partitions=2)


def test_names_of_partitions_belong_to_their_topic(cluster: Cluster, topic: PartitionedTopic) -> None:
    with pytest.raises(NoSuchTopicError, match="t has 3 partitions"):
        cluster.topic("t-partition-3")
    with pytest.raises(InvalidArgumentError, match="partition"):
        cluster.topic("t-partition-7", partitions=2)
    with pytest.raises(InvalidArgumentError, match="200"):
        cluster.topic("n" * 188, partitions=11)
    with pytest.raises(NoSuchTopicError):
        cluster.topic("none", partitions=2, create=False)
    for wrong in (0, 65537, True, "2"):
        with pytest.raises(InvalidArgumentError, match="partitions"):
            cluster.topic("new", partitions=wrong)  # type: ignore[call-overload]
    for partition in (-1, 3, True):
        with pytest.raises(InvalidArgumentError, match="expected 0 to 2"):
            topic.partition(partition)


def test_a_topic_grows_and_never_shrinks(cluster: Cluster, topic: PartitionedTopic) -> None:
    with topic.subscribe("s", type="shared", start="earliest") as consumer:
        topic.create_subscription("kept", start="earliest", properties={"of": "mine"}, type="key_shared")
        assert cluster.topic("t", partitions=5) is topic
        assert (topic.partitions, consumer.partitions) == (5, [0, 1, 2, 3, 4])
        with pytest.raises(InvalidArgumentError, match="expected 5 or more, found 4"):
            cluster.topic("t", partitions=4)
        key = key_of(4, 5)
        assert topic.publish(b"new", key) == PartitionOffset(4, 0)
        assert [message.partition for message in receive(consumer, 1)] == [4]
    assert topic.partition(4).config == topic.partition(0).config, "new ones are as the others"
    kept = topic.partition(4).subscription("kept")
    assert (kept.settings.type, kept.properties) == ("key_shared", {"of": "mine"})
    topic.close()
    assert cluster.topic("t").partitions == 5


def test_subscriptions_get_what_others_publish_to_new_partitions(cluster: Cluster, topic: PartitionedTopic) -> None:
    topic.create_subscription("s", start="earliest")
    topic.close()
    with other_process(cluster) as other:
        other.topic("t", partitions=4).publish(b"v", key_of(3, 4))
    with cluster.topic("t", partitions=3 + 1).subscribe("s") as consumer:
        assert [(message.partition, message.value) for message in receive(consumer, 1)] == [(3, b"v")]


def test_growth_that_was_not_stored_is_taken_up_again(
    cluster: Cluster, topic: PartitionedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Any:
        raise OutcomeUnknownError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(partitioned_topic, "grow_partitioned", lost)
        with pytest.raises(OutcomeUnknownError):
            cluster.topic("t", partitions=4)
    assert topic.partitions == 3
    assert cluster.topic("t", partitions=4).partitions == 4
    assert topic.publish(b"v", key_of(3, 4)) == PartitionOffset(3, 0)


@pytest.mark.parametrize("way", ["topic", "topics"])
def test_deleting_a_partitioned_topic_deletes_its_partitions(
    cluster: Cluster, topic: PartitionedTopic, way: str
) -> None:
    topic.publish_batch(VALUES, KEYS)
    consumer = topic.subscribe("s")
    if way == "topic":
        topic.delete()
    else:
        cluster.topics.delete("t")
    assert consumer.is_closed
    assert (cluster.topics.names(), cluster.topics.partitioned.names()) == ([], [])
    with pytest.raises(NoSuchTopicError):
        cluster.topic("t", create=False)
    assert cluster.topic("t", **PLAIN).publish(b"plain now") == 0


def test_metadata_are_believed_only_when_they_are_right(cluster: Cluster) -> None:
    partitioned = create_partitioned(cluster.metadata, "m", 7, 123)
    assert (partitioned.partitions, partitioned.created_us) == (7, 123)
    assert PartitionedMetadata.decode(partitioned.encode()) == partitioned
    for wrong in (
        b"", b"{}", b"[]", partitioned.encode().replace(b'"version":2', b'"version":0'), partitioned.encode().replace(b":7", b":0"),
        partitioned.encode().replace(b":7", b":true"),
    ):  # fmt: skip
        with pytest.raises(InvalidMetadataError, match="partitioned topic"):
            PartitionedMetadata.decode(wrong)
    cluster.metadata.create(partitioned_key("a/b"), b"x")
    with pytest.raises(InvalidMetadataError):
        cluster.topic("a/b")


# ---- subscriptions and statistics ------------------------------------------------------------------------------


def test_subscriptions_are_of_all_partitions(topic: PartitionedTopic) -> None:
    topic.create_subscription("s", start="earliest")
    assert topic.subscriptions() == ["s"]
    assert all(topic.partition(at).subscriptions() == ["s"] for at in range(3))
    with topic.subscribe("s"):
        with pytest.raises(SubscriptionBusyError):
            topic.subscribe("s")
        with pytest.raises(SubscriptionBusyError):
            topic.delete_subscription("s")
        assert all(topic.partition(at).subscriptions() == ["s"] for at in range(3))
        topic.delete_subscription("s", force=True)
    assert topic.subscriptions() == []
    with pytest.raises(NoSuchSubscriptionError):
        topic.delete_subscription("s")
    for start in (5, PartitionOffset(0, 5)):
        with pytest.raises(WrongTypeError, match="an offset is of one partition"):
            topic.subscribe("s", start=start)  # type: ignore[arg-type]


def test_statistics_are_of_each_partition_and_of_all(topic: PartitionedTopic) -> None:
    topic.create_subscription("s", start="earliest")
    topic.publish_batch(VALUES, KEYS)
    with topic.subscribe("s") as consumer:
        consumer.acknowledge(receive(consumer, 20))
        consumer.flush()
        until(lambda: topic.stats().total.subscriptions[0].delivered_messages == 60)
        stats = topic.stats()
    assert (stats.name, stats.partitions, sorted(stats.parts)) == ("t", 3, [0, 1, 2])
    total, parts = stats.total, list(stats.parts.values())
    assert (total.name, total.published_messages, total.end.offset) == ("t", 60, 60)
    assert total.storage_bytes == sum(part.storage_bytes for part in parts) > 0
    (sub,) = total.subscriptions
    assert (sub.backlog_messages, sub.delivered_messages, len(sub.consumers)) == (40, 60, 3)
    assert sub.oldest_us == min(part.subscriptions[0].oldest_us or 1 << 62 for part in parts)
    plain = stats.to_dict()
    assert plain["total"]["subscriptions"]["s"]["backlog_messages"] == 40
    assert plain["parts"]["1"]["name"] == "t-partition-1"


# ---- ownership -------------------------------------------------------------------------------------------------


def test_only_what_needs_anothers_partition_fails(cluster: Cluster, topic: PartitionedTopic) -> None:
    topic.close()
    mine, theirs = key_of(0, 3), key_of(1, 3)
    with other_process(cluster) as other:
        held = other.topic("t-partition-1")
        topic = cluster.topic("t")
        assert topic.served == [0, 2]
        assert topic.publish(b"v", mine) == PartitionOffset(0, 0)
        for call in (
            lambda: topic.publish(b"v", theirs),
            lambda: topic.publish_batch([b"v", b"w"], [mine, theirs]),
            lambda: topic.subscribe("s"),
            lambda: topic.partition(1),
            lambda: topic.delete(),
        ):
            with pytest.raises(TopicOwnedError, match="t-partition-1"):
                call()
        assert topic.publish(b"u", mine) == PartitionOffset(0, 1), "nothing of the batch, not even on its way"
        with topic.producer("p") as producer:
            future = producer.submit(b"w", mine)
            with pytest.raises(TopicOwnedError, match="t-partition-1"):
                producer.submit(b"w", theirs)
        assert future.result(0) == PartitionOffset(0, 2), "closing waited for what it has"
        assert stored_here(topic, 0) == [b"v", b"u", b"w"]
        assert topic.subscriptions() == []
        assert list(topic.stats().parts) == [0, 2]
        held.close()
        assert topic.partition(1).publish(b"x") == 0
    assert topic.served == [0, 1, 2]
    assert topic.publish(b"y", theirs) == PartitionOffset(1, 1)


def stored_here(topic: PartitionedTopic, partition: int) -> list[bytes]:
    return [value for batch in topic.read(partition) for value in batch.values()]


def test_a_closed_topic_refuses_calls_for_partitions_of_any_owner(cluster: Cluster, topic: PartitionedTopic) -> None:
    topic.close()
    with other_process(cluster) as other:
        other.topic("t-partition-1")
        topic = cluster.topic("t")
        topic.close()
        for partition in range(3):
            with pytest.raises(ClosedError, match="partitioned topic t was closed"):
                topic.publish(b"v", key_of(partition, 3))
            with pytest.raises(ClosedError, match="partitioned topic t was closed"):
                next(topic.read(partition))


def test_partitioned_topic_being_closed_is_opened_again_afterwards(cluster: Cluster, topic: PartitionedTopic) -> None:
    """It is opened again once its last messages are stored."""
    with RequestInterceptor(cluster) as interceptor, ThreadPoolExecutor(2) as pool:
        interceptor.add_rule(interceptor.hold, kind=RequestKind.ADD)
        last = topic.submit(b"last", key_of(1, 3))
        interceptor.wait_for(RequestKind.ADD)
        closing = pool.submit(topic.close)
        until(lambda: topic.is_closing)
        opening = pool.submit(cluster.topic, "t")
        wait([opening], 0.2)  # it waits for the end of the former handle
        interceptor.clear()
        interceptor.release()
        again = opening.result(30)
        assert again.publish(b"next", key_of(1, 3)) == PartitionOffset(1, 1)
        closing.result(30)
    assert last.result(0) == PartitionOffset(1, 0)


def test_a_topic_of_which_others_own_all_is_owned(cluster: Cluster, topic: PartitionedTopic) -> None:
    with other_process(cluster) as other:
        with pytest.raises(TopicOwnedError, match="t-partition-0"):
            other.topic("t")
        topic.close()
        theirs = other.topic("t")
        assert theirs.served == [0, 1, 2]
        with pytest.raises(TopicOwnedError):
            cluster.topic("t")
    assert cluster.topic("t").served == [0, 1, 2]


def test_a_partition_that_was_closed_is_opened_again(cluster: Cluster, topic: PartitionedTopic) -> None:
    topic.partition(1).close()
    assert cluster.topic("t") is topic
    assert topic.publish(b"v", key_of(1, 3)) == PartitionOffset(1, 0)
