"""Objects as files of a shared or local file system.

A file appears as a whole, and is on disk when the call returns.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from pyreplog.errors import CorruptionError
from pyreplog.log.files import Files, lock_range

PART = ".part"
"""Suffix of files that are being written, which their writer has locked."""


def put(path: Path, parts: Iterable[bytes | memoryview], files: Files) -> None:
    """Write a file, and replace one of its name. Raises OSError."""
    draft, fd = _draft(path, parts, files)
    try:
        files.rename(draft, path)
    except OSError:
        files.remove(draft)
        raise
    finally:
        os.close(fd)
    files.sync_directory(path.parent)


def create(path: Path, data: bytes, files: Files) -> None:
    """Write a file unless one of its name exists.

    Raises FileExistsError; after another OSError the outcome is unknown.
    """
    draft, fd = _draft(path, [data], files)
    try:
        files.link(draft, path)
    finally:
        files.remove(draft)
        os.close(fd)
    files.sync_directory(path.parent)


def sweep(directory: Path, files: Files) -> None:
    """Remove files of writers that were killed, and make completed files durable."""
    for path in directory.glob(f"*{PART}"):
        try:
            fd = files.open(path, writable=True)
        except (FileNotFoundError, CorruptionError):
            continue  # its writer has renamed it, or it is no regular file
        try:
            if lock_range(fd, exclusive=True):
                files.remove(path)
        finally:
            os.close(fd)
    if directory.exists():
        files.sync_directory(directory)


def _draft(path: Path, parts: Iterable[bytes | memoryview], files: Files) -> tuple[Path, int]:
    """Return a synced file beside `path`, and the descriptor that holds its lock."""
    files.make_directory(path.parent, mode=0o777)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    fd = files.create_empty(draft, mode=0o644)
    try:
        if not lock_range(fd, exclusive=True):
            raise OSError(errno.EBUSY, f"{draft} is being removed")
        at = 0
        for part in parts:
            files.write(fd, part, at)
            at += len(part)
        files.sync(fd)
    except BaseException:
        files.remove(draft)
        os.close(fd)
        raise
    return draft, fd
