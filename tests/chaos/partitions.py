"""Three brokers, of which one at a time is disturbed; the history of their clients is judged by its rules, and the round by
what it could have shown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from pyreplog import PartitionClient
from pyreplog.errors import OutcomeUnknownError, PartitionError, ReplogError
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.client.partitions import Partitions
from pyreplog.partition.metadata.topic_metadata import state_key
from pyreplog.partition.protocol.partition_state import PartitionState
from tests.chaos.faults import Availability, Fault, Faults, RandomFaults, Worker
from tests.chaos.faults import Outcome as Verdict
from tests.chaos.victims import Victim
from tests.histories.anomalies import anomalies
from tests.histories.cycles import permitted_cycles
from tests.histories.history import Append, History, Outcome, Read, Transaction
from tests.histories.planted import can_show
from tests.waiting import until

BROKERS, PARTITIONS, WRITERS = 3, 4, 3
BOUND_S = 30.0
TIMEOUT_S = 10.0
PAUSE_S = 0.005
READER_PAUSE_S = 0.05
TOPIC = "chaos"
BEFORE_FAULTS = 10
"""So much is acknowledged before the first fault: one that comes earlier disturbs nobody."""
DISTURBED_S = 0.1
"""An append that takes so long was disturbed: others take some milliseconds, and a fail-over after kill -9 a quarter of
a second."""
SHORTEST_S = 3.0
"""Faults of a short round may be so long: longer than leases and the lag of replicas."""


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
    """Reads all partitions, one after the other, from their start on, again and again what is new."""

    def __init__(self, log: CommittedRecords, history: History) -> None:
        self._log, self._history = log, history
        super().__init__()

    def _run(self) -> None:
        ends = dict.fromkeys(range(PARTITIONS), 0)
        while not self._over.wait(READER_PAUSE_S):
            began, reads = time.monotonic(), []
            for partition in ends:
                try:
                    read = self._log.read_latest(partition, ends[partition])
                except ReplogError as error:
                    self.errors[type(error).__name__] += 1
                    continue
                reads.append(read)
                ends[partition] = read.end
            if any(read.records for read in reads):
                self._history.add(began, Outcome.COMMITTED, reads=reads)


class CommittedRecords:
    """The committed records of a topic, as a client reads them. Any thread may use it."""

    def __init__(self, client: PartitionClient, topic: Partitions) -> None:
        self._store, self.topic = client.store, topic

    def read(self, partition: int, start: int) -> Read:
        """Read what one fetch returns."""
        batch = self.topic[partition].fetch(start)
        records = tuple((record.offset, (record.value or b"").decode()) for record in batch)
        return Read(partition, start, batch.end, records)

    def read_latest(self, partition: int, start: int) -> Read:
        """Read up to the last stable offset, and find out whether no later one was known to any broker.

        A leader lists its offsets when its high watermark includes all that former leaders committed (KIP-207), and no
        other one has committed anything if the metadata store names it, in the same epoch, before and after.
        """
        before = self._leadership(partition)
        offsets = self.topic[partition].offsets()
        at, records = start, list[tuple[int, str]]()
        while True:
            read = self.read(partition, at)
            records += read.records
            if read.end >= offsets.last_stable or read.end == at:
                break
            at = read.end
        is_latest = offsets.last_stable == offsets.high_watermark <= read.end and before == self._leadership(partition)
        return Read(partition, start, read.end, tuple(records), is_latest=is_latest and before is not None)

    def _leadership(self, partition: int) -> tuple[str, int] | None:
        """Return leader and epoch in the metadata store, if the client asks this leader."""
        stored = self._store.get(state_key(self.topic.topic_id, partition))
        state = None if stored is None else PartitionState.decode(stored.value)
        asked = self.topic[partition].leader
        return None if state is None or state.leader != asked else (asked, state.epoch)


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
            log = CommittedRecords(client, topic)
            faults = RandomFaults(victims, seed, longest_s=max(SHORTEST_S, seconds / 4))
            kinds = "write cycle", "read skew"
            return run_workers([*writers, Reader(log, history)], faults, seconds, log, history, availability, kinds)
    finally:
        for victim in victims:
            victim.end()


def run_workers(
    workers: Sequence[Worker], faults: Faults, seconds: float | None, log: CommittedRecords, history: History,
    availability: Availability, kinds: Iterable[str],
) -> Verdict:  # fmt: skip
    """Let clients work through faults, for so long and until each kind of fault had an effect; judge their history.

    seconds: None: until the faults have no more to do. kinds: the cycles that the history must be able to show.
    """
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.end)
            worker.start()
        until(lambda: availability.acknowledged >= BEFORE_FAULTS, patience_s=4 * BOUND_S, pause_s=0.01)
        stack.callback(faults.end)
        faults.start()
        faults.wait(seconds)
        if seconds is not None:
            until(lambda: has_proved(history, faults), patience_s=4 * BOUND_S, pause_s=0.1)
        faults.end()
        held = availability.report(faults)
    for partition in range(PARTITIONS):
        history.final[partition] = read_whole(log, partition)
    errors = sum((worker.errors for worker in workers), Counter[str]())
    lost = check_history(history, errors)
    missing = [] if lost else [f"no {kind} could be seen" for kind in kinds if not can_show(history, kind)]
    missing += check_effects(history, faults)
    for each in missing:
        print(f"  this round proves nothing: {each}")
    return Verdict(availability.acknowledged, lost, held, tuple(missing))


def has_proved(history: History, faults: Faults) -> bool:
    """Whether there was each kind of fault, and those that interrupt have delayed or failed an append; or one failed.

    A broker that is killed while it leads nothing disturbs nobody.
    """
    past = list(faults.past)
    affected = {fault.kind for fault in past if any(map(is_affected, appends_during(history, fault)))}
    return faults.error is not None or (
        faults.is_complete and {fault.kind for fault in past if fault.interrupts} <= affected
    )


def appends_during(history: History, fault: Fault) -> list[Transaction]:
    """Return the appends that were under way during a fault."""
    return [
        each
        for each in list(history.transactions)
        if each.appends and each.began < fault.ended and each.ended > fault.began
    ]


def is_affected(transaction: Transaction) -> bool:
    """Whether an append was delayed, or failed."""
    return transaction.outcome is not Outcome.COMMITTED or transaction.ended - transaction.began > DISTURBED_S


def check_effects(history: History, faults: Faults) -> list[str]:
    """Print what each kind of fault did to appends; return the kinds that did nothing although they must."""
    affected, counts = Counter[str](), Counter(fault.kind for fault in faults.past)
    longest, kinds = dict.fromkeys(counts, 0.0), {fault.kind for fault in faults.past if fault.interrupts}
    for fault in faults.past:
        meanwhile = appends_during(history, fault)
        delays = [each.ended - each.began for each in meanwhile]
        longest[fault.kind] = max(longest[fault.kind], *delays, 0.0)
        affected[fault.kind] += any(map(is_affected, meanwhile))
    for kind, count in counts.items():
        print(
            f"  {kind}: {count}, of which {affected[kind]} delayed or failed something, for up to {longest[kind]:.2f} s"
        )
    return [f"{kind} neither delayed nor failed anything" for kind in sorted(kinds) if not affected[kind]]


def check_history(history: History, errors: Counter[str]) -> int:
    """Print what is wrong with a history, and what became of its transactions; return how much is wrong."""
    found = anomalies(history)
    for anomaly in found[:20]:
        print(f"  {anomaly.kind}: {anomaly.what}")
    outcomes = Counter(transaction.outcome.value for transaction in history.transactions if transaction.appends)
    print(f"  {dict(outcomes)}; {len(found)} anomalies; errors: {dict(errors)}")
    print(f"  transactions in cycles that Kafka permits: {permitted_cycles(history)}")
    return len(found)


def read_whole(log: CommittedRecords, partition: int) -> dict[int, str]:
    """Read a partition from its start to its end, as soon as a leader answers and all is committed. It may be empty."""
    (values,) = until(lambda: _read_committed(log, partition), pause_s=0.1)
    return values


def _read_committed(log: CommittedRecords, partition: int) -> tuple[dict[int, str]] | None:
    values: dict[int, str] = {}
    try:
        offsets = log.topic[partition].offsets()
        if min(offsets.high_watermark, offsets.last_stable) < offsets.end:
            return None
        at = 0
        while at < offsets.end:
            read = log.read(partition, at)
            values |= dict(read.records)
            at = read.end
    except ReplogError:
        return None
    return (values,)
