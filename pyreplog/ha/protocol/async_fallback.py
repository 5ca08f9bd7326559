"""When a master stops waiting for replicas, and since when (MySQL semi-sync: rpl_semi_sync_source_timeout)."""

from __future__ import annotations

from pyreplog.stream.log_position import LogPosition


class AsyncFallback:
    """limit_us: how long it waits; None: for ever. count: how often it went on alone. commits: how often its commit
    point moved meanwhile. owed: end of what readers were shown by a master on its own, which may not be on enough
    replicas yet, that have caught up since or not; None: there is no such thing."""

    def __init__(self, limit_us: int | None, owed: LogPosition | None) -> None:
        self.is_alone = False
        self.since_us = 0
        self.count = self.commits = 0
        self.limit_us, self.owed = limit_us, owed
        # (mark, since when it is known not to be replicated)
        self._pending_commits: tuple[LogPosition, int] | None = None

    def wait(self, own: LogPosition, committed: LogPosition, now_us: int) -> None:
        """What there is, and what enough replicas have. One mark is awaited at a time: a wait is noticed within twice
        the limit, at the cost of a comparison."""
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
        """What is committed without replicas is owed to them."""
        self.owed = mark if self.owed is None else max(self.owed, mark)

    def settles(self, replicated: LogPosition | None) -> bool:
        """Whether enough replicas have all that was owed, from now on. replicated: what they have."""
        if self.is_alone or self.owed is None or replicated is None or replicated < self.owed:
            return False
        self.owed = None
        return True

    def end(self) -> None:
        self.is_alone, self._pending_commits = False, None
