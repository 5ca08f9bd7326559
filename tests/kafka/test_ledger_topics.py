"""Topics on ledgers as Kafka topics: real clients beside native ones, of an embedded cluster and of a topic server."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

import pyreplog.kafka
import pyreplog.kafka.ledgers.topics
from pyreplog._native.kafka.record_batch import encode_batch, encode_records
from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, MetadataUnavailableError, WrongTypeError
from pyreplog.kafka.ledgers.partition import LedgerPartition
from pyreplog.kafka.ledgers.topics import LedgerTopics
from pyreplog.kafka.metrics import kafka_metrics
from pyreplog.kafka.wire.messages import (
    AlterConfigsAlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochOffsetForLeaderPartition,
    OffsetForLeaderEpochOffsetForLeaderTopic,
    OffsetForLeaderEpochRequest,
    ProducePartitionProduceData,
    ProduceRequest,
    ProduceTopicProduceData,
)
from pyreplog.kafka.wire.schema import ApiKey
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import ConsumerFetch, FetchParams
from pyreplog.partition.topic_partition import TopicPartition as PartitionName
from pyreplog.record_batches.batches import build_batch, read_batch
from pyreplog.topic.client.consumer import Consumer as NativeConsumer
from pyreplog.topic.client.remote.client import connect
from pyreplog.topic.client.remote.remote_topic import RemoteTopic
from pyreplog.topic.model.positions import Start
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server.topic_server import TopicServer
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient
from tests.ports import free_ports
from tests.topic.remoting import Wire
from tests.waiting import PATIENCE_S, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka import KafkaConsumer, KafkaProducer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIME_MS = 1_700_000_000_000
KEEP: dict[str, Any] = {"ensemble": 1, "retention_bytes": None, "retention_ms": None}
"""Settings of a topic that keeps all messages."""


class Topics:
    """A cluster with topics on ledgers, and a broker whose listener serves them. native: opens topics."""

    def __init__(self, path: Path, stack: ExitStack, kind: str) -> None:
        self.cluster = stack.enter_context(Cluster.embedded(path / "cluster", bookies=1))
        self.native: Any = self.cluster
        self.source: Any = self.cluster.topics
        if kind == "served":
            server = stack.enter_context(TopicServer(self.cluster))
            self.native = self.source = stack.enter_context(connect(f"pyreplog://{server.address}"))
        self.brokers = stack.enter_context(
            KafkaBrokers(path, offsets_partitions=1, rebalance_delay_ms=0, fetch_wait_ms=600_000)
        )
        self.brokers.start("1", topics=self.source)

    @property
    def servers(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.brokers.addresses}

    def create(self, name: str = "orders", **settings: Any) -> Any:
        return self.native.topic(name, **KEEP, **settings)

    def raw(self) -> RawClient:
        return RawClient(self.brokers.servers["1"])

    def restart_listener(self) -> None:
        self.brokers.stop("1")
        self.brokers.start("1", topics=self.source)


@pytest.fixture(params=["embedded", "served"])
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topics]:
    with ExitStack() as stack:
        yield Topics(tmp_path, stack, request.param)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Topics]:
    with ExitStack() as stack:
        yield Topics(tmp_path, stack, "embedded")


def produce(topics: Topics, records: list[dict[str, Any]], topic: str = "orders", **settings: Any) -> list[int]:
    """Returns the offsets. Raises the first error of a delivery."""
    producer = Producer({**topics.servers, "linger.ms": 5, **settings})
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset() or 0)

    for record in records:
        producer.produce(topic, **record, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    if errors:
        raise KafkaException(errors[0])
    return offsets


def consume(topics: Topics, count: int, *names: str, **settings: Any) -> list[Message]:
    consumer = Consumer({
        **topics.servers, "group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        **settings,
    })  # fmt: skip
    messages: list[Message] = []
    try:
        consumer.subscribe([*names] or ["orders"])

        def take() -> bool:
            for message in consumer.consume(count - len(messages), 0.5):
                if message.error():
                    raise KafkaException(message.error())
                messages.append(message)
            return len(messages) >= count

        until(take)
        if settings.get("group.id"):
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return messages


# ---- publishing and reading ------------------------------------------------------------------------------------


def test_a_native_subscription_gets_what_a_kafka_client_produces(topics: Topics) -> None:
    consumer = topics.create().subscribe("billing", start="earliest")
    offsets = produce(topics, [
        {"value": b"order 1", "key": b"customer 7", "headers": [("trace", b"\x01"), ("kind", b"new")], "timestamp": TIME_MS},
        {"value": b"order 2", "timestamp": TIME_MS + 1},
    ])  # fmt: skip
    assert offsets == [0, 1]
    first, second = (consumer.receive(PATIENCE_S) for _ in range(2))
    assert (first.value, first.key, first.event_time) == (b"order 1", b"customer 7", TIME_MS * 1000)
    assert first.properties == {"trace": b"\x01", "kind": b"new"}
    assert (second.value, second.key, second.properties, second.event_time) == (
        b"order 2", None, {}, (TIME_MS + 1) * 1000,
    )  # fmt: skip
    consumer.close()


def test_a_consumer_group_reads_what_is_published(topics: Topics) -> None:
    topic = topics.create()
    topic.publish_batch([b"%d" % number for number in range(500)], [b"k%d" % number for number in range(500)])
    topic.publish(b"last", properties={"a": "1"}, event_time=TIME_MS * 1000)
    messages = consume(topics, 501)
    assert [message.offset() for message in messages] == list(range(501))
    assert [message.value() for message in messages[:500]] == [b"%d" % number for number in range(500)]
    assert messages[3].key() == b"k3"
    last = messages[-1]
    assert (last.value(), last.headers(), last.timestamp()[1]) == (b"last", [("a", b"1")], TIME_MS)


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_produced(embedded: Topics, codec: str) -> None:
    embedded.create()
    records: list[dict[str, Any]] = [
        {"value": b"v" * 1000, "key": b"k", "headers": [("a", b"1"), ("a", None), ("b", b"\xff")]},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": None},
        {"value": None, "key": None, "headers": [("n", None)]},
        {"value": b"last", "key": b""},
    ]
    produce(embedded, [{**record, "timestamp": TIME_MS} for record in records], **{"compression.type": codec})
    messages = consume(embedded, len(records))
    read = [{"value": message.value(), "key": message.key(), "headers": message.headers()} for message in messages]
    assert read == [{"headers": None, **record} for record in records]
    assert {message.timestamp()[1] for message in messages} == {TIME_MS}


def test_kafka_python_and_aiokafka_share_a_topic(topics: Topics) -> None:
    topics.create()
    producer = KafkaProducer(bootstrap_servers=topics.brokers.addresses)
    try:
        assert producer.send("orders", b"1", headers=[("h", b"x")]).get(PATIENCE_S).offset == 0
    finally:
        producer.close(PATIENCE_S)

    async def share() -> list[bytes | None]:
        async with AIOKafkaProducer(bootstrap_servers=topics.brokers.addresses, enable_idempotence=True) as aio:
            assert (await aio.send_and_wait("orders", b"2")).offset == 1
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=topics.brokers.addresses, auto_offset_reset="earliest", group_id="aio"
        ) as reader:
            return [(await asyncio.wait_for(reader.getone(), PATIENCE_S)).value for _ in range(2)]

    assert asyncio.run(share()) == [b"1", b"2"]
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=topics.brokers.addresses, auto_offset_reset="earliest", group_id="python"
    )
    try:
        values: list[bytes] = []

        def take() -> bool:
            values.extend(record.value for records in consumer.poll(500).values() for record in records)
            return len(values) >= 2

        until(take)
        assert values == [b"1", b"2"]
    finally:
        consumer.close()


def test_a_topic_with_partitions_has_those_of_kafka(topics: Topics) -> None:
    topic = topics.create(partitions=3)
    described = AdminClient(topics.servers).list_topics(timeout=PATIENCE_S).topics
    assert sorted(described["orders"].partitions) == [0, 1, 2]
    assert not [name for name in described if "-partition-" in name]
    for partition in range(3):
        assert produce(topics, [{"value": b"%d" % partition, "partition": partition}]) == [0]
    assert [len(each.offsets) for each in topic.offsets()] == [1, 1, 1]
    messages = consume(topics, 3)
    assert sorted((message.partition(), message.value()) for message in messages) == [
        (0, b"0"), (1, b"1"), (2, b"2"),
    ]  # fmt: skip


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_each_number_of_acks_publishes(embedded: Topics, acks: str) -> None:
    consumer = embedded.create().subscribe("billing", start="earliest")
    produce(embedded, [{"value": b"x"}], acks=acks, **{"enable.idempotence": False})
    assert consumer.receive(PATIENCE_S).value == b"x"
    consumer.close()


def test_a_fetch_at_the_end_is_woken_by_a_native_message(topics: Topics) -> None:
    topic = topics.create()
    topic.publish(b"before")
    with topics.raw() as client:
        number = client.send(ApiKey.FETCH, 12, fetch_request("orders", 1, max_wait_ms=60_000))
        until(lambda: topic.stats().subscriptions)  # the one that waits for the message
        topic.publish(b"after")
        answer = client.answer(ApiKey.FETCH, 12, number).responses[0].partitions[0]
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 2, 0)
    assert read_batch(bytes(answer.records))[1].values() == [b"after"]


def test_a_fetch_waits_for_its_bytes_or_its_time(embedded: Topics) -> None:
    topic = embedded.create()
    topic.publish(b"x")
    with embedded.raw() as client:
        request = fetch_request("orders", 0, max_wait_ms=200)._replace(min_bytes=100_000)
        answer = client.ask(ApiKey.FETCH, 12, request).responses[0].partitions[0]
        assert read_batch(bytes(answer.records))[1].values() == [b"x"]
        answer = client.ask(ApiKey.FETCH, 12, fetch_request("orders", 1, max_wait_ms=50)).responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark, bytes(answer.records)) == (0, 1, b"")


def test_a_fetch_returns_the_first_batch_whatever_its_size(embedded: Topics) -> None:
    topic = embedded.create()
    for _ in range(3):
        topic.publish(bytes(10_000))
    with embedded.raw() as client:
        request = fetch_request("orders", 0, max_bytes=1)
        answer = client.ask(ApiKey.FETCH, 12, request).responses[0].partitions[0]
    assert len(read_batch(bytes(answer.records))[1]) == 1


def fetch_request(topic: str, offset: int, *, max_wait_ms: int = 0, max_bytes: int = 1 << 20) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )  # fmt: skip


# ---- idempotence -----------------------------------------------------------------------------------------------


def produce_raw(client: RawClient, data: bytes, *, acks: int = -1, version: int = 8) -> Any:
    partition = ProducePartitionProduceData(0, data)
    request = ProduceRequest(None, acks, 10_000, [ProduceTopicProduceData("orders", [partition])])
    return client.ask(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]


def sequenced(value: bytes, sequence: int, *, epoch: int = 0, count: int = 1) -> bytes:
    """A batch of producer 7."""
    body = encode_records([value] * count, None, [TIME_MS] * count, None)
    return encode_batch(
        body, count, base_timestamp=TIME_MS, max_timestamp=TIME_MS, producer_id=7, producer_epoch=epoch,
        base_sequence=sequence,
    )  # fmt: skip


@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_batch_that_is_sent_again_on_another_connection_is_stored_once(topics: Topics, deduplicate: bool) -> None:
    topic = topics.create(deduplicate=deduplicate)
    for _ in range(3):  # the connection breaks after each
        with topics.raw() as client:
            answer = produce_raw(client, sequenced(b"first", 0, count=2))
            assert (answer.error_code, answer.base_offset) == (0, 0)
    with topics.raw() as client:
        assert produce_raw(client, sequenced(b"third", 3)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce_raw(client, sequenced(b"second", 2)).base_offset == 2
    assert len(topic.offsets()) == 3


def test_batches_of_an_earlier_epoch_are_refused(embedded: Topics) -> None:
    """They come late, on a connection that their producer has given up."""
    topic = embedded.create(deduplicate=True)
    with embedded.raw() as client:
        assert produce_raw(client, sequenced(b"a", 0)).error_code == 0
        assert produce_raw(client, sequenced(b"b", 0, epoch=1)).error_code == 0
        assert produce_raw(client, sequenced(b"late", 1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert produce_raw(client, sequenced(b"c", 1, epoch=1)).error_code == 0
    assert [value for batch in topic.read() for value in batch.values()] == [b"a", b"b", b"c"]


def test_a_topic_that_deduplicates_knows_producers_when_the_listener_is_restarted(topics: Topics) -> None:
    topic = topics.create(deduplicate=True)
    with topics.raw() as client:
        produce_raw(client, sequenced(b"a", 0, count=2))
    topics.restart_listener()
    with topics.raw() as client:
        assert produce_raw(client, sequenced(b"a", 0, count=2)).error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        assert produce_raw(client, sequenced(b"c", 5)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce_raw(client, sequenced(b"b", 2)).base_offset == 2
        assert produce_raw(client, sequenced(b"other epoch", 0, epoch=1)).base_offset == 3
    assert len(topic.offsets()) == 4


def produce_while_disturbed(addresses: str, count: int, disturb_every: int, disturb: Callable[[], None]) -> list[bytes]:
    """Produce values with an idempotent producer, and disturb it in between; return the values, all delivered."""
    producer = Producer({"bootstrap.servers": addresses, "enable.idempotence": True, "batch.num.messages": 20})
    delivered: list[int] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message.offset() or 0)
        if len(delivered) % disturb_every == 0:
            disturb()

    values = [b"%d" % number for number in range(count)]
    for value in values:
        producer.produce("orders", value, on_delivery=note)
    assert producer.flush(PATIENCE_S) == 0
    assert len(delivered) == count
    return values


def test_an_idempotent_producer_stores_each_record_once_while_connections_break(topics: Topics) -> None:
    topic = topics.create(deduplicate=True)
    server = topics.brokers.servers["1"]

    def cut() -> None:
        for connection in list(server.connections):
            connection.close(ClosedError("the test cuts it"))

    values = produce_while_disturbed(topics.brokers.addresses, 2_000, 200, cut)
    assert [value for batch in topic.read() for value in batch.values()] == values


def test_an_idempotent_producer_stores_each_record_once_while_the_topic_server_is_cut_off(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.embedded(tmp_path / "cluster", bookies=1))
        (port,) = free_ports(1)
        wire = stack.enter_context(Wire(f"127.0.0.1:{port}"))
        stack.enter_context(TopicServer(cluster, port=port, advertise=wire.address))
        client = stack.enter_context(connect(f"pyreplog://{wire.address}"))
        brokers = stack.enter_context(KafkaBrokers(tmp_path, offsets_partitions=1))
        brokers.start("1", topics=client)
        topic = client.topic("orders", deduplicate=True, **KEEP)
        values = produce_while_disturbed(brokers.addresses, 1_000, 300, wire.cut)
        assert [value for batch in topic.read() for value in batch.values()] == values


def test_a_producer_that_changes_its_listener_stores_each_record_once(topics: Topics) -> None:
    topic = topics.create(deduplicate=True)
    topics.brokers.start("2", topics=topics.source)
    sequence = 0
    for name in ("1", "2", "1", "2"):
        with RawClient(topics.brokers.servers[name]) as client:
            if sequence:
                again = retried(client, sequenced(b"%d" % (sequence - 1), sequence - 1))
                assert again.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            for number in range(sequence, sequence + 3):
                assert retried(client, sequenced(b"%d" % number, number)).base_offset == number
        sequence += 3
    assert [value for batch in topic.read() for value in batch.values()] == [b"%d" % n for n in range(sequence)]


def retried(client: RawClient, data: bytes) -> Any:
    """The answer to a batch, which is sent again as long as the listener says so."""

    def ask() -> Any:
        answer = produce_raw(client, data)
        return None if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else answer

    return until(ask)


def test_all_listeners_name_the_same_leader(embedded: Topics) -> None:
    embedded.create(partitions=20)
    embedded.brokers.start("2", topics=embedded.source)

    def leaders(name: str) -> list[int]:
        with RawClient(embedded.brokers.servers[name]) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
            described = client.ask(ApiKey.METADATA, 12, request).topics[0].partitions
            return [partition.leader_id for partition in described]

    until(lambda: leaders("1") == leaders("2") and set(leaders("1")) == {1, 2})


def test_a_batch_that_is_held_by_a_quota_is_answered_in_time(embedded: Topics) -> None:
    topic = embedded.create(quota_bytes=1, deduplicate=True)
    topic.create_subscription("idle", start="earliest")
    topic.publish(bytes(100))
    request = ProduceRequest(
        None, -1, 100, [ProduceTopicProduceData("orders", [ProducePartitionProduceData(0, sequenced(b"x", 0))])]
    )
    with embedded.raw() as client:

        def held() -> bool:
            answer = client.ask(ApiKey.PRODUCE, 8, request).responses[0].partition_responses[0]
            assert answer.error_code in (0, ErrorCode.REQUEST_TIMED_OUT)
            return bool(answer.error_code)

        until(lambda: topic.stats().publishing == "held")
        assert held()
        topic.clear("idle")
        until(lambda: not held())
        assert produce_raw(client, sequenced(b"y", 1)).error_code == 0
    assert [value for batch in topic.read(1) for value in batch.values()] == [b"x", b"y"]


# ---- groups ----------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_committed_when_the_listener_is_restarted(topics: Topics) -> None:
    topic = topics.create()
    topic.publish_batch([b"%d" % number for number in range(10)])
    settings = {"group.id": "billing"}
    assert [message.value() for message in consume(topics, 4, **settings)] == [b"0", b"1", b"2", b"3"]
    topics.restart_listener()
    assert [message.value() for message in consume(topics, 6, **settings)] == [b"%d" % n for n in range(4, 10)]


def test_metrics_have_the_lag_of_a_group(topics: Topics) -> None:
    topic = topics.create()
    topic.publish_batch([b"%d" % number for number in range(5)])
    assert len(consume(topics, 2, **{"max.partition.fetch.bytes": 1})) == 2
    committed = TopicPartition("orders", 0, 2)
    consumer = Consumer({**topics.servers, "group.id": "readers"})
    try:
        consumer.commit(offsets=[committed], asynchronous=False)
    finally:
        consumer.close()

    def measured() -> dict[str, float]:
        return {
            metric.name.removeprefix("pyreplog_kafka_group_"): float(value)  # type: ignore[arg-type]
            for metric in kafka_metrics(topics.brokers.servers["1"])
            for labels, value in metric.samples
            if labels.get("group") == "readers" and labels.get("topic") == "orders"
        }

    first = until(lambda: (values := measured()) and "lag" in values and values)  # the owner may be slow to answer
    assert (first["offset"], first["lag"]) == (2, 3) and 0 < first["lag_seconds"] < 3600
    topic.delete()
    assert until(lambda: (values := measured()) and "lag" not in values and values)["offset"] == 2


@pytest.mark.parametrize(("name", "partitions"), [("orders", None), ("orders", 2), ("o" * 195, None)])
def test_metrics_open_no_topic(topics: Topics, name: str, partitions: int | None) -> None:
    """The lag in a topic that is not open is that of its closed ledgers; when it was published is not known."""
    settings = {} if partitions is None else {"partitions": partitions}
    kept = topics.create(name, **settings)
    kept.publish_batch([b"%d" % number for number in range(5)])
    produce(topics, [{"value": b"last", "partition": 0}], name)
    consumer = Consumer({**topics.servers, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    consumer.close()
    lag = (kept if partitions is None else kept.partition(0)).offsets().stop - 1
    topics.brokers.stop("1")
    for topic in topics.cluster.topics.opened():
        topic.close()
    topics.brokers.start("1", topics=topics.source)
    server = topics.brokers.servers["1"]

    def measured() -> dict[str, float]:
        return {
            metric.name.removeprefix("pyreplog_kafka_group_"): float(value)  # type: ignore[arg-type]
            for metric in kafka_metrics(server)
            for labels, value in metric.samples
            if labels.get("topic") == name
        }

    found = until(lambda: (values := measured()) and "lag" in values and values)
    assert found["lag"] == lag > 0 and "lag_seconds" not in found
    assert topics.cluster.topics.opened() == []
    with RawClient(server) as client:
        assert client.ask(ApiKey.FETCH, 4, fetch_request(name, 1)).responses[0].partitions[0].records
    assert until(lambda: measured().get("lag_seconds", 0.0)) > 0


def test_a_group_of_the_consumer_protocol_reads_a_topic_on_ledgers(embedded: Topics) -> None:
    embedded.create(partitions=2).publish_batch([b"%d" % number for number in range(10)])
    messages = consume(embedded, 10, **{"group.id": "new", "group.protocol": "consumer"})
    assert sorted(message.value() for message in messages) == [b"%d" % number for number in range(10)]


def test_a_regular_expression_of_a_group_matches_topics_on_ledgers(embedded: Topics) -> None:
    embedded.create("orders-eu").publish(b"x")
    messages = consume(embedded, 1, "^orders-.*", **{"group.id": "matching", "group.protocol": "consumer"})
    assert [(message.topic(), message.value()) for message in messages] == [("orders-eu", b"x")]


# ---- offsets ---------------------------------------------------------------------------------------------------


def test_offsets_are_found_by_end_and_by_time(topics: Topics) -> None:
    topic = topics.create()
    for number in range(4):
        topic.publish(b"%d" % number, event_time=(TIME_MS + 10 * number) * 1000)
    recent = Consumer({**topics.servers, "group.id": "none"})
    try:
        assert recent.get_watermark_offsets(TopicPartition("orders", 0), timeout=PATIENCE_S) == (0, 4)
    finally:
        recent.close()

    def find(timestamp: int) -> Any:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic("orders", [wanted])])
        return client.ask(ApiKey.LIST_OFFSETS, 7, request).topics[0].partitions[0]

    with topics.raw() as client:
        assert (find(-2).offset, find(-1).offset) == (0, 4)
        assert (find(0).offset, find(0).timestamp) == (0, TIME_MS)
        assert (find(TIME_MS + 11).offset, find(TIME_MS + 11).timestamp) == (2, TIME_MS + 20)
        assert (find(4_000_000_000_000).offset, find(4_000_000_000_000).error_code) == (-1, 0)


def find_max_timestamp(topics: Topics) -> tuple[int, int]:
    """Returns offset and timestamp."""
    place = TopicPartition("orders", 0)
    admin = AdminClient(topics.servers)
    listed = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(PATIENCE_S)
    return listed.offset, listed.timestamp


def test_the_maximum_timestamp_is_found_wherever_it_is(topics: Topics) -> None:
    topic = topics.create()
    assert find_max_timestamp(topics) == (-1, -1)
    for number in (3, 7, 1, 7, 2):
        topic.publish(b"x", event_time=(TIME_MS + number) * 1000)
    assert find_max_timestamp(topics) == (1, TIME_MS + 7)
    produce(topics, [{"value": b"x", "timestamp": TIME_MS + number} for number in (5, 9, 4)])
    assert find_max_timestamp(topics) == (6, TIME_MS + 9)
    topic.publish(b"a message without an event time")
    offset, timestamp = find_max_timestamp(topics)
    assert offset == 8 and timestamp == next(topic.read(8)).publish_time[0] // 1000


def test_the_search_for_the_maximum_timestamp_reads_the_end_of_a_topic(embedded: Topics) -> None:
    topic = embedded.create()
    value = bytes(1 << 20)
    old = [topic.submit(value, event_time=TIME_MS * 1000) for _ in range(20)]
    topic.flush()
    assert [future.result(PATIENCE_S) for future in old] == list(range(20))
    with pytest.raises(KafkaException) as raised:  # all are much older than their publication
        find_max_timestamp(embedded)
    assert raised.value.args[0].code() == KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT
    now_us = time.time_ns() // 1000 + 20_000_000
    topic.publish(b"newest", event_time=now_us)
    topic.publish(b"older", event_time=TIME_MS * 1000)
    assert find_max_timestamp(embedded) == (20, now_us // 1000)


class ServedTopic(NamedTuple):
    """A topic of a topic server, with two messages of TIME_MS and a millisecond later.

    open_remote: opens it as a client. owner: the topic, as the server has it open.
    """

    open_remote: Callable[[], Any]
    owner: Topic


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedTopic]:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.embedded(tmp_path, bookies=1))
        server = stack.enter_context(TopicServer(cluster))
        client = stack.enter_context(connect(f"pyreplog://{server.address}"))
        client.topic("orders", **KEEP).publish_batch([b"1", b"2"], event_times=[TIME_MS * 1000, (TIME_MS + 1) * 1000])
        yield ServedTopic(lambda: client.existing("orders"), cluster.topic("orders"))


@pytest.mark.parametrize("call", ["read", "published_us", "find_max_time"])
def test_each_read_of_a_partition_opens_a_topic_that_its_server_has_closed(served: ServedTopic, call: str) -> None:
    async def check() -> None:
        partition = LedgerPartition("orders, partition 0", served.open_remote, "kafka")
        assert await partition.offsets() == range(2)
        await asyncio.to_thread(served.owner.close)
        if call == "read":
            assert await partition.read(0, 1 << 20)
        elif call == "published_us":
            assert await partition.published_us(0) is not None
        else:
            assert await partition.find_max_time(range(2)) == (1, TIME_MS + 1)
        await partition.close()

    asyncio.run(check())


def test_a_search_by_time_opens_a_topic_that_its_server_closes_meanwhile(
    served: ServedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    async def closed_behind(topic: RemoteTopic, start: Start) -> int:
        offset = await asyncio.to_thread(topic.offset_of, start)
        await asyncio.to_thread(served.owner.close)
        return offset

    async def check() -> None:
        partition = LedgerPartition("orders, partition 0", served.open_remote, "kafka")
        monkeypatch.setattr(RemoteTopic, "offset_of_async", closed_behind)
        assert await partition.find_time(TIME_MS + 1, 2) == (1, TIME_MS + 1)
        await partition.close()

    asyncio.run(check())


def test_no_leader_epochs_are_told(embedded: Topics) -> None:
    embedded.create().publish(b"x")
    with embedded.raw() as client:
        asked = client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[MetadataRequestTopic(name="orders")]))
        assert asked.topics[0].partitions[0].leader_epoch == -1
        wanted = OffsetForLeaderEpochOffsetForLeaderPartition(partition=0, leader_epoch=3)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderEpochOffsetForLeaderTopic("orders", [wanted])]
        )
        end = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request).topics[0].partitions[0]
    assert (end.error_code, end.leader_epoch, end.end_offset) == (0, -1, -1)


def test_a_consumer_of_trimmed_messages_goes_on_with_the_first_that_is_kept(topics: Topics) -> None:
    topic = topics.native.topic("orders", ensemble=1, roll_entries=1, retention_bytes=0, retention_ms=0)
    for number in range(5):
        topic.publish(b"%d" % number)
    assert until(lambda: topic.trim())
    with topics.raw() as client:
        answer = client.ask(ApiKey.FETCH, 12, fetch_request("orders", 0)).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        answer = client.ask(ApiKey.FETCH, 12, fetch_request("orders", 6)).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    topic.configure(retention_bytes=None, retention_ms=None)
    first = topic.offsets().start  # another trim may have followed until now
    topic.publish(b"new")
    message = consume(topics, 1)[0]
    assert message.offset() == first > 0


# ---- the life of topics ----------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_under_way_is_unknown(topics: Topics) -> None:
    topic = topics.create()
    topic.publish(b"x")
    with topics.raw() as client:
        assert client.ask(ApiKey.FETCH, 12, fetch_request("orders", 0)).responses[0].partitions[0].error_code == 0
        number = client.send(ApiKey.FETCH, 12, fetch_request("orders", 1, max_wait_ms=60_000))
        until(lambda: topic.stats().subscriptions)  # the one of the fetch
        topic.delete()
        answer = client.answer(ApiKey.FETCH, 12, number).responses[0].partitions[0]
        assert answer.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answer = client.ask(ApiKey.FETCH, 12, fetch_request("orders", 1)).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = produce_raw(client, build_batch([b"x"], timestamps_ms=[1]))
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_created_again_has_another_id(topics: Topics) -> None:
    def topic_id() -> bytes:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        return bytes(client.ask(ApiKey.METADATA, 12, request).topics[0].topic_id)

    def fetch(topic_id: bytes) -> Any:
        request = fetch_request("", 0)
        wanted = [topic._replace(topic_id=topic_id) for topic in request.topics]
        return client.ask(ApiKey.FETCH, 13, request._replace(topics=wanted)).responses[0].partitions[0]

    with topics.raw() as client:
        topics.create().publish(b"x")
        former = topic_id()
        assert topic_id() == former and fetch(former).error_code == 0
        topics.create().delete()
        topics.create().publish(b"y")
        assert topic_id() != former
        assert fetch(former).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert read_batch(bytes(fetch(topic_id()).records))[1].values() == [b"y"]


def test_topics_on_ledgers_are_changed_with_other_tools(topics: Topics) -> None:
    topics.create().publish(b"x")
    admin = AdminClient(topics.servers)

    def code(futures: dict[Any, Any]) -> Any:
        with pytest.raises(KafkaException) as raised:
            next(iter(futures.values())).result(PATIENCE_S)
        return raised.value.args[0].code()

    assert code(admin.create_topics([NewTopic("orders", 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code(admin.create_partitions([NewPartitions("orders", 3)])) == KafkaError.POLICY_VIOLATION
    assert code(admin.delete_topics(["orders"])) == KafkaError.POLICY_VIOLATION
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[entry])
    assert code(admin.incremental_alter_configs([changed])) == KafkaError.POLICY_VIOLATION
    with topics.raw() as client:
        wanted = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, 1)])
        request = DeleteRecordsRequest(topics=[wanted], timeout_ms=1000)
        answer = client.ask(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert {name: configs[name].value for name in ("cleanup.policy", "retention.ms", "retention.bytes")} == {
        "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
    }  # fmt: skip
    assert all(entry.is_read_only for entry in configs.values())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("compression.type", "producer")], ErrorCode.NONE),
        ([("cleanup.policy", "delete"), ("retention.ms", "-1"), ("compression.type", None)], ErrorCode.NONE),
        ([("follower.replication.throttled.replicas", None)], ErrorCode.NONE),
        ([("compression.type", "lz4")], ErrorCode.POLICY_VIOLATION),
        ([("compression.type", "producer"), ("retention.ms", "604800000")], ErrorCode.POLICY_VIOLATION),
        ([("retention.ms", None)], ErrorCode.POLICY_VIOLATION),
    ],
)
def test_settings_that_a_topic_on_ledgers_has_are_accepted(
    embedded: Topics, changes: list[tuple[str, str | None]], code: ErrorCode
) -> None:
    embedded.create().publish(b"x")
    changed = [IncrementalAlterConfigsAlterableConfig(name, 1 if text is None else 0, text) for name, text in changes]
    replaced = [AlterConfigsAlterableConfig(*change) for change in changes]
    with embedded.raw() as client:
        incremental = IncrementalAlterConfigsRequest(
            [IncrementalAlterConfigsAlterConfigsResource(2, "orders", changed)]
        )
        answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, incremental).responses[0]
        assert answer.error_code == code, answer.error_message
        request = AlterConfigsRequest([AlterConfigsResource(2, "orders", replaced)])
        answer = client.ask(ApiKey.ALTER_CONFIGS, 2, request).responses[0]
        assert answer.error_code == code, answer.error_message


def test_no_topic_of_brokers_is_created_under_the_name_of_one_on_ledgers(topics: Topics) -> None:
    topic = topics.create()
    produce(topics, [{"value": b"x"}])
    assert len(topic.offsets()) == 1
    assert topics.brokers.brokers["1"].metadata.topic("orders") is None
    produce(topics, [{"value": b"x"}], "others")
    assert topics.brokers.brokers["1"].metadata.topic("others") is not None


def test_nothing_is_created_while_the_topics_on_ledgers_are_unknown(topics: Topics) -> None:
    """A name that is not known may be that of one of them."""
    topics.create().publish(b"x")

    def code(name: str) -> int:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        return int(client.ask(ApiKey.METADATA, 12, request).topics[0].error_code)

    with topics.raw() as client:
        assert code("orders") == 0
        topics.native.close()
        assert code("others") == ErrorCode.LEADER_NOT_AVAILABLE
        assert topics.brokers.brokers["1"].metadata.topic("others") is None
        assert code("orders") == 0, "it was known before"
        answer = client.ask(ApiKey.FETCH, 12, fetch_request("orders", 0)).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_topic_of_brokers_hides_one_on_ledgers(embedded: Topics) -> None:
    embedded.brokers.create("orders")
    topic = embedded.create()
    produce(embedded, [{"value": b"x"}])
    assert not len(topic.offsets())


def test_one_consumer_reads_topics_of_both_kinds(embedded: Topics) -> None:
    embedded.create().publish(b"on ledgers")
    produce(embedded, [{"value": b"of brokers"}], "events")
    messages = consume(embedded, 2, "orders", "events")
    assert {(message.topic(), message.value()) for message in messages} == {
        ("orders", b"on ledgers"), ("events", b"of brokers"),
    }  # fmt: skip


@pytest.mark.parametrize("wakes", ["orders", "events"])
def test_a_fetch_of_both_kinds_is_woken_by_either(topics: Topics, wakes: str) -> None:
    topic = topics.create()
    topic.publish(b"old")
    topics.brokers.create("events")
    partitions = [
        FetchTopic(topic=name, partitions=[FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)])
        for name, offset in (("orders", 1), ("events", 0))
    ]
    request = fetch_request("orders", 1, max_wait_ms=600_000)._replace(topics=partitions)
    with topics.raw() as client:
        number = client.send(ApiKey.FETCH, 12, request)
        until(lambda: any(name.startswith("kafka-fetch-") for name in topic.subscriptions()))
        if wakes == "orders":
            topic.publish(b"new")
        else:
            produce(topics, [{"value": b"new"}], "events")
        answer = client.answer(ApiKey.FETCH, 12, number)
    values = {
        each.topic: read_batch(bytes(each.partitions[0].records))[1].values() if each.partitions[0].records else []
        for each in answer.responses
    }
    assert values == {"orders": [], "events": [], wakes: [b"new"]}


@pytest.mark.parametrize("read", ["first", "after a message"])
def test_a_fetch_of_both_kinds_that_waits_for_the_disk_delays_no_other_fetch(
    embedded: Topics, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:  # fmt: skip
    """All fetches of topics on ledgers share an event loop, which must not read partitions of brokers."""
    topic = embedded.create()
    topic.publish(b"old")
    embedded.brokers.create("events")
    reading, released, is_slow = threading.Event(), threading.Event(), threading.Event()
    read_partition = Partition.read

    def read_slowly(partition: Partition, *args: Any, **options: Any) -> Any:
        if is_slow.is_set():
            reading.set()
            assert released.wait(PATIENCE_S)
        return read_partition(partition, *args, **options)

    monkeypatch.setattr(Partition, "read", read_slowly)
    wanted = FetchTopic(topic="events", partitions=[FetchPartition(partition_max_bytes=1 << 20)])
    request = fetch_request("orders", 1, max_wait_ms=600_000)
    with embedded.raw() as both, embedded.raw() as other, ExitStack() as stack:
        stack.callback(released.set)
        if read == "first":
            is_slow.set()
        number = both.send(ApiKey.FETCH, 12, request._replace(topics=[*request.topics, wanted]))
        if read == "after a message":
            until(lambda: any(name.startswith("kafka-fetch-") for name in topic.subscriptions()))
            is_slow.set()
            topic.publish(b"new")
        assert reading.wait(PATIENCE_S)
        other.socket.settimeout(PATIENCE_S / 4)
        assert other.ask(ApiKey.FETCH, 12, fetch_request("orders", 0)).responses[0].partitions[0].records
        released.set()
        if read == "first":
            topic.publish(b"new")
        assert both.answer(ApiKey.FETCH, 12, number).responses[0].partitions[0].records


def test_a_fetch_of_both_kinds_ends_with_its_time(embedded: Topics) -> None:
    embedded.create().publish(b"old")
    embedded.brokers.create("events")
    request = fetch_request("orders", 1, max_wait_ms=50)
    wanted = FetchTopic(topic="events", partitions=[FetchPartition(partition_max_bytes=1 << 20)])
    with embedded.raw() as client:
        answer = client.ask(ApiKey.FETCH, 12, request._replace(topics=[*request.topics, wanted]))
        assert [each.partitions[0].error_code for each in answer.responses] == [0, 0]
        embedded.create().delete()
        until(
            lambda: client.ask(ApiKey.FETCH, 12, request._replace(topics=[*request.topics, wanted])).responses[0]
            .partitions[0].error_code
            == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )  # fmt: skip


def test_a_reader_behind_another_one_does_not_wait(embedded: Topics) -> None:
    """It read the end of the topic before a message was there that the other one has seen."""
    topic = embedded.create()
    topic.publish_batch([b"x"] * 5)

    async def wait() -> None:
        partition = LedgerPartition("orders", lambda: topic, "test")
        ahead = asyncio.create_task(partition.wait_beyond(5))
        await asyncio.wait_for(asyncio.create_task(partition.wait_beyond(4)), PATIENCE_S)  # tasks begin in order
        assert not ahead.done()
        await topic.publish_async(b"new")
        await asyncio.wait_for(ahead, PATIENCE_S)
        await partition.close()

    asyncio.run(wait())


def test_a_listener_waits_for_the_subscriptions_that_it_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of a fetch is closed after the fetch is answered."""
    is_closing, may_close = threading.Event(), threading.Event()
    close = NativeConsumer.close_async

    async def close_slowly(consumer: NativeConsumer) -> None:
        is_closing.set()
        await asyncio.to_thread(may_close.wait, PATIENCE_S)
        await close(consumer)

    monkeypatch.setattr(NativeConsumer, "close_async", close_slowly)
    params = FetchParams(max_wait_ms=int(PATIENCE_S * 1000))
    with Cluster.embedded(tmp_path, bookies=1) as cluster, ThreadPoolExecutor(1) as pool:
        topic = cluster.topic("orders", **KEEP)
        with LedgerTopics(cluster.topics, "test") as topics:
            name = PartitionName("orders", 0)
            fetched = topics.fetch(params, {name: ConsumerFetch(0, 1 << 20)})
            until(lambda: topic.subscriptions())
            topic.publish(b"x")
            assert fetched.result(PATIENCE_S)[name].records
            assert is_closing.wait(PATIENCE_S)
            closed = pool.submit(topics.close)
            with suppress(TimeoutError):
                closed.result(0.5)
            may_close.set()
            closed.result(PATIENCE_S)
        assert topic.subscriptions() == []


