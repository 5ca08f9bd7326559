"""WriterLock: one writer per log. The error of a second writer has the process id of the first."""

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
_PID_BYTES, _TOKEN_BYTES = 20, 32  # fields of the lock file, padded with blanks; the token may be missing


class WriterLock:
    """The lock of a log, or of a directory of logs. It is held from construction to `release`.

    Args:
        directory: directory of the log.
        above: lock of the parent directory, which its owner releases after this one; None: this process does not hold
            it.

    Raises:
        LockedError: another handle, of any process, holds the lock.
        ReadOnlyError: this user may not open the lock file for writing.
    """

    def __init__(self, directory: Path, above: WriterLock | None = None) -> None:
        self._directory, self._above, self._pid = directory, above, os.getpid()
        self._kept: KeptLock | None = None
        self._token = b""  # see `_hold`
        self._holding = threading.Lock()
        self._held = set[Path]()  # child directories whose locks are held by this one
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
            else:  # only `above` can hold it; a token in the file may be one that could not be removed
                pid = os.getpid() if directory in above._held else None
            if pid is not None:
                raise LockedError(directory, pid or None)
        except BaseException:
            os.close(self._fd)
            raise
        with contextlib.suppress(OSError):  # on a full disk the error of a second writer lacks the process id
            os.pwrite(self._fd, (b"%d" % self._pid).ljust(_PID_BYTES + _TOKEN_BYTES), 0)

    def close_descriptor(self) -> None:
        """Close the descriptor and keep the lock: through the lock of the parent directory, or else through a mapping.

        A process may have more mappings than descriptors, but a broker has more logs than either. If neither way works,
        the descriptor stays open.
        """
        with contextlib.suppress(OSError):
            if self._above is None or not self._above._hold(self._directory, self._fd):
                self._kept = KeptLock(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _hold(self, directory: Path, fd: int) -> bool:
        """Hold the lock of a child directory through this one; return whether that was possible.

        The token of this lock is written into the child's lock file, which the caller has still locked. A token is
        random: one that a killed process has left matches no later lock.
        """
        with contextlib.suppress(OSError), self._holding:
            if self._fd < 0 or not self._directory.samefile(directory / ".."):  # the child is a link to elsewhere
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
        """Release the lock of a child directory that `_hold` has taken."""
        with contextlib.suppress(OSError, CorruptionError):  # then the child stays locked for other processes
            fd = open_regular(directory / names.LOCK, os.O_RDWR)
            try:
                os.pwrite(fd, b" " * _TOKEN_BYTES, _PID_BYTES)
            finally:
                os.close(fd)
        self._held.discard(directory)

    def release(self) -> None:
        """Release the lock. In a forked child this drops the child's share only: the parent keeps the lock."""
        if self._kept is not None:
            self._kept.release()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        elif self._kept is None and self._above is not None and self._pid == os.getpid():
            self._above._release_directory(self._directory)
            self._above = None


def writer_of(directory: Path) -> int | None:
    """Return the process id of the holder of a log's writer lock, without taking a lock.

    Returns None if the lock is free, 0 if the holder's process id cannot be read.
    """
    try:
        fd = open_regular(directory / names.LOCK)
    except FileNotFoundError:
        return None
    except PermissionError:
        return 0  # the lock may be held
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
    """Return the process id of the process that holds a directory's lock through that of the parent directory.

    The result is that of `writer_of`. fd: the directory's lock file, which no other handle has locked.
    """
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
    """Return the process id in a lock file; None if the holder has not written it yet, or the file is damaged."""
    text = os.pread(fd, _PID_BYTES, 0).strip()
    return int(text) if text.isdigit() else None


def _token_in(fd: int) -> bytes:
    return os.pread(fd, _TOKEN_BYTES, _PID_BYTES).strip()
