"""Tasks that write to topics over TCP: tried again, twice at a time, cut off; each row is there once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyreplog.errors import (
    ConfigError,
    InvalidArgumentError,
    NoSuchTopicError,
    PeerError,
    RecordTooLargeError,
    SequenceError,
)
from pyreplog.spark.write import publisher as rowpublisher
from pyreplog.spark.write.columns import WrittenColumns
from pyreplog.spark.write.options import WriteOptions
from pyreplog.spark.write.publisher import RowPublisher
from pyreplog.spark.write.rows import RowBatch, rows_of
from pyreplog.topic.owner.topic import Topic
from tests.topic.owners import until
from tests.topic.remoting import PLAIN, ServedCluster, Wire, serve_cluster

pa = pytest.importorskip("pyarrow")

COLUMNS = WrittenColumns(0, None, None, None, None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with serve_cluster(tmp_path_factory.mktemp("served")) as service:
        yield service


@pytest.fixture
def topic(server: ServedCluster, request: pytest.FixtureRequest) -> Topic:
    return server.cluster.topic(request.node.name[:100], deduplicate=True, **PLAIN)


def options(server: ServedCluster, topic: Topic | None = None, address: str | None = None, **more: Any) -> WriteOptions:
    name = None if topic is None else topic.name
    return WriteOptions(cluster=f"pyreplog://{address or server.server.address}", topic=name, **more)


def rows(topic: Topic, values: list[bytes], first: int = 0) -> Iterator[RowBatch]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
    return rows_of(batch, COLUMNS, topic.name, first)


def attempt(
    server: ServedCluster, topic: Topic, batch: int, values: list[bytes], stop: int | None = None
) -> RowPublisher:
    """Publishes them a few at a time; fails behind `stop` of them, with some on their way."""
    with RowPublisher(options(server, topic), "spark-q-0", batch) as publisher:
        for at in range(0, len(values) if stop is None else stop, 7):
            for row in rows(topic, values[at : min(at + 7, len(values) if stop is None else stop)], at):
                publisher.publish(row)
        if stop is None:
            publisher.finish()
    return publisher


def stored(topic: Topic) -> list[bytes]:
    topic.publisher.flush_async().result(30.0)
    return [bytes(value) for batch in topic.read() for value in batch.values()]


def producers(topic: Topic) -> set[bytes | None]:
    return {message.producer for batch in topic.read() for message in batch}


def test_each_row_once_whatever_fails(server: ServedCluster, topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    wanted = list[bytes]()
    for batch in range(12):
        values = [b"%d/%d" % (batch, n) for n in range(chance.randrange(1, 60))]
        for _ in range(chance.randrange(3)):
            attempt(server, topic, batch, values, chance.randrange(len(values) + 1))
        before = len(stored(topic))
        done = attempt(server, topic, batch, values)
        assert done.rows == len(values)
        wanted += values
        assert (stored(topic), done.stored) == (wanted, len(wanted) - before)
        if chance.random() < 0.5:  # a batch that was not committed comes again
            assert attempt(server, topic, batch, values).stored == 0
            assert stored(topic) == wanted
    assert producers(topic) == {b"spark-q-0"}  # one, however many batches


def test_partitions_have_producers_of_their_own(server: ServedCluster, topic: Topic) -> None:
    for partition in range(3):
        with RowPublisher(options(server, topic), f"spark-q-{partition}", 5) as publisher:
            for row in rows(topic, [b"same"] * 10):
                publisher.publish(row)
            publisher.finish()
    assert stored(topic) == [b"same"] * 30


def test_a_second_attempt_ends_the_first(server: ServedCluster, topic: Topic) -> None:
    values = [b"%d" % n for n in range(40)]
    with RowPublisher(options(server, topic), "spark-q-0", 3) as first:
        for row in rows(topic, values[:20]):
            first.publish(row)
        first.finish()
        assert attempt(server, topic, 3, values).stored == 20
        with pytest.raises(SequenceError, match="another client publishes as producer spark-q-0 now") as caught:
            for row in rows(topic, values[20:], 20):
                first.publish(row)
            first.finish()
    assert caught.value.__notes__ == [f"while writing to topic {topic.name} as producer spark-q-0, batch 3"]
    assert stored(topic) == values


def test_rows_are_published_to_several_topics(server: ServedCluster) -> None:
    topics = [server.cluster.topic(f"several {n}", deduplicate=True, **PLAIN) for n in range(3)]
    names = [topics[n % 3].name for n in range(50)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"%d" % n for n in range(50)], pa.binary()), pa.array(names)], names=["value", "topic"]
    )
    for count in (20, 50):
        with RowPublisher(options(server), "spark-q-0", 0) as publisher:
            for row in rows_of(batch.slice(0, count), COLUMNS._replace(topic=1), None, 0):
                publisher.publish(row)
            publisher.finish()
    for n in range(3):
        assert stored(topics[n]) == [b"%d" % at for at in range(n, 50, 3)]


def test_other_rows_than_before_are_noticed(server: ServedCluster, topic: Topic) -> None:
    attempt(server, topic, 4, [b"v"] * 30)
    with pytest.raises(
        SequenceError, match="an earlier attempt stored row 29 of this partition, which now has 14 rows"
    ):
        attempt(server, topic, 4, [b"v"] * 14)
    with pytest.raises(
        SequenceError, match="has stored rows of batch 4, and now writes batch 3: if the checkpoint was set"
    ):
        attempt(server, topic, 3, [b"v"])
    assert stored(topic) == [b"v"] * 30


def test_a_topic_without_deduplication_must_be_asked_for(server: ServedCluster) -> None:
    topic = server.cluster.topic("plain", **PLAIN)
    with pytest.raises(ConfigError, match=r"topic plain: expected a topic with deduplicate=True.*at-least-once"):
        attempt(server, topic, 0, [b"v"])
    assert stored(topic) == []
    for stop in (10, 20):
        with RowPublisher(options(server, topic, is_exactly_once=False), "spark-q-0", 0) as publisher:
            for row in rows(topic, [b"%d" % n for n in range(stop)]):
                publisher.publish(row)
            publisher.finish()
    assert stored(topic) == [b"%d" % n for n in [*range(10), *range(20)]]
    assert [message.sequence for batch in topic.read() for message in batch] == [*range(10), *range(20)]


def test_rows_that_are_too_large_or_too_many_are_refused(server: ServedCluster, topic: Topic) -> None:
    with pytest.raises(RecordTooLargeError) as caught:
        attempt(server, topic, 0, [b"fine", bytes(5 << 20)])
    assert f"topic {topic.name}" in caught.value.__notes__[0]
    with pytest.raises(InvalidArgumentError, match="expected at most 4294967296 rows of a partition in a batch"):
        with RowPublisher(options(server, topic), "spark-q-0", 0) as publisher:
            publisher.publish(next(rows(topic, [b"v"], 1 << 32)))
    with pytest.raises(InvalidArgumentError, match="batch: expected 0 to 1073741823, found 1073741824"):
        RowPublisher(options(server, topic), "spark-q-0", 1 << 30)


def test_rows_of_an_unknown_topic_are_refused(server: ServedCluster) -> None:
    with RowPublisher(options(server), "spark-q-0", 0) as publisher:
        with pytest.raises(NoSuchTopicError, match="topic nowhere: create it before you write to it"):
            publisher.publish(next(rows_of(pa.RecordBatch.from_pydict({"value": [b"v"]}), COLUMNS, "nowhere", 0)))


def test_a_partition_is_written_by_its_name(server: ServedCluster) -> None:
    server.cluster.topic("clicks", partitions=2, deduplicate=True, **PLAIN)
    with RowPublisher(options(server), "spark-q-0", 0) as publisher:
        batch = pa.RecordBatch.from_pydict({"value": [b"v"]})
        publisher.publish(next(rows_of(batch, COLUMNS, "clicks-partition-1", 0)))
        publisher.finish()
    assert stored(server.cluster.topic("clicks-partition-1")) == [b"v"]


def test_waits_for_outcomes_and_survives_a_lost_connection(
    server: ServedCluster, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While answers do not come, no more than a window is on its way; what was is sent again, and there once."""
    monkeypatch.setattr(rowpublisher, "WINDOW_BYTES", 10_000)
    values = [b"%d" % n * 100 for n in range(200)]
    with Wire(server.server.address) as wire:
        with RowPublisher(options(server, topic, wire.address), "spark-q-0", 1) as publisher:
            publisher.publish(next(rows(topic, values[:1])))
            publisher._settle()
            wire.swallow()
            done = threading.Event()

            def publish() -> None:
                for at in range(1, 200):
                    publisher.publish(next(rows(topic, values[at : at + 1], at)))
                publisher.finish()
                done.set()

            thread = threading.Thread(target=publish, daemon=True)
            thread.start()
            assert wire.swallowed.wait(30.0)
            until(lambda: publisher._pending_bytes > 9_000)
            assert not done.wait(0.05)
            assert publisher._pending_bytes <= 10_000
            assert publisher.rows < 60
            wire.cut()
            assert done.wait(30.0)
            thread.join()
    assert stored(topic) == values


