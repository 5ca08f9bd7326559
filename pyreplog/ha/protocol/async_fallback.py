"""When a master stops waiting for replicas, as MySQL's semi-sync does (rpl_semi_sync_source_timeout)."""

from __future__ import annotations

from pyreplog.stream.log_position import LogPosition


class AsyncFallback:
    """Whether a master commits without replicas.

    Attributes:
        limit_us: microseconds that it waits for replicas; None: no limit.
        count: how often it began to commit without replicas.
        commits: how often its commit point moved without replicas.
        owed: end of the entries that readers saw from a master without replicas, and that enough replicas may not have
            yet; None: none.
    """

    def __init__(self, limit_us: int | None, owed: LogPosition | None) -> None:
        self.is_alone = False
        self.since_us = 0
        self.count = self.commits = 0
        self.limit_us, self.owed = limit_us, owed
        # (position, since when it is known not to be replicated, microseconds)
        self._pending_commits: tuple[LogPosition, int] | None = None

    def wait(self, own: LogPosition, committed: LogPosition, now_us: int) -> None:
        """Begin or end the wait for a position, given the ends of the log and of the committed entries.

        Only one position is awaited at a time. So the limit is noticed within twice its time, at the cost of one
        comparison.
        """
        if self._pending_commits is None or self._pending_commits[0] <= committed:
            self._pending_commits = (own, now_us) if own > committed else None

    def is_due(self, now_us: int) -> bool:
        if self.limit_us is None or self.is_alone or self._pending_commits is None:
            return False
        return now_us - self._pending_commits[1] >= self.limit_us

    def begin(self, committed: LogPosition, now_us: int) -> None:
        self.is_alone, self.since_us = True, now_us
        self.count += 1
        self.shows(committed)

    def shows(self, mark: LogPosition) -> None:
        """Note that readers see entries up to `mark` without replicas."""
        self.owed = mark if self.owed is None else max(self.owed, mark)

    def settles(self, replicated: LogPosition | None) -> bool:
        """Return whether enough replicas now have all owed entries, and clear `owed`. replicated: what they have."""
        if self.is_alone or self.owed is None or replicated is None or replicated < self.owed:
            return False
        self.owed = None
        return True

    def end(self) -> None:
        self.is_alone, self._pending_commits = False, None
