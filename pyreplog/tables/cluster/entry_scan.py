"""Reads entries of a cluster's ledgers from any of their copies, and decodes the messages of topics in them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.topic.messages import MessageBatch, decode_messages
from pyreplog.errors import (
    InvalidEntryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotConnectedError,
    ReplogError,
    UnreadableError,
)
from pyreplog.ledger.driver import Runtime
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.tables.arrays import arrow_batch, corrupt_row, schema_of
from pyreplog.tables.cluster.copy_reading import UnknownCopyError, read_copies
from pyreplog.tables.cluster.entry_slices import EntrySlice, TopicPart
from pyreplog.tables.cluster.message_arrays import message_batch
from pyreplog.tables.options import ALL, ReadOptions
from pyreplog.tables.scan import select
from pyreplog.tables.slices import RecordFilter, SliceOrigin
from pyreplog.topic.model.compression import decompress

logger = logging.getLogger(__name__)

_LOST = (UnreadableError, NoSuchEntryError)

ReadResult = RecordBatch | ReplogError
"""A batch of entries, or the error of one entry that no bookie returns."""


class EntryScan:
    """Reads entry slices on an executor, and verifies every entry. columns: in the order of the schema."""

    def __init__(self, columns: tuple[str, ...], options: ReadOptions) -> None:
        self._schema, self._options = schema_of(columns), options

    def read(self, parts: tuple[EntrySlice, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of slices, in order.

        Raises UnreadableError and InvalidEntryError (mode FAILFAST), NoSuchLedgerError (failOnDataLoss), NotALogError
        if this host does not see the cluster, and the errors of connecting.
        """
        if not parts:
            return
        segments = {part.ledger: part.segments for part in parts}
        with parts[0].origin.open(segments) as runtime:
            for part in parts:
                yield from self._read(runtime, part)

    def _read(self, runtime: Runtime, part: EntrySlice) -> Iterator[pa.RecordBatch]:
        try:
            for result in self._entries(runtime, part):
                if isinstance(result, ReplogError):
                    yield from self._lost(part, result)
                elif part.topic is None:
                    yield from self._rows(part, result)
                else:
                    yield from self._messages(part, part.topic, result)
        except NoSuchLedgerError as error:
            if self._options.fail_on_data_loss:
                raise NoSuchLedgerError(
                    part.ledger, f"{error.message}; set failOnDataLoss to false to read what is left"
                ) from error
            logger.warning("%s; its entries are skipped", error)

    # ---- entries --------------------------------------------------------------------------------------------

    def _entries(self, runtime: Runtime, part: EntrySlice) -> Iterator[ReadResult]:
        if part.bookie is not None:
            yield from self._copies(runtime, part, part.bookie)
            return
        metadata = part.metadata or load_ledger(runtime.metadata, part.ledger).metadata
        with LedgerReader(metadata, part.key, runtime) as reader:
            if self._options.mode == "FAILFAST":
                yield from _batches(reader, part.start, part.stop)
            else:
                yield from _what_can_be_read(reader, part.start, part.stop)

    def _copies(self, runtime: Runtime, part: EntrySlice, bookie: str) -> Iterator[ReadResult]:
        try:
            yield from read_copies(runtime, bookie, part.ledger, part.key, part.start, part.stop)
        except NotConnectedError as error:
            if self._options.replica != ALL:
                raise
            logger.warning("copies of ledger %d on %s are skipped: %s", part.ledger, bookie, error)
            if self._options.mode == "PERMISSIVE":
                yield error

    def _lost(self, part: EntrySlice, error: ReplogError) -> Iterator[pa.RecordBatch]:
        """Raise, log or report the error of an entry that cannot be read or decoded, as the mode says."""
        if self._options.mode == "FAILFAST":
            raise error
        logger.warning("an entry is skipped: %s", error)
        if self._options.mode == "PERMISSIVE":
            yield corrupt_row(self._schema, _origin(part), b"", ledgerId=part.ledger, **_unknown_copy(error))

    def _rows(self, part: EntrySlice, batch: RecordBatch) -> Iterator[pa.RecordBatch]:
        wanted = select(batch, part.wanted)
        for start, stop in _cuts(wanted.size, self._options):
            rows = wanted if stop - start == len(wanted) else wanted.select(np.arange(start, stop))
            yield arrow_batch(rows, self._schema, _origin(part))

    # ---- messages -------------------------------------------------------------------------------------------

    def _messages(self, part: EntrySlice, topic: TopicPart, batch: RecordBatch) -> Iterator[pa.RecordBatch]:
        for result in _decoded(batch, topic, one_by_one=self._options.mode != "FAILFAST"):
            if isinstance(result, ReplogError):
                yield from self._lost(part, result)
                continue
            wanted = _select(result, part.wanted, topic.acked)
            for start, stop in _cuts(wanted.size, self._options):
                yield message_batch(wanted.slice(start, stop), self._schema, _origin(part))


