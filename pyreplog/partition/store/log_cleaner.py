"""LogCleaner: compaction of a partition's log by key (`cleanup.policy=compact`).

Of the records with one key only the last one is kept. Segments below the last stable offset are cleaned one by one,
never the active one; each keeps its position, its entry numbers and its first offset, so offsets and epochs in other
segments stay valid. A batch that keeps a record keeps its offsets; a run of batches without remaining records becomes
one empty batch with all their offsets. FORMAT.md, "Order of writes".

A tombstone is removed `delete.retention.ms` after a cleaning has found it to be the last record of its key, and so are
the markers of transactions without remaining records (KIP-534). The last batch of each producer is kept, even if it is
empty. Tombstones and markers are kept until all replicas of the partition have removed the records that they delete:
otherwise a deleted record could come back when another replica becomes leader or its segments are copied.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pyreplog._native.kafka.log_cleaner import (
    OffsetMap,
    clean_batch,
    end_blank,
    gap_record,
    replaced_record,
    without_records,
)
from pyreplog._native.kafka.logged_batches import batch_heads
from pyreplog._native.kafka.record_batch import RecordBatchHeader, peek_header
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog.checksummed_json import dump_checksummed, load_checksummed
from pyreplog.errors import FormatVersionError, InvalidRecordBatchError
from pyreplog.log import names
from pyreplog.log.files import Files
from pyreplog.partition.config import CompactionConfig
from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.record_batch import HEAD_BYTES, marker_of
from pyreplog.partition.protocol.transactions import EndedTransaction
from pyreplog.partition.store.partition_log import CleanableSegment, PartitionLog
from pyreplog.partition.store.segment_copy import SegmentCopy, SegmentDigest, digest_of
from pyreplog.record_batches.compression import compress, decompress
from pyreplog.regular_files import read_regular
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import BLANK_BYTES

logger = logging.getLogger(__name__)

FORMAT, VERSION = "pyreplog cleaned offset", 1
INCARNATION_FORMAT = "pyreplog log incarnation"
UNCOMPRESSED_MAX = 256 << 20
"""Most bytes of the records of one batch, uncompressed."""

_FILE_MAX = 4096
_INCARNATION = re.compile("[0-9a-f]{32}")
_SCAN_BYTES = 4 << 20
_COPY_BYTES = 1 << 20
_GAP_BYTES = 104  # size of a record with an empty batch
_COUNT_MAX = (1 << 31) - 1
_BATCH = 2  # kind of records


class CleaningBounds(NamedTuple):
    """The state of a partition that bounds a cleaning.

    Attributes:
        stable: the last stable offset: records from there on are not changed.
        aborted: the aborted transactions before it.
        last_batches: offset of the last record of the last batch of each idempotent producer, by producer id.
        replicated: offset up to which the log of each other replica is compacted: tombstones and markers from there on
            stay.
    """

    stable: LogPosition
    aborted: tuple[EndedTransaction, ...]
    last_batches: Mapping[int, int]
    replicated: int = 1 << 62


class DirtySegments(NamedTuple):
    """The dirty part of a log.

    Attributes:
        ratio: bytes that were never cleaned, as a fraction of all cleanable bytes.
        is_due: whether the ratio, or the age of a record, requires a cleaning.
    """

    ratio: float
    is_due: bool


class CleaningResult(NamedTuple):
    """The result of a cleaning.

    Attributes:
        cleaned: offset up to which the log is clean.
        bytes_before: bytes of records in all examined segments before the cleaning.
        bytes_after: bytes of records in these segments afterwards.
        segments: number of segments that were replaced.
    """

    cleaned: int
    bytes_before: int
    bytes_after: int
    segments: int


class LogCleaner:
    """Cleans the log of one partition. One thread at a time.

    Args:
        log: the log, whose replica leads.
        files: the disk.
    """

    def __init__(self, log: PartitionLog, files: Files) -> None:
        self._log, self._files = log, files
        self._sizes: dict[int, int] = {}  # bytes of records in segments, by base
        self._replaced: set[int] = set()  # segments whose old files are still read
        self._digests: dict[int, SegmentDigest] = {}  # digests of segments, by base
        self._marking = threading.Lock()  # guards the following attributes, with their files
        self._is_truncated = False  # whether the log was truncated since `begin`
        self._incarnation = self._read_incarnation()  # "": there is none, as before the first cleaning
        self._is_bound = not self._incarnation  # whether nothing is known to be claimed in it beyond `cleaned`
        self.cleaned = self._read_cleaned()
        """Offset up to which the log was cleaned, here or at the replica from which its segments were copied; records
        behind it are dirty."""

    def _read_incarnation(self) -> str:
        path = self._log.path / names.INCARNATION
        try:
            content = load_checksummed(read_regular(path, _FILE_MAX), INCARNATION_FORMAT, VERSION, path)
            incarnation = content["incarnation"]
            if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
                raise ValueError(f"incarnation: expected 32 hexadecimal digits, found {incarnation!r}")
            return incarnation
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, FormatVersionError) as error:
            logger.warning("%s: %s; all of the log counts as dirty", path, error)
            return ""

    def _read_cleaned(self) -> int:
        """Return the clean offset of the file, as far as the file describes this log. A lower offset does no harm: more
        records count as dirty. With a higher one, deleted records could come back."""
        path = self._log.path / names.CLEANED
        try:
            content = load_checksummed(read_regular(path, _FILE_MAX), FORMAT, VERSION, path)
            cleaned, epoch, incarnation = content["offset"], content.get("epoch"), content.get("incarnation")
            if content["uuid"] != self._log.uuid.hex() or type(cleaned) is not int or cleaned < 0:
                return 0
            if incarnation is None or incarnation != self._incarnation:
                logger.warning("%s: it is of another incarnation of the log, all of which counts as dirty", path)
                return 0
            end = 0 if epoch is None else self._end_of(LeaderEpoch(*epoch))
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError, FormatVersionError) as error:
            logger.warning("%s: %s; all of the log counts as dirty", path, error)
            return 0
        self._is_bound = cleaned <= end
        return min(cleaned, end)

    def _end_of(self, epoch: LeaderEpoch) -> int:
        """Return the offset behind the last record of an epoch in the log; 0: the log has no such epoch."""
        starts = self._log.history.starts
        for number, start in enumerate(starts):
            if start.term == epoch:
                return (starts[number + 1].start if number + 1 < len(starts) else self._log.end_mark).entry
        return 0

    def _begin_incarnation(self) -> None:
        """Draw the incarnation of the log anew, durably: what was claimed in the one before counts no longer."""
        self._incarnation = os.urandom(16).hex()
        data = dump_checksummed(INCARNATION_FORMAT, VERSION, {"incarnation": self._incarnation})
        self._files.replace_small(self._log.path / names.INCARNATION, data)
        self._is_bound = True

    def _write_cleaned(self) -> None:
        content: dict[str, object] = {
            "offset": self.cleaned, "uuid": self._log.uuid.hex(), "incarnation": self._incarnation
        }  # fmt: skip
        before = [start.term for start in self._log.history.starts if start.start.entry < self.cleaned]
        if before:
            content["epoch"] = [*before[-1]]
        self._files.replace_small(self._log.path / names.CLEANED, dump_checksummed(FORMAT, VERSION, content))

    def dirty(self, bounds: CleaningBounds, config: CompactionConfig, now_us: int) -> DirtySegments:
        """Return the dirty part of the log.

        Args:
            bounds: bounds of the partition.
            config: settings of the topic.
            now_us: the time, microseconds since 1970-01-01 UTC.

        Raises:
            DiskError, OSError: a segment cannot be opened.
            CorruptionError: a segment is damaged.
        """
        segments = self._cleanable(bounds, config, now_us)
        waiting = [segment for segment in segments if segment.end > self.cleaned]
        if not waiting:
            return DirtySegments(0.0, False)
        total, dirty = sum(map(self._size, segments)), sum(map(self._size, waiting))
        ratio = dirty / total if total else 0.0
        lag_ms, age_us = config.max_lag_ms, now_us - waiting[0].first_time_us
        is_old = lag_ms is not None and age_us >= lag_ms * 1000
        return DirtySegments(ratio, is_old or ratio > config.min_dirty_ratio)

    def _cleanable(self, bounds: CleaningBounds, config: CompactionConfig, now_us: int) -> list[CleanableSegment]:
        """Return the cleanable segments up to the first one that is younger than `min_lag_ms`."""
        segments = self._log.cleanable_segments(bounds.stable, now_us)
        young = (at for at, segment in enumerate(segments) if now_us - segment.last_time_us < config.min_lag_ms * 1000)
        return segments[: next(young, len(segments))]

    def _size(self, segment: CleanableSegment) -> int:
        size = self._sizes.get(segment.base)
        if size is None:
            size = self._sizes[segment.base] = self._log.map_sealed(segment.base).end - HEADER_BYTES
        return size

    def clean(
        self, bounds: CleaningBounds, config: CompactionConfig, now_us: int, map_bytes: int
    ) -> CleaningResult:  # fmt: skip
        """Clean the log, as far as its keys fit into the offset map.

        Args:
            bounds: bounds of the partition.
            config: settings of the topic.
            now_us: the time, microseconds since 1970-01-01 UTC.
            map_bytes: size of the offset map in memory.

        Raises:
            InvalidRecordBatchError: a batch cannot be read. Segments before its own are cleaned.
            MissingExtraError: the package with a codec is not installed.
            DiskError, OSError: the disk is full, or failed. Segments before the failure may be cleaned.
            CorruptionError: a segment is damaged.
            PoisonedError, ClosedError: the log accepts no appends.
        """
        self.begin()
        segments = self._cleanable(bounds, config, now_us)
        offsets, transactions = OffsetMap(map_bytes), _CleanedTransactions(bounds.aborted)
        offsets.note_end(self.cleaned)
        for segment in segments:
            if segment.end > self.cleaned and not self._add_keys(segment, offsets, transactions):
                break
        before = after = replaced = 0
        for segment in segments:
            if segment.first >= offsets.latest:
                break
            rewriter = _SegmentRewriter(
                self._log, self._files, segment, offsets, bounds, transactions, config, now_us // 1000
            )
            is_new = rewriter.rewrite()
            before, after, replaced = before + rewriter.old_bytes, after + rewriter.new_bytes, replaced + is_new
            if is_new:
                self._replace(segment.base, rewriter.path, rewriter.new_bytes)
        self._sizes = {segment.base: self._sizes[segment.base] for segment in segments if segment.base in self._sizes}
        self.note_cleaned(offsets.latest)
        return CleaningResult(self.cleaned, before, after, replaced)

    def _replace(self, base: int, fresh: Path, size: int) -> None:
        self._log.replace_sealed(base, fresh)
        self._sizes[base] = size
        self._digests.pop(base, None)
        if not self._log.release_replaced(base):
            self._replaced.add(base)

    def release_replaced(self) -> None:
        """Publish the new files of replaced segments whose old files no reader uses any more."""
        if self._replaced:
            self._replaced = {base for base in self._replaced if not self._log.release_replaced(base)}

    # ---- clean offset ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to clean or copy segments; `note_cleaned` is called afterwards."""
        with self._marking:
            self._is_truncated = False

    def note_cleaned(self, offset: int) -> None:
        """Note, durably, up to where the log is clean, unless it was truncated since `begin`. The offset does not
        decrease.

        Raises:
            OSError: the disk failed.
        """
        with self._marking:
            if not self._is_truncated and offset > self.cleaned:
                if not self._incarnation or not self._is_bound:
                    self._begin_incarnation()
                self.cleaned = offset
                self._write_cleaned()

    def forget_from(self, offset: int) -> None:
        """Note, durably, that the log is truncated at an offset: records appended there may be dirty. Any thread.

        Raises:
            OSError: the disk failed.
        """
        with self._marking:
            self._is_truncated = True
            if offset < self.cleaned or not self._is_bound:
                self.cleaned = min(offset, self.cleaned)
                self._begin_incarnation()
                self._write_cleaned()

    # ---- segments of replicas -------------------------------------------------------------------------------

    def digests(self, floor: LogPosition, now_us: int, before: int) -> dict[int, SegmentDigest]:
        """Return the digests of sealed segments, by base. Reads segments without a cached digest. For the cleaner's
        thread.

        Args:
            floor: position before which segments end.
            now_us: the time, microseconds since 1970-01-01 UTC.
            before: offset before which segments end.

        Raises:
            ReplogError, OSError: a segment cannot be read.
        """
        digests: dict[int, SegmentDigest] = {}
        for segment in self._log.cleanable_segments(floor, now_us):
            if segment.end > before:
                break
            digest = self._digests.get(segment.base)
            if digest is None or (digest.first, digest.end) != (segment.first, segment.end):
                digest = digest_of(self._log, segment)
            digests[segment.base] = digest
        self._digests = digests
        return digests

    def begin_copy(self, digest: SegmentDigest) -> SegmentCopy:
        """Begin to copy a segment of another replica. Raises the errors of `SegmentCopy`."""
        return SegmentCopy(self._log, self._files, digest)

    def take_over(self, copy: SegmentCopy) -> None:
        """Replace a segment by the finished copy of another replica's. Raises the errors of `replace_sealed`."""
        digest = copy.digest
        self._replace(digest.base, copy.path, digest.size - BLANK_BYTES - HEADER_BYTES)
        self._digests[digest.base] = digest

    def _add_keys(self, segment: CleanableSegment, offsets: OffsetMap, transactions: _CleanedTransactions) -> bool:
        """Add the keys of a segment, behind the clean offset, to the map; return whether all fit.

        Records of aborted transactions are skipped: they do not supersede earlier records of their keys.
        """
        for value, head in _batches(self._log.map_sealed(segment.base)):
            if head.base_offset + head.last_offset_delta < self.cleaned or head.control or not head.count:
                continue
            if head.transactional and transactions.is_aborted(head):
                continue
            if not offsets.add_batch(value, _body(value, head)):
                return False
        offsets.note_end(segment.end)
        return True


