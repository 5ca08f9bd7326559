"""Reading slices of segment files: intact records as Arrow batches, and damage as the mode says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyreplog._native.kafka.logged_batches import find_batch, read_rows
from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import COUNTED
from pyreplog._native.tables.arrow_columns import walk
from pyreplog.errors import CorruptionError, InvalidRecordBatchError, ReplogError, TrimmedError, TruncatedError
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.recovery import BLANK
from pyreplog.partition.store.partition_reader import in_aborted
from pyreplog.record_batches.batches import UNCOMPRESSED_MAX
from pyreplog.record_batches.compression import decompress
from pyreplog.regular_files import open_reading
from pyreplog.tables.arrays import arrow_batch, corrupt_row, schema_of
from pyreplog.tables.batch_rows import logged_batch
from pyreplog.tables.damage import DamagedRange, damage_at
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import ends_of
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.slices import ALL, RecordFilter, Slice

_NUMBER_MAX = (1 << 63) - 1

logger = logging.getLogger(__name__)


class Scan:
    """Reads slices on an executor that sees their files.

    columns: in the order of the schema. verified: check each record against its CRC-32C; otherwise headers are trusted,
    and values are not touched.
    """

    def __init__(self, columns: tuple[str, ...], options: ReadOptions, *, verified: bool) -> None:
        self._schema = schema_of(columns)
        self._options, self._verified = options, verified

    def read(self, parts: tuple[Slice, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the records of slices, in order.

        Raises CorruptionError (mode FAILFAST), TrimmedError and TruncatedError (failOnDataLoss), and NotALogError if
        this host does not see the log.
        """
        for part in parts:
            yield from self._read(part)

    def _read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        if part.fault is not None:
            yield from self._unreadable(part, part.corruption())
            return
        try:
            segment = map_locked(part.path, part.log.uuid, part.base, part.epoch)
        except TrimmedError as error:
            self._lose(error)
            return
        except CorruptionError as error:
            yield from self._unreadable(part, error)
            return
        for result in self._records(segment, part):
            yield from self._rows(segment, part, result)

    def _rows(self, segment: Segment, part: Slice, result: RecordBatch | DamagedRange) -> Iterator[pa.RecordBatch]:
        """Yield the wanted records of a batch; or, for damage, the rows that the mode asks for."""
        if isinstance(result, DamagedRange):
            yield from self._damaged(segment, part, result)
            return
        wanted = select(result, part.wanted)
        if not len(wanted):
            return
        if segment.version < COUNTED:
            yield arrow_batch(wanted, self._schema, part.origin)
        elif (first := find_batch(wanted, 0)) == len(wanted):
            yield from self._entry_rows(part, wanted)
        else:
            yield from self._logged_rows(part, wanted, first)

    def _entry_rows(self, part: Slice, batch: RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a row for each entry that is no record batch; its offset is the last of its numbers."""
        if part.wanted.entries is not None:
            batch = batch.select((batch.entry < part.wanted.entries[1]).nonzero()[0])
        if len(batch):
            yield arrow_batch(batch, self._schema, part.origin)

    def _logged_rows(self, part: Slice, batch: RecordBatch, first: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of Kafka's record batches, the first of which has this index, and the entries between."""
        low, high = part.wanted.entries or (0, _NUMBER_MAX)
        skipped, at = in_aborted(batch, part.wanted.aborted), 0
        while at < len(batch):
            if at < first:
                yield from self._entry_rows(part, batch.select(np.arange(at, first)))
                at = first
            if at == len(batch):
                return
            rows = read_rows(
                batch, at, decompress, verified=self._verified, max_bytes=self._options.batch_bytes,
                max_batch_bytes=UNCOMPRESSED_MAX, skipped=skipped,
            )  # fmt: skip
            start, stop = rows.range_of(low, high)
            for row in range(start, stop, self._options.batch_rows):
                until = min(row + self._options.batch_rows, stop)
                yield logged_batch(rows, row, until, self._schema, part.origin)
            at = rows.stop
            if rows.error is not None:
                yield from self._damaged_batch(part, batch, at, rows.error)
                at += 1
            first = find_batch(batch, at)

    def _damaged_batch(
        self, part: Slice, batch: RecordBatch, index: int, error: InvalidRecordBatchError
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows for a record batch that is damaged, in a record that is intact."""
        record = batch[index]
        corruption = CorruptionError(part.path, record.position, f"a record batch with {error.expected}", error.found)
        if self._options.mode == "FAILFAST":
            raise corruption
        raw = bytes(record.value_view[: self._options.batch_bytes])
        yield from self._report(part, record.position, int(batch.stride[index]), raw, corruption)

    # ---- records, and the damage between them ---------------------------------------------------------------

    def _records(self, segment: Segment, part: Slice) -> Iterator[RecordBatch | DamagedRange]:
        offset, entry = part.start, -1
        if is_hole_punched(segment) and segment.check(HEADER_BYTES, segment.size) == BLANK:
            return  # its records belonged to ledgers that are deleted
        while offset < part.until:
            try:
                batch = self._batch(segment, part, offset)
            except CorruptionError as error:
                if self._was_cut(part, segment.base + offset):
                    return
                damage = damage_at(segment, part, offset, entry, error)
                offset = damage.stop
                yield damage
                continue
            offset = batch.next_position - segment.base
            if len(batch):
                entry = batch[-1].entry
                yield batch

    def _batch(self, segment: Segment, part: Slice, offset: int) -> RecordBatch:
        until = min(part.until, offset + self._options.batch_bytes)
        if self._verified:
            return segment.scan(offset, part.stop, until=until, limit=self._options.batch_rows)
        return walk(segment, offset, part.stop, until=until, limit=self._options.batch_rows)

    # ---- lost and damaged records ---------------------------------------------------------------------------

    def _was_cut(self, part: Slice, position: int) -> bool:
        """Whether a truncation removed the rest of the slice after it was planned."""
        end = ends_of(Path(part.log.directory)).end
        if position < end:
            return False
        self._lose(TruncatedError(f"{part.path}: records from position {position} on were cut; the log ends at {end}"))
        return True

    def _lose(self, error: ReplogError) -> None:
        if self._options.fail_on_data_loss:
            raise type(error)(f"{error}; set failOnDataLoss to false to read what is left") from error
        logger.warning("%s; its records are skipped", error)

    def _damaged(self, segment: Segment, part: Slice, damage: DamagedRange) -> Iterator[pa.RecordBatch]:
        if self._options.mode == "FAILFAST":
            raise damage.error
        raw = segment.bytes_at(damage.start, min(damage.stop - damage.start, self._options.batch_bytes))
        yield from self._report(part, segment.base + damage.start, damage.stop - damage.start, raw, damage.error)

    def _unreadable(self, part: Slice, error: CorruptionError) -> Iterator[pa.RecordBatch]:
        """Yield the rows for a file that is no segment, or another segment than the planned one."""
        if self._options.mode == "FAILFAST":
            raise error
        path = Path(part.path)
        size, raw = 0, b""
        if path.exists():
            size = path.stat().st_size
            with suppress(CorruptionError), open_reading(path) as file:
                raw = file.read(HEADER_BYTES)
        yield from self._report(part, part.base, size, raw, error)

    def _report(
        self, part: Slice, position: int, length: int, raw: bytes, error: CorruptionError
    ) -> Iterator[pa.RecordBatch]:
        logger.warning("%d damaged bytes are skipped: %s", length, error)
        if self._options.mode == "PERMISSIVE":
            yield corrupt_row(self._schema, part.origin, raw, position=position, storedSize=length)


def select(batch: RecordBatch, wanted: RecordFilter) -> RecordBatch:
    """Return the records of a batch that are wanted."""
    if wanted == ALL or not len(batch):
        return batch
    keep = batch.position >= 0
    if wanted.entries is not None:  # a record may take several numbers: it is wanted if one of them is
        keep &= (batch.entry >= wanted.entries[0]) & (batch.entry < wanted.entries[1] + batch.entry_count - 1)
    if wanted.times is not None:
        keep &= (batch.timestamp >= wanted.times[0]) & (batch.timestamp < wanted.times[1])
    if wanted.ledgers is not None:
        keep &= np.searchsorted(np.array(wanted.ledgers, np.int64).ravel(), batch.ledger, side="right") % 2 == 1
    return batch if keep.all() else batch.select(keep.nonzero()[0])
