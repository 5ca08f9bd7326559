"""Settings of the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from pyreplog.config import YEARS_MS, Settings, check_choice
from pyreplog.errors import ConfigError
from pyreplog.kafka.groups.assignors import ASSIGNORS

REBALANCE_DELAY_MS_MAX = 86_400_000
_INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class ConsumerGroupConfig(Settings):
    """Settings of the group coordinator, with Kafka's defaults.

    Attributes:
        offsets_partitions: number of partitions of `__consumer_offsets` (`offsets.topic.num.partitions`) while it does
            not exist. If it exists, its number of partitions is used.
        min_session_timeout_ms: shortest session time-out of a member (`group.min.session.timeout.ms`).
        max_session_timeout_ms: longest session time-out of a member (`group.max.session.timeout.ms`).
        initial_rebalance_delay_ms: milliseconds for which an empty group waits for more members
            (`group.initial.rebalance.delay.ms`).
        new_member_join_timeout_ms: milliseconds for which a new member waits for the others before it is considered
            dead.
        consumer_session_timeout_ms: session time-out of members of consumer groups
            (`group.consumer.session.timeout.ms`).
        consumer_heartbeat_interval_ms: interval between heartbeats of these members
            (`group.consumer.heartbeat.interval.ms`); less than their session time-out.
        consumer_max_size: maximum number of members of a consumer group (`group.consumer.max.size`).
        consumer_assignors: assignors that these members may choose, the default first, separated by commas
            (`group.consumer.assignors`).
        max_size: maximum number of members of a classic group (`group.max.size`), and of member ids that were given out
            and not used yet.
        offset_metadata_max_bytes: maximum size of the metadata of an offset (`offset.metadata.max.bytes`).
        offsets_retention_ms: milliseconds for which offsets of empty groups, and of topics without subscribers, are
            kept (`offsets.retention.minutes`).
        retention_check_ms: milliseconds between two searches for expired offsets
            (`offsets.retention.check.interval.ms`).
        append_timeout_ms: milliseconds for which an append waits for the replicas (`offsets.commit.timeout.ms`). After
            it the outcome is unknown.
        load_bytes: bytes of a partition that are loaded in one step.
        rewrite_bytes: minimum size of a partition, bytes, from which on it is rewritten when it is twice as large as
            its live records: these are appended again, and the records before them are deleted.
    """

    offsets_partitions: int = 50
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = 300_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = _INT_MAX
    consumer_assignors: str = ",".join(ASSIGNORS)
    max_size: int = 100_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    retention_check_ms: int = 600_000
    append_timeout_ms: int = 5_000
    load_bytes: int = 1 << 20
    rewrite_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        self._check_int("offsets_partitions", 1, 10_000)
        self._check_int("min_session_timeout_ms", 1, _INT_MAX)
        self._check_int("max_session_timeout_ms", self.min_session_timeout_ms, _INT_MAX)
        self._check_int("initial_rebalance_delay_ms", 0, REBALANCE_DELAY_MS_MAX)
        self._check_int("new_member_join_timeout_ms", 1, _INT_MAX)
        self._check_int("consumer_session_timeout_ms", 2, _INT_MAX)
        self._check_int("consumer_heartbeat_interval_ms", 1, self.consumer_session_timeout_ms - 1)
        self._check_int("consumer_max_size", 1, _INT_MAX)
        check_assignors("consumer_assignors", self.consumer_assignors)
        self._check_int("max_size", 1, _INT_MAX)
        self._check_int("offset_metadata_max_bytes", 0, 32_767)
        self._check_int("offsets_retention_ms", 1, YEARS_MS)
        self._check_int("retention_check_ms", 1, YEARS_MS)
        self._check_int("append_timeout_ms", 1, _INT_MAX)
        self._check_int("load_bytes", 1, 1 << 30)
        self._check_int("rewrite_bytes", 1, 1 << 40)

    @property
    def assignor_names(self) -> list[str]:
        """Assignors that members of consumer groups may choose, the default first."""
        return self.consumer_assignors.split(",")


def check_assignors(name: str, value: object) -> None:
    """Check a setting that lists assignors. Raises ConfigError that names the first unknown one."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}: expected names with commas between them, found {value!r}")
    for assignor in value.split(","):
        check_choice(name, assignor, tuple(ASSIGNORS))
