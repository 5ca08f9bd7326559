"""`python -m tests.foreign.mirror_maker`: MirrorMaker 2 moves topics and groups from Apache Kafka to pyreplog, and back.

It runs with the settings that docs/kafka.md shows ("Moving from Kafka and back"). Apache Kafka, `pyreplog kafka` and
MirrorMaker 2 are processes of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from benchmarks.peers.kafka import broker as apache_kafka
from benchmarks.peers.replicated.peer import Servers
from tests.waiting import until

_PARTITIONS = 2
_COUNT = 5_000
"""Records of a topic."""
_READ = 2_000
"""Records that a group has read before it moves."""
_PATIENCE_S = 120.0
_QUIET = {"log_level": 2}

SETTINGS = """\
clusters = old, new
old.bootstrap.servers = {old}
new.bootstrap.servers = {new}
old->new.enabled = true
old->new.topics = {topic}
old->new.groups = {group}
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
sync.topic.acls.enabled = false
refresh.topics.interval.seconds = 1
sync.topic.configs.interval.seconds = 1
refresh.groups.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
offset.lag.max = 0
"""
"""Of MirrorMaker 2, from the cluster `old` to the cluster `new`; names of topics stay as they are."""


class Record(NamedTuple):
    """What must arrive as it was sent."""

    partition: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records(topic: str) -> list[Record]:
    """Return the records of a topic: with keys and without, some null values and repeated headers."""
    began_ms = time.time_ns() // 1_000_000 - 60_000
    return [
        Record(
            number % _PARTITIONS,
            began_ms + number,
            None if number % 5 == 0 else b"key %d" % (number % 97),
            None if number % 11 == 0 else b"%s %d" % (topic.encode(), number),
            (("source", b"%d" % number), ("source", None), ("empty", b"")) if number % 3 == 0 else (),
        )
        for number in range(_COUNT)
    ]


def publish(servers: str, topic: str, sent: list[Record]) -> None:
    """Create a topic that keeps seven days, and publish records to it."""
    config = {"retention.ms": "604800000", "max.message.bytes": "2000000"}
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    admin.create_topics([NewTopic(topic, _PARTITIONS, 1, config=config)])[topic].result(_PATIENCE_S)
    producer = Producer({"bootstrap.servers": servers, "compression.type": "lz4", **_QUIET})
    for record in sent:
        producer.produce(
            topic, record.value, record.key, record.partition, timestamp=record.time_ms, headers=list(record.headers)
        )
        producer.poll(0)
    if left := producer.flush(_PATIENCE_S):
        raise TimeoutError(f"{left} records were not acknowledged")


def consume(servers: str, topic: str, group: str, count: int) -> list[Record]:
    """Have a member of a group take so many records, or fewer if no more come for ten seconds, and commit."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **_QUIET}
    )  # fmt: skip
    consumer.subscribe([topic])
    received: list[Record] = []
    quiet_since_s = time.monotonic()
    try:
        while len(received) < count and time.monotonic() - quiet_since_s < 10.0:
            if (message := consumer.poll(0.2)) is None:
                continue
            if message.error():
                raise ValueError(f"{topic} at {servers}: {message.error()}")
            received.append(_record(message))
            quiet_since_s = time.monotonic()
        if received:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return received


def _record(message: Message) -> Record:
    partition, key, value = message.partition(), message.key(), message.value()
    assert partition is not None
    headers = tuple((str(name), header) for name, header in message.headers() or [])
    return Record(partition, message.timestamp()[1], key, value, headers)  # type: ignore[arg-type]


def end(servers: str, topic: str) -> int:
    """Return how many records a topic has; 0: it does not exist, or has no leaders yet."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends", **_QUIET})
    try:
        found = consumer.list_topics(timeout=_PATIENCE_S).topics.get(topic)
        if found is None or len(found.partitions) < _PARTITIONS:
            return 0
        partitions = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
        return sum(consumer.get_watermark_offsets(partition, _PATIENCE_S)[1] for partition in partitions)
    except KafkaException as error:
        if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
            raise
        return 0
    finally:
        consumer.close()


def committed(servers: str, topic: str, group: str) -> dict[int, int]:
    """Return the committed offset of each partition that has one."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(_PARTITIONS)])
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    found = admin.list_consumer_group_offsets([wanted])[group].result(_PATIENCE_S)
    return {one.partition: one.offset for one in found.topic_partitions if one.offset >= 0}


