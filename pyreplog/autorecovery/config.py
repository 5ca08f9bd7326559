"""AutoRecoveryConfig: settings of auto-recovery for the whole cluster, stored in the metadata store."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from pyreplog.config import Settings
from pyreplog.metadata.changes import change_key
from pyreplog.metadata.store import MetadataStore
from pyreplog.metadata.values import MetadataValue

CONFIG = "/autorecovery/config"


@dataclass(frozen=True, kw_only=True)
class AutoRecoveryConfig(Settings, MetadataValue):
    """Settings of auto-recovery.

    Attributes:
        delay_ms: milliseconds for which a bookie may be away before its copies are replicated to other bookies.
        bytes_per_s: maximum number of bytes that one worker copies per second; None: no limit.
        copies_at_once: number of ledgers that one worker copies concurrently.
        round_ms: milliseconds between two rounds.
        settle_ms: milliseconds for which an auditor follows the registrations before it counts a bookie as away.
        rescan_ms: milliseconds between two scans of the metadata of all ledgers; between scans only new and open
            ledgers are read.
        check_ms: milliseconds within which the copies of every closed ledger are compared with each other; 0: never.
        writer_silence_ms: milliseconds for which the writer of a ledger must neither hold its key nor add entries,
            before the ledger is recovered and the writer fenced.
        hold_alarm_ms: milliseconds after which a hold that was not ended raises an alarm.

    A setting that the stored value does not contain has its default. See docs/operations.md.
    """

    KIND: ClassVar[str] = f"settings of auto-recovery, {CONFIG} (`cluster autorecovery` sets them)"

    delay_ms: int = 600_000
    bytes_per_s: int | None = None
    copies_at_once: int = 8
    round_ms: int = 5_000
    settle_ms: int = 15_000
    rescan_ms: int = 86_400_000
    check_ms: int = 7 * 86_400_000
    writer_silence_ms: int = 30_000
    hold_alarm_ms: int = 86_400_000

    def __post_init__(self) -> None:
        self._check_int("delay_ms", 0, 1 << 40)
        self._check_int("bytes_per_s", 1, 1 << 50, optional=True)
        self._check_int("copies_at_once", 1, 256)
        self._check_int("round_ms", 10, 3_600_000)
        self._check_int("settle_ms", 0, 3_600_000)
        self._check_int("rescan_ms", 1_000, 1 << 40)
        self._check_int("check_ms", 0, 1 << 40)
        self._check_int("writer_silence_ms", 1_000, 1 << 40)
        self._check_int("hold_alarm_ms", 0, 1 << 40)


def load_config(store: MetadataStore) -> AutoRecoveryConfig:
    """Return the settings of the cluster; the defaults if none are stored.

    Raises:
        InvalidMetadataError: the stored settings are malformed.
        ReplogError: errors of the store.
    """
    stored = store.get(CONFIG)
    return AutoRecoveryConfig() if stored is None else AutoRecoveryConfig.decode(stored.value)


def change_config(store: MetadataStore, settings: dict[str, Any]) -> AutoRecoveryConfig:
    """Change some settings of the cluster.

    Args:
        store: metadata store.
        settings: new values by name of the setting.

    Returns:
        All settings after the change.

    Raises:
        ConfigError: a setting is unknown, or its value is out of bounds.
        InvalidMetadataError: the stored settings are malformed.
        ReplogError: errors of the store.
    """
    AutoRecoveryConfig.of(settings)

    def change(value: bytes | None) -> bytes:
        current = AutoRecoveryConfig() if value is None else AutoRecoveryConfig.decode(value)
        return dataclasses.replace(current, **settings).encode()

    value = change_key(store, CONFIG, change)
    return AutoRecoveryConfig() if value is None else AutoRecoveryConfig.decode(value)