def test_background_look_ups_are_not_repeated_while_the_cluster_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit and heartbeat of a group asks for its topics."""
    asked = list[str]()

    def fail(_: Any, name: str) -> None:
        asked.append(name)
        raise MetadataUnavailableError("away")

    with Cluster.embedded(tmp_path, bookies=1) as cluster, LedgerTopics(cluster.topics, "test") as topics:
        monkeypatch.setattr(type(cluster.topics), "identity_of", fail)

        def look_up(name: str) -> None:
            with pytest.raises(MetadataUnavailableError):
                topics.find([name]).result(PATIENCE_S)

        look_up("orders")
        for _ in range(50):
            assert topics.known("orders") is None
        look_up("another")  # it begins behind the others
        assert asked == ["orders", "another"]
        look_up("orders")
        assert asked == ["orders", "another", "orders"], "others do not wait"


def test_topics_whose_names_kafka_does_not_allow_are_not_shown(embedded: Topics) -> None:
    embedded.create("with space")
    embedded.create()
    names = AdminClient(embedded.servers).list_topics(timeout=PATIENCE_S).topics
    assert "orders" in names and "with space" not in names


# ---- refusals --------------------------------------------------------------------------------------------------


def test_a_transaction_is_refused(topics: Topics) -> None:
    topic = topics.create()
    producer = Producer({**topics.servers, "transactional.id": "billing"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", b"x")
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert not len(topic.offsets())


def test_a_batch_of_a_transaction_is_refused(embedded: Topics) -> None:
    embedded.create()
    data = encode_batch(
        encode_records([b"x"], None, [1], None), 1, base_timestamp=1, max_timestamp=1, producer_id=7, producer_epoch=0,
        base_sequence=0, transactional=True,
    )  # fmt: skip
    with embedded.raw() as client:
        answer = produce_raw(client, data)
    assert answer.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert "no transactions" in answer.error_message


def test_a_message_that_is_too_large_is_refused(embedded: Topics) -> None:
    topic = embedded.create()
    with embedded.raw() as client:
        answer = produce_raw(client, build_batch([bytes(40 << 20)], timestamps_ms=[1], codec=1))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert not len(topic.offsets())


def test_a_topic_above_its_quota_refuses_records(embedded: Topics) -> None:
    topic = embedded.create(quota_bytes=1, quota_policy="error")
    topic.create_subscription("idle", start="earliest")
    topic.publish(bytes(100))

    def refused() -> bool:
        with embedded.raw() as client:
            return bool(
                produce_raw(client, build_batch([b"x"], timestamps_ms=[1])).error_code == ErrorCode.POLICY_VIOLATION
            )

    until(refused)


def test_damaged_records_are_refused(embedded: Topics) -> None:
    embedded.create()
    data = bytearray(build_batch([b"x"], timestamps_ms=[1]))
    data[-1] ^= 1
    with embedded.raw() as client:
        assert produce_raw(client, bytes(data)).error_code == ErrorCode.CORRUPT_MESSAGE


def send_without_answer(client: RawClient, data: bytes) -> None:
    partition = ProducePartitionProduceData(0, data)
    request = ProduceRequest(None, 0, 10_000, [ProduceTopicProduceData("orders", [partition])])
    client.send(ApiKey.PRODUCE, 8, request)


def unanswered_failures(topics: Topics) -> float:
    (metric,) = [
        each for each in kafka_metrics(topics.brokers.servers["1"]) if each.name == "pyreplog_kafka_unanswered_failures"
    ]
    return metric.samples[0][1]  # type: ignore[return-value]


def test_a_failure_without_an_answer_closes_the_connection(topics: Topics, caplog: pytest.LogCaptureFixture) -> None:
    topic = topics.create()
    good = build_batch([b"x"], timestamps_ms=[TIME_MS])
    bad = bytearray(good)
    bad[-1] ^= 1
    with topics.raw() as client:
        send_without_answer(client, good)
        until(lambda: topic.offsets() == range(1))
        assert unanswered_failures(topics) == 0
        send_without_answer(client, bytes(bad))
        assert client.is_closed()
    assert unanswered_failures(topics) == 1
    assert "UnansweredProduceError: orders-0" in caplog.text
    assert topic.offsets() == range(1)


def test_a_failure_of_a_client_that_has_gone_is_counted(embedded: Topics, caplog: pytest.LogCaptureFixture) -> None:
    topic = embedded.create(quota_bytes=1)
    topic.create_subscription("idle", start="earliest")
    topic.publish(bytes(100))
    until(lambda: topic.stats().publishing == "held")
    with embedded.raw() as client:
        partition = ProducePartitionProduceData(0, build_batch([b"x"], timestamps_ms=[TIME_MS]))
        request = ProduceRequest(None, 0, 500, [ProduceTopicProduceData("orders", [partition])])
        client.send(ApiKey.PRODUCE, 8, request)
    until(lambda: unanswered_failures(embedded) == 1)
    assert "has disconnected" in caplog.text and "orders-0" in caplog.text


def test_a_producer_that_waits_for_no_answer_is_slowed_down(embedded: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyreplog.kafka.ledgers.topics, "PENDING_BYTES_MAX", 100_000)
    topic = embedded.create()
    data = build_batch([bytes(10_000)], timestamps_ms=[TIME_MS])
    with embedded.raw() as client:
        for _ in range(200):
            send_without_answer(client, data)
        until(lambda: topic.offsets() == range(200))
    assert unanswered_failures(embedded) == 0


def test_a_producer_of_both_kinds_that_waits_for_no_answer_is_slowed_down(
    embedded: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another thread checks the compressed batch; the end of its work does not end the wait for the topic on ledgers."""
    monkeypatch.setattr(pyreplog.kafka.ledgers.topics, "PENDING_BYTES_MAX", 20_000)
    topic = embedded.create(quota_bytes=1)
    topic.create_subscription("idle", start="earliest")
    topic.publish(bytes(100))
    until(lambda: topic.stats().publishing == "held")
    embedded.brokers.create("events")
    data = {
        "events": build_batch([random.Random(1).randbytes(20_000)], timestamps_ms=[TIME_MS], codec=1),
        "orders": build_batch([bytes(15_000)], timestamps_ms=[TIME_MS]),
    }
    topic_data = [ProduceTopicProduceData(name, [ProducePartitionProduceData(0, data[name])]) for name in data]
    with embedded.raw() as client:
        client.send(ApiKey.PRODUCE, 8, ProduceRequest(None, 0, 500, topic_data))
        send_without_answer(client, data["orders"])
        assert client.is_closed()
    assert "no outcome within 0.5 s" in caplog.text
    assert "have no outcome yet" not in caplog.text, "the next request was handled"


def test_acks_that_kafka_does_not_know_are_refused(embedded: Topics) -> None:
    embedded.create()
    with embedded.raw() as client:
        answer = produce_raw(client, build_batch([b"x"], timestamps_ms=[1]), acks=2)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_a_cluster_is_no_argument(embedded: Topics) -> None:
    broker = embedded.brokers.brokers["1"]
    with pytest.raises(WrongTypeError, match=r"expected Cluster\.topics"):
        pyreplog.kafka.Server(broker, topics=embedded.cluster)  # type: ignore[arg-type]
