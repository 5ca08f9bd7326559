"""Messages handed out one by one, acknowledgements gathered."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog._native.topic.messages import Message, MessageBatch
from pyreplog._native.topic.prefetch_buffer import PrefetchBuffer
from tests.topic.entries import decoded

GATHERED_MAX = 16384


class Consumer(PrefetchBuffer):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int | None, float | None]] = []
        self.acknowledged: list[Any] = []

    def _receive(self, max_messages: int | None, timeout: float | None) -> None:
        self.asked.append((max_messages, timeout))

    def _acknowledge(self, value: Any) -> None:
        self.acknowledged.append(value)

    def begin(self, delivery: tuple[MessageBatch, dict[int, int]]) -> None:
        self._begin(delivery)

    def end(self) -> None:
        self._end()

    def take_next(self) -> Message:
        return self._next()

    def gather(self, on: bool) -> None:
        self._collect(on)

    @property
    def gathers(self) -> bool:
        return self._collects

    def take_acked(self) -> npt.NDArray[np.int64] | None:
        return self._take_acked()

    def take_run(self) -> tuple[int, int] | None:
        return self._take_run()


def batch_of(count: int) -> MessageBatch:
    return decoded([encode_messages([b"%d" % at for at in range(count)])], [count])


def taken(consumer: Consumer) -> list[int] | None:
    offsets = consumer.take_acked()
    return None if offsets is None else offsets.tolist()


def test_a_consumer_hands_out_messages_in_turn() -> None:
    consumer = Consumer()
    consumer.begin((batch_of(3), {}))
    messages = [consumer.receive(), consumer.receive(timeout=5), consumer.take_next()]
    assert [message.value for message in messages if message is not None] == [b"0", b"1", b"2"]
    assert consumer.asked == []
    assert consumer.receive(timeout=0.5) is None
    assert consumer.receive(2) is None
    with pytest.raises(StopIteration):
        consumer.take_next()
    assert consumer.asked == [(None, 0.5), (None, 2)]


def test_several_at_once_are_asked_for() -> None:
    consumer = Consumer()
    consumer.begin((batch_of(3), {}))
    consumer.receive(max_messages=2)
    consumer.receive(max_messages=1, timeout=3)
    assert consumer.asked == [(2, None), (1, 3)]
    assert consumer.take_next().offset == 0


def test_messages_have_their_redelivery_counts() -> None:
    consumer = Consumer()
    consumer.begin((batch_of(4), {1: 2, 3: 7}))
    assert [consumer.take_next().redelivered for _ in range(4)] == [0, 2, 0, 7]
    consumer.begin((batch_of(2), {}))
    assert [consumer.take_next().redelivered for _ in range(2)] == [0, 0]


def test_end_drops_the_rest_of_a_delivery() -> None:
    consumer = Consumer()
    consumer.begin((batch_of(4), {1: 2}))
    consumer.take_next()
    consumer.end()
    assert consumer.receive() is None
    assert consumer.asked == [(None, None)]


@given(st.lists(st.integers(0, 99), max_size=60))
def test_acknowledgements_ascend_and_come_once(offsets: list[int]) -> None:
    consumer, batch = Consumer(), batch_of(100)
    consumer.gather(True)
    for offset in offsets:
        consumer.acknowledge(batch[offset])
    assert consumer.acknowledged == []
    acked = consumer.take_acked()
    assert (None if acked is None else acked.tolist()) == (sorted(set(offsets)) or None)
    assert acked is None or acked.dtype == np.int64
    assert consumer.take_acked() is None


def test_acknowledgement_of_anything_but_a_message_is_not_gathered() -> None:
    consumer, batch = Consumer(), batch_of(2)
    consumer.gather(True)
    whats: Iterable[Any] = (batch, 5, [batch[0]], None)
    for step in whats:
        consumer.acknowledge(step)
    assert consumer.acknowledged == [batch, 5, consumer.acknowledged[2], None]
    assert consumer.take_acked() is None


def test_nothing_is_gathered_before_it_is_wanted() -> None:
    consumer, message = Consumer(), batch_of(1)[0]
    assert not consumer.gathers
    consumer.acknowledge(message)
    assert consumer.acknowledged == [message]
    consumer.gather(True)
    assert consumer.gathers
    consumer.acknowledge(message)
    consumer.gather(False)
    consumer.acknowledge(message)
    assert len(consumer.acknowledged) == 2
    assert taken(consumer) == [0]


def test_acknowledgements_are_gathered_up_to_the_maximum() -> None:
    consumer, batch = Consumer(), batch_of(GATHERED_MAX + 1)
    consumer.gather(True)
    for message in batch:
        consumer.acknowledge(message)
    assert [step.offset for step in consumer.acknowledged] == [GATHERED_MAX]
    assert consumer.take_run() == (0, GATHERED_MAX)
    for at in (*range(0, GATHERED_MAX, 2), *range(1, GATHERED_MAX, 2), GATHERED_MAX):
        consumer.acknowledge(batch[at])
    assert len(consumer.acknowledged) == 2
    assert taken(consumer) == list(range(GATHERED_MAX))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), max_size=12))
def test_contiguous_acknowledgements_are_taken_as_one_run(runs: list[tuple[int, int]]) -> None:
    consumer, batch = Consumer(), batch_of(340)
    consumer.gather(True)
    offsets = [at for start, count in runs for at in range(start, start + count)]
    for at in offsets:
        consumer.acknowledge(batch[at])
    run = consumer.take_run()
    if run is not None:
        assert list(range(*run)) == offsets
        assert taken(consumer) is None
    else:
        assert len(runs) != 1
        assert taken(consumer) == (sorted(set(offsets)) or None)
    assert consumer.take_run() is None


def test_threads_share_what_was_begun() -> None:
    consumer, numbers = Consumer(), list[int]()
    counts = dict.fromkeys(range(0, 30_000, 3), 1)
    consumer.begin((batch_of(30_000), counts))
    start = threading.Barrier(4)

    def receive() -> None:
        start.wait()
        mine = []
        while (message := consumer.receive()) is not None:
            mine.append(message.offset)
            assert message.redelivered == counts.get(message.offset, 0)
        numbers.extend(mine)

    threads = [threading.Thread(target=receive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(30_000))


def test_a_batch_of_something_else() -> None:
    with pytest.raises(TypeError):
        Consumer().begin((5, {}))  # type: ignore[arg-type]


def test_messages_stay_what_they_are() -> None:
    consumer = Consumer()
    consumer.begin((batch_of(4), {0: 1}))
    kept = [consumer.take_next() for _ in range(4)]
    assert [message.offset for message in kept] == [0, 1, 2, 3]
    assert isinstance(kept[0], Message)
    assert [message.redelivered for message in kept] == [1, 0, 0, 0]
