"""A broker in a process of its own: `serve` runs there, `RemoteBroker` talks to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.entries import BATCH, in_turn, make_values, verify
from benchmarks.proc import Job, job
from pyreplog.log.reader import LogReader
from pyreplog.metadata.url import open_store
from pyreplog.partition.broker import Broker
from pyreplog.partition.config import BrokerConfig
from pyreplog.partition.partition import Partition
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.requests import Messages
from pyreplog.partition.topic_partition import TopicPartition

TOPIC = "records"
_PATIENCE_S = 600.0
_POLL_S = 0.001


class RemoteBroker:
    """A running broker; commands are answered one behind the other."""

    def __init__(self, started: Job) -> None:
        self._job = started
        started.answer()

    def call(self, command: str, *arguments: Any) -> Any:
        """What it answers when it is done."""
        self._job.ask(json.dumps([command, *arguments]))
        return self._job.answer()


def remote(stack: ExitStack, directory: Path, name: str, url: str, segment_bytes: int) -> RemoteBroker:
    """A broker, until the stack unwinds."""
    return RemoteBroker(stack.enter_context(job("broker", str(directory), name, url, segment_bytes)))


def serve(directory: str, name: str, url: str, segment_bytes: int) -> None:
    """Be one, until standard input ends."""
    config = BrokerConfig(segment_bytes=segment_bytes)
    with open_store(url) as store, Broker(Path(directory), name, store, config=config) as broker:
        commands = _Commands(broker)
        _say("ready")
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            _say(getattr(commands, command)(*arguments))


class _Commands:
    """What a broker is told to do with partition 0."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def fill(self, size: int, count: int) -> int:
        """Append so many records, as leader; bytes of its log."""
        self._wait(lambda partition: partition.is_leader)
        name, data = TopicPartition(TOPIC, 0), Messages(in_turn(make_values(size), BATCH))
        for _ in range(count // BATCH):
            (response,) = self._broker.replicas.append_records(1, {name: data}).result(_PATIENCE_S).values()
            if response.code is not ErrorCode.NONE:
                raise RuntimeError(f"{response.code.name}: {response.message}")
        return self._wait(lambda partition: partition.high_watermark.entry >= count).high_watermark.position

    def received(self, count: int) -> float:
        """When the broker had so many records and knew that they are committed: seconds of the monotonic clock."""
        self._wait(lambda partition: partition.high_watermark.entry >= count)
        return time.monotonic()

    def verified(self, path: str, size: int, count: int) -> str:
        """Read the log of a replica, here or elsewhere, and compare it with what was appended."""
        with LogReader(Path(path)) as reader:
            return verify(reader, make_values(size), count)

    def _wait(self, is_met: Callable[[Partition], bool]) -> Partition:
        deadline_s = time.monotonic() + _PATIENCE_S
        while (partition := self._broker.partition(TOPIC, 0)) is None or not is_met(partition):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._broker.name}: {partition}")
            time.sleep(_POLL_S)
        return partition


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)
