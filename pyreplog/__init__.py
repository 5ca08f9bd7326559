"""pyreplog: the replicated commit log that a Python service embeds."""

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
    ForkedError,
    FormatVersionError,
    FrameError,
    InvalidArgumentError,
    LockedError,
    NotALogError,
    OutcomeUnknownError,
    OutOfRangeError,
    PoisonedError,
    ReadOnlyError,
    RecordTooLargeError,
    ReplogError,
    TrimmedError,
    TruncatedError,
    UnsupportedFilesystemError,
    WrongTypeError,
)
from pyreplog.log import CommitLog, LogReader
from pyreplog.log.opening import open

__all__ = [
    "Ack",
    "Clock",
    "ClosedError",
    "CommitLog",
    "ConfigError",
    "CorruptionError",
    "DiskError",
    "DiskFullError",
    "ForkedError",
    "FormatVersionError",
    "FrameError",
    "InvalidArgumentError",
    "LockedError",
    "LogConfig",
    "LogReader",
    "ManualClock",
    "NotALogError",
    "OutOfRangeError",
    "OutcomeUnknownError",
    "PoisonedError",
    "ReadOnlyError",
    "Record",
    "RecordBatch",
    "RecordTooLargeError",
    "ReplogError",
    "SystemClock",
    "TrimmedError",
    "TruncatedError",
    "UnsupportedFilesystemError",
    "WrongTypeError",
    "__version__",
    "open",
]
