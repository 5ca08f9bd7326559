"""A replica's log and small files, and what a crash leaves of them."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.producers import ProducerBatch, ProducerStates
from pyreplog.partition.protocol.replica_log import ReplicaLog
from pyreplog.partition.protocol.transactions import LogTransactions, TransactionMarker
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History, TermStart

RECORD_BYTES = 10


class Record(NamedTuple):
    """An entry, or the control record of an epoch, whose value is "". batch: of an idempotent producer. transaction: its
    number, of a batch or of the marker; 0: none. time_us: wall time of the leader that appended it."""

    epoch: LeaderEpoch
    value: str
    batch: ProducerBatch | None = None
    transaction: int = 0
    marker: TransactionMarker | None = None
    time_us: int = 0


class Disk:
    """records: beyond `synced` they are in the page cache only; those before `start` are removed, and nobody but the
    invariants knows them. is_clean: the marker of a clean stop. is_whole: whether the incarnation has all it had."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.records: list[Record] = []
        self._numbered = [0]  # entries among the first so many records
        self.synced = self.start = self.checkpoint = 0
        self.incarnation = 0
        self.deleted = 0  # entries before this offset, by order
        self.producers = ProducerStates()
        self.transactions = LogTransactions()
        self.is_clean, self.is_whole = False, True

    def mark(self, records: int) -> LogPosition:
        """The end of so many records."""
        return LogPosition(records * RECORD_BYTES, self._numbered[records])

    @property
    def log(self) -> ReplicaLog:
        starts = [TermStart(record.epoch, self.mark(at)) for at, record in enumerate(self.records) if not record.value]
        return ReplicaLog(
            History(tuple(starts)), self.mark(self.start), self.mark(len(self.records)), self.mark(self.synced),
            self.deleted,
        )  # fmt: skip

    @property
    def end(self) -> LogPosition:
        return self.mark(len(self.records))

    @property
    def synced_end(self) -> LogPosition:
        return self.mark(self.synced)

    def append(self, record: Record) -> None:
        if record.batch is not None:
            self.producers.append(record.batch, self._numbered[-1], record.time_us)
        self.records.append(record)
        self._numbered.append(self._numbered[-1] + bool(record.value))
        self._note_transaction(len(self.records) - 1)

    def _note_transaction(self, at: int) -> None:
        record = self.records[at]
        if record.marker is not None:
            self.transactions.end(record.marker, self.mark(at + 1))
            self.producers.note_use(record.marker.producer_id, record.time_us)
        elif record.batch is not None and record.transaction:
            self.transactions.append(record.batch.producer_id, record.batch.epoch, self.mark(at))

    def cut(self, records: int) -> None:
        del self.records[records:], self._numbered[records + 1 :]
        self.synced, self.checkpoint = min(self.synced, records), min(self.checkpoint, records)
        self.deleted = min(self.deleted, self._numbered[-1])
        self.load()

    def load(self) -> None:
        """From a snapshot somewhere in the log, and the batches behind it."""
        self.producers, self.transactions = ProducerStates(), LogTransactions()
        for at in range(self.start, len(self.records)):
            self._note_transaction(at)
            if at == len(self.records) // 2:
                aborted = self.transactions.aborted_since(ORIGIN)
                self.transactions = LogTransactions(self.transactions.snapshot(), aborted)
        for at, (number, record) in enumerate(zip(self._numbered, self.records, strict=False)):
            if record.batch is not None:
                self.producers.append(record.batch, number, record.time_us)
            if at == len(self.records) // 2:
                self.producers = ProducerStates(self.producers.snapshot())

    def expire(self, before_us: int) -> None:
        """Forget the producers that were idle since a time."""
        self.transactions.forget(self.producers.expire(before_us, self.transactions.unfinished()))

    def records_up_to(self, offset: int) -> int:
        """How many records there are up to an entry, with it."""
        return bisect_left(self._numbered, offset + 1)

    def reset(self, removed: list[Record]) -> None:
        """Begin again behind these records, which are not there."""
        self.cut(0)
        for record in removed:
            self.append(record)
        self.start = self.synced = len(removed)
        self.transactions = LogTransactions()

    def trim(self, start: int) -> None:
        self.start, self.synced = start, max(start, self.synced)
        self.checkpoint = max(self.checkpoint, start)
        self.transactions.trimmed(self.mark(start))

    @property
    def log_start(self) -> int:
        """Offset of the first entry that readers see."""
        return max(self.deleted, self.mark(self.start).entry)

    def delete_before(self, offset: int) -> None:
        """Stored at once, with the high watermark that it is below."""
        self.deleted = max(self.deleted, offset)
        self.checkpoint = max(self.checkpoint, self.records_up_to(self.deleted - 1))

    def stable(self, high_watermark: int) -> int:
        """How many records there are up to the last stable offset."""
        return records_of(self.transactions.last_stable(self.mark(high_watermark)))

    def sync(self) -> None:
        self.synced = len(self.records)

    def cut_power(self, keep: int) -> None:
        """Of what was not synced, `keep` records happen to be there."""
        self.cut(max(self.start, min(len(self.records), self.synced + keep)))
        self.sync()

    def stands_for(self, member: Member) -> bool:
        return (self.broker, self.incarnation) == member and self.is_whole


def records_of(position: LogPosition) -> int:
    return position.position // RECORD_BYTES
