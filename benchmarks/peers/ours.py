"""pyreplog itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyreplog
from benchmarks.logs import settle
from benchmarks.peers.peer import Peer

VIEWS_FROM = 16384
"""From this size on, scans and reads give views: making bytes objects of it costs more than finding and checking them."""


class Pyreplog(Peer):
    """A log with the default configuration."""

    title = "pyreplog"
    retention_bytes: int | None = None

    def __init__(self, directory: Path, *, synced: bool) -> None:
        self._path = directory / "log"
        self._log = pyreplog.open(
            self._path, durability="synced" if synced else "appended", retention_bytes=self.retention_bytes
        )
        self.append = self._log.append
        self.append_batch = self._log.append_batch
        self._views = False

    @staticmethod
    def version() -> str:
        return f"pyreplog {pyreplog.__version__}"

    def settle(self) -> None:
        settle(self._log)

    def scan(self) -> tuple[int, int]:
        count = total = 0
        for batch in self._log.scan():
            values = batch.views() if self._views else batch.values()
            count += len(values)
            total += sum(map(len, values))
        return count, total

    def values(self) -> Iterator[bytes]:
        for batch in self._log.scan():
            yield from batch.values()

    def start_reading(self) -> None:
        self._views = len(self._log.read(self._log.start)) >= VIEWS_FROM
        self.read = self._view if self._views else self._log.__getitem__

    def _view(self, entry: int) -> memoryview:
        return self._log.read(entry).value_view

    def first(self) -> int:
        return self._log.start

    def disk_bytes(self, directory: Path) -> tuple[int, int]:
        _, allocated = super().disk_bytes(directory)
        return self._log.end_position - self._log.start_position, allocated

    def close(self) -> None:
        self._log.close()


class RecycledPyreplog(Pyreplog):
    """Under retention: its segments are recycled ones."""

    title = "pyreplog, recycled"
    retention_bytes = 128 << 20
