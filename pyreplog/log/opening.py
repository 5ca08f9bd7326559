"""`pyreplog.open`: the one door to a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, overload

from pyreplog.clock import Clock
from pyreplog.config import LogConfig
from pyreplog.errors import InvalidArgumentError
from pyreplog.log.commitlog import CommitLog
from pyreplog.log.files import Files
from pyreplog.log.reader import LogReader


@overload
def open(
    path: str | os.PathLike[str], mode: Literal["a"] = "a", *, config: LogConfig | None = None, create: bool = True,
    clock: Clock | None = None, files: Files | None = None, **settings: Any,
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
    **settings: Any,
) -> CommitLog | LogReader:
    """Open the log in directory `path`.

    mode "a": for appending (and reading); made when there is none and `create`. One writer at a time: LockedError names
    the process that has it. mode "r": for reading, beside a writer or without one, in any number of processes.
    settings: fields of LogConfig as keywords, or give `config`. clock, files: stand-ins for the system clock and disk.

    A writer that finds the log not closed cleanly verifies it from the last checkpoint on and cuts a torn tail (its
    bytes are kept in `aside/`).
    Errors: LockedError, NotALogError, CorruptionError, FormatVersionError, ConfigError, ReadOnlyError, DiskFullError,
    UnsupportedFilesystemError.
    """
    directory = Path(path)
    if mode == "r":
        if config is not None or settings:
            raise InvalidArgumentError("a log opened for reading takes no settings")
        return LogReader(directory)
    if mode != "a":
        raise InvalidArgumentError(f"mode: expected 'a' or 'r', found {mode!r}")
    if config is not None and settings:
        raise InvalidArgumentError("give either config or settings, not both")
    return CommitLog(directory, config or LogConfig.of(settings), create=create, clock=clock, files=files)
