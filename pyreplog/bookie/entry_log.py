"""EntryLog: the interface of a bookie's log; DiskLog: its implementation on a disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from pyreplog.bookie.config import BookieConfig
from pyreplog.bookie.dead_entries import DeadEntries
from pyreplog.bookie.ledger_log import LedgerLog
from pyreplog.clock import Clock
from pyreplog.log.files import Files

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class EntryReader(Protocol):
    """Entries that are stored, as `EntryLog` has them."""

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """Read verified records of entries [start, end), end to end: up to `bytes_max` bytes, and at least one record.

        Returns (records, next): the records are all entries of [start, next) that are here and can be read yet. Raises
        CorruptionError if it is unknown which entries are here.
        """
        ...

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        """Lend records of `run` entries from each of `start`, `start` + `step`, ..., not verified; else as `read`.

        The records may be a view of the log, which pins its segment until the view is dropped. Raises CorruptionError
        if it is unknown whether the first entry is here.
        """
        ...


class EntryLog(EntryReader, Protocol):
    """A log of encoded entries and control records.

    The control records of ledger L are entries of ledger L + `entries.CONTROL`, numbered by their codes; the newest
    record of a code counts.
    """

    @property
    def staged(self) -> bool:
        """Whether appended records can be read, and survive a crash of the process, only after the next sync."""
        ...

    def append(self, records: ReadableBuffer, /) -> int:
        """Append encoded records, which lie end to end, without waiting; return the position after the last one.

        Raises InvalidRecordsError or RecordTooLargeError if any record is not intact, and then appends none; also
        DiskFullError and PoisonedError.
        """
        ...

    def sync(self) -> object:
        """Make durable all records that were appended before the call.

        Raises PoisonedError if that fails, and so does every later call.
        """
        ...

    def held_entries(self, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the entries of [start, end) that have a record here, intact or not, ascending.

        Raises CorruptionError if that is unknown.
        """
        ...

    def last_entry(self, ledger: int) -> int | None:
        """Return the highest entry of a ledger; None: it has none. Raises CorruptionError if that is unknown."""
        ...

    def free_bytes(self) -> int:
        """Return the free space of the disk, bytes."""
        ...


class DiskLog:
    """The EntryLog of a real bookie: a LedgerLog in a directory. Any thread may use it.

    `create`, `clock` and `files` are those of LedgerLog. Raises as the opening of a LedgerLog.

    Args:
        path: directory of the log.
        config: settings of the bookie.
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
        """Number of intact records that were cut from the log when it was opened after a crash."""
        return self.log.cut_records

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        return self.log.read(ledger, start, end, bytes_max)

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        return self.log.lend(ledger, start, end, bytes_max, step, run)

    def held_entries(self, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        return self.log.held_entries(ledger, start, end)

    def without(self, dead: DeadEntries) -> EntryReader:
        """Return the log without dead entries of a ledger; for this ledger only."""
        return _LiveLog(self.log, dead)

    def last_entry(self, ledger: int) -> int | None:
        return self.log.last_entry(ledger)

    def free_bytes(self) -> int:
        status = os.statvfs(self.log.path)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        self.log.close()


class _LiveLog:
    """A log without the dead entries of a ledger."""

    def __init__(self, log: LedgerLog, dead: DeadEntries) -> None:
        self._log, self._dead = log, dead

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        return self._log.read(ledger, start, end, bytes_max, self._dead)

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        return self._log.lend(ledger, start, end, bytes_max, step, run, self._dead)
