"""Apache Kafka and our Kafka listener in one run, with Kafka's clients: `python -m benchmarks.peers.kafka.beside`.

One broker each, a topic of one partition and one replica for each turn, acks=all, otherwise the default settings of the
clients. Turns alternate; the table has their medians. What is consumed is compared with what was produced. Maven
fetches Kafka: it needs mvn and Java (apt-get install maven), and confluent-kafka (pip install --group kafka).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from benchmarks import machine, report
from benchmarks.limits.build import ROOT
from benchmarks.peers.kafka import broker
from benchmarks.peers.kafka.broker import Broker, java_command
from benchmarks.peers.kafka.listener import Listener
from benchmarks.proc import Load, cpu_ns

try:
    import confluent_kafka
    from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}: pip install --group kafka") from None

_HERE = Path(__file__).parent
_PATIENCE_S = 120.0
_SYNCED = {"Kafka": {"flush.messages": "1"}, "pyreplog": {"requires.sync": "true"}}
"""Settings of a topic with which each message is on the disk before it is acknowledged."""
_IDLE_TOPICS = 100

Server: TypeAlias = Broker | Listener
Client: TypeAlias = Callable[[str, str, int, int, Callable[[], None]], float]


class Side(NamedTuple):
    """One of the two."""

    name: str
    start: Callable[[Path], Server]


SIDES = (Side("Kafka", Broker), Side("pyreplog", Listener))


class Measured(NamedTuple):
    """A turn: messages per second, CPU seconds of the broker for each GB."""

    rate: float
    cpu_s_per_gb: float


# ---- clients -------------------------------------------------------------------------------------------------------


def message(number: int, size: int) -> bytes:
    """Message n begins with n and goes on with its lowest byte, as in KafkaLoad.java."""
    return number.to_bytes(8, "big") + bytes([number & 255]) * (size - 8)


def produce_c(address: str, topic: str, count: int, size: int, started: Callable[[], None]) -> float:
    """Return the seconds in which confluent-kafka produces so many messages. started: is called when it begins."""
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.list_topics(topic, _PATIENCE_S)
    errors = []

    def note(error: object, _: Message) -> None:
        if error is not None:
            errors.append(error)

    values = [message(number, size) for number in range(count)]
    started()
    begin = time.monotonic()
    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=0, on_delivery=note)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(_PATIENCE_S)
    seconds = time.monotonic() - begin
    if left or errors:
        raise RuntimeError(f"{left} messages were not acknowledged, {errors[:1]}")
    return seconds


def consume_c(address: str, topic: str, count: int, size: int, started: Callable[[], None]) -> float:
    """Return the seconds in which confluent-kafka consumes them. Raises ValueError: it got others."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.list_topics(topic, _PATIENCE_S)
    values: list[bytes | None] = []
    started()
    begin = time.monotonic()
    consumer.assign([TopicPartition(topic, 0, 0)])
    while len(values) < count:
        for item in consumer.consume(10_000, 0.1):
            if item.error():
                raise KafkaException(item.error())
            values.append(item.value())
        if time.monotonic() - begin > _PATIENCE_S:
            raise TimeoutError(f"{len(values)} of {count} messages")
    seconds = time.monotonic() - begin
    consumer.close()
    if values != [message(number, size) for number in range(count)]:
        raise ValueError("other messages were consumed than those that were produced")
    return seconds


def run_java(word: str, address: str, topic: str, count: int, size: int, started: Callable[[], None]) -> str:
    """Return what KafkaLoad.java prints."""
    command = java_command(
        "-Xms256m", "-Xmx1g", str(_HERE / "KafkaLoad.java"), word, address, topic, str(count), str(size)
    )
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(process.communicate()[1][-2000:])
    started()
    output, errors = process.communicate("go\n", 2 * _PATIENCE_S)
    if process.returncode:
        raise RuntimeError(errors[-2000:])
    return output.strip()


def produce_java(address: str, topic: str, count: int, size: int, started: Callable[[], None]) -> float:
    """Return the seconds in which Kafka's Java client produces so many messages."""
    return float(run_java("produce", address, topic, count, size, started))


def consume_java(address: str, topic: str, count: int, size: int, started: Callable[[], None]) -> float:
    """Return the seconds in which Kafka's Java client consumes them, and compares them."""
    return float(run_java("consume", address, topic, count, size, started))


CLIENTS = {"confluent-kafka": (produce_c, consume_c), "Java": (produce_java, consume_java)}

# ---- what is measured ----------------------------------------------------------------------------------------------


def create_topic(side: Side, address: str, name: str, synced: bool = False) -> None:
    """Create a topic of one partition."""
    settings = _SYNCED[side.name] if synced else {}
    admin = AdminClient({"bootstrap.servers": address})  # its futures end with it
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(_PATIENCE_S)


def first_acknowledged_s(side: Side, server: Server) -> float:
    """Return the seconds from the start of a process with an empty folder to the first message it acknowledges."""
    settings: dict[str, Any] = {
        "bootstrap.servers": server.address,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 20,
    }
    while True:
        admin = AdminClient(settings)
        try:
            admin.create_topics([NewTopic("first", 1, 1)], request_timeout=5.0)["first"].result(_PATIENCE_S)
            break
        except KafkaException as error:
            if time.monotonic() - server.started_s > _PATIENCE_S:
                raise TimeoutError(f"{side.name}: no topic after {_PATIENCE_S} s") from error
    producer = Producer(settings | {"acks": "all", "linger.ms": 0, "topic.metadata.refresh.fast.interval.ms": 20})
    producer.produce("first", b"x", partition=0)
    if producer.flush(_PATIENCE_S):
        raise TimeoutError(f"{side.name}: nothing is acknowledged after {_PATIENCE_S} s")
    return time.monotonic() - server.started_s


