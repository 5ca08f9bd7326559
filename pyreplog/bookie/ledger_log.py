"""LedgerLog: one log that holds the entries of many ledgers, found by (ledger id, entry id)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.intake import EntryIntake, append_entries, copy_entries
from pyreplog.bookie.dead_entries import DeadEntries
from pyreplog.bookie.entry_locations import alive, copy_located, lend_located
from pyreplog.bookie.ledger_map import BadRange, LedgerExtent
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
    """A log of encoded entries (`_native.ledger_log`), which are addressed by (ledger, entry) or by position.

    path, config, create, clock, files: as of `pyreplog.open`. Settings of retention raise ConfigError: use `trim` and
    `punch_hole`. Any thread may use it. Close it, or use `with`. Every method raises ClosedError and ForkedError.
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
            raise ConfigError("retention_bytes, retention_ms: expected None, a bookie trims its log itself")
        self._log = MultiLedgerLog(as_directory(path), config, create=create, clock=clock, files=files)
        self.stage: Callable[[ReadableBuffer], int] = EntryIntake(self._log)
        """Append without waiting: the records have the log's durability after the next `sync`.

        In a synced log they cannot be read before that. Raises as `append`."""
        self.sync: Callable[[], object] = self._log.syncer()
        """Make all records that were appended so far durable. Raises PoisonedError if that fails."""

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
        """Number of intact records in the torn tail that was cut when the log was opened.

        If it is not 0, entries that this log does not have may have been there.
        """
        return self._log.cut_records

    @property
    def uuid(self) -> bytes:
        """16 random bytes, drawn when the log was made."""
        return self._log.uuid

    # ---- appending ------------------------------------------------------------------------------------------

    def append(self, records: ReadableBuffer) -> int:
        """Append encoded records of any ledgers, which lie end to end; wait until they have the log's durability.

        Returns the position after the last one. After a crash during the call a prefix of the records may remain.
        Raises InvalidRecordsError (nothing was appended), RecordTooLargeError, DiskFullError, PoisonedError.
        """
        end = append_entries(self._log, records)
        if self._log.config.durability == "synced":
            self._log.wait_synced(end)
        return end

    def submit(self, records: ReadableBuffer) -> AppendFuture[int]:
        """Append as `append`, without waiting; the AppendFuture gives the position."""
        end = append_entries(self._log, records)
        return self._log.when_synced(end, end)

    # ---- reading --------------------------------------------------------------------------------------------

    def read(
        self, ledger: int, start: int, end: int, bytes_max: int, dead: DeadEntries | None = None
    ) -> tuple[bytes, int]:
        """Read verified records of a ledger's entries [start, end), end to end, up to `bytes_max` bytes.

        Returns (records, next). Entries of [start, next) without a record are not in the log, are dead, or were never
        acknowledged. `next` is above `start`: one record is returned even if it is larger. Control records are read by
        their codes, with a ledger number from `entries.CONTROL` on. Raises CorruptionError (it is unknown whether the
        log has the entries) and InvalidArgumentError.
        """
        _check(ledger, start, end, bytes_max)
        end = min(end, start + bytes_max // _SMALLEST_RECORD + 1, _ENTRY_MAX + 1)
        return self._undisturbed(lambda: self._read(ledger, start, end, bytes_max, dead))

    def lend(
        self,
        ledger: int,
        start: int,
        end: int,
        bytes_max: int,
        step: int = 1,
        run: int = 1,
        dead: DeadEntries | None = None,
    ) -> tuple[bytes | memoryview, int]:
        """Lend records of `run` entries from each of `start`, `start` + `step`, ...; else as `read`.

        The records are not verified; their receiver does that. Records that lie end to end are not copied: a view pins
        their segment until it is dropped. Raises CorruptionError (another record lies at the place of the first entry)
        and InvalidArgumentError.
        """
        _check(ledger, start, end, bytes_max)
        if not 1 <= run <= step:
            raise InvalidArgumentError(f"ledger {ledger}: expected 1 <= run <= step, found run {run}, step {step}")
        end = min(end, start + (bytes_max // _SMALLEST_RECORD // run + 1) * step, _ENTRY_MAX + 1)
        return self._undisturbed(lambda: self._lend(ledger, start, end, bytes_max, step, run, dead))

    def _undisturbed(self, read: Callable[[], T]) -> T:
        """Call `read` until no segment was removed during the call, and return its result.

        Entries of a removed segment may have been appended once more, at a position after the end that `read` found.
        """
        while True:
            removals = self._log.map.removals
            try:
                result = read()
            except TrimmedError:
                return self._log.without_removals(read)
            if self._log.map.removals == removals:
                return result

    def _read(self, ledger: int, start: int, end: int, bytes_max: int, dead: DeadEntries | None) -> tuple[bytes, int]:
        locations = self._log.readable(ledger, alive(self._log.locations(ledger, start, end), dead))
        return copy_located(locations, self._log.hold, ledger, end, bytes_max)

    def _lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int, dead: DeadEntries | None
    ) -> tuple[bytes | memoryview, int]:
        locations = self._log.readable(ledger, alive(self._log.locations(ledger, start, end, step, run), dead))
        return lend_located(locations, self._log.hold, ledger, end, bytes_max)

    def share_entries(self, share: LedgerExtent, ledger: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the entries of a ledger in one sealed segment, ascending, and the positions of their records.

        Raises CorruptionError if the index is damaged, and TrimmedError if the segment was removed.
        """
        entries, offsets = self._log.query_index(
            share.base, lambda index: index.entries(ledger, share.first, share.last + 1)
        )
        return entries, offsets + share.base

    def read_share(
        self, share: LedgerExtent, ledger: int, first: int, bytes_max: int, dead: DeadEntries | None = None
    ) -> tuple[bytes, int]:
        """Read the entries of a ledger in one sealed segment, from `first` to the end of its share; else as `read`.

        Raises TrimmedError if the segment was removed or a hole was punched.
        """
        pin, segment = self._log.hold(share.base)
        entries, offsets = self._log.query_index(share.base, lambda index: index.entries(ledger, first, share.last + 1))
        if dead is not None:
            live = ~dead.mask(entries, offsets + share.base)
            entries, offsets = entries[live], offsets[live]
        records, count = copy_entries(segment, ledger, entries, offsets, bytes_max, at_least_one=True)
        del pin
        return records, int(entries[count]) if count < len(entries) else share.last + 1

    def last_entry(self, ledger: int) -> int | None:
        """Return the highest entry of a ledger in the log; None: it has none.

        Raises CorruptionError if that is unknown.
        """
        return self._undisturbed(lambda: self._last_entry(ledger))

    def _last_entry(self, ledger: int) -> int | None:
        visible = self.end_position
        last = None
        for share in self._log.shares(ledger):
            if last is None or share.last > last:
                last = max(self._log.last_in(share, ledger, visible), -1 if last is None else last)
        return None if last == -1 else last

    def held_entries(self, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the entries of [start, end) that have a record in the log, intact or not.

        Raises CorruptionError if that is unknown.
        """
        _check(ledger, start, end, 1)
        return self._undisturbed(lambda: self._log.held_entries(ledger, start, end))

    def newest_in(self, base: int, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the entries of [start, end) whose newest record lies in a segment.

        Raises CorruptionError if that is unknown.
        """
        _check(ledger, start, end, 1)
        return self._undisturbed(lambda: self._log.newest_in(base, ledger, start, end))

    def set_damaged(self, damaged: Mapping[int, Sequence[BadRange]]) -> None:
        """Set the damaged records of segments, by their bases: reads of them raise CorruptionError, and do not touch
        the bytes.

        The kernel ends a process that touches a block of a mapped file which the disk cannot read.
        """
        self._log.damaged = {base: tuple(ranges) for base, ranges in damaged.items() if ranges}

    # ---- contents -------------------------------------------------------------------------------------------

    def ledgers(self) -> list[int]:
        """Return all ledgers that have records in the log; numbers from `entries.CONTROL` on stand for control
        records."""
        return self._log.ledgers()

    def shares(self, ledger: int) -> list[LedgerExtent]:
        """Return the share of a ledger in each segment, the oldest first; in the active one with unsynced entries."""
        return self._log.shares(ledger)

    def segments(self) -> list[tuple[int, list[tuple[int, LedgerExtent]]]]:
        """Return (base, [(ledger, share)]) of every sealed segment, the oldest first; hollow segments have no
        shares."""
        self._log.check_open()
        return self._log.map.segments()

    def is_hollow(self, base: int) -> bool:
        """Return whether the segment at `base` is sealed and has no records."""
        return self._log.map.is_hollow(base)

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
        """Remove the sealed segments that end at or before `position`; return the start of the log.

        Pinned segments stay in memory. Raises PoisonedError if a sync has failed.
        """
        return self._log.trim_before(position)

    def punch_hole(self, base: int) -> None:
        """Free the space of the sealed segment at `base`, of which no entry is needed any more. Positions stay as they
        are.

        After a crash the segment is complete or hollow. Pinned segments stay in memory. A second call changes nothing.
        Raises InvalidArgumentError (there is no such sealed segment), DiskError (nothing was changed) and
        PoisonedError.
        """
        self._log.punch_hole(base)

    # ---- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync and close the log, as `CommitLog.close`."""
        self._log.close()

    def __repr__(self) -> str:
        return f"<LedgerLog {str(self.path)!r}>"


def _check(ledger: int, start: int, end: int, bytes_max: int) -> None:
    if ledger < 0 or not 0 <= start < end or bytes_max < 1:
        raise InvalidArgumentError(
            f"expected numbers of 0 or more, at least one entry and at least 1 byte, found ledger {ledger}, entries "
            f"[{start}, {end}), {bytes_max} bytes"
        )
