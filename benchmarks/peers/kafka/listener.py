"""Our broker with a Kafka listener in a process of its own: `pyreplog kafka`, as users start it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.limits.build import ROOT
from benchmarks.peers import java
from benchmarks.peers.replicated.peer import Servers, free_ports
from pyreplog.partition.config import BrokerConfig

_SETTINGS = {"kafka.auto_create_topics": "false", "segment_bytes": str(BrokerConfig().segment_bytes)}
"""Segments have the size that they have on servers: `pyreplog kafka` chooses smaller ones."""


def _environment() -> dict[str, str]:
    """Return the environment of a process that loads compiled modules, as of an installed package. Kafka's are compiled
    as well."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "bytecode")}


class Listener:
    """Started in a folder of its own; serves at `address` when made."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._servers = Servers()
        command = [sys.executable, "-m", "pyreplog", "kafka", str(folder / "data"), "--listen", self.address]
        for setting in _SETTINGS.items():
            command += ["--set", "=".join(setting)]
        self.started_s = time.monotonic()
        """When its process began."""
        self._servers.start(command, folder / "broker.log", _environment())
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
