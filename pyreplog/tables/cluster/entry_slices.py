"""Entry slices: the part of one ledger that one task reads, as the planner sends it to an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pyreplog.ledger.ledger_metadata import KEY_BYTES, LedgerMetadata
from pyreplog.tables.cluster.origins import Origin, SegmentBases
from pyreplog.tables.slices import ALL, RecordFilter
from pyreplog.topic.model.positions import TopicPosition

HEADER_BYTES = 64
"""Approximate bytes of an entry besides its value."""


@dataclass(frozen=True)
class TopicPart:
    """The topic of a ledger.

    before: position in the topic at the start of the ledger. acked: int64 pairs, ascending: half-open ranges of offsets
    that are not wanted. clusters: of the topic's origins, as `origin_clusters` returns them.
    """

    topic: str
    partition: int
    before: TopicPosition
    acked: bytes = b""
    clusters: bytes = b""


@dataclass(frozen=True)
class EntrySlice:
    """The entries of a ledger from `start` to before `stop`.

    size: their approximate bytes. wanted: filter by entry number (in a topic: offset) and time. metadata: None: load it
    on the executor. bookie: read the copies of this one; None: of any.
    """

    origin: Origin
    ledger: int
    start: int
    stop: int
    size: int
    wanted: RecordFilter = ALL
    segments: SegmentBases = ()
    metadata: LedgerMetadata | None = None
    key: bytes = field(default=bytes(KEY_BYTES), repr=False)
    topic: TopicPart | None = None
    bookie: str | None = None

    def parts(self, cuts: Iterable[int]) -> Iterator[tuple[EntrySlice, int]]:
        """Yield the parts of a slice that is cut near these of its bytes, each with the byte in its middle.

        All entries count as equally large.
        """
        entries, start, before = self.stop - self.start, self.start, 0
        for cut in cuts:
            place = self.start + entries * cut // self.size
            if start < place < self.stop:
                yield replace(self, start=start, stop=place, size=cut - before), (before + cut) // 2
                start, before = place, cut
        yield replace(self, start=start, size=self.size - before), (before + self.size) // 2


def slim(metadata: LedgerMetadata, names: dict[str, str]) -> LedgerMetadata:
    """Return metadata with only what readers need. names: shares one string for each bookie."""
    fragments = tuple(
        fragment._replace(ensemble=tuple(names.setdefault(name, name) for name in fragment.ensemble))
        for fragment in metadata.fragments
    )
    return replace(metadata, fragments=fragments, proof="", token="", custom={})
