"""What must hold of global producers, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyreplog.origins.origin import Gap, Origin

from ..invariants import demand
from .place import Place, Stored


class Invariants:
    """Checked whenever a cluster stores something, and whenever a producer is told that something is stored."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = {place.origin: place for place in places}
        self._keys = {place.origin.key: place.origin for place in places}
        self._logged: dict[tuple[Origin, Origin], int] = {}  # by place and origin, behind the last entry
        self._numbers = {place.origin: set[tuple[bytes, int]]() for place in places}
        self._gaps: set[tuple[Origin, bytes, int]] = set()  # messages that became gaps

    @property
    def duplicates(self) -> int:
        """Number of messages that a cluster did not store a second time."""
        return len(self._gaps)

    def store(self, place: Place, entry: Stored) -> None:
        """An entry was stored."""
        numbers = self._numbers[place.origin]
        for number in entry.numbers:
            demand((entry.producer, number) not in numbers, "OncePerCluster", f"{place}: {entry.producer!r} {number}")
            numbers.add((entry.producer, number))
        if entry.attribute is None:
            return
        origin = self._keys[entry.attribute.key]
        demand(origin != place.origin, "Loop", "messages come back to their origin")
        at = self._logged.get((place.origin, origin), 0)
        for gap in entry.attribute.gaps:
            demand(gap.start == at, "PrefixComplete", f"{place}: {gap} behind {at}")
            at = gap.end
        demand(entry.attribute.first == at, "InOrder", f"{place}: {entry.attribute.first} of {origin} behind {at}")
        self._logged[place.origin, origin] = entry.attribute.first + entry.messages
        source = self._places[origin].entry_at(entry.attribute.first)
        demand(source is not None and source.value == entry.value, "BytesEqual", f"{place}: {entry.attribute}")
        self.note_gaps(place, origin, entry.attribute.gaps)

    def note_gaps(self, place: Place, origin: Origin, gaps: Iterable[Gap]) -> None:
        """Gaps of an origin were stored: each message in them is another cluster's, or is stored here, too."""
        numbers = self._numbers[place.origin]
        for gap in gaps:
            at = gap.start
            while at < gap.end:
                entry = self._places[origin].entry_at(at)
                assert entry is not None
                at = entry.first + entry.messages
                if entry.attribute is not None:
                    continue
                for number in entry.numbers:
                    self._gaps.add((place.origin, entry.producer, number))
                    demand((entry.producer, number) in numbers, "NoneLost", f"{place}: {entry.producer!r} {number}")

    def confirm(self, place: Place, producer: bytes, numbers: Iterable[int]) -> None:
        """A producer was told that numbers are stored."""
        for number in numbers:
            demand((producer, number) in self._numbers[place.origin], "NoneLost", f"{place}: {producer!r} {number}")

    def has(self, place: Place, producer: bytes, numbers: Iterable[int]) -> bool:
        return all((producer, number) in self._numbers[place.origin] for number in numbers)
