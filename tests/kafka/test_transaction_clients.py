"""Transactions of stock clients: commits, aborts, zombies, time-outs, offsets, over three brokers that come and go."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from pyreplog.kafka.groups.group_coordinator import partition_of_group
from pyreplog.partition.transactions.transaction_metadata import TransactionState
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.thorough import IS_THOROUGH
from tests.waiting import PATIENCE_S, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its files with importlib.resources.read_text
    from kafka import KafkaProducer
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as PythonTopicPartition

PARTITIONS = 3
OFFSETS_PARTITIONS = 2


class Work:
    """Two topics, a group that reads the first one, and a transactional id that writes to the second one."""

    def __init__(self, brokers: KafkaBrokers, number: int) -> None:
        self.brokers = brokers
        self.orders, self.bills = f"orders-{number}", f"bills-{number}"
        self.group, self.transactional_id = f"billing-{number}", f"transfers-{number}"
        for topic in (self.orders, self.bills):
            brokers.create(topic, PARTITIONS, replication_factor=3, min_isr=2)

    def producer(self, transactional_id: str = "", **settings: Any) -> Producer:
        made = Producer({
            "bootstrap.servers": self.brokers.addresses, "retry.backoff.ms": 20, "linger.ms": 0,
            "transactional.id": transactional_id or self.transactional_id, **settings,
        })  # fmt: skip
        made.init_transactions(PATIENCE_S)
        return made

    def consumer(self, group: str = "", **settings: Any) -> Consumer:
        return Consumer({
            "bootstrap.servers": self.brokers.addresses, "group.id": group or self.group, "fetch.wait.max.ms": 50,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "isolation.level": "read_committed",
            **settings,
        })  # fmt: skip

    def read(self, **settings: Any) -> list[bytes]:
        """All values of the second topic up to where the isolation lets a consumer read, sorted."""
        reader = self.consumer("none", **settings)
        try:
            values: list[bytes] = []
            for number in range(PARTITIONS):
                name = TopicPartition(self.bills, number)
                _, end = reader.get_watermark_offsets(name, PATIENCE_S)  # of this isolation
                reader.assign([TopicPartition(self.bills, number, 0)])

                def is_done(name: TopicPartition = name, end: int = end) -> bool:
                    for message in reader.consume(1000, 0.05):
                        assert message.error() is None, message.error()
                        values.append(message.value() or b"")
                    return end == 0 or reader.position([name])[0].offset >= end

                until(is_done)
            return sorted(values)
        finally:
            reader.close()

    def await_values(self, values: list[bytes]) -> None:
        until(lambda: self.read() == sorted(values))

    def offsets(self) -> dict[int, int]:
        """The committed offsets of the group; without those that it has none of."""
        reader = self.consumer()
        try:
            names = [TopicPartition(self.orders, number) for number in range(PARTITIONS)]
            return {each.partition: each.offset for each in reader.committed(names, PATIENCE_S) if each.offset >= 0}
        finally:
            reader.close()

    def await_offsets(self, offsets: dict[int, int]) -> None:
        until(lambda: self.offsets() == offsets)

    def send(self, to: Producer, *values: bytes) -> None:
        for number, value in enumerate(values):
            to.produce(self.bills, value, partition=number % PARTITIONS)
        assert to.flush(PATIENCE_S) == 0

    def state(self) -> TransactionState | None:
        for broker in list(self.brokers.brokers.values()):
            metadata = broker.transactions.describe(self.transactional_id).metadata
            if metadata is not None:
                return metadata.state
        return None


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBrokers]:
    path: Path = tmp_path_factory.mktemp("brokers")
    settings = {"rebalance_delay_ms": 0, "offsets_partitions": OFFSETS_PARTITIONS}
    with KafkaBrokers(path, broker_settings={"transaction_state_partitions": 2}, **settings) as cluster:
        yield cluster.start("1", "2", "3")


@pytest.fixture
def work(brokers: KafkaBrokers, numbers: Iterator[int] = count()) -> Work:  # noqa: B008  of this process
    return Work(brokers, next(numbers))


def test_commits_show_and_aborts_do_not(work: Work) -> None:
    writer = work.producer()
    wanted: list[bytes] = []
    for number in range(3):
        values = [b"%d-%d" % (number, each) for each in range(6)]
        writer.begin_transaction()
        work.send(writer, *values)
        assert work.read() == sorted(wanted), "the transaction is open"
        if number % 2:
            writer.abort_transaction(PATIENCE_S)
        else:
            writer.commit_transaction(PATIENCE_S)
            wanted += values
        work.await_values(wanted)
    assert len(work.read(**{"isolation.level": "read_uncommitted"})) == 18


def test_a_new_producer_fences_the_one_before(work: Work) -> None:
    zombie = work.producer()
    zombie.begin_transaction()
    work.send(zombie, b"lost")
    heir = work.producer()
    heir.begin_transaction()
    work.send(heir, b"kept")
    with pytest.raises(KafkaException) as failure:
        zombie.produce(work.bills, b"late", partition=0)
        zombie.commit_transaction(PATIENCE_S)
    assert failure.value.args[0].fatal()
    heir.commit_transaction(PATIENCE_S)
    work.await_values([b"kept"])


def test_a_transaction_that_takes_too_long_is_aborted(work: Work) -> None:
    """The producer of the transaction is away; consumers read on behind the transaction."""
    slow = work.producer(**{"transaction.timeout.ms": 1_000})
    slow.begin_transaction()
    work.send(slow, b"slow")
    other = work.producer("others")
    other.begin_transaction()
    work.send(other, b"quick")
    other.commit_transaction(PATIENCE_S)
    until(lambda: work.state() is TransactionState.COMPLETE_ABORT)
    work.await_values([b"quick"])
    with pytest.raises(KafkaException):
        slow.commit_transaction(PATIENCE_S)


def test_offsets_of_a_transaction_count_when_it_commits(work: Work) -> None:
    reader = work.consumer()
    metadata = reader.consumer_group_metadata()
    writer = work.producer()
    try:
        for is_commit, offset in ((False, 5), (True, 7), (False, 9)):
            before = work.offsets()
            writer.begin_transaction()
            work.send(writer, b"%d" % offset)
            writer.send_offsets_to_transaction([TopicPartition(work.orders, 1, offset)], metadata, PATIENCE_S)
            if is_commit:
                writer.commit_transaction(PATIENCE_S)
                work.await_offsets({1: offset})
            else:
                writer.abort_transaction(PATIENCE_S)
                assert work.offsets() == before
        work.await_values([b"7"])
    finally:
        reader.close()


@pytest.mark.skipif(not IS_THOROUGH, reason="librdkafka 2.16 may wait for ever for a broker that left the metadata")
def test_offsets_of_a_transaction_outlive_the_coordinator_of_the_group(work: Work) -> None:
    """They are pending in its log, and the marker comes when another broker leads that."""
    reader = work.consumer()
    metadata = reader.consumer_group_metadata()
    writer = work.producer()
    try:
        for offset, is_commit in ((3, True), (4, False)):
            writer.begin_transaction()
            work.send(writer, b"%d" % offset)
            writer.send_offsets_to_transaction([TopicPartition(work.orders, 0, offset)], metadata, PATIENCE_S)
            name = work.brokers.leader("__consumer_offsets", partition_of_group(work.group, OFFSETS_PARTITIONS))
            work.brokers.stop(name)
            work.brokers.start(name)
            (writer.commit_transaction if is_commit else writer.abort_transaction)(PATIENCE_S)
            work.await_offsets({0: 3})
    finally:
        reader.close()


@pytest.mark.skipif(not IS_THOROUGH, reason="librdkafka 2.16 may wait for ever for a broker that left the metadata")
def test_records_are_moved_exactly_once_while_brokers_go(work: Work) -> None:
    """Consume, transform, produce: each broker in turn is stopped; what is read is written once."""
    total, moved = 60, 0
    source = Producer({"bootstrap.servers": work.brokers.addresses})
    for number in range(total):
        source.produce(work.orders, b"%d" % number, partition=number % PARTITIONS)
    assert source.flush(PATIENCE_S) == 0
    reader, writer = work.consumer(), work.producer()

    def move() -> bool:
        nonlocal moved
        messages = [message for message in reader.consume(10, 0.2) if message.error() is None]
        if messages:
            moved += len(messages)
            writer.begin_transaction()
            for message in messages:
                writer.produce(work.bills, b"bill " + (message.value() or b""), partition=message.partition() or 0)
            ends = {message.partition(): (message.offset() or 0) + 1 for message in messages}
            writer.send_offsets_to_transaction(
                [TopicPartition(work.orders, number or 0, offset) for number, offset in ends.items()],
                reader.consumer_group_metadata(), PATIENCE_S,
            )  # fmt: skip
            writer.commit_transaction(PATIENCE_S)
        return moved >= wanted

    reader.subscribe([work.orders])
    try:
        for goal, name in ((10, "1"), (30, "2"), (50, "3")):
            wanted = goal
            until(move)
            work.brokers.stop(name)
            work.brokers.start(name)
        wanted = total
        until(move)
    finally:
        reader.close()
    work.await_values([b"bill %d" % number for number in range(total)])
    assert sum(work.offsets().values()) == total


def test_aiokafka_commits_and_aborts_transactions(work: Work) -> None:
    async def transact() -> None:
        name = AIOTopicPartition(work.orders, 2)
        async with AIOKafkaProducer(
            bootstrap_servers=work.brokers.addresses, transactional_id=work.transactional_id
        ) as writer:
            async with writer.transaction():
                for number in range(PARTITIONS):
                    await writer.send_and_wait(work.bills, b"a%d" % number, partition=number)
                await writer.send_offsets_to_transaction({name: 11}, work.group)
            with pytest.raises(ZeroDivisionError):
                async with writer.transaction():
                    await writer.send_and_wait(work.bills, b"gone", partition=0)
                    await writer.send_offsets_to_transaction({name: 12}, work.group)
                    raise ZeroDivisionError

    asyncio.run(asyncio.wait_for(transact(), 2 * PATIENCE_S))
    work.await_values([b"a0", b"a1", b"a2"])
    work.await_offsets({2: 11})


def test_kafka_python_commits_and_aborts_transactions(work: Work) -> None:
    addresses = work.brokers.addresses.split(",")
    writer = KafkaProducer(bootstrap_servers=addresses, transactional_id=work.transactional_id)
    try:
        writer.init_transactions()
        for end, value, offset in ((writer.commit_transaction, b"kept", 21), (writer.abort_transaction, b"gone", 22)):
            writer.begin_transaction()
            for number in range(PARTITIONS):
                writer.send(work.bills, value, partition=number)
            offset_of = {PythonTopicPartition(work.orders, 0): OffsetAndMetadata(offset, "", -1)}
            writer.send_offsets_to_transaction(offset_of, work.group)
            end()
    finally:
        writer.close()
    work.await_values([b"kept"] * 3)
    work.await_offsets({0: 21})
