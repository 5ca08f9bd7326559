"""Settings: the base class of settings, which are frozen dataclasses; LogConfig: the settings of a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypedDict

from pyreplog._native.log.segment import SIZE_MAX, SIZE_MIN
from pyreplog.errors import ConfigError

Durability = Literal["appended", "interval", "synced"]
DURABILITIES: tuple[Durability, ...] = ("appended", "interval", "synced")

_PAGE = 4096


YEARS_MS = 1 << 42
"""The longest duration of a setting: 139 years."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base class of settings: keyword-only frozen dataclasses. Names have units, and values are validated."""

    def _check_int(self, name: str, low: int, high: int, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name}: expected an int, found {value!r}")
        if not low <= value <= high:
            raise ConfigError(f"{name}: expected {low} to {high}, found {value}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Make settings from keywords.

        Args:
            settings: values by name of the setting.

        Returns:
            The settings; a setting that is not given has its default.

        Raises:
            ConfigError: a setting is unknown, or its value is outside its bounds. The message names the first one.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(settings.keys() - known)
        if unknown:
            raise ConfigError(f"unknown setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
        return cls(**settings)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check a setting that has a few values. Raises ConfigError, which names them, for another value."""
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, found {value!r}")


def check_retention(retention_bytes: int | None, retention_ms: int | None) -> None:
    """Check the two limits of retention of a log or a topic together.

    None means no limit, 0 keeps nothing, and the limit that is reached first counts. So a limit beside a 0 would have
    no effect, and raises ConfigError. See docs/topics.md, Retention.
    """
    for name, value, other, beside in (
        ("retention_bytes", retention_bytes, "retention_ms", retention_ms),
        ("retention_ms", retention_ms, "retention_bytes", retention_bytes),
    ):
        if value and beside == 0:
            raise ConfigError(
                f"{name}: {value} has no effect beside {other}=0, which keeps nothing: give {other}=None (no limit)"
            )


@dataclass(frozen=True, kw_only=True)
class LogConfig(Settings):
    """Settings of a log.

    Attributes:
        durability: when an append returns. "appended": the entry is in the mapped segment and survives the process.
            "interval": the same, and the log is synced every `sync_interval_ms`. "synced": fdatasync has returned.
        segment_bytes: size of a segment file, a multiple of 4096. The writer that creates a log fixes it. The default
            is `default_segment_bytes`, 64 MiB.
        spare_segments: segments that are prepared ahead of need, and freed segments that are kept for reuse, 1 to 64.
        sync_interval_ms: milliseconds between two syncs with durability "interval".
        retention_bytes: remove whole segments from the front while the log is larger. None: no limit. 0: keep only the
            active segment.
        retention_ms: remove whole segments whose last record is older. None: no limit. 0: keep only the active
            segment. The limit that is reached first counts. `CommitLog.retention_floor` and the
            log's cursors overrule both.
        cursor_hold_bytes: a cursor that is further behind the end does not keep retention from removing segments. None:
            every cursor does.
        default_segment_bytes: default of `segment_bytes` in this process, also for bookies and brokers. It is an
            attribute of the class, for tests: a suite that makes many logs sets it to a few MiB before it makes the
            first one.

    See docs/log.md.
    """

    default_segment_bytes: ClassVar[int] = 64 << 20

    durability: Durability = "appended"
    segment_bytes: int = dataclasses.field(default_factory=lambda: LogConfig.default_segment_bytes)
    spare_segments: int = 2
    sync_interval_ms: int = 1000
    retention_bytes: int | None = None
    retention_ms: int | None = None
    cursor_hold_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.durability not in DURABILITIES:
            raise ConfigError(f"durability: expected one of {', '.join(DURABILITIES)}, found {self.durability!r}")
        self._check_int("segment_bytes", SIZE_MIN, SIZE_MAX)
        if self.segment_bytes % _PAGE:
            raise ConfigError(f"segment_bytes: expected a multiple of {_PAGE}, found {self.segment_bytes}")
        self._check_int("spare_segments", 1, 64)
        self._check_int("sync_interval_ms", 1, 3_600_000)
        self._check_int("retention_bytes", 0, 1 << 62, optional=True)
        self._check_int("retention_ms", 0, 1 << 52, optional=True)
        check_retention(self.retention_bytes, self.retention_ms)
        self._check_int("cursor_hold_bytes", 0, 1 << 62, optional=True)


class LogSettings(TypedDict, total=False):
    """The settings of a LogConfig, as keywords of `pyreplog.open`."""

    durability: Durability
    segment_bytes: int
    spare_segments: int
    sync_interval_ms: int
    retention_bytes: int | None
    retention_ms: int | None
    cursor_hold_bytes: int | None
