"""StoredLog: the log of a bookie, read from its files beside a running bookie; entries are found by (ledger, entry).

Nothing is written. A segment is locked while it is read, so that it is not recycled. If the index of a segment is
missing or damaged, one is made from the segment's intact records.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.intake import index_entries
from pyreplog._native.ledger_log.sealed import SealedIndex
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.bookie.entry_locations import copy_located, lend_located
from pyreplog.bookie.multi_ledger_log import EntryLocations, in_order
from pyreplog.errors import CorruptionError, ReplogError, TrimmedError
from pyreplog.log import indexes, names
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import take_snapshot

logger = logging.getLogger(__name__)

SEGMENTS_MAX = 64
"""Segments that are kept mapped at the same time."""

_SCAN_BYTES = 8 << 20

Bases = Mapping[int, Sequence[int]]
"""Bases of the segments that have entries of a ledger; from ledger id `CONTROL` on, of its control records."""


class _HeldSegment(NamedTuple):
    segment: Segment
    ledgers: LedgerIndex | SealedIndex


class StoredLog:
    """The part of an EntryLog that readers need.

    uuid: of the log. bases: of the ledgers that are read. If one of these segments is gone, its live entries were
    moved, and the bases of all ledgers are determined again.
    """

    def __init__(self, directory: Path, uuid: bytes, bases: Bases) -> None:
        self.directory, self.uuid, self.bases = directory, uuid, bases
        self._held: OrderedDict[int, _HeldSegment] = OrderedDict()

    @classmethod
    def survey(cls, directory: Path) -> StoredLog:
        """Determine the segments of all ledgers in a directory, from the index of every segment.

        Segments that cannot be read count as empty. Raises NotALogError, FormatVersionError and CorruptionError.
        """
        snapshot = take_snapshot(directory)
        bases: dict[int, list[int]] = {}
        for file in snapshot.segments:
            try:
                if file.fault is not None:
                    raise file.fault
                _, index = _open(directory, snapshot.uuid, file.base)
                table = index.ledgers()
            except TrimmedError as error:
                logger.info("%s: the segment at %d has no entries: %s", directory, file.base, error)
                continue
            except (ReplogError, OSError) as error:
                logger.warning("%s: the segment at %d is not read: %s", directory, file.base, error)
                continue
            for ledger in table["ledger"].tolist():
                bases.setdefault(ledger, []).append(file.base)
        return cls(directory, snapshot.uuid, bases)

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """Read records, as `LedgerLog.read` does."""
        places = self._locations(ledger, start, end, 1, 1)
        return copy_located(places, self._holder, ledger, end, bytes_max)

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        """Lend records, as `LedgerLog.lend` does."""
        places = self._locations(ledger, start, end, step, run)
        return lend_located(places, self._holder, ledger, end, bytes_max)

    def last_entry(self, ledger: int) -> int | None:
        """Return the highest entry of a ledger; None: no entry of it is here. Raises CorruptionError."""
        lasts = [held.ledgers.last_entry(ledger) for held in self._holding(ledger)]
        return max((last for last in lasts if last is not None), default=None)

    def _locations(self, ledger: int, start: int, end: int, step: int, run: int) -> list[EntryLocations]:
        parts = []
        for segment, ledgers in self._holding(ledger):
            entries, offsets = ledgers.entries(ledger, start, end)
            if run != step:
                wanted = (entries - start) % step < run
                entries, offsets = entries[wanted], offsets[wanted]
            parts.append(EntryLocations(segment.base, entries, offsets))
        return list(in_order(parts))

    def _holding(self, ledger: int) -> list[_HeldSegment]:
        """Return the segments that have entries of a ledger. Raises the errors of `_open`."""
        try:
            return [self._hold(base) for base in self.bases.get(ledger, ())]
        except TrimmedError:
            self.bases = StoredLog.survey(self.directory).bases
        return [self._hold(base) for base in self.bases.get(ledger, ())]

    def _hold(self, base: int) -> _HeldSegment:
        held = self._held.get(base)
        if held is None:
            self._held[base] = held = _open(self.directory, self.uuid, base)
            while len(self._held) > SEGMENTS_MAX:
                self._held.popitem(last=False)
        else:
            self._held.move_to_end(base)
        return held

    def _holder(self, base: int) -> tuple[_HeldSegment, Segment]:
        held = self._hold(base)
        return held, held.segment


# ---- segments --------------------------------------------------------------------------------------------------


def _open(directory: Path, uuid: bytes, base: int) -> _HeldSegment:
    """Open a segment and its ledger index.

    Raises the errors of `map_locked`, and TrimmedError for a punched segment.
    """
    segment = map_locked(str(names.segment_path(directory, base)), uuid, base)
    if is_hole_punched(segment):
        raise TrimmedError(f"the records of the segment at {base} were removed")
    return _HeldSegment(segment, sealed_index(directory, segment) or _made_index(segment))


def sealed_index(directory: Path, segment: Segment) -> SealedIndex | None:
    """Open the index file of a segment; None: it is missing or damaged."""
    order = indexes.load(directory, segment)
    if order is None:
        return None
    try:
        return SealedIndex.open(
            names.ledgers_path(directory, segment.base), uuid=segment.uuid, base=segment.base, stamp=segment.stamp,
            end=order.end,
        )  # fmt: skip
    except (OSError, ReplogError) as error:
        logger.info("%s: the ledger index of the segment at %d is ignored: %s", directory, segment.base, error)
        return None


def _made_index(segment: Segment) -> LedgerIndex:
    """Make an index of the intact records of a segment. Other bookies may have copies of the damaged ones."""
    index, at, stop = LedgerIndex(), HEADER_BYTES, segment.used_end(HEADER_BYTES)
    while 0 <= at < stop:
        try:
            batch = segment.scan(at, segment.size, until=min(at + _SCAN_BYTES, stop), all_kinds=True)
        except CorruptionError:
            at = segment.find_intact(at + 8, segment.size)
            continue
        if not len(batch):
            break
        end = int(batch.position[-1] + batch.stride[-1]) - segment.base
        index_entries(segment, index, at, end)
        at = end
    return index
