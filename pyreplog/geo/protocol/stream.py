"""Stream: what of one origin was sent in one session, and the gaps that are still to be told."""

from __future__ import annotations

from collections.abc import Sequence

from pyreplog.origins.origin import GAPS_MAX, Gap, GapCause, Origin


class Stream:
    """One origin on its way to the target.

    Attributes:
        origin: the origin.
        stored: the target has everything below it.
        covered: everything below it was sent, or is one of `gaps`.
        gaps: gaps that were not sent yet, ascending.
        gaps_from: offset here of the first entry that became one of them.
        is_open: the target has said what it has.
        is_opening: it was asked.
        is_fenced: another source of this origin has a newer session.
        waiting: requests without an outcome.
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
        "waiting",
    )

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.stored = self.covered = self.gaps_from = 0
        self.gaps: list[Gap] = []
        self.gaps_since_us: int | None = None
        self.is_open = self.is_opening = self.is_fenced = False
        self.waiting = 0

    def begin(self, stored: int) -> None:
        """Begin behind what the target has."""
        self.stored = self.covered = stored
        self.is_open, self.is_opening = True, False

    def cover(self, start: int, end: int, cause: GapCause, now_us: int, here: int) -> None:
        """Note a gap, without the part of it that is covered already. here: offset here of the entry behind it."""
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
        """Return whether its gaps have to be sent before an entry with these gaps."""
        return len(self.gaps) + sum(gap.end > self.covered for gap in gaps) + 2 > GAPS_MAX

    def take_gaps(self) -> tuple[Gap, ...]:
        """Return the gaps that were not sent yet, to be sent now."""
        gaps, self.gaps, self.gaps_since_us = tuple(self.gaps), [], None
        return gaps
