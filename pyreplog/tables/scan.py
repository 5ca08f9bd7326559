"""Reading slices: the records of each as Arrow batches, and what to do where there are none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.tables.arrowcolumns import walk
from pyreplog.errors import CorruptionError, ReplogError, TrimmedError, TruncatedError
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.recovery import BLANK
from pyreplog.regular_files import open_reading
from pyreplog.tables.arrays import arrow_batch, corrupt_row, schema_of
from pyreplog.tables.damage import DamagedRange, damage_at
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import ends_of
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.slices import ALL, RecordFilter, Slice

logger = logging.getLogger(__name__)


class Scan:
    """Reads slices on the executor that has its files. columns: in the order of the schema.

    verified: every record is checked against its CRC-32C; else its header is believed, and its value not touched.
    """

    def __init__(self, columns: tuple[str, ...], options: ReadOptions, *, verified: bool) -> None:
        self._schema = schema_of(columns)
        self._options, self._verified = options, verified

    def read(self, parts: tuple[Slice, ...]) -> Iterator[pa.RecordBatch]:
        """The records of slices, in order.

        Errors: CorruptionError (mode FAILFAST), TrimmedError and TruncatedError (failOnDataLoss), NotALogError: this
        host does not see the log.
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
        for found in self._records(segment, part):
            yield from self._rows(segment, part, found)

    def _rows(self, segment: Segment, part: Slice, found: RecordBatch | DamagedRange) -> Iterator[pa.RecordBatch]:
        """Of what was found in a segment: the records that are wanted, or what the mode says of damage."""
        if isinstance(found, DamagedRange):
            yield from self._damaged(segment, part, found)
            return
        wanted = select(found, part.wanted)
        if len(wanted):
            yield arrow_batch(wanted, self._schema, part.origin)

    # ---- records, and what lies between them ----------------------------------------------------------------

    def _records(self, segment: Segment, part: Slice) -> Iterator[RecordBatch | DamagedRange]:
        offset, entry = part.start, -1
        if is_hole_punched(segment) and segment.check(HEADER_BYTES, segment.size) == BLANK:
            return  # what was here belonged to ledgers that are deleted
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

    # ---- what is not there ----------------------------------------------------------------------------------

    def _was_cut(self, part: Slice, position: int) -> bool:
        """Whether a truncation took the rest of the slice after it was planned."""
        end = ends_of(Path(part.log.directory)).end
        if position < end:
            return False
        self._lose(TruncatedError(f"{part.path}: records from position {position} on were cut; the log ends at {end}"))
        return True

    def _lose(self, error: ReplogError) -> None:
        if self._options.fail_on_data_loss:
            raise type(error)(f"{error}; set failOnDataLoss to false to read what there is") from error
        logger.warning("%s; it was to be read, and is passed over", error)

    def _damaged(self, segment: Segment, part: Slice, damage: DamagedRange) -> Iterator[pa.RecordBatch]:
        if self._options.mode == "FAILFAST":
            raise damage.error
        raw = segment.bytes_at(damage.start, min(damage.stop - damage.start, self._options.batch_bytes))
        yield from self._report(part, segment.base + damage.start, damage.stop - damage.start, raw, damage.error)

    def _unreadable(self, part: Slice, error: CorruptionError) -> Iterator[pa.RecordBatch]:
        """A segment file that is no segment, or not the one that belongs there."""
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
        logger.warning("%d bytes that are no records are passed over: %s", length, error)
        if self._options.mode == "PERMISSIVE":
            yield corrupt_row(self._schema, part.origin, raw, position=position, storedSize=length)


def select(batch: RecordBatch, wanted: RecordFilter) -> RecordBatch:
    """Of a batch, the records that are wanted."""
    if wanted == ALL or not len(batch):
        return batch
    keep = batch.position >= 0
    for column, bounds in ((batch.entry, wanted.entries), (batch.timestamp, wanted.times)):
        if bounds is not None:
            keep &= (column >= bounds[0]) & (column < bounds[1])
    if wanted.ledgers is not None:
        keep &= np.searchsorted(np.array(wanted.ledgers, np.int64).ravel(), batch.ledger, side="right") % 2 == 1
    return batch if keep.all() else batch.select(keep.nonzero()[0])
