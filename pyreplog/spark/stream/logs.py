"""Streams of logs. Each log is followed by a LogReader, which sees every append in the tail page without a search."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pyreplog.errors import ConfigError, CorruptionError, TrimmedError
from pyreplog.log import checkpoint as checkpoints
from pyreplog.log.reader import LogReader
from pyreplog.partition.store.partition_reader import (
    AbortedRanges,
    PartitionReader,
    aborted_ranges,
    partition_name,
)
from pyreplog.spark.stream.offsets import Kind
from pyreplog.spark.stream.options import StreamOptions
from pyreplog.spark.stream.source_partitions import SourcePartition, SourcePartitions, StreamSource
from pyreplog.spark.stream.starts import search_around_damage
from pyreplog.tables.log_slices import Part, slices_of
from pyreplog.tables.logs import take_snapshot
from pyreplog.tables.offsets import FIRST, LAST, Offsets, Partition
from pyreplog.tables.options import Isolation
from pyreplog.tables.paths import bookie_of, log_directories, offloaded_urls
from pyreplog.tables.ranges import bounded
from pyreplog.tables.slices import NO_PARTITION, Range

_RECORD_STEP = 8  # records begin at multiples of it

logger = logging.getLogger(__name__)


class LogPartition(SourcePartition):
    """A log outside of clusters. reader: open while the object is in use. partition: what it is the log of."""

    def __init__(
        self, directory: Path, reader: LogReader, partition: PartitionReader | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> None:  # fmt: skip
        self.what, self.name, self.reader = f"log {directory}", directory.name, reader
        self.directory = directory
        self.start, self.end = reader.start, reader.end
        self.aborted: AbortedRanges = ()
        if partition is not None:
            seen = partition.high_watermark if isolation == "read_uncommitted" else partition.last_stable()
            self.end = min(seen.entry, self.end)
            self.aborted = () if isolation == "read_uncommitted" else aborted_ranges(partition.aborted())

    def position_behind(self, offset: int) -> int:
        """Return a position before which all records with a lower offset begin, and hardly others."""
        position = self.position_of(offset)
        if self.start < offset < self.end:
            record = self.reader.get(offset)
            if record.entry - record.entry_count + 1 < offset:  # it is in the midst of a record batch
                return position + _RECORD_STEP
        return position

    def position_of(self, offset: int) -> int:
        """Return the position of an entry's record, or of the first existing one.

        Raises CorruptionError if records before it are damaged, and TrimmedError.
        """
        return self.reader.position_of(min(max(offset, self.reader.start), self.end))

    def bytes_before(self, offset: int) -> int:
        """Return the position of an entry's record, or of the first existing one; after damage, where the damage
        begins.

        The tasks that read the damage do what the mode says.
        """
        try:
            return self.position_of(offset)
        except (CorruptionError, TrimmedError) as error:
            low, high = self.reader.start_position, self.reader.end_position
            return min(max(error.position, low), high) if isinstance(error, CorruptionError) else low

    def offset_at(self, place: int) -> int:
        """Return the last entry whose record begins at a position or before it."""
        low = self.reader.start
        entries = range(low, self.end + 1)
        return max(low + bisect.bisect_right(entries, place, key=self.bytes_before) - 1, low)


class LogSource(StreamSource):
    """The logs that paths and globs lead to."""

    kind: Kind = "logs"

    def __init__(self, options: StreamOptions) -> None:
        if options.read.reads_topics:
            raise ConfigError(
                f"topics: {options.read.paths[0]} is no cluster; expected an embedded cluster, or the option cluster"
            )
        for url in offloaded_urls(options.read.paths):
            raise ConfigError(f"path: {url} is an offloaded log, which only `read` reads; expected a log directory")
        self._options = options
        self._readers: dict[Path, tuple[bytes, LogReader]] = {}
        self._partition_readers: dict[Path, PartitionReader] = {}
        self._partitions: dict[Partition, LogPartition] = {}

    def list_partitions(self) -> SourcePartitions:
        """Return the logs as they are now.

        Raises NotALogError, ConfigError for a bookie's log or for the same log twice, and the errors of opening logs.
        """
        logs: dict[Partition, LogPartition] = {}
        for directory in log_directories(self._options.read.paths):
            uuid, reader = self._reader(directory)
            partition = LogPartition(
                directory, reader, self._partition_readers.get(directory), self._options.read.isolation
            )
            key = uuid.hex(), NO_PARTITION
            if key in logs:
                raise ConfigError(f"path: {logs[key].directory} and {directory} are the same log: expected one of them")
            logs[key] = partition
        self._partitions = logs
        return logs

    def _reader(self, directory: Path) -> tuple[bytes, LogReader]:
        """Return the uuid and a reader of the log in a directory. A reader of another log that lay there is closed."""
        uuid = _uuid(directory)
        known = self._readers.get(directory)
        if known is not None:
            if known[0] == uuid:
                return known
            logger.info("%s holds another log than before", directory)
            known[1].close()
        if bookie_of(directory) is not None:
            raise ConfigError(
                f"path: {directory} is a bookie's log, with entries of many ledgers; use read instead of readStream"
            )
        self._readers[directory] = opened = (uuid, LogReader(directory))
        if partition_name(directory) is not None:
            self._partition_readers[directory] = PartitionReader(opened[1])
        return opened

    def begin(self, partitions: SourcePartitions) -> dict[Partition, int]:
        """Return the first offset of a new query in each log, as the options say.

        Raises ConfigError, TrimmedError and OutOfRangeError (an offset does not exist), and CorruptionError (mode
        FAILFAST: the entries at the starting time are damaged).
        """
        options, logs = self._options, self._partitions
        if options.subscription is not None:
            raise ConfigError("subscription: expected with topics or topicsPattern, found a log")
        options.starting_offsets.check_names("startingOffsets", [(log.name, NO_PARTITION) for log in logs.values()])
        if options.starting_time is not None:
            return {key: self._since(key, log, options.starting_time) for key, log in logs.items()}
        return {key: self._first(log) for key, log in logs.items()}

    def _since(self, key: Partition, log: LogPartition, time_us: int) -> int:
        """Return the first entry appended at a time or later. Raises CorruptionError (mode FAILFAST)."""
        try:
            return log.reader.entry_at_time(time_us)
        except CorruptionError as error:
            if self._options.read.mode == "FAILFAST":
                raise
            logger.info("%s: searching for the starting time around damage: %s", log.what, error)
            return search_around_damage(self, key, (log.start, log.end), time_us, self._options.read)

    def _first(self, log: LogPartition) -> int:
        wanted = self._options.starting_offsets.of((log.name, NO_PARTITION))
        if wanted in (FIRST, LAST):
            return log.start if wanted == FIRST else log.end
        lenient = not self._options.read.fail_on_data_loss
        return bounded(log.what, wanted, LAST, log.start, log.end, lenient=lenient)[0]

    def slices(self, wanted: Iterable[tuple[Partition, Range]]) -> list[Part]:
        """Return the slices of ranges of offsets. Raises the errors of `planning.plan` for logs."""
        parts: list[Part] = []
        for key, (low, high) in wanted:
            log = self._partitions[key]
            snapshot = take_snapshot(log.directory, _within(log, low, high))
            name = partition_name(log.directory)
            if name is not None:
                snapshot = replace(snapshot, called=name.topic_id, partition=name.number, aborted=log.aborted)
            offsets = replace(self._options.read, starting_offsets=Offsets(low), ending_offsets=Offsets(high))
            parts += [part for part, _ in slices_of([(snapshot, None)], offsets)]
        return parts

    def close(self) -> None:
        """Close the readers."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()


def _within(log: LogPartition, low: int, high: int) -> Range | None:
    """Return the positions of a range of entries; None: unknown, because records before them are damaged."""
    try:
        return log.position_of(low), log.position_behind(high)
    except (CorruptionError, TrimmedError) as error:
        logger.info("%s: all segments are searched for entries %d to %d: %s", log.what, low, high, error)
        return None


def _uuid(directory: Path) -> bytes:
    checkpoint = checkpoints.load(directory)
    return take_snapshot(directory).uuid if checkpoint is None else checkpoint.uuid
