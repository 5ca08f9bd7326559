"""Producers: what is acknowledged is in the log once and in order, whatever becomes of brokers and answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pyreplog._native.kafka.record_batch import check_batch
from pyreplog.clock import SystemClock
from pyreplog.errors import (
    AppendRefusedError,
    ClosedError,
    InvalidArgumentError,
    NoSuchPartitionError,
    PartitionTimeoutError,
    PartitionUnavailableError,
    PeerTimeoutError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.future import AppendFuture, set_exception, set_result
from pyreplog.metadata.memory import MemoryStore
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.client.leader_requests import LeaderRequests
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import NO_OFFSET, PartitionProducer, ProducerConfig
from pyreplog.partition.client.partitions import Partitions
from pyreplog.partition.client.timers import Timers
from pyreplog.partition.client_requests import ClientTransport, ConsumeResponses, Descriptions, Offsets
from pyreplog.partition.client_wire import (
    ConsumeRequest,
    DescribePartitionsRequest,
    ListOffsetsRequest,
    ProduceRequest,
)
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.local_transport import LocalTransport
from pyreplog.partition.metadata.metadata_cache import MetadataCache
from pyreplog.partition.metadata.producer_ids import BLOCK, ProducerIds
from pyreplog.partition.requests import ProduceResponses
from pyreplog.partition.topic_partition import TopicPartition
from tests.waiting import PATIENCE_S, until

CONFIG = BrokerConfig(segment_bytes=1 << 20, lag_ms=2_000)


class LossyTransport:
    """A transport in front of the brokers' own that loses requests and answers, or keeps them."""

    def __init__(self, brokers: ClientTransport) -> None:
        self.brokers = brokers
        self.lose_request = self.lose_answer = lambda: False
        self.kept: list[tuple[str, ProduceRequest, AppendFuture[ProduceResponses]]] | None = None  # are not sent
        self.sent: list[ProduceRequest] = []

    def produce(self, broker: str, request: ProduceRequest, timeout_s: float) -> AppendFuture[ProduceResponses]:
        self.sent.append(request)
        lost = AppendFuture[ProduceResponses]()
        if self.kept is not None:
            self.kept.append((broker, request, lost))
            return lost
        if self.lose_request():
            set_exception(lost, PeerTimeoutError("the request was lost"))
            return lost
        future = self.brokers.produce(broker, request, timeout_s)
        if self.lose_answer():
            future.add_done_callback(lambda _: set_exception(lost, PeerTimeoutError("the answer was lost")))
            return lost
        return future

    def release(self) -> None:
        """Send what was kept."""
        kept, self.kept = self.kept, None
        for broker, request, future in kept or ():
            sent = self.brokers.produce(broker, request, PATIENCE_S)
            sent.add_done_callback(lambda done, future=future: set_result(future, done.result()))  # type: ignore[misc]

    def consume(self, broker: str, request: ConsumeRequest, timeout_s: float) -> AppendFuture[ConsumeResponses]:
        return self.brokers.consume(broker, request, timeout_s)

    def list_offsets(self, broker: str, request: ListOffsetsRequest, timeout_s: float) -> AppendFuture[Offsets]:
        return self.brokers.list_offsets(broker, request, timeout_s)

    def describe_partitions(
        self, broker: str, request: DescribePartitionsRequest, timeout_s: float
    ) -> AppendFuture[Descriptions]:
        return self.brokers.describe_partitions(broker, request, timeout_s)


