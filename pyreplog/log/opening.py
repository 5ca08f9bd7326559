"""`pyreplog.open`: the one door to a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Unpack, overload

from pyreplog.arguments import check_type
from pyreplog.clock import Clock
from pyreplog.config import LogConfig, LogSettings
from pyreplog.errors import InvalidArgumentError, NotALogError, WrongTypeError
from pyreplog.log.commitlog import CommitLog
from pyreplog.log.files import Files
from pyreplog.log.reader import LogReader


@overload
def open(
    path: str | os.PathLike[str], mode: Literal["a"] = "a", *, config: LogConfig | None = None, create: bool = True,
    clock: Clock | None = None, files: Files | None = None, **settings: Unpack[LogSettings],
) -> CommitLog: ...  # fmt: skip
@overload
def open(path: str | os.PathLike[str], mode: Literal["r"]) -> LogReader: ...
def open(
    path: str | os.PathLike[str],
    mode: str = "a",
    *,
    config: LogConfig | None = None,
    create: bool = True,
    clock: Clock | None = None,
    files: Files | None = None,
    **settings: Unpack[LogSettings],
) -> CommitLog | LogReader:
    """Open the log in directory `path`.

    mode "a": for appending (and reading); made when there is none and `create`. One writer at a time: LockedError names
    the process that has it. mode "r": for reading, beside a writer or without one, in any number of processes.
    settings: fields of LogConfig as keywords, or give `config`. clock, files: stand-ins for the system clock and disk.

    A writer that finds the log not closed cleanly verifies it from the last checkpoint on and cuts a torn tail (its
    bytes are kept in `aside/`).
    Errors: LockedError, NotALogError, CorruptionError, FormatVersionError, ConfigError, ReadOnlyError, DiskFullError,
    DiskError (no descriptor is left, among others), InvalidArgumentError (a name that is too long, among others),
    UnsupportedFilesystemError.
    """
    directory = as_directory(path)
    if mode == "r":
        if config is not None or settings:
            raise InvalidArgumentError("a log opened for reading takes no settings")
        return LogReader(directory)
    if mode != "a":
        raise InvalidArgumentError(f"mode: expected 'a' or 'r', found {mode!r}")
    if config is not None and settings:
        raise InvalidArgumentError("give either config or settings, not both")
    if config is not None:
        check_type("config", config, LogConfig, "a LogConfig")
    return CommitLog(directory, config or LogConfig.of(settings), create=create, clock=clock, files=files)


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path that something can have: an empty one is not the current directory."""
    if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
        raise WrongTypeError(f"path: expected a str or a path of str, found {type(path).__name__}")
    if not name or "\0" in name:
        raise InvalidArgumentError(f"path: expected the name of a directory, found {name!r}")
    return Path(name)


def as_directory(path: str | os.PathLike[str]) -> Path:
    """A path that a directory can have."""
    directory = as_path(path)
    nearest = next(place for place in (directory, *directory.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise NotALogError(
            f"{nearest} is {'a link to nowhere' if nearest.is_symlink() else 'a file'}; a log is a directory"
        )
    return directory
