"""ProducerStateManager: the producers and transactions of a replica's log, with snapshots beside its segments.

The state can be rebuilt from the log, except for its trimmed part. So a snapshot is ignored if it is damaged, missing,
or of a log that was truncated or reset since: the state is rebuilt from an earlier snapshot and the log behind it, and
the later snapshots are written again. A trimmed log needs a snapshot of its start or of a later segment for the
producers of the removed records. If all are lost, one is copied from another replica.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from pyreplog._native.kafka.record_batch import peek_header
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.record import Record
from pyreplog._native.partition.producer_state_manager_base import ProducerStateManagerBase
from pyreplog.errors import CorruptionError, FormatVersionError, InvalidMessageError, ReplogError
from pyreplog.log.files import Files, RealFiles
from pyreplog.partition.protocol.producers import ProducerStates
from pyreplog.partition.protocol.record_batch import marker_of
from pyreplog.partition.protocol.transactions import EndedTransaction, LogTransactions, TransactionsSnapshot
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.producer_snapshot import (
    FILE_MAX,
    ProducerLoss,
    ProducerSnapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_bases,
    snapshot_path,
)
from pyreplog.regular_files import read_regular
from pyreplog.stream.log_position import LogPosition

logger = logging.getLogger(__name__)

_BATCH, _NUMBERED_MAX = 2, 2  # kinds of records
_ALIGNMENT = 8  # of records in a segment


class ProducerStateManager(ProducerStateManagerBase):
    """The producers and transactions of one log, as a replay of the whole log would restore them.

    The constructor restores the state of the log. Afterwards the owner calls `replay` or `appended` when the log has
    grown, and `truncated` when it was truncated or reset, before it uses the state. A snapshot is made when the replay
    reaches another segment; it is written, durably, at once or by `write_snapshots`. One thread at a time, except for
    `write_snapshots` and `close`.

    Args:
        log: the log, which is open.
        files: the disk; None: the system's.

    Attributes:
        producers: the idempotent producers.
        transactions: the transactions.
        loss: the accepted loss (`accept_loss`), here or on the replica whose snapshot was adopted, until the missing
            producers would have expired; None: no producers are missing.

    Raises:
        FormatVersionError: a later version wrote a snapshot.
        CorruptionError: a record is damaged.
    """

    producers: ProducerStates
    transactions: LogTransactions
    loss: ProducerLoss | None
    _replayed: LogPosition

    def __init__(self, log: PartitionLog, files: Files | None = None) -> None:
        self._log, self._segment_bytes = log, log.segment_bytes
        self._files = files if files is not None else RealFiles()
        self._replayed = log.start_mark
        self._segment = self._replayed.position  # base of the segment that is replayed
        self._unwritten: deque[tuple[Path, bytes]] = deque()  # snapshots, oldest first; any thread pops them
        self._writing = threading.Lock()  # held while snapshots are written; guards `_is_closed`
        self._is_closed = False
        self._load()

    @property
    def is_complete(self) -> bool:
        """Whether the state includes the records that retention removed. Otherwise no snapshot is written, and no
        segment is removed up to one without a snapshot, until the snapshot of another replica is adopted (`adopt`), or
        the loss is accepted (`accept_loss`)."""
        return self._is_complete

    @property
    def replayed(self) -> LogPosition:
        """End of the replayed part of the log."""
        return self._replayed

    @property
    def has_unwritten(self) -> bool:
        """Whether there are snapshots that `write_snapshots` has to write."""
        return bool(self._unwritten)

    # ---- replaying ------------------------------------------------------------------------------------------

    def replay(self, *, write: bool = True) -> None:
        """Replay the records that were appended since the last call.

        Args:
            write: write snapshots at once; False: `write_snapshots` does so later, without the owner's locks.

        Raises:
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        self._replay_to(self._log.end_mark)
        if write:
            self.write_snapshots()

    def _replay_to(self, end: LogPosition) -> None:
        if self._replayed.position < end.position:
            batches = self._log.read_positions(self._replayed.position, end.position, all_kinds=True, committed=False)
            for batch in batches:
                self._replay_batch(batch)
            self._replayed = end

    def _replay_batch(self, batch: RecordBatch) -> None:
        if len(batch) == 1:
            self._replay_single(batch[0])
            return
        segment_bytes = self._log.segment_bytes
        bases = batch.position - batch.position % segment_bytes
        begins = (bases[1:] != bases[:-1]).nonzero()[0] + 1
        first = 0
        for stop in [*begins.tolist(), len(batch)]:
            self._begin_segment(int(bases[first]))
            for index in ((batch.kind[first:stop] == _BATCH).nonzero()[0] + first).tolist():
                self._replay_record(batch[index], int(batch.stride[index]))
            numbered = (batch.kind[first:stop] <= _NUMBERED_MAX).nonzero()[0]
            entry = int(batch.entry[first + numbered[-1]]) + 1 if len(numbered) else self._replayed.entry
            self._replayed = LogPosition(int(batch.position[stop - 1] + batch.stride[stop - 1]), entry)
            first = stop

    def _replay_single(self, record: Record) -> None:
        """Replay the only record of a scan without columns, for which a new broker would load numpy."""
        self._begin_segment(record.position - record.position % self._log.segment_bytes)
        stride = -(-len(record.raw) // _ALIGNMENT) * _ALIGNMENT
        if record.kind == _BATCH:
            self._replay_record(record, stride)
        entry = record.entry + 1 if record.kind <= _NUMBERED_MAX else self._replayed.entry
        self._replayed = LogPosition(record.position + stride, entry)

    def _begin_segment(self, base: int) -> None:
        """Make a snapshot if the replay comes to another segment. base: position of the segment of the next record."""
        if base > self._replayed.position:
            self._make_snapshot(base)
            self._segment = base

    def _replay_record(self, record: Record, stride: int) -> None:
        """Replay a record batch. stride: bytes from its record to the next one."""
        value = record.value_view
        head = peek_header(value)
        if head is not None and head.producer_id >= 0:
            first = LogPosition(record.position, record.entry - record.entry_count + 1)
            end = LogPosition(record.position + stride, record.entry + 1)
            self.apply(head, marker_of(value) if head.control else None, first, end, record.timestamp)

    def expire(self, before_us: int) -> int:
        """Remove producers that were idle since a time, except those with an unfinished transaction. A loss before that
        time is forgotten as well: the log has no records of an open transaction before its start.

        Args:
            before_us: wall time, microseconds since 1970-01-01 UTC, `producer.id.expiration.ms` ago.

        Returns:
            Number of removed producers.
        """
        idle = self.producers.expire(before_us, self.transactions.unfinished())
        self.transactions.forget(idle)
        if self.loss is not None and self.loss.accepted_us < before_us:
            self.loss = None
        return len(idle)

    # ---- snapshots ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Restore the newest snapshot before which no other one is missing, because each has the aborted transactions
        of one segment; replay the log behind it. Without such a snapshot take the producers of the newest one."""
        log, snapshot, aborted = self._log, None, list[EndedTransaction]()
        start, end = log.start_mark, log.end_mark
        if start.position > 0:
            snapshot = _read_snapshot(log, start.position)
        for base in range(start.position + log.segment_bytes, end.position + 1, log.segment_bytes):
            later = _read_snapshot(log, base)
            if later is None:
                break
            snapshot = later
            aborted += (transaction for transaction in later.aborted if transaction.end > start)
        self._is_complete = start.position == 0 or snapshot is not None
        if snapshot is None:
            self.producers, self.transactions, self.loss = ProducerStates(), LogTransactions(), None
        else:
            self.producers, self.loss = ProducerStates(snapshot.producers), snapshot.loss
            self.transactions = LogTransactions(snapshot.transactions, aborted)
        self.transactions.trimmed(start)
        self._replayed = start if snapshot is None else snapshot.end
        self._segment = self._replayed.position
        if not self._is_complete:
            self._restore_newest()
        self.replay()

    def _restore_newest(self) -> None:
        """Restore the newest snapshot although an earlier one is missing. The log before it is read for the index of
        aborted transactions: these lie in the log as a whole, which never begins behind an open transaction."""
        log, newest = self._log, newest_snapshot(self._log)
        if newest is None:
            return
        self._replay_to(newest.end)
        aborted = self.transactions.aborted_since(LogPosition(0, 0))
        self.producers, self.loss = ProducerStates(newest.producers), newest.loss
        self.transactions = LogTransactions(newest.transactions, aborted)
        self.transactions.trimmed(log.start_mark)
        self._segment, self._is_complete = newest.end.position, True

    def _make_snapshot(self, base: int) -> None:
        if not self._is_complete:
            return
        starts = self._log.history.starts
        epoch = [start for start in starts if start.start.position < base][-1]
        aborted = self.transactions.aborted_since(LogPosition(self._segment, 0))
        snapshot = ProducerSnapshot(
            self._log.uuid, epoch, LogPosition(base, self._replayed.entry), self.producers.snapshot(),
            self.transactions.snapshot(), tuple(aborted), self.loss,
        )  # fmt: skip
        self._unwritten.append((snapshot_path(self._log.path, base), encode_snapshot(snapshot)))

    def write_snapshots(self) -> None:
        """Write the snapshots that were made since the last call, durably. Any thread may call it.

        A snapshot from before a truncation does no harm: it does not belong to the log any more, and is ignored. If a
        snapshot cannot be written, a later start takes longer, and the segments before it are not removed.
        """
        with self._writing:
            while self._unwritten and not self._is_closed:
                path, data = self._unwritten.popleft()
                try:
                    self._files.replace_small(path, data)
                except (OSError, ReplogError) as error:
                    logger.warning("%s cannot be written: %s", path, error)
                    with contextlib.suppress(OSError):
                        self._files.remove(path)

    def close(self) -> None:
        """Stop writing snapshots. Any thread may call it."""
        with self._writing:
            self._is_closed = True

    def truncated(self) -> None:
        """Restore the state after the log was truncated or reset. Only a snapshot has the older batches that the
        removed ones displaced.

        Raises:
            CorruptionError: a record is damaged.
        """
        end = self._log.end_mark.position
        self._remove(base for base in snapshot_bases(self._log.path) if base > end)
        self._load()

    def trim_to(self, start: LogPosition) -> LogPosition:
        """Remove segments as `PartitionLog.trim_to` does, up to one that has a snapshot.

        Returns:
            The new start of the log.

        Raises:
            PoisonedError: the disk failed.
            ClosedError: the log was closed.
        """
        log = self._log
        self.write_snapshots()
        bases = snapshot_bases(log.path)
        last = max((base for base in bases if base <= min(start.position, self._replayed.position)), default=0)
        begins = log.trim_to(min(start, LogPosition(last, start.entry)))
        self._remove(base for base in bases if base < begins.position)
        self.transactions.trimmed(begins)
        return begins

    def _remove(self, bases: Iterable[int]) -> None:
        """Remove snapshots. After a crash some may be back; `_read_snapshot` ignores them."""
        for base in bases:
            with contextlib.suppress(OSError):
                self._files.remove(snapshot_path(self._log.path, base))

    # ---- peers ----------------------------------------------------------------------------------------------

    def snapshot_at_start(self) -> bytes | None:
        """Return the snapshot at the start of the log, for another replica whose log begins there and which has no such
        snapshot; None: it does not exist."""
        base = self._log.start_position
        snapshot = _read_snapshot(self._log, base) if base else None
        return None if snapshot is None else encode_snapshot(snapshot)

    def find_snapshot(self, first: int, last: int) -> tuple[int, int] | None:
        """Find the first snapshot before a segment in a range, for another replica that has lost its own. It is read
        with `read_snapshot`. The state has to be replayed, so that snapshots of all segments exist.

        Args:
            first: lowest position of the segment.
            last: highest position of the segment.

        Returns:
            Position of the segment, and size of the snapshot in bytes; None: this state is incomplete, or has no
            snapshot in the range.
        """
        if not self._is_complete:
            return None
        self.write_snapshots()
        for base in snapshot_bases(self._log.path):
            if first <= base <= last and _read_snapshot(self._log, base) is not None:
                return base, snapshot_path(self._log.path, base).stat().st_size
        return None

    def read_snapshot(self, base: int) -> bytes:
        """Return the bytes of the snapshot before a segment. Any thread may call it.

        Args:
            base: position of the segment.

        Raises:
            FileNotFoundError: the segment has no snapshot any more.
            OSError: the disk failed.
        """
        return read_regular(snapshot_path(self._log.path, base), FILE_MAX)

    def adopt(self, data: bytes) -> None:
        """Adopt another replica's snapshot of the start, or of a later segment, of this log, durably.

        Args:
            data: the bytes from the other replica's `read_snapshot`.

        Raises:
            InvalidMessageError: it is damaged, of a later version, or of another log. Nothing was written.
            DiskFullError: the disk is full.
        """
        log = self._log
        try:
            snapshot = decode_snapshot(log.path, data)
        except (CorruptionError, FormatVersionError) as error:
            raise InvalidMessageError(f"the producer snapshot of a peer: {error}") from error
        base, start = snapshot.end.position, log.start_mark
        is_inside = base > start.position and base % log.segment_bytes == 0
        if not (is_inside or snapshot.end == start) or not snapshot.is_of(log.uuid, log.history, log.end_mark):
            raise InvalidMessageError(
                f"{log.path}: expected a producer snapshot of a segment from its start {start} on, found one of "
                f"{snapshot.end}, in epoch {snapshot.epoch}"
            )
        self._files.replace_small(snapshot_path(log.path, base), data)
        self._load()

    def keep_for_reset(self, start: LogPosition, data: bytes) -> None:
        """Store another replica's snapshot, durably, before the log is reset to its position. `truncated` restores it.

        Args:
            start: where the log will begin.
            data: result of the other replica's `snapshot_at_start`.

        Raises:
            InvalidMessageError: it is damaged, or of another log or position. Nothing was written.
            DiskFullError: the disk is full.
        """
        path = snapshot_path(self._log.path, start.position)
        try:
            snapshot = decode_snapshot(path, data)
        except (CorruptionError, FormatVersionError) as error:
            raise InvalidMessageError(f"the producer snapshot of a peer: {error}") from error
        if snapshot.uuid != self._log.uuid or snapshot.end != start:
            raise InvalidMessageError(
                f"{self._log.path}: expected a producer snapshot of {start}, found one of {snapshot.end}"
            )
        self._files.replace_small(path, data)

    def accept_loss(self, now_us: int) -> None:
        """Accept that the state lacks the records that retention removed, because no replica has a snapshot of them:
        unknown producers may begin with any number. Later snapshots have the loss, too. Durable if the log has a
        record; otherwise it has to be called again when the log is opened.

        Args:
            now_us: the time, microseconds since 1970-01-01 UTC.

        Raises:
            DiskFullError: the disk is full.
        """
        log = self._log
        start = log.start_mark
        known = [at for at in log.history.starts if at.start.position < start.position or at.start == start]
        self._is_complete, self.loss = True, ProducerLoss(start.entry, now_us)
        if known:
            snapshot = ProducerSnapshot(log.uuid, known[-1], start, (), TransactionsSnapshot(), (), self.loss)
            self._files.replace_small(snapshot_path(log.path, start.position), encode_snapshot(snapshot))
            self._load()


def newest_snapshot(log: PartitionLog) -> ProducerSnapshot | None:
    """Return the newest intact snapshot of a log, behind its start or at it; None: there is none.

    Args:
        log: the log, which is open.

    Raises:
        FormatVersionError: a later version wrote a snapshot.
        OSError: the disk failed.
    """
    start, end = log.start_position, log.end_mark.position
    bases = (base for base in reversed(snapshot_bases(log.path)) if start <= base <= end)
    return next((snapshot for base in bases if (snapshot := _read_snapshot(log, base)) is not None), None)


def _read_snapshot(log: PartitionLog, base: int) -> ProducerSnapshot | None:
    """Return the snapshot before a segment; None: it is missing, damaged, or of another log."""
    path = snapshot_path(log.path, base)
    try:
        snapshot = decode_snapshot(path, read_regular(path, FILE_MAX))
    except FileNotFoundError:
        return None
    except CorruptionError as error:
        logger.warning("%s; it is made again", error)
        return None
    is_own = snapshot.end.position == base and snapshot.is_of(log.uuid, log.history, log.end_mark)
    return snapshot if is_own else None
