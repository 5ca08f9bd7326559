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


def tidy(target: Path, *, files: Files | None = None) -> None:
    """Put right what `put` leaves when its process is killed: a directory that it had moved out of the way, and nothing
    in its place, gets its name back, durably; drafts and old directories go. Those of living processes are locked, and
    stay."""
    files = files if files is not None else RealFiles()
    if not target.parent.is_dir():
        return
    if not target.exists():
        for old in sorted(filter(_is_filled, _left(target, "old")), key=_changed_ns, reverse=True):
            with _lock(old) as is_ours:
                if is_ours:
                    files.rename(old, target)
                    files.sync_directory(target.parent)
                    break
    for left in _left(target, "tmp|old"):
        with _lock(left) as is_ours:
            if is_ours:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def draft_of(target: Path, *, files: Files | None = None) -> Iterator[Path]:
    """A new directory beside `target`, which goes in the end if it is still called so; after `tidy`."""
    tidy(target, files=files)
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
    if not target.exists():
        files.rename(draft, target)
        files.sync_directory(target.parent)
        return
    with _lock(target):
        old = _make(target, ".old")
        files.rename(target, old)
        try:
            files.rename(draft, target)
        except OSError:
            files.rename(old, target)
            raise
        files.sync_directory(target.parent)
        unneeded = old.with_suffix(".tmp")  # half of it is never put back
        files.rename(old, unneeded)
        files.remove_tree(unneeded)


def _make(target: Path, suffix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.export-", suffix=suffix, dir=target.parent))


def _left(target: Path, suffixes: str) -> list[Path]:
    ours = re.compile(rf"\.{re.escape(target.name)}\.export-[a-z0-9_]{{8}}\.({suffixes})")
    return [path for path in target.parent.iterdir() if ours.fullmatch(path.name)]


def _is_filled(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _changed_ns(folder: Path) -> int:
    """When it was renamed, among others; 0: it has gone."""
    try:
        return folder.stat().st_ctime_ns
    except OSError:
        return 0


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether it is there, and nobody else is at work in it, as long as this lasts."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it goes just now, or is not ours to remove
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
