"""What `follow`, `tail` and reports show of transactions of Kafka clients: with read_committed none that is open or aborted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pyreplog import reports
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_handle import PartitionHandle
from tests.kafka.kafka_brokers import KafkaBrokers
from tests.waiting import PATIENCE_S, until

QUIET_S = 0.2
"""A follower that has seen nothing for so long has seen all that is there."""
DEADLINE_S = 60


class Topic:
    """A topic of one partition. Its clients are a transactional producer, and another one without transactions."""

    def __init__(self, path: Path, brokers: KafkaBrokers, client: PartitionClient) -> None:
        brokers.create("events")
        self.plain = client.topic("events")[0]
        self.committed = client.topic("events", isolation="last_stable")[0]
        (self.directory,) = (path / "1").glob(f"{client.topic('events').topic_id}-0")
        self._producer = Producer(
            {"bootstrap.servers": brokers.addresses, "transactional.id": "t", "linger.ms": 0, "retry.backoff.ms": 20}
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, *values: bytes) -> None:
        """Begin a transaction, and send values in it."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce("events", value, partition=0)
        assert self._producer.flush(PATIENCE_S) == 0

    def end(self, *, is_commit: bool) -> None:
        """End it, and wait until its marker is committed."""
        before = self.plain.high_watermark()
        if is_commit:
            self._producer.commit_transaction(PATIENCE_S)
        else:
            self._producer.abort_transaction(PATIENCE_S)
        until(lambda: self.plain.high_watermark() > before)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with KafkaBrokers(tmp_path, broker_settings={"transaction_state_partitions": 1}) as brokers:
        brokers.start("1")
        with PartitionClient.connect(f"sqlite:{tmp_path / 'metadata'}") as client:
            yield Topic(tmp_path, brokers, client)


def followed(partition: PartitionHandle, start: int | None = 0) -> list[bytes | None]:
    return [record.value for record in partition.follow(start, timeout=QUIET_S)]


async def followed_async(partition: PartitionHandle, start: int | None = 0) -> list[bytes | None]:
    return [record.value async for record in partition.follow_async(start, timeout=QUIET_S)]


def test_follow_shows_no_open_and_no_aborted_transaction(topic: Topic) -> None:
    topic.plain.append(b"a")
    topic.begin(b"aborted")
    topic.plain.append(b"b")
    assert followed(topic.committed) == [b"a"], "what is behind the beginning of an open transaction waits"
    assert followed(topic.plain) == [b"a", b"aborted", b"b"]
    topic.end(is_commit=False)
    assert followed(topic.committed) == asyncio.run(followed_async(topic.committed)) == [b"a", b"b"]
    topic.begin(b"c", b"d")
    assert followed(topic.committed) == [b"a", b"b"]
    topic.end(is_commit=True)
    assert followed(topic.committed) == asyncio.run(followed_async(topic.committed)) == [b"a", b"b", b"c", b"d"]


def test_follow_from_the_end_shows_a_transaction_that_was_open_and_commits(topic: Topic) -> None:
    topic.plain.append(b"before")
    topic.begin(b"open")
    topic.plain.append(b"behind")
    stable, newest = topic.committed.follow_batches(timeout=QUIET_S), topic.plain.follow_batches(timeout=QUIET_S)
    assert list(stable) == list(newest) == []
    topic.end(is_commit=True)
    assert [record.value for batch in stable for record in batch] == [b"open", b"behind"]
    assert list(newest) == [], "which were there when it began"


def test_reads_and_single_records_are_those_of_committed_transactions(topic: Topic) -> None:
    topic.begin(b"aborted")
    topic.end(is_commit=False)
    topic.begin(b"committed")
    topic.end(is_commit=True)
    topic.begin(b"open")
    assert [record.value for batch in topic.committed.read() for record in batch] == [b"committed"]
    assert [record.value for batch in topic.plain.read() for record in batch] == [b"aborted", b"committed", b"open"]
    assert topic.committed.get(2).value == b"committed"
    topic.end(is_commit=True)


def test_tail_shows_no_open_and_no_aborted_transaction(topic: Topic) -> None:
    command = [
        sys.executable,
        "-m",
        "pyreplog",
        "tail",
        str(topic.directory),
        "--json",
        "--isolation",
        "read_committed",
    ]

    def tail() -> list[str]:
        done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=True)
        return [json.loads(line)["value"] for line in done.stdout.splitlines()]

    topic.plain.append(b"a")
    topic.begin(b"aborted")
    topic.plain.append(b"b")
    assert tail() == ["a"]
    with subprocess.Popen([*command, "-f"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None

        def shown(count: int) -> list[str]:
            assert running.stdout is not None
            return [json.loads(running.stdout.readline())["value"] for _ in range(count)]

        try:
            assert shown(1) == ["a"]
            topic.end(is_commit=False)
            assert shown(1) == ["b"]
            topic.begin(b"c")
            topic.plain.append(b"d")
            topic.end(is_commit=True)
            topic.begin(b"aborted, too")
            topic.end(is_commit=False)
            topic.plain.append(b"e")
            assert shown(3) == ["c", "d", "e"]
            topic.begin(b"open")
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(DEADLINE_S) == 130
        assert running.stdout.read() == b""
    assert tail() == ["a", "b", "c", "d", "e"]
    topic.end(is_commit=True)


def test_reports_count_no_open_and_no_aborted_transaction(topic: Topic) -> None:
    def entries(isolation: str) -> int:
        source = {"path": str(topic.directory), "isolation": isolation}
        return sum(row["entries"] for row in reports.run("rate_by_minute", source).to_pylist())

    topic.plain.append_batch([b"a", b"b"])
    topic.begin(b"aborted", b"aborted", b"aborted")
    topic.end(is_commit=False)
    topic.begin(b"committed", b"committed")
    topic.end(is_commit=True)
    topic.begin(b"open")
    assert entries("read_committed") == 4
    assert entries("read_uncommitted") == 8
    topic.end(is_commit=True)
    assert entries("read_committed") == 5
