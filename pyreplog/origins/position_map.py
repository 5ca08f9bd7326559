"""PositionMap: maps offsets at an origin to offsets in a topic, and back. No I/O."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyreplog.errors import InvalidArgumentError
from pyreplog.origins.growing_columns import GrowingColumns

_Offsets: TypeAlias = NDArray[np.int64]
_Ranges: TypeAlias = tuple[_Offsets, _Offsets]


class PositionMap:
    """Maps offsets at one origin to offsets in the topic, and back; both ascend together.

    It keeps runs of messages that are neighbours at the origin and in the topic: 24 bytes for each, and up to half as
    much in reserve. Adding entries takes amortized linear time in their number; mapping ranges takes linear time in the
    result, and logarithmic time in the number of runs. One thread at a time.

    Example:
        >>> positions = PositionMap()
        >>> positions.extend(np.array([100]), np.array([7]), np.array([3]))
        >>> positions.to_local((np.array([102]), np.array([110])))
        (array([9]), array([10]))
    """

    def __init__(self) -> None:
        self._runs = GrowingColumns(3)  # offset at the origin, offset in the topic, messages
        self._local_end = 0
        self.end = 0
        """Offset at the origin behind the last message, also if that was trimmed; 0: no message was added."""

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    @property
    def first(self) -> int:
        """Offset at the origin of the first message; `end`: all were trimmed."""
        return int(self._runs.view[0, 0]) if len(self._runs) else self.end

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the runs."""
        return self._runs.nbytes

    def extend(self, firsts: _Offsets, offsets: _Offsets, counts: _Offsets) -> None:
        """Add entries behind all others, in their order.

        Args:
            firsts: int64[n], offsets at the origin of the first message of each.
            offsets: int64[n], its offset in the topic.
            counts: int64[n], messages in each, 1 or more.

        Raises:
            InvalidArgumentError: entries do not lie behind all others, at the origin and in the topic; none is added.
        """
        if not len(firsts):
            return
        ends = np.concatenate([np.array([self.end], np.int64), firsts + counts])
        local_ends = np.concatenate([np.array([self._local_end], np.int64), offsets + counts])
        wrong = np.flatnonzero((firsts < ends[:-1]) | (offsets < local_ends[:-1]) | (counts < 1))
        if len(wrong):
            at = int(wrong[0])
            raise InvalidArgumentError(
                f"positions: expected messages from {ends[at]}, here {local_ends[at]}, on, found {counts[at]} from "
                f"{firsts[at]}, here {offsets[at]}, on"
            )
        is_next = (firsts == ends[:-1]) & (offsets == local_ends[:-1])
        is_next[0] &= len(self._runs) > 0
        begins = np.flatnonzero(~is_next)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        joined = int(begins[0]) if len(begins) else len(firsts)
        if joined:
            self._runs.view[2, -1] += sums[joined]
        if len(begins):
            messages = np.diff(sums[np.append(begins, len(firsts))])
            self._runs.extend(np.stack([firsts[begins], offsets[begins], messages]))
        self.end, self._local_end = int(ends[-1]), int(local_ends[-1])

    def to_origin(self, ranges: _Ranges) -> _Ranges:
        """Translate ranges of the topic, ascending, without the messages of other origins in them.

        Args:
            ranges: int64 starts and ends.

        Returns:
            Starts and ends at the origin, ascending: one range for each run in each of `ranges`.
        """
        origins, offsets, counts = self._runs.view
        return _translate(ranges, offsets, counts, origins)

    def to_local(self, ranges: _Ranges) -> _Ranges:
        """Translate ranges of the origin, ascending, without the messages that the topic lacks. See `to_origin`."""
        origins, offsets, counts = self._runs.view
        return _translate(ranges, origins, counts, offsets)

    def held_from(self, offset: int) -> _Ranges:
        """Return the ranges at the origin, from an offset on, of messages that the topic has: one for each run."""
        firsts, _, counts = self._runs.view
        at = max(int(np.searchsorted(firsts, offset, "right")) - 1, 0)
        starts, ends = np.maximum(firsts[at:], offset), firsts[at:] + counts[at:]
        rows = slice(int(len(ends) > 0 and ends[0] <= offset), None)
        return starts[rows], ends[rows]

    def runs_between(self, start: int, end: int) -> tuple[_Offsets, _Offsets, _Offsets]:
        """Return the runs in a range of the topic, cut to it: offsets at the origin, offsets here, and messages."""
        firsts, offsets, counts = self._runs.view
        begin = max(int(np.searchsorted(offsets, start, "right")) - 1, 0)
        rows = slice(begin, max(begin, int(np.searchsorted(offsets, end, "left"))))
        starts = np.maximum(offsets[rows], start)
        messages = np.minimum(offsets[rows] + counts[rows], end) - starts
        is_inside = messages > 0  # the first one may end before
        shifts = firsts[rows] - offsets[rows]
        return (starts + shifts)[is_inside], starts[is_inside], messages[is_inside]

    def trim(self, below: int) -> None:
        """Forget the messages whose offset in the topic is below `below`."""
        offsets = self._runs.view[1]
        at = int(np.searchsorted(offsets, below, "right")) - 1
        if at < 0:
            return
        run = self._runs.view[:, at]
        cut = min(below - int(run[1]), int(run[2]))
        is_gone = cut == run[2]
        run += np.array([cut, cut, -cut])
        self._runs.drop_first(at + int(is_gone))


def crossings(ranges: _Ranges, starts: _Offsets, ends: _Offsets) -> _Ranges:
    """Return, for each range, its first run, and the run behind its last; if it has no run, the same number twice.

    Args:
        ranges: int64 starts and ends.
        starts: of the runs, ascending.
        ends: of the runs, ascending.
    """
    first = np.searchsorted(ends, ranges[0], "right")
    return first, np.maximum(first, np.searchsorted(starts, ranges[1], "left"))


def pairs(first: _Offsets, behind: _Offsets) -> tuple[_Offsets, _Offsets]:
    """Return the numbers of the range and of the run, for each run that `crossings` returns."""
    crossed = behind - first
    query = np.repeat(np.arange(len(crossed)), crossed)
    return query, first[query] + np.arange(len(query)) - (np.cumsum(crossed) - crossed)[query]


def _translate(ranges: _Ranges, starts: _Offsets, counts: _Offsets, targets: _Offsets) -> _Ranges:
    """Cut ranges to runs, and shift each part as its run is shifted. Ends are computed for the crossed runs alone, as
    computing them for all runs would take linear time.
    """
    first = np.maximum(np.searchsorted(starts, ranges[0], "right") - 1, 0)
    if len(starts):
        first += ranges[0] >= starts[first] + counts[first]
    query, run = pairs(first, np.maximum(first, np.searchsorted(starts, ranges[1], "left")))
    begins, shifts = starts[run], targets[run] - starts[run]
    return (
        np.maximum(ranges[0][query], begins) + shifts,
        np.minimum(ranges[1][query], begins + counts[run]) + shifts,
    )
