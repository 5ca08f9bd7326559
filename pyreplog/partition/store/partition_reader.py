"""A partition's log for readers of other processes: its name, epochs, high watermark and transactions.

Reading changes nothing: a broker may have the log open. If no broker has opened the log since the machine started, the
high watermark is the one in the broker's file; if that file has none for the log, all of the log is shown, as with logs
of other replicas.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.kafka.logged_batches import batch_heads
from pyreplog._native.log.batch import RecordBatch
from pyreplog.errors import CorruptionError, FormatVersionError, InvalidMessageError
from pyreplog.log import names, tail_page
from pyreplog.log.reader import LogReader
from pyreplog.partition.protocol.record_batch import CONTROL, TRANSACTIONAL, marker_of
from pyreplog.partition.protocol.transactions import EndedTransaction, LogTransactions
from pyreplog.partition.store.epoch_record import decode_epoch
from pyreplog.partition.store.high_watermarks import FILE_MAX as HIGH_WATERMARKS_MAX
from pyreplog.partition.store.high_watermarks import FILE_NAME, decode_high_watermarks
from pyreplog.partition.store.producer_snapshot import (
    FILE_MAX,
    ProducerSnapshot,
    decode_snapshot,
    snapshot_bases,
    snapshot_path,
)
from pyreplog.regular_files import read_regular
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart

logger = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,5})")
_NUMBERED_MAX = 2  # kinds of records

HEAD_FOUND, HEAD_ATTRIBUTES, HEAD_PRODUCER, HEAD_PRODUCER_EPOCH, HEAD_EPOCH, HEAD_SEQUENCE, HEAD_COUNT, HEAD_BYTES = (
    range(8)
)
"""Rows of `batch_heads`."""


class PartitionName(NamedTuple):
    """The name of a partition's directory.

    Attributes:
        topic_id: 32 hexadecimal digits.
        number: number of the partition.
    """

    topic_id: str
    number: int


def partition_name(directory: Path) -> PartitionName | None:
    """Return the partition that a directory is named after; None: it has not the name of a partition's log."""
    match = _NAME.fullmatch(directory.name)
    return None if match is None else PartitionName(match[1], int(match[2]))


def partition_directories(broker: Path) -> list[Path]:
    """Return the logs of the partitions in the directory of a broker, by name. Raises OSError."""
    return sorted(path for path in broker.iterdir() if partition_name(path) is not None and path.is_dir())


def is_partition(log: LogReader) -> bool:
    """Return whether a log is that of a partition: its first record begins a leader epoch, or the directory is named
    after a partition and that record is damaged."""
    try:
        return log.end_position > log.start_position and _first_epoch(log, log.start_position) is not None
    except CorruptionError:
        return partition_name(log.path.resolve()) is not None


def _first_epoch(log: LogReader, base: int) -> TermStart | None:
    """Return the epoch record with which the segment at a position begins; None: it begins with another record."""
    for batch in log.read_positions(base, all_kinds=True, batch_bytes=1):
        try:
            return decode_epoch(batch[0].value) if batch[0].kind > _NUMBERED_MAX else None
        except InvalidMessageError as error:
            raise CorruptionError(log.path, base, "the record of a leader epoch", str(error)) from error
    return None


def read_history(log: LogReader) -> History:
    """Return where each leader epoch of a log began. Segments within one epoch are not read completely.

    Raises:
        CorruptionError: a record is damaged.
    """
    start, end = log.start_position, log.end_position
    bases = [base for base in names.segment_bases(log.path) if start <= base < end]
    fronts = [_first_epoch(log, base) for base in bases]
    history = History()
    for index, (base, front) in enumerate(zip(bases, fronts, strict=True)):
        following = fronts[index + 1] if index + 1 < len(bases) else None
        if front is not None and front == following:
            history = _with_epoch(history, front)
            continue
        stop = bases[index + 1] if index + 1 < len(bases) else end
        for batch in log.read_positions(base, stop, all_kinds=True):
            for at in (batch.kind > _NUMBERED_MAX).nonzero()[0].tolist():
                epoch = decode_epoch(batch[at].value)
                if epoch is not None:
                    history = _with_epoch(history, epoch)
    return history


def _with_epoch(history: History, epoch: TermStart) -> History:
    return history if epoch in history.starts[-1:] else history.begin(*epoch)


