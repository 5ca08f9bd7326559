"""How often messages were delivered again. Kept in memory only: a new owner of the topic begins at 0."""

from __future__ import annotations

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.topic.model.dispatch.offsets import Offsets


class Redeliveries:
    """Counts every redelivery, whatever the reason: a message that crashes its consumers becomes a dead letter by it.

    Only messages that were delivered twice and are not acknowledged have a number here.
    """

    def __init__(self) -> None:
        self._returned = RangeSet()  # delivered before, and nobody has them now
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def awaited(self) -> bool:
        """Whether any message came back and was not delivered again yet."""
        return bool(self._returned)

    def returned(self, offsets: Offsets) -> None:
        """Note ascending offsets that came back from a consumer."""
        self._returned.add_offsets(offsets)

    def count(self, offset: int) -> int:
        """How often it was delivered again."""
        return self._counts.get(offset, 0)

    def beyond(self, offsets: Offsets, most: int) -> Offsets:
        """Those of ascending offsets that were delivered again `most` times, and came back."""
        if not self._returned:
            return offsets[:0]
        again = offsets[self._returned.mask(offsets)]
        return again[[self.count(offset) >= most for offset in again.tolist()]] if most and len(again) else again

    def delivered(self, offsets: Offsets) -> dict[int, int]:
        """Count a delivery. Returns, by offset, how often those were delivered again that were delivered before."""
        if not self._returned:
            return {}
        again = offsets[self._returned.mask(offsets)]
        self._returned.remove_offsets(again)
        counts = {at: self._counts.get(at, 0) + 1 for at in again.tolist()}
        self._counts.update(counts)
        return counts

    def died(self, offsets: Offsets) -> dict[int, int]:
        """Note that messages are dead letters now. Returns their counts, which stay."""
        self._returned.remove_offsets(offsets)
        return {at: self._counts.get(at, 0) for at in offsets.tolist()}

    def forget(self, offsets: Offsets) -> None:
        """Forget acknowledged messages."""
        if self._returned:
            self._returned.remove_offsets(offsets)
        if self._counts:
            for at in offsets.tolist():
                self._counts.pop(at, None)

    def forget_range(self, start: int, end: int) -> None:
        self._returned.remove(start, end)
        if not self._counts:
            return
        if end - start < len(self._counts):
            gone = [at for at in range(start, end) if at in self._counts]
        else:
            gone = [at for at in self._counts if start <= at < end]
        for at in gone:
            del self._counts[at]

    def clear(self) -> None:
        """Begin anew: nothing was delivered yet."""
        self._returned.clear()
        self._counts.clear()
