"""pyreplog: the replicated commit log that a Python service embeds.

What ledgers need is imported when it is first asked for: a program that uses the log alone loads no sqlite3.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyreplog._native.batch import RecordBatch
from pyreplog._native.record import Record
from pyreplog._version import VERSION as __version__
from pyreplog.ack import Ack
from pyreplog.clock import Clock, ManualClock, SystemClock
from pyreplog.config import LogConfig
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    DiskError,
    DiskFullError,
    EntryRefusedError,
    ForkedError,
    FormatVersionError,
    FrameError,
    GroupLogError,
    InvalidArgumentError,
    InvalidMetadataError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerRefusedError,
    LockedError,
    MetadataUnavailableError,
    MissingExtraError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotALogError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    OutOfRangeError,
    PeerError,
    PoisonedError,
    ReadOnlyError,
    RecordTooLargeError,
    ReplicaError,
    ReplogError,
    TrimmedError,
    TruncatedError,
    UnauthorizedError,
    UnreadableError,
    UnsupportedFilesystemError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.log import CommitLog, LogReader
from pyreplog.log.opening import open

if TYPE_CHECKING:
    from pyreplog.ledger.cluster import Cluster
    from pyreplog.ledger.handle import Ledger
    from pyreplog.ledger.reader import LedgerReader

_LATER = {"Cluster": "cluster", "Ledger": "handle", "LedgerReader": "reader"}  # name -> module of pyreplog.ledger

__all__ = [
    "Ack",
    "Clock",
    "ClosedError",
    "Cluster",
    "CommitLog",
    "ConfigError",
    "CorruptionError",
    "DiskError",
    "DiskFullError",
    "EntryRefusedError",
    "ForkedError",
    "FormatVersionError",
    "FrameError",
    "GroupLogError",
    "InvalidArgumentError",
    "InvalidMetadataError",
    "Ledger",
    "LedgerClosedError",
    "LedgerError",
    "LedgerFencedError",
    "LedgerReader",
    "LedgerRefusedError",
    "LockedError",
    "LogConfig",
    "LogReader",
    "ManualClock",
    "MetadataUnavailableError",
    "MissingExtraError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NotALogError",
    "NotEnoughBookiesError",
    "OutOfRangeError",
    "OutcomeUnknownError",
    "PeerError",
    "PoisonedError",
    "ReadOnlyError",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "ReplicaError",
    "ReplogError",
    "SystemClock",
    "TrimmedError",
    "TruncatedError",
    "UnauthorizedError",
    "UnreadableError",
    "UnsupportedFilesystemError",
    "WindowFullError",
    "WrongTypeError",
    "__version__",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"pyreplog.ledger.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
