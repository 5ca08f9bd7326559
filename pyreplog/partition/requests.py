"""Requests to the partitions of a broker, and their responses: each partition has its own outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyreplog.partition.protocol.epochs import LeaderEpoch
from pyreplog.partition.protocol.error_codes import ErrorCode
from pyreplog.partition.protocol.isr import FollowerProgress
from pyreplog.partition.protocol.messages import Fetch, FetchResponse
from pyreplog.partition.protocol.partition_state import Member
from pyreplog.partition.protocol.transactions import TransactionMarker
from pyreplog.partition.store.partition_log import LogSlice
from pyreplog.partition.store.segment_copy import SegmentDigest
from pyreplog.partition.topic_partition import TopicPartition
from pyreplog.times import Time

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Messages(NamedTuple):
    """Native messages to append, which take one offset each.

    Attributes:
        values: bytes-like.
        keys: as many keys, each bytes-like or None; None: no keys.
        event_times: as many times, or None; None: no event times.
    """

    values: Sequence[ReadableBuffer]
    keys: Sequence[ReadableBuffer | None] | None = None
    event_times: Sequence[Time | None] | None = None


Records: TypeAlias = "Messages | ReadableBuffer"
"""Native messages, or one Kafka record batch of version 2."""


class PartitionProduceResponse(NamedTuple):
    """The outcome of an append to one partition.

    Attributes:
        code: NONE, or the error. After some errors the records may be in the log, see `ErrorCode`; then `base_offset`
            is their offset.
        base_offset: offset of the first record; -1: no record was appended.
        end_offset: offset behind the last record; -1: no record was appended.
        log_start: where the log begins; -1: unknown.
        log_append_time_ms: the append time, if the topic stores it in place of the producer's times; otherwise -1.
        message: the error in words.
        refused_records: numbers of the records for which the batch was refused, from 0 on; (): the batch as a whole.
    """

    code: ErrorCode
    base_offset: int = -1
    end_offset: int = -1
    log_start: int = -1
    log_append_time_ms: int = -1
    message: str = ""
    refused_records: Sequence[int] = ()


ProduceResponses: TypeAlias = dict[TopicPartition, PartitionProduceResponse]
"""The outcome of an append, by partition."""


class FetchIsolation(Enum):
    """Up to where a fetch reads."""

    __hash__ = object.__hash__  # hash in C: every append looks a member up

    HIGH_WATERMARK = "high watermark"
    """Up to the high watermark: all committed records (Kafka's `read_uncommitted`, a word about transactions)."""
    TXN_COMMITTED = "last stable offset"
    """Up to the last stable offset: committed records before the first open transaction (`read_committed`)."""


class FetchParams(NamedTuple):
    """Settings of one fetch of a consumer, for all its partitions.

    Attributes:
        isolation: up to where it reads.
        max_wait_ms: how long it may wait for `min_bytes`, milliseconds.
        min_bytes: number of bytes in all partitions together for which it waits.
        max_bytes: approximate size of all partitions together. The first batch of the first partition with one is
            returned whatever its size, unless `has_hard_limit`.
        has_hard_limit: whether `max_bytes` bounds the first batch as well.
        only_leader: whether only the leader may answer; False: a follower may, up to the high watermark that it knows.
    """

    isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    has_hard_limit: bool = False
    only_leader: bool = True


class ConsumerFetch(NamedTuple):
    """A consumer's fetch of one partition.

    Attributes:
        offset: the first requested offset.
        max_bytes: approximate size for this partition.
        leader_epoch: the number of the leader epoch that the consumer knows; None: it knows none.
    """

    offset: int
    max_bytes: int = 1 << 20
    leader_epoch: int | None = None


class ReplicaFetch(NamedTuple):
    """A follower's fetch of one partition.

    Attributes:
        fetch: the message of the follower's state machine.
        max_bytes: approximate size for this partition (`replica.fetch.max.bytes`).
    """

    fetch: Fetch
    max_bytes: int = 1 << 20


class ReplicaFetchRequest(NamedTuple):
    """Fetches of the followers of one broker, in a session (KIP-227).

    The leader keeps fetches that it has not answered. So a request has only new fetches, and an answer only partitions
    with records, a new high watermark, a new start of the log, or an error.

    Attributes:
        member: the broker of the followers, with its incarnation.
        session: number of the session, chosen by that broker; it begins a new one after a failed request.
        is_first: whether it is the first request of its session, with which the leader closes the broker's former
            session.
        max_wait_ms: milliseconds after which it is answered at the latest.
        max_bytes: approximate size of all partitions together. The first batch of the first partition with one is
            returned whatever its size.
        fetches: fetches by partition. The leader keeps the one with the highest number for each partition.
    """

    member: Member
    session: int
    is_first: bool
    max_wait_ms: int
    max_bytes: int
    fetches: Mapping[TopicPartition, ReplicaFetch]


class AbortedTransaction(NamedTuple):
    """An aborted transaction, whose records a consumer of committed data skips until the transaction's marker.

    Attributes:
        producer_id: id of its producer.
        first_offset: offset of its first record.
    """

    producer_id: int
    first_offset: int


class ReadReplicas(NamedTuple):
    """The replicas from which a consumer can read at an offset, apart from the leader (KIP-392).

    Attributes:
        brokers: brokers of the in-sync followers that have the offset, the longest log first.
        offsets: the offsets of the leader.
    """

    brokers: Sequence[str]
    offsets: PartitionOffsets


class FetchPartitionData(NamedTuple):
    """The outcome of a fetch of one partition. Offsets of an error are -1.

    Attributes:
        code: NONE, or the error.
        high_watermark: offset up to which the log is committed.
        last_stable: offset before which no transaction is open.
        log_start: where the log begins.
        records: complete records with the bytes of the log; None: no records. The first one may begin before the
            requested offset. The views pin segments: copy them, or send them soon.
        aborted: the aborted transactions that the records belong to (TXN_COMMITTED).
        response: the response to a follower; None: it is a consumer's fetch.
        message: the error in words.
    """

    code: ErrorCode
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    records: LogSlice | None = None
    aborted: Sequence[AbortedTransaction] = ()
    response: FetchResponse | None = None
    message: str = ""

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return 0 if self.records is None else sum(len(memoryview(body)) for _, body in self.records.frames)


FetchResponses: TypeAlias = dict[TopicPartition, FetchPartitionData]
"""The outcome of a fetch, by partition."""


class ActiveProducer(NamedTuple):
    """A producer in the state of a log (DescribeProducers).

    Attributes:
        producer_id: id of the producer.
        producer_epoch: epoch of its last batch or marker.
        last_sequence: sequence number of its last batch; -1: unknown.
        last_used_ms: time of that append, milliseconds since 1970-01-01 UTC; -1: unknown.
        coordinator_epoch: epoch of its last marker; -1: no marker.
        transaction_start: offset at which its open transaction begins; -1: no transaction is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_used_ms: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1


class WriteMarkersRequest(NamedTuple):
    """A transaction coordinator's request to end a transaction in partitions that the receiver leads.

    Attributes:
        marker: the control record.
        transaction_version: 2: the marker has a higher producer epoch than the batches that it ends; 1: not
            necessarily.
        partitions: partitions of the transaction, each with the number of the only leader epoch in which the marker may
            be appended.
    """

    marker: TransactionMarker
    transaction_version: int
    partitions: Mapping[TopicPartition, int]


class VerifyTransactionRequest(NamedTuple):
    """A leader's request to the coordinator of a transactional id, whether partitions belong to its open transaction.

    Attributes:
        transactional_id: the id.
        producer_id: id of its producer.
        producer_epoch: epoch of the producer.
        partitions: the partitions.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


PartitionCodes: TypeAlias = dict[TopicPartition, ErrorCode]
"""The outcome of these requests, by partition. NONE: the marker is committed; the partition belongs to the
transaction."""


class CleanedSegmentsRequest(NamedTuple):
    """A follower's request for the list of the leader's compacted segments, which also reports how far its own log is
    compacted.

    Attributes:
        partition: the partition.
        member: the follower.
        epoch: epoch of the leader.
        cleaned: offset up to which the follower's log is compacted.
    """

    partition: TopicPartition
    member: Member
    epoch: LeaderEpoch
    cleaned: int


class CleanedSegments(NamedTuple):
    """The segments that a leader has compacted.

    Attributes:
        code: NONE, or the error; OFFSET_NOT_AVAILABLE: the leader has not listed them yet.
        cleaned: offset up to which its log is compacted.
        segments: digests of the segments before that offset, ascending.
    """

    code: ErrorCode
    cleaned: int = 0
    segments: Sequence[SegmentDigest] = ()


class SegmentReadRequest(NamedTuple):
    """A follower's request for bytes of a segment that the leader has compacted.

    Attributes:
        partition: the partition.
        epoch: epoch of the leader.
        base: position where the segment begins.
        offset: offset of the first requested byte in the segment.
        max_bytes: most bytes of the answer.
    """

    partition: TopicPartition
    epoch: LeaderEpoch
    base: int
    offset: int
    max_bytes: int


class SegmentPiece(NamedTuple):
    """Bytes of a segment.

    Attributes:
        code: NONE, or the error.
        data: the bytes; with NONE at least one.
    """

    code: ErrorCode
    data: ReadableBuffer = b""


class ProducerSnapshotRequest(NamedTuple):
    """A replica's request for a producer snapshot of another replica, because its own one is lost.

    Attributes:
        partition: the partition.
        first: lowest position of the segment before which the snapshot lies.
        last: highest position of that segment. The first snapshot in the range is read.
        offset: offset of the first requested byte in the file.
        max_bytes: most bytes of the answer.
    """

    partition: TopicPartition
    first: int
    last: int
    offset: int
    max_bytes: int


class ProducerSnapshotPiece(NamedTuple):
    """Bytes of the file of a producer snapshot.

    Attributes:
        code: NONE, or the error; OFFSET_NOT_AVAILABLE: the replica has no such snapshot.
        base: position of the segment before which the snapshot lies.
        size: bytes of the whole file.
        data: the bytes; with NONE at least one.
    """

    code: ErrorCode
    base: int = 0
    size: int = 0
    data: ReadableBuffer = b""


class PartitionOffsets(NamedTuple):
    """The offsets of a partition at one moment. Offsets of an error are -1.

    Attributes:
        code: NONE, or the error.
        start: where the log begins.
        end: where the leader's log ends.
        high_watermark: offset up to which it is committed.
        last_stable: offset before which no transaction is open.
        at_time: offset of the first record that was appended at or after the requested time, or the high watermark; -1:
            no time was requested.
    """

    code: ErrorCode
    start: int = -1
    end: int = -1
    high_watermark: int = -1
    last_stable: int = -1
    at_time: int = -1


class PartitionQuery(NamedTuple):
    """A query of a partition, for its offsets and more.

    Attributes:
        since_us: time, microseconds since 1970, of which the first record at or after it is requested; None: no such
            request.
        offsets: offsets of records whose append times are requested; before the start of the log the first record
            counts.
    """

    since_us: int | None = None
    offsets: tuple[int, ...] = ()


class PartitionDescription(NamedTuple):
    """The leader's answer to a `PartitionQuery`.

    Attributes:
        offsets: offsets at one moment; its `at_time` belongs to the query's `since_us`.
        followers: progress of the followers. A follower that is not in the ISR and has never fetched from this leader
            is missing.
        times_us: append times of the records at the query's offsets, microseconds since 1970, in the same order; -1:
            the record does not exist, or cannot be read.
    """

    offsets: PartitionOffsets
    followers: tuple[FollowerProgress, ...] = ()
    times_us: tuple[int, ...] = ()
