"""Directories that are there as a whole or not at all: filled under another name, and then given theirs."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyreplog.log.files import Files, RealFiles


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """A new directory beside `target`, which goes in the end if it is still called so. Those that processes have left
    behind that were killed go first: nobody holds the lock on them any more."""
    _sweep(target)
    draft = _make(target, ".tmp")
    fd = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield draft
    finally:
        os.close(fd)
        shutil.rmtree(draft, ignore_errors=True)


def put(draft: Path, target: Path, *, files: Files | None = None) -> None:
    """The draft in the place of what is there: that goes when the new has its name, and both are on disk. The files in
    the draft are synced."""
    files = files if files is not None else RealFiles()
    draft.chmod(0o755)  # mkdtemp's directories are for their owner alone
    files.sync_directory(draft)
    old = None
    if target.exists():
        old = _make(target, ".old")
        files.rename(target, old)
    try:
        files.rename(draft, target)
    except OSError:
        if old is not None:
            files.rename(old, target)
        raise
    files.sync_directory(target.parent)
    if old is not None:
        files.remove_tree(old)


def _make(target: Path, suffix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.export-", suffix=suffix, dir=target.parent))


def _sweep(target: Path) -> None:
    ours = re.compile(rf"\.{re.escape(target.name)}\.export-[a-z0-9_]{{8}}\.(tmp|old)")
    for left in [path for path in target.parent.iterdir() if ours.fullmatch(path.name)]:
        try:
            fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # it goes just now, or is not ours to remove
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # somebody is at work in it
        finally:
            os.close(fd)
