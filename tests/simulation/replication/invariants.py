"""What must hold of geo-replication, by name."""

from __future__ import annotations

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
        self.messages: dict[Origin, int] = {}
        self.causes: set[GapCause] = set()

    def store(self, origin: Origin, stored: int, entry: OriginEntry | None, gaps: tuple[Gap, ...], end: int) -> None:
        source = self._schedule.log
        demand(origin.cluster != self._schedule.target_cluster, "Loop", "messages of the target come back to it")
        demand(stored == self.stored.get(origin, 0), "VectorNeverFalls", f"{stored}, it was {self.stored.get(origin)}")
        at = stored
        for gap in gaps:
            self.causes.add(gap.cause)
            demand(gap.start == at, "PrefixComplete", f"{gap} behind {at}")
            for offset in range(gap.start, gap.end):
                self._check_gap(origin, offset, gap.cause)
            at = gap.end
        if entry is not None:
            demand(entry.first == at, "OncePerCluster", f"{entry.first} behind {at}")
            truth = source.truth(origin, entry.first)
            demand(truth is not None, "Invented", f"{origin}: {entry.first}")
            assert truth is not None
            value, messages, time_us = truth
            demand(
                (value, messages, time_us) == (entry.value, entry.messages, entry.publish_time_us),
                "BytesEqual", f"{origin}: {entry.first}",
            )  # fmt: skip
            at = entry.end
            self.messages[origin] = self.messages.get(origin, 0) + entry.messages
        demand(at == end, "PrefixComplete", f"{at}, expected {end}")
        self.stored[origin] = end

    def _check_gap(self, origin: Origin, offset: int, cause: GapCause) -> None:
        expected = self._schedule.log.cause(origin, offset)
        causes = {
            GapCause.FOREIGN: ("foreign",), GapCause.REFUSED: ("poison",), GapCause.EXPIRED: ("own", "poison", "before"),
            GapCause.FILTERED: ("before",), GapCause.DUPLICATE: ("skipped",),
        }.get(cause, ())  # fmt: skip
        if cause is GapCause.EXPIRED and expected != "before":
            demand(
                self._schedule.plan.ttl_us is not None, "GapsHaveCauses", f"{offset} of {origin} expired without TTL"
            )
        demand(expected in causes, "GapsHaveCauses", f"{offset} of {origin} is {expected}, found {cause.name}")

    def trim(self, below: int) -> None:
        own = self._schedule.log.own
        demand(below <= self.stored.get(own, 0), "TrimmedUnsent", f"below {below}, stored {self.stored.get(own, 0)}")
