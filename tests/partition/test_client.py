"""The client, over TCP and within one process: topics, reads, followers, and leaders that move."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from pyreplog.errors import (
    InvalidArgumentError,
    NoSuchPartitionError,
    NoSuchTopicError,
    OutOfRangeError,
    PartitionTimeoutError,
    PartitionUnavailableError,
    TopicExistsError,
    TrimmedError,
)
from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.protocol.error_codes import ACKS_ALL
from pyreplog.partition.requests import Messages
from pyreplog.partition.topic_partition import TopicPartition
from tests.waiting import PATIENCE_S, until

CONFIG = BrokerConfig(segment_bytes=1 << 20, lag_ms=2_000)


@pytest.fixture(params=["in one process", "over TCP"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PartitionClient]:
    with ExitStack() as stack:
        if request.param == "over TCP":
            url = f"sqlite:{tmp_path / 'metadata'}"
            store = stack.enter_context(open_store(url))
            for name in "abc":
                stack.enter_context(Broker(tmp_path / name, name, store, config=CONFIG))
            yield stack.enter_context(PartitionClient.connect(url))
        else:
            yield stack.enter_context(PartitionClient.embedded(tmp_path, broker_config=CONFIG))


def test_a_client_creates_lists_and_deletes_topics(client: PartitionClient) -> None:
    assert client.topics() == []
    flights = client.create_topic("flights", partitions=3, min_isr=2)
    assert client.topics() == ["flights"] and len(flights) == 3 and client.topic("flights") is flights
    assert [partition.number for partition in flights] == [0, 1, 2] and flights[-1].number == 2
    until(lambda: all(partition.leader for partition in flights))
    with pytest.raises(NoSuchPartitionError):
        flights[3]
    with pytest.raises(TopicExistsError):
        client.create_topic("flights")
    with pytest.raises(NoSuchTopicError):
        client.topic("gates")
    with pytest.raises(InvalidArgumentError):
        client.topic("flights", isolation="dirty")
    client.delete_topic("flights")
    assert client.topics() == []
    # Appends go on until the deletion is known; the one that is under way then may have an unknown outcome.
    with pytest.raises((NoSuchPartitionError, PartitionTimeoutError)):
        until(lambda: flights[0].append(b"too late") < 0)


def test_a_client_reads_the_records_that_producers_appended(client: PartitionClient, seed: int) -> None:
    random = Random(seed)
    topic = client.create_topic("flights", partitions=2, min_isr=2)
    written: dict[int, list[tuple[bytes, bytes | None]]] = {0: [], 1: []}
    with topic.producer(ProducerConfig(batch_bytes=2000)) as producer:
        for _ in range(300):
            value, key = random.randbytes(random.randrange(50)), random.choice([None, b"k%d" % random.randrange(9)])
            number = random.randrange(2)
            producer.submit(value, key, partition=number)
            written[number].append((value, key))
    for number, records in written.items():
        batches = list(topic[number].read())
        assert [(each.value, each.key) for batch in batches for each in batch] == records
        assert [offset for batch in batches for offset in batch.offsets.tolist()] == list(range(len(records)))
        offsets = topic[number].offsets()
        ends = (offsets.start, offsets.end, offsets.high_watermark, offsets.last_stable)
        assert ends == (0, len(records), len(records), len(records))
        start = random.randrange(len(records))
        assert topic[number].get(start).value == records[start][0]
        rest = [value for batch in topic[number].read(start) for value in batch.values()]
        assert rest == [value for value, _ in records[start:]]


def test_native_messages_and_batches_are_read_alike(client: PartitionClient) -> None:
    """Brokers of this process may append messages that are no record batches."""
    if not client.brokers:
        return
    topic = client.create_topic("flights", min_isr=2)
    topic[0].append(b"first", key=b"k")
    leader = client.brokers[topic[0].leader]
    name = TopicPartition("flights", 0)
    native = Messages([b"a", b"b"], [b"x", None])
    leader.replicas.append_records(ACKS_ALL, {name: native}).result(PATIENCE_S)
    topic[0].append(b"last")
    records = [record for batch in topic[0].read() for record in batch]
    assert [(record.offset, record.key, record.value) for record in records] == [
        (0, b"k", b"first"), (1, b"x", b"a"), (2, None, b"b"), (3, None, b"last"),
    ]  # fmt: skip
    assert [record.value for batch in topic[0].read(2) for record in batch] == [b"b", b"last"]


def test_offsets_that_the_log_does_not_have(client: PartitionClient) -> None:
    topic = client.create_topic("flights")
    topic[0].append_batch([b"a", b"b"])
    assert not len(topic[0].fetch(2))
    with pytest.raises(OutOfRangeError) as caught:
        topic[0].fetch(3)
    assert not isinstance(caught.value, TrimmedError)
    with pytest.raises(OutOfRangeError):
        topic[0].get(2)
    with pytest.raises(InvalidArgumentError):
        topic[0].fetch(-1)


def test_a_follower_waits_for_records(client: PartitionClient) -> None:
    topic = client.create_topic("flights", min_isr=2)
    topic[0].append(b"before")
    follower = topic[0].follow_batches(0)
    assert next(follower).values() == [b"before"]
    got: list[bytes | None] = []
    thread = threading.Thread(target=lambda: got.extend(next(follower).values()))
    thread.start()
    topic[0].append(b"after")
    thread.join(PATIENCE_S)
    assert got == [b"after"] and follower.position == 2
    assert list(topic[0].follow_batches(2, timeout=0.05)) == []
    assert [record.value for record in topic[0].follow(0, timeout=0.05)] == [b"before", b"after"]


def test_a_client_finds_the_offset_at_a_time(client: PartitionClient) -> None:
    topic = client.create_topic("flights")
    topic[0].append_batch([b"a", b"b"])
    assert topic[0].offset_at(0) == 0 and topic[0].offset_at(1 << 62) == 2


def test_a_client_appends_and_follows_in_coroutines(client: PartitionClient) -> None:
    async def use() -> list[bytes | None]:
        topic = await client.create_topic_async("flights")
        await topic[0].append_async(b"a")
        await topic[0].append_batch_async([b"b", b"c"])
        with pytest.raises(InvalidArgumentError):
            topic[0].append(b"blocks")
        assert (await topic[0].offsets_async()).end == 3
        values: list[bytes | None] = []
        async for batch in topic[0].follow_batches(0, timeout=0.05):
            values += batch.values()
        assert [record.value async for record in topic[0].follow_async(1, timeout=0.05)] == [b"b", b"c"]
        return values

    assert asyncio.run(use()) == [b"a", b"b", b"c"]


def test_leaders_move_under_load(tmp_path: Path, seed: int) -> None:
    """Each broker is stopped and started in turn: what was acknowledged is there once and in order."""
    url = f"sqlite:{tmp_path / 'metadata'}"
    config = BrokerConfig(segment_bytes=1 << 20, lag_ms=1_000)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(url))
        brokers = {name: Broker(tmp_path / name, name, store, config=config) for name in "abc"}
        stack.callback(lambda: [broker.close() for broker in brokers.values()])
        client = stack.enter_context(PartitionClient.connect(url, config=ProducerConfig(timeout_s=PATIENCE_S)))
        topic = client.create_topic("flights", min_isr=2)
        producer = topic.producer()
        futures = []
        for name in Random(seed).sample("abc", 3):
            futures += [producer.submit(b"%d" % number) for number in range(len(futures), len(futures) + 20)]
            brokers.pop(name).close()
            futures += [producer.submit(b"%d" % number) for number in range(len(futures), len(futures) + 20)]
            futures[-1].result(PATIENCE_S)
            brokers[name] = Broker(tmp_path / name, name, store, config=config)
            until(lambda: len(client_isr(client)) == 3)
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(120))
        values = [value for batch in topic[0].read() for value in batch.values()]
        assert values == [b"%d" % number for number in range(120)]


def client_isr(client: PartitionClient) -> list[str]:
    """Of partition 0 of the topic."""
    isr = client.topic("flights")[0].isr
    return [member.broker for member in isr]


def test_without_brokers_a_call_ends_in_time(tmp_path: Path) -> None:
    with PartitionClient.connect(f"sqlite:{tmp_path / 'metadata'}", config=ProducerConfig(timeout_s=0.3)) as client:
        with pytest.raises(PartitionUnavailableError):
            client.create_topic("flights", replication_factor=1)
        with pytest.raises(PartitionUnavailableError):
            client.topic("flights")[0].offsets()
