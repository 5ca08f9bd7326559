"""A disk that refuses some calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from pyreplog._native.log.disk import Steps
from pyreplog.errors import DiskFullError
from pyreplog.log.files import RealFiles

from .disk import run_each

Fault = Callable[[], OSError | None]


def io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class FaultyFiles(RealFiles):
    """The real disk, but calls named in `failing` raise an I/O error, and there is no room for segments while `full`."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.full = False
        self.calls: list[str] = []

    def _meet(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise io_error()

    def create(self, path: Path, size: int, *, zeroed: bool) -> int:
        self._meet("create")
        if self.full:
            raise DiskFullError(errno.ENOSPC, f"{path}: {os.strerror(errno.ENOSPC)}")
        return super().create(path, size, zeroed=zeroed)

    def sync(self, fd: int) -> None:
        self._meet("sync")
        super().sync(fd)

    def write_sync(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self.write(fd, data, offset)
        self.sync(fd)

    def run(self, steps: Steps) -> None:
        run_each(self, steps)

    def sync_directory(self, path: Path) -> None:
        self._meet("sync_directory")
        super().sync_directory(path)
