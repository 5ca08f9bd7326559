"""The entries of topics that a read needs, from the ledger chains in the metadata store.

A ledger is read during planning only if its writer has not closed it, or if a bound lies within a large ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pyreplog._native.topic.ack_set import AckSet
from pyreplog._native.topic.messages import decode_messages
from pyreplog.errors import (
    InvalidEntryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchTopicError,
    UnreadableError,
)
from pyreplog.ledger.ledger_metadata import LedgerMetadata, ledger_key
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.tables.cluster.backlogs import positions
from pyreplog.tables.cluster.entry_slices import HEADER_BYTES, EntrySlice, TopicPart
from pyreplog.tables.cluster.ledger_ends import NOTHING, LedgerContents, Unasked, amounts_known
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origin_clusters import origin_clusters
from pyreplog.tables.cluster.origins import ClusterSnapshot
from pyreplog.tables.offsets import Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.ranges import bounded, times_of
from pyreplog.tables.slices import NO_PARTITION, Range, RecordFilter
from pyreplog.topic.model.chain import ChainLedger, LedgerChain
from pyreplog.topic.model.compression import decompress
from pyreplog.topic.model.positions import EntryPosition, FirstSearch, OffsetSearch, TopicPosition
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.owner.managed.chain_reader import Search
from pyreplog.topic.owner.managed.chain_store import find_chain
from pyreplog.topic.owner.managed.ledgers import PASSWORD
from pyreplog.topic_names import TOPICS, check_name, unquote_name

NARROW_BYTES = 8 << 20
"""In larger ledgers the entry at a bound is searched for; smaller ones are read whole, and filtered."""

CLOCKS_US = 60_000_000
"""Allowed difference between owners' clocks.

