"""Processes of ours for which nobody waits: the kernel adds their CPU time to nobody's.

A process that ignores SIGCHLD leaves its children to the kernel. Spark's daemon does, and its Python workers are such
children; so what they use is looked up while they run.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_SIGCHLD = 1 << signal.SIGCHLD - 1

_Process = tuple[int, int]
"""Id, and when it was started: ids come again."""

_reported: dict[int, float] = {}


class Unwaited:
    """Those below this process, and the CPU time that each had when it was looked at last. For one thread."""

    def __init__(self) -> None:
        self._used: dict[_Process, float] = {}

    def measure(self) -> float:
        """Seconds that all of them used, those included that have ended since they were looked at."""
        children: dict[int, list[tuple[_Process, float]]] = defaultdict(list)
        for parent, process, used in _processes():
            children[parent].append((process, used))
        below = [os.getpid()]
        for parent in below:
            below += [pid for (pid, _), _ in children[parent]]
            if _waits_for_nobody(parent):
                self._used |= children[parent]
        return sum(self._used.values())


def count_as_own(job: int, seconds: float) -> None:
    """What a job found so far, by its process id: no others used it."""
    _reported[job] = seconds


def reported_s() -> float:
    """Of all jobs."""
    return sum(_reported.values())


def _processes() -> Iterator[tuple[int, _Process, float]]:
    """(parent, process, CPU seconds) of all there are."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # the name before it may hold anything
        except OSError:  # it has ended
            continue
        yield int(fields[1]), (int(stat.parent.name), int(fields[19])), (int(fields[11]) + int(fields[12])) / _TICK


def _waits_for_nobody(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ignored = next((line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), "0")
    return bool(int(ignored, 16) & _SIGCHLD)