class PartitionReader:
    """The high watermark and the transactions of a partition's log that is open for reading. One thread.

    Args:
        log: the log.

    Raises:
        CorruptionError: a record is damaged.
        FormatVersionError: a later version wrote a file beside the segments.

    Example:
        ```python
        with pyreplog.open(directory, "r") as log:
            reader = PartitionReader(log)
            print(reader.high_watermark, reader.last_stable())
        ```
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._stored: LogPosition | None = None
        self.is_high_watermark_known = tail_page.load(log.path) is not None
        """Whether the high watermark is known, from a broker that had the log open or from its file."""
        if not self.is_high_watermark_known:
            self._stored = self._stored_high_watermark()
            self.is_high_watermark_known = self._stored is not None
        self._transactions: LogTransactions | None = None
        self._replayed = LogPosition(0, 0)
        self._truncations = log.truncation_count

    @property
    def high_watermark(self) -> LogPosition:
        """Up to where readers read the log."""
        end = LogPosition(self._log.end_position, self._log.end)
        if self._stored is None or tail_page.load(self._log.path) is not None:
            return end
        return min(self._stored, end)

    def _stored_high_watermark(self) -> LogPosition | None:
        """Return the part of the high watermark in the broker's file that is valid in the log; None: the file has none
        for it."""
        path = self._log.path.resolve()
        file = path.parent / FILE_NAME
        try:
            stored = decode_high_watermarks(file, read_regular(file, HIGH_WATERMARKS_MAX)).get(path.name)
        except FileNotFoundError:
            return None
        except CorruptionError as error:
            logger.warning("%s; all of the log is shown", error)
            return None
        if stored is None:
            return None
        end = LogPosition(self._log.end_position, self._log.end)
        return stored.valid_in(self._log.uuid, read_history(self._log), end)

    # ---- transactions ---------------------------------------------------------------------------------------

    def last_stable(self) -> LogPosition:
        """Return the last stable offset, up to which readers of committed data read.

        Raises:
            CorruptionError: a record is damaged.
            ClosedError: the log was closed.
        """
        return self._replay().last_stable(self._replayed)

    def aborted(self) -> list[EndedTransaction]:
        """Return the aborted transactions before the high watermark, in the order of their markers. Raises the errors
        of `last_stable`."""
        return self._replay().aborted_since(LogPosition(0, 0))

    def _replay(self) -> LogTransactions:
        """Replay the records that were appended since the last call."""
        if self._transactions is None or self._log.truncation_count != self._truncations:
            self._truncations = self._log.truncation_count
            self._transactions = self._load()
        end = self.high_watermark
        if self._replayed.position < end.position:
            for batch in self._log.read_positions(self._replayed.position, end.position, all_kinds=True):
                self._replay_batch(self._transactions, batch)
        return self._transactions

    def _replay_batch(self, transactions: LogTransactions, batch: RecordBatch) -> None:
        heads = batch_heads(batch)
        for index in (heads[HEAD_ATTRIBUTES] & (TRANSACTIONAL | CONTROL)).nonzero()[0].tolist():
            record = batch[index]
            end = LogPosition(record.position + int(batch.stride[index]), record.entry + 1)
            if heads[HEAD_ATTRIBUTES, index] & CONTROL:
                marker = marker_of(record.value)
                if marker is not None:
                    transactions.end(marker, end)
            else:
                first = LogPosition(record.position, record.entry - record.entry_count + 1)
                transactions.append(
                    int(heads[HEAD_PRODUCER, index]), int(heads[HEAD_PRODUCER_EPOCH, index]), first
                )  # fmt: skip
        numbered = (batch.kind <= _NUMBERED_MAX).nonzero()[0]
        entry = int(batch.entry[numbered[-1]]) + 1 if len(numbered) else self._replayed.entry
        self._replayed = LogPosition(int(batch.next_position), max(entry, self._replayed.entry))

    def _load(self) -> LogTransactions:
        """Restore the transactions from the newest snapshot before which no other one is missing, as a broker does."""
        log = self._log
        start, snapshot, aborted = LogPosition(log.start_position, log.start), None, list[EndedTransaction]()
        bases = snapshot_bases(log.path)
        if bases:
            history = read_history(log)
            end = self.high_watermark
            if start.position > 0:
                snapshot = self._snapshot(start.position, history, end)
            for base in range(start.position + log.segment_bytes, end.position + 1, log.segment_bytes):
                later = self._snapshot(base, history, end) if base in bases else None
                if later is None:
                    break
                snapshot = later
                aborted += (ended for ended in later.aborted if ended.end > start)
        transactions = LogTransactions() if snapshot is None else LogTransactions(snapshot.transactions, aborted)
        transactions.trimmed(start)
        self._replayed = start if snapshot is None else snapshot.end
        return transactions

    def _snapshot(self, base: int, history: History, end: LogPosition) -> ProducerSnapshot | None:
        path = snapshot_path(self._log.path, base)
        try:
            snapshot = decode_snapshot(path, read_regular(path, FILE_MAX))
        except FileNotFoundError:
            return None
        except FormatVersionError:
            raise
        except CorruptionError as error:
            logger.warning("%s; the log is read in its place", error)
            return None
        is_own = snapshot.end.position == base and snapshot.is_of(self._log.uuid, history, end)
        return snapshot if is_own else None


AbortedRanges = tuple[tuple[int, int, int], ...]
"""Aborted transactions: (producer id, offset of the first record, offset behind the marker)."""


def aborted_ranges(ended: list[EndedTransaction]) -> AbortedRanges:
    """Return aborted transactions in the form that `in_aborted` needs."""
    return tuple((at.producer_id, at.first.entry, at.end.entry) for at in ended)


def in_aborted(batch: RecordBatch, aborted: AbortedRanges) -> NDArray[np.bool_] | None:
    """Return whether each entry of a scan is a part of an aborted transaction; None: no entry is.

    Args:
        batch: entries of the scan.
        aborted: the transactions.
    """
    if not aborted or not len(batch):
        return None
    low, high = int(batch.entry[0]), int(batch.entry[-1])
    near = [(number, first, end) for number, first, end in aborted if first <= high and end > low]
    if not near:
        return None
    heads = batch_heads(batch)
    flags = np.zeros(len(batch), np.bool_)
    is_part = heads[HEAD_ATTRIBUTES] & TRANSACTIONAL != 0
    for number, first, end in near:
        flags |= is_part & (heads[HEAD_PRODUCER] == number) & (batch.entry >= first) & (batch.entry < end)
    return flags
