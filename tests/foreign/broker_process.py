"""Brokers with Kafka listeners, each in a process of its own, over one metadata store of SQLite."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyreplog.kafka
from pyreplog.kafka import KafkaConfig
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from tests.ports import free_ports


class BrokerProcesses:
    """Brokers "1", "2", ... below a folder. Ports stay the same over restarts."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._ports = dict(enumerate(free_ports(count), 1))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in self._ports:
            self.start(number)

    @property
    def addresses(self) -> str:
        """The value of `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self, number: int) -> None:
        """Start a broker; return when its listener is there."""
        with (self._folder / f"{number}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.foreign.broker_process", self._folder, str(number), str(self._ports[number])],
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._processes[number] = process
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", (self._folder / f"{number}.log").read_text()[-4000:]

    def kill(self, number: int) -> None:
        """kill -9."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._processes):
            self.kill(number)


def main(folder: Path, name: str, port: int) -> None:
    """Serve until SIGTERM."""
    config = BrokerConfig(lease_ms=2_000, lag_ms=2_000)
    kafka = KafkaConfig(rebalance_delay_ms=0, offsets_partitions=3, replication_factor=3, min_isr=2)
    with (
        SQLiteStore(folder / "metadata") as store,
        Broker(folder / name, name, store, config=config) as broker,
        pyreplog.kafka.Server(broker, config=kafka, port=port),
    ):
        print("ready", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
