"""Settings of an applier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from pyreplog.config import Settings


@dataclass(frozen=True, kw_only=True)
class ApplierConfig(Settings):
    """Settings of an `Applier`.

    Attributes:
        batch_entries: most entries in a batch.
        batch_bytes: most bytes of log in a batch; a single record may be larger.
        workers: batches that are prepared concurrently. More than one needs a generator function.
        delay_ms: apply an entry when it is so many milliseconds old, by the clocks of the master and of this machine.
        space_limit_bytes: bytes that the relay log may take before the receiver is paused: at least two segments and
            about 1 MiB. None: no limit.
        purge: remove segments of the relay log when all of their entries are applied. False if others read the log.

    See docs/relay.md.
    """

    batch_entries: int = 1024
    batch_bytes: int = 1 << 20
    workers: int = 1
    delay_ms: int = 0
    space_limit_bytes: int | None = None
    purge: bool = True

    def __post_init__(self) -> None:
        self._check_int("batch_entries", 1, 1 << 32)
        self._check_int("batch_bytes", 1, 1 << 32)
        self._check_int("workers", 1, 256)
        self._check_int("delay_ms", 0, 1 << 42)
        self._check_int("space_limit_bytes", 1, 1 << 62, optional=True)


class ApplierSettings(TypedDict, total=False):
    """The settings of an ApplierConfig, as keywords of `Applier` and `Relay`."""

    batch_entries: int
    batch_bytes: int
    workers: int
    delay_ms: int
    space_limit_bytes: int | None
    purge: bool
