"""Requests to the partitions of a broker, and their responses: each partition has an outcome of its own."""

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
        code: NONE, or the error. See `ErrorCode` for the errors after which the records may be in the log nevertheless;
            then `base_offset` says where.
        base_offset: offset of the first record; -1: nothing was appended.
        end_offset: offset behind the last record; -1: nothing was appended.
        log_start: where the log begins; -1: not known.
        log_append_time_ms: the append time, if the topic keeps it in place of the producer's times; otherwise -1.
        message: the error in words.
    """

    code: ErrorCode
    base_offset: int = -1
    end_offset: int = -1
    log_start: int = -1
    log_append_time_ms: int = -1
    message: str = ""


ProduceResponses: TypeAlias = dict[TopicPartition, PartitionProduceResponse]
"""The outcome of an append, by partition."""


class FetchIsolation(Enum):
    """Up to where a fetch reads."""

    __hash__ = object.__hash__  # that of Enum is Python code: every append looks a member up

    HIGH_WATERMARK = "high watermark"
    """Up to the high watermark: what is committed (Kafka's `read_uncommitted`, a word about transactions)."""
    TXN_COMMITTED = "last stable offset"
    """Up to the last stable offset: what is committed, before the first open transaction (`read_committed`)."""


class FetchParams(NamedTuple):
    """Settings of one fetch of a consumer, for all its partitions.

    Attributes:
        isolation: up to where it reads.
        max_wait_ms: how long it may wait for `min_bytes`, milliseconds.
        min_bytes: it is answered as soon as its partitions have so many bytes together.
        max_bytes: of all partitions together, roughly. The first batch of the first partition that has one is given
            however long it is, unless `has_hard_limit`.
        has_hard_limit: `max_bytes` holds for the first batch as well.
        only_leader: only the leader may answer; False: a follower may, as far as it knows the high watermark.
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
        offset: the first offset that it wants.
        max_bytes: of this partition, roughly.
        leader_epoch: the number of the leader epoch that the consumer knows of; None: it knows of none.
    """

    offset: int
    max_bytes: int = 1 << 20
    leader_epoch: int | None = None


class ReplicaFetch(NamedTuple):
    """A follower's fetch of one partition.

    Attributes:
        fetch: the message of the follower's state machine.
        max_bytes: of this partition, roughly (`replica.fetch.max.bytes`).
    """

    fetch: Fetch
    max_bytes: int = 1 << 20


class ReplicaFetchRequest(NamedTuple):
    """Fetches of the followers of one broker, in a session (KIP-227).

    The leader remembers fetches that it has not answered. So a request names only new ones, and an answer only
    partitions with records, a new high watermark, a new start of the log, or an error.

    Attributes:
        member: the broker of the followers, in its incarnation.
        session: number of the session, which the broker draws; it begins a new one when a request has failed.
        is_first: it is the first one of its session: the leader forgets the broker's former session.
        max_wait_ms: it is answered after so many milliseconds at the latest.
        max_bytes: of all partitions together, roughly. The first batch of the first partition that has one is given
            however long it is.
        fetches: by partition. The leader keeps the one with the highest number of each partition.
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
        producer_id: of its producer.
        first_offset: of its first record.
    """

    producer_id: int
    first_offset: int


class FetchPartitionData(NamedTuple):
    """The outcome of a fetch of one partition. Offsets of an error are -1.

    Attributes:
        code: NONE, or the error.
        high_watermark: offset up to which the log is committed.
        last_stable: offset before which no transaction is open.
        log_start: where the log begins.
        records: whole records as they lie in the log; None: none. The first one may begin before the offset that was
            asked for. The views pin segments: copy them, or send them soon.
        aborted: the aborted transactions that the records belong to (TXN_COMMITTED).
        response: what is sent to a follower; None: to a consumer.
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
    """A producer that a log knows (DescribeProducers).

    Attributes:
        producer_id: of the producer.
        producer_epoch: of its last batch or marker.
        last_sequence: of its last batch; -1: none is known.
        last_used_ms: when that was appended, milliseconds since 1970-01-01 UTC; -1: that is not known.
        coordinator_epoch: of its last marker; -1: there is none.
        transaction_start: offset at which its open transaction begins; -1: none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_used_ms: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = -1


class WriteMarkersRequest(NamedTuple):
    """A transaction coordinator ends a transaction in partitions that the receiver leads.

    Attributes:
        marker: the control record.
        transaction_version: 2: the marker has a higher producer epoch than the batches that it ends; 1: it need not.
        partitions: those of the transaction, each with the number of the leader epoch in which alone the marker is
            appended.
    """

    marker: TransactionMarker
    transaction_version: int
    partitions: Mapping[TopicPartition, int]


class VerifyTransactionRequest(NamedTuple):
    """A leader asks the coordinator of a transactional id whether partitions belong to its open transaction.

    Attributes:
        transactional_id: the id.
        producer_id: of its producer.
        producer_epoch: of the producer.
        partitions: the partitions that the leader asks about.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


PartitionCodes: TypeAlias = dict[TopicPartition, ErrorCode]
"""The outcome of such a request, by partition. NONE: the marker is committed; the partition is in the transaction."""


class CleanedSegmentsRequest(NamedTuple):
    """A follower asks the leader which segments it has compacted, and says how far its own log is compacted.

    Attributes:
        partition: the partition.
        member: the follower.
        epoch: of the leader.
        cleaned: offset up to which the follower's log is compacted.
    """

    partition: TopicPartition
    member: Member
    epoch: LeaderEpoch
    cleaned: int


class CleanedSegments(NamedTuple):
    """The segments that a leader has compacted.

    Attributes:
        code: NONE, or the error; OFFSET_NOT_AVAILABLE: the leader does not know yet.
        cleaned: offset up to which its log is compacted.
        segments: those before that offset, ascending.
    """

    code: ErrorCode
    cleaned: int = 0
    segments: Sequence[SegmentDigest] = ()


class SegmentReadRequest(NamedTuple):
    """A follower asks the leader for bytes of a segment that it has compacted.

    Attributes:
        partition: the partition.
        epoch: of the leader.
        base: position where the segment begins.
        offset: of the first byte in the segment.
        max_bytes: how many bytes at most.
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


class PartitionOffsets(NamedTuple):
    """The offsets of a partition, of one moment. Offsets of an error are -1.

    Attributes:
        code: NONE, or the error.
        start: where the log begins.
        end: where the leader's log ends.
        high_watermark: up to where it is committed.
        last_stable: before which no transaction is open.
        at_time: of the first record that was appended at or after the time that was asked for, or the high watermark;
            -1: no time was asked for.
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
        since_us: find the first record that was appended at or after this time, microseconds since 1970; None: do not.
        offsets: tell when the records at these offsets were appended; for an offset before the start of the log, the
            first record.
    """

    since_us: int | None = None
    offsets: tuple[int, ...] = ()


class PartitionDescription(NamedTuple):
    """The leader's answer to a `PartitionQuery`.

    Attributes:
        offsets: of one moment; its `at_time` is that of the query's `since_us`.
        followers: how far each is. One that has never fetched from this leader, and is not in the ISR, is missing.
        times_us: when the records at the offsets of the query were appended, microseconds since 1970, in their order;
            -1: there is no such record, or it cannot be read.
    """

    offsets: PartitionOffsets
    followers: tuple[FollowerProgress, ...] = ()
    times_us: tuple[int, ...] = ()
