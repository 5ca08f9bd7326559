"""The directories of a broker, on one disk or several: where replicas lie, which disks failed, which logs are strays.

A replica lies in one directory, in a folder of the name `<topic id>-<number>`. Folders that no metadata name are set
aside under another name, and removed after a grace: metadata that were restored from a copy may name them again.
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
    """The directories in which a broker keeps the logs of its replicas. For one thread, but for `paths` and `failed`.

    Args:
        directories: all of them, which exist unless their disk failed; the first one is the broker's own.
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
        self._asides: dict[Path, list[str]] = {}  # names of what was set aside, in directories that were read
        self._counts: dict[Path, int] = {}  # of replicas, likewise

    @property
    def paths(self) -> tuple[Path, ...]:
        """All directories."""
        return self._directories

    @property
    def failed(self) -> dict[Path, str]:
        """The directories whose disks failed, and why."""
        return self._failed

    def is_failed(self, directory: Path) -> bool:
        """Return whether the disk of a directory failed."""
        return directory in self._failed

    # ---- replicas -------------------------------------------------------------------------------------------

    def find(self, name: str) -> list[Path]:
        """Return the paths of a replica's log in directories that work, that which was written last first.

        There is more than one if a disk failed, the log was begun on another one, and the former disk works again.

        Args:
            name: of its folder.
        """
        paths = [path for directory in self._usable() if (path := directory / name).is_dir()]
        return sorted(paths, key=_written_ns, reverse=True) if len(paths) > 1 else paths

    def choose(self, name: str) -> Path:
        """Return the path for a new replica, which the caller makes: in the directory with fewest replicas.

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
            path: of the log.
        """
        self._files.remove_tree(path)
        self._count(path, -1)

    def _count(self, path: Path, change: int) -> None:
        if path.parent in self._counts:
            self._counts[path.parent] += change

    def replicas(self) -> list[tuple[Path, str, int]]:
        """Return (path, topic id, number) of all replicas in directories that work."""
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
        """Return the names of the replicas in a directory, and count them anew."""
        try:
            names = sorted(filter(_REPLICA.fullmatch, _names_in(directory)))
        except OSError as error:
            self.mark_failed(directory, error)
            return []
        self._counts[directory] = len(names)
        return names

    # ---- disks ----------------------------------------------------------------------------------------------

    def probe(self, directory: Path) -> bool:
        """Write a file; return whether the disk of a directory takes it. Notes disks that failed, and that work again.

        A disk without room works.
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
        self._asides.pop(directory, None)
        self._counts.pop(directory, None)

    # ---- what is set aside ----------------------------------------------------------------------------------

    def set_aside(self, path: Path, now_ms: int, *, is_damaged: bool) -> Path:
        """Give a replica's log, which is not open, another name, durably; return its path.

        Args:
            path: of the log.
            now_ms: the wall time in milliseconds: when its grace begins.
            is_damaged: it never comes back; otherwise `restore` takes it.
        """
        aside = path.with_name(f"{path.name}.{now_ms}.{'damaged' if is_damaged else 'stray'}")
        self._files.rename(path, aside)
        self._files.sync_directory(path.parent)
        self._count(path, -1)
        if (names := self._asides.get(path.parent)) is not None:
            names.append(aside.name)
        return aside

    def has_stray(self, name: str) -> bool:
        """Return whether a replica was set aside as a stray, which `restore` takes."""
        return bool(self._strays(name))

    def _strays(self, name: str) -> list[tuple[int, Path]]:
        return [(at, path) for path, other, at, kind in self._aside() if other == name and kind == "stray"]

    def restore(self, name: str) -> Path | None:
        """Give the newest stray of a replica its name again; return its path. None: there is none.

        Args:
            name: of the replica's folder.
        """
        strays = self._strays(name)
        if not strays:
            return None
        aside = max(strays)[1]
        path = aside.with_name(name)
        del self._asides[path.parent]
        self._files.rename(aside, path)
        self._files.sync_directory(path.parent)
        self._count(path, 1)
        return path

    def remove_aside(self, before_ms: int) -> list[Path]:
        """Remove what was set aside before a time; return what was removed.

        Args:
            before_ms: the wall time in milliseconds.
        """
        self._asides = {}  # read again: an operator may have moved some
        old = [path for path, _, at, _ in self._aside() if at <= before_ms]
        self._asides = {}
        for path in old:
            self._files.remove_tree(path)
        return old

    def _aside(self) -> Iterable[tuple[Path, str, int, str]]:
        for directory in self._usable():
            names = self._asides.get(directory)
            if names is None:
                names = self._asides[directory] = [*filter(_ASIDE.fullmatch, _names_in(directory))]
            for name in sorted(names):
                match = _ASIDE.fullmatch(name)
                assert match is not None
                yield directory / name, match[1], int(match[2]), match[3]


def _names_in(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:  # there may be many: no Path for each
        return [entry.name for entry in entries]


def _written_ns(path: Path) -> int:
    """Return when one of the files of a folder was changed last."""
    return max((file.stat().st_mtime_ns for file in path.iterdir()), default=0)