class Bench:
    """Brokers of this process, and producers whose requests pass a lossy transport."""

    def __init__(self, path: Path) -> None:
        self.client = PartitionClient.embedded(path, broker_config=CONFIG)
        self.topic: Partitions = self.client.create_topic("flights", partitions=2, min_isr=2)
        local = LocalTransport()
        for name, broker in self.client.brokers.items():
            local.register(name, broker.replicas)
        self.transport = LossyTransport(local)
        self.timers = Timers()
        self.cache = MetadataCache(
            self.client.store, self, lambda call: self.timers.call_later(0.1, call)
        )  # fmt: skip
        self.requests = LeaderRequests(self.cache, self.transport, self.timers)
        self.requests.wait_for(self._knows_leaders, PATIENCE_S)
        until(self._has_leaders)  # a broker learns after the others that it leads
        self.ids = ProducerIds(self.client.store)
        self.producers: list[PartitionProducer] = []

    def _knows_leaders(self) -> bool:
        names = [TopicPartition("flights", number) for number in range(2)]
        return all(self.requests.leader(name, self.topic.topic_id) for name in names)

    def _has_leaders(self) -> bool:
        return sum(replica.is_leader for broker in self.client.brokers.values() for replica in broker.replicas) == 2

    def topics_changed(self, topics: Any) -> None:
        self._tell()

    def states_changed(self, partitions: Any) -> None:
        self._tell()

    def brokers_changed(self) -> None:
        self._tell()

    def _tell(self) -> None:
        if hasattr(self, "requests"):
            self.requests.metadata_changed()

    def producer(self, **settings: Any) -> PartitionProducer:
        producer = PartitionProducer(
            "flights", self.topic.topic_id, 2, self.requests, self.ids, SystemClock(), ProducerConfig(**settings)
        )
        self.producers.append(producer)
        return producer

    def values(self, number: int = 0) -> list[bytes | None]:
        return [value for batch in self.topic[number].read() for value in batch.values()]

    def close(self) -> None:
        for producer in self.producers:
            producer.close()
        self.cache.close()
        self.timers.close()
        self.client.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_lost_requests_and_answers_change_nothing(bench: Bench, seed: int) -> None:
    """Half of everything is lost: each record is in the log once, in its order."""
    random = Random(seed)
    bench.transport.lose_request = lambda: random.random() < 0.25
    bench.transport.lose_answer = lambda: random.random() < 0.25
    producer = bench.producer(batch_bytes=300, timeout_s=PATIENCE_S)
    futures = [producer.submit(b"%d" % n, partition=0) for n in range(100)]
    producer.flush(PATIENCE_S)
    assert [future.result().offset for future in futures] == list(range(100))
    assert bench.values() == [b"%d" % n for n in range(100)]


def test_records_submitted_while_a_batch_is_in_flight_form_the_next_one(bench: Bench) -> None:
    """Records that are submitted meanwhile wait, and form the next batch."""
    bench.transport.kept = []
    producer = bench.producer()
    futures = [producer.submit(b"%d" % n, partition=0) for n in range(10)]
    assert len(bench.transport.sent) == 1 and not any(future.done() for future in futures)
    bench.transport.release()
    assert [future.result(PATIENCE_S).offset for future in futures] == list(range(10))
    counts = [check_batch(data).count for request in bench.transport.sent for data in request.records.values()]
    assert counts == [1, 9]


def test_produce_timeout_raises_and_later_records_keep_their_order(bench: Bench) -> None:
    """The answer is lost for good: the record is in the log. The next one is appended in a higher epoch."""
    bench.transport.lose_answer = lambda: True
    producer = bench.producer(timeout_s=1.0)
    unknown = producer.submit(b"unknown", partition=0)
    with pytest.raises(PartitionTimeoutError):
        unknown.result(PATIENCE_S)
    bench.transport.lose_answer = lambda: False
    assert producer.append(b"next", partition=0).offset == 1
    assert bench.values() == [b"unknown", b"next"]
    late = bench.transport.sent[0]  # it arrives once more
    broker = bench.requests.leader(TopicPartition("flights", 0), bench.topic.topic_id)
    assert broker
    bench.transport.brokers.produce(broker, late, 5.0).result(PATIENCE_S)
    assert bench.values() == [b"unknown", b"next"]


def test_unsent_batch_fails_with_partition_unavailable_and_frees_its_sequence_numbers(bench: Bench) -> None:
    """Its sequence numbers are free again."""
    leader = bench.client.brokers[bench.topic[0].leader]
    name = TopicPartition("flights", 0)
    partition = until(lambda: leader.replicas.remove(name))  # it may lead in the metadata before it is open there
    producer = bench.producer(timeout_s=0.5)
    with pytest.raises(PartitionUnavailableError):
        producer.submit(b"refused", partition=0).result(PATIENCE_S)
    leader.replicas.add(partition)
    producer.config = producer.config._replace(timeout_s=PATIENCE_S)
    assert producer.append(b"next", partition=0).offset == 0
    assert bench.values() == [b"next"]


def test_a_refused_batch_holds_nothing_up(bench: Bench) -> None:
    producer = bench.producer()
    large = producer.submit(bytes(3 << 20), partition=0)
    small = producer.submit(b"small", partition=0)
    with pytest.raises(AppendRefusedError):
        large.result(PATIENCE_S)
    assert small.result(PATIENCE_S).offset == 0


