"""pyreplog: the replicated commit log that a Python service embeds.

| package | what it is |
|---|---|
| `log` | the commit log: a directory of mapped segments |
| `ha`, `stream` | replica groups: a log streamed to others; how its bytes travel |
| `partition` | partitions with Kafka's replica manager: brokers, their replicas, a controller |
| `record_batches` | Kafka's record batches: checked, read, built |
| `rocketmq` | RocketMQ's HA protocol, as master and as slave |
| `ledger`, `bookie`, `metadata` | ledgers, striped over storage nodes; such a node; where both are known |
| `cursors` | subscriptions as they are stored: metadata, and acknowledgements in ledgers that many share |
| `origins` | which messages of other clusters a topic has: gates for what is replicated into it |
| `topic` | queues and streams on ledgers, here or at a server |
| `geo` | geo-replication: topics are sent to other clusters |
| `kafka` | the Kafka listener: every Kafka client as a guest |
| `autorecovery` | an auditor, workers and operators: lost copies are made again; moves, drains, repairs, health |
| `tables`, `reports`, `spark` | all of it as Arrow columns; reports on it; Spark's data source |
| `offload` | sealed segments on object storage |
| `net` | frames over TCP |
| `cli` | the command line |
| `testing` | clusters and servers for the tests of programs that use pyreplog |
| `errors` | every exception |
| `_native` | compiled kernels, and FORMAT.md, which says what every byte means |

| module | holds |
|---|---|
| `cluster` | `Cluster`: bookies, metadata, ledgers and topics put together |
| `future` | the handle of something submitted |
| `config`, `clock` | settings of a log, and how all settings are made; time |
| `metrics`, `metrics_http_server` | numbers for Prometheus; what they are served by |
| `handles`, `defer_sigint` | what open handles have in common; Ctrl-C put off |
| `log_like` | `LogLike` and `AppenderLike`: what reads and follows a log, and what appends to it, as types |
| `times` | moments: datetimes, and microseconds since 1970 |
| `purgatory`, `timing_wheel` | waits for numbers to be reached, or for deadlines; deadlines of many waiters |
| `arguments` | checks of what callers give |
| `coroutines` | coroutine forms of blocking methods; refusing to block an event loop |
| `event_queue`, `fair_lock` | runs events one at a time; a lock that serves waiters in their order |
| `waiting_threads` | threads that are about to wait, and do themselves what they wait for |
| `topic_names` | names of topics, and their keys in the metadata store |
| `regular_files` | opening files in whose place somebody may have put something else |
| `disk_usage` | the space that files take on a disk |
| `checksummed_json` | manifests |
| `plurals` | numbers with their nouns and verbs, for messages |

What a name needs is imported when it is first asked for: a program that uses the log alone loads no sqlite3, and the
command line can load what it needs where it looks out for Ctrl-C.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyreplog._version import VERSION as __version__
from pyreplog.errors import (
    AppendRefusedError,
    ApplyError,
    AuthenticationError,
    BacklogFullError,
    BookieStateError,
    ChangeUnderWayError,
    CheckpointError,
    ClosedError,
    ClusterCredentialsError,
    ClusterExistsError,
    ClusterInUseError,
    ClusterUnreachableError,
    CommandRefusedError,
    ConfigError,
    CorruptionError,
    DamagedMessageError,
    DeposedError,
    DisconnectedError,
    DiskError,
    DiskFullError,
    DrainBlockedError,
    EmptyDirectoryError,
    EntryRefusedError,
    ForeignDirectoryError,
    ForkedError,
    FormatVersionError,
    FrameError,
    GeoError,
    GroupLogError,
    HandoverError,
    HandoverUnconfirmedError,
    HandshakeError,
    HigherTermError,
    IdentityError,
    IncarnationError,
    InvalidArgumentError,
    InvalidEntryError,
    InvalidMessageError,
    InvalidMetadataError,
    InvalidRecordBatchError,
    InvalidRecordsError,
    InvalidRequestError,
    JoinRefusedError,
    KeyExistsError,
    KeyNotEmptyError,
    LastCopyError,
    LeaseLostError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerRefusedError,
    LockedError,
    MetadataAccessError,
    MetadataLayoutError,
    MetadataUnavailableError,
    MetadataVersionError,
    MissingExtraError,
    MissingIdentityError,
    MonkeyPatchedError,
    NoSuchBookieError,
    NoSuchClusterError,
    NoSuchEntryError,
    NoSuchKeyError,
    NoSuchLedgerError,
    NoSuchPartitionError,
    NoSuchSubscriptionError,
    NoSuchTopicError,
    NotALogError,
    NotAReplicaError,
    NotConnectedError,
    NotEnoughBookiesError,
    NotEnoughReplicasError,
    NotMasterError,
    ObjectCorruptionError,
    OffloadConflictError,
    OriginGapError,
    OriginHistoryError,
    OriginSessionError,
    OtherRecordError,
    OutcomeUnknownError,
    OutOfRangeError,
    PartitionError,
    PartitionStorageError,
    PartitionTimeoutError,
    PartitionUnavailableError,
    PeerError,
    PeerTimeoutError,
    PoisonedError,
    PositionError,
    ProducerFencedError,
    PromotionRefusedError,
    ProtocolVersionError,
    ReadOnlyError,
    RebalanceError,
    RecordBatchesError,
    RecordTooLargeError,
    ReplicaError,
    ReplicationError,
    ReplicationTimeoutError,
    ReplogError,
    RetiredBookieError,
    SequenceError,
    SlowPeerError,
    StaleDirectoryError,
    StaleMetadataError,
    StorageError,
    StreamError,
    SubscriptionBusyError,
    SubscriptionError,
    TlsMismatchError,
    TooManyConnectionsError,
    TopicError,
    TopicExistsError,
    TopicFencedError,
    TopicFullError,
    TopicOwnedError,
    TrimmedError,
    TruncatedError,
    UnansweredProduceError,
    UnauthorizedError,
    UnknownBookieError,
    UnknownBrokerError,
    UnnumberedError,
    UnreadableError,
    UnsentMessagesError,
    UnsupportedFilesystemError,
    UnsupportedRequestError,
    VersionConflictError,
    WindowFullError,
    WrongClusterError,
    WrongIncarnationError,
    WrongLogError,
    WrongServiceError,
    WrongTypeError,
)

if TYPE_CHECKING:
    from pyreplog._native.log.batch import RecordBatch
    from pyreplog._native.log.record import Record
    from pyreplog.clock import Clock, ManualClock, SystemClock
    from pyreplog.cluster import Cluster
    from pyreplog.config import LogConfig
    from pyreplog.future import AppendFuture
    from pyreplog.ledger.ledger_handle import Ledger
    from pyreplog.ledger.reader import LedgerReader
    from pyreplog.log.commit_log import CommitLog
    from pyreplog.log.log_cursor import LogCursor
    from pyreplog.log.opening import open
    from pyreplog.log.reader import LogReader
    from pyreplog.log_like import AppenderLike, LogLike
    from pyreplog.partition.client.partition_client import PartitionClient
    from pyreplog.topic.client.consumer import Consumer
    from pyreplog.topic.client.partitions.partitioned_consumer import PartitionedConsumer
    from pyreplog.topic.client.partitions.partitioned_producer import PartitionedProducer
    from pyreplog.topic.client.publishing.producer import Producer
    from pyreplog.topic.client.remote.client import Client, connect
    from pyreplog.topic.client.remote.remote_topic import RemotePartitionedTopic, RemoteTopic
    from pyreplog.topic.client.topic_like import ConsumerLike, ProducerLike, TopicLike
    from pyreplog.topic.model.positions import PartitionOffset, PartitionRange
    from pyreplog.topic.owner.partitioned_topic import PartitionedTopic
    from pyreplog.topic.owner.topic import Topic
    from pyreplog.topic.server.topic_server import TopicServer

_LATER = {
    "AppendFuture": "future",
    "AppenderLike": "log_like",
    "Client": "topic.client.remote.client",
    "Clock": "clock",
    "Cluster": "cluster",
    "CommitLog": "log.commit_log",
    "Consumer": "topic.client.consumer",
    "ConsumerLike": "topic.client.topic_like",
    "Ledger": "ledger.ledger_handle",
    "LedgerReader": "ledger.reader",
    "LogConfig": "config",
    "LogCursor": "log.log_cursor",
    "LogLike": "log_like",
    "LogReader": "log.reader",
    "ManualClock": "clock",
    "PartitionClient": "partition.client.partition_client",
    "PartitionOffset": "topic.model.positions",
    "PartitionRange": "topic.model.positions",
    "PartitionedConsumer": "topic.client.partitions.partitioned_consumer",
    "PartitionedProducer": "topic.client.partitions.partitioned_producer",
    "PartitionedTopic": "topic.owner.partitioned_topic",
    "Producer": "topic.client.publishing.producer",
    "ProducerLike": "topic.client.topic_like",
    "Record": "_native.log.record",
    "RecordBatch": "_native.log.batch",
    "RemotePartitionedTopic": "topic.client.remote.remote_topic",
    "RemoteTopic": "topic.client.remote.remote_topic",
    "SystemClock": "clock",
    "Topic": "topic.owner.topic",
    "TopicLike": "topic.client.topic_like",
    "TopicServer": "topic.server.topic_server",
    "connect": "topic.client.remote.client",
    "open": "log.opening",
}  # name -> module

__all__ = [
    "AppendFuture",
    "AppendRefusedError",
    "AppenderLike",
    "ApplyError",
    "AuthenticationError",
    "BacklogFullError",
    "BookieStateError",
    "ChangeUnderWayError",
    "CheckpointError",
    "Client",
    "Clock",
    "ClosedError",
    "Cluster",
    "ClusterCredentialsError",
    "ClusterExistsError",
    "ClusterInUseError",
    "ClusterUnreachableError",
    "CommandRefusedError",
    "CommitLog",
    "ConfigError",
    "Consumer",
    "ConsumerLike",
    "CorruptionError",
    "DamagedMessageError",
    "DeposedError",
    "DisconnectedError",
    "DiskError",
    "DiskFullError",
    "DrainBlockedError",
    "EmptyDirectoryError",
    "EntryRefusedError",
    "ForeignDirectoryError",
    "ForkedError",
    "FormatVersionError",
    "FrameError",
    "GeoError",
    "GroupLogError",
    "HandoverError",
    "HandoverUnconfirmedError",
    "HandshakeError",
    "HigherTermError",
    "IdentityError",
    "IncarnationError",
    "InvalidArgumentError",
    "InvalidEntryError",
    "InvalidMessageError",
    "InvalidMetadataError",
    "InvalidRecordBatchError",
    "InvalidRecordsError",
    "InvalidRequestError",
    "JoinRefusedError",
    "KeyExistsError",
    "KeyNotEmptyError",
    "LastCopyError",
    "LeaseLostError",
    "Ledger",
    "LedgerClosedError",
    "LedgerError",
    "LedgerFencedError",
    "LedgerReader",
    "LedgerRefusedError",
    "LockedError",
    "LogConfig",
    "LogCursor",
    "LogLike",
    "LogReader",
    "ManualClock",
    "MetadataAccessError",
    "MetadataLayoutError",
    "MetadataUnavailableError",
    "MetadataVersionError",
    "MissingExtraError",
    "MissingIdentityError",
    "MonkeyPatchedError",
    "NoSuchBookieError",
    "NoSuchClusterError",
    "NoSuchEntryError",
    "NoSuchKeyError",
    "NoSuchLedgerError",
    "NoSuchPartitionError",
    "NoSuchSubscriptionError",
    "NoSuchTopicError",
    "NotALogError",
    "NotAReplicaError",
    "NotConnectedError",
    "NotEnoughBookiesError",
    "NotEnoughReplicasError",
    "NotMasterError",
    "ObjectCorruptionError",
    "OffloadConflictError",
    "OriginGapError",
    "OriginHistoryError",
    "OriginSessionError",
    "OtherRecordError",
    "OutOfRangeError",
    "OutcomeUnknownError",
    "PartitionClient",
    "PartitionError",
    "PartitionOffset",
    "PartitionRange",
    "PartitionStorageError",
    "PartitionTimeoutError",
    "PartitionUnavailableError",
    "PartitionedConsumer",
    "PartitionedProducer",
    "PartitionedTopic",
    "PeerError",
    "PeerTimeoutError",
    "PoisonedError",
    "PositionError",
    "Producer",
    "ProducerFencedError",
    "ProducerLike",
    "PromotionRefusedError",
    "ProtocolVersionError",
    "ReadOnlyError",
    "RebalanceError",
    "Record",
    "RecordBatch",
    "RecordBatchesError",
    "RecordTooLargeError",
    "RemotePartitionedTopic",
    "RemoteTopic",
    "ReplicaError",
    "ReplicationError",
    "ReplicationTimeoutError",
    "ReplogError",
    "RetiredBookieError",
    "SequenceError",
    "SlowPeerError",
    "StaleDirectoryError",
    "StaleMetadataError",
    "StorageError",
    "StreamError",
    "SubscriptionBusyError",
    "SubscriptionError",
    "SystemClock",
    "TlsMismatchError",
    "TooManyConnectionsError",
    "Topic",
    "TopicError",
    "TopicExistsError",
    "TopicFencedError",
    "TopicFullError",
    "TopicLike",
    "TopicOwnedError",
    "TopicServer",
    "TrimmedError",
    "TruncatedError",
    "UnansweredProduceError",
    "UnauthorizedError",
    "UnknownBookieError",
    "UnknownBrokerError",
    "UnnumberedError",
    "UnreadableError",
    "UnsentMessagesError",
    "UnsupportedFilesystemError",
    "UnsupportedRequestError",
    "VersionConflictError",
    "WindowFullError",
    "WrongClusterError",
    "WrongIncarnationError",
    "WrongLogError",
    "WrongServiceError",
    "WrongTypeError",
    "__version__",
    "connect",
    "open",
]


if not TYPE_CHECKING:  # else every name would be one of this module

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"pyreplog.{_LATER[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
