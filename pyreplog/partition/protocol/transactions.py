"""Transactions in the log of one partition: the open ones, and the last stable offset (KIP-98).

A transaction begins with its first batch, and ends with a marker that a transaction coordinator writes. The last stable
offset is at most the start of the first transaction that is open, or whose marker is not committed yet. Every replica
restores the transactions from a snapshot and the log behind it. A leader checks before it appends.

A batch that arrives after the marker of its transaction would begin another one, which no coordinator ends (KIP-890).
So the first batch of a transaction is appended only if its coordinator confirmed that the transaction is open, and no
marker was appended since the request to the coordinator.

A marker that arrives late would end the next transaction of its producer. With transaction version 2 (KIP-890) the
marker has a higher producer epoch than the batches that it ends, so a late marker can be told from that of the open
transaction (KIP-1228). With version 1 their epochs are equal: a coordinator must not complete a transaction while one
of its requests with a marker may still arrive. A request names the leader epoch in which it is valid, and a broker
accepts no marker on a connection that its coordinator has closed (`BrokerService`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.stream.log_position import ORIGIN, LogPosition

VERIFICATIONS_MAX = 10_000
"""Maximum number of verifications of one log. Those without a batch or a marker behind them, of producers whose
coordinators refused them, would otherwise be kept for ever; the oldest one is dropped, and its batch refused."""
NO_SEQUENCE = -1
"""The sequence number of batches without one: those of coordinators."""
_VERIFICATIONS = count(1)
"""Counts for all logs together: the answer of a coordinator may arrive after a truncation, when the log has a new
object."""


class TransactionMarker(NamedTuple):
    """The control record that ends a transaction.

    Attributes:
        producer_id: id of its producer.
        producer_epoch: epoch of its producer; if it is higher than that of the batches, these are fenced.
        coordinator_epoch: epoch of the coordinator that writes it.
        is_commit: whether the transaction is committed; otherwise it is aborted.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


class EndedTransaction(NamedTuple):
    """A transaction with a marker.

    Attributes:
        producer_id: id of its producer.
        first: where its first batch begins.
        end: where its marker ends.
        is_aborted: whether readers of committed data skip it.
    """

    producer_id: int
    first: LogPosition
    end: LogPosition
    is_aborted: bool


