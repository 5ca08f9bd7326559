"""Kafka's own Java client against the listener, with its default settings: producers, groups, administration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.foreign.java_client import JavaClient, JavaClientError, Record
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBrokers]:
    path = tmp_path_factory.mktemp("brokers")
    with KafkaBrokers(path, rebalance_delay_ms=0, offsets_partitions=2) as cluster:
        yield cluster.start("1", "2")


@pytest.fixture(scope="module")
def java(brokers: KafkaBrokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    with JavaClient(brokers.addresses, tmp_path_factory.mktemp("java")) as client:
        yield client


def draw_records(seed: int, count: int, partitions: int = 2) -> list[Record]:
    """Records of each kind: no key, no value, empty ones, long ones, headers with the same name."""
    rng = random.Random(seed)
    return [
        Record(
            rng.choice((None, b"", rng.randbytes(10), b"text " * rng.randrange(1000))),
            rng.choice((None, b"", b"key %d" % number)),
            tuple(("h\u00e9" if rng.random() < 0.5 else "i", rng.randbytes(rng.randrange(4))) for _ in range(rng.randrange(3))),
            rng.randrange(partitions),
            1_700_000_000_000 + rng.randrange(1000),
        )
        for number in range(count)
    ]  # fmt: skip


def check_equal(received: list[Record], sent: list[Record], places: list[tuple[int, int]]) -> None:
    """Each record was stored once, at the offset that its producer was told; partitions are read in their order."""
    stored = {
        place: record._replace(partition=place[0], offset=place[1]) for record, place in zip(sent, places, strict=True)
    }
    assert len(stored) == len(received) == len(sent)
    assert {(record.partition, record.offset): record for record in received} == stored
    for partition in {record.partition for record in received}:
        offsets = [record.offset for record in received if record.partition == partition]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_a_default_producer_reach_a_group(
    brokers: KafkaBrokers, java: JavaClient, codec: str, seed: int
) -> None:
    """The default is an idempotent producer with acks=all."""
    topic = f"codec-{codec}"
    brokers.create(topic, 2, replication_factor=2, min_isr=2)
    records = draw_records(seed, 400)
    places = java.produce(topic, records, compression_type=codec)
    check_equal(java.consume(topic, f"group-{codec}", len(records)), records, places)


@pytest.mark.parametrize("acks", ["0", "1"])
def test_the_java_client_produces_without_idempotence(
    brokers: KafkaBrokers, java: JavaClient, acks: str, seed: int
) -> None:
    brokers.create(f"acks-{acks}", 2)
    records = draw_records(seed, 50)
    places = java.produce(f"acks-{acks}", records, acks=acks, enable_idempotence="false")
    received = java.consume(f"acks-{acks}", f"acks-{acks}", len(records))
    if acks == "1":
        check_equal(received, records, places)
    else:
        assert sorted(map(_content, received)) == sorted(map(_content, records))


def _content(record: Record) -> tuple[object, ...]:
    return str(record.value), str(record.key), record.headers, record.partition, record.time_ms


def test_a_group_of_java_goes_on_where_it_was(brokers: KafkaBrokers, java: JavaClient, seed: int) -> None:
    brokers.create("resumed", 1)
    records = draw_records(seed, 20, partitions=1)
    java.produce("resumed", records)
    first = java.consume("resumed", "resuming", 8, max_poll_records=4)
    assert java.call("group-offsets", "resuming") == ["resumed-0 8"]
    second = java.consume("resumed", "resuming", 12, max_poll_records=4)
    assert [record.offset for record in first + second] == list(range(20))
    assert list(map(_content, first + second)) == list(map(_content, records))


@pytest.mark.parametrize("assignor", ["RoundRobinAssignor", "CooperativeStickyAssignor"])
def test_the_java_client_consumes_with_each_assignor(
    brokers: KafkaBrokers, java: JavaClient, assignor: str, seed: int
) -> None:
    brokers.create(assignor, 3)
    records = draw_records(seed, 30, partitions=3)
    places = java.produce(assignor, records)
    name = f"org.apache.kafka.clients.consumer.{assignor}"
    settings = {"partition_assignment_strategy": name, "group_instance_id": "static"}
    check_equal(java.consume(assignor, assignor, 30, **settings), records, places)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_consumer_group_of_java(brokers: KafkaBrokers, java: JavaClient, assignor: str, seed: int) -> None:
    """KIP-848: the broker assigns."""
    topic = f"modern-{assignor}"
    brokers.create(topic, 3)
    records = draw_records(seed, 30, 3)
    places = java.produce(topic, records)
    settings = {"group_protocol": "consumer", "group_remote_assignor": assignor, "group_instance_id": "static"}
    check_equal(java.consume(topic, topic, 30, **settings), records, places)
    assert any(line.startswith(f"{topic} ") for line in java.call("list-groups"))


def test_the_java_client_administers_topics(brokers: KafkaBrokers, java: JavaClient) -> None:
    java.call("create-topic", "orders", 2, 2, "retention.ms=60000", "min.insync.replicas=2")
    with pytest.raises(JavaClientError, match="TopicExistsException"):
        java.call("create-topic", "orders", 2, 2)
    for name, value in (("no.such", "1"), ("max.message.bytes", "-7")):
        with pytest.raises(JavaClientError, match="InvalidConfigurationException"):
            java.call("create-topic", "others", 1, 1, f"{name}={value}")
    with pytest.raises(JavaClientError, match="InvalidReplicationFactorException"):
        java.call("create-topic", "others", 1, 3)
    java.call("create-topic", "defaults", -1, -1)

    def described() -> list[str]:
        """By any broker, of which each learns by its watch of the metadata store what another one has done."""
        try:
            return java.call("describe-topic", "orders")
        except JavaClientError as error:
            assert "UnknownTopicOrPartitionException" in str(error)
            return []

    def in_sync(count: int) -> bool:
        lines = described()
        return len(lines) == count and all("isr=[1, 2]" in line or "isr=[2, 1]" in line for line in lines)

    until(lambda: in_sync(2))
    until(lambda: {"orders", "defaults"} <= {*java.call("list-topics")})
    assert "others" not in java.call("list-topics")
    java.call("add-partitions", "orders", 3)
    until(lambda: in_sync(3))
    java.call("delete-topic", "orders")
    until(lambda: not described())


def test_the_java_client_changes_settings(brokers: KafkaBrokers, java: JavaClient) -> None:
    java.call("create-topic", "settings", 1, 1, "retention.ms=60000")

    def settings() -> set[str]:
        try:
            return {*java.call("describe-configs", "TOPIC", "settings")}
        except JavaClientError as error:  # of a broker that does not know the topic yet
            assert "UnknownTopicOrPartitionException" in str(error)
            return set()

    def is_too_large() -> bool:
        try:
            java.produce("settings", [Record(b"x" * 7000)])
        except JavaClientError as error:
            assert "RecordTooLargeException" in str(error)
            return True
        return False

    until(lambda: {"retention.ms=60000 DYNAMIC_TOPIC_CONFIG", "min.insync.replicas=1 DEFAULT_CONFIG"} <= settings())
    assert not is_too_large()
    java.call("alter-config", "settings", "max.message.bytes", 6000)
    until(lambda: "max.message.bytes=6000 DYNAMIC_TOPIC_CONFIG" in settings())
    until(is_too_large)
    java.call("alter-config", "settings", "max.message.bytes")
    until(lambda: any(line.startswith("max.message.bytes=") and "DEFAULT" in line for line in settings()))
    assert java.call("describe-configs", "BROKER", "1")


def test_java_describes_the_cluster(brokers: KafkaBrokers, java: JavaClient) -> None:
    cluster_id, controller, *nodes = java.call("describe-cluster")
    addresses = [server.advertised for server in brokers.servers.values()]
    assert nodes == [f"1 {addresses[0]}", f"2 {addresses[1]}"]
    assert len(cluster_id) == 22 and controller in ("1", "2")


def test_java_lists_offsets_and_deletes_records(brokers: KafkaBrokers, java: JavaClient) -> None:
    brokers.create("offsets", 1)
    times_ms = [1_700_000_000_000 + step for step in (0, 10, 30, 20)]
    java.produce("offsets", [Record(b"x", partition=0, time_ms=time_ms) for time_ms in times_ms])
    asked = {
        "earliest": "0 -1", "latest": "4 -1", "max-timestamp": f"2 {times_ms[2]}", str(times_ms[0] + 5): f"1 {times_ms[1]}",
        str(times_ms[2] + 1): "-1 -1",
    }  # fmt: skip
    for wanted, found in asked.items():
        assert java.call("list-offsets", "offsets", 0, wanted) == [found], wanted
    assert java.call("delete-records", "offsets", 0, 3) == ["3"]
    assert java.call("list-offsets", "offsets", 0, "earliest") == ["3 -1"]
    assert [record.offset for record in java.consume("offsets", "late", 1)] == [3]
    with pytest.raises(JavaClientError, match="OffsetOutOfRangeException"):
        java.call("delete-records", "offsets", 0, 5)


def test_the_java_client_administers_groups(brokers: KafkaBrokers, java: JavaClient) -> None:
    brokers.create("read", 1)
    java.produce("read", [Record(b"%d" % number, partition=0) for number in range(10)])
    java.consume("read", "readers", 10)
    assert "readers Empty" in java.call("list-groups")
    assert java.call("describe-group", "readers")[0].startswith("Empty")
    java.call("reset-offset", "read", 0, "readers", 4)
    assert java.call("group-offsets", "readers") == ["read-0 4"]
    assert [record.offset for record in java.consume("read", "readers", 6)] == list(range(4, 10))
    java.call("delete-group", "readers")
    assert not any(line.startswith("readers ") for line in java.call("list-groups"))
    with pytest.raises(JavaClientError, match="GroupIdNotFoundException"):
        java.call("delete-group", "readers")


def test_a_member_that_works_is_described(
    brokers: KafkaBrokers, java: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And nobody resets the offsets of a group that has members."""
    brokers.create("busy", 1)
    folder = tmp_path_factory.mktemp("member")
    with JavaClient(brokers.addresses, folder) as member, ThreadPoolExecutor(1) as pool:
        consuming = pool.submit(member.consume, "busy", "workers", 1)

        def described() -> list[str]:
            """Before the first member joins, there is no such group."""
            if not any(line.startswith("workers ") for line in java.call("list-groups")):
                return []
            return java.call("describe-group", "workers")

        lines = until(lambda: [line for line in described() if line.endswith("[busy-0]")])
        assert len(lines) == 1 and described()[0] == "Stable range"
        with pytest.raises(JavaClientError, match="UnknownMemberIdException"):
            java.call("reset-offset", "busy", 0, "workers", 0)
        java.produce("busy", [Record(b"done", partition=0)])
        assert [record.value for record in consuming.result(PATIENCE_S)] == [b"done"]
