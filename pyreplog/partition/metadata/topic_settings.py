"""Settings of a topic of partitions, by the names that Kafka gives them.

A topic stores the settings that its creator or `alter_topic` has set; all others have their defaults. A setting that
brokers do not support is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyreplog.config import Settings
from pyreplog.errors import ConfigError
from pyreplog.partition.protocol.partition_state import REPLICAS_MAX

CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
DELETE, COMPACT = "delete", "compact"
_DAY_MS = 86_400_000
_MS_MAX = 1 << 52
_MESSAGE_BYTES_MAX = 1 << 30
KAFKA_DEFAULTS: Mapping[str, Any] = {"retention.ms": 7 * _DAY_MS, "segment.ms": 7 * _DAY_MS}
"""Defaults of topics that Kafka clients create. Topics created with pyreplog's own API keep all records by default."""


@dataclass(frozen=True, kw_only=True)
class TopicSettings(Settings):
    """Settings of a topic, which brokers apply without opening its partitions again.

    Attributes:
        retention_ms: age at which records are removed, when their whole segment has it (`retention.ms`), milliseconds;
            None: never.
        retention_bytes: size of a partition above which its oldest segments are removed (`retention.bytes`); None: no
            limit.
        segment_bytes: size of segment files, a multiple of 4096; fixed when the topic is created (`segment.bytes`).
            None: `segment_bytes` of the brokers, which must then be the same for all brokers.
        segment_ms: age of its first record at which a segment is rolled (`segment.ms`), milliseconds; None:
            `retention_ms` alone counts.
        min_isr: number of in-sync replicas that an append with acks=-1 needs (`min.insync.replicas`).
        max_message_bytes: maximal size of a record batch, or of a message (`max.message.bytes`).
        message_timestamp_type: "CreateTime": the producer's time counts; "LogAppendTime": that of the append
            (`message.timestamp.type`).
        timestamp_before_max_ms: maximal age of a batch, milliseconds (`message.timestamp.before.max.ms`); None: no
            limit.
        timestamp_after_max_ms: milliseconds by which a batch may be in the future (`message.timestamp.after.max.ms`);
            None: no limit.
        unclean_election: whether a replica that may lack committed records may lead, if no other can
            (`unclean.leader.election.enable`).
        requires_sync: whether a record is committed only when all in-sync replicas have synced it to disk; fixed when
            the topic is created (`requires.sync`, which Kafka does not have).
        cleanup_policy: "delete": retention removes old records; "compact": only the last record of each key is kept;
            "compact,delete": both (`cleanup.policy`).
        delete_retention_ms: how long a compacted topic keeps tombstones (`delete.retention.ms`), milliseconds.
        min_dirty_ratio: a partition is compacted when more than this fraction of it was never compacted
            (`min.cleanable.dirty.ratio`).
        min_compaction_lag_ms: minimal age of records that compaction may remove (`min.compaction.lag.ms`),
            milliseconds.
        max_compaction_lag_ms: a partition is compacted when a record has this age (`max.compaction.lag.ms`),
            milliseconds; None: the ratio alone counts.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    segment_bytes: int | None = None
    segment_ms: int | None = None
    min_isr: int = 1
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = CREATE_TIME
    timestamp_before_max_ms: int | None = None
    timestamp_after_max_ms: int | None = 3_600_000
    unclean_election: bool = False
    requires_sync: bool = False
    cleanup_policy: str = DELETE
    delete_retention_ms: int = _DAY_MS
    min_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None

    @property
    def is_compacted(self) -> bool:
        """Whether only the last record of each key is kept."""
        return COMPACT in self.cleanup_policy

    @property
    def is_trimmed(self) -> bool:
        """Whether retention removes old records."""
        return DELETE in self.cleanup_policy

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            value = getattr(self, setting.field)
            if not setting.accepts(value):
                raise ConfigError(f"{name}: expected {setting.expected}, found {str(value)[:80]!r}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TopicSettings:
        """Make settings from values by Kafka's names.

        Raises:
            ConfigError: a setting is unknown, or its value is outside its bounds.
        """
        for name in settings:
            if name not in SETTINGS:
                raise ConfigError(f"unknown setting {str(name)[:80]!r} of a topic; there are {', '.join(SETTINGS)}")
        return cls(**{SETTINGS[name].field: value for name, value in settings.items()})

    def values(self) -> dict[str, Any]:
        """Return the values of all settings, by Kafka's names."""
        return {name: getattr(self, setting.field) for name, setting in SETTINGS.items()}


