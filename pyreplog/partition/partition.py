"""Partition: a replica on this broker. One lock guards its log and the state machine of its role."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from pyreplog._native.kafka.record_batch import ProducedBatch
from pyreplog._native.log.record import Record
from pyreplog._native.machines.named_tuples import make_named
from pyreplog._native.partition.partition_base import PartitionBase
from pyreplog.clock import Clock
from pyreplog.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    InvalidArgumentError,
    InvalidMessageError,
    LockedError,
    OutOfRangeError,
    ReplogError,
    StreamError,
    TruncatedError,
)
from pyreplog.log.files import Files, RealFiles
from pyreplog.partition.config import RetentionConfig, TopicConfig
from pyreplog.partition.protocol.effects import (
    AdvanceLogStart,
    AlterIsr,
    AppendLeaderEpoch,
    AppendRecords,
    FollowingEffect,
    HighWatermarkAdvanced,
    LeadershipLost,
    LeadingEffect,
    LoadState,
    ResetLog,
    SendFetch,
    SendFetchResponse,
    ShowHighWatermark,
    TrimLog,
    TruncateLog,
)
from pyreplog.partition.protocol.epochs import NO_EPOCH, LeaderEpoch, extended
from pyreplog.partition.protocol.error_codes import ACKS_ALL, NO_ERROR, ErrorCode
from pyreplog.partition.protocol.following import FollowingReplica
from pyreplog.partition.protocol.leading import LeadingReplica
from pyreplog.partition.protocol.messages import DivergingEpoch, Fetch, FetchedRecords, FetchRefused, FetchResponse
from pyreplog.partition.protocol.partition_state import Brokers, Member, PartitionState, may_join_isr
from pyreplog.partition.protocol.record_batch import marker_of
from pyreplog.partition.protocol.transactions import NO_SEQUENCE, EndedTransaction, TransactionMarker
from pyreplog.partition.requests import (
    AbortedTransaction,
    ActiveProducer,
    CleanedSegments,
    ConsumerFetch,
    FetchIsolation,
    FetchParams,
    FetchPartitionData,
    PartitionDescription,
    PartitionOffsets,
    PartitionProduceResponse,
    PartitionQuery,
    ProducerSnapshotPiece,
    ReadReplicas,
    SegmentPiece,
)
from pyreplog.partition.role import ReplicaRole
from pyreplog.partition.store.partition_log import LogSlice, PartitionLog
from pyreplog.partition.store.producer_snapshot import ProducerLoss, snapshot_bases
from pyreplog.partition.store.producer_state_manager import ProducerStateManager, newest_snapshot
from pyreplog.partition.store.segment_copy import SegmentCopy, SegmentDigest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.purgatory import Purgatory
from pyreplog.stream.log_position import ORIGIN, LogPosition
from pyreplog.stream.terms import History

if TYPE_CHECKING:
    from pyreplog.partition.store.log_cleaner import CleaningBounds, CleaningResult, DirtySegments, LogCleaner

logger = logging.getLogger(__name__)

_REPLAY_BYTES = 256 << 10
"""Bytes that a follower appends before it replays producers from them: a new leader has to replay no more than that."""
_SEGMENT_PIECE_MAX = 1 << 20  # most bytes of a segment in one response
_UNLIMITED = 1 << 62  # an offset
_NOT_LISTED = CleanedSegments(ErrorCode.OFFSET_NOT_AVAILABLE)
_NO_VERIFICATION = 0  # no transaction has this token
_SNAPSHOT_MAX = 16 << 20  # most bytes of a producer snapshot in a response to a follower
EVENT_TIME_MAX_US = (1 << 63) - 1
"""The latest event time that a record may have, microseconds since 1970-01-01 UTC."""
_PRODUCERS_WAIT_US = 10_000_000  # how long an elected replica waits for other replicas' producer snapshots
_BATCH_KIND = 2  # kind of the records that hold a Kafka record batch

Deferred = list[Callable[[], object]]
"""Calls that are made after the partition's lock is released: they send messages and wake requests (KAFKA-8334)."""


RoleWatcher: TypeAlias = Callable[[TopicPartition, int | None], object]
"""Called after a change of role with the partition, and the number of the epoch in which it leads, or None."""


class PartitionStateStore(Protocol):
    """The keys of partitions in the metadata store. Callbacks may be called at once, on any thread, without locks."""

    def compare_and_set(
        self, partition: TopicPartition, version: int, state: PartitionState, done: Callable[[int | None], object]
    ) -> None:  # fmt: skip
        """Set the key of a partition if it has the expected version.

        Args:
            partition: name of the partition.
            version: expected version.
            state: new value.
            done: called with the new version; 0: the key has another version; None: the outcome is unknown. With None
                it is called after a back-off, because the caller retries at once.
        """
        ...

    def load(self, partition: TopicPartition, done: Callable[[int, PartitionState], object]) -> None:
        """Read the key of a partition, and retry until the read succeeds.

        Args:
            partition: name of the partition.
            done: called with the version and the value.
        """
        ...


class FetchSender(Protocol):
    """Sends the fetches of followers. All methods are called without locks."""

    def send_fetch(self, partition: TopicPartition, leader: str, fetch: Fetch) -> None:
        """Send a fetch, then call `Partition.fetch_answered` with the response, or `fetch_timed_out`.

        After a response with an error both are called: `fetch_timed_out` after a back-off.

        Args:
            partition: name of the partition.
            leader: name of the leader's broker.
            fetch: the fetch.
        """
        ...

    def retry_later(self, partition: TopicPartition) -> None:
        """Call `Partition.follow_again` after a back-off.

        Args:
            partition: name of the partition.
        """
        ...


class PendingAppend(NamedTuple):
    """An append with acks=-1 to one partition that is not known to be committed yet.

    Attributes:
        partition: the partition.
        response: response to the producer once the append is committed.
        role: role of the replica at the append.
        required: end of the records: the append waits until the high watermark reaches it.
    """

    partition: Partition
    response: PartitionProduceResponse
    role: ReplicaRole
    required: LogPosition


AppendResult: TypeAlias = PartitionProduceResponse | PendingAppend
"""The response to an append if its outcome is known; otherwise the pending append."""


class DeletedRecords(NamedTuple):
    """A deletion of records on the leader of a partition.

    Attributes:
        code: NONE, or the error, with which no record was deleted.
        role: role of the replica at the deletion.
        before: offset before which records are deleted.
        message: the error in words.
    """

    code: ErrorCode
    role: ReplicaRole
    before: int = -1
    message: str = ""


class MirroredSegments(NamedTuple):
    """The state of a follower when it begins to mirror the compacted segments of its leader.

    Attributes:
        leader: name of the leader's broker.
        epoch: epoch of the leader.
        role: role of this replica.
        cleaned: offset up to which this log is compacted.
        start: position where this log begins.
    """

    leader: str
    epoch: LeaderEpoch
    role: ReplicaRole
    cleaned: int
    start: int


class SnapshotSearch(NamedTuple):
    """A search of a replica for a producer snapshot of another replica, because its own one is lost.

    Attributes:
        brokers: brokers of the other replicas that are alive, the leader first.
        first: position where this log begins.
        last: position where it ends.
    """

    brokers: tuple[str, ...]
    first: int
    last: int


class NotedFetch(NamedTuple):
    """A follower's fetch that the partition has noted.

    Attributes:
        role: role of the leader at that moment.
        answer: response without records; None: the records are to be read.
        changes: the role's `changes` at that moment, if the fetch has to wait for the next change; None: it is answered
            at once.
    """

    role: ReplicaRole
    answer: FetchResponse | None
    changes: int | None = None


class PartitionRead(NamedTuple):
    """A consumer's read of one partition.

    Attributes:
        data: response to the fetch.
        role: role of the replica at the read.
        start: position where the read began; ORIGIN: the response is an error.
    """

    data: FetchPartitionData
    role: ReplicaRole
    start: LogPosition = ORIGIN


