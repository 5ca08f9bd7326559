"""How often messages were delivered again, and why. Kept in memory only: a new owner of the topic begins at 0."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pyreplog._native.topic.rangeset import RangeSet
from pyreplog.topic.model.dispatch.offsets import Offsets

REASONS_BYTES_MAX = 4 << 20
"""Memory for the reasons of one subscription; beyond, those that were given first are forgotten."""

REASON_OVERHEAD = 200
"""Bytes that a reason takes besides its text, about."""


class Cause(StrEnum):
    """Why a message came back from a consumer; the values are those of a dead letter's property."""

    NACK = "nack"
    ACK_TIMEOUT = "ack_timeout"
    CONSUMER_LOST = "consumer_lost"
    """The consumer was closed or lost, or another one became the active one."""
    REDELIVER = "redeliver"
    """The consumer asked for all of its messages again."""


class Failure(NamedTuple):
    """Why a message is a dead letter. redeliveries: how often it was delivered again; cause: of the last return;
    reason: the last one that a consumer gave, None: none was."""

    redeliveries: int
    cause: Cause
    reason: str | None


class Reasons:
    """The last reason that a consumer gave for each message; bounded."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # in the order in which they were given
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def note(self, offsets: Offsets, reason: str) -> None:
        """Note the reason of several messages."""
        size = _size(reason)
        for offset in offsets.tolist():
            self._drop(offset)
            self._texts[offset] = reason
            self._bytes += size
            while self._bytes > REASONS_BYTES_MAX:
                self._drop(next(iter(self._texts)))

    def get(self, offset: int) -> str | None:
        return self._texts.get(offset)

    def forget(self, offsets: Offsets) -> None:
        for offset in offsets.tolist() if self._texts else ():
            self._drop(offset)

    def forget_range(self, start: int, end: int) -> None:
        if not self._texts:
            return
        if end - start < len(self._texts):
            gone = [offset for offset in range(start, end) if offset in self._texts]
        else:
            gone = [offset for offset in self._texts if start <= offset < end]
        for offset in gone:
            self._drop(offset)

    def clear(self) -> None:
        self._texts.clear()
        self._bytes = 0

    def _drop(self, offset: int) -> None:
        text = self._texts.pop(offset, None)
        if text is not None:
            self._bytes -= _size(text)


def _size(reason: str) -> int:
    return REASON_OVERHEAD + 4 * len(reason)


class Redeliveries:
    """Counts every redelivery, whatever the reason: a message that crashes its consumers becomes a dead letter by it.

    Only messages that were delivered twice and are not acknowledged have a number here.
    """

    def __init__(self) -> None:
        self._returned = RangeSet()  # delivered before, and nobody has them now
        self._counts: dict[int, int] = {}
        self._causes = {cause: RangeSet() for cause in Cause if cause is not Cause.NACK}
        """Messages that came back for another cause than a nack; of those that are dead letters, too."""
        self._reasons = Reasons()
        self._has_details = False  # causes or reasons, maybe

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def awaited(self) -> bool:
        """Whether any message came back and was not delivered again yet."""
        return bool(self._returned)

    def returned(self, offsets: Offsets, cause: Cause | None) -> None:
        """Note ascending offsets that came back from a consumer. cause: None, dead letters that were not published,
        which keep theirs."""
        self._returned.add_offsets(offsets)
        if cause is not None and cause is not Cause.NACK:
            self._causes[cause].add_offsets(offsets)
            self._has_details = True

    def explain(self, offsets: Offsets, reason: str) -> None:
        """Note why a consumer refused messages, as it says."""
        self._reasons.note(offsets, reason)
        self._has_details = True

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
        if self._has_details:
            self._forget_causes(again)
        counts = {at: self._counts.get(at, 0) + 1 for at in again.tolist()}
        self._counts.update(counts)
        return counts

    def died(self, offsets: Offsets) -> dict[int, Failure]:
        """Note that messages are dead letters now. Returns why, by offset; it stays known."""
        self._returned.remove_offsets(offsets)
        return {at: Failure(self.count(at), self._cause(at), self._reasons.get(at)) for at in offsets.tolist()}

    def _cause(self, offset: int) -> Cause:
        return next((cause for cause, offsets in self._causes.items() if offset in offsets), Cause.NACK)

    def _forget_causes(self, offsets: Offsets) -> None:
        for caused in self._causes.values():
            if caused:
                caused.remove_offsets(offsets)

    def _look_for_details(self) -> None:
        self._has_details = bool(self._reasons) or any(self._causes.values())

    def forget(self, offsets: Offsets) -> None:
        """Forget acknowledged messages."""
        if self._returned:
            self._returned.remove_offsets(offsets)
        if self._has_details:
            self._forget_causes(offsets)
            self._reasons.forget(offsets)
            self._look_for_details()
        if self._counts:
            for at in offsets.tolist():
                self._counts.pop(at, None)

    def forget_range(self, start: int, end: int) -> None:
        self._returned.remove(start, end)
        if self._has_details:
            for caused in self._causes.values():
                caused.remove(start, end)
            self._reasons.forget_range(start, end)
            self._look_for_details()
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
        for caused in self._causes.values():
            caused.clear()
        self._reasons.clear()
        self._has_details = False
        self._counts.clear()
