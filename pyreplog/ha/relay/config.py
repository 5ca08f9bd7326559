"""Settings of an applier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from pyreplog.config import Settings


@dataclass(frozen=True, kw_only=True)
class ApplierConfig(Settings):
    """Settings of an Applier.

    batch_entries, batch_bytes: how much is handed to the callback at a time, at most (bytes of log; a single record may
    be larger).
    workers: how many batches are prepared side by side; more than one only for a callback that yields.
    delay_s: records are applied when they were appended so long ago, by the clocks of master and this machine.
    space_limit_bytes: what the relay log may take before the receiver is paused; None: no limit. At least two
    segments and about 1 MiB, see `space_limit.landing_bytes`.
    purge: remove the relay log's segments when all in them is applied; False where others still read the log.
    """

    batch_entries: int = 1024
    batch_bytes: int = 1 << 20
    workers: int = 1
    delay_s: int = 0
    space_limit_bytes: int | None = None
    purge: bool = True

    def __post_init__(self) -> None:
        self._check_int("batch_entries", 1, 1 << 32)
        self._check_int("batch_bytes", 1, 1 << 32)
        self._check_int("workers", 1, 256)
        self._check_int("delay_s", 0, 1 << 32)
        self._check_int("space_limit_bytes", 1, 1 << 62, optional=True)


class ApplierSettings(TypedDict, total=False):
    """The settings of an ApplierConfig, as keywords of `Applier` and `Relay`."""

    batch_entries: int
    batch_bytes: int
    workers: int
    delay_s: int
    space_limit_bytes: int | None
    purge: bool