class Partition(PartitionBase):
    """A replica of a partition on this broker.

    Any thread may call any method, but must not hold locks, because a call may complete requests of other threads.
    Methods block only for the log's disk.

    Args:
        partition: name of the partition.
        log: log of the replica; `close` closes it.
        member: this broker.
        config: settings of the topic.
        store: store of the partition's key.
        fetcher: sends the fetches of the replica while it follows.
        purgatory: the purgatory in which requests wait.
        clock: source of time.
        brokers: registrations of brokers.
        high_watermark: the stored high watermark; None: the one up to which the log is read.
        files: opens and syncs files of producer snapshots and of compaction; None: the operating system's files.
        failed: called without locks when the log has failed; the replica is offline from then on.
        request_sync: called without locks when a request waits for a sync, so that the owner calls `sync` soon; None:
            the owner reads `needs_sync`.
        request_snapshot: called, possibly with locks, when the producer state is incomplete, so that the owner searches
            for a snapshot (`ProducerSnapshotFetcher`); None: no other replica is asked.
    """

    __slots__ = (  # more than 30 attributes in a dictionary are read slowly, and an append reads many
        "_brokers", "_cleaned_reports", "_cleaned_segments", "_cleaner", "_elected", "_failed", "_fetcher", "_files",
        "_following", "_is_closed", "_is_leaving_isr", "_leader_snapshot", "_low_watermark_advanced",
        "_low_watermark_awaited", "_replays", "_request_snapshot", "_request_sync", "_role_watcher", "_send_lock",
        "_state", "_store", "_stored_loss", "_unreplayed_from", "_version", "member", "name",
    )  # fmt: skip

    config: TopicConfig
    failure: BaseException | None
    """The error for which the replica is offline; None: it is online."""
    _log: PartitionLog
    _leading: LeadingReplica | None
    _role: ReplicaRole
    _producers: ProducerStateManager | None
    _purgatory: Purgatory
    _clock: Clock
    # what native code makes and recognises
    _no_error, _response_type, _high_watermark_advanced = NO_ERROR, PartitionProduceResponse, HighWatermarkAdvanced

    def __init__(
        self, partition: TopicPartition, log: PartitionLog, member: Member, config: TopicConfig, *,
        store: PartitionStateStore, fetcher: FetchSender, purgatory: Purgatory, clock: Clock, brokers: Brokers,
        high_watermark: LogPosition | None = None, files: Files | None = None,
        failed: Callable[[], object] | None = None, request_sync: Callable[[Partition], object] | None = None,
        request_snapshot: Callable[[Partition], object] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.member, self.config = partition, member, config
        self.failure = None
        self._log, self._store, self._fetcher, self._purgatory = log, store, fetcher, purgatory
        self._clock, self._brokers = clock, brokers
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()  # fetches are sent in the order in which the state machine makes them
        self._leading = None
        known = log.high_watermark if high_watermark is None else high_watermark
        # Fetches of an earlier replica of this process, which may still wait at the leader, have lower numbers.
        self._following = FollowingReplica(member, log.replica_log, known, clock.monotonic_us())
        self._role = ReplicaRole(partition, is_leader=False)
        self._version = 0
        self._state: PartitionState | None = None
        self._files, self._failed = files, failed
        self._request_sync, self._request_snapshot = request_sync, request_snapshot
        self._elected: tuple[LeaderEpoch, int] | None = None  # epoch of which it waits to be leader, and since when
        self._stored_loss: tuple[ProducerLoss | None] | None = None  # loss in the newest snapshot, once it was read
        self._is_closed = False
        self._is_leaving_isr = False  # whether it is just being removed from the ISR
        self._producers = None  # made at the first use: it reads the tail of the log
        self._unreplayed_from = log.end_mark.position  # the end of the opened log, or of a truncation since
        self._leader_snapshot = b""  # producer snapshot of the response that is being applied
        # the highest low watermark that a deletion waits for, and the last one with which deletions were woken
        self._low_watermark_awaited = self._low_watermark_advanced = 0
        self._replays = False  # whether it replays each append as follower, for consumers of committed transactions
        self._role_watcher: RoleWatcher | None = None
        self._cleaner: LogCleaner | None = None  # made at the first use, because it reads a file
        self._cleaned_segments = _NOT_LISTED  # listed in this role, as leader
        self._cleaned_reports: dict[str, tuple[int, int]] = {}  # by broker: incarnation, and offset that it reported

    def __repr__(self) -> str:
        role = "offline" if self.failure is not None else "leader" if self._leading is not None else "follower"
        return f"<Partition {self.name} {role}>"

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether the replica leads."""
        return self._leading is not None

    @property
    def is_in_sync(self) -> bool:
        """Whether the replica is in the ISR of the last state that this broker has read."""
        state = self._state
        return state is not None and self.member in state.isr

    @property
    def leader_epoch(self) -> int | None:
        """Number of the epoch in which the replica leads; None: it does not lead."""
        leading = self._leading
        return None if leading is None else leading.epoch.number

    def watch_role(self, callback: RoleWatcher) -> None:
        """Call `callback` after each change of role, without locks; see `ReplicaManager.watch_roles`."""
        self._role_watcher = callback

    @property
    def needs_sync(self) -> bool:
        """Whether the topic counts only synced records, and the log has records that are not synced (see `sync`)."""
        if not self.config.replicas.requires_sync or self.failure is not None:
            return False
        ends = self._log.ends
        return ends.synced < ends.end

    @property
    def high_watermark(self) -> LogPosition:
        """The high watermark that this replica knows."""
        with self._lock:
            return self._high_watermark()

    def _high_watermark(self) -> LogPosition:
        return self._following.high_watermark if self._leading is None else self._leading.high_watermark

    def latest_offset(self, isolation: FetchIsolation) -> tuple[ErrorCode, int]:
        """Return the latest offset for a consumer (ListOffsets).

        Args:
            isolation: the high watermark, or the last stable offset.

        Returns:
            NONE and the offset, or the error and -1; OFFSET_NOT_AVAILABLE: a new leader does not know it yet.
        """
        with self._lock:
            if self.failure is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR, -1
            if self._leading is None:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            latest = self._leading.latest
            if latest is None:
                return ErrorCode.OFFSET_NOT_AVAILABLE, -1
            if isolation is FetchIsolation.TXN_COMMITTED:
                latest = self._producer_state().transactions.last_stable(latest)
            return NO_ERROR, latest.entry

    def offsets(self, time_us: int | None = None) -> PartitionOffsets:
        """Return the offsets of a partition that this broker leads. With `time_us` it reads the disk.

        Args:
            time_us: time, microseconds since 1970-01-01 UTC: the result has also the offset of the first record that
                was appended at or after it; None: no such offset.
        """
        with self._lock:
            if self.failure is not None:
                return PartitionOffsets(ErrorCode.KAFKA_STORAGE_ERROR)
            if self._leading is None:
                return PartitionOffsets(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            latest = self._leading.latest
            if latest is None:
                return PartitionOffsets(ErrorCode.OFFSET_NOT_AVAILABLE)
            stable, start, end = (
                self._producer_state().transactions.last_stable(latest),
                self._log.log_start,
                self._log.end_mark,
            )
        offsets = PartitionOffsets(NO_ERROR, start, end.entry, latest.entry, stable.entry)
        if time_us is None:
            return offsets
        try:
            return offsets._replace(at_time=min(self._log.entry_at_time(time_us), latest.entry))
        except (ReplogError, OSError):  # the log was trimmed or closed meanwhile
            return PartitionOffsets(ErrorCode.KAFKA_STORAGE_ERROR)

    def describe(self, query: PartitionQuery) -> PartitionDescription:
        """Return the offsets of a partition that this broker leads, and the progress of its followers. Reads the disk.

        Args:
            query: the time and the offsets that are looked up.
        """
        offsets = self.offsets(query.since_us)
        with self._lock:
            leading = self._leading
            followers = () if leading is None else tuple(leading.progress(self._now_us()))
        if offsets.code is not ErrorCode.NONE:
            return PartitionDescription(offsets)
        wanted = [max(offset, offsets.start) for offset in query.offsets]
        times = tuple(-1 if (time_us := self.append_time(each)) is None else time_us for each in wanted)
        return PartitionDescription(offsets, followers, times)

    def append_time(self, offset: int) -> int | None:
        """Return the append time of a committed record. Reads the disk.

        Args:
            offset: offset of the record.

        Returns:
            Microseconds since 1970-01-01 UTC; None: this replica has no such record below its high watermark, or cannot
            read it.
        """
        try:
            for batch in self._log.read(offset, offset + 1, batch_bytes=1):
                return int(batch.timestamp[0])
        except (ReplogError, OSError):  # no such record, or the log is trimmed, closed or damaged
            return None
        return None

    # ---- requests of Kafka's clients ------------------------------------------------------------------------

    def check_leader(self, epoch: int) -> ErrorCode:
        """Return NONE if this replica leads in the epoch that a client knows; otherwise the error.

        Args:
            epoch: number of the epoch; -1: the client knows no epoch.
        """
        with self._lock:
            if self.failure is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            fetch = ConsumerFetch(0, leader_epoch=epoch if epoch >= 0 else None)
            return self._check_consumer(fetch, FetchParams())

    def epoch_end(self, number: int) -> tuple[int, int]:
        """Return the newest epoch up to a number, and the offset behind its last record (OffsetForLeaderEpoch).

        Args:
            number: number of the requested epoch.

        Returns:
            Number and offset; -1, -1: the log has no such epoch, or the number is higher than that of this replica's
            epoch.
        """
        with self._lock:
            newest = self._following.epoch if self._leading is None else self._leading.epoch
        if number > newest.number:
            return -1, -1
        epoch, end = self._log.epoch_end(number)
        return (-1, -1) if epoch == NO_EPOCH else (epoch.number, end.entry)

    def records_from_time(self, time_us: int) -> Iterator[Record]:
        """Iterate over committed records whose event time is a time or later, in the order of their offsets.

        Reads the disk. The event time of a record batch is the largest timestamp in its header.

        Args:
            time_us: microseconds since 1970-01-01 UTC.

        Raises:
            ReplogError: errors of the log.
        """
        for batch in self._log.read_event_times(time_us, EVENT_TIME_MAX_US):
            yield from batch

    def active_producers(self) -> tuple[ErrorCode, list[ActiveProducer]]:
        """Return the producers in the state of a leader's log, ascending by id (DescribeProducers).

        Returns:
            NONE and the producers, or the error and an empty list.
        """
        with self._lock:
            if self.failure is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR, []
            if self._leading is None:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER, []
            known = self._producer_state()
            idempotent, transactional = known.producers.snapshot(), known.transactions.snapshot().producers
        producers = {
            number: ActiveProducer(
                number, entry.epoch, entry.batches[-1].last_sequence if entry.batches else -1, entry.used_us // 1000
            )
            for number, entry in idempotent
        }
        for number, epoch, coordinator_epoch, first in transactional:
            producers[number] = producers.get(number, ActiveProducer(number, epoch))._replace(
                producer_epoch=epoch, coordinator_epoch=-1 if coordinator_epoch is None else coordinator_epoch,
                transaction_start=-1 if first is None else first.entry,
            )  # fmt: skip
        return NO_ERROR, [producers[number] for number in sorted(producers)]

    # ---- requests of this broker's coordinators -------------------------------------------------------------

    def committed_range(self, epoch: int) -> tuple[int, int, int] | None:
        """Return the start of the log, its high watermark and its end, as offsets.

        Args:
            epoch: number of the leader epoch in which the coordinator was loaded.

        Returns:
            The three offsets; None: this replica does not lead in that epoch, or does not know the high watermark yet.
        """
        with self._lock:
            leading = self._leading
            if leading is None or not self._leads_in(epoch) or leading.latest is None:
                return None
            return self._log.start, leading.latest.entry, leading.end.entry

    def committed_batches(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Iterate over committed record batches: the offset of the first record, and the batch. Reads the disk.

        Args:
            start: offset of the first record; see `committed_range`.
            end: offset before which to stop, at most the high watermark.

        Raises:
            ReplogError: errors of the log, which may be trimmed, truncated or closed meanwhile: read again.
        """
        with self._lock:
            first, last = self._position_of(start), self._position_of(end)
        for batch in self._log.read_positions(first.position, last.position):
            for index in (batch.kind == _BATCH_KIND).nonzero()[0].tolist():
                record = batch[index]
                yield record.entry - record.entry_count + 1, bytes(record.value_view)

    # ---- events ---------------------------------------------------------------------------------------------

    def state_changed(self, version: int, state: PartitionState) -> None:
        """Apply a state of the partition's key that was read or watched. Versions may come in any order.

        Args:
            version: version of the key.
            state: value of the key.
        """
        if self.failure is None:
            self._change(lambda deferred: self._apply_state(version, state, deferred))
        elif not self._is_closed:
            with self._lock:
                if version > self._version:
                    self._version, self._state = version, state
            self._leave_isr()

    def brokers_changed(self, brokers: Brokers) -> None:
        """Note the registrations of brokers.

        Args:
            brokers: the registrations, by name of the broker.
        """

        def note(deferred: Deferred) -> None:
            self._brokers = brokers
            if self._leading is not None:
                self._perform(self._leading.brokers_changed(brokers, self._now_us()), deferred)
                self._advance_low_watermark()

        self._change(note)

    def config_changed(self, config: TopicConfig) -> None:
        """Apply new settings of the topic, from the next request on.

        Args:
            config: the settings.

        Raises:
            InvalidArgumentError: `requires_sync` differs, which cannot change.
        """
        if config.replicas.requires_sync != self.config.replicas.requires_sync:
            raise InvalidArgumentError(f"{self.name}: requires_sync: expected {self.config.replicas.requires_sync}")
        self.config = config

    def check_isr(self) -> None:
        """Remove followers from the ISR that lag too much. The owner calls it about twice within `lag_us`."""

        def check(deferred: Deferred) -> None:
            if self._leading is not None:
                self._perform(self._leading.check_isr(self._now_us()), deferred)

        self._change(check)

    def fetch_waited(self, role: ReplicaRole, member: Member, until_us: int) -> None:
        """Note that a fetch of a follower without lag was still waiting for records at a time.

        Args:
            role: role of the leader when the fetch was noted.
            member: the follower.
            until_us: the time, microseconds of the monotonic clock.
        """
        with self._lock:
            if self._leading is not None and self._role is role:
                self._leading.waited(member, until_us)

    def sync(self) -> None:
        """Sync the log, and report the synced position to the state machine, which may commit records by it.

        Appends continue meanwhile. If the sync fails, the replica goes offline.
        """
        try:
            self._log.sync()
        except (ReplogError, OSError) as error:
            failure = error
            self._change(lambda deferred: self._go_offline(failure, deferred))
            return

        def note(deferred: Deferred) -> None:
            if self._leading is not None:
                self._perform(self._leading.appended(*self._log.ends, self._now_us()), deferred)
            else:
                self._perform(self._following.synced(self._log.ends.synced), deferred)

        self._change(note)

    def trim(self, offset: int) -> ErrorCode:
        """Remove the segments, as leader, whose records all lie before an offset and that no cursor holds.

        Args:
            offset: the offset, at most the high watermark.

        Returns:
            NONE, or the error.
        """

        def remove(deferred: Deferred) -> ErrorCode:
            if self._leading is None:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if not 0 <= offset <= self._leading.high_watermark.entry:
                return ErrorCode.OFFSET_OUT_OF_RANGE
            if offset > self._log.start_mark.entry:
                self._trim(self._leading, self._position_of(offset))
            return NO_ERROR

        code = self._change(remove)
        return ErrorCode.KAFKA_STORAGE_ERROR if code is None else code

    def delete_records(self, offset: int) -> DeletedRecords:
        """Delete the records before an offset, as leader (KIP-107), and remove the segments without other records.

        The new start of the log is not durable when the method returns. Followers learn it with their fetches.

        Args:
            offset: first offset that stays, at most the last stable offset, because records of open transactions stay;
                -1: the last stable offset.
        """
        with self._lock:
            role = self._role
        outcome = DeletedRecords(ErrorCode.KAFKA_STORAGE_ERROR, role)

        def delete(deferred: Deferred) -> None:
            nonlocal outcome
            leading, role = self._leading, self._role
            if leading is None:
                outcome = DeletedRecords(ErrorCode.NOT_LEADER_OR_FOLLOWER, role)
                return
            stable = self._producer_state().transactions.last_stable(leading.high_watermark)
            before = stable.entry if offset == -1 else offset
            if not 0 <= before <= stable.entry:
                message = f"offset {offset}: expected at most the last stable offset {stable.entry}"
                outcome = DeletedRecords(ErrorCode.OFFSET_OUT_OF_RANGE, role, message=message)
                return
            if before > self._log.log_start:
                leading.deleted(self._log.delete_before(before))
                role.wake_followers(self._purgatory)
                if before > self._log.start_mark.entry:
                    self._trim(leading, self._position_of(before))
            self._low_watermark_awaited = max(self._low_watermark_awaited, before)
            self._advance_low_watermark()
            outcome = DeletedRecords(NO_ERROR, role, before)

        self._change(delete)
        return outcome

    @property
    def log_start(self) -> int:
        """Offset of the first record that requests see (ListOffsets: the earliest offset)."""
        return self._log.log_start

    def low_watermark(self, role: ReplicaRole) -> int | None:
        """Return the offset before which all live replicas have deleted the records.

        Args:
            role: role of the leader at the deletion.

        Returns:
            The offset; None: the role is over.
        """
        with self._lock:
            return None if self._leading is None or role is not self._role else self._leading.low_watermark

    def _advance_low_watermark(self) -> None:
        """Wake the deletions that wait for followers. Without such deletions it computes no low watermark."""
        if self._leading is not None and self._low_watermark_awaited > self._low_watermark_advanced:
            self._low_watermark_advanced = self._leading.low_watermark
            self._purgatory.advance(self._role.low_watermark_key, self._low_watermark_advanced)

    def _trim(self, leading: LeadingReplica, start: LogPosition) -> None:
        """Remove whole segments before a position, but none with records of an open transaction."""
        try:
            stable = self._producer_state().transactions.last_stable(leading.high_watermark)
            start = self._trim_log(min(start, stable))
        except (DiskError, CorruptionError, LockedError) as error:  # of other files: the log is unchanged
            logger.warning("%s: its segments are removed later: %s", self.name, error)
            return
        leading.trimmed(start)
        self._role.wake_followers(self._purgatory)

    def apply_retention(self) -> bool:
        """Remove the segments, as leader, that exceed the retention of the topic. Followers adopt the log's start.

        Returns:
            Whether it can remove more once followers have fetched all records: call it again soon.
        """
        is_waiting = False

        def apply(deferred: Deferred) -> None:
            nonlocal is_waiting
            config, leading, log = self.config.retention, self._leading, self._log
            if leading is None or config == RetentionConfig():
                return
            now_us = self._clock.now_us()
            try:
                if log.is_roll_due(config, now_us):
                    ends = log.roll()
                    self._perform(leading.appended(*ends, self._now_us()), deferred)
                    self._advance_marks()
                stable = self._producer_state().transactions.last_stable(leading.high_watermark)
                start = log.expired_before(config, now_us, stable)
                if start > log.start_mark:
                    self._trim(leading, start)
                is_whole = stable == leading.high_watermark  # False: an open transaction may last long
                is_waiting = is_whole and log.expired_before(config, now_us, leading.end) > start
            except DiskError as error:  # the log is unchanged
                logger.warning("%s: retention is tried again later: %s", self.name, error)

        self._change(apply)
        return is_waiting

    # ---- compaction -----------------------------------------------------------------------------------------

    def dirty_segments(self) -> DirtySegments | None:
        """Return how much of the log is dirty; None: this replica does not lead, or its topic is not compacted.

        Raises:
            ReplogError, OSError: a segment cannot be read.
        """
        config = self.config.compaction
        bounds = None if config is None else self._cleaning_bounds()
        if config is None or bounds is None:
            return None
        with self._lock:
            cleaner = self._log_cleaner()
        return cleaner.dirty(bounds, config, self._clock.now_us())

    def clean(self, map_bytes: int) -> CleaningResult | None:
        """Compact the log, as leader. Appends and fetches continue meanwhile. One thread at a time calls it.

        Args:
            map_bytes: memory for the map of keys, bytes.

        Returns:
            The result; None: this replica does not lead, or its topic is not compacted.

        Raises:
            ReplogError, OSError: see `LogCleaner.clean`.
        """
        config = self.config.compaction
        bounds = None if config is None else self._cleaning_bounds()
        if config is None or bounds is None:
            return None
        with self._lock:
            cleaner = self._log_cleaner()
        return cleaner.clean(bounds, config, self._clock.now_us(), map_bytes)

    def _log_cleaner(self) -> LogCleaner:
        from pyreplog.partition.store.log_cleaner import LogCleaner  # only compacted topics need it

        if self._cleaner is None:
            self._cleaner = LogCleaner(self._log, self._files if self._files is not None else RealFiles())
        return self._cleaner

    def _cleaning_bounds(self) -> CleaningBounds | None:
        """Return the bounds of a compaction; None: this replica does not lead."""
        from pyreplog.partition.store.log_cleaner import CleaningBounds

        with self._lock:
            leading, state = self._leading, self._state
            if leading is None or state is None or self.failure is not None:
                return None
            known = self._producer_state()
            stable = known.transactions.last_stable(leading.high_watermark)
            return CleaningBounds(
                stable,
                tuple(known.transactions.aborted_since(LogPosition(0, 0))),
                {number: entry.batches[-1].last_offset for number, entry in known.producers.snapshot()},
                min([_UNLIMITED, *(self._cleaned_to(name) for name in state.replicas if name != self.member.broker)]),
            )

    def _cleaned_to(self, name: str) -> int:
        """Return the offset up to which a replica's log is compacted, as its present incarnation has reported."""
        incarnation, cleaned = self._cleaned_reports.get(name, (0, 0))
        registration = self._brokers.get(name)
        return cleaned if registration is not None and registration.incarnation == incarnation else 0

    def refresh_cleaned_segments(self) -> None:
        """List the compacted segments, as leader, for the requests of followers.

        First it publishes the new files of compacted segments whose former files no reader uses any more. The cleaner's
        thread calls it again and again, because a reader may use a former file for long.

        Raises:
            ReplogError, OSError: a segment cannot be read.
        """
        if self._cleaner is not None:
            self._cleaner.release_replaced()
        bounds = None if self.config.compaction is None else self._cleaning_bounds()
        if bounds is None:
            return
        with self._lock:
            role, cleaner, state = self._role, self._log_cleaner(), self._state
        cleaned = cleaner.cleaned
        if state is None or len(state.replicas) == 1 or not cleaned:
            return
        digests = cleaner.digests(bounds.stable, self._clock.now_us(), cleaned)
        with self._lock:
            if self._role is role:
                self._cleaned_segments = CleanedSegments(ErrorCode.NONE, cleaned, [*digests.values()])

    def _check_epoch(self, epoch: LeaderEpoch) -> ErrorCode:
        if self.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._leading is None or self._leading.epoch != epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def cleaned_segments(self, member: Member, epoch: LeaderEpoch, cleaned: int) -> CleanedSegments:
        """Return the compacted segments, as leader, and note how far a follower's log is compacted.

        Args:
            member: the follower.
            epoch: epoch in which it follows this leader.
            cleaned: offset up to which its log is compacted.
        """
        with self._lock:
            if (code := self._check_epoch(epoch)) is not ErrorCode.NONE:
                return CleanedSegments(code)
            incarnation, _ = self._cleaned_reports.get(member.broker, (0, 0))
            if member.incarnation >= incarnation:
                self._cleaned_reports[member.broker] = member.incarnation, cleaned
            return self._cleaned_segments

    def read_segment(self, epoch: LeaderEpoch, base: int, offset: int, max_bytes: int) -> SegmentPiece:
        """Return bytes of a compacted segment, as leader. Reads the disk.

        Args:
            epoch: epoch in which the follower follows this leader.
            base: position where the segment begins.
            offset: offset of the first byte in the segment.
            max_bytes: most bytes of the result, which has at most a mebibyte.
        """
        with self._lock:
            if (code := self._check_epoch(epoch)) is not ErrorCode.NONE:
                return SegmentPiece(code)
            digest = next((each for each in self._cleaned_segments.segments if each.base == base), None)
        if digest is None or not 0 <= offset < digest.size:
            return SegmentPiece(ErrorCode.OFFSET_OUT_OF_RANGE)
        try:
            size = min(max_bytes, digest.size - offset, _SEGMENT_PIECE_MAX)
            return SegmentPiece(ErrorCode.NONE, self._log.read_sealed(base, offset, size))
        except FileNotFoundError:  # the segment was trimmed
            return SegmentPiece(ErrorCode.OFFSET_OUT_OF_RANGE)
        except OSError as error:
            logger.warning("%s: the segment at %d cannot be read: %s", self.name, base, error)
            return SegmentPiece(ErrorCode.KAFKA_STORAGE_ERROR)

    def begin_mirroring(self) -> MirroredSegments | None:
        """Begin to mirror the leader's compacted segments. The cleaner's thread calls it.

        Returns:
            The state of this replica; None: it does not follow, or the topic is not compacted.
        """
        with self._lock:
            following = self._following
            is_following = self._leading is None and self.failure is None and following.leader
            if self.config.compaction is None or not is_following:
                return None
            cleaner = self._log_cleaner()
            cleaner.begin()
            start = self._log.start_position
            return MirroredSegments(following.leader, following.epoch, self._role, cleaner.cleaned, start)

    def segment_digests(self, before: int) -> Mapping[int, SegmentDigest]:
        """Return the digests of committed closed segments, by base. The cleaner's thread calls it.

        It reads the segments that are new since the last call.

        Args:
            before: offset before which the segments end.

        Raises:
            ReplogError, OSError: a segment cannot be read.
        """
        with self._lock:
            cleaner, floor = self._log_cleaner(), self._high_watermark()
        return cleaner.digests(floor, self._clock.now_us(), before)

    def begin_segment_copy(self, digest: SegmentDigest) -> SegmentCopy:
        """Begin the copy of a segment of the leader. Errors are those of `SegmentCopy`.

        Args:
            digest: the leader's digest of the segment.
        """
        with self._lock:
            return self._log_cleaner().begin_copy(digest)

    def take_over_segment(self, mirrored: MirroredSegments, copy: SegmentCopy) -> bool:
        """Replace a segment by a finished copy, if the role is the same and all records of the segment are committed.

        Args:
            mirrored: the result of `begin_mirroring`.
            copy: the copy.

        Returns:
            Whether the segment was replaced.

        Raises:
            ReplogError, OSError: see `CommitLog.replace_sealed`.
        """
        end = copy.digest.base + self._log.segment_bytes
        with self._lock:
            if self._role is not mirrored.role or self.failure is not None:
                return False
            if self._following.high_watermark.position < end:
                return False
            if self._producers is not None and self._producers.replayed.position < end:
                self._replay()
            self._log_cleaner().take_over(copy)
            return True

    def end_mirroring(self, mirrored: MirroredSegments, cleaned: int) -> bool:
        """Note that this replica has all compacted segments of its leader, if the role is the same.

        Args:
            mirrored: the result of `begin_mirroring`.
            cleaned: offset up to which the log is compacted now.

        Returns:
            Whether the role is the same.

        Raises:
            OSError: the disk failed.
        """
        with self._lock:
            if self._role is not mirrored.role or self.failure is not None:
                return False
            self._log_cleaner().note_cleaned(cleaned)
            return True

    def _sync_soon(self, deferred: Deferred) -> None:
        if self._request_sync is not None and self.config.replicas.requires_sync:
            deferred.append(partial(self._request_sync, self))

    def expire_producers(self, before_us: int) -> None:
        """Forget producers that were last used before a time, but none with an open transaction.

        Args:
            before_us: the time, microseconds since 1970-01-01 UTC.
        """
        with self._lock:
            if self._producers is not None:
                self._producers.expire(before_us)
                return
            stored = None if self._stored_loss is None else self._stored_loss[0]
            if stored is not None and stored.accepted_us < before_us:
                self._stored_loss = (None,)

    def write_producer_snapshots(self) -> None:
        """Write durable producer snapshots for the segments that were begun since the last call. Appends continue."""
        producers = self._producers
        if producers is not None and producers.has_unwritten:
            producers.write_snapshots()

    @property
    def producer_count(self) -> int:
        """Number of idempotent producers in the state of the log; a follower's state lacks its last appends."""
        with self._lock:
            return 0 if self._producers is None else len(self._producers.producers)

    def _read_failed(self, error: BaseException) -> None:
        """Go offline after a damaged record if another replica is in sync; otherwise keep serving intact records."""
        if isinstance(error, CorruptionError):
            with self._lock:
                others = None if self._state is None else self._state.without(self.member.broker)
            if others is not None:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Take the replica offline, because its disk has failed.

        Args:
            error: the failure.
        """
        self._change(lambda deferred: self._go_offline(error, deferred))

    def close(self) -> None:
        """Close the log, after the role has ended and all waiting requests are answered."""
        self._is_closed = True
        self._change(lambda deferred: self._go_offline(ClosedError(f"{self.name} was closed"), deferred))
        with self._send_lock:
            pass  # waits for a fetch that is being sent: the owner calls the fetcher's `forget` next
        self.write_producer_snapshots()
        if self._producers is not None:
            self._producers.close()
        self._log.close()

    def _now_us(self) -> int:
        return self._clock.monotonic_us()

    def _change(self, act: Callable[[Deferred], ErrorCode | None]) -> ErrorCode | None:
        """Call `act` under the lock, unless the replica is offline, and handle errors of the log."""
        deferred: Deferred = []
        result = None
        try:
            with self._lock:
                try:
                    if self.failure is None:
                        result = act(deferred)
                except DiskError as error:
                    self._handle_disk_error(error, deferred)
                except (ReplogError, OSError) as error:
                    self._go_offline(error, deferred)
        finally:
            self._run_deferred(deferred)
        return result

    def _run_deferred(self, deferred: Deferred) -> None:
        """Send messages and complete requests, after the lock is released."""
        for call in deferred:
            try:
                call()
            except Exception:  # the other messages are sent: requests wait for them
                logger.exception("%s: a message of this replica was not sent", self.name)
        self._purgatory.drain()

    def _go_offline(self, error: BaseException, deferred: Deferred) -> None:
        if self.failure is not None:
            return
        if not self._is_closed:
            logger.error("%s: the log failed, this replica is offline: %s", self.name, error)
            deferred.append(self._leave_isr)
            if self._failed is not None:
                deferred.append(self._failed)
        self.failure = error
        self._leading = None
        self._following.stop()
        self._begin_role(deferred, is_leader=False)

    def _handle_disk_error(self, error: DiskError, deferred: Deferred) -> None:
        """Handle an error of the disk that left the log unchanged: leave the ISR, and as follower retry."""
        logger.warning("%s: the disk refused a change: %s", self.name, error)
        deferred.append(self._leave_isr)
        if self._leading is None:
            self._restart_follower(deferred)

    def _leave_isr(self) -> None:
        """Leave ISR, ELR and leadership, so that no produce waits for this replica. The caller holds no lock.

        The replica joins the ISR again once it has fetched the records that it lacks. If no other replica has all
        committed records, it does not leave.
        """
        with self._lock:
            version, after = self._version, None if self._state is None else self._state.without(self.member.broker)
            if after is None or self._is_leaving_isr:
                return
            self._is_leaving_isr = True
        logger.warning("%s: broker %s leaves the ISR", self.name, self.member.broker)

        def done(result: int | None) -> None:
            with self._lock:
                self._is_leaving_isr = False
            if result:
                self.state_changed(result, after)
            elif result == 0:
                self._store.load(self.name, self.state_changed)
            else:
                self._leave_isr()

        self._store.compare_and_set(self.name, version, after, done)

    def _restart_follower(self, deferred: Deferred) -> None:
        """Make a new state machine after an effect that was not carried out, and fetch again after a back-off."""
        self._following = self._new_follower(self._following.high_watermark)
        deferred.append(partial(self._fetcher.retry_later, self.name))

    def _new_follower(self, high_watermark: LogPosition) -> FollowingReplica:
        """Return a new state machine. It continues the numbers of fetches, so that late responses are ignored."""
        return FollowingReplica(self.member, self._log.replica_log, high_watermark, self._following.fetch_number)

    def _begin_role(self, deferred: Deferred, *, is_leader: bool) -> None:
        """Begin a role, and wake the requests that wait in the former one."""
        before, self._role = self._role, ReplicaRole(self.name, is_leader=is_leader)
        self._low_watermark_awaited = self._low_watermark_advanced = 0
        self._cleaned_segments, self._cleaned_reports = _NOT_LISTED, {}
        before.is_over = True
        deferred.append(partial(before.end, self._purgatory))
        if self._role_watcher is not None:
            deferred.append(self._notify_role_watcher)

    def _notify_role_watcher(self) -> None:
        if self._role_watcher is not None:
            self._role_watcher(self.name, self.leader_epoch)

    # ---- roles ----------------------------------------------------------------------------------------------

    def _apply_state(self, version: int, state: PartitionState, deferred: Deferred) -> None:
        """Apply a state of the partition's key, unless a newer one is known."""
        if version <= self._version:
            return
        self._version, self._state = version, state
        if self._leading is not None:
            self._perform(self._leading.state_changed(version, state, self._now_us()), deferred)
            self._advance_low_watermark()
        if self._leading is None:
            self._become_leader_or_follower(version, state, deferred)

    def _become_leader_or_follower(self, version: int, state: PartitionState, deferred: Deferred) -> None:
        """Lead, follow, resign or stop, according to a state."""
        name = self.member.broker
        if state.leader != name:
            if state.leader and name in state.replicas:
                self._make_follower(state.leader, state.epoch, deferred)
            else:
                self._following.stop()
        elif state.leading_member != self.member or state.epoch <= self._log.history.last:
            # The log has the epoch: an earlier process led in it, and knew of changes and acknowledgements.
            self._following.stop()
            deferred.append(partial(self._resign, version, state))
        elif self._may_lead(state):
            self._make_leader(version, state, deferred)
        else:
            self._following.stop()

    def _make_follower(self, leader: str, epoch: LeaderEpoch, deferred: Deferred) -> None:
        effects = self._following.follow(leader, epoch)
        if effects:
            self._begin_role(deferred, is_leader=False)
            self._advance_marks()
        if self._producers is None and self._log.start_position and not snapshot_bases(self._log.path):
            self._producer_state()  # requests a snapshot, before this replica is elected
        self._perform(effects, deferred)

    def _make_leader(self, version: int, state: PartitionState, deferred: Deferred) -> None:
        self._following.stop()
        self._replay()
        self._leading = leading = LeadingReplica(
            self.member, version, state, self._log.replica_log, self._following.high_watermark, self.config.replicas,
            self._brokers, self._now_us(),
        )  # fmt: skip
        try:
            self._perform(leading.begin(), deferred)
        except DiskError as error:  # the log is intact, so the replica follows
            logger.warning("%s: this broker cannot lead: %s", self.name, error)
            self._step_down(leading, deferred)
            deferred.append(self._leave_isr)
            deferred.append(partial(self._fetcher.retry_later, self.name))
            return
        self._replay()  # the record of the epoch, which would take the first append to the slow path
        self._begin_role(deferred, is_leader=True)
        self._advance_marks()

    def _step_down(self, leading: LeadingReplica, deferred: Deferred) -> None:
        """End the leadership: the replica follows, without a leader as yet."""
        self._leading = None
        self._log.stop_leading()
        self._following = self._new_follower(leading.high_watermark)
        self._begin_role(deferred, is_leader=False)
        self._advance_marks()

    def _resign(self, version: int, state: PartitionState) -> None:
        """Store a state without a leader, so that the controller elects one. The caller holds no lock."""

        def done(result: int | None) -> None:
            if result is None and self._version == version:
                self._resign(version, state)
            elif not result:
                self._store.load(self.name, self.state_changed)

        self._store.compare_and_set(self.name, version, state.resigned(), done)

    # ---- effects --------------------------------------------------------------------------------------------

    def _perform_one(self, effect: LeadingEffect | FollowingEffect, deferred: Deferred) -> FetchResponse | None:
        log, leading, following = self._log, self._leading, self._following
        match effect:
            case SendFetchResponse(_, response):
                return response
            case AppendLeaderEpoch(epoch) if leading is not None:
                log.lead(epoch, populate=not self.config.replicas.requires_sync)
                self._perform(leading.appended(*log.ends, self._now_us()), deferred)
            case AlterIsr(version, state) if leading is not None:
                deferred.append(partial(self._alter_isr, leading, version, state))
            case LoadState():
                deferred.append(partial(self._store.load, self.name, self.state_changed))
            case LeadershipLost() if leading is not None:
                self._step_down(leading, deferred)
            case SendFetch(leader, fetch):
                deferred.append(partial(self._send_fetch, following, leader, fetch))
            case AppendRecords(fetched):
                self._append_fetched(fetched, deferred)
            case TruncateLog(to):
                self._log_cleaner().forget_from(to.entry)
                log.truncate_to(to)
                self._truncated(deferred)
            case ResetLog(start, history):
                self._log_cleaner().forget_from(0)
                self._reset_log(start, history)
                self._truncated(deferred)
            case ShowHighWatermark(high_watermark):
                log.show_high_watermark(high_watermark)
                self._advance_marks()
            case TrimLog(start):
                following.trimmed(self._trim_log(start))
            case AdvanceLogStart(offset):
                log.delete_before(offset)
        return None

    def _send_fetch(self, following: FollowingReplica, leader: str, fetch: Fetch) -> None:
        """Send a fetch, unless another thread has sent a later one: the fetcher would replace the later one by it."""
        with self._send_lock:
            if self._following is following and following.fetch_number == fetch.number:
                self._fetcher.send_fetch(self.name, leader, fetch)

    def _alter_isr(self, leading: LeadingReplica, version: int, state: PartitionState) -> None:
        """Store a state with another ISR. The caller holds no lock."""

        def done(result: int | None) -> None:
            self._change(lambda deferred: self._isr_altered(leading, state, result, deferred))

        self._store.compare_and_set(self.name, version, state, done)

    def _isr_altered(
        self, leading: LeadingReplica, state: PartitionState, result: int | None, deferred: Deferred
    ) -> None:
        if self._leading is not leading:
            return
        if result is None:
            self._perform(leading.alter_unknown(), deferred)
        elif not result:
            self._perform(leading.conflicted(), deferred)
        else:
            if result > self._version:
                self._version, self._state = result, state
            self._perform(leading.altered(result, self._now_us()), deferred)

    def _truncated(self, deferred: Deferred) -> None:
        """Report a truncated or reset log to the state machine, and begin a role: positions have decreased."""
        log = self._log.replica_log
        if self._producers is not None:
            self._producers.truncated()
            self._request_lost_snapshot(self._producers)
        self._unreplayed_from = min(self._unreplayed_from, log.end.position)
        self._perform(self._following.truncated(log.start, log.end, log.synced), deferred)
        self._begin_role(deferred, is_leader=False)
        self._advance_marks()

    def _append_fetched(self, fetched: FetchedRecords, deferred: Deferred) -> None:
        """Append fetched records. If the log then differs from the state machine's expectation, make a new one.

        A deposed leader may send records of the next leader, if its log was truncated while the fetch was answered.
        """
        log, following, records = self._log, self._following, fetched.records
        history = extended(following.log.history, fetched.starts)
        try:
            if not isinstance(records, LogSlice):
                raise StreamError(fetched.position.position, "records of a log", type(records).__name__)
            ends = log.append_fetched(records)
            is_same = ends.end == fetched.end and log.history.last == history.last
        except StreamError as error:
            logger.warning("%s: records of the leader were refused: %s", self.name, error)
            is_same = False
        if is_same:
            self._perform(following.appended(*log.ends), deferred)
            self._sync_soon(deferred)
            if self._replays or ends.end.position - self._replayed_until() >= _REPLAY_BYTES:
                self._replay()
            return
        self._restart_follower(deferred)

    # ---- marks ----------------------------------------------------------------------------------------------

    def _advance_follower_marks(self) -> None:
        mark = self._following.high_watermark
        self._role.advance(self._purgatory, FetchIsolation.HIGH_WATERMARK, mark)
        self._role.advance(self._purgatory, FetchIsolation.TXN_COMMITTED, self._last_stable(mark))

    def _last_stable(self, high_watermark: LogPosition) -> LogPosition:
        """Return the last stable offset; of a follower that does not replay transactions the high watermark."""
        if self._leading is None and not self._replays:
            return high_watermark
        return self._producer_state().transactions.last_stable(high_watermark)

    # ---- producers ------------------------------------------------------------------------------------------

    def _producer_state(self) -> ProducerStateManager:
        """Return the producers and transactions of the log; those of a follower are as old as its last replay."""
        if self._producers is None:
            self._producers = ProducerStateManager(self._log, self._files)
            self._request_lost_snapshot(self._producers)
        return self._producers

    def _replayed_until(self) -> int:
        """Return the position up to which producers are replayed, or `_unreplayed_from` before the first replay."""
        return self._unreplayed_from if self._producers is None else self._producers.replayed.position

    def _request_lost_snapshot(self, producers: ProducerStateManager) -> None:
        """Search for a snapshot at other replicas if this one has lost its own. Until it has one it does not lead."""
        if not producers.is_complete and self._request_snapshot is not None:
            logger.warning(
                "%s: the producer snapshot at offset %d is lost; other replicas are asked for theirs",
                self.name, self._log.start,
            )  # fmt: skip
            self._request_snapshot(self)

    def _accept_lost_snapshot(self, producers: ProducerStateManager) -> None:
        """Go on without the producers of the removed records."""
        producers.accept_loss(self._clock.now_us())
        self._warn_of_loss(producers)

    def _warn_of_loss(self, producers: ProducerStateManager) -> None:
        loss = producers.loss
        logger.warning(
            "%s: producers of the records before offset %d are not known, and no other replica has a snapshot of them: "
            "a batch that is sent again may be stored twice; %d producers of later records are known",
            self.name, self._log.start if loss is None else loss.before, len(producers.producers),
        )  # fmt: skip

    def _may_lead(self, state: PartitionState) -> bool:
        """Return whether an elected replica begins to lead: its producer state is complete, or no replica can help."""
        producers = self._producer_state()
        if producers.is_complete:
            return True
        if self._request_snapshot is None or {*state.replicas} == {self.member.broker}:
            self._accept_lost_snapshot(producers)
            return True
        if self._elected is None or self._elected[0] != state.epoch:
            self._elected = state.epoch, self._now_us()
            self._request_snapshot(self)
        return False

    # ---- producer snapshots ---------------------------------------------------------------------------------

    @property
    def lacks_producers(self) -> bool:
        """Whether the producer state lacks the records that retention removed, because all snapshots are lost. Such a
        replica searches for a snapshot at other replicas, and does not lead meanwhile."""
        producers = self._producers
        return self.failure is None and producers is not None and not producers.is_complete

    @property
    def has_lost_producers(self) -> bool:
        """Whether the producer state lacks producers of removed records, because their snapshots were lost and no other
        replica had one: a batch that is sent again may be stored twice. The snapshots remember it until the missing
        producers would have expired. The first call may read the newest one."""
        producers = self._producers
        if producers is not None:
            return producers.loss is not None
        if self._stored_loss is None:
            try:
                snapshot = newest_snapshot(self._log) if self._log.start_position else None
            except (ReplogError, OSError) as error:
                logger.warning("%s: its producer snapshots cannot be read: %s", self.name, error)
                return False
            self._stored_loss = (None if snapshot is None else snapshot.loss,)
        return self._stored_loss[0] is not None

    @property
    def awaits_producers(self) -> bool:
        """Whether the replica is elected, and leads once the search for a producer snapshot has ended."""
        state = self._state
        return self.lacks_producers and state is not None and state.leader == self.member.broker

    def begin_snapshot_search(self) -> SnapshotSearch | None:
        """Return what to search for; None: the replica lacks no snapshot, or is offline."""
        with self._lock:
            if not self.lacks_producers:
                return None
            brokers = tuple(filter(self.is_alive, self._other_replicas()))
            return SnapshotSearch(brokers, self._log.start_position, self._log.end_mark.position)

    def _other_replicas(self) -> list[str]:
        """Return the brokers of the other replicas, the leader first."""
        names = () if self._state is None else (self._state.leader, *self._state.replicas)
        return [name for name in dict.fromkeys(names) if name not in ("", self.member.broker)]

    def is_alive(self, broker: str) -> bool:
        """Return whether a broker is registered, and its lease has not expired. Without an own registration the known
        ones are no proof, and the broker counts as alive."""
        brokers = self._brokers
        registration = brokers.get(broker)
        return self.member.broker not in brokers or (registration is not None and not registration.is_fenced)

    def producer_snapshot(self, first: int, last: int, offset: int, max_bytes: int) -> ProducerSnapshotPiece:
        """Return bytes of a producer snapshot, for another replica that has lost its own. Reads the disk.

        Args:
            first: lowest position of the segment before which the snapshot lies.
            last: highest position of that segment.
            offset: offset of the first byte in the file; not 0: `first` is the position of an earlier answer.
            max_bytes: most bytes of the result.
        """
        with self._lock:
            if self.failure is not None:
                return ProducerSnapshotPiece(ErrorCode.KAFKA_STORAGE_ERROR)
            producers = self._producer_state()
            try:
                self._replay()
                found = (first, 0) if offset else producers.find_snapshot(first, last)
            except (ReplogError, OSError) as error:
                logger.warning("%s: its producer snapshot cannot be read: %s", self.name, error)
                return ProducerSnapshotPiece(ErrorCode.KAFKA_STORAGE_ERROR)
        if found is None:
            return ProducerSnapshotPiece(ErrorCode.OFFSET_NOT_AVAILABLE)
        try:
            data = producers.read_snapshot(found[0])
        except FileNotFoundError:  # the segment was removed
            return ProducerSnapshotPiece(ErrorCode.OFFSET_OUT_OF_RANGE)
        except OSError as error:
            logger.warning("%s: its producer snapshot cannot be read: %s", self.name, error)
            return ProducerSnapshotPiece(ErrorCode.KAFKA_STORAGE_ERROR)
        piece = data[offset : offset + max_bytes]
        code = NO_ERROR if piece else ErrorCode.OFFSET_OUT_OF_RANGE
        return ProducerSnapshotPiece(code, found[0], len(data), piece)

    def adopt_snapshot(self, data: bytes, broker: str) -> bool:
        """Adopt the producer snapshot of another replica, durably; an elected replica leads then.

        Args:
            data: bytes of the snapshot.
            broker: broker of the other replica, for the log.

        Returns:
            Whether the producer state is complete. False: the snapshot is of another log, or the disk is full.
        """

        def adopt(deferred: Deferred) -> None:
            producers = self._producers
            if producers is None or producers.is_complete:
                return
            if self._try_adopt(producers, data):
                logger.info("%s: the producer snapshot of broker %s is adopted", self.name, broker)
                self._lead_if_elected(deferred)

        self._change(adopt)
        return not self.lacks_producers

    def _try_adopt(self, producers: ProducerStateManager, data: bytes) -> bool:
        """Adopt a snapshot, durably; return False if it is of another log, or the disk is full."""
        try:
            producers.adopt(data)
        except (InvalidMessageError, DiskError) as error:
            logger.warning("%s: a producer snapshot of another replica is not adopted: %s", self.name, error)
            return False
        return True

    def _adopt_incomplete(self, producers: ProducerStateManager, data: bytes) -> bool:
        """Adopt the snapshot of a replica that has lost its own, which may have producers of later records."""
        is_adopted = self._try_adopt(producers, data)
        if is_adopted:
            self._warn_of_loss(producers)
        return is_adopted

    def end_snapshot_search(self, incomplete: bytes, answered: Sequence[str]) -> bool:
        """Note that no replica that answered has a snapshot without a loss.

        An elected replica accepts the loss once all replicas on brokers that are alive have answered. If one of these
        does not answer for 10 s, the elected replica leaves the ISR if another member can lead; otherwise it accepts
        the loss. A follower accepts the loss of another replica once all have answered, and otherwise asks again.

        Args:
            incomplete: a snapshot with a loss; b"": no replica has one.
            answered: brokers of the replicas that answered.

        Returns:
            Whether the producer state is complete.
        """

        def end(deferred: Deferred) -> None:
            state, elected, producers = self._state, self._elected, self._producers
            if producers is None or producers.is_complete or state is None:
                return
            unanswered = [name for name in self._other_replicas() if name not in answered]
            if state.leader != self.member.broker:
                if incomplete and not unanswered:
                    self._adopt_incomplete(producers, incomplete)
                return
            if elected is None or elected[0] != state.epoch:
                return
            awaited = [*filter(self.is_alive, unanswered)]
            if awaited and self._now_us() - elected[1] < _PRODUCERS_WAIT_US:
                return
            others = [each for each in state.isr if each != self.member and may_join_isr(each, self._brokers)]
            if awaited and others:
                deferred.append(self._leave_isr)
                return
            if not incomplete or not self._adopt_incomplete(producers, incomplete):
                self._accept_lost_snapshot(producers)
            self._lead_if_elected(deferred)

        self._change(end)
        return not self.lacks_producers

    def _lead_if_elected(self, deferred: Deferred) -> None:
        state, self._elected = self._state, None
        if self._leading is None and state is not None and state.leader == self.member.broker:
            self._become_leader_or_follower(self._version, state, deferred)

    def _replay(self) -> None:
        """Read producers and transactions from the records that were appended since the last replay."""
        producers = self._producer_state()
        producers.replay(write=False)
        producers.transactions.last_stable(self._high_watermark())  # forgets transactions that are committed

    def _trim_log(self, start: LogPosition) -> LogPosition:
        """Remove segments before a position whose producers a snapshot has; return the start of the log."""
        self._replay()
        return self._producer_state().trim_to(start)

    def _reset_log(self, start: LogPosition, history: History) -> None:
        """Reset the log to a position, with the producers of the leader's snapshot at that position."""
        producers = self._producer_state()
        if self._leader_snapshot:
            try:
                producers.keep_for_reset(start, self._leader_snapshot)
            except InvalidMessageError as error:
                logger.warning("%s: producers of the leader are not taken over: %s", self.name, error)
        self._log.reset(start, history)

    # ---- appends --------------------------------------------------------------------------------------------

    def _leads_in(self, epoch: int) -> bool:
        return self.failure is None and self._leading is not None and self._leading.epoch.number == epoch

    def begin_verification(self, producer_id: int, first_sequence: int = NO_SEQUENCE) -> int | None:
        """Begin the verification that a transaction is open, before its coordinator is asked.

        Args:
            producer_id: id of the producer.
            first_sequence: first sequence number of the batch that waits for the response; -1: no sequence number.

        Returns:
            A token for `append`; None: the coordinator need not be asked, because the transaction is open in the log.
        """
        with self._lock:
            if self._leading is None:
                return _NO_VERIFICATION
            transactions = self._producer_state().transactions
            if transactions.is_open(producer_id):
                return None
            return transactions.begin_verification(producer_id, first_sequence)

    def _marker_of(self, batch: ProducedBatch) -> TransactionMarker | None:
        return marker_of(batch.data)

    def _duplicate_response(self, first_offset: int, last_offset: int, acks: int) -> AppendResult:
        """Answer a batch that the log holds: with acks=-1 when that one is committed."""
        response = PartitionProduceResponse(NO_ERROR, first_offset, last_offset + 1, self._log.log_start)
        if acks != ACKS_ALL:
            return response
        return self._pending_append(response, self._role, self._end_mark_of(last_offset))

    def _pending_append(
        self, response: PartitionProduceResponse, role: ReplicaRole, required: LogPosition
    ) -> PendingAppend:  # fmt: skip
        return make_named(PendingAppend, self, response, role, required)

    def _append_failed(self, error: ReplogError | OSError, deferred: Deferred) -> None:
        if not self._log.is_usable:
            self._go_offline(error, deferred)
        elif isinstance(error, OSError):  # another broker's disk may have space
            deferred.append(self._leave_isr)

    def _end_mark_of(self, offset: int) -> LogPosition:
        """Return the end of the record of an offset: a duplicate waits until the original batch is committed."""
        try:
            return self._log.mark_of(offset + 1)
        except OutOfRangeError:  # the record was trimmed
            return self._log.start_mark

    def _error_response(self, code: int, message: str = "") -> PartitionProduceResponse:
        start = -1 if self.failure is not None else self._log.log_start
        return PartitionProduceResponse(ErrorCode(code), log_start=start, message=message)

    def check_enough_replicas(self, role: ReplicaRole, required: LogPosition) -> ErrorCode | None:
        """Return the outcome of an append with acks=-1.

        Args:
            role: role of the replica at the append.
            required: end of the appended records.

        Returns:
            NONE: they are committed; an error; None: the produce has to wait.
        """
        with self._lock:
            if self._leading is None or role is not self._role:
                if role.marks[FetchIsolation.HIGH_WATERMARK].position >= required.position:
                    return NO_ERROR  # the records were committed in that role
                return ErrorCode.NOT_LEADER_OR_FOLLOWER if self.failure is None else ErrorCode.KAFKA_STORAGE_ERROR
            return self._leading.check_enough_replicas_reach_offset(required)

    # ---- fetches of consumers -------------------------------------------------------------------------------

    def read(
        self, fetch: ConsumerFetch, params: FetchParams, max_bytes: int, *, min_one_batch: bool
    ) -> PartitionRead:  # fmt: skip
        """Read records for a consumer. The offsets of the response are those before the read. Reads the disk.

        Args:
            fetch: fetch of this partition.
            params: settings of the whole fetch.
            max_bytes: approximate size of the records, bytes.
            min_one_batch: whether the first batch is returned whatever its size.
        """
        with self._lock:
            role = self._role
            if self.failure is not None:
                return _read_error(role, ErrorCode.KAFKA_STORAGE_ERROR, str(self.failure))
            if (code := self._check_consumer(fetch, params)) is not NO_ERROR:
                return _read_error(role, code)
            if params.isolation is FetchIsolation.TXN_COMMITTED and not self._replays and self._leading is None:
                self._replays = True
            if self._replays and self._leading is None:
                self._replay()
            log, high_watermark = self._log, self._high_watermark()
            stable, log_start, end = self._last_stable(high_watermark), log.log_start, log.end_mark
            if not log_start <= fetch.offset <= end.entry:
                message = f"offset {fetch.offset}: the log has {log_start} to {end.entry}"
                return _read_error(role, ErrorCode.OFFSET_OUT_OF_RANGE, message)
            until, aborted = high_watermark, []
            try:
                at = self._position_of(fetch.offset)
            except OutOfRangeError as error:
                return _read_error(role, ErrorCode.OFFSET_OUT_OF_RANGE, str(error))
            if params.isolation is FetchIsolation.TXN_COMMITTED:
                until = stable
                aborted = self._producer_state().transactions.aborted_between(at, until)
            held = log.hold_segment(at.position) if at < until else None  # compaction must not move its records now
        try:
            records = log.read_frames(at, max_bytes, until=until, min_one_record=min_one_batch)
        except TruncatedError as error:
            return _read_error(role, ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
        except OutOfRangeError as error:
            return _read_error(role, ErrorCode.OFFSET_OUT_OF_RANGE, str(error))
        except (ReplogError, OSError) as error:
            self._read_failed(error)
            return _read_error(role, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        del held  # the views of `records` hold the segments
        data = FetchPartitionData(
            NO_ERROR,
            high_watermark.entry,
            max(stable.entry, log_start),
            log_start,
            records,
            _aborted_transactions(aborted, records.end),
        )
        return PartitionRead(data, role, at)

    def _check_consumer(self, fetch: ConsumerFetch, params: FetchParams) -> ErrorCode:
        if self._leading is None and params.only_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch = self._following.epoch if self._leading is None else self._leading.epoch
        if fetch.leader_epoch is None or fetch.leader_epoch == epoch.number:
            return NO_ERROR
        is_old = fetch.leader_epoch < epoch.number
        return ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH

    def read_replicas(self, fetch: ConsumerFetch) -> ReadReplicas | None:
        """Return the followers from which a consumer can read in place of this leader (KIP-392).

        Args:
            fetch: fetch of the consumer.

        Returns:
            The followers; None: this replica has to answer, because it does not lead, does not know the high watermark
            yet, or refuses the fetch.
        """
        offsets = self.offsets()
        if offsets.code is not NO_ERROR or not offsets.start <= fetch.offset <= offsets.end:
            return None
        with self._lock:
            leading = self._leading
            if leading is None or self._check_consumer(fetch, FetchParams()) is not NO_ERROR:
                return None
            return ReadReplicas(leading.in_sync_with(fetch.offset), offsets)

    def _position_of(self, offset: int) -> LogPosition:
        high_watermark = self._high_watermark()
        return high_watermark if offset == high_watermark.entry else self._log.mark_of(offset)

    # ---- fetches of followers -------------------------------------------------------------------------------

    def fetched(self, fetch: Fetch) -> NotedFetch:
        """Note a follower's fetch, which reports the follower's progress, before records are read.

        Args:
            fetch: the fetch.
        """
        noted = NotedFetch(self._role, FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))

        def note(deferred: Deferred) -> None:
            nonlocal noted
            leading = self._leading
            if leading is not None:
                answer = self._with_producer_snapshot(self._perform(leading.fetched(fetch, self._now_us()), deferred))
                self._advance_low_watermark()
                role = self._role
                noted = NotedFetch(role, answer, None if leading.has_news(fetch) else role.changes)

        self._change(note)
        if self.failure is not None:
            return NotedFetch(self._role, FetchRefused(fetch.number, ErrorCode.KAFKA_STORAGE_ERROR))
        return noted

    def _with_producer_snapshot(self, answer: FetchResponse | None) -> FetchResponse | None:
        """Add a producer snapshot if the follower resets its log: it lacks the producers of removed records."""
        if not isinstance(answer, DivergingEpoch) or not answer.log_start.position:
            return answer
        snapshot = self._producer_state().snapshot_at_start()
        return answer if snapshot is None or len(snapshot) > _SNAPSHOT_MAX else answer._replace(producers=snapshot)

    def read_for_replica(
        self, role: ReplicaRole, fetch: Fetch, max_bytes: int, *, min_one_batch: bool
    ) -> FetchPartitionData:  # fmt: skip
        """Read records for a follower's fetch that `fetched` has noted. Reads the disk.

        Args:
            role: role from `fetched`; in another role the response is NOT_LEADER_OR_FOLLOWER.
            fetch: the fetch.
            max_bytes: approximate size of the records, bytes.
            min_one_batch: whether the first batch is returned whatever its size.
        """
        try:
            records = self._log.read_frames(fetch.position, max_bytes, min_one_record=min_one_batch)
        except TruncatedError:
            return answered(FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        except OutOfRangeError:
            return self._answer_from_segment_start(role, fetch)
        except (ReplogError, OSError) as error:
            self._read_failed(error)
            return answered(FetchRefused(fetch.number, ErrorCode.KAFKA_STORAGE_ERROR))
        with self._lock:
            leading = self._leading
            if leading is None or self._role is not role:
                return answered(FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            response = leading.response(fetch, records.end, records)
            return FetchPartitionData(
                NO_ERROR, response.high_watermark.entry, -1, response.log_start.entry, records, (), response
            )

    def _answer_from_segment_start(self, role: ReplicaRole, fetch: Fetch) -> FetchPartitionData:
        """Answer a follower whose log ends within a compacted segment, at a position where no record begins any more:
        it truncates its log to the start of the segment."""
        with self._lock:
            leading = self._leading
            if leading is None or self._role is not role:
                return answered(FetchRefused(fetch.number, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            try:
                start = self._log.segment_start(fetch.position.position)
            except OutOfRangeError:
                return answered(FetchRefused(fetch.number, ErrorCode.OFFSET_OUT_OF_RANGE))
            if start.position + self._log.segment_bytes > leading.high_watermark.position:
                return answered(FetchRefused(fetch.number, ErrorCode.OFFSET_OUT_OF_RANGE))
            logger.info("%s: broker %s takes the segment at %d anew", self.name, fetch.member.broker, start.position)
            answer = DivergingEpoch(fetch.number, leading.epoch, leading.history, leading.start, start)
            response = self._with_producer_snapshot(answer)
            assert response is not None
            return answered(response)

    # ---- as follower ----------------------------------------------------------------------------------------

    def fetch_answered(self, response: FetchResponse) -> None:
        """Apply the leader's response to a fetch.

        Args:
            response: the response.
        """

        def note(deferred: Deferred) -> None:
            if self._leading is None:
                self._leader_snapshot = response.producers if isinstance(response, DivergingEpoch) else b""
                self._perform(self._following.answered(response), deferred)
                self._leader_snapshot = b""

        self._change(note)

    def fetch_timed_out(self, number: int) -> None:
        """Send another fetch after one without a response, or some time after an error.

        Args:
            number: number of the former fetch.
        """

        def note(deferred: Deferred) -> None:
            if self._leading is None:
                self._perform(self._following.timed_out(number), deferred)

        self._change(note)

    def follow_again(self) -> None:
        """Resume the role, some time after an error of the disk or the log."""

        def retry(deferred: Deferred) -> None:
            state = self._state
            if self._leading is not None or state is None or not state.leader:
                return
            if state.leader == self.member.broker:
                self._become_leader_or_follower(self._version, state, deferred)
            else:
                self._perform(self._following.follow(state.leader, state.epoch), deferred)

        self._change(retry)


def answered(response: FetchResponse) -> FetchPartitionData:
    """Return the data of a response to a follower's fetch without records."""
    code = response.code if isinstance(response, FetchRefused) else NO_ERROR
    return FetchPartitionData(code, response=response)


def _read_error(role: ReplicaRole, code: ErrorCode, message: str = "") -> PartitionRead:
    return PartitionRead(FetchPartitionData(code, message=message), role)


def _aborted_transactions(ended: list[EndedTransaction], end: LogPosition) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that begin before the end of a read."""
    return tuple(AbortedTransaction(at.producer_id, at.first.entry) for at in ended if at.first < end)
