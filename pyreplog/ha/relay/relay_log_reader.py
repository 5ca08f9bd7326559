"""RelayLogReader: reads a relay log for an applier, and checks that its history is the applied one."""

from __future__ import annotations

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog.errors import PositionError, TrimmedError, TruncatedError
from pyreplog.ha.relay.position import Applied
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.log_cursor import record_check
from pyreplog.log.reader import LogReader


class RelayLogReader:
    """Reads a relay log from the position of an applier on. Not thread-safe."""

    def __init__(self, relay: CommitLog | LogReader, batch_bytes: int) -> None:
        self.relay = relay
        self._batch_bytes = batch_bytes
        self._compared = -1  # truncation count of the log when its history was last compared

    def first(self, entry: int | None) -> Applied:
        """Return the position to begin with when none is stored: at `entry`, or at the start of the log.

        Raises:
            TrimmedError: the log begins behind `entry`, or behind entry 0 if `entry` is None.
        """
        start = self.relay.start
        self.relay.check_open()  # the start of a closed log is not valid
        if entry is None and start > 0:
            raise TrimmedError(
                f"{self.relay.path} begins at entry {start}: earlier entries are gone, and would never be "
                f"applied; if the target has them already, begin with start={start}"
            )
        wanted = start if entry is None else entry
        if wanted < start:
            raise TrimmedError(f"{self.relay.path} begins at entry {start}, behind entry {wanted}")
        return Applied(self.relay.uuid, self.relay.position_of(wanted), wanted, self._check_before(wanted))

    @property
    def received(self) -> tuple[int, int]:
        """Position and entry number of the end of the log; for a log open for writing, uncommitted entries included."""
        relay = self.relay
        if isinstance(relay, LogReader):
            return relay.end_position, relay.end
        return relay.tail.end, relay.tail.end_entry

    def check_log(self, applied: Applied) -> None:
        """Raise PositionError if a position belongs to another log."""
        if applied.log != self.relay.uuid:
            raise PositionError(
                f"{self.relay.path} is log {self.relay.uuid.hex()}; what is applied is of log {applied.log.hex()}"
            )

    def read(self, at: Applied, limit: int) -> RecordBatch | None:
        """Return at most `limit` entries from `at` on; None: there are none yet.

        Raises:
            TrimmedError: the relay log begins behind `at`. Discard it, and receive again from the applied position.
            TruncatedError: entries before `at` that were applied have been truncated.
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        start = self.relay.start
        self.relay.check_open()
        if at.entry < start:
            raise TrimmedError(
                f"{self.relay.path} begins at entry {start}, entry {at.entry} is to be applied: "
                "discard the relay log, and receive again from the applied position"
            )
        while at.entry < self.relay.end:
            truncations = self.relay.truncation_count
            if truncations != self._compared:
                self._compare(at)
            batch = next(self.relay.read(at.entry, at.entry + limit, batch_bytes=self._batch_bytes), None)
            if self.relay.truncation_count == truncations:
                self._compared = truncations
                return batch
        return None

    def behind(self, record: Record) -> Applied:
        """Return the position behind a record."""
        return Applied(self.relay.uuid, record.position + len(record.raw), record.entry + 1, record_check(record))

    def _compare(self, at: Applied) -> None:
        """Raise TruncatedError if the last applied record is no longer in the log."""
        before = self._check_before(at.entry)
        if before and at.check and before != at.check:
            raise TruncatedError(
                f"entry {at.entry - 1}, which was applied, has been cut from {self.relay.path}, and another one is in "
                "its place: what was applied is of another history"
            )

    def _check_before(self, entry: int) -> int:
        """Return the checksum of the record before `entry`; 0: the log does not have it."""
        before: Record | None = self.relay.get(entry - 1) if self.relay.start < entry <= self.relay.end else None
        return 0 if before is None else record_check(before)
