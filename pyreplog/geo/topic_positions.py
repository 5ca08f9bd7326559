"""TopicPositions: maps the offsets of all origins to offsets in one topic, and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pyreplog._native.topic.messages import MessageBatch
from pyreplog.errors import InvalidMetadataError
from pyreplog.geo.acks.origin_ranges import Offsets, OriginRanges, Ranges, ranges_of, subtract
from pyreplog.geo.acks.subscription_state import SubscriptionState
from pyreplog.geo.acks.translation import Translation
from pyreplog.origins.origin import Origin
from pyreplog.origins.position_page import SealedLedger, decode, encode

logger = logging.getLogger(__name__)

NO_RANGES: Ranges = np.zeros(0, np.int64), np.zeros(0, np.int64)


class TopicPositions:
    """A position map for each origin, built from the entries of the topic in their order. One thread at a time.

    Args:
        own: the topic as an origin.
        start: offset of the first entry that is read.
        names: returns the origin of a key in records; None: the key is unknown.
        former: the former identities of the topic, each with its end offset: `Origins.former`.
    """

    def __init__(
        self,
        own: Origin,
        start: int,
        names: Callable[[int], Origin | None],
        former: Sequence[tuple[Origin, int]] = (),
    ) -> None:
        self.own, self.start, self._names, self._former = own, start, names, former
        self.translation = Translation(own, start)
        """The present translation between offsets in the topic and at the origins."""
        self._irregular_end = (
            start  # behind the last batch with entries of unknown origins, or entries that were left out
        )

    @property
    def end(self) -> int:
        """Offset behind the last entry that was added."""
        return self.translation.end

    def add(self, batch: MessageBatch) -> dict[Origin, int]:
        """Add the entries of a batch behind all others; return the end of each origin in it, and of the topic's own."""
        firsts, offsets = batch.entry_origin_first, batch.entry_first
        is_new = offsets >= self.end
        entries: dict[Origin, tuple[Offsets, Offsets, Offsets]] = {}

        def choose(origin: Origin | None, chosen: NDArray[np.bool_], firsts: Offsets) -> None:
            if origin is None:
                self._irregular_end = batch.end
            elif chosen.any():
                counts = batch.entry_count[chosen].astype(np.int64)
                columns = self._ascending(origin, firsts[chosen], offsets[chosen], counts)
                if len(columns[0]):
                    entries[origin] = columns

        is_replicated = (firsts >= 0) & is_new
        if is_replicated.any():
            keys = batch.entry_origin_key
            for key in np.unique(keys[is_replicated]).tolist():
                choose(self._names(key), is_replicated & (keys == key), firsts)
        if self._former and self.end < self._former[-1][1]:  # published here under another identity, at these offsets
            below = 0
            for origin, end in self._former:
                choose(origin, is_new & (firsts < 0) & (offsets >= below) & (offsets < end), offsets)
                below = max(below, end)
        self.translation.extend(entries, batch.end)
        ends = self.translation.ends()
        return {origin: ends[origin] for origin in (*entries, self.own)}

    def _ascending(
        self, origin: Origin, firsts: Offsets, offsets: Offsets, counts: Offsets
    ) -> tuple[Offsets, Offsets, Offsets]:
        """Return the entries that lie behind all entries before them."""
        positions = self.translation.map_of(origin)
        end = 0 if positions is None else positions.end
        if firsts[0] >= end and (firsts[1:] >= (firsts + counts)[:-1]).all() and (counts > 0).all():
            return firsts, offsets, counts
        self._irregular_end = int(offsets[-1] + counts[-1])
        is_behind = np.zeros(len(firsts), np.bool_)  # only a bug of the topic's owner leads here
        for at, (first, count) in enumerate(zip(firsts.tolist(), counts.tolist(), strict=True)):
            if first >= end and count > 0:
                end, is_behind[at] = first + count, True
            else:
                logger.error(
                    "entry at offset %d: expected messages of %s from %d on, found %d from %d on",
                    offsets[at], origin.token, end, count, first,
                )  # fmt: skip
        return firsts[is_behind], offsets[is_behind], counts[is_behind]

    def skip_to(self, offset: int) -> None:
        """Go on at `offset` if that is behind the end: the entries before it were removed."""
        if offset > self.end:
            self.translation.extend({}, offset)

    def ends(self) -> dict[Origin, int]:
        """Return the end of each origin."""
        return self.translation.ends()

    def trim(self, start: int) -> None:
        """Forget the entries below `start`, as if the topic had been read from `start` on. The ends stay."""
        if start > self.start:
            self.start = start
            self.translation.trim(start)

    def first(self, origin: Origin) -> int:
        """Return the offset at another origin below which the topic keeps none of its messages; 0: none was read."""
        positions = self.translation.map_of(origin)
        return 0 if positions is None else positions.first

    def base_of_seek(self, state: SubscriptionState, offset: int, start: int) -> OriginRanges:
        """Return the messages that a seek to `offset` passes over: those that are kept here before it.

        Messages that were removed here may still be stored in other clusters: of these, what the state has passed stays
        passed, and nothing else is.

        Args:
            state: the state before the seek.
            offset: the new position, not before `start`.
            start: start of the topic; the messages below it were removed.
        """
        base, removed = self.translation.held_below(offset), self.translation.held_below(start)
        for origin in removed:
            base.remove(origin, *removed.between(origin))
        for origin in state.origins():
            passed = state.passed_set(origin)
            base.add(origin, *subtract(passed, subtract(passed, removed.of(origin))).intersect())
            base.add(origin, *passed.intersect(0, self.first(origin)))
        return base

    def held(self) -> OriginRanges:
        """Return all messages of the topic."""
        return self.translation.held_below(self.end)

    def held_from(self, starts: Mapping[Origin, int]) -> OriginRanges:
        """Return the messages of the topic, those of an origin in `starts` only from that offset at the origin on.

        It takes time in proportion to the runs that are returned.
        """
        return self.translation.held_from(starts)

    def kept(self, origin: Origin, ranges: Ranges, start: int) -> Ranges:
        """Return the messages in ranges of an origin that the topic holds from an offset in it on.

        Args:
            origin: the origin.
            ranges: starts and ends at the origin, ascending.
            start: offset in the topic.
        """
        held = ranges_of(*self.translation.to_local(origin, ranges))
        return self.translation.to_origins(held.intersect(start)).get(origin, NO_RANGES)

    def foreign(self, origin: Origin, start: int, end: int) -> Ranges:
        """Return the offsets of an origin, between two of them, that hold messages of other origins; likewise."""
        return self.translation.foreign_between(start, end) if origin == self.own else NO_RANGES

    # ---- pages ------------------------------------------------------------------------------------------------

    def page(self, ledger: SealedLedger) -> bytes | None:
        """Return the page of a ledger that was added; None: it can have none.

        What an entry that was left out is depends on what lies before its ledger: that is always read.
        """
        if ledger.first < max(self.start, self._irregular_end):
            return None
        return encode(self.own, ledger, self.translation.runs_between(ledger.first, ledger.end))

    def add_page(self, ledger: SealedLedger, page: bytes) -> None:
        """Add the entries of a ledger that begins at the end, from its page.

        Raises:
            InvalidMetadataError: the page is malformed, or of another ledger, or contradicts what is known of the
                origins; nothing was added. The ledger has to be read.
            MetadataVersionError: a newer version wrote it; nothing was added.
        """
        runs = decode(page, self.own, ledger)
        former = {origin for origin, _ in self._former}
        for origin, (firsts, _, _) in runs.items():
            if origin not in former and self._names(origin.key) != origin:
                raise InvalidMetadataError(f"position page: expected known origins, found {origin.token}")
            positions = self.translation.map_of(origin)
            if positions is not None and firsts[0] < positions.end:
                raise InvalidMetadataError(
                    f"position page: expected messages of {origin.token} from {positions.end} on, found {firsts[0]}"
                )
        self.translation.extend(runs, ledger.end)