class TransactionalProducer(NamedTuple):
    """The state of a transactional producer in a log.

    Attributes:
        producer_id: id of the producer.
        epoch: epoch of its last batch or marker.
        coordinator_epoch: epoch of its last marker; None: no marker.
        first: where its open transaction begins; None: no transaction is open.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int | None
    first: LogPosition | None


class TransactionsSnapshot(NamedTuple):
    """The transactions of a log up to a position, without those that were aborted.

    Attributes:
        producers: all producers with transactions, open or ended.
        unreplicated: the transactions whose markers were not known to be committed.
    """

    producers: tuple[TransactionalProducer, ...] = ()
    unreplicated: tuple[EndedTransaction, ...] = ()


class LogTransactions:
    """The transactions of one log. Not for several threads at once.

    A truncated log needs a new object, restored from a snapshot before the cut and the log behind it.

    Args:
        snapshot: the transactions up to a position; None: the log has no transactions.
        aborted: the aborted transactions up to that position.
    """

    def __init__(
        self, snapshot: TransactionsSnapshot | None = None, aborted: Iterable[EndedTransaction] = ()
    ) -> None:  # fmt: skip
        producers, unreplicated = snapshot if snapshot is not None else TransactionsSnapshot()
        self._open = {at.producer_id: at.first for at in producers if at.first is not None}
        self._unreplicated = list(unreplicated)  # whose markers are not known to be committed
        self._aborted = list(aborted)
        self._coordinator_epochs = {
            at.producer_id: at.coordinator_epoch for at in producers if at.coordinator_epoch is not None
        }
        self._producer_epochs = {at.producer_id: at.epoch for at in producers}
        self._verifications: dict[int, tuple[int, int]] = {}  # by producer: token, lowest sequence number of a batch
        self._start = ORIGIN

    def snapshot(self) -> TransactionsSnapshot:
        """Return the transactions without the aborted ones."""
        producers = (
            TransactionalProducer(number, epoch, self._coordinator_epochs.get(number), self._open.get(number))
            for number, epoch in self._producer_epochs.items()
        )
        return TransactionsSnapshot(tuple(producers), tuple(self._unreplicated))

    # ---- checks of a leader ---------------------------------------------------------------------------------

    def begin_verification(self, producer_id: int, first_sequence: int = NO_SEQUENCE) -> int:
        """Note that the coordinator is asked whether a transaction is open; return a token for `check`.

        Args:
            producer_id: id of the producer.
            first_sequence: sequence number of the batch that waits for the answer; -1: the order of batches does not
                matter.
        """
        known = self._verifications.get(producer_id)
        if known is None and len(self._verifications) >= VERIFICATIONS_MAX:
            del self._verifications[next(iter(self._verifications))]
        token, lowest = (next(_VERIFICATIONS), first_sequence) if known is None else known
        self._verifications[producer_id] = token, min(lowest, first_sequence)
        return token

    def is_open(self, producer_id: int) -> bool:
        """Return whether the producer has an open transaction in the log."""
        return producer_id in self._open

    def check(
        self, producer_id: int, producer_epoch: int, verification: int | None, first_sequence: int = NO_SEQUENCE
    ) -> ErrorCode:  # fmt: skip
        """Return whether a batch of a transaction may be appended.

        Args:
            producer_id: id of the producer.
            producer_epoch: epoch of the producer.
            first_sequence: sequence number of the batch.
            verification: token of `begin_verification`, if the coordinator has confirmed the transaction; None: it was
                not asked.

        Returns:
            NONE; INVALID_TXN_STATE; INVALID_PRODUCER_EPOCH if the log holds a higher epoch of the producer, to which
            the transaction belongs; OUT_OF_ORDER_SEQUENCE_NUMBER if an earlier batch of the transaction still waits for
            the coordinator, because a log that does not know the producer accepts any number.
        """
        if producer_epoch < self._producer_epochs.get(producer_id, producer_epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer_id in self._open:
            return ErrorCode.NONE
        token, lowest = self._verifications.get(producer_id, (None, NO_SEQUENCE))
        if verification is None or verification != token:
            return ErrorCode.INVALID_TXN_STATE
        is_first = lowest == NO_SEQUENCE or first_sequence <= lowest
        return ErrorCode.NONE if is_first else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        """Return whether a marker may be appended.

        Args:
            marker: the marker.
            transaction_version: 2: markers have a higher producer epoch than their batches; 1: not necessarily.

        Returns:
            NONE; TRANSACTION_COORDINATOR_FENCED or INVALID_PRODUCER_EPOCH if the log holds a higher epoch of the
            coordinator or of the producer, or if the open transaction is a later one than the marker's.
        """
        if marker.coordinator_epoch < self._coordinator_epochs.get(marker.producer_id, marker.coordinator_epoch):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if marker.producer_epoch < self._producer_epochs.get(marker.producer_id, marker.producer_epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        is_open = marker.producer_id in self._open
        if transaction_version > 1 and is_open and marker.producer_epoch == self._producer_epochs[marker.producer_id]:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE

    # ---- records of the log ---------------------------------------------------------------------------------

    def append(self, producer_id: int, producer_epoch: int, position: LogPosition) -> None:
        """Note an appended batch of a transaction, which begins at `position`."""
        self._verifications.pop(producer_id, None)
        self._producer_epochs[producer_id] = producer_epoch
        self._open.setdefault(producer_id, position)

    def end(self, marker: TransactionMarker, end: LogPosition) -> None:
        """Note an appended marker, which ends at `end`. Also if no transaction is open, later batches need another
        verification."""
        self._verifications.pop(marker.producer_id, None)
        self._coordinator_epochs[marker.producer_id] = marker.coordinator_epoch
        self._producer_epochs[marker.producer_id] = marker.producer_epoch
        first = self._open.pop(marker.producer_id, None)
        if first is None:
            return
        ended = EndedTransaction(marker.producer_id, first, end, not marker.is_commit)
        self._unreplicated.append(ended)
        if ended.is_aborted:
            self._aborted.append(ended)

    def unfinished(self) -> set[int]:
        """Return the producers whose transactions are open, or have markers that are not known to be committed."""
        return {*self._open, *(ended.producer_id for ended in self._unreplicated)}

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Remove expired producers, which have no unfinished transactions; aborted transactions stay."""
        for number in producer_ids:
            self._producer_epochs.pop(number, None)
            self._coordinator_epochs.pop(number, None)
            self._verifications.pop(number, None)

    # ---- reads ----------------------------------------------------------------------------------------------

    def last_stable(self, high_watermark: LogPosition) -> LogPosition:
        """Return the last stable offset, up to which readers of committed data may read; at least the start of the log.

        Args:
            high_watermark: high watermark of the log; it must not decrease, because transactions with committed markers
                are removed.
        """
        if not self._open and not self._unreplicated:
            return high_watermark if high_watermark > self._start else self._start
        self._unreplicated = [ended for ended in self._unreplicated if ended.end > high_watermark]
        unstable = [*self._open.values(), *(ended.first for ended in self._unreplicated)]
        return max(self._start, min([high_watermark, *unstable]))

    def aborted_between(self, start: LogPosition, end: LogPosition) -> list[EndedTransaction]:
        """Return the aborted transactions that may have records in a part of the log, which clients skip. The part ends
        at most at the last stable offset. Offsets are compared, not positions, because compaction moves records within
        their segment."""
        return [
            aborted for aborted in self._aborted if aborted.first.entry < end.entry and aborted.end.entry > start.entry
        ]

    def aborted_since(self, position: LogPosition) -> list[EndedTransaction]:
        """Return the aborted transactions whose markers end behind a position, in the order of their markers."""
        return [aborted for aborted in self._aborted if aborted.end > position]

    def trimmed(self, start: LogPosition) -> None:
        """Note that the log begins later, at most at the high watermark.

        A follower's log may begin within a transaction that counts as open there, until the follower knows that the
        marker is committed.
        """
        self._start = start
        self._aborted = [aborted for aborted in self._aborted if aborted.end > start]
