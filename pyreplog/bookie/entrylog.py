"""What a bookie needs of the log it stores entries in; and that log on a disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.ledgerlog import LedgerLog
from pyreplog.clock import Clock
from pyreplog.log.files import Files

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class EntryLog(Protocol):
    """A log of encoded entries and control records; the latter are entries of ledger L + `entries.CONTROL`, numbered by
    their codes, and the newest of one code counts."""

    @property
    def staged(self) -> bool:
        """Whether what is appended can be read, and survives the process, only after the next sync."""
        ...

    def append(self, records: ReadableBuffer, /) -> int:
        """Append encoded records, end to end, without waiting for anything; returns the position after the last.

        All of them are intact, or none is appended: InvalidRecordsError, RecordTooLargeError. Other errors:
        DiskFullError; PoisonedError.
        """
        ...

    def sync(self) -> object:
        """Make durable all that was appended before the call. PoisonedError, now and ever after, when that fails."""
        ...

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """The records of entries [start, end), end to end, verified: as many as fit into `bytes_max` bytes, and at
        least one if there is one.

        Returns (records, next): of entries of [start, next) all that are here, and can be read yet, are among the
        records. CorruptionError: what is here cannot be told.
        """
        ...

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        """As read, of `run` entries from each of `start`, `start` + `step`, ...; for who verifies them: perhaps a
        view of the log, which holds what it shows until it is dropped.

        CorruptionError: whether the first of them is here cannot be told.
        """
        ...

    def last_entry(self, ledger: int) -> int | None:
        """Highest id of the ledger's entries; None: there is none. CorruptionError."""
        ...

    def free_bytes(self) -> int:
        """Space that is left for this log to grow."""
        ...


class DiskLog:
    """The EntryLog of a real bookie: a LedgerLog in a directory.

    path: of the log's directory. config: the bookie's. create, clock, files: as of LedgerLog; LockedError and all the
    other errors of its opening. Any thread may call anything.
    """

    def __init__(
        self,
        path: Path,
        config: BookieConfig,
        *,
        create: bool = True,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.log = LedgerLog(path, config.log_config(), create=create, clock=clock, files=files)
        self.staged = config.durability == "synced"
        self.append: Callable[[ReadableBuffer], int] = self.log.stage
        self.sync: Callable[[], object] = self.log.sync

    @property
    def cut_records(self) -> int:
        """Intact records that opening cut from the log after a crash."""
        return self.log.cut_records

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        return self.log.read(ledger, start, end, bytes_max)

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        return self.log.lend(ledger, start, end, bytes_max, step, run)

    def last_entry(self, ledger: int) -> int | None:
        return self.log.last_entry(ledger)

    def free_bytes(self) -> int:
        found = os.statvfs(self.log.path)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        self.log.close()
