"""When a bookie takes no more entries for lack of space, and when it does again."""

from __future__ import annotations

from collections.abc import Callable

from pyreplog.bookie.config import BookieConfig


class Space:
    """Free space, looked at now and then. Two thresholds keep it from flapping (BookKeeper #3285)."""

    def __init__(self, config: BookieConfig, free_bytes: Callable[[], int]) -> None:
        self._config, self._free_bytes = config, free_bytes
        self._added = 0
        self.read_only = False
        self.look()

    def look(self) -> None:
        """See how much is free."""
        self._added = 0
        self.free = self._free_bytes()
        if self.free < self._config.read_only_below_bytes:
            self.read_only = True
        elif self.free >= self._config.writable_from_bytes:
            self.read_only = False

    def fill(self) -> None:
        """The disk said that it is full."""
        self.look()
        self.read_only = True

    def add(self, size: int) -> None:
        """So many bytes were appended."""
        self._added += size
        if self._added >= self._config.space_check_bytes:
            self.look()

    def takes(self, *, recovery: bool) -> bool:
        """Whether an add may be taken: one of a ledger's recovery, or another."""
        return self.free >= self._config.reserve_bytes if recovery else not self.read_only
