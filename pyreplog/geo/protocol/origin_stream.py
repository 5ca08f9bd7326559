"""OriginStream: the progress of one origin in one session, and its unsent gaps."""

from __future__ import annotations

from collections.abc import Sequence

from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, LastEntry, Origin


class OriginStream:
    """One origin that is being sent to the target.

    Attributes:
        origin: the origin.
        stored: the target has every message below this offset, or noted a gap there.
        covered: every message below this offset was sent, or is part of `gaps`.
        gaps: unsent gaps, ascending.
        gaps_from: offset here of the first entry that became one of them.
        is_open: whether the target has reported its position.
        is_opening: whether its position was asked for.
        is_fenced: whether another source of this origin has a newer session.
        waiting: requests without an outcome.
        unproved: the target's last entry, until the entry here is compared with it; None: they are equal, or the target
            has no entry.
    """

    __slots__ = (
        "covered",
        "gaps",
        "gaps_from",
        "gaps_since_us",
        "is_fenced",
        "is_open",
        "is_opening",
        "origin",
        "stored",
        "unproved",
        "waiting",
    )

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.stored = self.covered = self.gaps_from = 0
        self.gaps: list[Gap] = []
        self.gaps_since_us: int | None = None
        self.is_open = self.is_opening = self.is_fenced = False
        self.waiting = 0
        self.unproved: LastEntry | None = None

    def begin(self, stored: int) -> None:
        """Begin behind the last message that the target has."""
        self.stored = self.covered = stored
        self.is_open, self.is_opening = True, False

    def cover(self, start: int, end: int, cause: GapCause, now_us: int, here: int) -> None:
        """Note the part of a gap that is not covered yet. here: offset here of the entry behind the gap."""
        start = max(start, self.covered)
        if start >= end:
            return
        if not self.gaps:
            self.gaps_from = here
        if self.gaps and self.gaps[-1].end == start and self.gaps[-1].cause == cause:
            self.gaps[-1] = self.gaps[-1]._replace(end=end)
        else:
            self.gaps.append(Gap(start, end, cause))
        if self.gaps_since_us is None:
            self.gaps_since_us = now_us
        self.covered = end

    def is_crowded(self, gaps: Sequence[Gap]) -> bool:
        """Return whether the unsent gaps have to be sent before an entry with these gaps."""
        return len(self.gaps) + sum(gap.end > self.covered for gap in gaps) + 2 > GAPS_MAX

    def take_gaps(self) -> tuple[Gap, ...]:
        """Return the unsent gaps, and count them as sent."""
        gaps, self.gaps, self.gaps_since_us = tuple(self.gaps), [], None
        return gaps
