"""What every replicated store in the table can do."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, TypeVar

from benchmarks.result import Durability

_START_S = 60.0

T = TypeVar("T")


class ReplicatedPeer(ABC):
    """A store whose servers, started in a directory of its own, replicate every entry over TCP.

    A call returns when the entry has as many copies as the store confirms with, each as durable as asked for: it
    survives the server processes ("appended") or the machines, too ("synced").
    """

    title: ClassVar[str]
    durabilities: ClassVar[frozenset[Durability]] = frozenset({"appended"})
    batch: ClassVar[int] = 256
    """Entries in one call of `append_batch`: as many as suit the store's client."""

    @abstractmethod
    def __init__(self, directory: Path, durability: Durability) -> None: ...

    @staticmethod
    @abstractmethod
    def version() -> str:
        """Of the store and of its Python package."""

    @abstractmethod
    def start(self) -> None:
        """Forget all entries."""

    @abstractmethod
    def append(self, value: bytes) -> None: ...

    @abstractmethod
    def append_batch(self, values: list[bytes]) -> None:
        """All in one transaction, pipeline or window."""

    def flush(self) -> None:  # noqa: B027 - only ours leaves anything
        """Wait for all that `append_batch` has left on its way."""

    @abstractmethod
    def values(self) -> Iterable[bytes]:
        """All since `start`, in order."""

    @abstractmethod
    def close(self) -> None: ...


class Servers:
    """Server processes that are ended together."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []

    def start(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        """Run a command; what it says goes into a file. environment: None: that of this process."""
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd="/", env=environment)
        self._running.append(process)
        self._logs.append(log)

    @property
    def pids(self) -> list[int]:
        """Of all of them."""
        return [process.pid for process in self._running]

    def check(self) -> None:
        """ChildProcessError: one of them has ended."""
        for process, log in zip(self._running, self._logs, strict=True):
            if process.poll() is not None:
                raise ChildProcessError(f"a server ended with status {process.returncode}: {log.read_text()[-1000:]}")

    def until(self, ready: Callable[[], T | None], *expected: type[Exception]) -> T:
        """What `ready` gives as soon as it gives something and raises none of `expected`."""
        deadline = time.monotonic() + _START_S
        while True:
            self.check()
            try:
                found = ready()
            except expected:
                if time.monotonic() > deadline:
                    raise
                found = None
            if found is not None:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"servers not ready after {_START_S} s: {self._logs[-1].read_text()[-1000:]}")
            time.sleep(0.02)

    def close(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(_START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def program(name: str, package: str) -> str:
    """Where it is. FileNotFoundError says what to install."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        raise FileNotFoundError(f"{name}: install it (apt-get install {package}) to compare with it")
    return found
