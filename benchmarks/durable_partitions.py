"""`python -m benchmarks.durable_partitions [PARTITIONS …]`: durable appends per second over partitions of one broker.

One broker, topics with `requires_sync`, as many threads as `--clients`. Each appends one message to a partition after
another, waits until all are on the disk, and begins again.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.metadata.topic_metadata import create_topic
from pyreplog.partition.protocol.error_codes import ACKS_ALL, ErrorCode
from pyreplog.partition.requests import Messages
from pyreplog.partition.topic_partition import TopicPartition

_WAIT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure durable appends over many partitions of one broker.")
    parser.add_argument("partitions", nargs="*", type=int, default=[1, 10, 100], metavar="PARTITIONS")
    parser.add_argument("--directory", type=Path, default=Path(), help="logs are made below it")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=1)
    arguments = parser.parse_args()
    print("partitions\tclients\tdurable appends/s\tmean latency")
    for count in arguments.partitions:
        with tempfile.TemporaryDirectory(prefix="durable-", dir=arguments.directory) as folder:
            appended, rounds, seconds = measure(Path(folder), count, arguments.clients, arguments.seconds)
        latency = seconds * arguments.clients / rounds
        print(f"{count}\t{arguments.clients}\t{appended / seconds:,.0f}\t{latency * 1e3:.1f} ms")
    return 0


def measure(folder: Path, partitions: int, clients: int, seconds: float) -> tuple[int, int, float]:
    """Return the number of durable appends, of rounds over all partitions, and the seconds that they took."""
    with SQLiteStore(folder / "metadata") as store:
        config = BrokerConfig(segment_bytes=1 << 20)
        with Broker(folder / "a", "a", store, _NoBrokers(), config=config) as broker:
            create_topic(store, "t", partitions=partitions, replication_factor=1, now_us=1, requires_sync=True)
            names = [TopicPartition("t", number) for number in range(partitions)]
            for name in names:
                _append(broker, [name])
            counts: list[tuple[int, int]] = []
            deadline = time.monotonic() + seconds

            def client() -> None:
                appended = rounds = 0
                while time.monotonic() < deadline:
                    appended, rounds = appended + _append(broker, names), rounds + 1
                counts.append((appended, rounds))

            began = time.monotonic()
            threads = [threading.Thread(target=client) for _ in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.monotonic() - began
    return sum(appended for appended, _ in counts), sum(rounds for _, rounds in counts), took


def _append(broker: Broker, names: list[TopicPartition]) -> int:
    """Append to each partition, and wait until all is on the disk; again where it is refused, which only happens before
    the partitions have leaders."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        future = broker.replicas.append_records(
            ACKS_ALL, {name: Messages([b"x" * 100]) for name in names}, durable=True
        )  # fmt: skip
        responses = future.result(_WAIT_S)
        if all(response.code is ErrorCode.NONE for response in responses.values()):
            return len(names)
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected appends to succeed, found {responses}")
        time.sleep(0.01)


class _NoBrokers:
    """The transport of a broker that is alone."""

    def fetch(self, *_: object) -> object:
        raise AssertionError("expected no fetch")


if __name__ == "__main__":
    raise SystemExit(main())
