"""The commands of docs/operations.md, "Backup and restore": a cluster, brokers and a replica group are backed up, destroyed,
and restored."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import pyreplog
from pyreplog import ha
from pyreplog.errors import NotALogError
from tests.consoles import Console, Step, shape, steps
from tests.guides import ROOT
from tests.ports import free_ports
from tests.waiting import until

GUIDE = (ROOT / "docs" / "operations.md").read_text().partition("\n## Backup and restore\n")[2].partition("\n# ")[0]
AMBER = 10
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


def section(title: str) -> list[Step]:
    """Return the commands of a section, also those in lists."""
    text = GUIDE.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [step for block in blocks for step in steps(re.sub(r"^ {3}", "", block, flags=re.MULTILINE))]


CLUSTER, RESTORED, BROKERS, GROUP = map(section, (
    "A cluster is backed up", "A cluster is restored", "Brokers are backed up and restored",
    "A replica group is backed up and restored",
))  # fmt: skip


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    addresses = sorted({*ADDRESS.findall(GUIDE)})
    places = dict(zip(addresses, (f"127.0.0.1:{port}" for port in free_ports(len(addresses))), strict=True))
    (tmp_path / "broker.toml").write_text("segment_bytes = 1048576\n[kafka]\noffsets_partitions = 4\n")
    small = {
        "pyreplog bookie data": "pyreplog bookie --segment-bytes 1048576 data",
        "pyreplog broker data": "pyreplog broker --config broker.toml data",
    }
    with Console(tmp_path, {**places, **small}) as console:
        yield console


def start(console: Console, printed_steps: list[Step]) -> None:
    servers = [step for step in printed_steps if step.terminal]
    lines = console.start(*servers)
    assert [shape(line) for line in lines] == [shape(console.placed(step.printed)) for step in servers]


def run(console: Console, printed_steps: list[Step], words: str, *codes: int) -> list[str]:
    """Run the commands that begin with these words, with exit codes as of `Console.run`; return what they print."""
    commands = [step.command for step in printed_steps if not step.terminal and step.command.startswith(words)]
    assert commands, words
    return [console.run(command, *codes) for command in commands]


def destroy(folder: Path) -> None:
    shutil.rmtree(folder / "data")


def test_a_cluster_is_restored_with_its_messages_and_acknowledgements(console: Console, tmp_path: Path) -> None:
    run(console, CLUSTER, "mkdir ")
    start(console, CLUSTER)
    address = f"pyreplog://{console.placed('127.0.0.1:7400')}"
    with pyreplog.connect(address) as client:
        orders = client.topic("orders")
        orders.create_subscription("billing", start="earliest")
        orders.publish_batch([b"order %d" % number for number in range(100)])
        assert acknowledge_even(orders, 100) == list(range(0, 100, 2))
    console.stop("server")
    console.stop_all()
    run(console, CLUSTER, "cp ")
    assert all("intact" in printed for printed in run(console, CLUSTER, "pyreplog fsck "))

    start(console, CLUSTER)
    with pyreplog.connect(address) as client:
        client.topic("orders").publish(b"after the backup")
        client.topic("later").publish(b"after the backup")
    console.stop_all(signal.SIGKILL)
    destroy(tmp_path)

    run(console, RESTORED, "cp ")
    start(console, CLUSTER)
    until(lambda: is_green(run(console, RESTORED, "pyreplog cluster ", 0, AMBER)[0]))
    assert run(console, RESTORED, "pyreplog topic ") == ["orders\n"]
    with pyreplog.connect(address) as client:
        orders = client.topic("orders")
        assert orders.publish(b"order 100") == 100
        odd = [*range(1, 100, 2), 100]
        with orders.subscribe("billing", type="shared") as consumer:
            messages = [consumer.receive(timeout=60.0) for _ in odd]
            assert [int(message.value.split()[1]) for message in messages if message is not None] == odd
            for message in messages:
                consumer.acknowledge(message)
            consumer.flush()
        assert orders.stats().to_dict()["subscriptions"]["billing"]["backlog_messages"] == 0


def is_green(audit: str) -> bool:
    """Return whether an auditor runs, and the copies of the ledger are complete."""
    return audit.startswith("green: 3 bookies, 1 ledger") and "complete 1" in audit


def acknowledge_even(topic: pyreplog.topic.Topic, count: int) -> list[int]:
    """Acknowledge every second message of a subscription, one by one; return their numbers."""
    acknowledged = []
    with topic.subscribe("billing", type="shared") as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=60.0)
            assert message is not None
            number = int(message.value.split()[1])
            if number % 2 == 0:
                consumer.acknowledge(message)
                acknowledged.append(number)
        consumer.flush()
    return acknowledged


def test_brokers_are_restored_with_their_records_and_consumer_groups(console: Console, tmp_path: Path) -> None:
    run(console, BROKERS, "mkdir ")
    start(console, BROKERS)
    settings = {"bootstrap.servers": console.placed("127.0.0.1:9191")}
    topic = NewTopic("orders", 3, replication_factor=3, config={"min.insync.replicas": "2"})
    admin = AdminClient(settings)
    admin.create_topics([topic])["orders"].result(timeout=60.0)
    produce(settings, range(100))
    before = consume(settings, 40)
    console.stop_all()
    run(console, CLUSTER, "cp ")

    destroy(tmp_path)

    run(console, RESTORED, "cp ")
    start(console, BROKERS)
    run(console, BROKERS, "pyreplog partitions ")
    until(lambda: all_in_sync(console.run(f"{BROKERS[-1].command} --json")))
    produce(settings, range(100, 110))
    assert sorted(before + consume(settings, 70)) == [*range(110)], "each once: the group has its offsets again"


def produce(settings: dict[str, str], numbers: range) -> None:
    producer = Producer({**settings, "enable.idempotence": True})
    for number in numbers:
        producer.produce("orders", b"%d" % number, key=b"%d" % number)
    assert producer.flush(timeout=60.0) == 0


def consume(settings: dict[str, str], count: int) -> list[int]:
    """Consume and commit some records as a group; return their numbers."""
    consumer = Consumer(
        {**settings, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["orders"])
    numbers: list[int] = []

    def next_record() -> Message | None:
        record = consumer.poll(timeout=1.0)
        return record if record is not None and record.error() is None else None

    for _ in range(count):
        record = until(next_record)
        numbers.append(int(record.value()))
        consumer.commit(record, asynchronous=False)
    consumer.close()
    return numbers


def all_in_sync(described: str) -> bool:
    """Return whether the partitions of the topic have leaders, and three replicas in sync."""
    rows = [row for row in json.loads(described) if row["topic"] == "orders"]
    return len(rows) == 3 and all(row["leader"] and len(row["isr"]) == 3 for row in rows)


def test_a_replica_group_is_restored_as_a_new_group(console: Console, tmp_path: Path) -> None:
    start(console, GROUP)
    addresses = [console.placed(f"127.0.0.1:700{n}") for n in (1, 2, 3)]
    with ha.connect(addresses) as client:
        client.append_batch([b"order %d" % number for number in range(100)], keys=[b"customer"] * 100)
        until(lambda: "before 100" in console.run(f"pyreplog ha status {addresses[1]} | grep committed"))
        run(console, GROUP, "pyreplog backup ")
        client.append(b"after the backup")
    with pyreplog.open(tmp_path / "data" / "a", "r") as log:
        original = columns(log)[:100]
    console.stop_all(signal.SIGKILL)
    destroy(tmp_path)
    (tmp_path / "data").mkdir()

    run(console, GROUP, "pyreplog restore ")
    start(console, GROUP)
    with ha.connect(addresses) as client:
        assert client.append(b"order 100") == 100
    for name in "abc":
        path = tmp_path / "data" / name
        until(lambda path=path: has_entries(path, 101))
        with pyreplog.open(path, "r") as log:
            entries = columns(log)
        assert entries[:100] == original and entries[100][-1] == b"order 100"


def columns(log: pyreplog.LogReader) -> list[tuple[int, int, int, bytes | None, bytes]]:
    return [(r.entry, r.position, r.timestamp, r.key, r.value) for batch in log.read() for r in batch]


def has_entries(path: Path, count: int) -> bool:
    """Return whether a node has a log of so many entries. A replica that has received nothing has no log."""
    try:
        with pyreplog.open(path, "r") as log:
            return log.end == count
    except NotALogError:
        return False
