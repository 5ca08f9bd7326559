"""ProcessIdentity: identifies the process that owns a lease in a file, and tells whether it has ended.

The system reuses process ids, so that a process is identified by its id, its start time and the boot. A process of
another process-id namespace (containers that share a directory) cannot be looked up; its leases end by expiry only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process of this machine, of this boot or an earlier one.

    boot: id of the boot. pid_namespace: inode number of the process-id namespace. pid: process id. started: start time,
    clock ticks since the boot.
    """

    boot: str
    pid_namespace: int
    pid: int
    started: int

    @staticmethod
    def this_process() -> ProcessIdentity:
        """Return the identity of the calling process."""
        pid = os.getpid()
        started = _own_start(pid)
        return ProcessIdentity(_boot(), _pid_namespace(), pid, started if started is not None else 0)

    def is_dead(self) -> bool:
        """Return whether the process has certainly ended."""
        if self.boot != _boot():
            return True
        if self.pid_namespace != _pid_namespace():
            return False
        started = _own_start(self.pid) if self.pid == os.getpid() else _started(self.pid)
        return started != self.started


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


@cache  # by process id, since a forked child has another one
def _own_start(pid: int) -> int | None:
    """Return the start time of this process."""
    return _started(pid)


def _started(pid: int) -> int | None:
    """Return the start time of a process, clock ticks since the boot; None if it does not run, or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the name, in parentheses, may hold any characters
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
