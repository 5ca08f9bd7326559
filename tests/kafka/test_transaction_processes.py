"""Transactions over brokers that are processes: coordinators are killed, and each record is moved once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pyreplog.kafka.groups.group_coordinator import partition_of_group
from pyreplog.metadata.url import open_store
from pyreplog.partition.metadata.topic_metadata import find_topic, state_key
from pyreplog.partition.protocol.partition_state import PartitionState
from pyreplog.partition.transactions.transaction_log import partition_of
from tests.kafka.kafka_broker_process import OFFSETS_PARTITIONS, TRANSACTION_PARTITIONS
from tests.thorough import IS_THOROUGH
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
ID, GROUP = "transfers", "billing"
TOTAL = 200


class Processes:
    """Three brokers."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._url = path, f"sqlite:{path / 'metadata'}"
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}
        stack.callback(self.kill, "1", "2", "3")
        self.start("1", "2", "3")
        self._store = stack.enter_context(open_store(self._url))

    def start(self, *names: str) -> None:
        for name in names:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.kafka.kafka_broker_process", str(self._path / name), name, self._url],
                cwd=ROOT, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        for name in names:
            output = self.running[name].stdout
            assert output is not None
            self.addresses[name] = output.readline().strip()
            assert self.addresses[name]

    def kill(self, *names: str) -> None:
        """With SIGKILL."""
        for process in [self.running.pop(name) for name in names if name in self.running]:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def leader(self, topic: str, number: int) -> str:
        def look() -> str | None:
            found = find_topic(self._store, topic)
            stored = None if found is None else self._store.get(state_key(found.topic_id, number))
            leader = "" if stored is None else PartitionState.decode(stored.value).leader
            return leader if leader in self.running else None

        return until(look)

    def transaction_coordinator(self) -> str:
        return self.leader("__transaction_state", partition_of(ID, TRANSACTION_PARTITIONS))

    def group_coordinator(self) -> str:
        return self.leader("__consumer_offsets", partition_of_group(GROUP, OFFSETS_PARTITIONS))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path, stack)


class Mover:
    """Consumes, transforms and produces, as the manual of a client says: what can be aborted is, and comes again."""

    def __init__(self, processes: Processes) -> None:
        self._reader = Consumer({
            "bootstrap.servers": processes.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "isolation.level": "read_committed", "fetch.wait.max.ms": 50,
        })  # fmt: skip
        self._writer = Producer({
            "bootstrap.servers": processes.bootstrap, "transactional.id": ID, "retry.backoff.ms": 50, "linger.ms": 0,
        })  # fmt: skip
        self._writer.init_transactions(2 * PATIENCE_S)
        self._reader.subscribe(["orders"])

    def begin(self) -> int:
        """Write what is read, in a transaction that stays open; return how many messages are in it."""
        messages = [message for message in self._reader.consume(20, 0.5) if message.error() is None]
        if messages:
            self._writer.begin_transaction()
            for message in messages:
                self._writer.produce("bills", b"bill " + (message.value() or b""), partition=message.partition() or 0)
            ends = {message.partition(): (message.offset() or 0) + 1 for message in messages}
            self._ends = [TopicPartition("orders", number or 0, offset) for number, offset in ends.items()]
        return len(messages)

    def end(self) -> bool:
        """Commit; or abort, and go back to what is committed."""
        try:
            self._writer.send_offsets_to_transaction(self._ends, self._reader.consumer_group_metadata(), PATIENCE_S)
            self._writer.commit_transaction(PATIENCE_S)
        except KafkaException as failure:
            assert failure.args[0].txn_requires_abort(), failure
            self._writer.abort_transaction(PATIENCE_S)
            for at in self._reader.committed(self._ends, PATIENCE_S):
                self._reader.seek(TopicPartition("orders", at.partition, max(at.offset, 0)))
            return False
        return True

    def close(self) -> None:
        self._reader.close()


