"""`python -m tests.foreign.kafka_streams`: Kafka Streams with exactly_once_v2 on three brokers, all of which are killed in turn.

Two instances of `streams/Totals.java` add numbers by their remainder. Each broker and each instance is killed with
kill -9 and started again meanwhile. Committed records must then be what a program without faults would have written:
one sum for each number, each the one before it plus that number.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from threading import Event, Thread

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.foreign.broker_process import BrokerProcesses
from tests.foreign.maven import JAVA, compile_java, fetch_jars

SUMS = 7
_PARTITIONS = 3
_PATIENCE_S = 240.0
_QUIET = {"log_level": 2}
"""librdkafka says nothing of brokers that are killed."""
_HERE = Path(__file__).parent / "streams"


class Instances:
    """Instances "1", "2", ... of `Totals.java`, each a process.

    Args:
        folder: for their output and their state.
        servers: the value of `bootstrap.servers`.
    """

    def __init__(self, folder: Path, servers: str) -> None:
        self._folder, self._servers = folder, servers
        self._class_path = compile_java(_HERE / "Totals.java", fetch_jars(_HERE / "pom.xml"))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        """Start an instance."""
        with self._log(number).open("ab") as log:
            self._processes[number] = subprocess.Popen(
                ["java", *JAVA, "-cp", self._class_path, "Totals", self._servers, self._folder / f"state-{number}", str(SUMS)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        """kill -9 of all."""
        for number in list(self._processes):
            self.kill(number)

    def output(self) -> str:
        """Return the end of what each has printed."""
        return "\n".join(self._log(number).read_text()[-3000:] for number in sorted(self._processes))

    def _log(self, number: int) -> Path:
        return self._folder / f"instance-{number}.log"


class Numbers:
    """Publishes 0, 1, 2, ... to the topic "numbers" until it is stopped."""

    def __init__(self, servers: str) -> None:
        self.count = 0
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **_QUIET})
        self._stop = Event()
        self._thread = Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stop.wait(0.002):
            self._producer.produce("numbers", b"%d" % self.count, partition=self.count % _PARTITIONS)
            self._producer.poll(0)
            self.count += 1

    def stop(self) -> int:
        """Publish no more; return how many numbers there are, all of which are acknowledged."""
        self._stop.set()
        self._thread.join()
        if left := self._producer.flush(_PATIENCE_S):
            raise TimeoutError(f"{left} numbers were not acknowledged within {_PATIENCE_S} s")
        return self.count


class CommittedTotals:
    """Reads the committed records of the topic "totals"."""

    def __init__(self, servers: str) -> None:
        self.sums: dict[str, list[int]] = defaultdict(list)
        """All sums of a remainder, in their order."""
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "check", "isolation.level": "read_committed",
             "enable.auto.commit": False, **_QUIET}
        )  # fmt: skip
        self._consumer.assign([TopicPartition("totals", number, 0) for number in range(_PARTITIONS)])

    @property
    def count(self) -> int:
        """How many sums were read."""
        return sum(map(len, self.sums.values()))

    def read_until(self, count: int, instances: Instances) -> None:
        """Read until there are so many sums. Raises TimeoutError."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while self.count < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.count} sums of {count} after {_PATIENCE_S} s\n{instances.output()}")
            self.read(0.2)

    def read(self, timeout_s: float) -> None:
        """Read what there is."""
        for message in self._consumer.consume(1000, timeout_s):
            error, key, value = message.error(), message.key(), message.value()
            if error is not None:
                if error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                    raise ValueError(f"totals: {error}")
                continue
            assert key is not None and value is not None
            self.sums[bytes(key).decode()].append(int(value))

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()


def check(sums: dict[str, list[int]], count: int) -> None:
    """Raise ValueError unless the sums are those of 0 to `count` - 1, each of which counts once."""
    for remainder in range(SUMS):
        found = sums.get(str(remainder), [])
        added = sorted(after - before for before, after in zip([0, *found], found, strict=False))
        expected = list(range(remainder, count, SUMS))
        if added != expected:
            missing, extra = set(expected) - set(added), set(added) - set(expected)
            raise ValueError(
                f"remainder {remainder}: expected each of {len(expected)} numbers once, found {len(added)};"
                f" missing {sorted(missing)[:5]}, not published {sorted(extra)[:5]}"
            )


def run(folder: Path) -> str:
    """Run the scenario; return what happened.

    Raises:
        ValueError: a number counts twice, or not at all.
        TimeoutError: sums are missing.
    """
    with BrokerProcesses(folder, 3) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.addresses, **_QUIET})
        config = {"min.insync.replicas": "2"}
        for created in admin.create_topics(
            [NewTopic(name, _PARTITIONS, 3, config=config) for name in ("numbers", "totals")]
        ).values():
            created.result(_PATIENCE_S)
        instances, totals = Instances(folder, brokers.addresses), CommittedTotals(brokers.addresses)
        numbers = Numbers(brokers.addresses)
        try:
            for number in (1, 2):
                instances.start(number)
            totals.read_until(500, instances)
            for victim in (1, 2, 3):
                brokers.kill(victim)
                totals.read_until(totals.count + 500, instances)
                brokers.start(victim)
                instance = 1 + victim % 2
                instances.kill(instance)
                totals.read_until(totals.count + 500, instances)
                instances.start(instance)
            count = numbers.stop()
            totals.read_until(count, instances)
            totals.read(2.0)  # sums that nobody expects
        finally:
            numbers.stop()
            instances.kill_all()
            totals.close()
    check(totals.sums, count)
    return f"{count:,} numbers, each added once, while each of 3 brokers and an instance are killed in turn"


def main() -> None:
    """Run it; print a line of the table. Exits with 1 if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome, failed = f"passes: {run(Path(folder))}", False
        except (ValueError, TimeoutError) as error:
            outcome, failed = f"fails: {error}", True
    print(f"| Kafka Streams, `exactly_once_v2` | brokers and instances | {outcome} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
