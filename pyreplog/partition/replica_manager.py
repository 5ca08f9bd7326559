"""ReplicaManager: appends to the partitions of a broker, fetches from them, and deletions in them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pyreplog._native.kafka.record_batch import ProducedBatch
from pyreplog._native.log.append_arguments import longest_of
from pyreplog.clock import Clock, ClockWatch
from pyreplog.errors import InvalidArgumentError, InvalidRecordBatchError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.config import TopicConfig
from pyreplog.partition.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsResponse,
    DeleteRecordsResponses,
)
from pyreplog.partition.delayed_fetch import DelayedFetch, WatchedPart
from pyreplog.partition.delayed_produce import DelayedProduce
from pyreplog.partition.fetch_session import FetchSessionCache
from pyreplog.partition.partition import (
    AppendResult,
    DeletedRecords,
    Partition,
    PartitionRead,
    PendingAppend,
    RoleWatcher,
)
from pyreplog.partition.protocol.append_origin import CHECKS, AppendOrigin, OriginChecks
from pyreplog.partition.protocol.error_codes import ACKS_ALL, NO_ERROR, REQUIRED_ACKS, ErrorCode
from pyreplog.partition.protocol.partition_state import Brokers
from pyreplog.partition.protocol.record_batch import check_batch, end_marker, records_without_keys
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.requests import (
    CleanedSegments,
    CleanedSegmentsRequest,
    ConsumerFetch,
    FetchParams,
    FetchPartitionData,
    FetchResponses,
    Messages,
    PartitionCodes,
    PartitionProduceResponse,
    ProduceResponses,
    ProducerSnapshotPiece,
    ProducerSnapshotRequest,
    Records,
    ReplicaFetchRequest,
    SegmentPiece,
    SegmentReadRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.role import ReplicaRole
from pyreplog.partition.topic_partition import INTERNAL_TOPICS, TopicPartition
from pyreplog.purgatory import Purgatory

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 55 << 20
"""Most bytes of one fetch, also if it requests more (`fetch.max.bytes`)."""

MarkerWatcher: TypeAlias = Callable[[TopicPartition, TransactionMarker], object]
"""Called with a partition and a committed marker in it."""

_CLOCK_STEPS_MAX = 1024
"""Most steps of the clock that are remembered, within `producer.id.expiration.ms`."""


class ReplicaManager:
    """The partitions of a broker, as Kafka's replica manager: `append_records`, `fetch_messages`, `fetch_for_replicas`.

    An error of one partition is that partition's response, and fails no request. Methods block only for the disk of a
    log: a request that has to wait is completed later, by the thread that changes what the request waits for. Any
    thread may call any method, but must not hold locks. Callbacks of responses may call all methods.

    It has no thread. Its owner calls `expire` often (every 10 ms, for example), `check_isr` twice within the permitted
    lag of replicas, and `expire_producers` and `write_producer_snapshots` now and then.

    Args:
        purgatory: the purgatory of its partitions.
        clock: source of time.
    """

    def __init__(self, purgatory: Purgatory, clock: Clock) -> None:
        self._purgatory, self._clock = purgatory, clock
        self._clock_watch = ClockWatch(clock)
        # when the clock was set, monotonic, and by how many microseconds
        self._clock_steps: deque[tuple[int, int]] = deque(maxlen=_CLOCK_STEPS_MAX)
        self._partitions: dict[TopicPartition, Partition] = {}
        self.durable_partitions: tuple[Partition, ...] = ()
        """The partitions whose topics count only synced records (`requires_sync`)."""
        self._no_role = ReplicaRole(TopicPartition("", 0), is_leader=False)  # role of failed reads
        self._lock = threading.Lock()  # held to replace the mappings and tuples, which readers use without it
        self._role_watchers: tuple[RoleWatcher, ...] = ()
        self._marker_watchers: tuple[MarkerWatcher, ...] = ()
        self._fetch_sessions = FetchSessionCache(self.partition, purgatory, clock)

    # ---- partitions -----------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        """Add a partition, so that requests reach it.

        Args:
            partition: the partition.

        Raises:
            InvalidArgumentError: a partition of this name is served.
        """
        with self._lock:
            if partition.name in self._partitions:
                raise InvalidArgumentError(f"{partition.name}: expected a new partition, found one that is served")
            self._partitions = {**self._partitions, partition.name: partition}
            if partition.config.replicas.requires_sync:
                self.durable_partitions = (*self.durable_partitions, partition)
            if partition.name.topic in INTERNAL_TOPICS:
                partition.watch_role(self._role_changed)

    def remove(self, name: TopicPartition) -> Partition | None:
        """Remove a partition, without closing it.

        Args:
            name: name of the partition.

        Returns:
            The partition; None: it was not served.
        """
        with self._lock:
            partitions = dict(self._partitions)
            partition = partitions.pop(name, None)
            self._partitions = partitions
            if partition in self.durable_partitions:
                self.durable_partitions = tuple(each for each in self.durable_partitions if each is not partition)
        return partition

    def partition(self, name: TopicPartition) -> Partition | None:
        """Return a served partition; None: it is not served.

        Args:
            name: name of the partition.
        """
        return self._partitions.get(name)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def watch_roles(self, callback: RoleWatcher) -> Callable[[], None]:
        """Call `callback` now, and after each change of role, for each replica of an internal topic, without locks.

        Two threads may call it at once, each with the epoch that it has read. `Partition.leader_epoch`, read in the
        last call after a change, is the present role.

        Args:
            callback: called with the partition, and the number of the epoch in which this broker leads it; None: this
                broker does not lead it.

        Returns:
            A function that ends the watch. A call that has begun may still go on.
        """
        with self._lock:
            self._role_watchers = (*self._role_watchers, callback)
        for partition in self:
            if partition.name.topic in INTERNAL_TOPICS:
                callback(partition.name, partition.leader_epoch)

        def end() -> None:
            with self._lock:
                self._role_watchers = tuple(each for each in self._role_watchers if each is not callback)

        return end

    def watch_markers(self, callback: MarkerWatcher) -> Callable[[], None]:
        """Call `callback` after each marker that `write_markers` has committed, before that request is answered.

        There may be several calls for one marker. After an unknown outcome the coordinator writes the marker again, and
        the call follows the second write.

        Args:
            callback: called with the partition and the marker; must not block.

        Returns:
            A function that ends the watch. A call that has begun may still go on.
        """
        with self._lock:
            self._marker_watchers = (*self._marker_watchers, callback)

        def end() -> None:
            with self._lock:
                self._marker_watchers = tuple(each for each in self._marker_watchers if each is not callback)

        return end

    def _role_changed(self, name: TopicPartition, epoch: int | None) -> None:
        for callback in self._role_watchers:
            callback(name, epoch)

    def brokers_changed(self, brokers: Brokers) -> None:
        """Report the registrations of brokers to all partitions.

        Args:
            brokers: the registrations, by name of the broker.
        """
        for partition in self:
            partition.brokers_changed(brokers)

    def check_isr(self) -> None:
        """Remove followers from the ISR that lag too much, in all partitions that this broker leads."""
        self._fetch_sessions.note_caught_up()
        for partition in self:
            partition.check_isr()

    def expire_producers(self, idle_us: int) -> None:
        """Forget producers that were idle for a time, but none with an open transaction. One thread at a time.

        When the clock was set forward meanwhile, producers that were used before stay for the time, counted from then.

        Args:
            idle_us: the time, microseconds.
        """
        before_us = self._clock.now_us() - idle_us - self._forward_us(idle_us)
        for partition in self:
            partition.expire_producers(before_us)

    def _forward_us(self, idle_us: int) -> int:
        """Return by how much the clock is ahead at most of what it would be, had it not been set since a moment within
        the last `idle_us`."""
        monotonic_us, steps = self._clock.monotonic_us(), self._clock_steps
        if (step_us := self._clock_watch.step_us()) != 0:
            steps.append((monotonic_us, step_us))
        while steps and monotonic_us - steps[0][0] >= idle_us:
            steps.popleft()
        forward_us = total_us = 0
        for _, step_us in reversed(steps):
            total_us += step_us
            forward_us = max(forward_us, total_us)
        return forward_us

    def write_producer_snapshots(self) -> None:
        """Write durable producer snapshots for the segments that were begun since the last call, in all partitions."""
        for partition in self:
            partition.write_producer_snapshots()

    def expire(self) -> int | None:
        """Complete the requests whose deadline has passed.

        Returns:
            The next deadline, monotonic microseconds, at which to call it again; None: no request waits.
        """
        return self._purgatory.expire(self._clock.monotonic_us())

    # ---- appends --------------------------------------------------------------------------------------------

    def append_records(
        self, acks: int, records: Mapping[TopicPartition, Records], *, timeout_ms: int = 30_000,
        origin: AppendOrigin = AppendOrigin.CLIENT, internal_topics_allowed: bool = False, durable: bool = False,
        verifications: Mapping[TopicPartition, int] | None = None, transaction_version: int | None = None,
        leader_epoch: int | None = None,
    ) -> AppendFuture[ProduceResponses]:  # fmt: skip
        """Append to partitions that this broker leads. Each partition has its own outcome; no append is undone.

        Args:
            acks: -1: the records are committed, on all in-sync replicas, before the response; 1: they are in the
                leader's log; 0: the same, for a producer that expects no response.
            records: messages, or one record batch, by partition.
            timeout_ms: milliseconds that acks=-1 waits at most. Then the outcome is unknown: REQUEST_TIMED_OUT.
            origin: client or coordinator; it determines the checks.
            internal_topics_allowed: whether the partitions may be those of internal topics.
            durable: whether the records must be synced on min ISR replicas before the response. Then acks must be -1,
                and topics that count records without a sync respond with INVALID_REQUIRED_ACKS.
            verifications: tokens of `Partition.begin_verification`, by partition, of transactions whose coordinators
                were asked; None: no tokens.
            transaction_version: version of the transactions that markers end; None: the version of the topic.
            leader_epoch: number of the epoch in which this broker must lead: otherwise the response is
                NOT_LEADER_OR_FOLLOWER; None: any epoch.

        Returns:
            A future of the responses by partition. It is already done if no partition waits.

        Raises:
            InvalidArgumentError: the origin is replication, which appends through `Partition.fetch_answered`.
        """
        if origin is AppendOrigin.REPLICATION:
            raise InvalidArgumentError(f"origin: expected a client or a coordinator, found {origin.value}")
        future: AppendFuture[ProduceResponses] = AppendFuture()  # subscripted, the call is five times as slow
        if acks not in REQUIRED_ACKS or (durable and acks != ACKS_ALL):
            message = f"acks: expected {'-1 for durable records' if durable else '-1, 0 or 1'}, found {acks}"
            refusal = _error_response(ErrorCode.INVALID_REQUIRED_ACKS, message)
            set_result(future, dict.fromkeys(records, refusal))
            return future
        responses: ProduceResponses = {}
        pending: dict[TopicPartition, PendingAppend] = {}
        checks = CHECKS[origin]
        if transaction_version is not None or leader_epoch is not None:
            checks = checks._replace(transaction_version=transaction_version, leader_epoch=leader_epoch)
        for name, data in records.items():
            verification = None if verifications is None else verifications.get(name)
            result = self._append(name, data, checks, acks, verification, internal_topics_allowed, durable)
            if isinstance(result, PendingAppend):
                pending[name], result = result, result.response
            responses[name] = result
        if pending:
            deadline_us = self._clock.monotonic_us() + timeout_ms * 1000
            DelayedProduce(responses, pending, future).watch(self._purgatory, deadline_us)
        else:  # each outcome is known: answer at once
            set_result(future, responses)
        return future

    def _append(
        self, name: TopicPartition, data: Records, checks: OriginChecks, acks: int, verification: int | None,
        internal: bool, durable: bool,
    ) -> AppendResult:  # fmt: skip
        """Check the records as far as that needs no log, and append them to one partition."""
        partition = self._partitions.get(name)
        if name.topic in INTERNAL_TOPICS and not internal:
            message = f"{name.topic}: expected a topic of users, found an internal one"
            return _error_response(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        if partition is None:
            message = f"{name}: this broker has no such replica"
            return _error_response(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        config = partition.config
        if durable and not config.replicas.requires_sync:
            message = f"{name}: expected a topic with requires_sync for durable records"
            return _error_response(ErrorCode.INVALID_REQUIRED_ACKS, message)
        try:
            if isinstance(data, Messages):
                if config.compaction is not None:
                    return _error_response(ErrorCode.INVALID_RECORD, "expected a record batch: the topic is compacted")
                if longest_of(data.values) > config.limits.max_message_bytes:
                    message = f"expected values of at most {config.limits.max_message_bytes} bytes"
                    return _error_response(ErrorCode.MESSAGE_TOO_LARGE, message)
                accepted: Messages | ProducedBatch = data
            else:
                now_ms = self._clock.now_us() // 1000
                batch = check_batch(data, checks, config.limits, now_ms, keys_required=config.compaction is not None)
                if isinstance(batch, tuple):
                    return _refused_batch(data, config, *batch)
                accepted = batch
            result: AppendResult = partition.append(accepted, checks, acks, verification)
            return result
        except Exception as error:  # the appends to other partitions continue
            logger.exception("%s: an append failed", name)
            message = f"{type(error).__name__}: {error}"
            return _error_response(ErrorCode.UNKNOWN_SERVER_ERROR, message)

    # ---- markers --------------------------------------------------------------------------------------------

    def write_markers(self, request: WriteMarkersRequest, *, timeout_ms: int = 5_000) -> AppendFuture[PartitionCodes]:
        """Write the markers of a transaction to partitions that this broker leads, for its coordinator.

        The markers are appended when the method returns, so that markers of later calls are behind them. In another
        leader epoch than the coordinator's the response is an error: the request may be an old one that the coordinator
        has repeated at another leader.

        Args:
            request: the marker and the partitions.
            timeout_ms: milliseconds that the markers wait at most to be committed.

        Returns:
            A future of the codes. NONE: the marker is committed; any other code: the outcome is unknown.
        """
        future = AppendFuture[PartitionCodes]()
        marker, version, partitions = request
        by_epoch: dict[int, list[TopicPartition]] = {}
        for name, epoch in partitions.items():
            by_epoch.setdefault(epoch, []).append(name)
        codes: PartitionCodes = {}
        left, lock = {*by_epoch}, threading.Lock()

        def done(epoch: int, responses: AppendFuture[ProduceResponses]) -> None:
            answered = {name: response.code for name, response in responses.result().items()}
            for name, code in answered.items():
                if code is NO_ERROR:
                    self._marker_committed(name, marker)
            with lock:
                codes.update(answered)
                left.discard(epoch)
                is_last = not left
            if is_last:
                set_result(future, codes)

        batch = end_marker(marker, self._clock.now_us() // 1000)
        for epoch, names in by_epoch.items():
            appended = self.append_records(
                ACKS_ALL, dict.fromkeys(names, batch), timeout_ms=timeout_ms, origin=AppendOrigin.COORDINATOR,
                internal_topics_allowed=True, transaction_version=version, leader_epoch=epoch,
            )  # fmt: skip
            appended.add_done_callback(partial(done, epoch))
        if not by_epoch:
            set_result(future, codes)
        return future

    def _marker_committed(self, name: TopicPartition, marker: TransactionMarker) -> None:
        for callback in self._marker_watchers:
            try:
                callback(name, marker)
            except Exception:  # the transaction ends all the same
                logger.exception("%s: a callback for markers failed", name)

    # ---- compacted segments ---------------------------------------------------------------------------------

    def cleaned_segments(self, request: CleanedSegmentsRequest) -> CleanedSegments:
        """Return the compacted segments of a partition that this broker leads, for a follower.

        Args:
            request: request of the follower.
        """
        partition = self._partitions.get(request.partition)
        if partition is None:
            return CleanedSegments(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition.cleaned_segments(request.member, request.epoch, request.cleaned)

    def read_segment(self, request: SegmentReadRequest) -> SegmentPiece:
        """Return bytes of a compacted segment of a partition that this broker leads. Reads the disk.

        Args:
            request: request of the follower.
        """
        partition = self._partitions.get(request.partition)
        if partition is None:
            return SegmentPiece(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition.read_segment(request.epoch, request.base, request.offset, request.max_bytes)

    def producer_snapshot(self, request: ProducerSnapshotRequest) -> ProducerSnapshotPiece:
        """Return bytes of a producer snapshot of a partition, for another replica. Reads the disk.

        Args:
            request: request of the other replica.
        """
        partition = self._partitions.get(request.partition)
        if partition is None:
            return ProducerSnapshotPiece(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition.producer_snapshot(request.first, request.last, request.offset, request.max_bytes)

    # ---- deletions ------------------------------------------------------------------------------------------

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000,
        store: Callable[[], object] | None = None,
    ) -> AppendFuture[DeleteRecordsResponses]:  # fmt: skip
        """Delete the records before an offset, in partitions that this broker leads (KIP-107).

        Each partition has its own outcome.

        Args:
            offsets: first offset that stays, by partition; -1: the last stable offset, which is the high watermark if
                no transaction is open.
            timeout_ms: milliseconds that it waits at most for the other replicas; then the outcome is
                REQUEST_TIMED_OUT.
            store: stores the starts of the logs durably, before the response; may block. None: they are not stored.

        Returns:
            A future of the responses by partition. NONE: all live replicas have deleted the records.
        """
        future = AppendFuture[DeleteRecordsResponses]()
        responses: DeleteRecordsResponses = {}
        pending: dict[TopicPartition, tuple[Partition, DeletedRecords]] = {}
        for name, offset in offsets.items():
            partition = self._partitions.get(name)
            if name.topic in INTERNAL_TOPICS:
                message = f"{name.topic}: expected a topic of users, found an internal one"
                responses[name] = DeleteRecordsResponse(ErrorCode.INVALID_TOPIC_EXCEPTION, -1, message)
            elif partition is None:
                responses[name] = DeleteRecordsResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                deleted = partition.delete_records(offset)
                if deleted.code is NO_ERROR:
                    pending[name] = partition, deleted
                else:
                    responses[name] = DeleteRecordsResponse(deleted.code, -1, deleted.message)
        try:
            if store is not None and pending:
                store()
        except OSError as error:
            failed = DeleteRecordsResponse(ErrorCode.KAFKA_STORAGE_ERROR, -1, f"the log starts are not stored: {error}")
            responses |= dict.fromkeys(pending, failed)
            pending = {}
        if pending:
            deadline_us = self._clock.monotonic_us() + timeout_ms * 1000
            DelayedDeleteRecords(responses, pending, future).watch(self._purgatory, deadline_us)
        else:
            set_result(future, responses)
        return future

    # ---- fetches of followers -------------------------------------------------------------------------------

    def fetch_for_replicas(self, request: ReplicaFetchRequest) -> AppendFuture[FetchResponses]:
        """Answer a request of a broker with followers, as soon as one fetch of its session can be answered.

        A fetch reports the progress of its follower, which counts at once, before records are read.

        Args:
            request: request of the broker.

        Returns:
            A future of the responses by partition, to fetches of this request and of earlier ones in the session. They
            are empty after `max_wait_ms`. The future's error is a ClosedError if the session is not open, so that the
            request has no effect, or if the session is closed meanwhile.
        """
        return self._fetch_sessions.fetch(request)

    def close_sessions(self) -> None:
        """Close all fetch sessions, because the broker closes."""
        self._fetch_sessions.close()

    # ---- fetches of consumers -------------------------------------------------------------------------------

    def fetch_messages(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch],
        until: AppendFuture[None] | None = None,
    ) -> AppendFuture[FetchResponses]:  # fmt: skip
        """Fetch from partitions, in the order of the mapping. Each partition has its own outcome.

        Args:
            params: settings of the fetch, for all partitions.
            fetches: fetches by partition.
            until: a future whose result ends the wait, as `max_wait_ms` does; None: none.

        Returns:
            A future of the responses by partition. It is already done if they have `min_bytes` or an error, or if
            `max_wait_ms` is 0.
        """
        future = AppendFuture[FetchResponses]()
        max_bytes = min(params.max_bytes, FETCH_BYTES_MAX)
        params = params._replace(max_bytes=max_bytes, min_bytes=min(params.min_bytes, max_bytes))
        reads = self._read(params, fetches)
        size = sum(read.data.size for read in reads.values())
        is_over = params.max_wait_ms <= 0 or not reads or size >= params.min_bytes
        if is_over or any(read.data.code is not NO_ERROR for read in reads.values()):
            set_result(future, _responses(reads))
            return future

        def read_again() -> FetchResponses:
            return _responses(self._read(params, fetches))

        parts = [WatchedPart(read.role, read.start, fetches[name].max_bytes) for name, read in reads.items()]
        deadline_us = self._clock.monotonic_us() + params.max_wait_ms * 1000
        delayed = DelayedFetch(parts, params.isolation, params.min_bytes, read_again, future, self._purgatory)
        delayed.watch(deadline_us)
        if until is not None:
            until.add_done_callback(delayed.expire)
        return future

    def _read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch]
    ) -> dict[TopicPartition, PartitionRead]:  # fmt: skip
        """Read all partitions. Only the first batch of the fetch is returned whatever its size (KAFKA-19795)."""
        reads: dict[TopicPartition, PartitionRead] = {}
        left, min_one_batch = params.max_bytes, not params.has_hard_limit
        for name, fetch in fetches.items():
            read = self._read_one(name, fetch, params, min(fetch.max_bytes, left), min_one_batch=min_one_batch)
            if size := read.data.size:
                left, min_one_batch = max(left - size, 0), False
            reads[name] = read
        return reads

    def _read_one(
        self, name: TopicPartition, fetch: ConsumerFetch, params: FetchParams, max_bytes: int, *, min_one_batch: bool
    ) -> PartitionRead:  # fmt: skip
        partition = self._partitions.get(name)
        if partition is None:
            return PartitionRead(FetchPartitionData(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), self._no_role)
        try:
            return partition.read(fetch, params, max_bytes, min_one_batch=min_one_batch)
        except Exception as error:  # the reads of other partitions continue
            logger.exception("%s: a fetch failed", name)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}"
            return PartitionRead(FetchPartitionData(code, message=message), self._no_role)


def _error_response(code: ErrorCode, message: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(code, message=message)


def _refused_batch(
    data: ReadableBuffer, config: TopicConfig, code: ErrorCode, message: str
) -> PartitionProduceResponse:  # fmt: skip
    """Return the response to a batch that was refused, with the records at fault if all of them are known."""
    refused: Sequence[int] = ()
    if code is ErrorCode.INVALID_RECORD and config.compaction is not None:
        with suppress(InvalidRecordBatchError):  # its records are damaged
            refused = records_without_keys(data, config.limits)
    return PartitionProduceResponse(code, message=message, refused_records=refused)


def _responses(reads: Mapping[TopicPartition, PartitionRead]) -> FetchResponses:
    return {name: read.data for name, read in reads.items()}
