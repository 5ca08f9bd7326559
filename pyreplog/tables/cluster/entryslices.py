"""A stretch of one ledger that one task reads, from whichever copies there are, as it travels to an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pyreplog.ledger.ledgermetadata import KEY_BYTES, LedgerMetadata
from pyreplog.tables.cluster.origins import Lies, Origin
from pyreplog.tables.slices import ALL, RecordFilter
from pyreplog.topic.model.positions import TopicPosition

HEADER_BYTES = 64
"""What an entry takes beside its value, about."""


@dataclass(frozen=True)
class TopicPart:
    """The topic that a ledger is of. before: what of the topic lies before the ledger. acked: int64 pairs: ranges of
    offsets that are not wanted, from the first to before the second, ascending."""

    topic: str
    partition: int
    before: TopicPosition
    acked: bytes = b""


@dataclass(frozen=True)
class EntrySlice:
    """Entries `start` to before `stop` of a ledger. size: bytes of them, about.

    metadata: None, to be looked up. wanted: which of them, by numbers (of a topic: offsets) and times. bookie: the one
    whose copies are read; None: those of any.
    """

    origin: Origin
    ledger: int
    start: int
    stop: int
    size: int
    wanted: RecordFilter = ALL
    lies: Lies = ()
    metadata: LedgerMetadata | None = None
    key: bytes = field(default=bytes(KEY_BYTES), repr=False)
    topic: TopicPart | None = None
    bookie: str | None = None

    def parts(self, cuts: Iterable[int]) -> Iterator[tuple[EntrySlice, int]]:
        """Cut at about these of its bytes, with the middle of each part: entries count as equal."""
        entries, start, before = self.stop - self.start, self.start, 0
        for cut in cuts:
            place = self.start + entries * cut // self.size
            if start < place < self.stop:
                yield replace(self, start=start, stop=place, size=cut - before), (before + cut) // 2
                start, before = place, cut
        yield replace(self, start=start, size=self.size - before), (before + self.size) // 2


def slim(metadata: LedgerMetadata, names: dict[str, str]) -> LedgerMetadata:
    """As far as readers need it; names: of bookies, each of which is kept once."""
    fragments = tuple(
        fragment._replace(ensemble=tuple(names.setdefault(name, name) for name in fragment.ensemble))
        for fragment in metadata.fragments
    )
    return replace(metadata, fragments=fragments, proof="", token="", custom={})
