"""Which entry of a ledger holds a message, or is the first behind a point: what to look at next. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pyreplog.topic.model.topic_position import EntryPosition


class OffsetSearch:
    """The entry that holds `offset`, of a ledger with `entries` entries that hold the offsets from `start` up to `end`.

    Entries mostly hold about as many messages each, so it looks where the entry should be, and in every other step in
    the middle of what is left: at most about twice as many steps as bisection, and mostly one or two.
    """

    def __init__(self, offset: int, entries: int, start: int, end: int) -> None:
        self._offset = offset
        self._low, self._high = 0, entries  # it is one of these, `_high` excluded
        self._start, self._end = start, end  # offsets these hold
        self._middle = False
        self.found: EntryPosition | None = None

    def next(self) -> int | None:
        """The entry to look at; None: it was found, or is nowhere."""
        if self.found is not None or self._low >= self._high:
            return None
        count = self._high - self._low
        if self._middle or self._end <= self._start:
            guess = count // 2
        else:
            guess = (self._offset - self._start) * count // (self._end - self._start)
        self._middle = not self._middle
        return self._low + min(max(guess, 0), count - 1)

    def saw(self, place: EntryPosition, time_us: int) -> None:
        """What is there."""
        if self._offset < place.first:
            self._high, self._end = place.entry, place.first
        elif self._offset >= place.end:
            self._low, self._start = place.entry + 1, place.end
        else:
            self.found = place


class FirstSearch:
    """The first entry for which `is_behind(place, append time)`; once it holds it does for all that follow. guess: the
    entry that is looked at first, None: the middle."""

    def __init__(
        self, entries: int, is_behind: Callable[[EntryPosition, int], bool], *, guess: int | None = None
    ) -> None:
        self._is_behind, self._guess = is_behind, guess
        self._low, self._high = 0, entries
        self.found: EntryPosition | None = None
        """The best so far; None in the end: there is none."""

    def next(self) -> int | None:
        guess, self._guess = self._guess, None
        if guess is not None:
            return guess
        return (self._low + self._high) // 2 if self._low < self._high else None

    def saw(self, place: EntryPosition, time_us: int) -> None:
        if self._is_behind(place, time_us):
            self._high, self.found = place.entry, place
        else:
            self._low = place.entry + 1
