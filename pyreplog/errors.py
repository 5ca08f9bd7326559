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


class OutcomeUnknownError(ReplogError, TimeoutError):
    """The time ran out, or a connection was lost, before the outcome was known: what was asked may be done or not."""

    retriable = False


class WindowFullError(ReplogError):
    """Too much of a ledger is on its way, and this caller cannot wait: nothing was done. Wait for its `room()`."""

    retriable = True


class FrameError(ReplogError):
    """A peer sent bytes that are no frame; the connection cannot go on.

    `offset` is the byte offset in the stream where the bad frame begins.
    """

    def __init__(self, offset: int, expected: str, found: str) -> None:
        self.offset, self.expected, self.found = offset, expected, found
        super().__init__(f"bad frame at stream byte {offset}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type[FrameError], tuple[int, str, str]]:
        return type(self), (self.offset, self.expected, self.found)


class PeerError(ReplogError):
    """The process at the other end of a connection could not be reached, does not fit, or does not answer."""

    retriable = True
    exit_code = 7


class NotConnectedError(PeerError):
    """There is no connection, and none can be made now. Nothing was sent."""


class DisconnectedError(PeerError, OutcomeUnknownError):
    """The connection was lost. What was asked and not answered may or may not be done."""


class PeerTimeoutError(PeerError, OutcomeUnknownError):
    """The peer was silent for too long, or did not answer in time. What was asked may or may not be done."""


class SlowPeerError(PeerError):
    """The peer did not take what was sent to it: its queue stayed over the limit for too long."""


class HandshakeError(PeerError):
    """The two sides of a connection do not fit, or what arrived is no hello. Nothing else was sent."""

    retriable = False


class ProtocolVersionError(HandshakeError):
    """No version of the protocol is spoken by both sides."""


class WrongServiceError(HandshakeError):
    """The server at this address offers another service."""


class WrongClusterError(HandshakeError):
    """The two sides belong to different clusters."""


class IncarnationError(HandshakeError):
    """Another node, or the same one with other data, answers at this address."""


class AuthenticationError(HandshakeError):
    """A side could not prove that it may talk to the other one."""


class TooManyConnectionsError(HandshakeError):
    """The server has as many connections as it is allowed to have."""

    retriable = True


class KeyExistsError(ReplogError):
    """A key that was to be created exists in the metadata store; nothing was done."""


class NoSuchKeyError(ReplogError, LookupError):
    """The metadata store holds no such key; nothing was done."""


class VersionConflictError(ReplogError):
    """The key's version is not the expected one: somebody else changed it. Read it again, and decide again."""

    retriable = True


class KeyNotEmptyError(ReplogError):
    """A key that was to be deleted has children; nothing was done."""


class MetadataUnavailableError(ReplogError):
    """The metadata store could not be reached, or is busy. Nothing was changed; what it holds is unknown."""

    retriable = True
    exit_code = 7


class LeaseLostError(ReplogError):
    """The lease has ended: its keys are gone, and others may hold what they stood for."""


class MissingExtraError(ReplogError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""

    exit_code = 2


class InvalidMessageError(ReplogError):
    """A peer sent a message that makes no sense; the connection cannot go on."""


class InvalidMetadataError(ReplogError):
    """What the metadata store says of a ledger, bookie or cluster contradicts itself, or is of another version."""

    exit_code = 4


class LedgerError(ReplogError):
    """Base of what can be wrong with a ledger. `ledger` is its id."""

    def __init__(self, ledger: int, message: str) -> None:
        self.ledger, self.message = ledger, message
        super().__init__(f"ledger {ledger}: {message}")

    def __reduce__(self) -> tuple[type[LedgerError], tuple[int, str]]:
        return type(self), (self.ledger, self.message)


class NoSuchLedgerError(LedgerError):
    """There is no ledger of that id, or it was deleted."""

    exit_code = 2


class LedgerClosedError(LedgerError):
    """The ledger takes no more entries. Of an append that fails with it, the outcome is unknown until it is read."""


class LedgerFencedError(LedgerError):
    """Somebody else recovers, or has recovered, the ledger: its writer may not go on.

    Of an append that fails with it, the outcome is unknown: recovery keeps every entry that it finds.
    """


class UnauthorizedError(LedgerError):
    """The password is not the one the ledger was made with."""

    exit_code = 7


class NotEnoughBookiesError(ReplogError):
    """Fewer bookies can be used than the ensemble needs."""

    retriable = True
    exit_code = 6


class NoSuchEntryError(OutOfRangeError):
    """The entry is definitely not in the ledger: enough of the bookies that would hold it say so."""


class UnreadableError(LedgerError):
    """Whether the entry exists, or what is in it, cannot be told now: too many of its bookies do not answer, or do not
    know. Trying again can help."""

    retriable = True


class IdentityError(ReplogError):
    """Base of: this directory is not that of the bookie which is to run. Nothing was changed."""

    exit_code = 4


class EmptyDirectoryError(IdentityError):
    """The bookie is registered, and its directory holds nothing."""


class MissingIdentityError(IdentityError):
    """The directory holds a bookie's data, and not the file that says whose."""


class WrongIncarnationError(IdentityError):
    """The directory is another bookie's, or of another incarnation of this one."""


class ForeignDirectoryError(IdentityError):
    """The directory is that of a bookie of another cluster."""


class UnknownBookieError(IdentityError):
    """The metadata store knows nothing of this bookie: it is another one, or has lost what it held."""
