"""Brokers as processes of a test, and a client that appends while they fail."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from pyreplog.errors import PartitionTimeoutError, PartitionUnavailableError
from pyreplog.partition.client.partition_client import PartitionClient
from pyreplog.partition.client.partition_producer import ProducerConfig
from pyreplog.partition.client.partitions import Partitions
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


class Processes:
    """Three brokers, and a client of them in this process.

    url: of the metadata store; "": a file of SQLite. urls: what brokers have instead, by their names.
    """

    def __init__(
        self, path: Path, stack: ExitStack, *settings: str, url: str = "", urls: Mapping[str, str] | None = None
    ) -> None:
        self._path, self._settings, self._urls = path, settings, dict(urls or {})
        self.url = url or f"sqlite:{path / 'metadata'}"
        self.running: dict[str, subprocess.Popen[str]] = {}
        stack.callback(self.kill, *"abc")
        self.start(*"abc")
        config = ProducerConfig(timeout_s=PATIENCE_S, batch_bytes=2000)
        self.client = stack.enter_context(PartitionClient.connect(self.url, config=config))

    def start(self, *names: str) -> None:
        for name in names:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.partition.broker_process", str(self._path / name), name,
                 self._urls.get(name, self.url), *self._settings],
                cwd=ROOT, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        for name in names:
            output = self.running[name].stdout
            assert output is not None and output.readline() == "ready\n"

    def kill(self, *names: str) -> None:
        """All at once, with SIGKILL."""
        processes = [self.running.pop(name) for name in names if name in self.running]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def leader(self, topic: Partitions) -> str:
        return until(lambda: topic[0].leader)


class Load:
    """A thread that appends numbers, one behind the other, until the block ends."""

    def __init__(self, topic: Partitions) -> None:
        self._topic, self._stopping = topic, threading.Event()
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self.acknowledged_s: list[float] = []  # when, by the monotonic clock
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                self._topic[0].append(b"%d" % number)
            except PartitionTimeoutError:
                self.unknown.append(number)
            except PartitionUnavailableError:
                pass
            else:
                self.acknowledged_s.append(time.monotonic())
                self.acknowledged.append(number)
            number += 1

    def await_more(self, count: int = 20) -> None:
        wanted = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= wanted, patience_s=3 * PATIENCE_S)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def check(self) -> None:
        values = [int(value or b"") for batch in self._topic[0].read() for value in batch.values()]
        assert values == sorted({*values}), "twice, or out of order"
        assert {*self.acknowledged} <= {*values}, "acknowledged, and lost"
        assert {*values} <= {*self.acknowledged, *self.unknown}, "refused, and there"
