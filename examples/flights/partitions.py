"""The eighth step of the demo: the flights in three brokers of partitions, one of which is killed while it leads."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
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
LED_ELSEWHERE_S = 2.0
"""Partitions of a dead broker are led by others after so long, with metadata in SQLite: docs/partitions.md."""
GIVEN_UP_S = 60.0
POLL_S, STALL_S = 0.005, 0.05
"""A thread that wants to sleep for POLL_S, and wakes up more than STALL_S later, did not get a core."""
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


class LeaderWatch(threading.Thread):
    """Waits until partitions that a dead broker led are led by others.

    leaders: of the partitions, as soon as all have one. led_s: seconds from the start to that. stalled_s: those of them
    in which this thread could have run and the machine did not let it.
    """

    def __init__(self, partitions: Sequence[PartitionHandle], dead: str) -> None:
        super().__init__(daemon=True)
        self._partitions, self._dead = partitions, dead
        self._began = time.monotonic()
        self.led_s = self.stalled_s = 0.0
        self.leaders: list[str] = []

    def run(self) -> None:
        now = self._began
        while now - self._began < GIVEN_UP_S:
            leaders = [partition.leader for partition in self._partitions]
            if all(leader not in ("", self._dead) for leader in leaders):
                self.leaders = leaders
                break
            time.sleep(POLL_S)
            before, now = now, time.monotonic()
            if now - before - POLL_S > STALL_S:
                self.stalled_s += now - before - POLL_S
        self.led_s = time.monotonic() - self._began

    def check(self) -> None:
        """Raise Mismatch if it took longer than it may, without the time for which the machine was busy otherwise."""
        if not self.leaders:
            raise Mismatch(f"not all partitions of broker {self._dead} are led by others after {GIVEN_UP_S:.0f} s")
        if self.led_s - self.stalled_s > LED_ELSEWHERE_S:
            raise Mismatch(
                f"the partitions of broker {self._dead} were led by others after {self.led_s:.2f} s, of which the "
                f"machine was busy for {self.stalled_s:.2f} s; expected at most {LED_ELSEWHERE_S} s"
            )


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
        watch = yield from publish_and_kill(flights, topic, brokers, acknowledged)
        if url.startswith("sqlite:"):
            watch.check()
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
) -> Generator[str, None, LeaderWatch]:
    """Kill a leader half way; return how its partitions came to others."""
    half = len(flights) // 2
    with topic.producer() as producer:
        for number in range(half):
            acknowledged.submit(number, flights[number], producer)
        dead, known = topic[0].leader, len(acknowledged.positions)
        led = [partition for partition in topic if partition.leader == dead]
        watch = LeaderWatch(led, dead)
        killed_s = time.monotonic()
        brokers[dead].kill()
        watch.start()
        acknowledged.is_killed = True
        for number in range(half, len(flights)):
            acknowledged.submit(number, flights[number], producer)
        producer.flush()
    if len(acknowledged.positions) != len(flights):
        raise Mismatch(f"{len(acknowledged.positions):,} of {len(flights):,} flights were acknowledged")
    watch.join()
    waited_s = max(acknowledged.first_s.get(partition.number, killed_s) for partition in led) - killed_s
    yield (
        f"Killed broker {dead} (SIGKILL), which led {len(led)} of the partitions, with {known:,} flights acknowledged. "
        f"Its partitions were led by {' and '.join(sorted({*watch.leaders}))} after {watch.led_s:.2f} s, and took "
        f"flights again after {waited_s:.2f} s."
    )
    return watch


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