def memory_mib(server: Server) -> float:
    """Return the memory of its process that no other one shares, in MiB."""
    kib = 0
    for pid in server.pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")) and not line.startswith("Private_Hugetlb"):
                kib += int(line.split()[1])
    return kib / 1024


def turn(server: Server, run: Client, topic: str, count: int, size: int) -> Measured:
    """Measure one turn of a client."""
    before = 0

    def started() -> None:
        nonlocal before
        before = sum(map(cpu_ns, server.pids))

    seconds = run(server.address, topic, count, size, started)
    cpu_s = (sum(map(cpu_ns, server.pids)) - before) / 1e9
    return Measured(count / seconds, cpu_s / (count * size / 1e9))


class Contest:
    """Both brokers, and what was measured with them.

    Args:
        folder: for their data.
        rounds: turns of each.
        scale: 1.0: about as many messages as a client sends in two seconds.
        synced: each message is on the disk before it is acknowledged.
    """

    def __init__(self, folder: Path, rounds: int, scale: float, synced: bool) -> None:
        self._folder, self._rounds, self._scale, self._synced = folder, rounds, scale, synced
        self._rows: list[tuple[str, dict[str, float], bool]] = []

    def add(self, title: str, values: dict[str, list[float]], *, more_is_better: bool) -> None:
        """Note a row of the table: the medians."""
        row = {name: statistics.median(numbers) for name, numbers in values.items()}
        self._rows.append((title, row, more_is_better))
        print(f"{title}: {row}", flush=True)

    def run(self) -> None:
        """Start both for each figure that needs a new broker, then once for the rest."""
        starts, idle = defaultdict(list), defaultdict(list)
        for number in range(self._rounds):
            for side in SIDES:
                folder = self._folder / f"start-{side.name}-{number}"
                folder.mkdir()
                server = side.start(folder)
                try:
                    starts[side.name].append(first_acknowledged_s(side, server))
                    if number == 0:
                        for topic in range(_IDLE_TOPICS):
                            create_topic(side, server.address, f"idle-{topic}")
                        idle[side.name].append(memory_mib(server))
                finally:
                    server.close()
        self.add("start of an empty broker to the first acknowledged message, s", starts, more_is_better=False)
        self.add(f"memory of an idle broker with {_IDLE_TOPICS} partitions, MiB", idle, more_is_better=False)
        servers: dict[str, Server] = {}
        try:
            for side in SIDES:
                folder = self._folder / side.name
                folder.mkdir()
                servers[side.name] = side.start(folder)
            self._load(servers)
            self._latency(servers)
        finally:
            for server in servers.values():
                server.close()

    def _load(self, servers: dict[str, Server]) -> None:
        for size, count in ((100, 600_000), (1024, 200_000)):
            count = int(count * self._scale * (0.2 if self._synced else 1))
            for client, calls in CLIENTS.items():
                rates: list[dict[str, list[float]]] = [defaultdict(list), defaultdict(list)]
                costs: list[dict[str, list[float]]] = [defaultdict(list), defaultdict(list)]
                for number in range(self._rounds + 1):
                    for side in SIDES if number % 2 else SIDES[::-1]:
                        topic = f"{client}-{size}-{number}"
                        create_topic(side, servers[side.name].address, topic, self._synced)
                        for place, call in enumerate(calls):
                            measured = turn(servers[side.name], call, topic, count, size)
                            if number:  # the first turn warms up
                                rates[place][side.name].append(measured.rate)
                                costs[place][side.name].append(measured.cpu_s_per_gb)
                for place, word in enumerate(("produce", "consume")):
                    title = f"{word}, {size} B, {client}"
                    self.add(f"{title}, messages/s", rates[place], more_is_better=True)
                    self.add(f"{title}, CPU s of the broker per GB", costs[place], more_is_better=False)

    def _latency(self, servers: dict[str, Server]) -> None:
        medians, tails = defaultdict(list), defaultdict(list)
        for number in range(self._rounds):
            for side in SIDES if number % 2 else SIDES[::-1]:
                address, topic = servers[side.name].address, f"latency-{number}"
                create_topic(side, address, topic, self._synced)
                median, tail = run_java("latency", address, topic, 4000, 100, lambda: None).split()
                medians[side.name].append(int(median) / 1e6)
                tails[side.name].append(int(tail) / 1e6)
        self.add("end-to-end latency, 100 B, Java, linger.ms=0, median ms", medians, more_is_better=False)
        self.add("end-to-end latency, 100 B, Java, linger.ms=0, p99 ms", tails, more_is_better=False)

    def table(self) -> str:
        """Return the table. A ratio above 1 means that ours is the better one."""
        lines = ["| | Kafka | pyreplog | ratio |", "|---|---|---|---|"]
        for title, row, more_is_better in self._rows:
            kafka, ours = (row[side.name] for side in SIDES)
            ratio = ours / kafka if more_is_better else kafka / ours
            lines.append(f"| {title} | {_number(kafka)} | {_number(ours)} | {ratio:.2f} |")
        return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.kafka.beside", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of messages")
    parser.add_argument("--synced", action="store_true", help="messages are on the disk before they are acknowledged")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "bench-data")
    options = parser.parse_args()
    print(report.header(machine.describe(options.directory)), flush=True)
    broker.build()
    load = Load()
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=options.directory) as folder:
        contest = Contest(Path(folder), options.rounds, options.scale, options.synced)
        contest.run()
    print(f"\n{contest.table()}\n")
    print(
        f"Kafka {broker.version()} and its Java client, confluent-kafka {confluent_kafka.__version__}. A ratio above 1 "
        f"means that pyreplog is the better one. {os.cpu_count()} cores, of which others used {load.others():.0%}."
    )


if __name__ == "__main__":
    main()
