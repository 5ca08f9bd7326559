"""What must hold of geo-replication, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyreplog.origins.origin import Gap, GapCause, Origin, OriginEntry

from ..invariants import demand

if TYPE_CHECKING:
    from .schedule import Schedule


class Invariants:
    """Checked whenever the target stores something, and whenever the source trims."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.stored: dict[Origin, int] = {}
        self.logged: dict[Origin, int] = {}  # behind the last entry
        self.messages: dict[Origin, int] = {}
        self.causes: set[GapCause] = set()

    def backup(self) -> Callable[[], None]:
        """Return what makes this forget all that is stored from now on."""
        stored, logged, messages = {**self.stored}, {**self.logged}, {**self.messages}

        def restore() -> None:
            self.stored, self.logged, self.messages = {**stored}, {**logged}, {**messages}

        return restore

    def store(self, origin: Origin, gaps: tuple[Gap, ...], entry: OriginEntry) -> None:
        """An entry was stored, behind these gaps. They may be told already, when they lay behind the last entry."""
        source = self._schedule.log
        demand(origin.cluster != self._schedule.target_cluster, "Loop", "messages of the target come back to it")
        at = self.logged.get(origin, 0)
        for gap in gaps:
            demand(gap.start == at, "PrefixComplete", f"{gap} behind {at}")
            at = gap.end
        demand(entry.first == at, "OncePerCluster", f"{entry.first} behind {at}")
        truth = source.truth(origin, entry.first)
        demand(truth is not None, "Invented", f"{origin}: {entry.first}")
        demand(
            truth == (entry.value, entry.messages, entry.publish_time_us, entry.replicate_to), "BytesEqual", f"{origin}: {entry.first}"
        )  # fmt: skip
        self.messages[origin] = self.messages.get(origin, 0) + entry.messages
        self.logged[origin] = entry.end
        self.stored[origin] = max(entry.end, self.stored.get(origin, 0))

    def note_gaps(self, origin: Origin, stored: int, gaps: tuple[Gap, ...]) -> None:
        """A snapshot was stored, with gaps behind the last entry."""
        if gaps:
            demand(gaps[-1].end == stored, "PrefixComplete", f"{gaps[-1]}, stored {stored}")
        self.stored[origin] = max(stored, self.stored.get(origin, 0))

    def recovered(self, origin: Origin, stored: int) -> None:
        """Another owner read what is stored."""
        expected = self.stored.get(origin, 0)
        demand(stored == expected, "VectorNeverFalls", f"{origin}: {stored}, it was {expected}")

    def claim(self, origin: Origin, entries: Iterable[OriginEntry], gaps: Iterable[Gap]) -> None:
        """The source says why messages are not sent; checked when it does, as it may be restored before the target hears.

        The target keeps a bounded number of gaps, and joins them beyond it.
        """
        for gap in [*gaps, *(gap for entry in entries for gap in entry.gaps)]:
            self.causes.add(gap.cause)
            for offset in range(gap.start, gap.end):
                self._check_gap(origin, offset, gap.cause)

    def _check_gap(self, origin: Origin, offset: int, cause: GapCause) -> None:
        expected = self._schedule.log.cause(origin, offset)
        kind, _, before = expected.partition(" ")
        if before and cause in (GapCause.FILTERED, GapCause.EXPIRED):
            return
        causes = {
            GapCause.FOREIGN: ("foreign",), GapCause.REFUSED: ("poison",), GapCause.EXPIRED: ("own", "poison"),
            GapCause.FILTERED: ("withheld",), GapCause.DUPLICATE: ("skipped",),
        }.get(cause, ())  # fmt: skip
        if cause is GapCause.EXPIRED:
            demand(
                self._schedule.plan.ttl_us is not None, "GapsHaveCauses", f"{offset} of {origin} expired without TTL"
            )
        demand(kind in causes, "GapsHaveCauses", f"{offset} of {origin} is {expected}, found {cause.name}")

    def trim(self, below: int) -> None:
        own = self._schedule.log.own
        demand(below <= self.stored.get(own, 0), "TrimmedUnsent", f"below {below}, stored {self.stored.get(own, 0)}")
