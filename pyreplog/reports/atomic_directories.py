"""Directories that are replaced atomically: filled under a temporary name, and then renamed."""

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
    """Repair the state that a killed process left during `put`.

    If the target is missing, the directory that `put` had moved aside is renamed back, durably. Drafts and old
    directories are removed. Those of running processes are locked, and stay.
    """
    files = files if files is not None else RealFiles()
    if not target.parent.is_dir():
        return
    if not target.exists():
        for old in sorted(filter(_is_filled, _leftovers(target, "old")), key=_changed_ns, reverse=True):
            with _lock(old) as is_ours:
                if is_ours:
                    files.rename(old, target)
                    files.sync_directory(target.parent)
                    break
    for leftover in _leftovers(target, "tmp|old"):
        with _lock(leftover) as is_ours:
            if is_ours:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def draft_of(target: Path, *, files: Files | None = None) -> Iterator[Path]:
    """Make a directory beside `target`, after `tidy`. It is removed at the end, unless `put` has renamed it."""
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
    """Replace the target by the draft, whose files are synced.

    The old target is removed after the draft has its name, durably.
    """
    files = files if files is not None else RealFiles()
    draft.chmod(0o755)  # mkdtemp makes directories that only the owner may read
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
        unneeded = old.with_suffix(".tmp")  # a half-removed directory must not be restored
        files.rename(old, unneeded)
        files.remove_tree(unneeded)


def _make(target: Path, suffix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.export-", suffix=suffix, dir=target.parent))


def _leftovers(target: Path, suffixes: str) -> list[Path]:
    ours = re.compile(rf"\.{re.escape(target.name)}\.export-[a-z0-9_]{{8}}\.({suffixes})")
    return [path for path in target.parent.iterdir() if ours.fullmatch(path.name)]


def _is_filled(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _changed_ns(folder: Path) -> int:
    """Return the time of the last change, a rename included; 0: the directory does not exist any more."""
    try:
        return folder.stat().st_ctime_ns
    except OSError:
        return 0


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Lock a directory during the block. Yield whether it exists, and no other process has it locked."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # removed just now, or not permitted
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
