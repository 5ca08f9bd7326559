"""The writer's lock: one writer per log; a second one is told the process id of the first."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import threading
from pathlib import Path

from pyreplog._native.log.disk import KeptLock
from pyreplog.errors import CorruptionError, LockedError, ReadOnlyError
from pyreplog.log import names
from pyreplog.log.files import lock_range
from pyreplog.regular_files import open_regular

_FLOCK = "hhqqi4x"
_PID_BYTES, _TOKEN_BYTES = 20, 32  # of the file: a number, and behind it perhaps a token, both padded with blanks


class WriterLock:
    """The lock of a log, or of a directory of logs. Held from construction to `release`.

    Args:
        directory: of the log.
        above: lock of the directory in which that one lies; None: nobody in this process has it. Its owner releases it
            after this one.

    Raises:
        LockedError: another handle, of any process, holds it.
        ReadOnlyError: this user may not take it.
    """

    def __init__(self, directory: Path, above: WriterLock | None = None) -> None:
        self._directory, self._above, self._pid = directory, above, os.getpid()
        self._kept: KeptLock | None = None
        self._token = b""  # see `_hold`
        self._holding = threading.Lock()
        self._held = set[Path]()  # directories whose locks this one holds
        path = directory / names.LOCK
        try:
            self._fd = open_regular(path, os.O_RDWR | os.O_CREAT)
        except PermissionError as error:
            raise ReadOnlyError(f"{path} belongs to another user; open the log with mode='r'") from error
        try:
            if not lock_range(self._fd, exclusive=True):
                raise LockedError(directory, _pid_in(self._fd))
            if above is None:
                pid = _holder_above(directory, self._fd)
            else:  # nobody else can hold it by that one; a token may be there that could not be removed
                pid = os.getpid() if directory in above._held else None
            if pid is not None:
                raise LockedError(directory, pid or None)
        except BaseException:
            os.close(self._fd)
            raise
        with contextlib.suppress(OSError):  # on a full disk a second writer is not told the process id of the first
            os.pwrite(self._fd, (b"%d" % self._pid).ljust(_PID_BYTES + _TOKEN_BYTES), 0)

    def close_descriptor(self) -> None:
        """Hold the lock from now on without a descriptor, if that can be: by the lock of the directory above, or else
        by a mapping. A process may have more mappings than descriptors, but a broker has more logs than either."""
        with contextlib.suppress(OSError):
            if self._above is None or not self._above._hold(self._directory, self._fd):
                self._kept = KeptLock(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _hold(self, directory: Path, fd: int) -> bool:
        """Hold the lock of a directory below with this one: its file, which is locked yet, gets the token of this one.

        A token is random, so that one that a killed process has left behind says nothing.
        """
        with contextlib.suppress(OSError), self._holding:
            if self._fd < 0 or not self._directory.samefile(directory / ".."):  # a link leads elsewhere
                return False
            if not self._token:
                token = secrets.token_hex(_TOKEN_BYTES // 2).encode()
                if os.pwrite(self._fd, token, _PID_BYTES) == _TOKEN_BYTES:
                    self._token = token
            if self._token and os.pwrite(fd, self._token, _PID_BYTES) == _TOKEN_BYTES:
                self._held.add(directory)
                return True
        return False

    def _release_directory(self, directory: Path) -> None:
        """Release the lock of a directory below this one."""
        with contextlib.suppress(OSError, CorruptionError):  # the token stays, and other processes find it locked
            fd = open_regular(directory / names.LOCK, os.O_RDWR)
            try:
                os.pwrite(fd, b" " * _TOKEN_BYTES, _PID_BYTES)
            finally:
                os.close(fd)
        self._held.discard(directory)

    def release(self) -> None:
        """Give the lock up. In a forked child this drops the child's share only: the parent keeps the lock."""
        if self._kept is not None:
            self._kept.release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        elif self._kept is None and self._above is not None and self._pid == os.getpid():
            self._above._release_directory(self._directory)
            self._above = None


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
        if _is_locked(fd):
            return _pid_in(fd) or 0
        return _holder_above(directory, fd)
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    return bool(struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)


def _holder_above(directory: Path, fd: int) -> int | None:
    """Process id of who holds the lock of a directory by that of the one above, as `writer_of` has it. fd: of its
    file, which nobody else has locked."""
    token = _token_in(fd)
    if not token:
        return None
    try:
        above = open_regular(directory / ".." / names.LOCK)
    except PermissionError:
        return 0
    except (OSError, CorruptionError):
        return None
    try:
        return (_pid_in(above) or 0) if _is_locked(above) and _token_in(above) == token else None
    finally:
        os.close(above)


def _pid_in(fd: int) -> int | None:
    """As the holder of the lock has put it down; None: it has not yet, or something else is there."""
    text = os.pread(fd, _PID_BYTES, 0).strip()
    return int(text) if text.isdigit() else None


def _token_in(fd: int) -> bytes:
    return os.pread(fd, _TOKEN_BYTES, _PID_BYTES).strip()
