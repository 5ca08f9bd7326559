"""Which entry of a ledger holds a message, or was the first behind a moment: what to look at next. Pure."""

from __future__ import annotations

from pyreplog.topic.place import EntryPlace


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
        self.found: EntryPlace | None = None

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

    def saw(self, place: EntryPlace, time_us: int) -> None:
        """What is there."""
        if self._offset < place.first:
            self._high, self._end = place.entry, place.first
        elif self._offset >= place.end:
            self._low, self._start = place.entry + 1, place.end
        else:
            self.found = place


class TimeSearch:
    """The first entry that was appended at `time_us` or later; append times do not go back in a ledger."""

    def __init__(self, time_us: int, entries: int) -> None:
        self._time_us = time_us
        self._low, self._high = 0, entries
        self.found: EntryPlace | None = None
        """The best so far; None in the end: all entries are older."""

    def next(self) -> int | None:
        return (self._low + self._high) // 2 if self._low < self._high else None

    def saw(self, place: EntryPlace, time_us: int) -> None:
        if time_us >= self._time_us:
            self._high, self.found = place.entry, place
        else:
            self._low = place.entry + 1
