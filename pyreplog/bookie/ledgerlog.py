"""LedgerLog: one log that holds the entries of many ledgers, found by (ledger id, entry id)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyreplog._native.ledgerlog.intake import append_entries, copy_entries
from pyreplog.bookie.entry_locations import copy_located, lend_located
from pyreplog.bookie.ledgermap import LedgerExtent
from pyreplog.bookie.multi_ledger_log import MultiLedgerLog
from pyreplog.clock import Clock
from pyreplog.config import LogConfig
from pyreplog.errors import ConfigError, InvalidArgumentError, TrimmedError
from pyreplog.future import AppendFuture
from pyreplog.handles import Closeable
from pyreplog.log.files import Files
from pyreplog.log.opening import as_directory

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

_SMALLEST_RECORD = 64
_ENTRY_MAX = (1 << 63) - 2


class LedgerLog(Closeable):
    """A log of encoded entries (`_native.ledgerlog`), addressed by (ledger, entry) or by position, never by a number.

    path, config, create, clock, files: as of `pyreplog.open`; retention is not for such a log (ConfigError): `trim` and
    `punch_hole` are. Any thread may call anything. Close it, or use `with`. Errors of every call: ClosedError,
    ForkedError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: LogConfig,
        *,
        create: bool = True,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        if config.retention_bytes is not None or config.retention_ms is not None:
            raise ConfigError("retention_bytes, retention_ms: a log of many ledgers is trimmed by its owner")
        self._log = MultiLedgerLog(as_directory(path), config, create=create, clock=clock, files=files)
        self.stage: Callable[[ReadableBuffer], int] = partial(append_entries, self._log)
        """As append, without waiting for anything: the records have the log's durability after the next `sync`.

        In a synced log they cannot be read before that. Errors: as append."""
        self.sync: Callable[[], object] = self._log.sync
        """Make all appended so far durable. PoisonedError when it fails."""

    @property
    def path(self) -> Path:
        return self._log.path

    @property
    def commit_log(self) -> MultiLedgerLog:
        """The log below, by position and segment. For tests and for tools; entries are appended and read here."""
        return self._log

    @property
    def segment_bytes(self) -> int:
        """Size of a segment file; fixed when the log was made."""
        return self._log.segment_bytes

    @property
    def cut_records(self) -> int:
        """Intact records in the torn tail that opening cut. Not 0: what this log does not hold may have been in it."""
        return self._log.cut_records

    @property
    def uuid(self) -> bytes:
        """16 random bytes, drawn when the log was made."""
        return self._log.uuid

    # ---- appending ------------------------------------------------------------------------------------------

    def append(self, records: ReadableBuffer) -> int:
        """Append encoded records, of any ledgers, end to end; returns the position after the last.

        Returns with the log's durability. After a crash in the middle of the call a prefix of the records may remain.
        Errors: InvalidRecordsError (nothing was appended), RecordTooLargeError, DiskFullError, PoisonedError.
        """
        end = append_entries(self._log, records)
        if self._log.config.durability == "synced":
            self._log.wait_synced(end)
        return end

    def submit(self, records: ReadableBuffer) -> AppendFuture[int]:
        """As append, without waiting: the AppendFuture gives the position once the records have the log's
        durability."""
        end = append_entries(self._log, records)
        return self._log.when_synced(end, end)

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """The records of a ledger's entries [start, end), end to end, verified, as many as fit into `bytes_max` bytes.

        Returns (records, next). Of the entries asked for in [start, next), those that are not among the records are
        definitely not here, as far as anybody was told that they are. `next` is more than `start`: one record is given
        out however large it is. A ledger id from `entries.CONTROL` on: its control records, by their codes.
        Errors: CorruptionError, whether they are here is unknown; InvalidArgumentError.
        """
        _check(ledger, start, end, bytes_max)
        end = min(end, start + bytes_max // _SMALLEST_RECORD + 1, _ENTRY_MAX + 1)
        return self._undisturbed(lambda: self._read(ledger, start, end, bytes_max))

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int = 1, run: int = 1
    ) -> tuple[bytes | memoryview, int]:
        """As read, of `run` entries from each of `start`, `start` + `step`, ..., and not verified: who gets them does
        that. Records that lie end to end are not copied but viewed; their segment stays until the view is dropped.

        Errors: CorruptionError, where the first of them should be lies something else; InvalidArgumentError.
        """
        _check(ledger, start, end, bytes_max)
        if not 1 <= run <= step:
            raise InvalidArgumentError(f"expected runs of 1 to {step} entries in steps of at least 1, found {run}")
        end = min(end, start + (bytes_max // _SMALLEST_RECORD // run + 1) * step, _ENTRY_MAX + 1)
        return self._undisturbed(lambda: self._lend(ledger, start, end, bytes_max, step, run))

    def _undisturbed(self, look: Callable[[], T]) -> T:
        """What `look` finds, at a time when nothing is removed: entries that it missed in a segment that went may have
        been appended once more behind the end it saw."""
        while True:
            removals = self._log.map.removals
            try:
                found = look()
            except TrimmedError:
                return self._log.without_removals(look)
            if self._log.map.removals == removals:
                return found

    def _read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        return copy_located(self._log.locations(ledger, start, end), self._log.hold, ledger, end, bytes_max)

    def _lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        locations = self._log.locations(ledger, start, end, step, run)
        return lend_located(locations, self._log.hold, ledger, end, bytes_max)

    def read_share(self, share: LedgerExtent, ledger: int, first: int, bytes_max: int) -> tuple[bytes, int]:
        """As `read`, of what one sealed segment holds of a ledger, from entry `first` to the end of its share.

        TrimmedError: the segment was removed or hollowed.
        """
        held, segment = self._log.hold(share.base)
        entries, offsets = self._log.look(share.base, lambda index: index.entries(ledger, first, share.last + 1))
        records, count = copy_entries(segment, ledger, entries, offsets, bytes_max, at_least_one=True)
        del held
        return records, int(entries[count]) if count < len(entries) else share.last + 1

    def last_entry(self, ledger: int) -> int | None:
        """Highest id of the ledger's entries that are here; None: none is. Errors: CorruptionError."""
        return self._undisturbed(lambda: self._last_entry(ledger))

    def _last_entry(self, ledger: int) -> int | None:
        visible = self.end_position
        last = None
        for share in self._log.shares(ledger):
            if last is None or share.last > last:
                last = max(self._log.last_in(share, ledger, visible), -1 if last is None else last)
        return None if last == -1 else last

    # ---- what is where --------------------------------------------------------------------------------------

    def ledgers(self) -> list[int]:
        """Ids of all ledgers that have records here; those from `entries.CONTROL` on are control records."""
        return self._log.ledgers()

    def shares(self, ledger: int) -> list[LedgerExtent]:
        """What a ledger has in each segment, the oldest first. Of the active one: so far, durable or not."""
        return self._log.shares(ledger)

    def segments(self) -> list[tuple[int, list[tuple[int, LedgerExtent]]]]:
        """(base, [(ledger, its share)]) of every sealed segment, the oldest first; a hollow one has no shares."""
        self._log.check_open()
        return self._log.map.segments()

    @property
    def start_position(self) -> int:
        """Position of the first segment."""
        return self._log.start_position

    @property
    def end_position(self) -> int:
        """Position after the last record that has the log's durability."""
        self._log.check_open()
        return self._log.end_position

    # ---- removing -------------------------------------------------------------------------------------------

    def trim(self, position: int) -> int:
        """Remove whole segments that end at or before `position`; returns where the log begins now.

        Never the active segment. Readers that hold a segment keep it. Errors: PoisonedError.
        """
        return self._log.trim_before(position)

    def punch_hole(self, base: int) -> None:
        """Give back the space of the sealed segment at `base`, none of whose entries are needed any more.

        Positions stay as they are. Durable and crash-safe: after a crash the segment is whole or hollow. Readers that
        hold it keep it. Doing it again changes nothing.
        Errors: InvalidArgumentError, there is no such sealed segment; DiskError, nothing happened; PoisonedError.
        """
        self._log.punch_hole(base)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync, and let go; as CommitLog.close."""
        self._log.close()

    def __repr__(self) -> str:
        return f"<LedgerLog {str(self.path)!r}>"


def _check(ledger: int, start: int, end: int, bytes_max: int) -> None:
    if ledger < 0 or not 0 <= start < end or bytes_max < 1:
        raise InvalidArgumentError(
            f"ledger {ledger}, entries [{start}, {end}), {bytes_max} bytes: expected ids from 0 on, at least one entry "
            "and at least 1 byte"
        )
