"""The listener alone: pipelining, answers in order, and clients that lie, stall, or say half of something."""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pyreplog.kafka.apis.api_versions import versions_of
from pyreplog.kafka.apis.registry import APIS
from pyreplog.kafka.wire.codec import request_codec
from pyreplog.kafka.wire.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsCreatableTopic,
    CreateTopicsCreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsDeleteTopicState,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    FetchRequest,
    InitProducerIdRequest,
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
from pyreplog.partition.metadata.topic_metadata import find_topic
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import Messages
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.record_batches.batches import build_batch, read_batch
from tests.kafka.kafka_brokers import KafkaBrokers, RawClient, encode_request, fetch, fetched, frame, produce
from tests.waiting import until

NOW_MS = 1_790_000_000_000


def batch(*values: bytes, **settings: Any) -> bytes:
    return build_batch(values, timestamps_ms=[NOW_MS + number for number in range(len(values))], **settings)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path) as cluster:
        cluster.start("1")
        cluster.create()
        yield cluster


@pytest.fixture
def client(brokers: KafkaBrokers) -> Iterator[RawClient]:
    with RawClient(brokers.servers["1"]) as raw:
        yield raw


def values_of(response: Any) -> list[bytes | None]:
    values: list[bytes | None] = []
    for data in fetched(response):
        start = 0
        while start < len(data):
            header, columns = read_batch(data, start=start)
            values += columns.values()
            start += header.size
    return values


# ---- versions --------------------------------------------------------------------------------------------------


def test_api_versions_are_answered_in_every_version(client: RawClient) -> None:
    for version in range(5):
        response = client.ask(ApiKey.API_VERSIONS, version, ApiVersionsRequest("raw", "1"))
        told = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        assert response.error_code == 0 and told == {key: versions_of(key) for key in {*APIS, ApiKey.API_VERSIONS}}


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient) -> None:
    client.socket.sendall(frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 77, 5, -1) + b"\0whatever follows"))
    response = client.answer(ApiKey.API_VERSIONS, 0, 5)
    assert response.error_code == 35 and len(response.api_keys) == len(APIS) + 1
    assert client.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest()).error_code == 0


