"""PartitionLog: the log of a partition's replica, whichever role the replica has."""

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

_BLANK = 5  # record kind


class LogSlice(NamedTuple):
    """Whole records of a log, as they lie there.

    Attributes:
        position: where they begin.
        end: where they end; `position` if there are none.
        frames: (position of the first byte, bytes), each within one segment: records, the blank that ends a segment,
            the header of the next one. See FORMAT.md, "Log stream".
    """

    position: LogPosition
    end: LogPosition
    frames: Sequence[tuple[int, ReadableBuffer]]


class CleanableSegment(NamedTuple):
    """A segment that takes no more records.

    Attributes:
        base: position where it begins.
        first: offset of its first record.
        end: offset behind its last record.
        first_time_us: when its first record was appended, microseconds since 1970-01-01 UTC.
        last_time_us: when its last record was appended, or later.
    """

    base: int
    first: int
    end: int
    first_time_us: int
    last_time_us: int


class ReplicaEnds(NamedTuple):
    """How far a log is.

    Attributes:
        end: where it ends.
        synced: up to where it is on the disk.
    """

    end: LogPosition
    synced: LogPosition


class PartitionLog(MirrorLog, PartitionLogBase):
    """The log of a partition's replica: its own while it leads, a byte-identical copy of its leader's while it follows.

    It follows when it is opened. `lead` and `stop_leading` change the role in place: readers, their positions and the
    writer's lock stay. Readers, also in other processes, stop at the high watermark (`show_high_watermark`) in both
    roles. Its directory keeps the file `replica`, so opening never believes what records claim to be synced: another
    broker's disk may be meant.

    Offsets are entry numbers. A record batch is one record that takes as many as it has records. The log always ends
    behind a record: a segment that was begun, and has none, is given up, because the machines compare logs by where
    their records end.

    Methods return the ends that the machines want to know. An append returns when it is in the page cache; call
    `sync` before more is promised. Any thread may call any method; those that change the log wait for each other.

    Args:
        path: directory of the log, which `create` or `open_or_create` has made.
        config: settings, see `pyreplog.open`. Retention is the leader's business (`trim_to`): leave its limits None.
        runtime: whose threads the log uses, for brokers with many partitions. None: it has threads of its own. The
            first segment is made by the first record, and with a runtime none is made ahead before one is full.

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
        self._epoch: LeaderEpoch | None = None  # in which it leads
        self._history = History()
        self._changing = threading.RLock()  # held by who changes the log; before `_lock`
        self._deleted_before = 0
        self._last_times: dict[int, int] = {}  # of segments that were sealed here, by base; of those that are there
        self._sealed_mark = -1, 0  # a boundary of segments, and where the records in front of it end
        super().__init__(path, config, clock=clock, files=files, record_batches=True, runtime=runtime)
        try:
            self._give_up_empty_segment()
            self._history = self._read_history()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open_or_create(
        cls, path: Path, config: LogConfig, *, uuid: bytes, clock: Clock | None = None, files: Files | None = None,
        runtime: LogRuntime | None = None,
    ) -> PartitionLog:  # fmt: skip
        """Open the log, or create it empty if there is none yet.

        Args:
            path: its directory.
            config: settings.
            uuid: identity of the partition's log, 16 bytes, the same for all replicas.
            clock: gives the append times; None: the system's clock.
            files: the disk; None: the system's.
            runtime: whose threads the log uses; None: it has threads of its own.

        Raises:
            NotALogError: the directory holds another log, or something else.
            CorruptionError: a record, or the history of leader epochs, is damaged: take the log from another replica.
            LockedError: another process has the directory open.
        """
        checkpoint = checkpoints.load(path) if path.exists() else None
        if checkpoint is not None and checkpoint.uuid != uuid:
            raise NotALogError(f"{path}: expected log {uuid.hex()}, found log {checkpoint.uuid.hex()}")
        if checkpoint is None and not (path.exists() and names.segment_bases(path)):
            replica.make(path, files or RealFiles(), uuid=uuid, segment_bytes=config.segment_bytes, start=(0, 0))
        return cls(path, config, clock=clock, files=files, runtime=runtime)

    # ---- where it stands ------------------------------------------------------------------------------------

    @property
    def leading_epoch(self) -> LeaderEpoch | None:
        """The epoch in which this replica leads; None: it follows."""
        return self._epoch

    @property
    def history(self) -> History:
        """Where each leader epoch began, as the records say; without epochs that ended before the log's start."""
        return self._history

    @property
    def start_mark(self) -> LogPosition:
        """Where the log begins."""
        return LogPosition(self.start_position, self.start)

    @property
    def log_start(self) -> int:
        """Offset before which the records are deleted, though a segment may hold them (`delete_before`)."""
        return max(self._deleted_before, self.start)

    @property
    def end_mark(self) -> LogPosition:
        """Where the log ends, whether that is committed or not."""
        return canonical(marks_of(self)[0], self.segment_bytes)

    @property
    def high_watermark(self) -> LogPosition:
        """Where readers stop."""
        return canonical(marks_of(self)[2], self.segment_bytes)

    @property
    def ends(self) -> ReplicaEnds:
        """How far the log is, at one moment."""
        end, synced, _ = marks_of(self)
        return ReplicaEnds(canonical(end, self.segment_bytes), self._behind_a_record(synced))

    @property
    def replica_log(self) -> ReplicaLog:
        """The log as the machines want to know it."""
        with self._changing:
            return ReplicaLog(self._history, self.start_mark, *self.ends, self.log_start)

    def _behind_a_record(self, mark: LogPosition) -> LogPosition:
        """A mark at the boundary of two segments as the end of the records in front of it.

        That all of a segment is on the disk proves nothing of the next one, where an epoch may begin.
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
        """Position behind the last record of the segment that ends at a boundary."""
        held, segment = self.hold_segment(boundary - 1)
        end = segment.base + self._records_end(segment)
        del held
        return end

    def _records_end(self, segment: Segment) -> int:
        """Offset behind the last record of a sealed segment; one that was just mapped learns it from its index."""
        if segment.head_at(segment.end)[0] != _BLANK:
            self.load_index(segment)
        return segment.end

    def epoch_end(self, number: int) -> tuple[LeaderEpoch, LogPosition]:
        """Return the newest epoch up to a number, and where it ends (Kafka's OffsetForLeaderEpoch).

        Args:
            number: of the epoch that is asked for.

        Returns:
            The epoch and its end; NO_EPOCH and the start of the log if the log has no epoch so old.
        """
        with self._changing:
            starts = self._history.starts
            at = bisect_right(starts, number, key=lambda start: start.term.number) - 1
            if at < 0:
                return NO_EPOCH, self.start_mark
            return starts[at].term, starts[at + 1].start if at + 1 < len(starts) else self.end_mark

    def mark_of(self, offset: int) -> LogPosition:
        """Return where the record of an offset begins, committed or not, and the record's first offset.

        Args:
            offset: the offset; that behind the last one gives the end of the log.

        Raises:
            OutOfRangeError: the log does not hold it.
        """
        with self._changing:
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
        """Each segment begins with an epoch record. Where the next one begins with another epoch, and in the last one,
        there are more."""
        bases = [base for base, _, _ in self._segment_table()]
        end = self.end_mark.position
        if end <= self.start_position:
            return History()
        fronts = [self._front_of(base) for base in bases]
        history = History()
        for index, (base, front) in enumerate(zip(bases, fronts, strict=True)):
            if index + 1 < len(bases) and fronts[index + 1] == front:
                history = self._noted(history, front, base + HEADER_BYTES)
            else:
                stop = bases[index + 1] if index + 1 < len(bases) else end
                history = self._with_epochs(history, base, stop)
        return history

    def _front_of(self, base: int) -> TermStart:
        """The epoch record with which a segment begins. The segment does not stay mapped."""
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
                history = self._noted(history, epoch, position)
        return history

    def _control_values(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """(position, value) of the control records between two positions, where records begin."""
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

    def _noted(self, history: History, epoch: TermStart, position: int) -> History:
        """Return a history with the epoch of a record at a position.

        Raises:
            CorruptionError: it cannot follow on the others.
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
        if not grows or epoch.start.position >= segment_end:  # compaction moves a record to the front of its segment
            raise CorruptionError(self.path, position, f"an epoch behind {last}, begun before here", f"{epoch}")
        return history.begin(*epoch)

    # ---- roles ----------------------------------------------------------------------------------------------

    def lead(self, epoch: LeaderEpoch, *, populate: bool = False) -> ReplicaEnds:
        """Lead from here on: append the control record of an epoch, which begins at the present end.

        The record is as durable as any append: a leader that counts what is synced syncs.

        Args:
            epoch: the epoch, later than all in the log.
            populate: map the segments of a busy log ahead, so that appends take no page faults: for one that is not
                synced often, because the pages are dirty then.

        Raises:
            HigherTermError: the log has this epoch, or a later one.
            DiskFullError: there is no room. The replica follows.
            PoisonedError, ClosedError: the log takes no appends.
        """
        with self._changing:
            self._check_usable()
            if epoch <= self._history.last:
                raise HigherTermError(
                    f"{self.path}: epoch {epoch} cannot begin, the log has {self._history.last}", self._history.last
                )
            start = TermStart(epoch, self.end_mark)
            control = encode_epoch(start)
            try:
                self._take_over(epoch, control)
                Appender.append_batch(self, [], control=control)
                self._pool.populates = populate
            except BaseException:
                self.stop_leading()
                raise
            self._history = self._history.begin(*start)
            self._takes_appends = True
            return self.ends

    def _take_over(self, epoch: LeaderEpoch, control: bytes) -> None:
        with self._lock:
            self._enter()
            try:
                self._forget_partial()
                segment, _, entry, last_time = self._state
                if segment is None or segment.sealed:
                    self._begin_segment(self._take(entry), entry, last_time)
                    self._publish_end()  # a page that shows nothing is not believed by readers of other processes
                self._set_segment_front(control)
                self._epoch = epoch
                self._received_end = -1  # no stream goes on here
            finally:
                self._leave()

    def stop_leading(self) -> None:
        """Follow from here on: nothing is appended but what `append_fetched` brings."""
        with self._changing:
            if self._epoch is None or not self.is_usable:
                return
            self._enter()
            try:
                self._set_segment_front(None)
                self._epoch, self._takes_appends = None, False
                self._pool.populates = False  # a follower does not write through the map
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
        """Append record batches, which the log does not look into; each takes as many offsets as it has records.

        Args:
            batches: bytes-like.
            counts: how many records each has.
            event_times: as many times, or None; None: no event times.

        Raises:
            ReplicaError: this replica does not lead. Nothing was appended, as with all others.
            RecordTooLargeError: a batch does not fit into a segment.
            WindowFullError: a segment has to be begun, and the caller is an event loop.
            DiskFullError: there is no room.
            PoisonedError, ClosedError: the log takes no appends.
        """
        with self._changing:
            self._check_leading()
            offsets, end = Appender.append_record_batches_pending(self, batches, counts, event_times)
            return AppendedOffsets(offsets, self.end_mark if end is None else LogPosition(end, offsets.stop))

    def _append_record_batch(self, batch: ReadableBuffer, count: int, event_time_us: int | None) -> AppendedOffsets:
        """`append_record_batch`, when another thread is at work in the log."""
        with self._changing:
            self._check_leading()
            return Appender.append_record_batch_pending(self, batch, count, event_time_us)

    def _append_messages(
        self,
        values: Iterable[ReadableBuffer],
        keys: Iterable[ReadableBuffer | None] | None,
        event_times: Iterable[Time | None] | None,
    ) -> AppendedOffsets:
        """`append_messages`, of any form, and when another thread is at work in the log, or its tail has no room."""
        with self._changing:
            self._check_leading()
            offsets, end = Appender.append_batch_pending(self, values, keys, event_times, None)
            return AppendedOffsets(offsets, self.end_mark if end is None else LogPosition(end, offsets.stop))

    def roll(self) -> ReplicaEnds:
        """Begin another segment, so that the records of the active one can be trimmed. It begins with the record of the
        epoch, as all segments do.

        Raises:
            ReplicaError: this replica does not lead.
            DiskFullError: there is no room. The log is as it was.
            PoisonedError, ClosedError: the log takes no appends.
        """
        with self._changing:
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
            Appender.append_batch(self, [], control=encode_epoch(start))  # shows the segment, also when it is not new
            return self.ends

    def _begin_counted(self) -> None:
        """A follower begins segments as its leader does."""
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
        """Return the records from a position on, as they lie, for a follower that appends them at the same place.

        The views pin their segments. A slice ends behind a record, never between a segment's end and the next record.

        Args:
            position: where a record begins, or the end of the log.
            max_bytes: bytes of records, roughly.
            until: where a record ends, at most the end of the log: nothing from there on is given; None: the end.
            min_one_record: one record is given however long it is.

        Raises:
            OutOfRangeError: no record begins there.
            TrimmedError: it was removed.
            TruncatedError: the log was cut meanwhile.
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
            if not frames and blank is None and not is_last and self._is_end_of(segment, offset, extent, position):
                blank = at, self._blank_at(segment, offset, extent)
                at = base + segment.size
                continue
            if offset < extent or (not frames and blank is None and not is_last):
                if not frames and blank is None:
                    self._check_begins(segment, offset, extent, position.entry)
                stop = extent
                if extent - offset > max_bytes - size:
                    stop = segment.whole_records(offset, offset + max(max_bytes - size, 0), extent)
                    if (frames or not min_one_record) and stop - offset > max_bytes - size and not is_unclear:
                        break
                if not is_last:
                    stop, is_unclear = self._behind_moved_epochs(segment, stop, extent)
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

    def _is_end_of(self, segment: Segment, offset: int, extent: int, position: LogPosition) -> bool:
        """Whether a follower's log ends behind the last record of a sealed segment: where that is here, or, as its copy
        may not be compacted as this one is, somewhere else."""
        begins = offset < extent and self._begins(segment, offset, extent, position.entry)
        return not begins and offset % 8 == 0 and position.entry == segment.head_at(extent)[1]

    def _blank_at(self, segment: Segment, offset: int, extent: int) -> ReadableBuffer:
        """The blank of a sealed segment for a copy whose records end at an offset."""
        if offset == extent:
            return segment.view(extent, BLANK_BYTES)
        _, entry, _, time_us, _ = segment.head_at(extent)
        return end_blank(segment, offset, entry - segment.first_entry, time_us)

    def _behind_moved_epochs(self, segment: Segment, stop: int, extent: int) -> tuple[int, bool]:
        """Where a slice ends so that its end tells which epochs it has, and whether it must go on to the next segment.

        The end of a log tells that by its offset, and by its position where an epoch begins at that offset: compaction
        moves the record of an epoch in front of the position where the epoch began.
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
        """Return where the segment begins that has a position, and its first offset.

        Raises:
            OutOfRangeError: no segment has it.
        """
        with self._lock:
            table = self._segment_table()
            row = bisect_right(table, position, key=lambda row: row[0]) - 1
            if row < 0 or position >= table[row][0] + self.segment_bytes:
                raise OutOfRangeError(f"position {position}: no segment has it")
            return LogPosition(*table[row][:2])

    def _begins(self, segment: Segment, offset: int, extent: int, entry: int) -> bool:
        """Whether the record of an offset begins there. A follower may say anything, and so may a file."""
        begins = extent - offset >= BLANK_BYTES and segment.stamp_at(offset) == segment.stamp
        return begins and segment.first_entry_at(offset) == entry

    def _check_begins(self, segment: Segment, offset: int, extent: int, entry: int) -> None:
        if not self._begins(segment, offset, extent, entry):
            raise OutOfRangeError(f"position {segment.base + offset}: no record of offset {entry} begins there")

    # ---- as follower ----------------------------------------------------------------------------------------

    def append_fetched(self, records: LogSlice) -> ReplicaEnds:
        """Append records of the leader's log, byte for byte. CRC, stamp and offset of each are verified.

        Args:
            records: what the leader's `read_frames` gave for this log's end.

        Raises:
            StreamError: they do not continue this log, or are damaged. The good ones in front count.
            InvalidArgumentError: this replica leads.
            DiskFullError: there is no room for another segment.
            PoisonedError, ClosedError: the log takes no appends.
        """
        with self._changing:
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
                self._go_back(end, received)
                raise
            self._history = self._with_epochs(self._history, end.position, records.end.position)
            return self.ends

    def _check_end(self, end: LogPosition) -> None:
        reached = self.end_mark
        if reached != end or self._received_end != marks_of(self)[0].position:
            raise StreamError(reached.position, f"whole records up to {end}", f"some up to {reached}")

    def _go_back(self, before: LogPosition, received: int) -> None:
        """Behind a refused slice: end behind the last good record, and leave nothing there that could be taken for one
        when another leader's record has covered a part of it."""
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
        self._give_up_empty_segment()
        self._history = self._with_epochs(self._history, before.position, self.end_mark.position)

    def _give_up_empty_segment(self) -> None:
        """End the log behind its last record.

        A process that was stopped between the blank that ends a segment and the first record of the next one leaves a
        log that ends between the two, as the log of no other replica does.
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
        """Cut the log to a position, durably and crash-safe. What is cut is kept in `aside/`.

        Args:
            to: where a record begins.

        Raises:
            OutOfRangeError: no record begins there.
            InvalidArgumentError: this replica leads.
            PoisonedError: the disk failed.
        """
        self.cut(*to)
        return self.ends

    def cut(self, position: int, entry: int) -> None:
        """Cut the log: `truncate_to`."""
        with self._changing:
            self._check_following()
            self._last_times.clear()  # another leader's segments may take their places
            super().cut(position, entry)
            self._give_up_empty_segment()
            self._deleted_before = min(self._deleted_before, self.end_mark.entry)
            self._history = self._history.up_to(self.end_mark)

    def reset(self, start: LogPosition, history: History) -> ReplicaEnds:
        """Remove all records: the log begins and ends at another place, durably. After a crash it is as it was, or
        empty, perhaps at its former start. What is removed is kept in `aside/`.

        Args:
            start: where a segment of the leader's log begins.
            history: of the leader epochs up to there.

        Raises:
            OutOfRangeError: no segment can begin there.
            InvalidArgumentError: this replica leads.
            PoisonedError: the disk failed.
        """
        if start.position < 0 or start.position % self.segment_bytes or start.entry < 0:
            raise OutOfRangeError(f"position {start.position}: no segment of {self.segment_bytes} bytes begins there")
        with self._changing:
            self.cut(*self.start_mark)
            with self._lock:
                self._enter()
                try:
                    self._checkpoint.begin_at(start=start.position, entry=start.entry)
                    self._pool.place(start.position, self._checkpoint.last.epoch)
                    self._begin_at(start)
                except OSError as error:
                    raise self._poison("reset", error) from error
                finally:
                    self._leave()
            self._history = self._without_trimmed(history.up_to(start))
            return self.ends

    def _begin_at(self, start: LogPosition) -> None:
        self._first, self._commit, self._received_end = (start.position, start.entry), start, start.position
        self._sealed_mark = -1, 0
        stand_at(self, *start)
        self._set_synced(*start)
        self._publish(is_open=True)
        self.tail.note_truncation()

    def resume(self) -> LogPosition:
        """Forget the bytes of an incomplete record; return where the log ends."""
        with self._changing:
            self._check_following()
            return super().resume()

    # ---- both -----------------------------------------------------------------------------------------------

    def show_high_watermark(self, high_watermark: LogPosition) -> None:
        """Let readers see all before the high watermark, as far as the log goes. It never goes back. Any thread."""
        position, entry = high_watermark
        if not self.show_reached(position, entry):
            self.show(*min(high_watermark, self.end_mark))

    @property
    def stored_high_watermark(self) -> StoredHighWatermark | None:
        """The high watermark, to be kept in the broker's file; None: nothing is committed, as far as is known."""
        with self._changing:
            starts, mark = self._history.starts, self.high_watermark
            at = bisect_left(starts, mark.position, key=lambda start: start.start.position) - 1
            log_start = self._deleted_before if self._deleted_before > self.start else 0
            return None if at < 0 else StoredHighWatermark(self.uuid, starts[at], mark, min(log_start, mark.entry))

    def restore_high_watermark(self, stored: StoredHighWatermark | None) -> LogPosition:
        """Let readers see what was committed before the replica started, as far as the log has it.

        Args:
            stored: from the broker's file. It may be of an earlier moment, and of a log that is gone.

        Returns:
            The high watermark from now on; the start of the log if nothing is known.

        Raises:
            CorruptionError: a segment is damaged.
        """
        with self._changing:
            mark = None if stored is None else stored.valid_in(self.uuid, self._history, self.end_mark)
            if mark is not None and mark > self.high_watermark and self._is_boundary(mark):
                self.show_high_watermark(mark)
            if mark is not None and stored is not None:
                self.delete_before(min(stored.log_start, mark.entry))
            return self.high_watermark

    def _is_boundary(self, mark: LogPosition) -> bool:
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
        return self._begins(segment, offset, extent, mark.entry)

    def trim_to(self, start: LogPosition) -> LogPosition:
        """Remove the segments that lie wholly before a position, below the high watermark, and that no cursor holds.

        Args:
            start: where the leader's log begins.

        Returns:
            Where the log begins now.

        Raises:
            CorruptionError: the file of a cursor is damaged.
            PoisonedError: the disk failed while segments were removed.
            ClosedError: the log was closed.
        """
        with self._changing:
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
        """Delete the records before an offset, which is below the high watermark: requests see them no more (KIP-107).

        Their segments go with `trim_to`. The caller stores it (`stored_high_watermark`).

        Args:
            offset: the first one that stays. It never goes back.

        Returns:
            The first offset of the log now.
        """
        with self._changing:
            self._deleted_before = max(self._deleted_before, min(offset, self.end_mark.entry))
            return self.log_start

    def is_roll_due(self, config: RetentionConfig, now_us: int) -> bool:
        """Return whether the active segment has records, and the first one is too old to stay or have more behind it.

        The first one counts: each leader's control record is as new as its epoch.

        Args:
            config: of the topic.
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
        """Return where the log begins when the segments are gone that are too old or too many; the active one stays.

        The time of a record is that of its append.

        Args:
            config: of the topic.
            now_us: the time, microseconds since 1970-01-01 UTC.
            floor: nothing goes from here on.

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
        """Return the segments before a position that take no more records and are on disk, the first one first.

        Args:
            floor: no segment that ends behind it is given.
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
        """Map the file of a sealed segment once more, as it is now, with its index.

        Args:
            base: position of the segment.

        Raises:
            CorruptionError: it is damaged.
            OSError: it cannot be opened.
        """
        path = names.segment_path(self.path, base)
        segment = Segment(self._files.open(path, writable=False), str(path), writable=False)
        indexes.load_or_build(self.path, segment)
        segment.close_file()
        return segment

    def read_sealed(self, base: int, offset: int, max_bytes: int) -> bytes:
        """Return bytes of the file of a sealed segment, as it is now; b"" behind its end.

        Args:
            base: position of the segment.
            offset: of the first byte in the file.
            max_bytes: how many.

        Raises:
            OSError: it cannot be read; FileNotFoundError: there is no such segment.
        """
        fd = self._files.open(names.segment_path(self.path, base), writable=False)
        try:
            data = memoryview(bytearray(max_bytes))
            return bytes(data[: self._files.read(fd, data, offset)])
        finally:
            os.close(fd)

    def replace_sealed(self, base: int, fresh: Path) -> None:
        """Put a synced file in the place of a sealed segment; see `CommitLog.replace_sealed`."""
        super().replace_sealed(base, fresh)
        self._sealed_mark = -1, 0

    def _last_time_of(self, row: int, now_us: int) -> int:
        """When the last record of a sealed segment was appended; later, if another process sealed it, or the leader."""
        known = self._last_times.get(self._segment_table()[row][0])
        return self._first_time(row + 1, now_us) if known is None else known

    def _without_trimmed(self, history: History) -> History:
        """Return a history without the epochs that ended before the log's start."""
        starts = history.starts
        first = bisect_right(starts, self.start_position, key=lambda start: start.start.position)
        return History(starts[max(first - 1, 0) :])

    def promote(self) -> NoReturn:
        """Raise ReplicaError: a partition's log stays one of many copies, also while it leads."""
        raise ReplicaError(self.path)

    def __repr__(self) -> str:
        role = "follower" if self._epoch is None else f"leader of {self._epoch}"
        state = "closed" if self._error or self._parents else f"{role}, offsets {self.start} to {self.end}"
        return f"<PartitionLog {str(self.path)!r} {state}>"
