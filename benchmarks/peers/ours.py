"""pyreplog itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyreplog
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
        self.append = self._log.append  # type: ignore[method-assign]  # no call of ours around the one that is measured
        self.append_batch = self._log.append_batch  # type: ignore[method-assign]
        self._views = False

    @staticmethod
    def version() -> str:
        return f"pyreplog {pyreplog.__version__}"

    def append(self, value: bytes, /) -> int:
        return self._log.append(value)

    def append_batch(self, values: list[bytes], /) -> range:
        return self._log.append_batch(values)

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
        if not self._views:
            self.read = self._log.__getitem__  # type: ignore[method-assign]

    def read(self, key: int, /) -> Any:
        return self._log.read(key).value_view

    def disk_bytes(self, directory: Path) -> tuple[int, int]:
        _, allocated = super().disk_bytes(directory)
        return self._log.end_position - self._log.start_position, allocated

    def close(self) -> None:
        self._log.close()


class RecycledPyreplog(Pyreplog):
    """Under retention: its segments are recycled ones."""

    title = "pyreplog, recycled"
    retention_bytes = 128 << 20
