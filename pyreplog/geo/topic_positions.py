"""TopicPositions: where the messages of all origins are in one topic."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidArgumentError
from pyreplog.geo.acks.origin_ranges import OriginRanges
from pyreplog.geo.acks.translation import Runs, Translation
from pyreplog.origins.origin import Origin
from pyreplog.origins.position_map import PositionMap

logger = logging.getLogger(__name__)


class TopicPositions:
    """A position map for each origin, built from the entries of the topic in their order. One thread at a time.

    Args:
        own: the topic as an origin.
        start: offset of the first entry that is read.
        names: returns the origin of a key in records; None: it is not known.
    """

    def __init__(self, own: Origin, start: int, names: Callable[[int], Origin | None]) -> None:
        self.own, self.end, self._names = own, start, names
        self._maps: dict[Origin, PositionMap] = {}
        self._translation: Translation | None = None

    def add(self, batch: MessageBatch) -> dict[Origin, int]:
        """Add the entries of a batch behind all others; return the end of each origin that has some, its own always."""
        ends: dict[Origin, int] = {}
        replicated = np.flatnonzero(batch.entry_origin_first >= 0).tolist()
        if replicated:
            keys, firsts = batch.entry_origin_key.tolist(), batch.entry_origin_first.tolist()
            offsets, counts = batch.entry_first.tolist(), batch.entry_count.tolist()
            for index in replicated:
                origin = self._names(keys[index])
                if origin is None or offsets[index] < self.end:
                    continue
                try:
                    self._maps.setdefault(origin, PositionMap()).add(firsts[index], offsets[index], counts[index])
                except InvalidArgumentError as error:
                    logger.error("entry at offset %d: %s", offsets[index], error)
                    continue
                ends[origin] = firsts[index] + counts[index]
        self.end = max(self.end, batch.end)
        self._translation = None
        return {**ends, self.own: self.end}

    def ends(self) -> dict[Origin, int]:
        """Return the end of each origin."""
        return {origin: end for origin, positions in self._maps.items() if (end := positions.end)} | {
            self.own: self.end
        }

    @property
    def translation(self) -> Translation:
        """Between offsets in the topic and at the origins, as it is now."""
        if self._translation is None:
            runs = {origin: Runs(*positions.columns()) for origin, positions in self._maps.items()}
            self._translation = Translation(self.own, self.end, runs)
        return self._translation

    def held(self) -> OriginRanges:
        """Return all messages of the topic."""
        return self.translation.held_below(self.end)

    def foreign(self) -> OriginRanges:
        """Return the offsets in the topic that hold messages of other origins."""
        foreign = OriginRanges()
        for positions in self._maps.values():
            _, offsets, counts = positions.columns()
            foreign.add(self.own, offsets, offsets + counts)
        return foreign
