"""Consumer groups of KIP-848 with librdkafka: members share and take over, static members come back, a coordinator
goes, and the two protocols do not mix."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from pyreplog.kafka.groups.group_requests import GroupState
from pyreplog.kafka.metrics import kafka_metrics
from pyreplog.partition.protocol.error_codes import ErrorCode
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.kafka.test_confluent import produce_all
from tests.kafka.test_group_clients import take
from tests.waiting import PATIENCE_S, until

VALUES = [b"%d" % number for number in range(100)]
SETTINGS: dict[str, Any] = {
    "rebalance_delay_ms": 0, "offsets_partitions": 4, "consumer_heartbeat_interval_ms": 100,
    "consumer_session_timeout_ms": 10_000,
}  # fmt: skip


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KafkaBrokers]:
    with KafkaBrokers(tmp_path, **SETTINGS) as cluster:
        cluster.start("1")
        cluster.create(partitions=4)
        yield cluster


def member(brokers: KafkaBrokers, group: str = "billing", protocol: str = "consumer", **settings: Any) -> Consumer:
    if protocol == "classic":
        settings = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200, **settings}
    consumer = Consumer({
        "bootstrap.servers": brokers.addresses, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "group.protocol": protocol, "reconnect.backoff.max.ms": 200, **settings,
    })  # fmt: skip
    consumer.subscribe(["events"])
    return consumer


def poll_until_shared(consumers: Sequence[Consumer], sizes: Sequence[int]) -> None:
    def is_shared() -> bool:
        for consumer in consumers:
            consumer.poll(0.02)
        assignments = [consumer.assignment() for consumer in consumers]
        owned = {(each.topic, each.partition) for assignment in assignments for each in assignment}
        found = sorted(map(len, assignments))
        return found == sorted(sizes) and len(owned) == sum(sizes)

    until(is_shared)


def test_members_share_and_take_over(brokers: KafkaBrokers) -> None:
    first = member(brokers)
    poll_until_shared([first], [4])
    second, third = member(brokers), member(brokers, **{"group.remote.assignor": "range"})
    poll_until_shared([first, second, third], [1, 1, 2])
    third.close()
    poll_until_shared([first, second], [2, 2])
    first.close()
    poll_until_shared([second], [4])
    second.close()


def test_a_member_subscribes_by_a_regular_expression(brokers: KafkaBrokers) -> None:
    """The coordinator matches it; a topic that comes later is assigned as well."""
    consumer = member(brokers)
    consumer.subscribe(["^eve.*"])
    poll_until_shared([consumer], [4])
    brokers.create("evenings", partitions=2)
    brokers.create("mornings", partitions=2)
    poll_until_shared([consumer], [6])
    assert {each.topic for each in consumer.assignment()} == {"events", "evenings"}
    consumer.close()


def test_offsets_are_committed_and_found_again(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)
    first = member(brokers)
    taken = take(first, 60)
    first.commit(asynchronous=False)
    first.close()
    second = member(brokers)
    assert sorted(taken + take(second, 40)) == sorted(VALUES)
    second.close()


def test_librdkafka_administers_groups_of_both_protocols(brokers: KafkaBrokers) -> None:
    produce_all(brokers, VALUES)
    consumer = member(brokers)
    take(consumer, 10)
    consumer.commit(asynchronous=False)
    other = member(brokers, "classic", "classic")
    take(other, 10)
    admin = AdminClient({"bootstrap.servers": brokers.addresses})
    listed = admin.list_consumer_groups(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert {group.group_id: group.type for group in listed.valid} == {
        "billing": ConsumerGroupType.CONSUMER, "classic": ConsumerGroupType.CLASSIC,
    }  # fmt: skip
    futures = admin.describe_consumer_groups(["billing", "classic"], request_timeout=PATIENCE_S)
    described = {name: future.result(PATIENCE_S) for name, future in futures.items()}
    assert described["billing"].type is ConsumerGroupType.CONSUMER and described["billing"].state.name == "STABLE"
    (only,) = described["billing"].members
    assert len(only.assignment.topic_partitions) == 4 and only.host == "/127.0.0.1"
    assert described["classic"].type is ConsumerGroupType.CLASSIC
    samples = {metric.name: metric.samples for metric in kafka_metrics(brokers.servers["1"])}
    assert [value for labels, value in samples["pyreplog_kafka_group_members"]] == [1, 1]
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["billing"], request_timeout=PATIENCE_S)["billing"].result(PATIENCE_S)
    consumer.close(), other.close()
    until(lambda: is_deleted(admin, "billing"))


def is_deleted(admin: AdminClient, group: str) -> bool:
    """A member that has left is gone when the log says so."""
    future = admin.delete_consumer_groups([group], request_timeout=PATIENCE_S)[group]
    return future.exception(PATIENCE_S) is None


def test_a_static_member_comes_back_to_what_it_had(brokers: KafkaBrokers) -> None:
    first, second = member(brokers, **{"group.instance.id": "i"}), member(brokers)
    poll_until_shared([first, second], [2, 2])
    had, kept = first.assignment(), second.assignment()
    first.close()
    described = brokers.servers["1"].groups.describe_consumer_group
    until(lambda: -2 in [each.member_epoch for each in described("billing").result(PATIENCE_S).members])
    again = member(brokers, **{"group.instance.id": "i"})
    poll_until_shared([again, second], [2, 2])
    assert {each.partition for each in again.assignment()} == {each.partition for each in had}
    assert {each.partition for each in second.assignment()} == {each.partition for each in kept}
    again.close(), second.close()


def test_a_consumer_group_survives_the_loss_of_its_coordinator(tmp_path: Path) -> None:
    """The next one has the members, their epochs and their offsets: nobody joins again, and nothing is read twice."""
    with KafkaBrokers(tmp_path, **{**SETTINGS, "offsets_partitions": 1}) as brokers:
        brokers.start("1", "2", "3")
        brokers.create(partitions=4, replication_factor=3)
        first, second = member(brokers), member(brokers)
        poll_until_shared([first, second], [2, 2])
        had = [sorted(each.partition for each in consumer.assignment()) for consumer in (first, second)]
        produce_all(brokers, VALUES)
        read = take_from([first, second], 100)
        for consumer in (first, second):
            commit_all(consumer)
        brokers.stop(brokers.leader("__consumer_offsets"))
        admin = AdminClient({"bootstrap.servers": brokers.addresses})
        until(lambda: count_assigned(admin, [first, second]) == 4)
        assert [sorted(each.partition for each in consumer.assignment()) for consumer in (first, second)] == had
        produce_all(brokers, VALUES)
        read += take_from([first, second], 100)
        assert sorted(read) == sorted(VALUES * 2)
        for consumer in (first, second):
            commit_all(consumer)
            consumer.close()


def commit_all(consumer: Consumer) -> None:
    """Commit what it has read: the coordinator must know its epoch. It may raise that until the next heartbeat."""

    def commit() -> bool:
        offsets = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
        try:
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            assert error.args[0].code() == ErrorCode.STALE_MEMBER_EPOCH
            consumer.poll(0)
            return False
        return True

    until(commit)


def take_from(consumers: Sequence[Consumer], count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"{len(values)} of {count}"
        for consumer in consumers:
            messages = consumer.consume(count - len(values), 0.05)
            values += [message.value() or b"" for message in messages if message.error() is None]
    return values


def count_assigned(admin: AdminClient, consumers: Sequence[Consumer]) -> int:
    """Number of partitions that the group's members have, as the coordinator tells; the members go on."""
    for consumer in consumers:
        consumer.poll(0.02)
    try:
        group = admin.describe_consumer_groups(["billing"], request_timeout=1.0)["billing"].result(PATIENCE_S)
    except Exception:
        return 0
    return sum(len(each.assignment.topic_partitions) for each in group.members)


