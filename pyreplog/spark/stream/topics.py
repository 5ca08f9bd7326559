"""Streams of topics. Their ledger chains tell offsets and sizes without reading messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pyreplog.ledger.ledger_store import load_ledger
from pyreplog.ledger.reader import LedgerReader
from pyreplog.spark.stream.offsets import Kind
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.stream.source_partitions import SourcePartition, SourcePartitions, StreamSource
from pyreplog.spark.stream.starts import search_around_damage
from pyreplog.tables.cluster.backlogs import positions
from pyreplog.tables.cluster.cluster_slices import survey_of
from pyreplog.tables.cluster.origin_clusters import origin_clusters
from pyreplog.tables.cluster.origins import ClusterSnapshot
from pyreplog.tables.cluster.topics import (
    CLOCKS_US,
    KEY,
    LOST,
    PlannedTopic,
    closed_before,
    find_topics,
    search_in,
    since,
    slices_of_topic,
)
from pyreplog.tables.log_slices import Part
from pyreplog.tables.offsets import FIRST, LAST, Offsets, Partition
from pyreplog.tables.ranges import bounded
from pyreplog.tables.slices import Range
from pyreplog.topic.model.chain import ChainLedger
from pyreplog.topic.model.positions import TopicPosition

logger = logging.getLogger(__name__)


class TopicPartition(SourcePartition):
    """A topic, or a partition of one."""

    def __init__(self, topic: PlannedTopic) -> None:
        self.what, self.topic, self.token = f"topic {topic.name}", topic, topic.chain.token
        self.start, self.end = topic.chain.start.offset, topic.end
        self.is_open = topic.chain.open_ledger is not None

    def bytes_before(self, offset: int) -> int:
        """Return the approximate bytes before an offset; the messages of a ledger count as equally large."""
        for item, _, end in self.topic.ledgers:
            if offset < end.offset:
                start = item.start
                return start.size + _scaled(offset - start.offset, end.offset - start.offset, end.size - start.size)
        return self._end.size

    def offset_at(self, place: int) -> int:
        """Return the offset with about so many bytes before it; the messages of a ledger count as equally large."""
        for item, _, end in self.topic.ledgers:
            if place < end.size:
                start = item.start
                return start.offset + _scaled(place - start.size, end.size - start.size, end.offset - start.offset)
        return self.end

    @property
    def _end(self) -> TopicPosition:
        ends = [end for _, _, end in self.topic.ledgers]
        return ends[-1] if ends else self.topic.chain.start


class TopicSource(StreamSource):
    """Topics of an embedded cluster, in a directory, or of one over TCP, whose connections are kept."""

    kind: Kind = "topics"

    def __init__(self, folder: Path | None, options: StreamOptions) -> None:
        self._folder, self._options = folder, options
        self._closing = ExitStack()
        self._remote: ClusterSnapshot | None = None
        self._partitions: dict[Partition, TopicPartition] = {}

    @contextmanager
    def _survey(self) -> Iterator[ClusterSnapshot]:
        """Open the cluster.

        A directory is examined again each time, because its segments change while it is written.
        """
        if self._folder is not None:
            with survey_of(self._folder, self._options.read) as view:
                yield view
            return
        if self._remote is None:
            self._remote = self._closing.enter_context(survey_of(None, self._options.read))
        yield self._remote

    def list_partitions(self) -> SourcePartitions:
        """Return the topics as they are now. Raises the errors of `find_topics`, and of connecting."""
        with self._survey() as runtime:
            self._partitions = {topic.rows: TopicPartition(topic) for topic in find_topics(runtime, self._options.read)}
        return self._partitions

    def begin(self, partitions: SourcePartitions) -> dict[Partition, int]:
        """Return the first offset of a new query in each topic, as the options say.

        Raises NoSuchSubscriptionError; ConfigError, TrimmedError and OutOfRangeError if an offset does not exist; and
        UnreadableError, NoSuchEntryError and InvalidEntryError (mode FAILFAST) if the entries at the starting time
        cannot be read.
        """
        options, topics = self._options, self._partitions
        options.starting_offsets.check_names("startingOffsets", list(topics))
        if options.subscription is not None:
            with self._survey() as runtime:
                acks = positions(runtime, [partition.topic.name for partition in topics.values()], options.subscription)
            return {
                key: min(acks[partition.topic.name].mark_offset, partition.end) for key, partition in topics.items()
            }
        if options.starting_time is not None:
            with self._survey() as runtime:
                return {key: self._since(runtime, key, topic, options.starting_time) for key, topic in topics.items()}
        return {key: self._first(key, topic) for key, topic in topics.items()}

    def _first(self, key: Partition, topic: TopicPartition) -> int:
        wanted = self._options.starting_offsets.of(key)
        if wanted in (FIRST, LAST):
            return topic.start if wanted == FIRST else topic.end
        lenient = not self._options.read.fail_on_data_loss
        return bounded(topic.what, wanted, LAST, topic.start, topic.end, lenient=lenient)[0]

    def _since(self, runtime: ClusterSnapshot, key: Partition, partition: TopicPartition, time_us: int) -> int:
        """Return the first message appended at a time or later; the end if there is none."""
        for item, entries, end in partition.topic.ledgers:
            if closed_before(item, time_us) or not entries:
                continue
            if item.created_us - CLOCKS_US >= time_us:
                return item.start.offset
            try:
                offset = _search(runtime, item, entries, time_us)
            except LOST as error:
                if self._options.read.mode == "FAILFAST":
                    raise
                logger.info(
                    "%s: searching for the starting time around damage in ledger %d: %s",
                    partition.what,
                    item.ledger,
                    error,
                )
                offsets = item.start.offset, end.offset
                offset = search_around_damage(self, key, offsets, time_us, self._options.read)
                offset = None if offset == end.offset else offset
            if offset is not None:
                return offset
        return partition.end

    def slices(self, wanted: Iterable[tuple[Partition, Range]]) -> list[Part]:
        """Return the slices of ranges of offsets. Raises the errors of `topic_slices`."""
        parts: list[Part] = []
        chosen = [(self._partitions[key].topic, bounds) for key, bounds in wanted]
        with self._survey() as runtime:
            clusters = origin_clusters(runtime, [topic.name for topic, _ in chosen], self._options.read)
            for topic, (low, high) in chosen:
                offsets = replace(self._options.read, starting_offsets=Offsets(low), ending_offsets=Offsets(high))
                slices = slices_of_topic(runtime, topic, None, offsets, clusters.get(topic.name, b""))
                parts += [part for part, _ in slices]
        return parts

    def close(self) -> None:
        """Close the connections."""
        self._closing.close()
        self._remote = None


def _scaled(part: int, whole: int, other: int) -> int:
    """Return part * other / whole."""
    return max(part, 0) * other // whole if whole else 0


def _search(runtime: ClusterSnapshot, item: ChainLedger, entries: int, time_us: int) -> int | None:
    search = since(time_us, entries)
    metadata = load_ledger(runtime.runtime.metadata, item.ledger).metadata
    with LedgerReader(metadata, KEY, runtime.runtime) as reader:
        search_in(reader, item, search)
    return None if search.found is None else search.found.first
