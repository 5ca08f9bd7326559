"""Several threads or coroutines receive from one consumer, in turns: no message is lost on a receiver that was
cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyreplog.cluster import Cluster
from pyreplog.fair_lock import FairLock
from pyreplog.topic.owner.topic import Topic

PATIENCE_S = 30.0


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with (
        Cluster.embedded(tmp_path, bookies=1) as cluster,
        cluster.topic("t", ensemble=1, durability="appended") as topic,
    ):
        yield topic


def publish(topic: Topic, first: int, end: int) -> None:
    topic.publish_batch([b"%d" % number for number in range(first, end)])


def test_coroutines_that_receive_take_turns(topic: Topic) -> None:
    """Both wait when a batch of five and another one arrive: each message goes to one of them."""

    async def receive(count: int) -> list[int]:
        return [(await consumer.receive_async()).offset for _ in range(count)]

    async def run() -> list[list[int]]:
        waiting = [asyncio.create_task(receive(5)) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.to_thread(publish, topic, 0, 5)
        await asyncio.to_thread(publish, topic, 5, 10)
        return await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)

    with topic.subscribe("s") as consumer:
        assert sorted(offset for item in asyncio.run(run()) for offset in item) == list(range(10))


def test_a_cancelled_coroutine_passes_its_turn_on(topic: Topic) -> None:
    async def run() -> int:
        first, second, third = (asyncio.create_task(consumer.receive_async()) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.to_thread(publish, topic, 0, 1)
        return (await asyncio.wait_for(third, PATIENCE_S)).offset

    with topic.subscribe("s") as consumer:
        assert asyncio.run(run()) == 0


def test_each_receiving_thread_has_its_own_timeout(topic: Topic) -> None:
    with topic.subscribe("s") as consumer, ThreadPoolExecutor(4) as pool:
        assert consumer.receive(timeout=0.01) is None
        waiting = [pool.submit(consumer.receive, timeout=PATIENCE_S) for _ in range(4)]
        publish(topic, 0, 4)
        results = [future.result(PATIENCE_S) for future in waiting]
        assert sorted(message.offset for message in results if message is not None) == [0, 1, 2, 3]


def test_batches_begin_with_the_rest(topic: Topic) -> None:
    publish(topic, 0, 10)
    with topic.subscribe("s", start="earliest") as consumer:
        message = consumer.receive(timeout=PATIENCE_S)
        assert message is not None
        assert message.offset == 0
        batch = consumer.receive_batch(PATIENCE_S)
        assert batch is not None
        assert batch.offset.tolist() == list(range(1, 10))
        assert consumer.receive(timeout=0) is None


def test_turns_are_taken_in_order() -> None:
    lock = FairLock()
    first, second, third = lock.enter(), lock.enter(), lock.enter()
    assert [future.done() for future in (first, second, third)] == [True, False, False]
    lock.give_up(second)
    lock.leave()
    assert third.done()
    lock.give_up(third)
    assert lock.enter().done()


def test_a_cumulative_acknowledgement_of_a_part_of_a_read(topic: Topic) -> None:
    """A batch may be a part of a read: later messages of the read were not delivered, and are not acknowledged."""
    publish(topic, 0, 1000)
    with topic.subscribe("s", start="earliest", queue=300) as consumer:
        seen: list[int] = []
        while len(seen) < 1000:
            batch = consumer.receive_batch(PATIENCE_S)
            assert batch is not None, f"{len(seen)} of 1000 messages came"
            seen += batch.offset.tolist()
            consumer.acknowledge_cumulative(batch)
        assert seen == list(range(1000))


def test_a_lock_that_others_wait_for_is_not_taken_before_them() -> None:
    lock = FairLock()
    assert lock.try_enter()
    assert not lock.try_enter()
    waiting = lock.enter()
    assert not lock.try_enter()
    lock.leave()
    assert waiting.done() and not lock.try_enter()
    lock.leave()
    assert lock.try_enter()
