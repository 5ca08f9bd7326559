"""When a bookie takes no more entries for lack of space, and when it does again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyreplog._native.bookie.fast_add import DiskSpaceBase
from pyreplog.bookie.config import BookieConfig

logger = logging.getLogger(__name__)


class DiskSpaceMonitor(DiskSpaceBase):
    """Free space, looked at now and then. Two thresholds keep it from flapping (BookKeeper #3285)."""

    def __init__(self, config: BookieConfig, free_bytes: Callable[[], int]) -> None:
        self._config, self._free_bytes = config, free_bytes
        self.look_after = config.space_check_bytes
        self.free = free_bytes()
        self._judge()

    def look(self) -> None:
        """See how much is free. While nobody can tell, what was seen last holds: whether the disk takes an entry, its
        append says."""
        self.added = 0
        try:
            self.free = self._free_bytes()
        except OSError as error:
            logger.warning("free space cannot be told: %s", error)
        else:
            self._judge()

    def _judge(self) -> None:
        if self.free < self._config.read_only_below_bytes:
            self.read_only = True
        elif self.free >= self._config.writable_from_bytes:
            self.read_only = False

    def fill(self) -> None:
        """The disk said that it is full."""
        self.look()
        self.read_only = True

    def takes(self, *, recovery: bool) -> bool:
        """Whether an add may be taken: one of a ledger's recovery, or another."""
        return self.free >= self._config.reserve_bytes if recovery else not self.read_only
