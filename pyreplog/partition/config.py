"""Settings of partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyreplog.config import LogConfig, Settings
from pyreplog.partition.protocol.leading import ReplicaConfig
from pyreplog.partition.protocol.record_batch import AppendLimits


class RetentionConfig(NamedTuple):
    """The limits by which retention removes the oldest segments of a partition; None: no limit.

    Attributes:
        retention_ms: age of a segment's last record at which the segment is removed, milliseconds.
        retention_bytes: size of the log, without the oldest segment, at which that segment is removed.
        segment_ms: age of a segment's first record at which the segment is rolled, milliseconds; if `retention_ms` is
            less, that counts.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_ms: int | None = None


class CompactionConfig(NamedTuple):
    """The settings of the compaction of a partition, which keeps only the last record of each key.

    Attributes:
        min_dirty_ratio: a log is cleaned when more than this fraction of it was never cleaned
            (`min.cleanable.dirty.ratio`).
        min_lag_ms: minimal age of records that may be removed, milliseconds (`min.compaction.lag.ms`).
        max_lag_ms: a log is cleaned when a record that was never cleaned has this age, milliseconds
            (`max.compaction.lag.ms`); None: the ratio alone counts.
        delete_retention_ms: how long a tombstone is kept after it was found to be the last record of its key,
            milliseconds (`delete.retention.ms`).
    """

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int | None = None
    delete_retention_ms: int = 86_400_000


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """Settings of the partitions of one topic.

    Attributes:
        replicas: settings of its replicas; `requires_sync` makes its appends durable.
        limits: limits of its batches.
        log_append_time: whether the time of the append replaces the producer's (`message.timestamp.type`).
        transaction_version: 2: a marker has a higher epoch than the batches that it ends (KIP-890); 1: not necessarily.
        retention: limits of retention.
        compaction: settings of compaction; None: the topic is not compacted.
    """

    replicas: ReplicaConfig = field(default_factory=ReplicaConfig)
    limits: AppendLimits = field(default_factory=AppendLimits)
    log_append_time: bool = False
    transaction_version: int = 2
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    compaction: CompactionConfig | None = None


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(Settings):
    """Settings of a broker of partitions.

    Attributes:
        lease_ms: milliseconds for which a dead broker counts as alive (`broker.session.timeout.ms`).
        segment_bytes: size of the segment files of topics without `TopicSettings.segment_bytes`, a multiple of 4096,
            the same for all brokers; fixed when a log is created.
        lag_ms: milliseconds after which a follower that is not caught up leaves the ISR (`replica.lag.time.max.ms`).
        fetch_wait_ms: milliseconds for which a follower's fetch waits for records (`replica.fetch.wait.max.ms`).
        fetch_bytes_max: most bytes of one fetch of followers, for all partitions (`replica.fetch.response.max.bytes`).
        catch_up_bytes_per_s: bytes per second that the broker fetches for replicas that are not in the ISR, as while a
            reassignment moves partitions to it (`follower.replication.throttled.rate`, KIP-73); None: no limit.
            Replicas in the ISR are never throttled.
        backoff_ms: milliseconds after which a failed fetch is retried (`replica.fetch.backoff.ms`).
        sync_ms: interval of syncs of the logs of topics with `requires_sync`, milliseconds; a log is synced at once if
            a produce or a leader waits for it.
        checkpoint_ms: interval at which the high watermarks are stored, milliseconds
            (`replica.high.watermark.checkpoint.interval.ms`).
        retention_check_ms: interval of retention checks, milliseconds (`log.retention.check.interval.ms`).
        cleaner_check_ms: interval of checks for logs to compact, milliseconds (`log.cleaner.backoff.ms`).
        cleaner_map_bytes: memory for the keys of one log while it is compacted (`log.cleaner.dedupe.buffer.size`); a
            key takes 24 bytes.
        balance_ms: interval of elections of preferred leaders, milliseconds.
        replace_after_ms: milliseconds without a lease after which the controller replaces a broker's replicas on
            others; replacements that are not complete when the broker comes back are cancelled. None or 0: operators
            replace brokers. The same for all brokers.
        producer_expiration_ms: milliseconds after which the state of an idle producer expires, so that it may begin
            with any sequence number (`producer.id.expiration.ms`).
        producer_expiration_check_ms: interval of checks for expired producers, milliseconds
            (`producer.id.expiration.check.interval.ms`).
        readmit_ms: milliseconds after which a replica whose log failed, or could not be opened, is opened again.
        stray_grace_ms: milliseconds after which a stray, the directory of a replica that the metadata do not name, is
            removed.
        stop_ms: milliseconds for which a closing broker waits until others have taken over its leaderships.
        transaction_state_partitions: number of partitions of `__transaction_state`
            (`transaction.state.log.num.partitions`).
        transaction_state_replication_factor: replicas of its partitions; fewer if fewer brokers are registered
            when it is created.
        transaction_state_min_isr: `min.insync.replicas` of that topic (`transaction.state.log.min.isr`).
        transaction_max_timeout_ms: the longest time-out of transactions (`transaction.max.timeout.ms`).
        transactional_id_expiration_ms: milliseconds after which an unused transactional id is removed
            (`transactional.id.expiration.ms`).
    """

    lease_ms: int = 3_000
    segment_bytes: int = field(default_factory=lambda: LogConfig.default_segment_bytes)
    lag_ms: int = 30_000
    fetch_wait_ms: int = 500
    fetch_bytes_max: int = 10 << 20
    catch_up_bytes_per_s: int | None = None
    backoff_ms: int = 100
    sync_ms: int = 5
    checkpoint_ms: int = 5_000
    retention_check_ms: int = 300_000
    cleaner_check_ms: int = 15_000
    cleaner_map_bytes: int = 128 << 20
    balance_ms: int = 300_000
    replace_after_ms: int | None = None
    producer_expiration_ms: int = 86_400_000
    producer_expiration_check_ms: int = 600_000
    readmit_ms: int = 10_000
    stray_grace_ms: int = 86_400_000
    stop_ms: int = 5_000
    transaction_state_partitions: int = 50
    transaction_state_replication_factor: int = 3
    transaction_state_min_isr: int = 2
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000

    def __post_init__(self) -> None:
        self.log_config()  # checks `segment_bytes`
        self._check_int("lease_ms", 100, 86_400_000)
        self._check_int("lag_ms", 100, 86_400_000)
        self._check_int("fetch_wait_ms", 0, 60_000)
        self._check_int("fetch_bytes_max", 1, 1 << 30)
        self._check_int("catch_up_bytes_per_s", 1, 1 << 50, optional=True)
        self._check_int("backoff_ms", 1, 60_000)
        self._check_int("sync_ms", 1, 60_000)
        self._check_int("checkpoint_ms", 1, 3_600_000)
        self._check_int("retention_check_ms", 1, 1 << 40)
        self._check_int("cleaner_check_ms", 1, 1 << 40)
        self._check_int("cleaner_map_bytes", 1024, 1 << 36)
        self._check_int("balance_ms", 1, 1 << 40)
        self._check_int("replace_after_ms", 0, 1 << 40, optional=True)
        self._check_int("producer_expiration_ms", 1, 1 << 40)
        self._check_int("producer_expiration_check_ms", 1, 1 << 40)
        self._check_int("readmit_ms", 10, 86_400_000)
        self._check_int("stray_grace_ms", 0, 1 << 40)
        self._check_int("stop_ms", 0, 3_600_000)
        self._check_int("transaction_state_partitions", 1, 65_536)
        self._check_int("transaction_state_replication_factor", 1, 32)
        self._check_int("transaction_state_min_isr", 1, 32)
        self._check_int("transaction_max_timeout_ms", 1, (1 << 31) - 1)
        self._check_int("transactional_id_expiration_ms", 1, 1 << 40)

    def log_config(self, segment_bytes: int | None = None) -> LogConfig:
        """Return the settings of a partition's log.

        Args:
            segment_bytes: the topic's setting; None: not set.
        """
        return LogConfig(segment_bytes=self.segment_bytes if segment_bytes is None else segment_bytes)
