"""The directories of a broker, on one or several disks: where replicas lie, which disks failed, which logs are strays.

A replica lies in one directory, in a folder named `<topic id>-<number>`. Strays, folders of replicas that the metadata
do not name, are renamed (set aside), and removed after a grace period, because metadata that are restored from a backup
may name them again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyreplog.errors import DiskFullError
from pyreplog.log.files import Files

logger = logging.getLogger(__name__)

_REPLICA = re.compile(r"([0-9a-f]{32})-([0-9]{1,9})")
_ASIDE = re.compile(r"([0-9a-f]{32}-[0-9]{1,9})\.([0-9]{1,18})\.(stray|damaged)")
_PROBE = "probe"


class ReplicaDirectories:
    """The directories in which a broker keeps the logs of its replicas. For one thread, except `paths` and `failed`.

    Args:
        directories: all directories, which exist unless their disk failed; the first one is the broker's own.
        files: access to the disk.

    Example:
        ```python
        directories = ReplicaDirectories([Path("/disk1/broker"), Path("/disk2/broker")], files)
        path = next(iter(directories.find("…-0")), None) or directories.choose("…-0")
        ```
    """

    def __init__(self, directories: Sequence[Path], files: Files) -> None:
        self._directories, self._files = tuple(directories), files
        self._failed: dict[Path, str] = {}  # replaced as a whole
        self._aside_names: dict[Path, list[str]] = {}  # names of folders that were set aside; cached by directory
        self._counts: dict[Path, int] = {}  # numbers of replicas; cached by directory

    @property
    def paths(self) -> tuple[Path, ...]:
        """All directories."""
        return self._directories

    @property
    def failed(self) -> dict[Path, str]:
        """The directories whose disks failed, with the errors."""
        return self._failed

    def is_failed(self, directory: Path) -> bool:
        """Return whether the disk of a directory failed."""
        return directory in self._failed

    # ---- replicas -------------------------------------------------------------------------------------------

    def find(self, name: str) -> list[Path]:
        """Return the paths of a replica's logs on disks that work, the most recently written one first.

        There are several if a disk failed, a new log was made on another disk, and the former disk works again.

        Args:
            name: name of the replica's folder.
        """
        paths = [path for directory in self._usable() if (path := directory / name).is_dir()]
        return sorted(paths, key=_written_ns, reverse=True) if len(paths) > 1 else paths

    def choose(self, name: str) -> Path:
        """Return the path for a new replica, in the directory with fewest replicas. The caller creates the folder.

        Raises:
            OSError: all disks failed.
        """
        for directory in self._usable():
            if directory not in self._counts:
                self._names(directory)
        usable = self._usable()
        if not usable:
            raise OSError(f"all directories failed: {', '.join(map(str, self._directories))}")
        path = min(usable, key=lambda directory: self._counts[directory]) / name
        self._count(path, 1)
        return path

    def remove(self, path: Path) -> None:
        """Remove a replica's log, which is not open.

        Args:
            path: path of the log.
        """
        self._files.remove_tree(path)
        self._count(path, -1)

    def _count(self, path: Path, change: int) -> None:
        if path.parent in self._counts:
            self._counts[path.parent] += change

    def replicas(self) -> list[tuple[Path, str, int]]:
        """Return (path, topic id, number) of all replicas on disks that work."""
        found = []
        for directory in self._usable():
            for name in self._names(directory):
                match = _REPLICA.fullmatch(name)
                assert match is not None
                found.append((directory / name, match[1], int(match[2])))
        return found

    def _usable(self) -> list[Path]:
        return [directory for directory in self._directories if directory not in self._failed]

    def _names(self, directory: Path) -> list[str]:
        """Return the names of the replicas in a directory, and refresh their count."""
        try:
            names = sorted(filter(_REPLICA.fullmatch, _names_in(directory)))
        except OSError as error:
            self.mark_failed(directory, error)
            return []
        self._counts[directory] = len(names)
        return names

    # ---- disks ----------------------------------------------------------------------------------------------

    def probe(self, directory: Path) -> bool:
        """Write a small file; return whether the disk of a directory works, and note a change.

        A full disk counts as one that works.
        """
        try:
            self._files.replace_small(directory / _PROBE, b"")
        except DiskFullError:
            pass
        except OSError as error:
            self.mark_failed(directory, error)
            return False
        if directory in self._failed:
            self._failed = {path: why for path, why in self._failed.items() if path != directory}
            logger.warning("%s works again", directory)
        return True

    def mark_failed(self, directory: Path, error: BaseException) -> None:
        """Note that the disk of a directory failed."""
        if directory not in self._failed:
            logger.error("%s: the disk failed, its replicas are offline: %s", directory, error)
        self._failed = {**self._failed, directory: str(error)}
        self._aside_names.pop(directory, None)
        self._counts.pop(directory, None)

    # ---- strays and damaged logs ----------------------------------------------------------------------------

    def set_aside(self, path: Path, now_ms: int, *, is_damaged: bool) -> Path:
        """Set aside a replica's log, which is not open: rename it, durably; return the new path.

        Args:
            path: path of the log.
            now_ms: the wall time in milliseconds, at which the grace period begins.
            is_damaged: whether the log is damaged; `restore` takes only strays, which are not.
        """
        aside = path.with_name(f"{path.name}.{now_ms}.{'damaged' if is_damaged else 'stray'}")
        self._files.rename(path, aside)
        self._files.sync_directory(path.parent)
        self._count(path, -1)
        if (names := self._aside_names.get(path.parent)) is not None:
            names.append(aside.name)
        return aside

    def has_stray(self, name: str) -> bool:
        """Return whether a replica has a stray, which `restore` can restore."""
        return bool(self._strays(name))

    def _strays(self, name: str) -> list[tuple[int, Path]]:
        return [(at, path) for path, other, at, kind in self._set_aside_folders() if other == name and kind == "stray"]

    def restore(self, name: str) -> Path | None:
        """Rename the newest stray of a replica back; return its path. None: the replica has no stray.

        Args:
            name: name of the replica's folder.
        """
        strays = self._strays(name)
        if not strays:
            return None
        aside = max(strays)[1]
        path = aside.with_name(name)
        del self._aside_names[path.parent]
        self._files.rename(aside, path)
        self._files.sync_directory(path.parent)
        self._count(path, 1)
        return path

    def remove_aside(self, before_ms: int) -> list[Path]:
        """Remove logs that were set aside before a time; return their paths.

        Args:
            before_ms: the wall time in milliseconds.
        """
        self._aside_names = {}  # read the directories again: an operator may have moved folders
        old = [path for path, _, at, _ in self._set_aside_folders() if at <= before_ms]
        self._aside_names = {}
        for path in old:
            self._files.remove_tree(path)
        return old

    def _set_aside_folders(self) -> Iterable[tuple[Path, str, int, str]]:
        for directory in self._usable():
            names = self._aside_names.get(directory)
            if names is None:
                names = self._aside_names[directory] = [*filter(_ASIDE.fullmatch, _names_in(directory))]
            for name in sorted(names):
                match = _ASIDE.fullmatch(name)
                assert match is not None
                yield directory / name, match[1], int(match[2]), match[3]


def _names_in(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:  # there may be many entries: no Path for each
        return [entry.name for entry in entries]


def _written_ns(path: Path) -> int:
    """Return the time of the last change of a file in a folder."""
    return max((file.stat().st_mtime_ns for file in path.iterdir()), default=0)
