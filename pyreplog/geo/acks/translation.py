"""Translates ranges of offsets in a local topic to ranges at the origins of the messages, and back.

Runs of messages that are neighbours in both places are translated at once; nothing is done for each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pyreplog.geo.acks.origin_ranges import Offsets, OriginRanges, Ranges
from pyreplog.origins.origin import Origin


@dataclass(frozen=True)
class Runs:
    """Runs of messages of one origin in the topic; they ascend in both places.

    Attributes:
        origins: int64[n], offsets at the origin of the first message of each.
        locals: int64[n], its offset in the topic.
        counts: int64[n], messages in each run.
    """

    origins: Offsets
    locals: Offsets
    counts: Offsets

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int, int]]) -> Runs:
        """Make it of (offset at the origin, offset in the topic, messages), as `PositionMap.runs` returns them."""
        columns = np.array([*runs], np.int64).reshape(-1, 3)
        return cls(*(np.ascontiguousarray(column) for column in columns.T))

    def to_origin(self, ranges: Ranges) -> Ranges:
        """Translate ranges of the topic, ascending; what is of other origins in them is left out."""
        return _map(ranges, self.locals, self.counts, self.origins - self.locals)

    def to_local(self, ranges: Ranges) -> Ranges:
        """Translate ranges of the origin, ascending; what is not in the topic is left out."""
        return _map(ranges, self.origins, self.counts, self.locals - self.origins)


def _crossings(ranges: Ranges, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return, for each range, the first run that reaches into it, and the one behind the last."""
    first = np.searchsorted(ends, ranges[0], "right")
    behind = np.searchsorted(starts, ranges[1], "left")
    return first, np.maximum(first, behind)


def _map(ranges: Ranges, starts: Offsets, counts: Offsets, shifts: Offsets) -> Ranges:
    ends = starts + counts
    first, behind = _crossings(ranges, starts, ends)
    crossed = behind - first
    query = np.repeat(np.arange(len(crossed)), crossed)
    run = first[query] + np.arange(len(query)) - (np.cumsum(crossed) - crossed)[query]
    return (
        np.maximum(ranges[0][query], starts[run]) + shifts[run],
        np.minimum(ranges[1][query], ends[run]) + shifts[run],
    )


class Translation:
    """Translates between a topic and all origins of its messages, at one moment.

    Of the topic's own origin, offsets here and there are the same. An acknowledged range of the topic stays one range
    of its own origin, although it may contain messages of others: their offsets name no message of that origin.

    Args:
        origin: of the topic itself.
        end: end of the topic.
        runs: of each other origin.
    """

    def __init__(self, origin: Origin, end: int, runs: Mapping[Origin, Runs]) -> None:
        self._origin = origin
        self._runs = dict(runs)
        starts = np.concatenate([own.locals for own in self._runs.values()] or [np.empty(0, np.int64)])
        counts = np.concatenate([own.counts for own in self._runs.values()] or [np.empty(0, np.int64)])
        order = np.argsort(starts)
        begins = np.concatenate([np.zeros(1, np.int64), (starts + counts)[order]])
        ends = np.concatenate([starts[order], np.array([end], np.int64)])
        own = begins < ends
        self._own_ranges = begins[own], ends[own]

    def to_origins(self, ranges: Ranges) -> dict[Origin, Ranges]:
        """Translate ranges of the topic; origins without messages in them are left out.

        Args:
            ranges: int64 starts and ends, ascending.
        """
        first, behind = _crossings(ranges, *self._own_ranges)
        crossed = np.flatnonzero(behind > first)
        translated: dict[Origin, Ranges] = {}
        if len(crossed):
            translated[self._origin] = (
                np.maximum(ranges[0][crossed], self._own_ranges[0][first[crossed]]),
                np.minimum(ranges[1][crossed], self._own_ranges[1][behind[crossed] - 1]),
            )
        for origin, runs in self._runs.items():
            at_origin = runs.to_origin(ranges)
            if len(at_origin[0]):
                translated[origin] = at_origin
        return translated

    def to_local(self, origin: Origin, ranges: Ranges) -> Ranges:
        """Translate ranges of one origin, ascending; what is not in the topic is left out."""
        if origin == self._origin:
            return _map(
                ranges,
                self._own_ranges[0],
                self._own_ranges[1] - self._own_ranges[0],
                np.zeros(len(self._own_ranges[0]), np.int64),
            )
        runs = self._runs.get(origin)
        return runs.to_local(ranges) if runs is not None else (np.empty(0, np.int64), np.empty(0, np.int64))

    def held_below(self, offset: int) -> OriginRanges:
        """Return the messages of the topic before an offset: the base of who starts there. Names only what is held."""
        held = OriginRanges()
        whole = np.zeros(1, np.int64), np.array([offset], np.int64)
        own = np.minimum(self._own_ranges[0], offset), np.minimum(self._own_ranges[1], offset)
        held.add(self._origin, *own)
        for origin, runs in self._runs.items():
            held.add(origin, *runs.to_origin(whole))
        return held
