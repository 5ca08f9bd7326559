"""Reading slices of offloaded logs, with one window of an object in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pyreplog._native.log.batch import RecordBatch
from pyreplog._native.log.segment import Segment
from pyreplog.errors import CorruptionError, ObjectCorruptionError
from pyreplog.offload.windows import Windows
from pyreplog.tables.damage import DamagedRange, damage_at
from pyreplog.tables.objects import ObjectSlice
from pyreplog.tables.scan import Scan
from pyreplog.tables.slices import Slice


class ObjectScan(Scan):
    """Reads slices of objects as well as those of segment files.

    In addition to the errors of `Scan` it raises ObjectCorruptionError (mode FAILFAST: an object is missing, short,
    damaged or another one), StorageError and MissingExtraError.
    """

    def _read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        if not isinstance(part, ObjectSlice):
            yield from super()._read(part)
            return
        try:
            windows = Windows(part.storage, part.identity, part.item, part.start, part.until)
        except CorruptionError as error:
            yield from self._unreadable(part, error)
            return
        for segment, result in self._results(windows, part):
            yield from self._rows(segment, part, result)

    def _results(self, windows: Windows, part: ObjectSlice) -> Iterator[tuple[Segment, RecordBatch | DamagedRange]]:
        offset, entry = part.start, -1
        while offset < part.until:
            window = windows.at(offset)
            try:
                visible = replace(part, stop=window.stop, until=min(part.until, window.stop))
                batch = self._batch(window.segment, visible, offset)
            except CorruptionError as error:
                if windows.widen(offset):
                    continue
                corruption = ObjectCorruptionError(windows.url, error.position, error.expected, error.found)
                if self._options.mode == "FAILFAST":
                    raise corruption from None
                segment = windows.rest(offset).segment
                segment.index = part.index()
                damage = damage_at(segment, part, offset, entry, corruption)
                offset = damage.stop
                yield segment, damage
                continue
            offset = batch.next_position - part.base
            if len(batch):
                entry = batch[-1].entry
                yield window.segment, batch
