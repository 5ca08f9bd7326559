"""Our broker with a Kafka listener in a process of its own: `python -m benchmarks.peers.kafka.listener FOLDER PORT`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pyreplog.kafka
from benchmarks.peers import java
from benchmarks.peers.replicated.peer import Servers, free_ports
from pyreplog.kafka import KafkaConfig
from pyreplog.metadata.sqlite import SQLiteStore
from pyreplog.partition.broker import Broker


class Listener:
    """Started in a folder of its own; serves at `address` when made."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._servers = Servers()
        self.started_s = time.monotonic()
        """When its process began."""
        self._servers.start([sys.executable, "-m", __name__, str(folder / "data"), str(port)], folder / "broker.log")
        try:
            self._servers.until(lambda: java.listens(port), ConnectionRefusedError)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Of its process."""
        return self._servers.pids

    def close(self) -> None:
        """End it."""
        self._servers.close()


def main(folder: Path, port: int) -> None:
    """Serve until SIGTERM."""
    folder.mkdir()
    with (
        SQLiteStore(folder / "metadata") as store,
        Broker(folder / "broker", "1", store) as broker,
        pyreplog.kafka.Server(broker, config=KafkaConfig(auto_create_topics=False), port=port),
    ):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
