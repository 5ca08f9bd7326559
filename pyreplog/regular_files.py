"""Opening files that somebody else may have put in the place of ours.

Who opens a pipe waits until somebody writes into it, and a link may lead to a device that never ends. Everything here
opens without waiting, and looks at what it has opened before it reads; no more is read than a file of ours can hold.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from pyreplog.errors import CorruptionError

SECRET_FILE_MAX = 1 << 16
PEM_FILE_MAX = 1 << 24
"""Bytes of a file that holds a secret; one certificate or many."""

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def open_regular(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600, *, position: int = 0
) -> int:
    """A descriptor of a regular file. Never waits.

    position: of the file in its log, for the error. Errors: OSError; CorruptionError, there is something else.
    """
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
            raise
        raise _no_file(path, position, stat.S_IFMT(Path(path).stat().st_mode)) from error
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind != stat.S_IFREG:
            raise _no_file(path, position, kind)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _no_file(path: str | os.PathLike[str], position: int, kind: int) -> CorruptionError:
    return CorruptionError(Path(path), position, "a file", _KINDS.get(kind, "something else"))


def open_reading(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading. Errors: as open_regular."""
    return os.fdopen(open_regular(path), "rb")


def open_changing(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading and writing. Errors: as open_regular."""
    return os.fdopen(open_regular(path, os.O_RDWR), "r+b")


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """All bytes of a regular file that holds `limit` bytes at most. Errors: as open_regular; CorruptionError: it has
    more."""
    with open_reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1) if size <= limit else b""  # some file systems know no sizes
    if size > limit or len(data) > limit:
        raise CorruptionError(Path(path), 0, f"a file of {limit} bytes at most", f"{max(size, len(data))} bytes")
    return data


def check_regular(path: str | os.PathLike[str], limit: int | None = None, *, missing_ok: bool = False) -> None:
    """For a file that a library opens by its name: a regular one, of `limit` bytes at most. Does not open it, which
    could drop a lock of this process. A directory is the library's to refuse.

    Errors: OSError; CorruptionError.
    """
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        if missing_ok:
            return
        raise
    kind = stat.S_IFMT(status.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise _no_file(path, 0, kind)
    if limit is not None and status.st_size > limit:
        raise CorruptionError(Path(path), 0, f"a file of {limit} bytes at most", f"{status.st_size} bytes")