@pytest.mark.parametrize(("key", "version"), [(ApiKey.PRODUCE, 0), (ApiKey.FETCH, 99), (7777, 0), (-1, -1)])
def test_another_api_closes_its_connection_only(
    brokers: KafkaBrokers, client: RawClient, key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(brokers.servers["1"]) as liar, caplog.at_level(logging.WARNING, "pyreplog.kafka"):
        liar.socket.sendall(frame(struct.pack(">hhih", key, version, 1, -1) + b"\0"))
        assert liar.is_closed()
    until(lambda: "UnsupportedRequestError" in caplog.text)
    assert client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0


REQUESTS: dict[int, Any] = {
    ApiKey.PRODUCE: produce(batch(b"x")),
    ApiKey.FETCH: fetch(0),
    ApiKey.LIST_OFFSETS: ListOffsetsRequest(topics=(ListOffsetsTopic("events", (ListOffsetsPartition(0, -1, -1),)),)),
    ApiKey.METADATA: MetadataRequest((MetadataRequestTopic(name="events"), MetadataRequestTopic(name="no such"))),
    ApiKey.CREATE_TOPICS: CreateTopicsRequest(
        (CreateTopicsCreatableTopic("made", -1, -1), CreateTopicsCreatableTopic("bad name", 1, 1)), 0
    ),
    ApiKey.DELETE_RECORDS: DeleteRecordsRequest((DeleteRecordsTopic("events", (DeleteRecordsPartition(0, 1),)),), 0),
    ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest(None),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRequest(
        topics=(OffsetForLeaderEpochOffsetForLeaderTopic("events", (OffsetForLeaderEpochOffsetForLeaderPartition(),)),)
    ),
    ApiKey.DESCRIBE_CONFIGS: DescribeConfigsRequest((DescribeConfigsResource(2, "events", None),), True),
    ApiKey.CREATE_PARTITIONS: CreatePartitionsRequest((CreatePartitionsTopic("events", 1, None),), 0),
}
"""Requests that make what a response can hold."""


def test_each_announced_version_is_answered(brokers: KafkaBrokers, client: RawClient) -> None:
    topic = brokers.brokers["1"].metadata.topic("events")
    assert topic is not None
    topic_id = bytes.fromhex(topic.topic_id)
    for key in APIS:
        first, last = versions_of(key)
        for version in range(3 if key == ApiKey.PRODUCE else first, last + 1):
            message = REQUESTS.get(key) or request_codec(key, version).schema.type()
            if key == ApiKey.FETCH and version > 12:
                message = message._replace(topics=(message.topics[0]._replace(topic="", topic_id=topic_id),))
            elif key == ApiKey.DELETE_TOPICS:
                message = (
                    message._replace(topics=(DeleteTopicsDeleteTopicState("none"),))
                    if version > 5
                    else message._replace(topic_names=("none",))
                )
            elif key == ApiKey.FIND_COORDINATOR and version > 3:
                message = message._replace(coordinator_keys=("a", "b"))
            elif key == ApiKey.METADATA and version == 0:
                message = MetadataRequest(())
            client.answer(key, version, client.send(key, version, message))


def test_metadata_by_topic_id_needs_version_12(brokers: KafkaBrokers, client: RawClient) -> None:
    """Versions 10 and 11 have ids, and responses whose names may not be null: Kafka answers INVALID_REQUEST."""
    topic = brokers.brokers["1"].metadata.topic("events")
    assert topic is not None
    known, unknown = bytes.fromhex(topic.topic_id), bytes(15) + b"x"
    request = MetadataRequest((MetadataRequestTopic(known, None), MetadataRequestTopic(unknown, None)))
    for version in (10, 11):
        answer = client.ask(ApiKey.METADATA, version, request)
        assert [(each.error_code, each.name) for each in answer.topics] == [(42, ""), (42, "")]
    answer = client.ask(ApiKey.METADATA, 12, request)
    assert [(each.error_code, each.name) for each in answer.topics] == [(0, "events"), (100, None)]


def test_topic_that_was_created_again_is_not_deleted_by_the_id_of_the_former_one(
    brokers: KafkaBrokers, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another listener deleted the former one, and this one does not know it yet."""
    topic = find_topic(brokers.store, "events")
    former = bytes(15) + b"x"
    monkeypatch.setattr(brokers.brokers["1"].metadata, "topic_name", {former.hex(): "events"}.get)
    request = DeleteTopicsRequest((DeleteTopicsDeleteTopicState(None, former),), timeout_ms=0)
    (result,) = client.ask(ApiKey.DELETE_TOPICS, 6, request).responses
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert find_topic(brokers.store, "events") == topic


def test_deletion_is_answered_though_others_create_the_topic_again_at_once(
    brokers: KafkaBrokers, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As clients do that still ask for the topic: the listener need not see that there is no topic of that name."""
    metadata = brokers.brokers["1"].metadata
    find, topic = metadata.topic, metadata.topic("events")
    assert topic is not None
    again = replace(topic, topic_id="1" * 32)
    monkeypatch.setattr(metadata, "topic", lambda name: find(name) or again)
    began_s = time.monotonic()
    request = DeleteTopicsRequest((), ("events",), timeout_ms=30_000)
    (result,) = client.ask(ApiKey.DELETE_TOPICS, 5, request).responses
    assert result.error_code == ErrorCode.NONE and metadata.topic_by_id(topic.topic_id) is None
    assert time.monotonic() - began_s < 20


def test_internal_topics_have_replicas_also_on_brokers_that_are_down(tmp_path: Path) -> None:
    """They keep the number of replicas with which they are made, when a client first needs them."""
    with KafkaBrokers(tmp_path, offsets_partitions=1, broker_settings={"transaction_state_partitions": 1}) as brokers:
        brokers.start("1", "2", "3")
        brokers.stop("2")
        brokers.stop("3")
        broker = brokers.brokers["1"]
        until(lambda: sum(not each.is_fenced for each in broker.metadata.brokers().values()) == 1)
        brokers.servers["1"].create_offsets_topic()
        broker.transactions.create_topic()
        for name in ("__consumer_offsets", "__transaction_state"):
            topic = find_topic(brokers.store, name)
            assert topic is not None and (topic.replication_factor, topic.min_isr) == (3, 1)
            assert brokers.leader(name) == "1"


# ---- order -----------------------------------------------------------------------------------------------------


def test_produces_append_at_once_and_their_answers_wait_behind_a_parked_fetch(
    brokers: KafkaBrokers, client: RawClient
) -> None:
    """The fetch waits for a record of another topic, which only comes when all produces are in the log."""
    brokers.create("others")
    parked = client.send(ApiKey.FETCH, 12, fetch(0, max_wait_ms=50_000, topic="others"))
    numbers = [client.send(ApiKey.PRODUCE, 9, produce(batch(b"%d" % number))) for number in range(20)]
    partition = brokers.brokers["1"].partition("events", 0)
    assert partition is not None
    until(lambda: partition.high_watermark.entry == 20)
    with RawClient(brokers.servers["1"]) as other:  # a fetch that waits holds up nobody else
        assert values_of(other.ask(ApiKey.FETCH, 12, fetch(0))) == [b"%d" % number for number in range(20)]
        other.ask(ApiKey.PRODUCE, 9, produce(batch(b"go on"), topic="others"))
    assert values_of(client.answer(ApiKey.FETCH, 12, parked)) == [b"go on"]
    for offset, number in enumerate(numbers):
        response = client.answer(ApiKey.PRODUCE, 9, number)
        assert response.responses[0].partition_responses[0].base_offset == offset


def test_requests_in_one_write_and_in_single_bytes(client: RawClient, seed: int) -> None:
    rng = random.Random(seed)
    requests = [
        encode_request(ApiKey.PRODUCE, 9, number, produce(batch(b"x" * rng.randrange(9)))) for number in range(30)
    ]
    data = b"".join(map(frame, requests))
    while data:
        size = rng.choice((1, 2, 3, 50, 500, 10_000))
        client.socket.sendall(data[:size])
        data = data[size:]
    for number in range(30):
        response = client.answer(ApiKey.PRODUCE, 9, number)
        assert response.responses[0].partition_responses[0].base_offset == number


def test_more_requests_than_may_be_on_their_way(tmp_path: Path) -> None:
    """The listener stops to read, and goes on when answers have left."""
    with KafkaBrokers(tmp_path, inflight_requests=3) as brokers:
        brokers.start("1")
        brokers.create()
        brokers.create("others")
        with RawClient(brokers.servers["1"]) as client, RawClient(brokers.servers["1"]) as other:
            parked = client.send(ApiKey.FETCH, 12, fetch(0, max_wait_ms=50_000, topic="others"))
            sent = [client.send(ApiKey.PRODUCE, 9, produce(batch(b"%d" % number))) for number in range(50)]
            partition = brokers.brokers["1"].partition("events", 0)
            assert partition is not None
            until(lambda: partition.high_watermark.entry == 2)
            other.ask(ApiKey.PRODUCE, 9, produce(batch(b"go on"), topic="others"))
            assert partition.high_watermark.entry >= 2
            client.answer(ApiKey.FETCH, 12, parked)
            for number in sent:
                client.answer(ApiKey.PRODUCE, 9, number)
            assert partition.high_watermark.entry == 50


# ---- acks=0 ----------------------------------------------------------------------------------------------------


def test_a_produce_without_acks_gets_no_answer(brokers: KafkaBrokers, client: RawClient) -> None:
    client.send(ApiKey.PRODUCE, 9, produce(batch(b"a"), acks=0))
    response = client.ask(ApiKey.PRODUCE, 9, produce(batch(b"b"), acks=1))
    assert response.responses[0].partition_responses[0].base_offset == 1


@pytest.mark.parametrize("bad", [b"", b"damaged" * 20, None])
def test_a_produce_without_acks_that_fails_closes_the_connection(
    brokers: KafkaBrokers, client: RawClient, bad: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(brokers.servers["1"]) as other, caplog.at_level(logging.WARNING, "pyreplog.kafka"):
        other.send(ApiKey.PRODUCE, 9, produce(bad, acks=0))  # type: ignore[arg-type]
        assert other.is_closed()
    until(lambda: "UnansweredProduceError: events-0" in caplog.text)
    assert client.ask(ApiKey.PRODUCE, 9, produce(batch(b"b"))).responses[0].partition_responses[0].base_offset == 0


# ---- hostile input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 7, (100 << 20) + 1, (1 << 31) - 1])
def test_a_lying_size_closes_its_connection_only(
    brokers: KafkaBrokers, client: RawClient, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(brokers.servers["1"]) as liar, caplog.at_level(logging.WARNING, "pyreplog.kafka"):
        liar.socket.sendall(struct.pack(">i", size))
        assert liar.is_closed()
    until(lambda: "InvalidRequestError: stream of requests: size" in caplog.text)
    assert client.ask(ApiKey.PRODUCE, 9, produce(batch(b"b"))).responses[0].partition_responses[0].error_code == 0


def test_randomly_damaged_requests_do_not_affect_other_clients(
    brokers: KafkaBrokers, client: RawClient, seed: int
) -> None:
    rng = random.Random(seed)
    good = [
        encode_request(ApiKey.PRODUCE, 9, 1, produce(batch(b"value"))),
        encode_request(ApiKey.FETCH, 12, 1, fetch(0)),
        encode_request(ApiKey.METADATA, 12, 1, MetadataRequest((MetadataRequestTopic(name="events"),))),
        encode_request(ApiKey.LIST_OFFSETS, 7, 1, ListOffsetsRequest(topics=(ListOffsetsTopic("events"),))),
    ]
    for _ in range(100):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        del data[rng.choice((len(data), rng.randrange(8, len(data)))) :]
        with RawClient(brokers.servers["1"]) as liar:
            liar.socket.sendall(frame(bytes(data)))
    assert client.ask(ApiKey.METADATA, 1, MetadataRequest(())).brokers[0].node_id == 1
    until(lambda: len(brokers.servers["1"].connections) == 1)


def test_half_a_request_ends_in_time(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, request_ms=300) as brokers:
        brokers.start("1")
        with RawClient(brokers.servers["1"]) as slow, RawClient(brokers.servers["1"]) as sibling:
            slow.socket.sendall(struct.pack(">i", 100) + b"half")
            began_s = time.monotonic()
            assert slow.is_closed() and time.monotonic() - began_s > 0.25
            assert sibling.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()).error_code == 0


def test_a_request_that_drips_ends_in_time(tmp_path: Path) -> None:
    """Each byte is progress, and the whole takes too long."""
    with KafkaBrokers(tmp_path, request_ms=300) as brokers:
        brokers.start("1")
        with RawClient(brokers.servers["1"]) as slow:
            slow.socket.sendall(struct.pack(">i", 1 << 20))
            slow.socket.settimeout(0.01)
            deadline_s = time.monotonic() + 60
            while time.monotonic() < deadline_s:
                try:
                    slow.socket.sendall(b"x")
                    if not slow.socket.recv(1):
                        return
                except TimeoutError:
                    continue
                except ConnectionError:
                    return
            pytest.fail("it dripped for ever")


def test_an_idle_connection_ends(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, idle_ms=300) as brokers:
        brokers.start("1")
        with RawClient(brokers.servers["1"]) as idle:
            idle.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            assert idle.is_closed()


def test_a_client_that_takes_no_answers_is_bounded_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It asks for 100 MB, and reads none of it: a few answers wait, and no more."""
    with KafkaBrokers(tmp_path, queued_bytes=1 << 20, stall_ms=1_000) as brokers:
        brokers.start("1")
        brokers.create()
        server = brokers.servers["1"]
        with RawClient(server) as writer:
            for _ in range(4):
                writer.ask(ApiKey.PRODUCE, 9, produce(batch(b"x" * 250_000)))
        with RawClient(server, SO_RCVBUF=4096) as slow, caplog.at_level(logging.WARNING, "pyreplog.kafka"):
            one = frame(encode_request(ApiKey.FETCH, 12, 1, fetch(0)))
            slow.socket.sendall(one * 100)
            most = 0
            deadline_s = time.monotonic() + 60
            while "SlowPeerError" not in caplog.text:
                assert time.monotonic() < deadline_s, "the client that reads nothing was not closed"
                for connection in list(server.connections):
                    most = max(most, connection.queued_bytes)
            assert 0 < most <= (1 << 20) + 1_100_000


def test_a_listener_serves_a_thousand_connections(brokers: KafkaBrokers) -> None:
    clients = [RawClient(brokers.servers["1"]) for _ in range(1000)]
    try:
        for client in clients:
            client.send(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
        for client in clients:
            assert client.answer(ApiKey.API_VERSIONS, 3, 1).error_code == 0
        assert len(brokers.servers["1"].connections) == 1000
    finally:
        for client in clients:
            client.socket.close()
    until(lambda: not brokers.servers["1"].connections)


def test_surplus_connections_are_closed(tmp_path: Path) -> None:
    with KafkaBrokers(tmp_path, connections=2) as brokers:
        brokers.start("1")
        with RawClient(brokers.servers["1"]) as a, RawClient(brokers.servers["1"]) as b:
            for client in (a, b):
                client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
            with RawClient(brokers.servers["1"]) as surplus:
                assert surplus.is_closed()
            for client in (a, b):
                client.ask(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())


# ---- produce and fetch -----------------------------------------------------------------------------------------


def test_a_partition_twice_in_a_produce_closes_the_connection(client: RawClient) -> None:
    """Otherwise one of the two batches would be lost, and both acknowledged."""
    partitions = tuple(ProducePartitionProduceData(0, batch(value)) for value in (b"a", b"b"))
    client.send(ApiKey.PRODUCE, 9, ProduceRequest(None, -1, 1000, (ProduceTopicProduceData("events", partitions),)))
    assert client.is_closed()


def test_zstd_needs_version_7(client: RawClient) -> None:
    data = produce(batch(b"a", codec=4))
    assert client.ask(ApiKey.PRODUCE, 6, data).responses[0].partition_responses[0].error_code == 76
    assert client.ask(ApiKey.PRODUCE, 7, data).responses[0].partition_responses[0].error_code == 0


def test_native_messages_are_fetched_as_record_batches(brokers: KafkaBrokers, client: RawClient, seed: int) -> None:
    """Mixed with batches, in many sizes, from any offset."""
    rng = random.Random(seed)
    replicas, name = brokers.brokers["1"].replicas, TopicPartition("events", 0)
    rows: list[tuple[bytes | None, bytes]] = []
    for _ in range(60):
        count = rng.choice((1, 2, 50))
        keys = [rng.choice((None, b"", b"key%d" % rng.randrange(100))) for _ in range(count)]
        values = [rng.randbytes(rng.choice((0, 1, 100, 5000))) for _ in range(count)]
        data = (
            Messages(values, keys, [(NOW_MS + rng.randrange(1000)) * 1000 for _ in range(count)])
            if rng.random() < 0.5
            else build_batch(values, keys=keys, timestamps_ms=[NOW_MS] * count)
        )
        replicas.append_records(1, {name: data}).result(60)
        rows += zip(keys, values, strict=True)
    for start in [0, *(rng.randrange(len(rows)) for _ in range(10))]:
        offset = start
        while offset < len(rows):
            wanted = fetch(offset)
            for data in fetched(client.ask(ApiKey.FETCH, 12, wanted)):
                at = 0
                while at < len(data):
                    header, columns = read_batch(data, start=at)
                    rest = rows[header.base_offset : header.base_offset + header.count]
                    assert list(zip(columns.keys(), columns.values(), strict=True)) == rest
                    offset, at = header.base_offset + header.count, at + header.size
            assert offset > wanted.topics[0].partitions[0].fetch_offset


def test_list_offsets_finds_offsets_by_time(client: RawClient, seed: int) -> None:
    rng = random.Random(seed)
    times: list[int] = []
    for _ in range(40):
        drawn = [NOW_MS + rng.randrange(10_000) for _ in range(rng.randint(1, 5))]
        client.ask(ApiKey.PRODUCE, 9, produce(build_batch([b"x"] * len(drawn), timestamps_ms=drawn)))
        times += drawn

    def ask(timestamp: int) -> tuple[int, int]:
        wanted = ListOffsetsTopic("events", (ListOffsetsPartition(0, -1, timestamp),))
        found = client.ask(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(topics=(wanted,))).topics[0].partitions[0]
        assert found.error_code == 0
        return found.offset, found.timestamp

    assert (ask(-1), ask(-2)) == ((len(times), -1), (0, -1))
    assert ask(-3) == (times.index(max(times)), max(times))
    for _ in range(20):
        timestamp = NOW_MS + rng.randrange(-10, 10_010)
        later = [(offset, time_ms) for offset, time_ms in enumerate(times) if time_ms >= timestamp]
        assert ask(timestamp) == (later[0] if later else (-1, -1))


def test_a_listener_declines_fetch_sessions(client: RawClient) -> None:
    client.ask(ApiKey.PRODUCE, 9, produce(build_batch([b"x"], timestamps_ms=[1])))
    for session_id, session_epoch in ((0, 0), (0, -1), (5, 0), (-1, -1)):
        response = client.ask(ApiKey.FETCH, 12, fetch(0, session_id=session_id, session_epoch=session_epoch))
        assert response.session_id == 0 and response.responses[0].partitions[0].records
    refused = client.ask(ApiKey.FETCH, 12, FetchRequest(session_id=5, session_epoch=1))
    assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_settings_that_are_not_supported_are_refused(brokers: KafkaBrokers, client: RawClient) -> None:
    settings = {"nonsense": "1", "cleanup.policy": "shrink", "min.insync.replicas": "many"}
    for name, value in settings.items():
        config = (CreateTopicsCreatableTopicConfig(name, value),)
        request = CreateTopicsRequest((CreateTopicsCreatableTopic("made", 1, 1, (), config),), 1000)
        assert client.ask(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code == 40, name
    assert brokers.brokers["1"].metadata.topic("made") is None


def test_a_producer_id_is_given_once(brokers: KafkaBrokers) -> None:
    brokers.start("2")
    given = []
    for name in ("1", "2", "1", "2"):
        with RawClient(brokers.servers[name]) as client:
            given += [client.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None)).producer_id for _ in range(5)]
    assert len({*given}) == 20 and min(given) >= 0


# ---- what it costs ---------------------------------------------------------------------------------------------


class CallCounter:
    """Counts the Python calls that handle what has arrived on a connection, by the function that handled a request."""

    def __init__(self, *handlers: str) -> None:
        self.counts: dict[str, list[int]] = {name: [] for name in handlers}
        self._current: dict[int, int] = {}  # by thread
        self._handler: dict[int, str] = {}

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        thread, name = threading.get_ident(), frame.f_code.co_qualname
        is_root = name == "KafkaConnection._on_events"
        if event == "call" and (is_root or thread in self._current):
            self._current[thread] = self._current.get(thread, 0) + 1
            if name in self.counts:
                self._handler[thread] = name
        elif event == "return" and is_root:
            count = self._current.pop(thread)
            if thread in self._handler:
                self.counts[self._handler.pop(thread)].append(count)


def test_the_calls_of_a_request_do_not_grow_with_its_records(tmp_path: Path) -> None:
    """Produce and fetch of one record, and of a thousand: the same Python calls, in the thread that handles them."""
    counter = CallCounter("handle_produce", "handle_fetch")
    threading.setprofile(counter.profile)
    try:
        with KafkaBrokers(tmp_path) as brokers:
            brokers.start("1")
            brokers.create()
            with RawClient(brokers.servers["1"]) as client:
                for records in (1, 1, 1000):
                    data = produce(batch(*[b"v"] * records), acks=1)
                    response = client.ask(ApiKey.PRODUCE, 9, data)
                    offset = response.responses[0].partition_responses[0].base_offset
                    assert len(values_of(client.ask(ApiKey.FETCH, 12, fetch(offset)))) == records
            until(lambda: all(len(counts) == 3 for counts in counter.counts.values()))
    finally:
        threading.setprofile(None)
    for _, one, thousand in counter.counts.values():  # the first one has made what is made once
        assert abs(one - thousand) <= 5 and thousand < 250, counter.counts
