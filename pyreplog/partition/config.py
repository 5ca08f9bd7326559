"""Settings of partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyreplog.config import LogConfig, Settings
from pyreplog.partition.protocol.leading import ReplicaConfig
from pyreplog.partition.protocol.record_batch import AppendLimits


class RetentionConfig(NamedTuple):
    """Which records of a partition go, the oldest first; None: no limit.

    Attributes:
        retention_ms: those of segments whose last record was appended so long ago, milliseconds.
        retention_bytes: those of segments without which the log still has so many bytes.
        segment_ms: age of a segment's first record at which the segment takes no more, milliseconds; if `retention_ms`
            is less, that counts.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_ms: int | None = None


class CompactionConfig(NamedTuple):
    """Of which records of a partition only the last one with each key stays.

    Attributes:
        min_dirty_ratio: a log is cleaned when more than this part of it was never cleaned
            (`min.cleanable.dirty.ratio`).
        min_lag_ms: a record stays for so long, milliseconds (`min.compaction.lag.ms`).
        max_lag_ms: a log is cleaned when a record that was never looked at is so old, milliseconds
            (`max.compaction.lag.ms`); None: the ratio alone counts.
        delete_retention_ms: a tombstone stays so long after it was found to be the last record of its key, milliseconds
            (`delete.retention.ms`).
    """

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int | None = None
    delete_retention_ms: int = 86_400_000


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """Settings of the partitions of one topic.

    Attributes:
        replicas: of its replicas; `requires_sync` is what makes its appends durable.
        limits: of its batches.
        log_append_time: the time of the append counts, not the producer's (`message.timestamp.type`).
        transaction_version: 2: a marker has a higher epoch than the batches that it ends (KIP-890); 1: it need not.
        retention: which records go.
        compaction: of its partitions by key; None: there is none.
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
        lease_ms: milliseconds for which a broker that is dead counts as alive (`broker.session.timeout.ms`).
        segment_bytes: size of the segment files of topics that do not say (`TopicSettings.segment_bytes`), a multiple
            of 4096, the same for all brokers; fixed when a log is made.
        lag_ms: a follower that was not caught up for so long leaves the ISR (`replica.lag.time.max.ms`), milliseconds.
        fetch_wait_ms: a follower's fetch waits so long for records (`replica.fetch.wait.max.ms`), milliseconds.
        fetch_bytes_max: bytes of one fetch of a follower, of all partitions (`replica.fetch.response.max.bytes`).
        catch_up_bytes_per_s: bytes per second that the broker fetches for replicas that are not in the ISR, as while a
            reassignment moves partitions to it (`follower.replication.throttled.rate`, KIP-73); None: no limit.
            Replicas in the ISR are never held back.
        backoff_ms: milliseconds after which a fetch that failed is sent again (`replica.fetch.backoff.ms`).
        sync_ms: logs of topics whose replicas count what is on their disks are synced so often, milliseconds; at once
            if a produce waits for it, or a leader.
        checkpoint_ms: the high watermarks are stored so often, milliseconds
            (`replica.high.watermark.checkpoint.interval.ms`).
        retention_check_ms: milliseconds between two looks for records that go (`log.retention.check.interval.ms`).
        cleaner_check_ms: milliseconds between two looks for logs to compact (`log.cleaner.backoff.ms`).
        cleaner_map_bytes: memory for the keys of one log while it is compacted (`log.cleaner.dedupe.buffer.size`); a
            key takes 24 bytes.
        balance_ms: milliseconds between two looks for partitions that their preferred leaders do not lead.
        replace_after_ms: the controller has the replicas of a broker made anew on others when its lease is missing for
            so long, milliseconds, and cancels what is not complete when it comes back; None or 0: operators do that.
            The same for all brokers.
        producer_expiration_ms: a producer that is idle for so long is forgotten, and may begin with any sequence number
            (`producer.id.expiration.ms`), milliseconds.
        producer_expiration_check_ms: milliseconds between two looks for such producers
            (`producer.id.expiration.check.interval.ms`).
        readmit_ms: milliseconds after which a replica whose log failed, or could not be opened, is tried again.
        stray_grace_ms: a directory of a replica that no metadata name is set aside, and removed after so many
            milliseconds.
        stop_ms: a broker that is closed waits so long for others to take its leaderships over, milliseconds.
        transaction_state_partitions: of the topic of transaction coordinators (`transaction.state.log.num.partitions`).
        transaction_state_replication_factor: of that topic; fewer if there are fewer brokers when it is created.
        transaction_state_min_isr: of that topic (`transaction.state.log.min.isr`).
        transaction_max_timeout_ms: the longest time-out of transactions (`transaction.max.timeout.ms`).
        transactional_id_expiration_ms: an id that nobody uses is removed after so long
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
        self.log_config()  # its own checks
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
            segment_bytes: what its topic says; None: nothing.
        """
        return LogConfig(segment_bytes=self.segment_bytes if segment_bytes is None else segment_bytes)
