"""Read-only mode: a bookie takes no entries while the disk lacks space."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyreplog._native.bookie.fast_add import DiskSpaceBase
from pyreplog.bookie.config import BookieConfig

logger = logging.getLogger(__name__)


class DiskSpaceMonitor(DiskSpaceBase):
    """Monitors the free space. Two thresholds keep the read-only mode from flapping (BookKeeper #3285)."""

    def __init__(self, config: BookieConfig, free_bytes: Callable[[], int]) -> None:
        self._config, self._free_bytes = config, free_bytes
        self.check_after = config.space_check_bytes
        self.free = free_bytes()
        self._update_mode()

    def check(self) -> None:
        """Read the free space. If that fails, the last value stays; an append to a full disk fails by itself."""
        self.added = 0
        try:
            self.free = self._free_bytes()
        except OSError as error:
            logger.warning("the free space of the disk cannot be read: %s", error)
        else:
            self._update_mode()

    def _update_mode(self) -> None:
        if self.free < self._config.read_only_below_bytes:
            self.read_only = True
        elif self.free >= self._config.writable_from_bytes:
            self.read_only = False

    def fill(self) -> None:
        """Enter read-only mode, because the disk reported that it is full."""
        self.check()
        self.read_only = True

    def takes(self, *, recovery: bool) -> bool:
        """Return whether the bookie accepts an ADD; one of a recovery is accepted with less free space."""
        return self.free >= self._config.reserve_bytes if recovery else not self.read_only
