"""How much of its log a master keeps for replicas that are behind."""

from __future__ import annotations

from collections.abc import Mapping, Set

from pyreplog.ha.protocol.mark import Mark
from pyreplog.ha.protocol.standing import Standing


class Holding:
    """Keeps what is needed by replicas that are connected, or were within `remember_us`; at most so many bytes."""

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
            standing.received.position
            for name, standing in standings.items()
            if standing.connection is not None
            or (standing.left_us >= remembered and not standing.observer and name in members)
        ]
        if members - standings.keys() and self._since_us >= remembered:  # they may come yet, and need anything
            needed.append(start.position)
        return max(min(needed), end.position - self._bytes) if needed else None
