"""Translates ranges of offsets in a local topic to ranges at the origins of the messages, and back.

Runs of messages that are neighbours in both places are translated at once, without a loop over messages.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pyreplog.geo.acks.origin_ranges import Offsets, OriginRanges, Ranges
from pyreplog.origins.growing_columns import GrowingColumns
from pyreplog.origins.origin import Origin
from pyreplog.origins.position_map import PositionMap, crossings, pairs


class Translation:
    """Translates between a topic and all origins of its messages. It grows with the topic. One thread at a time.

    For the topic's own origin, offsets in the topic and at the origin are equal. An acknowledged range of the topic
    stays one range of its own origin, although it may contain messages of others: their offsets name no message of that
    origin. Offsets below the first entry count as those of the own origin, too.

    It keeps 24 bytes for each run of messages of another origin, and 16 for each run of messages of all others. Adding
    entries takes amortized linear time in their number; translating ranges takes linear time in the result, and
    logarithmic time in the number of runs.

    Args:
        origin: the topic itself, as an origin.
        end: offset in the topic of the first entry that is added.
    """

    def __init__(self, origin: Origin, end: int = 0) -> None:
        self._origin = origin
        self._maps: dict[Origin, PositionMap] = {}
        # starts and ends of the ranges of the own origin; the first one and the last one, which grows, may be empty
        self._own_columns = GrowingColumns(2)
        self._own_columns.extend(np.array([[0], [end]], np.int64))
        self.end = end
        """End of the topic."""

    @property
    def runs(self) -> int:
        """Number of runs of all other origins."""
        return sum(map(len, list(self._maps.values())))  # at once: any thread may ask

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the runs."""
        return self._own_columns.nbytes + sum(positions.nbytes for positions in self._maps.values())

    def map_of(self, origin: Origin) -> PositionMap | None:
        """Return the position map of another origin, which must not be changed; None: it has no messages here."""
        return self._maps.get(origin)

    def ends(self) -> dict[Origin, int]:
        """Return the end of each origin."""
        return {origin: positions.end for origin, positions in self._maps.items()} | {self._origin: self.end}

    def extend(self, entries: Mapping[Origin, tuple[Offsets, Offsets, Offsets]], end: int) -> None:
        """Add entries behind all others.

        Args:
            entries: the entries of other origins, in their order: int64[n] offsets at the origin, offsets here, and
                messages. All other offsets are of the own origin.
            end: the end of the topic with the new entries.

        Raises:
            InvalidArgumentError: the entries of an origin do not lie behind its others; none of these is added.
        """
        columns: list[tuple[Offsets, Offsets]] = []
        try:
            for origin, (firsts, offsets, counts) in entries.items():
                if len(firsts):
                    self._maps.setdefault(origin, PositionMap()).extend(firsts, offsets, counts)
                    columns.append((offsets, offsets + counts))
        finally:
            self.end = max(self.end, end)
            if columns:
                self._cut_own(*map(np.concatenate, zip(*columns, strict=True)))
            self._own_columns.view[1, -1] = self.end

    def _cut_own(self, starts: Offsets, ends: Offsets) -> None:
        """Note new ranges of other origins, behind all former ones."""
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        apart = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        starts, ends = starts[np.append(0, apart)], ends[np.append(apart, len(ends)) - 1]
        if len(self._own_columns) > 1 and starts[0] == self._own_columns.view[0, -1]:
            self._own_columns.view[0, -1] = ends[0]
            starts, ends = starts[1:], ends[1:]
        if len(starts):
            self._own_columns.view[1, -1] = starts[0]
            self._own_columns.extend(np.stack([ends, np.append(starts[1:], self.end)]))

    def runs_between(self, start: int, end: int) -> dict[Origin, tuple[Offsets, Offsets, Offsets]]:
        """Return the entries of other origins in a range of the topic, as `extend` takes them, neighbours as one."""
        runs = {origin: positions.runs_between(start, end) for origin, positions in self._maps.items()}
        return {origin: columns for origin, columns in runs.items() if len(columns[0])}

    def trim(self, below: int) -> None:
        """Forget the messages of other origins here below `below`, which is not behind the end; the ends stay."""
        for positions in self._maps.values():
            positions.trim(below)
        self._own_columns.drop_first(int(np.searchsorted(self._own_columns.view[0], below, "right")) - 1)
        own = self._own_columns.view
        own[0, 0], own[1, 0] = 0, max(own[1, 0], below)

    def _own_ranges(self) -> Ranges:
        starts, ends = self._own_columns.view
        begin = int(starts[0] == ends[0])
        behind = len(starts) - int(len(starts) > 1 and starts[-1] == ends[-1])
        return starts[begin:behind], ends[begin:behind]

    def foreign_between(self, start: int, end: int) -> Ranges:
        """Return the ranges of offsets here, from `start` to `end`, that hold messages of other origins."""
        starts, ends = self._own_columns.view
        first = int(np.searchsorted(starts[1:], start, "right"))
        behind = max(first, int(np.searchsorted(ends[:-1], end, "left")))
        return np.maximum(ends[first:behind], start), np.minimum(starts[first + 1 : behind + 1], end)

    def to_origins(self, ranges: Ranges) -> dict[Origin, Ranges]:
        """Translate ranges of the topic, without origins that have no messages in them.

        Args:
            ranges: int64 starts and ends, ascending.
        """
        starts, ends = self._own_ranges()
        first, behind = crossings(ranges, starts, ends)
        crossed = np.flatnonzero(behind > first)
        translated: dict[Origin, Ranges] = {}
        if len(crossed):
            translated[self._origin] = (
                np.maximum(ranges[0][crossed], starts[first[crossed]]),
                np.minimum(ranges[1][crossed], ends[behind[crossed] - 1]),
            )
        for origin, positions in self._maps.items():
            at_origin = positions.to_origin(ranges)
            if len(at_origin[0]):
                translated[origin] = at_origin
        return translated

    def to_local(self, origin: Origin, ranges: Ranges) -> Ranges:
        """Translate ranges of one origin, ascending, without the messages that the topic lacks."""
        if origin == self._origin:
            starts, ends = self._own_ranges()
            query, run = pairs(*crossings(ranges, starts, ends))
            return np.maximum(ranges[0][query], starts[run]), np.minimum(ranges[1][query], ends[run])
        positions = self._maps.get(origin)
        return positions.to_local(ranges) if positions is not None else (np.empty(0, np.int64), np.empty(0, np.int64))

    def held_below(self, offset: int) -> OriginRanges:
        """Return the messages of the topic below an offset, the base of a subscription that starts there."""
        held = OriginRanges()
        whole = np.zeros(1, np.int64), np.array([offset], np.int64)
        starts, ends = self._own_ranges()
        below = int(np.searchsorted(starts, offset))
        held.add(self._origin, starts[:below], np.minimum(ends[:below], offset))
        for origin, positions in self._maps.items():
            held.add(origin, *positions.to_origin(whole))
        return held

    def held_from(self, starts: Mapping[Origin, int]) -> OriginRanges:
        """Return the messages of the topic, those of an origin in `starts` only from that offset at the origin on."""
        held = OriginRanges()
        start = starts.get(self._origin, 0)
        firsts, ends = self._own_ranges()
        behind = int(np.searchsorted(ends, start, "right"))
        held.add(self._origin, np.maximum(firsts[behind:], start), ends[behind:])
        for origin, positions in self._maps.items():
            held.add(origin, *positions.held_from(starts.get(origin, 0)))
        return held
