"""Every exception pyreplog raises, with the policy a caller needs.

Each class says whether trying again can help (`retriable`) and which exit code the command line ends with
(`exit_code`). A failed sync, a refusal and an unknown outcome are different classes on purpose: "unknown" is not "no".
"""

from __future__ import annotations

from pathlib import Path


class ReplogError(Exception):
    """Base of all errors of this package."""

    retriable = False
    exit_code = 1


class InvalidArgumentError(ReplogError, ValueError):
    """An argument's value is outside what the call accepts; nothing was done."""

    exit_code = 2


class WrongTypeError(ReplogError, TypeError):
    """An argument is of a type the call does not take; nothing was done."""

    exit_code = 2


class ConfigError(InvalidArgumentError):
    """A configuration key is unknown, or its value is outside its bounds."""


class ClosedError(ReplogError):
    """The handle was closed."""


class ForkedError(ReplogError):
    """The handle was opened by a parent process; open the log again in this one."""


class LockedError(ReplogError):
    """Another process (or handle) writes to this log.

    `pid` is the holder's process id, or None when it could not be read.
    """

    retriable = True
    exit_code = 3

    def __init__(self, path: Path | str, pid: int | None) -> None:
        self.path, self.pid = Path(path), pid
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path} is open for writing in {holder}; open it with mode='r' to read")

    def __reduce__(self) -> tuple[type[LockedError], tuple[Path, int | None]]:
        return type(self), (self.path, self.pid)


class NotALogError(ReplogError):
    """The path exists and does not hold a pyreplog log."""

    exit_code = 2


class FormatVersionError(ReplogError):
    """The files were written by a version of the format that this build cannot read."""

    def __init__(self, path: Path | str, found: int, supported: int) -> None:
        self.path, self.found, self.supported = Path(path), found, supported
        super().__init__(f"{path}: format version {found}, this build reads up to {supported}")

    def __reduce__(self) -> tuple[type[FormatVersionError], tuple[Path, int, int]]:
        return type(self), (self.path, self.found, self.supported)


class CorruptionError(ReplogError):
    """Stored bytes are not what was written.

    `path` and `position` (bytes since the log began, or since the file began where the file is no segment) say
    where; `expected` and `found` say what.
    """

    exit_code = 4

    def __init__(self, path: Path | str, position: int, expected: str, found: str) -> None:
        self.path, self.position, self.expected, self.found = Path(path), position, expected, found
        super().__init__(f"{path} at position {position}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[CorruptionError], tuple[Path, int, str, str]]:
        return type(self), (self.path, self.position, self.expected, self.found)


class PoisonedError(ReplogError):
    """A sync failed earlier: what is on disk is unknown until the log is opened again."""

    exit_code = 5


class DiskError(ReplogError, OSError):
    """The disk refused what the call needs first; nothing of the call was done, and the log goes on."""

    retriable = True
    exit_code = 6


class DiskFullError(DiskError):
    """There is no room for another segment. What is stored stays readable; retry when there is space."""


class UnsupportedFilesystemError(ReplogError, OSError):
    """The file system lacks something the log's safety needs (real allocation, OFD locks, shared mappings)."""


class ReadOnlyError(ReplogError):
    """The handle was opened for reading, or the directory cannot be written."""


class OutOfRangeError(ReplogError, IndexError):
    """No such entry or position in the log."""


class TrimmedError(OutOfRangeError):
    """The entry was in the log and retention has removed it."""


class TruncatedError(OutOfRangeError):
    """Entries that this reader had been given, or was waiting for, were cut from the log."""


class RecordTooLargeError(InvalidArgumentError):
    """The record does not fit into one segment, or a part of it is over its limit."""


class OutcomeUnknownError(ReplogError, TimeoutError):
    """The time ran out before the outcome was known: the append may or may not become durable."""

    retriable = False


class FrameError(ReplogError):
    """A peer sent bytes that are no frame; the connection cannot go on.

    `offset` is the byte offset in the stream where the bad frame begins.
    """

    def __init__(self, offset: int, expected: str, found: str) -> None:
        self.offset, self.expected, self.found = offset, expected, found
        super().__init__(f"bad frame at stream byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[FrameError], tuple[int, str, str]]:
        return type(self), (self.offset, self.expected, self.found)
