"""Settings of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

from pyreplog._native.quorum.quorum import MAX_ENSEMBLE
from pyreplog.config import YEARS_MS, Settings, check_choice, check_retention
from pyreplog.errors import ConfigError

Compression = Literal["none", "zstd", "lz4"]
QuotaPolicy = Literal["hold", "error", "evict"]

COMPRESSIONS: tuple[Compression, ...] = ("none", "zstd", "lz4")
QUOTA_POLICIES: tuple[QuotaPolicy, ...] = ("hold", "error", "evict")

_RETENTION = ("retention_bytes", "retention_ms")


def _is_zero(value: object) -> bool:
    """Return whether a limit, not yet checked, is 0."""
    return type(value) is int and value == 0


@dataclass(frozen=True, kw_only=True)
class TopicConfig(Settings):
    """Settings of a topic, stored with the topic.

    Attributes:
        ensemble: bookies of each ledger; see `Cluster.create_ledger`.
        write_quorum: copies of each entry; None: as many as the ensemble.
        ack_quorum: copies that acknowledge an entry; None: a majority of them.
        durability: "synced": a copy counts once it is on disk; "appended": once it is in the log of the bookie.
        roll_entries: a ledger is closed, and the next one begun, when it holds so many entries.
        roll_bytes: the same for bytes.
        roll_ms: the same for the age of the ledger, in milliseconds.
        retention_bytes: messages that every durable subscription has acknowledged are kept while the topic has at most
            so many bytes, and `retention_ms` holds. None: no limit by size; 0, the default: nothing is kept. A limit
            that is set alone, to anything but 0, replaces the default 0 of the other one by None; a 0 in one makes both
            0.
        retention_ms: the same for the age of a ledger since it was closed, in milliseconds.
        ttl_ms: messages older than this are acknowledged for all subscriptions; None: never.
        quota_bytes: most bytes of the slowest durable subscription's backlog; None: no limit.
        quota_ms: highest age of its oldest message, in milliseconds; None: no limit.
        quota_policy: what happens beyond a quota: "hold": publishers wait; "error": they get BacklogFullError; "evict":
            the oldest messages are acknowledged for the subscription.
        subscription_expiry_ms: durable subscriptions that had no consumer for so long are deleted; None: never.
        deduplicate: drop messages whose (producer, sequence) was published before.
        global_producers: a name is one producer in all clusters, so messages that another cluster replicated count as
            published before, too, and the other way round; needs `deduplicate`. See docs/geo.md.
        linger_ms: single messages are collected into one entry for so long.
        batch_messages: most messages of an entry that is collected.
        batch_bytes: most bytes of an entry that is collected.
        compression: codec of entries; "zstd" and "lz4" need the extra `compression`.
    """

    ensemble: int = 3
    write_quorum: int | None = None
    ack_quorum: int | None = None
    durability: Literal["synced", "appended"] = "synced"
    roll_entries: int = 1 << 20
    roll_bytes: int = 1 << 30
    roll_ms: int = 4 * 3_600_000
    retention_bytes: int | None = 0
    retention_ms: int | None = 0
    ttl_ms: int | None = None
    quota_bytes: int | None = None
    quota_ms: int | None = None
    quota_policy: QuotaPolicy = "hold"
    subscription_expiry_ms: int | None = None
    deduplicate: bool = False
    global_producers: bool = False
    linger_ms: int = 0
    batch_messages: int = 1000
    batch_bytes: int = 128 << 10
    compression: Compression = "none"

    def __post_init__(self) -> None:
        self._check_int("ensemble", 1, MAX_ENSEMBLE)
        self._check_int("write_quorum", 1, self.ensemble, optional=True)
        self._check_int("ack_quorum", 1, self.copies, optional=True)
        check_choice("durability", self.durability, ("synced", "appended"))
        self._check_int("roll_entries", 1, 1 << 40)
        self._check_int("roll_bytes", 1, 1 << 50)
        self._check_int("roll_ms", 1, YEARS_MS)
        self._check_int("retention_bytes", 0, 1 << 62, optional=True)
        for name in ("retention_ms", "ttl_ms", "quota_ms", "subscription_expiry_ms"):
            self._check_int(name, 0, YEARS_MS, optional=True)
        check_retention(self.retention_bytes, self.retention_ms)
        if 0 in (self.retention_bytes, self.retention_ms):  # the only form in which metadata store it
            object.__setattr__(self, "retention_bytes", 0)
            object.__setattr__(self, "retention_ms", 0)
        self._check_int("quota_bytes", 1, 1 << 62, optional=True)
        check_choice("quota_policy", self.quota_policy, QUOTA_POLICIES)
        if not isinstance(self.deduplicate, bool):
            raise ConfigError(f"deduplicate: expected a bool, found {self.deduplicate!r}")
        if not isinstance(self.global_producers, bool):
            raise ConfigError(f"global_producers: expected a bool, found {self.global_producers!r}")
        if self.global_producers and not self.deduplicate:
            raise ConfigError("global_producers: expected deduplicate=True beside it, found deduplicate=False")
        self._check_int("linger_ms", 0, 60_000)
        self._check_int("batch_messages", 1, 1 << 20)
        self._check_int("batch_bytes", 1, 16 << 20)
        check_choice("compression", self.compression, COMPRESSIONS)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Create the settings of a new topic from keywords. Raises ConfigError, which names the first unknown key."""
        for name, other in (_RETENTION, _RETENTION[::-1]):
            if name in settings and other not in settings and not _is_zero(settings[name]):
                settings = {**settings, other: None}
        return super().of(settings)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return these settings with some of them replaced. Raises ConfigError, which names the first unknown key."""
        known = vars(self)
        if 0 in (self.retention_bytes, self.retention_ms) and not set(_RETENTION) <= settings.keys():
            known = {name: value for name, value in known.items() if name not in _RETENTION}
        return self.of({**known, **settings})

    @classmethod
    def stored(cls, settings: dict[str, Any]) -> Self:
        """Create settings from metadata, or from those of another process. Raises ConfigError as `of` does.

        There a 0 next to another value meant that only the other limit decides: it is read as None, which keeps the
        meaning.
        """
        values = [settings.get(name, 0) for name in _RETENTION]
        if not all(map(_is_zero, values)):
            limits = [None if _is_zero(value) else value for value in values]
            settings = {**settings, **dict(zip(_RETENTION, limits, strict=True))}
        return cls.of(settings)

    def encoded(self) -> dict[str, Any]:
        """Return the settings for metadata and other processes, where `stored` reads them.

        `global_producers` is left out unless it is set: versions that do not know it refuse it.
        """
        settings = dict(vars(self))
        if not self.global_producers:
            del settings["global_producers"]
        return settings

    @property
    def copies(self) -> int:
        """Copies of each entry (Qw)."""
        return self.ensemble if self.write_quorum is None else self.write_quorum

    @property
    def acks(self) -> int:
        """Copies that acknowledge an entry (Qa): by default a majority."""
        return self.copies // 2 + 1 if self.ack_quorum is None else self.ack_quorum


class TopicSettings(TypedDict, total=False):
    """The fields of TopicConfig, as keywords of `Cluster.topic`, `Client.topic` and `configure`."""

    ensemble: int
    write_quorum: int | None
    ack_quorum: int | None
    durability: Literal["synced", "appended"]
    roll_entries: int
    roll_bytes: int
    roll_ms: int
    retention_bytes: int | None
    retention_ms: int | None
    ttl_ms: int | None
    quota_bytes: int | None
    quota_ms: int | None
    quota_policy: QuotaPolicy
    subscription_expiry_ms: int | None
    deduplicate: bool
    global_producers: bool
    linger_ms: int
    batch_messages: int
    batch_bytes: int
    compression: Compression
