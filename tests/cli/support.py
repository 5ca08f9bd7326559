"""Running commands, and looking into the logs they fill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyreplog

SEGMENT_BYTES = 64 << 10

COMMAND = [sys.executable, "-W", "error", "-m", "pyreplog"]


@dataclass(frozen=True)
class Done:
    """What a command did: exit code and what it printed."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]

KEPT = ("--set", "retention_bytes=none")
"""Of `topic create`: else a command that takes a second removes what a command before it published and nobody wants."""


def process(*arguments: object, data: bytes = b"") -> Done:
    """Run a command as a process with `data` as standard input."""
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def values(path: Path) -> list[bytes]:
    """The values of all entries of a log."""
    with pyreplog.open(path, "r") as log:
        return log[:]


def rows(path: Path) -> list[tuple[bytes | None, int | None, bytes]]:
    """Key, event time and value of all entries of a log."""
    with pyreplog.open(path, "r") as log:
        return [(record.key, record.event_time, record.value) for batch in log.read() for record in batch]
