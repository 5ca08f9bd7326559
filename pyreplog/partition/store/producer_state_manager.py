"""ProducerStateManager: the producers and transactions of a replica's log, with snapshots beside its segments.

All of it is in the log, but for what was removed in front. So a snapshot that is damaged, missing, or of a log that was
cut or begun anew since is passed over: the state is rebuilt from an earlier one and the log behind that, and the later
snapshots are written again. Only the one at the start of a log that was trimmed cannot be rebuilt; a peer has it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.log_position import AppendedOffsets
from pyreplog._native.partition.leader_base import ProducerStateManagerBase
from pyreplog.errors import CorruptionError, FormatVersionError, InvalidMessageError, ReplogError
from pyreplog.log.files import Files, RealFiles
from pyreplog.partition.protocol.producers import ProducerBatch, ProducerStates
from pyreplog.partition.protocol.transactions import (
    EndedTransaction,
    LogTransactions,
    TransactionMarker,
    TransactionsSnapshot,
)
from pyreplog.partition.store.partition_log import PartitionLog
from pyreplog.partition.store.producer_snapshot import (
    FILE_MAX,
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


class ProducerChange(NamedTuple):
    """What a record batch in the log says of producers and transactions.

    Attributes:
        batch: of an idempotent producer.
        transaction: (producer id, producer epoch) of the transaction that it is a part of.
        marker: that it is.
    """

    batch: ProducerBatch | None = None
    transaction: tuple[int, int] | None = None
    marker: TransactionMarker | None = None


class ProducerStateManager(ProducerStateManagerBase):
    """The producers and transactions of one log, as a replay of all of it would give them.

    It has the state of the log when it is made. Afterwards the owner calls `replay` or `appended` when the log has
    grown, and `truncated` when it was cut or begun anew, before anybody asks. A snapshot is made when the replay comes
    to another segment; it is written, durably, at once or by `write_snapshots`. Not for several threads at once, but
    for `write_snapshots` and `close`.

    Args:
        log: the log, which is open.
        read_change: returns what a record batch says, None if it says nothing.
        files: the disk; None: the system's.

    Attributes:
        producers: the idempotent producers.
        transactions: the transactions.

    Raises:
        FormatVersionError: a later version wrote a snapshot.
        CorruptionError: a record is damaged.
    """

    transactions: LogTransactions
    _replayed: LogPosition

    def __init__(
        self, log: PartitionLog, read_change: Callable[[memoryview], ProducerChange | None], files: Files | None = None
    ) -> None:
        self._log, self._read_change = log, read_change
        self._files = files if files is not None else RealFiles()
        self._replayed = log.start_mark
        self._segment = self._replayed.position  # base of the one that is replayed
        self._unwritten: deque[tuple[Path, bytes]] = deque()  # snapshots; any thread takes them, oldest first
        self._writing = threading.Lock()  # held while snapshots are written; guards what follows
        self._is_closed = False
        self._load()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing of what retention removed. If it is, no snapshot is written, and no segment is
        removed, before the snapshot of a peer is taken (`adopt`), or none is expected any more (`accept_loss`)."""
        return self._is_complete

    @property
    def replayed(self) -> LogPosition:
        """Up to where the log is known."""
        return self._replayed

    @property
    def has_unwritten(self) -> bool:
        """Whether there are snapshots that `write_snapshots` has to write."""
        return bool(self._unwritten)

    # ---- replaying ------------------------------------------------------------------------------------------

    def replay(self, *, write: bool = True) -> None:
        """Learn what is in the log since the last time.

        Args:
            write: write snapshots at once; False: `write_snapshots` does so later, without the owner's locks.

        Raises:
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        end = self._log.end_mark
        if self._replayed.position < end.position:
            batches = self._log.read_positions(self._replayed.position, end.position, all_kinds=True, committed=False)
            for batch in batches:
                self._replay_batch(batch)
            self._replayed = end
        if write:
            self.write_snapshots()

    def appended(
        self, change: ProducerChange | None, before: LogPosition, appended: AppendedOffsets, time_us: int
    ) -> None:  # fmt: skip
        """Learn of one record batch that the owner has just appended, without reading it again if that can be avoided.

        Snapshots are not written: `write_snapshots` does so.

        Args:
            change: what it says; None: nothing.
            before: where the log ended before it.
            appended: where it went.
            time_us: the time in microseconds.

        Raises:
            CorruptionError, ClosedError: as `replay`.
        """
        segment_bytes, (position, _), end = self._log.segment_bytes, before, appended.end
        offset = position % segment_bytes
        if not offset or offset + end.position - position >= segment_bytes or before != self._replayed:
            self.replay(write=False)
            return
        if change is not None:
            self._apply(change, LogPosition(position, appended.offsets.start), end, time_us)
        self._replayed = end

    def _replay_batch(self, batch: RecordBatch) -> None:
        segment_bytes = self._log.segment_bytes
        bases = batch.position - batch.position % segment_bytes
        begins = (bases[1:] != bases[:-1]).nonzero()[0] + 1
        first = 0
        for stop in [*begins.tolist(), len(batch)]:
            if (base := int(bases[first])) > self._replayed.position:
                self._make_snapshot(base)
                self._segment = base
            for index in ((batch.kind[first:stop] == _BATCH).nonzero()[0] + first).tolist():
                self._note(batch, index)
            numbered = (batch.kind[first:stop] <= _NUMBERED_MAX).nonzero()[0]
            entry = int(batch.entry[first + numbered[-1]]) + 1 if len(numbered) else self._replayed.entry
            self._replayed = LogPosition(int(batch.position[stop - 1] + batch.stride[stop - 1]), entry)
            first = stop

    def _note(self, batch: RecordBatch, index: int) -> None:
        record = batch[index]
        change = self._read_change(record.value_view)
        if change is not None:
            first = LogPosition(record.position, record.entry - record.entry_count + 1)
            end = LogPosition(record.position + int(batch.stride[index]), record.entry + 1)
            self._apply(change, first, end, record.timestamp)

    def _apply(self, change: ProducerChange, first: LogPosition, end: LogPosition, time_us: int) -> None:
        if change.batch is not None:
            self.producers.append(change.batch, first.entry, time_us)
        if change.transaction is not None:
            self.transactions.append(*change.transaction, first)
        if change.marker is not None:
            self.transactions.end(change.marker, end)
            self.producers.note_use(change.marker.producer_id, time_us)

    def expire(self, before_us: int) -> int:
        """Forget producers that were idle since a time, but none with an unfinished transaction.

        Args:
            before_us: the time in microseconds: `producer.id.expiration.ms` ago.

        Returns:
            How many are forgotten.
        """
        idle = self.producers.expire(before_us, self.transactions.unfinished())
        self.transactions.forget(idle)
        return len(idle)

    # ---- snapshots ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Begin with the newest snapshot before which no other is missing: each has the aborted transactions of one
        segment."""
        log, snapshot, aborted = self._log, None, list[EndedTransaction]()
        start, end = log.start_mark, log.end_mark
        if start.position > 0:
            snapshot = self._read_snapshot(start.position)
        self._is_complete = start.position == 0 or snapshot is not None
        for base in range(start.position + log.segment_bytes, end.position + 1, log.segment_bytes):
            later = self._read_snapshot(base)
            if later is None:
                break
            snapshot = later
            aborted += (transaction for transaction in later.aborted if transaction.end > start)
        if snapshot is None:
            self.producers, self.transactions = ProducerStates(), LogTransactions()
        else:
            self.producers = ProducerStates(snapshot.producers)
            self.transactions = LogTransactions(snapshot.transactions, aborted)
        self.transactions.trimmed(start)
        self._replayed = start if snapshot is None else snapshot.end
        self._segment = self._replayed.position
        self.replay()

    def _read_snapshot(self, base: int) -> ProducerSnapshot | None:
        log, path = self._log, snapshot_path(self._log.path, base)
        try:
            snapshot = decode_snapshot(path, read_regular(path, FILE_MAX))
        except FileNotFoundError:
            return None
        except CorruptionError as error:
            logger.warning("%s; it is made again", error)
            return None
        is_own = snapshot.end.position == base and snapshot.is_of(log.uuid, log.history, log.end_mark)
        return snapshot if is_own else None

    def _make_snapshot(self, base: int) -> None:
        if not self._is_complete:
            return
        starts = self._log.history.starts
        epoch = [start for start in starts if start.start.position < base][-1]
        aborted = self.transactions.aborted_since(LogPosition(self._segment, 0))
        snapshot = ProducerSnapshot(
            self._log.uuid, epoch, LogPosition(base, self._replayed.entry), self.producers.snapshot(),
            self.transactions.snapshot(), tuple(aborted),
        )  # fmt: skip
        self._unwritten.append((snapshot_path(self._log.path, base), encode_snapshot(snapshot)))

    def write_snapshots(self) -> None:
        """Write the snapshots that were made since the last time, durably. Any thread may call it.

        One that was made before the log was cut does no harm: it is not of the log any more, and is passed over.
        Without a snapshot a later start only takes longer, and the segments in front of it are not removed.
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
        """Write no snapshot any more. Any thread may call it."""
        with self._writing:
            self._is_closed = True

    def truncated(self) -> None:
        """Note that the log was cut, or begun anew: only a snapshot says which batches the removed ones had pushed out.

        Raises:
            CorruptionError: a record is damaged.
        """
        end = self._log.end_mark.position
        self._remove(base for base in snapshot_bases(self._log.path) if base > end)
        self._load()

    def trim_to(self, start: LogPosition) -> LogPosition:
        """Remove segments as `PartitionLog.trim_to`, up to one that has a snapshot.

        Returns:
            Where the log begins now.

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
        """Those that a crash brings back are passed over when they are read."""
        for base in bases:
            with contextlib.suppress(OSError):
                self._files.remove(snapshot_path(self._log.path, base))

    # ---- peers ----------------------------------------------------------------------------------------------

    def snapshot_at_start(self) -> bytes | None:
        """Return the snapshot at the start of the log, for a replica whose log begins there, without having one; None:
        there is none."""
        base = self._log.start_position
        snapshot = self._read_snapshot(base) if base else None
        return None if snapshot is None else encode_snapshot(snapshot)

    def adopt(self, data: bytes) -> None:
        """Take the snapshot of a peer, of the start of this log, durably.

        Args:
            data: from the peer's `snapshot_at_start`.

        Raises:
            InvalidMessageError: it is damaged, or of another log or place.
            DiskFullError: there is no room.
        """
        log = self._log
        path, start = snapshot_path(log.path, log.start_position), log.start_mark
        try:
            snapshot = decode_snapshot(path, data)
        except CorruptionError as error:
            raise InvalidMessageError(f"the producer snapshot of a peer: {error}") from error
        if snapshot.end != start or not snapshot.is_of(log.uuid, log.history, log.end_mark):
            raise InvalidMessageError(
                f"{log.path}: expected a producer snapshot of its start {start}, found one of {snapshot.end}, in "
                f"epoch {snapshot.epoch}"
            )
        self._files.replace_small(path, data)
        self._load()

    def keep_for_reset(self, start: LogPosition, data: bytes) -> None:
        """Keep the snapshot of a peer, durably, before the log is begun anew at its place. `truncated` takes it.

        Args:
            start: where the log will begin.
            data: from the peer's `snapshot_at_start`.

        Raises:
            InvalidMessageError: it is damaged, or of another log or place. Nothing was written.
            DiskFullError: there is no room.
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

    def accept_loss(self) -> None:
        """Go on without what retention removed, because no peer has it: producers of which nothing is known may begin
        with any number. Durable if the log has a record: before, it is to be said again when the log is opened.

        Raises:
            DiskFullError: there is no room.
        """
        log = self._log
        start = log.start_mark
        known = [at for at in log.history.starts if at.start.position < start.position or at.start == start]
        self._is_complete = True
        if known:
            snapshot = ProducerSnapshot(log.uuid, known[-1], start, (), TransactionsSnapshot(), ())
            self._files.replace_small(snapshot_path(log.path, start.position), encode_snapshot(snapshot))
            self._load()
