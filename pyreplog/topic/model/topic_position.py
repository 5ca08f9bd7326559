"""Places in a topic: what lies before a point, and where one entry lies."""

from __future__ import annotations

from typing import NamedTuple


class TopicPosition(NamedTuple):
    """Messages, entries and their value bytes of a topic before a point, counted since the topic began: what was
    trimmed counts on. `offset` is therefore the offset of the first message behind the point."""

    offset: int
    entries: int
    size: int


ORIGIN = TopicPosition(0, 0, 0)


class EntryPosition(NamedTuple):
    """One entry of a topic. first: offset of its first message; count: its messages; size: its value bytes;
    entries_before, bytes_before: of the topic."""

    ledger: int
    entry: int
    first: int
    count: int  # type: ignore[assignment]
    size: int
    entries_before: int
    bytes_before: int

    @property
    def end(self) -> int:
        """Offset behind its last message."""
        return self.first + self.count

    @property
    def before(self) -> TopicPosition:
        """What lies before it."""
        return TopicPosition(self.first, self.entries_before, self.bytes_before)

    @property
    def behind(self) -> TopicPosition:
        """What lies before the next entry."""
        return TopicPosition(self.end, self.entries_before + 1, self.bytes_before + self.size)