def _batches(segment: Segment) -> Iterator[tuple[memoryview, RecordBatchHeader]]:
    """Iterate over the record batches of a segment with their headers."""
    offset = HEADER_BYTES
    while offset < segment.end:
        batch = segment.scan(offset, segment.end, until=min(offset + _SCAN_BYTES, segment.end))
        offset = batch.next_position - segment.base
        for index in batch_heads(batch)[0].nonzero()[0].tolist():
            value = batch[index].value_view
            head = peek_header(value)
            assert head is not None, "checked by batch_heads"
            yield value, head


def _body(value: memoryview, head: RecordBatchHeader) -> bytes | memoryview:
    return decompress(head.attributes & 7, value[HEAD_BYTES:], UNCOMPRESSED_MAX)


class _CleanedTransactions:
    """The transactions that have records in the segments read so far by a cleaning."""

    def __init__(self, aborted: Iterable[EndedTransaction]) -> None:
        self._aborted: dict[int, list[EndedTransaction]] = {}
        for ended in aborted:
            self._aborted.setdefault(ended.producer_id, []).append(ended)
        self._with_records: set[int] = set()

    def note_batch(self, head: RecordBatchHeader) -> bool:
        """Note a batch of a transaction; return whether it was aborted."""
        self._with_records.add(head.producer_id)
        return self.is_aborted(head)

    def is_aborted(self, head: RecordBatchHeader) -> bool:
        """Return whether a batch is a part of an aborted transaction."""
        return any(
            ended.first.entry <= head.base_offset < ended.end.entry for ended in self._aborted.get(head.producer_id, ())
        )

    def note_marker(self, head: RecordBatchHeader) -> bool:
        """Note a marker; return whether its transaction has no remaining record."""
        if head.producer_id in self._with_records:
            self._with_records.discard(head.producer_id)
            return False
        return True


