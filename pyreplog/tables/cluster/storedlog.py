"""StoredLog: a bookie's log as its files have it, read beside whoever writes it; entries are found by (ledger, entry).

Nothing is locked but the segments that are looked at, against being recycled, and nothing is written. Of a segment
whose index is not there yet, or is damaged, an index is made of the records that are intact.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.ledgerlog.index import LedgerIndex
from pyreplog._native.ledgerlog.intake import index_entries
from pyreplog._native.ledgerlog.sealed import SealedIndex
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.bookie.entry_locations import copy_located, lend_located
from pyreplog.bookie.multi_ledger_log import EntryLocations, in_order
from pyreplog.errors import CorruptionError, ReplogError, TrimmedError
from pyreplog.log import indexes, names
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.tables.locked_segment import map_locked
from pyreplog.tables.logs import look

logger = logging.getLogger(__name__)

SEGMENTS_MAX = 64
"""Held at a time."""

_STRETCH = 8 << 20

Bases = Mapping[int, Sequence[int]]
"""Where a ledger lies: the positions of the segments that hold some of it; control records from `CONTROL` on."""


class _HeldSegment(NamedTuple):
    segment: Segment
    ledgers: LedgerIndex | SealedIndex


class StoredLog:
    """What of an EntryLog is for readers. uuid: of the log. bases: of the ledgers that are asked for; when a segment
    has gone since they were noted, its live entries lie elsewhere, and all are looked for once more."""

    def __init__(self, directory: Path, uuid: bytes, bases: Bases) -> None:
        self.directory, self.uuid, self.bases = directory, uuid, bases
        self._held: OrderedDict[int, _HeldSegment] = OrderedDict()

    @classmethod
    def survey(cls, directory: Path) -> StoredLog:
        """Of all ledgers in a directory: looks at every segment's index. Segments that cannot be read count as empty.

        Errors: NotALogError, FormatVersionError, CorruptionError.
        """
        found = look(directory)
        bases: dict[int, list[int]] = {}
        for file in found.segments:
            try:
                if file.fault is not None:
                    raise file.fault
                _, index = _open(directory, found.uuid, file.base)
                table = index.ledgers()
            except TrimmedError as error:
                logger.info("%s: nothing lies in the segment at %d: %s", directory, file.base, error)
                continue
            except (ReplogError, OSError) as error:
                logger.warning("%s: nothing is read of the segment at %d: %s", directory, file.base, error)
                continue
            for ledger in table["ledger"].tolist():
                bases.setdefault(ledger, []).append(file.base)
        return cls(directory, found.uuid, bases)

    # ---- reading --------------------------------------------------------------------------------------------

    def read(self, ledger: int, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        """As LedgerLog.read."""
        places = self._locations(ledger, start, end, 1, 1)
        return copy_located(places, self._holder, ledger, end, bytes_max)

    def lend(
        self, ledger: int, start: int, end: int, bytes_max: int, step: int, run: int
    ) -> tuple[bytes | memoryview, int]:
        """As LedgerLog.lend."""
        places = self._locations(ledger, start, end, step, run)
        return lend_located(places, self._holder, ledger, end, bytes_max)

    def last_entry(self, ledger: int) -> int | None:
        """Highest id of the ledger's entries; None: there is none. CorruptionError."""
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
        """The segments with some of a ledger. Errors: as `_open`."""
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
    """A segment and its ledger index. Errors: as `map_locked`; TrimmedError, it is hollow."""
    segment = map_locked(str(names.segment_path(directory, base)), uuid, base)
    if is_hole_punched(segment):
        raise TrimmedError(f"the segment at {base} is hollow")
    return _HeldSegment(segment, sealed_index(directory, segment) or _made_index(segment))


def sealed_index(directory: Path, segment: Segment) -> SealedIndex | None:
    """The ledger index of a segment, from its file; None: there is none, or it is of no use."""
    order = indexes.load(directory, segment)
    if order is None:
        return None
    try:
        return SealedIndex.open(
            names.ledgers_path(directory, segment.base), uuid=segment.uuid, base=segment.base, stamp=segment.stamp,
            end=order.end,
        )  # fmt: skip
    except (OSError, ReplogError) as error:
        logger.info("%s: the ledger index of the segment at %d is of no use: %s", directory, segment.base, error)
        return None


def _made_index(segment: Segment) -> LedgerIndex:
    """Of all records that are intact: somebody else may have copies of the others."""
    index, at, stop = LedgerIndex(), HEADER_BYTES, segment.used_end(HEADER_BYTES)
    while 0 <= at < stop:
        try:
            batch = segment.scan(at, segment.size, until=min(at + _STRETCH, stop), all_kinds=True)
        except CorruptionError:
            at = segment.find_intact(at + 8, segment.size)
            continue
        if not len(batch):
            break
        end = int(batch.position[-1] + batch.stride[-1]) - segment.base
        index_entries(segment, index, at, end)
        at = end
    return index
