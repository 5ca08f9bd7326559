"""A broker of Kafka in a process of its own, which is its own controller."""

from __future__ import annotations

import re
import time
from pathlib import Path

from benchmarks.limits.build import ROOT
from benchmarks.peers import java
from benchmarks.peers.replicated.peer import Servers, free_ports

_HERE = Path(__file__).parent
_LIBRARIES = ROOT / "build" / "kafka" / "lib"
_VERSION = re.compile(r"<kafka.version>([^<]+)<")
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"

_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/logs
num.network.threads=2
num.io.threads=2
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def version() -> str:
    """Of the broker."""
    (found,) = _VERSION.findall((_HERE / "pom.xml").read_text())
    return str(found)


def build() -> None:
    """Have Maven fetch Kafka, and MirrorMaker 2."""
    java.package(_HERE)


class Broker:
    """Started in a folder of its own; serves at `address` when made."""

    def __init__(self, folder: Path) -> None:
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        settings = folder / "broker.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=folder))
        java.run(java_command("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)))
        self._servers = Servers()
        self.started_s = time.monotonic()
        """When its process began, after its folder was formatted."""
        self._servers.start(java_command("-Xms256m", "-Xmx1g", "kafka.Kafka", str(settings)), folder / "broker.log")
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


def java_command(*words: str) -> list[str]:
    """Of a class of Kafka. words: options, the class, its arguments."""
    return java.command(str(_LIBRARIES / "*"), *words)
