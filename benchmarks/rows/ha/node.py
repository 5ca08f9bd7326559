"""A node of a replica group in a process of its own: `serve` runs there, `RemoteNode` talks to it."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.entries import BATCH, in_turn, make_values, stride, verify
from benchmarks.logs import fill
from benchmarks.proc import Job, anonymous_bytes, cpu_ns, job
from pyreplog import ha
from pyreplog.config import LogConfig
from pyreplog.errors import TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.ha.node import Node

_PATIENCE_S = 600.0
_POLL_S = 0.001


class RemoteNode:
    """A running node; commands are answered one behind the other."""

    def __init__(self, started: Job) -> None:
        self._job, self.pid = started, started.pid
        self.address: str = started.answer()

    def call(self, command: str, *arguments: Any) -> Any:
        """What it answers when it is done."""
        self.ask(command, *arguments)
        return self.answer()

    def ask(self, command: str, *arguments: Any) -> None:
        self._job.ask(json.dumps([command, *arguments]))

    def answer(self) -> Any:
        return self._job.answer()

    def has_answered(self, timeout_s: float) -> bool:
        """Whether `answer` would not wait, after so long at most."""
        return self._job.has_answered(timeout_s)

    def cpu_s(self) -> float:
        """Of the process, so far."""
        return cpu_ns(self.pid) / 1e9

    def private_bytes(self) -> int:
        return anonymous_bytes([self.pid])


def remote(
    stack: ExitStack, path: Path, name: str, *, master: str | None = None, busy_poll_us: int = 0, **settings: Any
) -> RemoteNode:
    """A master (`master` is None), or a replica of the one at that address, until the stack unwinds."""
    return RemoteNode(stack.enter_context(job("ha_node", str(path), name, master, settings, busy_poll_us)))


def opened(path: str | Path, name: str, master: str | None, settings: dict[str, Any], busy_poll_us: int) -> Node:
    """A node in this process. settings: fields of LogConfig as `log`; and those of NodeConfig."""
    settings = settings | {"log": LogConfig(**settings.get("log", {}))}
    if master is None:
        return ha.open_master(path, name=name, busy_poll_us=busy_poll_us, **settings)
    return ha.open_replica(path, name=name, master=master, busy_poll_us=busy_poll_us, **settings)


def serve(path: str, name: str, master: str | None, settings: dict[str, Any], busy_poll_us: int) -> None:
    """Be one, until standard input ends."""
    begin = time.monotonic()
    with opened(path, name, master, settings, busy_poll_us) as node:
        commands = _Commands(node, begin)
        _say(node.address)
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            _say(getattr(commands, command)(*arguments))


class _Commands:
    """What a node is told to do. begin: when it was opened, monotonic."""

    def __init__(self, node: Node, begin: float) -> None:
        self._node, self._begin = node, begin

    def fill(self, size: int, count: int) -> int:
        """Append so many entries, which no replica is waited for; the position of the log's end."""
        fill(self._node.log, make_values(size), count)
        return self._node.log.end_position

    def received(self, position: int) -> float:
        """Seconds from opening the node until it had all before a position."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._node._log is None or self._node.log.tail.end < position:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._node.stats()}: has not received {position}")
            time.sleep(_POLL_S)
        return time.monotonic() - self._begin

    def verified(self, size: int, values: int, entries: int) -> str:
        """Once its readers see so many entries, the first few values in turn: read all back, and compare."""
        log, deadline = self._node.log, time.monotonic() + _PATIENCE_S
        while log.end < entries and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        while True:
            try:
                return verify(log, make_values(size)[:values], entries)
            except TrimmedError:  # retention still removes what a load left behind; the remainder is read instead
                continue

    def load(self, size: int, seconds: float, window_bytes: int) -> dict[str, float]:
        """Append without a pause, but for `window_bytes` that no replica has; bytes per second until all were
        confirmed, entries in all, and the largest lag that the master saw."""
        values, waiting = in_turn(make_values(size), BATCH), deque[AppendFuture[range]]()
        most = window_bytes // (stride(size) * BATCH)
        node, lag = self._node, 0
        first, begin = node.log.tail.end_entry, time.monotonic()
        while time.monotonic() < begin + seconds or not waiting:
            waiting.append(node.submit_batch(values))
            if len(waiting) >= most:
                lag = max(lag, node.log.tail.end - node.committed.position)
                waiting.popleft().result(_PATIENCE_S)
        waiting[-1].result(_PATIENCE_S)
        entries = node.log.tail.end_entry - first
        return {"rate": entries * size / (time.monotonic() - begin), "entries": node.log.tail.end_entry, "lag": lag}


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)
