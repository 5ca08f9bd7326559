"""How much to measure, and where."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FULL_BYTES = 12 << 30
"""Log written per case of the tail-latency row with `full`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a run.

    directory: every file is made below it, so its file system is the one measured. budget: seconds of measuring per
    row. rounds: at least so many turns of each side. uncounted: turns of each side before them, in which what is slow
    at first warms up. segment_bytes: of our logs, and of the bare files beside them. full: write FULL_BYTES in the
    tail-latency row, whatever the budget; and all that other rows take in full. rocketmq: run RocketMQ's store, which
    Maven fetches, beside the stream. kafka: run MirrorMaker 2 between two brokers, which Maven fetches, beside
    geo-replication.
    """

    directory: Path
    budget: float = 10.0
    rounds: int = 5
    uncounted: int = 1
    segment_bytes: int = 64 << 20
    full: bool = False
    rocketmq: bool = False
    kafka: bool = False

    @classmethod
    def tiny(cls, directory: Path) -> Plan:
        """Milliseconds: shows that a benchmark works, and nothing else."""
        return cls(directory=directory, budget=0.02, rounds=1, uncounted=0, segment_bytes=1 << 20)

    def shared(self, cases: int) -> Plan:
        """The same with the budget divided among `cases`."""
        return dataclasses.replace(self, budget=self.budget / cases)

    def once(self) -> Plan:
        """The same with one round that counts, for turns that take long."""
        return dataclasses.replace(self, budget=0.0, rounds=1)

    def scaled(self, most: int, least: int = 256) -> int:
        """A count that shrinks with the budget: `most` from 5 seconds on; a multiple of 256."""
        return max(least, int(most * min(self.budget / 5.0, 1.0)) // 256 * 256)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder of one's own, removed afterwards."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path)
