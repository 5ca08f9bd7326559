"""`pyreplog.open`: open a log for appending or reading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Unpack, overload

from pyreplog.arguments import check_type
from pyreplog.clock import Clock
from pyreplog.config import LogConfig, LogSettings
from pyreplog.errors import InvalidArgumentError, NotALogError, WrongTypeError
from pyreplog.log.commit_log import CommitLog
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
    """Open the log in a directory, to append to it or to read it.

    One process at a time may open a log with mode "a". Any number of processes may open it with mode "r", with or
    without a writer. If the log was not closed cleanly, a writer verifies it from the last checkpoint on, and cuts a
    torn tail, whose bytes are kept in `aside/`. The call blocks meanwhile.

    Args:
        path: directory of the log.
        mode: "a" to append and read, "r" to read.
        config: settings of the log, instead of keywords.
        create: make the log if the directory holds none. Mode "a" only.
        clock: source of time; None: the clock of the machine.
        files: access to the disk, which tests replace; None: the files of the operating system.
        settings: fields of `LogConfig` as keywords.

    Returns:
        A `CommitLog` with mode "a", a `LogReader` with mode "r".

    Raises:
        InvalidArgumentError: `path` or `mode` is invalid, or settings are given twice or with mode "r".
        WrongTypeError: an argument has another type.
        ConfigError: a setting is unknown or outside its bounds.
        LockedError: another process has the log open for writing; `pid` names it.
        NotALogError: the directory holds something else, or no log and `create` is False.
        CorruptionError: the log is damaged other than at its end.
        FormatVersionError: a newer version wrote the log.
        ReadOnlyError: the directory cannot be written.
        ReplicaError: the log is a replica.
        GroupLogError: the log is that of a replica group's master.
        DiskFullError: there is no room for the first segments.
        DiskError: the disk refused an operation, or the process has no free file descriptor.
        UnsupportedFilesystemError: the file system lacks an operation that the log needs.

    Example:
        ```python
        with pyreplog.open("data/orders", durability="synced") as log:
            entry = log.append(b"order 1", key=b"customer 7")
        ```

    See docs/log.md.
    """
    directory = as_directory(path)
    if mode == "r":
        if config is not None or settings:
            raise InvalidArgumentError("mode 'r' takes no settings; give them to the writer")
        return LogReader(directory)
    if mode != "a":
        raise InvalidArgumentError(f"mode: expected 'a' or 'r', found {mode!r}")
    if config is not None and settings:
        raise InvalidArgumentError("config: expected either config or settings, found both")
    if config is not None:
        check_type("config", config, LogConfig, "a LogConfig")
    return CommitLog(directory, config or LogConfig.of(settings), create=create, clock=clock, files=files)


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a path as a Path.

    Raises WrongTypeError if it is no str or path of str, InvalidArgumentError if it is empty (which does not mean the
    current directory) or has a NUL.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(name := os.fspath(path), str):
        raise WrongTypeError(f"path: expected a str or a path of str, found {type(path).__name__}")
    if not name or "\0" in name:
        raise InvalidArgumentError(f"path: expected the name of a directory, found {name!r}")
    return Path(name)


def as_directory(path: str | os.PathLike[str]) -> Path:
    """Return a path that is a directory or can become one. Raises the errors of `as_path`, and NotALogError."""
    directory = as_path(path)
    nearest = next(place for place in (directory, *directory.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise NotALogError(
            f"{nearest} is {'a link to nowhere' if nearest.is_symlink() else 'a file'}; a log is a directory"
        )
    return directory
