"""The writer's lock: one writer per log, whoever comes second learns its process id."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pyreplog.errors import LockedError, ReadOnlyError
from pyreplog.log import names
from pyreplog.log.files import lock_range


class WriterLock:
    """Held from construction to `release`. LockedError when another handle, of any process, holds it;
    ReadOnlyError when this user may not take it."""

    def __init__(self, directory: Path) -> None:
        path = directory / names.LOCK
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise ReadOnlyError(f"{path} belongs to somebody else; open the log with mode='r'") from error
        try:
            if not lock_range(self._fd, exclusive=True):
                raise LockedError(directory, _pid_in(self._fd))
        except BaseException:
            os.close(self._fd)
            raise
        with contextlib.suppress(OSError):  # on a full disk whoever comes second does not learn who was first
            os.pwrite(self._fd, b"%-20d" % os.getpid(), 0)

    def release(self) -> None:
        """Give the lock up. In a forked child this drops the child's share only: the parent keeps the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _pid_in(fd: int) -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.pread(fd, 32, 0))
    return None
