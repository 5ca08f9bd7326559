"""What must hold of a topic, whoever owns it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pyreplog.future import AppendFuture

from ..invariants import demand

if TYPE_CHECKING:
    from .processes import Process
    from .schedule import Schedule


class Invariants:
    """values: of each offset, once somebody was told. acked: offsets that anybody acknowledged, by subscription."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.values: dict[int, bytes] = {}
        self.confirmed: dict[bytes, int] = {}
        self.acked: dict[str, set[int]] = {"all": set(), "some": set(), "far": set()}
        self._by_opening: dict[tuple[str, int], set[int]] = {}
        self._kept: dict[str, set[int]] = {"all": set(), "some": set()}
        self._deliveries: dict[str, Counter[int]] = {"all": Counter(), "some": Counter()}
        self._last: dict[object, int] = {}
        self.attachments = self.repeated = self.refused = 0

    def attached(self) -> None:
        """Somebody consumes, as nobody did before."""
        self.attachments += 1

    def _means(self, offset: int, value: bytes) -> None:
        known = self.values.setdefault(offset, value)
        demand(known == value, "AnOffsetMeansTheSameForEver", f"offset {offset} was {known!r}, is {value!r}")

    # ---- publishing -----------------------------------------------------------------------------------------

    def published(self, process: Process, handle: object, value: bytes, done: AppendFuture[int]) -> None:
        error = done.exception()
        if error is not None:
            self.refused += 1
            return
        offset: int = done.result(0)
        self._schedule.world.note(process.name, f"published {value!r} at {offset}")
        self._means(offset, value)
        demand(value not in self.confirmed, "ConfirmedOnce", f"{value!r} at {self.confirmed.get(value)} and {offset}")
        self.confirmed[value] = offset
        demand(self._last.get(handle, -1) < offset, "OrderOfCalls", f"{value!r} is at {offset}, before what came first")
        self._last[handle] = offset

    # ---- consuming ------------------------------------------------------------------------------------------

    def delivered(self, process: Process, name: str, offset: int, value: bytes) -> None:
        self._schedule.world.note(process.name, f"{name} gets {offset} {value!r}")
        self._means(offset, value)
        count = self._deliveries[name]
        count[offset] += 1
        self.repeated += count[offset] > 1
        demand(
            count[offset] <= self.attachments,
            "RepeatedOnlyAfterATakeover",
            f"{name} got {offset} {count[offset]} times, of {self.attachments} that consumed",
        )
        is_last = process.opening == self._schedule.openings
        demand(not (is_last and offset in self._kept[name]), "StoredAcksStay", f"{name} got {offset} again")

    def acknowledged(self, name: str, offsets: list[int], opening: int) -> None:
        self.acked[name].update(offsets)
        self._by_opening.setdefault((name, opening), set()).update(offsets)

    def asked(self, name: str, opening: int) -> set[int]:
        """What an owner was asked to store."""
        return set(self._by_opening.get((name, opening), ()))

    def kept(self, name: str, offsets: set[int]) -> None:
        """An owner, and nobody after it, has said that it did."""
        self._kept[name] |= offsets

    def delivered_far(self, offset: int, value: bytes, flushed: set[int]) -> None:
        """To a client, that has flushed so much."""
        self._means(offset, value)
        demand(offset not in flushed, "FlushedAcksStay", f"the client got {offset} again")

    def sought(self, at: int, end: int, came: set[int]) -> None:
        """A seek moved the client's subscription there, and none behind it did."""
        lost = set(range(at, end)) - came
        demand(not lost, "ASeekBringsAllAgain", f"from {at} on the client never got {sorted(lost)}")

    def begins(self, name: str, start: int) -> None:
        """A subscription is new; before its start it needs nothing."""
        self.acked[name].update(range(start))

    # ---- in the end -----------------------------------------------------------------------------------------

    def stored(self, start: int, contents: dict[int, bytes]) -> None:
        """All that is there."""
        end = start + len(contents)
        demand(
            sorted(contents) == list(range(start, end)),
            "OffsetsAreDense",
            f"from {start} on there are {sorted(contents)}",
        )
        for offset, value in contents.items():
            self._means(offset, value)
        values = list(contents.values())
        demand(len(set(values)) == len(values), "StoredOnce", f"{[v for v, n in Counter(values).items() if n > 1]}")
        for value, offset in self.confirmed.items():
            demand(offset < start or contents.get(offset) == value, "NothingConfirmedIsLost", f"{value!r}, at {offset}")
        for name, acked in self.acked.items():
            lost = set(range(start)) - acked
            demand(
                not lost, "NothingNeededIsTrimmed", f"{name} has not acknowledged {sorted(lost)}, it begins at {start}"
            )

    def consumed(self, name: str, values: dict[int, Any]) -> None:
        """All that was there was offered to a subscription."""
        skipped = set(values) - self.acked[name]
        demand(not skipped, "NothingIsSkipped", f"{name} never got {sorted(skipped)}")