def test_a_group_has_members_of_one_protocol(brokers: KafkaBrokers) -> None:
    """A member of the other protocol is refused; when all have left, it takes the group and its offsets over."""
    produce_all(brokers, VALUES)
    classic = member(brokers, protocol="classic")
    taken = take(classic, 30)
    classic.commit(asynchronous=False)
    modern = member(brokers)
    assert "group id" in error_of(modern)
    modern.close(), classic.close()
    until_empty(brokers)
    modern = member(brokers)
    taken += take(modern, 30)
    modern.commit(asynchronous=False)
    classic = member(brokers, protocol="classic")
    assert "nconsistent group protocol" in error_of(classic)
    classic.close(), modern.close()
    until_empty(brokers)
    classic = member(brokers, protocol="classic")
    assert sorted(taken + take(classic, 40)) == sorted(VALUES)
    classic.close()


def until_empty(brokers: KafkaBrokers) -> None:
    """Members that closed may leave a moment later."""
    groups = brokers.servers["1"].groups
    until(lambda: all(each.state is GroupState.EMPTY for each in groups.list_groups().result(PATIENCE_S).groups))


def error_of(consumer: Consumer) -> str:
    """What a consumer is told; a fatal error has another code, and the same text."""

    def look() -> str | None:
        message = consumer.poll(0.1)
        error = None if message is None else message.error()
        return None if error is None else error.str()

    return until(look)


def test_offsets_of_a_group_can_be_altered_only_while_it_is_empty(brokers: KafkaBrokers) -> None:
    consumer = member(brokers)
    poll_until_shared([consumer], [4])
    admin = AdminClient({"bootstrap.servers": brokers.addresses})
    wanted = ConsumerGroupTopicPartitions("billing", [TopicPartition("events", 0, 7)])
    with pytest.raises(Exception, match="UNKNOWN_MEMBER_ID"):
        alter(admin, wanted)
    consumer.close()
    until_empty(brokers)
    alter(admin, wanted)
    asked = ConsumerGroupTopicPartitions("billing", [TopicPartition("events", 0)])
    (future,) = admin.list_consumer_group_offsets([asked]).values()
    assert future.result(PATIENCE_S).topic_partitions[0].offset == 7


def alter(admin: AdminClient, wanted: ConsumerGroupTopicPartitions) -> None:
    (future,) = admin.alter_consumer_group_offsets([wanted]).values()
    error = future.result(PATIENCE_S).topic_partitions[0].error
    if error is not None:
        raise RuntimeError(error.name())
