"""The eighth step of the demo: the flights in three brokers of partitions, one of which is killed while it leads."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from children import Child
from verification import Mismatch

import pyreplog
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_handle import PartitionHandle
from pyreplog.partition.client.partition_producer import PartitionProducer, ProducerConfig, RecordPosition
from pyreplog.partition.client.partitions import Partitions

Flight = tuple[bytes | None, bytes]
"""Tail number and row."""

NAMES = ("1", "2", "3")
PARTITIONS, FLIGHTS = 6, 12_000
LEASE_MS = 1_000
WINDOW_BYTES = 128 << 10
"""Small: few flights are on their way when the broker dies, and most come while its partitions change hands."""


class Acknowledged:
    """Where each flight was appended, and when a partition took one again that came after the kill."""

    def __init__(self) -> None:
        self.positions: dict[int, RecordPosition] = {}  # by the number of the flight
        self.first_s: dict[int, float] = {}  # by partition
        self.is_killed = False

    def submit(self, number: int, flight: Flight, producer: PartitionProducer) -> None:
        """Submit a flight, and note where it is once that is known."""
        comes_after = self.is_killed
        key, value = flight
        producer.submit(value, key=key).add_done_callback(lambda future: self._note(number, future, comes_after))

    def _note(self, number: int, future: pyreplog.AppendFuture[RecordPosition], comes_after: bool) -> None:
        """Called by any thread."""
        if future.exception() is None:
            position = self.positions[number] = future.result()
            if comes_after:
                self.first_s.setdefault(position.partition, time.monotonic())


def lose_a_broker(log: Path, directory: Path, url: str) -> Iterator[str]:
    """All of it; yields what there is to say. log: that of the first step. Mismatch: something is not as it must be."""
    with ExitStack() as stack:
        brokers = {name: start(directory / name, url) for name in NAMES}
        for broker in brokers.values():
            stack.callback(broker.close)
        addresses = ",".join(broker.wait_for("kafka") for broker in brokers.values())
        client = stack.enter_context(PartitionClient.connect(url, config=ProducerConfig(window_bytes=WINDOW_BYTES)))
        topic = client.create_topic("flights", partitions=PARTITIONS, replication_factor=len(NAMES), min_isr=2)
        yield f"Three brokers run; Kafka clients find them at {addresses}. {PARTITIONS} partitions have three replicas."
        with pyreplog.open(log, "r") as source:
            flights = [
                flight for batch in source.read(0, FLIGHTS) for flight in zip(batch.keys(), batch.values(), strict=True)
            ]
        acknowledged = Acknowledged()
        yield from publish_and_kill(flights, topic, brokers, acknowledged)
        check(flights, topic, acknowledged)
        yield (
            f"{len(flights):,} flights were acknowledged, and all are there: each once, where it was acknowledged, "
            "those of one aircraft in their order."
        )


def start(directory: Path, url: str) -> Child:
    settings = ("--set", f"lease_ms={LEASE_MS}", "--set", "segment_bytes=4194304")
    return Child(
        "-m", "pyreplog", "broker", str(directory), "--json", "--metadata", url, "--kafka", "127.0.0.1:0", *settings
    )


def publish_and_kill(
    flights: list[Flight], topic: Partitions, brokers: dict[str, Child], acknowledged: Acknowledged
) -> Iterator[str]:
    """Kill a leader half way."""
    half = len(flights) // 2
    with topic.producer() as producer:
        for number in range(half):
            acknowledged.submit(number, flights[number], producer)
        dead, known = topic[0].leader, len(acknowledged.positions)
        led = [partition.number for partition in topic if partition.leader == dead]
        brokers[dead].kill()
        killed_s, acknowledged.is_killed = time.monotonic(), True
        for number in range(half, len(flights)):
            acknowledged.submit(number, flights[number], producer)
        producer.flush()
    if len(acknowledged.positions) != len(flights):
        raise Mismatch(f"{len(acknowledged.positions):,} of {len(flights):,} flights were acknowledged")
    waited_s = max(acknowledged.first_s.get(number, killed_s) for number in led) - killed_s
    leaders = sorted({topic[number].leader for number in led})
    if dead in leaders:
        raise Mismatch(f"broker {dead} was killed, and leads {led}")
    yield (
        f"Killed broker {dead} (SIGKILL), which led {len(led)} of the partitions, with {known:,} flights acknowledged. "
        f"Its partitions are led by {' and '.join(leaders)} now, and took flights again after {waited_s:.2f} s."
    )


def check(flights: list[Flight], topic: Iterable[PartitionHandle], acknowledged: Acknowledged) -> None:
    """Each flight is where it was acknowledged, and nothing else is there. Mismatch."""
    expected: dict[int, dict[int, Flight]] = defaultdict(dict)
    newest: dict[bytes | None, int] = {}
    for number, position in sorted(acknowledged.positions.items()):
        expected[position.partition][position.offset] = flights[number]
        if position.offset <= newest.get(flights[number][0], -1):
            raise Mismatch(f"flight {number} came before an earlier one of the same aircraft: {position}")
        newest[flights[number][0]] = position.offset
    for partition in topic:
        stored = {
            offset: (key, value)
            for batch in partition.read()
            for offset, key, value in zip(batch.offsets.tolist(), batch.keys(), batch.values(), strict=True)
        }
        if stored != expected[partition.number]:
            raise Mismatch(f"{partition.name} has {len(stored):,} flights, not the {len(expected[partition.number]):,}")
