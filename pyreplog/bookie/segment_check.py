"""Verifies one segment of a bookie's log, with its index files, from the bytes on the disk, in steps.

A damaged record ends a walk from record to record, because its length may be damaged as well. The ledger index then
tells which entry the damaged record holds, and where the next record begins. Superseded copies that lie between the
damage and the next record of the index are not verified, because no reader needs them.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyreplog._native.ledger_log.index import LedgerIndex
from pyreplog._native.ledger_log.verification import BLANK, CUT, INTACT, ledger_index_fault, verify_records
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.log.segment_header import encode_header
from pyreplog._native.log.sparse import SparseIndex
from pyreplog._native.system.checksum import crc32c
from pyreplog.bookie.multi_ledger_log import IndexRows, MultiLedgerLog
from pyreplog.errors import CorruptionError, FormatVersionError, TrimmedError
from pyreplog.log import names
from pyreplog.log.disk_reader import DiskReader
from pyreplog.log.files import Files
from pyreplog.log.hole_punch import is_hole_punched
from pyreplog.log.segments import UNNUMBERED

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
_LONG_HEADER, _BLANK_BYTES, _CRC_FROM = 64, 32, 12
_FAULTS_LOGGED = 8
_STATUS_CRC = -4  # of `record.Status`
_ZEROS = bytes(PIECE_BYTES)
_INDEX_IDENTITY = struct.Struct("<16x16sqqI")  # of the header of a ledger index: uuid, base, end, stamp


class BadRecord(NamedTuple):
    """A damaged record that the index names. ledger: with CONTROL for a control record."""

    ledger: int
    entry: int


class _Suspect(NamedTuple):
    """An offset at which no intact record was read.

    Attributes:
        place: the offset.
        status: error of the verification.
        record: record that the index has there; None: no such record.
        stop: offset at which the next record begins.
    """

    place: int
    status: int
    record: BadRecord | None
    stop: int


class SegmentCheck:
    """The verification of one segment, from offset `place` on. One thread at a time; close it.

    Attributes:
        base: position of the segment.
        place: offset up to which the segment was verified. Before its first record the header and the index files are
            verified.
        index_bytes: bytes of its index files that were read.
        is_done: whether the whole segment was verified.
        bad: damaged records of the index since the last call of `take_bad`.
        stray_damage: number of damaged places at which the index has no record, and of blocks that cannot be read.
        faults: number of damaged places that were found; the first ones are logged.
        bad_frame: damage of the header block, the blank, or the zeros behind it; None: none was found.
        bad_index: damage of an index file; None: none was found.
        unindexed: error of the index, so that it is unknown which records are damaged; None: the index can be read.

    Raises:
        TrimmedError: the segment was removed.
        DiskError: the system refuses to read it.
    """

    def __init__(self, log: MultiLedgerLog, files: Files, base: int, place: int = 0) -> None:
        self._log, self._files, self.base, self.place = log, files, base, place
        self._path = names.segment_path(log.path, base)
        self._rows: IndexRows | None = None
        self._blank: int | None = None  # offset of the blank, once it was found
        self.is_done, self.index_bytes = False, 0
        self.bad: list[BadRecord] = []
        self.stray_damage = self.faults = 0
        self.bad_frame: CorruptionError | None = None
        self.bad_index: CorruptionError | None = None
        self.unindexed: CorruptionError | None = None
        try:
            self._reader = DiskReader(self._path, files, PIECE_BYTES)
        except FileNotFoundError as error:
            raise TrimmedError(f"{self._path} was removed") from error
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def resume_place(self) -> int:
        """The offset from which another check of the segment may continue."""
        return self.place if self._blank is None else self._blank

    def close(self) -> None:
        """Close the segment's file. A second call does nothing."""
        self._reader.close()

    def take_bad(self) -> list[BadRecord]:
        """Return the damaged records that were found since the last call."""
        bad, self.bad = self.bad, []
        return bad

    def step(self) -> int:
        """Verify the next piece; return how many bytes were verified.

        Raises TrimmedError if the segment was removed meanwhile, and DiskError if the disk refuses to read it.
        """
        before = self.place
        if self._blank is None:
            self._check_records()
        else:
            self._check_tail()
        if self.is_done:
            self.stray_damage += len(self._reader.unreadable)
        return self.place - before

    # ---- header and index files -----------------------------------------------------------------------------

    def _begin(self) -> None:
        header = bytes(self._reader.read(0, HEADER_BYTES))
        try:
            _pin, segment = self._log.hold_segment(self.base)
        except CorruptionError as error:  # the segment cannot be mapped without its header
            self.bad_frame = error
            self._log.rewrite_frame(self.base)
            _pin, segment = self._log.hold_segment(self.base)
        self._segment, self._is_hollow = segment, is_hole_punched(segment)
        self._check_still_there()
        expected = encode_header(segment.uuid, self.base, segment.size, UNNUMBERED, segment.epoch)
        if header != expected:
            at = next(i for i, (a, b) in enumerate(zip(expected, header, strict=True)) if a != b)
            self.bad_frame = CorruptionError(
                self._path, self.base + at, f"the header block with {expected[at]:#04x}", f"{header[at]:#04x}"
            )
        if segment.sealed:
            self._check_indexes(segment)
        self.place = max(self.place, HEADER_BYTES)

    def _check_still_there(self) -> None:
        """Raise TrimmedError if the segment was removed, recycled or hollowed since the check began."""
        _pin, segment = self._log.hold_segment(self.base)
        if segment.base != self.base or is_hole_punched(segment) != self._is_hollow:
            raise TrimmedError(f"the segment at {self.base} was removed")

    def _check_indexes(self, segment: Segment) -> None:
        """Verify every byte of a sealed segment's index files, unless they are not written yet."""
        if (segment.index is not None and segment.index.memory_bytes) or isinstance(segment.ledgers, LedgerIndex):
            return
        sparse, ledgers = names.index_path(self._log.path, self.base), names.ledgers_path(self._log.path, self.base)
        self.bad_index = self._sparse_fault(sparse, segment) or self._ledgers_fault(ledgers, segment)

    def _sparse_fault(self, path: Path, segment: Segment) -> CorruptionError | None:
        try:
            self._read_whole(path)  # verifies the bytes on the disk; `load` may read cached ones
            SparseIndex.load(
                str(path), segment.size, segment.uuid, self.base, segment.first_entry, segment.stamp
            )  # fmt: skip
        except FileNotFoundError:
            return CorruptionError(path, 0, "an index file", "none")
        except FormatVersionError as error:
            return CorruptionError(path, 14, f"format version {error.supported} or lower", str(error.found))
        except CorruptionError as error:
            return error
        return None

    def _ledgers_fault(self, path: Path, segment: Segment) -> CorruptionError | None:
        try:
            data = self._read_whole(path)
        except FileNotFoundError:
            return CorruptionError(path, 0, "a ledger index file", "none")
        except CorruptionError as error:
            return error
        if (fault := ledger_index_fault(data)) is not None:
            position, expected, actual = fault
            return CorruptionError(path, position, f"{expected:#x}", f"{actual:#x}")
        identity = _INDEX_IDENTITY.unpack_from(data)
        expected_identity = segment.uuid, self.base, identity[2], segment.stamp
        if identity != expected_identity:
            return CorruptionError(path, 16, f"the index of the segment at {self.base}", f"that of another, {identity}")
        return None

    def _read_whole(self, path: Path) -> bytes:
        """Read an index file from the disk. Raises CorruptionError if it is too large, or cannot be read."""
        reader = DiskReader(path, self._files, PIECE_BYTES)
        try:
            if reader.size > 2 * self._segment.size:
                raise CorruptionError(path, 0, f"a file of {2 * self._segment.size} bytes at most", str(reader.size))
            size = reader.size
            pieces = [bytes(reader.read(at, min(PIECE_BYTES, size - at))) for at in range(0, size, PIECE_BYTES)]
            self.index_bytes += size
            if reader.unreadable:
                raise CorruptionError(path, reader.unreadable[0], "a block that can be read", "an input/output error")
            return b"".join(pieces)
        finally:
            reader.close()

    # ---- records --------------------------------------------------------------------------------------------

    def _check_records(self) -> None:
        limit = self._limit()
        if self.place >= limit:
            self._end_records()
            return
        data = self._reader.read(self.place, min(PIECE_BYTES, limit - self.place))
        suspects: list[_Suspect] = []
        at = status = 0
        while at < len(data):
            done, status = self._verify(data[at:], self.place + at)
            at += done
            if status == CUT and not done and not at:
                done, status = self._verify_long(self.place)
                at += done
            if status in (INTACT, CUT, BLANK):
                break
            suspects.append(self._suspect(self.place + at, status))
            at = suspects[-1].stop - self.place
        if suspects:
            self._note_damage(suspects)
        self.place += at
        if status == BLANK:
            self._blank = self.place
            self.place += _BLANK_BYTES
            self.is_done = self._blank == HEADER_BYTES  # a hollow segment has no blocks behind it

    def _limit(self) -> int:
        """Return the offset after the last byte that is on the disk."""
        if self._segment.sealed:
            return self._segment.size
        return min(max(self._log.tail.synced_end - self.base, HEADER_BYTES), self._segment.size)

    def _end_records(self) -> None:
        """End the check at the last record; a sealed segment should have had a blank before this offset."""
        if self._segment.sealed and self.bad_frame is None:
            self._miss_blank(self.place)
        self.is_done = True

    def _verify(self, data: memoryview, place: int) -> tuple[int, int]:
        return verify_records(data, stamp=self._segment.stamp, space=self._segment.size - place)

    def _verify_long(self, place: int) -> tuple[int, int]:
        """Verify a record that is longer than a piece. Its kind, form and ids are covered by its CRC."""
        head = self._reader.read(place, _LONG_HEADER)
        length, crc = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4))
        stride, computed, at = length + 7 & ~7, length, _CRC_FROM
        while at < stride:
            part = self._reader.read(place + at, min(PIECE_BYTES, stride - at))
            computed = crc32c(part, computed)
            at += len(part)
        return (stride, INTACT) if computed == crc else (0, _STATUS_CRC)

    # ---- damage ---------------------------------------------------------------------------------------------

    def _suspect(self, place: int, status: int) -> _Suspect:
        """Return the damage at an offset, with the offset at which the next record of the index begins."""
        self._check_still_there()
        rows = self._index_rows()
        if rows is None:
            return _Suspect(place, status, None, self._find_next(place))
        at = int(np.searchsorted(rows.offset, place))
        record = None
        if at < len(rows.offset) and rows.offset[at] == place:
            record = BadRecord(int(rows.ledger[at]), int(rows.entry[at]))
            at += 1
        if at < len(rows.offset):
            stop = int(rows.offset[at])
        elif self._segment.sealed and place < self._segment.end:
            stop = self._segment.end
        else:
            stop = self._limit()
            if self._segment.sealed:
                self._miss_blank(place)
        return _Suspect(place, status, record, stop)

    def _note_damage(self, suspects: list[_Suspect]) -> None:
        """Note damaged records, except those that a second read finds intact."""
        for suspect in suspects:
            length = min(suspect.stop - suspect.place, PIECE_BYTES)
            again = self._verify(self._reader.read(suspect.place, length), suspect.place)
            if again in ((length, INTACT), (0, BLANK)) and not self._reader.unreadable:
                logger.warning("%s: offset %d was read wrong once, and is intact", self._path, suspect.place)
                continue
            self.faults += 1
            if self.faults <= _FAULTS_LOGGED:
                logger.error("scrub: %s", self._fault(suspect))
            if suspect.record is not None:
                self.bad.append(suspect.record)
            elif suspect.place != self._segment.end:
                self.stray_damage += 1

    def _fault(self, suspect: _Suspect) -> CorruptionError:
        """Describe damage. Blocks that the disk cannot read must not be touched in the mapped file."""
        if self._reader.unreadable:
            expected, actual = "an intact record", "blocks that the disk cannot read"
            return CorruptionError(self._path, self.base + suspect.place, expected, actual)
        return self._segment.fault(suspect.place, suspect.status)

    def _index_rows(self) -> IndexRows | None:
        if self._rows is None and self.unindexed is None:
            try:
                self._rows = self._log.rows_of(self.base)
            except CorruptionError as error:
                self.unindexed = error
        return self._rows

    def _find_next(self, place: int) -> int:
        """Find the next intact record without an index. A record in the value of another one is found, too."""
        size = self._segment.size
        if self._reader.unreadable:
            return self._limit()
        next_at = self._segment.find_intact(min(place + 8, size), size)
        if next_at < 0:
            next_at = self._segment.find_blank(min(place + 8, size))
        return next_at if 0 <= next_at < self._limit() else self._limit()

    # ---- behind the records ---------------------------------------------------------------------------------

    def _miss_blank(self, place: int) -> None:
        self.bad_frame = CorruptionError(self._path, self.base + place, "an end-of-segment blank", "none")

    def _check_tail(self) -> None:
        """Check that there are zeros behind the blank."""
        size = self._segment.size
        data = self._reader.read(self.place, min(PIECE_BYTES, size - self.place))
        if bytes(data) != _ZEROS[: len(data)]:
            at = next(i for i, byte in enumerate(data) if byte)
            self.bad_frame = CorruptionError(
                self._path, self.base + self.place + at, "zeros behind the blank", f"{data[at]:#04x}"
            )
            self.place = size
        else:
            self.place += len(data)
        self.is_done = self.place >= size