By its metadata, a ledger may have been closed before its last entries were appended.
"""

KEY = ledger_key(PASSWORD)

logger = logging.getLogger(__name__)

LOST = (UnreadableError, NoSuchEntryError, InvalidEntryError)
"""Errors when the entry at a bound cannot be read or decoded."""


@dataclass(frozen=True)
class PlannedTopic:
    """A topic at one moment. rows: its name and partition in rows. held: content of its open ledger."""

    name: str
    rows: Partition
    chain: LedgerChain
    held: LedgerContents

    @property
    def end(self) -> int:
        """Offset after the last confirmed message."""
        return self.chain.end.offset + self.held.messages

    @property
    def ledgers(self) -> Iterator[tuple[ChainLedger, int, TopicPosition]]:
        """Yields (ledger, number of its entries, position in the topic at its end)."""
        for item in self.chain.ledgers:
            if item.is_closed:
                yield item, item.entries, item.end
            else:
                start = item.start
                yield (
                    item,
                    self.held.entries,
                    TopicPosition(
                        start.offset + self.held.messages,
                        start.entries + self.held.entries,
                        start.size + self.held.size,
                    ),
                )


def topic_slices(survey: ClusterSnapshot, options: ReadOptions) -> list[tuple[EntrySlice, int]]:
    """Return uncut slices of topics that a read needs, with their approximate sizes in bytes.

    A topic without the subscription is left out if failOnDataLoss is false. Raises NoSuchTopicError,
    NoSuchSubscriptionError (failOnDataLoss), ConfigError, TrimmedError and OutOfRangeError (an offset does not exist),
    UnreadableError, InvalidMetadataError, and the errors of the metadata store.
    """
    topics = find_topics(survey, options)
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        offsets.check_names(name, [topic.rows for topic in topics])
    acked: Sequence[AckSet | None] = [None] * len(topics)
    if options.subscription is not None:
        stored = positions(
            survey, [topic.name for topic in topics], options.subscription, lenient=not options.fail_on_data_loss
        )
        topics = [topic for topic in topics if topic.name in stored]
        acked = [stored[topic.name] for topic in topics]
    clusters = origin_clusters(survey, [topic.name for topic in topics], options)
    slices: list[tuple[EntrySlice, int]] = []
    for topic, acks in zip(topics, acked, strict=True):
        slices += slices_of_topic(survey, topic, acks, options, clusters.get(topic.name, b""))
    return slices


# ---- topics ----------------------------------------------------------------------------------------------------


def rows_of(name: str) -> Partition:
    """Return (topic, partition) as rows and offset options name it."""
    return partition_of(name) or (name, NO_PARTITION)


def find_topics(survey: ClusterSnapshot, options: ReadOptions) -> list[PlannedTopic]:
    """Return the topics that options select, each partition by itself.

    Raises NoSuchTopicError, InvalidMetadataError, UnreadableError (the bookies of an open ledger do not tell its end),
    and the errors of the metadata store.
    """
    topics, unasked = find_known_topics(survey, options)
    for error in unasked.values():
        raise error
    return topics


def find_known_topics(survey: ClusterSnapshot, options: ReadOptions) -> tuple[list[PlannedTopic], dict[str, Unasked]]:
    """Return the topics, as `find_topics` does; and the errors of those whose end the bookies do not tell."""
    store = survey.runtime.metadata
    names = _names([unquote_name(name) for name in store.list(TOPICS)], options)
    chains: list[tuple[str, LedgerChain]] = []
    for name, stored in zip(names, each(survey, lambda name: find_chain(store, name), names), strict=True):
        if stored is not None and stored.chain is not None and not stored.chain.deleted:
            chains.append((name, stored.chain))
        elif options.topics is not None and name in options.topics:
            raise NoSuchTopicError(name, "it does not exist, or was deleted")
    opened = [chain.open_ledger.ledger for _, chain in chains if chain.open_ledger is not None]
    ledgers = [metadata for metadata in each(survey, lambda ledger: _load(survey, ledger), opened) if metadata]
    held, unasked = amounts_known(survey.runtime, ledgers, KEY)
    return [
        PlannedTopic(name, rows_of(name), chain, held.get(_open_id(chain), NOTHING))
        for name, chain in chains
        if _open_id(chain) not in unasked
    ], {name: unasked[_open_id(chain)] for name, chain in chains if _open_id(chain) in unasked}


def _names(known: list[str], options: ReadOptions) -> list[str]:
    """Return the names of the selected topics and partitions, each once, in order.

    A topic stands for its partitions.
    """
    by_topic: dict[str, list[tuple[int, str]]] = {}
    for name in known:
        topic, partition = rows_of(name)
        by_topic.setdefault(topic, []).append((partition, name))
    if options.topics_pattern is not None:
        wanted = sorted(topic for topic in by_topic if options.topics_pattern.fullmatch(topic))
        if not wanted:
            raise NoSuchTopicError(
                options.topics_pattern.pattern, f"the pattern matches none of {len(by_topic)} topics"
            )
    else:
        wanted = [check_name(name) for name in options.topics or ()]
    names: dict[str, None] = {}
    for topic in wanted:
        for _, name in sorted(by_topic.get(topic, [(0, topic)])):
            names.setdefault(name)
    return list(names)


def _load(survey: ClusterSnapshot, ledger: int) -> LedgerMetadata | None:
    """Return the metadata of a ledger; None: it was empty, and was closed and deleted meanwhile."""
    try:
        return load_ledger(survey.runtime.metadata, ledger).metadata
    except NoSuchLedgerError:
        return None


def _open_id(chain: LedgerChain) -> int:
    return -1 if chain.open_ledger is None else chain.open_ledger.ledger


# ---- ledgers of a topic ----------------------------------------------------------------------------------------


def slices_of_topic(
    survey: ClusterSnapshot, topic: PlannedTopic, acks: AckSet | None, options: ReadOptions, clusters: bytes
) -> Iterator[tuple[EntrySlice, int]]:
    """Yield slices of one topic, as `topic_slices` does, without the messages that `acks` has acknowledged.

    clusters: of its origins, from `origin_clusters`.
    """
    start = options.starting_offsets.of(topic.rows) if acks is None else min(acks.mark_offset, topic.end)
    low, high = bounded(
        f"topic {topic.name}", start, options.ending_offsets.of(topic.rows), topic.chain.start.offset, topic.end,
        lenient=not options.fail_on_data_loss,
    )  # fmt: skip
    times = times_of(options)
    for item, entries, end in topic.ledgers:
        before = max(low, item.start.offset), min(high, end.offset)
        if before[0] >= before[1] or _is_outside(item, times):
            continue
        try:
            first, stop = _narrowed(survey, item, entries, end, before, times)
        except LOST as error:
            if options.mode == "FAILFAST":
                raise
            logger.info("ledger %d is read as a whole: %s", item.ledger, error)
            first, stop = 0, entries
        size = end.size - item.start.size
        weight = (size // entries + HEADER_BYTES) * (stop - first)
        if first >= stop:
            continue
        offsets = None if before == (item.start.offset, end.offset) else before
        part = TopicPart(*topic.rows, item.start, b"" if acks is None else _acked(acks, *before), clusters)
        yield EntrySlice(
            survey.origin, item.ledger, first, stop, weight, RecordFilter(offsets, times), survey.segments(item.ledger),
            key=KEY, topic=part,
        ), weight  # fmt: skip


def _is_outside(item: ChainLedger, times: Range | None) -> bool:
    if times is None:
        return False
    return item.created_us - CLOCKS_US >= times[1] or closed_before(item, times[0])


def closed_before(item: ChainLedger, time_us: int) -> bool:
    """Whether all entries of a ledger were appended before a time, by its metadata."""
    return 0 < item.closed_us < time_us - CLOCKS_US


def _acked(acks: AckSet, low: int, high: int) -> bytes:
    starts, stops = acks.acked(low, high)
    return np.stack((starts, stops), axis=1).astype(np.int64).tobytes()


def _narrowed(
    survey: ClusterSnapshot, item: ChainLedger, entries: int, end: TopicPosition, offsets: Range, times: Range | None
) -> tuple[int, int]:
    """Return the range of entries of a large ledger that can hold messages to read."""
    first, stop = 0, entries
    if end.size - item.start.size < NARROW_BYTES:
        return first, stop
    searches: list[tuple[bool, Search]] = []
    if offsets[0] > item.start.offset:
        searches.append((True, OffsetSearch(offsets[0], entries, item.start.offset, end.offset)))
    if offsets[1] < end.offset:
        searches.append((False, OffsetSearch(offsets[1] - 1, entries, item.start.offset, end.offset)))
    if times is not None:
        searches += [(True, since(times[0], entries)), (False, since(times[1], entries))]
    if not searches:
        return first, stop
    metadata = load_ledger(survey.runtime.metadata, item.ledger).metadata
    with LedgerReader(metadata, KEY, survey.runtime) as reader:
        for is_first, search in searches:
            entry = search_in(reader, item, search)
            if is_first:
                first = max(first, entries if entry is None else entry)
            elif entry is not None:
                stop = min(stop, entry + isinstance(search, OffsetSearch))
    return first, stop


def since(time_us: int, entries: int) -> FirstSearch:
    """Return a search for the first entry appended at a time or later. Append times do not decrease within a ledger."""
    return FirstSearch(entries, lambda _, appended_us: appended_us >= time_us)


def search_in(reader: LedgerReader, item: ChainLedger, search: Search) -> int | None:
    """Run a search in a ledger, and return the entry that it finds; None: none."""
    while (entry := search.next()) is not None:
        read = reader.read if reader.is_closed else reader.read_unconfirmed
        records = next(read(entry, entry + 1))
        start = item.start
        batch = decode_messages(
            records, offset=start.offset, entries=start.entries, size=start.size, decompress=decompress
        )  # fmt: skip
        place = EntryPosition(
            batch.ledger, entry, int(batch.entry_first[0]), int(batch.entry_count[0]), int(batch.entry_size[0]),
            int(batch.entries_before[0]), int(batch.bytes_before[0]),
        )  # fmt: skip
        search.observe(place, int(records.timestamp[0]))
    return None if search.found is None else search.found.entry
