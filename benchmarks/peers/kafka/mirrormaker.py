"""MirrorMaker 2 between two brokers of Kafka, each in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.kafka import broker
from benchmarks.peers.kafka.broker import Broker, java_command
from benchmarks.peers.replicated.peer import Servers
from benchmarks.proc import cpu_ns

_TOPIC = "bench"
_TARGET = f"here.{_TOPIC}"
_PATIENCE_S = 120.0

_SETTINGS = """
clusters=here,there
here.bootstrap.servers={here}
there.bootstrap.servers={there}
here->there.enabled=true
here->there.topics={topic}
there->here.enabled=false
emit.heartbeats.enabled=false
emit.checkpoints.enabled=false
sync.topic.configs.enabled=false
sync.topic.acls.enabled=false
refresh.groups.enabled=false
tasks.max=1
replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
offset.storage.partitions=1
status.storage.partitions=1
session.timeout.ms=60000
rebalance.timeout.ms=60000
here.consumer.max.poll.records=5000
here.consumer.fetch.min.bytes=1
there.producer.batch.size=262144
there.producer.linger.ms=5
there.producer.acks=all
"""


class MirrorMaker:
    """Two brokers and MirrorMaker 2 from the first one to the second one, with one topic of one partition.

    Each batch is synced at the second broker. Batches have up to 256 KiB, where 16 KiB are the default.
    """

    title = "MirrorMaker 2"

    def __init__(self, directory: Path) -> None:
        for name in ("here", "there"):
            (directory / name).mkdir()
        self._here = Broker(directory / "here")
        self._servers = Servers()
        try:
            self._there = Broker(directory / "there")
        except BaseException:
            self._here.close()
            raise
        self._count = 0
        try:
            for address, topic in ((self._here.address, _TOPIC), (self._there.address, _TARGET)):
                admin = AdminClient({"bootstrap.servers": address})
                made = admin.create_topics([NewTopic(topic, 1, 1, config={"flush.messages": "1"})])
                made[topic].result(_PATIENCE_S)
            self._producer = Producer({"bootstrap.servers": self._here.address, "acks": "all", "linger.ms": 5})
            self._ends = Consumer({"bootstrap.servers": self._there.address, "group.id": "ends"})
            settings = directory / "mirror.properties"
            settings.write_text(_SETTINGS.format(here=self._here.address, there=self._there.address, topic=_TOPIC))
            self._servers.start(
                java_command(
                    "-Xms256m", "-Xmx1g", f"-Duser.home={directory}", "org.apache.kafka.connect.mirror.MirrorMaker",
                    str(settings),
                ),
                directory / "mirror.log",
            )  # fmt: skip
            self.publish([b"first"], 1)
            self.wait()  # it takes ten seconds to begin
        except BaseException:
            self.close()
            raise

    @staticmethod
    def version() -> str:
        """Of Kafka, and of the client that publishes and reads back."""
        return f"Kafka and MirrorMaker 2 {broker.version()}, confluent-kafka {confluent_kafka.__version__}"

    @property
    def count(self) -> int:
        """Messages that were published."""
        return self._count

    def publish(self, values: list[bytes], count: int) -> None:
        """Publish so many messages, the values in turn; all are confirmed."""
        for number in range(count):
            while True:
                try:
                    self._producer.produce(_TOPIC, values[number % len(values)])
                    break
                except BufferError:
                    self._producer.poll(0.1)
            if number % 1024 == 0:
                self._producer.poll(0)
        if left := self._producer.flush(_PATIENCE_S):
            raise TimeoutError(f"{self.title}: {left} messages were not confirmed for {_PATIENCE_S} s")
        self._count += count

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """MirrorMaker 2 takes no step meanwhile."""
        (pid,) = self._servers.pids
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait(self) -> None:
        """Wait until all that was published is stored at the second broker."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._end() < self._count:
            self._servers.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.title}: {self._end()} of {self._count} messages after {_PATIENCE_S} s")
            time.sleep(0.002)

    def _end(self) -> int:
        _, end = self._ends.get_watermark_offsets(TopicPartition(_TARGET, 0), _PATIENCE_S)
        return int(end)

    def read(self, start: int) -> list[bytes]:
        """What the second broker has from an offset on."""
        consumer = Consumer(
            {"bootstrap.servers": self._there.address, "group.id": "check", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(_TARGET, 0, start)])
        values: list[bytes] = []
        deadline = time.monotonic() + _PATIENCE_S
        while len(values) < self._count - start and time.monotonic() < deadline:
            values += [_value(message) for message in consumer.consume(10_000, 0.1)]
        consumer.close()
        return values

    def cpu_s(self) -> float:
        """CPU seconds so far of both brokers and of what is between them."""
        pids = (*self._here.pids, *self._there.pids, *self._servers.pids)
        return sum(map(cpu_ns, pids)) / 1e9

    def close(self) -> None:
        """End all three."""
        self._servers.close()
        for name in ("_producer", "_ends"):
            if name in vars(self):
                delattr(self, name)
        self._there.close()
        self._here.close()


def _value(message: Any) -> bytes:
    if message.error():
        raise confluent_kafka.KafkaException(message.error())
    value: bytes = message.value()
    return value
