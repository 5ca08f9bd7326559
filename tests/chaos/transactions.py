"""Three brokers with Kafka listeners, of which one at a time is disturbed, under transactions of Kafka clients; what these
wrote and read within transactions, and what another reader of committed records saw, is judged by the rules of histories."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from pyreplog import PartitionClient
from pyreplog.errors import ReplogError
from pyreplog.partition.client.partition_producer import ProducerConfig
from tests.chaos.faults import Availability, Fault, Faults, RandomFaults, Worker
from tests.chaos.faults import Outcome as Verdict
from tests.chaos.partitions import (
    BROKERS,
    PARTITIONS,
    SHORTEST_S,
    TIMEOUT_S,
    TOPIC,
    CommittedRecords,
    Reader,
    make_brokers,
    run_workers,
)  # fmt: skip
from tests.chaos.victims import Victim
from tests.histories.cycles import KINDS
from tests.histories.history import Append, History, Outcome, Read
from tests.waiting import until

WRITERS = 3
BOUND_S = 60.0
STEP_S = 10.0
PAUSE_S = 0.005
ABORTED_SHARE = 0.2
TRANSACTION_MS = 15_000
COMMITS_WITHOUT = 10


class Writer(Worker):
    """In each transaction, writes a few values to several partitions, and reads what is new in several; commits it, or
    aborts it at times. One whose commit was asked for, and not answered, has an unknown outcome; one that fails before is
    aborted, by its writer or by the next one of its id."""

    def __init__(
        self, victims: list[Victim], name: str, seed: int, log: CommittedRecords, history: History,
        availability: Availability,
    ) -> None:  # fmt: skip
        self._victims, self._name, self._random = victims, name, Random(f"{seed}/{name}")
        self._log, self._ends = log, dict.fromkeys(range(PARTITIONS), 0)
        self._history, self._availability, self._number = history, availability, 0
        super().__init__()

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        while not self._over.is_set():
            addresses = [victim.output["kafka"] for victim in self._victims]
            self._random.shuffle(addresses)  # the first one may stand still
            producer = AIOKafkaProducer(
                bootstrap_servers=addresses, transactional_id=self._name,
                transaction_timeout_ms=TRANSACTION_MS, request_timeout_ms=int(STEP_S * 1000), retry_backoff_ms=50,
            )  # fmt: skip
            try:
                async with asyncio.timeout(STEP_S):
                    await producer.start()
                while not self._over.is_set() and await self._transact(producer):
                    await asyncio.sleep(PAUSE_S)
            except (KafkaError, TimeoutError, AssertionError) as error:  # aiokafka asserts that it knows a broker
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.1)
            finally:
                with suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(STEP_S):
                        await producer.stop()

    async def _transact(self, producer: AIOKafkaProducer) -> bool:
        """Return whether the producer can go on."""
        began, outcome = time.monotonic(), Outcome.ABORTED
        appends, reads = list[Append](), list[Read]()
        commits, steps = self._random.random() >= ABORTED_SHARE, ["append", "append", "read", "read"]
        self._random.shuffle(steps)
        try:
            async with asyncio.timeout(STEP_S):
                await producer.begin_transaction()
                sent = []
                for step in steps:
                    partition = self._random.randrange(PARTITIONS)
                    if step == "append":
                        value, self._number = f"{self._name}/{self._number}", self._number + 1
                        appends.append(Append(partition, value))
                        sent.append(await producer.send(TOPIC, value.encode(), partition=partition))
                    else:
                        reads.append(await self._read(partition))
                if commits:
                    offsets = [record.offset for record in await asyncio.gather(*sent)]
                    outcome = Outcome.UNKNOWN
                    await producer.commit_transaction()
                    outcome = Outcome.COMMITTED
                    appends = [replace(append, offset=at) for append, at in zip(appends, offsets, strict=True)]
                    self._availability.acknowledge()
                else:
                    await producer.abort_transaction()
        except (KafkaError, ReplogError, TimeoutError) as error:
            self.errors[type(error).__name__] += 1
            return False
        finally:
            self._history.add(began, outcome, appends, reads, self._name)
        return True

    async def _read(self, partition: int) -> Read:
        read = await asyncio.to_thread(self._log.read_latest, partition, self._ends[partition])
        self._ends[partition] = read.end
        return read


class EachInTurn(Faults):
    """Kills each broker once, and starts it again when transactions were committed without it."""

    def __init__(self, victims: Sequence[Victim], availability: Availability) -> None:
        super().__init__(victims)
        self._availability = availability

    def _run(self) -> None:
        for victim in self._victims:
            began = time.monotonic()
            self._wait_for_commits()
            victim.kill()
            self._wait_for_commits()
            victim.start()
            self.past.append(Fault("kill -9", victim.name, began, time.monotonic()))

    def _wait_for_commits(self) -> None:
        wanted = self._availability.acknowledged + COMMITS_WITHOUT
        until(lambda: self._availability.acknowledged >= wanted, patience_s=2 * BOUND_S, pause_s=0.01)


def run(folder: Path, seconds: float | None, seed: int) -> Verdict:
    """Disturb brokers for so long (None: kill each of them once), and judge what their clients saw."""
    url, victims = make_brokers(folder, "--kafka", "127.0.0.1:0", has_clock=seconds is not None)
    availability, history = Availability("transaction", BOUND_S), History()
    try:
        for victim in victims:
            victim.start()
        with PartitionClient.connect(url, config=ProducerConfig(timeout_s=TIMEOUT_S)) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=BROKERS, min_isr=2)
            topic = client.topic(TOPIC, isolation="last_stable")
            log = CommittedRecords(client, topic)
            writers = [Writer(victims, f"w{number}", seed, log, history, availability) for number in range(WRITERS)]
            faults = (
                EachInTurn(victims, availability)
                if seconds is None
                else RandomFaults(victims, seed, longest_s=max(SHORTEST_S, seconds / 4))
            )
            return run_workers([*writers, Reader(log, history)], faults, seconds, log, history, availability, KINDS)
    finally:
        for victim in victims:
            victim.end()
