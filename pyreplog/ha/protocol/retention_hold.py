"""How much of the log a node keeps for replicas that lag. The log itself keeps all that is not committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from pyreplog.ha.protocol.replica_progress import Progress
from pyreplog.stream.log_position import LogPosition


class RetentionHold:
    """Keeps the log for replicas that are connected, or were so within `remember_us`, up to a limit in bytes. What a
    replica has not synced is kept, since it may need it again."""

    __slots__ = ("_bytes", "_remember_us", "_since_us")

    def __init__(self, hold_bytes: int, remember_us: int) -> None:
        self._bytes, self._remember_us = hold_bytes, remember_us
        self._since_us: int | None = None  # the first call of `floor`: about when the master began

    def floor(
        self,
        progress_by_name: Mapping[str, Progress],
        members: Set[str],
        start: LogPosition,
        end: LogPosition,
        now_us: int,
    ) -> int | None:
        """Return the position from which on the log is kept; None: no replica needs it. members: the other members."""
        remembered = now_us - self._remember_us
        self._since_us = now_us if self._since_us is None else self._since_us
        needed = [
            replica.synced.position
            for name, replica in progress_by_name.items()
            if replica.connection is not None
            or (replica.left_us >= remembered and not replica.observer and name in members)
        ]
        if members - progress_by_name.keys() and self._since_us >= remembered:  # they may still join, at any position
            needed.append(start.position)
        return max(min(needed), end.position - self._bytes) if needed else None


def floor_of_copy(log_start: int | None, followers: Iterable[int], end: int, hold_bytes: int) -> int | None:
    """Return the position from which on a replica keeps its log; None: no other node needs any of it.

    A replica that may become master keeps what its master keeps, because other members must find the records that they
    lack. Each replica keeps what the nodes that follow it need.

    Args:
        log_start: position where the master's log begins; None: the replica is an observer, which becomes no master.
        followers: position up to which each follower has synced.
        end: end of its log, position.
        hold_bytes: most bytes that it keeps.
    """
    needed = [*followers] if log_start is None else [log_start, *followers]
    return max(min(needed), end - hold_bytes) if needed else None
