"""Planning topics: which of their ledgers hold what is wanted, by what the chains in the metadata store say.

A ledger is read while this plans only where its writer has not closed it, or a bound lies within a large one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pyreplog._native.topic.ackset import AckSet
from pyreplog._native.topic.messages import decode_messages
from pyreplog.errors import (
    InvalidEntryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchTopicError,
    UnreadableError,
)
from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.ledgermetadata import LedgerMetadata, ledger_key
from pyreplog.ledger.reader import LedgerReader
from pyreplog.tables.cluster.backlogs import positions
from pyreplog.tables.cluster.entryslices import HEADER_BYTES, EntrySlice, TopicPart
from pyreplog.tables.cluster.ledgerends import NOTHING, Amount, Unasked, amounts_known
from pyreplog.tables.cluster.ledgers import each
from pyreplog.tables.cluster.origins import ClusterView
from pyreplog.tables.offsets import Partition
from pyreplog.tables.options import ReadOptions
from pyreplog.tables.ranges import bounded, times_of
from pyreplog.tables.slices import NO_PARTITION, Range, RecordFilter
from pyreplog.topic.model.chain import ChainLedger, LedgerChain
from pyreplog.topic.model.compression import decompress
from pyreplog.topic.model.names import TOPICS, check_name, unquote_name
from pyreplog.topic.model.positions import EntryPosition, FirstSearch, OffsetSearch, TopicPosition
from pyreplog.topic.model.routing import partition_of
from pyreplog.topic.owner.managed.chainreader import Search
from pyreplog.topic.owner.managed.chainstore import find_chain
from pyreplog.topic.owner.managed.ledgers import PASSWORD

NARROW_BYTES = 8 << 20
"""In larger ledgers, a bound is looked for; of smaller ones all is read, and not all of it given out."""

CLOCKS_US = 60_000_000
"""By so much owners' clocks may differ, or be set back: by them, a ledger may end before its last entries came."""

KEY = ledger_key(PASSWORD)

logger = logging.getLogger(__name__)

LOST = (UnreadableError, NoSuchEntryError, InvalidEntryError)
"""An entry that was to say where a bound lies cannot be read, or makes no sense."""


@dataclass(frozen=True)
class PlannedTopic:
    """A topic, by its name; what its rows say; what is there of it: up to `end`. held: by its open ledger."""

    name: str
    rows: Partition
    chain: LedgerChain
    held: Amount

    @property
    def end(self) -> int:
        """Offset behind the last message that is certain."""
        return self.chain.end.offset + self.held.messages

    @property
    def ledgers(self) -> Iterator[tuple[ChainLedger, int, TopicPosition]]:
        """(ledger, its entries, what of the topic lies before its end)."""
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


def topic_slices(survey: ClusterView, options: ReadOptions) -> list[tuple[EntrySlice, int]]:
    """Slices, uncut, of all that is wanted of topics, and about how many bytes each is.

    Errors: NoSuchTopicError; NoSuchSubscriptionError (failOnDataLoss; else a topic without the subscription is left
    out); ConfigError, TrimmedError and OutOfRangeError: an offset is not there; UnreadableError; InvalidMetadataError;
    those of the metadata store.
    """
    topics = find_topics(survey, options)
    for name, offsets in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        offsets.check_names(name, [topic.rows for topic in topics])
    acked: Sequence[AckSet | None] = [None] * len(topics)
    if options.subscription is not None:
        there = positions(
            survey, [topic.name for topic in topics], options.subscription, lenient=not options.fail_on_data_loss
        )
        topics = [topic for topic in topics if topic.name in there]
        acked = [there[topic.name] for topic in topics]
    found: list[tuple[EntrySlice, int]] = []
    for topic, acks in zip(topics, acked, strict=True):
        found += slices_of_topic(survey, topic, acks, options)
    return found


# ---- which topics ----------------------------------------------------------------------------------------------


def rows_of(name: str) -> Partition:
    """Topic and partition, as rows say them and offsets are given by."""
    return partition_of(name) or (name, NO_PARTITION)


