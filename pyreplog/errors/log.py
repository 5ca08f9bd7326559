"""Errors of logs and their files."""

from __future__ import annotations

from pathlib import Path

from pyreplog.errors.base import InvalidArgumentError, OutOfRangeError, ReplogError


class LockedError(ReplogError):
    """Another process (or handle) writes to this log, or has this bookie or cluster open.

    `pid` is the holder's process id, or None when it could not be read. `advice`: what can be done.
    """

    retriable = True
    exit_code = 3

    def __init__(self, path: Path | str, pid: int | None, advice: str = "open it with mode='r' to read") -> None:
        self.path, self.pid, self.advice = Path(path), pid, advice
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path} is open for writing in {holder}; {advice}")

    def __reduce__(self) -> tuple[type[LockedError], tuple[Path, int | None, str]]:
        return type(self), (self.path, self.pid, self.advice)


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
    """The disk refused what the call needs first, or no descriptor is left; nothing of the call was done, and the log,
    if it is open, goes on."""

    retriable = True
    exit_code = 6


class DiskFullError(DiskError):
    """There is no room for another segment. What is stored stays readable; retry when there is space."""


class UnsupportedFilesystemError(ReplogError, OSError):
    """The file system lacks something the log's safety needs (real allocation, OFD locks, shared mappings)."""


class ReadOnlyError(ReplogError):
    """The handle was opened for reading, or the directory cannot be written."""


class ReplicaError(ReadOnlyError):
    """The log is a replica: it holds what its master sends, and takes nothing else."""

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} is a replica of another log and takes no appends: run it with `pyreplog ha replica`, promote it "
            "with `pyreplog ha promote`, or open it with mode='r'"
        )

    def __reduce__(self) -> tuple[type[ReplicaError], tuple[object]]:
        return type(self), (self.path,)


class GroupLogError(ReadOnlyError):
    """The log is that of a replica group's master: what is appended past the group would be on no replica."""

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} is the log of a replica group: run it with `pyreplog ha master`, or open it with mode='r'"
        )

    def __reduce__(self) -> tuple[type[GroupLogError], tuple[object]]:
        return type(self), (self.path,)


class NotAReplicaError(ReplogError):
    """The log was to be opened as a replica and is not one."""

    exit_code = 2

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(f"{path} is not a replica of another log")

    def __reduce__(self) -> tuple[type[NotAReplicaError], tuple[object]]:
        return type(self), (self.path,)


class StreamError(ReplogError):
    """What a master sent does not continue this replica's log, or is not intact; nothing of it counts.

    `position` (bytes since the log began) says where; `expected` and `found` say what.
    """

    exit_code = 4

    def __init__(self, position: int, expected: str, found: str) -> None:
        self.position, self.expected, self.found = position, expected, found
        super().__init__(f"stream at position {position}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[StreamError], tuple[int, str, str]]:
        return type(self), (self.position, self.expected, self.found)


class TrimmedError(OutOfRangeError):
    """The entry was in the log and retention has removed it."""


class TruncatedError(OutOfRangeError):
    """Entries that this reader had been given, or was waiting for, were cut from the log."""


class RecordTooLargeError(InvalidArgumentError):
    """The record does not fit into one segment, or a part of it is over its limit."""


class UnnumberedError(InvalidArgumentError):
    """An entry was asked for by its number, of a log that holds the entries of many ledgers: it has none of its own.

    Its entries are found by (ledger, entry), in a LedgerLog; its records by position.
    """

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} holds the entries of many ledgers and has no entry numbers of its own: "
            "open it as a LedgerLog and ask by (ledger, entry), or go by positions"
        )

    def __reduce__(self) -> tuple[type[UnnumberedError], tuple[object]]:
        return type(self), (self.path,)


class InvalidRecordsError(ReplogError):
    """Encoded records that a caller or a peer handed over are not intact, or not those that were meant; none counts.

    `offset` is that of the first bad one in the bytes handed over.
    """

    exit_code = 4

    def __init__(self, offset: int, expected: str, found: str) -> None:
        self.offset, self.expected, self.found = offset, expected, found
        super().__init__(f"bad record at byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[InvalidRecordsError], tuple[int, str, str]]:
        return type(self), (self.offset, self.expected, self.found)


class OtherRecordError(InvalidRecordsError):
    """Another record than the one handed over is stored under the same ids: a ledger has two writers. Nothing was
    done."""
