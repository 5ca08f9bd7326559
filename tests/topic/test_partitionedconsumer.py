"""Consumers of partitioned topics: all partitions as one, or one partition where that matters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog.cluster import Cluster
from pyreplog.errors import ClosedError, InvalidArgumentError, ReplogError, WrongTypeError
from pyreplog.topic.client.partitions.partitioned_consumer import PartitionConsumer, PartitionedConsumer
from pyreplog.topic.model.positions import PartitionOffset
from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
from tests.topic.partitioning import PATIENCE_S, PLAIN, key_of, receive, until

PARTITIONS = 4
KEYS = [key_of(partition, PARTITIONS) for partition in range(PARTITIONS)]


@pytest.fixture
def topic(tmp_path: Any) -> Iterator[PartitionedTopic]:
    with Cluster.embedded(tmp_path / "c", bookies=1) as cluster:
        yield cluster.topic("t", partitions=PARTITIONS, **PLAIN)


def publish(topic: PartitionedTopic, count: int, partitions: int = PARTITIONS) -> list[bytes]:
    """Publish to the first partitions in turn; return all values."""
    values = [b"%05d" % at for at in range(count)]
    topic.publish_batch(values, [KEYS[at % partitions] for at in range(count)])
    return values


def backlog(topic: PartitionedTopic, subscription: str = "s") -> list[int]:
    """Return the backlog by partition."""
    return [part.subscriptions[0].backlog_messages for part in topic.stats().parts.values()]


# ---- receiving -------------------------------------------------------------------------------------------------


def test_all_partitions_are_received_as_one_and_what_is_acknowledged_stays_so(topic: PartitionedTopic) -> None:
    topic.create_subscription("s", start="earliest")
    values = publish(topic, 400)
    with topic.subscribe("s") as consumer:
        messages = receive(consumer, 400)
        assert sorted(message.value for message in messages) == values
        for partition in range(PARTITIONS):
            of_it = [message for message in messages if message.partition == partition]
            assert [message.offset for message in of_it] == list(range(100)), "in order"
            assert {message.key for message in of_it} == {KEYS[partition]}
        for message in messages[:100]:
            consumer.acknowledge(message)
        consumer.acknowledge(messages[100:200])
        consumer.acknowledge(PartitionOffset(message.partition, message.offset) for message in messages[200:300])
        for message in messages[300:399]:
            consumer.acknowledge(PartitionOffset(message.partition, message.offset))
        consumer.flush()
        assert sum(backlog(topic)) == 1
    with topic.subscribe("s") as consumer:
        assert [message.value for message in receive(consumer, 1)] == [messages[399].value]
        assert consumer.receive(timeout=0) is None


def test_batches_are_of_one_partition_and_acknowledged_as_such(topic: PartitionedTopic) -> None:
    with topic.subscribe("s", start="earliest") as consumer:
        values = publish(topic, 100)
        message_batches: list[MessageBatch] = []
        for batch in consumer.batches(timeout=PATIENCE_S):
            assert set(batch.keys()) == {KEYS[batch.partition]}
            assert batch.slice(0, 1).partition == batch[0].partition == batch.partition
            consumer.acknowledge(batch)
            message_batches.append(batch)
            if sum(map(len, message_batches)) == 100:
                break
        assert sorted(value for batch in message_batches for value in batch.values()) == values
        consumer.flush(PATIENCE_S)
        assert backlog(topic) == [0] * PARTITIONS
        assert list(consumer.batches(timeout=0)) == []


def test_several_at_once_are_those_that_are_there(topic: PartitionedTopic) -> None:
    with topic.subscribe("s") as consumer:
        assert consumer.receive(max_messages=5, timeout=0) == []
        publish(topic, 10)
        messages: list[Message] = []
        while len(messages) < 10:
            messages += consumer.receive(max_messages=7, timeout=PATIENCE_S)
        assert len({(message.partition, message.offset) for message in messages}) == 10
        with pytest.raises(InvalidArgumentError, match="max_messages"):
            consumer.receive(max_messages=0)


def test_a_long_backlog_of_one_partition_keeps_no_other_waiting(topic: PartitionedTopic) -> None:
    topic.create_subscription("s", start="earliest")
    for _ in range(50):  # 50 entries
        topic.publish_batch([b"many"] * 10, [KEYS[0]] * 10)
    topic.publish(b"one", KEYS[1])
    with topic.subscribe("s", queue=PARTITIONS * 40) as consumer:
        until(lambda: consumer._parts[1].waiting and consumer._parts[0].waiting)
        first = [batch.partition for batch in (consumer.receive_batch(0), consumer.receive_batch(0)) if batch]
        assert sorted(first) == [0, 1]
        assert len(receive(consumer, 460)) == 460


def test_partitions_with_much_take_turns() -> None:
    """While each partition has messages, one delivery of each is returned in turn."""
    partitioned_consumer = PartitionedConsumer("t", "s", "c", wait=lambda future, timeout=None: future.result(timeout))
    parts = [
        PartitionConsumer(number, "t", "s", "c", queue=10, on_change=partitioned_consumer.changed)
        for number in range(3)
    ]
    for part, count in zip(parts, (4, 2, 3), strict=True):
        for _ in range(count):
            partitioned_consumer.changed(part)
    order = []
    while (part := partitioned_consumer._take_ready()) is not None:
        order.append(part.partition)
    assert order == [0, 1, 2, 0, 1, 2, 0, 2, 0]
    for handle in (partitioned_consumer, *parts):
        handle.close()


def test_a_partition_by_itself_is_a_plain_topic(topic: PartitionedTopic) -> None:
    part = topic.partition(2)
    part.publish(b"v")
    with part.subscribe("s", start="earliest") as plain:
        message = plain.receive(timeout=PATIENCE_S)
        assert message is not None and message.partition == -1
        with topic.subscribe("other") as consumer, pytest.raises(InvalidArgumentError, match="found -1"):
            consumer.acknowledge(message)


def test_acknowledge_of_an_invalid_position_raises(topic: PartitionedTopic) -> None:
    with topic.subscribe("s") as consumer:
        with pytest.raises(InvalidArgumentError, match="expected one of"):
            consumer.acknowledge(PartitionOffset(PARTITIONS, 0))
        for strange in (0, [0], b"x", None):
            with pytest.raises(WrongTypeError):
                consumer.acknowledge(strange)  # type: ignore[arg-type]
        with pytest.raises(WrongTypeError):
            consumer.acknowledge_cumulative(3)  # type: ignore[arg-type]


def test_nothing_can_be_acknowledged_and_refused(topic: PartitionedTopic) -> None:
    topic.publish(b"v", key=b"k")
    with topic.subscribe("s", start="earliest") as consumer:
        consumer.acknowledge([])
        consumer.acknowledge(iter([]))
        consumer.nack([])
        consumer.flush()
        (message,) = receive(consumer, 1)
        consumer.acknowledge([message])
    for call in (consumer.acknowledge, consumer.nack):
        with pytest.raises(ClosedError):
            call([])


# ---- going back ------------------------------------------------------------------------------------------------


def test_negatively_acknowledged_messages_are_delivered_again(topic: PartitionedTopic) -> None:
    with topic.subscribe("s", type="shared", nack_min_ms=0) as consumer:
        publish(topic, 8)
        messages = receive(consumer, 8)
        consumer.acknowledge(messages[:6])
        consumer.nack(messages[6])
        consumer.nack([messages[7]], delay=0.0)
        again = receive(consumer, 2)
        wanted = {(message.partition, message.offset, 1) for message in messages[6:]}
        assert {(message.partition, message.offset, message.redelivered) for message in again} == wanted
        consumer.redeliver()
        assert len(receive(consumer, 2)) == 2


def test_cumulative_acknowledgements_are_of_one_partition(topic: PartitionedTopic) -> None:
    with topic.subscribe("s", start="earliest") as consumer:
        publish(topic, 40)
        messages = receive(consumer, 40)
        consumer.acknowledge_cumulative(next(item for item in messages if (item.partition, item.offset) == (1, 6)))
        consumer.acknowledge_cumulative(PartitionOffset(2, 9))
        consumer.flush()
        assert backlog(topic) == [10, 3, 0, 10]


def test_consumer_calls_that_block_do_nothing_in_an_event_loop(topic: PartitionedTopic) -> None:
    with topic.subscribe("s", start="earliest") as consumer:
        publish(topic, 40)
        messages = receive(consumer, 40)
        consumer.acknowledge_cumulative(PartitionOffset(2, 9))
        calls = [
            lambda: consumer.acknowledge_cumulative(messages[0]),
            lambda: consumer.acknowledge_cumulative(PartitionOffset(1, 9)),
            lambda: consumer.seek("latest"),
            consumer.flush,
            consumer.receive,
            consumer.receive_batch,
        ]

        async def call_each() -> None:
            for call in calls:
                with pytest.raises(InvalidArgumentError, match="would block"):
                    call()

        asyncio.run(call_each())
        consumer.flush()
        assert backlog(topic) == [10, 10, 0, 10]


def test_seeking_moves_one_partition_or_all(topic: PartitionedTopic) -> None:
    with topic.subscribe("s", start="earliest") as consumer:
        publish(topic, 40)
        assert consumer.receive(timeout=PATIENCE_S) is not None  # the rest of its batch waits in the consumer
        assert consumer.seek("latest") == [PartitionOffset(partition, 10) for partition in range(PARTITIONS)]
        assert consumer.receive(timeout=0) is None
        assert consumer.seek(PartitionOffset(2, 7)) == [PartitionOffset(2, 7)]
        assert [(message.partition, message.offset) for message in receive(consumer, 3)] == [(2, 7), (2, 8), (2, 9)]
        assert consumer.receive(timeout=0) is None
        consumer.seek(datetime.now(UTC) - timedelta(days=1))
        assert len(receive(consumer, 40)) == 40
        consumer.seek("earliest")
        assert len(receive(consumer, 40)) == 40
        with pytest.raises(WrongTypeError, match="PartitionOffset"):
            consumer.seek(3)  # type: ignore[arg-type]


# ---- threads and coroutines ------------------------------------------------------------------------------------


def test_threads_that_receive_share_messages(topic: PartitionedTopic) -> None:
    rows: list[tuple[int, int]] = []

    def work() -> None:
        while (message := consumer.receive(timeout=PATIENCE_S)) is not None:
            place = (message.partition, message.offset)
            if message.value == b"end":
                return
            rows.append(place)
            consumer.acknowledge(PartitionOffset(*place))

    with topic.subscribe("s", type="shared") as consumer:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            publish(topic, 40)
        until(lambda: len(rows) == 1200)
        topic.publish_batch([b"end"] * 3)  # one delivery, for all waiting threads
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert len(set(rows)) == 1200


def test_waiting_receivers_get_an_error_at_the_end(topic: PartitionedTopic) -> None:
    errors: list[ReplogError] = []

    def wait() -> None:
        try:
            consumer.receive()
        except ReplogError as error:
            errors.append(error)

    consumer = topic.subscribe("s")
    threads = [threading.Thread(target=wait) for _ in range(6)]
    for thread in threads:
        thread.start()
    until(lambda: len(consumer._waiting) == 6)
    consumer.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [ClosedError] * 6
    with pytest.raises(ClosedError):
        consumer.receive(timeout=0)
    with pytest.raises(ClosedError):
        consumer.acknowledge(PartitionOffset(0, 0))


def test_receive_and_flush_keep_raising_after_one_partition_closed(topic: PartitionedTopic) -> None:
    with topic.subscribe("s") as consumer:
        topic.partition(1).close()
        for _ in range(2):
            with pytest.raises(ClosedError, match="t-partition-1"):
                consumer.receive(timeout=PATIENCE_S)
        with pytest.raises(ClosedError, match="t-partition-1"):
            consumer.flush()


def test_coroutines_receive_each_message_once(topic: PartitionedTopic) -> None:
    async def work(rows: list[tuple[int, int]], total: int) -> None:
        while len(rows) < total:
            try:
                async with asyncio.timeout(0.001):
                    message = await consumer.receive_async()
            except TimeoutError:
                continue
            rows.append((message.partition, message.offset))
            consumer.acknowledge(message)
            await asyncio.sleep(0)

    async def scene() -> None:
        rows: list[tuple[int, int]] = []
        tasks = [asyncio.create_task(work(rows, 300)) for _ in range(4)]
        for at in range(300):
            await topic.submit(b"v", KEYS[at % PARTITIONS])
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)
        assert len(set(rows)) == len(rows) == 300
        await topic.submit_batch([b"v"] * PARTITIONS, KEYS)
        await topic.room()
        batches = [await consumer.receive_batch_async() for _ in range(PARTITIONS)]
        assert sorted(batch.partition for batch in batches) == list(range(PARTITIONS))
        await topic.submit(b"last")
        async for message in consumer:
            assert message.value == b"last"
            break

    with topic.subscribe("s", type="shared") as consumer:
        asyncio.run(scene())


# ---- failover --------------------------------------------------------------------------------------------------


def test_consumers_of_a_failover_subscription_share_the_partitions(topic: PartitionedTopic) -> None:
    with topic.subscribe("s", type="failover", start="earliest", name="b") as first:
        until(lambda: (first.is_active, first.active_partitions) == (True, [0, 1, 2, 3]))
        with topic.subscribe("s", type="failover", name="a") as second:
            # sorted by name, not by arrival
            until(lambda: (first.active_partitions, second.active_partitions) == ([1, 3], [0, 2]))
            publish(topic, 40)
            assert {message.partition for message in receive(second, 20)} == {0, 2}
            assert {message.partition for message in receive(first, 20)} == {1, 3}
            assert first.receive(timeout=0) is second.receive(timeout=0) is None
            with topic.subscribe("s", type="failover", name="0", priority=1) as third:
                assert (third.is_active, third.active_partitions) == (False, [])
        until(lambda: first.active_partitions == [0, 1, 2, 3])
        assert {message.partition for message in receive(first, 20)} == {0, 2}, "they were not acknowledged"
        with topic.subscribe("s", type="failover", name="c") as last, topic.subscribe("s", type="failover", name="a"):
            # partition p goes to consumer p mod 3
            until(lambda: (first.active_partitions, last.active_partitions) == ([1], [2]))


def test_consumers_of_a_shared_subscription_all_get_some(topic: PartitionedTopic) -> None:
    with (
        topic.subscribe("s", type="shared", queue=40) as first,
        topic.subscribe("s", type="shared", queue=40) as second,
    ):
        publish(topic, 120, partitions=1)
        assert first.receive(timeout=PATIENCE_S) is not None
        assert second.receive(timeout=PATIENCE_S) is not None
