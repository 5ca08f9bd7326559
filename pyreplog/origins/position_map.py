"""Where the messages of an origin are in a topic, and back. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidArgumentError


class PositionMap:
    """Maps offsets at one origin to offsets in the topic, and back; both ascend together.

    It keeps runs of messages that are neighbours at the origin and in the topic: 24 bytes for each. One thread at a
    time.

    Example:
        >>> positions = PositionMap()
        >>> positions.add(100, 7, 3)
        >>> positions.local_of(102), positions.origin_of(9), positions.local_of(103)
        (9, 102, None)
    """

    def __init__(self) -> None:
        self._origins, self._locals, self._counts = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._origins)

    def add(self, first: int, offset: int, messages: int) -> None:
        """Add messages behind all others.

        Args:
            first: offset at the origin of the first message.
            offset: its offset in the topic.
            messages: their number, 1 or more.

        Raises:
            InvalidArgumentError: they do not lie behind all others, at the origin and in the topic.
        """
        if self._origins:
            end, local_end = self._origins[-1] + self._counts[-1], self._locals[-1] + self._counts[-1]
            if first == end and offset == local_end:
                self._counts[-1] += messages
                return
        else:
            end = local_end = 0
        if first < end or offset < local_end or messages < 1:
            raise InvalidArgumentError(
                f"positions: expected messages from {end}, here {local_end}, on, found {messages} from {first}, here "
                f"{offset}, on"
            )
        self._origins.append(first)
        self._locals.append(offset)
        self._counts.append(messages)

    def add_batch(self, batch: MessageBatch, key: int) -> None:
        """Add the entries of one origin that a batch has; a scan of the topic passes all of its batches, in order.

        Args:
            batch: entries of the topic, behind all that were added.
            key: `Origin.key`.

        Raises:
            InvalidArgumentError: the entries do not lie behind all others.
        """
        chosen = (batch.entry_origin_key == key) & (batch.entry_origin_first >= 0)
        if chosen.any():
            columns = batch.entry_origin_first[chosen], batch.entry_first[chosen], batch.entry_count[chosen]
            for first, offset, messages in zip(*(column.tolist() for column in columns), strict=True):
                self.add(first, offset, messages)

    def local_of(self, number: int) -> int | None:
        """Return the offset in the topic of a message of the origin; None: it is not here."""
        return self._mapped(self._origins, self._locals, number)

    def origin_of(self, offset: int) -> int | None:
        """Return the offset at the origin of a message of the topic; None: it is of another origin."""
        return self._mapped(self._locals, self._origins, offset)

    def _mapped(self, source: array[int], target: array[int], number: int) -> int | None:
        at = bisect_right(source, number) - 1
        if at < 0 or number - source[at] >= self._counts[at]:
            return None
        return target[at] + number - source[at]

    def runs(self) -> list[tuple[int, int, int]]:
        """Return (offset at the origin, offset in the topic, messages) of each run, ascending."""
        return list(zip(self._origins, self._locals, self._counts, strict=True))

    @property
    def end(self) -> int:
        """Offset at the origin behind the last message; 0: there is none."""
        return self._origins[-1] + self._counts[-1] if self._origins else 0

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return `runs` as columns: int64[n] each, copies."""
        origins, offsets, counts = (
            np.array(column, np.int64) for column in (self._origins, self._locals, self._counts)
        )
        return origins, offsets, counts

    def trim(self, below: int) -> None:
        """Forget the messages whose offset in the topic is below `below`."""
        at = bisect_right(self._locals, below) - 1
        if at < 0:
            return
        cut = min(below - self._locals[at], self._counts[at])
        if cut == self._counts[at]:
            at += 1
        else:
            self._origins[at] += cut
            self._locals[at] += cut
            self._counts[at] -= cut
        del self._origins[:at], self._locals[:at], self._counts[:at]
