"""How much of its log a node keeps for those that are behind. What is not committed is kept by the log itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from pyreplog.ha.protocol.mark import Mark
from pyreplog.ha.protocol.standing import Standing


class Holding:
    """Keeps what is needed by replicas that are connected, or were within `remember_us`; at most so many bytes. What a
    replica has not synced it may need again."""

    __slots__ = ("_bytes", "_remember_us", "_since_us")

    def __init__(self, hold_bytes: int, remember_us: int) -> None:
        self._bytes, self._remember_us = hold_bytes, remember_us
        self._since_us: int | None = None  # when it was asked first: about when the master began

    def floor(
        self, standings: Mapping[str, Standing], members: Set[str], start: Mark, end: Mark, now_us: int
    ) -> int | None:
        """Position from which on the log is kept; None: nobody needs any of it. members: the other ones."""
        remembered = now_us - self._remember_us
        self._since_us = now_us if self._since_us is None else self._since_us
        needed = [
            standing.synced.position
            for name, standing in standings.items()
            if standing.connection is not None
            or (standing.left_us >= remembered and not standing.observer and name in members)
        ]
        if members - standings.keys() and self._since_us >= remembered:  # they may come yet, and need anything
            needed.append(start.position)
        return max(min(needed), end.position - self._bytes) if needed else None


def floor_of_copy(log_start: int | None, followers: Iterable[int], end: int, hold_bytes: int) -> int | None:
    """Position from which on a replica keeps its log; None: nobody needs any of it. It keeps what its master keeps, for
    a member may be its heir: others have to find there what they lack; and what those need that follow it.

    log_start: where the master's log begins; None: it is no heir, but an observer. followers: what each has synced.
    """
    needed = [*followers] if log_start is None else [log_start, *followers]
    return max(min(needed), end - hold_bytes) if needed else None