class AsyncMover:
    """The same with aiokafka."""

    def __init__(self, processes: Processes) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._start(processes.bootstrap))

    async def _start(self, bootstrap: str) -> None:
        self._reader = AIOKafkaConsumer(
            "orders", bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest",
            enable_auto_commit=False, isolation_level="read_committed", fetch_max_wait_ms=50,
        )  # fmt: skip
        self._writer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=ID, retry_backoff_ms=50)
        await self._writer.start()
        await self._reader.start()

    def begin(self) -> int:
        """Write what is read, in a transaction that stays open; return how many messages are in it."""
        return self._runner.run(self._begin())

    async def _begin(self) -> int:
        batches = await self._reader.getmany(timeout_ms=500, max_records=20)
        if not batches:
            return 0
        await self._writer.begin_transaction()
        for name, records in batches.items():
            for record in records:
                await self._writer.send("bills", b"bill " + (record.value or b""), partition=name.partition)
        self._ends = {name: records[-1].offset + 1 for name, records in batches.items()}
        return sum(map(len, batches.values()))

    def end(self) -> bool:
        """Commit; or abort, and go back to what is committed."""
        return self._runner.run(asyncio.wait_for(self._end(), 4 * PATIENCE_S))

    async def _end(self) -> bool:
        try:
            await self._writer.send_offsets_to_transaction(self._ends, GROUP)
            await self._writer.commit_transaction()
        except KafkaError:
            await self._writer.abort_transaction()
            for name in self._ends:
                self._reader.seek(name, await self._reader.committed(name) or 0)
            return False
        return True

    def close(self) -> None:
        self._runner.run(self._stop())
        self._runner.close()

    async def _stop(self) -> None:
        await self._reader.stop()
        await self._writer.stop()


def bills(processes: Processes) -> list[bytes]:
    """What a reader of committed records sees, up to the last stable offsets."""
    reader = Consumer({
        "bootstrap.servers": processes.bootstrap, "group.id": "none", "isolation.level": "read_committed",
    })  # fmt: skip
    try:
        values: list[bytes] = []
        for number in range(2):
            name = TopicPartition("bills", number)
            _, end = reader.get_watermark_offsets(name, PATIENCE_S)
            reader.assign([TopicPartition("bills", number, 0)])

            def is_done(name: TopicPartition = name, end: int = end) -> bool:
                values.extend(message.value() or b"" for message in reader.consume(1000, 0.1) if not message.error())
                return end == 0 or reader.position([name])[0].offset >= end

            until(is_done)
        return sorted(values)
    finally:
        reader.close()


LIBRDKAFKA = pytest.mark.skipif(
    not IS_THOROUGH, reason="librdkafka 2.16 may wait for ever for a broker that left the metadata"
)


@pytest.mark.parametrize(
    "client", [pytest.param(AsyncMover, id="aiokafka"), pytest.param(Mover, id="librdkafka", marks=LIBRDKAFKA)]
)
def test_coordinators_are_killed_and_each_record_is_moved_once(
    processes: Processes, seed: int, client: type[AsyncMover | Mover]
) -> None:
    """The one of the transaction, then that of the group, each within a transaction or while it ends."""
    rng = Random(seed)
    admin = AdminClient({"bootstrap.servers": processes.bootstrap})
    settings = {"min.insync.replicas": "2"}
    made = admin.create_topics([NewTopic(name, 2, 3, config=settings) for name in ("orders", "bills")])
    for future in made.values():
        future.result(PATIENCE_S)
    source = Producer({"bootstrap.servers": processes.bootstrap, "enable.idempotence": True})
    for number in range(TOTAL):
        source.produce("orders", b"%d" % number, partition=number % 2)
    assert source.flush(PATIENCE_S) == 0
    mover = client(processes)
    moved = 0

    def move(kill: str = "") -> None:
        nonlocal moved
        count = until(mover.begin)
        if kill == "transaction":
            processes.kill(processes.transaction_coordinator())
        elif kill == "group":
            processes.kill(processes.group_coordinator())
        moved += count * mover.end()

    try:
        for kill in rng.sample(["transaction", "group"], 2):
            for _ in range(rng.randrange(1, 3)):
                move()
            move(kill)
            (gone,) = {"1", "2", "3"} - {*processes.running}
            move()
            processes.start(gone)
        while moved < TOTAL:
            move()
    finally:
        mover.close()
    wanted = sorted(b"bill %d" % number for number in range(TOTAL))
    until(lambda: bills(processes) == wanted)
