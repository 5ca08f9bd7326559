"""Opening files safely, when another user or program may have put a pipe or a link in their place.

An open of a pipe blocks until a process writes into it, and a link may lead to a device without an end. The functions
here open without blocking, check that they have opened a regular file, and read no more than a file of pyreplog can
hold.
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
"""Largest size, bytes, of a file with a secret, and of a file with certificates."""

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
    """Open a regular file without blocking; return its descriptor.

    position: position of the file in its log, for the error. Raises OSError if the system refuses, CorruptionError if
    the path is not a regular file.
    """
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
            raise
        raise _not_regular_error(path, position, stat.S_IFMT(Path(path).stat().st_mode)) from error
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind != stat.S_IFREG:
            raise _not_regular_error(path, position, kind)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _not_regular_error(path: str | os.PathLike[str], position: int, kind: int) -> CorruptionError:
    return CorruptionError(Path(path), position, "a file", _KINDS.get(kind, "something else"))


def open_reading(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. Raises the errors of `open_regular`."""
    return os.fdopen(open_regular(path), "rb")


def open_changing(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading and writing. Raises the errors of `open_regular`."""
    return os.fdopen(open_regular(path, os.O_RDWR), "r+b")


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes.

    Raises the errors of `open_regular`, and CorruptionError if the file has more bytes.
    """
    with open_reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1) if size <= limit else b""  # some file systems report no sizes
    if size > limit or len(data) > limit:
        raise CorruptionError(Path(path), 0, f"a file of {limit} bytes at most", f"{max(size, len(data))} bytes")
    return data


def check_regular(path: str | os.PathLike[str], limit: int | None = None, *, missing_ok: bool = False) -> None:
    """Check a file that a library opens by its name: it is a regular file, of at most `limit` bytes.

    It is not opened, since closing it could drop a lock of this process. A directory passes: the library refuses it.

    missing_ok: accept a path that does not exist.

    Raises OSError if the system refuses, CorruptionError if the file is of another kind or too large.
    """
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        if missing_ok:
            return
        raise
    kind = stat.S_IFMT(status.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise _not_regular_error(path, 0, kind)
    if limit is not None and status.st_size > limit:
        raise CorruptionError(Path(path), 0, f"a file of {limit} bytes at most", f"{status.st_size} bytes")
