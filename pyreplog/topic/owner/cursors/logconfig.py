"""Settings of a CursorLog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyreplog._native.quorum.quorum import check_quorums
from pyreplog.config import Settings
from pyreplog.errors import ConfigError

COPIES = 3


@dataclass(frozen=True, kw_only=True)
class CursorLogConfig(Settings):
    """Settings of the ledgers that a process keeps cursors in.

    flush_ms: what was acknowledged is persisted that late at most, while nothing fails.
    ensemble, write_quorum, ack_quorum, durability: of the ledgers, see `Cluster.create_ledger`. ensemble: None, as many
    bookies as the cluster has, whether they run or not, up to COPIES.
    roll_entries, roll_bytes, roll_ms: a new ledger is begun when one holds so much, or is so old.
    retry_ms, retry_max_ms: after a failure it is tried again that late, each time twice as late, up to retry_max_ms.
    cache_bytes, cache_ms: a former owner's ledger is read once for all its cursors; so much is kept of such, so long.
    sweep_ms: ledgers that nobody refers to any more are looked for that late after there may be one.
    """

    flush_ms: int = 100
    ensemble: int | None = COPIES
    write_quorum: int | None = None
    ack_quorum: int | None = None
    durability: Literal["synced", "appended"] = "synced"
    roll_entries: int = 50_000
    roll_bytes: int = 64 << 20
    roll_ms: int = 4 * 3_600_000
    retry_ms: int = 200
    retry_max_ms: int = 30_000
    cache_bytes: int = 256 << 20
    cache_ms: int = 60_000
    sweep_ms: int = 600_000

    def __post_init__(self) -> None:
        ensemble = COPIES if self.ensemble is None else self.ensemble
        copies = ensemble if self.write_quorum is None else self.write_quorum
        check_quorums(ensemble, copies, copies // 2 + 1 if self.ack_quorum is None else self.ack_quorum)
        if self.durability not in ("synced", "appended"):
            raise ConfigError(f"durability: expected synced or appended, found {self.durability!r}")
        self._check_int("flush_ms", 0, 3_600_000)
        self._check_int("roll_entries", 1, 1 << 40)
        self._check_int("roll_bytes", 1, 1 << 40)
        self._check_int("roll_ms", 1, 1 << 42)
        self._check_int("retry_ms", 1, 3_600_000)
        self._check_int("retry_max_ms", self.retry_ms, 3_600_000)
        self._check_int("cache_bytes", 0, 1 << 40)
        self._check_int("cache_ms", 0, 3_600_000)
        self._check_int("sweep_ms", 1, 1 << 42)
