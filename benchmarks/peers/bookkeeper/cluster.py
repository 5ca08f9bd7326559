"""ZooKeeper and bookies, each in a process of its own, and the load of src/main/java on them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.limits.build import ROOT
from benchmarks.peers import java
from benchmarks.peers.replicated.peer import Servers, free_ports
from benchmarks.result import Durability

_BUILT = ROOT / "build" / "bookkeeper"
SERVER_MEMORY = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m")

_BOOKIE = """
metadataServiceUri={uri}
bookiePort={port}
allowLoopback=true
advertisedAddress=127.0.0.1
journalDirectories={folder}/journal
ledgerDirectories={folder}/ledgers
journalSyncData={sync}
journalMaxGroupWaitMSec=1
journalPreAllocSizeMB=16
journalMaxSizeMB=512
skipListSizeLimit=67108864
logSizeLimit=134217728
serverNumIOThreads=2
numAddWorkerThreads=1
autoRecoveryDaemonEnabled=false
httpServerEnabled=false
enableStatistics=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
"""


class Loaded(NamedTuple):
    """What a load found: entries per second; nanoseconds of an entry; how many were read back."""

    rate: float
    p50_ns: int
    p99_ns: int
    read_back: int


def build() -> None:
    """Have Maven fetch BookKeeper, and compile the load."""
    java.package(Path(__file__).parent)


class BookKeeper:
    """ZooKeeper and so many bookies in a folder. synced: a bookie confirms what is on its disk."""

    def __init__(self, folder: Path, durability: Durability, bookies: int = 3) -> None:
        self._servers = Servers()
        keeper, *ports = free_ports(1 + bookies)
        self._uri = f"zk+null://127.0.0.1:{keeper}/ledgers"
        try:
            (folder / "zookeeper").mkdir()
            main = ("org.apache.zookeeper.server.ZooKeeperServerMain", str(keeper), str(folder / "zookeeper"))
            self._serve(folder / "zookeeper.log", "-Dzookeeper.admin.enableServer=false", *main)
            self._servers.until(lambda: java.listens(keeper), ConnectionRefusedError)
            configurations = [configure(folder / str(port), self._uri, port, durability) for port in ports]
            shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(configurations[0]))
            java.run(java_command(*shell, "metaformat", "-nonInteractive", "-force"))
            for configuration in configurations:
                main = ("org.apache.bookkeeper.server.Main", "--conf", str(configuration))
                self._serve(configuration.with_suffix(".log"), *SERVER_MEMORY, *main)
            for port in ports:
                self._servers.until(partial(java.listens, port), ConnectionRefusedError)
        except BaseException:
            self.close()
            raise

    def _serve(self, log: Path, *words: str) -> None:
        self._servers.start(java_command(*words), log)

    def load(self, quorums: tuple[int, int, int], size: int, window: int, warm_up_s: int, seconds: int) -> Loaded:
        """One client appends entries, `window` of them on their way."""
        numbers = (*quorums, size, window, warm_up_s, seconds)
        told = java.run(java_command("-Xmx1g", "pyreplog.Load", self._uri, *map(str, numbers)))
        (line,) = (line for line in told.splitlines() if line.startswith("{"))  # the others are its logs
        return Loaded(**json.loads(line))

    def close(self) -> None:
        self._servers.close()


def configure(folder: Path, uri: str, port: int, durability: Durability, more: str = "") -> Path:
    """Write the configuration of a bookie in a folder of its own; returns its path. more: further lines."""
    folder.mkdir()
    path = folder / "bookie.conf"
    sync = "true" if durability == "synced" else "false"
    path.write_text(_BOOKIE.format(uri=uri, port=port, folder=folder, sync=sync) + more)
    return path


def java_command(*words: str) -> list[str]:
    """That runs a class of BookKeeper, ZooKeeper or src/main/java."""
    return java.command(f"{_BUILT / 'load.jar'}:{_BUILT / 'lib' / '*'}", *words)
