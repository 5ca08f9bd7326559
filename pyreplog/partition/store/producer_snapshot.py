"""The file `<base>.producers` beside a segment: the producers and transactions of the log before the segment.

It also has the transactions whose abort markers lie in the previous segment: the files of all segments together are the
index of the aborted transactions. FORMAT.md, "Producer snapshots of a partition".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.partition.producer_states_base import BATCHES_KEPT
from pyreplog.errors import CorruptionError, InvalidMessageError
from pyreplog.partition.protocol.producers import BatchMetadata, ProducerStateEntry
from pyreplog.partition.protocol.transactions import EndedTransaction, TransactionalProducer, TransactionsSnapshot
from pyreplog.stream.fields import FieldReader, FieldWriter
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.terms import History, TermStart, read_term, seal, unseal, write_term

MAGIC = b"RPPRODS1"
COUNT_MAX = 1 << 24
"""Most producers, and most transactions, of a snapshot."""
FILE_MAX = 1 << 31  # bytes

_NAME = re.compile(r"([0-9]{20})\.producers")
_UUID_BYTES = 16
_HAS_COORDINATOR, _IS_OPEN = 1, 2


class ProducerLoss(NamedTuple):
    """A loss of producers: no replica had a snapshot of the records that retention had removed.

    It matters until producers that were last used at that time have expired.

    Attributes:
        before: offset before which the records were removed.
        accepted_us: when a leader began without their producers, microseconds since 1970-01-01 UTC.
    """

    before: int
    accepted_us: int


class ProducerSnapshot(NamedTuple):
    """The producers and transactions of a log before one of its segments.

    Attributes:
        uuid: id of the log, 16 bytes.
        epoch: the leader epoch of the last record before the segment, or the one that begins with the segment.
        end: where the segment begins, and the offset of its first record.
        producers: all producers, by id.
        transactions: the transactions of the log before the segment.
        aborted: the aborted transactions whose markers lie in the previous segment.
        loss: why producers may be missing; None: none are.
    """

    uuid: bytes
    epoch: TermStart
    end: LogPosition
    producers: tuple[tuple[int, ProducerStateEntry], ...]
    transactions: TransactionsSnapshot
    aborted: tuple[EndedTransaction, ...]
    loss: ProducerLoss | None = None

    def is_of(self, uuid: bytes, history: History, end: LogPosition) -> bool:
        """Return whether the snapshot belongs to a log: it has the same records before the segment.

        Args:
            uuid: id of the log.
            history: history of the log.
            end: end of the log.
        """
        if uuid != self.uuid:
            return False
        if self.epoch.start == self.end:  # the epoch has no record before the segment
            return self.epoch in history.starts
        return History((self.epoch,)).common_point(self.end, history, end) == self.end


def snapshot_path(directory: Path, base: int) -> Path:
    """Return the path of the file beside a segment.

    Args:
        directory: directory of the log.
        base: position of the segment.
    """
    return directory / f"{base:020d}.producers"


def snapshot_bases(directory: Path) -> list[int]:
    """Return the positions of the segments that have such a file, ascending."""
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name)))


def encode_snapshot(snapshot: ProducerSnapshot) -> bytes:
    """Return the contents of the file."""
    fields = FieldWriter("<")
    fields.raw(snapshot.uuid)
    fields.mark(snapshot.end)
    write_term(fields, snapshot.epoch.term)
    fields.mark(snapshot.epoch.start)
    fields.numbers("I", len(snapshot.producers))
    for number, entry in snapshot.producers:
        fields.numbers("qqhB", number, entry.used_us, entry.epoch, len(entry.batches))
        for batch in entry.batches:
            fields.numbers("iiqq", *batch)
    fields.numbers("I", len(snapshot.transactions.producers))
    for producer in snapshot.transactions.producers:
        coordinator, first = producer.coordinator_epoch, producer.first
        flags = (_HAS_COORDINATOR if coordinator is not None else 0) | (_IS_OPEN if first is not None else 0)
        fields.numbers("qhBi", producer.producer_id, producer.epoch, flags, coordinator or 0)
        fields.mark(first or LogPosition(0, 0))
    for ended in (snapshot.transactions.unreplicated, snapshot.aborted):
        fields.numbers("I", len(ended))
        for transaction in ended:
            fields.numbers("qB", transaction.producer_id, transaction.is_aborted)
            fields.mark(transaction.first)
            fields.mark(transaction.end)
    if snapshot.loss is not None:
        fields.numbers("Bqq", 1, *snapshot.loss)
    return seal(MAGIC, fields.take())


def decode_snapshot(path: Path, data: bytes) -> ProducerSnapshot:
    """Decode the contents of the file.

    Raises:
        CorruptionError: the file is damaged.
        FormatVersionError: a later version wrote the file, with a `min_reader` above this version.
    """
    fields = unseal(path, MAGIC, data)
    try:
        (uuid,), end = fields.numbers(f"{_UUID_BYTES}s"), fields.mark()
        epoch = TermStart(read_term(fields), fields.mark())
        if epoch.start.position > end.position:
            raise fields.error(f"an epoch that does not begin behind {end}", f"{epoch}")
        producers = tuple(_read_producer(fields) for _ in range(fields.count("I", COUNT_MAX)))
        transactional = tuple(_read_transactional(fields) for _ in range(fields.count("I", COUNT_MAX)))
        unreplicated, aborted = (
            tuple(_read_ended(fields) for _ in range(fields.count("I", COUNT_MAX))) for _ in range(2)
        )
        loss = _read_loss(fields, end.entry) if fields.left and fields.count("B", 1) else None
    except InvalidMessageError as error:
        raise CorruptionError(path, 0, "an intact producer snapshot", str(error)) from error
    transactions = TransactionsSnapshot(transactional, unreplicated)
    return ProducerSnapshot(uuid, epoch, end, producers, transactions, aborted, loss)


def _read_producer(fields: FieldReader) -> tuple[int, ProducerStateEntry]:
    number, used_us, epoch, count = fields.numbers("qqhB")
    if not 0 < count <= BATCHES_KEPT:
        raise fields.error(f"1 to {BATCHES_KEPT} batches", f"{count}")
    batches = tuple(BatchMetadata(*fields.numbers("iiqq")) for _ in range(count))
    return number, ProducerStateEntry(epoch, batches, used_us)


def _read_transactional(fields: FieldReader) -> TransactionalProducer:
    (number, epoch, flags, coordinator), first = fields.numbers("qhBi"), fields.mark()
    return TransactionalProducer(
        number, epoch, coordinator if flags & _HAS_COORDINATOR else None, first if flags & _IS_OPEN else None
    )


def _read_ended(fields: FieldReader) -> EndedTransaction:
    number, is_aborted = fields.numbers("qB")
    return EndedTransaction(number, fields.mark(), fields.mark(), bool(is_aborted))


def _read_loss(fields: FieldReader, end: int) -> ProducerLoss:
    loss = ProducerLoss(*fields.numbers("qq"))
    if not 0 <= loss.before <= end:
        raise fields.error(f"a loss of records before offset {end}", f"before {loss.before}")
    return loss
