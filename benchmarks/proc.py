"""Other processes: starting jobs, what they use, and what everybody else uses."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.unwaited import reported_s

_ROOT = Path(__file__).parent.parent
_TICK = os.sysconf("SC_CLK_TCK")


class Job:
    """A running function of `benchmarks.jobs`."""

    def __init__(self, name: str, *arguments: Any) -> None:
        command = [sys.executable, "-m", "benchmarks.jobs", name, json.dumps(arguments)]
        self._name = name
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._process.pid

    def answer(self) -> Any:
        """The next line it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"job {self._name} ended with status {self._process.wait()} and no answer")
        return json.loads(line)

    def has_answered(self, timeout_s: float) -> bool:
        """Whether its next line is there, after so long at most; of a job that says one line to each word."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def ask(self, word: str) -> None:
        """Say a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")

    def wait(self, *, killed: bool = False) -> None:
        """Wait for its end: of its own accord, or by the SIGKILL it sends itself."""
        status = self._process.wait()
        if status != (-signal.SIGKILL if killed else 0):
            raise RuntimeError(f"job {self._name} ended with status {status}")

    def kill(self) -> list[str]:
        """End it with SIGKILL; whole lines that it had said, and nobody read."""
        assert self._process.stdout is not None
        self._process.kill()
        return [line for line in self._process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]

    def close(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def job(name: str, *arguments: Any) -> Iterator[Job]:
    """A job that does not outlive the block."""
    started = Job(name, *arguments)
    try:
        yield started
    finally:
        started.close()


def anonymous_bytes(pids: Iterable[int]) -> int:
    """Private memory that no file backs, of some processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                total += int(line.split()[1]) * 1024
    return total


def cpu_ns(pid: int) -> int:
    """CPU time that all threads of a process have used."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


class Load:
    """The share of the cores that others used since it was made; the kernel's own threads count as others."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._busy, self._own = _busy_s(), _own_s()

    def others(self) -> float:
        """A share of all cores, 0 to 1. Children count as ours once they have been waited for, or told of
        (`benchmarks.unwaited`)."""
        cores = (os.cpu_count() or 1) * (time.monotonic() - self._begin)
        return max(_busy_s() - self._busy - (_own_s() - self._own), 0.0) / cores


def _busy_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICK


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + reported_s()
