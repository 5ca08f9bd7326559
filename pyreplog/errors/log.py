"""Errors of logs and their files."""

from __future__ import annotations

from pathlib import Path

from pyreplog.errors.base import InvalidArgumentError, OutOfRangeError, ReplogError


class LockedError(ReplogError):
    """Another process, or another handle of this process, has the log, bookie or cluster open for writing.

    Attributes:
        path: the directory.
        pid: process id of the holder, or None if it could not be read.
        advice: what the caller can do.
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
    """The path exists and does not hold a pyreplog log, or it does not exist and a reader was to open it."""

    exit_code = 2


class FormatVersionError(ReplogError):
    """A newer version of pyreplog wrote the files, and this build cannot read their format.

    Attributes:
        path: the file or directory.
        found: lowest format version that a reader of the files must know.
        supported: highest format version that this build knows.
    """

    def __init__(self, path: Path | str, found: int, supported: int) -> None:
        self.path, self.found, self.supported = Path(path), found, supported
        super().__init__(f"{path}: format version {found}, this build reads up to {supported}")

    def __reduce__(self) -> tuple[type[FormatVersionError], tuple[Path, int, int]]:
        return type(self), (self.path, self.found, self.supported)


class CorruptionError(ReplogError):
    """Stored bytes are not the bytes that were written.

    Attributes:
        path: the damaged file.
        position: bytes from the beginning of the log; from the beginning of the file if the file is not a segment.
        expected: what the format demands there.
        found: what the file holds there.
    """

    exit_code = 4

    def __init__(self, path: Path | str, position: int, expected: str, found: str) -> None:
        self.path, self.position, self.expected, self.found = Path(path), position, expected, found
        super().__init__(f"{path} at position {position}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[CorruptionError], tuple[Path, int, str, str]]:
        return type(self), (self.path, self.position, self.expected, self.found)


class PoisonedError(ReplogError):
    """A sync of the log failed earlier. What is on disk is unknown until the log is opened again."""

    exit_code = 5


class DiskError(ReplogError, OSError):
    """The disk refused an operation, or the process has no free file descriptor. Nothing of the call was done.

    A log that is open stays usable.
    """

    retriable = True
    exit_code = 6


class DiskFullError(DiskError):
    """The file system has no room for another segment. Stored entries stay readable. Free space, and retry."""


class UnsupportedFilesystemError(ReplogError, OSError):
    """The file system lacks an operation that the log needs: real allocation, OFD locks or shared mappings."""


class ReadOnlyError(ReplogError):
    """The handle was opened for reading, or the directory cannot be written."""


class ReplicaError(ReadOnlyError):
    """The log is a replica: it holds the bytes of its master and accepts no appends.

    Attributes:
        path: directory of the log.
    """

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} is a replica of another log and takes no appends: run it with `pyreplog ha replica`, promote it "
            "with `pyreplog ha promote`, or open it with mode='r'"
        )

    def __reduce__(self) -> tuple[type[ReplicaError], tuple[object]]:
        return type(self), (self.path,)


class GroupLogError(ReadOnlyError):
    """The log is that of a replica group's master. An append outside the group would be on no replica.

    Attributes:
        path: directory of the log.
    """

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} is the log of a replica group: run it with `pyreplog ha master`, or open it with mode='r'"
        )

    def __reduce__(self) -> tuple[type[GroupLogError], tuple[object]]:
        return type(self), (self.path,)


class NotAReplicaError(ReplogError):
    """The log was to be opened as a replica, and is a log of its own.

    Attributes:
        path: directory of the log.
    """

    exit_code = 2

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(f"{path} is not a replica of another log")

    def __reduce__(self) -> tuple[type[NotAReplicaError], tuple[object]]:
        return type(self), (self.path,)


class StreamError(ReplogError):
    """The bytes from a master do not continue this replica's log, or are damaged. None of them was stored.

    Attributes:
        position: bytes from the beginning of the log.
        expected: what the replica's log demands there.
        found: what the master sent.
    """

    exit_code = 4

    def __init__(self, position: int, expected: str, found: str) -> None:
        self.position, self.expected, self.found = position, expected, found
        super().__init__(f"stream at position {position}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[StreamError], tuple[int, str, str]]:
        return type(self), (self.position, self.expected, self.found)


class TrimmedError(OutOfRangeError):
    """Retention or `trim` has removed the entry."""


class TruncatedError(OutOfRangeError):
    """Entries that this reader has read, or waits for, were truncated from the end of the log."""


class RecordTooLargeError(InvalidArgumentError):
    """The record does not fit into one segment, or its key or properties exceed their limit."""


class UnnumberedError(InvalidArgumentError):
    """The log holds the entries of many ledgers, and its records have no entry numbers of their own.

    Open it as a LedgerLog and ask for (ledger, entry), or read by position.

    Attributes:
        path: directory of the log.
    """

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path} holds the entries of many ledgers and has no entry numbers of its own: "
            "open it as a LedgerLog and ask by (ledger, entry), or go by positions"
        )

    def __reduce__(self) -> tuple[type[UnnumberedError], tuple[object]]:
        return type(self), (self.path,)


class RecordBatchesError(InvalidArgumentError):
    """The log has one entry number for each record, and cannot hold record batches, which take several.

    Attributes:
        path: directory of the log.
    """

    def __init__(self, path: object) -> None:
        self.path = path
        super().__init__(
            f"{path}: expected a log that holds record batches, found one with one entry number for each record: "
            "open it with record_batches, or append single entries"
        )

    def __reduce__(self) -> tuple[type[RecordBatchesError], tuple[object]]:
        return type(self), (self.path,)


class InvalidRecordsError(ReplogError):
    """Encoded records that a caller or a peer handed over are damaged, or not the expected ones. None was taken.

    Attributes:
        offset: byte offset of the first bad record in the bytes handed over.
        expected: what the format demands there.
        found: what the bytes hold there.
    """

    exit_code = 4

    def __init__(self, offset: int, expected: str, found: str) -> None:
        self.offset, self.expected, self.found = offset, expected, found
        super().__init__(f"bad record at byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[InvalidRecordsError], tuple[int, str, str]]:
        return type(self), (self.offset, self.expected, self.found)


class OtherRecordError(InvalidRecordsError):
    """Another record is stored under the same ids: a ledger has two writers. Nothing was done."""
