"""When a master stops waiting for replicas, and since when (MySQL semi-sync: rpl_semi_sync_source_timeout)."""

from __future__ import annotations

from pyreplog.ha.protocol.mark import Mark


class Fallback:
    """limit_us: how long it waits; None: for ever. count: how often it went on alone. commits: how often its commit
    point moved meanwhile."""

    def __init__(self, limit_us: int | None) -> None:
        self.is_alone = False
        self.since_us = 0
        self.count = self.commits = 0
        self.limit_us = limit_us
        self._awaited: tuple[Mark, int] | None = None  # (mark, since when it is known not to be replicated)

    def wait(self, own: Mark, committed: Mark, now_us: int) -> None:
        """What there is, and what enough replicas have. One mark is awaited at a time: a wait is noticed within twice
        the limit, at the cost of a comparison."""
        if self._awaited is None or self._awaited[0] <= committed:
            self._awaited = (own, now_us) if own > committed else None

    def is_due(self, now_us: int) -> bool:
        if self.limit_us is None or self.is_alone or self._awaited is None:
            return False
        return now_us - self._awaited[1] >= self.limit_us

    def begin(self, now_us: int) -> None:
        self.is_alone, self.since_us = True, now_us
        self.count += 1

    def end(self) -> None:
        self.is_alone, self._awaited = False, None