def test_keys_choose_partitions_and_others_take_turns(bench: Bench) -> None:
    producer = bench.producer()
    positions = producer.append_batch([b"a", b"b", b"c"], [b"21", b"foobar", b"21"])
    assert [position.partition for position in positions] == [0, 0, 0]  # as Kafka's clients choose
    assert positions[2].offset == positions[0].offset + 2
    assert {producer.append(b"x").partition for _ in range(4)} == {0, 1}


def test_large_batches_are_split(bench: Bench) -> None:
    producer = bench.producer(batch_bytes=1000)
    positions = producer.append_batch([b"%04d" % n for n in range(200)], partition=1)
    assert [position.offset for position in positions] == list(range(200))
    assert bench.values(1) == [b"%04d" % n for n in range(200)]


def test_the_window_holds_threads_up_and_refuses_loops(bench: Bench) -> None:
    bench.transport.kept = []
    producer = bench.producer(window_bytes=100)
    first = producer.submit(bytes(100), partition=0)

    async def in_a_loop() -> None:
        with pytest.raises(WindowFullError):
            producer.submit(b"more", partition=0)
        room = producer.room()
        assert not room.done()
        bench.transport.release()
        await room

    waiting: list[AppendFuture[Any]] = []
    thread = threading.Thread(target=lambda: waiting.append(producer.submit(bytes(100), partition=0)))
    thread.start()
    asyncio.run(in_a_loop())
    thread.join(PATIENCE_S)
    assert waiting and [future.result(PATIENCE_S).offset for future in (first, waiting[0])] == [0, 1]


def test_coroutines_append_within_a_small_window(bench: Bench) -> None:
    async def append() -> list[int]:
        producer = bench.producer(window_bytes=200)
        positions = await asyncio.gather(*(producer.append_async(b"%d" % n, partition=0) for n in range(50)))
        await producer.flush_async()
        with pytest.raises(InvalidArgumentError):
            producer.append(b"blocks")
        return [position.offset for position in positions]

    assert sorted(asyncio.run(append())) == list(range(50))


@pytest.mark.parametrize("acks", [0, 1])
def test_a_producer_without_acks_all_is_not_idempotent(bench: Bench, acks: int) -> None:
    producer = bench.producer(acks=acks)
    assert producer.producer_id == -1
    assert producer.append(b"a", partition=0).offset == (0 if acks else NO_OFFSET)


def test_durable_records_need_a_topic_that_syncs(bench: Bench) -> None:
    with pytest.raises(AppendRefusedError, match="requires_sync"):
        bench.producer(durable=True).append(b"a", partition=0)
    synced = bench.client.create_topic("synced", requires_sync=True, min_isr=2)
    with synced.producer(ProducerConfig(durable=True)) as producer:
        assert producer.append(b"a").offset == 0


def test_a_producer_refuses_malformed_arguments(bench: Bench) -> None:
    producer = bench.producer()
    with pytest.raises(NoSuchPartitionError):
        producer.submit(b"a", partition=2)
    with pytest.raises(WrongTypeError):
        producer.submit("text")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError):
        producer.submit(b"a", headers=[("text", b"")])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError):
        producer.submit_batch([b"a"], [b"k", b"l"])
    for settings in ({"acks": 2}, {"acks": 1, "durable": True}, {"compression": "lzma"}, {"timeout_s": 0}):
        with pytest.raises(InvalidArgumentError):
            bench.producer(**settings)
    producer.close()
    with pytest.raises(ClosedError):
        producer.submit(b"a")


def test_a_producer_compresses_batches(bench: Bench) -> None:
    producer = bench.producer(compression="gzip")
    producer.append_batch([b"a" * 1000] * 100, partition=0)
    assert bench.values() == [b"a" * 1000] * 100
    assert sum(map(len, map(bytes, bench.transport.sent[-1].records.values()))) < 10_000


def test_producer_ids_are_unique(tmp_path: Path, seed: int) -> None:
    """Of several processes over one store, which take blocks at the same time."""
    random = Random(seed)
    with MemoryStore() as store:
        givers = [ProducerIds(store) for _ in range(3)]
        ids = [random.choice(givers).next() for _ in range(3 * BLOCK)]
    assert len({*ids}) == len(ids) and min(ids) >= 0
    with SQLiteStore(tmp_path / "metadata") as file:
        first = ProducerIds(file).next()
        assert ProducerIds(file).next() == first + BLOCK
