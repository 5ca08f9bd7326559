"""Configuration of a bookie: one frozen dataclass, units in the names, validated when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypedDict

from pyreplog.config import LogConfig, Settings
from pyreplog.errors import ConfigError

BookieDurability = Literal["appended", "synced"]
BOOKIE_DURABILITIES: tuple[BookieDurability, ...] = ("appended", "synced")


@dataclass(frozen=True, kw_only=True)
class BookieConfig(Settings):
    """Settings of a bookie.

    Attributes:
        durability: how entries reach the disk. "synced": by group commits with pwrite; all ADDs are acknowledged after
            a sync. "appended": through the mapped file; ADDs that need no sync are acknowledged at once, the others
            after a sync, which is slower than with "synced".
        segment_bytes: size of the log's segment files, a multiple of 4096; fixed when the bookie is made.
        spare_segments: number of segment files that are kept for reuse, as of `LogConfig`.
        read_only_below_bytes: with less free space, bytes, the bookie takes no new entries.
        writable_from_bytes: with so much free space, bytes, it takes new entries again.
        reserve_bytes: with less free space, bytes, it does not even take entries of ledger recovery.
        space_check_bytes: bytes of ADDs after which the free space is checked; it is also checked regularly.
        long_polls_max: number of requests that may wait for a LAC. If it is reached, the client that has most of them
            loses its oldest one to another client.
        ledger_states_max: number of ledgers whose state is kept in memory, about 500 bytes each. Other states
            are read from the log when they are needed.
        compact_below_percent: a segment is rewritten when less than this percentage of it is live; 0: never.
        collect_interval_ms: milliseconds between two rounds of garbage collection.
        surplus_interval_ms: milliseconds, in whole rounds of garbage collection, between two searches for copies that
            no metadata assign to this bookie. They are removed after two searches have found them, if no copies were
            added in between. 0: they stay.
        collect_step_bytes: live bytes that garbage collection copies in one step, between which requests are handled.
        scrub_interval_ms: milliseconds within which every segment is verified on the disk; 0: only on request.
        scrub_bytes_per_s: bytes of segments that are verified in a second at most.

    See docs/operations.md.
    """

    durability: BookieDurability = "synced"
    segment_bytes: int = field(default_factory=lambda: LogConfig.default_segment_bytes)
    spare_segments: int = LogConfig.spare_segments
    read_only_below_bytes: int = 512 << 20
    writable_from_bytes: int = 768 << 20
    reserve_bytes: int = 192 << 20
    space_check_bytes: int = 4 << 20
    long_polls_max: int = 65536
    ledger_states_max: int = 16384
    compact_below_percent: int = 50
    collect_interval_ms: int = 60_000
    surplus_interval_ms: int = 3_600_000
    collect_step_bytes: int = 4 << 20
    scrub_interval_ms: int = 14 * 86_400_000
    scrub_bytes_per_s: int = 32 << 20

    def __post_init__(self) -> None:
        if self.durability not in BOOKIE_DURABILITIES:
            raise ConfigError(
                f"durability: expected one of {', '.join(BOOKIE_DURABILITIES)}, found {self.durability!r}"
            )
        self.log_config()  # raises for invalid settings
        for name in ("reserve_bytes", "read_only_below_bytes", "writable_from_bytes"):
            self._check_int(name, 0, 1 << 62)
        if not self.reserve_bytes <= self.read_only_below_bytes <= self.writable_from_bytes:
            raise ConfigError(
                "expected reserve_bytes <= read_only_below_bytes <= writable_from_bytes, found "
                f"{self.reserve_bytes}, {self.read_only_below_bytes}, {self.writable_from_bytes}"
            )
        self._check_int("space_check_bytes", 1, 1 << 62)
        self._check_int("long_polls_max", 1, 1 << 24)
        self._check_int("ledger_states_max", 1, 1 << 24)
        self._check_int("compact_below_percent", 0, 100)
        self._check_int("collect_interval_ms", 1, 1 << 40)
        self._check_int("surplus_interval_ms", 0, 1 << 40)
        self._check_int("collect_step_bytes", 1, 1 << 30)
        self._check_int("scrub_interval_ms", 0, 1 << 40)
        self._check_int("scrub_bytes_per_s", 1, 1 << 40)

    def log_config(self) -> LogConfig:
        """Return the settings of the bookie's log."""
        return LogConfig(
            durability=self.durability, segment_bytes=self.segment_bytes, spare_segments=self.spare_segments
        )


class BookieSettings(TypedDict, total=False):
    """The settings of a BookieConfig, as keywords of `Cluster.embedded`."""

    durability: BookieDurability
    segment_bytes: int
    spare_segments: int
    read_only_below_bytes: int
    writable_from_bytes: int
    reserve_bytes: int
    space_check_bytes: int
    long_polls_max: int
    ledger_states_max: int
    compact_below_percent: int
    collect_interval_ms: int
    surplus_interval_ms: int
    collect_step_bytes: int
    scrub_interval_ms: int
    scrub_bytes_per_s: int