def test_publish_without_a_server_raises_peer_error(server: ServedCluster, topic: Topic) -> None:
    with Wire(server.server.address) as wire:
        address = wire.address
    with RowPublisher(options(server, topic, address), "spark-q-0", 0) as publisher:
        with pytest.raises(PeerError) as caught:
            publisher.publish(next(rows(topic, [b"v"])))
    assert f"topic {topic.name}" in caught.value.__notes__[0]


class Context:
    """Of a query's task, as Spark tells it."""

    def __init__(self, batch: int) -> None:
        self._properties = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": str(batch)}

    def partitionId(self) -> int:
        return 4

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


def test_a_query_that_goes_on_has_its_producers(
    server: ServedCluster, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver's writer, and the same batch: as behind a crash."""
    writing = pytest.importorskip("pyreplog.spark.write.writer")
    schema = pytest.importorskip("pyspark.sql.types").StructType().add("value", "binary")
    batch = pa.RecordBatch.from_pydict({"value": [b"%d" % n for n in range(5)]})
    for number, stored_now in ((6, 10), (6, 0), (7, 10)):
        monkeypatch.setattr(writing, "_context", lambda number=number: Context(number))
        written = writing.TopicStreamWriter(options(server, topic), schema).write(iter([batch, batch]))
        assert written == writing.Written(partition=4, rows=10, stored=stored_now)
    assert producers(topic) == {b"spark-q-1-4"}