class _SegmentRewriter:
    """Writes the remaining records of one segment into a file beside it, if any record is removed or changed.

    Attributes:
        path: path of the file.
        old_bytes: bytes of records before.
        new_bytes: bytes of records afterwards.
    """

    def __init__(
        self, log: PartitionLog, files: Files, cleanable: CleanableSegment, offsets: OffsetMap, bounds: CleaningBounds,
        transactions: _CleanedTransactions, config: CompactionConfig, now_ms: int,
    ) -> None:  # fmt: skip
        self.path = log.path / f"fresh-{cleanable.base:020d}.seg"
        self._files, self._segment, self._cleanable = files, log.map_sealed(cleanable.base), cleanable
        self._offsets, self._bounds, self._transactions = offsets, bounds, transactions
        self._retention_ms, self._now_ms = config.delete_retention_ms, now_ms
        self._fd = -1
        self._out = HEADER_BYTES  # offset in the new file for the next record
        self._gap = 0  # entry numbers removed before the present record
        self._gap_at = 0  # offset of the last removed record in the old file
        self._run = -1, -1  # range of the old file that is kept and not written yet
        self._slack = self._segment.size - BLANK_BYTES - self._segment.end
        self.old_bytes = self.new_bytes = self._segment.end - HEADER_BYTES

    def rewrite(self) -> bool:
        """Rewrite the segment; return whether a new file was written and synced. Otherwise the segment is clean
        already."""
        segment = self._segment
        try:
            offset = HEADER_BYTES
            while offset < segment.end:
                batch = segment.scan(offset, segment.end, until=min(offset + _SCAN_BYTES, segment.end), all_kinds=True)
                heads, positions, strides = batch_heads(batch)[0].tolist(), batch.position.tolist(), batch.stride
                kinds, counts = batch.kind.tolist(), batch.entry_count.tolist()
                for index, position in enumerate(positions):
                    offset, stride = position - segment.base, int(strides[index])
                    if heads[index] and kinds[index] == _BATCH:
                        self._clean_batch(batch[index].value_view, offset, stride, counts[index])
                    else:
                        self._keep(offset, stride)
                offset = batch.next_position - segment.base
            self._close_gap()
            if self._fd < 0:
                return False
            self._finish()
            return True
        except BaseException:
            self._discard()
            raise

    def _clean_batch(self, value: memoryview, offset: int, stride: int, count: int) -> None:
        head = peek_header(value)
        assert head is not None, "checked by batch_heads"
        cleaned = self._cleaned_batch(value, head, offset)
        if cleaned is None:
            self._keep(offset, stride)
        elif int.from_bytes(cleaned[57:61], "big") or self._is_last_of_producer(head):
            if cleaned == value:
                self._keep(offset, stride)
                return
            self._close_gap()
            self._write(replaced_record(self._segment, offset, cleaned))
        else:
            self._remove_batch(offset, count)

    def _cleaned_batch(self, value: memoryview, head: RecordBatchHeader, offset: int) -> bytes | None:
        """Return a batch with its remaining records, possibly none; None: it is kept unchanged."""
        if head.base_offset >= self._offsets.latest:
            return None
        is_marker_of_nothing = False
        if head.control:
            if marker_of(value) is None:
                return None
            is_marker_of_nothing = self._transactions.note_marker(head)
            has_passed = head.attributes & 64 and self._time_ms(head) >= head.base_timestamp
            if is_marker_of_nothing and has_passed and not self._is_last_of_producer(head):
                return without_records(value)
        elif not head.count:
            if head.transactional:
                self._transactions.note_batch(head)
            return without_records(value)
        elif head.transactional and self._transactions.note_batch(head):
            return without_records(value)
        body = _body(value, head)
        for sets_horizon in (True, False):
            cleaned = clean_batch(
                value, body, self._offsets, compress, now_ms=self._time_ms(head), retention_ms=self._retention_ms,
                is_marker_of_nothing=is_marker_of_nothing, sets_horizon=sets_horizon,
            )  # fmt: skip
            if cleaned is None or self._fits(len(cleaned) - len(value), offset):
                return cleaned
        raise InvalidRecordBatchError(87, -1, 0, f"at most {len(value)} bytes of a cleaned batch", "more")

    def _time_ms(self, head: RecordBatchHeader) -> int:
        """Return the time for the delete horizon of a batch: before the horizon, if another replica may still have
        records that the batch deletes."""
        is_held = head.attributes & 64 and head.base_offset + head.last_offset_delta >= self._bounds.replicated
        return min(self._now_ms, head.base_timestamp - 1) if is_held else self._now_ms

    def _fits(self, growth: int, offset: int) -> bool:
        """Return whether a record may grow by so many bytes: the records behind it must still fit into the segment."""
        out = self._out + (_GAP_BYTES if self._gap else 0)
        return growth <= 0 or out + growth + 7 <= offset + self._slack

    def _is_last_of_producer(self, head: RecordBatchHeader) -> bool:
        last = self._bounds.last_batches.get(head.producer_id, -1)
        return head.producer_id >= 0 and last == head.base_offset + head.last_offset_delta

    def _remove_batch(self, offset: int, count: int) -> None:
        if self._gap + count > _COUNT_MAX:
            self._close_gap()
        self._gap, self._gap_at = self._gap + count, offset

    def _close_gap(self) -> None:
        """Write an empty batch in place of the removed ones, unless an earlier cleaning has written the same."""
        if not self._gap:
            return
        count, self._gap = self._gap, 0
        last = self._segment.head_at(self._gap_at)[1]
        record = gap_record(self._segment, self._gap_at, last - count + 1, count)
        if self._fd < 0 and self._gap_at == self._out and self._segment.bytes_at(self._out, _GAP_BYTES) == record:
            self._out += _GAP_BYTES
        else:
            self._write(record)

    def _keep(self, offset: int, stride: int) -> None:
        self._close_gap()
        if self._fd >= 0:
            if self._run[1] != offset:
                self._write_run()
                self._run = offset, offset
            self._run = self._run[0], offset + stride
        self._out += stride

    def _write_run(self) -> None:
        """Write the pending run of kept records, which are adjacent in the old file."""
        start, stop = self._run
        self._run = -1, -1
        if stop > start:
            self._files.write(self._fd, self._segment.view(start, stop - start), self._out - (stop - start))

    def _write(self, record: bytes) -> None:
        self._begin_file()
        self._write_run()
        self._files.write(self._fd, record, self._out)
        self._out += len(record)

    def _begin_file(self) -> None:
        """Create the file, with a copy of the unchanged records so far."""
        if self._fd >= 0:
            return
        self._files.remove(self.path)
        self._fd = self._files.create(self.path, self._segment.size, zeroed=False)
        for at in range(0, self._out, _COPY_BYTES):
            self._files.write(self._fd, self._segment.view(at, min(_COPY_BYTES, self._out - at)), at)

    def _finish(self) -> None:
        segment = self._segment
        self._write_run()
        _, _, _, time_us, _ = segment.head_at(segment.end)
        entries = self._cleanable.end - self._cleanable.first
        self._files.write(self._fd, end_blank(segment, self._out, entries, time_us), self._out)
        behind = -(-(self._out + BLANK_BYTES) // 4096) * 4096
        if behind < segment.size:
            try:
                self._files.punch(self._fd, behind, segment.size)
            except OSError as error:
                logger.info("%s: its space is not given back: %s", self.path, error)
        self._files.sync(self._fd)
        os.close(self._fd)
        self._fd = -1
        self.new_bytes = self._out - HEADER_BYTES

    def _discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._files.remove(self.path)
