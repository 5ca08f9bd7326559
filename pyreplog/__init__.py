"""pyreplog: the replicated commit log that a Python service embeds.

| package | holds |
|---|---|
| `log` | the commit log: a directory of mapped segments |
| `ha`, `stream` | replica groups: replication of a log to other nodes; the protocol for its bytes |
| `partition` | partitions with Kafka's replica manager: brokers, their replicas, a controller |
| `record_batches` | Kafka's record batches: checks, readers and builders |
| `rocketmq` | RocketMQ's HA protocol, as master and as slave |
| `ledger`, `bookie`, `metadata` | ledgers, striped over bookies; the bookie, a storage node; the metadata store |
| `cursors` | stored subscriptions: metadata, and acknowledgements in ledgers that many subscriptions share |
| `origins` | which messages of other clusters a topic has: gates for replicated messages |
| `topic` | queues and streams on ledgers, in this process or at a server |
| `geo` | geo-replication: sends topics to other clusters |
| `kafka` | the Kafka listener: serves Kafka clients |
| `autorecovery` | auditor, workers and operators: re-replication of lost copies; moves, drains, repairs, health |
| `tables`, `reports`, `spark` | logs, ledgers and topics as Arrow columns; reports on them; Spark's data source |
| `offload` | sealed segments on object storage |
| `net` | frames over TCP |
| `cli` | the command line |
| `testing` | clusters and servers for the tests of programs that use pyreplog |
| `errors` | every exception |
| `_native` | compiled kernels, and FORMAT.md, which describes every byte of the formats |

| module | holds |
|---|---|
| `cluster` | `Cluster`: bookies, metadata, ledgers and topics in one object |
| `future` | `AppendFuture`: the future outcome of a submitted entry |
| `config`, `clock` | settings of a log, and the base class of settings; time |
| `metrics`, `metrics_http_server` | metrics for Prometheus; the server for scrapes |
| `handles`, `defer_sigint` | the base class of handles; delaying Ctrl-C |
| `log_like` | `LogLike` and `AppenderLike`: Protocols for reading and following a log, and for appending to it |
| `times` | times: datetimes, and microseconds since 1970 |
| `purgatory`, `timing_wheel` | waits for a number to be reached, or for deadlines; deadlines of many waiters |
| `arguments` | checks of arguments |
| `coroutines` | coroutine forms of blocking methods; refusing to block an event loop |
| `event_queue`, `fair_lock` | runs events one at a time; a lock that serves waiters in order |
| `waiting_threads` | threads that are about to wait, and then do the work themselves |
| `topic_names` | names of topics, and their keys in the metadata store |
| `regular_files` | opening files safely, when a pipe or a link may have their names |
| `disk_usage` | the space that files take on a disk |
| `checksummed_json` | JSON files with a format, a version and a checksum |
| `plurals` | numbers with their nouns and verbs, for messages |

A name is imported from its module when it is first used: a program that uses only the log does not load sqlite3, and
the command line loads its modules where it handles Ctrl-C.
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

_MODULES = {
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


if not TYPE_CHECKING:  # a type checker would accept every name as one of this module

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"pyreplog.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
