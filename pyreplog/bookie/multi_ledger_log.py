"""MultiLedgerLog: the CommitLog under a LedgerLog. Its segments hold entries of many ledgers, with ledger indexes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.intake import index_entries
from pyreplog._native.log.group_commit_base import StagedSync
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import decode_header, encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog.bookie.ledger_map import BadRange, LedgerExtent, LedgerMap
from pyreplog.errors import (
    CorruptionError,
    DiskError,
    InvalidArgumentError,
    NotALogError,
    PoisonedError,
    ReplogError,
    TrimmedError,
    UnnumberedError,
)
from pyreplog.log import hole_punch, indexes, names, recovery
from pyreplog.log.commit_log import CommitLog
from pyreplog.log.files import disk_error
from pyreplog.log.headers import find_epoch
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.segments import UNNUMBERED
from pyreplog.regular_files import open_reading

if TYPE_CHECKING:
    from pyreplog._native.ledger_log.sealed import SealedIndex
    from pyreplog._native.log.segment import Pin

T = TypeVar("T")

_BLANK_BYTES = 32


class EntryLocations(NamedTuple):
    """Entries of a ledger in the segment at `base`, ascending, and their offsets in it."""

    base: int
    entry: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]


class IndexRows(NamedTuple):
    """The records in the index of one segment, by their offsets. ledger: with CONTROL for control records."""

    ledger: npt.NDArray[np.int64]
    entry: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]


def in_order(parts: list[EntryLocations]) -> Iterator[EntryLocations]:
    """Sort entries of several segments, the oldest segment first; of two copies, which are equal, keep the newer
    one."""
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
        self.damaged: Mapping[int, Sequence[BadRange]] = {}
        for segment in recovered.opened:
            segment.ledgers = index = LedgerIndex()
            index_entries(segment, index, HEADER_BYTES, segment.end)
        super()._begin(recovered)
        table = self._segment_table()
        indexes.remove_stray_ledgers(self.path, self._files, {base for base, _, _ in table})
        for base, _, _ in table[:-1]:
            self.map.add(base, self.query_index(base, lambda index: index.ledgers()))

    def _check_kind(self, recovered: recovery.RecoveryResult) -> None:
        if any(file.first_entry >= 0 for file in recovered.files):
            raise NotALogError(f"{self.path}: expected the log of a bookie, found a commit log; use pyreplog.open()")

    def _take(self, entry: int) -> Segment:
        index = LedgerIndex()
        segment = self._pool.take(UNNUMBERED)
        segment.ledgers = index
        return segment

    def _note_sealed(self, segment: Segment) -> None:
        """Add a sealed segment to the map first: from then on a thread may write its index to a file, and drop it."""
        index = segment.ledgers
        assert isinstance(index, LedgerIndex)
        self.map.add(segment.base, index.ledgers())
        super()._note_sealed(segment)

    def syncer(self) -> Callable[[], object]:
        """Return a `sync` for threads that may block: it makes all appended records durable."""
        return StagedSync(self._commits, self.sync) if self._staged else self.sync

    # ---- looking up -----------------------------------------------------------------------------------------

    def hold(self, base: int) -> tuple[Pin, Segment]:
        """Pin a segment that has entries according to an index.

        Raises TrimmedError if the segment was removed meanwhile.
        """
        pin, segment = self.hold_segment(base)
        if segment.base != base or is_hole_punched(segment):
            raise TrimmedError(f"the segment at {base} was removed")
        return pin, segment

    def without_removals(self, read: Callable[[], T]) -> T:
        """Return the result of `read`; rolling, trimming and hole punching wait meanwhile.

        Raises CorruptionError if an index has entries of a segment that does not exist, or has no records.
        """
        with self._lock:
            try:
                return read()
            except TrimmedError as error:
                expected = (
                    "ledger indexes (*.idx, *.led: removed while it is closed they are made anew) of its segments"
                )
                raise CorruptionError(self.path, self.start_position, expected, f"another's: {error}") from error

    def query_index(self, base: int, query: Callable[[LedgerIndex | SealedIndex], T]) -> T:
        """Return `query` of the ledger index of the segment at `base`; a missing or damaged index file is made anew."""
        pin, segment = self.hold_segment(base)
        if segment.base != base:
            raise TrimmedError(f"the segment at {base} was removed")
        index = segment.ledgers
        if index is None:
            with self._lock:
                index = indexes.ledgers_of(self.path, self._files, segment)
        try:
            return query(index)
        except CorruptionError as error:
            with self._lock:
                return query(indexes.remake_ledgers(self.path, self._files, segment, error))
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
        def query(index: LedgerIndex | SealedIndex) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
            if isinstance(index, LedgerIndex):
                return index.entries(ledger, start, end, visible - base)
            return index.entries(ledger, start, end)

        entries, offsets = self.query_index(base, query)
        if run == step:
            return entries, offsets
        requested = (entries - start) % step < run
        return entries[requested], offsets[requested]

    def readable(self, ledger: int, locations: Iterator[EntryLocations]) -> Iterator[EntryLocations]:
        """Yield locations up to the first record that is known to be damaged. Raises CorruptionError at that record."""
        for part in locations:
            hits = [
                (part.entry >= bad.first) & (part.entry <= bad.last)
                for bad in self.damaged.get(part.base, ())
                if bad.ledger == ledger
            ]
            damaged = np.flatnonzero(np.logical_or.reduce(hits)) if hits else np.empty(0, np.int64)
            if not len(damaged):
                yield part
                continue
            count = int(damaged[0])
            if count:
                yield EntryLocations(part.base, part.entry[:count], part.offset[:count])
            raise CorruptionError(
                names.segment_path(self.path, part.base), part.base + int(part.offset[count]), "an intact record",
                "one that a scrub found to be damaged",
            )  # fmt: skip

    def last_in(self, share: LedgerExtent, ledger: int, visible: int) -> int:
        """Return the highest entry of a share that lies before a position; -1: no entry does."""
        if share.base + self.segment_bytes <= visible:
            return share.last
        entry, _ = self._entries_in(share.base, ledger, share.first, share.last + 1, visible)
        return int(entry[-1]) if len(entry) else -1

    def _active_index(self) -> tuple[int, LedgerIndex | None]:
        """Return (base, ledger index) of the active segment.

        The index is None if the segment was just sealed; then it is in the map.
        """
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
        """Return the shares of a ledger.

        The active segment is read first: if it is sealed meanwhile, it is read twice and not missed.
        """
        base, index = self._active_index()
        row = index.share(ledger) if index is not None else None
        shares = {share.base: share for share in self.map.shares(ledger)}
        if row is not None:
            shares[base] = LedgerExtent(base, *row)
        return sorted(shares.values())

    def held_entries(self, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the entries of [start, end) that have a record in the log, ascending, intact or not."""
        parts = [part.entry for part in self.locations(ledger, start, end)]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def newest_in(self, base: int, ledger: int, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the entries of [start, end) whose newest record lies in the segment at `base`, ascending."""
        parts = [part.entry for part in self.locations(ledger, start, end) if part.base == base]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    # ---- verifying and mending segments ---------------------------------------------------------------------

    def durable_segments(self) -> list[tuple[int, int]]:
        """Return (base, durable bytes) of all segments, the oldest first. The last segment may be the active one."""
        self.check_open()
        end, size = self.tail.synced_end, self.segment_bytes
        bases = [base for base, _, _ in self._segment_table()]
        return [(base, min(end - base, size)) for base in bases if end - base > HEADER_BYTES]

    def rows_of(self, base: int) -> IndexRows:
        """Return all rows of the index of the segment at `base`.

        Raises CorruptionError if the index is damaged, and TrimmedError if the segment was removed.
        """

        def query(index: LedgerIndex | SealedIndex) -> list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
            return [(ledger, *index.entries(ledger, first, last + 1)) for ledger, first, last, *_ in index.ledgers()]

        parts = self.query_index(base, query)
        ledger = np.repeat(np.array([row[0] for row in parts], np.int64), [len(row[1]) for row in parts])
        entry = np.concatenate([row[1] for row in parts]) if parts else ledger
        offset = np.concatenate([row[2] for row in parts]) if parts else ledger
        order = np.argsort(offset, kind="stable")
        return IndexRows(ledger[order], entry[order], offset[order])

    def remake_indexes(self, base: int) -> None:
        """Write the index files of a sealed segment anew.

        Raises TrimmedError, CorruptionError (the records are damaged as well) and DiskError.
        """
        with self._lock:
            pin, segment = self._hold_at(base)
            try:
                indexes.remake(self.path, self._files, segment)
            except OSError as error:
                raise disk_error(error, f"the indexes of {segment.path} cannot be written") from error
            del pin

    def rewrite_frame(self, base: int) -> None:
        """Write the frame of a segment anew: its header block, its blank, and the zeros behind the blank.

        The frame is durable when the call returns. Bytes that are right already are not written. Raises TrimmedError,
        CorruptionError (the original frame cannot be determined), DiskError, and PoisonedError (the sync failed).
        """
        with self._lock:
            if base not in {start for start, _, _ in self._segment_table()}:
                raise TrimmedError(f"the segment at {base} was removed")
            path = names.segment_path(self.path, base)
            try:
                fd = self._files.open(path, writable=True)
            except OSError as error:
                raise disk_error(error, f"{path} cannot be opened") from error
            try:
                self._rewrite_header(base, fd)
                pin, segment = self._hold_at(base)
                if segment.sealed:
                    self._rewrite_end(segment, fd)
                del pin
                self._sync_frame(fd)
            except PoisonedError:
                raise
            except OSError as error:
                raise disk_error(error, f"{path} cannot be rewritten") from error
            finally:
                os.close(fd)

    def _sync_frame(self, fd: int) -> None:
        try:
            self._files.sync(fd)
        except OSError as error:
            raise self._poison("rewriting what surrounds a segment's records", error) from error

    def _hold_at(self, base: int) -> tuple[Pin, Segment]:
        pin, segment = self.hold_segment(base)
        if segment.base != base:
            raise TrimmedError(f"the segment at {base} was removed")
        return pin, segment

    def _rewrite_header(self, base: int, fd: int) -> None:
        """Write the header block of a segment. The epoch of a segment that is not mapped is found by a stamp."""
        mapped = next(segment for start, _, segment in self._segment_table() if start == base)
        current, size = os.pread(fd, HEADER_BYTES + 16, 0), self.segment_bytes
        try:
            epoch = decode_header(str(names.segment_path(self.path, base)), current[:HEADER_BYTES]).epoch
        except CorruptionError:
            known = [mapped.epoch] if mapped is not None else self._epochs_of(base, current[HEADER_BYTES:])
            if not known:
                raise
            epoch = known[0]
        header = encode_header(self.uuid, base, size, UNNUMBERED, epoch)
        if current[:HEADER_BYTES] != header:
            self._files.write(fd, header, 0)

    def _epochs_of(self, base: int, record: bytes) -> list[int]:
        """Return the epoch of a segment by the stamp of its first record, or of its ledger index."""
        stamps = [record[8:12]]
        try:
            with open_reading(names.ledgers_path(self.path, base)) as file:
                stamps.append(os.pread(file.fileno(), 4, 48))
        except OSError:
            pass
        epochs = range(self._pool.epoch + 1)
        stamped = (
            find_epoch(self.uuid, base, self.segment_bytes, int.from_bytes(stamp, "little"), epochs) for stamp in stamps
        )
        return [epoch for epoch in stamped if epoch is not None]

    def _rewrite_end(self, segment: Segment, fd: int) -> None:
        """Write the blank of a sealed segment, and zeros up to its end."""
        if segment.index is None:
            indexes.find_end(self.path, segment)
        end = segment.end
        blank = segment.bytes_at(end, _BLANK_BYTES)
        if segment.check(end, segment.size) != recovery.BLANK:
            blank = segment.blank_at(end, self._blank_time(segment))
        self._files.write(fd, blank.ljust(segment.used_end(end) - end, b"\0"), end)

    def _blank_time(self, segment: Segment) -> int:
        """Return the time for the blank of a segment, from its index, or else from its last record."""
        path = names.index_path(self.path, segment.base)
        with contextlib.suppress(OSError, ReplogError):
            return SparseIndex.load(
                str(path), segment.size, segment.uuid, segment.base, segment.first_entry, segment.stamp
            )[2]
        offsets = self.rows_of(segment.base).offset
        return segment.head_at(int(offsets[-1]) if len(offsets) else HEADER_BYTES)[3]

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
                    self._find_end(segment)
                    self.map.begin_removal()
                    hole_punch.replace(self.path, self._files, segment)
            except DiskError:
                raise
            except OSError as error:
                raise self._poison("hollowing a segment", error) from error
            self._unmap(rows[0])
            self.map.add(base, LedgerIndex().ledgers())

    def _find_end(self, segment: Segment) -> None:
        """Set the offset of the blank in a segment whose space is about to be freed; the time of its last record is
        taken from it. If the end is damaged, the time of the first record is used."""
        try:
            if segment.index is None:
                indexes.find_end(self.path, segment)
        except CorruptionError:
            segment.advance(HEADER_BYTES, True)

    def trim(self, entry: int) -> NoReturn:
        """Refuse the call, as every call by entry number; see `trim_before`."""
        raise UnnumberedError(self.path)

    truncate = trim
