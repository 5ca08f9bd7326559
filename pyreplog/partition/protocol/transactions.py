"""Transactions in the log of one partition: which are open, up to where readers of committed data may read (KIP-98).

A transaction begins with its first batch, and ends with a marker that a transaction coordinator writes. The last
stable offset stays before the first transaction that is open, or whose marker is not committed yet. Every replica
keeps them, from a snapshot and the log behind it. A leader asks before it appends.

A batch that arrives after the marker of its transaction would begin another one, which nobody ends (KIP-890). So the
first batch of a transaction is appended only if its coordinator said that the transaction is open, and no marker came
since it was asked.

A marker that arrives late would end the next transaction of its producer. With transaction version 2 (KIP-890) the
marker has a higher producer epoch than the batches that it ends, so such a marker is told from that of the open
transaction (KIP-1228). With version 1 their epochs are equal: a coordinator must not complete a transaction while a
request of its own with a marker may still arrive. A request names the leader epoch in which it counts, and a broker
takes no marker on a connection that its coordinator has given up (`BrokerService`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from pyreplog._native.partition.leader_base import LogTransactionsBase
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.stream.log_position import ORIGIN, LogPosition

NO_SEQUENCE = -1
"""Of a batch that has no sequence numbers: a coordinator's."""
_VERIFICATIONS = count(1)
"""Of all logs: the answer of a coordinator may arrive when the log was truncated, and has another object."""


class TransactionMarker(NamedTuple):
    """The control record that ends a transaction.

    Attributes:
        producer_id: of its producer.
        producer_epoch: of its producer; a higher one than that of the batches fences these.
        coordinator_epoch: of the coordinator that writes it.
        is_commit: whether the transaction is committed; otherwise it is aborted.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


class EndedTransaction(NamedTuple):
    """A transaction with a marker.

    Attributes:
        producer_id: of its producer.
        first: where its first batch begins.
        end: where its marker ends.
        is_aborted: whether readers of committed data skip it.
    """

    producer_id: int
    first: LogPosition
    end: LogPosition
    is_aborted: bool


class TransactionalProducer(NamedTuple):
    """A producer of transactions, as a log has it.

    Attributes:
        producer_id: of the producer.
        epoch: of its last batch or marker.
        coordinator_epoch: of its last marker; None: it has none.
        first: where its open transaction begins; None: it has none.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int | None
    first: LogPosition | None


class TransactionsSnapshot(NamedTuple):
    """The transactions of a log up to some place, without those that were aborted.

    Attributes:
        producers: all that ever had a transaction there.
        unreplicated: the transactions whose markers were not known to be committed.
    """

    producers: tuple[TransactionalProducer, ...] = ()
    unreplicated: tuple[EndedTransaction, ...] = ()


class LogTransactions(LogTransactionsBase):
    """The transactions of one log. Not for several threads at once.

    A log that was truncated needs a new object, filled from a snapshot of before the cut, and the log behind that.

    Args:
        snapshot: of the transactions up to some place; None: of a log without any.
        aborted: the aborted transactions up to there.
    """

    _open: dict[int, LogPosition]
    _unreplicated: list[EndedTransaction]

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
        """Return all but the aborted transactions."""
        producers = (
            TransactionalProducer(number, epoch, self._coordinator_epochs.get(number), self._open.get(number))
            for number, epoch in self._producer_epochs.items()
        )
        return TransactionsSnapshot(tuple(producers), tuple(self._unreplicated))

    # ---- asked by a leader ----------------------------------------------------------------------------------

    def begin_verification(self, producer_id: int, first_sequence: int = NO_SEQUENCE) -> int:
        """Note that the coordinator is asked whether a transaction is open; return a token for `check`.

        Args:
            producer_id: of the producer.
            first_sequence: of the batch that waits for the answer; -1: the order of batches does not matter.
        """
        known = self._verifications.get(producer_id)
        token, lowest = (next(_VERIFICATIONS), first_sequence) if known is None else known
        self._verifications[producer_id] = token, min(lowest, first_sequence)
        return token

    def is_open(self, producer_id: int) -> bool:
        """Return whether the log holds a transaction of a producer that has no marker."""
        return producer_id in self._open

    def check(
        self, producer_id: int, producer_epoch: int, verification: int | None, first_sequence: int = NO_SEQUENCE
    ) -> ErrorCode:  # fmt: skip
        """Return whether a batch of a transaction may be appended.

        Args:
            producer_id: of the producer.
            producer_epoch: of the producer.
            first_sequence: of the batch.
            verification: from `begin_verification`, if the coordinator has confirmed the transaction; None: it was not
                asked.

        Returns:
            NONE; INVALID_TXN_STATE; INVALID_PRODUCER_EPOCH if the log holds a higher epoch of the producer: its
            transaction is that of another one; OUT_OF_ORDER_SEQUENCE_NUMBER if an earlier batch of the transaction
            still waits for the coordinator: a log that does not know the producer would take any number.
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
            transaction_version: 2: transactions end with a higher epoch of their producer; 1: they need not.

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

    # ---- what the log holds ---------------------------------------------------------------------------------

    def append(self, producer_id: int, producer_epoch: int, position: LogPosition) -> None:
        """Note a batch of a transaction, which begins at `position`."""
        self._verifications.pop(producer_id, None)
        self._producer_epochs[producer_id] = producer_epoch
        self._open.setdefault(producer_id, position)

    def end(self, marker: TransactionMarker, end: LogPosition) -> None:
        """Note a marker, which ends at `end`. If no transaction is open it ends none; later batches need to be verified
        again all the same."""
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
        """Forget producers without unfinished transactions, which were idle for long; aborted transactions stay."""
        for number in producer_ids:
            self._producer_epochs.pop(number, None)
            self._coordinator_epochs.pop(number, None)
            self._verifications.pop(number, None)

    # ---- what readers may see -------------------------------------------------------------------------------

    def last_stable(self, high_watermark: LogPosition) -> LogPosition:
        """Return up to where readers of committed data may read; not before the log begins.

        Args:
            high_watermark: of the log; it must not decrease, because transactions whose markers are committed are
                forgotten.
        """
        if not self._open and not self._unreplicated:
            return high_watermark if high_watermark > self._start else self._start
        self._unreplicated = [ended for ended in self._unreplicated if ended.end > high_watermark]
        unstable = [*self._open.values(), *(ended.first for ended in self._unreplicated)]
        return max(self._start, min([high_watermark, *unstable]))

    def aborted_between(self, start: LogPosition, end: LogPosition) -> list[EndedTransaction]:
        """Return the aborted transactions of which records may lie in a part of the log that ends at most at the last
        stable offset: clients skip them. Offsets count: compaction moves records within their segment."""
        return [
            aborted for aborted in self._aborted if aborted.first.entry < end.entry and aborted.end.entry > start.entry
        ]

    def aborted_since(self, position: LogPosition) -> list[EndedTransaction]:
        """Return the aborted transactions whose markers end behind a position, in the order of their markers."""
        return [aborted for aborted in self._aborted if aborted.end > position]

    def trimmed(self, start: LogPosition) -> None:
        """Note that the log begins later, at most at the high watermark.

        A follower's may begin within a transaction that is open for all it knows: it does not know yet that the marker
        is committed.
        """
        self._start = start
        self._aborted = [aborted for aborted in self._aborted if aborted.end > start]
