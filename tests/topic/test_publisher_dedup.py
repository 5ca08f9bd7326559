"""Publishing to a topic that deduplicates, and producers."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import numpy
import pyarrow
import pytest

from pyreplog.errors import BacklogFullError, ClosedError, InvalidArgumentError, TopicFencedError, TopicFullError
from pyreplog.future import AppendFuture
from pyreplog.topic.client.publishing.producer import Producer
from pyreplog.topic.client.publishing.sequencer import DUPLICATE
from pyreplog.topic.model.dedup import Producers
from tests.topic.publishing import WAIT_S, Bench

FENCED = TopicFencedError("news", "somebody else owns it")
FAILED = TopicFullError("news", "no more ledgers")


def make(**settings: Any) -> Bench:
    return Bench(producers=Producers(), **settings)


def reopened(bench: Bench, snapshot: tuple[int, bytes] | None = None, **settings: Any) -> Bench:
    """Return the publisher of another owner, with a snapshot and the messages stored after it."""
    producers, end = Producers(), sum(bench.ledgers.counts)
    offset, state = snapshot or (0, producers.snapshot())
    producers.restore(state)
    if offset < end:
        producers.replay(bench.ledgers.stored(offset))
    after = Bench(producers=producers, end=end, **settings)
    after.ledgers.entries, after.ledgers.counts = bench.ledgers.entries, bench.ledgers.counts
    return after


def test_a_message_that_was_stored_is_dropped() -> None:
    bench = make(holds=False)
    assert bench.publisher.publish(b"0", sequence=5, producer="p") == 0
    assert bench.publisher.publish(b"0", sequence=5, producer="p") == DUPLICATE == -1
    assert bench.publisher.publish(b"0", sequence=4, producer="p") == DUPLICATE
    assert bench.publisher.publish(b"1", sequence=5, producer="q") == 1
    assert bench.publisher.publish(b"2", sequence=5) == bench.publisher.publish(b"2", sequence=5) - 1 == 2
    assert bench.publisher.counts.duplicates == 2
    assert bench.publisher.pending_messages == bench.publisher.pending_bytes == 0
    assert bench.publisher.flush_async().done()


def test_sequence_numbers_are_only_kept_without_deduplication() -> None:
    bench = Bench(holds=False)
    assert [bench.publisher.publish(b"", sequence=5, producer="p") for _ in range(2)] == [0, 1]
    assert bench.publisher.last_sequence("p") == -1 and bench.publisher.snapshot() is None
    assert [message.sequence for message in bench.ledgers.messages()] == [5, 5]


@pytest.mark.parametrize("outcome", ["stored", "failed"])
def test_duplicate_of_a_message_in_flight_waits_for_its_outcome(outcome: str) -> None:
    bench = make()
    first = bench.submit(b"first", sequence=5, producer="p")
    again = bench.submit(b"again", sequence=5, producer="p")
    assert not again.done() and bench.ledgers.held == 1
    assert bench.publisher.pending_messages == 2
    if outcome == "stored":
        bench.ledgers.confirm()
        assert (first.result(0), again.result(0)) == (0, DUPLICATE)
        assert bench.ledgers.held == 0
    else:
        bench.ledgers.fail(FAILED)
        assert first.exception(0) is FAILED and not again.done()
        bench.ledgers.confirm()
        assert again.result(0) == 0
        assert bench.ledgers.values() == [b"again"]
    assert bench.publisher.pending_messages == bench.publisher.pending_bytes == 0


def test_message_refused_by_a_quota_is_not_a_duplicate_when_repeated() -> None:
    bench = make(holds=False)
    publisher = bench.publisher
    assert publisher.publish(b"0", sequence=0, producer="p") == 0
    publisher.set_quota("refused", "slow has too much")
    for future in (
        bench.submit(b"1", sequence=1, producer="p"),
        bench.submit_batch([b"2", b"3"], sequences=[2, 3], producer="p"),
        bench.submit(b"none"),
    ):
        with pytest.raises(BacklogFullError, match="slow has too much"):
            future.result(0)
    assert publisher.publish(b"0", sequence=0, producer="p") == DUPLICATE, "nobody needs room for that"
    assert (publisher.counts.errors, publisher.pending_messages, publisher.pending_bytes) == (4, 0, 0)
    assert publisher.has_new_failures
    publisher.set_quota("open", "")
    assert publisher.publish(b"4", sequence=4, producer="p") == 1
    assert [publisher.publish(b"%d" % n, sequence=n, producer="p") for n in (1, 2, 3)] == [2, 3, 4]
    assert publisher.publish_batch([b"2", b"3"], sequences=[2, 3], producer="p") == range(0)
    assert bench.ledgers.values() == [b"0", b"4", b"1", b"2", b"3"]


def test_a_quota_refuses_what_was_in_doubt_and_not_what_is_on_its_way() -> None:
    bench = make()
    first = bench.submit(b"first", sequence=5, producer="p")
    doubtful = bench.submit(b"again", sequence=5, producer="p")
    bench.publisher.set_quota("refused", "slow has too much")
    bench.ledgers.fail(FAILED)
    assert first.exception(0) is FAILED and isinstance(doubtful.exception(0), BacklogFullError)
    bench.publisher.set_quota("open", "")
    third = bench.submit(b"third", sequence=5, producer="p")
    bench.publisher.set_quota("refused", "slow has too much")
    bench.ledgers.confirm()
    assert third.result(0) == 0 and bench.publisher.flush_async().done()
    assert bench.publisher.pending_messages == bench.publisher.pending_bytes == 0


def test_duplicate_of_a_lingering_message_waits_for_its_outcome() -> None:
    bench = make(linger_ms=5)
    bench.submit(b"0", sequence=5, producer="p")
    again, flushed = bench.submit(b"0", sequence=5, producer="p"), bench.publisher.flush_async()
    bench.ledgers.confirm()
    assert again.result(0) == DUPLICATE
    assert flushed.done()


def test_a_head_that_failed_alone_is_not_lost() -> None:
    """Messages that were in flight behind the failed one are stored. The failed one is no duplicate when it is
    published again."""
    bench = make()
    head = bench.submit_batch([b"1", b"2"], sequences=[1, 2], producer="p")
    bench.submit_batch([b"3"], sequences=[3], producer="p")
    bench.ledgers.fail(FAILED)
    bench.ledgers.confirm()
    assert head.exception(0) is FAILED
    assert bench.publisher.has_new_failures
    again = bench.submit_batch([b"1", b"2", b"3"], sequences=[1, 2, 3], producer="p")
    bench.ledgers.confirm()
    assert again.result(0) == range(1, 3)
    assert bench.ledgers.values() == [b"3", b"1", b"2"]


VALUES: list[Any] = [
    [b"0", b"1", b"2", b"3", b"4"],
    (numpy.arange(6), b"01234"),
    numpy.array([b"0", b"1", b"2", b"3", b"4"]),
    pyarrow.array([b"0", b"1", b"2", b"3", b"4"]),
]


@pytest.mark.parametrize("values", VALUES, ids=lambda values: type(values).__name__)
def test_a_batch_is_cut_to_what_is_new(values: Any) -> None:
    bench = make(holds=False)
    plain = isinstance(values, list)
    keys, properties = ([b"k%d" % n for n in range(5)], [{"n": str(n)} for n in range(5)]) if plain else (None, None)
    assert bench.publisher.publish_batch([b"x", b"y"], sequences=[3, 4], producer="p") == range(2)
    assert bench.publisher.publish_batch(
        values, keys, properties=properties, event_times=numpy.arange(5), sequences=[2, 4, 6, 7, 9], producer="p"
    ) == range(2, 5)
    messages = bench.ledgers.messages()[2:]
    assert [message.value for message in messages] == [b"2", b"3", b"4"]
    assert [message.sequence for message in messages] == [6, 7, 9]
    assert [message.event_time for message in messages] == [2, 3, 4]
    if plain:
        assert [message.key for message in messages] == [b"k2", b"k3", b"k4"]
        assert [message.properties for message in messages] == [{"n": b"%d" % n} for n in (2, 3, 4)]
    assert bench.publisher.publish_batch(values, sequences=[2, 4, 6, 7, 9], producer="p") == range(0)
    assert bench.publisher.counts.duplicates == 2 + 5
    assert bench.publisher.pending_messages == bench.publisher.pending_bytes == 0


def test_a_batch_in_doubt_waits_as_a_whole() -> None:
    bench = make()
    bench.submit_batch([b"1"], sequences=[1], producer="p")
    bench.submit_batch([b"2"], sequences=[2], producer="p")
    again = bench.submit_batch([b"1", b"2", b"3"], sequences=[1, 2, 3], producer="p")
    bench.ledgers.confirm()
    assert bench.ledgers.held == 1, "the second is in doubt yet"
    bench.ledgers.fail(FAILED)
    bench.ledgers.confirm()
    assert again.result(0) == range(1, 3)
    assert bench.ledgers.values() == [b"1", b"2", b"3"]


def test_an_unknown_outcome_ends_a_publisher_that_deduplicates() -> None:
    """Only the stored messages show what was stored: no message is accepted before the topic is opened again."""
    bench = make()
    bench.submit(b"1", sequence=1, producer="p")
    doubt, gathered = bench.submit(b"1", sequence=1, producer="p"), bench.submit(b"2", sequence=2, producer="p")
    bench.ledgers.fail(FENCED)
    assert doubt.exception(0) is FENCED and gathered.exception(0) is FENCED
    for again in range(2):
        with pytest.raises(TopicFencedError):
            bench.submit(b"%d" % again, sequence=again, producer="p")
    assert bench.publisher.flush_async().done()
    assert bench.publisher.pending_messages == bench.publisher.pending_bytes == 0


# ---- snapshots -----------------------------------------------------------------------------------------------------


def test_a_snapshot_reaches_to_what_it_knows() -> None:
    bench = make()
    assert bench.publisher.snapshot() == (0, Producers().snapshot())
    for n in range(3):
        bench.submit_batch([b"", b""], sequences=[2 * n, 2 * n + 1], producer="p")
    bench.ledgers.confirm(2)
    snapshot = bench.publisher.snapshot()
    assert snapshot is not None and snapshot[0] == 4
    after = Producers()
    after.restore(snapshot[1])
    assert after.last_sequence(b"p") == 3


@pytest.mark.parametrize("seed", range(5))
def test_every_message_is_stored_once_whatever_happens(seed: int) -> None:
    """A producer publishes failed messages again, while calls fail and owners crash with messages in flight."""
    rng = random.Random(seed)
    bench, snapshot = make(batch_messages=3), None
    todo, results = set(range(60)), dict[int, AppendFuture[int]]()
    while todo:
        for number in sorted(todo - results.keys())[: rng.randrange(1, 9)]:
            results[number] = bench.submit(b"%d" % number, sequence=number, producer="p")
        while bench.ledgers.held and rng.random() < 0.8:
            bench.ledgers.confirm() if rng.random() < 0.7 else bench.ledgers.fail(FAILED)
            if bench.publisher.has_new_failures or rng.random() < 0.2:
                snapshot = bench.publisher.snapshot()
        for number, future in list(results.items()):
            if future.done():
                results.pop(number)
                if future.exception() is None:
                    todo.remove(number)
        if rng.random() < 0.3:
            while bench.ledgers.held and rng.random() < 0.5:
                bench.ledgers.confirm()  # their outcomes are lost
            bench, results = reopened(bench, snapshot, batch_messages=3), {}
    values = [int(value) for value in bench.ledgers.values()]
    assert sorted(values) == list(range(60))


# ---- producers -----------------------------------------------------------------------------------------------------


def test_a_producer_numbers_what_it_publishes() -> None:
    bench = make(holds=False)
    with Producer(bench.publisher, "p") as producer:
        assert producer.last_sequence == -1
        assert producer.publish(b"0") == 0
        assert producer.publish_batch([b"1", b"2"]) == range(1, 3)
        assert producer.submit(b"3", sequence=10).result(0) == 3
        assert producer.submit_batch([b"4"]).result(0) == range(4, 5)
        assert producer.publish(b"3", sequence=10) == DUPLICATE
        assert producer.last_sequence == 11
    assert [message.sequence for message in bench.ledgers.messages()] == [0, 1, 2, 10, 11]
    assert {message.producer for message in bench.ledgers.messages()} == {b"p"}
    after = Producer(reopened(bench, holds=False).publisher, "p")
    assert after.last_sequence == 11
    assert after.publish(b"5") == 5
    assert after.last_sequence == 12


def test_a_closed_producer_has_published_all_it_took() -> None:
    bench = make(linger_ms=5)
    producer = Producer(bench.publisher, "p")
    future = producer.submit(b"0")

    def confirm() -> None:
        bench.ledgers.came.acquire(timeout=WAIT_S)
        bench.ledgers.confirm()

    thread = threading.Thread(target=confirm)
    thread.start()
    producer.close()
    assert future.done()
    thread.join(WAIT_S)
    producer.close()
    for call in (producer.publish, producer.submit, producer.publish_batch, producer.submit_batch):
        with pytest.raises(ClosedError, match="producer 'p'"):
            call(b"1")  # type: ignore[operator]
    assert repr(producer) == "<Producer 'p' of topic 'news'>"


def test_a_coroutine_closes_a_producer_without_waiting() -> None:
    bench = make()

    async def go() -> AppendFuture[int]:
        with Producer(bench.publisher, "p") as producer:
            return producer.submit(b"0")

    future = asyncio.run(go())
    assert not future.done()
    bench.ledgers.confirm()
    assert future.result(0) == 0


def test_threads_share_the_numbers_of_a_producer() -> None:
    bench = make(holds=False)
    producer = Producer(bench.publisher, "p")
    threads = [
        threading.Thread(target=lambda: [producer.publish(b"") for _ in range(100)]),
        threading.Thread(target=lambda: [producer.publish_batch([b"", b""]) for _ in range(100)]),
        threading.Thread(
            target=lambda: [future.result(WAIT_S) for future in [producer.submit(b"") for _ in range(100)]]
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [message.sequence for message in bench.ledgers.messages()] == list(range(400))


def test_malformed_names_of_producers_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        Producer(make().publisher, "a\nb")
