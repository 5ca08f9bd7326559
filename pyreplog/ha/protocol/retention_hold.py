"""How much of its log a node keeps for those that are behind. What is not committed is kept by the log itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from pyreplog.ha.protocol.replica_progress import Progress
from pyreplog.stream.log_position import LogPosition


class RetentionHold:
    """Keeps what is needed by replicas that are connected, or were within `remember_us`; at most so many bytes. What a
    replica has not synced it may need again."""

    __slots__ = ("_bytes", "_remember_us", "_since_us")

    def __init__(self, hold_bytes: int, remember_us: int) -> None:
        self._bytes, self._remember_us = hold_bytes, remember_us
        self._since_us: int | None = None  # when it was asked first: about when the master began

    def floor(
        self,
        progress_by_name: Mapping[str, Progress],
        members: Set[str],
        start: LogPosition,
        end: LogPosition,
        now_us: int,
    ) -> int | None:
        """Position from which on the log is kept; None: nobody needs any of it. members: the other ones."""
        remembered = now_us - self._remember_us
        self._since_us = now_us if self._since_us is None else self._since_us
        needed = [
            replica.synced.position
            for name, replica in progress_by_name.items()
            if replica.connection is not None
            or (replica.left_us >= remembered and not replica.observer and name in members)
        ]
        if members - progress_by_name.keys() and self._since_us >= remembered:  # they may come yet, and need anything
            needed.append(start.position)
        return max(min(needed), end.position - self._bytes) if needed else None


def floor_of_copy(log_start: int | None, followers: Iterable[int], end: int, hold_bytes: int) -> int | None:
    """Position from which on a replica keeps its log; None: nobody needs any of it. It keeps what its master keeps, for
    a member may be its heir: others have to find there what they lack; and what those need that follow it.

    log_start: where the master's log begins; None: it is no heir, but an observer. followers: what each has synced.
    """
    needed = [*followers] if log_start is None else [log_start, *followers]
    return max(min(needed), end - hold_bytes) if needed else None