class Setting(NamedTuple):
    """One setting.

    Attributes:
        field: name of the field of `TopicSettings`.
        expected: the accepted values in words, for errors.
        accepts: returns whether a value is accepted.
        parse: parses the text of Kafka's requests. Raises ValueError.
        is_fixed: whether it cannot be changed once the topic is created.
    """

    field: str
    expected: str
    accepts: Callable[[object], bool]
    parse: Callable[[str], Any]
    is_fixed: bool = False


def _number(
    field: str, low: int, high: int, *, is_optional: bool = False, step: int = 1, fixed: bool = False
) -> Setting:
    def accepts(value: object) -> bool:
        if value is None:
            return is_optional
        return type(value) is int and low <= value <= high and value % step == 0

    def parse(text: str) -> int | None:
        value = int(text)
        return None if is_optional and value in (-1, (1 << 63) - 1) else value

    multiple = "" if step == 1 else f", a multiple of {step}"
    return Setting(field, f"{low} to {high}{multiple}{' or None' if is_optional else ''}", accepts, parse, fixed)


def _flag(field: str, *, fixed: bool = False) -> Setting:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"

    return Setting(field, "True or False", lambda value: type(value) is bool, parse, fixed)


def _choice(field: str, *choices: str) -> Setting:
    return Setting(field, " or ".join(map(repr, choices)), lambda value: value in choices, str)


def _ratio(field: str) -> Setting:
    def accepts(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1

    return Setting(field, "0 to 1", accepts, float)


_POLICIES = (DELETE, COMPACT, f"{COMPACT},{DELETE}", f"{DELETE},{COMPACT}")

SETTINGS: Mapping[str, Setting] = {
    "retention.ms": _number("retention_ms", 0, _MS_MAX, is_optional=True),
    "retention.bytes": _number("retention_bytes", 0, 1 << 62, is_optional=True),
    "segment.bytes": _number("segment_bytes", 1 << 16, 1 << 30, is_optional=True, step=4096, fixed=True),
    "segment.ms": _number("segment_ms", 1, _MS_MAX, is_optional=True),
    "min.insync.replicas": _number("min_isr", 1, REPLICAS_MAX),
    "max.message.bytes": _number("max_message_bytes", 0, _MESSAGE_BYTES_MAX),
    "message.timestamp.type": _choice("message_timestamp_type", CREATE_TIME, LOG_APPEND_TIME),
    "message.timestamp.before.max.ms": _number("timestamp_before_max_ms", 0, 1 << 62, is_optional=True),
    "message.timestamp.after.max.ms": _number("timestamp_after_max_ms", 0, 1 << 62, is_optional=True),
    "unclean.leader.election.enable": _flag("unclean_election"),
    "requires.sync": _flag("requires_sync", fixed=True),
    "cleanup.policy": _choice("cleanup_policy", *_POLICIES),
    "delete.retention.ms": _number("delete_retention_ms", 0, _MS_MAX),
    "min.cleanable.dirty.ratio": _ratio("min_dirty_ratio"),
    "min.compaction.lag.ms": _number("min_compaction_lag_ms", 0, _MS_MAX),
    "max.compaction.lag.ms": _number("max_compaction_lag_ms", 1, _MS_MAX, is_optional=True),
}
"""The settings that a topic may have, by Kafka's names."""


IMPLIED_SETTINGS: Mapping[str, str] = {
    "compression.type": "producer",
    "remote.storage.enable": "false",
    "segment.jitter.ms": "0",
}
"""Settings of Kafka with the only value that brokers support, which is Kafka's default. They are not stored."""


def parse_settings(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the values of the settings of a Kafka request, by name, without `IMPLIED_SETTINGS`.

    Args:
        texts: text by name; None: the default.

    Raises:
        ConfigError: a setting is unknown, or a text is not a valid value.
    """
    values = {}
    for name, text in texts.items():
        implied = IMPLIED_SETTINGS.get(name)
        if implied is None:
            values[name] = None if text is None else parse_setting(name, text)
        elif text is not None and text.lower() != implied:
            raise ConfigError(f"{name}: expected {implied!r}, the only supported value, found {text[:80]!r}")
    return values


def parse_setting(name: str, text: str) -> Any:
    """Return the value of a setting from the text in a Kafka request; -1 stands for no limit.

    Raises:
        ConfigError: the setting is unknown, or the text is not a valid value.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"unknown setting {name[:80]!r} of a topic; there are {', '.join(SETTINGS)}")
    try:
        value = setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: expected {setting.expected}, found {text[:80]!r}") from error
    if not setting.accepts(value):
        raise ConfigError(f"{name}: expected {setting.expected}, found {text[:80]!r}")
    return value


def format_setting(value: object) -> str:
    """Return the text of a value for Kafka's responses; -1 stands for no limit."""
    if value is None:
        return "-1"
    return str(value).lower() if isinstance(value, bool) else str(value)