def config(servers: str, topic: str, name: str) -> str:
    """Return a setting of a topic."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": servers, **_QUIET})
    return str(admin.describe_configs([resource])[resource].result(_PATIENCE_S)[name].value)


@contextmanager
def mirrored(folder: Path, old: str, new: str, topic: str, group: str) -> Iterator[Servers]:
    """Run MirrorMaker 2 from one cluster to another one."""
    folder.mkdir()
    settings = folder / "mirror.properties"
    settings.write_text(SETTINGS.format(old=old, new=new, topic=topic, group=group))
    servers = Servers()
    servers.start(
        apache_kafka.java_command(
            "-Xmx512m", f"-Duser.home={folder}", "org.apache.kafka.connect.mirror.MirrorMaker", str(settings)
        ),
        folder / "mirror.log",
    )
    try:
        yield servers
    finally:
        servers.close()


def move(folder: Path, old: str, new: str, topic: str, group: str) -> str:
    """Move a topic and a group; return what happened.

    MirrorMaker 2 translates offsets by the syncs it kept: the group goes on at or before the record it had read to.

    Raises:
        ValueError: a record is lost, or is not what it was.
        TimeoutError: something has not arrived.
    """
    sent = records(topic)
    publish(old, topic, sent)
    before = consume(old, topic, group, _READ)
    offsets = committed(old, topic, group)
    with mirrored(folder, old, new, topic, group) as mirror:

        def has_arrived() -> bool:
            mirror.check()
            return end(new, topic) >= _COUNT and committed(new, topic, group).keys() == offsets.keys()

        until(has_arrived, _PATIENCE_S, pause_s=0.5)
        for name, value in (("retention.ms", "604800000"), ("max.message.bytes", "2000000")):
            until(lambda name=name, value=value: config(new, topic, name) == value, _PATIENCE_S, pause_s=0.5)  # type: ignore[misc]
    translated = committed(new, topic, group)
    if any(translated[number] > offset for number, offset in offsets.items()):
        raise ValueError(f"{topic}: the group had read to {offsets}, and goes on at {translated}")
    repeated = sum(offsets.values()) - sum(translated.values())
    after = consume(new, topic, group, len(sent) - len(before) + repeated)
    received, expected = Counter(before + after), Counter(sent)
    if lost := expected - received:
        raise ValueError(
            f"{topic}: {lost.total()} of {len(sent)} records are lost or changed, such as {next(iter(lost))}"
        )
    if (received - expected).total() != repeated:
        raise ValueError(f"{topic}: expected {repeated} records twice, found {(received - expected).total()}")
    return f"{len(sent):,} records; the group had read {len(before):,}, and reads {repeated:,} of them again"


@contextmanager
def pyreplog_kafka(folder: Path) -> Iterator[str]:
    """Run `pyreplog kafka`; yield its address."""
    with (folder.parent / "pyreplog.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyreplog", "--json", "kafka", str(folder), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["bootstrap"])
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)
        process.stdout.close()


def main() -> None:
    """Move one topic each way; print lines of the table. Exits with 1 if one failed."""
    failed = False
    apache_kafka.build()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "apache").mkdir()
        apache = apache_kafka.Broker(folder / "apache")
        stack.callback(apache.close)
        ours = stack.enter_context(pyreplog_kafka(folder / "pyreplog"))
        for title, old, new, topic in (
            ("from Apache Kafka to pyreplog", apache.address, ours, "orders"),
            ("from pyreplog to Apache Kafka", ours, apache.address, "invoices"),
        ):
            try:
                outcome = f"passes: {move(folder / topic, old, new, topic, f'{topic}-readers')}"
            except (ValueError, TimeoutError, AssertionError, ChildProcessError) as error:
                failed = True
                log = folder / topic / "mirror.log"
                outcome = f"fails: {error}"
                print(log.read_text()[-3000:] if log.exists() else "", file=sys.stderr)
            print(f"| MirrorMaker 2 {apache_kafka.version()} | {title} | {outcome} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
