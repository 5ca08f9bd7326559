"""A broker of Kafka in a process of its own, which is its own controller."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

from benchmarks.limits.build import ROOT
from benchmarks.peers.replicated.peer import Servers, free_ports, program

_POM = Path(__file__).parent / "pom.xml"
_LIBRARIES = ROOT / "build" / "kafka" / "lib"
_SECONDS = 600
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
    (found,) = _VERSION.findall(_POM.read_text())
    return str(found)


def build() -> None:
    """Have Maven fetch Kafka."""
    _run([program("mvn", "maven"), "-q", "-B", "-f", str(_POM), "package"])


class Broker:
    """Started in a folder of its own; serves at `address` when made."""

    def __init__(self, folder: Path) -> None:
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        settings = folder / "broker.properties"
        settings.write_text(_SETTINGS.format(port=port, controller=controller, folder=folder))
        _run(_java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)))
        self._servers = Servers()
        self._servers.start(_java("-Xms256m", "-Xmx1g", "kafka.Kafka", str(settings)), folder / "broker.log")
        try:
            self._servers.until(lambda: _listens(port), ConnectionRefusedError)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it."""
        self._servers.close()


def _java(*words: str) -> list[str]:
    return [program("java", "default-jdk-headless"), "-cp", str(_LIBRARIES / "*"), *words]


def _listens(port: int) -> bool:
    socket.create_connection(("127.0.0.1", port)).close()
    return True


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
