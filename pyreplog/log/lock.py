"""The writer's lock: one writer per log; a second one is told the process id of the first."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

from pyreplog._native.log.disk import KeptLock
from pyreplog.errors import LockedError, ReadOnlyError
from pyreplog.log import names
from pyreplog.log.files import lock_range
from pyreplog.regular_files import open_regular

_FLOCK = "hhqqi4x"


class WriterLock:
    """Held from construction to `release`. LockedError when another handle, of any process, holds it;
    ReadOnlyError when this user may not take it."""

    def __init__(self, directory: Path) -> None:
        path = directory / names.LOCK
        self._kept: KeptLock | None = None
        try:
            self._fd = open_regular(path, os.O_RDWR | os.O_CREAT)
        except PermissionError as error:
            raise ReadOnlyError(f"{path} belongs to another user; open the log with mode='r'") from error
        try:
            if not lock_range(self._fd, exclusive=True):
                raise LockedError(directory, _pid_in(self._fd))
        except BaseException:
            os.close(self._fd)
            raise
        with contextlib.suppress(OSError):  # on a full disk a second writer is not told the process id of the first
            os.pwrite(self._fd, b"%-20d" % os.getpid(), 0)

    def close_descriptor(self) -> None:
        """Hold the lock from now on without a descriptor: by a mapping, if there may be another one."""
        with contextlib.suppress(OSError):
            self._kept = KeptLock(self._fd)
            os.close(self._fd)
            self._fd = -1

    def release(self) -> None:
        """Give the lock up. In a forked child this drops the child's share only: the parent keeps the lock."""
        if self._kept is not None:
            self._kept.release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def writer_of(directory: Path) -> int | None:
    """Process id of who holds the writer's lock of a log (0 when it cannot be read), None when nobody does. Takes no
    lock."""
    try:
        fd = open_regular(directory / names.LOCK)
    except FileNotFoundError:
        return None
    except PermissionError:
        return 0  # perhaps somebody does
    try:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
        return None if kind == fcntl.F_UNLCK else _pid_in(fd) or 0
    finally:
        os.close(fd)


def _pid_in(fd: int) -> int | None:
    """As the holder of the lock has put it down; None: it has not yet, or something else is there."""
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