def _origin(part: EntrySlice) -> SliceOrigin:
    if part.topic is None:
        return SliceOrigin(bookie=part.bookie)
    return SliceOrigin(part.topic.topic, part.topic.partition, clusters=part.topic.clusters)


def _unknown_copy(error: ReplogError) -> dict[str, object]:
    """Return the columns that mark a copy as unknown: of one entry, or of all that a bookie has of a ledger."""
    if isinstance(error, UnknownCopyError):
        return {"crcOk": None, "entryId": error.entry}
    return {"crcOk": None} if isinstance(error, NotConnectedError) else {}


# ---- entries ---------------------------------------------------------------------------------------------------


def _batches(reader: LedgerReader, first: int, stop: int) -> Iterator[RecordBatch]:
    """Read entries.

    A ledger that was open when the read was planned is read up to its last entry that was confirmed then.
    """
    return reader.read(first, stop) if reader.is_closed else reader.read_unconfirmed(first, stop)


def _what_can_be_read(reader: LedgerReader, first: int, stop: int) -> Iterator[ReadResult]:
    """Read entries, in ever smaller steps around those that cannot be read."""
    step = stop - first
    while first < stop:
        try:
            for batch in _batches(reader, first, min(first + step, stop)):
                yield batch
                first = batch[-1].entry + 1
            step *= 2
        except _LOST as error:
            if step == 1:
                yield error
                first += 1
            step = max(step // 2, 1)


# ---- messages --------------------------------------------------------------------------------------------------


def _decoded(batch: RecordBatch, topic: TopicPart, *, one_by_one: bool) -> Iterator[MessageBatch | InvalidEntryError]:
    """Decode all messages of a batch at once. If an entry cannot be decoded, decode one entry at a time."""
    try:
        yield _decode(batch, topic)
    except InvalidEntryError as error:
        if len(batch) == 1 or not one_by_one:
            yield error
            return
        for at in range(len(batch)):
            yield from _decoded(batch.select(np.arange(at, at + 1)), topic, one_by_one=True)


def _decode(batch: RecordBatch, topic: TopicPart) -> MessageBatch:
    before = topic.before
    return decode_messages(
        batch, offset=before.offset, entries=before.entries, size=before.size, decompress=decompress
    )  # fmt: skip


def _select(batch: MessageBatch, wanted: RecordFilter, acked: bytes) -> MessageBatch:
    """Return the messages of a batch that are wanted."""
    keep = np.ones(len(batch), np.bool_)
    for column, bounds in ((batch.offset, wanted.entries), (batch.publish_time, wanted.times)):
        if bounds is not None:
            keep &= (column >= bounds[0]) & (column < bounds[1])
    if acked:
        keep &= np.searchsorted(np.frombuffer(acked, np.int64), batch.offset, side="right") % 2 == 0
    return batch if keep.all() else batch.select(keep.nonzero()[0])


def _cuts(sizes: np.ndarray[tuple[int], np.dtype[np.int64]], options: ReadOptions) -> Iterator[tuple[int, int]]:
    """Yield row ranges of Arrow batches: limited in rows and in bytes of values, but at least one row."""
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(ends):
        fit = int(np.searchsorted(ends, before + options.batch_bytes, side="right"))
        stop = min(max(fit, start + 1), start + options.batch_rows)
        yield start, stop
        start, before = stop, int(ends[stop - 1])