def find_topics(survey: ClusterView, options: ReadOptions) -> list[PlannedTopic]:
    """The topics that are meant, each partition by itself. Errors: NoSuchTopicError; InvalidMetadataError;
    UnreadableError, an open ledger's bookies do not say how far it goes; those of the metadata store."""
    found, unasked = find_known_topics(survey, options)
    for error in unasked.values():
        raise error
    return found


def find_known_topics(survey: ClusterView, options: ReadOptions) -> tuple[list[PlannedTopic], dict[str, Unasked]]:
    """As `find_topics`, of those of which somebody can tell how far they go; and why of the others nobody can."""
    store = survey.runtime.metadata
    names = _names([unquote_name(name) for name in store.list(TOPICS)], options)
    chains: list[tuple[str, LedgerChain]] = []
    for name, there in zip(names, each(survey, lambda name: find_chain(store, name), names), strict=True):
        if there is not None and there.chain is not None and not there.chain.deleted:
            chains.append((name, there.chain))
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
    """Those that are meant, each once, in order. A topic's name means its partitions, too."""
    by_topic: dict[str, list[tuple[int, str]]] = {}
    for name in known:
        topic, partition = rows_of(name)
        by_topic.setdefault(topic, []).append((partition, name))
    if options.topics_pattern is not None:
        wanted = sorted(topic for topic in by_topic if options.topics_pattern.fullmatch(topic))
        if not wanted:
            raise NoSuchTopicError(options.topics_pattern.pattern, f"none of {len(by_topic)} topics is called so")
    else:
        wanted = [check_name(name) for name in options.topics or ()]
    found: dict[str, None] = {}
    for topic in wanted:
        for _, name in sorted(by_topic.get(topic, [(0, topic)])):
            found.setdefault(name)
    return list(found)


def _load(survey: ClusterView, ledger: int) -> LedgerMetadata | None:
    """None: it was closed, being empty, and deleted meanwhile."""
    try:
        return load_ledger(survey.runtime.metadata, ledger).metadata
    except NoSuchLedgerError:
        return None


def _open_id(chain: LedgerChain) -> int:
    return -1 if chain.open_ledger is None else chain.open_ledger.ledger


# ---- which of their ledgers ------------------------------------------------------------------------------------


def slices_of_topic(
    survey: ClusterView, topic: PlannedTopic, acks: AckSet | None, options: ReadOptions
) -> Iterator[tuple[EntrySlice, int]]:
    """As `topic_slices`, of one topic, without what `acks` says is acknowledged."""
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
        part = TopicPart(*topic.rows, item.start, b"" if acks is None else _acked(acks, *before))
        yield EntrySlice(
            survey.origin, item.ledger, first, stop, weight, RecordFilter(offsets, times), survey.lies(item.ledger),
            key=KEY, topic=part,
        ), weight  # fmt: skip


def _is_outside(item: ChainLedger, times: Range | None) -> bool:
    if times is None:
        return False
    return item.created_us - CLOCKS_US >= times[1] or closed_before(item, times[0])


def closed_before(item: ChainLedger, time_us: int) -> bool:
    """Whether all entries of a ledger were appended before a time, as its metadata say."""
    return 0 < item.closed_us < time_us - CLOCKS_US


def _acked(acks: AckSet, low: int, high: int) -> bytes:
    starts, stops = acks.acked(low, high)
    return np.stack((starts, stops), axis=1).astype(np.int64).tobytes()


def _narrowed(
    survey: ClusterView, item: ChainLedger, entries: int, end: TopicPosition, offsets: Range, times: Range | None
) -> tuple[int, int]:
    """Which entries of a large ledger can hold what is wanted, from the first to before the second."""
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
    """For the first entry appended at a time or later. Append times do not go back in a ledger."""
    return FirstSearch(entries, lambda _, appended_us: appended_us >= time_us)


def search_in(reader: LedgerReader, item: ChainLedger, search: Search) -> int | None:
    """The entry of a ledger that a search finds; None: there is none."""
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
        search.saw(place, int(records.timestamp[0]))
    return None if search.found is None else search.found.entry
