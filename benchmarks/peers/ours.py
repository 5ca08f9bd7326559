"""pyreplog itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyreplog
from benchmarks.logs import CountingFiles, RecycledLog, settle, stop_retention
from benchmarks.peers.peer import Peer
from pyreplog import LogConfig

VIEWS_FROM = 16384
"""From this size on, scans and reads give views: making a bytes object costs more than checking the entry."""


class Pyreplog(Peer):
    """A log with the default configuration."""

    title = "pyreplog"
    segment_bytes = LogConfig.default_segment_bytes

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._log = self._open(directory / "log", "synced" if synced else "appended")
        self.append = self._log.append
        self.append_batch = self._log.append_batch

    def _open(self, path: Path, durability: str) -> pyreplog.CommitLog:
        return pyreplog.open(path, durability=durability, segment_bytes=self.segment_bytes)

    @staticmethod
    def version() -> str:
        return f"pyreplog {pyreplog.__version__}"

    def warm(self, values: list[bytes]) -> int:
        settle(self._log)
        return 0

    def scan(self) -> tuple[int, int]:
        count = total = 0
        views = self._wants_views()
        for batch in self._log.read():
            values = batch.views() if views else batch.values()
            count += len(values)
            total += sum(map(len, values))
        return count, total

    def values(self) -> Iterator[bytes]:
        for batch in self._log.read():
            yield from batch.values()

    def first(self) -> int:
        return self._log.start

    def reader(self) -> Callable[[int], Any]:
        if not self._wants_views():
            return self._log.__getitem__
        return lambda entry: self._log.get(entry).value_view

    def _wants_views(self) -> bool:
        return len(self._log.get(self._log.start)) >= VIEWS_FROM

    def disk_bytes(self, directory: Path) -> tuple[int, int]:
        _, allocated = super().disk_bytes(directory)
        return self._log.end_position - self._log.start_position, allocated

    def close(self) -> None:
        self._log.close()


class RecycledPyreplog(Pyreplog):
    """The same under retention, written until all its segments are recycled ones."""

    title = "pyreplog, recycled"

    def _open(self, path: Path, durability: str) -> pyreplog.CommitLog:
        self._files = CountingFiles()
        return pyreplog.open(
            path, files=self._files, durability=durability, segment_bytes=self.segment_bytes,
            spare_segments=4, retention_bytes=2 * self.segment_bytes,
        )  # fmt: skip

    def warm(self, values: list[bytes]) -> int:
        return RecycledLog(self._log, self._files, len(values[0])).written

    def values(self) -> Iterator[bytes]:
        stop_retention(self._log)
        return super().values()
