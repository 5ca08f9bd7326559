"""Histories: the comparison of two neighbours' histories of the origins of third clusters, in one session."""

from __future__ import annotations

from collections.abc import Iterator

from pyreplog.origins.origin import LastEntry, Origin, OriginState

NOTHING_STORED = OriginState(0, None)


class Histories:
    """The reports that this cluster and one neighbour sent each other about the origins of third clusters.

    Each reports its position, with its last entry. A cluster that stores all messages up to the last entry of the other
    one compares that with its own entry there. If the entry was trimmed here, or never sent here, nothing is known; the
    other cluster compares as soon as it has reached the last entry of this one.
    """

    def __init__(self) -> None:
        self.takes_reports = False
        """Whether the neighbour takes reports: it is connected, and no older version."""
        self.differing: set[Origin] = set()
        """Origins of which the two have different entries."""
        self.due: dict[Origin, int] = {}
        """Origins with new messages that are not reported yet, and the positions behind them."""
        self._reported: set[Origin] = set()
        self._awaited: dict[Origin, LastEntry] = {}  # last entries of the neighbour that are not compared yet

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self.takes_reports = False
        self.differing.clear()
        self.due.clear()
        self._reported.clear()
        self._awaited.clear()

    def is_reported(self, origin: Origin) -> bool:
        """Return whether the neighbour got a report of an origin in this session, with the last entry."""
        return origin in self._reported

    def begin_report(self, origin: Origin) -> bool:
        """Return whether the neighbour lacks a report of an origin, and is to get one now."""
        if not self.takes_reports or origin in self._reported:
            return False
        self._reported.add(origin)
        return True

    def note(self, origin: Origin, state: OriginState, here: OriginState) -> bool:
        """Note the neighbour's position in an origin.

        Args:
            origin: the origin.
            state: the neighbour's position.
            here: the position of this cluster.

        Returns:
            Whether both have the same history, for certain, without reading an entry: their last entries are equal.
        """
        self._awaited.pop(origin, None)
        if state.last is not None and state.last != here.last:
            self._awaited[origin] = state.last
        return state.last is not None and state.last == here.last

    def take_comparable(self, origin: Origin, end: int) -> Iterator[LastEntry]:
        """Yield the neighbour's last entry of an origin, once, if all before its end is stored here: up to `end`."""
        last = self._awaited.get(origin)
        if last is not None and last.end <= end:
            del self._awaited[origin]
            yield last
