"""Objects as files of a shared or local file system: each appears whole, and is on disk when a call returns."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from pyreplog.log.files import RealFiles, lock_range

PART = ".part"
"""At the end of the names of files that are being written, under a lock of their writer."""


def put(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Make a file of these parts, in place of one of its name. OSError."""
    draft, fd = _draft(path, parts)
    try:
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    RealFiles().sync_directory(path.parent)


def create(path: Path, data: bytes) -> None:
    """Make a file, if there is none of its name. FileExistsError; any other OSError: nobody knows."""
    draft, fd = _draft(path, [data])
    try:
        path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
        os.close(fd)
    RealFiles().sync_directory(path.parent)


def sweep(directory: Path) -> None:
    """Remove what writers left that were killed."""
    for path in directory.glob(f"*{PART}"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its writer is done with it
        try:
            if lock_range(fd, exclusive=True):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _draft(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[Path, int]:
    """A synced file beside `path`, and the descriptor by which it is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, files = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}"), RealFiles()
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if not lock_range(fd, exclusive=True):
            raise OSError(errno.EBUSY, f"{draft} is being removed")
        at = 0
        for part in parts:
            files.write(fd, part, at)
            at += len(part)
        files.sync(fd)
    except BaseException:
        draft.unlink(missing_ok=True)
        os.close(fd)
        raise
    return draft, fd
