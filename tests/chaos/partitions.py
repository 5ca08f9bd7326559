"""Three brokers, of which one at a time is disturbed; the history of their clients is judged by its rules."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from pyreplog import PartitionClient
from pyreplog.errors import OutcomeUnknownError, PartitionError, ReplogError
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.client.partitions import Partitions
from tests.chaos.faults import Availability, Faults, RandomFaults, Worker
from tests.chaos.faults import Outcome as Verdict
from tests.chaos.victims import Victim
from tests.histories.anomalies import anomalies
from tests.histories.history import Append, History, Outcome, Read
from tests.waiting import until

BROKERS, PARTITIONS, WRITERS = 3, 4, 3
BOUND_S = 30.0
TIMEOUT_S = 10.0
PAUSE_S = 0.005
TOPIC = "chaos"


class Writer(Worker):
    """Appends values to partitions by turns; what is refused was not appended."""

    def __init__(self, topic: Partitions, name: str, seed: int, history: History, availability: Availability) -> None:
        self._topic, self._name, self._random = topic, name, Random(f"{seed}/{name}")
        self._history, self._availability = history, availability
        super().__init__()

    def _run(self) -> None:
        number = 0
        with self._topic.producer() as producer:
            while not self._over.wait(PAUSE_S):
                partition, value = self._random.randrange(PARTITIONS), f"{self._name}/{number}"
                number += 1
                began, offset = time.monotonic(), None
                try:
                    offset = producer.append(value.encode(), partition=partition).offset
                    outcome = Outcome.COMMITTED
                    self._availability.acknowledge()
                except OutcomeUnknownError as error:
                    self.errors[type(error).__name__] += 1
                    outcome = Outcome.UNKNOWN
                except PartitionError as error:
                    self.errors[type(error).__name__] += 1
                    outcome = Outcome.ABORTED
                self._history.add(began, outcome, [Append(partition, value, offset)])


class Reader(Worker):
    """Reads each partition from its start on, again and again what is new."""

    def __init__(self, topic: Partitions, history: History) -> None:
        self._topic, self._history = topic, history
        super().__init__()

    def _run(self) -> None:
        ends = dict.fromkeys(range(PARTITIONS), 0)
        while not self._over.wait(PAUSE_S):
            for partition in ends:
                try:
                    began = time.monotonic()
                    read = read_from(self._topic, partition, ends[partition])
                except ReplogError as error:
                    self.errors[type(error).__name__] += 1
                    continue
                if read.end > read.start:
                    self._history.add(began, Outcome.COMMITTED, reads=[read])
                    ends[partition] = read.end


def read_from(topic: Partitions, partition: int, start: int) -> Read:
    """Read what is committed from an offset on."""
    batch = topic[partition].fetch(start, wait=0.05)
    return Read(partition, start, batch.end, tuple((record.offset, (record.value or b"").decode()) for record in batch))


def make_brokers(folder: Path, *options: str, has_clock: bool = True) -> tuple[str, list[Victim]]:
    """Return the URL of the metadata store, and the brokers over it, which do not run yet."""
    url = f"sqlite:{folder / 'metadata.sqlite'}"
    settings = ["--set", "lease_ms=1000", "--set", "lag_ms=2000", "--set", "segment_bytes=1048576"]
    command = ["--json", "--metadata", url, *options, *settings]
    names = [f"broker-{number}" for number in range(1, BROKERS + 1)]
    return url, [
        Victim(name, folder, ["pyreplog", "broker", str(folder / name), *command], has_clock=has_clock)
        for name in names
    ]


def run(folder: Path, seconds: float, seed: int) -> Verdict:
    """Disturb brokers for so long, and judge what their clients saw."""
    url, victims = make_brokers(folder)
    availability, history = Availability("append", BOUND_S), History()
    try:
        for victim in victims:
            victim.start()
        with PartitionClient.connect(url, config=ProducerConfig(timeout_s=TIMEOUT_S)) as client:
            topic = client.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=BROKERS, min_isr=2)
            writers = [Writer(topic, f"w{number}", seed, history, availability) for number in range(WRITERS)]
            workers = [*writers, Reader(topic, history)]
            return run_workers(workers, RandomFaults(victims, seed), seconds, topic, history, availability)
    finally:
        for victim in victims:
            victim.end()


def run_workers(
    workers: Sequence[Worker], faults: Faults, seconds: float | None, topic: Partitions, history: History,
    availability: Availability,
) -> Verdict:  # fmt: skip
    """Let clients work through faults, for so long or until these have no more to do; judge their history."""
    for worker in workers:
        worker.start()
    faults.start()
    faults.wait(seconds)
    faults.end()
    held = availability.report(faults)
    for worker in workers:
        worker.end()
    for partition in range(PARTITIONS):
        history.final[partition] = read_whole(topic, partition)
    errors = sum((worker.errors for worker in workers), Counter[str]())
    return Verdict(availability.acknowledged, check_history(history, errors), held)


def check_history(history: History, errors: Counter[str]) -> int:
    """Print what is wrong with a history, and what became of its transactions; return how much is wrong."""
    found = anomalies(history)
    for anomaly in found[:20]:
        print(f"  {anomaly.kind}: {anomaly.what}")
    outcomes = Counter(transaction.outcome.value for transaction in history.transactions if transaction.appends)
    print(f"  {dict(outcomes)}; {len(found)} anomalies; errors: {dict(errors)}")
    return len(found)


def read_whole(topic: Partitions, partition: int) -> dict[int, str]:
    """Read a partition from its start to its end, as soon as a leader answers and all is committed. It may be empty."""
    (values,) = until(lambda: _read_committed(topic, partition), pause_s=0.1)
    return values


def _read_committed(topic: Partitions, partition: int) -> tuple[dict[int, str]] | None:
    values: dict[int, str] = {}
    try:
        offsets = topic[partition].offsets()
        if min(offsets.high_watermark, offsets.last_stable) < offsets.end:
            return None
        at = 0
        while at < offsets.end:
            read = read_from(topic, partition, at)
            values |= dict(read.records)
            at = read.end
    except ReplogError:
        return None
    return (values,)
