"""ReplicaManager: appends to the partitions of a broker, and fetches from them, with one response per partition."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from pyreplog._native.kafka.record_batch import ProducedBatch
from pyreplog._native.log.append_arguments import longest_of
from pyreplog.clock import Clock
from pyreplog.errors import InvalidArgumentError
from pyreplog.future import AppendFuture, set_result
from pyreplog.partition.cleaner_thread import keyless
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
from pyreplog.partition.protocol.record_batch import check_batch, end_marker
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
    Records,
    ReplicaFetchRequest,
    SegmentPiece,
    SegmentReadRequest,
    WriteMarkersRequest,
)
from pyreplog.partition.role import ReplicaRole
from pyreplog.partition.topic_partition import INTERNAL_TOPICS, TopicPartition
from pyreplog.purgatory import Purgatory

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 55 << 20
"""Most bytes of one fetch, whatever it asks for (`fetch.max.bytes`)."""

MarkerWatcher: TypeAlias = Callable[[TopicPartition, TransactionMarker], object]
"""Called with a partition, and a marker that is committed in it."""


class ReplicaManager:
    """The partitions of a broker, as Kafka's replica manager: `append_records`, `fetch_messages`, `fetch_for_replicas`.

    An error of one partition is its response, and fails no request. No method blocks for anything but a log's disk: a
    request that has to wait is completed later, by the thread that brings what it waits for. Any thread may call any
    method, but must not hold locks. Callbacks of responses may call all methods.

    It has no thread. Its owner calls `expire` often (each 10 ms, say), `check_isr` twice within the lag that replicas
    may have, and now and then `expire_producers` and `write_producer_snapshots`.

    Args:
        purgatory: shared with the partitions.
        clock: the time.
    """

    def __init__(self, purgatory: Purgatory, clock: Clock) -> None:
        self._purgatory, self._clock = purgatory, clock
        self._partitions: dict[TopicPartition, Partition] = {}
        self.durable_partitions: tuple[Partition, ...] = ()
        """Those whose topics count what is synced (`requires_sync`)."""
        self._no_role = ReplicaRole(TopicPartition("", 0), is_leader=False)  # in reads that failed
        self._lock = threading.Lock()  # around changes of the partitions and watchers, which are replaced as a whole
        self._role_watchers: tuple[RoleWatcher, ...] = ()
        self._marker_watchers: tuple[MarkerWatcher, ...] = ()
        self._fetch_sessions = FetchSessionCache(self.partition, purgatory, clock)

    # ---- partitions -----------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        """Serve a partition."""
        with self._lock:
            if partition.name in self._partitions:
                raise InvalidArgumentError(f"{partition.name}: expected a new partition, found one that is served")
            self._partitions = {**self._partitions, partition.name: partition}
            if partition.config.replicas.requires_sync:
                self.durable_partitions = (*self.durable_partitions, partition)
            if partition.name.topic in INTERNAL_TOPICS:
                partition.watch_role(self._role_changed)

    def remove(self, name: TopicPartition) -> Partition | None:
        """Serve a partition no more; it is not closed. Returns it; None: it was not served."""
        with self._lock:
            partitions = dict(self._partitions)
            partition = partitions.pop(name, None)
            self._partitions = partitions
            if partition in self.durable_partitions:
                self.durable_partitions = tuple(each for each in self.durable_partitions if each is not partition)
        return partition

    def partition(self, name: TopicPartition) -> Partition | None:
        """Return a partition that is served; None: it is not."""
        return self._partitions.get(name)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def watch_roles(self, callback: RoleWatcher) -> Callable[[], None]:
        """Call back after each change of role of a replica of an internal topic, without locks held.

        Two threads may call at once, each with the epoch of that moment. The last one to read `Partition.leader_epoch`
        after a change sees the role that counts.

        Args:
            callback: gets the partition, and the number of the epoch in which this broker leads it; None: it does not.

        Returns:
            Ends the watch; a call that is under way may go on meanwhile.
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
        """Call back after each marker that `write_markers` knows to be committed, before that is answered.

        There may be several calls for one marker. Its coordinator writes a marker again whose outcome stayed unknown:
        the call follows then.

        Args:
            callback: gets the partition and the marker; it must not block.

        Returns:
            Ends the watch; a call that is under way may go on meanwhile.
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
        """Note which brokers are registered."""
        for partition in self:
            partition.brokers_changed(brokers)

    def check_isr(self) -> None:
        """Let followers that lag too much leave the ISR."""
        self._fetch_sessions.note_caught_up()
        for partition in self:
            partition.check_isr()

    def expire_producers(self, idle_us: int) -> None:
        """Forget producers that were idle for so long, but none with an unfinished transaction.

        Args:
            idle_us: microseconds.
        """
        before_us = self._clock.now_us() - idle_us
        for partition in self:
            partition.expire_producers(before_us)

    def write_producer_snapshots(self) -> None:
        """Write the producer snapshots that were made since the last time, durably."""
        for partition in self:
            partition.write_producer_snapshots()

    def expire(self) -> int | None:
        """Complete what has waited long enough.

        Returns:
            When to call it again: monotonic microseconds; None: nothing waits.
        """
        return self._purgatory.expire(self._clock.monotonic_us())

    # ---- appends --------------------------------------------------------------------------------------------

    def append_records(
        self, acks: int, records: Mapping[TopicPartition, Records], *, timeout_ms: int = 30_000,
        origin: AppendOrigin = AppendOrigin.CLIENT, internal_topics_allowed: bool = False, durable: bool = False,
        verifications: Mapping[TopicPartition, int] | None = None, transaction_version: int | None = None,
        leader_epoch: int | None = None,
    ) -> AppendFuture[ProduceResponses]:  # fmt: skip
        """Append to partitions that this broker leads. Each has an outcome of its own; nothing is taken back.

        Args:
            acks: -1: the records are committed, on all in-sync replicas, before the response; 1: they are in the
                leader's log; 0: the same, for a producer that wants no response.
            records: by partition: messages, or one record batch.
            timeout_ms: how long acks=-1 waits, milliseconds. Then the outcome is unknown: REQUEST_TIMED_OUT.
            origin: a client or a coordinator; it decides on the checks.
            internal_topics_allowed: whether internal topics may be appended to.
            durable: the records are on the disks of min ISR before the response: acks must be -1, and topics whose
                replicas count what they have received refuse with INVALID_REQUIRED_ACKS.
            verifications: of the transactions whose coordinators were asked (`Partition.begin_verification`).
            transaction_version: of the transactions that markers end; None: as the topics say.
            leader_epoch: number of the epoch in which this broker has to lead: otherwise NOT_LEADER_OR_FOLLOWER; None:
                in any.

        Returns:
            A future of the responses by partition. It is done already if nothing waits.

        Raises:
            InvalidArgumentError: the origin is replication, which appends what it fetched.
        """
        if origin is AppendOrigin.REPLICATION:
            raise InvalidArgumentError(f"origin: expected a client or a coordinator, found {origin.value}")
        future: AppendFuture[ProduceResponses] = AppendFuture()  # subscripted, the call is five times as slow
        if acks not in REQUIRED_ACKS or (durable and acks != ACKS_ALL):
            message = f"acks: expected {'-1 for durable records' if durable else '-1, 0 or 1'}, found {acks}"
            refusal = _refused(ErrorCode.INVALID_REQUIRED_ACKS, message)
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
        else:  # all failed, or all is committed: answer at once
            set_result(future, responses)
        return future

    def _append(
        self, name: TopicPartition, data: Records, checks: OriginChecks, acks: int, verification: int | None,
        internal: bool, durable: bool,
    ) -> AppendResult:  # fmt: skip
        """Make the checks that need no log, and append to one partition."""
        partition = self._partitions.get(name)
        if name.topic in INTERNAL_TOPICS and not internal:
            message = f"{name.topic}: expected a topic of users, found an internal one"
            return _refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        if partition is None:
            message = f"{name}: this broker has no such replica"
            return _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        config = partition.config
        if durable and not config.replicas.requires_sync:
            message = f"{name}: expected a topic with requires_sync for durable records"
            return _refused(ErrorCode.INVALID_REQUIRED_ACKS, message)
        try:
            if isinstance(data, Messages):
                if config.compaction is not None:
                    return _refused(ErrorCode.INVALID_RECORD, "expected a record batch: the topic is compacted")
                if longest_of(data.values) > config.limits.max_message_bytes:
                    message = f"expected values of at most {config.limits.max_message_bytes} bytes"
                    return _refused(ErrorCode.MESSAGE_TOO_LARGE, message)
                accepted: Messages | ProducedBatch = data
            else:
                batch = check_batch(data, checks, config.limits, self._clock.now_us() // 1000)
                if isinstance(batch, tuple):
                    return _refused(batch[0], batch[1])
                if config.compaction is not None and (message := keyless(data, batch.header)):
                    return _refused(ErrorCode.INVALID_RECORD, message)
                accepted = batch
            result: AppendResult = partition.append(accepted, checks, acks, verification)
            return result
        except Exception as error:  # the other partitions go on
            logger.exception("%s: an append failed", name)
            message = f"{type(error).__name__}: {error}"
            return _refused(ErrorCode.UNKNOWN_SERVER_ERROR, message)

    # ---- markers --------------------------------------------------------------------------------------------

    def write_markers(self, request: WriteMarkersRequest, *, timeout_ms: int = 5_000) -> AppendFuture[PartitionCodes]:
        """Write the markers of a transaction to partitions that this broker leads, as its coordinator asks.

        They are in the logs when this returns, so that those of a later call lie behind them. A broker that leads in
        another epoch than the coordinator knew of refuses: the request may be an old one, and be repeated elsewhere.

        Args:
            request: marker and partitions.
            timeout_ms: how long they may wait to be committed, milliseconds.

        Returns:
            A future of the codes. NONE: the marker is committed; any other: it is not known whether it is.
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
            except Exception:  # the transaction goes on
                logger.exception("%s: a callback for markers failed", name)

    # ---- compacted segments ---------------------------------------------------------------------------------

    def cleaned_segments(self, request: CleanedSegmentsRequest) -> CleanedSegments:
        """Return the segments of a partition that this broker leads and has compacted, for a follower.

        Args:
            request: of the follower.
        """
        partition = self._partitions.get(request.partition)
        if partition is None:
            return CleanedSegments(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition.cleaned_segments(request.member, request.epoch, request.cleaned)

    def read_segment(self, request: SegmentReadRequest) -> SegmentPiece:
        """Return bytes of a compacted segment of a partition that this broker leads. Reads the disk.

        Args:
            request: of the follower.
        """
        partition = self._partitions.get(request.partition)
        if partition is None:
            return SegmentPiece(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition.read_segment(request.epoch, request.base, request.offset, request.max_bytes)

    # ---- deletions ------------------------------------------------------------------------------------------

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000,
        store: Callable[[], object] | None = None,
    ) -> AppendFuture[DeleteRecordsResponses]:  # fmt: skip
        """Delete the records before an offset, in partitions that this broker leads. Each has an outcome of its own.

        Args:
            offsets: by partition; -1: the last stable offset, which is the high watermark if no transaction is open.
            timeout_ms: how long it waits for the other replicas, milliseconds; then the outcome is REQUEST_TIMED_OUT.
            store: makes durable what this broker has deleted, before the response; it may block.

        Returns:
            A future of the responses by partition: with NONE all replicas that live have deleted the records.
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
        """Answer a request of a broker that follows, when any fetch of its session can be answered.

        A fetch says how far its follower is: that counts at once, before anything is read.

        Args:
            request: of the broker.

        Returns:
            A future of the responses by partition, of fetches of this request and of earlier ones in its session. It is
            empty when its time is over. ClosedError: the session is not open here, and nothing of the request counts;
            or it was closed since.
        """
        return self._fetch_sessions.fetch(request)

    def close_sessions(self) -> None:
        """Answer no followers any more: the broker ends."""
        self._fetch_sessions.close()

    # ---- fetches of consumers -------------------------------------------------------------------------------

    def fetch_messages(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch]
    ) -> AppendFuture[FetchResponses]:  # fmt: skip
        """Fetch from partitions, in the order of the mapping. Each has an outcome of its own.

        Args:
            params: what holds for all partitions.
            fetches: by partition.

        Returns:
            A future of the responses by partition. It is done already if there are `min_bytes` or an error, or if
            `max_wait_ms` is 0.
        """
        future = AppendFuture[FetchResponses]()
        max_bytes = min(params.max_bytes, FETCH_BYTES_MAX)
        params = params._replace(max_bytes=max_bytes, min_bytes=min(params.min_bytes, max_bytes))
        reads = self._read(params, fetches)
        size = sum(read.data.size for read in reads.values())
        is_over = params.max_wait_ms <= 0 or not reads or size >= params.min_bytes
        if is_over or any(read.data.code is not NO_ERROR for read in reads.values()):
            set_result(future, _data(reads))
            return future

        def read_again() -> FetchResponses:
            return _data(self._read(params, fetches))

        parts = [WatchedPart(read.role, read.start, fetches[name].max_bytes) for name, read in reads.items()]
        deadline_us = self._clock.monotonic_us() + params.max_wait_ms * 1000
        DelayedFetch(parts, params.isolation, params.min_bytes, read_again, future, self._purgatory).watch(deadline_us)
        return future

    def _read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, ConsumerFetch]
    ) -> dict[TopicPartition, PartitionRead]:  # fmt: skip
        """Read all partitions. One batch of them all is given however long it is (KAFKA-19795)."""
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
        except Exception as error:  # the other partitions go on
            logger.exception("%s: a fetch failed", name)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(error).__name__}: {error}"
            return PartitionRead(FetchPartitionData(code, message=message), self._no_role)


def _refused(code: ErrorCode, message: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(code, message=message)


def _data(reads: Mapping[TopicPartition, PartitionRead]) -> FetchResponses:
    return {name: read.data for name, read in reads.items()}
