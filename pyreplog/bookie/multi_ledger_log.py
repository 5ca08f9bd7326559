"""MultiLedgerLog: the CommitLog under a LedgerLog. Its segments hold entries of many ledgers, with ledger indexes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledgerlog.index import LedgerIndex
from pyreplog._native.ledgerlog.intake import index_entries
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.bookie.ledgermap import LedgerExtent, LedgerMap
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    InvalidArgumentError,
    NotALogError,
    TrimmedError,
    UnnumberedError,
)
from pyreplog.log import hole_punch, indexes, names, recovery
from pyreplog.log.commitlog import CommitLog
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.segments import UNNUMBERED

if TYPE_CHECKING:
    from pyreplog._native.ledgerlog.sealed import SealedIndex
    from pyreplog._native.log.segment import Pin

T = TypeVar("T")


class EntryLocations(NamedTuple):
    """Entries of a ledger in the segment at `base`, ascending, and their offsets in it."""

    base: int
    entry: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]


def in_order(parts: list[EntryLocations]) -> Iterator[EntryLocations]:
    """Sort entries of several segments, which come oldest first; of two copies, which are equal, keep the newer one."""
    if len(parts) <= 1:
        yield from parts
        return
    base = np.repeat(np.array([part.base for part in parts], np.int64), [len(part.entry) for part in parts])
    entry = np.concatenate([part.entry for part in parts])
    offset = np.concatenate([part.offset for part in parts])
    order = np.argsort(entry, kind="stable")
    order = order[np.append(entry[order[1:]] != entry[order[:-1]], True)] if len(order) else order
    base, entry, offset = base[order], entry[order], offset[order]
    cuts = [0, *(np.flatnonzero(base[1:] != base[:-1]) + 1).tolist(), len(base)]
    for start, stop in itertools.pairwise(cuts):
        if start < stop:
            yield EntryLocations(int(base[start]), entry[start:stop], offset[start:stop])


class MultiLedgerLog(CommitLog):
    """A commit log of unnumbered segments, each with a ledger index."""

    # ---- opening, rolling -----------------------------------------------------------------------------------

    def _begin(self, recovered: recovery.RecoveryResult) -> None:
        self._check_kind(recovered)
        self.map = LedgerMap()
        for segment in recovered.opened:
            segment.ledgers = index = LedgerIndex()
            index_entries(segment, index, HEADER_BYTES, segment.end)
        super()._begin(recovered)
        table = self._segment_table()
        indexes.remove_stray_ledgers(self.path, self._files, {base for base, _, _ in table})
        for base, _, _ in table[:-1]:
            self.map.add(base, self.look(base, lambda index: index.ledgers()))

    def _check_kind(self, recovered: recovery.RecoveryResult) -> None:
        if any(file.first_entry >= 0 for file in recovered.files):
            raise NotALogError(f"{self.path}: expected the log of a bookie, found a commit log; use pyreplog.open()")

    def _take(self, entry: int) -> Segment:
        index = LedgerIndex()
        segment = self._pool.take(UNNUMBERED)
        segment.ledgers = index
        return segment

    def _begin_segment(self, segment: Segment, first_entry: int, last_time: int) -> None:
        """Add the segment that is sealed now to the map, before the log goes on in the next one."""
        table = self._segment_table()
        if table and (sealed := table[-1][2]) is not None and isinstance(sealed.ledgers, LedgerIndex):
            self.map.add(sealed.base, sealed.ledgers.ledgers())
        super()._begin_segment(segment, first_entry, last_time)

    # ---- looking up -----------------------------------------------------------------------------------------

    def hold(self, base: int) -> tuple[Pin, Segment]:
        """Pin a segment that has entries according to an index. Raises TrimmedError if they were removed meanwhile."""
        pin, segment = self.hold_segment(base)
        if segment.base != base or is_hole_punched(segment):
            raise TrimmedError(f"the segment at {base} was removed")
        return pin, segment

    def without_removals(self, look: Callable[[], T]) -> T:
        """Return the result of `look`; rolling, trimming and hole punching wait meanwhile.

        Raises CorruptionError if an index has entries of a segment that does not exist, or has no records.
        """
        with self._lock:
            try:
                return look()
            except TrimmedError as error:
                expected = (
                    "ledger indexes (*.idx, *.led: removed while it is closed they are made anew) of its segments"
                )
                raise CorruptionError(self.path, self.start_position, expected, f"another's: {error}") from error

    def look(self, base: int, ask: Callable[[LedgerIndex | SealedIndex], T]) -> T:
        """Ask the ledger index of the segment at `base`; a missing or damaged index file is made anew."""
        pin, segment = self.hold_segment(base)
        if segment.base != base:
            raise TrimmedError(f"the segment at {base} was removed")
        index = segment.ledgers
        if index is None:
            with self._lock:
                index = indexes.ledgers_of(self.path, self._files, segment)
        try:
            return ask(index)
        except CorruptionError as error:
            with self._lock:
                return ask(indexes.remake_ledgers(self.path, self._files, segment, error))
        finally:
            del pin

    def locations(self, ledger: int, start: int, end: int, step: int = 1, run: int = 1) -> Iterator[EntryLocations]:
        """Locate entries of [start, end) that have the log's durability; start, step, run: as of `LedgerLog.lend`."""
        visible = self._visible()  # read first: later appends do not count
        bases = [share.base for share in self.shares(ledger) if share.first < end and share.last >= start]
        return in_order(
            [EntryLocations(base, *self._entries_in(base, ledger, start, end, visible, step, run)) for base in bases]
        )

    def _entries_in(
        self, base: int, ledger: int, start: int, end: int, visible: int, step: int = 1, run: int = 1
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        def ask(index: LedgerIndex | SealedIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
            if isinstance(index, LedgerIndex):
                return index.entries(ledger, start, end, visible - base)
            return index.entries(ledger, start, end)

        entries, offsets = self.look(base, ask)
        if run == step:
            return entries, offsets
        requested = (entries - start) % step < run
        return entries[requested], offsets[requested]

    def last_in(self, share: LedgerExtent, ledger: int, visible: int) -> int:
        """Return the highest entry of a share that lies before a position; -1: none does."""
        if share.base + self.segment_bytes <= visible:
            return share.last
        entry, _ = self._entries_in(share.base, ledger, share.first, share.last + 1, visible)
        return int(entry[-1]) if len(entry) else -1

    def _active_index(self) -> tuple[int, LedgerIndex | None]:
        """Return (base, ledger index) of the active segment; no index: it was just sealed, and the map has it."""
        self.check_open()
        segment = self._state[0]
        if segment is None:  # closed meanwhile
            self._refuse()
        index = segment.ledgers
        return segment.base, index if isinstance(index, LedgerIndex) else None

    def ledgers(self) -> list[int]:
        _, index = self._active_index()
        active = index.ledgers()["ledger"].tolist() if index is not None else []
        return sorted({*self.map.ledgers(), *active})

    def shares(self, ledger: int) -> list[LedgerExtent]:
        """Return the shares of a ledger. The active segment is read first: if it is sealed meanwhile, it is read twice
        and not missed."""
        base, index = self._active_index()
        row = index.share(ledger) if index is not None else None
        shares = {share.base: share for share in self.map.shares(ledger)}
        if row is not None:
            shares[base] = LedgerExtent(base, *row)
        return sorted(shares.values())

    # ---- removing -------------------------------------------------------------------------------------------

    def trim_before(self, position: int) -> int:
        self.check_open()
        with self._lock:
            bases = [base for base, _, _ in self._segment_table()[:-1] if base + self.segment_bytes <= position]
            self.map.begin_removal()
            try:
                self._remove_front(len(bases))
            finally:
                for base in bases:
                    if base < self.start_position:
                        self.map.remove(base)
            for base in bases:
                self._files.remove(names.ledgers_path(self.path, base))
        return self.start_position

    def punch_hole(self, base: int) -> None:
        """Replace the segment's file and its row under the log's lock, after the housekeeper has sealed it."""
        self.check_open()
        with self._lock:
            if self._error is not None:
                raise self._error
            rows = [row for row, (start, _, _) in enumerate(self._segment_table()[:-1]) if start == base]
            if not rows:
                raise InvalidArgumentError(f"base: {self.path} has no sealed segment at {base}")
            try:
                self._sync_sealed()
                _held, segment = self.hold_segment(base)
                if not is_hole_punched(segment):
                    if segment.index is None:
                        indexes.load_or_build(self.path, segment)
                    self.map.begin_removal()
                    hole_punch.replace(self.path, self._files, segment)
            except DiskError:
                raise
            except OSError as error:
                raise self._poison("hollowing a segment", error) from error
            self._unmap(rows[0])
            self.map.add(base, LedgerIndex().ledgers())

    def trim(self, entry: int) -> NoReturn:
        """Refuse, as every call by entry number; see `trim_before`."""
        raise UnnumberedError(self.path)

    truncate = trim
