"""PartitionLog: the log of a partition's replica, in the role of a leader or of a follower."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, SupportsIndex

from pyreplog._native.kafka.log_cleaner import end_blank
from pyreplog._native.log.appender import Appender
from pyreplog._native.log.apply_replicated import marks_of, stand_at
from pyreplog._native.log.log_position import AppendedOffsets
from pyreplog._native.log.segment import HEADER_BYTES, Segment
from pyreplog._native.partition.partition_log_base import PartitionLogBase
from pyreplog.clock import Clock
from pyreplog.config import LogConfig
from pyreplog.errors import (
    CorruptionError,
    HigherTermError,
    InvalidArgumentError,
    InvalidMessageError,
    NotALogError,
    OutOfRangeError,
    ReplicaError,
    ReplogError,
    StreamError,
    TruncatedError,
)
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log import indexes, log_cursor, names, recovery, replica
from pyreplog.log.files import Files, RealFiles
from pyreplog.log.runtime import LogRuntime
from pyreplog.partition.config import RetentionConfig
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch
from pyreplog.partition.protocol.replica_log import ReplicaLog
from pyreplog.partition.store.epoch_record import decode_epoch, encode_epoch
from pyreplog.partition.store.high_watermarks import StoredHighWatermark
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import BLANK_BYTES, STREAM_HEADER_BYTES, MirrorLog, canonical
from pyreplog.stream.terms import History, TermStart
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BLANK = 5  # kind of the record that ends a segment


class LogSlice(NamedTuple):
    """Complete records with the bytes of a log.

    Attributes:
        position: where the records begin.
        end: where the records end; `position` if there are none.
        frames: (position of the first byte, bytes), each within one segment: records, the blank that ends a segment,
            the header of the next segment. See FORMAT.md, "Log stream".
    """

    position: LogPosition
    end: LogPosition
    frames: Sequence[tuple[int, ReadableBuffer]]


class CleanableSegment(NamedTuple):
    """A sealed segment, to which no more records are appended.

    Attributes:
        base: position where it begins.
        first: offset of its first record.
        end: offset behind its last record.
        first_time_us: append time of its first record, microseconds since 1970-01-01 UTC.
        last_time_us: append time of its last record, or a later time.
    """

    base: int
    first: int
    end: int
    first_time_us: int
    last_time_us: int


class ReplicaEnds(NamedTuple):
    """The end of a log.

    Attributes:
        end: where the log ends.
        synced: position up to which it is on the disk.
    """

    end: LogPosition
    synced: LogPosition


class PartitionLog(MirrorLog, PartitionLogBase):
    """The log of a partition's replica. As follower it is a byte-identical copy of the leader's log.

    The log is opened as follower. `lead` and `stop_leading` change the role in place: readers, their positions and the
    writer's lock stay. Readers, also in other processes, stop at the high watermark (`show_high_watermark`) in both
    roles. The directory keeps the file `replica`, so that opening the log does not trust the synced positions in
    records: they may be those of another broker's disk.

    Offsets are entry numbers. A record batch is one record with as many offsets as the batch has records. The log
    always ends behind a record: a last segment without records is removed, because state machines compare logs by the
    ends of their records.

    Methods that change the log return its ends for the state machines. An append returns when the records are in the
    page cache; `sync` makes them durable. Any thread may call any method. Methods that change the log wait for each
    other.

    Args:
        path: directory of the log, which `create` or `open_or_create` has made.
        config: settings, see `pyreplog.open`. The limits of retention must be None, because the leader decides on
            retention (`trim_to`).
        clock: source of append times; None: the system's clock.
        files: opens and syncs files; None: the operating system's files.
        runtime: provides the threads of the log, for brokers with many partitions; None: the log has its own threads.
            The first record creates the first segment. With a runtime no segment is prepared before the first one is
            full.

    Example:
        ```python
        with LogRuntime() as runtime, PartitionLog.open_or_create(path, config, uuid=uuid, runtime=runtime) as log:
            log.lead(LeaderEpoch(1, "a"))
            appended = log.append_records([batch], [3])
            log.show_high_watermark(appended.end)
        ```
    """

    def __init__(
        self, path: Path, config: LogConfig, *, clock: Clock | None = None, files: Files | None = None,
        runtime: LogRuntime | None = None,
    ) -> None:  # fmt: skip
        self._epoch: LeaderEpoch | None = None  # epoch in which it leads; None: it follows
        self._history = History()
        self._change_lock = threading.RLock()  # held to change the log; taken before `_lock`
        self._deleted_before = 0
        self._last_times: dict[int, int] = {}  # append times of last records, by base, of segments sealed here
        self._sealed_mark = -1, 0  # a boundary of segments, and the end of the records before it
        super().__init__(path, config, clock=clock, files=files, record_batches=True, runtime=runtime)
        try:
            self._remove_empty_segment()
            self._history = self._read_history()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open_or_create(
        cls, path: Path, config: LogConfig, *, uuid: bytes, clock: Clock | None = None, files: Files | None = None,
        runtime: LogRuntime | None = None,
    ) -> PartitionLog:  # fmt: skip
        """Open the log, or create an empty one if the directory has no log.

        Args:
            path: directory of the log.
            config: settings.
            uuid: identity of the partition's log, 16 bytes, the same for all replicas.
            clock: source of append times; None: the system's clock.
            files: opens and syncs files; None: the operating system's files.
            runtime: provides the threads of the log; None: the log has its own threads.

        Raises:
            NotALogError: the directory holds another log, or other files.
            CorruptionError: a record, or the history of leader epochs, is damaged: copy the log from another replica.
            LockedError: another process has the directory open.
        """
        checkpoint = checkpoints.load(path) if path.exists() else None
        if checkpoint is not None and checkpoint.uuid != uuid:
            raise NotALogError(f"{path}: expected log {uuid.hex()}, found log {checkpoint.uuid.hex()}")
        if checkpoint is None and not (path.exists() and names.segment_bases(path)):
            replica.make(path, files or RealFiles(), uuid=uuid, segment_bytes=config.segment_bytes, start=(0, 0))
        return cls(path, config, clock=clock, files=files, runtime=runtime)

    # ---- positions ------------------------------------------------------------------------------------------

    @property
    def leading_epoch(self) -> LeaderEpoch | None:
        """The epoch in which this replica leads; None: it follows."""
        return self._epoch

    @property
    def history(self) -> History:
        """The starts of the leader epochs in the log, from its records, without epochs that ended before its start."""
        return self._history

    @property
    def start_mark(self) -> LogPosition:
        """The position where the log begins."""
        return LogPosition(self.start_position, self.start)

    @property
    def log_start(self) -> int:
        """Offset before which the records are deleted, although segments may still hold them (`delete_before`)."""
        return max(self._deleted_before, self.start)

    @property
    def end_mark(self) -> LogPosition:
        """The position where the log ends, with records that are not committed."""
        return canonical(marks_of(self)[0], self.segment_bytes)

    @property
    def high_watermark(self) -> LogPosition:
        """The position where readers stop."""
        return canonical(marks_of(self)[2], self.segment_bytes)

    @property
    def ends(self) -> ReplicaEnds:
        """The end of the log and its synced position, at one moment."""
        end, synced, _ = marks_of(self)
        return ReplicaEnds(canonical(end, self.segment_bytes), self._last_record_end(synced))

    @property
    def replica_log(self) -> ReplicaLog:
        """The log as state machines see it."""
        with self._change_lock:
            return ReplicaLog(self._history, self.start_mark, *self.ends, self.log_start)

    def _last_record_end(self, mark: LogPosition) -> LogPosition:
        """Return a position; for the boundary of two segments the end of the records before it.

        A synced segment proves nothing about the next one, with which an epoch may begin.
        """
        position, entry = canonical(mark, self.segment_bytes)
        if position % self.segment_bytes or position <= self.start_position:
            return LogPosition(position, entry)
        known, end = self._sealed_mark
        if known != position:
            end = self._sealed_end(position)
            self._sealed_mark = position, end
        return LogPosition(end, entry)

    def _sealed_end(self, boundary: int) -> int:
        """Return the position behind the last record of the segment that ends at a boundary."""
        held, segment = self.hold_segment(boundary - 1)
        end = segment.base + self._records_end(segment)
        del held
        return end

    def _records_end(self, segment: Segment) -> int:
        """Return the end of the records in a sealed segment, which a newly mapped segment reads from its index."""
        if segment.head_at(segment.end)[0] != _BLANK:
            self.load_index(segment)
        return segment.end

    def epoch_end(self, number: int) -> tuple[LeaderEpoch, LogPosition]:
        """Return the newest epoch up to a number, and its end (Kafka's OffsetForLeaderEpoch).

        Args:
            number: number of the requested epoch.

        Returns:
            The epoch and its end; NO_EPOCH and the start of the log if all epochs of the log are newer.
        """
        with self._change_lock:
            starts = self._history.starts
            at = bisect_right(starts, number, key=lambda start: start.term.number) - 1
            if at < 0:
                return NO_EPOCH, self.start_mark
            return starts[at].term, starts[at + 1].start if at + 1 < len(starts) else self.end_mark

    def mark_of(self, offset: int) -> LogPosition:
        """Return the position of the record of an offset, and the record's first offset. It may be uncommitted.

        Args:
            offset: the offset; the one behind the last record has the end of the log.

        Raises:
            OutOfRangeError: the log does not have the offset.
        """
        with self._change_lock:
            end = self.end_mark
            if offset == end.entry:
                return end
            if not self.start <= offset < end.entry:
                raise OutOfRangeError(f"offset {offset}: the log has {self.start} to {end.entry}")
            if offset < self.end:
                return LogPosition(*self._place_of(offset))
            rows = self._segment_table()
            base, _, _ = rows[bisect_right(rows, offset, key=lambda row: row[1]) - 1]
            for batch in self.read_positions(base, committed=False):
                index = int(batch.entry.searchsorted(offset))
                if index < len(batch):
                    record = batch[index]
                    return LogPosition(record.position, record.entry - record.entry_count + 1)
        raise OutOfRangeError(f"offset {offset}: the log has {self.start} to {self.end_mark.entry}")

    # ---- leader epochs in the log ---------------------------------------------------------------------------

    def _read_history(self) -> History:
        """Return the history of the epochs in the log. Raises CorruptionError.

        Each segment begins with an epoch record. Only the last segment, and those before a segment with another epoch,
        can have more, and are read.
        """
        bases = [base for base, _, _ in self._segment_table()]
        end = self.end_mark.position
        if end <= self.start_position:
            return History()
        fronts = [self._first_epoch_of(base) for base in bases]
        history = History()
        for index, (base, front) in enumerate(zip(bases, fronts, strict=True)):
            if index + 1 < len(bases) and fronts[index + 1] == front:
                history = self._with_epoch(history, front, base + HEADER_BYTES)
            else:
                stop = bases[index + 1] if index + 1 < len(bases) else end
                history = self._with_epochs(history, base, stop)
        return history

    def _first_epoch_of(self, base: int) -> TermStart:
        """Return the epoch record with which a segment begins. It maps the segment only for the call."""
        path = names.segment_path(self.path, base)
        segment = Segment(self._files.open(path, writable=False), str(path), writable=False)
        record = segment.read(HEADER_BYTES, segment.size)
        try:
            front = decode_epoch(record.value) if record.kind > 2 else None
        except InvalidMessageError as error:
            raise CorruptionError(path, base + HEADER_BYTES, "the record of a leader epoch", str(error)) from error
        if front is None:
            raise CorruptionError(path, base + HEADER_BYTES, "the record of a leader epoch", f"kind {record.kind}")
        return front

    def _with_epochs(self, history: History, start: int, stop: int) -> History:
        """Return a history with the epochs whose records lie between two positions."""
        for position, value in self._control_values(start, stop):
            try:
                epoch = decode_epoch(value)
            except InvalidMessageError as error:
                raise CorruptionError(self.path, position, "the record of a leader epoch", str(error)) from error
            if epoch is not None:
                history = self._with_epoch(history, epoch, position)
        return history

    def _control_values(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over (position, value) of the control records between two positions at which records begin."""
        while start < stop:
            held, segment = self.hold_segment(start)
            base, offset = segment.base, max(start - segment.base, HEADER_BYTES)
            extent = stop - base if stop < base + segment.size else self._records_end(segment)
            while offset < extent and (offset := segment.find_control(offset, extent)) >= 0:
                record = segment.read(offset, extent)
                yield base + offset, record.value
                offset += -(-len(record.raw) // 8) * 8
            del held
            start = base + segment.size

    def _with_epoch(self, history: History, epoch: TermStart, position: int) -> History:
        """Return a history with the epoch of a record at a position.

        Raises:
            CorruptionError: the epoch contradicts the history.
        """
        last = history.starts[-1] if history.starts else None
        if last == epoch:
            return history
        grows = last is None or (
            last.term < epoch.term
            and last.start.position < epoch.start.position
            and last.start.entry <= epoch.start.entry
        )
        segment_end = (position // self.segment_bytes + 1) * self.segment_bytes
        if not grows or epoch.start.position >= segment_end:  # compaction moves epoch records within their segment
            raise CorruptionError(
                self.path, position, f"an epoch later than {last} that begins before this position", f"{epoch}"
            )
        return history.begin(*epoch)

    # ---- roles ----------------------------------------------------------------------------------------------

    def lead(self, epoch: LeaderEpoch, *, populate: bool = False) -> ReplicaEnds:
        """Begin to lead: append the control record of an epoch, which begins at the present end.

        The record is not synced, like other appends.

        Args:
            epoch: the epoch, later than all in the log.
            populate: whether pages of a busy log are mapped ahead, so that appends cause no page faults. It dirties the
                pages, so it is for logs that are rarely synced.

        Raises:
            HigherTermError: the log has this epoch, or a later one.
            DiskFullError: the disk is full. The replica follows.
            PoisonedError, ClosedError: the log accepts no appends.
        """
        with self._change_lock:
            self._check_usable()
            if epoch <= self._history.last:
                raise HigherTermError(
                    f"{self.path}: epoch {epoch} cannot begin, the log has {self._history.last}", self._history.last
                )
            start = TermStart(epoch, self.end_mark)
            control = encode_epoch(start)
            try:
                self._begin_leading(epoch, control)
                Appender.append_batch(self, [], control=control)
                self._pool.populates = populate
            except BaseException:
                self.stop_leading()
                raise
            self._history = self._history.begin(*start)
            self.takes_appends = True
            return self.ends

    def _begin_leading(self, epoch: LeaderEpoch, control: bytes) -> None:
        """Change the role to that of a leader, with an active segment."""
        with self._lock:
            self._enter()
            try:
                self._forget_partial()
                segment, _, entry, last_time = self._state
                if segment is None or segment.sealed:
                    self._begin_segment(self._take(entry), entry, last_time)
                    self._publish_end()  # readers of other processes reject a page without an end
                self._set_segment_front(control)
                self._epoch = epoch
                self._received_end = -1  # a leader receives no stream
            finally:
                self._leave()

    def stop_leading(self) -> None:
        """Stop leading: from now on only `append_fetched` appends."""
        with self._change_lock:
            if self._epoch is None or not self.is_usable:
                return
            self._enter()
            try:
                self._set_segment_front(None)
                self._epoch, self.takes_appends = None, False
                self._pool.populates = False  # a follower does not write to mapped pages
                self._received_end = self._state[1]
            finally:
                self._leave()

    def _check_usable(self) -> None:
        if not self.is_usable or self._parents is not None:
            self._refuse()

    def _check_leading(self) -> None:
        self._check_usable()
        if self._epoch is None:
            raise ReplicaError(self.path)

    def _check_following(self) -> None:
        self._check_usable()
        if self._epoch is not None:
            raise InvalidArgumentError(
                f"{self.path}: expected a follower, found the leader of {self._epoch}: call stop_leading() first"
            )

    # ---- as leader ------------------------------------------------------------------------------------------

    def append_records(
        self,
        batches: Iterable[ReadableBuffer],
        counts: Iterable[SupportsIndex],
        event_times: Iterable[Time | None] | None = None,
    ) -> AppendedOffsets:
        """Append record batches without decoding them, as leader. Each takes as many offsets as it has records.

        Args:
            batches: record batches, bytes-like.
            counts: number of records of each batch.
            event_times: event time of each batch, or None; None: no event times.

        Returns:
            The offsets of the records, and the end of the log.

        Raises:
            ReplicaError: this replica does not lead. With each of these errors no batch was appended.
            RecordTooLargeError: a batch is larger than a segment.
            WindowFullError: a new segment is required, and the caller is an event loop.
            DiskFullError: the disk is full.
            PoisonedError, ClosedError: the log accepts no appends.
        """
        with self._change_lock:
            self._check_leading()
            offsets, end = Appender.append_record_batches_pending(self, batches, counts, event_times)
            return AppendedOffsets(offsets, self.end_mark if end is None else LogPosition(end, offsets.stop))

    def _append_record_batch(self, batch: ReadableBuffer, count: int, event_time_us: int | None) -> AppendedOffsets:
        """`append_record_batch`, when another thread is at work in the log."""
        with self._change_lock:
            self._check_leading()
            return Appender.append_record_batch_pending(self, batch, count, event_time_us)

    def _append_messages(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[Time | None] | None,
    ) -> AppendedOffsets:
        """`append_messages`, of any form, and when another thread is at work in the log, or its tail has no room."""
        with self._change_lock:
            self._check_leading()
            offsets, end = Appender.append_batch_pending(self, values, keys, event_times, None)
            return AppendedOffsets(offsets, self.end_mark if end is None else LogPosition(end, offsets.stop))

    def roll(self) -> ReplicaEnds:
        """Begin a new segment, as leader, so that the records of the active one can be trimmed.

        Like each segment it begins with the record of the epoch.

        Raises:
            ReplicaError: this replica does not lead.
            DiskFullError: the disk is full. The log is unchanged.
            PoisonedError, ClosedError: the log accepts no appends.
        """
        with self._change_lock:
            self._check_leading()
            start = self._history.starts[-1]
            with self._lock:
                self._enter()
                try:
                    segment, _, entry, last_time = self._state
                    if segment is not None and not segment.sealed and segment.end > HEADER_BYTES:
                        self._roll(segment, entry, last_time)
                finally:
                    self._leave()
            Appender.append_batch(self, [], control=encode_epoch(start))  # publishes the active segment, new or not
            return self.ends

    def _begin_counted(self) -> None:
        """Prepare the active segment for record batches, as leader; a follower's segments are those of its leader."""
        if self._epoch is not None:
            super()._begin_counted()

    def _roll(self, segment: Segment, entry: int, last_time: int) -> None:
        super()._roll(segment, entry, last_time)
        self._last_times[segment.base] = last_time
        self._put_segment_front()

    # ---- fetches --------------------------------------------------------------------------------------------

    def read_frames(
        self, position: LogPosition, max_bytes: int, *, until: LogPosition | None = None, min_one_record: bool = True
    ) -> LogSlice:  # fmt: skip
        """Return the bytes of the records from a position on, which a follower appends at the same position.

        The views pin their segments. A slice ends behind a record, never between the end of a segment and the next
        record.

        Args:
            position: where a record begins, or the end of the log.
            max_bytes: approximate size of the records.
            until: where a record ends, at most the end of the log: the result ends there at the latest; None: the end.
            min_one_record: whether the first record is returned whatever its size.

        Raises:
            OutOfRangeError: no record begins at the position.
            TrimmedError: the record was removed.
            TruncatedError: the log was truncated meanwhile.
            CorruptionError: a segment is damaged.
            ClosedError: the log was closed.
        """
        self.check_open()
        truncations, log_end = self.truncation_count, marks_of(self)[0]
        if until is not None:
            log_end = min(log_end, max(until, position))
        frames: list[tuple[int, ReadableBuffer]] = []
        at, end, size, blank, is_unclear = position.position, position, 0, None, False
        if at > log_end.position:
            raise OutOfRangeError(f"position {at}: the log ends at {log_end.position}")
        while at < log_end.position:
            held, segment = self.hold_segment(at)
            base, offset = segment.base, max(at - segment.base, HEADER_BYTES)
            is_last = log_end.position <= base + segment.size
            extent = log_end.position - base if is_last else self._records_end(segment)
            if not frames and blank is None and not is_last and self._is_at_end(segment, offset, extent, position):
                blank = at, self._blank_at(segment, offset, extent)
                at = base + segment.size
                continue
            if offset < extent or (not frames and blank is None and not is_last):
                if not frames and blank is None:
                    self._check_record_begins(segment, offset, extent, position.entry)
                stop = extent
                if extent - offset > max_bytes - size:
                    stop = segment.whole_records(offset, offset + max(max_bytes - size, 0), extent)
                    if (frames or not min_one_record) and stop - offset > max_bytes - size and not is_unclear:
                        break
                if not is_last:
                    stop, is_unclear = self._pass_moved_epochs(segment, stop, extent)
                if blank is not None:
                    frames.append(blank)
                if at == base:
                    frames.append((base, segment.view(0, STREAM_HEADER_BYTES)))
                frames.append((base + offset, segment.view(offset, stop - offset)))
                size += stop - offset
                entry = log_end.entry if is_last and stop == extent else segment.first_entry_at(stop)
                end = LogPosition(base + stop, entry)
                if (stop < extent or size >= max_bytes) and not is_unclear:
                    break
            if is_last:
                break
            blank = base + extent, segment.view(extent, BLANK_BYTES)
            at = base + segment.size
            del held
        if self.truncation_count != truncations:
            raise TruncatedError(f"the log was cut while it was read from position {position.position} on")
        return LogSlice(position, end, frames)

    def _is_at_end(self, segment: Segment, offset: int, extent: int, position: LogPosition) -> bool:
        """Return whether a follower's log ends behind the last record of a sealed segment. Its copy of the segment may
        end at another position, because it may be compacted less or more."""
        begins = offset < extent and self._record_begins(segment, offset, extent, position.entry)
        return not begins and offset % 8 == 0 and position.entry == segment.head_at(extent)[1]

    def _blank_at(self, segment: Segment, offset: int, extent: int) -> ReadableBuffer:
        """Return the blank that ends a sealed segment, for a copy whose records end at an offset."""
        if offset == extent:
            return segment.view(extent, BLANK_BYTES)
        _, entry, _, time_us, _ = segment.head_at(extent)
        return end_blank(segment, offset, entry - segment.first_entry, time_us)

    def _pass_moved_epochs(self, segment: Segment, stop: int, extent: int) -> tuple[int, bool]:
        """Return the end of a slice whose end shows which epochs it has, and whether the next segment must follow.

        The end of a log shows that by its offset, and by its position if an epoch begins at that offset. Compaction
        moves the record of an epoch before the position where the epoch began.
        """
        while True:
            at = segment.base + stop
            entry = segment.head_at(extent)[1] if stop == extent else segment.first_entry_at(stop)
            if not any(
                start.entry == entry and at <= start.position < segment.base + segment.size
                for _, start in self._history.starts
            ):
                return stop, False
            if stop == extent:
                return stop, True
            stop = segment.whole_records(stop, stop, extent)

    def segment_start(self, position: int) -> LogPosition:
        """Return where the segment of a position begins, and the segment's first offset.

        Args:
            position: the position.

        Raises:
            OutOfRangeError: no segment has the position.
        """
        with self._lock:
            table = self._segment_table()
            row = bisect_right(table, position, key=lambda row: row[0]) - 1
            if row < 0 or position >= table[row][0] + self.segment_bytes:
                raise OutOfRangeError(f"position {position}: no segment has it")
            return LogPosition(*table[row][:2])

    def _record_begins(self, segment: Segment, offset: int, extent: int, entry: int) -> bool:
        """Return whether the record of an offset begins there. Positions of followers and files are not trusted."""
        begins = extent - offset >= BLANK_BYTES and segment.stamp_at(offset) == segment.stamp
        return begins and segment.first_entry_at(offset) == entry

    def _check_record_begins(self, segment: Segment, offset: int, extent: int, entry: int) -> None:
        if not self._record_begins(segment, offset, extent, entry):
            raise OutOfRangeError(f"position {segment.base + offset}: no record of offset {entry} begins there")

    # ---- as follower ----------------------------------------------------------------------------------------

    def append_fetched(self, records: LogSlice) -> ReplicaEnds:
        """Append records of the leader's log, byte for byte. It verifies CRC, stamp and offset of each record.

        Args:
            records: result of the leader's `read_frames` at the end of this log.

        Raises:
            StreamError: the records do not continue this log, or are damaged. The intact ones before stay appended.
            InvalidArgumentError: this replica leads.
            DiskFullError: the disk has no space for another segment.
            PoisonedError, ClosedError: the log accepts no appends.
        """
        with self._change_lock:
            self._check_following()
            end = self.end_mark
            if records.position != end:
                raise StreamError(
                    records.position.position, f"records from {end} on", f"some from {records.position} on"
                )
            received = end.position
            try:
                self._pool.prepare(sum(not at % self.segment_bytes for at, _ in records.frames))
                for at, body in records.frames:
                    received = max(received, at + len(memoryview(body)))
                    self.append_replicated(at, [body])
                if records.frames or records.end != end:
                    self._check_end(records.end)
            except ReplogError:
                self._discard_refused(end, received)
                raise
            self._history = self._with_epochs(self._history, end.position, records.end.position)
            return self.ends

    def _check_end(self, end: LogPosition) -> None:
        reached = self.end_mark
        if reached != end or self._received_end != marks_of(self)[0].position:
            raise StreamError(reached.position, f"whole records up to {end}", f"some up to {reached}")

    def _discard_refused(self, before: LogPosition, received: int) -> None:
        """End the log behind the last intact record of a refused slice, and zero the bytes behind it: once another
        leader's record has overwritten some of them, the rest might be read as a record."""
        if not self.is_usable:
            return
        self._enter()
        try:
            segment, end, _, _ = self._state
            if segment is not None and not segment.sealed:
                stop = min(received - segment.base, segment.size)
                recovery.zero(self._files, segment, end - segment.base, stop)
                self._files.sync(segment.fileno())
                self._received_end = end
        except OSError as error:
            raise self._poison("append", error) from error
        finally:
            self._leave()
        self._remove_empty_segment()
        self._history = self._with_epochs(self._history, before.position, self.end_mark.position)

    def _remove_empty_segment(self) -> None:
        """Remove a last segment without records, so that the log ends behind its last record.

        A process that stopped between the blank that ends a segment and the first record of the next one leaves a log
        whose end no other replica's log can have.
        """
        position, entry = self.received_mark
        if position % self.segment_bytes or position <= self.start_position:
            return
        self._sync()
        with self._lock:
            self._enter()
            try:
                self._sync_sealed()
                self._cut_off(self._sealed_end(position), entry)
            except OSError as error:
                raise self._poison("truncation", error) from error
            finally:
                self._leave()

    def truncate_to(self, to: LogPosition) -> ReplicaEnds:
        """Truncate the log to a position, durably and crash-safe. The removed records are kept in `aside/`.

        Args:
            to: where a record begins.

        Raises:
            OutOfRangeError: no record begins at the position.
            InvalidArgumentError: this replica leads.
            PoisonedError: the disk failed.
        """
        self.cut(*to)
        return self.ends

    def cut(self, position: int, entry: int) -> None:
        """Truncate the log, as `truncate_to` does.

        Args:
            position: position where a record begins.
            entry: offset of that record.
        """
        with self._change_lock:
            self._check_following()
            self._last_times.clear()  # another leader's segments may have the same bases
            super().cut(position, entry)
            self._remove_empty_segment()
            self._deleted_before = min(self._deleted_before, self.end_mark.entry)
            self._history = self._history.up_to(self.end_mark)

    def reset(self, start: LogPosition, history: History) -> ReplicaEnds:
        """Remove all records, durably: the log then begins and ends at another position.

        After a crash the log is unchanged, or empty, perhaps at its former start. The removed records are kept in
        `aside/`.

        Args:
            start: where a segment of the leader's log begins.
            history: history of the leader epochs up to that position.

        Raises:
            OutOfRangeError: no segment can begin at the position.
            InvalidArgumentError: this replica leads.
            PoisonedError: the disk failed.
        """
        if start.position < 0 or start.position % self.segment_bytes or start.entry < 0:
            raise OutOfRangeError(f"position {start.position}: no segment of {self.segment_bytes} bytes begins there")
        with self._change_lock:
            self.cut(*self.start_mark)
            with self._lock:
                self._enter()
                try:
                    self._checkpoint.begin_at(start=start.position, entry=start.entry)
                    self._pool.place(start.position, self._checkpoint.last.epoch)
                    self._restart_at(start)
                except OSError as error:
                    raise self._poison("reset", error) from error
                finally:
                    self._leave()
            self._history = self._without_trimmed(history.up_to(start))
            return self.ends

    def _restart_at(self, start: LogPosition) -> None:
        self._first, self._commit, self._received_end = (start.position, start.entry), start, start.position
        self._sealed_mark = -1, 0
        stand_at(self, *start)
        self._set_synced(*start)
        self._publish(is_open=True)
        self.tail.note_truncation()

    def resume(self) -> LogPosition:
        """Discard the bytes of an incomplete record; return the end of the log."""
        with self._change_lock:
            self._check_following()
            return super().resume()

    # ---- high watermark, retention and compaction -----------------------------------------------------------

    @property
    def stored_high_watermark(self) -> StoredHighWatermark | None:
        """The high watermark for the broker's file; None: no record is known to be committed."""
        with self._change_lock:
            starts, mark = self._history.starts, self.high_watermark
            at = bisect_left(starts, mark.position, key=lambda start: start.start.position) - 1
            log_start = self._deleted_before if self._deleted_before > self.start else 0
            return None if at < 0 else StoredHighWatermark(self.uuid, starts[at], mark, min(log_start, mark.entry))

    def restore_high_watermark(self, stored: StoredHighWatermark | None) -> LogPosition:
        """Let readers read up to a stored high watermark, if it is valid in this log.

        Args:
            stored: high watermark from the broker's file, which may be old, or belong to a former log; None: none is
                stored.

        Returns:
            The present high watermark; the start of the log if no record is known to be committed.

        Raises:
            CorruptionError: a segment is damaged.
        """
        with self._change_lock:
            mark = None if stored is None else stored.valid_in(self.uuid, self._history, self.end_mark)
            if mark is not None and mark > self.high_watermark and self._is_boundary(mark):
                self.show_high_watermark(mark)
            if mark is not None and stored is not None:
                self.delete_before(min(stored.log_start, mark.entry))
            return self.high_watermark

    def _is_boundary(self, mark: LogPosition) -> bool:
        """Return whether a record begins at a position, or the log ends there."""
        end = self.end_mark
        if mark == end:
            return True
        held, segment = self.hold_segment(mark.position)
        base, offset = segment.base, max(mark.position - segment.base, HEADER_BYTES)
        is_last = end.position <= base + segment.size
        extent = end.position - base if is_last else self._records_end(segment)
        del held
        if offset == extent:  # the next record begins the next segment
            return any(row[:2] == (base + self.segment_bytes, mark.entry) for row in self._segment_table())
        return self._record_begins(segment, offset, extent, mark.entry)

    def trim_to(self, start: LogPosition) -> LogPosition:
        """Remove the segments whose records all lie before a position and the high watermark, and that no cursor holds.

        Args:
            start: start of the leader's log.

        Returns:
            The new start of the log.

        Raises:
            CorruptionError: the file of a cursor is damaged.
            PoisonedError: the disk failed while segments were removed.
            ClosedError: the log was closed.
        """
        with self._change_lock:
            self.check_open()
            with log_cursor.retention_held(self.path, log_cursor.HELD_S), self._lock:
                floor = min(start.position, self.retention_floor, self._held_by_cursors(), self.tail.visible)
                table, count = self._segment_table(), 0
                while count + 1 < len(table) and table[count + 1][0] <= floor:
                    count += 1
                self._remove_front(count)
                for base, _, _ in table[:count]:
                    self._last_times.pop(base, None)
            self._history = self._without_trimmed(self._history)
            return self.start_mark

    def delete_before(self, offset: int) -> int:
        """Delete the records before an offset: requests do not see them any more (KIP-107).

        `trim_to` removes their segments. The caller stores the offset (`stored_high_watermark`).

        Args:
            offset: first offset that stays, at most the high watermark. A lower one than before has no effect.

        Returns:
            The new first offset of the log.
        """
        with self._change_lock:
            self._deleted_before = max(self._deleted_before, min(offset, self.end_mark.entry))
            return self.log_start

    def is_roll_due(self, config: RetentionConfig, now_us: int) -> bool:
        """Return whether the active segment has records, and the first one exceeds `segment_ms` or the retention.

        The age is that of the first record, because each leader's control record is as new as its epoch.

        Args:
            config: retention of the topic.
            now_us: the time, microseconds since 1970-01-01 UTC.

        Raises:
            DiskError: the segment cannot be opened.
        """
        with self._lock:
            table = self._segment_table()
            if not table or self._state[2] <= table[-1][1]:
                return False
            limits_ms = [limit for limit in (config.segment_ms, config.retention_ms) if limit is not None]
            if not limits_ms:
                return config.retention_bytes == 0
            age_us = now_us - self._first_time(len(table) - 1, now_us)
            return age_us >= min(limits_ms) * 1000 or config.retention_bytes == 0

    def expired_before(self, config: RetentionConfig, now_us: int, floor: LogPosition) -> LogPosition:
        """Return the start of the log without the segments that exceed the retention. The active segment stays.

        The age of a record is counted from its append time.

        Args:
            config: retention of the topic.
            now_us: the time, microseconds since 1970-01-01 UTC.
            floor: position from which on all records stay.

        Raises:
            DiskError: a segment cannot be opened.
        """
        with self._lock:
            table, end, row = self._segment_table(), self._state[1], 0
            while row + 1 < len(table) and table[row + 1][0] <= floor.position:
                is_old = config.retention_ms is not None and (
                    now_us - self._last_time_of(row, now_us) >= config.retention_ms * 1000
                )
                is_much = config.retention_bytes is not None and end - table[row + 1][0] >= config.retention_bytes
                if not is_old and not is_much:
                    break
                row += 1
            return LogPosition(*table[row][:2]) if table else self.start_mark

    def cleanable_segments(self, floor: LogPosition, now_us: int) -> list[CleanableSegment]:
        """Return the sealed and synced segments before a position, ascending.

        Args:
            floor: position that limits the ends of the segments.
            now_us: the time, microseconds since 1970-01-01 UTC.

        Raises:
            DiskError: a segment cannot be opened.
        """
        with self._lock:
            table, limit = self._segment_table(), min(floor.position, self._checkpoint.last.position)
            rows = (row for row in range(len(table) - 1) if table[row + 1][0] <= limit)
            return [
                CleanableSegment(
                    table[row][0], table[row][1], table[row + 1][1],
                    self._first_time(row, now_us), self._last_time_of(row, now_us),
                )
                for row in rows
            ]  # fmt: skip

    def map_sealed(self, base: int) -> Segment:
        """Return a new mapping of the present file of a sealed segment, with its index.

        Args:
            base: position of the segment.

        Raises:
            CorruptionError: the segment is damaged.
            OSError: the file cannot be opened.
        """
        path = names.segment_path(self.path, base)
        segment = Segment(self._files.open(path, writable=False), str(path), writable=False)
        indexes.load_or_build(self.path, segment)
        segment.close_file()
        return segment

    def read_sealed(self, base: int, offset: int, max_bytes: int) -> bytes:
        """Return bytes of the present file of a sealed segment.

        Args:
            base: position of the segment.
            offset: offset of the first byte in the file.
            max_bytes: most bytes of the result.

        Returns:
            The bytes; b"" behind the end of the file.

        Raises:
            OSError: the file cannot be read; FileNotFoundError: the segment does not exist.
        """
        fd = self._files.open(names.segment_path(self.path, base), writable=False)
        try:
            data = memoryview(bytearray(max_bytes))
            return bytes(data[: self._files.read(fd, data, offset)])
        finally:
            os.close(fd)

    def replace_sealed(self, base: int, fresh: Path) -> None:
        """Replace the file of a sealed segment by a synced one; see `CommitLog.replace_sealed`.

        Args:
            base: position of the segment.
            fresh: path of the new file.
        """
        super().replace_sealed(base, fresh)
        self._sealed_mark = -1, 0

    def _last_time_of(self, row: int, now_us: int) -> int:
        """Return the append time of a sealed segment's last record; a later one if it was not sealed by this object."""
        known = self._last_times.get(self._segment_table()[row][0])
        return self._first_time(row + 1, now_us) if known is None else known

    def _without_trimmed(self, history: History) -> History:
        """Return a history without the epochs that ended before the log's start."""
        starts = history.starts
        first = bisect_right(starts, self.start_position, key=lambda start: start.start.position)
        return History(starts[max(first - 1, 0) :])

    def promote(self) -> NoReturn:
        """Raise ReplicaError: a partition's log cannot become an independent log."""
        raise ReplicaError(self.path)

    def __repr__(self) -> str:
        role = "follower" if self._epoch is None else f"leader of {self._epoch}"
        state = "closed" if self._error or self._parents else f"{role}, offsets {self.start} to {self.end}"
        return f"<PartitionLog {str(self.path)!r} {state}>"
